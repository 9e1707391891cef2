// Times heads, and the gradients of heads, on a GPU beside the best plain stream of the same bytes,
// by the protocol of cuda.cpp.
#include <algorithm>
#include <cstdio>

#include "bench/gpu.h"
#include "bench/norm_heads_backward.h"

namespace bench {
namespace {

// Queries need addresses that are aligned, no memory.
char* const kNowhere = reinterpret_cast<char*>(uintptr_t{1} << 20);

int64_t aligned(int64_t bytes) { return (bytes + 1023) / 1024 * 1024; }

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
    Cursor at = {memory};
    NormHeadsBuffers b = {};
    b.weight = at.take(size_of(tables_.weight));
    b.cos = reinterpret_cast<float*>(at.take(size_of(tables_.cos)));
    b.sin = reinterpret_cast<float*>(at.take(size_of(tables_.sin)));
    b.scale = reinterpret_cast<float*>(at.take(size_of(tables_.scale)));
    b.positions = reinterpret_cast<int32_t*>(at.take(size_of(tables_.positions)));
    b.slots = reinterpret_cast<int32_t*>(at.take(size_of(tables_.slots)));
    at.p += call * (x_ + cache_ + spare_);
    b.x = at.take(x_);
    b.cache = at.take(cache_);
    return b;
  }
  char* spare(char* memory, int64_t call) const { return at(memory, call).cache + cache_; }

  void upload_all(char* memory, cudaStream_t queue) const {
    const NormHeadsBuffers b = at(memory, 0);
    upload(b.weight, tables_.weight, queue);
    upload(b.cos, tables_.cos, queue), upload(b.sin, tables_.sin, queue);
    upload(b.scale, tables_.scale, queue);
    upload(b.positions, tables_.positions, queue), upload(b.slots, tables_.slots, queue);
  }

 private:
  int64_t shared_bytes() const {
    return aligned(size_of(tables_.weight)) + aligned(size_of(tables_.cos)) +
           aligned(size_of(tables_.sin)) + aligned(size_of(tables_.scale)) +
           aligned(size_of(tables_.positions)) + aligned(size_of(tables_.slots));
  }

  const NormHeadsTables& tables_;
  int64_t x_, cache_, spare_;
};

// Calls of a case on a GPU, and the streams beside them.
class ForwardCalls {
 public:
  ForwardCalls(Gpu& gpu, const NormHeadsCase& c, int calls)
      : c_(c),
        tables_(c),
        layout_(c, tables_),
        call_(c, FASTNORM_DEVICE_CUDA, layout_.at(kNowhere, 0)) {
    call_.query(gpu.context());  // without kernels it says so before memory is taken
    arena_ = gpu.arena(layout_.bytes(calls), c.dtype);
    layout_.upload_all(arena_, gpu.queue());
    call_.set(layout_.at(arena_, 0));
  }

  std::vector<Stream> kinds() const { return c_.in_place() ? strided_streams() : streams(1); }
  // In place: the rows that the call changes. Else a copy of as many bytes in all.
  Traffic traffic(int i) const {
    const NormHeadsBuffers b = layout_.at(arena_, i);
    Traffic t = {b.x, nullptr, layout_.spare(arena_, i), nullptr, c_.stream_bytes()};
    if (c_.in_place()) {
      t.c = b.x;
      t.bytes = c_.tokens * c_.read_bytes();
      t.row_bytes = c_.read_bytes();
      t.stride_bytes = c_.token_bytes();
    }
    return t;
  }
  const NormHeadsCall& call() const { return call_; }
  void run(Gpu& gpu, int i) {
    call_.set(layout_.at(arena_, i));
    call_.run(gpu.context(), gpu.queue());
  }

 private:
  const NormHeadsCase c_;
  const NormHeadsTables tables_;
  const HeadsLayout layout_;
  char* arena_ = nullptr;
  NormHeadsCall call_;
};

