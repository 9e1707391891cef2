// The quantising sink: a row's results to codes and their scales. The formulas are those of include/fastnorm/norm.h.
//
// Every thread of the row works out the scales that its values need, and one of them stores each. The greatest magnitude is taken as
// the bits of |z|, whose order is that of the magnitudes with NaN above all, so no order of threads shows in it.
#pragma once

#include "cuda/norm_parts.cuh"
#include "cuda/ptx/convert.cuh"

namespace fastnorm::cuda {

inline constexpr uint32_t kInfBits = 0x7f800000, kMagnitude = 0x7fffffff;

__device__ __forceinline__ uint32_t greater(uint32_t a, uint32_t b) { return a > b ? a : b; }

template <int kCount>
__device__ __forceinline__ uint32_t magnitude_bits(const float (&z)[kCount]) {
  uint32_t most = __float_as_uint(z[0]) & kMagnitude;
#pragma unroll
  for (int i = 1; i < kCount; ++i) most = greater(most, __float_as_uint(z[i]) & kMagnitude);
  return most;
}

// amax / greatest, correctly rounded, for amax of 2^-100 and more, Inf or NaN, and 1 / greatest rounded to nearest. One step on the exact
// remainder (the check is exhaustive over all significands and the three divisors).
__device__ __forceinline__ float divide_by_greatest(float amax, float greatest, float inverse) {
  const float q = __fmul_rn(amax, inverse);
  const float exact = __fmaf_rn(__fmaf_rn(-q, greatest, amax), inverse, q);
  return (__float_as_uint(amax) & kMagnitude) >= kInfBits ? amax : exact;
}

// 1 / scale, correctly rounded, for a scale in [2^-126, 2^126], Inf or NaN.
__device__ __forceinline__ float inverse_of_scale(float scale) {
  const float q = ptx::rcp_approx(scale);
  const float exact = __fmaf_rn(q, __fmaf_rn(-q, scale, 1.0f), q);
  return (__float_as_uint(scale) & kMagnitude) >= kInfBits ? q : exact;
}

// The least E with magnitude <= 1.75 * 2^(k + E), within [-127, 127]; 1.75 * 2^k is the greatest code.
__device__ __forceinline__ int scale_exponent(uint32_t magnitude, int k) {
  if (magnitude >= kInfBits) return 127;
  const int e =
      static_cast<int>(magnitude >> 23) - 127 - k + ((magnitude & 0x7fffff) > 0x600000 ? 1 : 0);
  return e < -127 ? -127 : e;
}

// 2^e for e in [-127, 127].
__device__ __forceinline__ float power_of_two(int e) {
  return __uint_as_float(e == -127 ? 0x00400000 : static_cast<uint32_t>(e + 127) << 23);
}

// The value of an e4m3 code without sign.
__device__ __forceinline__ float from_e4m3(uint32_t code) {
  if (code == 0x7f) return __uint_as_float(0x7fc00000);
  const uint32_t exponent = code >> 3, fraction = code & 7;
  if (exponent == 0) return __fmul_rn(static_cast<float>(fraction), 0x1p-9f);
  return __uint_as_float((exponent + 120) << 23 | fraction << 20);
}

// The codes of one vector of scaled values, as bytes in order.
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
    for (int i = 0; i < kPerVector; i += 2)
      words[i / 4] |= ptx::cvt_s8x2(w[i], w[i + 1]) << i % 4 * 8;
  } else {
#pragma unroll
    for (int i = 0; i < kPerVector; i += 2) words[0] |= ptx::cvt_e2m1x2(w[i], w[i + 1]) << 4 * i;
  }
}

// A row's codes and scales in memory.
template <class T>
struct QuantRow {
  static constexpr int kPerVector = T::kPerVector;

  __device__ __forceinline__ QuantRow(const NormParams& params, uint32_t row_number)
      : p(params), q(params.quant), number(row_number) {}

