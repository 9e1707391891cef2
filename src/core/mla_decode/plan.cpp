#include "core/mla_decode/plan.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "core/common/check.h"
#include "core/mla_decode/profile.h"

namespace fastnorm {
namespace {

constexpr uint64_t kAlign = 256;

uint64_t aligned(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

int64_t aligned_tokens(int64_t tokens) {
  return (tokens + kMlaTileTokens - 1) / kMlaTileTokens * kMlaTileTokens;
}

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// The kernels of an MLA decode call.
const char* kernel_name(const MlaDecodeDesc& d, int32_t tile_rows, bool cuda) {
  // By MlaCacheFormat: kernels that gather rows.
  static constexpr const char* kGather[][2] = {{"bf16_gather", "f16_gather"},
                                               {"bf16_gather_656", "f16_gather_656"},
                                               {"bf16_gather_576", "f16_gather_576"},
                                               {"bf16_gather_584", "f16_gather_584"}};
  const bool profile = d.profile_events != 0, bf16 = d.dtype == Dtype::kBF16;
  if (d.dtype == Dtype::kF32) return "f32";
  if (cuda && d.gathers()) return kGather[static_cast<int>(d.format)][bf16 ? 0 : 1];
  if (tile_rows != kMlaTileRows) {
    return bf16 ? "bf16_swapped" : "f16_swapped";
  }
  if (bf16) return profile ? "bf16_profile" : "bf16";
  return profile ? "f16_profile" : "f16";
}

// Indices of a sparse call, in all.
uint64_t count_indices(const MlaDecodeDesc& d) {
  const auto tokens = static_cast<uint64_t>(d.tokens);
  return tokens *
         (static_cast<uint64_t>(d.selection.topk) + static_cast<uint64_t>(d.extra.selection.topk));
}

// Elements of 4 bytes that say which rows of the cache are read, or how they are used.
uint64_t count_words(const MlaDecodeDesc& d, uint64_t cached) {
  const auto batch = static_cast<uint64_t>(d.batch), tokens = static_cast<uint64_t>(d.tokens);
  const auto page = static_cast<uint64_t>(d.page_size);
  uint64_t words = d.sparse ? count_indices(d) : batch + (cached + page - 1) / page;
  if (d.kv_indptr != nullptr) words += batch + 1;
  if (d.qo_indptr != nullptr) words += batch + 1;
  for (const MlaDecodeSelection* s : {&d.selection, &d.extra.selection}) {
    if (s->lengths != nullptr) words += s->per_token ? tokens : batch;
  }
  if (d.sink != nullptr) words += static_cast<uint64_t>(d.heads);
  return words + (d.cache_scale != nullptr ? 1 : 0);
}

void count_bytes(const MlaDecodeDesc& d, MlaDecodePlan* plan) {
  const auto element = static_cast<uint64_t>(dtype_bytes(d.dtype));
  const auto rows = static_cast<uint64_t>(d.tokens * d.heads);
  auto cached = static_cast<uint64_t>(d.total_kv_hint);
  if (d.sparse && cached == 0) cached = count_indices(d);
  const uint64_t query = static_cast<uint64_t>(d.layout().nope + kMlaRope) * element;
  const uint64_t row = d.format == MlaCacheFormat::kRows
                           ? (kMlaLatent + kMlaRope) * element
                           : static_cast<uint64_t>(d.layout().row_bytes);
  plan->bytes_read = rows * query + cached * row + 4 * count_words(d, cached);
  plan->bytes_written = rows * kMlaLatent * element + (d.lse.data != nullptr ? rows * 4 : 0);
}

// Tokens that the extents of the page table, or of the indices, allow for a request.
int64_t most_tokens(const MlaDecodeDesc& d) {
  int64_t tokens = 0;
  if (d.sparse) {
    // The second cache's begin with a tile.
    tokens = d.selection.topk;
    if (d.has_extra) tokens = aligned_tokens(tokens) + d.extra.selection.topk;
    return tokens;
  }
  if (__builtin_mul_overflow(d.table_columns, int64_t{d.page_size}, &tokens)) tokens = INT32_MAX;
  return std::min<int64_t>(tokens, INT32_MAX);
}

// More indices of a token than tiles can be counted of.
fastnorm_status check_selected(const MlaDecodeDesc& d, Error& error) {
  FASTNORM_REQUIRE(!d.sparse || most_tokens(d) <= INT32_MAX - kMlaTileTokens,
                   FASTNORM_ERROR_UNSUPPORTED,
                   "indices and extra_indices have %" PRId64 " and %" PRId64
                   " of a token on a CUDA device; nearest: fewer than 2^31 - 64 together",
                   d.selection.topk, d.extra.selection.topk);
  return FASTNORM_OK;
}

// An upper limit of the sum of ceil(tokens / unit) over all requests; -1 if it is 2^40 or more.
int64_t most_units(const MlaDecodeDesc& d, int64_t unit) {
  constexpr int64_t kMost = int64_t{1} << 40;
  int64_t units = 0;
  if (d.kv_indptr == nullptr) {
    units = d.batch * ceil_div(most_tokens(d), unit);
  } else {
    int64_t tokens = 0;
    if (__builtin_mul_overflow(d.table_columns, int64_t{d.page_size}, &tokens)) return -1;
    units = tokens / unit + d.batch;
  }
  return units < kMost ? units : -1;
}

// The planner counts positions on its line in 32 bits.
fastnorm_status check_places(const MlaDecodeDesc& d, Error& error) {
  const int64_t tiles = most_units(d, kMlaTileTokens);
  const int64_t pieces = d.split_tokens == 0 ? d.batch : most_units(d, d.split_tokens) + d.batch;
  FASTNORM_REQUIRE(tiles >= 0 && pieces >= 0 && tiles + pieces * kMlaRequestCost <= INT32_MAX,
                   FASTNORM_ERROR_UNSUPPORTED,
                   "page_table has room for %" PRId64
                   " pages of %d tokens%s for %d requests, and "
                   "split_tokens is %d; nearest: fewer than 2^31 tiles of 64 tokens, with %d more "
                   "for each request or piece",
                   d.table_columns, d.page_size, d.kv_indptr == nullptr ? " a request" : " in all",
                   d.batch, d.split_tokens, kMlaRequestCost);
  return FASTNORM_OK;
}

// Room for pieces.
fastnorm_status bound_pieces(const MlaDecodeDesc& d, MlaDecodePlan* plan, Error& error) {
  if (d.split_tokens == 0) {
    // A part cuts one request at its start and one at its end.
    plan->max_splits = plan->parts;
    plan->max_pieces = plan->max_pairs = plan->parts > 1 ? 2 * plan->parts : 0;
    plan->may_split = plan->parts > 1;
    return FASTNORM_OK;
  }
  const int64_t pieces = most_units(d, d.split_tokens);
  // For one request: a CSR table may list all its pages for one request.
  plan->may_split = most_tokens(d) > d.split_tokens;
  plan->max_splits = plan->may_split ? d.batch : 0;
  plan->max_pieces = plan->may_split ? pieces : 0;
  constexpr int64_t kMostBytes = int64_t{1} << 46;
  const int64_t piece_bytes = int64_t{plan->m_tiles} * kMlaTileRows * (kMlaLatent + 1) * 4;
  FASTNORM_REQUIRE(plan->max_pieces <= kMostBytes / piece_bytes, FASTNORM_ERROR_UNSUPPORTED,
                   "split_tokens is %d and page_table has room for %" PRId64
                   " pieces, each with "
                   "%" PRId64 " bytes of scratch; nearest: longer pieces, or 0",
                   d.split_tokens, plan->max_pieces, piece_bytes);
  return FASTNORM_OK;
}

void lay_out(const MlaDecodeDesc& d, MlaDecodePlan* plan) {
  const uint64_t rows = static_cast<uint64_t>(plan->m_tiles) * kMlaTileRows;
  const auto pieces = static_cast<uint64_t>(plan->max_pieces);
  uint64_t at = aligned(sizeof(MlaDecodePlanHeader));
  plan->parts_offset = at;
  at += aligned(static_cast<uint64_t>(plan->parts) * sizeof(MlaDecodePart));
  plan->splits_offset = at;
  at += aligned(static_cast<uint64_t>(plan->max_splits) * sizeof(MlaDecodeSplit));
  plan->pairs_offset = at;
  at += aligned(static_cast<uint64_t>(plan->max_pairs * plan->m_tiles) * sizeof(MlaDecodePair));
  plan->scan_offset = at;
  at += aligned((static_cast<uint64_t>(d.batch) + 1) * sizeof(int32_t));
  plan->partial_lse_offset = at;
  at += aligned(pieces * rows * sizeof(float));
  plan->partial_o_offset = at;
  at += pieces * rows * kMlaLatent * sizeof(float);
  plan->workspace_bytes = at;
}

// How one box gets the rows of any m-tile.
RowAccess row_access(const MlaDecodeDesc& desc, std::initializer_list<const MlaDecodeTensor*> all,
                     int32_t tile_rows) {
  if (desc.max_s_q == 1 || desc.heads % tile_rows == 0) return RowAccess::kTokenRows;
  if (desc.qo_indptr == nullptr && std::all_of(all.begin(), all.end(), [&](auto* tensor) {
        return row_stride(desc, *tensor) > 0;
      })) {
    return RowAccess::kRequestRows;
  }
  return tile_rows % desc.heads == 0 ? RowAccess::kTokenRows : RowAccess::kRows;
}

bool has_boxes(int32_t page_size) {
  return page_size == 16 || page_size == 32 || page_size % kMlaTileTokens == 0;
}

// How rows get to shared memory and back, and whether they are few.
void plan_rows(const MlaDecodeDesc& d, MlaDecodePlan* plan) {
  plan->boxed_pages = !d.gathers() && has_boxes(d.page_size);
  if (plan->boxed_pages && d.profile_events == 0 && d.rows() <= kMlaFewerRows &&
      row_access(d, {&d.q_nope, &d.q_pe}, kMlaFewerRows) != RowAccess::kRows) {
    plan->tile_rows = kMlaFewerRows;
  }
  plan->q_access = row_access(d, {&d.q_nope, &d.q_pe}, plan->tile_rows);
  plan->o_access = row_access(d, {&d.o}, plan->tile_rows);
}

fastnorm_status plan_cuda(const MlaDecodeDesc& desc, const DeviceFacts& facts, MlaDecodePlan* plan,
                          Error& error) {
  const MlaDecodeDesc d = with_token_requests(desc);
  plan->s_q = d.max_s_q;
  FASTNORM_REQUIRE(
      !d.gathers() || d.profile_events == 0, FASTNORM_ERROR_UNSUPPORTED,
      "profile_events is %d and the call has %s; nearest: 0 and no profile, or rows of "
      "T without indices",
      d.profile_events, d.sparse ? "indices" : "an FP8 cache_format");
  FASTNORM_TRY(check_selected(d, error));
  FASTNORM_REQUIRE(d.dtype != Dtype::kF32, FASTNORM_ERROR_UNSUPPORTED,
                   "q_nope.dtype is f32 on a CUDA device; nearest: bf16 or f16, or the CPU");
  const bool hopper = facts.arch != nullptr && std::strcmp(facts.arch->name, "sm_90") == 0;
  FASTNORM_REQUIRE(hopper, FASTNORM_ERROR_UNSUPPORTED,
                   "the device's kernels are %s and mla_decode has none there; nearest: sm_90 "
                   "(compute capability 9.0), or the CPU",
                   facts.arch != nullptr ? facts.arch->name : "of no architecture");
  plan->m_tiles = static_cast<int32_t>(ceil_div(d.rows(), kMlaTileRows));
  plan->parts = std::clamp(facts.multiprocessors / plan->m_tiles, 1, kMlaMaxParts);
  plan->split_tiles = d.split_tokens / kMlaTileTokens;
  plan_rows(d, plan);
  FASTNORM_TRY(check_places(d, error));
  FASTNORM_TRY(bound_pieces(d, plan, error));
  lay_out(d, plan);
  plan->blocks = static_cast<uint64_t>(plan->m_tiles) * static_cast<uint64_t>(plan->parts);
  plan->launches = (d.reuse_plan ? 0 : 1) + 1 + (plan->may_split ? 1 : 0);
  if (d.profile_events != 0) {
    plan->profile_bytes =
        profile_bytes(plan->blocks * kMlaGroups, static_cast<uint64_t>(d.profile_events));
    FASTNORM_REQUIRE(
        d.profile == nullptr || d.profile_bytes >= plan->profile_bytes, FASTNORM_ERROR_SHAPE,
        "profile.shape is [%" PRIu64 "]; required: at least [%" PRIu64
        "], for %d events of each of %d warpgroups of %" PRIu64 " thread blocks",
        d.profile_bytes, plan->profile_bytes, d.profile_events, kMlaGroups, plan->blocks);
  }
  return FASTNORM_OK;
}

}  // namespace

int64_t row_stride(const MlaDecodeDesc& desc, const MlaDecodeTensor& tensor) {
  if (desc.heads == 1) return tensor.outer;
  if (desc.max_s_q == 1 || tensor.outer == desc.heads * tensor.inner) return tensor.inner;
  return 0;
}

MlaDecodeDesc with_token_requests(const MlaDecodeDesc& desc) {
  MlaDecodeDesc d = desc;
  if (!d.sparse) return d;
  d.batch = static_cast<int32_t>(d.tokens);
  d.max_s_q = 1;
  return d;
}

fastnorm_status plan_mla_decode(const MlaDecodeDesc& desc, const DeviceFacts& facts,
                                MlaDecodePlan* plan, Error& error) {
  *plan = {};
  plan->s_q = desc.max_s_q;
  const bool cuda = facts.device_type == FASTNORM_DEVICE_CUDA;
  FASTNORM_REQUIRE(cuda || desc.profile_events == 0, FASTNORM_ERROR_UNSUPPORTED,
                   "profile_events is %d on the CPU; nearest: 0 and no profile",
                   desc.profile_events);
  if (desc.empty()) return FASTNORM_OK;
  if (cuda) {
    FASTNORM_TRY(plan_cuda(desc, facts, plan, error));
  } else {
    plan->launches = 1;
    plan->blocks =
        static_cast<uint64_t>(std::min<int64_t>(facts.threads, desc.tokens * desc.heads));
  }
  plan->kernel = kernel_name(desc, plan->tile_rows, cuda);
  count_bytes(desc, plan);
  return FASTNORM_OK;
}

}  // namespace fastnorm
