// The parameters of a forward kernel: one struct by value, the same for every kernel. Needs no
// CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/common/quant_types.h"
#include "core/common/tile.h"
#include "core/norm/key.h"
#include "cuda/common/rows.h"

namespace fastnorm::cuda {

// The number of an entry's kernel for a form of grids, which is behind those for the forms before.
inline constexpr int32_t kNormForms = 3;
constexpr int32_t norm_kernel_number(int32_t index, GridForm form) {
  return index * kNormForms + static_cast<int32_t>(form);
}

// What a call asks for, as bits of one word. Two neighbouring bits are an OperandType.
enum NormBits : uint32_t {
  kSingleIndex = 1 << 0,  // row r is index r of every tensor
  kThreeIndices = 1 << 1,
  kStreamLoads = 1 << 2,      // use streaming loads
  kStoreStatistics = 1 << 3,  // the call wants mean or rstd
  kWeightElement = 1 << 4,    // of x's dtype
  kWeightF32 = 1 << 5,
  kBiasElement = 1 << 6,
  kBiasF32 = 1 << 7,
  // Where a kernel that may have started early waits for the previous kernel of its stream. If
  // neither bit is set, it does not wait.
  kWaitFirst = 1 << 8,
  kWaitAfterWeights = 1 << 9,  // may also wait first
  kTrigger = 1 << 10,          // the stream's next kernel may start early
  kRoundNormalized = 1 << 11,  // to x's dtype before the weight
  kRoundSum = 1 << 12,         // x + residual to x's dtype before the statistics
  kHeadWeights = 1 << 13,      // weight or bias has a row for each first index
  kMissingElement = 1 << 16,   // three bits: elements that a row is shorter than its vectors
  kNeverSet = 1u << 31,        // which the compiler cannot know
};

// The rule for the scales of codes.
enum class ScaleRule : uint8_t { kNoCodes, kStatic, kQuotient, kPow2, kNvfp4 };

// What is quantised, and how. With a static scale and rows of one index, kernels read only its
// first line in NormParams.
struct QuantParams {
  RowRef codes;               // [rows, n] bytes; e2m1: [rows, n / 2]
  RowRef scale;               // [rows, scales of a row]
  const float* static_scale;  // the tensor's scale, or the global scale of NVFP4; nullptr = 1
  int64_t scale_step;   // bytes from one scale of a row to the next; swizzled: tiles across a row
  int32_t block;        // columns that share a scale; 0 = the row
  int32_t block_shift;  // log2 of block
  CodeType code_type;
  ScaleType scale_type;
  ScaleRule rule;
  bool wants_extras;  // the call wants more than codes and scales of unrounded, unclamped values
  bool codes_aligned, from_rounded, swizzled;
  bool divides;  // codes are quotients by the scale

  RowStrides codes_upper, scale_upper;
  float* amax;  // nullptr = not wanted
  float clamp;  // 0 = off
  float amax_floor;
  float greatest, inverse_greatest;  // of the codes; rounded to nearest
  int32_t greatest_exponent;
  // Added to a magnitude's bits, it gives a fraction above the greatest's the next exponent.
  uint32_t exponent_carry;
  const float* clamp_scale;  // nullptr = as `clamp` says
};

// The Hadamard matrix that multiplies blocks of columns before their scale is found.
struct RotationParams {
  const float* signs;     // of the columns; nullptr = 1
  uint64_t signs_repeat;  // a mask of the columns' numbers: a row has its own signs, or each block
  int32_t block;          // columns; 0 = no rotation
  float factor;           // 1 / sqrt(block)
  bool of_y;              // y is rotated, too
};

// In the order of use, by lines of 64 bytes of the constant bank. Parameters begin 16 bytes into a
// line. A block must fetch each line that it has not read yet. Most calls read two lines, heads
// three. The size is a multiple of a line, so that a second call begins like the first.
struct NormParams {
  uint32_t bits;    // NormBits
  uint32_t rows;    // of a grid of heads: of a token
  int32_t vectors;  // 16-byte vectors of x's dtype in a row, the last may be short
  union {
    uint32_t prefetch_rows;  // the row this many rows ahead is brought into L2; 0 = none
    uint32_t second_share;  // of a pair's first call: the second's blocks among both's, in 1 / 2^32
    uint32_t first_blocks;  // of the first call of a grid of heads: its blocks along x
  };
  RowRef x;            // [rows, n]
  const char* weight;  // [n], or one for each index of some leading dimensions
  const char* bias;

