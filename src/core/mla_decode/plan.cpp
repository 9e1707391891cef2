#include "core/mla_decode/plan.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <vector>

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

const char* kernel_name(const MlaDecodeDesc& d, bool cuda) {
  // By MlaCacheFormat: kernels that gather rows.
  static constexpr const char* kGather[][2] = {{"bf16_gather", "f16_gather"},
                                               {"bf16_gather_656", "f16_gather_656"},
                                               {"bf16_gather_576", "f16_gather_576"},
                                               {"bf16_gather_584", "f16_gather_584"}};
  const bool profile = d.profile_events != 0, bf16 = d.dtype == Dtype::kBF16;
  if (d.dtype == Dtype::kF32) return "f32";
  if (cuda && d.gathers()) return kGather[static_cast<int>(d.format)][bf16 ? 0 : 1];
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

// The requests end to end, as the planner lays them.
struct Line {
  std::vector<int32_t> tiles;
  std::vector<int64_t> first;  // position of each request, then the total

  Line(std::span<const MlaDecodeLength> lengths, int32_t split_tiles) {
    first.push_back(0);
    for (const MlaDecodeLength& length : lengths) {
      const int32_t n = mla_tiles(length);
      const int32_t pieces = split_tiles == 0 ? 1 : mla_fixed_pieces(n, split_tiles);
      tiles.push_back(n);
      first.push_back(first.back() + n + int64_t{pieces} * kMlaRequestCost);
    }
  }

  int64_t total() const { return first.back(); }
  // The last request that begins at or before a position. The end counts as one.
  int32_t at(int64_t place) const {
    return static_cast<int32_t>(std::upper_bound(first.begin(), first.end(), place) -
                                first.begin()) -
           1;
  }
};

struct Place {
  int32_t request, tile;
};

// The length of equal pieces, one for each part; 0 if they need too many parts or are too long.
int32_t even_length(const Line& line, int32_t parts, int64_t step) {
  if (static_cast<int64_t>(line.tiles.size()) > parts) return 0;
  int64_t tiles = 0;
  for (const int32_t n : line.tiles) tiles += n;
  const int64_t least = std::max<int64_t>(kMlaLeastTiles, ceil_div(tiles, parts));
  for (int64_t length = least; length < least + kMlaTriedLengths; ++length) {
    int64_t pieces = 0;
    for (const int32_t n : line.tiles) pieces += mla_fixed_pieces(n, static_cast<int32_t>(length));
    if (pieces <= parts) return length <= step + kMlaMergeCost ? static_cast<int32_t>(length) : 0;
  }
  return 0;
}

// Requests of each part if all requests have one length; 0 if that balances the parts badly.
int64_t whole_requests(const Line& line, int32_t parts, int64_t step) {
  const auto requests = static_cast<int64_t>(line.tiles.size());
  const auto [least, greatest] = std::minmax_element(line.tiles.begin(), line.tiles.end());
  if (requests <= parts || *least != *greatest) return 0;
  const int64_t count = ceil_div(requests, parts);
  const int64_t load = count * (int64_t{*greatest} + kMlaRequestCost);
  return load <= step + 2 * kMlaRequestCost + kMlaMergeCost ? count : 0;
}

// Where the parts begin, and the end, as positions on the line.
std::vector<int64_t> automatic_places(const Line& line, int32_t parts) {
  const int64_t step = std::max<int64_t>(1, ceil_div(line.total(), parts));
  std::vector<int64_t> places;
  if (const int32_t length = even_length(line, parts, step); length != 0) {
    for (size_t b = 0; b < line.tiles.size(); ++b) {
      const int32_t pieces = mla_fixed_pieces(line.tiles[b], length);
      const int64_t size = ceil_div(line.tiles[b], pieces);
      for (int32_t i = 0; i < pieces; ++i) places.push_back(line.first[b] + i * size);
    }
  } else if (const int64_t count = whole_requests(line, parts, step); count != 0) {
    for (int64_t b = 0; b < static_cast<int64_t>(line.tiles.size()); b += count)
      places.push_back(line.first[static_cast<size_t>(b)]);
  } else {
    int64_t place = 0;
    for (int32_t w = 0; w < parts; ++w) {
      places.push_back(place);
      // A rest of a request that costs less than another piece stays with this part.
      const int64_t snapped =
          line.first[static_cast<size_t>(line.at(place + step + kMlaRequestCost))];
      place = std::min(line.total(), std::max(place + step, snapped));
    }
  }
  places.resize(static_cast<size_t>(parts) + 1, line.total());
  return places;
}

std::vector<Place> automatic_cuts(const Line& line, int32_t parts) {
  std::vector<Place> cuts;
  for (const int64_t place : automatic_places(line, parts)) {
    const int32_t request = line.at(place);
    cuts.push_back(
        {request, static_cast<int32_t>(place - line.first[static_cast<size_t>(request)])});
  }
  return cuts;
}

std::vector<Place> fixed_cuts(const Line& line, int32_t split_tiles, int32_t parts) {
  const auto requests = static_cast<int32_t>(line.tiles.size());
  std::vector<Place> cuts = {{0, 0}};
  for (int32_t w = 1; w < parts; ++w) {
    const int64_t place = line.total() * w / parts;
    const int32_t request = std::min(line.at(place), requests - 1);
    const int64_t into = place - line.first[static_cast<size_t>(request)];
    const int64_t piece = std::min<int64_t>(
        into / (split_tiles + kMlaRequestCost),
        mla_fixed_pieces(line.tiles[static_cast<size_t>(request)], split_tiles) - 1);
    cuts.push_back({request, static_cast<int32_t>(piece * split_tiles)});
  }
  cuts.push_back({requests, 0});
  return cuts;
}

// Pieces of each request, from its cuts.
std::vector<int32_t> count_pieces(const Line& line, const std::vector<Place>& cuts,
                                  int32_t split_tiles) {
  std::vector<int32_t> pieces;
  for (const int32_t tiles : line.tiles)
    pieces.push_back(split_tiles == 0 ? 1 : mla_fixed_pieces(tiles, split_tiles));
  if (split_tiles != 0) return pieces;
  for (size_t w = 1; w + 1 < cuts.size(); ++w) {
    const bool again = cuts[w].request == cuts[w - 1].request && cuts[w].tile == cuts[w - 1].tile;
    if (cuts[w].tile != 0 && !again) ++pieces[static_cast<size_t>(cuts[w].request)];
  }
  return pieces;
}

}  // namespace

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
  plan->kernel = kernel_name(desc, cuda);
  count_bytes(desc, plan);
  return FASTNORM_OK;
}

