// Sink: codes by any scheme with their scales, the greatest magnitude, and y on request.
//
// A row in registers is quantised in passes over its vectors: the greatest magnitude of each, the
// scales, the codes. Each pass tests once what the call asks for. Lanes that share scales compute
// some of them each, and exchange them.
#pragma once

#include "cuda/norm/codes.cuh"
#include "cuda/norm/rotation.cuh"
#include "cuda/norm/store.cuh"

namespace fastnorm::cuda {

// The scale by a rule that needs no other scale.
__device__ __forceinline__ Scale free_scale(const QuantParams& q, uint32_t magnitude) {
  return q.rule == ScaleRule::kPow2 ? pow2_scale(q, magnitude) : quotient_scale(q, magnitude);
}

__device__ __forceinline__ Scale make_scale(const QuantParams& q, uint32_t magnitude,
                                            float static_scale) {
  return q.rule == ScaleRule::kNvfp4 ? Nvfp4Scales(static_scale).make(magnitude)
                                     : free_scale(q, magnitude);
}

// A row's scales in memory.
struct ScaleRow {
  __device__ __forceinline__ ScaleRow(const NormParams& p, uint32_t row_number,
                                      const RowIndex& index)
      : q(p.quant),
        scales(row_address(p.quant.scale, p.quant.scale_upper, index)),
        number(row_number) {}
  __device__ __forceinline__ ScaleRow(const QuantParams& quant, char* row, uint32_t row_number)
      : q(quant), scales(row), number(row_number) {}

  // kByte: the scales are known to be bytes.
  template <bool kByte = false>
  __device__ __forceinline__ void put(uint32_t index, uint32_t bits) const {
    if (!kByte && q.scale_type == ScaleType::kF32) {
      ptx::st_global_u32(scales + index * q.scale_step, bits);
    } else {
      ptx::st_global_u8(
          q.swizzled ? q.scale.data + swizzled(number, index) : scales + index * q.scale_step,
          bits);
    }
  }

  // Tiles of 128 rows x 4 scales: 32 lines of 16 bytes, each with 4 rows that are 32 apart.
  __device__ __forceinline__ int64_t swizzled(uint32_t row, uint32_t index) const {
    const int64_t tile = row / 128 * q.scale_step + index / 4;
    return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + index % 4;
  }

  // Zeroes the padding of swizzled scales: behind the row's scales, and after the last row.
  // `thread` is one of `threads` that share the row.
  __device__ __forceinline__ void pad(int64_t count, uint32_t rows, int thread, int threads) const {
    const int64_t padded = q.scale_step * 4;
    for (int64_t k = count + thread; k < padded; k += threads)
      ptx::st_global_u8(q.scale.data + swizzled(number, k), 0);
    if (number != rows - 1) return;
    for (uint32_t row = rows; row % 128 != 0; ++row) {
      for (int64_t k = thread; k < padded; k += threads)
        ptx::st_global_u8(q.scale.data + swizzled(row, k), 0);
    }
  }

