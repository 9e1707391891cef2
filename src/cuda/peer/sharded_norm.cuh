// peer_sharded_norm in one kernel. A block is a ring; it takes its tokens one after another and
// holds a token's columns in registers: of one part or two. The bits are those of three kernels: a
// rank's sums fold by the canonical tree, as norm_heads' do, and the messages are those of
// exchange_statistics().
//
// Bytes: x and y once; weights for each block.
// Order: sums of a token are sent before the token ahead of it is normalised.
#pragma once

#include "cuda/common/any_row.cuh"
#include "cuda/common/normalize.cuh"
#include "cuda/common/statistics.cuh"
#include "cuda/peer/sharded.cuh"

namespace fastnorm::cuda {

template <int kThreads>
struct ShardedScratch {
  static constexpr int kSums = 4;
  float values[kSums][kThreads];
  float total[kSums];
  uint32_t first[2];          // LAYER: the words with each part's first element
  uint4 words[2][kMaxRanks];  // of the ranks, for this token and the one before
};

struct ShardedCount {
  float inv_n, eps;
};

// kLate: weights are loaded with y.
template <class T, int kThreads, int kVectors, bool kLate>
class ShardedRows {
 public:
  static constexpr int kPerVector = T::kPerVector;
  using Row = uint4[2][kVectors];
  using Weights = uint4[2][kLate ? 1 : kVectors];
  using Scratch = ShardedScratch<kThreads>;

