// The quantising sink: a row's results to codes and their scales. The formulas are those of include/fastnorm/norm.h.
//
// A row in registers is quantised in passes over its vectors: the greatest magnitude of each, the scales, the codes. What the call asks
// for is looked at once a pass, not once a vector. Of the lanes that share scales each makes and stores some, and hands them to the
// others. The greatest magnitude is taken as the bits of |z|, whose order is that of the magnitudes with NaN above all, so no order of
// threads shows in it.
#pragma once

#include "cuda/common/ptx/convert.cuh"
#include "cuda/norm/parts.cuh"

namespace fastnorm::cuda {

inline constexpr uint32_t kInfBits = 0x7f800000, kMagnitude = 0x7fffffff;

__device__ __forceinline__ uint32_t greater(uint32_t a, uint32_t b) { return a > b ? a : b; }

template <int kCount>
__device__ __forceinline__ uint32_t magnitude_bits(const float (&z)[kCount]) {
  float most = ptx::max_nan(fabsf(z[0]), fabsf(z[1]));
#pragma unroll
  for (int i = 2; i < kCount; ++i) most = ptx::max_nan(most, fabsf(z[i]));
  return __float_as_uint(most);
}

// amax / greatest, correctly rounded, for amax of 2^-100 and more, Inf or NaN, and 1 / greatest rounded to nearest. One step on the exact
// remainder (the check is exhaustive over all significands and the three divisors).
__device__ __forceinline__ float divide_by_greatest(float amax, float greatest, float inverse) {
  const float q = __fmul_rn(amax, inverse);
  const float exact = __fmaf_rn(__fmaf_rn(-q, greatest, amax), inverse, q);
  return (__float_as_uint(amax) & kMagnitude) >= kInfBits ? amax : exact;
}

// 1 / scale, correctly rounded, for a scale of magnitude in [2^-126, 2^126] or NaN.
__device__ __forceinline__ float inverse_in_range(float scale) {
  const float q = ptx::rcp_approx(scale);
  return __fmaf_rn(q, __fmaf_rn(-q, scale, 1.0f), q);
}

// The same for Inf, too.
__device__ __forceinline__ float inverse_of_scale(float scale) {
  const float exact = inverse_in_range(scale);
  return (__float_as_uint(scale) & kMagnitude) >= kInfBits ? ptx::rcp_approx(scale) : exact;
}

// 2^(byte - 127), the value of an e8m0 that is not NaN.
__device__ __forceinline__ float from_e8m0(uint32_t byte) {
  return __uint_as_float(byte == 0 ? 0x00400000 : byte << 23);
}

// The codes of one vector of scaled values, as bytes in order. Where the type is a constant, so is the branch.
template <int kPerVector>
__device__ __forceinline__ void make_codes(CodeType type, const float (&w)[kPerVector],
                                           uint32_t (&words)[2]) {
  words[0] = words[1] = 0;
  if (type == CodeType::kE4M3) {
#pragma unroll
    for (int i = 0; i < kPerVector; i += 2)
      words[i / 4] |= ptx::cvt_e4m3x2(w[i], w[i + 1]) << i % 4 * 8;
  } else if (type == CodeType::kE5M2) {
#pragma unroll
    for (int i = 0; i < kPerVector; i += 2)
      words[i / 4] |= ptx::cvt_e5m2x2(w[i], w[i + 1]) << i % 4 * 8;
  } else if (type == CodeType::kI8) {
#pragma unroll
    for (int i = 0; i < kPerVector; i += 4)
      words[i / 4] = ptx::cvt_s8x4(w[i], w[i + 1], w[i + 2], w[i + 3]);
  } else {
#pragma unroll
    for (int i = 0; i < kPerVector; i += 2) words[0] |= ptx::cvt_e2m1x2(w[i], w[i + 1]) << 4 * i;
  }
}

template <int kCount>
__device__ __forceinline__ void scale_values(float (&z)[kCount], float inverse) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) z[i] = __fmul_rn(z[i], inverse);
}

