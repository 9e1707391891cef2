// The held forms: aligned rows of 16 bits in registers, read once.
//
// kGated      y = norm(x) * act(gate) or norm(x * act(gate)), RMS; a group of a row has the threads
//             of a row
// kSandwich   y = norm(norm(x) + residual), RMS; the sum stays in f32 between the two
// kModulated  y = norm(x * residual_gate + residual) * (1 + scale) + shift, RMS or LAYER
//
// Bytes: each input once, each output once.
// Shared memory: a float a thread for each sum, where a row has several warps.
// A call that rounds nothing between its steps has code that knows so. The other calls have theirs,
// behind a branch, and so have modulators of f32 or with tables. A warp skips a vector that lies
// behind the row.
// A thread's weights are loaded while the sum before them is made, modulators of T with the row.
#pragma once

#include <algorithm>

#include "cuda/common/ptx/grid.cuh"
#include "cuda/norm_stages/arithmetic.cuh"
#include "cuda/norm_stages/held_modulator.cuh"

namespace fastnorm::cuda {

// Roundings and forms of a factor that few calls ask for.
inline constexpr uint32_t kStagesRare =
    kStagesGateRounded | kStagesBranchRounded | kStagesSumEveryStep | kStagesRoundNormalized |
    kStagesBranchRoundNormalized | kStagesRoundSum | kStagesPlainScale | kStagesModulateInSteps;

// Registers of a multiprocessor, on every architecture with held forms.
inline constexpr int kMultiprocessorRegisters = 65536;
inline constexpr int kModulatorRegisters = 32;  // a vector's words of scale, shift and their tables
inline constexpr int kOtherRegisters = 20;      // addresses, and what is computed with

// The code of a kernel, of which each call runs one.
enum class StagesCode : uint8_t {
  kCommon,  // of a call that is_common()
  kAlone,   // of such a call with kStagesAlone
  kMixed,   // of a call with kStagesMixed, whose steps round nothing
  kRare,    // of the other calls
};

__device__ __forceinline__ bool is_common(const HeldStagesParams& p) {
  return (p.bits & (kStagesRare | kStagesMixed)) == 0 && p.sum_scale == nullptr;
}

template <class Slots, StagesCode kCode>
class HeldStagesRow {
 public:
  static constexpr bool kAlone = kCode == StagesCode::kAlone,
                        kCommon = kCode == StagesCode::kCommon || kAlone,
                        kMixed = kCode == StagesCode::kMixed;
  // What no call of this code asks for.
  static constexpr uint32_t kNever = kCommon  ? kStagesRare
                                     : kMixed ? kStagesSumEveryStep | kStagesModulateInSteps
                                              : 0;
  using T = typename Slots::T;
  using Tile = typename Slots::Tile;
  static constexpr int kVectors = Tile::kVectors, kPerVector = T::kPerVector;
  static constexpr StagesForm kForm = Slots::kVariant.form;
  static constexpr int kFolds = kForm == StagesForm::kGated || kAlone ? 1 : 2,
                       kSums = kForm == StagesForm::kModulated && !kAlone ? 2 : 1;
  using Scratch = FoldScratch<Tile, kSums>[kFolds];
  // Whether modulators of the next vector, of kMixed, are loaded while one is computed: if
  // registers hold both and the row.
  static constexpr int kAhead = std::min(kVectors, 2);
  static constexpr int kRegisters =
      kMultiprocessorRegisters / (Slots::kVariant.per_sm * Tile::kBlockThreads);
  static constexpr bool kLoadsAhead =
      kRegisters >= kVectors * kPerVector + kAhead * kModulatorRegisters + kOtherRegisters;

  __device__ __forceinline__ HeldStagesRow(const HeldStagesParams& params, const Place<Tile>& at,
                                           Scratch& shared)
      : p(params),
        place(at),
        scratch(shared),
        live(at.row < params.norm.rows),
        row(!live                ? 0
            : params.groups == 1 ? at.row
                                 : quotient(at.row, params.by_groups)),
        group(live ? at.row - row * params.groups : 0),
        left(params.norm.vectors - at.first),
        index(row_index<3, Tile::kRows == 1>(params.norm, row, params.norm.bits)) {}

