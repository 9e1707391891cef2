// fastnorm run --backward: the gradients of one normalisation of tensors in a safetensors file.
#include "dtype.h"
#include "run.h"

namespace fastnorm::tool {
namespace {

class BackwardRun {
 public:
  explicit BackwardRun(const RunOptions& options)
      : options_(options),
        names_(options.gradients),
        machine_(parse_target(options.device), options.threads, options.tuning),
        operands_(options.input, machine_) {}

  void operator()() {
    load_inputs();
    make_outputs();
    const fastnorm_info info = machine_.run(args());
    const Json stored =
        operands_.store(options_.output, {&dx_, &dresidual_, &dweight_, &dbias_, &dgate_, &dbranch_,
                                          &dbranch_weight_, &dbranch_bias_, &dresidual_gate_});
    tell_run(options_, machine_, info, stored);
  }

 private:
  void load_inputs() {
    operands_.load(options_.names.x, &x_);
    operands_.load(options_.names.weight, &weight_);
    operands_.load(options_.names.bias, &bias_);
    operands_.load(options_.names.mean, &mean_);
    operands_.load(options_.names.rstd, &rstd_);
    operands_.load(names_.dy, &dy_);
    operands_.load(names_.dresidual_in, &dresidual_in_);
    operands_.load(names_.old_dweight, &old_dweight_);
    operands_.load(names_.old_dbias, &old_dbias_);
    operands_.load(names_.old_dbranch_weight, &old_dbranch_weight_);
    operands_.load(names_.old_dbranch_bias, &old_dbranch_bias_);
    operands_.load(names_.old_dresidual_gate, &old_dresidual_gate_);
    const StageOptions& s = options_.stages;
    operands_.load(s.gate, &gate_);
    operands_.load(names_.branch, &branch_);
    operands_.load(names_.branch_mean, &branch_mean_);
    operands_.load(s.branch_rstd, &branch_rstd_);
    operands_.load(s.branch_weight, &branch_weight_);
    operands_.load(s.branch_bias, &branch_bias_);
    operands_.load(s.residual_gate, &residual_gate_);
    operands_.load(s.sum_scale, &sum_scale_);
  }

  void make_outputs() {
    const std::vector<int64_t>& shape = x_.view.shape();
    if (!options_.no_dx) {
      operands_.make(names_.dx, &dx_, options_.in_place ? &dy_ : nullptr,
                     dtype_or(options_.dx_dtype, x_.dtype), shape);
    }
    operands_.make(names_.dresidual, &dresidual_, nullptr,
                   dtype_or(options_.dresidual_dtype, x_.dtype), shape);
    make_sum(names_.dweight, &dweight_, old_dweight_, options_.dweight_dtype, weight_);
    make_sum(names_.dbias, &dbias_, old_dbias_, options_.dbias_dtype,
             bias_.data != nullptr ? bias_ : weight_);
    operands_.make(names_.dgate, &dgate_, options_.in_place ? &gate_ : nullptr,
                   dtype_or(options_.dgate_dtype, gate_.data != nullptr ? gate_.dtype : x_.dtype),
                   shape);
    const fastnorm_dtype t = branch_.data != nullptr ? branch_.dtype : x_.dtype;
    operands_.make(names_.dbranch, &dbranch_, options_.in_place ? &branch_ : nullptr, t, shape);
    make_sum(names_.dbranch_weight, &dbranch_weight_, old_dbranch_weight_, "", branch_weight_);
    make_sum(names_.dbranch_bias, &dbranch_bias_, old_dbranch_bias_, "",
             branch_bias_.data != nullptr ? branch_bias_ : branch_weight_);
    make_sum(names_.dresidual_gate, &dresidual_gate_, old_dresidual_gate_, "", residual_gate_);
  }

  // A sum over rows, shaped as `like`. What it is added to is its memory.
  void make_sum(const std::string& name, Operand* sum, Operand& old, const std::string& dtype,
                Operand& like) {
    if (name.empty() && old.data != nullptr) {
      throw CommandError("there is a tensor '" + old.name +
                         "' to add to, but the sum has no name; required: --dweight with "
                         "--old-dweight, and so for each sum");
    }
    if (old.data != nullptr) {
      return operands_.make(name, sum, &old, dtype_or(dtype, old.dtype), old.view.shape());
    }
    const bool shaped = like.data != nullptr;
    operands_.make(name, sum, nullptr, dtype_or(dtype, shaped ? like.dtype : x_.dtype),
                   shaped ? like.view.shape() : std::vector<int64_t>{last_extent()});
  }

  int64_t last_extent() const {
    const std::vector<int64_t>& shape = x_.view.shape();
    return shape.empty() ? 1 : shape.back();
  }

  fastnorm_norm_backward_args args() {
    fastnorm_norm_backward_args args = {};
    options_.norm.apply(&args);
    const auto accumulate = [&](const Operand& old, fastnorm_norm_backward_flags flag) {
      if (old.data != nullptr) args.flags |= flag;
    };
    accumulate(old_dweight_, FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT);
    accumulate(old_dbias_, FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS);
    accumulate(old_dbranch_weight_, FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT);
    accumulate(old_dbranch_bias_, FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS);
    accumulate(old_dresidual_gate_, FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE);
    args.dy = dy_.view.get();
    args.x = x_.view.get();
    args.weight = weight_.view.get();
    args.mean = mean_.view.get();
    args.rstd = rstd_.view.get();
    args.dresidual_in = dresidual_in_.view.get();
    args.dx = dx_.view.get();
    args.dresidual = dresidual_.view.get();
    args.dweight = dweight_.view.get();
    args.dbias = dbias_.view.get();
    options_.stages.apply(&args);
    args.gate = gate_.view.get();
    args.dgate = dgate_.view.get();
    if (args.dgate != nullptr) args.bias = bias_.view.get();
    args.branch = branch_.view.get();
    args.branch_weight = branch_weight_.view.get();
    args.branch_bias = branch_bias_.view.get();
    args.branch_mean = branch_mean_.view.get();
    args.branch_rstd = branch_rstd_.view.get();
    args.residual_gate = residual_gate_.view.get();
    args.sum_scale = sum_scale_.view.get();
    args.dbranch = dbranch_.view.get();
    args.dbranch_weight = dbranch_weight_.view.get();
    args.dbranch_bias = dbranch_bias_.view.get();
    args.dresidual_gate = dresidual_gate_.view.get();
    return args;
  }

  const RunOptions& options_;
  const BackwardNames& names_;
  Machine machine_;
  Operands operands_;
  Operand dy_, x_, weight_, bias_, mean_, rstd_, dresidual_in_, old_dweight_, old_dbias_;
  Operand old_dbranch_weight_, old_dbranch_bias_, old_dresidual_gate_;
  Operand dx_, dresidual_, dweight_, dbias_, gate_, dgate_;
  Operand branch_, branch_mean_, branch_rstd_, branch_weight_, branch_bias_, residual_gate_;
  Operand sum_scale_, dbranch_, dbranch_weight_, dbranch_bias_, dresidual_gate_;
};

}  // namespace

void run_backward(const RunOptions& options) {
  BackwardRun run(options);
  run();
}

}  // namespace fastnorm::tool
