#include "check/norm_backward.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>

#include "check/norm_backward_case.h"
#include "check/parallel.h"
#include "core/norm_backward_batch.h"
#include "ref/norm_backward_ref.h"

namespace fastnorm::check {
namespace {

using ref::Type;

// A tensor of a case: its values as f32, row by row, and its place in the block.
struct Placed {
  std::vector<float> values;  // [rows][columns] of its own rows
  Type dtype = Type::kF32;
  int64_t columns = 1;
  int64_t shape[3] = {};
  int64_t strides[3] = {};  // elements
  int64_t base = 0;         // bytes from the block's start
  bool present = false;
  fastnorm_tensor tensor = {};
  int64_t grouped_shape[2] = {}, grouped_strides[2] = {};  // [batch, heads * columns]

  const float* row(int64_t r) const { return values.data() + r * columns; }
  // The position of row (i, j) of a tensor with two leading dimensions.
  int64_t at(int64_t i, int64_t j) const {
    return base + (i * strides[0] + j * strides[1]) * ref::bytes_of(dtype);
  }
};

fastnorm_dtype_id id_of(Type type) {
  return type == Type::kF32   ? FASTNORM_DTYPE_F32
         : type == Type::kF16 ? FASTNORM_DTYPE_F16
                              : FASTNORM_DTYPE_BF16;
}

constexpr float kBranchEps = 1e-5f, kSumScale = 0.8125f;

// A sum over rows.
struct SumOfRows {
  const char* name;
  const Placed& out;
  Share share;
  bool accumulate;
};

// What passed, of one case.
struct Accepted {
  ref::Order order = ref::Order::kCpu;
  std::vector<std::byte> before, after;  // empty: nothing yet
};

class NormBackwardRun {
 public:
  NormBackwardRun(const NormBackwardCase& what, Target& target) : c_(what), target_(target) {
    place_inputs();
    place_outputs();
    options_.dtype = c_.dtype;
    options_.x_dtype = c_.x;
    options_.kind = c_.kind;
    options_.rounding = c_.rounding;
    options_.eps = c_.eps;
    options_.weight_offset = c_.weight_offset;
    options_.gate_act = c_.gate_act;
    options_.gate_before = c_.gate_before;
    options_.gate_from_rounded = c_.gate_from_rounded;
    const BranchCase& b = c_.branch;
    ref::NormBackwardBranch& to = options_.branch;
    to.normalise = b.normalise;
    to.kind = b.kind;
    to.rounding = b.rounding;
    to.eps = b.normalise ? kBranchEps : 0;
    to.weight_offset = b.weight_offset;
    to.rounded = b.rounded;
    to.act = b.act;
    if (b.alpha != 0) to.alpha = b.alpha;
    if (b.has_sum_scale) to.sum_scale = kSumScale;
  }

  // Returns "", or what is wrong.
  std::string run(Accepted* accepted);

  // Whether the comparison can tell a wrong order from the right one.
  bool tells_orders() const;

 private:
  int64_t group_of(Share share, int64_t b, int64_t h) const {
    return share == Share::kAll       ? 0
           : share == Share::kByHead  ? h
           : share == Share::kByBatch ? b
                                      : b * c_.heads + h;
  }
  int64_t groups(Share share) const {
    return share == Share::kAll       ? 1
           : share == Share::kByHead  ? c_.heads
           : share == Share::kByBatch ? c_.batch
                                      : c_.rows();
  }
  // The rows of a group, in row-major order.
  std::vector<int64_t> rows_of(Share share, int64_t group) const {
    std::vector<int64_t> rows;
    for (int64_t r = 0; r < c_.rows(); ++r) {
      if (group_of(share, r / c_.heads, r % c_.heads) == group) rows.push_back(r);
    }
    return rows;
  }

  void fill(Placed* t, ref::Pattern pattern, int number, int64_t rows) const {
    t->values.resize(static_cast<size_t>(rows * t->columns));
    for (int64_t r = 0; r < rows; ++r) {
      ref::fill_row(pattern, t->dtype, ref::hash(c_.seed, number, r),
                    t->values.data() + r * t->columns, t->columns);
    }
  }

