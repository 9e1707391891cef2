// The specification tests itself: conversions, orders of summation, special values. Also the
// single-precision model against the reference in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ref/data.h"
#include "ref/long_sum.h"
#include "ref/norm_model.h"
#include "ref/norm_ref.h"

namespace fastnorm::ref {
namespace {

const float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t bits(float v) { return std::bit_cast<uint32_t>(v); }

// --- conversions ---

// The value of 16 bits, by the formula of the format.
double meaning(Type type, uint32_t b) {
  const int fraction_bits = type == Type::kF16 ? 10 : 7, bias = type == Type::kF16 ? 15 : 127;
  const int exponent = static_cast<int>(b >> fraction_bits & (type == Type::kF16 ? 31 : 255));
  const int fraction = static_cast<int>(b & ((1u << fraction_bits) - 1));
  const double sign = (b & 0x8000) != 0 ? -1 : 1;
  if (exponent == 2 * bias + 1) return fraction != 0 ? kNan : sign * kInf;
  const double significand = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
  return sign * std::ldexp(significand, (exponent == 0 ? 1 : exponent) - bias - fraction_bits);
}

TEST(Conversions, Every16BitValue) {
  for (const Type type : {Type::kF16, Type::kBF16}) {
    for (uint32_t b = 0; b < 0x10000; ++b) {
      const float value = decode(type, b);
      const double expected = meaning(type, b);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(value)) << b;
        ASSERT_TRUE(std::isnan(decode(type, encode(type, value)))) << b;
        continue;
      }
      ASSERT_EQ(static_cast<double>(value), expected) << name_of(type) << " " << b;
      ASSERT_EQ(std::signbit(value), (b & 0x8000) != 0);
      ASSERT_EQ(encode(type, value), b) << name_of(type);
    }
  }
}

// Between neighbours a and b of T: below the middle a, above it b, at it the even one.
TEST(Conversions, NearestEvenBetweenAllNeighbours) {
  for (const Type type : {Type::kF16, Type::kBF16}) {
    const uint32_t inf = type == Type::kF16 ? 0x7c00 : 0x7f80;
    for (uint32_t a = 0; a < inf; ++a) {
      // The next value after the greatest one would be a power of two, which stands for Inf.
      const double low = decode(type, a);
      const double high = a + 1 < inf ? meaning(type, a + 1) : 2 * low - meaning(type, a - 1);
      const double middle = (low + high) / 2;
      const auto m = static_cast<float>(middle);
      ASSERT_EQ(static_cast<double>(m), middle);
      const uint32_t even = (a & 1) == 0 ? a : a + 1;
      ASSERT_EQ(encode(type, m), even) << name_of(type) << " " << a;
      ASSERT_EQ(encode(type, std::nextafter(m, 0.0f)), a);
      ASSERT_EQ(encode(type, std::nextafter(m, kInf)), a + 1);
      ASSERT_EQ(encode(type, -m), even | 0x8000);
      ASSERT_EQ(round_to(type, middle), a + 1 < inf || even == a ? meaning(type, even) : kInf);
      ASSERT_EQ(round_to(type, std::nextafter(middle, 0.0)), low);
    }
    EXPECT_EQ(encode(type, kInf), inf);
    EXPECT_EQ(encode(type, -kInf), inf | 0x8000);
    EXPECT_EQ(encode(type, std::numeric_limits<float>::max()), inf);
    EXPECT_EQ(encode(type, std::numeric_limits<float>::denorm_min()), 0u);
    EXPECT_EQ(encode(type, -0.0f), 0x8000u);
    EXPECT_TRUE(std::isnan(decode(type, encode(type, std::bit_cast<float>(0x7f800001u)))));
  }
  EXPECT_EQ(round_to(Type::kF32, 1.0 + 0x1p-24), 1.0);
  EXPECT_EQ(round_to(Type::kF32, 1.0 + 0x1.8p-24), 1.0 + 0x1p-23);
  EXPECT_EQ(round_to(Type::kF32, 0x1p128), kInf);
  EXPECT_EQ(round_to(Type::kF32, 0x1.8p-149), 0x1p-148);
}

