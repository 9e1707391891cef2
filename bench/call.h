// One library call over memory that the benchmark owns.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "bench/report.h"
#include "fastnorm/fastnorm.h"

namespace bench {

inline void check(fastnorm_status status) {
  if (status != FASTNORM_OK) {
    throw std::runtime_error(std::string(fastnorm_status_name(status)) + ": " +
                             fastnorm_last_error());
  }
}

struct Buffers {
  char *x, *residual, *weight, *bias, *y, *residual_out;
};

// Tensors and arguments of a case; addresses can be changed between calls. Not copyable: the arguments point inside.
class Call {
 public:
  Call(const Case& c, int32_t device_type, const Buffers& b) {
    const fastnorm_dtype dtype = fastnorm_dtype_of(c.dtype == "f32"   ? FASTNORM_DTYPE_F32
                                                   : c.dtype == "f16" ? FASTNORM_DTYPE_F16
                                                                      : FASTNORM_DTYPE_BF16);
    shape_[0] = c.rows;
    shape_[1] = c.n;
    rows_ = {nullptr, device_type, 0, 2, dtype, shape_, nullptr, 0};
    for (fastnorm_tensor* t : {&x_, &residual_, &y_, &residual_out_}) *t = rows_;
    weight_ = {b.weight, device_type, 0, 1, dtype, shape_ + 1, nullptr, 0};
    bias_ = {b.bias, device_type, 0, 1, dtype, shape_ + 1, nullptr, 0};
    args_ = {};
    args_.struct_size = sizeof args_;
    args_.kind = c.layer() ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
    args_.eps = 1e-6f;
    args_.x = &x_;
    args_.y = &y_;
    args_.weight = &weight_;
    if (c.layer()) args_.bias = &bias_;
    if (c.adds()) {
      args_.residual = &residual_;
      args_.residual_out = &residual_out_;
    }
    set(b);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void set(const Buffers& b) {
    x_.data = b.x;
    residual_.data = b.residual;
    y_.data = b.y;
    residual_out_.data = b.residual_out;
  }
  // LayerNorm is often called with f32 parameters beside 16-bit rows.
  void use_f32_parameters() { weight_.dtype = bias_.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32); }

  const fastnorm_norm_args* args() const { return &args_; }
  void run(fastnorm_context* context, void* stream) const {
    check(fastnorm_norm(context, &args_, nullptr, 0, stream));
  }

 private:
  int64_t shape_[2];
  fastnorm_tensor rows_, x_, residual_, y_, residual_out_, weight_, bias_;
  fastnorm_norm_args args_;
};

}  // namespace bench
