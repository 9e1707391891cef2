#include "core/norm/check_stages.h"

#include <cinttypes>
#include <cstring>

#include "core/common/shared_fields.h"
#include "core/norm/aliasing.h"
#include "core/norm/shape.h"

namespace fastnorm {
namespace {

// One call's checks. The members are what most checks need.
class StagesCheck {
 public:
  StagesCheck(const fastnorm_norm_args& args, CheckedDevice device, NormDesc* desc, Error& error)
      : args_(args), device_(device), d_(*desc), error(error) {}

  fastnorm_status scalars() {
    StagesDesc& s = d_.stages;
    s = StagesDesc{};
    d_.has_stages = true;
    FASTNORM_TRY(check_enum<&fastnorm_norm_args::activation>(args_, error));
    FASTNORM_TRY(check_gate_scalars(args_, error));
    FASTNORM_TRY(check_branch_scalars(args_, error));
    FASTNORM_TRY(check_enum<&fastnorm_norm_args::sum_rounding>(args_, error));
    FASTNORM_TRY(check_enum<&fastnorm_norm_args::modulation_rounding>(args_, error));
    FASTNORM_REQUIRE(args_.group_size >= 0, FASTNORM_ERROR_ARGUMENT,
                     "group_size is %" PRId64 "; required: 0, or a divisor of n", args_.group_size);
    s.gate_act = args_.gate_act;
    s.activation = args_.activation;
    s.gate_before = number(args_.gate_position) == FASTNORM_GATE_BEFORE_NORM;
    s.gate_from_rounded = number(args_.gate_source) == FASTNORM_GATE_FROM_ROUNDED;
    branch();
    FASTNORM_TRY(modulation());
    FASTNORM_TRY(check_given_statistics(args_, layer(), error));
    return check_rules<fastnorm_norm_args, schema::kNumber<&fastnorm_norm_args::gate>>(args_,
                                                                                       error);
  }

  fastnorm_status tensors() {
    StagesDesc& s = d_.stages;
    s.group = args_.group_size != 0 ? args_.group_size : d_.n;
    FASTNORM_REQUIRE(d_.n % s.group == 0, FASTNORM_ERROR_SHAPE,
                     "group_size is %" PRId64 " and n is %" PRId64 "; required: a divisor of n",
                     s.group, d_.n);
    s.groups = d_.n / s.group;
    if (args_.gate != nullptr) FASTNORM_TRY(gate());
    if (args_.sum_scale != nullptr)
      FASTNORM_TRY(check_scalar("sum_scale", *args_.sum_scale, device_, &s.sum_scale, error));
    if (args_.branch_rstd != nullptr) FASTNORM_TRY(branch_rstd());
    FASTNORM_TRY(modulators());
    FASTNORM_TRY(input("mean_in", args_.mean_in, &s.mean_in));
    FASTNORM_TRY(input("rstd_in", args_.rstd_in, &s.rstd_in));
    if (args_.sumsq == nullptr) return FASTNORM_OK;
    const int32_t values = layer() ? 2 : 1;
    FASTNORM_TRY(check_stage_statistic("sumsq", *args_.sumsq, values, *args_.x, device_, d_,
                                       &s.sumsq, error));
    return check_output_rows("sumsq", s.sumsq, s.groups * values * 4, d_, error);
  }

 private:
  bool layer() const { return d_.kind == FASTNORM_NORM_LAYER; }

  // The norm of the branch before the residual addition, and that addition.
  void branch() {
    StagesDesc& s = d_.stages;
    s.branch = args_.branch_norm != 0;
    s.branch_kind = args_.branch_kind;
    s.branch_rounding = args_.branch_rounding;
    s.branch_eps = args_.branch_eps;
    s.branch_weight_offset = args_.branch_weight_offset;
    s.branch_rounded = args_.branch_rounded != 0;
    s.sum_every_step = args_.sum_rounding == FASTNORM_SUM_EVERY_STEP;
    s.scaled = (args_.flags & FASTNORM_NORM_ALPHA) != 0 && args_.alpha != 1;
    s.alpha = s.scaled ? args_.alpha : 1;
  }

