// Aligned rows of 16-bit elements: a block is one block of the row order and goes over its rows. A
// few lanes have a row in registers, with the sums of its columns. The next rows are on their way
// to a ring in shared memory. A thread copies its own vectors, and reads those of its warp alone,
// so no barrier of the block is needed. A row's angles are asked for when its turn comes, as all
// heads of a token share them.
//
// Bytes: dy and x once, dx once; the sums of each block once, which fold.cuh reads. The sums of a
// part with one block are its gradients.
#pragma once

#include "cuda/common/ptx/grid.cuh"
#include "cuda/common/ptx/shared.cuh"
#include "cuda/norm_backward/general.cuh"
#include "cuda/norm_heads/held.cuh"
#include "cuda/norm_heads_backward/fold.cuh"
#include "cuda/norm_heads_backward/gains.cuh"

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

// How a vector rotates.
enum class RopeKind : uint8_t { kNone, kFirst, kSecond, kInterleaved };

struct VectorRope {
  RopeKind kind;
  int pair;     // the first that rotates
  int partner;  // kFirst, kSecond: the number of the other vector
};

// How vector `number` of a row rotates.
template <int kPerVector>
__device__ __forceinline__ VectorRope rope_of(const HeldGradientParams& part,
                                              const HeadsShared& shared, int number) {
  const int at = number * kPerVector - part.rope_offset, apart = shared.half / kPerVector;
  if ((part.bits & kHeadsRope) == 0 || at < 0 || at >= 2 * shared.half)
    return {RopeKind::kNone, 0, 0};
  if ((part.bits & kHeadsInterleaved) != 0) return {RopeKind::kInterleaved, at / 2, 0};
  if (at < shared.half) return {RopeKind::kFirst, at, number + apart};
  return {RopeKind::kSecond, at - shared.half, number - apart};
}

// The angles of a vector: of kInterleaved the first half of both arrays.
template <class T>
__device__ __forceinline__ void load_rope(float (&cosine)[T::kPerVector],
                                          float (&sine)[T::kPerVector], const HeadsShared& shared,
                                          const HeldRows& rows, uint32_t head, uint32_t bits,
                                          RopeKind kind, int pair) {
  if (kind == RopeKind::kNone) return;
  if (kind != RopeKind::kInterleaved)
    return load_angles<T>(cosine, sine, shared, rows, head, bits, pair);
  float c[T::kPerVector / 2], s[T::kPerVector / 2];
  load_angles<T>(c, s, shared, rows, head, bits, pair);
#pragma unroll
  for (int i = 0; i < T::kPerVector / 2; ++i) cosine[i] = c[i], sine[i] = s[i];
}

// Rotates a vector; `words`: the other one of its pairs.
template <class T>
__device__ __forceinline__ void rotate_vector(float (&d)[T::kPerVector], const uint4& words,
                                              RopeKind kind, const float (&cosine)[T::kPerVector],
                                              const float (&sine)[T::kPerVector]) {
  if (kind == RopeKind::kInterleaved) {
#pragma unroll
    for (int i = 0; i < T::kPerVector; i += 2)
      rotate_pair<T>(d[i], d[i + 1], cosine[i / 2], sine[i / 2], false);
  } else if (kind != RopeKind::kNone) {
    float other[T::kPerVector];
    T::unpack(words, other);
#pragma unroll
    for (int i = 0; i < T::kPerVector; ++i) {
      const float s = kind == RopeKind::kFirst ? -sine[i] : sine[i];
      d[i] = __fmaf_rn(d[i], cosine[i], __fmul_rn(other[i], s));
    }
  }
}

// What a row of a token and a head has in a tensor.
__device__ __forceinline__ char* held_address(const HeldTensor& t, uint32_t token, uint32_t head) {
  return ptx::advance(ptx::advance(t.data, token, t.token_stride), head, t.head_stride);
}

