// The general form: any dtypes, any address, rows of any length. Columns first, then rows, because
// dx may overwrite dy or x.
//
// rows_kernel: one row a block, or one a warp. Each pass reads the row again.
//   1. statistics, where they are computed again: with the parts of the forward's streaming kernel
//   2. c1 and c2, in the canonical order
//   3. dx and dresidual
// columns_kernel: a block has all lanes of one block of the row order, and some columns. A thread
// goes over the rows of its lane.
#pragma once

#include "cuda/common/ptx/grid.cuh"
#include "cuda/norm/stream.cuh"
#include "cuda/norm_backward/arithmetic.cuh"
#include "cuda/norm_backward/rows.cuh"

namespace fastnorm::cuda {

// The forward kernel whose statistics are computed again: general, streaming, without a residual.
template <Dtype kDtype, Stat kStat, int kThreads>
using ForwardSlots = Slots<packed(NormKey{kDtype, Source::kPlain, kStat, Affine::kAny, Sink::kStore,
                                          Access::kAny, Beside::kAny},
                                  fastnorm::Tile{kThreads, 0, 1}),
                           Variant{}.packed_policies()>;

// The canonical folds of kSums sums at once, each as fold_stream() does it. kDigits: of the number
// of a thread's group of vectors. Fewer of them need fewer registers.
template <class Tile, int kDigits = StreamFold::kDigits, int kSums, typename Fn>
__device__ __forceinline__ void fold_streams(float (&total)[kSums], int64_t count, Fn sums_of) {
  const int digits = count <= StreamFold::kGroup ? 2 : 64 - __clzll(count - 1);
  const uint32_t groups = 1u << (digits - 2);
  StreamFold fold[kSums];
  for (uint32_t g = 0; g < groups; ++g) {
    const uint32_t low = digits == 2 ? 0 : __brev(g) >> (32 - (digits - 2));
    float q[kSums][StreamFold::kGroup];
    sums_of(int64_t{low}, int64_t{1} << (digits - 2), q);
#pragma unroll
    for (int k = 0; k < kSums; ++k)
      fold[k].add(fold_registers(q[k]), kDigits < StreamFold::kDigits ? g % (1u << kDigits) : g);
  }
#pragma unroll
  for (int k = 0; k < kSums; ++k) total[k] = fold[k].total;
}

// The means over a row of kSums sums, in the canonical order. sums_of(number, sum) has those of a
// vector, of which there are `vectors`.
template <class Tile, int kDigits = StreamFold::kDigits, int kSums, class Scratch, typename Fn>
__device__ __forceinline__ void means_of_row(float (&mean)[kSums], int64_t vectors,
                                             const NormBackwardParams& p, Scratch& scratch,
                                             const Place<Tile>& place, Fn sums_of) {
  fold_streams<Tile, kDigits>(
      mean, (vectors + Tile::kStride - 1) / Tile::kStride,
      [&](int64_t first, int64_t step, float(&q)[kSums][StreamFold::kGroup]) {
#pragma unroll 1
        for (int i = 0; i < StreamFold::kGroup; ++i) {
          const int64_t number = place.first + (first + i * step) * Tile::kStride;
          float sum[kSums];
#pragma unroll
          for (float& s : sum) s = 0.0f;
          if (number < vectors) sums_of(number, sum);
#pragma unroll
          for (int k = 0; k < kSums; ++k) {
#pragma unroll
            for (int j = 0; j < StreamFold::kGroup; ++j) q[k][j] = j == i ? sum[k] : q[k][j];
          }
        }
      });
#pragma unroll
  for (int k = 0; k < kSums; ++k)
    mean[k] = mean_of_sum(fold_row<Sum>(mean[k], scratch.fold[k], place), p);
}

// One vector of a row: what it holds, and what the formulas make of it.
template <Dtype kDtype, Stat kStat>
struct GeneralVector {
  using T = Element<kDtype>;
  static constexpr int kCount = T::kPerVector;

  __device__ __forceinline__ GeneralVector(const NormBackwardParams& p, const AnyDtypeRow& x_row,
                                           const AnyDtypeRow& dy_row, const AnyDtypeRow& weight,
                                           const Statistics& statistics, int64_t vector) {
    count = elements_of<kCount>(p, vector);
    AnyWords<kCount> x_words, dy_words;
    load_any(x_words, x_row, vector * kCount, count);
    load_any(dy_words, dy_row, vector * kCount, count);
    float gain[kCount];
    load_gain(gain, p, weight, vector * kCount, count);
    unpack_words<T>(x, x_words);
    unpack_any(e, dy_words, dy_row.dtype);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      x[i] = normalized<kStat>(x[i], statistics);
      e[i] = __fmul_rn(e[i], gain[i]);
      // Padding adds +0, whatever the statistics are.
      if (i >= count) x[i] = e[i] = 0.0f;
    }
  }