// A scale's bits, in its type, and the factor that codes are made with.
struct Scale {
  uint32_t bits;
  float inverse;
};

// max(A, amax_floor) / QMAX.
__device__ __forceinline__ Scale quotient_scale(const QuantParams& q, uint32_t magnitude) {
  const uint32_t amax = greater(magnitude, __float_as_uint(q.amax_floor));
  const float value = divide_by_greatest(__uint_as_float(amax), q.greatest, q.inverse_greatest);
  return {__float_as_uint(value), inverse_of_scale(value)};
}

// The least 2^E with A <= 1.75 * 2^(k + E), for E in [-127, 127]; 1.75 * 2^k is the greatest code. The addition carries into the exponent
// where the fraction is above 0.75.
__device__ __forceinline__ Scale pow2_scale(const QuantParams& q, uint32_t magnitude) {
  const uint32_t amax = greater(magnitude, __float_as_uint(q.amax_floor));
  const int least = static_cast<int>((amax + 0x1fffff) >> 23) - q.greatest_exponent;
  uint32_t byte = least < 0 ? 0 : least;  // E + 127
  float inverse = __uint_as_float((254 - byte) << 23);
  if (amax >= kInfBits) {
    const bool nan = amax > kInfBits;
    byte = nan ? 255 : 254;
    inverse = __uint_as_float(nan ? amax : 0x00400000);
  }
  if (q.scale_type == ScaleType::kE8M0) return {byte, inverse};
  return {amax > kInfBits ? amax : __float_as_uint(from_e8m0(byte)), inverse};
}

// A / (6 * global_scale), rounded to e4m3.
struct Nvfp4Scales {
  __device__ __forceinline__ explicit Nvfp4Scales(float global_scale) {
    global = global_scale;
    factor = __fmul_rn(__frcp_rn(global), 1.0f / 6.0f);
    // Then so is its product with any scale but 0, [2^-9, 448], in [2^-126, 2^126].
    usual = fabsf(global) > 0x1p-100f && fabsf(global) < 0x1p100f;
  }

  __device__ __forceinline__ Scale make(uint32_t magnitude) const {
    const uint32_t code =
        ptx::cvt_e4m3x2(__fmul_rn(__uint_as_float(magnitude), factor), 0.0f) & 0xff;
    const float value = ptx::from_e4m3(code & 0x7f), whole = __fmul_rn(value, global);
    float inverse;
    if (usual) {
      inverse = inverse_in_range(whole);
    } else {
      inverse = __frcp_rn(whole);
      inverse = inverse > 0x1.fffffep127f ? 0x1.fffffep127f : inverse;
    }
    return {code, value == 0.0f ? 0.0f : inverse};
  }

  float global, factor;
  bool usual;
};

// By a rule that takes no scale.
__device__ __forceinline__ Scale free_scale(const QuantParams& q, uint32_t magnitude) {
  return q.rule == ScaleRule::kPow2 ? pow2_scale(q, magnitude) : quotient_scale(q, magnitude);
}

__device__ __forceinline__ Scale make_scale(const QuantParams& q, uint32_t magnitude, float given) {
  return q.rule == ScaleRule::kNvfp4 ? Nvfp4Scales(given).make(magnitude)
                                     : free_scale(q, magnitude);
}

// A row's scales in memory.
struct ScaleRow {
  __device__ __forceinline__ ScaleRow(const NormParams& p, uint32_t row_number,
                                      const RowIndex& index)
      : q(p.quant),
        scales(row_address(p.quant.scale, p.quant.scale_upper, index)),
        number(row_number) {}

  // kByte: of a type that is known to be one.
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

