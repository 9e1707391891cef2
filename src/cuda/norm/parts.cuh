// The parts of the forward row loop: what is loaded (Source), reduced (Stat), applied (Affine) and stored (Sink).
//
// Each part is told the row by its addresses and works on one thread's share of it. The arithmetic is the contract of
// include/fastnorm/norm.h; every operation is written as the rounded intrinsic it is.
#pragma once

#include "cuda/common/access.cuh"
#include "cuda/common/element.cuh"
#include "cuda/common/root.cuh"
#include "cuda/common/staged.cuh"
#include "cuda/common/tile.cuh"
#include "cuda/norm/windows.cuh"
#include "fastnorm/norm.h"

namespace fastnorm::cuda {

// The compile-time choices of one kernel.
template <Dtype kDtype_, Source kSource_, Stat kStat_, Affine kAffine_, Sink kSink_,
          Access kAccess_, Beside kBeside_>
struct Slots {
  using T = Element<kDtype_>;
  static constexpr Dtype kDtype = kDtype_;
  static constexpr Source kSource = kSource_;
  static constexpr Stat kStat = kStat_;
  static constexpr Affine kAffine = kAffine_;
  static constexpr Sink kSink = kSink_;
  static constexpr Access kAccess = kAccess_;
  static constexpr Beside kBeside = kBeside_;
  static constexpr bool kPastL1 = kBeside == Beside::kNothingCs || kBeside == Beside::kRoundedCs;
  static constexpr bool kShares = kBeside == Beside::kShared;  // columns in shared memory
  static constexpr bool kHalves = kBeside == Beside::kHalves;  // rows by 8 bytes
  // Sums and products by two numbers of x's dtype. In f32 and then rounded they would be the same: a product of two is exact there, and f32
  // has more than twice the digits that a sum needs to be rounded twice without harm.
  static constexpr bool kRounds = kBeside == Beside::kRounded || kBeside == Beside::kRoundedCs;
  static constexpr int kSums = kStat == Stat::kLayer ? 2 : 1;  // over a row
  static constexpr int kFolds = kSums + (kSink == Sink::kQuant ? 1 : 0);
};

template <class Slots, class Tile>
using RowReach = std::conditional_t<Slots::kHalves, HalfReach<typename Slots::T, Tile>,
                                    Reach<Slots::kAccess, typename Slots::T, Tile>>;

// A call's bits, those that the kernel knows as constants.
template <class Slots, class Tile>
__device__ __forceinline__ uint32_t bits_of(uint32_t bits) {
  if constexpr (Slots::kBeside == Beside::kAny) {
    return bits;
  } else {
    constexpr bool kF32 = Slots::kAffine == Affine::kF32;
    constexpr bool kOneRow = Tile::kRows == 1;  // of a block: see Beside
    // Of several rows a block, RMS to y knows it, short codes by a given scale lose nothing past L1 (N 64 to 512, 1 to 65536 rows: 0.98 to 1.01 of
    // the time), and the others ask: sums of 4096 to 16384 x 64 lose 2 to 8 % by always and 10 to 15 by never, codes of 16384 x 1024 1 % by
    // always, of 1024 x 1024 3 by never (H200, 2026-11-26).
    constexpr bool kPlain = Slots::kSource == Source::kPlain,
                   kCodes = Slots::kSink == Sink::kStatic, kShort = Tile::kVectors <= 2,
                   kAlways = !kOneRow && kPlain && kCodes && kShort,
                   kMayStream = kOneRow ? Slots::kShares && Slots::kStat == Stat::kRms
                                        : !kPlain || Slots::kRounds ||
                                              Slots::kSink == Sink::kQuant || (kCodes && !kShort);
    constexpr uint32_t kOpen = kWaitFirst | kWaitAfterColumns | kTrigger | kNeverSet |
                               (kOneRow ? 0 : kSingleIndex) | (kMayStream ? kStreamLoads : 0),
                       kWeight = kF32 ? kWeightF32 : kWeightElement,
                       kBias = Slots::kStat == Stat::kRms ? 0
                               : kF32                     ? kBiasF32
                                                          : kBiasElement;
    return (bits & kOpen) | (kOneRow ? kSingleIndex : 0) |
           (Slots::kPastL1 || kAlways ? kStreamLoads : 0) | kWeight | kBias;
  }
}

// ---- Rounding axes, at run time: two of them in every kernel, the others in those for any rounding.

template <class T, int kCount>
__device__ __forceinline__ void round_to(float (&f)[kCount]) {
  if constexpr (T::kBytes == 2) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) T::unpack_word(T::pack_word(f[i], f[i + 1]), f + i);
  }
}

// A row, by one branch for all of it.
template <class T, int kVectors>
__device__ __forceinline__ void round_row(float (&row)[kVectors][T::kPerVector], bool wanted) {
  if constexpr (T::kBytes == 2) {
    if (__builtin_expect(wanted, 0)) {
#pragma unroll
      for (auto& vector : row) round_to<T>(vector);
    } else {
      ptx::keep_branch();
    }
  }
}

template <Affine kAffine, class T>
struct Rounding {
  // `known`: the call's bits where they are in a register before the reduction; what is tested after it is read anew.
  __device__ __forceinline__ explicit Rounding(uint32_t anew, uint32_t known = 0)
      : bits(anew), round_sum((known & kRoundSum) != 0) {}
  __device__ __forceinline__ bool round_normalized() const {
    return (bits & kRoundNormalized) != 0;
  }
  __device__ __forceinline__ float step(float f) const { return f; }
  // Without a branch.
  template <int kCount>
  __device__ __forceinline__ void normalized(float (&t)[kCount]) const {
    if constexpr (T::kBytes == 2) {
#pragma unroll
      for (int i = 0; i < kCount; i += 2)
        T::template round_if<kRoundNormalized>(t[i], t[i + 1], bits);
    }
  }
  template <int kCount>
  __device__ __forceinline__ void applied(float (&)[kCount]) const {}
  static constexpr bool every_step = false;

