// The second half of a row: normalise, multiply, and pass the result to the sink. One form for each
// way to keep the weights.
#pragma once

#include "cuda/norm/affine.cuh"
#include "cuda/norm/static.cuh"

namespace fastnorm::cuda {

// Passes one vector's results to the sink. Results to be quantised stay in registers.
template <class Slots, class Tile, CodeType kCodes = CodeType::kE4M3, class Sink, class Reach>
__device__ __forceinline__ void deliver(const NormParams& p, const Sink& sink,
                                        RowState<Slots, Tile>& row,
                                        float (&z)[Slots::T::kPerVector], int v,
                                        const Place<Tile>& place, const Reach& reach) {
  if constexpr (Slots::kSink == fastnorm::Sink::kStatic) {
    if (Slots::kV.has(Variant::kStoresY) && p.y.data != nullptr && reach.stores(v))
      ptx::st_global_v4(place.template address<kVectorBytes>(sink.y, v), Slots::T::pack(z));
    put_static<typename Slots::T, kCodes>(z, row.static_scale, sink, v, place, reach.stores(v));
  } else if constexpr (Slots::kSink == fastnorm::Sink::kQuant) {
#pragma unroll
    for (int i = 0; i < Slots::T::kPerVector; ++i) row.held.results()[v][i] = z[i];
  } else if constexpr (Slots::kAccess == Access::kUnaligned) {
    put_staged<Slots, Tile>(Slots::T::pack(z), v, place);
  } else if (reach.stores(v)) {
    ptx::st_global_v4(place.template address<kVectorBytes>(sink.y, v), Slots::T::pack(z));
  }
}

// Llama's form: the normalised row is rounded, then multiplied in x's dtype, two numbers per
// instruction.
template <class Slots, class Tile, class R>
__device__ __forceinline__ uint4 finish_rounded(const RowState<Slots, Tile>& row,
                                                const uint4& raw_weight, int v, const R& rounding) {
  using T = typename Slots::T;
  const auto word = [&](int k) {
    float t[T::kPerWord];
    row.held.get_word(t, v, k);
    normalize_vector<Slots>(t, t, row.mean, row.rstd, rounding);
    // Added to the offset 0, as in the other forms, so that a weight of -0 counts as 0.
    const uint32_t w = add_words<T>(word_of(raw_weight, k), 0);
    return multiply_words<T>(T::pack_word(t[0], t[1]), w);
  };
  return make_uint4(word(0), word(1), word(2), word(3));
}

// Second half for aligned or unaligned vectors. Weight and bias have x's dtype or are absent. RMS
// has no bias.
template <class Slots, class Tile, CodeType kCodes = CodeType::kE4M3, class Reach, class R>
__device__ __forceinline__ void finish_vectors(const NormParams& p, RowState<Slots, Tile>& row,
                                               const RowIndex& out, const Place<Tile>& place,
                                               const Reach& reach, const R& rounding) {
  using T = typename Slots::T;
  using State = RowState<Slots, Tile>;
  constexpr int kVectors = Tile::kVectors, kPerVector = T::kPerVector, kGroup = Slots::kV.group;
  constexpr bool kBias = Slots::kStat == Stat::kLayer, kPacked = Slots::kV.row == Row::kPacked;
  const RowSink<Slots::kSink, Slots::kAccess, T> sink(p, out);
#pragma unroll
  for (int first = 0; first < kVectors; first += kGroup) {
    uint4 weight[kGroup], bias[kGroup];
    if constexpr (!State::kEarlyWeight) {
      load_late_weights<Slots, Tile, kGroup>(p, weight, bias, first, out, place, reach);
    }
#pragma unroll
    for (int v = first; v < first + kGroup && v < kVectors; ++v) {
      const uint4 raw_weight =
          State::kEarlyWeight ? row.weight[State::kEarlyWeight ? v : 0] : weight[v - first];
      const uint4 raw_bias = State::kEarlyBias ? row.bias[State::kEarlyBias ? v : 0]
                             : kBias           ? bias[v - first]
                                               : make_uint4(0, 0, 0, 0);
      if constexpr (Slots::kRounds) {
        if (reach.stores(v)) {
          ptx::st_global_v4(place.template address<kVectorBytes>(sink.y, v),
                            finish_rounded<Slots, Tile>(row, raw_weight, v, rounding));
        }
        continue;
      }
      float z[kPerVector];
      if constexpr (Slots::kV.has(Variant::kReadyWeights)) {
        row.held.get(z, v);
        if constexpr (Slots::kV.round != RoundRow::kInPlace)
          normalize_vector<Slots>(z, z, row.mean, row.rstd, rounding);
#pragma unroll
        for (int i = 0; i < kPerVector; ++i)
          z[i] = __fmaf_rn(z[i], row.factor[v][i], row.addend[v][i]);
        deliver<Slots, Tile, kCodes>(p, sink, row, z, v, place, reach);
        continue;
      }
      // A packed row goes word by word, so that few unpacked values are alive.
      constexpr int kWords = kPacked ? 1 : 4, kPerWord = T::kPerWord;
#pragma unroll
      for (int k = 0; k < 4; k += kWords) {
        float t[kWords * kPerWord], w[kWords * kPerWord], b[kWords * kPerWord],
            y[kWords * kPerWord];
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          T::unpack_word(word_of(raw_weight, k + i), w + i * kPerWord);
          row.held.get_word(t + i * kPerWord, v, k + i);
        }
#pragma unroll
        for (int i = 0; i < kWords * kPerWord; ++i) b[i] = -0.0f;
        if constexpr (kBias) {
#pragma unroll
          for (int i = 0; i < kWords; ++i)
            T::unpack_word(word_of(raw_bias, k + i), b + i * kPerWord);
        }
        if constexpr (Slots::kV.round != RoundRow::kInPlace)
          normalize_vector<Slots>(t, t, row.mean, row.rstd, rounding);
        apply(y, t, w, b, p.weight_offset, row.rstd, rounding);
#pragma unroll
        for (int i = 0; i < kWords * kPerWord; ++i) z[k * kPerWord + i] = y[i];
      }
      deliver<Slots, Tile, kCodes>(p, sink, row, z, v, place, reach);
    }
  }
}

