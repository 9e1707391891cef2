// How threads share a row, and its canonical sum.
//
// The order of every sum depends only on n and dtype. Vector j of a row has the binary digits of j,
// and the tree always combines the highest digit first. A tile only says where the digits are. From
// the highest down they are in the register number, the warp, the block of a cluster, and the lane.
// The lowest digit selects one of two neighbouring vectors. So registers fold first, then warps,
// blocks and lanes, and a thread's two neighbours last. Every tile gives the same bits.
#pragma once

#include <cstdint>

#include "core/common/tile.h"
#include "cuda/common/ptx/block.cuh"
#include "cuda/common/ptx/cluster.cuh"
#include "cuda/common/rows.h"

namespace fastnorm::cuda {

template <int kThreads_, int kVectors_, int kBlocks_>
struct RowTile {
  static constexpr int kThreads = kThreads_;  // of one block, for one row
  static constexpr int kVectors =
      kVectors_;                            // a thread's share of the row; 0 = the row is streamed
  static constexpr int kBlocks = kBlocks_;  // of a cluster, for one row
  static constexpr int kRows = rows_per_block(Tile{kThreads_, kVectors_, kBlocks_});  // of a block
  static constexpr int kBlockThreads = kThreads * kRows;
  static constexpr bool kStreams = kVectors == 0;  // no thread holds its share of the row
  static constexpr bool kCluster = kBlocks > 1;
  static constexpr bool kOneWarp = kThreads <= 32;                  // a row has no more
  static constexpr bool kRowsShareWarp = kThreads < 32;             // a warp has several rows
  static constexpr int kWarps = kThreads > 32 ? kThreads / 32 : 1;  // of one row
  static constexpr int kLanes = kThreads < 32 ? kThreads : 32;
  static constexpr int kStride = kThreads * kBlocks;  // vectors from one of a thread to its next
  // Vectors from a thread's first one to the one that register v holds.
  static constexpr int offset(int v) { return v * kStride; }
  // A block has one row, whose number is the block's; a tile of its own may say otherwise.
  static constexpr bool kKeepsNumber = false;
  static_assert(kThreads <= 32 || kRows == 1, "rows of several warps have a block of their own");
};

// Which rows and vectors belong to this thread.
template <class Tile>
struct Place {
  // `block_number`: the number of the thread block in the call. What is the same for all threads of
  // a block is written so that the compiler can see it.
  __device__ __forceinline__ explicit Place(uint32_t block_number) {
    lane = static_cast<int>(threadIdx.x % Tile::kLanes);
    warp = Tile::kThreads > 32 ? static_cast<int>(threadIdx.x / 32) : 0;
    block = Tile::kBlocks > 1 ? static_cast<int>(ptx::cluster_block_rank()) : 0;
    first = Tile::kBlocks > 1
                ? (warp * Tile::kBlocks + block) * Tile::kLanes + lane
                : static_cast<int>(Tile::kRows > 1 ? threadIdx.x % Tile::kThreads : threadIdx.x);
    row = block_number / Tile::kBlocks * Tile::kRows;
    if constexpr (Tile::kRows > 1) row += threadIdx.x / Tile::kThreads;
  }
  // The address of the vector in register v, in a row of kBytes a vector. It is one address plus
  // constant offsets. Clusters have no register to keep the address and compute each one.
  template <int kBytes, class Byte>
  __device__ __forceinline__ Byte* address(Byte* row, int v) const {
    if constexpr (Tile::kBlocks > 1)
      return row + int64_t{static_cast<uint32_t>(vector(v))} * kBytes;
    return row + static_cast<uint32_t>(first) * kBytes + Tile::offset(v) * kBytes;
  }
  // Number of the row's vector that register v holds.
  __device__ __forceinline__ int vector(int v) const { return first + Tile::offset(v); }
  __device__ __forceinline__ bool leads_row() const { return first == 0; }

  // The row, computed again: its number and digits would take registers across a reduction. For
  // grids of one call, and for tiles with one row.
  __device__ __forceinline__ uint32_t row_again() const {
    if constexpr (Tile::kRows > 1 || Tile::kKeepsNumber) return row;
    return ptx::block_index() / Tile::kBlocks;
  }

