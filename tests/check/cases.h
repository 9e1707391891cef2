// The calls that a kernel is checked with.
#pragma once

#include <vector>

#include "check/case.h"

namespace fastnorm::check {

// Cases for a kernel, whether or not it can hold each of them: planning decides. `own` makes the layouts differ from kernel to
// kernel; contents are the same for all kernels of a dtype, source and statistic.
std::vector<Case> make_cases(const NormEntry& entry, bool cuda, bool reduced, uint64_t own);

}  // namespace fastnorm::check
