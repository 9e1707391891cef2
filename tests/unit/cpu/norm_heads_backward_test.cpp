// norm_heads_backward on the CPU, through the C ABI: random calls against the model, byte for byte,
// gaps between rows included. Also relations between calls that the header states.
#include "fastnorm/norm_heads_backward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "cpu/isa.h"
#include "fastnorm/norm_backward.h"
#include "support/checked_call.h"
#include "support/norm_heads_backward_call.h"
#include "support/share.h"
#include "unit/cpu/environment.h"
#include "unit/cpu/fp_mode.h"

namespace fastnorm::test {
namespace {

using ref::Type;
using support::abi_of;
using support::CheckedCall;
using support::GradientCallKind;
using support::id_of;
using support::make_operand;
using support::OwnedOperand;
using Parts = std::vector<const fastnorm_norm_heads_backward_part*>;
using Shape = std::vector<int64_t>;

struct Context {
  explicit Context(int32_t threads = 1) {
    fastnorm_context_options options = {};
    options.struct_size = sizeof options;
    options.num_threads = threads;
    const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
    EXPECT_EQ(fastnorm_context_create(cpu, &options, &context), FASTNORM_OK)
        << fastnorm_last_error();
  }
  ~Context() { fastnorm_context_destroy(context); }
  fastnorm_context* context = nullptr;
};

// 256-byte aligned, and full of NaN.
struct Workspace {
  explicit Workspace(uint64_t count)
      : bytes(static_cast<size_t>(count)),
        data(std::aligned_alloc(256, (static_cast<size_t>(count) + 511) / 256 * 256)) {
    std::memset(data, 0xff, bytes);
  }
  ~Workspace() { std::free(data); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  const size_t bytes;
  void* const data;
};

fastnorm_status run(const fastnorm_norm_heads_args& args, const Parts& parts,
                    fastnorm_context* context) {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  const auto count = static_cast<int32_t>(parts.size());
  const fastnorm_status status =
      fastnorm_norm_heads_backward_query(context, &args, parts.data(), count, &info);
  if (status != FASTNORM_OK) return status;
  const Workspace workspace(info.workspace_bytes);
  return fastnorm_norm_heads_backward(context, &args, parts.data(), count, workspace.data,
                                      workspace.bytes, nullptr);
}

// Calls use() with each instruction set of this machine.
template <class Use>
void for_each_isa(Use use) {
  for (const cpu::IsaKernels& isa : cpu::built_isas()) {
    if (isa.isa > cpu::machine_features().best) continue;
    SCOPED_TRACE(isa.name);
    const Variable forced("FASTNORM_CPU_ISA", isa.name);
    use();
  }
}

TEST(NormHeadsBackward, RandomCallsEqualTheModel) {
  constexpr int kCalls = 250;
  for_each_isa([] {
    const Context one, three(3);
    for (int seed = 0; seed < support::share_of(kCalls) && !::testing::Test::HasFailure(); ++seed) {
      SCOPED_TRACE(seed);
      const GradientCallKind kind = seed % 50 == 49  ? GradientCallKind::kMany
                                    : seed % 10 == 4 ? GradientCallKind::kPlain
                                    : seed % 10 == 9 ? GradientCallKind::kAligned
                                                     : GradientCallKind::kAny;
      CheckedCall call(support::draw_norm_heads_backward(static_cast<uint64_t>(seed), kind, false));
      call.expect_results(ref::Order::kCpu);
      EXPECT_EQ(call.out_of_bounds(), "") << call.line();
      const auto* const* const parts = call.parts<fastnorm_norm_heads_backward_part>();
      ASSERT_EQ(run(call.args<fastnorm_norm_heads_args>(), Parts(parts, parts + call.count()),
                    seed % 3 == 0 ? three.context : one.context),
                FASTNORM_OK)
          << call.line() << ": " << fastnorm_last_error();
      EXPECT_EQ(call.difference(), "") << call.line();
    }
  });
}

// The tensors of a part: tokens, heads and columns, all with dtype T.
struct PartOfRows {
  PartOfRows(Type t, int64_t count, int64_t head_count, int64_t columns, bool by_head)
      : type(t), tokens(count), heads(head_count), n(columns) {
    const Shape rows = {tokens, heads, n}, column = by_head ? Shape{heads, n} : Shape{n};
    for (OwnedOperand* tensor : {&dy, &x, &dx}) *tensor = filled(rows);
    for (OwnedOperand* tensor : {&weight, &dweight, &dbias}) *tensor = filled(column);
    part.struct_size = sizeof part;
    part.flags = FASTNORM_NORM_HEADS_NORM;
    part.eps = 1e-6f;
    args.struct_size = sizeof args;
  }

