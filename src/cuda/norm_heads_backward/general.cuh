// The general form: any dtypes, any address, any length, every option. A warp has a row of up to
// 1024 columns, a block has a longer one. A block is one block of the row order, and goes over its
// rows.
//
// A row's gradient waits in shared memory, as f32 in the order of its columns. There rope finds its
// pairs, and dx may replace dy or x. The sums of each lane are there too. A block with one lane
// adds to the workspace directly.
#pragma once

#include "cuda/common/ptx/grid.cuh"
#include "cuda/common/ptx/shared.cuh"
#include "cuda/norm_backward/general.cuh"
#include "cuda/norm_heads/general.cuh"
#include "cuda/norm_heads_backward/gains.cuh"

namespace fastnorm::cuda {

// RMS is LAYER with a mean and a c2 of 0: x - 0 and e - 0 have the bits of x and e.
inline constexpr Stat kEitherStat = Stat::kLayer;

struct GradientPart {
  HeadsGradientParams part;  // the block's: read from here, so that registers need not keep it
};

// What the rows of a token share, or a row's own.
struct GradientValues {
  Statistics statistics;
  float c[kGradientSums<kEitherStat>];
};

template <class T>
__device__ __forceinline__ GradientRow<T> gradient_row(const HeadsGradientParams& part,
                                                       uint32_t token, uint32_t head) {
  return GradientRow<T>(address_of(part.dy, token, head), part.dy_dtype, part.dy_is_scalar);
}

template <class T>
__device__ __forceinline__ float gain_element(const HeadsGradientParams& part, uint32_t head,
                                              int column) {
  const DtypeRow<T> weight = weight_row<T>(part, head);
  if (weight.data == nullptr) return 1.0f;
  return gain_of<T>(weight.element(column), part);
}

// dv of a row, to shared memory.
template <class T>
__device__ __forceinline__ void take_gradient(const HeadGroup& group,
                                              const HeadsGradientParams& part,
                                              const HeadsShared& shared, uint32_t token,
                                              uint32_t head, float* values) {
  constexpr int kPerVector = T::kPerVector;
  const GradientRow<T> row = gradient_row<T>(part, token, head);
  const auto n = static_cast<int>(part.forward.norm.n);
#pragma unroll 1
  for (int v = group.thread; v * kPerVector < n; v += group.threads) {
    const int left = n - v * kPerVector;
    float d[kPerVector];
    row.take(d, v, left);
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) values[v * kPerVector + i] = d[i];
  }
  group.sync();
  if ((part.forward.bits & kHeadsRope) == 0) return;
  rotate_values<T>(group, part.forward, shared, token, head, values);
  group.sync();
}

// ---- What a token's heads share.

// One element of dv.
template <class T>
__device__ __forceinline__ float gradient_element(const HeadsGradientParams& part,
                                                  const HeadsShared& shared, uint32_t token,
                                                  uint32_t head, int column) {
  const GradientRow<T> row = gradient_row<T>(part, token, head);
  const auto load = [&](int i) { return row.element(i); };
  const uint32_t bits = part.forward.bits;
  const int at = column - part.forward.rope_offset, half = shared.half;
  if ((bits & kHeadsRope) == 0 || at < 0 || at >= 2 * half) return load(column);
  const bool interleaved = (bits & kHeadsInterleaved) != 0;
  const int pair = interleaved ? at / 2 : at % half;
  const bool second = interleaved ? at % 2 != 0 : at >= half;
  const int apart = interleaved ? 1 : half;
  float v1 = load(second ? column - apart : column), v2 = load(second ? column : column + apart);
  const int64_t of_table = table_row(shared, shared.axes == 1 ? 0 : axis_of(shared, pair), token);
  const int entry = entry_of(shared, bits, pair);
  const float c = load_entry<T>(shared, table_address(shared.cos, of_table, head), entry);
  const float s = load_entry<T>(shared, table_address(shared.sin, of_table, head), entry);
  rotate_pair<T>(v1, v2, c, (bits & kHeadsInverse) != 0 ? -s : s, false);
  return second ? v2 : v1;
}

