// The settings with which norm computes what known implementations compute.
#pragma once

#include <span>

#include "ref/norm_heads_ref.h"
#include "ref/norm_spec.h"
#include "ref/norm_stages_ref.h"
#include "ref/quant_spec.h"

namespace fastnorm::ref {

struct Preset {
  const char* peer;
  const char* weight_offset;  // "0", "1" or "any"
  Rounding rounding;
  ResidualRounding residual_rounding;
  bool tail_exact;      // with the same mean and rstd, y has the same bits
  const char* differs;  // other differences; "" = none
};

// The settings of a quantised output, in addition to those of its row.
struct QuantPreset {
  const char* peer;
  const char* row;       // the Preset of its rows
  QuantOptions options;  // without the clamp
  const char* clamp;     // the name in the other implementation, or "0"
};

std::span<const QuantPreset> quant_presets();

// Norm and rope of heads.
struct RopePreset {
  const char* peer;
  HeadOptions options;  // without dtypes, columns and eps
  const char* tables;   // dtype of cos and sin
  bool exact;           // with the same statistics and tables, y has the same bits
  const char* differs;
};

// The stages of a norm that a preset is about.
enum class PresetStage : uint8_t { kGate, kSandwich, kModulation };

struct StagePreset {
  PresetStage stage;
  const char* peer;
  StagesOptions options;  // without dtypes, groups, eps and alpha
  bool exact;             // with the same statistics and activations, y has the same bits
  const char* differs;
};

std::span<const RopePreset> rope_presets();
std::span<const StagePreset> stage_presets();

// All presets. An implementation with several forms has several lines.
std::span<const Preset> presets();

}  // namespace fastnorm::ref