  // Worked out where it is used: kept, it would cost registers beside the row.
  __device__ __forceinline__ char* address_in(const RowRef& tensor, const RowStrides& upper) const {
    return row_address(tensor, upper, row_index(p, number, p.bits_again));
  }

  // The bits of a scale, in its type, and the factor that codes are made with.
  struct Scale {
    uint32_t bits;
    float inverse;
  };

  // Of what has this greatest magnitude.
  __device__ __forceinline__ Scale make_scale(uint32_t magnitude) const {
    if (q.nvfp4) {
      const float global = q.global_scale != nullptr ? *q.global_scale : 1.0f;
      const float factor = __fmul_rn(__frcp_rn(global), 1.0f / 6.0f);
      const uint32_t code =
          ptx::cvt_e4m3x2(__fmul_rn(__uint_as_float(magnitude), factor), 0.0f) & 0xff;
      const float value = from_e4m3(code & 0x7f);
      const float inverse = __frcp_rn(__fmul_rn(value, global));
      return {code, value == 0.0f ? 0.0f : inverse > 0x1.fffffep127f ? 0x1.fffffep127f : inverse};
    }
    const uint32_t amax = greater(magnitude, __float_as_uint(q.amax_floor));
    if (q.pow2) {
      const bool nan = amax > kInfBits;
      const int e = scale_exponent(amax, q.code_type == CodeType::kE4M3 ? 8 : 15);
      const uint32_t bits = q.scale_type == ScaleType::kE8M0
                                ? (nan ? 0xff : static_cast<uint32_t>(e + 127))
                                : (nan ? amax : __float_as_uint(power_of_two(e)));
      return {bits, nan ? __uint_as_float(amax) : power_of_two(-e)};
    }
    const float value = q.code_type == CodeType::kE4M3
                            ? divide_by_greatest(__uint_as_float(amax), 448.0f, 1.0f / 448.0f)
                        : q.code_type == CodeType::kE5M2
                            ? divide_by_greatest(__uint_as_float(amax), 57344.0f, 1.0f / 57344.0f)
                            : divide_by_greatest(__uint_as_float(amax), 127.0f, 1.0f / 127.0f);
    return {__float_as_uint(value), inverse_of_scale(value)};
  }

  __device__ __forceinline__ void put_scale(int64_t index, uint32_t bits) const {
    if (q.scale_type == ScaleType::kF32) {
      ptx::st_global_u32(address_in(q.scale, q.scale_upper) + index * q.scale_step, bits);
    } else {
      ptx::st_global_u8(q.swizzled ? q.scale.data + swizzled(number, index)
                                   : address_in(q.scale, q.scale_upper) + index * q.scale_step,
                        bits);
    }
  }

  // Tiles of 128 rows x 4 scales: 32 lines of 16 bytes, each with 4 rows that are 32 apart.
  __device__ __forceinline__ int64_t swizzled(uint32_t row, int64_t index) const {
    const int64_t tile = row / 128 * q.scale_step + index / 4;
    return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + index % 4;
  }

  // Stores the codes of a vector of scaled values: all at once, 8, 4 or 2 bytes, or the first `count` of them one by one.
  template <bool kWhole>
  __device__ __forceinline__ void put_codes(const float (&w)[kPerVector], int64_t vector,
                                            int count) const {
    uint32_t words[2];
    make_codes(q.code_type, w, words);
    const bool pairs = q.code_type == CodeType::kE2M1;
    char* const address =
        address_in(q.codes, q.codes_upper) + vector * (pairs ? kPerVector / 2 : kPerVector);
    if (kWhole || (q.codes_aligned && count >= kPerVector)) {
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
      return;
    }
    const int left = count < kPerVector ? count : kPerVector, bytes = pairs ? left / 2 : left;
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) {
      if (i < bytes) ptx::st_global_u8(address + i, words[i / 4] >> i % 4 * 8);
    }
  }

  // Zeroes the padding of swizzled scales, behind the row's own and after the last row; `thread` of `threads` that share the row.
  __device__ __forceinline__ void pad(int64_t scales, uint32_t rows, int thread,
                                      int threads) const {
    if (!q.swizzled) return;
    const int64_t padded = q.scale_step * 4;
    for (int64_t k = scales + thread; k < padded; k += threads)
      ptx::st_global_u8(q.scale.data + swizzled(number, k), 0);
    if (number != rows - 1 || rows % 128 == 0) return;
    const int64_t missing = (128 - rows % 128) * padded;
    for (int64_t k = thread; k < missing; k += threads) {
      ptx::st_global_u8(
          q.scale.data + swizzled(rows + static_cast<uint32_t>(k / padded), k % padded), 0);
    }
  }

  const NormParams& p;
  const QuantParams& q;
  const uint32_t number;
};

