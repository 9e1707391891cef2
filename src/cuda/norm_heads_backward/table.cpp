#include "cuda/norm_heads_backward/table.h"

namespace fastnorm::cuda {
namespace {

template <bool kHeld>
constexpr auto kEntries = make_entries<HeadsBackwardFamily, kHeld>();

}  // namespace

std::span<const NormHeadsBackwardEntry> norm_heads_backward_table(const ArchSpec& arch) {
  if (arch.holds_rows) return kEntries<true>;
  return kEntries<false>;
}

}  // namespace fastnorm::cuda
