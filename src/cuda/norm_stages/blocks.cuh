// Rotated codes of many rows: a lane has neighbouring columns, so that steps of a rotation, and
// maxima of blocks, stay in its registers.
//
// A thread block stays on its multiprocessor and has several rows at a time, each of one warp or
// more, which take one row after the other. Rows come to shared memory one ahead, and from there
// each lane takes its columns. Codes go back through shared memory, so that a warp writes whole
// lines. Weights wait in shared memory as f32 with their offset and the signs of the rotation: a
// factor of -1 is exact.
//
// Bytes: x and codes once, weights once for each thread block.
#pragma once

#include <bit>

#include "cuda/common/ptx/grid.cuh"
#include "cuda/common/ptx/shared.cuh"
#include "cuda/common/ptx/store_shared.cuh"
#include "cuda/common/statistics.cuh"
#include "cuda/norm/quant.cuh"
#include "cuda/norm/store.cuh"
#include "cuda/norm_stages/params.h"

namespace fastnorm::cuda {

template <uint32_t kWord>
struct BlocksSlots {
  static constexpr StagesVariant kV = stages_variant_of(kWord);
  using T = Element<kV.dtype>;
  static constexpr int kThreads = kV.threads, kVectors = kV.vectors, kRows = kV.rows_together(),
                       kPerVector = T::kPerVector;
  static constexpr int kBlockThreads = kThreads * kRows;
  static constexpr int kWarps = kThreads / kWarpThreads;  // of a row
  static constexpr int kColumns = kVectors * kPerVector;  // of a lane
  static constexpr int kPairs = kVectors / 2;             // of vectors: a block has one or more
  static constexpr int kShare = kMostRotated / kColumns;  // lanes that have a block's columns
  static constexpr int kPitch = staged_lane_bytes(kVectors);
  // Shared memory: the weights as two stages, then two for each row.
  static constexpr int kStage = kThreads * kPitch;
  static_assert(kShare >= 1 && kVectors * kShare <= kWarpThreads);
};

// What the warps of a row tell each other.
template <class S>
struct BlocksScratch {
  float sums[S::kWarps > 1 ? S::kBlockThreads : 1];
  uint32_t greatest[S::kRows * S::kWarps];
};

// Which columns belong to this thread. The lanes of a block of the largest size are neighbours. The
// warps of a row have one such block each, then the next ones: so the canonical sum folds lanes,
// warps and registers one after the other. It is made anew where it is used: kept, it would take
// registers.
template <class S>
struct BlocksPlace {
  __device__ __forceinline__ BlocksPlace()
      : thread(ptx::thread_index() % S::kThreads),
        lane(thread % kWarpThreads),
        warp(thread / kWarpThreads),
        chunk((lane / S::kShare * S::kWarps + warp) * S::kShare + lane % S::kShare) {}

  __device__ __forceinline__ bool has_columns(const NormParams& p) const {
    return chunk * S::kVectors < static_cast<uint32_t>(p.vectors);
  }

  const uint32_t thread, lane, warp;  // of the row
  const uint32_t chunk;               // of the row's columns
};

// The rows of a warp, one after the other. All of it is the same for the warp, and the compiler
// sees that.
template <class S>
struct BlocksRow {
  __device__ __forceinline__ BlocksRow()
      : group(__float_as_uint(
            __shfl_sync(~0u, __uint_as_float(threadIdx.x / S::kThreads), 0, kWarpThreads))),
        number(blockIdx.x + group * gridDim.x),
        stage(first_stage()) {}

  __device__ __forceinline__ uint32_t first_stage() const { return (2 + 2 * group) * S::kStage; }
  // The stage that the next row comes to.
  __device__ __forceinline__ uint32_t other_stage() const {
    return 2 * first_stage() + S::kStage - stage;
  }
  // Separates what the threads of a row do.
  __device__ __forceinline__ void sync() const {
    if constexpr (S::kWarps == 1) {
      __syncwarp();
    } else {
      ptx::sync_threads<S::kThreads>(static_cast<int>(group) + 1);
    }
  }

