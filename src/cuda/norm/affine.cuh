// Affine: weight and bias, how they are loaded. apply() of
// common/normalize.cuh applies them.
#pragma once

#include "cuda/norm/held_row.cuh"

namespace fastnorm::cuda {

__device__ __forceinline__ OperandType weight_type(uint32_t bits) {
  return static_cast<OperandType>(bits / kWeightElement & 3);
}

__device__ __forceinline__ OperandType bias_type(uint32_t bits) {
  return static_cast<OperandType>(bits / kBiasElement & 3);
}

// The weight and bias of a row: shared by all rows, or one for each head.
__device__ __forceinline__ const char* weight_row(const NormParams& p, const RowIndex& index,
                                                  uint32_t bits) {
  return (bits & kHeadWeights) != 0 ? p.weight + index.digit[0] * p.weight_head_stride : p.weight;
}

__device__ __forceinline__ const char* bias_row(const NormParams& p, const RowIndex& index,
                                                uint32_t bits) {
  return (bits & kHeadWeights) != 0 ? p.bias + index.digit[0] * p.bias_head_stride : p.bias;
}

// kVectors vectors of a weight or bias from vector v on, as raw words. Missing vectors become
// `filler`. With kAhead they keep their value.
template <class T, class Tile, int kVectors, bool kAhead = false, class Reach>
__device__ __forceinline__ void load_aligned_weights(uint4* raw, OperandType type, const char* row,
                                                     int v, const Place<Tile>& place,
                                                     const Reach& reach, uint32_t filler) {
  if constexpr (!kAhead) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) raw[i] = make_uint4(filler, filler, filler, filler);
  }
  const bool present = type == OperandType::kElement;
  const char* const address = row + static_cast<uint32_t>(place.vector(v) * kVectorBytes);
  // Before the row, with predicates: the end of a branch would wait for earlier loads. After it,
  // with a branch: predicates would take registers.
  if (!kAhead && !present) return;
#pragma unroll
  for (int i = 0; i < kVectors && v + i < Tile::kVectors; ++i) {
    ptx::ld_global_v4_if(raw[i], address + Tile::offset(i) * kVectorBytes,
                         (!kAhead || present) && reach.whole(v + i));
  }
}

// Vectors of a weight or bias of unaligned rows. Weight and bias may begin at any address too.
template <class Slots, class Tile, int kVectors, class Reach>
__device__ __forceinline__ void load_unaligned_weights(uint4* raw, OperandType type,
                                                       const char* row, int v,
                                                       const Place<Tile>& place, const Reach& reach,
                                                       uint32_t filler) {
  const char* const address = row + static_cast<uint32_t>(place.vector(v) * kVectorBytes);
  const int bytes = access_bytes(row);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) raw[i] = make_uint4(filler, filler, filler, filler);
  if (type != OperandType::kElement) return;
  const auto wanted = [&](int i) { return v + i < Tile::kVectors && reach.whole(v + i); };
  if (bytes == kVectorBytes) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      ptx::ld_global_v4_if(raw[i], address + Tile::offset(i) * kVectorBytes, wanted(i));
  } else {
    uint4 words[kVectors];
    load_words(words, address, Tile::kStride * kVectorBytes, bytes, wanted);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) raw[i] = selected(wanted(i), words[i], raw[i]);
  }
}

// Weight and bias wait in shared memory until the row is reduced. A thread copies and reads only
// its own vectors, so no barrier is needed.
template <class Slots, class Tile>
struct SharedWeights {
  static constexpr int kStep = Tile::kThreads *
                               kVectorBytes,  // from one vector of a thread to its next
      kWeightBytes = Tile::kVectors * kStep;
  static constexpr bool kBias = Slots::kStat == Stat::kLayer;
  static_assert(Tile::kRows == 1);

  __device__ __forceinline__ SharedWeights()
      : mine(ptx::launch_shared() + threadIdx.x * kVectorBytes) {}

  // Starts the copies; wait() completes them.
  template <class Reach>
  __device__ __forceinline__ void load(const NormParams& p, const Place<Tile>& place,
                                       const Reach& reach) const {
    copy(mine, p.weight, place, reach);
    if constexpr (kBias) copy(mine + kWeightBytes, p.bias, place, reach);
  }
  static __device__ __forceinline__ void wait() { ptx::copy_async_wait(); }
  __device__ __forceinline__ uint4 weight(int v) const {
    return ptx::ld_shared_v4(mine + v * kStep);
  }
  __device__ __forceinline__ uint4 bias(int v) const {
    return ptx::ld_shared_v4(mine + kWeightBytes + v * kStep);
  }

