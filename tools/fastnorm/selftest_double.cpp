// The outputs against the formulas in double precision, within bounds that follow from the
// arithmetic: single-precision operations, each rounded once, and the length of the longest chain of
// additions.
#include <algorithm>
#include <cmath>

#include "dtype.h"
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

// Checks y of one row; returns the number of elements outside their interval.
int64_t wrong_elements(const SelftestCase& c, const RowReference& r, const CaseInputs& inputs,
                       const std::byte* y) {
  const size_t size = element_bytes(c.dtype);
  const FloatFormat format = float_format(c.dtype);
  int64_t wrong = 0;
  for (size_t i = 0; i < r.s.size(); ++i) {
    const double g = decode(c.dtype, &inputs.weight[i * size]) + kSelftestWeightOffset;
    const double bias = inputs.bias.empty() ? 0 : decode(c.dtype, &inputs.bias[i * size]);
    const double t = (r.s[i] - r.mean) * r.rstd;
    const double t_error = r.rstd * r.mean_error + (r.rstd_error / r.rstd + 2 * kU) * std::fabs(t);
    // The offset is added to the weight in f32: one more rounding of g.
    const double z = t * g + bias;
    const double z_error = kSecondOrder * (std::fabs(g) * t_error + kU * std::fabs(t * g) +
                                           2 * kU * (std::fabs(t * g) + std::fabs(bias)));
    const double found = decode(c.dtype, y + i * size);
    // A subnormal f32 result has no relative bound, but an ulp.
    const double least = round_to(format, z - z_error), most = round_to(format, z + z_error);
    if (!(found >= least && found <= most)) ++wrong;
  }
  return wrong;
}

std::vector<double> sums_of_row(const SelftestCase& c, const CaseInputs& inputs, int64_t row) {
  const size_t size = element_bytes(c.dtype);
  std::vector<double> s(static_cast<size_t>(c.n));
  for (size_t i = 0; i < s.size(); ++i) {
    const size_t at = (static_cast<size_t>(row * c.n) + i) * size;
    s[i] = decode(c.dtype, &inputs.x[at]);
    if (c.residual) {
      s[i] = static_cast<float>(s[i]) + static_cast<float>(decode(c.dtype, &inputs.residual[at]));
    }
  }
  return s;
}

int64_t wrong_sums(const SelftestCase& c, const RowReference& r, const std::byte* residual_out) {
  const size_t size = element_bytes(c.dtype);
  int64_t wrong = 0;
  for (size_t i = 0; i < r.s.size(); ++i) {
    const double wanted = round_to(float_format(c.dtype), r.s[i]);
    if (decode(c.dtype, residual_out + i * size) != wanted) ++wrong;
  }
  return wrong;
}

double statistic(const std::vector<std::byte>& values, int64_t row) {
  return decode(fastnorm_dtype_of(FASTNORM_DTYPE_F32), &values[static_cast<size_t>(row) * 4]);
}

void test_case(const Machine& machine, const SelftestCase& c, Tally* tally) {
  const CaseInputs inputs = make_inputs(c);
  CaseLayout layout;
  layout.name = "compact rows";
  const CaseOutputs outputs = run_case(machine, c, inputs, layout, tally);
  const size_t row_bytes = static_cast<size_t>(c.n) * element_bytes(c.dtype);
  for (int64_t row = 0; row < c.rows; ++row) {
    const RowReference r = reference_row(c, chain_length(machine, c), sums_of_row(c, inputs, row));
    const std::string where = c.name() + ", row " + std::to_string(row) + ": ";
    const size_t at = static_cast<size_t>(row) * row_bytes;
    tally->expect(std::fabs(statistic(outputs.rstd, row) - r.rstd) <= r.rstd_error,
                  where + "rstd is outside its bound");
    if (c.kind == FASTNORM_NORM_LAYER) {
      tally->expect(std::fabs(statistic(outputs.mean, row) - r.mean) <= r.mean_error,
                    where + "mean is outside its bound");
    }
    if (c.residual) {
      tally->expect(wrong_sums(c, r, &outputs.residual_out[at]) == 0,
                    where + "residual_out is not the rounded sum");
    }
    const int64_t wrong = wrong_elements(c, r, inputs, &outputs.y[at]);
    tally->expect(wrong == 0,
                  where + std::to_string(wrong) + " elements of y are outside their bounds");
  }
}

}  // namespace

void test_against_double(const Machine& machine, Tally* tally) {
  for (const SelftestCase& c : selftest_cases()) {
    // The bounds are those of one rounding, of y; other roundings are covered by their hashes.
    if (c.rounding != FASTNORM_ROUND_ONCE || c.residual_rounding != FASTNORM_RESIDUAL_EXACT) {
      continue;
    }
    test_case(machine, c, tally);
  }
}

}  // namespace fastnorm::tool
