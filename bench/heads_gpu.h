// Times heads, or gradients of heads, on a GPU beside the best plain stream of the same bytes, by
// the protocol of cuda.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bench/gpu.h"
#include "bench/norm_heads.h"

namespace bench {

// Queries need addresses that are aligned, no memory.
inline char* const kNowhere = reinterpret_cast<char*>(uintptr_t{1} << 20);

inline int64_t aligned(int64_t bytes) { return (bytes + 1023) / 1024 * 1024; }

template <typename T>
int64_t size_of(const std::vector<T>& values) {
  return static_cast<int64_t>(values.size() * sizeof(T));
}

template <typename T>
void upload(void* to, const std::vector<T>& from, cudaStream_t queue) {
  BENCH_CUDA(cudaMemcpyAsync(to, from.data(), static_cast<size_t>(size_of(from)),
                             cudaMemcpyHostToDevice, queue));
}

// Pieces of memory, one behind the other.
struct Cursor {
  char* take(int64_t bytes) {
    p += aligned(bytes);
    return p - aligned(bytes);
  }
  char* p;
};

// `Calls` has calls of a case on a GPU, and the streams beside them.
template <class Calls>
NormHeadsResult time_calls(Gpu& gpu, const typename Calls::Case& c, const Options& options) {
  const int64_t footprint = Calls::footprint(c);
  const int calls =
      static_cast<int>(std::clamp<int64_t>(kColdBytes / footprint + 1, 2, kMostCalls));
  const bool flush = calls * footprint < kColdBytes;
  Calls of(gpu, c, calls);
  const fastnorm_info info = of.call().query(gpu.context());

  Ceilings ceilings(gpu, of.kinds(), calls, flush, [&](int i) { return of.traffic(i); });
  of.call().prepare(gpu.context());
  std::vector<Timed> all;  // without and, where it is wanted, with dependent launch
  for (const bool pdl : {false, true}) {
    if (pdl && !options.pdl) continue;
    gpu.set_pdl(pdl);
    all.emplace_back(gpu.capture([&] {
      for (int i = 0; i < calls; ++i) of.run(gpu, i);
    }));
    gpu.replay(all.back().graph, flush);
  }
  gpu.set_pdl(false);
  Timed& ours = all.front();

  for (int i = 0; i < options.replays; ++i) {
    for (Timed& t : all) t.us.push_back(gpu.replay(t.graph, flush));
    ceilings.replay();
  }
  const auto& [stream, stream_times] = ceilings.best();

  NormHeadsResult r;
  r.us = median(ours.us) / calls;
  r.spread = ours.spread();
  if (options.pdl) r.pdl_us = median(all.back().us) / calls;
  r.ceiling_us = median(stream_times.us) / calls;
  r.ceiling = stream.name;
  r.kernel = info.kernel;
  r.more["calls_per_graph"] = calls;
  r.more["flushed"] = flush;
  r.more["ceiling_spread"] = stream_times.spread();
  r.more["launches"] = info.launches;
  if (info.workspace_bytes != 0) r.more["workspace_bytes"] = info.workspace_bytes;
  return r;
}

template <class Calls>
int time_heads_on_gpu(int id, const std::vector<typename Calls::Case>& cases,
                      const Options& options) {
  using Case = typename Calls::Case;
  Gpu gpu(id);
  nlohmann::json document = describe_gpu(gpu, options);
  return time_all_heads<Case>(
      cases, [&](const Case& c) { return time_calls<Calls>(gpu, c, options); }, options.save,
      &document);
}

}  // namespace bench
