// THE forward row kernel: Source -> Stat -> Affine -> Sink, with the row in registers, and a second body that streams rows longer
// than a cluster's registers.
//
// Bytes: each input once, each output once (a streamed row is read twice, LAYER three times).
// Registers: the row in f32 (V vectors of 4 or 8), the raw weights where they are loaded ahead, about 20 for addresses.
// Shared memory: one float a thread and sum, of wide rows two; a cluster adds 128 bytes a block. Uneven rows lie there whole
// (staged.cuh), of a cluster's the ends (windows.cuh). Where that leaves the row more registers, weight and bias wait there (Beside::kShared).
// Schedule of the register body:
//   1. all loads of the row, then the weights: they arrive while the row is summed
//   2. f32 row; the residual sum is stored at once, so that the store overlaps the reduction
//   3. canonical sum (LAYER: two), one barrier up to 256 threads, two from 512 on, a push over distributed shared memory in clusters
//   4. exact 1/sqrt, apply, store
// Blocks are not persistent: with one row a block the hardware balances the load, which fixed shares lose up to 3 % on (H200). But where
// instructions hold a kernel up, a third body keeps weight and bias in f32 in registers and takes rows in turn, each loaded while the one
// before it is reduced.
#pragma once

#include "cuda/common/ptx/grid.cuh"
#include "cuda/norm/parts.cuh"
#include "cuda/norm/quant.cuh"

