// The settings under which norm computes what known implementations compute.
#pragma once

#include <span>

#include "ref/norm_spec.h"
#include "ref/quant_spec.h"

namespace fastnorm::ref {

struct Preset {
  const char* peer;
  const char* weight_offset;  // "0", "1" or "any"
  Rounding rounding;
  ResidualRounding residual_rounding;
  bool tail_exact;      // given the same mean and rstd, y has the same bits
  const char* differs;  // what else is not the same; "" = nothing
};

// The settings of a quantised output, beside those of its row.
struct QuantPreset {
  const char* peer;
  const char* row;       // the Preset of its rows
  QuantOptions options;  // without the clamp
  const char* clamp;     // the peer's word for it, or "0"
};

std::span<const QuantPreset> quant_presets();

// All of them; a peer with several forms has a line for each.
std::span<const Preset> presets();

}  // namespace fastnorm::ref
