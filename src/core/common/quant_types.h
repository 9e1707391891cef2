// The dtypes of codes and scales. Kernels of every backend include this, so it uses no instruction
// set.
#pragma once

#include <cstdint>

namespace fastnorm {

enum class CodeType : uint8_t { kE4M3, kE5M2, kI8, kE2M1 };
enum class ScaleType : uint8_t { kF32, kE8M0, kE4M3 };

}  // namespace fastnorm
