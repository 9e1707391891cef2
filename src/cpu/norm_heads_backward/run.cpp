#include "cpu/norm_heads_backward/run.h"

#include "core/norm_backward/cpu_plan.h"
#include "cpu/common/fp_mode.h"
#include "cpu/norm_backward/run.h"
#include "cpu/norm_heads/run.h"

namespace fastnorm::cpu {
namespace {

constexpr ByIsa<NormHeadsBackwardKernels> kKernels = FASTNORM_BY_ISA(kNormHeadsBackward);

static_assert(sizeof(TokenValues) == kTokenValues * sizeof(float));

// Copies how a digit moves a number. Gives what of a row's number moves it by one.
int64_t take_steps(const NormBackwardDesc& d, const RowTensor& number, int64_t (&steps)[kRowDims]) {
  int64_t rows = 0, place = 1;
  for (int i = 0; i < kRowDims; ++i) {
    steps[i] = number.stride_bytes[i];
    if (steps[i] != 0) rows = place;
    place *= d.outer[i];
  }
  return rows;
}

}  // namespace

NormHeadsBackwardTask make_norm_heads_backward_task(const NormBackwardDesc& d,
                                                    const NormBackwardPlan& plan,
                                                    const IsaKernels& isa, void* workspace) {
  const NormBackwardHeads& h = d.of_heads;
  const int kind = d.kind == FASTNORM_NORM_LAYER ? 1 : 0;
  const NormHeadsBackwardKernel& kernel = kKernels[isa].at[kind][static_cast<int>(d.dtype)];
  NormHeadsBackwardTask task = {};
  task.tokens = kernel.tokens;
  task.rows = d.has_sums() ? kernel.blocks : kernel.rows;
  NormHeadsBackwardParams& p = task.params;
  p.rows = make_norm_backward_task(d, plan, isa, workspace).params;
  p.tables = rope_params(h.tables);
  p.heads = h.heads;
  p.token_rows = take_steps(d, h.token, p.token_step);
  p.head_rows = take_steps(d, h.head, p.head_step);
  p.inv_all = d.inv_n;
  if (norm_backward_tokens(d) != 0) {
    p.token = reinterpret_cast<TokenValues*>(static_cast<std::byte*>(workspace) +
                                             plan.token_values_offset);
  }
  p.normalise = h.normalise;
  p.rope = h.rope;
  p.interleaved = h.interleaved;
  p.inverse = !h.inverse;  // the way back
  p.rope_offset = h.rope_offset;
  return task;
}

void run_norm_heads_backward_range(void* task, int64_t begin, int64_t end) {
  const auto& t = *static_cast<const NormHeadsBackwardTask*>(task);
  const FpMode mode;
  t.range(t.params, begin, end);
}

}  // namespace fastnorm::cpu
