// Regions of a call's workspace. Each begins at a multiple of 256 bytes.
#pragma once

#include <cstdint>

namespace fastnorm {

inline constexpr uint64_t kWorkspaceAlign = 256;

constexpr uint64_t workspace_aligned(uint64_t bytes) {
  return (bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
}

// Adds a region to *workspace_bytes. Returns where it begins.
constexpr uint64_t take_region(uint64_t* workspace_bytes, uint64_t bytes) {
  const uint64_t begin = *workspace_bytes;
  *workspace_bytes = workspace_aligned(begin + bytes);
  return begin;
}

}  // namespace fastnorm
