// Floating-point modes that are not the specification's, as a caller may have set them.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastnorm::test {

#if defined(__x86_64__)
inline uint64_t fp_mode() { return _mm_getcsr(); }
inline void set_fp_mode(uint64_t mode) { _mm_setcsr(static_cast<uint32_t>(mode)); }
// Flush to zero, subnormals are zeros, round up, an exception flag set. Then the same with traps
// on.
inline constexpr uint64_t kOddModes[] = {0x1f80 | 0x8040 | 0x4000 | 0x01, 0x1f80 | 0x2000,
                                         0x0000 | 0x6000};
inline constexpr uint64_t kFpFlags = 0x3f;
#elif defined(__aarch64__)
inline uint64_t fp_mode() {
  uint64_t fpcr = 0;
  asm volatile("mrs %0, fpcr" : "=r"(fpcr));
  return fpcr;
}
inline void set_fp_mode(uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode)); }
// Flush to zero and round up; round down; default NaN and round to zero.
inline constexpr uint64_t kOddModes[] = {1u << 24 | 1u << 22, 2u << 22, 1u << 25 | 3u << 22};
inline constexpr uint64_t kFpFlags = 0;
#endif

// What `call` returns in a mode. The thread then has its own mode again. `kept`: whether the call
// left the mode as it was.
template <class Call>
auto in_fp_mode(uint64_t mode, bool* kept, Call call) {
  const uint64_t before = fp_mode();
  set_fp_mode(mode);
  const uint64_t set = fp_mode();
  const auto result = call();
  *kept = fp_mode() == set;
  set_fp_mode(before);
  return result;
}

}  // namespace fastnorm::test
