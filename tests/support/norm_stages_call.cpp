#include "support/norm_stages_call.h"

#include <algorithm>
#include <cmath>

#include "support/call_scales.h"

namespace fastnorm::support {

using ref::Type;

namespace {

Type type_of(const CallTensor& t) {
  if (t.abi.dtype.bits == 32) return Type::kF32;
  return t.abi.dtype.code == fastnorm_dtype_of(FASTNORM_DTYPE_BF16).code ? Type::kBF16 : Type::kF16;
}

}  // namespace

// Rows, groups and columns.
void RandomStagesCall::make_shape() {
  batch_ = random_.below(4);
  heads_ = 1 + random_.below(3);
  const int64_t groups[] = {1, 1, 1, 2, 3, 5, 8};
  const int64_t columns[] = {1, 2, 5, 16, 31, 32, 64, 96, 127, 128, 130, 256, 300, 512, 1100};
  groups_ = kind_ >= StagesKind::kSandwich ? 1 : random_.of(groups);
  int64_t group = random_.of(columns);
  if (aligned()) {
    const int64_t wide[] = {64, 128, 128, 256, 336, 512, 1040, 2048, 2560, 4096};
    group = random_.of(wide);
    if (kind_ >= StagesKind::kSandwich && random_.one_in(2)) group *= 2;
  } else if (random_.one_in(16)) {  // more groups than are known at once
    groups_ = random_.one_in(2) ? 150 : 1030 + random_.below(100);
    group = 1 + random_.below(5);
  }
  n_ = groups_ * group;
  if (groups_ == 1 && !plain() && random_.one_in(20))
    n_ = aligned() ? 16384 + 16 * random_.below(200) : 16384 + random_.below(3000);
}

RandomStagesCall::RandomStagesCall(uint64_t seed, ref::Order order, StagesKind kind)
    : random_(ref::hash(seed, 43)), seed_(seed), order_(order), kind_(kind) {
  type_ = ref::kTypes[random_.below(3)];
  if (plain() && type_ == Type::kF32) type_ = Type::kBF16;
  make_shape();
  ref::NormOptions& o = options_.norm;
  options_.group = n_ / groups_;
  o.dtype = type_;
  o.kind = (!plain() || (modulated() && !scaled())) && random_.one_in(2) ? ref::Kind::kLayer
                                                                         : ref::Kind::kRms;
  o.rounding = static_cast<ref::Rounding>(random_.one_in(2) ? 0
                                          : odd(1)          ? random_.below(4)
                                                            : random_.below(2));
  o.eps = 1e-5f;
  args_.struct_size = sizeof args_;
  args_.kind = o.kind == ref::Kind::kLayer ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
  args_.rounding = static_cast<fastnorm_rounding>(static_cast<int>(o.rounding));
  args_.eps = o.eps;
  args_.group_size = groups_ > 1 || random_.one_in(3) ? options_.group : 0;

  const auto pattern =
      static_cast<ref::Pattern>(random_.one_in(2) ? 0 : random_.below(ref::kPatterns));
  x_ = make_rows(id_of(type_), n_);
  fill(*x_, pattern, type_, n_);
  if (plain() ? kind_ == StagesKind::kSandwich || (modulated() && !scaled() && !random_.one_in(4))
              : random_.one_in(2)) {
    const Type type = any_type();
    residual_ = make_rows(id_of(type), n_);
    fill(*residual_, ref::Pattern::kNormal, type, n_);
    o.residual_rounding = static_cast<ref::ResidualRounding>(odd(1)              ? random_.below(3)
                                                             : random_.one_in(2) ? 0
                                                                                 : 2);
    args_.residual_rounding =
        static_cast<fastnorm_residual_rounding>(static_cast<int>(o.residual_rounding));
  }
  if (modulated() && !scaled() ? odd(1) : !random_.one_in(3)) {
    weight_shared_ = groups_ > 1 && random_.one_in(2);
    weight_ = make_columns(weight_shared_ ? options_.group : n_);
    if (random_.one_in(2)) args_.weight_offset = o.weight_offset = 1;
  }
  if (!plain() && random_.one_in(3)) {
    bias_shared_ = groups_ > 1 && random_.one_in(2);
    bias_ = make_columns(bias_shared_ ? options_.group : n_);
  }
  if (plain() ? kind_ == StagesKind::kGated : !random_.one_in(4)) make_gate();
  if (plain() ? kind_ == StagesKind::kSandwich : random_.one_in(3)) make_branch();
  if (kind_ != StagesKind::kGated && !scaled()) make_sum();
  if (modulated() || (kind_ == StagesKind::kAny && random_.one_in(2))) make_modulation();
  if (!plain() && random_.one_in(3)) {
    options_.activation = static_cast<ref::Activation>(random_.below(4));
    args_.activation = static_cast<fastnorm_activation>(static_cast<int>(options_.activation));
  }
  make_statistics();
  if (odd(2)) make_codes();
  make_outputs();
}

Type RandomStagesCall::any_type() {
  const Type type = ref::kTypes[random_.below(3)];
  return aligned() ? type_ : type;
}

OwnedTensor RandomStagesCall::make_rows(fastnorm_dtype_id dtype, int64_t columns) {
  const int64_t unit = aligned() ? 16 : 1;
  return make_tensor(std::vector<int64_t>{batch_, heads_, columns}, dtype, unit * random_.below(4),
                     random_.one_in(3) ? unit * random_.below(8) : int64_t{0});
}

// Of `values` for each group of each row.
OwnedTensor RandomStagesCall::make_statistic(int64_t values) {
  std::vector<int64_t> shape = {batch_, heads_};
  if (groups_ > 1) shape.push_back(groups_);
  if (values > 1) shape.push_back(values);
  if (groups_ == 1 && values == 1 && random_.one_in(2)) shape.push_back(1);
  // What is behind the leading dimensions is contiguous.
  return make_tensor(shape, FASTNORM_DTYPE_F32);
}

OwnedTensor RandomStagesCall::make_columns(int64_t columns) {
  const Type type = any_type();
  const bool each = odd(3);
  const int64_t unit = aligned() ? 16 : 1;
  OwnedTensor t = each ? make_tensor(std::vector<int64_t>{heads_, columns}, id_of(type),
                                     unit * random_.below(3), unit * random_.below(3))
                       : make_tensor(std::vector<int64_t>{columns}, id_of(type));
  std::vector<float> row(static_cast<size_t>(columns));
  for (int64_t h = 0; h < (each ? heads_ : 1); ++h) {
    ref::fill_row(ref::Pattern::kWeights, type, random_.next(), row.data(), columns);
    t->set(each ? t->place({h}) : t->first, type, row.data(), columns);
  }
  return t;
}

void RandomStagesCall::fill(CallTensor& t, ref::Pattern pattern, Type type, int64_t columns) {
  std::vector<float> row(static_cast<size_t>(columns));
  for (int64_t b = 0; b < batch_; ++b) {
    for (int64_t h = 0; h < heads_; ++h) {
      ref::fill_row(pattern, type, random_.next(), row.data(), columns);
      t.set(t.place({b, h}), type, row.data(), columns);
    }
  }
}

void RandomStagesCall::make_gate() {
  const Type type = !aligned() && random_.one_in(3) ? Type::kF32 : type_;
  gate_ = make_rows(id_of(type), n_);
  fill(*gate_, random_.one_in(4) ? ref::Pattern::kRandomBits : ref::Pattern::kNormal, type, n_);
  if (batch_ > 0) {  // of large magnitude, and Inf, at a few places
    const float large[] = {-INFINITY, 200.0f, -200.0f, -87.5f, -103.0f, 30.0f, -30.0f};
    for (int i = 0; i < 3; ++i) {
      const float value = random_.of(large);
      gate_->set(gate_->place({random_.below(batch_), random_.below(heads_), random_.below(n_)}),
                 type, &value, 1);
    }
  }
  options_.gate_act = static_cast<ref::Activation>(random_.below(4));
  options_.gate_before = !plain() && random_.one_in(3);
  options_.gate_from_rounded = !options_.gate_before && random_.one_in(3);
  args_.gate_act = static_cast<fastnorm_activation>(static_cast<int>(options_.gate_act));
  args_.gate_position = options_.gate_before ? FASTNORM_GATE_BEFORE_NORM : FASTNORM_GATE_AFTER_NORM;
  args_.gate_source =
      options_.gate_from_rounded ? FASTNORM_GATE_FROM_ROUNDED : FASTNORM_GATE_FROM_F32;
}

void RandomStagesCall::make_branch() {
  options_.branch = true;
  args_.branch_norm = 1;
  ref::NormOptions& o = options_.of_branch;
  o.dtype = type_;
  o.kind = !plain() && random_.one_in(3) ? ref::Kind::kLayer : ref::Kind::kRms;
  o.rounding = static_cast<ref::Rounding>(random_.one_in(2) ? 0
                                          : odd(1)          ? random_.below(3)
                                                            : random_.below(2));
  o.eps = 1e-3f;
  args_.branch_kind = o.kind == ref::Kind::kLayer ? FASTNORM_NORM_LAYER : FASTNORM_NORM_RMS;
  args_.branch_rounding = static_cast<fastnorm_rounding>(static_cast<int>(o.rounding));
  args_.branch_eps = o.eps;
  options_.branch_rounded = random_.one_in(2);
  args_.branch_rounded = options_.branch_rounded ? 1 : 0;
  if (!random_.one_in(3)) {
    branch_weight_ = make_columns(n_);
    if (random_.one_in(2)) args_.branch_weight_offset = o.weight_offset = 1;
  }
  if (!plain() && random_.one_in(3)) branch_bias_ = make_columns(n_);
  if (random_.one_in(2))
    branch_rstd_ = make_tensor(std::vector<int64_t>{batch_, heads_}, FASTNORM_DTYPE_F32, 1);
}

void RandomStagesCall::make_sum() {
  if (random_.one_in(4)) {
    const float factors[] = {0.22f, -1.5f, 1.0f, 12.0f};
    args_.alpha = options_.alpha = random_.of(factors);
    options_.scaled = options_.alpha != 1;
  }
  if (mixed() ? odd(1) : random_.one_in(6)) {
    sum_scale_ = make_tensor(std::vector<int64_t>{1}, FASTNORM_DTYPE_F32);
    sum_scale_->set_number(0, 0.37f);
  }
  if (mixed() ? odd(1) : random_.one_in(5)) {
    options_.sum_every_step = true;
    args_.sum_rounding = FASTNORM_SUM_EVERY_STEP;
  }
}

void RandomStagesCall::make_modulation() {
  if (random_.one_in(3)) {
    const std::vector<int64_t> shape = random_.one_in(2) ? std::vector<int64_t>{batch_, heads_}
                                                         : std::vector<int64_t>{batch_, heads_, 1};
    const bool wide = random_.one_in(2);
    index_ = make_tensor(shape, wide ? FASTNORM_DTYPE_I64 : FASTNORM_DTYPE_I32, random_.below(3));
    index_rows_ = 1 + random_.below(4);
    for (int64_t b = 0; b < batch_; ++b) {
      for (int64_t h = 0; h < heads_; ++h) {
        const int64_t index = make_index(wide);
        if (wide) {
          index_->set_number(index_->place({b, h}), index);
        } else {
          index_->set_number(index_->place({b, h}), static_cast<int32_t>(index));
        }
      }
    }
  }
  // At least one of them.
  const int64_t which = scaled() ? 2 * (1 + random_.below(3)) : 1 + random_.below(7);
  if ((which & 1) != 0) {
    residual_gate_ = make_modulator();
    if (odd(2)) options_.residual_gate_act = static_cast<ref::Activation>(random_.below(4));
    args_.residual_gate_act =
        static_cast<fastnorm_activation>(static_cast<int>(options_.residual_gate_act));
  }
  if ((which & 2) != 0) {
    modulation_scale_ = make_modulator();
    if (random_.one_in(4)) {
      options_.plain_scale = true;
      args_.flags = FASTNORM_NORM_MODULATION_PLAIN_SCALE;
    }
  }
  if ((which & 4) != 0) modulation_shift_ = make_modulator();
  if ((which & 6) != 0 && (mixed() || scaled() ? odd(1) : random_.one_in(3))) {
    options_.modulation_every_step = true;
    args_.modulation_rounding = FASTNORM_MODULATION_EVERY_STEP;
  }
}

// The number of a modulator's row. GPUs take the nearest row for one outside the rows.
int64_t RandomStagesCall::make_index(bool wide) {
  const int64_t wide_ones[] = {-1,        index_rows_,      INT64_MIN,
                               INT64_MAX, int64_t{1} << 32, -(int64_t{1} << 32)};
  const int64_t narrow_ones[] = {-1, index_rows_, INT32_MIN, INT32_MAX};
  const int64_t inside = random_.below(index_rows_),
                outside = wide ? random_.of(wide_ones) : random_.of(narrow_ones);
  const bool gpu = order_ == ref::Order::kGpu || order_ == ref::Order::kGpuLowestFirst;
  const bool leaves = random_.one_in(3) && gpu;
  if (leaves) outside_.push_back({wide, outside, index_rows_});
  const int64_t index = leaves ? outside : inside;
  indices_.push_back(std::clamp<int64_t>(index, 0, index_rows_ - 1));
  return index;
}

// Of x's dimensions any may be 1, and leading ones may be missing.
RandomStagesCall::Modulator RandomStagesCall::make_modulator() {
  const auto type = [&] { return (mixed() ? random_.one_in(2) : odd(2)) ? Type::kF32 : type_; };
  const int64_t unit = aligned() ? 16 : 1;
  Modulator m;
  std::vector<int64_t> shape = {batch_, heads_, n_};
  if (index_ != nullptr) {
    shape = {index_rows_, n_};
  } else {
    for (size_t i = 0; i < 2; ++i) shape[i] = random_.one_in(2) ? shape[i] : 1;
    shape.erase(shape.begin(), shape.begin() + random_.below(3));
  }
  if (odd(4)) shape.back() = 1;
  const Type of_rows = type();
  m.rows = make_tensor(shape, id_of(of_rows), unit * random_.below(4), unit * random_.below(3));
  CallTensor& t = *m.rows;
  std::vector<float> row(static_cast<size_t>(shape.back()));
  const int64_t first = shape.size() > 2 ? shape[0] : 1,
                second = shape.size() > 1 ? shape[shape.size() - 2] : 1;
  for (int64_t i = 0; i < first * second; ++i) {
    const auto pattern = random_.one_in(12) ? ref::Pattern::kRandomBits : ref::Pattern::kNormal;
    ref::fill_row(pattern, of_rows, random_.next(), row.data(), shape.back());
    const int64_t at[] = {i / second, i % second};
    const size_t place = shape.size() == 3   ? t.place({at[0], at[1]})
                         : shape.size() == 2 ? t.place({at[1]})
                                             : t.first;
    t.set(place, of_rows, row.data(), shape.back());
  }
  if (!(mixed() ? random_.one_in(2) : odd(3))) return m;
  std::vector<int64_t> of_table(static_cast<size_t>(1 + random_.below(3)), 1);
  of_table.back() = n_;
  const Type type_of_table = type();
  m.table = make_tensor(of_table, id_of(type_of_table), int64_t{0},
                        (mixed() && !odd(1) ? unit : 1) * random_.below(3));
  row.resize(static_cast<size_t>(n_));
  ref::fill_row(ref::Pattern::kWeights, type_of_table, random_.next(), row.data(), n_);
  m.table->set(m.table->first, type_of_table, row.data(), n_);
  return m;
}

std::vector<float> RandomStagesCall::modulator_row(const Modulator& m, int64_t b, int64_t h) const {
  if (m.rows == nullptr) return {};
  const CallTensor& t = *m.rows;
  const auto digit = [](int64_t i, int64_t extent) { return extent == 1 ? 0 : i; };
  const size_t rank = t.shape.size();
  const size_t place = index_ != nullptr ? t.place({indices_[static_cast<size_t>(b * heads_ + h)]})
                       : rank == 3       ? t.place({digit(b, t.shape[0]), digit(h, t.shape[1])})
                       : rank == 2       ? t.place({digit(h, t.shape[0])})
                                         : t.first;
  std::vector<float> row(static_cast<size_t>(t.shape.back()));
  ref::decode_row(type_of(t), t.now.data() + place, row.data(), t.shape.back());
  row.resize(static_cast<size_t>(n_), row[0]);
  return row;
}

// Given ones are others than the rows'.
void RandomStagesCall::make_statistics() {
  const bool layer = options_.norm.kind == ref::Kind::kLayer;
  if (!plain() && random_.one_in(5)) {
    const auto make = [&](float value) {
      OwnedTensor t = make_statistic(1);
      for (int64_t i = 0; i < batch_ * heads_ * groups_; ++i)
        t->set_number(static_cast<size_t>(i * 4), value + 0.125f * static_cast<float>(i % 5));
      return t;
    };
    rstd_in_ = make(0.75f);
    if (layer) mean_in_ = make(-0.25f);
    return;
  }
  if (random_.one_in(2)) rstd_ = make_statistic(1);
  if (layer && random_.one_in(2)) mean_ = make_statistic(1);
  if (options_.norm.rounding != ref::Rounding::kEveryStep && odd(2))
    sumsq_ = make_statistic(layer ? 2 : 1);
}

void RandomStagesCall::make_codes() {
  const fastnorm_dtype_id formats[] = {FASTNORM_DTYPE_F8_E4M3FN, FASTNORM_DTYPE_F8_E5M2,
                                       FASTNORM_DTYPE_I8};
  int64_t scheme = 1 + random_.below(6), format = random_.below(3);
  const auto is_fp4 = [&] { return ref::is_fp4(ref::kSchemes[scheme]); };
  if (is_fp4() && n_ % 2 != 0) scheme = 2;
  if (ref::kSchemes[scheme] == ref::Scheme::kMxfp8) format = random_.below(2);
  ref::QuantOptions& q = quant_;
  q.scheme = ref::kSchemes[scheme];
  q.format = is_fp4() ? ref::Format::kE2M1 : ref::kFormats[format];
  args_.quant_scheme = static_cast<fastnorm_quant_scheme>(scheme);
  if (q.scheme == ref::Scheme::kPerBlock)
    q.block_size = args_.quant_block_size = random_.one_in(2) ? 64 : 128;
  clamp_scale_ = draw_quant_options(random_, &q, &args_);
  if (random_.one_in(2)) args_.quant_source = FASTNORM_QUANT_FROM_ROUNDED;
  if (scheme <= 3 && random_.one_in(3)) {
    args_.quant_division = FASTNORM_QUANT_DIVIDE;
    q.divide = true;
  }
  const std::vector<int64_t> shape = {batch_, heads_, is_fp4() ? n_ / 2 : n_};
  codes_ = make_tensor(shape, is_fp4() ? FASTNORM_DTYPE_F4_E2M1FN_X2 : formats[format],
                       random_.below(3), random_.below(3));
  if (q.scheme == ref::Scheme::kPerTensor) {
    scale_ = make_tensor(std::vector<int64_t>{1}, FASTNORM_DTYPE_F32);
    scale_->set_number(0, tensor_scale_);
  } else {
    scale_ = make_scales(random_, q, batch_, heads_, ref::scopes_of(q, n_), &args_.scale_layout);
  }
  if (q.scheme == ref::Scheme::kNvfp4) {
    global_ = make_tensor(std::vector<int64_t>{1}, FASTNORM_DTYPE_F32);
    global_->set_number(0, global_scale_);
  }
}

void RandomStagesCall::make_outputs() {
  const bool needed = codes_ == nullptr && sumsq_ == nullptr;
  if (needed || random_.one_in(2)) {
    const Type y = odd(4) ? Type::kF32 : type_;
    options_.norm.y_f32 = y == Type::kF32;
    y_over_x_ = y == type_ && random_.one_in(3);
    y_over_gate_ = !y_over_x_ && gate_ != nullptr && type_of(*gate_) == y && random_.one_in(3);
    if (!y_over_x_ && !y_over_gate_) y_ = make_rows(id_of(y), n_);
  }
  const bool has_y = y_over_x_ || y_over_gate_ || y_ != nullptr;
  if (residual_ != nullptr && random_.one_in(2)) {
    sum_over_residual_ = random_.one_in(2);
    if (!sum_over_residual_) residual_out_ = make_rows(id_of(any_type()), n_);
  }
  if (residual_ != nullptr) {
    const CallTensor& rounds_to = residual_out_ != nullptr ? *residual_out_ : *residual_;
    options_.norm.sum_dtype = type_of(rounds_to);
  }
  if ((has_y || codes_ != nullptr) && random_.one_in(3)) {
    amax_ = make_tensor(std::vector<int64_t>{1}, FASTNORM_DTYPE_F32);
    amax_->set_number(0, 0.25f);
  }
  // Every call has a stage.
  if (gate_ == nullptr && sumsq_ == nullptr && rstd_in_ == nullptr && args_.activation == 0 &&
      args_.branch_norm == 0 && args_.alpha == 0 && sum_scale_ == nullptr &&
      residual_gate_.rows == nullptr && modulation_scale_.rows == nullptr &&
      modulation_shift_.rows == nullptr)
    args_.group_size = options_.group;
}

std::vector<RandomStagesCall::Named> RandomStagesCall::named() const {
  return {{"x", x_},
          {"residual", residual_},
          {"weight", weight_},
          {"bias", bias_},
          {"y", y_},
          {"residual_out", residual_out_},
          {"mean", mean_},
          {"rstd", rstd_},
          {"gate", gate_},
          {"sumsq", sumsq_},
          {"mean_in", mean_in_},
          {"rstd_in", rstd_in_},
          {"branch_weight", branch_weight_},
          {"branch_bias", branch_bias_},
          {"branch_rstd", branch_rstd_},
          {"sum_scale", sum_scale_},
          {"residual_gate", residual_gate_.rows},
          {"residual_gate_table", residual_gate_.table},
          {"modulation_scale", modulation_scale_.rows},
          {"scale_table", modulation_scale_.table},
          {"modulation_shift", modulation_shift_.rows},
          {"shift_table", modulation_shift_.table},
          {"modulation_index", index_},
          {"codes", codes_},
          {"scale", scale_},
          {"global_scale", global_},
          {"clamp_scale", clamp_scale_},
          {"amax", amax_}};
}

std::vector<CallTensor*> RandomStagesCall::tensors() const {
  std::vector<CallTensor*> all;
  for (const Named& t : named()) {
    if (t.tensor != nullptr) all.push_back(t.tensor.get());
  }
  return all;
}

const fastnorm_norm_args& RandomStagesCall::args() {
  args_.x = abi_of(x_);
  args_.residual = abi_of(residual_);
  args_.weight = abi_of(weight_);
  args_.bias = abi_of(bias_);
  args_.gate = abi_of(gate_);
  args_.y = y_over_x_ ? args_.x : y_over_gate_ ? args_.gate : abi_of(y_);
  args_.residual_out = sum_over_residual_ ? args_.residual : abi_of(residual_out_);
  args_.mean = abi_of(mean_);
  args_.rstd = abi_of(rstd_);
  args_.sumsq = abi_of(sumsq_);
  args_.mean_in = abi_of(mean_in_);
  args_.rstd_in = abi_of(rstd_in_);
  args_.branch_weight = abi_of(branch_weight_);
  args_.branch_bias = abi_of(branch_bias_);
  args_.branch_rstd = abi_of(branch_rstd_);
  args_.sum_scale = abi_of(sum_scale_);
  args_.residual_gate = abi_of(residual_gate_.rows);
  args_.residual_gate_table = abi_of(residual_gate_.table);
  args_.modulation_scale = abi_of(modulation_scale_.rows);
  args_.scale_table = abi_of(modulation_scale_.table);
  args_.modulation_shift = abi_of(modulation_shift_.rows);
  args_.shift_table = abi_of(modulation_shift_.table);
  args_.modulation_index = abi_of(index_);
  args_.quantized = abi_of(codes_);
  args_.scale = abi_of(scale_);
  args_.global_scale = abi_of(global_);
  args_.clamp_scale = abi_of(clamp_scale_);
  args_.amax = abi_of(amax_);
  return args_;
}

std::vector<float> RandomStagesCall::row_of(const OwnedTensor& t, int64_t b, int64_t h,
                                            int64_t columns) const {
  if (t == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(columns));
  ref::decode_row(type_of(*t), t->now.data() + t->place({b, h}), values.data(), columns);
  return values;
}

std::vector<float> RandomStagesCall::column_of(const OwnedTensor& t, int64_t h,
                                               int64_t columns) const {
  if (t == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(columns));
  const size_t at = t->shape.size() == 2 ? t->place({h}) : t->first;
  ref::decode_row(type_of(*t), t->now.data() + at, values.data(), columns);
  return values;
}

void RandomStagesCall::expect_results() {
  for (int64_t b = 0; b < batch_; ++b) {
    for (int64_t h = 0; h < heads_; ++h) predict(b, h);
  }
}

void RandomStagesCall::predict(int64_t b, int64_t h) {
  const auto pointer = [](const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); };
  const std::vector<float> x = row_of(x_, b, h, n_), residual = row_of(residual_, b, h, n_),
                           gate = row_of(gate_, b, h, n_),
                           mean_in = row_of(mean_in_, b, h, groups_),
                           rstd_in = row_of(rstd_in_, b, h, groups_),
                           weight = column_of(weight_, h, weight_shared_ ? options_.group : n_),
                           bias = column_of(bias_, h, bias_shared_ ? options_.group : n_);
  ref::StagesRow row;
  row.row = {n_, x.data(), pointer(residual), pointer(weight), pointer(bias)};
  row.weight_shared = weight_shared_;
  row.bias_shared = bias_shared_;
  row.gate = pointer(gate);
  const std::vector<float> branch_weight = column_of(branch_weight_, h, n_),
                           branch_bias = column_of(branch_bias_, h, n_),
                           sum_scale = column_of(sum_scale_, 0, 1);
  row.branch_weight = pointer(branch_weight);
  row.branch_bias = pointer(branch_bias);
  row.sum_scale = pointer(sum_scale);
  const auto values = [&](const OwnedTensor& table) { return column_of(table, 0, n_); };
  const std::vector<float> residual_gate = modulator_row(residual_gate_, b, h),
                           residual_gate_table = values(residual_gate_.table),
                           scale = modulator_row(modulation_scale_, b, h),
                           scale_table = values(modulation_scale_.table),
                           shift = modulator_row(modulation_shift_, b, h),
                           shift_table = values(modulation_shift_.table);
  row.residual_gate = {pointer(residual_gate), pointer(residual_gate_table)};
  row.scale = {pointer(scale), pointer(scale_table)};
  row.shift = {pointer(shift), pointer(shift_table)};
  row.mean_in = pointer(mean_in);
  row.rstd_in = pointer(rstd_in);
  ref::StagesResult result;
  ref::stages_model(options_, row, order_, &scratch_, &result);
  const auto put = [&](const OwnedTensor& t, const std::vector<float>& values) {
    if (t != nullptr)
      t->expect(t->place({b, h}), type_of(*t), values.data(), static_cast<int64_t>(values.size()));
  };
  put(y_over_x_ ? x_ : y_over_gate_ ? gate_ : y_, result.z);
  put(sum_over_residual_ ? residual_ : residual_out_, result.sum);
  put(mean_, result.mean);
  put(rstd_, result.rstd);
  put(sumsq_, result.sumsq);
  put(branch_rstd_, {result.branch_rstd});
  predict_codes(b, h, result.z);
  check_bounds(row, result.z);
}

