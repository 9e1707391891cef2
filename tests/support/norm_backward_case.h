// One backward call to check: what it computes, and its layout in memory, which becomes a line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ref/activation.h"
#include "ref/data.h"
#include "ref/norm_spec.h"

namespace fastnorm::support {

// Which rows of x, [batch, heads, n], share a row of the weight.
enum class Share : uint8_t { kAll, kByHead, kByBatch, kNone };

// dy in memory: as any tensor, one row for all rows, or one element for all.
enum class Expand : uint8_t { kNo, kRows, kAll };

// The input that dx overwrites.
enum class InPlace : uint8_t { kNothing, kDy, kX, kDresidualIn };

// The input that dgate overwrites.
enum class GateInPlace : uint8_t { kNothing, kGate, kDy };

// The forward's branch: what of it is given and wanted.
struct BranchCase {
  bool present = false;  // branch or one of its outputs
  bool normalise = false, has_branch = false, has_weight = false, has_bias = false;
  bool has_statistics = false, has_gate = false, has_sum_scale = false, rounded = false;
  bool has_dbranch = false, has_dweight = false, has_dbias = false, has_dgate = false;
  bool accumulate_dweight = false, accumulate_dbias = false, accumulate_dgate = false;
  bool in_place = false;  // dbranch overwrites branch
  ref::Kind kind = ref::Kind::kRms;
  ref::Rounding rounding = ref::Rounding::kOnce;
  float weight_offset = 0, alpha = 0;
  ref::Activation act = ref::Activation::kIdentity;
  ref::Type weight = ref::Type::kF32, bias = ref::Type::kF32, gate = ref::Type::kF32;
  ref::Type dweight = ref::Type::kF32, dbias = ref::Type::kF32, dgate = ref::Type::kF32;
  Share share = Share::kAll, bias_share = Share::kAll, gate_share = Share::kAll;
  ref::Pattern pattern = ref::Pattern::kNormal;
};

struct NormBackwardCase {
  int64_t batch = 1, heads = 1, n = 1;
  ref::Type dtype = ref::Type::kF32;  // T
  ref::Type x = ref::Type::kF32, dy = ref::Type::kF32, weight = ref::Type::kF32;
  ref::Type dweight = ref::Type::kF32, dbias = ref::Type::kF32;
  ref::Type dresidual_in = ref::Type::kF32, dresidual = ref::Type::kF32;
  ref::Kind kind = ref::Kind::kRms;
  ref::Rounding rounding = ref::Rounding::kOnce;
  float eps = 1e-6f, weight_offset = 0;
  bool has_weight = true, has_dresidual_in = false, has_statistics = true;
  bool has_dx = true, has_dresidual = false, has_dweight = true, has_dbias = false;
  bool accumulate_dweight = false, accumulate_dbias = false;
  Share share = Share::kAll, bias_share = Share::kAll;
  Expand expand = Expand::kNo;
  InPlace in_place = InPlace::kNothing;
  bool dresidual_in_place = false;  // overwrites dresidual_in
  int padding = 0;                  // elements behind each row
  int shift = 0;                    // offset of tensors from an aligned address, in elements
  bool transposed = false;          // rows of a head are consecutive
  bool grouped = false;             // x is [batch, heads * n], heads are groups of its columns
  bool has_gate = false, has_dgate = false, has_bias = false, gate_before = false;
  bool gate_from_rounded = false;
  ref::Activation gate_act = ref::Activation::kIdentity;
  ref::Type gate = ref::Type::kF32, dgate = ref::Type::kF32, bias = ref::Type::kF32;
  GateInPlace gate_in_place = GateInPlace::kNothing;
  ref::Pattern gate_pattern = ref::Pattern::kNormal;
  BranchCase branch;
  ref::Type dx = ref::Type::kF32;  // T without a branch
  ref::Pattern pattern = ref::Pattern::kNormal;
  uint64_t seed = 0;

  int64_t rows() const { return batch * heads; }
  // The call as a line of text.
  std::string line(bool gpu) const;
};

// What a random case has beside the plain call.
enum class Beside : uint8_t { kNothing, kGate, kBranch };

NormBackwardCase random_case(ref::Random* random, int64_t most_elements, Beside beside);

// Resolves settings that contradict each other.
void settle(NormBackwardCase* c);

// All cases, in the same order on all machines. Reduced: fewer and smaller ones.
std::vector<NormBackwardCase> make_norm_backward_cases(bool cuda, bool reduced);

}  // namespace fastnorm::support
