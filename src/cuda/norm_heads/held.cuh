// Heads in registers: a few lanes have a head, in vectors of 16 bytes. A group of lanes takes some
// heads of one token, one after the other. It loads their weights and angles once.
#pragma once

#include <bit>

#include "cuda/common/normalize.cuh"
#include "cuda/common/statistics.cuh"
#include "cuda/norm/quant.cuh"
#include "cuda/norm_heads/rope.cuh"

namespace fastnorm::cuda {

template <uint32_t kWord>
struct HeldSlots {
  static constexpr NormHeadsVariant kV = heads_variant_of(kWord);
  using T = Element<kV.dtype>;
  static constexpr bool kRotateHalf = kV.form == HeadsForm::kRotateHalf,
                        kInterleaved = kV.form == HeadsForm::kInterleaved, kAny = kV.is_any(),
                        kMore = kV.form == HeadsForm::kMore, kHasScales = kAny;
  static constexpr int kLanes = kV.threads, kVectors = kV.vectors, kGroups = kV.groups(),
                       kPerVector = T::kPerVector;
  // A loop for the common call: 16 bits, and a power of two of columns, as heads of models have.
  static constexpr bool kHasCommon =
      kRotateHalf && T::kBytes == 2 && std::has_single_bit(unsigned{kVectors});
  static constexpr int kPairs = kVectors * kPerVector / 2;  // of a lane
  static constexpr int kRotated = held_rope_columns(kV);    // kAny: that may rotate
};

// What the lanes of a group show each other (kAny).
template <class S>
struct HeldScratch {
  alignas(16) float values[S::kAny ? S::kGroups : 1][S::kAny ? S::kRotated : 4];
  alignas(16) float c[S::kAny ? S::kGroups : 1][S::kAny ? S::kRotated / 2 : 4];
  alignas(16) float s[S::kAny ? S::kGroups : 1][S::kAny ? S::kRotated / 2 : 4];
};

// Roundings between steps, as bits ask for them.
template <class T>
__device__ __forceinline__ Steps<T> held_steps(uint32_t bits) {
  return {(bits & kHeadsRoundSteps) != 0, (bits & kHeadsFactorFirst) != 0};
}

// This thread's place.
template <class S>
struct HeldPlace {
  __device__ __forceinline__ HeldPlace(const HeldPartParams& part, const HeadsShared& shared)
      : lane(static_cast<int>(threadIdx.x % S::kLanes)),
        group(static_cast<int>(threadIdx.x / S::kLanes)) {
    const uint32_t item =
        (blockIdx.x - part.first_block) * S::kGroups + static_cast<uint32_t>(group);
    token = part.groups == 1 ? item : quotient(item, part.divisor);
    first = item - token * part.groups;
    exists = token < shared.tokens;
    if (!exists) token = 0;
  }
  __device__ __forceinline__ int vector(int v) const { return lane + v * S::kLanes; }

  const int lane, group;
  uint32_t token, first;  // the first head of the group
  bool exists;
};

template <class S>
__device__ __forceinline__ void load_head(uint4 (&raw)[S::kVectors], const HeldPartParams& part,
                                          const HeldPlace<S>& place, uint32_t head) {
  const bool live = place.exists && head < part.heads;
  const char* const row = address_of(part.x, place.token, head) + place.lane * kVectorBytes;
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    raw[v] = make_uint4(0, 0, 0, 0);
    ptx::ld_global_v4_if(raw[v], row + v * (S::kLanes * kVectorBytes),
                         live && place.vector(v) < part.vectors);
  }
}

__device__ __forceinline__ OperandType held_weight_type(uint32_t bits) {
  return static_cast<OperandType>(bits / kHeadsWeightElement & 3);
}
__device__ __forceinline__ OperandType held_bias_type(uint32_t bits) {
  return static_cast<OperandType>(bits / kHeadsBiasElement & 3);
}

// The weight of a head. Heads that do not exist, whose results nobody stores, take head 0's.
__device__ __forceinline__ const char* held_weight(const char* weight, int64_t stride,
                                                   uint32_t head, uint32_t heads) {
  return weight + (head < heads ? int64_t{head} : 0) * stride;
}

// Weights of T; absent ones are 1.
template <class S>
__device__ __forceinline__ void load_weights(uint4 (&weight)[S::kVectors],
                                             const HeldPartParams& part, const HeldPlace<S>& place,
                                             uint32_t head) {
  using T = typename S::T;
  const bool present = held_weight_type(part.bits) == OperandType::kElement;
  const char* const row =
      held_weight(part.weight, part.weight_stride, head, part.heads) + place.lane * kVectorBytes;
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    weight[v] = make_uint4(T::kOneWord, T::kOneWord, T::kOneWord, T::kOneWord);
    ptx::ld_global_v4_if(weight[v], row + v * (S::kLanes * kVectorBytes),
                         present && place.vector(v) < part.vectors);
  }
}

