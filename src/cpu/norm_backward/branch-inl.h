// Backward rows with a branch: x is the sum of a residual and a branch. The branch may have a norm
// of its own.
//
// What the formulas need of x's row comes from one function, in the order of the columns: dy, the
// normalised x and r. Each pass calls it again. So the branch's arithmetic is compiled once for
// each dtype that orders sums along a row of the branch, whatever x's dtype is.
#pragma once

#include "cpu/norm_backward/kernel-inl.h"

namespace fastnorm::cpu {
namespace {

// Elements of x's row.
struct MainValues {
  Pair dy, xhat, r;  // xhat as dweight multiplies it
};

// A row of x, whatever its dtype and kind. take() sets what lies behind the last column to 0.
struct MainRow {
  FASTNORM_INLINE MainValues at(int64_t i, int count) const {
    MainValues v;
    take(row, i, count, &v);
    return v;
  }

  const void* row;
  void (*take)(const void* row, int64_t i, int count, MainValues* v);
};

template <class Slots>
struct MainRowOf {
  using H = typename Slots::H;

  FASTNORM_INLINE MainRowOf(const BackwardRow<Slots>& of_row, const RowDigits& digits)
      : row(of_row),
        gradient(of_row, digits, means_of(of_row)),
        scale(broadcast(row.p.branch.sum_scale != nullptr ? load_statistic(row.p.branch.sum_scale)
                                                          : 1.0f)) {}

  static void take(const void* self, int64_t i, int count, MainValues* v) {
    const auto& of = *static_cast<const MainRowOf*>(self);
    count == kPairElements ? of.take(i, Whole{}, v) : of.take(i, Some{count}, v);
  }
  template <class Extent>
  FASTNORM_INLINE void take(int64_t i, Extent extent, MainValues* v) const {
    const Pair dy = row.take_dy(i, extent), xhat = row.take_xhat(i, extent);
    const Pair dh = gradient.gradient(i, dy, xhat, extent);
    const Pair r = extent.first(H{}, {mul(dh.a, scale), mul(dh.b, scale)});
    *v = {relayout(F32{}, H{}, dy), relayout(F32{}, H{}, row.factor_of(xhat)),
          relayout(F32{}, H{}, r)};
  }

  const BackwardRow<Slots>& row;
  const StoreGradient<Slots> gradient;
  const Vec scale;
};

// A row of the branch, and of what it is multiplied by.
struct BranchRow {
  FASTNORM_INLINE BranchRow(const NormBackwardParams& params, const RowDigits& digits)
      : p(params),
        b(params.branch),
        branch(digits.at(b.branch)),
        weight(digits.at(b.weight)),
        bias(digits.at(b.bias)),
        gate(digits.at(b.residual_gate)),
        alpha(broadcast(b.alpha)),
        offset(broadcast(b.weight_offset)) {}

  // k.
  template <class Extent>
  FASTNORM_INLINE Pair take_factor(int64_t i, Extent extent) const {
    if (b.residual_gate.data == nullptr) return {alpha, alpha};
    return multiply(activate(b.act, load_any(F32{}, b.residual_gate_dtype, gate, i, extent)),
                    {alpha, alpha});
  }

  template <class Extent>
  FASTNORM_INLINE Pair take_branch(int64_t i, Extent extent) const {
    return load_any(F32{}, p.dtype, branch, i, extent);
  }

  template <class Extent>
  FASTNORM_INLINE Pair take_xhat(int64_t i, Extent extent) const {
    const Pair v = take_branch(i, extent);
    return extent.first(F32{}, {mul(sub(v.a, mean), rstd), mul(sub(v.b, mean), rstd)});
  }

  template <class Extent>
  FASTNORM_INLINE Pair take_gain(int64_t i, Extent extent) const {
    const Vec one = broadcast(1.0f);
    if (b.weight.data == nullptr) return {one, one};
    Pair g = load_any(F32{}, b.weight_dtype, weight, i, extent);
    g = {add(g.a, offset), add(g.b, offset)};
    return b.every_step ? round_any(p.dtype, g) : g;
  }

  // xhat as dbranch_weight multiplies it.
  FASTNORM_INLINE Pair factor_of(Pair xhat) const {
    return b.round_xhat ? round_any(p.dtype, xhat) : xhat;
  }