  __device__ __forceinline__ ShardedRows(const PeerShardedParams& params, Scratch& shared)
      : p(params), s(params.statistics), peer(params.statistics.peer), scratch(shared) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const Divisor& by_head = p.part[part].by_head;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const uint32_t number = vector(v);
        head[part][v] = by_head.value <= 1 ? number : quotient(number, by_head);
      }
    }
  }

  __device__ __forceinline__ int64_t token_of(int step) const {
    return blockIdx.x + int64_t{step} * peer.rings;
  }

  __device__ __forceinline__ void load_x(Row& x, int64_t token) const {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const PeerShardedPart& of = p.part[part];
      const char* const row = of.x + token * of.x_token;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        x[part][v] = make_uint4(0, 0, 0, 0);
        ptx::ld_global_v4_if(x[part][v], row + head[part][v] * of.x_head + column(part, v),
                             has(part, v));
      }
    }
  }

  // Weights of T. Others are loaded with y.
  __device__ __forceinline__ void load_weights(Weights& weight) const {
    if constexpr (!kLate) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const PeerShardedPart& of = p.part[part];
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          weight[part][v] = make_uint4(0, 0, 0, 0);
          ptx::ld_global_v4_if(weight[part][v],
                               of.weight + head[part][v] * of.weight_head + column(part, v),
                               of.weight_type == OperandType::kElement && has(part, v));
        }
      }
    }
  }

  // What this rank sends for a token, in every thread.
  __device__ __forceinline__ uint4 sums_of(const Row& x) const {
    return s.layer != 0 ? layer_sums(x) : rms_sums(x);
  }

  // By the first warp. Lane i sends the words to a rank, lane 16 + i the header.
  __device__ __forceinline__ void push(uint32_t number, const uint4& words) const {
    const int i = static_cast<int>(threadIdx.x % 16);
    if (threadIdx.x >= 32 || i >= peer.ranks - 1) return;
    const int to = next_rank(peer, i);
    if (threadIdx.x < 16) {
      ptx::st_system_v4(message(to, peer.rank, number), peer_sent(words));
    } else {
      send_header(peer, kPeerStatistics, to, ring(), number);
    }
  }

  // The words of all ranks, to shared memory. False, in all threads: the call has ended.
  __device__ __forceinline__ bool take(uint32_t number, int step, const uint4& own) {
    const int i = static_cast<int>(threadIdx.x % 16);
    const bool payload = threadIdx.x < 16;
    uint4(&words)[kMaxRanks] = scratch.words[step % 2];
    if (threadIdx.x < 32 && i < peer.ranks - 1 && !ended) {
      const int source = other_rank(peer, i);
      uint4 got;
      ended = !take_vector(peer, kPeerStatistics, source, ring(), number,
                           payload ? 0 : header_at(peer, kPeerStatistics), step > 0, wait, &got);
      if (payload) {
        words[source] = got;
      } else if (!ended) {
        ended = !agrees(peer, source, number, got);
      }
    }
    if (threadIdx.x == 0) words[peer.rank] = own;
    return !ptx::any_of_block(ended);
  }

  __device__ __forceinline__ void normalize(const Row& x, const Weights& weight, int64_t token,
                                            int step) const {
    RankStatistics merged;
#pragma unroll 1
    for (int rank = 0; rank < peer.ranks; ++rank)
      merged.add(s, rank, scratch.words[step % 2][rank]);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const PeerShardedPart& of = p.part[part];
      const bool layer = s.layer != 0;
      const float mean = layer ? float_of(merged.sum, 2 * part) : 0.0f;
      const float squares = layer ? float_of(merged.sum, 2 * part + 1) : float_of(merged.sum, part);
      const float rstd = rstd_of_ranks(squares, s.inverse[part], s.eps);
      char* const row = of.y + token * of.y_token;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (!has(part, v)) continue;
        float z[kPerVector], w[kPerVector], b[kPerVector];
        T::unpack(x[part][v], z);
        load_affine(w, b, weight[part][kLate ? 0 : v], part, v);
        normalize_values(z, mean, rstd, layer, NoSteps());
        if ((p.bits & kRoundNormalized) != 0) round_to<T>(z);
        apply(z, z, w, b, p.weight_offset, rstd, NoSteps());
        ptx::st_global_v4(row + head[part][v] * of.y_head + column(part, v), T::pack(z));
      }
    }
  }

  __device__ __forceinline__ int ring() const { return static_cast<int>(blockIdx.x); }

  const PeerShardedParams& p;
  const PeerStatisticsParams& s;
  const PeerExchange& peer;
  Scratch& scratch;
  bool ended = false;

 private:
  __device__ __forceinline__ static uint32_t vector(int v) {
    return threadIdx.x + static_cast<uint32_t>(v * kThreads);
  }
  __device__ __forceinline__ bool has(int part, int v) const {
    return static_cast<int>(vector(v)) < p.part[part].vectors;
  }
  // Number of a vector in its head, and bytes from the head's begin.
  __device__ __forceinline__ uint32_t vector_of_head(int part, int v) const {
    return vector(v) - head[part][v] * p.part[part].by_head.value;
  }
  __device__ __forceinline__ int64_t column(int part, int v) const {
    return int64_t{vector_of_head(part, v)} * kVectorBytes;
  }
  __device__ __forceinline__ char* message(int of, int source, uint32_t number) const {
    return message_at(peer, kPeerStatistics, of, source, ring(), number);
  }

  // By the canonical tree, in every thread.
  template <int kSums>
  __device__ __forceinline__ void fold(float (&q)[kSums]) const {
#pragma unroll
    for (int i = 0; i < kSums; ++i) scratch.values[i][threadIdx.x] = q[i];
    __syncthreads();
    if (threadIdx.x < 32) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        float warps[kThreads / 32];
#pragma unroll
        for (int w = 0; w < kThreads / 32; ++w)
          warps[w] = scratch.values[i][static_cast<uint32_t>(w * 32) + threadIdx.x];
        const float total = fold_lanes<32>(fold_registers(warps));
        if (threadIdx.x == 0) scratch.total[i] = total;
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSums; ++i) q[i] = scratch.total[i];
  }

  __device__ __forceinline__ uint4 rms_sums(const Row& x) const {
    float sums[2] = {squares_of<T>(x[0]), squares_of<T>(x[1])};
    fold(sums);
    const uint32_t second = s.parts == 2 ? __float_as_uint(sums[1]) : 0;
    return make_uint4(__float_as_uint(sums[0]), second, 0, 0);
  }

  __device__ __forceinline__ uint4 layer_sums(const Row& x) const {
    if (threadIdx.x == 0) scratch.first[0] = x[0][0].x, scratch.first[1] = x[1][0].x;
    __syncthreads();
    LayerStatistics of[2] = {first_of(0), first_of(1)};
    float sums[4];
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const Moments both = moments_of<T>(x[part], of[part].from, false,
                                           [&](int v) { return has(part, v) ? kPerVector : 0; });
        sums[2 * part] = both.sum, sums[2 * part + 1] = both.squares;
      }
      fold(sums);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        of[part].take({sums[2 * part], sums[2 * part + 1]}, pass,
                      ShardedCount{p.part[part].inverse_count, 0.0f}, NoSteps());
      }
    }
    float squared[2];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      squared[part] = squares_about_mean({sums[2 * part], sums[2 * part + 1]},
                                         p.part[part].inverse_count, false);
    }
    uint4 words = make_uint4(__float_as_uint(of[0].mean()), __float_as_uint(squared[0]), 0, 0);
    if (s.parts == 2)
      words.z = __float_as_uint(of[1].mean()), words.w = __float_as_uint(squared[1]);
    return words;
  }
  __device__ __forceinline__ LayerStatistics first_of(int part) const {
    float f[4 / T::kBytes];
    T::unpack_word(scratch.first[part], f);
    return LayerStatistics(f[0], NoSteps());
  }

  __device__ __forceinline__ void load_affine(float (&w)[kPerVector], float (&b)[kPerVector],
                                              const uint4& weight, int part, int v) const {
    const PeerShardedPart& of = p.part[part];
    const auto load = [&](float(&f)[kPerVector], const char* data, int64_t stride,
                          OperandType type) {
      load_values<T>(f, AnyRow<T, const char>(data + head[part][v] * stride, kVectorBytes, type),
                     vector_of_head(part, v));
    };
    if (of.weight_type == OperandType::kAbsent) {
      fill_values(w, 1.0f);
    } else if (!kLate && of.weight_type == OperandType::kElement) {
      T::unpack(weight, w);
    } else {
      load(w, of.weight, of.weight_head, of.weight_type);
    }
    if (of.bias_type == OperandType::kAbsent) {
      fill_values(b, -0.0f);
    } else {
      load(b, of.bias, of.bias_head, of.bias_type);
    }
  }

  uint32_t head[2][kVectors];
  PeerWait wait;
};