void mla_decode_work(std::span<const MlaDecodeLength> lengths, int32_t heads, int32_t split_tiles,
                     std::span<MlaDecodePart> parts, std::span<MlaDecodeSplit> splits,
                     MlaDecodePlanHeader* header) {
  const Line line(lengths, split_tiles);
  const auto count = static_cast<int32_t>(parts.size());
  const std::vector<Place> cuts =
      split_tiles == 0 ? automatic_cuts(line, count) : fixed_cuts(line, split_tiles, count);
  const std::vector<int32_t> pieces = count_pieces(line, cuts, split_tiles);
  *header = {};
  std::vector<int32_t> first_piece;  // of each request
  for (size_t b = 0; b < lengths.size(); ++b) {
    first_piece.push_back(header->pieces);
    if (pieces[b] == 1) continue;
    if (split_tiles != 0 || pieces[b] > 2) {
      splits[static_cast<size_t>(header->splits++)] = {static_cast<int32_t>(b), header->pieces,
                                                       pieces[b], header->units};
      header->units += mla_combine_units(pieces[b], heads * lengths[b].s_q);
    }
    header->pieces += pieces[b];
  }
  int32_t done = 0;  // pieces of the request at the cut that come before it
  for (size_t w = 0; w < parts.size(); ++w) {
    const Place from = cuts[w], to = cuts[w + 1];
    const bool in_request = from.tile != 0;
    const bool again =
        w > 0 && cuts[w - 1].request == from.request && cuts[w - 1].tile == from.tile;
    if (!in_request) {
      done = 0;
    } else if (split_tiles != 0) {
      done = from.tile / split_tiles;
    } else if (!again) {
      done = w > 0 && cuts[w - 1].request == from.request ? done + 1 : 1;
    }
    const auto b = static_cast<size_t>(from.request);
    const int32_t before = b < lengths.size() ? first_piece[b] : header->pieces;
    const bool is_empty = from.request == to.request && from.tile == to.tile;
    const auto is_pair = [&](int32_t request) {
      const auto r = static_cast<size_t>(request);
      return split_tiles == 0 && r < pieces.size() && pieces[r] == 2;
    };
    parts[w] = {
        from.request,
        from.tile,
        to.request,
        to.tile,
        before + done,
        is_empty ? 0 : std::max(lengths[b].kv_len, 0),
        (is_pair(from.request) ? kMlaFirstIsPair : 0) | (is_pair(to.request) ? kMlaLastIsPair : 0),
        0};
  }
}

}  // namespace fastnorm
