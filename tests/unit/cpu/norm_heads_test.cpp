// norm_heads on the CPU, through the C ABI: random calls against the model, byte for byte, gaps
// between rows and pages included. Also relations between calls that the header states.
#include "fastnorm/norm_heads.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "cpu/isa.h"
#include "ref/data.h"
#include "ref/norm_heads_ref.h"
#include "support/checked_call.h"
#include "support/norm_heads_call.h"
#include "support/share.h"
#include "unit/cpu/environment.h"
#include "unit/cpu/fp_mode.h"

namespace fastnorm::test {
namespace {

using ref::Type;

using support::abi_of;
using support::CheckedCall;
using support::id_of;
using Owned = support::OwnedOperand;
Owned make(const std::vector<int64_t>& shape, fastnorm_dtype_id dtype) {
  return support::make_operand(shape, dtype);
}

struct Part {
  bool across() const { return (args.flags & FASTNORM_NORM_HEADS_ACROSS_HEADS) != 0; }
  const fastnorm_norm_heads_part* get() {
    args.struct_size = sizeof args;
    args.x = abi_of(x);
    args.y = in_place ? args.x : abi_of(y);
    args.mean = abi_of(mean);
    args.rstd = abi_of(rstd);
    args.sumsq = abi_of(sumsq);
    args.cache = abi_of(cache);
    return &args;
  }

  fastnorm_norm_heads_part args = {};
  int64_t heads = 1, n = 1;
  bool in_place = false;
  Owned x, y, mean, rstd, sumsq, cache;
};

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

constexpr int kCalls = 400;

fastnorm_status run(const CheckedCall& call, fastnorm_context* context) {
  return fastnorm_norm_heads(context, &call.args<fastnorm_norm_heads_args>(),
                             call.parts<fastnorm_norm_heads_part>(), call.count(), nullptr, 0,
                             nullptr);
}

TEST(NormHeads, RandomCallsEqualTheModel) {
  for_each_isa([] {
    const Context one, three(3);
    for (int seed = 0; seed < support::share_of(kCalls) && !::testing::Test::HasFailure(); ++seed) {
      SCOPED_TRACE(seed);
      CheckedCall call(support::draw_norm_heads(
          static_cast<uint64_t>(seed),
          seed % 4 == 0 ? support::CallKind::kAligned : support::CallKind::kAny, false));
      call.expect_results(ref::Order::kCpu);
      ASSERT_EQ(run(call, seed % 3 == 0 ? three.context : one.context), FASTNORM_OK)
          << call.line() << ": " << fastnorm_last_error();
      EXPECT_EQ(call.difference(), "") << call.line();
    }
  });
}

// A call of one part. Tokens are at positions 0, 1, ..
struct OneCall {
  OneCall(Type t, int64_t count, int64_t head_count, int64_t columns, uint64_t seed = 1)
      : type(t), tokens(count) {
    args.struct_size = sizeof args;
    part.heads = head_count;
    part.n = columns;
    part.x = make(std::vector<int64_t>{tokens, head_count, columns}, id_of(type));
    std::vector<float> values(static_cast<size_t>(tokens * head_count * columns));
    ref::fill_row(ref::Pattern::kNormal, type, seed, values.data(),
                  static_cast<int64_t>(values.size()));
    part.x->set(0, values.data(), static_cast<int64_t>(values.size()));
    part.y = make(part.x->shape, id_of(type));
  }

  void norm(fastnorm_norm_kind kind, uint32_t more = 0) {
    part.args.flags |= FASTNORM_NORM_HEADS_NORM | more;
    part.args.kind = kind;
    part.args.eps = 1e-6f;
  }

  // The angles of token t are t * 10000^(-j / R).
  void rope(int64_t rope_dim, uint32_t more = 0) {
    part.args.flags |= FASTNORM_NORM_HEADS_ROPE | more;
    part.args.rope_offset = -1;
    args.rope_dim = static_cast<int32_t>(rope_dim);
    const int64_t half = rope_dim / 2;
    cos = make(std::vector<int64_t>{tokens, half}, FASTNORM_DTYPE_F32);
    sin = make(std::vector<int64_t>{tokens, half}, FASTNORM_DTYPE_F32);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t j = 0; j < half; ++j) {
        const double angle = static_cast<double>(t) *
                             std::pow(10000.0, -static_cast<double>(j) / static_cast<double>(half));
        cos->set_number(cos->place({t, j}), static_cast<float>(std::cos(angle)));
        sin->set_number(sin->place({t, j}), static_cast<float>(std::sin(angle)));
      }
    }
  }

