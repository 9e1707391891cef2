// The kernels of LayerNorm. docs/lab/backward.md has their times on an H200 and an H100.
#include "bench/lab/backward/entry.cuh"
#include "bench/lab/backward/plan.h"

namespace lab {

std::vector<Entry> layer_entries() {
  constexpr Norm kLayer = Norm::kLayer;
  return {
      short_rows<kLayer, 16, 1, 64>(),  // 128 columns
      short_rows<kLayer, 8, 2, 64>(),
      short_rows<kLayer, 32, 2, 16>(),  // 512 columns
      registers<kLayer, 128, 1, 8>(),   // 1024 columns
      registers<kLayer, 64, 2, 8>(),
      ring<kLayer, 64, 2, 8, 2>(),
      ring<kLayer, 64, 2, 8, 4>(),
      ring<kLayer, 128, 1, 8, 4>(),
      bulk_ring<kLayer, 64, 2, 8, 2>(),
      ring<kLayer, 128, 2, 4, 2>(),  // 2048 columns
      bulk_ring<kLayer, 128, 2, 4, 2>(),
      ring<kLayer, 256, 2, 2, 2>(),  // 4096 columns
      ring<kLayer, 256, 2, 2, 3, true>(),
      bulk_ring<kLayer, 256, 2, 2, 2>(),
      ring<kLayer, 512, 2, 1, 2>(),  // 8192 columns, and 5120
      ring<kLayer, 512, 2, 1, 3, false, true>(),
  };
}

}  // namespace lab