  // Reserves room in the block, with a gap behind the last tensor.
  void take_room(Placed* t, int64_t elements) {
    constexpr int64_t kGap = 128;
    const int64_t bytes = ref::bytes_of(t->dtype);
    t->present = true;
    t->base = (bytes_ + kGap + 63) / 64 * 64 + c_.shift * bytes;
    bytes_ = t->base + elements * bytes;
  }

  void place_rows(Placed* t, Type dtype, int64_t columns) {
    t->dtype = dtype;
    t->columns = columns;
    const int64_t pitch = columns + c_.padding;
    const int64_t shape[3] = {c_.batch, c_.heads, columns};
    const int64_t strides[3] = {c_.transposed ? pitch : pitch * c_.heads,
                                c_.transposed ? pitch * c_.batch : pitch, 1};
    std::copy_n(shape, 3, t->shape);
    std::copy_n(strides, 3, t->strides);
    take_room(t, pitch * c_.rows());
  }

  void place_parameters(Placed* t, Type dtype, Share share) {
    t->dtype = dtype;
    t->columns = c_.n;
    const bool by_head = share == Share::kByHead || share == Share::kNone,
               by_batch = share == Share::kByBatch || share == Share::kNone;
    const int64_t pitch = c_.n + c_.padding;
    const int64_t shape[3] = {by_batch ? c_.batch : 1, by_head ? c_.heads : 1, c_.n};
    const int64_t strides[3] = {by_batch ? pitch * (by_head ? c_.heads : 1) : 0,
                                by_head ? pitch : 0, 1};
    std::copy_n(shape, 3, t->shape);
    std::copy_n(strides, 3, t->strides);
    take_room(t, pitch * groups(share));
  }

  void place_inputs();
  void place_branch();
  void place_dy();
  void place_statistics();
  void place_branch_statistics();
  void place_outputs();
  void describe(std::byte* block, fastnorm_norm_backward_args* args);
  std::vector<std::byte> before() const;
  ref::NormBackwardRow row_of(int64_t r) const;
  std::string run_once(Device& device, Accepted* accepted);
  std::string compare(const std::vector<std::byte>& first, std::vector<std::byte> found) const;
  std::string compare_rows(const Placed& out, const char* name, std::vector<std::byte>* wanted,
                           std::vector<std::byte>* found) const;
  std::vector<SumOfRows> sums() const;
  std::string compare_sum(const SumOfRows& sum, std::vector<std::byte>* wanted,
                          std::vector<std::byte>* found) const;
  void model_of(const SumOfRows& sum, int64_t rows, const ref::NormBackwardRows& at,
                const ref::StoredSum& stored, std::vector<float>* values,
                std::vector<ref::Range>* bounds) const;
  static std::string compare_row(const float* expected, const std::vector<ref::Range>& bounds,
                                 const Placed& out, int64_t at, std::byte* wanted,
                                 std::byte* found);

