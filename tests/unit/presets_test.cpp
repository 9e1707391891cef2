// The table of presets against the arithmetic of the peers it names: given the same statistics, the same bits.
#include "ref/presets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "ref/data.h"
#include "ref/norm_model.h"

namespace fastnorm::ref {
namespace {

const Preset& preset(const char* peer) {
  for (const Preset& p : presets()) {
    if (std::strcmp(p.peer, peer) == 0) return p;
  }
  ADD_FAILURE() << "no preset " << peer;
  return presets()[0];
}

// y of one element as a peer writes it, from x, residual, weight (values of T) and rstd.
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
    // The residual addition is an operation of its own in T; the normalised value returns to T before the weight.
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
      // Statistics in T where the peer keeps them there.
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
  constexpr const char* kRounding[] = {"ONCE", "NORMALIZED", "EVERY_STEP"};
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
