// The heads of a sparse attention's indexer: rows of a power of two of columns that fill the lanes
// which have them, and whose codes have one scale each. Four neighbouring lanes have a row in four
// vectors each, so that rope and two steps of a rotation stay in a lane's registers.
//
// Bytes: x once, and once what leaves. What a call asks for is tested once a row.
#pragma once

#include "cuda/norm/rotation.cuh"
#include "cuda/norm_heads/latent.cuh"

namespace fastnorm::cuda {

// As held.cuh asks.
template <uint32_t kWord>
struct IndexerSlots {
  static constexpr NormHeadsVariant kV = heads_variant_of(kWord);
  using T = Element<kV.dtype>;
  static constexpr bool kMore = false, kHasScales = true;
  static constexpr int kLanes = kV.threads, kVectors = kV.vectors, kGroups = kV.groups(),
                       kPerVector = T::kPerVector;
  static constexpr int kColumns = kVectors * kPerVector;  // of a lane
};

// The angles of a lane's pairs. Those of interleaved columns are those of one vector, then of the
// other one.
template <class S>
struct IndexerAngles {
  float c[S::kPerVector], s[S::kPerVector];

  __device__ __forceinline__ void load(const HeldPartParams& part, const HeadsShared& shared,
                                       const HeldPlace<S>& place, bool padding) {
    using T = typename S::T;
    constexpr int kPer = S::kPerVector, kHalf = kPer / 2;
    const HeldRows rows(shared, place.token, padding);
    if ((part.bits & kHeadsInterleaved) == 0)
      return load_angles<T>(c, s, shared, rows, 0, part.bits, place.lane * kPer);
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      float cosines[kHalf], sines[kHalf];
      load_angles<T>(cosines, sines, shared, rows, 0, part.bits, place.vector(v) * kHalf);
#pragma unroll
      for (int i = 0; i < kHalf; ++i) c[v * kHalf + i] = cosines[i], s[v * kHalf + i] = sines[i];
    }
  }

  // Turns the two vectors of a lane that have columns of the window.
  __device__ __forceinline__ void rotate_two(float (&a)[S::kPerVector], float (&b)[S::kPerVector],
                                             uint32_t bits) const {
    using T = typename S::T;
    constexpr int kPer = S::kPerVector, kHalf = kPer / 2;
    const bool every_step = (bits & kHeadsRopeEveryStep) != 0;
    if ((bits & kHeadsInterleaved) == 0) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) rotate_pair<T>(a[i], b[i], c[i], s[i], every_step);
    } else {
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        rotate_pair<T>(a[2 * i], a[2 * i + 1], c[i], s[i], every_step);
        rotate_pair<T>(b[2 * i], b[2 * i + 1], c[kHalf + i], s[kHalf + i], every_step);
      }
    }
  }
};

// The signs of a lane's columns as bits; 0 where they are 1.
template <class S>
__device__ __forceinline__ uint32_t signs_of(const RotationParams& r, const HeldPlace<S>& place) {
  uint32_t bits = 0;
  if (r.signs == nullptr) return bits;
  static_assert(S::kColumns == 32);
#pragma unroll 1
  for (int i = 0; i < S::kColumns; ++i) {
    const int column = place.vector(i / S::kPerVector) * S::kPerVector + i % S::kPerVector;
    const float sign =
        ptx::ld_global_f32(r.signs + (static_cast<uint64_t>(column) & r.signs_repeat));
    bits |= __float_as_uint(sign) >> 31 << i;
  }
  return bits;
}

// The step of a rotation whose distance is `vectors` vectors of a lane.
template <class S>
__device__ __forceinline__ void combine_vectors(RowValues<S>& z, int vectors) {
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    if ((v & vectors) != 0) continue;
#pragma unroll
    for (int i = 0; i < S::kPerVector; ++i) combine(z[v][i], z[v + vectors][i]);
  }
}

// The steps of rotate_vectors() in their order: columns of a vector, vectors of neighbouring lanes,
// vectors of a lane. By all lanes of a warp.
template <class S>
__device__ __forceinline__ void rotate_head(const RotationParams& r, uint32_t signs,
                                            RowValues<S>& z) {
  constexpr int kPer = S::kPerVector;
  if (r.signs != nullptr) {
#pragma unroll
    for (int i = 0; i < S::kColumns; ++i) flip(z[i / kPer][i % kPer], signs << (31 - i));
  }
  combine_columns(z);
  combine_lanes<S::kLanes, 8>(r, z);
#pragma unroll
  for (int vectors = 1; vectors < S::kVectors; vectors *= 2) {
    if (vectors * S::kLanes * kPer >= r.block) break;
    combine_vectors<S>(z, vectors);
  }
#pragma unroll
  for (auto& vector : z) scale_values(vector, r.factor);
}

// The scale of a row, in all of its lanes.
template <class S>
__device__ __forceinline__ Scale scale_of_row(const QuantParams& q, const RowValues<S>& z) {
  uint32_t most = magnitude_bits(z[0]);
#pragma unroll
  for (int v = 1; v < S::kVectors; ++v) most = greater(most, magnitude_bits(z[v]));
  return free_scale(q, __float_as_uint(fold_lanes<S::kLanes, Greatest>(__uint_as_float(most))));
}

