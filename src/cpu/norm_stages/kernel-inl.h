// The kernels of calls with stages. Instantiated once by the unit of each instruction set.
//
// They are the norm's row loop with another source and more behind its weight and bias: what the
// norm's parts do not know is here. A row is taken in groups that have statistics of their own; its
// results become f32 values in chunks of the row, whatever groups these lie in, as codes need them.
// x, the gate and the residual are taken from memory in each pass.
#pragma once

#include "cpu/norm/kernel-inl.h"
#include "cpu/norm_stages/activations-inl.h"
#include "cpu/norm_stages/params.h"

namespace fastnorm::cpu {
namespace {

template <class Element>
struct StagesSlots : GeneralSlots<Element, Source::kAdd> {};

// The branch's norm: slots of its own, as its rows come from another source.
template <class Element>
struct BranchSlots : GeneralSlots<Element, Source::kAdd> {};

// A modulator's row, or a group of it.
struct ModulatorRow {
  const char *at, *table;
  float value;  // of a single element
};

// A row, or a group of it.
struct StagesRow {
  Row row;
  const char *gate, *mean_in, *rstd_in;
  char* sumsq;
  Row branch;  // its columns
  char* branch_rstd;
  Statistics of_branch;
  ModulatorRow residual_gate, scale, shift;
};

// Elements of the gate from i on as they multiply.
template <class T, class Extent>
FASTNORM_INLINE Pair gate_factor(const StagesParams& p, const char* gate, int64_t i,
                                 Extent extent) {
  const Rounding<Affine::kAny, T> rounding(p.norm);
  const Pair g = load_typed<Affine::kAny, T>(p.gate_type, gate, i, extent);
  return rounding.step(activate(p.gate_act, g));
}

// Elements of a modulator from i on, with its table's.
template <class T, class Extent>
FASTNORM_INLINE Pair take_modulator(const ModulatorParams& p, const ModulatorRow& row, int64_t i,
                                    Extent extent, bool every_step) {
  const Vec value = broadcast(row.value);
  const Pair m =
      p.single ? Pair{value, value} : load_typed<Affine::kAny, T>(p.type, row.at, i, extent);
  if (row.table == nullptr) return m;
  const Pair t = load_typed<Affine::kAny, T>(p.table_type, row.table, i, extent);
  const Pair sum = {add(m.a, t.a), add(m.b, t.b)};
  return every_step ? round_pair(T{}, sum) : sum;
}

// x, gated where the gate comes first.
template <class T, class Extent>
FASTNORM_INLINE Pair take_gated(const StagesParams& p, const StagesRow& at, int64_t i,
                                Extent extent) {
  const Pair x = extent.load(T{}, at.row.x + i * T::kBytes);
  if (!p.gate_before) return x;
  const Rounding<Affine::kAny, T> rounding(p.norm);
  return rounding.step(multiply(x, gate_factor<T>(p, at.gate, i, extent)));
}

template <class Element>
struct RowSource<BranchSlots<Element>> {
  using T = Element;

  template <class Extent>
  __attribute__((noinline)) Pair take(int64_t i, Extent extent) const {
    return take_gated<T>(p, at, i, extent);
  }

  const StagesParams& p;
  const StagesRow& at;
};

template <class T>
inline Statistics branch_statistics(const StagesParams& p, const StagesRow& row) {
  using Slots = BranchSlots<T>;
  const Rounding<Affine::kAny, T> rounding(p.branch);
  return statistics<Slots>(p.branch, RowSource<Slots>{p, row}, rounding, Nothing{});
}

// The branch's elements from i on, normalised.
template <class T, class Extent>
FASTNORM_INLINE Pair apply_branch(const StagesParams& p, const StagesRow& at, Pair u, int64_t i,
                                  Extent extent) {
  using Slots = BranchSlots<T>;
  const RowAffine<Slots, AnyWeights> affine(p.branch, at.branch, at.of_branch,
                                            Rounding<Affine::kAny, T>(p.branch));
  return affine.apply(u, i, extent);
}

// The row that is normalised: branch and residual.
template <class Element>
struct RowSource<StagesSlots<Element>> {
  using T = Element;

