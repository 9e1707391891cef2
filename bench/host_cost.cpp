#include <algorithm>
#include <chrono>
#include <cstdio>

#include "bench/call.h"
#include "bench/devices.h"

namespace bench {

nlohmann::json bench_host_cost(int capability) {
  constexpr int kCalls = 20000, kPasses = 9;
  fastnorm_context_options options = {};
  options.struct_size = sizeof options;
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  options.dry_run_capability = capability;
  fastnorm_context* context = nullptr;
  check(fastnorm_context_create({FASTNORM_DEVICE_CUDA, 0}, &options, &context));
  nlohmann::json results = nlohmann::json::array();
  std::printf(
      "host cost of a call: check, plan, parameters; the launch itself left out (capability %d)\n"
      "median of %d passes, and the fastest, which a busy machine disturbs least\n",
      capability, kPasses);
  // Addresses are only compared in a dry run; nothing is there.
  const auto at = [](uintptr_t i) { return reinterpret_cast<char*>(i << 32); };
  const Buffers buffers = {at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8)};
  for (const Case& c : {Case{"rms", "bf16", 1, 4096}, Case{"add", "bf16", 1, 4096},
                        Case{"layer", "bf16", 1, 4096}, Case{"add", "bf16", 4096, 4096},
                        Case{"add_layer", "f32", 64, 16384}, Case{"add_fp8", "bf16", 1, 4096},
                        Case{"rms_nvfp4", "bf16", 1, 4096}, Case{"qk", "bf16", 64, 128}}) {
    const Call call(c, FASTNORM_DEVICE_CUDA, buffers);
    std::vector<double> ns;
    for (int pass = 0; pass < kPasses; ++pass) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) call.run(context, nullptr);
      ns.push_back(
          std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start)
              .count() /
          kCalls);
    }
    const double fastest = *std::min_element(ns.begin(), ns.end());
    std::printf("  %-13s %-4s %5lld x %-5lld %7.1f ns %7.1f ns\n", c.op.c_str(), c.dtype.c_str(),
                static_cast<long long>(c.rows), static_cast<long long>(c.n), median(ns), fastest);
    results.push_back({{"op", c.op},
                       {"dtype", c.dtype},
                       {"rows", c.rows},
                       {"n", c.n},
                       {"ns", median(ns)},
                       {"fastest_ns", fastest}});
  }
  fastnorm_context_destroy(context);
  return {{"device", "host"}, {"capability", capability}, {"calls", kCalls}, {"results", results}};
}

}  // namespace bench
