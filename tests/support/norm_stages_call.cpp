#include "support/norm_stages_call.h"

#include <algorithm>
#include <cmath>

#include "ref/norm_stages_ref.h"
#include "support/quant_call.h"

namespace fastnorm::support {

using ref::Type;
using Shape = std::vector<int64_t>;

// ---- Rows of modulators.

namespace {

// How many there are.
int64_t indexed_rows(const Operands& call) {
  const auto& args = call.args<fastnorm_norm_args>();
  for (const fastnorm_tensor* t :
       {args.residual_gate, args.modulation_scale, args.modulation_shift}) {
    if (const Operand* rows = call(t)) return rows->shape[0];
  }
  return 1;
}

// Its extents but the last, which is 1 where the index has as many dimensions as x.
template <class Use>
void for_each_index(const Operand& index, Use use) {
  const int64_t count = index.rows() * index.shape.back();
  for (int64_t i = 0; i < count; ++i) {
    Shape at(index.shape.size());
    int64_t rest = i;
    for (size_t d = at.size(); d-- > 0; rest /= index.shape[d]) at[d] = rest % index.shape[d];
    use(index.place(at));
  }
}

}  // namespace

void fill_norm(Operands& call) {
  Operand* const index = call(call.args<fastnorm_norm_args>().modulation_index);
  if (index == nullptr) return;
  const int64_t rows = indexed_rows(call);
  const int64_t wide[] = {-1, rows, INT64_MIN, INT64_MAX, int64_t{1} << 32, -(int64_t{1} << 32)};
  const int64_t narrow[] = {-1, rows, INT32_MIN, INT32_MAX};
  const bool gpu = call.device().device_type == FASTNORM_DEVICE_CUDA;
  ref::Random random(ref::hash(call.seed(), 0x1dec5));
  for_each_index(*index, [&](size_t at) {
    const int64_t inside = random.below(rows),
                  outside = index->bytes == 8 ? random.of(wide) : random.of(narrow);
    index->set_index(at, random.one_in(3) && gpu ? outside : inside);
  });
}

std::vector<OutsideRow> outside_rows(const Operands& call) {
  const Operand* const index = call(call.args<fastnorm_norm_args>().modulation_index);
  std::vector<OutsideRow> all;
  if (index == nullptr) return all;
  const int64_t rows = indexed_rows(call);
  for_each_index(*index, [&](size_t at) {
    const int64_t number = index->number(at);
    if (number < 0 || number >= rows) all.push_back({index->bytes == 8, number, rows});
  });
  return all;
}

// ---- Drawing.

namespace {

class StagesDrawer {
 public:
  StagesDrawer(uint64_t seed, StagesKind kind, bool gpu)
      : line_("norm", seed, gpu), random_(ref::hash(seed, 43)), kind_(kind) {}

  std::string draw();

 private:
  bool aligned() const { return kind_ >= StagesKind::kAligned; }
  bool plain() const { return kind_ >= StagesKind::kGated; }
  bool modulated() const { return kind_ >= StagesKind::kModulated && !rotated(); }
  bool rotated() const { return kind_ == StagesKind::kRotated; }
  bool scaled() const { return kind_ == StagesKind::kScaled; }
  bool mixed() const { return kind_ == StagesKind::kMixed; }
  // Plain calls seldom have what their forms do not.
  bool odd(int64_t others) { return random_.one_in(plain() ? 12 : others); }
  int64_t unit() const { return aligned() ? 16 : 1; }
  int64_t group() const { return n_ / groups_; }
  Type any_type();
  // Roundings: each of `count` of any call, the first two of plain ones.
  int64_t draw_rounding(int64_t count) {
    return random_.one_in(2) ? 0 : odd(1) ? random_.below(count) : random_.below(2);
  }
  int64_t draw_act(const char* field);
  void draw_shape();
  void draw_rows(const std::string& path, Type type);
  void draw_statistic(const char* field, int64_t values);
  void draw_columns(const char* field, int64_t columns);
  void draw_inputs();
  void draw_gate();
  void draw_branch();
  void draw_sum();
  void draw_modulation();
  void draw_modulator(const char* rows, const char* table);
  void draw_statistics();
  void draw_outputs();

