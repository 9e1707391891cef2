// The parts of the forward row loop: what is loaded (Source), reduced (Stat), applied (Affine) and
// stored (Sink).
//
// A row is processed in pairs of vectors (simd.h), which are loaded from memory each time. After
// the first pass, x and the residual are in the level-1 cache for any row that fits there. Adding
// them again costs less than storing the sum. include/fastnorm/norm.h specifies the arithmetic.
// Every operation is one rounded instruction.
#pragma once

#include "core/norm/key.h"
#include "cpu/common/simd.h"
#include "cpu/norm/params.h"

namespace fastnorm::cpu {
namespace {

inline constexpr int kPairElements = 2 * kLanes;

template <Dtype kDtype>
struct ElementOf;
template <>
struct ElementOf<Dtype::kF32> {
  using Type = F32;
};
template <>
struct ElementOf<Dtype::kF16> {
  using Type = F16;
};
template <>
struct ElementOf<Dtype::kBF16> {
  using Type = BF16;
};

// The compile-time choices of one kernel.
template <Dtype kDtype, Source kSource_, Stat kStat_, Affine kAffine_>
struct Slots {
  using T = typename ElementOf<kDtype>::Type;
  static constexpr Source kSource = kSource_;
  static constexpr Stat kStat = kStat_;
  static constexpr Affine kAffine = kAffine_;
  static constexpr bool kAnyStat = false;
};

// The choices of a kernel for any rounding. The statistic is a run-time value, and a residual may
// be absent. So one kernel has what all general calls with x of one dtype need.
template <class Element, Source kSource_>
struct GeneralSlots {
  using T = Element;
  static constexpr Source kSource = kSource_;
  static constexpr Stat kStat = Stat::kLayer;  // and RMS
  static constexpr Affine kAffine = Affine::kAny;
  static constexpr bool kAnyStat = true;
};

// The addresses of one row.
struct Row {
  const char *x, *residual;
  char *y, *residual_out, *mean, *rstd;
  const char *weight, *bias;
  const char *next_x, *next_residual;  // for prefetching; nullptr = none
};

// Access to a complete pair, or to its first `count` elements. The code is the same for both.
struct Whole {
  static constexpr int count = kPairElements;
  static constexpr bool kEnd = false;
  template <class T>
  FASTNORM_INLINE Pair load(T type, const char* p) const {
    return cpu::load(type, p);
  }
  template <class T>
  FASTNORM_INLINE void store(T type, char* p, Pair v, bool streamed) const {
    if (kStreamBytes > 1 && streamed) {
      cpu::stream(type, p, v);
    } else {
      cpu::store(type, p, v);
    }
  }
  template <class T>
  FASTNORM_INLINE Pair first(T, Pair v) const {
    return v;
  }
};
struct Some {
  static constexpr bool kEnd = true;
  int count;
  template <class T>
  FASTNORM_INLINE Pair load(T type, const char* p) const {
    return load_some(type, p, count);
  }
  template <class T>
  FASTNORM_INLINE void store(T type, char* p, Pair v, bool) const {
    store_some(type, p, v, count);
  }
  template <class T>
  FASTNORM_INLINE Pair first(T type, Pair v) const {
    return cpu::first(type, v, count);
  }
};

// ---- Dtypes of single tensors: run-time values, or x's dtype if the kernel rounds once.

template <Affine kAffine, class T>
FASTNORM_INLINE int64_t bytes_of(OperandType type) {
  if constexpr (kAffine == Affine::kAny) {
    if (type == OperandType::kF32) return F32::kBytes;
    if (type != OperandType::kElement) return F16::kBytes;
  }
  return T::kBytes;
}

// A pair of another dtype, in the layout of T.
template <class T, class From, class Extent>
FASTNORM_INLINE Pair load_converted(T type, From from, const char* p, Extent extent) {
  return to_layout(type, from_layout(from, extent.load(from, p)));
}

// The elements from i on, in the layout of T.
template <Affine kAffine, class T, class Extent>
FASTNORM_INLINE Pair load_typed(OperandType type, const char* data, int64_t i, Extent extent) {
  if (kAffine == Affine::kOnce || type == OperandType::kElement)
    return extent.load(T{}, data + i * T::kBytes);
  if (type == OperandType::kF32) return load_converted(T{}, F32{}, data + i * F32::kBytes, extent);
  if (type == OperandType::kF16) return load_converted(T{}, F16{}, data + i * F16::kBytes, extent);
  return load_converted(T{}, BF16{}, data + i * BF16::kBytes, extent);
}

// Stores them. Each value is rounded once.
template <class T, class To, class Extent>
FASTNORM_INLINE void store_converted(T type, To to, char* p, Pair v, Extent extent, bool streamed) {
  extent.store(to, p, to_layout(to, from_layout(type, v)), streamed);
}
template <Affine kAffine, class T, class Extent>
FASTNORM_INLINE void store_typed(OperandType type, char* data, int64_t i, Pair v, Extent extent,
                                 bool streamed) {
  if (kAffine == Affine::kOnce || type == OperandType::kElement) {
    extent.store(T{}, data + i * T::kBytes, v, streamed);
  } else if (type == OperandType::kF32) {
    store_converted(T{}, F32{}, data + i * F32::kBytes, v, extent, streamed);
  } else if (type == OperandType::kF16) {
    store_converted(T{}, F16{}, data + i * F16::kBytes, v, extent, streamed);
  } else {
    store_converted(T{}, BF16{}, data + i * BF16::kBytes, v, extent, streamed);
  }
}

// ---- Roundings: run-time values, or none if the kernel rounds once.

template <class T>
FASTNORM_INLINE Pair round_pair(T type, Pair v) {
  return {round(type, v.a), round(type, v.b)};
}

template <Affine kAffine, class T>
struct Rounding {  // Affine::kOnce
  FASTNORM_INLINE explicit Rounding(const NormParams&) {}
  FASTNORM_INLINE Pair step(Pair v) const { return v; }
  FASTNORM_INLINE float step(float f) const { return f; }
  FASTNORM_INLINE Pair normalized(Pair v) const { return v; }
  FASTNORM_INLINE Pair summed(Pair v) const { return v; }
  FASTNORM_INLINE Pair applied(Pair v) const { return v; }
  static constexpr bool every_step = false, factor_first = false;
};

template <class T>
struct Rounding<Affine::kAny, T> {
  FASTNORM_INLINE explicit Rounding(const NormParams& p)
      : every_step(p.every_step),
        round_normalized(p.round_normalized),
        factor_first(p.factor_first),
        round_summed(p.round_summed),
        round_applied(p.round_applied),
        sum_type(p.sum_type) {}
  // An intermediate value of a chain in T.
  FASTNORM_INLINE Pair step(Pair v) const { return every_step ? round_pair(T{}, v) : v; }
  FASTNORM_INLINE float step(float f) const {
    return every_step ? lowest(round(T{}, broadcast(f))) : f;
  }
  FASTNORM_INLINE Pair normalized(Pair v) const {
    return round_normalized ? round_pair(T{}, v) : v;
  }
  // x + residual, first for the statistics and then as the input of Affine.
  FASTNORM_INLINE Pair summed(Pair v) const { return round_summed ? round_sum(v) : v; }
  FASTNORM_INLINE Pair applied(Pair v) const {
    return round_applied || round_summed ? round_sum(v) : v;
  }
  FASTNORM_INLINE Pair round_sum(Pair v) const {
    if (sum_type == OperandType::kElement) return round_pair(T{}, v);
    return sum_type == OperandType::kF16 ? round_pair(F16{}, v) : round_pair(BF16{}, v);
  }

