#include "core/norm_backward_check.h"

#include <cinttypes>
#include <cmath>

#include "core/norm_check_stages.h"
#include "core/norm_shape.h"
#include "core/reciprocal.h"

namespace fastnorm {
namespace {

constexpr int kMaxLeading = kMaxRank;  // a group's number is one more than x has
constexpr int kMaxTensors = 15;

bool is_row_dtype(Dtype dtype) { return static_cast<int>(dtype) < kRowDtypes; }

// A tensor's steps along the leading dimensions of x, innermost first, and the description's
// strides that they become.
struct Strides {
  int64_t by_dim[kMaxLeading];
  int64_t* result;
};

class NormBackwardCheck {
 public:
  NormBackwardCheck(const fastnorm_norm_backward_args& args, CheckedDevice device,
                    NormBackwardDesc* whole, Error& failure)
      : args_(args), device_(device), d_(*whole), error(failure) {}

  fastnorm_status run() {
    FASTNORM_TRY(scalars());
    FASTNORM_TRY(flags());
    FASTNORM_TRY(gate_scalars());
    FASTNORM_TRY(presence());
    FASTNORM_TRY(x());
    FASTNORM_TRY(gradient());
    FASTNORM_TRY(inputs());
    FASTNORM_TRY(outputs());
    settings();
    FASTNORM_TRY(join_dimensions());
    return check_norm_backward_aliasing(&d_, error);
  }

 private:
  fastnorm_status scalars() {
    const int32_t kind = number(args_.kind), rounding = number(args_.rounding);
    FASTNORM_REQUIRE(
        kind == FASTNORM_NORM_RMS || kind == FASTNORM_NORM_LAYER, FASTNORM_ERROR_ARGUMENT,
        "kind is %d; required: FASTNORM_NORM_RMS (0) or FASTNORM_NORM_LAYER (1)", kind);
    FASTNORM_REQUIRE(std::isfinite(args_.eps) && args_.eps >= 0, FASTNORM_ERROR_ARGUMENT,
                     "eps is %g; required: finite and >= 0", static_cast<double>(args_.eps));
    FASTNORM_REQUIRE(std::isfinite(args_.weight_offset), FASTNORM_ERROR_ARGUMENT,
                     "weight_offset is %g; required: finite",
                     static_cast<double>(args_.weight_offset));
    FASTNORM_REQUIRE(args_.weight != nullptr || args_.weight_offset == 0, FASTNORM_ERROR_ARGUMENT,
                     "weight_offset is %g and weight is NULL; required: 0 without a weight",
                     static_cast<double>(args_.weight_offset));
    FASTNORM_REQUIRE(rounding >= FASTNORM_ROUND_ONCE && rounding <= FASTNORM_ROUND_ONCE_RW,
                     FASTNORM_ERROR_ARGUMENT,
                     "rounding is %d; required: a fastnorm_rounding, 0 to 3", rounding);
    FASTNORM_REQUIRE(args_.reserved == 0, FASTNORM_ERROR_ARGUMENT, "reserved is %d; required: 0",
                     args_.reserved);
    FASTNORM_REQUIRE(args_.stage_reserved == 0, FASTNORM_ERROR_ARGUMENT,
                     "stage_reserved is %d; required: 0", args_.stage_reserved);
    FASTNORM_REQUIRE(args_.group_size >= 0, FASTNORM_ERROR_ARGUMENT,
                     "group_size is %" PRId64 "; required: 0, or a divisor of n", args_.group_size);
    return FASTNORM_OK;
  }

