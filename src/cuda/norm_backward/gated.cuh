// The general form of calls with a gate: any dtypes, any address, rows of any length. Each pass
// reads the row and its gate again, and computes the gate's function again.
//
// kGatedRows and kGatedColumns do what kRows and kColumns of general.cuh do. A gate after the norm
// multiplies dy, one before it multiplies x. RMSNorm and LayerNorm share a kernel: RMSNorm
// subtracts means of 0, which changes no bit.
#pragma once

#include <bit>

#include "cuda/common/activation.cuh"
#include "cuda/norm_backward/general.cuh"

namespace fastnorm::cuda {

__device__ __forceinline__ bool gate_is_before(const NormBackwardParams& p) {
  return (p.bits & kBackwardGateBefore) != 0;
}

// From the gate's values to what they multiply by.
template <int kCount>
__device__ __forceinline__ void make_factors(float (&gate)[kCount], const NormBackwardParams& p) {
  activate(gate, p.gate_act);
  round_if(gate, p, kBackwardRoundGain);
}

// Digits of the number of a thread's group of vectors. A warp has shorter rows, and so registers
// for either statistic.
template <class Tile>
inline constexpr int kGatedDigits =
    Tile::kOneWarp
        ? std::countr_zero(kBackwardWarpVectors / (uint32_t{Tile::kThreads} * StreamFold::kGroup))
        : StreamFold::kDigits;

// The tensors of a row that every pass reads.
template <class T>
struct GatedRow {
  __device__ __forceinline__ GatedRow(const NormBackwardParams& p, const RowIndex& index)
      : x(row_address(p.x, index), T::kDtype),
        gate(row_address(p.gate, index), p.gate.dtype),
        dy(p, index) {}

  const DtypeRow<T> x, gate;
  const GradientRow<T> dy;
};

// u of a vector: x, multiplied by a gate that comes first. `factor` receives the gate's.
template <class T, int kCount>
__device__ __forceinline__ void load_gated(float (&u)[kCount], float (&factor)[kCount],
                                           const NormBackwardParams& p, const GatedRow<T>& row,
                                           int64_t vector, int count) {
  load_values(u, row.x, vector, count);
  load_values(factor, row.gate, vector, count);
  make_factors(factor, p);
  if (!gate_is_before(p)) return;
  multiply(u, factor);
  round_if(u, p, kBackwardRoundGain);
}

// The statistics of rows whose gate comes first, as the forward's streaming kernel has them.
template <class Forward, class Tile, class Scratch>
__device__ __forceinline__ void gated_statistics(Statistics& statistics,
                                                 const NormBackwardParams& p,
                                                 const GatedRow<typename Forward::T>& row,
                                                 Scratch& scratch, const Place<Tile>& place) {
  using T = typename Forward::T;
  constexpr int kCount = T::kPerVector;
  const auto rounding = rounding_of<Forward, Tile>(p.forward);
  const auto fold = [&]<class Fold>(Fold, auto sum_of) {
    using Value = typename Fold::Value;
    return fold_stream<Fold, Tile>((p.vectors + Tile::kStride - 1) / Tile::kStride,
                                   [&](int64_t first, int64_t step, Value(&q)[StreamFold::kGroup]) {
#pragma unroll 1
                                     for (int i = 0; i < StreamFold::kGroup; ++i) {
                                       const int64_t number =
                                           place.first + (first + i * step) * Tile::kStride;
                                       Value sum = {};
                                       if (number < p.vectors) {
                                         const int count = elements_of<kCount>(p, number);
                                         float u[kCount], factor[kCount];
                                         load_gated(u, factor, p, row, number, count);
                                         sum = sum_of(u, count);
                                       }
#pragma unroll
                                       for (int j = 0; j < StreamFold::kGroup; ++j)
                                         q[j] = selected(j == i, sum, q[j]);
                                     }
                                   });
  };
  if constexpr (Forward::kLayer) {
    float u[kCount], factor[kCount];
    load_gated(u, factor, p, row, 0, 1);
    const LayerStatistics layer =
        layer_statistics(u[0], p.forward, rounding, [&](int pass, float from, bool steps) {
          const Moments sums = fold(StreamMoments(), [&](const float(&s)[kCount], int count) {
            return moments<T, true>(s, from, count, steps);
          });
          return fold_row_moments<Tile>(sums, scratch.moments[pass], place);
        });
    statistics = {layer.mean(), layer.rstd(p.forward, rounding)};
  } else {
    const float sum = fold(
        StreamSum(), [&](float(&s)[kCount], int) { return squares<T>(s, rounding.every_step); });
    statistics = {0.0f, rstd_of(__fmul_rn(fold_row<Sum>(sum, scratch.fold[0], place), p.inv_n),
                                p.forward, rounding)};
  }
}

// One vector of a row: what it holds, and what the formulas make of it.
template <class T>
struct GatedVector {
  static constexpr int kCount = T::kPerVector;