  // u: what the forward added.
  template <class Extent>
  FASTNORM_INLINE Pair result(Pair xhat, int64_t i, Extent extent) const {
    const Pair t = factor_of(xhat), g = take_gain(i, extent);
    Pair u = multiply(t, g);
    if (b.bias.data != nullptr) {
      const Pair add = load_any(F32{}, b.bias_dtype, bias, i, extent);
      u = {fused(t.a, g.a, add.a), fused(t.b, g.b, add.b)};
    }
    return b.round_result ? round_any(p.dtype, u) : u;
  }

  FASTNORM_INLINE void use(Statistics s) {
    mean = broadcast(b.layer ? s.mean : 0.0f);  // v - 0 is v
    rstd = broadcast(s.rstd);
  }

  const NormBackwardParams& p;
  const BranchParams& b;
  const char* const branch;
  const char* const weight;
  const char* const bias;
  const char* const gate;
  const Vec alpha, offset;
  Vec mean, rstd;
};

FASTNORM_INLINE Statistics statistics_of_branch(const BranchRow& row) {
  const ForwardRow forward = {row.p.n,          row.p.inv_n, row.b.eps,
                              row.b.every_step, row.b.layer, row.branch};
  switch (row.p.dtype) {
    case Dtype::kF16:
      return any_statistics<F16>(forward);
    case Dtype::kBF16:
      return any_statistics<BF16>(forward);
    default:
      return any_statistics<F32>(forward);
  }
}

FASTNORM_INLINE void set_statistics(BranchRow* row, const RowDigits& digits) {
  const BranchParams& b = row->b;
  if (b.rstd.data == nullptr) return row->use(statistics_of_branch(*row));
  row->use({b.layer ? load_statistic(digits.at(b.mean)) : 0.0f, load_statistic(digits.at(b.rstd)),
            0.0f});
}

// e and the normalised branch, in the order of the columns.
struct BranchTerms {
  Pair e, xhat;
};

__attribute__((noinline, unused)) void take_terms(const MainRow& main, const BranchRow& row,
                                                  int64_t i, int count, BranchTerms* terms) {
  const auto take = [&](auto extent) __attribute__((always_inline)) {
    const Pair du = multiply(main.at(i, extent.count).r, row.take_factor(i, extent));
    *terms = {multiply(du, row.take_gain(i, extent)), row.take_xhat(i, extent)};
  };
  count == kPairElements ? take(Whole{}) : take(Some{count});
}

// c1, and of LAYER c2, of a row of the branch. Sums have the order of T, its dtype.
template <class T>
__attribute__((noinline)) RowMeans means_of_branch(const MainRow& main, const BranchRow& row) {
  const float inv_n = row.p.inv_n;
  const auto product = [&](int64_t i, auto extent, Sums& sums, int pair)
      __attribute__((always_inline)) {
    BranchTerms t;
    take_terms(main, row, i, extent.count, &t);
    const Pair e = to_layout(T{}, t.e), xhat = to_layout(T{}, t.xhat);
    Vec &a = sums.value[2 * pair], &b = sums.value[2 * pair + 1];
    a = fused(e.a, xhat.a, a);
    b = fused(e.b, xhat.b, b);
  };
  const auto gradient = [&](int64_t i, auto extent, Sums& sums, int pair)
      __attribute__((always_inline)) {
    BranchTerms t;
    take_terms(main, row, i, extent.count, &t);
    const Pair e = to_layout(T{}, t.e);
    Vec &a = sums.value[2 * pair], &b = sums.value[2 * pair + 1];
    a = add(a, e.a);
    b = add(b, e.b);
  };
  RowMeans means = {reduce_row<T>(row.p.n, product, Nothing{}) * inv_n, 0.0f};
  if (row.b.layer) means.c2 = reduce_row<T>(row.p.n, gradient, Nothing{}) * inv_n;
  return means;
}

FASTNORM_INLINE RowMeans means_of(const MainRow& main, const BranchRow& row) {
  switch (row.p.dtype) {
    case Dtype::kF16:
      return means_of_branch<F16>(main, row);
    case Dtype::kBF16:
      return means_of_branch<BF16>(main, row);
    default:
      return means_of_branch<F32>(main, row);
  }
}

// The sums of a lane; nullptr = not wanted.
struct BranchSums {
  float *dweight, *dbias, *branch_dweight, *branch_dbias, *residual_gate;
};

FASTNORM_INLINE void add_product(float* sum, int64_t i, Pair a, Pair b) {
  if (sum == nullptr) return;
  const Pair old = load_sum(sum + i);
  store_sum(sum + i, {fused(a.a, b.a, old.a), fused(a.b, b.b, old.b)});
}
FASTNORM_INLINE void add_value(float* sum, int64_t i, Pair a) {
  if (sum == nullptr) return;
  const Pair old = load_sum(sum + i);
  store_sum(sum + i, {add(old.a, a.a), add(old.b, a.b)});
}

// The last pass. All of a pair is read before anything of it is stored, which may be in its place.
FASTNORM_INLINE void last_branch_pass(const MainRow& main, const BranchRow& row,
                                      const RowDigits& digits, RowMeans means,
                                      const BranchSums& sums) {
  const NormBackwardParams& p = row.p;
  const BranchParams& b = p.branch;
  char *const dx = digits.at(p.dx), *const dresidual = digits.at(p.dresidual),
              *const dbranch = digits.at(b.dbranch);
  const Vec minus_c1 = broadcast(-means.c1), c2 = broadcast(means.c2);
  const auto step = [&](int64_t i, auto extent) __attribute__((always_inline)) {
    const MainValues v = main.at(i, extent.count);
    const Pair du = multiply(v.r, row.take_factor(i, extent));
    Pair xhat = {zero(), zero()}, of_branch = du;
    if (b.normalise) xhat = row.take_xhat(i, extent);
    if (dbranch != nullptr && b.normalise) {
      Pair m = multiply(du, row.take_gain(i, extent));
      m = {sub(m.a, c2), sub(m.b, c2)};
      m = {fused(xhat.a, minus_c1, m.a), fused(xhat.b, minus_c1, m.b)};
      of_branch = {mul(m.a, row.rstd), mul(m.b, row.rstd)};
    }
    add_product(sums.dweight, i, v.dy, v.xhat);
    add_value(sums.dbias, i, v.dy);
    add_product(sums.branch_dweight, i, du, row.factor_of(xhat));
    add_value(sums.branch_dbias, i, du);
    if (sums.residual_gate != nullptr) {
      add_product(sums.residual_gate, i, v.r,
                  b.normalise ? row.result(xhat, i, extent) : row.take_branch(i, extent));
    }
    if (dx != nullptr) store_any(F32{}, p.dx_dtype, dx, i, v.r, extent);
    if (dresidual != nullptr) store_any(F32{}, p.dresidual_dtype, dresidual, i, v.r, extent);
    if (dbranch != nullptr) store_any(F32{}, p.dtype, dbranch, i, of_branch, extent);
  };
  int64_t i = 0;
  for (; i + kPairElements <= p.n; i += kPairElements) step(i, Whole{});
  if (i < p.n) step(i, Some{static_cast<int>(p.n - i)});
}

__attribute__((noinline, unused)) void branch_row(const NormBackwardParams& p,
                                                  const RowDigits& digits, const MainRow& main,
                                                  const BranchSums& sums) {
  BranchRow row(p, digits);
  RowMeans means = {0.0f, 0.0f};
  if (p.branch.normalise) {
    set_statistics(&row, digits);
    if (p.branch.dbranch.data != nullptr) means = means_of(main, row);
  }
  last_branch_pass(main, row, digits, means, sums);
}

template <class Slots>
__attribute__((noinline)) void backward_branch_row(const NormBackwardParams& p, int64_t number,
                                                   const BranchSums& sums) {
  const RowDigits digits(p, number);
  BackwardRow<Slots> row(p, digits, digits.at(p.dy));
  row.set_statistics(digits);
  const MainRowOf<Slots> main(row, digits);
  branch_row(p, digits, {&main, MainRowOf<Slots>::take}, sums);
}

template <class H>
void branch_rows(const NormBackwardParams& p, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) backward_branch_row<AnySlots<H, false>>(p, r, {});
}

template <class H>
void branch_blocks(const NormBackwardParams& p, int64_t begin, int64_t end) {
  const BranchParams& b = p.branch;
  const SumRef* const of[] = {&p.dweight, &p.dbias, &b.dweight, &b.dbias, &b.dresidual_gate};
  for (int64_t unit = begin; unit < end; ++unit) {
    add_block(
        p, unit, of, [&](int64_t row, float* const* sums) __attribute__((always_inline)) {
          backward_branch_row<AnySlots<H, false>>(p, row,
                                                  {sums[0], sums[1], sums[2], sums[3], sums[4]});
        });
  }
}

}  // namespace
}  // namespace fastnorm::cpu
