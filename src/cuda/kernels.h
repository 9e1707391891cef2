// The addresses of kernels. CUDA-free.
//
// An architecture's number is its capability, and that of PTX is 1. The names of kernels contain
// it. A kernel's number is its place in its family's table; where an entry has several forms, they
// are numbered one after another, and have no address where the build has no such kernel.
#pragma once

#include <span>
#include <utility>
#include <vector>

namespace fastnorm::cuda {

inline constexpr int kPtxNumber = 1;

// The kernels of one part of a family's table, which the build compiles by itself. The family's
// instances.cu defines it for each architecture of the build.
template <class Family, int kArch, int kPart>
std::span<const void* const> part_kernels();

// All kernels of a family, by number.
template <class Family, int kArch>
std::vector<const void*> all_kernels() {
  std::vector<const void*> all;
  const auto append = [&](std::span<const void* const> part) {
    all.insert(all.end(), part.begin(), part.end());
  };
  [&]<int... kPart>(std::integer_sequence<int, kPart...>) {
    (append(part_kernels<Family, kArch, kPart>()), ...);
  }
  (std::make_integer_sequence<int, Family::kParts>());
  return all;
}

}  // namespace fastnorm::cuda
