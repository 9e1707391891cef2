// Times MLA decode on a GPU beside the best plain read and copy, and a bf16 product of matrices, of
// the same run.
//
// A graph holds calls over distinct caches, queries and outputs, at least 600 MB in all; where 64
// calls do not add up to that, 256 MB are written before each replay, outside the timed span. The
// plan is made before and reused, as by the layers of a model; what it adds to a call is told
// beside.
#include <cstdio>

#include "bench/families.h"
#include "bench/gpu.h"
#include "bench/mla_decode.h"

namespace bench {
namespace {

constexpr int64_t kAlignment = 1024;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The best of `kinds` on whole gigabytes, in GB/s; launch(stream) moves `bytes` bytes.
template <typename Launch>
double best_rate(Gpu& gpu, const std::vector<Stream>& kinds, double bytes, int replays,
                 Launch launch_one) {
  double best = 0;
  for (const Stream& s : kinds) {
    Timed t(gpu.capture([&] { launch_one(s); }));
    gpu.replay(t.graph, false);
    for (int i = 0; i < replays; ++i) t.us.push_back(gpu.replay(t.graph, false));
    best = std::max(best, bytes / median(t.us) / 1e3);
  }
  return best;
}

MlaDecodeCeilings measure_ceilings(Gpu& gpu, int replays) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  constexpr int kMatrix = 8192;
  constexpr int64_t kMatrixBytes = int64_t{2} * kMatrix * kMatrix;
  char* arena = gpu.arena(2 * kBytes + 16, "bf16");
  char* const to = arena + kBytes;
  MlaDecodeCeilings ceilings;
  ceilings.read_gb_per_s = best_rate(gpu, read_streams(), kBytes, replays, [&](const Stream& s) {
    launch_read(s, arena, kBytes, to + kBytes, gpu.queue());
  });
  Traffic copy = {arena, nullptr, to, nullptr, kBytes};
  ceilings.copy_gb_per_s = best_rate(gpu, streams(1), 2.0 * kBytes, replays,
                                     [&](const Stream& s) { launch(s, copy, gpu.queue()); });
  arena = gpu.arena(2 * kBytes + 16, "bf16");
  const Matmul product =
      open_matmul(arena, arena + kMatrixBytes, arena + 2 * kMatrixBytes, kMatrix);
  if (product) {
    product(gpu.queue());  // cuBLAS takes its memory
    Timed t(gpu.capture([&] { product(gpu.queue()); }));
    for (int i = -2; i < replays; ++i) {
      const double us = gpu.replay(t.graph, false);
      if (i >= 0) t.us.push_back(us);
    }
    ceilings.matmul_tflop_per_s = 2.0 * kMatrix * kMatrix * kMatrix / median(t.us) / 1e6;
  }
  return ceilings;
}

// Where the tensors of a case's calls lie in one piece of memory: what all calls share, then each
// call's own.
struct Layout {
  Layout(const MlaDecodeCase& c, size_t table_entries, uint64_t workspace_bytes)
      : lengths(aligned(c.requests() * 4)),
        table(aligned(static_cast<int64_t>(table_entries) * 4)),
        indices(aligned(c.tokens() * c.topk * 4)),
        extra_indices(aligned(c.tokens() * c.extra_topk * 4)),
        scale(aligned(4)),
        workspace(aligned(static_cast<int64_t>(workspace_bytes))),
        query(aligned(c.query_bytes())),
        cache(aligned(c.cache_bytes())),
        extra(c.extra_topk == 0 ? 0 : cache),
        o(aligned(c.output_bytes())),
        lse(aligned(c.rows() * 4)) {}

  int64_t call_bytes() const { return query + cache + extra + o + lse; }
  int64_t shared_bytes() const { return lengths + table + indices + extra_indices + scale; }
  int64_t bytes(int64_t calls) const { return shared_bytes() + workspace + calls * call_bytes(); }
  char* workspace_in(char* memory) const { return memory + shared_bytes(); }
  MlaDecodeBuffers at(char* memory, int64_t i) const {
    char* const own = memory + shared_bytes() + workspace + i * call_bytes();
    char* const listed = memory + lengths + table;
    return {own,
            own + query,
            own + query + cache + extra,
            own + query + cache + extra + o,
            reinterpret_cast<int32_t*>(memory),
            reinterpret_cast<int32_t*>(memory + lengths),
            reinterpret_cast<int32_t*>(listed),
            reinterpret_cast<int32_t*>(listed + indices),
            own + query + cache,
            reinterpret_cast<float*>(listed + indices + extra_indices)};
  }

