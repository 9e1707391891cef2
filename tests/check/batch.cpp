#include "check/batch.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "check/parallel.h"
#include "ref/norm_ref.h"
#include "ref/quant.h"

namespace fastnorm::check {
namespace {

// What a seed of a row is for.
enum class Role : uint64_t { kX = 1, kResidual, kWeight, kBias };

constexpr int64_t kTailRows = 4;   // of a case, checked in the first run
constexpr int64_t kBoundRows = 3;  // of a case; the reference in double is slow

ref::Pattern pattern_of(const Content& content, int64_t row_number, Role role) {
  using ref::Pattern;
  auto pattern = static_cast<Pattern>(content.pattern);
  if (content.pattern == kMixed) {
    const uint64_t bits = ref::hash(content.seed, 99, row_number);
    pattern = bits % 5 < 3 ? Pattern::kNormal : static_cast<Pattern>(bits / 8 % ref::kPatterns);
  }
  const bool odd_one = pattern == Pattern::kOneNan || pattern == Pattern::kOneInf;
  return role == Role::kResidual && odd_one ? Pattern::kNormal : pattern;
}

// Calls fn(tensor) for each tensor of rows that is read or written.
template <typename Fn>
void for_each_input(const PlacedCase& p, Fn fn) {
  fn(p.x, Role::kX);
  if (p.residual.present) fn(p.residual, Role::kResidual);
}
template <typename Fn>
void for_each_output(const PlacedCase& p, Fn fn) {
  const PlacedTensor* const outputs[] = {&p.y, &p.residual_out, &p.mean, &p.rstd};
  for (int i = 0; i < 4; ++i) {
    if (outputs[i]->present) fn(*outputs[i], i);
  }
}
template <typename Fn>
void for_each_weight(const PlacedCase& p, Fn fn) {
  if (p.weight.present) fn(p.weight, Role::kWeight);
  if (p.bias.present) fn(p.bias, Role::kBias);
}

// True for the first of the rows that a broadcast tensor keeps in one place.
bool is_first(const PlacedTensor& t, const RowIndex& index) {
  for (int d = 0; d < kMaxOuter; ++d) {
    if (t.layout.stride[d] == 0 && index.digit[d] != 0) return false;
  }
  return true;
}

bool is_nan(ref::Type type, const std::byte* element) {
  float value;
  ref::decode_row(type, element, &value, 1);
  return std::isnan(value);
}

uint64_t mix(uint64_t digest, uint64_t word) {
  return std::rotl((digest ^ word) * 0x9fb21c651e98df25u, 29);
}

// Digest of a row's bits; all NaN count as one.
uint64_t digest_of(ref::Type type, const std::byte* bytes, int64_t elements, bool has_nan) {
  const int64_t size = ref::bytes_of(type);
  uint64_t digest = 1;
  if (has_nan) {
    for (int64_t i = 0; i < elements; ++i) {
      uint32_t word = 0;
      std::memcpy(&word, bytes + i * size, static_cast<size_t>(size));
      digest = mix(digest, is_nan(type, bytes + i * size) ? ~uint64_t{0} : word);
    }
    return digest;
  }
  const int64_t per_word = 8 / size;
  for (int64_t i = 0; i < elements; i += per_word) {
    const int64_t count = elements - i < per_word ? elements - i : per_word;
    uint64_t word = 0;
    std::memcpy(&word, bytes + i * size, static_cast<size_t>(count * size));
    for (int64_t k = 0; k < count;
         ++k) {  // element by element, to give the same hash as the loop above
      const uint64_t element = word >> (8 * size * k);
      digest = mix(digest, size == 4 ? element & 0xffffffffu : element & 0xffffu);
    }
  }
  return digest;
}

std::string text_of(const char* name, ref::Type type, const std::byte* expected,
                    const std::byte* actual) {
  float e, a;
  ref::decode_row(type, expected, &e, 1);
  ref::decode_row(type, actual, &a, 1);
  char text[160];
  std::snprintf(text, sizeof text, "%s is %.9g (0x%x), expected %.9g (0x%x)", name,
                static_cast<double>(a), ref::encode(type, a), static_cast<double>(e),
                ref::encode(type, e));
  return text;
}

std::string place_text(int64_t row, int64_t column) {
  return " at row " + std::to_string(row) + ", column " + std::to_string(column);
}

// Compares results of the model with the bounds of the reference in double.
std::string check_bounds(const Content& content, const ref::NormRow& row, ref::Order order,
                         const ref::NormResult& result) {
  const ref::NormBounds bounds = ref::norm_bounds(content.options, row, order);
  const bool layer = content.options.kind == ref::Kind::kLayer;
  if (bounds.statistics_valid && !bounds.rstd.holds(result.rstd)) return "rstd leaves its bounds";
  if (bounds.statistics_valid && layer && !bounds.mean.holds(result.mean))
    return "mean leaves its bounds";
  for (int64_t i = 0; bounds.y_valid && i < row.n; ++i) {
    const float y = ref::round_to(content.options.y_dtype(), result.z[static_cast<size_t>(i)]);
    if (!bounds.y[static_cast<size_t>(i)].holds(y)) {
      return "y leaves its bounds at column " + std::to_string(i);
    }
  }
  return "";
}

}  // namespace

Batch::Batch(std::vector<PlacedCase> cases, ref::Order order, int threads)
    : cases_(std::move(cases)), order_(order), threads_(threads) {
  for (size_t item = 0; item < cases_.size(); ++item) {
    const Layout& layout = cases_[item].what.layout;
    for (int64_t r = 0; r < layout.rows(); ++r) {
      rows_.push_back({item, r, index_of(layout, r), false, {}, 0, "", ""});
    }
  }
  bytes_ = static_cast<size_t>(cases_.back().end);
  scratch_.resize(static_cast<size_t>(threads));
  actual_.resize(bytes_);
}

void Batch::fill_inputs(const PlacedCase& placed) {
  const Content& c = placed.what.content;
  const Layout& l = placed.what.layout;
  std::vector<float> values(static_cast<size_t>(c.n));
  const auto put = [&](ref::Pattern pattern, ref::Type type, uint64_t seed, int64_t at) {
    ref::fill_row(pattern, type, seed, values.data(), c.n);
    ref::encode_row(type, values.data(), &before_[static_cast<size_t>(at)], c.n);
  };
  for_each_input(placed, [&](const PlacedTensor& t, Role role) {
    for (int64_t r = 0; r < l.rows(); ++r) {
      const RowIndex index = index_of(l, r);
      if (!is_first(t, index)) continue;
      const int64_t number = row_number(l, t.layout, index);
      put(pattern_of(c, number, role), t.dtype, ref::hash(c.seed, role, number), t.at(index));
    }
  });
  for_each_weight(placed, [&](const PlacedWeight& weight, Role role) {
    for (int64_t head = 0; head < weight.heads; ++head) {
      put(ref::Pattern::kWeights, weight.dtype, ref::hash(c.seed, role, head), weight.at(head));
    }
  });
}

ref::NormRow Batch::decode(const PlacedCase& placed, const RowIndex& index,
                           Scratch& scratch) const {
  const int64_t n = placed.what.content.n;
  ref::NormRow row;
  row.n = n;
  const auto take = [&](ref::Type type, int64_t at, std::vector<float>& values) {
    values.resize(static_cast<size_t>(n));
    ref::decode_row(type, &before_[static_cast<size_t>(at)], values.data(), n);
    return values.data();
  };
  const Layout& l = placed.what.layout;
  row.x = take(placed.x.dtype, placed.x.at(index), scratch.x);
  if (placed.residual.present) {
    row.residual = take(placed.residual.dtype, placed.residual.at(index), scratch.residual);
  }
  if (placed.weight.present) {
    row.weight = take(placed.weight.dtype, placed.weight.at(head_of(l, l.weight_dims, index)),
                      scratch.weight);
  }
  if (placed.bias.present) {
    row.bias =
        take(placed.bias.dtype, placed.bias.at(head_of(l, l.bias_dims, index)), scratch.bias);
  }
  return row;
}

void Batch::compute(Row& row, Scratch& scratch) {
  const PlacedCase& placed = cases_[row.item];
  const Content& content = placed.what.content;
  const ref::NormRow input = decode(placed, row.index, scratch);
  ref::NormResult& result = scratch.result;
  ref::norm_model(content.options, input, order_, &scratch.model, &result);
  const auto put = [&](const PlacedTensor& t, const float* values) {
    if (!t.present) return;
    ref::encode_row(t.dtype, values, &expected_[static_cast<size_t>(t.at(row.index))],
                    t.row_elements);
  };
  put(placed.y, result.z.data());
  put(placed.residual_out, result.sum.data());
  put(placed.mean, &result.mean);
  put(placed.rstd, &result.rstd);
  if (placed.quant.present || placed.quant.amax >= 0) compute_quant(row, scratch);
  row.has_nan = std::isnan(result.rstd);
  for (const float z : result.z) row.has_nan |= std::isnan(z);
  for (const float s : result.sum) row.has_nan |= std::isnan(s);
  if (placed.what.bounds && row.number < kBoundRows) {
    row.finding = check_bounds(content, input, order_, result);
  }
}

// Codes and scales from the model's z. In a chain in T, the last step rounds z.
void Batch::compute_quant(Row& row, Scratch& scratch) {
  const PlacedCase& placed = cases_[row.item];
  const Content& c = placed.what.content;
  std::vector<float> z = scratch.result.z;
  if (c.options.rounding == ref::Rounding::kEveryStep) {
    for (float& v : z) v = ref::round_to(c.options.dtype, v);
  }
  ref::QuantResult& result = scratch.quant;
  // Without codes the amax is that of y.
  const bool of_y = c.quant.scheme == ref::Scheme::kNone;
  ref::quant_model(c.quant, z.data(), c.n, of_y ? c.options.y_dtype() : c.options.dtype,
                   c.tensor_scale, c.global_scale.value_or(1.0f), &result);
  row.amax = result.amax;
  const PlacedQuant& q = placed.quant;
  if (!q.present) return;
  std::byte* const codes = &expected_[static_cast<size_t>(q.codes_at(row.index))];
  if (c.quant.format == ref::Format::kE2M1) {
    ref::pack_e2m1(result.codes.data(), c.n, reinterpret_cast<uint8_t*>(codes));
  } else {
    std::memcpy(codes, result.codes.data(), static_cast<size_t>(c.n));
  }
  for (int64_t i = 0; q.tensor_scale < 0 && i < q.scales; ++i) {
    std::byte* const at = &expected_[static_cast<size_t>(q.scale_at(row.index, row.number, i))];
    const auto k = static_cast<size_t>(i);
    if (q.scale_size == 1) {
      *at = static_cast<std::byte>(result.scale_bytes[k]);
    } else {
      std::memcpy(at, &result.scale[k], sizeof(float));
    }
  }
}

void Batch::combine_amax() {
  for (size_t item = 0; item < cases_.size(); ++item) {
    const int64_t at = cases_[item].quant.amax;
    if (at < 0) continue;
    float amax = *cases_[item].what.layout.amax;
    for (const Row& row : rows_) {
      if (row.item == item) amax = ref::max_magnitude(amax, row.amax);
    }
    std::memcpy(&expected_[static_cast<size_t>(at)], &amax, sizeof amax);
  }
}

const std::byte* Batch::fill(int pass) {
  if (pass_ < 0) {
    before_.assign(bytes_, std::byte{0xff});
    parallel_for(static_cast<int64_t>(cases_.size()), threads_,
                 [&](int64_t i, int) { fill_inputs(cases_[static_cast<size_t>(i)]); });
    for (const PlacedCase& placed : cases_) {
      const auto put = [&](int64_t at, float value) {
        if (at >= 0) std::memcpy(&before_[static_cast<size_t>(at)], &value, sizeof value);
      };
      put(placed.quant.tensor_scale, placed.what.content.tensor_scale);
      put(placed.quant.global_scale, placed.what.content.global_scale.value_or(1.0f));
      put(placed.quant.clamp_scale, placed.what.content.clamp_scale.value_or(0.0f));
      put(placed.quant.amax, placed.what.layout.amax.value_or(0.0f));
    }
    expected_ = before_;
    for (const PlacedCase& placed : cases_) {
      const PlacedQuant& q = placed.quant;
      if (q.swizzled)
        std::memset(&expected_[static_cast<size_t>(q.scale)], 0,
                    static_cast<size_t>(q.scale_bytes));
    }
    parallel_for(rows(), threads_, [&](int64_t i, int worker) {
      compute(rows_[static_cast<size_t>(i)], scratch_[static_cast<size_t>(worker)]);
    });
    combine_amax();
  } else {
    refill(pass);
  }
  pass_ = pass;
  return before_.data();
}

// Fills the tensors again, surrounded by other bytes.
void Batch::refill(int pass) {
  std::vector<std::byte> inputs(bytes_), outputs;
  for (size_t i = 0; i < bytes_; i += 8) {
    const uint64_t noise = ref::hash(static_cast<uint64_t>(pass), i);
    std::memcpy(&inputs[i], &noise, 8);  // the block is a multiple of 256 bytes
  }
  const auto copy = [](std::vector<std::byte>& to, const std::vector<std::byte>& from, int64_t at,
                       int64_t bytes) {
    std::memcpy(&to[static_cast<size_t>(at)], &from[static_cast<size_t>(at)],
                static_cast<size_t>(bytes));
  };
  for (const PlacedCase& placed : cases_) {
    for_each_weight(placed, [&](const PlacedWeight& c, Role) {
      for (int64_t head = 0; head < c.heads; ++head) {
        copy(inputs, before_, c.at(head), placed.what.content.n * ref::bytes_of(c.dtype));
      }
    });
  }
  for (const Row& row : rows_) {
    for_each_input(cases_[row.item], [&](const PlacedTensor& t, Role) {
      copy(inputs, before_, t.at(row.index), t.row_bytes());
    });
  }
  for (const PlacedCase& placed : cases_) {
    const PlacedQuant& q = placed.quant;
    for (const int64_t at : {q.tensor_scale, q.global_scale, q.clamp_scale, q.amax}) {
      if (at >= 0) copy(inputs, before_, at, sizeof(float));
    }
  }
  outputs = inputs;
  for (const PlacedCase& placed : cases_) {
    const PlacedQuant& q = placed.quant;
    if (q.amax >= 0) copy(outputs, expected_, q.amax, sizeof(float));
    if (q.swizzled) copy(outputs, expected_, q.scale, q.scale_bytes);
  }
  for (const Row& row : rows_) {
    const PlacedQuant& q = cases_[row.item].quant;
    if (!q.present) continue;
    copy(outputs, expected_, q.codes_at(row.index), q.code_bytes);
    for (int64_t i = 0; q.tensor_scale < 0 && !q.swizzled && i < q.scales; ++i) {
      copy(outputs, expected_, q.scale_at(row.index, row.number, i), q.scale_size);
    }
  }
  for (const Row& row : rows_) {
    for_each_output(cases_[row.item], [&](const PlacedTensor& t, int) {
      copy(outputs, expected_, t.at(row.index), t.row_bytes());
    });
  }
  before_ = std::move(inputs);
  expected_ = std::move(outputs);
}

// If an f32 should be NaN, any NaN passes.
void Batch::accept_nan(int64_t at) {
  std::byte* const expected = &expected_[static_cast<size_t>(at)];
  const std::byte* const actual = &actual_[static_cast<size_t>(at)];
  if (is_nan(ref::Type::kF32, expected) && is_nan(ref::Type::kF32, actual))
    std::memcpy(expected, actual, sizeof(float));
}

// The sign and payload of NaN are free.
void Batch::accept_nans(const Row& row) {
  for_each_output(cases_[row.item], [&](const PlacedTensor& t, int) {
    const auto size = static_cast<size_t>(ref::bytes_of(t.dtype));
    const auto start = static_cast<size_t>(t.at(row.index));
    for (size_t i = 0; i < static_cast<size_t>(t.row_elements); ++i) {
      std::byte* expected = &expected_[start + i * size];
      const std::byte* actual = &actual_[start + i * size];
      if (is_nan(t.dtype, expected) && is_nan(t.dtype, actual)) std::memcpy(expected, actual, size);
    }
  });
  const PlacedQuant& q = cases_[row.item].quant;
  if (!q.present || q.scale_size != 4 || q.tensor_scale >= 0) return;
  for (int64_t i = 0; i < q.scales; ++i) accept_nan(q.scale_at(row.index, row.number, i));
}

// y computed from the library's own statistics. It must have these bits, whatever the order of the
// sums.
std::string Batch::check_tail(const Row& row, Scratch& scratch) const {
  const PlacedCase& placed = cases_[row.item];
  const Content& content = placed.what.content;
  const bool layer = content.options.kind == ref::Kind::kLayer;
  if (!placed.y.present || !placed.rstd.present || (layer && !placed.mean.present)) return "";
  const auto value = [&](const PlacedTensor& t) {
    float v = 0;
    if (t.present) std::memcpy(&v, &actual_[static_cast<size_t>(t.at(row.index))], sizeof v);
    return v;
  };
  const ref::NormRow input = decode(placed, row.index, scratch);
  scratch.z.resize(static_cast<size_t>(content.n));
  ref::norm_tail(content.options, input, value(placed.mean), value(placed.rstd), scratch.z.data());
  const std::byte* y = &actual_[static_cast<size_t>(placed.y.at(row.index))];
  for (int64_t i = 0; i < content.n; ++i) {
    std::byte wanted[4];
    const auto size = static_cast<size_t>(ref::bytes_of(placed.y.dtype));
    const std::byte* found = y + static_cast<size_t>(i) * size;
    ref::encode_row(placed.y.dtype, &scratch.z[static_cast<size_t>(i)], wanted, 1);
    if (std::memcmp(wanted, found, size) == 0) continue;
    if (is_nan(placed.y.dtype, wanted) && is_nan(placed.y.dtype, found)) continue;
    return text_of("y from the stored statistics", placed.y.dtype, wanted, found) +
           place_text(row.number, i);
  }
  return "";
}

void Batch::examine(Row& row, Scratch& scratch) {
  if (row.has_nan) accept_nans(row);
  row.tail_finding.clear();
  if (pass_ == 0 && row.number < kTailRows) row.tail_finding = check_tail(row, scratch);
  for_each_output(cases_[row.item], [&](const PlacedTensor& t, int i) {
    row.digest[i] = digest_of(t.dtype, &actual_[static_cast<size_t>(t.at(row.index))],
                              t.row_elements, row.has_nan);
  });
  row.digest[4] = quant_digest(row);
}

uint64_t Batch::quant_digest(const Row& row) const {
  const PlacedQuant& q = cases_[row.item].quant;
  if (!q.present) return 0;
  uint64_t digest = 1;
  const auto take = [&](int64_t at, int64_t bytes) {
    for (int64_t i = 0; i < bytes; ++i)
      digest = mix(digest, static_cast<uint64_t>(actual_[static_cast<size_t>(at + i)]));
  };
  take(q.codes_at(row.index), q.code_bytes);
  for (int64_t i = 0; q.tensor_scale < 0 && i < q.scales; ++i) {
    const int64_t at = q.scale_at(row.index, row.number, i);
    if (q.scale_size == 4 && is_nan(ref::Type::kF32, &actual_[static_cast<size_t>(at)])) continue;
    take(at, q.scale_size);
  }
  return digest;
}

// Text of the first wrong code or scale.
std::string Batch::quant_difference(size_t item) const {
  const PlacedQuant& q = cases_[item].quant;
  const auto byte = [](const std::vector<std::byte>& from, int64_t at) {
    return std::to_string(static_cast<int>(from[static_cast<size_t>(at)]));
  };
  for (const Row& row : rows_) {
    if (row.item != item || !q.present) continue;
    for (int64_t i = 0; q.tensor_scale < 0 && i < q.scales; ++i) {
      const int64_t at = q.scale_at(row.index, row.number, i);
      const auto place = static_cast<size_t>(at);
      if (std::memcmp(&expected_[place], &actual_[place], static_cast<size_t>(q.scale_size)) == 0)
        continue;
      const std::string where = " of block " + std::to_string(i) + place_text(row.number, 0);
      if (q.scale_size == 4)
        return text_of("scale", ref::Type::kF32, &expected_[place], &actual_[place]) + where;
      return "scale is " + byte(actual_, at) + ", expected " + byte(expected_, at) + where;
    }
    for (int64_t i = 0; i < q.code_bytes; ++i) {
      const int64_t at = q.codes_at(row.index) + i;
      if (expected_[static_cast<size_t>(at)] == actual_[static_cast<size_t>(at)]) continue;
      return "code byte is " + byte(actual_, at) + ", expected " + byte(expected_, at) +
             place_text(row.number, i);
    }
  }
  if (q.amax < 0) return "";
  const auto at = static_cast<size_t>(q.amax);
  return std::memcmp(&expected_[at], &actual_[at], 4) == 0
             ? ""
             : text_of("amax", ref::Type::kF32, &expected_[at], &actual_[at]);
}

// Text of the first wrong element, or of a wrong byte outside all elements.
std::string Batch::first_difference(size_t item) const {
  const PlacedCase& placed = cases_[item];
  constexpr const char* kNames[] = {"y", "residual_out", "mean", "rstd"};
  std::string text;
  for (const Row& row : rows_) {
    if (row.item != item || !text.empty()) continue;
    for_each_output(placed, [&](const PlacedTensor& t, int which) {
      const auto size = static_cast<size_t>(ref::bytes_of(t.dtype));
      for (int64_t i = 0; text.empty() && i < t.row_elements; ++i) {
        const size_t at = static_cast<size_t>(t.at(row.index)) + static_cast<size_t>(i) * size;
        if (std::memcmp(&expected_[at], &actual_[at], size) == 0) continue;
        text = text_of(kNames[which], t.dtype, &expected_[at], &actual_[at]) +
               place_text(row.number, i);
      }
    });
  }
  if (text.empty()) text = quant_difference(item);
  if (!text.empty()) return text;
  for (int64_t at = placed.begin; at < placed.end; ++at) {
    if (expected_[static_cast<size_t>(at)] == actual_[static_cast<size_t>(at)]) continue;
    return "a byte outside every output was written, " + std::to_string(at - placed.begin) +
           " bytes into the case's memory (y begins at " +
           std::to_string(placed.y.base - placed.begin) + ")";
  }
  return text;
}

// Compares a row with the same row from earlier runs of any kernel.
std::string Batch::repeat(const Row& row, SameBits* same_bits) const {
  const PlacedCase& placed = cases_[row.item];
  const Content& c = placed.what.content;
  const Layout& l = placed.what.layout;
  const uint64_t key =
      ref::hash(c.hash(), row_number(l, placed.x.layout, row.index),
                placed.residual.present ? row_number(l, placed.residual.layout, row.index) : 0,
                c.weight_heads ? head_of(l, l.weight_dims, row.index) : 0,
                c.bias_heads ? head_of(l, l.bias_dims, row.index) : 0);
  bool same = true;
  for_each_output(placed, [&](const PlacedTensor&, int i) {
    same = same_bits->put(ref::hash(key, i), row.digest[i]) && same;
  });
  if (placed.quant.present) same = same_bits->put(ref::hash(key, 4), row.digest[4]) && same;
  return same ? "" : "row " + std::to_string(row.number) + " had other bits in another call";
}

std::vector<std::string> Batch::compare(SameBits* same_bits) {
  parallel_for(rows(), threads_, [&](int64_t i, int worker) {
    examine(rows_[static_cast<size_t>(i)], scratch_[static_cast<size_t>(worker)]);
  });
  for (const PlacedCase& placed : cases_) {
    if (placed.quant.amax >= 0) accept_nan(placed.quant.amax);
  }
  std::vector<std::string> findings(cases_.size());
  for (size_t item = 0; item < cases_.size(); ++item) {
    const auto begin = static_cast<size_t>(cases_[item].begin);
    const size_t bytes = static_cast<size_t>(cases_[item].end) - begin;
    if (std::memcmp(&expected_[begin], &actual_[begin], bytes) != 0) {
      findings[item] = first_difference(item);
    }
  }
  for (const Row& row : rows_) {
    std::string& finding = findings[row.item];
    if (finding.empty()) finding = row.finding.empty() ? row.tail_finding : row.finding;
    const std::string other = repeat(row, same_bits);
    if (finding.empty()) finding = other;
  }
  return findings;
}

}  // namespace fastnorm::check
