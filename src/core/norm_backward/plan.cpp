#include "core/norm_backward/plan.h"

#include <algorithm>

#include "core/common/check.h"
#include "core/common/workspace.h"
#include "core/norm_backward/choice.h"
#include "core/norm_backward/cpu_plan.h"
#include "core/norm_backward/rows.h"
#include "core/norm_backward/tensors.h"
#include "core/norm_backward/tuning.h"

namespace fastnorm {
namespace {

constexpr int64_t kMostRows = 0x7fffffff;
constexpr uint32_t kMostGroupBlocks = 0xffff;  // of a grid's second dimension

Stat stat_of(const NormBackwardDesc& d) {
  return d.kind == FASTNORM_NORM_LAYER ? Stat::kLayer : Stat::kRms;
}

// True if the held forms have the call's gate.
bool has_held_gate(const NormBackwardDesc& d) {
  const bool has_function =
      d.gate.act == FASTNORM_ACTIVATION_SILU || d.gate.act == FASTNORM_ACTIVATION_SIGMOID;
  return has_function && !d.gate.bias && !d.dresidual_in;
}

// True if the rows of a group share a row of the parameter.
bool is_shared(const NormBackwardDesc& d, const ParameterTensor& t) {
  for (int i = 0; i < d.shared_rank; ++i) {
    if (t && d.outer[i] != 1 && t.stride_bytes[i] != 0) return false;
  }
  return true;
}

// True if the held forms have the call's branch: one with an RMSNorm, whose result is added as it
// is, or one times a residual gate, where LayerNorm follows.
bool has_held_branch(const NormBackwardDesc& d) {
  const NormBackwardBranch& b = d.branch;
  if (!b.dbranch || !is_shared(d, d.weight)) return false;
  if (b.needs_norm())
    return b.kind == FASTNORM_NORM_RMS && !b.residual_gate && !b.dbias && is_shared(d, b.weight);
  return b.branch && b.residual_gate && is_shared(d, b.residual_gate);
}

// True if registers can hold the rows: aligned, of one dtype. kPersistent and kFew need that.
bool is_held(const NormBackwardDesc& d) {
  if (!d.dx || d.dresidual || d.dy_element_bytes == 0 || d.shared_rows == 0) return false;
  if (d.gate.present && !has_held_gate(d)) return false;
  if (d.branch.present && !has_held_branch(d)) return false;
  if (d.dbias && d.kind != FASTNORM_NORM_LAYER) return false;
  if (d.n * dtype_bytes(d.dtype) % kVectorBytes != 0 || d.groups > kMostGroupBlocks) return false;
  return for_each_backward_tensor(d, [&](auto of, const auto& t) {
    using O = decltype(of);
    if constexpr (O::kRole == schema::Role::kRowsIn || O::kRole == schema::Role::kRowsOut) {
      return !t || (t.dtype == d.dtype && address_bits(t.data, t.stride_bytes) % kVectorBytes == 0);
    } else {
      return true;
    }
  });
}

// The first kernel of a form, whatever its tile.
int32_t find_form(std::span<const NormBackwardEntry> table, BackwardForm form, Dtype dtype,
                  Stat stat) {
  for (size_t i = 0; i < table.size(); ++i) {
    const NormBackwardVariant& v = table[i].variant;
    if (v.form == form && (form == BackwardForm::kFold || (v.dtype == dtype && v.stat == stat)))
      return static_cast<int32_t>(i);
  }
  return -1;
}

// `gate_before`: of a call whose gate is before the norm. A step then keeps two floats for each
// element.
int32_t shared_bytes_of(const NormBackwardVariant& v, bool gate_before) {
  if (v.form != BackwardForm::kPersistent) return 0;
  const int64_t vectors = int64_t{v.block_threads()} * v.vectors * kVectorBytes;
  const int64_t floats = vectors / dtype_bytes(v.dtype) * int64_t{sizeof(float)};
  const int64_t kept = gate_before ? 2 * floats : 0;
  const int64_t sums = v.lanes > 1 ? floats : 0;
  return static_cast<int32_t>(std::max(v.ring_bytes() + kept, sums));
}

class Planner {
 public:
  Planner(const NormBackwardDesc& desc, const DeviceFacts& facts,
          std::span<const NormBackwardEntry> table, NormBackwardPlan* plan,
          const NormBackwardTuning* tuning = nullptr)
      : d_(desc), facts_(facts), table_(table), tuning_(tuning), plan_(*plan) {}

