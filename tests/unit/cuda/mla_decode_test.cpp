// MLA decode from the C ABI to its calls of the CUDA runtime, which only records them.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cuda/mla_decode/params.h"
#include "fastnorm/fastnorm.h"
#include "unit/cuda/pretend_runtime.h"

namespace fastnorm::test {
namespace {

constexpr uintptr_t kMemory = uintptr_t{1} << 40;  // nothing is there
void* const kStream = reinterpret_cast<void*>(uintptr_t{48});
void* const kWorkspace = reinterpret_cast<void*>(uintptr_t{1} << 38);

// Three requests, with a block table of six pages each.
struct MlaCall {
  explicit MlaCall(int64_t s_q = 1, int64_t heads = 128, int64_t page = 64,
                   fastnorm_dtype_id dtype = FASTNORM_DTYPE_BF16)
      : q_shape{3 * s_q, heads, 512},
        pe_shape{3 * s_q, heads, 64},
        ckv_shape{20, page, 512},
        kpe_shape{20, page, 64},
        table_shape{3, 6} {
    const struct {
      fastnorm_tensor* tensor;
      const int64_t* shape;
      int32_t rank;
      fastnorm_dtype_id dtype;
    } all[] = {{&q_nope, q_shape, 3, dtype},
               {&q_pe, pe_shape, 3, dtype},
               {&ckv, ckv_shape, 3, dtype},
               {&kpe, kpe_shape, 3, dtype},
               {&o, q_shape, 3, dtype},
               {&lse, q_shape, 2, FASTNORM_DTYPE_F32},
               {&kv_len, table_shape, 1, FASTNORM_DTYPE_I32},
               {&table, table_shape, 2, FASTNORM_DTYPE_I32},
               {&profile, profile_shape, 1, FASTNORM_DTYPE_U8}};
    int number = 0;
    for (const auto& a : all) {
      a.tensor->data = reinterpret_cast<void*>(kMemory + (static_cast<uintptr_t>(++number) << 36));
      a.tensor->device_type = FASTNORM_DEVICE_CUDA;
      a.tensor->ndim = a.rank;
      a.tensor->dtype = fastnorm_dtype_of(a.dtype);
      a.tensor->shape = a.shape;
    }
    args.struct_size = sizeof args;
    args.sm_scale = 0.125;
    args.q_nope = &q_nope;
    args.q_pe = &q_pe;
    args.ckv = &ckv;
    args.kpe = &kpe;
    args.o = &o;
    args.lse = &lse;
    args.kv_len = &kv_len;
    args.page_table = &table;
  }
  MlaCall(const MlaCall&) = delete;

  int64_t q_shape[3], pe_shape[3], ckv_shape[3], kpe_shape[3], table_shape[2];
  int64_t profile_shape[1] = {1 << 26};
  fastnorm_tensor q_nope = {}, q_pe = {}, ckv = {}, kpe = {}, o = {}, lse = {}, kv_len = {},
                  table = {}, profile = {};
  fastnorm_mla_decode_args args = {};
};

struct Recorded {
  Launch launch;
  cuda::MlaDecodeParams params;
};
thread_local std::vector<Recorded> recorded;

void record(const Launch& launch) {
  recorded.push_back({launch, *static_cast<const cuda::MlaDecodeParams*>(launch.params)});
}

class CudaMlaDecode : public testing::Test {
 protected:
  void SetUp() override {
    machine = {};
    notes = {};
    notes.on_launch = record;
    recorded.clear();
    ASSERT_EQ(fastnorm_context_create({FASTNORM_DEVICE_CUDA, 0}, nullptr, &context), FASTNORM_OK)
        << fastnorm_last_error();
    notes.loaded.clear();
  }
  void TearDown() override { fastnorm_context_destroy(context); }

  size_t workspace_bytes(const MlaCall& call) {
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    EXPECT_EQ(fastnorm_mla_decode_query(context, &call.args, &info), FASTNORM_OK)
        << fastnorm_last_error();
    return static_cast<size_t>(info.workspace_bytes);
  }
  fastnorm_status try_run(const MlaCall& call) {
    recorded.clear();
    return fastnorm_mla_decode(context, &call.args, kWorkspace, workspace_bytes(call), kStream);
  }
  void run(const MlaCall& call) { ASSERT_EQ(try_run(call), FASTNORM_OK) << fastnorm_last_error(); }

