// Random norm calls with stages on the devices of a target, against the model byte for byte.
#pragma once

#include "check/options.h"
#include "check/sweep.h"
#include "check/target.h"

namespace fastnorm::check {

void check_norm_stages(Target& target, const Options& options, Counts* counts);

}  // namespace fastnorm::check