  fastnorm_status prepare(Error& error) {
    FASTNORM_REQUIRE(!table_.empty(), FASTNORM_ERROR_UNSUPPORTED,
                     "this build has no norm_backward for the device; nearest: the CPU");
    FASTNORM_REQUIRE(!d_.of_heads.needs_own_kernels(), FASTNORM_ERROR_UNSUPPORTED,
                     "flags has ROPE (2) or ACROSS_HEADS (32), or not NORM (1); nearest on a GPU: "
                     "parts with NORM alone, or the CPU");
    FASTNORM_REQUIRE(d_.rows <= kMostRows, FASTNORM_ERROR_UNSUPPORTED,
                     "args has %lld rows; nearest on a GPU: 2147483647",
                     static_cast<long long>(d_.rows));
    plan_ = {};
    order_ = norm_backward_rows(d_.shared_rows, d_.n);
    plan_.lanes = static_cast<int32_t>(order_.lanes);
    plan_.row_blocks = static_cast<int32_t>(order_.blocks);
    plan_.partial_stride = gpu_partial_stride(d_.n);
    return FASTNORM_OK;
  }

  // The kernel that the lists choose. -1 = the general form serves the call.
  int32_t chosen() {
    if (!is_held(d_)) return -1;
    // Without dweight and dbias the workspace is empty and has no room for statistics.
    if (!d_.has_sums() && !d_.rstd) return -1;
    struct Source {
      BackwardJob job;
      bool tuned;
    };
    // A tuning file's lines are for calls with sums, unless they say `alone`. So for dx alone the
    // library's `alone` precedes the file's `many`.
    static constexpr Source kWithSums[] = {{BackwardJob::kFew, true},
                                           {BackwardJob::kMany, true},
                                           {BackwardJob::kAny, true},
                                           {BackwardJob::kFew, false},
                                           {BackwardJob::kMany, false}};
    static constexpr Source kWithout[] = {{BackwardJob::kAlone, true},
                                          {BackwardJob::kAlone, false},
                                          {BackwardJob::kMany, true},
                                          {BackwardJob::kMany, false}};
    for (const Source& source : d_.has_sums() ? std::span<const Source>(kWithSums) : kWithout) {
      const NormBackwardDecision found = source.tuned ? find_tuned(source.job) : find(source.job);
      if (found.line == nullptr) continue;
      const int32_t index = find_norm_backward_entry(table_, kind_of(source.job),
                                                     form_of(source.job), found.line->pick);
      if (index < 0 || !can_run(index)) continue;
      note(found);
      return index;
    }
    return -1;
  }

  // True if kernel `index` can serve the call.
  bool can_run(int32_t index) const {
    const NormBackwardVariant& v = table_[static_cast<size_t>(index)].variant;
    if (v.dtype != d_.x.dtype) return false;
    if (v.form == BackwardForm::kBranchRows) return d_.branch.present;
    if (v.has_branch() != d_.branch.present) return false;
    if (v.form == BackwardForm::kGatedRows)
      return has_gate() && (!v.is_one_warp() || vectors() <= int64_t{kBackwardWarpVectors});
    if (v.stat != stat_of(d_)) return false;
    if (v.writes_rows()) return v.form == rows_form();
    if (!is_held(d_) || (!d_.has_sums() && !d_.rstd)) return false;
    if (!holds_rows(v, d_.n, d_.shared_rows, d_.has_sums())) return false;
    const BackwardInput input = kind_of(BackwardJob::kMany).input;
    if (v.form == BackwardForm::kFew) return input == added() && (!d_.has_sums() || !d_.in_place);
    return v.input == input && v.blocks <= facts_.max_cluster_blocks;
  }

