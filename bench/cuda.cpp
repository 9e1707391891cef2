// Times the library on a GPU beside the best plain stream of the same bytes.
//
// A graph holds many calls over distinct inputs and outputs (at least 600 MB, so that nothing is
// found in L2; where the calls of a decode step do not add up to that, 256 MB are written before
// each replay, outside the timed span). The graphs of the library and of the best streams are
// replayed one after the other; figures are medians. The GPU waits a little before each replay, so
// that the graph is queued before the clock starts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "bench/devices.h"
#include "bench/gpu.h"
#include "bench/norm_backward.h"

namespace bench {
namespace {

constexpr int64_t kAlignment = 1024;

int64_t whole_vectors(int64_t bytes) { return (bytes + 15) / 16 * 16; }

// The calls of a forward case: their memory, one call whose addresses change, and the streams that
// stand beside it. Streams work on vectors of 16 bytes: the tail of a tensor is padding.
class ForwardCalls {
 public:
  static constexpr uint32_t kPdl = Call::kPdl;

  ForwardCalls(Gpu& gpu, const Case& c, int calls)
      : c_(c),
        layout_(c, kAlignment),
        arena_(gpu.arena(layout_.bytes(calls), c.dtype)),
        call_(c, FASTNORM_DEVICE_CUDA, layout_.at(arena_, 0)) {
    const float static_scale = Call::kStaticScale;
    BENCH_CUDA(cudaMemcpyAsync(layout_.at(arena_, 0).static_scale, &static_scale,
                               sizeof static_scale, cudaMemcpyHostToDevice, gpu.queue()));
  }

  std::vector<Stream> kinds() const {
    return c_.heads()   ? strided_streams()
           : c_.gated() ? join_streams(2)
                        : streams(c_.adds() ? 2 : 1, static_cast<int>(c_.shrink()));
  }
  Traffic traffic(int i) const {
    const Buffers b = layout_.at(arena_, i);
    Traffic t = {b.x, b.residual, b.y, b.residual_out, whole_vectors(c_.tensor_bytes())};
    t.extra = b.scales;
    t.extra_bytes = whole_vectors(c_.scale_bytes());
    if (c_.heads()) {
      t.row_bytes = c_.tensor_bytes() / c_.rows;
      t.stride_bytes = c_.buffer_bytes() / c_.rows;
    }
    return t;
  }
  Call& call() { return call_; }
  void run(Gpu& gpu, int i) {
    call_.set(layout_.at(arena_, i));
    call_.run(gpu.context(), gpu.queue());
  }

 private:
  Case c_;
  Layout layout_;
  char* arena_;
  Call call_;
};

// The calls of a backward case, each with its own memory.
class BackwardCalls {
 public:
  static constexpr uint32_t kPdl = BackwardCall::kPdl;

  BackwardCalls(Gpu& gpu, const Case& c, int calls, bool f32_parameters)
      : c_(c),
        calls_(calls),
        workspace_bytes_(
            backward_workspace(gpu.context(), c, FASTNORM_DEVICE_CUDA, kAlignment, f32_parameters)),
        layout_(c, kAlignment, workspace_bytes_),
        arena_(gpu.arena(layout_.bytes(calls), c.dtype)),
        call_(c, FASTNORM_DEVICE_CUDA, layout_.at(arena_, 0, calls)) {
    fill_random(layout_.statistics(arena_), layout_.statistics_bytes(calls), "f32", 2, gpu.queue());
  }

  std::vector<Stream> kinds() const {
    return join_streams(static_cast<int>(c_.gradient_inputs()), static_cast<int>(c_.gradients()));
  }
  Traffic traffic(int i) const {
    const BackwardBuffers b = layout_.at(arena_, i, calls_);
    Traffic t = {b.dy, b.x, b.dx, b.dother, whole_vectors(c_.tensor_bytes())};
    t.e = c_.adds() ? b.dresidual_in : b.other;
    t.f = b.other;
    t.extra = b.rstd;
    t.extra_bytes = std::min(whole_vectors(c_.statistics_bytes()), t.bytes);
    return t;
  }
  BackwardCall& call() { return call_; }
  void run(Gpu& gpu, int i) {
    call_.set(layout_.at(arena_, i, calls_));
    call_.run(gpu.context(), static_cast<uint64_t>(workspace_bytes_), gpu.queue());
  }

