// The general form: any dtypes, any address, any length, every option. A warp has a head of up to
// 1024 columns. A block has a longer head, or all heads of a token that share a statistic. Values
// wait in shared memory, as f32 in the order of their columns, for rope and quantisation.
#pragma once

#include "cuda/norm/rotation.cuh"
#include "cuda/norm/stream.cuh"
#include "cuda/norm_heads/rope.cuh"

namespace fastnorm::cuda {

inline constexpr int kHeadsThreads = kGeneralHeadsWarps * 32;

struct HeadsScratch {
  alignas(16) float values[kGeneralHeadsWarps * kWarpHeadColumns];
  float fold[2][kHeadsThreads];
  HeadsPartParams part;  // the block's: read from here, so that registers need not keep it
};
static_assert(kGeneralHeadsWarps * kWarpHeadColumns == kMaxHeadColumns);

// The threads that have a row: a warp, or the block. The same in all threads of a block.
struct HeadGroup {
  __device__ __forceinline__ explicit HeadGroup(bool is_warp) : warp(is_warp) {
    threads = is_warp ? 32 : kHeadsThreads;
    thread = static_cast<int>(threadIdx.x) & (threads - 1);
  }

  __device__ __forceinline__ void sync() const {
    if (warp) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
  __device__ __forceinline__ float* values(HeadsScratch& scratch) const {
    return scratch.values + (warp ? threadIdx.x / 32 * kWarpHeadColumns : 0);
  }

  bool warp;
  int threads, thread;
};

// The sums of a group by the canonical tree, in every thread: warps, then lanes.
template <class Fold, int kSums>
__device__ __forceinline__ void fold_group(float (&q)[kSums], const HeadGroup& group,
                                           HeadsScratch& scratch) {
  if (!group.warp) {
    __syncthreads();  // the last fold has been read
#pragma unroll
    for (int i = 0; i < kSums; ++i) scratch.fold[i][threadIdx.x] = q[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      float warps[kHeadsThreads / 32];
#pragma unroll
      for (int w = 0; w < kHeadsThreads / 32; ++w)
        warps[w] = scratch.fold[i][w * 32 + static_cast<int>(threadIdx.x % 32)];
      q[i] = fold_registers<Fold>(warps);
    }
  }
#pragma unroll
  for (float& value : q) value = fold_lanes<32, Fold>(value);
}

// The elements that share a statistic, vector by vector: those of a head, or of all heads.
template <class T>
struct HeadsRow {
  static constexpr int kPerVector = T::kPerVector;

  __device__ __forceinline__ HeadsRow(const HeadsPartParams& part, uint32_t token, uint32_t head,
                                      bool across)
      : x(address_of(part.x, token, across ? 0 : head)),
        head_stride(part.x.head_stride),
        columns(part.norm.n),
        elements(across ? part.norm.n * part.heads : part.norm.n),
        joined(!across || (part.bits & kHeadsJoined) != 0),
        wide(joined && access_bytes(x) == kVectorBytes && elements % kPerVector == 0) {}

  __device__ __forceinline__ int64_t vectors() const {
    return (elements + kPerVector - 1) / kPerVector;
  }
  // Elements of a vector, at most kPerVector; 0 past the end.
  __device__ __forceinline__ int count(int64_t vector) const {
    const int64_t left = elements - vector * kPerVector;
    return left >= kPerVector ? kPerVector : left < 0 ? 0 : static_cast<int>(left);
  }
  // What is missing is zero.
  __device__ __forceinline__ int take(float (&f)[kPerVector], int64_t vector) const {
    const int n = count(vector);
    if (joined) {
      take_at(f, x + vector * kVectorBytes, n);
    } else {
      const int64_t first = vector * kPerVector;
      int64_t head = first / columns, column = first - head * columns;
      if (column + n <= columns) {
        take_at(f, x + head * head_stride + column * T::kBytes, n);
      } else {
#pragma unroll
        for (int i = 0; i < kPerVector; ++i) {
          f[i] = i < n ? load_element<T>(x + head * head_stride + column * T::kBytes) : 0.0f;
          if (++column == columns) column = 0, ++head;
        }
      }
    }
    return n;
  }
  // A vector of a wide row; zero past the end.
  __device__ __forceinline__ void load(uint4& raw, int64_t vector) const {
    raw = make_uint4(0, 0, 0, 0);
    ptx::ld_global_v4_if(raw, x + vector * kVectorBytes, count(vector) > 0);
  }
  __device__ __forceinline__ float first() const { return load_element<T>(x); }

