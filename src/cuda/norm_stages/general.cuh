// The general form: any dtypes, any address, any length, every stage. Each pass reads the row
// again: the branch's statistics, those of the groups, the row's scale, and the results.
//
// A group's sums go over vectors that begin where the group begins: its bits are those of a row.
// Results go over the row's own vectors, since blocks of codes do. The groups' statistics wait in
// shared memory between the two, those of a window of the row at a time.
#pragma once

#include <bit>

#include "cuda/common/ptx/grid.cuh"
#include "cuda/norm/quant.cuh"
#include "cuda/norm/rotation.cuh"
#include "cuda/norm/stream.cuh"
#include "cuda/norm_stages/arithmetic.cuh"

namespace fastnorm::cuda {

template <uint32_t kWord>
struct StagesSlots {
  static constexpr StagesVariant kVariant = stages_variant_of(kWord);
  using T = Element<kVariant.dtype>;
  using Tile = RowTile<kVariant.threads, kVariant.vectors, 1>;
  static constexpr Sink kSink = Sink::kQuant;
};

// Groups whose statistics are known at once. It is a multiple of 128: no block of codes is in two
// windows.
template <class Tile>
inline constexpr int kStageWindow = Tile::kOneWarp ? 128 : 1024;

// The tensors of a row that are read and written by vectors.
enum StageRowTensor {
  kStageX,
  kStageGate,
  kStageResidual,
  kStageBranchWeight,
  kStageBranchBias,
  kStageSources,  // the number of those above
  kStageWeight = kStageSources,
  kStageBias,
  kStageY,
  kStageSum,
  // Modulators, each followed by its table.
  kStageFactor,
  kStageFactorTable,
  kStageScale,
  kStageScaleTable,
  kStageShift,
  kStageShiftTable,
  kStageRowTensors
};

// Where one of them begins, and its dtype; nullptr: it is absent. Kept in shared memory: registers
// have other work.
struct StagePlace {
  char* data;
  OperandType type;
};

__device__ __forceinline__ StagePlace stage_place(const NormStagesParams& p, const RowIndex& index,
                                                  int tensor) {
  const NormCallParams& norm = p.norm;
  const NormCallParams& of = tensor < kStageSources ? p.branch : norm;
  const auto row = [&](const RowRef& t, const RowStrides& upper, uint32_t type) -> StagePlace {
    return {t.data == nullptr ? nullptr : row_address(t, upper, index),
            static_cast<OperandType>(type)};
  };
  const auto column = [&](const char* data, int64_t stride, const RowStrides& upper,
                          OperandType type) {
    const bool present = type != OperandType::kAbsent;
    return row({present ? const_cast<char*>(data) : nullptr, stride}, upper,
               static_cast<uint32_t>(type));
  };
  const auto modulator = [&](const StageModulator& m, int first) -> StagePlace {
    if (tensor != first) return {const_cast<char*>(m.table), m.table_type};
    if (m.rows.row.data == nullptr) return {nullptr, OperandType::kAbsent};
    return {modulator_row(m, p.modulators.index, p.bits, index), m.type};
  };
  switch (tensor) {
    case kStageX:
      return row(norm.x, norm.x_upper, static_cast<uint32_t>(OperandType::kElement));
    case kStageGate:
      return row(p.gate.row, p.gate.upper, static_cast<uint32_t>(p.gate_type));
    case kStageResidual:
      return row(norm.residual, norm.residual_upper, norm.residual_type);
    case kStageY:
      return row(norm.y, norm.y_upper, norm.y_type);
    case kStageSum:
      return row(norm.residual_out, norm.residual_out_upper, norm.residual_out_type);
    case kStageBranchWeight:
    case kStageWeight:
      return column(of.weight, of.weight_head_stride, of.weight_upper, weight_type(of.bits));
    case kStageFactor:
    case kStageFactorTable:
      return modulator(p.modulators.factor, kStageFactor);
    case kStageScale:
    case kStageScaleTable:
      return modulator(p.modulators.scale, kStageScale);
    case kStageShift:
    case kStageShiftTable:
      return modulator(p.modulators.shift, kStageShift);
    default:
      return column(of.bias, of.bias_head_stride, of.bias_upper, bias_type(of.bits));
  }
}

// What an absent column reads as: a weight of 1, a bias of -0.
__device__ __forceinline__ float absent_value(int tensor) {
  return tensor == kStageBranchWeight || tensor == kStageWeight ? 1.0f : -0.0f;
}

// A vector of a row of x's dtype at a multiple of 16 bytes, `byte` bytes into it, where `wanted`.
template <class T>
__device__ __forceinline__ void load_wide(float (&f)[T::kPerVector], const StagePlace& from,
                                          int tensor, int64_t byte, bool wanted) {
  const uint32_t absent = absent_value(tensor) == 1.0f ? T::kOneWord : T::kMinusZeroWord;
  uint4 raw = make_uint4(absent, absent, absent, absent);
  ptx::ld_global_v4_if(raw, from.data + byte, wanted && from.data != nullptr);
  T::unpack(raw, f);
}

template <class T>
using StageRow = AnyRow<T, const char>;
inline constexpr int kStageAlign = 2;  // rows may begin anywhere

// The first `count` of a vector of a row at any address, `first` columns into it; the others are
// what is absent, where that is the whole.
template <class T>
__device__ __forceinline__ void load_any(float (&f)[T::kPerVector], const StagePlace& from,
                                         int tensor, uint32_t first, int64_t vector, int count) {
  const float absent = absent_value(tensor);
  fill_values(f, absent);
  if (from.data == nullptr) return;
  const StageRow<T> row(from.data + int64_t{first} * element_bytes<T>(from.type), kStageAlign,
                        from.type);
  load_part<Part::kCounted, T>(f, row, vector, count);
}

// What a row's source reads of the first `count` columns of a vector, which begins `first` columns
// into the row. `tensors`: how many are wanted.
template <class T>
__device__ __forceinline__ void take_sources(StageValues<T>& v, const StagePlace* places, bool wide,
                                             int tensors, uint32_t first, int64_t vector,
                                             int count) {
  constexpr int kPerVector = T::kPerVector;
  if (wide) {
    const int64_t byte = int64_t{first} * T::kBytes + vector * kVectorBytes;
    const auto load = [&](float(&f)[kPerVector], int t) {
      load_wide<T>(f, places[t], t, byte, t < tensors);
    };
    load(v.x, kStageX), load(v.gate, kStageGate), load(v.residual, kStageResidual);
    load(v.weight, kStageBranchWeight), load(v.bias, kStageBranchBias);
    return;
  }
  // One after the other: the code of a load is long.
#pragma unroll 1
  for (int t = 0; t < tensors; ++t) {
    float f[kPerVector];
    load_any<T>(f, places[t], t, first, vector, count);
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) {
      if (t == kStageX) v.x[i] = f[i];
      if (t == kStageGate) v.gate[i] = f[i];
      if (t == kStageResidual) v.residual[i] = f[i];
      if (t == kStageBranchWeight) v.weight[i] = f[i];
      if (t == kStageBranchBias) v.bias[i] = f[i];
    }
  }
}

