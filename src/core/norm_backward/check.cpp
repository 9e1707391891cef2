#include "core/norm_backward/check.h"

#include <cinttypes>

#include "core/common/reciprocal.h"
#include "core/common/shared_fields.h"
#include "core/norm/check_stages.h"
#include "core/norm/shape.h"
#include "core/norm_backward/tensors.h"

namespace fastnorm {
namespace {

constexpr int kMaxLeading = kMaxRank;                  // a group's number is one more than x has
constexpr int kMaxTensors = kMostBackwardTensors + 2;  // tokens and heads, too

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
    FASTNORM_TRY(gate_and_branch());
    FASTNORM_TRY(presence());
    FASTNORM_TRY(x());
    FASTNORM_TRY(gradient());
    FASTNORM_TRY(inputs());
    FASTNORM_TRY(branch_inputs());
    FASTNORM_TRY(outputs());
    FASTNORM_TRY(branch_outputs());
    settings();
    FASTNORM_TRY(join_dimensions());
    return check_norm_backward_aliasing(&d_, error);
  }

 private:
  fastnorm_status scalars() {
    FASTNORM_TRY(check_norm_scalars(args_, error));
    FASTNORM_TRY(check_enum<&fastnorm_norm_backward_args::rounding>(args_, error));
    FASTNORM_TRY(check_reserved("reserved", args_.reserved, error));
    FASTNORM_TRY(check_reserved("stage_reserved", args_.stage_reserved, error));
    FASTNORM_REQUIRE(args_.group_size >= 0, FASTNORM_ERROR_ARGUMENT,
                     "group_size is %" PRId64 "; required: 0, or a divisor of n", args_.group_size);
    FASTNORM_TRY(check_gate_scalars(args_, error));
    return check_branch_scalars(args_, error);
  }

  fastnorm_status gate_and_branch() {
    FASTNORM_REQUIRE(number(args_.gate_source) == FASTNORM_GATE_FROM_F32 ||
                         number(args_.gate_position) == FASTNORM_GATE_AFTER_NORM,
                     FASTNORM_ERROR_ARGUMENT,
                     "gate_source is FASTNORM_GATE_FROM_ROUNDED (1) and gate_position is %d; "
                     "required: FASTNORM_GATE_AFTER_NORM (0)",
                     number(args_.gate_position));
    FASTNORM_TRY(check_rules(args_, error, FASTNORM_ERROR_UNSUPPORTED));
    // The rules take an alpha of 0 for none, but by its flag it is a factor.
    const bool has_alpha = (args_.flags & FASTNORM_NORM_BACKWARD_ALPHA) != 0;
    FASTNORM_REQUIRE(!has_alpha || (args_.gate == nullptr && args_.group_size == 0),
                     FASTNORM_ERROR_UNSUPPORTED,
                     "flags is 0x%x and %s; this version has no alpha there; nearest: flags "
                     "without FASTNORM_NORM_BACKWARD_ALPHA (256)",
                     args_.flags, args_.gate != nullptr ? "gate is given" : "group_size is not 0");
    NormBackwardGate& gate = d_.gate;
    gate.present = args_.gate != nullptr;
    gate.act = args_.gate_act;
    gate.before = number(args_.gate_position) == FASTNORM_GATE_BEFORE_NORM;
    gate.round_result = number(args_.gate_source) == FASTNORM_GATE_FROM_ROUNDED ||
                        number(args_.rounding) == FASTNORM_ROUND_EVERY_STEP;
    NormBackwardBranch& b = d_.branch;
    b.kind = args_.branch_kind;
    b.rounding = args_.branch_rounding;
    b.eps = args_.branch_eps;
    b.weight_offset = args_.branch_weight_offset;
    b.alpha = (args_.flags & FASTNORM_NORM_BACKWARD_ALPHA) != 0 ? args_.alpha : 1;
    b.act = args_.residual_gate_act;
    b.normalise = args_.branch_norm != 0;
    b.round_result =
        args_.branch_rounded != 0 || number(args_.branch_rounding) == FASTNORM_ROUND_EVERY_STEP;
    b.present = args_.sum_scale != nullptr || args_.dbranch != nullptr ||
                args_.dbranch_weight != nullptr || args_.dbranch_bias != nullptr ||
                args_.dresidual_gate != nullptr;
    return statistics("branch_mean", args_.branch_mean, "branch_rstd", args_.branch_rstd,
                      number(args_.branch_kind));
  }

