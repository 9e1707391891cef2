// The forward row kernel. The unit of each instruction set instantiates it once.
//
// A row is read once from memory. The first pass computes statistics. LAYER's second pass and the
// apply pass read the cache. The apply pass stores everything. While it writes row r it prefetches
// row r + 1, and it uses streaming stores for outputs larger than the caches. On a Sapphire Rapids,
// 4096 x 4096 bf16, the two save a third: 1.30 -> 0.84 of memcpy's time. If computing takes longer
// than memory, the first pass over row r + 1 runs together with the writes of row r. Memory is then
// never idle (kReadAhead).
#pragma once

#include <utility>

#include "cpu/norm/kernels.h"
#include "cpu/norm/parts-inl.h"
#include "cpu/norm/quant-inl.h"

namespace fastnorm::cpu {
namespace {

// Prefetches into the level-2 cache. In level 1 the prefetched lines would evict the row at work.
// Zen 4, 512 x 8192 f32, in the time of a copy: 1.67 -> 1.48.
FASTNORM_INLINE void prefetch(const char* p, int64_t bytes) {
  constexpr int kRead = 0, kSecondCache = 2;
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, kRead, kSecondCache);
}

template <class Slots>
FASTNORM_INLINE void prefetch_next(const NormParams& p, const Row& row, int64_t i, int pairs) {
  using T = typename Slots::T;
  prefetch(row.next_x + i * T::kBytes, int64_t{pairs} * kPairElements * T::kBytes);
  if constexpr (Slots::kSource == Source::kAdd) {
    if (Slots::kAffine == Affine::kAny && row.next_residual == nullptr) return;
    const int64_t bytes = bytes_of<Slots::kAffine, T>(p.residual_type);
    prefetch(row.next_residual + i * bytes, pairs * kPairElements * bytes);
  }
}

template <class Slots>
FASTNORM_INLINE void prefetch_pairs(const NormParams& p, const Row& row, int64_t i, int pairs) {
  if (row.next_x != nullptr) prefetch_next<Slots>(p, row, i, pairs);
}

// Elements [i, end) of a row.
template <class Slots, class Apply>
FASTNORM_INLINE void apply_pairs(const NormParams& p, const Row& row, int64_t i, int64_t end,
                                 const Apply& apply) {
  constexpr int64_t kUnit = int64_t{kApplyPairs} * kPairElements;
  for (; i + kUnit <= end; i += kUnit) {
    prefetch_pairs<Slots>(p, row, i, kApplyPairs);
#pragma GCC unroll kUnroll
    for (int j = 0; j < kApplyPairs; ++j) apply(i + j * kPairElements, Whole{});
  }
  for (; i < end; i += kPairElements) {
    prefetch_pairs<Slots>(p, row, i, 1);
    apply(i, Some{static_cast<int>(smaller(end - i, kPairElements))});
  }
}

// Applies to one pair of a row and stores it.
template <class Slots, class Affine, class Stores>
struct ApplyPair {
  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t i, Extent extent) const {
    const Pair s = source.take(i, extent);
    if constexpr (Slots::kAnyStat) {
      Pair t = s;
      if (source.adds()) {
        sink.store_sum(s, i, extent);
        t = affine.rounding.applied(s);
      }
      sink.store(affine.apply_to(t, i, extent), i, extent);
    } else {
      const Pair z = affine.apply(s, i, extent);
      sink.store_sum(s, i, extent);
      sink.store(z, i, extent);
    }
  }

  const RowSource<Slots>& source;
  const Affine& affine;
  const RowSink<Slots, Stores> sink;
};

// Elements [begin, end).
template <class Slots, class Affine, class Stores>
FASTNORM_INLINE void apply_row(const NormParams& p, const Row& row, int64_t begin, int64_t end,
                               const RowSource<Slots>& source, const Affine& affine,
                               Stores stores) {
  apply_pairs<Slots>(
      p, row, begin, end,
      ApplyPair<Slots, Affine, Stores>{source, affine, RowSink<Slots, Stores>(p, row, stores)});
}

