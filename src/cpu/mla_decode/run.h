// From a described MLA decode call to ranges of work on the CPU.
#pragma once

#include <cstdint>

#include "core/mla_decode/desc.h"
#include "cpu/isa.h"
#include "cpu/mla_decode/params.h"

namespace fastnorm::cpu {

// In the order of MlaDecodeKernels.
inline constexpr const char* kMlaDecodeNames[] = {"f32", "f16", "bf16"};

struct MlaDecodeTask {
  MlaDecodeKernel kernel;
  MlaDecodeParams params;
};

// Computes in the caller's floating-point mode: see fp_mode.h.
MlaDecodeTask make_mla_decode_task(const MlaDecodeDesc& desc, const IsaKernels& isa);

// Groups of heads over all tokens. Ranges count these.
int64_t mla_decode_groups(const MlaDecodeDesc& desc);

// Groups that justify another thread. Reads the lengths.
int64_t mla_decode_grain(const MlaDecodeDesc& desc);

// A fastnorm_range_fn; `task` is a MlaDecodeTask.
void run_mla_decode_range(void* task, int64_t begin, int64_t end);

}  // namespace fastnorm::cpu
