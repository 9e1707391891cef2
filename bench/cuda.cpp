// Times the library on a GPU beside the best plain stream of the same bytes.
//
// A graph holds many calls over distinct inputs and outputs (at least 600 MB, so that nothing is found in L2; where the calls of a
// decode step do not add up to that, 256 MB are written before each replay, outside the timed span). The graphs of the library and
// of the best streams are replayed in turn; figures are medians. The GPU waits a little before each replay, so that the graph is
// queued before the clock starts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "bench/call.h"
#include "bench/devices.h"
#include "bench/stream.cuh"

namespace bench {
namespace {

constexpr int64_t kColdBytes = int64_t{600} << 20;
constexpr int64_t kArenaBytes = int64_t{2} << 30;  // allocated once for all but the largest cases
constexpr int64_t kFlushBytes = int64_t{256} << 20;
constexpr int kMostCalls = 64;

void require(cudaError_t code, const char* what) {
  if (code != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(code));
}
#define BENCH_CUDA(expression) require((expression), #expression)

class Gpu {
 public:
  explicit Gpu(int id) : id_(id) {
    BENCH_CUDA(cudaSetDevice(id));
    BENCH_CUDA(cudaStreamCreateWithFlags(&queue_, cudaStreamNonBlocking));
    BENCH_CUDA(cudaEventCreate(&start_));
    BENCH_CUDA(cudaEventCreate(&stop_));
    BENCH_CUDA(cudaMalloc(reinterpret_cast<void**>(&flush_), kFlushBytes));
    check(fastnorm_context_create({FASTNORM_DEVICE_CUDA, id}, nullptr, &context_));
  }
  ~Gpu() {
    fastnorm_context_destroy(context_);
    cudaFree(flush_);
    cudaFree(arena_);
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
    cudaStreamDestroy(queue_);
  }

  // An arena of at least `bytes`, newly filled with values of `dtype`: codes and results of earlier cases are none.
  char* arena(int64_t bytes, const std::string& dtype) {
    if (bytes > arena_bytes_) {
      const int64_t wanted = std::max(bytes, kArenaBytes);
      cudaFree(arena_);
      arena_ = nullptr;
      arena_bytes_ = 0;
      BENCH_CUDA(cudaMalloc(reinterpret_cast<void**>(&arena_), static_cast<size_t>(wanted)));
      arena_bytes_ = wanted;
    }
    fill_random(arena_, bytes, dtype, 1, queue_);
    return arena_;
  }

  template <typename Body>
  cudaGraphExec_t capture(Body body) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    BENCH_CUDA(cudaStreamBeginCapture(queue_, cudaStreamCaptureModeThreadLocal));
    try {
      body();
    } catch (...) {  // other cases go on
      cudaStreamEndCapture(queue_, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    BENCH_CUDA(cudaStreamEndCapture(queue_, &graph));
    BENCH_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    BENCH_CUDA(cudaGraphDestroy(graph));
    BENCH_CUDA(cudaGraphUpload(exec, queue_));
    return exec;
  }

  // Microseconds of one replay.
  double replay(cudaGraphExec_t graph, bool flush) {
    if (flush) BENCH_CUDA(cudaMemsetAsync(flush_, 0x5a, kFlushBytes, queue_));
    wait_a_little(queue_);
    BENCH_CUDA(cudaEventRecord(start_, queue_));
    BENCH_CUDA(cudaGraphLaunch(graph, queue_));
    BENCH_CUDA(cudaEventRecord(stop_, queue_));
    BENCH_CUDA(cudaEventSynchronize(stop_));
    float ms = 0;
    BENCH_CUDA(cudaEventElapsedTime(&ms, start_, stop_));
    return ms * 1e3;
  }

  int id() const { return id_; }
  cudaStream_t queue() const { return queue_; }
  fastnorm_context* context() const { return context_; }

 private:
  int id_;
  cudaStream_t queue_ = nullptr;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
  char* flush_ = nullptr;
  char* arena_ = nullptr;
  int64_t arena_bytes_ = 0;
  fastnorm_context* context_ = nullptr;
};

// A graph and the times of its replays. Not copyable: it owns the graph.
struct Timed {
  explicit Timed(cudaGraphExec_t captured) : graph(captured) {}
  Timed(Timed&& other) noexcept
      : graph(std::exchange(other.graph, nullptr)), us(std::move(other.us)) {}
  Timed& operator=(Timed&&) = delete;
  ~Timed() {
    if (graph != nullptr) cudaGraphExecDestroy(graph);
  }

  double best() const { return *std::min_element(us.begin(), us.end()); }
  double spread() const { return (*std::max_element(us.begin(), us.end()) - best()) / median(us); }

