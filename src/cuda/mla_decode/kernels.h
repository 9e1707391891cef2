// The kernels of MLA decode by address, and what their launches ask for. Code of sm_90a.
#pragma once

#include <cstddef>

#include "core/common/dtype.h"
#include "core/mla_decode/desc.h"

namespace fastnorm::cuda {

// Attention gets (MlaDecodeMaps, MlaDecodeParams).
template <Dtype kDtype>
const void* mla_decode_kernel(bool profiles);
template <>
const void* mla_decode_kernel<Dtype::kBF16>(bool profiles);
template <>
const void* mla_decode_kernel<Dtype::kF16>(bool profiles);
// The same for rows that no box has: those of FP8 caches, and selected ones.
template <Dtype kDtype>
const void* mla_decode_gather_kernel(MlaCacheFormat format);
template <>
const void* mla_decode_gather_kernel<Dtype::kBF16>(MlaCacheFormat format);
template <>
const void* mla_decode_gather_kernel<Dtype::kF16>(MlaCacheFormat format);
// The same for few query rows, kMlaFewerRows of a tile.
template <Dtype kDtype>
const void* mla_decode_swapped_kernel();
template <>
const void* mla_decode_swapped_kernel<Dtype::kBF16>();
template <>
const void* mla_decode_swapped_kernel<Dtype::kF16>();
unsigned mla_decode_threads(bool gathers, int32_t tile_rows);
size_t mla_decode_shared_bytes();

// The planner, one block, and the merge of pieces get (MlaDecodeParams).
const void* mla_decode_plan_kernel();
unsigned mla_decode_plan_threads();
const void* mla_decode_merge_kernel(Dtype dtype);
unsigned mla_decode_merge_threads();

}  // namespace fastnorm::cuda