// A row of a lane of the row order.
struct HeadsLaneRow {
  // A later row of the lane.
  __device__ __forceinline__ HeadsLaneRow after(const HeldGradientParams& part,
                                                const HeldStep& step) const {
    HeadsLaneRow row = {token + step.tokens, head + step.heads};
    if (row.head >= part.heads) row.head -= part.heads, ++row.token;
    return row;
  }
  __device__ __forceinline__ bool is_live(const HeldGradientParams& part) const {
    return token < part.tokens;
  }
  uint32_t token, head;
};

__device__ __forceinline__ HeadsLaneRow lane_row(const HeldGradientParams& part, uint32_t group,
                                                 uint32_t row) {
  if (part.order.groups > 1) return {row, group};
  if (part.heads == 1) return {row, 0};
  const uint32_t token = quotient(row, part.by_heads);
  return {token, row - token * part.heads};
}

// This thread's vectors of a row, and how they rotate: alike for all rows of a part.
template <class S>
struct HeldVectors {
  static_assert(S::kVectors * S::kBlockThreads * kVectorBytes <= 1 << 16);

  // In a row of a table: the first pair's angle, in bytes.
  __device__ __forceinline__ uint32_t angles(int v) const { return words[v] >> 16; }
  // In a tensor of a stage: the other vector of its pairs, in bytes.
  __device__ __forceinline__ uint32_t partner(int v) const { return words[v] & 0xfff0; }
  // Whether that one's signs change.
  __device__ __forceinline__ bool flips(int v) const { return (words[v] & 1) != 0; }

  // `slot`: the other vector's place.
  __device__ __forceinline__ void set(int v, const VectorRope& rope, int slot,
                                      const HeldGradientParams& part, const HeadsShared& shared) {
    const bool inverse = (part.bits & kHeadsInverse) != 0;
    const bool flips = (rope.kind == RopeKind::kFirst) != inverse;
    rotates[v] = rope.kind != RopeKind::kNone;
    words[v] = static_cast<uint32_t>(rope.pair * (shared.table_f32 ? 4 : S::T::kBytes)) << 16 |
               static_cast<uint32_t>(slot * kVectorBytes) | (flips ? 1u : 0u);
  }

  uint32_t offset;  // of the first vector in its row, in bytes
  bool there[S::kVectors], rotates[S::kVectors];
  uint32_t words[S::kVectors];  // the three above in one register
};

// This thread's place.
template <class S>
struct HeldGradientPlace : HeldVectors<S> {
  __device__ __forceinline__ HeldGradientPlace(const HeldGradientParams& part,
                                               const HeadsShared& shared)
      : row(threadIdx.x / S::kLanes) {
    this->offset = threadIdx.x % S::kLanes * kVectorBytes;
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      const VectorRope rope = rope_of<S::kPerVector>(part, shared, vector(v));
      const int thread = static_cast<int>(row) * S::kLanes + rope.partner % S::kLanes;
      this->there[v] = vector(v) < part.vectors;
      this->set(v, rope, rope.partner / S::kLanes * S::kBlockThreads + thread, part, shared);
    }
  }
  __device__ __forceinline__ int vector(int v) const {
    return static_cast<int>(this->offset / kVectorBytes) + v * S::kLanes;
  }

  const uint32_t row;
};

// A ring of rows in shared memory: [stage][x, dy][vector][thread].
template <class S>
struct HeldRing {
  static constexpr int kVectorStep = S::kBlockThreads * kVectorBytes,
                       kTensorStep = S::kVectors * kVectorStep, kStageStep = 2 * kTensorStep,
                       kBytes = kHeadsRingStages * kStageStep;
  static_assert(kBytes == heads_ring_bytes(S::kV));

