#include "cuda/norm_stages/table.h"

namespace fastnorm::cuda {
namespace {

template <bool kHeld>
constexpr auto make_entries() {
  constexpr auto& kEntries = kStagesEntries<kHeld>;
  std::array<NormEntry, kEntries.size()> entries = {};
  for (size_t i = 0; i < entries.size(); ++i) entries[i] = kEntries[i].norm;
  return entries;
}

template <bool kHeld>
constexpr auto kEntriesOfPlans = make_entries<kHeld>();

// Each kernel once, whatever its blocks of a multiprocessor.
template <bool kHeld>
constexpr bool ascends() {
  const auto& entries = kStagesEntries<kHeld>;
  for (size_t i = 1; i < entries.size(); ++i) {
    if (packed(entries[i - 1].variant) >> 6 >= packed(entries[i].variant) >> 6) return false;
  }
  return true;
}
static_assert(ascends<true>() && ascends<false>());

template <bool kHeld>
constexpr StagesKernelList list_of() {
  return {kStagesEntries<kHeld>.data(), static_cast<int32_t>(kStagesEntries<kHeld>.size())};
}

}  // namespace

constinit const StagesKernelList kStagesHeldList = list_of<true>();
constinit const StagesKernelList kStagesGeneralList = list_of<false>();

std::span<const StagesEntry> norm_stages_table(const ArchSpec& arch) {
  return {arch.stages->entries, static_cast<size_t>(arch.stages->count)};
}

std::span<const NormEntry> norm_stages_entries(const ArchSpec& arch) {
  if (arch.stages == &kStagesHeldList) return kEntriesOfPlans<true>;
  return kEntriesOfPlans<false>;
}

const char* stages_text(const NormEntry& entry) {
  return stages_words::kTexts[entry.line - kFirstStagesLine];
}

}  // namespace fastnorm::cuda
