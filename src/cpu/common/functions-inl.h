// exp, sigmoid, silu and tanh as fixed sequences of operations. They give the same bits in every
// instruction set, on every GPU (src/cuda/common/functions.cuh) and in the specification
// (tests/ref/functions.h).
#pragma once

#include "cpu/common/simd.h"

namespace fastnorm::cpu {
namespace {

// exp(x) = significand * first * second; the last two are powers of two. Only the last product may
// leave the normal range and round.
struct Power {
  Vec significand, first, second;
};

// x is in [-110, 90] or NaN. n is the integer nearest to x / ln 2. r = x - n * ln 2 takes two
// steps; the first is exact. A polynomial of degree 6 gives exp(r).
FASTNORM_INLINE Power power_of_e(Vec x) {
  const Vec units = broadcast(0x1.8p23f);  // adding it rounds to an integer
  const Vec biased = broadcast(0x1.8p23f + 127.0f);
  const Vec n = sub(fused(x, broadcast(0x1.715476p+0f), units), units);
  Vec r = fused(n, broadcast(-0x1.62e430p-1f), x);
  r = fused(n, broadcast(0x1.05c610p-29f), r);
  Vec p = fused(broadcast(0x1.6a23cep-10f), r, broadcast(0x1.123a20p-7f));
  p = fused(p, r, broadcast(0x1.5558f2p-5f));
  p = fused(p, r, broadcast(0x1.555492p-3f));
  p = fused(p, r, broadcast(0x1.fffffcp-2f));
  p = fused(p, r, broadcast(1.0f));
  p = fused(p, r, broadcast(1.0f));
  const Vec half = fused(n, broadcast(0.5f), biased);
  const Vec rest = add(sub(n, sub(half, biased)), biased);
  return {p, exponent_from_bits(half), exponent_from_bits(rest)};
}

FASTNORM_INLINE Vec exponential(Vec x) {
  const Power p = power_of_e(at_most(at_least(x, broadcast(-110.0f)), broadcast(90.0f)));
  return mul(mul(p.significand, p.first), p.second);
}

// scale / (1 + exp(-z)) for scale 1 or z. With e = exp(-|z|) it is scale / (1 + e), times e if z <
// 0. The factor `second` of e comes last, so that the quotient is a normal number.
FASTNORM_INLINE Vec over_one_and_power(Vec z, Vec scale) {
  const Vec one = broadcast(1.0f);
  const Power p = power_of_e(at_least(sub(zero(), magnitude(z)), broadcast(-110.0f)));
  const Vec most = mul(p.significand, p.first);
  const Vec e = mul(most, p.second);
  const Vec numerator = mul(scale, if_less(z, zero(), most, one));
  return mul(divide(numerator, add(one, e)), if_less(z, zero(), p.second, one));
}

FASTNORM_INLINE Vec sigmoid(Vec z) { return over_one_and_power(z, broadcast(1.0f)); }

// z * sigmoid(z). At and below -110 it is -0, also for -Inf.
FASTNORM_INLINE Vec silu(Vec z) {
  const Vec kept = at_least(z, broadcast(-110.0f));
  return over_one_and_power(kept, kept);
}

// An odd polynomial below 0.625, 1 - 2 / (exp(2 |x|) + 1) otherwise.
FASTNORM_INLINE Vec hyperbolic_tangent(Vec x) {
  const Vec a = magnitude(x), square = mul(a, a), one = broadcast(1.0f);
  Vec p = fused(broadcast(-0x1.75d50cp-8f), square, broadcast(0x1.5223dep-6f));
  p = fused(p, square, broadcast(-0x1.b83bf4p-5f));
  p = fused(p, square, broadcast(0x1.110724p-3f));
  p = fused(p, square, broadcast(-0x1.555532p-2f));
  const Vec below = fused(p, mul(square, a), a);
  const Vec e = exponential(add(a, a));
  const Vec above = sub(one, divide(broadcast(2.0f), add(e, one)));
  return with_sign(if_less(a, broadcast(0.625f), below, above), x);
}

}  // namespace
}  // namespace fastnorm::cpu