  const uint32_t bits;
  const bool round_sum;
};

// Where whether the normalised row is rounded is known.
template <class T, bool kNormalized>
struct KnownRounding {
  __device__ __forceinline__ float step(float f) const { return f; }
  template <int kCount>
  __device__ __forceinline__ void normalized(float (&t)[kCount]) const {
    if constexpr (kNormalized) round_to<T>(t);
  }
  template <int kCount>
  __device__ __forceinline__ void applied(float (&)[kCount]) const {}
  static constexpr bool every_step = false;
};

template <class T>
struct Rounding<Affine::kAny, T> {
  __device__ __forceinline__ explicit Rounding(const NormParams& p)
      : every_step(p.rounding == FASTNORM_ROUND_EVERY_STEP),
        round_normalized((p.bits_again & kRoundNormalized) != 0),
        round_sum((p.bits_again & kRoundSum) != 0),
        round_applied(p.residual_rounding == FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY) {}
  // An intermediate value of a chain in T.
  __device__ __forceinline__ float step(float f) const { return every_step ? T::round(f) : f; }
  template <int kCount>
  __device__ __forceinline__ void normalized(float (&t)[kCount]) const {
    if (round_normalized) round_to<T>(t);
  }
  // x + residual: as the statistics see it, and as it is applied.
  template <int kCount>
  __device__ __forceinline__ void summed(float (&s)[kCount]) const {
    if (round_sum) round_to<T>(s);
  }
  template <int kCount>
  __device__ __forceinline__ void applied(float (&s)[kCount]) const {
    if (round_applied) round_to<T>(s);
  }

  const bool every_step, round_normalized, round_sum, round_applied;
};

template <class Slots, class Tile>
__device__ __forceinline__ auto rounding_of(const NormParams& p, uint32_t known = 0) {
  using R = Rounding<Slots::kAffine, typename Slots::T>;
  if constexpr (Slots::kAffine == Affine::kAny) {
    return R(p);
  } else {
    return R(bits_of<Slots, Tile>(p.bits), known);
  }
}

// ---- Sums inside a vector: even and odd positions form one chain each, in increasing position.

template <int kCount>
__device__ __forceinline__ float vector_sum(const float (&a)[kCount]) {
  float even = a[0], odd = a[1];
#pragma unroll
  for (int i = 2; i < kCount; i += 2) {
    even = __fadd_rn(even, a[i]);
    odd = __fadd_rn(odd, a[i + 1]);
  }
  return __fadd_rn(even, odd);
}

template <int kCount>
__device__ __forceinline__ float vector_sum_of_squares(const float (&a)[kCount]) {
  float even = __fmul_rn(a[0], a[0]), odd = __fmul_rn(a[1], a[1]);
#pragma unroll
  for (int i = 2; i < kCount; i += 2) {
    even = __fmaf_rn(a[i], a[i], even);
    odd = __fmaf_rn(a[i + 1], a[i + 1], odd);
  }
  return __fadd_rn(even, odd);
}

// ---- Source: which bytes become the f32 row.

// Whole vectors, one tensor: all loads of the row are issued before the first is used. What the last vector has not is zero.
template <class Tile, class Reach>
__device__ __forceinline__ void load_vectors(uint4 (&raw)[Tile::kVectors], const char* row,
                                             const Place<Tile>& place, const Reach& reach,
                                             bool stream) {
  constexpr int kRun = Tile::kRun, kLast = Tile::kVectors - kRun;
  const char* address = row + static_cast<uint32_t>(place.first * kVectorBytes);
  const auto at = [&](int v) { return address + Tile::offset(v) * kVectorBytes; };
#pragma unroll
  for (int v = kLast; v < Tile::kVectors; ++v) raw[v] = make_uint4(0, 0, 0, 0);
  // In clusters and long rows never worth a second set of loads (make_plan() knows).
  constexpr bool kMayStream = Tile::kThreads < 512 && Tile::kBlocks == 1;
  if constexpr (kLast == 0 && kMayStream) {
    load_run_if<kRun, true>(raw, at(0), reach.last && stream);
    load_run_if<kRun>(raw, at(0), reach.last && !stream);
  } else if (kMayStream && stream) {
#pragma unroll
    for (int v = 0; v < kLast; v += kRun) load_run<kRun, true>(raw + v, at(v));
    load_run_if<kRun, true>(raw + kLast, at(kLast), reach.last);
  } else {
#pragma unroll
    for (int v = 0; v < kLast; v += kRun) load_run<kRun>(raw + v, at(v));
    load_run_if<kRun>(raw + kLast, at(kLast), reach.last);
  }
}

// The same by 8 bytes.
template <class T, class Tile>
__device__ __forceinline__ void load_halves(uint4 (&raw)[Tile::kVectors], const char* row,
                                            const Place<Tile>& place,
                                            const HalfReach<T, Tile>& reach) {
  constexpr int kLast = Tile::kVectors - 1;
  const char* const address = row + static_cast<uint32_t>(place.first * kVectorBytes);
#pragma unroll
  for (int v = 0; v < kLast; ++v) {
    const char* const at = address + Tile::offset(v) * kVectorBytes;
    const uint2 low = ptx::ld_global_v2(at), high = ptx::ld_global_v2(at + kVectorBytes / 2);
    raw[v] = make_uint4(low.x, low.y, high.x, high.y);
  }
  uint4& last = raw[kLast];
  last = make_uint4(0, 0, 0, 0);
  const char* const at = address + Tile::offset(kLast) * kVectorBytes;
  ptx::ld_global_v2_if(last.x, last.y, at, reach.has(kLast));
  ptx::ld_global_v2_if(last.z, last.w, at + kVectorBytes / 2, reach.whole(kLast));
}

