#include "norm_heads_case.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>

#include "dtype.h"
#include "random.h"
#include "support/quant_scheme.h"

namespace fastnorm::tool {
namespace {

constexpr const char* kNames[kHeadsParts] = {"query", "key", "value"};
constexpr float kTensorScale = 1.0f / 32;  // of caches and outputs with one scale

fastnorm_dtype dtype_of(fastnorm_dtype_id id) { return fastnorm_dtype_of(id); }

fastnorm_dtype named(const std::string& name, fastnorm_dtype otherwise) {
  return name.empty() || name == "own" ? otherwise : find_dtype(name)->dtype;
}

// Codes of a quantised dtype: their least and largest value, and how far a code may be from its
// value.
struct CodeFormat {
  double least, most, relative, absolute;
};

CodeFormat code_format(fastnorm_dtype dtype) {
  if (dtype.code == 10) return {-448, 448, 0x1p-4, 0x1p-10};
  if (dtype.code == 12) return {-57344, 57344, 0x1p-3, 0x1p-17};
  if (dtype.code == 1) return {-6, 6, 0x1p-2, 0x1p-2};  // pairs of e2m1 in u8
  return {-128, 127, 0, 0.5};
}

// A float of few bits without infinities: e4m3, e5m2 (below its infinity), e2m1.
double small_float(uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = static_cast<int>(bits) & ((1 << fraction_bits) - 1);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                    : std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  return (bits >> (exponent_bits + fraction_bits) & 1) != 0 ? -magnitude : magnitude;
}

double code_at(fastnorm_dtype dtype, const std::byte* row, size_t column) {
  if (dtype.code == 1) {
    const auto pair = static_cast<uint32_t>(row[column / 2]);
    return small_float(column % 2 == 0 ? pair & 15 : pair >> 4, 2, 1);
  }
  const auto bits = static_cast<uint32_t>(row[column]);
  if (dtype.code == 10) return small_float(bits, 4, 3);
  if (dtype.code == 12) return small_float(bits, 5, 2);
  return static_cast<int8_t>(bits);
}

double scale_at(fastnorm_dtype dtype, const std::byte* scales, size_t index) {
  if (dtype.bits == 32) return decode(dtype, scales + 4 * index);
  const auto bits = static_cast<uint32_t>(scales[index]);
  return dtype.code == 10 ? small_float(bits, 4, 3) : std::ldexp(1.0, static_cast<int>(bits) - 127);
}

void put_index(HostTensor* t, int64_t i, int64_t value) {
  const auto narrow = static_cast<int32_t>(value);
  std::memcpy(&t->content[static_cast<size_t>(i) * 4], &narrow, 4);
}

int64_t axes_of(const NormHeadsOptions& o) { return static_cast<int64_t>(o.mrope.size()); }

// The axis of positions that pair j takes.
int64_t axis_of(const NormHeadsOptions& o, int64_t j) {
  if (o.mrope_interleaved) {
    const int64_t axis = j % 3;
    return axis < axes_of(o) && j < 3 * o.mrope[static_cast<size_t>(axis)] ? axis : 0;
  }
  int64_t axis = 0;
  for (; axis + 1 < axes_of(o) && j >= o.mrope[static_cast<size_t>(axis)]; ++axis) {
    j -= o.mrope[static_cast<size_t>(axis)];
  }
  return axis;
}

// The shape of a mean or an rstd: one value for each head of x, or for each token.
std::vector<int64_t> statistic_shape(const NormHeadsOptions& o, const HostTensor& x) {
  if (o.across_heads) return {x.shape[0]};
  return {x.shape[0], x.shape[1]};
}

}  // namespace

std::vector<double> row_of(const HostTensor& t, int64_t row) {
  const auto columns = static_cast<size_t>(t.shape.back());
  const size_t element = element_bytes(t.dtype);
  std::vector<double> values(columns);
  const std::byte* at = &t.content[static_cast<size_t>(row) * columns * element];
  for (size_t i = 0; i < columns; ++i) values[i] = decode(t.dtype, at + i * element);
  return values;
}

int64_t index_at(const HostTensor& t, int64_t i) {
  const size_t element = element_bytes(t.dtype);
  int64_t wide = 0;
  int32_t narrow = 0;
  const std::byte* at = &t.content[static_cast<size_t>(i) * element];
  if (element == 8) {
    std::memcpy(&wide, at, 8);
    return wide;
  }
  std::memcpy(&narrow, at, 4);
  return narrow;
}

size_t HostTensor::elements() const {
  return std::accumulate(shape.begin(), shape.end(), size_t{1},
                         [](size_t n, int64_t extent) { return n * static_cast<size_t>(extent); });
}

NormHeadsInputs::NormHeadsInputs(const NormHeadsOptions& o) {
  const fastnorm_dtype dtype = find_dtype(o.dtype)->dtype;
  const int64_t heads[] = {o.query_heads, o.key_heads, o.key_heads};
  for (int p = 0; p < kHeadsParts; ++p) {
    if (p == kValue && (!o.has_cache() || o.indexer)) continue;
    x[p] = {dtype, {o.tokens, heads[p], o.columns}, {}};
  }
  for (int p = 0; p < 2 && !o.no_weight; ++p) {
    if (!o.has_norm(static_cast<HeadsPart>(p))) continue;
    weight[p] = {named(o.parameter_dtype, dtype), {o.columns}, {}};
    if (o.head_weights) weight[p].shape = {heads[p], o.columns};
  }
  if (o.indexer) {
    if (o.has_norm(kKey)) bias = {named(o.parameter_dtype, dtype), {o.columns}, {}};
    head_weights = {dtype, {o.tokens, o.query_heads}, {}};
  }
  for (int p = 0; p < 2 && o.statistics_in; ++p) {
    if (!o.has_norm(static_cast<HeadsPart>(p))) continue;
    rstd_in[p] = {dtype_of(FASTNORM_DTYPE_F32), statistic_shape(o, x[p]), {}};
    if (o.norm.is_layer()) mean_in[p] = rstd_in[p];
  }
  if (o.rope_dim != 0) {
    cos = {named(o.table_dtype, dtype), {o.table_rows, o.rope_dim / 2}, {}};
    sin = cos;
    positions = {dtype_of(FASTNORM_DTYPE_I32), {o.tokens}, {}};
    if (!o.mrope.empty()) positions.shape.insert(positions.shape.begin(), axes_of(o));
  }
  if (o.has_cache()) {
    slots = {dtype_of(FASTNORM_DTYPE_I32), {o.tokens}, {}};
    pages = o.tokens / o.page + 1;
  }
}

void NormHeadsInputs::fill(uint64_t seed) {
  Random random(seed);
  const auto numbers = [&](HostTensor* t, double least, double most) {
    t->content.resize(t->bytes());
    const size_t element = element_bytes(t->dtype);
    for (size_t at = 0; at < t->content.size(); at += element) {
      encode(t->dtype, random.uniform(least, most), &t->content[at]);
    }
  };
  for (HostTensor& t : x) {
    if (t.present()) numbers(&t, -2, 2);
  }
  for (HostTensor& t : weight) {
    if (t.present()) numbers(&t, 0.5, 1.5);
  }
  for (HostTensor* t : {&bias, &head_weights}) {
    if (t->present()) numbers(t, -1, 1);
  }
  for (int p = 0; p < 2; ++p) {
    if (rstd_in[p].present()) numbers(&rstd_in[p], 0.5, 1.5);
    if (mean_in[p].present()) numbers(&mean_in[p], -0.5, 0.5);
  }
  if (cos.present()) {
    cos.content.resize(cos.bytes()), sin.content.resize(sin.bytes());
    const size_t element = element_bytes(cos.dtype), pairs = static_cast<size_t>(cos.shape[1]);
    for (size_t i = 0; i < cos.elements(); ++i) {
      const double turns =
          std::pow(10000.0, -static_cast<double>(i % pairs) / static_cast<double>(pairs));
      const double angle = static_cast<double>(i / pairs) * turns;
      encode(cos.dtype, std::cos(angle), &cos.content[i * element]);
      encode(sin.dtype, std::sin(angle), &sin.content[i * element]);
    }
    positions.content.resize(positions.bytes());
    for (int64_t i = 0; i < static_cast<int64_t>(positions.elements()); ++i) {
      put_index(&positions, i,
                static_cast<int64_t>(random.next() % static_cast<uint64_t>(cos.shape[0])));
    }
  }
  if (slots.present()) {
    // Tokens lie in the pages in any order; each eighth one is padding.
    const int64_t tokens = slots.shape[0];
    std::vector<int64_t> order(static_cast<size_t>(tokens));
    std::iota(order.begin(), order.end(), int64_t{0});
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.next() % i]);
    slots.content.resize(slots.bytes());
    for (int64_t i = 0; i < tokens; ++i) {
      put_index(&slots, i, i % 8 == 7 ? -1 : order[static_cast<size_t>(i)]);
    }
  }
}