  // A statistic of the part's rows, with a last 2 for `pairs`.
  Owned statistic(bool pairs = false) const {
    std::vector<int64_t> shape = {tokens};
    if (!part.across()) shape.push_back(part.heads);
    if (pairs) shape.push_back(2);
    return make(shape, FASTNORM_DTYPE_F32);
  }

  fastnorm_status run(fastnorm_context* context) {
    args.cos = abi_of(cos);
    args.sin = abi_of(sin);
    args.positions = abi_of(positions);
    args.slots = abi_of(slots);
    const fastnorm_norm_heads_part* parts[] = {part.get()};
    part.args.mean_in = abi_of(mean_in);
    part.args.rstd_in = abi_of(rstd_in);
    return fastnorm_norm_heads(context, &args, parts, 1, nullptr, 0, nullptr);
  }

  std::vector<float> row(const Owned& t, int64_t token, int64_t head) const {
    std::vector<float> values(static_cast<size_t>(part.n));
    ref::decode_row(type, t->now.data() + t->place({token, head}), values.data(), part.n);
    return values;
  }

  Type type;
  int64_t tokens;
  Part part;
  fastnorm_norm_heads_args args = {};
  Owned cos, sin, positions, slots, mean_in, rstd_in;
};

float number_at(const Owned& t, std::initializer_list<int64_t> index) {
  float value = 0;
  std::memcpy(&value, t->now.data() + t->place(index), sizeof value);
  return value;
}

constexpr fastnorm_norm_kind kKinds[] = {FASTNORM_NORM_RMS, FASTNORM_NORM_LAYER};
constexpr uint32_t kStyles[] = {0, FASTNORM_NORM_HEADS_ROPE_INTERLEAVED};

TEST(NormHeads, ARopeOfANormIsTwoCalls) {
  for_each_isa([] {
    const Context context;
    for (const Type type : ref::kTypes) {
      for (const int64_t columns : {64, 130, 576}) {
        for (const fastnorm_norm_kind kind : kKinds) {
          for (const uint32_t style : kStyles) {
            OneCall both(type, 5, 3, columns), rope(type, 5, 3, columns);
            both.norm(kind);
            both.rope(64, style | FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED);
            ASSERT_EQ(both.run(context.context), FASTNORM_OK) << fastnorm_last_error();
            fastnorm_norm_args norm = {};
            norm.struct_size = sizeof norm;
            norm.kind = kind;
            norm.eps = 1e-6f;
            norm.x = both.part.x->get();
            norm.y = rope.part.x->get();
            ASSERT_EQ(fastnorm_norm(context.context, &norm, nullptr, 0, nullptr), FASTNORM_OK);
            rope.rope(64, style);
            ASSERT_EQ(rope.run(context.context), FASTNORM_OK) << fastnorm_last_error();
            EXPECT_TRUE(both.part.y->now == rope.part.y->now);
          }
        }
      }
    }
  });
}

// The unit in the last place of a value of T.
double ulp(Type type, double value) {
  const int digits = type == Type::kF32 ? 23 : type == Type::kF16 ? 10 : 7;
  const int least = type == Type::kF16 ? -14 : -126;
  const int exponent = value == 0 ? least : std::max(std::ilogb(value), least);
  return std::ldexp(1.0, exponent - digits);
}

TEST(NormHeads, TheInverseUndoesRope) {
  for_each_isa([] {
    const Context context;
    for (const Type type : ref::kTypes) {
      for (const uint32_t style : kStyles) {
        OneCall there(type, 40, 3, 128, 7), back(type, 40, 3, 128);
        there.rope(96, style);
        ASSERT_EQ(there.run(context.context), FASTNORM_OK) << fastnorm_last_error();
        back.rope(96, style | FASTNORM_NORM_HEADS_ROPE_INVERSE);
        back.part.x->now = there.part.y->now;
        ASSERT_EQ(back.run(context.context), FASTNORM_OK) << fastnorm_last_error();
        EXPECT_FALSE(there.part.y->now == there.part.x->now);
        const ref::RopeOptions turn = {style != 0, false, false, 32, 48};
        const double most = type == Type::kF32 ? 4 : 2;
        for (int64_t t = 0; t < 40; ++t) {
          for (int64_t h = 0; h < 3; ++h) {
            const std::vector<float> x = there.row(there.part.x, t, h),
                                     z = back.row(back.part.y, t, h);
            for (size_t i = 0; i < 32; ++i) ASSERT_EQ(x[i], z[i]);
            for (int64_t j = 0; j < 48; ++j) {
              const ref::RopePair p = ref::rope_pair(turn, j);
              const auto a = static_cast<size_t>(p.first), b = static_cast<size_t>(p.second);
              const double larger = static_cast<double>(std::max(std::fabs(x[a]), std::fabs(x[b])));
              const double limit = most * ulp(type, larger);
              ASSERT_LE(std::fabs(static_cast<double>(x[a]) - static_cast<double>(z[a])), limit);
              ASSERT_LE(std::fabs(static_cast<double>(x[b]) - static_cast<double>(z[b])), limit);
            }
          }
        }
      }
    }
  });
}

