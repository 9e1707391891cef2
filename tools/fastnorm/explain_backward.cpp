#include <cstring>

#include "dtype.h"
#include "explain.h"
#include "shape.h"

namespace fastnorm::tool {
namespace {

// The tensors of a backward pass and its arguments, which point at them.
class BackwardQuestion {
 public:
  BackwardQuestion(const ExplainOptions& options, const Target& target)
      : options_(options), pretended_(options, target) {
    const fastnorm_dtype dtype = find_dtype(options.dtype)->dtype;
    const fastnorm_dtype parameters = dtype_or(options.parameter_dtype, dtype);
    const fastnorm_dtype f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);

    dy_ = pretended_.rows(dtype);
    x_ = pretended_.rows(dtype_or(options.x_dtype, dtype));
    if (!options.no_weight) weight_ = pretended_.parameters(parameters);
    if (!options.recompute) {
      rstd_ = pretended_.tensor(f32, pretended_.group_shape());
      if (options.norm.is_layer()) mean_ = pretended_.tensor(f32, pretended_.group_shape());
    }
    if (options.dresidual_in) {
      dresidual_in_ = pretended_.rows(dtype_or(options.dresidual_in_dtype, dtype));
    }
    if (!options.no_dx) dx_ = pretended_.rows_over(options.in_place, dy_, dtype);
    if (!options.dresidual_dtype.empty()) {
      dresidual_ = pretended_.rows(find_dtype(options.dresidual_dtype)->dtype);
    }
    if (!options.no_weight && !options.no_dweight) {
      dweight_ = pretended_.parameters(dtype_or(options.dweight_dtype, parameters));
    }
    if (options.bias) dbias_ = pretended_.parameters(dtype_or(options.bias_dtype, parameters));
    if (!options.stages.gate.empty()) {
      gate_ = pretended_.rows(dtype);
      if (options.bias) bias_ = pretended_.parameters(dtype_or(options.bias_dtype, parameters));
      if (!options.no_dgate) dgate_ = pretended_.rows_over(options.in_place, gate_, dtype);
    }
    add_branch(dtype, parameters);
  }

  fastnorm_norm_backward_args args() {
    fastnorm_norm_backward_args args = {};
    options_.norm.apply(&args);
    args.dy = dy_.get();
    args.x = x_.get();
    args.weight = weight_.get();
    args.mean = mean_.get();
    args.rstd = rstd_.get();
    args.dresidual_in = dresidual_in_.get();
    args.dx = dx_.get();
    args.dresidual = dresidual_.get();
    args.dweight = dweight_.get();
    args.dbias = dbias_.get();
    options_.stages.apply(&args);
    args.gate = gate_.get();
    args.bias = bias_.get();
    args.dgate = dgate_.get();
    args.branch = branch_.get();
    args.branch_weight = branch_weight_.get();
    args.branch_bias = branch_bias_.get();
    args.branch_mean = branch_mean_.get();
    args.branch_rstd = branch_rstd_.get();
    args.residual_gate = residual_gate_.get();
    args.sum_scale = sum_scale_.get();
    args.dbranch = dbranch_.get();
    args.dbranch_weight = dbranch_weight_.get();
    args.dbranch_bias = dbranch_bias_.get();
    args.dresidual_gate = dresidual_gate_.get();
    const auto accumulate = [&](const fastnorm_tensor* sum, fastnorm_norm_backward_flags flag) {
      if (options_.accumulate && sum != nullptr) args.flags |= flag;
    };
    accumulate(args.dweight, FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT);
    accumulate(args.dbias, FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS);
    accumulate(args.dbranch_weight, FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT);
    accumulate(args.dbranch_bias, FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS);
    accumulate(args.dresidual_gate, FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE);
    return args;
  }

