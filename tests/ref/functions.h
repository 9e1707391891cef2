// exp, sigmoid, silu and tanh as the library computes them, operation by operation in f32.
#pragma once

namespace fastnorm::ref {

float exponential(float x);
float sigmoid(float z);
float silu(float z);
float hyperbolic_tangent(float x);

}  // namespace fastnorm::ref
