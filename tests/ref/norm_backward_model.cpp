#include "ref/norm_backward_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace fastnorm::ref {
namespace {

// The terms of a sum along a row: a[i] * b[i] by fma, or a[i] if b is null.
struct Terms {
  float first(int64_t i) const { return i >= n ? 0.0f : b != nullptr ? a[i] * b[i] : a[i]; }
  float next(float sum, int64_t i) const {
    if (i >= n) return sum + 0.0f;
    return b != nullptr ? std::fma(a[i], b[i], sum) : sum + a[i];
  }

  const float* a;
  const float* b;
  int64_t n;
};

// Phi of q[0 .. p), a power of two: adds the upper half to the lower half until one is left. With
// lowest_first, wrongly: neighbours first.
float phi(float* q, size_t p, bool lowest_first) {
  while (p > 1) {
    p /= 2;
    for (size_t j = 0; j < p; ++j) q[j] = lowest_first ? q[2 * j] + q[2 * j + 1] : q[j] + q[j + p];
  }
  return q[0];
}

// The fold of any number of values, which are padded with +0.
float phi(std::vector<float> q, bool lowest_first) {
  q.resize(std::bit_ceil(q.size()), 0.0f);
  return phi(q.data(), q.size(), lowest_first);
}

float gpu_sum(Type dtype, const Terms& terms, bool lowest_first) {
  const int64_t v = per_vector(dtype);
  std::vector<float> partial;
  for (int64_t start = 0; start < terms.n; start += v) {
    float chain[2] = {terms.first(start), terms.first(start + 1)};
    for (int64_t i = 2; i < v; ++i) chain[i % 2] = terms.next(chain[i % 2], start + i);
    partial.push_back(chain[0] + chain[1]);
  }
  return phi(std::move(partial), lowest_first) + 0.0f;
}

float cpu_sum(Type dtype, const Terms& terms, bool lowest_first) {
  constexpr int64_t kChunk = 16384;
  constexpr int64_t kAccumulators = 64;
  constexpr int kContiguous[] = {5, 4, 3, 2, 1, 0}, kEvenOdd[] = {5, 0, 4, 3, 2, 1},
                kLowest[] = {0, 1, 2, 3, 4, 5};
  const auto& bits = lowest_first ? kLowest : dtype == Type::kBF16 ? kEvenOdd : kContiguous;
  float total = 0.0f;
  for (int64_t start = 0; start < terms.n; start += kChunk) {
    float sum[kAccumulators] = {};
    for (int64_t i = start; i < std::min(start + kChunk, terms.n); ++i) {
      float& accumulator = sum[(i - start) % kAccumulators];
      accumulator = terms.next(accumulator, i);
    }
    for (const int bit : bits) {
      for (int64_t j = 0; j < kAccumulators; ++j) {
        if ((j >> bit & 1) == 0) sum[j] = sum[j] + sum[j + (int64_t{1} << bit)];
      }
    }
    total = total + sum[0];
  }
  return total + 0.0f;
}

float sum_of(Order order, Type dtype, const Terms& terms) {
  const bool cpu = order == Order::kCpu || order == Order::kCpuLowestFirst;
  const bool lowest_first = order == Order::kGpuLowestFirst || order == Order::kCpuLowestFirst;
  return cpu ? cpu_sum(dtype, terms, lowest_first) : gpu_sum(dtype, terms, lowest_first);
}

float step(const NormBackwardOptions& o, float v) {
  return o.rounding == Rounding::kEveryStep ? round_to(o.dtype, v) : v;
}

float factor_of(const NormBackwardOptions& o, float gate) {
  return step(o, activate(o.gate_act, gate));
}

float x_of(const NormBackwardOptions& o, const NormBackwardRow& row, int64_t i) {
  if (row.gate == nullptr || !o.gate_before) return row.x[i];
  return step(o, row.x[i] * factor_of(o, row.gate[i]));
}

float dy_of(const NormBackwardOptions& o, const NormBackwardRow& row, int64_t i) {
  if (row.gate == nullptr || o.gate_before) return row.dy[i];
  return row.dy[i] * factor_of(o, row.gate[i]);
}

float xhat_of(const NormBackwardOptions& o, const NormBackwardRow& row, int64_t i) {
  const float x = x_of(o, row, i);
  const float centred = o.kind == Kind::kLayer ? x - row.mean : x;
  return centred * row.rstd;
}

float rounded_xhat(const NormBackwardOptions& o, float xhat) {
  const bool rounds = o.rounding == Rounding::kNormalized || o.rounding == Rounding::kEveryStep;
  return rounds ? round_to(o.dtype, xhat) : xhat;
}

float gain_of(const NormBackwardOptions& o, const NormBackwardRow& row, int64_t i) {
  if (row.weight == nullptr) return 1.0f;
  const float g = row.weight[i] + o.weight_offset;
  return o.rounding == Rounding::kEveryStep ? round_to(o.dtype, g) : g;
}

// What a gate after the norm multiplies.
float result_of(const NormBackwardOptions& o, const NormBackwardRow& row, float xhat, int64_t i) {
  const float t = rounded_xhat(o, xhat), g = gain_of(o, row, i);
  const float z = row.bias != nullptr ? std::fma(t, g, row.bias[i]) : t * g;
  return o.gate_from_rounded ? round_to(o.dtype, z) : step(o, z);
}

int64_t clamped(int64_t value, int64_t low, int64_t high) {
  return std::min(std::max(value, low), high);
}

// The sum of one column over rows. term(i, sum) adds row i to a running sum.
template <class Term>
float column_sum(int64_t rows, int64_t n, const Term& term) {
  const auto columns = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
  constexpr int64_t kMostLanes = 64, kMostBlocks = 128;
  const int64_t q_lanes = clamped(8192 / columns, 1, kMostLanes);
  const int64_t most = clamped((int64_t{1} << 20) / columns, 16, kMostBlocks);
  const int64_t blocks = std::min(most, (rows + q_lanes - 1) / q_lanes);
  if (blocks == 0) return 0.0f;
  float lanes[kMostLanes], of_blocks[kMostBlocks] = {};  // on the stack: there are many columns
  for (int64_t b = 0; b < blocks; ++b) {
    std::fill_n(lanes, q_lanes, 0.0f);
    for (int64_t i = b * q_lanes; i < rows; i += q_lanes * blocks) {
      for (int64_t j = i; j < std::min(i + q_lanes, rows); ++j) {
        float& lane = lanes[j % q_lanes];
        lane = term(j, lane);
      }
    }
    of_blocks[b] = phi(lanes, static_cast<size_t>(q_lanes), false);
  }
  return phi(of_blocks, std::bit_ceil(static_cast<size_t>(blocks)), false) + 0.0f;
}

template <class Term>
float sequential_sum(int64_t rows, const Term& term) {
  float sum = 0.0f;
  for (int64_t i = 0; i < rows; ++i) sum = term(i, sum);
  return sum + 0.0f;
}

}  // namespace