  const bool every_step, round_normalized, factor_first, round_summed, round_applied;
  const OperandType sum_type;
};

// ---- Source: which bytes become the f32 row.

template <class Slots>
struct RowSource {
  using T = typename Slots::T;

  FASTNORM_INLINE RowSource(const NormParams& p, const Row& row)
      : x(row.x), residual(row.residual), residual_type(p.residual_type) {}

  // False if a general kernel's residual is absent. Then nothing rounds the row, either.
  FASTNORM_INLINE bool adds() const {
    return Slots::kSource == Source::kAdd &&
           (Slots::kAffine == Affine::kOnce || residual_type != OperandType::kAbsent);
  }

  // The elements from i on, in the layout of T.
  template <class Extent>
  FASTNORM_INLINE Pair take(int64_t i, Extent extent) const {
    const Pair s = extent.load(T{}, x + i * T::kBytes);
    if constexpr (Slots::kSource == Source::kAdd) {
      if (!adds()) return s;
      const Pair r = load_typed<Slots::kAffine, T>(residual_type, residual, i, extent);
      return {add(s.a, r.a), add(s.b, r.b)};
    } else {
      return s;
    }
  }

  const char* const x;
  const char* const residual;
  const OperandType residual_type;
};

// ---- Stat: what is reduced. Chunks of 16384 elements over 64 accumulators, for every vector
// width.

inline constexpr int64_t kChunkElements = 16384;
inline constexpr int kAccumulators = 64;
inline constexpr int kBlockPairs = kAccumulators / kPairElements;

struct Sums {
  Vec value[2 * kBlockPairs];
};

// Folds the first 2 * kCount registers: each with the one kCount further.
template <int kCount>
FASTNORM_INLINE void fold_registers(Sums& s) {
  if constexpr (kCount > 0) {
#pragma GCC unroll kUnroll
    for (int i = 0; i < kCount; ++i) s.value[i] = add(s.value[i], s.value[i + kCount]);
    fold_registers<kCount / 2>(s);
  }
}

// Folds over the digits of an element's number, from the highest to the lowest.
template <class T>
FASTNORM_INLINE float fold(T, Sums& s) {
  fold_registers<kBlockPairs>(s);
  return sum_lanes(s.value[0]);
}
// bf16: the highest digit, then the lowest, which separates a pair's `a` and `b`, then the others.
FASTNORM_INLINE float fold(BF16, Sums& s) {
#pragma GCC unroll kUnroll
  for (int i = 0; i < kBlockPairs; ++i) s.value[i] = add(s.value[i], s.value[i + kBlockPairs]);
#pragma GCC unroll kUnroll
  for (int i = 0; i < kBlockPairs / 2; ++i) s.value[i] = add(s.value[2 * i], s.value[2 * i + 1]);
  fold_registers<kBlockPairs / 4>(s);
  return sum_lanes(s.value[0]);
}

// Additional work for each pair of a sum: none.
struct Nothing {
  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t, Extent) const {}
};

// Adds the elements j of a chunk with j mod 64 in [kFrom, kTo) to `sums`. `term` maps each pair.
// `beside` is called for each pair.
template <int kFrom, int kTo, class Sums, class Term, class Beside>
FASTNORM_INLINE void add_chunk(int64_t i, int64_t end, Sums& sums, const Term& term,
                               const Beside& beside) {
  for (; i + kAccumulators <= end; i += kAccumulators) {
#pragma GCC unroll kUnroll
    for (int j = kFrom; j < kTo; ++j) {
      term(i + j * kPairElements, Whole{}, sums, j);
      beside(i + j * kPairElements, Whole{});
    }
  }
#pragma GCC unroll kUnroll
  for (int j = kFrom; j < kTo; ++j) {
    const int64_t left = end - i - j * kPairElements;
    if (left <= 0) break;
    const Some some = {static_cast<int>(smaller(left, kPairElements))};
    term(i + j * kPairElements, some, sums, j);
    beside(i + j * kPairElements, some);
  }
}

FASTNORM_INLINE void clear(Sums& sums) {
#pragma GCC unroll kUnroll
  for (Vec& v : sums.value) v = zero();
}

// Sums `term` of each pair over the row. `beside` is called for each pair.
template <class T, class Term, class Beside>
FASTNORM_INLINE float reduce_row(int64_t n, const Term& term, const Beside& beside) {
  float total = 0.0f;
  for (int64_t chunk = 0; chunk < n; chunk += kChunkElements) {
    Sums sums;
    clear(sums);
    add_chunk<0, kBlockPairs>(chunk, smaller(chunk + kChunkElements, n), sums, term, beside);
    total = total + fold(T{}, sums);
  }
  return total + 0.0f;
}

// LAYER's second pass: sums of d and of d * d.
struct Moments {
  float sum, squares;
};
struct MomentSums {
  Sums sum, squares;
};

template <int kFrom, int kPairs, class Term>
FASTNORM_INLINE void add_parts(int64_t i, int64_t end, MomentSums& sums, const Term& term) {
  if constexpr (kFrom < kBlockPairs) {
    add_chunk<kFrom, kFrom + kPairs>(i, end, sums, term, Nothing{});
    add_parts<kFrom + kPairs, kPairs>(i, end, sums, term);
  }
}

// Both sums of a row at once. If the registers cannot hold both sets of accumulators, a chunk takes
// several parts. Each part takes its own elements of every 64.
template <class T, class Term>
FASTNORM_INLINE Moments reduce_moments(int64_t n, const Term& term) {
  constexpr int kPairs = kBlockPairs / kMomentParts;
  Moments total = {0.0f, 0.0f};
  for (int64_t chunk = 0; chunk < n; chunk += kChunkElements) {
    const int64_t end = smaller(chunk + kChunkElements, n);
    MomentSums sums;
    clear(sums.sum);
    clear(sums.squares);
    add_parts<0, kPairs>(chunk, end, sums, term);
    total.sum = total.sum + fold(T{}, sums.sum);
    total.squares = total.squares + fold(T{}, sums.squares);
  }
  return {total.sum + 0.0f, total.squares + 0.0f};
}

// The elements from i on as the statistics take them.
template <class Slots, class R, class Extent>
FASTNORM_INLINE Pair take_summed(const RowSource<Slots>& source, const R& rounding, int64_t i,
                                 Extent extent) {
  const Pair s = source.take(i, extent);
  if constexpr (requires { source.adds(); }) {
    if (!source.adds()) return s;
  }
  return rounding.summed(s);
}
// The end of a general row is a function of its own. Each sum takes it for several pairs.
template <class Slots, class T>
__attribute__((noinline)) Pair take_summed(const RowSource<Slots>& source,
                                           const Rounding<Affine::kAny, T>& rounding, int64_t i,
                                           Some some) {
  return rounding.summed(source.take(i, some));
}

// s - from, and 0 past the end.
template <class Slots>
struct DifferenceTerm {
  const RowSource<Slots>& source;
  const Rounding<Slots::kAffine, typename Slots::T>& rounding;
  const Vec from;