  const uint32_t group;  // of the thread block's threads
  uint32_t number;
  uint32_t stage;  // where in shared memory
};

// Piece number i of a thread is the 16 bytes number i * threads + thread of a row. Of such pieces a
// lane has kPieces, and the bytes of lanes are kStep apart in shared memory.
template <class S, int kPieces, int kStep>
__device__ __forceinline__ char* piece_of(uint32_t stage, uint32_t thread, int i) {
  static_assert(S::kThreads % kPieces == 0);
  return ptx::launch_shared() + stage + thread / kPieces * kStep + thread % kPieces * kVectorBytes +
         i * (S::kThreads / kPieces * kStep);
}

// Starts the copies of a row.
template <class S>
__device__ __forceinline__ void start_row(const NormParams& p, uint32_t row, uint32_t stage) {
  const BlocksPlace<S> place;
  const char* const from = ptx::in_register(row_address(p.x, p.x_upper, {true, {row, 0, 0}}) +
                                            place.thread * kVectorBytes);
  const int left = p.vectors - static_cast<int>(place.thread);
#pragma unroll
  for (int i = 0; i < S::kVectors; ++i) {
    ptx::copy_async_past_l1_if(piece_of<S, S::kVectors, S::kPitch>(stage, place.thread, i),
                               from + i * (S::kThreads * kVectorBytes), i * S::kThreads < left);
  }
  ptx::copy_async_commit();
}

// Weights in two halves: each has four columns of a vector where a stage has the vector. Behind the
// row's end, weights and stages become 0.
template <class S>
__device__ __forceinline__ void prepare_shared(const NormCallParams& p) {
  using T = typename S::T;
  constexpr uint32_t kAll = S::kThreads * S::kVectors;
  char* const shared = ptx::launch_shared();
  const auto place_of = [](uint32_t vector) {
    return vector / S::kVectors * S::kPitch + vector % S::kVectors * kVectorBytes;
  };
#pragma unroll 1
  for (uint32_t v = threadIdx.x; v < kAll; v += S::kBlockThreads) {
    if (v >= static_cast<uint32_t>(p.vectors)) {
#pragma unroll 1
      for (int i = 0; i < 2 + 2 * S::kRows; ++i)
        ptx::st_shared_v4(shared + i * S::kStage + place_of(v), make_uint4(0, 0, 0, 0));
      continue;
    }
    float w[S::kPerVector];
    T::unpack(ptx::ld_global_v4(p.weight + v * kVectorBytes), w);
#pragma unroll
    for (float& weight : w) weight = __fadd_rn(weight, p.weight_offset);
    if (p.rotation.signs != nullptr) take_signs(p.rotation, w, v);
    ptx::st_shared_v4(shared + place_of(v), as_words(w));
    ptx::st_shared_v4(shared + S::kStage + place_of(v), as_words(w + 4));
  }
}

// The canonical tree over a lane's vectors kFrom and every kStep further, and those lanes that
// have others of their columns: each lane keeps the half of the vectors that its number says. As
// few sums as possible are alive. sum_of(number) has the sum of a vector.
template <class S, int kHalvings, int kFrom, typename Fn>
__device__ __forceinline__ float fold_halves(uint32_t lane, const Fn& sum_of) {
  if constexpr (kHalvings > 0) {
    constexpr int kStep = S::kVectors >> kHalvings, kHalf = kWarpThreads >> kHalvings;
    const float lower = fold_halves<S, kHalvings - 1, kFrom>(lane, sum_of),
                upper = fold_halves<S, kHalvings - 1, kFrom + kStep>(lane, sum_of);
    const bool keeps_upper = (lane & kHalf) != 0;
    return __fadd_rn(keeps_upper ? upper : lower,
                     __shfl_xor_sync(~0u, keeps_upper ? lower : upper, kHalf));
  } else {
    return sum_of(kFrom);
  }
}

// The canonical sum of a row from those of each thread's vectors.
template <class S, typename Fn>
__device__ __forceinline__ float sum_blocks(const BlocksRow<S>& row, BlocksScratch<S>& scratch,
                                            const Fn& sum_of) {
  const BlocksPlace<S> place;
  float sum = fold_halves<S, std::countr_zero(unsigned{S::kVectors}), 0>(place.lane, sum_of);
  const auto fold = [&](int from, int to) {
#pragma unroll
    for (int half = from; half >= to; half /= 2)
      sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, half));
  };
  constexpr int kHalves = kWarpThreads / S::kVectors;  // the last one by which lanes differ
  fold(kHalves / 2, S::kShare);
  if constexpr (S::kWarps > 1) {
    float* const sums = scratch.sums + row.group * S::kThreads;
    sums[place.thread] = sum;
    row.sync();
    float w[S::kWarps];
#pragma unroll
    for (int i = 0; i < S::kWarps; ++i) w[i] = sums[i * kWarpThreads + place.lane];
    sum = fold_registers(w);
  }
  fold(S::kShare / 2, 1);
  fold(kWarpThreads / 2, kHalves);
  return sum;
}

