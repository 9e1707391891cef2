#include "ref/presets.h"

namespace fastnorm::ref {
namespace {

constexpr auto kO = Rounding::kOnce, kN = Rounding::kNormalized, kS = Rounding::kEveryStep,
               kW = Rounding::kOnceRw;
constexpr auto kE = ResidualRounding::kExact, kA = ResidualRounding::kBeforeApply,
               kB = ResidualRounding::kBeforeStatistics;

// For Hugging Face and torch, B is a separate addition before the norm.
constexpr Preset kPresets[] = {
    {"FlashInfer rmsnorm, qk, fused add", "0", kO, kE, true, ""},
    {"FlashInfer gemma_*", "1", kO, kE, true, ""},
    {"FlashInfer *rmsnorm_quant", "0", kO, kE, true,
     "CUDA path: NaN becomes finite; CuTe path: approximate 1/scale"},
    {"FlashInfer layernorm(_quant)", "0", kO, kE, true,
     "quantises the rounded value; bias fused by its compiler"},
    {"FlashInfer fp4", "0", kO, kE, false, "x * w in 16 bits before rstd on some paths"},
    {"hp_rms_norm", "0", kO, kA, false, "(b * w) * rstd in place of (b * rstd) * w"},
    {"Liger llama", "any", kN, kE, true, ""},
    {"Liger gemma", "any", kO, kE, true, ""},
    {"Liger none", "any", kS, kE, false,
     "compiled code keeps division, rstd and t in f32, rounds eps, may sum in T; this is the eager "
     "form that its tests compare with"},
    {"Liger fused add, llama", "any", kN, kB, true,
     "mixed dtypes: f32 sum, rounded only in the store"},
    {"Liger fused add, gemma", "any", kO, kB, true,
     "mixed dtypes: f32 sum, rounded only in the store"},
    {"Liger fused add, none", "any", kS, kB, true,
     "mixed dtypes: f32 sum, rounded only in the store"},
    {"quack", "any", kO, kE, true, "bias fused or not, by compiler"},
    {"INT21", "0", kO, kE, true, "bias fused or not, by compiler"},
    {"Transformer Engine", "0", kO, kE, true,
     "fp8 multiplies by a static scale, here by 1 / (dequantisation scale): equal for powers of "
     "two"},
    {"Transformer Engine, zero-centred gamma", "1", kO, kE, true,
     "a cuDNN mode rounds 1 + w to the weight's dtype"},
    {"HF Llama, Mistral, Qwen2/3, T5", "0", kN, kB, true, "w in f32: HF returns f32"},
    {"HF Gemma 1-3, Qwen3-Next", "1", kO, kB, true, ""},
    {"vLLM CUDA to 2025", "0", kN, kB, true, ""},
    {"vLLM CUDA 2026", "0", kO, kB, true, ""},
    {"vLLM native", "0", kN, kE, true, ""},
    {"vLLM dynamic quant", "0", kN, kE, true, "quantises the rounded value, divides by the scale"},
    {"vLLM, SGLang fused q/k norm and rope", "0", kW, kE, true,
     "no residual; the compiler may fuse rope's products"},
    {"TensorRT-LLM fused q/k norm and rope", "any", kW, kE, true,
     "no residual; the compiler may fuse rope's products"},
    {"torch rms_norm, layer_norm", "0", kO, kB, true,
     "eps=None is 2^-23; layer_norm takes its statistics by Welford"},
    {"torch rms_norm 2.4", "0", kN, kB, true, "eps=None is 2^-23"},
};

// The least scale is 1 / (448 * 512): a magnitude of 2^-9.
constexpr QuantPreset kQuantPresets[] = {
    {"vLLM dynamic fp8, a scale per token",
     "vLLM dynamic quant",
     {.scheme = Scheme::kPerRow,
      .format = Format::kE4M3,
      .source = QuantSource::kRounded,
      .amax_floor = 0x1p-9f,
      .divide = true},
     "scale_ub, or 0"},
};

HeadOptions heads(Rounding rounding, float offset, bool from_rounded, bool every_step) {
  HeadOptions o;
  o.normalise = true;
  o.rope = true;
  o.norm.rounding = rounding;
  o.norm.weight_offset = offset;
  o.round_before_rope = from_rounded;
  o.turn.every_step = every_step;
  return o;
}

StagesOptions gate(bool before, Rounding rounding, bool from_rounded) {
  StagesOptions o;
  o.gate_before = before;
  o.gate_act = Activation::kSilu;
  o.norm.rounding = rounding;
  o.gate_from_rounded = from_rounded;
  return o;
}

// Both norms round alike and have one offset.
StagesOptions sandwich(Rounding rounding, float offset, ResidualRounding sum) {
  StagesOptions o;
  o.branch = true;
  o.branch_rounded = true;
  o.norm.rounding = rounding;
  o.norm.weight_offset = offset;
  o.of_branch = o.norm;
  o.norm.residual_rounding = sum;
  return o;
}

StagesOptions scaled(Rounding rounding) {
  StagesOptions o;
  o.scaled = true;
  o.sum_every_step = true;
  o.norm.rounding = rounding;
  return o;
}

StagesOptions modulation(bool every_step) {
  StagesOptions o;
  o.norm.kind = Kind::kLayer;
  o.sum_every_step = every_step;
  o.modulation_every_step = every_step;
  return o;
}

const RopePreset kRopePresets[] = {
    {"SGLang, vLLM Triton q/k norm, rope and gate, f32", heads(kO, 1, false, false), "f32", true,
     "the compiler chooses the product of rope that it fuses"},
    {"SGLang Triton q/k norm, rope and gate, rounded", heads(kO, 0, true, false), "f32", true,
     "its weight is 1 + w"},
    {"FlashInfer DiT q/k norm and rope", heads(kO, 0, true, false), "f32", true,
     "fp8 results: without `ROPE_FROM_ROUNDED`; approximate sines in place of tables"},
    {"aiter q/k norm, rope and cache", heads(kO, 0, true, false), "f32", true,
     "the compiler fuses rope"},
    {"vLLM, TensorRT-LLM fused q/k norm and rope", heads(kW, 0, false, false), "f32", true,
     "the compiler chooses the product of rope that it fuses"},
    {"SGLang diffusion q/k norm and rope, rounded", heads(kW, 0, true, true), "f32", true, ""},
    {"HF Llama, Qwen3, eager in 16 bits", heads(kN, 0, true, true), "T", true, ""},
};

const StagePreset kStagePresets[] = {
    {PresetStage::kGate, "mamba-ssm, vLLM guard, norm before gate", gate(false, kO, false), true,
     "bias fused or not, by compiler"},
    {PresetStage::kGate, "mamba-ssm, vLLM guard, gate first", gate(true, kO, false), true,
     "bias fused or not, by compiler"},
    {PresetStage::kGate, "FLA gated norm", gate(false, kO, false), false,
     "(z * gate) * sigmoid(gate) in place of z * (gate * sigmoid(gate))"},
    {PresetStage::kGate, "HF Qwen3-Next", gate(false, kN, true), true, ""},
    {PresetStage::kGate, "HF Mamba2", gate(true, kN, false), true, "w in f32: HF returns f32"},
    {PresetStage::kSandwich, "HF Gemma 2, 3", sandwich(kO, 1, kB), true, ""},
    {PresetStage::kSandwich, "vLLM native", sandwich(kN, 0, kE), true, ""},
    {PresetStage::kSandwich, "vLLM CUDA 2026", sandwich(kO, 0, kB), true, ""},
    {PresetStage::kSandwich, "HF Granite", scaled(kN), true, ""},
    {PresetStage::kModulation, "FlashInfer DiT", modulation(false), true,
     "tables: (1 + scale) + table; its variance is E[x^2] - mean^2"},
    {PresetStage::kModulation, "SGLang diffusion, lossless", modulation(true), true,
     "statistics by Welford"},
    {PresetStage::kModulation, "diffusers, eager in 16 bits", modulation(true), true,
     "statistics by Welford"},
};

}  // namespace

std::span<const Preset> presets() { return kPresets; }
std::span<const QuantPreset> quant_presets() { return kQuantPresets; }

std::span<const RopePreset> rope_presets() { return kRopePresets; }
std::span<const StagePreset> stage_presets() { return kStagePresets; }

}  // namespace fastnorm::ref
