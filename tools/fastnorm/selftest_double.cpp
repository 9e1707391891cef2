// The outputs against the formulas in double precision, within bounds that follow from the
// arithmetic: single-precision operations, each rounded once, and the length of the longest chain
// of additions.
#include <algorithm>
#include <cmath>

#include "dtype.h"
#include "progress.h"
#include "selftest.h"

namespace fastnorm::tool {
namespace {

constexpr double kU = 0x1p-24;          // relative error of one rounding to f32
constexpr double kSecondOrder = 1.001;  // the bounds below leave products of errors out

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int ceil_log2(int64_t v) {
  int log = 0;
  while (int64_t{1} << log < v) ++log;
  return log;
}

// Roundings on the longest path of a row's sum.
double chain_length(const Machine& machine, const SelftestCase& c) {
  if (machine.target().is_cuda()) {
    const auto v = static_cast<int64_t>(16 / element_bytes(c.dtype));
    return static_cast<double>(v / 2 + 1 + ceil_log2(ceil_div(c.n, v)));
  }
  return static_cast<double>(std::min<int64_t>(256, ceil_div(c.n, 64)) + 6 + ceil_div(c.n, 16384));
}

struct RowReference {
  std::vector<double> s;  // the sum of x and residual, rounded to f32
  double mean = 0, rstd = 0;
  double mean_error = 0, rstd_error = 0;  // absolute
};

RowReference reference_row(const SelftestCase& c, double chain, std::vector<double> s) {
  RowReference r;
  const auto n = static_cast<double>(c.n);
  const bool layer = c.kind == FASTNORM_NORM_LAYER;
  double sum = 0, magnitude = 0, squares = 0;
  for (const double v : s) sum += v, magnitude += std::fabs(v);
  if (layer) r.mean = sum / n;
  for (const double v : s) squares += (v - r.mean) * (v - r.mean);
  const double variance = squares / n, eps = kSelftestEps;
  r.rstd = 1 / std::sqrt(variance + eps);
  if (layer) r.mean_error = kSecondOrder * (chain + 2) * kU * magnitude / n;
  // The root halves the errors of the sum and of three roundings before it; two follow it.
  double relative = (chain / 2 + (layer ? 5 : 4)) * kU;
  if (layer) relative += r.mean_error * r.mean_error / (2 * (variance + eps));
  r.rstd_error = kSecondOrder * relative * r.rstd;
  r.s = std::move(s);
  return r;
}

struct Interval {
  double low, high;
};

// Room for rounding errors of a relative size on both sides.
Interval widened(Interval v, double relative) {
  relative *= kSecondOrder;
  return {v.low - relative * std::fabs(v.low), v.high + relative * std::fabs(v.high)};
}

// Where the results of a row lie before they are rounded.
std::vector<Interval> results_of_row(const SelftestCase& c, const RowReference& r,
                                     const CaseInputs& inputs, int64_t row) {
  const fastnorm_dtype dtype = c.weight_dtype();
  const size_t size = element_bytes(dtype), columns = r.s.size();
  const size_t first = static_cast<size_t>(c.weight_row(row)) * columns;
  std::vector<Interval> results(columns);
  for (size_t i = 0; i < columns; ++i) {
    const size_t at = (first + i) * size;
    const double g = decode(dtype, &inputs.weight[at]) + kSelftestWeightOffset;
    const double bias = inputs.bias.empty() ? 0 : decode(dtype, &inputs.bias[at]);
    const double t = (r.s[i] - r.mean) * r.rstd;
    const double t_error = r.rstd * r.mean_error + (r.rstd_error / r.rstd + 2 * kU) * std::fabs(t);
    // The offset is added to the weight in f32: one more rounding of g.
    const double z = t * g + bias;
    const double z_error = kSecondOrder * (std::fabs(g) * t_error + kU * std::fabs(t * g) +
                                           2 * kU * (std::fabs(t * g) + std::fabs(bias)));
    results[i] = {z - z_error, z + z_error};
  }
  return results;
}

// As y is rounded. A subnormal f32 result has no relative bound, but an ulp.
Interval rounded(fastnorm_dtype dtype, Interval z) {
  const FloatFormat format = float_format(dtype);
  return {round_to(format, z.low), round_to(format, z.high)};
}

// Checks y of one row; returns the number of elements outside their interval.
int64_t wrong_elements(const SelftestCase& c, const std::vector<Interval>& results,
                       const std::byte* y) {
  const fastnorm_dtype dtype = c.y_dtype();
  const size_t size = element_bytes(dtype);
  int64_t wrong = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const Interval bounds = rounded(dtype, results[i]);
    const double found = decode(dtype, y + i * size);
    if (!(found >= bounds.low && found <= bounds.high)) ++wrong;
  }
  return wrong;
}

FloatFormat code_format(fastnorm_dtype_id codes) {
  return codes == FASTNORM_DTYPE_F8_E4M3FN ? FloatFormat{4, -6, 448}
         : codes == FASTNORM_DTYPE_F8_E5M2 ? FloatFormat{3, -14, 57344}
                                           : FloatFormat{2, 0, 6};
}

double greatest_code(fastnorm_dtype_id codes) {
  return codes == FASTNORM_DTYPE_I8 ? 127 : code_format(codes).max_finite;
}

// The value of a code. That of an 8-bit NaN is beyond the greatest.
double decode_code(fastnorm_dtype_id codes, int code) {
  if (codes == FASTNORM_DTYPE_I8) return static_cast<int8_t>(code);
  const FloatFormat format = code_format(codes);
  const int sign = codes == FASTNORM_DTYPE_F4_E2M1FN_X2 ? 8 : 128, magnitude = code & (sign - 1);
  const int fractions = 1 << (format.precision - 1), exponent = magnitude / fractions;
  const int significand = magnitude % fractions + (exponent != 0 ? fractions : 0);
  const int least_bit = format.min_exponent - (format.precision - 1);
  return std::ldexp((code & sign) != 0 ? -significand : significand,
                    least_bit + std::max(exponent - 1, 0));
}

// The nearest value of a code.
double to_code(fastnorm_dtype_id codes, double value) {
  if (codes == FASTNORM_DTYPE_I8) return std::clamp(std::nearbyint(value), -128.0, 127.0);
  const FloatFormat format = code_format(codes);
  return std::clamp(round_to(format, value), -format.max_finite, format.max_finite);
}

// The scale that results of a largest magnitude have.
double scale_for(const SelftestCase& c, double magnitude) {
  const double least = magnitude / greatest_code(c.quant.codes);
  if (c.quant.scheme == FASTNORM_QUANT_NVFP4) {
    return to_code(FASTNORM_DTYPE_F8_E4M3FN, least / c.static_scale());
  }
  if (c.quant.scale == FASTNORM_DTYPE_F32) return least;
  int exponent = 0;
  const bool exact = std::frexp(least, &exponent) == 0.5;
  return std::ldexp(1, exact ? exponent - 1 : exponent);
}

double decode_scale(const SelftestCase& c, const std::byte* scale) {
  if (c.quant.scale == FASTNORM_DTYPE_F32) return decode(fastnorm_dtype_of(c.quant.scale), scale);
  const int byte = static_cast<int>(*scale);
  return c.quant.scale == FASTNORM_DTYPE_F8_E8M0FNU ? std::ldexp(1, byte - 127)
                                                    : decode_code(c.quant.scale, byte);
}

int code_at(const SelftestCase& c, const std::byte* codes, size_t i) {
  if (c.quant.codes != FASTNORM_DTYPE_F4_E2M1FN_X2) return static_cast<int>(codes[i]);
  return static_cast<int>(codes[i / 2]) >> (i % 2 * 4) & 15;
}

// Checks codes and scales of one row; returns the number of scales outside their interval, and of
// codes outside the one that follows from the scale as stored.
int64_t wrong_codes(const SelftestCase& c, std::vector<Interval> results, const std::byte* codes,
                    const std::byte* scales) {
  const fastnorm_dtype_id dtype = c.quant.codes;
  const size_t block = c.quant.block != 0 ? static_cast<size_t>(c.quant.block) : results.size();
  const size_t scale_bytes = element_bytes(fastnorm_dtype_of(c.quant.scale));
  const bool nvfp4 = c.quant.scheme == FASTNORM_QUANT_NVFP4;
  int64_t wrong = 0;
  for (size_t begin = 0; begin < results.size(); begin += block) {
    const size_t end = std::min(results.size(), begin + block);
    Interval amax = {0, 0};
    for (size_t i = begin; i < end; ++i) {
      Interval& z = results[i];
      if (c.quant_rounded) z = rounded(c.dtype, z);
      amax.low = std::max({amax.low, z.low, -z.high});
      amax.high = std::max({amax.high, z.high, -z.low});
    }
    double scale = c.static_scale();
    if (!c.quant.scale_is_static()) {
      scale = decode_scale(c, scales + begin / block * scale_bytes);
      // Four roundings at most: NVFP4's 1 / global, 1 / 6 and the products of these and amax.
      amax = widened(amax, 4 * kU);
      if (!(scale >= scale_for(c, amax.low) && scale <= scale_for(c, amax.high))) ++wrong;
    }
    const double unit = nvfp4 ? scale * c.static_scale() : scale;
    const double inverse = unit != 0 ? 1 / unit : 0;
    for (size_t i = begin; i < end; ++i) {
      // Roundings of the unit, of its inverse and of the product with it.
      const Interval w = widened({results[i].low * inverse, results[i].high * inverse}, 3 * kU);
      const double found = decode_code(dtype, code_at(c, codes, i));
      if (!(found >= to_code(dtype, w.low) && found <= to_code(dtype, w.high))) ++wrong;
    }
  }
  return wrong;
}

std::vector<double> sums_of_row(const SelftestCase& c, const CaseInputs& inputs, int64_t row) {
  const fastnorm_dtype residual = c.residual_dtype();
  std::vector<double> s(static_cast<size_t>(c.n));
  for (size_t i = 0; i < s.size(); ++i) {
    const size_t at = static_cast<size_t>(row * c.n) + i;
    s[i] = decode(c.dtype, &inputs.x[at * element_bytes(c.dtype)]);
    if (c.residual) {
      const double added = decode(residual, &inputs.residual[at * element_bytes(residual)]);
      s[i] = static_cast<float>(s[i]) + static_cast<float>(added);
    }
  }
  return s;
}

int64_t wrong_sums(const SelftestCase& c, const RowReference& r, const std::byte* residual_out) {
  const fastnorm_dtype dtype = c.residual_dtype();
  const size_t size = element_bytes(dtype);
  int64_t wrong = 0;
  for (size_t i = 0; i < r.s.size(); ++i) {
    const double wanted = round_to(float_format(dtype), r.s[i]);
    if (decode(dtype, residual_out + i * size) != wanted) ++wrong;
  }
  return wrong;
}

double decode_f32(const std::byte* value) {
  return decode(fastnorm_dtype_of(FASTNORM_DTYPE_F32), value);
}

void test_case(const Machine& machine, const SelftestCase& c, Tally* tally) {
  const CaseInputs inputs = make_inputs(c);
  const CaseOutputs outputs = run_case(machine, c, inputs, {}, tally);
  for (int64_t row = 0; row < c.rows; ++row) {
    const RowReference r = reference_row(c, chain_length(machine, c), sums_of_row(c, inputs, row));
    const std::vector<Interval> results = results_of_row(c, r, inputs, row);
    const std::string where = c.name() + ", row " + std::to_string(row) + ": ";
    const auto row_of = [&](Output output) {
      return &outputs[output][outputs[output].size() / static_cast<size_t>(c.rows) *
                              static_cast<size_t>(row)];
    };
    tally->expect(std::fabs(decode_f32(row_of(kRstd)) - r.rstd) <= r.rstd_error,
                  where + "rstd is outside its bound");
    if (c.kind == FASTNORM_NORM_LAYER) {
      tally->expect(std::fabs(decode_f32(row_of(kMean)) - r.mean) <= r.mean_error,
                    where + "mean is outside its bound");
    }
    if (c.residual) {
      tally->expect(wrong_sums(c, r, row_of(kResidualOut)) == 0,
                    where + "residual_out is not the rounded sum");
    }
    if (c.stores_y()) {
      const int64_t wrong = wrong_elements(c, results, row_of(kY));
      tally->expect(wrong == 0,
                    where + std::to_string(wrong) + " elements of y are outside their bounds");
    }
    if (c.quant.any()) {
      const std::byte* scales = c.quant.scale_is_static() ? nullptr : row_of(kScale);
      const int64_t wrong = wrong_codes(c, results, row_of(kCodes), scales);
      tally->expect(wrong == 0,
                    where + std::to_string(wrong) + " codes and scales are outside their bounds");
    }
  }
}

}  // namespace

void test_against_double(const Machine& machine, const Effort& effort, Tally* tally) {
  const std::vector<SelftestCase> cases = effort.some_of(selftest_cases());
  for (size_t i = 0; i < cases.size(); ++i) {
    const SelftestCase& c = cases[i];
    show_progress(i, cases.size(), c.name());
    // The bounds are those of one rounding, of y, and of finite results; hashes cover the others.
    const bool once =
        c.rounding == FASTNORM_ROUND_ONCE && c.residual_rounding == FASTNORM_RESIDUAL_EXACT;
    if (once && !c.special) test_case(machine, c, tally);
  }
}

}  // namespace fastnorm::tool
