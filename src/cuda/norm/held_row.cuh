// The row in registers between its load and its store: as f32, or as loaded (Row in variant.h).
#pragma once

#include "cuda/common/normalize.cuh"
#include "cuda/common/statistics.cuh"
#include "cuda/norm/source.cuh"

namespace fastnorm::cuda {

// t = (s - mean) * rstd for one vector, or s - mean if the weight takes rstd. t may be s.
template <class Slots, int kCount, class R>
__device__ __forceinline__ void normalize_vector(float (&t)[kCount], const float (&s)[kCount],
                                                 float mean, float rstd, const R& rounding) {
  copy_values(t, s);
  if constexpr (Slots::kSource == Source::kAdd) rounding.applied(t);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (Slots::kStat == Stat::kLayer) t[i] = rounding.step(__fsub_rn(t[i], mean));
    if (!rounding.factor_first) t[i] = __fmul_rn(t[i], rstd);
  }
  rounding.normalized(t);
}

// The row as f32.
template <class Slots, class Tile, Row kRow = Slots::kV.row>
struct HeldRow {
  using T = typename Slots::T;
  static constexpr int kVectors = Tile::kVectors, kPerVector = T::kPerVector;

  __device__ __forceinline__ void set(const RowSource<Slots, Tile>& source, int v) {
    source.take(values[v], v);
  }
  __device__ __forceinline__ void round_sum(const Rounding<Slots::kAffine, T>& rounding) {
    if constexpr (Slots::kSource == Source::kAdd && Slots::kAffine == Affine::kAny) {
#pragma unroll
      for (auto& vector : values) rounding.summed(vector);
    } else if constexpr (Slots::kSource == Source::kAdd) {
      round_row<T>(values, rounding.round_sum);
    }
  }
  // Keeps the compiler from also holding the loaded words, either to unpack them again or to make
  // room for later loads.
  __device__ __forceinline__ void hold() {
#pragma unroll
    for (auto& vector : values) {
#pragma unroll
      for (float& s : vector) s = ptx::in_register(s);
    }
  }
  // As normalize_vector(), in place.
  __device__ __forceinline__ void normalize(float mean, float rstd,
                                            const Rounding<Slots::kAffine, T>& rounding) {
#pragma unroll
    for (auto& vector : values)
      normalize_vector<Slots>(vector, vector, mean, rstd, KnownRounding<T, false>());
    round_row<T>(values, rounding.round_normalized());
  }
  __device__ __forceinline__ void get(float (&s)[kPerVector], int v) const {
    copy_values(s, values[v]);
  }
  // A vector whose number is known at run time.
  __device__ __forceinline__ void pick(float (&s)[kPerVector], int number) const {
    get(s, 0);
#pragma unroll
    for (int v = 1; v < kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < kPerVector; ++i) {
        if (v == number) s[i] = values[v][i];
      }
    }
  }
  __device__ __forceinline__ void get_word(float* s, int v, int word) const {
#pragma unroll
    for (int i = 0; i < T::kPerWord; ++i) s[i] = values[v][word * T::kPerWord + i];
  }
  // `crossed`: the vector's halves are swapped.
  __device__ __forceinline__ void get_crossed_word(float* s, int v, int word, bool crossed) const {
#pragma unroll
    for (int i = 0; i < T::kPerWord; ++i) {
      s[i] = values[v][word * T::kPerWord + i];
      if (crossed) s[i] = values[v][(word ^ 2) * T::kPerWord + i];
    }
  }
  __device__ __forceinline__ void renew(const NormParams&, float) {}
  // Results to be quantised replace the row.
  __device__ __forceinline__ auto& results() { return values; }

  float values[kVectors][kPerVector];
};

// The row as loaded. renew() makes the compiler unpack it again after each reduction, by tying the
// row to a later value. With kByFactors it ties the factor and the mask that unpack bf16. That
// takes fewer instructions and two registers.
template <class Slots, class Tile>
struct HeldRow<Slots, Tile, Row::kPacked> {
  using T = typename Slots::T;
  static constexpr int kVectors = Tile::kVectors, kPerVector = T::kPerVector;
  static constexpr bool kByFactors = Slots::kV.has(Variant::kByFactors);

