// The persistent row kernel (Affine::kKept): weight and bias, shared by all rows, stay in registers
// as f32 while a block takes one row after another. A row is loaded while the one before it is
// reduced.
#pragma once

#include "cuda/common/ptx/grid.cuh"
#include "cuda/norm/finish.cuh"
#include "cuda/norm/prefetch.cuh"

namespace fastnorm::cuda {

// Weight and bias of all rows that a thread takes, as f32, the weight with its offset. Each is of
// x's dtype, f32 or absent.
template <class Slots, class Tile>
struct KeptColumns {
  using T = typename Slots::T;
  static constexpr int kVectors = Tile::kVectors, kPerVector = T::kPerVector;

  // On their way until unpack().
  template <class Reach>
  __device__ __forceinline__ void load(const NormParams& p, const Place<Tile>& place,
                                       const Reach& reach, uint32_t bits) {
    load(weight, weight_type(bits), p.weight, T::kOneWord, place, reach);
    load(bias, bias_type(bits), p.bias, T::kMinusZeroWord, place, reach);
  }

  __device__ __forceinline__ void unpack(float weight_offset, uint32_t bits) {
    unpack(weight, weight_type(bits));
#pragma unroll
    for (auto& vector : weight) {
#pragma unroll
      for (float& w : vector) w = __fadd_rn(w, weight_offset);
    }
    unpack(bias, bias_type(bits));
  }

  // t * weight + bias, with those of vector v.
  __device__ __forceinline__ void apply(float (&t)[kPerVector], int v) const {
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) t[i] = __fmaf_rn(t[i], weight[v][i], bias[v][i]);
  }

 private:
  // 16 bytes of x's dtype go to the first half of a vector's registers.
  template <class Reach>
  static __device__ __forceinline__ void load(float (&column)[kVectors][kPerVector],
                                              ColumnType type, const char* tensor, uint32_t absent,
                                              const Place<Tile>& place, const Reach& reach) {
    const bool f32 = type == ColumnType::kF32, present = type != ColumnType::kAbsent;
    const int bytes = f32 ? 2 * kVectorBytes : kVectorBytes;  // of a vector's columns
    const char* address = tensor + static_cast<uint32_t>(place.first * bytes);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      uint4 first = make_uint4(absent, absent, absent, absent), second = make_uint4(0, 0, 0, 0);
      ptx::ld_global_v4_if(first, address, present && reach.has(v));
      ptx::ld_global_v4_if(second, address + kVectorBytes, f32 && reach.has(v));
      address += Tile::kStride * bytes;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        column[v][i] = __uint_as_float(word_of(first, i));
        column[v][i + 4] = __uint_as_float(word_of(second, i));
      }
    }
  }
  static __device__ __forceinline__ void unpack(float (&column)[kVectors][kPerVector],
                                                ColumnType type) {
    if (type == ColumnType::kF32) return;
#pragma unroll
    for (auto& values : column) {
      const uint4 raw = make_uint4(__float_as_uint(values[0]), __float_as_uint(values[1]),
                                   __float_as_uint(values[2]), __float_as_uint(values[3]));
      T::unpack(raw, values);
    }
  }

  float weight[kVectors][kPerVector], bias[kVectors][kPerVector];
};

// Second half.
template <class Slots, class Tile, CodeType kCodes, class R>
__device__ __forceinline__ void finish_kept(
    const NormParams& p, RowState<Slots, Tile>& row, const KeptColumns<Slots, Tile>& columns,
    const RowIndex& out, const Place<Tile>& place,
    const Reach<Slots::kAccess, typename Slots::T, Tile>& reach, const R& rounding) {
  constexpr int kPerVector = Slots::T::kPerVector;
  const RowSink<Slots::kSink, Slots::kAccess, typename Slots::T> sink(p, out);
#pragma unroll
  for (int v = 0; v < Tile::kVectors; ++v) {
    float t[kPerVector];
    normalize_vector<Slots>(t, row.held.values[v], row.mean, row.rstd, rounding);
    columns.apply(t, v);
    deliver<Slots, Tile, kCodes>(p, sink, row, t, v, place, reach);
  }
}

template <class Slots, class Tile>
__device__ __forceinline__ void normalize_in_turn(const NormParams& p) {
  using T = typename Slots::T;
  constexpr int kVectors = Tile::kVectors;
  static_assert(Slots::kStat == Stat::kLayer && Tile::kRows == 1 && !Tile::kCluster);
  // Two folds, so that a barrier lies between a fold's reading and its next writing.
  auto& scratch = ptx::block_shared<RowScratch<Tile, 0, true>>();
  const uint32_t bits = ptx::in_register(p.bits);
  Place<Tile> place(blockIdx.x);
  const Reach<Slots::kAccess, T, Tile> reach(p, place, true);
  const auto rounding = rounding_of<Slots, Tile>(p, bits);
  const auto index_of = [&](uint32_t number) { return row_index(p, number, p.bits_again); };
  constexpr bool kRowFirst = Slots::kV.has(Variant::kRowFirst);
  ptx::grid_wait_if((bits & (kRowFirst ? kWaitFirst | kWaitAfterColumns : kWaitFirst)) != 0);
  KeptColumns<Slots, Tile> columns;
  if constexpr (!kRowFirst) {
    columns.load(p, place, reach, bits);
    ptx::grid_wait_if((bits & kWaitAfterColumns) != 0);
  }
  RowSource<Slots, Tile> source(p, index_of(place.row), place, reach, bits);
  FirstElement<Slots, Tile> first;
  first.load(p, index_of(place.row));
  if constexpr (kRowFirst) columns.load(p, place, reach, bits);
  RowState<Slots, Tile> row;
  if constexpr (Slots::kSink == Sink::kStatic)
    row.given_scale = __frcp_rn(ptx::ld_global_f32(p.quant.given_scale));
  columns.unpack(p.weight_offset, bits);

  const uint32_t step = gridDim.x;
  for (;;) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) row.held.set(source, v);
    row.held.hold();
    LayerStatistics statistics(first.value(row.held.values[0][0], false), rounding);
    const bool last = p.rows - place.row <= step;
    if (!last) {
      source = RowSource<Slots, Tile>(p, index_of(place.row + step), place, reach, bits);
      first.load(p, index_of(place.row + step));
      prefetch_row<Slots, Tile>(p, place);
    } else if ((p.bits_again & kTrigger) != 0) {
      ptx::grid_trigger();
    }
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
      statistics.take(
          row_moments(row.held, statistics.from, reach, false, scratch.moments[pass], place), pass,
          p, rounding);
    }
    row.mean = statistics.mean();
    row.rstd = statistics.rstd(p, rounding);
    const RowIndex out = index_of(place.row);
    if ((p.bits_again & kStoreStatistics) != 0 && place.leads_row())
      store_statistics(p, out, row.mean, row.rstd);
    const auto finish = [&](const auto& how) {
      if (Slots::kSink == Sink::kStatic && p.quant.code_type == CodeType::kI8) {
        finish_kept<Slots, Tile, CodeType::kI8>(p, row, columns, out, place, reach, how);
      } else {
        finish_kept<Slots, Tile, CodeType::kE4M3>(p, row, columns, out, place, reach, how);
      }
    };
    if (__builtin_expect(rounding.round_normalized(), 0)) {
      finish(KnownRounding<T, true>());
    } else {
      finish(KnownRounding<T, false>());
    }
    if (last) break;
    place.row += step;
  }
}

}  // namespace fastnorm::cuda
