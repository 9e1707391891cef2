// What norm_heads and its backward share: all heads of a token as one row, and rope.
#pragma once

#include "cpu/norm/parts-inl.h"
#include "cpu/norm_heads/params.h"

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
    if (head_stride == columns * T::kBytes) return extent.load(T{}, x + i * T::kBytes);
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
  void load(const RopeParams& p, const PartRope& part, int64_t head, int64_t token) {
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

  // Puts them where rotate_columns() meets them. An interleaved row separates its pairs in order.
  template <class Layout>
  void arrange(const RopeParams& p, const PartRope& part) {
    if (part.interleaved) return;
    const auto n = static_cast<int>(p.half);
    for (float* v : {c, s}) {
      for (int i = 0; i < n; i += kPairElements)
        store_values(v + i, to_layout(Layout{}, load_values(v + i)));
    }
  }
};

// Rotates the pairs of two vectors: (a, b) by the angles whose cosines are c and whose sines are s.
struct RotatedPair {
  Vec a, b;
};

template <class T>
FASTNORM_INLINE RotatedPair rotate_vectors(bool every_step, Vec a, Vec b, Vec c, Vec s) {
  const Vec bs = mul(b, s), as = mul(a, s);
  if (every_step) {
    return {sub(round(T{}, mul(a, c)), round(T{}, bs)), add(round(T{}, mul(b, c)), round(T{}, as))};
  }
  return {fused_minus(a, c, bs), fused(b, c, as)};
}

// The elements 2j of a pair of vectors, and the elements 2j + 1: the layout of bf16.
template <class Layout>
FASTNORM_INLINE Pair separate(Layout, Pair v) {
  return to_layout(BF16{}, v);
}
FASTNORM_INLINE Pair separate(BF16, Pair v) { return v; }
template <class Layout>
FASTNORM_INLINE Pair join(Layout, Pair v) {
  return from_layout(BF16{}, v);
}
FASTNORM_INLINE Pair join(BF16, Pair v) { return v; }

// Rotates the window of 2 * half columns. take(i, extent) gives the columns from i on in the layout
// of Layout, and put(i, pair, extent) stores them. Each column is taken once, before it is put. The
// angles are in order, or arranged for Layout. Reads up to two vectors behind them.
template <class T, class Layout, class Take, class Put>
FASTNORM_INLINE void rotate_columns(const PartRope& part, const Angles& angles, int half,
                                    const Take& take, const Put& put) {
  const bool every_step = part.rope_every_step;
  if (part.interleaved) {
    for_pairs(
        2 * half, [&](int i, auto extent) __attribute__((always_inline)) {
          const Pair v = separate(Layout{}, take(i, extent));
          const Vec c = load_values(angles.c + i / 2).a, s = load_values(angles.s + i / 2).a;
          const RotatedPair o = rotate_vectors<T>(every_step, v.a, v.b, c, s);
          put(i, join(Layout{}, Pair{o.a, o.b}), extent);
        });
    return;
  }
  for_pairs(
      half, [&](int i, auto extent) __attribute__((always_inline)) {
        const Pair first = take(i, extent), second = take(i + half, extent);
        const Pair c = load_values(angles.c + i), s = load_values(angles.s + i);
        const RotatedPair a = rotate_vectors<T>(every_step, first.a, second.a, c.a, s.a);
        const RotatedPair b = rotate_vectors<T>(every_step, first.b, second.b, c.b, s.b);
        put(i, Pair{a.a, b.a}, extent);
        put(i + half, Pair{a.b, b.b}, extent);
      });
}

// Rotates columns of values.
template <class T>
inline void rotate_window(const PartRope& part, const Angles& angles, int half, float* window) {
  rotate_columns<T, F32>(
      part, angles, half,
      [&](int i, auto extent) __attribute__((always_inline)) {
        return extent.load(F32{}, reinterpret_cast<const char*>(window + i));
      },
      [&](int i, Pair v, auto extent) __attribute__((always_inline)) {
        extent.store(F32{}, reinterpret_cast<char*>(window + i), v, false);
      });
}

}  // namespace
}  // namespace fastnorm::cpu