 private:
  template <class Reach>
  static __device__ __forceinline__ void copy(char* shared, const char* from,
                                              const Place<Tile>& place, const Reach& reach) {
    const char* const address = from + static_cast<uint32_t>(place.first) * kVectorBytes;
#pragma unroll
    for (int v = 0; v < Tile::kVectors; ++v)
      ptx::copy_async_if(shared + v * kStep, address + Tile::offset(v) * kVectorBytes,
                         reach.whole(v));
  }

  char* const mine;
};

// Weight and bias for a row's partial vector. Aligned rows have none.
template <class Slots, class Tile, bool kUnaligned = Slots::kAccess == Access::kUnaligned>
struct WeightTails {
  __device__ __forceinline__ void load(const NormParams&, const RowIndex&, const Place<Tile>&,
                                       uint32_t) {}
};

template <class Slots, class Tile>
struct WeightTails<Slots, Tile, true> {
  using T = typename Slots::T;
  using Staged = StagedRow<Slots, Tile>;
  static constexpr bool kF32 = Slots::kAffine == Affine::kF32, kBias = Slots::kStat == Stat::kLayer;
  static constexpr OperandType kType = kF32 ? OperandType::kF32 : OperandType::kElement;
  using Weights = Element<kF32 ? Dtype::kF32 : Slots::kDtype>;
  using Tail = WeightTail<T, Tile, Weights::kBytes>;

  __device__ __forceinline__ void load(const NormParams& p, const RowIndex& index,
                                       const Place<Tile>& place, uint32_t bits) {
    weight.load(weight_row(p, index, bits), p, Weights::kOneWord, weight_type(bits) == kType,
                place);
    if constexpr (kBias) {
      bias.load(bias_row(p, index, bits), p, Weights::kMinusZeroWord, bias_type(bits) == kType,
                place);
    }
  }
  __device__ __forceinline__ void complete(const Place<Tile>& place) const {
    weight.complete(Staged().weight_tail(), place);
    if constexpr (kBias) bias.complete(Staged().bias_tail(), place);
  }

  Tail weight, bias;
};

// f32 weight and bias of 16-bit rows are loaded by fours, which are 16 bytes. A vector of x has
// two.
template <class T>
inline constexpr int kFours = T::kPerVector / 4;

// The two fours of a thread are neighbours in memory. If all threads load their first four, eight
// of them use half of L1's banks. With kCross, threads 4 to 7 of each eight load their second four
// first.
template <bool kCross, class Tile>
__device__ __forceinline__ bool second_four_first(const Place<Tile>& place) {
  return kCross && (place.first & 4) != 0;
}

// This thread's fours of a weight or bias.
template <class T, class Tile, bool kCross>
struct WeightFours {
  __device__ __forceinline__ WeightFours(const char* from, OperandType type,
                                         const Place<Tile>& place)
      : present(type == OperandType::kF32), crossed(second_four_first<kCross>(place)) {
    const char* const row = from + static_cast<uint32_t>(place.first) * (kFours<T> * kVectorBytes);
    const int ahead = crossed ? kVectorBytes : 0;
    // In registers: the compiler would compute the address of each four.
    first[0] = ptx::in_register(row + ahead);
    first[1] = kCross ? ptx::in_register(row + (kVectorBytes - ahead)) : first[0] + kVectorBytes;
  }

  // Loads number `four` into raw. If it is missing or partial, raw keeps its value.
  template <class Reach>
  __device__ __forceinline__ void load(uint4& raw, int four, const Reach& reach) const {
    const int v = four / kFours<T>;
    ptx::ld_global_v4_if(raw,
                         first[four % kFours<T>] + v * (Tile::kStride * kFours<T> * kVectorBytes),
                         present && reach.whole(v));
  }

  const bool present, crossed;
  const char* first[kFours<T>];  // of the first vector, in the order of loading
};

// A weight or bias at any address.
template <class T>
struct AnyWeight {
  __device__ __forceinline__ AnyWeight(const char* from, OperandType operand, int least,
                                       float value)
      : row(from, least, operand), type(operand), absent(value) {}

  template <Part kPart>
  __device__ __forceinline__ void take(float (&f)[T::kPerVector], int64_t vector, int count) const {
    if (type == OperandType::kAbsent) {
      clear(f);
    } else {
      load_part<kPart, T>(f, row, vector, count);
    }
  }

  __device__ __forceinline__ void clear(float (&f)[T::kPerVector]) const { fill_values(f, absent); }

  const AnyRow<T, const char> row;
  const OperandType type;
  const float absent;
};

