// Values to codes and scales, for Sink::kQuant. Plain loops of fixed length, which the compiler
// vectorises for the unit's instruction set. Every operation is one rounded instruction, so all
// instruction sets give the same bits.
#pragma once

#include "cpu/common/simd.h"
#include "cpu/norm/params.h"

namespace fastnorm::cpu {
namespace {

// Values in a chunk, in loops of fixed length. The last value is followed by zeros up to a multiple
// of kPadded. All other lengths divide kPadded, blocks included.
inline constexpr int kQuantChunk = 1024, kPadded = 128, kCodeStep = 64, kValueStep = 16;
static_assert(kQuantChunk % kPadded == 0 && kPadded % kCodeStep == 0 &&
              kCodeStep % kValueStep == 0);
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "pairs of e2m1 are packed as words");
inline constexpr uint32_t kInfBits = 0x7f800000, kMagnitude = 0x7fffffff;

FASTNORM_INLINE uint32_t greater(uint32_t a, uint32_t b) { return a > b ? a : b; }

FASTNORM_INLINE float load_f32(const char* p) {
  float f;
  __builtin_memcpy(&f, p, sizeof f);
  return f;
}

// The greatest magnitude as bits. Their order is that of the magnitudes, with NaN above all.
inline uint32_t magnitude_bits(const float* values, int count) {
  uint32_t most[kValueStep] = {};
  for (int i = 0; i < count; i += kValueStep) {
    for (int j = 0; j < kValueStep; ++j) {
      most[j] = greater(most[j], bits_of(values[i + j]) & kMagnitude);
    }
  }
  uint32_t result = 0;
  for (const uint32_t m : most) result = greater(result, m);
  return result;
}

// 0: no clamp.
FASTNORM_INLINE float clamp_of(const QuantParams& q) {
  if (q.clamp_scale == nullptr) return q.clamp;
  const float given = load_f32(q.clamp_scale);
  return given > 0.0f ? given : 0.0f;
}

// NaN stays NaN, because comparisons with it are false.
inline void clamp_values(float* values, int count, float clamp) {
  if (clamp == 0.0f) return;
  for (int i = 0; i < count; i += kValueStep) {
    for (int j = 0; j < kValueStep; ++j) {
      const float v = values[i + j], low = v < -clamp ? -clamp : v;
      values[i + j] = low > clamp ? clamp : low;
    }
  }
}

// ---- Rotation: blocks of columns times a Hadamard matrix, by steps that each combine neighbours.

// One step. A pair's sum goes to the lower half of the block and its difference to the upper half,
// so that after the last step all values are at their places. A function of its own, as
// greater_of_two().
template <int kBlock>
__attribute__((noinline)) void rotate_step(const float* from, float* to) {
  for (int j = 0; j < kBlock / 2; ++j) {
    const float first = from[2 * j], second = from[2 * j + 1];
    to[j] = first + second;
    to[j + kBlock / 2] = first - second;
  }
}

// `factor`: 1 / sqrt(kBlock), rounded to nearest.
template <int kBlock>
inline void rotate_blocks(float* values, int count, float factor) {
  for (int i = 0; i < count; i += kBlock) {
    float a[kBlock], b[kBlock];
    rotate_step<kBlock>(values + i, a);
    rotate_step<kBlock>(a, b);
    rotate_step<kBlock>(b, a);
    rotate_step<kBlock>(a, b);
    if constexpr (kBlock >= 32) rotate_step<kBlock>(b, a);
    if constexpr (kBlock >= 64) rotate_step<kBlock>(a, b);
    if constexpr (kBlock >= 128) rotate_step<kBlock>(b, a);
    const float* const last = kBlock == 32 || kBlock == 128 ? a : b;
    for (int j = 0; j < kBlock; ++j) values[i + j] = last[j] * factor;
  }
}

// Rotates the columns [i, i + count) of a row, which are complete blocks.
inline void rotate_values(const QuantParams& q, int64_t i, int count, float* values) {
  if (q.signs != nullptr) {
    const bool all = q.sign_columns != q.rotation;
    for (int k = 0; k < count; k += q.rotation) {
      const char* const signs = q.signs + (all ? (i + k) * F32::kBytes : 0);
      for (int j = 0; j < q.rotation; ++j)
        values[k + j] = values[k + j] * load_f32(signs + j * F32::kBytes);
    }
  }
  switch (q.rotation) {
    case 16:
      return rotate_blocks<16>(values, count, 0.25f);
    case 32:
      return rotate_blocks<32>(values, count, 0x1.6a09e6p-3f);
    case 64:
      return rotate_blocks<64>(values, count, 0.125f);
    default:
      return rotate_blocks<128>(values, count, 0x1.6a09e6p-4f);
  }
}

// To a float format of at most 8 bits. The parameters are the fraction's bits, the exponent's bias,
// f32 bits of the greatest value, the code of NaN, and the sign's position. E is the exponent of
// |v|, or of the least normal number if that is greater. Adding 2^(E + 23 - kFraction) rounds |v|
// to the format's fraction. The sum then holds the number of units. Each exponent below E takes
// 2^kFraction codes. Only the last byte of the result counts; the sum's exponent does not change
// it. Surplus codes are subtracted as units of the other summand. Their number is even, so ties
// still go to even.
template <int kFraction, int kBias, uint32_t kGreatest, uint32_t kNan, int kSign>
FASTNORM_INLINE uint8_t to_small_float(float v) {
  constexpr int kDrop = 23 - kFraction;
  constexpr uint32_t kLeastNormal = static_cast<uint32_t>(127 + 1 - kBias) << 23,
                     kBefore = (kLeastNormal >> kDrop) % 256, kUnits = (256 - kBefore) % 256;
  static_assert(kDrop >= 8 && kUnits % 2 == 0);
  const uint32_t bits = bits_of(v), magnitude = bits & kMagnitude;
  const uint32_t kept = magnitude > kGreatest ? kGreatest : magnitude;
  const uint32_t binade = greater(kept & kInfBits, kLeastNormal);
  const float unit = from_bits(binade + (static_cast<uint32_t>(kDrop) << 23 | kUnits));
  const uint32_t code = bits_of(from_bits(kept) + unit) + (binade >> kDrop);
  const uint32_t with_sign = code | (bits >> (31 - kSign) & 1u << kSign);
  return static_cast<uint8_t>(magnitude > kInfBits ? kNan : with_sign);
}

FASTNORM_INLINE uint8_t to_e4m3(float v) { return to_small_float<3, 7, 0x43e00000, 0x7f, 7>(v); }
FASTNORM_INLINE uint8_t to_e5m2(float v) { return to_small_float<2, 15, 0x47600000, 0x7f, 7>(v); }
FASTNORM_INLINE uint8_t to_e2m1(float v) { return to_small_float<1, 1, 0x40c00000, 0x7, 3>(v); }

FASTNORM_INLINE uint8_t to_i8(float v) {
  const float low = v < -128.0f ? -128.0f : v;
  const float kept = low > 127.0f ? 127.0f : low;
  constexpr uint32_t kUnits = 0x4b400000;  // 1.5 * 2^23: the last bit of the sum is 1
  const uint32_t code = bits_of(kept + from_bits(kUnits)) - kUnits;
  return static_cast<uint8_t>((bits_of(v) & kMagnitude) > kInfBits ? 0 : code);
}

// The value of an e4m3 code without its sign.
FASTNORM_INLINE float from_e4m3(uint32_t code) {
  const uint32_t exponent = code >> 3, fraction = code & 7;
  const float subnormal = static_cast<float>(static_cast<int32_t>(fraction)) * 0x1p-9f;
  const float normal =
      from_bits(code == 0x7f ? 0x7fc00000 : (exponent + 120) << 23 | fraction << 20);
  return exponent == 0 ? subnormal : normal;
}

// The greatest code, m * 2^k.
struct GreatestCode {
  int k;
  uint32_t fraction;  // bits of m's fraction
};
inline GreatestCode greatest_code(CodeType type) {
  return type == CodeType::kE4M3   ? GreatestCode{8, 0x600000}
         : type == CodeType::kE5M2 ? GreatestCode{15, 0x600000}
                                   : GreatestCode{2, 0x400000};
}

// The least E with magnitude <= m * 2^(k + E), clamped to [-127, 127].
FASTNORM_INLINE int scale_exponent(uint32_t magnitude, GreatestCode most) {
  if (magnitude >= kInfBits) return 127;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const int e = exponent - most.k + ((magnitude & 0x7fffff) > most.fraction ? 1 : 0);
  return e < -127 ? -127 : e;
}

// 2^e for e in [-127, 127].
FASTNORM_INLINE float power_of_two(int e) {
  return from_bits(e == -127 ? 0x00400000 : static_cast<uint32_t>(e + 127) << 23);
}

// Raises an f32 in memory to a magnitude, in any order of calls. The greatest bits win. A value
// with the sign set is below all.
inline void raise_amax(char* address, uint32_t bits) {
  auto* const word = reinterpret_cast<int32_t*>(address);
  const auto ours = static_cast<int32_t>(bits);
  int32_t there = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (there < ours && !__atomic_compare_exchange_n(word, &there, ours, true, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED)) {
  }
}

// Scales from the greatest magnitudes of a row, or of the blocks of a chunk. Also the factors for
// the codes, which are divisors if codes are quotients.
inline constexpr int kMostBlocks = kQuantChunk / 16, kBlockStep = 16;

struct Scales {
  uint32_t magnitude[kMostBlocks];
  uint32_t scale[kMostBlocks];  // as stored: f32, or a byte
  float inverse[kMostBlocks];
};

template <int kStep>
inline void make_f32_scales(float greatest, float amax_floor, bool divides, int first, Scales& s) {
  for (int b = first; b < first + kStep; ++b) {
    const float scale = from_bits(greater(s.magnitude[b], bits_of(amax_floor))) / greatest;
    s.scale[b] = bits_of(scale);
    const float inverse = 1.0f / scale;
    s.inverse[b] = divides ? scale : inverse;
  }
}

template <int kStep>
inline void make_pow2_scales(GreatestCode most, float amax_floor, bool bytes, int first,
                             Scales& s) {
  for (int b = first; b < first + kStep; ++b) {
    const uint32_t amax = greater(s.magnitude[b], bits_of(amax_floor));
    const bool nan = amax > kInfBits;
    const int e = scale_exponent(amax, most);
    const uint32_t byte = nan ? 0xff : static_cast<uint32_t>(e + 127);
    const uint32_t value = nan ? amax : bits_of(power_of_two(e));
    s.scale[b] = bytes ? byte : value;
    s.inverse[b] = from_bits(nan ? amax : bits_of(power_of_two(-e)));
  }
}

// Scales of a tensor with global scale `global`. If that is negative, the codes have the opposite
// sign. A scale of 0 gives codes of 0.
template <int kStep>
inline void make_nvfp4_scales(float global, int first, Scales& s) {
  const float factor = __builtin_fabsf((1.0f / global) * (1.0f / 6.0f));
  constexpr float kMost = 0x1.fffffep127f;
  for (int b = first; b < first + kStep; ++b) {
    const uint32_t code = to_e4m3(from_bits(s.magnitude[b]) * factor);
    const float value = from_e4m3(code & 0x7f);
    const float inverse = 1.0f / ((value == 0.0f ? 1.0f : value) * global);
    const float low = inverse < -kMost ? -kMost : inverse, kept = low > kMost ? kMost : low;
    s.scale[b] = code;
    s.inverse[b] = value == 0.0f ? 0.0f : kept;
  }
}

template <int kStep>
inline void make_scales_by(const QuantParams& q, int count, Scales& s) {
  for (int b = 0; b < count; b += kStep) {
    if (q.nvfp4) {
      make_nvfp4_scales<kStep>(q.global_scale != nullptr ? load_f32(q.global_scale) : 1.0f, b, s);
    } else if (q.pow2) {
      make_pow2_scales<kStep>(greatest_code(q.code_type), q.amax_floor,
                              q.scale_type == ScaleType::kE8M0, b, s);
    } else {
      const float greatest = q.code_type == CodeType::kE4M3   ? 448.0f
                             : q.code_type == CodeType::kE5M2 ? 57344.0f
                                                              : 127.0f;
      make_f32_scales<kStep>(greatest, q.amax_floor, q.divides, b, s);
    }
  }
}

// A few scales one at a time. A vector load of what was just stored in pieces would stall.
inline void make_scales(const QuantParams& q, int count, Scales& s) {
  if (count <= kBlockStep / 4) return make_scales_by<1>(q, count, s);
  make_scales_by<kBlockStep>(q, count, s);
}

// The greater of each two neighbours. A function of its own: among other loops compilers do not
// vectorise it.
template <int kCount>
__attribute__((noinline)) void greater_of_two(const uint32_t* from, uint32_t* to) {
  for (int j = 0; j < kCount; ++j) to[j] = greater(from[2 * j], from[2 * j + 1]);
}

// The greatest magnitude of each block of kBlock values. `count` is a multiple of kPadded.
template <int kBlock>
inline void block_magnitudes(const float* values, int count, Scales& s) {
  // Long blocks first fold values at a fixed distance. Then neighbours fold in pairs until one
  // value is left for each block.
  constexpr int kLanes = kValueStep, kBlocks = kPadded / kBlock, kHeld = kBlocks * kLanes;
  for (int i = 0; i < count; i += kPadded) {
    uint32_t most[kHeld], eight[kHeld / 2], four[kHeld / 4], two[kHeld / 8];
    for (int b = 0; b < kBlocks; ++b) {
      uint32_t lanes[kLanes] = {};
      for (int k = 0; k < kBlock; k += kLanes) {
        for (int j = 0; j < kLanes; ++j)
          lanes[j] = greater(lanes[j], bits_of(values[i + b * kBlock + k + j]) & kMagnitude);
      }
      for (int j = 0; j < kLanes; ++j) most[b * kLanes + j] = lanes[j];
    }
    greater_of_two<kHeld / 2>(most, eight);
    greater_of_two<kHeld / 4>(eight, four);
    greater_of_two<kHeld / 8>(four, two);
    greater_of_two<kBlocks>(two, s.magnitude + i / kBlock);
  }
  for (int b = count / kBlock; b % kBlockStep != 0; ++b) s.magnitude[b] = 0;
}

template <int kBlock>
inline void scale_blocks(float* values, int count, const Scales& s) {
  for (int i = 0; i < count; i += kBlock) {
    const float inverse = s.inverse[i / kBlock];
    for (int j = 0; j < kBlock; ++j) values[i + j] = values[i + j] * inverse;
  }
}

template <int kBlock>
inline void divide_blocks(float* values, int count, const Scales& s) {
  for (int i = 0; i < count; i += kBlock) {
    const float scale = s.inverse[i / kBlock];
    for (int j = 0; j < kBlock; ++j) values[i + j] = values[i + j] / scale;
  }
}

// Divides the first `count` values. They are padded.
inline void divide_values(float* values, int count, float scale) {
  for (int i = 0; i < count; i += kValueStep) {
    for (int j = 0; j < kValueStep; ++j) values[i + j] = values[i + j] / scale;
  }
}

// Where a row's codes and scales are stored.
struct QuantRow {
  int64_t number;
  char* codes;
  char* scale;

