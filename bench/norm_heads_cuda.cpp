// Times heads on a GPU beside the best plain stream of the same bytes, by the protocol of cuda.cpp.
#include <algorithm>
#include <cstdio>

#include "bench/gpu.h"
#include "bench/norm_heads.h"

namespace bench {
namespace {

int64_t aligned(int64_t bytes) { return (bytes + 1023) / 1024 * 1024; }

// Where the tensors of a case's calls lie in one piece of memory: what all calls share, then each
// call's buffer, caches, and where the stream beside it writes.
class HeadsLayout {
 public:
  HeadsLayout(const NormHeadsCase& c, const NormHeadsTables& tables)
      : tables_(tables),
        x_(aligned(std::max(c.buffer_bytes(), c.stream_bytes()))),
        cache_(aligned(c.cache_bytes())),
        spare_(c.in_place() ? 0 : aligned(c.stream_bytes())) {}

  int64_t bytes(int64_t calls) const { return shared_bytes() + calls * (x_ + cache_ + spare_); }

  NormHeadsBuffers at(char* memory, int64_t call) const {
    char* p = memory;
    const auto take = [&](int64_t bytes) {
      p += aligned(bytes);
      return p - aligned(bytes);
    };
    NormHeadsBuffers b = {};
    b.weight = take(size_of(tables_.weight));
    b.cos = reinterpret_cast<float*>(take(size_of(tables_.cos)));
    b.sin = reinterpret_cast<float*>(take(size_of(tables_.sin)));
    b.scale = reinterpret_cast<float*>(take(size_of(tables_.scale)));
    b.positions = reinterpret_cast<int32_t*>(take(size_of(tables_.positions)));
    b.slots = reinterpret_cast<int32_t*>(take(size_of(tables_.slots)));
    p += call * (x_ + cache_ + spare_);
    b.x = take(x_);
    b.cache = take(cache_);
    return b;
  }
  char* spare(char* memory, int64_t call) const { return at(memory, call).cache + cache_; }

  void upload(char* memory, cudaStream_t queue) const {
    const NormHeadsBuffers b = at(memory, 0);
    const auto put = [&](void* to, const auto& from) {
      BENCH_CUDA(cudaMemcpyAsync(to, from.data(), static_cast<size_t>(size_of(from)),
                                 cudaMemcpyHostToDevice, queue));
    };
    put(b.weight, tables_.weight);
    put(b.cos, tables_.cos), put(b.sin, tables_.sin), put(b.scale, tables_.scale);
    put(b.positions, tables_.positions), put(b.slots, tables_.slots);
  }

 private:
  template <typename T>
  static int64_t size_of(const std::vector<T>& values) {
    return static_cast<int64_t>(values.size() * sizeof(T));
  }
  int64_t shared_bytes() const {
    return aligned(size_of(tables_.weight)) + aligned(size_of(tables_.cos)) +
           aligned(size_of(tables_.sin)) + aligned(size_of(tables_.scale)) +
           aligned(size_of(tables_.positions)) + aligned(size_of(tables_.slots));
  }

  const NormHeadsTables& tables_;
  int64_t x_, cache_, spare_;
};

// In place: the rows that the call changes. Else a copy of as many bytes in all.
Traffic traffic_of(const NormHeadsCase& c, const NormHeadsBuffers& b, char* spare) {
  Traffic t = {b.x, nullptr, spare, nullptr, c.stream_bytes()};
  if (c.in_place()) {
    t.c = b.x;
    t.bytes = c.tokens * c.read_bytes();
    t.row_bytes = c.read_bytes();
    t.stride_bytes = c.token_bytes();
  }
  return t;
}

NormHeadsResult time_heads(Gpu& gpu, const NormHeadsCase& c, const Options& options) {
  const NormHeadsTables tables(c);
  const HeadsLayout layout(c, tables);
  const int64_t footprint = c.in_place() ? c.bytes_moved() / 2 : c.bytes_moved();
  const int calls =
      static_cast<int>(std::clamp<int64_t>(kColdBytes / footprint + 1, 2, kMostCalls));
  const bool flush = calls * footprint < kColdBytes;
  // A device without kernels says so before memory is taken.
  NormHeadsCall call(c, FASTNORM_DEVICE_CUDA, layout.at(reinterpret_cast<char*>(1 << 20), 0));
  const fastnorm_info info = call.query(gpu.context());
  char* arena = gpu.arena(layout.bytes(calls), c.dtype);
  layout.upload(arena, gpu.queue());

  Ceilings ceilings(gpu, c.in_place() ? strided_streams() : streams(1), calls, flush, [&](int i) {
    return traffic_of(c, layout.at(arena, i), layout.spare(arena, i));
  });

  call.set(layout.at(arena, 0));
  call.prepare(gpu.context());
  Timed ours(gpu.capture([&] {
    for (int i = 0; i < calls; ++i) {
      call.set(layout.at(arena, i));
      call.run(gpu.context(), gpu.queue());
    }
  }));
  gpu.replay(ours.graph, flush);

  for (int i = 0; i < options.replays; ++i) {
    ours.us.push_back(gpu.replay(ours.graph, flush));
    ceilings.replay();
  }
  const auto& [stream, stream_times] = ceilings.best();

  NormHeadsResult r;
  r.us = median(ours.us) / calls;
  r.spread = ours.spread();
  r.ceiling_us = median(stream_times.us) / calls;
  r.ceiling = stream.name;
  r.kernel = info.kernel;
  r.more["calls_per_graph"] = calls;
  r.more["flushed"] = flush;
  r.more["ceiling_spread"] = stream_times.spread();
  r.more["launches"] = info.launches;
  return r;
}

}  // namespace

int bench_norm_heads_cuda(int id, const std::vector<NormHeadsCase>& cases, const Options& options) {
  Gpu gpu(id);
  nlohmann::json document = describe_gpu(gpu, options);
  return time_all_norm_heads(
      cases, [&](const NormHeadsCase& c) { return time_heads(gpu, c, options); }, options.save,
      &document);
}

}  // namespace bench
