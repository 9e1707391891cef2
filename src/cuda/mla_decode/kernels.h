// The kernels of MLA decode by address, and what their launches ask for. Code of sm_90a.
#pragma once

#include <cstddef>

#include "core/common/dtype.h"

namespace fastnorm::cuda {

// Attention gets (MlaDecodeMaps, MlaDecodeParams).
template <Dtype kDtype>
const void* mla_decode_kernel(bool profiles);
template <>
const void* mla_decode_kernel<Dtype::kBF16>(bool profiles);
template <>
const void* mla_decode_kernel<Dtype::kF16>(bool profiles);
unsigned mla_decode_threads();
size_t mla_decode_shared_bytes();

// The planner, one block, and the merge of pieces get (MlaDecodeParams).
const void* mla_decode_plan_kernel();
unsigned mla_decode_plan_threads();
const void* mla_decode_merge_kernel(Dtype dtype);
unsigned mla_decode_merge_threads();

}  // namespace fastnorm::cuda
