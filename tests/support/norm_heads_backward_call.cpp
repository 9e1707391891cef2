#include "support/norm_heads_backward_call.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "fastnorm/norm_heads_backward.h"
#include "ref/norm_backward_ref.h"
#include "ref/norm_heads_backward_ref.h"
#include "support/call_model.h"
#include "support/norm_heads_call.h"
#include "support/quant_call.h"

namespace fastnorm::support {

using ref::Type;
using Shape = std::vector<int64_t>;
using Part = fastnorm_norm_heads_backward_part;

namespace {

// ---- Drawing.

class GradientsDrawer {
 public:
  GradientsDrawer(uint64_t seed, GradientCallKind kind, bool gpu)
      : line_("norm_heads_backward", seed, gpu), random_(seed + 0x5eed), kind_(kind) {}

  std::string draw();

 private:
  enum class DxPlace { kNone, kOwn, kDy, kX };
  struct DrawnPart {
    std::string name;  // parts[i].
    int64_t heads = 1, n = 1;
    uint32_t flags = 0;
    DxPlace dx = DxPlace::kOwn;
  };

  bool plain() const { return kind_ == GradientCallKind::kPlain; }
  bool many() const { return kind_ == GradientCallKind::kMany; }
  bool wide() const { return kind_ >= GradientCallKind::kAlignedWide; }
  bool aligned() const { return kind_ >= GradientCallKind::kAligned; }
  int64_t shift() { return random_.one_in(4) ? random_.below(8) : 0; }
  Type or_f32(bool f32) const { return f32 ? Type::kF32 : type_; }

  void draw_part(int64_t number);
  int64_t columns_of_part();
  void draw_rows(const std::string& path, const DrawnPart& p, Type type);
  void draw_columns(const std::string& path, bool each, const DrawnPart& p, Type type);
  void draw_dy(DrawnPart& p);
  void draw_norm(DrawnPart& p);
  void draw_rope(DrawnPart& p);

