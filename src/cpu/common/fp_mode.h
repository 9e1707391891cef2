// Sets the floating-point mode of the specified arithmetic for a scope: round to nearest, keep
// subnormals, trap nothing.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace fastnorm::cpu {

// Restores the thread's mode and exception flags. Code that computes in the mode must be behind a
// call that is not inlined: compilers do not know that arithmetic depends on the mode.
class FpMode {
 public:
  FpMode() : saved_(read()) {
    if (control(saved_) != kControl) write(kControl);
  }
  // Skipped if nothing changed, because it is slow.
  ~FpMode() {
    if (read() != saved_) write(saved_);
  }
  FpMode(const FpMode&) = delete;
  FpMode& operator=(const FpMode&) = delete;

 private:
#if defined(__x86_64__)
  using Word = uint32_t;  // MXCSR
  static constexpr Word kControl = 0x1f80, kFlags = 0x3f;
  static Word read() { return _mm_getcsr(); }
  static void write(Word word) { _mm_setcsr(word); }
  static Word control(Word word) { return word & ~kFlags; }
#elif defined(__aarch64__)
  // FPCR. Above it FPSR, whose flags need no clearing.
  using Word = uint64_t;
  static constexpr Word kControl = 0;
  static Word read() {
    uint64_t fpcr = 0, fpsr = 0;
    asm volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(fpcr), "=r"(fpsr));
    return fpsr << 32 | (fpcr & 0xffffffff);
  }
  static void write(Word word) {
    asm volatile("msr fpcr, %0\n\tmsr fpsr, %1" ::"r"(word & 0xffffffff), "r"(word >> 32));
  }
  static Word control(Word word) { return word & 0xffffffff; }
#else
  using Word = uint32_t;
  static constexpr Word kControl = 0;
  static Word read() { return 0; }
  static void write(Word) {}
  static Word control(Word word) { return word; }
#endif

  const Word saved_;
};

}  // namespace fastnorm::cpu