void RandomStagesCall::predict_codes(int64_t b, int64_t h, const std::vector<float>& z) {
  if (codes_ == nullptr && amax_ == nullptr) return;
  ref::QuantOptions q = quant_;
  const bool rounded = args_.quant_source == FASTNORM_QUANT_FROM_ROUNDED ||
                       options_.norm.rounding == ref::Rounding::kEveryStep;
  // Without codes the amax is that of y; with EVERY_STEP a value of x's dtype.
  const Type type = codes_ == nullptr && !rounded ? options_.norm.y_dtype() : type_;
  q.source = rounded || codes_ == nullptr ? ref::QuantSource::kRounded : ref::QuantSource::kF32;
  ref::QuantResult r;
  ref::quant_model(q, z.data(), n_, type, tensor_scale_, global_ != nullptr ? global_scale_ : 1.0f,
                   &r);
  if (amax_ != nullptr) {
    float most = 0;
    std::memcpy(&most, amax_->expected.data(), sizeof most);
    most = ref::max_magnitude(most, r.amax);
    amax_->expect(0, Type::kF32, &most, 1);
  }
  if (codes_ == nullptr) return;
  std::vector<uint8_t> bytes = r.codes;
  if (q.format == ref::Format::kE2M1) {
    ref::pack_e2m1(r.codes.data(), n_, bytes.data());
    bytes.resize(static_cast<size_t>(n_ / 2));
  }
  codes_->expect_bytes(codes_->place({b, h}), bytes.data(), bytes.size());
  if (q.scheme != ref::Scheme::kPerTensor) expect_scales(q, r, b, h, heads_, *scale_);
}

