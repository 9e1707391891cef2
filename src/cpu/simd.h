// The vectors of one instruction set, and how rows of each dtype become vectors of f32 and back.
//
// Each simd_*.h defines, in an anonymous namespace, the same names over its registers:
//   Vec                         kLanes f32 values
//   zero, broadcast, lowest, add, sub, mul, fused (a * b + c, rounded once), sum_lanes, square_root
//   divide, at_least, at_most (NaN stays), if_less (x < y ? a : b), magnitude, with_sign (v >= 0 gets a
//   sign), exponent_from_bits (a lane's lowest 9 bits become sign and exponent)
//   load, load_some, store, store_some, stream   a Pair of one dtype; `some` touches `count` elements and no byte more
//   kStreamBytes                the alignment that stream needs; 1: it only stores
//   kReadAhead                  the first pass over a row may go along with the writing of the one before
//   kMomentParts                parts in which LAYER's second pass takes 64 elements: its two sums need twice the registers
//   round                       to a dtype and back
//   to_layout, from_layout      between the layout of f32 pairs and that of a dtype
//   first                       the elements below `count`, zero in the place of the others
// A Pair is 2 * kLanes elements. f32 and f16 lie in it in order; bf16 has the even elements in `a` and the odd ones in `b`, which takes
// a shift and a mask to load and a shift and a blend to store, where order would take shuffles.
//
// Nothing here may become a function that the linker shares between units: no std:: templates, everything in anonymous namespaces.
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

// Bits of a float and back, without std::bit_cast, which is a template.
FASTNORM_INLINE uint32_t bits_of(float f) { return __builtin_bit_cast(uint32_t, f); }
FASTNORM_INLINE float from_bits(uint32_t u) { return __builtin_bit_cast(float, u); }

FASTNORM_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace
}  // namespace fastnorm::cpu

#if defined(FASTNORM_UNIT_SCALAR)
#include "cpu/simd_scalar.h"
#elif defined(FASTNORM_UNIT_AVX2)
#include "cpu/simd_avx2.h"
#elif defined(FASTNORM_UNIT_AVX512)
#include "cpu/simd_avx512.h"
#elif defined(FASTNORM_UNIT_NEON)
#include "cpu/simd_neon.h"
#else
#error "define the unit"
#endif
