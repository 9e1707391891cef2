#include "ref/norm_backward_ref.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>

namespace fastnorm::ref {
namespace {

constexpr double kU = 0x1p-24;
constexpr double kLeast =
    0x1p-149;  // least subnormal of f32: what underflow may take from a product
constexpr double kMost = 0.25 * FLT_MAX;  // limit of every intermediate value
constexpr double kInf = std::numeric_limits<double>::infinity();

double xhat_of(const NormBackwardOptions& o, const NormBackwardRow& row, int64_t i) {
  const double x = row.x[i];
  return (o.kind == Kind::kLayer ? x - row.mean : x) * row.rstd;
}

double gain_of(const NormBackwardOptions& o, const NormBackwardRow& row, int64_t i) {
  if (row.weight == nullptr) return 1;
  const double g = static_cast<double>(row.weight[i]) + o.weight_offset;
  const double single = static_cast<double>(static_cast<float>(g));
  return o.rounding == Rounding::kEveryStep ? round_to(o.dtype, single) : single;
}

Range stored_range(Type dtype, double value, double error) {
  return {round_to(dtype, value - error), round_to(dtype, value + error)};
}

// The terms of the sum of one column.
struct ColumnSum {
  void add(double least, double greatest) {
    low += least;
    high += greatest;
    magnitude += std::max(std::fabs(least), std::fabs(greatest));
  }
  long double low = 0, high = 0, magnitude = 0;
};

// The number of roundings on the longest path of a column's sum.
double longest_column_path(int64_t rows, int64_t n) {
  const auto columns = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
  const int64_t lanes = std::clamp<int64_t>(4096 / columns, 1, 64);
  const int64_t most = std::clamp<int64_t>((int64_t{1} << 20) / columns, 16, 128);
  const int64_t blocks = std::max<int64_t>(1, std::min(most, (rows + lanes - 1) / lanes));
  return std::ceil(static_cast<double>(rows) / static_cast<double>(lanes * blocks)) +
         std::log2(static_cast<double>(lanes)) + std::ceil(std::log2(static_cast<double>(blocks))) +
         3;
}

Range bounds_of(const ColumnSum& sum, double path, int64_t rows, int64_t column,
                const StoredSum& stored) {
  const double old = stored.old != nullptr ? static_cast<double>(stored.old[column]) : 0;
  double low = static_cast<double>(sum.low), high = static_cast<double>(sum.high);
  const double error =
      path * kU * static_cast<double>(sum.magnitude) + kLeast * static_cast<double>(rows);
  // false for NaN
  if (!(static_cast<double>(sum.magnitude) + std::fabs(old) < kMost)) return {-kInf, kInf};
  low += old - error;
  high += old + error;
  const double rounding =
      stored.old != nullptr ? kU * std::max(std::fabs(low), std::fabs(high)) : 0;
  return {round_to(stored.dtype, low - rounding), round_to(stored.dtype, high + rounding)};
}

template <class Terms>
std::vector<Range> column_bounds(int64_t rows, int64_t n, const NormBackwardRows& row_of,
                                 const StoredSum& stored, const Terms& terms) {
  std::vector<ColumnSum> sums(static_cast<size_t>(n));
  for (int64_t r = 0; r < rows; ++r) {
    const NormBackwardRow row = row_of(r);
    for (int64_t i = 0; i < n; ++i) terms(row, i, &sums[static_cast<size_t>(i)]);
  }
  std::vector<Range> ranges;
  const double path = longest_column_path(rows, n);
  for (int64_t i = 0; i < n; ++i)
    ranges.push_back(bounds_of(sums[static_cast<size_t>(i)], path, rows, i, stored));
  return ranges;
}

}  // namespace

std::vector<Range> norm_backward_row_bounds(const NormBackwardOptions& o,
                                            const NormBackwardRow& row, Order order, Type stored) {
  const auto n = static_cast<double>(row.n);
  const bool layer = o.kind == Kind::kLayer;
  long double product = 0, gradient = 0, product_magnitude = 0, gradient_magnitude = 0;
  for (int64_t i = 0; i < row.n; ++i) {
    const double e = row.dy[i] * gain_of(o, row, i), xhat = xhat_of(o, row, i);
    product += e * xhat;
    gradient += e;
    product_magnitude += std::fabs(e * xhat);
    gradient_magnitude += std::fabs(e);
  }
  const double rstd = row.rstd;
  // false for NaN
  if (!(static_cast<double>(product_magnitude) < kMost &&
        static_cast<double>(gradient_magnitude) < kMost && rstd < 0x1p60)) {
    return {};
  }
  const double c1 = static_cast<double>(product) / n;
  const double c2 = layer ? static_cast<double>(gradient) / n : 0;
  const double path = longest_path(order, o.x_dtype, row.n);
  const double error1 = (path + 7) * kU * static_cast<double>(product_magnitude) / n + n * kLeast;
  const double error2 =
      layer ? (path + 4) * kU * static_cast<double>(gradient_magnitude) / n + n * kLeast : 0;
  std::vector<Range> ranges;
  for (int64_t i = 0; i < row.n; ++i) {
    const double e = row.dy[i] * gain_of(o, row, i), xhat = xhat_of(o, row, i);
    const double added = row.dresidual_in != nullptr ? static_cast<double>(row.dresidual_in[i]) : 0;
    const double dh = (e - c2 - xhat * c1) * rstd + added;
    const double terms = std::fabs(e) + std::fabs(c2) + std::fabs(xhat * c1);
    if (!((terms + std::fabs(xhat)) * std::max(rstd, 1.0) + std::fabs(added) < kMost)) return {};
    const double error = rstd * (std::fabs(xhat) * error1 + error2 + 6 * kU * terms + 4 * kLeast) +
                         kU * std::fabs(added) + kLeast;
    ranges.push_back(stored_range(stored, dh, error));
  }
  return ranges;
}

std::vector<Range> norm_backward_dweight_bounds(const NormBackwardOptions& o, int64_t rows,
                                                int64_t n, const NormBackwardRows& row_of,
                                                const StoredSum& stored) {
  return column_bounds(rows, n, row_of, stored,
                       [&](const NormBackwardRow& row, int64_t i, ColumnSum* sum) {
                         const double xhat = xhat_of(o, row, i), dy = row.dy[i];
                         if (o.rounding == Rounding::kOnce || o.rounding == Rounding::kOnceRw) {
                           sum->add(dy * xhat, dy * xhat);
                           return;
                         }
                         const double error = 2 * kU * std::fabs(xhat) + kLeast;
                         const double a = dy * round_to(o.dtype, xhat - error),
                                      b = dy * round_to(o.dtype, xhat + error);
                         sum->add(std::min(a, b), std::max(a, b));
                       });
}

std::vector<Range> norm_backward_dbias_bounds(int64_t rows, int64_t n,
                                              const NormBackwardRows& row_of,
                                              const StoredSum& stored) {
  return column_bounds(rows, n, row_of, stored,
                       [](const NormBackwardRow& row, int64_t i, ColumnSum* sum) {
                         sum->add(row.dy[i], row.dy[i]);
                       });
}

}  // namespace fastnorm::ref