  FASTNORM_INLINE RowSource(const StagesParams& params, const StagesRow& group)
      : p(params), at(group) {}

  template <class Extent>
  __attribute__((noinline)) Pair take(int64_t i, Extent extent) const {
    Pair u = take_gated<T>(p, at, i, extent);
    if (p.has_branch) {
      u = apply_branch<T>(p, at, u, i, extent);
      if (p.branch_rounded) u = round_pair(T{}, u);
      u = extent.first(T{}, u);  // the mean was subtracted past the end, too
    }
    const Pair s = p.residual_gate.type == OperandType::kAbsent ? sum_of(u, i, extent)
                                                                : gated_sum(u, i, extent);
    if (p.sum_scale == nullptr) return s;
    const Vec scale = broadcast(load_f32(p.sum_scale));
    return extent.first(T{}, step({mul(s.a, scale), mul(s.b, scale)}));  // 0 * Inf past the end
  }

  template <class Extent>
  FASTNORM_INLINE Pair sum_of(Pair u, int64_t i, Extent extent) const {
    const Vec alpha = broadcast(p.alpha);
    if (at.row.residual == nullptr) return p.scaled ? step({mul(u.a, alpha), mul(u.b, alpha)}) : u;
    const Pair r = load_typed<Affine::kAny, T>(p.norm.residual_type, at.row.residual, i, extent);
    if (p.scaled && !p.sum_every_step) return {fused(u.a, alpha, r.a), fused(u.b, alpha, r.b)};
    if (p.scaled) u = step({mul(u.a, alpha), mul(u.b, alpha)});
    return step({add(u.a, r.a), add(u.b, r.b)});
  }

  // The sum of a residual and a branch that is multiplied by a factor for each element.
  template <class Extent>
  FASTNORM_INLINE Pair gated_sum(Pair u, int64_t i, Extent extent) const {
    Pair k = take_modulator<T>(p.residual_gate, at.residual_gate, i, extent, p.sum_every_step);
    if (p.residual_gate_act != Activation::kIdentity) k = step(activate(p.residual_gate_act, k));
    if (p.scaled) {
      const Vec alpha = broadcast(p.alpha);
      k = step({mul(k.a, alpha), mul(k.b, alpha)});
    }
    const bool adds = at.row.residual != nullptr;
    Pair s;
    if (!adds || p.sum_every_step) s = step(multiply(u, k));
    if (adds) {
      const Pair r = load_typed<Affine::kAny, T>(p.norm.residual_type, at.row.residual, i, extent);
      s = p.sum_every_step ? step({add(s.a, r.a), add(s.b, r.b)})
                           : Pair{fused(u.a, k.a, r.a), fused(u.b, k.b, r.b)};
    }
    return extent.first(T{}, s);  // 0 * Inf past the end
  }

  FASTNORM_INLINE Pair step(Pair v) const { return p.sum_every_step ? round_pair(T{}, v) : v; }

  const StagesParams& p;
  const StagesRow& at;
};

// One row's work.
template <class T>
class StagedRow {
 public:
  using Slots = StagesSlots<T>;

  StagedRow(const StagesParams& params, const StagesRow& all) : p(params), whole(all) {
    if (!p.has_branch) return;
    whole.of_branch = branch_statistics<T>(p, whole);
    store_statistic(whole.branch_rstd, whole.of_branch.rstd);
  }

