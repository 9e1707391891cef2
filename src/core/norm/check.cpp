#include "core/norm/check.h"

#include <type_traits>
#include <utility>

#include "core/common/reciprocal.h"
#include "core/common/shared_fields.h"
#include "core/norm/check_quant.h"
#include "core/norm/check_stages.h"
#include "core/norm/row_map.h"
#include "core/norm/shape.h"
#include "core/norm/tensors.h"
#include "core/norm/wide.h"

namespace fastnorm {
namespace {

// NormDesc's defaults, except for fields that every call sets. Written in pieces: for a struct this
// large, compilers emit a string instruction that takes tens of cycles to start.
FASTNORM_HOT void clear(NormDesc* desc) {
  desc->rows = desc->n = 0;
  desc->outer_rank = 1;
  for (int64_t& extent : desc->outer) extent = 1;
  // Rows first, which lie together.
  const auto reset = [&](auto rows) __attribute__((always_inline)) {
    const auto one = [](auto, auto& t) __attribute__((always_inline)) {
      using Tensor = std::remove_reference_t<decltype(t)>;
      if constexpr (std::is_same_v<Tensor, RowTensor> == decltype(rows)::value) t = Tensor{};
      return true;
    };
    for_each_plain_tensor(*desc, one);
    for_each_quant_tensor(desc->quant, one);
  };
  reset(std::true_type());
  reset(std::false_type());
  desc->weights_outside = false;
  desc->has_stages = false;
  QuantDesc& q = desc->quant;
  q.scheme = FASTNORM_QUANT_NONE;
  q.dtype = Dtype::kUnknown;
  q.block = 0;
  q.from_rounded = q.pow2 = q.divides = q.swizzled = false;
  q.clamp = q.amax_floor = 0;
  q.scale_step_bytes = 0;
  q.rotation = 0;
  q.y_rotated = q.signs_shared = false;
}

// One call's checks. The members are what most checks need.
class NormCheck {
 public:
  NormCheck(const fastnorm_norm_args& args, const fastnorm_quant* quant, CheckedDevice device,
            NormDesc* desc, Touched* touched, Error& error, bool keeps_order = false,
            bool needs_output = true)
      : args_(args),
        quant_(quant),
        device_(device),
        d_(*desc),
        touched_(*touched),
        error(error),
        keeps_order_(keeps_order),
        needs_output_(needs_output) {}

  fastnorm_status run() {
    FASTNORM_TRY(scalars());
    // Kernels of stages rotate, too. Parts of heads have their own.
    const bool rotates = quant_ != nullptr && quant_->rotation != 0 && needs_output_;
    if (has_stages(args_) || rotates) FASTNORM_TRY(check_stage_scalars(args_, &d_, error));
    FASTNORM_TRY(outputs());
    if (quant_ != nullptr) FASTNORM_TRY(check_quant_scalars(*quant_, &d_, error));
    FASTNORM_TRY(x());
    if (d_.has_stages) FASTNORM_TRY(check_stage_tensors(args_, device_, &d_, error));
    if (args_.residual != nullptr)
      FASTNORM_TRY(row_tensor("residual", *args_.residual, false, &d_.residual));
    if (args_.y != nullptr) FASTNORM_TRY(row_tensor("y", *args_.y, true, &d_.y));
    if (args_.residual_out != nullptr)
      FASTNORM_TRY(row_tensor("residual_out", *args_.residual_out, true, &d_.residual_out));
    if (d_.has_stages) {
      FASTNORM_TRY(stage_weights());
    } else {
      if (args_.weight != nullptr)
        FASTNORM_TRY(weight_or_bias("weight", *args_.weight, &d_.weight));
      if (args_.bias != nullptr) FASTNORM_TRY(weight_or_bias("bias", *args_.bias, &d_.bias));
    }
    if (args_.mean != nullptr) FASTNORM_TRY(statistic("mean", *args_.mean, &d_.mean));
    if (args_.rstd != nullptr) FASTNORM_TRY(statistic("rstd", *args_.rstd, &d_.rstd));
    if (d_.quant.scheme != FASTNORM_QUANT_NONE)
      FASTNORM_TRY(check_quant_tensors(*quant_, *args_.x, device_, &d_, error));
    if (amax() != nullptr) {
      const std::byte* data = nullptr;
      FASTNORM_TRY(check_scalar("quant.amax", *amax(), device_, &data, error));
      d_.quant.amax = const_cast<std::byte*>(data);
    }
    if (d_.rows == 0) return FASTNORM_OK;
    // A gate that overlaps another input is an error of its own.
    const bool gated = d_.has_stages && d_.stages.gate;
    if (!touched_.collect(d_) || !touched_.apart() || gated)
      FASTNORM_TRY(check_aliasing(d_, error));
    canonical();
    if (weights_vary_outside_) arrange_weights();
    return FASTNORM_OK;
  }