  int count;
  float x[kCount], e[kCount];  // normalised; dy * gain
};

template <Dtype kDtype, Stat kStat, int kThreads>
__device__ __forceinline__ void gradient_of_rows(const NormBackwardParams& p) {
  using Forward = ForwardSlots<kDtype, kStat, kThreads>;
  using Tile = RowTileOf<Forward>;
  using Vector = GeneralVector<kDtype, kStat>;
  constexpr int kSums = kGradientSums<kStat>, kCount = Vector::kCount;
  auto& forward_scratch = ptx::block_shared<RowScratch<Tile, Forward::kFolds, Forward::kLayer>>();
  struct OwnScratch : RowScratch<Tile, kSums, false> {};
  auto& scratch = ptx::block_shared<OwnScratch>();
  const Place<Tile> place(blockIdx.x);
  const bool live = place.row < p.rows;
  const uint32_t row = live ? place.row : 0;
  const RowIndex index = backward_index(p, row);
  ptx::grid_wait();
  if ((p.bits & kBackwardTrigger) != 0) ptx::grid_trigger();

  Statistics statistics;
  if ((p.bits & kBackwardComputeStatistics) != 0) {
    const StreamRow<Forward, Tile> forward_row(p.forward, place, index);
    streamed_statistics(statistics.mean, statistics.rstd, p.forward, forward_row, forward_scratch,
                        place, index, rounding_of<Forward, Tile>(p.forward));
    if ((p.bits & kBackwardStatisticsOnly) != 0) {
      if (live && place.leads_row()) {
        ptx::st_global_u32(row_address(p.rstd, index), __float_as_uint(statistics.rstd));
        if constexpr (kStat == Stat::kLayer)
          ptx::st_global_u32(row_address(p.mean, index), __float_as_uint(statistics.mean));
      }
      return;
    }
  } else {
    statistics = load_statistics<kStat>(p, index);
  }

  const AnyDtypeRow x(row_address(p.x, index), kDtype),
      dy(row_address(p.dy, index), p.dy.dtype, p.dy_is_scalar),
      weight(p.weight.data == nullptr ? nullptr : row_address(p.weight, index), p.weight.dtype);
  float c[kSums];
  means_of_row<Tile>(c, p.vectors, p, scratch, place, [&](int64_t number, float(&sum)[kSums]) {
    const Vector v(p, x, dy, weight, statistics, number);
    sum[0] = vector_dot(v.e, v.x);
    if constexpr (kStat == Stat::kLayer) sum[kSums - 1] = vector_sum(v.e);
  });
  if (!live) return;

  const AnyDtypeRow dx(row_address(p.dx, index), p.dx.dtype);
  const bool adds = p.dresidual_in.data != nullptr, stores = p.dresidual.data != nullptr;
  const AnyDtypeRow residual_in(adds ? row_address(p.dresidual_in, index) : nullptr,
                                p.dresidual_in.dtype),
      residual(stores ? row_address(p.dresidual, index) : nullptr, p.dresidual.dtype);
#pragma unroll 1
  for (int64_t number = place.first; number < p.vectors; number += Tile::kStride) {
    const Vector v(p, x, dy, weight, statistics, number);
    float f[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) f[i] = centred<kStat>(v.x[i], v.e[i], c);
    if (adds) {
      AnyWords<kCount> words;
      load_any(words, residual_in, number * kCount, v.count);
      float add[kCount];
      unpack_any(add, words, residual_in.dtype);
#pragma unroll
      for (int i = 0; i < kCount; ++i) f[i] = __fmaf_rn(f[i], statistics.rstd, add[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) f[i] = __fmul_rn(f[i], statistics.rstd);
    }
    store_any(f, dx, number * kCount, v.count);
    if (stores) store_any(f, residual, number * kCount, v.count);
  }
}

// Folds the lanes of a block: `values`, in shared memory, has a row of `width` sums for each. The
// first row becomes their fold.
template <int kBlockThreads>
__device__ __forceinline__ void fold_lanes_in_shared(float* values, uint32_t lanes, int width) {
  for (uint32_t half = lanes / 2; half >= 1; half /= 2) {
    const int count = static_cast<int>(half) * width;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kBlockThreads)
      values[i] = __fadd_rn(values[i], values[i + count]);
    __syncthreads();
  }
}

// A thread's columns and lane, and where their sums go.
template <Dtype kDtype, int kThreads>
struct ColumnPlace {
  static constexpr int kCount = Element<kDtype>::kPerVector;
  struct Buffer {
    alignas(16) float values[kThreads * kCount];
  };