  template <class Extent>
  FASTNORM_INLINE Pair take(int64_t i, Extent extent) const {
    const Pair s = take_summed(source, rounding, i, extent);
    return extent.first(typename Slots::T{}, Pair{sub(s.a, from), sub(s.b, from)});
  }
  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t i, Extent extent, Sums& sums, int pair) const {
    const Pair d = take(i, extent);
    Vec &a = sums.value[2 * pair], &b = sums.value[2 * pair + 1];
    a = add(a, d.a);
    b = add(b, d.b);
  }
};

template <class R>
FASTNORM_INLINE void add_squares(const R& rounding, Pair d, Sums& sums, int pair) {
  Vec &a = sums.value[2 * pair], &b = sums.value[2 * pair + 1];
  if (rounding.every_step) {
    const Pair q = rounding.step({mul(d.a, d.a), mul(d.b, d.b)});
    a = add(a, q.a);
    b = add(b, q.b);
  } else {
    a = fused(d.a, d.a, a);
    b = fused(d.b, d.b, b);
  }
}

template <class Slots>
struct SquareTerm {
  const RowSource<Slots>& source;
  const Rounding<Slots::kAffine, typename Slots::T>& rounding;

  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t i, Extent extent, Sums& sums, int pair) const {
    add_squares(rounding, take_summed(source, rounding, i, extent), sums, pair);
  }
};