// A vector by 8 bytes, where its row does not begin at a multiple of 16 by those.
__device__ __forceinline__ void store_halves(char* address, const uint4& words, bool half,
                                             bool aligned) {
  if (aligned && !half) {
    ptx::st_global_v4(address, words);
  } else {
    ptx::st_global_v2(address, make_uint2(words.x, words.y));
    if (!half) ptx::st_global_v2(address + kVectorBytes / 2, make_uint2(words.z, words.w));
  }
}

__device__ __forceinline__ bool is_aligned(const char* row) {
  return reinterpret_cast<uintptr_t>(row) % kVectorBytes == 0;
}

template <class Slots, class Tile>
struct RowSource;

// Whole vectors. The sum is stored before the reduction: the store then overlaps the wait for it.
template <class Slots, class Tile>
requires(Slots::kAccess == Access::kVector) struct RowSource<Slots, Tile> {
  using T = typename Slots::T;
  using Reach = RowReach<Slots, Tile>;
  static constexpr bool kAdd = Slots::kSource == Source::kAdd;
  static constexpr bool kStreams = Slots::kStat == Stat::kRms;  // LAYER never gains
  static constexpr bool kAddsWords = kAdd && Slots::kRounds;

  __device__ __forceinline__ RowSource(const NormParams& p, const RowIndex& index,
                                       const Place<Tile>& place, const Reach& reach,
                                       uint32_t bits) {
    const bool stream = kStreams && (bits & kStreamLoads) != 0;
    const char* const x_row = row_address(p.x, p.x_upper, index);
    const char* const residual_row =
        kAdd ? row_address(p.residual, p.residual_upper, index) : nullptr;
    if constexpr (Slots::kHalves) {
      load_halves<T, Tile>(x, x_row, place, reach);
      if constexpr (kAdd) load_halves<T, Tile>(residual, residual_row, place, reach);
    } else {
      load_vectors<Tile>(x, x_row, place, reach, stream);
      if constexpr (kAdd) load_vectors<Tile>(residual, residual_row, place, reach, stream);
    }
  }

  __device__ __forceinline__ uint4 words(int v) const { return x[v]; }

  // Rounded sums take the place of x.
  __device__ __forceinline__ void add_words() {
    if constexpr (kAddsWords) {
#pragma unroll
      for (int v = 0; v < Tile::kVectors; ++v) x[v] = add_vectors<T>(x[v], residual[v]);
    }
  }

  // Register v of the row, in f32.
  __device__ __forceinline__ void take(float (&s)[T::kPerVector], int v) const {
    T::unpack(x[v], s);
    if constexpr (kAdd && !kAddsWords) {
      float r[T::kPerVector];
      T::unpack(residual[v], r);
#pragma unroll
      for (int i = 0; i < T::kPerVector; ++i) s[i] = __fadd_rn(s[i], r[i]);
    }
  }

  __device__ __forceinline__ void store_sum(const NormParams& p, const RowIndex& index,
                                            const Place<Tile>& place, const Reach& reach,
                                            const float (&s)[Tile::kVectors][T::kPerVector]) const {
    if constexpr (kAdd) {
      if (p.residual_out.data == nullptr) return;
      char* row = row_address(p.residual_out, p.residual_out_upper, index) +
                  static_cast<int64_t>(place.first) * kVectorBytes;
#pragma unroll
      for (int v = 0; v < Tile::kVectors; v += Tile::kRun) {
        if constexpr (Slots::kHalves) {
          if (reach.stores(v)) {
            store_halves(row + Tile::offset(v) * kVectorBytes, T::pack(s[v]), reach.cut(v),
                         is_aligned(row));
          }
        } else if (reach.stores(v)) {
          uint4 sum[Tile::kRun];
#pragma unroll
          for (int i = 0; i < Tile::kRun; ++i) sum[i] = kAddsWords ? x[v + i] : T::pack(s[v + i]);
          store_run<Tile::kRun>(row + Tile::offset(v) * kVectorBytes, sum);
        }
      }
    }
  }

  uint4 x[Tile::kVectors];
  uint4 residual[kAdd ? Tile::kVectors : 1];
};

// Codes by all their schemes are long enough.
template <class Slots>
inline constexpr bool kStagedShort = Slots::kSink == Sink::kQuant;

// Vectors of x and the residual as they were loaded.
template <class Slots, class Tile>
struct LoadedVectors {
  using T = typename Slots::T;
  static constexpr bool kAdd = Slots::kSource == Source::kAdd;

  __device__ __forceinline__ uint4 words(int v) const { return x[v]; }
  // Register v of the row, in f32.
  __device__ __forceinline__ void take(float (&s)[T::kPerVector], int v) const {
    T::unpack(x[v], s);
    if constexpr (kAdd) {
      float r[T::kPerVector];
      T::unpack(residual[v], r);
#pragma unroll
      for (int i = 0; i < T::kPerVector; ++i) s[i] = __fadd_rn(s[i], r[i]);
    }
  }

  uint4 x[Tile::kVectors], residual[kAdd ? Tile::kVectors : 1];
};