// Against the formula: a multiple of the unit of the value's exponent, in doubles of all exponents.
TEST(Conversions, FromDoubleByTheFormula) {
  for (const Type type : kTypes) {
    const int precision = type == Type::kF16 ? 11 : type == Type::kBF16 ? 8 : 24;
    const int least = type == Type::kF16 ? -14 : -126, over = type == Type::kF16 ? 16 : 128;
    for (int exponent = -1074; exponent <= 1023; ++exponent) {
      for (uint64_t i = 0; i < 24; ++i) {
        const uint64_t random = hash(5, exponent, static_cast<int64_t>(i));
        const uint64_t fraction = (random >> 12) & ~((uint64_t{1} << 2 * i) - 1);  // ties, too
        const double significand = std::bit_cast<double>(uint64_t{1023} << 52 | fraction);
        const double value = std::ldexp((random & 1) != 0 ? -significand : significand, exponent);
        const int unit = std::max(exponent, least) - (precision - 1);
        const double steps = std::nearbyint(std::ldexp(value, -unit));
        double wanted = std::ldexp(steps, unit);
        if (std::fabs(wanted) >= std::ldexp(1.0, over)) wanted = std::copysign(kInf, value);
        ASSERT_EQ(std::bit_cast<uint64_t>(round_to(type, value)), std::bit_cast<uint64_t>(wanted))
            << name_of(type) << " " << value;
      }
    }
    EXPECT_TRUE(std::isnan(round_to(type, static_cast<double>(kNan))));
    for (const double kept : {0.0, -0.0, static_cast<double>(kInf), static_cast<double>(-kInf)})
      EXPECT_EQ(std::bit_cast<uint64_t>(round_to(type, kept)), std::bit_cast<uint64_t>(kept));
  }
}

TEST(LongSums, KeepWhatRoundingTakes) {
  LongSum sum;
  for (const double v : {0x1p60, 1.0, 0x1p-40, -0x1p60}) sum += v;
  EXPECT_EQ(sum.value(), 1.0 + 0x1p-40);
  EXPECT_EQ(sum.over(3), (1.0 + 0x1p-40) / 3);
  // Rows of one value have that mean, in every significand.
  for (int64_t i = 0; i < 1000; ++i) {
    const double v = std::bit_cast<double>(uint64_t{1023} << 52 | hash(9, i) >> 12);
    LongSum row;
    const int64_t n = 1 + static_cast<int64_t>(hash(9, i, 1) % 3000);
    for (int64_t k = 0; k < n; ++k) row += v;
    ASSERT_EQ(row.over(static_cast<double>(n)), v) << n;
  }
  sum += kInf;
  EXPECT_EQ(sum.value(), kInf);
  EXPECT_EQ(sum.over(3), kInf);
  sum += -kInf;
  EXPECT_TRUE(std::isnan(sum.value()));
}

TEST(Conversions, RowsAtAnyAddress) {
  const float values[] = {1.0f, -0.0f, 65504.0f, 1e-7f, 3.14159f};
  for (const Type type : kTypes) {
    for (size_t shift = 0; shift < 4; ++shift) {
      unsigned char memory[32] = {};
      float back[5];
      encode_row(type, values, memory + shift, 5);
      decode_row(type, memory + shift, back, 5);
      for (int i = 0; i < 5; ++i) EXPECT_EQ(bits(back[i]), bits(round_to(type, values[i])));
      for (size_t i = shift + 5 * static_cast<size_t>(bytes_of(type)); i < 32; ++i)
        EXPECT_EQ(memory[i], 0);
    }
  }
}

// --- orders, with sums that show which numbers meet first ---

float sum(Order order, Type type, std::vector<float> values) {
  std::vector<float> partial;
  return ordered_sum(order, type, values.data(), static_cast<int64_t>(values.size()), &partial);
}

constexpr float kBig = 0x1p25f;  // swallows a 1

TEST(Orders, GpuVectorsHaveAnEvenAndAnOddChain) {
  // f32: vectors of 4, chains (0, 2) and (1, 3).
  EXPECT_EQ(sum(Order::kGpu, Type::kF32, {kBig, 1, -kBig, 1}), 2.0f);
  EXPECT_EQ(sum(Order::kGpu, Type::kF32, {kBig, -kBig, 1, 1}), 0.0f);
  // bf16: vectors of 8, chains (0, 2, 4, 6) and (1, 3, 5, 7).
  EXPECT_EQ(sum(Order::kGpu, Type::kBF16, {kBig, 1, 1, 1, -kBig, 1, 1, 1}), 5.0f);
}

