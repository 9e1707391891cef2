// The tensors of a backward call, each once. A loop over them serves what is done to all: overlap,
// order of dimensions, bytes read and written.
#pragma once

#include <bit>
#include <type_traits>

#include "core/common/schema.h"
#include "core/norm_backward/desc.h"

namespace fastnorm {

// Calls f(Of<field>(), tensor) for each tensor, present or not, while f returns true, and returns
// whether it always did. A tensor is a RowTensor, a ParameterTensor, or the address of a scalar.
// Inputs come first. The order is that in which errors name tensors.
template <class Desc, class F>
constexpr bool for_each_backward_tensor(Desc& d, const F& f) {
  using A = fastnorm_norm_backward_args;
  using schema::Of;
  auto& b = d.branch;
  return f(Of<&A::dy>(), d.dy) && f(Of<&A::x>(), d.x) &&
         f(Of<&A::dresidual_in>(), d.dresidual_in) && f(Of<&A::mean>(), d.mean) &&
         f(Of<&A::rstd>(), d.rstd) && f(Of<&A::weight>(), d.weight) &&
         f(Of<&A::gate>(), d.gate.gate) && f(Of<&A::bias>(), d.gate.bias) &&
         f(Of<&A::branch>(), b.branch) && f(Of<&A::branch_mean>(), b.mean) &&
         f(Of<&A::branch_rstd>(), b.rstd) && f(Of<&A::branch_weight>(), b.weight) &&
         f(Of<&A::branch_bias>(), b.bias) && f(Of<&A::residual_gate>(), b.residual_gate) &&
         f(Of<&A::sum_scale>(), b.sum_scale) && f(Of<&A::dx>(), d.dx) &&
         f(Of<&A::dresidual>(), d.dresidual) && f(Of<&A::dgate>(), d.gate.dgate) &&
         f(Of<&A::dweight>(), d.dweight) && f(Of<&A::dbias>(), d.dbias) &&
         f(Of<&A::dbranch>(), b.dbranch) && f(Of<&A::dbranch_weight>(), b.dweight) &&
         f(Of<&A::dbranch_bias>(), b.dbias) && f(Of<&A::dresidual_gate>(), b.dresidual_gate);
}

inline constexpr int kMostBackwardTensors =
    std::popcount(schema::kTensors<fastnorm_norm_backward_args>);

static_assert(
    [] {
      uint64_t all = 0;
      const auto visit = [&](auto of, const auto&) {
        all |= decltype(of)::kBit;
        return true;
      };
      const NormBackwardDesc d;
      return for_each_backward_tensor(d, visit) &&
             all == schema::kTensors<fastnorm_norm_backward_args>;
    }(),
    "a tensor of fields.csv is not above");

// Whether a tensor steps along the dimensions of rows; a scalar does not.
template <class Tensor>
inline constexpr bool kHasStrides = std::is_same_v<std::remove_cv_t<Tensor>, RowTensor> ||
                                    std::is_same_v<std::remove_cv_t<Tensor>, ParameterTensor>;

// Bytes that each row has of a tensor that is present.
template <class Of, class Tensor>
constexpr int64_t row_bytes_of(const NormBackwardDesc& d, Of, const Tensor& t) {
  using A = fastnorm_norm_backward_args;
  if constexpr (!kHasStrides<Tensor>) {
    return sizeof(float);
  } else {
    const bool one = Of::kRole == schema::Role::kStatIn ||
                     (std::is_same_v<Of, schema::Of<&A::dy>> && d.dy_element_bytes == 0);
    return (one ? 1 : d.n) * dtype_bytes(t.dtype);
  }
}

}  // namespace fastnorm