// The same of gradients. All calls share weights, their gradients, tables and the workspace.
class BackwardCalls {
 public:
  BackwardCalls(Gpu& gpu, const NormHeadsBackwardCase& c, int calls)
      : c_(c), tables_(c.heads), call_(c, FASTNORM_DEVICE_CUDA, at(kNowhere, 0)) {
    workspace_bytes_ = call_.query(gpu.context()).workspace_bytes;
    arena_ = gpu.arena(at(kNowhere, calls).dy - kNowhere, c.heads.dtype);
    const NormHeadsBackwardBuffers b = at(arena_, 0);
    upload(b.cos, tables_.cos, gpu.queue()), upload(b.sin, tables_.sin, gpu.queue());
    upload(b.positions, tables_.positions, gpu.queue());
    for (int i = 0; c.normalises() && i < calls; ++i)
      fill_random(at(arena_, i).rstd, aligned(c.statistics_bytes()), "f32", 2, gpu.queue());
    call_.set(b);
  }

  std::vector<Stream> kinds() const { return c_.reads() == 2 ? join_streams(2) : streams(1); }
  // As many bytes in all.
  Traffic traffic(int i) const {
    const NormHeadsBackwardBuffers b = at(arena_, i);
    return {b.dy, c_.reads() == 2 ? b.x : nullptr, b.dx, nullptr, c_.stream_bytes()};
  }
  const NormHeadsBackwardCall& call() const { return call_; }
  void run(Gpu& gpu, int i) {
    call_.set(at(arena_, i));
    call_.run(gpu.context(), workspace_bytes_ == 0 ? nullptr : arena_, workspace_bytes_,
              gpu.queue());
  }

 private:
  NormHeadsBackwardBuffers at(char* memory, int64_t call) const {
    Cursor at = {memory};
    NormHeadsBackwardBuffers b = {};
    at.take(static_cast<int64_t>(workspace_bytes_));
    b.weights = at.take(4 * NormHeadsBackwardCall::weight_bytes(c_));
    b.cos = reinterpret_cast<float*>(at.take(size_of(tables_.cos)));
    b.sin = reinterpret_cast<float*>(at.take(size_of(tables_.sin)));
    b.positions = reinterpret_cast<int32_t*>(at.take(size_of(tables_.positions)));
    const int64_t tensor = aligned(std::max(c_.tensor_bytes(), c_.stream_bytes()));
    at.p += call * (3 * tensor + aligned(c_.statistics_bytes()));
    b.dy = at.take(tensor);
    b.x = at.take(tensor);
    b.dx = at.take(tensor);
    b.rstd = at.take(c_.statistics_bytes());
    return b;
  }

  const NormHeadsBackwardCase c_;
  const NormHeadsTables tables_;
  char* arena_ = nullptr;
  uint64_t workspace_bytes_ = 0;
  NormHeadsBackwardCall call_;
};

int64_t footprint_of(const NormHeadsCase& c) {
  return c.in_place() ? c.bytes_moved() / 2 : c.bytes_moved();
}
int64_t footprint_of(const NormHeadsBackwardCase& c) { return c.bytes_moved(); }

template <class Calls, class Case>
NormHeadsResult time_calls(Gpu& gpu, const Case& c, const Options& options) {
  const int64_t footprint = footprint_of(c);
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

template <class Calls, class Case>
int time_on_gpu(int id, const std::vector<Case>& cases, const Options& options) {
  Gpu gpu(id);
  nlohmann::json document = describe_gpu(gpu, options);
  return time_all_heads<Case>(
      cases, [&](const Case& c) { return time_calls<Calls>(gpu, c, options); }, options.save,
      &document);
}

}  // namespace

int bench_norm_heads_cuda(int id, const std::vector<NormHeadsCase>& cases, const Options& options) {
  return time_on_gpu<ForwardCalls>(id, cases, options);
}

int bench_norm_heads_backward_cuda(int id, const std::vector<NormHeadsBackwardCase>& cases,
                                   const Options& options) {
  return time_on_gpu<BackwardCalls>(id, cases, options);
}

}  // namespace bench