// Elements before the first aligned vector of y.
template <class Slots>
FASTNORM_INLINE int64_t unaligned_head(const NormParams& p, const Row& row) {
  const auto misaligned = reinterpret_cast<uintptr_t>(row.y) % kStreamBytes;
  const auto bytes = static_cast<uintptr_t>(bytes_of<Slots::kAffine, typename Slots::T>(p.y_type));
  return static_cast<int64_t>((kStreamBytes - misaligned) % kStreamBytes / bytes);
}

// Whether residual_out is aligned where y is.
template <class Slots>
FASTNORM_INLINE bool aligned_at(const NormParams& p, const Row& row, int64_t i) {
  const int64_t bytes = bytes_of<Slots::kAffine, typename Slots::T>(p.residual_out_type);
  const auto address = reinterpret_cast<uintptr_t>(row.residual_out);  // 0 if absent
  return (address + static_cast<uintptr_t>(i * bytes)) % kStreamBytes == 0;
}

template <class Slots, class Weights>
FASTNORM_INLINE void apply_row(const NormParams& p, const Row& row, const RowSource<Slots>& source,
                               Statistics statistics,
                               const Rounding<Slots::kAffine, typename Slots::T>& rounding) {
  const RowAffine<Slots, Weights> affine(p, row, statistics, rounding);
  // Rows in the cache: a branch at each store costs 6 % (RMS 1 x 4096 bf16, Sapphire Rapids).
  if (Weights::kFixed && kStreamBytes > 1 && !p.stream)
    return apply_row(p, row, 0, p.n, source, affine, Cached{});
  const int64_t head = p.stream ? smaller(unaligned_head<Slots>(p, row), p.n) : p.n;
  for (int64_t begin = 0, end = head; begin < p.n; begin = end, end = p.n) {
    const bool streamed = begin == head;
    apply_row(p, row, begin, end, source, affine,
              Streamed{streamed, streamed && aligned_at<Slots>(p, row, begin)});
  }
}

FASTNORM_INLINE void store_statistic(char* p, float f) {
  if (p != nullptr) __builtin_memcpy(p, &f, sizeof f);
}

// The statistics of a row. Those of a general row are a function of its own, which storing and
// quantising kernels share.
template <class Slots>
FASTNORM_INLINE Statistics
row_statistics(const NormParams& p, const Row&, const RowSource<Slots>& source,
               const Rounding<Slots::kAffine, typename Slots::T>& rounding) {
  return statistics<Slots>(p, source, rounding, Nothing{});
}
template <class Slots>
requires Slots::kAnyStat __attribute__((noinline)) Statistics row_statistics(
    const NormParams& p, const Row& row, const RowSource<Slots>&,
    const Rounding<Affine::kAny, typename Slots::T>&) {
  const Rounding<Affine::kAny, typename Slots::T> rounding(p);
  return statistics<Slots>(p, RowSource<Slots>(p, row), rounding, Nothing{});
}

// Writes a row with streaming stores while it reads the next row for the first time. Returns the
// next row's statistics.
template <class Slots, class Weights>
FASTNORM_INLINE Statistics apply_and_read_next(
    const NormParams& p, const Row& row, const RowSource<Slots>& source, Statistics of_row,
    const Row& next, const Rounding<Slots::kAffine, typename Slots::T>& rounding) {
  using T = typename Slots::T;
  // Far enough ahead to hide memory's latency. Past the end of a row it is the row after.
  constexpr int64_t kBytesAhead = 16384;
  const RowAffine<Slots, Weights> affine(p, row, of_row, rounding);
  const ApplyPair<Slots, RowAffine<Slots, Weights>, Streamed> apply{
      source, affine,
      RowSink<Slots, Streamed>(p, row, Streamed{true, aligned_at<Slots>(p, row, 0)})};
  return statistics<Slots>(
      p, RowSource<Slots>(p, next),
      rounding, [&](int64_t i, auto extent) __attribute__((always_inline)) {
        prefetch(next.x + i * T::kBytes + kBytesAhead, kPairElements * T::kBytes);
        if constexpr (Slots::kSource == Source::kAdd)
          prefetch(next.residual + i * T::kBytes + kBytesAhead, kPairElements * T::kBytes);
        apply(i, extent);
      });
}

