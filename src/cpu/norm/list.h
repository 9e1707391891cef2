// The list of forward kernels, the same for every instruction set. It expands to the constexpr
// table that planning searches and tests iterate. In each unit it also gives the kernels' addresses
// in the same order.
#pragma once

#include <array>
#include <cstddef>

#include "core/norm/key.h"

namespace fastnorm::cpu {

struct Form {
  Affine affine;
  Sink sink;
  Access access;
};

// The common case, and everything. Alignment of a row costs nothing here, so a general kernel calls
// the plain one if only the alignment is unusual. Quantisation costs more than a plain kernel would
// save.
inline constexpr Form kForms[] = {{Affine::kOnce, Sink::kStore, Access::kVector},
                                  {Affine::kAny, Sink::kStore, Access::kAny},
                                  {Affine::kAny, Sink::kQuant, Access::kAny}};

inline constexpr size_t kNormKernels = 36;

// In increasing order of packed(): the loops run over its fields, the highest first.
constexpr std::array<NormEntry, kNormKernels> make_norm_table() {
  std::array<NormEntry, kNormKernels> table{};
  size_t count = 0;
  for (Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    for (Source source : {Source::kPlain, Source::kAdd}) {
      for (Stat stat : {Stat::kRms, Stat::kLayer}) {
        for (Form form : kForms) {
          table[count++] =
              make_entry({dtype, source, stat, form.affine, form.sink, form.access}, Tile{});
        }
      }
    }
  }
  return table;
}

inline constexpr std::array<NormEntry, kNormKernels> kNormTable = make_norm_table();

constexpr bool is_sorted(const std::array<NormEntry, kNormKernels>& table) {
  for (size_t i = 1; i < table.size(); ++i) {
    if (table[i - 1].packed() >= table[i].packed()) return false;
  }
  return true;
}
static_assert(is_sorted(kNormTable));

}  // namespace fastnorm::cpu
