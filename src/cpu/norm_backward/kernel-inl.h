// The backward kernels of the CPU. The unit of each instruction set instantiates them once.
//
// The first pass reads a row from memory, for the sums c1 and c2 along it. The second pass reads
// the cache, for dx and the partial sums of dweight and dbias. Pairs of vectors and partial sums
// have the layout of x's dtype (simd.h). include/fastnorm/norm_backward.h specifies the arithmetic.
// Every operation is one rounded instruction.
#pragma once

#include "core/norm_backward/rows.h"
#include "cpu/norm/parts-inl.h"
#include "cpu/norm_backward/params.h"
#include "cpu/norm_stages/activations-inl.h"

namespace fastnorm::cpu {
namespace {

// ---- Pairs in the layout of H, x's dtype, from and to memory of any dtype of rows.

template <class H, class From>
FASTNORM_INLINE Pair relayout(H to, From from, Pair v) {
  return to_layout(to, from_layout(from, v));
}
template <class H>
FASTNORM_INLINE Pair relayout(H, H, Pair v) {
  return v;
}

template <class H, class Extent>
FASTNORM_INLINE Pair load_any_inline(H h, Dtype dtype, const char* row, int64_t i, Extent extent) {
  if (dtype == Dtype::kF32) return relayout(h, F32{}, extent.load(F32{}, row + i * F32::kBytes));
  if (dtype == Dtype::kF16) return relayout(h, F16{}, extent.load(F16{}, row + i * F16::kBytes));
  return relayout(h, BF16{}, extent.load(BF16{}, row + i * BF16::kBytes));
}

template <class H, class Extent>
FASTNORM_INLINE void store_any_inline(H h, Dtype dtype, char* row, int64_t i, Pair v,
                                      Extent extent) {
  if (dtype == Dtype::kF32) {
    extent.store(F32{}, row + i * F32::kBytes, relayout(F32{}, h, v), false);
  } else if (dtype == Dtype::kF16) {
    extent.store(F16{}, row + i * F16::kBytes, relayout(F16{}, h, v), false);
  } else {
    extent.store(BF16{}, row + i * BF16::kBytes, relayout(BF16{}, h, v), false);
  }
}

// The end of a row is one pair: a function of its own.
template <class H>
__attribute__((noinline)) Pair load_any(H h, Dtype dtype, const char* row, int64_t i, Some some) {
  return load_any_inline(h, dtype, row, i, some);
}
template <class H>
FASTNORM_INLINE Pair load_any(H h, Dtype dtype, const char* row, int64_t i, Whole whole) {
  return load_any_inline(h, dtype, row, i, whole);
}

template <class H>
__attribute__((noinline)) void store_any(H h, Dtype dtype, char* row, int64_t i, Pair v,
                                         Some some) {
  store_any_inline(h, dtype, row, i, v, some);
}
template <class H>
FASTNORM_INLINE void store_any(H h, Dtype dtype, char* row, int64_t i, Pair v, Whole whole) {
  store_any_inline(h, dtype, row, i, v, whole);
}

FASTNORM_INLINE Pair round_any(Dtype dtype, Pair v) {
  if (dtype == Dtype::kF16) return round_pair(F16{}, v);
  return dtype == Dtype::kBF16 ? round_pair(BF16{}, v) : v;
}

// Whole pairs of a sum, whatever lies in those behind the last column.
FASTNORM_INLINE Pair load_sum(const float* p) {
  return load(F32{}, reinterpret_cast<const char*>(p));
}
FASTNORM_INLINE void store_sum(float* p, Pair v) { store(F32{}, reinterpret_cast<char*>(p), v); }

// ---- Rows and where they are.

// Digits of a row's number.
struct RowDigits {
  FASTNORM_INLINE RowDigits(const NormBackwardParams& p, int64_t row) {
    for (int d = 0; d < kRowDims; ++d) {
      digit[d] = row % p.outer[d];
      row /= p.outer[d];
    }
  }
  FASTNORM_INLINE int64_t offset(const int64_t (&stride_bytes)[kRowDims]) const {
    return digit[0] * stride_bytes[0] + digit[1] * stride_bytes[1] + digit[2] * stride_bytes[2];
  }
  FASTNORM_INLINE char* at(const RowRef& t) const { return t.data + offset(t.stride_bytes); }

