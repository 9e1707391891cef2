// The part of check_norm() that stages need: gate, activation, groups, statistics of several devices.
#pragma once

#include <bit>

#include "core/check.h"
#include "core/norm_desc.h"
#include "fastnorm/norm.h"

namespace fastnorm {

// True if a field of a stage is not what zeroed memory holds.
FASTNORM_HOT bool has_stages(const fastnorm_norm_args& a) {
  const auto bits = [](const fastnorm_tensor* t) { return reinterpret_cast<uintptr_t>(t); };
  const auto fields = static_cast<uint32_t>(number(a.gate_act) | number(a.gate_position) |
                                            number(a.gate_source) | number(a.activation));
  const auto floats = [](float one, float other, float third) {
    return (std::bit_cast<uint32_t>(one) | std::bit_cast<uint32_t>(other) |
            std::bit_cast<uint32_t>(third)) != 0;
  };
  const auto branch =
      static_cast<uint32_t>(a.branch_norm | number(a.branch_kind) | number(a.branch_rounding) |
                            a.branch_rounded | number(a.sum_rounding));
  if (floats(a.branch_eps, a.branch_weight_offset, a.alpha)) return true;
  const auto modulation =
      static_cast<uint32_t>(number(a.residual_gate_act) | number(a.modulation_rounding)) |
      (static_cast<uint32_t>(a.flags) & FASTNORM_NORM_MODULATION_PLAIN_SCALE);
  if ((bits(a.residual_gate) | bits(a.residual_gate_table) | bits(a.modulation_scale) |
       bits(a.scale_table) | bits(a.modulation_shift) | bits(a.shift_table) |
       bits(a.modulation_index) | modulation) != 0) {
    return true;
  }
  return (bits(a.branch_weight) | bits(a.branch_bias) | bits(a.branch_rstd) | bits(a.sum_scale) |
          branch) != 0 ||
         (bits(a.gate) | bits(a.sumsq) | bits(a.mean_in) | bits(a.rstd_in) | fields |
          static_cast<uint64_t>(a.group_size)) != 0;
}

// Checks the scalars, and which fields go with each other; sets what desc->stages has of them.
fastnorm_status check_stage_scalars(const fastnorm_norm_args& args, NormDesc* desc, Error& error);

// Checks groups and the tensors of a call whose x is described already.
fastnorm_status check_stage_tensors(const fastnorm_norm_args& args, CheckedDevice device,
                                    NormDesc* desc, Error& error);

// Checks and describes `values` f32 for each group of each row.
fastnorm_status check_stage_statistic(const char* name, const fastnorm_tensor& t, int32_t values,
                                      const fastnorm_tensor& x, CheckedDevice device,
                                      const NormDesc& desc, RowTensor* row, Error& error);

// Its shape: x.shape[:-1], then the groups where there are several, then `values` where these are.
fastnorm_status check_stage_statistic_shape(const char* name, const fastnorm_tensor& t,
                                            int32_t values, int64_t groups,
                                            const fastnorm_tensor& x, Error& error);

// Of a modulator without an index: broadcasts against x, the last dimension too.
fastnorm_status check_modulator_shape(const char* name, const fastnorm_tensor& t,
                                      const fastnorm_tensor& x, Error& error);

// Checks the numbers in modulation_index, which must be readable from here.
fastnorm_status check_modulation_index(const NormDesc& desc, Error& error);

}  // namespace fastnorm
