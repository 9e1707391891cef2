#include "cuda/norm_heads_backward/launch_params.h"

#include <algorithm>
#include <bit>

#include "core/norm_heads/plan.h"
#include "cuda/norm/launch_params.h"
#include "cuda/norm_backward/launch_params.h"
#include "cuda/norm_heads/launch_params.h"

namespace fastnorm::cuda {
namespace {

// Strides by token and by head: a row's digits number tokens and heads.
template <class Tensor>
HeadsTensor tensor_of(const NormBackwardDesc& d, const Tensor& t) {
  HeadsTensor result = {kernel_pointer(t.data), 0, 0};
  for (int i = 0; i < d.outer_rank; ++i) {
    if (d.of_heads.token.stride_bytes[i] != 0) result.token_stride = t.stride_bytes[i];
    if (d.of_heads.head.stride_bytes[i] != 0) result.head_stride = t.stride_bytes[i];
  }
  return result;
}

// Bytes from a group's row of a parameter to the next one's. Without tokens no digit numbers heads.
int64_t group_stride(const NormBackwardDesc& d, const ParameterTensor& t) {
  for (int i = d.shared_rank; i < d.outer_rank; ++i) {
    if (d.outer[i] > 1) return t.stride_bytes[i];
  }
  return 0;
}

// What rotates dy: the other way round than the forward.
uint32_t bits_of(const NormBackwardDesc& d) {
  const NormBackwardHeads& h = d.of_heads;
  uint32_t bits = 0;
  const auto put = [&](bool wanted, uint32_t bit) { bits |= wanted ? bit : 0; };
  put(h.normalise, kHeadsNorm);
  put(d.kind == FASTNORM_NORM_LAYER, kHeadsLayer);
  put(h.across_heads, kHeadsAcross);
  put(h.rope && h.tables.rope_dim != 0, kHeadsRope);
  put(h.interleaved, kHeadsInterleaved);
  put(!h.inverse, kHeadsInverse);
  return bits;
}

// The tables, which all parts with rope share.
HeadsShared shared_of(const HeadsGradients& call) {
  RopeTables tables;
  int64_t tokens = 0;
  for (int32_t i = 0; i < call.count; ++i) {
    const NormBackwardDesc& d = *call.at[i];
    tokens = d.rows / d.of_heads.heads;
    if (d.of_heads.rope) tables = d.of_heads.tables;
  }
  return make_heads_shared(tables, tokens);
}

char* at(void* workspace, uint64_t offset) {
  // By integers: without a workspace there is no address to add to.
  return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(workspace) + offset);
}

HeadsSumOut sum_out(const NormBackwardDesc& d, bool weights) {
  const ParameterTensor& out = weights ? d.dweight : d.dbias;
  return {kernel_pointer(out.data), group_stride(d, out), out.dtype,
          weights ? d.accumulate_dweight : d.accumulate_dbias};
}

HeadsRowOrder order_of(const NormBackwardDesc& d, const HeadsGradientPlan& plan,
                       uint32_t first_block, void* workspace) {
  HeadsRowOrder o = {};
  o.first_block = first_block;
  o.groups = static_cast<uint32_t>(d.groups);
  o.shared_rows = static_cast<uint32_t>(d.shared_rows);
  o.lanes = plan.lanes;
  o.blocks = plan.blocks * plan.split;
  o.split = plan.split;
  o.step = o.lanes * o.blocks;
  o.partial_stride = plan.partial_stride;
  if (plan.stores_sums) {
    o.out[0] = sum_out(d, true), o.out[1] = sum_out(d, false);
    return o;
  }
  if (d.dweight) o.partial[0] = reinterpret_cast<float*>(at(workspace, plan.partial_offset[0]));
  if (d.dbias) o.partial[1] = reinterpret_cast<float*>(at(workspace, plan.partial_offset[1]));
  return o;
}

void set_part(const NormBackwardDesc& d, const HeadsGradientPlan& plan,
              const HeadsBackwardItem& item, void* workspace, HeadsGradientParams* result) {
  HeadsGradientParams& p = *result;
  HeadsPartParams& f = p.forward;
  f.bits = bits_of(d);
  if (d.n > kWarpHeadColumns) f.bits |= kHeadsByBlock;
  f.heads = static_cast<uint32_t>(d.of_heads.heads);
  f.rope_offset = static_cast<int32_t>(d.of_heads.rope_offset);
  f.x = tensor_of(d, d.x);
  if (f.heads == 1 || f.x.head_stride == d.n * dtype_bytes(d.dtype)) f.bits |= kHeadsJoined;
  f.mean_in = tensor_of(d, d.mean), f.rstd_in = tensor_of(d, d.rstd);
  // The sums of a row and of all heads differ in inv_n alone.
  f.norm = make_general_params(forward_of(d, d.dtype), Sink::kStore);
  p.order = order_of(d, plan, item.first_block, workspace);
  p.dy = tensor_of(d, d.dy), p.dx = tensor_of(d, d.dx);
  const HeadsTensor weight = tensor_of(d, d.weight);
  p.weight = weight.data, p.weight_stride = weight.head_stride;
  p.weight_offset = d.weight_offset;
  p.dy_dtype = d.dy.dtype, p.weight_dtype = d.weight.dtype;
  p.tokens = item.role == HeadsBackwardRole::kTokens;
  p.dy_is_scalar = d.dy_element_bytes == 0;
  p.wants_dx = static_cast<bool>(d.dx);
  p.round_normalized = rounds_normalized(d.rounding);
  p.round_gain = d.rounding == FASTNORM_ROUND_EVERY_STEP;
  if (d.of_heads.across_heads)
    p.token_values = reinterpret_cast<float*>(at(workspace, plan.token_offset));
}

void set_held_part(const NormBackwardDesc& d, const HeadsGradientPlan& plan,
                   const HeadsBackwardItem& item, void* workspace, HeldGradientParams* result) {
  HeldGradientParams& p = *result;
  p.bits = bits_of(d);
  p.heads = static_cast<uint32_t>(d.of_heads.heads);
  p.order = order_of(d, plan, item.first_block, workspace);
  // With several groups the rows of one are of a head.
  const uint32_t heads_of_group = d.groups > 1 ? 1 : p.heads;
  p.tokens = p.order.shared_rows / heads_of_group;
  const auto step_of = [&](uint32_t rows) {
    return HeldStep{rows / heads_of_group, rows % heads_of_group};
  };
  p.step = step_of(p.order.step), p.step_ahead = step_of(p.order.step * (kHeadsRingStages - 1));
  p.by_heads = divisor_or_one(p.heads);
  p.vectors = static_cast<int32_t>(d.n * dtype_bytes(d.dtype) / 16);
  p.by_vectors = divisor_or_one(static_cast<uint32_t>(p.vectors));
  p.token_threads = std::max(32u, std::bit_ceil(p.heads * static_cast<uint32_t>(p.vectors)));
  p.rope_offset = static_cast<int32_t>(d.of_heads.rope_offset);
  p.inv_n = d.inv_n, p.eps = d.eps, p.weight_offset = d.weight_offset;
  p.round_normalized = rounds_normalized(d.rounding);
  p.round_gain = d.rounding == FASTNORM_ROUND_EVERY_STEP;
  p.weight_dtype = d.weight.dtype;
  const auto narrow = [&](const auto& tensor) {
    const HeadsTensor t = tensor_of(d, tensor);
    return HeldTensor{t.data, static_cast<int32_t>(t.token_stride),
                      static_cast<int32_t>(t.head_stride)};
  };
  p.x = narrow(d.x), p.dy = narrow(d.dy), p.dx = narrow(d.dx);
  p.mean = narrow(d.mean), p.rstd = narrow(d.rstd);
  if (!d.of_heads.normalise) p.x = {};  // which is dy
  const HeadsTensor weight = tensor_of(d, d.weight);
  p.weight = weight.data, p.weight_stride = weight.head_stride;
  if (d.of_heads.across_heads)
    p.token_values = reinterpret_cast<float*>(at(workspace, plan.token_offset));
}

// The parameters of a launch, whose parts set(desc, plan, item, workspace, part) fills in.
template <class Params>
Params with_parts(const HeadsGradients& call, const NormHeadsBackwardPlan& plan,
                  const HeadsBackwardStep& step, void* workspace, auto set) {
  Params p = {};
  for (const HeadsBackwardItem& item : step.planned())
    set(*call.at[item.part], plan.parts[item.part], item, workspace, &p.part[p.count++]);
  p.triggers = step.triggers;
  p.shared = shared_of(call);
  return p;
}

}  // namespace

