#include "cuda/mla_decode/launch_params.h"

#include <algorithm>

#include "core/common/pdl.h"

namespace fastnorm::cuda {
namespace {

constexpr int64_t kSubTileBytes = 128;  // of a row
constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.6931471805599453;

TokenRows token_rows(const MlaDecodeTensor& tensor) {
  return {reinterpret_cast<char*>(tensor.data), tensor.outer, tensor.inner};
}

PageRows page_rows(const MlaDecodeTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data), tensor.outer, tensor.inner};
}

// A dimension of extent 1 may have any stride; a tensor map wants a proper one.
int64_t proper(int64_t stride, int64_t extent) { return extent > 1 ? stride : kSubTileBytes; }

MlaDecodeBox rows_box(const MlaDecodeDesc& desc, const MlaDecodeTensor& tensor, RowAccess access,
                      int32_t tile_rows, uint32_t sub_tiles, uint32_t box_sub_tiles) {
  const auto heads = static_cast<uint64_t>(desc.heads);
  const auto rows = static_cast<uint32_t>(tile_rows);
  MlaDecodeBox box = {reinterpret_cast<const char*>(tensor.data),
                      {1, 1, sub_tiles},
                      {kSubTileBytes, kSubTileBytes, kSubTileBytes},
                      {rows, 1, box_sub_tiles}};
  if (access == RowAccess::kRequestRows) {
    const int64_t stride = row_stride(desc, tensor);
    box.extent[0] = static_cast<uint64_t>(desc.rows());
    box.extent[1] = static_cast<uint64_t>(desc.batch);
    box.stride[0] = proper(stride, desc.rows());
    box.stride[1] = proper(stride * desc.rows(), desc.batch);
  } else if (access == RowAccess::kTokenRows) {
    box.extent[0] = heads;
    box.extent[1] = static_cast<uint64_t>(desc.tokens);
    box.stride[0] = proper(tensor.inner, desc.heads);
    box.stride[1] = proper(tensor.outer, desc.tokens);
    const bool several = desc.max_s_q > 1 && desc.heads < tile_rows;  // tokens of a box
    if (several) box.box[0] = static_cast<uint32_t>(heads);
    if (several) box.box[1] = rows / static_cast<uint32_t>(heads);
  }
  return box;
}

MlaDecodeBox pages_box(const MlaDecodeDesc& desc, const MlaDecodeTensor& tensor, bool boxed,
                       uint32_t sub_tiles) {
  MlaDecodeBox box = {reinterpret_cast<const char*>(tensor.data),
                      {1, sub_tiles, 1},
                      {kSubTileBytes, kSubTileBytes, kSubTileBytes},
                      {kMlaTileTokens, 1, 1}};
  if (!boxed) return box;
  box.extent[0] = static_cast<uint64_t>(desc.page_size);
  box.extent[2] = static_cast<uint64_t>(std::max(desc.pages, 1));
  box.stride[0] = proper(tensor.inner, desc.page_size);
  box.stride[2] = proper(tensor.outer, desc.pages);
  box.box[0] = static_cast<uint32_t>(std::min(desc.page_size, kMlaTileTokens));
  return box;
}

}  // namespace

PageSize make_page_size(int32_t size) {
  // With the least power of two from `size` on, 2^(31 + k) / size lies in [2^31, 2^32). Rounded up
  // it is at most size - 1 < 2^k over, divided by size; times n < 2^31 that is below 2^(31 + k).
  int32_t k = 0;
  while ((int64_t{1} << k) < size) ++k;
  const uint64_t power = uint64_t{1} << (31 + k);
  const auto divisor = static_cast<uint64_t>(size);
  return {size, static_cast<uint32_t>((power + divisor - 1) / divisor), 31 + k};
}

