// Aligned rows of 16-bit elements: a block is one block of the row order and goes over its rows. A
// few lanes have a row in registers, with the sums of its columns. When a row is turned, the next
// one, its statistics and its angles are asked for, and are on their way meanwhile.
//
// Bytes: dy and x once, dx once; the sums of each block once, which fold.cuh reads.
#pragma once

#include "cuda/common/ptx/grid.cuh"
#include "cuda/norm_backward/general.cuh"
#include "cuda/norm_heads/held.cuh"
#include "cuda/norm_heads_backward/params.h"

namespace fastnorm::cuda {

template <uint32_t kWord>
struct HeldGradientSlots {
  static constexpr NormHeadsBackwardVariant kV = heads_backward_variant_of(kWord);
  using T = Element<kV.dtype>;
  static constexpr bool kAny = kV.any;
  // RMS is LAYER with a mean and a c2 of 0: x - 0 and e - 0 have the bits of x and e.
  static constexpr Stat kStat = kAny ? Stat::kLayer : Stat::kRms;
  static constexpr int kSums = kGradientSums<kStat>;
  static constexpr int kLanes = kV.threads, kVectors = kV.vectors, kRows = kV.rows;
  static constexpr int kPerVector = T::kPerVector;
  static constexpr int kBlockThreads = kV.block_threads();
  static constexpr int kWidth = kLanes * kVectors * kPerVector;  // columns
  static_assert(kLanes <= 32 && T::kBytes == 2);
};

// How a vector turns.
enum class TurnKind : uint8_t { kNone, kFirst, kSecond, kBeside };

struct VectorTurn {
  TurnKind kind;
  int pair;     // the first that turns
  int partner;  // kFirst, kSecond: the number of the other vector
};

// Of vector `number` of a row.
template <int kPerVector>
__device__ __forceinline__ VectorTurn turn_of(const HeldGradientParams& part,
                                              const HeadsShared& shared, int number) {
  const int at = number * kPerVector - part.rope_offset, apart = shared.half / kPerVector;
  if ((part.bits & kHeadsRope) == 0 || at < 0 || at >= 2 * shared.half)
    return {TurnKind::kNone, 0, 0};
  if ((part.bits & kHeadsInterleaved) != 0) return {TurnKind::kBeside, at / 2, 0};
  if (at < shared.half) return {TurnKind::kFirst, at, number + apart};
  return {TurnKind::kSecond, at - shared.half, number - apart};
}

// The angles of a vector: of kBeside the first half of both arrays.
template <class T>
__device__ __forceinline__ void load_turn(float (&cosine)[T::kPerVector],
                                          float (&sine)[T::kPerVector], const HeadsShared& shared,
                                          const HeldRows& rows, uint32_t head, uint32_t bits,
                                          TurnKind kind, int pair) {
  if (kind == TurnKind::kNone) return;
  if (kind != TurnKind::kBeside)
    return load_angles<T>(cosine, sine, shared, rows, head, bits, pair);
  float c[T::kPerVector / 2], s[T::kPerVector / 2];
  load_angles<T>(c, s, shared, rows, head, bits, pair);
#pragma unroll
  for (int i = 0; i < T::kPerVector / 2; ++i) cosine[i] = c[i], sine[i] = s[i];
}

// Turns a vector; `words`: the other one of its pairs.
template <class T>
__device__ __forceinline__ void turn_vector(float (&d)[T::kPerVector], const uint4& words,
                                            TurnKind kind, const float (&cosine)[T::kPerVector],
                                            const float (&sine)[T::kPerVector]) {
  if (kind == TurnKind::kBeside) {
#pragma unroll
    for (int i = 0; i < T::kPerVector; i += 2)
      turn<T>(d[i], d[i + 1], cosine[i / 2], sine[i / 2], false);
  } else if (kind != TurnKind::kNone) {
    float other[T::kPerVector];
    T::unpack(words, other);
#pragma unroll
    for (int i = 0; i < T::kPerVector; ++i) {
      const float s = kind == TurnKind::kFirst ? -sine[i] : sine[i];
      d[i] = __fmaf_rn(d[i], cosine[i], __fmul_rn(other[i], s));
    }
  }
}

// This thread's place, and how its vectors turn: alike for all rows of a part.
template <class S>
struct HeldGradientPlace {
  __device__ __forceinline__ HeldGradientPlace(const HeldGradientParams& part,
                                               const HeadsShared& shared)
      : lane(static_cast<int>(threadIdx.x) % S::kLanes), row(threadIdx.x / S::kLanes) {
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      const VectorTurn turn = turn_of<S::kPerVector>(part, shared, vector(v));
      kind[v] = turn.kind, pair[v] = turn.pair, partner[v] = turn.partner;
    }
  }
  __device__ __forceinline__ int vector(int v) const { return lane + v * S::kLanes; }