NormHeadsBackwardParams make_heads_backward_params(const HeadsGradients& call,
                                                   const NormHeadsBackwardPlan& plan,
                                                   const HeadsBackwardStep& step, void* workspace) {
  return with_parts<NormHeadsBackwardParams>(call, plan, step, workspace, set_part);
}

HeldHeadsBackwardParams make_held_heads_backward_params(const HeadsGradients& call,
                                                        const NormHeadsBackwardPlan& plan,
                                                        const HeadsBackwardStep& step,
                                                        void* workspace) {
  return with_parts<HeldHeadsBackwardParams>(call, plan, step, workspace, set_held_part);
}

HeadsFoldParams make_heads_fold_params(const HeadsGradients& call,
                                       const NormHeadsBackwardPlan& plan,
                                       const HeadsBackwardStep& step, void* workspace) {
  HeadsFoldParams p = {};
  for (const HeadsBackwardItem& item : step.planned()) {
    const NormBackwardDesc& d = *call.at[item.part];
    const HeadsGradientPlan& of_part = plan.parts[item.part];
    const bool weights = item.role == HeadsBackwardRole::kDweight;
    HeadsFoldSum& s = p.sum[p.count++];
    s.first_block = item.first_block;
    s.groups = static_cast<uint32_t>(d.groups);
    s.blocks = of_part.blocks, s.split = of_part.split;
    s.partial =
        reinterpret_cast<const float*>(at(workspace, of_part.partial_offset[weights ? 0 : 1]));
    s.partial_stride = of_part.partial_stride;
    s.n = d.n;
    s.out = sum_out(d, weights);
  }
  p.triggers = step.triggers;
  return p;
}

}  // namespace fastnorm::cuda