  LineWriter line_;
  ref::Random random_;
  const GradientCallKind kind_;
  Type type_ = Type::kF32;
  int64_t tokens_ = 0, rope_dim_ = 0, table_heads_ = 0;
  int64_t width_ = 0;  // aligned(): the power of two that columns round up to
  bool ropes_ = false;
};

std::string GradientsDrawer::draw() {
  type_ = ref::kTypes[random_.below(3)];
  tokens_ = many() ? 300 + random_.below(300) : random_.below(9);
  const int64_t dims[] = {0, 2, 6, 16, 24, 64, 128, 130};
  rope_dim_ = random_.of(dims);
  table_heads_ = random_.one_in(4) ? 1 + random_.below(3) : 0;
  if (aligned()) {
    const int64_t whole[] = {0, 16, 32, 64, 128}, widths[] = {64, 128, 256, 512};
    if (type_ == Type::kF32) type_ = Type::kBF16;
    tokens_ = kind_ == GradientCallKind::kAligned       ? random_.below(40)
              : kind_ == GradientCallKind::kAlignedWide ? 1 + random_.below(5)
                                                        : 1100;
    rope_dim_ = random_.of(whole);
    width_ = random_.of(widths);
    if (kind_ == GradientCallKind::kAlignedWideMany) tokens_ = 2100, width_ = 256;
  }
  const int64_t count = kind_ == GradientCallKind::kAlignedMany       ? 2
                        : kind_ == GradientCallKind::kAlignedWideMany ? 1
                        : random_.one_in(16)                          ? 8
                                                                      : 1 + random_.below(4);
  for (int64_t i = 0; i < count; ++i) draw_part(i);
  if (ropes_)
    draw_tables(random_, line_,
                {type_, tokens_, rope_dim_, table_heads_, aligned(), many() || aligned()});
  return line_.line();
}

int64_t GradientsDrawer::columns_of_part() {
  const int64_t columns[] = {1, 2, 8, 17, 32, 48, 64, 96, 128, 130, 192, 256, 512, 576, 1100, 2056};
  const int64_t few[] = {8, 17, 64, 128, 130, 256};
  if (aligned()) return random_.one_in(2) ? width_ : width_ - 8 * random_.below(width_ / 16);
  return many() ? random_.of(few) : random_.of(columns);
}

void GradientsDrawer::draw_rows(const std::string& path, const DrawnPart& p, Type type) {
  const int64_t gap = random_.below(3);
  line_.tensor(path, id_of(type), {tokens_, p.heads, p.n}, aligned() ? 8 * gap : gap,
               aligned() ? 0 : shift());
}

// With a row for each head, or without.
void GradientsDrawer::draw_columns(const std::string& path, bool each, const DrawnPart& p,
                                   Type type) {
  line_.tensor(path, id_of(type), each ? Shape{p.heads, p.n} : Shape{p.n},
               each ? random_.below(2) : 0, shift());
}

void GradientsDrawer::draw_part(int64_t number) {
  DrawnPart p;
  p.name = "parts[" + std::to_string(number) + "].";
  p.n = columns_of_part();
  p.heads = table_heads_ != 0 ? table_heads_ : 1 + random_.below(4);
  if (kind_ == GradientCallKind::kAlignedMany && table_heads_ == 0) p.heads = 4;
  if (kind_ == GradientCallKind::kAlignedWideMany) {
    if (table_heads_ == 0) p.heads = 2;
  } else if (wide() && table_heads_ == 0) {
    p.heads = 1 + random_.below(8192 / width_);
  }
  draw_dy(p);
  if (plain() || wide() || !random_.one_in(4)) draw_norm(p);
  if (!plain() && rope_dim_ <= p.n && random_.one_in(2)) draw_rope(p);
  const std::string dx = p.name + "dx";
  if (p.dx == DxPlace::kOwn) draw_rows(dx, p, type_);
  if (p.dx == DxPlace::kDy) line_.same(dx, p.name + "dy");
  if (p.dx == DxPlace::kX) line_.same(dx, p.name + "x");
  line_.set(p.name + "flags", int64_t{p.flags});
}

void GradientsDrawer::draw_dy(DrawnPart& p) {
  const bool f32 = random_.one_in(3) && !aligned();
  const bool scalar = random_.one_in(8) && !aligned();  // a row is one element
  const std::string dy = p.name + "dy";
  if (scalar) {
    line_.tensor(dy, id_of(or_f32(f32)), {tokens_, p.heads, p.n}, 0, shift());
    line_.strides(dy, {p.heads * (p.n + 1), p.n + 1, 0});
  } else {
    draw_rows(dy, p, or_f32(f32));
  }
  if (!scalar && or_f32(f32) == type_ && random_.one_in(3)) p.dx = DxPlace::kDy;
}

void GradientsDrawer::draw_norm(DrawnPart& p) {
  p.flags |= FASTNORM_NORM_HEADS_NORM;
  const bool across = wide() || (!plain() && random_.one_in(3)), layer = random_.one_in(2);
  if (across) p.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
  const int64_t rounding = random_.one_in(2) ? 0 : random_.below(ref::kRoundings);
  if (layer) line_.set(p.name + "kind", std::string("layer"));
  line_.set(p.name + "rounding", rounding);
  line_.set(p.name + "eps", 1e-5);
  draw_rows(p.name + "x", p, type_);
  bool sums = false;
  if (!random_.one_in(5)) {
    const bool f32 = random_.one_in(3), each = random_.one_in(2);
    draw_columns(p.name + "weight", each, p, or_f32(f32));
    if (random_.one_in(3)) line_.set(p.name + "weight_offset", int64_t{1});
    if (!random_.one_in(4)) {
      sums = true;
      draw_columns(p.name + "dweight", each, p, or_f32(f32 || random_.one_in(2)));
      if (random_.one_in(3)) p.flags |= FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT;
    }
  }
  if (random_.one_in(2)) {
    sums = true;
    draw_columns(p.name + "dbias", random_.one_in(2), p, random_.of(ref::kTypes));
    if (random_.one_in(3)) p.flags |= FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS;
  }
  const bool needs_statistics = aligned() && (layer || rounding == FASTNORM_ROUND_EVERY_STEP);
  if (random_.one_in(2) || needs_statistics) {
    const Shape rows = across ? Shape{tokens_} : Shape{tokens_, p.heads};
    line_.tensor(p.name + "rstd", FASTNORM_DTYPE_F32, rows, 1);
    if (layer) line_.tensor(p.name + "mean", FASTNORM_DTYPE_F32, rows, 1);
  }
  if (p.dx == DxPlace::kOwn && random_.one_in(4)) p.dx = DxPlace::kX;
  if (sums && random_.one_in(5)) p.dx = DxPlace::kNone;
}

void GradientsDrawer::draw_rope(DrawnPart& p) {
  ropes_ = true;
  p.flags |= FASTNORM_NORM_HEADS_ROPE;
  if (random_.one_in(2)) p.flags |= FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
  if (random_.one_in(3)) p.flags |= FASTNORM_NORM_HEADS_ROPE_INVERSE;
  if (random_.one_in(4)) p.flags |= FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED;  // changes nothing
  const int64_t first = random_.below(p.n - rope_dim_ + 1);
  const bool last = random_.one_in(2);
  line_.set(p.name + "rope_offset", last ? -1 : aligned() ? first / 8 * 8 : first);
}

// ---- What should be there.

class GradientsModel {
 public:
  GradientsModel(Operands& call, ref::Order order)
      : call_(call),
        args_(call.args<fastnorm_norm_heads_args>()),
        order_(order),
        tables_(call, args_) {}

