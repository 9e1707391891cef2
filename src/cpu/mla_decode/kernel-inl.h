// The MLA decode kernel of the CPU. The unit of each instruction set instantiates it once.
//
// Groups of heads of one token go through the token's cache in blocks, each with a running maximum.
// Everything is f32, except the probabilities. They are rounded to T before they multiply the
// values. Rows of an FP8 cache become rows of T, a block of tokens at a time, and several groups
// share them. Results do not depend on other heads or requests, or on where a range begins.
#pragma once

#include "core/mla_decode/work.h"
#include "cpu/common/simd.h"
#include "cpu/mla_decode/params.h"

namespace fastnorm::cpu {
namespace {

constexpr int kLatent = kMlaLatent, kRope = kMlaRope, kWidth = kLatent + kRope;
constexpr int kBlock = 16;  // tokens
constexpr int kPairLanes = 2 * kLanes;

// f32 values as a Pair, in the layout of a dtype's load.
FASTNORM_INLINE Pair load_pair(const float* p) {
  return load(F32{}, reinterpret_cast<const char*>(p));
}
FASTNORM_INLINE void store_pair(float* p, Pair v) { store(F32{}, reinterpret_cast<char*>(p), v); }

// 2^x for x <= 0, and 0 below -126. Within 2 units in the last place. The nearest integer becomes
// the exponent; a polynomial computes the rest.
FASTNORM_INLINE float exp2_below(float x) {
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float clamped = x < -126.0f ? -126.0f : x;
  const float shifted = clamped + kRounder;
  const float f = clamped - (shifted - kRounder);
  // Taylor series of 2^f, |f| <= 1/2: the next term is below 2^-27.
  float r = 1.5252734e-5f;
  r = r * f + 1.5403530e-4f;
  r = r * f + 1.3333558e-3f;
  r = r * f + 9.6181291e-3f;
  r = r * f + 5.5504109e-2f;
  r = r * f + 2.4022651e-1f;
  r = r * f + 6.9314718e-1f;
  r = r * f + 1.0f;
  const float result = from_bits(bits_of(r) + (bits_of(shifted) << 23));
  return x < -126.0f ? 0.0f : result;
}

// A probability from 0 to 1, rounded to T.
FASTNORM_INLINE float round_probability(F32, float p) { return p; }
FASTNORM_INLINE float round_probability(BF16, float p) {
  const uint32_t u = bits_of(p);
  return from_bits((u + 0x7fff + (u >> 16 & 1)) & 0xffff0000);
}
FASTNORM_INLINE float round_probability(F16, float p) {
  const uint32_t u = bits_of(p);
  const float normal = from_bits((u + 0xfff + (u >> 13 & 1)) & 0xffffe000);
  const float small = (p + 0.5f) - 0.5f;  // below 2^-14 the unit is that of 0.5
  return p < 0x1p-14f ? small : normal;
}

// --- rows of the cache ---

// A block of tokens: addresses of rows of T, and those that are made of FP8 rows.
template <class T>
struct Block {
  const char* ckv[kBlock];
  const char* kpe[kBlock];
  alignas(64) float values[kWidth];
  alignas(64) char rows[kBlock][kWidth * T::kBytes];
};

// The value of an f8_e4m3fn code. In the place of those of f32, its exponent and significand are
// 2^-120 times the value.
FASTNORM_INLINE float from_e4m3(uint32_t code) {
  const uint32_t magnitude = code & 0x7f;
  const uint32_t value = bits_of(from_bits(magnitude << 20) * 0x1p120f);
  return from_bits((magnitude == 0x7f ? 0x7fc00000u : value) | (code & 0x80) << 24);
}

// 2^(code - 127); NaN for 255.
FASTNORM_INLINE float from_e8m0(uint8_t code) {
  const uint32_t bits = code == 0 ? 0x00400000u : uint32_t{code} << 23;
  return from_bits(code == 0xff ? 0x7fc00000u : bits);
}

FASTNORM_INLINE void decode_codes(const char* __restrict__ codes, int count, float scale,
                                  float* __restrict__ values) {
  for (int i = 0; i < count; ++i) values[i] = from_e4m3(static_cast<uint8_t>(codes[i])) * scale;
}

// The rope of a row, which is bf16.
FASTNORM_INLINE void decode_rope(const char* __restrict__ from, float* __restrict__ values) {
  for (int i = 0; i < kRope; ++i) {
    uint16_t bits;
    __builtin_memcpy(&bits, from + 2 * i, sizeof bits);
    values[i] = from_bits(uint32_t{bits} << 16);
  }
}

template <class T>
FASTNORM_INLINE void encode(const float* values, int count, char* to) {
  for (int i = 0; i < count; i += kPairLanes)
    store(T{}, to + i * T::kBytes, to_layout(T{}, load_pair(values + i)));
}

// Row `row` of an FP8 page, as a row of T.
template <class T>
FASTNORM_INLINE void decode_row(const MlaDecodeParams& p, const MlaDecodePages& cache,
                                const char* page, int64_t row, float* values, char* to) {
  constexpr int kScaleColumns = 128, kPageScaleColumns = 64;  // of a scale
  const char* const bytes = page + row * cache.ckv.inner;
  if (p.format == MlaRows::kFp8Blocks) {
    for (int b = 0; b < kLatent / kScaleColumns; ++b) {
      float scale;
      __builtin_memcpy(&scale, bytes + kLatent + 4 * b, sizeof scale);
      const int at = b * kScaleColumns;
      decode_codes(bytes + at, kScaleColumns, scale, values + at);
    }
    decode_rope(bytes + kLatent + 16, values + kLatent);
  } else if (p.format == MlaRows::kFp8Tensor) {
    decode_codes(bytes, kWidth, p.cache_scale == nullptr ? 1.0f : *p.cache_scale, values);
  } else {
    constexpr int kCodes = kLatent - kRope, kRowBytes = kCodes + 2 * kRope;
    const char* const own = page + row * kRowBytes;
    const char* const scales = page + cache.page_size * kRowBytes + row * 8;
    for (int b = 0; b < kCodes / kPageScaleColumns; ++b) {
      const int at = b * kPageScaleColumns;
      decode_codes(own + at, kPageScaleColumns, from_e8m0(static_cast<uint8_t>(scales[b])),
                   values + at);
    }
    decode_rope(own + kCodes, values + kCodes);
    return encode<T>(values, kLatent, to);
  }
  encode<T>(values, kWidth, to);
}

// Puts one row of the cache into the place `j` of a block.
template <class T>
FASTNORM_INLINE void put_row(const MlaDecodeParams& p, const MlaDecodePages& cache, int64_t page,
                             int64_t row, int j, Block<T>* block) {
  const char* const ckv = cache.ckv.data + page * cache.ckv.outer;
  if (p.format == MlaRows::kOfT) {
    block->ckv[j] = ckv + row * cache.ckv.inner;
    block->kpe[j] = cache.kpe.data + page * cache.kpe.outer + row * cache.kpe.inner;
    return;
  }
  decode_row<T>(p, cache, ckv, row, block->values, block->rows[j]);
  block->ckv[j] = block->rows[j];
  block->kpe[j] = block->rows[j] + kLatent * T::kBytes;
}

// The rows that a new token attends to, from the next one on.
struct Cursor {
  const int32_t* list;  // pages of a request, or indices of the cache `which`
  int64_t next, end;    // tokens of the request, or indices
  int32_t which;
  int64_t request, token;  // of a sparse call; the token is counted from the request's first
};

// The indices of the cache `which`.
FASTNORM_INLINE void begin_indices(const MlaDecodeParams& p, Cursor* c) {
  const MlaDecodeSelected& s = p.cache[c->which].selected;
  c->list = s.indices + c->request * s.outer + c->token * s.inner;
  c->next = 0;
  c->end = s.lengths == nullptr
               ? s.topk
               : s.lengths[c->request * s.length_outer + c->token * s.length_inner];
}

// Fills a block; returns how many tokens it has.
template <class T>
FASTNORM_INLINE int next_selected(const MlaDecodeParams& p, Cursor* c, Block<T>* block) {
  int count = 0;
  while (count < kBlock) {
    if (c->next == c->end) {
      if (c->which + 1 == p.caches) break;
      ++c->which;
      begin_indices(p, c);
      continue;
    }
    const int64_t index = c->list[c->next++];
    if (index < 0) continue;
    const MlaDecodePages& cache = p.cache[c->which];
    put_row(p, cache, index / cache.page_size, index % cache.page_size, count++, block);
  }
  return count;
}

template <class T>
__attribute__((noinline)) int next_rows(const MlaDecodeParams& p, Cursor* c, Block<T>* block) {
  if (p.sparse) return next_selected(p, c, block);
  const MlaDecodePages& cache = p.cache[0];
  const int count = static_cast<int>(smaller(c->end - c->next, kBlock));
  int64_t page = c->next / cache.page_size, row = c->next % cache.page_size;
  for (int j = 0; j < count; ++j) {
    put_row(p, cache, c->list[page], row, j, block);
    if (++row == cache.page_size) {
      row = 0;
      ++page;
    }
  }
  c->next += count;
  return count;
}

// --- a new token's request ---

FASTNORM_INLINE int64_t request_of(const MlaDecodeParams& p, int64_t token) {
  if (p.qo_indptr == nullptr) return token / p.s_q;
  // Finds the last request that is not empty and begins at or before the token; `batch` if the
  // token is past the end.
  int64_t low = 0, high = p.batch;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (p.qo_indptr[middle + 1] <= token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Where the rows of a new token begin. `request` is p.batch if it belongs to none.
FASTNORM_INLINE Cursor rows_of(const MlaDecodeParams& p, int64_t token) {
  const int64_t b = request_of(p, token);
  if (b >= p.batch) return {nullptr, 0, 0, 0, b, 0};
  if (p.sparse) {
    Cursor c = {nullptr, 0, 0, 0, b, token - b * p.s_q};
    begin_indices(p, &c);
    return c;
  }
  const int64_t first = p.qo_indptr == nullptr ? b * p.s_q : p.qo_indptr[b];
  const int64_t s_q = p.qo_indptr == nullptr ? p.s_q : p.qo_indptr[b + 1] - first;
  int64_t length = p.kv_len[b];
  if (p.causal) length += token - first + 1 - s_q;
  const int64_t list = p.kv_indptr == nullptr ? b * p.table_stride : p.kv_indptr[b];
  return {p.page_table + list, 0, length > 0 ? length : 0, 0, b, token - first};
}

// The work of one group: heads [first, first + kHeads) of a token.
template <class T, int kHeads>
struct Group {
  alignas(64) float q[kHeads][kWidth];   // in T's layout
  alignas(64) float o[kHeads][kLatent];  // in T's layout, relative to the maximum
  alignas(64) float score[kHeads][kBlock];
  float maximum[kHeads], sum[kHeads];
};

template <class T, int kHeads>
FASTNORM_INLINE void begin_group(const MlaDecodeParams& p, int64_t token, int head,
                                 Group<T, kHeads>* g) {
  const int columns = p.format == MlaRows::kFp8Pages ? kLatent - kRope : kLatent;
  for (int h = 0; h < kHeads; ++h) {
    const int64_t row = head + h;
    const char* nope = p.q_nope.data + token * p.q_nope.outer + row * p.q_nope.inner;
    const char* pe = p.q_pe.data + token * p.q_pe.outer + row * p.q_pe.inner;
    for (int i = 0; i < columns; i += kPairLanes)
      store_pair(g->q[h] + i, load(T{}, nope + i * T::kBytes));
    for (int i = 0; i < kRope; i += kPairLanes)
      store_pair(g->q[h] + columns + i, load(T{}, pe + i * T::kBytes));
    for (int i = 0; i < kLatent; i += kPairLanes) store_pair(g->o[h] + i, {zero(), zero()});
    g->maximum[h] = -__builtin_inff();
    g->sum[h] = 0;
  }
}

// Adds products with `width` columns of a cached row to the partial sums.
template <class T, int kHeads>
FASTNORM_INLINE void dot(const float (*q)[kWidth], int from, const char* row, int width,
                         Pair (&sum)[kHeads]) {
  for (int i = 0; i < width; i += kPairLanes) {
    const Pair k = load(T{}, row + i * T::kBytes);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const Pair a = load_pair(q[h] + from + i);
      sum[h] = {fused(a.a, k.a, sum[h].a), fused(a.b, k.b, sum[h].b)};
    }
  }
}

template <class T, int kHeads>
FASTNORM_INLINE void scores(const MlaDecodeParams& p, const Block<T>& block, int count,
                            Group<T, kHeads>* g) {
  for (int j = 0; j < count; ++j) {
    Pair sum[kHeads];
    for (int h = 0; h < kHeads; ++h) sum[h] = {zero(), zero()};
    dot<T, kHeads>(g->q, 0, block.ckv[j], kLatent, sum);
    if (p.format != MlaRows::kFp8Pages) dot<T, kHeads>(g->q, kLatent, block.kpe[j], kRope, sum);
    for (int h = 0; h < kHeads; ++h)
      g->score[h][j] = sum_lanes(add(sum[h].a, sum[h].b)) * p.scale_log2;
  }
}

// Turns scores into probabilities relative to the new maximum.
template <class T, int kHeads>
FASTNORM_INLINE void softmax(int count, Group<T, kHeads>* g) {
  for (int h = 0; h < kHeads; ++h) {
    float* s = g->score[h];
    for (int j = count; j < kBlock; ++j) s[j] = -__builtin_inff();
    float top = g->maximum[h];
    for (int j = 0; j < count; ++j) top = s[j] > top ? s[j] : top;
    if (top > g->maximum[h]) {
      const float scale = exp2_below(g->maximum[h] - top);
      g->maximum[h] = top;
      g->sum[h] *= scale;
      const Vec scales = broadcast(scale);
      for (int i = 0; i < kLatent; i += kPairLanes) {
        const Pair o = load_pair(g->o[h] + i);
        store_pair(g->o[h] + i, {mul(o.a, scales), mul(o.b, scales)});
      }
    }
    for (int j = 0; j < kBlock; ++j) s[j] = exp2_below(s[j] - top);
    float sum = 0;
    for (int j = 0; j < count; ++j) sum += s[j];
    g->sum[h] += sum;
    for (int j = 0; j < kBlock; ++j) s[j] = round_probability(T{}, s[j]);
  }
}

template <class T, int kHeads>
FASTNORM_INLINE void values(const Block<T>& block, int count, Group<T, kHeads>* g) {
  for (int i = 0; i < kLatent; i += kPairLanes) {
    Pair o[kHeads];
    for (int h = 0; h < kHeads; ++h) o[h] = load_pair(g->o[h] + i);
    for (int j = 0; j < count; ++j) {
      const Pair v = load(T{}, block.ckv[j] + i * T::kBytes);
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) {
        const Vec probability = broadcast(g->score[h][j]);
        o[h] = {fused(probability, v.a, o[h].a), fused(probability, v.b, o[h].b)};
      }
    }
    for (int h = 0; h < kHeads; ++h) store_pair(g->o[h] + i, o[h]);
  }
}

// log2 of a positive number: the exponent plus a series in (m - 1) / (m + 1). The significand m is
// from 2/3 to 4/3.
FASTNORM_INLINE double log2_of(float x) {
  uint32_t u = bits_of(x);
  const uint32_t offset = u - 0x3f2aaaab;  // 2/3
  const auto exponent = static_cast<int32_t>(offset) >> 23;
  u -= static_cast<uint32_t>(exponent) << 23;
  const double m = from_bits(u), t = (m - 1) / (m + 1), t2 = t * t;
  double series = 1.0 / 11;
  series = series * t2 + 1.0 / 9;
  series = series * t2 + 1.0 / 7;
  series = series * t2 + 1.0 / 5;
  series = series * t2 + 1.0 / 3;
  series = series * t2 + 1.0;
  return exponent + 2 * t * series * 1.4426950408889634;
}

// What a sink leaves of o: exp(lse) / (exp(lse) + exp(sink)), for lse to base 2.
FASTNORM_INLINE float sink_factor(float sink, double lse) {
  const auto distance = static_cast<float>(double{sink} * 1.4426950408889634 - lse);
  if (distance <= 0) return 1.0f / (1.0f + exp2_below(distance));
  const float share = exp2_below(-distance);
  return share / (1.0f + share);
}

template <class T, int kHeads>
FASTNORM_INLINE void end_group(const MlaDecodeParams& p, int64_t token, int head,
                               const Group<T, kHeads>& g) {
  for (int h = 0; h < kHeads; ++h) {
    const int64_t row = head + h;
    const bool attends = g.sum[h] > 0;
    const double lse = attends ? g.maximum[h] + log2_of(g.sum[h]) : -__builtin_inf();
    float share = attends ? 1.0f / g.sum[h] : 1.0f;
    if (p.sink != nullptr && attends) share *= sink_factor(p.sink[row], lse);
    const Vec factor = broadcast(share);
    char* o = p.o.data + token * p.o.outer + row * p.o.inner;
    for (int i = 0; i < kLatent; i += kPairLanes) {
      const Pair v = load_pair(g.o[h] + i);
      store(T{}, o + i * T::kBytes, {mul(v.a, factor), mul(v.b, factor)});
    }
    if (p.lse.data == nullptr) continue;
    const auto rounded = static_cast<float>(lse * p.lse_scale);
    __builtin_memcpy(p.lse.data + token * p.lse.outer + row * p.lse.inner, &rounded, 4);
  }
}

template <class T, int kHeads>
__attribute__((noinline)) void add_block(const MlaDecodeParams& p, const Block<T>& block, int count,
                                         Group<T, kHeads>* g) {
  scores(p, block, count, g);
  softmax(count, g);
  values(block, count, g);
}

// Groups of heads that share the blocks of a token's rows. The last heads of a token, which are
// too few for a group, have one each.
constexpr int kTeam = 4;

template <class T>
struct Team {
  Group<T, kMlaHeadGroup> whole[kTeam];
  Group<T, 1> single[kMlaHeadGroup - 1];
  Block<T> block;
};

// Heads [first, end) of a token, of at most kTeam groups.
template <class T>
__attribute__((noinline)) void attend(const MlaDecodeParams& p, Cursor rows, int64_t token,
                                      int first, int end) {
  Team<T> t;
  const int wholes = (end - first) / kMlaHeadGroup, singles = (end - first) % kMlaHeadGroup,
            behind = end - singles;
  for (int g = 0; g < wholes; ++g) begin_group(p, token, first + g * kMlaHeadGroup, &t.whole[g]);
  for (int h = 0; h < singles; ++h) begin_group(p, token, behind + h, &t.single[h]);
  for (int count; (count = next_rows(p, &rows, &t.block)) != 0;) {
    for (int g = 0; g < wholes; ++g) add_block(p, t.block, count, &t.whole[g]);
    for (int h = 0; h < singles; ++h) add_block(p, t.block, count, &t.single[h]);
  }
  for (int g = 0; g < wholes; ++g) end_group(p, token, first + g * kMlaHeadGroup, t.whole[g]);
  for (int h = 0; h < singles; ++h) end_group(p, token, behind + h, t.single[h]);
}

template <class T>
void mla_decode_groups(const MlaDecodeParams& p, int64_t begin, int64_t end) {
  const int64_t groups = (p.heads + kMlaHeadGroup - 1) / kMlaHeadGroup;  // groups of a token
  for (int64_t i = begin, next; i < end; i = next) {
    const int64_t token = i / groups, group = i % groups;
    next = i + smaller(smaller(end - i, groups - group), kTeam);
    const Cursor rows = rows_of(p, token);
    if (rows.request >= p.batch) continue;  // the row belongs to no request
    attend<T>(p, rows, token, static_cast<int>(group) * kMlaHeadGroup,
              static_cast<int>(smaller(p.heads, (group + next - i) * kMlaHeadGroup)));
  }
}

constexpr MlaDecodeKernels kMlaDecodeOfUnit = {
    {mla_decode_groups<F32>, mla_decode_groups<F16>, mla_decode_groups<BF16>}};

}  // namespace
}  // namespace fastnorm::cpu