// Rows at any address, of tensors of x's dtype. complete() is due when every load of the row was issued.
template <class Slots, class Tile>
requires(Slots::kAccess == Access::kUneven && Tile::kBlocks == 1) struct RowSource<Slots, Tile>
    : LoadedVectors<Slots, Tile> {
  using T = typename Slots::T;
  using Reach = cuda::Reach<Access::kUneven, T, Tile>;
  using Staged = StagedRow<Slots, Tile>;
  static constexpr bool kAdd = Slots::kSource == Source::kAdd;
  static constexpr int kVectors = Tile::kVectors;

  __device__ __forceinline__ RowSource(const NormParams& p, const RowIndex& index,
                                       const Place<Tile>& place, const Reach&, uint32_t)
      : x_input(row_address(p.x, p.x_upper, index), p, Staged().x(), place),
        residual_input(row_address(residual_of(p), kAdd ? p.residual_upper : p.x_upper, index), p,
                       Staged().residual(), place) {}

  __device__ __forceinline__ void complete(const Place<Tile>& place) const {
    x_input.complete(Staged().x(), place);
    if constexpr (kAdd) residual_input.complete(Staged().residual(), place);
  }
  __device__ __forceinline__ void take_all(const Place<Tile>& place, const Reach& reach) {
    x_input.take(this->x, Staged().x(), place, reach);
    if constexpr (kAdd) residual_input.take(this->residual, Staged().residual(), place, reach);
  }

  // To shared memory; finish_sum() stores it behind the next barrier.
  __device__ __forceinline__ void store_sum(const NormParams& p, const RowIndex&,
                                            const Place<Tile>& place, const Reach&,
                                            const float (&s)[kVectors][T::kPerVector]) const {
    if constexpr (kAdd) {
      if (p.residual_out.data == nullptr) return;
      auto* const sum = reinterpret_cast<uint4*>(Staged().sum());
#pragma unroll
      for (int v = 0; v < kVectors; ++v) sum[place.vector(v)] = T::pack(s[v]);
    }
  }
  static __device__ __forceinline__ void finish_sum(const NormParams& p, const RowIndex& index,
                                                    const Place<Tile>& place, bool live) {
    if constexpr (kAdd) {
      if (p.residual_out.data == nullptr) return;
      store_staged<T::kBytes, kVectors, kStagedShort<Slots>>(
          row_address(p.residual_out, p.residual_out_upper, index), row_elements<T>(p) * T::kBytes,
          Staged().sum(), place, live);
    }
  }

  StagedInput<T, Tile, kStagedShort<Slots>> x_input;
  std::conditional_t<kAdd, StagedInput<T, Tile, kStagedShort<Slots>>, NotStaged> residual_input;

 private:
  static __device__ __forceinline__ const RowRef& residual_of(const NormParams& p) {
    return kAdd ? p.residual : p.x;
  }
};

// The same of rows that a cluster holds.
template <class Slots, class Tile>
requires(Slots::kAccess == Access::kUneven && Tile::kBlocks > 1) struct RowSource<Slots, Tile>
    : LoadedVectors<Slots, Tile> {
  using T = typename Slots::T;
  using Reach = cuda::Reach<Access::kUneven, T, Tile>;
  using Staged = StagedRow<Slots, Tile>;
  static constexpr bool kAdd = Slots::kSource == Source::kAdd;
  static constexpr int kVectors = Tile::kVectors;

  __device__ __forceinline__ RowSource(const NormParams& params, const RowIndex& index,
                                       const Place<Tile>& place, const Reach&, uint32_t)
      : p(params),
        x_input(row_address(p.x, p.x_upper, index), p, place),
        residual_input(kAdd ? row_address(p.residual, p.residual_upper, index) : nullptr, p,
                       place) {}

  __device__ __forceinline__ void complete(const Place<Tile>&) const {
    x_input.complete(Staged().x());
    if constexpr (kAdd) residual_input.complete(Staged().residual());
  }
  __device__ __forceinline__ void take_all(const Place<Tile>& place, const Reach&) {
    x_input.take(this->x, Staged().x(), place, p.vectors);
    if constexpr (kAdd) residual_input.take(this->residual, Staged().residual(), place, p.vectors);
  }

  __device__ __forceinline__ void store_sum(const NormParams&, const RowIndex& index,
                                            const Place<Tile>& place, const Reach&,
                                            const float (&s)[kVectors][T::kPerVector]) const {
    if constexpr (kAdd) {
      if (p.residual_out.data == nullptr) return;
      char* const row = row_address(p.residual_out, p.residual_out_upper, index);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) store_window<T>(row, T::pack(s[v]), place.vector(v), p);
    }
  }

  const NormParams& p;
  WindowInput<T, Tile> x_input;
  std::conditional_t<kAdd, WindowInput<T, Tile>, NotStaged> residual_input;
};

// x, with the residual added, at any address.
template <class Slots>
struct AnyInput {
  using T = typename Slots::T;
  static constexpr bool kAdd = Slots::kSource == Source::kAdd;

  __device__ __forceinline__ AnyInput(const NormParams& p, const RowIndex& index)
      : x(row_address(p.x, p.x_upper, index), p.x_align, false),
        residual(kAdd ? row_address(p.residual, p.residual_upper, index) : nullptr,
                 p.residual_align, p.residual_f32) {}

  // The first `count` values of a vector; the others are zero.
  template <Part kPart>
  __device__ __forceinline__ void take(float (&s)[T::kPerVector], int64_t vector, int count) const {
    load_part<kPart, T>(s, x, vector, count);
    if constexpr (kAdd) {
      float r[T::kPerVector];
      load_part<kPart, T>(r, residual, vector, count);
#pragma unroll
      for (int i = 0; i < T::kPerVector; ++i) s[i] = __fadd_rn(s[i], r[i]);
    }
  }

