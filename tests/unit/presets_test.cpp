// The table of presets against the arithmetic of the implementations that it names: with the same
// statistics, the same bits.
#include "ref/presets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "ref/activation.h"
#include "ref/data.h"
#include "ref/norm_heads_ref.h"
#include "ref/norm_model.h"
#include "ref/norm_stages_ref.h"
#include "ref/quant.h"

namespace fastnorm::ref {
namespace {

const Preset& preset(const char* peer) {
  for (const Preset& p : presets()) {
    if (std::strcmp(p.peer, peer) == 0) return p;
  }
  ADD_FAILURE() << "no preset " << peer;
  return presets()[0];
}

// y of one element as an implementation computes it, from x, residual, weight (values of T) and
// rstd.
using Peer = std::function<float(Type, float x, float residual, float w, float rstd)>;

float r(Type t, float v) { return round_to(t, v); }

const struct {
  const char* name;
  Peer y;
} kPeers[] = {
    // x and residual are added in f32; one product chain in f32.
    {"FlashInfer rmsnorm, qk, fused add",
     [](Type t, float x, float res, float w, float rstd) { return r(t, (x + res) * rstd * w); }},
    {"FlashInfer gemma_*", [](Type t, float x, float res, float w,
                              float rstd) { return r(t, (x + res) * rstd * (1 + w)); }},
    // The residual addition is a separate operation in T. The normalised value is rounded to T
    // before the weight.
    {"HF Llama, Mistral, Qwen2/3, T5",
     [](Type t, float x, float res, float w, float rstd) {
       const float hidden = r(t, x + res);
       return r(t, w * r(t, hidden * rstd));
     }},
    {"HF Gemma 1-3, Qwen3-Next",
     [](Type t, float x, float res, float w, float rstd) {
       const float hidden = r(t, x + res);
       return r(t, hidden * rstd * (1.0f + w));
     }},
    {"vLLM CUDA to 2025",
     [](Type t, float x, float res, float w, float rstd) {
       const float z = r(t, x + res);
       return r(t, r(t, z * rstd) * w);
     }},
    {"vLLM native", [](Type t, float x, float res, float w,
                       float rstd) { return r(t, r(t, (x + res) * rstd) * w); }},
    // One factor for each column. They have no residual.
    {"vLLM, SGLang fused q/k norm and rope",
     [](Type t, float x, float res, float w, float rstd) { return r(t, (x + res) * (rstd * w)); }},
    // An eager chain: every operation has a result in T.
    {"Liger fused add, none", [](Type t, float x, float res, float w,
                                 float rstd) { return r(t, r(t, r(t, x + res) * rstd) * w); }},
};

TEST(Presets, TailsHaveThePeersBits) {
  constexpr int64_t kN = 2000;
  for (const auto& peer : kPeers) {
    const Preset& p = preset(peer.name);
    ASSERT_TRUE(p.tail_exact) << peer.name;
    for (const Type type : {Type::kF16, Type::kBF16}) {
      std::vector<float> x(kN), residual(kN), weight(kN), z(kN);
      fill_row(Pattern::kNormal, type, 1, x.data(), kN);
      fill_row(Pattern::kNormal, type, 2, residual.data(), kN);
      fill_row(Pattern::kWeights, type, 3, weight.data(), kN);
      NormOptions o{type, Kind::kRms, p.rounding, p.residual_rounding, type, 1e-6f, 0};
      o.weight_offset = std::strcmp(p.weight_offset, "1") == 0 ? 1.0f : 0.0f;
      // Statistics in T if the implementation keeps them in T.
      const float rstd = p.rounding == Rounding::kEveryStep ? r(type, 0.7071f) : 0.7071234f;
      norm_tail(o, {kN, x.data(), residual.data(), weight.data(), nullptr}, 0, rstd, z.data());
      int different = 0;
      for (size_t i = 0; i < kN; ++i) {
        const float theirs = peer.y(type, x[i], residual[i], weight[i], rstd);
        different += encode(type, z[i]) != encode(type, theirs) && theirs != 0.0f;
      }
      EXPECT_EQ(different, 0) << peer.name << " in " << name_of(type);
    }
  }
}

TEST(Presets, SettingsMakeADifference) {
  constexpr int64_t kN = 16;  // short rows, so that a rounded sum moves the statistics
  std::set<std::vector<uint32_t>> results;
  for (int axes = 0; axes < 9; ++axes) {
    const NormOptions o{Type::kBF16,
                        Kind::kRms,
                        static_cast<Rounding>(axes % 3),
                        static_cast<ResidualRounding>(axes / 3),
                        Type::kBF16,
                        1e-6f,
                        0};
    std::vector<uint32_t> rows;
    for (int r = 0; r < 300; ++r) {
      float x[kN], residual[kN], weight[kN];
      fill_row(Pattern::kNormal, Type::kBF16, hash(1, r), x, kN);
      fill_row(Pattern::kNormal, Type::kBF16, hash(2, r), residual, kN);
      fill_row(Pattern::kWeights, Type::kBF16, hash(3, r), weight, kN);
      ModelScratch scratch;
      NormResult result;
      norm_model(o, {kN, x, residual, weight, nullptr}, Order::kGpu, &scratch, &result);
      for (const float z : result.z) rows.push_back(encode(Type::kBF16, z));
    }
    results.insert(rows);
  }
  EXPECT_EQ(results.size(), 9u) << "two settings of the axes cannot be told apart";
}

// The order of the products changes few 16-bit results, so this takes many rows.
TEST(Presets, TheOrderOfProductsMakesADifference) {
  constexpr int64_t kN = 400000;
  std::vector<float> x(kN), weight(kN), z(kN), first(kN);
  fill_row(Pattern::kNormal, Type::kF16, 1, x.data(), kN);
  fill_row(Pattern::kWeights, Type::kF16, 2, weight.data(), kN);
  NormOptions o{Type::kF16, Kind::kRms, Rounding::kOnce, ResidualRounding::kExact, Type::kF16,
                1e-6f,      0};
  const NormRow row = {kN, x.data(), nullptr, weight.data(), nullptr};
  norm_tail(o, row, 0, 0.7071234f, z.data());
  o.rounding = Rounding::kOnceRw;
  norm_tail(o, row, 0, 0.7071234f, first.data());
  int64_t single = 0, half = 0;
  for (size_t i = 0; i < kN; ++i) {
    single += z[i] != first[i];
    half += encode(Type::kF16, z[i]) != encode(Type::kF16, first[i]);
  }
  EXPECT_GT(single, kN / 10);
  EXPECT_GT(half, 0);
  EXPECT_LT(half, kN / 1000) << "a unit in the last place of f32 moves few f16 results";
}

// vLLM's dynamic fp8: the row in T, its scale, and a division.
TEST(Presets, VllmDynamicFp8HasItsCodes) {
  constexpr int64_t kN = 64, kRows = 2048;
  constexpr float kMost = 448.0f, kLeastScale = 1.0f / (448.0f * 512.0f);
  const QuantPreset& p = quant_presets()[0];
  const Preset& rows = preset(p.row);
  for (const float bound : {0.0f, 1.25f}) {  // scale_ub
    int different = 0, of_products = 0;
    for (int64_t row = 0; row < kRows; ++row) {
      std::vector<float> x(kN), weight(kN), z(kN);
      fill_row(Pattern::kNormal, Type::kBF16, hash(41, row), x.data(), kN);
      fill_row(Pattern::kWeights, Type::kBF16, hash(42, row), weight.data(), kN);
      if (row % 64 == 0) std::fill(weight.begin(), weight.end(), 0x1p-14f);  // below the floor
      const float rstd = 0.7071234f;
      const NormOptions o{
          Type::kBF16, Kind::kRms, rows.rounding, rows.residual_rounding, Type::kBF16, 1e-6f, 0};
      norm_tail(o, {kN, x.data(), nullptr, weight.data(), nullptr}, 0, rstd, z.data());
      std::vector<float> token(kN);
      float most = 0;
      for (size_t i = 0; i < kN; ++i) {
        token[i] = r(Type::kBF16, r(Type::kBF16, x[i] * rstd) * weight[i]);
        most = std::max(most, std::fabs(token[i]));
      }
      if (bound > 0) most = std::min(most, bound);
      const float scale = std::max(most / kMost, kLeastScale);
      QuantOptions ours = p.options;
      ours.clamp = bound;
      QuantResult q;
      quant_model(ours, z.data(), kN, Type::kBF16, 0, 1, &q);
      EXPECT_EQ(q.scale[0], scale);
      for (size_t i = 0; i < kN; ++i) {
        const float quotient = std::clamp(token[i] / scale, -kMost, kMost);
        if (quotient == 0.0f) continue;  // our weight of -0 counts as 0
        different += q.codes[i] != encode(Format::kE4M3, quotient);
        of_products += q.codes[i] != encode(Format::kE4M3, token[i] * (1.0f / scale));
      }
    }
    EXPECT_EQ(different, 0) << "scale_ub " << bound;
    if (bound == 0) {
      EXPECT_GT(of_products, 20) << "nothing tells the division from the product";
    }
  }
}

constexpr const char* kRoundingNames[] = {"ONCE", "NORMALIZED", "EVERY_STEP", "ONCE_RW"};
constexpr const char* kResidualNames[] = {"EXACT", "ROUND_BEFORE_APPLY", "ROUND_BEFORE_STATISTICS"};
constexpr const char* kStepNames[] = {"ONCE", "EVERY_STEP"};

// A cell that says how y was compared.
const char* sameness(bool exact, bool tested) {
  if (!exact) return "no";
  return tested ? "tested" : "as read";
}

std::string table_line(std::initializer_list<std::string> cells) {
  std::string line;
  for (const std::string& cell : cells) line += "| " + cell + (cell.empty() ? "" : " ");
  return line + "|\n";
}

std::string header(std::initializer_list<std::string> cells) {
  std::string rule;
  for (size_t i = 0; i < cells.size(); ++i) rule += "|---";
  return table_line(cells) + rule + "|\n";
}

void expect_on_page(const std::string& table) {
  std::ifstream file(UNIT_TEST_DATA "/../../docs/rounding.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE((page + "\n").find("\n" + table + "\n"), std::string::npos)
      << "required in docs/rounding.md, between empty lines:\n"
      << table;
}

// --- norm and rope ---

// A pair of columns.
struct PairOfColumns {
  float x1, x2, w1, w2, rstd, c, s;
};
struct Turned {
  float first, second;
};
using RopePeer = std::function<Turned(Type, const PairOfColumns&)>;

// Rotates a pair of f32 values. Two of the four products are fused into a sum.
Turned rotate(Type t, float v1, float v2, float c, float s) {
  return {r(t, std::fma(v1, c, -(v2 * s))), r(t, std::fma(v2, c, v1 * s))};
}

const struct {
  const char* name;
  RopePeer y;
} kRopePeers[] = {
    {"SGLang, vLLM Triton q/k norm, rope and gate, f32",
     [](Type t, const PairOfColumns& p) {
       const float g1 = p.w1 + 1.0f, g2 = p.w2 + 1.0f;
       return rotate(t, p.x1 * p.rstd * g1, p.x2 * p.rstd * g2, p.c, p.s);
     }},
    {"SGLang Triton q/k norm, rope and gate, rounded",
     [](Type t, const PairOfColumns& p) {
       return rotate(t, r(t, p.x1 * p.rstd * p.w1), r(t, p.x2 * p.rstd * p.w2), p.c, p.s);
     }},
    {"FlashInfer DiT q/k norm and rope",
     [](Type t, const PairOfColumns& p) {
       return rotate(t, r(t, p.x1 * p.rstd * p.w1), r(t, p.x2 * p.rstd * p.w2), p.c, p.s);
     }},
    // One factor for each column.
    {"vLLM, TensorRT-LLM fused q/k norm and rope",
     [](Type t, const PairOfColumns& p) {
       return rotate(t, p.x1 * (p.rstd * p.w1), p.x2 * (p.rstd * p.w2), p.c, p.s);
     }},
    {"SGLang diffusion q/k norm and rope, rounded",
     [](Type t, const PairOfColumns& p) {
       const float v1 = r(t, p.x1 * (p.rstd * p.w1)), v2 = r(t, p.x2 * (p.rstd * p.w2));
       return Turned{r(t, r(t, v1 * p.c) - r(t, v2 * p.s)), r(t, r(t, v2 * p.c) + r(t, v1 * p.s))};
     }},
    // q * cos + rotate_half(q) * sin, each operation with a result in T.
    {"HF Llama, Qwen3, eager in 16 bits",
     [](Type t, const PairOfColumns& p) {
       const float v1 = r(t, p.w1 * r(t, p.x1 * p.rstd)), v2 = r(t, p.w2 * r(t, p.x2 * p.rstd));
       return Turned{r(t, r(t, v1 * p.c) + r(t, -v2 * p.s)), r(t, r(t, v2 * p.c) + r(t, v1 * p.s))};
     }},
};

const RopePreset& rope_preset(const char* peer) {
  for (const RopePreset& p : rope_presets()) {
    if (std::strcmp(p.peer, peer) == 0) return p;
  }
  ADD_FAILURE() << "no preset " << peer;
  return rope_presets()[0];
}

// How many results of heads of 128 columns differ from the other implementation's.
int64_t different_heads(const RopePeer& peer, const RopePreset& preset, const char* tables,
                        Type type) {
  constexpr size_t kHalf = 64, kColumns = 2 * kHalf, kHeads = 64;
  HeadOptions o = preset.options;
  o.norm.dtype = o.norm.sum_dtype = type;
  o.turn.half = kHalf;
  int64_t different = 0;
  for (size_t head = 0; head < kHeads; ++head) {
    std::vector<float> x(kColumns), w(kColumns), c(kHalf), s(kHalf), z(kColumns);
    fill_row(Pattern::kNormal, type, hash(51, head), x.data(), kColumns);
    fill_row(Pattern::kWeights, type, hash(52, head), w.data(), kColumns);
    const Type entries = std::strcmp(tables, "T") == 0 ? type : Type::kF32;
    for (size_t j = 0; j < kHalf; ++j) {
      const double angle = static_cast<double>(31 * head) *
                           std::pow(10000.0, -static_cast<double>(j) / double{kHalf});
      c[j] = r(entries, static_cast<float>(std::cos(angle)));
      s[j] = r(entries, static_cast<float>(std::sin(angle)));
    }
    const float rstd = 0.7071234f;
    head_model(o, {kColumns, x.data(), nullptr, w.data(), nullptr}, 0, rstd, c.data(), s.data(),
               z.data());
    const auto differs = [&](float ours, float theirs) {
      return encode(type, ours) != encode(type, theirs) && theirs != 0.0f;
    };
    for (size_t j = 0; j < kHalf; ++j) {
      const size_t k = j + kHalf;
      const Turned theirs = peer(type, {x[j], x[k], w[j], w[k], rstd, c[j], s[j]});
      different += differs(z[j], theirs.first) ? 1 : 0;
      different += differs(z[k], theirs.second) ? 1 : 0;
    }
  }
  return different;
}

TEST(Presets, HeadsHaveThePeersBits) {
  for (const auto& peer : kRopePeers) {
    const RopePreset& p = rope_preset(peer.name);
    ASSERT_TRUE(p.exact) << peer.name;
    for (const Type type : {Type::kF16, Type::kBF16}) {
      EXPECT_EQ(different_heads(peer.y, p, p.tables, type), 0)
          << peer.name << " in " << name_of(type);
    }
  }
}

std::string settings(const RopePreset& p) {
  const HeadOptions& o = p.options;
  return std::string(kRoundingNames[static_cast<int>(o.norm.rounding)]) + " | " +
         (o.norm.weight_offset != 0 ? "1" : "0") + " | " + (o.round_before_rope ? "yes" : "no") +
         " | " + kStepNames[o.turn.every_step ? 1 : 0];
}

TEST(Presets, EachRopeSettingHasItsPeer) {
  for (const auto& peer : kRopePeers) {
    const RopePreset& own = rope_preset(peer.name);
    for (const RopePreset& other : rope_presets()) {
      const int64_t different = different_heads(peer.y, other, own.tables, Type::kF16);
      EXPECT_EQ(different == 0, settings(other) == settings(own))
          << peer.name << " with the settings of " << other.peer;
    }
  }
}

TEST(Presets, ThePageHasTheTableOfRope) {
  std::string text =
      header({"implementation", "`rounding`", "`weight_offset`", "`ROPE_FROM_ROUNDED`",
              "`rope_rounding`", "tables", "same y", "what else differs"});
  for (const RopePreset& p : rope_presets()) {
    const bool tested =
        std::any_of(std::begin(kRopePeers), std::end(kRopePeers),
                    [&](const auto& peer) { return std::strcmp(peer.name, p.peer) == 0; });
    text += table_line({p.peer, settings(p), p.tables, sameness(p.exact, tested), p.differs});
  }
  expect_on_page(text);
}

// --- stages ---

// What an element of y follows from. `act`: silu of the gate.
struct StageElement {
  float x, residual, w, branch_w, act, k, scale, shift, alpha, mean, rstd, branch_rstd;
};
using StagePeer = std::function<float(Type, const StageElement&)>;

// x * gate + residual, LayerNorm and modulation, each operation with a result in T.
float eager_modulation(Type t, const StageElement& e) {
  const float hidden = r(t, e.residual + r(t, e.k * e.x));
  const float normalised = r(t, (hidden - e.mean) * e.rstd);
  return r(t, r(t, normalised * r(t, 1.0f + e.scale)) + e.shift);
}

const struct {
  const char* name;
  StagePeer y;
} kStagePeers[] = {
    {"mamba-ssm, vLLM guard, norm before gate",
     [](Type t, const StageElement& e) { return r(t, e.x * e.rstd * e.w * e.act); }},
    {"mamba-ssm, vLLM guard, gate first",
     [](Type t, const StageElement& e) { return r(t, e.x * e.act * e.rstd * e.w); }},
    // The weight is in T, and so is its product. The gate is f32.
    {"HF Qwen3-Next",
     [](Type t, const StageElement& e) { return r(t, r(t, e.w * r(t, e.x * e.rstd)) * e.act); }},
    {"HF Mamba2",
     [](Type t, const StageElement& e) { return r(t, e.w * r(t, e.x * e.act * e.rstd)); }},
    // Norm, addition and norm are three operations in T.
    {"HF Gemma 2, 3",
     [](Type t, const StageElement& e) {
       const float branch = r(t, e.x * e.branch_rstd * (1.0f + e.branch_w));
       const float hidden = r(t, e.residual + branch);
       return r(t, hidden * e.rstd * (1.0f + e.w));
     }},
    // The sum stays in f32.
    {"vLLM native",
     [](Type t, const StageElement& e) {
       const float branch = r(t, r(t, e.x * e.branch_rstd) * e.branch_w);
       return r(t, r(t, (branch + e.residual) * e.rstd) * e.w);
     }},
    {"vLLM CUDA 2026",
     [](Type t, const StageElement& e) {
       const float branch = r(t, e.x * e.branch_rstd * e.branch_w);
       return r(t, r(t, branch + e.residual) * e.rstd * e.w);
     }},
    {"HF Granite",
     [](Type t, const StageElement& e) {
       const float hidden = r(t, e.residual + r(t, e.x * e.alpha));
       return r(t, e.w * r(t, hidden * e.rstd));
     }},
    {"FlashInfer DiT",
     [](Type t, const StageElement& e) {
       const float sum = std::fma(e.x, e.k, e.residual);
       return r(t, std::fma((sum - e.mean) * e.rstd, 1.0f + e.scale, e.shift));
     }},
    {"SGLang diffusion, lossless", eager_modulation},
    {"diffusers, eager in 16 bits", eager_modulation},
};

const StagePreset& stage_preset(const char* peer) {
  for (const StagePreset& p : stage_presets()) {
    if (std::strcmp(p.peer, peer) == 0) return p;
  }
  ADD_FAILURE() << "no preset " << peer;
  return stage_presets()[0];
}

// A row of 512 columns for the presets of a stage.
class RowOfStages {
 public:
  static constexpr size_t kN = 512;
  static constexpr float kAlpha = 0.22f;

  RowOfStages(PresetStage stage, Type type, size_t row) : stage_(stage), type_(type) {
    for (size_t i = 0; i < std::size(values_); ++i) {
      values_[i].resize(kN);
      const bool weight = i == kWeight || i == kBranchWeight;
      fill_row(weight ? Pattern::kWeights : Pattern::kNormal, type, hash(61, row, i),
               values_[i].data(), kN);
    }
  }

  StagesResult run(StagesOptions o) const {
    o.norm.dtype = o.norm.sum_dtype = o.of_branch.dtype = o.of_branch.sum_dtype = type_;
    o.norm.eps = o.of_branch.eps = 1e-6f;
    o.group = kN;
    o.alpha = kAlpha;
    StagesRow in;
    in.row.n = kN;
    in.row.x = values_[kX].data();
    if (stage_ != PresetStage::kGate) in.row.residual = values_[kResidual].data();
    if (stage_ != PresetStage::kModulation) in.row.weight = values_[kWeight].data();
    if (stage_ == PresetStage::kGate) in.gate = values_[kGateValues].data();
    if (o.branch) in.branch_weight = values_[kBranchWeight].data();
    if (stage_ == PresetStage::kModulation) {
      in.residual_gate.values = values_[kResidualGate].data();
      in.scale.values = values_[kScale].data();
      in.shift.values = values_[kShift].data();
    }
    ModelScratch scratch;
    StagesResult result;
    stages_model(o, in, Order::kGpu, &scratch, &result);
    return result;
  }

  // With the statistics of `result`.
  StageElement element(size_t i, const StagesResult& result) const {
    const auto at = [&](Values values) { return values_[values][i]; };
    return {at(kX),
            at(kResidual),
            at(kWeight),
            at(kBranchWeight),
            activate(Activation::kSilu, at(kGateValues)),
            at(kResidualGate),
            at(kScale),
            at(kShift),
            kAlpha,
            result.mean.empty() ? 0.0f : result.mean[0],
            result.rstd[0],
            result.branch_rstd};
  }

 private:
  enum Values : size_t {
    kX,
    kResidual,
    kWeight,
    kBranchWeight,
    kGateValues,
    kResidualGate,
    kScale,
    kShift,
    kValues
  };
  PresetStage stage_;
  Type type_;
  std::vector<float> values_[kValues];
};

// How many results of `preset` differ from the other implementation's, which has the statistics of
// its own preset.
int64_t different_stages(const StagePeer& peer, const StagePreset& own, const StagePreset& preset,
                         Type type) {
  int64_t different = 0;
  for (size_t number = 0; number < 24; ++number) {
    const RowOfStages row(own.stage, type, number);
    const StagesResult of_peer = row.run(own.options), ours = row.run(preset.options);
    for (size_t i = 0; i < RowOfStages::kN; ++i) {
      const float theirs = peer(type, row.element(i, of_peer));
      // Our weight of -0 counts as 0.
      different += encode(type, ours.z[i]) != encode(type, theirs) && theirs != 0.0f ? 1 : 0;
    }
  }
  return different;
}

TEST(Presets, StagesHaveThePeersBits) {
  for (const auto& peer : kStagePeers) {
    const StagePreset& p = stage_preset(peer.name);
    ASSERT_TRUE(p.exact) << peer.name;
    for (const Type type : {Type::kF16, Type::kBF16}) {
      EXPECT_EQ(different_stages(peer.y, p, p, type), 0) << peer.name << " in " << name_of(type);
    }
  }
}

// The other association of a product moves few results, by one unit.
TEST(Presets, TheGateOfFlaDiffersInTheLastPlace) {
  const StagePreset& p = stage_preset("FLA gated norm");
  EXPECT_FALSE(p.exact);
  StagesOptions o = p.options;
  o.norm.dtype = o.norm.sum_dtype = Type::kF16;
  constexpr size_t kN = 4096, kRows = 24;
  o.group = kN;
  int64_t single = 0, half = 0, most = 0;
  for (size_t row = 0; row < kRows; ++row) {
    std::vector<float> x(kN), w(kN), gate(kN);
    fill_row(Pattern::kNormal, Type::kF16, hash(71, row), x.data(), kN);
    fill_row(Pattern::kWeights, Type::kF16, hash(72, row), w.data(), kN);
    fill_row(Pattern::kNormal, Type::kF16, hash(73, row), gate.data(), kN);
    StagesRow in;
    in.row = {kN, x.data(), nullptr, w.data(), nullptr};
    in.gate = gate.data();
    ModelScratch scratch;
    StagesResult result;
    stages_model(o, in, Order::kGpu, &scratch, &result);
    for (size_t i = 0; i < kN; ++i) {
      const float theirs =
          x[i] * result.rstd[0] * w[i] * gate[i] * activate(Activation::kSigmoid, gate[i]);
      if (theirs == 0.0f) continue;
      const int64_t units = std::abs(static_cast<int64_t>(encode(Type::kF16, result.z[i])) -
                                     static_cast<int64_t>(encode(Type::kF16, theirs)));
      single += result.z[i] != theirs ? 1 : 0;
      half += units != 0 ? 1 : 0;
      most = std::max(most, units);
    }
  }
  EXPECT_GT(single, 0);
  EXPECT_GT(half, 0);
  EXPECT_LT(half, int64_t{kN * kRows} / 500);
  EXPECT_EQ(most, 1);
}

std::string settings(const StagePreset& p) {
  const StagesOptions& o = p.options;
  const auto rounding = [](const NormOptions& n) {
    return kRoundingNames[static_cast<int>(n.rounding)];
  };
  const std::string residual = kResidualNames[static_cast<int>(o.norm.residual_rounding)];
  const std::string sum = kStepNames[o.sum_every_step ? 1 : 0];
  switch (p.stage) {
    case PresetStage::kGate:
      return std::string(o.gate_before ? "BEFORE_NORM" : "AFTER_NORM") + " | " + rounding(o.norm) +
             " | " + (o.gate_from_rounded ? "FROM_ROUNDED" : "FROM_F32");
    case PresetStage::kSandwich:
      return std::string(o.branch ? "1" : "0") + " | " +
             (o.branch ? rounding(o.of_branch) : "ONCE") + " | " + (o.branch_rounded ? "1" : "0") +
             " | " + sum + " | " + residual + " | " + rounding(o.norm) + " | " +
             (o.norm.weight_offset != 0 ? "1" : "0");
    default:
      return sum + " | " + residual + " | " + rounding(o.norm) + " | " +
             kStepNames[o.modulation_every_step ? 1 : 0];
  }
}

TEST(Presets, EachStageSettingHasItsPeer) {
  for (const auto& peer : kStagePeers) {
    const StagePreset& own = stage_preset(peer.name);
    for (const StagePreset& other : stage_presets()) {
      if (other.stage != own.stage) continue;
      const int64_t different = different_stages(peer.y, own, other, Type::kF16);
      EXPECT_EQ(different == 0, settings(other) == settings(own))
          << peer.name << " with the settings of " << other.peer;
    }
  }
}

std::string stage_table(PresetStage stage, const std::string& columns) {
  std::string text = columns;
  for (const StagePreset& p : stage_presets()) {
    if (p.stage != stage) continue;
    const bool tested =
        std::any_of(std::begin(kStagePeers), std::end(kStagePeers),
                    [&](const auto& peer) { return std::strcmp(peer.name, p.peer) == 0; });
    text += table_line({p.peer, settings(p), sameness(p.exact, tested), p.differs});
  }
  return text;
}

TEST(Presets, ThePageHasTheTablesOfStages) {
  expect_on_page(
      stage_table(PresetStage::kGate, header({"implementation", "`gate_position`", "`rounding`",
                                              "`gate_source`", "same y", "what else differs"})));
  expect_on_page(stage_table(PresetStage::kSandwich,
                             header({"implementation", "`branch_norm`", "`branch_rounding`",
                                     "`branch_rounded`", "`sum_rounding`", "`residual_rounding`",
                                     "`rounding`", "offsets", "same y", "what else differs"})));
  expect_on_page(
      stage_table(PresetStage::kModulation,
                  header({"implementation", "`sum_rounding`", "`residual_rounding`", "`rounding`",
                          "`modulation_rounding`", "same y", "what else differs"})));
}

// The table of quantised presets as users read it.
std::string quant_markdown() {
  std::string text =
      "| implementation | rows as | `scheme` | codes | `source` | `division` | "
      "`amax_floor` | `clamp` |\n|---|---|---|---|---|---|---|---|\n";
  for (const QuantPreset& p : quant_presets()) {
    EXPECT_EQ(p.options.scheme, Scheme::kPerRow);
    EXPECT_EQ(p.options.format, Format::kE4M3);
    EXPECT_EQ(p.options.amax_floor, 0x1p-9f);
    text += std::string("| ") + p.peer + " | " + p.row + " | PER_ROW | f8_e4m3fn | " +
            (p.options.source == QuantSource::kRounded ? "FROM_ROUNDED" : "FROM_F32") + " | " +
            (p.options.divide ? "DIVIDE" : "MULTIPLY_RECIPROCAL") + " | 2^-9 | " + p.clamp + " |\n";
  }
  return text;
}

TEST(Presets, ThePageHasTheTableOfQuantisedOutputs) { expect_on_page(quant_markdown()); }

TEST(Presets, TheTableIsWellFormed) {
  std::set<std::string> names;
  for (const Preset& p : presets()) {
    EXPECT_TRUE(names.insert(p.peer).second) << p.peer << " twice";
    const std::string offset = p.weight_offset;
    EXPECT_TRUE(offset == "0" || offset == "1" || offset == "any") << p.peer;
    EXPECT_TRUE(p.tail_exact || std::strlen(p.differs) > 0)
        << p.peer << ": not exact, and no reason";
  }
  EXPECT_GE(presets().size(), 20u);
}

// The table of presets as users read it.
std::string markdown() {
  std::string text =
      "| implementation | `rounding` | `residual_rounding` | `weight_offset` | same y | what else "
      "differs |\n|---|---|---|---|---|---|\n";
  for (const Preset& p : presets()) {
    const bool tested = std::any_of(std::begin(kPeers), std::end(kPeers), [&](const auto& peer) {
      return std::strcmp(peer.name, p.peer) == 0;
    });
    text += table_line({p.peer, kRoundingNames[static_cast<int>(p.rounding)],
                        kResidualNames[static_cast<int>(p.residual_rounding)], p.weight_offset,
                        sameness(p.tail_exact, tested), p.differs});
  }
  return text;
}

TEST(Presets, ThePageHasTheTable) { expect_on_page(markdown()); }

}  // namespace
}  // namespace fastnorm::ref
