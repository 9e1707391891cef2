// Source: which bytes become the f32 row, x or x + residual.
//
// The constructor of a RowSource issues this thread's loads. take() gives register v of the row as
// f32. store_sum() writes x + residual if the call wants it.
#pragma once

#include "cuda/common/any_row.cuh"
#include "cuda/norm/rounding.cuh"
#include "cuda/norm/staged.cuh"

namespace fastnorm::cuda {

// Aligned vectors of one tensor. All loads are issued before the first result is used. Missing
// vectors become zero.
template <Loads kLoads, class Tile, class Reach>
__device__ __forceinline__ void load_vectors(uint4 (&raw)[Tile::kVectors], const char* row,
                                             const Place<Tile>& place, const Reach& reach,
                                             bool asked) {
  constexpr int kSure = Reach::kEvery ? 0 : Tile::kVectors - 1;  // vectors that every row has
  const char* address = row + static_cast<uint32_t>(place.first * kVectorBytes);
  const auto at = [&](int v) { return address + Tile::offset(v) * kVectorBytes; };
#pragma unroll
  for (int v = kSure; v < Tile::kVectors; ++v) raw[v] = make_uint4(0, 0, 0, 0);
  const auto load = [&]<bool kStream>(std::bool_constant<kStream>) {
#pragma unroll
    for (int v = 0; v < kSure; ++v) raw[v] = load_vector<kStream>(at(v));
#pragma unroll
    for (int v = kSure; v < Tile::kVectors; ++v)
      load_vector_if<kStream>(raw[v], at(v), reach.has(v));
  };
  if constexpr (kSure == 0 && !Reach::kEvery && kLoads == Loads::kAsked) {
    load_vector_if<true>(raw[0], at(0), reach.has(0) && asked);
    load_vector_if<false>(raw[0], at(0), reach.has(0) && !asked);
  } else if (kLoads == Loads::kStreaming || (kLoads == Loads::kAsked && asked)) {
    load(std::true_type());
  } else {
    load(std::false_type());
  }
}

template <class Slots, class Tile>
struct RowSource;

// Aligned vectors. x + residual is stored before the reduction, so that the store overlaps it.
template <class Slots, class Tile>
requires(Slots::kAccess == Access::kVector) struct RowSource<Slots, Tile> {
  using T = typename Slots::T;
  using Reach = RowReach<Slots, Tile>;
  static constexpr bool kAdd = Slots::kSource == Source::kAdd;
  static constexpr bool kAddsWords = kAdd && Slots::kRounds;

  RowSource() = default;  // x and residual come from elsewhere
  __device__ __forceinline__ RowSource(const NormParams& p, const RowIndex& index,
                                       const Place<Tile>& place, const Reach& reach,
                                       uint32_t bits) {
    const bool asked = (bits & kStreamLoads) != 0;
    const char* const x_row = row_address(p.x, p.x_upper, index);
    const char* const residual_row =
        kAdd ? row_address(p.residual, p.residual_upper, index) : nullptr;
    load_vectors<Slots::kV.loads, Tile>(x, x_row, place, reach, asked);
    if constexpr (kAdd)
      load_vectors<Slots::kV.loads, Tile>(residual, residual_row, place, reach, asked);
  }

  __device__ __forceinline__ uint4 words(int v) const { return x[v]; }

  // x + residual, rounded, replaces x.
  __device__ __forceinline__ void add_words() {
    if constexpr (kAddsWords) {
#pragma unroll
      for (int v = 0; v < Tile::kVectors; ++v) x[v] = add_vectors<T>(x[v], residual[v]);
    }
  }

  // Register v of the row as f32.
  __device__ __forceinline__ void take(float (&s)[T::kPerVector], int v) const {
    T::unpack(x[v], s);
    if constexpr (kAdd && !kAddsWords) {
      float r[T::kPerVector];
      T::unpack(residual[v], r);
#pragma unroll
      for (int i = 0; i < T::kPerVector; ++i) s[i] = __fadd_rn(s[i], r[i]);
    }
  }

  __device__ __forceinline__ void store_sum(const NormParams& p, const RowIndex& index,
                                            const Place<Tile>& place, const Reach& reach,
                                            const float (&s)[Tile::kVectors][T::kPerVector]) const {
    if constexpr (kAdd) {
      if (p.residual_out.data == nullptr) return;
      char* row = row_address(p.residual_out, p.residual_out_upper, index) +
                  static_cast<int64_t>(place.first) * kVectorBytes;
#pragma unroll
      for (int v = 0; v < Tile::kVectors; ++v) {
        if (reach.stores(v))
          ptx::st_global_v4(row + Tile::offset(v) * kVectorBytes,
                            kAddsWords ? x[v] : T::pack(s[v]));
      }
    }
  }

  uint4 x[Tile::kVectors];
  uint4 residual[kAdd ? Tile::kVectors : 1];
};

// Vectors of x and the residual as loaded.
template <class Slots, class Tile>
struct LoadedVectors {
  using T = typename Slots::T;
  static constexpr bool kAdd = Slots::kSource == Source::kAdd;

