// The norm of an all-reduce, and where its workspace lies. libfastnorm_nccl has it too, so it needs
// public headers alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "fastnorm/norm.h"
#include "fastnorm/peer.h"

namespace fastnorm {

inline constexpr uint64_t kWorkspaceAlign = 256;
constexpr uint64_t aligned(uint64_t bytes) {
  return (bytes + kWorkspaceAlign - 1) / kWorkspaceAlign * kWorkspaceAlign;
}

// Where the workspace of a query lies: nowhere near memory that a tensor may have.
inline std::byte* pretended_workspace() { return reinterpret_cast<std::byte*>(uintptr_t{1} << 61); }

// The norm with the fields of an all-reduce. Fields of one name mean the same.
inline fastnorm_norm_args norm_of(const fastnorm_peer_allreduce_norm_args& a) {
  fastnorm_norm_args n = {};
  n.struct_size = sizeof n;
  std::memcpy(&n.kind, &a.kind, sizeof n.kind);  // enums may hold any number
  n.eps = a.eps;
  n.weight_offset = a.weight_offset;
  std::memcpy(&n.rounding, &a.rounding, sizeof n.rounding);
  std::memcpy(&n.residual_rounding, &a.residual_rounding, sizeof n.residual_rounding);
  n.flags = a.flags;
  n.x = a.x;
  n.residual = a.residual;
  n.weight = a.weight;
  n.bias = a.bias;
  n.y = a.y;
  n.residual_out = a.residual_out;
  n.mean = a.mean;
  n.rstd = a.rstd;
  std::memcpy(&n.quant_scheme, &a.quant_scheme, sizeof n.quant_scheme);
  n.quant_block_size = a.quant_block_size;
  std::memcpy(&n.quant_source, &a.quant_source, sizeof n.quant_source);
  std::memcpy(&n.scale_layout, &a.scale_layout, sizeof n.scale_layout);
  n.scale_pow2 = a.scale_pow2;
  n.amax_floor = a.amax_floor;
  n.clamp = a.clamp;
  std::memcpy(&n.quant_division, &a.quant_division, sizeof n.quant_division);
  n.global_scale = a.global_scale;
  n.quantized = a.quantized;
  n.scale = a.scale;
  n.amax = a.amax;
  n.clamp_scale = a.clamp_scale;
  return n;
}

}  // namespace fastnorm