 private:
  fastnorm_status scalars() {
    FASTNORM_TRY(check_norm_scalars(args_, error));
    d_.kind = args_.kind;
    FASTNORM_TRY(check_enum<&fastnorm_norm_args::rounding>(args_, error));
    FASTNORM_TRY(check_enum<&fastnorm_norm_args::residual_rounding>(args_, error));
    FASTNORM_REQUIRE(args_.x != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "x is NULL; required: a tensor [..., n]");
    return check_rules<fastnorm_norm_args, 0, schema::kNumber<&fastnorm_norm_args::gate>>(args_,
                                                                                          error);
  }

  // The flags, and the checks of outputs that remain.
  fastnorm_status outputs() {
    constexpr uint32_t kFlags =
        FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER | FASTNORM_NORM_PDL_CONSTANT_WEIGHTS |
        FASTNORM_NORM_MODULATION_PLAIN_SCALE | FASTNORM_NORM_ALPHA | FASTNORM_NORM_NO_PDL;
    d_.flags = static_cast<uint32_t>(args_.flags);
    FASTNORM_TRY(check_flags("flags", d_.flags, kFlags, error));
    FASTNORM_REQUIRE((d_.flags & FASTNORM_NORM_PDL_CONSTANT_WEIGHTS) == 0 ||
                         (d_.flags & FASTNORM_NORM_PDL_WAIT) != 0,
                     FASTNORM_ERROR_ARGUMENT,
                     "flags is 0x%x; required: FASTNORM_NORM_PDL_WAIT (1) with "
                     "FASTNORM_NORM_PDL_CONSTANT_WEIGHTS (4)",
                     d_.flags);
    // Stages have these.
    d_.flags &= ~static_cast<uint32_t>(FASTNORM_NORM_MODULATION_PLAIN_SCALE | FASTNORM_NORM_ALPHA);
    FASTNORM_REQUIRE(
        !needs_output_ || args_.y != nullptr || quantized() != nullptr || args_.sumsq != nullptr,
        FASTNORM_ERROR_ARGUMENT,
        "y is NULL and quant.quantized is NULL; required: at least one, of x's shape, or "
        "sumsq");
    FASTNORM_REQUIRE(
        !needs_output_ || amax() == nullptr || args_.y != nullptr || quantized() != nullptr,
        FASTNORM_ERROR_ARGUMENT,
        "quant.amax is given, y is NULL and quant.quantized is NULL; required: one of these, of "
        "which it is");
    return FASTNORM_OK;
  }

  const fastnorm_tensor* quantized() const {
    return quant_ != nullptr ? quant_->quantized : nullptr;
  }
  const fastnorm_tensor* amax() const { return quant_ != nullptr ? quant_->amax : nullptr; }

