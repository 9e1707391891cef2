#include "cuda/norm_heads/table.h"

namespace fastnorm::cuda {
namespace {

template <bool kHeld>
constexpr auto kEntries = make_entries<HeadsFamily, kHeld>();

}  // namespace

std::span<const NormHeadsEntry> norm_heads_table(const ArchSpec& arch) {
  if (arch.holds_rows) return kEntries<true>;
  return kEntries<false>;
}

}  // namespace fastnorm::cuda
