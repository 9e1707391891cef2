#include "cpu/norm_heads/run.h"

#include "core/common/reciprocal.h"
#include "cpu/common/fp_mode.h"
#include "cpu/norm/run.h"

namespace fastnorm::cpu {
namespace {

constexpr ByIsa<NormHeadsKernels> kKernels = FASTNORM_BY_ISA(kNormHeads);

static_assert(kHeadsParts == kMaxHeadsParts && kRopeAxes == kMaxRopeAxes &&
              kHeadColumns == kMaxHeadColumns);

HeadRef head_ref(const HeadValues& v) {
  return {reinterpret_cast<char*>(v.data), v.token_stride, v.head_stride};
}

RopeTableRef table_ref(const RopeTable& t) {
  return {reinterpret_cast<const char*>(t.data), t.head_stride, t.row_stride};
}

IndexRef index_ref(const IndexTensor& t) {
  return {reinterpret_cast<const char*>(t.data), t.axis_stride, t.stride, t.wide};
}

HeadsCacheParams cache_params(const NormHeadsPart& p, const IsaKernels& isa) {
  const HeadsCache& c = p.cache;
  HeadsCacheParams result = {};
  if (!c) return result;
  result.rows = {reinterpret_cast<char*>(c.rows.data),
                 {c.rows.stride_bytes[0], c.rows.stride_bytes[1], c.rows.stride_bytes[2]}};
  result.page_size = c.page_size;
  result.codes = c.quant.scheme != FASTNORM_QUANT_NONE;
  result.tail = {reinterpret_cast<char*>(c.tail.data),
                 {c.tail.stride_bytes[0], c.tail.stride_bytes[1], c.tail.stride_bytes[2]}};
  result.tail_columns = c.tail_columns;
  NormDesc quantised = p.norm;
  quantised.n = p.cache_columns();
  quantised.quant = c.quant;
  result.quant = make_params(quantised, NormPlan{}, isa, 0).quant;
  return result;
}

void set_part(const NormHeadsPart& d, const IsaKernels& isa, NormHeadsPartParams* p) {
  p->norm = p->statistics = make_params(d.norm, NormPlan{}, isa, 0);
  if (d.across_heads) {
    p->statistics.n = d.heads * d.norm.n;
    p->statistics.inv_n = reciprocal_of(p->statistics.n);
  }
  p->heads = d.heads;
  p->head_stride = d.head_stride;
  p->token_stride = d.token_stride;
  p->mean = head_ref(d.mean);
  p->rstd = head_ref(d.rstd);
  p->mean_in = head_ref(d.mean_in);
  p->rstd_in = head_ref(d.rstd_in);
  p->sumsq = head_ref(d.sumsq);
  p->weights = head_ref(d.head_weights);
  p->weights_out = head_ref(d.head_weights_out);
  p->weights_type = type_of(d.head_weights.dtype, d.norm.dtype);
  p->weights_factor = d.head_weights_factor;
  p->cache = cache_params(d, isa);
  p->rope_offset = d.rope_offset;
  p->normalise = d.normalise;
  p->layer = d.norm.kind == FASTNORM_NORM_LAYER;
  p->across_heads = d.across_heads;
  p->stores_rows = d.stores_rows();
  p->rope = d.rope;
  p->interleaved = d.interleaved;
  p->inverse = d.inverse;
  // A chain in T that rounds at every step ends with a value of T.
  p->round_before_rope = d.round_before_rope || d.norm.rounding == FASTNORM_ROUND_EVERY_STEP;
  p->rope_every_step = d.rope_every_step;
}

}  // namespace

RopeParams rope_params(const RopeTables& t) {
  RopeParams p = {};
  p.axes = t.axes;
  p.half = t.rope_dim / 2;
  p.cos = table_ref(t.cos);
  p.sin = table_ref(t.sin);
  p.table_f32 = t.table_dtype == Dtype::kF32;
  p.table_repeats = t.table_repeats;
  p.mrope_interleaved = t.mrope_interleaved;
  for (int32_t a = 0; a < kRopeAxes; ++a) p.section_end[a] = t.section_end[a];
  p.positions = index_ref(t.positions);
  return p;
}

// Not inlined, because it computes in the caller's floating-point mode: see fp_mode.h.
[[gnu::noinline]] NormHeadsTask make_norm_heads_task(const NormHeadsDesc& d,
                                                     const IsaKernels& isa) {
  NormHeadsTask task;  // kilobytes, of which a call uses the parts that it has
  task.kernel = kKernels[isa].at[static_cast<int>(d.dtype)];
  NormHeadsParams& p = task.params;
  for (int32_t i = 0; i < d.count; ++i) set_part(d.parts[i], isa, &p.part[i]);
  p.count = d.count;
  static_cast<RopeParams&>(p) = rope_params(d);
  p.slots = index_ref(d.slots);
  p.slot_count = d.slot_count;
  return task;
}

void run_norm_heads_range(void* task, int64_t begin, int64_t end) {
  const auto& t = *static_cast<const NormHeadsTask*>(task);
  const FpMode mode;
  t.kernel(t.params, begin, end);
}

}  // namespace fastnorm::cpu