TEST(Orders, GpuFoldsTheHighestDigitFirst) {
  std::vector<float> row(16, 0.0f);  // f32: vectors 0 .. 3; 0 meets 2, 1 meets 3
  row[0] = kBig, row[8] = -kBig, row[4] = 1, row[12] = 1;
  EXPECT_EQ(sum(Order::kGpu, Type::kF32, row), 2.0f);
  EXPECT_EQ(sum(Order::kGpuLowestFirst, Type::kF32, row), 0.0f);
  row.assign(12, 0.0f);  // three vectors are four with a zero one: 0 meets 2, then 1
  row[0] = kBig, row[4] = 1, row[8] = -kBig;
  EXPECT_EQ(sum(Order::kGpu, Type::kF32, row), 1.0f);
}

TEST(Orders, CpuHas64Accumulators) {
  std::vector<float> row(128, 0.0f);
  row[0] = kBig, row[64] = -kBig, row[1] = 1;  // element i goes to accumulator i mod 64
  EXPECT_EQ(sum(Order::kCpu, Type::kF32, row), 1.0f);
  row.assign(64, 0.0f);  // f32 folds bits 5, 4, 3, 2, 1, 0
  row[0] = kBig, row[32] = -kBig, row[1] = 1;
  EXPECT_EQ(sum(Order::kCpu, Type::kF32, row), 1.0f);
  EXPECT_EQ(sum(Order::kCpuLowestFirst, Type::kF32, row), 0.0f);
  row.assign(64, 0.0f);  // bf16 folds bit 0 right after bit 5
  row[0] = kBig, row[1] = -kBig, row[16] = 1;
  EXPECT_EQ(sum(Order::kCpu, Type::kBF16, row), 1.0f);
  EXPECT_EQ(sum(Order::kCpu, Type::kF16, row), 0.0f);
}

TEST(Orders, CpuAddsChunksInOrder) {
  std::vector<float> row(3 * 16384, 0.0f);
  row[0] = kBig, row[16384] = 1, row[2 * 16384] = -kBig;
  EXPECT_EQ(sum(Order::kCpu, Type::kF32, row), 0.0f);
  row[16384] = -kBig, row[2 * 16384] = 1;
  EXPECT_EQ(sum(Order::kCpu, Type::kF32, row), 1.0f);
}

TEST(Orders, AZeroSumIsPlusZero) {
  for (const Order order : {Order::kGpu, Order::kCpu, Order::kSequential}) {
    for (const int64_t n : {1, 3, 8, 100}) {
      const std::vector<float> row(static_cast<size_t>(n), -0.0f);
      EXPECT_EQ(bits(sum(order, Type::kF32, row)), 0u);
    }
  }
}

TEST(Orders, ProductsEnterByFma) {
  std::vector<float> partial;
  // The square of 1 + 2^-12 is 1 + 2^-11 + 2^-24: fma keeps the last bit until the sum is rounded.
  const float v = 1.0f + 0x1p-12f;
  const float values[] = {0x1p-12f, 0, v, 0};  // 2^-24 + v * v = 1 + 2^-11 + 2^-23
  EXPECT_EQ(ordered_sum_of_squares(Order::kGpu, Type::kF32, values, 4, &partial),
            1.0f + 0x1p-11f + 0x1p-23f);
  EXPECT_EQ(v * v + 0x1p-24f, 1.0f + 0x1p-11f) << "two roundings would lose it";
}

// --- rows with a known result ---

struct Problem {
  NormOptions options;
  std::vector<float> x, residual, weight, bias;

  NormRow row() const {
    const auto data = [](const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); };
    return {static_cast<int64_t>(x.size()), x.data(), data(residual), data(weight), data(bias)};
  }
  NormResult operator()(Order order = Order::kGpu) const {
    ModelScratch scratch;
    NormResult result;
    norm_model(options, row(), order, &scratch, &result);
    return result;
  }
};

Problem rms(std::vector<float> x, float eps) {
  Problem run;
  run.x = std::move(x);
  run.options.eps = eps;
  return run;
}
Problem layer(std::vector<float> x, float eps) {
  Problem run = rms(std::move(x), eps);
  run.options.kind = Kind::kLayer;
  return run;
}

