// All numbers of GPU architectures. Needs no CUDA: every build can plan for every architecture.
#pragma once

#include "core/arch_spec.h"

namespace fastnorm {

extern const NormChoices kNormChoicesSm90, kNormChoicesDefault;
extern const NormBackwardChoices kNormBackwardChoicesSm90, kNormBackwardChoicesDefault;

namespace cuda {

// Kernels with stages: with forms that hold rows in registers, and without.
extern const StagesKernelList kStagesHeldList, kStagesGeneralList;

constexpr ArchSpec make_arch(const char* name, int32_t capability, int32_t max_cluster_blocks,
                             const NormChoices& choices = kNormChoicesDefault,
                             const NormBackwardChoices& backward = kNormBackwardChoicesDefault,
                             bool holds_rows = false) {
  return {.name = name,
          .capability = capability,
          .max_cluster_blocks = max_cluster_blocks,
          .bulk_prefetch = capability >= 90,
          .max_blocks = 0x7fffffff,
          .choices = &choices,
          .backward_choices = &backward,
          .holds_rows = holds_rows,
          .stages = holds_rows ? &kStagesHeldList : &kStagesGeneralList};
}

inline constexpr ArchSpec kSm80 = make_arch("sm_80", 80, 1);
inline constexpr ArchSpec kSm90 =
    make_arch("sm_90", 90, 8, kNormChoicesSm90, kNormBackwardChoicesSm90, true);
inline constexpr ArchSpec kSm100 = make_arch("sm_100f", 100, 8);
inline constexpr ArchSpec kSm120 = make_arch("sm_120f", 120, 8);
// PTX for capability 9.0 and later. The GPU's driver compiles it when a kernel is first loaded.
inline constexpr ArchSpec kPtx = make_arch("ptx_90", 90, 8);

inline constexpr const ArchSpec* kArchs[] = {&kSm80, &kSm90, &kSm100, &kSm120, &kPtx};

// The architecture whose kernels run on a device of `capability` (major * 10 + minor), among those
// that `built` has; nullptr if there is none. Binary code runs on later minor versions of its major
// version. An `f` target runs on its family: 10.0 and 10.3, or 12.0 and 12.1.
constexpr const ArchSpec* arch_for(int32_t capability, bool (*built)(const ArchSpec&)) {
  for (const ArchSpec* arch : kArchs) {
    if (capability / 10 == arch->capability / 10 && capability >= arch->capability && built(*arch))
      return arch;
  }
  return capability >= kPtx.capability && built(kPtx) ? &kPtx : nullptr;
}

// True if a kernel may start before the previous kernel of its stream has ended.
constexpr bool launches_early(const ArchSpec& arch) { return arch.capability >= 90; }

}  // namespace cuda
}  // namespace fastnorm