  int64_t digit[kRowDims];
};

// The compile-time choices of a plain kernel, see NormBackwardParams.
template <class H_, Stat kStat_>
struct PlainSlots {
  using H = H_;
  static constexpr Stat kStat = kStat_;
  static constexpr bool kPlain = true, kGated = false;
};

// The slots of all other kernels. They serve both kinds: RMS has a mean and a c2 of 0, and v - 0 is
// v.
template <class H_, bool kGated_>
struct AnySlots {
  using H = H_;
  static constexpr Stat kStat = Stat::kLayer;
  static constexpr bool kPlain = false, kGated = kGated_;
};

// True if rows are centred.
template <class Slots>
FASTNORM_INLINE bool is_layer(const NormBackwardParams& p) {
  if constexpr (Slots::kPlain) return Slots::kStat == Stat::kLayer;
  return p.layer;
}

template <class T>
struct DtypeOf;
template <>
struct DtypeOf<F32> {
  static constexpr Dtype kDtype = Dtype::kF32;
};
template <>
struct DtypeOf<F16> {
  static constexpr Dtype kDtype = Dtype::kF16;
};
template <>
struct DtypeOf<BF16> {
  static constexpr Dtype kDtype = Dtype::kBF16;
};

// A row of a forward without a residual.
struct ForwardRow {
  int64_t n;
  float inv_n, eps;
  bool every_step, layer;
  const char* x;
};

// The forward's own statistics.
template <class Forward>
FASTNORM_INLINE Statistics computed_statistics(const ForwardRow& of) {
  NormParams forward = {};
  forward.n = of.n;
  forward.inv_n = of.inv_n;
  forward.eps = of.eps;
  forward.every_step = of.every_step;
  forward.layer = of.layer;
  Row row = {};
  row.x = of.x;
  const Rounding<Forward::kAffine, typename Forward::T> rounding(forward);
  return statistics<Forward>(forward, RowSource<Forward>(forward, row), rounding, Nothing{});
}

// The statistics of a row of any kind.
template <class H>
__attribute__((noinline)) Statistics any_statistics(const ForwardRow& of) {
  return computed_statistics<GeneralSlots<H, Source::kPlain>>(of);
}

FASTNORM_INLINE float load_statistic(const char* p) {
  float f;
  __builtin_memcpy(&f, p, sizeof f);
  return f;
}

// The forward's row, gated before its statistics.
template <class H>
struct GatedSlots : GeneralSlots<H, Source::kPlain> {};

// What a gate's elements do.
struct GateValues {
  Pair factor, slope;  // act(gate) and its derivative
};

// The values of a row that the formulas name.
template <class Slots>
struct BackwardRow {
  using H = typename Slots::H;

  FASTNORM_INLINE BackwardRow(const NormBackwardParams& params, const RowDigits& digits,
                              const char* gradient)
      : p(params),
        dy(gradient),
        x(digits.at(p.x)),
        weight(digits.at(p.weight)),
        gate(Slots::kGated ? digits.at(p.gate) : nullptr),
        offset(broadcast(p.weight_offset)) {}

  FASTNORM_INLINE void set_statistics(const RowDigits& digits) {
    Statistics s = {0.0f, 0.0f, 0.0f};
    if (p.rstd.data == nullptr) {
      s = recomputed();
    } else {
      s.rstd = load_statistic(digits.at(p.rstd));
      if (is_layer<Slots>(p)) s.mean = load_statistic(digits.at(p.mean));
    }
    use(s.mean, s.rstd);
  }