  int lane, warp, block;
  int first;
  uint32_t row;
};

// What a fold does with two values.
struct Sum {
  static __device__ __forceinline__ float of(float a, float b) { return __fadd_rn(a, b); }
};
// The greater bits, for magnitudes.
struct Greatest {
  static __device__ __forceinline__ float of(float a, float b) {
    const uint32_t i = __float_as_uint(a), j = __float_as_uint(b);
    return __uint_as_float(i > j ? i : j);
  }
};

// Folds by the canonical tree over registers: q[j] += q[j + P/2] .., where P is the least power of
// two that is at least kCount.
template <class Fold, int kCount, int kHalf>
__device__ __forceinline__ void fold_step(float (&q)[kCount]) {
  if constexpr (kHalf >= 1) {
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      if (j + kHalf < kCount) q[j] = Fold::of(q[j], q[j + kHalf]);
    }
    fold_step<Fold, kCount, kHalf / 2>(q);
  }
}

constexpr int power_of_two_up(int v) {
  int p = 1;
  while (p < v) p *= 2;
  return p;
}

template <class Fold = Sum, int kCount>
__device__ __forceinline__ float fold_registers(float (&q)[kCount]) {
  fold_step<Fold, kCount, power_of_two_up(kCount) / 2>(q);
  return q[0];
}

template <int kLanes, class Fold = Sum>
__device__ __forceinline__ float fold_lanes(float q) {
#pragma unroll
  for (int half = kLanes / 2; half >= 1; half /= 2) q = Fold::of(q, __shfl_xor_sync(~0u, q, half));
  return q;
}

// Shared memory of one fold over a row, of one sum or of two at once. Each fold of a row has its
// own, so no barrier separates them.
template <class Tile, int kSums = 1>
struct FoldScratch {
  static constexpr int kExchangeBytes =
      Tile::kBlocks * 32 * kSums * static_cast<int>(sizeof(float));
  // [warp][lane][sum]
  alignas(8 * kSums) float values[Tile::kThreads > 32 ? Tile::kThreads* kSums : 1];
  float total[kSums];  // where one warp folds for all warps
  // [block][lane][sum], stored by the blocks of the cluster
  alignas(4 * kSums) float exchange[Tile::kBlocks > 1 ? Tile::kBlocks * 32 * kSums : 1];
  alignas(8) uint64_t barrier;  // counts the bytes of exchange
};

// The memory of all folds over a row: kFolds of one value per thread, and for LAYER two of two
// values.
template <class Tile, int kFolds, bool kLayer>
struct RowScratch {
  template <typename Fn>
  __device__ __forceinline__ void for_each(Fn fn) {
    for (FoldScratch<Tile>& s : fold) fn(s);
  }

  FoldScratch<Tile> fold[kFolds];
};
template <class Tile>
struct RowScratch<Tile, 0, true> {
  template <typename Fn>
  __device__ __forceinline__ void for_each(Fn fn) {
    for (FoldScratch<Tile, 2>& s : moments) fn(s);
  }

  FoldScratch<Tile, 2> moments[2];
};
template <class Tile>
struct RowScratch<Tile, 1, true> {
  template <typename Fn>
  __device__ __forceinline__ void for_each(Fn fn) {
    for (FoldScratch<Tile, 2>& s : moments) fn(s);
    fn(fold[0]);
  }

  FoldScratch<Tile, 2> moments[2];
  FoldScratch<Tile> fold[1];
};

// In wide blocks one warp folds, and a second barrier publishes the sum. In smaller ones every warp
// reads the values of all others.
template <class Tile>
inline constexpr bool kOneWarpFolds = Tile::kThreads >= 512;

template <class Tile, class Fold>
__device__ __forceinline__ float fold_warps(const float* values, int lane) {
  float q[Tile::kWarps];
#pragma unroll
  for (int w = 0; w < Tile::kWarps; ++w) q[w] = values[w * 32 + lane];
  return fold_registers<Fold>(q);
}

// The sums of d and of d * d, or a part of each.
struct Moments {
  float sum, squares;
};

__device__ __forceinline__ void store_to_block(uint32_t address, float value, uint32_t barrier) {
  ptx::st_async(address, value, barrier);
}
__device__ __forceinline__ void store_to_block(uint32_t address, const Moments& value,
                                               uint32_t barrier) {
  ptx::st_async_v2(address, value.sum, value.squares, barrier);
}

