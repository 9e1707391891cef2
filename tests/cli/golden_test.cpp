// The table of hashes that `fastnorm selftest` compares with, computed anew by the arithmetic's model in
// tests/ref: both columns, on any machine.
#include <cstdio>
#include <cstring>

#include "fastnorm/selftest.h"
#include "ref/norm_model.h"

namespace fastnorm::tool {
namespace {

ref::Type type_of(fastnorm_dtype dtype) {
  return dtype.bits == 32 ? ref::Type::kF32 : dtype.code == 4 ? ref::Type::kBF16 : ref::Type::kF16;
}

std::vector<float> decoded(ref::Type type, const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(ref::bytes_of(type)));
  ref::decode_row(type, bytes.data(), values.data(), static_cast<int64_t>(values.size()));
  return values;
}

ref::NormOptions options_of(const SelftestCase& c) {
  ref::NormOptions options;
  options.dtype = options.sum_dtype = type_of(c.dtype);
  options.kind = c.kind == FASTNORM_NORM_LAYER ? ref::Kind::kLayer : ref::Kind::kRms;
  options.rounding = static_cast<ref::Rounding>(c.rounding);
  options.residual_rounding = static_cast<ref::ResidualRounding>(c.residual_rounding);
  options.eps = kSelftestEps;
  options.weight_offset = kSelftestWeightOffset;
  return options;
}

void append(std::vector<std::byte>* to, const void* from, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(from);
  to->insert(to->end(), begin, begin + bytes);
}

void append_row(std::vector<std::byte>* to, ref::Type type, const std::vector<float>& row) {
  std::vector<std::byte> bytes(row.size() * static_cast<size_t>(ref::bytes_of(type)));
  ref::encode_row(type, row.data(), bytes.data(), static_cast<int64_t>(row.size()));
  append(to, bytes.data(), bytes.size());
}

// What the library must compute for a case, in one of the two orders.
CaseOutputs model_outputs(const SelftestCase& c, ref::Order order) {
  const CaseInputs inputs = make_inputs(c);
  const ref::Type type = type_of(c.dtype);
  const std::vector<float> x = decoded(type, inputs.x), residual = decoded(type, inputs.residual);
  const std::vector<float> weight = decoded(type, inputs.weight), bias = decoded(type, inputs.bias);
  const bool layer = c.kind == FASTNORM_NORM_LAYER;
  CaseOutputs outputs;
  ref::ModelScratch scratch;
  ref::NormResult result;
  for (int64_t row = 0; row < c.rows; ++row) {
    const float* x_row = x.data() + row * c.n;
    const float* residual_row = c.residual ? residual.data() + row * c.n : nullptr;
    ref::norm_model(options_of(c),
                    {c.n, x_row, residual_row, weight.data(), layer ? bias.data() : nullptr}, order,
                    &scratch, &result);
    append_row(&outputs.y, type, result.z);
    if (c.residual) append_row(&outputs.residual_out, type, result.sum);
    if (layer) append(&outputs.mean, &result.mean, sizeof result.mean);
    append(&outputs.rstd, &result.rstd, sizeof result.rstd);
  }
  return outputs;
}

void test_column(ref::Order order, bool cuda, const char* name, Tally* tally) {
  for (const SelftestCase& c : selftest_cases()) {
    const uint64_t found = hash_of(model_outputs(c, order));
    const uint64_t* wanted = find_golden(c.name(), cuda);
    if (!tally->expect(wanted != nullptr, c.name() + ": not in the table of hashes")) continue;
    char text[96];
    std::snprintf(text, sizeof text, "the model has %016llx, the table %016llx",
                  static_cast<unsigned long long>(found), static_cast<unsigned long long>(*wanted));
    tally->expect(found == *wanted, c.name() + " on a " + name + ": " + text);
  }
}

}  // namespace
}  // namespace fastnorm::tool

int main() {
  using namespace fastnorm;
  tool::Tally tally;
  tool::test_column(ref::Order::kCpu, false, "CPU", &tally);
  tool::test_column(ref::Order::kGpu, true, "GPU", &tally);
  std::printf("%lld passed, %lld failed, 0 skipped\n", static_cast<long long>(tally.passed),
              static_cast<long long>(tally.failed));
  return tally.failed == 0 ? 0 : 1;
}
