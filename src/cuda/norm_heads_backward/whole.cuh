// Aligned 16-bit heads that share a statistic, in one launch: a few tokens at a time are in the
// registers of a block, all their heads side by side. A block has lanes of one block of the row
// order of each head. It takes the lanes one after another, each with all its tokens, so that
// registers have the sums of one. Lanes come in the order of their reversed bits. So two neighbours
// fold, then two such pairs, as phi() asks, and few sums wait in shared memory.
//
// Bytes: dy and x once, dx once; the sums of each block once, which fold.cuh reads.
#pragma once

#include <bit>

#include "cuda/norm_heads_backward/held.cuh"

namespace fastnorm::cuda {

template <uint32_t kWord>
struct WholeSlots {
  static constexpr NormHeadsBackwardVariant kV = heads_backward_variant_of(kWord);
  using T = Element<kV.dtype>;
  static constexpr bool kAny = false;
  static constexpr Stat kStat = Stat::kRms;
  static constexpr int kSums = 1, kVectors = 1, kPerVector = T::kPerVector;
  static constexpr int kBlockThreads = kV.block_threads(), kLanes = kBlockThreads;
  static_assert(kV.vectors == kVectors && T::kBytes == 2);
};

// This thread's place: a block has several tokens if they are short.
template <class S>
struct WholePlace : HeldVectors<S> {
  static constexpr uint32_t kThreads = S::kBlockThreads;

  __device__ __forceinline__ WholePlace(const HeldGradientParams& part, const HeadsShared& shared)
      : threads(part.token_threads < kThreads ? part.token_threads : kThreads),
        tokens(part.token_threads < kThreads ? std::bit_floor(kThreads) / part.token_threads : 1),
        token(threadIdx.x / threads) {
    const auto vectors = static_cast<uint32_t>(part.vectors);
    const uint32_t number = threadIdx.x - token * threads;
    this->there[0] = token < tokens && number < part.heads * vectors;
    head = !this->there[0]              ? 0
           : part.by_vectors.value == 1 ? number
                                        : quotient(number, part.by_vectors);
    vector = this->there[0] ? static_cast<int>(number - head * vectors) : 0;
    this->offset = static_cast<uint32_t>(vector) * kVectorBytes;
    const VectorRope rope = rope_of<S::kPerVector>(part, shared, vector);
    const int apart = this->there[0] ? rope.partner - vector : 0;
    this->set(0, rope, static_cast<int>(threadIdx.x) + apart, part, shared);
  }

  const uint32_t threads;        // of a token
  const uint32_t tokens, token;  // of the block, a power of two; this thread's
  uint32_t head;
  int vector;
};

// Goes over a block's tokens: lanes in the order of their reversed bits.
struct WholeCursor {
  uint32_t lane, round;

  // `count`: lanes that come one after another; a power of two.
  __device__ __forceinline__ void advance(uint32_t rounds, uint32_t count) {
    if (++round < rounds) return;
    round = 0;
    uint32_t bit = count / 2;
    for (; bit != 0 && (lane & bit) != 0; bit /= 2) lane ^= bit;
    lane |= bit;
  }
};

// The sum of a token in its threads.
template <class S>
struct WholeFold {
  static constexpr int kWarps = S::kBlockThreads / 32;

  __device__ __forceinline__ float operator()(float q, const WholePlace<S>& place) {
    auto& values = ptx::block_shared<Buffer>().values[set];
    set ^= 1;
    values[threadIdx.x] = q;
    __syncthreads();
    const float* const first = values + place.token * place.threads + threadIdx.x % 32;
    const uint32_t there = place.token < place.tokens ? place.threads : 0;
    float w[kWarps];
#pragma unroll
    for (uint32_t i = 0; i < kWarps; ++i) {
      w[i] = 0.0f;
      if (i * 32 < there) w[i] = first[i * 32];
    }
    return fold_lanes<32>(fold_registers(w));
  }

 private:
  // Two sets take turns, so that a fold needs no barrier after its last read.
  struct Buffer {
    float values[2][S::kBlockThreads];
  };
  int set = 0;
};

// Sums of lanes that wait for others, each in the thread that has them.
template <class S>
struct WholeStack {
  static constexpr int kSlot = S::kBlockThreads * kVectorBytes;

