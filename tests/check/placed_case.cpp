#include "check/placed_case.h"

#include <bit>

#include "core/common/dtype.h"
#include "core/norm/check.h"

namespace fastnorm::check {
namespace {

constexpr int64_t kGuardBytes = 192, kAlignment = 256;

int64_t align_up(int64_t v) { return (v + kAlignment - 1) / kAlignment * kAlignment; }

// Reserves memory for one tensor after the other.
class Placer {
 public:
  Placer(const Case& what, int64_t begin) : what_(what), end_(begin) {}

  PlacedTensor rows(const TensorLayout& layout, ref::Type dtype, int64_t row_elements) {
    const Layout& l = what_.layout;
    PlacedTensor t{true, dtype, row_elements, 0, layout};
    int64_t below = 0, above = 0;  // elements before and after the first row's start
    for (int d = 0; d < l.rank; ++d) {
      const int64_t reach = layout.stride[d] * (l.outer[d] - 1);
      (reach < 0 ? below : above) += reach;
    }
    t.base = reserve(-below, above + row_elements, layout.shift, ref::bytes_of(dtype));
    return t;
  }

  // `dims`: 0, or bits of the dimensions that it varies along.
  PlacedWeight weight_or_bias(ref::Type dtype, unsigned dims, int64_t shift, int64_t pad) {
    PlacedWeight c{true, dtype, 0, heads_of(what_.layout, dims), what_.content.n + pad};
    c.base = reserve(0, c.head_stride * c.heads, shift, ref::bytes_of(dtype));
    return c;
  }

  int64_t end() const { return end_; }

  // `bytes` bytes with guards, at a multiple of `align`.
  int64_t raw(int64_t below, int64_t above, int64_t align) {
    const int64_t base = align_up(end_ + kGuardBytes + below) + align;
    end_ = base + above + kGuardBytes;
    return base;
  }

 private:
  int64_t reserve(int64_t below, int64_t above, int64_t shift, int64_t bytes) {
    const int64_t base = align_up(end_ + kGuardBytes + below * bytes) + shift * bytes;
    end_ = base + above * bytes + kGuardBytes;
    return base;
  }

