// Prefetching of later rows.
#pragma once

#include "cuda/norm/slots.cuh"

namespace fastnorm::cuda {

// Brings a later row's inputs into L2. One thread does it, after it has issued the loads of this
// row. The host asks for it only if rows have a single index.
template <class Slots, class Tile>
__device__ __forceinline__ void prefetch_row(const NormParams& p, const Place<Tile>& place) {
  if constexpr (Slots::kV.has(Variant::kPrefetches)) {
    const uint32_t row = place.row + p.prefetch_rows;
    if (p.prefetch_rows == 0) return;
    ptx::keep_branch();  // otherwise every thread computes addresses
    if (threadIdx.x == 0 && row < p.rows) {
      const auto fetch = [&](const RowRef& tensor) {
        const char* begin = tensor.data + row * tensor.stride;
        uint32_t bytes = static_cast<uint32_t>(p.vectors) * kVectorBytes;
        if constexpr (Slots::kAccess == Access::kUnaligned) {  // its complete, aligned part
          const auto ahead =
              static_cast<uint32_t>(-reinterpret_cast<intptr_t>(begin)) % kVectorBytes;
          const auto length = static_cast<uint32_t>(p.n) * Slots::T::kBytes;
          if (length < ahead) return;
          begin += ahead;
          bytes = (length - ahead) / kVectorBytes * kVectorBytes;
        }
        ptx::prefetch_l2(begin, bytes);
      };
      fetch(p.x);
      if constexpr (Slots::kSource == Source::kAdd) fetch(p.residual);
    }
  }
}

}  // namespace fastnorm::cuda
