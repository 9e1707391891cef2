#include "core/norm_heads_backward/plan.h"

#include <algorithm>
#include <bit>
#include <cinttypes>

#include "core/common/check.h"
#include "core/common/pdl.h"
#include "core/common/workspace.h"
#include "core/norm_backward/cpu_plan.h"
#include "core/norm_backward/plan.h"
#include "core/norm_backward/rows.h"
#include "core/norm_heads/plan.h"

namespace fastnorm {
namespace {

constexpr int64_t kMostRows = 0x7fffffff;
constexpr int64_t kMostRowBlocks = 1 << 16;  // of a description without sums

bool is_layer(const NormBackwardDesc& d) { return d.kind == FASTNORM_NORM_LAYER; }

bool is_aligned(const RowTensor& t) {
  return address_bits(t.data, t.stride_bytes) % kVectorBytes == 0;
}

// Whether kernels that hold rows reach them: by products of 32-bit factors.
bool has_narrow_strides(const NormBackwardDesc& d) {
  const auto is_narrow = [](const auto& t) {
    for (const int64_t stride : t.stride_bytes) {
      if (stride != static_cast<int32_t>(stride)) return false;
    }
    return true;
  };
  return is_narrow(d.dy) && is_narrow(d.x) && is_narrow(d.dx) && is_narrow(d.mean) &&
         is_narrow(d.rstd);
}

// Whether vectors of 16 bytes rotate as wholes.
bool rotates_vectors(const NormBackwardDesc& d) {
  const NormBackwardHeads& h = d.of_heads;
  const int64_t dim = h.tables.rope_dim, elements = kVectorBytes / dtype_bytes(d.dtype);
  if (!h.rope || dim == 0) return true;
  const int64_t apart = h.interleaved ? dim : dim / 2;
  return h.rope_offset % elements == 0 && apart % elements == 0;
}

// Whether kHeld reaches the angles of a description. All but those of `any` take those of a vector
// at once.
bool has_angles(const NormBackwardDesc& d, bool any) {
  const NormBackwardHeads& h = d.of_heads;
  const RopeTables& t = h.tables;
  if (!h.rope || t.rope_dim == 0) return true;
  bool narrow = t.table_rows <= kMostRows, aligned = true;
  for (const RopeTable* table : {&t.cos, &t.sin}) {
    const int64_t strides[] = {table->row_stride, table->head_stride};
    for (const int64_t stride : strides) narrow = narrow && stride == static_cast<int32_t>(stride);
    aligned = aligned && address_bits(table->data, strides) % kVectorBytes == 0;
  }
  return narrow && (any || (aligned && t.axes == 1 && !(h.interleaved && t.table_repeats)));
}

// Whether a kernel's registers can have so many columns, in vectors of T.
bool has_vectors(const NormBackwardDesc& d, const NormHeadsBackwardVariant& v, int64_t columns) {
  const int64_t elements = kVectorBytes / dtype_bytes(d.dtype);
  if (v.dtype != d.dtype || d.n % elements != 0 || columns > v.threads * v.vectors * elements)
    return false;
  return d.dy.dtype == d.dtype && d.dy_element_bytes != 0 && rotates_vectors(d) &&
         is_aligned(d.dy) && is_aligned(d.x) && has_narrow_strides(d);
}

// Whether these kernels compute a row's statistics where they are not given.
bool has_statistics(const NormBackwardDesc& d) {
  return !d.needs_statistics() || d.rstd ||
         (!is_layer(d) && d.rounding != FASTNORM_ROUND_EVERY_STEP);
}

// Whether kernel `v` of kHeld can have a description's rows.
bool can_hold(const NormBackwardDesc& d, const NormHeadsBackwardVariant& v) {
  if (!has_vectors(d, v, d.n) || !is_aligned(d.dx)) return false;
  if (!v.any && (is_layer(d) || d.dbias)) return false;
  if (!has_angles(d, v.any)) return false;
  if (!d.of_heads.across_heads && !has_statistics(d)) return false;
  return !d.has_sums() || norm_backward_rows(d.shared_rows, d.n).split_of(v.rows) != 0;
}

// Whether kernel `v` of kWhole can have a description's tokens: each head has its own sums, and its
// pairs are in one warp.
bool can_have_whole(const NormBackwardDesc& d, const NormHeadsBackwardVariant& v) {
  const int64_t vectors = d.n * dtype_bytes(d.dtype) / kVectorBytes, heads = d.of_heads.heads;
  if (!has_vectors(d, v, d.n * heads) || !is_aligned(d.dx)) return false;
  if (vectors > NormHeadsBackwardVariant::kMostHeadVectors || (vectors & (vectors - 1)) != 0)
    return false;
  if (is_layer(d) || d.dbias || (d.has_sums() && d.groups != heads) || !has_angles(d, false))
    return false;
  return !d.of_heads.normalise || (d.of_heads.across_heads && has_statistics(d));
}

class Planner {
 public:
  Planner(const HeadsGradients& call, const DeviceFacts& facts,
          std::span<const NormHeadsBackwardEntry> table, NormHeadsBackwardPlan* plan)
      : call_(call), facts_(facts), table_(table), plan_(*plan) {}

