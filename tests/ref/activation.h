// The activations of gates and their derivatives: as the library computes them, operation by
// operation in f32, and in double.
#pragma once

#include <cstdint>

namespace fastnorm::ref {

enum class Activation : uint8_t { kIdentity, kSilu, kSigmoid, kTanh };
inline constexpr int kActivations = 4;

float activate(Activation activation, float v);
float activation_slope(Activation activation, float v);

double exact_activation(Activation activation, double v);
double exact_activation_slope(Activation activation, double v);

// How far the library's value may be from the exact one.
double activation_error(Activation activation, double exact);
double activation_slope_error(Activation activation, double v);

}  // namespace fastnorm::ref