void norm_backward_statistics(const NormBackwardOptions& o, const float* x, int64_t n, Order order,
                              ModelScratch* scratch, float* mean, float* rstd, const float* gate) {
  std::vector<float> gated;
  if (gate != nullptr) {
    NormBackwardRow whole;
    whole.x = x;
    whole.gate = gate;
    for (int64_t i = 0; i < n; ++i) gated.push_back(x_of(o, whole, i));
    x = gated.data();
  }
  NormOptions forward;
  forward.dtype = o.x_dtype;
  forward.kind = o.kind;
  forward.rounding = o.rounding;
  forward.eps = o.eps;
  NormRow row;
  row.n = n;
  row.x = x;
  NormResult result;
  norm_model(forward, row, order, scratch, &result);
  *mean = result.mean;
  *rstd = result.rstd;
}

void norm_backward_row_model(const NormBackwardOptions& o, const NormBackwardRow& row, Order order,
                             float* dh, float* dgate) {
  const auto count = static_cast<size_t>(row.n);
  std::vector<float> e(count), xhat(count);
  for (size_t i = 0; i < count; ++i) {
    xhat[i] = xhat_of(o, row, static_cast<int64_t>(i));
    e[i] = dy_of(o, row, static_cast<int64_t>(i)) * gain_of(o, row, static_cast<int64_t>(i));
  }
  const float inv_n = 1.0f / static_cast<float>(row.n);
  const float c1 = sum_of(order, o.x_dtype, {e.data(), xhat.data(), row.n}) * inv_n;
  const bool layer = o.kind == Kind::kLayer;
  const float c2 = layer ? sum_of(order, o.x_dtype, {e.data(), nullptr, row.n}) * inv_n : 0.0f;
  for (size_t i = 0; i < count; ++i) {
    const float m = std::fma(-xhat[i], c1, layer ? e[i] - c2 : e[i]);
    dh[i] = row.dresidual_in != nullptr ? std::fma(m, row.rstd, row.dresidual_in[i]) : m * row.rstd;
    if (row.gate == nullptr) continue;
    if (dgate != nullptr) {
      const float product = o.gate_before
                                ? dh[i] * row.x[i]
                                : row.dy[i] * result_of(o, row, xhat[i], static_cast<int64_t>(i));
      dgate[i] = product * activation_slope(o.gate_act, row.gate[i]);
    }
    if (o.gate_before) dh[i] = dh[i] * factor_of(o, row.gate[i]);
  }
}

NormBackwardOptions norm_backward_branch_options(const NormBackwardOptions& o) {
  NormBackwardOptions of_branch;
  of_branch.dtype = of_branch.x_dtype = o.dtype;
  of_branch.kind = o.branch.kind;
  of_branch.rounding = o.branch.rounding;
  of_branch.eps = o.branch.eps;
  of_branch.weight_offset = o.branch.weight_offset;
  of_branch.gate_from_rounded = o.branch.rounded;
  return of_branch;
}