  const AnyRow<T, const char> x, residual;
};

template <class Slots, class Tile>
requires(Slots::kAccess == Access::kAny) struct RowSource<Slots, Tile> {
  using T = typename Slots::T;
  using Reach = cuda::Reach<Access::kAny, T, Tile>;

  __device__ __forceinline__ RowSource(const NormParams& p, const RowIndex& index,
                                       const Place<Tile>& row_place, const Reach& row_reach,
                                       uint32_t)
      : input(p, index), place(row_place), reach(row_reach) {}

  // The whole vectors, several at a time; what is not there is zero. The short one is due when these were taken.
  __device__ __forceinline__ void take_whole(float (&values)[Tile::kVectors][T::kPerVector]) const {
    constexpr bool kAdd = AnyInput<Slots>::kAdd;
    constexpr int kGroup = Tile::kVectors == 1   ? 1
                           : Tile::kVectors <= 4 ? (kAdd ? 2 : Tile::kVectors)
                                                 : (kAdd ? 1 : 2);
#pragma unroll
    for (int first = 0; first < Tile::kVectors; first += kGroup) {
      const auto whole = [&](int i) { return reach.whole(first + i); };
      AnyVectors<T, kGroup> x, residual;
      x.load(input.x, place.vector(first), Tile::kStride, whole);
      if constexpr (AnyInput<Slots>::kAdd)
        residual.load(input.residual, place.vector(first), Tile::kStride, whole);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        float(&s)[T::kPerVector] = values[first + i];
        x.take(s, i, false);
        if constexpr (AnyInput<Slots>::kAdd) {
          float r[T::kPerVector];
          residual.take(r, i, input.residual.f32);
#pragma unroll
          for (int k = 0; k < T::kPerVector; ++k) s[k] = __fadd_rn(s[k], r[k]);
        }
      }
    }
  }
  __device__ __forceinline__ void take_short(float (&values)[Tile::kVectors][T::kPerVector]) const {
    if (!reach.has_short()) return;
    float last[T::kPerVector];
    const int v = reach.last_register();
    input.template take<Part::kShort>(last, place.vector(v), reach.last_count());
    put_vector(values, v, last);
  }

  __device__ __forceinline__ void store_sum(const NormParams& p, const RowIndex& index,
                                            const Place<Tile>&, const Reach&,
                                            const float (&s)[Tile::kVectors][T::kPerVector]) const {
    if constexpr (Slots::kSource == Source::kAdd) {
      if (p.residual_out.data == nullptr) return;
      store_row<T>(s,
                   AnyRow<T, char>(row_address(p.residual_out, p.residual_out_upper, index),
                                   p.residual_out_align, p.residual_out_f32),
                   place, reach);
    }
  }

  const AnyInput<Slots> input;
  const Place<Tile>& place;
  const Reach& reach;
};

// ---- Stat: what is reduced.

// One vector's share of the sum of squares, of s - mean for LAYER. Positions from `count` on are padding and add nothing.
template <class Slots, class R>
__device__ __forceinline__ float squares(const float (&s)[Slots::T::kPerVector], float mean,
                                         int count, const R& rounding) {
  constexpr int kPerVector = Slots::T::kPerVector;
  float d[kPerVector];
#pragma unroll
  for (int i = 0; i < kPerVector; ++i) {
    d[i] = s[i];
    if constexpr (Slots::kStat == Stat::kLayer) d[i] = rounding.step(__fsub_rn(s[i], mean));
    if constexpr (Slots::kStat == Stat::kLayer && Slots::kAccess == Access::kAny) {
      if (i >= count) d[i] = 0.0f;
    }
  }
  if (rounding.every_step) {
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) d[i] = rounding.step(__fmul_rn(d[i], d[i]));
    return vector_sum(d);
  }
  const float q = vector_sum_of_squares(d);
  return Slots::kStat == Stat::kLayer && count <= 0 ? 0.0f : q;
}

// The same of the row's short vector, by the thread that has it: the only one whose positions need to be looked at.
template <class Slots, class Tile, class Held, class Reach>
__device__ __forceinline__ float short_squares(const Held& held, float mean, const Reach& reach) {
  constexpr int kPerVector = Slots::T::kPerVector;
  float d[kPerVector];
  held.pick(d, reach.last_register());
#pragma unroll
  for (int i = 0; i < kPerVector; ++i) d[i] = i < reach.last_count() ? __fsub_rn(d[i], mean) : 0.0f;
  return vector_sum_of_squares(d);
}

template <class R>
__device__ __forceinline__ float mean_of(float sum, const NormParams& p, const R& rounding) {
  return rounding.step(__fmul_rn(sum, p.inv_n));
}

template <class R>
__device__ __forceinline__ float rstd_of(float sum, const NormParams& p, const R& rounding) {
  const float variance = rounding.step(__fmul_rn(sum, p.inv_n));
  return rounding.step(reciprocal_root(rounding.step(__fadd_rn(variance, p.eps))));
}

// ---- Affine: t * (weight + offset) + bias. An absent weight is 1 and an absent bias -0, which change no bit of t * g.

template <int kCount, class R>
__device__ __forceinline__ void apply(float (&z)[kCount], const float (&t)[kCount],
                                      const float (&weight)[kCount], const float (&bias)[kCount],
                                      float weight_offset, const R& rounding) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float g = rounding.step(__fadd_rn(weight[i], weight_offset));
    if (rounding.every_step) {
      z[i] = __fadd_rn(rounding.step(__fmul_rn(t[i], g)), bias[i]);
    } else {
      z[i] = __fmaf_rn(t[i], g, bias[i]);
    }
  }
}

