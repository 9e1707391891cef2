// The kernels of peers on the SIMT machine, all ranks at once. Every rank has the bits of the
// model: a sum in rank order and one norm. A rank that is missing or makes another call ends the
// call.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "core/norm/batch.h"
#include "core/norm_heads/check.h"
#include "cuda/arch.h"
#include "cuda/families.h"
#include "cuda/gpu_device.h"
#include "cuda/peer/launch_params.h"
#include "ref/norm_model.h"
#include "ref/peer_ref.h"
#include "simt/peer_run.h"
#include "support/norm_stages_call.h"
#include "support/operands.h"

namespace {

using namespace fastnorm;
using ref::Random;
using ref::Type;
using support::id_of;
using support::LineWriter;
using support::Operand;
using support::Operands;

constexpr simt::Order kOrders[] = {simt::Order::kForward, simt::Order::kBackward,
                                   simt::Order::kShuffled};
Dtype dtype_of(Type type) { return dtype_from(fastnorm_dtype_of(id_of(type))); }

DeviceFacts facts() { return cuda::make_facts(cuda::kSm90, 0, 132, 8); }
const NormIndex& norm_index() {
  static const NormIndex index(cuda::table_of<cuda::NormFamily>(cuda::kSm90));
  return index;
}

// Rows of a rank, which are those of no other. Spoiled: with words that no message may hold as they
// are.
void fill_rows(Operand& x, uint64_t seed, ref::Pattern pattern, bool spoiled) {
  const int64_t n = x.shape.back();
  std::vector<float> row(static_cast<size_t>(n));
  for (int64_t r = 0; r < x.rows(); ++r) {
    std::vector<int64_t> index(x.shape.size() - 1);
    int64_t rest = r;
    for (size_t d = index.size(); d-- > 0; rest /= x.shape[d]) index[d] = rest % x.shape[d];
    ref::fill_row(pattern, x.type(), ref::hash(seed, r), row.data(), n);
    x.set(x.place(index), row.data(), n);
  }
  for (size_t at = x.first; spoiled && at + 4 <= x.now.size(); at += 28)
    std::memset(x.now.data() + at, 0xff, 4);
  x.expected = x.now;
}

// Words of quantised rows of n columns, beside y.
struct Scheme {
  const char *name, *codes, *scale;
  int64_t block;  // columns of a scale; 0: one of all rows, -1: one a row
};
constexpr Scheme kSchemes[] = {
    {"per_tensor", "f8_e4m3fn", "f32", 0},      {"per_row", "f8_e4m3fn", "f32", -1},
    {"per_block", "f8_e4m3fn", "f32", 64},      {"mxfp8", "f8_e4m3fn", "f8_e8m0fnu", 32},
    {"nvfp4", "f4_e2m1fn_x2", "f8_e4m3fn", 16},
};

struct Case {
  int32_t ranks = 2;
  Type type = Type::kBF16;
  int64_t rows = 1, n = 64;
  fastnorm_peer_algorithm algorithm = FASTNORM_PEER_ONE_SHOT;
  int32_t rings = 2;
  bool exact = false;
  int residual = 1;  // 0 none, 1 of x's dtype, 2 f32
  fastnorm_norm_kind kind = FASTNORM_NORM_RMS;
  bool rounded = false;  // both roundings
  bool bias = false;
  int scheme = -1;    // of kSchemes
  bool int8 = false;  // codes of the scheme, in place of its e4m3
  bool y = true;
  int shift = 0;              // of x, in elements
  int64_t outer = 1;          // above 1: rows are [outer, rows / outer]
  int32_t varied = -1;        // the rank whose weights vary along `outer`
  int64_t spare_columns = 5;  // that messages have room for beyond n
  ref::Pattern pattern = ref::Pattern::kNormal;
  bool spoiled = false;
  bool clusters = true;  // of thread blocks, where a call has few rows
  simt::Order order = simt::Order::kForward;

  Type residual_type() const { return residual == 2 ? Type::kF32 : type; }
  std::vector<int64_t> leading() const {
    return outer == 1 ? std::vector<int64_t>{rows} : std::vector<int64_t>{outer, rows / outer};
  }
  // A rank's call. All but x and one rank's weights have the same values in each.
  std::string line(uint64_t seed, int32_t rank) const {
    LineWriter line("norm", seed, true);
    std::vector<int64_t> shape = leading(), weights = {n};
    shape.push_back(n);
    if (rank == varied) weights = {outer, 1, n};
    line.set("kind", int64_t{kind});
    line.set("eps", 1e-5);
    line.set("weight_offset", 1.0);
    line.set("flags", int64_t{FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER});
    if (rounded) line.set("rounding", int64_t{FASTNORM_ROUND_NORMALIZED});
    if (rounded) line.set("residual_rounding", int64_t{FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS});
    line.tensor("x", id_of(type), shape, 0, shift);
    if (y) line.tensor("y", id_of(type), shape);
    line.tensor("rstd", FASTNORM_DTYPE_F32, leading());
    line.tensor("weight", id_of(type), weights);
    if (bias) line.tensor("bias", id_of(type), {n});
    if (residual != 0) line.tensor("residual", id_of(residual_type()), shape);
    if (residual != 0) line.tensor("residual_out", id_of(residual_type()), shape);
    if (scheme < 0) return line.line();
    const Scheme& s = kSchemes[scheme];
    const std::string of_rows = "[" + std::to_string(rows);
    line.set("quant.scheme", s.name);
    if (std::string(s.name) == "per_block") line.set("quant.block_size", s.block);
    const bool pairs = std::string(s.codes).ends_with("x2");
    line.set("quant.quantized",
             (int8 ? "i8" : s.codes) + of_rows + "," + std::to_string(pairs ? n / 2 : n) + "]");
    line.set("quant.scale",
             s.scale + (s.block == 0    ? "[1]"
                        : s.block == -1 ? of_rows + "]"
                                        : of_rows + "," + std::to_string(n / s.block) + "]"));
    if (s.block == 0) line.fill("quant.scale", "0.03125");
    return line.line();
  }
};

PeerDesc desc_of(const Case& c) {
  PeerDesc desc;
  desc.ranks = c.ranks;
  desc.dtype = dtype_of(c.type);
  desc.algorithm = c.algorithm;
  desc.max_columns = c.n + c.spare_columns;
  desc.wait_ns = 1'000'000'000;
  desc.rings = c.rings;
  return desc;
}

// One rank's call.
struct Rank {
  Rank(const Case& c, uint64_t seed, int32_t number) : call(c.line(seed, number)) {
    fill_rows(*x(), ref::hash(seed, number), c.pattern, c.spoiled);
    Error error;
    const DeviceFacts device = facts();
    EXPECT_EQ(plan_one({device, norm_index(), nullptr, c.outer != 1}, &args(), &batch, error),
              FASTNORM_OK)
        << call.line() << ": " << error.text;
  }
  Rank(const Rank&) = delete;

