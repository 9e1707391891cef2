// The table of hashes that `fastnorm selftest` compares with, computed anew by the arithmetic's
// model in tests/ref: both columns, on any machine. `--print` writes it, for
// tools/fastnorm/selftest_golden.inc.
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "fastnorm/dtype.h"
#include "fastnorm/selftest_backward.h"
#include "ref/norm_backward_model.h"
#include "ref/norm_model.h"
#include "ref/quant.h"
#include "support/share.h"

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
  const float static_scale = c.static_scale();
  ref::QuantResult result;
  ref::quant_model(options, z.data(), c.n, type_of(c.dtype), static_scale, static_scale, &result);
  std::vector<uint8_t>& codes = result.codes;
  if (options.format == ref::Format::kE2M1) {
    ref::pack_e2m1(codes.data(), c.n, codes.data());
    codes.resize(codes.size() / 2);
  }
  append(&(*outputs)[kCodes], codes.data(), codes.size());
  if (c.quant.scale_is_static()) return;
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
  const ref::Type columns = type_of(c.weight_dtype()), sums = type_of(c.residual_dtype());
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

ref::NormBackwardOptions options_of(const BackwardCase& c) {
  ref::NormBackwardOptions options;
  options.dtype = options.x_dtype = type_of(c.dtype);
  options.kind = c.layer() ? ref::Kind::kLayer : ref::Kind::kRms;
  options.rounding = static_cast<ref::Rounding>(c.rounding);
  options.eps = kSelftestEps;
  options.weight_offset = kSelftestWeightOffset;
  return options;
}

// The gradients of a case, in one of the two orders.
BackwardOutputs model_outputs(const BackwardCase& c, ref::Order order,
                              ref::RowOrder row_order = ref::RowOrder::kSpecified) {
  const BackwardInputs inputs = make_inputs(c);
  const ref::Type type = type_of(c.dtype), columns = type_of(c.weight_dtype());
  const std::vector<float> dy = decoded(type, inputs.dy), x = decoded(type, inputs.x),
                           weight = decoded(columns, inputs.weight),
                           dresidual_in = decoded(type, inputs.dresidual_in);
  std::vector<float> mean = decoded(ref::Type::kF32, inputs.mean),
                     rstd = decoded(ref::Type::kF32, inputs.rstd);
  const ref::NormBackwardOptions options = options_of(c);
  ref::ModelScratch scratch;
  for (int64_t row = 0; c.recompute && row < c.rows; ++row) {
    const auto at = static_cast<size_t>(row);
    ref::norm_backward_statistics(options, x.data() + row * c.n, c.n, order, &scratch, &mean[at],
                                  &rstd[at]);
  }
  const auto row_of = [&](int64_t row) {
    const auto at = static_cast<size_t>(row);
    const float* of_row = c.residual ? dresidual_in.data() + row * c.n : nullptr;
    return ref::NormBackwardRow{c.n,
                                dy.data() + row * c.n,
                                x.data() + row * c.n,
                                weight.data() + row % c.heads * c.n,
                                of_row,
                                c.layer() ? mean[at] : 0,
                                rstd[at]};
  };
  BackwardOutputs outputs;
  std::vector<float> dh(static_cast<size_t>(c.n)), dweight = dh, dbias = dh;
  for (int64_t row = 0; row < c.rows; ++row) {
    ref::norm_backward_row_model(options, row_of(row), order, dh.data());
    append_row(&outputs.dx, type, dh);
  }
  for (int64_t head = 0; head < c.heads; ++head) {
    ref::norm_backward_sums_model(
        options, c.rows / c.heads, c.n, [&](int64_t i) { return row_of(i * c.heads + head); },
        dweight.data(), dbias.data(), row_order);
    append_row(&outputs.dweight, columns, dweight);
    if (c.layer()) append_row(&outputs.dbias, columns, dbias);
  }
  return outputs;
}

void compare(const std::string& name, bool cuda, uint64_t found, Tally* tally) {
  const uint64_t* wanted = find_golden(name, cuda);
  if (!tally->expect(wanted != nullptr, name + ": not in the table of hashes")) return;
  char text[96];
  std::snprintf(text, sizeof text, "the model has %016llx, the table %016llx",
                static_cast<unsigned long long>(found), static_cast<unsigned long long>(*wanted));
  tally->expect(found == *wanted, name + " on a " + (cuda ? "GPU: " : "CPU: ") + text);
}