  // Group number g becomes the one at work.
  void enter(int64_t g) {
    if (g == number) return;
    number = g;
    const NormParams& n = p.norm;
    const int64_t first = g * n.n;
    group = whole;
    step(group.row.x, first * T::kBytes);
    step(group.row.residual, first * bytes_of<Affine::kAny, T>(n.residual_type));
    step(group.row.y, first * bytes_of<Affine::kAny, T>(n.y_type));
    step(group.row.residual_out, first * bytes_of<Affine::kAny, T>(n.residual_out_type));
    step(group.gate, first * bytes_of<Affine::kAny, T>(p.gate_type));
    step(group.branch.weight, first * bytes_of<Affine::kAny, T>(p.branch.weight_type));
    step(group.branch.bias, first * bytes_of<Affine::kAny, T>(p.branch.bias_type));
    enter(p.residual_gate, first, &group.residual_gate);
    enter(p.modulation_scale, first, &group.scale);
    enter(p.modulation_shift, first, &group.shift);
    step(group.row.weight, g * p.weight_step);
    step(group.row.bias, g * p.bias_step);
    for (char** value : {&group.row.mean, &group.row.rstd}) step(*value, g * kValue);
    step(group.mean_in, g * kValue);
    step(group.rstd_in, g * kValue);
    step(group.sumsq, g * kValue * (n.layer ? 2 : 1));
    find_statistics();
  }

  // What is to be quantised of the elements [i, i + count), in order. It is also stored if asked.
  void take_values(int64_t i, int count, bool stores, float* values) {
    const int64_t columns = p.norm.n;
    for (int j = 0; j < count;) {
      const int64_t g = (i + j) / columns, in_group = i + j - g * columns;
      enter(g);
      const auto piece = static_cast<int>(smaller(count - j, columns - in_group));
      take_piece(in_group, piece, stores, values + j);
      j += piece;
    }
  }

 private:
  static constexpr int64_t kValue = sizeof(float);

  template <class Byte>
  static FASTNORM_INLINE void step(Byte*& at, int64_t bytes) {
    if (at != nullptr) at += bytes;
  }

  static FASTNORM_INLINE void enter(const ModulatorParams& m, int64_t first, ModulatorRow* row) {
    if (!m.single) step(row->at, first * bytes_of<Affine::kAny, T>(m.type));
    step(row->table, first * bytes_of<Affine::kAny, T>(m.table_type));
  }

  void find_statistics() {
    if (group.rstd_in != nullptr) {
      of_group = {group.mean_in != nullptr ? load_f32(group.mean_in) : 0.0f,
                  load_f32(group.rstd_in), 0.0f};
      return;
    }
    const Rounding<Affine::kAny, T> rounding(p.norm);
    of_group = statistics<Slots>(p.norm, RowSource<Slots>(p, group), rounding, Nothing{});
    store_statistic(group.row.mean, of_group.mean);
    store_statistic(group.row.rstd, of_group.rstd);
    if (group.sumsq == nullptr) return;
    if (p.norm.layer) store_statistic(group.sumsq, of_group.mean);
    store_statistic(group.sumsq + (p.norm.layer ? kValue : 0), of_group.squared);
  }

  void take_piece(int64_t i, int count, bool stores, float* values) {
    const Rounding<Affine::kAny, T> rounding(p.norm);
    const RowSource<Slots> source(p, group);
    const RowAffine<Slots, AnyWeights> affine(p.norm, group.row, of_group, rounding);
    const RowSink<Slots, Cached> sink(p.norm, group.row, Cached{});
    const auto take = [&](int j, auto extent) __attribute__((always_inline)) {
      const Pair s = source.take(i + j, extent);
      Pair z = finish(rounding, affine.apply(s, i + j, extent), i + j, extent);
      if (stores) {
        sink.store_sum(s, i + j, extent);
        if (group.row.y != nullptr && !p.norm.quant.y_rotated) sink.store(z, i + j, extent);
      }
      if (p.norm.quant.from_rounded) z = round_pair(T{}, z);
      store(F32{}, reinterpret_cast<char*>(values + j), from_layout(T{}, extent.first(T{}, z)));
    };
    int j = 0;
    for (; j + kPairElements <= count; j += kPairElements) take(j, Whole{});
    if (j < count) take(j, Some{count - j});
  }