  static __device__ __forceinline__ int after(int stage) {
    return stage + kStageStep == kBytes ? 0 : stage + kStageStep;
  }
  static __device__ __forceinline__ int before(int stage) {
    return (stage == 0 ? kBytes : stage) - kStageStep;
  }
  __device__ __forceinline__ void copy(int stage, const HeldGradientParams& part,
                                       const HeadsLaneRow& at, const HeldVectors<S>& place) const {
    const bool live = at.is_live(part);
    char* const to = ptx::launch_shared() + stage + threadIdx.x * kVectorBytes;
    const auto put = [&](char* slot, const HeldTensor& t) {
      const char* const row = held_address(t, at.token, at.head) + place.offset;
#pragma unroll
      for (int v = 0; v < S::kVectors; ++v) {
        ptx::copy_async_past_l1_if(slot + v * kVectorStep, row + v * (S::kLanes * kVectorBytes),
                                   live & place.there[v]);
      }
    };
    if (part.x.data != nullptr) put(to, part.x);
    put(to + kTensorStep, part.dy);
    ptx::copy_async_commit();
  }
  // All stages but one are on their way.
  __device__ __forceinline__ void begin(const HeldGradientParams& part, HeadsLaneRow row,
                                        const HeldVectors<S>& place) const {
#pragma unroll 1
    for (int stage = 0; stage + kStageStep < kBytes; stage += kStageStep) {
      copy(stage, part, row, place);
      row = row.after(part, part.step);
    }
  }
  __device__ __forceinline__ uint4 x(int stage, int v) const {
    return ptx::ld_shared_v4(ptx::launch_shared() + stage + v * kVectorStep +
                             threadIdx.x * kVectorBytes);
  }
  __device__ __forceinline__ uint4 dy(int stage, int v) const {
    return ptx::ld_shared_v4(ptx::launch_shared() + stage + kTensorStep + v * kVectorStep +
                             threadIdx.x * kVectorBytes);
  }
  __device__ __forceinline__ uint4 partner(int stage, int v, const HeldVectors<S>& place) const {
    uint4 words = ptx::ld_shared_v4(ptx::launch_shared() + stage + kTensorStep + place.partner(v));
    const uint32_t signs = place.flips(v) ? 0x80008000u : 0u;
    words.x ^= signs, words.y ^= signs, words.z ^= signs, words.w ^= signs;
    return words;
  }
};

// How the rows of a part rotate. Tables have fewer than 2^31 rows, and narrow strides.
template <class S>
struct HeldRope {
  __device__ __forceinline__ HeldRope(const HeldGradientParams& part, const HeadsShared& shared)
      : any((part.bits & kHeadsRope) != 0),
        interleaved((part.bits & kHeadsInterleaved) != 0),
        has_one_row(any && (!S::kAny || shared.axes == 1)),
        loads_words(has_one_row && (!S::kAny || (shared.table_aligned &&
                                                 !(interleaved && shared.table_repeats)))) {}

  const bool any, interleaved, has_one_row;
  const bool loads_words;  // all angles of a vector at once: each kind but kAny has no others
};

__device__ __forceinline__ uint32_t held_table_row(const HeadsShared& s, int axis, uint32_t token) {
  if (s.positions.data == nullptr) return token;
  return ptx::ld_global_u32(s.positions.data + axis * s.positions.axis_stride +
                            int64_t{token} * s.positions.stride);
}

__device__ __forceinline__ const char* held_table_address(const HeadsTable& table, uint32_t row,
                                                          uint32_t head) {
  return ptx::advance(
      ptx::advance(const_cast<char*>(table.data), row, static_cast<int32_t>(table.row_stride)),
      head, static_cast<int32_t>(table.head_stride));
}

// What a row has besides its elements.
template <class S>
struct HeldRowValues {
  __device__ __forceinline__ void load(const HeldGradientParams& part, const HeadsShared& shared,
                                       const HeadsLaneRow& at, const HeldRope<S>& rope) {
    // Rows that do not exist take the values of a token that does.
    const uint32_t token = at.is_live(part) ? at.token : 0;
    if ((part.bits & kHeadsAcross) != 0) {
      const uint4 values = ptx::ld_global_v4(part.token_values + int64_t{token} * kTokenFloats);
      statistics = {__uint_as_float(values.x), __uint_as_float(values.y)};
    } else if (part.rstd.data != nullptr) {
      statistics.rstd = ptx::ld_global_f32(held_address(part.rstd, token, at.head));
      if (S::kAny && part.mean.data != nullptr)
        statistics.mean = ptx::ld_global_f32(held_address(part.mean, token, at.head));
    }
    if (rope.has_one_row) table_row = held_table_row(shared, 0, token);
  }

