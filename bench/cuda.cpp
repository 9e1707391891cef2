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

#include "bench/devices.h"
#include "bench/gpu.h"

namespace bench {
namespace {

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
