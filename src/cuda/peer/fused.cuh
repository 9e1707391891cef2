// Exchange and norm in one kernel: what both algorithms share. A block, or a cluster, is a ring; it
// takes its rows one after another. The row that it normalises is the sum of the ranks' rows, and
// from there on the forward norm's own (cuda/norm/kernel.cuh), with the residual.
//
// Bytes: x, residual and outputs once; what travels goes through L2.
// Order: messages of the first row are sent as soon as the previous kernel has ended, and the next
// kernel may start then. A row's messages are sent before the row ahead of it is normalised.
// Outputs of a row are stored when all threads of the ring have all its messages.
#pragma once

#include "cuda/norm/kernel.cuh"
#include "cuda/peer/fold.cuh"

namespace fastnorm::cuda {

// A block takes many rows: a thread's place keeps the row's number.
template <int kThreads_, int kVectors_, int kBlocks_>
struct LoopTile : RowTile<kThreads_, kVectors_, kBlocks_> {
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
      fill_values(vector, -0.0f);
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
  static constexpr bool kPair = kGroup == 1;       // of two ranks, one-shot
  static constexpr bool kOneRow = Tile::kCluster;  // of a ring in a call
  // Calls that ask for nothing else: the row's only fold tells whether the call has ended.
  static constexpr bool kLean = Slots::kFlavour == Flavour::kLean;
  // Registers hold the ring's next row of x from one row to the next.
  static constexpr bool kHoldsNext = kPair && kLean;

  __device__ __forceinline__ PeerRows(const PeerNormParams& params)
      : p(params.norm),
        peer(params.peer),
        bits(bits_of<Slots, Tile>(ptx::in_register(params.norm.bits))),
        place(0),
        reach(params.norm, place, true),
        ring(static_cast<int>(blockIdx.x) / Tile::kBlocks) {
    if constexpr (kPair) {
      there = ptx::in_register(message_at(peer, kPeerOneShot, 1 - peer.rank, peer.rank, ring, 0) +
                               offset(0));
      here = ptx::in_register(message_at(peer, kPeerOneShot, peer.rank, 1 - peer.rank, ring, 0) +
                              offset(0));
    }
  }

  __device__ __forceinline__ RowIndex index_of(uint32_t row) const {
    return kLean ? RowIndex{true, {row, 0, 0}} : row_index(p, row, bits);
  }
  __device__ __forceinline__ void load_x(Row& x, const RowIndex& index) const {
    load_vectors<Slots::kV.loads, Tile>(x, row_address(p.x, p.x_upper, index), place, reach, false);
  }

  // Sends a row to all other ranks.
  __device__ __forceinline__ void send_to_all(int channel, uint32_t number, const Row& row) const {
    if constexpr (kPair) {
      send_to(channel, there + slot_at(peer, channel, number), number, row);
    } else {
      for (int i = 0; i < peer.ranks - 1; ++i) send(channel, next_rank(peer, i), number, row);
    }
  }
  __device__ __forceinline__ void send(int channel, int to, uint32_t number, const Row& row) const {
    send_to(channel, message_at(peer, channel, to, peer.rank, ring, number) + offset(0), number,
            row);
  }

  // Adds up what the other ranks sent to this one, and its own row.
  __device__ __forceinline__ void receive_sum(int channel, uint32_t number, bool before,
                                              const RowIndex& index, Row& own, Row& sum) {
    if constexpr (kPair) {
      if constexpr (!kHoldsNext) load_x(own, index);
      Row rows[1];
      take_rows(
          channel, 1, [&](int) { return 1 - peer.rank; }, number, before, rows);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) sum[v] = sum_of_two(own[v], rows[0][v]);
    } else {
      receive_sum_of_many(channel, number, before, index, sum);
    }
  }

  // A row that one rank sent.
  __device__ __forceinline__ void receive(int channel, int source, uint32_t number, bool before,
                                          Row& row) {
    Row rows[1];
    take_rows(
        channel, 1, [&](int) { return source; }, number, before, rows);
    copy_values(row, rows[0]);
  }