size_t HeadsOutput::bytes() const { return HostTensor{dtype, shape, {}}.bytes(); }

NormHeadsCall::NormHeadsCall(const NormHeadsOptions& options, const NormHeadsInputs& inputs,
                             const Target& target, const Place& place)
    : options_(options), inputs_(inputs), place_(place) {
  call_.change("device=" + std::to_string(target.device_type) + ":" +
               std::to_string(target.device_id));
  if (inputs.cos.present()) {
    call_.change("rope_dim=" + std::to_string(options.rope_dim));
    input("cos", inputs.cos);
    input("sin", inputs.sin);
    if (inputs.positions.present()) input("positions", inputs.positions);
  }
  if (options.mrope_interleaved)
    call_.change("flags=" + std::to_string(int{FASTNORM_NORM_HEADS_MROPE_INTERLEAVED}));
  for (size_t i = 0; i < options.mrope.size(); ++i)
    call_.change("mrope_" + std::to_string(i) + "=" + std::to_string(options.mrope[i]));
  if (inputs.slots.present()) input("slots", inputs.slots);
  const std::string norm = options.norm.fields().words(*support::find_family("norm"));
  place_rows();
  for (int p = 0; p < kHeadsParts; ++p) {
    if (inputs.x[p].present()) describe(static_cast<HeadsPart>(p), norm);
  }
  args_ = call_.args<fastnorm_norm_heads_args>();
  parts_ = call_.parts<fastnorm_norm_heads_part>();
}