  static __device__ __forceinline__ void take_at(float (&f)[kPerVector], const char* address,
                                                 int count) {
    load_part<Part::kCounted, T>(
        f, AnyRow<T, const char>(address, kUnknownAlign, OperandType::kElement), 0, count);
  }

  const char* const x;
  const int64_t head_stride, columns, elements;
  const bool joined;  // one row in memory
  const bool wide;    // address and length are multiples of 16 bytes
};

struct HeadStatistics {
  float mean, rstd;
  float squared;  // sum of squares, of LAYER about the mean
};

// q[i] = sum_of(values, count) of a thread's vectors first + i * step.
template <class T, class Value, int kCount, typename Fn>
__device__ __forceinline__ void sums_of(const HeadGroup& group, const HeadsRow<T>& row,
                                        int64_t first, int64_t step, Value (&q)[kCount],
                                        Fn sum_of) {
  const auto number = [&](int i) { return group.thread + (first + i * step) * group.threads; };
  if (row.wide) {
    uint4 raw[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) row.load(raw[i], number(i));
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float s[T::kPerVector];
      T::unpack(raw[i], s);
      q[i] = sum_of(s, row.count(number(i)));
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) {
      float s[T::kPerVector];
      const int count = row.take(s, number(i));
      const Value sum = sum_of(s, count);
#pragma unroll
      for (int k = 0; k < kCount; ++k) q[k] = selected(k == i, sum, q[k]);
    }
  }
}

__device__ __forceinline__ float fold_values(float (&q)[8]) { return fold_registers(q); }
__device__ __forceinline__ float fold_values(float (&q)[4]) { return fold_registers(q); }
template <int kCount>
__device__ __forceinline__ Moments fold_values(const Moments (&q)[kCount]) {
  return fold_moments(q);
}

// A thread's fold of its vectors: of a head, a few; of a token's heads, any number.
template <class T, bool kAcross, class Fold, typename Fn>
__device__ __forceinline__ typename Fold::Value fold_vectors(const HeadGroup& group,
                                                             const HeadsRow<T>& row, Fn sum_of) {
  using Value = typename Fold::Value;
  if constexpr (kAcross) {
    const int64_t registers = (row.vectors() + group.threads - 1) / group.threads;
    return fold_stream<Fold, HeadGroup>(
        registers, [&](int64_t first, int64_t step, Value(&q)[StreamFold::kGroup]) {
          sums_of<T>(group, row, first, step, q, sum_of);
        });
  } else {
    constexpr int kMost = kWarpHeadColumns / 32 / T::kPerVector;
    static_assert(kMost * T::kPerVector * kHeadsThreads >= kMaxHeadColumns);
    Value q[kMost];
    sums_of<T>(group, row, 0, 1, q, sum_of);
    return fold_values(q);
  }
}

template <class T, bool kAcross>
__device__ __forceinline__ HeadStatistics statistics_of(const HeadGroup& group, const NormParams& p,
                                                        const HeadsRow<T>& row, bool layer,
                                                        const Rounding<Affine::kAny, T>& rounding,
                                                        HeadsScratch& scratch) {
  constexpr int kPerVector = T::kPerVector;
  HeadStatistics result = {0.0f, 0.0f, 0.0f};
  if (layer) {
    Moments m;
    const LayerStatistics statistics =
        layer_statistics(row.first(), p, rounding, [&](int, float from, bool steps) {
          const Moments of_thread = fold_vectors<T, kAcross, StreamMoments>(
              group, row, [&](const float(&s)[kPerVector], int count) {
                return moments<T, true>(s, from, count, steps);
              });
          float sums[2] = {of_thread.sum, of_thread.squares};
          fold_group<Sum>(sums, group, scratch);
          return m = {sums[0], sums[1]};
        });
    result.mean = statistics.mean();
    result.rstd = statistics.rstd(p, rounding);
    result.squared = squares_about_mean(m, p.inv_n, rounding.every_step);
  } else {
    float sum[1] = {fold_vectors<T, kAcross, StreamSum>(
        group, row,
        [&](float(&s)[kPerVector], int) { return squares<T>(s, rounding.every_step); })};
    fold_group<Sum>(sum, group, scratch);
    result.squared = sum[0];
    result.rstd = rstd_of(__fmul_rn(result.squared, p.inv_n), p, rounding);
  }
  return result;
}

// Computed and, unless the token is padding, stored where that is wanted; or given.
template <class T, bool kAcross>
__device__ __forceinline__ HeadStatistics
find_statistics(const HeadGroup& group, const HeadsPartParams& part, uint32_t token, uint32_t head,
                bool stores, const Rounding<Affine::kAny, T>& rounding, HeadsScratch& scratch) {
  if (part.rstd_in.data != nullptr) {
    const float mean = part.mean_in.data == nullptr
                           ? 0.0f
                           : ptx::ld_global_f32(address_of(part.mean_in, token, head));
    return {mean, ptx::ld_global_f32(address_of(part.rstd_in, token, head)), 0.0f};
  }
  const bool layer = (part.bits & kHeadsLayer) != 0;
  const HeadsRow<T> row(part, token, head, kAcross);
  const HeadStatistics s =
      statistics_of<T, kAcross>(group, part.norm, row, layer, rounding, scratch);
  if (group.thread == 0 && stores)
    put_statistics<true>(part, token, head, s.mean, s.rstd, s.squared);
  return s;
}

// The row's values before rope, to shared memory.
template <class T>
__device__ __forceinline__ void take_values(const HeadGroup& group, const HeadsPartParams& part,
                                            uint32_t token, uint32_t head, const HeadStatistics& s,
                                            const Rounding<Affine::kAny, T>& rounding,
                                            float* values) {
  constexpr int kPerVector = T::kPerVector;
  const NormParams& p = part.norm;
  const HeadsRow<T> row(part, token, head, false);
  const AnyWeight<T> weight(p.weight + int64_t{head} * p.weight_head_stride,
                            weight_type(p.bits_again), p.weight_align, 1.0f);
  const AnyWeight<T> bias(p.bias + int64_t{head} * p.bias_head_stride, bias_type(p.bits_again),
                          p.bias_align, -0.0f);
  const auto vectors = static_cast<int>(row.vectors());
#pragma unroll 1
  for (int v = group.thread; v < vectors; v += group.threads) {
    float z[kPerVector];
    const int count = row.take(z, v);
    if ((part.bits & kHeadsNorm) != 0) {
      float w[kPerVector], b[kPerVector];
      weight.template take<Part::kCounted>(w, v, count);
      bias.template take<Part::kCounted>(b, v, count);
      normalize_values(z, s.mean, s.rstd, (part.bits & kHeadsLayer) != 0, rounding);
      rounding.normalized(z);
      apply(z, z, w, b, p.weight_offset, s.rstd, rounding);
    }
    if ((part.bits & kHeadsRoundBefore) != 0) round_to<T>(z);
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) values[v * kPerVector + i] = z[i];
  }
}