  FASTNORM_HOT fastnorm_status x() {
    const fastnorm_tensor& t = *args_.x;
    const Dtype dtype = dtype_from(t.dtype);
    FASTNORM_TRY(check_row_dtype("x", t, error));
    FASTNORM_TRY(check_tensor("x", t, {dtype, kMaxRank, true}, device_, error));
    d_.dtype = dtype;
    d_.n = t.shape[t.ndim - 1];
    if (d_.n < 1 || d_.n > kMaxColumns) return check_x_shape(t, error);
    d_.outer_rank = t.ndim - 1;
    uint64_t rows = 1;  // unsigned, as in describe_rows()
    for (int32_t i = 0; i < t.ndim - 1; ++i) {
      d_.outer[i] = t.shape[t.ndim - 2 - i];
      rows *= static_cast<uint64_t>(d_.outer[i]);
    }
    d_.rows = static_cast<int64_t>(rows);
    fill(t, dtype, &d_.x);
    return FASTNORM_OK;
  }

  // A tensor of rows of x's columns.
  void fill(const fastnorm_tensor& t, Dtype dtype, RowTensor* rows) const {
    describe_rows(t, t.ndim - 1, t.shape[t.ndim - 1] * dtype_bytes(dtype), d_.outer_rank, rows);
  }

  // is_placed() on x's device.
  FASTNORM_HOT bool placed(const fastnorm_tensor& t, int64_t bytes) const {
    return is_placed(t, {args_.x->device_type, args_.x->device_id}, bytes);
  }

  // True if only the address of `t` differs from x. This is the common case. What check_tensor()
  // and fill() found for x holds for `t`.
  FASTNORM_HOT bool like_x(const fastnorm_tensor& t) const {
    const fastnorm_tensor& x = *args_.x;
    return t.ndim == x.ndim && dtype_id(t.dtype) == dtype_id(x.dtype) &&
           same_numbers(t.shape, x.shape, x.ndim) && same_numbers(t.strides, x.strides, x.ndim) &&
           placed(t, dtype_bytes(d_.dtype));
  }

  FASTNORM_HOT fastnorm_status row_tensor(const char* name, const fastnorm_tensor& t, bool output,
                                          RowTensor* row) {
    if (like_x(t)) {
      row->data = address_of(t);
      row->dtype = d_.dtype;
      // One at a time: a load of two would have to wait until x's strides, just written, reach the
      // cache.
      for (int32_t i = 0; i < d_.outer_rank; ++i) row->stride_bytes[i] = d_.x.stride_bytes[i];
    } else {
      FASTNORM_TRY(unlike_x(name, t, row));
    }
    return output ? check_output_rows(name, *row, d_.n * dtype_bytes(row->dtype), d_, error)
                  : FASTNORM_OK;
  }

  fastnorm_status unlike_x(const char* name, const fastnorm_tensor& t, RowTensor* row) {
    const Dtype dtype = dtype_from(t.dtype);
    if (row == &d_.y) FASTNORM_TRY(check_own_dtype("y", t, "x", d_.dtype, error));
    FASTNORM_TRY(check_row_dtype(name, t, error));
    FASTNORM_TRY(check_tensor(name, t, {dtype, kMaxRank, true}, device_, error));
    FASTNORM_TRY(check_row_shape(name, t, *args_.x, error));
    fill(t, dtype, row);
    return FASTNORM_OK;
  }

  FASTNORM_HOT fastnorm_status weight_or_bias(const char* name, const fastnorm_tensor& t,
                                              WeightTensor* weight) {
    const bool is_f32 = dtype_id(t.dtype) == FASTNORM_DTYPE_F32;
    const Dtype dtype = is_f32 ? Dtype::kF32 : d_.dtype;
    // The common case. check_tensor() accepts it.
    if ((is_f32 || dtype_id(t.dtype) == dtype_id(args_.x->dtype)) && t.ndim == 1 &&
        t.shape != nullptr && t.shape[0] == d_.n && (t.strides == nullptr || t.strides[0] == 1) &&
        placed(t, dtype_bytes(dtype))) {
      weight->data = address_of(t);
      weight->dtype = dtype;
      return FASTNORM_OK;
    }
    if (t.ndim == 2 && one_a_head(t, dtype, weight)) return FASTNORM_OK;
    return any_weight(name, t, weight, d_.n);
  }

