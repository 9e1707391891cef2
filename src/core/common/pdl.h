// Programmatic dependent launch: which of its bits a call has. They have the same numbers in the
// flags of every family.
#pragma once

#include <cstdint>

#include "fastnorm/mla_decode.h"
#include "fastnorm/norm_backward.h"
#include "fastnorm/norm_heads.h"

namespace fastnorm {

inline constexpr uint32_t kPdlWait = FASTNORM_NORM_PDL_WAIT,
                          kPdlTrigger = FASTNORM_NORM_PDL_TRIGGER, kNoPdl = FASTNORM_NORM_NO_PDL;
static_assert(FASTNORM_NORM_BACKWARD_PDL_WAIT == kPdlWait &&
              FASTNORM_NORM_BACKWARD_PDL_TRIGGER == kPdlTrigger);
static_assert(uint32_t{FASTNORM_NORM_BACKWARD_NO_PDL} == kNoPdl &&
              uint32_t{FASTNORM_NORM_HEADS_NO_PDL} == kNoPdl &&
              uint32_t{FASTNORM_MLA_DECODE_NO_PDL} == kNoPdl);

// A call's flags with the bits that it has by default on a device, and without NO_PDL: kPdlWait
// says that its first kernel may start early, kPdlTrigger that the kernel behind its last one may.
constexpr uint32_t with_pdl(uint32_t flags, bool by_default) {
  const bool added = by_default && (flags & kNoPdl) == 0;
  return (flags & ~kNoPdl) | (added ? kPdlWait | kPdlTrigger : 0);
}

// The flags of a kernel that waits for other ranks. The next kernel of its stream, whose blocks
// wait where they have been placed, may take the room that another rank of the same GPU needs to
// arrive. So it starts early only where the caller's flags say so.
constexpr uint32_t with_pdl_of_peers(uint32_t flags, bool by_default) {
  return (with_pdl(flags, by_default) & ~kPdlTrigger) | (flags & kPdlTrigger);
}

}  // namespace fastnorm