// A token's heads are one row: sums go over vectors of it, which may begin in one head and end in
// the next one.
template <class T>
__device__ __forceinline__ void values_of_token(const HeadsGradientParams& part,
                                                const HeadsShared& shared, uint32_t token,
                                                HeadsScratch& scratch) {
  const HeadGroup block(false);
  constexpr int kPerVector = T::kPerVector, kSums = kGradientSums<kEitherStat>;
  const HeadsPartParams& forward = part.forward;
  const Rounding<Affine::kAny, T> rounding(forward.norm);
  const HeadStatistics s =
      find_statistics<T, true>(block, forward, token, 0, true, rounding, scratch);
  const Statistics statistics = {s.mean, s.rstd};
  float c[kSums] = {};
  if (part.wants_dx) {
    const int64_t n = forward.norm.n, elements = n * forward.heads;
    const int64_t vectors = (elements + kPerVector - 1) / kPerVector;
    float total[kSums];
    fold_streams<HeadGroup>(
        total, (vectors + block.threads - 1) / block.threads,
        [&](int64_t first, int64_t step, float(&q)[kSums][StreamFold::kGroup]) {
#pragma unroll 1
          for (int i = 0; i < StreamFold::kGroup; ++i) {
            const int64_t vector = block.thread + (first + i * step) * block.threads;
            float e[kPerVector], x[kPerVector];
#pragma unroll 1
            for (int k = 0; k < kPerVector; ++k) {
              const int64_t element = vector * kPerVector + k;
              float e_of = 0.0f, x_of = 0.0f;
              if (element < elements) {
                const auto head = static_cast<uint32_t>(element / n);
                const auto column = static_cast<int>(element - head * n);
                e_of = __fmul_rn(gradient_element<T>(part, shared, token, head, column),
                                 gain_element<T>(part, head, column));
                x_of = normalized<kEitherStat>(
                    load_element<T>(address_of(forward.x, token, head) + column * T::kBytes),
                    statistics);
              }
#pragma unroll
              for (int j = 0; j < kPerVector; ++j) {
                e[j] = j == k ? e_of : e[j];
                x[j] = j == k ? x_of : x[j];
              }
            }
            const float sums[kSums] = {vector_dot(e, x), vector_sum(e)};
#pragma unroll
            for (int k = 0; k < kSums; ++k) {
#pragma unroll
              for (int j = 0; j < StreamFold::kGroup; ++j) q[k][j] = j == i ? sums[k] : q[k][j];
            }
          }
        });
    fold_group<Sum>(total, block, scratch);
    c[0] = __fmul_rn(positive_zero(total[0]), forward.norm.inv_n);
    if ((forward.bits & kHeadsLayer) != 0)
      c[1] = __fmul_rn(positive_zero(total[1]), forward.norm.inv_n);
  }
  if (threadIdx.x == 0) {
    ptx::st_global_v4(part.token_values + int64_t{token} * kTokenFloats,
                      make_uint4(__float_as_uint(statistics.mean), __float_as_uint(statistics.rstd),
                                 __float_as_uint(c[0]), __float_as_uint(c[1])));
  }
}

// ---- Rows.

// Sums of a lane's columns: of dweight and dbias, null where they are not wanted.
struct LaneSums {
  float *dweight, *dbias;
};

