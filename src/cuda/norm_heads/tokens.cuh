// Heads of a token as one row in registers, for statistics across heads: aligned rows of 16-bit
// elements. A group of a block's threads has a token of a part, so a part of few columns has
// several tokens in a block. Sums go over the vectors of that row; each is of one head. The columns
// of a pair meet in shared memory.
//
// Bytes: x once, and once what leaves.
#pragma once

#include "cuda/norm_heads/held.cuh"

namespace fastnorm::cuda {

template <uint32_t kWord>
struct TokenSlots {
  static constexpr NormHeadsVariant kV = heads_variant_of(kWord);
  using T = Element<kV.dtype>;
  static constexpr bool kHasScales = false, kMore = false;  // as held.cuh asks
  static constexpr int kThreads = kV.threads, kVectors = kV.vectors, kPerVector = T::kPerVector;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kHalf = kPerVector / 2;
  static_assert(T::kBytes == 2 && kThreads % 32 == 0 && power_of_two_up(kThreads) == kThreads);
};

// Values and angles are in two planes: the first half of each vector, and the second. Neighbouring
// threads then access neighbouring words.
template <class S>
struct TokenScratch {
  alignas(16) float values[2][S::kThreads * S::kVectors * S::kHalf];
  alignas(16) float c[2][kTokenPairs / 2];
  alignas(16) float s[2][kTokenPairs / 2];
  float fold[2][S::kThreads];
};

// This thread's place.
template <class S>
struct TokenPlace {
  __device__ __forceinline__ TokenPlace(const HeldPartParams& part, const HeadsShared& shared)
      : shift(part.thread_shift),
        thread(static_cast<int>(threadIdx.x) & ((1 << shift) - 1)),
        group(static_cast<int>(threadIdx.x) >> shift) {
    token = (blockIdx.x - part.first_block) * part.groups + static_cast<uint32_t>(group);
    exists = token < shared.tokens;
    if (!exists) token = 0;
  }
  // The number of the token's vector that register v holds.
  __device__ __forceinline__ int vector(int v) const { return thread + (v << shift); }
  __device__ __forceinline__ int threads() const { return 1 << shift; }
  // The block's slot for vector `number` of the token.
  __device__ __forceinline__ int slot(int number) const {
    return (group << shift) * S::kVectors + number;
  }

  const int shift, thread, group;
  uint32_t token;
  bool exists;
};

// Which vectors of a token this thread holds, and its part of x and of the weight.
template <class S>
struct TokenRow {
  __device__ __forceinline__ TokenRow(const HeldPartParams& part, const TokenPlace<S>& place) {
    using T = typename S::T;
    const auto all = part.heads * static_cast<uint32_t>(part.vectors);
    const char* const row = part.x.data + int64_t{place.token} * part.x.token_stride;
    const bool weighs =
        held_weight_type(part.bits) == OperandType::kElement && (part.bits & kHeadsStoresRows) != 0;
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      const auto number = static_cast<uint32_t>(place.vector(v));
      there[v] = place.exists && number < all;
      head[v] = !there[v] ? 0 : part.divisor.value == 1 ? number : quotient(number, part.divisor);
      vector[v] = there[v] ? static_cast<int>(number - head[v] * part.vectors) : 0;
      x[v] = make_uint4(0, 0, 0, 0);
      ptx::ld_global_v4_if(
          x[v], row + int64_t{head[v]} * part.x.head_stride + vector[v] * kVectorBytes, there[v]);
    }
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      weight[v] = make_uint4(T::kOneWord, T::kOneWord, T::kOneWord, T::kOneWord);
      ptx::ld_global_v4_if(weight[v],
                           held_weight(part.weight, part.weight_stride, head[v], part.heads) +
                               vector[v] * kVectorBytes,
                           weighs && there[v]);
    }
  }

  bool there[S::kVectors];
  uint32_t head[S::kVectors];
  int vector[S::kVectors];  // of the head's row
  uint4 x[S::kVectors], weight[S::kVectors];
};

