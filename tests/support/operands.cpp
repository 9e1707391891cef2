#include "support/operands.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <functional>

#include "core/common/dtype.h"

namespace fastnorm::support {

using schema::Role;
using schema::Shape;

namespace {

constexpr int64_t kFarBytes = int64_t{1} << 31;
constexpr int64_t kFarIndices = 37;       // of a tensor that lies far apart
constexpr unsigned char kNothing = 0xff;  // where nothing was written: NaN in every dtype

fastnorm_dtype dtype_of(uint32_t id) {
  return fastnorm_dtype_of(static_cast<fastnorm_dtype_id>(id));
}

std::vector<int64_t> compact(const std::vector<int64_t>& shape, int64_t gap = 0) {
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step = step * shape[i] + gap;
  }
  return strides;
}

std::string word_of(ref::Pattern pattern) {
  std::string word = ref::name_of(pattern);
  std::replace(word.begin(), word.end(), ' ', '_');
  return word;
}

std::string text_of(float value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::string text_of(const std::vector<int64_t>& values) {
  std::string text = "[";
  for (const int64_t value : values) text += (text.size() > 1 ? "," : "") + std::to_string(value);
  return text + "]";
}

uint64_t hash_of(std::string_view text) {
  uint64_t all = text.size();
  for (const char c : text) all = ref::hash(all, static_cast<unsigned char>(c));
  return all;
}

// Calls use(index, number) for the indices of all dimensions but the last.
void for_each_row(const Operand& o, const std::function<void(Index, int64_t)>& use) {
  std::vector<int64_t> index(o.shape.size() - 1);
  const int64_t rows = o.rows();
  for (int64_t r = 0; r < rows; ++r) {
    use(index, r);
    for (size_t d = index.size(); d-- > 0 && ++index[d] == o.shape[d];) index[d] = 0;
  }
}

}  // namespace

Operand::Operand(std::vector<int64_t> extents, std::vector<int64_t> steps, uint32_t id,
                 int64_t shift)
    : shape(std::move(extents)), strides(std::move(steps)), dtype(id) {
  const fastnorm_dtype d = dtype_of(id);
  bytes = std::max(1, d.bits * d.lanes / 8);
  first = static_cast<size_t>(shift * bytes);
  if (!shape.empty() && shape[0] > 1 && strides[0] * bytes * (shape[0] - 1) > kFarBytes) {
    far_stride = strides[0];
    far_first = std::max<int64_t>(0, shape[0] - kFarIndices);
    shape[0] -= far_first;
    strides[0] = span() + 64;
  }
  int64_t elements = 2;
  for (size_t i = 0; i < shape.size(); ++i)
    elements += std::max<int64_t>(0, shape[i] - 1) * strides[i];
  if (rows() * (shape.empty() ? 1 : shape.back()) == 0) elements = 1;
  now.assign(first + static_cast<size_t>(elements * bytes), kNothing);
  expected = now;
}

Operand::Operand(std::vector<int64_t> extents, fastnorm_dtype_id id)
    : Operand(extents, compact(extents), id) {
  abi_.device_type = FASTNORM_DEVICE_CPU;
  abi_.dtype = fastnorm_dtype_of(id);
}

const fastnorm_tensor* Operand::get() {
  abi_.data = data();
  abi_.ndim = static_cast<int32_t>(shape.size());
  abi_.shape = shape.data();
  abi_.strides = strides.data();
  return &abi_;
}

ref::Type Operand::type() const {
  return dtype == FASTNORM_DTYPE_F16    ? ref::Type::kF16
         : dtype == FASTNORM_DTYPE_BF16 ? ref::Type::kBF16
                                        : ref::Type::kF32;
}

int64_t Operand::rows() const {
  int64_t count = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) count *= shape[i];
  return count;
}

int64_t Operand::span() const {
  int64_t count = 1;
  for (size_t i = 1; i < shape.size(); ++i) count += (shape[i] - 1) * strides[i];
  return count;
}

size_t Operand::place(Index index) const {
  int64_t at = 0;
  for (size_t i = 0; i < index.size(); ++i)
    at += (index[i] - (i == 0 ? far_first : 0)) * strides[i];
  return first + static_cast<size_t>(at * bytes);
}

