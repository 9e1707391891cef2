// Instruction sets: which have kernels in this build, which run on the machine, and which one a
// context uses.
#pragma once

#include <cstdint>
#include <span>

#include "core/error.h"
#include "cpu/mla_decode_params.h"
#include "cpu/norm_backward_params.h"
#include "cpu/norm_heads_backward_params.h"
#include "cpu/norm_heads_params.h"
#include "cpu/norm_kernels.h"
#include "cpu/norm_stages_params.h"

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
  const NormKernels* norm;
  const NormKernels* norm_bf16;  // bf16 kernels for machines with AVX512_BF16; nullptr = norm
  const MlaDecodeKernels* mla_decode;
  const NormBackwardKernels* norm_backward;
  const NormHeadsKernels* norm_heads;
  const StagesKernels* norm_stages;
  const NormHeadsBackwardKernels* norm_heads_backward;
  bool prefetch_in_cache;  // prefetching the next row also helps when rows are in the cache

  // The address of a table entry's kernel, on a machine with or without AVX512_BF16.
  NormKernel norm_kernel(int32_t index, bool avx512_bf16) const {
    if (avx512_bf16 && norm_bf16 != nullptr && norm_bf16->at[index] != nullptr) {
      return norm_bf16->at[index];
    }
    return norm->at[index];
  }
};

// The instruction sets of this build, in increasing order of preference.
std::span<const IsaKernels> built_isas();

// The best instruction set of machine and build, or the one that FASTNORM_CPU_ISA names.
// FASTNORM_ERROR_ARGUMENT if that one is not available. Reads the environment each time.
fastnorm_status choose_isa(const Features& features, const IsaKernels** chosen, Error& error);

}  // namespace fastnorm::cpu