  // A compact row for each head of x, the common layout of weights of heads. If false, any_weight()
  // decides.
  bool one_a_head(const fastnorm_tensor& t, Dtype dtype, WeightTensor* weight) const {
    const fastnorm_tensor& x = *args_.x;
    const int64_t bytes = dtype_bytes(dtype);
    int64_t stride = d_.n * bytes;
    if (d_.rows == 0 || x.ndim < 2 || dtype_from(t.dtype) != dtype || t.shape == nullptr ||
        t.shape[0] != x.shape[x.ndim - 2] || t.shape[0] < 2 || t.shape[1] != d_.n ||
        !placed(t, bytes) ||
        (t.strides != nullptr &&
         (t.strides[1] != 1 || __builtin_mul_overflow(t.strides[0], bytes, &stride)))) {
      return false;
    }
    weight->data = address_of(t);
    weight->dtype = dtype;
    weight->head_stride_bytes = stride;
    return true;
  }

  // `group`: a tensor may have only this many columns.
  fastnorm_status any_weight(const char* name, const fastnorm_tensor& t, WeightTensor* weight,
                             int64_t group) {
    const Dtype dtype = dtype_from(t.dtype);
    FASTNORM_TRY(check_row_dtype(name, t, error));
    FASTNORM_TRY(check_tensor(name, t, {dtype, kMaxRank, true}, device_, error));
    FASTNORM_TRY(check_weight_shape(name, t, *args_.x, group, error));
    weight->data = address_of(t);
    weight->dtype = dtype;
    const int64_t bytes = dtype_bytes(dtype);
    auto compact =
        static_cast<uint64_t>(t.shape[t.ndim - 1] * bytes);  // unsigned, as in describe_rows()
    for (int32_t i = 0; i + 1 < t.ndim; ++i) {
      const int32_t dim = t.ndim - 2 - i;
      const int64_t stride =
          t.strides != nullptr ? stride_bytes_of(t, dim, bytes) : static_cast<int64_t>(compact);
      compact *= static_cast<uint64_t>(t.shape[dim]);
      if (t.shape[dim] == 1 || stride == 0) continue;
      if (i == 0) {
        weight->head_stride_bytes = stride;
      } else {
        weight->outer_stride_bytes[i] = stride;
        weights_vary_outside_ = true;
      }
    }
    return FASTNORM_OK;
  }

  // Weights of groups: a row of all columns, or one that the groups share.
  fastnorm_status stage_weights() {
    StagesDesc& s = d_.stages;
    const struct {
      const char* name;
      const fastnorm_tensor* tensor;
      WeightTensor* weight;
    } of_branch[] = {{"branch_weight", args_.branch_weight, &s.branch_weight},
                     {"branch_bias", args_.branch_bias, &s.branch_bias}};
    for (const auto& c : of_branch) {
      if (c.tensor != nullptr) FASTNORM_TRY(any_weight(c.name, *c.tensor, c.weight, d_.n));
    }
    if (args_.weight != nullptr) {
      FASTNORM_TRY(any_weight("weight", *args_.weight, &d_.weight, s.group));
      s.weight_shared = args_.weight->shape[args_.weight->ndim - 1] < d_.n;
    }
    if (args_.bias != nullptr) {
      FASTNORM_TRY(any_weight("bias", *args_.bias, &d_.bias, s.group));
      s.bias_shared = args_.bias->shape[args_.bias->ndim - 1] < d_.n;
    }
    return FASTNORM_OK;
  }