size_t Operand::place_of_row(Index leading) const {
  std::vector<int64_t> index;
  const size_t own = shape.size() - 1;
  for (size_t i = 0; i < own; ++i) {
    // Counted from the last ones.
    const size_t behind = own - i;
    index.push_back(shape[i] == 1 || behind > leading.size() ? 0
                                                             : leading[leading.size() - behind]);
  }
  return place(index);
}

std::vector<float> Operand::values(size_t at, int64_t n) const {
  std::vector<float> result(static_cast<size_t>(n));
  ref::decode_row(type(), now.data() + at, result.data(), n);
  return result;
}

std::vector<float> Operand::row(Index leading, int64_t n) const {
  const size_t at = place_of_row(leading);
  if (shape.back() == n && strides.back() == 1) return values(at, n);
  return std::vector<float>(static_cast<size_t>(n), values(at, 1)[0]);
}

int64_t Operand::number(size_t at) const {
  int64_t wide = 0;
  int32_t narrow = 0;
  if (bytes == 8) {
    std::memcpy(&wide, now.data() + at, sizeof wide);
    return wide;
  }
  std::memcpy(&narrow, now.data() + at, sizeof narrow);
  return narrow;
}

void Operand::set(size_t at, const float* from, int64_t n) {
  ref::encode_row(type(), from, now.data() + at, n);
  std::memcpy(expected.data() + at, now.data() + at,
              static_cast<size_t>(n * ref::bytes_of(type())));
}

void Operand::set_index(size_t at, int64_t value) {
  if (bytes == 8) return set_number(at, value);
  set_number(at, static_cast<int32_t>(value));
}

// ---- Of a call.

Operands::Operands(const std::string& line) : line_(line) {
  std::string text;
  std::vector<std::pair<std::string, std::string>> fills;
  for (size_t at = 0; at < line.size();) {
    const size_t end = std::min(line.find(' ', at), line.size());
    const std::string word = line.substr(at, end - at);
    const size_t equals = word.find('=');
    at = end + 1;
    if (word.starts_with("fill.") && equals != word.npos) {
      fills.emplace_back(word.substr(5, equals - 5), word.substr(equals + 1));
    } else if (word.starts_with("seed=")) {
      const char* const last = word.data() + word.size();
      if (std::from_chars(word.data() + 5, last, seed_).ptr != last)
        throw CallTextError("`" + word + "` is no seed");
    } else if (!word.empty()) {
      text += (text.empty() ? "" : " ") + word;
    }
  }
  call_ = Call(text);
  for (const std::string& path : call_.tensors()) make(path);
  for (auto& [path, operand] : by_path_) {
    // Follows another tensor's address, which may be that of a third one.
    for (std::string of = path; operand == nullptr;) {
      of = call_.tensor(of)->address->of;
      for (const auto& [other, memory] : by_path_) {
        if (other == of) operand = memory;
      }
    }
  }
  for (const auto& o : all_) {
    const std::string* word = nullptr;
    for (const auto& [path, value] : fills) {
      if (path == o->path) word = &value;
    }
    fill(*o, word);
  }
  for (const auto& each : fills) {
    const std::string& path = each.first;
    if (std::none_of(all_.begin(), all_.end(), [&](const auto& o) { return o->path == path; }))
      throw CallTextError("`fill." + path + "` has no tensor of its own");
  }
  place(call_.device());
}

void Operands::make(const std::string& path) {
  const CallTensor& t = *call_.tensor(path);
  const fastnorm_dtype dtype = dtype_of(t.dtype);
  const int64_t bytes = std::max(1, dtype.bits * dtype.lanes / 8);
  int64_t shift = 0;
  if (t.address && t.address->of == path) {
    shift = static_cast<int64_t>(t.address->number) / bytes;
  } else if (t.address) {
    if (t.address->of.empty() || t.address->number != 0)
      throw CallTextError("`" + path + ".address` is neither beside its own nor another tensor's");
    by_path_.emplace_back(path, nullptr);
    return;
  }
  if (t.shape.empty() || t.ndim || (!t.strides.empty() && t.strides.size() != t.shape.size()))
    throw CallTextError("`" + path + "` has no shape to make memory for");
  std::vector<int64_t> strides = t.strides.empty() ? compact(t.shape) : t.strides;
  const CallStruct::Field* const field = call_.field(path);
  // Scales without strides lie by columns if their layout says so.
  if (field->role == Role::kScales && t.strides.empty() && t.shape.size() > 1) {
    int32_t layout = 0;
    const std::string beside = path.substr(0, path.rfind('.') + 1) + "scale_layout";
    std::memcpy(&layout, call_.scalar(beside), sizeof layout);
    if (layout == FASTNORM_SCALE_COLUMN_MAJOR) {
      std::vector<int64_t> rows(t.shape.begin(), t.shape.end() - 1);
      strides = compact(rows);
      strides.push_back(rows[0] * strides[0]);
    }
  }
  all_.push_back(std::make_unique<Operand>(t.shape, std::move(strides), t.dtype, shift));
  all_.back()->path = path;
  all_.back()->field = field;
  by_path_.emplace_back(path, all_.back().get());
}

