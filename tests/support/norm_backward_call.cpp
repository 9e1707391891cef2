// Calls of norm_backward: what the model says should be there afterwards.
#include <cmath>
#include <cstdio>
#include <unordered_map>
#include <vector>

#include "fastnorm/norm_backward.h"
#include "ref/norm_backward_ref.h"
#include "support/call_model.h"
#include "support/quant_call.h"

namespace fastnorm::support {

using ref::Type;

namespace {

// The rows of the formulas: with groups, each group of a row is one.
class GradientModel {
 public:
  GradientModel(Operands& call, ref::Order order);

  void give_statistics();
  void expect();
  const std::string& out_of_bounds() const { return out_of_bounds_; }

 private:
  // A sum over rows.
  struct Sum {
    const char* name;
    const fastnorm_tensor* to;
    bool accumulate;
  };

  void set_options();
  std::vector<int64_t> leading(int64_t r) const;
  // The byte of row r of a tensor, which may broadcast; of a statistic.
  size_t place(const Operand& o, int64_t r) const;
  size_t place_of_statistic(const Operand& o, int64_t r) const;
  const float* values(const fastnorm_tensor* t, int64_t r);
  void compute_statistics(bool branch, int64_t r, float* mean, float* rstd);
  void set_rows();
  void check(const char* name, int64_t r, const Operand& to, const std::vector<float>& found,
             const std::vector<ref::Range>& bounds);
  void expect_rows(int64_t r);
  void expect_sum(const Sum& sum);
  void model_of(const Sum& sum, int64_t count, const ref::NormBackwardRows& at,
                const ref::StoredSum& stored, std::vector<float>* result,
                std::vector<ref::Range>* bounds) const;

