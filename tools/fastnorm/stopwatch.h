// Median times of a call and of a copy of the same bytes, on the CPU or a GPU.
#pragma once

#include <functional>
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

// GPU: graphs of all calls and of all copies, replayed one after the other, with the level-2 cache
// overwritten before each. CPU: passes over one set after the other; the copy is the faster of one
// with non-temporal stores and, in caches, memcpy, on as many threads.
Timing time_workload(const Machine& machine, const Workload& workload, int repeats, int threads);

// As a Workload, for calls of any kind: run(i) queues the one of set i. Kernels are loaded before.
struct TimedCalls {
  std::function<void(size_t)> run;
  std::vector<BufferSet> sets;
  size_t copy_bytes;
  bool cold;
};
Timing time_calls(const Machine& machine, const TimedCalls& calls, int repeats, int threads);

// What reading costs: GB/s of threads that add up the words of `bytes` bytes of host memory, the
// median of some passes.
double host_read_gb_per_s(const std::byte* data, size_t bytes, int repeats, int threads);

}  // namespace fastnorm::tool