// The steps of rotate_vectors() in their order: columns of a vector, vectors of a lane, lanes.
template <class S, int kBlock>
__device__ __forceinline__ void rotate_by(float (&z)[S::kVectors][S::kPerVector]) {
  combine_columns(z);
#pragma unroll
  for (int vectors = 1; vectors < S::kVectors && vectors * S::kPerVector < kBlock; vectors *= 2) {
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      if ((v & vectors) != 0) continue;
#pragma unroll
      for (int i = 0; i < S::kPerVector; ++i) combine(z[v][i], z[v + vectors][i]);
    }
  }
#pragma unroll
  for (int lanes = 1; lanes * S::kColumns < kBlock; lanes *= 2) {
    const float sign = (threadIdx.x & lanes) != 0 ? -1.0f : 1.0f;
#pragma unroll
    for (auto& vector : z) {
#pragma unroll
      for (float& value : vector)
        value = __fmaf_rn(value, sign, __shfl_xor_sync(~0u, value, lanes));
    }
  }
}

// A block of columns has code of its own up to its last step: where other code goes on with the
// values of a step, each sum is copied to the place of its first summand.
template <class S>
__device__ __forceinline__ void rotate_blocks(const RotationParams& r,
                                              float (&z)[S::kVectors][S::kPerVector]) {
  const auto scale = [&] {
#pragma unroll
    for (auto& vector : z) scale_values(vector, r.factor);
  };
  if (r.block == 128) {
    rotate_by<S, 128>(z);
    scale();
  } else if (r.block == 64) {
    rotate_by<S, 64>(z);
    scale();
  } else if (r.block == 32) {
    rotate_by<S, 32>(z);
    scale();
  } else {
    rotate_by<S, 16>(z);
    scale();
  }
}

// The factors of the codes of each pair of vectors.
template <class S>
struct LaneFactors {
  __device__ __forceinline__ void fill(float factor) {
#pragma unroll
    for (float& f : of) f = factor;
  }

  float of[S::kPairs];
  uint32_t above = 0;  // bits of pairs with values of 7 or more when scaled, or NaN
};

// The scales of a lane's blocks of columns, one after the other: there is one copy of their
// arithmetic. `mine`: where the stage has the lane's columns.
template <class S>
__device__ __forceinline__ void scale_lane(const NormParams& p, uint32_t (&most)[S::kPairs],
                                           LaneFactors<S>& factors, float static_scale, char* mine,
                                           const ScaleRow& scales) {
  constexpr uint32_t kPairs = S::kPairs;
  const QuantParams& q = p.quant;
  const uint32_t share = static_cast<uint32_t>(q.block) / (2 * S::kPerVector);  // pairs of a scale
#pragma unroll
  for (uint32_t half = 1; half < kPairs; half *= 2) {
    if (half >= share) break;
#pragma unroll
    for (uint32_t i = 0; i < kPairs; i += 2 * half) most[i] = greater(most[i], most[i + half]);
  }
#pragma unroll
  for (uint32_t lanes = 1; lanes < S::kShare; lanes *= 2) {
    if (lanes * kPairs >= share) break;
    const float other = __shfl_xor_sync(~0u, __uint_as_float(most[0]), static_cast<int>(lanes));
    most[0] = greater(most[0], __float_as_uint(other));
  }
  const BlocksPlace<S> place;
  if (!place.has_columns(p)) return;  // its stage stays 0
#pragma unroll
  for (uint32_t i = 0; i < kPairs; i += 4)
    ptx::st_shared_v4(mine + i * 4, make_uint4(most[i], most[i + 1], most[i + 2], most[i + 3]));
  const uint32_t first = place.chunk * kPairs;
  const bool stores = (first & (share - 1)) == 0;
  const Nvfp4Scales nvfp4(static_scale);
#pragma unroll 1
  for (uint32_t i = 0; i < kPairs; i += share) {
    const uint32_t magnitude = ptx::ld_shared_u32(mine + i * 4);
    const Scale scale =
        q.rule == ScaleRule::kNvfp4 ? nvfp4.make(magnitude) : free_scale(q, magnitude);
    if (stores) scales.put((first + i) * (2 * S::kPerVector) >> q.block_shift, scale.bits);
    const bool below_7 = fabsf(__fmul_rn(__uint_as_float(magnitude), scale.inverse)) < 7.0f;
    if (!below_7) factors.above |= ((1u << share) - 1) << i;
    ptx::st_shared_u32(mine + i * 4, __float_as_uint(scale.inverse));
  }
#pragma unroll
  for (uint32_t i = 0; i < kPairs; ++i)
    factors.of[i] = __uint_as_float(ptx::ld_shared_u32(mine + (i & (0 - share)) * 4));
}