  fastnorm_context* context = nullptr;
  const MlaKernels kernels = mla_kernels();
};

TEST_F(CudaMlaDecode, PlanAttentionAndMerge) {
  const MlaCall call;
  run(call);
  ASSERT_EQ(recorded.size(), 3u);
  EXPECT_EQ(recorded[0].launch.kernel, kernels.plan);
  EXPECT_EQ(recorded[0].launch.grid.x, 1u);
  EXPECT_EQ(recorded[0].launch.early, 1);
  EXPECT_EQ(recorded[1].launch.kernel, kernels.attention[0][0]);
  EXPECT_EQ(recorded[1].launch.grid.x, 2u);
  EXPECT_EQ(recorded[1].launch.grid.y, 66u);
  EXPECT_EQ(recorded[1].launch.block.x, 384u);
  EXPECT_EQ(recorded[1].launch.shared_bytes, 231000u);
  EXPECT_EQ(recorded[1].launch.early, 1);
  EXPECT_EQ(recorded[2].launch.kernel, kernels.merge[0]);
  EXPECT_EQ(recorded[2].launch.early, 1);
  EXPECT_EQ(notes.tensor_maps, 5);
  for (const Recorded& r : recorded) {
    EXPECT_EQ(r.launch.stream, kStream);
    EXPECT_EQ(r.launch.context, primary_context(0));
    EXPECT_EQ(r.params.requests, 3);
    EXPECT_EQ(r.params.heads, 128);
    EXPECT_EQ(r.params.s_q, 1);
    EXPECT_EQ(r.params.m_tiles, 2);
    EXPECT_EQ(r.params.parts_count, 66);
    EXPECT_EQ(r.params.page.size, 64);
    EXPECT_EQ(r.params.boxed_pages, 1);
    EXPECT_EQ(r.params.table_stride, 6);
    EXPECT_EQ(r.params.profile, nullptr);
    EXPECT_TRUE(r.params.attention_triggers && r.params.call_triggers);
    EXPECT_NEAR(r.params.scale_log2, 0.125 * 1.4426950408889634, 1e-7);
    EXPECT_NEAR(r.params.lse_scale, std::log(2.0), 1e-7);
  }
  EXPECT_EQ(notes.context, nullptr) << "current is what was";
}

// Without dependent launch before and behind the call, its kernels still start early behind each
// other.
TEST_F(CudaMlaDecode, NoDependentLaunchAroundTheCall) {
  MlaCall call;
  call.args.flags = FASTNORM_MLA_DECODE_NO_PDL;
  run(call);
  ASSERT_EQ(recorded.size(), 3u);
  EXPECT_EQ(recorded[0].launch.early, -1);
  EXPECT_EQ(recorded[1].launch.early, 1);
  EXPECT_EQ(recorded[2].launch.early, 1);
  EXPECT_TRUE(recorded[1].params.attention_triggers) << "for the merge";
  EXPECT_FALSE(recorded[2].params.call_triggers);
  for (const uint32_t flags : {0u, uint32_t{FASTNORM_MLA_DECODE_NO_PDL}}) {
    const int early = flags == 0 ? 1 : -1;
    call.args.flags = flags;
    call.args.reuse_plan = 1;
    run(call);
    ASSERT_EQ(recorded.size(), 2u) << "no plan";
    EXPECT_EQ(recorded[0].launch.early, early) << "the attention is the call's first kernel";
    MlaCall whole(140, 64);
    whole.args.flags = flags;
    run(whole);
    ASSERT_EQ(recorded.size(), 2u) << "no merge";
    EXPECT_EQ(recorded[1].params.attention_triggers, flags == 0);
  }
  call.args.flags = 1;
  EXPECT_EQ(fastnorm_mla_decode(context, &call.args, kWorkspace, 1 << 30, kStream),
            FASTNORM_ERROR_UNSUPPORTED);
}

TEST_F(CudaMlaDecode, TheWorkspaceHoldsWhatTheKernelsGet) {
  const MlaCall call(2, 33);
  run(call);
  const cuda::MlaDecodeParams& p = recorded.at(0).params;
  const auto at = [](const void* pointer) {
    return static_cast<const char*>(pointer) - static_cast<const char*>(kWorkspace);
  };
  EXPECT_EQ(at(p.plan), 0);
  EXPECT_GE(at(p.parts), 16);
  EXPECT_GE(at(p.splits), at(p.parts) + 32 * p.parts_count);
  EXPECT_GE(at(p.pairs), at(p.splits) + 16 * p.splits_room);
  EXPECT_EQ(p.pairs_room, 2 * p.parts_count);
  EXPECT_GT(at(p.partial_lse), at(p.pairs) + 16 * p.pairs_room * p.m_tiles);
  EXPECT_GT(at(p.partial_o), at(p.partial_lse));
  const int64_t rows = int64_t{p.m_tiles} * 64 * 2 * p.parts_count;
  EXPECT_EQ(at(p.partial_o) + rows * 2048, static_cast<int64_t>(workspace_bytes(call)));
  EXPECT_EQ(p.lse_token_stride, 33);
  EXPECT_EQ(p.lse_head_stride, 1);
  EXPECT_EQ(p.o.token_stride, 33 * 1024);
  EXPECT_EQ(p.o.head_stride, 1024);
}

TEST_F(CudaMlaDecode, WhatIsLaunchedDependsOnTheCall) {
  MlaCall call(1, 128, 64, FASTNORM_DTYPE_F16);
  call.args.reuse_plan = 1;
  run(call);
  ASSERT_EQ(recorded.size(), 2u) << "no plan";
  EXPECT_EQ(recorded[0].launch.kernel, kernels.attention[1][0]);
  EXPECT_EQ(recorded[1].launch.kernel, kernels.merge[1]);
  call.args.reuse_plan = 0;
  call.args.split_tokens = 384;  // a request's six pages
  run(call);
  ASSERT_EQ(recorded.size(), 2u) << "no merge";
  EXPECT_EQ(recorded[1].params.split_tiles, 6);
  call.args.split_tokens = 128;
  run(call);
  EXPECT_EQ(recorded.size(), 3u);
  const MlaCall many_rows(140, 64);  // an m-tile for each multiprocessor and more
  run(many_rows);
  ASSERT_EQ(recorded.size(), 2u) << "nothing is split";
  EXPECT_EQ(recorded[1].launch.grid.x, 140u);
  EXPECT_EQ(recorded[1].launch.grid.y, 1u);
}

TEST_F(CudaMlaDecode, PagesByBoxesOrByRows) {
  for (const int64_t page : {16, 32, 64, 128, 192}) {
    run(MlaCall(1, 16, page));
    EXPECT_EQ(recorded.at(1).params.boxed_pages, 1) << page;
  }
  for (const int64_t page : {1, 2, 8, 24, 48, 65, 96}) {
    run(MlaCall(1, 16, page));
    EXPECT_EQ(recorded.at(1).params.boxed_pages, 0) << page;
  }
}

// A request has 2 tokens of 3 heads: 6 rows of 1024 bytes, or of 128. A box takes rows of a request
// and no others, so the map's dimensions are columns, a request's rows, requests, and sub-tiles.
TEST_F(CudaMlaDecode, MapsOfRequestsStepFromRequestToRequest) {
  const MlaCall call(2, 3);
  run(call);
  EXPECT_EQ(recorded.at(1).params.q_access, RowAccess::kRequestRows);
  ASSERT_EQ(notes.maps.size(), 5u);
  const struct {
    const TensorMap& map;
    const fastnorm_tensor& tensor;
    uint64_t row_bytes;
  } of_rows[] = {{notes.maps[0], call.q_nope, 1024},
                 {notes.maps[1], call.q_pe, 128},
                 {notes.maps[4], call.o, 1024}};
  for (const auto& m : of_rows) {
    EXPECT_EQ(m.map.address, m.tensor.data);
    EXPECT_EQ(m.map.extent[1], 6u) << "rows";
    EXPECT_EQ(m.map.extent[2], 3u) << "requests";
    EXPECT_EQ(m.map.stride[0], m.row_bytes);
    EXPECT_EQ(m.map.stride[1], 6 * m.row_bytes);
    EXPECT_EQ(m.map.stride[2], 128u) << "sub-tiles of 64 columns";
  }
}

// Two rows are enough for a stride of their own: here those of a request of 2 tokens and one head.
TEST_F(CudaMlaDecode, MapsOfTwoRows) {
  run(MlaCall(2, 1));
  EXPECT_EQ(recorded.at(1).params.q_access, RowAccess::kRequestRows);
  EXPECT_EQ(notes.maps.at(0).extent[1], 2u);
  EXPECT_EQ(notes.maps.at(0).stride[0], 1024u);
}

// Boxes of o end with a request where its rows have a dimension, or are the heads of one token.
TEST_F(CudaMlaDecode, BoxesOfOutputsThatClip) {
  run(MlaCall(1, 16));
  EXPECT_EQ(recorded.at(1).params.o_clips, 1) << "16 heads of one token";
  run(MlaCall(2, 3));
  EXPECT_EQ(recorded.at(1).params.o_clips, 1) << "rows of a request";
  run(MlaCall(2, 128));
  EXPECT_EQ(recorded.at(1).params.o_clips, 0) << "tokens of 128 heads fill their boxes";
}

// Maps of tokens step from head to head and from token to token.
TEST_F(CudaMlaDecode, MapsOfTokensStepFromTokenToToken) {
  const MlaCall call(1, 128);
  run(call);
  EXPECT_EQ(recorded.at(1).params.q_access, RowAccess::kTokenRows);
  const TensorMap& q = notes.maps.at(0);
  EXPECT_EQ(q.extent[1], 128u);
  EXPECT_EQ(q.extent[2], 3u);
  EXPECT_EQ(q.stride[0], 1024u);
  EXPECT_EQ(q.stride[1], 128u * 1024);
  // Pages of 64 tokens, behind the sub-tiles of a row.
  const TensorMap &ckv = notes.maps.at(2), &kpe = notes.maps.at(3);
  EXPECT_EQ(ckv.extent[1], 64u);
  EXPECT_EQ(ckv.extent[3], 20u);
  EXPECT_EQ(ckv.stride[0], 1024u);
  EXPECT_EQ(ckv.stride[2], 64u * 1024);
  EXPECT_EQ(kpe.stride[0], 128u);
  EXPECT_EQ(kpe.stride[2], 64u * 128);
}

// Few query rows: an m-tile of 16 of them, and one consumer, whose box stores all columns.
TEST_F(CudaMlaDecode, FewRows) {
  const struct {
    int64_t s_q, heads, page;
    fastnorm_dtype_id dtype;
    const void* kernel;
    RowAccess access;
    uint32_t rows[3];  // of a map: its first dimension behind columns, and the box there
    uint32_t page_rows;
  } cases[] = {
      {1, 16, 64, FASTNORM_DTYPE_BF16, kernels.swapped[0], RowAccess::kTokenRows, {16, 3, 16}, 64},
      {1, 5, 16, FASTNORM_DTYPE_F16, kernels.swapped[1], RowAccess::kTokenRows, {5, 3, 16}, 16},
      {1, 8, 32, FASTNORM_DTYPE_F16, kernels.swapped[1], RowAccess::kTokenRows, {8, 3, 16}, 32},
      {2,
       7,
       192,
       FASTNORM_DTYPE_BF16,
       kernels.swapped[0],
       RowAccess::kRequestRows,
       {14, 3, 16},
       64},
  };
  for (const auto& c : cases) {
    notes.maps.clear();
    run(MlaCall(c.s_q, c.heads, c.page, c.dtype));
    ASSERT_EQ(recorded.size(), 3u);
    const Recorded& attention = recorded[1];
    EXPECT_EQ(attention.launch.kernel, c.kernel);
    EXPECT_EQ(attention.launch.block.x, 192u);
    EXPECT_EQ(attention.launch.grid.x, 1u);
    EXPECT_EQ(attention.launch.grid.y, 132u);
    EXPECT_EQ(attention.launch.shared_bytes, 231000u);
    EXPECT_EQ(attention.launch.early, 1);
    EXPECT_EQ(attention.params.q_access, c.access);
    EXPECT_EQ(attention.params.o_access, c.access);
    EXPECT_EQ(attention.params.o_clips, 1);
    EXPECT_EQ(attention.params.boxed_pages, 1);
    EXPECT_EQ(attention.params.m_tiles, 1);
    ASSERT_EQ(notes.maps.size(), 5u);
    constexpr uint32_t kSubTiles[] = {8, 1, 1, 1, 8};  // of the boxes of q_nope, q_pe, ckv, kpe, o
    for (size_t i = 0; i < 5; ++i) {
      const TensorMap& map = notes.maps[i];
      const bool is_cache = i == 2 || i == 3;
      EXPECT_EQ(map.box[0], 64u);
      EXPECT_EQ(map.box[1], is_cache ? c.page_rows : c.rows[2]) << i;
      EXPECT_EQ(map.box[2], 1u) << i;
      EXPECT_EQ(map.box[3], kSubTiles[i]) << i;
      if (is_cache) continue;
      EXPECT_EQ(map.extent[1], c.rows[0]) << i;
      EXPECT_EQ(map.extent[2], c.rows[1]) << i;
    }
  }
  // Each is loaded once, by itself.
  notes.loaded.clear();
  const MlaCall again(1, 3), rows(1, 128);
  EXPECT_EQ(fastnorm_mla_decode_prepare(context, &again.args), FASTNORM_OK);
  EXPECT_TRUE(notes.loaded.empty());
  EXPECT_EQ(fastnorm_mla_decode_prepare(context, &rows.args), FASTNORM_OK);
  EXPECT_EQ(notes.loaded.back(), kernels.attention[0][0]);
}

// Two tokens of eight heads in one box, where requests have lists of tokens or lie apart. Outputs
// end with their request in no such box.
TEST_F(CudaMlaDecode, FewRowsOfTokens) {
  MlaCall call(2, 8);
  const int64_t wide[3] = {8 * 512 + 64, 512, 1};
  call.q_nope.strides = call.o.strides = wide;
  run(call);
  EXPECT_EQ(recorded.at(1).launch.kernel, kernels.swapped[0]);
  EXPECT_EQ(recorded[1].params.q_access, RowAccess::kTokenRows);
  EXPECT_EQ(recorded[1].params.o_access, RowAccess::kTokenRows);
  EXPECT_EQ(recorded[1].params.o_clips, 0);
  for (const size_t i : {0, 4}) {
    const TensorMap& map = notes.maps.at(i);
    EXPECT_EQ(map.extent[1], 8u);
    EXPECT_EQ(map.extent[2], 6u);
    EXPECT_EQ(map.stride[1], 8u * 1024 + 128);
    EXPECT_EQ(map.box[1], 8u);
    EXPECT_EQ(map.box[2], 2u);
    EXPECT_EQ(map.box[3], 8u);
  }
}

TEST_F(CudaMlaDecode, ProfilesHaveKernelsOfTheirOwn) {
  MlaCall call;
  call.args.profile = &call.profile;
  call.args.profile_events = 100;
  run(call);
  EXPECT_EQ(recorded.at(1).launch.kernel, kernels.attention[0][1]);
  EXPECT_EQ(static_cast<void*>(recorded[1].params.profile), call.profile.data);
  EXPECT_EQ(recorded[1].params.profile_capacity, 100);
  MlaCall few(1, 16);
  few.args.profile = &call.profile;
  few.args.profile_events = 100;
  run(few);
  EXPECT_EQ(recorded.at(1).launch.kernel, kernels.attention[0][1]);
  EXPECT_EQ(recorded[1].launch.block.x, 384u);
  call.profile_shape[0] = 1000;
  EXPECT_EQ(fastnorm_mla_decode_prepare(context, &call.args), FASTNORM_ERROR_SHAPE);
}

TEST_F(CudaMlaDecode, KernelsAreLoadedOnce) {
  MlaCall call;
  EXPECT_EQ(fastnorm_mla_decode_prepare(context, &call.args), FASTNORM_OK);
  EXPECT_EQ(notes.loaded.size(), 3u);
  EXPECT_EQ(notes.shared_bytes.at(kernels.attention[0][0]), 231000);
  machine.failures = {{"cudaFuncGetAttributes", cudaErrorMemoryAllocation}};
  run(call);  // not asked again
  EXPECT_EQ(fastnorm_mla_decode_prepare(context, &call.args), FASTNORM_OK);
  const MlaCall other(1, 128, 64, FASTNORM_DTYPE_F16);
  EXPECT_EQ(fastnorm_mla_decode_prepare(context, &other.args), FASTNORM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(try_run(other), FASTNORM_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(recorded.empty());
  machine.failures.clear();
  run(other);
}

// Rows of bytes that each of a request's two new tokens selects, with a sink: each new token is a
// request, and there are no maps of the cache.
TEST_F(CudaMlaDecode, GatheredRows) {
  MlaCall call(2);
  const int64_t bytes_shape[3] = {20, 64, 584}, indices_shape[3] = {3, 2, 100};
  const int64_t lengths_shape[2] = {3, 2}, sink_shape[1] = {128};
  call.q_shape[2] = 448;
  const int64_t o_shape[3] = {6, 128, 512};
  call.o.shape = o_shape;
  fastnorm_tensor cache = call.ckv, indices = call.table, lengths = call.table, sink = call.lse;
  cache.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_U8);
  cache.shape = bytes_shape;
  indices.ndim = 3;
  indices.shape = indices_shape;
  lengths.data = call.kv_len.data;
  lengths.shape = lengths_shape;
  sink.data = reinterpret_cast<void*>(kMemory + (uintptr_t{20} << 36));
  sink.ndim = 1;
  sink.shape = sink_shape;
  call.args.ckv = call.args.kpe = call.args.kv_len = call.args.page_table = nullptr;
  call.args.cache_format = FASTNORM_MLA_CACHE_BYTES_584;
  call.args.cache = &cache;
  call.args.indices = &indices;
  call.args.topk_length = &lengths;
  call.args.attention_sink = &sink;
  run(call);
  ASSERT_EQ(recorded.size(), 3u);
  EXPECT_EQ(recorded[1].launch.kernel, kernels.gather[0][3]);
  EXPECT_EQ(recorded[1].launch.block.x, 512u);
  EXPECT_EQ(recorded[1].launch.grid.x, 2u);
  EXPECT_EQ(recorded[1].launch.grid.y, 66u);
  EXPECT_EQ(notes.tensor_maps, 3) << "of q_nope, q_pe and o";
  for (const Recorded& r : recorded) {
    EXPECT_EQ(r.params.requests, 6);
    EXPECT_EQ(r.params.s_q, 1);
    EXPECT_EQ(r.params.m_tiles, 2);
    EXPECT_EQ(r.params.selected_s_q, 2);
    EXPECT_EQ(r.params.boxed_pages, 0);
    EXPECT_TRUE(r.params.sparse != 0 && r.params.has_extra == 0);
    EXPECT_EQ(r.params.selection.indices, indices.data);
    EXPECT_EQ(r.params.selection.outer, 200);
    EXPECT_EQ(r.params.selection.inner, 100);
    EXPECT_EQ(r.params.selection.topk, 100);
    EXPECT_EQ(r.params.selection.lengths, lengths.data);
    EXPECT_EQ(r.params.selection.length_outer, 2);
    EXPECT_EQ(r.params.sink, sink.data);
    EXPECT_EQ(r.params.ckv.data, cache.data);
    EXPECT_EQ(r.params.ckv.page_stride, 64 * 584);
    EXPECT_EQ(r.params.q_access, RowAccess::kTokenRows);
  }
  // Its kernel is loaded by itself, once.
  notes.loaded.clear();
  EXPECT_EQ(fastnorm_mla_decode_prepare(context, &call.args), FASTNORM_OK);
  EXPECT_TRUE(notes.loaded.empty());
}

TEST_F(CudaMlaDecode, Failures) {
  const MlaCall call;
  run(call);
  machine.failures = {{"cuTensorMapEncodeTiled", cudaErrorInvalidValue}};
  EXPECT_EQ(try_run(call), FASTNORM_ERROR_DEVICE);
  EXPECT_NE(std::string(fastnorm_last_error()).find("cuTensorMapEncodeTiled of q_nope"),
            std::string::npos)
      << fastnorm_last_error();
  EXPECT_TRUE(recorded.empty()) << "nothing is launched";
  machine.failures = {{"cudaLaunchKernelExC", cudaErrorInvalidValue}};
  EXPECT_EQ(try_run(call), FASTNORM_ERROR_DEVICE);
  EXPECT_EQ(notes.last_error, cudaSuccess);
  EXPECT_EQ(notes.context, nullptr);
  machine.failures.clear();
  notes.context = other_context(0);
  EXPECT_EQ(try_run(call), FASTNORM_ERROR_DEVICE);
  EXPECT_NE(std::string(fastnorm_last_error()).find("not the primary context"), std::string::npos);
}

TEST_F(CudaMlaDecode, GpusOfOtherArchitectures) {
  fastnorm_context_destroy(context);
  machine.capability = 100;  // the build has PTX for it
  ASSERT_EQ(fastnorm_context_create({FASTNORM_DEVICE_CUDA, 0}, nullptr, &context), FASTNORM_OK);
  const MlaCall call;
  EXPECT_EQ(fastnorm_mla_decode_prepare(context, &call.args), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(fastnorm_last_error()).find("ptx_90"), std::string::npos)
      << fastnorm_last_error();
  EXPECT_EQ(fastnorm_mla_decode(context, &call.args, kWorkspace, size_t{1} << 40, kStream),
            FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_TRUE(recorded.empty());
}

TEST_F(CudaMlaDecode, NothingToDo) {
  MlaCall call;
  call.q_shape[0] = call.pe_shape[0] = 0;
  run(call);
  EXPECT_TRUE(recorded.empty());
  EXPECT_EQ(fastnorm_mla_decode_prepare(context, &call.args), FASTNORM_OK);
  EXPECT_TRUE(notes.loaded.empty());
}

}  // namespace
}  // namespace fastnorm::test