  LineWriter line_;
  ref::Random random_;
  const StagesKind kind_;
  bool bare_ = false;  // rotated codes, and nothing beside them
  Type type_ = Type::kF32, gate_ = Type::kF32;
  int64_t batch_ = 1, heads_ = 1, n_ = 1, groups_ = 1, rounding_ = 0;
  bool layer_ = false, has_residual_ = false, has_gate_ = false, has_codes_ = false;
  bool has_sums_ = false, grouped_ = false, has_stage_ = false;
  int64_t index_rows_ = 0;  // 0: without an index
  uint32_t flags_ = 0;
};

// Rows, groups and columns.
void StagesDrawer::draw_shape() {
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

std::string StagesDrawer::draw() {
  type_ = ref::kTypes[random_.below(3)];
  if (plain() && type_ == Type::kF32) type_ = Type::kBF16;
  bare_ = rotated() && random_.one_in(2);
  draw_shape();
  layer_ = (!plain() || (modulated() && !scaled())) && random_.one_in(2);
  rounding_ = bare_ ? 0 : draw_rounding(4);
  if (layer_) line_.set("kind", std::string("layer"));
  line_.set("rounding", rounding_);
  line_.set("eps", 1e-5);
  grouped_ = groups_ > 1 || (!rotated() && random_.one_in(3));
  draw_inputs();
  if (plain() ? kind_ == StagesKind::kGated : !random_.one_in(4)) draw_gate();
  if (plain() ? kind_ == StagesKind::kSandwich : random_.one_in(3)) draw_branch();
  if (kind_ != StagesKind::kGated && !scaled() && !rotated()) draw_sum();
  if (modulated() || (kind_ == StagesKind::kAny && random_.one_in(2))) draw_modulation();
  if (!plain() && random_.one_in(3)) has_stage_ |= draw_act("activation") != 0;
  draw_statistics();
  if (rotated() || odd(2)) {
    const DrawnQuant drawn = draw_quant(random_, line_, "quant", batch_, heads_, n_,
                                        bare_       ? QuantKind::kBare
                                        : rotated() ? QuantKind::kRotated
                                                    : QuantKind::kAny);
    const int64_t codes = drawn.options.format == ref::Format::kE2M1 ? n_ / 2 : n_;
    const int64_t step = rotated() ? 8 : 1;
    line_.tensor("quant.quantized", drawn.codes, {batch_, heads_, codes},
                 bare_ ? 0 : step * random_.below(3), step * random_.below(3));
    has_codes_ = true;
  }
  draw_outputs();
  // Every call has a stage, but for those that rotate.
  if (grouped_ || !(has_stage_ || rotated())) line_.set("group_size", group());
  if (flags_ != 0) line_.set("flags", int64_t{flags_});
  return line_.line();
}

void StagesDrawer::draw_inputs() {
  draw_rows("x", type_);
  line_.fill("x", static_cast<ref::Pattern>(random_.one_in(2) ? 0 : random_.below(ref::kPatterns)));
  has_residual_ = plain() ? kind_ == StagesKind::kSandwich || (rotated() && random_.one_in(2)) ||
                                (modulated() && !scaled() && !random_.one_in(4))
                          : random_.one_in(2);
  if (has_residual_) {
    draw_rows("residual", any_type());
    const int64_t rounding = odd(1) ? random_.below(3) : random_.one_in(2) ? 0 : 2;
    line_.set("residual_rounding", bare_ ? 0 : rounding);
  }
  const auto columns = [&] { return groups_ > 1 && random_.one_in(2) ? group() : n_; };
  if (bare_ || (modulated() && !scaled() ? odd(1) : !random_.one_in(3))) {
    draw_columns("weight", columns());
    if (random_.one_in(2)) line_.set("weight_offset", int64_t{1});
  }
  if (!plain() && random_.one_in(3)) draw_columns("bias", columns());
}

Type StagesDrawer::any_type() {
  const Type type = ref::kTypes[random_.below(3)];
  return aligned() ? type_ : type;
}

int64_t StagesDrawer::draw_act(const char* field) {
  const int64_t act = random_.below(ref::kActivations);
  line_.set(field, act);
  return act;
}

void StagesDrawer::draw_rows(const std::string& path, Type type) {
  line_.tensor(path, id_of(type), {batch_, heads_, n_}, bare_ ? 0 : unit() * random_.below(4),
               random_.one_in(3) ? unit() * random_.below(8) : int64_t{0});
}

// Draws a tensor of `values` for each group of each row. What is behind the leading dimensions is
// contiguous.
void StagesDrawer::draw_statistic(const char* field, int64_t values) {
  Shape shape = {batch_, heads_};
  if (groups_ > 1) shape.push_back(groups_);
  if (values > 1) shape.push_back(values);
  if (groups_ == 1 && values == 1 && random_.one_in(2)) shape.push_back(1);
  line_.tensor(field, FASTNORM_DTYPE_F32, shape);
}

void StagesDrawer::draw_columns(const char* field, int64_t columns) {
  const Type type = any_type();
  const bool each = !bare_ && odd(3);
  line_.tensor(field, id_of(type), each ? Shape{heads_, columns} : Shape{columns},
               each ? unit() * random_.below(3) : 0, each ? unit() * random_.below(3) : 0);
}

void StagesDrawer::draw_gate() {
  has_gate_ = has_stage_ = true;
  gate_ = !aligned() && random_.one_in(3) ? Type::kF32 : type_;
  draw_rows("gate", gate_);
  // Values of great magnitude, and Inf.
  if (random_.one_in(4)) {
    line_.fill("gate", ref::Pattern::kRandomBits);
  } else {
    line_.fill("gate", "spikes");
  }
  draw_act("gate_act");
  const bool before = !plain() && random_.one_in(3);
  if (before) line_.set("gate_position", std::string("before_norm"));
  if (!before && random_.one_in(3)) line_.set("gate_source", std::string("rounded"));
}

void StagesDrawer::draw_branch() {
  has_stage_ = true;
  line_.set("branch_norm", int64_t{1});
  if (!plain() && random_.one_in(3)) line_.set("branch_kind", std::string("layer"));
  line_.set("branch_rounding", draw_rounding(3));
  line_.set("branch_eps", 1e-3);
  if (random_.one_in(2)) line_.set("branch_rounded", int64_t{1});
  if (!random_.one_in(3)) {
    draw_columns("branch_weight", n_);
    if (random_.one_in(2)) line_.set("branch_weight_offset", int64_t{1});
  }
  if (!plain() && random_.one_in(3)) draw_columns("branch_bias", n_);
  if (random_.one_in(2)) line_.tensor("branch_rstd", FASTNORM_DTYPE_F32, {batch_, heads_}, 1);
}

void StagesDrawer::draw_sum() {
  if (random_.one_in(4)) {
    has_stage_ = true;
    flags_ |= FASTNORM_NORM_ALPHA;
    const float factors[] = {0.22f, -1.5f, 1.0f, 12.0f, 0.0f};
    line_.set("alpha", static_cast<double>(random_.of(factors)));
  }
  if (mixed() ? odd(1) : random_.one_in(6)) {
    has_stage_ = true;
    line_.scalar("sum_scale", 0.37f);
  }
  if (mixed() ? odd(1) : random_.one_in(5)) line_.set("sum_rounding", std::string("every_step"));
}

void StagesDrawer::draw_modulation() {
  has_stage_ = true;
  if (random_.one_in(3)) {
    const Shape shape = random_.one_in(2) ? Shape{batch_, heads_} : Shape{batch_, heads_, 1};
    line_.tensor("modulation_index", random_.one_in(2) ? FASTNORM_DTYPE_I64 : FASTNORM_DTYPE_I32,
                 shape, random_.below(3));
    index_rows_ = 1 + random_.below(4);
  }
  // At least one of them.
  const int64_t which = scaled() ? 2 * (1 + random_.below(3)) : 1 + random_.below(7);
  if ((which & 1) != 0) {
    draw_modulator("residual_gate", "residual_gate_table");
    if (odd(2)) draw_act("residual_gate_act");
  }
  if ((which & 2) != 0) {
    draw_modulator("modulation_scale", "scale_table");
    if (random_.one_in(4)) flags_ |= FASTNORM_NORM_MODULATION_PLAIN_SCALE;
  }
  if ((which & 4) != 0) draw_modulator("modulation_shift", "shift_table");
  if ((which & 6) != 0 && (mixed() || scaled() ? odd(1) : random_.one_in(3)))
    line_.set("modulation_rounding", std::string("every_step"));
}

// Draws a modulator. Any of x's dimensions may be 1, and leading ones may be missing.
void StagesDrawer::draw_modulator(const char* rows, const char* table) {
  const auto type = [&] { return (mixed() ? random_.one_in(2) : odd(2)) ? Type::kF32 : type_; };
  Shape shape = {batch_, heads_, n_};
  if (index_rows_ != 0) {
    shape = {index_rows_, n_};
  } else {
    for (size_t i = 0; i < 2; ++i) shape[i] = random_.one_in(2) ? shape[i] : 1;
    shape.erase(shape.begin(), shape.begin() + random_.below(3));
  }
  if (odd(4)) shape.back() = 1;
  line_.tensor(rows, id_of(type()), shape, unit() * random_.below(4), unit() * random_.below(3));
  if (random_.one_in(12)) line_.fill(rows, ref::Pattern::kRandomBits);
  if (!(mixed() ? random_.one_in(2) : odd(3))) return;
  Shape of_table(static_cast<size_t>(1 + random_.below(3)), 1);
  of_table.back() = n_;
  line_.tensor(table, id_of(type()), of_table, 0,
               (mixed() && !odd(1) ? unit() : 1) * random_.below(3));
}

// Given ones are others than the rows'.
void StagesDrawer::draw_statistics() {
  if (!plain() && random_.one_in(5)) {
    has_stage_ = true;
    draw_statistic("rstd_in", 1);
    if (layer_) draw_statistic("mean_in", 1);
    return;
  }
  if (random_.one_in(2)) draw_statistic("rstd", 1);
  if (layer_ && random_.one_in(2)) draw_statistic("mean", 1);
  has_sums_ = !bare_ && rounding_ != FASTNORM_ROUND_EVERY_STEP && odd(2);
  has_stage_ |= has_sums_;
  if (has_sums_) draw_statistic("sumsq", layer_ ? 2 : 1);
}

void StagesDrawer::draw_outputs() {
  bool has_y = false;
  if ((!has_codes_ && !has_sums_) || (!bare_ && random_.one_in(2))) {
    has_y = true;
    const Type y = odd(4) ? Type::kF32 : type_;
    if (y == type_ && random_.one_in(3)) {
      line_.same("y", "x");
    } else if (has_gate_ && gate_ == y && random_.one_in(3)) {
      line_.same("y", "gate");
    } else {
      draw_rows("y", y);
    }
  }
  if (has_residual_ && random_.one_in(2)) {
    if (random_.one_in(2)) {
      line_.same("residual_out", "residual");
    } else {
      draw_rows("residual_out", any_type());
    }
  }
  if (!bare_ && (has_y || has_codes_) && random_.one_in(3)) line_.scalar("quant.amax", 0.25f);
}

}  // namespace

std::string draw_norm_stages(uint64_t seed, StagesKind kind, bool gpu) {
  return StagesDrawer(seed, kind, gpu).draw();
}

// ---- What should be there.

namespace {

class NormModel {
 public:
  NormModel(Operands& call, ref::Order order);