// A modulator's values of the first `count` columns of a vector, with its table's. `tensor`: the
// modulator's place, behind which its table has one.
template <class T>
__device__ __forceinline__ void take_modulator(float (&k)[T::kPerVector], const StagePlace* places,
                                               int tensor, bool single, bool steps, uint32_t first,
                                               int64_t vector, int count) {
#pragma unroll 1
  for (int t = tensor; t < tensor + 2 && places[t].data != nullptr; ++t) {
    float f[T::kPerVector];
    if (t == tensor && single) {
      const float value = load_operand<T>(places[t].data, places[t].type);
      fill_values(f, value);
    } else {
      load_any<T>(f, places[t], t, first, vector, count);
    }
#pragma unroll
    for (int i = 0; i < T::kPerVector; ++i) {
      const float sum = __fadd_rn(k[i], f[i]);
      k[i] = t == tensor ? f[i] : steps ? T::round(sum) : sum;
    }
  }
}

// Pending sums of a thread: registers hold those of the lowest digits, shared memory the others.
inline constexpr int kStageRegisterDigits = 3;
// Digits of the number of a thread's group of vectors, in a row of 2^32 columns.
template <class Slots>
inline constexpr int kStageDigits = 32 -
                                    std::countr_zero(unsigned{Slots::T::kPerVector} *
                                                     Slots::Tile::kThreads * StreamFold::kGroup);

