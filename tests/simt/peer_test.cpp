// The kernels of peers on the SIMT machine, all ranks at once. Every rank has the bits of the
// model: a sum in rank order and one norm. A rank that is missing or makes another call ends the
// call.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "core/norm_batch.h"
#include "core/norm_heads_check.h"
#include "cuda/arch.h"
#include "cuda/norm/table.h"
#include "cuda/peer/launch_params.h"
#include "cuda/peer/table.h"
#include "ref/data.h"
#include "ref/norm_model.h"
#include "ref/peer_ref.h"
#include "ref/quant.h"
#include "simt/peer_run.h"

namespace {

using namespace fastnorm;
using ref::Random;
using ref::Type;

constexpr simt::Order kOrders[] = {simt::Order::kForward, simt::Order::kBackward,
                                   simt::Order::kShuffled};
constexpr fastnorm_dtype_id kIds[] = {FASTNORM_DTYPE_F32, FASTNORM_DTYPE_F16, FASTNORM_DTYPE_BF16};
fastnorm_dtype_id id_of(Type type) { return kIds[static_cast<int>(type)]; }
Dtype dtype_of(Type type) { return dtype_from(fastnorm_dtype_of(id_of(type))); }

DeviceFacts facts() { return cuda::make_facts(cuda::kSm90, 0, 132, 8); }
const NormIndex& norm_index() {
  static const NormIndex index(cuda::norm_table(cuda::kSm90));
  return index;
}

// A tensor in "device" memory: rows that begin on 16 bytes, or `shift` bytes behind that.
class Tensor {
 public:
  Tensor() = default;
  // Bytes lie where the memory's own address puts them.
  Tensor(Tensor&&) = default;
  Tensor& operator=(Tensor&&) = default;
  Tensor(fastnorm_dtype_id dtype, std::vector<int64_t> extents, int shift = 0)
      : shape(std::move(extents)), shift_(shift) {
    int64_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    const fastnorm_dtype type = fastnorm_dtype_of(dtype);
    memory_.resize(static_cast<size_t>(elements * type.bits * type.lanes / 8) + 512);
    tensor_.device_type = FASTNORM_DEVICE_CUDA;
    tensor_.dtype = type;
  }
  char* data() {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return reinterpret_cast<char*>((address + 255) / 256 * 256) + shift_;
  }
  const fastnorm_tensor* tensor() {
    if (shape.empty()) return nullptr;
    tensor_.ndim = static_cast<int32_t>(shape.size());
    tensor_.shape = shape.data();
    tensor_.data = data();
    return &tensor_;
  }

  std::vector<int64_t> shape;

 private:
  std::vector<char> memory_;
  fastnorm_tensor tensor_ = {};
  int shift_ = 0;
};

// Rows of values, the same in memory.
struct Rows {
  Rows() = default;
  Rows(Type dtype, int64_t rows, int64_t columns, int shift = 0)
      : type(dtype), n(columns), tensor(id_of(dtype), {rows, columns}, shift) {
    values.resize(static_cast<size_t>(rows * columns));
  }
  void fill(uint64_t seed, ref::Pattern pattern) {
    for (size_t at = 0; at < values.size(); at += static_cast<size_t>(n))
      ref::fill_row(pattern, type, ref::hash(seed, at), values.data() + at, n);
    store();
    load();
  }
  void store() {
    ref::encode_row(type, values.data(), tensor.data(), static_cast<int64_t>(values.size()));
  }
  // Words that no message may hold as they are.
  void spoil() {
    for (size_t at = 0; at + 4 <= values.size() * static_cast<size_t>(ref::bytes_of(type));
         at += 28)
      std::memset(tensor.data() + at, 0xff, 4);
    load();
  }
  void load() {
    ref::decode_row(type, tensor.data(), values.data(), static_cast<int64_t>(values.size()));
  }
  const float* row(int64_t r) const { return values.data() + r * n; }