std::string NormHeadsCall::path(const char* field) const {
  return "parts[" + std::to_string(described_) + "]." + field;
}

void NormHeadsCall::give(const std::string& path, std::byte* data, fastnorm_dtype dtype,
                         std::vector<int64_t> shape, std::vector<int64_t> strides) {
  call_.give(path, call_tensor(reinterpret_cast<uintptr_t>(data), dtype, std::move(shape),
                               std::move(strides)));
}

void NormHeadsCall::input(const std::string& path, const HostTensor& t) {
  const std::byte* content = t.content.empty() ? nullptr : t.content.data();
  give(path, place_(t.bytes(), content), t.dtype, t.shape);
}

void NormHeadsCall::output(const std::string& path, const char* name, HeadsPart part,
                           fastnorm_dtype dtype, std::vector<int64_t> shape) {
  HeadsOutput o = {std::string(kNames[part]) + name, part, nullptr, dtype, shape};
  o.data = place_(o.bytes(), nullptr);
  outputs_.push_back(o);
  give(path, o.data, dtype, std::move(shape));
}

// One scale for all.
void NormHeadsCall::give_scale(const std::string& path, const std::vector<int64_t>& shape) {
  give(path, place_(4, reinterpret_cast<const std::byte*>(&kTensorScale)),
       dtype_of(FASTNORM_DTYPE_F32), shape);
}

void NormHeadsCall::give_rows(const std::string& path, HeadsPart p) {
  const HostTensor& x = inputs_.x[p];
  const auto element = static_cast<int64_t>(element_bytes(x.dtype));
  give(path, rows_[p], x.dtype, x.shape,
       {static_cast<int64_t>(token_bytes_[p]) / element, x.shape[2], 1});
}

// Heads of all parts side by side for each token, unless they are separate.
void NormHeadsCall::place_rows() {
  const auto token_bytes = [](const HostTensor& t) {
    return t.present() ? static_cast<size_t>(t.shape[1] * t.shape[2]) * element_bytes(t.dtype) : 0;
  };
  if (options_.separate) {
    for (int p = 0; p < kHeadsParts; ++p) {
      const HostTensor& t = inputs_.x[p];
      if (!t.present()) continue;
      rows_[p] = place_(t.bytes(), t.content.empty() ? nullptr : t.content.data());
      token_bytes_[p] = token_bytes(t);
      restored_.push_back({rows_[p], t.content});
    }
    return;
  }
  const HostTensor* x = inputs_.x;
  const size_t whole = token_bytes(x[0]) + token_bytes(x[1]) + token_bytes(x[2]);
  const auto tokens = static_cast<size_t>(x[0].shape[0]);
  std::vector<std::byte> fused;
  if (!x[0].content.empty()) {
    fused.resize(tokens * whole);
    for (size_t token = 0; token < tokens; ++token) {
      size_t at = token * whole;
      for (int p = 0; p < kHeadsParts; ++p) {
        const size_t bytes = token_bytes(x[p]);
        if (bytes != 0) std::copy_n(&x[p].content[token * bytes], bytes, &fused[at]);
        at += bytes;
      }
    }
  }
  std::byte* base = place_(tokens * whole, fused.empty() ? nullptr : fused.data());
  restored_.push_back({base, std::move(fused)});
  for (int p = 0; p < kHeadsParts; ++p) {
    rows_[p] = base;
    token_bytes_[p] = whole;
    base += token_bytes(x[p]);
  }
}

