#include "cuda/norm_backward/table.h"

namespace fastnorm::cuda {
namespace {

template <bool kHeld>
constexpr auto kEntries = make_entries<BackwardFamily, kHeld>();

}  // namespace

std::span<const NormBackwardEntry> norm_backward_table(const ArchSpec& arch) {
  if (arch.holds_rows) return kEntries<true>;
  return kEntries<false>;
}

}  // namespace fastnorm::cuda