  __device__ __forceinline__ void run() {
    const uint32_t first = group * static_cast<uint32_t>(p.norm.vectors);  // of the row's vectors
    uint4 x[kVectors], second[kVectors];
    load(x, input(p.norm.x, p.norm.x_upper, first));
    if constexpr (kAlone) {
      scaled(x);
    } else if constexpr (kForm == StagesForm::kModulated) {
      const char* const residual = p.norm.residual.data == nullptr
                                       ? nullptr
                                       : input(p.norm.residual, p.norm.residual_upper, 0);
      load(second, residual, T::kMinusZeroWord);
      if constexpr (kMixed) {
        modulated_by_mixed(x, second, residual);
      } else {
        modulated(x, second, residual);
      }
    } else if constexpr (kForm == StagesForm::kSandwich) {
      load(second, input(p.norm.residual, p.norm.residual_upper, first));
      trigger();
      sandwich(x, second);
    } else {
      load(second, input(p.gate.row, p.gate.upper, first));
      trigger();
      if (kCommon && asks(kStagesGateBefore)) {
        gated<kCommon>(x, second, first);
      } else {
        gated<false>(x, second, first);
      }
    }
  }

 private:
  __device__ __forceinline__ void trigger() const {
    if ((p.norm.bits & kTrigger) != 0) ptx::grid_trigger();
  }
  __device__ __forceinline__ bool has(int v) const { return Tile::offset(v) < left; }
  __device__ __forceinline__ char* input(const RowRef& tensor, const RowStrides& upper,
                                         uint32_t first) const {
    return row_address(tensor, upper, index) + int64_t{first} * kVectorBytes;
  }
  __device__ __forceinline__ void load(uint4 (&raw)[kVectors], const char* from,
                                       uint32_t filler = 0) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      raw[v] = make_uint4(filler, filler, filler, filler);
      ptx::ld_global_v4_if(raw[v], place.template address<kVectorBytes>(from, v),
                           from != nullptr && has(v));
    }
  }
  // Loads vectors that are there. What is not loaded is undefined.
  __device__ __forceinline__ void load_present(uint4 (&raw)[kVectors], const char* from) const {
    ptx::fill_unless(raw, 0, true);
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
      ptx::ld_global_v4_if(raw[v], place.template address<kVectorBytes>(from, v),
                           from != nullptr && has(v));
  }
  __device__ __forceinline__ void store(char* to, int v, const float (&z)[kPerVector]) const {
    if (live && has(v)) ptx::st_global_v4(place.template address<kVectorBytes>(to, v), T::pack(z));
  }
  __device__ __forceinline__ void put(const RowRef& to, const RowStrides& upper,
                                      float value) const {
    if (to.data == nullptr || !live || !place.leads_row()) return;
    ptx::st_global_u32(row_address(to, upper, index) + int64_t{group} * 4, __float_as_uint(value));
  }

  // What absent vectors hold adds nothing.
  __device__ __forceinline__ float rstd_from(float (&q)[kVectors], int sum, float eps) const {
    const float total = sum_row(q, scratch[sum], place);
    return reciprocal_root(__fadd_rn(__fmul_rn(total, p.norm.inv_n), eps));
  }
  __device__ __forceinline__ bool asks(uint32_t bit) const {
    return (bit & kNever) == 0 && (p.bits & bit) != 0;
  }
  // u * factor + residual, in place. A factor of 1 and a residual of -0 change no bit.
  template <class Factor>
  __device__ __forceinline__ void join(float (&u)[kPerVector], const float (&residual)[kPerVector],
                                       const Factor& factor, float sum_scale) const {
    if constexpr (kCommon || kMixed) {
#pragma unroll
      for (int i = 0; i < kPerVector; ++i) u[i] = __fmaf_rn(u[i], factor(i), residual[i]);
    } else {
      add_residual<T>(u, residual, p.bits, factor, p.sum_scale != nullptr, sum_scale);
    }
  }

  // s * rstd * weight, in place.
  __device__ __forceinline__ void normalize(float (&s)[kPerVector], float rstd, const uint4& weight,
                                            float offset, uint32_t rounds) const {
    float w[kPerVector], b[kPerVector];
    T::unpack(weight, w);
#pragma unroll
    for (int i = 0; i < kPerVector; ++i) s[i] = __fmul_rn(s[i], rstd), b[i] = -0.0f;
    if (asks(rounds)) round_to<T>(s);
    apply(s, s, w, b, offset, rstd, NoSteps());
  }

  // kBefore: the gate multiplies x, else the result.
  template <bool kBefore>
  __device__ __forceinline__ void gated(const uint4 (&x)[kVectors], const uint4 (&gate)[kVectors],
                                        uint32_t first) const {
    uint4 weight[kVectors];
    load(weight, p.norm.weight == nullptr ? nullptr : p.norm.weight + group * p.weight_step,
         T::kOneWord);
    float q[kVectors], before[kBefore ? kVectors : 1][kPerVector];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float alone[kPerVector], (&s)[kPerVector] = kBefore ? before[kBefore ? v : 0] : alone;
      T::unpack(x[v], s);
      if (kBefore && has(v)) {
        float g[kPerVector];
        T::unpack(gate[v], g);
        multiply_by_gate<false>(s, g, p.gate_act, NoSteps());
      }
      q[v] = vector_sum_of_squares(s);
    }
    const float rstd = rstd_from(q, 0, p.norm.eps);
    put(p.norm.rstd, p.norm.rstd_upper, rstd);
    char* const y = input(p.norm.y, p.norm.y_upper, first);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!has(v)) continue;
      float z[kPerVector], g[kPerVector];
      if constexpr (kBefore) {
        copy_values(z, before[v]);
      } else {
        T::unpack(x[v], z);
      }
      normalize(z, rstd, weight[v], p.norm.weight_offset, kStagesRoundNormalized);
      if constexpr (!kBefore) {
        T::unpack(gate[v], g);
        if (asks(kStagesGateRounded)) round_to<T>(z);
        multiply_by_gate<false>(z, g, p.gate_act, NoSteps());
      }
      store(y, v, z);
    }
  }

  __device__ __forceinline__ void sandwich(const uint4 (&x)[kVectors],
                                           const uint4 (&residual)[kVectors]) const {
    uint4 weight[kVectors];
    load(weight, p.branch_weight, T::kOneWord);
    float s[kVectors][kPerVector], q[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      T::unpack(x[v], s[v]);
      q[v] = vector_sum_of_squares(s[v]);
    }
    const float scale = kCommon || p.sum_scale == nullptr ? 1.0f : ptx::ld_global_f32(p.sum_scale);
    const float branch_rstd = rstd_from(q, 0, p.branch_eps);
    put(p.branch_rstd.row, p.branch_rstd.upper, branch_rstd);
    char* const sum = input(p.norm.residual_out, p.norm.residual_out_upper, 0);
    const bool stores_sum = p.norm.residual_out.data != nullptr;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      q[v] = 0.0f;
      if (!has(v)) continue;
      float r[kPerVector];
      T::unpack(residual[v], r);
      normalize(s[v], branch_rstd, weight[v], p.branch_weight_offset, kStagesBranchRoundNormalized);
      if (asks(kStagesBranchRounded)) round_to<T>(s[v]);
      join(
          s[v], r, [&](int) { return p.alpha; }, scale);
      if (stores_sum) store(sum, v, s[v]);
      if (asks(kStagesRoundSum)) round_to<T>(s[v]);
      q[v] = vector_sum_of_squares(s[v]);
    }
    load(weight, p.norm.weight, T::kOneWord);
    const float rstd = rstd_from(q, 1, p.norm.eps);
    put(p.norm.rstd, p.norm.rstd_upper, rstd);
    char* const y = input(p.norm.y, p.norm.y_upper, 0);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!has(v)) continue;
      normalize(s[v], rstd, weight[v], p.norm.weight_offset, kStagesRoundNormalized);
      store(y, v, s[v]);
    }
  }

  // A modulator's row; nullptr: it is absent.
  __device__ __forceinline__ const char* row_of(const StageModulator& m, uint32_t present) const {
    return asks(present) ? modulator_row(m, p.modulators.index, p.bits, index) : nullptr;
  }
  // The branch's factor and the sum of branch and residual, in place.
  __device__ __forceinline__ void add(float (&s)[kPerVector], const uint4& residual,
                                      const uint4& factor) const {
    float k[kPerVector];
    T::unpack(factor, k);
    add(s, residual, k);
  }
  __device__ __forceinline__ void add(float (&s)[kPerVector], const uint4& residual,
                                      float (&k)[kPerVector]) const {
    float r[kPerVector];
    T::unpack(residual, r);
    if constexpr (kCommon || kMixed) {
#pragma unroll
      for (float& factor_of : k) factor_of = __fmul_rn(factor_of, p.alpha);
      join(
          s, r, [&](int i) { return k[i]; }, 1.0f);
    } else {
      const bool varies = asks(kStagesFactor);
      if (varies) make_factor<T>(k, p.bits, StageFunction::kIdentity, p.alpha);
      join(
          s, r, [&](int i) { return varies ? k[i] : p.alpha; }, 1.0f);
    }
  }
  // The first elements of a row's tensors, as words.
  struct FirstElements {
    uint32_t x, residual, factor;
  };
  __device__ __forceinline__ FirstElements load_first(const char* residual,
                                                      const char* factor) const {
    const auto word = [](const char* from, uint32_t filler) {
      return from == nullptr ? filler : ptx::ld_global_u16(from);
    };
    return {word(input(p.norm.x, p.norm.x_upper, 0), 0), word(residual, T::kMinusZeroWord),
            word(factor, T::kOneWord)};
  }
  // The row's first value, which LAYER's sums are about, before it is rounded. Other warps than the
  // first compute it from its elements. `factor` begins with the branch's first factor.
  __device__ __forceinline__ float first_value(const float (&s)[kPerVector],
                                               const FirstElements& from,
                                               float (&factor)[kPerVector]) const {
    if constexpr (Tile::kOneWarp) {
      return __shfl_sync(~0u, s[0], 0, Tile::kLanes);
    } else {
      float first[kPerVector];
      T::unpack(make_uint4(from.x, 0, 0, 0), first);
      add(first, make_uint4(from.residual, 0, 0, 0), factor);
      return first[0];
    }
  }
  __device__ __forceinline__ float first_value(const float (&s)[kPerVector],
                                               const FirstElements& from) const {
    float factor[kPerVector];
    T::unpack(make_uint4(from.factor, 0, 0, 0), factor);
    return first_value(s, from, factor);
  }

  struct Statistics {
    float mean, rstd;
  };
  // The statistics of a row, and what leaves with them: the sum, mean and rstd. `from`: what
  // LAYER's sums are about. RMS sums about nothing, as x - -0 is x.
  __device__ __forceinline__ Statistics reduce(float (&s)[kVectors][kPerVector], bool layer,
                                               float from) const {
    float first[2] = {from, 0.0f};
    if (asks(kStagesRoundSum)) {
      round_to<T>(first);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) round_to<T>(s[v]);
    }
    const NoSteps rounding;
    LayerStatistics statistics(first[0], rounding);
    float mean_square = 0.0f;