  // The factor of the branch, and the scale and shift of the normalised row.
  fastnorm_status modulation() {
    StagesDesc& s = d_.stages;
    const uint32_t flags = static_cast<uint32_t>(args_.flags);
    s.plain_scale = (flags & FASTNORM_NORM_MODULATION_PLAIN_SCALE) != 0;
    FASTNORM_REQUIRE(!s.plain_scale || args_.modulation_scale != nullptr, FASTNORM_ERROR_ARGUMENT,
                     "flags is 0x%x and modulation_scale is NULL; required: no "
                     "FASTNORM_NORM_MODULATION_PLAIN_SCALE (8) without a modulation_scale",
                     flags);
    s.residual_gate_act = args_.residual_gate_act;
    s.modulation_every_step = args_.modulation_rounding == FASTNORM_MODULATION_EVERY_STEP ||
                              args_.rounding == FASTNORM_ROUND_EVERY_STEP;
    return FASTNORM_OK;
  }

  fastnorm_status gate() {
    const fastnorm_tensor& t = *args_.gate;
    const Dtype dtype = dtype_from(t.dtype);
    FASTNORM_TRY(check_own_dtype("gate", t, "x", d_.dtype, error));
    FASTNORM_TRY(check_tensor("gate", t, {dtype, kMaxRank, true}, device_, error));
    FASTNORM_TRY(check_row_shape("gate", t, *args_.x, error));
    describe_rows(t, t.ndim - 1, d_.n * dtype_bytes(dtype), d_.outer_rank, &d_.stages.gate);
    return FASTNORM_OK;
  }

  // One value for each row, for any number of groups.
  fastnorm_status branch_rstd() {
    const fastnorm_tensor& t = *args_.branch_rstd;
    FASTNORM_TRY(check_typed("branch_rstd", t, {Dtype::kF32, kMaxRank, false}, device_, error));
    FASTNORM_TRY(check_statistic_shape("branch_rstd", t, *args_.x, error));
    RowTensor& row = d_.stages.branch_rstd;
    describe_rows(t, args_.x->ndim - 1, 4, d_.outer_rank, &row);
    return check_output_rows("branch_rstd", row, 4, d_, error);
  }

  fastnorm_status modulators() {
    StagesDesc& s = d_.stages;
    if (args_.modulation_index != nullptr) FASTNORM_TRY(modulation_index());
    const struct {
      const char *name, *table_name;
      const fastnorm_tensor *tensor, *table;
      Modulator* modulator;
    } all[] = {{"residual_gate", "residual_gate_table", args_.residual_gate,
                args_.residual_gate_table, &s.residual_gate},
               {"modulation_scale", "scale_table", args_.modulation_scale, args_.scale_table,
                &s.modulation_scale},
               {"modulation_shift", "shift_table", args_.modulation_shift, args_.shift_table,
                &s.modulation_shift}};
    for (const auto& m : all) {
      if (m.tensor == nullptr) continue;
      FASTNORM_TRY(check_own_dtype(m.name, *m.tensor, "x", d_.dtype, error));
      FASTNORM_TRY(args_.modulation_index != nullptr ? indexed(m.name, *m.tensor, m.modulator)
                                                     : spread(m.name, *m.tensor, m.modulator));
      if (m.table != nullptr) FASTNORM_TRY(table(m.table_name, *m.table, &m.modulator->table));
    }
    return FASTNORM_OK;
  }

  fastnorm_status modulation_index() {
    const fastnorm_tensor& t = *args_.modulation_index;
    const Dtype dtype = dtype_from(t.dtype);
    FASTNORM_TRY(check_index_dtype("modulation_index", t, error));
    FASTNORM_TRY(check_tensor("modulation_index", t, {dtype, kMaxRank, false}, device_, error));
    FASTNORM_TRY(check_statistic_shape("modulation_index", t, *args_.x, error));
    describe_rows(t, args_.x->ndim - 1, dtype_bytes(dtype), d_.outer_rank,
                  &d_.stages.modulation_index);
    return FASTNORM_OK;
  }

