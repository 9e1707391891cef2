// Calls of norm_heads, both backward families and norm with stages on the devices of targets,
// against the model byte for byte. The targets have one order of sums, and expected results are
// computed once for all of them.
#pragma once

#include <span>

#include "check/options.h"
#include "check/sweep.h"
#include "check/target.h"

namespace fastnorm::check {

void check_norm_heads(std::span<Target* const> targets, const Options& options, Counts* counts);
void check_norm_heads_backward(std::span<Target* const> targets, const Options& options,
                               Counts* counts);
void check_norm_backward(std::span<Target* const> targets, const Options& options, Counts* counts);
void check_norm_stages(std::span<Target* const> targets, const Options& options, Counts* counts);

}  // namespace fastnorm::check
