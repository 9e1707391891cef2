// One library call over memory that the benchmark owns.
#pragma once

#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/line_call.h"
#include "bench/report.h"
#include "fastnorm/fastnorm.h"

namespace bench {

inline void check(fastnorm_status status) {
  if (status != FASTNORM_OK) {
    throw std::runtime_error(std::string(fastnorm_status_name(status)) + ": " +
                             fastnorm_last_error());
  }
}

// Addresses of a call. y holds y or its codes; of "qk" it is x. `residual` of "gated" is the gate.
// `static_scale` is [1] f32, and `bias` of "qk" the keys' weight. `more` has n elements: the
// branch's weight, the residual gate, or the scale of "modulated". `tables`: those of the gate, the
// scale and the shift.
struct Buffers {
  char *x, *residual, *weight, *bias, *y, *residual_out, *scales, *static_scale;
  char* more = nullptr;
  char* tables[3] = {};
};

// Where the tensors of a case's calls lie in one piece of memory: what all calls share, weight and
// bias among it, then each call's own.
class Layout {
 public:
  Layout(const Case& c, int64_t alignment)
      : heads_(c.heads()), adds_(c.adds()), inputs_(c.inputs()) {
    const auto round_up = [=](int64_t bytes) {
      return (bytes + alignment - 1) / alignment * alignment;
    };
    weights_ = round_up(c.n * 4);
    tensor_ = round_up(c.buffer_bytes());
    y_ = heads_ ? 0 : round_up(c.buffer_bytes() / c.shrink());
    scales_ = round_up(c.scale_bytes());
  }

  int64_t call_bytes() const { return tensor_ * (inputs_ + (adds_ ? 1 : 0)) + y_ + scales_; }
  int64_t bytes(int64_t calls) const { return kShared * weights_ + calls * call_bytes(); }
  Buffers at(char* memory, int64_t i) const {
    char* p = memory + kShared * weights_ + i * call_bytes();
    const auto take = [&](int64_t bytes) {
      p += bytes;
      return p - bytes;
    };
    Buffers b = {};
    b.weight = memory;
    b.bias = memory + weights_;
    b.static_scale = memory + 2 * weights_;
    b.more = memory + 3 * weights_;
    for (int i = 0; i < 3; ++i) b.tables[i] = memory + (4 + i) * weights_;
    b.x = take(tensor_);
    if (inputs_ > 1) b.residual = take(tensor_);
    b.y = heads_ ? b.x : take(y_);
    if (adds_) b.residual_out = take(tensor_);
    b.scales = take(scales_);
    return b;
  }

 private:
  static constexpr int64_t kShared = 7;

  bool heads_, adds_;
  int64_t inputs_, weights_, tensor_, y_, scales_;
};

inline constexpr const char* kRounded =
    " rounding=normalized residual_rounding=round_before_statistics";

// The text of a case's call, whose tensors lie nowhere. Stages are as in Gemma's layers (sandwich)
// and diffusion transformers (adaln), where all rows are of one batch.
inline std::string line_of(const Case& c) {
  const std::vector<int64_t> shape = {c.rows, c.n}, columns = {c.n};
  std::vector<int64_t> strides;
  if (c.gap != 0) strides = {c.n + c.gap, 1};
  const bool plain = c.codes() == Codes::kNone;
  std::string line = "norm eps=1e-06";
  const auto rows = [&](const char* path) {
    line += tensor_words(path, c.dtype, shape, strides, c.shift * c.element_bytes());
  };
  const auto parameter = [&](const char* path) {
    line += tensor_words(path, c.tables() ? "f32" : c.dtype, columns);
  };
  if (c.heads()) {
    const std::vector<int64_t> heads = {c.rows, kQueryHeads, c.n},
                               apart = {kAllHeads * c.n, c.n, 1};
    for (const char* path : {"x", "y"}) line += tensor_words(path, c.dtype, heads, apart);
  } else {
    rows("x");
    if (plain) rows("y");
  }
  if (c.has_mean()) line += " kind=layer";
  if (!c.adaln()) parameter("weight");
  if (c.layer()) parameter("bias");
  if (c.adds()) rows("residual"), rows("residual_out");
  if (c.rounds()) line += kRounded;
  if (c.gated()) rows("gate"), line += " gate_act=silu";
  if (c.gate_before()) line += " gate_position=before_norm";
  if (c.sandwich()) {
    line += " branch_norm,branch_rounded=1 branch_eps=1e-06";
    parameter("branch_weight");
  }
  if (c.adaln() || c.modulated()) parameter("modulation_scale");
  if (c.adaln()) parameter("modulation_shift"), parameter("residual_gate");
  for (const char* path : {"residual_gate_table", "scale_table", "shift_table"}) {
    if (c.tables()) parameter(path);
  }
  if (plain) return line;
  struct Scheme {
    const char *words, *scale;
    int64_t columns;  // of a scale; 0: a row, or all
  };
  static constexpr Scheme kSchemes[] = {
      {},
      {"per_tensor", "f32", 0},
      {"per_row", "f32", 0},
      {"per_block quant.block_size=128", "f32", 128},
      {"mxfp8", "f8_e8m0fnu", 32},
      {"nvfp4", "f8_e4m3fn", 16},
  };
  const Scheme& s = kSchemes[static_cast<size_t>(c.codes())];
  std::vector<int64_t> scales = {c.codes() == Codes::kTensor ? 1 : c.rows};
  if (s.columns != 0) scales.push_back((c.n + s.columns - 1) / s.columns);
  line += std::string(" quant.scheme=") + s.words;
  line += tensor_words("quant.quantized", c.codes() == Codes::kNvfp4 ? "f4_e2m1fn" : "f8_e4m3fn",
                       shape, strides, c.shift * c.element_bytes() / c.shrink());
  line += tensor_words("quant.scale", s.scale, scales);
  if (c.rotation() != 0) line += " quant.rotation=" + std::to_string(c.rotation());
  return line;
}

// The keys of "qk", which follow the queries in each token.
inline std::string keys_of(const Case& c) {
  std::string line = "norm eps=1e-06" + tensor_words("weight", c.dtype, {c.n});
  if (c.rounds()) line += kRounded;
  for (const char* path : {"x", "y"})
    line += tensor_words(path, c.dtype, {c.rows, kKeyHeads, c.n}, {kAllHeads * c.n, c.n, 1},
                         kQueryHeads * c.n * c.element_bytes());
  return line;
}

// A case's call; addresses can be changed between calls.
class Call {
 public:
  static constexpr float kStaticScale = 1.0f / 64;
  static constexpr uint32_t kPdl =
      FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER | FASTNORM_NORM_PDL_CONSTANT_WEIGHTS;

