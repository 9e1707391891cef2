// Times the library on the CPU beside a loop that reads and writes the same bytes with non-temporal
// stores.
//
// Cases that are larger than the caches rotate over distinct buffers; smaller ones stay in the
// cache and are compared with a loop with ordinary stores, as are heads in place.
#include <algorithm>
#include <cstdio>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "bench/call.h"
#include "bench/cpu.h"
#include "bench/devices.h"
#include "bench/norm_backward.h"

namespace bench {
namespace {

constexpr int64_t kAlignment = 4096;
constexpr int64_t kColdBytes = int64_t{512} << 20;
constexpr int64_t kCacheBytes = int64_t{1} << 20;  // more than this moved is called cold

// The ceilings write 1 / kShrink of what they read, a vector at a time: at kShrink 1 `to` may be
// `from`, and a bit is flipped so that no access can be left out. `past` is whether the stores go
// past the caches.
#if defined(__x86_64__)
template <int kShrink>
__attribute__((target("avx512f"))) void stream_512(char* to, const char* from, int64_t bytes,
                                                   bool past) {
  for (int64_t i = 0; i + 64 * kShrink <= bytes; i += 64 * kShrink) {
    __m512i v = _mm512_set1_epi32(0x10001);
    for (int s = 0; s < kShrink; ++s)
      v = _mm512_xor_si512(v, _mm512_loadu_si512(from + i + s * 64));
    auto* out = reinterpret_cast<__m512i*>(to + i / kShrink);
    past ? _mm512_stream_si512(out, v) : _mm512_storeu_si512(out, v);
  }
  if (past) _mm_sfence();
}
template <int kShrink>
__attribute__((target("avx2"))) void stream_256(char* to, const char* from, int64_t bytes,
                                                bool past) {
  for (int64_t i = 0; i + 32 * kShrink <= bytes; i += 32 * kShrink) {
    __m256i v = _mm256_set1_epi32(0x10001);
    for (int s = 0; s < kShrink; ++s) {
      v = _mm256_xor_si256(v,
                           _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + s * 32)));
    }
    auto* out = reinterpret_cast<__m256i*>(to + i / kShrink);
    past ? _mm256_stream_si256(out, v) : _mm256_storeu_si256(out, v);
  }
  if (past) _mm_sfence();
}
__attribute__((target("avx512f"))) void join_512(char* to, const char* const* from, int reads,
                                                 int64_t bytes, bool past) {
  for (int64_t i = 0; i + 64 <= bytes; i += 64) {
    __m512i v = _mm512_loadu_si512(from[0] + i);
    for (int r = 1; r < reads; ++r) v = _mm512_xor_si512(v, _mm512_loadu_si512(from[r] + i));
    auto* out = reinterpret_cast<__m512i*>(to + i);
    past ? _mm512_stream_si512(out, v) : _mm512_storeu_si512(out, v);
  }
  if (past) _mm_sfence();
}
__attribute__((target("avx2"))) void join_256(char* to, const char* const* from, int reads,
                                              int64_t bytes, bool past) {
  const auto at = [](const char* p) { return reinterpret_cast<const __m256i*>(p); };
  for (int64_t i = 0; i + 32 <= bytes; i += 32) {
    __m256i v = _mm256_loadu_si256(at(from[0] + i));
    for (int r = 1; r < reads; ++r) v = _mm256_xor_si256(v, _mm256_loadu_si256(at(from[r] + i)));
    auto* out = reinterpret_cast<__m256i*>(to + i);
    past ? _mm256_stream_si256(out, v) : _mm256_storeu_si256(out, v);
  }
  if (past) _mm_sfence();
}
#endif

void join(char* to, const char* const* from, int reads, int64_t bytes, bool past) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return join_512(to, from, reads, bytes, past);
  if (__builtin_cpu_supports("avx2")) return join_256(to, from, reads, bytes, past);
#endif
  (void)past;
  for (int64_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t v = 0, part = 0;
    for (int r = 0; r < reads; ++r) {
      std::memcpy(&part, from[r] + i, 8);
      v ^= part;
    }
    std::memcpy(to + i, &v, 8);
  }
}

template <int kShrink>
void stream(char* to, const char* from, int64_t bytes, bool past) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return stream_512<kShrink>(to, from, bytes, past);
  if (__builtin_cpu_supports("avx2")) return stream_256<kShrink>(to, from, bytes, past);
#endif
  (void)past;
  for (int64_t i = 0; i + 8 * kShrink <= bytes; i += 8 * kShrink) {
    uint64_t v = 0x1000100010001, part = 0;
    for (int s = 0; s < kShrink; ++s) {
      std::memcpy(&part, from + i + s * 8, 8);
      v ^= part;
    }
    std::memcpy(to + i / kShrink, &v, 8);
  }
}

using StreamFn = void (*)(char* to, const char* from, int64_t bytes, bool past);

