// The kernels of calls with stages: one for each dtype and statistic. Each supports all stages.
#pragma once

#include <array>

#include "core/norm_key.h"

namespace fastnorm {

inline constexpr int kStagesKernels = 6;

constexpr int stages_kernel(Dtype dtype, Stat stat) {
  return static_cast<int>(dtype) * 2 + static_cast<int>(stat);
}

// In the order of stages_kernel(): "bf16 rms stages".
constexpr std::array<NormEntry, kStagesKernels> make_stages_table() {
  std::array<NormEntry, kStagesKernels> table{};
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    for (const Stat stat : {Stat::kRms, Stat::kLayer}) {
      NormEntry& entry = table[static_cast<size_t>(stages_kernel(dtype, stat))];
      entry.key = {dtype, Source::kAdd, stat, Affine::kAny, Sink::kQuant, Access::kAny};
      int length = 0;
      for (const char* text : {dtype_name(dtype), " ", name_of(stat), " stages"}) {
        while (*text != '\0') entry.name[length++] = *text++;
      }
    }
  }
  return table;
}

inline constexpr std::array<NormEntry, kStagesKernels> kStagesTable = make_stages_table();

}  // namespace fastnorm