  fastnorm_status flags() {
    const struct {
      uint32_t flag;
      const char *tensor_name, *name;
      const fastnorm_tensor* tensor;
      bool* accumulate;
    } sums[] = {
        {FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT, "dweight", "DWEIGHT", args_.dweight,
         &d_.accumulate_dweight},
        {FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS, "dbias", "DBIAS", args_.dbias,
         &d_.accumulate_dbias},
        {FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT, "dbranch_weight", "DBRANCH_WEIGHT",
         args_.dbranch_weight, &d_.branch.accumulate_dweight},
        {FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS, "dbranch_bias", "DBRANCH_BIAS",
         args_.dbranch_bias, &d_.branch.accumulate_dbias},
        {FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE, "dresidual_gate", "DRESIDUAL_GATE",
         args_.dresidual_gate, &d_.branch.accumulate_dresidual_gate},
    };
    uint32_t all = FASTNORM_NORM_BACKWARD_PDL_WAIT | FASTNORM_NORM_BACKWARD_PDL_TRIGGER |
                   FASTNORM_NORM_BACKWARD_ALPHA | FASTNORM_NORM_BACKWARD_NO_PDL;
    for (const auto& sum : sums) all |= sum.flag;
    d_.flags = args_.flags;
    FASTNORM_TRY(check_flags("flags", d_.flags, all, error));
    d_.flags &= ~static_cast<uint32_t>(FASTNORM_NORM_BACKWARD_ALPHA);  // the branch has it
    for (const auto& sum : sums) {
      *sum.accumulate = (d_.flags & sum.flag) != 0;
      FASTNORM_REQUIRE(!*sum.accumulate || sum.tensor != nullptr, FASTNORM_ERROR_ARGUMENT,
                       "flags is 0x%x and %s is NULL; required: %s with "
                       "FASTNORM_NORM_BACKWARD_ACCUMULATE_%s (%u)",
                       d_.flags, sum.tensor_name, sum.tensor_name, sum.name, sum.flag);
    }
    return FASTNORM_OK;
  }

  // LAYER has both statistics or none.
  fastnorm_status statistics(const char* mean_name, const fastnorm_tensor* mean,
                             const char* rstd_name, const fastnorm_tensor* rstd, int32_t kind) {
    FASTNORM_REQUIRE(kind == FASTNORM_NORM_RMS || rstd == nullptr || mean != nullptr,
                     FASTNORM_ERROR_ARGUMENT,
                     "%s is given and %s is NULL; required: both, or neither, for "
                     "FASTNORM_NORM_LAYER",
                     rstd_name, mean_name);
    return FASTNORM_OK;
  }

  // Which tensors there must be.
  fastnorm_status presence() {
    FASTNORM_REQUIRE(args_.dy != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "dy is NULL; required: a tensor of x's shape");
    FASTNORM_REQUIRE(args_.x != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "x is NULL; required: a tensor [..., n]");
    FASTNORM_REQUIRE(
        args_.dx != nullptr || args_.dweight != nullptr || args_.dbias != nullptr ||
            args_.dgate != nullptr || args_.dbranch != nullptr || args_.dbranch_weight != nullptr ||
            args_.dbranch_bias != nullptr || args_.dresidual_gate != nullptr,
        FASTNORM_ERROR_ARGUMENT,
        "dx is NULL, dweight is NULL, dbias is NULL and dgate is NULL; required: at least one "
        "output");
    return statistics("mean", args_.mean, "rstd", args_.rstd, number(args_.kind));
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
    return check_row_dtype(name, t, error);
  }