// A vector of weights or biases of any dtype; what is missing is `absent`.
template <class T>
__device__ __forceinline__ void load_weight_vector(float (&f)[T::kPerVector], const char* row,
                                                   OperandType type, int vector, bool wanted,
                                                   float absent) {
  if (type == OperandType::kAbsent || !wanted) {
    fill_values(f, absent);
  } else {
    load_values<T>(f, AnyRow<T, const char>(row, kVectorBytes, type), vector);
  }
}

// Entries of a table from number `first` on: all at once, or where they are apart or of several
// rows one by one. kLean: all at once.
template <class T, bool kLean, int kCount>
__device__ __forceinline__ void load_entries(float (&f)[kCount], const HeadsShared& s,
                                             const HeadsTable& table, const int64_t (&rows)[4],
                                             uint32_t head, uint32_t bits, int first) {
  const bool each = !s.table_repeats || (bits & kHeadsInterleaved) == 0;
  if (kLean || (s.table_aligned && s.axes == 1 && each)) {
    const char* const row = table_address(table, rows[0], head);
    if (s.table_f32) {
      const char* const at = row + int64_t{first} * 4;
      if constexpr (kCount % 4 == 0) {
#pragma unroll
        for (int i = 0; i < kCount; i += 4) as_floats(f + i, ptx::ld_global_v4(at + i * 4));
      } else {
#pragma unroll
        for (int i = 0; i < kCount; i += 2) {
          const uint2 v = ptx::ld_global_v2(at + i * 4);
          f[i] = __uint_as_float(v.x), f[i + 1] = __uint_as_float(v.y);
        }
      }
    } else if constexpr (T::kBytes == 2) {
      const char* const at = row + int64_t{first} * 2;
      uint32_t words[kCount / 2];
      if constexpr (kCount % 8 == 0) {
        const uint4 v = ptx::ld_global_v4(at);
        words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
      } else {
        const uint2 v = ptx::ld_global_v2(at);
        words[0] = v.x, words[1] = v.y;
      }
#pragma unroll
      for (int i = 0; i < kCount; i += 2) T::unpack_word(words[i / 2], f + i);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int axis = s.axes == 1 ? 0 : axis_of(s, first + i);
      const int64_t row = axis == 0 ? rows[0] : axis == 1 ? rows[1] : axis == 2 ? rows[2] : rows[3];
      f[i] = load_entry<T>(s, table_address(table, row, head), entry_of(s, bits, first + i));
    }
  }
}

// Where a token's angles are.
struct HeldRows {
  __device__ __forceinline__ HeldRows(const HeadsShared& s, uint32_t token, bool padding = false) {
#pragma unroll
    for (int a = 0; a < kMaxRopeAxes; ++a)
      row[a] = a < s.axes ? table_row(s, a, token, padding) : 0;
  }
  // The row of the only axis.
  __device__ __forceinline__ explicit HeldRows(int64_t known) : row{known, 0, 0, 0} {}
  // With one axis the row is known.
  __device__ __forceinline__ HeldRows(const HeadsShared& s, uint32_t token, int64_t known) {
    if (s.axes == 1) {
      row[0] = known, row[1] = row[2] = row[3] = 0;
    } else {
#pragma unroll
      for (int a = 0; a < kMaxRopeAxes; ++a) row[a] = a < s.axes ? table_row(s, a, token) : 0;
    }
  }
  int64_t row[kMaxRopeAxes];
};

template <class T, bool kLean = false, int kCount>
__device__ __forceinline__ void load_angles(float (&c)[kCount], float (&sine)[kCount],
                                            const HeadsShared& s, const HeldRows& rows,
                                            uint32_t head, uint32_t bits, int first) {
  load_entries<T, kLean>(c, s, s.cos, rows.row, head, bits, first);
  load_entries<T, kLean>(sine, s, s.sin, rows.row, head, bits, first);
  if (!kLean && (bits & kHeadsInverse) != 0) {
#pragma unroll
    for (float& value : sine) value = -value;
  }
}

// The addresses of a head's outputs; null where the call has none.
struct HeldOut {
  char *y, *cache, *scales;
};

// Head 0's row and scales in the cache; null where the token has no place.
struct HeldCache {
  char *row, *scales;
};

// A token's slot, and what follows from it for all of its rows. It is loaded behind x, which does
// not wait for it: only table rows and stores do.
struct HeldSlot {
  template <class P>
  __device__ __forceinline__ HeldSlot(const HeadsShared& shared, const P& place)
      : number(slot_of(shared, place.token)),
        padding(number < 0),
        stores(place.exists && !padding) {}