// Second half for f32 weight and bias with 16-bit rows, by fours. One is applied while later ones
// are loaded.
template <class Slots, class Tile, class Reach, class R>
__device__ __forceinline__ void finish_by_fours(const NormParams& p, RowState<Slots, Tile>& row,
                                                const RowIndex& out, const Place<Tile>& place,
                                                const Reach& reach, const R& rounding) {
  using T = typename Slots::T;
  using State = RowState<Slots, Tile>;
  constexpr int kPerVector = T::kPerVector, kAll = Tile::kVectors * kFours<T>,
                kAhead = Slots::kV.fours_ahead;
  constexpr bool kBias = Slots::kStat == Stat::kLayer, kCross = Slots::kV.has(Variant::kCrossFours);
  [[maybe_unused]] const RowSink<Slots::kSink, Slots::kAccess, T> sink(p, out);
  using Weights = WeightFours<T, Tile, kCross>;
  const uint32_t bits = bits_of<Slots, Tile>(p.bits_again);
  const Weights weights(weight_row(p, out, bits), weight_type(bits), place),
      biases(bias_row(p, out, bits), bias_type(bits), place);
  const bool second_first = second_four_first<kCross>(place);
  auto& weight = row.weight;
  auto& bias = row.bias;
  const auto load = [&](int four) {
    weights.load(weight[four % kAhead], four, reach);
    if constexpr (kBias) biases.load(bias[four % kAhead], four, reach);
    take_tails<Slots, Tile>(weight[four % kAhead], bias[kBias ? four % kAhead : 0], four, reach);
  };
  if constexpr (!State::kEarlyWeight)
    fill_weights<Slots, Tile>(row, weights.present, biases.present);
#pragma unroll
  for (int i = Slots::kV.fours_early; i < kAhead; ++i) load(i);
#pragma unroll
  for (int v = 0; v < Tile::kVectors; ++v) {
    float z[kPerVector];
#pragma unroll
    for (int i = 0; i < kPerVector; i += 4) {
      const int four = (v * kPerVector + i) / 4;
      float t[4], w[4], b[4] = {-0.0f, -0.0f, -0.0f, -0.0f}, y[4];
#pragma unroll
      for (int k = 0; k < 4; k += T::kPerWord)
        row.held.get_crossed_word(t + k, v, (i + k) / T::kPerWord, second_first);
      Element<Dtype::kF32>::unpack(weight[four % kAhead], w);
      if constexpr (kBias) Element<Dtype::kF32>::unpack(bias[four % kAhead], b);
      normalize_vector<Slots>(t, t, row.mean, row.rstd, rounding);
      apply(y, t, w, b, p.weight_offset, row.rstd, rounding);
      if (four + kAhead < kAll) load(four + kAhead);
#pragma unroll
      for (int k = 0; k < 4; ++k) z[i + k] = y[k];
    }
    if constexpr (Slots::kAccess == Access::kUnaligned) {
      deliver<Slots, Tile>(p, sink, row, z, v, place, reach);
    } else if (reach.stores(v)) {
      const uint4 y = T::pack(z), words = selected(second_first, make_uint4(y.z, y.w, y.x, y.y), y);
      ptx::st_global_v4(place.template address<kVectorBytes>(sink.y, v), words);
    }
  }
}