void NormHeadsCall::describe(HeadsPart p, const std::string& norm) {
  const HostTensor& x = inputs_.x[p];
  ++described_;
  give_rows(path("x"), p);
  const bool quantises = options_.has_codes_of_y(p);
  // What no part has a use for, the library refuses.
  if (quantises || (!options_.norm.quantises() && !options_.has_codes()))
    call_.change(words_of_part(norm, path(""), {"quant."}));
  if (p != kValue) {
    uint32_t flags = 0;
    if (options_.has_norm(p)) {
      flags |= FASTNORM_NORM_HEADS_NORM;
      if (options_.across_heads) flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
      call_.change(words_of_part(norm, path(""), {"kind=", "eps=", "weight_offset=", "rounding="}));
      if (inputs_.weight[p].present()) input(path("weight"), inputs_.weight[p]);
      if (p == kKey && inputs_.bias.present()) input(path("bias"), inputs_.bias);
      add_statistics(p);
    }
    if (inputs_.cos.present()) {
      flags |= FASTNORM_NORM_HEADS_ROPE;
      if (options_.interleaved) flags |= FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
      if (options_.inverse) flags |= FASTNORM_NORM_HEADS_ROPE_INVERSE;
      if (options_.from_rounded) flags |= FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED;
      call_.change(path("rope_offset=") + std::to_string(options_.rope_offset) + " " +
                   path("rope_rounding=") + (options_.rope_rounding == "once" ? "0" : "1"));
    }
    call_.change(path("flags=") + std::to_string(flags));
    if (quantises) {
      add_quantized(p);
    } else if (options_.indexer) {
      // The key's codes go to the cache alone.
    } else if (options_.in_place && !options_.no_y) {
      give_rows(path("y"), p);
      outputs_.push_back({kNames[p], p, rows_[p], x.dtype, x.shape, token_bytes_[p], true});
    } else if (!options_.no_y) {
      output(path("y"), "", p, named(options_.y_dtype, x.dtype), x.shape);
    }
  }
  if (p != kQuery && inputs_.slots.present() && options_.has_cache()) add_cache(p);
}

void NormHeadsCall::add_statistics(HeadsPart p) {
  const fastnorm_dtype f32 = dtype_of(FASTNORM_DTYPE_F32);
  const bool layer = options_.norm.is_layer();
  std::vector<int64_t> shape = statistic_shape(options_, inputs_.x[p]);
  if (inputs_.rstd_in[p].present()) input(path("rstd_in"), inputs_.rstd_in[p]);
  if (inputs_.mean_in[p].present()) input(path("mean_in"), inputs_.mean_in[p]);
  if (options_.statistics) {
    output(path("rstd"), "_rstd", p, f32, shape);
    if (layer) output(path("mean"), "_mean", p, f32, shape);
  }
  if (!options_.sumsq) return;
  if (layer) shape.push_back(2);
  output(path("sumsq"), "_sumsq", p, f32, shape);
}

void NormHeadsCall::add_quantized(HeadsPart p) {
  const fastnorm_quant_scheme scheme = options_.norm.scheme();
  const bool dynamic = scheme == FASTNORM_QUANT_PER_ROW || scheme == FASTNORM_QUANT_PER_BLOCK;
  if (inputs_.clamp_scale.present()) input(path("quant.clamp_scale"), inputs_.clamp_scale);
  if (inputs_.rotation_signs.present()) input(path("quant.rotation_signs"), inputs_.rotation_signs);
  // Codes of a cache count as well: their scheme may have a use for the floor.
  if (!dynamic && options_.has_codes()) call_.change(path("quant.amax_floor=0"));
  if (scheme > FASTNORM_QUANT_PER_BLOCK && options_.has_codes())
    call_.change(path("quant.division=0"));
  const QuantTensors quant = options_.norm.quant_tensors(inputs_.x[p].shape);
  output(path("quant.quantized"), "_codes", p, quant.codes, quant.codes_shape);
  if (scheme == FASTNORM_QUANT_PER_TENSOR) {
    give_scale(path("quant.scale"), quant.scale_shape);
  } else {
    output(path("quant.scale"), "_scale", p, quant.scale, quant.scale_shape);
  }
  if (!inputs_.head_weights.present()) return;
  input(path("head_weights"), inputs_.head_weights);
  output(path("head_weights_out"), "_head_weights", p, dtype_of(FASTNORM_DTYPE_F32),
         inputs_.head_weights.shape);
  char factor[32];
  std::snprintf(factor, sizeof factor, "%.9g", options_.head_weights_factor);
  call_.change(path("head_weights_factor=") + factor);
}

void NormHeadsCall::add_cache(HeadsPart p) {
  const HostTensor& x = inputs_.x[p];
  if (options_.cache_tail >= x.shape[2]) {
    throw CommandError("--cache-tail is " + std::to_string(options_.cache_tail) +
                       "; required: fewer columns than heads have, " + std::to_string(x.shape[2]));
  }
  std::vector<int64_t> shape = {inputs_.pages, options_.page, x.shape[1],
                                x.shape[2] - options_.cache_tail};
  output(path("cache"), "_cache", p, named(options_.cache, x.dtype), shape);
  if (!options_.has_codes()) return;
  if (options_.cache_tail != 0) {
    output(path("cache_tail"), "_cache_tail", p, x.dtype,
           {shape[0], shape[1], shape[2], options_.cache_tail});
  }
  const std::string norm = options_.norm.fields().words(*support::find_family("norm"));
  const bool one = options_.cache_scheme == "per-tensor";
  std::vector<std::string> own = {"quant.source=", "quant.division="};
  if (!one) own.push_back("quant.amax_floor=");
  std::string words = words_of_part(norm, path("cache_"), own) + " " +
                      path("cache_quant.rotation=") + std::to_string(options_.cache_rotation) +
                      " " + path("cache_quant.scheme=") + (one ? "per_tensor" : "per_block");
  const std::string scale = path("cache_quant.scale");
  if (one) {
    call_.change(words);
    return give_scale(scale, {1});
  }
  const int64_t block = options_.cache_block;
  call_.change(words + " " + path("cache_quant.block_size=") + std::to_string(block) + " " +
               path("cache_quant.scale_pow2=") + (options_.cache_pow2 ? "1" : "0"));
  shape[3] = (shape[3] + block - 1) / block;
  output(scale, "_cache_scale", p, dtype_of(FASTNORM_DTYPE_F32), shape);
}