void RandomStagesCall::check_bounds(const ref::StagesRow& row, const std::vector<float>& z) {
  const std::vector<ref::Range> bounds = ref::stages_bounds(options_, row, order_);
  if (bounds.empty()) return;
  ++bounded_;
  for (size_t i = 0; i < z.size(); ++i) {
    const float y = ref::round_to(options_.norm.y_dtype(), z[i]);
    if (!bounds[i].holds(y) && finding_.empty())
      finding_ = "y is " + std::to_string(y) + " and leaves its bounds " +
                 std::to_string(bounds[i].low) + " .. " + std::to_string(bounds[i].high) +
                 " at column " + std::to_string(i);
  }
}

std::string RandomStagesCall::difference() const {
  if (!finding_.empty()) return finding_;
  for (const Named& t : named()) {
    if (t.tensor == nullptr) continue;
    const CallTensor& c = *t.tensor;
    if (c.now == c.expected) continue;
    // All NaN of rows are one.
    const Type type = type_of(c);
    const bool floats = t.tensor != codes_ && t.tensor != scale_;
    const auto size = static_cast<size_t>(c.bytes);
    for (size_t at = 0; at + size <= c.now.size(); at += floats ? size : 1) {
      const size_t count = floats ? size : 1;
      if (std::memcmp(&c.now[at], &c.expected[at], count) == 0) continue;
      float found = 0, wanted = 0;
      if (floats || (t.tensor == scale_ && c.bytes == 4 && at % 4 == 0)) {
        ref::decode_row(type, &c.now[at], &found, 1);
        ref::decode_row(type, &c.expected[at], &wanted, 1);
        if (std::isnan(found) && std::isnan(wanted)) {
          if (!floats) at += 3;
          continue;
        }
      }
      return std::string(t.name) + " byte " + std::to_string(at - c.first) + " is " +
             std::to_string(c.now[at]) + " (" + std::to_string(found) + "), not " +
             std::to_string(c.expected[at]) + " (" + std::to_string(wanted) + ")";
    }
  }
  return "";
}