namespace fastnorm::cuda {

// LAYER's rows that are unpacked once, and for which the weights are loaded after the reduction: a third fewer instructions. Rows of a
// warp, of which all are resident at once as a rule (4096 x 1024 bf16 5.88 us for 6.25, f16 5.84 for 5.97; 2048 x 1024 4.09 for 4.31;
// H200, 2026-11-22); rows of more warps, where blocks come one after another, wait for such weights: 4096 x 2048 11.3 us for 10.1. But
// codes by a given scale are bound by instructions: 4096 x 4096 16.1 us for 16.9, 4096 x 8192 29.9 for 30.5 (and 4096 x 2048 in 64
// threads 9.6 for 9.3; 2026-11-23).
template <class Slots, class Tile>
constexpr bool unpacked_late_row() {
  if (Slots::kStat != Stat::kLayer || Slots::kSource != Source::kPlain ||
      Slots::kAccess != Access::kVector || Slots::kAffine != Affine::kOnce ||
      Slots::T::kBytes != 2 || Tile::kVectors != 4 || Tile::kBlocks > 1 || Slots::kShares) {
    return false;
  }
  if (Slots::kSink == Sink::kStatic)
    return Tile::kThreads == 32 || Tile::kThreads == 128 || Tile::kThreads == 256;
  return Slots::kSink == Sink::kStore && Tile::kThreads == 32;
}

// Codes of RMS by a given scale: they write half as many bytes and need the more rows in flight, a quarter to a half more blocks for fewer
// registers: 4096 x 3072 11.6 us -> 10.9, x 6144 22.0 -> 20.0, x 8192 26.9 -> 25.7, x 12288 40.7 -> 39.1; but 512 x 8192 5.4 -> 5.6
// (2026-11-23). 128 x 4 and 512 x 4 have nothing of it (4096 x 4096 13.9 and 14.0).
template <class Slots, class Tile>
constexpr bool packed_codes_row() {
  if (Slots::kSink != Sink::kStatic || Slots::kStat != Stat::kRms || Tile::kThreads < 128 ||
      Tile::kBlocks > 1 || Slots::kShares) {
    return false;
  }
  return Tile::kVectors == 3 || (Tile::kVectors == 4 && Tile::kThreads == 256) ||
         (Tile::kVectors == 5 && Tile::kThreads == 128);
}

// Codes by scales from the values, which are bound by instructions and latency: with weight and bias beside the row as it was loaded, a
// thread has more vectors or a multiprocessor more blocks. RMS 4096 x 5120 with scales of 128 columns 24.7 us (256 x 3 unpacked) -> 19.0, x 6144 25.8 ->
// 22.2, x 12288 47.0 -> 41.5; with 3 or 4 vectors nothing or a loss (4096 x 4096 15.2 -> 15.4). LAYER 4096 x 4096 21.2 -> 19.5, x 5120 26.5 ->
// 23.9 (2026-11-23).
template <class Slots, class Tile>
constexpr bool packed_scales_row() {
  constexpr bool kLayer = Slots::kStat == Stat::kLayer;
  constexpr int kLeast = kLayer ? 3 : 5, kMost = !kLayer && Tile::kThreads == 128 ? 8 : 7;
  return Slots::kSink == Sink::kQuant && Tile::kVectors >= kLeast && Tile::kVectors <= kMost &&
         Tile::kThreads >= 32 && Tile::kThreads <= 256 && Tile::kBlocks == 1 && !Slots::kShares;
}

// Long rows in clusters, which hold twice as much in the registers of 4 vectors (f32 rows are as long unpacked): see long_row_tile() in
// core/norm_plan.cpp.
template <class Slots, class Tile>
constexpr bool packed_cluster() {
  return Slots::kSource == Source::kPlain && Tile::kBlocks > 1 && Tile::kVectors > 4 &&
         !Slots::kShares;
}

// Of bare kernels with 512 threads three blocks are resident, with 40 registers: RMS 1024 x 12288 14.3 us for 16.0, 2048 x 12288 26.2 for
// 29.0, 256 x 10240 4.66 for 4.84; LAYER 256 x 12288 5.9 for 6.1, 1024 x 16384 21.7 for 22.7 in 256 threads. RMS of 4 vectors has nothing of
// it (1024 x 16384 19.5 for 19.3), nor has it in 256 threads with 48 (1024 x 8192 9.86 for 9.76; 2026-11-23).
template <class Slots, class Tile>
constexpr bool three_blocks() {
  return Slots::kBeside != Beside::kAny && !Slots::kShares && Slots::kSource == Source::kPlain &&
         Slots::kSink == Sink::kStore && Slots::kAffine == Affine::kOnce && Tile::kThreads == 512 &&
         !(Slots::kAccess == Access::kUneven && Slots::kStat == Stat::kLayer) &&
         (Tile::kVectors == 3 || (Tile::kVectors == 4 && Slots::kStat == Stat::kLayer));
}

// With columns in shared memory, rows of RMS that are held as they were loaded: where they let another block run. Against unpacked, H200,
// bf16, 2026-11-25: to y 384 x 28672 12.6 us for 13.1, to e4m3 by a given scale 1024 x 28672 24.6 for 25.6, 1024 x 32768 in 512 threads 27.8
// for 33.4, by a scale a row 384 x 32768 15.3 for 17.2; but with few vectors a thread or in two blocks unpacked is faster (by a given scale 768 x 16384
// 11.9 for 12.7), and so is LAYER everywhere. Codes by scales from the values have their results in registers of their own then, so that 7 and 8 vectors
// a thread fit.
template <class Slots, class Tile>
constexpr bool packed_shared_row() {
  if (!Slots::kShares || Slots::kSource == Source::kAdd) return false;
  const int v = Tile::kVectors;
  if (Slots::kSink == Sink::kQuant && v >= 7) return true;
  if (Slots::kStat == Stat::kLayer) return false;
  if (Slots::kSink == Sink::kStore) return v >= 6;
  if (Slots::kSink == Sink::kStatic)
    return Tile::kThreads == 512 || (Tile::kBlocks == 4 && (v == 6 || v == 7));
  return Tile::kThreads == 256 && v == 4 && Tile::kBlocks == 4;
}

// True where the row is held as it was loaded, in half the registers, and unpacked anew for each use: where the registers saved let
// another block run, or keep the weights beside the row (LAYER 4096 x 4096 bf16: 18.7 us with 64 registers, 19.1 unpacked with 80;
// 4096 x 32768: 136 and 141; f16 RMS 4096 x 7168: 30.5 and 31.3; H200, 2026-11-21). LAYER's rows in 256 threads, of which 512 are then
// resident at once: 512 x 16384 11.8 us for 12.7, 512 x 7168 6.3 for 6.7, 2048 x 8192 19.3 for 20.0; but 4096 x 7168 31.2 for 30.9, 256 x 8192 4.8 for 4.6, and
// codes by a given scale, bound by instructions, 4096 x 8192 31.9 for 30.0. RMS with more than 4 vectors a thread: 4096 x 20480 82.0 us,
// in 1024 threads 88.3; 512 x 12288 8.0, in 512 threads 8.9; codes 4096 x 32768 102.9, unpacked 112.5 (2026-11-22).
template <class Slots, class Tile>
constexpr bool packed_row() {
  if (Slots::kShares) return packed_shared_row<Slots, Tile>();
  if (Slots::kAccess == Access::kAny || Slots::kSource != Source::kPlain || Slots::T::kBytes != 2 ||
      Slots::kAffine == Affine::kKept || unpacked_late_row<Slots, Tile>()) {
    return false;
  }
  if (Slots::kSink == Sink::kQuant) {
    // 64 registers would spill two words.
    const bool cluster = Slots::kStat == Stat::kLayer && Tile::kThreads == 512 &&
                         Tile::kVectors == 4 && Tile::kBlocks == 2;
    return packed_scales_row<Slots, Tile>() || cluster;
  }
  if (three_blocks<Slots, Tile>()) return true;
  if (Tile::kBlocks > 1) return packed_cluster<Slots, Tile>();
  if (Slots::kStat == Stat::kLayer) {
    if (Tile::kThreads == 256) return Tile::kVectors >= (Slots::kSink == Sink::kStatic ? 5 : 4);
    return Tile::kThreads == 512 ? Tile::kVectors > 4 : Tile::kVectors == 4 || Tile::kVectors == 5;
  }
  if (packed_codes_row<Slots, Tile>()) return true;
  return Tile::kVectors > 4 ? Tile::kThreads >= 256
                            : Slots::kDtype == Dtype::kF16 && Slots::kBeside == Beside::kAny &&
                                  Tile::kThreads == 256 && Tile::kVectors == 4;
}

// How the normalised row is rounded where that is asked for. Each is the best where it stands, or what has the registers there.
enum class RoundedRow {
  kTwice,        // the end of the kernel is there twice, rounded and not
  kInPlace,      // the row is normalised in place ahead of the weights, one branch for all of it
  kByPredicate,  // as it comes, without a branch: loads after the reduction do not wait for one (LAYER with f32 columns 1 x 4096 would
                 // take 2.3 us for 2.1)
};

template <class Slots, class Tile>
constexpr RoundedRow rounded_row() {
  if (Slots::kAffine == Affine::kKept || Slots::kRounds) return RoundedRow::kTwice;
  constexpr bool kPacked = packed_row<Slots, Tile>(), kLayer = Slots::kStat == Stat::kLayer;
  const int v = Tile::kVectors, threads = Tile::kThreads;
  if (Slots::kAffine == Affine::kF32) {
    // By predicate LAYER takes 48 instructions of 700 more for it.
    const bool twice = Slots::kAccess == Access::kVector &&
                       (Tile::kBlocks == 1 ? v > 2 : threads == 512 && v == 4);
    return twice ? RoundedRow::kTwice : RoundedRow::kByPredicate;
  }
  if (kPacked) return RoundedRow::kTwice;
  if (Slots::kSink == Sink::kQuant) {
    const bool twice = !kLayer && Slots::kSource == Source::kPlain && v > 4;
    return twice ? RoundedRow::kTwice : RoundedRow::kInPlace;
  }
  // Short paths: no faster than in place (add 1 x 4096: 1.96 and 1.95 us; without any rounding 1.89).
  return Slots::kAccess == Access::kVector && v <= 2 ? RoundedRow::kTwice : RoundedRow::kInPlace;
}

// The same beside columns in shared memory: a row and some 24 to 40 registers.
template <class Slots, class Tile>
constexpr int shared_row_registers() {
  const int v = Tile::kVectors;
  const bool quant = Slots::kSink == Sink::kQuant;
  int registers = 0;
  if (Slots::kSource == Source::kAdd) {
    registers = v == 3 ? 80 : v == 4 ? (quant ? 72 : 96) : 128;
  } else if (packed_shared_row<Slots, Tile>()) {
    registers = quant ? (v >= 7 ? 32 + 8 * v : 64) : v == 4 ? 48 : v == 6 ? 56 : 64;
  } else {
    // Codes of RMS by scales from the values need all that lets as many blocks run: 2048 x 24576 44.0 us, with 8 more 54.6.
    registers = (v >= 7 ? 96 : 32 + 8 * v) + (quant && Slots::kStat == Stat::kLayer ? 8 : 0);
  }
  if (Tile::kThreads < 512) return registers;
  return registers <= 40 ? 40 : registers <= 64 ? 64 : 128;
}

// Registers a thread may use, which sets how many blocks a multiprocessor holds. Fewer than the row and its weights need spill;
// more cost occupancy, of which 16 to 32 KB of loads in flight a multiprocessor is enough (H200). Blocks of 512 threads keep to 64
// up to 4 vectors, so that two of them overlap one's loads with the other's reduction.
template <class Slots, class Tile>
constexpr int row_registers() {
  if (Slots::kShares) return shared_row_registers<Slots, Tile>();
  if (Tile::kThreads == 1024) return 64;
  if (Tile::kVectors == 0) return 255;
  const bool wide = Slots::T::kBytes == 2;  // 8 values a vector
  const int v = wide ? Tile::kVectors : Tile::kVectors - Tile::kVectors / 4;
  // 128 rows of clusters of 4 are resident at once with 5 blocks a multiprocessor; with 4, some clusters find no room (5.2 us for 4.5).
  if (Tile::kThreads == 256 && Tile::kVectors == 2 && Tile::kBlocks == 4) return 48;
  if (Slots::kAccess == Access::kAny) {
    const bool add = Slots::kSource == Source::kAdd, layer = Slots::kStat == Stat::kLayer;
    if (Tile::kVectors > 4) return 128;
    if (Slots::kSink == Sink::kQuant)
      return Tile::kThreads <= 32 ? (add ? 128 : 96) : add ? 112 : layer ? 80 : 64;
    if (Tile::kThreads <= 32) return 96;
    if (Tile::kThreads == 512) return add || (layer && Slots::kDtype == Dtype::kF16) ? 128 : 64;
    return (add ? 72 : 64) + (layer ? 8 : 0);
  }
  if (Tile::kBlocks > 1) {
    const bool two_or_four_blocks = (Tile::kThreads == 512 || Slots::kAccess == Access::kUneven) &&
                                    Slots::kSource == Source::kPlain;
    if (Slots::kSink == Sink::kQuant && Tile::kVectors > 4)
      return Tile::kVectors == 6 && Slots::kStat == Stat::kLayer ? 96 : 80;
    return two_or_four_blocks || packed_cluster<Slots, Tile>() ? 64 : 128;
  }
  // Short rows need all the threads that a multiprocessor holds: heads of 128, 4096 tokens, take 46.6 us with 48 registers, 43.8 with 40
  // and 40.4 with 32.
  if (Tile::kThreads <= 32 && Tile::kVectors <= 2 && Slots::kSink != Sink::kQuant &&
      Slots::kAffine != Affine::kF32) {
    const bool many_columns = Slots::kSource == Source::kAdd && Slots::kStat == Stat::kLayer;
    return Tile::kVectors == 2 ? (many_columns ? 56 : 48) : many_columns ? 40 : 32;
  }
  if (Slots::kAffine == Affine::kF32 && Tile::kThreads <= 32)
    return v == 1 ? 48 : v == 2 ? 72 : v == 3 ? 80 : 96;
  if (Slots::kAffine == Affine::kF32 && packed_row<Slots, Tile>() && Tile::kThreads <= 256)
    return Tile::kThreads == 256 ? 64 : 72;
  if (Slots::kAffine == Affine::kF32 && Slots::kDtype == Dtype::kF16 &&
      Slots::kStat == Stat::kLayer && v == 3 && Tile::kThreads == 64)
    return 72;
  // Few rows: for many, columns are kept.
  if (Slots::kAffine == Affine::kF32 && Slots::kStat == Stat::kLayer && v == 3 &&
      Tile::kThreads == 128 && Tile::kBlocks == 1) {
    return 80;
  }
  if (unpacked_late_row<Slots, Tile>()) return Tile::kThreads == 32 ? 64 : 72;
  if (packed_row<Slots, Tile>() && packed_scales_row<Slots, Tile>()) {
    const bool f16 = Slots::kDtype == Dtype::kF16;
    if (Slots::kStat == Stat::kRms) {
      if (Tile::kVectors == 6) return 80;
      return Tile::kVectors == 5 ? (f16 ? 80 : 72) : f16 ? 128 : 96;
    }
    const bool fewer = f16 || Slots::kBeside != Beside::kAny;
    if (Tile::kVectors <= 4) return Tile::kVectors == 3 ? 56 : fewer ? 64 : 72;
    if (Tile::kVectors == 5) return fewer ? 80 : 96;
    return Tile::kVectors == 6 && fewer ? 96 : 128;
  }
  if (three_blocks<Slots, Tile>()) return 40;
  if (packed_row<Slots, Tile>() && packed_codes_row<Slots, Tile>())
    return Tile::kVectors == 3 ? 40 : Tile::kVectors == 4 ? 48 : 64;
  if (packed_row<Slots, Tile>())
    return Tile::kVectors == 5 && Tile::kThreads < (Slots::kStat == Stat::kRms ? 256 : 512) ? 80
                                                                                            : 64;
  if (Slots::kSink == Sink::kQuant) {
    const bool f16 = Slots::kDtype == Dtype::kF16;
    if (v == 3 && Tile::kThreads < 512 && !wide && Slots::kStat == Stat::kLayer) return 80;
    if (v == 3 && Tile::kThreads < 512 &&
        (f16 || (Tile::kThreads == 32 && Slots::kStat == Stat::kLayer))) {
      return 72;
    }
    if (v <= 3) return 64;
    if (v == 4) {
      if (Slots::kStat == Stat::kLayer || Slots::kSource == Source::kAdd) return 96;
      return !f16 || Tile::kThreads == 512 ? 64 : Tile::kThreads == 32 ? 96 : 80;
    }
    return 128;
  }
  if (Slots::kSource == Source::kAdd) {
    if (v <= 2 || (Tile::kThreads == 512 && v <= 3 && Slots::kStat == Stat::kRms)) return 64;
    return v <= 4 ? 96 : 128;
  }
  // 64 would spill a few registers.
  if (Slots::kDtype == Dtype::kF16 && Slots::kBeside == Beside::kNothing && Tile::kThreads == 32 &&
      Tile::kVectors == 3 && Slots::kStat == Stat::kLayer) {
    return 72;
  }
  if (Tile::kVectors == 4 &&
      (wide ? Slots::kDtype == Dtype::kF16 && Tile::kThreads == 128 && Slots::kStat == Stat::kRms
            : Tile::kThreads == 32)) {
    return 72;
  }
  if (v <= 3) return 64;
  if (!wide && (Tile::kThreads == 512 || (Tile::kThreads == 256 && Slots::kStat == Stat::kRms)))
    return 64;
  if (Slots::kStat == Stat::kRms) return v <= 4 ? 64 : 80;
  if (v <= 4) return Tile::kThreads == 512 ? 64 : 80;
  return v == 6 ? 80 : 96;
}

// Uneven rows by bare kernels of more vectors a thread than general ones have (see kUnevenRmsRungs).
template <class Slots, class Tile>
constexpr bool has_many_uneven() {
  const int v = Tile::kVectors;
  return Slots::kAccess == Access::kUneven && Slots::kBeside == Beside::kNothing &&
         Slots::kSource == Source::kPlain && Slots::kSink == Sink::kStore &&
         Slots::kAffine == Affine::kOnce && Tile::kBlocks == 1 && Tile::kThreads <= 256 &&
         (v > 5 || (v == 5 && Tile::kThreads == 256));
}

template <class Slots, class Tile>
constexpr int many_uneven_registers() {
  const int v = Tile::kVectors;
  if (Slots::kStat == Stat::kRms) return v <= 6 ? 64 : 80;
  if (v == 5) return 80;
  if (Tile::kThreads == 256) return Slots::kDtype == Dtype::kF16 && v < 8 ? 80 : 64;
  return v == 7 ? 80 : 96;
}

// Uneven rows need more, where the same of whole vectors has just enough.
template <class Slots, class Tile>
constexpr int registers_per_thread() {
  constexpr int kWhole = row_registers<Slots, Tile>();
  if (Slots::kHalves && Tile::kThreads <= 32) {  // others would spill up to 20 bytes
    constexpr bool kLayerRow = Slots::kStat == Stat::kLayer;
    const bool more = Slots::kDtype == Dtype::kF16
                          ? (kLayerRow ? Tile::kVectors >= 2 : Tile::kVectors == 4)
                          : kLayerRow && Tile::kVectors == 4;
    return kWhole + (more ? 8 : 0);
  }
  if (Slots::kAccess != Access::kUneven) return kWhole;
  if (has_many_uneven<Slots, Tile>()) return many_uneven_registers<Slots, Tile>();
  constexpr bool kAdd = Slots::kSource == Source::kAdd, kLayer = Slots::kStat == Stat::kLayer,
                 kF16 = Slots::kDtype == Dtype::kF16, kF32 = Slots::kDtype == Dtype::kF32;
  const int v = Tile::kVectors;
  // 64 would spill up to 160 bytes.
  if (Tile::kBlocks > 1) return kLayer && !kAdd && Tile::kThreads == 256 ? kWhole + 16 : kWhole;
  if (Tile::kThreads == 512) {
    const bool one_block =
        v > 5 || (v == 5 && kLayer) || (v == 4 && (Slots::kSink == Sink::kQuant || (kF32 && kAdd)));
    return one_block ? 128 : kWhole;
  }
  if (Slots::kSink == Sink::kQuant) return v >= 3 ? kWhole + 16 : kWhole;
  if (kF32) return v >= 4 ? kWhole + (kAdd ? (kLayer ? 24 : 16) : 8) : kWhole;
  if (kAdd) return Tile::kThreads == 4 && v == 1 ? kWhole + 16 : kWhole;
  // Of general kernels two would spill a word.
  if (Slots::kBeside == Beside::kAny && Slots::kSink == Sink::kStore &&
      Slots::kAffine == Affine::kOnce &&
      (kLayer ? kF16 && Tile::kThreads == 128 && v == 5
              : !kF16 && Tile::kThreads == 32 && v == 4)) {
    return kWhole + 8;
  }
  if (!kLayer || v != 4) return kWhole;
  return Slots::kAffine == Affine::kF32 ? (kF16 ? 96 : kWhole) : kF16 ? 80 : 72;
}

// What other architectures' compilers need beyond that, so that none of their kernels spills: the numbers above are sm_90's.
template <class Arch, class Slots, class Tile>
constexpr int spare_registers() {
  if (Arch::kCapability == 90) return 0;
  if (Slots::kAccess == Access::kUneven) {
    constexpr bool k100 = Arch::kCapability == 100, k120 = Arch::kCapability == 120;
    const int v = Tile::kVectors;
    const bool rms = Slots::kStat == Stat::kRms;
    if (Tile::kThreads == 512) {
      const bool one_block = (k100 && v == 4 && (rms || Slots::kAffine == Affine::kF32)) ||
                             (k120 && rms && (v == 4 || v == 5));
      return one_block ? 64 : 0;
    }
    if (Slots::kSource == Source::kAdd) return k120 ? 16 : 0;
    if (k120 && Slots::kAffine == Affine::kF32 && Tile::kThreads == 64 && v == 4) return 24;
    return v <= 2 || v == 5 || Tile::kThreads <= 64 || k120 ? 16 : 8;
  }
  if (Slots::kSource != Source::kPlain || Tile::kVectors == 0) return 0;
  // Two blocks of 512 threads run beside each other with 64 registers and no more; these would spill.
  if (packed_scales_row<Slots, Tile>() && Tile::kVectors == 8) return 16;
  const bool spills =
      Slots::kAccess == Access::kAny || (Tile::kBlocks > 1 && Tile::kVectors == 4) ||
      (Arch::kCapability == 80 && Slots::kSink == Sink::kStatic && Tile::kVectors == 4);
  if (Tile::kThreads >= 512 && !spills) return 0;
  if (Slots::kAccess == Access::kAny) return Slots::kSink == Sink::kStore ? 8 : 0;
  if (Tile::kVectors <= 2) return Tile::kThreads <= 32 && Slots::kStat == Stat::kLayer ? 8 : 0;
  if (Arch::kCapability == 80 && Slots::kSink == Sink::kStatic && Tile::kVectors == 8) return 8;
  if (Arch::kCapability == 80 && Slots::kAffine == Affine::kF32 && Tile::kVectors == 4) return 16;
  return Tile::kVectors > 5 ? 0 : Slots::kSink == Sink::kStatic ? 16 : 8;
}

template <class Arch, class Slots, class Tile, int kMore = 0>
constexpr int blocks_per_multiprocessor() {
  if (Slots::kAffine == Affine::kKept)
    return kept_blocks(fastnorm::Tile{Tile::kThreads, Tile::kVectors, Tile::kBlocks});
  const int registers =
      registers_per_thread<Slots, Tile>() + spare_registers<Arch, Slots, Tile>() + kMore;
  const int blocks = kRegistersPerMultiprocessor / (registers * Tile::kBlockThreads);
  return blocks < 1 ? 1 : blocks;
}

// True where the weights are loaded after the reduction: the row leaves no registers to keep them in.
template <class Slots, class Tile>
constexpr bool late_weights() {
  if (Slots::kShares) return true;
  if (packed_scales_row<Slots, Tile>() &&
      (packed_row<Slots, Tile>() ||
       (Slots::T::kBytes == 4 && Slots::kStat == Stat::kRms && Slots::kSource == Source::kPlain))) {
    return false;
  }
  if (Tile::kThreads == 1024 || unpacked_late_row<Slots, Tile>()) return true;
  if (packed_cluster<Slots, Tile>() ||
      (Tile::kThreads == 512 && Tile::kVectors > 4 && Tile::kBlocks > 1))
    return true;
  if (three_blocks<Slots, Tile>() && Slots::kStat == Stat::kLayer) return true;
  if ((Tile::kThreads == 256 || Tile::kVectors == 5) && Slots::kAffine == Affine::kF32 &&
      packed_row<Slots, Tile>()) {
    return true;
  }
  if (Tile::kThreads == 512 && Tile::kVectors > 2 &&
      (Slots::kStat == Stat::kLayer || Slots::kSink == Sink::kQuant)) {
    return true;
  }
  return Tile::kVectors > 5;
}

// Vectors of late weights loaded together.
template <class Slots, class Tile>
inline constexpr int kLateGroup = Tile::kThreads >= 512 || packed_cluster<Slots, Tile>() ||
                                          (Slots::kDtype == Dtype::kF16 &&
                                           unpacked_late_row<Slots, Tile>())
                                      ? Tile::kRun
                                      : 2;

// True where the quantising sink works out the row's place in memory anew: kept while the weights are applied it would spill.
template <class Slots, class Tile>
constexpr bool place_anew() {
  if (packed_row<Slots, Tile>()) return true;
  return Tile::kThreads == 512 &&
         (Tile::kVectors == 4 || (Tile::kVectors == 8 && (Slots::kSource == Source::kAdd ||
                                                          Slots::kStat == Stat::kLayer)));
}

// True where the row's number is kept across the reduction. Working it out anew saves registers and costs 0.04 us of a row's latency; but
// with a residual keeping it costs 0.07 (add 128 x 8192).
template <class Slots, class Tile>
constexpr bool keeps_row() {
  if (Tile::kRows > 1) return true;
  if (Slots::kSource == Source::kAdd || Slots::kSink == Sink::kQuant) return false;
  return Tile::kVectors <= 2 ||
         (Tile::kThreads < 512 && ((Tile::kBlocks > 1 && !packed_cluster<Slots, Tile>()) ||
                                   (Slots::kStat == Stat::kRms && Tile::kVectors <= 4)));
}

// t = (s - mean) * rstd for one vector; t may be s.
template <class Slots, int kCount, class R>
__device__ __forceinline__ void normalize_vector(float (&t)[kCount], const float (&s)[kCount],
                                                 float mean, float rstd, const R& rounding) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) t[i] = s[i];
  if constexpr (Slots::kSource == Source::kAdd) rounding.applied(t);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (Slots::kStat == Stat::kLayer) t[i] = rounding.step(__fsub_rn(t[i], mean));
    t[i] = __fmul_rn(t[i], rstd);
  }
  rounding.normalized(t);
}