#pragma unroll 1
    for (int pass = 0; pass < (layer ? 2 : 1); ++pass) {
      Moments q[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v)
        q[v] = moments<T, false>(s[v], statistics.from, has(v) ? kPerVector : 0, false);
      const Moments row_sums = fold_row_moments(fold_moments(q), scratch[pass], place);
      mean_square = __fmul_rn(row_sums.squares, p.norm.inv_n);
      if (layer) statistics.take(row_sums, pass, p.norm, rounding);
      // All threads have read the row's first value.
      if (pass == 0 && p.norm.residual_out.data != nullptr) {
        char* const sum = input(p.norm.residual_out, p.norm.residual_out_upper, 0);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) store(sum, v, s[v]);
      }
    }
    const float rstd =
        layer ? statistics.rstd(p.norm, rounding) : rstd_of(mean_square, p.norm, rounding);
    put(p.norm.rstd, p.norm.rstd_upper, rstd);
    if (layer) put(p.norm.mean, p.norm.mean_upper, statistics.mean());
    return {statistics.mean(), rstd};
  }
  // (s - mean) * rstd * weight of vector v, in place.
  __device__ __forceinline__ void weigh(float (&s)[kPerVector], int v, const Statistics& found,
                                        bool layer) const {
#pragma unroll
    for (float& value : s)
      value = normalized_value(value, found.mean, found.rstd, layer, NoSteps());
    if (asks(kStagesRoundNormalized)) round_to<T>(s);
    if (p.norm.weight == nullptr) return;
    float k[kPerVector];
    T::unpack(ptx::ld_global_v4(place.template address<kVectorBytes>(p.norm.weight, v)), k);
    weigh_values(s, k, p.norm.weight_offset);
  }

  __device__ __forceinline__ void modulated(const uint4 (&x)[kVectors],
                                            const uint4 (&residual)[kVectors],
                                            const char* residual_row) const {
    uint4 factor[kVectors], scale[kVectors], shift[kVectors];
    const char* const factor_row = row_of(p.modulators.factor, kStagesFactor);
    load(factor, factor_row, T::kOneWord);
    load(scale, row_of(p.modulators.scale, kStagesScale));
    load(shift, row_of(p.modulators.shift, kStagesShift), T::kMinusZeroWord);
    const bool layer = asks(kStagesLayer);
    FirstElements elements = {};
    if (!Tile::kOneWarp && layer) elements = load_first(residual_row, factor_row);
    trigger();
    float s[kVectors][kPerVector];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      T::unpack(x[v], s[v]);
      add(s[v], residual[v], factor[v]);
    }
    const Statistics found = reduce(s, layer, layer ? first_value(s[0], elements) : -0.0f);
    char* const y = input(p.norm.y, p.norm.y_upper, 0);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!has(v)) continue;
      float k[kPerVector], b[kPerVector];
      weigh(s[v], v, found, layer);
      T::unpack(scale[v], k);
      T::unpack(shift[v], b);
      if constexpr (kCommon) {
#pragma unroll
        for (int i = 0; i < kPerVector; ++i)
          s[v][i] = __fmaf_rn(s[v][i], __fadd_rn(1.0f, k[i]), b[i]);
      } else {
        modulate<T>(s[v], k, b, p.bits);
      }
      store(y, v, s[v]);
    }
  }

  // The results with modulators of T or f32, each with a table or without. Those of the result are
  // loaded a vector ahead, because those of the whole row would take too many registers.
  __device__ __forceinline__ void modulated_by_mixed(const uint4 (&x)[kVectors],
                                                     const uint4 (&residual)[kVectors],
                                                     const char* residual_row) const {
    const auto made = [&](const StageModulator& m, uint32_t present) {
      return HeldModulator<T, Tile>(m, row_of(m, present), place);
    };
    const bool layer = asks(kStagesLayer);
    FirstElements elements = {};
    float s[kVectors][kPerVector], first_factor[kPerVector] = {};
    {
      const HeldModulator<T, Tile> factor = made(p.modulators.factor, kStagesFactor);
      ModulatorWords raw[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) factor.load(raw[v], v, has(v));
      if (!Tile::kOneWarp && layer) {
        elements = load_first(residual_row, nullptr);
        first_factor[0] = factor.first(1.0f);
      }
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        float k[kPerVector];
        factor.take(k, raw[v], 1.0f);
        T::unpack(x[v], s[v]);
        add(s[v], residual[v], k);
      }
    }
    float first = -0.0f;
    if (layer) first = first_value(s[0], elements, first_factor);
    const HeldModulator<T, Tile> scale = made(p.modulators.scale, kStagesScale),
                                 shift = made(p.modulators.shift, kStagesShift);
    ModulatorWords scales[kAhead], shifts[kAhead];
    const auto place_of = [](int v) { return kLoadsAhead ? v % kAhead : 0; };
    const auto load_ahead = [&](int v) {
      scale.load(scales[place_of(v)], v, has(v));
      shift.load(shifts[place_of(v)], v, has(v));
    };
    if (kLoadsAhead) load_ahead(0);
    trigger();
    const Statistics found = reduce(s, layer, first);
    // 1 + scale, or the scale: x + -0 is x.
    const float one = asks(kStagesPlainScale) ? -0.0f : 1.0f;
    const float no_scale = asks(kStagesPlainScale) ? 1.0f : 0.0f;
    char* const y = input(p.norm.y, p.norm.y_upper, 0);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float k[kPerVector], b[kPerVector];
      if (kLoadsAhead && v + 1 < kVectors) load_ahead(v + 1);
      if (!has(v)) continue;
      if (!kLoadsAhead) scale.load(scales[0], v, true);
      weigh(s[v], v, found, layer);
      scale.take(k, scales[place_of(v)], no_scale);
      if (!kLoadsAhead) shift.load(shifts[0], v, true);
      shift.take(b, shifts[place_of(v)], -0.0f);