  const int64_t number;
  const bool padding, stores;
};

template <class S>
__device__ __forceinline__ HeldCache cache_of(const HeldPartParams& part, const HeldSlot& slot) {
  if (part.cache.data == nullptr || !slot.stores) return {nullptr, nullptr};
  const auto number = static_cast<uint32_t>(slot.number);
  const uint32_t page = part.by_page.value == 1 ? number : quotient(number, part.by_page);
  const uint32_t row = number - page * part.by_page.value;
  const auto at = [&](const HeadsPages& pages) {
    return pages.data + int64_t{page} * pages.page_stride + int64_t{row} * pages.row_stride;
  };
  return {at(part.cache), S::kHasScales ? at(part.scales) : nullptr};
}

// What makes codes: of a static scale its reciprocal, or with kHeadsDivides the scale.
struct HeldFactors {
  float cache, y;
};

template <class S>
__device__ __forceinline__ HeldFactors held_factors(const HeldPartParams& part) {
  const auto of = [&](const float* scale) {
    const float value = ptx::ld_global_f32(scale);
    return S::kMore && (part.bits & kHeadsDivides) != 0 ? value : __frcp_rn(value);
  };
  HeldFactors f = {1.0f, 1.0f};
  if ((part.bits & (kHeadsCacheCodes | kHeadsCacheBlocks)) == kHeadsCacheCodes)
    f.cache = of(part.cache_scale);
  if (S::kMore && (part.bits & kHeadsCodesOfY) != 0) f.y = of(part.y_scale);
  return f;
}

// A vector's codes with a static scale. `words`: the results rounded to T.
template <class S>
__device__ __forceinline__ void put_static_codes(char* to, CodeType type, uint32_t bits,
                                                 const float (&z)[S::kPerVector],
                                                 const uint4& words, int vector, float factor) {
  using T = typename S::T;
  float w[S::kPerVector];
  if ((bits & kHeadsRoundCodes) != 0) {
    T::unpack(words, w);
  } else {
    copy_values(w, z);
  }
  if (S::kMore && (bits & kHeadsDivides) != 0) {
    divide_values(w, factor);
  } else {
    scale_values(w, factor);
  }
  uint32_t codes[2];
  make_codes(type, w, codes);
  store_codes<S::kPerVector>(to + vector * S::kPerVector, codes, false);
}

// A vector of results.
template <class S>
__device__ __forceinline__ void put_result(const HeldPartParams& part, const HeldOut& out,
                                           const float (&z)[S::kPerVector], int vector,
                                           const HeldFactors& factors) {
  if (vector >= part.vectors) return;
  const uint32_t bits = part.bits;
  const uint4 words = S::T::pack(z);
  if (S::kMore && out.y != nullptr && (bits & kHeadsCodesOfY) != 0) {
    put_static_codes<S>(out.y, part.y_code_type, bits, z, words, vector, factors.y);
  } else if (out.y != nullptr) {
    ptx::st_global_v4(out.y + vector * kVectorBytes, words);
  }
  if (out.cache == nullptr) return;
  if ((bits & kHeadsCacheCodes) == 0) {
    ptx::st_global_v4(out.cache + vector * kVectorBytes, words);
    return;
  }
  put_static_codes<S>(out.cache, part.code_type, bits, z, words, vector, factors.cache);
}

// The greatest bits of `lanes` neighbours, a power of two and at most kMost. Each lane has those of
// kFrom of them. By all lanes of a warp.
template <int kFrom, int kMost>
__device__ __forceinline__ uint32_t greatest_of_lanes(uint32_t most, int lanes) {
#pragma unroll
  for (int half = kFrom; half < kMost; half *= 2) {
    const uint32_t other = __float_as_uint(__shfl_xor_sync(~0u, __uint_as_float(most), half));
    if (half < lanes) most = greater(most, other);
  }
  return most;
}