// Walks the rows. It keeps the digits of the row number in base p.outer, the first digit the
// fastest.
struct Cursor {
  Cursor(const NormParams& params, int64_t number) : p(params) {
    for (int d = 0; d < kRowDims; ++d) {
      digit[d] = number % p.outer[d];
      number /= p.outer[d];
    }
    locate();
  }

  // Most steps change only the first digit.
  FASTNORM_INLINE void next() {
    if (++digit[0] < p.outer[0]) {
      step(row.x, p.x), step(row.residual, p.residual), step(row.y, p.y);
      step(row.residual_out, p.residual_out), step(row.mean, p.mean), step(row.rstd, p.rstd);
      row.weight += p.weight.stride_bytes[0];
      row.bias += p.bias.stride_bytes[0];
      return;
    }
    digit[0] = 0;
    if (++digit[1] == p.outer[1]) {
      digit[1] = 0;
      if (++digit[2] == p.outer[2]) digit[2] = 0;
    }
    locate();
  }

  template <class Pointer>
  static FASTNORM_INLINE void step(Pointer& at, const RowRef& t) {
    at += t.stride_bytes[0];  // 0 if the tensor is absent
  }

  int64_t offset(const int64_t (&stride_bytes)[kRowDims]) const {
    return digit[0] * stride_bytes[0] + digit[1] * stride_bytes[1] + digit[2] * stride_bytes[2];
  }
  char* at(const RowRef& t) const { return t.data + offset(t.stride_bytes); }
  const char* at(const WeightRef& c) const { return c.data + offset(c.stride_bytes); }

  void locate() {
    row = {at(p.x),    at(p.residual), at(p.y),      at(p.residual_out),
           at(p.mean), at(p.rstd),     at(p.weight), at(p.bias),
           nullptr,    nullptr};
  }

  const NormParams& p;
  int64_t digit[kRowDims];
  Row row;
};

template <class Slots, class Weights>
void normalise_rows(const NormParams& p, int64_t begin, int64_t end) {
  constexpr bool kMayReadAhead = kReadAhead && Slots::kAffine == Affine::kOnce && Weights::kFixed;
  const Rounding<Slots::kAffine, typename Slots::T> rounding(p);
  Cursor cursor(p, begin);
  Statistics s = {0.0f, 0.0f, 0.0f};
  bool known = false;
  for (int64_t r = begin; r < end; ++r) {
    Row row = cursor.row;
    const RowSource<Slots> source(p, row);
    const bool last = r + 1 == end;
    cursor.next();
    if (!known) s = row_statistics<Slots>(p, row, source, rounding);
    store_statistic(row.mean, s.mean);
    store_statistic(row.rstd, s.rstd);
    if constexpr (kMayReadAhead) {
      known = p.read_ahead && !last;
      if (known) {
        s = apply_and_read_next<Slots, Weights>(p, row, source, s, cursor.row, rounding);
        continue;
      }
    }
    if (p.prefetch && !last) {
      row.next_x = cursor.row.x;
      row.next_residual = cursor.row.residual;
    }
    apply_row<Slots, Weights>(p, row, source, s, rounding);
  }
  if (p.stream) end_stream();
}

// The common cases have loops of their own: RMSNorm with a weight, LayerNorm with weight and bias
// of one dtype. All others share a loop that checks for each pair of vectors.
template <class Slots>
FASTNORM_INLINE void normalise_rows(const NormParams& p, int64_t begin, int64_t end) {
  constexpr bool kLayer = Slots::kStat == Stat::kLayer;
  constexpr OperandType kElement = OperandType::kElement, kF32 = OperandType::kF32,
                        kAbsent = OperandType::kAbsent;
  const OperandType bias = kLayer ? p.weight_type : kAbsent;
  if (p.bias_type == bias) {
    if (p.weight_type == kElement) {
      return normalise_rows<Slots, FixedWeights<kElement, kLayer ? kElement : kAbsent>>(p, begin,
                                                                                        end);
    }
    if (Slots::T::kBytes != F32::kBytes && p.weight_type == kF32) {
      return normalise_rows<Slots, FixedWeights<kF32, kLayer ? kF32 : kAbsent>>(p, begin, end);
    }
  }
  normalise_rows<Slots, AnyWeights>(p, begin, end);
}

// ---- Sink::kQuant: the row in chunks of f32 values, which are then quantised.