// Folds by the canonical tree, in all threads of a token, from each thread's folds of its
// registers: warps, then lanes. A warp that a token lacks adds +0, as a missing vector does.
template <class S, int kSums>
__device__ __forceinline__ void fold_token(float (&q)[kSums], TokenScratch<S>& scratch,
                                           const TokenPlace<S>& place) {
#pragma unroll
  for (int k = 0; k < kSums; ++k) scratch.fold[k][threadIdx.x] = q[k];
  __syncthreads();
  const int first = (place.group << place.shift) + static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    float warps[S::kWarps];
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w)
      warps[w] = w * 32 < place.threads() ? scratch.fold[k][first + w * 32] : 0.0f;
    q[k] = fold_lanes<32>(fold_registers(warps));
  }
}

// One statistic of a token. By all threads of a block.
template <class S>
__device__ __forceinline__ HeldStatistics token_statistics(const TokenRow<S>& row,
                                                           const HeldPartParams& part,
                                                           const TokenPlace<S>& place, bool stores,
                                                           TokenScratch<S>& scratch) {
  using T = typename S::T;
  HeldStatistics result = {0.0f, 0.0f};
  if (take_statistics(&result, part, place.token, 0)) return result;
  const Steps<T> rounding = held_steps<T>(part.bits);
  float squared;
  if ((part.bits & kHeadsLayer) != 0) {
    const float first = load_element<T>(part.x.data + int64_t{place.token} * part.x.token_stride);
    float total[2];
    const LayerStatistics statistics =
        layer_statistics(first, part, rounding, [&](int pass, float from, bool steps) {
          const Moments folded = moments_of<T>(
              row.x, from, steps, [&](int v) { return row.there[v] ? S::kPerVector : 0; });
          total[0] = folded.sum, total[1] = folded.squares;
          if (pass > 0) __syncthreads();  // the first pass's sums have been read
          fold_token<S>(total, scratch, place);
          return Moments{total[0], total[1]};
        });
    result = {statistics.mean(), statistics.rstd(part, rounding)};
    squared = squares_about_mean({total[0], total[1]}, part.inv_n, rounding.every_step);
  } else {
    float total[1] = {squares_of<T>(row.x, rounding.every_step)};
    fold_token<S>(total, scratch, place);
    squared = total[0];
    result.rstd = rstd_of(__fmul_rn(squared, part.inv_n), part, rounding);
  }
  if (stores && place.thread == 0)
    put_statistics<true>(part, place.token, 0, result.mean, result.rstd, squared);
  return result;
}

// Four of the values that a slot's vector has in a plane.
__device__ __forceinline__ void put_four(float* plane, int slot, const float* f) {
  *reinterpret_cast<uint4*>(plane + slot * 4) = as_words(f);
}
__device__ __forceinline__ void take_four(float* f, const float* plane, int slot) {
  const uint4 v = *reinterpret_cast<const uint4*>(plane + slot * 4);
  as_floats(f, v);
}

// The angles of a group's token, to shared memory: as vectors, from slot `first` on.
template <class S>
__device__ __forceinline__ void share_token_angles(TokenScratch<S>& scratch,
                                                   const HeldPartParams& part,
                                                   const HeadsShared& shared,
                                                   const TokenPlace<S>& place, bool padding,
                                                   int first) {
  constexpr int kFour = S::kHalf;
  if (place.thread * kFour >= shared.half) return;
  const HeldRows rows(shared, place.token, padding);
#pragma unroll 1
  for (int j = place.thread * kFour; j < shared.half; j += place.threads() * kFour) {
    float c[kFour], s[kFour];
    load_angles<typename S::T>(c, s, shared, rows, 0, part.bits, j);
    const int plane = j / kFour % 2, slot = first + j / S::kPerVector;
    put_four(scratch.c[plane], slot, c);
    put_four(scratch.s[plane], slot, s);
  }
}

