// Times the library on the CPU beside a copy of the same bytes with non-temporal stores.
//
// Cases that are larger than the caches rotate over distinct buffers; smaller ones stay in the cache and are compared with a copy
// with ordinary stores.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "bench/call.h"
#include "bench/devices.h"

namespace bench {
namespace {

constexpr int64_t kColdBytes = int64_t{512} << 20;
constexpr int64_t kCacheBytes = int64_t{1} << 20;  // more than this moved is called cold

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void copy_512(char* to, const char* from, int64_t bytes) {
  for (int64_t i = 0; i + 64 <= bytes; i += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
  }
  _mm_sfence();
}
__attribute__((target("avx"))) void copy_256(char* to, const char* from, int64_t bytes) {
  for (int64_t i = 0; i + 32 <= bytes; i += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
  }
  _mm_sfence();
}
void copy_past_caches(char* to, const char* from, int64_t bytes) {
  if (__builtin_cpu_supports("avx512f")) return copy_512(to, from, bytes);
  if (__builtin_cpu_supports("avx")) return copy_256(to, from, bytes);
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
#else
void copy_past_caches(char* to, const char* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
#endif

// Runs fn(begin, end) on slices of [0, bytes), in multiples of 4 KiB, on `threads` threads.
template <typename Fn>
void on_threads(int threads, int64_t bytes, Fn fn) {
  const int64_t slice = (bytes / threads + 4095) / 4096 * 4096;
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) {
    others.emplace_back([=] { fn(std::min(bytes, t * slice), std::min(bytes, (t + 1) * slice)); });
  }
  fn(0, std::min(bytes, slice));
  for (std::thread& t : others) t.join();
}

template <typename Body>
double time_us(Body body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

struct Freer {
  void operator()(char* p) const { std::free(p); }
};

void fill(char* data, int64_t bytes, const std::string& dtype) {
  uint64_t state = 1;
  const int64_t size = dtype == "f32" ? 4 : 2;
  for (int64_t i = 0; i < bytes / size; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const auto h = static_cast<uint32_t>(state >> 40);
    // A mantissa at random, a sign, and an exponent near 1.
    if (dtype == "f32") {
      reinterpret_cast<uint32_t*>(data)[i] = 0x3f000000u | (h & 0xffffff) | (h << 8 & 0x80000000u);
    } else {
      const uint32_t bits = dtype == "f16" ? 0x3800u | (h & 0x7ff) | (h & 0x8000)
                                           : 0x3f00u | (h & 0xff) | (h & 0x8000);
      reinterpret_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(bits);
    }
  }
}

Result time_case(fastnorm_context* context, const Case& c, const Options& options) {
  const int64_t tensor = (c.tensor_bytes() + 4095) / 4096 * 4096,
                columns = (c.n * 4 + 4095) / 4096 * 4096;
  const int64_t set = tensor * (c.adds() ? 4 : 2);
  const bool cold = set > kCacheBytes;
  const int sets = cold ? static_cast<int>(std::max<int64_t>(2, kColdBytes / set)) : 1;
  // Small cases take many calls to a sample, so that the clock's own cost is nothing.
  const int calls = cold ? sets : static_cast<int>(std::max<int64_t>(1, (int64_t{64} << 20) / set));
  const std::unique_ptr<char, Freer> memory(
      static_cast<char*>(std::aligned_alloc(4096, static_cast<size_t>(2 * columns + sets * set))));
  if (memory == nullptr) throw std::bad_alloc();
  fill(memory.get(), 2 * columns + sets * set, c.dtype);
  const auto at = [&](int i) {
    char* p = memory.get() + 2 * columns + (i % sets) * set;
    Buffers b = {p, p + tensor, memory.get(), memory.get() + columns, p + tensor, nullptr};
    if (c.adds()) b.y = p + 2 * tensor, b.residual_out = p + 3 * tensor;
    return b;
  };
  Call call(c, FASTNORM_DEVICE_CPU, at(0));
  if (options.f32_parameters) call.use_f32_parameters();
  fastnorm_info info = {};
  info.struct_size = sizeof info;
  check(fastnorm_norm_query(context, call.args(), &info));
  const auto copy = [&](char* to, const char* from, int64_t bytes) {
    if (cold) return copy_past_caches(to, from, bytes);
    std::memcpy(to, from, static_cast<size_t>(bytes));
  };

  std::vector<double> ours, ceiling;
  for (int pass = -1; pass < options.replays; ++pass) {  // the first pass warms up
    const double us = time_us([&] {
      for (int i = 0; i < calls; ++i) {
        call.set(at(i));
        call.run(context, nullptr);
      }
    });
    const double copy_us = time_us([&] {
      on_threads(cold ? options.threads : 1, tensor, [&](int64_t begin, int64_t end) {
        for (int i = 0; i < calls; ++i) {
          const Buffers b = at(i);
          copy(b.y + begin, b.x + begin, end - begin);
          if (c.adds()) copy(b.residual_out + begin, b.residual + begin, end - begin);
        }
      });
    });
    if (pass < 0) continue;
    ours.push_back(us / calls);
    ceiling.push_back(copy_us / calls);
  }
  Result r;
  r.c = c;
  r.us = median(ours);
  r.spread =
      (*std::max_element(ours.begin(), ours.end()) - *std::min_element(ours.begin(), ours.end())) /
      r.us;
  r.ceiling_us = median(ceiling);
  r.ceiling = cold ? "non-temporal copy" : "memcpy in cache";
  r.kernel = info.kernel;
  r.more["threads"] = options.threads;
  r.more["cold"] = cold;
  return r;
}

}  // namespace

nlohmann::json bench_cpu(const std::vector<Case>& cases, const Options& options) {
  fastnorm_context_options context_options = {};
  context_options.struct_size = sizeof context_options;
  context_options.num_threads = options.threads;
  fastnorm_context* context = nullptr;
  check(fastnorm_context_create({FASTNORM_DEVICE_CPU, 0}, &context_options, &context));
  fastnorm_device_info device = {};
  device.struct_size = sizeof device;
  check(fastnorm_device_describe({FASTNORM_DEVICE_CPU, 0}, &device));
  std::printf("%s, kernels %s, %d threads, L2 %llu KiB\n", device.name, device.kernel_arch,
              options.threads, static_cast<unsigned long long>(device.l2_bytes >> 10));
  print_header();
  nlohmann::json document = {{"device", device.name},       {"isa", device.kernel_arch},
                             {"l2_bytes", device.l2_bytes}, {"threads", options.threads},
                             {"replays", options.replays},  {"results", nlohmann::json::array()}};
  for (const Case& c : cases) {
    const Result r = time_case(context, c, options);
    print_row(r);
    document["results"].push_back(to_json(r));
  }
  fastnorm_context_destroy(context);
  return document;
}

}  // namespace bench
