// All numbers of GPU architectures. Needs no CUDA: every build can plan for every architecture.
#pragma once

#include "core/common/arch_spec.h"

namespace fastnorm {

extern const NormChoices kNormChoicesSm90, kNormChoicesDefault;
extern const NormBackwardChoices kNormBackwardChoicesSm90, kNormBackwardChoicesDefault;

namespace cuda {

// The architectures, in the order of the lists' columns.
enum ArchColumn : int { kColumn80, kColumn90, kColumn100, kColumn120, kColumnPtx, kArchCount };

// The kernels of calls with stages of each.
extern const StagesKernelList kStages80, kStages90, kStages100, kStages120, kStagesPtx;

constexpr ArchSpec make_arch(const char* name, ArchColumn column, int32_t capability,
                             int32_t max_cluster_blocks, const StagesKernelList& stages,
                             const NormChoices& choices = kNormChoicesDefault,
                             const NormBackwardChoices& backward = kNormBackwardChoicesDefault) {
  return {.name = name,
          .column = column,
          .capability = capability,
          .max_cluster_blocks = max_cluster_blocks,
          .bulk_prefetch = capability >= 90,
          .max_blocks = 0x7fffffff,
          .choices = &choices,
          .backward_choices = &backward,
          .stages = &stages};
}

inline constexpr ArchSpec kSm80 = make_arch("sm_80", kColumn80, 80, 1, kStages80);
inline constexpr ArchSpec kSm90 =
    make_arch("sm_90", kColumn90, 90, 8, kStages90, kNormChoicesSm90, kNormBackwardChoicesSm90);
inline constexpr ArchSpec kSm100 = make_arch("sm_100f", kColumn100, 100, 8, kStages100);
inline constexpr ArchSpec kSm120 = make_arch("sm_120f", kColumn120, 120, 8, kStages120);
// PTX for capability 9.0 and later. The GPU's driver compiles it when a kernel is first loaded.
inline constexpr ArchSpec kPtx = make_arch("ptx_90", kColumnPtx, 90, 8, kStagesPtx);

inline constexpr const ArchSpec* kArchs[kArchCount] = {&kSm80, &kSm90, &kSm100, &kSm120, &kPtx};

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

}  // namespace cuda
}  // namespace fastnorm
