// A fastnorm_norm_backward_args with the arrays of its tensors, in one place and easy to change.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "core/norm_backward_check.h"
#include "unit/norm_request.h"

namespace fastnorm::test {

struct BackwardRequest {
  using Field = std::optional<RequestTensor>;

  fastnorm_norm_backward_args args = {};
  Field dy, x, weight, mean, rstd, dresidual_in, dx, dresidual, dweight, dbias, gate, bias, dgate;
  CheckedDevice device = {FASTNORM_DEVICE_CPU, 0};

  // The arguments, with tensors in `tensors`.
  fastnorm_norm_backward_args abi(fastnorm_tensor (&tensors)[13]) const {
    const Field* const from[] = {&dy,        &x,       &weight, &mean, &rstd, &dresidual_in, &dx,
                                 &dresidual, &dweight, &dbias,  &gate, &bias, &dgate};
    fastnorm_norm_backward_args a = args;
    const fastnorm_tensor** const to[] = {
        &a.dy,        &a.x,       &a.weight, &a.mean, &a.rstd, &a.dresidual_in, &a.dx,
        &a.dresidual, &a.dweight, &a.dbias,  &a.gate, &a.bias, &a.dgate};
    for (size_t i = 0; i < std::size(from); ++i) {
      if (!*from[i]) continue;
      tensors[i] = (*from[i])->abi();
      *to[i] = &tensors[i];
    }
    return a;
  }

  fastnorm_status check(NormBackwardDesc* whole, Error& error) const {
    fastnorm_tensor tensors[13];
    const fastnorm_norm_backward_args a = abi(tensors);
    return check_norm_backward(&a, device, whole, error);
  }
};

inline RequestTensor backward_tensor(int number, std::vector<int64_t> shape,
                                     fastnorm_dtype_id dtype) {
  RequestTensor t;
  t.shape = std::move(shape);
  t.dtype = dtype;
  t.address = address_of(number);
  return t;
}

// All tensors except dresidual, with one dtype and statistics.
inline BackwardRequest backward_request(std::vector<int64_t> shape, fastnorm_dtype_id dtype,
                                        fastnorm_norm_kind kind = FASTNORM_NORM_LAYER) {
  BackwardRequest r;
  r.args.struct_size = sizeof r.args;
  r.args.eps = 1e-6f;
  r.args.kind = kind;
  std::vector<int64_t> rows = shape;
  rows.pop_back();
  const std::vector<int64_t> columns = {shape.back()};
  r.dy = backward_tensor(0, shape, dtype);
  r.x = backward_tensor(1, shape, dtype);
  r.weight = backward_tensor(2, columns, dtype);
  if (kind == FASTNORM_NORM_LAYER) r.mean = backward_tensor(3, rows, FASTNORM_DTYPE_F32);
  r.rstd = backward_tensor(4, rows, FASTNORM_DTYPE_F32);
  r.dresidual_in = backward_tensor(5, shape, dtype);
  r.dx = backward_tensor(6, shape, dtype);
  r.dweight = backward_tensor(8, columns, dtype);
  r.dbias = backward_tensor(9, columns, dtype);
  return r;
}

// The same with a gate after the norm, a bias and dgate.
inline BackwardRequest gated_backward_request(std::vector<int64_t> shape, fastnorm_dtype_id dtype,
                                              fastnorm_norm_kind kind = FASTNORM_NORM_LAYER) {
  BackwardRequest r = backward_request(shape, dtype, kind);
  r.gate = backward_tensor(10, shape, dtype);
  r.bias = backward_tensor(11, {shape.back()}, dtype);
  r.dgate = backward_tensor(12, shape, dtype);
  r.args.gate_act = FASTNORM_ACTIVATION_SILU;
  return r;
}

}  // namespace fastnorm::test
