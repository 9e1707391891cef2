// A peer's options in canonical form, and the calls that its link carries out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/common/dtype.h"
#include "core/peer/rows.h"
#include "fastnorm/peer.h"

namespace fastnorm {

inline constexpr int kMaxRanks = FASTNORM_PEER_MAX_RANKS;
inline constexpr int32_t kMostPeerRings = 256;

struct NormDesc;
struct NormHeadsDesc;
struct NormPlan;
struct PeerPlan;

struct PeerDesc {
  int32_t rank = 0;
  int32_t ranks = 2;
  Dtype dtype = Dtype::kF32;
  fastnorm_peer_algorithm algorithm = FASTNORM_PEER_AUTO;
  int64_t max_columns = 1;
  int64_t one_shot_bytes = 0;  // 0 = by the number of ranks
  int64_t wait_ns = 1;
  int32_t rings = 1;
};

// Adds up the rows of all ranks. A row of `totals` is compact: rounded sums of the peer's dtype, or
// with `exact` f32 sums to which `residual`, where it has data, is added.
struct PeerSum {
  int64_t rows;
  int64_t columns;
  PeerRows x;
  bool exact;
  PeerRows residual;
  std::byte* totals;
  std::byte* minus_zeros;  // with `exact`: a row of T that becomes -0; else nullptr
  uint32_t options;        // a number of all else that the ranks must agree on
  // GPUs only:
  const NormDesc* norm;  // the call as if x were the sum
  const PeerPlan* plan;
};

// Adds up the rows of all ranks and normalises them, in one kernel.
struct PeerNorm {
  const NormDesc* norm;
  const NormPlan* norm_plan;
  const PeerPlan* plan;
  uint32_t options;  // as in PeerSum
};

// Merges the statistics of one or two parts. RMS: sums [tokens], of squares. LAYER: sums [tokens,
// 2], a mean and the sum of squares about it.
struct PeerStatistics {
  int64_t tokens;
  int32_t parts;
  bool layer;
  float eps;
  int64_t columns[2];    // of this rank
  const float* sums[2];  // of this rank
  float* mean[2];        // LAYER: [tokens]
  float* rstd[2];        // [tokens]
  uint32_t options;      // as in PeerSum
  uint32_t pdl;          // kPdlWait and kPdlTrigger
  const PeerPlan* plan;  // GPUs only

  int32_t words() const { return parts * (layer ? 2 : 1); }
};

// Sums, merges and normalises in one kernel.
struct PeerShardedNorm {
  const NormHeadsDesc* apply;        // makes y; its statistics are not read
  const PeerStatistics* statistics;  // what is merged; sums, mean and rstd stay in the kernel
  uint32_t flags;                    // fastnorm_norm_flags, as with_pdl_of_peers() has them
  const PeerPlan* plan;
};

}  // namespace fastnorm
