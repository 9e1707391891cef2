// The kernel for rows that do not fit in a cluster's registers. Each pass reads the row again: two
// for RMS, three for LAYER. Any address, any weight and bias, any sink.
#pragma once

#include "cuda/common/ptx/grid.cuh"
#include "cuda/norm/affine.cuh"
#include "cuda/norm/quant.cuh"

namespace fastnorm::cuda {

// Quantises a streamed row, one vector per thread at a time. Does nothing if nothing is quantised.
template <class Slots, class Tile, bool kQuant = Slots::kSink == Sink::kQuant>
struct StreamQuantizer {
  using T = typename Slots::T;
  __device__ __forceinline__ StreamQuantizer(const NormParams&, const Place<Tile>&) {}
  __device__ __forceinline__ bool wants_row() const { return false; }
  __device__ __forceinline__ void see(const float (&)[T::kPerVector], int) {}
  __device__ __forceinline__ void put(const float (&)[T::kPerVector], int64_t, int) {}
  __device__ __forceinline__ void end(const Place<Tile>&) {}
};

template <class Slots, class Tile>
struct StreamQuantizer<Slots, Tile, true> {
  using T = typename Slots::T;
  static constexpr int kPerVector = T::kPerVector;

  __device__ __forceinline__ StreamQuantizer(const NormParams& params, const Place<Tile>& place)
      : p(params),
        q(params.quant),
        index(row_index(params, place.row, params.bits_again)),
        scales(params, place.row, index),
        codes(row_address(params.quant.codes, params.quant.codes_upper, index)),
        clamp(clamp_of(params.quant)) {
    static_scale = q.static_scale != nullptr ? *q.static_scale : 1.0f;
    if (q.rule == ScaleRule::kStatic) inverse = q.divides ? static_scale : __frcp_rn(static_scale);
  }

  // True if the row's greatest magnitude must be known before its codes.
  __device__ __forceinline__ bool wants_row() const {
    return q.rule >= ScaleRule::kQuotient && q.block == 0;
  }
  __device__ __forceinline__ void see(float (&z)[kPerVector], int count) {
    prepare<T>(q, clamp, z);
    clear_from(z, count);
    most = greater(most, magnitude_bits(z));
  }
  __device__ __forceinline__ void make_row_scale(FoldScratch<Tile>& scratch,
                                                 const Place<Tile>& place) {
    const Scale scale = free_scale(q, greatest_of_row(most, scratch, place));
    if (place.leads_row()) scales.put(0, scale.bits);
    inverse = scale.inverse;
  }

  __device__ __forceinline__ void put(float (&z)[kPerVector], int64_t vector, int count) {
    prepare<T>(q, clamp, z);
    clear_from(z, count);
    uint32_t magnitude[1] = {magnitude_bits(z)};
    most = greater(most, magnitude[0]);
    if (q.rule == ScaleRule::kNoCodes) return;
    if (q.block != 0) {
      constexpr int kVectorShift = kPerVector == 8 ? 3 : 2;
      const int shift = q.block_shift - kVectorShift, lanes = 1 << shift;
      fold_blocks<Tile>(magnitude, lanes);
      const Scale scale = make_scale(q, magnitude[0], static_scale);
      if (count > 0 && (vector & (lanes - 1)) == 0) scales.put(vector >> shift, scale.bits);
      inverse = scale.inverse;
    }
    if (q.divides) {
      divide_values(z, inverse);
    } else {
      scale_values(z, inverse);
    }
    if (count > 0) put_any_codes(q, codes, z, vector, count);
  }

  __device__ __forceinline__ void end(const Place<Tile>& place) const {
    if (q.amax != nullptr) raise_amax(q, most);
    if (q.swizzled) {
      scales.pad((p.n + q.block - 1) >> q.block_shift, p.rows, place.first, Tile::kStride);
    }
  }

  const NormParams& p;
  const QuantParams& q;
  const RowIndex index;
  const ScaleRow scales;
  char* const codes;
  const float clamp;
  float static_scale, inverse = 0.0f;
  uint32_t most = 0;
};

// The canonical fold of a thread's vectors, in the order in which they come. Registers of the tree
// come in bit-reversed order, so that the pairs of the highest digit are neighbours. One partial
// sum is pending for each digit. Absent registers are +0 and change nothing.
struct StreamFold {
  static constexpr int kDigits = 20;  // 2^20 groups of 4 vectors per thread: rows of 2^32 elements
  static constexpr int kGroup = 4;    // registers loaded together: a subtree of two digits

