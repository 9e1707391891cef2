// The views of a backward call's tensors.
#pragma once

#include <algorithm>

#include "core/norm/view.h"
#include "core/norm_backward/tensors.h"

namespace fastnorm {

template <class Of, class Tensor>
View view_of(const NormBackwardDesc& d, Of of, const Tensor& t) {
  View v = {Of::kField.path, Of::kOutput, nullptr, row_bytes_of(d, of, t)};
  if constexpr (kHasStrides<Tensor>) {
    v.data = t.data;
    v.dtype = t.dtype;
    std::copy_n(d.outer, kMaxOuter, v.outer);
    std::copy_n(t.stride_bytes, kMaxOuter, v.strides);
  } else {
    v.data = t;
    v.dtype = Dtype::kF32;
  }
  return v;
}

}  // namespace fastnorm
