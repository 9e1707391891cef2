#include "core/norm_heads/plan.h"

#include <algorithm>
#include <cinttypes>

#include "core/common/check.h"
#include "core/common/grain.h"
#include "core/norm_heads/tensors.h"

namespace fastnorm {
namespace {

#define C(name, value) constexpr int64_t name = value;
#include "core/norm_heads/numbers.inc"
#undef C

uint64_t bytes_of(int64_t count, Dtype dtype) {
  return static_cast<uint64_t>(count) * static_cast<uint64_t>(dtype_bytes(dtype));
}

// Counts codes and scales of `rows` rows. A static scale is read, not written.
void count_codes(const QuantDesc& q, int64_t rows, int64_t n, NormHeadsPlan* plan) {
  if (q.scheme == FASTNORM_QUANT_NONE) return;
  plan->bytes_written += static_cast<uint64_t>(rows * q.code_bytes(n));
  for (const std::byte* scalar : {q.tensor_scale, q.global_scale, q.clamp_scale}) {
    if (scalar != nullptr) plan->bytes_read += 4;
  }
  if (q.signs) plan->bytes_read += bytes_of(q.sign_columns(n), Dtype::kF32);
  if (q.swizzled) {
    plan->bytes_written += static_cast<uint64_t>(q.swizzled_bytes(rows, n));
  } else if (q.scale) {
    plan->bytes_written += bytes_of(rows * q.scales(n), q.scale.dtype);
  }
}

void count_part(const NormHeadsDesc& d, const NormHeadsPart& p, NormHeadsPlan* plan) {
  const NormDesc& n = p.norm;
  const int64_t rows = d.tokens * p.heads, columns = n.n;
  plan->bytes_read += bytes_of(rows * columns, n.dtype);
  for (const WeightTensor* c : {&n.weight, &n.bias}) {
    if (*c)
      plan->bytes_read += bytes_of(columns * (c->head_stride_bytes != 0 ? p.heads : 1), c->dtype);
  }
  for_each_head_values(p, [&](auto of, const HeadValues& v) {
    const int64_t values = values_of(p, of) * (is_of_token(p, of) ? d.tokens : rows);
    const uint64_t bytes = v ? bytes_of(values, v.dtype) : 0;
    (decltype(of)::kOutput ? plan->bytes_written : plan->bytes_read) += bytes;
    return true;
  });
  if (n.y) plan->bytes_written += bytes_of(rows * columns, n.y.dtype);
  count_codes(n.quant, rows, columns, plan);
  const HeadsCache& c = p.cache;
  if (!c) return;
  const int64_t cached = d.slot_count * p.heads;
  count_codes(c.quant, cached, p.cache_columns(), plan);
  if (c.quant.scheme == FASTNORM_QUANT_NONE)
    plan->bytes_written += bytes_of(cached * columns, c.rows.dtype);
  if (c.tail) plan->bytes_written += bytes_of(cached * c.tail_columns, c.tail.dtype);
}

// Counts the table entries and indices that tokens need.
void count_shared(const NormHeadsDesc& d, NormHeadsPlan* plan) {
  int64_t tables = 0;
  for (int32_t i = 0; i < d.count; ++i) {
    if (d.parts[i].rope) tables = std::max(tables, d.cos.head_stride != 0 ? d.parts[i].heads : 1);
  }
  plan->bytes_read += 2 * bytes_of(tables * d.tokens * (d.rope_dim / 2), d.table_dtype);
  if (d.positions)
    plan->bytes_read += static_cast<uint64_t>(d.tokens * d.axes) * (d.positions.wide ? 8 : 4);
  if (d.slots) plan->bytes_read += static_cast<uint64_t>(d.slot_count) * (d.slots.wide ? 8 : 4);
}

// Tokens that are worth another thread.
int64_t grain_of(const NormHeadsDesc& d) {
  int64_t elements = 0;
  for (int32_t i = 0; i < d.count; ++i) {
    int64_t more = 0;
    if (__builtin_mul_overflow(d.parts[i].heads, d.parts[i].norm.n, &more) ||
        __builtin_add_overflow(elements, more, &elements)) {
      return 1;
    }
  }
  return std::max<int64_t>(1, kNormHeadsGrain / std::max<int64_t>(1, elements));
}

uint64_t divide_up(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// The device numbers rows in 32 bits.
fastnorm_status check_rows(const NormHeadsDesc& d, Error& error) {
  constexpr int64_t kMostRows = int64_t{0xffffff00};
  for (int32_t i = 0; i < d.count; ++i) {
    FASTNORM_REQUIRE(d.parts[i].norm.rows <= kMostRows, FASTNORM_ERROR_UNSUPPORTED,
                     "parts[%d].x has %" PRId64 " rows of all tokens; nearest: %" PRId64, i,
                     d.parts[i].norm.rows, kMostRows);
  }
  return FASTNORM_OK;
}

// Blocks of the general form for a part: see run_heads_block() in cuda/norm_heads/general.cuh.
uint64_t general_blocks(const NormHeadsDesc& d, const NormHeadsPart& p) {
  const auto rows = static_cast<uint64_t>(d.tokens) * static_cast<uint64_t>(p.heads);
  if (p.across_heads) return static_cast<uint64_t>(d.tokens);
  return p.norm.n > kWarpHeadColumns ? rows : divide_up(rows, kGeneralHeadsWarps);
}

constexpr int64_t kVectorBytes = 16;
constexpr uint64_t kMostItems = 0xffffff00;  // groups of lanes of a part

int64_t vector_elements(const NormHeadsDesc& d) { return kVectorBytes / dtype_bytes(d.dtype); }

bool is_aligned(const RowTensor& t, uint64_t bytes = kVectorBytes) {
  return (address_bits(t.data, t.stride_bytes) & (bytes - 1)) == 0;
}
bool is_aligned(const std::byte* data, int64_t stride, int64_t other_stride = 0) {
  return address_bits(data, {stride, other_stride}) % kVectorBytes == 0;
}
bool is_aligned(const RopeTable& t) { return is_aligned(t.data, t.row_stride, t.head_stride); }
bool is_aligned(const WeightTensor& c) { return is_aligned(c.data, c.head_stride_bytes); }

// Whether a part needs kMore among the forms that hold rows.
bool needs_more(const NormHeadsPart& p) {
  return p.sumsq || p.norm.quant.any() || p.cache.quant.divides;
}

// Codes of y that kMore makes: in place of y, by one static scale, and without a clamp or amax.
bool has_simple_codes(const NormHeadsDesc& d, const NormHeadsPart& p) {
  const QuantDesc& q = p.norm.quant;
  return !q.any() || (q.scheme == FASTNORM_QUANT_PER_TENSOR && !p.norm.y && q.clamp == 0.0f &&
                      q.clamp_scale == nullptr && q.amax == nullptr && q.rotation == 0 &&
                      is_aligned(q.codes, static_cast<uint64_t>(vector_elements(d))));
}

// Codes with scales that a kernel makes of a row's values alone, and stores in rows.
bool has_row_codes(const QuantDesc& q) {
  return (q.scheme == FASTNORM_QUANT_PER_ROW || q.scheme == FASTNORM_QUANT_PER_BLOCK) &&
         !q.swizzled && !q.divides && q.amax == nullptr;
}

// Whether slots and rows suit the forms that hold rows in registers. These store a row of the cache
// in one dtype.
bool can_hold_rows(const NormHeadsDesc& d, const NormHeadsPart& p) {
  const HeadsCache& c = p.cache;
  if (c && (c.page_size > UINT32_MAX || c.pages > int64_t{UINT32_MAX} / c.page_size)) return false;
  if (c.tail) return false;
  return has_vector_heads(d, p);
}

// Whether the forms that hold rows can store what a part asks for. kIndexer, and kLatent for long
// rows, have rules of their own.
bool can_store(const NormHeadsDesc& d, const NormHeadsPart& p) {
  const HeadsCache& c = p.cache;
  const uint64_t code_bytes = c.quant.scheme == FASTNORM_QUANT_NONE
                                  ? static_cast<uint64_t>(kVectorBytes)
                                  : static_cast<uint64_t>(vector_elements(d));
  if (!has_simple_codes(d, p) || (c.quant.divides && c.quant.block != 0)) return false;
  if (c.quant.rotation != 0 || p.head_weights) return false;
  return is_aligned(c.rows, code_bytes);
}

bool has_own_tables(const NormHeadsDesc& d) { return (d.cos.head_stride | d.sin.head_stride) != 0; }

bool rotates(const NormHeadsDesc& d, const NormHeadsPart& p) { return p.rope && d.rope_dim != 0; }

// Whether the columns that rotate begin at a vector, and so do the other ones of their pairs.
bool rotates_vectors(const NormHeadsDesc& d, const NormHeadsPart& p) {
  const int64_t elements = vector_elements(d), apart = p.interleaved ? d.rope_dim : d.rope_dim / 2;
  return p.rope_offset % elements == 0 && apart % elements == 0;
}

// Pairs of a token that rotate, rounded up to a multiple of a vector.
int64_t token_pairs(const NormHeadsDesc& d, const NormHeadsPart& p) {
  const int64_t elements = vector_elements(d);
  return rotates(d, p) ? (d.rope_dim / 2 + elements - 1) / elements * elements : 0;
}

// Whether a kernel of kTokens supports a part.
bool can_hold_tokens(const NormHeadsDesc& d, const NormHeadsPart& p, const NormHeadsVariant& v) {
  const HeadsCache& c = p.cache;
  if (p.normalise && !p.across_heads) return false;
  if (p.heads > v.threads * v.vectors * vector_elements(d) / p.norm.n) return false;
  if (p.norm.quant.any() || c.quant.divides || c.quant.block != 0 || c.quant.rotation != 0)
    return false;
  return !rotates(d, p) ||
         (!has_own_tables(d) && rotates_vectors(d, p) && token_pairs(d, p) <= kTokenPairs);
}

// Whether a kernel of kIndexer supports a part: rows of its tile, with codes of y or of the cache.
bool can_hold_indexed(const NormHeadsDesc& d, const NormHeadsPart& p, const NormHeadsVariant& v) {
  constexpr uint64_t kWord = 4;  // in which codes are stored at least
  const bool of_y = p.norm.quant.any();
  const QuantDesc& q = of_y ? p.norm.quant : p.cache.quant;
  const int64_t elements = vector_elements(d), columns = v.threads * v.vectors * elements;
  if (p.across_heads || p.sumsq || p.norm.n != columns || (of_y && p.cache)) return false;
  if (!has_row_codes(q) || q.scales(columns) != 1 || !is_aligned(q.codes, kWord)) return false;
  if (!rotates(d, p)) return true;
  // Both columns of a pair are in one lane.
  const int64_t pairs = v.threads * elements;
  return !has_own_tables(d) && d.rope_dim == 2 * pairs && p.rope_offset % pairs == 0;
}

// Whether kIndexerLean supports a part that kIndexer does.
bool is_lean_indexed(const NormHeadsDesc& d, const NormHeadsPart& p) {
  const QuantDesc& q = p.norm.quant.any() ? p.norm.quant : p.cache.quant;
  const NormDesc& norm = p.norm;
  const auto is_own_or_f32 = [&](const WeightTensor& w) {
    return w.dtype == d.dtype || w.dtype == Dtype::kF32;
  };
  const bool key = norm.kind == FASTNORM_NORM_LAYER && norm.weight && norm.bias &&
                   is_own_or_f32(norm.weight) && is_own_or_f32(norm.bias) &&
                   norm.weight.head_stride_bytes == 0 && norm.bias.head_stride_bytes == 0 &&
                   norm.rounding == FASTNORM_ROUND_ONCE && !p.rstd_in && !p.rstd && !p.mean;
  const bool turns = rotates(d, p) && p.rope_offset == 0 && !p.interleaved && !p.inverse &&
                     !p.round_before_rope && !p.rope_every_step && d.axes == 1 &&
                     is_aligned(d.cos) && is_aligned(d.sin);
  return (!p.normalise || key) && turns && !norm.y && q.rotation == norm.n && !q.signs.data &&
         !q.from_rounded && q.clamp == 0.0f && q.clamp_scale == nullptr &&
         q.code_type() == CodeType::kE4M3;
}

HeadsTile tile_of(const NormHeadsDesc& d, const NormHeadsPart& p, const NormHeadsVariant& v) {
  return tile_of(v, p.norm.n / vector_elements(d));
}

// Whether a norm is an RMSNorm with a weight of T or none, of which only y leaves.
bool is_plain(const NormHeadsDesc& d, const NormHeadsPart& p) {
  return p.norm.kind == FASTNORM_NORM_RMS && !p.norm.bias && !p.rstd && !p.rstd_in &&
         p.norm.rounding != FASTNORM_ROUND_EVERY_STEP &&
         (!p.norm.weight || p.norm.weight.dtype == d.dtype);
}

// Whether rows fill a kernel's whole tile.
bool fills(const NormHeadsDesc& d, const NormHeadsPart& p, const NormHeadsVariant& v) {
  return p.norm.n == v.threads * v.vectors * vector_elements(d);
}

// Whether a part has the latents that kLatent is made for.
bool is_latent(const NormHeadsDesc& d, const NormHeadsPart& p, const NormHeadsVariant& v) {
  return v.has_latents() && fills(d, p, v) && p.heads == 1 && p.normalise && !rotates(d, p);
}

// Whether a part has a long latent, and codes of it that kLatent makes.
bool is_long_latent(const NormHeadsDesc& d, const NormHeadsPart& p, const NormHeadsVariant& v) {
  const int64_t vectors = p.norm.n / vector_elements(d), room = v.threads * v.vectors;
  const QuantDesc& q = p.norm.quant;
  return v.has_latents() && vectors > room && vectors <= tile_of(v, vectors).room() &&
         p.heads == 1 && p.normalise && !rotates(d, p) && !p.cache && !p.head_weights &&
         (!q.any() ||
          (has_row_codes(q) && q.rotation == 0 && q.clamp == 0.0f && q.clamp_scale == nullptr &&
           is_aligned(q.codes, static_cast<uint64_t>(vector_elements(d)))));
}

// Whether a kernel that holds rows supports a part.
bool can_hold(const NormHeadsDesc& d, const NormHeadsPart& p, const NormHeadsVariant& v) {
  if (!can_hold_rows(d, p)) return false;
  if (v.is_indexer())
    return can_hold_indexed(d, p, v) && (!v.is_lean_indexer() || is_lean_indexed(d, p));
  if (is_long_latent(d, p, v))
    return is_plain(d, p) && !p.sumsq && p.norm.rounding != FASTNORM_ROUND_ONCE_RW;
  if (!can_store(d, p)) return false;
  if (v.has_tokens()) return can_hold_tokens(d, p, v);
  const bool latent = is_latent(d, p, v);
  const int64_t elements = vector_elements(d), tile = tile_of(d, p, v).room() * elements;
  if (p.across_heads || p.norm.n > tile || (needs_more(p) && v.form != HeadsForm::kMore))
    return false;
  // A block of a cache's columns must be that of neighbouring lanes.
  const int64_t block = p.cache.quant.block;
  if (block != 0 && (!(v.is_any() || latent) || block > v.threads * elements)) return false;
  if (v.is_any())
    return !rotates(d, p) || (d.rope_dim <= held_rope_columns(v) && rotates_vectors(d, p));
  if (!is_plain(d, p)) return false;
  if (v.form != HeadsForm::kRotateHalf && p.norm.rounding == FASTNORM_ROUND_ONCE_RW) return false;
  if (v.has_latents() && fills(d, p, v) && !latent) return false;
  if (!rotates(d, p)) return true;
  if (has_own_tables(d) || p.interleaved != (v.form != HeadsForm::kRotateHalf)) return false;
  if (p.interleaved) return rotates_vectors(d, p);
  return p.norm.n == tile && d.rope_dim == tile;
}

// Groups of lanes that share a token's heads. A group takes more heads as long as all parts
// together still have as many threads as the GPU holds at once, which are `enough`. It then loads
// weights and angles once for all of its heads.
uint32_t groups_of(const NormHeadsDesc& d, const DeviceFacts& facts, const NormHeadsPart& p,
                   const NormHeadsVariant& v) {
  // kIndexer: heads with a norm are keys, of which a token has few.
  if (v.is_indexer() && p.normalise) return static_cast<uint32_t>(p.heads);
  int64_t rows = 0;
  for (int32_t i = 0; i < d.count; ++i) rows += d.parts[i].norm.rows;
  const int64_t threads = rows * tile_of(d, p, v).lanes,
                enough = int64_t{facts.multiprocessors} * v.per_sm * v.block_threads();
  int64_t heads = 1;
  while (heads < kMostGroupHeads && 2 * heads <= p.heads && threads / (2 * heads) >= enough)
    heads *= 2;
  return static_cast<uint32_t>((p.heads + heads - 1) / heads);
}

// kTokens: groups of threads in a block that each have a token. As many of whole warps as hold it
// and its angles.
uint32_t token_groups(const NormHeadsDesc& d, const NormHeadsPart& p, const NormHeadsVariant& v) {
  constexpr int64_t kWarp = 32;
  const int64_t vectors = p.heads * p.norm.n / vector_elements(d), pairs = token_pairs(d, p);
  const auto fits = [&](int64_t groups) {
    const int64_t threads = v.threads / groups;
    return threads >= kWarp && threads * v.vectors >= vectors && groups * pairs <= kTokenPairs;
  };
  uint32_t groups = 1;
  while (fits(2 * int64_t{groups})) groups *= 2;
  return groups;
}

// Blocks of a held form for a part.
uint64_t held_blocks(const NormHeadsDesc& d, const NormHeadsPart& p, const NormHeadsVariant& v,
                     uint32_t groups) {
  const auto tokens = static_cast<uint64_t>(d.tokens);
  if (v.has_tokens()) return divide_up(tokens, groups);
  return divide_up(tokens * groups, static_cast<uint64_t>(tile_of(d, p, v).groups()));
}

void plan_cuda(const NormHeadsDesc& d, const DeviceFacts& facts, const NormHeadsEntry& entry,
               int32_t index, NormHeadsPlan* plan) {
  plan->entry = &entry;
  plan->index = index;
  plan->kernel = entry.name;
  uint64_t blocks = 0;
  for (int32_t i = 0; i < d.count; ++i) {
    plan->first_block[i] = blocks;
    const NormHeadsVariant& v = entry.variant;
    if (!v.is_held()) {
      blocks += general_blocks(d, d.parts[i]);
      continue;
    }
    const NormHeadsPart& p = d.parts[i];
    plan->groups[i] = v.has_tokens() ? token_groups(d, p, v) : groups_of(d, facts, p, v);
    blocks += held_blocks(d, p, v, plan->groups[i]);
  }
  plan->first_block[d.count] = blocks;
  plan->blocks = std::min(blocks, facts.arch->max_blocks);
}

// Whether a kernel supports all parts of a call and, for kLatent, whether one of them has a latent
// that the form is made for.
bool can_run(const NormHeadsDesc& d, const DeviceFacts& facts, const NormHeadsEntry& entry) {
  const NormHeadsVariant& v = entry.variant;
  if (v.dtype != d.dtype) return false;
  if (!v.is_held()) return true;
  bool wanted = !v.has_latents();  // kLatent: for calls with latents
  uint64_t blocks = 0;
  for (int32_t i = 0; i < d.count; ++i) {
    const NormHeadsPart& p = d.parts[i];
    if (!can_hold(d, p, v)) return false;
    wanted = wanted || is_latent(d, p, v) || (is_long_latent(d, p, v) && p.norm.quant.any());
    const auto rows = static_cast<uint64_t>(p.norm.rows);
    if (rows > kMostItems) return false;
    blocks += v.has_tokens() ? static_cast<uint64_t>(d.tokens)
                             : rows / static_cast<uint64_t>(tile_of(d, p, v).groups()) + 1;
  }
  return wanted && blocks <= facts.arch->max_blocks;
}

// The kernel of a call, which no list names. Of the kernels that can run it, it is the one of the
// first form of kIndexerLean, kIndexer, kLatent, kRotateHalf, kInterleaved, kAny, kMore, kTokens
// and kGeneral. Of that form it is the one with the smallest tile, and of equal tiles the one with
// the fewest threads.
int32_t choose(const NormHeadsDesc& d, const DeviceFacts& facts,
               std::span<const NormHeadsEntry> table) {
  const auto cost = [](const NormHeadsVariant& v) {
    const int form = v.is_lean_indexer() ? -1
                     : v.is_indexer()    ? 0
                     : v.is_held()       ? static_cast<int>(v.form)
                                         : static_cast<int>(HeadsForm::kTokens) + 1;
    return form * 65536 + v.threads * v.vectors * 32 + v.threads;
  };
  int32_t best = -1;
  for (size_t i = 0; i < table.size(); ++i) {
    if (!can_run(d, facts, table[i])) continue;
    if (best < 0 || cost(table[i].variant) < cost(table[static_cast<size_t>(best)].variant))
      best = static_cast<int32_t>(i);
  }
  return best;
}

fastnorm_status plan_on(const NormHeadsDesc& d, const DeviceFacts& facts,
                        std::span<const NormHeadsEntry> table, int32_t index, NormHeadsPlan* plan,
                        Error& error) {
  *plan = {};
  if (d.empty()) return FASTNORM_OK;
  plan->launches = 1;
  for (int32_t i = 0; i < d.count; ++i) count_part(d, d.parts[i], plan);
  count_shared(d, plan);
  if (facts.device_type == FASTNORM_DEVICE_CPU) {
    plan->kernel = dtype_name(d.dtype);
    plan->grain = grain_of(d);
    const int64_t ranges = (d.tokens - 1) / plan->grain + 1;
    plan->blocks = static_cast<uint64_t>(std::min<int64_t>(ranges, facts.threads));
    return FASTNORM_OK;
  }
  FASTNORM_TRY(check_rows(d, error));
  if (index < 0) index = choose(d, facts, table);
  FASTNORM_REQUIRE(index >= 0, FASTNORM_ERROR_UNSUPPORTED,
                   "context is of CUDA:%d, whose architecture has no kernels of norm_heads in this "
                   "build; nearest: a CPU context, or fastnorm_norm_many for the norm alone",
                   facts.device_id);
  const NormHeadsEntry& entry = table[static_cast<size_t>(index)];
  FASTNORM_REQUIRE(can_run(d, facts, entry), FASTNORM_ERROR_UNSUPPORTED, "%s cannot serve the call",
                   entry.name);
  plan_cuda(d, facts, entry, index, plan);
  return FASTNORM_OK;
}

}  // namespace

bool has_vector_heads(const NormHeadsDesc& d, const NormHeadsPart& p) {
  return p.norm.n % vector_elements(d) == 0 && (!p.norm.y || p.norm.y.dtype == d.dtype) &&
         is_aligned(p.norm.x.data, p.head_stride, p.token_stride) && is_aligned(p.norm.y) &&
         is_aligned(p.norm.weight) && is_aligned(p.norm.bias);
}

fastnorm_status plan_norm_heads(const NormHeadsDesc& desc, const DeviceFacts& facts,
                                std::span<const NormHeadsEntry> table, NormHeadsPlan* plan,
                                Error& error) {
  return plan_on(desc, facts, table, -1, plan, error);
}

fastnorm_status plan_norm_heads_for(const NormHeadsDesc& desc, const DeviceFacts& facts,
                                    std::span<const NormHeadsEntry> table, int32_t index,
                                    NormHeadsPlan* plan, Error& error) {
  return plan_on(desc, facts, table, index, plan, error);
}

}  // namespace fastnorm