TEST(Model, ByHand) {
  NormResult r = rms({3, 4, 0, 0}, 0)();  // mean of squares 6.25
  EXPECT_EQ(r.rstd, 0.4f);
  EXPECT_EQ(r.z[0], 3 * 0.4f);
  EXPECT_EQ(r.z[1], 4 * 0.4f);
  r = layer({1, 3, 1, 3}, 0)();  // mean 2, variance 1
  EXPECT_EQ(r.mean, 2.0f);
  EXPECT_EQ(r.rstd, 1.0f);
  EXPECT_EQ(r.z, (std::vector<float>{-1, 1, -1, 1}));
  Problem run = layer({1, 3, 1, 3}, 3);  // 1 / sqrt(1 + 3)
  run.weight = {2, 2, 4, 8};
  run.bias = {1, 1, 1, 1};
  run.options.weight_offset = 1;
  EXPECT_EQ(run().z, (std::vector<float>{-0.5f, 2.5f, -1.5f, 5.5f}));
}

TEST(Model, ResidualRoundings) {
  Problem run = rms({256, 0}, 0);
  run.residual = {1, 0};  // 257 is not a bf16 value: 256
  run.options.dtype = run.options.sum_dtype = Type::kBF16;
  EXPECT_EQ(run().sum[0], 257.0f);
  const float exact = run().rstd;
  EXPECT_EQ(run().z[0], 257 * exact);
  run.options.residual_rounding = ResidualRounding::kBeforeApply;
  EXPECT_EQ(run().rstd, exact) << "statistics of the sum";
  EXPECT_EQ(run().z[0], 256 * exact) << "t of the rounded sum";
  run.options.residual_rounding = ResidualRounding::kBeforeStatistics;
  EXPECT_GT(run().rstd, exact);
  EXPECT_EQ(run().sum[0], 257.0f) << "residual_out is rounded when it is stored";
  run.options.sum_dtype = Type::kF32;
  EXPECT_EQ(run().rstd, exact) << "R = f32 rounds nothing";
  run.residual.clear();
  run.x = {257, 0};
  run.options.sum_dtype = Type::kBF16;
  EXPECT_EQ(run().rstd, exact) << "without a residual nothing is rounded";
}

TEST(Model, EveryStepRoundsWhatItSays) {
  Problem run = layer({1, 2, 4, 8.0625f}, 0);
  run.options.dtype = Type::kBF16;
  run.options.rounding = Rounding::kEveryStep;
  for (const float x : {1.0f, 2.0f, 4.0f}) ASSERT_EQ(round_to(Type::kBF16, x), x);
  run.x[3] = 8.0f;
  const NormResult r = run();
  const Type t = Type::kBF16;
  const float mean = round_to(t, 15.0f * 0.25f);
  EXPECT_EQ(r.mean, mean);
  float squares = 0;
  for (const float x : run.x) squares += round_to(t, round_to(t, x - mean) * round_to(t, x - mean));
  const float rstd = round_to(t, 1.0f / std::sqrt(round_to(t, squares * 0.25f)));
  EXPECT_EQ(r.rstd, rstd);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(r.z[i], round_to(t, round_to(t, run.x[i] - mean) * rstd)) << i;
  }
}

TEST(Model, SpecialValues) {
  for (const Order order : {Order::kGpu, Order::kCpu}) {
    // A zero row.
    NormResult r = rms({0, 0, -0.0f}, 0.25f)(order);
    EXPECT_EQ(r.rstd, 2.0f);
    EXPECT_EQ(bits(r.z[0]), bits(0.0f));
    EXPECT_EQ(bits(r.z[2]), bits(-0.0f));
    r = rms({0, 0, 0}, 0)(order);
    EXPECT_EQ(r.rstd, kInf);
    EXPECT_TRUE(std::isnan(r.z[1])) << "0 * Inf is not hidden";
    r = layer({0, 0}, 0.25f)(order);
    EXPECT_EQ(r.rstd, 2.0f);
    EXPECT_EQ(r.mean, 0.0f);
    // NaN and Inf.
    for (const Problem& run :
         {rms({1, kNan, 2}, 1), layer({1, kNan, 2}, 1), layer({1, kInf, 2}, 1)}) {
      r = run(order);
      EXPECT_TRUE(std::isnan(r.rstd));
      for (const float z : r.z) EXPECT_TRUE(std::isnan(z));
    }
    r = rms({1, -kInf, -2}, 1)(order);
    EXPECT_EQ(r.rstd, 0.0f);
    EXPECT_EQ(bits(r.z[0]), bits(0.0f));
    EXPECT_TRUE(std::isnan(r.z[1]));
    EXPECT_EQ(bits(r.z[2]), bits(-0.0f));
    // Squares that overflow, sums that do.
    r = rms({1e20f, -1e20f, 1}, 1)(order);
    EXPECT_EQ(r.rstd, 0.0f);
    EXPECT_EQ(bits(r.z[1]), bits(-0.0f));
    Problem f16 = rms(std::vector<float>(8, 256), 1);
    f16.options.dtype = Type::kF16;
    EXPECT_GT(f16(order).rstd, 0.0f);
    f16.options.rounding = Rounding::kEveryStep;
    EXPECT_EQ(f16(order).rstd, 0.0f) << "the square of 256 is Inf in f16";
    // One column.
    r = rms({3}, 7)(order);
    EXPECT_EQ(r.z[0], 3 * (1 / std::sqrt(16.0f)));
    r = layer({3}, 0.25f)(order);
    EXPECT_EQ(r.rstd, 2.0f);
    EXPECT_EQ(r.z[0], 0.0f);
    // Subnormals are kept.
    r = rms({0x1p-140f, -0x1p-149f}, 1)(order);
    EXPECT_EQ(r.rstd, 1.0f);
    EXPECT_EQ(r.z[1], -0x1p-149f);
  }
}