  Statistics statistics = {0.0f, 0.0f};
  uint32_t table_row = 0;  // where there is one axis
};

// The cosines and sines of a vector's pairs. With pairs side by side there are half as many.
template <class T>
struct HeldAngles {
  // All at once. Those of f32 may still be on their way.
  __device__ __forceinline__ void load(const HeadsShared& shared, uint32_t row, uint32_t head,
                                       uint32_t offset, bool interleaved) {
    const char *const c = held_table_address(shared.cos, row, head) + offset,
                      *const s = held_table_address(shared.sin, row, head) + offset;
    if (shared.table_f32) {
#pragma unroll
      for (int i = 0; i < T::kPerVector; i += 4) {
        if (i > 0 && interleaved) break;
        as_floats(cosine + i, ptx::ld_global_v4(c + i * 4));
        as_floats(sine + i, ptx::ld_global_v4(s + i * 4));
      }
    } else if (interleaved) {
      const uint2 of_c = ptx::ld_global_v2(c), of_s = ptx::ld_global_v2(s);
      T::unpack_word(of_c.x, cosine), T::unpack_word(of_c.y, cosine + 2);
      T::unpack_word(of_s.x, sine), T::unpack_word(of_s.y, sine + 2);
    } else {
      const uint4 of_c = ptx::ld_global_v4(c), of_s = ptx::ld_global_v4(s);
      T::unpack(of_c, cosine), T::unpack(of_s, sine);
    }
  }

  float cosine[T::kPerVector], sine[T::kPerVector];
};

// The angles of a row whose vectors load theirs at once.
template <class S>
__device__ __forceinline__ void load_held_angles(HeldAngles<typename S::T> (&angles)[S::kVectors],
                                                 uint32_t table_row, uint32_t head,
                                                 const HeldRope<S>& rope, const HeadsShared& shared,
                                                 const HeldVectors<S>& place) {
  if (!rope.loads_words) return;
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    if (place.rotates[v])
      angles[v].load(shared, table_row, head, place.angles(v), rope.interleaved);
  }
}

// Vector v rotated back; `loaded`: its angles where they are loaded at once. Else each is loaded
// when its pair rotates, so that registers need not hold them.
template <class S>
__device__ __forceinline__ void rotate_held_vector(
    float (&d)[S::kPerVector], int v, int stage, const HeldRing<S>& ring,
    const HeldAngles<typename S::T>& loaded, uint32_t row, const HeadsLaneRow& at,
    const HeldRope<S>& rope, const HeldGradientParams& part, const HeadsShared& shared,
    const HeldVectors<S>& place) {
  using T = typename S::T;
  constexpr int kPerVector = S::kPerVector;
  const auto rotate_all = [&](auto angles) {
    if (rope.interleaved) {
      T::unpack(ring.dy(stage, v), d);
      const bool inverse = (part.bits & kHeadsInverse) != 0;
#pragma unroll
      for (int i = 0; i < kPerVector; i += 2) {
        const float2 f = angles(i / 2);
        rotate_pair<T>(d[i], d[i + 1], f.x, inverse ? -f.y : f.y, false);
      }
    } else {
      float g[kPerVector], cosine[kPerVector];
      T::unpack(ring.partner(stage, v, place), g);
#pragma unroll
      for (int i = 0; i < kPerVector; ++i) {
        const float2 f = angles(i);
        g[i] = __fmul_rn(g[i], f.y), cosine[i] = f.x;
      }
      T::unpack(ring.dy(stage, v), d);
#pragma unroll
      for (int i = 0; i < kPerVector; ++i) d[i] = __fmaf_rn(d[i], cosine[i], g[i]);
    }
  };
  if (!S::kAny || rope.loads_words) {
    rotate_all([&](int i) { return make_float2(loaded.cosine[i], loaded.sine[i]); });
  } else {
    const uint32_t token = at.is_live(part) ? at.token : 0;
    uint32_t rows[kMaxRopeAxes];
#pragma unroll
    for (int a = 0; a < kMaxRopeAxes; ++a)
      rows[a] = a == 0 && rope.has_one_row ? row
                : a < shared.axes          ? held_table_row(shared, a, token)
                                           : 0;
    const auto first = static_cast<int>(place.angles(v)) / (shared.table_f32 ? 4 : T::kBytes);
    rotate_all([&](int i) {
      const int axis = rope.has_one_row ? 0 : axis_of(shared, first + i);
      const uint32_t number = axis == 0   ? rows[0]
                              : axis == 1 ? rows[1]
                              : axis == 2 ? rows[2]
                                          : rows[3];
      const int entry = entry_of(shared, part.bits, first + i);
      return make_float2(
          load_entry<T>(shared, held_table_address(shared.cos, number, at.head), entry),
          load_entry<T>(shared, held_table_address(shared.sin, number, at.head), entry));
    });
  }
}

