#include "support/call_text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <iterator>
#include <tuple>
#include <type_traits>

#include "core/common/dtype.h"
#include "support/families.h"

namespace fastnorm::support {

using Field = CallStruct::Field;
using schema::Kind;

namespace {

// Dimensions that a tensor may have. The arrays of a rank beyond may be shorter than it.
constexpr int32_t kRanks = 8;
constexpr uint64_t kFirstPlace = 0x100000000000, kPlace = uint64_t{1} << 40;

constexpr std::pair<const char*, int32_t> kDevices[] = {
    {"cpu", FASTNORM_DEVICE_CPU},
    {"cuda", FASTNORM_DEVICE_CUDA},
    {"cuda_host", FASTNORM_DEVICE_CUDA_HOST},
    {"cuda_managed", FASTNORM_DEVICE_CUDA_MANAGED},
};

// The ends of an enum's names, which begin alike, in lower case.
template <class E>
const CallEnum& enum_of() {
  static const CallEnum made = [] {
    const auto& all = schema::Enum<E>::kAll;
    std::string_view common = all[0].name;
    for (const schema::Enumerator& each : all) {
      const std::string_view name = each.name;
      while (!name.starts_with(common)) common.remove_suffix(1);
    }
    common = common.substr(0, common.rfind('_') + 1);
    CallEnum values;
    for (const schema::Enumerator& each : all) {
      std::string text = each.name + common.size();
      for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      values.values.emplace_back(text, static_cast<int32_t>(each.value));
    }
    return values;
  }();
  return made;
}

template <class Struct>
const CallStruct& struct_of() {
  static const CallStruct made = [] {
    using Fields = schema::Fields<Struct>;
    CallStruct s = {Fields::kName, sizeof(Struct), Fields::kFirstSize, {}};
    const auto add = [&]<class Type>(Type Struct::*) {
      using To = std::remove_const_t<std::remove_pointer_t<Type>>;
      Field field = {Fields::kAll[s.fields.size()], nullptr, nullptr};
      if constexpr (schema::kind_of<Type>() == Kind::kStruct) field.type = &struct_of<To>();
      if constexpr (std::is_enum_v<Type>) field.values = &enum_of<Type>();
      s.fields.push_back(field);
    };
    std::apply([&](auto... members) { (add(members), ...); }, schema::Fields<Struct>::kMembers);
    return s;
  }();
  return made;
}

// The structs of a call, from the type of the function that prepares it.
template <class Prepare>
struct StructsOf;
template <class Args>
struct StructsOf<fastnorm_status(fastnorm_context*, const Args*)> {
  static const CallStruct* args() { return &struct_of<Args>(); }
  static const CallStruct* part() { return nullptr; }
};
template <class Args, class Part>
struct StructsOf<fastnorm_status(fastnorm_context*, const Args*, const Part* const*, int32_t)> {
  static const CallStruct* args() { return &struct_of<Args>(); }
  static const CallStruct* part() { return &struct_of<Part>(); }
};
template <class Prepare>
CallFamily family_of(const char* name) {
  return {name, StructsOf<Prepare>::args(), StructsOf<Prepare>::part()};
}

[[noreturn]] void fail(std::string text) { throw CallTextError(std::move(text)); }

std::string quoted(std::string_view text) { return "`" + std::string(text) + "`"; }

// A number of exactly these characters, 0x.. for a base of 16.
template <class Number>
Number number_from(std::string_view text) {
  Number value = {};
  std::from_chars_result end = {};
  if constexpr (std::is_floating_point_v<Number>) {
    end = std::from_chars(text.data(), text.data() + text.size(), value);
  } else {
    const bool hex = text.starts_with("0x");
    end = std::from_chars(text.data() + (hex ? 2 : 0), text.data() + text.size(), value,
                          hex ? 16 : 10);
  }
  if (end.ec == std::errc::result_out_of_range) fail(quoted(text) + " is out of range");
  if (end.ec != std::errc() || end.ptr != text.data() + text.size() || text.empty())
    fail(quoted(text) + " is no number");
  return value;
}

template <class Number>
std::string text_of(Number value) {
  char text[32];
  return {text, std::to_chars(text, std::end(text), value).ptr};
}

std::string hex_of(uint64_t value) {
  char text[20];
  return "0x" + std::string(text, std::to_chars(text, std::end(text), value, 16).ptr);
}

std::string list_of(const std::vector<int64_t>& values) {
  std::string text = "[";
  for (const int64_t value : values) text += (text.size() > 1 ? "," : "") + text_of(value);
  return text + "]";
}

std::vector<int64_t> list_from(std::string_view text) {
  if (!text.starts_with('[') || !text.ends_with(']')) fail(quoted(text) + " is no list, [1,2,..]");
  std::string_view rest = text.substr(1, text.size() - 2);
  std::vector<int64_t> values;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    values.push_back(number_from<int64_t>(rest.substr(0, comma)));
    if (comma == rest.npos) break;
    rest.remove_prefix(comma + 1);
    if (rest.empty()) fail(quoted(text) + " ends with a comma");
  }
  return values;
}

uint32_t dtype_from_text(std::string_view text) {
  for (const DtypeInfo& known : kDtypes) {
    if (text == known.name) return known.id;
  }
  if (!text.starts_with("0x")) fail(quoted(text) + " is no dtype");
  return number_from<uint32_t>(text);
}

std::string text_of_dtype(uint32_t id) {
  for (const DtypeInfo& known : kDtypes) {
    if (id == static_cast<uint32_t>(known.id)) return known.name;
  }
  return hex_of(id);
}

fastnorm_device device_from(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  fastnorm_device device = {0, 0};
  if (colon != text.npos) device.device_id = number_from<int32_t>(text.substr(colon + 1));
  for (const auto& [known, type] : kDevices) {
    if (name == known) {
      device.device_type = type;
      return device;
    }
  }
  device.device_type = number_from<int32_t>(name);
  return device;
}

std::string text_of(fastnorm_device device) {
  std::string text = text_of(device.device_type);
  for (const auto& [known, type] : kDevices) {
    if (device.device_type == type) text = known;
  }
  return text + ":" + text_of(device.device_id);
}

int32_t enum_from(const CallEnum& type, std::string_view text) {
  for (const auto& [known, number] : type.values) {
    if (text == known) return number;
  }
  if (text.empty() || (text[0] != '-' && (text[0] < '0' || text[0] > '9'))) {
    std::string all;
    for (const auto& [known, number] : type.values) all += " " + known;
    fail(quoted(text) + " is none of" + all);
  }
  return number_from<int32_t>(text);
}

template <class Number>
void store(void* to, Number value) {
  std::memcpy(to, &value, sizeof value);
}

template <class Number>
Number load(const void* from) {
  Number value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void set_scalar(const Field& field, void* to, std::string_view value) {
  switch (field.kind) {
    case Kind::kSize:
      return store(to, number_from<size_t>(value));
    case Kind::kInt32:
      return store(to, number_from<int32_t>(value));
    case Kind::kUint32:
      return store(to, number_from<uint32_t>(value));
    case Kind::kInt64:
      return store(to, number_from<int64_t>(value));
    case Kind::kFloat:
      return store(to, number_from<float>(value));
    case Kind::kDouble:
      return store(to, number_from<double>(value));
    case Kind::kEnum:
      return store(to, enum_from(*field.values, value));
    case Kind::kPointer:
      return store(to, value == "null" ? uint64_t{0} : number_from<uint64_t>(value));
    case Kind::kStruct:
    case Kind::kTensor:
      break;
  }
}

// Empty if the value is as in a struct that says nothing.
std::string text_of_scalar(const CallStruct& type, const Field& field, const void* from) {
  const auto unless = [](auto value, auto nothing) {
    return std::memcmp(&value, &nothing, sizeof value) == 0 ? std::string() : text_of(value);
  };
  switch (field.kind) {
    case Kind::kSize:
      return unless(load<size_t>(from), size_t{type.size});
    case Kind::kInt32:
      return unless(load<int32_t>(from), int32_t{0});
    case Kind::kUint32: {
      const uint32_t value = load<uint32_t>(from);
      return value == 0 ? "" : hex_of(value);
    }
    case Kind::kInt64:
      return unless(load<int64_t>(from), int64_t{0});
    case Kind::kFloat:
      return unless(load<float>(from), 0.0f);
    case Kind::kDouble:
      return unless(load<double>(from), 0.0);
    case Kind::kEnum: {
      const int32_t value = load<int32_t>(from);
      if (value == 0) return "";
      for (const auto& [known, number] : field.values->values) {
        if (number == value) return known;
      }
      return text_of(value);
    }
    case Kind::kPointer: {
      const uint64_t value = load<uint64_t>(from);
      return value == 0 ? "" : hex_of(value);
    }
    case Kind::kStruct:
    case Kind::kTensor:
      break;
  }
  return "";
}

// Tensors of a struct and of those that it points to.
int places_of(const CallStruct& type) {
  int places = 0;
  for (const Field& field : type.fields) {
    if (field.kind == Kind::kTensor) ++places;
    if (field.kind == Kind::kStruct) places += places_of(*field.type);
  }
  return places;
}

const Field* field_of(const CallStruct& type, std::string_view name) {
  for (const Field& field : type.fields) {
    if (name == field.name) return &field;
  }
  return nullptr;
}

// The number of parts[i], and what is behind it. Less than 0: something else.
int64_t part_of(std::string_view path, std::string_view* rest) {
  if (!path.starts_with("parts[")) return -1;
  const size_t end = path.find(']');
  if (end == path.npos) fail(quoted(path) + " has no ]");
  const auto part = number_from<uint32_t>(path.substr(6, end - 6));
  if (part > 64) fail(quoted(path) + " is too many");
  *rest = path.substr(end + 1);
  if (rest->starts_with('.')) rest->remove_prefix(1);
  return part;
}

void set_property(CallTensor* t, std::string_view name, std::string_view value) {
  if (name == "dtype") {
    t->dtype = dtype_from_text(value);
  } else if (name == "shape") {
    t->null_shape = value == "null";
    if (!t->null_shape) t->shape = list_from(value);
  } else if (name == "strides") {
    t->strides = value == "null" ? std::vector<int64_t>() : list_from(value);
  } else if (name == "ndim") {
    t->ndim = number_from<int32_t>(value);
  } else if (name == "offset") {
    t->byte_offset = number_from<uint64_t>(value);
  } else if (name == "device") {
    t->device = device_from(value);
  } else if (name == "address") {
    CallTensor::Address address;
    if (value.starts_with("0x")) {
      address.number = number_from<uint64_t>(value);
    } else if (value != "null") {
      const size_t sign = value.find_first_of("+-");
      address.of = value.substr(0, sign);
      if (sign != value.npos) {
        const auto bytes = number_from<uint64_t>(value.substr(sign + 1));
        address.number = value[sign] == '-' ? 0 - bytes : bytes;
      }
    }
    t->address = address;
  } else {
    fail("a tensor has no " + quoted(name));
  }
}

CallTensor tensor_from(std::string_view value) {
  const size_t bracket = value.find('[');
  if (bracket == value.npos) fail(quoted(value) + " is no tensor, DTYPE[EXTENT,..]");
  CallTensor t;
  t.dtype = dtype_from_text(value.substr(0, bracket));
  t.shape = list_from(value.substr(bracket));
  return t;
}

std::string address_text(const CallTensor::Address& address) {
  if (address.of.empty()) return address.number == 0 ? "null" : hex_of(address.number);
  const auto bytes = static_cast<int64_t>(address.number);
  if (bytes == 0) return address.of;
  return address.of + (bytes > 0 ? "+" : "") + text_of(bytes);
}

std::string text_of(const CallTensor& t, const std::string& path) {
  std::string text = " " + path + "=" + text_of_dtype(t.dtype) + list_of(t.shape);
  const auto put = [&](const char* name, const std::string& value) {
    text += " " + path + "." + name + "=" + value;
  };
  if (t.null_shape) put("shape", "null");
  if (t.ndim) put("ndim", text_of(*t.ndim));
  if (!t.strides.empty()) put("strides", list_of(t.strides));
  if (t.address) put("address", address_text(*t.address));
  if (t.byte_offset != 0) put("offset", text_of(t.byte_offset));
  if (t.device) put("device", text_of(*t.device));
  return text;
}

}  // namespace

const std::vector<CallFamily>& families() {
  static const std::vector<CallFamily> all = {
#define FASTNORM_CALL(name) family_of<decltype(fastnorm_##name##_prepare)>(#name),
      FASTNORM_CALLS(FASTNORM_CALL)
#undef FASTNORM_CALL
  };
  return all;
}

const CallFamily* find_family(std::string_view name) {
  for (const CallFamily& family : families()) {
    if (name == family.name) return &family;
  }
  return nullptr;
}

Call::Struct::Struct(const CallStruct* of) : type(of) {
  if (of == nullptr) return;
  words.resize((of->size + 7) / 8);
  for (const Field& field : of->fields) {
    if (field.kind == Kind::kSize)
      store(reinterpret_cast<char*>(words.data()) + field.offset, size_t{of->size});
  }
}

Call::Call(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(' '));
  family_ = find_family(name);
  if (family_ == nullptr) fail("column 1: " + quoted(name) + " is no family");
  args_ = Struct(family_->args);
  change(std::string(name.size(), ' ').append(text.substr(name.size())));
}