// Stores this block's fold, which folded() makes lane by lane, to exchange[block][lane] of all
// blocks of a cluster, and waits for theirs. The first kBlocks warps each store to one of the
// blocks.
template <class Tile, class Value, typename Folded>
__device__ __forceinline__ void exchange_folds(const Value* exchange, const uint64_t& arrived,
                                               const Place<Tile>& place, const Folded& folded) {
  const uint32_t slot = ptx::shared_address(&exchange[place.block * 32 + place.lane]);
  const uint32_t barrier = ptx::shared_address(&arrived);
  if (place.warp < Tile::kBlocks) {
    const auto value = folded();
#pragma unroll
    for (int target = 0; target < Tile::kBlocks; target += Tile::kWarps) {
      const int block = target + place.warp;
      if (block < Tile::kBlocks)
        store_to_block(ptx::map_to_block(slot, block), value, ptx::map_to_block(barrier, block));
    }
  }
  ptx::mbarrier_wait(barrier, 0);
}

// Folds over the blocks of a cluster.
template <class Fold, class Tile>
__device__ __forceinline__ float fold_cluster(float q, FoldScratch<Tile>& scratch,
                                              const Place<Tile>& place) {
  scratch.values[threadIdx.x] = q;
  __syncthreads();
  exchange_folds(scratch.exchange, scratch.barrier, place,
                 [&] { return fold_warps<Tile, Fold>(scratch.values, place.lane); });
  float b[Tile::kBlocks];
#pragma unroll
  for (int i = 0; i < Tile::kBlocks; ++i) b[i] = scratch.exchange[i * 32 + place.lane];
  return fold_lanes<32, Fold>(fold_registers<Fold>(b));
}

// Folds over the warps of a block, by the first one for all.
template <class Fold, class Tile>
__device__ __forceinline__ float fold_by_one_warp(FoldScratch<Tile>& scratch,
                                                  const Place<Tile>& place) {
  if (place.warp == 0) {
    const float q = fold_lanes<32, Fold>(fold_warps<Tile, Fold>(scratch.values, place.lane));
    if (place.lane == 0) scratch.total[0] = q;
  }
  __syncthreads();
  return scratch.total[0];
}

// The fold of a row, in all of its threads, from each thread's fold of its registers.
template <class Fold, class Tile>
__device__ __forceinline__ float fold_row(float q, FoldScratch<Tile>& scratch,
                                          const Place<Tile>& place) {
  if constexpr (Tile::kThreads <= 32) {
    q = fold_lanes<Tile::kLanes, Fold>(q);
  } else if constexpr (Tile::kBlocks > 1) {
    q = fold_cluster<Fold>(q, scratch, place);
  } else {
    scratch.values[threadIdx.x] = q;
    __syncthreads();
    if constexpr (kOneWarpFolds<Tile>) {
      q = fold_by_one_warp<Fold>(scratch, place);
    } else {
      q = fold_lanes<32, Fold>(fold_warps<Tile, Fold>(scratch.values, place.lane));
    }
  }
  return q;
}

// The greatest bits of a row, in all of its threads, from each thread's. The order does not matter,
// so each warp folds itself first.
template <class Tile>
__device__ __forceinline__ uint32_t greatest_of_row(uint32_t most, FoldScratch<Tile>& scratch,
                                                    const Place<Tile>& place) {
  if constexpr (Tile::kBlocks > 1 || Tile::kThreads < 32) {
    return __float_as_uint(fold_row<Greatest>(__uint_as_float(most), scratch, place));
  } else {
    most = ptx::warp_greatest(most);
    if constexpr (Tile::kThreads > 32) {
      // Read again: addresses kept since the sums would take registers.
      const uint32_t thread = ptx::thread_index();
      if (thread % 32 == 0) scratch.values[thread / 32] = __uint_as_float(most);
      __syncthreads();
      most = ptx::warp_greatest(__float_as_uint(scratch.values[thread % Tile::kWarps]));
    }
    return most;
  }
}

// The sum of a row from the sums of each thread's vectors.
template <class Tile>
__device__ __forceinline__ float sum_row(float (&q)[Tile::kVectors], FoldScratch<Tile>& scratch,
                                         const Place<Tile>& place) {
  return fold_row<Sum>(fold_registers(q), scratch, place);
}