  // dy, and T, which follows from the branch, from dx or from dy.
  fastnorm_status gradient() {
    const fastnorm_tensor& t = *args_.dy;
    Dtype dtype = Dtype::kUnknown;
    FASTNORM_TRY(row_dtype("dy", t, &dtype));
    d_.dtype = dtype == Dtype::kF32 ? d_.x.dtype : dtype;
    const struct {
      const char* name;
      const fastnorm_tensor* tensor;
    } of_type[] = {{"branch", args_.branch}, {"dbranch", args_.dbranch}, {"dx", args_.dx}};
    for (const auto& has : of_type) {
      if (has.tensor == nullptr) continue;
      FASTNORM_TRY(row_dtype(has.name, *has.tensor, &d_.dtype));
      FASTNORM_REQUIRE(dtype == d_.dtype || dtype == Dtype::kF32, FASTNORM_ERROR_DTYPE,
                       "dy.dtype is %s; required: %s%s, as %s is %s", dtype_name(dtype),
                       dtype_name(d_.dtype), d_.dtype != Dtype::kF32 ? ", or f32" : "", has.name,
                       dtype_name(d_.dtype));
      break;
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
    FASTNORM_TRY(parameter("weight", args_.weight, &d_.weight));
    FASTNORM_TRY(statistic("mean", args_.mean, &d_.mean));
    FASTNORM_TRY(statistic("rstd", args_.rstd, &d_.rstd));
    FASTNORM_TRY(row_of_type("gate", args_.gate, true, &d_.gate.gate));
    const int count = count_;
    FASTNORM_TRY(parameter("bias", args_.bias, &d_.gate.bias));
    if (args_.dgate == nullptr || d_.gate.before) {  // not read
      count_ = count;
      d_.gate.bias = {};
    }
    return row_tensor("dresidual_in", args_.dresidual_in, &d_.dresidual_in);
  }

  // Inputs that no output needs are checked, and then not read.
  fastnorm_status branch_inputs() {
    NormBackwardBranch& b = d_.branch;
    const bool gate_sum = args_.dresidual_gate != nullptr,
               weight_sum = args_.dbranch_weight != nullptr, rows = args_.dbranch != nullptr;
    const bool norm = b.normalise && (rows || weight_sum || gate_sum);
    int count = count_;
    const auto keep = [&](bool needed, auto* t) {
      if (!needed) {
        count_ = count;
        *t = {};
      }
      count = count_;
    };
    FASTNORM_TRY(row_of_type("branch", args_.branch, false, &b.branch));
    keep(norm || gate_sum, &b.branch);
    FASTNORM_TRY(parameter("branch_weight", args_.branch_weight, &b.weight));
    keep(norm, &b.weight);
    FASTNORM_TRY(parameter("branch_bias", args_.branch_bias, &b.bias));
    keep(gate_sum, &b.bias);
    FASTNORM_TRY(statistic("branch_mean", args_.branch_mean, &b.mean));
    keep(norm, &b.mean);
    FASTNORM_TRY(statistic("branch_rstd", args_.branch_rstd, &b.rstd));
    keep(norm, &b.rstd);
    if (args_.residual_gate != nullptr)
      FASTNORM_TRY(check_own_dtype("residual_gate", *args_.residual_gate, "T", d_.dtype, error));
    FASTNORM_TRY(parameter("residual_gate", args_.residual_gate, &b.residual_gate));
    keep(rows || weight_sum || gate_sum || args_.dbranch_bias != nullptr, &b.residual_gate);
    if (args_.sum_scale == nullptr) return FASTNORM_OK;
    return check_scalar("sum_scale", *args_.sum_scale, device_, &b.sum_scale, error);
  }

  fastnorm_status branch_outputs() {
    NormBackwardBranch& b = d_.branch;
    FASTNORM_TRY(row_of_type("dbranch", args_.dbranch, false, &b.dbranch));
    FASTNORM_TRY(gradient_of("branch_weight", args_.branch_weight, "dbranch_weight",
                             args_.dbranch_weight, &b.dweight));
    FASTNORM_TRY(parameter("dbranch_bias", args_.dbranch_bias, &b.dbias));
    FASTNORM_TRY(gradient_of("residual_gate", args_.residual_gate, "dresidual_gate",
                             args_.dresidual_gate, &b.dresidual_gate));
    if (args_.dresidual_gate == nullptr || d_.rows == 0) return FASTNORM_OK;
    // One value of the gate belongs to each sum.
    const Strides* const gate = strides_of(b.residual_gate.stride_bytes);
    const Strides* const sum = strides_of(b.dresidual_gate.stride_bytes);
    for (int32_t i = 0; i < rank_; ++i) {
      FASTNORM_REQUIRE(gate->by_dim[i] == 0 || sum->by_dim[i] != 0, FASTNORM_ERROR_LAYOUT,
                       "dresidual_gate.strides has 0 for x's dimension %d, and residual_gate's has "
                       "not; required: an element for each of residual_gate",
                       rank_ - 1 - i);
    }
    return FASTNORM_OK;
  }

  const Strides* strides_of(const int64_t* result) const {
    const Strides* at = strides_;
    while (at->result != result) ++at;
    return at;
  }

  fastnorm_status outputs() {
    FASTNORM_TRY(row_tensor("dx", args_.dx, &d_.dx));
    FASTNORM_TRY(row_tensor("dresidual", args_.dresidual, &d_.dresidual));
    FASTNORM_REQUIRE(args_.dresidual == nullptr || d_.dresidual.dtype != d_.dx.dtype,
                     FASTNORM_ERROR_DTYPE,
                     "dresidual.dtype is %s, as dx's; required: another one: dx holds the same "
                     "gradient",
                     dtype_name(d_.dx.dtype));
    FASTNORM_TRY(row_of_type("dgate", args_.dgate, true, &d_.gate.dgate));
    FASTNORM_TRY(gradient_of("weight", args_.weight, "dweight", args_.dweight, &d_.dweight));
    return parameter("dbias", args_.dbias, &d_.dbias);
  }

  // The functions below accept tensors that are absent.

  // The gradient `given` of a weight or a residual gate, which is there then.
  fastnorm_status gradient_of(const char* of, const fastnorm_tensor* of_given, const char* name,
                              const fastnorm_tensor* given, ParameterTensor* result) {
    if (given == nullptr) return FASTNORM_OK;
    const fastnorm_tensor &w = *of_given, &t = *given;
    FASTNORM_TRY(check_own_dtype(name, t, of, dtype_from(w.dtype), error));
    FASTNORM_TRY(parameter(name, given, result));
    FASTNORM_REQUIRE(t.ndim == w.ndim && same_numbers(t.shape, w.shape, t.ndim),
                     FASTNORM_ERROR_SHAPE, "%s.shape is %s; required: %s's, %s", name,
                     shape_text(t.shape, t.ndim).c, of, shape_text(w.shape, w.ndim).c);
    return FASTNORM_OK;
  }

  fastnorm_status row_tensor(const char* name, const fastnorm_tensor* given, RowTensor* row) {
    if (given == nullptr) return FASTNORM_OK;
    const fastnorm_tensor& t = *given;
    Dtype dtype = Dtype::kUnknown;
    FASTNORM_TRY(row_dtype(name, t, &dtype));
    FASTNORM_TRY(check_tensor(name, t, {dtype, kMaxRank, true}, device_, error));
    FASTNORM_TRY(check_row_shape(name, t, *args_.x, error));
    fill_rows(t, dtype, 1, row);
    return FASTNORM_OK;
  }

  // Rows of T, or where `f32` says so of f32.
  fastnorm_status row_of_type(const char* name, const fastnorm_tensor* given, bool f32,
                              RowTensor* row) {
    if (given == nullptr) return FASTNORM_OK;
    if (f32) {
      FASTNORM_TRY(check_own_dtype(name, *given, "T", d_.dtype, error));
    } else {
      FASTNORM_REQUIRE(dtype_from(given->dtype) == d_.dtype, FASTNORM_ERROR_DTYPE,
                       "%s.dtype is %s; required: %s, as T is", name, dtype_text(given->dtype).c,
                       dtype_name(d_.dtype));
    }
    return row_tensor(name, given, row);
  }

  fastnorm_status statistic(const char* name, const fastnorm_tensor* given, RowTensor* row) {
    if (given == nullptr) return FASTNORM_OK;
    const fastnorm_tensor& t = *given;
    FASTNORM_TRY(check_typed(name, t, {Dtype::kF32, kMaxRank, false}, device_, error));
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

  fastnorm_status parameter(const char* name, const fastnorm_tensor* given,
                            ParameterTensor* result) {
    if (given == nullptr) return FASTNORM_OK;
    const fastnorm_tensor& t = *given;
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
    d_.rounding = rounding_of(args_.rounding);
    d_.branch.rounding = rounding_of(args_.branch_rounding);
    d_.eps = args_.eps;
    d_.weight_offset = args_.weight_offset;
    d_.inv_n = reciprocal_of(d_.n);
  }

  fastnorm_rounding rounding_of(fastnorm_rounding rounding) const {
    const bool once = rounding == FASTNORM_ROUND_ONCE_RW ||
                      (d_.dtype == Dtype::kF32 && rounding == FASTNORM_ROUND_NORMALIZED);
    return once ? FASTNORM_ROUND_ONCE : rounding;
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

  // True if these are the strides of a gradient of parameters.
  bool is_of_sum(const int64_t* strides) const {
    return !for_each_backward_tensor(d_, [&](auto of, const auto& t) {
      if constexpr (decltype(of)::kRole == schema::Role::kWeightOut) {
        return t.stride_bytes != strides;
      } else {
        return true;
      }
    });
  }

  // Drops the dimensions that no gradient of parameters has: it is set, and no row is looked at.
  void keep_parameters() {
    int count = 0;
    for (int s = 0; s < count_; ++s) {
      if (is_of_sum(strides_[s].result)) strides_[count++] = strides_[s];
    }
    count_ = count;
    for (int32_t i = 0; i < rank_; ++i) {
      bool varies = false;
      for (int s = 0; s < count_; ++s) varies |= strides_[s].by_dim[i] != 0;
      if (!varies) extent_[i] = 1;
    }
    for_each_backward_tensor(d_, [](auto of, auto& t) {
      using Tensor = std::remove_reference_t<decltype(t)>;
      if constexpr (std::is_same_v<Tensor, RowTensor>) {
        t = RowTensor{nullptr, {}, t.dtype};
      } else if constexpr (kHasStrides<Tensor> && !decltype(of)::kOutput) {
        t = {};
      }
      return true;
    });
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
  FASTNORM_TRY(accept_call(args, "args", &local, &ours, error));
  *whole = {};
  whole->parallel_user = ours->parallel_user;
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
