// The kernels of norm_backward of each architecture, expanded from variants.inc into constexpr
// tables: planning searches them, tests iterate them, and instances.cu turns them into kernels.
// CUDA-free.
#pragma once

#include "core/norm_backward/plan.h"
#include "cuda/family.h"
#include "cuda/name_writer.h"

namespace fastnorm::cuda {

namespace backward_words {

using namespace family_words;
inline constexpr uint8_t RMS = 1, LAYER = 2, EITHER = RMS | LAYER;
inline constexpr uint8_t PLAIN = 1, ADD = 2, BOTH = PLAIN | ADD, GATED = 4, BRANCH = 8,
                         MODULATED = 16, ONE = PLAIN;

struct Line : FamilyLine<NormBackwardVariant> {
  uint8_t stats, inputs;
};

#define V(form, dtypes, stats, inputs, threads, vectors, blocks, lanes, stages, column_vectors,    \
          chains, sm80, sm90, sm100, sm120, ptx)                                                   \
  {{{Dtype::kF32, Stat::kRms, BackwardInput::kPlain, BackwardForm::form, threads, vectors, blocks, \
     lanes, stages, column_vectors, chains},                                                       \
    dtypes,                                                                                        \
    {{sm80, sm90, sm100, sm120, ptx}}},                                                            \
   stats,                                                                                          \
   inputs},
inline constexpr Line kLines[] = {
#include "cuda/norm_backward/variants.inc"
};
#undef V

}  // namespace backward_words

constexpr const char* name_of(BackwardForm form) {
  return form == BackwardForm::kFold            ? "fold"
         : form == BackwardForm::kColumns       ? "columns"
         : form == BackwardForm::kRows          ? "rows"
         : form == BackwardForm::kPersistent    ? "persistent"
         : form == BackwardForm::kGatedColumns  ? "gated columns"
         : form == BackwardForm::kGatedRows     ? "gated rows"
         : form == BackwardForm::kBranchColumns ? "branch columns"
         : form == BackwardForm::kBranchRows    ? "branch rows"
                                                : "few";
}

constexpr const char* word_of(BackwardInput input) {
  return input == BackwardInput::kAdd         ? "add "
         : input == BackwardInput::kGated     ? "gated "
         : input == BackwardInput::kBranch    ? "branch "
         : input == BackwardInput::kModulated ? "modulated "
                                              : "";
}

constexpr bool takes_either_statistic(BackwardForm form) {
  return form == BackwardForm::kGatedColumns || form == BackwardForm::kGatedRows ||
         form == BackwardForm::kBranchColumns || form == BackwardForm::kBranchRows;
}

constexpr NormBackwardEntry make_backward_entry(const NormBackwardVariant& v) {
  NormBackwardEntry entry{v, packed(v)};
  NameWriter name(entry.name);
  name << "norm_backward ";
  if (v.form == BackwardForm::kFold) {
    name << name_of(v.form);
    return entry;
  }
  name << dtype_name(v.dtype) << ' ';
  if (!takes_either_statistic(v.form)) name << (v.stat == Stat::kRms ? "rms " : "layer ");
  if (v.form != BackwardForm::kFew) name << word_of(v.input);
  name << name_of(v.form) << ' ' << +v.threads;
  if (!v.is_streamed()) {
    name << 'x' << +v.vectors;
    if (v.is_cluster()) name << 'x' << +v.blocks;
    name << ' ' << +v.lanes << 'x' << +v.stages;
  }
  return entry;
}

struct NormBackwardFamily : FamilyOf<NormBackwardVariant, uint64_t, kBackwardDetailBits> {
  static constexpr const char* kName = "norm_backward";
  using Entry = NormBackwardEntry;
  static constexpr auto& kLines = backward_words::kLines;
  static constexpr uint32_t kOwnSharedBytes = 24 << 10;
  static constexpr Entry make_entry(Word word, uint16_t) {
    return make_backward_entry(variant_of(word));
  }
  static constexpr void expand(const backward_words::Line& line, Dtype dtype, int arch, auto use) {
    const auto each = [&](int stat, int input) {
      FamilyOf::expand(line, dtype, arch, [&](Variant variant) {
        variant.stat = static_cast<Stat>(stat);
        variant.input = static_cast<BackwardInput>(input);
        use(variant);
      });
    };
    for_each_choice(each, line.stats, line.inputs);
  }
};

}  // namespace fastnorm::cuda
