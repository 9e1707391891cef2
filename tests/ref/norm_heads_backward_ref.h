// How norm_heads_backward turns a gradient back before the norm's backward: a scalar
// single-precision program that a backend must equal bit for bit, and the formula in double. The
// rest is norm_backward's, with these values as dy.
#pragma once

#include <cstdint>

#include "ref/norm_heads_ref.h"

namespace fastnorm::ref {

// dv [n] of a row dy [n]. `turn` is the forward's; c and s are [half]. Without rope dv is dy.
void turned_gradient_model(bool rope, const RopeOptions& turn, const float* dy, int64_t n,
                           const float* c, const float* s, float* dv);

// dv in double precision. `bound` [n]: how far single precision may be from it.
void turned_gradient_ref(bool rope, const RopeOptions& turn, const float* dy, int64_t n,
                         const float* c, const float* s, double* dv, double* bound);

}  // namespace fastnorm::ref