  cudaGraphExec_t graph;
  std::vector<double> us;
};

// What a stream moves that stands beside a call. It works on whole vectors of 16 bytes: the tail of a tensor that is not a multiple
// is padding.
Traffic traffic_of(const Case& c, const Buffers& b) {
  const auto whole = [](int64_t bytes) { return (bytes + 15) / 16 * 16; };
  Traffic t = {b.x, b.residual, b.y, b.residual_out, whole(c.tensor_bytes())};
  t.extra = b.scales;
  t.extra_bytes = whole(c.scale_bytes());
  if (c.heads()) {
    t.row_bytes = c.tensor_bytes() / c.rows;
    t.stride_bytes = c.buffer_bytes() / c.rows;
  }
  return t;
}

Result time_case(Gpu& gpu, const Case& c, const Options& options) {
  const int calls =
      static_cast<int>(std::clamp<int64_t>(kColdBytes / c.footprint() + 1, 2, kMostCalls));
  const bool flush = calls * c.footprint() < kColdBytes;
  const Layout layout(c, 1024);
  char* arena = gpu.arena(layout.bytes(calls), c.dtype);
  const float given_scale = Call::kGivenScale;
  BENCH_CUDA(cudaMemcpyAsync(layout.at(arena, 0).given_scale, &given_scale, sizeof given_scale,
                             cudaMemcpyHostToDevice, gpu.queue()));

  std::vector<Timed> ceilings;
  const std::vector<Stream> kinds =
      c.heads() ? strided_streams() : streams(c.adds() ? 2 : 1, static_cast<int>(c.shrink()));
  for (const Stream& s : kinds) {
    Timed& t = ceilings.emplace_back(gpu.capture([&] {
      for (int i = 0; i < calls; ++i) launch(s, traffic_of(c, layout.at(arena, i)), gpu.queue());
    }));
    gpu.replay(t.graph, flush);
    for (int i = 0; i < 2; ++i) t.us.push_back(gpu.replay(t.graph, flush));
  }
  std::vector<size_t> order(ceilings.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return ceilings[a].best() < ceilings[b].best(); });

  Call call(c, FASTNORM_DEVICE_CUDA, layout.at(arena, 0));
  if (options.f32_parameters) call.use_f32_parameters();
  const auto captured_calls = [&](uint32_t flags) {
    call.set_flags(flags);
    call.prepare(gpu.context());
    return Timed(gpu.capture([&] {
      for (int i = 0; i < calls; ++i) {
        call.set(layout.at(arena, i));
        call.run(gpu.context(), gpu.queue());
      }
    }));
  };
  std::vector<Timed> ours;  // without and, where it is wanted, with dependent launch
  ours.push_back(captured_calls(0));
  if (options.pdl) {
    ours.push_back(captured_calls(FASTNORM_NORM_PDL_WAIT | FASTNORM_NORM_PDL_TRIGGER |
                                  FASTNORM_NORM_PDL_CONSTANT_COLUMNS));
  }
  for (const Timed& t : ours) gpu.replay(t.graph, flush);

  constexpr size_t kFinalists = 3;
  for (size_t k = 0; k < kFinalists; ++k) ceilings[order[k]].us.clear();
  for (int i = 0; i < options.replays; ++i) {
    for (Timed& t : ours) t.us.push_back(gpu.replay(t.graph, flush));
    for (size_t k = 0; k < kFinalists; ++k) {
      Timed& t = ceilings[order[k]];
      t.us.push_back(gpu.replay(t.graph, flush));
    }
  }
  size_t best = order[0];
  for (size_t k = 1; k < kFinalists; ++k) {
    if (median(ceilings[order[k]].us) < median(ceilings[best].us)) best = order[k];
  }

  const fastnorm_info info = call.query(gpu.context());
  Result r;
  r.c = c;
  r.us = median(ours[0].us) / calls;
  r.spread = ours[0].spread();
  r.ceiling_us = median(ceilings[best].us) / calls;
  r.ceiling = kinds[best].name;
  r.kernel = info.kernel;
  r.more["calls_per_graph"] = calls;
  r.more["flushed"] = flush;
  r.more["ceiling_spread"] = ceilings[best].spread();
  r.more["launches"] = info.launches;
  if (options.pdl) {
    r.pdl_us = median(ours[1].us) / calls;
    r.more["pdl_spread"] = ours[1].spread();
  }
  if (options.f32_parameters) r.more["parameters"] = "f32";
  return r;
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
  fastnorm_device_info device = {};
  device.struct_size = sizeof device;
  check(fastnorm_device_describe({FASTNORM_DEVICE_CUDA, id}, &device));
  std::printf("%s, %d SMs, driver %d, runtime %d\n", device.name, device.multiprocessors,
              device.driver_version, device.runtime_version);
  nlohmann::json document = {{"device", device.name},
                             {"multiprocessors", device.multiprocessors},
                             {"driver", device.driver_version},
                             {"runtime", device.runtime_version},
                             {"sm_clock_khz", attribute(id, cudaDevAttrClockRate)},
                             {"memory_clock_khz", attribute(id, cudaDevAttrMemoryClockRate)},
                             {"replays", options.replays}};
  document["launch_ns"] = launch_ns(gpu);
  std::printf("host time of a call, launch included: %.0f ns\n",
              document["launch_ns"].get<double>());
  return time_all(
      cases, options.pdl, [&](const Case& c) { return time_case(gpu, c, options); }, options.save,
      &document);
}

}  // namespace bench
