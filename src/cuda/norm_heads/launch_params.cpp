#include "cuda/norm_heads/launch_params.h"

#include <bit>

#include "core/common/pdl.h"
#include "core/common/reciprocal.h"
#include "cuda/norm/launch_params.h"

namespace fastnorm::cuda {
namespace {

HeadsTensor tensor_of(const HeadValues& v) {
  return {kernel_pointer(v.data), v.token_stride, v.head_stride};
}

HeadsPages pages_of(const RowTensor& t) {
  return {kernel_pointer(t.data), t.stride_bytes[2], t.stride_bytes[1], t.stride_bytes[0]};
}

HeadsTable table_of(const RopeTable& t) {
  return {kernel_pointer(t.data), t.row_stride, t.head_stride};
}

HeadsNumbers numbers_of(const IndexTensor& t) {
  return {kernel_pointer(t.data), t.axis_stride, t.stride, t.wide ? 1u : 0u};
}

bool is_aligned(const RopeTable& t) {
  return address_bits(t.data, {t.row_stride, t.head_stride}) % 16 == 0;
}

HeadsShared shared_of(const NormHeadsDesc& d) {
  HeadsShared s = make_heads_shared(d, d.tokens);
  s.slot_count = static_cast<uint32_t>(d.slot_count);
  s.slots = numbers_of(d.slots);
  return s;
}

// What all forms know.
uint32_t bits_of(const NormHeadsPart& p) {
  uint32_t bits = 0;
  const auto put = [&](bool wanted, uint32_t bit) { bits |= wanted ? bit : 0; };
  put(p.normalise, kHeadsNorm);
  put(p.norm.kind == FASTNORM_NORM_LAYER, kHeadsLayer);
  put(p.across_heads, kHeadsAcross);
  put(p.rope, kHeadsRope);
  put(p.interleaved, kHeadsInterleaved);
  put(p.inverse, kHeadsInverse);
  // A chain in T that rounds at every step ends with a value of T.
  put(p.round_before_rope || p.norm.rounding == FASTNORM_ROUND_EVERY_STEP, kHeadsRoundBefore);
  put(p.rope_every_step, kHeadsRopeEveryStep);
  put(p.stores_rows(), kHeadsStoresRows);
  put(p.norm.quant.any(), kHeadsCodes);
  put(p.cache.quant.scheme != FASTNORM_QUANT_NONE, kHeadsCacheCodes);
  return bits;
}

HeadWeightParams weights_of(const NormHeadsPart& part) {
  if (!part.head_weights_out) return {};
  return {tensor_of(part.head_weights), tensor_of(part.head_weights_out),
          operand_type(part.head_weights.dtype, part.norm.dtype), part.head_weights_factor};
}

// How the codes of a cache are made.
QuantParams cache_quant_of(const NormHeadsPart& part) {
  NormDesc norm = part.norm;
  norm.n = part.cache_columns();
  norm.quant = part.cache.quant;
  return make_general_params(norm).quant;
}

void set_part(const NormHeadsDesc& d, const NormHeadsPart& part, HeadsPartParams* result) {
  HeadsPartParams& p = *result;
  NormDesc norm = part.norm;
  // The statistic's.
  if (part.across_heads) norm.inv_n = reciprocal_of(part.heads * norm.n);
  p.norm = make_general_params(norm);
  p.rotation = rotation_of(norm.quant, norm.n);
  p.bits = bits_of(part);
  const int64_t row_bytes = norm.n * dtype_bytes(norm.dtype);
  if (norm.n > kWarpHeadColumns) p.bits |= kHeadsByBlock;
  if (part.heads == 1 || part.head_stride == row_bytes) p.bits |= kHeadsJoined;
  p.heads = static_cast<uint32_t>(part.heads);
  p.rope_offset = static_cast<int32_t>(part.rope_offset);
  p.x = {kernel_pointer(norm.x.data), part.token_stride, part.head_stride};
  p.y = heads_tensor(norm.y, d, part);
  p.codes = heads_tensor(norm.quant.codes, d, part);
  p.scale = heads_tensor(norm.quant.scale, d, part);
  p.mean = tensor_of(part.mean), p.rstd = tensor_of(part.rstd);
  p.mean_in = tensor_of(part.mean_in), p.rstd_in = tensor_of(part.rstd_in);
  p.sumsq = tensor_of(part.sumsq);
  p.weights = weights_of(part);
  const HeadsCache& c = part.cache;
  if (!c) return;
  p.page_size = c.page_size;
  p.cache = pages_of(c.rows);
  p.cache_scale = pages_of(c.quant.scale);
  p.cache_tail = pages_of(c.tail);
  p.tail_columns = static_cast<int32_t>(c.tail_columns);
  p.cache_quant = cache_quant_of(part);
  p.cache_rotation = rotation_of(c.quant, part.cache_columns());
  p.cache_quant.codes_aligned = codes_aligned(c.quant, norm.dtype);
}

// What kernels that hold heads know, too.
uint32_t held_bits_of(const NormHeadsDesc& d, const NormHeadsPart& p) {
  uint32_t bits = bits_of(p);
  const auto put = [&](bool wanted, uint32_t bit) { bits |= wanted ? bit : 0; };
  const auto operand = [&](const WeightTensor& c, uint32_t element) {
    return !c ? 0 : static_cast<uint32_t>(operand_type(c.dtype, d.dtype)) * element;
  };
  if (d.rope_dim == 0) bits &= ~uint32_t{kHeadsRope};
  put(rounds_normalized(p.norm.rounding), kHeadsRoundNormalized);
  put(p.norm.rounding == FASTNORM_ROUND_ONCE_RW, kHeadsFactorFirst);
  put(p.norm.rounding == FASTNORM_ROUND_EVERY_STEP, kHeadsRoundSteps);
  // What says how codes are made holds for those of y and of the cache.
  const QuantDesc& codes = p.norm.quant.any() ? p.norm.quant : p.cache.quant;
  put(codes.from_rounded, kHeadsRoundCodes);
  put(codes.divides, kHeadsDivides);
  put(p.norm.quant.any(), kHeadsCodesOfY);
  put((p.norm.weight.head_stride_bytes | p.norm.bias.head_stride_bytes) != 0, kHeadsOwnWeights);
  put((d.cos.head_stride | d.sin.head_stride) != 0, kHeadsOwnTables);
  return bits | operand(p.norm.weight, kHeadsWeightElement) |
         operand(p.norm.bias, kHeadsBiasElement);
}

// Whether a part is the common call, kHeadsCommon.
bool is_common(uint32_t bits, const HeadsShared& s) {
  constexpr uint32_t kOfNorm = kHeadsLayer | kHeadsAcross | kHeadsRoundNormalized |
                               kHeadsRoundSteps | kHeadsFactorFirst | kHeadsOwnWeights,
                     kOfRope = kHeadsInverse | kHeadsRopeEveryStep | kHeadsOwnTables;
  const bool norm = (bits & kHeadsNorm) != 0;
  if ((bits & kHeadsRope) == 0) return !norm;
  if (norm && (bits & (kOfNorm | kHeadsRoundBefore)) != 0) return false;
  const bool each = !s.table_repeats || (bits & kHeadsInterleaved) == 0;
  return (bits & kOfRope) == 0 && s.axes == 1 && s.table_aligned && each;
}

void set_held_part(const NormHeadsDesc& d, const NormHeadsPart& part, const NormHeadsVariant& v,
                   uint32_t groups, HeldPartParams* result) {
  HeldPartParams& p = *result;
  const NormDesc& norm = part.norm;
  p.bits = held_bits_of(d, part);
  p.heads = static_cast<uint32_t>(part.heads);
  p.groups = groups;
  p.steps = (p.heads + groups - 1) / groups;
  p.vectors = static_cast<int32_t>(norm.n * dtype_bytes(d.dtype) / 16);
  p.rope_offset = static_cast<int32_t>(part.rope_offset);
  p.divisor = divisor_or_one(v.has_tokens() ? static_cast<uint32_t>(p.vectors) : groups);
  if (v.has_tokens()) p.thread_shift = std::countr_zero(static_cast<uint32_t>(v.threads) / groups);
  p.inv_n = part.across_heads ? reciprocal_of(part.heads * norm.n) : norm.inv_n;
  p.eps = norm.eps;
  p.weight_offset = norm.weight_offset;
  p.x = {kernel_pointer(norm.x.data), part.token_stride, part.head_stride};
  p.y = heads_tensor(norm.y, d, part);
  p.weight = kernel_pointer(norm.weight.data), p.weight_stride = norm.weight.head_stride_bytes;
  p.bias = kernel_pointer(norm.bias.data), p.bias_stride = norm.bias.head_stride_bytes;
  p.mean = tensor_of(part.mean), p.rstd = tensor_of(part.rstd);
  p.mean_in = tensor_of(part.mean_in), p.rstd_in = tensor_of(part.rstd_in);
  p.sumsq = tensor_of(part.sumsq);
  if (norm.quant.any() && (v.is_indexer() || v.has_latents())) {
    // Where the codes go in place of a cache, of which a token is a page.
    const HeadsTensor codes = heads_tensor(norm.quant.codes, d, part),
                      scales = heads_tensor(norm.quant.scale, d, part);
    p.cache = {codes.data, codes.token_stride, 0, codes.head_stride};
    p.scales = {scales.data, scales.token_stride, 0, scales.head_stride};
    p.quant = make_general_params(norm).quant;
    return;
  }
  if (norm.quant.any()) {
    p.y = heads_tensor(norm.quant.codes, d, part);
    p.y_code_type = norm.quant.code_type();
    p.y_scale = reinterpret_cast<const float*>(norm.quant.tensor_scale);
  }
  const HeadsCache& c = part.cache;
  if (!c) return;
  p.cache = pages_of(c.rows);
  p.by_page = divisor_or_one(static_cast<uint32_t>(c.page_size));
  if (c.quant.scheme == FASTNORM_QUANT_NONE) return;
  p.code_type = c.quant.code_type();
  if (c.quant.scheme == FASTNORM_QUANT_PER_BLOCK) {
    p.bits |= kHeadsCacheBlocks;
    p.scales = pages_of(c.quant.scale);
    p.quant = cache_quant_of(part);
    return;
  }
  p.cache_scale = reinterpret_cast<const float*>(c.quant.tensor_scale);
}

}  // namespace

// The norm's check may have folded tokens and heads into one index.
HeadsTensor heads_tensor(const RowTensor& t, const NormHeadsDesc& d, const NormHeadsPart& part) {
  HeadsTensor result = {kernel_pointer(t.data), 0, 0};
  if (part.norm.outer_rank > 1) {
    result.head_stride = t.stride_bytes[0], result.token_stride = t.stride_bytes[1];
  } else if (part.heads == 1) {
    result.token_stride = t.stride_bytes[0];
  } else {
    result.head_stride = t.stride_bytes[0];
    if (d.tokens > 1) result.token_stride = part.heads * t.stride_bytes[0];
  }
  return result;
}

HeadsShared make_heads_shared(const RopeTables& d, int64_t tokens) {
  HeadsShared s = {};
  s.tokens = static_cast<uint32_t>(tokens);
  s.half = static_cast<int32_t>(d.rope_dim / 2);
  s.axes = d.axes;
  for (int a = 0; a < kMaxRopeAxes; ++a) s.section_end[a] = static_cast<int32_t>(d.section_end[a]);
  s.mrope_interleaved = d.mrope_interleaved;
  s.table_f32 = d.table_dtype == Dtype::kF32;
  s.table_repeats = d.table_repeats;
  s.table_aligned = is_aligned(d.cos) && is_aligned(d.sin);
  s.cos = table_of(d.cos), s.sin = table_of(d.sin);
  s.positions = numbers_of(d.positions);
  return s;
}

HeldHeadsParams make_held_heads_params(const NormHeadsDesc& d, const NormHeadsPlan& plan) {
  HeldHeadsParams p = {};
  p.count = d.count;
  p.shared = shared_of(d);
  p.triggers = (d.pdl & kPdlTrigger) != 0;
  for (int32_t i = 0; i < d.count; ++i) {
    set_held_part(d, d.parts[i], plan.entry->variant, plan.groups[i], &p.part[i]);
    p.part[i].first_block = static_cast<uint32_t>(plan.first_block[i]);
    if (is_common(p.part[i].bits, p.shared)) p.part[i].bits |= kHeadsCommon;
  }
  return p;
}

IndexerParams make_indexer_params(const NormHeadsDesc& d, const NormHeadsPlan& plan) {
  IndexerParams p = {make_held_heads_params(d, plan), {}};
  for (int32_t i = 0; i < d.count; ++i) {
    const NormHeadsPart& part = d.parts[i];
    const bool of_y = part.norm.quant.any();
    const QuantDesc& q = of_y ? part.norm.quant : part.cache.quant;
    HeldPartParams& held = p.part[i];
    IndexerPartParams& more = p.more[i];
    more.rotation = rotation_of(q, part.norm.n);
    more.weights = weights_of(part);
    const NormHeadsVariant& v = plan.entry->variant;
    more.first_rotated = held.rope_offset * dtype_bytes(d.dtype) / (v.threads * 16);
    if (codes_aligned(q, d.dtype)) held.bits |= kHeadsCodesWide;
  }
  return p;
}

NormHeadsParams make_norm_heads_params(const NormHeadsDesc& d, const NormHeadsPlan& plan) {
  NormHeadsParams p = {};
  p.count = d.count;
  p.triggers = (d.pdl & kPdlTrigger) != 0;
  for (int32_t i = 0; i < d.count; ++i) {
    set_part(d, d.parts[i], &p.part[i]);
    p.part[i].first_block = plan.first_block[i];
  }
  p.blocks = plan.first_block[d.count];
  p.shared = shared_of(d);
  return p;
}

}  // namespace fastnorm::cuda