TEST(Model, RowsOfOneValueAreExact) {
  Random random(17);
  for (const Order order : {Order::kGpu, Order::kCpu}) {
    for (const Type type : kTypes) {
      for (const int64_t n : {1, 2, 3, 7, 9, 64, 127, 1000, 4097, 32769}) {
        const auto count = static_cast<size_t>(n);
        std::vector<float> x(count);
        if (n == 7) {
          std::fill(x.begin(), x.end(), round_to(type, type == Type::kF16 ? 60000 : 101325.0f));
        } else {
          fill_row(Pattern::kConstant, type, random.next(), x.data(), n);
        }
        Problem run = layer(x, 1e-5f);
        run.options.dtype = run.options.sum_dtype = type;
        run.weight.assign(count, 1.5f);
        run.bias.assign(count, -0.375f);
        const NormResult r = run(order);
        EXPECT_EQ(r.mean, x[0]) << n;
        EXPECT_EQ(r.rstd, 1.0f / std::sqrt(1e-5f)) << n;
        EXPECT_EQ(r.z, run.bias) << n << " of " << x[0];
        run.options.eps = 0;
        EXPECT_TRUE(std::isnan(run(order).z[0])) << "0 * Inf is not hidden";
      }
    }
  }
}

TEST(Model, TheMeanIsCorrected) {
  // An outlier at the front, and large means: its rounding, and the errors of a sum of small
  // numbers.
  for (const Order order : {Order::kGpu, Order::kCpu}) {
    for (int power = 0; power <= 12; ++power) {
      std::vector<float> x(1000);
      fill_row(Pattern::kNormal, Type::kF32, hash(31, power), x.data(), 1000);
      for (float& v : x) v += std::ldexp(1.0f, power);
      if (power % 3 == 0) x[0] = 3e6f;
      double sum = 0, distance = 0;
      for (const float v : x) sum += static_cast<double>(v);
      const double exact = sum / 1000;
      for (const float v : x) distance += std::fabs(static_cast<double>(v) - exact) / 1000;
      const double error = static_cast<double>(layer(x, 0)(order).mean) - exact;
      EXPECT_LE(std::fabs(error), 0x1p-24 * (std::fabs(exact) + 8 * distance)) << power;
    }
  }
}

TEST(Model, LayerRowsThatOverflow) {
  for (const Order order : {Order::kGpu, Order::kCpu}) {
    // a - a0 overflows, and so does its sum.
    EXPECT_TRUE(std::isnan(layer({3e38f, -3e38f}, 1)(order).z[0]));
    std::vector<float> x(256, 3e38f);
    x[0] = 0;
    EXPECT_TRUE(std::isnan(layer(x, 1)(order).z[0]));
    // Only the squares overflow.
    const NormResult r = layer({1e20f, -1e20f, 1e20f, -1e20f}, 1)(order);
    EXPECT_EQ(r.mean, 0.0f);
    EXPECT_EQ(r.rstd, 0.0f);
    EXPECT_EQ(r.z[0], 0.0f);
    // A row of one value has no sum that overflows.
    EXPECT_EQ(layer(std::vector<float>(256, 3e38f), 1)(order).z[255], 0.0f);
  }
}