  // Says what is expected of a row, whose number is `number`.
  void expect(Index row, int64_t number);

  Expected found;

 private:
  // A row of a tensor, of so many columns; empty where there is none.
  std::vector<float> row(const fastnorm_tensor* t, Index at, int64_t columns) const {
    const Operand* const o = call_(t);
    return o == nullptr ? std::vector<float>() : o->row(at, columns);
  }
  std::vector<float> weights(const fastnorm_tensor* t, Index at, bool* shared) const;
  std::vector<float> modulator(const fastnorm_tensor* t, Index at) const;
  void compare(const ref::StagesRow& row, const std::vector<float>& z);

  Operands& call_;
  const fastnorm_norm_args& args_;
  const ref::Order order_;
  const int64_t n_;
  ref::StagesOptions options_;
  std::unique_ptr<QuantModel> quant_;
  ref::ModelScratch scratch_;
};

NormModel::NormModel(Operands& call, ref::Order order)
    : call_(call),
      args_(call.args<fastnorm_norm_args>()),
      order_(order),
      n_(call(args_.x)->shape.back()) {
  const auto act = [](fastnorm_activation a) { return static_cast<ref::Activation>(a); };
  const Type type = call(args_.x)->type();
  ref::StagesOptions& o = options_;
  o.norm = norm_options(args_, type);
  o.norm.residual_rounding = static_cast<ref::ResidualRounding>(args_.residual_rounding);
  const Operand* const y = call(args_.y);
  o.norm.y_f32 = y != nullptr && y->type() == Type::kF32;
  const Operand* const sum =
      call(args_.residual_out != nullptr ? args_.residual_out : args_.residual);
  if (sum != nullptr) o.norm.sum_dtype = sum->type();
  o.gate_act = act(args_.gate_act);
  o.activation = act(args_.activation);
  o.gate_before = args_.gate_position == FASTNORM_GATE_BEFORE_NORM;
  o.gate_from_rounded = args_.gate_source == FASTNORM_GATE_FROM_ROUNDED;
  o.group = args_.group_size != 0 ? args_.group_size : n_;
  o.branch = args_.branch_norm != 0;
  o.of_branch.dtype = type;
  o.of_branch.kind = static_cast<ref::Kind>(args_.branch_kind);
  o.of_branch.rounding = static_cast<ref::Rounding>(args_.branch_rounding);
  o.of_branch.eps = args_.branch_eps;
  o.of_branch.weight_offset = args_.branch_weight_offset;
  o.branch_rounded = args_.branch_rounded != 0;
  if ((args_.flags & FASTNORM_NORM_ALPHA) != 0) o.alpha = args_.alpha;
  o.scaled = o.alpha != 1;
  o.sum_every_step = args_.sum_rounding == FASTNORM_SUM_EVERY_STEP;
  o.residual_gate_act = act(args_.residual_gate_act);
  o.plain_scale = (args_.flags & FASTNORM_NORM_MODULATION_PLAIN_SCALE) != 0;
  o.modulation_every_step = args_.modulation_rounding == FASTNORM_MODULATION_EVERY_STEP;
  quant_ = std::make_unique<QuantModel>(args_.quant, call, type, o.norm.y_dtype(),
                                        o.norm.rounding == ref::Rounding::kEveryStep);
}

// As many columns as there are, or as a group has.
std::vector<float> NormModel::weights(const fastnorm_tensor* t, Index at, bool* shared) const {
  const Operand* const o = call_(t);
  if (o == nullptr) return {};
  *shared = o->shape.back() != n_;
  return o->row(at, *shared ? options_.group : n_);
}

std::vector<float> NormModel::modulator(const fastnorm_tensor* t, Index at) const {
  const Operand *const o = call_(t), *const index = call_(args_.modulation_index);
  if (o == nullptr || index == nullptr) return row(t, at, n_);
  const int64_t number = std::clamp<int64_t>(index->number(index->place(at)), 0, o->shape[0] - 1);
  return o->row(Index(&number, 1), n_);
}

void NormModel::expect(Index at, int64_t number) {
  const auto pointer = [](const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); };
  const int64_t groups = n_ / options_.group;
  const auto statistic = [&](const fastnorm_tensor* t) {
    const Operand* const o = call_(t);
    return o == nullptr ? std::vector<float>() : o->values(o->place(at), groups);
  };
  ref::StagesRow r;
  const std::vector<float> x = row(args_.x, at, n_), residual = row(args_.residual, at, n_),
                           gate = row(args_.gate, at, n_), mean_in = statistic(args_.mean_in),
                           rstd_in = statistic(args_.rstd_in),
                           weight = weights(args_.weight, at, &r.weight_shared),
                           bias = weights(args_.bias, at, &r.bias_shared),
                           branch_weight = row(args_.branch_weight, at, n_),
                           branch_bias = row(args_.branch_bias, at, n_),
                           sum_scale = row(args_.sum_scale, {}, 1);
  r.row = {n_, x.data(), pointer(residual), pointer(weight), pointer(bias)};
  r.gate = pointer(gate);
  r.branch_weight = pointer(branch_weight);
  r.branch_bias = pointer(branch_bias);
  r.sum_scale = pointer(sum_scale);
  const std::vector<float> residual_gate = modulator(args_.residual_gate, at),
                           residual_gate_table = row(args_.residual_gate_table, {}, n_),
                           scale = modulator(args_.modulation_scale, at),
                           scale_table = row(args_.scale_table, {}, n_),
                           shift = modulator(args_.modulation_shift, at),
                           shift_table = row(args_.shift_table, {}, n_);
  r.residual_gate = {pointer(residual_gate), pointer(residual_gate_table)};
  r.scale = {pointer(scale), pointer(scale_table)};
  r.shift = {pointer(shift), pointer(shift_table)};
  r.mean_in = pointer(mean_in);
  r.rstd_in = pointer(rstd_in);
  ref::StagesResult result;
  ref::stages_model(options_, r, order_, &scratch_, &result);
  const auto put = [&](const fastnorm_tensor* t, const std::vector<float>& values) {
    if (Operand* o = call_(t)) o->expect(o->place(at), values);
  };
  put(args_.y, quant_->expect(at, number, result.z));
  put(args_.residual_out, result.sum);
  put(args_.mean, result.mean);
  put(args_.rstd, result.rstd);
  put(args_.sumsq, result.sumsq);
  put(args_.branch_rstd, {result.branch_rstd});
  compare(r, result.z);
}

void NormModel::compare(const ref::StagesRow& row, const std::vector<float>& z) {
  const std::vector<ref::Range> bounds = ref::stages_bounds(options_, row, order_);
  if (bounds.empty()) return;
  ++found.bounded;
  for (size_t i = 0; i < z.size(); ++i) {
    const float y = ref::round_to(options_.norm.y_dtype(), z[i]);
    if (!bounds[i].holds(y) && found.out_of_bounds.empty())
      found.out_of_bounds = "y is " + std::to_string(y) + " and leaves its bounds " +
                            std::to_string(bounds[i].low) + " .. " +
                            std::to_string(bounds[i].high) + " at column " + std::to_string(i);
  }
}

}  // namespace

Expected expect_norm(Operands& call, ref::Order order) {
  NormModel model(call, order);
  const Operand& x = *call(call.args<fastnorm_norm_args>().x);
  Shape at(x.shape.size() - 1);
  for (int64_t r = 0; r < x.rows(); ++r) {
    int64_t rest = r;
    for (size_t d = at.size(); d-- > 0; rest /= x.shape[d]) at[d] = rest % x.shape[d];
    model.expect(at, r);
  }
  return model.found;
}

CallModel norm_stages_model() { return {"norm", fill_norm, expect_norm}; }

}  // namespace fastnorm::support
