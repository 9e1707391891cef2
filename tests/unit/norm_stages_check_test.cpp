// Requirements of norm's stages, each broken once, and what is made of calls that are right.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "core/norm_check_stages.h"
#include "core/norm_plan.h"
#include "core/norm_stages.h"
#include "unit/norm_request.h"

namespace fastnorm::test {
namespace {

constexpr int64_t kRows = 3, kN = 32, kGroup = 8, kGroups = kN / kGroup;

// A request with the tensors of stages.
struct StagesRequest {
  Request norm;
  std::optional<RequestTensor> gate, sumsq, mean_in, rstd_in, branch_weight, branch_bias,
      branch_rstd, sum_scale, residual_gate, residual_gate_table, modulation_scale, scale_table,
      modulation_shift, shift_table, modulation_index;

  fastnorm_status check(NormDesc* desc, Error& error) const {
    Request r = norm;
    const std::optional<RequestTensor>* const from[] = {&gate,
                                                        &sumsq,
                                                        &mean_in,
                                                        &rstd_in,
                                                        &branch_weight,
                                                        &branch_bias,
                                                        &branch_rstd,
                                                        &sum_scale,
                                                        &residual_gate,
                                                        &residual_gate_table,
                                                        &modulation_scale,
                                                        &scale_table,
                                                        &modulation_shift,
                                                        &shift_table,
                                                        &modulation_index};
    const fastnorm_tensor** const to[] = {&r.args.gate,
                                          &r.args.sumsq,
                                          &r.args.mean_in,
                                          &r.args.rstd_in,
                                          &r.args.branch_weight,
                                          &r.args.branch_bias,
                                          &r.args.branch_rstd,
                                          &r.args.sum_scale,
                                          &r.args.residual_gate,
                                          &r.args.residual_gate_table,
                                          &r.args.modulation_scale,
                                          &r.args.scale_table,
                                          &r.args.modulation_shift,
                                          &r.args.shift_table,
                                          &r.args.modulation_index};
    fastnorm_tensor tensors[std::size(from)];
    for (size_t i = 0; i < std::size(from); ++i) {
      if (!*from[i]) continue;
      tensors[i] = (*from[i])->abi();
      *to[i] = &tensors[i];
    }
    return r.check(desc, error);
  }
};

// A LAYER call with a gate, groups, statistics and sums.
StagesRequest full_request() {
  StagesRequest r;
  r.norm = simple_request({kRows, kN}, FASTNORM_DTYPE_BF16, true, FASTNORM_NORM_LAYER);
  r.norm.args.group_size = kGroup;
  r.norm.args.gate_act = FASTNORM_ACTIVATION_SILU;
  r.norm.args.activation = FASTNORM_ACTIVATION_SIGMOID;
  r.norm.mean = RequestTensor{{kRows, kGroups}, {}, FASTNORM_DTYPE_F32, address_of(6)};
  r.norm.rstd = RequestTensor{{kRows, kGroups}, {}, FASTNORM_DTYPE_F32, address_of(7)};
  r.gate = RequestTensor{{kRows, kN}, {}, FASTNORM_DTYPE_BF16, address_of(8)};
  r.sumsq = RequestTensor{{kRows, kGroups, 2}, {}, FASTNORM_DTYPE_F32, address_of(9)};
  r.norm.args.branch_norm = r.norm.args.branch_rounded = 1;
  r.norm.args.branch_eps = 1e-3f;
  r.norm.args.branch_weight_offset = 1;
  r.norm.args.alpha = 0.5f;
  r.branch_weight = RequestTensor{{kN}, {}, FASTNORM_DTYPE_BF16, address_of(13)};
  r.branch_bias = RequestTensor{{kRows, kN}, {}, FASTNORM_DTYPE_F32, address_of(14)};
  r.branch_rstd = RequestTensor{{kRows}, {}, FASTNORM_DTYPE_F32, address_of(15)};
  r.sum_scale = RequestTensor{{1}, {}, FASTNORM_DTYPE_F32, address_of(16)};
  r.norm.args.residual_gate_act = FASTNORM_ACTIVATION_TANH;
  r.norm.args.modulation_rounding = FASTNORM_MODULATION_EVERY_STEP;
  r.residual_gate = RequestTensor{{kRows, 1}, {}, FASTNORM_DTYPE_BF16, address_of(17)};
  r.residual_gate_table = RequestTensor{{kN}, {}, FASTNORM_DTYPE_F32, address_of(18)};
  r.modulation_scale = RequestTensor{{kRows, kN}, {}, FASTNORM_DTYPE_BF16, address_of(19)};
  r.scale_table = RequestTensor{{1, kN}, {}, FASTNORM_DTYPE_F32, address_of(20)};
  r.modulation_shift = RequestTensor{{kN}, {}, FASTNORM_DTYPE_F32, address_of(21)};
  r.shift_table = RequestTensor{{kN}, {}, FASTNORM_DTYPE_BF16, address_of(22)};
  return r;
}

RequestTensor index_of_rows() {
  return RequestTensor{{kRows}, {}, FASTNORM_DTYPE_I64, address_of(23)};
}

// Of the same call: modulators of five rows, of which an index takes some.
void make_indexed(StagesRequest& r) {
  r.modulation_index = index_of_rows();
  r.residual_gate->shape = {5, 1};
  r.modulation_scale->shape = r.modulation_shift->shape = {5, kN};
}

// The same with statistics that are given.
StagesRequest given_request() {
  StagesRequest r = full_request();
  r.norm.mean.reset();
  r.norm.rstd.reset();
  r.sumsq.reset();
  r.mean_in = RequestTensor{{kRows, kGroups}, {}, FASTNORM_DTYPE_F32, address_of(10)};
  r.rstd_in = RequestTensor{{kRows, kGroups}, {}, FASTNORM_DTYPE_F32, address_of(11)};
  return r;
}

template <class Enum>
void set(Enum* field, int32_t value) {
  std::memcpy(field, &value, sizeof value);
}

struct BadCall {
  const char* name;
  fastnorm_status status;
  const char* texts[3];  // those that are not null are in the message
  void (*spoil)(StagesRequest&);
  bool given = false;
};

const BadCall kBadCalls[] = {
    {"gate_act",
     FASTNORM_ERROR_ARGUMENT,
     {"gate_act is 4", "required", "0 to 3"},
     [](StagesRequest& r) { set(&r.norm.args.gate_act, 4); }},
    {"activation",
     FASTNORM_ERROR_ARGUMENT,
     {"activation is -1", "0 to 3"},
     [](StagesRequest& r) { set(&r.norm.args.activation, -1); }},
    {"gate_position",
     FASTNORM_ERROR_ARGUMENT,
     {"gate_position is 2", "AFTER_NORM (0)", "BEFORE_NORM"},
     [](StagesRequest& r) { set(&r.norm.args.gate_position, 2); }},
    {"gate_source",
     FASTNORM_ERROR_ARGUMENT,
     {"gate_source is 7", "FROM_F32 (0)", "FROM_ROUNDED"},
     [](StagesRequest& r) { set(&r.norm.args.gate_source, 7); }},
    {"act without gate",
     FASTNORM_ERROR_ARGUMENT,
     {"gate_act is 1", "gate is NULL", "required: 0"},
     [](StagesRequest& r) { r.gate.reset(); }},
    {"position without gate",
     FASTNORM_ERROR_ARGUMENT,
     {"gate_position is 1", "gate is NULL"},
     [](StagesRequest& r) {
       r.gate.reset();
       set(&r.norm.args.gate_act, 0);
       set(&r.norm.args.gate_position, 1);
     }},
    {"source without gate",
     FASTNORM_ERROR_ARGUMENT,
     {"gate_source is 1", "gate is NULL"},
     [](StagesRequest& r) {
       r.gate.reset();
       set(&r.norm.args.gate_act, 0);
       set(&r.norm.args.gate_source, 1);
     }},
    {"rounded before",
     FASTNORM_ERROR_ARGUMENT,
     {"FROM_ROUNDED (1)", "gate_position is 1", "required: FASTNORM_GATE_AFTER_NORM"},
     [](StagesRequest& r) {
       set(&r.norm.args.gate_source, 1);
       set(&r.norm.args.gate_position, 1);
     }},
    {"group negative",
     FASTNORM_ERROR_ARGUMENT,
     {"group_size is -8", "divisor of n"},
     [](StagesRequest& r) { r.norm.args.group_size = -8; }},
    {"group that does not divide",
     FASTNORM_ERROR_SHAPE,
     {"group_size is 12", "n is 32", "divisor of n"},
     [](StagesRequest& r) { r.norm.args.group_size = 12; }},
    {"group longer than n",
     FASTNORM_ERROR_SHAPE,
     {"group_size is 64", "n is 32"},
     [](StagesRequest& r) { r.norm.args.group_size = 64; }},

    {"gate f16",
     FASTNORM_ERROR_DTYPE,
     {"gate.dtype is f16", "bf16, or f32, as x is bf16"},
     [](StagesRequest& r) { r.gate->dtype = FASTNORM_DTYPE_F16; }},
    {"gate i8",
     FASTNORM_ERROR_DTYPE,
     {"gate.dtype is i8"},
     [](StagesRequest& r) { r.gate->dtype = FASTNORM_DTYPE_I8; }},
    {"gate shape",
     FASTNORM_ERROR_SHAPE,
     {"gate.shape is [32]", "x's, [3, 32]"},
     [](StagesRequest& r) { r.gate->shape = {kN}; }},
    {"gate strides",
     FASTNORM_ERROR_LAYOUT,
     {"gate.strides[1] is 2", "contiguous"},
     [](StagesRequest& r) {
       r.gate->strides = {64, 2};
     }},
    {"gate address",
     FASTNORM_ERROR_LAYOUT,
     {"gate's address", "multiple of 2"},
     [](StagesRequest& r) { r.gate->address += 1; }},
    {"gate NULL data",
     FASTNORM_ERROR_ARGUMENT,
     {"gate.data is NULL"},
     [](StagesRequest& r) { r.gate->address = 0; }},
    {"gate on CUDA",
     FASTNORM_ERROR_DEVICE,
     {"gate is on device CUDA:0", "CPU"},
     [](StagesRequest& r) { r.gate->device_type = FASTNORM_DEVICE_CUDA; }},
    {"gate is x",
     FASTNORM_ERROR_LAYOUT,
     {"gate [", "overlaps x", "share no element"},
     [](StagesRequest& r) { r.gate->address = r.norm.x->address; }},
    {"gate in x",
     FASTNORM_ERROR_LAYOUT,
     {"gate [", "overlaps x"},
     [](StagesRequest& r) { r.gate->address = r.norm.x->address + 64; }},
    {"y in gate",
     FASTNORM_ERROR_LAYOUT,
     {"y [", "overlaps gate", "the same view"},
     [](StagesRequest& r) { r.norm.y->address = r.gate->address + 64; }},
    {"residual_out is gate",
     FASTNORM_ERROR_LAYOUT,
     {"residual_out [", "overlaps gate"},
     [](StagesRequest& r) { r.norm.residual_out->address = r.gate->address; }},

    {"mean of rows",
     FASTNORM_ERROR_SHAPE,
     {"mean.shape is [3]", "x.shape[:-1] + [4]", "4 groups"},
     [](StagesRequest& r) { r.norm.mean->shape = {kRows}; }},
    {"rstd with a last 1",
     FASTNORM_ERROR_SHAPE,
     {"rstd.shape is [3, 1]", "x.shape[:-1] + [4]"},
     [](StagesRequest& r) {
       r.norm.rstd->shape = {kRows, 1};
     }},
    {"rstd strides",
     FASTNORM_ERROR_LAYOUT,
     {"rstd.strides[1] is 3", "contiguous"},
     [](StagesRequest& r) {
       r.norm.rstd->strides = {1, 3};
     }},
    {"sumsq without pairs",
     FASTNORM_ERROR_SHAPE,
     {"sumsq.shape is [3, 4]", "[4, 2]"},
     [](StagesRequest& r) {
       r.sumsq->shape = {kRows, kGroups};
     }},
    {"sumsq of RMS",
     FASTNORM_ERROR_SHAPE,
     {"sumsq.shape is [3, 4, 2]", "x.shape[:-1] + [4],"},
     [](StagesRequest& r) {
       r.norm.args.kind = FASTNORM_NORM_RMS;
       r.norm.mean.reset();
     }},
    {"sumsq strides",
     FASTNORM_ERROR_LAYOUT,
     {"sumsq.strides[1] is 3", "required: 2"},
     [](StagesRequest& r) {
       r.sumsq->strides = {12, 3, 1};
     }},
    {"sumsq bf16",
     FASTNORM_ERROR_DTYPE,
     {"sumsq.dtype is bf16", "f32"},
     [](StagesRequest& r) { r.sumsq->dtype = FASTNORM_DTYPE_BF16; }},
    {"sumsq over itself",
     FASTNORM_ERROR_LAYOUT,
     {"sumsq overlaps itself"},
     [](StagesRequest& r) {
       r.sumsq->strides = {4, 2, 1};
     }},
    {"sumsq over rstd",
     FASTNORM_ERROR_LAYOUT,
     {"sumsq [", "overlaps rstd"},
     [](StagesRequest& r) { r.sumsq->address = r.norm.rstd->address; }},
    {"sumsq of rounded squares",
     FASTNORM_ERROR_ARGUMENT,
     {"sumsq is given", "EVERY_STEP (2)", "another rounding"},
     [](StagesRequest& r) { r.norm.args.rounding = FASTNORM_ROUND_EVERY_STEP; }},
    {"no output",
     FASTNORM_ERROR_ARGUMENT,
     {"y is NULL", "quantized is NULL", "sumsq"},
     [](StagesRequest& r) {
       r.norm.y.reset();
       r.sumsq.reset();
     }},
    {"amax of sums",
     FASTNORM_ERROR_ARGUMENT,
     {"amax is given", "y is NULL", "quantized is NULL"},
     [](StagesRequest& r) {
       r.norm.y.reset();
       r.norm.amax = RequestTensor{{1}, {}, FASTNORM_DTYPE_F32, address_of(12)};
     }},

    {"mean_in of RMS",
     FASTNORM_ERROR_ARGUMENT,
     {"mean_in is given", "FASTNORM_NORM_LAYER"},
     [](StagesRequest& r) { r.norm.args.kind = FASTNORM_NORM_RMS; },
     true},
    {"mean_in alone",
     FASTNORM_ERROR_ARGUMENT,
     {"mean_in is given and rstd_in is NULL", "both or neither"},
     [](StagesRequest& r) { r.rstd_in.reset(); },
     true},
    {"rstd_in alone",
     FASTNORM_ERROR_ARGUMENT,
     {"mean_in is NULL and rstd_in is given", "both or neither"},
     [](StagesRequest& r) { r.mean_in.reset(); },
     true},
    {"rstd and rstd_in",
     FASTNORM_ERROR_ARGUMENT,
     {"rstd is given and rstd_in is given"},
     [](StagesRequest& r) { r.norm.rstd = full_request().norm.rstd; },
     true},
    {"mean and rstd_in",
     FASTNORM_ERROR_ARGUMENT,
     {"mean is given and rstd_in is given"},
     [](StagesRequest& r) { r.norm.mean = full_request().norm.mean; },
     true},
    {"sumsq and rstd_in",
     FASTNORM_ERROR_ARGUMENT,
     {"sumsq is given and rstd_in is given"},
     [](StagesRequest& r) { r.sumsq = full_request().sumsq; },
     true},
    {"rstd_in shape",
     FASTNORM_ERROR_SHAPE,
     {"rstd_in.shape is [3, 5]", "[4]"},
     [](StagesRequest& r) {
       r.rstd_in->shape = {kRows, 5};
     },
     true},
    {"y over rstd_in",
     FASTNORM_ERROR_LAYOUT,
     {"y [", "overlaps rstd_in"},
     [](StagesRequest& r) { r.norm.y->address = r.rstd_in->address; },
     true},

    {"weight of no group",
     FASTNORM_ERROR_SHAPE,
     {"weight.shape is [16]", "[32], or [8] for each group"},
     [](StagesRequest& r) { r.norm.weight->shape = {16}; }},
    {"branch_norm",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_norm is 2", "0 or 1"},
     [](StagesRequest& r) { r.norm.args.branch_norm = 2; }},
    {"branch_rounded",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_rounded is -1", "0 or 1"},
     [](StagesRequest& r) { r.norm.args.branch_rounded = -1; }},
    {"branch_kind",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_kind is 2", "FASTNORM_NORM_RMS (0)"},
     [](StagesRequest& r) { set(&r.norm.args.branch_kind, 2); }},
    {"branch_rounding",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_rounding is 3", "0 to 2"},
     [](StagesRequest& r) { set(&r.norm.args.branch_rounding, 3); }},
    {"sum_rounding",
     FASTNORM_ERROR_ARGUMENT,
     {"sum_rounding is 2", "FASTNORM_SUM_ONCE (0)"},
     [](StagesRequest& r) { set(&r.norm.args.sum_rounding, 2); }},
    {"branch_eps",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_eps is -1", "finite and >= 0"},
     [](StagesRequest& r) { r.norm.args.branch_eps = -1; }},
    {"branch offset Inf",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_weight_offset is inf", "finite"},
     [](StagesRequest& r) { r.norm.args.branch_weight_offset = INFINITY; }},
    {"alpha NaN",
     FASTNORM_ERROR_ARGUMENT,
     {"alpha is nan", "finite"},
     [](StagesRequest& r) { r.norm.args.alpha = NAN; }},
    {"branch offset alone",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_weight_offset is 1", "branch_weight is NULL"},
     [](StagesRequest& r) { r.branch_weight.reset(); }},
    {"rounded without branch",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_rounded is 1", "branch_norm is 0"},
     [](StagesRequest& r) {
       r.norm.args.branch_norm = 0;
       r.norm.args.branch_eps = 0;
     }},
    {"eps without branch",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_eps is 0.001", "branch_norm is 0"},
     [](StagesRequest& r) { r.norm.args.branch_norm = r.norm.args.branch_rounded = 0; }},
    {"weight without branch",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_weight is given", "branch_norm is 0"},
     [](StagesRequest& r) {
       r.norm.args.branch_norm = r.norm.args.branch_rounded = 0;
       r.norm.args.branch_eps = 0;
     }},
    {"branch_weight of a group",
     FASTNORM_ERROR_SHAPE,
     {"branch_weight.shape is [8]", "[32]"},
     [](StagesRequest& r) { r.branch_weight->shape = {kGroup}; }},
    {"branch_bias i8",
     FASTNORM_ERROR_DTYPE,
     {"branch_bias.dtype is i8", "f32, f16 or bf16"},
     [](StagesRequest& r) { r.branch_bias->dtype = FASTNORM_DTYPE_I8; }},
    {"branch_rstd of groups",
     FASTNORM_ERROR_SHAPE,
     {"branch_rstd.shape is [3, 4]", "x.shape[:-1]"},
     [](StagesRequest& r) {
       r.branch_rstd->shape = {kRows, kGroups};
     }},
    {"branch_rstd over y",
     FASTNORM_ERROR_LAYOUT,
     {"branch_rstd [", "overlaps y"},
     [](StagesRequest& r) { r.branch_rstd->address = r.norm.y->address; }},
    {"y over branch_weight",
     FASTNORM_ERROR_LAYOUT,
     {"y [", "overlaps branch_weight"},
     [](StagesRequest& r) { r.norm.y->address = r.branch_weight->address; }},
    {"sum_scale of two",
     FASTNORM_ERROR_SHAPE,
     {"sum_scale.shape is [2]", "[1]"},
     [](StagesRequest& r) { r.sum_scale->shape = {2}; }},
    {"sum_scale bf16",
     FASTNORM_ERROR_DTYPE,
     {"sum_scale.dtype is bf16", "f32"},
     [](StagesRequest& r) { r.sum_scale->dtype = FASTNORM_DTYPE_BF16; }},
    {"residual_gate_act",
     FASTNORM_ERROR_ARGUMENT,
     {"residual_gate_act is 4", "0 to 3"},
     [](StagesRequest& r) { set(&r.norm.args.residual_gate_act, 4); }},
    {"modulation_rounding",
     FASTNORM_ERROR_ARGUMENT,
     {"modulation_rounding is 2", "FASTNORM_MODULATION_ONCE (0)", "EVERY_STEP (1)"},
     [](StagesRequest& r) { set(&r.norm.args.modulation_rounding, 2); }},
    {"act without residual_gate",
     FASTNORM_ERROR_ARGUMENT,
     {"residual_gate_act is 3", "residual_gate is NULL", "required: 0"},
     [](StagesRequest& r) {
       r.residual_gate.reset();
       r.residual_gate_table.reset();
     }},
    {"gate's table alone",
     FASTNORM_ERROR_ARGUMENT,
     {"residual_gate_table is given", "residual_gate is NULL", "both, or no table"},
     [](StagesRequest& r) {
       r.residual_gate.reset();
       set(&r.norm.args.residual_gate_act, 0);
     }},
    {"scale_table alone",
     FASTNORM_ERROR_ARGUMENT,
     {"scale_table is given", "modulation_scale is NULL"},
     [](StagesRequest& r) { r.modulation_scale.reset(); }},
    {"shift_table alone",
     FASTNORM_ERROR_ARGUMENT,
     {"shift_table is given", "modulation_shift is NULL"},
     [](StagesRequest& r) { r.modulation_shift.reset(); }},
    {"rounding without modulation",
     FASTNORM_ERROR_ARGUMENT,
     {"modulation_rounding is 1", "modulation_scale is NULL", "modulation_shift is NULL"},
     [](StagesRequest& r) {
       for (auto* t : {&r.modulation_scale, &r.scale_table, &r.modulation_shift, &r.shift_table})
         t->reset();
     }},
    {"plain scale without scale",
     FASTNORM_ERROR_ARGUMENT,
     {"flags is 0x8", "modulation_scale is NULL", "PLAIN_SCALE (8)"},
     [](StagesRequest& r) {
       r.norm.args.flags = FASTNORM_NORM_MODULATION_PLAIN_SCALE;
       r.modulation_scale.reset();
       r.scale_table.reset();
     }},
    {"index without modulators",
     FASTNORM_ERROR_ARGUMENT,
     {"modulation_index is given", "are NULL", "no index"},
     [](StagesRequest& r) {
       for (auto* t : {&r.modulation_scale, &r.scale_table, &r.modulation_shift, &r.shift_table,
                       &r.residual_gate, &r.residual_gate_table})
         t->reset();
       set(&r.norm.args.residual_gate_act, 0);
       set(&r.norm.args.modulation_rounding, 0);
       r.modulation_index = index_of_rows();
     }},
    {"residual_gate f16",
     FASTNORM_ERROR_DTYPE,
     {"residual_gate.dtype is f16", "bf16, or f32, as x is bf16"},
     [](StagesRequest& r) { r.residual_gate->dtype = FASTNORM_DTYPE_F16; }},
    {"shift_table f16",
     FASTNORM_ERROR_DTYPE,
     {"shift_table.dtype is f16", "bf16, or f32"},
     [](StagesRequest& r) { r.shift_table->dtype = FASTNORM_DTYPE_F16; }},
    {"modulation_scale shape",
     FASTNORM_ERROR_SHAPE,
     {"modulation_scale.shape is [2, 32]", "extents that are 1 or x's", "[3, 32]"},
     [](StagesRequest& r) {
       r.modulation_scale->shape = {2, kN};
     }},
    {"modulation_shift of more dimensions",
     FASTNORM_ERROR_SHAPE,
     {"modulation_shift.shape is [1, 1, 32]", "for x of shape [3, 32]"},
     [](StagesRequest& r) {
       r.modulation_shift->shape = {1, 1, kN};
     }},
    {"modulation_shift of a group",
     FASTNORM_ERROR_SHAPE,
     {"modulation_shift.shape is [8]", "extents that are 1 or x's"},
     [](StagesRequest& r) { r.modulation_shift->shape = {kGroup}; }},
    {"modulation_scale strides",
     FASTNORM_ERROR_LAYOUT,
     {"modulation_scale.strides[1] is 2", "contiguous"},
     [](StagesRequest& r) {
       r.modulation_scale->strides = {64, 2};
     }},
    {"scale_table of rows",
     FASTNORM_ERROR_SHAPE,
     {"scale_table.shape is [3, 32]", "[32], or with leading extents of 1"},
     [](StagesRequest& r) {
       r.scale_table->shape = {kRows, kN};
     }},
    {"y over modulation_scale",
     FASTNORM_ERROR_LAYOUT,
     {"y [", "overlaps modulation_scale"},
     [](StagesRequest& r) { r.norm.y->address = r.modulation_scale->address; }},
    {"residual_out over residual_gate",
     FASTNORM_ERROR_LAYOUT,
     {"residual_out [", "overlaps residual_gate"},
     [](StagesRequest& r) { r.norm.residual_out->address = r.residual_gate->address; }},
    {"y over shift_table",
     FASTNORM_ERROR_LAYOUT,
     {"y [", "overlaps shift_table"},
     [](StagesRequest& r) { r.norm.y->address = r.shift_table->address; }},
    {"index f32",
     FASTNORM_ERROR_DTYPE,
     {"modulation_index.dtype is f32", "i32 or i64"},
     [](StagesRequest& r) {
       make_indexed(r);
       r.modulation_index->dtype = FASTNORM_DTYPE_F32;
     }},
    {"index shape",
     FASTNORM_ERROR_SHAPE,
     {"modulation_index.shape is [4]", "x.shape[:-1]"},
     [](StagesRequest& r) {
       make_indexed(r);
       r.modulation_index->shape = {kRows + 1};
     }},
    {"modulators of an index",
     FASTNORM_ERROR_SHAPE,
     {"modulation_shift.shape is [1]", "[m, 32] or [m, 1] with m >= 1"},
     [](StagesRequest& r) {
       make_indexed(r);
       r.modulation_shift->shape = {1};
     }},
    {"no row for an index",
     FASTNORM_ERROR_SHAPE,
     {"modulation_shift.shape is [0, 32]", "m >= 1"},
     [](StagesRequest& r) {
       make_indexed(r);
       r.modulation_shift->shape = {0, kN};
     }},
    {"y over the rows of an index",
     FASTNORM_ERROR_LAYOUT,
     {"y [", "overlaps modulation_shift"},
     [](StagesRequest& r) {
       make_indexed(r);
       r.norm.y->address = r.modulation_shift->address + kN * 4;
     }},
    {"y over modulation_index",
     FASTNORM_ERROR_LAYOUT,
     {"y [", "overlaps modulation_index"},
     [](StagesRequest& r) {
       make_indexed(r);
       r.norm.y->address = r.modulation_index->address;
     }},
};

TEST(CheckStages, EachRequirement) {
  for (const BadCall& bad : kBadCalls) {
    StagesRequest r = bad.given ? given_request() : full_request();
    NormDesc desc;
    Error error;
    ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
    bad.spoil(r);
    EXPECT_EQ(r.check(&desc, error), bad.status) << bad.name << ": " << error.text;
    for (const char* text : bad.texts) {
      if (text == nullptr) continue;
      EXPECT_NE(std::strstr(error.text, text), nullptr) << bad.name << ": " << error.text;
    }
  }
}

TEST(CheckStages, DescriptionOfAFullCall) {
  const StagesRequest r = full_request();
  NormDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  ASSERT_TRUE(d.has_stages);
  const StagesDesc& s = d.stages;
  EXPECT_EQ(s.group, kGroup);
  EXPECT_EQ(s.groups, kGroups);
  EXPECT_EQ(d.n, kN);
  EXPECT_EQ(d.inv_n, 1.0f / kGroup);
  EXPECT_EQ(s.gate_act, FASTNORM_ACTIVATION_SILU);
  EXPECT_EQ(s.activation, FASTNORM_ACTIVATION_SIGMOID);
  EXPECT_FALSE(s.gate_before);
  EXPECT_EQ(s.gate.stride_bytes[0], kN * 2);
  EXPECT_EQ(s.sumsq.stride_bytes[0], kGroups * 2 * 4);
  EXPECT_EQ(d.rstd.stride_bytes[0], kGroups * 4);
  EXPECT_FALSE(s.weight_shared);
  EXPECT_TRUE(s.branch && s.branch_rounded && s.scaled);
  EXPECT_EQ(s.branch_bias.head_stride_bytes, kN * 4);
  EXPECT_EQ(s.branch_rstd.stride_bytes[0], 4);
}

TEST(CheckStages, DescriptionOfModulators) {
  StagesRequest r = full_request();
  NormDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  const StagesDesc& s = d.stages;
  EXPECT_TRUE(s.residual_gate.single);
  EXPECT_EQ(s.residual_gate.rows.stride_bytes[0], 2);
  EXPECT_EQ(s.residual_gate_act, FASTNORM_ACTIVATION_TANH);
  EXPECT_FALSE(s.modulation_scale.single);
  EXPECT_EQ(s.modulation_scale.rows.stride_bytes[0], kN * 2);
  EXPECT_EQ(s.modulation_shift.rows.stride_bytes[0], 0);
  EXPECT_EQ(s.modulation_shift.table.dtype, Dtype::kBF16);
  EXPECT_TRUE(s.modulation_every_step);
  EXPECT_FALSE(s.plain_scale);
  r.norm.args.flags = FASTNORM_NORM_MODULATION_PLAIN_SCALE;
  make_indexed(r);
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_TRUE(s.plain_scale);
  EXPECT_EQ(d.flags, 0u);  // the others are PDL's
  EXPECT_EQ(s.modulation_scale.index_rows, 5);
  EXPECT_EQ(s.modulation_scale.index_stride, kN * 2);
  EXPECT_EQ(s.residual_gate.index_stride, 2);
  EXPECT_EQ(s.modulation_index.stride_bytes[0], 8);
}

// [batch, frames, 1, n] beside rows of [batch, frames, tokens].
TEST(CheckStages, ModulatorsOfSomeDimensions) {
  StagesRequest r;
  r.norm = simple_request({2, 3, 5, kN}, FASTNORM_DTYPE_F32);
  r.modulation_scale =
      RequestTensor{{2, 3, 1, kN}, {18 * kN, 6 * kN, 7, 1}, FASTNORM_DTYPE_F32, address_of(19)};
  r.modulation_shift = RequestTensor{{2, 1, 1, kN}, {}, FASTNORM_DTYPE_F32, address_of(21)};
  NormDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(d.outer_rank, 3);
  const int64_t scale[] = {0, 6 * kN * 4, 18 * kN * 4}, shift[] = {0, 0, kN * 4};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(d.stages.modulation_scale.rows.stride_bytes[i], scale[i]);
    EXPECT_EQ(d.stages.modulation_shift.rows.stride_bytes[i], shift[i]);
  }
}

// x and its companions as [3, 1, 2, 1, 5, n]: the description is that of [30, n].
TEST(CheckStages, SixDimensions) {
  StagesRequest flat, wide;
  for (StagesRequest* r : {&flat, &wide}) {
    const std::vector<int64_t> leading =
        r == &flat ? std::vector<int64_t>{30} : std::vector<int64_t>{3, 1, 2, 1, 5};
    const auto with = [&](std::vector<int64_t> behind) {
      behind.insert(behind.begin(), leading.begin(), leading.end());
      return behind;
    };
    *r = full_request();
    for (auto* t : {&r->norm.x, &r->norm.y, &r->norm.residual, &r->norm.residual_out, &r->gate,
                    &r->modulation_scale, &r->branch_bias})
      (*t)->shape = with({kN});
    for (auto* t : {&r->norm.mean, &r->norm.rstd}) (*t)->shape = with({kGroups});
    r->sumsq->shape = with({kGroups, 2});
    r->branch_rstd->shape = with({1});
    r->residual_gate->shape = with({1});
    r->norm.weight->shape = {kGroup};
  }
  NormDesc of_flat, of_wide;
  Error error;
  ASSERT_EQ(flat.check(&of_flat, error), FASTNORM_OK) << error.text;
  ASSERT_EQ(wide.check(&of_wide, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(of_wide.rows, 30);
  EXPECT_EQ(of_wide.outer_rank, 1);
  const StagesDesc &a = of_flat.stages, &b = of_wide.stages;
  const RowTensor* const rows[][2] = {{&a.gate, &b.gate},
                                      {&a.sumsq, &b.sumsq},
                                      {&a.branch_rstd, &b.branch_rstd},
                                      {&a.residual_gate.rows, &b.residual_gate.rows},
                                      {&a.modulation_scale.rows, &b.modulation_scale.rows},
                                      {&a.modulation_shift.rows, &b.modulation_shift.rows},
                                      {&of_flat.mean, &of_wide.mean}};
  for (const auto& pair : rows) {
    EXPECT_EQ(pair[0]->data, pair[1]->data);
    for (int d = 0; d < kMaxOuter; ++d)
      EXPECT_EQ(pair[0]->stride_bytes[d], pair[1]->stride_bytes[d]);
  }
  EXPECT_EQ(a.branch_bias.head_stride_bytes, b.branch_bias.head_stride_bytes);
  EXPECT_TRUE(b.residual_gate.single && b.weight_shared);
  // A wrong shape is told in the caller's terms.
  wide.sumsq->shape.back() = 3;
  EXPECT_EQ(wide.check(&of_wide, error), FASTNORM_ERROR_SHAPE);
  EXPECT_NE(std::strstr(error.text, "sumsq.shape is [3, 1, 2, 1, 5, 4, 3]"), nullptr) << error.text;
  wide.sumsq->shape.back() = 2;
  wide.modulation_scale->shape[4] = 4;
  EXPECT_EQ(wide.check(&of_wide, error), FASTNORM_ERROR_SHAPE);
  EXPECT_NE(std::strstr(error.text, "for x of shape [3, 1, 2, 1, 5, 32]"), nullptr) << error.text;
  // A modulator of some dimensions keeps them apart.
  wide.modulation_scale->shape = {3, 1, 1, 1, 1, kN};
  ASSERT_EQ(wide.check(&of_wide, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(of_wide.outer_rank, 2);
  EXPECT_EQ(of_wide.stages.modulation_scale.rows.stride_bytes[0], 0);
  EXPECT_EQ(of_wide.stages.modulation_scale.rows.stride_bytes[1], kN * 2);
  make_indexed(wide);
  wide.modulation_index->shape = {3, 1, 2, 1, 5};
  ASSERT_EQ(wide.check(&of_wide, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(of_wide.stages.modulation_index.stride_bytes[0], 8);
}

TEST(CheckStages, IndicesOutOfRange) {
  StagesRequest r = full_request();
  make_indexed(r);
  int64_t index[kRows] = {4, 0, 2};
  r.modulation_index->address = reinterpret_cast<uintptr_t>(index);
  NormDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(check_modulation_index(d, error), FASTNORM_OK) << error.text;
  for (const int64_t wrong : {int64_t{5}, int64_t{-1}, INT64_MIN}) {
    index[1] = wrong;
    EXPECT_EQ(check_modulation_index(d, error), FASTNORM_ERROR_ARGUMENT);
    const std::string text = "modulation_index of row 1 is " + std::to_string(wrong);
    EXPECT_NE(std::strstr(error.text, text.c_str()), nullptr) << error.text;
    EXPECT_NE(std::strstr(error.text, "required: 0 to 4"), nullptr) << error.text;
  }
  const int32_t narrow[kRows] = {4, 0, 5};
  r.modulation_index->dtype = FASTNORM_DTYPE_I32;
  r.modulation_index->address = reinterpret_cast<uintptr_t>(narrow);
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(check_modulation_index(d, error), FASTNORM_ERROR_ARGUMENT);
  EXPECT_NE(std::strstr(error.text, "row 2 is 5"), nullptr) << error.text;
}

TEST(CheckStages, ColumnsOfAGroup) {
  StagesRequest r = full_request();
  r.norm.weight->shape = {kGroup};
  r.norm.bias->shape = {kRows, kGroup};
  NormDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_TRUE(d.stages.weight_shared);
  EXPECT_TRUE(d.stages.bias_shared);
  EXPECT_EQ(d.bias.head_stride_bytes, kGroup * 2);
  EXPECT_EQ(d.weight_columns(), kGroup);
}

TEST(CheckStages, WhatIsAllowed) {
  NormDesc d;
  Error error;
  StagesRequest r = full_request();
  r.norm.y->address = r.gate->address;  // over the gate
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  r = full_request();
  r.norm.y.reset();  // sums alone
  r.norm.residual_out.reset();
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  r = full_request();
  r.norm.args.group_size = 0;
  for (auto* t : {&r.norm.mean, &r.norm.rstd}) (*t)->shape = {kRows, 1};
  r.sumsq->shape = {kRows, 2};
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(d.stages.groups, 1);
  EXPECT_EQ(d.stages.group, kN);
  r = full_request();
  r.gate->dtype = FASTNORM_DTYPE_F32;
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  // x and the gate are the halves of one buffer.
  r = full_request();
  r.norm.x->strides = r.gate->strides = {2 * kN, 1};
  r.gate->address = r.norm.x->address + kN * 2;
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
}

TEST(CheckStages, AnAlphaOfOneIsNone) {
  StagesRequest r = full_request();
  r.norm.args.alpha = 1;
  NormDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_FALSE(d.stages.scaled);
}

TEST(CheckStages, NoneIsToldByNoField) {
  NormDesc d;
  Error error;
  const Request plain = simple_request({kRows, kN}, FASTNORM_DTYPE_F16);
  ASSERT_EQ(plain.check(&d, error), FASTNORM_OK);
  EXPECT_FALSE(d.has_stages);
  Request grouped = plain;
  grouped.args.group_size = kN;
  ASSERT_EQ(grouped.check(&d, error), FASTNORM_OK);
  EXPECT_TRUE(d.has_stages);
}

TEST(CheckStages, NoRows) {
  StagesRequest r = full_request();
  for (auto* t : {&r.norm.x, &r.norm.y, &r.norm.residual, &r.norm.residual_out, &r.gate})
    (*t)->shape = {0, kN};
  for (auto* t : {&r.norm.mean, &r.norm.rstd}) (*t)->shape = {0, kGroups};
  r.sumsq->shape = {0, kGroups, 2};
  r.branch_rstd->shape = {0};
  r.branch_bias->shape = {1, kN};
  r.residual_gate->shape = {0, 1};
  r.modulation_scale->shape = {1, kN};
  r.gate->address = 0;
  NormDesc d;
  Error error;
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(d.rows, 0);
}

TEST(CheckStages, PlansOfTheCpu) {
  NormDesc d;
  Error error;
  ASSERT_EQ(full_request().check(&d, error), FASTNORM_OK);
  DeviceFacts facts;
  NormPlan plan;
  ASSERT_EQ(make_plan(d, facts, {}, &plan, error), FASTNORM_OK) << error.text;
  EXPECT_STREQ(plan.entry->name, "bf16 layer stages");
  EXPECT_EQ(plan.index, stages_kernel(Dtype::kBF16, Stat::kLayer));
  // x, residual, gate; weight, bias and the branch's weight; a bias for each row. Modulators: a
  // value and n columns for each row, n for all; tables. y, residual_out; mean and rstd, and pairs,
  // of groups; the branch's rstd.
  constexpr uint64_t kModulators = kRows * 2 + kRows * kN * 2 + kN * 4 + kN * (4 + 4 + 2);
  EXPECT_EQ(plan.bytes_read,
            uint64_t{3 * kRows * kN * 2 + 3 * kN * 2 + kRows * kN * 4} + kModulators);
  EXPECT_EQ(plan.bytes_written, uint64_t{2 * kRows * kN * 2 + kRows * kGroups * 4 * 4 + kRows * 4});
}

}  // namespace
}  // namespace fastnorm::test
