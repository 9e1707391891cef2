#include "check/placed_case.h"

#include "core/check.h"
#include "core/dtype.h"

namespace fastnorm::check {
namespace {

constexpr int64_t kGuardBytes = 192, kAlignment = 256;

int64_t align_up(int64_t v) { return (v + kAlignment - 1) / kAlignment * kAlignment; }

// Reserves memory one tensor after the other.
class Placer {
 public:
  Placer(const Case& what, int64_t begin) : what_(what), end_(begin) {}

  PlacedTensor rows(const TensorLayout& layout, ref::Type dtype, int64_t row_elements) {
    const Layout& l = what_.layout;
    PlacedTensor t{true, dtype, row_elements, 0, layout};
    int64_t below = 0, above = 0;  // elements before and behind the first row's start
    for (int d = 0; d < l.rank; ++d) {
      const int64_t reach = layout.stride[d] * (l.outer[d] - 1);
      (reach < 0 ? below : above) += reach;
    }
    t.base = reserve(-below, above + row_elements, layout.shift, ref::bytes_of(dtype));
    return t;
  }

  PlacedColumn column(ref::Type dtype, bool per_head, int64_t shift, int64_t pad) {
    PlacedColumn c{true, dtype, 0, per_head ? what_.layout.outer[0] : 1, what_.content.n + pad};
    c.base = reserve(0, c.head_stride * c.heads, shift, ref::bytes_of(dtype));
    return c;
  }

  int64_t end() const { return end_; }

 private:
  int64_t reserve(int64_t below, int64_t above, int64_t shift, int64_t bytes) {
    const int64_t base = align_up(end_ + kGuardBytes + below * bytes) + shift * bytes;
    end_ = base + above * bytes + kGuardBytes;
    return base;
  }

  const Case& what_;
  int64_t end_;
};

// A tensor struct with the arrays it points to.
struct AbiTensor {
  fastnorm_tensor tensor = {};
  int64_t shape[kMaxOuter + 1] = {}, strides[kMaxOuter + 1] = {};
};

fastnorm_dtype abi_dtype(ref::Type type) {
  return fastnorm_dtype_of(kDtypes[static_cast<int>(type)].id);
}

class Describer {
 public:
  Describer(const PlacedCase& placed, std::byte* block, int32_t device_type, int32_t device_id)
      : placed_(placed), block_(block), device_type_(device_type), device_id_(device_id) {}

  const fastnorm_tensor* rows(const PlacedTensor& t, AbiTensor* abi) const {
    if (!t.present) return nullptr;
    start(t.base, t.dtype, abi);
    int32_t dim = put_outer(t, abi);
    abi->shape[dim] = placed_.what.content.n;
    abi->strides[dim++] = 1;
    abi->tensor.ndim = dim;
    return &abi->tensor;
  }

  const fastnorm_tensor* statistic(const PlacedTensor& t, AbiTensor* abi) const {
    if (!t.present) return nullptr;
    start(t.base, t.dtype, abi);
    int32_t dim = put_outer(t, abi);
    if (placed_.what.layout.last_one || dim == 0) {
      abi->shape[dim] = 1;
      abi->strides[dim++] = 7;  // of one element: says nothing
    }
    abi->tensor.ndim = dim;
    return &abi->tensor;
  }

  const fastnorm_tensor* column(const PlacedColumn& c, bool per_head, AbiTensor* abi) const {
    if (!c.present) return nullptr;
    start(c.base, c.dtype, abi);
    int32_t dim = 0;
    if (per_head) {
      abi->shape[dim] = c.heads;
      abi->strides[dim++] = c.head_stride;
    }
    abi->shape[dim] = placed_.what.content.n;
    abi->strides[dim++] = 1;
    abi->tensor.ndim = dim;
    return &abi->tensor;
  }

 private:
  void start(int64_t base, ref::Type dtype, AbiTensor* abi) const {
    abi->tensor.byte_offset = placed_.what.layout.byte_offset ? 64 : 0;
    abi->tensor.data = block_ + base - abi->tensor.byte_offset;
    abi->tensor.device_type = device_type_;
    abi->tensor.device_id = device_id_;
    abi->tensor.dtype = abi_dtype(dtype);
    abi->tensor.shape = abi->shape;
    abi->tensor.strides = abi->strides;
  }

  int32_t put_outer(const PlacedTensor& t, AbiTensor* abi) const {
    const Layout& l = placed_.what.layout;
    int32_t dim = 0;
    for (int d = l.rank - 1; d >= 0; --d) {
      abi->shape[dim] = l.outer[d];
      abi->strides[dim++] = t.layout.stride[d];
    }
    return dim;
  }

  const PlacedCase& placed_;
  std::byte* const block_;
  const int32_t device_type_, device_id_;
};

}  // namespace

PlacedCase place(const Case& what, int64_t begin) {
  const Content& c = what.content;
  const Layout& l = what.layout;
  PlacedCase p;
  p.what = what;
  p.begin = begin;
  Placer placer(what, begin);
  p.x = placer.rows(l.x, c.options.dtype, c.n);
  p.y = l.y_in_place ? p.x : placer.rows(l.y, c.options.dtype, c.n);
  if (c.add) p.residual = placer.rows(l.residual, c.residual_dtype, c.n);
  if (l.residual_out_dtype) {
    p.residual_out =
        l.sum_in_place ? p.residual : placer.rows(l.residual_out, *l.residual_out_dtype, c.n);
  }
  if (l.store_mean) p.mean = placer.rows(l.mean, ref::Type::kF32, 1);
  if (l.store_rstd) p.rstd = placer.rows(l.rstd, ref::Type::kF32, 1);
  if (c.weight) p.weight = placer.column(*c.weight, c.weight_heads, l.weight_shift, l.weight_pad);
  if (c.bias) p.bias = placer.column(*c.bias, c.bias_heads, l.bias_shift, l.bias_pad);
  p.end = align_up(placer.end());
  return p;
}

fastnorm_status describe(const PlacedCase& placed, std::byte* block, int32_t device_type,
                         int32_t device_id, NormDesc* desc, Error& error) {
  const Content& c = placed.what.content;
  const ref::NormOptions& o = c.options;
  const Describer describer(placed, block, device_type, device_id);
  AbiTensor x, residual, weight, bias, y, residual_out, mean, rstd;
  fastnorm_norm_args args = {};
  args.struct_size = sizeof args;
  args.kind = static_cast<fastnorm_norm_kind>(o.kind);
  args.eps = o.eps;
  args.weight_offset = o.weight_offset;
  args.rounding = static_cast<fastnorm_rounding>(o.rounding);
  args.residual_rounding = static_cast<fastnorm_residual_rounding>(o.residual_rounding);
  args.x = describer.rows(placed.x, &x);
  args.residual = describer.rows(placed.residual, &residual);
  args.weight = describer.column(placed.weight, c.weight_heads, &weight);
  args.bias = describer.column(placed.bias, c.bias_heads, &bias);
  args.y = describer.rows(placed.y, &y);
  args.residual_out = describer.rows(placed.residual_out, &residual_out);
  args.mean = describer.statistic(placed.mean, &mean);
  args.rstd = describer.statistic(placed.rstd, &rstd);
  return check_norm(&args, {device_type, device_id}, desc, error);
}

}  // namespace fastnorm::check
