// FlashMLA's decode behind C functions, without PyTorch: what compare_mla_decode.py calls. Dense:
// bf16, pages of 64. Selected rows: 656 bytes each, 64 or 128 heads. One KV head, compact tensors.
// build_flashmla.py compiles it with FlashMLA's own kernels.
#include <params.h>
#include <sm90/decode/dense/splitkv_mla.h>
#include <sm90/decode/sparse_fp8/splitkv_mla.h>
#include <smxx/decode/combine/combine.h>
#include <smxx/decode/get_decoding_sched_meta/get_decoding_sched_meta.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace {

constexpr int kLatent = 512, kWide = 576, kPage = 64;
constexpr int kFp8Row = 656;  // bytes: codes, four scales of f32, RoPE of bf16

// What get_mla_metadata takes as given: tokens of a block, and blocks that a request costs.
constexpr int kBlock = 64, kRequestBlocks = 5;

}  // namespace

struct FlashMlaCall {
  const void *q, *cache;           // [batch, s_q, heads, 576], [pages, 64, 576]
  void* o;                         // [batch, s_q, heads, 512]
  float* lse;                      // [batch, s_q * heads]
  const int32_t* lengths;          // [batch]
  const int32_t* table;            // [batch, table_columns]; as many indices of each new token
  void* plan;                      // [parts] of 32 bytes
  int32_t* splits;                 // [batch + 1]
  float *partial_o, *partial_lse;  // [batch + parts, s_q * heads, 512], without the columns
  int32_t batch, s_q, heads, pages, table_columns, parts, causal, selects;
  float scale;
  void* stream;
};

namespace {

void merge_parts(const FlashMlaCall* call) {
  const int rows = call->s_q * call->heads;
  CombineParams merge = {};
  merge.b = call->batch;
  merge.s_q = call->s_q;
  merge.h_q = call->heads;
  merge.d_v = kLatent;
  merge.lse = call->lse;
  merge.out = call->o;
  merge.stride_lse_b = rows;
  merge.stride_lse_s_q = call->heads;
  merge.stride_o_b = rows * kLatent;
  merge.stride_o_s_q = call->heads * kLatent;
  merge.stride_o_h_q = kLatent;
  merge.lse_accum = call->partial_lse;
  merge.o_accum = call->partial_o;
  merge.stride_lse_accum_split = rows;
  merge.stride_lse_accum_s_q = call->heads;
  merge.stride_o_accum_split = rows * kLatent;
  merge.stride_o_accum_s_q = call->heads * kLatent;
  merge.stride_o_accum_h_q = kLatent;
  merge.tile_scheduler_metadata_ptr = static_cast<DecodingSchedMeta*>(call->plan);
  merge.num_splits_ptr = call->splits;
  merge.num_sm_parts = call->parts;
  merge.stream = static_cast<cudaStream_t>(call->stream);
  smxx::decode::run_flash_mla_combine_kernel<cutlass::bfloat16_t>(merge);
}

}  // namespace

extern "C" int32_t flashmla_parts(int32_t rows, int32_t multiprocessors) {
  return std::max(multiprocessors / ((rows + 63) / 64), 1);
}

extern "C" void flashmla_plan(const FlashMlaCall* call) {
  GetDecodeSchedMetaParams params = {};
  params.b = call->batch;
  params.s_q = call->s_q;
  params.block_size_n = kBlock;
  params.fixed_overhead_num_blocks = kRequestBlocks;
  params.topk = call->selects != 0 ? call->table_columns : -1;
  params.extra_topk = call->selects != 0 ? 0 : -1;
  params.seqlens_k_ptr = const_cast<int*>(call->lengths);
  params.tile_scheduler_metadata_ptr = static_cast<DecodingSchedMeta*>(call->plan);
  params.num_splits_ptr = call->splits;
  params.num_sm_parts = call->parts;
  params.stream = static_cast<cudaStream_t>(call->stream);
  smxx::decode::run_get_decoding_sched_meta_kernel(params);
}