TEST(Model, TheOffsetIsAddedInF32) {
  Problem run = rms({1, 1, 1, 1}, 0);
  run.weight = {0.00390625f, 1, -0.0f, 3};  // 1 + 2^-8 is not a bf16 value
  run.options.dtype = Type::kBF16;
  run.options.weight_offset = 1;
  EXPECT_EQ(run().z[0], 1.00390625f);
  run.options.weight_offset = 0;
  EXPECT_EQ(bits(run().z[2]), bits(0.0f)) << "-0 + 0 is +0: the offset is always added";
}

// --- the model against the reference in double ---

struct Tally {
  int64_t rows = 0, bounded = 0, elements = 0, open = 0, outside = 0;
};

void compare_row(const NormOptions& options, const NormRow& row, Order order, Tally* tally) {
  ModelScratch scratch;
  NormResult r;
  norm_model(options, row, order, &scratch, &r);
  const NormBounds b = norm_bounds(options, row, order);
  ++tally->rows;
  if (b.statistics_valid) {
    tally->outside += !b.rstd.holds(r.rstd);
    tally->outside += options.kind == Kind::kLayer && !b.mean.holds(r.mean);
  }
  if (!b.y_valid) return;
  ++tally->bounded;
  for (size_t i = 0; i < b.y.size(); ++i) {
    ++tally->elements;
    tally->open += b.y[i].low != b.y[i].high;
    tally->outside += !b.y[i].holds(round_to(options.dtype, r.z[i]));
  }
}

TEST(Model, StaysWithinTheBoundsOfTheReference) {
  constexpr int64_t kSizes[] = {1, 2, 9, 64, 127, 576, 1000, 4096, 16385, 40000};
  Random random(11);
  for (const Order order : {Order::kGpu, Order::kCpu}) {
    for (const Type type : kTypes) {
      for (const Kind kind : {Kind::kRms, Kind::kLayer}) {
        for (int rounding = 0; rounding < kRoundings; ++rounding) {
          Tally tally;
          for (int trial = 0; trial < 40; ++trial) {
            const auto n =
                static_cast<size_t>(trial < 38 ? random.of(kSizes) % 5000 + 1 : kSizes[8]);
            std::vector<float> x(n), residual(n), weight(n), bias(n);
            const Pattern pattern = trial % 2 == 0 ? Pattern::kNormal
                                    : trial % 4 == 1
                                        ? Pattern::kLargeMean
                                        : static_cast<Pattern>(random.below(kPatterns));
            const auto count = static_cast<int64_t>(n);
            fill_row(pattern, type, random.next(), x.data(), count);
            fill_row(Pattern::kNormal, type, random.next(), residual.data(), count);
            fill_row(Pattern::kWeights, type, random.next(), weight.data(), count);
            fill_row(Pattern::kNormal, type, random.next(), bias.data(), count);
            NormOptions options{type,
                                kind,
                                static_cast<Rounding>(rounding),
                                static_cast<ResidualRounding>(random.below(3)),
                                type,
                                random.one_in(2) ? 1e-6f : 1e-3f,
                                random.one_in(2) ? 1.0f : 0.0f};
            const NormRow row{count, x.data(), random.one_in(2) ? residual.data() : nullptr,
                              weight.data(), random.one_in(2) ? bias.data() : nullptr};
            compare_row(options, row, order, &tally);
          }
          const std::string what =
              std::string(name_of(type)) + (kind == Kind::kRms ? " rms" : " layer") + " rounding " +
              std::to_string(rounding) + " order " + std::to_string(static_cast<int>(order));
          EXPECT_EQ(tally.outside, 0) << what;
          // Bounds that contain nothing, or everything, prove nothing.
          EXPECT_GT(tally.bounded, tally.rows / 3) << what;
          if (type == Type::kBF16 && kind == Kind::kRms) {
            EXPECT_LT(tally.open, tally.elements / 10)
                << what << ": the bounds leave too much open";
          }
        }
      }
    }
  }
}

TEST(Reference, NoticesAWrongStatistic) {
  // E[x^2] - E[x]^2, on a row with mean / sigma 2^10, loses more than the bounds allow.
  std::vector<float> x(4096);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = 1024.0f + (i % 2 == 0 ? 1.0f : -1.0f) + 0x1p-13f * static_cast<float>(i % 7);
  NormOptions options;
  options.kind = Kind::kLayer;
  const NormRow row{4096, x.data(), nullptr, nullptr, nullptr};
  const NormBounds bounds = norm_bounds(options, row, Order::kGpu);
  ASSERT_TRUE(bounds.statistics_valid);
  float sum = 0, squares = 0;
  for (const float v : x) sum += v, squares = std::fma(v, v, squares);
  const float mean = sum / 4096, variance = squares / 4096 - mean * mean;
  EXPECT_FALSE(bounds.rstd.holds(1.0f / std::sqrt(variance)));
}

