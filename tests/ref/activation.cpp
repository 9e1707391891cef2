#include "ref/activation.h"

#include <algorithm>
#include <cmath>

#include "ref/functions.h"

namespace fastnorm::ref {
namespace {

constexpr double kU = 0x1p-24;
constexpr double kLeast = 0x1p-149;
constexpr double kFunction = 8 * kU;  // relative error of an activation, which is at most 2.9 units

double exact_sigmoid(double v) {
  const double e = std::exp(-std::fabs(v));
  return v < 0 ? e / (1 + e) : 1 / (1 + e);
}

}  // namespace

float activate(Activation activation, float v) {
  return activation == Activation::kSilu      ? silu(v)
         : activation == Activation::kSigmoid ? sigmoid(v)
         : activation == Activation::kTanh    ? hyperbolic_tangent(v)
                                              : v;
}

float activation_slope(Activation activation, float v) {
  if (activation == Activation::kIdentity) return 1.0f;
  if (activation == Activation::kTanh) v = v + v;
  if (v < -110.0f) v = -110.0f;
  if (v > 110.0f) v = 110.0f;
  const float s = sigmoid(v), c = sigmoid(0.0f - v);
  if (activation == Activation::kSilu) return s * std::fma(v, c, 1.0f);
  return (activation == Activation::kTanh ? 4.0f * s : s) * c;
}

double exact_activation(Activation activation, double v) {
  if (activation == Activation::kIdentity) return v;
  if (activation == Activation::kTanh) return std::tanh(v);
  const double s = exact_sigmoid(v);
  return activation == Activation::kSilu ? v * s : s;
}

double exact_activation_slope(Activation activation, double v) {
  if (activation == Activation::kIdentity) return 1;
  if (activation == Activation::kTanh) v = 2 * v;
  v = std::clamp(v, -1000.0, 1000.0);  // an infinite v has the limit
  const double s = exact_sigmoid(v), c = exact_sigmoid(-v);
  if (activation == Activation::kSilu) return s * (1 + v * c);
  return (activation == Activation::kTanh ? 4 * s : s) * c;
}

double activation_error(Activation activation, double exact) {
  return activation == Activation::kIdentity ? 0 : kFunction * std::fabs(exact) + kLeast;
}

double activation_slope_error(Activation activation, double v) {
  if (activation == Activation::kIdentity) return 0;
  const double value = std::fabs(exact_activation_slope(activation, v));
  if (activation != Activation::kSilu) return 2 * kFunction * value + 4 * kLeast;
  // The sum may cancel.
  const double z = std::clamp(v, -1000.0, 1000.0), s = exact_sigmoid(z);
  return kFunction * value + 2 * kFunction * s * (1 + std::fabs(z) * exact_sigmoid(-z)) +
         1000 * kLeast;
}

}  // namespace fastnorm::ref