  __device__ __forceinline__ uint4 words(int v) const { return x[v]; }
  // Register v of the row, in f32.
  __device__ __forceinline__ void take(float (&s)[T::kPerVector], int v) const {
    T::unpack(x[v], s);
    if constexpr (kAdd) {
      float r[T::kPerVector];
      T::unpack(residual[v], r);
#pragma unroll
      for (int i = 0; i < T::kPerVector; ++i) s[i] = __fadd_rn(s[i], r[i]);
    }
  }

  uint4 x[Tile::kVectors], residual[kAdd ? Tile::kVectors : 1];
};

// Unaligned rows, through shared memory. Call complete() after every load has been issued.
template <class Slots, class Tile>
requires(Slots::kAccess == Access::kUnaligned) struct RowSource<Slots, Tile>
    : LoadedVectors<Slots, Tile> {
  using T = typename Slots::T;
  using Reach = cuda::Reach<Access::kUnaligned, T, Tile>;
  using Staged = StagedRow<Slots, Tile>;
  static constexpr bool kAdd = Slots::kSource == Source::kAdd;
  static constexpr int kVectors = Tile::kVectors;

  __device__ __forceinline__ RowSource(const NormParams& p, const RowIndex& index,
                                       const Place<Tile>& place, const Reach&, uint32_t)
      : x_input(row_address(p.x, p.x_upper, index), p, Staged().x(), place),
        residual_input(row_address(residual_of(p), kAdd ? p.residual_upper : p.x_upper, index), p,
                       Staged().residual(), place) {}

  __device__ __forceinline__ void complete(const Place<Tile>& place) const {
    x_input.complete(Staged().x(), place);
    if constexpr (kAdd) residual_input.complete(Staged().residual(), place);
  }
  __device__ __forceinline__ void take_all(const Place<Tile>& place, const Reach& reach) {
    x_input.take(this->x, Staged().x(), place, reach);
    if constexpr (kAdd) residual_input.take(this->residual, Staged().residual(), place, reach);
  }

  // Stores to shared memory. finish_sum() stores to memory after the next barrier.
  __device__ __forceinline__ void store_sum(const NormParams& p, const RowIndex&,
                                            const Place<Tile>& place, const Reach&,
                                            const float (&s)[kVectors][T::kPerVector]) const {
    if constexpr (kAdd) {
      if (p.residual_out.data == nullptr) return;
      auto* const sum = reinterpret_cast<uint4*>(Staged().sum());
#pragma unroll
      for (int v = 0; v < kVectors; ++v) sum[place.vector(v)] = T::pack(s[v]);
    }
  }
  static __device__ __forceinline__ void finish_sum(const NormParams& p, const RowIndex& index,
                                                    const Place<Tile>& place, bool live) {
    if constexpr (kAdd) {
      if (p.residual_out.data == nullptr) return;
      store_staged<T::kBytes, kVectors, Slots::kV.has(Variant::kPinsAddress)>(
          row_address(p.residual_out, p.residual_out_upper, index), row_elements<T>(p) * T::kBytes,
          Staged().sum(), place, live);
    }
  }

  StagedInput<T, Tile> x_input;
  std::conditional_t<kAdd, StagedInput<T, Tile>, NotStaged> residual_input;

 private:
  static __device__ __forceinline__ const RowRef& residual_of(const NormParams& p) {
    return kAdd ? p.residual : p.x;
  }
};

// x, or x + residual, at any address.
template <class Slots>
struct AnyInput {
  using T = typename Slots::T;
  static constexpr bool kAdd = Slots::kSource == Source::kAdd;

  __device__ __forceinline__ AnyInput(const NormParams& p, const RowIndex& index)
      : x(row_address(p.x, p.x_upper, index), p.x_align, OperandType::kElement),
        residual(kAdd ? row_address(p.residual, p.residual_upper, index) : nullptr,
                 p.residual_align, static_cast<OperandType>(p.residual_type)) {}

  // The first `count` values of a vector. The others are zero.
  template <Part kPart>
  __device__ __forceinline__ void take(float (&s)[T::kPerVector], int64_t vector, int count) const {
    load_part<kPart, T>(s, x, vector, count);
    if constexpr (kAdd) {
      float r[T::kPerVector];
      load_part<kPart, T>(r, residual, vector, count);
#pragma unroll
      for (int i = 0; i < T::kPerVector; ++i) s[i] = __fadd_rn(s[i], r[i]);
    }
  }

