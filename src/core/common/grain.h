// How much work justifies another CPU thread: waking one costs as much as 32 to 64 rows of 1024
// elements of a norm, about 20 us of a core with vectors.
#pragma once

#include <cstdint>

namespace fastnorm {

// Elements of a family's call.
inline constexpr int64_t kNormGrain = 65536, kNormBackwardGrain = 65536, kNormHeadsGrain = 16384;

}  // namespace fastnorm
