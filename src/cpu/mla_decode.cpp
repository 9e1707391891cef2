#include "cpu/mla_decode.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cpu/fp_mode.h"

namespace fastnorm::cpu {
namespace {

MlaDecodeRows rows_of(const MlaDecodeTensor& t) {
  return {reinterpret_cast<char*>(t.data), t.outer, t.inner};
}

}  // namespace

[[gnu::noinline]] MlaDecodeTask make_mla_decode_task(const MlaDecodeDesc& d,
                                                     const IsaKernels& isa) {
  MlaDecodeTask task = {};
  task.kernel = isa.mla_decode->at[static_cast<int>(d.dtype)];
  MlaDecodeParams& p = task.params;
  p.q_nope = rows_of(d.q_nope);
  p.q_pe = rows_of(d.q_pe);
  p.ckv = rows_of(d.ckv);
  p.kpe = rows_of(d.kpe);
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
  p.page_size = d.page_size;
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
  int64_t tokens = 0;
  for (int32_t b = 0; b < d.batch; ++b) tokens += d.kv_len[b];
  const int64_t of_each = tokens / d.batch;
  return std::max<int64_t>(1, kWorthTokens / std::max<int64_t>(1, of_each));
}

void run_mla_decode_range(void* task, int64_t begin, int64_t end) {
  const auto& t = *static_cast<const MlaDecodeTask*>(task);
  const FpMode mode;
  t.kernel(t.params, begin, end);
}

}  // namespace fastnorm::cpu
