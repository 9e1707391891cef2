// The MLA decode kernel of the CPU. The unit of each instruction set instantiates it once.
//
// A group of heads of one token goes through the token's cache in blocks, with a running maximum.
// Everything is f32, except the probabilities. They are rounded to the cache's dtype before they
// multiply the values. Results do not depend on other heads or requests, or on where a range
// begins.
#pragma once

#include "cpu/mla_decode_params.h"
#include "cpu/simd.h"

namespace fastnorm::cpu {
namespace {

constexpr int kLatent = 512, kRope = 64, kWidth = kLatent + kRope;
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

// A probability from 0 to 1, rounded to the cache's dtype.
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

// A token's request, its position there, and its cache.
struct TokenCache {
  int64_t request;
  const int32_t* pages;
  int32_t length;  // tokens that this token attends to
};

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

FASTNORM_INLINE TokenCache cache_of(const MlaDecodeParams& p, int64_t token) {
  const int64_t b = request_of(p, token);
  if (b >= p.batch) return {b, nullptr, 0};
  const int64_t first = p.qo_indptr == nullptr ? b * p.s_q : p.qo_indptr[b];
  const int64_t s_q = p.qo_indptr == nullptr ? p.s_q : p.qo_indptr[b + 1] - first;
  int64_t length = p.kv_len[b];
  if (p.causal) length += token - first + 1 - s_q;
  const int64_t list = p.kv_indptr == nullptr ? b * p.table_stride : p.kv_indptr[b];
  return {b, p.page_table + list, static_cast<int32_t>(length > 0 ? length : 0)};
}

// The work of one group: heads [first, first + kHeads) of a token.
template <class T, int kHeads>
struct Group {
  alignas(64) float q[kHeads][kWidth];   // in T's layout
  alignas(64) float o[kHeads][kLatent];  // in T's layout, relative to the maximum
  alignas(64) float score[kHeads][kBlock];
  float maximum[kHeads], sum[kHeads];
  const char* ckv[kBlock];
  const char* kpe[kBlock];
};

template <class T, int kHeads>
FASTNORM_INLINE void begin_group(const MlaDecodeParams& p, int64_t token, int head,
                                 Group<T, kHeads>* g) {
  for (int h = 0; h < kHeads; ++h) {
    const int64_t row = head + h;
    const char* nope = p.q_nope.data + token * p.q_nope.outer + row * p.q_nope.inner;
    const char* pe = p.q_pe.data + token * p.q_pe.outer + row * p.q_pe.inner;
    for (int i = 0; i < kLatent; i += kPairLanes) {
      store_pair(g->q[h] + i, load(T{}, nope + i * T::kBytes));
      store_pair(g->o[h] + i, {zero(), zero()});
    }
    for (int i = 0; i < kRope; i += kPairLanes)
      store_pair(g->q[h] + kLatent + i, load(T{}, pe + i * T::kBytes));
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
FASTNORM_INLINE void scores(const MlaDecodeParams& p, int count, Group<T, kHeads>* g) {
  for (int j = 0; j < count; ++j) {
    Pair sum[kHeads];
    for (int h = 0; h < kHeads; ++h) sum[h] = {zero(), zero()};
    dot<T, kHeads>(g->q, 0, g->ckv[j], kLatent, sum);
    dot<T, kHeads>(g->q, kLatent, g->kpe[j], kRope, sum);
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
FASTNORM_INLINE void values(int count, Group<T, kHeads>* g) {
  for (int i = 0; i < kLatent; i += kPairLanes) {
    Pair o[kHeads];
    for (int h = 0; h < kHeads; ++h) o[h] = load_pair(g->o[h] + i);
    for (int j = 0; j < count; ++j) {
      const Pair v = load(T{}, g->ckv[j] + i * T::kBytes);
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

template <class T, int kHeads>
FASTNORM_INLINE void end_group(const MlaDecodeParams& p, int64_t token, int head,
                               const Group<T, kHeads>& g) {
  for (int h = 0; h < kHeads; ++h) {
    const int64_t row = head + h;
    const bool attends = g.sum[h] > 0;
    const Vec factor = broadcast(attends ? 1.0f / g.sum[h] : 1.0f);
    char* o = p.o.data + token * p.o.outer + row * p.o.inner;
    for (int i = 0; i < kLatent; i += kPairLanes) {
      const Pair v = load_pair(g.o[h] + i);
      store(T{}, o + i * T::kBytes, {mul(v.a, factor), mul(v.b, factor)});
    }
    if (p.lse.data == nullptr) continue;
    const double lse =
        attends ? (g.maximum[h] + log2_of(g.sum[h])) * p.lse_scale : -__builtin_inf();
    const auto rounded = static_cast<float>(lse);
    __builtin_memcpy(p.lse.data + token * p.lse.outer + row * p.lse.inner, &rounded, 4);
  }
}

// Addresses of the rows of a block.
FASTNORM_INLINE void find_rows(const MlaDecodeParams& p, const TokenCache& cache, int64_t from,
                               int count, const char** ckv, const char** kpe) {
  int64_t page = from / p.page_size, row = from % p.page_size;
  for (int j = 0; j < count; ++j) {
    const int64_t number = cache.pages[page];
    ckv[j] = p.ckv.data + number * p.ckv.outer + row * p.ckv.inner;
    kpe[j] = p.kpe.data + number * p.kpe.outer + row * p.kpe.inner;
    if (++row == p.page_size) {
      row = 0;
      ++page;
    }
  }
}

template <class T, int kHeads>
__attribute__((noinline)) void attend(const MlaDecodeParams& p, const TokenCache& cache,
                                      int64_t token, int head) {
  Group<T, kHeads> g;
  begin_group(p, token, head, &g);
  for (int64_t from = 0; from < cache.length; from += kBlock) {
    const int count = static_cast<int>(smaller(cache.length - from, kBlock));
    find_rows(p, cache, from, count, g.ckv, g.kpe);
    scores(p, count, &g);
    softmax(count, &g);
    values(count, &g);
  }
  end_group(p, token, head, g);
}

template <class T>
void mla_decode_groups(const MlaDecodeParams& p, int64_t begin, int64_t end) {
  const int64_t groups = (p.heads + kMlaHeadGroup - 1) / kMlaHeadGroup;  // groups of a token
  for (int64_t i = begin; i < end; ++i) {
    const int64_t token = i / groups;
    const int first = static_cast<int>(i % groups) * kMlaHeadGroup;
    const TokenCache cache = cache_of(p, token);
    if (cache.request >= p.batch) continue;  // the row belongs to no request
    if (first + kMlaHeadGroup <= p.heads) {
      attend<T, kMlaHeadGroup>(p, cache, token, first);
    } else {
      for (int head = first; head < p.heads; ++head) attend<T, 1>(p, cache, token, head);
    }
  }
}

constexpr MlaDecodeKernels kMlaDecodeOfUnit = {
    {mla_decode_groups<F32>, mla_decode_groups<F16>, mla_decode_groups<BF16>}};

}  // namespace
}  // namespace fastnorm::cpu