  FASTNORM_INLINE Statistics recomputed() const {
    if constexpr (Slots::kGated) {
      if (p.gate_before) return gated_statistics(*this);
    }
    const ForwardRow forward = {p.n, p.inv_n, p.eps, p.every_step, p.layer, x};
    if constexpr (Slots::kPlain) {
      return computed_statistics<
          cpu::Slots<DtypeOf<H>::kDtype, Source::kPlain, Slots::kStat, Affine::kOnce>>(forward);
    }
    return any_statistics<H>(forward);
  }

  FASTNORM_INLINE void use(float of_mean, float of_rstd) {
    mean = broadcast(of_mean);
    rstd = broadcast(of_rstd);
  }

  // dy, times a gate that comes after the norm.
  template <class Extent>
  FASTNORM_INLINE Pair take_dy(int64_t i, Extent extent) const {
    const Pair v = take_whole_dy(i, extent);
    if constexpr (Slots::kGated) {
      if (!p.gate_before) return multiply(v, take_factor(i, extent));
    }
    return v;
  }

  template <class Extent>
  FASTNORM_INLINE Pair take_whole_dy(int64_t i, Extent extent) const {
    if constexpr (Slots::kPlain) return extent.load(H{}, dy + i * H::kBytes);
    if (p.dy_element_bytes != 0) return load_any(H{}, p.dy_dtype, dy, i, extent);
    const Vec v = broadcast(lowest(load_any(H{}, p.dy_dtype, dy, 0, Some{1}).a));
    return extent.first(H{}, {v, v});
  }

  // 0 behind the last column, where 0 * rstd might be NaN.
  template <class Extent>
  FASTNORM_INLINE Pair take_xhat(int64_t i, Extent extent) const {
    return normalized(take_x(i, extent), extent);
  }
  template <class Extent>
  FASTNORM_INLINE Pair normalized(Pair v, Extent extent) const {
    if constexpr (Slots::kStat == Stat::kLayer) v = {sub(v.a, mean), sub(v.b, mean)};
    return extent.first(H{}, {mul(v.a, rstd), mul(v.b, rstd)});
  }

  // x, times a gate that comes before the norm.
  template <class Extent>
  FASTNORM_INLINE Pair take_x(int64_t i, Extent extent) const {
    const Pair v = extent.load(H{}, x + i * H::kBytes);
    if constexpr (Slots::kGated) {
      if (p.gate_before) return gated(v, take_factor(i, extent));
    }
    return v;
  }

  FASTNORM_INLINE Pair gated(Pair v, Pair factor) const { return step(multiply(v, factor)); }
  FASTNORM_INLINE Pair step(Pair v) const { return p.every_step ? round_any(p.dtype, v) : v; }

  template <class Extent>
  FASTNORM_INLINE Pair take_gate(int64_t i, Extent extent) const {
    return load_any(H{}, p.gate_dtype, gate, i, extent);
  }
  template <class Extent>
  FASTNORM_INLINE Pair take_factor(int64_t i, Extent extent) const {
    return step(activate(p.gate_act, take_gate(i, extent)));
  }
  template <class Extent>
  FASTNORM_INLINE GateValues take_gate_values(int64_t i, Extent extent) const {
    const Pair g = take_gate(i, extent);
    return {step(activate(p.gate_act, g)), activation_slope(p.gate_act, g)};
  }

  // e: dy times the gain.
  template <class Extent>
  FASTNORM_INLINE Pair scaled(Pair v, int64_t i, Extent extent) const {
    return p.weight.data != nullptr ? multiply(v, gain(i, extent)) : v;
  }

  // The factors that the forward multiplies by.
  template <class Extent>
  FASTNORM_INLINE Pair gain(int64_t i, Extent extent) const {
    Pair g;
    if constexpr (Slots::kPlain) {
      g = extent.load(H{}, weight + i * H::kBytes);
    } else {
      g = load_any(H{}, p.weight_dtype, weight, i, extent);
    }
    g = {add(g.a, offset), add(g.b, offset)};
    if constexpr (!Slots::kPlain) {
      if (p.every_step) g = round_any(p.dtype, g);
    }
    return g;
  }