#pragma unroll
      for (int i = 0; i < kPerVector; ++i) s[v][i] = __fmaf_rn(s[v][i], __fadd_rn(one, k[i]), b[i]);
      store(y, v, s[v]);
    }
  }

  // norm(x) * weight * (1 + scale) + shift of RMS. All are loaded with the row.
  __device__ __forceinline__ void scaled(const uint4 (&x)[kVectors]) const {
    uint4 weight[kVectors], scale[kVectors], shift[kVectors];
    const char* const scale_row = row_of(p.modulators.scale, kStagesScale);
    const char* const shift_row = row_of(p.modulators.shift, kStagesShift);
    load_present(weight, p.norm.weight);
    load_present(scale, scale_row);
    load_present(shift, shift_row);
    trigger();
    float q[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      float s[kPerVector];
      T::unpack(x[v], s);
      q[v] = vector_sum_of_squares(s);
    }
    const float rstd = rstd_from(q, 0, p.norm.eps);
    put(p.norm.rstd, p.norm.rstd_upper, rstd);
    char* const y = input(p.norm.y, p.norm.y_upper, 0);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!has(v)) continue;
      float s[kPerVector], k[kPerVector];
      T::unpack(x[v], s);
#pragma unroll
      for (float& value : s) value = __fmul_rn(value, rstd);
      if (p.norm.weight != nullptr) {
        T::unpack(weight[v], k);
        weigh_values(s, k, p.norm.weight_offset);
      }
      if (scale_row != nullptr) {
        T::unpack(scale[v], k);
#pragma unroll
        for (float& factor : k) factor = __fadd_rn(1.0f, factor);
      } else {
        fill_values(k, 1.0f);
      }
      if (shift_row != nullptr) {
        float b[kPerVector];
        T::unpack(shift[v], b);
#pragma unroll
        for (int i = 0; i < kPerVector; ++i) s[i] = __fmaf_rn(s[i], k[i], b[i]);
      } else {
#pragma unroll
        for (int i = 0; i < kPerVector; ++i) s[i] = __fmul_rn(s[i], k[i]);
      }
      store(y, v, s);
    }
  }

  const HeldStagesParams& p;
  const Place<Tile>& place;
  Scratch& scratch;
  const bool live;            // the row exists
  const uint32_t row, group;  // of the call
  const int left;             // vectors from this thread's first one to the end
  const RowIndex index;
};

template <class Slots>
__device__ __forceinline__ void run_held_stages(const HeldStagesParams& p) {
  using Common = HeldStagesRow<Slots, StagesCode::kCommon>;
  using Alone = HeldStagesRow<Slots, StagesCode::kAlone>;
  union Shared {
    typename Common::Scratch fold;
    typename Alone::Scratch alone;
  };
  auto& shared = ptx::block_shared<Shared>();
  const Place<typename Slots::Tile> place(blockIdx.x);
  if ((p.norm.bits & (kWaitFirst | kWaitAfterWeights)) != 0) ptx::grid_wait();
  constexpr bool kModulated = Common::kForm == StagesForm::kModulated;
  if (is_common(p)) {
    if (kModulated && (p.bits & kStagesAlone) != 0) {
      if constexpr (kModulated) Alone(p, place, shared.alone).run();
    } else {
      Common(p, place, shared.fold).run();
    }
  } else if (kModulated && (p.bits & kStagesMixed) != 0) {
    if constexpr (kModulated) HeldStagesRow<Slots, StagesCode::kMixed>(p, place, shared.fold).run();
  } else {
    HeldStagesRow<Slots, StagesCode::kRare>(p, place, shared.fold).run();
  }
}

}  // namespace fastnorm::cuda