  Type type = Type::kF32;
  int64_t n = 0;
  Tensor tensor;
  std::vector<float> values;
};

struct Scheme {
  ref::Scheme scheme;
  fastnorm_quant_scheme abi;
  fastnorm_dtype_id codes, scale;
  int32_t block;
};
constexpr Scheme kSchemes[] = {
    {ref::Scheme::kPerTensor, FASTNORM_QUANT_PER_TENSOR, FASTNORM_DTYPE_F8_E4M3FN,
     FASTNORM_DTYPE_F32, 0},
    {ref::Scheme::kPerRow, FASTNORM_QUANT_PER_ROW, FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F32, 0},
    {ref::Scheme::kPerBlock, FASTNORM_QUANT_PER_BLOCK, FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F32,
     64},
    {ref::Scheme::kMxfp8, FASTNORM_QUANT_MXFP8, FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F8_E8M0FNU,
     0},
    {ref::Scheme::kNvfp4, FASTNORM_QUANT_NVFP4, FASTNORM_DTYPE_F4_E2M1FN, FASTNORM_DTYPE_F8_E4M3FN,
     0},
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
  int scheme = -1;            // of kSchemes
  int shift = 0;              // of x, in bytes
  int64_t spare_columns = 5;  // that messages have room for beyond n
  ref::Pattern pattern = ref::Pattern::kNormal;
  bool spoiled = false;
  simt::Order order = simt::Order::kForward;

  std::string name() const {
    return std::to_string(ranks) + " ranks " + ref::name_of(type) + " " + std::to_string(rows) +
           "x" + std::to_string(n) + " algorithm " + std::to_string(algorithm) + " rings " +
           std::to_string(rings) + (exact ? " exact" : "") + " residual " +
           std::to_string(residual) + " kind " + std::to_string(kind) + " scheme " +
           std::to_string(scheme) + " shift " + std::to_string(shift) + " " +
           ref::name_of(pattern) + (spoiled ? " spoiled" : "") + (rounded ? " rounded" : "");
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

// One rank's tensors and its call.
struct Rank {
  Rank(const Case& c, const Rows& shared_residual, Rows& weight, Rows& bias, uint64_t seed)
      : x(c.type, c.rows, c.n, c.shift),
        y(id_of(c.type), {c.rows, c.n}),
        rstd(FASTNORM_DTYPE_F32, {c.rows}) {
    x.fill(seed, c.pattern);
    if (c.spoiled) x.spoil();
    residual = Rows(shared_residual.type, c.rows, c.n);
    residual.values = shared_residual.values;
    residual.store();
    args.struct_size = sizeof args;
    args.kind = c.kind;
    args.eps = 1e-5f;
    args.weight_offset = 1.0f;
    if (c.rounded) {
      args.rounding = FASTNORM_ROUND_NORMALIZED;
      args.residual_rounding = FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS;
    }
    args.flags = FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER;
    args.x = x.tensor.tensor();
    args.y = y.tensor();
    args.rstd = rstd.tensor();
    args.weight = weight.tensor.tensor();
    if (c.bias) args.bias = bias.tensor.tensor();
    if (c.residual != 0) {
      residual_out = Tensor(id_of(residual.type), {c.rows, c.n});
      args.residual = residual.tensor.tensor();
      args.residual_out = residual_out.tensor();
    }
    if (c.scheme < 0) return;
    const Scheme& s = kSchemes[c.scheme];
    const int64_t scopes = s.block != 0                    ? c.n / s.block
                           : s.abi == FASTNORM_QUANT_MXFP8 ? c.n / 32
                           : s.abi == FASTNORM_QUANT_NVFP4 ? c.n / 16
                                                           : 1;
    codes = Tensor(s.codes, {c.rows, c.n});
    scale = s.abi == FASTNORM_QUANT_PER_TENSOR ? Tensor(s.scale, {1})
            : s.abi == FASTNORM_QUANT_PER_ROW  ? Tensor(s.scale, {c.rows})
                                               : Tensor(s.scale, {c.rows, scopes});
    constexpr float kScale = 0.03125f;
    if (s.abi == FASTNORM_QUANT_PER_TENSOR) std::memcpy(scale.data(), &kScale, 4);
    quant.struct_size = sizeof quant;
    quant.scheme = s.abi;
    quant.block_size = s.block;
    quant.quantized = codes.tensor();
    quant.scale = scale.tensor();
    args.quant = &quant;
  }
  Rank(const Rank&) = delete;

  Rows x, residual;
  Tensor y, rstd, residual_out, codes, scale, totals, minus_zeros;
  fastnorm_norm_args args = {};
  fastnorm_quant quant = {};
  NormBatch<1> batch;
};

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

struct World {
  World(const Case& c, uint64_t seed)
      : desc(desc_of(c)),
        residual(c.residual == 2 ? Type::kF32 : c.type, c.rows, c.n),
        weight(c.type, 1, c.n),
        bias(c.type, 1, c.n) {
    weight.tensor.shape = bias.tensor.shape = {c.n};
    weight.fill(seed + 1, ref::Pattern::kWeights);
    bias.fill(seed + 2, ref::Pattern::kNormal);
    residual.fill(seed + 3, ref::Pattern::kNormal);
    for (int32_t r = 0; r < c.ranks; ++r) {
      ranks.push_back(std::make_unique<Rank>(c, residual, weight, bias, ref::hash(seed, r)));
      Rank& rank = *ranks.back();
      Error error;
      const DeviceFacts device = facts();
      EXPECT_EQ(plan_one({device, norm_index(), nullptr}, &rank.args, &rank.batch, error),
                FASTNORM_OK)
          << c.name() << ": " << error.text;
    }
    const NormCall& call = ranks[0]->batch.planned().front();
    plan = plan_peer_sum(desc, *call.desc, call.plan->entry->key, c.exact, cuda::peer_table());
  }

  PeerDesc desc;
  Rows residual, weight, bias;
  std::vector<std::unique_ptr<Rank>> ranks;
  PeerPlan plan;
};

std::string run_fused(World& world, simt::PeerRanks& machine, simt::Order order) {
  std::vector<cuda::PeerNormParams> params;
  for (size_t r = 0; r < world.ranks.size(); ++r) {
    const NormCall& call = world.ranks[r]->batch.planned().front();
    params.push_back(cuda::make_peer_norm_params(machine.exchange(static_cast<int32_t>(r)),
                                                 {call.desc, call.plan, &world.plan, 77}));
  }
  return machine.run(world.plan, params, order);
}

std::string run_sum(const Case& c, World& world, simt::PeerRanks& machine) {
  std::vector<cuda::PeerSumParams> params;
  for (size_t r = 0; r < world.ranks.size(); ++r) {
    Rank& rank = *world.ranks[r];
    const NormCall& call = rank.batch.planned().front();
    rank.totals = Tensor(c.exact ? FASTNORM_DTYPE_F32 : id_of(c.type), {c.rows, c.n});
    rank.minus_zeros = Tensor(id_of(c.type), {c.n});
    PeerSum sum = {};
    sum.rows = c.rows;
    sum.columns = c.n;
    sum.x = peer_rows(*rank.args.x);
    sum.exact = c.exact;
    if (c.residual != 0) sum.residual = peer_rows(*rank.args.residual);
    sum.totals = reinterpret_cast<std::byte*>(rank.totals.data());
    if (c.exact) sum.minus_zeros = reinterpret_cast<std::byte*>(rank.minus_zeros.data());
    sum.options = 78;
    sum.norm = call.desc;
    sum.plan = &world.plan;
    params.push_back(cuda::make_peer_sum_params(machine.exchange(static_cast<int32_t>(r)), sum));
  }
  return machine.run(world.plan, params, c.order);
}

// The row of sums as it goes on.
std::vector<float> sum_of_ranks(const Case& c, const World& world, int64_t row) {
  const float* x[FASTNORM_PEER_MAX_RANKS];
  for (int32_t r = 0; r < c.ranks; ++r) x[r] = world.ranks[static_cast<size_t>(r)]->x.row(row);
  std::vector<float> sum(static_cast<size_t>(c.n));
  ref::peer_sum_model(c.type, !c.exact, x, c.ranks, c.n, sum.data());
  return sum;
}

void expect_norm(const Case& c, World& world) {
  ref::NormOptions o;
  o.dtype = c.type;
  o.kind = c.kind == FASTNORM_NORM_LAYER ? ref::Kind::kLayer : ref::Kind::kRms;
  o.rounding = c.rounded ? ref::Rounding::kNormalized : ref::Rounding::kOnce;
  o.residual_rounding =
      c.rounded ? ref::ResidualRounding::kBeforeStatistics : ref::ResidualRounding::kExact;
  o.sum_dtype = c.residual != 0 ? world.residual.type : c.type;
  o.eps = 1e-5f;
  o.weight_offset = 1.0f;
  ref::ModelScratch scratch;
  for (int64_t row = 0; row < c.rows; ++row) {
    const std::vector<float> sum = sum_of_ranks(c, world, row);
    ref::NormResult result;
    ref::norm_model(o,
                    {c.n, sum.data(), c.residual != 0 ? world.residual.row(row) : nullptr,
                     world.weight.row(0), c.bias ? world.bias.row(0) : nullptr},
                    ref::Order::kGpu, &scratch, &result);
    ref::QuantResult quantised;
    if (c.scheme >= 0) {
      ref::QuantOptions q;
      q.scheme = kSchemes[c.scheme].scheme;
      q.format = ref::is_fp4(q.scheme) ? ref::Format::kE2M1 : ref::Format::kE4M3;
      q.block_size = kSchemes[c.scheme].block;
      ref::quant_model(q, result.z.data(), c.n, c.type, 0.03125f, 1.0f, &quantised);
    }
    for (const std::unique_ptr<Rank>& rank : world.ranks) {
      std::vector<float> y(sum.size()), h(sum.size());
      const int64_t at = row * c.n;
      ref::decode_row(c.type, rank->y.data() + at * ref::bytes_of(c.type), y.data(), c.n);
      if (c.residual != 0) {
        ref::decode_row(world.residual.type,
                        rank->residual_out.data() + at * ref::bytes_of(world.residual.type),
                        h.data(), c.n);
      }
      for (size_t i = 0; i < sum.size(); ++i) {
        ASSERT_TRUE(same(y[i], ref::round_to(c.type, result.z[i])))
            << c.name() << " row " << row << " column " << i << ": " << y[i] << ", model "
            << result.z[i];
        if (c.residual != 0) {
          ASSERT_TRUE(same(h[i], ref::round_to(world.residual.type, result.sum[i])))
              << c.name() << " row " << row << " column " << i << ": sum " << h[i];
        }
      }
      float rstd = 0;
      std::memcpy(&rstd, rank->rstd.data() + row * 4, 4);
      ASSERT_TRUE(same(rstd, result.rstd)) << c.name() << " row " << row;
      if (c.scheme < 0) continue;
      std::vector<uint8_t> codes = quantised.codes;
      int64_t bytes = c.n;
      if (ref::is_fp4(kSchemes[c.scheme].scheme)) {
        bytes = c.n / 2;
        ref::pack_e2m1(quantised.codes.data(), c.n, codes.data());
      }
      ASSERT_EQ(
          std::memcmp(codes.data(), rank->codes.data() + row * bytes, static_cast<size_t>(bytes)),
          0)
          << c.name() << " row " << row;
      const auto scopes = static_cast<int64_t>(quantised.scale.size());
      if (kSchemes[c.scheme].abi == FASTNORM_QUANT_PER_TENSOR) continue;
      const bool small = !quantised.scale_bytes.empty();
      const void* const expected =
          small ? static_cast<const void*>(quantised.scale_bytes.data()) : quantised.scale.data();
      ASSERT_EQ(std::memcmp(expected, rank->scale.data() + row * scopes * (small ? 1 : 4),
                            static_cast<size_t>(scopes * (small ? 1 : 4))),
                0)
          << c.name() << " row " << row;
    }
  }
}

void expect_sums(const Case& c, World& world) {
  for (int64_t row = 0; row < c.rows; ++row) {
    std::vector<float> sum = sum_of_ranks(c, world, row);
    const Type type = c.exact ? Type::kF32 : c.type;
    if (c.exact && c.residual != 0) {
      for (int64_t i = 0; i < c.n; ++i) sum[static_cast<size_t>(i)] += world.residual.row(row)[i];
    }
    for (const std::unique_ptr<Rank>& rank : world.ranks) {
      std::vector<float> found(sum.size());
      ref::decode_row(type, rank->totals.data() + row * c.n * ref::bytes_of(type), found.data(),
                      c.n);
      for (size_t i = 0; i < sum.size(); ++i) {
        ASSERT_TRUE(same(found[i], sum[i])) << c.name() << " row " << row << " column " << i << ": "
                                            << found[i] << ", model " << sum[i];
      }
      if (!c.exact) continue;
      std::vector<float> zeros(sum.size());
      ref::decode_row(c.type, rank->minus_zeros.data(), zeros.data(), c.n);
      for (const float zero : zeros) ASSERT_TRUE(zero == 0 && std::signbit(zero)) << c.name();
    }
  }
}

// Several calls one after another, so that messages go round their slots.
void run_case(const Case& c, uint64_t seed, int calls, bool fused) {
  const PeerDesc desc = desc_of(c);
  simt::PeerRanks machine(desc);
  for (int turn = 0; turn < calls; ++turn) {
    World world(c, seed + static_cast<uint64_t>(turn) * 1000);
    ASSERT_EQ(world.plan.is_fused(), fused) << c.name();
    const std::string complaint =
        fused ? run_fused(world, machine, c.order) : run_sum(c, world, machine);
    ASSERT_EQ(complaint, "") << c.name();
    for (int32_t r = 0; r < c.ranks; ++r) {
      ASSERT_EQ(machine.control(r).stopped, 0u) << c.name();
      ASSERT_EQ(machine.control(r).calls, static_cast<uint32_t>(turn + 1)) << c.name();
    }
    if (fused) {
      expect_norm(c, world);
    } else {
      expect_sums(c, world);
    }
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
    c.shift = ref::bytes_of(c.type) * static_cast<int>(random.below(3));
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
      World world(c, 12);
      Rows weights(c.type, 2, c.n);
      weights.tensor.shape = {2, 1, c.n};
      for (size_t r = 0; r < world.ranks.size(); ++r) {
        Rank& rank = *world.ranks[r];
        for (Tensor* t : {&rank.x.tensor, &rank.residual.tensor, &rank.y, &rank.residual_out})
          t->shape = {2, 3, c.n};
        rank.rstd.shape = {2, 3};
        rank.args.x = rank.x.tensor.tensor();
        rank.args.residual = rank.residual.tensor.tensor();
        rank.args.residual_out = rank.residual_out.tensor();
        rank.args.y = rank.y.tensor();
        rank.args.rstd = rank.rstd.tensor();
        if (r == 1) rank.args.weight = weights.tensor.tensor();
        Error error;
        const DeviceFacts device = facts();
        rank.batch.count = rank.batch.calls = 0;
        ASSERT_EQ(plan_one({device, norm_index(), nullptr, true}, &rank.args, &rank.batch, error),
                  FASTNORM_OK)
            << error.text;
      }
      const NormCall& call = world.ranks[1]->batch.planned().front();
      EXPECT_TRUE(call.desc->weights_outside);
      world.plan =
          plan_peer_sum(world.desc, *call.desc, call.plan->entry->key, exact, cuda::peer_table());
      ASSERT_FALSE(world.plan.is_fused());
      simt::PeerRanks machine(world.desc);
      ASSERT_EQ(run_sum(c, world, machine), "") << c.name();
      expect_sums(c, world);
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
      ASSERT_EQ(run_sum(now, world, machine), "");
      expect_sums(now, world);
    } else {
      ASSERT_EQ(run_fused(world, machine, c.order), "");
      expect_norm(now, world);
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
    const PeerPlan plan = plan_peer_statistics(desc_of(c), tokens, cuda::peer_table());
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
  bool apart = false;  // heads of x lie apart
  float offset = 0;
  ref::Pattern pattern = ref::Pattern::kNormal;
  simt::Order order = simt::Order::kForward;

  std::string name() const {
    return std::to_string(ranks) + " ranks " + ref::name_of(type) + " weights " +
           ref::name_of(weight_type) + " tokens " + std::to_string(tokens) + " heads " +
           std::to_string(heads[0]) + "x" + std::to_string(d[0]) +
           (parts == 2 ? " and " + std::to_string(heads[1]) + "x" + std::to_string(d[1]) : "") +
           " rings " + std::to_string(rings) + (layer ? " layer" : "") +
           (rounded ? " rounded" : "") + (bias ? " bias" : "") + (own_weights ? " own" : "") +
           (in_place ? " in place" : "") + (apart ? " apart" : "") + " " + ref::name_of(pattern);
  }
  ref::NormOptions options() const {
    ref::NormOptions o;
    o.dtype = type;
    o.kind = layer ? ref::Kind::kLayer : ref::Kind::kRms;
    o.rounding = rounded ? ref::Rounding::kNormalized : ref::Rounding::kOnce;
    o.eps = 1e-5f;
    o.weight_offset = offset;
    return o;
  }
};

// A part of one rank: x and y, and its call.
struct ShardedPart {
  ShardedPart(const ShardedCase& c, int32_t part, uint64_t seed)
      : heads(c.heads[part]),
        d(c.d[part]),
        // Heads apart have a head of gap behind each.
        x(c.type, c.tokens * heads * (c.apart ? 2 : 1), d),
        y(c.type, c.tokens * heads, d),
        weight(c.weight_type, c.own_weights ? heads : 1, d),
        bias(c.type, c.own_weights ? heads : 1, d) {
    x.fill(seed, c.pattern);
    weight.fill(ref::hash(5, part), ref::Pattern::kWeights);
    bias.fill(ref::hash(6, part), ref::Pattern::kNormal);
    shape[0] = c.tokens, shape[1] = heads, shape[2] = d;
    gap[0] = 2 * heads * d, gap[1] = 2 * d, gap[2] = 1;
    x_tensor = of(x, shape, 3);
    if (c.apart) x_tensor.strides = gap;
    y_tensor = c.in_place ? x_tensor : of(y, shape, 3);
    weight_shape[0] = heads, weight_shape[1] = d;
    weight_tensor =
        of(weight, c.own_weights ? weight_shape : weight_shape + 1, c.own_weights ? 2 : 1);
    bias_tensor = of(bias, c.own_weights ? weight_shape : weight_shape + 1, c.own_weights ? 2 : 1);
    given = x.values;
  }
  ShardedPart(const ShardedPart&) = delete;

  static fastnorm_tensor of(Rows& rows, const int64_t* extents, int32_t ndim) {
    fastnorm_tensor t = *rows.tensor.tensor();
    t.shape = extents;
    t.ndim = ndim;
    return t;
  }
  // Of a token, in the order of heads.
  std::vector<float> row(int64_t token, bool apart) const {
    std::vector<float> all;
    for (int64_t h = 0; h < heads; ++h) {
      const float* const from = given.data() + (token * heads + h) * (apart ? 2 : 1) * d;
      all.insert(all.end(), from, from + d);
    }
    return all;
  }

  int64_t heads, d;
  Rows x, y, weight, bias;
  std::vector<float> given;
  int64_t shape[3], gap[3], weight_shape[2];
  fastnorm_tensor x_tensor, y_tensor, weight_tensor, bias_tensor;
};

struct ShardedWorld {
  ShardedWorld(const ShardedCase& the_case, uint64_t seed) : c(the_case) {
    Case shared;
    shared.ranks = c.ranks;
    shared.rings = c.rings;
    desc = desc_of(shared);
    for (int32_t r = 0; r < c.ranks; ++r) {
      ranks.emplace_back();
      for (int32_t p = 0; p < c.parts; ++p)
        ranks.back().push_back(std::make_unique<ShardedPart>(c, p, ref::hash(seed, r, p)));
      applies.emplace_back(std::make_unique<NormHeadsDesc>());
      describe(r);
    }
    plan = plan_peer_sharded(desc, *applies[0], cuda::peer_table());
  }

  // What src/api/peer.cpp makes of a call.
  void describe(int32_t r) {
    fastnorm_norm_heads_args shared = {};
    shared.struct_size = sizeof shared;
    fastnorm_norm_heads_part parts[2];
    const fastnorm_norm_heads_part* of[2] = {&parts[0], &parts[1]};
    const int64_t tokens[1] = {c.tokens};
    fastnorm_tensor statistic = {};
    statistic.data = reinterpret_cast<void*>(uintptr_t{1} << 61);
    statistic.device_type = FASTNORM_DEVICE_CUDA;
    statistic.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
    statistic.ndim = 1;
    statistic.shape = tokens;
    for (int32_t p = 0; p < c.parts; ++p) {
      ShardedPart& part = *ranks[static_cast<size_t>(r)][static_cast<size_t>(p)];
      parts[p] = {};
      parts[p].struct_size = sizeof parts[p];
      parts[p].flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ACROSS_HEADS;
      parts[p].kind = c.layer ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
      parts[p].rounding = c.rounded ? FASTNORM_ROUND_NORMALIZED : FASTNORM_ROUND_ONCE;
      parts[p].weight_offset = c.offset;
      parts[p].x = &part.x_tensor;
      parts[p].y = &part.y_tensor;
      parts[p].weight = &part.weight_tensor;
      if (c.bias) parts[p].bias = &part.bias_tensor;
      parts[p].rstd_in = &statistic;
      if (c.layer) parts[p].mean_in = &statistic;
    }
    Error error;
    EXPECT_EQ(check_norm_heads(&shared, of, c.parts, {FASTNORM_DEVICE_CUDA, 0},
                               applies[static_cast<size_t>(r)].get(), error),
              FASTNORM_OK)
        << c.name() << ": " << error.text;
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
          machine.exchange(r), {applies[static_cast<size_t>(r)].get(), &s,
                                FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER, &plan}));
    }
    return all;
  }

  const ShardedCase c;
  PeerDesc desc;
  std::vector<std::vector<std::unique_ptr<ShardedPart>>> ranks;
  std::vector<std::unique_ptr<NormHeadsDesc>> applies;
  PeerPlan plan;
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

void expect_sharded(ShardedWorld& world) {
  const ShardedCase& c = world.c;
  const ref::NormOptions o = c.options();
  for (int32_t p = 0; p < c.parts; ++p) {
    const auto number = static_cast<size_t>(p);
    const int64_t heads = c.heads[p], d = c.d[p];
    for (int64_t token = 0; token < c.tokens; ++token) {
      std::vector<ref::PeerPart> parts;
      for (const auto& rank : world.ranks)
        parts.push_back(part_of_row(c, rank[number]->row(token, c.apart)));
      const ref::PeerStatistic s =
          ref::peer_merge_model(o.kind, o.eps, parts.data(), c.ranks, heads * d);
      for (const auto& rank : world.ranks) {
        ShardedPart& part = *rank[number];
        const std::vector<float> row = part.row(token, c.apart);
        Rows& out = c.in_place ? part.x : part.y;
        out.load();
        for (int64_t h = 0; h < heads; ++h) {
          std::vector<float> z(static_cast<size_t>(d));
          const int64_t own = c.own_weights ? h : 0;
          const float* const bias = c.bias ? part.bias.row(own) : nullptr;
          ref::norm_tail(o, {d, row.data() + h * d, nullptr, part.weight.row(own), bias}, s.mean,
                         s.rstd, z.data());
          const float* const found = out.row((token * heads + h) * (c.in_place && c.apart ? 2 : 1));
          for (int64_t i = 0; i < d; ++i) {
            ASSERT_TRUE(same(found[i], ref::round_to(c.type, z[static_cast<size_t>(i)])))
                << c.name() << " part " << p << " token " << token << " head " << h << " column "
                << i << ": " << found[i] << ", model " << z[static_cast<size_t>(i)];
          }
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
    ASSERT_TRUE(world.plan.is_sharded()) << c.name();
    ASSERT_EQ(machine.run(world.plan, world.params(machine), c.order), "") << c.name();
    for (int32_t r = 0; r < c.ranks; ++r) {
      ASSERT_EQ(machine.control(r).stopped, 0u) << c.name();
      ASSERT_EQ(machine.control(r).calls, static_cast<uint32_t>(turn + 1)) << c.name();
    }
    expect_sharded(world);
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
      expect_sharded(world);
    } else {
      const PeerPlan plan = plan_peer_statistics(first.desc, c.tokens, cuda::peer_table());
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
  std::memset(world.ranks[0][0]->y.tensor.data(), 0x5a, 3 * 64 * 2);
  std::vector<cuda::PeerShardedParams> params = world.params(machine);
  params.pop_back();
  simt::clock_step = 200'000'000;
  ASSERT_EQ(machine.run(world.plan, params, c.order), "");
  simt::clock_step = 1000;
  EXPECT_EQ(machine.control(0).stopped, stopped_word(FASTNORM_PEER_ERROR_MISSING, 2));
  EXPECT_EQ(machine.control(0).calls, 0u);
  for (int i = 0; i < 3 * 64 * 2; ++i) ASSERT_EQ(world.ranks[0][0]->y.tensor.data()[i], 0x5a);
  machine.reset();
  ASSERT_EQ(machine.run(world.plan, world.params(machine), c.order), "");
  expect_sharded(world);
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
  for (const auto algorithm : {FASTNORM_PEER_ONE_SHOT, FASTNORM_PEER_TWO_SHOT}) {
    for (const bool exact : {false, true}) {
      Case c;
      c.rows = 3;
      c.algorithm = algorithm;
      c.exact = exact;
      World world(c, 3);
      simt::PeerRanks machine(desc_of(c));
      std::memset(world.ranks[0]->y.data(), 0x5a, static_cast<size_t>(c.rows * c.n * 2));
      const NormCall& call = world.ranks[0]->batch.planned().front();
      simt::clock_step = 200'000'000;  // a few looks at the clock
      for (int turn = 0; turn < 2; ++turn) {
        if (exact) {
          Tensor totals(FASTNORM_DTYPE_F32, {c.rows, c.n});
          PeerSum sum = {};
          sum.rows = c.rows, sum.columns = c.n, sum.exact = true;
          sum.totals = reinterpret_cast<std::byte*>(totals.data());
          sum.norm = call.desc, sum.plan = &world.plan;
          ASSERT_EQ(machine.run(world.plan,
                                std::vector{cuda::make_peer_sum_params(machine.exchange(0), sum)},
                                c.order),
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
      for (int64_t i = 0; i < c.rows * c.n * 2; ++i) ASSERT_EQ(world.ranks[0]->y.data()[i], 0x5a);
      machine.reset();
      if (exact) continue;
      ASSERT_EQ(run_fused(world, machine, c.order), "");
      expect_norm(c, world);
    }
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
    std::vector<cuda::PeerNormParams> params;
    for (size_t r = 0; r < 3; ++r) {
      const NormCall& call = world.ranks[r]->batch.planned().front();
      params.push_back(cuda::make_peer_norm_params(machine.exchange(static_cast<int32_t>(r)),
                                                   {call.desc, call.plan, &world.plan, 77}));
    }
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