  fastnorm_status gate_scalars() {
    const int32_t act = number(args_.gate_act), position = number(args_.gate_position),
                  source = number(args_.gate_source);
    FASTNORM_REQUIRE(act >= FASTNORM_ACTIVATION_IDENTITY && act <= FASTNORM_ACTIVATION_TANH,
                     FASTNORM_ERROR_ARGUMENT,
                     "gate_act is %d; required: a fastnorm_activation, 0 to 3", act);
    FASTNORM_REQUIRE(
        position == FASTNORM_GATE_AFTER_NORM || position == FASTNORM_GATE_BEFORE_NORM,
        FASTNORM_ERROR_ARGUMENT,
        "gate_position is %d; required: FASTNORM_GATE_AFTER_NORM (0) or FASTNORM_GATE_BEFORE_NORM "
        "(1)",
        position);
    FASTNORM_REQUIRE(source == FASTNORM_GATE_FROM_F32 || source == FASTNORM_GATE_FROM_ROUNDED,
                     FASTNORM_ERROR_ARGUMENT,
                     "gate_source is %d; required: FASTNORM_GATE_FROM_F32 (0) or "
                     "FASTNORM_GATE_FROM_ROUNDED (1)",
                     source);
    const struct {
      const char* name;
      int32_t value;
    } fields[] = {{"gate_act", act}, {"gate_position", position}, {"gate_source", source}};
    for (const auto& field : fields) {
      FASTNORM_REQUIRE(field.value == 0 || args_.gate != nullptr, FASTNORM_ERROR_ARGUMENT,
                       "%s is %d and gate is NULL; required: 0 without a gate", field.name,
                       field.value);
    }
    FASTNORM_REQUIRE(args_.dgate == nullptr || args_.gate != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "dgate is given and gate is NULL; required: both, or no dgate");
    const bool before = position == FASTNORM_GATE_BEFORE_NORM;
    FASTNORM_REQUIRE(source == FASTNORM_GATE_FROM_F32 || !before, FASTNORM_ERROR_ARGUMENT,
                     "gate_source is FASTNORM_GATE_FROM_ROUNDED (1) and gate_position is %d; "
                     "required: FASTNORM_GATE_AFTER_NORM (0)",
                     position);
    const char* const residual = args_.dresidual_in != nullptr ? "dresidual_in"
                                 : args_.dresidual != nullptr  ? "dresidual"
                                                               : nullptr;
    FASTNORM_REQUIRE(!before || residual == nullptr, FASTNORM_ERROR_UNSUPPORTED,
                     "gate_position is FASTNORM_GATE_BEFORE_NORM (1) and %s is given; this version "
                     "has no residual behind such a gate; nearest: no %s",
                     residual, residual);
    NormBackwardGate& gate = d_.gate;
    gate.present = args_.gate != nullptr;
    gate.act = static_cast<fastnorm_activation>(act);
    gate.before = before;
    gate.round_result =
        source == FASTNORM_GATE_FROM_ROUNDED || number(args_.rounding) == FASTNORM_ROUND_EVERY_STEP;
    return FASTNORM_OK;
  }

  fastnorm_status flags() {
    constexpr uint32_t kDweight = FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT,
                       kDbias = FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS;
    constexpr uint32_t kFlags =
        FASTNORM_NORM_BACKWARD_PDL_WAIT | FASTNORM_NORM_BACKWARD_PDL_TRIGGER | kDweight | kDbias;
    d_.flags = args_.flags;
    d_.accumulate_dweight = (d_.flags & kDweight) != 0;
    d_.accumulate_dbias = (d_.flags & kDbias) != 0;
    FASTNORM_REQUIRE((d_.flags & ~kFlags) == 0, FASTNORM_ERROR_UNSUPPORTED,
                     "flags is 0x%x; this version has the flags 0x%x; nearest: flags 0x%x",
                     d_.flags, kFlags, d_.flags & kFlags);
    FASTNORM_REQUIRE(!d_.accumulate_dweight || args_.dweight != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "flags is 0x%x and dweight is NULL; required: dweight with "
                     "FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT (8)",
                     d_.flags);
    FASTNORM_REQUIRE(!d_.accumulate_dbias || args_.dbias != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "flags is 0x%x and dbias is NULL; required: dbias with "
                     "FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS (16)",
                     d_.flags);
    return FASTNORM_OK;
  }