// Register v's codes with the scales of their blocks, which are neighbouring lanes' vectors. By all
// lanes of a warp.
template <class S>
__device__ __forceinline__ void put_block_codes(const HeldPartParams& part, const HeldOut& out,
                                                const float (&z)[S::kPerVector], int vector) {
  using T = typename S::T;
  constexpr int kVectorShift = T::kBytes == 2 ? 3 : 2;
  const QuantParams& q = part.quant;
  const int shift = q.block_shift - kVectorShift, lanes = 1 << shift;
  float w[S::kPerVector];
#pragma unroll
  for (int i = 0; i < S::kPerVector; ++i) w[i] = vector < part.vectors ? z[i] : 0.0f;
  if ((part.bits & kHeadsRoundCodes) != 0) round_to<T>(w);
  const Scale scale = free_scale(q, greatest_of_lanes<1, S::kLanes>(magnitude_bits(w), lanes));
  if (out.cache == nullptr || vector >= part.vectors) return;
  if ((vector & (lanes - 1)) == 0)
    ScaleRow(q, out.scales, 0).put(static_cast<uint32_t>(vector >> shift), scale.bits);
  scale_values(w, scale.inverse);
  uint32_t codes[2];
  make_codes(q.code_type, w, codes);
  store_codes<T::kPerVector>(out.cache + vector * T::kPerVector, codes, false);
}

// ---- kRotateHalf and kInterleaved.

template <class S>
__device__ __forceinline__ float held_rstd(const uint4 (&raw)[S::kVectors],
                                           const HeldPartParams& part) {
  const float sum = fold_lanes<S::kLanes>(squares_of<typename S::T>(raw));
  return rstd_of(__fmul_rn(sum, part.inv_n), part, NoSteps());
}

// The values of a vector before rope.
template <class S>
__device__ __forceinline__ void normalize_head(float (&z)[S::kPerVector], const uint4& raw,
                                               const uint4& weight, float rstd,
                                               const HeldPartParams& part) {
  using T = typename S::T;
  T::unpack(raw, z);
  if ((part.bits & kHeadsNorm) != 0) {
    float w[S::kPerVector];
    T::unpack(weight, w);
    // kInterleaved has no registers left for it.
    if (S::kRotateHalf && (part.bits & kHeadsFactorFirst) != 0) {
#pragma unroll
      for (int i = 0; i < S::kPerVector; ++i)
        z[i] = __fmul_rn(z[i], __fmul_rn(rstd, __fadd_rn(w[i], part.weight_offset)));
    } else {
      scale_values(z, rstd);
      if ((part.bits & kHeadsRoundNormalized) != 0) round_to<T>(z);
      weigh_values(z, w, part.weight_offset);
    }
  }
  if ((part.bits & kHeadsRoundBefore) != 0) round_to<T>(z);
}

// Pair j is columns j and half + j of the row: vectors v and v + kVectors / 2 of one lane.
template <class S>
__device__ __forceinline__ void finish_apart(const uint4 (&raw)[S::kVectors],
                                             const uint4 (&weight)[S::kVectors], float rstd,
                                             const float (&c)[S::kPairs],
                                             const float (&s)[S::kPairs],
                                             const HeldPartParams& part, const HeldPlace<S>& place,
                                             const HeldOut& out, const HeldFactors& factors) {
  using T = typename S::T;
  constexpr int kHalf = S::kVectors / 2, kPer = S::kPerVector;
  const bool every_step = (part.bits & kHeadsRopeEveryStep) != 0;
#pragma unroll
  for (int v = 0; v < kHalf; ++v) {
    float z1[kPer], z2[kPer];
    normalize_head<S>(z1, raw[v], weight[v], rstd, part);
    normalize_head<S>(z2, raw[v + kHalf], weight[v + kHalf], rstd, part);
    if ((part.bits & kHeadsRope) != 0) {
      if (every_step) {
#pragma unroll
        for (int i = 0; i < kPer; ++i)
          rotate_pair<T>(z1[i], z2[i], c[v * kPer + i], s[v * kPer + i], true);
      } else {
#pragma unroll
        for (int i = 0; i < kPer; ++i)
          rotate_pair<T>(z1[i], z2[i], c[v * kPer + i], s[v * kPer + i], false);
      }
    }
    put_result<S>(part, out, z1, place.vector(v), factors);
    put_result<S>(part, out, z2, place.vector(v + kHalf), factors);
  }
}

// Pairs are neighbours.
template <class S>
__device__ __forceinline__ void finish_beside(const uint4 (&raw)[S::kVectors],
                                              const uint4 (&weight)[S::kVectors], float rstd,
                                              const float (&c)[S::kPairs],
                                              const float (&s)[S::kPairs],
                                              const HeldPartParams& part, const HeadsShared& shared,
                                              const HeldPlace<S>& place, const HeldOut& out,
                                              const HeldFactors& factors) {
  using T = typename S::T;
  constexpr int kPer = S::kPerVector, kHalf = kPer / 2;
  const bool every_step = (part.bits & kHeadsRopeEveryStep) != 0;
  const int first = part.rope_offset / kPer, count = 2 * shared.half / kPer;
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    float z[kPer];
    normalize_head<S>(z, raw[v], weight[v], rstd, part);
    const auto number = static_cast<uint32_t>(place.vector(v) - first);
    if ((part.bits & kHeadsRope) != 0 && number < static_cast<uint32_t>(count)) {
#pragma unroll
      for (int i = 0; i < kHalf; ++i)
        rotate_pair<T>(z[2 * i], z[2 * i + 1], c[v * kHalf + i], s[v * kHalf + i], every_step);
    }
    put_result<S>(part, out, z, place.vector(v), factors);
  }
}