Operand* Operands::operator()(const fastnorm_tensor* t) const {
  const auto found = by_tensor_.find(t);
  return found == by_tensor_.end() ? nullptr : found->second;
}

void Operands::place(fastnorm_device device) {
  call_.change("device=" + std::to_string(device.device_type) + ":" +
               std::to_string(device.device_id));
  for (const auto& [path, operand] : by_path_) {
    CallTensor* const t = call_.tensor(path);
    t->address =
        CallTensor::Address{"", reinterpret_cast<uintptr_t>(operand->data()) - t->byte_offset};
  }
  args_ = call_.args<void>();
  parts_ = call_.parts<void>();
  by_tensor_.clear();
  for (const auto& [path, operand] : by_path_) by_tensor_.emplace(call_.built(path), operand);
}

void Operands::fill_index(Operand& o, const std::string& word) {
  std::vector<int64_t> values;
  for (const char *at = word.data(), *const stop = at + word.size(); at <= stop; ++at) {
    const auto end = std::from_chars(at, stop, values.emplace_back());
    if (end.ec != std::errc() || (end.ptr != stop && *end.ptr != ','))
      throw CallTextError("`fill." + o.path + "`: `" + word + "` is no whole number");
    at = end.ptr;
  }
  const auto count = static_cast<int64_t>(values.size());
  if (count != 1 && count != o.shape.back())
    throw CallTextError("`fill." + o.path + "`: `" + word + "` are not as many as its columns");
  for_each_row(o, [&](Index index, int64_t) {
    std::vector<int64_t> at(index.begin(), index.end());
    at.push_back(0);
    for (int64_t& i = at.back(); i < o.shape.back(); ++i)
      o.set_index(o.place(at), values[static_cast<size_t>(i % count)]);
  });
}

void Operands::fill(Operand& o, const std::string* word) {
  const Role role = o.field->role;
  const bool adds = role == Role::kWeightOut || role == Role::kScalarInout;
  const bool gives = role == Role::kScales && o.shape == std::vector<int64_t>{1} && o.bytes == 4;
  if (o.is_index() && word != nullptr) return fill_index(o, *word);
  if ((schema::is_output(role) && !adds && !gives) || !o.is_float()) {
    if (word != nullptr) throw CallTextError("`fill." + o.path + "` is not of a value's tensor");
    return;
  }
  auto pattern = ref::Pattern::kNormal;
  if ((role == Role::kWeightIn && o.field->shape != Shape::kSpread))
    pattern = ref::Pattern::kWeights;
  const bool statistic = role == Role::kStatIn;
  const bool scalar = role == Role::kScalarIn || role == Role::kScalarInout || gives;
  bool constant = scalar, spikes = false;
  float value = role == Role::kScalarInout ? 0.25f : 0.5f;
  if (word != nullptr) {
    bool known = false;
    for (int i = 0; i <= static_cast<int>(ref::Pattern::kWeights); ++i) {
      if (*word != word_of(static_cast<ref::Pattern>(i))) continue;
      pattern = static_cast<ref::Pattern>(i);
      known = true;
    }
    spikes = *word == "spikes";
    if (!known && !spikes) {
      const auto end = std::from_chars(word->data(), word->data() + word->size(), value);
      if (end.ec != std::errc() || end.ptr != word->data() + word->size())
        throw CallTextError("`fill." + o.path + "`: `" + *word + "` is no pattern and no number");
      constant = true;
    }
  }
  const uint64_t own = ref::hash(seed_, hash_of(o.path));
  const int64_t n = o.strides.back() == 1 ? o.shape.back() : std::min<int64_t>(1, o.shape.back());
  if (o.rows() * n == 0) return;
  std::vector<float> row(static_cast<size_t>(n));
  for_each_row(o, [&](Index index, int64_t r) {
    ref::fill_row(pattern, o.type(), ref::hash(own, r), row.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      float& at = row[static_cast<size_t>(i)];
      if (constant) at = value;
      if (o.field->shape == Shape::kSigns && word == nullptr) at = at < 0 ? -1.0f : 1.0f;
      // Others than the rows', so that a result from those would show.
      if (statistic && word == nullptr) {
        const bool mean = o.path.find("mean") != o.path.npos;
        at = (mean ? -0.25f : 0.75f) + 0.125f * static_cast<float>((r * n + i) % 5);
      }
    }
    std::vector<int64_t> shifted(index.begin(), index.end());
    if (!shifted.empty()) shifted[0] += o.far_first;
    o.set(o.place(shifted), row.data(), n);
  });
  if (!spikes) return;
  ref::Random random(own);
  const float large[] = {-INFINITY, 200.0f, -200.0f, -87.5f, -103.0f, 30.0f, -30.0f};
  for (int i = 0; i < 3; ++i) {
    std::vector<int64_t> index;
    for (const int64_t extent : o.shape) index.push_back(random.below(extent));
    const float great = random.of(large);
    o.set(o.place(index), &great, 1);
  }
}