__device__ __forceinline__ ColumnType weight_type(uint32_t bits) {
  return static_cast<ColumnType>(bits / kWeightElement & 3);
}

__device__ __forceinline__ ColumnType bias_type(uint32_t bits) {
  return static_cast<ColumnType>(bits / kBiasElement & 3);
}

// The columns of a row. Nearly always all rows have the same.
__device__ __forceinline__ const char* weight_row(const NormParams& p, const RowIndex& index,
                                                  uint32_t bits) {
  return (bits & kHeadColumns) != 0 ? p.weight + index.digit[0] * p.weight_head_stride : p.weight;
}

__device__ __forceinline__ const char* bias_row(const NormParams& p, const RowIndex& index,
                                                uint32_t bits) {
  return (bits & kHeadColumns) != 0 ? p.bias + index.digit[0] * p.bias_head_stride : p.bias;
}

// kVectors vectors of the row of a weight or bias, from vector v on, as raw words. What is not there reads as `filler`; but of those that are
// loaded ahead of the row it stays what it was.
template <class T, class Tile, int kVectors, bool kAhead = false, class Reach>
__device__ __forceinline__ void load_columns(uint4* raw, ColumnType type, const char* row, int v,
                                             const Place<Tile>& place, const Reach& reach,
                                             uint32_t filler) {
  if constexpr (!kAhead) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) raw[i] = make_uint4(filler, filler, filler, filler);
  }
  const bool present = type == ColumnType::kElement;
  const char* const address = row + static_cast<uint32_t>(place.vector(v) * kVectorBytes);
  // Ahead of the row by predicates: where a branch ends, and where a register is filled later, loads before are waited for (LAYER
  // 1 x 8192: 2.43 us, without 2.18). Later, predicates would take registers.
  if (!kAhead && !present) return;
#pragma unroll
  for (int i = 0; i < kVectors; i += Tile::kRun) {  // v is the first of a run
    if (v + i >= Tile::kVectors) break;
    load_run_if<Tile::kRun>(raw + i, address + Tile::offset(i) * kVectorBytes,
                            (!kAhead || present) && reach.whole(v + i));
    if constexpr (requires { reach.cut(0); }) {
      ptx::ld_global_v2_if(raw[i].x, raw[i].y, address + Tile::offset(i) * kVectorBytes,
                           (!kAhead || present) && reach.cut(v + i));
    }
  }
}

// The same beside uneven rows: of columns that may begin anywhere, but for bare kernels and codes.
template <class Slots, class Tile, int kVectors, class Reach>
__device__ __forceinline__ void load_uneven_columns(uint4* raw, ColumnType type, const char* row,
                                                    int v, const Place<Tile>& place,
                                                    const Reach& reach, uint32_t filler) {
  if constexpr (Slots::kBeside != Beside::kAny || Slots::kSink == Sink::kQuant) {
    load_columns<typename Slots::T, Tile, kVectors>(raw, type, row, v, place, reach, filler);
  } else {
    const char* const address = row + static_cast<uint32_t>(place.vector(v) * kVectorBytes);
    const int bytes = access_bytes(row);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) raw[i] = make_uint4(filler, filler, filler, filler);
    if (type != ColumnType::kElement) return;
    const auto wanted = [&](int i) { return v + i < Tile::kVectors && reach.whole(v + i); };
    if (bytes == kVectorBytes) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i)
        ptx::ld_global_v4_if(raw[i], address + Tile::offset(i) * kVectorBytes, wanted(i));
    } else {
      uint4 words[kVectors];
      load_words(words, address, Tile::kStride * kVectorBytes, bytes, wanted);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) raw[i] = selected(wanted(i), words[i], raw[i]);
    }
  }
}

// Weight and bias in shared memory until the row is reduced. A thread copies those of its own vectors, so that nobody else's are waited for.
template <class Slots, class Tile>
struct SharedColumns {
  static constexpr int kStep = Tile::kThreads * kVectorBytes,  // from a thread's vector to its next
      kColumnBytes = Tile::kVectors * kStep;
  static constexpr bool kBias = Slots::kStat == Stat::kLayer;
  static_assert(Tile::kRows == 1 && Tile::kRun == 1);

  __device__ __forceinline__ SharedColumns()
      : mine(ptx::launch_shared() + threadIdx.x * kVectorBytes) {}

  // On their way until wait().
  template <class Reach>
  __device__ __forceinline__ void load(const NormParams& p, const Place<Tile>& place,
                                       const Reach& reach) const {
    copy(mine, p.weight, place, reach);
    if constexpr (kBias) copy(mine + kColumnBytes, p.bias, place, reach);
  }
  static __device__ __forceinline__ void wait() { ptx::copy_async_wait(); }
  __device__ __forceinline__ uint4 weight(int v) const {
    return ptx::ld_shared_v4(mine + v * kStep);
  }
  __device__ __forceinline__ uint4 bias(int v) const {
    return ptx::ld_shared_v4(mine + kColumnBytes + v * kStep);
  }

 private:
  template <class Reach>
  static __device__ __forceinline__ void copy(char* shared, const char* column,
                                              const Place<Tile>& place, const Reach& reach) {
    const char* const address = column + static_cast<uint32_t>(place.first) * kVectorBytes;
#pragma unroll
    for (int v = 0; v < Tile::kVectors; ++v)
      ptx::copy_async_if(shared + v * kStep, address + Tile::offset(v) * kVectorBytes,
                         reach.whole(v));
  }

  char* const mine;
};

