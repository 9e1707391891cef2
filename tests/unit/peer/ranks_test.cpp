// Ranks of one process: all have the same bits, whatever the algorithm; the bits are those of a sum
// in rank order and one norm; and ranks that are late, missing or of another mind end in an error
// that the process survives.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>

#include "core/common/quant_scheme.h"
#include "fastnorm/fastnorm.hpp"
#include "ref/data.h"
#include "ref/norm_heads_ref.h"
#include "ref/norm_model.h"
#include "ref/norm_ref.h"
#include "ref/peer_ref.h"
#include "support/share.h"
#include "unit/cpu/odd_modes.h"
#include "unit/peer/world.h"

namespace fastnorm::test {
namespace {

using ref::Random;
using ref::Type;

constexpr fastnorm_dtype_id kIds[] = {FASTNORM_DTYPE_F32, FASTNORM_DTYPE_F16, FASTNORM_DTYPE_BF16};
fastnorm_dtype_id id_of(Type type) { return kIds[static_cast<int>(type)]; }

// Rows of values and the same in memory.
struct Rows {
  Rows() = default;
  Rows(Type dtype, int64_t row_count, int64_t columns)
      : type(dtype),
        rows(row_count),
        n(columns),
        array(id_of(dtype), {row_count, columns}),
        values(static_cast<size_t>(row_count * columns)) {}

  void fill(uint64_t seed, ref::Pattern pattern) {
    for (int64_t r = 0; r < rows; ++r) {
      ref::fill_row(pattern, type, ref::hash(seed, r), values.data() + r * n, n);
    }
    store();
  }
  void store() {
    ref::encode_row(type, values.data(), array.bytes.data(), rows * n);
    ref::decode_row(type, array.bytes.data(), values.data(), rows * n);
  }
  // Words that no message may hold as they are.
  void spoil(uint64_t seed) {
    Random random(seed);
    for (size_t i = 0; i + 4 <= array.bytes.size(); i += 4) {
      if (random.one_in(7)) std::memset(array.bytes.data() + i, 0xff, 4);
    }
    ref::decode_row(type, array.bytes.data(), values.data(), rows * n);
  }
  const float* row(int64_t r) const { return values.data() + r * n; }

  Type type = Type::kF32;
  int64_t rows = 0, n = 0;
  Array array;
  std::vector<float> values;
};

struct Case {
  int32_t ranks;
  Type type;
  int64_t rows, n;
  fastnorm_peer_algorithm algorithm;
  int32_t rings;
  bool exact;
  int residual;  // 0 none, 1 of x's dtype, 2 f32
  fastnorm_norm_kind kind;
  fastnorm_rounding rounding;
  fastnorm_residual_rounding residual_rounding;
  float offset;
  bool bias;
  bool residual_out;
  ref::Pattern pattern;
  bool spoiled;
  bool pointers;