template <class T>
__device__ __forceinline__ void rotate_values(const HeadGroup& group, const HeadsPartParams& part,
                                              const HeadsShared& shared, uint32_t token,
                                              uint32_t head, float* values) {
  const uint32_t bits = part.bits;
  const bool interleaved = (bits & kHeadsInterleaved) != 0,
             every_step = (bits & kHeadsRopeEveryStep) != 0;
  const int step = interleaved ? 2 : 1, apart = interleaved ? 1 : shared.half;
#pragma unroll 1
  for (int j = group.thread; j < shared.half; j += group.threads) {
    const int64_t row = table_row(shared, shared.axes == 1 ? 0 : axis_of(shared, j), token);
    const int entry = entry_of(shared, bits, j);
    const float c = load_entry<T>(shared, table_address(shared.cos, row, head), entry);
    float s = load_entry<T>(shared, table_address(shared.sin, row, head), entry);
    if ((bits & kHeadsInverse) != 0) s = -s;
    float* const first = values + part.rope_offset + j * step;
    rotate_pair<T>(first[0], first[apart], c, s, every_step);
  }
}

// Vector v of the values; what is missing is zero.
template <int kPerVector>
__device__ __forceinline__ int take_vector(float (&z)[kPerVector], const float* values, int n,
                                           int v) {
  const int count = n - v * kPerVector;
#pragma unroll
  for (int i = 0; i < kPerVector; ++i) z[i] = i < count ? values[v * kPerVector + i] : 0.0f;
  return count < kPerVector ? count : kPerVector;
}