  const QuantParams& q;
  char* const scales;
  const uint32_t number;
};

// Codes of a vector of scaled values at any address: all in one access, or the first `count` one at
// a time.
template <int kPerVector>
__device__ __forceinline__ void put_any_codes(const QuantParams& q, char* codes,
                                              const float (&w)[kPerVector], int64_t vector,
                                              int count) {
  uint32_t words[2];
  make_codes(q.code_type, w, words);
  const bool pairs = q.code_type == CodeType::kE2M1;
  char* const address = codes + vector * (pairs ? kPerVector / 2 : kPerVector);
  if (q.codes_aligned && count >= kPerVector) {
    store_codes<kPerVector>(address, words, pairs);
    return;
  }
  const int left = count < kPerVector ? count : kPerVector, bytes = pairs ? left / 2 : left;
#pragma unroll
  for (int i = 0; i < kPerVector; ++i) {
    if (i < bytes) ptx::st_global_u8(address + i, words[i / 4] >> i % 4 * 8);
  }
}

// The greatest magnitude that a call allows; 0: no limit. Not before the wait: an earlier kernel
// may write it.
__device__ __forceinline__ float clamp_of(const QuantParams& q) {
  if (q.clamp_scale == nullptr) return q.clamp;
  const float clamp = ptx::ld_global_f32(q.clamp_scale);
  return clamp > 0.0f ? clamp : 0.0f;
}

// The values to be quantised: rounded if the call asks for it, and clamped. NaN stays NaN.
template <class T, int kVectors>
__device__ __forceinline__ void prepare(const QuantParams& q, float clamp,
                                        float (&z)[kVectors][T::kPerVector]) {
  if (q.from_rounded) {
#pragma unroll
    for (auto& vector : z) {
#pragma unroll
      for (float& value : vector) value = T::round(value);
    }
  } else {
    ptx::keep_branch();
  }
  if (clamp != 0.0f) {
#pragma unroll
    for (auto& vector : z) {
#pragma unroll
      for (float& value : vector) value = ptx::max_nan(ptx::min_nan(value, clamp), -clamp);
    }
  } else {
    ptx::keep_branch();
  }
}

template <class T>
__device__ __forceinline__ void prepare(const QuantParams& q, float clamp,
                                        float (&z)[T::kPerVector]) {
  float one[1][T::kPerVector];
  copy_values(one[0], z);
  prepare<T>(q, clamp, one);
  copy_values(z, one[0]);
}

// Raises the f32 in memory. In any order of rows the greatest bits win. A value with the sign set
// is below all. All lanes of a warp must call it.
__device__ __forceinline__ void raise_amax(const QuantParams& q, uint32_t most) {
  most = ptx::warp_greatest(most);
  if (threadIdx.x % 32 == 0 &&
      static_cast<int32_t>(ptx::ld_global_u32(q.amax)) < static_cast<int32_t>(most)) {
    ptx::red_max_global_s32(q.amax, static_cast<int32_t>(most));
  }
}

template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void put_y(const NormParams& p,
                                      const float (&z)[Tile::kVectors][Slots::T::kPerVector],
                                      const RowIndex& index, const Place<Tile>& place,
                                      const Reach& reach) {
  using T = typename Slots::T;
  const RowSink<Sink::kStore, Slots::kAccess, T> sink(p, index);
  if constexpr (Slots::kAccess == Access::kVector) {
#pragma unroll
    for (int v = 0; v < Tile::kVectors; ++v)
      sink.put(z[v], static_cast<uint32_t>(place.vector(v)), reach.stores(v));
  } else {
    store_row<T>(z, sink.y, place, reach);
  }
}

// Multiplies the results by their signs. Where all blocks have the same ones, a thread's vectors
// share them, as the steps between its vectors are multiples of a block. It holds four of them at a
// time: more would take registers that hold the row.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void take_row_signs(const RotationParams& r,
                                               float (&z)[Tile::kVectors][Slots::T::kPerVector],
                                               const Place<Tile>& place, const Reach& reach) {
  constexpr int kPerVector = Slots::T::kPerVector, kStep = Tile::kStride * kPerVector;
  static_assert(kStep % kMostRotated == 0);
  if (r.signs_repeat < kStep) {
#pragma unroll
    for (int i = 0; i < kPerVector; i += 4) {
      const uint4 signs = load_signs(r, static_cast<uint32_t>(place.first * kPerVector + i));
#pragma unroll
      for (auto& vector : z) flip_four(vector + i, signs);
    }
  } else {
#pragma unroll
    for (int v = 0; v < Tile::kVectors; ++v) {
      if (reach.has(v)) {
#pragma unroll
        for (int i = 0; i < kPerVector; i += 4)
          flip_four(z[v] + i,
                    load_signs(r, static_cast<uint32_t>(place.vector(v) * kPerVector + i)));
      }
    }
  }
}

// Rotates the results. Before that y is stored, unless it is rotated, too.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void rotate_row(const NormParams& p,
                                           float (&z)[Tile::kVectors][Slots::T::kPerVector],
                                           const RowIndex& index, const Place<Tile>& place,
                                           const Reach& reach) {
  constexpr bool kLean = Slots::kFlavour != Flavour::kGeneral;
  const RotationParams& r = static_cast<const NormCallParams&>(p).rotation;
  if (!kLean && p.y.data != nullptr && !r.of_y) put_y<Slots, Tile>(p, z, index, place, reach);
  if (!kLean && p.quant.from_rounded) round_row<typename Slots::T>(z, true);
  if (r.signs != nullptr) take_row_signs<Slots, Tile>(r, z, place, reach);
  rotate_vectors(r, z);
}

