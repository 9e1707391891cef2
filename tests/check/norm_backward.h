// Backward passes on the devices of targets, against the model bit for bit and the reference in
// double. A device that leaves the very bytes that another left before, of the same case, has that
// one's result: the model runs once.
#pragma once

#include <span>

#include "check/options.h"
#include "check/sweep.h"
#include "check/target.h"

namespace fastnorm::check {

void check_norm_backward(std::span<Target* const> targets, const Options& options, Counts* counts);

}  // namespace fastnorm::check
