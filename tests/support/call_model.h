// What a family's model knows of calls. FAMILY_call.cpp has FAMILY_model().
#pragma once

#include <cstdint>
#include <string>

#include "ref/norm_spec.h"
#include "support/families.h"
#include "support/operands.h"

namespace fastnorm::support {

struct Expected {
  std::string out_of_bounds = {};  // "" or where the model leaves the specification in double
  int64_t bounded = 0;             // rows of a norm that were compared with it
};

struct CallModel {
  const char* family;       // the first word of its lines
  void (*fill)(Operands&);  // gives indices, and what else a call reads that must fit together
  Expected (*expect)(Operands&, ref::Order);  // what should be there after the call
};

#define FAMILY(name) CallModel name##_model();
FASTNORM_PART_FAMILIES(FAMILY)
#undef FAMILY

}  // namespace fastnorm::support