// This lane's angles.
template <class S, bool kLean>
__device__ __forceinline__ void hold_angles(float (&c)[S::kPairs], float (&s)[S::kPairs],
                                            const HeldPartParams& part, const HeadsShared& shared,
                                            const HeldPlace<S>& place, bool padding) {
  using T = typename S::T;
  constexpr int kPer = S::kPerVector;
  const HeldRows rows = kLean ? HeldRows(table_row(shared, 0, place.token, padding))
                              : HeldRows(shared, place.token, padding);
  const auto take = [&]<int kCount>(float(&cosines)[kCount], float(&sines)[kCount], int first,
                                    int at) {
    load_angles<T, kLean>(cosines, sines, shared, rows, 0, part.bits, first);
#pragma unroll
    for (int i = 0; i < kCount; ++i) c[at + i] = cosines[i], s[at + i] = sines[i];
  };
  if constexpr (S::kRotateHalf) {
#pragma unroll
    for (int v = 0; v < S::kVectors / 2; ++v) {
      float cosines[kPer], sines[kPer];
      take(cosines, sines, place.vector(v) * kPer, v * kPer);
    }
  } else {
    const int first = part.rope_offset / kPer, count = 2 * shared.half / kPer;
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      float cosines[kPer / 2], sines[kPer / 2];
      const auto number = static_cast<uint32_t>(place.vector(v) - first);
      if (number < static_cast<uint32_t>(count)) {
        take(cosines, sines, static_cast<int>(number) * (kPer / 2), v * (kPer / 2));
      } else {
#pragma unroll
        for (int i = 0; i < kPer / 2; ++i)
          c[v * (kPer / 2) + i] = 1.0f, s[v * (kPer / 2) + i] = 0.0f;
      }
    }
  }
}

// ---- kAny.

template <int kCount>
__device__ __forceinline__ void put_shared_values(float* to, const float (&f)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) *reinterpret_cast<uint4*>(to + i) = as_words(f + i);
}
template <int kCount>
__device__ __forceinline__ void take_shared_values(float (&f)[kCount], const float* from) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const uint4 v = *reinterpret_cast<const uint4*>(from + i);
    as_floats(f + i, v);
  }
}

// A group's angles, to shared memory.
template <class S>
__device__ __forceinline__ void share_angles(HeldScratch<S>& scratch, const HeldPartParams& part,
                                             const HeadsShared& shared, const HeldRows& rows,
                                             const HeldPlace<S>& place, uint32_t head) {
  using T = typename S::T;
  constexpr int kFour = 4;
  const uint32_t own = head < part.heads ? head : 0;
  const int whole = shared.half / kFour * kFour;
  for (int j = place.lane * kFour; j < whole; j += S::kLanes * kFour) {
    float c[kFour], s[kFour];
    load_angles<T>(c, s, shared, rows, own, part.bits, j);
    put_shared_values(&scratch.c[place.group][j], c);
    put_shared_values(&scratch.s[place.group][j], s);
  }
  // Interleaved vectors of f32 have two pairs: one such may be left.
  if constexpr (T::kBytes == 4) {
    if (whole < shared.half && place.lane == 0) {
      float c[2], s[2];
      load_angles<T>(c, s, shared, rows, own, part.bits, whole);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scratch.c[place.group][whole + i] = c[i];
        scratch.s[place.group][whole + i] = s[i];
      }
    }
  }
}

struct HeldStatistics {
  float mean, rstd;
};

// Whether the call gives the statistics of a token and head. Then it sets them.
__device__ __forceinline__ bool take_statistics(HeldStatistics* result, const HeldPartParams& part,
                                                uint32_t token, uint32_t head) {
  if (part.rstd_in.data == nullptr) return false;
  result->rstd = ptx::ld_global_f32(address_of(part.rstd_in, token, head));
  if (part.mean_in.data != nullptr)
    result->mean = ptx::ld_global_f32(address_of(part.mean_in, token, head));
  return true;
}