TEST(NormHeads, ResultsLieWithinTheBoundsOfDouble) {
  for_each_isa([] {
    const Context context;
    for (const fastnorm_norm_kind kind : kKinds) {
      for (const uint32_t style : kStyles) {
        OneCall call(Type::kF32, 9, 4, 192, 3);
        call.norm(kind);
        call.rope(128, style);
        call.part.rstd = call.statistic();
        if (kind == FASTNORM_NORM_LAYER) call.part.mean = call.statistic();
        ASSERT_EQ(call.run(context.context), FASTNORM_OK) << fastnorm_last_error();
        ref::HeadOptions o;
        o.normalise = o.rope = true;
        o.turn = {style != 0, false, false, 64, 64};
        for (int64_t t = 0; t < 9; ++t) {
          for (int64_t h = 0; h < 4; ++h) {
            const std::vector<float> x = call.row(call.part.x, t, h),
                                     y = call.row(call.part.y, t, h);
            std::vector<double> exact(192), bound(192);
            const float mean = call.part.mean == nullptr ? 0 : number_at(call.part.mean, {t, h});
            ref::head_ref(
                o, {192, x.data()}, static_cast<double>(mean),
                static_cast<double>(number_at(call.part.rstd, {t, h})),
                reinterpret_cast<const float*>(call.cos->now.data() + call.cos->place({t})),
                reinterpret_cast<const float*>(call.sin->now.data() + call.sin->place({t})),
                exact.data(), bound.data());
            for (size_t i = 0; i < x.size(); ++i) {
              ASSERT_NEAR(static_cast<double>(y[i]), exact[i],
                          bound[i] + 0x1p-24 * std::fabs(exact[i]))
                  << t << ", " << h << ", " << i;
            }
          }
        }
      }
    }
  });
}

// The library has the bits of the model, as the random calls show.
TEST(NormHeads, HeadWeightsLieWithinTheBoundsOfDouble) {
  ref::Random random(7);
  const auto number = [&] {
    const float magnitude = std::ldexp(1.0f, static_cast<int>(random.below(80)) - 70);
    return magnitude * static_cast<float>(1 + random.below(1 << 23)) * 0x1p-23f *
           (random.one_in(2) ? 1.0f : -1.0f);
  };
  for (int i = 0; i < 20000; ++i) {
    const float weight = number(), scale = std::fabs(number()), factor = number();
    double bound = 0;
    const double exact =
        ref::head_weight_ref(static_cast<double>(weight), static_cast<double>(scale),
                             static_cast<double>(factor), &bound);
    ASSERT_NEAR(static_cast<double>(ref::head_weight_model(weight, scale, factor)), exact, bound)
        << weight << " * " << scale << " * " << factor;
  }
}

TEST(NormHeads, StatisticsThatAreGivenAreAsGoodAsComputed) {
  const Context context;
  for (const fastnorm_norm_kind kind : kKinds) {
    for (const uint32_t across : {0u, uint32_t{FASTNORM_NORM_HEADS_ACROSS_HEADS}}) {
      OneCall first(Type::kBF16, 6, 5, 96), second(Type::kBF16, 6, 5, 96);
      first.norm(kind, across);
      second.norm(kind, across);
      first.part.rstd = first.statistic();
      if (kind == FASTNORM_NORM_LAYER) first.part.mean = first.statistic();
      ASSERT_EQ(first.run(context.context), FASTNORM_OK) << fastnorm_last_error();
      second.rstd_in = std::move(first.part.rstd);
      second.mean_in = std::move(first.part.mean);
      ASSERT_EQ(second.run(context.context), FASTNORM_OK) << fastnorm_last_error();
      EXPECT_TRUE(first.part.y->now == second.part.y->now);
      const float doubled = 2 * number_at(second.rstd_in, {2});
      std::memcpy(second.rstd_in->now.data() + second.rstd_in->place({2}), &doubled, 4);
      ASSERT_EQ(second.run(context.context), FASTNORM_OK) << fastnorm_last_error();
      EXPECT_FALSE(first.part.y->now == second.part.y->now);
    }
  }
}

