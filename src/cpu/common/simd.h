// The vectors of one instruction set, and how rows of each dtype become vectors of f32 and back.
//
// Each simd_*.h defines the same names in an anonymous namespace:
//   Vec             kLanes f32 values
//   zero, broadcast, lowest, add, sub, mul, sum_lanes, square_root
//   fused, fused_minus   a * b + c and a * b - c, rounded once
//   divide, at_least, at_most (NaN stays NaN), magnitude
//   if_less         x < y ? a : b
//   with_sign       v >= 0, with the sign of the second operand
//   exponent_from_bits   a lane's lowest 9 bits become sign and exponent
//   load, load_some, store, store_some, stream   a Pair of one dtype; `some` accesses `count`
//                   elements and no other byte
//   kStreamBytes    the alignment that stream needs; 1: it is a plain store
//   kReadAhead      the first pass over a row may run with the writes of the row before
//   kMomentParts    parts in which LAYER's second pass takes 64 elements: two sums need twice the
//                   registers
//   kGeneralOnly    general kernels serve the plain calls, too: the code is for few machines
//   round           to a dtype and back
//   to_layout, from_layout   between the layout of f32 pairs and that of a dtype
//   first           the elements below `count`, and zeros
// A Pair has 2 * kLanes elements. Those of f32 and f16 are in order. bf16 has the even elements in
// `a` and the odd ones in `b`. It then loads with a shift and a mask, and stores with a shift and a
// blend, without shuffles.
//
// Nothing here may become a function that the linker shares between units: no std:: templates, and
// everything in anonymous namespaces.
#pragma once

#include <cstdint>

namespace fastnorm::cpu {
namespace {

#define FASTNORM_INLINE __attribute__((always_inline)) inline

struct F32 {
  static constexpr int kBytes = 4;
};
struct F16 {
  static constexpr int kBytes = 2;
};
struct BF16 {
  static constexpr int kBytes = 2;
};

// Bits of a float and back. std::bit_cast is a template, so it cannot be used here.
FASTNORM_INLINE uint32_t bits_of(float f) { return __builtin_bit_cast(uint32_t, f); }
FASTNORM_INLINE float from_bits(uint32_t u) { return __builtin_bit_cast(float, u); }

FASTNORM_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace
}  // namespace fastnorm::cpu

#if defined(FASTNORM_UNIT_SCALAR)
#include "cpu/common/simd_scalar.h"
#elif defined(FASTNORM_UNIT_AVX2)
#include "cpu/common/simd_avx2.h"
#elif defined(FASTNORM_UNIT_AVX512)
#include "cpu/common/simd_avx512.h"
#elif defined(FASTNORM_UNIT_NEON)
#include "cpu/common/simd_neon.h"
#else
#error "define the unit"
#endif