  const NormBackwardCase c_;
  Target& target_;
  ref::NormBackwardOptions options_;
  Placed dy_, x_, weight_, mean_, rstd_, dresidual_in_, dx_, dresidual_, dweight_, dbias_;
  Placed gate_, bias_, dgate_;
  Placed branch_, branch_weight_, branch_bias_, branch_mean_, branch_rstd_, residual_gate_;
  Placed sum_scale_, dbranch_, dbranch_weight_, dbranch_bias_, dresidual_gate_;
  std::vector<float> means_, rstds_;  // of each row, passed or computed again
  std::vector<float> branch_means_, branch_rstds_;
  int64_t bytes_ = 0;
};

void NormBackwardRun::place_dy() {
  place_rows(&dy_, c_.dy, c_.n);
  fill(&dy_, ref::Pattern::kNormal, 1, c_.rows());
  if (c_.expand == Expand::kNo) return;
  dy_.strides[0] = dy_.strides[1] = 0;
  if (c_.expand == Expand::kAll) dy_.strides[2] = 0;
  for (int64_t r = 0; r < c_.rows(); ++r) {
    for (int64_t i = 0; i < c_.n; ++i)
      dy_.values[static_cast<size_t>(r * c_.n + i)] =
          dy_.values[static_cast<size_t>(c_.expand == Expand::kAll ? 0 : i)];
  }
}

void NormBackwardRun::place_inputs() {
  place_dy();
  place_rows(&x_, c_.x, c_.n);
  fill(&x_, c_.pattern, 2, c_.rows());
  if (c_.has_weight) {
    place_parameters(&weight_, c_.weight, c_.share);
    fill(&weight_, ref::Pattern::kWeights, 3, groups(c_.share));
  }
  if (c_.has_dresidual_in) {
    place_rows(&dresidual_in_, c_.dresidual_in, c_.n);
    fill(&dresidual_in_, ref::Pattern::kNormal, 4, c_.rows());
  }
  if (c_.has_gate) {
    place_rows(&gate_, c_.gate, c_.n);
    fill(&gate_, c_.gate_pattern, 7, c_.rows());
  }
  if (c_.has_bias) {
    place_parameters(&bias_, c_.bias, c_.share);
    fill(&bias_, ref::Pattern::kWeights, 8, groups(c_.share));
  }
  place_branch();
}

void NormBackwardRun::place_branch() {
  const BranchCase& b = c_.branch;
  const auto parameter = [&](bool has, Placed* t, Type type, Share share, ref::Pattern pattern,
                             int number) {
    if (!has) return;
    place_parameters(t, type, share);
    fill(t, pattern, number, groups(share));
  };
  if (b.has_branch) {
    place_rows(&branch_, c_.dtype, c_.n);
    fill(&branch_, b.pattern, 9, c_.rows());
  }
  parameter(b.has_weight, &branch_weight_, b.weight, b.share, ref::Pattern::kWeights, 10);
  parameter(b.has_bias, &branch_bias_, b.bias, b.bias_share, ref::Pattern::kWeights, 11);
  parameter(b.has_gate, &residual_gate_, b.gate, b.gate_share, ref::Pattern::kNormal, 12);
  if (!b.has_sum_scale) return;
  sum_scale_.shape[2] = sum_scale_.strides[2] = 1;
  take_room(&sum_scale_, 1);
  sum_scale_.values = {kSumScale};
}

// The forward's statistics. If they are passed, they differ a little, so that a result from other
// statistics would show.
void NormBackwardRun::place_statistics() {
  ref::ModelScratch scratch;
  means_.assign(static_cast<size_t>(c_.rows()), 0.0f);
  rstds_ = means_;
  for (int64_t r = 0; r < c_.rows(); ++r) {
    float &mean = means_[static_cast<size_t>(r)], &rstd = rstds_[static_cast<size_t>(r)];
    ref::norm_backward_statistics(options_, x_.row(r), c_.n, target_.order, &scratch, &mean, &rstd,
                                  c_.gate_before ? gate_.row(r) : nullptr);
    if (!c_.has_statistics) continue;
    rstd *= 1.0625f;
    if (c_.kind == ref::Kind::kLayer) mean += 0.125f;
  }
  if (!c_.has_statistics) return;
  place_rows(&rstd_, Type::kF32, 1);
  rstd_.values = rstds_;
  if (c_.kind != ref::Kind::kLayer) return;
  place_rows(&mean_, Type::kF32, 1);
  mean_.values = means_;
}

void NormBackwardRun::place_branch_statistics() {
  const BranchCase& b = c_.branch;
  branch_means_.assign(static_cast<size_t>(c_.rows()), 0.0f);
  branch_rstds_ = branch_means_;
  if (!b.normalise) return;
  ref::ModelScratch scratch;
  const ref::NormBackwardOptions of_branch = ref::norm_backward_branch_options(options_);
  for (int64_t r = 0; r < c_.rows(); ++r) {
    float& mean = branch_means_[static_cast<size_t>(r)];
    float& rstd = branch_rstds_[static_cast<size_t>(r)];
    ref::norm_backward_statistics(of_branch, branch_.row(r), c_.n, target_.order, &scratch, &mean,
                                  &rstd);
    if (!b.has_statistics) continue;
    rstd *= 1.125f;
    if (b.kind == ref::Kind::kLayer) mean -= 0.25f;
  }
  if (!b.has_statistics) return;
  place_rows(&branch_rstd_, Type::kF32, 1);
  branch_rstd_.values = branch_rstds_;
  if (b.kind != ref::Kind::kLayer) return;
  place_rows(&branch_mean_, Type::kF32, 1);
  branch_mean_.values = branch_means_;
}

void NormBackwardRun::place_outputs() {
  const BranchCase& b = c_.branch;
  const auto sum = [&](bool has, Placed* t, Type type, Share share, int number) {
    if (!has) return;
    place_parameters(t, type, share);
    fill(t, ref::Pattern::kNormal, number, groups(share));
  };
  if (b.has_dbranch) b.in_place ? void(dbranch_ = branch_) : place_rows(&dbranch_, c_.dtype, c_.n);
  sum(b.has_dweight, &dbranch_weight_, b.dweight, b.share, 13);
  sum(b.has_dbias, &dbranch_bias_, b.dbias, b.bias_share, 14);
  sum(b.has_dgate, &dresidual_gate_, b.dgate, b.gate_share, 15);
  if (c_.has_dx) {
    const Placed* const over = c_.in_place == InPlace::kDy            ? &dy_
                               : c_.in_place == InPlace::kX           ? &x_
                               : c_.in_place == InPlace::kDresidualIn ? &dresidual_in_
                                                                      : nullptr;
    over != nullptr ? void(dx_ = *over) : place_rows(&dx_, c_.dx, c_.n);
  }
  if (c_.has_dresidual) {
    c_.dresidual_in_place ? void(dresidual_ = dresidual_in_)
                          : place_rows(&dresidual_, c_.dresidual, c_.n);
  }
  if (c_.has_dgate) {
    const Placed* const over = c_.gate_in_place == GateInPlace::kGate ? &gate_
                               : c_.gate_in_place == GateInPlace::kDy ? &dy_
                                                                      : nullptr;
    over != nullptr ? void(dgate_ = *over) : place_rows(&dgate_, c_.dgate, c_.n);
  }
  sum(c_.has_dweight, &dweight_, c_.dweight, c_.share, 5);
  sum(c_.has_dbias, &dbias_, c_.dbias, c_.bias_share, 6);
}

void NormBackwardRun::describe(std::byte* block, fastnorm_norm_backward_args* args) {
  *args = {};
  args->struct_size = sizeof *args;
  args->kind = c_.kind == ref::Kind::kRms ? FASTNORM_NORM_RMS : FASTNORM_NORM_LAYER;
  args->eps = c_.eps;
  args->weight_offset = c_.weight_offset;
  args->rounding = static_cast<fastnorm_rounding>(c_.rounding);
  if (c_.accumulate_dweight) args->flags |= FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT;
  if (c_.accumulate_dbias) args->flags |= FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS;
  const DeviceFacts& facts = target_.devices[0]->facts;
  const auto give = [&](Placed& t, const fastnorm_tensor** field) {
    if (!t.present) return;
    t.tensor.data = block;
    t.tensor.byte_offset = static_cast<uint64_t>(t.base);
    t.tensor.device_type = facts.device_type;
    t.tensor.device_id = facts.device_id;
    t.tensor.ndim = 3;
    t.tensor.dtype = fastnorm_dtype_of(id_of(t.dtype));
    t.tensor.shape = t.shape;
    t.tensor.strides = t.strides;
    *field = &t.tensor;
    if (!c_.grouped) return;
    // A tensor without rows of its own for each head has one head here.
    t.grouped_shape[0] = t.shape[0];
    t.grouped_shape[1] = t.shape[1] * t.columns;
    t.grouped_strides[0] = t.strides[0];
    t.grouped_strides[1] = t.strides[2];
    t.tensor.ndim = 2;
    t.tensor.shape = t.grouped_shape;
    t.tensor.strides = t.grouped_strides;
  };
  give(dy_, &args->dy), give(x_, &args->x), give(weight_, &args->weight);
  give(mean_, &args->mean), give(rstd_, &args->rstd);
  give(dresidual_in_, &args->dresidual_in), give(dx_, &args->dx);
  give(dresidual_, &args->dresidual), give(dweight_, &args->dweight), give(dbias_, &args->dbias);
  give(gate_, &args->gate), give(bias_, &args->bias), give(dgate_, &args->dgate);
  args->gate_act = static_cast<fastnorm_activation>(c_.gate_act);
  args->gate_position = c_.gate_before ? FASTNORM_GATE_BEFORE_NORM : FASTNORM_GATE_AFTER_NORM;
  args->gate_source = c_.gate_from_rounded ? FASTNORM_GATE_FROM_ROUNDED : FASTNORM_GATE_FROM_F32;
  if (c_.grouped) args->group_size = c_.n;
  if (!c_.branch.present) return;
  const BranchCase& b = c_.branch;
  give(branch_, &args->branch), give(branch_weight_, &args->branch_weight);
  give(branch_bias_, &args->branch_bias), give(branch_mean_, &args->branch_mean);
  give(branch_rstd_, &args->branch_rstd), give(residual_gate_, &args->residual_gate);
  give(sum_scale_, &args->sum_scale), give(dbranch_, &args->dbranch);
  give(dbranch_weight_, &args->dbranch_weight), give(dbranch_bias_, &args->dbranch_bias);
  give(dresidual_gate_, &args->dresidual_gate);
  if (sum_scale_.present) {
    sum_scale_.tensor.ndim = 1;
    sum_scale_.tensor.shape = sum_scale_.shape + 2;
    sum_scale_.tensor.strides = nullptr;
  }
  args->branch_kind = b.kind == ref::Kind::kRms ? FASTNORM_NORM_RMS : FASTNORM_NORM_LAYER;
  args->branch_eps = options_.branch.eps;
  args->branch_weight_offset = b.weight_offset;
  args->branch_rounding = static_cast<fastnorm_rounding>(b.rounding);
  args->branch_norm = b.normalise ? 1 : 0;
  args->branch_rounded = b.rounded ? 1 : 0;
  args->residual_gate_act = static_cast<fastnorm_activation>(b.act);
  args->alpha = b.alpha;
  if (b.accumulate_dweight) args->flags |= FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT;
  if (b.accumulate_dbias) args->flags |= FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS;
  if (b.accumulate_dgate) args->flags |= FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE;
}

// The block before a run: inputs, old sums where they count, and elsewhere bytes that are NaN in
// every dtype.
std::vector<std::byte> NormBackwardRun::before() const {
  std::vector<std::byte> block(static_cast<size_t>(bytes_), std::byte{0xff});
  const auto put_rows = [&](const Placed& t) {
    for (int64_t r = 0; t.present && r < c_.rows(); ++r) {
      // An expanded dy has the same bytes in every element.
      const int64_t count = t.strides[2] == 0 ? 1 : t.columns;
      ref::encode_row(t.dtype, t.row(r),
                      &block[static_cast<size_t>(t.at(r / c_.heads, r % c_.heads))], count);
    }
  };
  const auto put_parameters = [&](const Placed& t, Share share) {
    for (int64_t b = 0; t.present && b < t.shape[0]; ++b) {
      for (int64_t h = 0; h < t.shape[1]; ++h)
        ref::encode_row(t.dtype, t.row(group_of(share, b, h)),
                        &block[static_cast<size_t>(t.at(b, h))], t.columns);
    }
  };
  for (const Placed* t : {&dy_, &x_, &mean_, &rstd_, &dresidual_in_, &gate_, &branch_,
                          &branch_mean_, &branch_rstd_}) {
    put_rows(*t);
  }
  put_parameters(weight_, c_.share);
  put_parameters(bias_, c_.share);
  put_parameters(branch_weight_, c_.branch.share);
  put_parameters(branch_bias_, c_.branch.bias_share);
  put_parameters(residual_gate_, c_.branch.gate_share);
  if (sum_scale_.present)
    ref::encode_row(Type::kF32, sum_scale_.row(0), &block[static_cast<size_t>(sum_scale_.base)], 1);
  for (const SumOfRows& sum : sums()) {
    if (sum.accumulate) put_parameters(sum.out, sum.share);
  }
  return block;
}

ref::NormBackwardRow NormBackwardRun::row_of(int64_t r) const {
  ref::NormBackwardRow row;
  row.n = c_.n;
  row.dy = dy_.row(r);
  row.x = x_.row(r);
  if (c_.has_weight) row.weight = weight_.row(group_of(c_.share, r / c_.heads, r % c_.heads));
  if (c_.has_dresidual_in) row.dresidual_in = dresidual_in_.row(r);
  row.mean = means_[static_cast<size_t>(r)];
  row.rstd = rstds_[static_cast<size_t>(r)];
  if (c_.has_gate) row.gate = gate_.row(r);
  const auto parameter = [&](const Placed& t, Share share) {
    return t.present ? t.row(group_of(share, r / c_.heads, r % c_.heads)) : nullptr;
  };
  row.bias = parameter(bias_, c_.share);
  if (!c_.branch.present) return row;
  if (branch_.present) row.branch = branch_.row(r);
  row.branch_weight = parameter(branch_weight_, c_.branch.share);
  row.branch_bias = parameter(branch_bias_, c_.branch.bias_share);
  row.residual_gate = parameter(residual_gate_, c_.branch.gate_share);
  row.branch_mean = branch_means_[static_cast<size_t>(r)];
  row.branch_rstd = branch_rstds_[static_cast<size_t>(r)];
  return row;
}

// Compares a row, and writes the expected bytes to `wanted`. NaN may have any bits.
std::string NormBackwardRun::compare_row(const float* expected,
                                         const std::vector<ref::Range>& bounds, const Placed& out,
                                         int64_t at, std::byte* wanted, std::byte* found) {
  const auto bytes = static_cast<size_t>(ref::bytes_of(out.dtype));
  for (int64_t i = 0; i < out.columns; ++i) {
    std::byte* const here = found + at + static_cast<size_t>(i) * bytes;
    std::byte* const there = wanted + at + static_cast<size_t>(i) * bytes;
    float value = 0, model = 0;
    ref::encode_row(out.dtype, &expected[i], there, 1);
    ref::decode_row(out.dtype, here, &value, 1);
    ref::decode_row(out.dtype, there, &model, 1);
    char text[160];
    if (std::isnan(value) && std::isnan(model)) {
      std::memcpy(there, here, bytes);
      continue;
    }
    if (std::memcmp(here, there, bytes) != 0) {
      std::snprintf(text, sizeof text, "[%lld] is %.9g, the model has %.9g",
                    static_cast<long long>(i), static_cast<double>(value),
                    static_cast<double>(model));
      return text;
    }
    if (bounds.empty() || bounds[static_cast<size_t>(i)].holds(static_cast<double>(value)))
      continue;
    const ref::Range& range = bounds[static_cast<size_t>(i)];
    std::snprintf(text, sizeof text, "[%lld] is %.9g, required from %.9g to %.9g",
                  static_cast<long long>(i), static_cast<double>(value), range.low, range.high);
    return text;
  }
  return "";
}

std::string NormBackwardRun::compare_rows(const Placed& out, const char* name,
                                          std::vector<std::byte>* wanted,
                                          std::vector<std::byte>* found) const {
  std::vector<float> dh(static_cast<size_t>(c_.n)), of_gate(dh), of_branch(dh);
  const bool gate = &out == &dgate_, branch = &out == &dbranch_;
  for (int64_t r = 0; r < c_.rows(); ++r) {
    const ref::NormBackwardRow row = row_of(r);
    if (c_.branch.present) {
      ref::norm_backward_branch_model(options_, row, target_.order, dh.data(),
                                      branch ? of_branch.data() : nullptr);
    } else {
      ref::norm_backward_row_model(options_, row, target_.order, dh.data(),
                                   gate ? of_gate.data() : nullptr);
    }
    const std::vector<ref::Range> bounds =
        gate     ? ref::norm_backward_dgate_bounds(options_, row, target_.order, out.dtype)
        : branch ? ref::norm_backward_dbranch_bounds(options_, row, target_.order, out.dtype)
                 : ref::norm_backward_row_bounds(options_, row, target_.order, out.dtype);
    const std::string finding =
        compare_row((gate     ? of_gate
                     : branch ? of_branch
                              : dh)
                        .data(),
                    bounds, out, out.at(r / c_.heads, r % c_.heads), wanted->data(), found->data());
    if (!finding.empty()) return std::string(name) + " row " + std::to_string(r) + " " + finding;
  }
  return "";
}

std::vector<SumOfRows> NormBackwardRun::sums() const {
  const BranchCase& b = c_.branch;
  const SumOfRows all[] = {
      {"dweight", dweight_, c_.share, c_.accumulate_dweight},
      {"dbias", dbias_, c_.bias_share, c_.accumulate_dbias},
      {"dbranch_weight", dbranch_weight_, b.share, b.accumulate_dweight},
      {"dbranch_bias", dbranch_bias_, b.bias_share, b.accumulate_dbias},
      {"dresidual_gate", dresidual_gate_, b.gate_share, b.accumulate_dgate},
  };
  std::vector<SumOfRows> wanted;
  for (const SumOfRows& sum : all) {
    if (sum.out.present) wanted.push_back(sum);
  }
  return wanted;
}

// The model and its bounds of a sum over so many rows.
void NormBackwardRun::model_of(const SumOfRows& sum, int64_t rows, const ref::NormBackwardRows& at,
                               const ref::StoredSum& stored, std::vector<float>* values,
                               std::vector<ref::Range>* bounds) const {
  values->resize(static_cast<size_t>(c_.n));
  const auto if_of = [&](const Placed& out, auto* wanted) {
    return &sum.out == &out ? wanted : nullptr;
  };
  float* const to = values->data();
  if (&sum.out == &dweight_ || &sum.out == &dbias_) {
    ref::norm_backward_sums_model(options_, rows, c_.n, at, if_of(dweight_, to), if_of(dbias_, to));
    *bounds = &sum.out == &dweight_
                  ? ref::norm_backward_dweight_bounds(options_, rows, c_.n, at, stored)
                  : ref::norm_backward_dbias_bounds(options_, rows, c_.n, at, stored);
    return;
  }
  ref::norm_backward_branch_sums_model(options_, rows, c_.n, at, target_.order,
                                       if_of(dbranch_weight_, to), if_of(dbranch_bias_, to),
                                       if_of(dresidual_gate_, to));
  const ref::BranchSumBounds all = ref::norm_backward_branch_sum_bounds(
      options_, rows, c_.n, at, target_.order,
      {if_of(dbranch_weight_, &stored), if_of(dbranch_bias_, &stored),
       if_of(dresidual_gate_, &stored)});
  for (const std::vector<ref::Range>* of : {&all.dweight, &all.dbias, &all.dresidual_gate}) {
    if (!of->empty()) *bounds = *of;
  }
}

std::string NormBackwardRun::compare_sum(const SumOfRows& sum, std::vector<std::byte>* wanted,
                                         std::vector<std::byte>* found) const {
  const Placed& out = sum.out;
  for (int64_t b = 0; b < out.shape[0]; ++b) {
    for (int64_t h = 0; h < out.shape[1]; ++h) {
      const int64_t group = group_of(sum.share, b, h);
      const std::vector<int64_t> rows = rows_of(sum.share, group);
      const auto count = static_cast<int64_t>(rows.size());
      if (count == 0 && sum.accumulate) continue;  // not touched
      const ref::NormBackwardRows at = [&](int64_t i) {
        return row_of(rows[static_cast<size_t>(i)]);
      };
      std::vector<float> values;
      std::vector<ref::Range> bounds;
      model_of(sum, count, at, {out.dtype, sum.accumulate ? out.row(group) : nullptr}, &values,
               &bounds);
      for (int64_t i = 0; sum.accumulate && i < c_.n; ++i)
        values[static_cast<size_t>(i)] = out.row(group)[i] + values[static_cast<size_t>(i)];
      const std::string finding =
          compare_row(values.data(), bounds, out, out.at(b, h), wanted->data(), found->data());
      if (!finding.empty())
        return std::string(sum.name) + " row " + std::to_string(group) + " " + finding;
    }
  }
  return "";
}

// Outputs must equal the model's, and no other byte may change.
std::string NormBackwardRun::compare(const std::vector<std::byte>& first,
                                     std::vector<std::byte> found) const {
  std::vector<std::byte> wanted = first;
  std::string finding;
  if (c_.has_dx) finding = compare_rows(dx_, "dx", &wanted, &found);
  if (finding.empty() && c_.has_dresidual)
    finding = compare_rows(dresidual_, "dresidual", &wanted, &found);
  if (finding.empty() && c_.has_dgate) finding = compare_rows(dgate_, "dgate", &wanted, &found);
  if (finding.empty() && dbranch_.present)
    finding = compare_rows(dbranch_, "dbranch", &wanted, &found);
  for (const SumOfRows& sum : sums()) {
    if (finding.empty()) finding = compare_sum(sum, &wanted, &found);
  }
  if (!finding.empty()) return finding;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] != found[i]) return "byte " + std::to_string(i) + " of the block has changed";
  }
  return "";
}