template <int kCount>
__device__ __forceinline__ void scale_values(float (&z)[kCount], float inverse) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) z[i] = __fmul_rn(z[i], inverse);
}

// What is quantised of a result: rounded where that is asked for, and clamped (NaN stays, as the comparisons are false for it).
template <class T>
__device__ __forceinline__ void prepare(const QuantParams& q, float (&z)[T::kPerVector]) {
  if (q.from_rounded) {
#pragma unroll
    for (float& value : z) value = T::round(value);
  }
  if (q.clamp != 0.0f) {
#pragma unroll
    for (float& value : z) {
      value = value < -q.clamp ? -q.clamp : value;
      value = value > q.clamp ? q.clamp : value;
    }
  }
}

// Zeroes what is past the row's end.
template <int kCount>
__device__ __forceinline__ void clear_from(float (&z)[kCount], int count) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) z[i] = i < count ? z[i] : 0.0f;
}

// Codes of 8 bits by one scale, of a vector that is stored at once.
template <class T, class Sink>
__device__ __forceinline__ void put_static(const QuantParams& q, float (&z)[T::kPerVector],
                                           float inverse, const Sink& sink, int vector,
                                           bool stores) {
  uint32_t words[2];
  prepare<T>(q, z);
  scale_values(z, inverse);
  make_codes(q.code_type, z, words);
  if (!stores) return;
  char* const address = sink.codes + static_cast<uint32_t>(vector) * T::kPerVector;
  if constexpr (T::kPerVector == 8) {
    ptx::st_global_v2(address, make_uint2(words[0], words[1]));
  } else {
    ptx::st_global_u32(address, words[0]);
  }
}