template <class T>
struct AnyWeights {
  // `p`: of a NormCallParams, as in every kernel with such weights.
  __device__ __forceinline__ AnyWeights(const NormParams& p, const RowIndex& index, uint32_t bits)
      : weight(row(p.weight, p.weight_head_stride, of_call(p).weight_upper, index),
               weight_type(bits), p.weight_align, 1.0f),
        bias(row(p.bias, p.bias_head_stride, of_call(p).bias_upper, index), bias_type(bits),
             p.bias_align, -0.0f) {}

  static __device__ __forceinline__ const NormCallParams& of_call(const NormParams& p) {
    return static_cast<const NormCallParams&>(p);
  }
  static __device__ __forceinline__ const char* row(const char* from, int64_t stride,
                                                    const RowStrides& upper,
                                                    const RowIndex& index) {
    return row_address({const_cast<char*>(from), stride}, upper, index);
  }

  const AnyWeight<T> weight, bias;
};

// What a thread keeps of a row between the two halves of the kernel.
template <class Slots, class Tile>
struct RowState {
  using T = typename Slots::T;
  static constexpr int kVectors = Tile::kVectors, kPerVector = T::kPerVector;
  // RMS rarely has a bias, so it gets no registers before the reduction.
  static constexpr bool kEarlyWeight = Slots::kV.weights == Weights::kEarly;
  static constexpr bool kEarlyBias = kEarlyWeight && Slots::kStat == Stat::kLayer;
  static constexpr bool kHasFours = Slots::kAffine == Affine::kF32;
  static constexpr int kWeights = kHasFours ? Slots::kV.fours_ahead : kEarlyWeight ? kVectors : 1;
  HeldRow<Slots, Tile> held;
  uint4 weight[kWeights],
      bias[kEarlyBias || (kHasFours && Slots::kStat == Stat::kLayer) ? kWeights : 1];
  // With kReadyWeights the result is t * factor + addend. Both are computed before the sum is
  // known.
  static constexpr int kReady = Slots::kV.has(Variant::kReadyWeights) ? kVectors : 1;
  float factor[kReady][kPerVector], addend[kReady][kPerVector];
  float mean = 0.0f, rstd = 0.0f;
  float static_scale = 1.0f;  // Sink::kStatic: its reciprocal after the reduction
};

template <class Slots, class Tile>
__device__ __forceinline__ void make_weights_ready(const NormParams& p,
                                                   RowState<Slots, Tile>& row) {
  using T = typename Slots::T;
#pragma unroll
  for (int v = 0; v < Tile::kVectors; ++v) {
    T::unpack(row.weight[v], row.factor[v]);
    if constexpr (Slots::kStat == Stat::kLayer) T::unpack(row.bias[v], row.addend[v]);
#pragma unroll
    for (int i = 0; i < T::kPerVector; ++i) {
      row.factor[v][i] = ptx::in_register(__fadd_rn(row.factor[v][i], p.weight_offset));
      if constexpr (Slots::kStat == Stat::kLayer) {
        row.addend[v][i] = ptx::in_register(row.addend[v][i]);
      } else {
        row.addend[v][i] = -0.0f;
      }
    }
  }
}

// Fills weight or bias with the value of an absent one, before the loads. If it is present, a
// branch skips that. Clusters have no registers for the branch.
template <class Tile, int kCount>
__device__ __forceinline__ void fill_weight(uint4 (&raw)[kCount], uint32_t word, bool present) {
  if constexpr (!Tile::kCluster) {
    ptx::fill_unless(raw, word, present);
  } else {
    fill_values(raw, make_uint4(word, word, word, word));
  }
}

template <class Slots, class Tile>
__device__ __forceinline__ void fill_weights(RowState<Slots, Tile>& row, bool has_weight,
                                             bool has_bias) {
  using Weights = Element<Slots::kAffine == Affine::kF32 ? Dtype::kF32 : Slots::kDtype>;
  fill_weight<Tile>(row.weight, Weights::kOneWord, has_weight);
  if constexpr (Slots::kStat == Stat::kLayer)
    fill_weight<Tile>(row.bias, Weights::kMinusZeroWord, has_bias);
}

// Replaces number `number` of a thread's weight vectors from shared memory, if it belongs to the
// row's partial vector.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void take_tails(uint4& weight, uint4& bias, int number,
                                           const Reach& reach) {
  if constexpr (Slots::kAccess == Access::kUnaligned) {
    constexpr int kParts = Slots::kAffine == Affine::kF32 ? kFours<typename Slots::T> : 1;
    if (!reach.has_short() || number / kParts != reach.last_register()) return;
    const StagedRow<Slots, Tile> staged;
    weight = tail_vector(staged.weight_tail(), number % kParts);
    if constexpr (Slots::kStat == Stat::kLayer)
      bias = tail_vector(staged.bias_tail(), number % kParts);
  }
}

