#include "cuda/norm_heads_backward/table.h"

namespace fastnorm::cuda {
namespace {

template <bool kHeld>
constexpr auto make_entries() {
  std::array<NormHeadsBackwardEntry, kHeadsBackwardWords<kHeld>.size()> entries = {};
  for (size_t i = 0; i < entries.size(); ++i)
    entries[i] =
        make_heads_backward_entry(heads_backward_variant_of(kHeadsBackwardWords<kHeld>[i]));
  return entries;
}

template <bool kHeld>
constexpr auto kEntries = make_entries<kHeld>();

// Each kernel once, whatever its blocks of a multiprocessor.
template <bool kHeld>
constexpr bool ascends() {
  const auto& entries = kEntries<kHeld>;
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i - 1].order >> 4 >= entries[i].order >> 4) return false;
  }
  return true;
}
static_assert(ascends<true>() && ascends<false>());

}  // namespace

std::span<const NormHeadsBackwardEntry> norm_heads_backward_table(const ArchSpec& arch) {
  if (arch.holds_rows) return kEntries<true>;
  return kEntries<false>;
}

}  // namespace fastnorm::cuda