  void expect(const Part& p, int32_t number);
  const std::string& out_of_bounds() const { return out_of_bounds_; }

 private:
  void note(const char* what);
  void turn_rows(const Part& p);
  void set_statistics(const Part& p);
  ref::NormBackwardRow row(int64_t i) const;
  void expect_token(Operand& dx, int64_t t);
  void expect_sums(Operand& to, bool weights, bool accumulate);

  Operands& call_;
  const fastnorm_norm_heads_args& args_;
  const ref::Order order_;
  const Tables tables_;
  ref::ModelScratch scratch_;
  std::string out_of_bounds_;
  // What the part that is computed is; its rows are (token, head).
  int32_t number_ = 0;
  ref::NormBackwardOptions norm_;
  bool normalises_ = false;
  int64_t tokens_ = 0, heads_ = 1, n_ = 1;
  int64_t shared_ = 1;  // rows of a statistic
  std::vector<std::vector<float>> dv_, x_, weight_;
  std::vector<float> means_, rstds_;
};

void GradientsModel::note(const char* what) {
  if (out_of_bounds_.empty())
    out_of_bounds_ = "parts[" + std::to_string(number_) + "] " + what + " is out of bounds";
}

void GradientsModel::turn_rows(const Part& p) {
  dv_.clear(), x_.clear(), weight_.clear();
  const bool ropes = (p.flags & FASTNORM_NORM_HEADS_ROPE) != 0;
  ref::RopeOptions turn;
  if (ropes) turn = rope_options(p, args_, n_);
  const auto n = static_cast<size_t>(n_);
  const auto row_of = [&](const fastnorm_tensor* t, Index at) {
    const Operand* const o = call_(t);
    return o == nullptr ? std::vector<float>() : o->row(at, n_);
  };
  for (int64_t r = 0; r < tokens_ * heads_; ++r) {
    const int64_t at[] = {r / heads_, r % heads_};
    const std::vector<float> dy = row_of(p.dy, at);
    std::vector<float> c, s, dv(n);
    std::vector<double> exact(n), bound(n);
    if (ropes) {
      c = tables_.cosines(turn, at[1], at[0]);
      s = tables_.sines(turn, at[1], at[0]);
    }
    ref::turned_gradient_model(ropes, turn, dy.data(), n_, c.data(), s.data(), dv.data());
    ref::turned_gradient_ref(ropes, turn, dy.data(), n_, c.data(), s.data(), exact.data(),
                             bound.data());
    for (size_t i = 0; i < n; ++i) {
      if (!(std::fabs(static_cast<double>(dv[i]) - exact[i]) <= bound[i])) note("dv");
    }
    dv_.push_back(std::move(dv));
    x_.push_back(row_of(p.x, at));
    weight_.push_back(row_of(p.weight, Index(at + 1, 1)));
  }
}

void GradientsModel::set_statistics(const Part& p) {
  const int64_t rows = tokens_ * heads_;
  means_.assign(static_cast<size_t>(rows), 0.0f);
  rstds_ = means_;
  const Operand *const given_mean = call_(p.mean), *const given = call_(p.rstd);
  for (int64_t first = 0; normalises_ && first < rows; first += shared_) {
    float mean = 0, rstd = 0;
    if (given != nullptr) {
      Shape at = {first / heads_, first % heads_};
      at.resize(given->shape.size());
      rstd = given->values(given->place(at), 1)[0];
      if (given_mean != nullptr) mean = given_mean->values(given_mean->place(at), 1)[0];
    } else {
      std::vector<float> all;
      for (int64_t i = first; i < first + shared_; ++i) {
        const std::vector<float>& more = x_[static_cast<size_t>(i)];
        all.insert(all.end(), more.begin(), more.end());
      }
      ref::norm_backward_statistics(norm_, all.data(), static_cast<int64_t>(all.size()), order_,
                                    &scratch_, &mean, &rstd);
    }
    for (int64_t i = first; i < first + shared_; ++i) {
      means_[static_cast<size_t>(i)] = mean;
      rstds_[static_cast<size_t>(i)] = rstd;
    }
  }
}

ref::NormBackwardRow GradientsModel::row(int64_t i) const {
  const auto at = static_cast<size_t>(i);
  ref::NormBackwardRow row;
  row.n = n_;
  row.dy = dv_[at].data();
  row.x = x_[at].data();
  row.weight = weight_[at].empty() ? nullptr : weight_[at].data();
  row.mean = means_[at];
  row.rstd = rstds_[at];
  return row;
}

// Heads of a token as one row: of all heads where they share a statistic, else of one.
void GradientsModel::expect_token(Operand& dx, int64_t t) {
  const auto put = [&](int64_t i, const float* values) {
    dx.expect(dx.place({i / heads_, i % heads_}), values, n_);
  };
  for (int64_t first = t * heads_; first < (t + 1) * heads_; first += shared_) {
    if (!normalises_) {
      put(first, dv_[static_cast<size_t>(first)].data());
      continue;
    }
    std::vector<float> dv, x, weight;
    for (int64_t i = first; i < first + shared_; ++i) {
      const auto at = static_cast<size_t>(i);
      dv.insert(dv.end(), dv_[at].begin(), dv_[at].end());
      x.insert(x.end(), x_[at].begin(), x_[at].end());
      weight.insert(weight.end(), weight_[at].begin(), weight_[at].end());
    }
    ref::NormBackwardRow all = row(first);
    all.n = shared_ * n_;
    all.dy = dv.data();
    all.x = x.data();
    all.weight = weight.empty() ? nullptr : weight.data();
    std::vector<float> dh(dv.size());
    ref::norm_backward_row_model(norm_, all, order_, dh.data());
    const std::vector<ref::Range> bounds =
        ref::norm_backward_row_bounds(norm_, all, order_, dx.type());
    for (size_t i = 0; i < bounds.size(); ++i) {
      if (!bounds[i].holds(static_cast<double>(ref::round_to(dx.type(), dh[i])))) note("dx");
    }
    for (int64_t i = 0; i < shared_; ++i) put(first + i, dh.data() + i * n_);
  }
}

void GradientsModel::expect_sums(Operand& to, bool weights, bool accumulate) {
  const bool each = to.shape.size() == 2;
  const int64_t count = each ? tokens_ : tokens_ * heads_;
  if (count == 0 && accumulate) return;  // not touched
  for (int64_t h = 0; h < (each ? heads_ : 1); ++h) {
    const size_t at = each ? to.place({h}) : to.first;
    const ref::NormBackwardRows rows = [&](int64_t i) { return row(each ? i * heads_ + h : i); };
    std::vector<float> sum(static_cast<size_t>(n_));
    ref::norm_backward_sums_model(norm_, count, n_, rows, weights ? sum.data() : nullptr,
                                  weights ? nullptr : sum.data());
    const std::vector<float> old = to.values(at, n_);
    for (size_t i = 0; accumulate && i < sum.size(); ++i) sum[i] = old[i] + sum[i];
    const ref::StoredSum stored = {to.type(), accumulate ? old.data() : nullptr};
    const std::vector<ref::Range> bounds =
        weights ? ref::norm_backward_dweight_bounds(norm_, count, n_, rows, stored)
                : ref::norm_backward_dbias_bounds(norm_, count, n_, rows, stored);
    for (size_t i = 0; i < sum.size(); ++i) {
      if (!bounds[i].holds(static_cast<double>(ref::round_to(to.type(), sum[i]))))
        note(weights ? "dweight" : "dbias");
    }
    to.expect(at, sum);
  }
}

void GradientsModel::expect(const Part& p, int32_t number) {
  number_ = number;
  const Operand& dy = *call_(p.dy);
  tokens_ = dy.shape[0], heads_ = dy.shape[1], n_ = dy.shape[2];
  const Type type = call_(p.dx != nullptr ? p.dx : p.x)->type();
  const ref::NormOptions norm = norm_options(p, type);
  norm_ = {};
  norm_.dtype = norm_.x_dtype = type;
  norm_.kind = norm.kind;
  norm_.rounding = norm.rounding;
  norm_.eps = norm.eps;
  norm_.weight_offset = norm.weight_offset;
  normalises_ = (p.flags & FASTNORM_NORM_HEADS_NORM) != 0;
  shared_ = (p.flags & FASTNORM_NORM_HEADS_ACROSS_HEADS) != 0 ? heads_ : 1;
  turn_rows(p);
  set_statistics(p);
  Operand* const dx = call_(p.dx);
  for (int64_t t = 0; dx != nullptr && t < tokens_; ++t) expect_token(*dx, t);
  if (Operand* to = call_(p.dweight))
    expect_sums(*to, true, (p.flags & FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT) != 0);
  if (Operand* to = call_(p.dbias))
    expect_sums(*to, false, (p.flags & FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS) != 0);
}

Expected expect_gradients(Operands& call, ref::Order order) {
  GradientsModel model(call, order);
  for (int32_t i = 0; i < call.count(); ++i) model.expect(*call.parts<Part>()[i], i);
  return {model.out_of_bounds()};
}

}  // namespace

std::string draw_norm_heads_backward(uint64_t seed, GradientCallKind kind, bool gpu) {
  return GradientsDrawer(seed, kind, gpu).draw();
}

CallModel norm_heads_backward_model() {
  return {"norm_heads_backward", fill_norm_heads, expect_gradients};
}

}  // namespace fastnorm::support