  fastnorm_status check(Error& error) const {
    FASTNORM_REQUIRE(!table_.empty(), FASTNORM_ERROR_UNSUPPORTED,
                     "this build has no norm_heads_backward for the device; nearest: the CPU");
    for (int32_t i = 0; i < call_.count; ++i) {
      FASTNORM_REQUIRE(call_.at[i]->rows <= kMostRows, FASTNORM_ERROR_UNSUPPORTED,
                       "dy has %" PRId64 " rows of all tokens; nearest on a GPU: %" PRId64,
                       call_.at[i]->rows, kMostRows);
    }
    return FASTNORM_OK;
  }

  // Whether kernel `index` can have the rows of all descriptions that do not come first.
  bool can_run(int32_t index) const {
    const NormHeadsBackwardVariant& v = table_[static_cast<size_t>(index)].variant;
    if (v.has_tokens() || v.form == HeadsBackwardForm::kFold || v.dtype != dtype()) return false;
    for (int32_t i = 0; i < call_.count; ++i) {
      const NormBackwardDesc& d = *call_.at[i];
      if (v.is_whole() && (call_.first[i] || d.shared_rows == 0 || !can_have_whole(d, v)))
        return false;
      if (v.is_held() && !call_.first[i] && d.shared_rows != 0 && !can_hold(d, v)) return false;
    }
    return true;
  }

  // Whether what a token's heads share is worth one launch in place of two: blocks of the row order
  // fill the multiprocessors, as each takes its tokens one after another.
  bool prefers_whole() const {
    bool shares = false;
    for (int32_t i = 0; i < call_.count; ++i) {
      const NormBackwardDesc& d = *call_.at[i];
      shares = shares || tokens_of(i) != 0;
      const NormBackwardRows order = norm_backward_rows(d.rows / d.of_heads.heads, d.n);
      const int64_t split = order.lanes / std::min<int64_t>(kMostWholeLanes, order.lanes);
      if (tokens_of(i) != 0 &&
          order.blocks * split < std::min<int64_t>(kBackwardMaxBlocks, facts_.multiprocessors)) {
        return false;
      }
    }
    return shares;
  }

  bool wants_sums() const {
    for (int32_t i = 0; i < call_.count; ++i) {
      if (!call_.first[i] && call_.at[i]->has_sums()) return true;
    }
    return false;
  }

  // Whether kernel `index` of kTokens can have the first launch.
  bool can_begin(int32_t index) const {
    const NormHeadsBackwardVariant& v = table_[static_cast<size_t>(index)].variant;
    return v.has_tokens() && holds_tokens(v);
  }

  // A kernel for whole tokens, the least held one, else the general one.
  int32_t choose() const {
    const bool whole = prefers_whole(), sums = wants_sums();
    // Sums fold from as few thread blocks as possible; rows without sums spread over many.
    const auto cost = [&](const NormHeadsBackwardVariant& v) {
      if (v.is_whole()) return whole ? v.threads : 1 << 21;
      const int rows = sums ? static_cast<int>(kBackwardMaxLanes) - v.rows : v.rows;
      return v.is_held() ? (v.threads * v.vectors * 2 + (v.any ? 1 : 0)) << 8 | rows : 1 << 20;
    };
    int32_t best = -1;
    for (size_t i = 0; i < table_.size(); ++i) {
      if (!can_run(static_cast<int32_t>(i))) continue;
      if (best < 0 || cost(table_[i].variant) < cost(table_[static_cast<size_t>(best)].variant))
        best = static_cast<int32_t>(i);
    }
    return best;
  }

