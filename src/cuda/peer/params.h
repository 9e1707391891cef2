// What the kernels of peers get, by value. CUDA-free.
#pragma once

#include "core/peer/layout.h"
#include "cuda/norm/params.h"

namespace fastnorm::cuda {

// The state of one rank, on its device. Messages are numbered on over launches, which a graph may
// repeat.
struct PeerControl {
  uint32_t stopped;  // a fastnorm_peer_error, and the rank plus 1 in the bits from 8 on; 0 = no
  uint32_t calls;    // that ended well
  uint32_t spare[30];
  uint32_t number[kPeerChannels][kMostPeerRings];  // of the next message
};

// A call's messages. The protocol is that of core/peer/layout.h.
struct PeerExchange {
  char* buffer[kMaxRanks];  // as this rank reaches them
  PeerControl* control;
  uint32_t* report;  // host memory that gets `stopped`, too
  uint64_t wait_ns;
  uint64_t channel[kPeerChannels];  // bytes from the buffer's begin
  uint32_t message[kPeerChannels];  // bytes of a message
  int32_t rank, ranks;
  int32_t all_rings;                // of the buffer
  int32_t rings;                    // of this call
  uint32_t rows, columns, options;  // what all ranks agree on: they travel with each message
};

// PeerForm::kOneShot and kTwoShot. `norm`: of the call as if x were the sum.
struct PeerNormParams {
  NormCallParams norm;
  PeerExchange peer;
};

// PeerForm::kSum and kSumTwoShot. Of `norm`, x and residual with their indices count.
struct PeerSumParams {
  NormCallParams norm;
  PeerExchange peer;
  char* totals;       // compact rows: of T, or with `exact` f32
  char* minus_zeros;  // a row of T, or nullptr
  uint32_t exact;
  uint32_t total_align;  // bytes that all rows of totals allow: 16, 8, 4 or 2
};

// PeerForm::kStatistics.
struct PeerStatisticsParams {
  PeerExchange peer;
  const float* sums[2];
  float* mean[2];
  float* rstd[2];
  float inverse[2];           // 1 / all columns of a part
  float share[2][kMaxRanks];  // LAYER: n * r / (r + 1)
  float next[kMaxRanks];      // LAYER: 1 / (r + 1)
  float eps;
  int32_t tokens, parts;
  uint32_t layer;
};

// A part of PeerForm::kSharded. Strides are in bytes; vectors have 16.
struct PeerShardedPart {
  const char* x;
  char* y;
  const char *weight, *bias;
  int64_t x_token, x_head, y_token, y_head, weight_head, bias_head;
  Divisor by_head;      // vectors of a head: of no use where that is 1
  int32_t vectors;      // of a token; 0: the part is absent
  float inverse_count;  // LAYER: 1 / columns of this rank
  OperandType weight_type, bias_type;
};

// PeerForm::kSharded. Of `statistics`, sums, mean and rstd are null.
struct PeerShardedParams {
  PeerStatisticsParams statistics;
  PeerShardedPart part[2];
  float weight_offset;
  uint32_t bits;  // NormBits: kRoundNormalized and those of programmatic dependent launch
};
static_assert(sizeof(PeerShardedParams) <= 4096);

}  // namespace fastnorm::cuda
