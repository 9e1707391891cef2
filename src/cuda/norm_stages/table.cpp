#include "cuda/norm_stages/table.h"

namespace fastnorm::cuda {
namespace {

template <bool kHeld>
constexpr auto kEntries = make_entries<StagesFamily, kHeld>();

// As a plan points to them.
template <bool kHeld>
constexpr auto make_norm_entries() {
  std::array<NormEntry, kEntries<kHeld>.size()> entries = {};
  for (size_t i = 0; i < entries.size(); ++i) entries[i] = kEntries<kHeld>[i].norm;
  return entries;
}

template <bool kHeld>
constexpr auto kNormEntries = make_norm_entries<kHeld>();

template <bool kHeld>
constexpr StagesKernelList list_of() {
  return {kEntries<kHeld>.data(), static_cast<int32_t>(kEntries<kHeld>.size())};
}

}  // namespace

constinit const StagesKernelList kStagesHeldList = list_of<true>();
constinit const StagesKernelList kStagesGeneralList = list_of<false>();

std::span<const StagesEntry> norm_stages_table(const ArchSpec& arch) {
  return {arch.stages->entries, static_cast<size_t>(arch.stages->count)};
}

std::span<const NormEntry> norm_stages_entries(const ArchSpec& arch) {
  if (arch.stages == &kStagesHeldList) return kNormEntries<true>;
  return kNormEntries<false>;
}

const char* stages_text(const NormEntry& entry) {
  return stages_words::kTexts[entry.line - kFirstStagesLine];
}

}  // namespace fastnorm::cuda
