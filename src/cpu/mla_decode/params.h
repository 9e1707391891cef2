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

// What the rows of a cache are made of, as in core/mla_decode/desc.h.
enum class MlaRows : int32_t { kOfT, kFp8Blocks, kFp8Tensor, kFp8Pages };

// The rows of a cache that new tokens attend to. Strides are in elements.
struct MlaDecodeSelected {
  const int32_t* indices;  // [batch][s_q][topk], or nullptr
  int64_t outer, inner, topk;
  const int32_t* lengths;  // [batch][s_q], or nullptr
  int64_t length_outer, length_inner;
};

struct MlaDecodePages {
  MlaDecodeRows ckv, kpe;  // FP8: the bytes are ckv
  int64_t page_size;
  MlaDecodeSelected selected;  // of a sparse call
};

struct MlaDecodeParams {
  MlaDecodeRows q_nope, q_pe, o;
  MlaDecodePages cache[2];  // the second of a sparse call
  int32_t caches;           // 1 or 2
  MlaRows format;
  const float* cache_scale;  // nullptr = 1
  const float* sink;         // [heads], or nullptr
  MlaDecodeRows lse;         // data may be nullptr
  const int32_t* kv_len;
  const int32_t* page_table;
  const int32_t* kv_indptr;  // may be nullptr
  const int32_t* qo_indptr;  // may be nullptr
  int64_t table_stride;      // elements
  int64_t tokens;
  int32_t batch, heads, s_q;
  bool sparse, causal;
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