  // The norm of a row whose sum is in `source`, and its outputs. False, in all threads of the ring,
  // and no output: a thread lacks a part of the row.
  __device__ __forceinline__ bool finish(uint32_t number, const RowIndex& index,
                                         const RowSource<Slots, Tile>& source,
                                         RowState<Slots, Tile>& row,
                                         PeerScratch<Slots, Tile>& scratch) {
    place.row = number;
    const auto rounding = rounding_of<Slots, Tile>(p, bits);
    if constexpr (kLean) {
      if (!reduce_lean(index, source, row, rounding, scratch)) return false;
    } else {
      if (has_ended(source, scratch)) return false;
      FirstElement<Slots, Tile> first;
      if constexpr (Slots::kLayer) first.give(scratch.first[0], scratch.first[1]);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) row.held.set(source, v);
      reduce_row(p, row, source, first, index, place, reach, rounding, scratch.row);
    }
    finish_row<Slots, Tile>(p, row, index, place, reach, rounding);
    if constexpr (Slots::kSink == Sink::kQuant)
      quantize_row<Slots, Tile>(p, row, index, place, reach, scratch.row.fold[Slots::kFolds - 1]);
    if ((p.bits_again & kStoreStatistics) != 0 && place.leads_row())
      store_statistics(p, index, row.mean, row.rstd);
    return true;
  }

  __device__ __forceinline__ void load_residual(RowSource<Slots, Tile>& source,
                                                const RowIndex& index) const {
    if (p.residual.data != nullptr) {
      load_vectors<Slots::kV.loads, Tile>(
          source.residual, row_address(p.residual, p.residual_upper, index), place, reach, false);
    } else {
      constexpr uint32_t kNothing = T::kMinusZeroWord;
      fill_values(source.residual, make_uint4(kNothing, kNothing, kNothing, kNothing));
    }
  }

  // True in the one thread of the ring that counts messages.
  __device__ __forceinline__ bool leads_ring() const { return place.leads_row(); }

  const NormParams& p;
  const PeerExchange& peer;
  const uint32_t bits;
  Place<Tile> place;
  const Reach reach;
  const int ring;
  bool ended = false;
  PeerWait wait;

 private:
  // The sum, rounded once: for 16-bit numbers rounding their sum in f32 gives the same.
  static __device__ __forceinline__ uint4 sum_of_two(const uint4& a, const uint4& b) {
    if constexpr (T::kBytes == 2) {
      return add_vectors<T>(a, b);
    } else {
      float f[T::kPerVector], g[T::kPerVector];
      T::unpack(a, f), T::unpack(b, g);
#pragma unroll
      for (int i = 0; i < T::kPerVector; ++i) f[i] = __fadd_rn(f[i], g[i]);
      return T::pack(f);
    }
  }

  // Bytes from a message's begin to the vector that register v has.
  __device__ __forceinline__ uint32_t offset(int v) const {
    return static_cast<uint32_t>(place.vector(v)) * kVectorBytes;
  }
  static constexpr uint32_t step(int v) {
    return static_cast<uint32_t>(Tile::offset(v)) * kVectorBytes;
  }

  // The header of a message, given this thread's first vector of it.
  __device__ __forceinline__ char* header_of_message(int channel, char* message) const {
    return message - offset(0) + header_at(peer, channel);
  }

  // The thread that sends headers: the one that most seldom has a last vector.
  __device__ __forceinline__ bool has_header() const {
    return threadIdx.x == Tile::kThreads - 1 && place.block == Tile::kBlocks - 1;
  }

  // `message`: at this thread's first vector.
  __device__ __forceinline__ void send_to(int channel, char* message, uint32_t number,
                                          const Row& row) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (reach.has(v)) ptx::st_system_v4(message + step(v), peer_sent(row[v]));
    }
    if (has_header())
      ptx::st_system_v4(header_of_message(channel, message), header_of(peer, number));
  }

  // In rank order. This rank's row is read last: it is in L1 since it was sent, and registers are
  // scarce while others are awaited.
  __device__ __forceinline__ void receive_sum_of_many(int channel, uint32_t number, bool before,
                                                      const RowIndex& index, Row& sum) {
    RankSum<T, kVectors> total;
    const int others = peer.ranks - 1;
    Row own;
#pragma unroll 1
    for (int first = 0; first < others; first += kGroup) {
      Row rows[kGroup];
      take_rows(
          channel, others - first, [&](int s) { return other_rank(peer, first + s); }, number,
          before, rows);
      load_x(own, index);
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
    load_x(own, index);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (own_last) total.add(own[v], v);
      sum[v] = T::pack(total.values[v]);
    }
  }

  // Message `number` of `source`, at this thread's first vector.
  __device__ __forceinline__ char* message(int channel, int source, uint32_t number) const {
    if constexpr (kPair) return here + slot_at(peer, channel, number);
    return message_at(peer, channel, peer.rank, source, ring, number) + offset(0);
  }

  // Rows of the ranks source_of(0), source_of(1), .., `count` of them or kCount. The last threads
  // look for a header each, together with their part of the row. All are judged when they are
  // there, or when what is missing has been long in coming.
  template <int kCount, typename SourceOf>
  __device__ __forceinline__ void take_rows(int channel, int count, const SourceOf& source_of,
                                            uint32_t number, bool before, Row (&rows)[kCount]) {
    static_assert(kCount <= 32);  // one warp
    const int behind = Tile::kThreads - 1 - static_cast<int>(threadIdx.x);
    const bool checks = behind < kCount && behind < count && place.block == Tile::kBlocks - 1;
    const int checked = source_of(checks ? behind : 0);
    char* const header = header_of_message(channel, message(channel, checked, number));
    // From a message to the one before it.
    const uint32_t last = slot_at(peer, channel, number - 1) - slot_at(peer, channel, number);
    const auto back = [&](const char* from) { return from + static_cast<int32_t>(last); };
    uint4 head;
    const auto look = [&] {
      bool missing = false;
#pragma unroll
      for (int s = 0; s < kCount; ++s) {
        if (kCount > 1 && s >= count) continue;
        const char* const from = message(channel, source_of(s), number);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          rows[s][v] = make_uint4(0, 0, 0, 0);
          ptx::ld_system_v4_if(rows[s][v], from + step(v), reach.has(v));
        }
      }
      head = make_uint4(0, 0, 0, 0);
      ptx::ld_system_v4_if(head, header, checks);
      if (!kOneRow && before) {
        uint32_t left = kPeerEmpty;
        ptx::ld_system_u32_if(left, back(header), checks);
        missing |= left != kPeerEmpty;
#pragma unroll
        for (int s = 0; s < kCount; ++s) {
          if (kCount > 1 && s >= count) continue;
          const char* const from = back(message(channel, source_of(s), number));
#pragma unroll
          for (int v = 0; v < kVectors; ++v) {
            uint32_t word = kPeerEmpty;
            ptx::ld_system_u32_if(word, from + step(v), reach.has(v));
            missing |= word != kPeerEmpty;
          }
        }
      }
#pragma unroll
      for (int s = 0; s < kCount; ++s) {
        if (kCount > 1 && s >= count) continue;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) missing |= is_missing(rows[s][v]);
      }
      return missing || is_missing(head);
    };
    // Who is missing, after a look. A header that disagrees ends the call: its rows may never come.
    const auto is_over = [&] {
      int late = checked;
#pragma unroll
      for (int s = 0; s < kCount; ++s) {
        if (kCount > 1 && s >= count) continue;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          if (is_missing(rows[s][v])) late = source_of(s);
        }
      }
      if (checks && !is_missing(head)) agrees(peer, checked, number, head);
      return wait.is_over(peer, late);
    };
    while (look() && !ended) {
      if (wait.is_due()) ended = is_over();
    }
    wait.renew();
    if (checks) {
      if (!ended && !agrees(peer, checked, number, head)) ended = true;
      put_empty(header);
    }
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      if (kCount > 1 && s >= count) continue;
      char* const from = message(channel, source_of(s), number);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (reach.has(v)) put_empty(from + step(v));
      }
    }
  }

  // Mean square and rstd of a row. The sum of x and the residual is stored when it is known that
  // all threads have the row.
  template <class R>
  __device__ __forceinline__ bool reduce_lean(const RowIndex& index,
                                              const RowSource<Slots, Tile>& source,
                                              RowState<Slots, Tile>& row, const R& rounding,
                                              PeerScratch<Slots, Tile>& scratch) {
    static_assert(!Slots::kLayer && Slots::kSink != Sink::kQuant);
    float q[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      row.held.set(source, v);
      float s[T::kPerVector];
      row.held.get(s, v);
      q[v] = squares<T>(s, false);
    }
    float sum = fold_registers(q);
    if (!fold_unless_ended(sum, ended, scratch.row.fold[0], place)) return false;
    source.store_sum(p, index, place, reach, row.held.values);
    row.rstd = rstd_of(__fmul_rn(sum, p.inv_n), p, rounding);
    return true;
  }

  // True if some thread of the block lacks a part of the row: nobody may go on. Else all threads
  // are done with the row before.
  __device__ __forceinline__ bool has_ended(const RowSource<Slots, Tile>& source,
                                            PeerScratch<Slots, Tile>& scratch) const {
    if (Slots::kLayer && place.leads_row())
      scratch.first[0] = source.x[0].x, scratch.first[1] = source.residual[0].x;
    return ptx::any_of_block(ended);
  }

  // kPair: the ring's first message at this thread's first vector, to the other rank and from it.
  char *there = nullptr, *here = nullptr;
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

// The reciprocal that Sink::kStatic multiplies by, while the first messages are on their way.
template <class Slots, class Tile>
__device__ __forceinline__ void invert_static_scale(RowState<Slots, Tile>& row) {
  if constexpr (Slots::kSink == Sink::kStatic) row.static_scale = __frcp_rn(row.static_scale);
}

// Weights of another head, where rows have different ones.
template <class Slots, class Tile, int kGroup>
__device__ __forceinline__ void renew_weights(const PeerRows<Slots, Tile, kGroup>& rows,
                                              RowState<Slots, Tile>& row, const RowIndex& index) {
  if ((rows.bits & kHeadWeights) != 0)
    load_ahead(rows.p, row, index, rows.place, rows.reach, rows.bits);
}

}  // namespace fastnorm::cuda
