// Rotated codes of a norm without stages, whose rows registers hold: the norm's own kernel, with a
// rotation between its results and their codes.
#pragma once

#include "cuda/norm/kernel.cuh"
#include "cuda/norm_stages/params.h"

namespace fastnorm::cuda {

template <uint32_t kWord>
struct RotatedWords {
  static constexpr StagesVariant kVariant = stages_variant_of(kWord);
  static constexpr Variant kNorm = {
      .key = {kVariant.dtype, kVariant.has_residual() ? Source::kAdd : Source::kPlain, Stat::kRms,
              Affine::kOnce, Sink::kQuant, Access::kVector,
              kVariant.is_lean() ? Flavour::kLean : Flavour::kGeneral},
      .tile = {kVariant.threads, kVariant.vectors, 1},
      .group = 2,
      .round = RoundRow::kInPlace,
      .blocks_per_sm = static_cast<uint8_t>(kVariant.per_sm),
      .policies = Variant::kEveryVector | Variant::kRotates |
                  (kVariant.is_lean() ? Variant::kClampsTogether : 0)};
  using Norm = Slots<packed(kNorm.key, kNorm.tile), kNorm.packed_policies()>;
};

template <uint32_t kWord>
__device__ __forceinline__ void run_rotated(const NormCallParams& p) {
  using Norm = typename RotatedWords<kWord>::Norm;
  normalize_in_registers<Norm, RowTileOf<Norm>>(p, blockIdx.x);
}

}  // namespace fastnorm::cuda