// The values of a row in registers.
template <class Slots, class Tile, bool kPacked = packed_row<Slots, Tile>()>
struct HeldRow {
  using T = typename Slots::T;
  static constexpr int kVectors = Tile::kVectors, kPerVector = T::kPerVector;

  __device__ __forceinline__ void set(const RowSource<Slots, Tile>& source, int v) {
    source.take(values[v], v);
  }
  __device__ __forceinline__ void round_sum(const Rounding<Slots::kAffine, T>& rounding) {
    if constexpr (Slots::kSource == Source::kAdd) round_row<T>(values, rounding.round_sum);
  }
  // Unpacked from here on: left to the compiler, what was loaded would be copied to make room for later loads.
  __device__ __forceinline__ void hold() {
#pragma unroll
    for (auto& vector : values) {
#pragma unroll
      for (float& s : vector) s = ptx::in_register(s);
    }
  }
  // d = s - mean in the row's place.
  __device__ __forceinline__ void centre(float mean) {
#pragma unroll
    for (auto& vector : values) {
#pragma unroll
      for (float& s : vector) s = __fsub_rn(s, mean);
    }
  }
  // In place, as normalize_vector().
  __device__ __forceinline__ void normalize(float mean, float rstd,
                                            const Rounding<Slots::kAffine, T>& rounding) {
#pragma unroll
    for (auto& vector : values)
      normalize_vector<Slots>(vector, vector, mean, rstd, KnownRounding<T, false>());
    round_row<T>(values, rounding.round_normalized());
  }
  __device__ __forceinline__ void get(float (&s)[kPerVector], int v) const {
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) s[i] = values[v][i];
  }
  // A vector by a number that is not known ahead.
  __device__ __forceinline__ void pick(float (&s)[kPerVector], int number) const {
    get(s, 0);
#pragma unroll
    for (int v = 1; v < kVectors; ++v) {
#pragma unroll
      for (int i = 0; i < kPerVector; ++i) {
        if (v == number) s[i] = values[v][i];
      }
    }
  }
  __device__ __forceinline__ void get_word(float* s, int v, int word) const {
#pragma unroll
    for (int i = 0; i < T::kPerWord; ++i) s[i] = values[v][word * T::kPerWord + i];
  }
  // Of a vector whose halves are taken in the other order where `crossed`.
  __device__ __forceinline__ void get_crossed_word(float* s, int v, int word, bool crossed) const {
#pragma unroll
    for (int i = 0; i < T::kPerWord; ++i) {
      s[i] = values[v][word * T::kPerWord + i];
      if (crossed) s[i] = values[v][(word ^ 2) * T::kPerWord + i];
    }
  }
  __device__ __forceinline__ void renew(const NormParams&, float) {}
  // What is to be quantised takes the row's place.
  __device__ __forceinline__ auto& results() { return values; }

  float values[kVectors][kPerVector];
};

// bf16 is unpacked by a factor and a mask, and these are what is tied: two instructions a tie for four a vector, of LAYER 4096 x 4096 564 for 592
// (512 x 4095 5.57 us -> 5.17, 4096 x 4095 22.8 -> 22.5; H200, 2026-11-26). RMS by scales from the values has no two registers for them, nor have other
// architectures' compilers.
template <class Slots, class Tile>
struct HeldRow<Slots, Tile, true> {
  using T = typename Slots::T;
  static constexpr int kVectors = Tile::kVectors, kPerVector = T::kPerVector;
  static constexpr bool kByFactors = Slots::kDtype == Dtype::kBF16 && kOnSm90 &&
                                     !(Slots::kStat == Stat::kRms && Slots::kSink == Sink::kQuant);

  __device__ __forceinline__ void set(const RowSource<Slots, Tile>& source, int v) {
    values[v] = source.words(v);
  }
  __device__ __forceinline__ void round_sum(const Rounding<Slots::kAffine, T>&) {}
  __device__ __forceinline__ void get(float (&s)[kPerVector], int v) const { unpack(values[v], s); }
  __device__ __forceinline__ void pick(float (&s)[kPerVector], int number) const {
    uint4 words = values[0];
#pragma unroll
    for (int v = 1; v < kVectors; ++v) words = selected(v == number, values[v], words);
    unpack(words, s);
  }
  __device__ __forceinline__ void get_word(float* s, int v, int word) const {
    unpack_word(word_of(values[v], word), s);
  }
  __device__ __forceinline__ void get_crossed_word(float* s, int v, int word, bool crossed) const {
    unpack_word(crossed ? word_of(values[v], word ^ 2) : word_of(values[v], word), s);
  }
  // Ties the row, or what unpacks it, to a value that comes later, so that the compiler cannot keep what it unpacked before.
  __device__ __forceinline__ void renew(const NormParams& p, float later) {
    const uint32_t none = (p.bits_again & kNeverSet) != 0 ? __float_as_uint(later) : 0;
    if constexpr (kByFactors) {
      high |= none;
      up |= none;
    } else {
#pragma unroll
      for (uint4& v : values) v.x |= none, v.y |= none, v.z |= none, v.w |= none;
    }
  }
  __device__ __forceinline__ auto& results() { return quantized; }

