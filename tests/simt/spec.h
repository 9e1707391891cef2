// What planning knows of the machine: sm_100f's numbers, with the kernels that sm_90 alone has,
// too.
#pragma once

#include "cuda/arch.h"
#include "cuda/norm/list.h"

namespace fastnorm::cuda {

struct SimtSpec : ArchSpec {};

constexpr SimtSpec make_simt_spec(ArchSpec arch) {
  arch.measured = true;
  return {arch};
}

inline constexpr SimtSpec kSimt = make_simt_spec(kSm100);

// sm_90's kernels, and sm_100f's with accesses of 32 bytes.
constexpr ListColumns list_columns(const SimtSpec&) { return {kList90, kList100}; }

}  // namespace fastnorm::cuda