  Call(const Case& c, int32_t device_type, const Buffers& b)
      : heads_(c.heads()),
        scale_is_static_(c.codes() == Codes::kTensor),
        call_(line_of(c), device_type),
        keys_(keys_of(c), device_type),
        weight_(call_.tensor(c.adaln() ? "modulation_scale" : "weight")),
        bias_(call_.tensor(c.adaln() ? "modulation_shift" : "bias")),
        more_(call_.tensor(c.sandwich()    ? "branch_weight"
                           : c.modulated() ? "modulation_scale"
                                           : "residual_gate")) {
    set(b);
  }

  void set(const Buffers& b) {
    x_->data = b.x;
    residual_->data = b.residual;
    weight_->data = b.weight;
    bias_->data = b.bias;
    more_->data = b.more;
    for (size_t i = 0; i < std::size(tables_); ++i) tables_[i]->data = b.tables[i];
    y_->data = codes_->data = b.y;
    residual_out_->data = b.residual_out;
    gate_->data = b.residual;
    scale_->data = scale_is_static_ ? b.static_scale : b.scales;
    key_x_->data = key_y_->data = b.x;
    key_weight_->data = b.bias;
  }
  // LayerNorm is often called with f32 parameters beside 16-bit rows.
  void use_f32_parameters() {
    for (fastnorm_tensor* t : {weight_, bias_, more_})
      t->dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  }
  void set_flags(uint32_t flags) { args().flags = keys_.args<fastnorm_norm_args>().flags = flags; }

  void prepare(fastnorm_context* context) const {
    check(heads_ ? fastnorm_norm_many_prepare(context, both_, 2)
                 : fastnorm_norm_prepare(context, &args()));
  }
  fastnorm_info query(fastnorm_context* context) const {
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    check(heads_ ? fastnorm_norm_many_query(context, both_, 2, &info)
                 : fastnorm_norm_query(context, &args(), &info));
    return info;
  }
  void run(fastnorm_context* context, void* stream) const {
    check(heads_ ? fastnorm_norm_many(context, both_, 2, nullptr, 0, stream)
                 : fastnorm_norm(context, &args(), nullptr, 0, stream));
  }

 private:
  fastnorm_norm_args& args() const { return call_.args<fastnorm_norm_args>(); }

  bool heads_, scale_is_static_;
  LineCall call_, keys_;
  fastnorm_tensor *weight_, *bias_, *more_;
  fastnorm_tensor *x_ = call_.tensor("x"), *residual_ = call_.tensor("residual"),
                  *y_ = call_.tensor("y"), *codes_ = call_.tensor("quant.quantized"),
                  *residual_out_ = call_.tensor("residual_out"), *gate_ = call_.tensor("gate"),
                  *scale_ = call_.tensor("quant.scale"), *key_x_ = keys_.tensor("x"),
                  *key_y_ = keys_.tensor("y"), *key_weight_ = keys_.tensor("weight");
  fastnorm_tensor* tables_[3] = {call_.tensor("residual_gate_table"), call_.tensor("scale_table"),
                                 call_.tensor("shift_table")};
  const fastnorm_norm_args* both_[2] = {&args(), &keys_.args<fastnorm_norm_args>()};
};

}  // namespace bench
