// One backward pass over memory that the benchmark owns: dx, dweight and, of LayerNorm, dbias; the
// gradients of a gate or a branch, too.
#pragma once

#include <cstdint>

#include "bench/call.h"
#include "fastnorm/fastnorm.h"

namespace bench {

// Addresses of a backward pass. dresidual_in and other (the gate or the branch) are null where the
// case has none. `mean` is that, the branch's rstd, or null. `more` is the branch's weight or the
// residual gate, of n elements.
struct BackwardBuffers {
  char *dy, *x, *dresidual_in, *other, *dx, *dother, *weight, *mean, *rstd, *dweight, *dbias, *more,
      *dmore, *workspace;
};

// Where the tensors of a case's calls lie in one piece of memory. All calls share parameters, their
// gradients and the workspace. Then come the statistics of every call, then the tensors of every
// call.
class BackwardLayout {
 public:
  BackwardLayout(const Case& c, int64_t alignment, int64_t workspace_bytes)
      : two_statistics_(c.has_mean() || c.sandwich()), adds_(c.adds()), other_(c.has_other()) {
    const auto round_up = [=](int64_t bytes) {
      return (bytes + alignment - 1) / alignment * alignment;
    };
    weights_ = round_up(c.n * 4);
    workspace_ = round_up(workspace_bytes);
    statistics_ = round_up(c.rows * 4);
    tensor_ = round_up(c.buffer_bytes());
    tensors_ = c.gradient_inputs() + c.gradients();
  }

  int64_t call_bytes() const { return tensor_ * tensors_ + call_statistics(); }
  int64_t bytes(int64_t calls) const { return shared_bytes() + calls * call_bytes(); }
  // mean and rstd of all calls, in one piece.
  char* statistics(char* memory) const { return memory + shared_bytes(); }
  int64_t statistics_bytes(int64_t calls) const { return calls * call_statistics(); }
  BackwardBuffers at(char* memory, int64_t i, int64_t calls) const {
    BackwardBuffers b = {};
    char* p = memory;
    const auto take = [&](int64_t bytes) {
      p += bytes;
      return p - bytes;
    };
    b.weight = take(weights_);
    b.dweight = take(weights_);
    b.dbias = take(weights_);
    b.more = take(weights_);
    b.dmore = take(weights_);
    b.workspace = take(workspace_);
    p = statistics(memory) + i * call_statistics();
    b.rstd = take(statistics_);
    if (two_statistics_) b.mean = take(statistics_);
    p = statistics(memory) + statistics_bytes(calls) + i * (call_bytes() - call_statistics());
    b.dy = take(tensor_);
    b.x = take(tensor_);
    if (adds_) b.dresidual_in = take(tensor_);
    if (other_) b.other = take(tensor_);
    b.dx = take(tensor_);
    if (other_) b.dother = take(tensor_);
    return b;
  }

 private:
  int64_t call_statistics() const { return statistics_ * (two_statistics_ ? 2 : 1); }
  int64_t shared_bytes() const { return 5 * weights_ + workspace_; }

  bool two_statistics_, adds_, other_;
  int64_t weights_, workspace_, statistics_, tensor_, tensors_;
};

// Tensors and arguments of a case. Not copyable: the arguments point inside.
class BackwardCall {
 public:
  static constexpr uint32_t kPdl =
      FASTNORM_NORM_BACKWARD_PDL_WAIT | FASTNORM_NORM_BACKWARD_PDL_TRIGGER;

