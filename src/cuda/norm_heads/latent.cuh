// MLA's tokens: latents that fill the tile, with a norm and without rope, and shorter heads such as
// the rotary key, which are as kInterleaved has them. Half a warp has a latent, so that
// neighbouring lanes have a block of its columns. Fewer lanes have a shorter head, so that few are
// idle. Two warps have a longer latent, of queries, with codes of y.
//
// What a call asks for is tested once a row.
#pragma once

#include "cuda/norm_heads/held.cuh"

namespace fastnorm::cuda {

// As held.cuh asks, for rows of so many vectors.
template <uint32_t kWord, int kRow>
struct LatentTileSlots {
  static constexpr NormHeadsVariant kV = heads_variant_of(kWord);
  using T = Element<kV.dtype>;
  static constexpr HeadsTile kTile = tile_of(kV, kRow);
  static constexpr bool kRotateHalf = false, kInterleaved = true, kAny = false, kMore = false,
                        kHasScales = kRow != 0;
  static constexpr int kLanes = kTile.lanes, kVectors = kTile.vectors, kGroups = kTile.groups(),
                       kPerVector = T::kPerVector, kPairs = kVectors * kPerVector / 2,
                       kRotated = 0;  // kAny's
};
template <uint32_t kWord>
inline constexpr int kLatentVectors =
    heads_variant_of(kWord).threads* heads_variant_of(kWord).vectors;
template <uint32_t kWord>
using LongLatentSlots = LatentTileSlots<kWord, kLatentVectors<kWord> + 1>;
template <uint32_t kWord>
using LatentSlots = LatentTileSlots<kWord, kLatentVectors<kWord>>;
template <uint32_t kWord>
using ShortSlots = LatentTileSlots<kWord, 0>;

template <class S>
using RowValues = float[S::kVectors][S::kPerVector];

template <class S>
__device__ __forceinline__ void latent_values(RowValues<S>& z, const uint4 (&raw)[S::kVectors],
                                              const uint4 (&weight)[S::kVectors], float rstd,
                                              const HeldPartParams& part) {
  using T = typename S::T;
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    T::unpack(raw[v], z[v]);
    scale_values(z[v], rstd);
  }
  round_vectors<T>(z, (part.bits & kHeadsRoundNormalized) != 0);
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    float w[S::kPerVector];
    T::unpack(weight[v], w);
    weigh_values(z[v], w, part.weight_offset);
  }
  round_vectors<T>(z, (part.bits & kHeadsRoundBefore) != 0);
}

// `to`: of this lane's first vector.
template <class S>
__device__ __forceinline__ void put_rows(char* to, const RowValues<S>& z) {
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v)
    ptx::st_global_v4(to + v * (S::kLanes * kVectorBytes), S::T::pack(z[v]));
}

template <CodeType kType, class S>
__device__ __forceinline__ void put_codes_of_type(char* to, const RowValues<S>& z, bool wide) {
  constexpr int kPer = S::kPerVector;
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    uint32_t codes[2];
    make_codes(kType, z[v], codes);
    char* const at = to + v * (S::kLanes * kPer);
    if (wide) {
      store_codes<kPer>(at, codes, false);
    } else {
      ptx::st_global_u32(at, codes[0]);
      ptx::st_global_u32(at + 4, codes[1]);
    }
  }
}

// Stores codes of values that are already scaled, those of a vector at once or in two halves.
template <class S>
__device__ __forceinline__ void put_row_codes(char* to, CodeType type, bool wide,
                                              const RowValues<S>& z) {
  if (type == CodeType::kE4M3) {
    put_codes_of_type<CodeType::kE4M3, S>(to, z, wide);
  } else if (type == CodeType::kE5M2) {
    put_codes_of_type<CodeType::kE5M2, S>(to, z, wide);
  } else {
    put_codes_of_type<CodeType::kI8, S>(to, z, wide);
  }
}