template <class S>
__device__ __forceinline__ HeldStatistics any_statistics(const uint4 (&raw)[S::kVectors],
                                                         const HeldPartParams& part,
                                                         const HeldPlace<S>& place, uint32_t head,
                                                         bool stores) {
  using T = typename S::T;
  const bool live = place.exists && head < part.heads;
  const Steps<T> rounding = held_steps<T>(part.bits);
  HeldStatistics result = {0.0f, 0.0f};
  float squared = 0.0f;  // of kMore
  if (take_statistics(&result, part, place.token, live ? head : 0)) return result;
  if ((part.bits & kHeadsLayer) != 0) {
    float f[S::kPerVector];
    T::unpack(raw[0], f);
    Moments total = {0.0f, 0.0f};
    const LayerStatistics statistics = layer_statistics(
        __shfl_sync(~0u, f[0], 0, S::kLanes), part, rounding, [&](int, float from, bool steps) {
          const Moments folded = moments_of<T>(
              raw, from, steps, [&](int v) { return part.vectors - place.vector(v); });
          return total = {fold_lanes<S::kLanes>(folded.sum), fold_lanes<S::kLanes>(folded.squares)};
        });
    result = {statistics.mean(), statistics.rstd(part, rounding)};
    if constexpr (S::kMore) squared = squares_about_mean(total, part.inv_n, rounding.every_step);
  } else {
    squared = fold_lanes<S::kLanes>(squares_of<T>(raw, rounding.every_step));
    result.rstd = rstd_of(__fmul_rn(squared, part.inv_n), part, rounding);
  }
  if (stores && live && place.lane == 0)
    put_statistics<S::kMore>(part, place.token, head, result.mean, result.rstd, squared);
  return result;
}

// The values of a head's vector before rope. `wanted`: the head has this vector.
template <class S>
__device__ __forceinline__ void any_values(float (&z)[S::kPerVector], const uint4& raw,
                                           const uint4& weight, const HeldStatistics& statistics,
                                           const HeldPartParams& part, uint32_t head, int vector,
                                           bool wanted) {
  using T = typename S::T;
  const Steps<T> rounding = held_steps<T>(part.bits);
  T::unpack(raw, z);
  if ((part.bits & kHeadsNorm) != 0) {
    const OperandType type = held_weight_type(part.bits);
    float w[S::kPerVector], b[S::kPerVector];
    if (type == OperandType::kElement || type == OperandType::kAbsent) {
      T::unpack(weight, w);
    } else {
      load_weight_vector<T>(w, held_weight(part.weight, part.weight_stride, head, part.heads), type,
                            vector, wanted, 1.0f);
    }
    load_weight_vector<T>(b, held_weight(part.bias, part.bias_stride, head, part.heads),
                          held_bias_type(part.bits), vector, wanted, -0.0f);
    normalize_values(z, statistics.mean, statistics.rstd, (part.bits & kHeadsLayer) != 0, rounding);
    if ((part.bits & kHeadsRoundNormalized) != 0) round_to<T>(z);
    apply(z, z, w, b, part.weight_offset, statistics.rstd, rounding);
  }
  if ((part.bits & kHeadsRoundBefore) != 0) round_to<T>(z);
}

template <class S>
__device__ __forceinline__ void finish_any(const uint4 (&raw)[S::kVectors],
                                           const uint4 (&weight)[S::kVectors],
                                           const HeldPartParams& part, const HeadsShared& shared,
                                           const HeldPlace<S>& place, uint32_t head, bool stores,
                                           const HeldOut& out, const HeldFactors& factors,
                                           HeldScratch<S>& scratch) {
  using T = typename S::T;
  constexpr int kPer = S::kPerVector;
  HeldStatistics statistics = {0.0f, 1.0f};
  if ((part.bits & kHeadsNorm) != 0) statistics = any_statistics<S>(raw, part, place, head, stores);
  const bool rope = (part.bits & kHeadsRope) != 0,
             interleaved = (part.bits & kHeadsInterleaved) != 0,
             every_step = (part.bits & kHeadsRopeEveryStep) != 0;
  const int first = part.rope_offset / kPer, half = shared.half / kPer;
  const auto count = static_cast<uint32_t>(rope ? 2 * shared.half / kPer : 0);
  const auto number = [&](int v) { return static_cast<uint32_t>(place.vector(v) - first); };
  float* const values = scratch.values[place.group];
  const float *const c = scratch.c[place.group], *const s = scratch.s[place.group];
  float z[S::kVectors][kPer];
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    any_values<S>(z[v], raw[v], weight[v], statistics, part, head, place.vector(v),
                  place.vector(v) < part.vectors);
    if (!interleaved && number(v) < count) put_shared_values(values + number(v) * kPer, z[v]);
  }
  if (rope) __syncwarp();
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    if (number(v) < count) {
      const auto own = static_cast<int>(number(v));
      if (interleaved) {
#pragma unroll
        for (int i = 0; i < kPer / 2; ++i) {
          const int j = own * (kPer / 2) + i;
          rotate_pair<T>(z[v][2 * i], z[v][2 * i + 1], c[j], s[j], every_step);
        }
      } else {
        const bool is_first = own < half;
        const int partner = is_first ? own + half : own - half, pair = is_first ? own : own - half;
        float other[kPer], cosines[kPer], sines[kPer];
        take_shared_values(other, values + partner * kPer);
        take_shared_values(cosines, c + pair * kPer);
        take_shared_values(sines, s + pair * kPer);
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
          float v1 = is_first ? z[v][i] : other[i], v2 = is_first ? other[i] : z[v][i];
          rotate_pair<T>(v1, v2, cosines[i], sines[i], every_step);
          z[v][i] = is_first ? v1 : v2;
        }
      }
    }
    if ((part.bits & kHeadsCacheBlocks) != 0) {
      put_result<S>(part, {out.y, nullptr, nullptr}, z[v], place.vector(v), factors);
      put_block_codes<S>(part, out, z[v], place.vector(v));
    } else {
      put_result<S>(part, out, z[v], place.vector(v), factors);
    }
  }
  if (rope) __syncwarp();  // the next head's values come to the same place
}