// The forward's factors of a row's columns, in shared memory: registers have their sums.
template <class S>
struct HeldGains {
  __device__ __forceinline__ HeldGains(const HeldGradientParams& part, uint32_t head,
                                       const HeldGradientPlace<S>& place) {
    if (place.row == 0) {
#pragma unroll
      for (int v = 0; v < S::kVectors; ++v) {
        float f[S::kPerVector];
        load_gains(f, part, weight_row<typename S::T>(part, head), place.vector(v),
                   place.there[v] ? S::kPerVector : 0);
#pragma unroll
        for (int i = 0; i < S::kPerVector; ++i)
          shared().values[place.vector(v) * S::kPerVector + i] = f[i];
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ void take(float (&f)[S::kPerVector], int v,
                                       const HeldGradientPlace<S>& place) const {
#pragma unroll
    for (int i = 0; i < S::kPerVector; i += 4) {
      const uint4 four = ptx::ld_shared_v4(reinterpret_cast<const char*>(shared().values) +
                                           place.offset * (S::kPerVector * 4 / kVectorBytes) +
                                           (v * S::kLanes * S::kPerVector + i) * 4);
      as_floats(f + i, four);
    }
  }

 private:
  struct Buffer {
    alignas(16) float values[S::kWidth];
  };
  static __device__ __forceinline__ Buffer& shared() { return ptx::block_shared<Buffer>(); }
};

// The lanes of a block folded, and stored if they are wanted: the highest digits of their numbers
// in registers, the lowest in shared memory.
template <class S>
__device__ __forceinline__ void store_held_sums(const float (&sums)[S::kVectors][S::kPerVector],
                                                const HeldGradientParams& part, int which,
                                                uint32_t group, uint32_t block,
                                                const HeldGradientPlace<S>& place) {
  const HeadsRowOrder& o = part.order;
  const HeadsSumOut& out = o.out[which];
  if (o.partial[which] == nullptr && out.data == nullptr) return;
  float* const to = o.partial[which] + (int64_t{group} * o.blocks + block) * o.partial_stride;
  constexpr int kWidth = S::kWidth, kThreads = S::kBlockThreads;
  constexpr int kLow = kThreads > kWidth ? kThreads / kWidth : 1;  // threads of a column
  constexpr int kHigh = S::kRows / kLow;
  static_assert(kHigh * kLow == S::kRows && S::kRows * kWidth * 4 <= HeldRing<S>::kBytes);
  auto* const values = reinterpret_cast<float*>(ptx::launch_shared());
  const auto number = static_cast<int>(threadIdx.x);
  const int n = part.vectors * S::kPerVector;
  __syncthreads();  // the ring, or the sums before, have been read
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    float* const own = values + place.row * kWidth + place.vector(v) * S::kPerVector;
#pragma unroll
    for (int i = 0; i < S::kPerVector; i += 4) {
      *reinterpret_cast<uint4*>(own + i) = as_words(&sums[v][i]);
    }
  }
  __syncthreads();
#pragma unroll
  for (int first = 0; first < kWidth; first += kThreads) {
    const int column = first + number % kWidth, low = number / kWidth;
    float q[kHigh];
#pragma unroll
    for (int i = 0; i < kHigh; ++i) q[i] = values[(i * kLow + low) * kWidth + column];
    float total = fold_registers(q);
    if constexpr (kLow > 1) {
      // Nobody else has read what is overwritten.
      values[low * kWidth + column] = total;
      __syncthreads();
      float w[kLow];
#pragma unroll
      for (int i = 0; i < kLow; ++i) w[i] = values[i * kWidth + column];
      total = fold_registers(w);
    }
    if (low != 0 || column >= n) continue;
    if (out.data != nullptr) {
      put_heads_sum(out, group, column, total);
    } else {
      ptx::st_global_u32(to + column, __float_as_uint(total));
    }
  }
}

// The part that a thread block works on.
__device__ __forceinline__ const HeldGradientParams& gradient_part_of_block(
    const HeldHeadsBackwardParams& p) {
  int part = 0;
  while (part + 1 < p.count && blockIdx.x >= p.part[part + 1].order.first_block) ++part;
  return p.part[part];
}

// dv of a row: dy, rotated back.
template <class S>
__device__ __forceinline__ void take_held_gradient(
    float (&d)[S::kVectors][S::kPerVector], int stage, const HeldRing<S>& ring,
    const HeldAngles<typename S::T> (&angles)[S::kVectors], uint32_t table_row,
    const HeadsLaneRow& at, const HeldRope<S>& rope, const HeldGradientParams& part,
    const HeadsShared& shared, const HeldVectors<S>& place) {
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    if (rope.any && place.rotates[v]) {
      rotate_held_vector<S>(d[v], v, stage, ring, angles[v], table_row, at, rope, part, shared,
                            place);
    } else {
      S::T::unpack(ring.dy(stage, v), d[v]);
    }
  }
}

// rstd of a row whose statistics the call does not give.
template <class S>
__device__ __forceinline__ float held_rstd_of_row(int stage, const HeldRing<S>& ring,
                                                  const HeldGradientParams& part,
                                                  const HeldGradientPlace<S>& place) {
  float q[S::kVectors];
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    float f[S::kPerVector];
    S::T::unpack(ring.x(stage, v), f);
    q[v] = place.there[v] ? vector_sum_of_squares(f) : 0.0f;
  }
  const float sum = fold_lanes<S::kLanes>(fold_registers(q));
  return rstd_of(__fmul_rn(sum, part.inv_n), part, NoSteps());
}