std::string NormBackwardRun::run_once(Device& device, Accepted* accepted) {
  const size_t workspace_at = (static_cast<size_t>(bytes_) + 1023) / 256 * 256;
  fastnorm_norm_backward_args args;
  Error error;
  // Twice: the workspace's size follows from a plan, and the block's address from that size.
  std::byte* block = target_.memory->block(workspace_at);
  std::optional<NormBackwardBatch> batch;
  for (int pass = 0; pass < 2; ++pass) {
    describe(block, &args);
    batch.emplace();
    if (plan_norm_backward_one(device, &args, &*batch, error) != FASTNORM_OK)
      return std::string("refused: ") + error.text;
    block = target_.memory->block(workspace_at + batch->workspace_bytes);
  }
  std::vector<std::byte> first = before();
  std::vector<std::byte> all = first;
  all.resize(workspace_at + batch->workspace_bytes, std::byte{0xff});
  target_.memory->upload(all.data(), all.size());
  for (const NormBackwardCall& call : batch->planned()) {
    std::byte* const own = block + workspace_at + call.workspace_offset;
    if (device.run_norm_backward(call.desc, call.plan, own, nullptr, error) != FASTNORM_OK)
      return std::string("failed: ") + error.text;
  }
  target_.memory->download(all.data(), all.size());
  for (size_t i = first.size(); i < workspace_at; ++i) {
    if (all[i] != std::byte{0xff}) return "a byte behind the tensors has changed";
  }
  all.resize(first.size());
  if (!all.empty() && accepted->order == target_.order && accepted->before == first &&
      accepted->after == all)
    return "";
  std::string finding = compare(first, all);
  if (finding.empty()) *accepted = {target_.order, std::move(first), std::move(all)};
  return finding;
}

