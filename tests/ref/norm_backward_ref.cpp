#include "ref/norm_backward_ref.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>

#include "ref/long_sum.h"

namespace fastnorm::ref {
namespace {

constexpr double kU = 0x1p-24;
constexpr double kLeast =
    0x1p-149;  // least subnormal of f32: what underflow may take from a product
constexpr double kMost = 0.25 * FLT_MAX;  // limit of every intermediate value
constexpr double kInf = std::numeric_limits<double>::infinity();

// A value, and how far a gate's arithmetic may move it.
struct Near {
  double value, error;
};

// v times act(gate). A product that may overflow in single precision has no bounds.
Near gated(const NormBackwardOptions& o, double v, double gate) {
  const double a = exact_activation(o.gate_act, gate);
  const double error = std::fabs(v) * activation_error(o.gate_act, a);
  if (std::fabs(v * a) + error > kMost) return {v * a, kInf};
  return {v * a, error + kU * (std::fabs(v * a) + error) + kLeast};
}

Near product(Near a, Near b) {
  const double value = a.value * b.value;
  if (std::isinf(a.error) || std::isinf(b.error)) return {value, kInf};
  const double error =
      std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + a.error * b.error;
  return {value, error + kU * (std::fabs(value) + error) + kLeast};
}

Near xhat_near(const NormBackwardOptions& o, const NormBackwardRow& row, int64_t i) {
  Near x = {row.x[i], 0};
  if (row.gate != nullptr && o.gate_before) x = gated(o, row.x[i], row.gate[i]);
  return {(o.kind == Kind::kLayer ? x.value - row.mean : x.value) * row.rstd,
          x.error * row.rstd * (1 + 2 * kU)};
}

Near dy_near(const NormBackwardOptions& o, const NormBackwardRow& row, int64_t i) {
  if (row.gate == nullptr || o.gate_before) return {row.dy[i], 0};
  return gated(o, row.dy[i], row.gate[i]);
}

// A gate whose product or factor is rounded to T: the model alone gives the result.
bool is_modelled(const NormBackwardOptions& o, const NormBackwardRow& row) {
  return row.gate != nullptr && o.rounding == Rounding::kEveryStep;
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
  LongSum low, high;
  double magnitude = 0;  // an error's factor
};

// The number of roundings on the longest path of a column's sum.
double longest_column_path(int64_t rows, int64_t n) {
  const auto columns = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
  const int64_t lanes = std::clamp<int64_t>(8192 / columns, 1, 64);
  const int64_t most = std::clamp<int64_t>((int64_t{1} << 20) / columns, 16, 128);
  const int64_t blocks = std::max<int64_t>(1, std::min(most, (rows + lanes - 1) / lanes));
  return std::ceil(static_cast<double>(rows) / static_cast<double>(lanes * blocks)) +
         std::log2(static_cast<double>(lanes)) + std::ceil(std::log2(static_cast<double>(blocks))) +
         3;
}

// Times a factor, plus the old value.
Range bounds_of(const ColumnSum& sum, double path, int64_t rows, int64_t column,
                const StoredSum& stored, Near factor = {1, 0}) {
  const double old = stored.old != nullptr ? static_cast<double>(stored.old[column]) : 0;
  double low = sum.low.value(), high = sum.high.value();
  const double error = path * kU * sum.magnitude + kLeast * static_cast<double>(rows);
  // false for NaN
  if (!(sum.magnitude * std::max(1.0, std::fabs(factor.value)) + std::fabs(old) < kMost)) {
    return {-kInf, kInf};
  }
  low -= error;
  high += error;
  if (factor.value != 1 || factor.error != 0) {
    const Near total = product({(low + high) / 2, (high - low) / 2}, factor);
    low = total.value - 1.01 * total.error;
    high = total.value + 1.01 * total.error;
  }
  low += old;
  high += old;
  const double rounding =
      stored.old != nullptr ? kU * std::max(std::fabs(low), std::fabs(high)) : 0;
  return {round_to(stored.dtype, low - rounding), round_to(stored.dtype, high + rounding)};
}

// terms(row, number, i, &sum) adds column i of a row to its sum, whose factor is factor_of(i).
template <class Terms, class Factor>
std::vector<Range> column_bounds(int64_t rows, int64_t n, const NormBackwardRows& row_of,
                                 const StoredSum& stored, const Terms& terms,
                                 const Factor& factor_of) {
  std::vector<ColumnSum> sums(static_cast<size_t>(n));
  for (int64_t r = 0; r < rows; ++r) {
    const NormBackwardRow row = row_of(r);
    for (int64_t i = 0; i < n; ++i) terms(row, r, i, &sums[static_cast<size_t>(i)]);
  }
  std::vector<Range> ranges;
  const double path = longest_column_path(rows, n);
  for (int64_t i = 0; i < n; ++i) {
    ranges.push_back(bounds_of(sums[static_cast<size_t>(i)], path, rows, i, stored, factor_of(i)));
  }
  return ranges;
}

Near no_factor(int64_t) { return {1, 0}; }

// dh with its error, from dy with its. Empty as norm_backward_row_bounds() says.
template <class Gradient>
std::vector<Near> dh_near(const NormBackwardOptions& o, const NormBackwardRow& row, Order order,
                          const Gradient& dy_of) {
  if (is_modelled(o, row)) return {};
  const auto n = static_cast<double>(row.n);
  const bool layer = o.kind == Kind::kLayer;
  LongSum product, gradient;
  double product_magnitude = 0, gradient_magnitude = 0;
  double product_error = 0, gradient_error = 0;  // of a gate
  for (int64_t i = 0; i < row.n; ++i) {
    const double gain = gain_of(o, row, i);
    const Near dy = dy_of(i), x = xhat_near(o, row, i);
    const double e = dy.value * gain, xhat = x.value, e_error = dy.error * std::fabs(gain);
    gradient_error += e_error;
    product_error += e_error * (std::fabs(xhat) + x.error) + std::fabs(e) * x.error;
    product += e * xhat;
    gradient += e;
    product_magnitude += std::fabs(e * xhat);
    gradient_magnitude += std::fabs(e);
  }
  const double rstd = row.rstd;
  // false for NaN
  const bool fits = product_magnitude < kMost && gradient_magnitude < kMost && rstd < 0x1p60 &&
                    product_error < kMost && gradient_error < kMost;
  if (!fits) return {};
  const double c1 = product.over(n);
  const double c2 = layer ? gradient.over(n) : 0;
  const double path = longest_path(order, o.x_dtype, row.n);
  const double error1 =
      (path + 7) * kU * product_magnitude / n + n * kLeast + 1.01 * product_error / n;
  const double error2 =
      layer ? (path + 4) * kU * gradient_magnitude / n + n * kLeast + 1.01 * gradient_error / n : 0;
  std::vector<Near> values;
  for (int64_t i = 0; i < row.n; ++i) {
    const double gain = gain_of(o, row, i);
    const Near dy = dy_of(i), x = xhat_near(o, row, i);
    const double e = dy.value * gain, xhat = x.value;
    const double added = row.dresidual_in != nullptr ? static_cast<double>(row.dresidual_in[i]) : 0;
    const double dh = (e - c2 - xhat * c1) * rstd + added;
    const double terms = std::fabs(e) + std::fabs(c2) + std::fabs(xhat * c1);
    if (!((terms + std::fabs(xhat)) * std::max(rstd, 1.0) + std::fabs(added) < kMost)) return {};
    const double of_gate = dy.error * std::fabs(gain) + x.error * (std::fabs(c1) + error1);
    const double error =
        rstd * (std::fabs(xhat) * error1 + error2 + 6 * kU * terms + 4 * kLeast + 1.01 * of_gate) +
        kU * std::fabs(added) + kLeast;
    values.push_back({dh, error});
  }
  return values;
}

std::vector<Near> dh_near(const NormBackwardOptions& o, const NormBackwardRow& row, Order order) {
  return dh_near(o, row, order, [&](int64_t i) { return dy_near(o, row, i); });
}

// r: dh times sum_scale.
std::vector<Near> r_near(const NormBackwardOptions& o, const NormBackwardRow& row, Order order) {
  std::vector<Near> r = dh_near(o, row, order);
  if (o.branch.sum_scale == 1) return r;
  for (Near& v : r) {
    v = product(v, {o.branch.sum_scale, 0});
    if (!(std::fabs(v.value) + v.error < kMost)) return {};
  }
  return r;
}

// du: r times k.
std::vector<Near> du_near(const NormBackwardOptions& o, const NormBackwardRow& row,
                          std::vector<Near> r) {
  for (size_t i = 0; i < r.size(); ++i) {
    Near k = {o.branch.alpha, 0};
    if (row.residual_gate != nullptr) {
      const double a = exact_activation(o.branch.act, row.residual_gate[i]);
      k = product({a, activation_error(o.branch.act, a)}, k);
    }
    r[i] = product(r[i], k);
    if (!(std::fabs(r[i].value) + r[i].error < kMost)) return {};
  }
  return r;
}

double rounded(Type type, bool rounds, double v) { return rounds ? round_to(type, v) : v; }

// What a gate after the norm multiplies: from low to high.
Range result_of(const NormBackwardOptions& o, const NormBackwardRow& row, int64_t i) {
  const double xhat = xhat_near(o, row, i).value, error = 2 * kU * std::fabs(xhat) + kLeast;
  const bool every_step = o.rounding == Rounding::kEveryStep,
             rounds = o.rounding == Rounding::kNormalized || every_step;
  const double g = gain_of(o, row, i),
               b = row.bias != nullptr ? static_cast<double>(row.bias[i]) : 0;
  const double z[2] = {rounded(o.dtype, rounds, xhat - error) * g + b,
                       rounded(o.dtype, rounds, xhat + error) * g + b};
  const double low = std::min(z[0], z[1]), high = std::max(z[0], z[1]);
  const double last = 2 * kU * (std::max(std::fabs(low), std::fabs(high)) + std::fabs(b)) + kLeast;
  const bool rounds_result = o.gate_from_rounded || every_step;
  return {rounded(o.dtype, rounds_result, low - last),
          rounded(o.dtype, rounds_result, high + last)};
}

}  // namespace

std::vector<Range> norm_backward_row_bounds(const NormBackwardOptions& o,
                                            const NormBackwardRow& row, Order order, Type stored) {
  std::vector<Range> ranges;
  const std::vector<Near> dh = r_near(o, row, order);
  for (size_t i = 0; i < dh.size(); ++i) {
    if (row.gate == nullptr || !o.gate_before) {
      ranges.push_back(stored_range(stored, dh[i].value, dh[i].error));
      continue;
    }
    const Near dx = gated(o, dh[i].value, row.gate[i]);
    const double a = std::fabs(exact_activation(o.gate_act, row.gate[i]));
    const double error = dx.error + 1.01 * a * dh[i].error;
    if (!(std::fabs(dx.value) + error < kMost)) return {};
    ranges.push_back(stored_range(stored, dx.value, error));
  }
  return ranges;
}

std::vector<Range> norm_backward_dgate_bounds(const NormBackwardOptions& o,
                                              const NormBackwardRow& row, Order order,
                                              Type stored) {
  std::vector<Range> ranges;
  const std::vector<Near> dh = dh_near(o, row, order);
  for (int64_t i = 0; i < static_cast<int64_t>(dh.size()); ++i) {
    const double slope = exact_activation_slope(o.gate_act, row.gate[i]),
                 slope_error = activation_slope_error(o.gate_act, row.gate[i]);
    Range first;  // before the derivative
    if (o.gate_before) {
      const Near d = dh[static_cast<size_t>(i)];
      first = {d.value * row.x[i] - d.error * std::fabs(row.x[i]),
               d.value * row.x[i] + d.error * std::fabs(row.x[i])};
    } else {
      const Range z = result_of(o, row, i);
      const double a = row.dy[i] * z.low, b = row.dy[i] * z.high;
      first = {std::min(a, b), std::max(a, b)};
    }
    double low = kInf, high = -kInf;
    for (const double v : {first.low, first.high}) {
      for (const double s : {slope - slope_error, slope + slope_error}) {
        low = std::min(low, v * s);
        high = std::max(high, v * s);
      }
    }
    const double most = std::max(std::fabs(first.low), std::fabs(first.high));
    if (!(most < kMost)) return {};  // false for NaN
    const double last = 3 * kU * std::max(std::fabs(low), std::fabs(high)) + 4 * kLeast;
    ranges.push_back({round_to(stored, low - last), round_to(stored, high + last)});
  }
  return ranges;
}

std::vector<Range> norm_backward_dbranch_bounds(const NormBackwardOptions& o,
                                                const NormBackwardRow& row, Order order,
                                                Type stored) {
  std::vector<Near> d = du_near(o, row, r_near(o, row, order));
  if (o.branch.normalise && !d.empty()) {
    const std::vector<Near> du = d;
    d = dh_near(norm_backward_branch_options(o), norm_backward_branch_row(row), order,
                [&](int64_t i) { return du[static_cast<size_t>(i)]; });
  }
  std::vector<Range> ranges;
  for (const Near& v : d) {
    if (!(std::fabs(v.value) + v.error < kMost)) return {};
    ranges.push_back(stored_range(stored, v.value, v.error));
  }
  return ranges;
}

namespace {

// Adds dy * xhat.
void add_weight_term(const NormBackwardOptions& o, const NormBackwardRow& row, int64_t i, Near dy,
                     ColumnSum* sum) {
  const Near x = xhat_near(o, row, i);
  const bool rounds = o.rounding == Rounding::kNormalized || o.rounding == Rounding::kEveryStep;
  const double xhat = x.value;
  const double error = (rounds ? 2 * kU * std::fabs(xhat) + kLeast : 0) + x.error;
  const double a = dy.value * rounded(o.dtype, rounds, xhat - error),
               b = dy.value * rounded(o.dtype, rounds, xhat + error);
  const double of_dy = dy.error * (std::fabs(xhat) + error) * (rounds ? 1.01 : 1);
  sum->add(std::min(a, b) - of_dy, std::max(a, b) + of_dy);
}

}  // namespace

std::vector<Range> norm_backward_dweight_bounds(const NormBackwardOptions& o, int64_t rows,
                                                int64_t n, const NormBackwardRows& row_of,
                                                const StoredSum& stored) {
  return column_bounds(
      rows, n, row_of, stored,
      [&](const NormBackwardRow& row, int64_t, int64_t i, ColumnSum* sum) {
        if (is_modelled(o, row)) return sum->add(-kInf, kInf);
        add_weight_term(o, row, i, dy_near(o, row, i), sum);
      },
      no_factor);
}

std::vector<Range> norm_backward_dbias_bounds(const NormBackwardOptions& o, int64_t rows, int64_t n,
                                              const NormBackwardRows& row_of,
                                              const StoredSum& stored) {
  return column_bounds(
      rows, n, row_of, stored,
      [&](const NormBackwardRow& row, int64_t, int64_t i, ColumnSum* sum) {
        if (is_modelled(o, row)) return sum->add(-kInf, kInf);
        const Near dy = dy_near(o, row, i);
        sum->add(dy.value - dy.error, dy.value + dy.error);
      },
      no_factor);
}

BranchSumBounds norm_backward_branch_sum_bounds(const NormBackwardOptions& o, int64_t rows,
                                                int64_t n, const NormBackwardRows& row_of,
                                                Order order, const StoredBranchSums& stored) {
  const NormBackwardOptions of_branch = norm_backward_branch_options(o);
  std::vector<std::vector<Near>> r, du;
  for (int64_t i = 0; i < rows; ++i) {
    r.push_back(r_near(o, row_of(i), order));
    du.push_back(du_near(o, row_of(i), r.back()));
  }
  // add(row, i, value of the row's gradient, sum), or no bounds.
  const auto bounds = [&](const std::vector<std::vector<Near>>& of, const StoredSum& to,
                          const auto& add, const auto& factor) {
    return column_bounds(
        rows, n, row_of, to,
        [&](const NormBackwardRow& row, int64_t number, int64_t i, ColumnSum* sum) {
          const std::vector<Near>& values = of[static_cast<size_t>(number)];
          if (values.empty()) return sum->add(-kInf, kInf);
          add(norm_backward_branch_row(row), i, values[static_cast<size_t>(i)], sum);
        },
        factor);
  };
  BranchSumBounds result;
  if (stored.dbias != nullptr) {
    result.dbias = bounds(
        du, *stored.dbias,
        [&](const NormBackwardRow&, int64_t, Near d, ColumnSum* sum) {
          sum->add(d.value - d.error, d.value + d.error);
        },
        no_factor);
  }
  if (stored.dweight != nullptr) {
    result.dweight = bounds(
        du, *stored.dweight,
        [&](const NormBackwardRow& row, int64_t i, Near d, ColumnSum* sum) {
          add_weight_term(of_branch, row, i, d, sum);
        },
        no_factor);
  }
  if (stored.dresidual_gate == nullptr) return result;
  result.dresidual_gate = bounds(
      r, *stored.dresidual_gate,
      [&](const NormBackwardRow& row, int64_t i, Near d, ColumnSum* sum) {
        const Range u =
            o.branch.normalise ? result_of(of_branch, row, i) : Range{row.x[i], row.x[i]};
        const double values[] = {(d.value - d.error) * u.low, (d.value - d.error) * u.high,
                                 (d.value + d.error) * u.low, (d.value + d.error) * u.high};
        sum->add(*std::min_element(values, values + 4), *std::max_element(values, values + 4));
      },
      [&](int64_t i) {
        if (rows == 0 || row_of(0).residual_gate == nullptr) return Near{1, 0};
        const double gate = row_of(0).residual_gate[i];
        return product({exact_activation_slope(o.branch.act, gate),
                        activation_slope_error(o.branch.act, gate)},
                       {o.branch.alpha, 0});
      });
  return result;
}

}  // namespace fastnorm::ref
