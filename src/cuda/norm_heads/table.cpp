#include "cuda/norm_heads/table.h"

namespace fastnorm::cuda {
namespace {

template <bool kHeld>
constexpr auto make_entries() {
  std::array<NormHeadsEntry, kHeadsWords<kHeld>.size()> entries = {};
  for (size_t i = 0; i < entries.size(); ++i)
    entries[i] = make_heads_entry(heads_variant_of(kHeadsWords<kHeld>[i]));
  return entries;
}

template <bool kHeld>
constexpr auto kEntries = make_entries<kHeld>();

// Each kernel once, whatever its blocks of a multiprocessor.
template <bool kHeld>
constexpr bool ascends() {
  const auto& entries = kEntries<kHeld>;
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i - 1].order >> 6 >= entries[i].order >> 6) return false;
  }
  return true;
}
static_assert(ascends<true>() && ascends<false>());

}  // namespace

std::span<const NormHeadsEntry> norm_heads_table(const ArchSpec& arch) {
  if (arch.holds_rows) return kEntries<true>;
  return kEntries<false>;
}

}  // namespace fastnorm::cuda