 private:
  void add_branch(fastnorm_dtype dtype, fastnorm_dtype parameters) {
    const StageOptions& s = options_.stages;
    const fastnorm_dtype f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
    const std::vector<int64_t> n = {options_.shape.back()};
    const auto make = [&](bool wanted, TensorView* view, fastnorm_dtype of,
                          const std::vector<int64_t>& shape) {
      if (wanted) *view = pretended_.tensor(of, shape);
    };
    if (options_.branch) {
      branch_ = pretended_.rows(dtype);
      dbranch_ = pretended_.rows_over(options_.in_place, branch_, dtype);
    }
    const bool given = options_.branch && s.normalises_branch() && !options_.recompute;
    make(given, &branch_rstd_, f32, pretended_.row_shape());
    make(given && s.branch_is_layer(), &branch_mean_, f32, pretended_.row_shape());
    make(!s.branch_weight.empty(), &branch_weight_, parameters, n);
    make(!s.branch_weight.empty() && !options_.no_dweight, &dbranch_weight_, parameters, n);
    make(!s.branch_bias.empty(), &branch_bias_, parameters, n);
    make(!s.branch_bias.empty(), &dbranch_bias_, parameters, n);
    make(!s.sum_scale.empty(), &sum_scale_, f32, {1});
    if (s.residual_gate.empty()) return;
    const std::vector<int64_t> shape = parse_sizes("--residual-gate", s.residual_gate, {});
    make(true, &residual_gate_, parameters, shape);
    make(!options_.no_dgate, &dresidual_gate_, parameters, shape);
  }

  const ExplainOptions& options_;
  Pretended pretended_;
  TensorView dy_, x_, weight_, mean_, rstd_, dresidual_in_, dx_, dresidual_, dweight_, dbias_;
  TensorView gate_, bias_, dgate_;
  TensorView branch_, branch_weight_, branch_bias_, branch_mean_, branch_rstd_, residual_gate_,
      sum_scale_, dbranch_, dbranch_weight_, dbranch_bias_, dresidual_gate_;
};

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

fastnorm_info query_backward(fastnorm_context* context, const ExplainOptions& options,
                             const Target& target) {
  BackwardQuestion question(options, target);
  const fastnorm_norm_backward_args args = question.args();
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_norm_backward_query(context, &args, &info));
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

TensorView Pretended::rows_over(TensorView& other, fastnorm_dtype dtype) {
  const fastnorm_tensor* t = other.get();
  return rows_at(t != nullptr ? static_cast<std::byte*>(t->data) : nullptr, dtype, false);
}

TensorView Pretended::parameters(fastnorm_dtype dtype) {
  std::vector<int64_t> shape = {options_.shape.back()};
  if (options_.head_weights) shape.insert(shape.begin(), row_shape().back());
  return tensor(dtype, shape);
}

std::vector<int64_t> Pretended::row_shape() const {
  if (options_.shape.size() < 2) return {1};
  return {options_.shape.begin(), options_.shape.end() - 1};
}

std::vector<int64_t> Pretended::group_shape() const {
  const int64_t size = options_.stages.group_size, n = options_.shape.back();
  if (size <= 0 || size >= n || n % size != 0) return row_shape();
  std::vector<int64_t> shape(options_.shape.begin(), options_.shape.end() - 1);
  shape.push_back(n / size);
  return shape;
}

TensorView Pretended::rows_at(std::byte* address, fastnorm_dtype dtype, bool shifted) const {
  if (shifted) address += static_cast<size_t>(options_.offset_elems) * element_bytes(dtype);
  std::vector<int64_t> strides;
  if (options_.row_stride_elems != 0 && options_.shape.size() > 1) {
    strides.assign(options_.shape.size(), 1);
    strides[strides.size() - 2] = options_.row_stride_elems;
    for (size_t d = strides.size() - 2; d-- > 0;) {
      // May wrap, for shapes that the library refuses.
      strides[d] = static_cast<int64_t>(static_cast<uint64_t>(strides[d + 1]) *
                                        static_cast<uint64_t>(options_.shape[d + 1]));
    }
  }
  return TensorView(target_, address, dtype, options_.shape, strides);
}

}  // namespace fastnorm::tool
