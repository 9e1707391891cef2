// The calls that a kernel is checked with.
#pragma once

#include <vector>

#include "check/case.h"

namespace fastnorm::check {

// Cases for a kernel. Planning decides whether the kernel supports each of them. `own` makes the
// layouts differ between kernels. All kernels of a dtype, source and statistic have the same
// contents.
std::vector<Case> make_cases(const NormEntry& entry, bool cuda, bool reduced, uint64_t own);

}  // namespace fastnorm::check
