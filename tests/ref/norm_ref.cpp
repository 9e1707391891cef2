#include "ref/norm_ref.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "ref/long_sum.h"

namespace fastnorm::ref {
namespace {

constexpr double kU = 0x1p-24;
constexpr double kLeast =
    0x1p-149;  // least subnormal of f32: what underflow may take from a product

double ceil_log2(double v) { return std::ceil(std::log2(v)); }

// Arithmetic on floats in double, rounded to f32. It equals the f32 operation for + - * / and
// square roots.
double single(double v) { return static_cast<double>(static_cast<float>(v)); }

struct Sums {
  std::vector<double> a, b;  // the row for the statistics, and for the normalisation
  double mean_magnitude = 0;
  bool finite = true;
};

Sums read_row(const NormOptions& o, const NormRow& row) {
  Sums sums;
  const bool add = row.residual != nullptr;
  for (int64_t i = 0; i < row.n; ++i) {
    const double s = add ? single(static_cast<double>(row.x[i]) + row.residual[i]) : row.x[i];
    const double rounded = add ? round_to(o.sum_dtype, s) : s;
    sums.a.push_back(o.residual_rounding == ResidualRounding::kBeforeStatistics ? rounded : s);
    sums.b.push_back(o.residual_rounding == ResidualRounding::kExact ? s : rounded);
    sums.finite = sums.finite && std::isfinite(sums.a.back()) && std::isfinite(sums.b.back());
    sums.mean_magnitude += std::fabs(sums.a.back());
  }
  sums.mean_magnitude /= static_cast<double>(row.n);
  return sums;
}

double weight_of(const NormOptions& o, const NormRow& row, int64_t i) {
  return row.weight != nullptr ? single(static_cast<double>(row.weight[i]) + o.weight_offset) : 1.0;
}
double bias_of(const NormRow& row, int64_t i) { return row.bias != nullptr ? row.bias[i] : 0.0; }

// Statistics in double, and their bounds.
struct Statistics {
  double mean = 0, variance = 0, rstd = 0;
  double mean_error = 0;  // absolute
  double rstd_error = 0;  // relative
};

double average(const std::vector<double>& v) {
  LongSum sum;
  for (const double e : v) sum += e;
  return sum.over(static_cast<double>(v.size()));
}

double mean_distance(const std::vector<double>& v, double from) {
  LongSum sum;
  for (const double e : v) sum += std::fabs(e - from);
  return sum.over(static_cast<double>(v.size()));
}

Statistics statistics_of(const NormOptions& o, const Sums& sums, double path) {
  Statistics s;
  const bool layer = o.kind == Kind::kLayer;
  if (layer) {
    s.mean = average(sums.a);
    s.mean_error =
        o.rounding == Rounding::kEveryStep
            ? (path + 2) * kU * sums.mean_magnitude + kLeast
            : kU * std::fabs(s.mean) + (path + 2) * kU * mean_distance(sums.a, s.mean) + 2 * kLeast;
  }
  std::vector<double> squares;
  squares.reserve(sums.a.size());
  for (const double a : sums.a) squares.push_back((a - s.mean) * (a - s.mean));
  s.variance = average(squares);
  const double radicand = s.variance + static_cast<double>(o.eps);
  s.rstd = 1.0 / std::sqrt(radicand);
  s.rstd_error = (path / 2 + (layer ? 5 : 4)) * kU + kLeast / radicand;
  if (layer) s.rstd_error += 0.5 * s.mean_error * s.mean_error / radicand;
  return s;
}

// True if sums and squares neither overflow nor vanish, so that relative errors have a meaning.
bool in_range(const Statistics& s, const Sums& sums, int64_t n) {
  const auto count = static_cast<double>(n);
  return sums.finite && (s.variance + s.mean * s.mean) * count < 0.25 * FLT_MAX &&
         sums.mean_magnitude * count < 0.25 * FLT_MAX && std::isfinite(s.rstd) &&
         s.rstd_error < 0x1p-8;
}

Range round_range(Type type, double low, double high) {
  return {round_to(type, low), round_to(type, high)};
}

void bound_y(const NormOptions& o, const NormRow& row, const Sums& sums, const Statistics& s,
             NormBounds* bounds) {
  for (int64_t i = 0; i < row.n; ++i) {
    const double g = weight_of(o, row, i), bias = bias_of(row, i);
    const double t = (sums.b[static_cast<size_t>(i)] - s.mean) * s.rstd;
    const double t_error =
        s.rstd * s.mean_error + (s.rstd_error + 2 * kU) * std::fabs(t) + 2 * kLeast;
    Range ts = {t - t_error, t + t_error};
    if (o.rounding == Rounding::kNormalized) ts = round_range(o.dtype, ts.low, ts.high);
    const double ends[] = {ts.low * g, ts.high * g};
    const double least = std::min(ends[0], ends[1]), greatest = std::max(ends[0], ends[1]);
    double slack =
        2 * kU * (std::max(std::fabs(least), std::fabs(greatest)) + std::fabs(bias)) + 2 * kLeast;
    // The product of rstd and a weight may be subnormal before a large number multiplies it.
    if (o.rounding == Rounding::kOnceRw)
      slack += kLeast * (std::fabs(sums.b[static_cast<size_t>(i)] - s.mean) + s.mean_error);
    bounds->y.push_back(round_range(o.y_dtype(), least + bias - slack, greatest + bias + slack));
  }
}

bool rounds_one_way(Type type, double v, double error, double* rounded) {
  *rounded = round_to(type, single(v));
  return round_to(type, v - error) == round_to(type, v + error) &&
         round_to(type, v - error) == *rounded;
}

// EVERY_STEP: if rounding leaves no doubt about the statistics, every later step is one operation
// on known values.
void bound_every_step(const NormOptions& o, const NormRow& row, const Sums& sums, double path,
                      NormBounds* bounds) {
  const Type type = o.dtype;
  const auto step = [&](double v) { return round_to(type, single(v)); };
  Statistics s = statistics_of(o, sums, path);
  if (!in_range(s, sums, row.n)) return;
  double mean = 0;
  if (o.kind == Kind::kLayer && !rounds_one_way(type, s.mean, s.mean_error, &mean)) return;
  std::vector<double> squares;
  for (const double a : sums.a) {
    const double d = o.kind == Kind::kLayer ? step(a - mean) : a;
    squares.push_back(step(d * d));
  }
  double variance = 0;
  const double v = average(squares);
  if (!std::isfinite(v) || v * static_cast<double>(row.n) >= 0.25 * FLT_MAX) return;
  if (!rounds_one_way(type, v, (path + 2) * kU * v + kLeast, &variance)) return;
  const double radicand = step(variance + static_cast<double>(o.eps));
  const double rstd = step(1.0 / single(std::sqrt(radicand)));
  bounds->mean = {mean, mean};
  bounds->rstd = {rstd, rstd};
  bounds->statistics_valid = bounds->y_valid = std::isfinite(rstd);
  if (!bounds->y_valid) return;
  for (int64_t i = 0; i < row.n; ++i) {
    const double b = sums.b[static_cast<size_t>(i)];
    const double t = step((o.kind == Kind::kLayer ? step(b - mean) : b) * rstd);
    const double g = round_to(type, weight_of(o, row, i));
    const double y = step(step(t * g) + bias_of(row, i));
    bounds->y.push_back({y, y});
  }
}

}  // namespace

double longest_path(Order order, Type dtype, int64_t n) {
  const auto count = static_cast<double>(n);
  const double v = per_vector(dtype);
  switch (order) {
    case Order::kGpu:
    case Order::kGpuLowestFirst:
      return v / 2 + 1 + ceil_log2(std::ceil(count / v));
    case Order::kCpu:
    case Order::kCpuLowestFirst:
      return std::min(256.0, std::ceil(count / 64)) + 6 + std::ceil(count / 16384);
    default:
      return count;
  }
}

NormBounds norm_bounds(const NormOptions& o, const NormRow& row, Order order) {
  NormBounds bounds;
  const Sums sums = read_row(o, row);
  const double path = longest_path(order, o.dtype, row.n);
  if (!sums.finite) return bounds;
  const bool every_step = o.rounding == Rounding::kEveryStep;
  if (every_step && o.dtype != Type::kF32) {
    bound_every_step(o, row, sums, path, &bounds);
    return bounds;
  }
  // With T = f32 every step is as in ROUND_ONCE, except that products are rounded before they are
  // added.
  const Statistics s = statistics_of(o, sums, every_step ? path + 1 : path);
  if (!in_range(s, sums, row.n)) return bounds;
  bounds.statistics_valid = bounds.y_valid = true;
  bounds.mean = {s.mean - s.mean_error, s.mean + s.mean_error};
  bounds.rstd = {s.rstd * (1 - s.rstd_error), s.rstd * (1 + s.rstd_error)};
  bound_y(o, row, sums, s, &bounds);
  return bounds;
}

}  // namespace fastnorm::ref