  fastnorm_status statistic(const char* name, const fastnorm_tensor& t, RowTensor* row) {
    if (d_.has_stages) {
      FASTNORM_TRY(check_stage_statistic(name, t, 1, *args_.x, device_, d_, row, error));
      return check_output_rows(name, *row, d_.stages.groups * 4, d_, error);
    }
    const fastnorm_tensor& x = *args_.x;
    FASTNORM_TRY(check_typed(name, t, {Dtype::kF32, kMaxRank, false}, device_, error));
    FASTNORM_TRY(check_statistic_shape(name, t, x, error));
    describe_rows(t, x.ndim - 1, 4, d_.outer_rank, row);
    return check_output_rows(name, *row, 4, d_, error);
  }

  void fold();
  void fold_with_weights(RowTensor** present, size_t count);
  void canonical();
  void arrange_weights();
  void swap_outer(int dim);

  const fastnorm_norm_args& args_;
  const fastnorm_quant* const quant_;  // of args_, in our size; nullptr = none
  const CheckedDevice device_;
  NormDesc& d_;
  Touched& touched_;
  Error& error;
  const bool keeps_order_;             // of rows
  const bool needs_output_;            // y or codes
  bool weights_vary_outside_ = false;  // weight or bias has a row for each index[1] or index[2]
};

[[gnu::noinline]] void NormCheck::fold() {
  RowTensor* present[kMostNormTensors];
  size_t count = 0;
  bool heads = false;
  for_each_tensor(
      d_, [&](auto, auto& t) __attribute__((always_inline)) {
        if (RowTensor* const rows = rows_of(t); rows != nullptr && *rows) present[count++] = rows;
        if (const WeightTensor* const w = weight_of(t)) heads |= w->head_stride_bytes != 0;
        return true;
      });
  if (weights_vary_outside_) return fold_with_weights(present, count);
  fold_rows(d_.outer, &d_.outer_rank, {present, count}, heads);
}

// Folds rows together with weights, whose strides limit the folding too. `present` has room for
// them.
[[gnu::noinline]] void NormCheck::fold_with_weights(RowTensor** present, size_t count) {
  RowTensor as_rows[kMostNormTensors];
  WeightTensor* weights[kMostNormTensors];
  int most = 0;
  for_each_tensor(d_, [&](auto, auto& t) {
    WeightTensor* const w = weight_of(t);
    if (w == nullptr || !*w) return true;
    RowTensor& row = as_rows[most];
    weights[most++] = w;
    row.data = const_cast<std::byte*>(w->data);
    for (int d = 0; d < kMaxOuter; ++d) row.stride_bytes[d] = w->stride_bytes(d);
    present[count++] = &row;
    return true;
  });
  fold_rows(d_.outer, &d_.outer_rank, {present, count}, false);
  for (int i = 0; i < most; ++i) {
    for (int d = 0; d < kMaxOuter; ++d) weights[i]->set_stride_bytes(d, as_rows[i].stride_bytes[d]);
  }
}

// Swaps dimension `dim` of rows with the innermost one.
void NormCheck::swap_outer(int dim) {
  std::swap(d_.outer[0], d_.outer[dim]);
  for_each_tensor(d_, [&](auto, auto& t) {
    if (RowTensor* const rows = rows_of(t))
      std::swap(rows->stride_bytes[0], rows->stride_bytes[dim]);
    if (WeightTensor* const w = weight_of(t)) {
      const int64_t innermost = w->head_stride_bytes;
      w->head_stride_bytes = w->stride_bytes(dim);
      w->set_stride_bytes(dim, innermost);
    }
    return true;
  });
}

// Weight and bias as the device's kernels take them. Most GPU kernels step along the innermost
// dimension alone. Where the order of rows is free, any one dimension can be the innermost.
// Swizzled scales count rows, so their dimensions stay.
[[gnu::noinline]] void NormCheck::arrange_weights() {
  int varying = 0, dim = 0;
  for (int d = 0; d < d_.outer_rank; ++d) {
    if ((d_.weight.stride_bytes(d) | d_.bias.stride_bytes(d)) == 0) continue;
    ++varying;
    dim = d;
  }
  const bool free_order =
      device_.device_type == FASTNORM_DEVICE_CUDA && !keeps_order_ && !d_.quant.swizzled;
  if (free_order && varying == 1 && dim != 0) swap_outer(dim);
  for (int d = 1; d < d_.outer_rank; ++d)
    d_.weights_outside |= (d_.weight.stride_bytes(d) | d_.bias.stride_bytes(d)) != 0;
  touched_.collect(d_);  // again: dimensions have moved
}

// The fewest dimensions of rows, and the least general settings that mean the same.
void NormCheck::canonical() {
  if (d_.outer_rank > 1) {
    if (may_fold(d_.outer, d_.outer_rank, d_.x)) fold();
  } else {
    d_.outer_rank = 1;
    if (d_.rows == 1) {  // as after fold_rows()
      for_each_tensor(
          d_, [](auto, auto& t) __attribute__((always_inline)) {
            if (RowTensor* const rows = rows_of(t)) rows->stride_bytes[0] = 0;
            return true;
          });
    }
  }
  d_.parallel_user = args_.parallel_user;
  d_.eps = args_.eps;
  d_.weight_offset = args_.weight_offset;
  d_.inv_n = reciprocal_of(d_.has_stages ? d_.stages.group : d_.n);
  d_.sum_dtype = d_.residual_out ? d_.residual_out.dtype
                 : d_.residual   ? d_.residual.dtype
                                 : Dtype::kF32;
  const bool sum_is_rounded = d_.residual && d_.sum_dtype != Dtype::kF32;
  d_.residual_rounding = sum_is_rounded ? args_.residual_rounding : FASTNORM_RESIDUAL_EXACT;
  const bool once = args_.rounding == FASTNORM_ROUND_NORMALIZED ? d_.dtype == Dtype::kF32
                    : args_.rounding == FASTNORM_ROUND_ONCE_RW  ? !d_.weight && !d_.bias
                                                                : false;
  d_.rounding = once ? FASTNORM_ROUND_ONCE : args_.rounding;
  // A chain in T ends with a value of T. Without quantised output, amax is that of y.
  d_.quant.from_rounded |=
      d_.rounding == FASTNORM_ROUND_EVERY_STEP ||
      (d_.quant.scheme == FASTNORM_QUANT_NONE && (!d_.y || d_.y.dtype == d_.dtype));
}

}  // namespace

fastnorm_status check_norm(const fastnorm_norm_args* args, CheckedDevice device, NormDesc* desc,
                           Touched* touched, Error& error, bool keeps_order) {
  fastnorm_norm_args local;
  const fastnorm_norm_args* ours = nullptr;
  FASTNORM_TRY(accept_call(args, "args", &local, &ours, error));
  fastnorm_quant local_quant;
  const fastnorm_quant* quant = nullptr;
  FASTNORM_TRY(accept_quant(ours->quant, "quant", &local_quant, &quant, error));
  clear(desc);
  FoldedArgs folded;  // not initialised: few calls need it
  if (ours->x != nullptr && __builtin_expect(ours->x->ndim > kMaxOuter + 1, 0)) {
    FASTNORM_TRY(fold_args(*ours, quant, device, &folded, error));
    ours = &folded.args;
    quant = ours->quant;
  }
  return NormCheck(*ours, quant, device, desc, touched, error, keeps_order).run();
}

fastnorm_status check_norm(const fastnorm_norm_args* args, CheckedDevice device, NormDesc* desc,
                           Error& error) {
  Touched touched;
  return check_norm(args, device, desc, &touched, error);
}

fastnorm_status check_norm_part(const fastnorm_norm_args& args, CheckedDevice device,
                                NormDesc* desc, Error& error) {
  clear(desc);
  fastnorm_quant local;
  const fastnorm_quant* quant = nullptr;
  FASTNORM_TRY(accept_quant(args.quant, "quant", &local, &quant, error));
  Touched touched;
  return NormCheck(args, quant, device, desc, &touched, error, false, false).run();
}

}  // namespace fastnorm
