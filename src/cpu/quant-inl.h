// Values to codes and scales, for Sink::kQuant. Plain loops over fixed lengths, which the compiler turns into vectors of the unit's
// instruction set; every operation is one rounded instruction, so the bits are the same for all.
#pragma once

#include "cpu/norm_params.h"
#include "cpu/simd.h"

namespace fastnorm::cpu {
namespace {

// Values are worked on so many at a time, in loops of fixed lengths within; behind the last value there are zeros up to a multiple of
// kPadded, which all of them divide, blocks too.
inline constexpr int kQuantChunk = 256, kPadded = 128, kCodeStep = 64, kValueStep = 16;
static_assert(kQuantChunk % kPadded == 0 && kPadded % kCodeStep == 0 &&
              kCodeStep % kValueStep == 0);
inline constexpr uint32_t kInfBits = 0x7f800000, kMagnitude = 0x7fffffff;

FASTNORM_INLINE uint32_t greater(uint32_t a, uint32_t b) { return a > b ? a : b; }

FASTNORM_INLINE float load_f32(const char* p) {
  float f;
  __builtin_memcpy(&f, p, sizeof f);
  return f;
}

// The greatest magnitude, as bits: they are in the order of the magnitudes, and NaN is above all.
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

// NaN stays, as the comparisons are false for it.
inline void clamp_values(float* values, int count, float clamp) {
  if (clamp == 0.0f) return;
  for (int i = 0; i < count; i += kValueStep) {
    for (int j = 0; j < kValueStep; ++j) {
      const float v = values[i + j], low = v < -clamp ? -clamp : v;
      values[i + j] = low > clamp ? clamp : low;
    }
  }
}

inline void scale_values(float* values, int count, float inverse) {
  for (int i = 0; i < count; i += kValueStep) {
    for (int j = 0; j < kValueStep; ++j) values[i + j] = values[i + j] * inverse;
  }
}

// To a float format of at most 8 bits: bits of its fraction, bias of its exponent, f32 bits of its greatest value, code of NaN, place of
// its sign. With E the exponent of |v|, that of the least normal number at least, the sum with 2^(E + 23 - kFraction) rounds |v| to the
// format's fraction and holds how many units of it that is; each E before it has taken 2^kFraction codes.
template <int kFraction, int kBias, uint32_t kGreatest, uint32_t kNan, int kSign>
FASTNORM_INLINE uint8_t to_small_float(float v) {
  constexpr int kDrop = 23 - kFraction;
  constexpr uint32_t kLeastNormal = static_cast<uint32_t>(127 + 1 - kBias) << 23;
  const uint32_t bits = bits_of(v), magnitude = bits & kMagnitude;
  const uint32_t kept = magnitude > kGreatest ? kGreatest : magnitude;
  const uint32_t binade = greater(kept & kInfBits, kLeastNormal);
  const uint32_t unit = binade + (static_cast<uint32_t>(kDrop) << 23);
  const uint32_t units = bits_of(from_bits(kept) + from_bits(unit)) - unit;
  const uint32_t code = (units + ((binade - kLeastNormal) >> kDrop)) | (bits >> 31) << kSign;
  return static_cast<uint8_t>(magnitude > kInfBits ? kNan : code);
}

FASTNORM_INLINE uint8_t to_e4m3(float v) { return to_small_float<3, 7, 0x43e00000, 0x7f, 7>(v); }
FASTNORM_INLINE uint8_t to_e5m2(float v) { return to_small_float<2, 15, 0x47600000, 0x7f, 7>(v); }
FASTNORM_INLINE uint8_t to_e2m1(float v) { return to_small_float<1, 1, 0x40c00000, 0x7, 3>(v); }

FASTNORM_INLINE uint8_t to_i8(float v) {
  const float low = v < -128.0f ? -128.0f : v;
  const float kept = low > 127.0f ? 127.0f : low;
  constexpr uint32_t kUnits = 0x4b400000;  // 1.5 * 2^23: the sum's last bit is worth 1
  const uint32_t code = bits_of(kept + from_bits(kUnits)) - kUnits;
  return static_cast<uint8_t>((bits_of(v) & kMagnitude) > kInfBits ? 0 : code);
}

// The value of an e4m3 code without sign.
FASTNORM_INLINE float from_e4m3(uint8_t code) {
  if (code == 0x7f) return from_bits(0x7fc00000);
  const uint32_t exponent = code >> 3, fraction = code & 7;
  if (exponent == 0) return static_cast<float>(fraction) * 0x1p-9f;
  return from_bits((exponent + 120) << 23 | fraction << 20);
}

// The least E with magnitude <= 1.75 * 2^(k + E), within [-127, 127]; 1.75 * 2^k is the greatest code.
FASTNORM_INLINE int scale_exponent(uint32_t magnitude, int k) {
  if (magnitude >= kInfBits) return 127;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const int e = exponent - k + ((magnitude & 0x7fffff) > 0x600000 ? 1 : 0);
  return e < -127 ? -127 : e;
}

// 2^e for e in [-127, 127].
FASTNORM_INLINE float power_of_two(int e) {
  return from_bits(e == -127 ? 0x00400000 : static_cast<uint32_t>(e + 127) << 23);
}

// Raises an f32 in memory to a magnitude; in any order of calls the greatest bits win, and what has its sign set is below all.
inline void raise_amax(char* address, uint32_t bits) {
  auto* const word = reinterpret_cast<int32_t*>(address);
  const auto ours = static_cast<int32_t>(bits);
  int32_t there = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (there < ours && !__atomic_compare_exchange_n(word, &there, ours, true, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED)) {
  }
}

// Where the codes and scales of a row go.
struct QuantRow {
  int64_t number;
  char* codes;
  char* scale;