  // Which tensors there must and must not be.
  fastnorm_status presence() {
    FASTNORM_REQUIRE(args_.dy != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "dy is NULL; required: a tensor of x's shape");
    FASTNORM_REQUIRE(args_.x != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "x is NULL; required: a tensor [..., n]");
    FASTNORM_REQUIRE(
        args_.dx != nullptr || args_.dweight != nullptr || args_.dbias != nullptr ||
            args_.dgate != nullptr,
        FASTNORM_ERROR_ARGUMENT,
        "dx is NULL, dweight is NULL, dbias is NULL and dgate is NULL; required: at least one "
        "output");
    FASTNORM_REQUIRE(args_.dresidual == nullptr || args_.dx != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "dresidual is given and dx is NULL; required: both, or no dresidual");
    FASTNORM_REQUIRE(args_.dweight == nullptr || args_.weight != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "dweight is given and weight is NULL; required: both, or no dweight");
    const bool layer = number(args_.kind) == FASTNORM_NORM_LAYER;
    const bool mean = args_.mean != nullptr, rstd = args_.rstd != nullptr;
    FASTNORM_REQUIRE(
        layer || !mean, FASTNORM_ERROR_ARGUMENT,
        "mean is given and kind is FASTNORM_NORM_RMS; required: FASTNORM_NORM_LAYER, or no mean");
    FASTNORM_REQUIRE(!layer || mean == rstd, FASTNORM_ERROR_ARGUMENT,
                     "%s is given and %s is NULL; required: both, or neither, for "
                     "FASTNORM_NORM_LAYER",
                     mean ? "mean" : "rstd", mean ? "rstd" : "mean");
    return FASTNORM_OK;
  }

  fastnorm_status x() {
    const fastnorm_tensor& t = *args_.x;
    Dtype dtype = Dtype::kUnknown;
    FASTNORM_TRY(row_dtype("x", t, &dtype));
    FASTNORM_TRY(check_tensor("x", t, {dtype, kMaxRank, true}, device_, error));
    FASTNORM_TRY(check_x_shape(t, error));
    columns_ = t.shape[t.ndim - 1];
    d_.n = args_.group_size != 0 ? args_.group_size : columns_;
    FASTNORM_REQUIRE(columns_ % d_.n == 0, FASTNORM_ERROR_SHAPE,
                     "group_size is %" PRId64 " and n is %" PRId64 "; required: a divisor of n",
                     d_.n, columns_);
    groups_ = columns_ / d_.n;
    extent_[0] = groups_;  // the group's number is the innermost dimension, if there are several
    first_ = groups_ > 1 ? 1 : 0;
    rank_ = first_ + t.ndim - 1;
    // Unsigned: where an extent is 0, the others' product may fit in no integer.
    uint64_t rows = static_cast<uint64_t>(groups_);
    for (int32_t i = first_; i < rank_; ++i) {
      extent_[i] = t.shape[rank_ - 1 - i];
      rows *= static_cast<uint64_t>(extent_[i]);
    }
    d_.rows = static_cast<int64_t>(rows);
    fill_rows(t, dtype, 1, &d_.x);
    const bool together = device_.device_type == FASTNORM_DEVICE_CUDA && d_.of_heads.heads != 0;
    if (together || d_.of_heads.needs_own_kernels()) number_heads();
    return FASTNORM_OK;
  }

  // Token and head of a row follow from its digits, so that no step joins tokens and heads.
  void number_heads() {
    strides_[count_++] = {{0, 1}, d_.of_heads.token.stride_bytes};
    strides_[count_++] = {{1, 0}, d_.of_heads.head.stride_bytes};
  }

  fastnorm_status row_dtype(const char* name, const fastnorm_tensor& t, Dtype* dtype) {
    *dtype = dtype_from(t.dtype);
    FASTNORM_REQUIRE(is_row_dtype(*dtype), FASTNORM_ERROR_DTYPE,
                     "%s.dtype is %s; required: f32, f16 or bf16", name, dtype_text(t.dtype).c);
    return FASTNORM_OK;
  }

  // dy, and T, which follows from dx or from dy.
  fastnorm_status gradient() {
    const fastnorm_tensor& t = *args_.dy;
    Dtype dtype = Dtype::kUnknown;
    FASTNORM_TRY(row_dtype("dy", t, &dtype));
    d_.dtype = dtype == Dtype::kF32 ? d_.x.dtype : dtype;
    if (args_.dx != nullptr) {
      FASTNORM_TRY(row_dtype("dx", *args_.dx, &d_.dtype));
      FASTNORM_REQUIRE(dtype == d_.dtype || dtype == Dtype::kF32, FASTNORM_ERROR_DTYPE,
                       "dy.dtype is %s; required: %s%s, as dx is %s", dtype_name(dtype),
                       dtype_name(d_.dtype), d_.dtype != Dtype::kF32 ? ", or f32" : "",
                       dtype_name(d_.dtype));
    }
    FASTNORM_TRY(check_tensor("dy", t, {dtype, kMaxRank, false}, device_, error));
    FASTNORM_TRY(check_row_shape("dy", t, *args_.x, error));
    const int32_t dim = t.ndim - 1;
    const int64_t last = t.strides == nullptr || columns_ == 1 || d_.rows == 0 ? 1 : t.strides[dim];
    FASTNORM_REQUIRE(last == 0 || last == 1, FASTNORM_ERROR_LAYOUT,
                     "dy.strides[%d] is %" PRId64
                     "; required: 1, a contiguous last dimension, or 0, one value for a row",
                     dim, last);
    d_.dy_element_bytes = last * dtype_bytes(dtype);
    fill_rows(t, dtype, 1, &d_.dy);
    strides_[count_ - 1].by_dim[0] *= groups_ > 1 ? last : 1;
    return FASTNORM_OK;
  }