// Work of few calls: y, values that are rounded or clamped first, and the greatest magnitude of
// all.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void put_beside(const NormParams& p,
                                           float (&z)[Tile::kVectors][Slots::T::kPerVector],
                                           const RowIndex& index, const Place<Tile>& place,
                                           const Reach& reach) {
  using T = typename Slots::T;
  bool has_y = p.y.data != nullptr;
  if constexpr (Slots::kV.has(Variant::kRotates))
    has_y = has_y && static_cast<const NormCallParams&>(p).rotation.of_y;
  if (has_y) put_y<Slots, Tile>(p, z, index, place, reach);
  prepare<T>(p.quant, clamp_of(p.quant), z);
  if (p.quant.amax != nullptr) {
    uint32_t most = 0;
#pragma unroll
    for (int v = 0; v < Tile::kVectors; ++v) {
      // Rows that do not exist repeat row 0. Its residual may already have been replaced by x +
      // residual, so amax must not count them.
      if (reach.stores(v)) most = greater(most, magnitude_bits(z[v]));
    }
    raise_amax(p.quant, most);
  }
}

// The greatest magnitude of each vector's block. A block has `lanes` vectors, a power of two. They
// are in neighbouring lanes and, in tiles with fewer lanes, in registers.
template <class Tile, int kVectors>
__device__ __forceinline__ void fold_blocks(uint32_t (&most)[kVectors], int lanes) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int half = 1; half < Tile::kLanes; half *= 2) {
      if (half < lanes) {
        const float other = __shfl_xor_sync(~0u, __uint_as_float(most[v]), half);
        most[v] = greater(most[v], __float_as_uint(other));
      }
    }
  }
  if constexpr (Tile::kRowsShareWarp) {
#pragma unroll
    for (int half = 1; half < kVectors; half *= 2) {
      if (lanes > half * Tile::kLanes) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          if ((v & half) == 0 && v + half < kVectors)
            most[v] = most[v + half] = greater(most[v], most[v + half]);
        }
      }
    }
  }
}

// The lanes of each group of kSplit share their vectors. Lane l gets the greatest, over those
// lanes, of vectors l, l + kSplit and so on. In the first step its lowest digit selects half of
// them. Each vector that a lane gives away takes an exchange.
template <int kSplit, int kVectors>
__device__ __forceinline__ void share_out(const uint32_t (&most)[kVectors],
                                          uint32_t (&own)[(kVectors + kSplit - 1) / kSplit]) {
  uint32_t m[kVectors + 1];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) m[v] = most[v];
  int count = kVectors;
#pragma unroll
  for (int half = 1; half < kSplit; half *= 2) {
    const bool upper = (threadIdx.x & half) != 0;
    if (count % 2 != 0) m[count] = 0;
    count = (count + 1) / 2;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const uint32_t keep = upper ? m[2 * i + 1] : m[2 * i], give = upper ? m[2 * i] : m[2 * i + 1];
      m[i] = greater(keep, __float_as_uint(__shfl_xor_sync(~0u, __uint_as_float(give), half)));
    }
  }
#pragma unroll
  for (int i = 0; i < (kVectors + kSplit - 1) / kSplit; ++i) own[i] = m[i];
}

// The scales of blocks of `lanes` vectors, at least kLeastLanes. They are stored. Returns the
// factors of each vector's codes.
template <class Tile, int kLeastLanes, bool kByte, class Make>
__device__ __forceinline__ void scale_blocks(const NormParams& p,
                                             const uint32_t (&most)[Tile::kVectors],
                                             float (&inverse)[Tile::kVectors], int shift,
                                             const ScaleRow& scales, const Place<Tile>& place,
                                             bool live, const Make& make) {
  constexpr int kVectors = Tile::kVectors;
  constexpr int kSplit =
      power_of_two_up(kVectors) < kLeastLanes ? power_of_two_up(kVectors) : kLeastLanes;
  constexpr int kOwn = (kVectors + kSplit - 1) / kSplit;
  const int lanes = 1 << shift;
  uint32_t own[kOwn];
  share_out<kSplit>(most, own);
#pragma unroll
  for (int half = kSplit; half < 32; half *= 2) {
    if (half >= lanes) break;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float other = __shfl_xor_sync(~0u, __uint_as_float(own[i]), half);
      own[i] = greater(own[i], __float_as_uint(other));
    }
  }
  const int mine = place.lane % kSplit;
  const bool stores = live && (place.lane & (lanes - 1)) < kSplit;
  float factor[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const Scale scale = make(own[i]);
    const int v = i * kSplit + mine, vector = place.vector(v);
    if (stores && v < kVectors && (vector & -lanes) < p.vectors)
      scales.put<kByte>(vector >> shift, scale.bits);
    factor[i] = scale.inverse;
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    inverse[v] = kSplit == 1 ? factor[v] : __shfl_sync(~0u, factor[v / kSplit], v % kSplit, kSplit);
  }
}

