// The specification of quantised outputs tests itself: every code of every format, the scale rules
// with special values, and layouts. Also the single-precision model against its bounds.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "ref/data.h"
#include "ref/norm_model.h"
#include "ref/quant.h"
#include "support/share.h"

namespace fastnorm::ref {
namespace {

constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kLeast = std::numeric_limits<float>::denorm_min();
const float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t bits(float v) { return std::bit_cast<uint32_t>(v); }

// --- codes ---

constexpr Format kFloats[] = {Format::kE4M3, Format::kE5M2, Format::kE2M1};

constexpr int greatest_code(Format f) {
  return f == Format::kE4M3 ? 0x7e : f == Format::kE5M2 ? 0x7b : f == Format::kI8 ? 127 : 7;
}
constexpr int sign_of(Format f) { return f == Format::kE2M1 ? 8 : 0x80; }
constexpr int nan_code(Format f) { return f == Format::kI8 ? 0 : f == Format::kE2M1 ? 7 : 0x7f; }

// The magnitude of a code, computed differently from the specification.
double meaning(Format format, int code) {
  constexpr double kE2M1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  if (format == Format::kE2M1) return kE2M1[code];
  if (format == Format::kE5M2) return decode_f16(static_cast<uint32_t>(code) << 8);
  if (code < 8) return code * 0x1p-9;
  return (1 + (code & 7) / 8.0) * std::pow(2.0, (code >> 3) - 7);
}

TEST(QuantCodes, EveryCode) {
  for (const Format format : kFloats) {
    const int sign = sign_of(format);
    for (int code = 0; code <= greatest_code(format); ++code) {
      const double value = meaning(format, code);
      ASSERT_EQ(decode(format, static_cast<uint8_t>(code)), value) << name_of(format) << code;
      ASSERT_EQ(decode(format, static_cast<uint8_t>(code | sign)), -value);
      ASSERT_TRUE(std::signbit(decode(format, static_cast<uint8_t>(code | sign))));
      ASSERT_EQ(encode(format, value), code) << name_of(format);
      ASSERT_EQ(encode(format, -value), code | sign) << name_of(format);
    }
    EXPECT_EQ(decode(format, static_cast<uint8_t>(greatest_code(format))), qmax(format));
  }
  for (int v = -128; v <= 127; ++v) {
    const auto code = static_cast<uint8_t>(v);
    ASSERT_EQ(decode(Format::kI8, code), v);
    ASSERT_EQ(encode(Format::kI8, v), code);
  }
  for (const int sign : {0, 0x80}) {
    EXPECT_TRUE(std::isnan(decode(Format::kE4M3, static_cast<uint8_t>(sign | 0x7f))));
    EXPECT_TRUE(std::isinf(decode(Format::kE5M2, static_cast<uint8_t>(sign | 0x7c))));
    for (int code = 0x7d; code <= 0x7f; ++code)
      EXPECT_TRUE(std::isnan(decode(Format::kE5M2, static_cast<uint8_t>(sign | code))));
  }
}

// Between neighbours a and a + 1: below the middle a, above it a + 1, at it the even one.
TEST(QuantCodes, NearestEvenBetweenAllNeighbours) {
  for (const Format format : kFloats) {
    const int sign = sign_of(format);
    for (int a = 0; a < greatest_code(format); ++a) {
      const auto middle = static_cast<float>((meaning(format, a) + meaning(format, a + 1)) / 2);
      ASSERT_EQ(middle * 2.0, meaning(format, a) + meaning(format, a + 1));
      const int even = a % 2 == 0 ? a : a + 1;
      ASSERT_EQ(encode(format, middle), even) << name_of(format) << " " << a;
      ASSERT_EQ(encode(format, std::nextafter(middle, 0.0f)), a) << name_of(format);
      ASSERT_EQ(encode(format, std::nextafter(middle, kInf)), a + 1) << name_of(format);
      ASSERT_EQ(encode(format, -middle), even | sign) << name_of(format) << " " << a;
      ASSERT_EQ(encode(format, std::nextafter(-middle, 0.0f)), a | sign) << name_of(format);
      ASSERT_EQ(encode(format, std::nextafter(-middle, -kInf)), (a + 1) | sign);
      // The middle is exact in double: nothing may round twice.
      ASSERT_EQ(encode(format, std::nextafter(static_cast<double>(middle), 0.0)), a);
      ASSERT_EQ(encode(format, std::nextafter(static_cast<double>(middle), 1e9)), a + 1);
    }
  }
  for (int a = -128; a < 127; ++a) {
    const float middle = static_cast<float>(a) + 0.5f;
    const auto code = [](int v) { return static_cast<uint8_t>(v); };
    ASSERT_EQ(encode(Format::kI8, middle), code(a % 2 == 0 ? a : a + 1)) << a;
    ASSERT_EQ(encode(Format::kI8, std::nextafter(middle, -kInf)), code(a)) << a;
    ASSERT_EQ(encode(Format::kI8, std::nextafter(middle, kInf)), code(a + 1)) << a;
  }
}

TEST(QuantCodes, TiesOfE2M1) {
  constexpr double kTies[][2] = {{0.25, 0}, {0.75, 1}, {1.25, 1}, {1.75, 2},
                                 {2.5, 2},  {3.5, 4},  {5, 4}};
  for (const auto& [tie, to] : kTies)
    EXPECT_EQ(decode(Format::kE2M1, encode(Format::kE2M1, tie)), to);
}

// For all exponents, no other code is nearer.
TEST(QuantCodes, NoOtherCodeIsNearer) {
  Random random(31);
  for (const Format format : kFloats) {
    for (int trial = 0; trial < 20000; ++trial) {
      const auto exponent = static_cast<uint32_t>(random.below(40) + 105);
      const auto pattern = static_cast<uint32_t>(random.next());
      const double v = std::bit_cast<float>((pattern & 0x807fffffu) | exponent << 23);
      const double got = decode(format, encode(format, v));
      for (int code = 0; code <= greatest_code(format); ++code) {
        const double other = std::copysign(meaning(format, code), v);
        ASSERT_LE(std::fabs(got - v), std::fabs(other - v)) << name_of(format) << " " << v;
      }
    }
  }
}

TEST(QuantCodes, SaturationAndSpecialValues) {
  for (const Format format : kFloats) {
    const int greatest = greatest_code(format), sign = sign_of(format);
    const float q = qmax(format);
    for (const float v :
         {q, std::nextafter(q, kInf), q * 1.04f, q * 1.08f, q * 2, 1e30f, kMax, kInf}) {
      EXPECT_EQ(encode(format, v), greatest) << name_of(format) << " " << v;
      EXPECT_EQ(encode(format, -v), greatest | sign) << name_of(format) << " " << v;
    }
    EXPECT_EQ(encode(format, std::nextafter(q, 0.0f)), greatest);
    EXPECT_EQ(encode(format, kNan), nan_code(format));
    EXPECT_EQ(encode(format, -kNan), nan_code(format)) << "NaN has one code";
    EXPECT_EQ(encode(format, std::bit_cast<float>(0xff800001u)), nan_code(format));
    EXPECT_EQ(encode(format, 0.0f), 0);
    EXPECT_EQ(encode(format, -0.0f), sign);
    EXPECT_EQ(encode(format, kLeast), 0);
    EXPECT_EQ(encode(format, -kLeast), sign) << "rounds to -0";
  }
  const auto i8 = [](float v) { return static_cast<int8_t>(encode(Format::kI8, v)); };
  for (const float v : {127.0f, 127.49f, 127.5f, 128.0f, 1e30f, kInf}) EXPECT_EQ(i8(v), 127) << v;
  for (const float v : {-127.5f, -128.0f, -128.5f, -129.0f, -1e30f, -kInf})
    EXPECT_EQ(i8(v), -128) << v;
  EXPECT_EQ(i8(-127.49f), -127);
  EXPECT_EQ(i8(kNan), 0);
  EXPECT_EQ(i8(-0.0f), 0);
  EXPECT_EQ(i8(-0.5f), 0);
}

TEST(QuantCodes, Order) {
  for (const Format format : kFloats) {
    const int sign = sign_of(format), greatest = greatest_code(format);
    const auto place = [&](int code) { return code_order(format, static_cast<uint8_t>(code)); };
    for (int a = 0; a < greatest; ++a) {
      EXPECT_LT(place(a), place(a + 1));
      EXPECT_GT(place(a | sign), place((a + 1) | sign));
    }
    EXPECT_LT(place(sign), place(0));
    if (format != Format::kE2M1) {
      EXPECT_GT(place(0x7f), place(greatest));
    }
  }
  EXPECT_LT(code_order(Format::kI8, 0x80), code_order(Format::kI8, 0xff));
  EXPECT_LT(code_order(Format::kI8, 0xff), code_order(Format::kI8, 0));
}

// --- scales that are powers of two ---

// Every significand of one exponent, where roundings and limits are. The definition covers all
// others.
TEST(QuantScales, ExponentOfEverySignificand) {
  for (const Format format : {Format::kE4M3, Format::kE5M2, Format::kE2M1}) {
    const float q = qmax(format), inverse = 1.0f / q;
    int64_t logarithm = 0, product = 0;
    const auto step = static_cast<uint32_t>(fastnorm::support::share());
    for (uint32_t fraction = 0; fraction < 1u << 23; fraction += step) {
      const float a = std::bit_cast<float>(0x3f800000u | fraction);
      const int e = scale_exponent(format, a);
      logarithm += e != static_cast<int>(std::ceil(std::log2(static_cast<double>(a) / q)));
      // As in Transformer Engine: the exponent of the rounded product with 1 / QMAX, plus one
      // unless it is a power of two.
      const uint32_t p = bits(a * inverse);
      product += e != static_cast<int>(p >> 23) - 127 + ((p & 0x7fffffu) != 0 ? 1 : 0);
    }
    EXPECT_EQ(logarithm, 0) << name_of(format);
    if (format != Format::kE2M1) {
      EXPECT_EQ(product, 0) << name_of(format);
    }
  }
}

TEST(QuantScales, ExponentByDefinition) {
  Random random(32);
  for (const Format format : {Format::kE4M3, Format::kE5M2, Format::kE2M1}) {
    const double q = qmax(format);
    int64_t wrong = 0, limited = 0;
    const auto check = [&](float a) {
      const int e = scale_exponent(format, a);
      wrong += e < -127 || e > 127;
      wrong += static_cast<double>(a) > q * std::ldexp(1, e);
      wrong += e > -127 && static_cast<double>(a) <= q * std::ldexp(1, e - 1);
      limited += e == -127;
    };
    for (int trial = 0; trial < 1 << 20; ++trial) {
      const auto a = std::bit_cast<float>(static_cast<uint32_t>(random.next()) & 0x7fffffffu);
      if (std::isfinite(a)) check(a);
    }
    for (int e = -149; e < 128; ++e) {  // beside each boundary, subnormals too
      for (const double significand : {1.0, 1.5, 1.75}) {
        const auto a = static_cast<float>(std::ldexp(significand, e));
        check(a), check(std::nextafter(a, 0.0f));
        if (a < kMax) check(std::nextafter(a, kMax));
      }
    }
    EXPECT_EQ(wrong, 0) << name_of(format);
    EXPECT_GT(limited, 1000);
    EXPECT_EQ(scale_exponent(format, 0), -127);
    EXPECT_EQ(scale_exponent(format, kInf), 127);
    EXPECT_EQ(scale_exponent(format, kMax), format == Format::kE4M3   ? 120
                                            : format == Format::kE5M2 ? 113
                                                                      : 126);
    EXPECT_EQ(scale_exponent(format, q), 0) << "the OCP floor rule would be the same";
    EXPECT_EQ(scale_exponent(format, std::nextafter(q, 1e9)), 1) << "and here saturate";
  }
}

TEST(QuantScales, E8m0) {
  EXPECT_EQ(bits(decode_e8m0(0)), 0x00400000u) << "2^-127 is subnormal";
  for (int byte = 0; byte < 255; ++byte)
    EXPECT_EQ(decode_e8m0(static_cast<uint8_t>(byte)), std::ldexp(1.0, byte - 127));
  EXPECT_TRUE(std::isnan(decode_e8m0(255)));
}

// --- rows by hand ---

struct Quantiser {
  QuantOptions options;
  Type dtype = Type::kF32;
  float scale_in = 1, global_scale = 1;