  const AnyRow<T, const char> x, residual;
};

// The row's first element, in all of its threads. LAYER subtracts it before its first sum. In rows
// that one warp holds, one lane has it. Otherwise every thread loads it, so that none waits at a
// barrier.
template <class Slots, class Tile, bool kHeld = true>
struct FirstElement {
  using T = typename Slots::T;
  static constexpr bool kReads = Slots::kStat == Stat::kLayer && !(kHeld && Tile::kOneWarp);
  static constexpr bool kAny = Slots::kAccess == Access::kAny;
  static constexpr bool kAdd = Slots::kSource == Source::kAdd;

  // Before anything of the row is written. The load is complete at value().
  __device__ __forceinline__ void load(const NormParams& p, const RowIndex& index) {
    if constexpr (kReads && kAny) {
      float s[T::kPerVector];
      AnyInput<Slots>(p, index).template take<Part::kShort>(s, 0, 1);
      sum = s[0];
    } else if constexpr (kReads) {
      x = element(row_address(p.x, p.x_upper, index));
      if constexpr (kAdd) residual = element(row_address(p.residual, p.residual_upper, index));
    }
  }

  // In place of load(), of aligned rows: words that begin with the elements.
  __device__ __forceinline__ void give(uint32_t x_word, uint32_t residual_word) {
    x = x_word, residual = residual_word;
  }

  // `first`: the first value that this thread holds, as the statistics use it.
  template <class R>
  __device__ __forceinline__ float value(float first, const R& rounding) const {
    if constexpr (!kReads) return __shfl_sync(~0u, first, 0, Tile::kLanes);
    float s[1][T::kPerVector] = {};
    if constexpr (kAny) {
      s[0][0] = sum;
    } else {
      s[0][0] = unpacked(x);
      if constexpr (kAdd) s[0][0] = __fadd_rn(s[0][0], unpacked(residual));
    }
    if constexpr (kAdd && Slots::kAffine == Affine::kAny) {
      rounding.summed(s[0]);
    } else if constexpr (kAdd) {
      round_row<T>(s, rounding.round_sum);
    }
    return s[0][0];
  }

 private:
  static __device__ __forceinline__ uint32_t element(const char* address) {
    return T::kBytes == 4 ? ptx::ld_global_u32(address) : ptx::ld_global_u16(address);
  }
  static __device__ __forceinline__ float unpacked(uint32_t word) {
    float f[T::kPerWord];
    T::unpack_word(word, f);
    return f[0];
  }

  uint32_t x = 0, residual = 0;
  float sum = 0.0f;
};

template <class Slots, class Tile>
requires(Slots::kAccess == Access::kAny) struct RowSource<Slots, Tile> {
  using T = typename Slots::T;
  using Reach = cuda::Reach<Access::kAny, T, Tile>;

  __device__ __forceinline__ RowSource(const NormParams& p, const RowIndex& index,
                                       const Place<Tile>& row_place, const Reach& row_reach,
                                       uint32_t)
      : input(p, index), place(row_place), reach(row_reach) {}

  // The complete vectors, kV.group at a time. Missing ones are zero. take_short() then takes the
  // partial one.
  __device__ __forceinline__ void take_whole(float (&values)[Tile::kVectors][T::kPerVector]) const {
    constexpr int kGroup = Slots::kV.group;
#pragma unroll
    for (int first = 0; first < Tile::kVectors; first += kGroup) {
      const auto whole = [&](int i) { return reach.whole(first + i); };
      AnyVectors<T, kGroup> x, residual;
      x.load(input.x, place.vector(first), Tile::kStride, whole);
      if constexpr (AnyInput<Slots>::kAdd)
        residual.load(input.residual, place.vector(first), Tile::kStride, whole);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        float(&s)[T::kPerVector] = values[first + i];
        x.take(s, i, input.x.type);
        if constexpr (AnyInput<Slots>::kAdd) {
          float r[T::kPerVector];
          residual.take(r, i, input.residual.type);
#pragma unroll
          for (int k = 0; k < T::kPerVector; ++k) s[k] = __fadd_rn(s[k], r[k]);
        }
      }
    }
  }
  __device__ __forceinline__ void take_short(float (&values)[Tile::kVectors][T::kPerVector]) const {
    if (!reach.has_short()) return;
    float last[T::kPerVector];
    const int v = reach.last_register();
    input.template take<Part::kShort>(last, place.vector(v), reach.last_count());
    put_vector(values, v, last);
  }

  __device__ __forceinline__ void store_sum(const NormParams& p, const RowIndex& index,
                                            const Place<Tile>&, const Reach&,
                                            const float (&s)[Tile::kVectors][T::kPerVector]) const {
    if constexpr (Slots::kSource == Source::kAdd) {
      if (p.residual_out.data == nullptr) return;
      store_row<T>(
          s,
          AnyRow<T, char>(row_address(p.residual_out, p.residual_out_upper, index),
                          p.residual_out_align, static_cast<OperandType>(p.residual_out_type)),
          place, reach);
    }
  }

  const AnyInput<Slots> input;
  const Place<Tile>& place;
  const Reach& reach;
};

}  // namespace fastnorm::cuda
