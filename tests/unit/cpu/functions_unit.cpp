// The functions of one instruction set over arrays, for functions_test.cpp.
#include "cpu/common/functions-inl.h"

namespace fastnorm::cpu {
namespace {

template <class Function>
FASTNORM_INLINE void map(const float* x, float* y, int64_t n, Function function) {
  constexpr int kElements = 2 * kLanes;
  for (int64_t i = 0; i < n; i += kElements) {
    const int count = static_cast<int>(smaller(n - i, kElements));
    const Pair v = load_some(F32{}, reinterpret_cast<const char*>(x + i), count);
    store_some(F32{}, reinterpret_cast<char*>(y + i), {function(v.a), function(v.b)}, count);
  }
}

}  // namespace
}  // namespace fastnorm::cpu

// `which` counts exp, sigmoid, silu, tanh.
void FUNCTIONS_OF_LEVEL(int which, const float* x, float* y, int64_t n) {
  using namespace fastnorm::cpu;
  if (which == 0) map(x, y, n, [](Vec v) { return exponential(v); });
  if (which == 1) map(x, y, n, [](Vec v) { return sigmoid(v); });
  if (which == 2) map(x, y, n, [](Vec v) { return silu(v); });
  if (which == 3) map(x, y, n, [](Vec v) { return hyperbolic_tangent(v); });
}
