// A fastnorm_norm_args with the arrays of its tensors, in one place and easy to change.
#pragma once

#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <vector>

#include "core/common/quant_scheme.h"
#include "core/norm/check.h"
#include "core/norm/desc.h"

namespace fastnorm::test {

struct RequestTensor {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // empty = compact
  fastnorm_dtype_id dtype = FASTNORM_DTYPE_F32;
  uintptr_t address = 0;
  uint64_t byte_offset = 0;
  int32_t device_type = FASTNORM_DEVICE_CPU;
  int32_t device_id = 0;
  std::optional<int32_t> ndim = std::nullopt;  // other than shape's size
  bool null_shape = false;

  fastnorm_tensor abi() const {
    fastnorm_tensor t = {};
    t.data = reinterpret_cast<void*>(address);
    t.device_type = device_type;
    t.device_id = device_id;
    t.ndim = ndim.value_or(static_cast<int32_t>(shape.size()));
    t.dtype = fastnorm_dtype_of(dtype);
    t.shape = null_shape ? nullptr : shape.data();
    t.strides = strides.empty() ? nullptr : strides.data();
    t.byte_offset = byte_offset;
    return t;
  }
};

// Addresses that are far apart. Nothing is ever read there.
constexpr uintptr_t address_of(int tensor) {
  return uintptr_t{0x100000000000} + (static_cast<uintptr_t>(tensor) << 50);
}

// Whether a struct of quantisation says anything.
inline bool is_given(const fastnorm_quant& quant) {
  const fastnorm_quant none = {};
  return std::memcmp(&quant, &none, sizeof quant) != 0;
}

struct Request {
  fastnorm_norm_args args = {};
  fastnorm_quant quant = {};  // of args; its struct_size is set where it is 0
  std::optional<RequestTensor> x, residual, weight, bias, y, residual_out, mean, rstd, global_scale,
      quantized, scale, amax, clamp_scale;
  CheckedDevice device = {FASTNORM_DEVICE_CPU, 0};

  fastnorm_status check(NormDesc* desc, Error& error) const {
    const std::optional<RequestTensor>* const from[] = {
        &x,    &residual,     &weight,    &bias,  &y,    &residual_out, &mean,
        &rstd, &global_scale, &quantized, &scale, &amax, &clamp_scale};
    fastnorm_norm_args a = args;
    fastnorm_quant q = quant;
    const fastnorm_tensor** const to[] = {
        &a.x,    &a.residual,     &a.weight,    &a.bias,  &a.y,    &a.residual_out, &a.mean,
        &a.rstd, &q.global_scale, &q.quantized, &q.scale, &q.amax, &q.clamp_scale};
    fastnorm_tensor tensors[std::size(from)];
    for (size_t i = 0; i < std::size(from); ++i) {
      if (!*from[i]) continue;
      tensors[i] = (*from[i])->abi();
      *to[i] = &tensors[i];
    }
    if (is_given(q)) a.quant = &q;
    if (q.struct_size == 0) q.struct_size = sizeof q;
    return check_norm(&a, device, desc, error);
  }
};

// rows x n with one dtype: x, weight and y. With `add` also residual and residual_out, for LAYER
// also bias.
inline Request simple_request(std::vector<int64_t> shape, fastnorm_dtype_id dtype, bool add = false,
                              fastnorm_norm_kind kind = FASTNORM_NORM_RMS) {
  Request r;
  r.args.struct_size = sizeof r.args;
  r.args.eps = 1e-6f;
  r.args.kind = kind;
  const auto tensor = [&](int number, std::vector<int64_t> extents) {
    RequestTensor t;
    t.shape = std::move(extents);
    t.dtype = dtype;
    t.address = address_of(number);
    return t;
  };
  r.x = tensor(0, shape);
  r.y = tensor(1, shape);
  r.weight = tensor(2, {shape.back()});
  if (kind == FASTNORM_NORM_LAYER) r.bias = tensor(3, {shape.back()});
  if (add) {
    r.residual = tensor(4, shape);
    r.residual_out = tensor(5, shape);
  }
  return r;
}

// Adds an rstd that is stored, which lean kernels do not support. Such calls use the lists for full
// kernels.
inline Request with_statistics(Request r) {
  std::vector<int64_t> rows = r.x->shape;
  rows.pop_back();
  r.rstd = RequestTensor{rows, {}, FASTNORM_DTYPE_F32, address_of(9)};
  return r;
}

// Quantises the call's output by a scheme. Shapes follow x: PER_BLOCK has blocks of 64, schemes of
// 4 bits have f4 codes and all others e4m3, and NVFP4 has a global scale. Also an amax.
inline void add_quant(Request* r, fastnorm_quant_scheme scheme) {
  const auto tensor = [&](int number, std::vector<int64_t> extents, fastnorm_dtype_id dtype) {
    RequestTensor t;
    t.shape = std::move(extents);
    t.dtype = dtype;
    t.address = address_of(number);
    t.device_type = r->x->device_type;
    t.device_id = r->x->device_id;
    return t;
  };
  const QuantScheme& of = scheme_of(scheme);
  const bool has_global = of.scale == SchemeScale::kE4M3;
  const int64_t columns = of.block > 0 ? of.block : 64;
  std::vector<int64_t> scales = r->x->shape;
  scales.back() = (scales.back() + columns - 1) / columns;
  if (scheme == FASTNORM_QUANT_PER_ROW) scales.pop_back();
  if (scheme == FASTNORM_QUANT_PER_TENSOR || scales.empty()) scales = {1};
  r->quant.scheme = scheme;
  r->quant.block_size = of.block == kOwnBlock ? 64 : 0;
  r->quantized =
      tensor(10, r->x->shape, of.is_fp4() ? FASTNORM_DTYPE_F4_E2M1FN : FASTNORM_DTYPE_F8_E4M3FN);
  r->scale = tensor(11, scales,
                    has_global   ? FASTNORM_DTYPE_F8_E4M3FN
                    : of.is_mx() ? FASTNORM_DTYPE_F8_E8M0FNU
                                 : FASTNORM_DTYPE_F32);
  r->amax = tensor(12, {1}, FASTNORM_DTYPE_F32);
  if (has_global) r->global_scale = tensor(13, {1}, FASTNORM_DTYPE_F32);
}

}  // namespace fastnorm::test
