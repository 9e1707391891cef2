// The common call of a sparse attention's indexer, in the tile of indexer.cuh: keys of a LayerNorm
// with weight and bias of T or f32, and heads without a norm. The first half of a row's columns is
// rotated by rotate-half rope and tables of one axis, then the whole row by a Hadamard matrix
// without signs. Codes of e4m3 with their scale and head weights are all that leaves.
//
// Bytes: x once, and once what leaves. Addresses of a row are a sum.
#pragma once

#include "cuda/norm_heads/indexer.cuh"

namespace fastnorm::cuda {

// The steps of rotate_vectors() in their order: columns of a vector, vectors of neighbouring lanes,
// vectors of a lane. By all lanes of a warp.
template <class S>
__device__ __forceinline__ void rotate_row(float factor, RowValues<S>& z) {
  combine_columns(z);
#pragma unroll
  for (int lanes = 1; lanes < S::kLanes; lanes *= 2) combine_lane(z, lanes);
#pragma unroll
  for (int vectors = 1; vectors < S::kVectors; vectors *= 2) combine_vectors<S>(z, vectors);
#pragma unroll
  for (auto& vector : z) scale_values(vector, factor);
}

// A vector of a key's weight or bias, of T or f32.
template <class T>
__device__ __forceinline__ void load_key_operand(float (&f)[T::kPerVector], OperandType type,
                                                 const char* row, int vector) {
  if (type == OperandType::kElement)
    return T::unpack(ptx::ld_global_v4(row + vector * kVectorBytes), f);
  const char* const at = row + vector * (2 * kVectorBytes);
  as_floats(f, ptx::ld_global_v4(at));
  as_floats(f + 4, ptx::ld_global_v4(at + kVectorBytes));
}

// A key's values before rope.
template <class S>
__device__ __forceinline__ void key_values(RowValues<S>& z, const uint4 (&raw)[S::kVectors],
                                           const HeldPartParams& part, const HeldPlace<S>& place) {
  using T = typename S::T;
  const NoSteps exact;
  float first[S::kPerVector];
  T::unpack(raw[0], first);
  const LayerStatistics statistics =
      layer_statistics(__shfl_sync(~0u, first[0], 0, S::kLanes), part, exact,
                       [&](int, float from, bool steps) -> Moments {
                         const Moments m = moments_of<T>(raw, from, steps, [](int) { return 1; });
                         return {fold_lanes<S::kLanes>(m.sum), fold_lanes<S::kLanes>(m.squares)};
                       });
  const float mean = statistics.mean(), rstd = statistics.rstd(part, exact);
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    float w[S::kPerVector], b[S::kPerVector];
    T::unpack(raw[v], z[v]);
    load_key_operand<T>(w, held_weight_type(part.bits), part.weight, place.vector(v));
    load_key_operand<T>(b, held_bias_type(part.bits), part.bias, place.vector(v));
    normalize_values(z[v], mean, rstd, true, exact);
    apply(z[v], z[v], w, b, part.weight_offset, rstd, exact);
  }
}

// Where what leaves of a row goes: its codes in y's or in the cache, their scale, and its weight.
template <class S>
struct LeanOut {
  __device__ __forceinline__ LeanOut(const HeldPartParams& part, const HeadWeightParams& weights,
                                     const HeldSlot& slot, const HeldPlace<S>& place) {
    if ((part.bits & kHeadsCodesOfY) == 0) {
      const HeldCache cache = cache_of<S>(part, slot);
      codes = cache.row, scales = cache.scales;
    } else {
      codes = part.cache.data + int64_t{place.token} * part.cache.page_stride;
      scales = part.scales.data + int64_t{place.token} * part.scales.page_stride;
    }
    codes += int64_t{place.first} * part.cache.head_stride + place.lane * S::kPerVector;
    scales += int64_t{place.first} * part.scales.head_stride;
    weight_in = address_of(weights.in, place.token, place.first);
    weight_out = address_of(weights.out, place.token, place.first);
  }
  // To that of a head `heads` further on.
  __device__ __forceinline__ void advance(const HeldPartParams& part,
                                          const HeadWeightParams& weights, uint32_t heads) {
    codes += int64_t{heads} * part.cache.head_stride;
    scales += int64_t{heads} * part.scales.head_stride;
    weight_in += int64_t{heads} * weights.in.head_stride;
    weight_out += int64_t{heads} * weights.out.head_stride;
  }

  char *codes, *scales;
  const char* weight_in;
  char* weight_out;
};

