#include <cstring>

#include "dtype.h"
#include "explain.h"

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
      rstd_ = pretended_.values(f32);
      if (options.norm.is_layer()) mean_ = pretended_.values(f32);
    }
    if (options.dresidual_in) {
      dresidual_in_ = pretended_.rows(dtype_or(options.dresidual_in_dtype, dtype));
    }
    if (!options.no_dx) {
      dx_ = options.in_place ? pretended_.rows_over(dy_, dtype) : pretended_.rows(dtype);
    }
    if (!options.dresidual_dtype.empty()) {
      dresidual_ = pretended_.rows(find_dtype(options.dresidual_dtype)->dtype);
    }
    if (!options.no_weight && !options.no_dweight) {
      dweight_ = pretended_.parameters(dtype_or(options.dweight_dtype, parameters));
    }
    if (options.bias) dbias_ = pretended_.parameters(dtype_or(options.bias_dtype, parameters));
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
    if (options_.accumulate && args.dweight != nullptr)
      args.flags |= FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT;
    if (options_.accumulate && args.dbias != nullptr)
      args.flags |= FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS;
    return args;
  }

 private:
  const ExplainOptions& options_;
  Pretended pretended_;
  TensorView dy_, x_, weight_, mean_, rstd_, dresidual_in_, dx_, dresidual_, dweight_, dbias_;
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