// All scales of a row from the greatest magnitudes of its vectors. They are stored. Returns the
// factors of each vector's codes.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void make_scales(const NormParams& p, uint32_t (&most)[Tile::kVectors],
                                            float (&inverse)[Tile::kVectors], float static_scale,
                                            const ScaleRow& scales, const Place<Tile>& place,
                                            const Reach& reach, FoldScratch<Tile>& scratch) {
  constexpr int kVectors = Tile::kVectors, kPerVector = Slots::T::kPerVector;
  const QuantParams& q = p.quant;
  if (q.block == 0) {
    uint32_t greatest = most[0];
#pragma unroll
    for (int v = 1; v < kVectors; ++v) greatest = greater(greatest, most[v]);
    const Scale scale = free_scale(q, greatest_of_row(greatest, scratch, place));
    if (place.leads_row() && reach.live) scales.put(0, scale.bits);
    fill_values(inverse, scale.inverse);
    return;
  }
  constexpr int kVectorShift = kPerVector == 8 ? 3 : 2;
  const int shift = q.block_shift - kVectorShift;
  if constexpr (Tile::kRowsShareWarp) {
    fold_blocks<Tile>(most, 1 << shift);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int vector = place.vector(v);
      const Scale scale = make_scale(q, most[v], static_scale);
      if (reach.stores(v) && (vector & ((1 << shift) - 1)) == 0)
        scales.put(vector >> shift, scale.bits);
      inverse[v] = scale.inverse;
    }
  } else if (q.rule == ScaleRule::kNvfp4) {
    const Nvfp4Scales nvfp4(static_scale);
    scale_blocks<Tile, 16 / kPerVector, Slots::kFlavour != Flavour::kGeneral>(
        p, most, inverse, 4 - kVectorShift, scales, place, reach.live,
        [&](uint32_t magnitude) { return nvfp4.make(magnitude); });
  } else {
    scale_blocks<Tile, 32 / kPerVector, false>(
        p, most, inverse, shift, scales, place, reach.live,
        [&](uint32_t magnitude) { return free_scale(q, magnitude); });
  }
}

// The codes of vectors. Only pairs of codes use `most`. kScaled: z is already scaled, except for
// pairs. Unaligned rows go through shared memory, as y does.
template <CodeType kType, bool kScaled, class Slots, class Tile, class Reach>
__device__ __forceinline__ void put_codes(char* codes,
                                          float (&z)[Tile::kVectors][Slots::T::kPerVector],
                                          const uint32_t (&most)[Tile::kVectors],
                                          const float (&inverse)[Tile::kVectors],
                                          const Place<Tile>& place, const Reach& reach) {
  constexpr bool kPairs = kType == CodeType::kE2M1;
  constexpr int kPerVector = Slots::T::kPerVector, kBytes = kPairs ? kPerVector / 2 : kPerVector;
  constexpr bool kSoftware = kPairs && !ptx::kConvertsE2m1;
  char* const address = codes + static_cast<uint32_t>(place.first * kBytes);
  // A value of 7 or more, or NaN, is rare. In that case the values are changed first.
  const auto is_below_7 = [&](int v) {
    return fabsf(__fmul_rn(__uint_as_float(most[v]), inverse[v])) < 7.0f;
  };
  const auto clamp = [&](int v) {
#pragma unroll
    for (float& value : z[v]) {
      const float w = __fmul_rn(value, inverse[v]);
      value = w < -6.0f ? -6.0f : w < 6.0f ? w : 6.0f;
    }
    return 1.0f;
  };
  // One test per thread, if there are registers for it.
  constexpr bool kTogether = kSoftware && Slots::kV.has(Variant::kClampsTogether);
  float together[kTogether ? Tile::kVectors : 1];
  if constexpr (kTogether) {
    bool below_7 = true;
#pragma unroll
    for (int v = 0; v < Tile::kVectors; ++v) {
      together[v] = inverse[v];
      below_7 = below_7 && is_below_7(v);
    }
    if (!below_7) {
#pragma unroll
      for (int v = 0; v < Tile::kVectors; ++v) together[v] = clamp(v);
    }
  }
#pragma unroll
  for (int v = 0; v < Tile::kVectors; ++v) {
    uint32_t words[2];
    float factor = kTogether ? together[kTogether ? v : 0] : inverse[v];
    if constexpr (kSoftware) {
      if (!kTogether && !is_below_7(v)) factor = clamp(v);
      words[0] = ptx::to_e2m1_below_7(z[v], factor), words[1] = 0;
    } else {
      if constexpr (kPairs || !kScaled) scale_values(z[v], factor);
      make_codes(kType, z[v], words);
    }
    if (reach.stores(v)) {
      store_codes<kPerVector>(address + v * (Tile::kStride * kBytes), words, kPairs);
    }
  }
}