  // xhat as the forward multiplies it by the weight, and dweight by dy.
  FASTNORM_INLINE Pair factor_of(Pair xhat) const {
    if constexpr (Slots::kPlain) return xhat;
    return p.round_xhat ? round_any(p.dtype, xhat) : xhat;
  }

  // What a gate after the norm multiplies.
  template <class Extent>
  FASTNORM_INLINE Pair result(Pair xhat, const char* bias, int64_t i, Extent extent) const {
    Pair z = factor_of(xhat);
    if (p.bias.data == nullptr) {
      z = scaled(z, i, extent);
    } else {
      const Pair b = load_any(H{}, p.bias_dtype, bias, i, extent);
      const Vec one = broadcast(1.0f);
      const Pair g = p.weight.data != nullptr ? gain(i, extent) : Pair{one, one};
      z = {fused(z.a, g.a, b.a), fused(z.b, g.b, b.b)};
    }
    return p.round_result ? round_any(p.dtype, z) : z;
  }

  const NormBackwardParams& p;
  const char* const dy;
  const char* const x;
  const char* const weight;
  const char* const gate;
  const Vec offset;
  Vec mean, rstd;
};

template <class H>
struct RowSource<GatedSlots<H>> {
  template <class Extent>
  __attribute__((noinline)) Pair take(int64_t i, Extent extent) const {
    return row.take_x(i, extent);
  }

  const BackwardRow<AnySlots<H, true>>& row;
};

template <class H>
__attribute__((noinline)) Statistics gated_statistics(const BackwardRow<AnySlots<H, true>>& row) {
  using Forward = GatedSlots<H>;
  NormParams forward = {};
  forward.n = row.p.n;
  forward.inv_n = row.p.inv_n;
  forward.eps = row.p.eps;
  forward.every_step = row.p.every_step;
  forward.layer = row.p.layer;
  const Rounding<Affine::kAny, H> rounding(forward);
  return statistics<Forward>(forward, RowSource<Forward>{row}, rounding, Nothing{});
}

// ---- Sums along a row.

// What sums take. A sum has a copy of it for each of its accumulators. So what is long and not the
// plain kernels' is a function of its own: the end of a row, and all that gates change.
template <class Slots, class Extent>
inline constexpr bool kApart = !Slots::kPlain && (Slots::kGated || Extent::kEnd);

template <class Slots, class Extent>
FASTNORM_INLINE Pair take_e(const BackwardRow<Slots>& row, int64_t i, Extent extent) {
  return row.scaled(row.take_dy(i, extent), i, extent);
}
template <class Slots, class Extent>
requires kApart<Slots, Extent>
__attribute__((noinline)) Pair take_e(const BackwardRow<Slots>& row, int64_t i, Extent extent) {
  return row.scaled(row.take_dy(i, extent), i, extent);
}

template <class Slots, class Extent>
FASTNORM_INLINE Pair take_xhat(const BackwardRow<Slots>& row, int64_t i, Extent extent) {
  return row.take_xhat(i, extent);
}
template <class Slots, class Extent>
requires kApart<Slots, Extent>
__attribute__((noinline)) Pair take_xhat(const BackwardRow<Slots>& row, int64_t i, Extent extent) {
  return row.take_xhat(i, extent);
}

template <class Slots>
struct ProductTerm {  // e * xhat
  const BackwardRow<Slots>& row;

  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t i, Extent extent, Sums& sums, int pair) const {
    Vec &a = sums.value[2 * pair], &b = sums.value[2 * pair + 1];
    const Pair e = take_e(row, i, extent), xhat = take_xhat(row, i, extent);
    a = fused(e.a, xhat.a, a);
    b = fused(e.b, xhat.b, b);
  }
};

template <class Slots>
struct GradientTerm {  // e
  const BackwardRow<Slots>& row;

  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t i, Extent extent, Sums& sums, int pair) const {
    Vec &a = sums.value[2 * pair], &b = sums.value[2 * pair + 1];
    const Pair e = take_e(row, i, extent);
    a = add(a, e.a);
    b = add(b, e.b);
  }
};

