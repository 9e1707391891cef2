// cuda/common/ptx/cluster.cuh for simt/machine.h.
#pragma once

#include <bit>

#include "simt/machine.h"

namespace fastnorm::ptx {

inline constexpr bool kHasClusters = true;

inline uint32_t cluster_block_rank() { return simt::current->cluster_rank; }
inline uint32_t shared_address(const void* pointer) { return simt::shared_address(pointer); }
inline uint32_t map_to_block(uint32_t address, int rank) {
  return simt::map_to_block(address, static_cast<unsigned>(rank));
}
inline void mbarrier_init(uint32_t barrier, int arrivals) {
  simt::mbarrier_init(barrier, static_cast<unsigned>(arrivals));
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive_expect(uint32_t barrier, int bytes) {
  simt::mbarrier_arrive_expect(barrier, static_cast<unsigned>(bytes));
}
inline void mbarrier_wait(uint32_t barrier, int phase) {
  simt::mbarrier_wait(barrier, static_cast<unsigned>(phase));
}
inline void st_async(uint32_t address, float value, uint32_t barrier) {
  simt::st_async(address, std::bit_cast<uint32_t>(value), barrier);
}
inline void st_async_v2(uint32_t address, float first, float second, uint32_t barrier) {
  simt::st_async_v2(address, std::bit_cast<uint32_t>(first), std::bit_cast<uint32_t>(second),
                    barrier);
}
inline void cluster_arrive_relaxed() { simt::cluster_arrive(); }
inline void cluster_wait() { simt::cluster_wait(); }

}  // namespace fastnorm::ptx
