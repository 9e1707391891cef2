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

// The text of a case's backward pass, that of the call of line_of() (bench/call.h).
inline std::string backward_line_of(const Case& c) {
  const std::vector<int64_t> shape = {c.rows, c.n};
  std::vector<int64_t> strides;
  if (c.gap != 0) strides = {c.n + c.gap, 1};
  std::string line = "norm_backward eps=1e-06";
  const auto rows = [&](const char* path) {
    line += tensor_words(path, c.dtype, shape, strides, c.shift * c.element_bytes());
  };
  const auto parameter = [&](const char* path) { line += tensor_words(path, c.dtype, {c.n}); };
  const auto statistic = [&](const char* path) { line += tensor_words(path, "f32", {c.rows}); };
  rows("dy"), rows("x"), rows("dx");
  parameter("weight"), parameter("dweight");
  statistic("rstd");
  if (c.adds()) rows("dresidual_in");
  if (c.has_mean()) statistic("mean"), parameter("dbias"), line += " kind=layer";
  if (c.gated()) rows("gate"), rows("dgate"), line += " gate_act=silu";
  if (c.gate_before()) line += " gate_position=before_norm";
  if (c.sandwich() || c.adaln()) rows("branch"), rows("dbranch");
  if (c.sandwich()) {
    line += " branch_norm,branch_rounded=1 branch_eps=1e-06";
    parameter("branch_weight"), parameter("dbranch_weight");
    statistic("branch_rstd");
  }
  if (c.adaln())
    parameter("residual_gate"), parameter("dresidual_gate"), line += " weight_offset=1";
  return line;
}

// A case's backward pass.
class BackwardCall {
 public:
  static constexpr uint32_t kPdl =
      FASTNORM_NORM_BACKWARD_PDL_WAIT | FASTNORM_NORM_BACKWARD_PDL_TRIGGER;

  BackwardCall(const Case& c, int32_t device_type, const BackwardBuffers& b)
      : call_(backward_line_of(c), device_type),
        mean_(call_.tensor(c.sandwich() ? "branch_rstd" : "mean")),
        other_(call_.tensor(c.gated() ? "gate" : "branch")),
        dother_(call_.tensor(c.gated() ? "dgate" : "dbranch")),
        more_(call_.tensor(c.sandwich() ? "branch_weight" : "residual_gate")),
        dmore_(call_.tensor(c.sandwich() ? "dbranch_weight" : "dresidual_gate")) {
    set(b);
  }

  void set(const BackwardBuffers& b) {
    dy_->data = b.dy;
    x_->data = b.x;
    dresidual_in_->data = b.dresidual_in;
    dx_->data = b.dx;
    weight_->data = b.weight;
    mean_->data = b.mean;
    rstd_->data = b.rstd;
    dweight_->data = b.dweight;
    dbias_->data = b.dbias;
    other_->data = b.other;
    dother_->data = b.dother;
    more_->data = b.more;
    dmore_->data = b.dmore;
    workspace_ = b.workspace;
  }
  // dweight and dbias follow the parameters.
  void use_f32_parameters() {
    for (fastnorm_tensor* t : {weight_, dweight_, dbias_, more_, dmore_})
      t->dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  }
  void set_flags(uint32_t flags) { args().flags = flags; }

  void prepare(fastnorm_context* context) const {
    check(fastnorm_norm_backward_prepare(context, &args()));
  }
  fastnorm_info query(fastnorm_context* context) const {
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    check(fastnorm_norm_backward_query(context, &args(), &info));
    return info;
  }
  void run(fastnorm_context* context, uint64_t workspace_bytes, void* stream) const {
    check(fastnorm_norm_backward(context, &args(), workspace_, workspace_bytes, stream));
  }

 private:
  fastnorm_norm_backward_args& args() const { return call_.args<fastnorm_norm_backward_args>(); }

  LineCall call_;
  fastnorm_tensor *mean_, *other_, *dother_, *more_, *dmore_;
  fastnorm_tensor *dy_ = call_.tensor("dy"), *x_ = call_.tensor("x"),
                  *dresidual_in_ = call_.tensor("dresidual_in"), *dx_ = call_.tensor("dx"),
                  *weight_ = call_.tensor("weight"), *rstd_ = call_.tensor("rstd"),
                  *dweight_ = call_.tensor("dweight"), *dbias_ = call_.tensor("dbias");
  char* workspace_ = nullptr;
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