  // The kernel of the first launch: the least one of kTokens that holds the heads of each token,
  // else the general one.
  int32_t choose_first(int32_t general) const {
    int32_t best = general;
    for (size_t i = 0; i < table_.size(); ++i) {
      const NormHeadsBackwardVariant &v = table_[i].variant,
                                     &least = table_[static_cast<size_t>(best)].variant;
      if (!can_begin(static_cast<int32_t>(i))) continue;
      if (best == general || v.threads * v.vectors < least.threads * least.vectors)
        best = static_cast<int32_t>(i);
    }
    return best;
  }

  // `first_index`: the kernel of the first launch; -1 = by choose_first().
  fastnorm_status plan(int32_t rows_index, int32_t first_index, Error& error) {
    const int32_t general = find(HeadsBackwardForm::kGeneral),
                  fold = find(HeadsBackwardForm::kFold);
    FASTNORM_REQUIRE(rows_index >= 0 && general >= 0 && fold >= 0, FASTNORM_ERROR_INTERNAL,
                     "no kernel of norm_heads_backward for the call");
    plan_ = {};
    for (int32_t i = 0; i < call_.count; ++i) spread(i, call_.first[i] ? general : rows_index);
    begin(first_index >= 0 ? first_index : choose_first(general));
    for (int32_t i = 0; i < call_.count; ++i) {
      if (tokens_of(i) != 0 && !variant_of(rows_index).is_whole())
        add(i, HeadsBackwardRole::kTokens, static_cast<uint64_t>(tokens_of(i)));
    }
    for (int32_t i = 0; i < call_.count; ++i) {
      if (call_.first[i]) add_rows(i);
    }
    end();
    begin(rows_index);
    for (int32_t i = 0; i < call_.count; ++i) {
      if (!call_.first[i]) add_rows(i);
    }
    if (end()) plan_.entry = &table_[static_cast<size_t>(rows_index)];
    begin(fold);
    for (int32_t i = 0; i < call_.count; ++i) {
      const NormBackwardDesc& d = *call_.at[i];
      if (plan_.parts[i].stores_sums) continue;
      const auto tiles =
          static_cast<uint64_t>((d.n + kBackwardFoldColumns - 1) / kBackwardFoldColumns * d.groups);
      if (d.dweight) add(i, HeadsBackwardRole::kDweight, tiles);
      if (d.dbias) add(i, HeadsBackwardRole::kDbias, tiles);
    }
    end();
    return finish(error);
  }

 private:
  const NormHeadsBackwardVariant& variant_of(int32_t index) const {
    return table_[static_cast<size_t>(index)].variant;
  }
  Dtype dtype() const { return call_.count == 0 ? Dtype::kF32 : call_.at[0]->dtype; }
  int64_t tokens_of(int32_t i) const { return norm_backward_tokens(*call_.at[i]); }

  int32_t find(HeadsBackwardForm form) const {
    for (size_t i = 0; i < table_.size(); ++i) {
      const NormHeadsBackwardVariant& v = table_[i].variant;
      if (v.form == form && (form == HeadsBackwardForm::kFold || v.dtype == dtype()))
        return static_cast<int32_t>(i);
    }
    return -1;
  }

  // Whether kernel `v` of kTokens can have all that the first launch has.
  bool holds_tokens(const NormHeadsBackwardVariant& v) const {
    for (int32_t i = 0; i < call_.count; ++i) {
      const NormBackwardDesc& d = *call_.at[i];
      if (call_.first[i]) return false;
      if (tokens_of(i) == 0) continue;
      if (!has_vectors(d, v, d.n * d.of_heads.heads) || !has_statistics(d)) return false;
    }
    return true;
  }

  uint64_t region(uint64_t bytes) { return take_region(&plan_.workspace_bytes, bytes); }

