#include "ref/norm_model.h"

#include <bit>
#include <cmath>
#include <utility>

namespace fastnorm::ref {
namespace {

// How an element enters a running sum, and how it starts one.
struct Values {
  static float first(float v) { return v; }
  static float next(float sum, float v) { return sum + v; }
};
struct Squares {
  static float first(float v) { return v * v; }
  static float next(float sum, float v) { return std::fma(v, v, sum); }
};

// Phi over a power of two of partial sums, from the highest digit of the index down. With
// lowest_first, wrongly: from the lowest up.
float fold(std::vector<float>& q, bool lowest_first) {
  size_t p = std::bit_ceil(q.size());
  q.resize(p, 0.0f);
  while (p > 1) {
    p /= 2;
    for (size_t j = 0; j < p; ++j) q[j] = lowest_first ? q[2 * j] + q[2 * j + 1] : q[j] + q[j + p];
  }
  return q[0];
}

// Vectors of V elements: even and odd positions form two chains. Then Phi over the vectors.
template <class Enter>
float gpu_sum(Type dtype, const float* values, int64_t n, bool lowest_first,
              std::vector<float>& partial) {
  const int64_t v = per_vector(dtype);
  partial.clear();
  for (int64_t start = 0; start < n; start += v) {
    float chain[2] = {0.0f, 0.0f};
    for (int64_t i = 0; i < v; ++i) {
      const float value = start + i < n ? values[start + i] : 0.0f;
      float& sum = chain[i % 2];
      sum = i < 2 ? Enter::first(value) : Enter::next(sum, value);
    }
    partial.push_back(chain[0] + chain[1]);
  }
  return fold(partial, lowest_first) + 0.0f;
}

constexpr int64_t kChunk = 16384;
constexpr int kAccumulators = 64;

// The 64 accumulators fold over the bits of their index. The dtype determines the order of the
// bits.
float fold_accumulators(float (&sum)[kAccumulators], Type dtype, bool lowest_first) {
  constexpr int kContiguous[] = {5, 4, 3, 2, 1, 0};
  constexpr int kEvenOdd[] = {5, 0, 4, 3, 2, 1};  // bf16 is loaded as even and odd elements
  constexpr int kLowestFirst[] = {0, 1, 2, 3, 4, 5};
  const auto& bits = lowest_first ? kLowestFirst : dtype == Type::kBF16 ? kEvenOdd : kContiguous;
  for (const int bit : bits) {
    const int step = 1 << bit;
    for (int j = 0; j < kAccumulators; ++j) {
      if ((j & step) == 0) sum[j] = sum[j] + sum[j + step];
    }
  }
  return sum[0];
}

template <class Enter>
float cpu_sum(Type dtype, const float* values, int64_t n, bool lowest_first) {
  float total = 0.0f;
  for (int64_t start = 0; start < n; start += kChunk) {
    float sum[kAccumulators] = {};
    const int64_t end = n - start < kChunk ? n : start + kChunk;
    for (int64_t i = start; i < end; ++i) {
      float& accumulator = sum[(i - start) % kAccumulators];
      accumulator = Enter::next(accumulator, values[i]);
    }
    const float chunk = fold_accumulators(sum, dtype, lowest_first);
    total = start == 0 ? chunk : total + chunk;
  }
  return total + 0.0f;
}

template <class Enter>
float sequential_sum(const float* values, int64_t n) {
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum = Enter::next(sum, values[i]);
  return sum + 0.0f;
}

template <class Enter>
float sum_of(Order order, Type dtype, const float* values, int64_t n, std::vector<float>& partial) {
  switch (order) {
    case Order::kGpu:
      return gpu_sum<Enter>(dtype, values, n, false, partial);
    case Order::kGpuLowestFirst:
      return gpu_sum<Enter>(dtype, values, n, true, partial);
    case Order::kCpu:
      return cpu_sum<Enter>(dtype, values, n, false);
    case Order::kCpuLowestFirst:
      return cpu_sum<Enter>(dtype, values, n, true);
    default:
      return sequential_sum<Enter>(values, n);
  }
}

float inverse(int64_t n) { return 1.0f / static_cast<float>(n); }

float sum_element(const NormRow& row, int64_t i) {
  return row.residual != nullptr ? row.x[i] + row.residual[i] : row.x[i];
}

// s as the input of the statistics, and as the input of the normalisation.
float for_statistics(const NormOptions& o, const NormRow& row, float s) {
  const bool rounds =
      row.residual != nullptr && o.residual_rounding == ResidualRounding::kBeforeStatistics;
  return rounds ? round_to(o.sum_dtype, s) : s;
}
float for_apply(const NormOptions& o, const NormRow& row, float s) {
  const bool rounds = row.residual != nullptr && o.residual_rounding != ResidualRounding::kExact;
  return rounds ? round_to(o.sum_dtype, s) : s;
}

// z of one element for the settings that round it once or twice, ..
float apply(const NormOptions& o, const NormRow& row, int64_t i, float b, float mean, float rstd) {
  const float centred = o.kind == Kind::kLayer ? b - mean : b;
  float t = centred * rstd;
  if (o.rounding == Rounding::kNormalized) t = round_to(o.dtype, t);
  const float g = row.weight != nullptr ? row.weight[i] + o.weight_offset : 1.0f;
  return row.bias != nullptr ? std::fma(t, g, row.bias[i]) : t * g;
}

// .. for the setting that multiplies the weight first, ..
float apply_factor(const NormOptions& o, const NormRow& row, int64_t i, float b, float mean,
                   float rstd) {
  const float centred = o.kind == Kind::kLayer ? b - mean : b;
  const float k = row.weight != nullptr ? rstd * (row.weight[i] + o.weight_offset) : rstd;
  return row.bias != nullptr ? std::fma(centred, k, row.bias[i]) : centred * k;
}

// .. and for the setting that rounds every step.
float apply_every_step(const NormOptions& o, const NormRow& row, int64_t i, float b, float mean,
                       float rstd) {
  const Type type = o.dtype;
  const float centred = o.kind == Kind::kLayer ? round_to(type, b - mean) : b;
  const float t = round_to(type, centred * rstd);
  const float g = row.weight != nullptr ? round_to(type, row.weight[i] + o.weight_offset) : 1.0f;
  const float product = round_to(type, t * g);
  return row.bias != nullptr ? round_to(type, product + row.bias[i]) : product;
}

}  // namespace

float ordered_sum(Order order, Type dtype, const float* values, int64_t n,
                  std::vector<float>* partial) {
  return sum_of<Values>(order, dtype, values, n, *partial);
}

float ordered_sum_of_squares(Order order, Type dtype, const float* values, int64_t n,
                             std::vector<float>* partial) {
  return sum_of<Squares>(order, dtype, values, n, *partial);
}

void norm_tail(const NormOptions& o, const NormRow& row, float mean, float rstd, float* z) {
  const auto z_of = o.rounding == Rounding::kEveryStep ? apply_every_step
                    : o.rounding == Rounding::kOnceRw  ? apply_factor
                                                       : apply;
  for (int64_t i = 0; i < row.n; ++i)
    z[i] = z_of(o, row, i, for_apply(o, row, sum_element(row, i)), mean, rstd);
}

void norm_model(const NormOptions& o, const NormRow& row, Order order, ModelScratch* scratch,
                NormResult* result) {
  const auto count = static_cast<size_t>(row.n);
  const bool every_step = o.rounding == Rounding::kEveryStep;
  const auto step = [&](float v) { return every_step ? round_to(o.dtype, v) : v; };
  const float inv_n = inverse(row.n);
  std::vector<float>&a = scratch->a, &d = scratch->d;
  a.resize(count);
  result->sum.resize(count);
  result->z.resize(count);
  for (size_t i = 0; i < count; ++i) {
    result->sum[i] = sum_element(row, static_cast<int64_t>(i));
    a[i] = for_statistics(o, row, result->sum[i]);
  }

  result->mean = 0.0f;
  d = a;
  const bool layer = o.kind == Kind::kLayer;
  const auto sum = [&] { return ordered_sum(order, o.dtype, d.data(), row.n, &scratch->partial); };
  if (layer && every_step) {
    result->mean = step(sum() * inv_n);
    for (size_t i = 0; i < count; ++i) d[i] = step(a[i] - result->mean);
  }
  float delta = 0.0f;
  if (layer && !every_step) {
    for (size_t i = 0; i < count; ++i) d[i] = a[i] - a[0];
    const float mean = a[0] + sum() * inv_n;
    for (size_t i = 0; i < count; ++i) d[i] = a[i] - mean;
    delta = sum() * inv_n;
    result->mean = mean + delta;
  }

  float squares;
  if (every_step) {
    for (size_t i = 0; i < count; ++i) d[i] = step(d[i] * d[i]);
    squares = ordered_sum(order, o.dtype, d.data(), row.n, &scratch->partial);
  } else {
    squares = ordered_sum_of_squares(order, o.dtype, d.data(), row.n, &scratch->partial);
  }
  float variance = squares * inv_n;
  if (layer && !every_step) {
    variance = std::fma(-delta, delta, variance);
    if (variance < 0.0f) variance = 0.0f;
  }
  variance = step(variance);
  const float root = std::sqrt(step(variance + o.eps));
  result->rstd = step(1.0f / root);

  norm_tail(o, row, result->mean, result->rstd, result->z.data());
}

}  // namespace fastnorm::ref