// The statistic of all heads from the sums of two halves, as on two devices.
TEST(NormHeads, SumsOfSquaresMakeAStatisticOfAllHeads) {
  const Context context;
  for (const fastnorm_norm_kind kind : kKinds) {
    const bool layer = kind == FASTNORM_NORM_LAYER;
    OneCall whole(Type::kF32, 3, 4, 64);
    whole.norm(kind, FASTNORM_NORM_HEADS_ACROSS_HEADS);
    whole.part.rstd = whole.statistic();
    ASSERT_EQ(whole.run(context.context), FASTNORM_OK) << fastnorm_last_error();
    Owned sums[2];
    for (int64_t half = 0; half < 2; ++half) {
      OneCall part(Type::kF32, 3, 2, 64);
      part.norm(kind, FASTNORM_NORM_HEADS_ACROSS_HEADS);
      for (int64_t t = 0; t < 3; ++t) {
        std::memcpy(part.part.x->now.data() + part.part.x->place({t}),
                    whole.part.x->now.data() + whole.part.x->place({t, 2 * half}), 2 * 64 * 4);
      }
      part.part.y.reset();  // the sums are the only output
      part.part.sumsq = part.statistic(layer);
      ASSERT_EQ(part.run(context.context), FASTNORM_OK) << fastnorm_last_error();
      sums[half] = std::move(part.part.sumsq);
    }
    for (int64_t t = 0; t < 3; ++t) {
      double squares = 0;
      if (layer) {
        const double a = static_cast<double>(number_at(sums[0], {t, 0})),
                     b = static_cast<double>(number_at(sums[1], {t, 0}));
        squares = static_cast<double>(number_at(sums[0], {t, 1})) +
                  static_cast<double>(number_at(sums[1], {t, 1})) + (a - b) * (a - b) * 64;
      } else {
        squares = static_cast<double>(number_at(sums[0], {t})) +
                  static_cast<double>(number_at(sums[1], {t}));
      }
      const double rstd = 1 / std::sqrt(squares / 256 + 1e-6);
      EXPECT_NEAR(static_cast<double>(number_at(whole.part.rstd, {t})), rstd, 1e-6 * rstd);
    }
  }
}

// Padding may hold NaN and have positions that no table has. Nothing of it is written.
TEST(NormHeads, PaddingIsNotLookedAt) {
  for_each_isa([] {
    const Context context;
    OneCall clean(Type::kBF16, 4, 3, 128), dirty(Type::kBF16, 4, 3, 128);
    for (OneCall* call : {&clean, &dirty}) {
      call->norm(FASTNORM_NORM_RMS);
      call->rope(128);
      call->positions = make(std::vector<int64_t>{4}, FASTNORM_DTYPE_I32);
      for (int32_t t = 0; t < 4; ++t)
        call->positions->set_number(static_cast<size_t>(t) * 4, t == 1 ? 1 << 30 : 3 - t);
      call->slots = make(std::vector<int64_t>{4}, FASTNORM_DTYPE_I32);
      for (int32_t t = 0; t < 4; ++t)
        call->slots->set_number(static_cast<size_t>(t) * 4, t == 1 ? -1 : t);
      call->part.cache = make(std::vector<int64_t>{2, 3, 3, 128}, FASTNORM_DTYPE_BF16);
    }
    std::memset(dirty.part.x->now.data() + dirty.part.x->place({1}), 0xff, 3 * 128 * 2);
    ASSERT_EQ(clean.run(context.context), FASTNORM_OK) << fastnorm_last_error();
    ASSERT_EQ(dirty.run(context.context), FASTNORM_OK) << fastnorm_last_error();
    EXPECT_TRUE(clean.part.cache->now == dirty.part.cache->now);
    EXPECT_TRUE(clean.part.y->now == dirty.part.y->now);
    const support::Operand& y = *dirty.part.y;
    for (int64_t t = 0; t < 4; ++t) {
      const bool same = std::memcmp(y.now.data() + y.place({t}), y.expected.data() + y.place({t}),
                                    3 * 128 * 2) == 0;
      EXPECT_EQ(same, t == 1) << "token " << t;
    }
  });
}