std::string NormBackwardRun::run(Accepted* accepted) {
  place_statistics();
  place_branch_statistics();
  for (const std::unique_ptr<Device>& device : target_.devices) {
    std::string finding = run_once(*device, accepted);
    if (!finding.empty()) return finding;
  }
  return "";
}

bool NormBackwardRun::tells_orders() const {
  const auto n = static_cast<size_t>(c_.n);
  const ref::NormBackwardRows at = [this](int64_t i) { return row_of(i); };
  std::vector<float> right(n), wrong(n);
  ref::norm_backward_sums_model(options_, c_.rows(), c_.n, at, right.data(), nullptr);
  ref::norm_backward_sums_model(options_, c_.rows(), c_.n, at, wrong.data(), nullptr,
                                ref::RowOrder::kSequential);
  if (right == wrong) return false;
  const ref::Order wrong_order =
      target_.order == ref::Order::kCpu ? ref::Order::kCpuLowestFirst : ref::Order::kGpuLowestFirst;
  for (int64_t r = 0; r < c_.rows(); ++r) {
    ref::norm_backward_row_model(options_, row_of(r), target_.order, right.data());
    ref::norm_backward_row_model(options_, row_of(r), wrong_order, wrong.data());
    if (right != wrong) return true;
  }
  return false;
}

