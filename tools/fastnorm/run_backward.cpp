// fastnorm run --backward: the gradients of one normalisation of tensors in a safetensors file.
#include "dtype.h"
#include "run.h"

namespace fastnorm::tool {
namespace {

// Sums over rows, what says their shape (the first that is there), and the flag of what they are
// added to, which is their memory: --old-dweight of dweight.
struct Sum {
  const char *path, *option, *old_option;
  std::vector<std::string> like;
  std::string RunOptions::*dtype;
  uint32_t flag;
};

const std::vector<Sum>& all_sums() {
  static const std::vector<Sum> all = {
      {"dweight",
       "--dweight",
       "--old-dweight",
       {"weight"},
       &RunOptions::dweight_dtype,
       FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT},
      {"dbias",
       "--dbias",
       "--old-dbias",
       {"bias", "weight"},
       &RunOptions::dbias_dtype,
       FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS},
      {"dbranch_weight",
       "--dbranch-weight",
       "--old-dbranch-weight",
       {"branch_weight"},
       nullptr,
       FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT},
      {"dbranch_bias",
       "--dbranch-bias",
       "--old-dbranch-bias",
       {"branch_bias", "branch_weight"},
       nullptr,
       FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS},
      {"dresidual_gate",
       "--dresidual-gate",
       "--old-dresidual-gate",
       {"residual_gate"},
       nullptr,
       FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE},
  };
  return all;
}

// Returns the flag if the sum is added to something.
uint32_t make_sum(const RunOptions& o, const Sum& sum, Operands* operands) {
  const std::string old_path = std::string("old_") + sum.path;
  operands->load(old_path, o.names.at(sum.old_option));
  const Operand* const old = operands->find(old_path);
  const std::string &name = o.names.at(sum.option),
                    &dtype = sum.dtype == nullptr ? o.names.at("") : o.*sum.dtype;
  if (name.empty() && old != nullptr) {
    throw CommandError("there is a tensor '" + old->name +
                       "' to add to, but the sum has no name; required: --dweight with "
                       "--old-dweight, and so for each sum");
  }
  const Operand* like = old;
  for (const std::string& path : sum.like) like = like != nullptr ? like : operands->find(path);
  const Operand& x = *operands->find("x");
  const std::vector<int64_t> columns = {x.shape.empty() ? 1 : x.shape.back()};
  operands->make(sum.path, name, old, dtype_or(dtype, like != nullptr ? like->dtype : x.dtype),
                 like != nullptr ? like->shape : columns);
  return old != nullptr ? sum.flag : 0;
}

}  // namespace

void run_backward(const RunOptions& o) {
  Operands operands(o, "norm_backward");
  operands.load_inputs();
  const Operand& x = *operands.find("x");
  const auto make = [&](const char* path, const char* option, const char* over,
                        fastnorm_dtype dtype) {
    operands.make(path, o.names.at(option), o.in_place ? operands.find(over) : nullptr, dtype,
                  x.shape);
  };
  const auto dtype_of = [&](const char* path) {
    const Operand* const operand = operands.find(path);
    return operand != nullptr ? operand->dtype : x.dtype;
  };
  if (!o.no_dx) make("dx", "--dx", "dy", dtype_or(o.dx_dtype, x.dtype));
  make("dresidual", "--dresidual", "", dtype_or(o.dresidual_dtype, x.dtype));
  make("dgate", "--dgate", "gate", dtype_or(o.dgate_dtype, dtype_of("gate")));
  make("dbranch", "--dbranch", "branch", dtype_of("branch"));
  uint32_t flags = 0;
  for (const Sum& sum : all_sums()) flags |= make_sum(o, sum, &operands);
  if (operands.find("dgate") == nullptr) operands.drop("bias");  // it was read for dbias
  operands.run<fastnorm_norm_backward_args>(
      flags, {"dx", "dresidual", "dweight", "dbias", "dgate", "dbranch", "dbranch_weight",
              "dbranch_bias", "dresidual_gate"});
}

}  // namespace fastnorm::tool