// ---- All.

// The number of the part that this block works on.
__device__ __forceinline__ int part_number(const HeldHeadsParams& p) {
  int number = 0;
  while (number + 1 < p.count && blockIdx.x >= p.part[number + 1].first_block) ++number;
  return number;
}
__device__ __forceinline__ const HeldPartParams& part_of_block(const HeldHeadsParams& p) {
  return p.part[part_number(p)];
}

template <class S>
__device__ __forceinline__ void run_held_part(const HeldPartParams& part, const HeadsShared& shared,
                                              bool triggers) {
  auto& scratch = ptx::block_shared<HeldScratch<S>>();
  const HeldPlace<S> place(part, shared);
  const uint32_t bits = part.bits;
  follow_stream(triggers);

  uint4 next[S::kVectors], weight[S::kVectors];
  load_head<S>(next, part, place, place.first);
  load_weights<S>(weight, part, place, place.first);
  const HeldSlot slot(shared, place);
  const HeldCache cache = cache_of<S>(part, slot);
  const HeldFactors factors = held_factors<S>(part);
  float c[S::kAny ? 1 : S::kPairs], s[S::kAny ? 1 : S::kPairs];
  if constexpr (S::kAny) {
    if ((bits & (kHeadsRope | kHeadsOwnTables)) == kHeadsRope)
      share_angles<S>(scratch, part, shared, HeldRows(shared, place.token, slot.padding), place, 0);
  } else {
    if ((bits & kHeadsRope) != 0) hold_angles<S, false>(c, s, part, shared, place, slot.padding);
  }

  uint32_t head = place.first;
#pragma unroll 1
  for (uint32_t step = 0; step < part.steps; ++step, head += part.groups) {
    uint4 raw[S::kVectors];
    copy_values(raw, next);
    if (step + 1 < part.steps) load_head<S>(next, part, place, head + part.groups);
    if (step > 0 && (bits & kHeadsOwnWeights) != 0) load_weights<S>(weight, part, place, head);
    const bool live = slot.stores && head < part.heads;
    const HeldOut out = {
        live && part.y.data != nullptr ? address_of(part.y, place.token, head) : nullptr,
        live && cache.row != nullptr ? cache.row + int64_t{head} * part.cache.head_stride : nullptr,
        S::kHasScales ? cache.scales + int64_t{head} * part.scales.head_stride : nullptr};
    if constexpr (S::kAny) {
      if ((bits & kHeadsOwnTables) != 0)
        share_angles<S>(scratch, part, shared, HeldRows(shared, place.token, slot.padding), place,
                        head);
      finish_any<S>(raw, weight, part, shared, place, head, slot.stores, out, factors, scratch);
    } else {
      const float rstd = (bits & kHeadsNorm) != 0 ? held_rstd<S>(raw, part) : 1.0f;
      if constexpr (S::kRotateHalf) {
        finish_apart<S>(raw, weight, rstd, c, s, part, place, out, factors);
      } else {
        finish_beside<S>(raw, weight, rstd, c, s, part, shared, place, out, factors);
      }
    }
  }
}

