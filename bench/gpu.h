// A GPU of the benchmark: memory, a stream, graphs and the times of their replays.
#pragma once

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/call.h"
#include "bench/devices.h"
#include "bench/stream.cuh"

namespace bench {

inline constexpr int64_t kColdBytes = int64_t{600} << 20;
inline constexpr int64_t kArenaBytes = int64_t{2}
                                       << 30;  // allocated once for all but the largest cases
inline constexpr int64_t kFlushBytes = int64_t{256} << 20;
inline constexpr int kMostCalls = 64;

inline void require(cudaError_t code, const char* what) {
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
    fastnorm_context_options options = {};
    options.struct_size = sizeof options;
    for (const bool pdl : {false, true}) {
      options.flags = pdl ? 0 : FASTNORM_CONTEXT_NO_PDL;
      check(fastnorm_context_create({FASTNORM_DEVICE_CUDA, id}, &options, &contexts_[pdl]));
    }
  }
  ~Gpu() {
    for (fastnorm_context* context : contexts_) fastnorm_context_destroy(context);
    cudaFree(flush_);
    cudaFree(arena_);
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
    cudaStreamDestroy(queue_);
  }

  // An arena of at least `bytes`, newly filled with values of `dtype`: codes and results of earlier
  // cases are none.
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
    return time_queued([&] { BENCH_CUDA(cudaGraphLaunch(graph, queue_)); });
  }
  // Microseconds of what body() queues. Where the host takes longer than the GPU, they are its.
  template <typename Body>
  double time(Body body) {
    wait_a_little(queue_);
    return time_queued(body);
  }

  int id() const { return id_; }
  cudaStream_t queue() const { return queue_; }
  // Without programmatic dependent launch, unless calls ask for it; with pdl, as is the default.
  void set_pdl(bool pdl) { pdl_ = pdl; }
  fastnorm_context* context() const { return contexts_[pdl_]; }

 private:
  template <typename Body>
  double time_queued(Body body) {
    BENCH_CUDA(cudaEventRecord(start_, queue_));
    body();
    BENCH_CUDA(cudaEventRecord(stop_, queue_));
    BENCH_CUDA(cudaEventSynchronize(stop_));
    float ms = 0;
    BENCH_CUDA(cudaEventElapsedTime(&ms, start_, stop_));
    return ms * 1e3;
  }

  int id_;
  cudaStream_t queue_ = nullptr;
  cudaEvent_t start_ = nullptr, stop_ = nullptr;
  char* flush_ = nullptr;
  char* arena_ = nullptr;
  int64_t arena_bytes_ = 0;
  fastnorm_context* contexts_[2] = {};
  bool pdl_ = false;
};

// A graph and the times of its replays. Not copyable: it owns the graph.
struct Timed {
  explicit Timed(cudaGraphExec_t captured) : graph(captured) {}
  Timed(Timed&& other) noexcept
      : graph(std::exchange(other.graph, nullptr)), us(std::move(other.us)) {}
  Timed& operator=(Timed&& other) noexcept {
    std::swap(graph, other.graph);
    std::swap(us, other.us);
    return *this;
  }
  ~Timed() {
    if (graph != nullptr) cudaGraphExecDestroy(graph);
  }

  double best() const { return *std::min_element(us.begin(), us.end()); }
  double spread() const { return bench::spread(us); }

  cudaGraphExec_t graph;
  std::vector<double> us;
};

// Plain streams that move the same bytes as `calls` calls. The three that look fastest at first are
// timed in the same rounds as the calls; the fastest of them is the ceiling.
class Ceilings {
 public:
  // traffic(i): what the stream beside call `i` moves.
  template <typename TrafficOf>
  Ceilings(Gpu& gpu, const std::vector<Stream>& kinds, int calls, bool flush, TrafficOf traffic)
      : gpu_(gpu), flush_(flush) {
    for (const Stream& s : kinds) {
      Timed& t = finalists_
                     .emplace_back(s, gpu.capture([&] {
                       for (int i = 0; i < calls; ++i) launch(s, traffic(i), gpu.queue());
                     }))
                     .second;
      gpu.replay(t.graph, flush);
      for (int i = 0; i < 2; ++i) t.us.push_back(gpu.replay(t.graph, flush));
    }
    std::sort(finalists_.begin(), finalists_.end(),
              [](const auto& a, const auto& b) { return a.second.best() < b.second.best(); });
    while (finalists_.size() > kFinalists) finalists_.pop_back();
    for (auto& [kind, t] : finalists_) t.us.clear();
  }

  void replay() {
    for (auto& [kind, t] : finalists_) t.us.push_back(gpu_.replay(t.graph, flush_));
  }

  // The stream and its times.
  const std::pair<Stream, Timed>& best() const {
    return *std::min_element(
        finalists_.begin(), finalists_.end(),
        [](const auto& a, const auto& b) { return median(a.second.us) < median(b.second.us); });
  }

 private:
  static constexpr size_t kFinalists = 3;

  Gpu& gpu_;
  bool flush_;
  std::vector<std::pair<Stream, Timed>> finalists_;
};

// Prints what device it is. The document has that, and the protocol.
inline nlohmann::json describe_gpu(const Gpu& gpu, const Options& options) {
  fastnorm_device_info device = {};
  device.struct_size = sizeof device;
  check(fastnorm_device_describe({FASTNORM_DEVICE_CUDA, gpu.id()}, &device));
  std::printf("%s, %d SMs, driver %d, runtime %d\n", device.name, device.multiprocessors,
              device.driver_version, device.runtime_version);
  return {{"device", device.name},
          {"multiprocessors", device.multiprocessors},
          {"driver", device.driver_version},
          {"runtime", device.runtime_version},
          {"replays", options.replays}};
}

}  // namespace bench
