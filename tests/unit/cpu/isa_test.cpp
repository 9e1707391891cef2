// Instruction sets: detection from CPUID, and forcing one.
#include "cpu/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "unit/cpu/environment.h"

namespace fastnorm::cpu {
namespace {

// Bits of registers as the manuals number them.
constexpr uint32_t kAvx = 1u << 28, kFma = 1u << 12, kF16c = 1u << 29;
constexpr uint32_t kAvx2 = 1u << 5, kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;
constexpr uint32_t kBf16 = 1u << 5;
constexpr uint64_t kYmm = 0x7, kZmm = 0xe7;

constexpr CpuidFacts kFull = {kAvx | kFma | kF16c, kAvx2 | kF | kDq | kBw | kVl, kBf16, kZmm};

TEST(Isa, FullMachine) {
  EXPECT_EQ(features_of(kFull).best, Isa::kAvx512);
  EXPECT_TRUE(features_of(kFull).avx512_bf16);
}

TEST(Isa, WithoutTheInstructionsForBf16) {
  CpuidFacts facts = kFull;
  facts.leaf7_1_eax = ~kBf16;
  EXPECT_EQ(features_of(facts).best, Isa::kAvx512);
  EXPECT_FALSE(features_of(facts).avx512_bf16);
}

TEST(Isa, EachPartOfAvx512IsNeeded) {
  for (const uint32_t part : {kF, kDq, kBw, kVl}) {
    CpuidFacts facts = kFull;
    facts.leaf7_ebx &= ~part;
    EXPECT_EQ(features_of(facts).best, Isa::kAvx2) << part;
    EXPECT_FALSE(features_of(facts).avx512_bf16) << part;
  }
}

TEST(Isa, EachPartOfAvx2IsNeeded) {
  for (const uint32_t part : {kAvx, kFma, kF16c}) {
    CpuidFacts facts = kFull;
    facts.leaf1_ecx &= ~part;
    EXPECT_EQ(features_of(facts).best, Isa::kScalar) << part;
  }
  CpuidFacts facts = kFull;
  facts.leaf7_ebx &= ~kAvx2;
  EXPECT_EQ(features_of(facts).best, Isa::kScalar);
}

TEST(Isa, TheSystemMustSaveTheRegisters) {
  CpuidFacts facts = kFull;
  facts.xcr0 = kYmm;
  EXPECT_EQ(features_of(facts).best, Isa::kAvx2);
  for (const uint64_t saved : {uint64_t{0}, uint64_t{3}, uint64_t{5}, uint64_t{0xe0}}) {
    facts.xcr0 = saved;
    EXPECT_EQ(features_of(facts).best, Isa::kScalar) << saved;
  }
  facts.xcr0 = kYmm | 0x60;  // without the upper 16 registers
  EXPECT_EQ(features_of(facts).best, Isa::kAvx2);
}

TEST(Isa, NothingKnown) { EXPECT_EQ(features_of(CpuidFacts{}).best, Isa::kScalar); }

TEST(Isa, BuiltLevelsAscendFromScalar) {
  const auto built = built_isas();
  ASSERT_GE(built.size(), 2u);
  EXPECT_EQ(built[0].isa, Isa::kScalar);
  for (size_t i = 1; i < built.size(); ++i) {
    EXPECT_GT(built[i].isa, built[i - 1].isa);
    EXPECT_GT(built[i].vector_bytes, built[i - 1].vector_bytes);
  }
}

TEST(Isa, ForcedByTheEnvironmentEachTime) {
  Error error;
  for (const IsaKernels& k : built_isas()) {
    if (k.isa > machine_features().best) continue;
    const test::Variable forced("FASTNORM_CPU_ISA", k.name);
    const IsaKernels* chosen = nullptr;
    ASSERT_EQ(choose_isa(machine_features(), &chosen, error), FASTNORM_OK) << error.text;
    EXPECT_EQ(chosen, &k);
  }
}

TEST(Isa, BestWithoutTheVariableOrWithAnEmptyOne) {
  for (const char* value : {static_cast<const char*>(nullptr), ""}) {
    const test::Variable variable("FASTNORM_CPU_ISA", value);
    const IsaKernels* chosen = nullptr;
    Error error;
    ASSERT_EQ(choose_isa(machine_features(), &chosen, error), FASTNORM_OK) << error.text;
    EXPECT_EQ(chosen->isa, std::min(machine_features().best, built_isas().back().isa));
  }
}

TEST(Isa, UnknownOrUnavailableIsAnError) {
  for (const char* value : {"sse9", "AVX2", "scalar ", "avx512"}) {
    const test::Variable forced("FASTNORM_CPU_ISA", value);
    const IsaKernels* chosen = nullptr;
    Error error;
    const Features old;  // scalar alone
    EXPECT_EQ(choose_isa(old, &chosen, error), FASTNORM_ERROR_ARGUMENT) << value;
    EXPECT_EQ(chosen, nullptr);
    EXPECT_EQ(std::string(error.text), "the environment variable FASTNORM_CPU_ISA is \"" +
                                           std::string(value) + "\"; available: scalar");
  }
}

}  // namespace
}  // namespace fastnorm::cpu