  // Lane `number` in the order in which they come: folds it with all that wait for it.
  __device__ __forceinline__ void fold(float (&sums)[S::kPerVector], uint32_t number,
                                       bool last) const {
    char* slot = ptx::launch_shared() + HeldRing<S>::kBytes + threadIdx.x * kVectorBytes;
    for (; (number & 1) != 0; number /= 2, slot += 2 * kSlot) {
#pragma unroll
      for (int i = 0; i < S::kPerVector; i += 4) {
        const uint4 words = ptx::ld_shared_v4(slot + i / 4 * kSlot);
        sums[i] = __fadd_rn(__uint_as_float(words.x), sums[i]);
        sums[i + 1] = __fadd_rn(__uint_as_float(words.y), sums[i + 1]);
        sums[i + 2] = __fadd_rn(__uint_as_float(words.z), sums[i + 2]);
        sums[i + 3] = __fadd_rn(__uint_as_float(words.w), sums[i + 3]);
      }
    }
    if (last) return;
#pragma unroll
    for (int i = 0; i < S::kPerVector; i += 4) {
      *reinterpret_cast<uint4*>(slot + i / 4 * kSlot) = as_words(sums + i);
      sums[i] = sums[i + 1] = sums[i + 2] = sums[i + 3] = 0.0f;
    }
  }
};

// The tokens of a block folded, and stored.
template <class S>
__device__ __forceinline__ void store_whole_sums(const HeldGradientParams& part, uint32_t block,
                                                 float (&sums)[S::kPerVector],
                                                 const WholePlace<S>& place) {
  const HeadsRowOrder& o = part.order;
  if (place.tokens > 1) {
    auto* const values = reinterpret_cast<float*>(ptx::launch_shared());
    float* const own = values + threadIdx.x * S::kPerVector;
    __syncthreads();  // the ring has been read
#pragma unroll
    for (int i = 0; i < S::kPerVector; ++i) own[i] = sums[i];
    __syncthreads();
    fold_lanes_in_shared<S::kBlockThreads>(values, place.tokens,
                                           static_cast<int>(place.threads) * S::kPerVector);
#pragma unroll
    for (int i = 0; i < S::kPerVector; ++i) sums[i] = own[i];
  }
  if (place.token != 0 || !place.there[0]) return;
  float* const to = o.partial[0] + (int64_t{place.head} * o.blocks + block) * o.partial_stride +
                    place.vector * S::kPerVector;
#pragma unroll
  for (int i = 0; i < S::kPerVector; i += 4) ptx::st_global_v4(to + i, as_words(sums + i));
}

// From d, which is dv of this thread's vector, to dx. `given`: the call gives `rstd`. Adds the
// row to dweight if it is live.
template <class S>
__device__ __forceinline__ void gradient_of_whole_row(
    float (&d)[S::kPerVector], float (&dweight)[S::kPerVector], const uint4& x_raw, float rstd,
    bool given, bool live, const float (&gain)[S::kPerVector], WholeFold<S>& fold,
    const HeldGradientParams& part, const WholePlace<S>& place) {
  using T = typename S::T;
  constexpr int kPerVector = S::kPerVector;
  float x[kPerVector], e[kPerVector];
  T::unpack(x_raw, x);
  if (!given) {
    const float sum = fold(place.there[0] ? vector_sum_of_squares(x) : 0.0f, place);
    rstd = rstd_of(__fmul_rn(sum, part.inv_n), part, NoSteps());
  }
#pragma unroll
  for (int i = 0; i < kPerVector; ++i) {
    x[i] = normalized<S::kStat>(x[i], {0.0f, rstd});
    e[i] = __fmul_rn(d[i], gain[i]);
  }
  if (live) {
    float t[kPerVector];
    copy_values(t, x);
    if (__builtin_expect(part.round_normalized, 0)) round_to<T>(t);
    accumulate<S::kStat>(dweight, dweight, d, t);
  }
  if (part.dx.data == nullptr) return;
  const float sum = fold(place.there[0] ? vector_dot(e, x) : 0.0f, place);
  const float c[1] = {__fmul_rn(positive_zero(sum), part.inv_n)};
#pragma unroll
  for (int i = 0; i < kPerVector; ++i) d[i] = __fmul_rn(centred<S::kStat>(x[i], e[i], c), rstd);
}

template <class S>
__device__ __forceinline__ void gradient_of_whole_tokens(const HeldHeadsBackwardParams& p) {
  using T = typename S::T;
  constexpr int kPerVector = S::kPerVector;
  const HeldGradientParams& part = gradient_part_of_block(p);
  const HeadsShared& shared = p.shared;
  const HeadsRowOrder& o = part.order;
  const uint32_t block = blockIdx.x - o.first_block;
  const WholePlace<S> place(part, shared);
  const HeldRope<S> rope(part, shared);
  const bool normalises = (part.bits & kHeadsNorm) != 0;
  const bool given = normalises && part.rstd.data != nullptr;
  ptx::grid_wait();

  const HeldRing<S> ring;
  const uint32_t block_row = first_row_of(o, block), first = block_row + block % o.split,
                 rounds = (part.tokens - block_row + o.step - 1) / o.step,
                 count = o.lanes / place.tokens, steps = rounds * count;
  const auto row_of = [&](const WholeCursor& at) -> HeadsLaneRow {
    return {first + (at.lane * place.tokens + place.token) * o.split + at.round * o.step,
            place.head};
  };
  float next_rstd = 0.0f;
  uint32_t next_table_row = 0;
  const auto load_values = [&](const HeadsLaneRow& row) {
    const uint32_t token = row.is_live(part) ? row.token : 0;
    if (given) next_rstd = ptx::ld_global_f32(held_address(part.rstd, token, 0));
    if (rope.has_one_row) next_table_row = held_table_row(shared, 0, token);
  };
  WholeCursor now = {0, 0}, ahead = now;
  load_values(row_of(now));
  const auto copy_ahead = [&](int stage, uint32_t step) {
    HeadsLaneRow row = row_of(ahead);
    if (step >= steps) row.token = part.tokens;  // there is none
    ring.copy(stage, part, row, place);
    ahead.advance(rounds, count);
  };
#pragma unroll 1
  for (uint32_t step = 0; step + 1 < kHeadsRingStages; ++step)
    copy_ahead(static_cast<int>(step) * ring.kStageStep, step);
  float gain[kPerVector], dweight[kPerVector];
  load_gains(gain, part, weight_row<T>(part, place.head), place.vector,
             place.there[0] ? T::kPerVector : 0);
#pragma unroll
  for (int i = 0; i < kPerVector; ++i) dweight[i] = 0.0f;
  WholeFold<S> fold;
  int stage = 0;
  uint32_t lanes_done = 0;

#pragma unroll 1
  for (uint32_t step = 0; step < steps; ++step) {
    const HeadsLaneRow at = row_of(now);
    const bool live = at.is_live(part);
    HeldAngles<T> angles;
    const uint32_t table_row = next_table_row;
    if (rope.any && place.rotates[0])
      angles.load(shared, table_row, at.head, place.angles(0), rope.interleaved);
    const float rstd = next_rstd;
    now.advance(rounds, count);
    load_values(row_of(now));
    ptx::copy_async_wait_group<kHeadsRingStages - 2>();
    __syncwarp();
    copy_ahead(ring.before(stage), step + kHeadsRingStages - 1);

    float d[kPerVector];
    if (rope.any && place.rotates[0]) {
      rotate_held_vector<S>(d, 0, stage, ring, angles, table_row, at, rope, part, shared, place);
    } else {
      T::unpack(ring.dy(stage, 0), d);
    }
    if (normalises) {
      gradient_of_whole_row<S>(d, dweight, ring.x(stage, 0), rstd, given, live, gain, fold, part,
                               place);
    }
    if (part.dx.data != nullptr && live & place.there[0])
      ptx::st_global_v4(held_address(part.dx, at.token, at.head) + place.offset, T::pack(d));
    stage = ring.after(stage);
    if (now.round == 0 && o.partial[0] != nullptr) {
      WholeStack<S>().fold(dweight, lanes_done, lanes_done + 1 == count);
      ++lanes_done;
    }
  }
  ptx::copy_async_wait();
  if (p.triggers) ptx::grid_trigger();
  if (o.partial[0] != nullptr) store_whole_sums<S>(part, block, dweight, place);
}

}  // namespace fastnorm::cuda