  __device__ __forceinline__ explicit ColumnPlace(const NormBackwardParams& p)
      : width(kThreads / p.lanes), lane(threadIdx.x / width) {
    const uint32_t tiles = (static_cast<uint32_t>(p.vectors) + width - 1) / width;
    block = blockIdx.x / tiles;
    vector = int64_t{blockIdx.x % tiles} * width + threadIdx.x % width;
    count = elements_of<kCount>(p, vector);
  }

  // Folds the lanes of all kSums of sums_of() that are wanted, for all threads of the block
  // together.
  template <int kSums>
  __device__ __forceinline__ void store_partial_sums(const NormBackwardParams& p, uint32_t group,
                                                     const float (&sums)[kSums][kCount]) const {
    float* const values = ptx::block_shared<Buffer>().values;
    const int64_t partial_row = (int64_t{group} * p.blocks + block) * p.partial_stride;
#pragma unroll 1
    for (int sum = 0; sum < kSums; ++sum) {
      if (sum_tensor(p, sum).data == nullptr) continue;
      __syncthreads();
      float* const own = values + threadIdx.x * kCount;  // [lane][column]
#pragma unroll
      for (int k = 0; k < kSums; ++k) {
        if (k != sum) continue;
#pragma unroll
        for (int i = 0; i < kCount; ++i) own[i] = sums[k][i];
      }
      __syncthreads();
      fold_lanes_in_shared<kThreads>(values, p.lanes, static_cast<int>(width) * kCount);
      if (lane == 0 && count > 0) {
        float* const to = p.partial[sum] + partial_row + vector * kCount;
#pragma unroll
        for (int i = 0; i < kCount; i += 4) {
          ptx::st_global_v4(to + i,
                            make_uint4(__float_as_uint(own[i]), __float_as_uint(own[i + 1]),
                                       __float_as_uint(own[i + 2]), __float_as_uint(own[i + 3])));
        }
      }
    }
  }

  const uint32_t width, lane;  // vectors of the block
  uint32_t block;
  int64_t vector;
  int count;
};

template <Dtype kDtype, Stat kStat, int kThreads>
__device__ __forceinline__ void sums_of_columns(const NormBackwardParams& p) {
  using T = Element<kDtype>;
  constexpr int kCount = T::kPerVector;
  constexpr int kUnroll = 4;  // rows on their way at once
  const ColumnPlace<kDtype, kThreads> place(p);
  const int64_t vector = place.vector;
  const int count = place.count;
  const bool wants_dweight = p.dweight.data != nullptr;
  ptx::grid_wait();
  if ((p.bits & kBackwardTrigger) != 0) ptx::grid_trigger();

  for (uint32_t group = blockIdx.y; group < p.groups; group += gridDim.y) {
    float sums[2][kCount] = {};
    float(&dweight)[kCount] = sums[0], (&dbias)[kCount] = sums[1];
    // Row numbers stay below 2^31 + kUnroll * step.
    for (uint32_t first = place.block * p.lanes + place.lane; first < p.shared_rows;
         first += kUnroll * p.step) {
      AnyWords<kCount> x[kUnroll], dy[kUnroll];
      Statistics statistics[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const uint32_t row = first + u * p.step;
        const bool live = row < p.shared_rows;
        const RowIndex index = backward_index(p, group * p.shared_rows + (live ? row : first));
        const int there = live ? count : 0;
        statistics[u] = {0.0f, 0.0f};
        if (wants_dweight) {
          if (live) statistics[u] = load_statistics<kStat>(p, index);
          load_any(x[u], AnyDtypeRow(row_address(p.x, index), kDtype), vector * kCount, there);
        }
        load_any(dy[u], AnyDtypeRow(row_address(p.dy, index), p.dy.dtype, p.dy_is_scalar),
                 vector * kCount, there);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (first + u * p.step >= p.shared_rows) break;
        float d[kCount];
        unpack_any(d, dy[u], p.dy.dtype);
        if (wants_dweight) {
          float t[kCount];
          unpack_words<T>(t, x[u]);
#pragma unroll
          for (float& value : t) value = normalized<kStat>(value, statistics[u]);
          round_factors(t, p);
#pragma unroll
          for (int i = 0; i < kCount; ++i) dweight[i] = __fmaf_rn(d[i], t[i], dweight[i]);
        }
#pragma unroll
        for (int i = 0; i < kCount; ++i) dbias[i] = __fadd_rn(dbias[i], d[i]);
      }
    }

    place.store_partial_sums(p, group, sums);
  }
}

}  // namespace fastnorm::cuda