 private:
  Case c_;
  int calls_;
  int64_t workspace_bytes_;
  BackwardLayout layout_;
  char* arena_;
  BackwardCall call_;
};

template <typename Calls>
Result time_calls(Gpu& gpu, const Case& c, const Options& options, int calls, bool flush,
                  Calls& of) {
  Ceilings ceilings(gpu, of.kinds(), calls, flush, [&](int i) { return of.traffic(i); });

  if (options.f32_parameters) of.call().use_f32_parameters();
  const auto captured_calls = [&](bool pdl, uint32_t flags) {
    gpu.set_pdl(pdl);
    of.call().set_flags(flags);
    of.call().prepare(gpu.context());
    return Timed(gpu.capture([&] {
      for (int i = 0; i < calls; ++i) of.run(gpu, i);
    }));
  };
  std::vector<Timed> ours;  // without and, where it is wanted, with dependent launch
  if (options.pdl) ours.push_back(captured_calls(true, options.constant_weights ? Calls::kPdl : 0));
  ours.insert(ours.begin(), captured_calls(false, 0));
  for (const Timed& t : ours) gpu.replay(t.graph, flush);

  for (int i = 0; i < options.replays; ++i) {
    for (Timed& t : ours) t.us.push_back(gpu.replay(t.graph, flush));
    ceilings.replay();
  }
  const auto& [stream, stream_times] = ceilings.best();

  const fastnorm_info info = of.call().query(gpu.context());
  Result r;
  r.c = c;
  r.us = median(ours[0].us) / calls;
  r.spread = ours[0].spread();
  r.ceiling_us = median(stream_times.us) / calls;
  r.ceiling = stream.name;
  r.kernel = info.kernel;
  r.more["calls_per_graph"] = calls;
  r.more["flushed"] = flush;
  r.more["ceiling_spread"] = stream_times.spread();
  r.more["launches"] = info.launches;
  if (c.backward()) r.more["workspace_bytes"] = info.workspace_bytes;
  if (options.pdl) {
    r.pdl_us = median(ours[1].us) / calls;
    r.more["pdl_spread"] = ours[1].spread();
  }
  if (options.f32_parameters) r.more["parameters"] = "f32";
  return r;
}

Result time_case(Gpu& gpu, const Case& c, const Options& options) {
  const int calls =
      static_cast<int>(std::clamp<int64_t>(kColdBytes / c.footprint() + 1, 2, kMostCalls));
  const bool flush = calls * c.footprint() < kColdBytes;
  if (c.backward()) {
    BackwardCalls of(gpu, c, calls, options.f32_parameters);
    return time_calls(gpu, c, options, calls, flush, of);
  }
  ForwardCalls of(gpu, c, calls);
  return time_calls(gpu, c, options, calls, flush, of);
}

// Host time of real calls, a few at a time so that the GPU's queue never fills.
double launch_ns(Gpu& gpu) {
  const Case c = {"rms", "bf16", 1, 4096};
  const Layout layout(c, 1024);
  const Call call(c, FASTNORM_DEVICE_CUDA, layout.at(gpu.arena(layout.bytes(1), c.dtype), 0));
  std::vector<double> ns;
  for (int pass = 0; pass < 200; ++pass) {
    constexpr int kCalls = 50;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call.run(gpu.context(), gpu.queue());
    ns.push_back(
        std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() /
        kCalls);
    BENCH_CUDA(cudaStreamSynchronize(gpu.queue()));
  }
  return median(ns);
}

int attribute(int id, cudaDeviceAttr which) {
  int value = 0;
  BENCH_CUDA(cudaDeviceGetAttribute(&value, which, id));
  return value;
}

}  // namespace

int bench_cuda(int id, const std::vector<Case>& cases, const Options& options) {
  Gpu gpu(id);
  nlohmann::json document = describe_gpu(gpu, options);
  document["sm_clock_khz"] = attribute(id, cudaDevAttrClockRate);
  document["memory_clock_khz"] = attribute(id, cudaDevAttrMemoryClockRate);
  document["launch_ns"] = launch_ns(gpu);
  std::printf("host time of a call, launch included: %.0f ns\n",
              document["launch_ns"].get<double>());
  return time_all(
      cases, options.pdl, [&](const Case& c) { return time_case(gpu, c, options); }, options.save,
      &document);
}

}  // namespace bench