std::string Operands::difference(bool nan_is_one) const {
  for (const auto& each : all_) {
    const Operand& o = *each;
    if (o.now == o.expected) continue;
    const auto size = static_cast<size_t>(o.is_float() ? o.bytes : 1);
    for (size_t at = 0; at < o.now.size(); at += size) {
      if (std::memcmp(&o.now[at], &o.expected[at], size) == 0) continue;
      float found = o.now[at], wanted = o.expected[at];
      if (o.is_float()) {
        ref::decode_row(o.type(), &o.now[at], &found, 1);
        ref::decode_row(o.type(), &o.expected[at], &wanted, 1);
        const bool written = std::any_of(&o.expected[at], &o.expected[at] + size,
                                         [](unsigned char byte) { return byte != kNothing; });
        if (nan_is_one && written && std::isnan(found) && std::isnan(wanted)) continue;
      }
      char text[160];
      std::snprintf(text, sizeof text, " byte %lld is %.9g, not %.9g",
                    static_cast<long long>(at) - static_cast<long long>(o.first),
                    static_cast<double>(found), static_cast<double>(wanted));
      return o.path + text;
    }
  }
  return "";
}

// ---- Lines.

LineWriter::LineWriter(const char* family, uint64_t seed, bool gpu) : line_(family) {
  if (gpu) set("device", "cuda:0");
  set("seed", std::to_string(seed));
}

void LineWriter::set(const std::string& path, double value) {
  set(path, text_of(static_cast<float>(value)));
}

void LineWriter::fill(const std::string& path, ref::Pattern pattern) {
  fill(path, word_of(pattern));
}

LineWriter::View& LineWriter::view(const std::string& path) {
  return *std::find_if(views_.begin(), views_.end(), [&](const View& v) { return v.path == path; });
}

void LineWriter::tensor(const std::string& path, fastnorm_dtype_id dtype,
                        const std::vector<int64_t>& shape, int64_t gap, int64_t shift) {
  const fastnorm_dtype d = fastnorm_dtype_of(dtype);
  views_.push_back({path, dtype_name(dtype_from(d)) + text_of(shape), ""});
  set(path, views_.back().tensor);
  std::vector<int64_t> steps = compact(shape, gap);
  if (far_stride != 0) steps[0] = far_stride;
  if (far_stride != 0 || gap != 0) strides(path, steps);
  if (shift != 0) set(path + ".address", path + "+" + std::to_string(shift * d.bits * d.lanes / 8));
}

void LineWriter::strides(const std::string& path, const std::vector<int64_t>& steps) {
  view(path).strides = text_of(steps);
  set(path + ".strides", text_of(steps));
}

void LineWriter::same(const std::string& path, const std::string& as) {
  const View of = view(as);
  set(path, of.tensor);
  if (!of.strides.empty()) set(path + ".strides", of.strides);
  set(path + ".address", as);
}

void LineWriter::scalar(const std::string& path, float value) {
  tensor(path, FASTNORM_DTYPE_F32, {1});
  fill(path, text_of(value));
}

}  // namespace fastnorm::support