Call::Struct Call::read(const CallStruct* type, const void* from, fastnorm_device device) {
  Struct s(type);
  for (const Field& field : type->fields) {
    const char* const at = static_cast<const char*>(from) + field.offset;
    if (field.kind != Kind::kTensor && field.kind != Kind::kStruct) {
      std::memcpy(reinterpret_cast<char*>(s.words.data()) + field.offset, at, field.size);
      continue;
    }
    const auto* const pointer = load<const void*>(at);
    if (pointer == nullptr) continue;
    if (field.kind == Kind::kStruct) {
      s.structs.emplace_back(&field, read(field.type, pointer, device));
      continue;
    }
    const auto& tensor = *static_cast<const fastnorm_tensor*>(pointer);
    CallTensor t;
    t.dtype = dtype_id(tensor.dtype);
    t.null_shape = tensor.shape == nullptr && tensor.ndim > 0;
    const bool listed = tensor.shape != nullptr && tensor.ndim >= 0 && tensor.ndim <= kRanks;
    if (listed) t.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
    if (!listed && tensor.ndim != 0) t.ndim = tensor.ndim;
    if (listed && tensor.strides != nullptr)
      t.strides.assign(tensor.strides, tensor.strides + tensor.ndim);
    t.address = CallTensor::Address{"", reinterpret_cast<uintptr_t>(tensor.data)};
    t.byte_offset = tensor.byte_offset;
    const fastnorm_device own = {tensor.device_type, tensor.device_id};
    if (own.device_type != device.device_type || own.device_id != device.device_id) t.device = own;
    s.tensors.emplace_back(&field, std::move(t));
  }
  return s;
}