template <class Slots>
struct StagesScratch {
  using Tile = typename Slots::Tile;
  float2 statistics[Tile::kRows][kStageWindow<Tile>];  // mean, rstd
  float fold[2][Tile::kOneWarp ? 1 : Tile::kThreads];
  FoldScratch<Tile> greatest;
  StagePlace places[Tile::kRows][kStageRowTensors];
  Moments pending[kStageDigits<Slots> - kStageRegisterDigits][Tile::kBlockThreads];
};

// By the canonical tree, in every thread: of a warp's sums, or of the block's.
template <class Slots>
__device__ __forceinline__ Moments fold_stage(const Moments& m, bool by_warp,
                                              StagesScratch<Slots>& scratch) {
  using Tile = typename Slots::Tile;
  if constexpr (!Tile::kOneWarp) {
    if (!by_warp) {
      __syncthreads();  // the last fold has been read
      scratch.fold[0][threadIdx.x] = m.sum;
      scratch.fold[1][threadIdx.x] = m.squares;
      __syncthreads();
      const int lane = static_cast<int>(threadIdx.x % 32);
      return {fold_lanes<32>(fold_warps<Tile, Sum>(scratch.fold[0], lane)),
              fold_lanes<32>(fold_warps<Tile, Sum>(scratch.fold[1], lane))};
    }
  }
  return {fold_lanes<32>(m.sum), fold_lanes<32>(m.squares)};
}

// The canonical fold of a thread's vectors as they come, as StreamFold.
template <class Slots>
class StageFold {
 public:
  // Group numbers count up from 0; each carry of that count is one addition of the tree.
  __device__ __forceinline__ void add(const Moments (&q)[StreamFold::kGroup], uint32_t group) {
    total_ = fold_moments(q);
    carry<0>(group);
  }
  using Value = Moments;
  __device__ __forceinline__ Moments total() const { return total_; }

 private:
  template <int kDigit>
  __device__ __forceinline__ void carry(uint32_t group) {
    if constexpr (kDigit == kStageRegisterDigits) {
      auto& shared = ptx::block_shared<StagesScratch<Slots>>().pending;
      constexpr int kCount = kStageDigits<Slots> - kStageRegisterDigits;
      int digit = 0;
#pragma unroll 1
      for (; (group >> (digit + kDigit) & 1) != 0; ++digit) add(shared[digit][threadIdx.x]);
      // Behind the last group there is nothing pending.
      if (digit < kCount) shared[digit][threadIdx.x] = total_;
    } else if ((group >> kDigit & 1) == 0) {
      pending_[kDigit] = total_;
    } else {
      add(pending_[kDigit]);
      carry<kDigit + 1>(group);
    }
  }
  __device__ __forceinline__ void add(Moments pending) {
    total_.sum = __fadd_rn(pending.sum, total_.sum);
    total_.squares = __fadd_rn(pending.squares, total_.squares);
  }

  Moments pending_[kStageRegisterDigits];
  Moments total_;
};

// What a statistic needs of a norm: of the call's, or of the branch's.
struct StageNumbers {
  float inv_n, eps;
};

struct StageStatistics {
  float mean, rstd;
  float squared;  // sum of squares, of LAYER about the mean
};