  fastnorm_status plan(int32_t index, Error& error) {
    if (d_.branch.present) return plan_branch(index, error);
    const bool sums = d_.has_sums();
    const bool recomputes = d_.needs_statistics() && !d_.rstd && d_.shared_rows > 0;
    const bool general = index < 0 || table_[static_cast<size_t>(index)].variant.writes_rows();
    int32_t rows = general && index >= 0 ? index : -1;
    if (rows < 0 && d_.shared_rows > 0 && d_.needs_statistics()) {
      NormBackwardDecision found = find_tuned(BackwardJob::kAny);
      if (found.line == nullptr) found = find(BackwardJob::kAny);
      if (found.line != nullptr) {
        NormBackwardKind kind = kind_of(BackwardJob::kAny);
        if (has_gate()) kind.stat = Stat::kRms;  // of either statistic
        rows = find_norm_backward_entry(table_, kind, rows_form(), found.line->pick);
      }
      FASTNORM_REQUIRE(rows >= 0, FASTNORM_ERROR_INTERNAL,
                       "no kernel of norm_backward for rows of %lld elements",
                       static_cast<long long>(d_.n));
      if (general && d_.writes_rows()) note(found);
    }
    keep_statistics(recomputes && sums);
    // With a tuning file every form keeps room for partial sums: the file may use them for fewer
    // rows, and the workspace must not shrink as rows are added.
    if (general || is_persistent(index) || (tuning_ != nullptr && tuning_->size() != 0))
      keep_partials();
    if (plan_.keeps_statistics)
      add_rows(rows, kBackwardComputeStatistics | kBackwardStatisticsOnly);
    if (general) {
      if (sums && d_.shared_rows > 0)
        add_columns(has_gate() ? BackwardForm::kGatedColumns : BackwardForm::kColumns,
                    has_gate() ? Stat::kRms : stat_of(d_));
      if (d_.writes_rows()) {
        plan_.entry = &table_[static_cast<size_t>(rows)];
        add_rows(rows,
                 recomputes && !plan_.keeps_statistics ? uint32_t{kBackwardComputeStatistics} : 0);
      }
      if (sums) add_fold();
    } else {
      plan_.entry = &table_[static_cast<size_t>(index)];
      if (is_persistent(index)) {
        add_persistent(index);
        if (sums) add_fold();
      } else {
        add_few(index);
      }
    }
    return finish(error);
  }

 private:
  // Launches in this order: statistics, c1 and c2 where columns need them, columns, rows, fold.
  fastnorm_status plan_branch(int32_t index, Error& error) {
    const NormBackwardBranch& b = d_.branch;
    const bool held = is_persistent(index);
    if (d_.shared_rows > 0) {
      FASTNORM_TRY(find_general(d_, BackwardForm::kBranchRows, &index, error));
      int32_t statistics = -1;
      if (!d_.rstd) {
        FASTNORM_TRY(find_general(d_, BackwardForm::kRows, &statistics, error));
        keep_statistics(true);
        add_rows(statistics, kBackwardComputeStatistics | kBackwardStatisticsOnly);
      }
      if (b.needs_norm() && !b.rstd) {
        NormBackwardDesc of_branch = d_;
        of_branch.kind = b.kind;
        of_branch.x.dtype = d_.dtype;
        statistics = -1;
        FASTNORM_TRY(find_general(of_branch, BackwardForm::kRows, &statistics, error));
        plan_.keeps_branch_statistics = true;
        plan_.branch_rstd_offset = region(row_values());
        if (b.kind == FASTNORM_NORM_LAYER) plan_.branch_mean_offset = region(row_values());
        add_rows(statistics, kBackwardComputeStatistics | kBackwardStatisticsOnly);
        plan_.steps[plan_.launches - 1].of_branch = true;
      }
      plan_.entry = &table_[static_cast<size_t>(index)];
      if (b.has_sums() && !held) {
        plan_.keeps_means = true;
        plan_.means_offset = region(2 * row_values());
        add_rows(index, kBackwardStatisticsOnly);
      }
      if (held) {
        add_persistent(index);
      } else {
        if (d_.has_sums()) add_columns(BackwardForm::kBranchColumns, Stat::kRms);
        if (d_.writes_rows()) add_rows(index, plan_.keeps_means ? uint32_t{kBackwardKeptMeans} : 0);
      }
    }
    if (d_.has_sums()) {
      keep_partials();
      add_fold();
    }
    return finish(error);
  }

  // Sets *index to a general kernel of rows, unless it already is one.
  fastnorm_status find_general(const NormBackwardDesc& d, BackwardForm form, int32_t* index,
                               Error& error) {
    if (*index >= 0) return FASTNORM_OK;
    NormBackwardKind kind = {BackwardJob::kAny, d.x.dtype, stat_of(d),
                             d.dresidual_in ? BackwardInput::kAdd : BackwardInput::kPlain};
    const NormBackwardDecision found =
        find_norm_backward_choice(*facts_.arch->backward_choices, kind, d.n, counted_rows());
    if (form == BackwardForm::kBranchRows) kind.stat = Stat::kRms;  // of either statistic
    if (found.line != nullptr)
      *index = find_norm_backward_entry(table_, kind, form, found.line->pick);
    FASTNORM_REQUIRE(*index >= 0, FASTNORM_ERROR_INTERNAL,
                     "no kernel of norm_backward for rows of %lld elements",
                     static_cast<long long>(d.n));
    if (form == BackwardForm::kBranchRows) note(found);
    return FASTNORM_OK;
  }