// d = s - mean, and d * d.
template <class Slots>
struct MomentTerm {
  const DifferenceTerm<Slots> difference;

  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t i, Extent extent, MomentSums& sums, int pair) const {
    const Pair d = difference.rounding.step(difference.take(i, extent));
    Vec &a = sums.sum.value[2 * pair], &b = sums.sum.value[2 * pair + 1];
    a = add(a, d.a);
    b = add(b, d.b);
    add_squares(difference.rounding, d, sums.squares, pair);
  }
};

struct Statistics {
  float mean, rstd;
  float squared;  // sum of squares; for LAYER those of s - mean
};

// The variance of LAYER's row, and what else of it is known.
template <class Slots, class Beside>
FASTNORM_INLINE float centred_variance(const NormParams& p, const RowSource<Slots>& source,
                                       const Rounding<Slots::kAffine, typename Slots::T>& rounding,
                                       const Beside& beside, Statistics* result) {
  using T = typename Slots::T;
  // A chain in T neither shifts nor corrects: x + -0 and x - -0 are x.
  const float origin =
      rounding.every_step ? -0.0f : lowest(take_summed(source, rounding, 0, Some{1}).a);
  const DifferenceTerm<Slots> first = {source, rounding, broadcast(origin)};
  const float mean = rounding.step(origin + reduce_row<T>(p.n, first, beside) * p.inv_n);
  const Moments m = reduce_moments<T>(p.n, MomentTerm<Slots>{{source, rounding, broadcast(mean)}});
  const float delta = rounding.every_step ? -0.0f : m.sum * p.inv_n;
  result->mean = mean + delta;
  const float squared = __builtin_fmaf(-delta, m.sum, m.squares);
  result->squared = squared < 0.0f ? 0.0f : squared;
  const float variance = __builtin_fmaf(-delta, delta, m.squares * p.inv_n);
  return variance < 0.0f ? 0.0f : variance;
}

