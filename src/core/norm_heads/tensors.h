// The values of tokens and heads of a part of norm_heads, each once: statistics and head weights.
// norm/tensors.h has its other tensors.
#pragma once

#include "core/common/schema.h"
#include "core/norm_heads/desc.h"

namespace fastnorm {

// Calls f(Of<field>(), values) for each, present or not, while f returns true, and returns whether
// it always did.
template <class Part, class F>
constexpr bool for_each_head_values(Part& p, const F& f) {
  using P = fastnorm_norm_heads_part;
  using schema::Of;
  return f(Of<&P::mean>(), p.mean) && f(Of<&P::rstd>(), p.rstd) &&
         f(Of<&P::mean_in>(), p.mean_in) && f(Of<&P::rstd_in>(), p.rstd_in) &&
         f(Of<&P::sumsq>(), p.sumsq) && f(Of<&P::head_weights>(), p.head_weights) &&
         f(Of<&P::head_weights_out>(), p.head_weights_out);
}

// Whether a token has one of them for all heads.
template <class Of>
constexpr bool is_of_token(const NormHeadsPart& p, Of) {
  return p.across_heads && Of::kShape != schema::Shape::kHeadsEach;
}

// Values of a token and head, or of a token.
template <class Of>
constexpr int64_t values_of(const NormHeadsPart& p, Of) {
  const bool pairs = Of::kShape == schema::Shape::kHeadsSums && p.norm.kind == FASTNORM_NORM_LAYER;
  return pairs ? 2 : 1;
}

}  // namespace fastnorm
