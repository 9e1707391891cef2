// Planning: keys, access widths, tiles, grids, for every architecture.
#include "core/norm/plan.h"

#include <gtest/gtest.h>

#include <bit>
#include <iterator>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/norm/index.h"
#include "core/norm/loads.h"
#include "cpu/norm/list.h"
#include "cuda/arch.h"
#include "cuda/families.h"
#include "cuda/gpu_device.h"
#include "cuda/norm/launch_params.h"
#include "ref/data.h"
#include "support/share.h"
#include "unit/norm/request.h"

namespace fastnorm::test {
namespace {

using ref::Random;

NormDesc describe(const Request& r) {
  NormDesc desc;
  Error error;
  EXPECT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  return desc;
}

DeviceFacts gpu(const ArchSpec& arch = cuda::kSm90, int32_t clusters = 8,
                int32_t multiprocessors = 132) {
  return cuda::make_facts(arch, 0, multiprocessors, clusters);
}

DeviceFacts cpu(int32_t threads = 1) {
  DeviceFacts facts;
  facts.threads = threads;
  facts.l2_bytes = 1 << 20;
  facts.vector_bytes = 64;
  return facts;
}

NormPlan plan_of(const NormDesc& desc, const DeviceFacts& facts) {
  NormPlan plan;
  Error error;
  const std::span<const NormEntry> table =
      facts.arch != nullptr ? cuda::table_of<cuda::NormFamily>(*facts.arch)
                            : std::span<const NormEntry>(fastnorm::cpu::kNormTable);
  EXPECT_EQ(make_plan(desc, facts, table, &plan, error), FASTNORM_OK) << error.text;
  return plan;
}

// Whether a call can be planned on the kernel with this name.
fastnorm_status plan_on(const std::string& name, const Request& request, const ArchSpec& arch) {
  const std::span<const NormEntry> table = cuda::table_of<cuda::NormFamily>(arch);
  const auto entry =
      std::find_if(table.begin(), table.end(), [&](const NormEntry& e) { return name == e.name; });
  EXPECT_NE(entry, table.end()) << name;
  NormPlan plan;
  Error error;
  return make_plan_for_entry(describe(request), gpu(arch), table,
                             static_cast<int32_t>(entry - table.begin()), &plan, error);
}

// --- keys ---

TEST(NormKey, LeanWhereNothingAsksForMore) {
  const NormKey key = norm_key(describe(simple_request({8, 64}, FASTNORM_DTYPE_BF16, true)), gpu());
  EXPECT_EQ(key.dtype, Dtype::kBF16);
  EXPECT_EQ(key.source, Source::kAdd);
  EXPECT_EQ(key.stat, Stat::kRms);
  EXPECT_EQ(key.affine, Affine::kOnce);
  EXPECT_EQ(key.access, Access::kVector);
  EXPECT_EQ(
      norm_key(describe(simple_request({8, 64}, FASTNORM_DTYPE_F32, false, FASTNORM_NORM_LAYER)),
               cpu())
          .stat,
      Stat::kLayer);
}

TEST(NormKey, RoundingInBetweenIsNoReasonForAnotherGpuKernel) {
  for (const int64_t n : {64, 63}) {
    Request exact = simple_request({8, n}, FASTNORM_DTYPE_BF16, true);
    Request rounded = exact;
    rounded.args.rounding = FASTNORM_ROUND_NORMALIZED;
    rounded.args.residual_rounding = FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS;
    EXPECT_EQ(norm_key(describe(rounded), gpu()), norm_key(describe(exact), gpu())) << n;
    for (Request* r : {&exact, &rounded}) add_quant(r, FASTNORM_QUANT_PER_ROW);
    EXPECT_EQ(norm_key(describe(rounded), gpu()), norm_key(describe(exact), gpu())) << n;
    EXPECT_EQ(norm_key(describe(rounded), cpu()).affine, Affine::kAny) << n;
  }
}

TEST(NormKey, GeneralWhereItMust) {
  const Request lean = simple_request({8, 64}, FASTNORM_DTYPE_BF16, true);
  const auto access = [](const Request& r) { return norm_key(describe(r), gpu()).access; };
  ASSERT_EQ(access(lean), Access::kVector);
  Request r = lean;
  r.args.rounding = FASTNORM_ROUND_EVERY_STEP;
  EXPECT_EQ(access(r), Access::kAny) << "rounding";
  r.args.rounding = FASTNORM_ROUND_ONCE_RW;
  EXPECT_EQ(access(r), Access::kAny) << "the weight first";
  r = lean;
  r.args.residual_rounding = FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY;
  EXPECT_EQ(access(r), Access::kAny) << "residual rounding";
  r = lean;
  r.residual->dtype = FASTNORM_DTYPE_F32;
  EXPECT_EQ(access(r), Access::kAny) << "f32 residual";
  r = lean;
  r.residual_out->dtype = FASTNORM_DTYPE_F32;
  EXPECT_EQ(access(r), Access::kAny) << "f32 residual_out";
  for (auto tensor :
       {&Request::x, &Request::y, &Request::residual, &Request::residual_out, &Request::weight}) {
    r = lean;
    (r.*tensor)->address += 2;
    EXPECT_EQ(access(r), Access::kUnaligned) << "misaligned";
    EXPECT_EQ(norm_key(describe(r), cpu()).access, Access::kAny) << "a CPU has two ways";
    r.args.rounding = FASTNORM_ROUND_EVERY_STEP;
    EXPECT_EQ(access(r), Access::kAny) << "misaligned and rounding";
  }
  r = lean;
  r.x->strides = {65, 1};
  EXPECT_EQ(access(r), Access::kUnaligned) << "odd stride";
  const Request odd = simple_request({8, 63}, FASTNORM_DTYPE_BF16);
  EXPECT_EQ(access(odd), Access::kUnaligned) << "short vector";
  r = odd;
  r.weight->dtype = FASTNORM_DTYPE_F32;
  EXPECT_EQ(access(r), Access::kAny) << "short vector and f32 weight";
  r = simple_request({8, 63}, FASTNORM_DTYPE_BF16, true);
  r.weight->dtype = FASTNORM_DTYPE_F32;
  EXPECT_EQ(access(r), Access::kAny) << "short vector, f32 weight and a residual";
  r = simple_request({4, 2, 62}, FASTNORM_DTYPE_BF16);
  r.weight->dtype = FASTNORM_DTYPE_F32;
  r.weight->shape = {2, 62};
  EXPECT_EQ(access(r), Access::kAny) << "a head's f32 weight that is no vectors";
  r = lean;
  r.weight->dtype = FASTNORM_DTYPE_F32;
  r.weight->address += 8;
  EXPECT_EQ(access(r), Access::kAny) << "the same beside aligned rows";
  r = odd;
  add_quant(&r, FASTNORM_QUANT_PER_ROW);
  EXPECT_EQ(access(r), Access::kAny) << "short vector, quantised";
  r = lean;
  r.rstd = RequestTensor{{8}, {}, FASTNORM_DTYPE_F32, address_of(9) + 4};
  EXPECT_EQ(access(r), Access::kVector) << "statistics are single values";
}

// General kernels support a different dtype for each tensor, on every architecture and the CPU.
TEST(NormKey, MixedDtypesAreGeneral) {
  constexpr fastnorm_dtype_id kIds[] = {FASTNORM_DTYPE_F32, FASTNORM_DTYPE_F16,
                                        FASTNORM_DTYPE_BF16};
  const auto expect_general = [](const Request& r, const char* what) {
    const NormDesc desc = describe(r);
    for (const ArchSpec* arch : cuda::kArchs) {
      const NormPlan plan = plan_of(desc, gpu(*arch, arch->max_cluster_blocks));
      ASSERT_NE(plan.entry, nullptr);
      EXPECT_EQ(plan.entry->key.access, Access::kAny) << what << " on " << arch->name;
      EXPECT_EQ(plan.entry->key.affine, Affine::kAny) << what << " on " << arch->name;
      EXPECT_EQ(plan.kind.reach, NormKind::kAnyAddress) << what << " on " << arch->name;
    }
    EXPECT_EQ(norm_key(desc, cpu()).affine, Affine::kAny) << what;
  };
  for (const fastnorm_dtype_id own : kIds) {
    for (const fastnorm_dtype_id other : kIds) {
      for (const int64_t n : {64, 4096, 300001}) {
        if (other == own) continue;
        const Request plain = simple_request({8, n}, own, true, FASTNORM_NORM_LAYER);
        Request r = plain;
        r.residual->dtype = other;
        expect_general(r, "residual");
        r = plain;
        r.residual_out->dtype = other;
        expect_general(r, "residual_out");
        add_quant(&r, FASTNORM_QUANT_PER_ROW);
        expect_general(r, "residual_out beside codes");
        if (other == FASTNORM_DTYPE_F32) {
          r = plain;
          r.y->dtype = other;
          expect_general(r, "y");
          continue;
        }
        r = plain;
        r.weight->dtype = other;
        expect_general(r, "weight");
        r = plain;
        r.weight->dtype = r.bias->dtype = other;
        expect_general(r, "weight and bias");
      }
    }
  }
}

TEST(NormKey, WeightsOfSeveralDimensionsAreGeneral) {
  Request r = simple_request({4, 3, 2, 64}, FASTNORM_DTYPE_BF16);
  for (RequestTensor* t : {&*r.x, &*r.y, &*r.weight}) t->device_type = FASTNORM_DEVICE_CUDA;
  r.device = {FASTNORM_DEVICE_CUDA, 0};
  r.weight->shape = {3, 1, 64};
  EXPECT_EQ(norm_key(describe(r), gpu()).access, Access::kVector) << "rows in another order";
  r.weight->shape = {4, 1, 2, 64};
  EXPECT_EQ(norm_key(describe(r), gpu()).access, Access::kAny);
  for (const ArchSpec* arch : cuda::kArchs)
    EXPECT_EQ(plan_of(describe(r), gpu(*arch, arch->max_cluster_blocks)).entry->key.access,
              Access::kAny);
  const cuda::NormCallParams p = cuda::make_params(describe(r), plan_of(describe(r), gpu()));
  EXPECT_EQ(p.weight_head_stride, 128);
  EXPECT_EQ(p.weight_upper.stride[0], 0);
  EXPECT_EQ(p.weight_upper.stride[1], 256);
}

// A GPU has kernels for weight and bias of x's dtype, and of f32 with 16-bit rows.
TEST(NormKey, WeightAndBiasChooseTheKernel) {
  const auto key = [](fastnorm_norm_kind kind, auto change) {
    Request r = simple_request({8, 64}, FASTNORM_DTYPE_BF16, true, kind);
    change(r);
    return norm_key(describe(r), gpu());
  };
  constexpr fastnorm_norm_kind kRms = FASTNORM_NORM_RMS, kLayer = FASTNORM_NORM_LAYER;
  const auto f32_weight = [](Request& r) { r.weight->dtype = FASTNORM_DTYPE_F32; };
  const auto f32_both = [](Request& r) { r.weight->dtype = r.bias->dtype = FASTNORM_DTYPE_F32; };
  const auto f32_bias_alone = [](Request& r) {
    r.weight.reset();
    r.bias->dtype = FASTNORM_DTYPE_F32;
  };
  const auto none = [](Request& r) { r.weight.reset(), r.bias.reset(); };
  EXPECT_EQ(key(kRms, f32_weight).affine, Affine::kF32);
  EXPECT_EQ(key(kRms, f32_weight).access, Access::kVector);
  EXPECT_EQ(key(kLayer, f32_both).affine, Affine::kF32);
  EXPECT_EQ(key(kLayer, f32_bias_alone).affine, Affine::kF32);
  EXPECT_EQ(key(kLayer, none).affine, Affine::kOnce);
  EXPECT_EQ(key(kLayer, f32_weight).affine, Affine::kAny) << "of two dtypes";
  EXPECT_EQ(key(kRms, [](Request& r) { r.bias = r.weight; }).affine, Affine::kAny) << "RMS, bias";
  EXPECT_EQ(norm_key(describe(simple_request({8, 64}, FASTNORM_DTYPE_F32)), gpu()).affine,
            Affine::kOnce)
      << "f32 rows";
  Request r = simple_request({8, 64}, FASTNORM_DTYPE_BF16);
  f32_weight(r);
  EXPECT_EQ(norm_key(describe(r), cpu()).affine, Affine::kOnce) << "a CPU reads any";
  r = simple_request({8, 4096 * 8}, FASTNORM_DTYPE_BF16);
  f32_weight(r);
  EXPECT_EQ(norm_key(describe(r), gpu()).affine, Affine::kF32) << "as much as a block holds";
  r = simple_request({8, 4097 * 8}, FASTNORM_DTYPE_BF16);
  f32_weight(r);
  EXPECT_EQ(norm_key(describe(r), gpu()).affine, Affine::kAny) << "more";
}

// Rows that do not fit in the registers of any kernel are read again.
TEST(NormKey, RowsLongerThanRegistersAreStreamed) {
  const auto entry = [](int64_t n, const DeviceFacts& facts, fastnorm_dtype_id dtype,
                        bool add = false) {
    return *plan_of(describe(simple_request({2, n}, dtype, add)), facts).entry;
  };
  for (const ArchSpec* arch : cuda::kArchs) {
    const DeviceFacts facts = gpu(*arch, arch->max_cluster_blocks);
    for (const bool add : {false, true}) {
      for (const auto dtype : {FASTNORM_DTYPE_BF16, FASTNORM_DTYPE_F32}) {
        int64_t longest = 0;
        for (const NormEntry& e : cuda::table_of<cuda::NormFamily>(*arch)) {
          if (e.key.access == Access::kVector &&
              e.key.dtype == (dtype == FASTNORM_DTYPE_F32 ? Dtype::kF32 : Dtype::kBF16) &&
              e.key.source == (add ? Source::kAdd : Source::kPlain) && e.key.stat == Stat::kRms &&
              e.key.sink == Sink::kStore) {
            longest = std::max(longest, vectors_held(e).most);
          }
        }
        const int64_t per_vector = dtype == FASTNORM_DTYPE_F32 ? 4 : 8;
        EXPECT_GE(longest * per_vector, 16384) << arch->name;
        EXPECT_EQ(entry(longest * per_vector, facts, dtype, add).key.access, Access::kVector);
        const NormEntry streamed = entry((longest + 1) * per_vector, facts, dtype, add);
        EXPECT_EQ(streamed.key.access, Access::kAny) << arch->name;
        EXPECT_EQ(streamed.tile.vectors, 0) << arch->name;
      }
    }
  }
  EXPECT_EQ(norm_key(describe(simple_request({2, 1 << 22}, FASTNORM_DTYPE_BF16)), cpu()).access,
            Access::kVector)
      << "a CPU has no such limit";
}

// A device that cannot schedule a cluster runs kernels of one block.
TEST(NormKey, ADeviceWithoutTheClusterStreams) {
  const NormDesc row = describe(simple_request({2, 8193 * 8}, FASTNORM_DTYPE_BF16));
  EXPECT_TRUE(plan_of(row, gpu()).entry->tile.is_cluster());
  EXPECT_EQ(norm_key(row, gpu()).access, Access::kVector);
  for (const int32_t clusters : {1, 2, 4})
    EXPECT_EQ(norm_key(row, gpu(cuda::kSm90, clusters)).access, Access::kAny) << clusters;
}

// Unaligned rows of one dtype. Quantised rows, and those with f32 weights, use the kernels for any
// address.
TEST(NormKey, UnalignedRows) {
  for (const int64_t n : {7, 511, 4101, 16383}) {
    Request r = simple_request({64, n}, FASTNORM_DTYPE_BF16);
    EXPECT_EQ(norm_key(describe(r), gpu()).access, Access::kUnaligned) << n;
    EXPECT_EQ(norm_key(describe(r), gpu(cuda::kSm80, 1)).access, Access::kAny) << "not measured";
    r.weight->address += 2;
    EXPECT_EQ(norm_key(describe(r), gpu()).access, Access::kUnaligned) << "an unaligned weight";
    r.weight->address += 2;
    r.weight->dtype = FASTNORM_DTYPE_F32;
    EXPECT_EQ(norm_key(describe(r), gpu()).access, Access::kAny) << "f32 weight";
    r = simple_request({64, n}, FASTNORM_DTYPE_BF16);
    add_quant(&r, FASTNORM_QUANT_PER_ROW);
    EXPECT_EQ(norm_key(describe(r), gpu()).access, Access::kAny) << "quantised";
  }
}

// Full kernels support rows of any length up to their tile. Lean ones support rows that their last
// vector reaches.
TEST(VectorsHeld, OfFullAndOfLeanKernels) {
  int full = 0, lean = 0;
  for (const NormEntry& e : cuda::table_of<cuda::NormFamily>(cuda::kSm90)) {
    const VectorRange held = vectors_held(e);
    const int64_t threads = e.tile.threads_per_row();
    if (e.tile.vectors == 0) {
      EXPECT_EQ(held.least, 1);
      continue;
    }
    EXPECT_EQ(held.most, threads * e.tile.vectors) << e.name;
    EXPECT_EQ(held.least, e.every ? 1 : threads * (e.tile.vectors - 1) + 1) << e.name;
    EXPECT_EQ(e.every, e.key.flavour == Flavour::kGeneral) << e.name;
    ++(e.every ? full : lean);
  }
  EXPECT_GT(full, 300);
  EXPECT_GT(lean, 300);
}

// Query and key heads of a model get the same tile, for every number of heads. One launch for both
// needs that.
TEST(NormTile, HeadsOfOneTensorAgree) {
  for (const int64_t d : {64, 80, 96, 112, 128, 256, 512}) {
    for (const int64_t tokens : {1, 64, 1023, 1024, 4096, 100000}) {
      const auto tile = [&](int64_t heads) {
        Request r = simple_request({tokens, heads, d}, FASTNORM_DTYPE_BF16);
        r.x->strides = {80 * d, d, 1};
        r.y = r.x;
        return plan_of(describe(r), gpu()).entry->tile;
      };
      EXPECT_EQ(tile(64), tile(8)) << tokens << " x " << d;
      EXPECT_EQ(tile(64), tile(2)) << tokens << " x " << d;
    }
  }
}

// A kernel supports the weight and bias that it has code for.
TEST(PlanForEntry, KernelsServeTheirWeights) {
  const std::span<const NormEntry> table = cuda::table_of<cuda::NormFamily>(cuda::kSm90);
  const auto serves = [&](Affine affine, Access access, Tile tile, fastnorm_dtype_id weight) {
    NormKey key;
    key.dtype = Dtype::kBF16;
    key.affine = affine;
    key.access = access;
    const int32_t index = find_entry(table, key, tile);
    EXPECT_GE(index, 0);
    Request r = simple_request({8, 64}, FASTNORM_DTYPE_BF16);
    r.weight->dtype = weight;
    NormPlan plan;
    Error error;
    return make_plan_for_entry(describe(r), gpu(), table, index, &plan, error);
  };
  constexpr fastnorm_dtype_id kOwn = FASTNORM_DTYPE_BF16, kF32 = FASTNORM_DTYPE_F32;
  EXPECT_EQ(serves(Affine::kOnce, Access::kUnaligned, {4, 2, 1}, kOwn), FASTNORM_OK);
  EXPECT_EQ(serves(Affine::kOnce, Access::kUnaligned, {4, 2, 1}, kF32), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_EQ(serves(Affine::kOnce, Access::kVector, {8, 2, 1}, kOwn), FASTNORM_OK);
  EXPECT_EQ(serves(Affine::kOnce, Access::kVector, {8, 2, 1}, kF32), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_EQ(serves(Affine::kF32, Access::kVector, {8, 2, 1}, kF32), FASTNORM_OK);
  EXPECT_EQ(serves(Affine::kF32, Access::kVector, {8, 2, 1}, kOwn), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_EQ(serves(Affine::kAny, Access::kAny, {32, 4, 1}, kOwn), FASTNORM_OK);
  EXPECT_EQ(serves(Affine::kAny, Access::kAny, {32, 4, 1}, kF32), FASTNORM_OK);
}

TEST(VectorBytes, WidestThatDividesEverything) {
  const auto bytes_of = [](const Request& r, const DeviceFacts& facts) {
    return plan_of(describe(r), facts).vector_bytes;
  };
  Request r = simple_request({4, 64}, FASTNORM_DTYPE_BF16);
  EXPECT_EQ(bytes_of(r, gpu()), 16);
  EXPECT_EQ(bytes_of(r, cpu()), 64);
  r.x->address += 8;
  EXPECT_EQ(bytes_of(r, gpu()), 8);
  r.weight->address += 4;
  EXPECT_EQ(bytes_of(r, gpu()), 4);
  r.y->strides = {65, 1};
  EXPECT_EQ(bytes_of(r, gpu()), 2);
  EXPECT_EQ(bytes_of(simple_request({1, 6}, FASTNORM_DTYPE_F32), gpu()), 8);
  r = simple_request({4, 64}, FASTNORM_DTYPE_BF16);
  r.x->strides = {-72, 1};
  EXPECT_EQ(bytes_of(r, gpu()), 16) << "negative strides";
}

// --- architectures ---

const char* arch_name(int32_t capability, bool (*built)(const ArchSpec&)) {
  const ArchSpec* arch = cuda::arch_for(capability, built);
  return arch != nullptr ? arch->name : "none";
}

TEST(Arch, OfEachCapability) {
  const auto all = [](const ArchSpec&) { return true; };
  const auto hopper = [](const ArchSpec& a) { return &a == &cuda::kSm90; };
  const auto usual = [](const ArchSpec& a) { return a.capability == 90; };
  const auto ampere = [](const ArchSpec& a) { return a.capability == 80; };
  const auto nothing = [](const ArchSpec&) { return false; };
  const struct {
    int32_t capability;
    const char *with_all, *with_usual, *with_hopper, *with_ampere;
  } kExpected[] = {
      {61, "none", "none", "none", "none"},       {70, "none", "none", "none", "none"},
      {75, "none", "none", "none", "none"},       {80, "sm_80", "none", "none", "sm_80"},
      {86, "sm_80", "none", "none", "sm_80"},     {87, "sm_80", "none", "none", "sm_80"},
      {89, "sm_80", "none", "none", "sm_80"},     {90, "sm_90", "sm_90", "sm_90", "none"},
      {100, "sm_100f", "ptx_90", "none", "none"}, {103, "sm_100f", "ptx_90", "none", "none"},
      {110, "ptx_90", "ptx_90", "none", "none"},  {120, "sm_120f", "ptx_90", "none", "none"},
      {121, "sm_120f", "ptx_90", "none", "none"}, {130, "ptx_90", "ptx_90", "none", "none"},
  };
  for (const auto& e : kExpected) {
    EXPECT_STREQ(arch_name(e.capability, all), e.with_all) << e.capability;
    EXPECT_STREQ(arch_name(e.capability, usual), e.with_usual) << e.capability;
    EXPECT_STREQ(arch_name(e.capability, hopper), e.with_hopper) << e.capability;
    EXPECT_STREQ(arch_name(e.capability, ampere), e.with_ampere) << e.capability;
    EXPECT_STREQ(arch_name(e.capability, nothing), "none") << e.capability;
  }
}

TEST(Arch, PtxIsPlannedAsSm120) {
  // Names are compared by address, and each unit has its own literals.
  ArchSpec expected = cuda::kPtx, found = cuda::kSm120;
  expected.name = found.name = nullptr;
  expected.column = found.column, expected.stages = found.stages;
  found.capability = expected.capability;
  EXPECT_TRUE(found == expected);
  EXPECT_EQ(cuda::kPtx.stages->entries, cuda::kSm120.stages->entries);
  EXPECT_EQ(cuda::table_of<cuda::NormFamily>(cuda::kPtx).data(),
            cuda::table_of<cuda::NormFamily>(cuda::kSm120).data());
}

TEST(Tables, SortedAndUnique) {
  for (const ArchSpec* arch : cuda::kArchs) {
    const std::span<const NormEntry> table = cuda::table_of<cuda::NormFamily>(*arch);
    ASSERT_GT(table.size(), 100u);
    const NormIndex index(table);
    for (size_t i = 1; i < table.size(); ++i) {
      EXPECT_LT(table[i - 1].packed(), table[i].packed());
      EXPECT_STRNE(table[i - 1].name, table[i].name);
    }
    for (size_t i = 0; i < table.size(); ++i) {
      EXPECT_EQ(table[i].packed(), packed(table[i].key, table[i].tile));
      EXPECT_EQ(find_entry(table, table[i].key, table[i].tile), static_cast<int32_t>(i));
      EXPECT_EQ(index.find(table[i].packed()), static_cast<int32_t>(i));
      EXPECT_LE(table[i].tile.blocks, arch->max_cluster_blocks) << arch->name;
    }
    EXPECT_EQ(find_entry(table, {}, {7, 7, 7}), -1);
    EXPECT_EQ(index.find(packed({}, {7, 7, 7})), -1);
  }
  EXPECT_EQ(find_entry({}, {}, {}), -1);
  EXPECT_EQ(NormIndex({}).find(packed({}, {})), -1);
}

// --- plans ---

// Everything that a caller can ask for, at random.
Request random_request(Random& random) {
  constexpr fastnorm_dtype_id kDtypeIds[] = {FASTNORM_DTYPE_F32, FASTNORM_DTYPE_F16,
                                             FASTNORM_DTYPE_BF16};
  const int64_t row_bits = random.below(22), column_bits = random.below(21);
  const int64_t rows = 1 + random.below(int64_t{1} << row_bits);
  int64_t n = 1 + random.below(int64_t{1} << column_bits);
  if (!random.one_in(3)) n = (n + 7) / 8 * 8;
  const fastnorm_dtype_id dtype = random.of(kDtypeIds);
  Request r = simple_request({rows, n}, dtype, random.one_in(2),
                             random.one_in(2) ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS);
  if (random.one_in(4)) r.args.rounding = static_cast<fastnorm_rounding>(random.below(4));
  if (random.one_in(4))
    r.args.residual_rounding = static_cast<fastnorm_residual_rounding>(random.below(3));
  if (random.one_in(4)) r.x->address += static_cast<uintptr_t>(4 * random.below(4));
  if (random.one_in(4)) r.y->strides = {n + random.below(9), 1};
  if (r.residual && random.one_in(4)) r.residual->dtype = random.of(kDtypeIds);
  if (r.residual_out && random.one_in(8)) r.residual_out->dtype = random.of(kDtypeIds);
  if (r.weight && random.one_in(8)) r.weight->dtype = random.of(kDtypeIds);
  if (random.one_in(8)) r.y->dtype = FASTNORM_DTYPE_F32;
  if (random.one_in(3)) r.weight->dtype = FASTNORM_DTYPE_F32;
  return r;
}

void expect_sound(const NormDesc& d, const DeviceFacts& facts, const NormPlan& plan) {
  ASSERT_NE(plan.entry, nullptr);
  const std::string what = std::string(facts.arch->name) + " " + plan.entry->name + " rows " +
                           std::to_string(d.rows) + " n " + std::to_string(d.n);
  const Tile tile = plan.entry->tile;
  const std::span<const NormEntry> table = cuda::table_of<cuda::NormFamily>(*facts.arch);
  ASSERT_EQ(&table[static_cast<size_t>(plan.index)], plan.entry) << what;
  EXPECT_LE(tile.blocks, facts.max_cluster_blocks) << what;
  EXPECT_TRUE(std::has_single_bit(static_cast<unsigned>(tile.threads))) << what;
  EXPECT_LE(tile.threads * plan.rows_per_block, 1024) << what;
  const uint64_t row_blocks =
      (static_cast<uint64_t>(d.rows) + static_cast<uint64_t>(plan.rows_per_block) - 1) /
      static_cast<uint64_t>(plan.rows_per_block);
  EXPECT_EQ(plan.blocks, row_blocks * static_cast<uint64_t>(tile.blocks)) << what;
  // The kernel must support the row: its own plan is accepted under its name.
  NormPlan forced;
  Error error;
  EXPECT_EQ(make_plan_for_entry(d, facts, table, plan.index, &forced, error), FASTNORM_OK)
      << what << error.text;
  EXPECT_EQ(forced.blocks, plan.blocks);
  EXPECT_EQ(forced.bytes_read, plan.bytes_read);
}

TEST(Plan, EveryDescriptionHasAKernelThatHoldsIt) {
  Random random(3);
  for (int trial = 0; trial < support::share_of(20000); ++trial) {
    const NormDesc d = describe(random_request(random));
    for (const ArchSpec* arch : cuda::kArchs) {
      for (const int32_t clusters : {1, 2, 4, 8}) {
        const DeviceFacts facts = gpu(*arch, std::min(clusters, arch->max_cluster_blocks));
        ASSERT_NO_FATAL_FAILURE(expect_sound(d, facts, plan_of(d, facts)));
      }
      // Slices of a GPU, and larger GPUs.
      const DeviceFacts other = gpu(*arch, arch->max_cluster_blocks,
                                    random.of({1, 14, 46, 66, 108, 114, 148, 192, 1000}));
      ASSERT_NO_FATAL_FAILURE(expect_sound(d, other, plan_of(d, other)));
    }
  }
}

TEST(Plan, EveryRowLengthHasATile) {
  for (const fastnorm_dtype_id dtype : {FASTNORM_DTYPE_F32, FASTNORM_DTYPE_BF16}) {
    const int64_t v = dtype == FASTNORM_DTYPE_F32 ? 4 : 8;
    for (int64_t vectors = 1; vectors <= 140000;
         vectors += support::share() * (vectors < 5000 ? 1 : 197)) {
      for (const int64_t rows : {1, 17, 65, 129, 512, 1024, 100000}) {
        for (int kind = 0; kind < 4; ++kind) {
          const NormDesc d =
              describe(simple_request({rows, vectors * v}, dtype, (kind & 1) != 0,
                                      (kind & 2) != 0 ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS));
          for (const int32_t clusters : {1, 8}) {
            const DeviceFacts facts = gpu(clusters == 1 ? cuda::kSm80 : cuda::kSm90, clusters);
            ASSERT_NO_FATAL_FAILURE(expect_sound(d, facts, plan_of(d, facts)));
          }
        }
      }
    }
  }
}

// Every length of quantised rows has a tile.
TEST(Plan, EveryQuantisedRowHasATile) {
  constexpr int64_t kSchemes = std::size(kQuantSchemes) - 1;  // without NONE
  for (const fastnorm_dtype_id dtype : {FASTNORM_DTYPE_F32, FASTNORM_DTYPE_BF16}) {
    const int64_t v = dtype == FASTNORM_DTYPE_F32 ? 4 : 8;
    for (int64_t vectors = 1; vectors <= 40000;
         vectors += support::share() * (vectors < 4200 ? 1 : 997)) {
      for (const int64_t rows : {1, 17, 65, 129, 100000}) {
        const bool odd = vectors % 13 == 0;  // length is no multiple of a vector
        Request r = simple_request({rows, vectors * v - (odd ? 2 : 0)}, dtype, vectors % 2 == 0,
                                   vectors % 3 == 0 ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS);
        if (r.x->shape.back() == 0) continue;
        add_quant(&r, kQuantSchemes[1 + (vectors + rows) % kSchemes].scheme);
        const NormDesc d = describe(r);
        for (const int32_t clusters : {1, 8}) {
          const DeviceFacts facts = gpu(clusters == 1 ? cuda::kSm80 : cuda::kSm90, clusters);
          const NormPlan plan = plan_of(d, facts);
          ASSERT_NO_FATAL_FAILURE(expect_sound(d, facts, plan));
          EXPECT_NE(plan.entry->key.sink, Sink::kStore);
          EXPECT_EQ(plan.entry->key.access, odd || vectors > 4096 ? Access::kAny : Access::kVector);
        }
      }
    }
  }
}

// What a lean kernel leaves out, and what it supports.
TEST(Plan, LeanKernels) {
  const auto flavour = [](const Request& r) {
    return plan_of(describe(r), gpu()).entry->key.flavour;
  };
  const auto is_lean = [&](const Request& r) {
    const Flavour b = flavour(r);
    return b == Flavour::kLean || b == Flavour::kLeanStreaming || b == Flavour::kLeanShared;
  };
  const auto is_rounded = [&](const Request& r) {
    const Flavour b = flavour(r);
    return b == Flavour::kRounded || b == Flavour::kRoundedStreaming;
  };
  for (const int64_t rows : {1, 64, 1024, 4096}) {
    for (const int64_t n : {64, 1024, 4096, 8192, 16384, 32768}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(n));
      const auto request = [&](bool add = false, fastnorm_norm_kind kind = FASTNORM_NORM_RMS) {
        return simple_request({rows, n}, FASTNORM_DTYPE_BF16, add, kind);
      };
      const Request rms = request(), layer = request(false, FASTNORM_NORM_LAYER),
                    add = request(true);
      EXPECT_TRUE(is_lean(rms));
      EXPECT_TRUE(is_lean(layer));
      EXPECT_TRUE(is_lean(add) || n > 16384);
      EXPECT_TRUE(is_lean(with_statistics(rms))) << "statistics are stored on request";
      EXPECT_EQ(plan_of(describe(with_statistics(layer)), gpu()).entry,
                plan_of(describe(layer), gpu()).entry);
      Request r = rms;
      r.args.flags = FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER;
      r.args.weight_offset = 1;
      EXPECT_TRUE(is_lean(r)) << "Gemma's form, dependent launches";
      r.args.rounding = FASTNORM_ROUND_NORMALIZED;
      EXPECT_EQ(flavour(r), Flavour::kGeneral) << "rounded, with an offset";
      r.args.weight_offset = -0.0f;
      EXPECT_EQ(flavour(r), Flavour::kGeneral) << "which leaves -0 as it is";
      r.args.weight_offset = 0;
      EXPECT_TRUE(is_rounded(r) || n > 16384) << "Llama's form";
      r = layer;
      r.args.rounding = FASTNORM_ROUND_NORMALIZED;
      EXPECT_EQ(flavour(r), Flavour::kGeneral) << "LayerNorm";
      r = rms;
      r.weight.reset();
      EXPECT_EQ(flavour(r), Flavour::kGeneral) << "no weight";
      r = layer;
      r.bias.reset();
      EXPECT_EQ(flavour(r), Flavour::kGeneral) << "no bias";
      r = add;
      r.args.residual_rounding = FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS;
      EXPECT_EQ(flavour(r), Flavour::kGeneral) << "a rounded sum alone";
      r.args.rounding = FASTNORM_ROUND_NORMALIZED;
      EXPECT_TRUE(is_rounded(r) || n > 8192);
      r.args.residual_rounding = FASTNORM_RESIDUAL_EXACT;
      EXPECT_EQ(flavour(r), Flavour::kGeneral) << "an exact sum";
    }
  }
  Request r = simple_request({2, 3, 4096}, FASTNORM_DTYPE_BF16);
  r.x->strides = {5 * 4096, 4096, 1};
  EXPECT_EQ(flavour(r), Flavour::kGeneral) << "two indices, one row a block";
  Request heads = simple_request({64, 8, 128}, FASTNORM_DTYPE_BF16);
  heads.x->strides = {10 * 128, 128, 1};
  EXPECT_TRUE(is_lean(heads)) << "two indices, several rows a block";
  Request own = heads;
  own.weight->shape = {8, 128};
  EXPECT_EQ(flavour(own), Flavour::kGeneral) << "a weight for each head";
  Request three = simple_request({4, 64, 8, 128}, FASTNORM_DTYPE_BF16);
  three.x->strides = {100 * 1280, 1280, 128, 1};
  EXPECT_EQ(flavour(three), Flavour::kGeneral);
}

TEST(Plan, LeanKernelsThatQuantise) {
  const auto key = [](const Request& r) { return plan_of(describe(r), gpu()).entry->key; };
  for (const auto scheme : {FASTNORM_QUANT_PER_TENSOR, FASTNORM_QUANT_PER_ROW}) {
    Request r = simple_request({4096, 4096}, FASTNORM_DTYPE_BF16);
    add_quant(&r, scheme);
    EXPECT_EQ(key(r).flavour, Flavour::kGeneral) << "y and amax, too";
    EXPECT_EQ(key(r).sink, Sink::kQuant);
    r.amax.reset();
    EXPECT_EQ(key(r).flavour, Flavour::kGeneral) << "y, too";
    r.y.reset();
    const bool is_static = scheme == FASTNORM_QUANT_PER_TENSOR;
    EXPECT_NE(key(r).flavour, Flavour::kGeneral);
    EXPECT_EQ(key(r).sink, is_static ? Sink::kStatic : Sink::kQuant);
    EXPECT_EQ(key(with_statistics(r)), key(r));
    const NormKey elsewhere = plan_of(describe(r), gpu(cuda::kSm80, 1)).entry->key;
    EXPECT_EQ(elsewhere.sink, Sink::kQuant) << "full kernels alone, where nothing was measured";
    r.quant.clamp = 2;
    EXPECT_EQ(key(r).flavour, Flavour::kGeneral) << "clamped";
    EXPECT_EQ(key(r).sink, Sink::kQuant);
  }
}

// A kernel may be requested by name if it supports all that a call asks for.
TEST(PlanForEntry, LeanKernels) {
  const std::string lean = "bf16 plain rms once store vector bare 16x1",
                    full = "bf16 plain rms once store vector 8x2",
                    rounded = "bf16 plain rms once store vector rounded 16x1";
  const auto forced = [](const Request& r, const std::string& name) {
    return plan_on(name, r, cuda::kSm90);
  };
  const Request rms = simple_request({64, 128}, FASTNORM_DTYPE_BF16);
  Request llama = rms, alone = rms;
  llama.args.rounding = FASTNORM_ROUND_NORMALIZED;
  alone.weight.reset();
  EXPECT_EQ(forced(rms, lean), FASTNORM_OK);
  EXPECT_EQ(forced(rms, full), FASTNORM_OK);
  EXPECT_EQ(forced(rms, rounded), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_EQ(forced(llama, rounded), FASTNORM_OK);
  EXPECT_EQ(forced(llama, full), FASTNORM_OK);
  EXPECT_EQ(forced(llama, lean), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_EQ(forced(alone, full), FASTNORM_OK);
  EXPECT_EQ(forced(alone, lean), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_EQ(forced(simple_request({64, 64}, FASTNORM_DTYPE_BF16), full), FASTNORM_OK);
  EXPECT_EQ(forced(simple_request({64, 136}, FASTNORM_DTYPE_BF16), full),
            FASTNORM_ERROR_UNSUPPORTED)
      << "too long";
}

// Two blocks that keep weight and bias in shared memory fit on one SM.
TEST(Plan, SharedWeights) {
  constexpr int kMultiprocessorBytes = 227 << 10, kOwn = 9 << 10;  // a kernel's folds, at most
  int seen = 0;
  for (const NormEntry& entry : cuda::table_of<cuda::NormFamily>(cuda::kSm90)) {
    if (entry.key.flavour != Flavour::kLeanShared) continue;
    ++seen;
    const int weights = entry.key.stat == Stat::kLayer ? 2 : 1;
    const int bytes = cuda::launch_shared_bytes(entry.key, entry.tile);
    EXPECT_EQ(bytes, weights * entry.tile.threads * entry.tile.vectors * 16) << entry.name;
    EXPECT_LE(bytes + kOwn, kMultiprocessorBytes / 2) << entry.name;
    EXPECT_EQ(rows_per_block(entry.tile), 1) << entry.name;
  }
  EXPECT_GT(seen, 10);
}

// Rows with streaming loads.
TEST(Plan, StreamedLoads) {
  const auto streams = [](int64_t rows, int64_t n, bool add, bool codes = false) {
    Request r = simple_request({rows, n}, FASTNORM_DTYPE_BF16, add);
    if (codes) add_quant(&r, FASTNORM_QUANT_PER_TENSOR), r.amax.reset(), r.y.reset();
    return plan_of(describe(r), gpu()).stream_loads;
  };
  EXPECT_FALSE(streams(24, 4096, false));
  EXPECT_TRUE(streams(25, 4096, false));
  EXPECT_TRUE(streams(512, 16384, false));
  EXPECT_FALSE(streams(513, 16384, false));
  EXPECT_TRUE(streams(1024, 4096, false));
  EXPECT_FALSE(streams(2048, 2048, false));
  EXPECT_TRUE(streams(1024, 4096, true));
  EXPECT_FALSE(streams(1024, 8192, true));
  EXPECT_TRUE(streams(256, 8192, true, true));
  EXPECT_FALSE(streams(512, 7168, true, true));
  EXPECT_TRUE(streams(512, 5120, false, true));
  EXPECT_FALSE(streams(512, 7168, false, true));
}

// Blocks with several rows have a kernel of their own for streaming loads, unless the rows have two
// strides.
TEST(Plan, StreamedLoadsOfShortRows) {
  const auto flavour = [](int64_t tokens, std::vector<int64_t> strides) {
    Request r = simple_request({tokens, 8, 64}, FASTNORM_DTYPE_BF16);
    r.x->strides = std::move(strides);
    const NormPlan plan = plan_of(describe(r), gpu());
    EXPECT_GT(rows_per_block(plan.entry->tile), 1);
    return plan.entry->key.flavour;
  };
  EXPECT_EQ(flavour(64, {}), Flavour::kLeanStreaming);
  EXPECT_EQ(flavour(64, {768, 64, 1}), Flavour::kLean);
  EXPECT_EQ(flavour(4096, {}), Flavour::kLean) << "too many bytes";
}

TEST(Plan, WithoutClustersTheSameRowsGoElsewhere) {
  const NormDesc d = describe(simple_request({1, 16384}, FASTNORM_DTYPE_BF16));
  int32_t most = 1000;
  for (const int32_t clusters : {8, 4, 2, 1}) {
    const NormPlan plan = plan_of(d, gpu(cuda::kSm90, clusters));
    EXPECT_LE(plan.entry->tile.blocks, clusters);
    EXPECT_LE(plan.entry->tile.blocks, most);
    most = plan.entry->tile.blocks;
  }
  EXPECT_EQ(plan_of(d, gpu(cuda::kSm90, 8)).entry->tile.blocks, 8) << "a single long row is spread";
  EXPECT_EQ(plan_of(d, gpu(cuda::kSm80, 1)).entry->tile.blocks, 1);
}

TEST(Plan, NoRowsNoKernel) {
  const NormDesc d = describe(simple_request({0, 64}, FASTNORM_DTYPE_F32));
  EXPECT_EQ(plan_of(d, gpu()).entry, nullptr);
  EXPECT_EQ(plan_of(d, gpu()).blocks, 0u);
  EXPECT_EQ(plan_of(d, cpu()).entry, nullptr);
}

TEST(Plan, BytesAreThoseOfTheTensors) {
  Request r = simple_request({10, 64}, FASTNORM_DTYPE_BF16, true, FASTNORM_NORM_LAYER);
  r.rstd = RequestTensor{{10}, {}, FASTNORM_DTYPE_F32, address_of(9)};
  NormPlan plan = plan_of(describe(r), gpu());
  EXPECT_EQ(plan.bytes_read, 10u * 64 * 2 * 2 + 64 * 2 * 2);
  EXPECT_EQ(plan.bytes_written, 10u * 64 * 2 * 2 + 10 * 4);
  r.residual->strides = {0, 1};
  plan = plan_of(describe(r), gpu());
  EXPECT_EQ(plan.bytes_read, 10u * 64 * 2 + 64 * 2 + 64 * 2 * 2) << "a broadcast row is read once";
}

TEST(Plan, BytesOfQuantisedOutputs) {
  const auto written = [](fastnorm_quant_scheme scheme, void (*change)(Request&)) {
    Request r = simple_request({10, 200}, FASTNORM_DTYPE_BF16);
    add_quant(&r, scheme);
    r.y.reset();
    change(r);
    const NormPlan plan = plan_of(describe(r), cpu());
    EXPECT_EQ(plan.entry->key.sink, Sink::kQuant);
    EXPECT_EQ(plan.bytes_read, 10u * 200 * 2 + 200 * 2);
    return plan.bytes_written;
  };
  const auto as_it_is = [](Request&) {};
  EXPECT_EQ(written(FASTNORM_QUANT_PER_TENSOR, as_it_is), 10u * 200) << "the scale is an input";
  EXPECT_EQ(written(FASTNORM_QUANT_PER_ROW, as_it_is), 10u * (200 + 4));
  EXPECT_EQ(written(FASTNORM_QUANT_PER_BLOCK, as_it_is), 10u * (200 + 4 * 4));
  EXPECT_EQ(written(FASTNORM_QUANT_MXFP8, as_it_is), 10u * (200 + 7));
  EXPECT_EQ(written(FASTNORM_QUANT_NVFP4, as_it_is), 10u * (100 + 13));
  EXPECT_EQ(written(FASTNORM_QUANT_MXFP4, as_it_is), 10u * (100 + 7));
  EXPECT_EQ(
      written(FASTNORM_QUANT_PER_ROW, [](Request& r) { r.y = r.x, r.y->address = address_of(1); }),
      10u * (200 + 4 + 400));
  EXPECT_EQ(written(FASTNORM_QUANT_PER_ROW,
                    [](Request& r) {
                      r.quant.scale_pow2 = 1;
                      r.scale->dtype = FASTNORM_DTYPE_F8_E8M0FNU;
                    }),
            10u * (200 + 1));
  const auto swizzled = [](Request& r) {
    r.quant.scale_layout = FASTNORM_SCALE_SWIZZLED_128X4;
    r.scale->shape = {512 * (r.quant.scheme == FASTNORM_QUANT_MXFP8 ? 2 : 4)};
  };
  EXPECT_EQ(written(FASTNORM_QUANT_MXFP8, swizzled), 10u * 200 + 1024) << "padding is written";
  EXPECT_EQ(written(FASTNORM_QUANT_NVFP4, swizzled), 10u * 100 + 2048);
  EXPECT_EQ(written(FASTNORM_QUANT_PER_BLOCK,
                    [](Request& r) {
                      r.quant.scale_layout = FASTNORM_SCALE_COLUMN_MAJOR;
                      r.scale->strides = {3, 50};
                    }),
            10u * (200 + 4 * 4))
      << "gaps are not";
}

TEST(NormKey, QuantisedRowsHaveAKernelOfTheirOwn) {
  Request r = simple_request({8, 64}, FASTNORM_DTYPE_BF16);
  EXPECT_EQ(norm_key(describe(r), cpu()).sink, Sink::kStore);
  add_quant(&r, FASTNORM_QUANT_PER_ROW);
  EXPECT_EQ(norm_key(describe(r), cpu()).sink, Sink::kQuant);
  r.quant.scheme = FASTNORM_QUANT_NONE;
  r.quantized.reset();
  r.scale.reset();
  EXPECT_EQ(norm_key(describe(r), cpu()).sink, Sink::kQuant) << "amax alone";
}

// Aligned rows that the GPU's aligned kernels cannot quantise use those for any address.
TEST(NormKey, QuantisedRowsOnAGpu) {
  const auto access = [](fastnorm_quant_scheme scheme, auto change) {
    Request r = simple_request({8, 64}, FASTNORM_DTYPE_BF16, false, FASTNORM_NORM_LAYER);
    add_quant(&r, scheme);
    change(r);
    const NormKey key = norm_key(describe(r), gpu());
    EXPECT_EQ(key.sink, Sink::kQuant);
    return key.access;
  };
  const auto as_it_is = [](Request&) {};
  for (const auto scheme : {FASTNORM_QUANT_PER_TENSOR, FASTNORM_QUANT_MXFP8, FASTNORM_QUANT_NVFP4})
    EXPECT_EQ(access(scheme, as_it_is), Access::kVector);
  const auto moved = [](Request& r) { r.quantized->byte_offset += 4; };
  EXPECT_EQ(access(FASTNORM_QUANT_MXFP8, moved), Access::kAny) << "8 codes to a vector";
  EXPECT_EQ(access(FASTNORM_QUANT_NVFP4, moved), Access::kVector) << "4 bytes to a vector";
  EXPECT_EQ(access(FASTNORM_QUANT_PER_ROW,
                   [](Request& r) { r.weight->dtype = r.bias->dtype = FASTNORM_DTYPE_F32; }),
            Access::kAny);
  EXPECT_EQ(access(FASTNORM_QUANT_PER_ROW, [](Request& r) { r.args.kind = FASTNORM_NORM_RMS; }),
            Access::kAny)
      << "RMS with a bias";
}

TEST(Plan, MoreRowsThanAGridHolds) {
  Request r = simple_request({int64_t{1} << 32, 8}, FASTNORM_DTYPE_F32);
  NormPlan plan;
  Error error;
  EXPECT_EQ(
      make_plan(describe(r), gpu(), cuda::table_of<cuda::NormFamily>(cuda::kSm90), &plan, error),
      FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(error.text).find("4294967296 rows"), std::string::npos) << error.text;
  EXPECT_NE(std::string(error.text).find("nearest"), std::string::npos) << error.text;
  r = simple_request({int64_t{1} << 31, 8192}, FASTNORM_DTYPE_F32);
  EXPECT_EQ(
      make_plan(describe(r), gpu(), cuda::table_of<cuda::NormFamily>(cuda::kSm90), &plan, error),
      FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(error.text).find("2147483647"), std::string::npos) << error.text;
}

TEST(Plan, ATableWithoutTheKernelIsADefect) {
  NormPlan plan;
  Error error;
  const NormDesc d = describe(simple_request({4, 64}, FASTNORM_DTYPE_F32));
  EXPECT_EQ(make_plan(d, gpu(), {}, &plan, error), FASTNORM_ERROR_INTERNAL);
  EXPECT_NE(std::string(error.text).find("f32 plain rms"), std::string::npos) << error.text;
}

TEST(PlanForEntry, RefusesWhatAKernelCannotDo) {
  const std::span<const NormEntry> table = cuda::table_of<cuda::NormFamily>(cuda::kSm90);
  const auto status = [&](const Request& r, NormKey key, Tile tile) {
    NormPlan plan;
    Error error;
    const int32_t index = find_entry(table, key, tile);
    EXPECT_GE(index, 0);
    const fastnorm_status s = make_plan_for_entry(describe(r), gpu(), table, index, &plan, error);
    if (s != FASTNORM_OK) {
      EXPECT_NE(std::string(error.text).find("nearest"), std::string::npos) << error.text;
    }
    return s;
  };
  NormKey vector;  // f32 plain rms
  NormKey any = vector;
  any.affine = Affine::kAny;
  any.access = Access::kAny;
  const auto row = [](int64_t n) { return simple_request({3, n}, FASTNORM_DTYPE_F32); };
  const Tile two = {32, 2, 1};  // up to 64 vectors of 4
  EXPECT_EQ(status(row(1 * 4), vector, two), FASTNORM_OK);
  EXPECT_EQ(status(row(64 * 4), vector, two), FASTNORM_OK);
  EXPECT_EQ(status(row(65 * 4), vector, two), FASTNORM_ERROR_UNSUPPORTED) << "too long";
  EXPECT_EQ(status(row(63), vector, two), FASTNORM_ERROR_UNSUPPORTED) << "no whole vectors";
  EXPECT_EQ(status(row(63), any, {32, 4, 1}), FASTNORM_OK);
  EXPECT_EQ(status(row(129 * 4), any, {32, 4, 1}), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_EQ(status(row(1 << 20), any, {256, 0, 8}), FASTNORM_OK);
  EXPECT_EQ(status(row(1), any, {256, 0, 1}), FASTNORM_OK);
  EXPECT_EQ(status(simple_request({3, 256}, FASTNORM_DTYPE_BF16), vector, two),
            FASTNORM_ERROR_UNSUPPORTED)
      << "dtype";
  EXPECT_EQ(status(simple_request({3, 256}, FASTNORM_DTYPE_F32, true), vector, two),
            FASTNORM_ERROR_UNSUPPORTED)
      << "source";
}

// --- CPU ---

TEST(CpuPlan, RangesAndStores) {
  const NormDesc many = describe(simple_request({4096, 4096}, FASTNORM_DTYPE_BF16));
  NormPlan plan = plan_of(many, cpu());
  EXPECT_TRUE(plan.non_temporal) << "32 MiB of output";
  EXPECT_EQ(plan.rows_per_block, 16) << "65536 elements a range";
  EXPECT_EQ(plan_of(many, cpu(4)).blocks, 4u);
  const NormDesc few = describe(simple_request({8, 4096}, FASTNORM_DTYPE_BF16));
  plan = plan_of(few, cpu(4));
  EXPECT_FALSE(plan.non_temporal);
  EXPECT_EQ(plan.blocks, 1u) << "too little to share";
  const NormDesc one_long = describe(simple_request({2, 1 << 20}, FASTNORM_DTYPE_F32));
  EXPECT_EQ(plan_of(one_long, cpu(4)).rows_per_block, 1);
}

// --- what the device divides by ---

TEST(Divisor, EqualsDivision) {
  Random random(5);
  for (int trial = 0; trial < 200000; ++trial) {
    const uint32_t power = uint32_t{1} << (1 + random.below(31));
    const auto value = trial % 3 == 0 ? static_cast<uint32_t>(2 + random.below(0xfffffffe))
                       : trial % 3 == 1
                           ? static_cast<uint32_t>(2 + random.below(5000))
                           : std::max(2u, power + static_cast<uint32_t>(random.below(3)) - 1);
    const cuda::Divisor d = cuda::make_divisor(value);
    const auto near = static_cast<uint32_t>(random.below(0xffffffff / value + 1)) * value;
    for (const uint32_t row : {uint32_t{0}, near, near == 0 ? 0 : near - 1, uint32_t{0xffffffff},
                               static_cast<uint32_t>(random.below(uint64_t{1} << 32))}) {
      const auto t = static_cast<uint32_t>(uint64_t{row} * d.multiplier >> 32);
      ASSERT_EQ((t + ((row - t) >> 1)) >> d.shift, row / value) << row << " / " << value;
    }
  }
}

// --- what is prefetched ---

// For rows of 8192 bytes. The weight, and LAYER's bias, are read too.
uint32_t prefetched(int64_t rows, bool add, fastnorm_norm_kind kind,
                    const ArchSpec& arch = cuda::kSm90) {
  return plan_of(describe(simple_request({rows, 4096}, FASTNORM_DTYPE_BF16, add, kind)), gpu(arch))
      .prefetch_rows;
}

TEST(Prefetch, RmsFromItsThresholdOn) {
  const int64_t rows = static_cast<int64_t>(kPrefetches[0].least_bytes_read) / 8192 - 1;
  EXPECT_EQ(prefetched(rows - 1, false, FASTNORM_NORM_RMS), 0u);
  EXPECT_EQ(prefetched(rows, false, FASTNORM_NORM_RMS), (3u << 20) / 8192);
  EXPECT_EQ(prefetched(rows / 2, true, FASTNORM_NORM_RMS), 0u);
  EXPECT_EQ(prefetched(rows / 2 + 1, true, FASTNORM_NORM_RMS), (3u << 20) / 16384)
      << "as many bytes ahead, of x and residual";
}

TEST(Prefetch, LayerFromItsThresholdOn) {
  const int64_t rows = static_cast<int64_t>(kPrefetches[1].least_bytes_read) / 8192 - 2;
  EXPECT_EQ(prefetched(rows - 1, false, FASTNORM_NORM_LAYER), 0u);
  EXPECT_EQ(prefetched(rows, false, FASTNORM_NORM_LAYER), (3u << 20) / 8192);
  EXPECT_EQ(prefetched(rows, false, FASTNORM_NORM_RMS), 0u) << "RMS has another";
}

TEST(Prefetch, OnlyWhereItCanBe) {
  EXPECT_EQ(prefetched(1 << 20, false, FASTNORM_NORM_LAYER, cuda::kSm80), 0u) << "no instruction";
  Request r = simple_request({4096, 8, 4096}, FASTNORM_DTYPE_BF16);
  EXPECT_GT(plan_of(describe(r), gpu()).prefetch_rows, 0u);
  r.x->strides = {9 * 4096, 4096, 1};
  EXPECT_EQ(plan_of(describe(r), gpu()).prefetch_rows, 0u) << "rows have two indices";
}

}  // namespace
}  // namespace fastnorm::test
