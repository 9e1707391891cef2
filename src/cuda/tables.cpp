// The tables of all families, expanded from their lists.
#include <array>
#include <iterator>

#include "cuda/families.h"
#include "cuda/gpu_device.h"

namespace fastnorm::cuda {
namespace {

#define V(...) "V(" #__VA_ARGS__ ")",
constexpr const char* kNormTexts[] = {
#include "cuda/norm/variants_codes.inc"
#include "cuda/norm/variants_store.inc"
#include "cuda/norm/variants_unaligned.inc"
};
#undef V
static_assert(std::size(kNormTexts) == std::size(NormFamily::kLines));

template <class Family, int kArch>
std::span<const typename Family::Entry> table_of_arch() {
  static constexpr auto kTable = make_table<Family, kArch>();
  return kTable;
}

template <class Family, int... kArch>
std::span<const typename Family::Entry> find_table(int arch, std::integer_sequence<int, kArch...>) {
  std::span<const typename Family::Entry> table;
  ((arch == kArch ? table = table_of_arch<Family, table_arch<Family>(kArch)>() : table), ...);
  return table;
}

// The kernels of a family on an architecture. Those of norm_stages have a file of their own.
template <class Family>
std::span<const typename Family::Entry> make_table_of(const ArchSpec& arch) {
  if constexpr (std::is_same_v<Family, NormStagesFamily>)
    return {arch.stages->entries, static_cast<size_t>(arch.stages->count)};
  else
    return find_table<Family>(arch.column, std::make_integer_sequence<int, kArchCount>());
}

}  // namespace

Families::Tables tables_of(const ArchSpec& arch) {
  Families::Tables tables;
  Families::for_each([&]<class Family>() {
    std::get<Families::index_of<Family>()>(tables) = make_table_of<Family>(arch);
  });
  return tables;
}

const char* variant_text(const NormCall& call) {
  const uint16_t line = call.plan->entry->line;
  return call.desc->has_stages ? stages_words::kTexts[line] : kNormTexts[line];
}

}  // namespace fastnorm::cuda