MlaDecodeParams make_mla_decode_params(const MlaDecodeDesc& call, const MlaDecodePlan& plan,
                                       void* workspace) {
  const MlaDecodeDesc desc = with_token_requests(call);
  char* const base = static_cast<char*>(workspace);
  MlaDecodeParams p = {};
  p.q_nope = token_rows(desc.q_nope);
  p.q_pe = token_rows(desc.q_pe);
  p.o = token_rows(desc.o);
  p.ckv = page_rows(desc.ckv);
  p.kpe = page_rows(desc.kpe);
  p.kv_len = desc.kv_len;
  p.page_table = desc.page_table;
  p.kv_indptr = desc.kv_indptr;
  p.qo_indptr = desc.qo_indptr;
  p.lse = reinterpret_cast<float*>(desc.lse.data);
  p.lse_token_stride = desc.lse.outer / static_cast<int64_t>(sizeof(float));
  p.lse_head_stride = desc.lse.inner / static_cast<int64_t>(sizeof(float));
  p.table_stride = desc.table_stride;
  p.cache_scale = desc.cache_scale;
  p.sink = desc.sink;
  p.sparse = desc.sparse;
  p.has_extra = desc.has_extra;
  p.selected_s_q = call.max_s_q;
  p.selection = desc.selection;
  p.extra = {page_rows(desc.extra.ckv), page_rows(desc.extra.kpe), desc.extra.selection,
             make_page_size(std::max(desc.extra.page_size, 1))};
  p.plan = reinterpret_cast<MlaDecodePlanHeader*>(base);
  p.parts = reinterpret_cast<MlaDecodePart*>(base + plan.parts_offset);
  p.splits = reinterpret_cast<MlaDecodeSplit*>(base + plan.splits_offset);
  p.pairs = reinterpret_cast<MlaDecodePair*>(base + plan.pairs_offset);
  p.scan = reinterpret_cast<int32_t*>(base + plan.scan_offset);
  p.partial_lse = reinterpret_cast<float*>(base + plan.partial_lse_offset);
  p.partial_o = reinterpret_cast<float*>(base + plan.partial_o_offset);
  p.profile = reinterpret_cast<unsigned char*>(desc.profile);
  p.profile_capacity = desc.profile_events;
  p.requests = desc.batch;
  p.heads = desc.heads;
  p.s_q = plan.s_q;
  p.m_tiles = plan.m_tiles;
  p.parts_count = plan.parts;
  p.splits_room = static_cast<int32_t>(plan.max_splits);
  p.pairs_room = static_cast<int32_t>(plan.max_pairs);
  p.split_tiles = plan.split_tiles;
  p.page = make_page_size(desc.page_size);
  p.causal = desc.causal;
  p.q_access = plan.q_access;
  p.o_access = plan.o_access;
  p.o_clips = p.o_access == RowAccess::kRequestRows || desc.max_s_q == 1;
  p.boxed_pages = plan.boxed_pages;
  p.scale_log2 = static_cast<float>(desc.sm_scale * kLog2E);
  p.lse_scale = desc.lse_base_2 ? 1.0f : static_cast<float>(kLn2);
  p.never = -7;
  p.call_triggers = (desc.pdl & kPdlTrigger) != 0;
  p.attention_triggers = plan.may_split || p.call_triggers;  // the merge waits itself
  return p;
}

MlaDecodeBoxes make_mla_decode_boxes(const MlaDecodeDesc& call, const MlaDecodePlan& plan) {
  const MlaDecodeDesc desc = with_token_requests(call);
  const auto nope = static_cast<uint32_t>(desc.layout().nope) / 64;
  // A consumer stores its half of the columns. There is one where rows are few.
  const uint32_t stored = plan.tile_rows == kMlaTileRows ? 4 : 8;
  return {rows_box(desc, desc.q_nope, plan.q_access, plan.tile_rows, nope, nope),
          rows_box(desc, desc.q_pe, plan.q_access, plan.tile_rows, 1, 1),
          pages_box(desc, desc.ckv, plan.boxed_pages, 8),
          pages_box(desc, desc.kpe, plan.boxed_pages, 1),
          rows_box(desc, desc.o, plan.o_access, plan.tile_rows, 8, stored)};
}

}  // namespace fastnorm::cuda
