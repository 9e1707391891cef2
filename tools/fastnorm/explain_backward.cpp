#include <cstring>

#include "dtype.h"
#include "explain.h"
#include "shape.h"

namespace fastnorm::tool {
namespace {

// What follows a kernel, and how many launches there are with it.
struct Sequence {
  const char* form;  // a word of the kernel's name
  const char* kernels;
  int32_t launches;
};
constexpr Sequence kSequences[] = {
    {" few ", "few", 1},
    {" few ", "columns, fold, few", 3},  // dbias first
    {" persistent ", "persistent", 1},
    {" persistent ", "persistent, fold", 2},
    {" persistent ", "statistics, persistent, fold", 3},
    {" persistent ", "columns, fold, persistent, fold", 4},
    {" persistent ", "columns, fold, statistics, persistent, fold", 5},
    {" rows ", "rows", 1},
    {" rows ", "columns, rows, fold", 3},
    {" rows ", "statistics, columns, rows, fold", 4},
    {" columns ", "columns, fold", 2},
    {" columns ", "statistics, columns, fold", 3},
    {" fold", "fold", 1},
};

}  // namespace

fastnorm_info query_backward(fastnorm_context* context, const ExplainOptions& o) {
  Pretended pretended(o, "norm_backward");
  const fastnorm_dtype dtype = find_dtype(o.dtype)->dtype,
                       f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32),
                       parameters = dtype_or(o.parameter_dtype, dtype),
                       of_bias = dtype_or(o.bias_dtype, parameters);
  const auto make = [&](bool wanted, const char* path, fastnorm_dtype of,
                        const std::vector<int64_t>& shape) {
    if (wanted) pretended.tensor(path, of, shape);
  };
  pretended.rows("dy", dtype);
  pretended.rows("x", dtype_or(o.x_dtype, dtype));
  if (!o.no_weight) pretended.parameters("weight", parameters);
  make(!o.recompute, "rstd", f32, pretended.group_shape());
  make(!o.recompute && o.norm.is_layer(), "mean", f32, pretended.group_shape());
  if (o.dresidual_in) pretended.rows("dresidual_in", dtype_or(o.dresidual_in_dtype, dtype));
  if (!o.no_dx) pretended.rows_over("dx", "dy", dtype);
  if (!o.dresidual_dtype.empty()) pretended.rows("dresidual", find_dtype(o.dresidual_dtype)->dtype);
  if (!o.no_weight && !o.no_dweight)
    pretended.parameters("dweight", dtype_or(o.dweight_dtype, parameters));
  if (o.bias) pretended.parameters("dbias", of_bias);
  if (o.tensors.has("--gate")) {
    pretended.rows("gate", dtype);
    if (o.bias) pretended.parameters("bias", of_bias);
    if (!o.no_dgate) pretended.rows_over("dgate", "gate", dtype);
  }
  if (o.branch) {
    pretended.rows("branch", dtype);
    pretended.rows_over("dbranch", "branch", dtype);
  }
  const StageOptions& s = o.stages;
  const std::vector<int64_t> columns = {o.shape.back()};
  const bool given = o.branch && s.normalises_branch() && !o.recompute,
             weighted = o.tensors.has("--branch-weight"), biased = o.tensors.has("--branch-bias");
  make(given, "branch_rstd", f32, pretended.row_shape());
  make(given && s.branch_is_layer(), "branch_mean", f32, pretended.row_shape());
  make(weighted, "branch_weight", parameters, columns);
  make(weighted && !o.no_dweight, "dbranch_weight", parameters, columns);
  make(biased, "branch_bias", parameters, columns);
  make(biased, "dbranch_bias", parameters, columns);
  make(o.tensors.has("--sum-scale"), "sum_scale", f32, {1});
  if (o.tensors.has("--residual-gate")) {
    const auto shape = parse_sizes("--residual-gate", o.tensors.at("--residual-gate"), {});
    make(true, "residual_gate", parameters, shape);
    make(!o.no_dgate, "dresidual_gate", parameters, shape);
  }
  uint32_t flags = 0;
  const auto accumulate = [&](const char* sum, fastnorm_norm_backward_flags flag) {
    if (o.accumulate && pretended.has(sum)) flags |= flag;
  };
  accumulate("dweight", FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT);
  accumulate("dbias", FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS);
  accumulate("dbranch_weight", FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT);
  accumulate("dbranch_bias", FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS);
  accumulate("dresidual_gate", FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE);
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  const auto* const args = pretended.call(flags).args<fastnorm_norm_backward_args>();
  check(fastnorm_norm_backward_query(context, args, &info));
  return info;
}

std::string backward_launches(const fastnorm_info& info) {
  if (std::strncmp(info.kernel, "norm_backward ", std::strlen("norm_backward ")) != 0) return "";
  // With a branch, sequences of one length have different kernels.
  for (const char* form : {" branch ", " modulated "}) {
    if (std::strstr(info.kernel, form) != nullptr) return "";
  }
  for (const Sequence& s : kSequences) {
    if (s.launches == info.launches && std::strstr(info.kernel, s.form) != nullptr)
      return s.kernels;
  }
  return "";
}

}  // namespace fastnorm::tool