fastnorm_info NormHeadsCall::query(fastnorm_context* context) const {
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_norm_heads_query(context, args_, parts_, count(), &info));
  return info;
}

void NormHeadsCall::reset(const Machine& machine) const {
  for (const HeadsOutput& o : outputs_) {
    if (o.in_place) continue;
    const std::vector<std::byte> poison(o.bytes(), std::byte{0xff});
    machine.upload(o.data, poison.data(), poison.size());
  }
  for (const Restored& r : restored_) machine.upload(r.data, r.content.data(), r.content.size());
}

std::vector<std::byte> NormHeadsCall::read(const Machine& machine, const HeadsOutput& o) const {
  std::vector<std::byte> bytes(o.bytes());
  if (o.token_bytes == 0) {
    machine.download(bytes.data(), o.data, bytes.size());
    return bytes;
  }
  const auto tokens = static_cast<size_t>(o.shape[0]);
  for (size_t token = 0; token < tokens; ++token) {
    const size_t row = bytes.size() / tokens;
    machine.download(&bytes[token * row], o.data + token * o.token_bytes, row);
  }
  return bytes;
}

namespace {

// A row of o with the size of what it was added up from. A stored value may be off by a share of
// that.
struct ExactRow {
  std::vector<double> o, magnitude;
  double share = 0;

  ExactRow columns(size_t begin, size_t end) const {
    const auto part = [&](const std::vector<double>& all) {
      return std::vector<double>(all.begin() + static_cast<ptrdiff_t>(begin),
                                 all.begin() + static_cast<ptrdiff_t>(end));
    };
    return {part(o), part(magnitude), share};
  }
};

// The row as blocks of columns times a Hadamard matrix.
ExactRow rotated(const ExactRow& row, int32_t block) {
  if (block == 0) return row;
  ExactRow result = row;
  const auto size = static_cast<size_t>(block);
  const double factor = 1 / std::sqrt(static_cast<double>(block));
  for (size_t i = 0; i < row.o.size(); ++i) {
    const size_t first = i / size * size;
    double sum = 0, magnitude = 0;
    for (size_t j = 0; j < size; ++j) {
      const bool odd = std::popcount((i - first) & j) % 2 != 0;
      sum += odd ? -row.o[first + j] : row.o[first + j];
      magnitude += row.magnitude[first + j];
    }
    result.o[i] = sum * factor;
    result.magnitude[i] = magnitude * factor;
  }
  return result;
}

// The statistics in double of a row of x, or of all heads of a token. `size` is the mean of the
// magnitudes.
struct ExactStatistic {
  double mean = 0, squares = 0, rstd = 0, size = 0;
};

class Formula {
 public:
  Formula(const NormHeadsOptions& options, const NormHeadsInputs& inputs)
      : options_(options), inputs_(inputs), call_(options.norm.call()) {}

  ExactRow row(HeadsPart p, int64_t token, int64_t head) const {
    const HostTensor& x = inputs_.x[p];
    ExactRow row;
    row.o = row_of(x, token * x.shape[1] + head);
    row.magnitude = row.o;
    for (double& m : row.magnitude) m = std::abs(m);
    if (p == kValue) return row;
    const double unit = std::ldexp(1.0, -float_format(x.dtype).precision);
    int roundings = 0;
    if (options_.has_norm(p)) {
      normalise(p, token, head, &row);
      constexpr int kRoundings[] = {0, 1, 3, 0};  // by fastnorm_rounding
      roundings += kRoundings[norm_.rounding];
    }
    if (inputs_.cos.present()) {
      turn(token, &row);
      roundings += (options_.from_rounded ? 1 : 0) + (options_.rope_rounding == "once" ? 0 : 1);
    }
    row.share = roundings * unit + 0x1p-18;  // of single precision over a row
    return row;
  }

  // The statistics of x, also where the call is given others.
  ExactStatistic statistic(HeadsPart p, int64_t token, int64_t head) const {
    const HostTensor& x = inputs_.x[p];
    const int64_t heads = x.shape[1], first = options_.across_heads ? 0 : head;
    std::vector<double> all;
    for (int64_t h = first; h < (options_.across_heads ? heads : head + 1); ++h) {
      const std::vector<double> more = row_of(x, token * heads + h);
      all.insert(all.end(), more.begin(), more.end());
    }
    const auto n = static_cast<double>(all.size());
    ExactStatistic s;
    if (norm_.kind == FASTNORM_NORM_LAYER)
      s.mean = std::accumulate(all.begin(), all.end(), 0.0) / n;
    for (const double v : all) {
      s.squares += (v - s.mean) * (v - s.mean);
      s.size += std::abs(v) / n;
    }
    s.rstd = 1 / std::sqrt(s.squares / n + static_cast<double>(norm_.eps));
    return s;
  }