StreamFn stream_of(int64_t shrink) {
  return shrink == 8   ? &stream<8>
         : shrink == 4 ? &stream<4>
         : shrink == 2 ? &stream<2>
                       : &stream<1>;
}

// Bytes [begin, end) of what one call reads, and their part of all that it writes. Heads: tokens
// [begin, end).
void stream_part(const Case& c, const Buffers& b, int64_t begin, int64_t end, bool cold) {
  if (begin >= end) return;
  if (c.heads()) {
    const int64_t row = c.tensor_bytes() / c.rows, stride = c.buffer_bytes() / c.rows;
    for (int64_t i = begin; i < end; ++i) stream<1>(b.x + i * stride, b.x + i * stride, row, false);
    return;
  }
  if (c.gated()) {
    const char* const from[] = {b.x + begin, b.residual + begin};
    return join(b.y + begin, from, 2, end - begin, cold);
  }
  const auto copy = [&](char* to, const char* from, int64_t bytes) {
    if (cold) return stream<1>(to, from, bytes, true);
    std::memcpy(to, from, static_cast<size_t>(bytes));
  };
  const int64_t shrink = c.shrink();
  if (shrink == 1) {
    copy(b.y + begin, b.x + begin, end - begin);
  } else {
    stream_of(shrink)(b.y + begin / shrink, b.x + begin, end - begin, cold);
  }
  if (c.adds()) copy(b.residual_out + begin, b.residual + begin, end - begin);
  const auto scale_at = [&](int64_t at) { return c.scale_bytes() * at / c.tensor_bytes(); };
  if (c.scale_bytes() != 0) {
    std::memset(b.scales + scale_at(begin), 1,
                static_cast<size_t>(scale_at(end) - scale_at(begin)));
  }
}

// The calls of a forward case: their memory, one call whose addresses change, and the stream that
// stands beside it.
class ForwardCalls {
 public:
  ForwardCalls(fastnorm_context*, const Case& c, int sets, const Options& options)
      : c_(c),
        layout_(c, kAlignment),
        sets_(sets),
        memory_(allocate(layout_.bytes(sets))),
        call_(c, FASTNORM_DEVICE_CPU, at(0)) {
    fill(memory_.get(), layout_.bytes(sets), c.dtype);
    std::memcpy(at(0).static_scale, &Call::kStaticScale, sizeof Call::kStaticScale);
    if (options.f32_parameters) call_.use_f32_parameters();
  }

  static int64_t set_bytes(const Case& c) { return Layout(c, kAlignment).call_bytes(); }
  fastnorm_info query(fastnorm_context* context) const { return call_.query(context); }
  void run(fastnorm_context* context, int i) {
    call_.set(at(i));
    call_.run(context, nullptr);
  }
  void stream_part(int i, int64_t begin, int64_t end, bool cold) const {
    bench::stream_part(c_, at(i), begin, end, cold);
  }

 private:
  Buffers at(int i) const { return layout_.at(memory_.get(), i % sets_); }

  Case c_;
  Layout layout_;
  int sets_;
  Memory memory_;
  Call call_;
};

// The calls of a backward case, each with its own memory.
class BackwardCalls {
 public:
  BackwardCalls(fastnorm_context* context, const Case& c, int sets, const Options& options)
      : c_(c),
        workspace_bytes_(backward_workspace(context, c, FASTNORM_DEVICE_CPU, kAlignment,
                                            options.f32_parameters)),
        layout_(c, kAlignment, workspace_bytes_),
        sets_(sets),
        memory_(allocate(layout_.bytes(sets))),
        call_(c, FASTNORM_DEVICE_CPU, at(0)) {
    fill(memory_.get(), layout_.bytes(sets), c.dtype);
    fill(layout_.statistics(memory_.get()), layout_.statistics_bytes(sets), "f32");
    if (options.f32_parameters) call_.use_f32_parameters();
  }

  static int64_t set_bytes(const Case& c) { return BackwardLayout(c, kAlignment, 0).call_bytes(); }
  fastnorm_info query(fastnorm_context* context) const { return call_.query(context); }
  void run(fastnorm_context* context, int i) {
    call_.set(at(i));
    call_.run(context, static_cast<uint64_t>(workspace_bytes_), nullptr);
  }
  // Statistics are left out: next to the rows they are nothing on a CPU.
  void stream_part(int i, int64_t begin, int64_t end, bool cold) const {
    if (begin >= end) return;
    const BackwardBuffers b = at(i);
    const char* const from[] = {b.dy + begin, b.x + begin,
                                c_.adds() ? b.dresidual_in + begin : nullptr};
    join(b.dx + begin, from, c_.adds() ? 3 : 2, end - begin, cold);
    if (!c_.has_other()) return;
    const char* const other[] = {b.other + begin};
    join(b.dother + begin, other, 1, end - begin, cold);
  }

 private:
  BackwardBuffers at(int i) const { return layout_.at(memory_.get(), i % sets_, sets_); }