// Second half of one vector, any address.
template <class Slots, class Tile, class Sink, class Reach>
__device__ __forceinline__ void finish_any_vector(
    const NormParams& p, RowState<Slots, Tile>& row, const Sink& sink,
    const AnyWeights<typename Slots::T>& weights,
    const Rounding<Slots::kAffine, typename Slots::T>& rounding, int v, const Place<Tile>& place,
    const Reach& reach) {
  using T = typename Slots::T;
  const int count = reach.count(v);
  float s[T::kPerVector], w[T::kPerVector], b[T::kPerVector], z[T::kPerVector];
  pick_vector(s, row.held.values, v);
  weights.weight.template take<Part::kCounted>(w, place.vector(v), count);
  weights.bias.template take<Part::kCounted>(b, place.vector(v), count);
  normalize_vector<Slots>(s, s, row.mean, row.rstd, rounding);
  apply(z, s, w, b, p.weight_offset, row.rstd, rounding);
  if constexpr (Slots::kSink == fastnorm::Sink::kQuant) {
    clear_from(z, count);
    put_vector(row.held.values, v, z);
  } else {
    store_part<Part::kCounted, T>(z, sink.y, place.vector(v), count);
  }
}

// Second half, any address: a loop over vectors. Unrolled, the code would not fit the instruction
// cache.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void finish_any(const NormParams& p, RowState<Slots, Tile>& row,
                                           const RowIndex& out, const Place<Tile>& place,
                                           const Reach& reach) {
  using T = typename Slots::T;
  using Sink = RowSink<Slots::kSink, Slots::kAccess, T>;
  const auto rounding = rounding_of<Slots, Tile>(p);
  if constexpr (Slots::kSink == fastnorm::Sink::kStore && Slots::kV.has(Variant::kPlaceAnew)) {
#pragma unroll 1
    for (int v = 0; v < Tile::kVectors && reach.has(v); ++v) {
      const RowIndex index = row_index(p, place.row_again(), p.bits_again);
      finish_any_vector(p, row, Sink(p, index), AnyWeights<T>(p, index, p.bits_again), rounding, v,
                        place, reach);
    }
  } else {
    const Sink sink(p, out);
    const AnyWeights<T> weights(p, out, p.bits_again);
#pragma unroll 1
    for (int v = 0; v < Tile::kVectors && reach.has(v); ++v)
      finish_any_vector(p, row, sink, weights, rounding, v, place, reach);
  }
}

}  // namespace fastnorm::cuda
