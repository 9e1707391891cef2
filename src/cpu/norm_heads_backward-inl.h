// The kernels of norm_heads_backward. Instantiated once by the unit of each instruction set.
//
// dy of a row is turned back into f32 values in the order of its columns. The norm's backward takes
// them as it takes a dy of f32, so that all sums and orders are its own. Where heads share a
// statistic, a first pass over the tokens computes it with c1 and c2.
#pragma once

#include "cpu/norm_backward-inl.h"
#include "cpu/norm_heads_backward_params.h"
#include "cpu/norm_heads_parts-inl.h"

namespace fastnorm::cpu {
namespace {

// Memory of a range of rows.
struct TurnScratch {
  float v[kHeadRoom];  // dv of a row; of a token's head dv * gain
  Angles angles;
  int64_t token = -1, head = -1;  // whose angles these are
};

template <class H>
inline void widen_any(Dtype dtype, const char* from, int n, float* to) {
  if (dtype == Dtype::kF32) return widen<F32>(from, n, to);
  return widen<H>(from, n, to);  // dy is of T else
}

// dv of a row: f32, unrounded.
template <class H>
inline void take_gradient(const NormHeadsBackwardParams& h, const RowDigits& digits,
                          TurnScratch& scratch) {
  const NormBackwardParams& p = h.rows;
  const auto n = static_cast<int>(p.n);
  const char* const dy = digits.at(p.dy);
  if (p.dy_element_bytes != 0) {
    widen_any<H>(p.dy_dtype, dy, n, scratch.v);
  } else {
    widen_any<H>(p.dy_dtype, dy, 1, scratch.v);
    for (int i = 1; i < n; ++i) scratch.v[i] = scratch.v[0];
  }
  if (!h.rope) return;
  const bool one_table = h.tables.cos.head_stride == 0 && h.tables.sin.head_stride == 0;
  const int64_t token = digits.offset(h.token_step),
                head = one_table ? 0 : digits.offset(h.head_step);
  if (token != scratch.token || head != scratch.head) {
    scratch.angles.load<H>(h.tables, h, head, token);
    scratch.token = token;
    scratch.head = head;
  }
  turn<H>(h, scratch.angles, static_cast<int>(h.tables.half), scratch.v + h.rope_offset);
}

// ---- What a token's heads share.

// e and xhat of a token's heads, as of one row. A sum takes them in the order of the columns, so that
// each head is loaded once.
template <class Slots>
struct TokenRow {
  using H = typename Slots::H;

  FASTNORM_INLINE TokenRow(const NormHeadsBackwardParams& params, const NormBackwardParams& rows,
                           int64_t token, TurnScratch& turned)
      : h(params), p(rows), first(token * h.token_rows), scratch(turned) {}

  FASTNORM_INLINE void load(int64_t head) const {
    const RowDigits digits(p, first + head * h.head_rows);
    take_gradient<H>(h, digits, scratch);
    BackwardRow<Slots> row(p, digits, reinterpret_cast<const char*>(scratch.v));
    row.use(mean, rstd);
    for_pairs(
        static_cast<int>(p.n), [&](int i, auto extent) __attribute__((always_inline)) {
          store_values(xhat + i, from_layout(H{}, row.take_xhat(i, extent)));
          const Pair e = row.scaled(row.take_dy(i, extent), i, extent);
          store_values(scratch.v + i, from_layout(H{}, e));
        });
    loaded = head;
  }

  // Elements [i, i + count) of e and xhat, zeros behind them.
  template <class Extent>
  FASTNORM_INLINE void take(int64_t i, Extent extent, Pair* e, Pair* of_x) const {
    float piece[2][kPairElements] = {};
    for (int k = 0; k < extent.count;) {
      const int64_t head = (i + k) / p.n, column = (i + k) % p.n;
      if (head != loaded) load(head);
      const auto count = static_cast<int>(smaller(extent.count - k, p.n - column));
      for (int j = 0; j < count; ++j) {
        piece[0][k + j] = scratch.v[column + j];
        piece[1][k + j] = xhat[column + j];
      }
      k += count;
    }
    *e = to_layout(H{}, load_values(piece[0]));
    *of_x = to_layout(H{}, load_values(piece[1]));
  }

  const NormHeadsBackwardParams& h;
  const NormBackwardParams& p;
  const int64_t first;  // the number of the row of head 0
  TurnScratch& scratch;
  float mean = 0, rstd = 0;
  mutable int64_t loaded = -1;
  mutable float xhat[kHeadRoom];
};

template <class Slots>
struct TokenProductTerm {
  const TokenRow<Slots>& row;

  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t i, Extent extent, Sums& sums, int pair) const {
    Vec &a = sums.value[2 * pair], &b = sums.value[2 * pair + 1];
    Pair e, xhat;
    row.take(i, extent, &e, &xhat);
    a = fused(e.a, xhat.a, a);
    b = fused(e.b, xhat.b, b);
  }
};

template <class Slots>
struct TokenGradientTerm {
  const TokenRow<Slots>& row;

  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t i, Extent extent, Sums& sums, int pair) const {
    Vec &a = sums.value[2 * pair], &b = sums.value[2 * pair + 1];
    Pair e, xhat;
    row.take(i, extent, &e, &xhat);
    a = add(a, e.a);
    b = add(b, e.b);
  }
};

