// Runs every kernel of a target on every case.
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>

#include "check/options.h"
#include "check/same_bits.h"
#include "check/target.h"

namespace fastnorm::check {

struct Counts {
  int64_t passed = 0, failed = 0, skipped = 0;
};

// Runs and compares. Prints what is wrong, and how many kernels ran. The targets have the same
// table, and expected results are computed once for all of them.
void sweep(std::span<Target> targets, const Options& options, SameBits* same_bits, Counts* counts);

// The comparison must be able to fail: a model with another order of folds must differ from the
// kernels in many rows.
void check_sensitivity(Target& target, const Options& options, Counts* counts);

// CPU: rows at the edges of mapped memory.
void check_page_edges(Target& target, const Options& options, Counts* counts);

}  // namespace fastnorm::check
