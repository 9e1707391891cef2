// Random calls of norm_heads_backward as lines of text, and what the model says should be there
// afterwards.
#pragma once

#include <cstdint>
#include <string>

namespace fastnorm::support {

enum class GradientCallKind {
  kAny,              // every option, any address
  kPlain,            // parts that norm_backward's kernels can do
  kMany,             // every option, several hundred tokens
  kAligned,          // what kernels that hold rows in registers can serve
  kAlignedMany,      // such, with more rows than the lanes of the row order
  kAlignedWide,      // such, of tokens with up to 8192 columns, whose heads share a statistic
  kAlignedWideMany,  // such, of two heads, with more tokens than the lanes of the row order
};

std::string draw_norm_heads_backward(uint64_t seed, GradientCallKind kind, bool gpu);

}  // namespace fastnorm::support