  bool has_gate() const { return d_.gate.present; }
  BackwardForm rows_form() const {
    return has_gate() ? BackwardForm::kGatedRows : BackwardForm::kRows;
  }
  BackwardInput added() const {
    return d_.dresidual_in ? BackwardInput::kAdd : BackwardInput::kPlain;
  }
  // What a form that holds rows would have to read besides x and dy.
  BackwardInput held_input() const {
    if (d_.branch.present)
      return d_.branch.needs_norm() ? BackwardInput::kBranch : BackwardInput::kModulated;
    return has_gate() ? BackwardInput::kGated : added();
  }
  NormBackwardKind kind_of(BackwardJob job) const {
    return {job, d_.x.dtype, stat_of(d_), job == BackwardJob::kAny ? added() : held_input()};
  }
  int64_t counted_rows() const { return std::max<int64_t>(d_.shared_rows, 1); }
  NormBackwardDecision find(BackwardJob job) const {
    return find_norm_backward_choice(*facts_.arch->backward_choices, kind_of(job), d_.n,
                                     counted_rows());
  }
  // A tuning file's lines for general kernels are not for those with a gate.
  NormBackwardDecision find_tuned(BackwardJob job) const {
    if (tuning_ == nullptr || (has_gate() && job == BackwardJob::kAny)) return {};
    const NormBackwardKind kind = kind_of(job);
    return {text_of(kind), tuning_->find(kind, d_.n, counted_rows())};
  }
  void note(const NormBackwardDecision& found) {
    plan_.kind = found.kind;
    plan_.choice = found.line->text;
  }
  bool is_persistent(int32_t index) const {
    return index >= 0 &&
           table_[static_cast<size_t>(index)].variant.form == BackwardForm::kPersistent;
  }

  uint64_t region(uint64_t bytes) { return take_region(&plan_.workspace_bytes, bytes); }
  uint64_t row_values() const { return static_cast<uint64_t>(d_.rows) * sizeof(float); }

  void keep_statistics(bool keeps) {
    plan_.keeps_statistics = keeps;
    if (!keeps) return;
    plan_.rstd_offset = region(row_values());
    if (d_.kind == FASTNORM_NORM_LAYER) plan_.mean_offset = region(row_values());
  }

  void keep_partials() {
    // As many for every kernel, so that a workspace for more rows serves fewer ones, too.
    const uint64_t rows = static_cast<uint64_t>(order_.most_partials());
    const uint64_t bytes = static_cast<uint64_t>(d_.groups) * rows *
                           static_cast<uint64_t>(plan_.partial_stride) * sizeof(float);
    const auto sums = sums_of(d_);
    for (size_t i = 0; i < sums.size(); ++i) {
      if (*sums[i]) plan_.partial_offset[i] = region(bytes);
    }
  }

  NormBackwardStep& add(int32_t index, uint64_t blocks_x) {
    NormBackwardStep& step = plan_.steps[plan_.launches++];
    most_blocks_ = std::max(most_blocks_, blocks_x);
    step.index = index;
    step.variant = &table_[static_cast<size_t>(index)].variant;
    step.blocks_x = static_cast<uint32_t>(blocks_x);
    step.blocks_y = static_cast<uint32_t>(std::min<int64_t>(d_.groups, kMostGroupBlocks));
    step.shared_bytes = shared_bytes_of(table_[static_cast<size_t>(index)].variant, d_.gate.before);
    return step;
  }
  void add_rows(int32_t index, uint32_t bits) {
    const uint64_t lanes = static_cast<uint64_t>(table_[static_cast<size_t>(index)].variant.lanes);
    NormBackwardStep& step = add(index, (static_cast<uint64_t>(d_.rows) + lanes - 1) / lanes);
    step.blocks_y = 1;
    step.bits = bits;
  }
  void add_columns(BackwardForm form, Stat stat) {
    const int32_t index = find_form(table_, form, d_.x.dtype, stat);
    const int64_t width = table_[static_cast<size_t>(index)].variant.threads / plan_.lanes;
    const int64_t tiles = (vectors() + width - 1) / width;
    add(index, static_cast<uint64_t>(tiles * plan_.row_blocks));
    if (plan_.entry == nullptr) plan_.entry = &table_[static_cast<size_t>(index)];
  }
  void add_fold() {
    const int32_t index = find_form(table_, BackwardForm::kFold, Dtype::kF32, Stat::kRms);
    const int64_t tiles = (d_.n + kBackwardFoldColumns - 1) / kBackwardFoldColumns;
    add(index, static_cast<uint64_t>(tiles * count_sums(d_)));
    if (plan_.entry == nullptr) plan_.entry = &table_[static_cast<size_t>(index)];
  }
  void add_persistent(int32_t index) {
    const NormBackwardVariant& v = table_[static_cast<size_t>(index)].variant;
    plan_.split = static_cast<int32_t>(order_.split_of(v.lanes));
    add(index, static_cast<uint64_t>(plan_.row_blocks) * static_cast<uint64_t>(plan_.split) *
                   static_cast<uint64_t>(v.blocks));
  }
  void add_few(int32_t index) {
    const NormBackwardVariant& v = plan_.entry->variant;
    const int64_t columns =
        d_.has_sums() ? (vectors() + v.column_vectors - 1) / v.column_vectors : 0;
    add(index, static_cast<uint64_t>(columns + (d_.shared_rows + v.lanes - 1) / v.lanes));
  }

