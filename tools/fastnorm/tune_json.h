// What `fastnorm tune --json` says.
#pragma once

#include <string>

#include "json.h"
#include "tune_csv.h"

namespace fastnorm::tool {

// A case's op, dtype, rows and n.
Json to_json(const BenchCase& c);
// That with the library's choice, the fastest kernel and both times.
Json to_json(const Finding& finding);
Json to_json(const TuneCounts& counts);

}  // namespace fastnorm::tool