  std::string name() const {
    return std::to_string(ranks) + " ranks " + ref::name_of(type) + " " + std::to_string(rows) +
           "x" + std::to_string(n) + " algorithm " + std::to_string(algorithm) + " rings " +
           std::to_string(rings) + (exact ? " exact" : "") + " residual " +
           std::to_string(residual) + " kind " + std::to_string(kind) + " rounding " +
           std::to_string(rounding) + "/" + std::to_string(residual_rounding) + " " +
           ref::name_of(pattern) + (spoiled ? " spoiled" : "");
  }
};

Case random_case(Random& random) {
  constexpr int64_t kRows[] = {1, 2, 3, 5, 8, 17}, kColumns[] = {1, 2, 3, 7, 8, 33, 64, 130, 257};
  constexpr ref::Pattern kPatterns[] = {ref::Pattern::kNormal,     ref::Pattern::kNormal,
                                        ref::Pattern::kMinusZeros, ref::Pattern::kOneNan,
                                        ref::Pattern::kOneInf,     ref::Pattern::kRandomBits,
                                        ref::Pattern::kSubnormal};
  constexpr int64_t kRings[] = {0, 1, 2, 3};
  Case c;
  c.ranks = static_cast<int32_t>(2 + random.below(7));
  c.type = ref::kTypes[random.below(3)];
  c.rows = random.of(kRows);
  c.n = random.of(kColumns);
  c.algorithm = static_cast<fastnorm_peer_algorithm>(random.below(3));
  c.rings = static_cast<int32_t>(random.of(kRings));
  c.exact = random.one_in(3);
  c.residual = static_cast<int>(random.below(3));
  c.kind = random.one_in(3) ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
  c.rounding = static_cast<fastnorm_rounding>(random.below(3));
  c.residual_rounding = static_cast<fastnorm_residual_rounding>(random.below(3));
  c.offset = random.one_in(2) ? 1.0f : 0.0f;
  c.bias = random.one_in(2);
  c.residual_out = c.residual != 0 && random.one_in(2);
  c.pattern = random.of(kPatterns);
  c.spoiled = random.one_in(5);
  c.pointers = random.one_in(4);
  return c;
}

// The memory of one rank.
struct RankTensors {
  Rows x;
  Array y, residual_out, rstd, mean;
};

// `norm` is that of the call.
fastnorm_peer_allreduce_norm_args args_of(const Case& c, fastnorm_peer* peer,
                                          fastnorm_norm_args* norm) {
  *norm = {};
  norm->struct_size = sizeof *norm;
  norm->kind = c.kind;
  norm->eps = 1e-5f;
  norm->weight_offset = c.offset;
  norm->rounding = c.rounding;
  norm->residual_rounding = c.residual_rounding;
  fastnorm_peer_allreduce_norm_args args = {};
  args.struct_size = sizeof args;
  args.peer = peer;
  args.norm = norm;
  args.sum_rounding = c.exact ? FASTNORM_PEER_SUM_EXACT : FASTNORM_PEER_SUM_ROUNDED;
  return args;
}

// What every rank must have, by the model.
void expect_model(const Case& c, const std::vector<RankTensors>& ranks, const Rows& residual,
                  const Rows& weight, const Rows& bias) {
  ref::NormOptions o;
  o.dtype = c.type;
  o.kind = c.kind == FASTNORM_NORM_LAYER ? ref::Kind::kLayer : ref::Kind::kRms;
  o.rounding = static_cast<ref::Rounding>(c.rounding);
  o.residual_rounding = static_cast<ref::ResidualRounding>(c.residual_rounding);
  o.sum_dtype = residual.type;
  o.eps = 1e-5f;
  o.weight_offset = c.offset;
  ref::ModelScratch scratch;
  std::vector<float> sum(static_cast<size_t>(c.n));
  std::vector<double> exact(sum.size()), bound(sum.size());
  for (int64_t row = 0; row < c.rows; ++row) {
    const float* x[FASTNORM_PEER_MAX_RANKS];
    for (int32_t r = 0; r < c.ranks; ++r) x[r] = ranks[static_cast<size_t>(r)].x.row(row);
    ref::peer_sum_model(c.type, !c.exact, x, c.ranks, c.n, sum.data());
    ref::peer_sum_ref(x, c.ranks, c.n, exact.data(), bound.data());
    for (size_t i = 0; c.exact && i < sum.size(); ++i) {
      if (!std::isfinite(sum[i]) || !std::isfinite(exact[i])) continue;
      EXPECT_LE(std::fabs(static_cast<double>(sum[i]) - exact[i]), bound[i]);
    }
    const ref::NormRow model_row = {c.n, sum.data(), c.residual != 0 ? residual.row(row) : nullptr,
                                    weight.row(0), c.bias ? bias.row(0) : nullptr};
    ref::NormResult result;
    ref::norm_model(o, model_row, ref::Order::kCpu, &scratch, &result);
    const ref::NormBounds bounds = ref::norm_bounds(o, model_row, ref::Order::kCpu);
    const int bytes = ref::bytes_of(c.type);
    for (const RankTensors& rank : ranks) {
      std::vector<float> y(sum.size()), h(sum.size());
      ref::decode_row(c.type, rank.y.bytes.data() + row * c.n * bytes, y.data(), c.n);
      if (c.residual_out) {
        const int out_bytes = ref::bytes_of(residual.type);
        ref::decode_row(residual.type, rank.residual_out.bytes.data() + row * c.n * out_bytes,
                        h.data(), c.n);
      }
      for (size_t i = 0; i < sum.size(); ++i) {
        const float z = ref::round_to(c.type, result.z[i]);
        ASSERT_TRUE((std::isnan(y[i]) && std::isnan(z)) ||
                    std::bit_cast<uint32_t>(y[i]) == std::bit_cast<uint32_t>(z))
            << c.name() << " row " << row << " column " << i << ": " << y[i] << ", model " << z;
        if (bounds.y_valid) {
          ASSERT_TRUE(bounds.y[i].holds(static_cast<double>(y[i]))) << c.name();
        }
        if (!c.residual_out) continue;
        const float s = ref::round_to(residual.type, result.sum[i]);
        ASSERT_TRUE((std::isnan(h[i]) && std::isnan(s)) ||
                    std::bit_cast<uint32_t>(h[i]) == std::bit_cast<uint32_t>(s))
            << c.name() << " row " << row << " column " << i << ": sum " << h[i] << ", model " << s;
      }
    }
  }
}

void run_case(const Case& c, uint64_t seed) {
  fastnorm_peer_options options = peer_options(c.ranks, id_of(c.type), c.n + 5);
  options.algorithm = c.algorithm;
  options.rings = c.rings;
  World world(options, c.pointers);
  Rows residual(c.residual == 2 ? Type::kF32 : c.type, c.rows, c.n), weight(c.type, 1, c.n),
      bias(c.type, 1, c.n);
  weight.array.shape = bias.array.shape = {c.n};
  weight.fill(seed + 1, ref::Pattern::kWeights);
  bias.fill(seed + 2, ref::Pattern::kNormal);
  // Twice: the second call begins where the first one's messages end.
  for (uint64_t turn = 0; turn < 2; ++turn) {
    residual.fill(seed + 3 + turn, ref::Pattern::kNormal);
    std::vector<RankTensors> ranks(static_cast<size_t>(c.ranks));
    std::vector<fastnorm_norm_args> norms(ranks.size());
    std::vector<fastnorm_peer_allreduce_norm_args> args;
    for (int32_t r = 0; r < c.ranks; ++r) {
      RankTensors& rank = ranks[static_cast<size_t>(r)];
      rank.x = Rows(c.type, c.rows, c.n);
      rank.x.fill(ref::hash(seed, turn, r), c.pattern);
      if (c.spoiled) rank.x.spoil(ref::hash(seed, turn, r));
      rank.y = Array(id_of(c.type), {c.rows, c.n});
      fastnorm_norm_args& a = norms[static_cast<size_t>(r)];
      args.push_back(args_of(c, world.peers[static_cast<size_t>(r)], &a));
      a.x = rank.x.array.tensor();
      a.y = rank.y.tensor();
      a.weight = weight.array.tensor();
      if (c.bias) a.bias = bias.array.tensor();
      if (c.residual != 0) a.residual = residual.array.tensor();
      if (c.residual_out) {
        rank.residual_out = Array(id_of(residual.type), {c.rows, c.n});
        a.residual_out = rank.residual_out.tensor();
      }
    }
    const auto results = world.run([&](int32_t r) {
      return call_allreduce(world.contexts[static_cast<size_t>(r)], args[static_cast<size_t>(r)]);
    });
    for (const RankResult& result : results) {
      ASSERT_EQ(result.status, FASTNORM_OK) << c.name() << ": " << result.text;
    }
    for (const RankTensors& rank : ranks) {
      ASSERT_EQ(rank.y.bytes, ranks[0].y.bytes) << c.name();
      ASSERT_EQ(rank.residual_out.bytes, ranks[0].residual_out.bytes) << c.name();
    }
    expect_model(c, ranks, residual, weight, bias);
  }
  EXPECT_EQ(world.state(0).calls, 2u);
}

TEST(PeerAllreduce, EqualsTheModelOnEveryRank) {
  Random random(44);
  for (int i = 0; i < support::share_of(400); ++i) {
    run_case(random_case(random), static_cast<uint64_t>(i) * 100 + 7);
    if (HasFatalFailure()) return;
  }
}

// One-shot and two-shot, all ranks and dtypes, rows that are no multiple of the ranks.
TEST(PeerAllreduce, AlgorithmsAgree) {
  for (int32_t ranks = 2; ranks <= 8; ++ranks) {
    for (const Type type : ref::kTypes) {
      for (const bool exact : {false, true}) {
        std::vector<char> first;
        for (const auto algorithm : {FASTNORM_PEER_ONE_SHOT, FASTNORM_PEER_TWO_SHOT}) {
          fastnorm_peer_options options = peer_options(ranks, id_of(type), 65);
          options.algorithm = algorithm;
          options.rings = 2;
          World world(options);
          std::vector<RankTensors> tensors(static_cast<size_t>(ranks));
          const auto results = world.run([&](int32_t r) {
            RankTensors& rank = tensors[static_cast<size_t>(r)];
            rank.x = Rows(type, 11, 65);
            rank.x.fill(ref::hash(9, r), ref::Pattern::kNormal);
            rank.y = Array(id_of(type), {11, 65});
            fastnorm_peer_allreduce_norm_args args = {};
            args.struct_size = sizeof args;
            args.peer = world.peers[static_cast<size_t>(r)];
            args.sum_rounding = exact ? FASTNORM_PEER_SUM_EXACT : FASTNORM_PEER_SUM_ROUNDED;
            fastnorm_norm_args norm = {};
            norm.struct_size = sizeof norm;
            norm.x = rank.x.array.tensor();
            norm.y = rank.y.tensor();
            args.norm = &norm;
            return call_allreduce(world.contexts[static_cast<size_t>(r)], args);
          });
          for (int32_t r = 0; r < ranks; ++r) {
            ASSERT_EQ(results[static_cast<size_t>(r)].status, FASTNORM_OK);
            if (first.empty()) first = tensors[0].y.bytes;
            ASSERT_EQ(tensors[static_cast<size_t>(r)].y.bytes, first)
                << ranks << " ranks, rank " << r << ", algorithm " << algorithm;
          }
        }
      }
    }
  }
}

struct Scheme {
  fastnorm_quant_scheme scheme;
  int32_t block;
  fastnorm_dtype_id codes;
  fastnorm_dtype_id scale;
  std::vector<int64_t> code_shape, scale_shape;
};

// An all-reduce with codes, beside y and residual_out, equals fastnorm_norm of the sum.
void expect_codes_of_norm(const Scheme& scheme, bool exact, int32_t ranks) {
  constexpr int64_t kRows = 6, kN = 128;
  // f32: an exact sum is x of the plain norm, too.
  const Type type = exact ? Type::kF32 : Type::kBF16;
  fastnorm_peer_options options = peer_options(ranks, id_of(type), kN);
  options.algorithm = FASTNORM_PEER_TWO_SHOT;
  World world(options);
  struct Tensors {
    Rows x;
    Array y, h, codes, scale, amax;
  };
  std::vector<Tensors> all(static_cast<size_t>(ranks) + 1);
  Rows residual(type, kRows, kN);
  residual.fill(5, ref::Pattern::kNormal);
  for (Tensors& t : all) {
    t.x = Rows(type, kRows, kN);
    t.y = Array(id_of(type), {kRows, kN});
    t.h = Array(id_of(type), {kRows, kN});
    t.codes = Array(scheme.codes, scheme.code_shape);
    t.scale = Array(scheme.scale, scheme.scale_shape);
    t.amax = Array(FASTNORM_DTYPE_F32, {1});
    const float scale = 0.03125f;
    if (scheme.scheme == FASTNORM_QUANT_PER_TENSOR) {
      std::memcpy(t.scale.bytes.data(), &scale, 4);
    }
  }
  const float* x[FASTNORM_PEER_MAX_RANKS];
  for (int32_t r = 0; r < ranks; ++r) {
    all[static_cast<size_t>(r)].x.fill(ref::hash(3, r), ref::Pattern::kNormal);
  }
  for (int64_t row = 0; row < kRows; ++row) {
    for (int32_t r = 0; r < ranks; ++r) x[r] = all[static_cast<size_t>(r)].x.row(row);
    ref::peer_sum_model(type, !exact, x, ranks, kN, all.back().x.values.data() + row * kN);
  }
  all.back().x.store();
  const fastnorm_tensor* const added = residual.array.tensor();
  const auto set = [&](fastnorm_norm_args& args, fastnorm_quant& quant, Tensors& t) {
    args.struct_size = sizeof args;
    args.eps = 1e-6f;
    args.x = t.x.array.tensor();
    args.residual = added;
    args.residual_rounding = FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS;
    args.y = t.y.tensor();
    args.residual_out = t.h.tensor();
    quant.struct_size = sizeof quant;
    quant.scheme = scheme.scheme;
    quant.block_size = scheme.block;
    quant.clamp = 2.5f;
    quant.quantized = t.codes.tensor();
    quant.scale = t.scale.tensor();
    quant.amax = t.amax.tensor();
    args.quant = &quant;
  };
  fastnorm_norm_args norm = {};
  fastnorm_quant quant = {};
  set(norm, quant, all.back());
  ASSERT_EQ(fastnorm_norm(world.contexts[0], &norm, nullptr, 0, nullptr), FASTNORM_OK)
      << fastnorm_last_error();
  const auto results = world.run([&](int32_t r) {
    fastnorm_norm_args of_rank = {};
    fastnorm_quant codes = {};
    set(of_rank, codes, all[static_cast<size_t>(r)]);
    fastnorm_peer_allreduce_norm_args args = {};
    args.struct_size = sizeof args;
    args.norm = &of_rank;
    args.peer = world.peers[static_cast<size_t>(r)];
    args.sum_rounding = exact ? FASTNORM_PEER_SUM_EXACT : FASTNORM_PEER_SUM_ROUNDED;
    return call_allreduce(world.contexts[static_cast<size_t>(r)], args);
  });
  for (int32_t r = 0; r < ranks; ++r) {
    const Tensors& t = all[static_cast<size_t>(r)];
    ASSERT_EQ(results[static_cast<size_t>(r)].status, FASTNORM_OK)
        << results[static_cast<size_t>(r)].text;
    EXPECT_EQ(t.codes.bytes, all.back().codes.bytes) << "scheme " << scheme.scheme;
    EXPECT_EQ(t.scale.bytes, all.back().scale.bytes) << "scheme " << scheme.scheme;
    EXPECT_EQ(t.amax.bytes, all.back().amax.bytes) << "scheme " << scheme.scheme;
    EXPECT_EQ(t.y.bytes, all.back().y.bytes) << "scheme " << scheme.scheme;
    EXPECT_EQ(t.h.bytes, all.back().h.bytes) << "scheme " << scheme.scheme;
  }
  EXPECT_NE(all[0].codes.bytes, std::vector<char>(all[0].codes.bytes.size()));
}

TEST(PeerAllreduce, QuantisedOutputsEqualTheNorms) {
  std::vector<Scheme> schemes = {
      {FASTNORM_QUANT_PER_TENSOR, 0, FASTNORM_DTYPE_I8, FASTNORM_DTYPE_F32, {6, 128}, {1}},
      {FASTNORM_QUANT_PER_ROW, 0, FASTNORM_DTYPE_F8_E5M2, FASTNORM_DTYPE_F32, {6, 128}, {6}},
      {FASTNORM_QUANT_PER_ROW, 0, FASTNORM_DTYPE_I8, FASTNORM_DTYPE_F32, {6, 128}, {6}},
  };
  for (const QuantScheme& of : kQuantSchemes) {
    if (of.scheme == FASTNORM_QUANT_NONE) continue;
    const int32_t block = of.block == kOwnBlock ? 64 : 0;
    std::vector<int64_t> scales = {6};
    if (of.scale == SchemeScale::kInput) scales = {1};
    if (of.block != 0) scales.push_back(128 / (block != 0 ? block : of.block));
    schemes.push_back({of.scheme,
                       block,
                       of.is_fp4() ? FASTNORM_DTYPE_F4_E2M1FN : FASTNORM_DTYPE_F8_E4M3FN,
                       of.is_mx()                       ? FASTNORM_DTYPE_F8_E8M0FNU
                       : of.scale == SchemeScale::kE4M3 ? FASTNORM_DTYPE_F8_E4M3FN
                                                        : FASTNORM_DTYPE_F32,
                       {6, 128},
                       scales});
  }
  for (const Scheme& scheme : schemes) {
    for (const bool exact : {false, true}) {
      for (const int32_t ranks : {2, 3, 5}) expect_codes_of_norm(scheme, exact, ranks);
    }
  }
}

// In place, with strides that differ from rank to rank.
TEST(PeerAllreduce, InPlaceWithStrides) {
  constexpr int64_t kTokens = 4, kHeads = 3, kN = 16;
  const fastnorm_peer_options options = peer_options(3, FASTNORM_DTYPE_F32, kN);
  World world(options);
  std::vector<Array> x, residual;
  std::vector<std::vector<float>> values(3);
  for (int32_t r = 0; r < 3; ++r) {
    // Rank 1's heads are outermost in memory, rank 2's rows have gaps.
    x.emplace_back(FASTNORM_DTYPE_F32, std::vector<int64_t>{kTokens, kHeads, kN + 4});
    x.back().shape = {kTokens, kHeads, kN};
    x.back().strides = r == 1   ? std::vector<int64_t>{kN, kTokens * kN, 1}
                       : r == 2 ? std::vector<int64_t>{kHeads * (kN + 4), kN + 4, 1}
                                : std::vector<int64_t>{kHeads * kN, kN, 1};
    residual.emplace_back(FASTNORM_DTYPE_F32, std::vector<int64_t>{kTokens, kHeads, kN});
    values[static_cast<size_t>(r)].resize(kTokens * kHeads * kN);
    ref::fill_row(ref::Pattern::kNormal, Type::kF32, static_cast<uint64_t>(r) + 1,
                  values[static_cast<size_t>(r)].data(), kTokens * kHeads * kN);
  }
  const auto at = [&](int32_t r, int64_t i) {
    const auto& s = x[static_cast<size_t>(r)].strides;
    return reinterpret_cast<float*>(x[static_cast<size_t>(r)].bytes.data()) +
           i / (kHeads * kN) * s[0] + i / kN % kHeads * s[1] + i % kN;
  };
  for (int32_t r = 0; r < 3; ++r) {
    for (int64_t i = 0; i < kTokens * kHeads * kN; ++i) {
      *at(r, i) = values[static_cast<size_t>(r)][static_cast<size_t>(i)];
    }
  }
  const auto results = world.run([&](int32_t r) {
    fastnorm_peer_allreduce_norm_args args = {};
    args.struct_size = sizeof args;
    args.peer = world.peers[static_cast<size_t>(r)];
    fastnorm_norm_args norm = {};
    norm.struct_size = sizeof norm;
    norm.eps = 1e-6f;
    norm.x = norm.y = x[static_cast<size_t>(r)].tensor();
    norm.residual = norm.residual_out = residual[static_cast<size_t>(r)].tensor();
    args.norm = &norm;
    return call_allreduce(world.contexts[static_cast<size_t>(r)], args);
  });
  for (const RankResult& result : results) ASSERT_EQ(result.status, FASTNORM_OK) << result.text;
  for (int64_t i = 0; i < kTokens * kHeads * kN; ++i) {
    const auto index = static_cast<size_t>(i);
    const float sum = (values[0][index] + values[1][index]) + values[2][index];
    float h;
    for (int32_t r = 0; r < 3; ++r) {
      std::memcpy(&h, residual[static_cast<size_t>(r)].bytes.data() + i * 4, 4);
      ASSERT_EQ(h, sum) << "rank " << r << " element " << i;
      ASSERT_EQ(*at(r, i), *at(0, i)) << "rank " << r << " element " << i;
    }
  }
}

// Many calls of changing size and family on one peer, without a meeting of the ranks.
TEST(PeerAllreduce, ManyCallsFollowEachOther) {
  constexpr int kCalls = 120;
  fastnorm_peer_options options = peer_options(3, FASTNORM_DTYPE_F16, 96);
  options.one_shot_bytes = 1024;  // so that both algorithms have their turn
  options.rings = 3;
  World world(options);
  std::vector<std::vector<std::vector<char>>> y(3, std::vector<std::vector<char>>(kCalls));
  const auto results = world.run([&](int32_t r) -> fastnorm_status {
    Random random(71);  // the same calls on all ranks
    for (int i = 0; i < kCalls; ++i) {
      const int64_t rows = 1 + random.below(20), n = 1 + random.below(96);
      const bool sharded = random.one_in(3);
      Rows x(Type::kF16, rows, n);
      x.fill(ref::hash(i, r), ref::Pattern::kNormal);
      Array out(FASTNORM_DTYPE_F16, {rows, n});
      if (ref::hash(i, r, 5) % 9 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      fastnorm_status status;
      if (sharded) {
        fastnorm_peer_sharded_norm_args args = {};
        args.struct_size = sizeof args;
        args.peer = world.peers[static_cast<size_t>(r)];
        args.x = args.y = x.array.tensor();
        status = call_sharded(world.contexts[static_cast<size_t>(r)], args);
      } else {
        fastnorm_peer_allreduce_norm_args args = {};
        args.struct_size = sizeof args;
        args.peer = world.peers[static_cast<size_t>(r)];
        fastnorm_norm_args norm = {};
        norm.struct_size = sizeof norm;
        norm.x = x.array.tensor();
        norm.y = out.tensor();
        args.norm = &norm;
        status = call_allreduce(world.contexts[static_cast<size_t>(r)], args);
        y[static_cast<size_t>(r)][static_cast<size_t>(i)] = out.bytes;
      }
      if (status != FASTNORM_OK) return status;
    }
    return FASTNORM_OK;
  });
  for (const RankResult& result : results) ASSERT_EQ(result.status, FASTNORM_OK) << result.text;
  EXPECT_EQ(y[1], y[0]);
  EXPECT_EQ(y[2], y[0]);
  EXPECT_EQ(world.state(1).calls, static_cast<uint64_t>(kCalls));
}

struct ShardedCase {
  int32_t ranks;
  Type type;
  int64_t tokens, heads, d, d2;  // d2: 0 = one part
  fastnorm_norm_kind kind;
  fastnorm_rounding rounding;
  float offset;
  bool bias;
};

// The sums of one rank's part, as norm_heads gives them.
ref::PeerPart part_of(fastnorm_context* context, fastnorm_norm_kind kind, Rows& x, int64_t token) {
  Array row(id_of(x.type), {1, 1, x.n}), sums(FASTNORM_DTYPE_F32, {1, 1, 2});
  if (kind == FASTNORM_NORM_RMS) sums.shape = {1, 1};
  const auto bytes = static_cast<size_t>(x.n * ref::bytes_of(x.type));
  std::memcpy(row.bytes.data(), x.array.bytes.data() + static_cast<size_t>(token) * bytes, bytes);
  fastnorm_norm_heads_args args = {};
  args.struct_size = sizeof args;
  fastnorm_norm_heads_part part = {};
  part.struct_size = sizeof part;
  part.flags = FASTNORM_NORM_HEADS_NORM;
  part.kind = kind;
  part.x = row.tensor();
  part.sumsq = sums.tensor();
  const fastnorm_norm_heads_part* parts[] = {&part};
  EXPECT_EQ(fastnorm_norm_heads(context, &args, parts, 1, nullptr, 0, nullptr), FASTNORM_OK)
      << fastnorm_last_error();
  float words[2] = {};
  std::memcpy(words, sums.bytes.data(), sums.bytes.size());
  if (kind == FASTNORM_NORM_RMS) return {0, words[0]};
  return {words[0], words[1]};
}

// One part of all ranks: bits by the model, values by double, and another result without the
// exchange.
void expect_sharded(const ShardedCase& c, World& world, std::vector<Rows>& x, std::vector<Array>& y,
                    const Rows& weight, const Rows& bias, int64_t heads, int64_t d) {
  const int64_t n = heads * d;
  const bool layer = c.kind == FASTNORM_NORM_LAYER;
  ref::NormOptions o;
  o.dtype = c.type;
  o.kind = layer ? ref::Kind::kLayer : ref::Kind::kRms;
  o.rounding = static_cast<ref::Rounding>(c.rounding);
  o.eps = 1e-5f;
  o.weight_offset = c.offset;
  bool told_apart = false;
  for (int64_t token = 0; token < c.tokens; ++token) {
    std::vector<ref::PeerPart> parts;
    const float* rows[FASTNORM_PEER_MAX_RANKS];
    for (int32_t r = 0; r < c.ranks; ++r) {
      rows[r] = x[static_cast<size_t>(r)].row(token);
      parts.push_back(part_of(world.contexts[0], c.kind, x[static_cast<size_t>(r)], token));
    }
    const ref::PeerStatistic s = ref::peer_merge_model(o.kind, o.eps, parts.data(), c.ranks, n);
    const ref::PeerStatisticRef exact =
        ref::peer_statistic_ref(o.kind, c.type, o.eps, rows, c.ranks, n);
    const ref::PeerStatisticRef alone = ref::peer_statistic_ref(o.kind, c.type, o.eps, rows, 1, n);
    ASSERT_LE(std::fabs(static_cast<double>(s.rstd) - exact.rstd), exact.rstd_bound);
    ASSERT_LE(std::fabs(static_cast<double>(s.mean) - exact.mean), exact.mean_bound);
    told_apart |= std::fabs(alone.rstd - exact.rstd) > exact.rstd_bound;
    for (int32_t r = 0; r < c.ranks; ++r) {
      std::vector<float> found(static_cast<size_t>(n)), z(static_cast<size_t>(n));
      ref::decode_row(c.type,
                      y[static_cast<size_t>(r)].bytes.data() + token * n * ref::bytes_of(c.type),
                      found.data(), n);
      for (int64_t h = 0; h < heads; ++h) {
        const ref::NormRow row = {d, rows[r] + h * d, nullptr, weight.row(h),
                                  c.bias ? bias.row(h) : nullptr};
        ref::norm_tail(o, row, s.mean, s.rstd, z.data() + h * d);
      }
      for (size_t i = 0; i < z.size(); ++i) {
        ASSERT_EQ(found[i], ref::round_to(c.type, z[i]))
            << c.ranks << " ranks " << ref::name_of(c.type) << " token " << token << " rank " << r
            << " column " << i;
      }
    }
  }
  EXPECT_TRUE(told_apart);
}

void run_sharded(const ShardedCase& c, uint64_t seed) {
  World world(peer_options(c.ranks, FASTNORM_DTYPE_F32, 1));
  const int64_t parts = c.d2 == 0 ? 1 : 2;
  std::vector<Rows> x[2], weight;
  std::vector<Array> y[2];
  std::vector<Rows> bias;
  for (int64_t p = 0; p < parts; ++p) {
    const int64_t d = p == 0 ? c.d : c.d2, heads = p == 0 ? c.heads : 1;
    weight.emplace_back(c.type, heads, d);
    bias.emplace_back(c.type, heads, d);
    weight.back().fill(seed + 3, ref::Pattern::kWeights);
    bias.back().fill(seed + 4, ref::Pattern::kNormal);
    for (int32_t r = 0; r < c.ranks; ++r) {
      Rows rows(c.type, c.tokens, heads * d);
      rows.fill(ref::hash(seed, p, r), ref::Pattern::kNormal);
      // Ranks of different scale and mean: who leaves one out is far off.
      for (float& v : rows.values) v = v * static_cast<float>(1 + r) + static_cast<float>(r);
      rows.store();
      if (p == 0) rows.array.shape = {c.tokens, heads, d};
      x[p].push_back(rows);
      y[p].emplace_back(id_of(c.type), rows.array.shape);
    }
  }
  const auto results = world.run([&](int32_t r) {
    const auto rank = static_cast<size_t>(r);
    fastnorm_peer_sharded_norm_args args = {};
    args.struct_size = sizeof args;
    args.peer = world.peers[rank];
    args.kind = c.kind;
    args.eps = 1e-5f;
    args.weight_offset = c.offset;
    args.rounding = c.rounding;
    args.x = x[0][rank].array.tensor();
    args.y = y[0][rank].tensor();
    Rows w = weight[0], b = bias[0], w2, b2;  // each rank's own
    args.weight = w.array.tensor();
    if (c.bias) args.bias = b.array.tensor();
    if (parts == 2) {
      w2 = weight[1], b2 = bias[1];
      args.x2 = x[1][rank].array.tensor();
      args.y2 = y[1][rank].tensor();
      args.weight2 = w2.array.tensor();
      if (c.bias) args.bias2 = b2.array.tensor();
    }
    return call_sharded(world.contexts[rank], args);
  });
  for (const RankResult& result : results) ASSERT_EQ(result.status, FASTNORM_OK) << result.text;
  for (int64_t p = 0; p < parts; ++p) {
    expect_sharded(c, world, x[p], y[p], weight[static_cast<size_t>(p)],
                   bias[static_cast<size_t>(p)], p == 0 ? c.heads : 1, p == 0 ? c.d : c.d2);
  }
}

TEST(PeerSharded, EqualsTheModelAndTheWholeRow) {
  Random random(45);
  constexpr int64_t kHeads[] = {1, 2, 5}, kColumns[] = {1, 3, 8, 64, 100}, kTokens[] = {1, 4, 19};
  for (int i = 0; i < 60; ++i) {
    ShardedCase c;
    c.ranks = static_cast<int32_t>(2 + i % 7);
    c.type = ref::kTypes[i % 3];
    c.tokens = random.of(kTokens);
    c.heads = random.of(kHeads);
    c.d = random.of(kColumns);
    c.d2 = random.one_in(2) ? random.of(kColumns) : 0;
    c.kind = random.one_in(2) ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
    c.rounding = random.one_in(2) ? FASTNORM_ROUND_NORMALIZED : FASTNORM_ROUND_ONCE;
    c.offset = random.one_in(2) ? 1.0f : 0.0f;
    c.bias = random.one_in(2);
    run_sharded(c, static_cast<uint64_t>(i) * 11 + 1);
    if (HasFatalFailure()) return;
  }
}

// One call of rank r with its tensors on the thread's stack.
fastnorm_status small_call(World& world, int32_t r, int64_t rows, int64_t n, float eps = 0,
                           std::vector<float>* out = nullptr) {
  Rows x(Type::kF32, rows, n);
  x.fill(static_cast<uint64_t>(r), ref::Pattern::kNormal);
  Array y(FASTNORM_DTYPE_F32, {rows, n});
  std::ranges::fill(y.bytes, char{0x5a});
  const std::vector<char> before = y.bytes;
  fastnorm_peer_allreduce_norm_args args = {};
  args.struct_size = sizeof args;
  args.peer = world.peers[static_cast<size_t>(r)];
  fastnorm_norm_args norm = {};
  norm.struct_size = sizeof norm;
  norm.eps = eps;
  norm.x = x.array.tensor();
  norm.y = y.tensor();
  args.norm = &norm;
  const fastnorm_status status = call_allreduce(world.contexts[static_cast<size_t>(r)], args);
  if (status != FASTNORM_OK) {
    EXPECT_EQ(y.bytes, before);
  }
  if (out != nullptr) {
    out->resize(static_cast<size_t>(rows * n));
    std::memcpy(out->data(), y.bytes.data(), y.bytes.size());
  }
  return status;
}

fastnorm_peer_options quick_options(int32_t ranks, fastnorm_peer_algorithm algorithm) {
  fastnorm_peer_options options = peer_options(ranks, FASTNORM_DTYPE_F32, 64);
  options.wait_ns = 400000000;
  options.algorithm = algorithm;
  options.rings = 2;
  return options;
}

TEST(PeerFailure, AMissingRankIsAnErrorInTime) {
  for (const auto algorithm : {FASTNORM_PEER_ONE_SHOT, FASTNORM_PEER_TWO_SHOT}) {
    World world(quick_options(3, algorithm));
    const auto begin = std::chrono::steady_clock::now();
    auto results = world.run([&](int32_t r) { return small_call(world, r, 9, 64); }, 0b011);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    bool named = false;
    for (int32_t r = 0; r < 2; ++r) {
      EXPECT_EQ(results[static_cast<size_t>(r)].status, FASTNORM_ERROR_DEVICE);
      named |= results[static_cast<size_t>(r)].text.find(
                   "rank 2 did not arrive within 400000000 ns") != std::string::npos;
      EXPECT_EQ(world.state(r).error, FASTNORM_PEER_ERROR_MISSING);
      EXPECT_EQ(world.state(r).calls, 0u);
    }
    EXPECT_TRUE(named);
    // Later calls fail at once.
    const auto again = std::chrono::steady_clock::now();
    results = world.run([&](int32_t r) { return small_call(world, r, 9, 64); }, 0b011);
    EXPECT_LT(std::chrono::steady_clock::now() - again, std::chrono::milliseconds(300));
    EXPECT_EQ(results[0].status, FASTNORM_ERROR_DEVICE);
    EXPECT_NE(results[0].text.find("fastnorm_peer_reset"), std::string::npos) << results[0].text;
    // And the group goes on after a reset.
    world.reset();
    EXPECT_EQ(world.state(0).error, FASTNORM_PEER_ERROR_NONE);
    EXPECT_EQ(world.state(0).rank, -1);
    std::vector<std::vector<float>> y(3);
    results = world.run(
        [&](int32_t r) { return small_call(world, r, 9, 64, 0, &y[static_cast<size_t>(r)]); });
    for (const RankResult& result : results) EXPECT_EQ(result.status, FASTNORM_OK) << result.text;
    EXPECT_EQ(y[1], y[0]);
    EXPECT_EQ(y[2], y[0]);
  }
}

TEST(PeerFailure, ALateRankIsWaitedFor) {
  World world(quick_options(2, FASTNORM_PEER_AUTO));
  std::vector<std::vector<float>> y(2);
  const auto results = world.run([&](int32_t r) {
    if (r == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return small_call(world, r, 3, 16, 0, &y[static_cast<size_t>(r)]);
  });
  for (const RankResult& result : results) EXPECT_EQ(result.status, FASTNORM_OK) << result.text;
  EXPECT_EQ(y[1], y[0]);
}

// Rank 1's call differs from the others'.
void expect_disagreement(fastnorm_peer_algorithm algorithm,
                         const std::function<fastnorm_status(World&, int32_t)>& call,
                         const char* text) {
  World world(quick_options(3, algorithm));
  const auto results = world.run([&](int32_t r) { return call(world, r); });
  bool found = false;
  for (int32_t r = 0; r < 3; ++r) {
    const RankResult& result = results[static_cast<size_t>(r)];
    EXPECT_NE(result.status, FASTNORM_OK) << "rank " << r;
    const bool disagrees = world.state(r).error == FASTNORM_PEER_ERROR_DISAGREES;
    EXPECT_EQ(result.status, disagrees ? FASTNORM_ERROR_ARGUMENT : FASTNORM_ERROR_DEVICE);
    found |= disagrees && result.text.find(text) != std::string::npos;
  }
  EXPECT_TRUE(found) << results[0].text << "\n" << results[1].text << "\n" << results[2].text;
}

TEST(PeerFailure, RanksThatDisagreeAreFound) {
  const auto sharded = [](World& world, int32_t r, int64_t tokens) {
    Rows x(Type::kF32, tokens, 16);
    x.fill(3, ref::Pattern::kNormal);
    fastnorm_peer_sharded_norm_args args = {};
    args.struct_size = sizeof args;
    args.peer = world.peers[static_cast<size_t>(r)];
    args.x = args.y = x.array.tensor();
    return call_sharded(world.contexts[static_cast<size_t>(r)], args);
  };
  for (const auto algorithm : {FASTNORM_PEER_ONE_SHOT, FASTNORM_PEER_TWO_SHOT}) {
    expect_disagreement(
        algorithm, [](World& w, int32_t r) { return small_call(w, r, r == 1 ? 5 : 4, 16); },
        "5 rows of 16 columns");
    expect_disagreement(
        algorithm, [](World& w, int32_t r) { return small_call(w, r, 4, r == 1 ? 17 : 16); },
        "4 rows of 17 columns");
    expect_disagreement(
        algorithm,
        [](World& w, int32_t r) { return small_call(w, r, 4, 16, r == 1 ? 1e-6f : 1e-5f); },
        "options 0x");
    expect_disagreement(
        algorithm,
        [&](World& w, int32_t r) { return r == 1 ? sharded(w, r, 4) : small_call(w, r, 4, 16); },
        "another family or size");
  }
  expect_disagreement(
      FASTNORM_PEER_AUTO, [&](World& w, int32_t r) { return sharded(w, r, r == 1 ? 3 : 2); },
      "3 rows of 16 columns");
}

TEST(PeerFailure, OneCallAtATime) {
  fastnorm_peer_options options = quick_options(2, FASTNORM_PEER_AUTO);
  options.wait_ns = 2000000000;
  World world(options);
  std::atomic<int> refused{0}, done{0};
  std::thread first([&] {
    fastnorm_status status;
    do {
      status = small_call(world, 0, 2, 8);
    } while (status == FASTNORM_ERROR_ARGUMENT);  // a reset of the other thread was on its way
    done += status == FASTNORM_OK;
  });
  // Rank 0 waits for rank 1 by now, or is about to: one of two calls on its peer is refused, or
  // fails in its turn.
  while (refused == 0 && done == 0) {
    fastnorm_peer_state state = world.state(0);
    if (state.error != FASTNORM_PEER_ERROR_NONE) break;
    if (fastnorm_peer_reset(world.peers[0]) != FASTNORM_OK) {
      ++refused;
      EXPECT_NE(std::string(fastnorm_last_error()).find("peer runs a call"), std::string::npos);
      EXPECT_EQ(small_call(world, 0, 2, 8), FASTNORM_ERROR_ARGUMENT);
    }
  }
  EXPECT_EQ(refused.load(), 1);
  EXPECT_EQ(small_call(world, 1, 2, 8), FASTNORM_OK) << fastnorm_last_error();
  first.join();
  EXPECT_EQ(done.load(), 1);
}

// The C++ layer: two ranks of one context, 1 + 2 = 3 on both.
TEST(Peer, CppLayer) {
  const fastnorm::context cpu(fastnorm::cpu());
  fastnorm::peer_options options;
  options.ranks = 2;
  options.dtype = FASTNORM_DTYPE_F32;
  options.max_columns = 4;
  std::vector<fastnorm::peer> peers;
  std::vector<fastnorm::peer_blob> blobs;
  for (options.rank = 0; options.rank < 2; ++options.rank) {
    peers.emplace_back(cpu, options);
    blobs.push_back(peers.back().blob());
  }
  for (fastnorm::peer& peer : peers) peer.connect(blobs);
  float h[2][4], z[2][4] = {};
  const float zero[4] = {};
  const auto run = [&](int rank) {
    const auto value = static_cast<float>(rank + 1);
    const float x[4] = {value, value, value, value};
    float y[4];
    const fastnorm::tensor tx(x, {1, 4}), ty(y, {1, 4}), tr(zero, {1, 4}), th(h[rank], {1, 4}),
        tz(z[rank], {1, 4});
    fastnorm::norm_args norm;
    norm.x = tx.get(), norm.y = ty.get(), norm.residual = tr.get(), norm.residual_out = th.get();
    fastnorm::peer_allreduce_norm_args args;
    args.peer = peers[static_cast<size_t>(rank)].get();
    args.norm = &norm;
    fastnorm::peer_allreduce_norm_prepare(cpu, args);
    Room room;
    auto bytes = fastnorm::peer_allreduce_norm_query(cpu, args).workspace_bytes;
    fastnorm::peer_allreduce_norm(cpu, args, room.at(bytes), bytes);
    fastnorm::peer_sharded_norm_args sharded;
    sharded.peer = args.peer;
    sharded.x = tx.get(), sharded.y = tz.get();
    fastnorm::peer_sharded_norm_prepare(cpu, sharded);
    bytes = fastnorm::peer_sharded_norm_query(cpu, sharded).workspace_bytes;
    fastnorm::peer_sharded_norm(cpu, sharded, room.at(bytes), bytes);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(h[0][i], 3.0f);
    EXPECT_EQ(h[1][i], 3.0f);
    EXPECT_NEAR(z[0][i], 1 / std::sqrt(2.5f), 1e-6f);  // the mean of 1 and 4
    EXPECT_NEAR(z[1][i], 2 / std::sqrt(2.5f), 1e-6f);
  }
  EXPECT_EQ(peers[0].state().calls, 2u);
  peers[0].reset();
  EXPECT_EQ(peers[0].state().calls, 0u);
  options.rank = 0;
  EXPECT_GT(fastnorm::peer_buffer_bytes(cpu, options), 0u);
  EXPECT_THROW(fastnorm::peer(cpu, options, std::vector<void*>(1)), fastnorm::error);
}

TEST(Peer, ADestroyedRanksBufferStays) {
  fastnorm_peer_options options = quick_options(2, FASTNORM_PEER_AUTO);
  World world(options);
  fastnorm_peer_destroy(world.peers[1]);
  world.peers[1] = nullptr;
  EXPECT_EQ(small_call(world, 0, 2, 8), FASTNORM_ERROR_DEVICE);
}

// Sums of ranks and of squares are subnormal, where a flush to zero gives 0. All values are exact.
TEST(Peer, ComputesInTheModeOfTheSpecification) {
  constexpr float kTiny = 0x1p-130f;
  constexpr int64_t kColumns = 4;
  const auto store = [](Array& a, float value) {
    for (size_t i = 0; i < a.bytes.size(); i += 4) std::memcpy(&a.bytes[i], &value, 4);
  };
  const auto all = [](const Array& a, float wanted) {
    for (size_t i = 0; i < a.bytes.size(); i += 4) {
      float value = 0;
      std::memcpy(&value, &a.bytes[i], 4);
      if (value != wanted) return false;
    }
    return true;
  };
  for (const uint64_t odd : kOddModes) {
    for (const fastnorm_peer_algorithm algorithm :
         {FASTNORM_PEER_ONE_SHOT, FASTNORM_PEER_TWO_SHOT}) {
      fastnorm_peer_options options = peer_options(2, FASTNORM_DTYPE_F32, kColumns);
      options.algorithm = algorithm;
      World world(options);
      Array x[2], residual[2], sum[2], y[2], part[2];
      bool kept[2] = {};
      for (int r = 0; r < 2; ++r) {
        for (Array* a : {&x[r], &residual[r], &sum[r], &y[r], &part[r]})
          *a = Array(FASTNORM_DTYPE_F32, {1, kColumns}), store(*a, 0);
        store(x[r], kTiny);
        store(part[r], 0x1p-66f);  // its square is 2^-132
      }
      const auto of_rank = [&](int32_t rank) {
        const auto r = static_cast<size_t>(rank);
        return in_fp_mode(odd, &kept[r], [&] {
          fastnorm_norm_args norm = {};
          norm.struct_size = sizeof norm;
          norm.eps = 1;
          norm.x = x[r].tensor(), norm.residual = residual[r].tensor();
          norm.residual_out = sum[r].tensor(), norm.y = y[r].tensor();
          fastnorm_peer_allreduce_norm_args args = {};
          args.struct_size = sizeof args;
          args.peer = world.peers[r];
          args.norm = &norm;
          const fastnorm_status status = call_allreduce(world.contexts[r], args);
          if (status != FASTNORM_OK) return status;
          fastnorm_peer_sharded_norm_args sharded = {};
          sharded.struct_size = sizeof sharded;
          sharded.peer = world.peers[r];
          sharded.x = part[r].tensor(), sharded.y = part[r].tensor();
          return call_sharded(world.contexts[r], sharded);
        });
      };
      for (const RankResult& result : world.run(of_rank))
        EXPECT_EQ(result.status, FASTNORM_OK) << result.text;
      for (int r = 0; r < 2; ++r) {
        EXPECT_TRUE(kept[r]) << std::hex << odd;
        EXPECT_TRUE(all(sum[r], 2 * kTiny)) << "the sum, " << std::hex << odd;
        EXPECT_TRUE(all(y[r], 2 * kTiny)) << "rstd is 1, " << std::hex << odd;
        EXPECT_TRUE(all(part[r], 1)) << "each element is the root of the mean square";
      }
    }
  }
}

TEST(Peer, NoRowsNeedNoOtherRank) {
  World world(quick_options(2, FASTNORM_PEER_AUTO));
  EXPECT_EQ(small_call(world, 0, 0, 8), FASTNORM_OK) << fastnorm_last_error();
}

}  // namespace
}  // namespace fastnorm::test
