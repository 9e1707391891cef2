// The activations of gates, and their derivatives, chosen at run time.
#pragma once

#include "cpu/common/functions-inl.h"
#include "cpu/norm/parts-inl.h"
#include "cpu/norm_stages/params.h"

namespace fastnorm::cpu {
namespace {

FASTNORM_INLINE Pair multiply(Pair a, Pair b) { return {mul(a.a, b.a), mul(a.b, b.b)}; }

// Long, and called from many places.
__attribute__((noinline, unused)) Pair activate(Activation activation, Pair v) {
  if (activation == Activation::kSilu) return {silu(v.a), silu(v.b)};
  if (activation == Activation::kSigmoid) return {sigmoid(v.a), sigmoid(v.b)};
  if (activation == Activation::kTanh) return {hyperbolic_tangent(v.a), hyperbolic_tangent(v.b)};
  return v;
}

// The derivative of a function of sigmoid: s = sigmoid(v), c = sigmoid(-v) = 1 - s without
// cancellation. Both are 0 or 1 beyond +-110.
FASTNORM_INLINE Vec slope_of(Activation activation, Vec v) {
  const Vec one = broadcast(1.0f);
  if (activation == Activation::kTanh) v = add(v, v);
  v = at_most(at_least(v, broadcast(-110.0f)), broadcast(110.0f));
  const Vec s = sigmoid(v), c = sigmoid(sub(zero(), v));
  if (activation == Activation::kSilu) return mul(s, fused(v, c, one));
  return mul(activation == Activation::kTanh ? mul(broadcast(4.0f), s) : s, c);
}

// The derivative of activate().
__attribute__((noinline, unused)) Pair activation_slope(Activation activation, Pair v) {
  if (activation == Activation::kIdentity) return {broadcast(1.0f), broadcast(1.0f)};
  return {slope_of(activation, v.a), slope_of(activation, v.b)};
}

}  // namespace
}  // namespace fastnorm::cpu