  // How a description's rows are spread over blocks, and its places in the workspace.
  void spread(int32_t i, int32_t index) {
    const NormBackwardDesc& d = *call_.at[i];
    HeadsGradientPlan& p = plan_.parts[i];
    const NormBackwardRows order = norm_backward_rows(d.shared_rows, d.n);
    const NormHeadsBackwardVariant& v = variant_of(index);
    const int64_t own = lanes_of(v, order, d.n);
    p.lanes = static_cast<uint32_t>(own);
    p.split = static_cast<uint32_t>(order.lanes / own);
    p.blocks = static_cast<uint32_t>(order.blocks);
    p.partial_stride = gpu_partial_stride(d.n);
    if (!d.has_sums()) {
      const int64_t lanes = v.is_held() ? v.rows : d.n <= kWarpHeadColumns ? kGeneralHeadsWarps : 1;
      p.lanes = static_cast<uint32_t>(lanes), p.split = 1;
      p.blocks = static_cast<uint32_t>(
          std::min((d.shared_rows + lanes - 1) / lanes, most_row_blocks(d, v)));
    }
    if (v.is_whole() && !d.has_sums()) {
      constexpr uint32_t kLanes = kMostWholeLanes;
      const auto tokens = static_cast<uint32_t>(d.rows / d.of_heads.heads);
      p.lanes = kLanes;
      p.blocks = std::min(std::max(1u, static_cast<uint32_t>(facts_.multiprocessors)),
                          (tokens + kLanes - 1) / kLanes);
    }
    p.stores_sums = d.has_sums() && p.blocks * p.split == 1 && v.is_held();
    const auto bytes = p.stores_sums ? 0
                                     : static_cast<uint64_t>(d.groups) * p.blocks * p.split *
                                           static_cast<uint64_t>(p.partial_stride) * sizeof(float);
    if (d.dweight) p.partial_offset[0] = region(bytes);
    if (d.dbias) p.partial_offset[1] = region(bytes);
    const int64_t tokens = v.is_whole() ? 0 : tokens_of(i);
    if (tokens != 0)
      p.token_offset = region(static_cast<uint64_t>(tokens * kTokenFloats) * sizeof(float));
  }

  // Lanes of the row order that a thread block has.
  static int64_t lanes_of(const NormHeadsBackwardVariant& v, const NormBackwardRows& order,
                          int64_t n) {
    if (v.is_held()) return std::min<int64_t>(v.rows, order.lanes);
    if (v.is_whole()) return std::min<int64_t>(kMostWholeLanes, order.lanes);
    const auto columns = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
    return std::clamp<int64_t>(kMostHeadsLaneColumns / columns, 1, order.lanes);
  }

  // Blocks of a held kernel go over several rows, so that they have the next ones on their way. All
  // that multiprocessors hold at once share what moves. Sums have their own number of blocks. Parts
  // without sums fill the multiprocessors as these end.
  int64_t most_row_blocks(const NormBackwardDesc& d, const NormHeadsBackwardVariant& v) const {
    if (!v.is_held()) return kMostRowBlocks;
    const auto moved = [](const NormBackwardDesc& of) {
      return of.rows * of.n * (of.of_heads.normalise ? 3 : 2);
    };
    int64_t all = 0;
    bool sums = false;
    for (int32_t i = 0; i < call_.count; ++i) {
      if (call_.first[i]) continue;
      all += moved(*call_.at[i]);
      sums = sums || call_.at[i]->has_sums();
    }
    const int64_t blocks = int64_t{facts_.multiprocessors} * v.per_sm;
    const auto share = all == 0 ? 0.0 : static_cast<double>(moved(d)) / static_cast<double>(all);
    const auto own = sums ? blocks : static_cast<int64_t>(static_cast<double>(blocks) * share);
    return std::max<int64_t>(1, own / d.groups);
  }