  const fastnorm_norm_args& args() const { return call.args<fastnorm_norm_args>(); }
  Operand* x() const { return call(args().x); }
  const NormCall& planned() const { return batch.planned().front(); }

  Operands call;
  support::OwnedOperand totals, minus_zeros;
  NormBatch<1> batch;
};

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

struct World {
  World(const Case& the_case, uint64_t the_seed) : c(the_case), seed(the_seed), desc(desc_of(c)) {
    for (int32_t r = 0; r < c.ranks; ++r) ranks.push_back(std::make_unique<Rank>(c, seed, r));
    const NormCall& call = ranks[c.varied < 0 ? 0 : static_cast<size_t>(c.varied)]->planned();
    plan = plan_peer_sum(desc, *call.desc, call.plan->entry->key, c.exact,
                         cuda::table_of<cuda::PeerFamily>(cuda::kSm90),
                         c.clusters ? facts().max_cluster_blocks : 1);
  }

  const Case c;
  const uint64_t seed;
  PeerDesc desc;
  std::vector<std::unique_ptr<Rank>> ranks;
  PeerPlan plan;
};

std::vector<cuda::PeerNormParams> fused_params(const World& world, const simt::PeerRanks& machine) {
  std::vector<cuda::PeerNormParams> params;
  for (size_t r = 0; r < world.ranks.size(); ++r) {
    const NormCall& call = world.ranks[r]->planned();
    params.push_back(cuda::make_peer_norm_params(machine.exchange(static_cast<int32_t>(r)),
                                                 {call.desc, call.plan, &world.plan, 77}));
  }
  return params;
}

std::string run_fused(World& world, simt::PeerRanks& machine, simt::Order order) {
  return machine.run(world.plan, fused_params(world, machine), order);
}

std::string run_sum(World& world, simt::PeerRanks& machine) {
  const Case& c = world.c;
  std::vector<cuda::PeerSumParams> params;
  for (size_t r = 0; r < world.ranks.size(); ++r) {
    Rank& rank = *world.ranks[r];
    rank.totals =
        support::make_operand({c.rows, c.n}, c.exact ? FASTNORM_DTYPE_F32 : id_of(c.type));
    rank.minus_zeros = support::make_operand({c.n}, id_of(c.type));
    PeerSum sum = {};
    sum.rows = c.rows;
    sum.columns = c.n;
    sum.x = peer_rows(*rank.args().x);
    sum.exact = c.exact;
    if (c.residual != 0) sum.residual = peer_rows(*rank.args().residual);
    sum.totals = reinterpret_cast<std::byte*>(rank.totals->data());
    if (c.exact) sum.minus_zeros = reinterpret_cast<std::byte*>(rank.minus_zeros->data());
    sum.options = 78;
    sum.norm = rank.planned().desc;
    sum.plan = &world.plan;
    params.push_back(cuda::make_peer_sum_params(machine.exchange(static_cast<int32_t>(r)), sum));
  }
  return machine.run(world.plan, params, c.order);
}

// The row of sums as it goes on. Rows are adjacent.
std::vector<float> sum_of_ranks(const World& world, int64_t row) {
  const Case& c = world.c;
  std::vector<std::vector<float>> rows;
  const float* x[FASTNORM_PEER_MAX_RANKS];
  for (const std::unique_ptr<Rank>& rank : world.ranks) {
    const auto at = static_cast<size_t>(row * c.n * ref::bytes_of(c.type));
    rows.push_back(rank->x()->values(rank->x()->first + at, c.n));
  }
  for (size_t r = 0; r < rows.size(); ++r) x[r] = rows[r].data();
  std::vector<float> sum(static_cast<size_t>(c.n));
  ref::peer_sum_model(c.type, !c.exact, x, c.ranks, c.n, sum.data());
  return sum;
}

// Every rank has what a norm of the sums gives.
void expect_norm(World& world) {
  Operands model(world.c.line(world.seed, -2));
  Operand& x = *model(model.args<fastnorm_norm_args>().x);
  for (int64_t row = 0; row < world.c.rows; ++row)
    x.set(x.place({row}), sum_of_ranks(world, row).data(), world.c.n);
  support::expect_norm(model, ref::Order::kGpu);
  for (const std::unique_ptr<Rank>& rank : world.ranks) {
    for (size_t i = 0; i < model.all().size(); ++i) {
      if (schema::is_output(model.all()[i]->field->role))
        rank->call.all()[i]->expected = model.all()[i]->expected;
    }
    ASSERT_EQ(rank->call.difference(true), "") << rank->call.line();
  }
}

void expect_sums(World& world) {
  const Case& c = world.c;
  const Rank& first = *world.ranks[0];
  for (int64_t row = 0; row < c.rows; ++row) {
    std::vector<float> sum = sum_of_ranks(world, row);
    if (c.exact && c.residual != 0) {
      const Operand& residual = *first.call(first.args().residual);
      const auto at = static_cast<size_t>(row * c.n * residual.bytes);
      const std::vector<float> added = residual.values(residual.first + at, c.n);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += added[i];
    }
    for (const std::unique_ptr<Rank>& rank : world.ranks) {
      const std::vector<float> found = rank->totals->values(rank->totals->place({row}), c.n);
      for (size_t i = 0; i < sum.size(); ++i) {
        ASSERT_TRUE(same(found[i], sum[i])) << rank->call.line() << " row " << row << " column "
                                            << i << ": " << found[i] << ", model " << sum[i];
      }
      if (!c.exact) continue;
      for (const float zero : rank->minus_zeros->values(rank->minus_zeros->first, c.n))
        ASSERT_TRUE(zero == 0 && std::signbit(zero)) << rank->call.line();
    }
  }
}

// Several calls one after another, so that messages go round their slots.
void run_case(const Case& c, uint64_t seed, int calls, bool fused) {
  simt::PeerRanks machine(desc_of(c));
  for (int turn = 0; turn < calls; ++turn) {
    World world(c, seed + static_cast<uint64_t>(turn) * 1000);
    const std::string& line = world.ranks[0]->call.line();
    ASSERT_EQ(world.plan.is_fused(), fused) << line;
    ASSERT_EQ(fused ? run_fused(world, machine, c.order) : run_sum(world, machine), "") << line;
    for (int32_t r = 0; r < c.ranks; ++r) {
      ASSERT_EQ(machine.control(r).stopped, 0u) << line;
      ASSERT_EQ(machine.control(r).calls, static_cast<uint32_t>(turn + 1)) << line;
    }
    fused ? expect_norm(world) : expect_sums(world);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Rows of a few vectors, so that a kernel's threads have some and others have none.
TEST(SimtPeer, FusedKernelsEqualTheModel) {
  Random random(45);
  constexpr int64_t kRows[] = {1, 2, 3, 5, 7}, kVectors[] = {1, 2, 9, 16, 40};
  constexpr ref::Pattern kPatterns[] = {ref::Pattern::kNormal, ref::Pattern::kNormal,
                                        ref::Pattern::kMinusZeros, ref::Pattern::kOneNan,
                                        ref::Pattern::kOneInf};
  for (int i = 0; i < 40; ++i) {
    Case c;
    c.ranks = static_cast<int32_t>(2 + random.below(i % 4 == 0 ? 7 : 3));
    c.type = ref::kTypes[random.below(3)];
    c.rows = random.of(kRows);
    c.n = random.of(kVectors) * 16 / ref::bytes_of(c.type);
    c.algorithm = random.one_in(2) ? FASTNORM_PEER_ONE_SHOT : FASTNORM_PEER_TWO_SHOT;
    c.rings = static_cast<int32_t>(1 + random.below(2));
    c.residual = random.one_in(3) ? 0 : 1;
    c.kind = random.one_in(3) ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
    c.bias = c.kind == FASTNORM_NORM_LAYER && random.one_in(2);
    c.rounded = random.one_in(3);
    c.pattern = random.of(kPatterns);
    c.spoiled = random.one_in(5);
    c.clusters = random.one_in(2);
    c.order = kOrders[i % 3];
    run_case(c, static_cast<uint64_t>(i) * 77, 2, true);
    if (HasFatalFailure()) return;
  }
}

// Rows that fill the greatest tile, and more rows than a ring has slots.
TEST(SimtPeer, LongRowsGoRoundTheRing) {
  for (const auto algorithm : {FASTNORM_PEER_ONE_SHOT, FASTNORM_PEER_TWO_SHOT}) {
    for (const int32_t ranks : {2, 3}) {
      Case c;
      c.ranks = ranks;
      c.rows = 7 * (algorithm == FASTNORM_PEER_TWO_SHOT ? ranks : 1);
      c.n = 8192 - 8 * 100;
      c.algorithm = algorithm;
      c.rings = 1;
      run_case(c, 5, 1, true);
      if (HasFatalFailure()) return;
    }
  }
}

// A row for each cluster of thread blocks, from one vector to the greatest tile, and the same rows
// without clusters.
TEST(SimtPeer, ClustersOfFewRows) {
  const int32_t ranks[] = {2, 3, 5};
  for (int i = 0; i < 14; ++i) {
    Case c;
    c.ranks = ranks[i % 3];
    c.type = i / 3 % 2 == 0 ? Type::kF16 : Type::kBF16;
    constexpr int64_t kVectors[] = {1, 40, 300, 512, 513, 1000, 1024};
    c.n = kVectors[i % 7] * 16 / ref::bytes_of(c.type);
    c.rows = 1 + i % 4;
    c.rings = 4;
    c.residual = i % 5 == 0 ? 0 : 1;
    c.spoiled = i % 4 == 1;
    c.order = kOrders[i / 2 % 3];
    for (const bool clusters : {true, false}) {
      c.clusters = clusters;
      const World world(c, 1);
      ASSERT_EQ(world.plan.entry->variant.is_cluster(), clusters) << world.plan.entry->name;
      ASSERT_TRUE(world.plan.entry->variant.lean) << world.plan.entry->name;
      run_case(c, static_cast<uint64_t>(i) * 41, 3, true);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(SimtPeer, EverySchemeBesideY) {
  for (int scheme = 0; scheme < static_cast<int>(std::size(kSchemes)); ++scheme) {
    for (const auto kind : {FASTNORM_NORM_RMS, FASTNORM_NORM_LAYER}) {
      Case c;
      c.ranks = 2 + scheme % 3;
      c.rows = 3;
      c.n = 256;
      c.kind = kind;
      c.scheme = scheme;
      c.algorithm = scheme % 2 == 0 ? FASTNORM_PEER_ONE_SHOT : FASTNORM_PEER_TWO_SHOT;
      c.order = kOrders[scheme % 3];
      run_case(c, 60 + static_cast<uint64_t>(scheme), 1, true);
      if (HasFatalFailure()) return;
    }
  }
}

// Codes with one scale, with y and without, by a cluster of blocks for each row and by a ring of
// several rows.
TEST(SimtPeer, StaticCodesOfLeanKernels) {
  constexpr int64_t kVectors[] = {3, 300, 700};
  for (int i = 0; i < 12; ++i) {
    Case c;
    c.type = i % 2 == 0 ? Type::kBF16 : Type::kF16;
    c.n = kVectors[i % 3] * 8;
    c.scheme = 0;
    c.int8 = i % 4 >= 2;
    c.y = i / 2 % 3 != 0;
    c.residual = i % 5 == 0 ? 0 : 1;
    c.clusters = i / 4 % 2 == 0;
    c.rows = c.clusters ? 1 + i % 2 : 5;
    c.order = kOrders[i % 3];
    const World world(c, 1);
    const PeerVariant& v = world.plan.entry->variant;
    ASSERT_TRUE(v.lean && v.sink == Sink::kStatic) << world.plan.entry->name;
    ASSERT_EQ(v.is_cluster(), c.clusters) << world.plan.entry->name;
    run_case(c, 300 + static_cast<uint64_t>(i), 3, true);
    if (HasFatalFailure()) return;
  }
}

// Any length, alignment and dtype of the residual; exact sums.
TEST(SimtPeer, SumsEqualTheModel) {
  Random random(46);
  constexpr int64_t kRows[] = {1, 2, 5, 6}, kColumns[] = {1, 3, 7, 33, 130, 2100};
  for (int i = 0; i < 40; ++i) {
    Case c;
    c.ranks = static_cast<int32_t>(2 + random.below(i % 4 == 0 ? 7 : 3));
    c.type = ref::kTypes[random.below(3)];
    c.rows = random.of(kRows);
    c.n = random.of(kColumns);
    c.algorithm = random.one_in(2) ? FASTNORM_PEER_ONE_SHOT : FASTNORM_PEER_TWO_SHOT;
    c.rings = static_cast<int32_t>(1 + random.below(2));
    c.exact = random.one_in(2);
    c.residual = static_cast<int>(random.below(3));
    c.shift = static_cast<int>(random.below(3));
    c.spoiled = random.one_in(5);
    c.order = kOrders[i % 3];
    run_case(c, static_cast<uint64_t>(i) * 99, 2,
             c.n * ref::bytes_of(c.type) % 16 == 0 && c.shift == 0 && !c.exact && c.residual != 2);
    if (HasFatalFailure()) return;
  }
}

// The last vector of a row has elements that do not count, and their sums travel as words of f32,
// too. They stay inside the message where rows are as long as they may be.
TEST(SimtPeer, ExactSumsOfTheLongestRowsStayInTheirMessages) {
  for (const Type type : ref::kTypes) {
    for (const int64_t n : {1, 12, 20, 100}) {
      for (const int32_t ranks : {2, 3}) {
        Case c;
        c.ranks = ranks;
        c.type = type;
        c.rows = 2 * ranks;  // two steps
        c.n = n;
        c.spare_columns = 0;
        c.algorithm = FASTNORM_PEER_TWO_SHOT;
        c.rings = 1;
        c.exact = true;
        c.order = kOrders[ranks % 3];
        run_case(c, static_cast<uint64_t>(n) * 31, 3, false);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Weights of one rank vary along an outer dimension, those of the others do not. The ranks' rows
// and totals have the order of the shape all the same.
TEST(SimtPeer, SumsAreInTheOrderOfTheShape) {
  for (const auto algorithm : {FASTNORM_PEER_ONE_SHOT, FASTNORM_PEER_TWO_SHOT}) {
    for (const bool exact : {false, true}) {
      Case c;
      c.ranks = 3;
      c.rows = 6;
      c.algorithm = algorithm;
      c.exact = exact;
      c.outer = 2;
      c.varied = 1;
      World world(c, 12);
      EXPECT_TRUE(world.ranks[1]->planned().desc->weights_outside);
      ASSERT_FALSE(world.plan.is_fused());
      simt::PeerRanks machine(world.desc);
      ASSERT_EQ(run_sum(world, machine), "");
      expect_sums(world);
      if (HasFatalFailure()) return;
    }
  }
}

// Kernels of different tiles and kinds may follow each other, and meet: one rank's rows are
// aligned, another's are not.
TEST(SimtPeer, KernelsUnderstandEachOther) {
  Case c;
  c.rows = 5;
  c.n = 128;
  c.rings = 2;
  simt::PeerRanks machine(desc_of(c));
  for (int turn = 0; turn < 6; ++turn) {
    Case now = c;
    now.rows = 1 + turn;
    if (turn % 3 == 1) now.n = 40;
    if (turn % 3 == 2) now.exact = true;
    World world(now, static_cast<uint64_t>(turn));
    if (now.exact) {
      ASSERT_EQ(run_sum(world, machine), "");
      expect_sums(world);
    } else {
      ASSERT_EQ(run_fused(world, machine, c.order), "");
      expect_norm(world);
    }
    if (HasFatalFailure()) return;
  }
}

TEST(SimtPeer, StatisticsEqualTheModel) {
  Random random(47);
  for (int i = 0; i < 24; ++i) {
    Case c;
    c.ranks = static_cast<int32_t>(2 + random.below(7));
    c.rings = static_cast<int32_t>(1 + random.below(40));
    c.order = kOrders[i % 3];
    const bool layer = random.one_in(2);
    const auto parts = static_cast<int32_t>(1 + random.below(2));
    const int64_t tokens = 1 + random.below(90);
    const int words = layer ? 2 : 1;
    simt::PeerRanks machine(desc_of(c));
    const PeerPlan plan =
        plan_peer_statistics(desc_of(c), tokens, cuda::table_of<cuda::PeerFamily>(cuda::kSm90));
    std::vector<std::vector<float>> sums, mean, rstd;
    std::vector<cuda::PeerStatisticsParams> params;
    const auto index = [&](int32_t r, int32_t part) { return static_cast<size_t>(r * 2 + part); };
    sums.resize(static_cast<size_t>(c.ranks) * 2);
    mean = rstd = sums;
    for (int32_t r = 0; r < c.ranks; ++r) {
      PeerStatistics call = {};
      call.tokens = tokens;
      call.parts = parts;
      call.layer = layer;
      call.eps = 1e-5f;
      call.plan = &plan;
      for (int32_t part = 0; part < parts; ++part) {
        std::vector<float>& s = sums[index(r, part)];
        s.resize(static_cast<size_t>(tokens * words));
        ref::fill_row(ref::Pattern::kNormal, Type::kF32, ref::hash(i, r, part), s.data(),
                      tokens * words);
        for (size_t k = 0; k < s.size(); ++k) {
          if (!layer || k % 2 == 1) s[k] = std::fabs(s[k]) * 100;
        }
        mean[index(r, part)].resize(static_cast<size_t>(tokens));
        rstd[index(r, part)].resize(static_cast<size_t>(tokens));
        call.columns[part] = 64 + 32 * part;
        call.sums[part] = s.data();
        call.mean[part] = mean[index(r, part)].data();
        call.rstd[part] = rstd[index(r, part)].data();
      }
      params.push_back(cuda::make_peer_statistics_params(machine.exchange(r), call));
    }
    ASSERT_EQ(machine.run(plan, params, c.order), "");
    for (int32_t part = 0; part < parts; ++part) {
      for (int64_t token = 0; token < tokens; ++token) {
        ref::PeerPart of[FASTNORM_PEER_MAX_RANKS];
        for (int32_t r = 0; r < c.ranks; ++r) {
          const float* const s = sums[index(r, part)].data() + token * words;
          of[r] = {layer ? s[0] : 0.0f, s[words - 1]};
        }
        const ref::PeerStatistic wanted = ref::peer_merge_model(
            layer ? ref::Kind::kLayer : ref::Kind::kRms, 1e-5f, of, c.ranks, 64 + 32 * part);
        for (int32_t r = 0; r < c.ranks; ++r) {
          const auto at = static_cast<size_t>(token);
          ASSERT_TRUE(same(rstd[index(r, part)][at], wanted.rstd)) << i << " token " << token;
          if (layer) {
            ASSERT_TRUE(same(mean[index(r, part)][at], wanted.mean)) << i << " token " << token;
          }
        }
      }
    }
  }
}

uint32_t stopped_word(fastnorm_peer_error error, int32_t rank) {
  return static_cast<uint32_t>(error) | static_cast<uint32_t>(rank + 1) << 8;
}

// Sharded rows in one kernel.
struct ShardedCase {
  int32_t ranks = 2;
  Type type = Type::kBF16, weight_type = Type::kBF16;
  int64_t tokens = 1;
  int32_t parts = 1;
  int64_t heads[2] = {1, 1}, d[2] = {64, 64};
  int32_t rings = 2;
  bool layer = false, rounded = false, bias = false, own_weights = false, in_place = false;
  bool apart = false;  // heads of x have a head of gap behind each
  float offset = 0;
  ref::Pattern pattern = ref::Pattern::kNormal;
  simt::Order order = simt::Order::kForward;

  ref::NormOptions options() const {
    ref::NormOptions o;
    o.dtype = type;
    o.kind = layer ? ref::Kind::kLayer : ref::Kind::kRms;
    o.rounding = rounded ? ref::Rounding::kNormalized : ref::Rounding::kOnce;
    o.eps = 1e-5f;
    o.weight_offset = offset;
    return o;
  }
  // What src/api/peer_sharded.cpp makes of a rank's call. Weights of all ranks have equal values.
  std::string line() const {
    LineWriter line("norm_heads", 5, true);
    for (int32_t p = 0; p < parts; ++p) {
      const std::string part = "parts[" + std::to_string(p) + "].";
      const std::vector<int64_t> shape = {tokens, heads[p], d[p]};
      std::vector<int64_t> weights = {d[p]};
      if (own_weights) weights.insert(weights.begin(), heads[p]);
      line.set(part + "flags",
               int64_t{FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ACROSS_HEADS});
      if (layer) line.set(part + "kind", int64_t{FASTNORM_NORM_LAYER});
      if (rounded) line.set(part + "rounding", int64_t{FASTNORM_ROUND_NORMALIZED});
      if (offset != 0) line.set(part + "weight_offset", static_cast<double>(offset));
      line.tensor(part + "x", id_of(type), shape);
      if (apart) line.strides(part + "x", {2 * heads[p] * d[p], 2 * d[p], 1});
      if (in_place) {
        line.same(part + "y", part + "x");
      } else {
        line.tensor(part + "y", id_of(type), shape);
      }
      line.tensor(part + "weight", id_of(weight_type), weights);
      if (bias) line.tensor(part + "bias", id_of(type), weights);
      line.tensor(part + "rstd_in", FASTNORM_DTYPE_F32, {tokens});
      if (layer) line.tensor(part + "mean_in", FASTNORM_DTYPE_F32, {tokens});
    }
    return line.line();
  }
};

// One rank's call.
struct ShardedRank {
  ShardedRank(const ShardedCase& c, uint64_t seed) : call(c.line()) {
    for (int32_t p = 0; p < c.parts; ++p)
      fill_rows(*call(part(p).x), ref::hash(seed, p), c.pattern, false);
    Error error;
    EXPECT_EQ(check_norm_heads(&call.args<fastnorm_norm_heads_args>(),
                               call.parts<fastnorm_norm_heads_part>(), call.count(),
                               {FASTNORM_DEVICE_CUDA, 0}, &desc, error),
              FASTNORM_OK)
        << call.line() << ": " << error.text;
  }
  ShardedRank(const ShardedRank&) = delete;

  const fastnorm_norm_heads_part& part(int32_t p) const {
    return *call.parts<fastnorm_norm_heads_part>()[p];
  }
  // The values of a token, in the order of heads.
  std::vector<float> row(int32_t p, int64_t token) const {
    const Operand& x = *call(part(p).x);
    std::vector<float> all;
    for (int64_t h = 0; h < x.shape[1]; ++h) {
      const std::vector<float> head = x.values(x.place({token, h}), x.shape[2]);
      all.insert(all.end(), head.begin(), head.end());
    }
    return all;
  }

  Operands call;
  NormHeadsDesc desc;
};

struct ShardedWorld {
  ShardedWorld(const ShardedCase& the_case, uint64_t seed) : c(the_case) {
    Case shared;
    shared.ranks = c.ranks;
    shared.rings = c.rings;
    desc = desc_of(shared);
    for (int32_t r = 0; r < c.ranks; ++r)
      ranks.push_back(std::make_unique<ShardedRank>(c, ref::hash(seed, r)));
    plan = plan_peer_sharded(desc, ranks[0]->desc, cuda::table_of<cuda::PeerFamily>(cuda::kSm90));
    expect();
  }

  PeerStatistics statistics() const {
    PeerStatistics s = {};
    s.tokens = c.tokens;
    s.parts = c.parts;
    s.layer = c.layer;
    s.eps = 1e-5f;
    for (int32_t p = 0; p < c.parts; ++p) s.columns[p] = c.heads[p] * c.d[p];
    s.options = 79;
    return s;
  }
  std::vector<cuda::PeerShardedParams> params(const simt::PeerRanks& machine) const {
    std::vector<cuda::PeerShardedParams> all;
    const PeerStatistics s = statistics();
    for (int32_t r = 0; r < c.ranks; ++r) {
      all.push_back(cuda::make_peer_sharded_params(
          machine.exchange(r), {&ranks[static_cast<size_t>(r)]->desc, &s,
                                FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER, &plan}));
    }
    return all;
  }
  void check() const {
    for (const auto& rank : ranks) ASSERT_EQ(rank->call.difference(true), "") << rank->call.line();
  }

  const ShardedCase c;
  PeerDesc desc;
  std::vector<std::unique_ptr<ShardedRank>> ranks;
  PeerPlan plan;

 private:
  void expect();
};

// What one rank knows of a row: sums as norm_heads gives them.
ref::PeerPart part_of_row(const ShardedCase& c, const std::vector<float>& row) {
  const auto n = static_cast<int64_t>(row.size());
  std::vector<float> partial;
  if (!c.layer)
    return {0.0f, ref::ordered_sum_of_squares(ref::Order::kGpu, c.type, row.data(), n, &partial)};
  const float inverse = static_cast<float>(1.0 / static_cast<double>(n));
  float mean = row[0], squared = 0;
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<float> from_mean(row);
    for (float& f : from_mean) f -= mean;
    const float sum = ref::ordered_sum(ref::Order::kGpu, c.type, from_mean.data(), n, &partial),
                squares = ref::ordered_sum_of_squares(ref::Order::kGpu, c.type, from_mean.data(), n,
                                                      &partial);
    squared = std::fma(-(sum * inverse), sum, squares);
    mean += sum * inverse;
  }
  return {mean, squared < 0 ? 0 : squared};
}

void ShardedWorld::expect() {
  const ref::NormOptions o = c.options();
  for (int32_t p = 0; p < c.parts; ++p) {
    const int64_t heads = c.heads[p], d = c.d[p];
    for (int64_t token = 0; token < c.tokens; ++token) {
      std::vector<ref::PeerPart> known;
      for (const auto& rank : ranks) known.push_back(part_of_row(c, rank->row(p, token)));
      const ref::PeerStatistic s =
          ref::peer_merge_model(o.kind, o.eps, known.data(), c.ranks, heads * d);
      for (const auto& rank : ranks) {
        const fastnorm_norm_heads_part& part = rank->part(p);
        const std::vector<float> row = rank->row(p, token);
        Operand& y = *rank->call(part.y);
        for (int64_t h = 0; h < heads; ++h) {
          std::vector<float> z(static_cast<size_t>(d)), bias;
          const std::vector<float> weight = rank->call(part.weight)->row(std::vector{h}, d);
          if (c.bias) bias = rank->call(part.bias)->row(std::vector{h}, d);
          ref::norm_tail(
              o, {d, row.data() + h * d, nullptr, weight.data(), c.bias ? bias.data() : nullptr},
              s.mean, s.rstd, z.data());
          y.expect(y.place({token, h}), z);
        }
      }
    }
  }
}

void run_sharded(const ShardedCase& c, uint64_t seed, int calls) {
  ShardedWorld first(c, seed);
  simt::PeerRanks machine(first.desc);
  for (int turn = 0; turn < calls; ++turn) {
    ShardedWorld world(c, seed + static_cast<uint64_t>(turn) * 1000);
    const std::string& line = world.ranks[0]->call.line();
    ASSERT_TRUE(world.plan.is_sharded()) << line;
    ASSERT_EQ(machine.run(world.plan, world.params(machine), c.order), "") << line;
    for (int32_t r = 0; r < c.ranks; ++r) {
      ASSERT_EQ(machine.control(r).stopped, 0u) << line;
      ASSERT_EQ(machine.control(r).calls, static_cast<uint32_t>(turn + 1)) << line;
    }
    world.check();
    if (testing::Test::HasFatalFailure()) return;
  }
}

// More tokens than rings, so that messages go round their slots; heads of one vector and of many.
TEST(SimtPeer, ShardedNormEqualsTheModel) {
  Random random(48);
  constexpr int64_t kTokens[] = {1, 2, 5, 9}, kHeads[] = {1, 2, 3, 5}, kVectors[] = {1, 2, 7, 16};
  constexpr ref::Pattern kPatterns[] = {ref::Pattern::kNormal, ref::Pattern::kNormal,
                                        ref::Pattern::kMinusZeros, ref::Pattern::kOneNan,
                                        ref::Pattern::kOneInf};
  for (int i = 0; i < 48; ++i) {
    ShardedCase c;
    c.ranks = static_cast<int32_t>(2 + random.below(i % 4 == 0 ? 7 : 3));
    c.type = ref::kTypes[random.below(3)];
    c.weight_type = random.one_in(3) ? ref::kTypes[random.below(3)] : c.type;
    c.tokens = random.of(kTokens);
    c.parts = static_cast<int32_t>(1 + random.below(2));
    for (int p = 0; p < 2; ++p) {
      c.heads[p] = random.of(kHeads);
      c.d[p] = random.of(kVectors) * 16 / ref::bytes_of(c.type);
    }
    c.rings = static_cast<int32_t>(1 + random.below(2));
    c.layer = random.one_in(2);
    c.rounded = random.one_in(3);
    c.bias = random.one_in(2);
    c.own_weights = random.one_in(2);
    c.in_place = random.one_in(3);
    c.apart = random.one_in(3);
    c.offset = random.one_in(2) ? 1.0f : 0.0f;
    c.pattern = random.of(kPatterns);
    c.order = kOrders[i % 3];
    run_sharded(c, static_cast<uint64_t>(i) * 53, 2);
    if (HasFatalFailure()) return;
  }
}

// Each tile full, and one vector beyond the one before.
TEST(SimtPeer, ShardedNormOfLongRows) {
  for (const int64_t vectors : {256, 257, 512, 513, 1024}) {
    for (const bool layer : {false, true}) {
      ShardedCase c;
      c.tokens = 2;
      c.parts = 2;
      c.heads[0] = vectors, c.d[0] = 8;
      c.rings = 1;
      c.layer = layer;
      run_sharded(c, static_cast<uint64_t>(vectors), 1);
      if (HasFatalFailure()) return;
    }
  }
}

// A call of three kernels, the exchange of which comes between two calls of one kernel.
TEST(SimtPeer, ShardedNormAndStatisticsFollowEachOther) {
  ShardedCase c;
  c.ranks = 3;
  c.tokens = 5;
  ShardedWorld first(c, 1);
  simt::PeerRanks machine(first.desc);
  for (int turn = 0; turn < 4; ++turn) {
    if (turn % 2 == 0) {
      ShardedWorld world(c, static_cast<uint64_t>(turn));
      ASSERT_EQ(machine.run(world.plan, world.params(machine), c.order), "");
      world.check();
    } else {
      const PeerPlan plan =
          plan_peer_statistics(first.desc, c.tokens, cuda::table_of<cuda::PeerFamily>(cuda::kSm90));
      std::vector<float> sums(static_cast<size_t>(c.tokens), 4.0f), rstd[3];
      std::vector<cuda::PeerStatisticsParams> params;
      for (int32_t r = 0; r < c.ranks; ++r) {
        rstd[r].resize(sums.size());
        PeerStatistics s = first.statistics();
        s.plan = &plan;
        s.eps = 0;
        s.sums[0] = sums.data();
        s.rstd[0] = rstd[r].data();
        params.push_back(cuda::make_peer_statistics_params(machine.exchange(r), s));
      }
      ASSERT_EQ(machine.run(plan, params, c.order), "");
      for (const float f : rstd[2]) EXPECT_EQ(f, 4.0f);  // 1 / sqrt(12 / 192)
    }
    if (HasFatalFailure()) return;
  }
}

// Two of three ranks: the call ends, and nothing is written.
TEST(SimtPeer, ShardedNormOfTooFewRanks) {
  ShardedCase c;
  c.ranks = 3;
  c.tokens = 3;
  ShardedWorld world(c, 8);
  simt::PeerRanks machine(world.desc);
  const Operand& y = *world.ranks[0]->call(world.ranks[0]->part(0).y);
  const std::vector<unsigned char> before = y.now;
  std::vector<cuda::PeerShardedParams> params = world.params(machine);
  params.pop_back();
  simt::clock_step = 200'000'000;
  ASSERT_EQ(machine.run(world.plan, params, c.order), "");
  simt::clock_step = 1000;
  EXPECT_EQ(machine.control(0).stopped, stopped_word(FASTNORM_PEER_ERROR_MISSING, 2));
  EXPECT_EQ(machine.control(0).calls, 0u);
  ASSERT_EQ(y.now, before);
  machine.reset();
  ASSERT_EQ(machine.run(world.plan, world.params(machine), c.order), "");
  world.check();
  // A rank with other options.
  params = world.params(machine);
  params[1].statistics.peer.options += 1;
  simt::clock_step = 200'000'000;
  ASSERT_EQ(machine.run(world.plan, params, c.order), "");
  simt::clock_step = 1000;
  EXPECT_EQ(machine.control(0).stopped, stopped_word(FASTNORM_PEER_ERROR_DISAGREES, 1));
}

// The other rank never comes: the call ends, nothing is written, later calls end at once, and after
// a reset all is well.
TEST(SimtPeer, MissingRankEndsTheCall) {
  struct Kind {
    fastnorm_peer_algorithm algorithm;
    bool exact, rounded;
    int64_t rows, n;
  };
  constexpr auto kOne = FASTNORM_PEER_ONE_SHOT, kTwo = FASTNORM_PEER_TWO_SHOT;
  const Kind kinds[] = {{kOne, false, false, 3, 64},   {kOne, false, true, 3, 64},
                        {kOne, true, false, 3, 64},    {kTwo, false, false, 3, 64},
                        {kTwo, false, true, 3, 64},    {kTwo, true, false, 3, 64},
                        {kOne, false, false, 1, 4096},  // clusters
                        {kOne, false, false, 2, 8192}, {kOne, false, false, 3, 8192}};
  for (const Kind& kind : kinds) {
    Case c;
    c.rows = kind.rows;
    c.n = kind.n;
    c.algorithm = kind.algorithm;
    c.exact = kind.exact;
    c.rounded = kind.rounded;
    const bool exact = c.exact;
    World world(c, 3);
    simt::PeerRanks machine(desc_of(c));
    Rank& rank = *world.ranks[0];
    const Operand& y = *rank.call(rank.args().y);
    const Operand& residual_out = *rank.call(rank.args().residual_out);
    const std::vector<unsigned char> before[] = {y.now, residual_out.now};
    const NormCall& call = rank.planned();
    simt::clock_step = 200'000'000;  // a few looks at the clock
    for (int turn = 0; turn < 2; ++turn) {
      if (exact) {
        Operand totals({c.rows, c.n}, FASTNORM_DTYPE_F32);
        PeerSum sum = {};
        sum.rows = c.rows, sum.columns = c.n, sum.exact = true;
        sum.totals = reinterpret_cast<std::byte*>(totals.data());
        sum.norm = call.desc, sum.plan = &world.plan;
        ASSERT_EQ(
            machine.run(world.plan,
                        std::vector{cuda::make_peer_sum_params(machine.exchange(0), sum)}, c.order),
            "");
      } else {
        ASSERT_EQ(machine.run(world.plan,
                              std::vector{cuda::make_peer_norm_params(
                                  machine.exchange(0), {call.desc, call.plan, &world.plan, 77})},
                              c.order),
                  "");
      }
      EXPECT_EQ(machine.control(0).stopped, stopped_word(FASTNORM_PEER_ERROR_MISSING, 1));
      EXPECT_EQ(machine.report(0), stopped_word(FASTNORM_PEER_ERROR_MISSING, 1));
      EXPECT_EQ(machine.control(0).calls, 0u);
    }
    simt::clock_step = 1000;
    ASSERT_EQ(y.now, before[0]);
    ASSERT_EQ(residual_out.now, before[1]);
    machine.reset();
    if (exact) continue;
    ASSERT_EQ(run_fused(world, machine, c.order), "");
    expect_norm(world);
  }
}

// Ranks that disagree about an option, or about the number of rows.
TEST(SimtPeer, AnotherCallEndsBoth) {
  for (const bool option : {false, true}) {
    Case c;
    c.ranks = 3;
    c.rows = 2;
    World world(c, 9);
    simt::PeerRanks machine(desc_of(c));
    std::vector<cuda::PeerNormParams> params = fused_params(world, machine);
    (option ? params[1].peer.options : params[1].peer.rows) += 1;
    simt::clock_step = 200'000'000;
    ASSERT_EQ(machine.run(world.plan, params, c.order), "");
    simt::clock_step = 1000;
    EXPECT_EQ(machine.control(0).stopped, stopped_word(FASTNORM_PEER_ERROR_DISAGREES, 1));
    EXPECT_EQ(machine.control(2).stopped, stopped_word(FASTNORM_PEER_ERROR_DISAGREES, 1));
    EXPECT_NE(machine.control(1).stopped, 0u);
  }
}

}  // namespace