// The values of a row, before rope, to what leaves. `weight`: of the head.
template <class S>
__device__ __forceinline__ void put_lean_row(RowValues<S>& z, const float (&c)[S::kPerVector],
                                             const float (&s)[S::kPerVector],
                                             const HeldPartParams& part,
                                             const IndexerPartParams& more,
                                             const HeldPlace<S>& place, float weight,
                                             const auto& out, bool stores) {
  using T = typename S::T;
  constexpr int kPer = S::kPerVector;
  const QuantParams& q = part.quant;
#pragma unroll
  for (int i = 0; i < kPer; ++i) rotate_pair<T>(z[0][i], z[1][i], c[i], s[i], false);
  rotate_row<S>(more.rotation.factor, z);
  const Scale scale = scale_of_row<S>(q, z);
  if (!stores) return;
  const LeanOut<S>& to = out();
  if (place.lane == kScaleLane) ScaleRow(q, to.scales, 0).put(0, scale.bits);
  if (place.lane == kWeightLane && more.weights.out.data != nullptr) {
    const float product = __fmul_rn(weight, scale_value(q, scale.bits));
    ptx::st_global_u32(to.weight_out, __float_as_uint(__fmul_rn(product, more.weights.factor)));
  }
  uint32_t words[S::kVectors][2];
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    scale_values(z[v], scale.inverse);
    make_codes(CodeType::kE4M3, z[v], words[v]);
  }
  constexpr int kNext = S::kLanes * kPer;
  if ((part.bits & kHeadsCodesWide) != 0) {
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) store_codes<kPer>(to.codes + v * kNext, words[v], false);
  } else {
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      ptx::st_global_u32(to.codes + v * kNext, words[v][0]);
      ptx::st_global_u32(to.codes + v * kNext + 4, words[v][1]);
    }
  }
}

// kNorm: the rows are keys, of which a group has one. Other rows are taken one after the other,
// each loaded ahead of the one before.
template <class S, bool kNorm>
__device__ __forceinline__ void run_lean_part(const HeldPartParams& part,
                                              const IndexerPartParams& more,
                                              const HeadsShared& shared, bool triggers) {
  using T = typename S::T;
  constexpr int kPer = S::kPerVector, kStep = S::kLanes * kVectorBytes;
  const HeldPlace<S> place(part, shared);
  const char* from = address_of(part.x, place.token, place.first) + place.lane * kVectorBytes;
  uint4 raw[S::kVectors];
  const auto load = [&](uint4(&row)[S::kVectors], bool exists) {
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      row[v] = make_uint4(0, 0, 0, 0);
      ptx::ld_global_v4_if(row[v], from + v * kStep, exists);
    }
  };
  follow_stream(triggers);
  load(raw, place.exists && place.first < part.heads);
  __syncwarp();  // otherwise these loads are issued behind those that wait for the position
  const HeldSlot slot(shared, place);
  float c[kPer], s[kPer];
  load_angles<T, true>(c, s, shared, HeldRows(table_row(shared, 0, place.token, slot.padding)), 0,
                       part.bits, place.lane * kPer);
  const HeadWeightParams& weights = more.weights;
  const bool weighs = weights.out.data != nullptr && place.lane == kWeightLane;
  const auto weight_of = [&](const char* address, bool stores) {
    return weighs && stores ? load_operand<T>(address, weights.type) : 0.0f;
  };
  RowValues<S> z;
  if constexpr (kNorm) {
    const bool stores = slot.stores && place.first < part.heads;
    const float w = weight_of(address_of(weights.in, place.token, place.first), stores);
    key_values<S>(z, raw, part, place);
    // Addresses are computed behind the values: before, they would take registers.
    put_lean_row<S>(
        z, c, s, part, more, place, w, [&] { return LeanOut<S>(part, weights, slot, place); },
        stores);
  } else {
    LeanOut<S> out(part, weights, slot, place);
    uint32_t head = place.first;
#pragma unroll 1
    for (uint32_t step = 0; step < part.steps; ++step) {
      const bool stores = slot.stores && head < part.heads;
      const float w = weight_of(out.weight_in, stores);
#pragma unroll
      for (int v = 0; v < S::kVectors; ++v) T::unpack(raw[v], z[v]);
      head += part.groups;
      from += int64_t{part.groups} * part.x.head_stride;
      load(raw, place.exists && head < part.heads);
      put_lean_row<S>(
          z, c, s, part, more, place, w, [&]() -> const LeanOut<S>& { return out; }, stores);
      out.advance(part, weights, part.groups);
    }
  }
}

template <class S>
__device__ __forceinline__ void run_lean_indexer(const IndexerParams& p) {
  run_indexed(p, [&]<bool kNorm>(const HeldPartParams& part, const IndexerPartParams& more) {
    run_lean_part<S, kNorm>(part, more, p.shared, p.triggers);
  });
}

}  // namespace fastnorm::cuda
