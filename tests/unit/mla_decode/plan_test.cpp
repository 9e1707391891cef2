// Plans of MLA decode, and the work that the planner's twin on the host distributes.
#include "core/mla_decode/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/mla_decode/profile.h"
#include "cuda/arch.h"
#include "cuda/families.h"
#include "cuda/gpu_device.h"
#include "cuda/mla_decode/launch_params.h"
#include "ref/data.h"
#include "support/mla_decode_work.h"
#include "support/share.h"
#include "unit/mla_decode/request.h"

namespace fastnorm::test {
namespace {

DeviceFacts hopper(int32_t multiprocessors = 132) {
  return cuda::make_facts(cuda::kSm90, 0, multiprocessors, 16);
}

struct Planned {
  fastnorm_status status = FASTNORM_OK;
  MlaDecodeDesc desc;
  MlaDecodePlan plan;
  Error error;
};

Planned plan_of(const MlaRequest& r, const DeviceFacts& facts) {
  Planned p;
  p.status = r.check(&p.desc, p.error);
  if (p.status == FASTNORM_OK) p.status = plan_mla_decode(p.desc, facts, &p.plan, p.error);
  return p;
}

MlaRequest cuda_request(int64_t batch, int64_t s_q, int64_t heads, int64_t max_pages) {
  MlaRequest r = mla_request(batch, s_q, heads, 100, 64, max_pages);
  r.set_device(FASTNORM_DEVICE_CUDA, 0);
  return r;
}

TEST(MlaDecodePlan, GridAndWorkspaceOfAutomaticMode) {
  const struct {
    int64_t s_q, heads;
    int32_t m_tiles, parts;
    const char* kernel = "bf16";
  } cases[] = {{1, 1, 1, 132, "bf16_swapped"},
               {1, 16, 1, 132, "bf16_swapped"},
               {4, 16, 1, 132},
               {1, 64, 1, 132},
               {1, 65, 2, 66},
               {1, 128, 2, 66},
               {2, 128, 4, 33},
               {5, 128, 10, 13},
               {132, 64, 132, 1},
               {200, 64, 200, 1}};
  for (const auto& c : cases) {
    const Planned p = plan_of(cuda_request(3, c.s_q, c.heads, 5), hopper());
    ASSERT_EQ(p.status, FASTNORM_OK) << p.error.text;
    EXPECT_EQ(p.plan.m_tiles, c.m_tiles);
    EXPECT_EQ(p.plan.parts, c.parts);
    EXPECT_EQ(p.plan.blocks, static_cast<uint64_t>(c.m_tiles) * c.parts);
    EXPECT_EQ(p.plan.may_split, c.parts > 1);
    EXPECT_EQ(p.plan.launches, c.parts > 1 ? 3 : 2);
    EXPECT_EQ(p.plan.max_pieces, c.parts > 1 ? 2 * c.parts : 0);
    // At most two pieces of each row that an SM holds, and the plan.
    EXPECT_LE(p.plan.workspace_bytes, 2u * 132 * 64 * 513 * 4 + 16384);
    EXPECT_STREQ(p.plan.kernel, c.kernel);
  }
  EXPECT_EQ(plan_of(cuda_request(3, 1, 1, 5), hopper(400)).plan.parts, kMlaMaxParts);
}

TEST(MlaDecodePlan, TheRoomForPiecesDoesNotDependOnTheBatch) {
  uint64_t room = 0;
  for (const int64_t batch : {1, 2, 100, 4000}) {
    for (const int64_t pages : {1, 2000}) {
      const Planned p = plan_of(cuda_request(batch, 1, 128, pages), hopper());
      ASSERT_EQ(p.status, FASTNORM_OK) << p.error.text;
      const uint64_t pieces = p.plan.workspace_bytes - p.plan.partial_lse_offset;
      if (room == 0) room = pieces;
      EXPECT_EQ(pieces, room);
      EXPECT_LE(p.plan.partial_lse_offset, 16384 + 4 * static_cast<uint64_t>(batch));
    }
  }
}

TEST(MlaDecodePlan, RegionsOfTheWorkspaceFollowEachOther) {
  for (const int32_t split : {0, 64, 512}) {
    MlaRequest r = cuda_request(70, 2, 33, 40);
    r.args.split_tokens = split;
    const Planned p = plan_of(r, hopper());
    ASSERT_EQ(p.status, FASTNORM_OK) << p.error.text;
    const MlaDecodePlan& plan = p.plan;
    const uint64_t rows = static_cast<uint64_t>(plan.m_tiles) * 64;
    for (const uint64_t offset : {plan.parts_offset, plan.splits_offset, plan.pairs_offset,
                                  plan.scan_offset, plan.partial_lse_offset, plan.partial_o_offset})
      EXPECT_EQ(offset % 256, 0u);
    EXPECT_GE(plan.parts_offset, sizeof(MlaDecodePlanHeader));
    EXPECT_GE(plan.splits_offset - plan.parts_offset, 32u * static_cast<uint64_t>(plan.parts));
    EXPECT_GE(plan.pairs_offset - plan.splits_offset, 16u * static_cast<uint64_t>(plan.max_splits));
    EXPECT_EQ(plan.max_pairs, split == 0 ? plan.max_pieces : 0);
    EXPECT_GE(plan.scan_offset - plan.pairs_offset,
              16u * static_cast<uint64_t>(plan.max_pairs * plan.m_tiles));
    EXPECT_GE(plan.partial_lse_offset - plan.scan_offset, 4u * 71);
    EXPECT_GE(plan.partial_o_offset - plan.partial_lse_offset,
              4 * rows * static_cast<uint64_t>(plan.max_pieces));
    EXPECT_EQ(plan.workspace_bytes - plan.partial_o_offset,
              2048 * rows * static_cast<uint64_t>(plan.max_pieces));
  }
}

TEST(MlaDecodePlan, FixedSplitIsBoundedByThePageTable) {
  MlaRequest r = cuda_request(3, 1, 16, 5);  // 320 tokens a request
  const struct {
    int32_t split;
    int64_t pieces;
    bool may_split;
  } tables[] = {
      {64, 15, true}, {128, 9, true}, {256, 6, true}, {320, 0, false}, {1 << 20, 0, false}};
  for (const auto& t : tables) {
    r.args.split_tokens = t.split;
    const Planned p = plan_of(r, hopper());
    ASSERT_EQ(p.status, FASTNORM_OK) << p.error.text;
    EXPECT_EQ(p.plan.split_tiles, t.split / 64);
    EXPECT_EQ(p.plan.max_pieces, t.pieces) << t.split;
    EXPECT_EQ(p.plan.may_split, t.may_split);
    EXPECT_EQ(p.plan.launches, t.may_split ? 3 : 2);
  }
  make_lists(&r, 9, 1);
  r.set_device(FASTNORM_DEVICE_CUDA, 0);
  r.args.split_tokens = 128;
  const Planned p = plan_of(r, hopper());
  ASSERT_EQ(p.status, FASTNORM_OK) << p.error.text;
  EXPECT_EQ(p.plan.max_pieces, 9 * 64 / 128 + 3);
}

TEST(MlaDecodePlan, TooLongALineIsRefused) {
  MlaRequest r = cuda_request(1 << 16, 1, 16, (1 << 15) + 1);
  r.q_nope->shape[0] = r.q_pe->shape[0] = r.o->shape[0] = r.lse->shape[0] = 1 << 16;
  const Planned p = plan_of(r, hopper());
  EXPECT_EQ(p.status, FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::strstr(p.error.text, "2^31 tiles"), nullptr) << p.error.text;
  r.page_table->shape[1] = 100;
  EXPECT_EQ(plan_of(r, hopper()).status, FASTNORM_OK);
}

TEST(MlaDecodePlan, ReusedPlansAreNotMade) {
  MlaRequest r = cuda_request(3, 1, 128, 5);
  const uint64_t bytes = plan_of(r, hopper()).plan.workspace_bytes;
  r.args.reuse_plan = 1;
  const Planned p = plan_of(r, hopper());
  EXPECT_EQ(p.plan.launches, 2);
  EXPECT_EQ(p.plan.workspace_bytes, bytes);
}

TEST(MlaDecodePlan, OtherArchitecturesAndDtypes) {
  for (const ArchSpec* arch : cuda::kArchs) {
    const DeviceFacts facts = cuda::make_facts(*arch, 0, 100, 1);
    const Planned p = plan_of(cuda_request(1, 1, 16, 5), facts);
    if (arch == &cuda::kSm90) {
      EXPECT_EQ(p.status, FASTNORM_OK) << p.error.text;
      continue;
    }
    EXPECT_EQ(p.status, FASTNORM_ERROR_UNSUPPORTED) << arch->name;
    EXPECT_NE(std::strstr(p.error.text, arch->name), nullptr) << p.error.text;
    EXPECT_NE(std::strstr(p.error.text, "nearest: sm_90"), nullptr) << p.error.text;
  }
  MlaRequest r = cuda_request(1, 1, 16, 5);
  for (auto* t : {&r.q_nope, &r.q_pe, &r.ckv, &r.kpe, &r.o}) (*t)->dtype = FASTNORM_DTYPE_F32;
  const Planned p = plan_of(r, hopper());
  EXPECT_EQ(p.status, FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::strstr(p.error.text, "nearest: bf16 or f16"), nullptr) << p.error.text;
}

TEST(MlaDecodePlan, Profiles) {
  MlaRequest r = cuda_request(1, 1, 128, 5);
  r.args.profile_events = 100;  // a query asks without a buffer
  Planned p = plan_of(r, hopper());
  ASSERT_EQ(p.status, FASTNORM_OK) << p.error.text;
  EXPECT_EQ(p.plan.profile_bytes, 64u + 132 * 3 * (64 + 800));
  EXPECT_STREQ(p.plan.kernel, "bf16_profile");
  RequestTensor t = *r.lse;
  t.dtype = FASTNORM_DTYPE_U8;
  t.address = uintptr_t{0x100000} + (uintptr_t{13} << 44);
  t.shape = {static_cast<int64_t>(p.plan.profile_bytes)};
  r.profile = t;
  EXPECT_EQ(plan_of(r, hopper()).status, FASTNORM_OK);
  --r.profile->shape[0];
  p = plan_of(r, hopper());
  EXPECT_EQ(p.status, FASTNORM_ERROR_SHAPE);
  EXPECT_NE(std::strstr(p.error.text, "profile.shape is ["), nullptr) << p.error.text;
  MlaRequest on_cpu = mla_request(1, 1, 128, 10, 64, 5);
  on_cpu.args.profile_events = 1;
  DeviceFacts cpu;
  p = plan_of(on_cpu, cpu);
  EXPECT_EQ(p.status, FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::strstr(p.error.text, "profile_events is 1 on the CPU"), nullptr) << p.error.text;
}

// Calls whose rows are gathered: their kernels, their parts, and that they have no profile.
TEST(MlaDecodePlan, GatheredRows) {
  const struct {
    const char *kernel, *what;
    bool sparse;
    void (*change)(MlaRequest*);
  } cases[] = {
      {"bf16_gather_656", "an FP8 cache_format", false,
       [](MlaRequest* r) { make_bytes(r, FASTNORM_MLA_CACHE_BYTES_656, 656); }},
      {"bf16_gather_576", "an FP8 cache_format", false,
       [](MlaRequest* r) { make_bytes(r, FASTNORM_MLA_CACHE_BYTES_576, 576); }},
      {"bf16_gather_584", "an FP8 cache_format", false,
       [](MlaRequest* r) { make_bytes(r, FASTNORM_MLA_CACHE_BYTES_584, 584); }},
      {"bf16_gather", "indices", true, [](MlaRequest* r) { make_sparse(r, 64); }},
      {"bf16_gather_656", "indices", true,
       [](MlaRequest* r) {
         make_bytes(r, FASTNORM_MLA_CACHE_BYTES_656, 656);
         make_sparse(r, 64);
       }},
  };
  for (const auto& c : cases) {
    MlaRequest r = cuda_request(3, 2, 64, 5);
    c.change(&r);
    const Planned p = plan_of(r, hopper());
    ASSERT_EQ(p.status, FASTNORM_OK) << p.error.text;
    EXPECT_STREQ(p.plan.kernel, c.kernel);
    // A new token that selects rows is a request of its own.
    EXPECT_EQ(p.plan.m_tiles, c.sparse ? 1 : 2) << c.kernel;
    EXPECT_EQ(p.plan.s_q, c.sparse ? 1 : 2) << c.kernel;
    r.args.profile_events = 5;
    const Planned profiled = plan_of(r, hopper());
    EXPECT_EQ(profiled.status, FASTNORM_ERROR_UNSUPPORTED);
    EXPECT_NE(std::strstr(profiled.error.text, c.what), nullptr) << profiled.error.text;
    EXPECT_NE(std::strstr(profiled.error.text, "profile_events is 5"), nullptr)
        << profiled.error.text;
  }
}

// With split_tokens the room for pieces follows from the indices of a token, those of a second
// cache behind the next multiple of a tile.
TEST(MlaDecodePlan, PiecesOfSelectedRows) {
  MlaRequest r = cuda_request(3, 2, 64, 5);
  make_sparse(&r, 130);
  r.args.split_tokens = 64;
  Planned p = plan_of(r, hopper());
  ASSERT_EQ(p.status, FASTNORM_OK) << p.error.text;
  EXPECT_EQ(p.plan.max_splits, 6);
  EXPECT_EQ(p.plan.max_pieces, 6 * 3);
  r.args.split_tokens = 192;
  p = plan_of(r, hopper());
  EXPECT_FALSE(p.plan.may_split);
  MlaRequest many = cuda_request(1, 1, 1, 5);
  make_sparse(&many, INT32_MAX - 60);
  p = plan_of(many, hopper());
  EXPECT_EQ(p.status, FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::strstr(p.error.text, "indices and extra_indices have 2147483587 and 0"), nullptr)
      << p.error.text;
}

// Sinks need no kernel of their own.
TEST(MlaDecodePlan, SinksOnCuda) {
  MlaRequest r = cuda_request(3, 2, 16, 5);
  r.attention_sink = mla_tensor(3, {16}, FASTNORM_DTYPE_F32);
  r.attention_sink->device_type = FASTNORM_DEVICE_CUDA;
  const Planned p = plan_of(r, hopper());
  ASSERT_EQ(p.status, FASTNORM_OK) << p.error.text;
  EXPECT_STREQ(p.plan.kernel, "bf16");
}

// Rows of a request and how a box gets them decide whether the narrow m-tiles of a kernel for few
// rows hold them. Its workspace is that of the other kernel.
TEST(MlaDecodePlan, FewRows) {
  constexpr RowAccess kRows = RowAccess::kRows, kRequests = RowAccess::kRequestRows,
                      kTokens = RowAccess::kTokenRows;
  struct Change {
    bool lists = false, wide_q = false, wide_o = false, f16 = false;  // wide: tokens lie apart
    int32_t profile_events = 0;
  };
  const struct {
    int64_t s_q, heads, page;
    Change change;
    int32_t tile_rows;
    RowAccess q, o;
    bool boxed;
    const char* kernel;
  } cases[] = {
      {1, 1, 64, {}, 16, kTokens, kTokens, true, "bf16_swapped"},
      {1, 16, 64, {}, 16, kTokens, kTokens, true, "bf16_swapped"},
      {1, 17, 64, {}, 64, kTokens, kTokens, true, "bf16"},
      {1, 32, 64, {}, 64, kTokens, kTokens, true, "bf16"},
      {1, 33, 64, {}, 64, kTokens, kTokens, true, "bf16"},
      {1, 16, 64, {.f16 = true}, 16, kTokens, kTokens, true, "f16_swapped"},
      {1, 32, 64, {.f16 = true}, 64, kTokens, kTokens, true, "f16"},
      // pages
      {1, 16, 16, {}, 16, kTokens, kTokens, true, "bf16_swapped"},
      {1, 16, 32, {}, 16, kTokens, kTokens, true, "bf16_swapped"},
      {1, 16, 128, {}, 16, kTokens, kTokens, true, "bf16_swapped"},
      {1, 16, 48, {}, 64, kTokens, kTokens, false, "bf16"},
      {1, 16, 8, {}, 64, kTokens, kTokens, false, "bf16"},
      // a profile
      {1, 16, 64, {.profile_events = 9}, 64, kTokens, kTokens, true, "bf16_profile"},
      {2, 16, 64, {.profile_events = 9}, 64, kRequests, kRequests, true, "bf16_profile"},
      // several new tokens
      {2, 8, 64, {}, 16, kRequests, kRequests, true, "bf16_swapped"},
      {3, 5, 64, {}, 16, kRequests, kRequests, true, "bf16_swapped"},
      {2, 9, 64, {}, 64, kRequests, kRequests, true, "bf16"},
      {2, 16, 64, {}, 64, kRequests, kRequests, true, "bf16"},
      {3, 16, 64, {}, 64, kRequests, kRequests, true, "bf16"},
      {2, 8, 64, {.lists = true}, 16, kTokens, kTokens, true, "bf16_swapped"},
      {2, 16, 64, {.lists = true}, 64, kTokens, kTokens, true, "bf16"},
      {3, 5, 64, {.lists = true}, 64, kRows, kRows, true, "bf16"},
      // strides: of queries, which no box fits, and of outputs, which the kernel stores by rows
      {2, 8, 64, {.wide_q = true}, 16, kTokens, kRequests, true, "bf16_swapped"},
      {3, 5, 64, {.wide_q = true}, 64, kRows, kRequests, true, "bf16"},
      {3, 5, 64, {.wide_o = true}, 16, kRequests, kRows, true, "bf16_swapped"},
      {3, 8, 64, {.wide_q = true}, 64, kTokens, kRequests, true, "bf16"},
      {1, 12, 64, {.wide_q = true, .wide_o = true}, 16, kTokens, kTokens, true, "bf16_swapped"},
  };
  const uint64_t bytes = plan_of(cuda_request(3, 4, 16, 5), hopper()).plan.workspace_bytes;
  for (const auto& c : cases) {
    MlaRequest r = mla_request(3, c.s_q, c.heads, 100, c.page, 5);
    if (c.change.lists) make_lists(&r, 15, static_cast<int32_t>(c.s_q));
    if (c.change.wide_q) r.q_nope->strides = {c.heads * 512 + 64, 512, 1};
    if (c.change.wide_o) r.o->strides = {c.heads * 512 + 64, 512, 1};
    for (auto* t : {&r.q_nope, &r.q_pe, &r.ckv, &r.kpe, &r.o}) {
      if (c.change.f16) (*t)->dtype = FASTNORM_DTYPE_F16;
    }
    r.args.profile_events = c.change.profile_events;
    r.set_device(FASTNORM_DEVICE_CUDA, 0);
    const Planned p = plan_of(r, hopper());
    const std::string text = std::to_string(c.s_q) + " tokens of " + std::to_string(c.heads) +
                             " heads, pages of " + std::to_string(c.page) + ", line " +
                             std::to_string(&c - cases);
    ASSERT_EQ(p.status, FASTNORM_OK) << text << ": " << p.error.text;
    EXPECT_STREQ(p.plan.kernel, c.kernel) << text;
    EXPECT_EQ(p.plan.tile_rows, c.tile_rows) << text;
    EXPECT_EQ(p.plan.q_access, c.q) << text;
    EXPECT_EQ(p.plan.o_access, c.o) << text;
    EXPECT_EQ(p.plan.boxed_pages, c.boxed) << text;
    EXPECT_EQ(p.plan.m_tiles, 1) << text;
    EXPECT_EQ(p.plan.workspace_bytes, bytes) << text;
  }
  // Rows that are gathered have a kernel of their own, on the CPU all calls have one.
  MlaRequest r = cuda_request(3, 1, 16, 5);
  make_sparse(&r, 64);
  const Planned gathered = plan_of(r, hopper());
  EXPECT_STREQ(gathered.plan.kernel, "bf16_gather");
  EXPECT_EQ(gathered.plan.tile_rows, kMlaTileRows);
  EXPECT_FALSE(gathered.plan.boxed_pages);
  EXPECT_STREQ(plan_of(mla_request(3, 1, 16, 10, 64, 5), DeviceFacts{}).plan.kernel, "bf16");
}

// A GPU copies 16 bytes at once. Rows of 584 bytes lie in pages, whose strides alone count.
TEST(MlaDecodePlan, BytesOnAGpu) {
  const struct {
    fastnorm_mla_cache_format format;
    int64_t row_bytes, page, row;  // strides
    uintptr_t shift;
    const char* text;  // nullptr: it is well
  } cases[] = {
      {FASTNORM_MLA_CACHE_BYTES_656, 656, 64 * 656, 656, 0, nullptr},
      {FASTNORM_MLA_CACHE_BYTES_656, 656, 64 * 672, 672, 0, nullptr},
      {FASTNORM_MLA_CACHE_BYTES_656, 656, 64 * 656, 656, 8, "cache's address is 0x"},
      {FASTNORM_MLA_CACHE_BYTES_656, 656, 64 * 660, 660, 0, "cache.strides[1] is 660"},
      {FASTNORM_MLA_CACHE_BYTES_576, 576, 64 * 576 + 8, 576, 0, "cache.strides[0] is 36872"},
      {FASTNORM_MLA_CACHE_BYTES_584, 584, 64 * 584, 584, 0, nullptr},
      {FASTNORM_MLA_CACHE_BYTES_584, 584, 64 * 584 + 8, 584, 0, "cache.strides[0] is 37384"},
  };
  for (const auto& c : cases) {
    for (const int32_t device : {FASTNORM_DEVICE_CPU, FASTNORM_DEVICE_CUDA}) {
      MlaRequest r = mla_request(3, 2, 4, 10, 64, 5);
      make_bytes(&r, c.format, c.row_bytes);
      r.cache->strides = {c.page, c.row, 1};
      r.cache->address += c.shift;
      r.set_device(device, 0);
      const bool well = c.text == nullptr || device == FASTNORM_DEVICE_CPU;
      const Planned p = plan_of(r, device == FASTNORM_DEVICE_CPU ? DeviceFacts{} : hopper());
      EXPECT_EQ(p.status, well ? FASTNORM_OK : FASTNORM_ERROR_LAYOUT) << p.error.text;
      if (well) continue;
      EXPECT_NE(std::strstr(p.error.text, c.text), nullptr) << p.error.text;
      EXPECT_NE(std::strstr(p.error.text, "16"), nullptr) << p.error.text;
    }
  }
}

TEST(MlaDecodePlan, BytesMoved) {
  MlaRequest r = mla_request(3, 2, 4, 10, 64, 5);
  r.args.total_kv_hint = 200;
  const Planned p = plan_of(r, DeviceFacts{});
  ASSERT_EQ(p.status, FASTNORM_OK);
  EXPECT_EQ(p.plan.bytes_read, (6u * 4 + 200) * 576 * 2 + 4 * (3 + 4));
  EXPECT_EQ(p.plan.bytes_written, 6u * 4 * (512 * 2 + 4));
  EXPECT_EQ(p.plan.workspace_bytes, 0u);
  EXPECT_EQ(p.plan.launches, 1);
  EXPECT_STREQ(p.plan.kernel, "bf16");
  struct Format {
    fastnorm_mla_cache_format format;
    uint64_t row_bytes, query;
  };
  for (const Format f : {Format{FASTNORM_MLA_CACHE_BYTES_656, 656, 576},
                         Format{FASTNORM_MLA_CACHE_BYTES_576, 576, 576},
                         Format{FASTNORM_MLA_CACHE_BYTES_584, 584, 512}}) {
    MlaRequest bytes = r;
    make_bytes(&bytes, f.format, static_cast<int64_t>(f.row_bytes));
    const Planned of_bytes = plan_of(bytes, DeviceFacts{});
    ASSERT_EQ(of_bytes.status, FASTNORM_OK) << of_bytes.error.text;
    EXPECT_EQ(of_bytes.plan.bytes_read, 6u * 4 * f.query * 2 + 200 * f.row_bytes + 4 * (3 + 4));
    EXPECT_EQ(of_bytes.plan.bytes_written, p.plan.bytes_written);
    EXPECT_STREQ(of_bytes.plan.kernel, "bf16");
    // All indices, or as many rows as the caller says.
    make_sparse(&bytes, 50);
    bytes.topk_length = mla_tensor(2, {3}, FASTNORM_DTYPE_I32);
    bytes.attention_sink = mla_tensor(3, {4}, FASTNORM_DTYPE_F32);
    EXPECT_EQ(plan_of(bytes, DeviceFacts{}).plan.bytes_read,
              6u * 4 * f.query * 2 + 200 * f.row_bytes + 4 * (6 * 50 + 3 + 4));
    bytes.args.total_kv_hint = 0;
    bytes.topk_length->shape = {3, 2};
    bytes.extra_cache = mla_tensor(4, {2, 8, static_cast<int64_t>(f.row_bytes)}, FASTNORM_DTYPE_U8);
    bytes.extra_indices = mla_tensor(5, {3, 2, 7}, FASTNORM_DTYPE_I32);
    EXPECT_EQ(plan_of(bytes, DeviceFacts{}).plan.bytes_read,
              6u * 4 * f.query * 2 + 6 * 57 * f.row_bytes + 4 * (6 * 57 + 6 + 4));
  }
  const Planned none = plan_of(mla_request(0, 2, 4, 10, 64, 5), DeviceFacts{});
  EXPECT_EQ(none.plan.launches, 0);
  EXPECT_STREQ(none.plan.kernel, "");
}

// --- the host twin ---

struct Dealt {
  std::vector<MlaDecodePart> parts;
  std::vector<MlaDecodeSplit> splits;
  MlaDecodePlanHeader header;
};

Dealt deal(const std::vector<MlaDecodeLength>& lengths, int32_t parts, int32_t split_tiles,
           int32_t heads = 16) {
  Dealt d;
  d.parts.resize(static_cast<size_t>(parts));
  d.splits.resize(lengths.size() + 1);
  mla_decode_work(lengths, heads, split_tiles, d.parts, d.splits, &d.header);
  d.splits.resize(static_cast<size_t>(d.header.splits));
  return d;
}

// One item of a part: tiles [from, to) of a request, as the kernel cuts its part.
struct Item {
  int32_t request, from, to, part;
};

std::vector<Item> items_of(const MlaDecodePart& part, int32_t number,
                           const std::vector<int32_t>& tiles, int32_t split_tiles) {
  std::vector<Item> items;
  int32_t request = part.first_request, tile = part.first_tile;
  while (request < part.last_request || (request == part.last_request && tile < part.last_tile)) {
    const int32_t all = tiles[static_cast<size_t>(request)];
    int32_t end = request == part.last_request ? part.last_tile : all;
    if (split_tiles != 0) end = std::min(end, (tile / split_tiles + 1) * split_tiles);
    items.push_back({request, tile, end, number});
    tile = end;
    if (tile >= all) {
      ++request;
      tile = 0;
    }
  }
  return items;
}

// All invariants of distributed work. `what` names the case.
void check_invariants(const std::vector<MlaDecodeLength>& lengths, int32_t parts,
                      int32_t split_tiles, const std::string& what) {
  SCOPED_TRACE(what);
  const Dealt d = deal(lengths, parts, split_tiles);
  std::vector<int32_t> tiles;
  for (const MlaDecodeLength& l : lengths) tiles.push_back(mla_tiles(l));
  std::vector<Item> items;
  for (int32_t w = 0; w < parts; ++w) {
    for (const Item& i : items_of(d.parts[static_cast<size_t>(w)], w, tiles, split_tiles))
      items.push_back(i);
  }
  // Every tile of every request occurs once, in order. A request without tiles is one empty item.
  size_t next = 0;
  std::vector<int32_t> pieces(lengths.size());
  for (size_t b = 0; b < lengths.size(); ++b) {
    int32_t at = 0;
    do {
      ASSERT_LT(next, items.size());
      ASSERT_EQ(items[next].request, static_cast<int32_t>(b));
      ASSERT_EQ(items[next].from, at);
      ASSERT_TRUE(items[next].to > at || tiles[b] == 0);
      if (split_tiles != 0) {
        ASSERT_EQ(at % split_tiles, 0);
        ASSERT_TRUE(items[next].to == tiles[b] || items[next].to == at + split_tiles);
      }
      at = items[next].to;
      ++next;
      ++pieces[b];
    } while (at < tiles[b]);
  }
  ASSERT_EQ(next, items.size());

  // Pieces of split requests are numbered in order. Two pieces are a pair, and in no list.
  const auto is_pair = [&](int32_t request) {
    const auto b = static_cast<size_t>(request);
    return split_tiles == 0 && b < pieces.size() && pieces[b] == 2;
  };
  int32_t number = 0, units = 0;
  size_t split = 0;
  std::map<std::pair<int32_t, int32_t>, int32_t> number_of;  // (request, first tile)
  for (size_t b = 0; b < lengths.size(); ++b) {
    if (pieces[b] == 1) continue;
    const auto request = static_cast<int32_t>(b);
    if (!is_pair(request)) {
      ASSERT_LT(split, d.splits.size());
      const MlaDecodeSplit& s = d.splits[split++];
      EXPECT_EQ(s.request, request);
      EXPECT_EQ(s.first_piece, number);
      EXPECT_EQ(s.pieces, pieces[b]);
      EXPECT_EQ(s.first_unit, units);
      units += mla_combine_units(s.pieces, 16 * lengths[b].s_q);
    }
    for (const Item& i : items) {
      if (i.request == request) number_of[{i.request, i.from}] = number++;
    }
  }
  EXPECT_EQ(split, d.splits.size());
  EXPECT_EQ(d.header.splits, static_cast<int32_t>(d.splits.size()));
  EXPECT_EQ(d.header.pieces, number);
  EXPECT_EQ(d.header.units, units);
  // The number of the first split piece in each part or behind it.
  std::vector<int32_t> number_at(static_cast<size_t>(parts) + 1, number);
  for (const Item& i : items) {
    const auto found = number_of.find({i.request, i.from});
    int32_t& at = number_at[static_cast<size_t>(i.part)];
    if (found != number_of.end()) at = std::min(at, found->second);
  }
  for (auto w = static_cast<size_t>(parts); w-- > 0;)
    number_at[w] = std::min(number_at[w], number_at[w + 1]);
  for (int32_t w = 0; w < parts; ++w) {
    const MlaDecodePart& part = d.parts[static_cast<size_t>(w)];
    const int32_t expected = number_at[static_cast<size_t>(w)];
    EXPECT_EQ(part.first_piece, expected) << "part " << w;
    const bool is_empty =
        part.first_request == part.last_request && part.first_tile == part.last_tile;
    EXPECT_EQ(part.first_length,
              is_empty ? 0 : lengths[static_cast<size_t>(part.first_request)].kv_len);
    EXPECT_EQ(part.pairs, (is_pair(part.first_request) ? kMlaFirstIsPair : 0) |
                              (is_pair(part.last_request) ? kMlaLastIsPair : 0))
        << "part " << w;
  }

  // Balance. The cost of a part is its tiles, plus the cost of a request for each item.
  int64_t total = 0;
  for (size_t b = 0; b < lengths.size(); ++b) {
    const int32_t n = split_tiles == 0 ? 1 : mla_fixed_pieces(tiles[b], split_tiles);
    total += tiles[b] + int64_t{n} * kMlaRequestCost;
  }
  const int64_t step = (total + parts - 1) / parts;
  std::vector<int64_t> cost(static_cast<size_t>(parts));
  std::vector<int32_t> split_pieces(static_cast<size_t>(parts));
  for (const Item& i : items) {
    cost[static_cast<size_t>(i.part)] += i.to - i.from + kMlaRequestCost;
    if (pieces[static_cast<size_t>(i.request)] > 1) ++split_pieces[static_cast<size_t>(i.part)];
  }
  for (int32_t w = 0; w < parts; ++w) {
    if (split_tiles == 0) {
      // A share, plus the rest of a request that stays with it. Plus the cost of a cut piece, and
      // the cost of a merge that is saved.
      EXPECT_LE(cost[static_cast<size_t>(w)], step + 2 * kMlaRequestCost + kMlaMergeCost)
          << "part " << w;
      EXPECT_LE(split_pieces[static_cast<size_t>(w)], 2) << "part " << w;
    } else {
      EXPECT_LE(cost[static_cast<size_t>(w)], step + split_tiles + kMlaRequestCost) << "part " << w;
    }
  }
  if (split_tiles == 0) {
    EXPECT_LE(number, parts > 1 ? 2 * parts : 0);
  }
}

TEST(MlaDecodeWork, InvariantsOfRandomBatches) {
  ref::Random random(39);
  constexpr int32_t kParts[] = {1, 2, 3, 7, 13, 33, 66, 132, 256};
  constexpr int32_t kSplits[] = {0, 0, 0, 1, 2, 3, 8, 64, 1000};
  constexpr int32_t kLongest[] = {1, 64, 65, 700, 5000, 200000};
  for (int i = 0; i < support::share_of(3000); ++i) {
    const int64_t batch = 1 + random.below(random.one_in(5) ? 300 : 8);
    const int32_t longest = random.of(kLongest);
    std::vector<MlaDecodeLength> lengths;
    for (int64_t b = 0; b < batch; ++b) {
      lengths.push_back({random.one_in(5) ? 0 : static_cast<int32_t>(random.below(longest + 1)),
                         random.one_in(9) ? 0 : static_cast<int32_t>(1 + random.below(4))});
    }
    check_invariants(lengths, random.of(kParts), random.of(kSplits), "batch " + std::to_string(i));
    if (HasFatalFailure()) return;
  }
}

TEST(MlaDecodeWork, InvariantsOfAllSmallBatches) {
  // All batches of up to three requests of 0 to 9 tiles.
  for (int32_t code = 0; code < 1000; code += support::share()) {
    for (const int32_t parts : {1, 2, 3, 5, 8}) {
      for (const int32_t split : {0, 1, 2, 4}) {
        std::vector<MlaDecodeLength> lengths;
        for (int32_t rest = code, b = 0; b < 3; ++b, rest /= 10)
          lengths.push_back({rest % 10 * 64, 1});
        check_invariants(lengths, parts, split, std::to_string(code));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(MlaDecodeWork, NoRequests) {
  const Dealt d = deal({}, 4, 0);
  EXPECT_EQ(d.header.splits, 0);
  for (const MlaDecodePart& part : d.parts) {
    EXPECT_EQ(part.first_request, part.last_request);
    EXPECT_EQ(part.first_tile, part.last_tile);
  }
}

TEST(MlaDecodeWork, NegativeLengthsAreEmpty) {
  EXPECT_EQ(mla_tiles({-5, 1}), 0);
  EXPECT_EQ(mla_tiles({INT32_MIN, 1}), 0);
  EXPECT_EQ(mla_tiles({INT32_MAX, 1}), 1 << 25);
  EXPECT_EQ(mla_tiles({100, 0}), 0);
  EXPECT_EQ(mla_tiles({1, 1}), 1);
  EXPECT_EQ(mla_tiles({64, 1}), 1);
  EXPECT_EQ(mla_tiles({65, 1}), 2);
}

// Few large pieces: a rest that equal lengths would leave stays with the part before it.
TEST(MlaDecodeWork, RestsOfRequestsGoAlong) {
  const std::vector<MlaDecodeLength> lengths(32, {64 * 64, 1});
  const Dealt d = deal(lengths, 66, 0);
  EXPECT_EQ(d.header.pieces, 64);
  // All are pairs: no kernel merges them.
  EXPECT_EQ(d.header.splits, 0);
  EXPECT_EQ(d.header.units, 0);
}

// Six equal requests on four parts: two parts have two. They stay whole while that costs at most
// two requests and a merge above the mean. A request of 21 tiles costs 26, and the mean is 39.
TEST(MlaDecodeWork, EqualRequestsAreSplitWhereThatIsCheaper) {
  static_assert(kMlaRequestCost == 5 && kMlaMergeCost == 3);
  EXPECT_EQ(deal(std::vector<MlaDecodeLength>(6, {21 * 64, 1}), 4, 0).header.pieces, 0);
  EXPECT_EQ(deal(std::vector<MlaDecodeLength>(6, {22 * 64, 1}), 4, 0).header.pieces, 0);
  EXPECT_GT(deal(std::vector<MlaDecodeLength>(6, {23 * 64, 1}), 4, 0).header.pieces, 0);
}

// With a fixed split, a request's pieces depend only on that request.
TEST(MlaDecodeWork, FixedPiecesDoNotDependOnTheBatch) {
  ref::Random random(7);
  for (int i = 0; i < 200; ++i) {
    const MlaDecodeLength mine = {static_cast<int32_t>(random.below(20000)), 2};
    const auto split = static_cast<int32_t>(1 + random.below(20));
    std::set<std::vector<int32_t>> seen;
    for (int k = 0; k < 5; ++k) {
      std::vector<MlaDecodeLength> lengths(static_cast<size_t>(k),
                                           {static_cast<int32_t>(random.below(20000)), 1});
      lengths.push_back(mine);
      for (int64_t b = random.below(4); b > 0; --b) lengths.push_back({500, 1});
      const auto parts = static_cast<int32_t>(1 + random.below(132));
      const Dealt d = deal(lengths, parts, split);
      std::vector<int32_t> tiles, cuts;
      for (const MlaDecodeLength& l : lengths) tiles.push_back(mla_tiles(l));
      for (int32_t w = 0; w < parts; ++w) {
        for (const Item& item : items_of(d.parts[static_cast<size_t>(w)], w, tiles, split)) {
          if (item.request == k) cuts.push_back(item.from);
        }
      }
      seen.insert(cuts);
    }
    EXPECT_EQ(seen.size(), 1u);
  }
}

// What kernels divide by the page size with, for all numbers that a row can have.
TEST(MlaDecodeParams, PageSizesDivideExactly) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  ref::Random random(11);
  std::vector<int64_t> sizes = {1, 2, 3, 5, 7, 16, 63, 64, 65, 641, 6700417, kMost - 1, kMost};
  for (int i = 0; i < 300; ++i) sizes.push_back(1 + random.below(int64_t{1} << (1 + i % 31)));
  for (const int64_t size : sizes) {
    const cuda::PageSize page = cuda::make_page_size(static_cast<int32_t>(size));
    EXPECT_EQ(page.size, size);
    std::vector<int64_t> rows = {0, 1, kMost, kMost - 1, kMost / size * size - 1};
    for (int i = 0; i < 50; ++i) {
      const int64_t multiple = random.below(kMost / size + 1) * size;
      rows.insert(rows.end(), {multiple, multiple - 1, multiple + 1, random.below(kMost)});
    }
    for (const int64_t row : rows) {
      if (row < 0 || row > kMost) continue;
      const uint64_t product = static_cast<uint64_t>(row) * page.factor;
      EXPECT_EQ(product >> page.shift, static_cast<uint64_t>(row / size)) << row << " / " << size;
    }
  }
}

}  // namespace
}  // namespace fastnorm::test