  // Group numbers count up from 0. Each carry of that count is one addition of the tree.
  template <int kDigit = 0>
  __device__ __forceinline__ void add(float q, uint32_t group) {
    if constexpr (kDigit == kDigits) {
      total = q;
    } else if ((group >> kDigit & 1) == 0) {
      pending[kDigit] = total = q;
    } else {
      add<kDigit + 1>(__fadd_rn(pending[kDigit], q), group);
    }
  }

  float pending[kDigits];
  float total;  // after the last group; its number is all ones, so it contains everything
};

// What a pass over the row folds: one sum, or two at once.
struct StreamSum {
  using Value = float;
  __device__ __forceinline__ void add(float (&q)[StreamFold::kGroup], uint32_t group) {
    fold.add(fold_registers(q), group);
  }
  __device__ __forceinline__ float total() const { return fold.total; }

  StreamFold fold;
};
struct StreamMoments {
  using Value = Moments;
  __device__ __forceinline__ void add(const Moments (&q)[StreamFold::kGroup], uint32_t group) {
    const Moments m = fold_moments(q);
    sum.add(m.sum, group);
    squares.add(m.squares, group);
  }
  __device__ __forceinline__ Moments total() const { return {sum.total, squares.total}; }

  StreamFold sum, squares;
};

__device__ __forceinline__ float selected(bool first, float a, float b) { return first ? a : b; }
__device__ __forceinline__ Moments selected(bool first, const Moments& a, const Moments& b) {
  return {first ? a.sum : b.sum, first ? a.squares : b.squares};
}

// Folds sums_of(first, step, sums) over each of a thread's `count` vectors, four at a time: first,
// first + step and so on. Past the row's end it gives 0.
template <class Fold, class Tile, typename Fn>
__device__ __forceinline__ typename Fold::Value fold_stream(int64_t count, Fn sums_of) {
  // Digits of a vector's number: at least two, for the group.
  const int digits = count <= StreamFold::kGroup ? 2 : 64 - __clzll(count - 1);
  const uint32_t groups = 1u << (digits - 2);
  Fold fold;
  for (uint32_t g = 0; g < groups; ++g) {
    // In bit-reversed order, the two lowest digits of the position are the two highest of the
    // register.
    const uint32_t low = digits == 2 ? 0 : __brev(g) >> (32 - (digits - 2));
    typename Fold::Value q[StreamFold::kGroup];
    sums_of(low, int64_t{1} << (digits - 2), q);
    fold.add(q, g);
  }
  return fold.total();
}

// One thread's view of a streamed row, four vectors at a time. If the row, weight and bias are at
// 16-byte addresses, the loads of complete vectors are all issued before the first is used. That
// keeps memory busy. Otherwise, and for a group with the row's partial vector, vectors are loaded
// one at a time.
template <class Slots, class Tile>
struct StreamRow {
  using T = typename Slots::T;
  static constexpr int kPerVector = T::kPerVector, kGroup = StreamFold::kGroup;
  static constexpr bool kAdd = Slots::kSource == Source::kAdd;

  __device__ __forceinline__ StreamRow(const NormParams& params, const Place<Tile>& at,
                                       const RowIndex& index)
      : p(params),
        place(at),
        input(params, index),
        weights(params, index, params.bits),
        vectors(params.vectors),
        short_register(params.n % kPerVector == 0 ? -1 : (params.vectors - 1) / Tile::kStride),
        wide_row(wide(input.x) && (!kAdd || wide(input.residual))),
        wide_weights(wide(weights.weight) && wide(weights.bias)) {}

  __device__ __forceinline__ int64_t registers() const {
    return (vectors + Tile::kStride - 1) / Tile::kStride;
  }
  __device__ __forceinline__ int64_t vector(int64_t number) const {
    return place.first + number * Tile::kStride;
  }
  // Elements in the row, at most kPerVector; 0 or less past its end.
  __device__ __forceinline__ int count(int64_t vector) const {
    const int64_t left = p.n - vector * kPerVector;
    return left >= kPerVector ? kPerVector : left < 0 ? 0 : static_cast<int>(left);
  }
  // Equal in all threads of the row.
  __device__ __forceinline__ bool has_short(int64_t first, int64_t step) const {
    bool has = false;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) has |= first + i * step == short_register;
    return has;
  }