// Sums over the rows of a lane. Forms without kAny have no dbias.
template <class S>
struct HeldSums {
  float dweight[S::kVectors][S::kPerVector], dbias[S::kAny ? S::kVectors : 1][S::kPerVector];
};

// A row's normalised x, its e = dv * gain, and what its means are made of.
template <class S>
struct HeldRowGradient {
  // `live`: the row's shares are added to the sums.
  __device__ __forceinline__ void take(HeldSums<S>& sums,
                                       const float (&d)[S::kVectors][S::kPerVector],
                                       const Statistics& s, int stage, bool live,
                                       const HeldRing<S>& ring, const HeldGains<S>& gains,
                                       const HeldGradientParams& part,
                                       const HeldGradientPlace<S>& place) {
    using T = typename S::T;
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      float gain[S::kPerVector];
      gains.take(gain, v, place);
      T::unpack(ring.x(stage, v), x[v]);
#pragma unroll
      for (int i = 0; i < S::kPerVector; ++i) {
        x[v][i] = normalized<S::kStat>(x[v][i], s);
        e[v][i] = __fmul_rn(d[v][i], gain[i]);
      }
      if (live) {
        float(&dbias)[S::kPerVector] = sums.dbias[S::kAny ? v : 0];
        if (__builtin_expect(part.round_normalized, 0)) {
          float t[S::kPerVector];
          copy_values(t, x[v]);
          round_to<T>(t);
          accumulate<S::kStat>(sums.dweight[v], dbias, d[v], t);
        } else {
          accumulate<S::kStat>(sums.dweight[v], dbias, d[v], x[v]);
        }
      }
      // A missing vector's share is +0, whatever the statistics are.
      q[0][v] = place.there[v] ? vector_dot(e[v], x[v]) : 0.0f;
      if constexpr (S::kAny) q[S::kSums - 1][v] = place.there[v] ? vector_sum(e[v]) : 0.0f;
    }
  }

  // c1 and c2. `token`: one that exists.
  __device__ __forceinline__ void means(float (&c)[S::kSums], const HeldGradientParams& part,
                                        uint32_t token) {
    if ((part.bits & kHeadsAcross) != 0) {
      const uint4 of_token = ptx::ld_global_v4(part.token_values + int64_t{token} * kTokenFloats);
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
  }

  float x[S::kVectors][S::kPerVector], e[S::kVectors][S::kPerVector], q[S::kSums][S::kVectors];
};

