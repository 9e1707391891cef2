// The kernels of norm_backward of each architecture, expanded from variants.inc into constexpr
// tables: planning searches them, tests iterate them, and instances.cu turns them into kernels.
// CUDA-free.
#pragma once

#include <algorithm>
#include <array>

#include "core/norm_backward_plan.h"
#include "cuda/name_writer.h"

namespace fastnorm::cuda {

namespace backward_words {

constexpr uint8_t dtype_bit(Dtype dtype) { return 1 << static_cast<int>(dtype); }
inline constexpr uint8_t F32 = dtype_bit(Dtype::kF32), F16 = dtype_bit(Dtype::kF16),
                         BF16 = dtype_bit(Dtype::kBF16), HALF = F16 | BF16, ALL = F32 | HALF;
inline constexpr uint8_t RMS = 1, LAYER = 2, EITHER = RMS | LAYER;
inline constexpr uint8_t PLAIN = 1, ADD = 2, BOTH = PLAIN | ADD, ONE = PLAIN;
enum Archs : uint8_t { EVERY, SM90 };

struct Line {
  NormBackwardVariant variant;  // without dtype, statistic and residual
  uint8_t dtypes, stats, residuals;
  Archs archs;
};

#define V(form, dtypes, stats, residuals, threads, vectors, blocks, lanes, unroll, stages,       \
          column_vectors, chains, rereads, one_warp_folds, blocks_per_sm, archs)                 \
  {{Dtype::kF32, Stat::kRms, false, BackwardForm::form, threads, vectors, blocks, lanes, unroll, \
    stages, column_vectors, chains, (rereads) != 0, (one_warp_folds) != 0, blocks_per_sm},       \
   dtypes,                                                                                       \
   stats,                                                                                        \
   residuals,                                                                                    \
   archs},
inline constexpr Line kLines[] = {
#include "cuda/norm_backward/variants.inc"
};
#undef V

// Calls use(variant) for the kernels of an architecture.
template <typename Use>
constexpr void for_each(bool held, Use use) {
  for (const Line& line : kLines) {
    if (line.archs == SM90 && !held) continue;
    for (int dtype = 0; dtype < kRowDtypes; ++dtype) {
      for (int stat = 0; stat < 2; ++stat) {
        for (int residual = 0; residual < 2; ++residual) {
          if ((line.dtypes >> dtype & 1) == 0 || (line.stats >> stat & 1) == 0 ||
              (line.residuals >> residual & 1) == 0) {
            continue;
          }
          NormBackwardVariant variant = line.variant;
          variant.dtype = static_cast<Dtype>(dtype);
          variant.stat = static_cast<Stat>(stat);
          variant.residual = residual != 0;
          use(variant);
        }
      }
    }
  }
}

}  // namespace backward_words

constexpr int count_backward(bool held) {
  int count = 0;
  backward_words::for_each(held, [&](const NormBackwardVariant&) { ++count; });
  return count;
}

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

constexpr bool takes_either_statistic(BackwardForm form) {
  return form == BackwardForm::kGatedColumns || form == BackwardForm::kBranchColumns ||
         form == BackwardForm::kBranchRows;
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
  if (v.residual) name << "add ";
  name << name_of(v.form) << ' ' << +v.threads;
  if (!v.is_streamed()) {
    name << 'x' << +v.vectors;
    if (v.is_cluster()) name << 'x' << +v.blocks;
    name << ' ' << +v.lanes << 'x' << +v.unroll << 'x' << +v.stages;
  }
  return entry;
}

// Sorted by their words.
template <bool kHeld>
constexpr auto make_backward_table() {
  std::array<uint64_t, count_backward(kHeld)> words = {};
  size_t count = 0;
  backward_words::for_each(
      kHeld, [&](const NormBackwardVariant& variant) { words[count++] = packed(variant); });
  std::sort(words.begin(), words.end());
  return words;
}

template <bool kHeld>
inline constexpr auto kBackwardWords = make_backward_table<kHeld>();

}  // namespace fastnorm::cuda