// ---- What is stored.

// Adds a row to the sums of its lane.
template <class Slots>
struct AddToSums {
  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t i, Pair dy, Pair xhat, Extent) const {
    if (dweight != nullptr) {
      Pair v = xhat;
      if constexpr (!Slots::kPlain) {
        if (p.round_xhat) v = round_any(p.dtype, v);
      }
      const Pair sum = load_sum(dweight + i);
      store_sum(dweight + i, {fused(dy.a, v.a, sum.a), fused(dy.b, v.b, sum.b)});
    }
    if (dbias != nullptr) {
      const Pair sum = load_sum(dbias + i);
      store_sum(dbias + i, {add(sum.a, dy.a), add(sum.b, dy.b)});
    }
  }

  const NormBackwardParams& p;
  float* const dweight;  // of the lane; nullptr = not wanted
  float* const dbias;
};

// c1, and of LAYER c2, of a row.
struct RowMeans {
  float c1, c2;
};

template <class Slots>
FASTNORM_INLINE RowMeans means_of(const BackwardRow<Slots>& row) {
  using H = typename Slots::H;
  const float inv_n = row.p.inv_n;
  RowMeans means = {reduce_row<H>(row.p.n, ProductTerm<Slots>{row}, Nothing{}) * inv_n, 0.0f};
  if (is_layer<Slots>(row.p))
    means.c2 = reduce_row<H>(row.p.n, GradientTerm<Slots>{row}, Nothing{}) * inv_n;
  return means;
}

// dx and dresidual of a row, whose c1 and c2 are known.
template <class Slots>
struct StoreGradient {
  using H = typename Slots::H;

  FASTNORM_INLINE StoreGradient(const BackwardRow<Slots>& of_row, const RowDigits& digits,
                                RowMeans means)
      : row(of_row),
        dresidual_in(digits.at(row.p.dresidual_in)),
        dx(digits.at(row.p.dx)),
        dresidual(digits.at(row.p.dresidual)),
        minus_c1(broadcast(-means.c1)),
        c2(broadcast(means.c2)) {}

  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t i, Pair dy, Pair xhat, Extent extent) const {
    store(i, gradient(i, dy, xhat, extent), extent);
  }

  // dh.
  template <class Extent>
  FASTNORM_INLINE Pair gradient(int64_t i, Pair dy, Pair xhat, Extent extent) const {
    const NormBackwardParams& p = row.p;
    Pair m = row.scaled(dy, i, extent);
    if constexpr (Slots::kStat == Stat::kLayer) m = {sub(m.a, c2), sub(m.b, c2)};
    m = {fused(xhat.a, minus_c1, m.a), fused(xhat.b, minus_c1, m.b)};
    if (p.dresidual_in.data == nullptr) return {mul(m.a, row.rstd), mul(m.b, row.rstd)};
    const Pair r = load_any(H{}, p.dresidual_in_dtype, dresidual_in, i, extent);
    return {fused(m.a, row.rstd, r.a), fused(m.b, row.rstd, r.b)};
  }

  template <class Extent>
  FASTNORM_INLINE void store(int64_t i, Pair dh, Extent extent) const {
    const NormBackwardParams& p = row.p;
    if constexpr (Slots::kPlain) {
      extent.store(H{}, dx + i * H::kBytes, dh, false);
    } else {
      store_any(H{}, p.dx_dtype, dx, i, dh, extent);
    }
    if (p.dresidual.data != nullptr) store_any(H{}, p.dresidual_dtype, dresidual, i, dh, extent);
  }

  const BackwardRow<Slots>& row;
  const char* const dresidual_in;
  char* const dx;
  char* const dresidual;
  const Vec minus_c1, c2;
};

