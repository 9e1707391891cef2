#include "core/norm/index.h"

#include <bit>

namespace fastnorm {

NormIndex::NormIndex(std::span<const NormEntry> table)
    : table_(table),
      shift_(64 - std::bit_width(2 * table.size() + 1)),
      slots_(size_t{1} << (64 - shift_), -1) {
  for (size_t i = 0; i < table.size(); ++i) {
    size_t slot = first_slot(table[i].packed());
    while (slots_[slot] >= 0) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = static_cast<int32_t>(i);
  }
}

}  // namespace fastnorm
