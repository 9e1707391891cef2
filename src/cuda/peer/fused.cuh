// Exchange and norm in one kernel: what both algorithms share. A block is a ring; it takes its rows
// one after another. The row that it normalises is the sum of the ranks' rows, and from there on
// the forward norm's own (cuda/norm/kernel.cuh), with the residual.
//
// Bytes: x, residual and outputs once; what travels goes through L2.
// Order: messages of the first row are sent as soon as the previous kernel has ended, and the next
// kernel may start then. A row's messages are sent before the row ahead of it is normalised.
// Outputs of a row are stored when all threads of the block have all its messages.
#pragma once

#include "cuda/norm/kernel.cuh"
#include "cuda/peer/exchange.cuh"

namespace fastnorm::cuda {

// A block takes many rows: a thread's place keeps the row's number.
template <int kThreads_, int kVectors_>
struct LoopTile : RowTile<kThreads_, kVectors_, 1> {
  static constexpr bool kKeepsNumber = true;
};

template <class Slots, class Tile>
struct PeerScratch {
  RowScratch<Tile, Slots::kFolds, Slots::kLayer> row;
  uint32_t first[2];  // LAYER: the words with the row's first element, of the sum and the residual
};

// Sums in rank order. Nothing is -0: it changes no number that is added to it.
template <class T, int kVectors>
struct RankSum {
  __device__ __forceinline__ RankSum() {
#pragma unroll
    for (auto& vector : values) {
#pragma unroll
      for (float& f : vector) f = -0.0f;
    }
  }
  __device__ __forceinline__ void add(const uint4& words, int v) {
    float f[T::kPerVector];
    T::unpack(words, f);
#pragma unroll
    for (int i = 0; i < T::kPerVector; ++i) values[v][i] = __fadd_rn(values[v][i], f[i]);
  }

  float values[kVectors][T::kPerVector];
};

template <class Slots, class Tile, int kGroup>
class PeerRows {
 public:
  using T = typename Slots::T;
  using Row = uint4[Tile::kVectors];
  using Reach = RowReach<Slots, Tile>;
  static constexpr int kVectors = Tile::kVectors;

  __device__ __forceinline__ PeerRows(const PeerNormParams& params)
      : p(params.norm),
        peer(params.peer),
        bits(ptx::in_register(params.norm.bits)),
        place(0),
        reach(params.norm, place, true),
        ring(static_cast<int>(blockIdx.x)) {}

  __device__ __forceinline__ RowIndex index_of(uint32_t row) const {
    return row_index(p, row, bits);
  }
  __device__ __forceinline__ void load_x(Row& x, const RowIndex& index) const {
    load_vectors<Slots::kV.loads, Tile>(x, row_address(p.x, p.x_upper, index), place, reach, false);
  }

  // Bytes from a message's begin to the vector that register v has.
  __device__ __forceinline__ int64_t offset(int v) const {
    return kPeerHeaderBytes + static_cast<int64_t>(place.vector(v)) * kVectorBytes;
  }

  __device__ __forceinline__ void send(int channel, int to, uint32_t number, const Row& row) const {
    char* const message = message_at(peer, channel, to, peer.rank, ring, number);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (reach.has(v)) ptx::st_system_v4(message + offset(v), peer_sent(row[v]));
    }
    if (has_header()) send_header(peer, channel, to, ring, number);
  }

