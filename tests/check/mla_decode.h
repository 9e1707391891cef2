// MLA decode on the devices of a target, against the reference in double.
#pragma once

#include "check/options.h"
#include "check/sweep.h"
#include "check/target.h"

namespace fastnorm::check {

void check_mla_decode(Target& target, const Options& options, Counts* counts);

}  // namespace fastnorm::check