 private:
  void normalise(HeadsPart p, int64_t token, int64_t head, ExactRow* row) const {
    const int64_t heads = inputs_.x[p].shape[1];
    ExactStatistic s = statistic(p, token, head);
    const int64_t at = options_.across_heads ? token : token * heads + head;
    const auto given = [&](const HostTensor& t, double* value) {
      if (t.present()) *value = decode(t.dtype, &t.content[static_cast<size_t>(at) * 4]);
    };
    given(inputs_.mean_in[p], &s.mean);
    given(inputs_.rstd_in[p], &s.rstd);
    const double mean = s.mean, rstd = s.rstd;
    const HostTensor& w = inputs_.weight[p];
    const std::vector<double> weight = w.present() ? row_of(w, w.shape.size() == 2 ? head : 0)
                                                   : std::vector<double>(row->o.size(), 1);
    const double offset = w.present() ? static_cast<double>(norm_.weight_offset) : 0;
    for (size_t i = 0; i < row->o.size(); ++i) {
      row->magnitude[i] =
          (std::abs(row->o[i]) + std::abs(mean)) * rstd * std::abs(weight[i] + offset);
      row->o[i] = (row->o[i] - mean) * rstd * (weight[i] + offset);
    }
    if (p != kKey || !inputs_.bias.present()) return;
    const std::vector<double> bias = row_of(inputs_.bias, 0);
    for (size_t i = 0; i < row->o.size(); ++i) {
      row->magnitude[i] += std::abs(bias[i]);
      row->o[i] += bias[i];
    }
  }

  void turn(int64_t token, ExactRow* row) const {
    const auto pairs = static_cast<size_t>(options_.rope_dim / 2);
    // Tables of each axis.
    std::vector<std::vector<double>> c, s;
    for (int64_t axis = 0; axis < std::max<int64_t>(axes_of(options_), 1); ++axis) {
      const int64_t tokens = inputs_.x[kQuery].present() ? inputs_.x[kQuery].shape[0] : 0;
      const int64_t entry =
          inputs_.positions.present() ? index_at(inputs_.positions, axis * tokens + token) : token;
      c.push_back(row_of(inputs_.cos, entry));
      s.push_back(row_of(inputs_.sin, entry));
    }
    const size_t wide = c[0].size() / std::max<size_t>(pairs, 1);  // 2: each frequency twice
    const size_t offset = options_.rope_offset == -1 ? row->o.size() - 2 * pairs
                                                     : static_cast<size_t>(options_.rope_offset);
    for (size_t j = 0; j < pairs; ++j) {
      const size_t first = offset + (options_.interleaved ? 2 * j : j),
                   second = options_.interleaved ? first + 1 : first + pairs;
      const size_t at = options_.interleaved ? wide * j : j;
      const auto axis = static_cast<size_t>(axis_of(options_, static_cast<int64_t>(j)));
      const double cosine = c[axis][at], sine = options_.inverse ? -s[axis][at] : s[axis][at],
                   v1 = row->o[first], v2 = row->o[second], m1 = row->magnitude[first],
                   m2 = row->magnitude[second];
      row->o[first] = v1 * cosine - v2 * sine;
      row->o[second] = v2 * cosine + v1 * sine;
      row->magnitude[first] = m1 * std::abs(cosine) + m2 * std::abs(sine);
      row->magnitude[second] = m2 * std::abs(cosine) + m1 * std::abs(sine);
    }
  }

  const NormHeadsOptions& options_;
  const NormHeadsInputs& inputs_;
  support::Call call_;
  const fastnorm_norm_args& norm_ = *call_.args<fastnorm_norm_args>();
};

class Comparison {
 public:
  Comparison(const NormHeadsOptions& options, const NormHeadsInputs& inputs,
             const std::vector<HeadsOutput>& outputs,
             const std::vector<std::vector<std::byte>>& results)
      : options_(options),
        inputs_(inputs),
        outputs_(outputs),
        results_(results),
        formula_(options, inputs),
        call_(options.norm.call()) {}

  NormHeadsErrors operator()(int64_t check_tokens) {
    const int64_t tokens = inputs_.x[kQuery].shape[0], count = std::min(tokens, check_tokens);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = i * tokens / count;
      if (is_padding(token)) {
        ++errors_.padding;
        if (!is_as_before(token)) ++errors_.touched_padding;
        continue;
      }
      for (int p = 0; p < kHeadsParts; ++p) {
        const HostTensor& x = inputs_.x[p];
        for (int64_t h = 0; x.present() && h < x.shape[1]; ++h) {
          compare_row(static_cast<HeadsPart>(p), token, h);
          if (h == 0 || !options_.across_heads) {
            compare_statistics(static_cast<HeadsPart>(p), token, h);
          }
        }
      }
    }
    untouched();
    return errors_;
  }

