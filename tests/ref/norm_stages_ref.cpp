#include "ref/norm_stages_ref.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "ref/activation.h"
#include "ref/long_sum.h"

namespace fastnorm::ref {
namespace {

// A modulator's element; a chain in T rounds the sum with the table.
float element_of(const ModulatorRow& m, size_t i, bool every_step, Type type) {
  if (m.table == nullptr) return m.values[i];
  const float sum = m.values[i] + m.table[i];
  return every_step ? round_to(type, sum) : sum;
}

// The columns of one group as a row.
struct Group {
  NormRow row;
  const float* gate = nullptr;
  ModulatorRow scale, shift;
};

Group group_of(const StagesOptions& o, const StagesRow& row, int64_t g) {
  const int64_t first = g * o.group;
  const auto part = [&](const float* values) {
    return values == nullptr ? nullptr : values + first;
  };
  Group group;
  group.row.n = o.group;
  group.row.x = row.row.x + first;
  group.row.residual = part(row.row.residual);
  group.row.weight = row.weight_shared ? row.row.weight : part(row.row.weight);
  group.row.bias = row.bias_shared ? row.row.bias : part(row.row.bias);
  group.gate = part(row.gate);
  group.scale = {part(row.scale.values), part(row.scale.table)};
  group.shift = {part(row.shift.values), part(row.shift.table)};
  return group;
}

// RMS: the sum of squares. LAYER: the sum of squares about the corrected mean.
float sum_of_squares(const StagesOptions& o, const NormRow& row, Order order,
                     ModelScratch* scratch) {
  std::vector<float> a, d;
  for (int64_t i = 0; i < row.n; ++i) {
    const float s = row.residual != nullptr ? row.x[i] + row.residual[i] : row.x[i];
    const bool rounds =
        row.residual != nullptr && o.norm.residual_rounding == ResidualRounding::kBeforeStatistics;
    a.push_back(rounds ? round_to(o.norm.sum_dtype, s) : s);
  }
  const Type type = o.norm.dtype;
  std::vector<float>* const partial = &scratch->partial;
  if (o.norm.kind == Kind::kRms)
    return ordered_sum_of_squares(order, type, a.data(), row.n, partial);
  const float inv_n = 1.0f / static_cast<float>(row.n);
  for (const float v : a) d.push_back(v - a[0]);
  const float mean = a[0] + ordered_sum(order, type, d.data(), row.n, partial) * inv_n;
  for (size_t i = 0; i < a.size(); ++i) d[i] = a[i] - mean;
  const float sum = ordered_sum(order, type, d.data(), row.n, partial);
  const float squares = ordered_sum_of_squares(order, type, d.data(), row.n, partial);
  const float about_mean = std::fma(-(sum * inv_n), sum, squares);
  return about_mean < 0.0f ? 0.0f : about_mean;
}

// The row that is normalised, s [n], in single precision.
std::vector<float> summed_row(const StagesOptions& o, const StagesRow& row, Order order,
                              ModelScratch* scratch, float* branch_rstd) {
  const Type type = o.norm.dtype;
  const bool every_step = o.norm.rounding == Rounding::kEveryStep;
  const auto step = [&](float v) { return every_step ? round_to(type, v) : v; };
  const auto sum_step = [&](float v) { return o.sum_every_step ? round_to(type, v) : v; };
  const NormRow& r = row.row;
  std::vector<float> u(r.x, r.x + r.n);
  for (size_t i = 0; o.gate_before && row.gate != nullptr && i < u.size(); ++i)
    u[i] = step(u[i] * step(activate(o.gate_act, row.gate[i])));
  if (o.branch) {
    NormResult branch;
    const NormRow of_branch = {r.n, u.data(), nullptr, row.branch_weight, row.branch_bias};
    norm_model(o.of_branch, of_branch, order, scratch, &branch);
    *branch_rstd = branch.rstd;
    u = branch.z;
    for (float& v : u) v = o.branch_rounded ? round_to(type, v) : v;
  }
  for (size_t i = 0; i < u.size(); ++i) {
    if (row.residual_gate.values != nullptr) {
      float k = element_of(row.residual_gate, i, o.sum_every_step, type);
      if (o.residual_gate_act != Activation::kIdentity)
        k = sum_step(activate(o.residual_gate_act, k));
      if (o.scaled) k = sum_step(k * o.alpha);
      if (r.residual == nullptr) {
        u[i] = sum_step(u[i] * k);
      } else {
        u[i] = o.sum_every_step ? sum_step(sum_step(u[i] * k) + r.residual[i])
                                : std::fma(u[i], k, r.residual[i]);
      }
    } else if (r.residual == nullptr) {
      if (o.scaled) u[i] = sum_step(u[i] * o.alpha);
    } else if (o.scaled && !o.sum_every_step) {
      u[i] = std::fma(u[i], o.alpha, r.residual[i]);
    } else {
      if (o.scaled) u[i] = sum_step(u[i] * o.alpha);
      u[i] = sum_step(u[i] + r.residual[i]);
    }
    if (row.sum_scale != nullptr) u[i] = sum_step(u[i] * *row.sum_scale);
  }
  return u;
}

// z * (1 + scale) + shift.
float modulate(const StagesOptions& o, const Group& g, size_t i, float z) {
  const Type type = o.norm.dtype;
  const bool every_step = o.modulation_every_step || o.norm.rounding == Rounding::kEveryStep;
  const auto step = [&](float v) { return every_step ? round_to(type, v) : v; };
  const bool shifts = g.shift.values != nullptr;
  const float shift = shifts ? element_of(g.shift, i, every_step, type) : 0.0f;
  z = step(z);
  if (g.scale.values == nullptr) return step(z + shift);
  float k = element_of(g.scale, i, every_step, type);
  if (!o.plain_scale) k = step(1.0f + k);
  if (!shifts) return step(z * k);
  return every_step ? step(step(z * k) + shift) : std::fma(z, k, shift);
}

constexpr double kU = 0x1p-24;
constexpr double kLeast = 0x1p-149;
constexpr double kFunction = 8 * kU;  // relative error of an activation, which is at most 2.9 units

// True for values that single precision also holds. Larger ones become Inf in some step.
bool in_range(double v) { return std::fabs(v) < 0.25 * FLT_MAX; }

double average(const std::vector<double>& v) {
  LongSum sum;
  for (const double e : v) sum += e;
  return sum.over(static_cast<double>(v.size()));
}

// A value, and how far a single-precision one may be from it.
struct Near {
  double value = 0, error = 0;
};

Near gated(const StagesOptions& o, Near v, float gate) {
  const double factor = exact_activation(o.gate_act, gate), product = v.value * factor;
  const double relative = o.gate_act == Activation::kIdentity ? kU : kFunction + kU;
  return {product, v.error * std::fabs(factor) + relative * std::fabs(product) +
                       std::fabs(v.value) * kLeast + 2 * kLeast};
}

// A modulator's element, `offset` being added to it.
Near near_element(const ModulatorRow& m, int64_t i, double offset) {
  Near v = {m.values[i], 0};
  if (m.table != nullptr) {
    v.value += static_cast<double>(m.table[i]);
    v.error = kU * std::fabs(v.value) + kLeast;
  }
  if (offset != 0) {
    v.value += offset;
    v.error += kU * (std::fabs(v.value) + v.error) + kLeast;
  }
  return v;
}

Near product(Near a, Near b) {
  return {a.value * b.value,
          std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + a.error * b.error + kLeast};
}

// One rounding to f32.
Near stepped(Near v) { return {v.value, v.error + kU * (std::fabs(v.value) + v.error) + kLeast}; }

constexpr double kSteepest = 1.1;  // of silu, the steepest activation

Near activated(Activation activation, Near v) {
  if (activation == Activation::kIdentity) return v;
  const double value = exact_activation(activation, v.value), error = kSteepest * v.error;
  return {value, error + activation_error(activation, std::fabs(value) + error)};
}

// A statistic. The error of rstd is relative.
struct NearStatistic {
  Near mean, rstd;
};

// False if there are no bounds.
bool statistic_of(const NormOptions& o, const std::vector<Near>& s, Order order,
                  NearStatistic* result) {
  Near &mean = result->mean, &rstd = result->rstd;
  const auto n = static_cast<double>(s.size());
  const double path = longest_path(order, o.dtype, static_cast<int64_t>(s.size()));
  std::vector<double> values, errors, squares, shares;
  for (const Near& v : s) values.push_back(v.value), errors.push_back(v.error);
  if (o.kind == Kind::kLayer) {
    mean.value = average(values);
    double distance = 0;
    for (const double v : values) distance += std::fabs(v - mean.value);
    mean.error =
        kU * std::fabs(mean.value) + (path + 2) * kU * distance / n + average(errors) + 2 * kLeast;
  }
  for (const Near& v : s) {
    const double d = v.value - mean.value;
    squares.push_back(d * d);
    // The effect of the element's error on the square. The effect of the mean's error is of second
    // order.
    shares.push_back(2 * std::fabs(d) * v.error + v.error * v.error);
  }
  const double variance = average(squares), radicand = variance + static_cast<double>(o.eps);
  rstd.value = 1 / std::sqrt(radicand);
  rstd.error = (path / 2 + 5) * kU + kLeast / radicand +
               0.51 * (average(shares) + mean.error * mean.error) / radicand;
  return (variance + mean.value * mean.value) * n < 0.25 * FLT_MAX && std::isfinite(rstd.value) &&
         rstd.error <= 0x1p-8;
}

// Normalises an element. False if there are no bounds.
bool normalise(const NormOptions& o, const NearStatistic& statistic, const float* weights,
               const float* biases, int64_t i, Near* v) {
  const auto [mean, rstd] = statistic;
  const double t = (v->value - mean.value) * rstd.value;
  const double t_error = std::fabs(rstd.value) * (v->error + mean.error) * (1 + 0x1p-7) +
                         (rstd.error + 2 * kU) * std::fabs(t) + 2 * kLeast;
  const double weight =
      weights == nullptr ? 1
                         : static_cast<double>(weights[i]) + static_cast<double>(o.weight_offset);
  const double bias = biases == nullptr ? 0 : static_cast<double>(biases[i]);
  *v = {t * weight + bias, std::fabs(weight) * t_error * (1 + 0x1p-20) +
                               3 * kU * (std::fabs(t * weight) + std::fabs(bias)) + 2 * kLeast};
  return in_range(t) && in_range(t * weight) && in_range(v->value);
}

// Rounds a value to a dtype. The error becomes that of the ends of the interval.
Near rounded(Type type, Near v) {
  const double low = round_to(type, v.value - v.error), high = round_to(type, v.value + v.error);
  return {(low + high) / 2, (high - low) / 2};
}

// The row to be normalised. False if there are no bounds.
bool near_row(const StagesOptions& o, const StagesRow& row, Order order, std::vector<Near>* s) {
  const NormRow& r = row.row;
  for (int64_t i = 0; i < r.n; ++i) {
    Near u = {r.x[i], 0};
    if (o.gate_before && row.gate != nullptr) u = gated(o, u, row.gate[i]);
    if (!in_range(u.value)) return false;
    s->push_back(u);
  }
  NearStatistic branch;
  if (o.branch && !statistic_of(o.of_branch, *s, order, &branch)) return false;
  for (int64_t i = 0; i < r.n; ++i) {
    Near& u = (*s)[static_cast<size_t>(i)];
    if (o.branch && !normalise(o.of_branch, branch, row.branch_weight, row.branch_bias, i, &u))
      return false;
    if (o.branch_rounded) u = rounded(o.norm.dtype, u);
    if (!in_range(u.value)) return false;
    if (row.residual_gate.values != nullptr) {
      Near k = activated(o.residual_gate_act, near_element(row.residual_gate, i, 0));
      if (o.scaled) k = stepped(product(k, {o.alpha, 0}));
      if (!in_range(k.value) || !in_range(u.value * k.value)) return false;
      u = product(u, k);
      if (r.residual == nullptr) u = stepped(u);
    } else if (o.scaled) {
      const auto alpha = static_cast<double>(o.alpha);
      u = {u.value * alpha, u.error * std::fabs(alpha)};
      if (r.residual == nullptr) u.error += kU * std::fabs(u.value) + kLeast;
    }
    if (r.residual != nullptr) {
      u.value += static_cast<double>(r.residual[i]);
      u.error += kU * std::fabs(u.value) + kLeast;
    }
    if (row.sum_scale != nullptr) {
      const auto scale = static_cast<double>(*row.sum_scale);
      u = {u.value * scale, u.error * std::fabs(scale)};
      u.error += kU * std::fabs(u.value) + kLeast;
    }
    if (!in_range(u.value)) return false;
  }
  return true;
}

// False if there are no bounds.
bool bound_group(const StagesOptions& o, const StagesRow& row, const std::vector<Near>& all,
                 int64_t g, Order order, std::vector<Range>* bounds) {
  const Group group = group_of(o, row, g);
  const NormRow& r = group.row;
  const std::vector<Near> s(all.begin() + g * o.group, all.begin() + (g + 1) * o.group);
  NearStatistic statistic;
  if (row.rstd_in != nullptr) {
    if (o.norm.kind == Kind::kLayer) statistic.mean.value = row.mean_in[g];
    statistic.rstd.value = row.rstd_in[g];
  } else if (!statistic_of(o.norm, s, order, &statistic)) {
    return false;
  }
  for (int64_t i = 0; i < r.n; ++i) {
    Near z = s[static_cast<size_t>(i)];
    if (!normalise(o.norm, statistic, r.weight, r.bias, i, &z)) return false;
    if (group.scale.values != nullptr) {
      const Near k = near_element(group.scale, i, o.plain_scale ? 0 : 1);
      if (!in_range(k.value)) return false;
      z = product(z, k);
      if (group.shift.values == nullptr) z = stepped(z);
      if (!in_range(z.value)) return false;
    }
    if (group.shift.values != nullptr) {
      const Near shift = near_element(group.shift, i, 0);
      z = stepped({z.value + shift.value, z.error + shift.error});
      if (!in_range(z.value)) return false;
    }
    if (!o.gate_before && group.gate != nullptr) {
      if (o.gate_from_rounded) {
        z = rounded(o.norm.dtype, z);
        if (!in_range(z.value)) return false;
      }
      z = gated(o, z, group.gate[i]);
      if (!in_range(z.value)) return false;
    }
    z = activated(o.activation, z);
    if (!in_range(z.value)) return false;
    const Type type = o.norm.y_dtype();
    bounds->push_back({round_to(type, z.value - z.error), round_to(type, z.value + z.error)});
  }
  return true;
}

}  // namespace

void stages_model(const StagesOptions& o, const StagesRow& row, Order order, ModelScratch* scratch,
                  StagesResult* result) {
  *result = {};
  const bool every_step = o.norm.rounding == Rounding::kEveryStep;
  const auto step = [&](float v) { return every_step ? round_to(o.norm.dtype, v) : v; };
  const auto factor = [&](float gate) { return step(activate(o.gate_act, gate)); };
  NormResult of_group;
  const std::vector<float> s = summed_row(o, row, order, scratch, &result->branch_rstd);
  // An addition makes the rounding happen. -0 leaves each number unchanged.
  const std::vector<float> nothing(s.size(), -0.0f);
  StagesRow summed = row;
  summed.row.x = s.data();
  if (row.row.residual != nullptr) summed.row.residual = nothing.data();
  for (int64_t g = 0; g * o.group < row.row.n; ++g) {
    const Group group = group_of(o, summed, g);
    norm_model(o.norm, group.row, order, scratch, &of_group);
    if (row.rstd_in != nullptr) {
      of_group.rstd = row.rstd_in[g];
      of_group.mean = row.mean_in != nullptr ? row.mean_in[g] : 0.0f;
      norm_tail(o.norm, group.row, of_group.mean, of_group.rstd, of_group.z.data());
    }
    for (size_t i = 0; i < of_group.z.size(); ++i) {
      float z = of_group.z[i];
      if (group.scale.values != nullptr || group.shift.values != nullptr)
        z = modulate(o, group, i, z);
      if (!o.gate_before && group.gate != nullptr) {
        if (o.gate_from_rounded) z = round_to(o.norm.dtype, z);
        z = step(z * factor(group.gate[i]));
      }
      if (o.activation != Activation::kIdentity) z = step(activate(o.activation, z));
      result->z.push_back(z);
      result->sum.push_back(of_group.sum[i]);
    }
    result->mean.push_back(of_group.mean);
    result->rstd.push_back(of_group.rstd);
    if (o.norm.kind == Kind::kLayer) result->sumsq.push_back(of_group.mean);
    result->sumsq.push_back(sum_of_squares(o, group.row, order, scratch));
  }
}

std::vector<Range> stages_bounds(const StagesOptions& o, const StagesRow& row, Order order) {
  std::vector<Range> bounds;
  const bool once =
      o.norm.rounding == Rounding::kOnce &&
      (row.row.residual == nullptr || o.norm.residual_rounding == ResidualRounding::kExact);
  std::vector<Near> s;
  if (!once || o.sum_every_step || o.modulation_every_step ||
      (o.branch && o.of_branch.rounding != Rounding::kOnce) || !near_row(o, row, order, &s)) {
    return {};
  }
  for (int64_t g = 0; g * o.group < row.row.n; ++g) {
    if (!bound_group(o, row, s, g, order, &bounds)) return {};
  }
  return bounds;
}

}  // namespace fastnorm::ref
