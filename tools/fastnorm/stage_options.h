// The stages of a norm as options: their tensors, and their numbers. `fastnorm run` has names of
// tensors. `fastnorm explain` says which there are, of modulators the shape.
#pragma once

#include <CLI/CLI.hpp>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "field_options.h"
#include "library.h"

namespace fastnorm::tool {

// Tensors of a call by the names of their options, in the order of these: their names in a file, or
// what says that there is one. "": there is none.
class NamedTensors {
 public:
  std::string& operator[](const std::string& option);
  const std::string& at(const std::string& option) const;  // "" of an option that is not there
  bool has(const std::string& option) const { return !at(option).empty(); }
  const std::deque<std::pair<std::string, std::string>>& all() const { return all_; }

 private:
  std::deque<std::pair<std::string, std::string>> all_;  // which stay where they are
};

class StageOptions {
 public:
  void add_to(CLI::App& command, NamedTensors* tensors) { add(command, true, tensors); }
  void add_without_names_to(CLI::App& command, NamedTensors* tensors) {
    add(command, false, tensors);
  }
  // The scalar fields that the family has, as words, but `flags`, whose bits are apart.
  std::string words(const support::CallFamily& family) const;
  uint32_t flags(const support::CallFamily& family) const;
  // The options of a command that are fields of a backward pass, too. --branch-rstd is an input
  // there.
  static std::vector<std::string> of_backward(CLI::App& command);
  bool normalises_branch() const { return branch_norm_ != "none"; }
  bool branch_is_layer() const { return branch_norm_ == "layer"; }
  int64_t group_size() const { return fields_.whole("--group-size"); }

 private:
  void add(CLI::App& command, bool named, NamedTensors* tensors);

  FieldOptions fields_;
  std::string branch_norm_ = "none";
  float alpha_ = 1;
};

}  // namespace fastnorm::tool