  // q[i] = sum_of(s, count) of the values of register first + i * step.
  template <typename Value, typename Fn>
  __device__ __forceinline__ void sums(int64_t first, int64_t step, Value (&q)[kGroup],
                                       Fn sum_of) const {
    if (wide_row && !has_short(first, step)) {
      uint4 x[kGroup], residual[kGroup];
      load(x, input.x.data, first, step);
      if constexpr (kAdd) load(residual, input.residual.data, first, step);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        float s[kPerVector];
        unpack(s, x[i], residual[i]);
        q[i] = sum_of(s, count(vector(first + i * step)));
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kGroup; ++i) {
        const int64_t v = vector(first + i * step);
        float s[kPerVector];
        input.template take<Part::kCounted>(s, v, count(v));
        const Value sum = sum_of(s, count(v));
#pragma unroll
        for (int k = 0; k < kGroup; ++k) q[k] = selected(k == i, sum, q[k]);
      }
    }
  }

  // Calls use(s, z, vector, count) with the row's values and its results, equally often in every
  // thread of the row.
  template <typename Fn>
  __device__ __forceinline__ void results(float mean, float rstd,
                                          const Rounding<Slots::kAffine, T>& rounding,
                                          Fn use) const {
    for (int64_t first = 0; first < registers(); first += kGroup) {
      const bool wide = wide_row && wide_weights && !has_short(first, 1);
      uint4 x[kGroup], residual[kGroup], weight[kGroup], bias[kGroup];
      if (wide) {
        load_weight(weight, weights.weight, T::kOneWord, first);
        load_weight(bias, weights.bias, T::kMinusZeroWord, first);
        load(x, input.x.data, first, 1);
        if constexpr (kAdd) load(residual, input.residual.data, first, 1);
      }
#pragma unroll 1
      for (int i = 0; i < kGroup && first + i < registers(); ++i) {
        const int64_t v = vector(first + i);
        float s[kPerVector], summed[kPerVector], t[kPerVector], z[kPerVector];
        float w[kPerVector], b[kPerVector];
        if (wide) {
          unpack(s, picked(x, i), picked(residual, i));
          T::unpack(picked(weight, i), w);
          T::unpack(picked(bias, i), b);
        } else {
          input.template take<Part::kCounted>(s, v, count(v));
          weights.weight.template take<Part::kCounted>(w, v, count(v));
          weights.bias.template take<Part::kCounted>(b, v, count(v));
        }
        copy_values(summed, s);
        if constexpr (kAdd) rounding.summed(summed);
        normalize_vector<Slots>(t, summed, mean, rstd, rounding);
        apply(z, t, w, b, p.weight_offset, rstd, rounding);
        use(s, z, v, count(v));
      }
    }
  }

  static __device__ __forceinline__ bool wide(const AnyRow<T, const char>& row) {
    return row.bytes == kVectorBytes && row.type == OperandType::kElement;
  }
  static __device__ __forceinline__ bool wide(const AnyWeight<T>& weight) {
    return weight.type == OperandType::kAbsent || wide(weight.row);
  }
  // The row's vectors. Past its end they are zero.
  __device__ __forceinline__ void load(uint4 (&raw)[kGroup], const char* row, int64_t first,
                                       int64_t step) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int64_t v = vector(first + i * step);
      raw[i] = make_uint4(0, 0, 0, 0);
      ptx::ld_global_v4_if(raw[i], row + v * kVectorBytes, v < vectors);
    }
  }
  __device__ __forceinline__ void load_weight(uint4 (&raw)[kGroup], const AnyWeight<T>& weight,
                                              uint32_t absent, int64_t first) const {
    if (weight.type == OperandType::kElement) {
      load(raw, weight.row.data, first, 1);
    } else {
      fill_values(raw, make_uint4(absent, absent, absent, absent));
    }
  }
  static __device__ __forceinline__ uint4 picked(const uint4 (&raw)[kGroup], int number) {
    uint4 v = raw[0];
#pragma unroll
    for (int i = 1; i < kGroup; ++i) v = selected(i == number, raw[i], v);
    return v;
  }
  static __device__ __forceinline__ void unpack(float (&s)[kPerVector], uint4 x, uint4 residual) {
    T::unpack(x, s);
    if constexpr (kAdd) {
      float r[kPerVector];
      T::unpack(residual, r);
#pragma unroll
      for (int i = 0; i < kPerVector; ++i) s[i] = __fadd_rn(s[i], r[i]);
    }
  }

  const NormParams& p;
  const Place<Tile>& place;
  const AnyInput<Slots> input;
  const AnyWeights<T> weights;
  const int64_t vectors, short_register;  // of the row; register of its partial vector, or -1
  const bool wide_row, wide_weights;
};

