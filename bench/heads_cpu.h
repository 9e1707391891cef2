// Times heads, or gradients of heads, on the CPU beside a loop that moves the same bytes.
//
// Cases that are larger than the caches rotate over distinct buffers; others stay in the cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/call.h"
#include "bench/cpu.h"
#include "bench/norm_heads.h"

namespace bench {

inline int64_t whole_pages(int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// `Calls` has calls of a case with memory of their own, and the loop beside them.
template <class Calls>
NormHeadsResult time_calls(fastnorm_context* context, const typename Calls::Case& c,
                           const Options& options) {
  constexpr int64_t kColdBytes = int64_t{512} << 20;
  constexpr int64_t kCacheBytes = int64_t{1} << 20;  // more than this moved is called cold
  const int64_t bytes = Calls::set_bytes(c);
  const bool cold = c.bytes_moved() > kCacheBytes;
  const auto sets = static_cast<int>(cold ? std::max<int64_t>(2, kColdBytes / bytes) : 1);
  const int calls = cold ? sets : calls_of_sample(bytes);
  Calls of(context, c, sets);
  const fastnorm_info info = of.query(context);

  std::vector<double> ours, ceiling;
  for (int pass = -1; pass < options.replays; ++pass) {  // the first pass warms up
    const double us = time_us([&] {
      for (int i = 0; i < calls; ++i) of.run(context, i);
    });
    const double copy_us = time_us([&] {
      on_threads(cold ? options.threads : 1, heads_of_case(c).tokens, 1,
                 [&](int64_t begin, int64_t end) {
                   for (int i = 0; i < calls; ++i) of.stream_tokens(i, begin, end, cold);
                 });
    });
    if (pass < 0) continue;
    ours.push_back(us / calls);
    ceiling.push_back(copy_us / calls);
  }
  NormHeadsResult r;
  r.us = median(ours);
  r.spread = spread(ours);
  r.ceiling_us = median(ceiling);
  r.ceiling = of.ceiling(cold);
  r.kernel = info.kernel;
  r.more["threads"] = options.threads;
  r.more["cold"] = cold;
  if (info.workspace_bytes != 0) r.more["workspace_bytes"] = info.workspace_bytes;
  return r;
}

template <class Calls>
int time_heads_on_cpu(const std::vector<typename Calls::Case>& cases, const Options& options) {
  using Case = typename Calls::Case;
  const CpuContext context(options.threads);
  nlohmann::json document = describe_cpu(options);
  return time_all_heads<Case>(
      cases, [&](const Case& c) { return time_calls<Calls>(context.get(), c, options); },
      options.save, &document);
}

}  // namespace bench
