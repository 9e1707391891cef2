// The kernels of this build that the machine can run: each instruction set, and AVX-512 with and
// without its bf16 instructions.
#pragma once

#include <string>
#include <vector>

#include "cpu/isa.h"

namespace fastnorm::test {

struct Level {
  std::string name;
  const cpu::IsaKernels* isa;
  bool avx512_bf16;
};

inline std::vector<Level> runnable_levels() {
  std::vector<Level> levels;
  const cpu::Features features = cpu::machine_features();
  for (const cpu::IsaKernels& isa : cpu::built_isas()) {
    if (isa.isa > features.best) continue;
    levels.push_back({isa.name, &isa, false});
    if (isa.has_bf16 && features.avx512_bf16) {
      levels.push_back({std::string(isa.name) + " bf16", &isa, true});
    }
  }
  return levels;
}

}  // namespace fastnorm::test