  // What follows weight and bias.
  template <class Extent>
  FASTNORM_INLINE Pair finish(const Rounding<Affine::kAny, T>& rounding, Pair z, int64_t i,
                              Extent extent) const {
    const bool modulates = p.modulation_scale.type != OperandType::kAbsent ||
                           p.modulation_shift.type != OperandType::kAbsent;
    if (modulates) z = modulate(z, i, extent);
    if (group.gate != nullptr && !p.gate_before) {
      if (p.gate_from_rounded) z = round_pair(T{}, z);
      z = rounding.step(multiply(z, gate_factor<T>(p, group.gate, i, extent)));
    }
    if (p.activation == Activation::kIdentity) return z;
    return rounding.step(activate(p.activation, z));
  }

  // z * (1 + scale) + shift.
  template <class Extent>
  __attribute__((noinline)) Pair modulate(Pair z, int64_t i, Extent extent) const {
    const bool every_step = p.modulation_every_step;
    const auto rounded = [&](Pair v) __attribute__((always_inline)) {
      return every_step ? round_pair(T{}, v) : v;
    };
    z = rounded(z);
    Pair shift = {zero(), zero()};
    const bool shifts = p.modulation_shift.type != OperandType::kAbsent;
    if (shifts) shift = take_modulator<T>(p.modulation_shift, group.shift, i, extent, every_step);
    if (p.modulation_scale.type != OperandType::kAbsent) {
      Pair k = take_modulator<T>(p.modulation_scale, group.scale, i, extent, every_step);
      const Vec one = broadcast(1.0f);
      if (!p.plain_scale) k = rounded({add(one, k.a), add(one, k.b)});
      if (shifts && !every_step) return {fused(z.a, k.a, shift.a), fused(z.b, k.b, shift.b)};
      z = rounded(multiply(z, k));
    }
    return shifts ? rounded({add(z.a, shift.a), add(z.b, shift.b)}) : z;
  }

