#include "cpu/mla_decode/run.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cpu/common/fp_mode.h"

namespace fastnorm::cpu {
namespace {

constexpr ByIsa<MlaDecodeKernels> kKernels = FASTNORM_BY_ISA(kMlaDecode);

MlaDecodeRows rows_of(const MlaDecodeTensor& t) {
  return {reinterpret_cast<char*>(t.data), t.outer, t.inner};
}

MlaDecodePages pages_of(const MlaDecodeTensor& ckv, const MlaDecodeTensor& kpe, int32_t page_size,
                        const MlaDecodeSelection& s) {
  return {rows_of(ckv),
          rows_of(kpe),
          page_size,
          {s.indices, s.outer, s.inner, s.topk, s.lengths, s.length_outer, s.length_inner}};
}

}  // namespace

[[gnu::noinline]] MlaDecodeTask make_mla_decode_task(const MlaDecodeDesc& d,
                                                     const IsaKernels& isa) {
  MlaDecodeTask task = {};
  task.kernel = kKernels[isa].at[static_cast<int>(d.dtype)];
  MlaDecodeParams& p = task.params;
  p.q_nope = rows_of(d.q_nope);
  p.q_pe = rows_of(d.q_pe);
  p.cache[0] = pages_of(d.ckv, d.kpe, d.page_size, d.selection);
  p.cache[1] = pages_of(d.extra.ckv, d.extra.kpe, d.extra.page_size, d.extra.selection);
  p.caches = d.has_extra ? 2 : 1;
  p.format = static_cast<MlaRows>(d.format);
  p.cache_scale = d.cache_scale;
  p.sink = d.sink;
  p.sparse = d.sparse;
  p.o = rows_of(d.o);
  p.lse = rows_of(d.lse);
  p.kv_len = d.kv_len;
  p.page_table = d.page_table;
  p.kv_indptr = d.kv_indptr;
  p.qo_indptr = d.qo_indptr;
  p.table_stride = d.table_stride;
  p.tokens = d.tokens;
  p.batch = d.batch;
  p.heads = d.heads;
  p.s_q = d.max_s_q;
  p.causal = d.causal;
  p.scale_log2 = static_cast<float>(d.sm_scale * std::numbers::log2e);
  p.lse_scale = d.lse_base_2 ? 1.0 : std::numbers::ln2;
  return task;
}

int64_t mla_decode_groups(const MlaDecodeDesc& d) {
  return d.tokens * ((d.heads + kMlaHeadGroup - 1) / kMlaHeadGroup);
}

int64_t mla_decode_grain(const MlaDecodeDesc& d) {
  // Waking a thread pays for about 20 us of work: 64 cached tokens of a group on a core with
  // vectors.
  constexpr int64_t kWorthTokens = 64;
  int64_t of_each = d.selection.topk + d.extra.selection.topk;
  if (!d.sparse) {
    int64_t tokens = 0;
    for (int32_t b = 0; b < d.batch; ++b) tokens += d.kv_len[b];
    of_each = tokens / d.batch;
  }
  return std::max<int64_t>(1, kWorthTokens / std::max<int64_t>(1, of_each));
}

void run_mla_decode_range(void* task, int64_t begin, int64_t end) {
  const auto& t = *static_cast<const MlaDecodeTask*>(task);
  const FpMode mode;
  t.kernel(t.params, begin, end);
}

}  // namespace fastnorm::cpu