  __device__ __forceinline__ void set(const RowSource<Slots, Tile>& source, int v) {
    values[v] = source.words(v);
  }
  __device__ __forceinline__ void round_sum(const Rounding<Slots::kAffine, T>&) {}
  __device__ __forceinline__ void get(float (&s)[kPerVector], int v) const { unpack(values[v], s); }
  __device__ __forceinline__ void pick(float (&s)[kPerVector], int number) const {
    uint4 words = values[0];
#pragma unroll
    for (int v = 1; v < kVectors; ++v) words = selected(v == number, values[v], words);
    unpack(words, s);
  }
  __device__ __forceinline__ void get_word(float* s, int v, int word) const {
    unpack_word(word_of(values[v], word), s);
  }
  __device__ __forceinline__ void get_crossed_word(float* s, int v, int word, bool crossed) const {
    unpack_word(crossed ? word_of(values[v], word ^ 2) : word_of(values[v], word), s);
  }
  __device__ __forceinline__ void hold() {}
  __device__ __forceinline__ void renew(const NormParams& p, float later) {
    const uint32_t none = (p.bits_again & kNeverSet) != 0 ? __float_as_uint(later) : 0;
    if constexpr (kByFactors) {
      high |= none;
      up |= none;
    } else {
#pragma unroll
      for (uint4& v : values) v.x |= none, v.y |= none, v.z |= none, v.w |= none;
    }
  }
  __device__ __forceinline__ auto& results() { return quantized; }

  __device__ __forceinline__ void unpack_word(uint32_t word, float* s) const {
    if constexpr (kByFactors) {
      s[0] = __uint_as_float(word * up), s[1] = __uint_as_float(word & high);
    } else {
      T::unpack_word(word, s);
    }
  }
  __device__ __forceinline__ void unpack(const uint4& words, float (&s)[kPerVector]) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) unpack_word(word_of(words, k), s + k * T::kPerWord);
  }

  uint32_t high = 0xffff0000u, up = 0x10000u;  // these unpack the halves of a word
  uint4 values[kVectors];
  float quantized[Slots::kSink == Sink::kQuant ? kVectors : 1][kPerVector];
};

// The canonical fold of a thread's vectors kFrom, kFrom + kStep and so on. One vector at a time, so
// that few partial sums are alive. moments_of(number) gives the moments of a vector.
template <int kFrom, int kStep, int kCount, typename Fn>
__device__ __forceinline__ Moments fold_vectors(const Fn& moments_of) {
  if constexpr (kStep >= power_of_two_up(kCount)) {
    return moments_of(std::integral_constant<int, kFrom>());
  } else {
    Moments m = fold_vectors<kFrom, 2 * kStep, kCount>(moments_of);
    if constexpr (kFrom + kStep < kCount) {
      const Moments other = fold_vectors<kFrom + kStep, 2 * kStep, kCount>(moments_of);
      m = {__fadd_rn(m.sum, other.sum), __fadd_rn(m.squares, other.squares)};
    }
    return m;
  }
}

// LAYER: the sums of a row about `from`. Only the row's last vector tests positions, except for
// Access::kAny.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ Moments row_moments(const HeldRow<Slots, Tile>& held, float from,
                                               const Reach& reach, bool steps,
                                               FoldScratch<Tile, 2>& scratch,
                                               const Place<Tile>& place) {
  using T = typename Slots::T;
  constexpr int kVectors = Tile::kVectors;
  const auto moments_of = [&](auto number) {
    constexpr int v = decltype(number)::value;
    constexpr bool kPartial = Slots::kAccess != Access::kVector;
    float s[T::kPerVector];
    held.get(s, v);
    return moments<T, kPartial>(s, from, reach.count(v), steps);
  };
  return fold_row_moments<Tile>(fold_vectors<0, 1, kVectors>(moments_of), scratch, place);
}

}  // namespace fastnorm::cuda
