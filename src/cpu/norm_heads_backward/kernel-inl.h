// The kernels of norm_heads_backward. The unit of each instruction set instantiates them once.
//
// A row is in f32 arrays, in the order of its columns. There dy is rotated back before the norm's
// gradient. x's dtype determines the order of the sums along a row and the rounding of the
// statistics. All other code is the same for all dtypes. If heads share a statistic, a first pass
// over the tokens computes it together with c1 and c2.
#pragma once

#include "cpu/norm_backward/kernel-inl.h"
#include "cpu/norm_heads/parts-inl.h"
#include "cpu/norm_heads_backward/params.h"

namespace fastnorm::cpu {
namespace {

#define FASTNORM_APART __attribute__((noinline))

// Memory of a range of rows. Behind a row's n values there are zeros, to the end of a pair.
struct RotatedScratch {
  float dv[kHeadRoom];    // the gradient of a row's norm: dy, rotated back
  float x[kHeadRoom];     // x, then xhat
  float gain[kHeadRoom];  // weight + offset; unset without a weight
  float e[kHeadRoom];     // dv * gain
  Angles angles;
  int64_t token = -1, head = -1;  // whose angles these are
};

// ---- Values of any dtype in arrays.

FASTNORM_APART void widen_any(Dtype dtype, const char* from, int n, float* to) {
  if (dtype == Dtype::kF32) return widen<F32>(from, n, to);
  if (dtype == Dtype::kF16) return widen<F16>(from, n, to);
  return widen<BF16>(from, n, to);
}

FASTNORM_APART void narrow_any(Dtype dtype, const float* from, int n, char* to) {
  if (dtype == Dtype::kF32) return narrow<F32>(from, n, to);
  if (dtype == Dtype::kF16) return narrow<F16>(from, n, to);
  return narrow<BF16>(from, n, to);
}

FASTNORM_APART void load_angles(Dtype dtype, const NormHeadsBackwardParams& h, int64_t head,
                                int64_t token, Angles& angles) {
  if (dtype == Dtype::kF16) return angles.load<F16>(h.tables, h, head, token);
  return angles.load<BF16>(h.tables, h, head, token);  // tables of f32 know it themselves
}

FASTNORM_APART void rotate_any(Dtype dtype, const NormHeadsBackwardParams& h, const Angles& angles,
                               float* window) {
  const auto half = static_cast<int>(h.tables.half);
  if (dtype == Dtype::kF16) return rotate_window<F16>(h, angles, half, window);
  if (dtype == Dtype::kBF16) return rotate_window<BF16>(h, angles, half, window);
  return rotate_window<F32>(h, angles, half, window);
}

// ---- A row, step by step.

FASTNORM_APART void take_gradient(const NormHeadsBackwardParams& h, const RowDigits& digits,
                                  RotatedScratch& scratch) {
  const NormBackwardParams& p = h.rows;
  const auto n = static_cast<int>(p.n);
  const char* const dy = digits.at(p.dy);
  if (p.dy_element_bytes != 0) {
    widen_any(p.dy_dtype, dy, n, scratch.dv);
  } else {
    widen_any(p.dy_dtype, dy, 1, scratch.dv);
    for (int i = 1; i < n; ++i) scratch.dv[i] = scratch.dv[0];
    for (int i = n; i % kPairElements != 0; ++i) scratch.dv[i] = 0.0f;
  }
  if (!h.rope) return;
  const bool one_table = h.tables.cos.head_stride == 0 && h.tables.sin.head_stride == 0;
  const int64_t token = digits.offset(h.token_step),
                head = one_table ? 0 : digits.offset(h.head_step);
  if (token != scratch.token || head != scratch.head) {
    load_angles(p.dtype, h, head, token, scratch.angles);
    scratch.token = token;
    scratch.head = head;
  }
  rotate_any(p.dtype, h, scratch.angles, scratch.dv + h.rope_offset);
}

// x becomes xhat; 0 behind the last column, where 0 * rstd might be NaN.
FASTNORM_APART void normalise_values(int n, float of_mean, float of_rstd, bool centred, float* x) {
  const Vec mean = broadcast(of_mean), rstd = broadcast(of_rstd);
  for_pairs(
      n, [&](int i, auto extent) __attribute__((always_inline)) {
        Pair v = load_values(x + i);
        if (centred) v = {sub(v.a, mean), sub(v.b, mean)};
        store_values(x + i, extent.first(F32{}, {mul(v.a, rstd), mul(v.b, rstd)}));
      });
}

FASTNORM_APART void take_gain(const NormBackwardParams& p, const char* weight, float* gain) {
  const auto n = static_cast<int>(p.n);
  widen_any(p.weight_dtype, weight, n, gain);
  const Vec offset = broadcast(p.weight_offset);
  for (int i = 0; i < n; i += kPairElements) {
    Pair g = load_values(gain + i);
    g = {add(g.a, offset), add(g.b, offset)};
    store_values(gain + i, p.every_step ? round_any(p.dtype, g) : g);
  }
}

// e of the row in scratch. Zeros of dv behind the last column stay: a gain is finite or its row's
// gradient is NaN anyway.
FASTNORM_APART void scale_values(const NormBackwardParams& p, const char* weight,
                                 RotatedScratch& scratch) {
  const auto n = static_cast<int>(p.n);
  if (p.weight.data != nullptr) take_gain(p, weight, scratch.gain);
  for_pairs(
      n, [&](int i, auto extent) __attribute__((always_inline)) {
        Pair v = load_values(scratch.dv + i);
        if (p.weight.data != nullptr) {
          const Pair g = load_values(scratch.gain + i);
          v = {mul(v.a, g.a), mul(v.b, g.b)};
        }
        store_values(scratch.e + i, extent.first(F32{}, v));
      });
}

// dx of the row in scratch, in place of e.
FASTNORM_APART void gradient_values(int n, RowMeans means, float of_rstd, bool centred,
                                    RotatedScratch& scratch) {
  const Vec minus_c1 = broadcast(-means.c1), c2 = broadcast(means.c2), rstd = broadcast(of_rstd);
  for (int i = 0; i < n; i += kPairElements) {
    Pair m = load_values(scratch.e + i);
    const Pair xhat = load_values(scratch.x + i);
    if (centred) m = {sub(m.a, c2), sub(m.b, c2)};
    m = {fused(xhat.a, minus_c1, m.a), fused(xhat.b, minus_c1, m.b)};
    store_values(scratch.e + i, {mul(m.a, rstd), mul(m.b, rstd)});
  }
}

// Adds the row in scratch to the sums of its lane; nullptr = not wanted.
struct AddValues {
  FASTNORM_APART void operator()(const RotatedScratch& scratch) const {
    for (int64_t i = 0; i < p.n; i += kPairElements) {
      const Pair dy = load_values(scratch.dv + i);
      if (dweight != nullptr) {
        Pair v = load_values(scratch.x + i);
        if (p.round_xhat) v = round_any(p.dtype, v);
        const Pair sum = load_sum(dweight + i);
        store_sum(dweight + i, {fused(dy.a, v.a, sum.a), fused(dy.b, v.b, sum.b)});
      }
      if (dbias != nullptr) {
        const Pair sum = load_sum(dbias + i);
        store_sum(dbias + i, {add(sum.a, dy.a), add(sum.b, dy.b)});
      }
    }
  }