  __device__ __forceinline__ void unpack_word(uint32_t word, float* s) const {
    if constexpr (kByFactors) {
      s[0] = __uint_as_float(word * up), s[1] = __uint_as_float(word & high);
    } else {
      T::unpack_word(word, s);
    }
  }
  __device__ __forceinline__ void unpack(const uint4& words, float (&s)[kPerVector]) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) unpack_word(word_of(words, k), s + k * T::kPerWord);
  }

  uint32_t high = 0xffff0000u, up = 0x10000u;  // what a word's halves are unpacked by
  uint4 values[kVectors];
  float quantized[Slots::kSink == Sink::kQuant ? kVectors : 1][kPerVector];
};

// True where threads take the two fours of a vector crosswise: LAYER reads twice as many columns and is held up by L1 otherwise (4096 x
// 8192: 36.8 us for 39.7, 4096 x 6144: 28.0 for 30.4, 512 x 8192: 6.9 for 7.8); RMS loses by the instructions (4096 x 4096: 19.0 for 18.7,
// 4096 x 7168: 31.7 for 30.7; H200, 2026-11-23).
template <class Slots, class Tile>
inline constexpr bool kCrossFours =
    Slots::kStat == Stat::kLayer&& Slots::kAccess == Access::kVector&& Tile::kVectors > 2 &&
    Tile::kBlocks == 1;

// Fours of f32 columns on their way at once: as many as there are registers for. Of short shares all: few rows have them.
template <class Slots, class Tile>
inline constexpr int kFoursAhead =
    Tile::kVectors <= 2 ? 2 * Tile::kVectors
    : !late_weights<Slots, Tile>()
        ? (Tile::kBlocks > 1 && Tile::kThreads == 512 ? 3
           : kCrossFours<Slots, Tile> && Tile::kVectors == 3 && Tile::kThreads >= 256
               ? 1
               : Tile::kVectors)
    : Tile::kThreads == 256 && (Tile::kVectors > 5 || Slots::kDtype == Dtype::kF16) ? 1
    : (Tile::kBlocks > 1 && Tile::kVectors == 4) || Tile::kVectors == 8             ? 1
                                                                                    : 2;

// True where weight and bias are unpacked, and the offset is added, before the row is summed, of a cluster's row before it is exchanged:
// few rows wait for what comes after their sum. RMS 1 x 2048 1.41 us for 1.43, 1 x 16384 1.85 for 1.90, 16 x 4096 1.85 for 1.87, LAYER 16 x
// 4096 2.08 for 2.11, sums 128 x 4096 2.69 for 2.72, RMS to e4m3 64 x 16384 3.01 for 3.06; many rows as before. LAYER in clusters and other
// codes have nothing of it or lose (sums to e4m3 1 x 8192 2.09 for 2.05; H200, bf16, 2026-11-26).
template <class Slots, class Tile>
constexpr bool ready_columns() {
  constexpr bool kRms = Slots::kStat == Stat::kRms;
  const bool gains = Slots::kSink == Sink::kStore
                         ? Tile::kBlocks == 1 || kRms
                         : Slots::kSink == Sink::kStatic && Slots::kSource == Source::kPlain &&
                               kRms && Tile::kBlocks > 1;
  return gains && Slots::kBeside != Beside::kAny && !Slots::kShares && !Slots::kRounds &&
         Slots::kAffine == Affine::kOnce && Slots::kAccess == Access::kVector &&
         Slots::T::kBytes == 2 && Tile::kThreads >= 64 && Tile::kVectors <= 2 &&
         !late_weights<Slots, Tile>();
}

// A row in registers between its two halves.
template <class Slots, class Tile>
struct RowState {
  using T = typename Slots::T;
  static constexpr int kVectors = Tile::kVectors, kPerVector = T::kPerVector;
  // RMS seldom has a bias: it gets no registers ahead.
  static constexpr bool kEarlyWeight =
      Slots::kAccess != Access::kAny && !late_weights<Slots, Tile>();
  static constexpr bool kEarlyBias = kEarlyWeight && Slots::kStat == Stat::kLayer;
  static constexpr bool kHasFours = Slots::kAffine == Affine::kF32;
  static constexpr int kColumns = kHasFours      ? kFoursAhead<Slots, Tile>
                                  : kEarlyWeight ? kVectors
                                                 : 1;
  // Of those, the fours loaded before the reduction: RMS waits 0.05 us less for half of a short share's (1 x 4096).
  static constexpr int kEarlyFours = !kEarlyWeight                                       ? 0
                                     : Slots::kStat == Stat::kRms && kColumns > kVectors ? kVectors
                                                                                         : kColumns;

  HeldRow<Slots, Tile> held;
  uint4 weight[kColumns],
      bias[kEarlyBias || (kHasFours && Slots::kStat == Stat::kLayer) ? kColumns : 1];
  // t * factor + addend is what leaves, where that is made ready before the sum.
  static constexpr int kReady = ready_columns<Slots, Tile>() ? kVectors : 1;
  float factor[kReady][kPerVector], addend[kReady][kPerVector];
  uint4 result[Tile::kRun];  // to be stored together
  float mean = 0.0f, rstd = 0.0f;
  float given_scale = 1.0f;  // Sink::kStatic: its reciprocal after the reduction
};

template <class Slots, class Tile>
__device__ __forceinline__ void make_columns_ready(const NormParams& p,
                                                   RowState<Slots, Tile>& row) {
  using T = typename Slots::T;
#pragma unroll
  for (int v = 0; v < Tile::kVectors; ++v) {
    T::unpack(row.weight[v], row.factor[v]);
    if constexpr (Slots::kStat == Stat::kLayer) T::unpack(row.bias[v], row.addend[v]);
#pragma unroll
    for (int i = 0; i < T::kPerVector; ++i) {
      row.factor[v][i] = ptx::in_register(__fadd_rn(row.factor[v][i], p.weight_offset));
      if constexpr (Slots::kStat == Stat::kLayer) {
        row.addend[v][i] = ptx::in_register(row.addend[v][i]);
      } else {
        row.addend[v][i] = -0.0f;
      }
    }
  }
}

// What weight and bias read as where they are absent, ahead of their loads. By a branch, which takes no instructions where they are
// there; but clusters have no registers for it.
template <class Tile, int kCount>
__device__ __forceinline__ void fill_column(uint4 (&raw)[kCount], uint32_t word, bool present) {
  if constexpr (Tile::kBlocks == 1) {
    ptx::fill_unless(raw, word, present);
  } else {
#pragma unroll
    for (uint4& v : raw) v = make_uint4(word, word, word, word);
  }
}

template <class Slots, class Tile>
__device__ __forceinline__ void fill_columns(RowState<Slots, Tile>& row, bool has_weight,
                                             bool has_bias) {
  using Columns = Element<Slots::kAffine == Affine::kF32 ? Dtype::kF32 : Slots::kDtype>;
  fill_column<Tile>(row.weight, Columns::kOneWord, has_weight);
  if constexpr (Slots::kStat == Stat::kLayer)
    fill_column<Tile>(row.bias, Columns::kMinusZeroWord, has_bias);
}

// One vector's results to the sink, which keeps what is to be quantised in the row's place.
template <class Slots, class Tile, CodeType kCodes = CodeType::kE4M3, class Sink, class Reach>
__device__ __forceinline__ void deliver(const NormParams& p, const Sink& sink,
                                        RowState<Slots, Tile>& row,
                                        float (&z)[Slots::T::kPerVector], int v,
                                        const Place<Tile>& place, const Reach& reach) {
  if constexpr (Slots::kSink == fastnorm::Sink::kStatic) {
    put_static<typename Slots::T, kCodes>(z, row.given_scale, sink, v, place, reach.stores(v),
                                          row.result[0]);
  } else if constexpr (Slots::kSink == fastnorm::Sink::kQuant) {
#pragma unroll
    for (int i = 0; i < Slots::T::kPerVector; ++i) row.held.results()[v][i] = z[i];
  } else if constexpr (Slots::kAccess == Access::kUneven && Tile::kBlocks > 1) {
    store_window<typename Slots::T>(sink.y, Slots::T::pack(z), place.vector(v), p);
  } else if constexpr (Slots::kAccess == Access::kUneven) {
    put_staged<Slots, Tile>(Slots::T::pack(z), v, place);
  } else if constexpr (Tile::kRun > 1) {
    row.result[v % Tile::kRun] = Slots::T::pack(z);
    if (v % Tile::kRun == Tile::kRun - 1 && reach.stores(v)) {
      store_run<Tile::kRun>(place.template address<kVectorBytes>(sink.y, v - v % Tile::kRun),
                            row.result);
    }
  } else if constexpr (Slots::kHalves) {
    if (reach.stores(v)) {
      store_halves(place.template address<kVectorBytes>(sink.y, v), Slots::T::pack(z), reach.cut(v),
                   is_aligned(sink.y));
    }
  } else if (reach.stores(v)) {
    ptx::st_global_v4(place.template address<kVectorBytes>(sink.y, v), Slots::T::pack(z));
  }
}

// The columns of a short vector from shared memory: of registers that hold number `number` of a thread's, where it belongs to that vector.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void take_tails(uint4& weight, uint4& bias, int number,
                                           const Reach& reach) {
  if constexpr (Slots::kAccess == Access::kUneven) {
    constexpr int kParts = Slots::kAffine == Affine::kF32 ? kFours<typename Slots::T> : 1;
    if (number / kParts != Tile::kVectors - 1 || !reach.has_short()) return;
    const StagedRow<Slots, Tile> staged;
    weight = tail_vector(staged.weight_tail(), number % kParts);
    if constexpr (Slots::kStat == Stat::kLayer)
      bias = tail_vector(staged.bias_tail(), number % kParts);
  }
}

// Columns that are loaded after the reduction, of kGroup vectors.
template <class Slots, class Tile, int kGroup, class Reach>
__device__ __forceinline__ void load_late_columns(const NormParams& p, uint4 (&weight)[kGroup],
                                                  uint4 (&bias)[kGroup], int first,
                                                  const RowIndex& out, const Place<Tile>& place,
                                                  const Reach& reach) {
  using T = typename Slots::T;
  constexpr bool kBias = Slots::kStat == Stat::kLayer;
  const uint32_t bits = bits_of<Slots, Tile>(p.bits_again);
  if constexpr (Slots::kShares) {
    const SharedColumns<Slots, Tile> shared;
#pragma unroll
    for (int i = 0; i < kGroup && first + i < Tile::kVectors; ++i) {
      weight[i] = shared.weight(first + i);
      if constexpr (kBias) bias[i] = shared.bias(first + i);
    }
  } else if constexpr (Slots::kAccess == Access::kUneven) {
    load_uneven_columns<Slots, Tile, kGroup>(weight, weight_type(bits), weight_row(p, out, bits),
                                             first, place, reach, T::kOneWord);
    if constexpr (kBias) {
      load_uneven_columns<Slots, Tile, kGroup>(bias, bias_type(bits), bias_row(p, out, bits), first,
                                               place, reach, T::kMinusZeroWord);
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) take_tails<Slots, Tile>(weight[i], bias[i], first + i, reach);
  } else {
    load_columns<T, Tile, kGroup>(weight, weight_type(bits), weight_row(p, out, bits), first, place,
                                  reach, T::kOneWord);
    if constexpr (kBias) {
      load_columns<T, Tile, kGroup>(bias, bias_type(bits), bias_row(p, out, bits), first, place,
                                    reach, T::kMinusZeroWord);
    }
  }
}

