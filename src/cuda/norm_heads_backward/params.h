// What kernels of norm_heads_backward get: one struct by value. CUDA-free.
#pragma once

#include <cstdint>

#include "core/norm_heads_backward/plan.h"
#include "cuda/norm_heads/params.h"

namespace fastnorm::cuda {

// Where a sum of each column goes: dweight or dbias.
struct HeadsSumOut {
  char* data;      // nullptr = not wanted
  int64_t stride;  // bytes from a group's to the next one's
  Dtype dtype;
  bool accumulates;
};

// Which rows a block has, and where their sums go.
struct HeadsRowOrder {
  uint32_t first_block;
  uint32_t groups;       // rows of the weight: 1, or one for each head
  uint32_t shared_rows;  // of a group: of (token, head), or with several groups of tokens

  // Thread block b of a group has `lanes` lanes of block b / split of the row order: b % split, and
  // every split-th one after it.
  uint32_t lanes, blocks, split;
  uint32_t step;      // lanes * blocks: from a row of a lane to its next
  float* partial[2];  // of dweight and dbias: [group][block][partial_stride]; null = not wanted
  int64_t partial_stride;  // floats
  HeadsSumOut out[2];      // in place of `partial` where a group has one block
};

// A part of the general form. `forward` has x, the rope as dy rotates by it, and the statistics.
struct HeadsGradientParams {
  HeadsPartParams forward;
  HeadsRowOrder order;
  HeadsTensor dy, dx;
  const char* weight;  // nullptr = 1
  int64_t weight_stride;
  float* token_values;  // ACROSS_HEADS: [tokens][kTokenFloats]
  float weight_offset;
  Dtype dy_dtype, weight_dtype;
  bool tokens;        // its blocks have tokens, for what their heads share; else rows
  bool dy_is_scalar;  // a row of dy is one element
  bool wants_dx;      // of the call, so that tokens have c1 and c2
  bool round_normalized, round_gain;
};

struct NormHeadsBackwardParams {
  HeadsGradientParams part[kMostHeadsGradients];
  int32_t count;
  bool triggers;
  HeadsShared shared;
};
static_assert(sizeof(NormHeadsBackwardParams) < 32000);

// A row or a value of each token and head. Strides are in bytes, and narrow, so that an address
// takes a product of 32-bit factors for each.
struct HeldTensor {
  char* data;  // nullptr = absent
  int32_t token_stride, head_stride;
};

// From a row to another: so many tokens and heads, or one token more and fewer heads.
struct HeldStep {
  uint32_t tokens, heads;
};

// A part of the forms that hold rows, or the heads of a token.
struct HeldGradientParams {
  uint32_t bits;  // HeadsBits
  uint32_t heads, tokens;
  HeldStep step;        // from a row of a lane to its next
  HeldStep step_ahead;  // to the one that is copied meanwhile
  HeadsRowOrder order;
  Divisor by_heads;        // of no use with one head
  Divisor by_vectors;      // of no use with one vector
  int32_t vectors;         // of a row
  uint32_t token_threads;  // kWhole: a power of two, at least a warp; or all of a block
  int32_t rope_offset;
  float inv_n, eps, weight_offset;
  bool round_normalized, round_gain;
  Dtype weight_dtype;
  HeldTensor x, dy, dx, mean, rstd;
  const char* weight;  // nullptr = 1
  int64_t weight_stride;
  float* token_values;  // ACROSS_HEADS: [tokens][kTokenFloats]
};

struct HeldHeadsBackwardParams {
  HeldGradientParams part[kMaxHeadsParts];
  int32_t count;
  bool triggers;
  HeadsShared shared;
};
static_assert(sizeof(HeldHeadsBackwardParams) <= 4096);

// dweight or dbias of a part.
struct HeadsFoldSum {
  uint32_t first_block;
  uint32_t groups, blocks;  // of the row order
  uint32_t split;           // sums of a block: [group][block][split][partial_stride]
  const float* partial;
  int64_t partial_stride;
  int64_t n;
  HeadsSumOut out;
};

struct HeadsFoldParams {
  HeadsFoldSum sum[kMostHeadsGradients];
  int32_t count;
  bool triggers;
};

}  // namespace fastnorm::cuda
