// The facts of a GPU architecture. Kernels are compiled with this header, so it names the families'
// lists and does not include them.
#pragma once

#include <cstdint>

namespace fastnorm {

struct NormBackwardChoices;
struct NormChoices;
struct StagesKernelList;

// What planning knows of a GPU architecture. cuda/arch.h has the values.
struct ArchSpec {
  const char* name;            // "sm_90"
  int32_t column;              // its number in lists with a column for each architecture
  int32_t capability;          // least compute capability it runs on, major * 10 + minor
  int32_t max_cluster_blocks;  // of its kernels' clusters, 1 = none; a device may schedule fewer
  bool bulk_prefetch;          // has an instruction that brings many bytes into L2
  uint64_t max_blocks;         // of a grid
  const NormChoices* choices;  // which kernel a call of the forward family runs on
  const NormBackwardChoices* backward_choices;  // of norm_backward
  const StagesKernelList* stages;               // the kernels of norm calls with stages

  constexpr bool operator==(const ArchSpec&) const = default;

  // True if a kernel may start before the previous kernel of its stream has ended.
  constexpr bool launches_early() const { return capability >= 90; }
};

}  // namespace fastnorm