TEST(Reference, LongestPath) {
  EXPECT_EQ(longest_path(Order::kGpu, Type::kBF16, 4096), 14);
  EXPECT_EQ(longest_path(Order::kCpu, Type::kBF16, 4096), 71);
  EXPECT_EQ(longest_path(Order::kGpu, Type::kF32, 1), 3);
}

// A wrong fold must change rstd. Otherwise the comparison of bits would prove little.
TEST(Sensitivity, WrongFoldsShow) {
  constexpr int kRows = 1000;
  for (const int64_t n : {64, 576, 1024}) {
    std::vector<float> x(static_cast<size_t>(n));
    NormOptions options;
    options.dtype = Type::kBF16;
    options.eps = 1e-6f;
    int gpu = 0, cpu = 0, sequential = 0;
    for (int r = 0; r < kRows; ++r) {
      fill_row(Pattern::kNormal, Type::kBF16, hash(21, n, r), x.data(), n);
      ModelScratch scratch;
      NormResult result;
      const NormRow row{n, x.data(), nullptr, nullptr, nullptr};
      const auto rstd = [&](Order order) {
        norm_model(options, row, order, &scratch, &result);
        return result.rstd;
      };
      const float right = rstd(Order::kGpu);
      gpu += right != rstd(Order::kGpuLowestFirst);
      sequential += right != rstd(Order::kSequential);
      cpu += rstd(Order::kCpu) != rstd(Order::kCpuLowestFirst);
    }
    EXPECT_GE(gpu, kRows / 20) << n;
    EXPECT_GE(cpu, kRows / 20) << n;
    EXPECT_GE(sequential, kRows / 20) << n;
  }
}

// --- data ---

TEST(Data, RepeatsAndVaries) {
  std::vector<float> a(64), b(64);
  for (int p = 0; p <= kPatterns; ++p) {
    const auto pattern = static_cast<Pattern>(p);
    for (const Type type : kTypes) {
      fill_row(pattern, type, 5, a.data(), 64);
      fill_row(pattern, type, 5, b.data(), 64);
      EXPECT_EQ(std::memcmp(a.data(), b.data(), sizeof(float) * 64), 0) << name_of(pattern);
      for (const float v : a) {
        if (!std::isnan(v)) {
          EXPECT_EQ(bits(round_to(type, v)), bits(v))
              << name_of(pattern) << " is not in " << name_of(type);
        }
      }
    }
  }
  fill_row(Pattern::kNormal, Type::kF32, 5, a.data(), 64);
  fill_row(Pattern::kNormal, Type::kF32, 6, b.data(), 64);
  EXPECT_NE(a, b);
}

TEST(Data, PatternsAreWhatTheySay) {
  std::vector<float> row(1000);
  const auto fill = [&](Pattern p, Type t) { fill_row(p, t, 9, row.data(), 1000); };
  fill(Pattern::kNormal, Type::kF32);
  double sum = 0, squares = 0;
  for (const float v : row) sum += v, squares += static_cast<double>(v) * v;
  EXPECT_NEAR(sum / 1000, 0, 0.1);
  EXPECT_NEAR(squares / 1000, 1, 0.15);
  fill(Pattern::kHuge, Type::kBF16);
  EXPECT_EQ(row[0] * row[0], kInf);
  fill(Pattern::kTiny, Type::kF32);
  EXPECT_EQ(row[0] * row[0], 0.0f);
  EXPECT_NE(row[0], 0.0f);
  fill(Pattern::kSubnormal, Type::kBF16);
  for (const float v : row) EXPECT_LT(std::fabs(v), 0x1p-126f);
  fill(Pattern::kOneNan, Type::kF16);
  EXPECT_EQ(std::count_if(row.begin(), row.end(), [](float v) { return std::isnan(v); }), 1);
  fill(Pattern::kOneInf, Type::kF16);
  EXPECT_EQ(std::count_if(row.begin(), row.end(), [](float v) { return std::isinf(v); }), 1);
}

}  // namespace
}  // namespace fastnorm::ref