// Weight and bias that are loaded after the reduction, kGroup vectors at a time.
template <class Slots, class Tile, int kGroup, class Reach>
__device__ __forceinline__ void load_late_weights(const NormParams& p, uint4 (&weight)[kGroup],
                                                  uint4 (&bias)[kGroup], int first,
                                                  const RowIndex& out, const Place<Tile>& place,
                                                  const Reach& reach) {
  using T = typename Slots::T;
  constexpr bool kBias = Slots::kStat == Stat::kLayer;
  const uint32_t bits = bits_of<Slots, Tile>(p.bits_again);
  if constexpr (Slots::kShares) {
    const SharedWeights<Slots, Tile> shared;
#pragma unroll
    for (int i = 0; i < kGroup && first + i < Tile::kVectors; ++i) {
      weight[i] = shared.weight(first + i);
      if constexpr (kBias) bias[i] = shared.bias(first + i);
    }
  } else if constexpr (Slots::kAccess == Access::kUnaligned) {
    load_unaligned_weights<Slots, Tile, kGroup>(weight, weight_type(bits), weight_row(p, out, bits),
                                                first, place, reach, T::kOneWord);
    if constexpr (kBias) {
      load_unaligned_weights<Slots, Tile, kGroup>(bias, bias_type(bits), bias_row(p, out, bits),
                                                  first, place, reach, T::kMinusZeroWord);
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) take_tails<Slots, Tile>(weight[i], bias[i], first + i, reach);
  } else {
    load_aligned_weights<T, Tile, kGroup>(weight, weight_type(bits), weight_row(p, out, bits),
                                          first, place, reach, T::kOneWord);
    if constexpr (kBias) {
      load_aligned_weights<T, Tile, kGroup>(bias, bias_type(bits), bias_row(p, out, bits), first,
                                            place, reach, T::kMinusZeroWord);
    }
  }
}

// Issues the loads of weight and bias that come before the reduction.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void load_ahead(const NormParams& p, RowState<Slots, Tile>& row,
                                           const RowIndex& index, const Place<Tile>& place,
                                           const Reach& reach, uint32_t bits) {
  using T = typename Slots::T;
  using State = RowState<Slots, Tile>;
  if constexpr (Slots::kShares) SharedWeights<Slots, Tile>().load(p, place, reach);
  if constexpr (State::kEarlyWeight && (State::kHasFours || Slots::kAccess == Access::kVector)) {
    constexpr OperandType kType = State::kHasFours ? OperandType::kF32 : OperandType::kElement;
    fill_weights<Slots, Tile>(row, weight_type(bits) == kType, bias_type(bits) == kType);
  }
  if constexpr (State::kEarlyWeight && State::kHasFours) {
    using Weights = WeightFours<T, Tile, Slots::kV.has(Variant::kCrossFours)>;
    const Weights weights(weight_row(p, index, bits), weight_type(bits), place),
        biases(bias_row(p, index, bits), bias_type(bits), place);
#pragma unroll
    for (int i = 0; i < Slots::kV.fours_early; ++i) {
      weights.load(row.weight[i], i, reach);
      if constexpr (State::kEarlyBias) biases.load(row.bias[i], i, reach);
    }
  } else if constexpr (State::kEarlyWeight && Slots::kAccess == Access::kUnaligned) {
    load_unaligned_weights<Slots, Tile, Tile::kVectors>(
        row.weight, weight_type(bits), weight_row(p, index, bits), 0, place, reach, T::kOneWord);
    if constexpr (State::kEarlyBias) {
      load_unaligned_weights<Slots, Tile, Tile::kVectors>(
          row.bias, bias_type(bits), bias_row(p, index, bits), 0, place, reach, T::kMinusZeroWord);
    }
  } else if constexpr (State::kEarlyWeight) {
    load_aligned_weights<T, Tile, Tile::kVectors, true>(
        row.weight, weight_type(bits), weight_row(p, index, bits), 0, place, reach, T::kOneWord);
    if constexpr (State::kEarlyBias) {
      load_aligned_weights<T, Tile, Tile::kVectors, true>(
          row.bias, bias_type(bits), bias_row(p, index, bits), 0, place, reach, T::kMinusZeroWord);
    }
  }
}

}  // namespace fastnorm::cuda