// The work of the threads that share a row.
template <class Slots>
class StagesRow {
 public:
  using T = typename Slots::T;
  using Tile = typename Slots::Tile;
  static constexpr int kPerVector = T::kPerVector, kThreads = Tile::kThreads;
  static constexpr uint32_t kWindow = kStageWindow<Tile>;

  __device__ __forceinline__ StagesRow(const NormStagesParams& params, const Place<Tile>& at,
                                       StagesScratch<Slots>& shared)
      : p(params),
        place(at),
        scratch(shared),
        statistics(shared.statistics[row_of_block()]),
        places(shared.places[row_of_block()]),
        index(row_index(params.norm, at.row, params.norm.bits)),
        source(params, params.sum_scale != nullptr ? ptx::ld_global_f32(params.sum_scale) : 1.0f) {}

  __device__ __forceinline__ void run() {
    for (int t = place.first; t < kStageRowTensors; t += kThreads)
      places[t] = stage_place(p, index, t);
    sync();
    if ((p.bits & kStagesBranch) != 0) {
      const StageStatistics s = reduce(0, p.columns, false, false);
      source.mean = s.mean, source.rstd = s.rstd;
      if (place.leads_row()) put(p.branch_rstd, 0, s.rstd);
    }
    StreamQuantizer<Slots, Tile> quantizer(p.norm, place);
    const bool codes = (p.bits & kStagesCodes) != 0, one = p.groups <= kWindow;
    // A row's scale takes a pass before that of the codes.
#pragma unroll 1
    for (bool last = !codes || !quantizer.wants_row();; last = true) {
#pragma unroll 1
      for (uint32_t first = 0; first < p.groups; first += kWindow) {
        const uint32_t left = p.groups - first, count = left < kWindow ? left : kWindow;
        if (!(one && known)) {
          sync();  // the last window's have been read
          find_statistics(first, count);
          sync();
          known = true;
        }
        if ((p.bits & kStagesStoresRows) != 0) finish(first, count, quantizer, last);
      }
      if (last) break;
      quantizer.make_row_scale(scratch.greatest, place);
    }
    if (codes) quantizer.end(place);
  }

