// The arithmetic of peers: sums of rows in rank order, and statistics of several ranks. For callers
// in FpMode's scope.
#pragma once

#include <cstdint>

#include "core/peer/desc.h"

namespace fastnorm::cpu {

// Adds up `ranks` rows of n elements, in order. NaN becomes the quiet NaN.
void peer_sum_rounded(Dtype dtype, const uint32_t* const* rows, int32_t ranks, int64_t n, void* to);
void peer_sum_exact(Dtype dtype, const uint32_t* const* rows, int32_t ranks, int64_t n, float* to);

// to[i] += residual[i].
void peer_add(Dtype dtype, const void* residual, int64_t n, float* to);

// Merges the ranks' statistics of token `token`: by_rank[r] has call.words() of rank r.
void peer_merge(const PeerStatistics& call, const uint32_t* const* by_rank, int32_t ranks,
                int64_t token);

}  // namespace fastnorm::cpu
