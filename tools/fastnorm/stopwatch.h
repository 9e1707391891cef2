// Median times of a call and of a copy of the same bytes, on the CPU or a GPU.
#pragma once

#include <vector>

#include "machine.h"

namespace fastnorm::tool {

// One set of buffers of a call: the inputs side by side, then the outputs, so that one copy of
// `bytes` from `inputs` to `outputs` moves what the call moves.
struct BufferSet {
  std::byte* inputs;
  std::byte* outputs;
};

// What is timed: the calls, one for each set.
struct Workload {
  std::vector<fastnorm_norm_args> calls;
  std::vector<BufferSet> sets;
  size_t copy_bytes;  // in one direction
  bool cold;          // the sets together are larger than the caches
};

struct Timing {
  double us;       // median of one call
  double copy_us;  // median of one copy
  double spread;   // (slowest - fastest) / median of the call's samples
};

// GPU: graphs of all calls and of all copies, replayed in turn, with the level-2 cache overwritten
// before each. CPU: passes over all sets in turn; the copy is the faster of one with non-temporal
// stores and, in caches, memcpy, on as many threads.
Timing time_workload(const Machine& machine, const Workload& workload, int repeats, int threads);

}  // namespace fastnorm::tool