  // Zeroes the padding of swizzled scales, behind the row's own and after the last row; `thread` of `threads` that share the row.
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

// Stores the codes of one vector, all at once: 8, 4 or 2 bytes.
template <int kPerVector>
__device__ __forceinline__ void store_codes(char* address, const uint32_t (&words)[2], bool pairs) {
  if constexpr (kPerVector == 8) {
    if (pairs) {
      ptx::st_global_u32(address, words[0]);
    } else {
      ptx::st_global_v2(address, make_uint2(words[0], words[1]));
    }
  } else {
    if (pairs) {
      ptx::st_global_u16(address, words[0]);
    } else {
      ptx::st_global_u32(address, words[0]);
    }
  }
}

// Codes of a vector of scaled values at any access: all at once, or the first `count` of them one by one.
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

// What is quantised of results: rounded where that is asked for, and clamped (NaN stays).
template <class T, int kVectors>
__device__ __forceinline__ void prepare(const QuantParams& q, float (&z)[kVectors][T::kPerVector]) {
  if (q.from_rounded) {
#pragma unroll
    for (auto& vector : z) {
#pragma unroll
      for (float& value : vector) value = T::round(value);
    }
  } else {
    ptx::keep_branch();
  }
  if (q.clamp != 0.0f) {
#pragma unroll
    for (auto& vector : z) {
#pragma unroll
      for (float& value : vector) value = ptx::max_nan(ptx::min_nan(value, q.clamp), -q.clamp);
    }
  } else {
    ptx::keep_branch();
  }
}

template <class T>
__device__ __forceinline__ void prepare(const QuantParams& q, float (&z)[T::kPerVector]) {
  float one[1][T::kPerVector];
#pragma unroll
  for (int i = 0; i < T::kPerVector; ++i) one[0][i] = z[i];
  prepare<T>(q, one);
#pragma unroll
  for (int i = 0; i < T::kPerVector; ++i) z[i] = one[0][i];
}

// Zeroes what is past the row's end.
template <int kCount>
__device__ __forceinline__ void clear_from(float (&z)[kCount], int count) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) z[i] = i < count ? z[i] : 0.0f;
}

// ---- Codes of one type of 8 bits by one scale, of whole vectors, and nothing else: what most calls ask for has no branches.

// `run`: the codes of vectors that lie side by side, which the last of them stores together.
template <class T, CodeType kType, class Sink, class Tile>
__device__ __forceinline__ void put_static(float (&z)[T::kPerVector], float inverse,
                                           const Sink& sink, int v, const Place<Tile>& place,
                                           bool stores, uint4& run) {
  uint32_t words[2];
  scale_values(z, inverse);
  make_codes(kType, z, words);
  if constexpr (Tile::kRun == 1) {
    if (stores)
      store_codes<T::kPerVector>(place.template address<T::kPerVector>(sink.codes, v), words,
                                 false);
  } else if (v % 2 == 0) {
    run.x = words[0], run.y = words[1];
  } else {
    run.z = words[0], run.w = words[1];
    if (stores) ptx::st_global_v4(place.template address<T::kPerVector>(sink.codes, v - 1), run);
  }
}

// ---- Codes and scales of a row in registers.

// Raises the f32 in memory; in any order of rows the greatest bits win, and what has its sign set is below all. All lanes of a warp.
__device__ __forceinline__ void raise_amax(const QuantParams& q, uint32_t most) {
  most = ptx::warp_greatest(most);
  if (threadIdx.x % 32 == 0 &&
      static_cast<int32_t>(ptx::ld_global_u32(q.amax)) < static_cast<int32_t>(most)) {
    ptx::red_max_global_s32(q.amax, static_cast<int32_t>(most));
  }
}

// What few calls ask for beside codes and scales: y, values that are rounded or clamped first, and the greatest magnitude of all.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void put_beside(const NormParams& p,
                                           float (&z)[Tile::kVectors][Slots::T::kPerVector],
                                           const RowIndex& index, const Place<Tile>& place,
                                           const Reach& reach) {
  using T = typename Slots::T;
  if (p.y.data != nullptr) {
    const RowSink<Sink::kStore, Slots::kAccess, T> sink(p, index);
    if constexpr (Slots::kAccess == Access::kVector) {
#pragma unroll
      for (int v = 0; v < Tile::kVectors; ++v)
        sink.put(z[v], static_cast<uint32_t>(place.vector(v)), reach.stores(v));
    } else if constexpr (Slots::kAccess == Access::kUneven) {
#pragma unroll
      for (int v = 0; v < Tile::kVectors; ++v) put_staged<Slots, Tile>(T::pack(z[v]), v, place);
      store_results<Slots, Tile>(p, index, place, reach);
      sync_row<Tile>();  // codes come to the same place
    } else {
      store_row<T>(z, sink.y, place, reach);
    }
  }
  prepare<T>(p.quant, z);
  if (p.quant.amax != nullptr) {
    uint32_t most = 0;
#pragma unroll
    for (int v = 0; v < Tile::kVectors; ++v) {
      // Rows that do not exist repeat row 0, whose residual may have been replaced by its sum already: amax must not see them.
      if (reach.stores(v)) most = greater(most, magnitude_bits(z[v]));
    }
    raise_amax(p.quant, most);
  }
}