Call::Call(const CallFamily& family, const void* args, const void* const* parts, int32_t count,
           fastnorm_device device)
    : family_(&family), device_(device), args_(read(family.args, args, device)) {
  for (int32_t i = 0; i < count; ++i) {
    null_parts_.push_back(parts[i] == nullptr);
    parts_.push_back(parts[i] == nullptr ? Struct(family.part)
                                         : read(family.part, parts[i], device));
  }
}

CallTensor* Call::tensor_of(Struct& s, const Field* field) {
  for (auto& [of, tensor] : s.tensors) {
    if (of == field) return &tensor;
  }
  return nullptr;
}

Call::Place Call::find(std::string_view path, bool make) {
  std::string_view rest = path;
  Struct* in = &args_;
  int slot = 0;
  const int64_t part = part_of(path, &rest);
  if (part >= 0) {
    if (family_->part == nullptr) fail(quoted(family_->name) + " has no parts");
    while (make && static_cast<int64_t>(parts_.size()) <= part) {
      parts_.emplace_back(family_->part);
      null_parts_.push_back(false);
    }
    in = part < static_cast<int64_t>(parts_.size()) ? &parts_[static_cast<size_t>(part)] : nullptr;
    slot = places_of(*family_->args) + static_cast<int>(part) * places_of(*family_->part);
  }
  const CallStruct* type = part >= 0 ? family_->part : family_->args;
  for (;;) {
    const size_t dot = rest.find('.');
    const std::string_view name = rest.substr(0, dot);
    const Field* const field = field_of(*type, name);
    if (field == nullptr) fail(std::string(type->name) + " has no field " + quoted(name));
    for (const Field* before = type->fields.data(); before != field; ++before) {
      if (before->kind == Kind::kTensor) ++slot;
      if (before->kind == Kind::kStruct) slot += places_of(*before->type);
    }
    rest = dot == rest.npos ? std::string_view() : rest.substr(dot + 1);
    if (field->kind != Kind::kStruct || rest.empty()) return {in, field, slot, rest};
    type = field->type;
    if (in == nullptr) continue;
    Struct* next = nullptr;
    for (auto& [of, child] : in->structs) {
      if (of == field) next = &child;
    }
    if (next == nullptr && make) next = &in->structs.emplace_back(field, Struct(type)).second;
    in = next;
  }
}