  float inv_n;
  float eps;
  float weight_offset;
  uint32_t bits_again;  // bits again, so that a block need not keep them across its reduction
  RowRef y;             // [rows, n]
  RowRef residual;      // [rows, n]
  RowRef residual_out;  // [rows, n]

  Divisor outer[2];  // extents of the first and second index, where there are more than one
  RowStrides x_upper, y_upper;
  int64_t n;

  int64_t weight_head_stride, bias_head_stride;  // bytes; 0 = shared by all rows
  RowStrides residual_upper, residual_out_upper;
  // Only for Access::kAny:
  uint8_t rounding, residual_rounding;       // as in the public header
  uint8_t residual_type, residual_out_type;  // OperandType
  uint8_t x_align, residual_align, y_align, residual_out_align, weight_align,
      bias_align;            // bytes that all rows allow: 16, 8, 4 or 2
  uint8_t y_type, sum_type;  // OperandType; of the sum: what residual_rounding rounds to

  RowStrides mean_upper, rstd_upper;
  RowRef mean, rstd;  // [rows]

  QuantParams quant;  // only for Sink::kQuant and kStatic

  char end_of_line[8];
};
static_assert(offsetof(NormParams, inv_n) == 48 && offsetof(NormParams, outer) == 112 &&
              offsetof(NormParams, weight_head_stride) == 176 &&
              offsetof(NormParams, mean_upper) == 240 && offsetof(NormParams, quant) == 304 &&
              offsetof(QuantParams, codes_upper) == 64 && sizeof(NormParams) == 448);

// The parameters of a kernel of one call. After the lines of all kernels comes what only
// Access::kAny reads.
struct NormCallParams : NormParams {
  RowStrides weight_upper, bias_upper;
  RotationParams rotation;
};
static_assert(sizeof(NormCallParams) == 512);

// Shared memory of a row that is staged there (Access::kUnaligned). A tensor's row begins up to 15
// bytes behind a multiple of 16. There is the image of x. With a residual there are images of the
// residual and of x + residual too. At the end there are weight and bias of a partial vector, which
// may be f32.
inline constexpr int kStagedTailBytes = 32;
constexpr int staged_image_bytes(Tile tile) { return (tile.threads * tile.vectors + 1) * 16; }
constexpr int staged_row_bytes(Source source, Tile tile) {
  const int images = source == Source::kPlain ? 1 : 3;
  return images * staged_image_bytes(tile) + 2 * kStagedTailBytes;
}
// Shared memory of weight and bias that wait there (Flavour::kLeanShared): 16 bytes for each vector
// of a thread.
constexpr int shared_weights_bytes(Stat stat, Tile tile) {
  return tile.threads * tile.vectors * 16 * (stat == Stat::kLayer ? 2 : 1);
}
// The shared memory that a launch asks for in addition to the kernel's own.
constexpr int launch_shared_bytes(NormKey key, Tile tile) {
  if (key.flavour == Flavour::kLeanShared) return shared_weights_bytes(key.stat, tile);
  return key.access == Access::kUnaligned
             ? staged_row_bytes(key.source, tile) * rows_per_block(tile)
             : 0;
}

// One call, or two calls of one kernel in one grid. The blocks of both are interleaved, because the
// queries and keys of a token are neighbours in memory.
struct NormPairParams {
  NormParams call[2];
};

// Blocks of a grid of GridForm::kPair. The high word of b * share is the number of the second
// call's blocks before block b. Block b belongs to the second call if the low word overflows when
// share is added. share is rounded up, so every block of the second call occurs. With share 0 there
// is none.
struct PairBlock {
  uint32_t block;  // of its call
  bool second;
};
constexpr PairBlock pair_block(uint32_t block, uint32_t second_share) {
  const uint64_t product = uint64_t{block} * second_share;
  const auto before = static_cast<uint32_t>(product >> 32);
  const auto low = static_cast<uint32_t>(product);
  const bool second = low + second_share < low;
  return {second ? before : block - before, second};
}
constexpr uint32_t second_share(uint64_t first_blocks, uint64_t second_blocks) {
  const uint64_t all = first_blocks + second_blocks;
  return static_cast<uint32_t>(((second_blocks << 32) + all - 1) / all);
}

}  // namespace fastnorm::cuda
