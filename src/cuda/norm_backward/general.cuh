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

#include "cuda/common/follow.cuh"
#include "cuda/norm/stream.cuh"
#include "cuda/norm_backward/arithmetic.cuh"
#include "cuda/norm_backward/rows.cuh"

namespace fastnorm::cuda {

// The forward kernel whose statistics are computed again: general, streaming, without a residual.
template <Dtype kDtype, Stat kStat, int kThreads>
using ForwardSlots = Slots<packed(NormKey{kDtype, Source::kPlain, kStat, Affine::kAny, Sink::kStore,
                                          Access::kAny, Flavour::kGeneral},
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
          fill_values(sum, 0.0f);
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

  __device__ __forceinline__ GeneralVector(const NormBackwardParams& p, const DtypeRow<T>& x_row,
                                           const GradientRow<T>& dy_row, const DtypeRow<T>& weight,
                                           const Statistics& statistics, int64_t vector)
      : count(elements_of<kCount>(p, vector)) {
    AnyVectors<T, 1> x_words, dy_words;
    x_words.load_part(x_row, vector, count);
    dy_row.load(dy_words, vector, count);
    float gain[kCount];
    load_gain<T>(gain, p, weight, vector, count);
    x_words.take(x, 0, x_row.type);
    dy_row.take(e, dy_words, count);
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
  follow_stream((p.bits & kBackwardTrigger) != 0);

  Statistics statistics;
  if ((p.bits & kBackwardComputeStatistics) != 0) {
    const StreamRow<Forward, Tile> forward_row(p.forward, place, index);
    streamed_statistics(statistics.mean, statistics.rstd, p.forward, forward_row, forward_scratch,
                        place, index, rounding_of<Forward, Tile>(p.forward));
    if ((p.bits & kBackwardStatisticsOnly) != 0) {
      if (live && place.leads_row()) store_statistics(p, index, statistics, kStat == Stat::kLayer);
      return;
    }
  } else {
    statistics = load_statistics<kStat>(p, index);
  }

  using T = Element<kDtype>;
  const DtypeRow<T> x(row_address(p.x, index), kDtype), weight(row_or_none<T>(p.weight, index));
  const GradientRow<T> dy(p, index);
  float c[kSums];
  means_of_row<Tile>(c, p.vectors, p, scratch, place, [&](int64_t number, float(&sum)[kSums]) {
    const Vector v(p, x, dy, weight, statistics, number);
    sum[0] = vector_dot(v.e, v.x);
    if constexpr (kStat == Stat::kLayer) sum[kSums - 1] = vector_sum(v.e);
  });
  if (!live) return;

  const DtypeRow<T> dx(row_address(p.dx, index), p.dx.dtype),
      residual_in(row_or_none<T>(p.dresidual_in, index)),
      residual(row_or_none<T>(p.dresidual, index));
#pragma unroll 1
  for (int64_t number = place.first; number < p.vectors; number += Tile::kStride) {
    const Vector v(p, x, dy, weight, statistics, number);
    float f[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) f[i] = centred<kStat>(v.x[i], v.e[i], c);
    add_residual<T>(f, statistics.rstd, residual_in, number, v.count);
    store_values(f, dx, number, v.count);
    if (residual.data != nullptr) store_values(f, residual, number, v.count);
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
          ptx::st_global_v4(to + i, as_words(own + i));
        }
      }
    }
  }

  // Calls add(sums, row) for each row of this thread's lane, group by group.
  template <int kSums, typename Add>
  __device__ __forceinline__ void sum_rows(const NormBackwardParams& p, Add add) const {
    for (uint32_t group = blockIdx.y; group < p.groups; group += gridDim.y) {
      float sums[kSums][kCount] = {};
      // Row numbers stay below 2^31 + step.
#pragma unroll 1
      for (uint32_t row = block * p.lanes + lane; row < p.shared_rows; row += p.step)
        add(sums, group * p.shared_rows + row);
      store_partial_sums(p, group, sums);
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
  const GradientRow<T> any_dy(p.dy.data, p.dy.dtype, p.dy_is_scalar);
  follow_stream((p.bits & kBackwardTrigger) != 0);

  for (uint32_t group = blockIdx.y; group < p.groups; group += gridDim.y) {
    float sums[2][kCount] = {};
    float(&dweight)[kCount] = sums[0], (&dbias)[kCount] = sums[1];
    // Row numbers stay below 2^31 + kUnroll * step.
    for (uint32_t first = place.block * p.lanes + place.lane; first < p.shared_rows;
         first += kUnroll * p.step) {
      AnyVectors<T, 1> x[kUnroll], dy[kUnroll];
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
          x[u].load_part(DtypeRow<T>(row_address(p.x, index), kDtype), vector, there);
        }
        GradientRow<T>(p, index).load(dy[u], vector, there);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (first + u * p.step >= p.shared_rows) break;
        float d[kCount];
        any_dy.take(d, dy[u], count);
        if (wants_dweight) {
          float t[kCount];
          x[u].take(t, 0, kDtype);
#pragma unroll
          for (float& value : t) value = normalized<kStat>(value, statistics[u]);
          round_if(t, p, kBackwardRoundNormalized);
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
