// Random norm_heads_backward calls on the devices of a target, against the model byte for byte.
#pragma once

#include "check/options.h"
#include "check/sweep.h"
#include "check/target.h"

namespace fastnorm::check {

void check_norm_heads_backward(Target& target, const Options& options, Counts* counts);

}  // namespace fastnorm::check
