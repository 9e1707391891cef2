// MLA's tokens: latents that fill the tile, with a norm and without rope, and shorter heads such as
// the rotary key, which are as kBeside has them. Half a warp has a latent, so that neighbouring
// lanes have a block of its columns. Fewer lanes have a shorter head, so that few are idle.
//
// What a call asks for is tested once a row.
#pragma once

#include "cuda/norm_heads/held.cuh"

namespace fastnorm::cuda {

// As held.cuh asks.
template <uint32_t kWord, bool kLong>
struct LatentTileSlots {
  static constexpr NormHeadsVariant kV = heads_variant_of(kWord);
  using T = Element<kV.dtype>;
  static constexpr HeadsTile kTile = tile_of(kV, kLong ? kV.threads* kV.vectors : 0);
  static constexpr bool kApart = false, kBeside = true, kAny = false, kMore = false,
                        kHasScales = kLong;
  static constexpr int kLanes = kTile.lanes, kVectors = kTile.vectors, kGroups = kTile.groups(),
                       kPerVector = T::kPerVector, kPairs = kVectors * kPerVector / 2,
                       kTurned = 0;  // kAny's
};
template <uint32_t kWord>
using LatentSlots = LatentTileSlots<kWord, true>;
template <uint32_t kWord>
using ShortSlots = LatentTileSlots<kWord, false>;

template <class S>
using LatentValues = float[S::kVectors][S::kPerVector];

template <class T, int kVectors, int kPerVector>
__device__ __forceinline__ void round_vectors(float (&z)[kVectors][kPerVector], bool wanted) {
  if (!wanted) return;
#pragma unroll
  for (auto& vector : z) round_to<T>(vector);
}

template <class S>
__device__ __forceinline__ void latent_values(LatentValues<S>& z, const uint4 (&raw)[S::kVectors],
                                              const uint4 (&weight)[S::kVectors],
                                              const HeldPartParams& part) {
  using T = typename S::T;
  const float rstd = held_rstd<S>(raw, part);
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
#pragma unroll
    for (int i = 0; i < S::kPerVector; ++i)
      z[v][i] = __fmul_rn(z[v][i], __fadd_rn(w[i], part.weight_offset));
  }
  round_vectors<T>(z, (part.bits & kHeadsRoundBefore) != 0);
}

// `to`: of this lane's first vector.
template <class S>
__device__ __forceinline__ void put_latent_rows(char* to, const LatentValues<S>& z) {
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v)
    ptx::st_global_v4(to + v * (S::kLanes * kVectorBytes), S::T::pack(z[v]));
}

template <CodeType kType, class S>
__device__ __forceinline__ void put_codes_of_type(char* to, const LatentValues<S>& z) {
  constexpr int kPer = S::kPerVector;
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    uint32_t codes[2];
    make_codes(kType, z[v], codes);
    store_codes<kPer>(to + v * (S::kLanes * kPer), codes, false);
  }
}

// Of values that are already scaled.
template <class S>
__device__ __forceinline__ void put_latent_codes(char* to, CodeType type,
                                                 const LatentValues<S>& z) {
  if (type == CodeType::kE4M3) {
    put_codes_of_type<CodeType::kE4M3, S>(to, z);
  } else if (type == CodeType::kE5M2) {
    put_codes_of_type<CodeType::kE5M2, S>(to, z);
  } else {
    put_codes_of_type<CodeType::kI8, S>(to, z);
  }
}

// Stores the scales of blocks of columns, and multiplies the values by their reciprocals. By all
// lanes of a warp. `scales`: the row's, or null.
template <class S>
__device__ __forceinline__ void scale_latent_blocks(const QuantParams& q, char* scales,
                                                    LatentValues<S>& z, const HeldPlace<S>& place) {
  constexpr int kVectors = S::kVectors, kVectorShift = 3;
  static_assert(S::kPerVector == 1 << kVectorShift);
  const int shift = q.block_shift - kVectorShift, lanes = 1 << shift;
  uint32_t most[kVectors], own[1];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) most[v] = magnitude_bits(z[v]);
  // Each of kVectors neighbours makes the scales of one register's blocks.
  share_out<kVectors>(most, own);
#pragma unroll
  for (int half = kVectors; half < S::kLanes; half *= 2) {
    const uint32_t other = __float_as_uint(__shfl_xor_sync(~0u, __uint_as_float(own[0]), half));
    if (half < lanes) own[0] = greater(own[0], other);
  }
  const Scale scale = free_scale(q, own[0]);
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
  LatentValues<S> z;
  latent_values<S>(z, raw, weight, part);
  if (part.y.data != nullptr && slot.stores)
    put_latent_rows<S>(
        part.y.data + int64_t{place.token} * part.y.token_stride + place.lane * kVectorBytes, z);
  if ((bits & kHeadsCacheCodes) == 0) {
    if (cache.row != nullptr) put_latent_rows<S>(cache.row + place.lane * kVectorBytes, z);
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
    put_latent_codes<S>(cache.row + place.lane * S::kPerVector, part.code_type, z);
}

template <class Long, class Short>
__device__ __forceinline__ void run_latents(const HeldHeadsParams& p) {
  const HeldPartParams& part = part_of_block(p);
  if (part.vectors == Long::kTile.room()) {
    run_latent<Long>(part, p.shared, p.triggers);
  } else {
    run_held_part<Short>(part, p.shared, p.triggers);
  }
}

}  // namespace fastnorm::cuda