 private:
  static __device__ __forceinline__ uint32_t row_of_block() {
    return Tile::kRows > 1 ? threadIdx.x / kThreads : 0;
  }
  static __device__ __forceinline__ void sync() {
    if constexpr (Tile::kOneWarp) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
  __device__ __forceinline__ void put(const StageTensor& to, uint32_t number, float value) const {
    if (to.row.data == nullptr) return;
    ptx::st_global_u32(row_address(to.row, to.upper, index) + int64_t{number} * 4,
                       __float_as_uint(value));
  }
  __device__ __forceinline__ float given(const StageTensor& from, uint32_t number) const {
    if (from.row.data == nullptr) return 0.0f;
    return ptx::ld_global_f32(row_address(from.row, from.upper, index) + int64_t{number} * 4);
  }

  // The statistics of columns from `first` on, in every thread that shares them. `all`: of the row
  // that is normalised, else of the branch.
  __device__ __forceinline__ StageStatistics reduce(uint32_t first, uint32_t columns, bool all,
                                                    bool by_warp) {
    const Steps<T> rounding = {all ? source.rounding.every_step : source.branch.every_step};
    const StageNumbers norm = {all ? p.norm.inv_n : p.branch.inv_n,
                               all ? p.norm.eps : p.branch.eps};
    const bool layer = (p.bits & (all ? kStagesLayer : kStagesBranchLayer)) != 0,
               rounds_sum = all && source.rounding.round_sum, wide = (p.bits & kStagesWide) != 0;
    LayerStatistics of_layer(-0.0f, rounding);
    const int threads = by_warp ? 32 : kThreads,
              thread = static_cast<int>(by_warp ? threadIdx.x % 32 : place.first);
    const int64_t vectors = (int64_t{columns} + kPerVector - 1) / kPerVector;
    Moments m;
    // LAYER's sums are about the first value, which comes before them: pass -1. A chain in T sums
    // about none, as x - -0 is x.
#pragma unroll 1
    for (int pass = layer && !rounding.every_step ? -1 : 0; pass < (layer ? 2 : 1); ++pass) {
      const bool finds = pass < 0;
      const float from = of_layer.from;
      const bool steps = layer ? of_layer.steps(pass, rounding) : rounding.every_step;
      float first_value = 0.0f;
      const Moments of_thread = fold_stream<StageFold<Slots>, Tile>(
          finds ? 1 : (vectors + threads - 1) / threads,
          [&](int64_t begin, int64_t step, Moments(&q)[StreamFold::kGroup]) {
#pragma unroll 1
            for (int i = 0; i < StreamFold::kGroup; ++i) {
              const int64_t vector = finds ? 0 : thread + (begin + i * step) * threads;
              const int64_t left = int64_t{columns} - vector * kPerVector;
              Moments sum = {0.0f, 0.0f};
              if (left > 0 && !(finds && i > 0)) {
                const int count = left < kPerVector ? static_cast<int>(left) : kPerVector;
                StageValues<T> v;
                float s[kPerVector];
                take_sources(v, places, wide, all ? kStageSources : kStageResidual, first, vector,
                             count);
                if (all) take_factor(v, first, vector, count);
                source.gated(s, v);
                if (all) source.sum(s, v);
                if (rounds_sum) source.rounding.summed(s);
                if (finds) first_value = s[0];
                sum = moments<T, true>(s, from, count, steps, steps && layer);
              }
#pragma unroll
              for (int k = 0; k < StreamFold::kGroup; ++k) q[k] = selected(k == i, sum, q[k]);
            }
          });
      if (finds) {
        of_layer.from = first_value;
        continue;
      }
      m = fold_stage<Slots>(of_thread, by_warp, scratch);
      if (layer) of_layer.take(m, pass, norm, rounding);
    }
    if (!layer) return {0.0f, rstd_of(__fmul_rn(m.squares, norm.inv_n), norm, rounding), m.squares};
    const float squared = squares_about_mean(m, norm.inv_n, rounding.every_step);
    return {of_layer.mean(), of_layer.rstd(norm, rounding), squared};
  }

  // Statistics of `count` groups from number `first` on, computed and stored, or given.
  __device__ __forceinline__ void find_statistics(uint32_t first, uint32_t count) {
    if (p.rstd_in.row.data != nullptr) {
      for (uint32_t g = place.first; g < count; g += kThreads)
        statistics[g] = make_float2(given(p.mean_in, first + g), given(p.rstd_in, first + g));
      return;
    }
    const bool by_warp = Tile::kOneWarp || (count > 1 && p.group <= kWarpGroupColumns);
    const bool layer = (p.bits & kStagesLayer) != 0;
    uint32_t g = 0, step = 1;
    if (!Tile::kOneWarp && by_warp) g = threadIdx.x / 32, step = kThreads / 32;
#pragma unroll 1
    for (; g < count; g += step) {
      const StageStatistics s = reduce((first + g) * p.group, p.group, true, by_warp);
      if (by_warp ? threadIdx.x % 32 != 0 : !place.leads_row()) continue;
      const uint32_t number = first + g;
      statistics[g] = make_float2(s.mean, s.rstd);
      put({p.norm.mean, p.norm.mean_upper}, number, s.mean);
      put({p.norm.rstd, p.norm.rstd_upper}, number, s.rstd);
      if (layer) put(p.sumsq, number * 2, s.mean);
      put(p.sumsq, layer ? number * 2 + 1 : number, s.squared);
    }
  }

  __device__ __forceinline__ uint32_t group_of(uint32_t column) const {
    if (p.groups == 1) return 0;
    return p.group == 1 ? column : quotient(column, p.by_group);
  }

  // Vectors of weight and bias. `in_group`: the first column's number in its group.
  __device__ __forceinline__ void take_columns(float (&w)[kPerVector], float (&b)[kPerVector],
                                               int64_t vector, int count, uint32_t in_group) const {
    const auto is_shared = [&](int t) {
      const uint32_t bit = t == kStageWeight ? kStagesWeightShared : kStagesBiasShared;
      return (p.bits & bit) != 0 && p.groups > 1;
    };
    const auto vector_of = [&](int t) { return is_shared(t) ? in_group / kPerVector : vector; };
    if ((p.bits & kStagesWide) != 0) {
      load_wide<T>(w, places[kStageWeight], kStageWeight, vector_of(kStageWeight) * kVectorBytes,
                   true);
      load_wide<T>(b, places[kStageBias], kStageBias, vector_of(kStageBias) * kVectorBytes, true);
      return;
    }
#pragma unroll 1
    for (int t = kStageWeight; t <= kStageBias; ++t) {
      const StagePlace from = places[t];
      float f[kPerVector];
      if (!is_shared(t) || p.group % kPerVector == 0) {
        load_any<T>(f, from, t, 0, vector_of(t), count);
      } else {
        const StageRow<T> row(from.data, kStageAlign, from.type);
        uint32_t i = in_group;
#pragma unroll
        for (int k = 0; k < kPerVector; ++k) {
          f[k] = absent_value(t);
          if (from.data != nullptr && k < count) f[k] = row.element(i);
          i = i + 1 == p.group ? 0 : i + 1;
        }
      }
#pragma unroll
      for (int k = 0; k < kPerVector; ++k) {
        if (t == kStageWeight) w[k] = f[k];
        if (t == kStageBias) b[k] = f[k];
      }
    }
  }

  // The branch's factor, if a residual gate gives it.
  __device__ __forceinline__ void take_factor(StageValues<T>& v, uint32_t first, int64_t vector,
                                              int count) const {
    if ((p.bits & kStagesFactor) == 0) return;
    take_modulator<T>(v.factor, places, kStageFactor, (p.bits & kStagesSingleFactor) != 0,
                      (p.bits & kStagesSumEveryStep) != 0, first, vector, count);
    make_factor<T>(v.factor, p.bits, p.modulators.factor_act, p.alpha);
  }

  __device__ __forceinline__ void modulate_columns(float (&z)[kPerVector], int64_t vector,
                                                   int count) const {
    if ((p.bits & (kStagesScale | kStagesShift)) == 0) return;
    float scale[kPerVector] = {}, shift[kPerVector] = {};
#pragma unroll 1
    for (int t = kStageScale; t <= kStageShift; t += kStageShift - kStageScale) {
      const uint32_t single = t == kStageScale ? kStagesSingleScale : kStagesSingleShift;
      float f[kPerVector] = {};
      take_modulator<T>(f, places, t, (p.bits & single) != 0,
                        (p.bits & kStagesModulateInSteps) != 0, 0, vector, count);
#pragma unroll
      for (int i = 0; i < kPerVector; ++i) {
        if (t == kStageScale) {
          scale[i] = f[i];
        } else {
          shift[i] = f[i];
        }
      }
    }
    modulate<T>(z, scale, shift, p.bits);
  }

  __device__ __forceinline__ void store(const float (&f)[kPerVector], int tensor, int64_t vector,
                                        int count) const {
    const StagePlace to = places[tensor];
    if (to.data != nullptr)
      store_part<Part::kCounted, T>(f, AnyRow<T, char>(to.data, kStageAlign, to.type), vector,
                                    count);
  }

  // The results of `count` groups from number `first` on; but for the last pass they only show the
  // row's greatest magnitude.
  __device__ __forceinline__ void finish(uint32_t first, uint32_t count,
                                         StreamQuantizer<Slots, Tile>& quantizer, bool last) {
    const bool layer = (p.bits & kStagesLayer) != 0, codes = (p.bits & kStagesCodes) != 0;
    const int64_t begin = int64_t{first} * p.group / kPerVector,
                  end_column = int64_t{first + count} * p.group,
                  end = (end_column + kPerVector - 1) / kPerVector;
    // As often in every thread of the row: blocks of columns are neighbouring lanes' vectors.
#pragma unroll 1
    for (int64_t at = begin; at < end; at += kThreads) {
      const int64_t vector = at + place.first, left = end_column - vector * kPerVector;
      const int columns_here = left >= kPerVector ? kPerVector
                               : left < 0         ? 0
                                                  : static_cast<int>(left);
      float z[kPerVector];
      fill_values(z, 0.0f);
      if (columns_here > 0) {
        const auto column = static_cast<uint32_t>(vector * kPerVector);
        const uint32_t group = group_of(column);
        StageValues<T> v;
        take_sources(v, places, (p.bits & kStagesWide) != 0, kStageSources, 0, vector,
                     columns_here);
        take_factor(v, 0, vector, columns_here);
        source.gated(z, v);
        source.sum(z, v);
        if (last) store(z, kStageSum, vector, columns_here);
        normalize(z, vector, columns_here, column - group * p.group, group - first, layer);
        modulate_columns(z, vector, columns_here);
        source.finish(z, v);
        if (last && !p.norm.rotation.of_y) store(z, kStageY, vector, columns_here);
      }
      if (!codes) continue;
      if (p.norm.rotation.block != 0) {
        rotate<T>(p.norm.rotation, p.norm.quant.from_rounded, z, vector, columns_here > 0);
        if (last && p.norm.rotation.of_y && columns_here > 0)
          store(z, kStageY, vector, columns_here);
      }
      if (last) {
        quantizer.put(z, vector, columns_here);
      } else if (columns_here > 0) {
        quantizer.see(z, columns_here);
      }
    }
  }

  // `in_group`: the first column's number in its group, which is number `group` of the window.
  __device__ __forceinline__ void normalize(float (&z)[kPerVector], int64_t vector, int count,
                                            uint32_t in_group, uint32_t group, bool layer) const {
    const auto& rounding = source.rounding;
    if (rounding.round_sum) rounding.summed(z);
    rounding.applied(z);
    float w[kPerVector], b[kPerVector];
    take_columns(w, b, vector, count, in_group);
    // A vector may lie in several groups.
    const auto each = [&](auto use) {
      float2 s = statistics[group];
      uint32_t number = group, i = in_group;
#pragma unroll
      for (int k = 0; k < kPerVector; ++k) {
        use(k, s);
        if (++i == p.group && k + 1 < count) i = 0, s = statistics[++number];
      }
    };
    each([&](int k, float2 s) { z[k] = normalized_value(z[k], s.x, s.y, layer, rounding); });
    rounding.normalized(z);
    each([&](int k, float2 s) {
      z[k] = applied_value(z[k], w[k], b[k], p.norm.weight_offset, s.y, rounding);
    });
  }

  const NormStagesParams& p;
  const Place<Tile>& place;
  StagesScratch<Slots>& scratch;
  float2* const statistics;  // of the window's groups
  StagePlace* const places;
  const RowIndex index;
  StageSource<T> source;
  bool known = false;  // the only window's statistics are
};

template <class Slots>
__device__ __forceinline__ void run_general_stages(const NormStagesParams& p) {
  using Tile = typename Slots::Tile;
  auto& scratch = ptx::block_shared<StagesScratch<Slots>>();
  const Place<Tile> place(blockIdx.x);
  if ((p.norm.bits & (kWaitFirst | kWaitAfterWeights)) != 0) ptx::grid_wait();
  if ((p.norm.bits & kTrigger) != 0) ptx::grid_trigger();
  if (Tile::kRows > 1 && place.row >= p.norm.rows) return;
  StagesRow<Slots>(p, place, scratch).run();
}

}  // namespace fastnorm::cuda
