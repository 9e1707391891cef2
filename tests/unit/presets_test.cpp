// The table of presets against the arithmetic of the implementations that it names: with the same
// statistics, the same bits.
#include "ref/presets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "ref/data.h"
#include "ref/norm_model.h"
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

// The table of quantised presets as users read it.
std::string quant_markdown() {
  std::string text =
      "| implementation | rows as | `quant_scheme` | codes | `quant_source` | `quant_division` | "
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

TEST(Presets, ThePageHasTheTableOfQuantisedOutputs) {
  std::ifstream file(UNIT_TEST_DATA "/../../docs/rounding.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE((page + "\n").find("\n" + quant_markdown() + "\n"), std::string::npos)
      << "required in docs/rounding.md, between empty lines:\n"
      << quant_markdown();
}

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
  constexpr const char* kRounding[] = {"ONCE", "NORMALIZED", "EVERY_STEP", "ONCE_RW"};
  constexpr const char* kResidual[] = {"EXACT", "ROUND_BEFORE_APPLY", "ROUND_BEFORE_STATISTICS"};
  std::string text =
      "| implementation | `rounding` | `residual_rounding` | `weight_offset` | same y | what else "
      "differs |\n|---|---|---|---|---|---|\n";
  for (const Preset& p : presets()) {
    const bool tested = std::any_of(std::begin(kPeers), std::end(kPeers), [&](const auto& peer) {
      return std::strcmp(peer.name, p.peer) == 0;
    });
    for (const char* cell : {p.peer, kRounding[static_cast<int>(p.rounding)],
                             kResidual[static_cast<int>(p.residual_rounding)], p.weight_offset,
                             !p.tail_exact ? "no"
                             : tested      ? "tested"
                                           : "as read",
                             p.differs}) {
      text += std::string("| ") + cell + (*cell != 0 ? " " : "");
    }
    text += "|\n";
  }
  return text;
}

TEST(Presets, ThePageHasTheTable) {
  std::ifstream file(UNIT_TEST_DATA "/../../docs/rounding.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE((page + "\n").find("\n" + markdown() + "\n"), std::string::npos)
      << "required in docs/rounding.md, between empty lines:\n"
      << markdown();
}

}  // namespace
}  // namespace fastnorm::ref
