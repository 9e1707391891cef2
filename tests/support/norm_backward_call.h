// Calls of norm_backward: what the model says should be there afterwards.
#pragma once

#include <string>

#include "ref/norm_spec.h"
#include "support/operands.h"

namespace fastnorm::support {

// Statistics that are given differ a little from those of the rows, so that a result from the
// latter would show.
void fill_norm_backward(Operands& call);

// "" or where the model leaves the bounds of the formula in double. With a wrong order of sums
// along rows, those over rows are sequential, and nothing is said of bounds.
std::string expect_norm_backward(Operands& call, ref::Order order);

}  // namespace fastnorm::support