// A case in which a wrong order shows.
NormBackwardCase telling_case() {
  NormBackwardCase c;
  c.batch = 200;
  c.n = 1024;
  c.has_dbias = true;
  c.kind = ref::Kind::kLayer;
  c.seed = 7;
  return c;
}

}  // namespace

void check_norm_backward(std::span<Target* const> targets, const Options& options, Counts* counts) {
  long long cases = 0;
  const auto check = [&](const NormBackwardCase& c, bool orders) {
    if (!options.wants(c.text())) return;
    ++cases;
    Accepted accepted;
    for (Target* target : targets) {
      NormBackwardRun run(c, *target);
      std::string finding = run.run(&accepted);
      if (finding.empty() && orders && !run.tells_orders()) finding = "a wrong order does not show";
      finding.empty() ? ++counts->passed : ++counts->failed;
      if (!finding.empty())
        std::printf("FAIL %s %s: %s\n", target->name.c_str(), c.text().c_str(), finding.c_str());
    }
  };
  check(telling_case(), true);
  const std::vector<NormBackwardCase> all = make_norm_backward_cases(targets[0]->cuda, options);
  for (size_t i = 0; i < all.size(); i += static_cast<size_t>(options.every)) check(all[i], false);
  for (const Target* target : targets) {
    if (cases > 0) std::printf("%s: %lld cases of norm_backward\n", target->name.c_str(), cases);
  }
}

}  // namespace fastnorm::check