 private:
  // The number of the output of a part with a name's end, or -1.
  int find(HeadsPart p, const char* end) const {
    const std::string name = std::string(kNames[p]) + end;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i].name == name) return static_cast<int>(i);
    }
    return -1;
  }

  void compare_row(HeadsPart p, int64_t token, int64_t head) {
    const ExactRow exact = formula_.row(p, token, head);
    const int64_t heads = inputs_.x[p].shape[1], row = token * heads + head;
    if (const int y = find(p, ""); y >= 0) judge(compare_values(y, row, exact));
    if (const int codes = find(p, "_codes"); codes >= 0) {
      const int64_t block = support::scale_columns(quant_.scheme, quant_.block_size);
      judge(compare_codes(codes, find(p, "_scale"), block, row, rotated(exact, quant_.rotation),
                          static_cast<double>(quant_.clamp)));
    }
    if (const int weights = find(p, "_head_weights"); weights >= 0)
      judge(compare_head_weight(weights, find(p, "_scale"), row));
    const int cache = find(p, "_cache");
    if (cache < 0) return;
    const int64_t slot = index_at(inputs_.slots, token);
    ++errors_.cached_rows;
    const int64_t cached = slot * heads + head;
    if (!options_.has_codes()) return judge(compare_values(cache, cached, exact));
    const auto columns = exact.o.size() - static_cast<size_t>(options_.cache_tail);
    const double codes =
        compare_codes(cache, find(p, "_cache_scale"),
                      options_.cache_scheme == "per-block" ? options_.cache_block : 0, cached,
                      rotated(exact.columns(0, columns), options_.cache_rotation), 0);
    const int tail = find(p, "_cache_tail");
    const double elements =
        tail < 0 ? 0 : compare_values(tail, cached, exact.columns(columns, exact.o.size()));
    judge(larger(codes, elements));
  }

  void compare_statistics(HeadsPart p, int64_t token, int64_t head) {
    const int rstd = find(p, "_rstd"), mean = find(p, "_mean"), sumsq = find(p, "_sumsq");
    if (rstd < 0 && sumsq < 0) return;
    const ExactStatistic s = formula_.statistic(p, token, head);
    const int64_t row = options_.across_heads ? token : token * inputs_.x[p].shape[1] + head;
    const bool layer = options_.norm.is_layer();
    double worst = 0;
    const auto compare = [&](int output, int64_t at, double wanted, double size) {
      if (output < 0) return;
      const std::byte* found = &results_[static_cast<size_t>(output)][static_cast<size_t>(at) * 4];
      note(decode(fastnorm_dtype_of(FASTNORM_DTYPE_F32), found), wanted, size * 0x1p-18, &worst);
    };
    compare(rstd, row, s.rstd, s.rstd);
    compare(mean, row, s.mean, s.size);
    if (layer) compare(sumsq, 2 * row, s.mean, s.size);
    compare(sumsq, layer ? 2 * row + 1 : row, s.squares, s.squares);
    ++errors_.statistics;
    take(worst);
    if (!(worst <= 1)) ++errors_.wrong_rows;
  }

  void judge(double worst) {
    ++errors_.rows;
    take(worst);
    if (!(worst <= 1)) ++errors_.wrong_rows;
  }

  // The larger one; NaN is the largest.
  static double larger(double a, double b) { return b <= a || std::isnan(a) ? a : b; }
  void take(double worst) { errors_.worst = larger(errors_.worst, worst); }

  void note(double found, double wanted, double allowed, double* worst) {
    const double error = std::abs(found - wanted);
    const double share = error == 0 ? 0 : error / allowed;
    errors_.max_error = larger(errors_.max_error, error);
    *worst = larger(*worst, share);
  }

  double compare_values(int output, int64_t row, const ExactRow& exact) {
    const HeadsOutput& o = outputs_[static_cast<size_t>(output)];
    const HostTensor found = {o.dtype, o.shape, results_[static_cast<size_t>(output)]};
    const FloatFormat format = float_format(o.dtype);
    const std::vector<double> values = row_of(found, row);
    double worst = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      // A copy is exact; else the stored value is rounded once more.
      const double unit = exact.share == 0 ? 0 : std::ldexp(1.0, -format.precision);
      const double allowed = exact.magnitude[i] * (exact.share + unit) +
                             (exact.share == 0 ? 0 : std::ldexp(1.0, format.min_exponent));
      note(values[i], exact.o[i], allowed, &worst);
    }
    return worst;
  }

  double compare_codes(int output, int scales, int64_t block, int64_t row, const ExactRow& exact,
                       double clamp) {
    const HeadsOutput& o = outputs_[static_cast<size_t>(output)];
    const CodeFormat format = code_format(o.dtype);
    const size_t columns = exact.o.size(), step = block > 0 ? static_cast<size_t>(block) : columns;
    const size_t row_bytes = o.dtype.code == 1 ? columns / 2 : columns;
    const std::byte* codes =
        &results_[static_cast<size_t>(output)][static_cast<size_t>(row) * row_bytes];
    double worst = 0;
    for (size_t i = 0; i < columns; ++i) {
      const size_t index = static_cast<size_t>(row) * ((columns + step - 1) / step) + i / step;
      const double scale = scales < 0
                               ? static_cast<double>(kTensorScale)
                               : scale_at(outputs_[static_cast<size_t>(scales)].dtype,
                                          results_[static_cast<size_t>(scales)].data(), index);
      double wanted = exact.o[i];
      if (clamp > 0) wanted = std::clamp(wanted, -clamp, clamp);
      wanted = std::clamp(wanted, format.least * scale, format.most * scale);
      // From the value rounded to T, where the source says so.
      const double source = quant_.source == FASTNORM_QUANT_FROM_ROUNDED ? 0x1p-8 : 0;
      const double allowed = std::abs(wanted) * format.relative + scale * format.absolute +
                             exact.magnitude[i] * (exact.share + source + 0x1p-18);
      note(code_at(o.dtype, codes, i) * scale, wanted, allowed, &worst);
    }
    return worst;
  }

  // From the scale that was stored.
  double compare_head_weight(int output, int scales, int64_t row) {
    const double scale = scales < 0 ? static_cast<double>(kTensorScale)
                                    : scale_at(outputs_[static_cast<size_t>(scales)].dtype,
                                               results_[static_cast<size_t>(scales)].data(),
                                               static_cast<size_t>(row));
    const HostTensor& weights = inputs_.head_weights;
    const double factor = options_.head_weights_factor == 0 ? 1 : options_.head_weights_factor;
    const double wanted =
        decode(weights.dtype,
               &weights.content[static_cast<size_t>(row) * element_bytes(weights.dtype)]) *
        scale * factor;
    const std::byte* found = &results_[static_cast<size_t>(output)][static_cast<size_t>(row) * 4];
    double worst = 0;
    note(decode(fastnorm_dtype_of(FASTNORM_DTYPE_F32), found), wanted, std::abs(wanted) * 0x1p-22,
         &worst);
    return worst;
  }

  bool is_padding(int64_t token) const {
    const HostTensor& slots = inputs_.slots;
    return slots.present() && options_.has_cache() &&
           (token >= slots.shape[0] || index_at(slots, token) < 0);
  }

  // Whether no output of a token was written. Scales may have another order.
  bool is_as_before(int64_t token) const {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const HeadsOutput& o = outputs_[i];
      if (o.name.find("_cache") != std::string::npos || o.name.ends_with("_scale")) continue;
      const size_t bytes = results_[i].size() / static_cast<size_t>(o.shape[0]),
                   at = static_cast<size_t>(token) * bytes;
      const std::vector<std::byte> untouched(bytes, std::byte{0xff});
      const std::byte* const before =
          o.in_place ? &inputs_.x[o.part].content[at] : untouched.data();
      if (!std::equal(before, before + bytes, &results_[i][at])) return false;
    }
    return true;
  }

  // Slots that no token has.
  void untouched() {
    if (!inputs_.slots.present()) return;
    std::vector<bool> used(static_cast<size_t>(inputs_.pages * options_.page));
    for (int64_t i = 0; i < inputs_.slots.shape[0]; ++i) {
      const int64_t slot = index_at(inputs_.slots, i);
      if (slot >= 0) used[static_cast<size_t>(slot)] = true;
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i].name.find("_cache") == std::string::npos) continue;
      const std::vector<std::byte>& bytes = results_[i];
      const size_t row = bytes.size() / used.size();
      for (size_t slot = 0; slot < used.size(); ++slot) {
        const auto begin = bytes.begin() + static_cast<ptrdiff_t>(slot * row);
        if (!used[slot] && !std::all_of(begin, begin + static_cast<ptrdiff_t>(row),
                                        [](std::byte b) { return b == std::byte{0xff}; })) {
          ++errors_.touched_slots;
        }
      }
    }
  }

  const NormHeadsOptions& options_;
  const NormHeadsInputs& inputs_;
  const std::vector<HeadsOutput>& outputs_;
  const std::vector<std::vector<std::byte>>& results_;
  const Formula formula_;
  support::Call call_;
  const fastnorm_norm_args& norm_ = *call_.args<fastnorm_norm_args>();
  const fastnorm_quant& quant_ = *norm_.quant;
  NormHeadsErrors errors_;
};

}  // namespace

NormHeadsErrors compare_norm_heads(const NormHeadsOptions& options, const NormHeadsInputs& inputs,
                                   const std::vector<HeadsOutput>& outputs,
                                   const std::vector<std::vector<std::byte>>& results,
                                   int64_t check_tokens) {
  return Comparison(options, inputs, outputs, results)(check_tokens);
}

}  // namespace fastnorm::tool