// Applies weight and bias to the elements [i, i + count), and stores the results if asked. Puts
// the values to be quantised into `values`, in order, and pads them with zeros. Returns the number
// of values with the padding.
template <class Slots, class Weights, class Sink>
FASTNORM_INLINE int take_values_inline(const NormParams& p, const Row& row,
                                       const RowSource<Slots>& source,
                                       const RowAffine<Slots, Weights>& affine, const Sink& sink,
                                       int64_t i, int count, bool stores,
                                       float (&values)[kQuantChunk]) {
  using T = typename Slots::T;
  const auto take = [&](int j, auto extent) __attribute__((always_inline)) {
    if (stores) prefetch_next<Slots>(p, row, i + j, 1);
    const Pair s = source.take(i + j, extent);
    Pair z = affine.apply(s, i + j, extent);
    if (stores) {
      sink.store_sum(s, i + j, extent);
      if (row.y != nullptr) sink.store(z, i + j, extent);
    }
    if (p.quant.from_rounded) z = round_pair(T{}, z);
    store(F32{}, reinterpret_cast<char*>(values + j), from_layout(T{}, extent.first(T{}, z)));
  };
  int j = 0;
  for (; j + kPairElements <= count; j += kPairElements) take(j, Whole{});
  if (j < count) {
    take(j, Some{count - j});
    j += kPairElements;
  }
  const int padded = (count + kPadded - 1) / kPadded * kPadded;
  for (; j < padded; ++j) values[j] = 0.0f;
  clamp_values(values, padded, clamp_of(p.quant));
  return padded;
}

template <bool kStore, class Slots, class Weights, class Sink>
FASTNORM_INLINE int take_values(const NormParams& p, const Row& row, const RowSource<Slots>& source,
                                const RowAffine<Slots, Weights>& affine, const Sink& sink,
                                int64_t i, int count, float (&values)[kQuantChunk]) {
  return take_values_inline(p, row, source, affine, sink, i, count, kStore, values);
}

// A general row's values: one function for both passes.
template <class Slots, class Sink>
__attribute__((noinline)) int take_general_values(const NormParams& p, const Row& row,
                                                  const RowSource<Slots>& source,
                                                  const RowAffine<Slots, AnyWeights>& affine,
                                                  const Sink& sink, int64_t i, int count,
                                                  bool stores, float (&values)[kQuantChunk]) {
  return take_values_inline(p, row, source, affine, sink, i, count, stores, values);
}
template <bool kStore, class Slots, class Sink>
requires Slots::kAnyStat FASTNORM_INLINE int take_values(const NormParams& p, const Row& row,
                                                         const RowSource<Slots>& source,
                                                         const RowAffine<Slots, AnyWeights>& affine,
                                                         const Sink& sink, int64_t i, int count,
                                                         float (&values)[kQuantChunk]) {
  return take_general_values(p, row, source, affine, sink, i, count, kStore, values);
}

template <class Slots, class Weights>
FASTNORM_INLINE void quantise_row(const NormParams& p, const Row& row, const QuantRow& out,
                                  uint32_t* amax) {
  const QuantParams& q = p.quant;
  const Rounding<Slots::kAffine, typename Slots::T> rounding(p);
  const RowSource<Slots> source(p, row);
  const Statistics s = row_statistics<Slots>(p, row, source, rounding);
  store_statistic(row.mean, s.mean);
  store_statistic(row.rstd, s.rstd);
  const RowAffine<Slots, Weights> affine(p, row, s, rounding);
  const bool y_aligned = reinterpret_cast<uintptr_t>(row.y) % kStreamBytes == 0;
  const RowSink<Slots, Streamed> sink(
      p, row, Streamed{p.stream && y_aligned, p.stream && aligned_at<Slots>(p, row, 0)});
  float values[kQuantChunk];
  float inverse = 0.0f;
  if (q.tensor_scale != nullptr) {
    const float scale = load_f32(q.tensor_scale);
    inverse = q.divides ? scale : 1.0f / scale;
  } else if (q.codes_wanted && q.block == 0) {  // a pass of its own for the row's scale
    uint32_t most = 0;
    for (int64_t i = 0; i < p.n; i += kQuantChunk) {
      const int count = static_cast<int>(smaller(p.n - i, kQuantChunk));
      const int padded = take_values<false>(p, row, source, affine, sink, i, count, values);
      most = greater(most, magnitude_bits(values, padded));
    }
    inverse = out.put_row_scale(q, most);
  }
  for (int64_t i = 0; i < p.n; i += kQuantChunk) {
    const int count = static_cast<int>(smaller(p.n - i, kQuantChunk));
    const int padded = take_values<true>(p, row, source, affine, sink, i, count, values);
    if (q.amax != nullptr) *amax = greater(*amax, magnitude_bits(values, padded));
    if (!q.codes_wanted) continue;
    if (q.block == 0 && q.divides) {
      divide_values(values, padded, inverse);
      out.put_codes<false>(q, i, count, values, 1.0f, p.stream);
    } else if (q.block == 0) {
      out.put_codes<true>(q, i, count, values, inverse, p.stream);
    } else {
      out.scale_by_block(q, i, count, padded, values);
      out.put_codes<false>(q, i, count, values, 1.0f, p.stream);
    }
  }
  out.end(q, p.n);
}

