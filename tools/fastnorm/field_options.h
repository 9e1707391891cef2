// Options that are scalar fields of calls, and the words that they become in the text of a call
// (support/call_text.h). The name of an option is that of its field: --gate-act is gate_act, and
// --amax-floor is quant.amax_floor.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <deque>
#include <string>
#include <type_traits>
#include <vector>

#include "shape.h"
#include "support/call_text.h"

namespace fastnorm::tool {

// The field of a family that has the name of an option. "": it has none.
std::string path_of(const support::CallFamily& family, const std::string& option);

// The words "a.b=c" whose path begins with one of these, each with `prefix` before it.
std::string words_of_part(const std::string& words, const std::string& prefix,
                          const std::vector<std::string>& paths);

// A tensor for a call's field.
support::CallTensor call_tensor(uint64_t address, fastnorm_dtype dtype, std::vector<int64_t> shape,
                                std::vector<int64_t> strides = {});

class FieldOptions {
 public:
  // In help, the options that are added next stand under this heading.
  void group(const char* name) { group_ = name; }

  // A number. `least` and `most` are of whole ones.
  template <class T>
  void number(CLI::App& command, const char* option, T initial, const char* text, int64_t least = 0,
              int64_t most = INT64_MAX) {
    Value& value = add(option, Kind::kNumber);
    if constexpr (std::is_floating_point_v<T>) {
      value.real = initial;
      value.is_real = true;
      command.add_option(option, value.real, text)->capture_default_str()->group(group_);
    } else {
      value.whole = initial;
      add_number(command, option, value.whole, text, least, most)->group(group_);
    }
  }
  // One of these names, whose places are the numbers of the enum.
  void choice(CLI::App& command, const char* option, const std::vector<std::string>& names,
              const char* text);
  // One of the enum's names, as the text of a norm has them with - for _.
  void choice(CLI::App& command, const char* option, const char* text);
  // 0 or 1.
  void flag(CLI::App& command, const char* option, const char* text);
  // A bit of the field `flags`.
  void bit(CLI::App& command, const char* option, uint32_t bit, const char* text);

  // The name of a choice; "" if no command added the option. And the number, which is then 0.
  std::string chosen(const std::string& option) const;
  int64_t number_of(const std::string& option) const;
  int64_t whole(const std::string& option) const;

  // The fields that the family has, but `flags`, as words with a blank before each.
  std::string words(const support::CallFamily& family) const;
  uint32_t flags() const;

 private:
  enum class Kind { kNumber, kChoice, kFlag, kBit };
  struct Value {
    std::string option;
    Kind kind;
    bool is_real = false, set = false;
    float real = 0;
    int64_t whole = 0;  // the bit, too
    std::string name;
    std::vector<std::string> names;
  };
  Value& add(const char* option, Kind kind);
  const Value* find(const std::string& option) const;

  const char* group_ = "Arithmetic";
  std::deque<Value> values_;  // which stay where they are
};

}  // namespace fastnorm::tool
