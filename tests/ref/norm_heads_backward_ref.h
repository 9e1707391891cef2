// What a gradient of norm_heads becomes before the norm's backward takes it: a scalar
// single-precision program that a backend must equal bit for bit, and the formula in double. All
// behind it is norm_backward's, with these values for dy.
#pragma once

#include <cstdint>

#include "ref/norm_heads_ref.h"

namespace fastnorm::ref {

// dv [n] of a row dy [n]. `turn` is the forward's, c and s are [half]; without rope dv is dy.
void turned_gradient_model(bool rope, const RopeOptions& turn, const float* dy, int64_t n,
                           const float* c, const float* s, float* dv);

// The same in double, and `bound` [n]: how far single precision may be off.
void turned_gradient_ref(bool rope, const RopeOptions& turn, const float* dy, int64_t n,
                         const float* c, const float* s, double* dv, double* bound);

}  // namespace fastnorm::ref
