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

}  // namespace

std::span<const Preset> presets() { return kPresets; }
std::span<const QuantPreset> quant_presets() { return kQuantPresets; }

}  // namespace fastnorm::ref