// The row's statistics.
template <class Slots, class Tile, class R>
__device__ __forceinline__ void streamed_statistics(
    float& mean, float& rstd, const NormParams& p, const StreamRow<Slots, Tile>& row,
    RowScratch<Tile, Slots::kFolds, Slots::kLayer>& scratch, const Place<Tile>& place,
    const RowIndex& index, const R& rounding) {
  using T = typename Slots::T;
  constexpr int kPerVector = T::kPerVector;
  const auto fold = [&]<class Fold>(Fold, auto sum_of) {
    return fold_stream<Fold, Tile>(
        row.registers(),
        [&](int64_t first, int64_t step, typename Fold::Value(&q)[StreamFold::kGroup]) {
          row.sums(first, step, q, [&](float(&s)[kPerVector], int count) {
            if constexpr (Slots::kSource == Source::kAdd) rounding.summed(s);
            return sum_of(s, count);
          });
        });
  };
  mean = 0.0f;
  if constexpr (Slots::kStat == Stat::kLayer) {
    FirstElement<Slots, Tile, false> first;
    first.load(p, index);
    const LayerStatistics statistics = layer_statistics(
        first.value(0.0f, rounding), p, rounding, [&](int pass, float from, bool steps) {
          const Moments sums = fold(StreamMoments(), [&](const float(&s)[kPerVector], int count) {
            return moments<T, true>(s, from, count, steps);
          });
          return fold_row_moments<Tile>(sums, scratch.moments[pass], place);
        });
    mean = statistics.mean(), rstd = statistics.rstd(p, rounding);
  } else {
    const float sum = fold(StreamSum(), [&](float(&s)[kPerVector], int) {
      return squares<T>(s, rounding.every_step);
    });
    rstd = rstd_of(__fmul_rn(fold_row<Sum>(sum, scratch.fold[0], place), p.inv_n), p, rounding);
  }
}

template <class Slots, class Tile>
__device__ __forceinline__ void normalize_streaming(const NormParams& p) {
  using T = typename Slots::T;
  constexpr int kPerVector = T::kPerVector;
  auto& scratch = ptx::block_shared<RowScratch<Tile, Slots::kFolds, Slots::kLayer>>();
  cluster_begin(scratch);
  const Place<Tile> place(blockIdx.x);
  const RowIndex index = row_index(p, place.row, p.bits);
  const auto rounding = rounding_of<Slots, Tile>(p);
  const StreamRow<Slots, Tile> row(p, place, index);
  if ((p.bits & (kWaitFirst | kWaitAfterWeights)) != 0) ptx::grid_wait();
  if ((p.bits & kTrigger) != 0) ptx::grid_trigger();
  cluster_ready(scratch);

  float mean, rstd;
  streamed_statistics(mean, rstd, p, row, scratch, place, index, rounding);
  if ((p.bits & kStoreStatistics) != 0 && place.leads_row()) store_statistics(p, index, mean, rstd);

  StreamQuantizer<Slots, Tile> quantizer(p, place);
  // So far none of the row's inputs was overwritten. So y may be x, and residual_out may be the
  // residual.
  const RowSink<Slots::kSink, Slots::kAccess, T> sink(p, index);
  const bool stores_sum = Slots::kSource == Source::kAdd && p.residual_out.data != nullptr;
  const AnyRow<T, char> sum_out(row_address(p.residual_out, p.residual_out_upper, index),
                                p.residual_out_align,
                                static_cast<OperandType>(p.residual_out_type));
  // A scale of the row takes a pass before that of the codes.
#pragma unroll 1
  for (bool last = !quantizer.wants_row();; last = true) {
    row.results(mean, rstd, rounding,
                [&](float(&s)[kPerVector], float(&z)[kPerVector], int64_t vector, int count) {
                  if (!last) {
                    if (count > 0) quantizer.see(z, count);
                    return;
                  }
                  if (stores_sum) store_part<Part::kCounted, T>(s, sum_out, vector, count);
                  sink.put(z, vector, count);
                  quantizer.put(z, vector, count);
                });
    if (last) break;
    if constexpr (Slots::kSink == Sink::kQuant)
      quantizer.make_row_scale(scratch.fold[Slots::kFolds - 1], place);
  }
  quantizer.end(place);
}

}  // namespace fastnorm::cuda