// The mean square of an RMS row.
template <class Slots, class Beside>
FASTNORM_INLINE float mean_square(const NormParams& p, const RowSource<Slots>& source,
                                  const Rounding<Slots::kAffine, typename Slots::T>& rounding,
                                  const Beside& beside, Statistics* result) {
  using T = typename Slots::T;
  result->squared = reduce_row<T>(p.n, SquareTerm<Slots>{source, rounding}, beside);
  return result->squared * p.inv_n;
}

// `beside` is called during the first pass.
template <class Slots, class Beside>
FASTNORM_INLINE Statistics statistics(const NormParams& p, const RowSource<Slots>& source,
                                      const Rounding<Slots::kAffine, typename Slots::T>& rounding,
                                      const Beside& beside) {
  Statistics result = {0.0f, 0.0f, 0.0f};
  float variance = 0.0f;
  if constexpr (Slots::kAnyStat) {
    variance = p.layer ? centred_variance<Slots>(p, source, rounding, beside, &result)
                       : mean_square<Slots>(p, source, rounding, beside, &result);
  } else if constexpr (Slots::kStat == Stat::kLayer) {
    variance = centred_variance<Slots>(p, source, rounding, beside, &result);
  } else {
    variance = mean_square<Slots>(p, source, rounding, beside, &result);
  }
  variance = rounding.step(variance);
  result.rstd = rounding.step(1.0f / square_root(rounding.step(variance + p.eps)));
  return result;
}