// Second half, whole or uneven vectors, weight and bias of x's dtype or absent (RMS: no bias).
template <class Slots, class Tile, CodeType kCodes = CodeType::kE4M3, class Reach, class R>
__device__ __forceinline__ void finish_vectors(const NormParams& p, RowState<Slots, Tile>& row,
                                               const RowIndex& out, const Place<Tile>& place,
                                               const Reach& reach, const R& rounding) {
  using T = typename Slots::T;
  using State = RowState<Slots, Tile>;
  constexpr int kVectors = Tile::kVectors, kPerVector = T::kPerVector,
                kGroup = kLateGroup<Slots, Tile>;
  constexpr bool kBias = Slots::kStat == Stat::kLayer, kPacked = packed_row<Slots, Tile>();
  const RowSink<Slots::kSink, Slots::kAccess, T> sink(p, out);
#pragma unroll
  for (int first = 0; first < kVectors; first += kGroup) {
    uint4 weight[kGroup], bias[kGroup];
    if constexpr (!State::kEarlyWeight) {
      load_late_columns<Slots, Tile, kGroup>(p, weight, bias, first, out, place, reach);
    }
#pragma unroll
    for (int v = first; v < first + kGroup && v < kVectors; ++v) {
      const uint4 raw_weight =
          State::kEarlyWeight ? row.weight[State::kEarlyWeight ? v : 0] : weight[v - first];
      const uint4 raw_bias = State::kEarlyBias ? row.bias[State::kEarlyBias ? v : 0]
                             : kBias           ? bias[v - first]
                                               : make_uint4(0, 0, 0, 0);
      if constexpr (Slots::kRounds) {
        const auto word = [&](int k) {
          float t[T::kPerWord];
          row.held.get_word(t, v, k);
          normalize_vector<Slots>(t, t, row.mean, row.rstd, rounding);
          // As the offset of 0 does it, so that a weight of -0 counts as 0.
          const uint32_t w = add_words<T>(word_of(raw_weight, k), 0);
          return multiply_words<T>(T::pack_word(t[0], t[1]), w);
        };
        if (reach.stores(v)) {
          ptx::st_global_v4(place.template address<kVectorBytes>(sink.y, v),
                            make_uint4(word(0), word(1), word(2), word(3)));
        }
        continue;
      }
      float z[kPerVector];
      if constexpr (ready_columns<Slots, Tile>()) {
        row.held.get(z, v);
        if constexpr (rounded_row<Slots, Tile>() != RoundedRow::kInPlace)
          normalize_vector<Slots>(z, z, row.mean, row.rstd, rounding);
#pragma unroll
        for (int i = 0; i < kPerVector; ++i)
          z[i] = __fmaf_rn(z[i], row.factor[v][i], row.addend[v][i]);
        deliver<Slots, Tile, kCodes>(p, sink, row, z, v, place, reach);
        continue;
      }
      // A packed row by words, so that few unpacked values are alive beside it.
      constexpr int kWords = kPacked ? 1 : 4, kPerWord = T::kPerWord;
#pragma unroll
      for (int k = 0; k < 4; k += kWords) {
        float t[kWords * kPerWord], w[kWords * kPerWord], b[kWords * kPerWord],
            y[kWords * kPerWord];
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          T::unpack_word(word_of(raw_weight, k + i), w + i * kPerWord);
          row.held.get_word(t + i * kPerWord, v, k + i);
        }
#pragma unroll
        for (int i = 0; i < kWords * kPerWord; ++i) b[i] = -0.0f;
        if constexpr (kBias) {
#pragma unroll
          for (int i = 0; i < kWords; ++i)
            T::unpack_word(word_of(raw_bias, k + i), b + i * kPerWord);
        }
        if constexpr (rounded_row<Slots, Tile>() != RoundedRow::kInPlace)
          normalize_vector<Slots>(t, t, row.mean, row.rstd, rounding);
        apply(y, t, w, b, p.weight_offset, rounding);
#pragma unroll
        for (int i = 0; i < kWords * kPerWord; ++i) z[k * kPerWord + i] = y[i];
      }
      deliver<Slots, Tile, kCodes>(p, sink, row, z, v, place, reach);
    }
  }
}

// Second half, kept columns: the row is centred.
template <class Slots, class Tile, CodeType kCodes, class R>
__device__ __forceinline__ void finish_kept(
    const NormParams& p, RowState<Slots, Tile>& row, const KeptColumns<Slots, Tile>& columns,
    const RowIndex& out, const Place<Tile>& place,
    const Reach<Slots::kAccess, typename Slots::T, Tile>& reach, const R& rounding) {
  constexpr int kPerVector = Slots::T::kPerVector;
  const RowSink<Slots::kSink, Slots::kAccess, typename Slots::T> sink(p, out);
#pragma unroll
  for (int v = 0; v < Tile::kVectors; ++v) {
    float t[kPerVector];
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) t[i] = __fmul_rn(row.held.values[v][i], row.rstd);
    rounding.normalized(t);
    columns.apply(t, v);
    deliver<Slots, Tile, kCodes>(p, sink, row, t, v, place, reach);
  }
}

// Second half, f32 columns beside 16-bit rows, by fours: each is applied while later ones are on their way.
template <class Slots, class Tile, class Reach, class R>
__device__ __forceinline__ void finish_by_fours(const NormParams& p, RowState<Slots, Tile>& row,
                                                const RowIndex& out, const Place<Tile>& place,
                                                const Reach& reach, const R& rounding) {
  using T = typename Slots::T;
  using State = RowState<Slots, Tile>;
  constexpr int kPerVector = T::kPerVector, kAll = Tile::kVectors * kFours<T>,
                kAhead = kFoursAhead<Slots, Tile>;
  constexpr bool kBias = Slots::kStat == Stat::kLayer, kCross = kCrossFours<Slots, Tile>;
  [[maybe_unused]] const RowSink<Slots::kSink, Slots::kAccess, T> sink(p, out);
  using Columns = FourColumns<T, Tile, kCross>;
  const uint32_t bits = bits_of<Slots, Tile>(p.bits_again);
  const Columns weights(weight_row(p, out, bits), weight_type(bits), place),
      biases(bias_row(p, out, bits), bias_type(bits), place);
  const bool second_first = second_four_first<kCross>(place);
  auto& weight = row.weight;
  auto& bias = row.bias;
  const auto load = [&](int four) {
    weights.load(weight[four % kAhead], four, reach);
    if constexpr (kBias) biases.load(bias[four % kAhead], four, reach);
    take_tails<Slots, Tile>(weight[four % kAhead], bias[kBias ? four % kAhead : 0], four, reach);
  };
  if constexpr (!State::kEarlyWeight)
    fill_columns<Slots, Tile>(row, weights.present, biases.present);
#pragma unroll
  for (int i = State::kEarlyFours; i < kAhead; ++i) load(i);
#pragma unroll
  for (int v = 0; v < Tile::kVectors; ++v) {
    float z[kPerVector];
#pragma unroll
    for (int i = 0; i < kPerVector; i += 4) {
      const int four = (v * kPerVector + i) / 4;
      float t[4], w[4], b[4] = {-0.0f, -0.0f, -0.0f, -0.0f}, y[4];
#pragma unroll
      for (int k = 0; k < 4; k += T::kPerWord)
        row.held.get_crossed_word(t + k, v, (i + k) / T::kPerWord, second_first);
      Element<Dtype::kF32>::unpack(weight[four % kAhead], w);
      if constexpr (kBias) Element<Dtype::kF32>::unpack(bias[four % kAhead], b);
      normalize_vector<Slots>(t, t, row.mean, row.rstd, rounding);
      apply(y, t, w, b, p.weight_offset, rounding);
      if (four + kAhead < kAll) load(four + kAhead);
#pragma unroll
      for (int k = 0; k < 4; ++k) z[i + k] = y[k];
    }
    if constexpr (Slots::kAccess == Access::kUneven) {
      deliver<Slots, Tile>(p, sink, row, z, v, place, reach);
    } else if (reach.stores(v)) {
      const uint4 y = T::pack(z), words = selected(second_first, make_uint4(y.z, y.w, y.x, y.y), y);
      char* const address = place.template address<kVectorBytes>(sink.y, v);
      if constexpr (Slots::kHalves) {
        store_halves(address, words, reach.cut(v), is_aligned(sink.y));
      } else {
        ptx::st_global_v4(address, words);
      }
    }
  }
}

// Second half of one vector, any access.
template <class Slots, class Tile, class Sink, class Reach>
__device__ __forceinline__ void finish_any_vector(
    const NormParams& p, RowState<Slots, Tile>& row, const Sink& sink,
    const AnyColumns<typename Slots::T>& columns,
    const Rounding<Slots::kAffine, typename Slots::T>& rounding, int v, const Place<Tile>& place,
    const Reach& reach) {
  using T = typename Slots::T;
  const int count = reach.count(v);
  float s[T::kPerVector], w[T::kPerVector], b[T::kPerVector], z[T::kPerVector];
  pick_vector(s, row.held.values, v);
  columns.weight.template take<Part::kCounted>(w, place.vector(v), count);
  columns.bias.template take<Part::kCounted>(b, place.vector(v), count);
  normalize_vector<Slots>(s, s, row.mean, row.rstd, rounding);
  apply(z, s, w, b, p.weight_offset, rounding);
  if constexpr (Slots::kSink == fastnorm::Sink::kQuant) {
    clear_from(z, count);
    put_vector(row.held.values, v, z);
  } else {
    store_part<Part::kCounted, T>(z, sink.y, place.vector(v), count);
  }
}

// Second half, any access: one vector after another, as the code of one is long enough to fill a good part of an instruction cache
// (LAYER with f32 columns 4096 x 4100, with 80 registers: 52.2 us, unrolled with 128: 75.7).
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void finish_any(const NormParams& p, RowState<Slots, Tile>& row,
                                           const RowIndex& out, const Place<Tile>& place,
                                           const Reach& reach) {
  using T = typename Slots::T;
  using Sink = RowSink<Slots::kSink, Slots::kAccess, T>;
  const auto rounding = rounding_of<Slots, Tile>(p);
  if constexpr (Tile::kVectors > 4) {  // which leave no registers for addresses
#pragma unroll 1
    for (int v = 0; v < Tile::kVectors && reach.has(v); ++v) {
      const RowIndex index = row_index(p, place.row_again(), p.bits_again);
      finish_any_vector(p, row, Sink(p, index), AnyColumns<T>(p, index, p.bits_again), rounding, v,
                        place, reach);
    }
  } else {
    const Sink sink(p, out);
    const AnyColumns<T> columns(p, out, p.bits_again);
#pragma unroll 1
    for (int v = 0; v < Tile::kVectors && reach.has(v); ++v)
      finish_any_vector(p, row, sink, columns, rounding, v, place, reach);
  }
}

// Brings a later row's inputs into L2, by one thread, after this row's own loads were issued (before them costs 0.4 to 3 %). The host
// asks for it only where rows have a single index.
template <class Slots, class Tile>
__device__ __forceinline__ void prefetch_row(const NormParams& p, const Place<Tile>& place) {
  if constexpr (Slots::kAccess != Access::kAny && Tile::kThreads >= 128 && Tile::kBlocks == 1) {
    const uint32_t row = place.row + p.prefetch_rows;
    if (p.prefetch_rows == 0) return;
    ptx::keep_branch();  // else every thread works out addresses
    if (threadIdx.x == 0 && row < p.rows) {
      const auto fetch = [&](const RowRef& tensor) {
        const char* begin = tensor.data + row * tensor.stride;
        uint32_t bytes = static_cast<uint32_t>(p.vectors) * kVectorBytes;
        if constexpr (Slots::kAccess == Access::kUneven ||
                      Slots::kHalves) {  // what is whole and aligned of it
          const auto ahead =
              static_cast<uint32_t>(-reinterpret_cast<intptr_t>(begin)) % kVectorBytes;
          const auto length = static_cast<uint32_t>(p.n) * Slots::T::kBytes;
          if (length < ahead) return;
          begin += ahead;
          bytes = (length - ahead) / kVectorBytes * kVectorBytes;
        }
        ptx::prefetch_l2(begin, bytes);
      };
      fetch(p.x);
      if constexpr (Slots::kSource == Source::kAdd) fetch(p.residual);
    }
  }
}

