// One-shot: every rank sends its rows to all, and all ranks add them up.
#pragma once

#include "cuda/peer/fused.cuh"

namespace fastnorm::cuda {

template <class Slots, class Tile, int kGroup>
__device__ __forceinline__ void one_shot(const PeerNormParams& params) {
  using Rows = PeerRows<Slots, Tile, kGroup>;
  auto& scratch = ptx::block_shared<PeerScratch<Slots, Tile>>();
  Rows rows(params);
  const PeerExchange& peer = rows.peer;
  const auto ring = static_cast<uint32_t>(rows.ring), rings = static_cast<uint32_t>(peer.rings);
  RowState<Slots, Tile> row;
  begin_rows(rows, row, ring);
  const uint32_t number = first_number(peer, kPeerOneShot, rows.ring);
  rows.ended = is_stopped(peer);
  const uint32_t steps = (rows.p.rows - ring + rings - 1) / rings;

  const auto push = [&](uint32_t step) {
    typename Rows::Row x;
    rows.load_x(x, rows.index_of(ring + step * rings));
    for (int i = 0; i < peer.ranks - 1; ++i)
      rows.send(kPeerOneShot, next_rank(peer, i), number + step, x);
  };
  push(0);
  trigger(rows);
  for (uint32_t step = 0; step < steps; ++step) {
    const uint32_t r = ring + step * rings;
    const RowIndex index = rows.index_of(r);
    RowSource<Slots, Tile> source;
    rows.load_residual(source, index);
    if (step > 0) renew_weights(rows, row, index);
    rows.receive_sum(kPeerOneShot, number + step, step > 0, index, source.x);
    if (step + 1 < steps && !rows.ended) push(step + 1);
    if (rows.has_ended(source, scratch)) return;
    rows.normalize(r, index, source, row, scratch);
  }
  if (threadIdx.x != 0) return;
  end_ring(peer, kPeerOneShot, rows.ring, number + steps);
  if (ring == 0) count_call(peer);
}

}  // namespace fastnorm::cuda
