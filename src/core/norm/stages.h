// The kernels of calls with stages, which are calls of the norm: they have its arguments, its
// description and its plan, and kernels of their own. A plan's entry tells what every kernel of the
// norm tells. Its key is that of a kernel that takes every call.
//
// On CPUs: one kernel for each dtype and statistic, which supports all stages. On GPUs: general
// kernels, and forms for common calls.
#pragma once

#include <array>

#include "core/common/error.h"
#include "core/common/word.h"
#include "core/norm/desc.h"
#include "core/norm/key.h"

namespace fastnorm {

struct DeviceFacts;
struct NormPlan;

inline constexpr int kStagesKernels = 6;

constexpr int stages_kernel(Dtype dtype, Stat stat) {
  return static_cast<int>(dtype) * 2 + static_cast<int>(stat);
}

// In the order of stages_kernel(): "bf16 rms stages".
constexpr std::array<NormEntry, kStagesKernels> make_stages_table() {
  std::array<NormEntry, kStagesKernels> table{};
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    for (const Stat stat : {Stat::kRms, Stat::kLayer}) {
      NormEntry& entry = table[static_cast<size_t>(stages_kernel(dtype, stat))];
      entry.key = general_key(dtype, stat);
      int length = 0;
      for (const char* text : {dtype_name(dtype), " ", name_of(stat), " stages"}) {
        while (*text != '\0') entry.name[length++] = *text++;
      }
    }
  }
  return table;
}

inline constexpr std::array<NormEntry, kStagesKernels> kStagesTable = make_stages_table();

#define C(name, value) inline constexpr int64_t name = value;
#include "core/norm/stages_choice.inc"
#undef C

// What a CUDA kernel does.
enum class StagesForm : uint8_t {
  kGeneral,  // every call
  // Aligned rows of 16 bits that registers hold:
  kGated,     // RMS, weight of T or none, a gate; a group of a row is a row of its own
  kSandwich,  // RMS, residual, RMS, weights of T or none
  // x * residual_gate + residual, RMS or LAYER, weight of T or none, scale and shift. Modulators
  // are of T. Where no step rounds, they are of T or f32, and have tables or none.
  kModulated,
  // RMS without stages, weight of T or none, codes of rotated results: everything that such a call
  // can ask for beside them.
  kRotated,
  kRotatedSum,  // the same of x + residual
  // Rotated codes alone, of rows that share a weight.
  kRotatedLean,
  kRotatedLeanSum,
};

// One CUDA kernel as data.
struct StagesVariant {
  Dtype dtype = Dtype::kF32;  // T
  StagesForm form = StagesForm::kGeneral;
  int16_t threads = 0;  // that share a row
  int8_t vectors = 0;   // of 16 bytes that a thread holds of a row; kGeneral: 0, it holds none
  int8_t per_sm = 1;    // thread blocks, for __launch_bounds__

  constexpr bool operator==(const StagesVariant&) const = default;

  constexpr bool is_held() const { return form != StagesForm::kGeneral; }
  constexpr bool is_rotated() const { return form >= StagesForm::kRotated; }
  constexpr bool is_lean() const { return form >= StagesForm::kRotatedLean; }
  constexpr bool has_residual() const {
    return form == StagesForm::kRotatedSum || form == StagesForm::kRotatedLeanSum;
  }
  constexpr int64_t vectors_held() const { return int64_t{threads} * vectors; }

  // In its word.
  static constexpr void numbers(auto& v, auto use) {
    use(v.dtype, 2), use(v.form, 3), use(v.threads, 11), use(v.vectors, 6), use(v.per_sm, 6);
  }
};

// Its word, and back.
constexpr uint32_t packed(const StagesVariant& v) { return packed_word<uint32_t>(v); }
constexpr StagesVariant stages_variant_of(uint32_t word) { return variant_in<StagesVariant>(word); }

struct StagesEntry : NormEntry {
  StagesVariant variant;
};

// The kernels of an architecture, sorted by packed().
struct StagesKernelList {
  const StagesEntry* entries;
  int32_t count;
};

// True if a modulator of `desc` has another dtype than x, or a table.
bool has_mixed_modulators(const NormDesc& desc);

// Plans a call with stages on a CUDA device. *plan has what does not depend on the kernel.
fastnorm_status plan_stages_cuda(const NormDesc& desc, const DeviceFacts& facts, NormPlan* plan,
                                 Error& error);

// Plans a call with stages on kernel `index` of the device's list, for tests.
// FASTNORM_ERROR_UNSUPPORTED if that kernel cannot serve the call.
fastnorm_status plan_stages_for(const NormDesc& desc, const DeviceFacts& facts, int32_t index,
                                NormPlan* plan, Error& error);

}  // namespace fastnorm