template <class Slots, class Weights>
void quantise_rows(const NormParams& p, int64_t begin, int64_t end) {
  Cursor cursor(p, begin);
  uint32_t amax = 0;
  for (int64_t r = begin; r < end; ++r) {
    const QuantRow out = {r, cursor.at(p.quant.codes), cursor.at(p.quant.scale)};
    Row row = cursor.row;
    cursor.next();
    // The last row is its own next row. A condition in quantise_row() would let compilers split the
    // loop in two, and the halves may differ in the sign of a NaN.
    const Row& next = p.prefetch && r + 1 != end ? cursor.row : row;
    row.next_x = next.x;
    row.next_residual = next.residual;
    quantise_row<Slots, Weights>(p, row, out, &amax);
  }
  if (p.stream) end_stream();
  if (p.quant.amax != nullptr) raise_amax(p.quant.amax, amax);
}

// The kernel of one table entry.
template <size_t kIndex>
void kernel(const NormParams& p, int64_t begin, int64_t end) {
  constexpr NormKey kKey = kNormTable[kIndex].key;
  using General = GeneralSlots<typename ElementOf<kKey.dtype>::Type, Source::kAdd>;
  using Once = Slots<kKey.dtype, kKey.source, kKey.stat, Affine::kOnce>;
  if constexpr (kKey.sink == Sink::kQuant) {
    // One loop is for weight and bias of x's dtype and no rounding in between, one for any call.
    constexpr OperandType kElement = OperandType::kElement,
                          kBias = kKey.stat == Stat::kLayer ? kElement : OperandType::kAbsent;
    if constexpr (!kGeneralOnly) {
      if (p.plain && p.weight_type == kElement && p.bias_type == kBias)
        return quantise_rows<Once, FixedWeights<kElement, kBias>>(p, begin, end);
    }
    quantise_rows<General, AnyWeights>(p, begin, end);
  } else {
    if constexpr (!kGeneralOnly) {
      if (kKey.affine == Affine::kOnce || p.plain) return normalise_rows<Once>(p, begin, end);
    }
    normalise_rows<General, AnyWeights>(p, begin, end);
  }
}

template <size_t kIndex, Dtype... kDtypes>
constexpr NormKernel kernel_of_dtypes() {
  if constexpr (((kNormTable[kIndex].key.dtype == kDtypes) || ...)) return kernel<kIndex>;
  return nullptr;
}
template <Dtype... kDtypes, size_t... kIndex>
constexpr NormKernels kernels_of_dtypes(std::index_sequence<kIndex...>) {
  return {{kernel_of_dtypes<kIndex, kDtypes...>()...}};
}

// The kernels of these dtypes; nullptr for the others.
template <Dtype... kDtypes>
constexpr NormKernels kernels_of() {
  return kernels_of_dtypes<kDtypes...>(std::make_index_sequence<kNormKernels>{});
}
constexpr NormKernels all_kernels() { return kernels_of<Dtype::kF32, Dtype::kF16, Dtype::kBF16>(); }

}  // namespace
}  // namespace fastnorm::cpu