template <class T>
__device__ __forceinline__ void gradient_of_row(const HeadGroup& group,
                                                const HeadsGradientParams& part,
                                                const HeadsShared& shared, uint32_t token,
                                                uint32_t head, const LaneSums& sums,
                                                HeadsScratch& scratch) {
  constexpr int kPerVector = T::kPerVector;
  constexpr int kMost = kWarpHeadColumns / 32 / kPerVector;  // vectors of a thread
  const HeadsPartParams& forward = part.forward;
  float* const values = group.values(scratch);
  take_gradient<T>(group, part, shared, token, head, values);
  const auto n = static_cast<int>(forward.norm.n);
  const bool wants_dx = part.dx.data != nullptr;
  if ((forward.bits & kHeadsNorm) == 0) {
    if (wants_dx) store_elements<T>(group, values, n, address_of(part.dx, token, head));
    group.sync();
    return;
  }
  const auto count_of = [&](int v) {
    const int left = n - v * kPerVector;
    return left >= kPerVector ? kPerVector : left < 0 ? 0 : left;
  };
  if (!wants_dx && sums.dweight == nullptr) {
#pragma unroll 1
    for (int v = group.thread; v * kPerVector < n; v += group.threads) {
      for (int k = 0; k < count_of(v); ++k) {
        const int column = v * kPerVector + k;
        sums.dbias[column] = __fadd_rn(sums.dbias[column], values[column]);
      }
    }
    group.sync();
    return;
  }

  GradientValues g = {};
  if ((forward.bits & kHeadsAcross) != 0) {
    const uint4 v = ptx::ld_global_v4(part.token_values + int64_t{token} * kTokenFloats);
    g = {{__uint_as_float(v.x), __uint_as_float(v.y)},
         {__uint_as_float(v.z), __uint_as_float(v.w)}};
  } else {
    const Rounding<Affine::kAny, T> rounding(forward.norm);
    const HeadStatistics s =
        find_statistics<T, false>(group, forward, token, head, true, rounding, scratch);
    g.statistics = {s.mean, s.rstd};
  }
  const HeadsRow<T> x_row(forward, token, head, false);
  const DtypeRow<T> weight = weight_row<T>(part, head);
  float q[2][kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) q[0][i] = q[1][i] = 0.0f;
#pragma unroll 1
  for (int i = 0; i < kMost; ++i) {
    const int v = group.thread + i * group.threads, count = count_of(v);
    if (count == 0) break;
    float x[kPerVector], e[kPerVector], gain[kPerVector];
    x_row.take(x, v);
    load_gains(gain, part, weight, v, count);
#pragma unroll
    for (int k = 0; k < kPerVector; ++k) {
      const int column = v * kPerVector + k;
      const bool there = k < count;
      const float d = there ? values[column] : 0.0f;
      // Padding adds +0, whatever the statistics are.
      x[k] = there ? normalized<kEitherStat>(x[k], g.statistics) : 0.0f;
      e[k] = there ? __fmul_rn(d, gain[k]) : 0.0f;
      if (!there) continue;
      values[column] = e[k];
      if (sums.dweight != nullptr) {
        const float t = part.round_normalized ? T::round(x[k]) : x[k];
        sums.dweight[column] = __fmaf_rn(d, t, sums.dweight[column]);
      }
      if (sums.dbias != nullptr) sums.dbias[column] = __fadd_rn(sums.dbias[column], d);
    }
    const float dot = vector_dot(e, x), sum = vector_sum(e);
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      q[0][j] = j == i ? dot : q[0][j];
      q[1][j] = j == i ? sum : q[1][j];
    }
  }
  if (!wants_dx) {
    group.sync();
    return;
  }
  if ((forward.bits & kHeadsAcross) == 0) {
    float total[2] = {fold_values(q[0]), fold_values(q[1])};
    fold_group<Sum>(total, group, scratch);
    g.c[0] = __fmul_rn(positive_zero(total[0]), forward.norm.inv_n);
    if ((forward.bits & kHeadsLayer) != 0)
      g.c[1] = __fmul_rn(positive_zero(total[1]), forward.norm.inv_n);
  }
  const AnyRow<T, char> dx(address_of(part.dx, token, head), kUnknownAlign, OperandType::kElement);
#pragma unroll 1
  for (int v = group.thread; v * kPerVector < n; v += group.threads) {
    const int count = count_of(v);
    float x[kPerVector], f[kPerVector];
    x_row.take(x, v);
#pragma unroll
    for (int k = 0; k < kPerVector; ++k) {
      const float e = k < count ? values[v * kPerVector + k] : 0.0f;
      f[k] = __fmul_rn(centred<kEitherStat>(normalized<kEitherStat>(x[k], g.statistics), e, g.c),
                       g.statistics.rstd);
    }
    store_part<Part::kCounted, T>(f, dx, v, count);
  }
  group.sync();
}

// The first row of the block of the row order that a thread block has lanes of.
__device__ __forceinline__ uint32_t first_row_of(const HeadsRowOrder& o, uint32_t block) {
  return block / o.split * o.lanes * o.split;
}

