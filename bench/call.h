// One library call over memory that the benchmark owns.
#pragma once

#include <cstdint>
#include <iterator>
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

inline fastnorm_dtype dtype_of(const Case& c) {
  return fastnorm_dtype_of(c.dtype == "f32"   ? FASTNORM_DTYPE_F32
                           : c.dtype == "f16" ? FASTNORM_DTYPE_F16
                                              : FASTNORM_DTYPE_BF16);
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

// Tensors and arguments of a case; addresses can be changed between calls. Not copyable: the
// arguments point inside.
class Call {
 public:
  static constexpr float kStaticScale = 1.0f / 64;
  static constexpr uint32_t kPdl =
      FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER | FASTNORM_NORM_PDL_CONSTANT_WEIGHTS;

  Call(const Case& c, int32_t device_type, const Buffers& b) : heads_(c.heads()) {
    const fastnorm_tensor nothing = {nullptr, device_type, 0, 1, dtype_of(c), nullptr, nullptr, 0};
    shape_[0] = c.rows;
    shape_[1] = c.n;
    x_ = weight_ = bias_ = more_ = nothing;
    x_.ndim = 2;
    x_.shape = shape_;
    if (c.gap != 0) {
      row_strides_[0] = c.n + c.gap;
      x_.strides = row_strides_;
    }
    x_.byte_offset = static_cast<uint64_t>(c.shift * c.element_bytes());
    residual_ = y_ = residual_out_ = x_;
    weight_.shape = bias_.shape = more_.shape = shape_ + 1;
    for (fastnorm_tensor& table : tables_) table = more_;
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
    if (c.rounds()) {
      args_.rounding = FASTNORM_ROUND_NORMALIZED;
      args_.residual_rounding = FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS;
    }
    if (c.gated()) multiply_by_gate(c);
    if (c.sandwich()) add_branch_norm();
    if (c.adaln()) modulate(c.tables());
    if (c.modulated()) args_.modulation_scale = &more_;
    if (c.codes() != Codes::kNone) quantise(c);
    if (heads_) split_heads(c);
    set(b);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void set(const Buffers& b) {
    x_.data = b.x;
    residual_.data = b.residual;
    weight_.data = b.weight;
    bias_.data = b.bias;
    more_.data = b.more;
    for (size_t i = 0; i < std::size(tables_); ++i) tables_[i].data = b.tables[i];
    y_.data = b.y;
    residual_out_.data = b.residual_out;
    scale_.data = scale_is_static_ ? b.static_scale : b.scales;
    keys_.data = b.x;
  }
  // LayerNorm is often called with f32 parameters beside 16-bit rows.
  void use_f32_parameters() {
    weight_.dtype = bias_.dtype = more_.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  }
  void set_flags(uint32_t flags) { args_.flags = key_args_.flags = flags; }

  void prepare(fastnorm_context* context) const {
    check(heads_ ? fastnorm_norm_many_prepare(context, both_, 2)
                 : fastnorm_norm_prepare(context, &args_));
  }
  fastnorm_info query(fastnorm_context* context) const {
    fastnorm_info info = {};
    info.struct_size = sizeof info;
    check(heads_ ? fastnorm_norm_many_query(context, both_, 2, &info)
                 : fastnorm_norm_query(context, &args_, &info));
    return info;
  }
  void run(fastnorm_context* context, void* stream) const {
    check(heads_ ? fastnorm_norm_many(context, both_, 2, nullptr, 0, stream)
                 : fastnorm_norm(context, &args_, nullptr, 0, stream));
  }

 private:
  void multiply_by_gate(const Case& c) {
    args_.gate = &residual_;
    args_.gate_act = FASTNORM_ACTIVATION_SILU;
    if (c.gate_before()) args_.gate_position = FASTNORM_GATE_BEFORE_NORM;
  }
  // As Gemma's layers.
  void add_branch_norm() {
    args_.branch_norm = args_.branch_rounded = 1;
    args_.branch_eps = args_.eps;
    args_.branch_weight = &more_;
  }
  // As diffusion transformers; all rows are of one batch.
  void modulate(bool with_tables) {
    args_.kind = FASTNORM_NORM_LAYER;
    args_.weight = nullptr;
    args_.residual_gate = &more_;
    args_.modulation_scale = &weight_;
    args_.modulation_shift = &bias_;
    if (!with_tables) return;
    use_f32_parameters();
    for (fastnorm_tensor& table : tables_) table.dtype = weight_.dtype;
    args_.residual_gate_table = &tables_[0];
    args_.scale_table = &tables_[1];
    args_.shift_table = &tables_[2];
  }

  // y_ becomes the codes.
  void quantise(const Case& c) {
    struct Scheme {
      fastnorm_quant_scheme scheme;
      int64_t columns;  // of a scale; 0: a row, or all
      fastnorm_dtype_id scale;
    };
    static constexpr Scheme kSchemes[] = {
        {FASTNORM_QUANT_NONE, 0, FASTNORM_DTYPE_F32},
        {FASTNORM_QUANT_PER_TENSOR, 0, FASTNORM_DTYPE_F32},
        {FASTNORM_QUANT_PER_ROW, 0, FASTNORM_DTYPE_F32},
        {FASTNORM_QUANT_PER_BLOCK, 128, FASTNORM_DTYPE_F32},
        {FASTNORM_QUANT_MXFP8, 32, FASTNORM_DTYPE_F8_E8M0FNU},
        {FASTNORM_QUANT_NVFP4, 16, FASTNORM_DTYPE_F8_E4M3FN},
    };
    const Scheme& s = kSchemes[static_cast<size_t>(c.codes())];
    y_.dtype = fastnorm_dtype_of(c.codes() == Codes::kNvfp4 ? FASTNORM_DTYPE_F4_E2M1FN
                                                            : FASTNORM_DTYPE_F8_E4M3FN);
    y_.byte_offset = static_cast<uint64_t>(c.shift * c.element_bytes() / c.shrink());
    scale_is_static_ = c.codes() == Codes::kTensor;
    scale_ = x_;
    scale_.strides = nullptr;
    scale_.byte_offset = 0;
    scale_.dtype = fastnorm_dtype_of(s.scale);
    scale_.shape = scale_shape_;
    scale_.ndim = s.columns == 0 ? 1 : 2;
    scale_shape_[0] = scale_is_static_ ? 1 : c.rows;
    scale_shape_[1] = s.columns == 0 ? 1 : (c.n + s.columns - 1) / s.columns;
    args_.y = nullptr;
    quant_.struct_size = sizeof quant_;
    quant_.quantized = &y_;
    quant_.scale = &scale_;
    quant_.scheme = s.scheme;
    quant_.block_size = s.scheme == FASTNORM_QUANT_PER_BLOCK ? 128 : 0;
    quant_.rotation = c.rotation();
    args_.quant = &quant_;
  }

  // x_ becomes the queries, keys_ what follows them in each token.
  void split_heads(const Case& c) {
    const auto view = [&](fastnorm_tensor* t, int64_t* shape, int64_t heads) {
      shape[0] = c.rows;
      shape[1] = heads;
      shape[2] = c.n;
      t->ndim = 3;
      t->shape = shape;
      t->strides = head_strides_;
    };
    head_strides_[0] = kAllHeads * c.n;
    head_strides_[1] = c.n;
    head_strides_[2] = 1;
    keys_ = x_;
    keys_.byte_offset = static_cast<uint64_t>(kQueryHeads * c.n * c.element_bytes());
    view(&x_, query_shape_, kQueryHeads);
    view(&keys_, key_shape_, kKeyHeads);
    args_.y = &x_;
    key_args_ = args_;
    key_args_.x = key_args_.y = &keys_;
    key_args_.weight = &bias_;
  }

  bool heads_, scale_is_static_ = false;
  int64_t shape_[2], scale_shape_[2] = {}, query_shape_[3] = {}, key_shape_[3] = {},
                     head_strides_[3] = {}, row_strides_[2] = {0, 1};
  fastnorm_tensor x_, residual_, y_, residual_out_, weight_, bias_, more_, scale_ = {}, keys_ = {};
  fastnorm_tensor tables_[3] = {};
  fastnorm_norm_args args_ = {}, key_args_ = {};
  fastnorm_quant quant_ = {};
  const fastnorm_norm_args* both_[2] = {&args_, &key_args_};
};

}  // namespace bench
