// The exchange of peer_sharded_norm: a token is a message of one vector, and a thread is a ring.
#pragma once

#include "cuda/common/root.cuh"
#include "cuda/peer/exchange.cuh"

namespace fastnorm::cuda {

inline constexpr int kPeerStatisticsThreads = 32;

__device__ __forceinline__ float float_of(const uint4& words, int word) {
  return __uint_as_float(word_of(words, word));
}

__device__ __forceinline__ float rstd_of_ranks(float squares, float inverse, float eps) {
  return reciprocal_root(__fadd_rn(__fmul_rn(squares, inverse), eps));
}

// The statistic of a token, from those of the ranks in their order.
struct RankStatistics {
  __device__ __forceinline__ void add(const PeerStatisticsParams& p, int rank, const uint4& words) {
    if (rank == 0) {
      sum = words;
      return;
    }
    if (p.layer == 0) {
      sum.x = __float_as_uint(__fadd_rn(__uint_as_float(sum.x), __uint_as_float(words.x)));
      sum.y = __float_as_uint(__fadd_rn(__uint_as_float(sum.y), __uint_as_float(words.y)));
      return;
    }
    merge(p, 0, rank, sum.x, sum.y, words.x, words.y);
    if (p.parts == 2) merge(p, 1, rank, sum.z, sum.w, words.z, words.w);
  }

  uint4 sum;

 private:
  // Chan's formula.
  static __device__ __forceinline__ void merge(const PeerStatisticsParams& p, int part, int rank,
                                               uint32_t& mean, uint32_t& squares,
                                               uint32_t other_mean, uint32_t other_squares) {
    const float m = __uint_as_float(mean), d = __fsub_rn(__uint_as_float(other_mean), m);
    mean = __float_as_uint(__fadd_rn(m, __fmul_rn(d, p.next[rank])));
    const float both = __fadd_rn(__uint_as_float(squares), __uint_as_float(other_squares));
    squares = __float_as_uint(__fadd_rn(both, __fmul_rn(__fmul_rn(d, d), p.share[part][rank])));
  }
};

__device__ __forceinline__ uint4 own_statistics(const PeerStatisticsParams& p, int64_t token) {
  const auto word = [&](int part, int64_t at) { return ptx::ld_global_u32(p.sums[part] + at); };
  uint4 words = make_uint4(0, 0, 0, 0);
  if (p.layer == 0) {
    words.x = word(0, token);
    if (p.parts == 2) words.y = word(1, token);
    return words;
  }
  words.x = word(0, 2 * token), words.y = word(0, 2 * token + 1);
  if (p.parts == 2) words.z = word(1, 2 * token), words.w = word(1, 2 * token + 1);
  return words;
}

__device__ __forceinline__ void store_token(const PeerStatisticsParams& p, int64_t token,
                                            const uint4& sum) {
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    if (part >= p.parts) continue;
    const float squares = p.layer == 0 ? float_of(sum, part) : float_of(sum, 2 * part + 1);
    const float rstd = rstd_of_ranks(squares, p.inverse[part], p.eps);
    ptx::st_global_u32(p.rstd[part] + token, __float_as_uint(rstd));
    if (p.layer != 0) ptx::st_global_u32(p.mean[part] + token, word_of(sum, 2 * part));
  }
}

__device__ __forceinline__ void exchange_statistics(const PeerStatisticsParams& p) {
  ptx::grid_wait();
  const PeerExchange& peer = p.peer;
  const int ring = static_cast<int>(blockIdx.x * kPeerStatisticsThreads + threadIdx.x);
  if (ring >= peer.rings || is_stopped(peer)) return;
  const uint32_t number = first_number(peer, kPeerStatistics, ring);
  const int steps = (p.tokens - ring + peer.rings - 1) / peer.rings;
  PeerWait wait;
  const auto push = [&](int step) {
    const uint4 words = peer_sent(own_statistics(p, ring + int64_t{step} * peer.rings));
    const uint32_t at = number + static_cast<uint32_t>(step);
    for (int i = 0; i < peer.ranks - 1; ++i) {
      const int to = next_rank(peer, i);
      ptx::st_system_v4(message_at(peer, kPeerStatistics, to, peer.rank, ring, at), words);
      send_header(peer, kPeerStatistics, to, ring, at);
    }
  };
  push(0);
  for (int step = 0; step < steps; ++step) {
    const int64_t token = ring + int64_t{step} * peer.rings;
    const uint32_t at = number + static_cast<uint32_t>(step);
    RankStatistics statistics;
    for (int rank = 0; rank < peer.ranks; ++rank) {
      uint4 words = own_statistics(p, token);
      if (rank != peer.rank) {
        if (!take_header(peer, kPeerStatistics, rank, ring, at, step > 0, wait)) return;
        if (!take_vector(peer, kPeerStatistics, rank, ring, at, 0, step > 0, wait, &words)) return;
      }
      statistics.add(p, rank, words);
    }
    if (step + 1 < steps) push(step + 1);
    store_token(p, token, statistics.sum);
  }
  end_ring(peer, kPeerStatistics, ring, number + static_cast<uint32_t>(steps));
  if (ring == 0) count_call(peer);
}

}  // namespace fastnorm::cuda