// What does not depend on the row, where there are registers for it.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void load_ahead(const NormParams& p, RowState<Slots, Tile>& row,
                                           const RowIndex& index, const Place<Tile>& place,
                                           const Reach& reach, uint32_t bits) {
  using T = typename Slots::T;
  using State = RowState<Slots, Tile>;
  if constexpr (Slots::kShares) SharedColumns<Slots, Tile>().load(p, place, reach);
  if constexpr (State::kEarlyWeight && (State::kHasFours || Slots::kAccess == Access::kVector)) {
    constexpr ColumnType kType = State::kHasFours ? ColumnType::kF32 : ColumnType::kElement;
    fill_columns<Slots, Tile>(row, weight_type(bits) == kType, bias_type(bits) == kType);
  }
  if constexpr (State::kEarlyWeight && State::kHasFours) {
    using Columns = FourColumns<T, Tile, kCrossFours<Slots, Tile>>;
    const Columns weights(weight_row(p, index, bits), weight_type(bits), place),
        biases(bias_row(p, index, bits), bias_type(bits), place);
#pragma unroll
    for (int i = 0; i < State::kEarlyFours; ++i) {
      weights.load(row.weight[i], i, reach);
      if constexpr (State::kEarlyBias) biases.load(row.bias[i], i, reach);
    }
  } else if constexpr (State::kEarlyWeight && Slots::kAccess == Access::kUneven) {
    load_uneven_columns<Slots, Tile, Tile::kVectors>(
        row.weight, weight_type(bits), weight_row(p, index, bits), 0, place, reach, T::kOneWord);
    if constexpr (State::kEarlyBias) {
      load_uneven_columns<Slots, Tile, Tile::kVectors>(
          row.bias, bias_type(bits), bias_row(p, index, bits), 0, place, reach, T::kMinusZeroWord);
    }
  } else if constexpr (State::kEarlyWeight) {
    load_columns<T, Tile, Tile::kVectors, true>(
        row.weight, weight_type(bits), weight_row(p, index, bits), 0, place, reach, T::kOneWord);
    if constexpr (State::kEarlyBias) {
      load_columns<T, Tile, Tile::kVectors, true>(
          row.bias, bias_type(bits), bias_row(p, index, bits), 0, place, reach, T::kMinusZeroWord);
    }
  }
}

// What uneven rows need between their loads and the first use of them.
template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void complete_uneven(RowSource<Slots, Tile>& source,
                                                const ColumnTails<Slots, Tile>& tails,
                                                RowState<Slots, Tile>& row,
                                                const Place<Tile>& place, const Reach& reach) {
  using State = RowState<Slots, Tile>;
  source.complete(place);
  if (reach.last_count() != 0) tails.complete(place);
  ptx::copy_async_wait();
  sync_row<Tile>();
  source.take_all(place, reach);
  constexpr int kEarly = State::kHasFours      ? State::kEarlyFours
                         : State::kEarlyWeight ? Tile::kVectors
                                               : 0;
#pragma unroll
  for (int i = 0; i < kEarly; ++i) {
    take_tails<Slots, Tile>(row.weight[i], row.bias[Slots::kStat == Stat::kLayer ? i : 0], i,
                            reach);
  }
}

// The bits of a call with what a bare kernel of several rows a block knows beside: those of sums and those that run pairs take rows of one
// index alone (see knows_indices()); loads past L1 are no gain to pairs, which are heads. 1 x 64 RMS 1.33 us for 1.40, 4096 x 128 2.00 for
// 2.03, 65536 x 64 5.55 for 5.61, 64 tokens of 72 heads of 128 2.27 for 2.31 (H200, 2026-11-26).
template <class Slots, class Tile, bool kPair>
__device__ __forceinline__ uint32_t with_known_indices(uint32_t bits) {
  if constexpr (Slots::kBeside == Beside::kAny || Tile::kRows == 1) {
    return bits;
  } else if constexpr (Slots::kAccess == Access::kUneven) {
    // Beside f32 columns the question costs nothing (LAYER 65536 x 111 14.7 us for 15.8).
    return Slots::kAffine == Affine::kOnce ? bits | kSingleIndex : bits;
  } else if constexpr (kPair) {
    return bits & ~(kSingleIndex | kStreamLoads);
  } else {
    constexpr bool kOne = Slots::kSource == Source::kAdd || Slots::kSink == Sink::kStore;
    return kOne ? bits | kSingleIndex : bits;
  }
}

// True where the last wait for the kernel before is not asked for: where this one did not start early it returns at once, and a branch takes
// longer (RMS 65536 x 64 5.52 us for 5.55, 1 x 4096 1.64 for 1.65; on another machine, where streams take 1 % less, uneven 4096 x 4100 20.8 for 21.5 and LAYER
// 512 x 8192 6.08 for 6.29). Others lose by what the compiler makes of it: sums of 64 to 512 rows 0.5 to 3 %; codes 1 to 4 and general kernels up to 4
// (LAYER 4096 x 1024), between machines (H200, 2026-11-26).
template <class Slots>
constexpr bool waits_unasked() {
  return Slots::kSource == Source::kPlain && Slots::kSink == Sink::kStore &&
         Slots::kAffine == Affine::kOnce &&
         (Slots::kBeside == Beside::kNothing || Slots::kBeside == Beside::kNothingCs ||
          Slots::kShares || Slots::kHalves);
}

template <bool kUnasked>
__device__ __forceinline__ void wait_if(bool wanted) {
  if constexpr (kUnasked) {
    ptx::grid_wait();
  } else {
    ptx::grid_wait_if(wanted);
  }
}

// Which row is a thread's: its indices, and whether it exists; for one that does not, those of another.
template <class Tile, GridForm kForm>
struct RowPlace {
  __device__ __forceinline__ RowPlace(const NormParams& p, const Place<Tile>& place,
                                      uint32_t bits) {
    live = Tile::kRows == 1 || place.row < p.rows;
    const uint32_t row = live ? place.row : 0;
    if constexpr (kForm == GridForm::kHeads) {
      index = {false, {row, blockIdx.y, 0}};
    } else {
      constexpr int kMost = kForm == GridForm::kPair ? 2 : 3;
      index = row_index<kMost, Tile::kRows == 1>(p, row, bits);
    }
  }

  RowIndex index;
  bool live;
};

template <class Slots, class Tile, GridForm kForm = GridForm::kRows>
__device__ __forceinline__ void normalize_in_registers(const NormParams& p, uint32_t block) {
  using T = typename Slots::T;
  using State = RowState<Slots, Tile>;
  constexpr int kVectors = Tile::kVectors, kPerVector = T::kPerVector;
  auto& scratch = ptx::block_shared<RowScratch<Tile, Slots::kFolds>>();
  cluster_begin(scratch);
  const uint32_t bits = with_known_indices<Slots, Tile, kForm != GridForm::kRows>(
      bits_of<Slots, Tile>(ptx::in_register(p.bits)));  // for all tests before the reduction
  const Place<Tile> place(block);
  const RowPlace<Tile, kForm> row_place(p, place, bits);
  const RowIndex& index = row_place.index;
  const RowReach<Slots, Tile> reach(p, place, row_place.live);
  const auto rounding = rounding_of<Slots, Tile>(p, bits);
  State row;

  // Weights first: the first use of the row then comes after every load, also in the compiler's order, which would otherwise put it
  // between the two (4096 x 1024 RMS: 1.38 against 1.05 times the stream; holding it back by a dependence gives 1.10 at 4096). In
  // clusters, which few rows have, the row first: all of them read the same weights, and wait for each other there (64 x 7168 RMS:
  // 2.60 against 2.67 us, 1 x 16384: 2.12 and 2.19; a choice at run time costs more than it gains: 2.84 and 2.33).
  constexpr bool kRowFirst = Tile::kBlocks > 1;
  constexpr bool kWaitsOnce = kRowFirst || Tile::kRows > 1;  // short rows: fewer instructions
  wait_if<kWaitsOnce && waits_unasked<Slots>()>(
      (bits & (kWaitsOnce ? kWaitFirst | kWaitAfterColumns : kWaitFirst)) != 0);
  if constexpr (!kRowFirst) {
    load_ahead(p, row, index, place, reach, bits);
    if constexpr (!kWaitsOnce) wait_if<waits_unasked<Slots>()>((bits & kWaitAfterColumns) != 0);
  }
  RowSource<Slots, Tile> source(p, index, place, reach, bits);
  if constexpr (kRowFirst) load_ahead(p, row, index, place, reach, bits);
  ColumnTails<Slots, Tile> tails;
  tails.load(p, index, place, bits);
  // After the wait: an earlier kernel may write it.
  if constexpr (Slots::kSink == Sink::kStatic)
    row.given_scale = ptx::ld_global_f32(p.quant.given_scale);
  if constexpr (Slots::kSink == Sink::kQuant) {
    if (p.quant.given_scale != nullptr) row.given_scale = ptx::ld_global_f32(p.quant.given_scale);
  }
  prefetch_row<Slots, Tile>(p, place);
  if ((bits_of<Slots, Tile>(p.bits_again) & kTrigger) != 0) ptx::grid_trigger();
  cluster_ready(scratch);
  if constexpr (Slots::kAccess == Access::kUneven)
    complete_uneven(source, tails, row, place, reach);

  if constexpr (Slots::kRounds) source.add_words();
  if constexpr (ready_columns<Slots, Tile>() && Tile::kBlocks == 1) make_columns_ready(p, row);

  float q[kVectors], s[kPerVector];
  if constexpr (Slots::kAccess == Access::kAny) {
    source.take_whole(row.held.values);
    source.take_short(row.held.values);
  } else {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) row.held.set(source, v);
  }
  if constexpr (Slots::kSource == Source::kAdd)
    source.store_sum(p, index, place, reach, row.held.values);
  row.held.round_sum(rounding);
  if constexpr (Slots::kStat == Stat::kLayer) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      row.held.get(s, v);
      q[v] = vector_sum(s);
    }
    row.mean = mean_of(positive_zero(sum_row(q, scratch.fold[0], place)), p, rounding);
    row.held.renew(p, row.mean);
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    row.held.get(s, v);
    q[v] = squares<Slots>(s, row.mean, reach.count(v), rounding);
  }
  if constexpr ((Slots::kAccess == Access::kUneven || Slots::kHalves) &&
                Slots::kStat == Stat::kLayer) {
    if (reach.has_short()) {
      const float last = short_squares<Slots, Tile>(row.held, row.mean, reach);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (v == reach.last_register()) q[v] = last;
      }
    }
  }
  if constexpr (ready_columns<Slots, Tile>() && Tile::kBlocks > 1) make_columns_ready(p, row);
  row.rstd = rstd_of(sum_row(q, scratch.fold[Slots::kSums - 1], place), p, rounding);
  row.held.renew(p, row.rstd);
  // Results take the row's place in shared memory: all of its threads have taken theirs. (Rows of several warps had a barrier in the sum.)
  if constexpr (Slots::kAccess == Access::kUneven && Tile::kThreads <= 32) sync_row<Tile>();

  if constexpr (Slots::kShares) SharedColumns<Slots, Tile>::wait();
  const RowIndex out = keeps_row<Slots, Tile>()
                           ? index
                           : row_index(p, place.row_again(), bits_of<Slots, Tile>(p.bits_again));
  if constexpr (Slots::kSink == Sink::kStatic) row.given_scale = __frcp_rn(row.given_scale);
  // Seldom wanted: last, where there are registers for it, so that nothing waits for the question.
  constexpr bool kStatisticsLast =
      Tile::kRows == 1 && Tile::kThreads < 512 && Slots::kSink == Sink::kStore;
  const auto put_statistics = [&] {
    if ((bits_of<Slots, Tile>(p.bits_again) & kStoreStatistics) != 0 && place.leads_row() &&
        reach.live)
      store_statistics(p, out, row.mean, row.rstd);
  };
  if constexpr (!kStatisticsLast) put_statistics();
  const auto finish = [&](const auto& how) {
    if constexpr (Slots::kAffine == Affine::kF32) {
      finish_by_fours<Slots, Tile>(p, row, out, place, reach, how);
    } else if constexpr (Slots::kSink == Sink::kStatic) {
      if (p.quant.code_type == CodeType::kE4M3) {
        finish_vectors<Slots, Tile, CodeType::kE4M3>(p, row, out, place, reach, how);
      } else {
        finish_vectors<Slots, Tile, CodeType::kI8>(p, row, out, place, reach, how);
      }
    } else {
      finish_vectors<Slots, Tile>(p, row, out, place, reach, how);
    }
  };
  constexpr RoundedRow kRounded = rounded_row<Slots, Tile>();
  if constexpr (Slots::kAccess == Access::kAny) {
    finish_any<Slots, Tile>(p, row, out, place, reach);
  } else if constexpr (kRounded == RoundedRow::kByPredicate) {
    finish(rounding);
  } else if constexpr (kRounded == RoundedRow::kInPlace) {
    row.held.normalize(row.mean, row.rstd, rounding);
    finish(KnownRounding<T, false>());
  } else if (T::kBytes == 2 && __builtin_expect(rounding.round_normalized(), 0)) {
    finish(KnownRounding<T, true>());
  } else {
    finish(KnownRounding<T, false>());
  }
  if constexpr (Slots::kAccess == Access::kUneven && Tile::kBlocks == 1) {
    RowSource<Slots, Tile>::finish_sum(p, out, place, reach.live);
    if constexpr (Slots::kSink == Sink::kStore) store_results<Slots, Tile>(p, out, place, reach);
  }
  if constexpr (Slots::kSink == Sink::kQuant) {
    quantize_in_registers<Slots, Tile>(
        p, row.held.results(), row.given_scale,
        place_anew<Slots, Tile>()
            ? row_index(p, place.row_again(), bits_of<Slots, Tile>(p.bits_again))
            : out,
        place, reach, scratch.fold[Slots::kSums]);
  }
  if constexpr (kStatisticsLast) put_statistics();
}

