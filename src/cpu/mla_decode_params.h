// The parameters of a CPU kernel of MLA decode. Plain data: units of any instruction set may
// include it.
#pragma once

#include <cstdint>

namespace fastnorm::cpu {

// Rows of contiguous elements; strides in bytes.
struct MlaDecodeRows {
  char* data;
  int64_t outer, inner;
};

struct MlaDecodeParams {
  MlaDecodeRows q_nope, q_pe, ckv, kpe, o;
  MlaDecodeRows lse;  // data may be nullptr
  const int32_t* kv_len;
  const int32_t* page_table;
  const int32_t* kv_indptr;  // may be nullptr
  const int32_t* qo_indptr;  // may be nullptr
  int64_t table_stride;      // elements
  int64_t tokens;
  int32_t batch, heads, s_q, page_size;
  bool causal;
  float scale_log2;  // sm_scale * log2(e)
  double lse_scale;  // 1: base 2; ln(2): natural
};

// How many heads share a pass over the token's cache.
inline constexpr int kMlaHeadGroup = 4;

// Computes the groups [begin, end). Group g belongs to token g / (groups of a token).
using MlaDecodeKernel = void (*)(const MlaDecodeParams& params, int64_t begin, int64_t end);

// By Dtype: f32, f16, bf16.
struct MlaDecodeKernels {
  MlaDecodeKernel at[3];
};

extern const MlaDecodeKernels kMlaDecodeScalar;
extern const MlaDecodeKernels kMlaDecodeAvx2;
extern const MlaDecodeKernels kMlaDecodeAvx512;
extern const MlaDecodeKernels kMlaDecodeNeon;

}  // namespace fastnorm::cpu
