#include "cpu/isa.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "core/common/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fastnorm::cpu {
namespace {

constexpr char kVariable[] = "FASTNORM_CPU_ISA";

constexpr bool has(uint64_t bits, uint64_t wanted) { return (bits & wanted) == wanted; }

#if defined(__x86_64__)
uint64_t read_xcr0() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

CpuidFacts read_cpuid() {
  constexpr uint32_t kXgetbv = 1u << 27;  // OSXSAVE
  CpuidFacts facts;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) != 0) facts.leaf1_ecx = c;
  if (has(facts.leaf1_ecx, kXgetbv)) facts.xcr0 = read_xcr0();
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) {
    facts.leaf7_ebx = b;
    const uint32_t subleaves = a;
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) facts.leaf7_1_eax = a;
  }
  return facts;
}
#endif

bool runs(Isa isa, const Features& features) { return isa <= features.best; }

std::string available(const Features& features) {
  std::string names;
  for (const IsaKernels& k : built_isas()) {
    if (!runs(k.isa, features)) continue;
    if (!names.empty()) names += ", ";
    names += k.name;
  }
  return names;
}

}  // namespace

Features features_of(const CpuidFacts& facts) {
  constexpr uint32_t kFma = 1u << 12, kAvx = 1u << 28, kF16c = 1u << 29;
  constexpr uint32_t kAvx2 = 1u << 5, kAvx512F = 1u << 16, kAvx512Dq = 1u << 17,
                     kAvx512Bw = 1u << 30, kAvx512Vl = 1u << 31;
  constexpr uint32_t kAvx512Bf16 = 1u << 5;
  constexpr uint64_t kYmmState = 0x6, kZmmState = 0xe6;
  Features features;
  if (!has(facts.leaf1_ecx, kFma | kAvx | kF16c) || !has(facts.leaf7_ebx, kAvx2) ||
      !has(facts.xcr0, kYmmState)) {
    return features;
  }
  features.best = Isa::kAvx2;
  if (!has(facts.leaf7_ebx, kAvx512F | kAvx512Dq | kAvx512Bw | kAvx512Vl) ||
      !has(facts.xcr0, kZmmState)) {
    return features;
  }
  features.best = Isa::kAvx512;
  features.avx512_bf16 = has(facts.leaf7_1_eax, kAvx512Bf16);
  return features;
}

Features machine_features() {
#if defined(__x86_64__)
  static const Features features = features_of(read_cpuid());
  return features;
#elif defined(__aarch64__)
  return {Isa::kNeon, false};  // part of the base architecture
#else
  return {};
#endif
}

std::span<const IsaKernels> built_isas() {
  static constexpr IsaKernels kIsas[] = {
    {Isa::kScalar, "scalar", 4, false, false},
#if defined(__x86_64__)
    // Prefetching for rows in the cache. AVX-512, 32 x 4096 f32 on a Sapphire Rapids: 48 -> 22 us.
    // On a Zen 4 it costs 1-3 %. With AVX2 it costs on both.
    {Isa::kAvx2, "avx2", 32, false, false},
#ifndef FASTNORM_WITHOUT_AVX512
    {Isa::kAvx512, "avx512", 64, true, true},
#endif
#elif defined(__aarch64__)
    {Isa::kNeon, "neon", 16, false, false},
#endif
  };
  return kIsas;
}

fastnorm_status choose_isa(const Features& features, const IsaKernels** chosen, Error& error) {
  const char* wanted = std::getenv(kVariable);
  const bool any = wanted == nullptr || *wanted == '\0';
  *chosen = nullptr;
  for (const IsaKernels& k : built_isas()) {
    if (runs(k.isa, features) && (any || std::strcmp(wanted, k.name) == 0)) *chosen = &k;
  }
  FASTNORM_REQUIRE(*chosen != nullptr, FASTNORM_ERROR_ARGUMENT,
                   "the environment variable %s is \"%.32s\"; available: %s", kVariable, wanted,
                   available(features).c_str());
  return FASTNORM_OK;
}

}  // namespace fastnorm::cpu