extern "C" void flashmla_decode(const FlashMlaCall* call) {
  const int rows = call->s_q * call->heads;
  DenseAttnDecodeParams params = {};
  params.b = call->batch;
  params.s_q = call->s_q;
  params.q_seq_per_hk = rows;
  params.d = kWide;
  params.d_v = kLatent;
  params.h_q = call->heads;
  params.h_k = 1;
  params.num_blocks = call->pages;
  params.q_head_per_hk = call->heads;
  params.is_causal = call->causal != 0 && call->s_q > 1;
  params.scale_softmax = call->scale;
  params.scale_softmax_log2 = static_cast<float>(call->scale * 1.4426950408889634);
  params.q_ptr = const_cast<void*>(call->q);
  params.k_ptr = const_cast<void*>(call->cache);
  params.o_ptr = call->o;
  params.softmax_lse_ptr = call->lse;
  params.q_batch_stride = int64_t{rows} * kWide;
  params.k_batch_stride = int64_t{kPage} * kWide;
  params.o_batch_stride = int64_t{rows} * kLatent;
  params.q_row_stride = kWide;
  params.k_row_stride = kWide;
  params.o_row_stride = kLatent;
  params.q_head_stride = kWide;
  params.k_head_stride = kWide;
  params.o_head_stride = int64_t{rows} * kLatent;
  params.block_table = const_cast<int*>(call->table);
  params.block_table_batch_stride = call->table_columns;
  params.page_block_size = kPage;
  params.seqlens_k_ptr = const_cast<int*>(call->lengths);
  params.tile_scheduler_metadata_ptr = static_cast<DecodingSchedMeta*>(call->plan);
  params.num_sm_parts = call->parts;
  params.num_splits_ptr = call->splits;
  params.total_num_splits = call->batch + call->parts;
  params.softmax_lseaccum_ptr = call->partial_lse;
  params.oaccum_ptr = call->partial_o;
  params.stream = static_cast<cudaStream_t>(call->stream);
  sm90::run_flash_splitkv_mla_kernel<cutlass::bfloat16_t>(params);

  merge_parts(call);
}

// `cache` has rows of FP8 codes and `table` the selected ones, a multiple of 64 of them.
extern "C" void flashmla_decode_selected(const FlashMlaCall* call) {
  const int rows = call->s_q * call->heads;
  SparseAttnDecodeParams params = {};
  params.b = call->batch;
  params.s_q = call->s_q;
  params.h_q = call->heads;
  params.h_kv = 1;
  params.d_qk = kWide;
  params.d_v = kLatent;
  params.sm_scale = call->scale;
  params.sm_scale_div_log2 = static_cast<float>(call->scale * 1.4426950408889634);
  params.num_blocks = call->pages;
  params.page_block_size = kPage;
  params.topk = call->table_columns;
  params.model_type = ModelType::V32;
  params.q = static_cast<cutlass::bfloat16_t*>(const_cast<void*>(call->q));
  params.kv = static_cast<cutlass::bfloat16_t*>(const_cast<void*>(call->cache));
  params.indices = const_cast<int*>(call->table);
  params.lse = call->lse;
  params.out = static_cast<cutlass::bfloat16_t*>(call->o);
  params.stride_q_b = rows * kWide;
  params.stride_q_s_q = call->heads * kWide;
  params.stride_q_h_q = kWide;
  params.stride_kv_block = kPage * kFp8Row;
  params.stride_kv_row = kFp8Row;
  params.stride_indices_b = call->s_q * call->table_columns;
  params.stride_indices_s_q = call->table_columns;
  params.stride_lse_b = rows;
  params.stride_lse_s_q = call->heads;
  params.stride_o_b = rows * kLatent;
  params.stride_o_s_q = call->heads * kLatent;
  params.stride_o_h_q = kLatent;
  params.stream = static_cast<cudaStream_t>(call->stream);
  params.lse_accum = call->partial_lse;
  params.o_accum = call->partial_o;
  params.stride_lse_accum_split = rows;
  params.stride_lse_accum_s_q = call->heads;
  params.stride_o_accum_split = rows * kLatent;
  params.stride_o_accum_s_q = call->heads * kLatent;
  params.stride_o_accum_h_q = kLatent;
  params.tile_scheduler_metadata_ptr = static_cast<DecodingSchedMeta*>(call->plan);
  params.num_splits_ptr = call->splits;
  params.num_sm_parts = call->parts;
  if (call->heads == 64) {
    sm90::decode::sparse_fp8::run_flash_splitkv_mla_fp8_sparse_kernel<ModelType::V32, 64>(params);
  } else {
    sm90::decode::sparse_fp8::run_flash_splitkv_mla_fp8_sparse_kernel<ModelType::V32, 128>(params);
  }
  merge_parts(call);
}