  __device__ __forceinline__ GatedVector(const NormBackwardParams& p, const GatedRow<T>& row,
                                         const DtypeRow<T>& weight, const Statistics& statistics,
                                         int64_t vector)
      : count(elements_of<kCount>(p, vector)) {
    load_gated(x, factor, p, row, vector, count);
    row.dy.take(e, vector, count);
    load_gain<T>(gain, p, weight, vector, count);
    if (!gate_is_before(p)) multiply(e, factor);
    multiply(e, gain);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      x[i] = normalized<Stat::kLayer>(x[i], statistics);
      // Padding adds +0, whatever the statistics are.
      if (i >= count) x[i] = e[i] = 0.0f;
    }
  }

  int count;
  float x[kCount], e[kCount];  // normalised; the gradient of what is normalised, times the weight
  float gain[kCount], factor[kCount];
};

// What a gate after the norm multiplies, from the normalised values.
template <class T, int kCount>
__device__ __forceinline__ void make_result(float (&z)[kCount], const float (&gain)[kCount],
                                            const NormBackwardParams& p, const DtypeRow<T>& bias,
                                            int64_t vector, int count) {
  round_if(z, p, kBackwardRoundNormalized);
  apply_gain(z, gain, bias, vector, count);
  round_if(z, p, kBackwardRoundResult);
}

// dx, dresidual and dgate of a vector, from dh. All is loaded before anything is stored.
template <class T>
struct GatedStore {
  static constexpr int kCount = T::kPerVector;
  using Vector = GatedVector<T>;

  __device__ __forceinline__ GatedStore(const NormBackwardParams& params, const RowIndex& index)
      : p(params),
        bias(row_or_none<T>(p.bias, index)),
        dx(row_or_none<T>(p.dx, index)),
        dresidual(row_or_none<T>(p.dresidual, index)),
        dgate(row_or_none<T>(p.dgate, index)) {}

  __device__ __forceinline__ void put(float (&dh)[kCount], const Vector& v, const GatedRow<T>& row,
                                      int64_t vector) const {
    const bool before = gate_is_before(p);
    float gradient[kCount];
    if (dgate.data != nullptr) {
      float slope[kCount], other[kCount];
      load_values(slope, row.gate, vector, v.count);
      activation_slope(slope, p.gate_act);
      if (before) {
        load_values(gradient, row.x, vector, v.count);
        copy_values(other, dh);
      } else {
        row.dy.take(gradient, vector, v.count);
        copy_values(other, v.x);
        make_result(other, v.gain, p, bias, vector, v.count);
      }
      multiply(gradient, other);
      multiply(gradient, slope);
    }
    if (before) multiply(dh, v.factor);
    if (dx.data != nullptr) store_values(dh, dx, vector, v.count);
    if (dresidual.data != nullptr) store_values(dh, dresidual, vector, v.count);
    if (dgate.data != nullptr) store_values(gradient, dgate, vector, v.count);
  }

  const NormBackwardParams& p;
  const DtypeRow<T> bias, dx, dresidual, dgate;
};

// Computes the statistics of a row again.
template <Stat kStat, int kThreads, Dtype kDtype, class Tile>
__device__ __forceinline__ void compute_gated_statistics(Statistics& statistics,
                                                         const NormBackwardParams& p,
                                                         const GatedRow<Element<kDtype>>& row,
                                                         const Place<Tile>& place) {
  using Forward = ForwardSlots<kDtype, kStat, kThreads>;
  auto& scratch = ptx::block_shared<RowScratch<Tile, Forward::kFolds, Forward::kLayer>>();
  gated_statistics<Forward>(statistics, p, row, scratch, place);
}

