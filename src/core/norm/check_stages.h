// The stages' part of check_norm(): gate, activation, groups, statistics of several devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/common/check.h"
#include "core/common/schema.h"
#include "core/norm/desc.h"
#include "fastnorm/norm.h"

namespace fastnorm {

// All fields from here on belong to stages.
inline constexpr size_t kFirstStage = offsetof(fastnorm_norm_args, gate);

// True if a field of a stage is not zero.
FASTNORM_HOT bool has_stages(const fastnorm_norm_args& a) {
  constexpr uint32_t kStageFlags = FASTNORM_NORM_MODULATION_PLAIN_SCALE | FASTNORM_NORM_ALPHA;
  constexpr size_t kEnd = std::end(schema::Fields<fastnorm_norm_args>::kAll)[-1].end();
  constexpr size_t kWords = (kEnd - kFirstStage) / sizeof(uint64_t);
  static_assert(kFirstStage % sizeof(uint64_t) == 0 && kEnd % sizeof(uint64_t) == 0);
  const auto* const at = reinterpret_cast<const std::byte*>(&a) + kFirstStage;
  const auto word = [&](size_t i) __attribute__((always_inline)) {
    uint64_t bits;
    std::memcpy(&bits, at + i * sizeof bits, sizeof bits);
    return bits;
  };
  // No loop: compilers would join loads to wide ones, which wait for the caller's stores.
  return [&]<size_t... i>(std::index_sequence<i...>) __attribute__((always_inline)) {
    return ((static_cast<uint32_t>(a.flags) & kStageFlags) | ... | word(i)) != 0;
  }
  (std::make_index_sequence<kWords>());
}

// Checks the scalars, and which fields may be combined. Sets their part of desc->stages.
fastnorm_status check_stage_scalars(const fastnorm_norm_args& args, NormDesc* desc, Error& error);

// Checks groups and the tensors of a call. x is described already.
fastnorm_status check_stage_tensors(const fastnorm_norm_args& args, CheckedDevice device,
                                    NormDesc* desc, Error& error);

// Checks and describes `values` f32 for each group of each row.
fastnorm_status check_stage_statistic(const char* name, const fastnorm_tensor& t, int32_t values,
                                      const fastnorm_tensor& x, CheckedDevice device,
                                      const NormDesc& desc, RowTensor* row, Error& error);

// Its shape: x.shape[:-1], then the groups if there are several, then `values` if there are
// several.
fastnorm_status check_stage_statistic_shape(const char* name, const fastnorm_tensor& t,
                                            int32_t values, int64_t groups,
                                            const fastnorm_tensor& x, Error& error);

// A modulator without an index broadcasts against x, including the last dimension.
fastnorm_status check_modulator_shape(const char* name, const fastnorm_tensor& t,
                                      const fastnorm_tensor& x, Error& error);

// Checks the numbers in modulation_index, which must be readable from here.
fastnorm_status check_modulation_index(const NormDesc& desc, Error& error);

// Statistics that a call gives.
template <class Args>
fastnorm_status check_given_statistics(const Args& args, bool layer, Error& error) {
  FASTNORM_REQUIRE(
      !layer || (args.mean_in == nullptr) == (args.rstd_in == nullptr), FASTNORM_ERROR_ARGUMENT,
      "mean_in is %s and rstd_in is %s; required: both or neither, as kind is "
      "FASTNORM_NORM_LAYER (1)",
      args.mean_in == nullptr ? "NULL" : "given", args.rstd_in == nullptr ? "NULL" : "given");
  return FASTNORM_OK;
}

}  // namespace fastnorm