  fastnorm_status inputs() {
    if (args_.weight != nullptr) FASTNORM_TRY(parameter("weight", *args_.weight, &d_.weight));
    if (args_.mean != nullptr) FASTNORM_TRY(statistic("mean", *args_.mean, &d_.mean));
    if (args_.rstd != nullptr) FASTNORM_TRY(statistic("rstd", *args_.rstd, &d_.rstd));
    if (args_.gate != nullptr) FASTNORM_TRY(gate_tensor("gate", *args_.gate, &d_.gate.gate));
    const int count = count_;
    if (args_.bias != nullptr) FASTNORM_TRY(parameter("bias", *args_.bias, &d_.gate.bias));
    if (args_.dgate == nullptr || d_.gate.before) {  // not read
      count_ = count;
      d_.gate.bias = {};
    }
    if (args_.dresidual_in == nullptr) return FASTNORM_OK;
    return row_tensor("dresidual_in", *args_.dresidual_in, &d_.dresidual_in);
  }

  fastnorm_status outputs() {
    if (args_.dx != nullptr) FASTNORM_TRY(row_tensor("dx", *args_.dx, &d_.dx));
    if (args_.dresidual != nullptr) {
      FASTNORM_TRY(row_tensor("dresidual", *args_.dresidual, &d_.dresidual));
      FASTNORM_REQUIRE(dtype_from(args_.dresidual->dtype) != d_.dtype, FASTNORM_ERROR_DTYPE,
                       "dresidual.dtype is %s, as dx's; required: another one: dx holds the same "
                       "gradient",
                       dtype_name(d_.dtype));
    }
    if (args_.dgate != nullptr) FASTNORM_TRY(gate_tensor("dgate", *args_.dgate, &d_.gate.dgate));
    if (args_.dweight != nullptr) FASTNORM_TRY(dweight(*args_.dweight));
    return args_.dbias != nullptr ? parameter("dbias", *args_.dbias, &d_.dbias) : FASTNORM_OK;
  }

  fastnorm_status dweight(const fastnorm_tensor& t) {
    const fastnorm_tensor& w = *args_.weight;
    const Dtype dtype = dtype_from(t.dtype), of_weight = dtype_from(w.dtype);
    FASTNORM_REQUIRE(dtype == of_weight || dtype == Dtype::kF32, FASTNORM_ERROR_DTYPE,
                     "dweight.dtype is %s; required: %s%s, as weight is %s", dtype_text(t.dtype).c,
                     dtype_name(of_weight), of_weight != Dtype::kF32 ? ", or f32" : "",
                     dtype_name(of_weight));
    FASTNORM_TRY(parameter("dweight", t, &d_.dweight));
    FASTNORM_REQUIRE(t.ndim == w.ndim && same_numbers(t.shape, w.shape, t.ndim),
                     FASTNORM_ERROR_SHAPE, "dweight.shape is %s; required: weight's, %s",
                     shape_text(t.shape, t.ndim).c, shape_text(w.shape, w.ndim).c);
    return FASTNORM_OK;
  }

  fastnorm_status row_tensor(const char* name, const fastnorm_tensor& t, RowTensor* row) {
    Dtype dtype = Dtype::kUnknown;
    FASTNORM_TRY(row_dtype(name, t, &dtype));
    FASTNORM_TRY(check_tensor(name, t, {dtype, kMaxRank, true}, device_, error));
    FASTNORM_TRY(check_row_shape(name, t, *args_.x, error));
    fill_rows(t, dtype, 1, row);
    return FASTNORM_OK;
  }