template <Dtype kDtype, int kThreads>
__device__ __forceinline__ void gradient_of_gated_rows(const NormBackwardParams& p) {
  using Tile = RowTileOf<ForwardSlots<kDtype, Stat::kRms, kThreads>>;
  using T = Element<kDtype>;
  using Vector = GatedVector<T>;
  constexpr int kSums = 2, kCount = Vector::kCount;
  struct OwnScratch : RowScratch<Tile, kSums, false> {};
  auto& scratch = ptx::block_shared<OwnScratch>();
  const Place<Tile> place(blockIdx.x);
  const bool live = place.row < p.rows;
  const bool is_layer = (p.bits & kBackwardLayer) != 0;
  const RowIndex index = backward_index(p, live ? place.row : 0);
  follow_stream((p.bits & kBackwardTrigger) != 0);

  const GatedRow<T> row(p, index);
  Statistics statistics = {0.0f, 0.0f};
  if ((p.bits & kBackwardComputeStatistics) != 0) {
    if (is_layer) {
      compute_gated_statistics<Stat::kLayer, kThreads>(statistics, p, row, place);
    } else {
      compute_gated_statistics<Stat::kRms, kThreads>(statistics, p, row, place);
    }
    if ((p.bits & kBackwardStatisticsOnly) != 0) {
      if (live && place.leads_row()) store_statistics(p, index, statistics, is_layer);
      return;
    }
  } else if (is_layer) {
    statistics = load_statistics<Stat::kLayer>(p, index);
  } else {
    statistics = load_statistics<Stat::kRms>(p, index);
  }

  const DtypeRow<T> weight = row_or_none<T>(p.weight, index);
  float c[kSums];
  const auto sums_of = [&](int64_t number, float(&sum)[kSums]) {
    const Vector v(p, row, weight, statistics, number);
    sum[0] = vector_dot(v.e, v.x);
    sum[1] = vector_sum(v.e);
  };
  means_of_row<Tile, kGatedDigits<Tile>>(c, p.vectors, p, scratch, place, sums_of);
  if (!is_layer) c[1] = 0.0f;
  if (!live) return;

  const GatedStore<T> to(p, index);
  const DtypeRow<T> residual_in = row_or_none<T>(p.dresidual_in, index);
#pragma unroll 1
  for (int64_t number = place.first; number < p.vectors; number += Tile::kStride) {
    const Vector v(p, row, weight, statistics, number);
    float dh[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) dh[i] = centred<Stat::kLayer>(v.x[i], v.e[i], c);
    add_residual<T>(dh, statistics.rstd, residual_in, number, v.count);
    to.put(dh, v, row, number);
  }
}

// Sums of columns, for either statistic.
template <Dtype kDtype, int kThreads>
__device__ __forceinline__ void sums_of_gated_columns(const NormBackwardParams& p) {
  using T = Element<kDtype>;
  constexpr int kCount = T::kPerVector;
  const ColumnPlace<kDtype, kThreads> at(p);
  follow_stream((p.bits & kBackwardTrigger) != 0);
  at.template sum_rows<2>(p, [&](float(&sums)[2][kCount], uint32_t row) {
    const int64_t vector = at.vector;
    const int count = at.count;
    const RowIndex index = backward_index(p, row);
    const GatedRow<T> tensors(p, index);
    float x[kCount], factor[kCount], d[kCount];
    load_gated(x, factor, p, tensors, vector, count);
    tensors.dy.take(d, vector, count);
    if (!gate_is_before(p)) multiply(d, factor);
    if (p.dweight.data != nullptr) {
      const float rstd = ptx::ld_global_f32(row_address(p.rstd, index));
      const bool layer = p.mean.data != nullptr;
      const float mean = layer ? ptx::ld_global_f32(row_address(p.mean, index)) : 0.0f;
#pragma unroll
      for (float& value : x) value = __fmul_rn(layer ? __fsub_rn(value, mean) : value, rstd);
      round_if(x, p, kBackwardRoundNormalized);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[0][i] = __fmaf_rn(d[i], x[i], sums[0][i]);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[1][i] = __fadd_rn(sums[1][i], d[i]);
  });
}

}  // namespace fastnorm::cuda