// The scaled values of 8-bit codes, in place of z. Quotients are computed vector by vector in a
// loop. Few calls ask for them, and unrolled they would be a tenth of the kernel.
template <class Tile, int kPerVector>
__device__ __forceinline__ void scale_row(const QuantParams& q,
                                          float (&z)[Tile::kVectors][kPerVector],
                                          const float (&inverse)[Tile::kVectors]) {
  if (q.code_type == CodeType::kE2M1) return;
  if (__builtin_expect(q.divides, 0)) {
#pragma unroll 1
    for (int v = 0; v < Tile::kVectors; ++v) {
      float w[kPerVector], scale = inverse[0];
      pick_vector(w, z, v);
#pragma unroll
      for (int i = 1; i < Tile::kVectors; ++i) scale = i == v ? inverse[i] : scale;
      divide_values(w, scale);
      put_vector(z, v, w);
    }
  } else {
#pragma unroll
    for (int v = 0; v < Tile::kVectors; ++v) scale_values(z[v], inverse[v]);
  }
}

// Codes and scales of a row whose results are in registers. It overwrites z.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void quantize_in_registers(
    const NormParams& p, float (&z)[Tile::kVectors][Slots::T::kPerVector], float static_scale,
    const RowIndex& index, const Place<Tile>& place, const Reach& reach,
    FoldScratch<Tile>& scratch) {
  constexpr int kVectors = Tile::kVectors;
  const QuantParams& q = p.quant;
  if constexpr (Slots::kV.has(Variant::kRotates))
    rotate_row<Slots, Tile>(p, z, index, place, reach);
  if (Slots::kFlavour == Flavour::kGeneral && q.wants_extras) {
    put_beside<Slots>(p, z, index, place, reach);
  } else {
    ptx::keep_branch();
  }
  if (q.rule == ScaleRule::kNoCodes) return;
  uint32_t most[kVectors];
  float inverse[kVectors];
  if (q.rule == ScaleRule::kStatic) {
    const float factor = q.divides ? static_scale : __frcp_rn(static_scale);
    fill_values(inverse, factor);
  } else {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      most[v] = magnitude_bits(z[v]);
      if ((Reach::kEvery || v == kVectors - 1) && !reach.has(v)) most[v] = 0;
    }
    make_scales<Slots>(p, most, inverse, static_scale,
                       ScaleRow(p, reach.live ? place.row_again() : 0, index), place, reach,
                       scratch);
  }
  constexpr bool kScaled = Slots::kFlavour == Flavour::kGeneral && Slots::kAccess != Access::kAny;
  if constexpr (kScaled) scale_row<Tile>(q, z, inverse);
  char* const codes = row_address(q.codes, q.codes_upper, index);
  if constexpr (Slots::kAccess == Access::kAny) {
#pragma unroll 1
    for (int v = 0; v < kVectors && reach.stores(v); ++v) {
      float w[Slots::T::kPerVector], factor = inverse[0];
      pick_vector(w, z, v);
#pragma unroll
      for (int i = 1; i < kVectors; ++i) factor = i == v ? inverse[i] : factor;
      if (q.divides) {
        divide_values(w, factor);
      } else {
        scale_values(w, factor);
      }
      put_any_codes(q, codes, w, place.vector(v), reach.count(v));
    }
  } else if (q.code_type == CodeType::kE4M3) {
    put_codes<CodeType::kE4M3, kScaled, Slots>(codes, z, most, inverse, place, reach);
  } else if (q.code_type == CodeType::kE2M1) {
    put_codes<CodeType::kE2M1, kScaled, Slots>(codes, z, most, inverse, place, reach);
  } else if (q.code_type == CodeType::kI8) {
    put_codes<CodeType::kI8, kScaled, Slots>(codes, z, most, inverse, place, reach);
  } else {
    put_codes<CodeType::kE5M2, kScaled, Slots>(codes, z, most, inverse, place, reach);
  }
  // After the row has left its registers.
  if (q.swizzled && reach.live) {
    const uint32_t row = place.row_again();
    ScaleRow(p, row, row_index(p, row, p.bits_again))
        .pad((p.n + q.block - 1) >> q.block_shift, p.rows, place.first, Tile::kStride);
  }
}

}  // namespace fastnorm::cuda