  const NormBackwardParams& p;
  float* const dweight;
  float* const dbias;
};

struct AddNothing {
  FASTNORM_INLINE void operator()(const RotatedScratch&) const {}
};

// ---- Sums along a row, and along all heads of a token, in the order of T.

// A row whose values are given, in the layout of T.
struct ValueRow {
  template <class T, class Extent>
  FASTNORM_INLINE Pair take(T type, const float* v, int64_t i, Extent extent) const {
    return to_layout(type, extent.first(F32{}, load_values(v + i)));
  }

  const float *e, *xhat;
};

template <class T, class Row>
struct ProductOf {  // e * xhat
  const Row& row;

  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t i, Extent extent, Sums& sums, int pair) const {
    Vec &a = sums.value[2 * pair], &b = sums.value[2 * pair + 1];
    const Pair e = row.take(T{}, row.e, i, extent), xhat = row.take(T{}, row.xhat, i, extent);
    a = fused(e.a, xhat.a, a);
    b = fused(e.b, xhat.b, b);
  }
};

template <class T, class Row>
struct GradientOf {  // e
  const Row& row;

  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t i, Extent extent, Sums& sums, int pair) const {
    Vec &a = sums.value[2 * pair], &b = sums.value[2 * pair + 1];
    const Pair e = row.take(T{}, row.e, i, extent);
    a = add(a, e.a);
    b = add(b, e.b);
  }
};