  void begin(int32_t index) {
    step_ = &plan_.steps[plan_.launches];
    *step_ = {};
    step_->index = index;
    step_->variant = &table_[static_cast<size_t>(index)].variant;
    blocks_ = 0;
  }
  void add(int32_t part, HeadsBackwardRole role, uint64_t blocks) {
    step_->items[step_->count++] = {part, role, static_cast<uint32_t>(blocks_)};
    blocks_ += blocks;
    most_blocks_ = std::max(most_blocks_, blocks_);
  }
  void add_rows(int32_t i) {
    const NormBackwardDesc& d = *call_.at[i];
    const HeadsGradientPlan& p = plan_.parts[i];
    if (d.shared_rows == 0) return;
    const NormHeadsBackwardVariant& v = variant_of(step_->index);
    const int64_t groups = v.is_whole() ? 1 : d.groups;  // of blocks
    add(i, HeadsBackwardRole::kRows, static_cast<uint64_t>(groups) * p.blocks * p.split);
    if (v.has_held_params()) step_->shared_bytes = heads_shared_bytes(v);
    if (v.has_held_params() || p.lanes == 1) return;
    const int64_t sums = (d.dweight ? 1 : 0) + (d.dbias ? 1 : 0);
    step_->shared_bytes =
        std::max(step_->shared_bytes,
                 static_cast<int32_t>(sums * p.lanes * p.partial_stride * int64_t{sizeof(float)}));
  }
  // Keeps the launch if it has something to do.
  bool end() {
    if (step_->count == 0) return false;
    step_->blocks = static_cast<uint32_t>(blocks_);
    plan_.blocks += blocks_;
    ++plan_.launches;
    return true;
  }

  fastnorm_status finish(Error& error) {
    FASTNORM_REQUIRE(most_blocks_ <= facts_.arch->max_blocks, FASTNORM_ERROR_UNSUPPORTED,
                     "parts need %" PRIu64 " thread blocks; nearest: %" PRIu64, most_blocks_,
                     facts_.arch->max_blocks);
    if (plan_.launches == 0) return FASTNORM_OK;
    const bool early = facts_.arch->launches_early();
    const uint32_t flags = call_.at[0]->flags;  // PDL's bits are those of the call in all of them
    for (int32_t i = 0; i < plan_.launches; ++i) {
      const bool last = i + 1 == plan_.launches;
      plan_.steps[i].early = early && (i > 0 || (flags & kPdlWait) != 0);
      plan_.steps[i].triggers = early && (!last || (flags & kPdlTrigger) != 0);
    }
    if (plan_.entry == nullptr) plan_.entry = &table_[static_cast<size_t>(plan_.steps[0].index)];
    plan_.kernel = plan_.entry->name;
    for (int32_t i = 0; i < call_.count; ++i) {
      NormBackwardPlan of_part;
      count_norm_backward_bytes(*call_.at[i], &of_part);
      plan_.bytes_read += of_part.bytes_read;
      plan_.bytes_written += of_part.bytes_written;
    }
    return FASTNORM_OK;
  }

  const HeadsGradients& call_;
  const DeviceFacts& facts_;
  const std::span<const NormHeadsBackwardEntry> table_;
  NormHeadsBackwardPlan& plan_;
  HeadsBackwardStep* step_ = nullptr;
  uint64_t blocks_ = 0, most_blocks_ = 0;
};

}  // namespace

fastnorm_status plan_norm_heads_gradients(const HeadsGradients& call, const DeviceFacts& facts,
                                          std::span<const NormHeadsBackwardEntry> table,
                                          NormHeadsBackwardPlan* plan, Error& error) {
  Planner planner(call, facts, table, plan);
  FASTNORM_TRY(planner.check(error));
  return planner.plan(planner.choose(), -1, error);
}

fastnorm_status plan_norm_heads_gradients_for(const HeadsGradients& call, const DeviceFacts& facts,
                                              std::span<const NormHeadsBackwardEntry> table,
                                              int32_t index, NormHeadsBackwardPlan* plan,
                                              Error& error) {
  Planner planner(call, facts, table, plan);
  FASTNORM_TRY(planner.check(error));
  const bool first = planner.can_begin(index);
  FASTNORM_REQUIRE(first || planner.can_run(index), FASTNORM_ERROR_UNSUPPORTED,
                   "kernel %d cannot serve the call", index);
  return first ? planner.plan(planner.choose(), index, error) : planner.plan(index, -1, error);
}

}  // namespace fastnorm