template <int kCount>
__device__ __forceinline__ Moments fold_moments(const Moments (&m)[kCount]) {
  float sum[kCount], squares[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum[i] = m[i].sum, squares[i] = m[i].squares;
  return {fold_registers(sum), fold_registers(squares)};
}

// Folds of kCount threads' moments, 32 apart.
template <int kCount>
__device__ __forceinline__ Moments fold_moments_of(const float2* values) {
  Moments m[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float2 q = values[i * 32];
    m[i] = {q.x, q.y};
  }
  return fold_moments(m);
}

// As fold_cluster(), for both sums in one exchange.
template <class Tile>
__device__ __forceinline__ Moments fold_moments_of_cluster(Moments m, FoldScratch<Tile, 2>& scratch,
                                                           const Place<Tile>& place) {
  auto* const values = reinterpret_cast<float2*>(scratch.values);
  auto* const exchange = reinterpret_cast<float2*>(scratch.exchange);
  values[threadIdx.x] = make_float2(m.sum, m.squares);
  __syncthreads();
  exchange_folds(exchange, scratch.barrier, place,
                 [&] { return fold_moments_of<Tile::kWarps>(values + place.lane); });
  m = fold_moments_of<Tile::kBlocks>(exchange + place.lane);
  return {fold_lanes<32>(m.sum), fold_lanes<32>(m.squares)};
}

// The moments of a row from each thread's. The thread's number is read again: addresses kept across
// both passes would take registers.
template <class Tile>
__device__ __forceinline__ Moments fold_row_moments(const Moments& m, FoldScratch<Tile, 2>& scratch,
                                                    const Place<Tile>& place) {
  const auto fold_lanes_of = [](const Moments& q) -> Moments {
    return {fold_lanes<Tile::kLanes>(q.sum), fold_lanes<Tile::kLanes>(q.squares)};
  };
  if constexpr (Tile::kThreads <= 32) {
    return fold_lanes_of(m);
  } else if constexpr (Tile::kBlocks > 1) {
    return fold_moments_of_cluster(m, scratch, place);
  } else {
    auto* const values = reinterpret_cast<float2*>(scratch.values);
    const uint32_t thread = ptx::thread_index(), lane = thread % 32;
    values[thread] = make_float2(m.sum, m.squares);
    __syncthreads();
    const auto fold = [&] { return fold_lanes_of(fold_moments_of<Tile::kWarps>(values + lane)); };
    if constexpr (kOneWarpFolds<Tile>) {
      if (thread < 32) {
        const Moments row = fold();
        if (lane == 0) scratch.total[0] = row.sum, scratch.total[1] = row.squares;
      }
      __syncthreads();
      return {scratch.total[0], scratch.total[1]};
    } else {
      return fold();
    }
  }
}

// For sums that may be -0. Sums of squares are never -0.
__device__ __forceinline__ float positive_zero(float sum) { return __fadd_rn(sum, 0.0f); }

// Sets up the barriers of a cluster's folds. After cluster_ready() other blocks may store there.
// The expected bytes are set while the row's loads are in flight.
template <class Tile, int kFolds, bool kLayer>
__device__ __forceinline__ void cluster_begin(RowScratch<Tile, kFolds, kLayer>& scratch) {
  if constexpr (Tile::kBlocks > 1) {
    if (threadIdx.x == 0) {
      scratch.for_each([](auto& s) { ptx::mbarrier_init(ptx::shared_address(&s.barrier), 1); });
      ptx::fence_mbarrier_init();
    }
    ptx::cluster_arrive_relaxed();
  }
}

template <class Tile, int kFolds, bool kLayer>
__device__ __forceinline__ void cluster_ready(RowScratch<Tile, kFolds, kLayer>& scratch) {
  if constexpr (Tile::kBlocks > 1) {
    __syncwarp();
    if (threadIdx.x == 0) {
      scratch.for_each([](auto& s) {
        ptx::mbarrier_arrive_expect(ptx::shared_address(&s.barrier), s.kExchangeBytes);
      });
    }
    ptx::cluster_wait();
  }
}

// Where a row is in memory: its number as digits in the base of the leading dimensions. There is
// nearly always one digit, and then an address takes one product. The branch is the same for all
// threads.
struct RowIndex {
  bool single;  // the upper digits are 0
  uint32_t digit[3];
};

__device__ __forceinline__ uint32_t quotient(uint32_t row, const Divisor& d) {
  const uint32_t t = __umulhi(row, d.multiplier);
  return (t + ((row - t) >> 1)) >> d.shift;
}

__device__ __forceinline__ char* row_address(const RowRef& tensor, const RowStrides& upper,
                                             const RowIndex& index) {
  char* address = tensor.data + index.digit[0] * tensor.stride;
  if (!index.single) address += index.digit[1] * upper.stride[0] + index.digit[2] * upper.stride[1];
  return address;
}

}  // namespace fastnorm::cuda