  // gate and dgate.
  fastnorm_status gate_tensor(const char* name, const fastnorm_tensor& t, RowTensor* row) {
    const Dtype dtype = dtype_from(t.dtype);
    FASTNORM_REQUIRE(dtype == d_.dtype || dtype == Dtype::kF32, FASTNORM_ERROR_DTYPE,
                     "%s.dtype is %s; required: %s%s, as T is %s", name, dtype_text(t.dtype).c,
                     dtype_name(d_.dtype), d_.dtype != Dtype::kF32 ? ", or f32" : "",
                     dtype_name(d_.dtype));
    return row_tensor(name, t, row);
  }

  fastnorm_status statistic(const char* name, const fastnorm_tensor& t, RowTensor* row) {
    FASTNORM_REQUIRE(dtype_from(t.dtype) == Dtype::kF32, FASTNORM_ERROR_DTYPE,
                     "%s.dtype is %s; required: f32", name, dtype_text(t.dtype).c);
    FASTNORM_TRY(check_tensor(name, t, {Dtype::kF32, kMaxRank, false}, device_, error));
    if (groups_ > 1) {
      FASTNORM_TRY(check_stage_statistic_shape(name, t, 1, groups_, *args_.x, error));
    } else {
      FASTNORM_TRY(check_statistic_shape(name, t, *args_.x, error));
    }
    row->data = address_of(t);
    row->dtype = Dtype::kF32;
    fill(t, Dtype::kF32, groups_ > 1 || t.ndim != args_.x->ndim ? 0 : 1, kOwnGroups,
         row->stride_bytes);
    return FASTNORM_OK;
  }

  fastnorm_status parameter(const char* name, const fastnorm_tensor& t, ParameterTensor* result) {
    Dtype dtype = Dtype::kUnknown;
    FASTNORM_TRY(row_dtype(name, t, &dtype));
    FASTNORM_TRY(check_tensor(name, t, {dtype, kMaxRank, true}, device_, error));
    FASTNORM_TRY(check_weight_shape(name, t, *args_.x, d_.n, error));
    for (int32_t i = 0; i + 1 < t.ndim; ++i) {
      if (t.shape[i] == 0) return FASTNORM_OK;  // no elements: as if it were not there
    }
    result->data = address_of(t);
    result->dtype = dtype;
    fill(t, dtype, 1, t.shape[t.ndim - 1] == columns_ ? d_.n * dtype_bytes(dtype) : 0,
         result->stride_bytes);
    return FASTNORM_OK;
  }

  // Address, dtype and strides of a tensor with a row for each row of x; `skip` trailing dimensions
  // are not rows. A tensor of no elements may have no address, but then there are no rows.
  void fill_rows(const fastnorm_tensor& t, Dtype dtype, int32_t skip, RowTensor* row) {
    row->data = address_of(t);
    row->dtype = dtype;
    fill(t, dtype, skip, d_.n * dtype_bytes(dtype), row->stride_bytes);
  }

  // Steps from a group to the next, kOwnGroups where that is the tensor's last dimension, and along
  // the leading dimensions. The others of x have none.
  static constexpr int64_t kOwnGroups = -1;
  void fill(const fastnorm_tensor& t, Dtype dtype, int32_t skip, int64_t group_bytes,
            int64_t* result) {
    Strides& s = strides_[count_++];
    s = {{}, result};
    const int64_t bytes = dtype_bytes(dtype);
    int64_t* to = s.by_dim;
    if (groups_ > 1 && group_bytes != kOwnGroups) *to++ = group_bytes;
    auto compact = static_cast<uint64_t>(skip == 1 ? t.shape[t.ndim - 1] * bytes : bytes);
    for (int32_t dim = t.ndim - 1 - skip; dim >= 0; --dim, ++to) {
      if (t.shape[dim] != 1) {
        *to = t.strides != nullptr ? stride_bytes_of(t, dim, bytes) : static_cast<int64_t>(compact);
      }
      compact *= static_cast<uint64_t>(t.shape[dim]);
    }
  }

  void settings() {
    d_.kind = args_.kind;
    const bool once = args_.rounding == FASTNORM_ROUND_ONCE_RW ||
                      (d_.dtype == Dtype::kF32 && args_.rounding == FASTNORM_ROUND_NORMALIZED);
    d_.rounding = once ? FASTNORM_ROUND_ONCE : args_.rounding;
    d_.eps = args_.eps;
    d_.weight_offset = args_.weight_offset;
    d_.inv_n = reciprocal_of(d_.n);
  }

