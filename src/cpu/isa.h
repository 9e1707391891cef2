// Instruction sets: which have kernels in this build, which run on the machine, and which one a
// context uses.
#pragma once

#include <cstdint>
#include <span>

#include "core/common/error.h"

namespace fastnorm::cpu {

// In increasing order of preference.
enum class Isa : uint8_t { kScalar, kNeon, kAvx2, kAvx512 };

// What tells instruction sets apart on x86-64: registers of CPUID leaves, and XCR0, the state that
// the system saves.
struct CpuidFacts {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0;
  uint32_t leaf7_1_eax = 0;
  uint64_t xcr0 = 0;
};

struct Features {
  Isa best = Isa::kScalar;
  bool avx512_bf16 = false;  // with Isa::kAvx512: the instructions that convert to bf16
};

Features features_of(const CpuidFacts& facts);

// The features of this machine.
Features machine_features();

// One instruction set of this build.
struct IsaKernels {
  Isa isa;
  const char* name;
  int32_t vector_bytes;
  bool has_bf16;           // the norm has kernels for machines with AVX512_BF16, too
  bool prefetch_in_cache;  // prefetching the next row also helps when rows are in the cache
};

// A family's kernels for each instruction set of this build. Its run.cpp has them:
// constexpr ByIsa<NormHeadsKernels> kKernels = FASTNORM_BY_ISA(kNormHeads).
template <class Kernels>
struct ByIsa {
  const Kernels* at[4];  // by Isa

  const Kernels& operator[](const IsaKernels& of) const { return *at[static_cast<int>(of.isa)]; }
};

#if defined(__x86_64__) && defined(FASTNORM_WITHOUT_AVX512)
#define FASTNORM_BY_ISA(name)                        \
  {                                                  \
    { &name##Scalar, nullptr, &name##Avx2, nullptr } \
  }
#elif defined(__x86_64__)
#define FASTNORM_BY_ISA(name)                              \
  {                                                        \
    { &name##Scalar, nullptr, &name##Avx2, &name##Avx512 } \
  }
#elif defined(__aarch64__)
#define FASTNORM_BY_ISA(name)                        \
  {                                                  \
    { &name##Scalar, &name##Neon, nullptr, nullptr } \
  }
#else
#define FASTNORM_BY_ISA(name)                    \
  {                                              \
    { &name##Scalar, nullptr, nullptr, nullptr } \
  }
#endif

// The instruction sets of this build, in increasing order of preference.
std::span<const IsaKernels> built_isas();

// The best instruction set of machine and build, or the one that FASTNORM_CPU_ISA names.
// FASTNORM_ERROR_ARGUMENT if that one is not available. Reads the environment each time.
fastnorm_status choose_isa(const Features& features, const IsaKernels** chosen, Error& error);

}  // namespace fastnorm::cpu