std::string RandomStagesCall::text() const {
  constexpr const char* kActs[] = {"identity", "silu", "sigmoid", "tanh"};
  std::string s = "norm_stages " + std::string(ref::name_of(type_)) + " seed " +
                  std::to_string(seed_) + " [" + std::to_string(batch_) + "x" +
                  std::to_string(heads_) + "x" + std::to_string(groups_) + "*" +
                  std::to_string(options_.group) + "]";
  s += options_.norm.kind == ref::Kind::kLayer ? " layer" : " rms";
  s += " rounding " + std::to_string(static_cast<int>(options_.norm.rounding));
  if (residual_ != nullptr) s += " add";
  if (gate_ != nullptr)
    s += std::string(options_.gate_before ? " gate before " : " gate after ") +
         kActs[static_cast<int>(options_.gate_act)];
  if (options_.gate_from_rounded) s += " rounded";
  if (args_.activation != 0)
    s += std::string(" activation ") + kActs[static_cast<int>(options_.activation)];
  if (options_.branch)
    s += options_.of_branch.kind == ref::Kind::kLayer ? " branch layer" : " branch rms";
  if (options_.branch_rounded) s += " rounded";
  if (options_.scaled) s += " alpha";
  if (sum_scale_ != nullptr) s += " sum_scale";
  if (options_.sum_every_step) s += " sum every step";
  const auto add = [&s](const char* name, const Modulator& m) {
    if (m.rows != nullptr) s += std::string(" ") + name + (m.table != nullptr ? " and table" : "");
  };
  add("residual gate", residual_gate_);
  if (options_.residual_gate_act != ref::Activation::kIdentity)
    s += std::string(" ") + kActs[static_cast<int>(options_.residual_gate_act)];
  add("scale", modulation_scale_);
  add("shift", modulation_shift_);
  if (options_.plain_scale) s += " plain";
  if (options_.modulation_every_step) s += " modulation every step";
  if (index_ != nullptr) s += " by index";
  if (!outside_.empty()) s += " and outside";
  if (rstd_in_ != nullptr) s += " given";
  if (sumsq_ != nullptr) s += " sumsq";
  if (codes_ != nullptr) s += std::string(" codes ") + ref::name_of(quant_.scheme);
  if (codes_ != nullptr) s += name_of(args_.scale_layout);
  if (quant_.pow2) s += " pow2";
  if (quant_.amax_floor != 0) s += " floor";
  if (clamp_scale_ != nullptr) s += " clamp_scale";
  if (y_over_x_) s += " y over x";
  if (y_over_gate_) s += " y over gate";
  return s;
}

}  // namespace fastnorm::support
