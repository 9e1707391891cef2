// The parts of the forward row loop: what is loaded (Source), reduced (Stat), applied (Affine) and stored (Sink).
//
// A row is taken in pairs of vectors (simd.h), from memory each time: x, and the residual, are in the first cache after the first
// pass over any row that fits there, and adding again costs less than keeping sums. The arithmetic is the contract of
// include/fastnorm/norm.h; every operation is one rounded instruction.
#pragma once

#include "core/norm_key.h"
#include "cpu/norm_params.h"
#include "cpu/simd.h"

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
};

// Where one row is.
struct Row {
  const char *x, *residual;
  char *y, *residual_out, *mean, *rstd;
  const char *weight, *bias;
  const char *next_x, *next_residual;  // to prefetch; nullptr = nothing
};

// All of a pair, or its first `count` elements: two kinds of access, one text.
struct Whole {
  static constexpr int count = kPairElements;
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

// ---- Rounding axes: run-time, and gone where the kernel rounds once.

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
  static constexpr bool every_step = false;
};

template <class T>
struct Rounding<Affine::kAny, T> {
  FASTNORM_INLINE explicit Rounding(const NormParams& p)
      : every_step(p.every_step),
        round_normalized(p.round_normalized),
        round_summed(p.round_summed),
        round_applied(p.round_applied) {}
  // An intermediate value of a chain in T.
  FASTNORM_INLINE Pair step(Pair v) const { return every_step ? round_pair(T{}, v) : v; }
  FASTNORM_INLINE float step(float f) const {
    return every_step ? lowest(round(T{}, broadcast(f))) : f;
  }
  FASTNORM_INLINE Pair normalized(Pair v) const {
    return round_normalized ? round_pair(T{}, v) : v;
  }
  // x + residual: as the statistics see it, and as it is applied.
  FASTNORM_INLINE Pair summed(Pair v) const { return round_summed ? round_pair(T{}, v) : v; }
  FASTNORM_INLINE Pair applied(Pair v) const {
    return round_applied || round_summed ? round_pair(T{}, v) : v;
  }

  const bool every_step, round_normalized, round_summed, round_applied;
};

// ---- Source: which bytes become the f32 row.

template <class Slots>
struct RowSource {
  using T = typename Slots::T;

  FASTNORM_INLINE RowSource(const NormParams& p, const Row& row)
      : x(row.x), residual(row.residual), residual_f32(p.residual_f32) {}

  // Elements from i on, in the layout of T.
  template <class Extent>
  FASTNORM_INLINE Pair take(int64_t i, Extent extent) const {
    const Pair s = extent.load(T{}, x + i * T::kBytes);
    if constexpr (Slots::kSource == Source::kAdd) {
      const Pair r = take_residual(i, extent);
      return {add(s.a, r.a), add(s.b, r.b)};
    } else {
      return s;
    }
  }

  template <class Extent>
  FASTNORM_INLINE Pair take_residual(int64_t i, Extent extent) const {
    if constexpr (Slots::kAffine == Affine::kAny) {
      if (residual_f32) return to_layout(T{}, extent.load(F32{}, residual + i * F32::kBytes));
    }
    return extent.load(T{}, residual + i * T::kBytes);
  }

  const char* const x;
  const char* const residual;
  const bool residual_f32;
};

// ---- Stat: what is reduced. Chunks of 16384 elements over 64 accumulators, whatever the vectors' width.

inline constexpr int64_t kChunkElements = 16384;
inline constexpr int kAccumulators = 64;
inline constexpr int kBlockPairs = kAccumulators / kPairElements;

struct Sums {
  Vec value[2 * kBlockPairs];
};

// Folds the first 2 * kCount registers, those at twice the distance first.
template <int kCount>
FASTNORM_INLINE void fold_registers(Sums& s) {
  if constexpr (kCount > 0) {
#pragma GCC unroll kUnroll
    for (int i = 0; i < kCount; ++i) s.value[i] = add(s.value[i], s.value[i + kCount]);
    fold_registers<kCount / 2>(s);
  }
}