template <class S>
__device__ __forceinline__ void gradient_of_held_heads(const HeldHeadsBackwardParams& p) {
  using T = typename S::T;
  constexpr int kVectors = S::kVectors, kPerVector = S::kPerVector;
  const HeldGradientParams& part = gradient_part_of_block(p);
  const HeadsShared& shared = p.shared;
  const HeadsRowOrder& o = part.order;
  // Blocks of all groups stand side by side, as the rows of a token do.
  const uint32_t number = blockIdx.x - o.first_block;
  const uint32_t block = o.groups > 1 ? number / o.groups : number,
                 group = number - block * o.groups, first_row = first_row_of(o, block);
  const HeldGradientPlace<S> place(part, shared);
  const HeldRope<S> rope(part, shared);
  const bool normalises = (part.bits & kHeadsNorm) != 0,
             computes = normalises && (part.bits & kHeadsAcross) == 0 && part.rstd.data == nullptr;
  ptx::grid_wait();

  const HeldRing<S> ring;
  HeadsLaneRow now =
      lane_row(part, o.groups > 1 ? group : 0, first_row + block % o.split + place.row * o.split);
  HeldRowValues<S> next;
  next.load(part, shared, now, rope);
  ring.begin(part, now, place);
  int stage = 0;

  HeldSums<S> sums = {};
  const HeldGains<S> gains(part, o.groups > 1 ? group : 0, place);

#pragma unroll 1
  for (uint32_t first = first_row; first < o.shared_rows; first += o.step) {
    const bool live = now.is_live(part);
    HeldAngles<T> angles[kVectors];
    const uint32_t table_row = next.table_row;
    load_held_angles<S>(angles, table_row, now.head, rope, shared, place);
    Statistics s = next.statistics;
    next.load(part, shared, now.after(part, part.step), rope);
    // After this the warp's vectors are there, and those of the step before have been read.
    ptx::copy_async_wait_group<kHeadsRingStages - 2>();
    __syncwarp();
    ring.copy(ring.before(stage), part, now.after(part, part.step_ahead), place);

    float d[kVectors][kPerVector];
    take_held_gradient<S>(d, stage, ring, angles, table_row, now, rope, part, shared, place);
    const auto put = [&](int v, const float(&f)[kPerVector]) {
      char* const dx = held_address(part.dx, now.token, now.head) + place.offset;
      if (live & place.there[v]) ptx::st_global_v4(dx + v * (S::kLanes * kVectorBytes), T::pack(f));
    };
    if (!normalises) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) put(v, d[v]);
    } else {
      if (computes) s.rstd = held_rstd_of_row<S>(stage, ring, part, place);
      HeldRowGradient<S> row;
      row.take(sums, d, s, stage, live, ring, gains, part, place);
      if (part.dx.data != nullptr) {
        float c[S::kSums];
        row.means(c, part, live ? now.token : 0);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          float f[kPerVector];
#pragma unroll
          for (int i = 0; i < kPerVector; ++i)
            f[i] = __fmul_rn(centred<S::kStat>(row.x[v][i], row.e[v][i], c), s.rstd);
          put(v, f);
        }
      }
    }
    now = now.after(part, part.step);
    stage = ring.after(stage);
  }
  ptx::copy_async_wait();
  if (p.triggers) ptx::grid_trigger();

  store_held_sums<S>(sums.dweight, part, 0, group, block, place);
  if constexpr (S::kAny) store_held_sums<S>(sums.dbias, part, 1, group, block, place);
}

}  // namespace fastnorm::cuda