NormBackwardRow norm_backward_branch_row(const NormBackwardRow& row) {
  NormBackwardRow of_branch;
  of_branch.n = row.n;
  of_branch.x = row.branch;
  of_branch.weight = row.branch_weight;
  of_branch.bias = row.branch_bias;
  of_branch.mean = row.branch_mean;
  of_branch.rstd = row.branch_rstd;
  return of_branch;
}

namespace {

// r and du of a row.
struct BranchGradients {
  std::vector<float> r, du;
};

BranchGradients branch_gradients(const NormBackwardOptions& o, const NormBackwardRow& row,
                                 Order order) {
  const auto count = static_cast<size_t>(row.n);
  BranchGradients g = {std::vector<float>(count), std::vector<float>(count)};
  norm_backward_row_model(o, row, order, g.r.data());
  for (size_t i = 0; i < count; ++i) {
    g.r[i] = g.r[i] * o.branch.sum_scale;
    float k = o.branch.alpha;
    if (row.residual_gate != nullptr) k = activate(o.branch.act, row.residual_gate[i]) * k;
    g.du[i] = g.r[i] * k;
  }
  return g;
}

}  // namespace

void norm_backward_branch_model(const NormBackwardOptions& o, const NormBackwardRow& row,
                                Order order, float* r, float* dbranch) {
  const BranchGradients g = branch_gradients(o, row, order);
  std::copy(g.r.begin(), g.r.end(), r);
  if (dbranch == nullptr) return;
  std::copy(g.du.begin(), g.du.end(), dbranch);
  if (!o.branch.normalise) return;
  NormBackwardRow of_branch = norm_backward_branch_row(row);
  of_branch.dy = g.du.data();
  norm_backward_row_model(norm_backward_branch_options(o), of_branch, order, dbranch);
}

void norm_backward_branch_sums_model(const NormBackwardOptions& o, int64_t rows, int64_t n,
                                     const NormBackwardRows& row_of, Order order, float* dweight,
                                     float* dbias, float* dresidual_gate) {
  const NormBackwardOptions of_branch = norm_backward_branch_options(o);
  std::vector<BranchGradients> gradients;
  for (int64_t i = 0; i < rows; ++i) gradients.push_back(branch_gradients(o, row_of(i), order));
  const NormBackwardRows branch_row_of = [&](int64_t i) {
    NormBackwardRow row = norm_backward_branch_row(row_of(i));
    row.dy = gradients[static_cast<size_t>(i)].du.data();
    return row;
  };
  norm_backward_sums_model(of_branch, rows, n, branch_row_of, dweight, dbias);
  if (dresidual_gate == nullptr) return;
  std::vector<NormBackwardRow> all;
  for (int64_t i = 0; i < rows; ++i) all.push_back(branch_row_of(i));
  for (int64_t column = 0; column < n; ++column) {
    const auto j = static_cast<size_t>(column);
    const float sum = column_sum(rows, n, [&](int64_t i, float running) {
      const NormBackwardRow& row = all[static_cast<size_t>(i)];
      const float u = o.branch.normalise
                          ? result_of(of_branch, row, xhat_of(of_branch, row, column), column)
                          : row.x[column];
      return std::fma(gradients[static_cast<size_t>(i)].r[j], u, running);
    });
    dresidual_gate[column] = sum;
    if (rows == 0) continue;
    const float slope = activation_slope(o.branch.act, row_of(0).residual_gate[column]);
    dresidual_gate[column] = sum * (slope * o.branch.alpha) + 0.0f;
  }
}

void norm_backward_sums_model(const NormBackwardOptions& o, int64_t rows, int64_t n,
                              const NormBackwardRows& row_of, float* dweight, float* dbias,
                              RowOrder order) {
  std::vector<NormBackwardRow> all;
  for (int64_t i = 0; i < rows; ++i) all.push_back(row_of(i));
  const auto sum = [&](const auto& term) {
    return order == RowOrder::kSpecified ? column_sum(rows, n, term) : sequential_sum(rows, term);
  };
  for (int64_t column = 0; column < n; ++column) {
    if (dweight != nullptr) {
      dweight[column] = sum([&](int64_t i, float running) {
        const NormBackwardRow& row = all[static_cast<size_t>(i)];
        const float xhat = rounded_xhat(o, xhat_of(o, row, column));
        return std::fma(dy_of(o, row, column), xhat, running);
      });
    }
    if (dbias != nullptr) {
      dbias[column] = sum([&](int64_t i, float running) {
        return running + dy_of(o, all[static_cast<size_t>(i)], column);
      });
    }
  }
}

}  // namespace fastnorm::ref