  // [m, n] or [m, 1]. An index selects its rows.
  fastnorm_status indexed(const char* name, const fastnorm_tensor& t, Modulator* m) {
    const Dtype dtype = dtype_from(t.dtype);
    FASTNORM_TRY(check_tensor(name, t, {dtype, kMaxRank, true}, device_, error));
    FASTNORM_REQUIRE(t.ndim == 2 && t.shape[0] >= 1 && (t.shape[1] == d_.n || t.shape[1] == 1),
                     FASTNORM_ERROR_SHAPE,
                     "%s.shape is %s; required: [m, %" PRId64
                     "] or [m, 1] with m >= 1, the rows that modulation_index takes",
                     name, shape_text(t.shape, t.ndim).c, d_.n);
    const int64_t bytes = dtype_bytes(dtype);
    m->rows.data = address_of(t);
    m->rows.dtype = dtype;
    m->single = t.shape[1] != d_.n;
    m->index_rows = t.shape[0];
    m->index_stride = t.strides != nullptr ? stride_bytes_of(t, 0, bytes) : t.shape[1] * bytes;
    return FASTNORM_OK;
  }

  // Broadcasts against x, including the last dimension.
  fastnorm_status spread(const char* name, const fastnorm_tensor& t, Modulator* m) {
    const Dtype dtype = dtype_from(t.dtype);
    const fastnorm_tensor& x = *args_.x;
    FASTNORM_TRY(check_tensor(name, t, {dtype, kMaxRank, true}, device_, error));
    FASTNORM_TRY(check_modulator_shape(name, t, x, error));
    const int64_t bytes = dtype_bytes(dtype), last = t.shape[t.ndim - 1];
    m->rows.data = address_of(t);
    m->rows.dtype = dtype;
    m->single = last != d_.n;
    auto compact = static_cast<uint64_t>(last * bytes);
    for (int32_t i = 0; i + 1 < t.ndim; ++i) {
      const int32_t dim = t.ndim - 2 - i;
      const int64_t stride =
          t.strides != nullptr ? stride_bytes_of(t, dim, bytes) : static_cast<int64_t>(compact);
      compact *= static_cast<uint64_t>(t.shape[dim]);
      if (t.shape[dim] != 1) m->rows.stride_bytes[i] = stride;
    }
    return FASTNORM_OK;
  }

  fastnorm_status table(const char* name, const fastnorm_tensor& t, WeightTensor* row) {
    FASTNORM_TRY(check_own_dtype(name, t, "x", d_.dtype, error));
    FASTNORM_TRY(check_tensor(name, t, {dtype_from(t.dtype), kMaxRank, true}, device_, error));
    bool fits = t.ndim >= 1 && t.shape[t.ndim - 1] == d_.n;
    for (int32_t i = 0; fits && i + 1 < t.ndim; ++i) fits = t.shape[i] == 1;
    FASTNORM_REQUIRE(fits, FASTNORM_ERROR_SHAPE,
                     "%s.shape is %s; required: [%" PRId64 "], or with leading extents of 1", name,
                     shape_text(t.shape, t.ndim).c, d_.n);
    row->data = address_of(t);
    row->dtype = dtype_from(t.dtype);
    return FASTNORM_OK;
  }

  fastnorm_status input(const char* name, const fastnorm_tensor* t, RowTensor* row) {
    return t == nullptr ? FASTNORM_OK
                        : check_stage_statistic(name, *t, 1, *args_.x, device_, d_, row, error);
  }