// The greatest magnitude of each vector's block of `lanes` vectors (a power of two), where a block's vectors are neighbouring lanes and,
// in tiles of fewer lanes, registers.
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
  if constexpr (Tile::kLanes < 32) {
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

// The lanes of each kSplit share out their vectors: lane l gets the greatest over those lanes of vectors l, l + kSplit and so on, the
// half of them that its lowest digit says in the first step, with an exchange for each that it gives away.
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

// The scales of blocks of `lanes` vectors, at least kLeastLanes: stored, and the factors of each vector's codes.
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

// All scales of a row from its vectors' greatest magnitudes: stored, and the factors of each vector's codes.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void make_scales(const NormParams& p, uint32_t (&most)[Tile::kVectors],
                                            float (&inverse)[Tile::kVectors], float given,
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
#pragma unroll
    for (float& f : inverse) f = scale.inverse;
    return;
  }
  constexpr int kVectorShift = kPerVector == 8 ? 3 : 2;
  const int shift = q.block_shift - kVectorShift;
  if constexpr (Tile::kLanes < 32) {
    fold_blocks<Tile>(most, 1 << shift);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int vector = place.vector(v);
      const Scale scale = make_scale(q, most[v], given);
      if (reach.stores(v) && (vector & ((1 << shift) - 1)) == 0)
        scales.put(vector >> shift, scale.bits);
      inverse[v] = scale.inverse;
    }
  } else if (q.rule == ScaleRule::kNvfp4) {
    const Nvfp4Scales nvfp4(given);
    scale_blocks<Tile, 16 / kPerVector, Slots::kBeside != Beside::kAny>(
        p, most, inverse, 4 - kVectorShift, scales, place, reach.live,
        [&](uint32_t magnitude) { return nvfp4.make(magnitude); });
  } else {
    scale_blocks<Tile, 32 / kPerVector, false>(
        p, most, inverse, shift, scales, place, reach.live,
        [&](uint32_t magnitude) { return free_scale(q, magnitude); });
  }
}

// One vector's codes to shared memory.
template <int kBytes>
__device__ __forceinline__ void put_staged_codes(char* address, const uint32_t (&words)[2]) {
  if constexpr (kBytes == 8) {
    *reinterpret_cast<uint2*>(address) = make_uint2(words[0], words[1]);
  } else {
    put_shared<kBytes>(address, words[0]);
  }
}