// Which lanes of a row store its scale and its head weight.
inline constexpr int kScaleLane = 0, kWeightLane = 1;

// Rows with a norm are keys, of which a token has one: a group has one row. Others are taken one
// after the other, each loaded ahead of the one before.
template <class S, bool kNorm>
__device__ __forceinline__ void run_indexer_part(const HeldPartParams& part,
                                                 const IndexerPartParams& more,
                                                 const HeadsShared& shared, bool triggers) {
  using T = typename S::T;
  const HeldPlace<S> place(part, shared);
  const uint32_t bits = part.bits;
  const QuantParams& q = part.quant;
  const RotationParams& rotation = more.rotation;
  const bool rotates = (bits & kHeadsRope) != 0,
             weighs = more.weights.out.data != nullptr && place.lane == kWeightLane;
  follow_stream(triggers);

  uint4 next[S::kVectors];
  load_head<S>(next, part, place, place.first);
  const HeldSlot slot(shared, place);
  const HeldCache codes =
      (bits & kHeadsCodesOfY) == 0 ? cache_of<S>(part, slot)
      : !slot.stores               ? HeldCache{nullptr, nullptr}
                     : HeldCache{part.cache.data + int64_t{place.token} * part.cache.page_stride,
                                 part.scales.data + int64_t{place.token} * part.scales.page_stride};
  IndexerAngles<S> angles;
  if (rotates) angles.load(part, shared, place, slot.padding);
  const uint32_t signs = signs_of<S>(rotation, place);
  const float clamp = clamp_of(q);

  uint32_t head = place.first;
#pragma unroll 1
  for (uint32_t step = 0; step < (kNorm ? 1 : part.steps); ++step, head += part.groups) {
    const bool stores = slot.stores && head < part.heads;
    uint4 raw[S::kVectors];
    copy_values(raw, next);
    if (!kNorm && step + 1 < part.steps) load_head<S>(next, part, place, head + part.groups);
    float weight = 0.0f;
    if (weighs && stores)
      weight = load_operand<T>(address_of(more.weights.in, place.token, head), more.weights.type);
    RowValues<S> z;
    if constexpr (kNorm) {
      uint4 factors[S::kVectors];
      load_weights<S>(factors, part, place, head);
      const HeldStatistics statistics = any_statistics<S>(raw, part, place, head, slot.stores);
#pragma unroll
      for (int v = 0; v < S::kVectors; ++v)
        any_values<S>(z[v], raw[v], factors[v], statistics, part, head, place.vector(v), true);
    } else {
#pragma unroll
      for (int v = 0; v < S::kVectors; ++v) T::unpack(raw[v], z[v]);
    }
    if (rotates) {
      if (more.first_rotated == 0) {
        angles.rotate_two(z[0], z[1], bits);
      } else if (more.first_rotated == 1) {
        angles.rotate_two(z[1], z[2], bits);
      } else {
        angles.rotate_two(z[2], z[3], bits);
      }
    }
    char* const y = address_of(part.y, place.token, head) + place.lane * kVectorBytes;
    const bool stores_y = part.y.data != nullptr && stores;
    if (stores_y && !rotation.of_y) put_rows<S>(y, z);
    if (rotation.block != 0) {
      round_vectors<T>(z, q.from_rounded);
      rotate_head<S>(rotation, signs, z);
      if (stores_y && rotation.of_y) put_rows<S>(y, z);
    }
    prepare<T>(q, clamp, z);
    const Scale scale = scale_of_row<S>(q, z);
    if (stores && codes.row != nullptr) {
      if (place.lane == kScaleLane)
        ScaleRow(q, codes.scales + int64_t{head} * part.scales.head_stride, 0).put(0, scale.bits);
      if (weighs)
        put_head_weight(more.weights, place.token, head, weight, scale_value(q, scale.bits));
#pragma unroll
      for (auto& vector : z) scale_values(vector, scale.inverse);
      put_row_codes<S>(
          codes.row + int64_t{head} * part.cache.head_stride + place.lane * S::kPerVector,
          q.code_type, (bits & kHeadsCodesWide) != 0, z);
    }
  }
}

// Runs the part of a block: run.operator()<whether its rows have a norm>(part, more).
template <typename Run>
__device__ __forceinline__ void run_indexed(const IndexerParams& p, const Run& run) {
  const int number = part_number(p);
  const HeldPartParams& part = p.part[number];
  const IndexerPartParams& more = p.more[number];
  if ((part.bits & kHeadsNorm) != 0) {
    run.template operator()<true>(part, more);
  } else {
    run.template operator()<false>(part, more);
  }
}

template <class S>
__device__ __forceinline__ void run_indexer(const IndexerParams& p) {
  run_indexed(p, [&]<bool kNorm>(const HeldPartParams& part, const IndexerPartParams& more) {
    run_indexer_part<S, kNorm>(part, more, p.shared, p.triggers);
  });
}

}  // namespace fastnorm::cuda