template <class T>
__device__ __forceinline__ void store_elements(const HeadGroup& group, const float* values, int n,
                                               char* to, OperandType type = OperandType::kElement) {
  const AnyRow<T, char> row(to, kUnknownAlign, type);
#pragma unroll 1
  for (int v = group.thread; v * T::kPerVector < n; v += group.threads) {
    float z[T::kPerVector];
    const int count = take_vector(z, values, n, v);
    store_part<Part::kCounted, T>(z, row, v, count);
  }
}

// The value of a scale from its bits as stored.
__device__ __forceinline__ float scale_value(const QuantParams& q, uint32_t bits) {
  if (q.scale_type == ScaleType::kF32) return __uint_as_float(bits);
  return bits == 255 ? __uint_as_float(kMagnitude) : from_e8m0(bits);
}

// The row's codes and scales, and its share of amax. Also y, if it is rotated. Returns the first
// scale, in the group's first thread.
template <class T>
__device__ __forceinline__ float store_codes_of(const HeadGroup& group, const QuantParams& q,
                                                const RotationParams& rotation, char* codes,
                                                const ScaleRow& scales, const float* values, int n,
                                                const AnyRow<T, char>& y, HeadsScratch& scratch) {
  constexpr int kPerVector = T::kPerVector, kVectorShift = kPerVector == 8 ? 3 : 2;
  const int vectors = (n + kPerVector - 1) / kPerVector;
  const float clamp = clamp_of(q);
  const float static_scale = q.static_scale != nullptr ? ptx::ld_global_f32(q.static_scale) : 1.0f;
  // All lanes of a warp take a vector, which may be past the end.
  const auto take = [&](float(&z)[kPerVector], int v, bool stores) {
    const int count = take_vector(z, values, n, v);
    if (rotation.block != 0) {
      rotate<T>(rotation, q.from_rounded, z, v, count > 0);
      if (stores && rotation.of_y && y.data != nullptr && count > 0)
        store_part<Part::kCounted, T>(z, y, v, count);
    }
    prepare<T>(q, clamp, z);
    return count;
  };
  float inverse = 0.0f, first_scale = static_scale;
  if (q.rule == ScaleRule::kStatic) {
    inverse = q.divides ? static_scale : __frcp_rn(static_scale);
  } else if (q.rule != ScaleRule::kNoCodes && q.block == 0) {
    uint32_t most = 0;
#pragma unroll 1
    for (int first = 0; first < vectors; first += group.threads) {
      float z[kPerVector];
      take(z, first + group.thread, false);
      most = greater(most, magnitude_bits(z));
    }
    float greatest[1] = {__uint_as_float(most)};
    fold_group<Greatest>(greatest, group, scratch);
    most = __float_as_uint(greatest[0]);
    const Scale scale = free_scale(q, most);
    if (group.thread == 0) scales.put(0, scale.bits);
    inverse = scale.inverse, first_scale = scale_value(q, scale.bits);
  }
  uint32_t all = 0;
  // As often in every lane: blocks of columns are neighbouring lanes' vectors.
#pragma unroll 1
  for (int first = 0; first < vectors; first += group.threads) {
    const int v = first + group.thread;
    float z[kPerVector];
    const int count = take(z, v, true);
    uint32_t most = magnitude_bits(z);
    all = greater(all, most);
    if (q.rule == ScaleRule::kNoCodes) continue;
    if (q.block != 0) {
      const int shift = q.block_shift - kVectorShift, lanes = 1 << shift;
#pragma unroll
      for (int half = 1; half < 32; half *= 2) {
        const uint32_t other = __float_as_uint(__shfl_xor_sync(~0u, __uint_as_float(most), half));
        if (half < lanes) most = greater(most, other);
      }
      const Scale scale = make_scale(q, most, static_scale);
      if (count > 0 && (v & (lanes - 1)) == 0)
        scales.put(static_cast<uint32_t>(v >> shift), scale.bits);
      inverse = scale.inverse;
      if (first == 0) first_scale = scale_value(q, scale.bits);
    }
    if (q.divides) {
      divide_values(z, inverse);
    } else {
      scale_values(z, inverse);
    }
    if (count > 0) put_any_codes(q, codes, z, v, count);
  }
  if (q.amax != nullptr) raise_amax(q, all);
  return first_scale;
}

