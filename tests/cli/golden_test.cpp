// The table of hashes that `fastnorm selftest` compares with, computed anew by the arithmetic's model in
// tests/ref: both columns, on any machine. `--print` writes it, for tools/fastnorm/selftest_golden.inc.
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "fastnorm/selftest.h"
#include "ref/norm_model.h"
#include "ref/quant.h"

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
  options.dtype = type_of(c.dtype);
  options.sum_dtype = type_of(c.residual_dtype());
  options.y_f32 = c.mixed;
  options.kind = c.kind == FASTNORM_NORM_LAYER ? ref::Kind::kLayer : ref::Kind::kRms;
  options.rounding = static_cast<ref::Rounding>(c.rounding);
  options.residual_rounding = static_cast<ref::ResidualRounding>(c.residual_rounding);
  options.eps = kSelftestEps;
  options.weight_offset = kSelftestWeightOffset;
  return options;
}

ref::Format format_of(fastnorm_dtype_id codes) {
  return codes == FASTNORM_DTYPE_F8_E4M3FN ? ref::Format::kE4M3
         : codes == FASTNORM_DTYPE_F8_E5M2 ? ref::Format::kE5M2
         : codes == FASTNORM_DTYPE_I8      ? ref::Format::kI8
                                           : ref::Format::kE2M1;
}

ref::QuantOptions quant_options_of(const SelftestCase& c) {
  ref::QuantOptions options;
  options.scheme = static_cast<ref::Scheme>(c.quant.scheme);
  options.format = format_of(c.quant.codes);
  options.block_size = c.quant.block;
  options.source = c.quant_rounded ? ref::QuantSource::kRounded : ref::QuantSource::kF32;
  options.pow2 = options.e8m0 = c.quant.scale == FASTNORM_DTYPE_F8_E8M0FNU;
  return options;
}

template <typename T>
void append(std::vector<std::byte>* to, const T* from, size_t count) {
  const auto* begin = reinterpret_cast<const std::byte*>(from);
  to->insert(to->end(), begin, begin + count * sizeof(T));
}

void append_row(std::vector<std::byte>* to, ref::Type type, const std::vector<float>& row) {
  std::vector<std::byte> bytes(row.size() * static_cast<size_t>(ref::bytes_of(type)));
  ref::encode_row(type, row.data(), bytes.data(), static_cast<int64_t>(row.size()));
  append(to, bytes.data(), bytes.size());
}

void append_codes(const SelftestCase& c, const std::vector<float>& z, CaseOutputs* outputs) {
  const ref::QuantOptions options = quant_options_of(c);
  const float given = c.given_scale();
  ref::QuantResult result;
  ref::quant_model(options, z.data(), c.n, type_of(c.dtype), given, given, &result);
  std::vector<uint8_t>& codes = result.codes;
  if (options.format == ref::Format::kE2M1) {
    ref::pack_e2m1(codes.data(), c.n, codes.data());
    codes.resize(codes.size() / 2);
  }
  append(&(*outputs)[kCodes], codes.data(), codes.size());
  if (c.quant.scale_is_given()) return;
  std::vector<std::byte>* scale = &(*outputs)[kScale];
  if (ref::has_scale_bytes(options)) {
    append(scale, result.scale_bytes.data(), result.scale_bytes.size());
  } else {
    append(scale, result.scale.data(), result.scale.size());
  }
}

// What the library must compute for a case, in one of the two orders.
CaseOutputs model_outputs(const SelftestCase& c, ref::Order order) {
  const CaseInputs inputs = make_inputs(c);
  const ref::Type columns = type_of(c.column_dtype()), sums = type_of(c.residual_dtype());
  const std::vector<float> x = decoded(type_of(c.dtype), inputs.x);
  const std::vector<float> residual = decoded(sums, inputs.residual);
  const std::vector<float> weight = decoded(columns, inputs.weight);
  const std::vector<float> bias = decoded(columns, inputs.bias);
  const bool layer = c.kind == FASTNORM_NORM_LAYER;
  CaseOutputs outputs;
  ref::ModelScratch scratch;
  ref::NormResult result;
  for (int64_t row = 0; row < c.rows; ++row) {
    const float* x_row = x.data() + row * c.n;
    const float* residual_row = c.residual ? residual.data() + row * c.n : nullptr;
    const float* weight_row = weight.data() + c.weight_row(row) * c.n;
    const float* bias_row = layer ? bias.data() + c.weight_row(row) * c.n : nullptr;
    ref::norm_model(options_of(c), {c.n, x_row, residual_row, weight_row, bias_row}, order,
                    &scratch, &result);
    if (c.stores_y()) append_row(&outputs[kY], type_of(c.y_dtype()), result.z);
    if (c.residual) append_row(&outputs[kResidualOut], sums, result.sum);
    if (layer) append(&outputs[kMean], &result.mean, 1);
    append(&outputs[kRstd], &result.rstd, 1);
    if (c.quant.any()) append_codes(c, result.z, &outputs);
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

void print_table() {
  std::printf(
      "// Case, hash on CPUs, hash on GPUs. By tests/cli/golden_test --print, from tests/ref.\n");
  for (const SelftestCase& c : selftest_cases()) {
    std::printf("{\"%s\", 0x%016" PRIx64 ", 0x%016" PRIx64 "},\n", c.name().c_str(),
                hash_of(model_outputs(c, ref::Order::kCpu)),
                hash_of(model_outputs(c, ref::Order::kGpu)));
  }
}

}  // namespace
}  // namespace fastnorm::tool

int main(int argc, char** argv) {
  using namespace fastnorm;
  if (argc > 1 && std::strcmp(argv[1], "--print") == 0) {
    tool::print_table();
    return 0;
  }
  tool::Tally tally;
  tool::test_column(ref::Order::kCpu, false, "CPU", &tally);
  tool::test_column(ref::Order::kGpu, true, "GPU", &tally);
  std::printf("%lld passed, %lld failed, 0 skipped\n", static_cast<long long>(tally.passed),
              static_cast<long long>(tally.failed));
  return tally.failed == 0 ? 0 : 1;
}
