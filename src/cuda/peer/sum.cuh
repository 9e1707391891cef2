// The exchange by itself: sums of the ranks' rows in a workspace, for the norm's own kernel. Rows
// of any layout, length and dtypes. A thread takes every blockDim-th vector of a row, and each
// vector is a message of its own: the kernels of all algorithms and tiles understand each other.
#pragma once

#include "cuda/norm/source.cuh"
#include "cuda/peer/exchange.cuh"

namespace fastnorm::cuda {

inline constexpr int kPeerSumThreads = 256;

// x as vectors of T; elements past the row's end are 0.
template <class T>
__device__ __forceinline__ uint4 vector_of_x(const PeerSumParams& params, const RowIndex& index,
                                             int vector) {
  const NormParams& p = params.norm;
  const AnyRow<T, const char> row(row_address(p.x, p.x_upper, index), p.x_align,
                                  OperandType::kElement);
  float f[T::kPerVector];
  load_part<Part::kCounted, T>(f, row, vector, static_cast<int>(p.n) - vector * T::kPerVector);
  return T::pack(f);
}

template <class T>
class PeerSumRows {
 public:
  static constexpr int kWide = T::kBytes == 2 ? 2 : 1;  // vectors of f32 for one of T

  __device__ __forceinline__ explicit PeerSumRows(const PeerSumParams& sum_params)
      : params(sum_params),
        p(sum_params.norm),
        peer(sum_params.peer),
        ring(static_cast<int>(blockIdx.x)) {}

  __device__ __forceinline__ RowIndex index_of(uint32_t row) const {
    return row_index(p, row, p.bits);
  }

  template <typename Use>
  __device__ __forceinline__ void for_each_vector(const Use& use) const {
#pragma unroll 1
    for (int vector = static_cast<int>(threadIdx.x); vector < p.vectors && !ended;
         vector += kPeerSumThreads)
      use(vector);
  }