template <typename Case>
std::vector<Case> share_of(const std::vector<Case>& all) {
  return Effort{false, support::share()}.some_of(all);
}

// The sums have the same bits on both, where statistics are given, and a wrong order of rows shows.
void test_backward(Tally* tally) {
  int64_t told = 0;
  const std::vector<BackwardCase> cases = share_of(backward_cases());
  for (const BackwardCase& c : cases) {
    const BackwardOutputs cpu = model_outputs(c, ref::Order::kCpu),
                          gpu = model_outputs(c, ref::Order::kGpu);
    compare(dx_name(c), false, hash_of_dx(cpu), tally);
    compare(dx_name(c), true, hash_of_dx(gpu), tally);
    compare(sums_name(c), false, hash_of_sums(cpu), tally);
    compare(sums_name(c), true, hash_of_sums(gpu), tally);
    if (c.recompute) continue;
    tally->expect(hash_of_sums(cpu) == hash_of_sums(gpu), c.name() + ": one order of rows");
    const BackwardOutputs wrong = model_outputs(c, ref::Order::kCpu, ref::RowOrder::kSequential);
    if (hash_of_sums(wrong) != hash_of_sums(cpu)) ++told;
  }
  tally->expect(told * 2 > static_cast<int64_t>(cases.size()),
                "a wrong order of rows shows in " + std::to_string(told) + " cases");
}

// Every number of 16 bits means in the program what it means in the reference.
void test_numbers(Tally* tally) {
  for (const auto id : {FASTNORM_DTYPE_F16, FASTNORM_DTYPE_BF16}) {
    const fastnorm_dtype dtype = fastnorm_dtype_of(id);
    int32_t differ = 0;
    for (uint32_t number = 0; number < 0x10000; ++number) {
      const auto bits = static_cast<uint16_t>(number);
      float wanted = 0;
      ref::decode_row(type_of(dtype), &bits, &wanted, 1);
      const double found = decode(dtype, &bits);
      differ += std::isnan(wanted) ? !std::isnan(found) : found != wanted;
    }
    tally->expect(differ == 0, std::to_string(differ) + " numbers of dtype " + std::to_string(id) +
                                   " differ from the reference");
  }
}

void test_column(ref::Order order, bool cuda, Tally* tally) {
  for (const SelftestCase& c : share_of(selftest_cases()))
    compare(c.name(), cuda, hash_of(model_outputs(c, order)), tally);
}

void print_table() {
  std::printf(
      "// Case, hash on CPUs, hash on GPUs. By tests/cli/golden_test --print, from tests/ref.\n");
  for (const SelftestCase& c : selftest_cases()) {
    std::printf("{\"%s\", 0x%016" PRIx64 ", 0x%016" PRIx64 "},\n", c.name().c_str(),
                hash_of(model_outputs(c, ref::Order::kCpu)),
                hash_of(model_outputs(c, ref::Order::kGpu)));
  }
  const auto line = [](const std::string& name, uint64_t cpu, uint64_t gpu) {
    std::printf("{\"%s\", 0x%016" PRIx64 ", 0x%016" PRIx64 "},\n", name.c_str(), cpu, gpu);
  };
  for (const BackwardCase& c : backward_cases()) {
    const BackwardOutputs cpu = model_outputs(c, ref::Order::kCpu),
                          gpu = model_outputs(c, ref::Order::kGpu);
    line(dx_name(c), hash_of_dx(cpu), hash_of_dx(gpu));
    line(sums_name(c), hash_of_sums(cpu), hash_of_sums(gpu));
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
  tool::test_column(ref::Order::kCpu, false, &tally);
  tool::test_column(ref::Order::kGpu, true, &tally);
  tool::test_backward(&tally);
  tool::test_numbers(&tally);
  tally.print();
  std::printf("%lld passed, %lld failed, 0 skipped\n", static_cast<long long>(tally.passed),
              static_cast<long long>(tally.failed));
  return tally.failed == 0 ? 0 : 1;
}
