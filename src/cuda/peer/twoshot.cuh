// Two-shot: rows go in groups of one for each rank, which adds that row up and sends the sum to
// all. A ring takes groups.
#pragma once

#include "cuda/peer/fused.cuh"

namespace fastnorm::cuda {

template <class Slots, class Tile, int kGroup>
__device__ __forceinline__ void two_shot(const PeerNormParams& params) {
  using Rows = PeerRows<Slots, Tile, kGroup>;
  auto& scratch = ptx::block_shared<PeerScratch<Slots, Tile>>();
  Rows rows(params);
  const PeerExchange& peer = rows.peer;
  const auto ring = static_cast<uint32_t>(rows.ring), rings = static_cast<uint32_t>(peer.rings),
             ranks = static_cast<uint32_t>(peer.ranks);
  RowState<Slots, Tile> row;
  begin_rows(rows, row, ring * ranks);
  const uint32_t share = first_number(peer, kPeerShare, rows.ring),
                 total = first_number(peer, kPeerTotal, rows.ring);
  rows.ended = is_stopped(peer);
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
      typename Rows::Row x;
      rows.load_x(x, rows.index_of(r));
      rows.send(kPeerShare, to, share + step, x);
    }
  };
  push(0);
  trigger(rows);
  invert_static_scale(row);
  for (uint32_t step = 0; step < steps; ++step) {
    // This rank's row comes first; then those of the others as they are likely to come.
    for (int i = -1; i < peer.ranks - 1; ++i) {
      const int owner = i < 0 ? peer.rank : next_rank(peer, i);
      const uint32_t r = row_of(step, owner);
      if (r >= rows.p.rows) {
        if (i < 0 && step + 1 < steps && !rows.ended) push(step + 1);
        continue;
      }
      const RowIndex index = rows.index_of(r);
      RowSource<Slots, Tile> source;
      rows.load_residual(source, index);
      renew_weights(rows, row, index);
      if (i < 0) {
        typename Rows::Row own;
        rows.receive_sum(kPeerShare, share + step, step > 0, index, own, source.x);
        for (int k = 0; k < peer.ranks - 1 && !rows.ended; ++k)
          rows.send(kPeerTotal, next_rank(peer, k), total + step, source.x);
        if (step + 1 < steps && !rows.ended) push(step + 1);
      } else {
        rows.receive(kPeerTotal, owner, total + step, step > 0, source.x);
      }
      if (!rows.finish(r, index, source, row, scratch)) return;
    }
  }
  if (threadIdx.x != 0) return;
  end_ring(peer, kPeerShare, rows.ring, share + steps);
  end_ring(peer, kPeerTotal, rows.ring, total + steps);
  if (ring == 0) count_call(peer);
}

}  // namespace fastnorm::cuda