  // Stores the scale of a row and returns the factor for its codes.
  float put_row_scale(const QuantParams& q, uint32_t magnitude) const {
    Scales s;
    s.magnitude[0] = magnitude;
    make_scales(q, 1, s);
    put_scales(q, 0, 1, s);
    return s.inverse[0];
  }

  // Scales the values of the blocks from number `index` on, and stores their scales. There are
  // `count` values, then zeros up to `padded`.
  template <int kBlock>
  void scale_by_block(const QuantParams& q, int64_t index, int count, int padded,
                      float* values) const {
    Scales s;
    const int blocks = (count + kBlock - 1) / kBlock;
    block_magnitudes<kBlock>(values, padded, s);
    make_scales(q, blocks, s);
    put_scales(q, index, blocks, s);
    if (q.divides) {
      divide_blocks<kBlock>(values, padded, s);
    } else {
      scale_blocks<kBlock>(values, padded, s);
    }
  }
  void scale_by_block(const QuantParams& q, int64_t i, int count, int padded, float* values) const {
    switch (q.block) {
      case 16:
        return scale_by_block<16>(q, i / 16, count, padded, values);
      case 32:
        return scale_by_block<32>(q, i / 32, count, padded, values);
      case 64:
        return scale_by_block<64>(q, i / 64, count, padded, values);
      default:
        return scale_by_block<128>(q, i / 128, count, padded, values);
    }
  }

