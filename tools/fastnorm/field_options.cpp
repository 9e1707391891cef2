#include "field_options.h"

#include <algorithm>
#include <cstdio>

namespace fastnorm::tool {

std::string path_of(const support::CallFamily& family, const std::string& option) {
  std::string name = option.substr(2);
  std::replace(name.begin(), name.end(), '-', '_');
  const support::CallStruct* quant = nullptr;
  for (const auto& field : family.args->fields) {
    if (name == field.name) return name;
    if (std::string("quant") == field.name) quant = field.type;
  }
  if (quant == nullptr) return "";
  if (name.starts_with("quant_")) name = name.substr(6);
  for (const auto& field : quant->fields) {
    if (name == field.name) return "quant." + name;
  }
  return "";
}

namespace {

// The names of an enum that is a field of a struct, as options have them.
std::vector<std::string> names_of(const support::CallStruct& type, const std::string& field) {
  std::vector<std::string> names;
  for (const auto& each : type.fields) {
    if (field != each.name) continue;
    for (const auto& [name, number] : each.values->values) {
      names.push_back(name);
      std::replace(names.back().begin(), names.back().end(), '_', '-');
    }
  }
  return names;
}

}  // namespace

std::string words_of_part(const std::string& words, const std::string& prefix,
                          const std::vector<std::string>& paths) {
  std::string found;
  for (size_t at = words.find_first_not_of(' '); at < words.size();) {
    const size_t end = std::min(words.find(' ', at), words.size());
    const std::string word = words.substr(at, end - at);
    for (const std::string& path : paths) {
      if (word.starts_with(path)) found += " " + prefix + word;
    }
    at = end + 1;
  }
  return found;
}

support::CallTensor call_tensor(uint64_t address, fastnorm_dtype dtype, std::vector<int64_t> shape,
                                std::vector<int64_t> strides) {
  support::CallTensor t;
  t.dtype = dtype.code | uint32_t{dtype.bits} << 8 | uint32_t{dtype.lanes} << 16;
  t.shape = std::move(shape);
  t.strides = std::move(strides);
  t.address = support::CallTensor::Address{"", address};
  return t;
}

FieldOptions::Value& FieldOptions::add(const char* option, Kind kind) {
  values_.push_back({option, kind, false, false, 0, 0, "", {}});
  return values_.back();
}

const FieldOptions::Value* FieldOptions::find(const std::string& option) const {
  for (const Value& value : values_) {
    if (value.option == option) return &value;
  }
  return nullptr;
}

void FieldOptions::choice(CLI::App& command, const char* option,
                          const std::vector<std::string>& names, const char* text) {
  Value& value = add(option, Kind::kChoice);
  value.names = names;
  value.name = names.front();
  command.add_option(option, value.name, text)
      ->check(CLI::IsMember(names))
      ->capture_default_str()
      ->group(group_);
}

void FieldOptions::choice(CLI::App& command, const char* option, const char* text) {
  const support::CallFamily& norm = *support::find_family("norm");
  const std::string path = path_of(norm, option);
  const bool of_quant = path.starts_with("quant.");
  std::vector<std::string> names;
  for (const support::CallStruct::Field& field : norm.args->fields) {
    if (of_quant && std::string("quant") == field.name)
      names = names_of(*field.type, path.substr(6));
    if (!of_quant && path == field.name) names = names_of(*norm.args, path);
  }
  choice(command, option, names, text);
}

void FieldOptions::flag(CLI::App& command, const char* option, const char* text) {
  command.add_flag(option, add(option, Kind::kFlag).set, text)->group(group_);
}

void FieldOptions::bit(CLI::App& command, const char* option, uint32_t bit, const char* text) {
  Value& value = add(option, Kind::kBit);
  value.whole = bit;
  command.add_flag(option, value.set, text)->group(group_);
}

std::string FieldOptions::chosen(const std::string& option) const {
  const Value* const value = find(option);
  return value == nullptr ? "" : value->name;
}

int64_t FieldOptions::number_of(const std::string& option) const {
  const Value* const value = find(option);
  // The parser has let no other name through.
  return value == nullptr ? 0
                          : std::find(value->names.begin(), value->names.end(), value->name) -
                                value->names.begin();
}

int64_t FieldOptions::whole(const std::string& option) const {
  const Value* const value = find(option);
  return value == nullptr ? 0 : value->whole;
}

std::string FieldOptions::words(const support::CallFamily& family) const {
  std::string words;
  for (const Value& value : values_) {
    const auto set = [&](const std::string& text) {
      const std::string path = path_of(family, value.option);
      if (!path.empty()) words += " " + path + "=" + text;
    };
    if (value.kind == Kind::kBit) continue;
    if (value.kind == Kind::kFlag) {
      set(value.set ? "1" : "0");
    } else if (value.kind == Kind::kChoice) {
      set(std::to_string(number_of(value.option)));
    } else if (value.is_real) {
      char text[32];
      std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value.real));
      set(text);
    } else {
      set(std::to_string(value.whole));
    }
  }
  return words;
}

uint32_t FieldOptions::flags() const {
  uint32_t flags = 0;
  for (const Value& value : values_) {
    if (value.kind == Kind::kBit && value.set) flags |= static_cast<uint32_t>(value.whole);
  }
  return flags;
}

}  // namespace fastnorm::tool