  QuantResult operator()(const std::vector<float>& z) const {
    QuantResult result;
    quant_model(options, z.data(), static_cast<int64_t>(z.size()), dtype, scale_in, global_scale,
                &result);
    return result;
  }
};

Quantiser make(Scheme scheme, Format format = Format::kE4M3) {
  Quantiser q;
  q.options.scheme = scheme;
  q.options.format = is_fp4(scheme) ? Format::kE2M1 : format;
  q.options.block_size = scheme == Scheme::kPerBlock ? 64 : 0;
  return q;
}
Quantiser pow2(Scheme scheme, Format format, bool e8m0) {
  Quantiser q = make(scheme, format);
  q.options.pow2 = true;
  q.options.e8m0 = e8m0;
  return q;
}

// Every scheme with every format that it supports.
std::vector<Quantiser> all_quantisers() {
  std::vector<Quantiser> all;
  for (const Format format : {Format::kE4M3, Format::kE5M2, Format::kI8}) {
    for (const Scheme s : {Scheme::kPerTensor, Scheme::kPerRow, Scheme::kPerBlock})
      all.push_back(make(s, format));
    all.push_back(make(Scheme::kPerBlock, format));
    all.back().options.block_size = 128;
    if (format == Format::kI8) continue;
    all.push_back(make(Scheme::kMxfp8, format));
    for (const bool e8m0 : {false, true}) {
      all.push_back(pow2(Scheme::kPerRow, format, e8m0));
      all.push_back(pow2(Scheme::kPerBlock, format, e8m0));
    }
  }
  all.push_back(make(Scheme::kNvfp4));
  all.push_back(make(Scheme::kMxfp4));
  return all;
}

std::string text_of(const Quantiser& q) {
  const QuantOptions& o = q.options;
  std::string text = name_of(o.scheme);
  text.append(" ").append(name_of(o.format));
  if (o.pow2) text.append(o.e8m0 ? " pow2 e8m0" : " pow2");
  if (o.block_size != 0) text.append(" ").append(std::to_string(o.block_size));
  if (o.source == QuantSource::kRounded) text.append(" rounded");
  return text.append(" ").append(name_of(q.dtype));
}

TEST(QuantModel, PerTensor) {
  Quantiser q = make(Scheme::kPerTensor);
  q.scale_in = 0.5f;
  QuantResult r = q({1, -0.0f, 300, kInf, -kInf, kNan, 1e-5f});
  EXPECT_EQ(r.scale, std::vector<float>{0.5f});
  EXPECT_TRUE(r.scale_bytes.empty());
  EXPECT_EQ(r.codes, (std::vector<uint8_t>{0x40, 0x80, 0x7e, 0x7e, 0xfe, 0x7f, 0}));
  EXPECT_TRUE(std::isnan(r.amax));
  EXPECT_EQ(q({1, -3}).amax, 3.0f);
  // The product with the rounded inverse, not the quotient.
  q = make(Scheme::kPerTensor, Format::kI8);
  int differ = 0;
  for (int k = 1; k < 4096; ++k) {
    q.scale_in = static_cast<float>(k) * 0.013f;
    const float inverse = 1.0f / q.scale_in;
    for (const float steps : {0.5f, 2.5f, 63.5f}) {
      const float z = steps * q.scale_in;
      EXPECT_EQ(q({z}).codes[0], encode(Format::kI8, z * inverse));
      differ += encode(Format::kI8, z * inverse) != encode(Format::kI8, z / q.scale_in);
    }
  }
  EXPECT_GT(differ, 0) << "the case does not tell them apart";
}

TEST(QuantModel, PerRowAndBlocks) {
  for (const Format format : {Format::kE4M3, Format::kE5M2, Format::kI8}) {
    QuantResult r = make(Scheme::kPerRow, format)({1, -7, 3.5f});
    EXPECT_EQ(r.scale, std::vector<float>{7.0f / qmax(format)});
    const float inverse = 1.0f / r.scale[0];
    EXPECT_EQ(r.codes, (std::vector<uint8_t>{encode(format, inverse), encode(format, -7 * inverse),
                                             encode(format, 3.5f * inverse)}));
    EXPECT_EQ(r.amax, 7.0f);
  }
  EXPECT_EQ(make(Scheme::kPerRow, Format::kI8)({127, -127, 2.5f, 3.5f}).codes,
            (std::vector<uint8_t>{127, 129, 2, 4}));
  // 130 columns: two blocks of 64 and one of 2; or one of 128 and one of 2.
  std::vector<float> z(130, 1.0f);
  z[63] = 2, z[64] = -4, z[129] = 0.5f, z[128] = 0.25f;
  Quantiser q = make(Scheme::kPerBlock, Format::kI8);
  QuantResult r = q(z);
  EXPECT_EQ(r.scale, (std::vector<float>{2.0f / 127, 4.0f / 127, 0.5f / 127}));
  EXPECT_EQ(r.codes[63], 127);
  EXPECT_EQ(r.codes[64], 129);
  EXPECT_EQ(r.codes[65], 32) << "31.75";
  EXPECT_EQ(r.codes[129], 127);
  EXPECT_EQ(r.amax, 4.0f);
  q.options.block_size = 128;
  EXPECT_EQ(q(z).scale, (std::vector<float>{4.0f / 127, 0.5f / 127}));
}

TEST(QuantModel, PowersOfTwo) {
  for (const bool e8m0 : {false, true}) {
    const Quantiser q = pow2(Scheme::kPerRow, Format::kE4M3, e8m0);
    QuantResult r = q({448, 1});
    EXPECT_EQ(r.scale, std::vector<float>{1});
    EXPECT_EQ(r.codes, (std::vector<uint8_t>{0x7e, 0x38}));
    EXPECT_EQ(r.scale_bytes, e8m0 ? std::vector<uint8_t>{127} : std::vector<uint8_t>{});
    r = q({std::nextafter(448.0f, 449.0f), 1});
    EXPECT_EQ(r.scale, std::vector<float>{2});
    EXPECT_EQ(r.codes, (std::vector<uint8_t>{0x76, 0x30}));
    if (e8m0) {
      EXPECT_EQ(r.scale_bytes, std::vector<uint8_t>{128});
    }
  }
  std::vector<float> z(40, 0.0f);
  z[0] = 57344, z[1] = -1, z[32] = 0x1.cp-3f;
  const QuantResult r = make(Scheme::kMxfp8, Format::kE5M2)(z);
  EXPECT_EQ(r.scale_bytes, (std::vector<uint8_t>{127, 127 - 18}));
  EXPECT_EQ(r.codes[0], 0x7b);
  EXPECT_EQ(r.codes[1], 0xbc);
  EXPECT_EQ(r.codes[32], 0x7b);
}

TEST(QuantModel, Nvfp4) {
  Quantiser q = make(Scheme::kNvfp4);
  std::vector<float> z(18, 0.0f);
  z[0] = 6, z[1] = -1.25f, z[2] = 5, z[3] = -0.0f, z[17] = -3;
  QuantResult r = q(z);
  EXPECT_EQ(r.scale, (std::vector<float>{1, 0.5f}));
  EXPECT_EQ(r.scale_bytes, (std::vector<uint8_t>{0x38, 0x30}));
  EXPECT_EQ((std::vector<uint8_t>{r.codes[0], r.codes[1], r.codes[2], r.codes[3], r.codes[17]}),
            (std::vector<uint8_t>{7, 0xa, 6, 8, 0xf}));
  EXPECT_EQ(r.amax, 6.0f);
  q.global_scale = 2;  // half the scales, the same codes
  QuantResult twice = q(z);
  EXPECT_EQ(twice.scale, (std::vector<float>{0.5f, 0.25f}));
  EXPECT_EQ(twice.codes, r.codes);
  // Beyond 448 the scale saturates, then the codes.
  q.global_scale = 1;
  r = q({448 * 6, 448 * 3, 448 * 12, -448 * 60});
  EXPECT_EQ(r.scale_bytes, std::vector<uint8_t>{0x7e});
  EXPECT_EQ(r.codes, (std::vector<uint8_t>{7, 5, 7, 0xf}));
  // The scale is rounded to nearest. Here that is down, and the greatest element saturates.
  r = q({6 * 1.0624f, 2});
  EXPECT_EQ(r.scale_bytes, std::vector<uint8_t>{0x38});
  EXPECT_EQ(r.codes, (std::vector<uint8_t>{7, 4}));
  // c is (1 / G) * (1 / 6) with three roundings. amax / (6 * G) would give another scale for some
  // values.
  int differ = 0;
  Random random(33);
  for (int trial = 0; trial < 2000; ++trial) {
    q.global_scale = 1 + static_cast<float>(random.below(1 << 20)) * 0x1p-20f;
    const int code = static_cast<int>(random.below(50)) + 40;
    const double middle = (meaning(Format::kE4M3, code) + meaning(Format::kE4M3, code + 1)) / 2;
    const auto amax = static_cast<float>(middle * 6 * static_cast<double>(q.global_scale));
    const float factor = (1.0f / q.global_scale) * (1.0f / 6.0f);
    r = q({amax, 0});
    ASSERT_EQ(r.scale_bytes[0], encode(Format::kE4M3, amax * factor));
    differ += r.scale_bytes[0] != encode(Format::kE4M3, amax / (6 * q.global_scale));
  }
  EXPECT_GT(differ, 0);
}

// z is multiplied by 1 / (sf * G), with two roundings. Ties show which product is used.
TEST(QuantModel, Mxfp4) {
  std::vector<float> z(96, 0.0f);
  z[0] = 6, z[1] = 3.5f, z[2] = -0.25f, z[3] = -0.0f;  // E 0
  z[32] = std::nextafter(6.0f, 7.0f), z[33] = 5;       // E 1: 3 is between 3 and 4, 2.5 a tie
  const QuantResult r = make(Scheme::kMxfp4)(z);
  EXPECT_EQ(r.scale_bytes, (std::vector<uint8_t>{127, 128, 0}));
  EXPECT_EQ(r.codes[0], 7);
  EXPECT_EQ(r.codes[1], 6) << "3.5 is a tie between 3 and 4";
  EXPECT_EQ(r.codes[2], 8) << "-0.25 is a tie between 0 and -0.5";
  EXPECT_EQ(r.codes[3], 8);
  EXPECT_EQ(r.codes[32], 5) << "3 and the next number";
  EXPECT_EQ(r.codes[33], 4) << "2.5 is a tie between 2 and 3";
}

TEST(QuantModel, Nvfp4MultipliesByTheInverseOfTheProduct) {
  Quantiser q = make(Scheme::kNvfp4);
  Random random(37);
  int one_by_one = 0, quotient = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    q.global_scale = 1 + static_cast<float>(random.below(1 << 20)) * 0x1p-20f;
    const auto code = static_cast<uint8_t>(random.below(50) + 40);
    const float sf = static_cast<float>(decode(Format::kE4M3, code));
    const float factor = sf * q.global_scale, inverse = 1.0f / factor;
    const float tie = (trial % 2 == 0 ? 2.5f : 3.5f) * factor;
    const QuantResult r = q({6 * factor, tie});
    ASSERT_EQ(r.scale[0], sf);
    ASSERT_EQ(r.codes[1], encode(Format::kE2M1, tie * inverse));
    one_by_one += r.codes[1] != encode(Format::kE2M1, tie * (1.0f / sf / q.global_scale));
    quotient += r.codes[1] != encode(Format::kE2M1, tie / factor);
  }
  EXPECT_GT(one_by_one, 0);
  EXPECT_GT(quotient, 0);
}

// The quotient is 431.99999, just below the middle of 416 and 448. 1 / (6 G) rounded at once would
// make it 432, whose nearest even code is that of 448.
TEST(QuantModel, Nvfp4RoundsTheReciprocalFirst) {
  Quantiser q = make(Scheme::kNvfp4);
  q.global_scale = 0.0037f;
  EXPECT_EQ(q({9.5903997f, 0}).scale_bytes, std::vector<uint8_t>{0x7d});
}

TEST(QuantModel, Nvfp4OfANegativeGlobalScale) {
  std::vector<float> z(16);
  for (size_t i = 0; i < z.size(); ++i) z[i] = i % 2 == 0 ? 1.0f : -1.0f;
  for (const float global : {-1.0f, 1.0f, -0x1p-100f, -0x1p100f}) {
    Quantiser q = make(Scheme::kNvfp4);
    q.global_scale = global;
    const QuantResult r = q(z);
    EXPECT_EQ(r.scale_bytes[0] & 0x80, 0);
    if (std::fabs(global) != 1) continue;
    for (size_t i = 0; i < z.size(); ++i) {
      const double value =
          decode(Format::kE2M1, r.codes[i]) * static_cast<double>(r.scale[0] * global);
      EXPECT_NEAR(value, static_cast<double>(z[i]), 0.07) << global;
    }
  }
}

TEST(QuantModel, Nvfp4AtTheEndsOfTheRange) {
  Quantiser q = make(Scheme::kNvfp4);
  // sf rounds to 0: half of the least subnormal is a tie.
  QuantResult r = q({0x1.8p-8f, -0x1.8p-8f});
  EXPECT_EQ(r.scale_bytes[0], 0);
  EXPECT_EQ(r.scale[0], 0.0f);
  EXPECT_EQ(r.codes, (std::vector<uint8_t>{0, 8}));
  r = q({0x1.82p-8f, -0x1.82p-8f});
  EXPECT_EQ(r.scale_bytes[0], 1);
  EXPECT_EQ(r.codes, (std::vector<uint8_t>{5, 0xd})) << "3.02";
  // 1 / (sf * G) overflows and becomes FLT_MAX.
  q.global_scale = 0x1p-120f;
  r = q({0x1.8p-127f, -0x1p-128f});
  EXPECT_EQ(r.scale[0], 0x1p-9f);
  EXPECT_EQ(r.codes, (std::vector<uint8_t>{5, 0xa}))
      << "3 and -1 by 2^128; by 2^129 it would be 6 and -2";
  // 0 * Inf does not give a NaN.
  q.global_scale = 0x1p-140f;
  EXPECT_EQ(std::isnan(q({1, 2}).scale[0]), false);
}

TEST(QuantModel, ZeroScopes) {
  const std::vector<float> z = {0, -0.0f, 0, 0};
  for (const Quantiser& q : all_quantisers()) {
    const QuantResult r = q(z);
    const Format f = q.options.format;
    const int minus = f == Format::kI8 ? 0 : sign_of(f);
    EXPECT_EQ(r.codes, (std::vector<uint8_t>{0, static_cast<uint8_t>(minus), 0, 0})) << text_of(q);
    EXPECT_EQ(bits(r.amax), 0u);
    ASSERT_EQ(r.scale.size(), 1u);
    EXPECT_EQ(r.scale_bytes.size(), has_scale_bytes(q.options) ? 1u : 0u);
    switch (q.options.scheme) {
      case Scheme::kMxfp8:
      case Scheme::kMxfp4:
        EXPECT_EQ(r.scale_bytes[0], 0);
        EXPECT_EQ(r.scale[0], 0x1p-127f);
        break;
      case Scheme::kNvfp4:
        EXPECT_EQ(r.scale_bytes[0], 0);
        EXPECT_EQ(bits(r.scale[0]), 0u);
        break;
      case Scheme::kPerTensor:
        EXPECT_EQ(r.scale[0], 1.0f);
        break;
      default:
        if (!q.options.pow2) {
          EXPECT_EQ(r.scale[0], 1e-10f / qmax(f)) << text_of(q);
        } else {  // 1e-10 = 1.718 * 2^-34
          EXPECT_EQ(r.scale[0], f == Format::kE4M3 ? 0x1p-42f : 0x1p-49f);
          if (q.options.e8m0) {
            EXPECT_EQ(r.scale_bytes[0], f == Format::kE4M3 ? 85 : 78);
          }
        }
    }
  }
}

// A NaN in one scope: all its codes and its scale become NaN. The next scope does not change.
TEST(QuantModel, NanScopes) {
  for (const Quantiser& q : all_quantisers()) {
    std::vector<float> z(300);
    fill_row(Pattern::kNormal, Type::kF32, 34, z.data(), 300);
    const QuantResult clean = q(z);
    for (const float nan : {kNan, -kNan, std::bit_cast<float>(0x7f800001u)}) {
      z[5] = nan;
      const QuantResult r = q(z);
      EXPECT_TRUE(std::isnan(r.amax)) << text_of(q);
      const auto columns = static_cast<size_t>(scope_columns(q.options, 300));
      const bool dynamic = q.options.scheme != Scheme::kPerTensor;
      if (dynamic) {
        EXPECT_TRUE(std::isnan(r.scale[0])) << text_of(q);
      }
      if (has_scale_bytes(q.options)) {
        EXPECT_EQ(r.scale_bytes[0], q.options.scheme == Scheme::kNvfp4 ? 0x7f : 0xff);
      }
      for (size_t i = 0; i < 300; ++i) {
        const bool hurt = dynamic ? i < columns : i == 5;
        ASSERT_EQ(r.codes[i], hurt ? nan_code(q.options.format) : clean.codes[i])
            << text_of(q) << " " << i;
      }
      for (size_t s = 1; s < r.scale.size(); ++s) EXPECT_EQ(r.scale[s], clean.scale[s]);
    }
  }
}

TEST(QuantModel, InfScopes) {
  const std::vector<float> z = {1, -0.5f, -kInf, kInf, -0.0f, 0x1p126f};
  for (const Quantiser& q : all_quantisers()) {
    const Format f = q.options.format;
    const QuantResult r = q(z);
    EXPECT_EQ(r.amax, kInf);
    const int sign = f == Format::kI8 ? 0 : sign_of(f), greatest = greatest_code(f);
    const int least = f == Format::kI8 ? 0x80 : greatest | sign;
    std::vector<int> expected;
    if (q.options.scheme == Scheme::kPerTensor) {
      EXPECT_EQ(r.scale[0], 1.0f);
      expected = {encode(f, 1), encode(f, -0.5), least, greatest, sign, greatest};
    } else if (q.options.scheme == Scheme::kNvfp4) {
      EXPECT_EQ(r.scale_bytes[0], 0x7e);
      EXPECT_EQ(r.scale[0], 448.0f);
      expected = {0, 8, 0xf, 7, 8, 7};
    } else if (q.options.pow2 || is_mx(q.options.scheme)) {
      EXPECT_EQ(r.scale[0], 0x1p127f) << text_of(q);
      if (has_scale_bytes(q.options)) {
        EXPECT_EQ(r.scale_bytes[0], 254);
      }
      expected = {0, sign, least, greatest, sign, encode(f, 0.5)};
    } else {
      EXPECT_EQ(r.scale[0], kInf) << text_of(q);
      expected = {0, sign, nan_code(f), nan_code(f), sign, 0};
    }
    for (size_t i = 0; i < z.size(); ++i) EXPECT_EQ(r.codes[i], expected[i]) << text_of(q) << i;
  }
}

TEST(QuantModel, AmaxFloor) {
  for (const Format format : {Format::kE4M3, Format::kE5M2, Format::kI8}) {
    Quantiser q = make(Scheme::kPerRow, format);
    const auto scale = [&](float floor, float z) {
      q.options.amax_floor = floor;
      return q({z, 0}).scale[0];
    };
    EXPECT_EQ(scale(0x1p-9f, 0), 1.0f / (qmax(format) * 512)) << "the least scale of others";
    EXPECT_EQ(scale(1e-4f, 1e-5f), 1e-4f / qmax(format));
    EXPECT_EQ(scale(1e-4f, -2e-4f), 2e-4f / qmax(format));
    EXPECT_EQ(scale(0, 1e-11f), 1e-10f / qmax(format));
    EXPECT_EQ(scale(0x1p100f, 1), 0x1p100f / qmax(format));
    EXPECT_EQ(scale(0x1p-100f, 0), 0x1p-100f / qmax(format));
    EXPECT_TRUE(std::isnan(scale(1e-4f, kNan))) << "a floor does not hide NaN";
    EXPECT_EQ(q({1e-5f, 0}).amax, 1e-5f) << "the output is what was seen, not the floor";
  }
  // Except for schemes whose scales reach zero.
  for (const Scheme s : {Scheme::kMxfp8, Scheme::kNvfp4, Scheme::kMxfp4}) {
    Quantiser q = make(s);
    q.options.amax_floor = 1;
    EXPECT_EQ(q({0, 0}).scale_bytes[0], 0);
  }
  Quantiser q = pow2(Scheme::kPerRow, Format::kE4M3, true);
  q.options.amax_floor = 0x1p-100f;
  EXPECT_EQ(q({0}).scale_bytes[0], 127 - 108);
}

TEST(QuantModel, Clamp) {
  Quantiser q = make(Scheme::kPerRow);
  q.options.clamp = 4;
  QuantResult r = q({1, 100, -kInf, -0.0f});
  EXPECT_EQ(r.scale[0], 4.0f / 448) << "Inf is clamped, too";
  EXPECT_EQ(r.amax, 4.0f);
  const float inverse = 1.0f / r.scale[0];
  EXPECT_EQ(r.codes, (std::vector<uint8_t>{encode(Format::kE4M3, inverse), 0x7e, 0xfe, 0x80}));
  r = q({1, kNan, 100});
  EXPECT_TRUE(std::isnan(r.scale[0])) << "NaN is kept";
  EXPECT_EQ(q({1, -3}).scale[0], 3.0f / 448);
  q.options.clamp = 0;
  EXPECT_EQ(q({1, 100}).scale[0], 100.0f / 448);
  q = make(Scheme::kPerTensor, Format::kI8);
  q.options.clamp = 3.5f;
  EXPECT_EQ(q({5, -5, 1}).codes, (std::vector<uint8_t>{4, 252, 1}));
}

TEST(QuantModel, FromRounded) {
  Quantiser q = make(Scheme::kPerRow, Format::kI8);
  q.dtype = Type::kBF16;
  EXPECT_EQ(q({257, 1}).scale[0], 257.0f / 127);
  q.options.source = QuantSource::kRounded;
  QuantResult r = q({257, 1});
  EXPECT_EQ(r.scale[0], 256.0f / 127);
  EXPECT_EQ(r.amax, 256.0f);
  // Rounding comes before the clamp. The clamp's value need not be a value of T.
  q.options.clamp = 258.5f;
  EXPECT_EQ(q({259, 1}).amax, 258.5f);
  q.options.clamp = 256.5f;
  EXPECT_EQ(q({257, 1}).amax, 256.0f);
  // Codes, not only scales: 2.5 + 2^-10 is 2.5 in bf16, which is a tie.
  q = make(Scheme::kPerTensor, Format::kI8);
  q.dtype = Type::kBF16;
  EXPECT_EQ(q({2.5f + 0x1p-10f}).codes[0], 3);
  q.options.source = QuantSource::kRounded;
  EXPECT_EQ(q({2.5f + 0x1p-10f}).codes[0], 2);
  q.dtype = Type::kF16;
  EXPECT_EQ(q({2.5f + 0x1p-10f}).codes[0], 2) << "f16 has steps of 2^-9 here";
  EXPECT_EQ(q({2.5f + 0x1p-9f}).codes[0], 3);
  q = make(Scheme::kPerRow);
  q.dtype = Type::kF16;
  q.options.source = QuantSource::kRounded;
  EXPECT_EQ(q({1e5f}).scale[0], kInf) << "beyond f16's range";
  q.dtype = Type::kF32;
  EXPECT_EQ(q({1e5f}).scale[0], 1e5f / 448);
}

TEST(QuantModel, AmaxOfWhatIsNotQuantised) {
  Quantiser q = make(Scheme::kNone);
  q.dtype = Type::kBF16;
  q.options.clamp = 1;
  const QuantResult r = q({-257, 3});
  EXPECT_EQ(r.amax, 256.0f) << "y is rounded, and never clamped";
  EXPECT_TRUE(r.codes.empty());
  EXPECT_TRUE(r.scale.empty());
  EXPECT_EQ(max_magnitude(r.amax, 300), 300.0f);
  EXPECT_EQ(max_magnitude(-3, 2), 3.0f);
  for (const float other : {0.0f, kInf, kMax}) {
    EXPECT_TRUE(std::isnan(max_magnitude(kNan, other)));
    EXPECT_TRUE(std::isnan(max_magnitude(other, -kNan)));
  }
  EXPECT_EQ(bits(max_magnitude(-0.0f, -0.0f)), 0u);
}

// --- layouts ---

TEST(QuantLayout, SwizzleIsABijection) {
  EXPECT_EQ(swizzled_bytes(1, 1), 512);
  EXPECT_EQ(swizzled_bytes(128, 4), 512);
  EXPECT_EQ(swizzled_bytes(129, 5), 2048);
  EXPECT_EQ(swizzled_bytes(0, 7), 0);
  EXPECT_EQ(swizzled_index(0, 3, 8), 3);
  EXPECT_EQ(swizzled_index(1, 0, 8), 16);
  EXPECT_EQ(swizzled_index(32, 0, 8), 4);
  EXPECT_EQ(swizzled_index(127, 3, 8), 511);
  EXPECT_EQ(swizzled_index(0, 4, 8), 512);
  EXPECT_EQ(swizzled_index(128, 0, 8), 1024);
  EXPECT_EQ(swizzled_index(128, 0, 9), 1536) << "three tiles a row of tiles";
  for (const int64_t rows : {1, 31, 32, 33, 127, 128, 129, 300}) {
    for (const int64_t blocks : {1, 3, 4, 5, 8, 33}) {
      std::set<int64_t> places;
      for (int64_t m = 0; m < rows; ++m) {
        for (int64_t k = 0; k < blocks; ++k) places.insert(swizzled_index(m, k, blocks));
      }
      ASSERT_EQ(static_cast<int64_t>(places.size()), rows * blocks);
      ASSERT_GE(*places.begin(), 0);
      ASSERT_LT(*places.rbegin(), swizzled_bytes(rows, blocks));
      ASSERT_LT(swizzled_bytes(rows, blocks), (rows + 127) * (blocks + 3) + 1) << "no more padding";
    }
  }
  std::set<int64_t> whole;  // without padding every byte has its scale
  for (int64_t i = 0; i < 256 * 8; ++i) whole.insert(swizzled_index(i / 8, i % 8, 8));
  EXPECT_EQ(static_cast<int64_t>(whole.size()), swizzled_bytes(256, 8));
}

TEST(QuantLayout, PackedE2m1) {
  const uint8_t codes[] = {1, 0xf, 0, 8};
  uint8_t bytes[] = {0xee, 0xee, 0xee};
  pack_e2m1(codes, 4, bytes);
  EXPECT_EQ(bytes[0], 0xf1);
  EXPECT_EQ(bytes[1], 0x80);
  EXPECT_EQ(bytes[2], 0xee);
}

TEST(QuantLayout, Scopes) {
  Quantiser q = make(Scheme::kPerBlock);
  EXPECT_EQ(scopes_of(q.options, 64), 1);
  EXPECT_EQ(scopes_of(q.options, 65), 2);
  EXPECT_EQ(scopes_of(make(Scheme::kMxfp8).options, 100), 4);
  EXPECT_EQ(scopes_of(make(Scheme::kMxfp4).options, 100), 4);
  EXPECT_EQ(scopes_of(make(Scheme::kNvfp4).options, 18), 2);
  EXPECT_EQ(scopes_of(make(Scheme::kPerRow).options, 100000), 1);
  EXPECT_EQ(scopes_of(make(Scheme::kNone).options, 4), 0);
}

// --- the model against its bounds ---

struct Tally {
  int64_t rows = 0, valid = 0, codes = 0, open = 0, outside = 0;
};

void compare(const Quantiser& q, const std::vector<float>& z, const std::vector<Range>& ranges,
             Tally* tally) {
  const QuantResult r = q(z);
  QuantBounds b;
  quant_bounds(q.options, ranges.data(), static_cast<int64_t>(z.size()), q.dtype, q.global_scale,
               r.scale.data(), &b);
  ++tally->rows;
  if (!b.valid) return;
  ++tally->valid;
  tally->outside += !b.amax.holds(r.amax);
  ASSERT_EQ(b.scale.size(), r.scale.size());
  ASSERT_EQ(b.codes.size(), r.codes.size());
  for (size_t s = 0; s < r.scale.size(); ++s)
    tally->outside +=
        !(q.options.scheme == Scheme::kPerTensor || holds_scale(q.options, b.scale[s], r.scale[s]));
  for (size_t i = 0; i < r.codes.size(); ++i) {
    ++tally->codes;
    tally->open += !b.codes[i].exact();
    tally->outside += !b.codes[i].holds(q.options.format, r.codes[i]);
  }
}

Quantiser vary(Quantiser q, Random& random) {
  q.options.source = random.one_in(2) ? QuantSource::kRounded : QuantSource::kF32;
  q.dtype = random.of(kTypes);
  if (random.one_in(4)) q.options.clamp = 1.37f;
  if (random.one_in(4)) q.options.amax_floor = 1.4f;
  if (random.one_in(2)) q.scale_in = 0.013f;
  if (random.one_in(2)) q.global_scale = random.one_in(2) ? 0.0071f : -0.0071f;
  const bool divisible = q.options.scheme <= Scheme::kPerBlock;
  q.options.divide = divisible && random.one_in(2);
  return q;
}

// Rows from norm's model, and ranges of z from norm's reference.
TEST(QuantBounds, ModelStaysInsideForNormsOfRows) {
  Random random(35);
  for (const Quantiser& base : all_quantisers()) {
    Tally tally;
    for (int trial = 0; trial < fastnorm::support::share_of(30); ++trial) {
      const Quantiser q = vary(base, random);
      const auto n = static_cast<int64_t>(2 * random.below(1500) + 2);
      std::vector<float> x(static_cast<size_t>(n)), weight(x.size());
      const auto pattern =
          trial % 3 == 0 ? static_cast<Pattern>(random.below(kPatterns)) : Pattern::kNormal;
      fill_row(pattern, q.dtype, random.next(), x.data(), n);
      fill_row(Pattern::kWeights, q.dtype, random.next(), weight.data(), n);
      NormOptions options;  // T of the norm is f32, so that its y is z
      options.kind = random.one_in(2) ? Kind::kLayer : Kind::kRms;
      options.eps = 1e-6f;
      const NormRow row{n, x.data(), nullptr, random.one_in(2) ? weight.data() : nullptr, nullptr};
      ModelScratch scratch;
      NormResult norm;
      const Order order = random.one_in(2) ? Order::kGpu : Order::kCpu;
      norm_model(options, row, order, &scratch, &norm);
      const NormBounds bounds = norm_bounds(options, row, order);
      if (bounds.y_valid) compare(q, norm.z, bounds.y, &tally);
    }
    EXPECT_EQ(tally.outside, 0) << text_of(base);
    EXPECT_GT(tally.valid, fastnorm::support::share_of(10)) << text_of(base);
  }
}

// z anywhere in its range, including the ends, with all rounding types. Few codes may remain open.
TEST(QuantBounds, ModelStaysInsideForAnyZ) {
  constexpr double kRelative = 0x1p-24 * 20;
  Random random(36);
  for (const Quantiser& base : all_quantisers()) {
    Tally tally;
    for (int trial = 0; trial < fastnorm::support::share_of(60); ++trial) {
      const Quantiser q = vary(base, random);
      const auto n = static_cast<size_t>(2 * random.below(2000) + 2);
      std::vector<float> middle(n), z(n);
      fill_row(Pattern::kNormal, Type::kF32, random.next(), middle.data(), static_cast<int64_t>(n));
      std::vector<Range> ranges;
      for (size_t i = 0; i < n; ++i) {
        const double m = middle[i], d = std::fabs(m) * kRelative;
        ranges.push_back({m - d, m + d});
        const double at = static_cast<double>(random.below(2001)) / 1000 - 1;
        z[i] = static_cast<float>(m + d * (trial % 3 == 0 ? (at > 0 ? 1 : -1) : at));
        if (!ranges[i].holds(z[i])) z[i] = middle[i];
      }
      compare(q, z, ranges, &tally);
    }
    EXPECT_EQ(tally.outside, 0) << text_of(base);
    EXPECT_EQ(tally.valid, tally.rows) << text_of(base);
    EXPECT_LT(tally.open, tally.codes / 1000) << text_of(base) << ": too much is left open";
  }
}

// The bounds of one row, with z known to a part in 2^20.
QuantBounds bounds_of(const Quantiser& q, const std::vector<float>& z, float scale) {
  std::vector<Range> ranges;
  for (const float v : z)
    ranges.push_back({v - std::fabs(v) * 0x1p-20, v + std::fabs(v) * 0x1p-20});
  QuantBounds b;
  quant_bounds(q.options, ranges.data(), static_cast<int64_t>(z.size()), q.dtype, q.global_scale,
               &scale, &b);
  return b;
}

TEST(QuantBounds, NoticeWrongScalesAndCodes) {
  const std::vector<float> z = {1.3f, -4.1f, 0.77f, 2.2f};
  for (const Quantiser& q : all_quantisers()) {
    const QuantResult r = q(z);
    const QuantBounds b = bounds_of(q, z, r.scale[0]);
    ASSERT_TRUE(b.valid);
    EXPECT_TRUE(b.amax.holds(4.1f));
    EXPECT_FALSE(b.amax.holds(4.1001f));
    EXPECT_TRUE(holds_scale(q.options, b.scale[0], r.scale[0])) << text_of(q);
    for (const float factor : {1.0001f, 0.9999f, 2.0f, 0.5f, -1.0f, kNan})
      EXPECT_FALSE(holds_scale(q.options, b.scale[0], r.scale[0] * factor)) << text_of(q) << factor;
    for (size_t i = 0; i < z.size(); ++i) {
      for (int code = 0; code < (q.options.format == Format::kE2M1 ? 16 : 256); ++code) {
        const auto c = static_cast<uint8_t>(code);
        EXPECT_EQ(b.codes[i].holds(q.options.format, c), c == r.codes[i])
            << text_of(q) << " " << code;
      }
    }
  }
}

TEST(QuantBounds, LeaveOpenWhatLiesOnABoundary) {
  Quantiser q = make(Scheme::kPerTensor, Format::kI8);
  QuantBounds b = bounds_of(q, {2.5f, -3.5f, 2.4f, 127.6f}, 1);
  EXPECT_EQ(b.codes[0].low, 2);
  EXPECT_EQ(b.codes[0].high, 3);
  EXPECT_EQ(b.codes[1].low, -4);
  EXPECT_EQ(b.codes[1].high, -3);
  EXPECT_TRUE(b.codes[2].exact());
  EXPECT_TRUE(b.codes[3].exact()) << "saturated either way";
  q = pow2(Scheme::kPerRow, Format::kE4M3, false);  // either exponent, and nothing between them
  b = bounds_of(q, {448, 1}, 1);
  EXPECT_TRUE(holds_scale(q.options, b.scale[0], 1));
  EXPECT_TRUE(holds_scale(q.options, b.scale[0], 2));
  for (const float wrong : {0.5f, 1.5f, 4.0f})
    EXPECT_FALSE(holds_scale(q.options, b.scale[0], wrong));
  b = bounds_of(q, {447, 1}, 1);
  EXPECT_FALSE(holds_scale(q.options, b.scale[0], 2));
  q = make(Scheme::kNvfp4);
  b = bounds_of(q, {6 * 1.0625f, 1}, 1);
  EXPECT_EQ(b.scale[0].low, 1.0);
  EXPECT_EQ(b.scale[0].high, 1.125);
  // The library's own three roundings, for z that is almost or entirely certain but is no f32.
  q = make(Scheme::kPerTensor, Format::kI8);
  const Range near[] = {{0.25 * (1 + 1e-7), 0.25 * (1 + 1.001e-7)},
                        {0.25 * (1 + 4e-7), 0.25 * (1 + 4.001e-7)},
                        {0.25 + 1e-12, 0.25 + 1e-12}};
  const float tenth = 0.1f, minus = -1;
  quant_bounds(q.options, near, 3, Type::kF32, 1, &tenth, &b);
  EXPECT_EQ(b.codes[0].low, 2);
  EXPECT_EQ(b.codes[0].high, 3);
  EXPECT_EQ(b.codes[1].low, 3);
  EXPECT_EQ(b.codes[2].low, 2);
  EXPECT_EQ(b.codes[2].high, 3);
  // A negative scale reverses the range.
  const Range wide = {1, 3};
  quant_bounds(q.options, &wide, 1, Type::kF32, 1, &minus, &b);
  EXPECT_EQ(b.codes[0].low, -3);
  EXPECT_EQ(b.codes[0].high, -1);
  // A range that contains zero contains both zeros.
  const Range across[] = {{-1e-9, 1e-9}, {0, 0}, {-0.0, -0.0}, {-1e-9, -1e-10}};
  const float one = 1;
  q = make(Scheme::kPerTensor);
  quant_bounds(q.options, across, 4, Type::kF32, 1, &one, &b);
  for (const size_t i : {0u, 1u, 2u}) {
    EXPECT_TRUE(b.codes[i].holds(Format::kE4M3, 0));
    EXPECT_TRUE(b.codes[i].holds(Format::kE4M3, 0x80));
    EXPECT_FALSE(b.codes[i].holds(Format::kE4M3, 1));
  }
  EXPECT_FALSE(b.codes[3].holds(Format::kE4M3, 0)) << "-0 is kept";
}

// A known value has one scale and one code: by the floor, a clamp, or a rounding that can go one
// way only.
TEST(QuantBounds, AreExactWhereZIsKnown) {
  for (const Format format : {Format::kE4M3, Format::kI8}) {
    Quantiser q = make(Scheme::kPerRow, format);
    q.options.amax_floor = 8;
    QuantBounds b = bounds_of(q, {1.3f, 4.1f}, 8 / qmax(format));
    EXPECT_EQ(b.scale[0].low, 8 / qmax(format));
    EXPECT_EQ(b.scale[0].high, 8 / qmax(format));
    q.options.amax_floor = 0;
    q.options.clamp = 3;
    b = bounds_of(q, {1.3f, 4.1f}, 3 / qmax(format));
    EXPECT_EQ(b.scale[0].low, 3 / qmax(format));
    EXPECT_EQ(b.scale[0].high, 3 / qmax(format));
    EXPECT_EQ(b.amax.low, 3.0);
    EXPECT_TRUE(b.codes[1].exact());
    q.options.clamp = 0;
    b = bounds_of(q, {1.3f, 4.1f}, 4.1f / qmax(format));
    EXPECT_LT(b.scale[0].low, b.scale[0].high);
    q.options.source = QuantSource::kRounded;
    q.dtype = Type::kBF16;
    const float rounded = round_to(Type::kBF16, 4.1f);
    b = bounds_of(q, {1.3f, 4.1f}, rounded / qmax(format));
    EXPECT_EQ(b.scale[0].low, rounded / qmax(format));
    EXPECT_EQ(b.scale[0].low, b.scale[0].high);
  }
  // A certain tie has only the even code.
  Quantiser q = make(Scheme::kPerTensor, Format::kI8);
  q.dtype = Type::kBF16;
  q.options.source = QuantSource::kRounded;
  const QuantBounds b = bounds_of(q, {2.5f, 3.5f}, 1);
  EXPECT_EQ(b.codes[0].low, 2);
  EXPECT_EQ(b.codes[0].high, 2);
  EXPECT_EQ(b.codes[1].low, 4);
}

TEST(QuantBounds, LeaveRowsToTheModelThatHaveNone) {
  QuantBounds b;
  const float one = 1, zero = 0;
  const auto valid = [&](const Quantiser& q, Range z, const float* scale) {
    quant_bounds(q.options, &z, 1, q.dtype, q.global_scale, scale, &b);
    return b.valid;
  };
  Quantiser q = make(Scheme::kPerRow);
  EXPECT_TRUE(valid(q, {1, 2}, &one));
  EXPECT_FALSE(valid(q, {1, kInf}, &one));
  EXPECT_FALSE(valid(q, {kNan, kNan}, &one));
  q.dtype = Type::kF16;
  EXPECT_TRUE(valid(q, {65000, 65530}, &one));
  q.options.source = QuantSource::kRounded;
  EXPECT_FALSE(valid(q, {65000, 65530}, &one)) << "may be Inf";
  q.options.clamp = 100;
  EXPECT_TRUE(valid(q, {65000, 65530}, &one)) << "and is then clamped";
  q = make(Scheme::kPerTensor);
  EXPECT_TRUE(valid(q, {1, 2}, &one));
  EXPECT_FALSE(valid(q, {1, 2}, &zero));
  EXPECT_FALSE(valid(q, {1, 2}, &kNan));
  q = make(Scheme::kNvfp4);
  for (const float global : {0.0f, kInf, kNan}) {
    q.global_scale = global;
    EXPECT_FALSE(valid(q, {1, 2}, &one)) << global;
  }
  q.global_scale = -1;
  EXPECT_TRUE(valid(q, {1, 2}, &one));
  q = make(Scheme::kNone);
  EXPECT_TRUE(valid(q, {-3, -2}, nullptr));
  EXPECT_EQ(b.amax.low, 2.0);
  EXPECT_EQ(b.amax.high, 3.0);
}

// --- rotation ---

QuantOptions rotation_of(int64_t block, QuantSource source = QuantSource::kF32) {
  QuantOptions o;
  o.rotation = block;
  o.source = source;
  return o;
}

TEST(Rotation, UnitVectorsGiveTheMatrix) {
  for (const int64_t block : {16, 32, 64, 128}) {
    const auto factor = static_cast<float>(1 / std::sqrt(static_cast<double>(block)));
    for (int64_t j = 0; j < block; ++j) {
      std::vector<float> z(static_cast<size_t>(2 * block));
      z[static_cast<size_t>(block + j)] = 1;
      rotate_model(rotation_of(block), nullptr, false, Type::kF32, 2 * block, z.data());
      for (int64_t i = 0; i < block; ++i) {
        EXPECT_EQ(z[static_cast<size_t>(i)], 0.0f);
        const bool odd = std::popcount(static_cast<uint64_t>(i & j)) % 2 != 0;
        EXPECT_EQ(z[static_cast<size_t>(block + i)], odd ? -factor : factor) << block << " " << i;
      }
    }
  }
}

// The order of the steps decides the bits: 2^24 hides a 1 that is added to it alone.
TEST(Rotation, StepsBeginWithNeighbours) {
  std::vector<float> z(16);
  z[0] = 0x1p24f, z[2] = z[3] = 1;
  rotate_model(rotation_of(16), nullptr, false, Type::kF32, 16, z.data());
  EXPECT_EQ(z[0], 0x1.000002p22f) << "2^24 + (1 + 1)";
  z.assign(16, 0);
  z[0] = 0x1p24f, z[1] = z[3] = 1;
  rotate_model(rotation_of(16), nullptr, false, Type::kF32, 16, z.data());
  EXPECT_EQ(z[0], 0x1p22f) << "(2^24 + 1) + 1";
}

TEST(Rotation, ModelIsWithinTheBoundOfDouble) {
  constexpr int64_t kN = 256;
  double worst = 0;
  for (const int64_t block : {16, 32, 64, 128}) {
    for (uint64_t seed = 0; seed < 60; ++seed) {
      const auto pattern = seed % 3 == 0 ? Pattern::kWeights : Pattern::kNormal;
      std::vector<float> z(kN), drawn(kN);
      fill_row(pattern, Type::kF32, hash(seed, block), z.data(), kN);
      fill_row(Pattern::kNormal, Type::kF32, hash(seed, 1), drawn.data(), kN);
      if (seed % 4 == 0) z[static_cast<size_t>(seed)] *= 1e4f;
      for (float& sign : drawn) sign = sign < 0 ? -1.0f : 1.0f;
      const float* const signs = seed % 2 == 0 ? drawn.data() : nullptr;
      const bool shared = seed % 4 < 2;
      const QuantOptions o =
          rotation_of(block, seed % 5 == 0 ? QuantSource::kRounded : QuantSource::kF32);
      std::vector<double> exact(z.begin(), z.end()), bound(kN);
      rotate_ref(o, signs, shared, Type::kBF16, kN, exact.data(), bound.data());
      rotate_model(o, signs, shared, Type::kBF16, kN, z.data());
      for (size_t i = 0; i < kN; ++i) {
        const double error = std::fabs(static_cast<double>(z[i]) - exact[i]);
        EXPECT_LE(error, bound[i]) << block << " " << seed << " " << i;
        worst = std::max(worst, error / bound[i]);
      }
    }
  }
  EXPECT_GT(worst, 0.01) << "the bound means something";
}

// H * H is the identity, so that the second rotation takes the first one back.
TEST(Rotation, IsItsOwnInverse) {
  for (const int64_t block : {16, 32, 64, 128}) {
    std::vector<float> z(256), twice;
    fill_row(Pattern::kNormal, Type::kF32, 11, z.data(), 256);
    twice = z;
    for (int i = 0; i < 2; ++i)
      rotate_model(rotation_of(block), nullptr, false, Type::kF32, 256, twice.data());
    for (size_t i = 0; i < z.size(); ++i) EXPECT_NEAR(twice[i], z[i], 1e-5f);
  }
}

}  // namespace
}  // namespace fastnorm::ref
