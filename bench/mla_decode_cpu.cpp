// Times MLA decode on the CPU beside a loop that reads memory, and a copy.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "bench/call.h"
#include "bench/cpu.h"
#include "bench/families.h"
#include "bench/mla_decode.h"

namespace bench {
namespace {

constexpr int64_t kCeilingBytes = int64_t{256} << 20;  // more than the caches have
constexpr int64_t kCacheBytes = int64_t{1}
                                << 20;  // a cache of latents larger than this is called cold

using Words = uint64_t __attribute__((vector_size(64)));

uint64_t read(const char* data, int64_t bytes) {
  constexpr size_t kChains = 4;  // of additions, independent of each other
  Words sums[kChains] = {};
  for (int64_t i = 0; i + static_cast<int64_t>(sizeof sums) <= bytes;
       i += static_cast<int64_t>(sizeof sums)) {
    Words words[kChains];
    std::memcpy(words, data + i, sizeof words);
    for (size_t k = 0; k < kChains; ++k) sums[k] += words[k];
  }
  return (sums[0] + sums[1] + sums[2] + sums[3])[0];
}

MlaDecodeCeilings measure_ceilings(int threads, int replays) {
  const Memory from = allocate(kCeilingBytes), to = allocate(kCeilingBytes);
  std::memset(from.get(), 1, kCeilingBytes);
  std::memset(to.get(), 2, kCeilingBytes);
  std::vector<double> reads, copies;
  volatile uint64_t sink = 0;
  for (int pass = -1; pass < replays; ++pass) {  // the first pass warms up
    const double read_us = time_us([&] {
      on_threads(threads, kCeilingBytes, 4096,
                 [&](int64_t begin, int64_t end) { sink = read(from.get() + begin, end - begin); });
    });
    const double copy_us = time_us([&] {
      on_threads(threads, kCeilingBytes, 4096, [&](int64_t begin, int64_t end) {
        std::memcpy(to.get() + begin, from.get() + begin, static_cast<size_t>(end - begin));
      });
    });
    if (pass < 0) continue;
    reads.push_back(read_us);
    copies.push_back(copy_us);
  }
  constexpr double kGb = static_cast<double>(kCeilingBytes) / 1e3;
  return {kGb / median(reads), 2 * kGb / median(copies), 0};
}

MlaDecodeResult time_case(fastnorm_context* context, const MlaDecodeCase& c,
                          const Options& options) {
  const Memory query = allocate(c.query_bytes()), cache = allocate(c.cache_bytes()),
               extra = allocate(c.extra_topk == 0 ? 0 : c.cache_bytes()),
               o = allocate(c.output_bytes()), lse = allocate(c.rows() * 4);
  fill(query.get(), c.query_bytes(), c.dtype);
  const auto fill_cache = [&](char* rows) {
    fill(rows, c.cache_bytes(), c.format == 0 ? c.dtype : "bf16");
    if (c.format != 0) make_fp8_rows(rows, c, c.pages());
  };
  fill_cache(cache.get());
  if (c.extra_topk != 0) fill_cache(extra.get());
  std::vector<int32_t> table = mla_decode_table(c), lengths(c.lengths.begin(), c.lengths.end()),
                       indices = mla_decode_indices(c, c.topk, 1),
                       extra_indices = mla_decode_indices(c, c.extra_topk, 2);
  float scale = 1;
  const MlaDecodeCall call(
      c, FASTNORM_DEVICE_CPU,
      {query.get(), cache.get(), o.get(), lse.get(), lengths.data(), table.data(), indices.data(),
       extra_indices.data(), extra.get(), &scale});
  const fastnorm_info info = call.query(context);
  const Memory workspace = allocate(static_cast<int64_t>(info.workspace_bytes));
  std::vector<double> us;
  for (int pass = -1; pass < options.replays; ++pass) {
    const double taken = time_us([&] {
      call.run(context, info.workspace_bytes == 0 ? nullptr : workspace.get(), info.workspace_bytes,
               nullptr);
    });
    if (pass >= 0) us.push_back(taken);
  }
  MlaDecodeResult r;
  r.us = median(us);
  r.spread = spread(us);
  r.kernel = info.kernel;
  r.workspace_bytes = info.workspace_bytes;
  r.more["threads"] = options.threads;
  r.more["cold"] = c.cache_bytes() > kCacheBytes;
  return r;
}

}  // namespace

int bench_mla_decode_cpu(const FamilyCases& asked, const Options& options) {
  const auto cases = make_mla_decode_cases(asked.shapes, asked.dtypes);
  const CpuContext context(options.threads);
  nlohmann::json document = describe_cpu(options);
  return time_all_mla_decode(
      cases, measure_ceilings(options.threads, options.replays),
      [&](const MlaDecodeCase& c) { return time_case(context.get(), c, options); }, options.save,
      &document);
}

}  // namespace bench