// ---- Affine: (b - mean) * rstd, times the weight, plus the bias.

// The dtypes of weight and bias: constants for the common pairs, run-time values for the others.
template <OperandType kWeight, OperandType kBias>
struct FixedWeights {
  FASTNORM_INLINE explicit FixedWeights(const NormParams&) {}
  static constexpr bool kFixed = true;
  static constexpr OperandType weight = kWeight, bias = kBias;
};
struct AnyWeights {
  static constexpr bool kFixed = false;
  FASTNORM_INLINE explicit AnyWeights(const NormParams& p)
      : weight(p.weight_type), bias(p.bias_type) {}
  const OperandType weight, bias;
};

// A pair of a weight or bias, in the layout of T. Without rounding in between its dtype is T or
// f32.
template <Affine kAffine, class T, class Extent>
FASTNORM_INLINE Pair take_weight(OperandType type, const char* data, int64_t i, Extent extent) {
  if constexpr (kAffine == Affine::kAny) {
    return load_typed<kAffine, T>(type, data, i, extent);
  } else {
    if (type == OperandType::kElement) return extent.load(T{}, data + i * T::kBytes);
    return to_layout(T{}, extent.load(F32{}, data + i * F32::kBytes));
  }
}

template <class Slots, class Weights>
struct RowAffine {
  using T = typename Slots::T;

  FASTNORM_INLINE RowAffine(const NormParams& p, const Row& r, Statistics statistics,
                            const Rounding<Slots::kAffine, T>& row_rounding)
      : rounding(row_rounding),
        weights(p),
        layer(p.layer),
        unusual(p.layer || row_rounding.factor_first),
        mean(broadcast(statistics.mean)),
        rstd(broadcast(statistics.rstd)),
        offset(broadcast(p.weight_offset)),
        weight(r.weight),
        bias(r.bias) {}

  template <class Extent>
  FASTNORM_INLINE Pair apply(Pair s, int64_t i, Extent extent) const {
    return apply_to(rounding.applied(s), i, extent);
  }

  // apply() to a pair that is rounded already.
  template <class Extent>
  FASTNORM_INLINE Pair apply_to(Pair t, int64_t i, Extent extent) const {
    if constexpr (Slots::kAnyStat) {
      if (unusual) {  // one test for both, in each pair
        if (layer) t = rounding.step({sub(t.a, mean), sub(t.b, mean)});
        if (rounding.factor_first) return apply_factor(t, i, extent);
      }
    } else {
      if constexpr (Slots::kStat == Stat::kLayer)
        t = rounding.step({sub(t.a, mean), sub(t.b, mean)});
      if (rounding.factor_first) return apply_factor(t, i, extent);
    }
    t = rounding.normalized({mul(t.a, rstd), mul(t.b, rstd)});
    if (weights.weight == OperandType::kAbsent) {
      if (weights.bias == OperandType::kAbsent) return t;
      const Pair c = take_weight<Slots::kAffine, T>(weights.bias, bias, i, extent);
      return rounding.step({add(t.a, c.a), add(t.b, c.b)});
    }
    const Pair w = take_weight<Slots::kAffine, T>(weights.weight, weight, i, extent);
    const Pair g = rounding.step({add(w.a, offset), add(w.b, offset)});
    if (weights.bias == OperandType::kAbsent) return rounding.step({mul(t.a, g.a), mul(t.b, g.b)});
    const Pair c = take_weight<Slots::kAffine, T>(weights.bias, bias, i, extent);
    if (rounding.every_step) {
      t = rounding.step({mul(t.a, g.a), mul(t.b, g.b)});
      return rounding.step({add(t.a, c.a), add(t.b, c.b)});
    }
    return {fused(t.a, g.a, c.a), fused(t.b, g.b, c.b)};
  }