// Stores the scales of blocks of columns, and multiplies the values by their reciprocals. By all
// lanes of a warp. `scales`: the row's, or null.
template <class S>
__device__ __forceinline__ void scale_latent_blocks(const QuantParams& q, char* scales,
                                                    RowValues<S>& z, const HeldPlace<S>& place) {
  constexpr int kVectors = S::kVectors, kVectorShift = 3;
  static_assert(S::kPerVector == 1 << kVectorShift);
  const int shift = q.block_shift - kVectorShift, lanes = 1 << shift;
  uint32_t most[kVectors], own[1];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) most[v] = magnitude_bits(z[v]);
  // Each of kVectors neighbours makes the scales of one register's blocks.
  share_out<kVectors>(most, own);
  const Scale scale = free_scale(q, greatest_of_lanes<kVectors, S::kLanes>(own[0], lanes));
  if (scales != nullptr && (place.lane & (lanes - 1)) < kVectors)
    ScaleRow(q, scales, 0)
        .put(static_cast<uint32_t>(place.vector(place.lane % kVectors) >> shift), scale.bits);
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
    scale_values(z[v], __shfl_sync(~0u, scale.inverse, v, kVectors));
}

template <class S>
__device__ __forceinline__ void run_latent(const HeldPartParams& part, const HeadsShared& shared,
                                           bool triggers) {
  using T = typename S::T;
  const HeldPlace<S> place(part, shared);
  const uint32_t bits = part.bits;
  follow_stream(triggers);
  uint4 raw[S::kVectors], weight[S::kVectors];
  load_head<S>(raw, part, place, 0);
  load_weights<S>(weight, part, place, 0);
  const HeldSlot slot(shared, place);
  const HeldCache cache = cache_of<S>(part, slot);
  const HeldFactors factors = held_factors<S>(part);
  RowValues<S> z;
  latent_values<S>(z, raw, weight, held_rstd<S>(raw, part), part);
  if (part.y.data != nullptr && slot.stores)
    put_rows<S>(
        part.y.data + int64_t{place.token} * part.y.token_stride + place.lane * kVectorBytes, z);
  if ((bits & kHeadsCacheCodes) == 0) {
    if (cache.row != nullptr) put_rows<S>(cache.row + place.lane * kVectorBytes, z);
    return;
  }
  round_vectors<T>(z, (bits & kHeadsRoundCodes) != 0);
  if ((bits & kHeadsCacheBlocks) != 0) {
    scale_latent_blocks<S>(part.quant, cache.row == nullptr ? nullptr : cache.scales, z, place);
  } else {
#pragma unroll
    for (auto& vector : z) scale_values(vector, factors.cache);
  }
  if (cache.row != nullptr)
    put_row_codes<S>(cache.row + place.lane * S::kPerVector, part.code_type, true, z);
}

// ---- Long latents.

// Folds of the two warps of each row.
struct LongScratch {
  float sums[NormHeadsVariant::kHeldThreads];
  float greatest[NormHeadsVariant::kHeldThreads];
};

// By the canonical tree, in all lanes of a row: its warps, then lanes. By all threads of a block.
template <class Fold, class S>
__device__ __forceinline__ float fold_long(float q,
                                           float (&scratch)[NormHeadsVariant::kHeldThreads],
                                           const HeldPlace<S>& place) {
  static_assert(S::kLanes == 64);
  scratch[threadIdx.x] = q;
  __syncthreads();
  const int first = place.group * S::kLanes + place.lane % 32;
  return fold_lanes<32, Fold>(Fold::of(scratch[first], scratch[first + 32]));
}