  // Bytes from a message's begin to a vector, the first of so many.
  static __device__ __forceinline__ int64_t offset(int vector, int wide = 1) {
    return int64_t{vector} * wide * kVectorBytes;
  }
  __device__ __forceinline__ void send(int channel, int to, uint32_t number, int64_t offset,
                                       const uint4& words) const {
    ptx::st_system_v4(message_at(peer, channel, to, peer.rank, ring, number) + offset,
                      fastnorm::cuda::peer_sent(words));
  }
  __device__ __forceinline__ void send_headers(int channel, uint32_t number) const {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < peer.ranks - 1; ++i)
      send_header(peer, channel, next_rank(peer, i), ring, number);
  }
  __device__ __forceinline__ void take_headers(int channel, uint32_t number, bool before) {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < peer.ranks - 1 && !ended; ++i)
      ended = !take_header(peer, channel, other_rank(peer, i), ring, number, before, wait);
  }

  // The sum of a vector of this rank's row and of what the others sent.
  __device__ __forceinline__ void sum(int channel, uint32_t number, bool before,
                                      const RowIndex& index, int vector,
                                      float (&total)[T::kPerVector]) {
    fill_values(total, -0.0f);
#pragma unroll 1
    for (int rank = 0; rank < peer.ranks && !ended; ++rank) {
      uint4 words;
      if (rank == peer.rank) {
        words = vector_of_x<T>(params, index, vector);
      } else {
        ended =
            !take_vector(peer, channel, rank, ring, number, offset(vector), before, wait, &words);
      }
      float f[T::kPerVector];
      T::unpack(words, f);
#pragma unroll
      for (int i = 0; i < T::kPerVector; ++i) total[i] = __fadd_rn(total[i], f[i]);
    }
  }

  // The sum of a row's vector to the workspace; an exact one with the residual.
  __device__ __forceinline__ void store(uint32_t row, const RowIndex& index, int vector,
                                        float (&total)[T::kPerVector]) const {
    const int count = static_cast<int>(p.n) - vector * T::kPerVector;
    if (params.exact != 0 && p.residual.data != nullptr) {
      const AnyRow<T, const char> residual(row_address(p.residual, p.residual_upper, index),
                                           p.residual_align,
                                           static_cast<OperandType>(p.residual_type));
      float r[T::kPerVector];
      load_part<Part::kCounted, T>(r, residual, vector, count);
#pragma unroll
      for (int i = 0; i < T::kPerVector; ++i) total[i] = __fadd_rn(total[i], r[i]);
    }
    const bool wide = params.exact != 0;
    const int bytes = wide ? 4 : T::kBytes;
    const AnyRow<T, char> to(params.totals + static_cast<int64_t>(row) * p.n * bytes,
                             static_cast<int>(params.total_align),
                             wide && T::kBytes == 2 ? OperandType::kF32 : OperandType::kElement);
    store_part<Part::kCounted, T>(total, to, vector, count);
  }

  // Two-shot: totals as they travel, and back.
  __device__ __forceinline__ void send_total(uint32_t number, int vector,
                                             const float (&total)[T::kPerVector]) const {
    for (int i = 0; i < peer.ranks - 1; ++i) {
      const int to = next_rank(peer, i);
      if (params.exact == 0) {
        send(kPeerTotal, to, number, offset(vector), T::pack(total));
        continue;
      }
#pragma unroll
      for (int w = 0; w < kWide; ++w) {
        const float* const f = total + 4 * w;
        send(kPeerTotal, to, number, offset(vector, kWide) + w * kVectorBytes, as_words(f));
      }
    }
  }
  __device__ __forceinline__ void take_total(int source, uint32_t number, bool before, int vector,
                                             float (&total)[T::kPerVector]) {
    uint4 words;
    if (params.exact == 0) {
      ended = !take_vector(peer, kPeerTotal, source, ring, number, offset(vector), before, wait,
                           &words);
      T::unpack(words, total);
      return;
    }
#pragma unroll
    for (int w = 0; w < kWide; ++w) {
      if (!ended) {
        ended = !take_vector(peer, kPeerTotal, source, ring, number,
                             offset(vector, kWide) + w * kVectorBytes, before, wait, &words);
      }
      as_floats(total + 4 * w, words);
    }
  }

  // The row of -0 that the norm takes in place of x.
  __device__ __forceinline__ void fill_minus_zeros() const {
    if (params.minus_zeros == nullptr || ring != 0) return;
    for (int64_t i = threadIdx.x; i < p.n; i += kPeerSumThreads)
      store_element<T::kBytes>(params.minus_zeros + i * T::kBytes, T::kMinusZeroWord);
  }

  const PeerSumParams& params;
  const NormParams& p;
  const PeerExchange& peer;
  const int ring;
  bool ended = false;
  PeerWait wait;
};

template <class T>
__device__ __forceinline__ void sum_one_shot(const PeerSumParams& params) {
  ptx::grid_wait();
  PeerSumRows<T> rows(params);
  const PeerExchange& peer = rows.peer;
  const auto ring = static_cast<uint32_t>(rows.ring), rings = static_cast<uint32_t>(peer.rings);
  const uint32_t number = first_number(peer, kPeerOneShot, rows.ring);
  rows.ended = is_stopped(peer);
  rows.fill_minus_zeros();
  const uint32_t steps = (rows.p.rows - ring + rings - 1) / rings;
  const auto push = [&](uint32_t step, int vector) {
    const RowIndex index = rows.index_of(ring + step * rings);
    const uint4 x = vector_of_x<T>(params, index, vector);
    for (int i = 0; i < peer.ranks - 1; ++i)
      rows.send(kPeerOneShot, next_rank(peer, i), number + step, rows.offset(vector), x);
  };
  rows.for_each_vector([&](int vector) { push(0, vector); });
  rows.send_headers(kPeerOneShot, number);
  for (uint32_t step = 0; step < steps; ++step) {
    const uint32_t r = ring + step * rings;
    const RowIndex index = rows.index_of(r);
    rows.take_headers(kPeerOneShot, number + step, step > 0);
    if (step + 1 < steps) rows.send_headers(kPeerOneShot, number + step + 1);
    rows.for_each_vector([&](int vector) {
      float total[T::kPerVector];
      rows.sum(kPeerOneShot, number + step, step > 0, index, vector, total);
      if (rows.ended) return;
      if (step + 1 < steps) push(step + 1, vector);
      rows.store(r, index, vector, total);
    });
    if (ptx::any_of_block(rows.ended)) return;
  }
  if (threadIdx.x != 0) return;
  end_ring(peer, kPeerOneShot, rows.ring, number + steps);
  if (ring == 0) count_call(peer);
}

