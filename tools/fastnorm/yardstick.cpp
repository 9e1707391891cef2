#include "yardstick.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastnorm::tool {

#if defined(__x86_64__)
namespace {

__attribute__((target("avx512f"))) size_t stream_avx512(std::byte* to, const std::byte* from,
                                                        size_t bytes) {
  size_t i = 0;
  for (; i + 64 <= bytes; i += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
  }
  return i;
}

__attribute__((target("avx"))) size_t stream_avx(std::byte* to, const std::byte* from,
                                                 size_t bytes) {
  size_t i = 0;
  for (; i + 32 <= bytes; i += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
  }
  return i;
}

size_t stream_sse2(std::byte* to, const std::byte* from, size_t bytes) {
  size_t i = 0;
  for (; i + 16 <= bytes; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
  return i;
}

}  // namespace

void copy_non_temporal(std::byte* to, const std::byte* from, size_t bytes) {
  // Streaming stores need aligned addresses; 64 is enough for each of them.
  const size_t head = std::min(bytes, (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64);
  std::memcpy(to, from, head);
  to += head, from += head, bytes -= head;
  const size_t streamed = __builtin_cpu_supports("avx512f") ? stream_avx512(to, from, bytes)
                          : __builtin_cpu_supports("avx")   ? stream_avx(to, from, bytes)
                                                            : stream_sse2(to, from, bytes);
  _mm_sfence();
  std::memcpy(to + streamed, from + streamed, bytes - streamed);
}
#else
// AArch64 decides by itself when a long run of stores need not be read first.
void copy_non_temporal(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}
#endif

void on_slices(int threads, size_t bytes, void (*work)(void* user, size_t begin, size_t end),
               void* user) {
  constexpr size_t kPageBytes = 4096;
  const auto count = static_cast<size_t>(threads);
  const size_t slice = (bytes / count + kPageBytes) / kPageBytes * kPageBytes;
  std::vector<std::thread> others;
  for (size_t t = 1; t < count && t * slice < bytes; ++t) {
    others.emplace_back(work, user, t * slice, std::min(bytes, (t + 1) * slice));
  }
  work(user, 0, std::min(bytes, slice));
  for (std::thread& thread : others) thread.join();
}

}  // namespace fastnorm::tool