// Stores dx and dgate of a row with a gate.
template <class Slots>
struct StoreGated {
  using H = typename Slots::H;

  FASTNORM_INLINE StoreGated(const BackwardRow<Slots>& of_row, const RowDigits& digits)
      : row(of_row),
        wanted(row.p.dx.data != nullptr || row.p.dgate.data != nullptr),
        of_row(of_row, digits, wanted ? means_of(of_row) : RowMeans{0.0f, 0.0f}),
        bias(digits.at(row.p.bias)),
        dgate(digits.at(row.p.dgate)) {}

  // dy is not multiplied by the gate, nor is x.
  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t i, Pair dy, Pair x, Pair xhat, const GateValues& gate,
                                  Extent extent) const {
    if (!wanted) return;
    const NormBackwardParams& p = row.p;
    const Pair v = p.gate_before ? dy : multiply(dy, gate.factor);
    const Pair dh = of_row.gradient(i, v, xhat, extent);
    Pair of_gate = {zero(), zero()};
    if (p.dgate.data != nullptr) {
      of_gate = p.gate_before ? multiply(dh, x) : multiply(dy, row.result(xhat, bias, i, extent));
      of_gate = multiply(of_gate, gate.slope);
    }
    if (p.dx.data != nullptr)
      of_row.store(i, p.gate_before ? multiply(dh, gate.factor) : dh, extent);
    if (p.dgate.data != nullptr) store_any(H{}, p.dgate_dtype, dgate, i, of_gate, extent);
  }

  const BackwardRow<Slots>& row;
  const bool wanted;
  const StoreGradient<Slots> of_row;
  const char* const bias;
  char* const dgate;
};

struct NoGradient {
  template <class Extent>
  FASTNORM_INLINE void operator()(int64_t, Pair, Pair, Extent) const {}
};

// A row's last pass. Each pair is read before anything of it is stored, which may be in its place.
template <class Slots, class Gradient, class Sums>
FASTNORM_INLINE void last_pass(const BackwardRow<Slots>& row, bool needs_x,
                               const Gradient& gradient, const Sums& sums) {
  const auto step = [&](int64_t i, auto extent) __attribute__((always_inline)) {
    const Pair dy = row.take_dy(i, extent);
    const Pair xhat = needs_x ? row.take_xhat(i, extent) : Pair{zero(), zero()};
    sums(i, dy, xhat, extent);
    gradient(i, dy, xhat, extent);
  };
  const int64_t n = row.p.n;
  int64_t i = 0;
  for (; i + kPairElements <= n; i += kPairElements) step(i, Whole{});
  if (i < n) step(i, Some{static_cast<int>(n - i)});
}

// The last pass of a row with a gate.
template <class Slots, class Sums>
FASTNORM_INLINE void last_gated_pass(const BackwardRow<Slots>& row,
                                     const StoreGated<Slots>& gradient, const Sums& sums) {
  using H = typename Slots::H;
  const bool before = row.p.gate_before;
  const auto step = [&](int64_t i, auto extent) __attribute__((always_inline)) {
    const GateValues gate = row.take_gate_values(i, extent);
    const Pair dy = row.take_whole_dy(i, extent);
    const Pair x = extent.load(H{}, row.x + i * H::kBytes);
    const Pair xhat = row.normalized(before ? row.gated(x, gate.factor) : x, extent);
    sums(i, before ? dy : multiply(dy, gate.factor), xhat, extent);
    gradient(i, dy, x, xhat, gate, extent);
  };
  const int64_t n = row.p.n;
  int64_t i = 0;
  for (; i + kPairElements <= n; i += kPairElements) step(i, Whole{});
  if (i < n) step(i, Some{static_cast<int>(n - i)});
}