  // Fewest leading dimensions. Without rows those of the parameters alone count.
  fastnorm_status join_dimensions() {
    if (d_.rows == 0) keep_parameters();
    int32_t kept = 0;
    for (int32_t i = 0; i < rank_; ++i) {
      if (extent_[i] != 1) move(i, kept++);
    }
    rank_ = kept;
    for (int32_t i = rank_ - 2; i >= 0; --i) {
      if (!joins(i)) continue;
      extent_[i] *= extent_[i + 1];
      for (int32_t later = i + 2; later < rank_; ++later) move(later, later - 1);
      --rank_;
    }
    FASTNORM_REQUIRE(rank_ <= kMaxOuter, FASTNORM_ERROR_UNSUPPORTED,
                     "x.shape is %s: with the strides of all tensors, %d leading dimensions remain "
                     "of which none joins its neighbour; this version takes %d; nearest: tensors "
                     "that are compact in more of them",
                     shape_text(args_.x->shape, args_.x->ndim).c, rank_, kMaxOuter);
    d_.outer_rank = rank_ > 0 ? rank_ : 1;
    for (int32_t i = 0; i < kMaxOuter; ++i) {
      d_.outer[i] = i < rank_ ? extent_[i] : 1;
      for (int s = 0; s < count_; ++s)
        strides_[s].result[i] = i < rank_ ? strides_[s].by_dim[i] : 0;
    }
    return FASTNORM_OK;
  }

  // Drops the dimensions that no gradient of parameters has: it is set, and no row is looked at.
  void keep_parameters() {
    int count = 0;
    for (int s = 0; s < count_; ++s) {
      const int64_t* const of = strides_[s].result;
      if (of == d_.dweight.stride_bytes || of == d_.dbias.stride_bytes)
        strides_[count++] = strides_[s];
    }
    count_ = count;
    for (int32_t i = 0; i < rank_; ++i) {
      bool varies = false;
      for (int s = 0; s < count_; ++s) varies |= strides_[s].by_dim[i] != 0;
      if (!varies) extent_[i] = 1;
    }
    for (RowTensor* t : {&d_.dy, &d_.x, &d_.dresidual_in, &d_.mean, &d_.rstd, &d_.dx, &d_.dresidual,
                         &d_.gate.gate, &d_.gate.dgate})
      *t = RowTensor{nullptr, {}, t->dtype};
    d_.weight = d_.gate.bias = {};
  }

  // True if in every tensor dimension i + 1 continues where dimension i ends.
  bool joins(int32_t i) const {
    for (int s = 0; s < count_; ++s) {
      int64_t step = 0;
      const int64_t* const by_dim = strides_[s].by_dim;
      if (__builtin_mul_overflow(by_dim[i], extent_[i], &step) || by_dim[i + 1] != step)
        return false;
    }
    return true;
  }

  void move(int32_t from, int32_t to) {
    extent_[to] = extent_[from];
    for (int s = 0; s < count_; ++s) strides_[s].by_dim[to] = strides_[s].by_dim[from];
  }

  const fastnorm_norm_backward_args& args_;
  const CheckedDevice device_;
  NormBackwardDesc& d_;
  Error& error;
  int64_t columns_ = 0, groups_ = 1;  // of a row of x
  int32_t first_ = 0;                 // 1 if dimension 0 is the group's number
  int32_t rank_ = 0;                  // leading dimensions of x, and that one
  int64_t extent_[kMaxLeading] = {};  // innermost first
  Strides strides_[kMaxTensors];
  int count_ = 0;
};

}  // namespace

fastnorm_status check_norm_backward(const fastnorm_norm_backward_args* args, CheckedDevice device,
                                    NormBackwardDesc* whole, Error& error) {
  fastnorm_norm_backward_args local;
  const fastnorm_norm_backward_args* ours = nullptr;
  FASTNORM_TRY(accept_struct(args, kFirstNormBackwardArgs, "args", &local, &ours, error));
  *whole = {};
  return NormBackwardCheck(*ours, device, whole, error).run();
}

fastnorm_status check_norm_backward_heads(const fastnorm_norm_backward_args& args,
                                          const NormBackwardHeads& heads, CheckedDevice device,
                                          NormBackwardDesc* whole, Error& error) {
  *whole = {};
  whole->of_heads = heads;
  return NormBackwardCheck(args, device, whole, error).run();
}

}  // namespace fastnorm
