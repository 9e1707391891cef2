// One-shot: every rank sends its rows to all, and all ranks add them up.
#pragma once

#include "cuda/peer/fused.cuh"

namespace fastnorm::cuda {

template <class Slots, class Tile, int kGroup>
__device__ __forceinline__ void one_shot(const PeerNormParams& params) {
  using Rows = PeerRows<Slots, Tile, kGroup>;
  auto& scratch = ptx::block_shared<PeerScratch<Slots, Tile>>();
  cluster_begin(scratch.row);
  Rows rows(params);
  const PeerExchange& peer = rows.peer;
  const auto ring = static_cast<uint32_t>(rows.ring), rings = static_cast<uint32_t>(peer.rings);
  RowState<Slots, Tile> row;
  begin_rows(rows, row, ring);
  const uint32_t number = first_number(peer, kPeerOneShot, rows.ring);
  rows.ended = is_stopped(peer);
  const uint32_t steps = Rows::kOneRow ? 1 : (rows.p.rows - ring + rings - 1) / rings;

  typename Rows::Row own, next;
  const auto load = [&](typename Rows::Row& x, uint32_t step) {
    if (step < steps) rows.load_x(x, rows.index_of(ring + step * rings));
  };
  load(own, 0);
  if constexpr (Rows::kHoldsNext) load(next, 1);
  rows.send_to_all(kPeerOneShot, number, own);
  RowSource<Slots, Tile> source;
  if constexpr (Rows::kOneRow) rows.load_residual(source, rows.index_of(ring));
  trigger(rows);
  invert_static_scale(row);
  cluster_ready(scratch.row);
  for (uint32_t step = 0; step < steps; ++step) {
    const uint32_t r = ring + step * rings;
    const RowIndex index = rows.index_of(r);
    if constexpr (!Rows::kOneRow) rows.load_residual(source, index);
    if (step > 0) renew_weights(rows, row, index);
    rows.receive_sum(kPeerOneShot, number + step, step > 0, index, own, source.x);
    if (!Rows::kOneRow && step + 1 < steps && !rows.ended) {
      if constexpr (!Rows::kHoldsNext) load(next, step + 1);
      rows.send_to_all(kPeerOneShot, number + step + 1, next);
      if constexpr (Rows::kHoldsNext) {
        copy_values(own, next);
        load(next, step + 2);
      }
    }
    if (!rows.finish(r, index, source, row, scratch)) return;
  }
  if (!rows.leads_ring()) return;
  end_ring(peer, kPeerOneShot, rows.ring, number + steps);
  if (ring == 0) count_call(peer);
}

}  // namespace fastnorm::cuda
