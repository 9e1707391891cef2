#include "cuda/norm_backward/table.h"

namespace fastnorm::cuda {
namespace {

template <bool kHeld>
constexpr auto make_entries() {
  std::array<NormBackwardEntry, kBackwardWords<kHeld>.size()> entries = {};
  for (size_t i = 0; i < entries.size(); ++i)
    entries[i] = make_backward_entry(backward_variant_of(kBackwardWords<kHeld>[i]));
  return entries;
}

template <bool kHeld>
constexpr auto kEntries = make_entries<kHeld>();

// Each kernel once, and each of the numbers that a choice names.
template <bool kHeld>
constexpr bool ascends() {
  const auto& entries = kEntries<kHeld>;
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i - 1].order >> kBackwardDetailBits >= entries[i].order >> kBackwardDetailBits)
      return false;
  }
  return true;
}
static_assert(ascends<true>() && ascends<false>());

}  // namespace

std::span<const NormBackwardEntry> norm_backward_table(const ArchSpec& arch) {
  if (arch.holds_rows) return kEntries<true>;
  return kEntries<false>;
}

}  // namespace fastnorm::cuda