  const StagesParams& p;
  StagesRow whole;
  StagesRow group;
  int64_t number = -1;  // of the group at work
  Statistics of_group = {0.0f, 0.0f, 0.0f};
};

// Values of a chunk, and room for a whole pair behind the last.
struct StagesScratch {
  float values[kQuantChunk + kPadded + kPairElements];
};

// Rotates the columns [i, i + count) of a row. They are also stored if asked.
template <class T>
inline void rotate_columns(const StagesParams& p, char* y, int64_t i, int count, bool stores,
                           float* values) {
  const QuantParams& q = p.norm.quant;
  rotate_values(q, i, count, values);
  if (stores && q.y_rotated && y != nullptr) {
    if (p.norm.y_type == OperandType::kF32) {
      narrow<F32>(values, count, y + i * F32::kBytes);
    } else {
      narrow<T>(values, count, y + i * T::kBytes);
    }
  }
  if (q.from_rounded) round_values<T>(values, count);
}

template <class T>
inline int padded_values(const StagesParams& p, StagedRow<T>& work, char* y, int64_t i, int count,
                         bool stores, float* values) {
  work.take_values(i, count, stores, values);
  if (p.norm.quant.rotation != 0) rotate_columns<T>(p, y, i, count, stores, values);
  const int padded = (count + kPadded - 1) / kPadded * kPadded;
  for (int j = count; j < padded; ++j) values[j] = 0.0f;
  clamp_values(values, padded, clamp_of(p.norm.quant));
  return padded;
}

template <class T>
inline void stage_row(const StagesParams& p, const StagesRow& row, const QuantRow& out,
                      uint32_t* amax) {
  const QuantParams& q = p.norm.quant;
  StagedRow<T> work(p, row);
  StagesScratch scratch;
  float(&values)[kQuantChunk] = reinterpret_cast<float(&)[kQuantChunk]>(scratch.values);
  // Statistics alone.
  if (row.row.y == nullptr && row.row.residual_out == nullptr && !q.codes_wanted) {
    for (int64_t g = 0; g * p.norm.n < p.row_columns; ++g) work.enter(g);
    return;
  }
  float inverse = 0.0f;
  if (q.tensor_scale != nullptr) {
    const float scale = load_f32(q.tensor_scale);
    inverse = q.divides ? scale : 1.0f / scale;
  } else if (q.codes_wanted && q.block == 0) {  // the row's scale, from a pass of its own
    uint32_t most = 0;
    for (int64_t i = 0; i < p.row_columns; i += kQuantChunk) {
      const int count = static_cast<int>(smaller(p.row_columns - i, kQuantChunk));
      const int padded = padded_values(p, work, row.row.y, i, count, false, values);
      most = greater(most, magnitude_bits(values, padded));
    }
    inverse = out.put_row_scale(q, most);
  }
  for (int64_t i = 0; i < p.row_columns; i += kQuantChunk) {
    const int count = static_cast<int>(smaller(p.row_columns - i, kQuantChunk));
    const int padded = padded_values(p, work, row.row.y, i, count, true, values);
    if (q.amax != nullptr) *amax = greater(*amax, magnitude_bits(values, padded));
    if (!q.codes_wanted) continue;
    if (q.block == 0 && q.divides) {
      divide_values(values, padded, inverse);
      out.put_codes<false>(q, i, count, values, 1.0f, false);
    } else if (q.block == 0) {
      out.put_codes<true>(q, i, count, values, inverse, false);
    } else {
      out.scale_by_block(q, i, count, padded, values);
      out.put_codes<false>(q, i, count, values, 1.0f, false);
    }
  }
  out.end(q, p.row_columns);
}

// The number of a modulator's row.
inline int64_t modulation_index(const StagesParams& p, const char* at) {
  if (at == nullptr) return 0;
  int64_t wide = 0;
  if (p.wide_index) {
    __builtin_memcpy(&wide, at, sizeof wide);
    return wide;
  }
  int32_t narrow = 0;
  __builtin_memcpy(&narrow, at, sizeof narrow);
  return narrow;
}

template <class T>
inline ModulatorRow modulator_row(const ModulatorParams& p, const char* rows, int64_t index) {
  if (p.type == OperandType::kAbsent) return {nullptr, nullptr, 0.0f};
  const char* const at = rows + index * p.index_stride;
  float value = 0.0f;
  if (p.single) value = lowest(load_typed<Affine::kAny, T>(p.type, at, 0, Some{1}).a);
  return {at, p.table, value};
}

template <class T>
void norm_stages_kernel(const StagesParams& p, int64_t begin, int64_t end) {
  Cursor cursor(p.norm, begin);
  uint32_t amax = 0;
  for (int64_t r = begin; r < end; ++r, cursor.next()) {
    const QuantRow out = {r, cursor.at(p.norm.quant.codes), cursor.at(p.norm.quant.scale)};
    StagesRow row = {cursor.row,
                     cursor.at(p.gate),
                     cursor.at(p.mean_in),
                     cursor.at(p.rstd_in),
                     cursor.at(p.sumsq),
                     {},
                     cursor.at(p.branch_rstd),
                     {0.0f, 0.0f, 0.0f},
                     {},
                     {},
                     {}};
    const int64_t index = modulation_index(p, cursor.at(p.modulation_index));
    row.residual_gate = modulator_row<T>(p.residual_gate, cursor.at(p.residual_gate.rows), index);
    row.scale = modulator_row<T>(p.modulation_scale, cursor.at(p.modulation_scale.rows), index);
    row.shift = modulator_row<T>(p.modulation_shift, cursor.at(p.modulation_shift.rows), index);
    row.branch.weight = cursor.at(p.branch.weight);
    row.branch.bias = cursor.at(p.branch.bias);
    stage_row<T>(p, row, out, &amax);
  }
  if (p.norm.quant.amax != nullptr) raise_amax(p.norm.quant.amax, amax);
}

constexpr StagesKernels kNormStagesOfUnit = {{norm_stages_kernel<F32>, norm_stages_kernel<F32>,
                                              norm_stages_kernel<F16>, norm_stages_kernel<F16>,
                                              norm_stages_kernel<BF16>, norm_stages_kernel<BF16>}};

}  // namespace
}  // namespace fastnorm::cpu