template <class Slots>
__attribute__((noinline)) void backward_row(const NormBackwardParams& p, int64_t number,
                                            const AddToSums<Slots>& sums) {
  const RowDigits digits(p, number);
  BackwardRow<Slots> row(p, digits, digits.at(p.dy));
  if constexpr (Slots::kGated) {
    row.set_statistics(digits);
    last_gated_pass(row, StoreGated<Slots>(row, digits), sums);
  } else if (p.dx.data != nullptr) {
    row.set_statistics(digits);
    last_pass(row, true, StoreGradient<Slots>(row, digits, means_of(row)), sums);
  } else {
    const bool needs_x = p.dweight.data != nullptr;
    if (needs_x) row.set_statistics(digits);
    last_pass(row, needs_x, NoGradient{}, sums);
  }
}

template <class Slots>
void backward_rows(const NormBackwardParams& p, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) backward_row<Slots>(p, r, {p, nullptr, nullptr});
}

// ---- Partial sums of a block of rows.

// Lanes of more than one are kept here, as many columns as they have together.
inline constexpr int64_t kLaneFloats = kBackwardLaneColumns;

struct Lanes {
  alignas(64) float at[kLaneFloats];
};

FASTNORM_INLINE void clear(float* sums, int64_t count) {
  for (int64_t i = 0; i < count; i += kPairElements) store_sum(sums + i, {zero(), zero()});
}

// Folds the lanes and puts their sum into `result`.
FASTNORM_INLINE void fold_lanes(float* lane, int64_t lanes, int64_t stride, float* result) {
  int64_t half = 1;
  while (half < lanes) half *= 2;
  for (int64_t count = lanes; half > 1; count = smaller(count, half)) {
    half /= 2;
    for (int64_t i = 0; i < (count - half) * stride; i += kPairElements) {
      const Pair a = load_sum(lane + i), b = load_sum(lane + half * stride + i);
      store_sum(lane + i, {add(a.a, b.a), add(a.b, b.b)});
    }
  }
  for (int64_t i = 0; i < stride; i += kPairElements) store_sum(result + i, load_sum(lane + i));
}

// Calls add_row(number, sums) for the rows of a block, in their order. sums[k] is where a lane has
// what becomes of[k], nullptr where that is not wanted.
template <int kSums, class AddRow>
FASTNORM_INLINE void add_block(const NormBackwardParams& p, int64_t unit,
                               const SumRef* const (&of)[kSums], const AddRow& add_row) {
  const int64_t first = unit / p.blocks * p.shared_rows, block = unit % p.blocks;
  // Lanes without rows have +0. Without them in the fold, a sum of -0 stays one, until the fold of
  // the blocks adds +0.
  const int64_t used = smaller(p.lanes, p.shared_rows - block * p.lanes);
  const int64_t stride = (p.n + kPairElements - 1) / kPairElements * kPairElements;
  Lanes lanes[kSums];
  float *partial[kSums], *sums[kSums];
  for (int s = 0; s < kSums; ++s) {
    partial[s] = of[s]->data != nullptr ? of[s]->partial + unit * p.partial_stride : nullptr;
    sums[s] = partial[s] == nullptr || used == 1 ? partial[s] : lanes[s].at;
    if (sums[s] != nullptr) clear(sums[s], used * stride);
  }
  for (int64_t i = block * p.lanes; i < p.shared_rows; i += p.lanes * p.blocks) {
    const int64_t count = smaller(p.lanes, p.shared_rows - i);
    for (int64_t q = 0; q < count; ++q) {
      float* of_lane[kSums];
      for (int s = 0; s < kSums; ++s)
        of_lane[s] = sums[s] != nullptr ? sums[s] + q * stride : nullptr;
      add_row(first + i + q, of_lane);
    }
  }
  for (int s = 0; s < kSums; ++s) {
    if (sums[s] != partial[s]) fold_lanes(sums[s], used, stride, partial[s]);
  }
}