  // The rest of it, if the factor is rstd * (weight + offset).
  template <class Extent>
  FASTNORM_INLINE Pair apply_factor(Pair d, int64_t i, Extent extent) const {
    Pair k = {rstd, rstd};
    if (weights.weight != OperandType::kAbsent) {
      const Pair w = take_weight<Slots::kAffine, T>(weights.weight, weight, i, extent);
      k = {mul(rstd, add(w.a, offset)), mul(rstd, add(w.b, offset))};
    }
    if (weights.bias == OperandType::kAbsent) return {mul(d.a, k.a), mul(d.b, k.b)};
    const Pair c = take_weight<Slots::kAffine, T>(weights.bias, bias, i, extent);
    return {fused(d.a, k.a, c.a), fused(d.b, k.b, c.b)};
  }

  const Rounding<Slots::kAffine, T> rounding;
  const Weights weights;
  const bool layer, unusual;  // of use with kAnyStat
  const Vec mean, rstd, offset;
  const char* const weight;
  const char* const bias;
};

// ---- Sink: what is stored. All stores are in the last pass, after the last load of x and
// residual, so they may overwrite these.

// Which stores are streaming stores: none, or those to aligned addresses.
struct Cached {
  static constexpr bool y = false, residual_out = false;
};
struct Streamed {
  bool y, residual_out;
};

template <class Slots, class Stores>
struct RowSink {
  using T = typename Slots::T;

  FASTNORM_INLINE RowSink(const NormParams& p, const Row& r, Stores stores)
      : streamed(stores),
        y(r.y),
        residual_out(r.residual_out),
        y_type(p.y_type),
        residual_out_type(p.residual_out_type) {}

  template <class Extent>
  FASTNORM_INLINE void store_sum(Pair s, int64_t i, Extent extent) const {
    if constexpr (Slots::kSource == Source::kAdd) {
      if (residual_out == nullptr) return;
      store_typed<Slots::kAffine, T>(residual_out_type, residual_out, i, s, extent,
                                     streamed.residual_out);
    }
  }

  template <class Extent>
  FASTNORM_INLINE void store(Pair z, int64_t i, Extent extent) const {
    if constexpr (Slots::kAffine == Affine::kAny) {
      if (y_type == OperandType::kF32)
        return store_converted(T{}, F32{}, y + i * F32::kBytes, z, extent, streamed.y);
    }
    extent.store(T{}, y + i * T::kBytes, z, streamed.y);
  }

  const Stores streamed;
  char* const y;
  char* const residual_out;
  const OperandType y_type, residual_out_type;
};

// ---- Values in f32, in the order of the columns.

// Calls `each` for all pairs of vectors of n elements.
template <class Each>
FASTNORM_INLINE void for_pairs(int n, const Each& each) {
  int i = 0;
  for (; i + kPairElements <= n; i += kPairElements) each(i, Whole{});
  if (i < n) each(i, Some{n - i});
}

FASTNORM_INLINE Pair load_values(const float* v) {
  return load(F32{}, reinterpret_cast<const char*>(v));
}
FASTNORM_INLINE void store_values(float* v, Pair pair) {
  store(F32{}, reinterpret_cast<char*>(v), pair);
}

// `to` has room for complete pairs.
template <class T>
inline void widen(const char* from, int n, float* to) {
  for_pairs(
      n, [&](int i, auto extent) __attribute__((always_inline)) {
        store_values(to + i, from_layout(T{}, extent.load(T{}, from + i * T::kBytes)));
      });
}

template <class T>
inline void narrow(const float* from, int n, char* to) {
  for_pairs(
      n, [&](int i, auto extent) __attribute__((always_inline)) {
        extent.store(T{}, to + i * T::kBytes, to_layout(T{}, load_values(from + i)), false);
      });
}

// To T and back, in complete pairs.
template <class T>
inline void round_values(float* v, int n) {
  for (int i = 0; i < n; i += kPairElements)
    store_values(v + i, round_pair(T{}, load_values(v + i)));
}

}  // namespace
}  // namespace fastnorm::cpu
