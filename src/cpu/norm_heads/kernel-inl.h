// The kernels of norm_heads. The unit of each instruction set instantiates them once.
//
// The parts of the norm's row loop normalise a row of d columns. Where the call stores
// elements, rope rotates them in registers. Otherwise the values stay in f32, in the order of the
// columns. Rope rotates them there, and the norm's quantisers make the codes. So all values have
// the same bits as those of the norm.
#pragma once

#include "cpu/norm/kernel-inl.h"
#include "cpu/norm_heads/parts-inl.h"

namespace fastnorm::cpu {
namespace {

template <class T, Stat kStat>
inline void take_head(const NormHeadsPartParams& part, const Row& row, const Statistics& s,
                      float* v) {
  using Slots = HeadSlots<T, kStat>;
  const auto n = static_cast<int>(part.norm.n);
  if (!part.normalise) return widen<T>(row.x, n, v);
  const Rounding<Affine::kAny, T> rounding(part.norm);
  const RowSource<Slots> source(part.norm, row);
  const RowAffine<Slots, AnyWeights> affine(part.norm, row, s, rounding);
  for_pairs(
      n, [&](int i, auto extent) __attribute__((always_inline)) {
        const Pair z = affine.apply(source.take(i, extent), i, extent);
        store_values(v + i, from_layout(T{}, extent.first(T{}, z)));
      });
}

// ---- Quantised output.

// Where a row of y goes; nullptr: nowhere.
struct RowOfY {
  char* at;
  bool f32;  // otherwise T
};

template <class T>
inline void store_y(const RowOfY& y, int i, const float* v, int count) {
  if (y.at == nullptr) return;
  if (y.f32) {
    narrow<F32>(v, count, y.at + int64_t{i} * F32::kBytes);
  } else {
    narrow<T>(v, count, y.at + int64_t{i} * T::kBytes);
  }
}

// The values [i, i + count) to be quantised, with zeros behind them. Stores them if y is rotated.
// Returns how many there are with zeros.
template <class T>
inline int take_quantised(const QuantParams& q, float clamp, const float* v, int i, int count,
                          const RowOfY& rotated, float (&values)[kQuantChunk]) {
  const int padded = (count + kPadded - 1) / kPadded * kPadded;
  for (int j = 0; j < count; ++j) values[j] = v[i + j];
  for (int j = count; j < padded; ++j) values[j] = 0.0f;
  if (q.from_rounded) round_values<T>(values, padded);
  if (q.rotation != 0) {
    rotate_values(q, i, count, values);
    store_y<T>(rotated, i, values, count);
    if (q.from_rounded) round_values<T>(values, padded);
  }
  clamp_values(values, padded, clamp);
  return padded;
}

// Codes and scales of a row, made as the norm makes them, and y if it is rotated.
template <class T>
inline void put_quantised(const QuantParams& q, const QuantRow& out, const float* v, int n,
                          const RowOfY& rotated, uint32_t* amax) {
  float values[kQuantChunk];
  const float clamp = clamp_of(q);
  float inverse = 0.0f;
  if (q.tensor_scale != nullptr) {
    const float scale = load_f32(q.tensor_scale);
    inverse = q.divides ? scale : 1.0f / scale;
  } else if (q.codes_wanted && q.block == 0) {
    uint32_t most = 0;
    for (int i = 0; i < n; i += kQuantChunk) {
      const auto count = static_cast<int>(smaller(n - i, kQuantChunk));
      const int padded = take_quantised<T>(q, clamp, v, i, count, {}, values);
      most = greater(most, magnitude_bits(values, padded));
    }
    inverse = out.put_row_scale(q, most);
  }
  for (int i = 0; i < n; i += kQuantChunk) {
    const auto count = static_cast<int>(smaller(n - i, kQuantChunk));
    const int padded = take_quantised<T>(q, clamp, v, i, count, rotated, values);
    if (q.amax != nullptr) *amax = greater(*amax, magnitude_bits(values, padded));
    if (!q.codes_wanted) continue;
    if (q.block == 0 && !q.divides) {
      out.put_codes<true>(q, i, count, values, inverse, false);
      continue;
    }
    if (q.block == 0) {
      divide_values(values, padded, inverse);
    } else {
      out.scale_by_block(q, i, count, padded, values);
    }
    out.put_codes<false>(q, i, count, values, 1.0f, false);
  }
  out.end(q, n);
}

// ---- A part of a token.

template <class T>
inline float load_weight(OperandType type, const char* from) {
  float value[kBehind];
  if (type == OperandType::kF32) {
    value[0] = load_f32(from);
  } else if (type == OperandType::kElement) {
    widen<T>(from, 1, value);
  } else if (type == OperandType::kF16) {
    widen<F16>(from, 1, value);
  } else {
    widen<BF16>(from, 1, value);
  }
  return value[0];
}

// The value of a row's first scale, from memory.
inline float first_scale(const QuantParams& q, const QuantRow& row) {
  if (q.tensor_scale != nullptr) return load_f32(q.tensor_scale);
  const char* const at =
      q.swizzled ? q.scale.data + QuantRow::swizzled(q, row.number, 0) : row.scale;
  if (q.scale_type == ScaleType::kF32) return load_f32(at);
  const auto byte = static_cast<uint8_t>(*at);
  return byte == 0xff ? from_bits(0x7fc00000) : power_of_two(byte - 127);
}

// The weight of a head times the scale of its codes, which have been stored.
template <class T>
inline void put_head_weight(const NormHeadsPartParams& part, const QuantRow& codes, int64_t token,
                            int64_t head) {
  const float weight = load_weight<T>(part.weights_type, at(part.weights, token, head)),
              scaled = weight * first_scale(part.norm.quant, codes);
  store_statistic(at(part.weights_out, token, head), scaled * part.weights_factor);
}

// The statistic of a row: computed, or the caller's. Stores what the caller wants of it.
template <class Slots>
inline Statistics head_statistics(const NormHeadsPartParams& part, const RowSource<Slots>& source,
                                  int64_t token, int64_t head) {
  if (part.rstd_in.data != nullptr) {
    const float mean =
        part.mean_in.data == nullptr ? 0.0f : load_f32(at(part.mean_in, token, head));
    return {mean, load_f32(at(part.rstd_in, token, head)), 0.0f};
  }
  const Rounding<Slots::kAffine, typename Slots::T> rounding(part.statistics);
  const Statistics s = statistics<Slots>(part.statistics, source, rounding, Nothing{});
  if (part.mean.data != nullptr) store_statistic(at(part.mean, token, head), s.mean);
  if (part.rstd.data != nullptr) store_statistic(at(part.rstd, token, head), s.rstd);
  if (part.sumsq.data != nullptr) {
    char* to = at(part.sumsq, token, head);
    if (part.layer) {
      store_statistic(to, s.mean);
      to += sizeof(float);
    }
    store_statistic(to, s.squared);
  }
  return s;
}

// A token's place in the caches: negative for padding, and 0 in a call without slots.
FASTNORM_INLINE int64_t slot_of(const NormHeadsParams& p, int64_t token) {
  if (token >= p.slot_count) return -1;
  return p.slots.data == nullptr ? 0 : load_index(p.slots, 0, token);
}

// Where a token's rows go in the cache: the row of head 0, or nullptr.
struct CacheRow {
  char *row, *scale, *tail;
};

FASTNORM_INLINE CacheRow cache_row(const HeadsCacheParams& c, int64_t slot) {
  if (c.rows.data == nullptr) return {nullptr, nullptr, nullptr};
  const int64_t page = slot / c.page_size, row = slot % c.page_size;
  const auto at = [&](const RowRef& t) {
    return t.data + page * t.stride_bytes[2] + row * t.stride_bytes[1];
  };
  return {at(c.rows), at(c.quant.scale), at(c.tail)};
}

// Buffers for a range of tokens.
struct HeadScratch {
  float v[kHeadRoom];
  Angles angles;
};

template <class T>
inline void store_head(const NormHeadsPartParams& part, const Row& row, const QuantRow& codes,
                       const CacheRow& cached, int64_t head, const float* v, uint32_t* amax) {
  const auto n = static_cast<int>(part.norm.n);
  const RowOfY y = {row.y, part.norm.y_type == OperandType::kF32};
  const QuantParams& q = part.norm.quant;
  if (!q.y_rotated) store_y<T>(y, 0, v, n);
  if (q.codes_wanted || q.amax != nullptr)
    put_quantised<T>(q, codes, v, n, q.y_rotated ? y : RowOfY{}, amax);
  if (cached.row == nullptr) return;
  const HeadsCacheParams& c = part.cache;
  char* const to = cached.row + head * c.rows.stride_bytes[0];
  if (!c.codes) return narrow<T>(v, n, to);
  const QuantRow out = {0, to, cached.scale + head * c.quant.scale.stride_bytes[0]};
  uint32_t unused = 0;
  const int columns = n - static_cast<int>(c.tail_columns);
  put_quantised<T>(c.quant, out, v, columns, {}, &unused);
  if (columns != n)
    narrow<T>(v + columns, n - columns, cached.tail + head * c.tail.stride_bytes[0]);
}

// All that is written of padding: the zeros behind and below swizzled scales.
inline void pad_part(const NormHeadsPartParams& part, int64_t token) {
  const QuantParams& q = part.norm.quant;
  if (!q.codes_wanted) return;
  for (int64_t head = 0; head < part.heads; ++head)
    QuantRow{token * part.heads + head, nullptr, nullptr}.end(q, part.norm.n);
}

// ---- Heads in registers.

// Heads whose statistics are computed before the first of them is stored: each is a chain of
// dependent operations, and the chains run side by side. The heads stay in the level-1 cache.
inline constexpr int64_t kGroup = 8, kGroupBytes = 8192;

template <class Element, Stat kStat_, Affine kAffine_>
struct PassedSlots {
  using T = Element;
  static constexpr Source kSource = Source::kPlain;
  static constexpr Stat kStat = kStat_;
  static constexpr Affine kAffine = kAffine_;
  static constexpr bool kAnyStat = false;
};

FASTNORM_INLINE bool stores_elements(const NormHeadsPartParams& part) {
  const QuantParams& q = part.norm.quant;
  return part.norm.y_type <= OperandType::kElement && !q.codes_wanted && q.amax == nullptr &&
         !part.cache.codes;
}

// From x to y and to the cache; nullptr = not wanted.
template <class T, Stat kStat, Affine kAffine>
inline void pass_head(const NormHeadsPartParams& part, const Row& row, const Statistics& s,
                      const Angles& angles, int half, char* cached) {
  using Slots = PassedSlots<T, kStat, kAffine>;
  const Rounding<kAffine, T> rounding(part.norm);
  const RowSource<Slots> source(part.norm, row);
  const RowAffine<Slots, AnyWeights> affine(part.norm, row, s, rounding);
  const auto take = [&](int64_t i, auto extent) __attribute__((always_inline)) {
    Pair z = source.take(i, extent);
    if (part.normalise) z = affine.apply(z, i, extent);
    return part.round_before_rope ? round_pair(T{}, z) : z;
  };
  const auto put = [&](int64_t i, Pair z, auto extent) __attribute__((always_inline)) {
    if (row.y != nullptr) extent.store(T{}, row.y + i * T::kBytes, z, false);
    if (cached != nullptr) extent.store(T{}, cached + i * T::kBytes, z, false);
  };
  const auto n = static_cast<int>(part.norm.n), offset = static_cast<int>(part.rope_offset);
  const int rotated = part.rope ? 2 * half : 0;
  if (part.rope) {
    rotate_columns<T, T>(
        part, angles, half,
        [&](int i, auto extent) __attribute__((always_inline)) { return take(offset + i, extent); },
        [&](int i, Pair z, auto extent)
            __attribute__((always_inline)) { put(offset + i, z, extent); });
  }
  // The columns before the window and behind it.
  for (int begin = 0, end = rotated == 0 ? n : offset; begin < n; begin = end + rotated, end = n) {
    for_pairs(
        end - begin, [&](int i, auto extent) __attribute__((always_inline)) {
          put(begin + i, take(begin + i, extent), extent);
        });
  }
}

template <class T, Stat kStat, Affine kAffine>
inline void pass_part(const NormHeadsParams& p, const NormHeadsPartParams& part, int64_t token,
                      const CacheRow& cached, Statistics s, HeadScratch& scratch) {
  using Slots = PassedSlots<T, kStat, kAffine>;
  const auto load_angles = [&](int64_t head) __attribute__((always_inline)) {
    scratch.angles.load<T>(p, part, head, token);
    scratch.angles.template arrange<T>(p, part);
  };
  const bool one_table = p.cos.head_stride == 0 && p.sin.head_stride == 0;
  if (part.rope && one_table) load_angles(0);
  Cursor cursor(part.norm, token * part.heads);
  Row rows[kGroup];
  Statistics own[kGroup];
  const int64_t group = smaller(kGroup, kGroupBytes / (part.norm.n * T::kBytes) + 1);
  for (int64_t first = 0; first < part.heads; first += group) {
    const int64_t count = smaller(group, part.heads - first);
    for (int64_t i = 0; i < count; ++i, cursor.next()) {
      rows[i] = cursor.row;
      own[i] = s;
      if (part.normalise && !part.across_heads)
        own[i] =
            head_statistics<Slots>(part, RowSource<Slots>(part.norm, rows[i]), token, first + i);
    }
    if (!part.stores_rows) continue;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t head = first + i;
      if (part.rope && !one_table) load_angles(head);
      char* const to =
          cached.row == nullptr ? nullptr : cached.row + head * part.cache.rows.stride_bytes[0];
      pass_head<T, kStat, kAffine>(part, rows[i], own[i], scratch.angles, static_cast<int>(p.half),
                                   to);
    }
  }
}

template <class T, Stat kStat>
inline void run_part(const NormHeadsParams& p, const NormHeadsPartParams& part, int64_t token,
                     int64_t slot, HeadScratch& scratch, uint32_t* amax) {
  Statistics s = {0.0f, 0.0f, 0.0f};
  if (part.across_heads) {
    const RowSource<AcrossSlots<T, kStat>> source = {part.norm.x.data + token * part.token_stride,
                                                     part.head_stride, part.norm.n};
    s = head_statistics<AcrossSlots<T, kStat>>(part, source, token, 0);
  }
  const CacheRow cached = cache_row(part.cache, slot);
  if constexpr (!kGeneralOnly) {
    // Other norms that round in between are rare, and their code is large.
    constexpr bool kMayRound = kStat == Stat::kRms && T::kBytes != F32::kBytes;
    if (stores_elements(part) && part.norm.plain)
      return pass_part<T, kStat, Affine::kOnce>(p, part, token, cached, s, scratch);
    if constexpr (kMayRound) {
      if (stores_elements(part))
        return pass_part<T, kStat, Affine::kAny>(p, part, token, cached, s, scratch);
    }
  }
  const bool one_table = p.cos.head_stride == 0 && p.sin.head_stride == 0;
  if (part.rope && one_table) scratch.angles.load<T>(p, part, 0, token);
  Cursor cursor(part.norm, token * part.heads);
  for (int64_t head = 0; head < part.heads; ++head, cursor.next()) {
    const Row& row = cursor.row;
    if (part.normalise && !part.across_heads) {
      const RowSource<HeadSlots<T, kStat>> source(part.norm, row);
      s = head_statistics<HeadSlots<T, kStat>>(part, source, token, head);
    }
    if (!part.stores_rows) continue;
    take_head<T, kStat>(part, row, s, scratch.v);
    if (part.round_before_rope) round_values<T>(scratch.v, static_cast<int>(part.norm.n));
    if (part.rope) {
      if (!one_table) scratch.angles.load<T>(p, part, head, token);
      rotate_window<T>(part, scratch.angles, static_cast<int>(p.half),
                       scratch.v + part.rope_offset);
    }
    const QuantRow codes = {token * part.heads + head, cursor.at(part.norm.quant.codes),
                            cursor.at(part.norm.quant.scale)};
    store_head<T>(part, row, codes, cached, head, scratch.v, amax);
    if (part.weights_out.data != nullptr) put_head_weight<T>(part, codes, token, head);
  }
}

template <class T>
void norm_heads_kernel(const NormHeadsParams& p, int64_t begin, int64_t end) {
  HeadScratch scratch;
  uint32_t amax[kHeadsParts] = {};
  for (int64_t token = begin; token < end; ++token) {
    const int64_t slot = slot_of(p, token);
    for (int i = 0; i < p.count; ++i) {
      if (slot < 0) {
        pad_part(p.part[i], token);
      } else if (kGeneralOnly || p.part[i].layer) {
        run_part<T, Stat::kLayer>(p, p.part[i], token, slot, scratch, &amax[i]);
      } else {
        run_part<T, Stat::kRms>(p, p.part[i], token, slot, scratch, &amax[i]);
      }
    }
  }
  for (int i = 0; i < p.count; ++i) {
    if (p.part[i].norm.quant.amax != nullptr) raise_amax(p.part[i].norm.quant.amax, amax[i]);
  }
}

constexpr NormHeadsKernels kNormHeadsOfUnit = {
    {norm_heads_kernel<F32>, norm_heads_kernel<F16>, norm_heads_kernel<BF16>}};

}  // namespace
}  // namespace fastnorm::cpu
