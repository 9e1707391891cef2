// The kernels of RMSNorm. docs/lab/backward.md has their times on an H200 and an H100.
#include "bench/lab/backward/entry.cuh"
#include "bench/lab/backward/plan.h"

namespace lab {

std::vector<Entry> rms_entries() {
  constexpr Norm kRms = Norm::kRms;
  return {
      short_rows<kRms, 16, 1, 64>(),  // 128 columns
      short_rows<kRms, 8, 2, 64>(),
      short_rows<kRms, 32, 2, 16>(),  // 512 columns
      registers<kRms, 128, 1, 8>(),   // 1024 columns
      registers<kRms, 64, 2, 8>(),
      registers<kRms, 64, 2, 8, 1, true>(),
      ring<kRms, 64, 2, 8, 4>(),
      ring<kRms, 128, 1, 8, 4>(),
      registers<kRms, 256, 1, 4>(),  // 2048 columns
      registers<kRms, 128, 2, 4, 1, true>(),
      ring<kRms, 128, 2, 4, 4>(),
      registers<kRms, 256, 2, 2>(),  // 4096 columns
      ring<kRms, 256, 2, 2, 2>(),
      ring<kRms, 256, 2, 2, 3>(),
      ring<kRms, 256, 2, 2, 4>(),
      ring<kRms, 512, 1, 2, 2>(),
      registers<kRms, 640, 1, 1, 2>(),  // 5120 columns
      bulk_ring<kRms, 512, 2, 1, 2>(),
      ring<kRms, 512, 2, 1, 2>(),  // 8192 columns, and 5120
      ring<kRms, 512, 2, 1, 3>(),
      ring<kRms, 512, 2, 1, 2, false, true>(),
      ring<kRms, 512, 2, 1, 3, false, true>(),
  };
}

}  // namespace lab
