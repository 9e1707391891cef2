// The table of schemes, for programs that know the library by its public headers and the texts of
// calls.
#pragma once

#include "core/common/quant_scheme.h"

namespace fastnorm::support {

using fastnorm::SchemeScale;

inline const QuantScheme& scheme_of(fastnorm_quant_scheme scheme) {
  return fastnorm::scheme_of(scheme);
}

// Columns of a scale; block_size where the scheme leaves them to the call.
inline int64_t scale_columns(fastnorm_quant_scheme scheme, int64_t block_size) {
  const int32_t block = scheme_of(scheme).block;
  return block > 0 ? block : block_size;
}

}  // namespace fastnorm::support