void Call::set_tensor(const Place& place, std::string_view path, std::string_view value) {
  Struct& s = *place.in;
  CallTensor* const given = tensor_of(s, place.field);
  if (!place.property.empty()) {
    if (given == nullptr) {
      fail(quoted(path.substr(0, path.size() - place.property.size() - 1)) + " is not given");
    }
    set_property(given, place.property, value);
  } else if (value == "null") {
    std::erase_if(s.tensors, [&](const auto& each) { return each.first == place.field; });
  } else {
    give(path, tensor_from(value));
  }
}

void Call::set(std::string_view path, std::string_view value) {
  if (path == "device") {
    device_ = device_from(value);
    return;
  }
  if (path == "count" && family_->part != nullptr) {
    count_ = number_from<int32_t>(value);
    return;
  }
  std::string_view rest;
  const int64_t part = part_of(path, &rest);
  if (part >= 0 && rest.empty()) {
    if (value != "null") fail(quoted(path) + " may be null; its fields have values");
    if (part >= static_cast<int64_t>(null_parts_.size())) fail(quoted(path) + " is not given");
    null_parts_[static_cast<size_t>(part)] = true;
    return;
  }
  const bool gone = value == "null";
  const Place place = find(path, !gone);
  if (place.in == nullptr) return;
  if (place.field->kind == Kind::kTensor) return set_tensor(place, path, value);
  if (place.field->kind == Kind::kStruct) {
    if (!gone) fail(quoted(path) + " may be null; its fields have values");
    std::erase_if(place.in->structs, [&](const auto& each) { return each.first == place.field; });
    return;
  }
  if (!place.property.empty()) fail(quoted(path) + ": a scalar has no fields");
  set_scalar(*place.field, static_cast<char*>(data(*place.in)) + place.field->offset, value);
}

