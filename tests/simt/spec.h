// What planning knows of the machine: sm_100f's facts, with the kernels and choices of sm_90.
#pragma once

#include "cuda/arch.h"
#include "cuda/norm/list.h"

namespace fastnorm::cuda {

struct SimtSpec : ArchSpec {};

constexpr SimtSpec make_simt_spec(ArchSpec arch) {
  arch.choices = &kNormChoicesSm90;
  arch.backward_choices = &kNormBackwardChoicesSm90;
  arch.held_heads = true;
  return {arch};
}

inline constexpr SimtSpec kSimt = make_simt_spec(kSm100);

// sm_90's kernels, and sm_100f's with accesses of 32 bytes.
constexpr ListColumns list_columns(const SimtSpec&) { return {kList90, kList100}; }

}  // namespace fastnorm::cuda