// The columns of a row's short vector, of which there are none but beside uneven rows.
template <class Slots, class Tile, bool kUneven = Slots::kAccess == Access::kUneven>
struct ColumnTails {
  __device__ __forceinline__ void load(const NormParams&, const RowIndex&, const Place<Tile>&,
                                       uint32_t) {}
};

template <class Slots, class Tile>
struct ColumnTails<Slots, Tile, true> {
  using T = typename Slots::T;
  using Staged = StagedRow<Slots, Tile>;
  static constexpr bool kF32 = Slots::kAffine == Affine::kF32, kBias = Slots::kStat == Stat::kLayer;
  static constexpr ColumnType kType = kF32 ? ColumnType::kF32 : ColumnType::kElement;
  using Columns = Element<kF32 ? Dtype::kF32 : Slots::kDtype>;
  using Tail = ColumnTail<T, Tile, Columns::kBytes>;

  __device__ __forceinline__ void load(const NormParams& p, const RowIndex& index,
                                       const Place<Tile>& place, uint32_t bits) {
    weight.load(weight_row(p, index, bits), p, Columns::kOneWord, weight_type(bits) == kType,
                place);
    if constexpr (kBias) {
      bias.load(bias_row(p, index, bits), p, Columns::kMinusZeroWord, bias_type(bits) == kType,
                place);
    }
  }
  __device__ __forceinline__ void complete(const Place<Tile>& place) const {
    weight.complete(Staged().weight_tail(), place);
    if constexpr (kBias) bias.complete(Staged().bias_tail(), place);
  }

  Tail weight, bias;
};

// f32 columns beside 16-bit rows go by fours, 16 bytes each: a vector of x is two of them.
template <class T>
inline constexpr int kFours = T::kPerVector / 4;

// A thread's two fours of a vector are neighbours in memory, so if all threads read the first and then the second, eight of them reach
// half of L1's banks at a time. Where kCross is set, threads 4 to 7 of each eight read the second first, and all banks are busy.
template <bool kCross, class Tile>
__device__ __forceinline__ bool second_four_first(const Place<Tile>& place) {
  return kCross && (place.first & 4) != 0;
}

// This thread's fours of a weight or bias.
template <class T, class Tile, bool kCross>
struct FourColumns {
  __device__ __forceinline__ FourColumns(const char* columns, ColumnType type,
                                         const Place<Tile>& place)
      : present(type == ColumnType::kF32), crossed(second_four_first<kCross>(place)) {
    const char* const row =
        columns + static_cast<uint32_t>(place.first) * (kFours<T> * kVectorBytes);
    const int ahead = crossed ? kVectorBytes : 0;
    // In registers: the compiler would work out each four's address by itself.
    first[0] = ptx::in_register(row + ahead);
    first[1] = kCross ? ptx::in_register(row + (kVectorBytes - ahead)) : first[0] + kVectorBytes;
  }

  // Number `four` into raw; where there is none, or not all of it, raw stays.
  template <class Reach>
  __device__ __forceinline__ void load(uint4& raw, int four, const Reach& reach) const {
    const int v = four / kFours<T>;
    bool there = reach.whole(v);
    if constexpr (requires { reach.cut(0); }) {  // of a half, what lies first in memory
      there = there || (reach.cut(v) && (four % kFours<T> != 0) == crossed);
    }
    ptx::ld_global_v4_if(raw,
                         first[four % kFours<T>] + v * (Tile::kStride * kFours<T> * kVectorBytes),
                         present && there);
  }

  const bool present, crossed;
  const char* first[kFours<T>];  // of the first vector, in the order of reading
};

// Weight and bias for all rows that a thread takes, in f32, the weight with its offset. Each is of x's dtype, f32 or absent.
template <class Slots, class Tile>
struct KeptColumns {
  using T = typename Slots::T;
  static constexpr int kVectors = Tile::kVectors, kPerVector = T::kPerVector;

  // On their way until unpack().
  template <class Reach>
  __device__ __forceinline__ void load(const NormParams& p, const Place<Tile>& place,
                                       const Reach& reach, uint32_t bits) {
    load(weight, weight_type(bits), p.weight, T::kOneWord, place, reach);
    load(bias, bias_type(bits), p.bias, T::kMinusZeroWord, place, reach);
  }

  __device__ __forceinline__ void unpack(float weight_offset, uint32_t bits) {
    unpack(weight, weight_type(bits));
#pragma unroll
    for (auto& vector : weight) {
#pragma unroll
      for (float& w : vector) w = __fadd_rn(w, weight_offset);
    }
    unpack(bias, bias_type(bits));
  }

  // t * weight + bias, with those of vector v.
  __device__ __forceinline__ void apply(float (&t)[kPerVector], int v) const {
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) t[i] = __fmaf_rn(t[i], weight[v][i], bias[v][i]);
  }

 private:
  // 16 bytes of x's dtype go to the first half of a vector's registers.
  template <class Reach>
  static __device__ __forceinline__ void load(float (&column)[kVectors][kPerVector],
                                              ColumnType type, const char* tensor, uint32_t absent,
                                              const Place<Tile>& place, const Reach& reach) {
    const bool f32 = type == ColumnType::kF32, present = type != ColumnType::kAbsent;
    const int bytes = f32 ? 2 * kVectorBytes : kVectorBytes;  // of a vector's columns
    const char* address = tensor + static_cast<uint32_t>(place.first * bytes);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      uint4 first = make_uint4(absent, absent, absent, absent), second = make_uint4(0, 0, 0, 0);
      ptx::ld_global_v4_if(first, address, present && reach.has(v));
      ptx::ld_global_v4_if(second, address + kVectorBytes, f32 && reach.has(v));
      address += Tile::kStride * bytes;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        column[v][i] = __uint_as_float(word_of(first, i));
        column[v][i + 4] = __uint_as_float(word_of(second, i));
      }
    }
  }
  static __device__ __forceinline__ void unpack(float (&column)[kVectors][kPerVector],
                                                ColumnType type) {
    if (type == ColumnType::kF32) return;
#pragma unroll
    for (auto& values : column) {
      const uint4 raw = make_uint4(__float_as_uint(values[0]), __float_as_uint(values[1]),
                                   __float_as_uint(values[2]), __float_as_uint(values[3]));
      T::unpack(raw, values);
    }
  }

  float weight[kVectors][kPerVector], bias[kVectors][kPerVector];
};