// The scale of a row. Returns the factor of its codes.
template <class S>
__device__ __forceinline__ float scale_whole(const NormParams& p, const uint32_t (&most)[S::kPairs],
                                             const ScaleRow& scales, const BlocksRow<S>& row,
                                             BlocksScratch<S>& scratch) {
  const BlocksPlace<S> place;
  uint32_t greatest = most[0];
#pragma unroll
  for (const uint32_t m : most) greatest = greater(greatest, m);
  greatest = ptx::warp_greatest(place.has_columns(p) ? greatest : 0);
  if constexpr (S::kWarps > 1) {
    uint32_t* const all = scratch.greatest + row.group * S::kWarps;
    if (place.lane == 0) all[place.warp] = greatest;
    row.sync();
#pragma unroll
    for (int i = 0; i < S::kWarps; ++i) greatest = greater(greatest, all[i]);
  }
  const Scale scale = free_scale(p.quant, greatest);
  if (place.thread == 0) scales.put(0, scale.bits);
  return scale.inverse;
}

// The codes of a lane, and then those of the row to memory. It overwrites z.
template <CodeType kType, class S>
__device__ __forceinline__ void put_lane_codes(const NormParams& p, const BlocksRow<S>& row,
                                               float (&z)[S::kVectors][S::kPerVector],
                                               const LaneFactors<S>& factors) {
  constexpr bool kPairs = kType == CodeType::kE2M1, kSoftware = kPairs && !ptx::kConvertsE2m1;
  constexpr int kWords = kPairs ? 1 : 2;                            // of a vector
  constexpr int kPieces = S::kVectors * kWords * 4 / kVectorBytes;  // of a lane
  constexpr int kStep = (kPieces + 1) * kVectorBytes;
  const BlocksPlace<S> place;
  if (place.has_columns(p)) {
    char* const mine = ptx::launch_shared() + row.stage + place.chunk * kStep;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4 / kWords; ++k) {
        const int v = i * (4 / kWords) + k;
        float factor = factors.of[v / 2];
        uint32_t made[2];
        if constexpr (kSoftware) {
          // Few values are as great. They are changed first.
          if ((factors.above >> v / 2 & 1) != 0) {
#pragma unroll
            for (float& value : z[v]) {
              const float w = __fmul_rn(value, factor);
              value = w < -6.0f ? -6.0f : w < 6.0f ? w : 6.0f;
            }
            factor = 1.0f;
          }
          made[0] = ptx::to_e2m1_below_7(z[v], factor);
        } else {
          scale_values(z[v], factor);
          make_codes(kType, z[v], made);
        }
#pragma unroll
        for (int w = 0; w < kWords; ++w) words[k * kWords + w] = made[w];
      }
      ptx::st_shared_v4(mine + i * kVectorBytes,
                        make_uint4(words[0], words[1], words[2], words[3]));
    }
  }
  row.sync();
  const RowIndex index = {true, {row.number, 0, 0}};
  char* const to = ptx::in_register(row_address(p.quant.codes, p.quant.codes_upper, index) +
                                    place.thread * kVectorBytes);
  const int left = p.vectors * kPieces / S::kVectors - static_cast<int>(place.thread);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const uint4 piece = ptx::ld_shared_v4(piece_of<S, kPieces, kStep>(row.stage, place.thread, i));
    if (i * S::kThreads < left) ptx::st_global_v4(to + i * (S::kThreads * kVectorBytes), piece);
  }
}