// The paths of a list of names. A property of the last one is meant of all.
std::vector<std::string> Call::paths_of(std::string_view list) {
  const size_t comma = list.rfind(',');
  if (comma == list.npos) return {std::string(list)};
  const std::string_view last = list.substr(comma + 1);
  const std::string_view property = find(last, false).property;
  std::vector<std::string> paths;
  for (size_t at = 0; at < comma;) {
    const size_t end = list.find(',', at);
    paths.emplace_back(list.substr(at, end - at));
    if (!property.empty()) paths.back().append(".").append(property);
    at = end + 1;
  }
  paths.emplace_back(last);
  return paths;
}

void Call::change(std::string_view text) {
  std::vector<std::string> seen;
  for (size_t at = text.find_first_not_of(' '); at < text.size();
       at = text.find_first_not_of(' ', at)) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    try {
      const size_t equals = word.find('=');
      if (equals == word.npos) fail(quoted(word) + " has no =");
      for (std::string& path : paths_of(word.substr(0, equals))) {
        if (std::find(seen.begin(), seen.end(), path) != seen.end())
          fail(quoted(path) + " is there twice");
        set(path, word.substr(equals + 1));
        seen.push_back(std::move(path));
      }
    } catch (const CallTextError& error) {
      fail("column " + text_of(at + 1) + ": " + error.what());
    }
    at = end;
  }
  // Every address is beside a tensor of the call.
  for (const std::string& path : tensors()) address(path, 0);
}

CallTensor* Call::tensor(std::string_view path) {
  const Place place = find(path, false);
  return place.in == nullptr ? nullptr : tensor_of(*place.in, place.field);
}

void Call::give(std::string_view path, CallTensor tensor) {
  const Place place = find(path, true);
  if (place.field->kind != Kind::kTensor || !place.property.empty())
    fail(quoted(path) + " is no tensor");
  std::vector<std::pair<const Field*, CallTensor>>& all = place.in->tensors;
  if (CallTensor* given = tensor_of(*place.in, place.field)) {
    *given = std::move(tensor);
    return;
  }
  all.emplace_back(place.field, std::move(tensor));
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.first->offset < b.first->offset; });
}

void Call::set_pointer(std::string_view path, const void* value) {
  const Place place = find(path, true);
  if (place.field->kind != Kind::kPointer) fail(quoted(path) + " is no pointer");
  store(static_cast<char*>(data(*place.in)) + place.field->offset, value);
}

const void* Call::scalar(std::string_view path) const {
  const Place place = const_cast<Call*>(this)->find(path, false);
  return place.in == nullptr ? nullptr : static_cast<char*>(data(*place.in)) + place.field->offset;
}

const Field* Call::field(std::string_view path) const {
  return const_cast<Call*>(this)->find(path, false).field;
}

const fastnorm_tensor* Call::built(std::string_view path) const {
  const Place place = const_cast<Call*>(this)->find(path, false);
  const void* const at = static_cast<char*>(data(*place.in)) + place.field->offset;
  return load<const fastnorm_tensor*>(at);
}

uint64_t Call::address_of(std::string_view path) const { return address(path, 0); }