template <class T, class Row>
FASTNORM_INLINE RowMeans means_of_values(const Row& row, int64_t n, float inv_n, bool centred) {
  RowMeans means = {reduce_row<T>(n, ProductOf<T, Row>{row}, Nothing{}) * inv_n, 0.0f};
  if (centred) means.c2 = reduce_row<T>(n, GradientOf<T, Row>{row}, Nothing{}) * inv_n;
  return means;
}

template <class T>
FASTNORM_APART RowMeans means_of_row(const NormBackwardParams& p, bool centred,
                                     const RotatedScratch& scratch) {
  return means_of_values<T>(ValueRow{scratch.e, scratch.x}, p.n, p.inv_n, centred);
}

// e and xhat of all heads of a token as one row. A sum reads them in the order of the columns, so
// each head is loaded once.
struct TokenRow {
  FASTNORM_APART void load(int64_t head) const {
    const RowDigits digits(p, first + head * h.head_rows);
    take_gradient(h, digits, scratch);
    widen_any(p.dtype, digits.at(p.x), static_cast<int>(p.n), scratch.x);
    normalise_values(static_cast<int>(p.n), mean, rstd, centred, scratch.x);
    scale_values(p, digits.at(p.weight), scratch);
    loaded = head;
  }

  // Elements [i, i + count) of `v`, an array of scratch; zeros behind them.
  FASTNORM_APART void copy(const float* v, int64_t i, int count, float* to) const {
    for (int k = 0; k < count;) {
      const int64_t head = (i + k) / p.n, column = (i + k) % p.n;
      if (head != loaded) load(head);
      const auto some = static_cast<int>(smaller(count - k, p.n - column));
      for (int j = 0; j < some; ++j) to[k + j] = v[column + j];
      k += some;
    }
    for (int k = count; k < kPairElements; ++k) to[k] = 0.0f;
  }

  template <class T, class Extent>
  FASTNORM_INLINE Pair take(T type, const float* v, int64_t i, Extent extent) const {
    float piece[kPairElements];
    copy(v, i, extent.count, piece);
    return to_layout(type, load_values(piece));
  }

  const NormHeadsBackwardParams& h;
  const NormBackwardParams& p;
  const int64_t first;  // the number of the row of head 0
  RotatedScratch& scratch;
  const float mean, rstd;
  const bool centred;
  const float *e, *xhat;
  mutable int64_t loaded = -1;
};

// ---- Statistics.

FASTNORM_INLINE NormParams forward_of(const NormBackwardParams& p, int64_t n, float inv_n) {
  NormParams forward = {};
  forward.n = n;
  forward.inv_n = inv_n;
  forward.eps = p.eps;
  forward.every_step = p.every_step;
  forward.layer = p.layer;
  return forward;
}

// Whose code computes a statistic: LAYER's has both where there are general kernels only.
template <Stat kStat>
inline constexpr Stat kCompiled = kGeneralOnly ? Stat::kLayer : kStat;

// The forward's own, of a row, or of all heads of a token, which lie head_stride bytes apart.
template <class T, Stat kStat>
FASTNORM_APART Statistics statistics_of(const NormBackwardParams& p, const char* x,
                                        int64_t head_stride, int64_t heads, float inv_n) {
  using Forward = AcrossSlots<T, kStat>;
  const NormParams forward = forward_of(p, heads * p.n, inv_n);
  const RowSource<Forward> source = {x, head_stride, p.n};
  const Rounding<Affine::kAny, T> rounding(forward);
  return statistics<Forward>(forward, source, rounding, Nothing{});
}

FASTNORM_INLINE Statistics given_statistics(const NormBackwardParams& p, const RowDigits& digits) {
  const float mean = p.mean.data == nullptr ? 0.0f : load_statistic(digits.at(p.mean));
  return {mean, load_statistic(digits.at(p.rstd)), 0.0f};
}

template <class T, Stat kStat>
inline Statistics token_statistics(const NormHeadsBackwardParams& h, int64_t row) {
  const NormBackwardParams& p = h.rows;
  const RowDigits digits(p, row);
  if (p.rstd.data != nullptr) return given_statistics(p, digits);
  const char* const x = digits.at(p.x);
  const int64_t stride = RowDigits(p, row + h.head_rows).at(p.x) - x;
  return statistics_of<T, kCompiled<kStat>>(p, x, stride, h.heads, h.inv_all);
}