// A head of the common call, from x to what is stored: an RMSNorm and rope, of which nothing is
// rounded between steps.
template <class S>
__device__ __forceinline__ void rotate_head(float (&z)[S::kVectors][S::kPerVector],
                                            const uint4 (&raw)[S::kVectors], float rstd,
                                            const uint4 (&weight)[S::kVectors], float offset,
                                            const float (&c)[S::kPairs],
                                            const float (&s)[S::kPairs]) {
  using T = typename S::T;
  constexpr int kPer = S::kPerVector;
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) {
    float w[kPer];
    T::unpack(raw[v], z[v]);
    // Otherwise the loop keeps them unpacked, in twice as many registers.
    T::unpack(ptx::in_register(weight[v]), w);
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      z[v][i] = __fmul_rn(__fmul_rn(z[v][i], rstd), __fadd_rn(w[i], offset));
  }
#pragma unroll
  for (int j = 0; j < S::kPairs; ++j)
    rotate_pair<T>(z[j / kPer][j % kPer], z[j / kPer + S::kVectors / 2][j % kPer], c[j], s[j],
                   false);
}

// The common call, of kernels with kHasCommon: rope, whose tables' rows are read as vectors, with
// an RMSNorm or without; or without kRotates neither, as for values that go to the cache. What does
// not depend on the head is there before the loop, and an address is a sum.
template <class S, bool kRotates>
__device__ __forceinline__ void run_common_part(const HeldPartParams& part,
                                                const HeadsShared& shared, bool triggers) {
  using T = typename S::T;
  const HeldPlace<S> place(part, shared);
  bool has[S::kVectors];
#pragma unroll
  for (int v = 0; v < S::kVectors; ++v) has[v] = place.exists && place.vector(v) < part.vectors;
  const char* from = address_of(part.x, place.token, place.first) + place.lane * kVectorBytes;
  uint4 next[S::kVectors], weight[S::kVectors];
  const auto load_next = [&](bool exists) {
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      next[v] = make_uint4(0, 0, 0, 0);
      ptx::ld_global_v4_if(next[v], from + v * (S::kLanes * kVectorBytes), exists && has[v]);
    }
  };
  follow_stream(triggers);
  load_next(place.first < part.heads);
  if constexpr (kRotates) load_weights<S>(weight, part, place, 0);
  __syncwarp();  // otherwise these loads are issued behind those that wait for the position
  const HeldSlot slot(shared, place);
  float c[S::kPairs], s[S::kPairs];
  if constexpr (kRotates) hold_angles<S, true>(c, s, part, shared, place, slot.padding);
  const HeldCache cache_row = cache_of<S>(part, slot);
  const HeldFactors factors = held_factors<S>(part);

  const bool norm = (part.bits & kHeadsNorm) != 0, codes = (part.bits & kHeadsCacheCodes) != 0;
  const float offset = norm ? part.weight_offset : 0.0f;
  char* y = address_of(part.y, place.token, place.first) + place.lane * kVectorBytes;
  char* cache = cache_row.row + int64_t{place.first} * part.cache.head_stride;
  uint32_t head = place.first;
#pragma unroll 1
  for (uint32_t step = 0; step < part.steps; ++step) {
    const bool stores = slot.stores && head < part.heads;
    head += part.groups;
    uint4 raw[S::kVectors];
    copy_values(raw, next);
    from += int64_t{part.groups} * part.x.head_stride;
    load_next(head < part.heads);
    float z[S::kVectors][S::kPerVector];
    if constexpr (kRotates) {
      rotate_head<S>(z, raw, norm ? held_rstd<S>(raw, part) : 1.0f, weight, offset, c, s);
    } else {
#pragma unroll
      for (int v = 0; v < S::kVectors; ++v) T::unpack(raw[v], z[v]);
    }
#pragma unroll
    for (int v = 0; v < S::kVectors; ++v) {
      const uint4 words = T::pack(z[v]);
      if (stores && has[v] && part.y.data != nullptr)
        ptx::st_global_v4(y + v * (S::kLanes * kVectorBytes), words);
      if (!stores || !has[v] || cache_row.row == nullptr) continue;
      if (codes) {
        put_static_codes<S>(cache, part.code_type, part.bits, z[v], words, place.vector(v),
                            factors.cache);
      } else {
        ptx::st_global_v4(cache + place.vector(v) * kVectorBytes, words);
      }
    }
    y += int64_t{part.groups} * part.y.head_stride;
    cache += int64_t{part.groups} * part.cache.head_stride;
  }
}

template <class S>
__device__ __forceinline__ void run_held_heads(const HeldHeadsParams& p) {
  const HeldPartParams& part = part_of_block(p);
  if constexpr (S::kHasCommon) {
    if ((part.bits & kHeadsCommon) != 0) {
      if ((part.bits & kHeadsRope) != 0)
        return run_common_part<S, true>(part, p.shared, p.triggers);
      return run_common_part<S, false>(part, p.shared, p.triggers);
    }
  }
  run_held_part<S>(part, p.shared, p.triggers);
}

}  // namespace fastnorm::cuda
