// The sweep of the self-test: its cases, their input, and running one of them in some layout.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "dtype.h"
#include "selftest_image.h"
#include "support/quant_scheme.h"

namespace fastnorm::tool {
namespace {

constexpr CaseQuant kQuants[] = {
    {"tensor e4m3", FASTNORM_QUANT_PER_TENSOR, FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F32, 0,
     0x1p-2f},
    {"tensor e5m2", FASTNORM_QUANT_PER_TENSOR, FASTNORM_DTYPE_F8_E5M2, FASTNORM_DTYPE_F32, 0,
     0x1p-9f},
    {"tensor i8", FASTNORM_QUANT_PER_TENSOR, FASTNORM_DTYPE_I8, FASTNORM_DTYPE_F32, 0, 0x1p-2f},
    {"row e4m3", FASTNORM_QUANT_PER_ROW},
    {"row i8", FASTNORM_QUANT_PER_ROW, FASTNORM_DTYPE_I8},
    {"block128 e4m3", FASTNORM_QUANT_PER_BLOCK, FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F32, 128},
    {"block64 e4m3 pow2", FASTNORM_QUANT_PER_BLOCK, FASTNORM_DTYPE_F8_E4M3FN,
     FASTNORM_DTYPE_F8_E8M0FNU, 64},
    {"mxfp8 e4m3", FASTNORM_QUANT_MXFP8, FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F8_E8M0FNU, 32},
    {"mxfp8 e5m2", FASTNORM_QUANT_MXFP8, FASTNORM_DTYPE_F8_E5M2, FASTNORM_DTYPE_F8_E8M0FNU, 32},
    {"nvfp4", FASTNORM_QUANT_NVFP4, FASTNORM_DTYPE_F4_E2M1FN_X2, FASTNORM_DTYPE_F8_E4M3FN, 16,
     0x1p-6f},
    {"mxfp4", FASTNORM_QUANT_MXFP4, FASTNORM_DTYPE_F4_E2M1FN_X2, FASTNORM_DTYPE_F8_E8M0FNU, 32},
};

constexpr int64_t kRows = 6;

fastnorm_dtype f32() { return fastnorm_dtype_of(FASTNORM_DTYPE_F32); }

void add_plain_cases(fastnorm_dtype dtype, fastnorm_norm_kind kind, bool residual,
                     std::vector<SelftestCase>* cases) {
  // Below, at and above powers of two, short tails, and a row longer than a GPU's registers.
  for (const int64_t n : {1, 7, 64, 129, 1000, 4096, 8192, 20000, 70001}) {
    cases->push_back({dtype, kind, residual, kRows, n});
  }
  for (const auto rounding : {FASTNORM_ROUND_NORMALIZED, FASTNORM_ROUND_EVERY_STEP}) {
    cases->push_back({dtype, kind, residual, kRows, 768, rounding});
  }
  if (!residual) return;
  for (const auto rounding :
       {FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY, FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS}) {
    cases->push_back({dtype, kind, residual, kRows, 768, FASTNORM_ROUND_ONCE, rounding});
  }
}

// Every conversion after either statistic, of x and of a sum; after half of these also where a GPU
// has other kernels: unaligned rows, codes without y, rows that no thread block holds.
void add_quantised_cases(fastnorm_dtype dtype, fastnorm_norm_kind kind, bool residual,
                         std::vector<SelftestCase>* cases) {
  for (const CaseQuant& quant : kQuants) {
    SelftestCase c{dtype, kind, residual, kRows, 1024};
    c.quant = quant;
    c.quant_rounded = true;
    cases->push_back(c);
    if (residual != (kind == FASTNORM_NORM_LAYER)) continue;
    c.quant_rounded = false;
    for (const int64_t n : {130, 4096, 20002}) {
      c.n = n;
      if (n < 20000 || residual) cases->push_back(c);
    }
  }
}

// Codes of results that are not finite. An f32 scale would be NaN, whose payload nobody promises.
void add_special_cases(fastnorm_dtype dtype, fastnorm_norm_kind kind,
                       std::vector<SelftestCase>* cases) {
  for (const CaseQuant& quant : kQuants) {
    if (quant.scale == FASTNORM_DTYPE_F32 && !quant.scale_is_static()) continue;
    SelftestCase c{dtype, kind, false, kRows, kind == FASTNORM_NORM_RMS ? 1024 : 130};
    c.quant = quant;
    c.special = true;
    cases->push_back(c);
  }
}

void add_f32_weight_cases(fastnorm_dtype dtype, fastnorm_norm_kind kind, bool residual,
                          std::vector<SelftestCase>* cases) {
  SelftestCase c{dtype, kind, residual, kRows, 0};
  c.f32_weights = true;
  for (const int64_t n : {129, 1000, 4096, 20000}) {
    c.n = n;
    cases->push_back(c);
  }
  c.n = 1024;
  for (const CaseQuant& quant : kQuants) {
    c.quant = quant;
    if (quant.codes == FASTNORM_DTYPE_F8_E4M3FN) cases->push_back(c);
  }
}

void add_mixed_cases(fastnorm_dtype dtype, bool residual, std::vector<SelftestCase>* cases) {
  SelftestCase c{dtype, FASTNORM_NORM_RMS, residual, kRows, 0};
  c.mixed = true;
  for (const int64_t n : {129, 1000, 4096, 20000, 70001}) {
    c.n = n;
    cases->push_back(c);
  }
  c.n = 768;
  for (const auto rounding : {FASTNORM_ROUND_NORMALIZED, FASTNORM_ROUND_EVERY_STEP}) {
    c.rounding = rounding;
    c.residual_rounding =
        residual ? FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS : FASTNORM_RESIDUAL_EXACT;
    cases->push_back(c);
  }
}

void add_head_cases(fastnorm_dtype dtype, fastnorm_norm_kind kind,
                    std::vector<SelftestCase>* cases) {
  constexpr int64_t kTokens = 3, kQueries = 4, kKeys = 2;
  for (const int64_t n : {111, 128}) {
    for (const bool weight_per_head : {false, true}) {
      SelftestCase c{dtype, kind, false, kTokens * (kQueries + kKeys), n};
      c.query_heads = kQueries;
      c.key_heads = kKeys;
      c.weight_per_head = weight_per_head;
      cases->push_back(c);
    }
  }
}

// One 64-bit hash of an index: splitmix64's finaliser.
uint64_t hash(uint64_t index) {
  uint64_t z = index + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Uniform in [-2, 2) on a grid of 2^-22, one value in 64 sixteen times as large. 0.375 is added, so
// that a mean is there to be subtracted. Every step is exact in binary floating point.
double value_at(uint64_t stream, uint64_t index) {
  const uint64_t h = hash(stream << 48 ^ index);
  const double uniform = (static_cast<double>(h & 0xffffff) - 0x800000) * 0x1p-22;
  return (h >> 32) % 64 == 0 ? uniform * 16 + 0.375 : uniform + 0.375;
}

// The tensors of a case in an image.
struct CaseTensors {
  Rows x, residual, weight, bias, static_scale;
  std::array<Rows, kOutputs> out;
};

std::vector<std::byte> row_of(const std::vector<std::byte>& rows, int64_t count, int64_t row) {
  if (rows.empty()) return {};
  const size_t bytes = rows.size() / static_cast<size_t>(count);
  const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(bytes * static_cast<size_t>(row));
  return {begin, begin + static_cast<std::ptrdiff_t>(bytes)};
}

CaseTensors add_tensors(const SelftestCase& c, const CaseInputs& inputs, const CaseLayout& layout,
                        int64_t rows, Image* image) {
  const bool layer = c.kind == FASTNORM_NORM_LAYER, alone = layout.only_row >= 0;
  const int64_t weight_rows = alone ? 1 : c.weight_rows();
  CaseTensors t;
  const auto add_input = [&](const std::vector<std::byte>& content, fastnorm_dtype dtype) {
    if (content.empty()) return Rows();
    const Rows added = image->add_rows(dtype, c.n);
    image->fill(added, alone ? row_of(content, c.rows, layout.only_row) : content);
    return added;
  };
  const auto add_weights = [&](const std::vector<std::byte>& content) {
    if (content.empty()) return Rows();
    const Rows added = image->add_compact(c.weight_dtype(), weight_rows, c.n);
    image->fill(added,
                alone ? row_of(content, c.weight_rows(), c.weight_row(layout.only_row)) : content);
    return added;
  };
  t.x = add_input(inputs.x, c.dtype);
  t.residual = add_input(inputs.residual, c.residual_dtype());
  t.weight = add_weights(inputs.weight);
  t.bias = add_weights(inputs.bias);
  // y of another dtype than x has memory of its own.
  const bool over_x = layout.in_place && (!c.mixed || c.dtype.bits == 32);
  if (c.stores_y()) t.out[kY] = over_x ? t.x : image->add_rows(c.y_dtype(), c.n);
  if (c.residual)
    t.out[kResidualOut] = layout.in_place ? t.residual : image->add_rows(c.residual_dtype(), c.n);
  if (layer) t.out[kMean] = image->add_rows(f32(), 1);
  t.out[kRstd] = image->add_rows(f32(), 1);
  if (!c.quant.any()) return t;

  const fastnorm_dtype codes = fastnorm_dtype_of(c.quant.codes);
  t.out[kCodes] = image->add_rows(codes, c.n / codes.lanes);
  if (c.quant.static_scale != 0) {
    t.static_scale = image->add_compact(f32(), 1, 1);
    image->fill(t.static_scale, c.static_scale());
  }
  if (c.quant.scale_is_static()) return t;
  const fastnorm_dtype scale = fastnorm_dtype_of(c.quant.scale);
  t.out[kScale] = layout.scales == FASTNORM_SCALE_ROW_MAJOR
                      ? image->add_rows(scale, c.scales())
                      : image->add_compact(scale, rows, c.scales(), layout.scales);
  return t;
}

// One call, on all rows of a matrix or on some heads of every token.
class Call {
 public:
  Call(const Target& target, const SelftestCase& c, const CaseLayout& layout, const Image& image,
       const CaseTensors& t, int64_t head = 0, int64_t heads = 1) {
    const auto rows = [&](const Rows& of) {
      return views_.emplace_back(image.view(target, of, head, heads)).get();
    };
    const auto columns = [&](const Rows& of) {
      const bool each = c.weight_per_head && of.rows > 1;
      const int64_t first = of.rows == 1 ? 0 : each ? head : c.weight_row(head);
      return views_.emplace_back(image.columns(target, of, first, each ? heads : 1)).get();
    };
    views_.reserve(5 + kOutputs);
    args_.struct_size = sizeof args_;
    args_.kind = c.kind;
    args_.eps = kSelftestEps;
    args_.weight_offset = kSelftestWeightOffset;
    args_.rounding = c.rounding;
    args_.residual_rounding = c.residual_rounding;
    args_.x = rows(t.x);
    args_.residual = rows(t.residual);
    args_.weight = columns(t.weight);
    args_.bias = columns(t.bias);
    args_.y = t.out[kY].first == t.x.first ? args_.x : rows(t.out[kY]);
    args_.residual_out =
        t.out[kResidualOut].first == t.residual.first ? args_.residual : rows(t.out[kResidualOut]);
    args_.mean = rows(t.out[kMean]);
    args_.rstd = rows(t.out[kRstd]);
    if (!c.quant.any()) return;
    const CaseQuant& q = c.quant;
    const bool rule_by_scheme = support::scheme_of(q.scheme).block > 0;
    quant_.struct_size = sizeof quant_;
    args_.quant = &quant_;
    quant_.scheme = q.scheme;
    quant_.block_size = rule_by_scheme ? 0 : q.block;
    quant_.scale_pow2 = !rule_by_scheme && q.scale == FASTNORM_DTYPE_F8_E8M0FNU;
    quant_.source = c.quant_rounded ? FASTNORM_QUANT_FROM_ROUNDED : FASTNORM_QUANT_FROM_F32;
    quant_.scale_layout = layout.scales;
    quant_.quantized = rows(t.out[kCodes]);
    (q.scale_is_static() ? quant_.scale : quant_.global_scale) = columns(t.static_scale);
    if (!q.scale_is_static()) quant_.scale = rows(t.out[kScale]);
  }
  Call(const Call&) = delete;

  const fastnorm_norm_args& args() const { return args_; }

 private:
  std::vector<TensorView> views_;
  fastnorm_norm_args args_ = {};
  fastnorm_quant quant_ = {};
};

void run_together(const Machine& machine, const Call& first, const Call& second) {
  const fastnorm_norm_args* const args[] = {&first.args(), &second.args()};
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_norm_many_query(machine.context(), args, 2, &info));
  const Block workspace =
      info.workspace_bytes != 0 ? machine.allocate(info.workspace_bytes) : Block();
  check(fastnorm_norm_many(machine.context(), args, 2, workspace.get(), info.workspace_bytes,
                           machine.stream()));
  machine.synchronize();
}

void run_calls(const Machine& machine, const SelftestCase& c, const CaseLayout& layout,
               const Image& image, const CaseTensors& t) {
  const auto call = [&](int64_t head, int64_t heads) {
    return Call(machine.target(), c, layout, image, t, head, heads);
  };
  if (t.x.heads == 1 || layout.calls == HeadCalls::kOne) {
    machine.run(call(0, t.x.heads == 1 ? 1 : c.heads()).args());
    return;
  }
  const Call queries = call(0, c.query_heads), keys = call(c.query_heads, c.key_heads);
  if (layout.calls == HeadCalls::kMany) return run_together(machine, queries, keys);
  machine.run(queries.args());
  machine.run(keys.args());
}

}  // namespace

// A stream's tensors begin alike, so the longest so far is kept: rounding all for each case anew
// would take longer than to run it.
std::vector<std::byte> make_tensor(fastnorm_dtype dtype, int64_t count, uint64_t stream) {
  static std::map<std::pair<std::string_view, uint64_t>, std::vector<std::byte>> longest;
  const size_t size = element_bytes(dtype), bytes = static_cast<size_t>(count) * size;
  std::vector<std::byte>& known = longest[{find_dtype(dtype)->name, stream}];
  for (size_t at = known.size(); at < bytes; at += size) {
    known.resize(at + size);
    encode(dtype, value_at(stream, at / size), &known[at]);
  }
  return {known.begin(), known.begin() + static_cast<std::ptrdiff_t>(bytes)};
}

int64_t SelftestCase::weight_row(int64_t row) const {
  if (heads() == 0) return 0;
  const int64_t head = row % heads();
  return weight_per_head ? head : head >= query_heads;
}

fastnorm_dtype SelftestCase::weight_dtype() const {
  if (f32_weights) return f32();
  if (!mixed) return dtype;
  return fastnorm_dtype_of(dtype.code == 2 && dtype.bits == 16 ? FASTNORM_DTYPE_BF16
                                                               : FASTNORM_DTYPE_F16);
}

fastnorm_dtype SelftestCase::residual_dtype() const {
  if (!mixed) return dtype;
  return dtype.bits == 16 ? f32() : fastnorm_dtype_of(FASTNORM_DTYPE_BF16);
}

fastnorm_dtype SelftestCase::y_dtype() const { return mixed ? f32() : dtype; }

std::string SelftestCase::name() const {
  static constexpr const char* kRoundings[] = {"once", "normalized", "every-step"};
  static constexpr const char* kResiduals[] = {"exact", "before-apply", "before-statistics"};
  std::string text = std::string(find_dtype(dtype)->name) +
                     (kind == FASTNORM_NORM_LAYER ? " layer" : " rms") + (residual ? " add" : "") +
                     " n=" + std::to_string(n);
  if (rounding != FASTNORM_ROUND_ONCE) text += std::string(" ") + kRoundings[rounding];
  if (residual_rounding != FASTNORM_RESIDUAL_EXACT) {
    text += std::string(" ") + kResiduals[residual_rounding];
  }
  if (f32_weights) text += " f32-weights";
  if (mixed) text += " mixed";
  if (heads() != 0) {
    text += " heads=" + std::to_string(query_heads) + "+" + std::to_string(key_heads);
    if (weight_per_head) text += " weight-per-head";
  }
  if (quant.any()) text += std::string(" ") + quant.name + (quant_rounded ? " rounded" : "");
  if (special) text += " special";
  return text;
}

std::vector<SelftestCase> selftest_cases() {
  std::vector<SelftestCase> cases;
  for (const std::string& name : row_dtype_names()) {
    const fastnorm_dtype dtype = find_dtype(name)->dtype;
    for (const auto kind : {FASTNORM_NORM_RMS, FASTNORM_NORM_LAYER}) {
      for (const bool residual : {false, true}) {
        add_plain_cases(dtype, kind, residual, &cases);
        add_quantised_cases(dtype, kind, residual, &cases);
        if (dtype.bits == 16) add_f32_weight_cases(dtype, kind, residual, &cases);
        if (kind == FASTNORM_NORM_RMS) add_mixed_cases(dtype, residual, &cases);
      }
      add_special_cases(dtype, kind, &cases);
      add_head_cases(dtype, kind, &cases);
    }
  }
  return cases;
}

CaseInputs make_inputs(const SelftestCase& c) {
  const int64_t count = c.rows * c.n, columns = c.weight_rows() * c.n;
  CaseInputs inputs = {
      make_tensor(c.dtype, count, 1), {}, make_tensor(c.weight_dtype(), columns, 3), {}};
  if (c.special) {
    // The infinities share a block of any scheme, the others have one each.
    constexpr std::pair<size_t, double> kSpecial[] = {
        {3, -kSelftestWeightOffset}, {66, INFINITY}, {67, -INFINITY}, {129, NAN}};
    for (const auto& [column, value] : kSpecial) {
      encode(c.dtype, value, &inputs.weight[column * element_bytes(c.dtype)]);
    }
  }
  if (c.residual) inputs.residual = make_tensor(c.residual_dtype(), count, 2);
  if (c.kind == FASTNORM_NORM_LAYER) inputs.bias = make_tensor(c.weight_dtype(), columns, 4);
  return inputs;
}

std::vector<CaseLayout> call_forms(const SelftestCase& c) {
  std::vector<CaseLayout> forms(1);
  const auto add = [&](const char* name) -> CaseLayout& {
    forms.push_back({name});
    return forms.back();
  };
  if (c.quant.block != 0) add("scales by column").scales = FASTNORM_SCALE_COLUMN_MAJOR;
  if (c.quant.block != 0 && c.quant.scale != FASTNORM_DTYPE_F32) {
    add("swizzled scales").scales = FASTNORM_SCALE_SWIZZLED_128X4;
  }
  if (c.weight_per_head) add("queries and keys by one call").calls = HeadCalls::kOne;
  if (c.heads() != 0) add("queries and keys by fastnorm_norm_many").calls = HeadCalls::kMany;
  return forms;
}

CaseOutputs run_case(const Machine& machine, const SelftestCase& c, const CaseInputs& inputs,
                     const CaseLayout& layout, Tally* tally) {
  const bool alone = layout.only_row >= 0;
  const int64_t rows = alone ? 1 : c.rows * layout.copies;
  Image image(rows, alone || c.heads() == 0 ? 1 : c.heads(), layout);
  const CaseTensors tensors = add_tensors(c, inputs, layout, rows, &image);
  image.upload(machine);
  run_calls(machine, c, layout, image, tensors);
  image.download(machine);
  CaseOutputs outputs;
  for (size_t i = 0; i < kOutputs; ++i) outputs[i] = image.take(tensors.out[i]);
  tally->expect(image.intact(), c.name() + ", " + layout.name + ": bytes around the rows changed");
  return outputs;
}

bool part_equals(const CaseOutputs& outputs, int64_t count, int64_t index,
                 const CaseOutputs& wanted) {
  for (size_t i = 0; i < kOutputs; ++i) {
    const size_t bytes = wanted[i].size();
    if (outputs[i].size() != bytes * static_cast<size_t>(count)) return false;
    const std::byte* part = outputs[i].data() + bytes * static_cast<size_t>(index);
    if (bytes != 0 && std::memcmp(part, wanted[i].data(), bytes) != 0) return false;
  }
  return true;
}

}  // namespace fastnorm::tool