// The codes of vectors; `most` is for pairs. Those of uneven rows go through shared memory, as y does.
template <CodeType kType, class Slots, class Tile, class Reach>
__device__ __forceinline__ void put_codes(char* codes,
                                          float (&z)[Tile::kVectors][Slots::T::kPerVector],
                                          const uint32_t (&most)[Tile::kVectors],
                                          const float (&inverse)[Tile::kVectors],
                                          const Place<Tile>& place, const Reach& reach) {
  constexpr bool kPairs = kType == CodeType::kE2M1;
  constexpr int kPerVector = Slots::T::kPerVector, kBytes = kPairs ? kPerVector / 2 : kPerVector;
  constexpr bool kSoftware = kPairs && !ptx::kConvertsE2m1;
  char* const address = codes + static_cast<uint32_t>(place.first * kBytes);
  // As a rule no value reaches 7. Where one does or NaN is about, values are made that do not.
  const auto is_below_7 = [&](int v) {
    return __fmul_rn(__uint_as_float(most[v]), inverse[v]) < 7.0f;
  };
  const auto clamp = [&](int v) {
#pragma unroll
    for (float& value : z[v]) {
      const float w = __fmul_rn(value, inverse[v]);
      value = w < -6.0f ? -6.0f : w < 6.0f ? w : 6.0f;
    }
    return 1.0f;
  };
  // Looked at once a thread where there are the registers for it: NVFP4 4096 x 4096 15.9 us, once a vector 16.2 (H200, 2026-11-25).
  constexpr bool kTogether = kSoftware && Slots::kBeside != Beside::kAny && Tile::kVectors <= 6;
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
      scale_values(z[v], factor);
      make_codes(kType, z[v], words);
    }
    if constexpr (Slots::kAccess == Access::kUneven) {
      put_staged_codes<kBytes>(StagedRow<Slots, Tile>().results() + place.vector(v) * kBytes,
                               words);
    } else if (reach.stores(v)) {
      store_codes<kPerVector>(address + v * (Tile::kStride * kBytes), words, kPairs);
    }
  }
}

// Codes and scales of a row whose results are in registers: z, which is used up.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void quantize_in_registers(
    const NormParams& p, float (&z)[Tile::kVectors][Slots::T::kPerVector], float given,
    const RowIndex& index, const Place<Tile>& place, const Reach& reach,
    FoldScratch<Tile>& scratch) {
  constexpr int kVectors = Tile::kVectors;
  const QuantParams& q = p.quant;
  if constexpr (Slots::kAccess == Access::kUneven) {
    if (reach.has_short()) clear_from(z[kVectors - 1], reach.last_count());
  }
  if (Slots::kBeside == Beside::kAny && q.beside) {
    put_beside<Slots>(p, z, index, place, reach);
  } else {
    ptx::keep_branch();
  }
  if (q.rule == ScaleRule::kNoCodes) return;
  uint32_t most[kVectors];
  float inverse[kVectors];
  if (q.rule == ScaleRule::kGiven) {
    const float factor = __frcp_rn(given);
#pragma unroll
    for (float& f : inverse) f = factor;
  } else {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      most[v] = magnitude_bits(z[v]);
      if (v == kVectors - 1 && !reach.has(v)) most[v] = 0;
    }
    make_scales<Slots>(p, most, inverse, given,
                       ScaleRow(p, reach.live ? place.row_again() : 0, index), place, reach,
                       scratch);
  }
  char* const codes = row_address(q.codes, q.codes_upper, index);
  if constexpr (Slots::kAccess == Access::kAny) {
#pragma unroll 1
    for (int v = 0; v < kVectors && reach.stores(v); ++v) {
      float w[Slots::T::kPerVector], factor = inverse[0];
      pick_vector(w, z, v);
#pragma unroll
      for (int i = 1; i < kVectors; ++i) factor = i == v ? inverse[i] : factor;
      scale_values(w, factor);
      put_any_codes(q, codes, w, place.vector(v), reach.count(v));
    }
  } else if (q.code_type == CodeType::kE4M3) {
    put_codes<CodeType::kE4M3, Slots>(codes, z, most, inverse, place, reach);
  } else if (q.code_type == CodeType::kE2M1) {
    put_codes<CodeType::kE2M1, Slots>(codes, z, most, inverse, place, reach);
  } else if (q.code_type == CodeType::kI8) {
    put_codes<CodeType::kI8, Slots>(codes, z, most, inverse, place, reach);
  } else {
    put_codes<CodeType::kE5M2, Slots>(codes, z, most, inverse, place, reach);
  }
  if constexpr (Slots::kAccess == Access::kUneven) {
    sync_row<Tile>();
    constexpr int kPerVector = Slots::T::kPerVector,
                  kPieces = (kVectors * kPerVector + kVectorBytes - 1) / kVectorBytes;
    const uint32_t n = row_elements<typename Slots::T>(p);
    store_staged<1, kPieces, true>(codes, q.code_type == CodeType::kE2M1 ? n / 2 : n,
                                   StagedRow<Slots, Tile>().results(), place, reach.live);
  }
  // When the row is no longer in registers.
  if (q.swizzled && reach.live) {
    const uint32_t row = place.row_again();
    ScaleRow(p, row, row_index(p, row, p.bits_again))
        .pad((p.n + q.block - 1) >> q.block_shift, p.rows, place.first, Tile::kStride);
  }
}

