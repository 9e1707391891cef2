#include "support/norm_heads_backward_call.h"

#include <algorithm>
#include <cmath>

namespace fastnorm::support {

using ref::Type;

namespace {

constexpr uint32_t kDweight = FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT,
                   kDbias = FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS;

Type type_or_f32(Type type, bool f32) { return f32 ? Type::kF32 : type; }

}  // namespace

std::vector<CallTensor*> BackwardCallPart::tensors() const {
  std::vector<CallTensor*> all;
  for (const OwnedTensor* t : {&dy, &x, &weight, &mean, &rstd, &dx, &dweight, &dbias}) {
    if (*t != nullptr) all.push_back(t->get());
  }
  return all;
}

const fastnorm_norm_heads_backward_part* BackwardCallPart::get() {
  args.struct_size = sizeof args;
  args.dy = abi_of(dy);
  args.x = abi_of(x);
  args.weight = abi_of(weight);
  args.mean = abi_of(mean);
  args.rstd = abi_of(rstd);
  args.dx = dx_place == DxPlace::kDy ? args.dy : dx_place == DxPlace::kX ? args.x : abi_of(dx);
  args.dweight = abi_of(dweight);
  args.dbias = abi_of(dbias);
  return &args;
}

RandomHeadsBackwardCall::RandomHeadsBackwardCall(uint64_t seed, ref::Order order,
                                                 GradientCallKind kind)
    : random_(seed + 0x5eed), seed_(seed), order_(order), kind_(kind) {
  type_ = ref::kTypes[random_.below(3)];
  tokens_ = many() ? 300 + random_.below(300) : random_.below(9);
  const int64_t dims[] = {0, 2, 6, 16, 24, 64, 128, 130};
  rope_dim_ = random_.of(dims);
  table_heads_ = random_.one_in(4) ? 1 + random_.below(3) : 0;
  if (aligned()) {
    const int64_t whole[] = {0, 16, 32, 64, 128}, widths[] = {64, 128, 256, 512};
    if (type_ == Type::kF32) type_ = Type::kBF16;
    tokens_ = kind == GradientCallKind::kAligned       ? random_.below(40)
              : kind == GradientCallKind::kAlignedWide ? 1 + random_.below(5)
                                                       : 1100;
    rope_dim_ = random_.of(whole);
    width_ = random_.of(widths);
    if (kind == GradientCallKind::kAlignedWideMany) tokens_ = 2100, width_ = 256;
  }
  const int64_t count = kind == GradientCallKind::kAlignedMany       ? 2
                        : kind == GradientCallKind::kAlignedWideMany ? 1
                        : random_.one_in(16)                         ? 8
                                                                     : 1 + random_.below(4);
  for (int64_t i = 0; i < count; ++i) make_part();
  args_.struct_size = sizeof args_;
  const bool rope =
      std::any_of(parts_.begin(), parts_.end(), [](const auto& p) { return p.ropes(); });
  if (!rope) return;
  tables_.type = type_;
  tables_.tokens = tokens_;
  tables_.rope_dim = rope_dim_;
  tables_.heads = table_heads_;
  tables_.many = many() || aligned();
  tables_.aligned = aligned();
  tables_.make(random_, &args_);
}

void RandomHeadsBackwardCall::fill(CallTensor& t, size_t at, int64_t n, ref::Pattern pattern,
                                   Type type) {
  std::vector<float> row(static_cast<size_t>(n));
  ref::fill_row(pattern, type, random_.next(), row.data(), n);
  t.set(at, type, row.data(), n);
}

int64_t RandomHeadsBackwardCall::columns_of_part() {
  const int64_t columns[] = {1, 2, 8, 17, 32, 48, 64, 96, 128, 130, 192, 256, 512, 576, 1100, 2056};
  const int64_t few[] = {8, 17, 64, 128, 130, 256};
  if (aligned()) return random_.one_in(2) ? width_ : width_ - 8 * random_.below(width_ / 16);
  return many() ? random_.of(few) : random_.of(columns);
}

// [tokens, heads, n].
OwnedTensor RandomHeadsBackwardCall::make_rows(const BackwardCallPart& p, Type type) {
  const std::vector<int64_t> shape = {tokens_, p.heads, p.n};
  if (aligned()) return make_tensor(shape, id_of(type), 8 * gap(3));
  return make_tensor(shape, id_of(type), gap(3), shift());
}

void RandomHeadsBackwardCall::make_part() {
  BackwardCallPart p;
  p.n = columns_of_part();
  p.heads = table_heads_ != 0 ? table_heads_ : 1 + random_.below(4);
  if (kind_ == GradientCallKind::kAlignedMany && table_heads_ == 0) p.heads = 4;
  if (kind_ == GradientCallKind::kAlignedWideMany) {
    if (table_heads_ == 0) p.heads = 2;
  } else if (wide() && table_heads_ == 0)
    p.heads = 1 + random_.below(8192 / width_);
  p.norm.dtype = p.norm.x_dtype = type_;
  make_dy(p);
  if (plain() || wide() || !random_.one_in(4)) make_norm(p);
  if (!plain() && rope_dim_ <= p.n && random_.one_in(2)) make_rope(p);
  if (p.dx_place == DxPlace::kOwn) p.dx = make_rows(p, type_);
  parts_.push_back(std::move(p));
}

void RandomHeadsBackwardCall::make_dy(BackwardCallPart& p) {
  p.dy_f32 = random_.one_in(3) && !aligned();
  p.dy_is_scalar = random_.one_in(8) && !aligned();
  const Type type = type_or_f32(type_, p.dy_f32);
  p.dy = make_rows(p, type);
  if (p.dy_is_scalar) p.dy->strides[2] = 0;
  for (int64_t t = 0; t < tokens_; ++t) {
    for (int64_t h = 0; h < p.heads; ++h)
      fill(*p.dy, p.dy->place({t, h}), p.dy_is_scalar ? 1 : p.n, ref::Pattern::kNormal, type);
  }
  if (!p.dy_is_scalar && type == type_ && random_.one_in(3)) p.dx_place = DxPlace::kDy;
}

void RandomHeadsBackwardCall::make_norm(BackwardCallPart& p) {
  ref::NormBackwardOptions& o = p.norm;
  p.args.flags |= FASTNORM_NORM_HEADS_NORM;
  if (wide() || (!plain() && random_.one_in(3))) p.args.flags |= FASTNORM_NORM_HEADS_ACROSS_HEADS;
  o.kind = random_.one_in(2) ? ref::Kind::kLayer : ref::Kind::kRms;
  o.rounding = static_cast<ref::Rounding>(random_.one_in(2) ? 0 : random_.below(ref::kRoundings));
  o.eps = 1e-5f;
  p.args.kind = o.kind == ref::Kind::kLayer ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
  p.args.rounding = static_cast<fastnorm_rounding>(static_cast<int>(o.rounding));
  p.args.eps = o.eps;
  p.x = make_rows(p, type_);
  for (int64_t t = 0; t < tokens_; ++t) {
    for (int64_t h = 0; h < p.heads; ++h)
      fill(*p.x, p.x->place({t, h}), p.n, ref::Pattern::kNormal, type_);
  }
  if (!random_.one_in(5)) {
    p.weight_f32 = random_.one_in(3);
    const int64_t rows = random_.one_in(2) ? p.heads : 0;
    p.weight = make_columns(rows, p.n, type_or_f32(type_, p.weight_f32), ref::Pattern::kWeights);
    if (random_.one_in(3)) p.args.weight_offset = o.weight_offset = 1;
  }
  const bool needs_statistics =
      aligned() && (o.kind == ref::Kind::kLayer || o.rounding == ref::Rounding::kEveryStep);
  if (random_.one_in(2) || needs_statistics) give_statistics(p);
  make_sums(p);
  if (p.dx_place == DxPlace::kOwn && random_.one_in(4)) p.dx_place = DxPlace::kX;
  if ((p.dweight != nullptr || p.dbias != nullptr) && random_.one_in(5))
    p.dx_place = DxPlace::kNone;
}

// [n], or with a row for each of so many heads.
OwnedTensor RandomHeadsBackwardCall::make_columns(int64_t heads, int64_t n, Type type,
                                                  ref::Pattern pattern) {
  OwnedTensor t = heads != 0
                      ? make_tensor(std::vector<int64_t>{heads, n}, id_of(type), gap(2), shift())
                      : make_tensor(std::vector<int64_t>{n}, id_of(type), int64_t{0}, shift());
  for (int64_t h = 0; h < std::max<int64_t>(1, heads); ++h)
    fill(*t, heads != 0 ? t->place({h}) : t->first, n, pattern, type);
  return t;
}

void RandomHeadsBackwardCall::make_sums(BackwardCallPart& p) {
  if (p.weight != nullptr && !random_.one_in(4)) {
    p.dweight_f32 = p.weight_f32 || random_.one_in(2);
    const int64_t rows = p.weight->shape.size() == 2 ? p.heads : 0;
    p.dweight = make_columns(rows, p.n, type_or_f32(type_, p.dweight_f32), ref::Pattern::kNormal);
    if (random_.one_in(3)) p.args.flags |= kDweight;
  }
  if (random_.one_in(2)) return;
  p.dbias_type = random_.of(ref::kTypes);
  p.dbias = make_columns(random_.one_in(2) ? p.heads : 0, p.n, p.dbias_type, ref::Pattern::kNormal);
  if (random_.one_in(3)) p.args.flags |= kDbias;
}

// Others than the rows', so that an answer from those would show.
void RandomHeadsBackwardCall::give_statistics(BackwardCallPart& p) {
  std::vector<int64_t> rows = {tokens_};
  if (!p.across()) rows.push_back(p.heads);
  const int64_t heads = p.across() ? 1 : p.heads;
  const auto make = [&](float value) {
    OwnedTensor t = make_tensor(rows, FASTNORM_DTYPE_F32, 1);
    for (int64_t i = 0; i < tokens_ * heads; ++i) {
      t->set_number(p.across() ? t->place({i}) : t->place({i / heads, i % heads}),
                    value + 0.125f * static_cast<float>(i % 5));
    }
    return t;
  };
  p.rstd = make(0.75f);
  if (p.norm.kind == ref::Kind::kLayer) p.mean = make(-0.25f);
}

void RandomHeadsBackwardCall::make_rope(BackwardCallPart& p) {
  p.args.flags |= FASTNORM_NORM_HEADS_ROPE;
  p.turn.half = rope_dim_ / 2;
  p.turn.interleaved = random_.one_in(2);
  p.turn.inverse = random_.one_in(3);
  if (p.turn.interleaved) p.args.flags |= FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
  if (p.turn.inverse) p.args.flags |= FASTNORM_NORM_HEADS_ROPE_INVERSE;
  if (random_.one_in(4)) p.args.flags |= FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED;  // changes nothing
  const bool last = random_.one_in(2);
  p.turn.offset = last ? p.n - rope_dim_ : random_.below(p.n - rope_dim_ + 1);
  if (aligned()) p.turn.offset = p.turn.offset / 8 * 8;
  p.args.rope_offset = last ? -1 : static_cast<int32_t>(p.turn.offset);
}

std::vector<CallTensor*> RandomHeadsBackwardCall::tensors() const {
  std::vector<CallTensor*> all;
  for (const BackwardCallPart& p : parts_) {
    for (CallTensor* t : p.tensors()) all.push_back(t);
  }
  for (const OwnedTensor* t : {&tables_.cos, &tables_.sin, &tables_.positions}) {
    if (*t != nullptr) all.push_back(t->get());
  }
  return all;
}

const fastnorm_norm_heads_args& RandomHeadsBackwardCall::args() {
  tables_.give(&args_);
  return args_;
}

const std::vector<const fastnorm_norm_heads_backward_part*>& RandomHeadsBackwardCall::parts() {
  pointers_.clear();
  for (BackwardCallPart& p : parts_) pointers_.push_back(p.get());
  return pointers_;
}

std::string RandomHeadsBackwardCall::difference() const {
  constexpr const char* kNames[] = {"dy", "x", "weight", "mean", "rstd", "dx", "dweight", "dbias"};
  for (size_t i = 0; i < parts_.size(); ++i) {
    const BackwardCallPart& p = parts_[i];
    size_t name = 0;
    for (const OwnedTensor* t :
         {&p.dy, &p.x, &p.weight, &p.mean, &p.rstd, &p.dx, &p.dweight, &p.dbias}) {
      const char* what = kNames[name++];
      if (*t == nullptr || (*t)->now == (*t)->expected) continue;
      const auto [found, wanted] =
          std::mismatch((*t)->now.begin(), (*t)->now.end(), (*t)->expected.begin());
      const auto byte = found - (*t)->now.begin() - static_cast<int64_t>((*t)->first);
      return "parts[" + std::to_string(i) + "]." + what + " byte " + std::to_string(byte) + " is " +
             std::to_string(*found) + ", not " + std::to_string(*wanted);
    }
  }
  for (const OwnedTensor* t : {&tables_.cos, &tables_.sin, &tables_.positions}) {
    if (*t != nullptr && (*t)->now != (*t)->expected) return "a shared input was written";
  }
  return "";
}

std::string RandomHeadsBackwardCall::text() const {
  std::string s = "norm_heads_backward " + std::string(ref::name_of(type_)) + " seed " +
                  std::to_string(seed_) + " tokens " + std::to_string(tokens_) + " rope " +
                  std::to_string(rope_dim_);
  for (const BackwardCallPart& p : parts_) {
    s += " [" + std::to_string(p.heads) + "x" + std::to_string(p.n);
    if (p.normalises()) s += p.norm.kind == ref::Kind::kLayer ? " layer" : " rms";
    if (p.across()) s += " across";
    if (p.rstd != nullptr) s += " given";
    if (p.ropes()) s += p.turn.interleaved ? " interleaved" : " neox";
    if (p.ropes()) s += "@" + std::to_string(p.turn.offset);
    if (p.dy_is_scalar) s += " scalar dy";
    if (p.dx_place == DxPlace::kNone) s += " no dx";
    if (p.dx_place == DxPlace::kDy) s += " over dy";
    if (p.dx_place == DxPlace::kX) s += " over x";
    if (p.dweight != nullptr) s += p.has(kDweight) ? " +dweight" : " dweight";
    if (p.dbias != nullptr) s += p.has(kDbias) ? " +dbias" : " dbias";
    s += "]";
  }
  return s;
}

// ---- What should be there.

void RandomHeadsBackwardCall::expect_results() {
  size_t number = 0;
  for (BackwardCallPart& p : parts_) predict(p, number++);
}

std::vector<float> RandomHeadsBackwardCall::values(const CallTensor& t, size_t at, int64_t n,
                                                   Type type) const {
  std::vector<float> result(static_cast<size_t>(n));
  ref::decode_row(type, t.now.data() + at, result.data(), n);
  return result;
}

std::vector<float> RandomHeadsBackwardCall::row_of_dy(const BackwardCallPart& p, int64_t t,
                                                      int64_t h) const {
  const Type type = type_or_f32(type_, p.dy_f32);
  const size_t at = p.dy->place({t, h});
  if (!p.dy_is_scalar) return values(*p.dy, at, p.n, type);
  return std::vector<float>(static_cast<size_t>(p.n), values(*p.dy, at, 1, type)[0]);
}

std::vector<float> RandomHeadsBackwardCall::row_of_x(const BackwardCallPart& p, int64_t t,
                                                     int64_t h) const {
  return p.x == nullptr ? std::vector<float>() : values(*p.x, p.x->place({t, h}), p.n, type_);
}

std::vector<float> RandomHeadsBackwardCall::row_of_weight(const BackwardCallPart& p,
                                                          int64_t h) const {
  if (p.weight == nullptr) return {};
  const CallTensor& t = *p.weight;
  return values(t, t.shape.size() == 2 ? t.place({h}) : t.first, p.n,
                type_or_f32(type_, p.weight_f32));
}

void RandomHeadsBackwardCall::set_statistics(BackwardCallPart& p) {
  const int64_t rows = tokens_ * p.heads, shared = p.across() ? p.heads : 1;
  p.means.assign(static_cast<size_t>(rows), 0.0f);
  p.rstds = p.means;
  for (int64_t first = 0; p.normalises() && first < rows; first += shared) {
    const int64_t t = first / p.heads, h = first % p.heads;
    float mean = 0, rstd = 0;
    if (p.rstd != nullptr) {
      const auto read = [&](const OwnedTensor& from) {
        return values(*from, p.across() ? from->place({t}) : from->place({t, h}), 1, Type::kF32)[0];
      };
      rstd = read(p.rstd);
      if (p.mean != nullptr) mean = read(p.mean);
    } else {
      std::vector<float> all;
      for (int64_t i = 0; i < shared; ++i) {
        const std::vector<float>& more = x_[static_cast<size_t>(first + i)];
        all.insert(all.end(), more.begin(), more.end());
      }
      ref::norm_backward_statistics(p.norm, all.data(), static_cast<int64_t>(all.size()), order_,
                                    &scratch_, &mean, &rstd);
    }
    for (int64_t i = 0; i < shared; ++i) {
      p.means[static_cast<size_t>(first + i)] = mean;
      p.rstds[static_cast<size_t>(first + i)] = rstd;
    }
  }
}

void RandomHeadsBackwardCall::note(const std::string& text) {
  if (out_of_bounds_.empty())
    out_of_bounds_ = "parts[" + std::to_string(number_) + "] " + text + " is out of bounds";
}

void RandomHeadsBackwardCall::turn_rows(const BackwardCallPart& p) {
  dv_.clear();
  x_.clear();
  weight_.clear();
  const auto n = static_cast<size_t>(p.n);
  for (int64_t r = 0; r < tokens_ * p.heads; ++r) {
    const int64_t t = r / p.heads, h = r % p.heads;
    const std::vector<float> dy = row_of_dy(p, t, h);
    std::vector<float> c, s, dv(n);
    std::vector<double> exact(n), bound(n);
    if (p.ropes()) {
      c = tables_.angles(*tables_.cos, p.turn, h, t);
      s = tables_.angles(*tables_.sin, p.turn, h, t);
    }
    ref::turned_gradient_model(p.ropes(), p.turn, dy.data(), p.n, c.data(), s.data(), dv.data());
    ref::turned_gradient_ref(p.ropes(), p.turn, dy.data(), p.n, c.data(), s.data(), exact.data(),
                             bound.data());
    for (size_t i = 0; i < n; ++i) {
      if (!(std::fabs(static_cast<double>(dv[i]) - exact[i]) <= bound[i])) note("dv");
    }
    dv_.push_back(std::move(dv));
    x_.push_back(row_of_x(p, t, h));
    weight_.push_back(row_of_weight(p, h));
  }
}

ref::NormBackwardRow RandomHeadsBackwardCall::row(const BackwardCallPart& p, int64_t i) const {
  const auto at = static_cast<size_t>(i);
  ref::NormBackwardRow row;
  row.n = p.n;
  row.dy = dv_[at].data();
  row.x = x_[at].data();
  row.weight = weight_[at].empty() ? nullptr : weight_[at].data();
  row.mean = p.means[at];
  row.rstd = p.rstds[at];
  return row;
}

void RandomHeadsBackwardCall::put_dx(BackwardCallPart& p, int64_t t, int64_t h,
                                     const float* dx_row) {
  CallTensor& to = p.dx_place == DxPlace::kDy ? *p.dy : p.dx_place == DxPlace::kX ? *p.x : *p.dx;
  to.expect(to.place({t, h}), type_, dx_row, p.n);
}

// Heads of a token as one row: of all heads where they share a statistic, else of one.
void RandomHeadsBackwardCall::predict_token(BackwardCallPart& p, int64_t t) {
  const int64_t shared = p.across() ? p.heads : 1;
  for (int64_t first = t * p.heads; first < (t + 1) * p.heads; first += shared) {
    std::vector<float> dv, x, weight;
    for (int64_t i = first; i < first + shared; ++i) {
      const auto at = static_cast<size_t>(i);
      dv.insert(dv.end(), dv_[at].begin(), dv_[at].end());
      x.insert(x.end(), x_[at].begin(), x_[at].end());
      weight.insert(weight.end(), weight_[at].begin(), weight_[at].end());
    }
    ref::NormBackwardRow all = row(p, first);
    all.n = shared * p.n;
    all.dy = dv.data();
    all.x = x.data();
    all.weight = weight.empty() ? nullptr : weight.data();
    std::vector<float> dh(dv.size());
    ref::norm_backward_row_model(p.norm, all, order_, dh.data());
    const std::vector<ref::Range> bounds =
        ref::norm_backward_row_bounds(p.norm, all, order_, type_);
    for (size_t i = 0; i < bounds.size(); ++i) {
      if (!bounds[i].holds(static_cast<double>(ref::round_to(type_, dh[i])))) note("dx");
    }
    for (int64_t i = 0; i < shared; ++i) put_dx(p, t, first % p.heads + i, dh.data() + i * p.n);
  }
}

void RandomHeadsBackwardCall::predict_dx(BackwardCallPart& p) {
  for (int64_t t = 0; t < tokens_; ++t) {
    if (p.normalises()) {
      predict_token(p, t);
      continue;
    }
    for (int64_t h = 0; h < p.heads; ++h)
      put_dx(p, t, h, dv_[static_cast<size_t>(t * p.heads + h)].data());
  }
}

void RandomHeadsBackwardCall::predict_sums(BackwardCallPart& p, bool weights) {
  CallTensor& to = weights ? *p.dweight : *p.dbias;
  const Type type = weights ? type_or_f32(type_, p.dweight_f32) : p.dbias_type;
  const bool each = to.shape.size() == 2, accumulate = p.has(weights ? kDweight : kDbias);
  const int64_t count = each ? tokens_ : tokens_ * p.heads;
  if (count == 0 && accumulate) return;  // not touched
  for (int64_t h = 0; h < (each ? p.heads : 1); ++h) {
    const size_t at = each ? to.place({h}) : to.first;
    const ref::NormBackwardRows rows = [&](int64_t i) {
      return row(p, each ? i * p.heads + h : i);
    };
    std::vector<float> sum(static_cast<size_t>(p.n));
    ref::norm_backward_sums_model(p.norm, count, p.n, rows, weights ? sum.data() : nullptr,
                                  weights ? nullptr : sum.data());
    const std::vector<float> old = values(to, at, p.n, type);
    for (size_t i = 0; accumulate && i < sum.size(); ++i) sum[i] = old[i] + sum[i];
    const ref::StoredSum stored = {type, accumulate ? old.data() : nullptr};
    const std::vector<ref::Range> bounds =
        weights ? ref::norm_backward_dweight_bounds(p.norm, count, p.n, rows, stored)
                : ref::norm_backward_dbias_bounds(p.norm, count, p.n, rows, stored);
    for (size_t i = 0; i < sum.size(); ++i) {
      if (!bounds[i].holds(static_cast<double>(ref::round_to(type, sum[i]))))
        note(weights ? "dweight" : "dbias");
    }
    to.expect(at, type, sum.data(), p.n);
  }
}

void RandomHeadsBackwardCall::predict(BackwardCallPart& p, size_t number) {
  number_ = number;
  turn_rows(p);
  set_statistics(p);
  if (p.dx_place != DxPlace::kNone) predict_dx(p);
  if (p.dweight != nullptr) predict_sums(p, true);
  if (p.dbias != nullptr) predict_sums(p, false);
}

}  // namespace fastnorm::support