TEST(NormHeads, BadNumbersAreFoundBeforeAnythingIsWritten) {
  const Context context;
  OneCall call(Type::kF32, 4, 2, 32);
  call.rope(32);
  call.positions = make(std::vector<int64_t>{4}, FASTNORM_DTYPE_I64);
  call.slots = make(std::vector<int64_t>{4}, FASTNORM_DTYPE_I64);
  call.part.cache = make(std::vector<int64_t>{2, 3, 2, 32}, FASTNORM_DTYPE_F32);
  const auto set = [](const Owned& t, int64_t i, int64_t value) {
    t->set_number(t->place({i}), value);
  };
  for (int64_t t = 0; t < 4; ++t) set(call.positions, t, 3 - t), set(call.slots, t, t);
  const auto refused = [&](const char* text) {
    EXPECT_EQ(call.run(context.context), FASTNORM_ERROR_ARGUMENT);
    EXPECT_NE(std::strstr(fastnorm_last_error(), text), nullptr) << fastnorm_last_error();
    EXPECT_TRUE(call.part.y->now == call.part.y->expected);
    EXPECT_TRUE(call.part.cache->now == call.part.cache->expected);
  };
  set(call.positions, 3, 4);
  refused("the position of token 3");
  set(call.positions, 3, 0);
  set(call.slots, 3, 6);
  refused("slots[3] is 6");
  set(call.slots, 3, 5);
  EXPECT_EQ(call.run(context.context), FASTNORM_OK) << fastnorm_last_error();
}

// Tokens more than 2^31 elements apart, in memory with few used pages.
TEST(NormHeads, TokensFarApart) {
  constexpr int64_t kApart = (int64_t{1} << 31) + 8;
  constexpr size_t kBytes = static_cast<size_t>(kApart + 64) * 2;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space of 4 GiB";
  const Context context;
  OneCall near(Type::kBF16, 2, 1, 64), far(Type::kBF16, 2, 1, 64);
  near.norm(FASTNORM_NORM_RMS);
  near.rope(64);
  ASSERT_EQ(near.run(context.context), FASTNORM_OK) << fastnorm_last_error();
  far.norm(FASTNORM_NORM_RMS);
  far.rope(64);
  far.part.y.reset();
  far.part.in_place = true;
  far.part.x->strides[0] = kApart;
  auto* const bytes = static_cast<unsigned char*>(memory);
  for (int64_t t = 0; t < 2; ++t)
    std::memcpy(bytes + t * kApart * 2, near.part.x->now.data() + t * 128, 128);
  far.part.x->elsewhere = memory;
  const fastnorm_norm_heads_part* parts[] = {far.part.get()};
  far.args.cos = abi_of(far.cos);
  far.args.sin = abi_of(far.sin);
  ASSERT_EQ(fastnorm_norm_heads(context.context, &far.args, parts, 1, nullptr, 0, nullptr),
            FASTNORM_OK)
      << fastnorm_last_error();
  for (int64_t t = 0; t < 2; ++t)
    EXPECT_EQ(std::memcmp(bytes + t * kApart * 2, near.part.y->now.data() + t * 128, 128), 0);
  munmap(memory, kBytes);
}

TEST(FpMode, HeadsAreInThatOfTheSpecification) {
  using namespace fp_modes;
  Values x({1, 1, kColumns}, kRow), weight({kColumns}, kTinies), y({1, 1, kColumns}, kUnset);
  auto part = empty<fastnorm_norm_heads_part>();
  part.flags = FASTNORM_NORM_HEADS_NORM;
  part.x = &x.tensor, part.weight = &weight.tensor, part.y = &y.tensor;
  const auto args = empty<fastnorm_norm_heads_args>();
  const fastnorm_norm_heads_part* parts[] = {&part};
  expect_in_all_modes(y, kTinyRow, [&](fastnorm_context* context, void*, size_t) {
    return fastnorm_norm_heads(context, &args, parts, 1, nullptr, 0, nullptr);
  });
}

}  // namespace
}  // namespace fastnorm::test