// Weight or bias at any address.
template <class T>
struct AnyColumn {
  __device__ __forceinline__ AnyColumn(const char* columns, ColumnType column_type, int least,
                                       float value)
      : row(columns, least, column_type == ColumnType::kF32), type(column_type), absent(value) {}

  template <Part kPart>
  __device__ __forceinline__ void take(float (&f)[T::kPerVector], int64_t vector, int count) const {
    if (type == ColumnType::kAbsent) {
      clear(f);
    } else {
      load_part<kPart, T>(f, row, vector, count);
    }
  }

  __device__ __forceinline__ void clear(float (&f)[T::kPerVector]) const {
#pragma unroll
    for (float& value : f) value = absent;
  }

  const AnyRow<T, const char> row;
  const ColumnType type;
  const float absent;
};

template <class T>
struct AnyColumns {
  __device__ __forceinline__ AnyColumns(const NormParams& p, const RowIndex& index, uint32_t bits)
      : weight(weight_row(p, index, bits), weight_type(bits), p.weight_align, 1.0f),
        bias(bias_row(p, index, bits), bias_type(bits), p.bias_align, -0.0f) {}

  const AnyColumn<T> weight, bias;
};

// ---- Sink: what leaves.

template <Sink kSink, Access kAccess, class T>
struct RowSink;

template <class T>
struct RowSink<Sink::kStore, Access::kVector, T> {
  __device__ __forceinline__ RowSink(const NormParams& p, const RowIndex& index)
      : y(row_address(p.y, p.y_upper, index)) {}
  __device__ __forceinline__ void put(const float (&z)[T::kPerVector], int64_t vector,
                                      int count) const {
    if (count > 0) ptx::st_global_v4(y + vector * kVectorBytes, T::pack(z));
  }
  char* const y;
};

template <class T>
struct RowSink<Sink::kStore, Access::kAny, T> {
  __device__ __forceinline__ RowSink(const NormParams& p, const RowIndex& index)
      : y(row_address(p.y, p.y_upper, index), p.y_align, false) {}
  __device__ __forceinline__ void put(const float (&z)[T::kPerVector], int64_t vector,
                                      int count) const {
    store_part<Part::kCounted, T>(z, y, vector, count);
  }
  const AnyRow<T, char> y;
};

// To shared memory, vector by vector: store_results() brings them from there. Of a cluster's row to y.
template <class T>
struct RowSink<Sink::kStore, Access::kUneven, T> {
  __device__ __forceinline__ RowSink(const NormParams& p, const RowIndex& index)
      : y(row_address(p.y, p.y_upper, index)) {}
  char* const y;
};

// Codes by one scale for the tensor, and nothing else: quant.cuh makes them.
template <class T>
struct RowSink<Sink::kStatic, Access::kVector, T> {
  __device__ __forceinline__ RowSink(const NormParams& p, const RowIndex& index)
      : codes(row_address(p.quant.codes, p.quant.codes_upper, index)) {}
  char* const codes;
};

// y where it is wanted; quant.cuh makes the codes.
template <Access kAccess, class T>
struct RowSink<Sink::kQuant, kAccess, T> : RowSink<Sink::kStore, kAccess, T> {
  using Store = RowSink<Sink::kStore, kAccess, T>;
  __device__ __forceinline__ RowSink(const NormParams& p, const RowIndex& index)
      : Store(p, index), present(p.y.data != nullptr) {}
  __device__ __forceinline__ void put(const float (&z)[T::kPerVector], int64_t vector,
                                      int count) const {
    if (present) Store::put(z, vector, count);
  }
  const bool present;
};

// y of uneven rows by vectors into shared memory, and from there to memory.
template <class Slots, class Tile>
__device__ __forceinline__ void put_staged(const uint4& y, int v, const Place<Tile>& place) {
  reinterpret_cast<uint4*>(StagedRow<Slots, Tile>().results())[place.vector(v)] = y;
}

template <class Slots, class Tile, class Reach>
__device__ __forceinline__ void store_results(const NormParams& p, const RowIndex& index,
                                              const Place<Tile>& place, const Reach& reach) {
  using T = typename Slots::T;
  sync_row<Tile>();
  store_staged<T::kBytes, Tile::kVectors, kStagedShort<Slots>>(
      row_address(p.y, p.y_upper, index), row_elements<T>(p) * T::kBytes,
      StagedRow<Slots, Tile>().results(), place, reach.live);
}

// The statistics, by the row's first thread.
__device__ __forceinline__ void store_statistics(const NormParams& p, const RowIndex& index,
                                                 float mean, float rstd) {
  if (p.rstd.data != nullptr)
    *reinterpret_cast<float*>(row_address(p.rstd, p.rstd_upper, index)) = rstd;
  if (p.mean.data != nullptr)
    *reinterpret_cast<float*>(row_address(p.mean, p.mean_upper, index)) = mean;
}

}  // namespace fastnorm::cuda
