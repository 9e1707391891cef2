// The kernels of calls with stages that an architecture has, without CUDA.
#pragma once

#include <span>

#include "cuda/arch.h"
#include "cuda/norm_stages/list.h"

namespace fastnorm::cuda {

// In the order of their addresses (kernels.h).
std::span<const StagesEntry> norm_stages_table(const ArchSpec& arch);

// The same as a plan points to them.
std::span<const NormEntry> norm_stages_entries(const ArchSpec& arch);

constexpr bool has_stages_line(const NormEntry& entry) { return entry.line >= kFirstStagesLine; }

// The line of variants.inc that such an entry is made of.
const char* stages_text(const NormEntry& entry);

}  // namespace fastnorm::cuda
