// Times heads on the CPU beside a loop that moves the same bytes.
//
// Cases that are larger than the caches rotate over distinct buffers; others stay in the cache.
#include <cstdio>
#include <cstring>

#include "bench/call.h"
#include "bench/cpu.h"
#include "bench/norm_heads.h"

namespace bench {
namespace {

constexpr int64_t kColdBytes = int64_t{512} << 20;
constexpr int64_t kCacheBytes = int64_t{1} << 20;  // more than this moved is called cold

int64_t whole_pages(int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// Memory of one call: buffer, cache, and where the loop beside it writes.
struct Set {
  char *x, *cache, *spare;
};

// Tokens [begin, end) of what the loop beside a call moves: rows in place where the call works so.
void copy_tokens(const NormHeadsCase& c, const Set& set, int64_t begin, int64_t end, bool cold) {
  if (!c.in_place()) {
    const int64_t bytes = c.stream_bytes(), token = bytes / c.tokens;
    const int64_t stop = end == c.tokens ? bytes : end * token;
    if (cold)
      return stream_copy(set.spare + begin * token, set.x + begin * token, stop - begin * token,
                         true);
    std::memcpy(set.spare + begin * token, set.x + begin * token,
                static_cast<size_t>(stop - begin * token));
    return;
  }
  for (int64_t t = begin; t < end; ++t) {
    char* row = set.x + t * c.token_bytes();
    stream_copy(row, row, c.read_bytes(), false);
  }
}

NormHeadsResult time_heads(fastnorm_context* context, const NormHeadsCase& c,
                           const Options& options) {
  const int64_t x = whole_pages(std::max(c.buffer_bytes(), c.stream_bytes())),
                cache = whole_pages(c.cache_bytes()),
                spare = c.in_place() ? 0 : whole_pages(c.stream_bytes()), bytes = x + cache + spare;
  const bool cold = c.bytes_moved() > kCacheBytes;
  const auto sets = static_cast<int>(cold ? std::max<int64_t>(2, kColdBytes / bytes) : 1);
  // Small cases take many calls to a sample, so that the clock's own cost is nothing.
  const auto calls = static_cast<int>(
      cold ? sets : std::max<int64_t>(1, (int64_t{64} << 20) / std::max<int64_t>(bytes, 1)));
  const Memory memory = allocate(sets * bytes);
  fill(memory.get(), sets * bytes, c.dtype);
  NormHeadsTables tables(c);
  const auto at = [&](int i) {
    char* base = memory.get() + i % sets * bytes;
    return Set{base, base + x, base + x + cache};
  };
  const auto buffers = [&](int i) {
    return NormHeadsBuffers{
        at(i).x,           at(i).cache,         tables.weight.data(),    tables.cos.data(),
        tables.sin.data(), tables.scale.data(), tables.positions.data(), tables.slots.data()};
  };
  NormHeadsCall call(c, FASTNORM_DEVICE_CPU, buffers(0));
  const fastnorm_info info = call.query(context);

  std::vector<double> ours, ceiling;
  for (int pass = -1; pass < options.replays; ++pass) {  // the first pass warms up
    const double us = time_us([&] {
      for (int i = 0; i < calls; ++i) {
        call.set(buffers(i));
        call.run(context, nullptr);
      }
    });
    const double copy_us = time_us([&] {
      on_threads(cold ? options.threads : 1, c.tokens, 1, [&](int64_t begin, int64_t end) {
        for (int i = 0; i < calls; ++i) copy_tokens(c, at(i), begin, end, cold);
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
  r.ceiling = c.in_place() ? "rows in place" : cold ? "non-temporal copy" : "memcpy in cache";
  r.kernel = info.kernel;
  r.more["threads"] = options.threads;
  r.more["cold"] = cold;
  return r;
}

}  // namespace

int bench_norm_heads_cpu(const std::vector<NormHeadsCase>& cases, const Options& options) {
  const CpuContext context(options.threads);
  nlohmann::json document = describe_cpu(options);
  return time_all_norm_heads(
      cases, [&](const NormHeadsCase& c) { return time_heads(context.get(), c, options); },
      options.save, &document);
}

}  // namespace bench
