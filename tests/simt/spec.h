// What planning knows of the machine: it is an sm_90.
#pragma once

#include "cuda/arch.h"
#include "cuda/norm/list.h"

namespace fastnorm::cuda {

inline constexpr ArchSpec kSimt = kSm90;

}  // namespace fastnorm::cuda