  int64_t lengths, table, indices, extra_indices, scale, workspace, query, cache, extra, o, lse;
};

// Makes the caches of all calls FP8 rows: a few pages, made here, again and again.
void fill_fp8_caches(Gpu& gpu, const MlaDecodeCase& c, const Layout& layout, char* memory,
                     int calls) {
  constexpr int64_t kMost = 8 << 20;
  const int64_t page = c.page * c.row_bytes();
  const int64_t made = std::clamp<int64_t>(kMost / page, 1, c.pages());
  std::vector<char> pages(static_cast<size_t>(made * page));
  const MlaDecodeBuffers first = layout.at(memory, 0);
  const auto size = static_cast<int64_t>(pages.size());
  BENCH_CUDA(cudaMemcpyAsync(pages.data(), first.cache, pages.size(), cudaMemcpyDeviceToHost,
                             gpu.queue()));
  BENCH_CUDA(cudaStreamSynchronize(gpu.queue()));
  make_fp8_rows(pages.data(), c, made);
  BENCH_CUDA(cudaMemcpyAsync(first.cache, pages.data(), pages.size(), cudaMemcpyHostToDevice,
                             gpu.queue()));
  for (int i = 0; i < calls; ++i) {
    const MlaDecodeBuffers own = layout.at(memory, i);
    for (char* const cache : {own.cache, own.extra}) {
      if (cache == own.extra && layout.extra == 0) continue;
      for (int64_t at = cache == first.cache ? size : 0; at < c.cache_bytes(); at += size) {
        const auto left = static_cast<size_t>(std::min(size, c.cache_bytes() - at));
        BENCH_CUDA(
            cudaMemcpyAsync(cache + at, first.cache, left, cudaMemcpyDeviceToDevice, gpu.queue()));
      }
    }
  }
  BENCH_CUDA(cudaStreamSynchronize(gpu.queue()));
}

MlaDecodeResult time_case(Gpu& gpu, const MlaDecodeCase& c, const Options& options) {
  const std::vector<int32_t> table = mla_decode_table(c),
                             lengths(c.lengths.begin(), c.lengths.end());
  // The query needs addresses that are aligned, no memory.
  char* const nowhere = reinterpret_cast<char*>(uintptr_t{1} << 40);
  const fastnorm_info info =
      MlaDecodeCall(c, FASTNORM_DEVICE_CUDA, Layout(c, table.size(), 0).at(nowhere, 0))
          .query(gpu.context());
  const Layout layout(c, table.size(), info.workspace_bytes);
  const int calls =
      static_cast<int>(std::clamp<int64_t>(kColdBytes / layout.call_bytes() + 1, 2, kMostCalls));
  const bool flush = calls * layout.call_bytes() < kColdBytes;
  char* const memory = gpu.arena(layout.bytes(calls), c.dtype);
  const MlaDecodeBuffers first = layout.at(memory, 0);
  const auto upload = [&](void* to, const auto& from) {
    BENCH_CUDA(
        cudaMemcpyAsync(to, from.data(), from.size() * 4, cudaMemcpyHostToDevice, gpu.queue()));
    BENCH_CUDA(cudaStreamSynchronize(gpu.queue()));
  };
  upload(first.lengths, lengths);
  upload(first.table, table);
  upload(first.indices, mla_decode_indices(c, c.topk, 1));
  upload(first.extra_indices, mla_decode_indices(c, c.extra_topk, 2));
  upload(first.scale, std::vector<float>{1.0f});
  if (c.format != 0) fill_fp8_caches(gpu, c, layout, memory, calls);
  MlaDecodeCall call(c, FASTNORM_DEVICE_CUDA, first);
  call.prepare(gpu.context());
  const auto captured = [&](bool reuse, bool pdl = false) {
    gpu.set_pdl(pdl);
    call.reuse_plan(reuse);
    return Timed(gpu.capture([&] {
      for (int i = 0; i < calls; ++i) {
        call.set(layout.at(memory, i));
        call.run(gpu.context(), layout.workspace_in(memory), info.workspace_bytes, gpu.queue());
      }
    }));
  };
  Timed planned = captured(false), reused = captured(true);
  gpu.replay(planned.graph, flush);  // makes the plan
  gpu.replay(reused.graph, flush);
  std::vector<Timed> early;  // with dependent launch
  if (options.pdl) {
    early.push_back(captured(true, true));
    gpu.replay(early[0].graph, flush);
  }
  gpu.set_pdl(false);
  for (int i = 0; i < options.replays; ++i) {
    reused.us.push_back(gpu.replay(reused.graph, flush));
    planned.us.push_back(gpu.replay(planned.graph, flush));
    for (Timed& t : early) t.us.push_back(gpu.replay(t.graph, flush));
  }
  MlaDecodeResult r;
  r.us = median(reused.us) / calls;
  r.spread = reused.spread();
  r.plan_us = std::max(0.0, median(planned.us) / calls - r.us);
  r.kernel = info.kernel;
  r.workspace_bytes = info.workspace_bytes;
  r.more["calls_per_graph"] = calls;
  r.more["flushed"] = flush;
  r.more["launches"] = info.launches;
  if (options.pdl) r.more["pdl_us"] = median(early[0].us) / calls;
  return r;
}

}  // namespace

int bench_mla_decode_cuda(int id, const FamilyCases& asked, const Options& options) {
  const auto cases = make_mla_decode_cases(asked.shapes, asked.dtypes);
  Gpu gpu(id);
  nlohmann::json document = describe_gpu(gpu, options);
  return time_all_mla_decode(
      cases, measure_ceilings(gpu, options.replays),
      [&](const MlaDecodeCase& c) { return time_case(gpu, c, options); }, options.save, &document);
}

}  // namespace bench