uint64_t Call::address(std::string_view path, int depth) const {
  const Place place = const_cast<Call*>(this)->find(path, false);
  if (place.field->kind != Kind::kTensor || !place.property.empty())
    fail(quoted(path) + " is no tensor");
  const uint64_t own = kFirstPlace + static_cast<uint64_t>(place.slot) * kPlace;
  const CallTensor* const t = place.in == nullptr ? nullptr : tensor_of(*place.in, place.field);
  if (t == nullptr || !t->address) return own;
  if (t->address->of.empty()) return t->address->number;
  if (t->address->of == path) return own + t->address->number;
  if (depth > 8) fail("the address of " + quoted(path) + " is its own");
  return address(t->address->of, depth + 1) + t->address->number;
}

void Call::build(Struct& s, const std::string& prefix) {
  s.built.clear();
  s.built.reserve(s.tensors.size());
  char* const bytes = static_cast<char*>(data(s));
  for (const Field& field : s.type->fields) {
    if (field.kind == Kind::kTensor || field.kind == Kind::kStruct)
      store(bytes + field.offset, uint64_t{0});
  }
  for (const auto& [field, t] : s.tensors) {
    fastnorm_tensor built = {};
    built.data = reinterpret_cast<void*>(address(prefix + field->name, 0));
    const fastnorm_device device = t.device.value_or(device_);
    built.device_type = device.device_type;
    built.device_id = device.device_id;
    built.ndim = t.ndim.value_or(static_cast<int32_t>(t.shape.size()));
    built.dtype = fastnorm_dtype_of(static_cast<fastnorm_dtype_id>(t.dtype));
    built.shape = t.null_shape ? nullptr : t.shape.data();
    built.strides = t.strides.empty() ? nullptr : t.strides.data();
    built.byte_offset = t.byte_offset;
    s.built.push_back(built);
    store(bytes + field->offset, static_cast<const void*>(&s.built.back()));
  }
  for (auto& [field, child] : s.structs) {
    build(child, prefix + field->name + ".");
    store(bytes + field->offset, static_cast<const void*>(data(child)));
  }
}

void Call::build() {
  build(args_, "");
  part_pointers_.clear();
  for (size_t i = 0; i < parts_.size(); ++i) {
    build(parts_[i], "parts[" + text_of(i) + "].");
    part_pointers_.push_back(null_parts_[i] ? nullptr : data(parts_[i]));
  }
}

void Call::write(const Struct& s, const std::string& prefix, std::string* to) const {
  const char* const bytes = static_cast<const char*>(data(s));
  const size_t before = to->size();
  for (const Field& field : s.type->fields) {
    const std::string path = prefix + field.name;
    if (field.kind == Kind::kTensor) {
      if (const CallTensor* t = tensor_of(const_cast<Struct&>(s), &field)) *to += text_of(*t, path);
    } else if (field.kind == Kind::kStruct) {
      for (const auto& [of, child] : s.structs) {
        if (of == &field) write(child, path + ".", to);
      }
    } else {
      const std::string text = text_of_scalar(*s.type, field, bytes + field.offset);
      if (!text.empty()) *to += " " + path + "=" + text;
    }
  }
  // A struct that says nothing is there all the same.
  if (to->size() == before && !prefix.empty())
    *to += " " + prefix + "struct_size=" + text_of(s.type->size);
}

std::string Call::text() const {
  std::string text = family_->name;
  if (device_.device_type != FASTNORM_DEVICE_CPU || device_.device_id != 0)
    text += " device=" + text_of(device_);
  write(args_, "", &text);
  for (size_t i = 0; i < parts_.size(); ++i) {
    const std::string path = "parts[" + text_of(i) + "]";
    write(parts_[i], path + ".", &text);
    if (null_parts_[i]) text += " " + path + "=null";
  }
  if (count_) text += " count=" + text_of(*count_);
  return text;
}

void Call::list(const Struct& s, const std::string& prefix, std::vector<std::string>* to) const {
  for (const Field& field : s.type->fields) {
    if (tensor_of(const_cast<Struct&>(s), &field)) to->push_back(prefix + field.name);
    for (const auto& [of, child] : s.structs) {
      if (of == &field) list(child, prefix + field.name + ".", to);
    }
  }
}

std::vector<std::string> Call::tensors() const {
  std::vector<std::string> all;
  list(args_, "", &all);
  for (size_t i = 0; i < parts_.size(); ++i) list(parts_[i], "parts[" + text_of(i) + "].", &all);
  return all;
}

}  // namespace fastnorm::support
