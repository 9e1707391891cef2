// The CUDA kernels of norm_heads and how planning chooses among them, for every architecture.
#include "core/norm_heads/plan.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "cuda/arch.h"
#include "cuda/families.h"
#include "unit/call_table.h"
#include "unit/norm_heads/request.h"

namespace fastnorm {
namespace {

using test::HeadsRequest;

DeviceFacts facts_of(const ArchSpec& arch) {
  DeviceFacts facts;
  facts.device_type = FASTNORM_DEVICE_CUDA;
  facts.arch = &arch;
  facts.multiprocessors = 132;
  return facts;
}

NormHeadsPlan plan_of(HeadsRequest r, const ArchSpec& arch) {
  NormHeadsDesc d;
  NormHeadsPlan plan;
  Error error;
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(
      plan_norm_heads(d, facts_of(arch), cuda::table_of<cuda::NormHeadsFamily>(arch), &plan, error),
      FASTNORM_OK)
      << error.text;
  return plan;
}

TEST(NormHeadsPlan, KernelsAreFewEnough) {
  for (const ArchSpec* arch : cuda::kArchs) {
    const size_t count = cuda::table_of<cuda::NormHeadsFamily>(*arch).size();
    EXPECT_LE(count, arch == &cuda::kSm90 ? 120u : 60u) << arch->name;
    EXPECT_GT(count, 0u) << arch->name;
  }
}

TEST(NormHeadsPlan, NamesAreUniqueAndWordsHoldAllNumbers) {
  for (const ArchSpec* arch : cuda::kArchs) {
    std::set<std::string> names;
    for (const NormHeadsEntry& entry : cuda::table_of<cuda::NormHeadsFamily>(*arch)) {
      EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
      EXPECT_EQ(heads_variant_of(entry.order), entry.variant) << entry.name;
    }
  }
}

// 7 tokens of 8, 2 and 2 heads of 128.
TEST(NormHeadsPlan, GeneralForm) {
  for (const ArchSpec* arch : {&cuda::kSm80, &cuda::kSm100, &cuda::kSm120, &cuda::kPtx}) {
    const NormHeadsPlan plan = plan_of(test::heads_request(), *arch);
    EXPECT_STREQ(plan.kernel, "norm_heads bf16 general") << arch->name;
    EXPECT_EQ(plan.blocks, 7u + 2 + 2) << arch->name << ": 8 heads a block";
    EXPECT_EQ(plan.first_block[1], 7u);
    EXPECT_EQ(plan.first_block[2], 9u);
  }
}

// The kernel on sm_90 of a changed request.
template <typename Change>
std::string kernel_of(Change change) {
  HeadsRequest r = test::heads_request();
  change(r);
  return plan_of(r, cuda::kSm90).kernel;
}

// Gives all parts heads of n columns.
void set_columns(HeadsRequest& r, int64_t n) {
  for (size_t i = 0; i < r.parts.size(); ++i) {
    auto& p = r.parts[i];
    p.x->shape[2] = n, p.x->strides = {12 * n, n, 1};
    p.x->byte_offset = (i == 0 ? 0 : 6 + 2 * i) * static_cast<uint64_t>(n) * 2;
    if (p.y) p.y = p.x;
    if (p.weight) p.weight->shape = {n};
    if (p.cache) p.cache->shape[3] = n;
  }
}

TEST(NormHeadsPlan, HeldForms) {
  EXPECT_EQ(kernel_of([](HeadsRequest&) {}), "norm_heads bf16 rotate-half 8x2");
  EXPECT_EQ(kernel_of([](HeadsRequest& r) {
              set_columns(r, 256);
              r.args.rope_dim = 256;
              r.cos->shape[1] = r.sin->shape[1] = 128;
            }),
            "norm_heads bf16 rotate-half 16x2");
  // Rope of a part of the row: the two elements of a pair are in different lanes.
  EXPECT_EQ(kernel_of([](HeadsRequest& r) { set_columns(r, 256); }), "norm_heads bf16 any 16x2");
  EXPECT_EQ(kernel_of([](HeadsRequest& r) {
              for (int i = 0; i < 2; ++i)
                r.parts[i].args.flags |= FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
            }),
            "norm_heads bf16 interleaved 8x2");
  EXPECT_EQ(kernel_of([](HeadsRequest& r) {
              r.parts[1].args.flags |= FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
            }),
            "norm_heads bf16 any 8x2");
  EXPECT_EQ(kernel_of([](HeadsRequest& r) { r.parts[0].weight->dtype = FASTNORM_DTYPE_F32; }),
            "norm_heads bf16 any 8x2");
  EXPECT_EQ(kernel_of([](HeadsRequest& r) { r.parts[0].args.kind = FASTNORM_NORM_LAYER; }),
            "norm_heads bf16 any 8x2");
  EXPECT_EQ(kernel_of([](HeadsRequest& r) { set_columns(r, 136); }), "norm_heads bf16 any 8x3");
  // Blocks of a cache's columns belong to neighbouring lanes: 8 lanes have 64.
  for (const int32_t block : {64, 128}) {
    EXPECT_EQ(kernel_of([&](HeadsRequest& r) {
                auto& p = r.parts[1];
                p.cache->dtype = FASTNORM_DTYPE_F8_E4M3FN;
                p.cache_quant.scheme = FASTNORM_QUANT_PER_BLOCK;
                p.cache_quant.block_size = block;
                p.cache_scale = p.weight;
                p.cache_scale->address += uintptr_t{1} << 45;
                p.cache_scale->shape = {5, 16, 2, 128 / block};
                p.cache_scale->dtype = FASTNORM_DTYPE_F32;
              }),
              block == 64 ? "norm_heads bf16 any 8x2" : "norm_heads bf16 any 16x2");
  }
  // The weight first: pairs with a distance use the kernels of the usual order.
  for (const uint32_t interleaved : {0u, uint32_t{FASTNORM_NORM_HEADS_ROPE_INTERLEAVED}}) {
    EXPECT_EQ(kernel_of([&](HeadsRequest& r) {
                for (int i = 0; i < 2; ++i) {
                  r.parts[i].args.rounding = FASTNORM_ROUND_ONCE_RW;
                  r.parts[i].args.flags |= interleaved;
                }
              }),
              interleaved == 0 ? "norm_heads bf16 rotate-half 8x2" : "norm_heads bf16 any 8x2");
  }
}

// Codes of quotients, sums of squares and codes of y, and an f32 y of 16-bit x.
TEST(NormHeadsPlan, FormsOfCodesAndStatistics) {
  EXPECT_EQ(kernel_of([](HeadsRequest& r) {
              auto& p = r.parts[2];
              p.cache->dtype = FASTNORM_DTYPE_F8_E4M3FN;
              p.cache_quant.scheme = FASTNORM_QUANT_PER_TENSOR;
              p.cache_quant.division = FASTNORM_QUANT_DIVIDE;
              p.cache_scale = r.parts[0].weight;
              p.cache_scale->address += uintptr_t{1} << 45;
              p.cache_scale->shape = {1};
              p.cache_scale->dtype = FASTNORM_DTYPE_F32;
            }),
            "norm_heads bf16 more 8x2");
  EXPECT_EQ(kernel_of([](HeadsRequest& r) {
              auto& p = r.parts[0];
              p.sumsq = p.weight;
              p.sumsq->address += uintptr_t{1} << 45;
              p.sumsq->shape = {7, 8};
              p.sumsq->dtype = FASTNORM_DTYPE_F32;
            }),
            "norm_heads bf16 more 8x2");
  const auto codes = [](HeadsRequest& r) {
    auto& p = r.parts[0];
    p.quantized = p.y;
    p.quantized->address += uintptr_t{1} << 45;
    p.quantized->strides = {}, p.quantized->byte_offset = 0;
    p.quantized->dtype = FASTNORM_DTYPE_F8_E4M3FN;
    p.scale = p.weight;
    p.scale->address += uintptr_t{1} << 46;
    p.scale->shape = {1};
    p.scale->dtype = FASTNORM_DTYPE_F32;
    p.quant.scheme = FASTNORM_QUANT_PER_TENSOR;
    p.y.reset();
  };
  EXPECT_EQ(kernel_of(codes), "norm_heads bf16 more 8x2");
  EXPECT_EQ(kernel_of([&](HeadsRequest& r) {
              codes(r);
              r.parts[0].quant.clamp = 1;
            }),
            "norm_heads bf16 general");
  EXPECT_EQ(kernel_of([&](HeadsRequest& r) {
              codes(r);
              r.parts[0].quantized->byte_offset = 4;
            }),
            "norm_heads bf16 general");
  EXPECT_EQ(kernel_of([](HeadsRequest& r) {
              r.parts[0].y->address += uintptr_t{1} << 45;
              r.parts[0].y->strides = {};
              r.parts[0].y->dtype = FASTNORM_DTYPE_F32;
            }),
            "norm_heads bf16 general");
  // Rows whose length or address is no multiple of a vector, and a statistic of all heads beside
  // statistics of each head.
  EXPECT_EQ(kernel_of([](HeadsRequest& r) { set_columns(r, 132); }), "norm_heads bf16 general");
  EXPECT_EQ(kernel_of([](HeadsRequest& r) { r.parts[1].cache->byte_offset = 8; }),
            "norm_heads bf16 general");
  EXPECT_EQ(
      kernel_of([](HeadsRequest& r) { r.parts[0].args.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS; }),
      "norm_heads bf16 general");
}

// Heads that share a statistic.
HeadsRequest across_request() {
  HeadsRequest r = test::heads_request();
  for (int i = 0; i < 2; ++i) r.parts[i].args.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
  return r;
}

TEST(NormHeadsPlan, TokensForm) {
  const auto kernel = [](auto change) {
    HeadsRequest r = across_request();
    change(r);
    return std::string(plan_of(r, cuda::kSm90).kernel);
  };
  constexpr const char *kLeast = "norm_heads bf16 tokens 256x2",
                       *kGeneral = "norm_heads bf16 general";
  EXPECT_EQ(kernel([](HeadsRequest&) {}), kLeast);
  EXPECT_EQ(kernel([](HeadsRequest& r) { r.parts[0].args.kind = FASTNORM_NORM_LAYER; }), kLeast);
  EXPECT_EQ(kernel([](HeadsRequest& r) { r.parts[0].weight->dtype = FASTNORM_DTYPE_F32; }), kLeast);
  EXPECT_EQ(kernel([](HeadsRequest& r) { r.parts[0].args.weight_offset = 1; }), kLeast);
  EXPECT_EQ(kernel([](HeadsRequest& r) {
              r.parts[0].args.rounding = FASTNORM_ROUND_EVERY_STEP;
              r.parts[1].args.flags |= FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
            }),
            kLeast);
  const auto sums = [](HeadsRequest& r) {
    auto& p = r.parts[0];
    p.sumsq = p.weight;
    p.sumsq->address += uintptr_t{1} << 45;
    p.sumsq->shape = {7};
    p.sumsq->dtype = FASTNORM_DTYPE_F32;
  };
  EXPECT_EQ(kernel(sums), kLeast);
  const auto codes = [](HeadsRequest& r) {
    auto& p = r.parts[1];
    p.cache->dtype = FASTNORM_DTYPE_F8_E4M3FN;
    p.cache_quant.scheme = FASTNORM_QUANT_PER_TENSOR;
    p.cache_scale = p.weight;
    p.cache_scale->address += uintptr_t{1} << 45;
    p.cache_scale->shape = {1};
    p.cache_scale->dtype = FASTNORM_DTYPE_F32;
  };
  EXPECT_EQ(kernel(codes), kLeast);
  // Heads of a token: the least tile that holds the longest part.
  struct Tile {
    int64_t heads;
    const char* name;
  };
  for (const Tile& tile : {Tile{32, "256x2"}, {33, "256x3"}, {49, "512x2"}, {64, "512x2"}}) {
    EXPECT_EQ(kernel([&](HeadsRequest& r) {
                r.parts[0].x->shape[1] = tile.heads;
                r.parts[0].x->strides = {tile.heads * 128, 128, 1};
                r.parts[0].x->address += uintptr_t{1} << 45;
                r.parts[0].y = r.parts[0].x;
              }),
              std::string("norm_heads bf16 tokens ") + tile.name);
  }
  EXPECT_EQ(kernel([](HeadsRequest& r) {
              r.parts[0].x->shape[1] = 65;
              r.parts[0].x->strides = {65 * 128, 128, 1};
              r.parts[0].x->address += uintptr_t{1} << 45;
              r.parts[0].y = r.parts[0].x;
            }),
            kGeneral);
  // What the form does not have.
  EXPECT_EQ(kernel([&](HeadsRequest& r) {
              codes(r);
              r.parts[1].cache_quant.division = FASTNORM_QUANT_DIVIDE;
            }),
            kGeneral);
  EXPECT_EQ(kernel([&](HeadsRequest& r) {
              codes(r);
              r.parts[1].cache_quant.scheme = FASTNORM_QUANT_PER_BLOCK;
              r.parts[1].cache_quant.block_size = 64;
              r.parts[1].cache_scale->shape = {5, 16, 2, 2};
            }),
            kGeneral);
  EXPECT_EQ(kernel([](HeadsRequest& r) {
              r.args.rope_dim = 120;
              r.cos->shape[1] = r.sin->shape[1] = 60;
            }),
            kGeneral);
  EXPECT_EQ(kernel([](HeadsRequest& r) { r.parts[1].cache->byte_offset = 8; }), kGeneral);
}

// MLA: the latent and the rotary key of 7 tokens, in place.
HeadsRequest latent_request() {
  HeadsRequest r = test::heads_request();
  r.parts.resize(2);
  r.slots.reset();
  r.args.rope_dim = 64;
  r.cos->shape[1] = r.sin->shape[1] = 32;
  for (size_t i = 0; i < 2; ++i) {
    auto& p = r.parts[i];
    const int64_t n = i == 0 ? 512 : 64;
    p.args.flags = i == 0
                       ? uint32_t{FASTNORM_NORM_HEADS_NORM}
                       : uint32_t{FASTNORM_NORM_HEADS_ROPE} | FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
    p.x->shape = {7, 1, n}, p.x->strides = {576, n, 1};
    p.x->byte_offset = i * 1024;
    if (i == 0) p.weight->shape = {n};
    if (i == 1) p.weight.reset(), p.args.eps = 0;
    p.y = p.x;
    p.cache.reset();
  }
  return r;
}

void drop_tables(HeadsRequest& r) {
  r.args.rope_dim = 0;
  for (auto* t : {&r.cos, &r.sin, &r.positions}) t->reset();
}

// What plans on sm_90 a call of tests/unit/calls with changes.
NormHeadsPlan plan_of_call(const std::string& base, const std::string& changes) {
  support::Call call = test::call_of("norm_heads", base, changes);
  NormHeadsDesc d;
  NormHeadsPlan plan;
  Error error;
  EXPECT_EQ(check_norm_heads(call.args<fastnorm_norm_heads_args>(),
                             call.parts<fastnorm_norm_heads_part>(), call.count(),
                             {FASTNORM_DEVICE_CPU, 0}, &d, error),
            FASTNORM_OK)
      << changes << ": " << error.text;
  EXPECT_EQ(plan_norm_heads(d, facts_of(cuda::kSm90),
                            cuda::table_of<cuda::NormHeadsFamily>(cuda::kSm90), &plan, error),
            FASTNORM_OK)
      << changes << ": " << error.text;
  return plan;
}

TEST(NormHeadsPlan, IndexerForm) {
  const auto kernel = [](const std::string& changes) {
    return std::string(plan_of_call("indexer", changes).kernel);
  };
  constexpr const char *kLean = "norm_heads bf16 indexer-lean 4x4",
                       *kIndexer = "norm_heads bf16 indexer 4x4",
                       *kGeneral = "norm_heads bf16 general";
  const NormHeadsPlan plan = plan_of_call("indexer", "");
  EXPECT_STREQ(plan.kernel, kLean);
  EXPECT_EQ(plan.groups[0], 8u) << "a group for each head of few tokens";
  EXPECT_EQ(plan.first_block[1], 2u) << "32 groups a block";
  // x, key and query; the weights and the bias; tables, positions and slots; then what leaves.
  EXPECT_EQ(plan.bytes_read, 7u * 9 * 256 + 7 * 8 * 2 + 2 * 512 + 7 * 2 * 128 + 7 * 16);
  EXPECT_EQ(plan.bytes_written, 7u * 8 * (128 + 4 + 4) + 7 * 132);
  for (const char* changes : {
           "parts[1].cache.strides=[2112,128,128,1] parts[1].cache_quant.scale.strides=[528,1,1,1]",
           "parts[1].cache.strides=[2112,132,132,1] "
           "parts[1].cache_quant.scale.strides=[528,33,33,1]",
           "parts[0].quant.scheme=per_block parts[0].quant.block_size=128 "
           "parts[0].quant.scale=f32[7,8,1]",
           "parts[0].quant.scale_pow2=1 parts[0].head_weights=null parts[0].head_weights_out=null "
           "parts[0].head_weights_factor=0",
           "parts[1].weight=bf16[128]",
       })
    EXPECT_EQ(kernel(changes), kLean) << changes;
  for (const char* changes : {
           "parts[0].quant.rotation=0 parts[1].cache_quant.rotation=0",
           "parts[1].cache_quant.rotation=64",
           "parts[0].quant.quantized=i8[7,8,128]",
           "parts[0].quant.source=rounded",
           "parts[1].kind=rms parts[1].bias=null",
           "parts[1].bias=null",
           "parts[1].weight=f16[128]",
           "parts[0].flags=0xa",
           "parts[0].flags=0x12",
           "parts[0].quant.scale_pow2=1 parts[0].quant.clamp=1 "
           "parts[0].quant.rotation_signs=f32[128]",
           "parts[0].flags=0x6 parts[1].flags=0x7 parts[0].rope_offset=64",
           "parts[1].rounding=every_step parts[1].rstd=f32[7,1]",
           "parts[0].y=bf16[7,8,128]",
       })
    EXPECT_EQ(kernel(changes), kIndexer) << changes;
  for (const char* changes : {
           "parts[0].quant.scheme=per_tensor parts[0].quant.scale=f32[1]",
           "parts[0].quant.amax=f32[1]",
           "parts[0].quant.division=divide",
           "parts[0].quant.quantized.offset=2",
           "parts[1].y=f32[7,1,128]",
           "rope_dim=32 cos,sin=f32[4096,16]",
           "parts[0].rope_offset=8",
           "parts[1].sumsq=f32[7,1,2]",
           "parts[1].cache_quant.block_size=64 parts[1].cache_quant.rotation=64 "
           "parts[1].cache_quant.scale=f32[5,16,1,2]",
       })
    EXPECT_EQ(kernel(changes), kGeneral) << changes;
}

TEST(NormHeadsPlan, TailOfACache) {
  const NormHeadsPlan plan = plan_of_call("tail", "");
  EXPECT_STREQ(plan.kernel, "norm_heads bf16 general");
  EXPECT_EQ(plan.launches, 1);
  // x; tables, positions and slots.
  EXPECT_EQ(plan.bytes_read, 7u * 1024 + 7 * 2 * 128 + 7 * 16);
  EXPECT_EQ(plan.bytes_written, 7u * (448 + 128 + 7));
  const std::string whole =
      "parts[0].cache_tail=null parts[0].cache.shape=[5,16,1,512] "
      "parts[0].cache_quant.scale.shape=[5,16,1,8]";
  EXPECT_STRNE(plan_of_call("tail", whole).kernel, plan.kernel) << "rows in registers";
  EXPECT_EQ(plan_of_call("tail", whole).bytes_written, 7u * (512 + 8));
}

// MLA's latents of query and key, and the rotary key.
TEST(NormHeadsPlan, LongLatents) {
  const std::string query =
      "parts[2].flags=0x1 parts[2].x=bf16[7,1,1536] parts[2].weight=bf16[1536] "
      "parts[2].quant.quantized=f8_e4m3fn[7,1,1536] parts[2].quant.scheme=";
  const std::string row = query + "per_row parts[2].quant.scale=f32[7,1]",
                    blocks = query +
                             "per_block parts[2].quant.block_size=128 "
                             "parts[2].quant.scale=f32[7,1,12]";
  const auto kernel = [](const std::string& changes) {
    return std::string(plan_of_call("latent", changes).kernel);
  };
  constexpr const char *kLatent = "norm_heads bf16 latent 16x4",
                       *kGeneral = "norm_heads bf16 general";
  const NormHeadsPlan plan = plan_of_call("latent", row);
  EXPECT_STREQ(plan.kernel, kLatent);
  EXPECT_EQ(plan.first_block[3] - plan.first_block[2], 4u) << "two rows a block";
  EXPECT_EQ(kernel(blocks), kLatent);
  EXPECT_EQ(kernel(blocks + " parts[2].quant.scale_layout=column_major"), kLatent);
  EXPECT_EQ(kernel(row + " parts[2].y=bf16[7,1,1536]"), kLatent);
  EXPECT_EQ(kernel(row + " parts[2].quant.division=divide"), kGeneral);
  EXPECT_EQ(kernel(row + " parts[2].quant.clamp=1"), kGeneral);
  EXPECT_EQ(kernel(row + " parts[2].quant.rotation=128"), kGeneral);
  EXPECT_EQ(kernel(row + " parts[2].kind=layer"), kGeneral);
}

TEST(NormHeadsPlan, LatentForm) {
  const auto kernel = [](auto change) {
    HeadsRequest r = latent_request();
    change(r);
    return std::string(plan_of(r, cuda::kSm90).kernel);
  };
  constexpr const char *kLatent = "norm_heads bf16 latent 16x4", *kAny = "norm_heads bf16 any 32x2",
                       *kMore = "norm_heads bf16 more 32x2";
  EXPECT_EQ(kernel([](HeadsRequest&) {}), kLatent);
  EXPECT_EQ(kernel([](HeadsRequest& r) {
              drop_tables(r);
              r.parts.pop_back();
            }),
            kLatent);
  EXPECT_EQ(kernel([](HeadsRequest& r) { r.parts[0].weight.reset(); }), kLatent);
  EXPECT_EQ(kernel([](HeadsRequest& r) { r.parts[0].args.rounding = FASTNORM_ROUND_NORMALIZED; }),
            kLatent);
  EXPECT_EQ(kernel([](HeadsRequest& r) {
              drop_tables(r);
              r.parts[1].args.flags = 0;
            }),
            kLatent);
  // What it does not have.
  EXPECT_EQ(kernel([](HeadsRequest& r) { r.parts[0].args.kind = FASTNORM_NORM_LAYER; }), kAny);
  EXPECT_EQ(kernel([](HeadsRequest& r) { r.parts[0].weight->dtype = FASTNORM_DTYPE_F32; }), kAny);
  EXPECT_EQ(kernel([](HeadsRequest& r) { r.parts[0].args.rounding = FASTNORM_ROUND_ONCE_RW; }),
            kAny);
  EXPECT_EQ(kernel([](HeadsRequest& r) { r.parts[1].args.flags = FASTNORM_NORM_HEADS_ROPE; }),
            kAny);
  EXPECT_EQ(kernel([](HeadsRequest& r) {
              auto& p = r.parts[0];
              p.args.flags = 0, p.args.eps = 0;
              p.weight.reset();
            }),
            "norm_heads bf16 interleaved 32x2");
  EXPECT_EQ(kernel([](HeadsRequest& r) {
              auto& p = r.parts[0];
              p.sumsq = p.weight;
              p.sumsq->address += uintptr_t{1} << 45;
              p.sumsq->shape = {7, 1};
              p.sumsq->dtype = FASTNORM_DTYPE_F32;
            }),
            kMore);
  // Latents of 504 columns, and short rows of 72.
  for (const int i : {0, 1}) {
    EXPECT_EQ(kernel([&](HeadsRequest& r) {
                auto& p = r.parts[static_cast<size_t>(i)];
                p.x->shape[2] += i == 0 ? -8 : 8;
                if (i == 0) p.weight->shape = {504};
                p.x->strides = {592, 592, 1};
                r.parts[static_cast<size_t>(1 - i)].x->strides = {592, 592, 1};
                for (auto& part : r.parts) part.y = part.x;
              }),
              "norm_heads bf16 interleaved 32x2")
        << i;
  }
}

// Half a warp has a latent, a quarter a rotary key.
TEST(NormHeadsPlan, LatentsOfABlock) {
  const NormHeadsPlan plan = plan_of(latent_request(), cuda::kSm90);
  EXPECT_EQ(plan.groups[0], 1u);
  EXPECT_EQ(plan.groups[1], 1u);
  EXPECT_EQ(plan.first_block[1], 1u) << "8 latents a block";
  EXPECT_EQ(plan.blocks, 2u);
}

// A part of few columns has several tokens in a block, as far as the angles have room.
TEST(NormHeadsPlan, TokensOfABlock) {
  HeadsRequest r = across_request();
  const NormHeadsPlan plan = plan_of(r, cuda::kSm90);
  EXPECT_EQ(plan.groups[0], 4u) << "128 vectors: 64 threads";
  EXPECT_EQ(plan.groups[1], 8u) << "32 vectors: a warp";
  EXPECT_EQ(plan.groups[2], 8u);
  EXPECT_EQ(plan.first_block[1], 2u);
  EXPECT_EQ(plan.first_block[2], 3u);
  EXPECT_EQ(plan.blocks, 4u);
  // One head of 4096 columns, and one of 512, of which many may turn.
  r.parts.resize(2);
  r.slots.reset();
  for (size_t i = 0; i < 2; ++i) {
    auto& p = r.parts[i];
    const int64_t n = i == 0 ? 4096 : 512;
    p.x->shape = {7, 1, n}, p.x->strides = {4608, n, 1};
    p.x->byte_offset = i * 8192;
    p.weight->shape = {n};
    p.y = p.x;
    p.cache.reset();
  }
  for (const int64_t pairs : {64, 256}) {
    r.args.rope_dim = static_cast<int32_t>(2 * pairs);
    r.cos->shape[1] = r.sin->shape[1] = pairs;
    const NormHeadsPlan wide = plan_of(r, cuda::kSm90);
    EXPECT_STREQ(wide.kernel, "norm_heads bf16 tokens 256x2");
    EXPECT_EQ(wide.groups[0], 1u);
    EXPECT_EQ(wide.groups[1], pairs == 64 ? 8u : 4u);
  }
  // One token's angles fill their room, and no more than that.
  r.parts.resize(1);
  for (const int64_t pairs : {int64_t{kTokenPairs}, int64_t{kTokenPairs} + 8}) {
    r.args.rope_dim = static_cast<int32_t>(2 * pairs);
    r.cos->shape[1] = r.sin->shape[1] = pairs;
    EXPECT_STREQ(plan_of(r, cuda::kSm90).kernel,
                 pairs == kTokenPairs ? "norm_heads bf16 tokens 256x2" : "norm_heads bf16 general");
  }
}

// A group of lanes has one head until all parts have twice the threads that a GPU holds at once.
TEST(NormHeadsPlan, HeadsOfAGroup) {
  const auto plan = [](int64_t tokens) {
    HeadsRequest r = test::heads_request();
    for (auto& p : r.parts) {
      p.x->shape[0] = tokens;
      if (p.y) p.y->shape[0] = tokens;
    }
    r.positions->shape = r.slots->shape = {tokens};
    return plan_of(r, cuda::kSm90);
  };
  const NormHeadsPlan few = plan(7), many = plan(100000);
  EXPECT_EQ(few.groups[0], 8u);
  EXPECT_EQ(few.groups[1], 2u);
  EXPECT_EQ(few.first_block[1], 4u) << "7 * 8 groups, 16 a block";
  EXPECT_EQ(few.blocks, 4u + 1 + 1);
  EXPECT_EQ(many.groups[0], 1u);
  EXPECT_EQ(many.groups[1], 1u);
  EXPECT_EQ(many.blocks, 3 * 6250u);
  // The GPU's 132 multiprocessors hold `enough` threads; a token has 12 heads of 8 lanes.
  const NormHeadsVariant& v = few.entry->variant;
  const int64_t enough = int64_t{132} * v.per_sm * v.block_threads();
  for (const int64_t heads : {2, 4, 8}) {
    const int64_t tokens = (heads * enough + 95) / 96;
    EXPECT_EQ(plan(tokens - 1).groups[0], 16u / heads) << heads;
    EXPECT_EQ(plan(tokens).groups[0], 8u / heads) << heads;
  }
}

// Each kernel supports some call, with its dtype, form and longest row.
TEST(NormHeadsPlan, EveryKernelHasCalls) {
  const auto table = cuda::table_of<cuda::NormHeadsFamily>(cuda::kSm90);
  for (size_t i = 0; i < table.size(); ++i) {
    const NormHeadsVariant& v = table[i].variant;
    if (!v.is_held()) continue;
    const int64_t heads = v.has_latents() ? 1 : 8,
                  tile = v.threads * v.vectors * 16 / dtype_bytes(v.dtype),
                  n = v.has_tokens() ? tile / heads : tile,
                  turned = v.form == HeadsForm::kRotateHalf ? n
                           : v.is_lean_indexer()            ? n / 2
                                                            : 16;
    HeadsRequest r = test::heads_request();
    r.parts.resize(1);
    r.args.rope_dim = static_cast<int32_t>(turned);
    r.cos->shape[1] = r.sin->shape[1] = turned / 2;
    r.slots.reset();
    auto& p = r.parts[0];
    const fastnorm_dtype_id ids[] = {FASTNORM_DTYPE_F32, FASTNORM_DTYPE_F16, FASTNORM_DTYPE_BF16};
    p.x->dtype = p.weight->dtype = ids[static_cast<int>(v.dtype)];
    p.x->shape[1] = heads, p.x->shape[2] = p.weight->shape[0] = n;
    const bool turns = !v.has_latents() && v.form != HeadsForm::kIndexer;
    if (!turns) drop_tables(r), p.args.flags = FASTNORM_NORM_HEADS_NORM;
    p.x->strides = {12 * n, n, 1};
    p.y = p.x;
    if (v.form == HeadsForm::kInterleaved) p.args.flags |= FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
    if (v.is_any() || v.has_tokens()) p.args.rope_offset = 8;
    if (v.has_tokens()) p.args.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
    if (v.form == HeadsForm::kMore) {
      p.sumsq = p.weight;
      p.sumsq->address += uintptr_t{1} << 45;
      p.sumsq->shape = {7, 8};
      p.sumsq->dtype = FASTNORM_DTYPE_F32;
    }
    if (v.is_indexer()) {
      p.quant.scheme = FASTNORM_QUANT_PER_ROW;
      p.quantized = p.y;
      p.quantized->address += uintptr_t{1} << 45;
      p.quantized->strides = {}, p.quantized->byte_offset = 0;
      p.quantized->dtype = FASTNORM_DTYPE_F8_E4M3FN;
      p.scale = p.weight;
      p.scale->address += uintptr_t{1} << 46;
      p.scale->shape = {7, heads};
      p.scale->dtype = FASTNORM_DTYPE_F32;
    }
    if (v.is_lean_indexer()) {
      p.quant.rotation = 128, p.args.flags = FASTNORM_NORM_HEADS_ROPE, p.args.eps = 0;
      p.y.reset(), p.weight.reset();
    }
    EXPECT_STREQ(plan_of(r, cuda::kSm90).kernel, table[i].name);
  }
}

TEST(NormHeadsPlan, RowNumbersHave32Bits) {
  NormHeadsDesc d;
  NormHeadsPlan plan;
  Error error;
  ASSERT_EQ(test::heads_request().check(&d, error), FASTNORM_OK) << error.text;
  d.parts[1].norm.rows = int64_t{1} << 32;
  EXPECT_EQ(plan_norm_heads(d, facts_of(cuda::kSm90),
                            cuda::table_of<cuda::NormHeadsFamily>(cuda::kSm90), &plan, error),
            FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(error.text).find("parts[1].x has 4294967296 rows"), std::string::npos)
      << error.text;
}

}  // namespace
}  // namespace fastnorm