// Raises the f32 in memory; in any order of rows the greatest bits win, and what has its sign set is below all. One lane of a warp.
__device__ __forceinline__ void raise_amax(const QuantParams& q, uint32_t most) {
  most = __float_as_uint(fold_lanes<32, Greatest>(__uint_as_float(most)));
  if (threadIdx.x % 32 == 0 &&
      static_cast<int32_t>(ptx::ld_global_u32(q.amax)) < static_cast<int32_t>(most)) {
    ptx::red_max_global_s32(q.amax, static_cast<int32_t>(most));
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

// Codes and scales of a row whose prepared results are in registers: z, in place of them.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void quantize_in_registers(
    const NormParams& p, float (&z)[Tile::kVectors][Slots::T::kPerVector], const Place<Tile>& place,
    const Reach& reach, FoldScratch<Tile>& scratch) {
  using T = typename Slots::T;
  constexpr int kVectors = Tile::kVectors;
  constexpr bool kWhole = Slots::kAccess == Access::kVector;
  const QuantParams& q = p.quant;
  const bool row_scale = q.codes_wanted && q.block == 0 && q.tensor_scale == nullptr;
  uint32_t greatest = 0;
  if (q.amax != nullptr || row_scale) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) greatest = greater(greatest, magnitude_bits(z[v]));
  }
  if (q.amax != nullptr) raise_amax(q, greatest);
  if (!q.codes_wanted) return;
  const QuantRow<T> row(p, reach.live ? place.row_again() : 0);
  if (q.block == 0) {
    float inverse;
    if (row_scale) {
      const float of_row = fold_row<Greatest>(__uint_as_float(greatest), scratch, place);
      const auto scale = row.make_scale(__float_as_uint(of_row));
      if (place.leads_row() && reach.live) row.put_scale(0, scale.bits);
      inverse = scale.inverse;
    } else {
      inverse = __frcp_rn(*q.tensor_scale);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) scale_values(z[v], inverse);
  } else {
    constexpr int kVectorShift = T::kPerVector == 8 ? 3 : 2;
    const int shift = q.block_shift - kVectorShift, lanes = 1 << shift;
    // Blocks that reach over registers exist in tiles of few lanes only.
    constexpr int kTogether = Tile::kLanes < 32 ? kVectors : 1;
#pragma unroll
    for (int first = 0; first < kVectors; first += kTogether) {
      uint32_t most[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) most[i] = magnitude_bits(z[first + i]);
      fold_blocks<Tile>(most, lanes);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int v = first + i, vector = place.vector(v);
        const auto scale = row.make_scale(most[i]);
        if (reach.stores(v) && (vector & (lanes - 1)) == 0)
          row.put_scale(vector >> shift, scale.bits);
        scale_values(z[v], scale.inverse);
      }
    }
    if (reach.live) {
      row.pad((p.n + q.block - 1) >> q.block_shift, p.rows, place.first, Tile::kStride);
    }
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (reach.stores(v)) row.template put_codes<kWhole>(z[v], place.vector(v), reach.count(v));
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
      : p(params), q(params.quant), row(params, place.row) {
    if (q.tensor_scale != nullptr) inverse = __frcp_rn(*q.tensor_scale);
  }

  // True if the row's greatest magnitude is needed before its codes.
  __device__ __forceinline__ bool wants_row() const {
    return q.codes_wanted && q.block == 0 && q.tensor_scale == nullptr;
  }
  __device__ __forceinline__ void see(float (&z)[kPerVector], int count) {
    prepare<T>(q, z);
    clear_from(z, count);
    most = greater(most, magnitude_bits(z));
  }
  __device__ __forceinline__ void make_row_scale(FoldScratch<Tile>& scratch,
                                                 const Place<Tile>& place) {
    const float greatest = fold_row<Greatest>(__uint_as_float(most), scratch, place);
    const auto scale = row.make_scale(__float_as_uint(greatest));
    if (place.leads_row()) row.put_scale(0, scale.bits);
    inverse = scale.inverse;
  }

  __device__ __forceinline__ void put(float (&z)[kPerVector], int64_t vector, int count) {
    prepare<T>(q, z);
    clear_from(z, count);
    uint32_t magnitude[1] = {magnitude_bits(z)};
    most = greater(most, magnitude[0]);
    if (!q.codes_wanted) return;
    if (q.block != 0) {
      constexpr int kVectorShift = kPerVector == 8 ? 3 : 2;
      const int shift = q.block_shift - kVectorShift, lanes = 1 << shift;
      fold_blocks<Tile>(magnitude, lanes);
      const auto scale = row.make_scale(magnitude[0]);
      if (count > 0 && (vector & (lanes - 1)) == 0) row.put_scale(vector >> shift, scale.bits);
      inverse = scale.inverse;
    }
    scale_values(z, inverse);
    if (count > 0) row.template put_codes<false>(z, vector, count);
  }

  __device__ __forceinline__ void end(const Place<Tile>& place) const {
    if (q.amax != nullptr) raise_amax(q, most);
    if (q.codes_wanted && q.block != 0) {
      row.pad((p.n + q.block - 1) >> q.block_shift, p.rows, place.first, Tile::kStride);
    }
  }

  const NormParams& p;
  const QuantParams& q;
  const QuantRow<T> row;
  float inverse = 0.0f;
  uint32_t most = 0;
};

}  // namespace fastnorm::cuda
