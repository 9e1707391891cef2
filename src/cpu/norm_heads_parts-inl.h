// What norm_heads and its backward share: all heads of a token as one row, and rope.
#pragma once

#include "cpu/norm_heads_params.h"
#include "cpu/norm_parts-inl.h"

namespace fastnorm::cpu {
namespace {

// Room behind the values of a row for the vectors and chunks of any instruction set.
inline constexpr int kBehind = 64;
inline constexpr int kHeadRoom = kHeadColumns + kBehind, kMostPairs = kHeadColumns / 2;
static_assert(kPairElements <= kBehind);

// A head as a row of the norm, with any of its roundings. Where all kernels are general ones, they
// have the slots of LAYER, and the statistic is a run-time value.
template <class Element, Stat kStat_>
struct HeadSlots {
  using T = Element;
  static constexpr Source kSource = Source::kPlain;
  static constexpr Stat kStat = kStat_;
  static constexpr Affine kAffine = Affine::kAny;
  static constexpr bool kAnyStat = kGeneralOnly;
};

// All heads of a token as one row.
template <class Element, Stat kStat_>
struct AcrossSlots : HeadSlots<Element, kStat_> {};

template <class Element, Stat kStat>
struct RowSource<AcrossSlots<Element, kStat>> {
  using T = Element;

  // The elements may lie in two heads or more.
  template <class Extent>
  FASTNORM_INLINE Pair take(int64_t i, Extent extent) const {
    const int64_t column = i % columns;
    if (column + extent.count <= columns) return extent.load(T{}, at(i));
    char piece[kPairElements * T::kBytes] = {};
    for (int k = 0; k < extent.count; ++k)
      __builtin_memcpy(piece + k * T::kBytes, at(i + k), T::kBytes);
    return extent.load(T{}, piece);
  }

  FASTNORM_INLINE const char* at(int64_t i) const {
    return x + i / columns * head_stride + i % columns * T::kBytes;
  }

  const char* const x;
  const int64_t head_stride, columns;
};

FASTNORM_INLINE char* at(const HeadRef& v, int64_t token, int64_t head) {
  return v.data + token * v.token_stride + head * v.head_stride;
}

FASTNORM_INLINE int64_t load_index(const IndexRef& t, int64_t axis, int64_t i) {
  const char* const p = t.data + axis * t.axis_stride + i * t.stride;
  if (t.wide) {
    int64_t value;
    __builtin_memcpy(&value, p, sizeof value);
    return value;
  }
  int32_t value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

// ---- Rope.

// The axis whose position pair j uses.
FASTNORM_INLINE int axis_of(const RopeParams& p, int64_t j) {
  if (p.mrope_interleaved) {
    const auto axis = static_cast<int>(j % 3);
    return axis >= 1 && j < p.section_end[axis] ? axis : 0;
  }
  int axis = 0;
  while (axis + 1 < p.axes && j >= p.section_end[axis]) ++axis;
  return axis;
}

// The entries of a table's row: all of them, or the first of each two.
template <class E>
inline void load_entries(const char* from, bool first_of_two, int n, float* to) {
  if (!first_of_two) return widen<E>(from, n, to);
  constexpr int kStep = 64;
  for (int i = 0; i < n; i += kStep) {
    const auto count = static_cast<int>(smaller(n - i, kStep));
    float two[2 * kStep];
    widen<E>(from + 2 * i * E::kBytes, 2 * count, two);
    for (int j = 0; j < count; ++j) to[i + j] = two[2 * j];
  }
}

// Cosines or sines of a token: from one row of the table, or from several for different pairs.
template <class E>
inline void load_table(const RopeParams& p, const RopeTableRef& table, int64_t head, int64_t token,
                       bool first_of_two, float* to) {
  const char* const base = table.data + head * table.head_stride;
  const auto n = static_cast<int>(p.half);
  float entries[kMostPairs + kBehind];
  for (int axis = 0; axis < p.axes; ++axis) {
    const int64_t row = p.positions.data == nullptr ? token : load_index(p.positions, axis, token);
    const char* const from = base + row * table.row_stride;
    if (p.axes == 1) return load_entries<E>(from, first_of_two, n, to);
    load_entries<E>(from, first_of_two, n, entries);
    for (int j = 0; j < n; ++j) to[j] = axis_of(p, j) == axis ? entries[j] : to[j];
  }
}

// Cosines and sines of the pairs of a row. For the inverse, the sines are negated.
struct Angles {
  float c[kMostPairs + kBehind], s[kMostPairs + kBehind];

  template <class T>
  void load(const RopeParams& p, const TurnParams& part, int64_t head, int64_t token) {
    const bool first_of_two = p.table_repeats && part.interleaved;
    if (p.table_f32) {
      load_table<F32>(p, p.cos, head, token, first_of_two, c);
      load_table<F32>(p, p.sin, head, token, first_of_two, s);
    } else {
      load_table<T>(p, p.cos, head, token, first_of_two, c);
      load_table<T>(p, p.sin, head, token, first_of_two, s);
    }
    for (int j = 0; part.inverse && j < p.half; ++j) s[j] = -s[j];
  }
};

// Pairs at a time, in loops of fixed length.
inline constexpr int kTurned = 64;

// Turns v1 and v2 into o1 and o2.
inline void turn_once(const float* c, const float* s, float* v1, float* v2) {
  for (int j = 0; j < kTurned; ++j) {
    const float a = v1[j], b = v2[j];
    v1[j] = __builtin_fmaf(a, c[j], -(b * s[j]));
    v2[j] = __builtin_fmaf(b, c[j], a * s[j]);
  }
}

template <class T>
inline void turn_every_step(const float* c, const float* s, float* v1, float* v2) {
  float ac[kTurned], bs[kTurned], bc[kTurned], as[kTurned];
  for (int j = 0; j < kTurned; ++j) {
    ac[j] = v1[j] * c[j], bs[j] = v2[j] * s[j];
    bc[j] = v2[j] * c[j], as[j] = v1[j] * s[j];
  }
  for (float* products : {ac, bs, bc, as}) round_values<T>(products, kTurned);
  for (int j = 0; j < kTurned; ++j) {
    v1[j] = ac[j] - bs[j];
    v2[j] = bc[j] + as[j];
  }
}

// Turns the columns from `window` on. Reads up to a vector behind the angles and the columns.
template <class T>
inline void turn(const TurnParams& part, const Angles& angles, int half, float* window) {
  // The first element of pair j is at j * step, the second `apart` elements after it.
  const int step = part.interleaved ? 2 : 1, apart = part.interleaved ? 1 : half;
  for (int i = 0; i < half; i += kTurned) {
    const auto count = static_cast<int>(smaller(half - i, kTurned));
    float v1[kTurned] = {}, v2[kTurned] = {}, c[kTurned] = {}, s[kTurned] = {};
    for (int j = 0; j < count; ++j) {
      v1[j] = window[(i + j) * step];
      v2[j] = window[(i + j) * step + apart];
      c[j] = angles.c[i + j];
      s[j] = angles.s[i + j];
    }
    if (part.rope_every_step) {
      turn_every_step<T>(c, s, v1, v2);
    } else {
      turn_once(c, s, v1, v2);
    }
    for (int j = 0; j < count; ++j) {
      window[(i + j) * step] = v1[j];
      window[(i + j) * step + apart] = v2[j];
    }
  }
}

}  // namespace
}  // namespace fastnorm::cpu