// Rotates vector `own` of the columns that rotate, which are `half` vectors in each half. `slot`:
// where vector 0 of these columns is in shared memory; `first`: where the token's angles are.
template <class S>
__device__ __forceinline__ void rotate_token_vector(float (&z)[S::kPerVector],
                                                    const TokenScratch<S>& scratch, int slot,
                                                    int first, int own, int half, uint32_t bits) {
  using T = typename S::T;
  constexpr int kPer = S::kPerVector, kFour = S::kHalf;
  const bool every_step = (bits & kHeadsRopeEveryStep) != 0;
  if ((bits & kHeadsInterleaved) != 0) {
    float c[kFour], s[kFour];
    take_four(c, scratch.c[own % 2], first + own / 2);
    take_four(s, scratch.s[own % 2], first + own / 2);
#pragma unroll
    for (int i = 0; i < kFour; ++i) rotate_pair<T>(z[2 * i], z[2 * i + 1], c[i], s[i], every_step);
    return;
  }
  const bool is_first = own < half;
  const int partner = is_first ? own + half : own - half, pair = is_first ? own : own - half;
#pragma unroll
  for (int plane = 0; plane < 2; ++plane) {
    float other[kFour], c[kFour], s[kFour];
    take_four(other, scratch.values[plane], slot + partner);
    take_four(c, scratch.c[plane], first + pair);
    take_four(s, scratch.s[plane], first + pair);
#pragma unroll
    for (int i = 0; i < kFour; ++i) {
      float& mine = z[plane * kFour + i];
      float v1 = is_first ? mine : other[i], v2 = is_first ? other[i] : mine;
      rotate_pair<T>(v1, v2, c[i], s[i], every_step);
      mine = is_first ? v1 : v2;
    }
  }
  static_assert(kPer == 2 * kFour && kFour == 4);
}

template <class S>
__device__ __forceinline__ void run_held_tokens(const HeldHeadsParams& p) {
  constexpr int kPer = S::kPerVector;
  const HeldPartParams& part = part_of_block(p);
  const HeadsShared& shared = p.shared;
  auto& scratch = ptx::block_shared<TokenScratch<S>>();
  const TokenPlace<S> place(part, shared);
  const uint32_t bits = part.bits;
  const bool stores_rows = (bits & kHeadsStoresRows) != 0,
             rope = stores_rows && (bits & kHeadsRope) != 0,
             interleaved = (bits & kHeadsInterleaved) != 0;
  const int angles = place.group * ((shared.half + kPer - 1) / kPer);  // slot of the first ones

  follow_stream(p.triggers);
  const TokenRow<S> row(part, place);
  const HeldSlot slot(shared, place);
  const HeldCache cache = cache_of<S>(part, slot);
  const HeldFactors factors = held_factors<S>(part);
  if (rope) share_token_angles<S>(scratch, part, shared, place, slot.padding, angles);
  HeldStatistics statistics = {0.0f, 1.0f};
  if ((bits & kHeadsNorm) != 0)
    statistics = token_statistics<S>(row, part, place, slot.stores, scratch);
  if (!stores_rows) return;

  // A head's columns that rotate, in vectors.
  const int first = part.rope_offset / kPer, half = shared.half / kPer;
  const auto count = static_cast<uint32_t>(rope ? 2 * shared.half / kPer : 0);
  float z[S::kVectors][kPer];
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    any_values<S>(z[v], row.x[v], row.weight[v], statistics, part, row.head[v], row.vector[v],
                  row.there[v]);
    if (interleaved || !row.there[v] || static_cast<uint32_t>(row.vector[v] - first) >= count)
      continue;
    const int at = place.slot(place.vector(v));
    put_four(scratch.values[0], at, z[v]);
    put_four(scratch.values[1], at, z[v] + S::kHalf);
  }
  if (rope) __syncthreads();
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    if (!row.there[v]) continue;
    const int own = row.vector[v] - first;
    if (static_cast<uint32_t>(own) < count)
      rotate_token_vector<S>(z[v], scratch, place.slot(place.vector(v)) - own, angles, own, half,
                             bits);
    const HeldOut out = {
        part.y.data == nullptr || !slot.stores ? nullptr
                                               : address_of(part.y, place.token, row.head[v]),
        cache.row == nullptr ? nullptr : cache.row + int64_t{row.head[v]} * part.cache.head_stride,
        nullptr};
    put_result<S>(part, out, z[v], row.vector[v], factors);
  }
}

}  // namespace fastnorm::cuda