  OwnedOperand filled(const Shape& shape) {
    OwnedOperand t = make_operand(shape, id_of(type));
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    std::vector<float> values(static_cast<size_t>(count));
    ref::fill_row(ref::Pattern::kNormal, type, ++seed, values.data(), count);
    t->set(0, values.data(), count);
    return t;
  }

  const fastnorm_norm_heads_backward_part* get() {
    part.dy = abi_of(dy);
    part.x = abi_of(x);
    part.weight = abi_of(weight);
    part.dx = abi_of(dx);
    part.dweight = abi_of(dweight);
    part.dbias = abi_of(dbias);
    return &part;
  }

  // Tables of angles that are equal for every token, and those of the inverse rotation.
  void rope(int64_t dim, uint32_t flags) {
    part.flags |= FASTNORM_NORM_HEADS_ROPE | flags;
    args.rope_dim = static_cast<int32_t>(dim);
    cos = make_operand(Shape{tokens, dim / 2}, FASTNORM_DTYPE_F32);
    sin = make_operand(Shape{tokens, dim / 2}, FASTNORM_DTYPE_F32);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t j = 0; j < dim / 2; ++j) {
        const auto angle = static_cast<float>(t) / static_cast<float>(1 + j);
        cos->set_number(cos->place({t, j}), std::cos(angle));
        sin->set_number(sin->place({t, j}), std::sin(angle));
      }
    }
    args.cos = abi_of(cos);
    args.sin = abi_of(sin);
  }

