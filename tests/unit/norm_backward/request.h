// A fastnorm_norm_backward_args with the arrays of its tensors, in one place and easy to change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "core/norm_backward/check.h"
#include "unit/norm/request.h"

namespace fastnorm::test {

struct BackwardRequest {
  using Field = std::optional<RequestTensor>;

  fastnorm_norm_backward_args args = {};
  Field dy, x, weight, mean, rstd, dresidual_in, dx, dresidual, dweight, dbias, gate, bias, dgate;
  Field branch, branch_weight, branch_bias, branch_mean, branch_rstd, residual_gate, sum_scale;
  Field dbranch, dbranch_weight, dbranch_bias, dresidual_gate;
  CheckedDevice device = {FASTNORM_DEVICE_CPU, 0};

  static constexpr size_t kTensors = 24;

  // The arguments, with tensors in `tensors`.
  fastnorm_norm_backward_args abi(fastnorm_tensor (&tensors)[kTensors]) const {
    fastnorm_norm_backward_args a = args;
    const struct {
      const Field& from;
      const fastnorm_tensor** to;
    } all[] = {{dy, &a.dy},
               {x, &a.x},
               {weight, &a.weight},
               {mean, &a.mean},
               {rstd, &a.rstd},
               {dresidual_in, &a.dresidual_in},
               {dx, &a.dx},
               {dresidual, &a.dresidual},
               {dweight, &a.dweight},
               {dbias, &a.dbias},
               {gate, &a.gate},
               {bias, &a.bias},
               {dgate, &a.dgate},
               {branch, &a.branch},
               {branch_weight, &a.branch_weight},
               {branch_bias, &a.branch_bias},
               {branch_mean, &a.branch_mean},
               {branch_rstd, &a.branch_rstd},
               {residual_gate, &a.residual_gate},
               {sum_scale, &a.sum_scale},
               {dbranch, &a.dbranch},
               {dbranch_weight, &a.dbranch_weight},
               {dbranch_bias, &a.dbranch_bias},
               {dresidual_gate, &a.dresidual_gate}};
    static_assert(std::size(all) == kTensors);
    for (size_t i = 0; i < kTensors; ++i) {
      if (!all[i].from) continue;
      tensors[i] = all[i].from->abi();
      *all[i].to = &tensors[i];
    }
    return a;
  }

  fastnorm_status check(NormBackwardDesc* whole, Error& error) const {
    fastnorm_tensor tensors[kTensors];
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

// A request with a gate after the norm, a bias and dgate.
inline BackwardRequest gated_backward_request(std::vector<int64_t> shape, fastnorm_dtype_id dtype,
                                              fastnorm_norm_kind kind = FASTNORM_NORM_LAYER) {
  BackwardRequest r = backward_request(shape, dtype, kind);
  r.gate = backward_tensor(10, shape, dtype);
  r.bias = backward_tensor(11, {shape.back()}, dtype);
  r.dgate = backward_tensor(12, shape, dtype);
  r.args.gate_act = FASTNORM_ACTIVATION_SILU;
  return r;
}

// A request with a branch, its LayerNorm, a residual gate, a scale, and all of their gradients.
inline BackwardRequest branch_backward_request(std::vector<int64_t> shape, fastnorm_dtype_id dtype,
                                               fastnorm_norm_kind kind = FASTNORM_NORM_LAYER) {
  BackwardRequest r = backward_request(shape, dtype, kind);
  std::vector<int64_t> rows = shape;
  rows.pop_back();
  const std::vector<int64_t> columns = {shape.back()};
  r.branch = backward_tensor(13, shape, dtype);
  r.branch_weight = backward_tensor(14, columns, dtype);
  r.branch_bias = backward_tensor(15, columns, dtype);
  r.branch_mean = backward_tensor(16, rows, FASTNORM_DTYPE_F32);
  r.branch_rstd = backward_tensor(17, rows, FASTNORM_DTYPE_F32);
  r.residual_gate = backward_tensor(18, columns, dtype);
  r.sum_scale = backward_tensor(19, {1}, FASTNORM_DTYPE_F32);
  r.dbranch = backward_tensor(20, shape, dtype);
  r.dbranch_weight = backward_tensor(21, columns, dtype);
  r.dbranch_bias = backward_tensor(22, columns, dtype);
  r.dresidual_gate = backward_tensor(23, columns, FASTNORM_DTYPE_F32);
  r.args.branch_norm = 1;
  r.args.branch_kind = FASTNORM_NORM_LAYER;
  r.args.branch_eps = 1e-6f;
  r.args.residual_gate_act = FASTNORM_ACTIVATION_TANH;
  r.args.flags |= FASTNORM_NORM_BACKWARD_ALPHA;
  r.args.alpha = 0.5f;
  return r;
}

}  // namespace fastnorm::test