  fastnorm_status finish(Error& error) {
    FASTNORM_REQUIRE(most_blocks_ <= facts_.arch->max_blocks, FASTNORM_ERROR_UNSUPPORTED,
                     "args needs %llu thread blocks; nearest: %llu",
                     static_cast<unsigned long long>(most_blocks_),
                     static_cast<unsigned long long>(facts_.arch->max_blocks));
    const bool early = facts_.arch->launches_early();
    for (int i = 0; i < plan_.launches; ++i) {
      NormBackwardStep& step = plan_.steps[i];
      plan_.blocks += uint64_t{step.blocks_x} * step.blocks_y;
      const bool last = i + 1 == plan_.launches;
      step.early = early && (i > 0 || (d_.flags & FASTNORM_NORM_BACKWARD_PDL_WAIT) != 0);
      if (!last || (d_.flags & FASTNORM_NORM_BACKWARD_PDL_TRIGGER) != 0)
        step.bits |= kBackwardTrigger;
    }
    if (plan_.launches > 0) plan_.kernel = plan_.entry->name;
    count_norm_backward_bytes(d_, &plan_);
    return FASTNORM_OK;
  }

  int64_t vectors() const {
    return (d_.n * dtype_bytes(d_.x.dtype) + kVectorBytes - 1) / kVectorBytes;
  }

  const NormBackwardDesc& d_;
  const DeviceFacts& facts_;
  const std::span<const NormBackwardEntry> table_;
  const NormBackwardTuning* const tuning_;  // nullptr: none
  NormBackwardPlan& plan_;
  NormBackwardRows order_ = {};
  uint64_t most_blocks_ = 0;
};

}  // namespace

int32_t most_backward_shared_bytes(const NormBackwardVariant& variant) {
  return shared_bytes_of(variant, variant.input == BackwardInput::kGated);
}

fastnorm_status plan_norm_backward(const NormBackwardDesc& desc, const DeviceFacts& facts,
                                   std::span<const NormBackwardEntry> table, NormBackwardPlan* plan,
                                   Error& error) {
  return plan_norm_backward(desc, facts, table, nullptr, plan, error);
}

fastnorm_status plan_norm_backward(const NormBackwardDesc& desc, const DeviceFacts& facts,
                                   std::span<const NormBackwardEntry> table,
                                   const NormBackwardTuning* tuning, NormBackwardPlan* plan,
                                   Error& error) {
  Planner planner(desc, facts, table, plan, tuning);
  FASTNORM_TRY(planner.prepare(error));
  return planner.plan(planner.chosen(), error);
}

bool plans_held_rows(const NormBackwardDesc& desc, const DeviceFacts& facts,
                     std::span<const NormBackwardEntry> table, const NormBackwardTuning* tuning) {
  NormBackwardPlan plan;
  Error error;
  Planner planner(desc, facts, table, &plan, tuning);
  if (planner.prepare(error) != FASTNORM_OK) return false;
  const int32_t index = planner.chosen();
  return index >= 0 && !table[static_cast<size_t>(index)].variant.writes_rows();
}

fastnorm_status plan_norm_backward_for(const NormBackwardDesc& desc, const DeviceFacts& facts,
                                       std::span<const NormBackwardEntry> table, int32_t index,
                                       NormBackwardPlan* plan, Error& error) {
  Planner planner(desc, facts, table, plan);
  FASTNORM_TRY(planner.prepare(error));
  FASTNORM_REQUIRE(planner.can_run(index), FASTNORM_ERROR_UNSUPPORTED,
                   "kernel %d cannot serve the call", index);
  return planner.plan(index, error);
}

}  // namespace fastnorm