// ---- Rows that a block takes in turn.

template <class Slots, class Tile>
__device__ __forceinline__ void normalize_in_turn(const NormParams& p) {
  using T = typename Slots::T;
  constexpr int kVectors = Tile::kVectors;
  static_assert(Slots::kStat == Stat::kLayer && Tile::kRows == 1 && Tile::kBlocks == 1);
  // Two folds, so that a barrier lies between a fold's reading and its next writing.
  auto& scratch = ptx::block_shared<RowScratch<Tile, 2>>();
  const uint32_t bits = ptx::in_register(p.bits);
  Place<Tile> place(blockIdx.x);
  const Reach<Slots::kAccess, T, Tile> reach(p, place, true);
  const auto rounding = rounding_of<Slots, Tile>(p, bits);
  const auto index_of = [&](uint32_t number) { return row_index(p, number, p.bits_again); };
  // The row first, which comes from farther away (LAYER 2048 x 1024 with f32 columns: 1.13 times the stream, columns first 1.21); but with 3
  // vectors a thread that would spill.
  constexpr bool kRowFirst = kVectors > 3;
  ptx::grid_wait_if((bits & (kRowFirst ? kWaitFirst | kWaitAfterColumns : kWaitFirst)) != 0);
  KeptColumns<Slots, Tile> columns;
  if constexpr (!kRowFirst) {
    columns.load(p, place, reach, bits);
    ptx::grid_wait_if((bits & kWaitAfterColumns) != 0);
  }
  RowSource<Slots, Tile> source(p, index_of(place.row), place, reach, bits);
  if constexpr (kRowFirst) columns.load(p, place, reach, bits);
  RowState<Slots, Tile> row;
  if constexpr (Slots::kSink == Sink::kStatic)
    row.given_scale = __frcp_rn(ptx::ld_global_f32(p.quant.given_scale));
  columns.unpack(p.weight_offset, bits);

  const uint32_t step = gridDim.x;
  for (;;) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) row.held.set(source, v);
    row.held.hold();
    const bool last = p.rows - place.row <= step;
    if (!last) {
      source = RowSource<Slots, Tile>(p, index_of(place.row + step), place, reach, bits);
      if constexpr (kept_prefetches(Slots::kSink, fastnorm::Tile{Tile::kThreads, kVectors, 1}))
        prefetch_row<Slots, Tile>(p, place);
    } else if ((p.bits_again & kTrigger) != 0) {
      ptx::grid_trigger();
    }
    float q[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) q[v] = vector_sum(row.held.values[v]);
    row.mean = mean_of(positive_zero(sum_row(q, scratch.fold[0], place)), p, rounding);
    row.held.centre(row.mean);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      // Not in one conditional expression: 512 x 5120 would take 5.2 us for 4.8.
      q[v] = vector_sum_of_squares(row.held.values[v]);
      if (!reach.has(v)) q[v] = 0.0f;
    }
    row.rstd = rstd_of(sum_row(q, scratch.fold[1], place), p, rounding);
    const RowIndex out = index_of(place.row);
    if ((p.bits_again & kStoreStatistics) != 0 && place.leads_row())
      store_statistics(p, out, row.mean, row.rstd);
    const auto finish = [&](const auto& how) {
      if (Slots::kSink == Sink::kStatic && p.quant.code_type == CodeType::kI8) {
        finish_kept<Slots, Tile, CodeType::kI8>(p, row, columns, out, place, reach, how);
      } else {
        finish_kept<Slots, Tile, CodeType::kE4M3>(p, row, columns, out, place, reach, how);
      }
    };
    if (__builtin_expect(rounding.round_normalized(), 0)) {
      finish(KnownRounding<T, true>());
    } else {
      finish(KnownRounding<T, false>());
    }
    if (last) break;
    place.row += step;
  }
}

// ---- Rows that are streamed.

// The canonical fold of a thread's vectors as they come: register r of the tree in bit-reversed order of r, so that the pairs of the
// highest digit are neighbours, with one pending partial for each digit. Absent registers are +0 and change nothing.
struct StreamFold {
  static constexpr int kDigits = 20;  // 2^20 groups of 4 vectors a thread: rows of 2^32 elements
  static constexpr int kGroup = 4;    // registers loaded together: a subtree of two digits

  // Group numbers count up from 0; each carry of that count is one addition of the tree.
  template <int kDigit = 0>
  __device__ __forceinline__ void add(float q, uint32_t group) {
    if constexpr (kDigit == kDigits) {
      total = q;
    } else if ((group >> kDigit & 1) == 0) {
      pending[kDigit] = total = q;
    } else {
      add<kDigit + 1>(__fadd_rn(pending[kDigit], q), group);
    }
  }

  float pending[kDigits];
  float
      total;  // after the last group: its number is all ones, so everything has been folded into it
};

// Folds what sums_of(first, step, sums) gives for each of the thread's registers, the four of first, first + step and so on at a time;
// for those past the row's end that is 0.
template <class Tile, typename Fn>
__device__ __forceinline__ float fold_stream(int64_t registers, Fn sums_of) {
  // Digits of the register number: at least two, for the group.
  const int digits = registers <= 4 ? 2 : 64 - __clzll(registers - 1);
  const uint32_t groups = 1u << (digits - 2);
  StreamFold fold;
  for (uint32_t g = 0; g < groups; ++g) {
    // In bit-reversed order the two lowest digits of the position are the two highest of the register.
    const uint32_t low = digits == 2 ? 0 : __brev(g) >> (32 - (digits - 2));
    float q[StreamFold::kGroup];
    sums_of(low, int64_t{1} << (digits - 2), q);
    fold.add(fold_registers(q), g);
  }
  return fold.total;
}

// One thread's view of a row that is streamed, four vectors at a time. Where all rows and columns are at 16-byte addresses, whole vectors
// are all asked for before the first is used, which is what keeps the memory busy; else, and where the row's short vector is among the
// four, they come one by one.
template <class Slots, class Tile>
struct StreamRow {
  using T = typename Slots::T;
  static constexpr int kPerVector = T::kPerVector, kGroup = StreamFold::kGroup;
  static constexpr bool kAdd = Slots::kSource == Source::kAdd;

  __device__ __forceinline__ StreamRow(const NormParams& params, const Place<Tile>& at,
                                       const RowIndex& index)
      : p(params),
        place(at),
        input(params, index),
        columns(params, index, params.bits),
        vectors(params.vectors),
        short_register(params.n % kPerVector == 0 ? -1 : (params.vectors - 1) / Tile::kStride),
        wide_row(wide(input.x) && (!kAdd || wide(input.residual))),
        wide_columns(wide(columns.weight) && wide(columns.bias)) {}