  const int lane;
  const uint32_t row;
  TurnKind kind[S::kVectors];
  int pair[S::kVectors];     // the first that turns
  int partner[S::kVectors];  // kFirst, kSecond: the number of the other vector
};

// A row as it is loaded.
template <class S>
struct HeldGradientRow {
  uint4 x[S::kVectors], dy[S::kVectors];
  Statistics statistics;
  float cosine[S::kVectors][S::kPerVector], sine[S::kVectors][S::kPerVector];
};

struct HeldRowNumber {
  uint32_t token, head;
};

__device__ __forceinline__ HeldRowNumber held_row(const HeldGradientParams& part, uint32_t group,
                                                  uint32_t row) {
  if (part.order.groups > 1) return {row, group};
  if (part.heads == 1) return {row, 0};
  const uint32_t token = quotient(row, part.by_heads);
  return {token, row - token * part.heads};
}

template <class S>
__device__ __forceinline__ void load_held_row(HeldGradientRow<S>& to,
                                              const HeldGradientParams& part,
                                              const HeadsShared& shared, HeldRowNumber at,
                                              bool live, int64_t of_table,
                                              const HeldGradientPlace<S>& place) {
  using T = typename S::T;
  const auto address = [&](const HeadsTensor& t) {
    return t.data + int64_t{at.token} * t.token_stride + int64_t{at.head} * t.head_stride;
  };
  const char *const x = address(part.x) + place.lane * kVectorBytes, *const dy =
                                                                         address(part.dy) +
                                                                         place.lane * kVectorBytes;
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    const bool wanted = live && place.vector(v) < part.vectors;
    to.x[v] = to.dy[v] = make_uint4(0, 0, 0, 0);
    ptx::ld_global_v4_if(to.x[v], x + v * (S::kLanes * kVectorBytes),
                         wanted && part.x.data != nullptr);
    ptx::ld_global_v4_if(to.dy[v], dy + v * (S::kLanes * kVectorBytes), wanted);
  }
  to.statistics = {0.0f, 0.0f};
  if ((part.bits & kHeadsAcross) != 0) {
    const uint4 values = ptx::ld_global_v4(part.token_values + int64_t{at.token} * kTokenFloats);
    to.statistics = {__uint_as_float(values.x), __uint_as_float(values.y)};
  } else if (part.rstd.data != nullptr) {
    to.statistics.rstd = ptx::ld_global_f32(address(part.rstd));
    if (S::kAny && part.mean.data != nullptr)
      to.statistics.mean = ptx::ld_global_f32(address(part.mean));
  }
  if ((part.bits & kHeadsRope) == 0) return;
  const HeldRows rows(shared, at.token, of_table);
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    load_turn<T>(to.cosine[v], to.sine[v], shared, rows, at.head, part.bits, place.kind[v],
                 place.pair[v]);
  }
}

// Vector `number` of this row, from the lane that has it. By all lanes of a warp.
template <class S>
__device__ __forceinline__ uint4 held_partner(const uint4 (&dy)[S::kVectors], int number) {
  uint4 result = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int u = 0; u < S::kVectors; ++u) {
    const int lane = number % S::kLanes;
    const auto show = [&](uint32_t word) {
      return __float_as_uint(__shfl_sync(~0u, __uint_as_float(word), lane, S::kLanes));
    };
    const uint4 shown = make_uint4(show(dy[u].x), show(dy[u].y), show(dy[u].z), show(dy[u].w));
    if (number / S::kLanes == u) result = shown;
  }
  return result;
}

// dv of the row's vectors: dy turned back.
template <class S>
__device__ __forceinline__ void turn_held_row(float (&d)[S::kVectors][S::kPerVector],
                                              const HeldGradientRow<S>& row, bool turns,
                                              const HeldGradientPlace<S>& place) {
  using T = typename S::T;
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    T::unpack(row.dy[v], d[v]);
    if (!turns) continue;
    const uint4 words = held_partner<S>(row.dy, place.partner[v]);
    turn_vector<T>(d[v], words, place.kind[v], row.cosine[v], row.sine[v]);
  }
}

// The forward's factors of vector `number` of a head's columns; without a weight 1.
template <class T>
__device__ __forceinline__ void take_gains(float (&f)[T::kPerVector],
                                           const HeldGradientParams& part, uint32_t head,
                                           int number, bool there) {
  const char* const row =
      part.weight == nullptr ? nullptr : part.weight + int64_t{head} * part.weight_stride;
  const AnyDtypeRow weight(const_cast<char*>(row), part.weight_dtype);
  AnyWords<T::kPerVector> words;
  load_any(words, weight, number * T::kPerVector, there && row != nullptr ? T::kPerVector : 0);
  unpack_any(f, words, weight.dtype);
#pragma unroll
  for (int i = 0; i < T::kPerVector; ++i) {
    f[i] = __fadd_rn(f[i], part.weight_offset);
    if (part.round_gain) f[i] = T::round(f[i]);
    if (row == nullptr) f[i] = 1.0f;
  }
}