  Case c_;
  int64_t workspace_bytes_;
  BackwardLayout layout_;
  int sets_;
  Memory memory_;
  BackwardCall call_;
};

// Tensors that a stream of joins reads and writes: "R2W1".
std::string joined(const Case& c) {
  if (!c.backward()) return "R2W1";
  return "R" + std::to_string(c.gradient_inputs()) + "W" + std::to_string(c.gradients());
}

template <typename Calls>
Result time_case(fastnorm_context* context, const Case& c, const Options& options) {
  const int64_t set = Calls::set_bytes(c);
  const bool cold = set > kCacheBytes;
  const int sets = cold ? static_cast<int>(std::max<int64_t>(2, kColdBytes / set)) : 1;
  const int calls = cold ? sets : calls_of_sample(set);
  Calls of(context, c, sets, options);
  const fastnorm_info info = of.query(context);

  std::vector<double> ours, ceiling;
  for (int pass = -1; pass < options.replays; ++pass) {  // the first pass warms up
    const double us = time_us([&] {
      for (int i = 0; i < calls; ++i) of.run(context, i);
    });
    const double copy_us = time_us([&] {
      const int64_t count = c.heads() ? c.rows : c.tensor_bytes();
      on_threads(cold ? options.threads : 1, count, c.heads() ? 1 : 4096,
                 [&](int64_t begin, int64_t end) {
                   for (int i = 0; i < calls; ++i) of.stream_part(i, begin, end, cold);
                 });
    });
    if (pass < 0) continue;
    ours.push_back(us / calls);
    ceiling.push_back(copy_us / calls);
  }
  Result r;
  r.c = c;
  r.us = median(ours);
  r.spread = spread(ours);
  r.ceiling_us = median(ceiling);
  r.ceiling = c.heads()                   ? "rows in place"
              : c.backward() || c.gated() ? joined(c) + (cold ? " non-temporal" : " in cache")
              : c.shrink() != 1           ? (cold ? "non-temporal, narrow" : "narrow, in cache")
              : cold                      ? "non-temporal copy"
                                          : "memcpy in cache";
  r.kernel = info.kernel;
  r.more["threads"] = options.threads;
  r.more["cold"] = cold;
  if (c.backward()) r.more["workspace_bytes"] = info.workspace_bytes;
  return r;
}

}  // namespace

void fill(char* data, int64_t bytes, const std::string& dtype) {
  uint64_t state = 1;
  const bool is_f32 = dtype == "f32", is_f16 = dtype == "f16";
  const int64_t size = is_f32 ? 4 : 2, period = std::min(bytes, int64_t{1} << 20);
  for (int64_t i = 0; i < period / size; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const auto h = static_cast<uint32_t>(state >> 40);
    // A mantissa at random, a sign, and an exponent near 1.
    if (is_f32) {
      reinterpret_cast<uint32_t*>(data)[i] = 0x3f000000u | (h & 0xffffff) | (h << 8 & 0x80000000u);
    } else {
      const uint32_t bits =
          is_f16 ? 0x3800u | (h & 0x7ff) | (h & 0x8000) : 0x3f00u | (h & 0xff) | (h & 0x8000);
      reinterpret_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(bits);
    }
  }
  for (int64_t at = period; at < bytes; at += period) {
    std::memcpy(data + at, data, static_cast<size_t>(std::min(period, bytes - at)));
  }
}

void stream_copy(char* to, const char* from, int64_t bytes, bool past) {
  stream<1>(to, from, bytes, past);
}

void stream_join(char* to, const char* const* from, int reads, int64_t bytes, bool past) {
  join(to, from, reads, bytes, past);
}

CpuContext::CpuContext(int threads) {
  fastnorm_context_options options = {};
  options.struct_size = sizeof options;
  options.num_threads = threads;
  check(fastnorm_context_create({FASTNORM_DEVICE_CPU, 0}, &options, &context_));
}

nlohmann::json describe_cpu(const Options& options) {
  fastnorm_device_info device = {};
  device.struct_size = sizeof device;
  check(fastnorm_device_describe({FASTNORM_DEVICE_CPU, 0}, &device));
  std::printf("%s, kernels %s, %d threads, L2 %llu KiB\n", device.name, device.kernel_arch,
              options.threads, static_cast<unsigned long long>(device.l2_bytes >> 10));
  return {{"device", device.name},
          {"isa", device.kernel_arch},
          {"l2_bytes", device.l2_bytes},
          {"threads", options.threads},
          {"replays", options.replays}};
}

int bench_cpu(const std::vector<Case>& cases, const Options& options) {
  const CpuContext context(options.threads);
  nlohmann::json document = describe_cpu(options);
  return time_all(
      cases, false,
      [&](const Case& c) {
        return c.backward() ? time_case<BackwardCalls>(context.get(), c, options)
                            : time_case<ForwardCalls>(context.get(), c, options);
      },
      options.save, &document);
}

}  // namespace bench