  void put_scales(const QuantParams& q, int64_t index, int count, const Scales& s) const {
    const bool f32 = q.scale_type == ScaleType::kF32;
    uint8_t bytes[kMostBlocks];
    for (int b = 0; b < count; ++b) bytes[b] = static_cast<uint8_t>(s.scale[b]);
    if (!q.swizzled && q.scale_step_bytes == (f32 ? 4 : 1)) {
      char* const to = scale + index * q.scale_step_bytes;
      if (f32) return copy(to, s.scale, count * 4);
      return copy(to, bytes, count);
    }
    for (int b = 0; b < count; ++b) {
      if (f32) {
        put(q, index + b, &s.scale[b], 4);
      } else {
        put(q, index + b, &bytes[b], 1);
      }
    }
  }

  // Copies by vectors: compilers turn a long copy into a call or a string instruction. Uses
  // streaming stores if asked and if `to` is aligned.
  static FASTNORM_INLINE void copy(char* to, const void* from, int bytes,
                                   bool past_caches = false) {
    constexpr int kStep = 2 * kLanes * F32::kBytes;
    const char* const begin = static_cast<const char*>(from);
    const bool streamed =
        kStreamBytes > 1 && past_caches && reinterpret_cast<uintptr_t>(to) % kStreamBytes == 0;
    int i = 0;
    if (streamed) {
      for (; i + kStep <= bytes; i += kStep) stream(F32{}, to + i, load(F32{}, begin + i));
    } else {
      for (; i + kStep <= bytes; i += kStep) store(F32{}, to + i, load(F32{}, begin + i));
    }
    if (i < bytes) __builtin_memcpy(to + i, begin + i, static_cast<size_t>(bytes - i));
  }