  BackwardCall(const Case& c, int32_t device_type, const BackwardBuffers& b) {
    const fastnorm_dtype f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
    const fastnorm_tensor nothing = {nullptr, device_type, 0, 1, dtype_of(c), nullptr, nullptr, 0};
    shape_[0] = c.rows;
    shape_[1] = c.n;
    x_ = weight_ = rstd_ = nothing;
    x_.ndim = 2;
    x_.shape = shape_;
    if (c.gap != 0) {
      strides_[0] = c.n + c.gap;
      x_.strides = strides_;
    }
    x_.byte_offset = static_cast<uint64_t>(c.shift * c.element_bytes());
    dy_ = dresidual_in_ = dx_ = other_ = dother_ = x_;
    weight_.shape = shape_ + 1;
    dweight_ = dbias_ = more_ = dmore_ = weight_;
    rstd_.dtype = f32;
    rstd_.shape = shape_;
    mean_ = rstd_;
    args_.struct_size = sizeof args_;
    args_.kind = c.has_mean() ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
    args_.eps = 1e-6f;
    args_.dy = &dy_;
    args_.x = &x_;
    args_.weight = &weight_;
    args_.rstd = &rstd_;
    args_.dx = &dx_;
    args_.dweight = &dweight_;
    if (c.adds()) args_.dresidual_in = &dresidual_in_;
    if (c.has_mean()) {
      args_.mean = &mean_;
      args_.dbias = &dbias_;
    }
    if (c.gated()) add_gate(c);
    if (c.sandwich()) add_branch_norm();
    if (c.adaln()) add_modulation();
    set(b);
  }
  BackwardCall(const BackwardCall&) = delete;
  BackwardCall& operator=(const BackwardCall&) = delete;

  void set(const BackwardBuffers& b) {
    dy_.data = b.dy;
    x_.data = b.x;
    dresidual_in_.data = b.dresidual_in;
    dx_.data = b.dx;
    weight_.data = b.weight;
    mean_.data = b.mean;
    rstd_.data = b.rstd;
    dweight_.data = b.dweight;
    dbias_.data = b.dbias;
    other_.data = b.other;
    dother_.data = b.dother;
    more_.data = b.more;
    dmore_.data = b.dmore;
    workspace_ = b.workspace;
  }
  // dweight and dbias follow the parameters.
  void use_f32_parameters() {
    weight_.dtype = dweight_.dtype = dbias_.dtype = more_.dtype = dmore_.dtype =
        fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  }
  void set_flags(uint32_t flags) { args_.flags = flags; }

  void prepare(fastnorm_context* context) const {
    check(fastnorm_norm_backward_prepare(context, &args_));
  }
  fastnorm_info query(fastnorm_context* context) const {
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    check(fastnorm_norm_backward_query(context, &args_, &info));
    return info;
  }
  void run(fastnorm_context* context, uint64_t workspace_bytes, void* stream) const {
    check(fastnorm_norm_backward(context, &args_, workspace_, workspace_bytes, stream));
  }

 private:
  // Each is the backward pass of Call's member for it (bench/call.h).
  void add_gate(const Case& c) {
    args_.gate = &other_;
    args_.dgate = &dother_;
    args_.gate_act = FASTNORM_ACTIVATION_SILU;
    if (c.gate_before()) args_.gate_position = FASTNORM_GATE_BEFORE_NORM;
  }
  void add_branch_norm() {
    args_.branch = &other_;
    args_.dbranch = &dother_;
    args_.branch_norm = args_.branch_rounded = 1;
    args_.branch_eps = args_.eps;
    args_.branch_weight = &more_;
    args_.branch_rstd = &mean_;
    args_.dbranch_weight = &dmore_;
  }
  void add_modulation() {
    args_.weight_offset = 1;
    args_.branch = &other_;
    args_.dbranch = &dother_;
    args_.residual_gate = &more_;
    args_.dresidual_gate = &dmore_;
  }

  int64_t shape_[2], strides_[2] = {0, 1};
  fastnorm_tensor dy_, x_, dresidual_in_, other_, dx_, dother_, weight_, mean_, rstd_, dweight_,
      dbias_, more_, dmore_;
  char* workspace_ = nullptr;
  fastnorm_norm_backward_args args_ = {};
};

// Bytes of the workspace of a case's calls.
inline int64_t backward_workspace(fastnorm_context* context, const Case& c, int32_t device_type,
                                  int64_t alignment, bool f32_parameters) {
  // The query needs addresses that are aligned, no memory.
  char* const nowhere = reinterpret_cast<char*>(uintptr_t{1} << 40);
  BackwardCall call(c, device_type, BackwardLayout(c, alignment, 0).at(nowhere, 0, 1));
  if (f32_parameters) call.use_f32_parameters();
  return static_cast<int64_t>(call.query(context).workspace_bytes);
}

}  // namespace bench