// The digits of an element's number from the highest to the lowest.
template <class T>
FASTNORM_INLINE float fold(T, Sums& s) {
  fold_registers<kBlockPairs>(s);
  return sum_lanes(s.value[0]);
}
// bf16: the highest digit, then the lowest, which tells a pair's `a` from its `b`, then the rest.
FASTNORM_INLINE float fold(BF16, Sums& s) {
#pragma GCC unroll kUnroll
  for (int i = 0; i < kBlockPairs; ++i) s.value[i] = add(s.value[i], s.value[i + kBlockPairs]);
#pragma GCC unroll kUnroll
  for (int i = 0; i < kBlockPairs / 2; ++i) s.value[i] = add(s.value[2 * i], s.value[2 * i + 1]);
  fold_registers<kBlockPairs / 4>(s);
  return sum_lanes(s.value[0]);
}

// What is done beside a sum, for each of its pairs: nothing.
struct Nothing {
  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t, Extent) const {}
};

// Sum over the row of what `term` makes of each pair, with `beside` called for each.
template <class T, class Term, class Beside>
FASTNORM_INLINE float reduce_row(int64_t n, const Term& term, const Beside& beside) {
  float total = 0.0f;
  for (int64_t chunk = 0; chunk < n; chunk += kChunkElements) {
    const int64_t end = smaller(chunk + kChunkElements, n);
    Sums sums;
#pragma GCC unroll kUnroll
    for (Vec& v : sums.value) v = zero();
    int64_t i = chunk;
    for (; i + kAccumulators <= end; i += kAccumulators) {
#pragma GCC unroll kUnroll
      for (int j = 0; j < kBlockPairs; ++j) {
        term(i + j * kPairElements, Whole{}, sums.value[2 * j], sums.value[2 * j + 1]);
        beside(i + j * kPairElements, Whole{});
      }
    }
#pragma GCC unroll kUnroll
    for (int j = 0; j < kBlockPairs; ++j) {
      const int64_t left = end - i - j * kPairElements;
      if (left <= 0) break;
      const Some some = {static_cast<int>(smaller(left, kPairElements))};
      term(i + j * kPairElements, some, sums.value[2 * j], sums.value[2 * j + 1]);
      beside(i + j * kPairElements, some);
    }
    total = total + fold(T{}, sums);
  }
  return total + 0.0f;
}

template <class Slots>
struct SumTerm {
  const RowSource<Slots>& source;
  const Rounding<Slots::kAffine, typename Slots::T>& rounding;

  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t i, Extent extent, Vec& a, Vec& b) const {
    const Pair s = rounding.summed(source.take(i, extent));
    a = add(a, s.a);
    b = add(b, s.b);
  }
};

// Squares, of s - mean for LAYER, where elements past the end would add mean^2.
template <class Slots>
struct SquareTerm {
  const RowSource<Slots>& source;
  const Rounding<Slots::kAffine, typename Slots::T>& rounding;
  const Vec mean;

  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t i, Extent extent, Vec& a, Vec& b) const {
    Pair d = rounding.summed(source.take(i, extent));
    if constexpr (Slots::kStat == Stat::kLayer) {
      d = {sub(d.a, mean), sub(d.b, mean)};
      d = rounding.step(extent.first(typename Slots::T{}, d));
    }
    if (rounding.every_step) {
      const Pair q = rounding.step({mul(d.a, d.a), mul(d.b, d.b)});
      a = add(a, q.a);
      b = add(b, q.b);
    } else {
      a = fused(d.a, d.a, a);
      b = fused(d.b, d.b, b);
    }
  }
};

struct Statistics {
  float mean, rstd;
  float squared;  // sum of squares, for LAYER of s - mean
};

// `beside` is called along the first pass.
template <class Slots, class Beside>
FASTNORM_INLINE Statistics statistics(const NormParams& p, const RowSource<Slots>& source,
                                      const Rounding<Slots::kAffine, typename Slots::T>& rounding,
                                      const Beside& beside) {
  using T = typename Slots::T;
  Statistics result = {0.0f, 0.0f, 0.0f};
  if constexpr (Slots::kStat == Stat::kLayer) {
    const SumTerm<Slots> sum = {source, rounding};
    result.mean = rounding.step(reduce_row<T>(p.n, sum, beside) * p.inv_n);
    const SquareTerm<Slots> squares = {source, rounding, broadcast(result.mean)};
    result.squared = reduce_row<T>(p.n, squares, Nothing{});
  } else {
    result.squared = reduce_row<T>(p.n, SquareTerm<Slots>{source, rounding, zero()}, beside);
  }
  const float variance = rounding.step(result.squared * p.inv_n);
  result.rstd = rounding.step(1.0f / square_root(rounding.step(variance + p.eps)));
  return result;
}