// A row that has come to its stage.
template <class S>
__device__ __forceinline__ void put_blocks(const NormCallParams& p, const BlocksRow<S>& row,
                                           float static_scale, BlocksScratch<S>& scratch) {
  using T = typename S::T;
  const RowIndex index = {true, {row.number, 0, 0}};
  const QuantParams& q = p.quant;
  char* const columns = ptx::launch_shared() + BlocksPlace<S>().chunk * S::kPitch;
  char* const mine = columns + row.stage;
  float z[S::kVectors][S::kPerVector];
  const float sum = sum_blocks(row, scratch, [&](int v) {
    T::unpack(ptx::ld_shared_v4(mine + v * kVectorBytes), z[v]);
    return vector_sum_of_squares(z[v]);
  });
  const float rstd = rstd_of(__fmul_rn(sum, p.inv_n), p, NoSteps());
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    scale_values(z[v], rstd);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float w[4];
      as_floats(w, ptx::ld_shared_v4(columns + i * S::kStage + v * kVectorBytes));
#pragma unroll
      for (int k = 0; k < 4; ++k) z[v][4 * i + k] = __fmul_rn(z[v][4 * i + k], w[k]);
    }
  }
  if ((p.bits & kStoreStatistics) != 0 && BlocksPlace<S>().thread == 0)
    store_statistics(p, index, 0.0f, rstd);
  rotate_blocks<S>(p.rotation, z);
  LaneFactors<S> factors;
  if (q.rule == ScaleRule::kStatic) {
    factors.fill(__frcp_rn(static_scale));
  } else {
    const ScaleRow scales(p, row.number, index);
    uint32_t most[S::kPairs];
#pragma unroll
    for (int v = 0; v < S::kVectors; v += 2)
      most[v / 2] = greater(magnitude_bits(z[v]), magnitude_bits(z[v + 1]));
    if (q.block == 0) {
      factors.fill(scale_whole<S>(p, most, scales, row, scratch));
    } else {
      scale_lane<S>(p, most, factors, static_scale, mine, scales);
    }
    if (q.swizzled) {
      scales.pad((p.n + q.block - 1) >> q.block_shift, p.rows,
                 static_cast<int>(BlocksPlace<S>().thread), S::kThreads);
    }
  }
  // All have taken their columns and their factors.
  row.sync();
  if (q.code_type == CodeType::kE4M3) {
    put_lane_codes<CodeType::kE4M3, S>(p, row, z, factors);
  } else if (q.code_type == CodeType::kE2M1) {
    put_lane_codes<CodeType::kE2M1, S>(p, row, z, factors);
  } else {
    put_lane_codes<CodeType::kI8, S>(p, row, z, factors);
  }
}

template <uint32_t kWord>
__device__ __forceinline__ void run_rotated_blocks(const NormCallParams& p) {
  using S = BlocksSlots<kWord>;
  auto& scratch = ptx::block_shared<BlocksScratch<S>>();
  BlocksRow<S> row;
  ptx::grid_wait_if((p.bits & (kWaitFirst | kWaitAfterWeights)) != 0);
  if (row.number < p.rows) start_row<S>(p, row.number, row.stage);
  prepare_shared<S>(p);
  const float static_scale =
      p.quant.static_scale != nullptr ? ptx::ld_global_f32(p.quant.static_scale) : 1.0f;
  if ((p.bits & kTrigger) != 0) ptx::grid_trigger();
  __syncthreads();
  if (row.number >= p.rows) return;
#pragma unroll 1
  while (true) {
    ptx::copy_async_wait_group<0>();
    // Behind this barrier the row is there for all, and codes of the one before have left.
    row.sync();
    const uint32_t step = gridDim.x * S::kRows;
    const bool more = p.rows - row.number > step;
    if (more) start_row<S>(p, row.number + step, row.other_stage());
    put_blocks<S>(p, row, static_scale, scratch);
    if (!more) break;
    row.number += step;
    row.stage = row.other_stage();
  }
}

}  // namespace fastnorm::cuda
