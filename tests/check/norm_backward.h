// Backward passes on the devices of a target, against the model bit for bit and the reference in
// double.
#pragma once

#include "check/options.h"
#include "check/sweep.h"
#include "check/target.h"

namespace fastnorm::check {

void check_norm_backward(Target& target, const Options& options, Counts* counts);

}  // namespace fastnorm::check