  void put(const QuantParams& q, int64_t index, const void* value, size_t bytes) const {
    char* const at =
        q.swizzled ? q.scale.data + swizzled(q, number, index) : scale + index * q.scale_step_bytes;
    __builtin_memcpy(at, value, bytes);
  }

  // Tiles of 128 rows x 4 scales: 32 lines of 16 bytes, each with 4 rows that are 32 apart.
  static int64_t swizzled(const QuantParams& q, int64_t row, int64_t index) {
    const int64_t tile = row / 128 * q.scale_step_bytes + index / 4;
    return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + index % 4;
  }

  // `count` values from element i on, times `inverse` if kScaled. The alignment fixes where loops
  // lie in cache lines, so that other code in the unit does not change its speed.
  template <bool kScaled>
  __attribute__((aligned(64))) void put_codes(const QuantParams& q, int64_t i, int count,
                                              const float (&values)[kQuantChunk], float inverse,
                                              bool past_caches) const {
    uint8_t code[kQuantChunk], pairs[kQuantChunk / 2];
    const auto make = [&](auto to_code) __attribute__((always_inline)) {
      for (int k = 0; k < count; k += kCodeStep) {
        for (int j = 0; j < kCodeStep; ++j)
          code[k + j] = to_code(kScaled ? values[k + j] * inverse : values[k + j]);
      }
    };
    switch (q.code_type) {
      case CodeType::kE4M3:
        make([](float v) { return to_e4m3(v); });
        break;
      case CodeType::kE5M2:
        make([](float v) { return to_e5m2(v); });
        break;
      case CodeType::kI8:
        make([](float v) { return to_i8(v); });
        break;
      case CodeType::kE2M1:
        make([](float v) { return to_e2m1(v); });
        for (int k = 0; k < count / 2; k += kCodeStep / 2) {
          uint16_t two[kCodeStep / 2];
          __builtin_memcpy(two, code + 2 * k, sizeof two);
          for (int j = 0; j < kCodeStep / 2; ++j) {
            pairs[k + j] = static_cast<uint8_t>(two[j] | two[j] >> 4);
          }
        }
        return copy(codes + i / 2, pairs, count / 2, past_caches);
    }
    copy(codes + i, code, count, past_caches);
  }

  // Zeroes the padding of swizzled scales: behind the row's scales, and after the last row.
  void end(const QuantParams& q, int64_t n) const {
    if (!q.swizzled) return;
    const int64_t scales = (n + q.block - 1) / q.block, padded = q.scale_step_bytes * 4;
    for (int64_t k = scales; k < padded; ++k) q.scale.data[swizzled(q, number, k)] = 0;
    if (number != q.rows - 1) return;
    for (int64_t row = q.rows; row % 128 != 0; ++row) {
      for (int64_t k = 0; k < padded; ++k) q.scale.data[swizzled(q, row, k)] = 0;
    }
  }
};

}  // namespace
}  // namespace fastnorm::cpu
