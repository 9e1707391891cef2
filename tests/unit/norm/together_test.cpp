// Query and key heads in one launch, for all numbers, sizes and layouts.
#include <gtest/gtest.h>

#include "core/backend.h"
#include "core/norm/grid.h"
#include "cpu/norm/list.h"
#include "cuda/arch.h"
#include "cuda/families.h"
#include "cuda/gpu_device.h"
#include "cuda/norm/launch_params.h"
#include "unit/norm/request.h"

namespace fastnorm::test {
namespace {

struct Planned {
  NormDesc desc;
  NormPlan plan;
};

Planned planned(const Request& r, const DeviceFacts& facts) {
  Planned p;
  Error error;
  EXPECT_EQ(r.check(&p.desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(make_plan(p.desc, facts, cuda::table_of<cuda::NormFamily>(*facts.arch), &p.plan, error),
            FASTNORM_OK)
      << error.text;
  return p;
}

void expect_same(const NormPlan& a, const NormPlan& b) {
  EXPECT_EQ(a.entry, b.entry);
  EXPECT_EQ(a.index, b.index);
  EXPECT_EQ(a.rows_per_block, b.rows_per_block);
  EXPECT_EQ(a.vector_bytes, b.vector_bytes);
  EXPECT_EQ(a.stream_loads, b.stream_loads);
  EXPECT_EQ(a.prefetch_rows, b.prefetch_rows);
  EXPECT_EQ(a.non_temporal, b.non_temporal);
  EXPECT_EQ(a.blocks, b.blocks);
  EXPECT_EQ(a.bytes_read, b.bytes_read);
  EXPECT_EQ(a.bytes_written, b.bytes_written);
}

// Grids for two calls, planned as fastnorm_norm_many plans them. `like` tells whether the second is
// planned like the first.
int32_t grids(Planned a, Planned b, const DeviceFacts& facts, bool* like = nullptr) {
  NormPlan plan;
  Error error;
  const NormEntry* const entry = a.plan.entry;
  const bool is_like = plan_like(a.desc, a.plan, b.desc, facts, &plan, error);
  if (like != nullptr) *like = is_like;
  const bool together = plan_together(
      a.desc, b.desc, facts, cuda::table_of<cuda::NormFamily>(*facts.arch), &a.plan, &b.plan);
  if (is_like) {
    EXPECT_TRUE(together);
    EXPECT_EQ(a.plan.entry, entry);
    expect_same(plan, b.plan);
  }
  const NormCall calls[] = {{&a.desc, &a.plan}, {&b.desc, &b.plan}};
  const int32_t count = count_grids(calls, facts).launches;
  EXPECT_EQ(together, count == 1);
  // The work of each stays the same.
  for (const NormCall& call : calls) {
    EXPECT_EQ(call.plan->blocks * static_cast<uint64_t>(call.plan->rows_per_block) >=
                  static_cast<uint64_t>(call.desc->rows),
              true);
    NormKey key = call.plan->entry->key;
    const NormKey needed = norm_key(*call.desc, facts);
    key.flavour = Flavour::kGeneral;
    EXPECT_EQ(key, needed);
  }
  return count;
}

// Heads of a fused buffer of `all` heads, or of a separate buffer.
Request heads(int64_t tokens, int64_t count, int64_t d, fastnorm_dtype_id dtype, int64_t all,
              uintptr_t address) {
  Request r = simple_request({tokens, count, d}, dtype);
  r.x->address = address;
  if (all > 0) r.x->strides = {all * d, d, 1};
  return r;
}

TEST(NormTogether, QueryAndKeyHeadsAreOneGrid) {
  for (const ArchSpec* arch : cuda::kArchs) {
    const DeviceFacts facts = cuda::make_facts(*arch, 0, 132, 8);
    for (const auto dtype : {FASTNORM_DTYPE_BF16, FASTNORM_DTYPE_F16, FASTNORM_DTYPE_F32}) {
      for (const int64_t d : {32, 64, 72, 80, 96, 112, 128, 192, 256, 320, 512, 576}) {
        if (dtype == FASTNORM_DTYPE_F32 && d > 512) continue;  // more than a warp holds
        for (const int64_t tokens : {1, 9, 64, 512, 1000, 1024, 4096, 9010}) {
          for (const int64_t keys : {1, 2, 8}) {
            for (const bool fused : {true, false}) {
              const int64_t all = fused ? 64 + 2 * keys : 0;
              const Planned q = planned(heads(tokens, 64, d, dtype, all, address_of(0)), facts),
                            k = planned(heads(tokens, keys, d, dtype, all, address_of(3)), facts);
              bool like = false;
              EXPECT_EQ(grids(q, k, facts, &like), 1)
                  << arch->name << " " << tokens << " x " << keys << " x " << d << fused;
              // One token's heads have one index, and so does one key head. Longer rows have tiles
              // of more than a warp and run alone.
              if (fused && tokens > 1 && d <= 256) {
                EXPECT_EQ(like, keys > 1) << arch->name << " " << tokens << " x " << d;
              }
              EXPECT_EQ(grids(k, q, facts, &like), 1);
              EXPECT_FALSE(like) << "more rows";
            }
          }
        }
      }
    }
  }
}

// Heads of two calls that ask for nothing else run on a lean kernel. They share one grid, also with
// other heads.
TEST(NormTogether, BareHeads) {
  const DeviceFacts facts = cuda::make_facts(cuda::kSm90, 0, 132, 8);
  const auto together = [&](const Request& q, const Request& k) {
    Planned first = planned(q, facts), second = planned(k, facts);
    EXPECT_TRUE(plan_together(first.desc, second.desc, facts,
                              cuda::table_of<cuda::NormFamily>(cuda::kSm90), &first.plan,
                              &second.plan));
    EXPECT_EQ(first.plan.entry, second.plan.entry);
    return std::string(first.plan.entry->name);
  };
  const Request q = heads(64, 64, 128, FASTNORM_DTYPE_BF16, 80, address_of(0));
  Request k = heads(64, 8, 128, FASTNORM_DTYPE_BF16, 80, address_of(3));
  EXPECT_EQ(together(q, k), "bf16 plain rms once store vector bare 16x1");
  Request rounded_q = q, rounded_k = k;
  rounded_q.args.rounding = rounded_k.args.rounding = FASTNORM_ROUND_NORMALIZED;
  EXPECT_EQ(together(rounded_q, rounded_k), "bf16 plain rms once store vector rounded 16x1");
  EXPECT_EQ(together(rounded_q, k), "bf16 plain rms once store vector 8x2")
      << "Llama's form of one";
  k.weight.reset();
  EXPECT_EQ(together(q, k), "bf16 plain rms once store vector 8x2") << "k without a weight";
  EXPECT_EQ(together(k, q), "bf16 plain rms once store vector 8x2");
}

// The second call is planned like the first if a kernel can tell them apart only by their rows.
TEST(NormTogether, LikeTheFirst) {
  const DeviceFacts facts = cuda::make_facts(cuda::kSm90, 0, 132, 8);
  const auto dtype = FASTNORM_DTYPE_BF16;
  const Planned q = planned(heads(64, 64, 128, dtype, 80, address_of(0)), facts);
  const auto like = [&](const Planned& first, const Request& second) {
    bool is_like = false;
    grids(first, planned(second, facts), facts, &is_like);
    return is_like;
  };
  const Request k = heads(64, 8, 128, dtype, 80, address_of(3));
  EXPECT_TRUE(like(q, k));
  EXPECT_TRUE(like(q, heads(64, 64, 128, dtype, 72, address_of(3)))) << "other strides";
  EXPECT_TRUE(like(q, heads(9, 64, 128, dtype, 80, address_of(3)))) << "fewer tokens";
  EXPECT_FALSE(like(q, heads(64, 65, 128, dtype, 80, address_of(3)))) << "more heads";
  EXPECT_FALSE(like(q, heads(64, 8, 120, dtype, 80, address_of(3)))) << "shorter rows";
  EXPECT_FALSE(like(q, heads(64, 8, 128, FASTNORM_DTYPE_F16, 80, address_of(3))));
  EXPECT_FALSE(like(q, heads(64, 8, 128, dtype, 80, address_of(3) + 2))) << "another alignment";
  EXPECT_FALSE(like(q, heads(64, 1, 128, dtype, 80, address_of(3)))) << "rows of one index";
  const auto changed = [&](auto change) {
    Request r = k;
    change(r);
    return like(q, r);
  };
  EXPECT_TRUE(changed([](Request& r) { r.args.eps = 1e-3f; }));
  EXPECT_FALSE(changed([](Request& r) { r.args.kind = FASTNORM_NORM_LAYER; }));
  EXPECT_FALSE(changed([](Request& r) { r.args.flags = FASTNORM_NORM_PDL_TRIGGER; }));
  EXPECT_FALSE(changed([](Request& r) { r.args.rounding = FASTNORM_ROUND_NORMALIZED; }));
  EXPECT_FALSE(changed([](Request& r) { r.args.weight_offset = 1; }));
  EXPECT_FALSE(changed([](Request& r) { r.weight.reset(); }));
  EXPECT_FALSE(changed([](Request& r) { r.weight->dtype = FASTNORM_DTYPE_F32; }));
  EXPECT_FALSE(changed([](Request& r) { r.weight->shape = {8, 128}; })) << "a weight a head";
  EXPECT_FALSE(changed([](Request& r) { add_quant(&r, FASTNORM_QUANT_PER_ROW); }));
  // Equal properties do not prevent that.
  Request layer_q = heads(64, 64, 128, dtype, 80, address_of(0)), layer_k = k;
  layer_q.args.kind = layer_k.args.kind = FASTNORM_NORM_LAYER;
  EXPECT_TRUE(like(planned(layer_q, facts), layer_k)) << "general kernels: no bias";
  // Rows for which no grid takes two calls.
  EXPECT_FALSE(like(planned(heads(64, 64, 2048, dtype, 0, address_of(0)), facts),
                    heads(64, 8, 2048, dtype, 0, address_of(3))));
}

// A CPU has no grids.
TEST(NormTogether, NoneOnACpu) {
  const std::span<const NormEntry> table = cpu::kNormTable;
  for (const bool codes : {false, true}) {
    DeviceFacts facts;
    NormDesc desc;
    NormPlan plans[2];
    Error error;
    Request r = heads(4, 8, 64, FASTNORM_DTYPE_F32, 0, address_of(0));
    if (codes) add_quant(&r, FASTNORM_QUANT_PER_ROW);
    ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
    for (NormPlan& plan : plans)
      ASSERT_EQ(make_plan(desc, facts, table, &plan, error), FASTNORM_OK) << error.text;
    EXPECT_FALSE(plan_together(desc, desc, facts, table, &plans[0], &plans[1]));
    EXPECT_FALSE(plan_like(desc, plans[0], desc, facts, &plans[1], error));
  }
}

TEST(NormTogether, OthersKeepTheirKernels) {
  const DeviceFacts facts = cuda::make_facts(cuda::kSm90, 0, 132, 8);
  const auto dtype = FASTNORM_DTYPE_BF16;
  // Rows of more than a warp.
  EXPECT_EQ(grids(planned(heads(64, 64, 2048, dtype, 0, address_of(0)), facts),
                  planned(heads(64, 1, 2048, dtype, 0, address_of(3)), facts), facts),
            2);
  // Another dtype, another kind, other flags, a third index.
  const Planned q = planned(heads(1024, 64, 128, dtype, 72, address_of(0)), facts);
  EXPECT_EQ(
      grids(q, planned(heads(1024, 8, 128, FASTNORM_DTYPE_F16, 72, address_of(3)), facts), facts),
      2);
  Request other = heads(1024, 8, 128, dtype, 72, address_of(3));
  other.args.kind = FASTNORM_NORM_LAYER;
  EXPECT_EQ(grids(q, planned(other, facts), facts), 2);
  other = heads(1024, 8, 128, dtype, 72, address_of(3));
  other.args.flags = FASTNORM_NORM_PDL_WAIT;
  EXPECT_EQ(grids(q, planned(other, facts), facts), 2);
  other = simple_request({4, 100, 8, 128}, dtype);
  other.x->address = address_of(3);
  other.x->strides = {200 * 72 * 128, 72 * 128, 128, 1};
  EXPECT_EQ(grids(q, planned(other, facts), facts), 2);
}

// A grid of heads covers each head of each token once, and few heads that do not exist.
TEST(NormTogether, GridsOfHeads) {
  NormDesc q, k;
  q.outer_rank = k.outer_rank = 2;
  const auto grid_of = [&](int64_t tokens, int64_t queries, int64_t keys, int rows_per_block) {
    Grid grid = {};
    q.outer[0] = queries, k.outer[0] = keys;
    q.outer[1] = k.outer[1] = tokens;
    q.rows = tokens * queries, k.rows = tokens * keys;
    find_heads_grid(q, keys > 0 ? &k : nullptr, rows_per_block, &grid);
    return grid;
  };
  int grids = 0;
  for (const int rows_per_block : {2, 4, 8, 16, 32, 64}) {
    for (int64_t queries = 1; queries <= 130; ++queries) {
      for (int64_t keys = 0; keys <= 17; ++keys) {
        const Grid grid = grid_of(5, queries, keys, rows_per_block);
        const int64_t q_blocks = (queries + rows_per_block - 1) / rows_per_block,
                      k_blocks = (keys + rows_per_block - 1) / rows_per_block,
                      rows = (q_blocks + k_blocks) * rows_per_block;
        const bool few_idle = 2 * rows <= 3 * (queries + keys);
        ASSERT_EQ(grid.y, few_idle ? 5u : 0u) << queries << " and " << keys;
        if (!few_idle) continue;
        ++grids;
        ASSERT_EQ(grid.first_blocks, q_blocks);
        ASSERT_EQ(grid.x, q_blocks + k_blocks);
      }
    }
  }
  EXPECT_GT(grids, 8000);
  // Grids that are too large for y, and calls that are not neighbours.
  EXPECT_EQ(grid_of(65535, 8, 8, 8).y, 65535u);
  EXPECT_EQ(grid_of(65536, 8, 8, 8).y, 0u);
  EXPECT_EQ(grid_of(65535, 1 << 20, 0, 8).y, 0u) << "more blocks than a grid has";
  Grid grid = grid_of(5, 8, 8, 8);
  EXPECT_EQ(grid.y, 5u);
  k.outer[1] = 6;
  EXPECT_FALSE(find_heads_grid(q, &k, 8, &grid));
  k.outer[1] = 5, k.outer_rank = 3;
  EXPECT_FALSE(find_heads_grid(q, &k, 8, &grid));
  k.outer_rank = 1;
  EXPECT_FALSE(find_heads_grid(q, &k, 8, &grid));
}

// Rows of different lengths share a kernel that supports both.
TEST(NormTogether, LengthsThatOneKernelHolds) {
  const DeviceFacts facts = cuda::make_facts(cuda::kSm90, 0, 132, 8);
  const auto grids_of = [&](int64_t d, int64_t other) {
    return grids(planned(heads(9, 64, d, FASTNORM_DTYPE_BF16, 0, address_of(0)), facts),
                 planned(heads(9, 8, other, FASTNORM_DTYPE_BF16, 0, address_of(3)), facts), facts);
  };
  EXPECT_EQ(grids_of(128, 120), 1);
  EXPECT_EQ(grids_of(128, 512), 2);
}

}  // namespace

// Every block of both calls occurs once, and the second's are spread evenly.
TEST(NormTogether, BlocksOfAPair) {
  for (const auto& [first, second] : {std::pair<uint32_t, uint32_t>{1, 1},
                                      {8, 1},
                                      {1, 8},
                                      {4096, 512},
                                      {4095, 511},
                                      {7, 5},
                                      {1000003, 1},
                                      {3, 1000003},
                                      {65536, 65536}}) {
    const uint32_t all = first + second, share = cuda::second_share(first, second);
    uint32_t next[2] = {0, 0};
    for (uint32_t block = 0; block < all; ++block) {
      const cuda::PairBlock mine = cuda::pair_block(block, share);
      ASSERT_EQ(mine.block, next[mine.second]++) << first << " and " << second << ", " << block;
      const double behind = static_cast<double>(next[1]) - 1.0 * second / all * (block + 1.0);
      ASSERT_LT(std::abs(behind), 1.001) << first << " and " << second << ", " << block;
    }
    EXPECT_EQ(next[0], first);
    EXPECT_EQ(next[1], second);
  }
  // No second.
  for (const uint32_t block : {0u, 1u, 12345u, (1u << 31) - 1}) {
    EXPECT_EQ(cuda::pair_block(block, 0).block, block);
    EXPECT_FALSE(cuda::pair_block(block, 0).second);
  }
  // The largest grids.
  constexpr uint32_t kMost = (1u << 31) - 1;
  for (const uint32_t second : {1u, 2u, kMost / 9, kMost / 2, kMost - 1}) {
    const cuda::PairBlock last =
        cuda::pair_block(kMost - 1, cuda::second_share(kMost - second, second));
    EXPECT_EQ(last.block, (last.second ? second : kMost - second) - 1) << second;
  }
}

}  // namespace fastnorm::test
