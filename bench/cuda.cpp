// Times the library on a GPU beside the best plain stream of the same bytes.
//
// A graph holds many calls over distinct inputs and outputs (at least 600 MB, so that nothing is found in L2; where the calls of a
// decode step do not add up to that, 256 MB are written before each replay, outside the timed span). The graphs of the library and
// of the best streams are replayed in turn; figures are medians.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "bench/call.h"
#include "bench/devices.h"
#include "bench/stream.cuh"

namespace bench {
namespace {

constexpr int64_t kColdBytes = int64_t{600} << 20;
constexpr int64_t kFlushBytes = int64_t{256} << 20;
constexpr int kMostCalls = 64;

void require(cudaError_t code, const char* what) {
  if (code != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(code));
}
#define BENCH_CUDA(expression) require((expression), #expression)

int64_t round_up(int64_t bytes) { return (bytes + 1023) / 1024 * 1024; }

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

  // An arena of at least `bytes`, filled with values of `dtype`.
  char* arena(int64_t bytes, const std::string& dtype) {
    if (bytes > arena_bytes_) {
      cudaFree(arena_);
      arena_ = nullptr;
      BENCH_CUDA(cudaMalloc(reinterpret_cast<void**>(&arena_), static_cast<size_t>(bytes)));
      arena_bytes_ = bytes;
      arena_dtype_.clear();
    }
    if (arena_dtype_ != dtype) fill_random(arena_, arena_bytes_, dtype, 1, queue_);
    arena_dtype_ = dtype;
    return arena_;
  }

  template <typename Body>
  cudaGraphExec_t capture(Body body) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    BENCH_CUDA(cudaStreamBeginCapture(queue_, cudaStreamCaptureModeThreadLocal));
    body();
    BENCH_CUDA(cudaStreamEndCapture(queue_, &graph));
    BENCH_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    BENCH_CUDA(cudaGraphDestroy(graph));
    BENCH_CUDA(cudaGraphUpload(exec, queue_));
    return exec;
  }

  // Microseconds of one replay.
  double replay(cudaGraphExec_t graph, bool flush) {
    if (flush) BENCH_CUDA(cudaMemsetAsync(flush_, 0x5a, kFlushBytes, queue_));
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
  std::string arena_dtype_;
  fastnorm_context* context_ = nullptr;
};

// The buffers of call i of a case.
Buffers buffers_of(const Case& c, char* arena, int i) {
  const int64_t tensor = round_up(c.tensor_bytes()), columns = round_up(c.n * 4);
  char* p = arena + 2 * columns + i * tensor * (c.adds() ? 4 : 2);
  Buffers b = {p, p + tensor, arena, arena + columns, p + tensor, nullptr};
  if (c.adds()) b.y = p + 2 * tensor, b.residual_out = p + 3 * tensor;
  return b;
}

int64_t arena_bytes(const Case& c, int calls) {
  return 2 * round_up(c.n * 4) + calls * round_up(c.tensor_bytes()) * (c.adds() ? 4 : 2);
}

struct Timed {
  cudaGraphExec_t graph;
  std::vector<double> us;
  double best() const { return *std::min_element(us.begin(), us.end()); }
};

Result time_case(Gpu& gpu, const Case& c, const Options& options) {
  const int calls =
      static_cast<int>(std::clamp<int64_t>(kColdBytes / c.bytes_moved() + 1, 2, kMostCalls));
  const bool flush = calls * c.bytes_moved() < kColdBytes;
  char* arena = gpu.arena(std::max(arena_bytes(c, calls), int64_t{2} << 30), c.dtype);

  // Streams read and write whole 16-byte vectors: the tail of a tensor that is not a multiple is padding.
  std::vector<Timed> ceilings;
  std::vector<Stream> kinds = streams(c.adds() ? 2 : 1);
  for (const Stream& s : kinds) {
    ceilings.push_back({gpu.capture([&] {
                          for (int i = 0; i < calls; ++i) {
                            const Buffers b = buffers_of(c, arena, i);
                            launch(s, b.x, b.residual, b.y, b.residual_out,
                                   (c.tensor_bytes() + 15) / 16 * 16, gpu.queue());
                          }
                        }),
                        {}});
    gpu.replay(ceilings.back().graph, flush);
    for (int i = 0; i < 2; ++i)
      ceilings.back().us.push_back(gpu.replay(ceilings.back().graph, flush));
  }
  std::vector<size_t> order(ceilings.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return ceilings[a].best() < ceilings[b].best(); });

  Call call(c, FASTNORM_DEVICE_CUDA, buffers_of(c, arena, 0));
  if (options.f32_parameters) call.use_f32_parameters();
  check(fastnorm_norm_prepare(gpu.context(), call.args()));
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_norm_query(gpu.context(), call.args(), &info));
  Timed ours = {gpu.capture([&] {
                  for (int i = 0; i < calls; ++i) {
                    call.set(buffers_of(c, arena, i));
                    call.run(gpu.context(), gpu.queue());
                  }
                }),
                {}};
  gpu.replay(ours.graph, flush);

  constexpr size_t kFinalists = 3;
  for (size_t k = 0; k < kFinalists; ++k) ceilings[order[k]].us.clear();
  for (int i = 0; i < options.replays; ++i) {
    ours.us.push_back(gpu.replay(ours.graph, flush));
    for (size_t k = 0; k < kFinalists; ++k) {
      Timed& t = ceilings[order[k]];
      t.us.push_back(gpu.replay(t.graph, flush));
    }
  }
  size_t best = order[0];
  for (size_t k = 1; k < kFinalists; ++k) {
    if (median(ceilings[order[k]].us) < median(ceilings[best].us)) best = order[k];
  }

  Result r;
  r.c = c;
  r.us = median(ours.us) / calls;
  r.spread = (*std::max_element(ours.us.begin(), ours.us.end()) - ours.best()) / median(ours.us);
  r.ceiling_us = median(ceilings[best].us) / calls;
  r.ceiling = kinds[best].name;
  r.kernel = info.kernel;
  r.more["calls_per_graph"] = calls;
  r.more["flushed"] = flush;
  if (options.f32_parameters) r.more["parameters"] = "f32";
  for (const Timed& t : ceilings) cudaGraphExecDestroy(t.graph);
  cudaGraphExecDestroy(ours.graph);
  return r;
}

// Host time of real calls, a few at a time so that the GPU's queue never fills.
double launch_ns(Gpu& gpu) {
  const Case c = {"rms", "bf16", 1, 4096};
  char* arena = gpu.arena(int64_t{2} << 30, c.dtype);
  const Call call(c, FASTNORM_DEVICE_CUDA, buffers_of(c, arena, 0));
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

nlohmann::json bench_cuda(int id, const std::vector<Case>& cases, const Options& options) {
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
  print_header();
  document["results"] = nlohmann::json::array();
  for (const Case& c : cases) {
    const Result r = time_case(gpu, c, options);
    print_row(r);
    document["results"].push_back(to_json(r));
  }
  return document;
}

}  // namespace bench