// Stores a head: its row, codes and scales, then its row of the cache, and the tail of that row.
// One loop has all of them, since the code that stores codes is the largest of this kernel. Padding
// gets the zeros behind and below swizzled scales alone.
template <class T>
__device__ __forceinline__ void store_head(const HeadGroup& group, const HeadsPartParams& part,
                                           const HeadsShared& shared, uint32_t token, uint32_t head,
                                           int64_t slot, const float* values,
                                           HeadsScratch& scratch) {
  const auto n = static_cast<int>(part.norm.n);
  const bool padding = slot < 0, caches = !padding && part.cache.data != nullptr;
  const int64_t page = caches ? slot / part.page_size : 0, row = slot - page * part.page_size;
  const auto at = [&](const HeadsPages& pages) {
    return pages.data + page * pages.page_stride + row * pages.row_stride +
           int64_t{head} * pages.head_stride;
  };
  const int destinations = !caches ? 1 : part.cache_tail.data == nullptr ? 2 : 3;
#pragma unroll 1
  for (int destination = 0; destination < destinations; ++destination) {
    const bool to_cache = destination != 0, to_tail = destination == 2;
    const bool to_codes =
        !to_tail && (part.bits & (to_cache ? kHeadsCacheCodes : kHeadsCodes)) != 0;
    const int columns = to_tail ? part.tail_columns : to_cache ? n - part.tail_columns : n;
    const auto y_type = static_cast<OperandType>(part.norm.y_type);
    const bool has_y = !padding && part.y.data != nullptr;
    if (to_cache ? !to_codes : has_y && !part.rotation.of_y) {
      char* const to =
          !to_cache ? address_of(part.y, token, head) : at(to_tail ? part.cache_tail : part.cache);
      store_elements<T>(group, to_tail ? values + n - columns : values, columns, to,
                        to_cache ? OperandType::kElement : y_type);
    }
    if (!to_codes) continue;
    const QuantParams& q = to_cache ? part.cache_quant : part.norm.quant;
    const ScaleRow scales(q, to_cache ? at(part.cache_scale) : address_of(part.scale, token, head),
                          to_cache ? 0 : token * part.heads + head);
    if (!padding) {
      const AnyRow<T, char> y(has_y && !to_cache ? address_of(part.y, token, head) : nullptr,
                              kUnknownAlign, y_type);
      const float scale =
          store_codes_of<T>(group, q, to_cache ? part.cache_rotation : part.rotation,
                            to_cache ? at(part.cache) : address_of(part.codes, token, head), scales,
                            values, columns, y, scratch);
      if (!to_cache && part.weights.out.data != nullptr && group.thread == 0)
        put_head_weight(
            part.weights, token, head,
            load_operand<T>(address_of(part.weights.in, token, head), part.weights.type), scale);
    }
    if (!to_cache && q.swizzled)
      scales.pad((n + q.block - 1) >> q.block_shift, shared.tokens * part.heads, group.thread,
                 group.threads);
  }
}