// ---- Affine: (b - mean) * rstd, times the weight, plus the bias.

// What is known of the weight and the bias: their types at compile time for the frequent pairs, or at run time for the others.
template <ColumnType kWeight, ColumnType kBias>
struct FixedColumns {
  FASTNORM_INLINE explicit FixedColumns(const NormParams&) {}
  static constexpr bool kFixed = true;
  static constexpr ColumnType weight = kWeight, bias = kBias;
};
struct AnyColumns {
  static constexpr bool kFixed = false;
  FASTNORM_INLINE explicit AnyColumns(const NormParams& p)
      : weight(p.weight_type), bias(p.bias_type) {}
  const ColumnType weight, bias;
};

// A pair of a weight or bias, in the layout of T.
template <class T, class Extent>
FASTNORM_INLINE Pair take_column(ColumnType type, const char* data, int64_t i, Extent extent) {
  if (type == ColumnType::kElement) return extent.load(T{}, data + i * T::kBytes);
  return to_layout(T{}, extent.load(F32{}, data + i * F32::kBytes));
}

template <class Slots, class Columns>
struct RowAffine {
  using T = typename Slots::T;

  FASTNORM_INLINE RowAffine(const NormParams& p, const Row& r, Statistics statistics,
                            const Rounding<Slots::kAffine, T>& row_rounding)
      : rounding(row_rounding),
        columns(p),
        mean(broadcast(statistics.mean)),
        rstd(broadcast(statistics.rstd)),
        offset(broadcast(p.weight_offset)),
        weight(r.weight),
        bias(r.bias) {}

  template <class Extent>
  FASTNORM_INLINE Pair apply(Pair s, int64_t i, Extent extent) const {
    Pair t = rounding.applied(s);
    if constexpr (Slots::kStat == Stat::kLayer) {
      t = rounding.step({sub(t.a, mean), sub(t.b, mean)});
    }
    t = rounding.normalized({mul(t.a, rstd), mul(t.b, rstd)});
    if (columns.weight == ColumnType::kAbsent) {
      if (columns.bias == ColumnType::kAbsent) return t;
      const Pair c = take_column<T>(columns.bias, bias, i, extent);
      return {add(t.a, c.a), add(t.b, c.b)};
    }
    const Pair w = take_column<T>(columns.weight, weight, i, extent);
    const Pair g = rounding.step({add(w.a, offset), add(w.b, offset)});
    if (columns.bias == ColumnType::kAbsent) return {mul(t.a, g.a), mul(t.b, g.b)};
    const Pair c = take_column<T>(columns.bias, bias, i, extent);
    if (rounding.every_step) {
      t = rounding.step({mul(t.a, g.a), mul(t.b, g.b)});
      return {add(t.a, c.a), add(t.b, c.b)};
    }
    return {fused(t.a, g.a, c.a), fused(t.b, g.b, c.b)};
  }

  const Rounding<Slots::kAffine, T> rounding;
  const Columns columns;
  const Vec mean, rstd, offset;
  const char* const weight;
  const char* const bias;
};

// ---- Sink: what leaves. Everything is stored in the last pass, after the last look at x and residual, which it may overwrite.

// Which stores go past the caches: none, or those to what is aligned there.
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
        residual_out_f32(p.residual_out_f32) {}

  template <class Extent>
  FASTNORM_INLINE void store_sum(Pair s, int64_t i, Extent extent) const {
    if constexpr (Slots::kSource == Source::kAdd) {
      if (residual_out == nullptr) return;
      if constexpr (Slots::kAffine == Affine::kAny) {
        if (residual_out_f32) {
          extent.store(F32{}, residual_out + i * F32::kBytes, from_layout(T{}, s),
                       streamed.residual_out);
          return;
        }
      }
      extent.store(T{}, residual_out + i * T::kBytes, s, streamed.residual_out);
    }
  }

  template <class Extent>
  FASTNORM_INLINE void store(Pair z, int64_t i, Extent extent) const {
    extent.store(T{}, y + i * T::kBytes, z, streamed.y);
  }

  const Stores streamed;
  char* const y;
  char* const residual_out;
  const bool residual_out_f32;
};

}  // namespace
}  // namespace fastnorm::cpu
