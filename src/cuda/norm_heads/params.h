// What kernels of norm_heads get: one struct by value. CUDA-free.
#pragma once

#include <cstdint>

#include "core/norm_heads/plan.h"
#include "cuda/norm/params.h"

namespace fastnorm::cuda {

// What a part asks for, as bits of one word.
enum HeadsBits : uint32_t {
  kHeadsNorm = 1 << 0,
  kHeadsLayer = 1 << 1,
  kHeadsAcross = 1 << 2,  // one statistic for all heads of a token
  kHeadsRope = 1 << 3,
  kHeadsInterleaved = 1 << 4,
  kHeadsInverse = 1 << 5,
  kHeadsRoundBefore = 1 << 6,  // values to T before rope
  kHeadsRopeEveryStep = 1 << 7,
  kHeadsStoresRows = 1 << 8,  // more leaves than statistics
  kHeadsCodes = 1 << 9,       // `quantized` or amax is wanted
  kHeadsCacheCodes = 1 << 10,
  kHeadsByBlock = 1 << 11,  // the general form: a block has a head, else a warp has
  kHeadsJoined = 1 << 12,   // the heads of a token are one row in memory
  // The held forms:
  kHeadsRoundNormalized = 1 << 13,
  kHeadsRoundSteps = 1 << 14,     // of the norm, all
  kHeadsRoundCodes = 1 << 15,     // codes are of values that were rounded to T
  kHeadsOwnWeights = 1 << 16,     // weight or bias has a row for each head
  kHeadsOwnTables = 1 << 17,      // cos or sin has a table for each head
  kHeadsCommon = 1 << 18,         // kernels with kHasCommon (held.cuh) have a loop for this call
  kHeadsWeightElement = 1 << 19,  // two bits: an OperandType
  kHeadsBiasElement = 1 << 21,    // two bits: an OperandType
  kHeadsCacheBlocks = 1 << 23,    // codes with a scale for each block of columns
  kHeadsFactorFirst = 1 << 24,    // x * (rstd * weight)
  kHeadsDivides = 1 << 25,        // kMore: codes are of x / scale, not of x * (1 / scale)
  kHeadsCodesOfY = 1 << 26,       // kMore: y has codes; kIndexer, kLatent: the codes are those of y
  kHeadsCodesWide = 1 << 27,      // kIndexer: a vector's codes can be stored at once
};

// A row or a value of each token and head. Strides are in bytes.
struct HeadsTensor {
  char* data;  // nullptr = absent
  int64_t token_stride, head_stride;
};

// What a head's weight is multiplied by and where the product goes, besides the scale of its codes.
struct HeadWeightParams {
  HeadsTensor in, out;  // out.data nullptr = absent
  OperandType type;     // of in
  float factor;
};

struct HeadsPages {
  char* data;  // nullptr = absent
  int64_t page_stride, row_stride, head_stride;
};

struct HeadsTable {
  const char* data;
  int64_t row_stride, head_stride;
};

// i32 or i64, by `wide`.
struct HeadsNumbers {
  const char* data;  // nullptr = absent
  int64_t axis_stride, stride;
  uint32_t wide;
};

// What the parts share.
struct HeadsShared {
  uint32_t tokens;
  uint32_t slot_count;  // tokens from here on are padding; without slots, the tokens
  int32_t half;         // pairs that rotate
  int32_t axes;
  int32_t section_end[kMaxRopeAxes];
  bool mrope_interleaved;
  bool table_f32;      // else T
  bool table_repeats;  // 2 * half wide
  bool table_aligned;  // rows begin at multiples of 16 bytes
  HeadsTable cos, sin;
  HeadsNumbers positions, slots;
};

// A part of the general form.
struct HeadsPartParams {
  uint32_t bits;  // HeadsBits
  uint32_t heads;
  int32_t rope_offset;
  uint64_t first_block;
  int64_t page_size;
  HeadsTensor x, y, codes, scale;
  HeadsTensor mean, rstd, mean_in, rstd_in, sumsq;
  HeadsPages cache, cache_scale, cache_tail;
  int32_t tail_columns;  // of cache_tail, behind those of cache
  NormParams norm;       // what is not said above; inv_n is of what shares a statistic
  QuantParams cache_quant;
  RotationParams rotation, cache_rotation;
  HeadWeightParams weights;
};

struct NormHeadsParams {
  HeadsPartParams part[kMaxHeadsParts];
  int32_t count;
  bool triggers;    // the stream's next kernel may start early
  uint64_t blocks;  // of all parts
  HeadsShared shared;
};

// A part of the held forms.
struct HeldPartParams {
  uint32_t bits;  // HeadsBits
  uint32_t heads;
  uint32_t first_block;
  uint32_t groups;       // of lanes that share a token's heads; kTokens: of threads, in a block
  uint32_t steps;        // heads of each group of lanes, `groups` apart, one after another
  Divisor divisor;       // groups; kTokens: vectors. Of no use where that is 1
  int32_t vectors;       // of a head
  int32_t thread_shift;  // kTokens: a group has 2^thread_shift threads
  int32_t rope_offset;
  float inv_n, eps, weight_offset;
  HeadsTensor x;
  HeadsTensor y;  // or its codes
  const char *weight, *bias;
  int64_t weight_stride, bias_stride;  // bytes from a head's to the next one's
  HeadsPages cache;  // kIndexer, kLatent with kHeadsCodesOfY: the codes; a token is a page
  Divisor by_page;   // of no use with pages of one row
  CodeType code_type, y_code_type;  // of the cache and of y
  const float *cache_scale, *y_scale;
  HeadsTensor mean, rstd, mean_in, rstd_in, sumsq;
  HeadsPages scales;  // of the cache's blocks
  QuantParams quant;  // how they are made
};

struct HeldHeadsParams {
  HeldPartParams part[kMaxHeadsParts];
  int32_t count;
  bool triggers;  // the stream's next kernel may start early
  HeadsShared shared;
};
static_assert(sizeof(HeldHeadsParams) <= 4096);

// What a part of kIndexer has, too.
struct IndexerPartParams {
  RotationParams rotation;
  HeadWeightParams weights;
  int32_t first_rotated;  // the register of the first vector that rope rotates
};

struct IndexerParams : HeldHeadsParams {
  IndexerPartParams more[kMaxHeadsParts];
};

}  // namespace fastnorm::cuda