template <class T>
__device__ __forceinline__ void sum_two_shot(const PeerSumParams& params) {
  ptx::grid_wait();
  PeerSumRows<T> rows(params);
  const PeerExchange& peer = rows.peer;
  const auto ring = static_cast<uint32_t>(rows.ring), rings = static_cast<uint32_t>(peer.rings),
             ranks = static_cast<uint32_t>(peer.ranks);
  const uint32_t share = first_number(peer, kPeerShare, rows.ring),
                 total_number = first_number(peer, kPeerTotal, rows.ring);
  rows.ended = is_stopped(peer);
  rows.fill_minus_zeros();
  const uint32_t groups = (rows.p.rows + ranks - 1) / ranks,
                 steps = (groups - ring + rings - 1) / rings;
  const auto row_of = [&](uint32_t step, int rank) {
    return (ring + step * rings) * ranks + static_cast<uint32_t>(rank);
  };
  const auto push = [&](uint32_t step) {
    for (int i = 0; i < peer.ranks - 1; ++i) {
      const int to = next_rank(peer, i);
      const uint32_t r = row_of(step, to);
      if (r >= rows.p.rows) continue;
      const RowIndex index = rows.index_of(r);
      rows.for_each_vector([&](int vector) {
        rows.send(kPeerShare, to, share + step, rows.offset(vector),
                  vector_of_x<T>(params, index, vector));
      });
      if (threadIdx.x == 0) send_header(peer, kPeerShare, to, rows.ring, share + step);
    }
  };
  push(0);
  for (uint32_t step = 0; step < steps; ++step) {
    const bool before = step > 0;
    const uint32_t mine = row_of(step, peer.rank);
    if (mine < rows.p.rows) {
      const RowIndex index = rows.index_of(mine);
      rows.take_headers(kPeerShare, share + step, before);
      rows.for_each_vector([&](int vector) {
        float total[T::kPerVector];
        rows.sum(kPeerShare, share + step, before, index, vector, total);
        if (rows.ended) return;
        rows.send_total(total_number + step, vector, total);
        rows.store(mine, index, vector, total);
      });
      if (!rows.ended) rows.send_headers(kPeerTotal, total_number + step);
    }
    if (step + 1 < steps && !rows.ended) push(step + 1);
    for (int i = 0; i < peer.ranks - 1; ++i) {
      const int owner = next_rank(peer, i);
      const uint32_t r = row_of(step, owner);
      if (r >= rows.p.rows) continue;
      const RowIndex index = rows.index_of(r);
      if (threadIdx.x == 0 && !rows.ended) {
        rows.ended = !take_header(peer, kPeerTotal, owner, rows.ring, total_number + step, before,
                                  rows.wait);
      }
      rows.for_each_vector([&](int vector) {
        float total[T::kPerVector];
        rows.take_total(owner, total_number + step, before, vector, total);
        if (!rows.ended) rows.store(r, index, vector, total);
      });
    }
    if (ptx::any_of_block(rows.ended)) return;
  }
  if (threadIdx.x != 0) return;
  end_ring(peer, kPeerShare, rows.ring, share + steps);
  end_ring(peer, kPeerTotal, rows.ring, total_number + steps);
  if (ring == 0) count_call(peer);
}

}  // namespace fastnorm::cuda