  __device__ __forceinline__ int64_t registers() const {
    return (vectors + Tile::kStride - 1) / Tile::kStride;
  }
  __device__ __forceinline__ int64_t vector(int64_t number) const {
    return place.first + number * Tile::kStride;
  }
  // Of the row, not above kPerVector; 0 or less past its end.
  __device__ __forceinline__ int count(int64_t vector) const {
    const int64_t left = p.n - vector * kPerVector;
    return left >= kPerVector ? kPerVector : left < 0 ? 0 : static_cast<int>(left);
  }
  // The same for all threads of the row.
  __device__ __forceinline__ bool has_short(int64_t first, int64_t step) const {
    bool has = false;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) has |= first + i * step == short_register;
    return has;
  }

  // q[i] = sum_of(s, count) of the values of register first + i * step.
  template <typename Fn>
  __device__ __forceinline__ void sums(int64_t first, int64_t step, float (&q)[kGroup],
                                       Fn sum_of) const {
    if (wide_row && !has_short(first, step)) {
      uint4 x[kGroup], residual[kGroup];
      load(x, input.x.data, first, step);
      if constexpr (kAdd) load(residual, input.residual.data, first, step);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        float s[kPerVector];
        unpack(s, x[i], residual[i]);
        q[i] = sum_of(s, count(vector(first + i * step)));
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kGroup; ++i) {
        const int64_t v = vector(first + i * step);
        float s[kPerVector];
        input.template take<Part::kCounted>(s, v, count(v));
        const float sum = sum_of(s, count(v));
#pragma unroll
        for (int k = 0; k < kGroup; ++k) q[k] = k == i ? sum : q[k];
      }
    }
  }

  // Calls use(s, z, vector, count) with the row's values and its results, in every thread of the row as often.
  template <typename Fn>
  __device__ __forceinline__ void results(float mean, float rstd,
                                          const Rounding<Slots::kAffine, T>& rounding,
                                          Fn use) const {
    for (int64_t first = 0; first < registers(); first += kGroup) {
      const bool wide = wide_row && wide_columns && !has_short(first, 1);
      uint4 x[kGroup], residual[kGroup], weight[kGroup], bias[kGroup];
      if (wide) {
        load_column(weight, columns.weight, T::kOneWord, first);
        load_column(bias, columns.bias, T::kMinusZeroWord, first);
        load(x, input.x.data, first, 1);
        if constexpr (kAdd) load(residual, input.residual.data, first, 1);
      }
#pragma unroll 1
      for (int i = 0; i < kGroup && first + i < registers(); ++i) {
        const int64_t v = vector(first + i);
        float s[kPerVector], summed[kPerVector], t[kPerVector], z[kPerVector];
        float w[kPerVector], b[kPerVector];
        if (wide) {
          unpack(s, picked(x, i), picked(residual, i));
          T::unpack(picked(weight, i), w);
          T::unpack(picked(bias, i), b);
        } else {
          input.template take<Part::kCounted>(s, v, count(v));
          columns.weight.template take<Part::kCounted>(w, v, count(v));
          columns.bias.template take<Part::kCounted>(b, v, count(v));
        }
#pragma unroll
        for (int k = 0; k < kPerVector; ++k) summed[k] = s[k];
        if constexpr (kAdd) rounding.summed(summed);
        normalize_vector<Slots>(t, summed, mean, rstd, rounding);
        apply(z, t, w, b, p.weight_offset, rounding);
        use(s, z, v, count(v));
      }
    }
  }

  static __device__ __forceinline__ bool wide(const AnyRow<T, const char>& row) {
    return row.bytes == kVectorBytes && !row.f32;
  }
  static __device__ __forceinline__ bool wide(const AnyColumn<T>& column) {
    return column.type == ColumnType::kAbsent || wide(column.row);
  }
  // The row's vectors; past its end they read as zero.
  __device__ __forceinline__ void load(uint4 (&raw)[kGroup], const char* row, int64_t first,
                                       int64_t step) const {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int64_t v = vector(first + i * step);
      raw[i] = make_uint4(0, 0, 0, 0);
      ptx::ld_global_v4_if(raw[i], row + v * kVectorBytes, v < vectors);
    }
  }
  __device__ __forceinline__ void load_column(uint4 (&raw)[kGroup], const AnyColumn<T>& column,
                                              uint32_t absent, int64_t first) const {
    if (column.type == ColumnType::kElement) {
      load(raw, column.row.data, first, 1);
    } else {
#pragma unroll
      for (uint4& v : raw) v = make_uint4(absent, absent, absent, absent);
    }
  }
  static __device__ __forceinline__ uint4 picked(const uint4 (&raw)[kGroup], int number) {
    uint4 v = raw[0];
#pragma unroll
    for (int i = 1; i < kGroup; ++i) v = selected(i == number, raw[i], v);
    return v;
  }
  static __device__ __forceinline__ void unpack(float (&s)[kPerVector], uint4 x, uint4 residual) {
    T::unpack(x, s);
    if constexpr (kAdd) {
      float r[kPerVector];
      T::unpack(residual, r);
#pragma unroll
      for (int i = 0; i < kPerVector; ++i) s[i] = __fadd_rn(s[i], r[i]);
    }
  }

  const NormParams& p;
  const Place<Tile>& place;
  const AnyInput<Slots> input;
  const AnyColumns<T> columns;
  const int64_t vectors, short_register;  // of the row; that of its short vector, or -1
  const bool wide_row, wide_columns;
};

template <class Slots, class Tile>
__device__ __forceinline__ void normalize_streaming(const NormParams& p) {
  using T = typename Slots::T;
  constexpr int kPerVector = T::kPerVector;
  auto& scratch = ptx::block_shared<RowScratch<Tile, Slots::kFolds>>();
  cluster_begin(scratch);
  const Place<Tile> place(blockIdx.x);
  const RowIndex index = row_index(p, place.row, p.bits);
  const auto rounding = rounding_of<Slots, Tile>(p);
  const StreamRow<Slots, Tile> row(p, place, index);
  if ((p.bits & (kWaitFirst | kWaitAfterColumns)) != 0) ptx::grid_wait();
  if ((p.bits & kTrigger) != 0) ptx::grid_trigger();
  cluster_ready(scratch);

  const auto fold = [&](auto sum_of) {
    return fold_stream<Tile>(row.registers(),
                             [&](int64_t first, int64_t step, float(&q)[StreamFold::kGroup]) {
                               row.sums(first, step, q, [&](float(&s)[kPerVector], int count) {
                                 if constexpr (Slots::kSource == Source::kAdd) rounding.summed(s);
                                 return sum_of(s, count);
                               });
                             });
  };
  float mean = 0.0f;
  if constexpr (Slots::kStat == Stat::kLayer) {
    const float sum = fold([](const float(&s)[kPerVector], int) { return vector_sum(s); });
    mean = mean_of(positive_zero(fold_row<Sum>(sum, scratch.fold[0], place)), p, rounding);
  }
  const float sum = fold([&](const float(&s)[kPerVector], int count) {
    return squares<Slots>(s, mean, count, rounding);
  });
  const float rstd =
      rstd_of(fold_row<Sum>(sum, scratch.fold[Slots::kSums - 1], place), p, rounding);
  if ((p.bits & kStoreStatistics) != 0 && place.leads_row()) store_statistics(p, index, mean, rstd);

  StreamQuantizer<Slots, Tile> quantizer(p, place);
  // Nothing was written of the row's inputs so far: it may be normalised in place, and its residual updated in place.
  const RowSink<Slots::kSink, Slots::kAccess, T> sink(p, index);
  const bool stores_sum = Slots::kSource == Source::kAdd && p.residual_out.data != nullptr;
  const AnyRow<T, char> sum_out(row_address(p.residual_out, p.residual_out_upper, index),
                                p.residual_out_align, p.residual_out_f32);
  // A row's scale takes a pass before that of the codes.
#pragma unroll 1
  for (bool last = !quantizer.wants_row();; last = true) {
    row.results(mean, rstd, rounding,
                [&](float(&s)[kPerVector], float(&z)[kPerVector], int64_t vector, int count) {
                  if (!last) {
                    if (count > 0) quantizer.see(z, count);
                    return;
                  }
                  if (stores_sum) store_part<Part::kCounted, T>(s, sum_out, vector, count);
                  sink.put(z, vector, count);
                  quantizer.put(z, vector, count);
                });
    if (last) break;
    quantizer.make_row_scale(scratch.fold[Slots::kFolds - 1], place);
  }
  quantizer.end(place);
}

// nvcc goes through this file for the host, too, which needs the kernels' names alone: their bodies would take it a minute more.
#if defined(__CUDACC__) && !defined(__CUDA_ARCH__)
inline constexpr bool kHasBodies = false;
#else
inline constexpr bool kHasBodies = true;
#endif

template <int kCapability_>
struct Arch {
  static constexpr int kCapability = kCapability_;
};

// What a kernel's two numbers stand for: an architecture, and packed() of a key and a tile. To the slots wide rows are vectors like others:
// how many of them lie side by side is the tile's.
template <int kCapability, uint64_t kOrder>
struct KernelTypes {
  static constexpr NormKey key = key_of_packed(kOrder);
  static constexpr auto tile = tile_of_packed(kOrder);
  using Arch = cuda::Arch<kCapability>;
  using Slots =
      cuda::Slots<key.dtype, key.source, key.stat, key.affine, key.sink,
                  key.access == Access::kWide || key.beside == Beside::kHalves ? Access::kVector
                                                                               : key.access,
                  key.beside>;
  using Tile = RowTile<tile.threads, tile.vectors, tile.blocks, vectors_side_by_side(key.access),
                       Slots::kAffine == Affine::kKept>;
};

template <class Types, int kMore = 0>
constexpr int kernel_blocks() {
  return blocks_per_multiprocessor<typename Types::Arch, typename Types::Slots,
                                   typename Types::Tile, kMore>();
}

// Kernels are named by two numbers, since a library holds each name several times; of them the architecture, so that objects of several
// never share a host stub. With types the names were 2 MB of a library of four architectures.
template <int kCapability, uint64_t kOrder>
__global__ void __launch_bounds__(KernelTypes<kCapability, kOrder>::Tile::kBlockThreads,
                                  kernel_blocks<KernelTypes<kCapability, kOrder>>())
    norm_kernel(const __grid_constant__ NormParams p) {
  using Slots = typename KernelTypes<kCapability, kOrder>::Slots;
  using Tile = typename KernelTypes<kCapability, kOrder>::Tile;
  if constexpr (!kHasBodies) {
  } else if constexpr (Tile::kVectors == 0) {
    normalize_streaming<Slots, Tile>(p);
  } else if constexpr (Slots::kAffine == Affine::kKept) {
    normalize_in_turn<Slots, Tile>(p);
  } else {
    normalize_in_registers<Slots, Tile>(p, blockIdx.x);
  }
}

// Registers of a pair's kernel beyond those of its calls alone.
template <class Slots, class Tile>
inline constexpr int kPairRegisters = Tile::kVectors >= 3                                  ? 16
                                      : Slots::kStat == Stat::kLayer&& Tile::kVectors == 1 ? 8
                                                                                           : 0;

// A grid of one call or two. As heads of tokens, without dividing rows by heads and blocks among calls, 64 tokens of 64 and 8 heads of 128
// take 2.22 us for 2.29, 1024 tokens 10.96 for 11.06 (H200, 2026-11-26).
template <int kCapability, uint64_t kOrder, GridForm kForm>
__global__ void __launch_bounds__(
    KernelTypes<kCapability, kOrder>::Tile::kBlockThreads,
    kernel_blocks<KernelTypes<kCapability, kOrder>,
                  kPairRegisters<typename KernelTypes<kCapability, kOrder>::Slots,
                                 typename KernelTypes<kCapability, kOrder>::Tile>>())
    norm_pair_kernel(const __grid_constant__ NormPairParams pair) {
  using Slots = typename KernelTypes<kCapability, kOrder>::Slots;
  using Tile = typename KernelTypes<kCapability, kOrder>::Tile;
  // Both at addresses that are known: reading parameters at one that is not costs each of them.
  if constexpr (kHasBodies) {
    ptx::in_register(threadIdx.x);  // on its way before the branch
    PairBlock mine;
    if constexpr (kForm == GridForm::kHeads) {
      const uint32_t first_blocks = pair.call[0].first_blocks;
      mine.second = blockIdx.x >= first_blocks;
      mine.block = mine.second ? blockIdx.x - first_blocks : blockIdx.x;
    } else {
      mine = pair_block(blockIdx.x, pair.call[0].second_share);
    }
    // The compiler puts the last of these first: the one that most blocks run, as fetching code from far away costs 0.05 us.
    if (mine.second) {
      normalize_in_registers<Slots, Tile, kForm>(pair.call[1], mine.block);
    } else {
      normalize_in_registers<Slots, Tile, kForm>(pair.call[0], mine.block);
    }
  }
}

}  // namespace fastnorm::cuda