template <class T, Stat kStat>
void token_values_kernel(const NormHeadsBackwardParams& h, int64_t begin, int64_t end) {
  constexpr bool kCentred = kStat == Stat::kLayer;
  const NormBackwardParams& p = h.rows;
  RotatedScratch scratch;
  for (int64_t token = begin; token < end; ++token) {
    const int64_t first = token * h.token_rows;
    const Statistics s = token_statistics<T, kStat>(h, first);
    RowMeans means = {0.0f, 0.0f};
    if (p.dx.data != nullptr) {
      const TokenRow row = {h, p, first, scratch, s.mean, s.rstd, kCentred, scratch.e, scratch.x};
      means = means_of_values<T>(row, h.heads * p.n, h.inv_all, kCentred);
    }
    h.token[token] = {s.mean, s.rstd, means.c1, means.c2};
  }
}

// ---- Rows.

template <class T, Stat kStat, class Add>
FASTNORM_INLINE void rotated_row(const NormHeadsBackwardParams& h, int64_t number,
                                 RotatedScratch& scratch, const Add& add) {
  constexpr bool kCentred = kStat == Stat::kLayer;
  const NormBackwardParams& p = h.rows;
  const auto n = static_cast<int>(p.n);
  const RowDigits digits(p, number);
  take_gradient(h, digits, scratch);
  if (!h.normalise) return narrow_any(p.dtype, scratch.dv, n, digits.at(p.dx));
  if (p.dx.data == nullptr && p.dweight.data == nullptr) return add(scratch);
  const char* const x = digits.at(p.x);
  Statistics s;
  RowMeans means = {0.0f, 0.0f};
  if (h.token != nullptr) {
    const TokenValues& values = h.token[digits.offset(h.token_step)];
    s = {values.mean, values.rstd, 0.0f};
    means = {values.c1, values.c2};
  } else if (p.rstd.data != nullptr) {
    s = given_statistics(p, digits);
  } else {
    s = statistics_of<T, kCompiled<kStat>>(p, x, 0, 1, p.inv_n);
  }
  widen_any(p.dtype, x, n, scratch.x);
  normalise_values(n, s.mean, s.rstd, kCentred, scratch.x);
  add(scratch);
  if (p.dx.data == nullptr) return;
  scale_values(p, digits.at(p.weight), scratch);
  if (h.token == nullptr) means = means_of_row<T>(p, kCentred, scratch);
  gradient_values(n, means, s.rstd, kCentred, scratch);
  narrow_any(p.dtype, scratch.e, n, digits.at(p.dx));
}

template <class T, Stat kStat>
void rotated_rows_kernel(const NormHeadsBackwardParams& h, int64_t begin, int64_t end) {
  RotatedScratch scratch;
  for (int64_t row = begin; row < end; ++row) rotated_row<T, kStat>(h, row, scratch, AddNothing{});
}

template <class T, Stat kStat>
void rotated_blocks_kernel(const NormHeadsBackwardParams& h, int64_t begin, int64_t end) {
  RotatedScratch scratch;
  const auto add_row = [&](int64_t row, const AddValues& add) __attribute__((always_inline)) {
    rotated_row<T, kStat>(h, row, scratch, add);
  };
  for (int64_t unit = begin; unit < end; ++unit) backward_block<AddValues>(h.rows, unit, add_row);
}

template <class T, Stat kStat>
constexpr NormHeadsBackwardKernel heads_backward_kernel() {
  return {token_values_kernel<T, kStat>, rotated_rows_kernel<T, kStat>,
          rotated_blocks_kernel<T, kStat>};
}

constexpr NormHeadsBackwardKernels heads_backward_kernels() {
  constexpr Stat kRms = Stat::kRms, kLayer = Stat::kLayer;
  return {{{heads_backward_kernel<F32, kRms>(), heads_backward_kernel<F16, kRms>(),
            heads_backward_kernel<BF16, kRms>()},
           {heads_backward_kernel<F32, kLayer>(), heads_backward_kernel<F16, kLayer>(),
            heads_backward_kernel<BF16, kLayer>()}}};
}

#undef FASTNORM_APART

}  // namespace
}  // namespace fastnorm::cpu