  // Adds up what the other ranks sent to this one, and its own row. That is read last: it is in L1
  // since it was sent, and registers are scarce while others are awaited.
  __device__ __forceinline__ void receive_sum(int channel, uint32_t number, bool before,
                                              const RowIndex& index, Row& sum) {
    RankSum<T, kVectors> total;
    const int others = peer.ranks - 1;
    Row own;
    if constexpr (kGroup == 1) load_x(own, index);
#pragma unroll 1
    for (int first = 0; first < others; first += kGroup) {
      Row rows[kGroup];
      take_rows(
          channel, others - first, [&](int s) { return other_rank(peer, first + s); }, number,
          before, rows);
      if constexpr (kGroup > 1) load_x(own, index);
#pragma unroll
      for (int s = 0; s < kGroup; ++s) {
        if (first + s >= others) continue;
        const bool own_first = first + s == peer.rank;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          if (own_first) total.add(own[v], v);
          total.add(rows[s][v], v);
        }
      }
    }
    const bool own_last = others == peer.rank;
    if constexpr (kGroup > 1) load_x(own, index);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (own_last) total.add(own[v], v);
      sum[v] = T::pack(total.values[v]);
    }
  }

  // A row that one rank sent.
  __device__ __forceinline__ void receive(int channel, int source, uint32_t number, bool before,
                                          Row& row) {
    Row rows[1];
    take_rows(
        channel, 1, [&](int) { return source; }, number, before, rows);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) row[v] = rows[0][v];
  }

  // The norm of a row whose sum is `sum`. All threads of the block call it, or none.
  __device__ __forceinline__ void normalize(uint32_t number, const RowIndex& index,
                                            const RowSource<Slots, Tile>& source,
                                            RowState<Slots, Tile>& row,
                                            PeerScratch<Slots, Tile>& scratch) {
    place.row = number;
    const auto rounding = rounding_of<Slots, Tile>(p, bits);
    FirstElement<Slots, Tile> first;
    if constexpr (Slots::kLayer) first.give(scratch.first[0], scratch.first[1]);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) row.held.set(source, v);
    reduce_row(p, row, source, first, index, place, reach, rounding, scratch.row);
    finish_row<Slots, Tile>(p, row, index, place, reach, rounding);
    if constexpr (Slots::kSink == Sink::kQuant)
      quantize_row<Slots, Tile>(p, row, index, place, reach, scratch.row.fold[Slots::kFolds - 1]);
    if ((p.bits_again & kStoreStatistics) != 0 && place.leads_row())
      store_statistics(p, index, row.mean, row.rstd);
  }

  __device__ __forceinline__ void load_residual(RowSource<Slots, Tile>& source,
                                                const RowIndex& index) const {
    if (p.residual.data != nullptr) {
      load_vectors<Slots::kV.loads, Tile>(
          source.residual, row_address(p.residual, p.residual_upper, index), place, reach, false);
    } else {
      constexpr uint32_t kNothing = T::kMinusZeroWord;
#pragma unroll
      for (uint4& v : source.residual) v = make_uint4(kNothing, kNothing, kNothing, kNothing);
    }
  }

  // True if some thread of the block lacks a part of the row: nobody may go on. Else all threads
  // are done with the row before.
  __device__ __forceinline__ bool has_ended(const RowSource<Slots, Tile>& source,
                                            PeerScratch<Slots, Tile>& scratch) const {
    if (Slots::kLayer && place.leads_row())
      scratch.first[0] = source.x[0].x, scratch.first[1] = source.residual[0].x;
    return ptx::any_of_block(ended);
  }

  // The thread that sends headers: the one that most seldom has a last vector.
  __device__ __forceinline__ bool has_header() const { return threadIdx.x == Tile::kThreads - 1; }

  const NormParams& p;
  const PeerExchange& peer;
  const uint32_t bits;
  Place<Tile> place;
  const Reach reach;
  const int ring;
  bool ended = false;
  PeerWait wait;

 private:
  // Rows of the ranks source_of(0), source_of(1), .., `count` of them or kCount. Each word of a
  // header has a thread of its own, so that headers are awaited side by side.
  template <int kCount, typename SourceOf>
  __device__ __forceinline__ void take_rows(int channel, int count, const SourceOf& source_of,
                                            uint32_t number, bool before, Row (&rows)[kCount]) {
    static_assert(kCount <= Tile::kThreads / 32);
    const int behind = Tile::kThreads - 1 - static_cast<int>(threadIdx.x);
    const int word = behind % 32, checked = source_of(behind / 32);
    const bool checks = word < kPeerHeaderWords && behind / 32 < kCount && behind / 32 < count;
    const auto header = [&](uint32_t of) {
      return message_at(peer, channel, peer.rank, checks ? checked : 0, ring, of) + word * 4;
    };
    const uint32_t own = header_word(peer, number, word);
    uint32_t head = own, left_head = kPeerEmpty;
    const auto look_at_header = [&] {
      ptx::ld_system_u32_if(head, header(number), checks);
      ptx::ld_system_u32_if(left_head, header(number - 1), checks && before);
    };
    const auto judge_header = [&](int& missing) {
      if (head == kPeerEmpty || left_head != kPeerEmpty) {
        missing = checked;
      } else if (head != own) {  // whose rows may never come
        stop(peer, FASTNORM_PEER_ERROR_DISAGREES, checked);
        ended = true;
      }
    };
    // Several rows leave no registers for a look at both.
    constexpr bool kTogether = kCount == 1;
    for (bool there = kTogether; !there && !ended;) {
      int missing = -1;
      look_at_header();
      judge_header(missing);
      there = missing < 0;
      if (!there && wait.gives_up(peer, missing)) ended = true;
    }
    if (!kTogether && checks) ptx::st_system_u32(header(number), kPeerEmpty);
    while (true) {
      int missing = -1;
      if constexpr (kTogether) look_at_header();
#pragma unroll
      for (int s = 0; s < kCount; ++s) {
        if (s >= count) continue;
        const char* const message =
            message_at(peer, channel, peer.rank, source_of(s), ring, number);
        const char* const last =
            message_at(peer, channel, peer.rank, source_of(s), ring, number - 1);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          rows[s][v] = make_uint4(0, 0, 0, 0);
          uint4 left = make_uint4(kPeerEmpty, kPeerEmpty, kPeerEmpty, kPeerEmpty);
          ptx::ld_system_v4_if(rows[s][v], message + offset(v), reach.has(v));
          ptx::ld_system_v4_if(left, last + offset(v), reach.has(v) && before);
          if (is_missing(rows[s][v]) || !is_empty(left)) missing = source_of(s);
        }
      }
      if constexpr (kTogether) judge_header(missing);
      if (missing < 0 || ended) break;
      ended = wait.gives_up(peer, missing);
    }
    wait.renew();
    if (kTogether && checks) ptx::st_system_u32(header(number), kPeerEmpty);
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      if (s >= count) continue;
      char* const message = message_at(peer, channel, peer.rank, source_of(s), ring, number);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (reach.has(v)) put_empty(message + offset(v));
      }
    }
  }
};