  const fastnorm_norm_args& args_;
  const CheckedDevice device_;
  NormDesc& d_;
  Error& error;
};

}  // namespace

fastnorm_status check_stage_scalars(const fastnorm_norm_args& args, NormDesc* desc, Error& error) {
  return StagesCheck(args, {}, desc, error).scalars();
}

fastnorm_status check_stage_tensors(const fastnorm_norm_args& args, CheckedDevice device,
                                    NormDesc* desc, Error& error) {
  return StagesCheck(args, device, desc, error).tensors();
}

fastnorm_status check_modulation_index(const NormDesc& d, Error& error) {
  const StagesDesc& s = d.stages;
  int64_t least = INT64_MAX;
  for (const Modulator* m : {&s.residual_gate, &s.modulation_scale, &s.modulation_shift}) {
    if (*m && m->index_rows < least) least = m->index_rows;
  }
  const RowTensor& t = s.modulation_index;
  int64_t digits[kMaxOuter] = {};
  for (int64_t r = 0; r < d.rows; ++r) {
    const std::byte* at = t.data;
    for (int i = 0; i < kMaxOuter; ++i) at += digits[i] * t.stride_bytes[i];
    int64_t index = 0;
    if (t.dtype == Dtype::kI64) {
      std::memcpy(&index, at, sizeof index);
    } else {
      int32_t narrow = 0;
      std::memcpy(&narrow, at, sizeof narrow);
      index = narrow;
    }
    FASTNORM_REQUIRE(index >= 0 && index < least, FASTNORM_ERROR_ARGUMENT,
                     "modulation_index of row %" PRId64 " is %" PRId64 "; required: 0 to %" PRId64
                     ", the rows of the modulators",
                     r, index, least - 1);
    for (int i = 0; i < kMaxOuter && ++digits[i] == d.outer[i]; ++i) digits[i] = 0;
  }
  return FASTNORM_OK;
}

fastnorm_status check_stage_statistic_shape(const char* name, const fastnorm_tensor& t,
                                            int32_t values, int64_t groups,
                                            const fastnorm_tensor& x, Error& error) {
  // After x.shape[:-1] come the groups and the values, if there are several of them.
  int64_t behind[2] = {};
  int32_t count = 0;
  if (groups > 1) behind[count++] = groups;
  if (values > 1) behind[count++] = values;
  const int32_t leading = x.ndim - 1;
  // A statistic may have a last 1.
  if (count == 0 && t.ndim == x.ndim) behind[count++] = 1;
  bool fits = t.ndim == leading + count;
  for (int32_t i = 0; fits && i < t.ndim; ++i)
    fits = t.shape[i] == (i < leading ? x.shape[i] : behind[i - leading]);
  FASTNORM_REQUIRE(
      fits, FASTNORM_ERROR_SHAPE,
      "%s.shape is %s; required: x.shape[:-1] + %s%s, for x of shape %s and %" PRId64 " groups",
      name, shape_text(t.shape, t.ndim).c, shape_text(behind, count).c,
      groups == 1 && values == 1 ? ", or without it" : "", shape_text(x.shape, x.ndim).c, groups);
  return FASTNORM_OK;
}

fastnorm_status check_modulator_shape(const char* name, const fastnorm_tensor& t,
                                      const fastnorm_tensor& x, Error& error) {
  bool fits = t.ndim >= 1 && t.ndim <= x.ndim;
  for (int32_t i = 1; fits && i <= t.ndim; ++i) {
    const int64_t extent = t.shape[t.ndim - i];
    fits = extent == 1 || extent == x.shape[x.ndim - i];
  }
  FASTNORM_REQUIRE(fits, FASTNORM_ERROR_SHAPE,
                   "%s.shape is %s; required: extents that are 1 or x's, counted from the right, "
                   "for x of shape %s",
                   name, shape_text(t.shape, t.ndim).c, shape_text(x.shape, x.ndim).c);
  return FASTNORM_OK;
}

fastnorm_status check_stage_statistic(const char* name, const fastnorm_tensor& t, int32_t values,
                                      const fastnorm_tensor& x, CheckedDevice device,
                                      const NormDesc& d, RowTensor* row, Error& error) {
  FASTNORM_TRY(check_typed(name, t, {Dtype::kF32, kMaxRank, false}, device, error));
  const int64_t groups = d.stages.groups;
  FASTNORM_TRY(check_stage_statistic_shape(name, t, values, groups, x, error));
  const int32_t leading = x.ndim - 1, count = t.ndim - leading;
  for (int32_t i = 0; t.strides != nullptr && d.rows != 0 && i < count; ++i) {
    const int64_t compact = i + 1 < count ? values : 1;
    FASTNORM_REQUIRE(
        t.strides[leading + i] == compact || t.shape[leading + i] == 1, FASTNORM_ERROR_LAYOUT,
        "%s.strides[%d] is %" PRId64 "; required: %" PRId64 ", the values of a row are contiguous",
        name, leading + i, t.strides[leading + i], compact);
  }
  describe_rows(t, leading, groups * values * 4, d.outer_rank, row);
  return FASTNORM_OK;
}

}  // namespace fastnorm
