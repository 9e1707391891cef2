// Finds the entry of a key and a tile in a table, without find_entry()'s search. A context makes
// one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/norm/key.h"

namespace fastnorm {

class NormIndex {
 public:
  explicit NormIndex(std::span<const NormEntry> table);

  // The result of find_entry() for the key and tile whose packed() is `wanted`.
  int32_t find(uint64_t wanted) const {
    for (size_t slot = first_slot(wanted);; slot = (slot + 1) & (slots_.size() - 1)) {
      const int32_t at = slots_[slot];
      if (at < 0 || table_[static_cast<size_t>(at)].packed() == wanted) return at;
    }
  }

  std::span<const NormEntry> table() const { return table_; }

 private:
  size_t first_slot(uint64_t order) const {
    return static_cast<size_t>(order * 0x9e3779b97f4a7c15u >> shift_);
  }

  std::span<const NormEntry> table_;
  int shift_;
  std::vector<int32_t> slots_;  // 2^(64 - shift_) slots, at most half in use; -1: none
};

}  // namespace fastnorm