// What comes ahead of the first row: the weights, and the wait for the previous kernel.
template <class Slots, class Tile, int kGroup>
__device__ __forceinline__ void begin_rows(const PeerRows<Slots, Tile, kGroup>& rows,
                                           RowState<Slots, Tile>& row, uint32_t first_row) {
  ptx::grid_wait_if((rows.bits & kWaitAfterWeights) == 0);
  load_ahead(rows.p, row, rows.index_of(first_row), rows.place, rows.reach, rows.bits);
  ptx::grid_wait();
  load_static_scale<Slots, Tile>(rows.p, row);
}

template <class Slots, class Tile, int kGroup>
__device__ __forceinline__ void trigger(const PeerRows<Slots, Tile, kGroup>& rows) {
  if ((rows.bits & kTrigger) != 0) ptx::grid_trigger();
}

// Weights of another head, where rows have different ones.
template <class Slots, class Tile, int kGroup>
__device__ __forceinline__ void renew_weights(const PeerRows<Slots, Tile, kGroup>& rows,
                                              RowState<Slots, Tile>& row, const RowIndex& index) {
  if ((rows.bits & kHeadWeights) != 0)
    load_ahead(rows.p, row, index, rows.place, rows.reach, rows.bits);
}

}  // namespace fastnorm::cuda