// Calls add_row(number, Add) for the rows of a block.
template <class Add, class AddRow>
FASTNORM_INLINE void backward_block(const NormBackwardParams& p, int64_t unit,
                                    const AddRow& add_row) {
  const SumRef* const of[] = {&p.dweight, &p.dbias};
  add_block(
      p, unit, of, [&](int64_t row, float* const* sums) __attribute__((always_inline)) {
        add_row(row, Add{p, sums[0], sums[1]});
      });
}

template <class Slots>
void backward_blocks(const NormBackwardParams& p, int64_t begin, int64_t end) {
  const auto add_row = [&](int64_t row, const AddToSums<Slots>& sums)
      __attribute__((always_inline)) {
    backward_row<Slots>(p, row, sums);
  };
  for (int64_t unit = begin; unit < end; ++unit) backward_block<AddToSums<Slots>>(p, unit, add_row);
}

// ---- From the blocks' sums to dweight and dbias.

inline constexpr int64_t kMostBlocks = 128;

// Folds one pair of columns of the blocks from `partial` on.
FASTNORM_INLINE Pair fold_blocks(const float* partial, int64_t blocks, int64_t stride) {
  Pair v[kMostBlocks];
  int64_t half = 1;
  for (int64_t b = 0; b < blocks; ++b) v[b] = load_sum(partial + b * stride);
  while (half < blocks) half *= 2;
  for (int64_t count = blocks; half > 1; count = smaller(count, half)) {
    half /= 2;
    for (int64_t b = half; b < count; ++b)
      v[b - half] = {add(v[b - half].a, v[b].a), add(v[b - half].b, v[b].b)};
  }
  return blocks == 0 ? Pair{zero(), zero()} : Pair{add(v[0].a, zero()), add(v[0].b, zero())};
}

template <class H>
FASTNORM_INLINE void fold_columns(const NormBackwardParams& p, const SumRef& sum, int64_t group,
                                  int64_t begin, int64_t end) {
  const RowDigits digits(p, group * p.group_step);
  char* const data = sum.data + digits.offset(sum.stride_bytes);
  const float* const partial = sum.partial + group * p.blocks * p.partial_stride;
  // Without rows there is no gate.
  const RowRef& residual_gate = p.branch.residual_gate;
  const bool has_slope = &sum == &p.branch.dresidual_gate && residual_gate.data != nullptr;
  const char* const gate = has_slope ? digits.at(residual_gate) : nullptr;
  const auto step = [&](int64_t i, auto extent) __attribute__((always_inline)) {
    // Without rows there are no blocks, and no partial sums.
    Pair v = fold_blocks(p.blocks != 0 ? partial + i : nullptr, p.blocks, p.partial_stride);
    if (gate != nullptr) {
      const Pair slope = activation_slope(
          p.branch.act, load_any(H{}, p.branch.residual_gate_dtype, gate, i, extent));
      const Vec alpha = broadcast(p.branch.alpha);
      v = multiply(v, multiply(slope, {alpha, alpha}));
      v = {add(v.a, zero()), add(v.b, zero())};
    }
    if (sum.accumulate) {
      const Pair old = load_any(H{}, sum.dtype, data, i, extent);
      v = {add(old.a, v.a), add(old.b, v.b)};
    }
    store_any(H{}, sum.dtype, data, i, v, extent);
  };
  int64_t i = begin;
  for (; i + kPairElements <= end; i += kPairElements) step(i, Whole{});
  if (i < end) step(i, Some{static_cast<int>(end - i)});
}

template <class H>
void fold_blocks_range(const NormBackwardParams& p, int64_t begin, int64_t end) {
  const int64_t chunks = (p.n + kFoldColumns - 1) / kFoldColumns;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t first = unit % chunks * kFoldColumns, last = smaller(first + kFoldColumns, p.n);
    const BranchParams& b = p.branch;
    for (const SumRef* sum : {&p.dweight, &p.dbias, &b.dweight, &b.dbias, &b.dresidual_gate}) {
      if (sum->data != nullptr) fold_columns<H>(p, *sum, unit / chunks, first, last);
    }
  }
}

}  // namespace
}  // namespace fastnorm::cpu