// All rows of a thread block's lanes.
template <class T>
__device__ __forceinline__ void gradient_of_rows(const HeadGroup& group,
                                                 const HeadsGradientParams& part,
                                                 const HeadsShared& shared, uint32_t number,
                                                 HeadsScratch& scratch) {
  const HeadsRowOrder& o = part.order;
  const uint32_t weights = number / o.blocks, block = number - weights * o.blocks;
  const int64_t place = (int64_t{weights} * o.blocks + block) * o.partial_stride;
  const bool folds = o.lanes > 1;
  const auto width = static_cast<int>(o.partial_stride);
  auto* const here = reinterpret_cast<float*>(ptx::launch_shared());
  float* sums[2];
  int count = 0;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    sums[k] = o.partial[k] == nullptr ? nullptr
              : folds                 ? here + count * static_cast<int>(o.lanes) * width
                                      : o.partial[k] + place;
    count += o.partial[k] != nullptr ? 1 : 0;
  }
  const int all = folds ? static_cast<int>(o.lanes) * width : 0;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    if (sums[k] == nullptr) continue;
    for (int i = static_cast<int>(threadIdx.x); i < all; i += kHeadsThreads) sums[k][i] = 0.0f;
    // With one lane: a thread's own columns, which no other one touches.
    for (int v = group.thread; !folds && v * T::kPerVector < width; v += group.threads) {
      for (int i = 0; i < T::kPerVector; ++i) sums[k][v * T::kPerVector + i] = 0.0f;
    }
  }
  __syncthreads();

  const uint32_t own = threadIdx.x / group.threads, groups = kHeadsThreads / group.threads;
#pragma unroll 1
  for (uint32_t first = first_row_of(o, block); first < o.shared_rows; first += o.step) {
#pragma unroll 1
    for (uint32_t lane = own; lane < o.lanes; lane += groups) {
      const uint32_t row = first + block % o.split + lane * o.split;
      if (row >= o.shared_rows) break;
      uint32_t token = row, head = weights;
      if (o.groups == 1) {
        token = row / part.forward.heads;
        head = row - token * part.forward.heads;
      }
      const auto of_lane = [&](float* of) {
        return of == nullptr ? nullptr : of + (folds ? static_cast<int>(lane) * width : 0);
      };
      gradient_of_row<T>(group, part, shared, token, head, {of_lane(sums[0]), of_lane(sums[1])},
                         scratch);
    }
  }
  if (!folds || count == 0) return;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    if (o.partial[k] == nullptr) continue;
    float* const of = sums[k];
    fold_lanes_in_shared<kHeadsThreads>(of, o.lanes, width);
    for (int i = static_cast<int>(threadIdx.x); i < width; i += kHeadsThreads)
      ptx::st_global_u32(o.partial[k] + place + i, __float_as_uint(of[i]));
  }
}

template <class T>
__device__ __forceinline__ void gradient_of_heads(const NormHeadsBackwardParams& p) {
  auto& scratch = ptx::block_shared<HeadsScratch>();
  auto& own = ptx::block_shared<GradientPart>();
  int i = 0;
  while (i + 1 < p.count && blockIdx.x >= p.part[i + 1].order.first_block) ++i;
  static_assert(sizeof(HeadsGradientParams) % 4 == 0);
  const auto* const from = reinterpret_cast<const uint32_t*>(&p.part[i]);
  auto* const to = reinterpret_cast<uint32_t*>(&own.part);
  for (uint32_t word = threadIdx.x; word < sizeof(HeadsGradientParams) / 4; word += kHeadsThreads)
    to[word] = from[word];
  __syncthreads();
  ptx::grid_wait();
  const HeadsGradientParams& part = own.part;
  const uint32_t number = blockIdx.x - part.order.first_block;
  if (part.tokens) {
    values_of_token<T>(part, p.shared, number, scratch);
  } else {
    const HeadGroup group((part.forward.bits & kHeadsByBlock) == 0);
    gradient_of_rows<T>(group, part, p.shared, number, scratch);
  }
  if (p.triggers) ptx::grid_trigger();
}

}  // namespace fastnorm::cuda