template <class T>
__device__ __forceinline__ void run_head(const HeadGroup& group, const HeadsPartParams& part,
                                         const HeadsShared& shared, uint32_t token, uint32_t head,
                                         int64_t slot, HeadStatistics s, HeadsScratch& scratch) {
  const Rounding<Affine::kAny, T> rounding(part.norm);
  if ((part.bits & (kHeadsNorm | kHeadsAcross)) == kHeadsNorm)
    s = find_statistics<T, false>(group, part, token, head, slot >= 0, rounding, scratch);
  if ((part.bits & kHeadsStoresRows) == 0) return;
  float* const values = group.values(scratch);
  take_values<T>(group, part, token, head, s, rounding, values);
  group.sync();
  if ((part.bits & kHeadsRope) != 0 && slot >= 0) {
    rotate_values<T>(group, part, shared, token, head, values);
    group.sync();
  }
  store_head<T>(group, part, shared, token, head, slot, values, scratch);
  group.sync();  // the next head's values come to the same place
}

// Number `number` of a part's blocks: a token whose heads share a statistic, a head, or some heads.
template <class T>
__device__ __forceinline__ void run_heads_block(const HeadsPartParams& part,
                                                const HeadsShared& shared, uint64_t number,
                                                HeadsScratch& scratch) {
  const bool by_block = (part.bits & kHeadsByBlock) != 0;
  const uint32_t warp = threadIdx.x / 32;
  uint32_t token, head, end, step = 1;
  int64_t slot;  // loaded ahead of x, and first looked at behind it
  HeadStatistics s = {0.0f, 0.0f, 0.0f};
  if ((part.bits & kHeadsAcross) != 0) {
    token = static_cast<uint32_t>(number);
    head = by_block ? 0 : warp, end = part.heads, step = by_block ? 1 : kGeneralHeadsWarps;
    slot = slot_of(shared, token);
    const Rounding<Affine::kAny, T> rounding(part.norm);
    s = find_statistics<T, true>(HeadGroup(false), part, token, 0, slot >= 0, rounding, scratch);
    __syncthreads();  // every element has been read that y may replace
  } else {
    const uint64_t row = by_block ? number : number * kGeneralHeadsWarps + warp;
    const auto low = static_cast<uint32_t>(row);
    token = low / part.heads, head = low - token * part.heads;
    slot = slot_of(shared, token);
    end = row < uint64_t{shared.tokens} * part.heads ? head + 1 : head;
  }
  const HeadGroup group(!by_block);
#pragma unroll 1
  for (; head < end; head += step) run_head<T>(group, part, shared, token, head, slot, s, scratch);
}

template <Dtype kDtype>
__device__ __forceinline__ void run_general_heads(const NormHeadsParams& p) {
  auto& scratch = ptx::block_shared<HeadsScratch>();
  follow_stream(p.triggers);
#pragma unroll 1
  for (uint64_t block = blockIdx.x; block < p.blocks; block += gridDim.x) {
    int i = 0;
    while (i + 1 < p.count && block >= p.part[i + 1].first_block) ++i;
    static_assert(sizeof(HeadsPartParams) % 4 == 0);
    const auto* const from = reinterpret_cast<const uint32_t*>(&p.part[i]);
    auto* const to = reinterpret_cast<uint32_t*>(&scratch.part);
    for (uint32_t word = threadIdx.x; word < sizeof(HeadsPartParams) / 4; word += kHeadsThreads)
      to[word] = from[word];
    __syncthreads();
    run_heads_block<Element<kDtype>>(scratch.part, p.shared, block - scratch.part.first_block,
                                     scratch);
    __syncthreads();
  }
}

}  // namespace fastnorm::cuda