  const Case& what_;
  int64_t end_;
};

// A tensor struct with the arrays that it points to.
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
      abi->strides[dim++] = 7;  // of one element, so it has no meaning
    }
    abi->tensor.ndim = dim;
    return &abi->tensor;
  }

  const fastnorm_tensor* codes(const PlacedQuant& q, AbiTensor* abi) const {
    const ref::QuantOptions& o = placed_.what.content.quant;
    const bool fp4 = o.format == ref::Format::kE2M1, packed = placed_.what.layout.packed_u8;
    start(q.codes, ref::Type::kF32, abi);
    constexpr fastnorm_dtype_id kIds[] = {FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F8_E5M2,
                                          FASTNORM_DTYPE_I8, FASTNORM_DTYPE_F4_E2M1FN};
    abi->tensor.dtype =
        fastnorm_dtype_of(fp4 && packed ? FASTNORM_DTYPE_U8 : kIds[static_cast<int>(o.format)]);
    const int64_t per_byte = fp4 && !packed ? 2 : 1;  // elements, as the tensor counts them
    const Layout& l = placed_.what.layout;
    int32_t dim = 0;
    for (int d = l.rank - 1; d >= 0; --d) {
      abi->shape[dim] = l.outer[d];
      abi->strides[dim++] = q.code_layout.stride[d] * per_byte;
    }
    abi->shape[dim] = q.code_bytes * per_byte;
    abi->strides[dim++] = 1;
    abi->tensor.ndim = dim;
    return &abi->tensor;
  }

  const fastnorm_tensor* scale(const PlacedQuant& q, AbiTensor* abi) const {
    const ref::QuantOptions& o = placed_.what.content.quant;
    if (o.scheme == ref::Scheme::kPerTensor) return scalar(q.tensor_scale, abi);
    const Layout& l = placed_.what.layout;
    start(q.scale, ref::Type::kF32, abi);
    if (ref::has_scale_bytes(o)) {
      abi->tensor.dtype =
          fastnorm_dtype_of(l.packed_u8                       ? FASTNORM_DTYPE_U8
                            : o.scheme == ref::Scheme::kNvfp4 ? FASTNORM_DTYPE_F8_E4M3FN
                                                              : FASTNORM_DTYPE_F8_E8M0FNU);
    }
    int32_t dim = 0;
    if (q.swizzled) {
      abi->shape[dim] = q.scale_bytes;
      abi->strides[dim++] = 1;
    } else {
      for (int d = l.rank - 1; d >= 0; --d) {
        abi->shape[dim] = l.outer[d];
        abi->strides[dim++] = q.scale_stride[d] / q.scale_size;
      }
      if (o.scheme != ref::Scheme::kPerRow || l.last_one || dim == 0) {
        abi->shape[dim] = q.scales;
        abi->strides[dim++] = q.scale_step / q.scale_size;
      }
    }
    abi->tensor.ndim = dim;
    if (l.scales != ScalePlaces::kStrided) abi->tensor.strides = nullptr;
    return &abi->tensor;
  }

  const fastnorm_tensor* scalar(int64_t at, AbiTensor* abi) const {
    if (at < 0) return nullptr;
    start(at, ref::Type::kF32, abi);
    abi->shape[0] = 1;
    abi->strides[0] = 3;  // of one element, so it has no meaning
    abi->tensor.ndim = 1;
    return &abi->tensor;
  }

  const fastnorm_tensor* weight_or_bias(const PlacedWeight& c, unsigned dims,
                                        AbiTensor* abi) const {
    if (!c.present) return nullptr;
    start(c.base, c.dtype, abi);
    const Layout& l = placed_.what.layout;
    const int32_t outer = static_cast<int32_t>(std::bit_width(dims));
    int64_t step = c.head_stride;
    for (int32_t d = 0; d < outer; ++d) {
      const bool varies = (dims >> d & 1) != 0;
      abi->shape[outer - 1 - d] = varies ? l.outer[d] : 1;
      abi->strides[outer - 1 - d] = varies ? step : 5;  // of one index, so it has no meaning
      if (varies) step *= l.outer[d];
    }
    int32_t dim = outer;
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

namespace {

// Strides of the scales, from the case's choice.
void place_scales(const Case& what, Placer* placer, PlacedQuant* q) {
  const Layout& l = what.layout;
  int64_t step = q->scale_size * q->scales;
  q->scale_step = q->scale_size;
  if (l.scales == ScalePlaces::kColumnMajor) {
    q->scale_step = q->scale_size * l.rows();
    step = q->scale_size;
  } else if (l.scales == ScalePlaces::kStrided) {
    q->scale_step = q->scale_size * 3;
    step = q->scale_step * q->scales + q->scale_size * 5;
  }
  q->swizzled = l.scales == ScalePlaces::kSwizzled;
  for (int d = 0; d < l.rank; ++d) {
    q->scale_stride[d] = step;
    step *= l.outer[d];
  }
  q->scale_bytes = q->swizzled ? ref::swizzled_bytes(l.rows(), q->scales)
                   : l.scales == ScalePlaces::kColumnMajor ? q->scale_step * q->scales
                                                           : step;
  q->scale = placer->raw(0, q->scale_bytes, q->scale_size);
}

void place_quant(const Case& what, Placer* placer, PlacedQuant* q) {
  const Content& c = what.content;
  const Layout& l = what.layout;
  if (l.amax) q->amax = placer->raw(0, 4, 4);
  if (c.quant.scheme == ref::Scheme::kNone) return;
  q->present = true;
  q->code_bytes = c.quant.format == ref::Format::kE2M1 ? c.n / 2 : c.n;
  q->code_layout = l.codes;
  int64_t above = q->code_bytes;
  for (int d = 0; d < l.rank; ++d) above += l.codes.stride[d] * (l.outer[d] - 1);
  q->codes = placer->raw(0, above, l.codes.shift);
  q->scales = ref::scopes_of(c.quant, c.n);
  q->scale_size = ref::has_scale_bytes(c.quant) ? 1 : 4;
  if (c.quant.scheme == ref::Scheme::kPerTensor) {
    q->tensor_scale = placer->raw(0, 4, 4);
  } else {
    place_scales(what, placer, q);
  }
  if (c.global_scale) q->global_scale = placer->raw(0, 4, 4);
  if (c.clamp_scale) q->clamp_scale = placer->raw(0, 4, 4);
}

}  // namespace

PlacedCase place(const Case& what, int64_t begin) {
  const Content& c = what.content;
  const Layout& l = what.layout;
  PlacedCase p;
  p.what = what;
  p.begin = begin;
  Placer placer(what, begin);
  p.x = placer.rows(l.x, c.options.dtype, c.n);
  if (c.add) p.residual = placer.rows(l.residual, c.residual_dtype, c.n);
  if (l.store_y) {
    p.y = l.y_in_place        ? p.x
          : l.y_over_residual ? p.residual
                              : placer.rows(l.y, c.options.y_dtype(), c.n);
  }
  if (l.residual_out_dtype) {
    p.residual_out = l.sum_in_place ? p.residual
                     : l.sum_over_x ? p.x
                                    : placer.rows(l.residual_out, *l.residual_out_dtype, c.n);
  }
  if (l.store_mean) p.mean = placer.rows(l.mean, ref::Type::kF32, 1);
  if (l.store_rstd) p.rstd = placer.rows(l.rstd, ref::Type::kF32, 1);
  const unsigned weight_dims = c.weight_heads ? l.weight_dims : 0,
                 bias_dims = c.bias_heads ? l.bias_dims : 0;
  if (c.weight)
    p.weight = placer.weight_or_bias(*c.weight, weight_dims, l.weight_shift, l.weight_pad);
  if (c.bias) p.bias = placer.weight_or_bias(*c.bias, bias_dims, l.bias_shift, l.bias_pad);
  place_quant(what, &placer, &p.quant);
  p.end = align_up(placer.end());
  return p;
}

fastnorm_status describe(const PlacedCase& placed, std::byte* block, int32_t device_type,
                         int32_t device_id, NormDesc* desc, Error& error) {
  const Content& c = placed.what.content;
  const ref::NormOptions& o = c.options;
  const Describer describer(placed, block, device_type, device_id);
  AbiTensor x, residual, weight, bias, y, residual_out, mean, rstd, codes, scale, global, clamp,
      amax;
  fastnorm_norm_args args = {};
  args.struct_size = sizeof args;
  args.kind = static_cast<fastnorm_norm_kind>(o.kind);
  args.eps = o.eps;
  args.weight_offset = o.weight_offset;
  args.rounding = static_cast<fastnorm_rounding>(o.rounding);
  args.residual_rounding = static_cast<fastnorm_residual_rounding>(o.residual_rounding);
  args.x = describer.rows(placed.x, &x);
  args.residual = describer.rows(placed.residual, &residual);
  const Layout& l = placed.what.layout;
  args.weight =
      describer.weight_or_bias(placed.weight, c.weight_heads ? l.weight_dims : 0, &weight);
  args.bias = describer.weight_or_bias(placed.bias, c.bias_heads ? l.bias_dims : 0, &bias);
  args.y = describer.rows(placed.y, &y);
  args.residual_out = describer.rows(placed.residual_out, &residual_out);
  args.mean = describer.statistic(placed.mean, &mean);
  args.rstd = describer.statistic(placed.rstd, &rstd);
  const ref::QuantOptions& q = c.quant;
  fastnorm_quant quant = {};
  quant.struct_size = sizeof quant;
  if (placed.quant.present) {
    quant.scheme = static_cast<fastnorm_quant_scheme>(q.scheme);
    quant.block_size = q.scheme == ref::Scheme::kPerBlock ? static_cast<int32_t>(q.block_size) : 0;
    quant.source = static_cast<fastnorm_quant_source>(q.source);
    quant.scale_layout =
        placed.what.layout.scales == ScalePlaces::kSwizzled      ? FASTNORM_SCALE_SWIZZLED_128X4
        : placed.what.layout.scales == ScalePlaces::kColumnMajor ? FASTNORM_SCALE_COLUMN_MAJOR
                                                                 : FASTNORM_SCALE_ROW_MAJOR;
    quant.scale_pow2 = q.pow2;
    quant.amax_floor = q.amax_floor;
    quant.clamp = c.clamp_scale ? 0.0f : q.clamp;
    quant.clamp_scale = describer.scalar(placed.quant.clamp_scale, &clamp);
    quant.division = q.divide ? FASTNORM_QUANT_DIVIDE : FASTNORM_QUANT_MULTIPLY_RECIPROCAL;
    quant.quantized = describer.codes(placed.quant, &codes);
    quant.scale = describer.scale(placed.quant, &scale);
    quant.global_scale = describer.scalar(placed.quant.global_scale, &global);
  }
  quant.amax = describer.scalar(placed.quant.amax, &amax);
  if (placed.quant.present || placed.quant.amax >= 0) args.quant = &quant;
  return check_norm(&args, {device_type, device_id}, desc, error);
}

}  // namespace fastnorm::check