// The forward's factors of a row's columns. With sums of dbias they do not fit in registers and are
// in shared memory.
template <class S>
struct HeldGains {
  __device__ __forceinline__ HeldGains(const HeldGradientParams& part, uint32_t head,
                                       const HeldGradientPlace<S>& place) {
    using T = typename S::T;
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      float f[S::kPerVector];
      take_gains<T>(f, part, head, place.vector(v), place.vector(v) < part.vectors);
      if constexpr (S::kAny) {
        if (place.row != 0) continue;
#pragma unroll
        for (int i = 0; i < S::kPerVector; ++i)
          shared().values[place.vector(v) * S::kPerVector + i] = f[i];
      } else {
#pragma unroll
        for (int i = 0; i < S::kPerVector; ++i) held[v][i] = f[i];
      }
    }
    if constexpr (S::kAny) __syncthreads();
  }

  __device__ __forceinline__ void take(float (&f)[S::kPerVector], int v,
                                       const HeldGradientPlace<S>& place) const {
    if constexpr (S::kAny) {
#pragma unroll
      for (int i = 0; i < S::kPerVector; i += 4) {
        const uint4 four = ptx::ld_shared_v4(shared().values + place.vector(v) * S::kPerVector + i);
        f[i] = __uint_as_float(four.x), f[i + 1] = __uint_as_float(four.y);
        f[i + 2] = __uint_as_float(four.z), f[i + 3] = __uint_as_float(four.w);
      }
    } else {
#pragma unroll
      for (int i = 0; i < S::kPerVector; ++i) f[i] = held[v][i];
    }
  }

 private:
  struct Buffer {
    alignas(16) float values[S::kWidth];
  };
  static __device__ __forceinline__ Buffer& shared() { return ptx::block_shared<Buffer>(); }

  float held[S::kAny ? 1 : S::kVectors][S::kPerVector];
};

// The lanes of a block folded, and stored.
template <class S>
__device__ __forceinline__ void store_held_sums(float* to,
                                                const float (&sums)[S::kVectors][S::kPerVector],
                                                const HeldGradientParams& part,
                                                const HeldGradientPlace<S>& place) {
  struct Buffer {
    alignas(16) float values[S::kRows * S::kWidth];
  };
  float* const values = ptx::block_shared<Buffer>().values;
  __syncthreads();  // the sums before have been stored
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < S::kPerVector; ++i)
      values[place.row * S::kWidth + place.vector(v) * S::kPerVector + i] = sums[v][i];
  }
  __syncthreads();
  fold_lanes_in_shared<S::kBlockThreads>(values, S::kRows, S::kWidth);
  if (place.row != 0) return;
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    if (place.vector(v) >= part.vectors) continue;
    const int column = place.vector(v) * S::kPerVector;
#pragma unroll
    for (int i = 0; i < S::kPerVector; i += 4) {
      const float* const f = values + column + i;
      ptx::st_global_v4(to + column + i, make_uint4(__float_as_uint(f[0]), __float_as_uint(f[1]),
                                                    __float_as_uint(f[2]), __float_as_uint(f[3])));
    }
  }
}

template <class S>
__device__ __forceinline__ void gradient_of_held_heads(const HeldHeadsBackwardParams& p) {
  using T = typename S::T;
  constexpr int kVectors = S::kVectors, kPerVector = S::kPerVector;
  int number_of_part = 0;
  while (number_of_part + 1 < p.count && blockIdx.x >= p.part[number_of_part + 1].order.first_block)
    ++number_of_part;
  const HeldGradientParams& part = p.part[number_of_part];
  const HeadsShared& shared = p.shared;
  const HeadsRowOrder& o = part.order;
  const uint32_t number = blockIdx.x - o.first_block, group = number / o.blocks,
                 block = number - group * o.blocks;
  const HeldGradientPlace<S> place(part, shared);
  const bool normalises = (part.bits & kHeadsNorm) != 0, across = (part.bits & kHeadsAcross) != 0,
             turns = (part.bits & kHeadsRope) != 0;
  const bool computes = normalises && !across && part.rstd.data == nullptr;
  ptx::grid_wait();

  float dweight[kVectors][kPerVector], dbias[S::kAny ? kVectors : 1][kPerVector];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) dweight[v][i] = dbias[S::kAny ? v : 0][i] = 0.0f;
  }
  const HeldGains<S> gains(part, o.groups > 1 ? group : 0, place);

  const auto is_live = [&](uint32_t row) { return row < o.shared_rows; };
  // Of rows that there are not, that of the group's first one.
  const auto number_of = [&](uint32_t row) {
    return held_row(part, group, is_live(row) ? row : 0);
  };
  const auto table_row_of = [&](uint32_t row) {
    return turns && shared.axes == 1 ? table_row(shared, 0, number_of(row).token) : int64_t{0};
  };
  uint32_t row = block * o.lanes + place.row;
  HeldGradientRow<S> next;
  load_held_row<S>(next, part, shared, number_of(row), is_live(row), table_row_of(row), place);
  int64_t next_table_row = table_row_of(row + o.step);
