// The families whose kernels come from lists: their lists, and the launches of a planned call. A
// new one is added here. Needs no CUDA.
#pragma once

#include <cstddef>
#include <span>
#include <tuple>
#include <type_traits>

#include "cuda/arch.h"
#include "cuda/norm/launch_params.h"
#include "cuda/norm/list.h"
#include "cuda/norm_backward/launch_params.h"
#include "cuda/norm_backward/list.h"
#include "cuda/norm_heads/launch_params.h"
#include "cuda/norm_heads/list.h"
#include "cuda/norm_heads_backward/launch_params.h"
#include "cuda/norm_heads_backward/list.h"
#include "cuda/norm_stages/launch_params.h"
#include "cuda/norm_stages/list.h"
#include "cuda/peer/list.h"

namespace fastnorm::cuda {

template <class... Family>
struct FamilyList {
  static constexpr size_t kCount = sizeof...(Family);
  using Tables = std::tuple<std::span<const typename Family::Entry>...>;

  // Calls use.operator()<Family>() for each.
  template <typename Use>
  static void for_each(Use use) {
    (use.template operator()<Family>(), ...);
  }
  // A family's place in the list.
  template <class Wanted>
  static constexpr size_t index_of() {
    size_t index = 0;
    const bool found = ((std::is_same_v<Family, Wanted> || (++index, false)) || ...);
    return found ? index : kCount;
  }
};

using Families = FamilyList<NormFamily, NormStagesFamily, NormBackwardFamily, NormHeadsFamily,
                            NormHeadsBackwardFamily, PeerFamily>;

// The kernels of all families on an architecture, in the order of their numbers.
Families::Tables tables_of(const ArchSpec& arch);
// The kernels of one family.
template <class Family>
std::span<const typename Family::Entry> table_of(const ArchSpec& arch) {
  return std::get<Families::index_of<Family>()>(tables_of(arch));
}

}  // namespace fastnorm::cuda