  const Type type;
  const int64_t tokens, heads, n;
  uint64_t seed = 1;
  fastnorm_norm_heads_backward_part part = {};
  fastnorm_norm_heads_args args = {};
  OwnedOperand dy, x, weight, dx, dweight, dbias, cos, sin;
};

// The rows [tokens * heads, n], or [tokens, heads, n] with a row of the weight for each head.
TEST(NormHeadsBackward, NormAloneIsNormBackward) {
  const Context context(2);
  for (const Type type : ref::kTypes) {
    for (const fastnorm_norm_kind kind : {FASTNORM_NORM_RMS, FASTNORM_NORM_LAYER}) {
      for (const bool by_head : {false, true}) {
        PartOfRows p(type, 333, 3, 100, by_head);
        p.part.kind = kind;
        p.part.rounding = FASTNORM_ROUND_NORMALIZED;
        p.part.weight_offset = 1;
        const OwnedOperand dx = p.filled({333, 3, 100}), dweight = p.filled(p.dweight->shape),
                           dbias = p.filled(p.dbias->shape);
        p.get();
        fastnorm_norm_backward_args a = {};
        a.struct_size = sizeof a;
        a.kind = kind;
        a.eps = 1e-6f;
        a.rounding = FASTNORM_ROUND_NORMALIZED;
        a.weight_offset = 1;
        a.dy = p.part.dy, a.x = p.part.x, a.weight = p.part.weight;
        a.dx = abi_of(dx), a.dweight = abi_of(dweight), a.dbias = abi_of(dbias);
        fastnorm_info info = {};
        info.struct_size = sizeof info;
        ASSERT_EQ(fastnorm_norm_backward_query(context.context, &a, &info), FASTNORM_OK);
        const Workspace workspace(info.workspace_bytes);
        ASSERT_EQ(
            fastnorm_norm_backward(context.context, &a, workspace.data, workspace.bytes, nullptr),
            FASTNORM_OK);
        ASSERT_EQ(run(p.args, {p.get()}, context.context), FASTNORM_OK) << fastnorm_last_error();
        EXPECT_EQ(p.dx->now, dx->now);
        EXPECT_EQ(p.dweight->now, dweight->now);
        EXPECT_EQ(p.dbias->now, dbias->now);
      }
    }
  }
}

// A rope with angle 0: dv is dy, computed by the kernels of this family.
TEST(NormHeadsBackward, RopeOfNoAngleIsNormBackward) {
  const Context context;
  for (const Type type : ref::kTypes) {
    for (const bool by_head : {false, true}) {
      PartOfRows p(type, 70, 3, 96, by_head), q(type, 70, 3, 96, by_head);
      p.part.kind = q.part.kind = FASTNORM_NORM_LAYER;
      p.rope(64, FASTNORM_NORM_HEADS_ROPE_INTERLEAVED);
      for (int64_t t = 0; t < 70; ++t) {
        for (int64_t j = 0; j < 32; ++j) {
          p.cos->set_number(p.cos->place({t, j}), 1.0f);
          p.sin->set_number(p.sin->place({t, j}), 0.0f);
        }
      }
      ASSERT_EQ(run(p.args, {p.get()}, context.context), FASTNORM_OK) << fastnorm_last_error();
      ASSERT_EQ(run(q.args, {q.get()}, context.context), FASTNORM_OK) << fastnorm_last_error();
      EXPECT_EQ(p.dx->now, q.dx->now);
      EXPECT_EQ(p.dweight->now, q.dweight->now);
      EXPECT_EQ(p.dbias->now, q.dbias->now);
    }
  }
}

// Across heads with one head equals that head.
TEST(NormHeadsBackward, AcrossOneHeadIsTheHead) {
  const Context context;
  for (const Type type : ref::kTypes) {
    for (const fastnorm_norm_kind kind : {FASTNORM_NORM_RMS, FASTNORM_NORM_LAYER}) {
      PartOfRows p(type, 70, 1, 130, false), q(type, 70, 1, 130, false);
      p.part.kind = q.part.kind = kind;
      p.part.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
      ASSERT_EQ(run(p.args, {p.get()}, context.context), FASTNORM_OK) << fastnorm_last_error();
      ASSERT_EQ(run(q.args, {q.get()}, context.context), FASTNORM_OK) << fastnorm_last_error();
      EXPECT_EQ(p.dx->now, q.dx->now);
      EXPECT_EQ(p.dweight->now, q.dweight->now);
      EXPECT_EQ(p.dbias->now, q.dbias->now);
    }
  }
}

// Two accumulating calls equal one call with twice the tokens, except for one rounding.
TEST(NormHeadsBackward, AccumulateAddsOnce) {
  const Context context;
  PartOfRows p(Type::kF32, 50, 2, 64, true);
  p.rope(32, FASTNORM_NORM_HEADS_ROPE_INVERSE);
  ASSERT_EQ(run(p.args, {p.get()}, context.context), FASTNORM_OK) << fastnorm_last_error();
  const std::vector<unsigned char> once = p.dweight->now, bias_once = p.dbias->now;
  p.part.flags |= FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT | FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS;
  ASSERT_EQ(run(p.args, {p.get()}, context.context), FASTNORM_OK) << fastnorm_last_error();
  const auto twice = [](const std::vector<unsigned char>& now,
                        const std::vector<unsigned char>& before) {
    for (size_t i = 0; i + 4 <= static_cast<size_t>(2 * 64 * 4); i += 4) {
      float a = 0, b = 0;
      std::memcpy(&a, &now[i], 4);
      std::memcpy(&b, &before[i], 4);
      if (a != b + b) return false;
    }
    return true;
  };
  EXPECT_TRUE(twice(p.dweight->now, once));
  EXPECT_TRUE(twice(p.dbias->now, bias_once));
}

// dx through all steps against differences of the forward in single precision.
TEST(NormHeadsBackward, GradientIsThatOfTheForward) {
  const Context context;
  for (const uint32_t flags : {0u, uint32_t{FASTNORM_NORM_HEADS_ROPE_INTERLEAVED},
                               uint32_t{FASTNORM_NORM_HEADS_ACROSS_HEADS}}) {
    PartOfRows p(Type::kF32, 5, 2, 16, false);
    p.rope(12, flags & ~uint32_t{FASTNORM_NORM_HEADS_ACROSS_HEADS});
    p.part.flags |= flags;
    p.part.kind = FASTNORM_NORM_LAYER;
    p.part.rope_offset = 2;
    ASSERT_EQ(run(p.args, {p.get()}, context.context), FASTNORM_OK) << fastnorm_last_error();
    const OwnedOperand y = p.filled({5, 2, 16});
    fastnorm_norm_heads_part forward = {};
    forward.struct_size = sizeof forward;
    forward.flags = p.part.flags;
    forward.kind = FASTNORM_NORM_LAYER;
    forward.eps = p.part.eps;
    forward.rope_offset = 2;
    forward.x = p.part.x, forward.weight = p.part.weight, forward.y = abi_of(y);
    const fastnorm_norm_heads_part* const parts[] = {&forward};
    const auto at = [](support::Operand& t, int64_t i) {
      float f = 0;
      std::memcpy(&f, &t.now[static_cast<size_t>(4 * i)], 4);
      return f;
    };
    // The loss sum(dy * y).
    const auto loss = [&] {
      EXPECT_EQ(fastnorm_norm_heads(context.context, &p.args, parts, 1, nullptr, 0, nullptr),
                FASTNORM_OK)
          << fastnorm_last_error();
      double sum = 0;
      for (int64_t i = 0; i < 5 * 2 * 16; ++i)
        sum += static_cast<double>(at(*p.dy, i)) * static_cast<double>(at(*y, i));
      return sum;
    };
    for (int64_t i = 0; i < 5 * 2 * 16; i += 7) {
      const float before = at(*p.x, i);
      constexpr float kStep = 0x1p-6f;
      p.x->set_number(static_cast<size_t>(4 * i), before + kStep);
      const double above = loss();
      p.x->set_number(static_cast<size_t>(4 * i), before - kStep);
      const double below = loss();
      p.x->set_number(static_cast<size_t>(4 * i), before);
      const double slope = (above - below) / (2 * static_cast<double>(kStep));
      EXPECT_NEAR(static_cast<double>(at(*p.dx, i)), slope, 0.01 + 0.01 * std::fabs(slope)) << i;
    }
  }
}

TEST(FpMode, GradientsOfHeadsAreInThatOfTheSpecification) {
  using namespace fp_modes;
  Values x({1, 1, kColumns}, kRow), dy({1, 1, kColumns}, kTinyGradient), rstd({1, 1}, {1}),
      dx({1, 1, kColumns}, kUnset);
  auto part = empty<fastnorm_norm_heads_backward_part>();
  part.flags = FASTNORM_NORM_HEADS_NORM;
  part.x = &x.tensor, part.dy = &dy.tensor, part.rstd = &rstd.tensor, part.dx = &dx.tensor;
  const auto args = empty<fastnorm_norm_heads_args>();
  const fastnorm_norm_heads_backward_part* parts[] = {&part};
  expect_in_all_modes(dx, kTinyDx, [&](fastnorm_context* context, void* workspace, size_t bytes) {
    return fastnorm_norm_heads_backward(context, &args, parts, 1, workspace, bytes, nullptr);
  });
}

}  // namespace
}  // namespace fastnorm::test
