// What planning knows of the machine: sm_100f's numbers, with the kernels that sm_90 alone has, too.
#pragma once

#include "cuda/arch.h"

namespace fastnorm::cuda {

constexpr ArchSpec with_measured(ArchSpec arch) {
  arch.measured = true;
  return arch;
}

inline constexpr ArchSpec kSimt = with_measured(kSm100);

}  // namespace fastnorm::cuda