// The same for a row that is streamed, one vector a thread at a time. Nothing where nothing is quantised.
template <class Slots, class Tile, bool kQuant = Slots::kSink == Sink::kQuant>
struct StreamQuantizer {
  using T = typename Slots::T;
  __device__ __forceinline__ StreamQuantizer(const NormParams&, const Place<Tile>&) {}
  __device__ __forceinline__ bool wants_row() const { return false; }
  __device__ __forceinline__ void see(const float (&)[T::kPerVector], int) {}
  __device__ __forceinline__ void make_row_scale(FoldScratch<Tile>&, const Place<Tile>&) {}
  __device__ __forceinline__ void put(const float (&)[T::kPerVector], int64_t, int) {}
  __device__ __forceinline__ void end(const Place<Tile>&) {}
};

template <class Slots, class Tile>
struct StreamQuantizer<Slots, Tile, true> {
  using T = typename Slots::T;
  static constexpr int kPerVector = T::kPerVector;

  __device__ __forceinline__ StreamQuantizer(const NormParams& params, const Place<Tile>& place)
      : p(params),
        q(params.quant),
        index(row_index(params, place.row, params.bits_again)),
        scales(params, place.row, index),
        codes(row_address(params.quant.codes, params.quant.codes_upper, index)) {
    given = q.given_scale != nullptr ? *q.given_scale : 1.0f;
    if (q.rule == ScaleRule::kGiven) inverse = __frcp_rn(given);
  }

  // True if the row's greatest magnitude is needed before its codes.
  __device__ __forceinline__ bool wants_row() const {
    return q.rule >= ScaleRule::kQuotient && q.block == 0;
  }
  __device__ __forceinline__ void see(float (&z)[kPerVector], int count) {
    prepare<T>(q, z);
    clear_from(z, count);
    most = greater(most, magnitude_bits(z));
  }
  __device__ __forceinline__ void make_row_scale(FoldScratch<Tile>& scratch,
                                                 const Place<Tile>& place) {
    const Scale scale = free_scale(q, greatest_of_row(most, scratch, place));
    if (place.leads_row()) scales.put(0, scale.bits);
    inverse = scale.inverse;
  }

  __device__ __forceinline__ void put(float (&z)[kPerVector], int64_t vector, int count) {
    prepare<T>(q, z);
    clear_from(z, count);
    uint32_t magnitude[1] = {magnitude_bits(z)};
    most = greater(most, magnitude[0]);
    if (q.rule == ScaleRule::kNoCodes) return;
    if (q.block != 0) {
      constexpr int kVectorShift = kPerVector == 8 ? 3 : 2;
      const int shift = q.block_shift - kVectorShift, lanes = 1 << shift;
      fold_blocks<Tile>(magnitude, lanes);
      const Scale scale = make_scale(q, magnitude[0], given);
      if (count > 0 && (vector & (lanes - 1)) == 0) scales.put(vector >> shift, scale.bits);
      inverse = scale.inverse;
    }
    scale_values(z, inverse);
    if (count > 0) put_any_codes(q, codes, z, vector, count);
  }

  __device__ __forceinline__ void end(const Place<Tile>& place) const {
    if (q.amax != nullptr) raise_amax(q, most);
    if (q.swizzled) {
      scales.pad((p.n + q.block - 1) >> q.block_shift, p.rows, place.first, Tile::kStride);
    }
  }

  const NormParams& p;
  const QuantParams& q;
  const RowIndex index;
  const ScaleRow scales;
  char* const codes;
  float given, inverse = 0.0f;
  uint32_t most = 0;
};

}  // namespace fastnorm::cuda