// Stores the scales of a row or of its blocks, and makes the values those of codes. By all threads
// of a block. `scales`: the row's, or null.
template <class S>
__device__ __forceinline__ void scale_long(const QuantParams& q, char* scales, RowValues<S>& z,
                                           int vectors, const HeldPlace<S>& place,
                                           LongScratch& scratch) {
  constexpr int kVectorShift = 3;
  static_assert(S::kPerVector == 1 << kVectorShift);
  uint32_t most[S::kVectors];
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v)
    most[v] = place.vector(v) < vectors ? magnitude_bits(z[v]) : 0;
  float factor[S::kVectors];
  if (q.block == 0) {
    uint32_t all = most[0];
#pragma unroll
    for (int v = 1; v < S::kVectors; ++v) all = greater(all, most[v]);
    const float greatest = fold_long<Greatest>(__uint_as_float(all), scratch.greatest, place);
    const Scale scale = free_scale(q, __float_as_uint(greatest));
    if (scales != nullptr && place.lane == 0) ScaleRow(q, scales, 0).put(0, scale.bits);
    fill_values(factor, scale.inverse);
  } else {
    const int shift = q.block_shift - kVectorShift, lanes = 1 << shift;
    // Each of kVectors neighbours makes the scales of one register's blocks.
    uint32_t own[1];
    share_out<S::kVectors>(most, own);
    const Scale scale = free_scale(q, greatest_of_lanes<S::kVectors, 32>(own[0], lanes));
    const int vector = place.vector(place.lane % S::kVectors);
    if (scales != nullptr && (place.lane & (lanes - 1)) < S::kVectors &&
        (vector & -lanes) < vectors)
      ScaleRow(q, scales, 0).put(static_cast<uint32_t>(vector >> shift), scale.bits);
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v)
      factor[v] = __shfl_sync(~0u, scale.inverse, v, S::kVectors);
  }
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) scale_values(z[v], factor[v]);
}

template <class S>
__device__ __forceinline__ void run_long_latent(const HeldPartParams& part,
                                                const HeadsShared& shared, bool triggers) {
  using T = typename S::T;
  auto& scratch = ptx::block_shared<LongScratch>();
  const HeldPlace<S> place(part, shared);
  follow_stream(triggers);
  uint4 raw[S::kVectors], weight[S::kVectors];
  load_head<S>(raw, part, place, 0);
  load_weights<S>(weight, part, place, 0);
  const HeldSlot slot(shared, place);
  const float sum = fold_long<Sum>(squares_of<T>(raw), scratch.sums, place);
  RowValues<S> z;
  latent_values<S>(z, raw, weight, rstd_of(__fmul_rn(sum, part.inv_n), part, NoSteps()), part);
  const int64_t token = place.token;
  const auto stores = [&](int v) { return slot.stores && place.vector(v) < part.vectors; };
  if (part.y.data != nullptr) {
    char* const y = part.y.data + token * part.y.token_stride;
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      if (stores(v)) ptx::st_global_v4(y + place.vector(v) * kVectorBytes, T::pack(z[v]));
    }
  }
  if ((part.bits & kHeadsCodesOfY) == 0) return;
  round_vectors<T>(z, (part.bits & kHeadsRoundCodes) != 0);
  scale_long<S>(part.quant,
                slot.stores ? part.scales.data + token * part.scales.page_stride : nullptr, z,
                part.vectors, place, scratch);
  char* const codes = part.cache.data + token * part.cache.page_stride;
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    uint32_t words[2];
    make_codes(part.quant.code_type, z[v], words);
    if (stores(v))
      store_codes<S::kPerVector>(codes + place.vector(v) * S::kPerVector, words, false);
  }
}

template <class Long, class Latent, class Short>
__device__ __forceinline__ void run_latents(const HeldHeadsParams& p) {
  const HeldPartParams& part = part_of_block(p);
  if (part.vectors == Latent::kTile.room()) {
    run_latent<Latent>(part, p.shared, p.triggers);
  } else if (part.vectors > Latent::kTile.room()) {
    run_long_latent<Long>(part, p.shared, p.triggers);
  } else {
    run_held_part<Short>(part, p.shared, p.triggers);
  }
}

}  // namespace fastnorm::cuda
