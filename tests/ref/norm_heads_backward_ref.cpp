#include "ref/norm_heads_backward_ref.h"

#include <cmath>

namespace fastnorm::ref {

void turned_gradient_model(bool rope, const RopeOptions& turn, const float* dy, int64_t n,
                           const float* c, const float* s, float* dv) {
  for (int64_t i = 0; i < n; ++i) dv[i] = dy[i];
  for (int64_t j = 0; rope && j < turn.half; ++j) {
    const RopePair pair = rope_pair(turn, j);
    const float v1 = dv[pair.first], v2 = dv[pair.second];
    const float sine = turn.inverse ? s[j] : -s[j];  // the opposite direction
    const float b = v2 * sine, e = v1 * sine;
    dv[pair.first] = std::fma(v1, c[j], -b);
    dv[pair.second] = std::fma(v2, c[j], e);
  }
}

void turned_gradient_ref(bool rope, const RopeOptions& turn, const float* dy, int64_t n,
                         const float* c, const float* s, double* dv, double* bound) {
  // Two roundings of products and one of the sum. A product below the least f32 may vanish.
  constexpr double kU = 0x1p-24, kLeast = 0x1p-149;
  for (int64_t i = 0; i < n; ++i) {
    dv[i] = static_cast<double>(dy[i]);
    bound[i] = 0;
  }
  for (int64_t j = 0; rope && j < turn.half; ++j) {
    // The transpose of the forward's rotation.
    const RopePair pair = rope_pair(turn, j);
    const double d1 = dv[pair.first], d2 = dv[pair.second];
    const auto cosine = static_cast<double>(c[j]);
    const double sine = static_cast<double>(s[j]) * (turn.inverse ? -1 : 1);
    dv[pair.first] = cosine * d1 + sine * d2;
    dv[pair.second] = cosine * d2 - sine * d1;
    const double a = std::fabs(cosine), b = std::fabs(sine);
    bound[pair.first] = 3 * kU * (a * std::fabs(d1) + b * std::fabs(d2)) + 2 * kLeast;
    bound[pair.second] = 3 * kU * (a * std::fabs(d2) + b * std::fabs(d1)) + 2 * kLeast;
  }
}

}  // namespace fastnorm::ref