  // Makes and stores a scale from the greatest magnitude of what it scales; the factor that codes are made with.
  float put_scale(const QuantParams& q, int64_t index, uint32_t magnitude) const {
    if (q.nvfp4) return put_nvfp4_scale(q, index, magnitude);
    const uint32_t amax = greater(magnitude, bits_of(q.amax_floor));
    if (!q.pow2) {
      const float greatest = q.code_type == CodeType::kE4M3   ? 448.0f
                             : q.code_type == CodeType::kE5M2 ? 57344.0f
                                                              : 127.0f;
      const float value = from_bits(amax) / greatest;
      put(q, index, &value, sizeof value);
      return 1.0f / value;
    }
    const bool nan = amax > kInfBits;
    const int e = scale_exponent(amax, q.code_type == CodeType::kE4M3 ? 8 : 15);
    if (q.scale_type == ScaleType::kE8M0) {
      const auto byte = static_cast<uint8_t>(nan ? 0xff : e + 127);
      put(q, index, &byte, sizeof byte);
    } else {
      const float value = nan ? from_bits(amax) : power_of_two(e);
      put(q, index, &value, sizeof value);
    }
    return nan ? from_bits(amax) : power_of_two(-e);
  }

  float put_nvfp4_scale(const QuantParams& q, int64_t index, uint32_t magnitude) const {
    const float global = q.global_scale != nullptr ? load_f32(q.global_scale) : 1.0f;
    const float factor = (1.0f / global) * (1.0f / 6.0f);
    const uint8_t code = to_e4m3(from_bits(magnitude) * factor);
    put(q, index, &code, sizeof code);
    const float value = from_e4m3(code & 0x7f);
    if (value == 0.0f) return 0.0f;
    const float inverse = 1.0f / (value * global);
    return inverse > 0x1.fffffep127f ? 0x1.fffffep127f : inverse;
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

  // `count` values, already scaled, of the elements from i on.
  void put_codes(const QuantParams& q, int64_t i, int count,
                 const float (&values)[kQuantChunk]) const {
    uint8_t code[kQuantChunk];
    const auto make = [&](auto to_code) __attribute__((always_inline)) {
      for (int k = 0; k < count; k += kCodeStep) {
        for (int j = 0; j < kCodeStep; ++j) code[k + j] = to_code(values[k + j]);
      }
    };
    // Of a constant length where it is that of most.
    const auto copy = [&](char* to, int bytes) __attribute__((always_inline)) {
      if (bytes == kQuantChunk) {
        __builtin_memcpy(to, code, kQuantChunk);
      } else {
        __builtin_memcpy(to, code, static_cast<size_t>(bytes));
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
        for (int k = 0; k < count; k += kCodeStep) {
          for (int j = 0; j < kCodeStep / 2; ++j)
            code[k / 2 + j] = static_cast<uint8_t>(code[k + 2 * j] | code[k + 2 * j + 1] << 4);
        }
        return copy(codes + i / 2, count / 2);
    }
    copy(codes + i, count);
  }

  // Zeroes the padding of swizzled scales: behind the row's own, and after the last row.
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
