// What commands that explain share: addresses of tensors that do not exist, and how a plan is told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "library.h"

namespace fastnorm::tool {

// A query looks at overlap and alignment, not at memory. Each tensor has a region of its own, far
// more than any tensor has bytes.
class Regions {
 public:
  std::byte* next() { return reinterpret_cast<std::byte*>(uintptr_t{++used_} << kSpacing); }
  static constexpr int kSpacing = 58;

 private:
  uintptr_t used_ = 0;
};

// Prints what a query says, as lines or as JSON. `device`: as --device names it.
void tell_plan(const fastnorm_info& info, const std::string& device, bool json);

}  // namespace fastnorm::tool
