// The stages of a norm as options: their tensors, and their numbers. `fastnorm run` has names of
// tensors. `fastnorm explain` says which there are, of modulators the shape.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "library.h"

namespace fastnorm::tool {

class StageOptions {
 public:
  void add_to(CLI::App& command) { add(command, true); }
  void add_without_names_to(CLI::App& command) { add(command, false); }
  // Names of outputs, empty where there is none.
  std::vector<std::string> outputs() const;
  // Sets the scalar fields of `args`; those that are 0 in a call without stages stay 0.
  void apply(fastnorm_norm_args* args) const;
  // The same for those of a gate, of groups and of a branch.
  void apply(fastnorm_norm_backward_args* args) const;
  // Options that a backward pass has, too. --branch-rstd is an input there.
  static const std::vector<std::string>& of_backward();
  bool normalises_branch() const { return branch_norm_ != "none"; }
  bool branch_is_layer() const { return branch_norm_ == "layer"; }

  // Names of tensors, or what says that there is one. Empty = absent.
  std::string gate, mean_in, rstd_in, branch_weight, branch_bias, sum_scale, residual_gate,
      residual_gate_table, modulation_scale, scale_table, modulation_shift, shift_table,
      modulation_index;
  std::string sumsq, branch_rstd;
  int64_t group_size = 0;

 private:
  void add(CLI::App& command, bool named);
  template <class Args>
  void apply_shared(Args* args, uint32_t alpha_flag) const;

  std::string gate_act_ = "identity", gate_position_ = "after-norm", gate_source_ = "f32",
              activation_ = "identity", branch_norm_ = "none", branch_rounding_ = "once",
              sum_rounding_ = "once", residual_gate_act_ = "identity",
              modulation_rounding_ = "once";
  float branch_eps_ = 0, branch_weight_offset_ = 0, alpha_ = 1;
  bool branch_rounded_ = false, plain_scale_ = false;
};

}  // namespace fastnorm::tool