// The forward's own statistic of all heads.
template <class Slots>
inline Statistics token_statistics(const NormHeadsBackwardParams& h, int64_t row) {
  using H = typename Slots::H;
  using Forward = AcrossSlots<H, Slots::kStat>;
  const NormBackwardParams& p = h.rows;
  const RowDigits digits(p, row);
  if (p.rstd.data != nullptr) {
    const float mean = p.mean.data == nullptr ? 0.0f : load_statistic(digits.at(p.mean));
    return {mean, load_statistic(digits.at(p.rstd)), 0.0f};
  }
  NormParams forward = {};
  forward.n = h.heads * p.n;
  forward.inv_n = h.inv_all;
  forward.eps = p.eps;
  forward.every_step = p.every_step;
  const char* const x = digits.at(p.x);
  const int64_t stride = RowDigits(p, row + h.head_rows).at(p.x) - x;
  const RowSource<Forward> source = {x, stride, p.n};
  const Rounding<Affine::kAny, H> rounding(forward);
  return statistics<Forward>(forward, source, rounding, Nothing{});
}

template <class H>
inline NormBackwardParams with_turned_gradient(const NormHeadsBackwardParams& h) {
  NormBackwardParams p = h.rows;
  p.dy_dtype = Dtype::kF32;
  p.dy_element_bytes = F32::kBytes;
  return p;
}

template <class H, Stat kStat>
void token_values_kernel(const NormHeadsBackwardParams& h, int64_t begin, int64_t end) {
  using Slots = BackwardSlots<H, kStat, false>;
  const NormBackwardParams p = with_turned_gradient<H>(h);
  TurnScratch scratch;
  // Gradients of the rows are read by their own dtype, those of the norm as f32.
  for (int64_t token = begin; token < end; ++token) {
    const Statistics s = token_statistics<Slots>(h, token * h.token_rows);
    TokenValues& values = h.token[token];
    values = {s.mean, s.rstd, 0.0f, 0.0f};
    if (p.dx.data == nullptr) continue;
    TokenRow<Slots> row(h, p, token, scratch);
    row.mean = s.mean;
    row.rstd = s.rstd;
    const int64_t all = h.heads * p.n;
    values.c1 = reduce_row<H>(all, TokenProductTerm<Slots>{row}, Nothing{}) * h.inv_all;
    if constexpr (kStat == Stat::kLayer)
      values.c2 = reduce_row<H>(all, TokenGradientTerm<Slots>{row}, Nothing{}) * h.inv_all;
  }
}

// ---- Rows.

template <class H>
inline void store_turned(const NormBackwardParams& p, const RowDigits& digits, const float* v) {
  const auto n = static_cast<int>(p.n);
  char* const dx = digits.at(p.dx);
  narrow<H>(v, n, dx);  // dx is of T
}

template <class Slots, class Sums>
FASTNORM_INLINE void turned_row(const NormHeadsBackwardParams& h, const NormBackwardParams& p,
                                int64_t number, TurnScratch& scratch, const Sums& sums) {
  using H = typename Slots::H;
  const RowDigits digits(p, number);
  take_gradient<H>(h, digits, scratch);
  if (!h.normalise) return store_turned<H>(p, digits, scratch.v);
  BackwardRow<Slots> row(p, digits, reinterpret_cast<const char*>(scratch.v));
  const bool needs_x = p.dx.data != nullptr || p.dweight.data != nullptr;
  if (!needs_x) return last_pass<false>(row, NoGradient{}, sums);
  RowMeans means = {0.0f, 0.0f};
  if (h.token != nullptr) {
    const TokenValues& values = h.token[digits.offset(h.token_step)];
    row.use(values.mean, values.rstd);
    means = {values.c1, values.c2};
  } else {
    row.set_statistics(digits);
    if (p.dx.data != nullptr) means = means_of(row);
  }
  if (p.dx.data == nullptr) return last_pass<true>(row, NoGradient{}, sums);
  last_pass<true>(row, StoreGradient<Slots>(row, digits, means), sums);
}

template <class H, Stat kStat>
void turned_rows_kernel(const NormHeadsBackwardParams& h, int64_t begin, int64_t end) {
  const NormBackwardParams p = with_turned_gradient<H>(h);
  TurnScratch scratch;
  for (int64_t row = begin; row < end; ++row)
    turned_row<BackwardSlots<H, kStat, false>>(h, p, row, scratch, NoSums{});
}

template <class H, Stat kStat>
void turned_blocks_kernel(const NormHeadsBackwardParams& h, int64_t begin, int64_t end) {
  using Slots = BackwardSlots<H, kStat, false>;
  const NormBackwardParams p = with_turned_gradient<H>(h);
  TurnScratch scratch;
  const auto add_row = [&](int64_t row, const AddToSums<Slots>& sums)
      __attribute__((always_inline)) {
    turned_row<Slots>(h, p, row, scratch, sums);
  };
  for (int64_t unit = begin; unit < end; ++unit) backward_block<Slots>(p, unit, add_row);
}

template <class H, Stat kStat>
constexpr NormHeadsBackwardKernel heads_backward_kernel() {
  return {token_values_kernel<H, kStat>, turned_rows_kernel<H, kStat>,
          turned_blocks_kernel<H, kStat>};
}

constexpr NormHeadsBackwardKernels heads_backward_kernels() {
  constexpr Stat kRms = Stat::kRms, kLayer = Stat::kLayer;
  return {{{heads_backward_kernel<F32, kRms>(), heads_backward_kernel<F16, kRms>(),
            heads_backward_kernel<BF16, kRms>()},
           {heads_backward_kernel<F32, kLayer>(), heads_backward_kernel<F16, kLayer>(),
            heads_backward_kernel<BF16, kLayer>()}}};
}

}  // namespace
}  // namespace fastnorm::cpu