  Operands& call_;
  const fastnorm_norm_backward_args& args_;
  const ref::Order order_;
  const bool wrong_;
  const Operand& x_;
  int64_t n_ = 0, groups_ = 1, count_ = 0;
  bool has_branch_ = false;
  ref::NormBackwardOptions options_;
  ref::ModelScratch scratch_;
  // The values of each place that a row begins at.
  std::unordered_map<const Operand*, std::unordered_map<size_t, std::vector<float>>> values_;
  std::vector<ref::NormBackwardRow> rows_;
  std::string out_of_bounds_;
};

GradientModel::GradientModel(Operands& call, ref::Order order)
    : call_(call),
      args_(call.args<fastnorm_norm_backward_args>()),
      order_(order),
      wrong_(order != ref::Order::kCpu && order != ref::Order::kGpu),
      x_(*call(args_.x)) {
  n_ = args_.group_size != 0 ? args_.group_size : x_.shape.back();
  groups_ = x_.shape.back() / n_;
  count_ = x_.rows() * groups_;
  has_branch_ = args_.branch != nullptr || args_.dbranch != nullptr || args_.sum_scale != nullptr;
  set_options();
}

void GradientModel::set_options() {
  const Operand *const dx = call_(args_.dx), *const dy = call_(args_.dy),
                       *const branch =
                           call_(args_.branch != nullptr ? args_.branch : args_.dbranch);
  ref::NormBackwardOptions& o = options_;
  o.dtype = branch != nullptr          ? branch->type()
            : dx != nullptr            ? dx->type()
            : dy->type() != Type::kF32 ? dy->type()
                                       : x_.type();
  o.x_dtype = x_.type();
  const ref::NormOptions norm = norm_options(args_, o.dtype);
  o.kind = norm.kind;
  o.rounding = norm.rounding;
  o.eps = norm.eps;
  o.weight_offset = norm.weight_offset;
  o.gate_act = static_cast<ref::Activation>(args_.gate_act);
  o.gate_before = args_.gate_position == FASTNORM_GATE_BEFORE_NORM;
  o.gate_from_rounded = args_.gate_source == FASTNORM_GATE_FROM_ROUNDED;
  ref::NormBackwardBranch& b = o.branch;
  b.normalise = args_.branch_norm != 0;
  b.kind = static_cast<ref::Kind>(args_.branch_kind);
  b.rounding = static_cast<ref::Rounding>(args_.branch_rounding);
  b.eps = args_.branch_eps;
  b.weight_offset = args_.branch_weight_offset;
  b.rounded = args_.branch_rounded != 0;
  b.act = static_cast<ref::Activation>(args_.residual_gate_act);
  if ((args_.flags & FASTNORM_NORM_BACKWARD_ALPHA) != 0) b.alpha = args_.alpha;
  if (const Operand* scale = call_(args_.sum_scale)) b.sum_scale = scale->scalar();
}

// Indices of x but the last.
std::vector<int64_t> GradientModel::leading(int64_t r) const {
  std::vector<int64_t> at(x_.shape.size() - 1);
  int64_t rest = r / groups_;
  for (size_t d = at.size(); d-- > 0; rest /= x_.shape[d]) at[d] = rest % x_.shape[d];
  return at;
}

size_t GradientModel::place(const Operand& o, int64_t r) const {
  const size_t row = o.place_of_row(leading(r));
  const bool shared = groups_ == 1 || o.shape.back() == n_;  // by the groups of a row
  return shared ? row : row + static_cast<size_t>(r % groups_ * n_ * o.strides.back() * o.bytes);
}

size_t GradientModel::place_of_statistic(const Operand& o, int64_t r) const {
  std::vector<int64_t> at = leading(r);
  if (o.shape.size() > at.size()) at.push_back(r % groups_);
  return o.place(at);
}

const float* GradientModel::values(const fastnorm_tensor* t, int64_t r) {
  const Operand* const o = call_(t);
  if (o == nullptr) return nullptr;
  const size_t at = place(*o, r);
  std::vector<float>& row = values_[o][at];
  if (row.empty() && o->strides.back() == 1) row = o->values(at, n_);
  if (row.empty()) row.assign(static_cast<size_t>(n_), o->values(at, 1)[0]);
  return row.data();
}

void GradientModel::compute_statistics(bool branch, int64_t r, float* mean, float* rstd) {
  if (branch) {
    ref::norm_backward_statistics(ref::norm_backward_branch_options(options_),
                                  values(args_.branch, r), n_, order_, &scratch_, mean, rstd);
  } else {
    ref::norm_backward_statistics(options_, values(args_.x, r), n_, order_, &scratch_, mean, rstd,
                                  options_.gate_before ? values(args_.gate, r) : nullptr);
  }
}

void GradientModel::give_statistics() {
  const struct {
    bool branch;
    Operand *mean, *rstd;
    float more, factor;
  } all[] = {{false, call_(args_.mean), call_(args_.rstd), 0.125f, 1.0625f},
             {true, call_(args_.branch_mean), call_(args_.branch_rstd), -0.25f, 1.125f}};
  for (const auto& s : all) {
    for (int64_t r = 0; s.rstd != nullptr && r < count_; ++r) {
      float mean = 0, rstd = 0;
      compute_statistics(s.branch, r, &mean, &rstd);
      s.rstd->set_number(place_of_statistic(*s.rstd, r), rstd * s.factor);
      if (s.mean != nullptr) s.mean->set_number(place_of_statistic(*s.mean, r), mean + s.more);
    }
  }
}

void GradientModel::set_rows() {
  const auto given = [&](const fastnorm_tensor* t, int64_t r, float* to) {
    const Operand* const o = call_(t);
    if (o != nullptr) *to = o->values(place_of_statistic(*o, r), 1)[0];
  };
  for (int64_t r = 0; r < count_; ++r) {
    ref::NormBackwardRow row;
    row.n = n_;
    row.dy = values(args_.dy, r);
    row.x = values(args_.x, r);
    row.weight = values(args_.weight, r);
    row.dresidual_in = values(args_.dresidual_in, r);
    row.gate = values(args_.gate, r);
    row.bias = values(args_.bias, r);
    row.branch = values(args_.branch, r);
    row.branch_weight = values(args_.branch_weight, r);
    row.branch_bias = values(args_.branch_bias, r);
    row.residual_gate = values(args_.residual_gate, r);
    if (args_.rstd == nullptr) compute_statistics(false, r, &row.mean, &row.rstd);
    given(args_.mean, r, &row.mean);
    given(args_.rstd, r, &row.rstd);
    if (args_.branch_norm != 0 && args_.branch_rstd == nullptr)
      compute_statistics(true, r, &row.branch_mean, &row.branch_rstd);
    given(args_.branch_mean, r, &row.branch_mean);
    given(args_.branch_rstd, r, &row.branch_rstd);
    rows_.push_back(row);
  }
}

void GradientModel::check(const char* name, int64_t r, const Operand& to,
                          const std::vector<float>& found, const std::vector<ref::Range>& bounds) {
  for (size_t i = 0; i < bounds.size() && !wrong_ && out_of_bounds_.empty(); ++i) {
    const auto value = static_cast<double>(ref::round_to(to.type(), found[i]));
    if (std::isnan(value) || bounds[i].holds(value)) continue;
    char text[160];
    std::snprintf(text, sizeof text, "%s row %lld [%zu] is %.9g, required from %.9g to %.9g", name,
                  static_cast<long long>(r), i, value, bounds[i].low, bounds[i].high);
    out_of_bounds_ = text;
  }
}

void GradientModel::expect_rows(int64_t r) {
  const ref::NormBackwardRow& row = rows_[static_cast<size_t>(r)];
  Operand *const dx = call_(args_.dx), *const dresidual = call_(args_.dresidual),
                 *const dgate = call_(args_.dgate), *const dbranch = call_(args_.dbranch);
  if (dx == nullptr && dgate == nullptr && dbranch == nullptr) return;
  std::vector<float> dh(static_cast<size_t>(n_)), beside(dh);
  Operand* const other = has_branch_ ? dbranch : dgate;
  float* const to_other = other != nullptr ? beside.data() : nullptr;
  if (has_branch_) {
    ref::norm_backward_branch_model(options_, row, order_, dh.data(), to_other);
  } else {
    ref::norm_backward_row_model(options_, row, order_, dh.data(), to_other);
  }
  const auto put = [&](Operand* to, const char* name, const std::vector<float>& found,
                       const std::vector<ref::Range>& bounds) {
    check(name, r, *to, found, bounds);
    to->expect(place(*to, r), found);
  };
  if (dx != nullptr)
    put(dx, "dx", dh, ref::norm_backward_row_bounds(options_, row, order_, dx->type()));
  if (dresidual != nullptr)
    put(dresidual, "dresidual", dh,
        ref::norm_backward_row_bounds(options_, row, order_, dresidual->type()));
  if (other != nullptr)
    put(other, has_branch_ ? "dbranch" : "dgate", beside,
        has_branch_ ? ref::norm_backward_dbranch_bounds(options_, row, order_, other->type())
                    : ref::norm_backward_dgate_bounds(options_, row, order_, other->type()));
}

// The model and its bounds of a sum over so many rows.
void GradientModel::model_of(const Sum& sum, int64_t count, const ref::NormBackwardRows& at,
                             const ref::StoredSum& stored, std::vector<float>* result,
                             std::vector<ref::Range>* bounds) const {
  result->resize(static_cast<size_t>(n_));
  const auto if_to = [&](const fastnorm_tensor* t, auto* wanted) {
    return sum.to == t ? wanted : nullptr;
  };
  float* const to = result->data();
  if (sum.to == args_.dweight || sum.to == args_.dbias) {
    ref::norm_backward_sums_model(options_, count, n_, at, if_to(args_.dweight, to),
                                  if_to(args_.dbias, to),
                                  wrong_ ? ref::RowOrder::kSequential : ref::RowOrder::kSpecified);
    *bounds = sum.to == args_.dweight
                  ? ref::norm_backward_dweight_bounds(options_, count, n_, at, stored)
                  : ref::norm_backward_dbias_bounds(options_, count, n_, at, stored);
    return;
  }
  ref::norm_backward_branch_sums_model(
      options_, count, n_, at, order_, if_to(args_.dbranch_weight, to),
      if_to(args_.dbranch_bias, to), if_to(args_.dresidual_gate, to));
  const ref::BranchSumBounds all = ref::norm_backward_branch_sum_bounds(
      options_, count, n_, at, order_,
      {if_to(args_.dbranch_weight, &stored), if_to(args_.dbranch_bias, &stored),
       if_to(args_.dresidual_gate, &stored)});
  for (const std::vector<ref::Range>* of : {&all.dweight, &all.dbias, &all.dresidual_gate}) {
    if (!of->empty()) *bounds = *of;
  }
}

void GradientModel::expect_sum(const Sum& sum) {
  Operand& to = *call_(sum.to);
  std::unordered_map<size_t, std::vector<int64_t>> rows;
  for (int64_t r = 0; r < count_; ++r) rows[place(to, r)].push_back(r);
  const int64_t parts = to.shape.back() / n_, total = to.rows() * parts;
  for (int64_t i = 0; i < total; ++i) {
    std::vector<int64_t> index(to.shape.size());
    index.back() = i % parts * n_;
    int64_t rest = i / parts;
    for (size_t d = index.size() - 1; d-- > 0; rest /= to.shape[d]) index[d] = rest % to.shape[d];
    const size_t at = to.place(index);
    const std::vector<int64_t>& own = rows[at];
    const auto count = static_cast<int64_t>(own.size());
    if (count == 0 && sum.accumulate) continue;  // not touched
    const ref::NormBackwardRows row_of = [&](int64_t k) {
      return rows_[static_cast<size_t>(own[static_cast<size_t>(k)])];
    };
    const std::vector<float> old = to.values(at, n_);
    std::vector<float> found;
    std::vector<ref::Range> bounds;
    model_of(sum, count, row_of, {to.type(), sum.accumulate ? old.data() : nullptr}, &found,
             &bounds);
    for (size_t k = 0; sum.accumulate && k < found.size(); ++k) found[k] = old[k] + found[k];
    check(sum.name, i, to, found, bounds);
    to.expect(at, found);
  }
}

void GradientModel::expect() {
  set_rows();
  for (int64_t r = 0; r < count_; ++r) expect_rows(r);
  const auto adds = [&](uint32_t flag) { return (args_.flags & flag) != 0; };
  const Sum all[] = {
      {"dweight", args_.dweight, adds(FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT)},
      {"dbias", args_.dbias, adds(FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS)},
      {"dbranch_weight", args_.dbranch_weight,
       adds(FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT)},
      {"dbranch_bias", args_.dbranch_bias, adds(FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS)},
      {"dresidual_gate", args_.dresidual_gate,
       adds(FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE)},
  };
  for (const Sum& sum : all) {
    if (sum.to != nullptr) expect_sum(sum);
  }
}

// Statistics that are given differ a little from those of the rows, so that a result from the
// latter would show.
void fill(Operands& call) {
  const bool gpu = call.device().device_type == FASTNORM_DEVICE_CUDA;
  GradientModel(call, gpu ? ref::Order::kGpu : ref::Order::kCpu).give_statistics();
}

// With a wrong order of sums along rows, those over rows are sequential, and nothing is said of
// bounds.
Expected expect(Operands& call, ref::Order order) {
  GradientModel model(call, order);
  model.expect();
  return {model.out_of_bounds()};
}

}  // namespace

CallModel norm_backward_model() { return {"norm_backward", fill, expect}; }

}  // namespace fastnorm::support
