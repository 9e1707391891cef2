// The statistics of a part of norm_heads, each once. norm_tensors.h has its other tensors.
#pragma once

#include "core/norm_heads_desc.h"
#include "core/schema.h"

namespace fastnorm {

// Calls f(Of<field>(), values) for each, present or not, while f returns true, and returns whether
// it always did.
template <class Part, class F>
constexpr bool for_each_heads_statistic(Part& p, const F& f) {
  using P = fastnorm_norm_heads_part;
  using schema::Of;
  return f(Of<&P::mean>(), p.mean) && f(Of<&P::rstd>(), p.rstd) &&
         f(Of<&P::mean_in>(), p.mean_in) && f(Of<&P::rstd_in>(), p.rstd_in) &&
         f(Of<&P::sumsq>(), p.sumsq);
}

// f32 of a token and head, or of a token.
template <class Of>
constexpr int64_t values_of(const NormHeadsPart& p, Of) {
  const bool pairs = Of::kShape == schema::Shape::kHeadsSums && p.norm.kind == FASTNORM_NORM_LAYER;
  return pairs ? 2 : 1;
}

}  // namespace fastnorm