#pragma unroll 1
  for (uint32_t first = block * o.lanes; is_live(first); first += o.step, row += o.step) {
    const bool live = is_live(row);
    float d[kVectors][kPerVector];
    turn_held_row<S>(d, next, turns, place);
    uint4 x_words[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) x_words[v] = next.x[v];
    Statistics s = next.statistics;
    const uint32_t after = row + o.step;
    load_held_row<S>(next, part, shared, number_of(after), is_live(after), next_table_row, place);
    next_table_row = table_row_of(after + o.step);

    const HeldRowNumber at = number_of(row);
    char* const dx = part.dx.data + int64_t{at.token} * part.dx.token_stride +
                     int64_t{at.head} * part.dx.head_stride + place.lane * kVectorBytes;
    const auto put = [&](int v, const float(&f)[kPerVector]) {
      if (live && place.vector(v) < part.vectors)
        ptx::st_global_v4(dx + v * (S::kLanes * kVectorBytes), T::pack(f));
    };
    if (!normalises) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) put(v, d[v]);
      continue;
    }

    if (computes) {
      float q[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float f[kPerVector];
        T::unpack(x_words[v], f);
        q[v] = vector_sum_of_squares(f);
      }
      const float sum = fold_lanes<S::kLanes>(fold_registers(q));
      s.rstd = rstd_of(__fmul_rn(sum, part.inv_n), part, NoSteps());
    }
    float x[kVectors][kPerVector], e[kVectors][kPerVector], q[S::kSums][kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const bool there = place.vector(v) < part.vectors;
      float gain[kPerVector];
      gains.take(gain, v, place);
      T::unpack(x_words[v], x[v]);
#pragma unroll
      for (int i = 0; i < kPerVector; ++i) {
        x[v][i] = normalized<S::kStat>(x[v][i], s);
        e[v][i] = __fmul_rn(d[v][i], gain[i]);
      }
      if (live) {
        float t[kPerVector];
#pragma unroll
        for (int i = 0; i < kPerVector; ++i) t[i] = x[v][i];
        if (part.round_normalized) round_to<T>(t);
        accumulate<S::kStat>(dweight[v], dbias[S::kAny ? v : 0], d[v], t);
      }
      // A missing vector's share is +0, whatever the statistics are.
      q[0][v] = there ? vector_dot(e[v], x[v]) : 0.0f;
      if constexpr (S::kAny) q[S::kSums - 1][v] = there ? vector_sum(e[v]) : 0.0f;
    }
    if (part.dx.data != nullptr) {
      float c[S::kSums];
      if (across) {
        const uint4 of_token =
            ptx::ld_global_v4(part.token_values + int64_t{at.token} * kTokenFloats);
        c[0] = __uint_as_float(of_token.z);
        if constexpr (S::kAny) c[S::kSums - 1] = __uint_as_float(of_token.w);
      } else {
#pragma unroll
        for (int k = 0; k < S::kSums; ++k) {
          const float sum = fold_lanes<S::kLanes>(fold_registers(q[k]));
          c[k] = __fmul_rn(positive_zero(sum), part.inv_n);
        }
        if (S::kAny && (part.bits & kHeadsLayer) == 0) c[S::kSums - 1] = 0.0f;
      }
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float f[kPerVector];
#pragma unroll
        for (int i = 0; i < kPerVector; ++i)
          f[i] = __fmul_rn(centred<S::kStat>(x[v][i], e[v][i], c), s.rstd);
        put(v, f);
      }
    }
  }
  if (p.triggers) ptx::grid_trigger();

  const int64_t partial = (int64_t{group} * o.blocks + block) * o.partial_stride;
  if (o.partial[0] != nullptr) store_held_sums<S>(o.partial[0] + partial, dweight, part, place);
  if constexpr (S::kAny) {
    if (o.partial[1] != nullptr) store_held_sums<S>(o.partial[1] + partial, dbias, part, place);
  }
}

}  // namespace fastnorm::cuda