template <class T, int kThreads, int kVectors, bool kLate>
__device__ __forceinline__ void sharded_norm(const PeerShardedParams& params) {
  using Rows = ShardedRows<T, kThreads, kVectors, kLate>;
  Rows rows(params, ptx::block_shared<typename Rows::Scratch>());
  const PeerExchange& peer = rows.peer;
  typename Rows::Row x, next;
  typename Rows::Weights weight;
  ptx::grid_wait_if((params.bits & kWaitAfterWeights) == 0);
  rows.load_weights(weight);
  ptx::grid_wait();
  const uint32_t number = first_number(peer, kPeerStatistics, rows.ring());
  rows.ended = is_stopped(peer);
  const int steps = (params.statistics.tokens - rows.ring() + peer.rings - 1) / peer.rings;
  uint4 own, own_next;
  // Step -1 sends the first token; the sums' code is there once.
#pragma unroll 1
  for (int step = -1; step < steps; ++step) {
    const bool more = step + 1 < steps;
    const uint32_t at = number + static_cast<uint32_t>(step);
    if (more) {
      rows.load_x(next, rows.token_of(step + 1));
      own_next = rows.sums_of(next);
    }
    if (step >= 0 && !rows.take(at, step, own)) return;
    if (more) rows.push(at + 1, own_next);
    if (step >= 0) {
      rows.normalize(x, weight, rows.token_of(step), step);
    } else if ((params.bits & kTrigger) != 0) {
      ptx::grid_trigger();
    }
    own = own_next;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      copy_values(x[part], next[part]);
    }
  }
  if (threadIdx.x != 0) return;
  end_ring(peer, kPeerStatistics, rows.ring(), number + static_cast<uint32_t>(steps));
  if (rows.ring() == 0) count_call(peer);
}

}  // namespace fastnorm::cuda
