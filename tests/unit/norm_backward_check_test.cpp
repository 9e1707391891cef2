// Every requirement of fastnorm/norm_backward.h, broken once. Checks the status, and that the text
// names the argument, its value and what is required. Also the descriptions of valid calls.
#include "core/norm_backward_check.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "unit/norm_backward_request.h"

namespace fastnorm::test {
namespace {

using R = BackwardRequest;

constexpr fastnorm_dtype_id kF32 = FASTNORM_DTYPE_F32, kF16 = FASTNORM_DTYPE_F16,
                            kBF16 = FASTNORM_DTYPE_BF16;
const float kNan = std::numeric_limits<float>::quiet_NaN();

struct BadCall {
  const char* name;
  fastnorm_status status;
  const char* texts[3];  // those that are not null are in the message
  void (*spoil)(R&);
};

template <class Enum>
void set(Enum& field, int32_t value) {
  std::memcpy(&field, &value, sizeof value);
}

const BadCall kBadCalls[] = {
    {"struct_size 0",
     FASTNORM_ERROR_ARGUMENT,
     {"args.struct_size", "is 0"},
     [](R& r) { r.args.struct_size = 0; }},
    {"struct_size one short",
     FASTNORM_ERROR_ARGUMENT,
     {"args.struct_size", "at least"},
     [](R& r) { r.args.struct_size -= 1; }},
    {"kind 2", FASTNORM_ERROR_ARGUMENT, {"kind is 2"}, [](R& r) { set(r.args.kind, 2); }},
    {"eps NaN", FASTNORM_ERROR_ARGUMENT, {"eps is nan"}, [](R& r) { r.args.eps = kNan; }},
    {"eps negative", FASTNORM_ERROR_ARGUMENT, {"eps is -1", ">= 0"}, [](R& r) { r.args.eps = -1; }},
    {"weight_offset NaN",
     FASTNORM_ERROR_ARGUMENT,
     {"weight_offset is nan"},
     [](R& r) { r.args.weight_offset = kNan; }},
    {"weight_offset alone",
     FASTNORM_ERROR_ARGUMENT,
     {"weight_offset is 1", "weight is NULL"},
     [](R& r) {
       r.args.weight_offset = 1;
       r.weight.reset();
       r.dweight.reset();
     }},
    {"rounding 4",
     FASTNORM_ERROR_ARGUMENT,
     {"rounding is 4", "0 to 3"},
     [](R& r) { set(r.args.rounding, 4); }},
    {"reserved 1", FASTNORM_ERROR_ARGUMENT, {"reserved is 1"}, [](R& r) { r.args.reserved = 1; }},
    {"flag 4",
     FASTNORM_ERROR_UNSUPPORTED,
     {"flags is 0x4", "nearest: flags 0x0"},
     [](R& r) { r.args.flags = 4; }},
    {"accumulate nothing",
     FASTNORM_ERROR_ARGUMENT,
     {"flags is 0x8", "dweight is NULL"},
     [](R& r) {
       r.args.flags = 8;
       r.dweight.reset();
     }},
    {"accumulate no bias",
     FASTNORM_ERROR_ARGUMENT,
     {"flags is 0x10", "dbias is NULL"},
     [](R& r) {
       r.args.flags = 16;
       r.dbias.reset();
     }},
    {"dy NULL", FASTNORM_ERROR_ARGUMENT, {"dy is NULL"}, [](R& r) { r.dy.reset(); }},
    {"x NULL", FASTNORM_ERROR_ARGUMENT, {"x is NULL"}, [](R& r) { r.x.reset(); }},
    {"no output",
     FASTNORM_ERROR_ARGUMENT,
     {"at least one output"},
     [](R& r) {
       r.dx.reset();
       r.dweight.reset();
       r.dbias.reset();
     }},
    {"dresidual without dx",
     FASTNORM_ERROR_ARGUMENT,
     {"dresidual is given", "dx is NULL"},
     [](R& r) {
       r.dresidual = r.dx;
       r.dx.reset();
     }},
    {"dweight without weight",
     FASTNORM_ERROR_ARGUMENT,
     {"dweight is given", "weight is NULL"},
     [](R& r) { r.weight.reset(); }},
    {"mean with RMS",
     FASTNORM_ERROR_ARGUMENT,
     {"mean is given", "FASTNORM_NORM_RMS"},
     [](R& r) { r.args.kind = FASTNORM_NORM_RMS; }},
    {"mean alone",
     FASTNORM_ERROR_ARGUMENT,
     {"mean is given", "rstd is NULL"},
     [](R& r) { r.rstd.reset(); }},
    {"rstd alone",
     FASTNORM_ERROR_ARGUMENT,
     {"rstd is given", "mean is NULL"},
     [](R& r) { r.mean.reset(); }},
    {"x i8", FASTNORM_ERROR_DTYPE, {"x.dtype is i8"}, [](R& r) { r.x->dtype = FASTNORM_DTYPE_I8; }},
    {"dy another 16 bits",
     FASTNORM_ERROR_DTYPE,
     {"dy.dtype is f16", "as dx is bf16"},
     [](R& r) { r.dy->dtype = kF16; }},
    {"dx u8",
     FASTNORM_ERROR_DTYPE,
     {"dx.dtype is u8"},
     [](R& r) { r.dx->dtype = FASTNORM_DTYPE_U8; }},
    {"dresidual of dx's",
     FASTNORM_ERROR_DTYPE,
     {"dresidual.dtype is bf16, as dx's"},
     [](R& r) { r.dresidual = r.dx; }},
    {"dresidual_in i8",
     FASTNORM_ERROR_DTYPE,
     {"dresidual_in.dtype is i8"},
     [](R& r) { r.dresidual_in->dtype = FASTNORM_DTYPE_I8; }},
    {"dweight of another",
     FASTNORM_ERROR_DTYPE,
     {"dweight.dtype is f16", "as weight is bf16"},
     [](R& r) { r.dweight->dtype = kF16; }},
    {"dbias i32",
     FASTNORM_ERROR_DTYPE,
     {"dbias.dtype is i32"},
     [](R& r) { r.dbias->dtype = FASTNORM_DTYPE_I32; }},
    {"rstd bf16",
     FASTNORM_ERROR_DTYPE,
     {"rstd.dtype is bf16", "f32"},
     [](R& r) { r.rstd->dtype = kBF16; }},
    {"n 0",
     FASTNORM_ERROR_SHAPE,
     {"n is 0"},
     [](R& r) {
       r.x->shape = {4, 3, 0};
     }},
    {"dy longer",
     FASTNORM_ERROR_SHAPE,
     {"dy.shape is [4, 3, 65]", "[4, 3, 64]"},
     [](R& r) { r.dy->shape[2] = 65; }},
    {"dx of other rows",
     FASTNORM_ERROR_SHAPE,
     {"dx.shape is [3, 4, 64]"},
     [](R& r) {
       r.dx->shape = {3, 4, 64};
     }},
    {"rstd of other rows",
     FASTNORM_ERROR_SHAPE,
     {"rstd.shape is [4, 4]"},
     [](R& r) {
       r.rstd->shape = {4, 4};
     }},
    {"weight of other columns",
     FASTNORM_ERROR_SHAPE,
     {"weight.shape is [63]"},
     [](R& r) { r.weight->shape = {63}; }},
    {"dweight not as weight",
     FASTNORM_ERROR_SHAPE,
     {"dweight.shape is [3, 64]", "weight's, [64]"},
     [](R& r) {
       r.dweight->shape = {3, 64};
     }},
    {"dbias of 2 heads",
     FASTNORM_ERROR_SHAPE,
     {"dbias.shape is [2, 64]"},
     [](R& r) {
       r.dbias->shape = {2, 64};
     }},
    {"x not contiguous",
     FASTNORM_ERROR_LAYOUT,
     {"x.strides[2] is 2"},
     [](R& r) {
       r.x->strides = {384, 128, 2};
     }},
    {"dy with steps of 2",
     FASTNORM_ERROR_LAYOUT,
     {"dy.strides[2] is 2", "or 0"},
     [](R& r) {
       r.dy->strides = {384, 128, 2};
     }},
    {"dx misaligned",
     FASTNORM_ERROR_LAYOUT,
     {"dx's address", "multiple of 2"},
     [](R& r) { r.dx->byte_offset = 1; }},
    {"dx overlaps itself",
     FASTNORM_ERROR_LAYOUT,
     {"dx overlaps itself"},
     [](R& r) {
       r.dx->strides = {0, 64, 1};
     }},
    {"dweight overlaps itself",
     FASTNORM_ERROR_LAYOUT,
     {"dweight overlaps itself"},
     [](R& r) {
       r.weight->shape = r.dweight->shape = {3, 64};
       r.dweight->strides = {32, 1};
     }},
    {"dx over a part of dy",
     FASTNORM_ERROR_LAYOUT,
     {"dx [", "overlaps dy", "the same view"},
     [](R& r) {
       r.dx->address = r.dy->address;
       r.dx->byte_offset = 2;
     }},
    {"dx over f32 x",
     FASTNORM_ERROR_LAYOUT,
     {"dx [", "overlaps x"},
     [](R& r) {
       r.x->dtype = kF32;
       r.dx->address = r.x->address;
     }},
    {"dx over an expanded dy",
     FASTNORM_ERROR_LAYOUT,
     {"dx [", "overlaps dy"},
     [](R& r) {
       r.dy->strides = {0, 0, 0};
       r.dx->address = r.dy->address;
     }},
    {"dweight is weight",
     FASTNORM_ERROR_LAYOUT,
     {"dweight [", "overlaps weight", "two tensors"},
     [](R& r) { r.dweight->address = r.weight->address; }},
    {"dbias is dweight",
     FASTNORM_ERROR_LAYOUT,
     {"dbias [", "overlaps dweight"},
     [](R& r) { r.dbias->address = r.dweight->address; }},
    {"dx is rstd",
     FASTNORM_ERROR_LAYOUT,
     {"dx [", "overlaps rstd", "two tensors"},
     [](R& r) { r.rstd->address = r.dx->address; }},
    {"five dimensions",
     FASTNORM_ERROR_UNSUPPORTED,
     {"4 leading dimensions remain", "nearest"},
     [](R& r) {
       r = backward_request({2, 2, 2, 2, 64}, kBF16);
       r.x->strides = {5000, 1500, 400, 100, 1};
     }},
    {"x on a GPU",
     FASTNORM_ERROR_DEVICE,
     {"x is on device"},
     [](R& r) { r.x->device_type = FASTNORM_DEVICE_CUDA; }},
    {"null data",
     FASTNORM_ERROR_ARGUMENT,
     {"dbias.data is NULL"},
     [](R& r) { r.dbias->address = 0; }},
    {"stage_reserved 1",
     FASTNORM_ERROR_ARGUMENT,
     {"stage_reserved is 1"},
     [](R& r) { r.args.stage_reserved = 1; }},
    {"group_size negative",
     FASTNORM_ERROR_ARGUMENT,
     {"group_size is -1", "a divisor of n"},
     [](R& r) { r.args.group_size = -1; }},
    {"group_size 48",
     FASTNORM_ERROR_SHAPE,
     {"group_size is 48", "n is 64", "a divisor of n"},
     [](R& r) { r.args.group_size = 48; }},
    {"gate_act without gate",
     FASTNORM_ERROR_ARGUMENT,
     {"gate_act is 1", "gate is NULL"},
     [](R& r) { r.args.gate_act = FASTNORM_ACTIVATION_SILU; }},
    {"gate_position without gate",
     FASTNORM_ERROR_ARGUMENT,
     {"gate_position is 1", "gate is NULL"},
     [](R& r) { r.args.gate_position = FASTNORM_GATE_BEFORE_NORM; }},
    {"gate_source without gate",
     FASTNORM_ERROR_ARGUMENT,
     {"gate_source is 1", "gate is NULL"},
     [](R& r) { r.args.gate_source = FASTNORM_GATE_FROM_ROUNDED; }},
    {"dgate without gate",
     FASTNORM_ERROR_ARGUMENT,
     {"dgate is given", "gate is NULL"},
     [](R& r) { r.dgate = r.dx; }},
};

// Of a call with a gate.
const BadCall kBadGates[] = {
    {"gate_act 4",
     FASTNORM_ERROR_ARGUMENT,
     {"gate_act is 4", "0 to 3"},
     [](R& r) { set(r.args.gate_act, 4); }},
    {"gate_position 2",
     FASTNORM_ERROR_ARGUMENT,
     {"gate_position is 2"},
     [](R& r) { set(r.args.gate_position, 2); }},
    {"gate_source 2",
     FASTNORM_ERROR_ARGUMENT,
     {"gate_source is 2"},
     [](R& r) { set(r.args.gate_source, 2); }},
    {"rounded before the norm",
     FASTNORM_ERROR_ARGUMENT,
     {"gate_source is FASTNORM_GATE_FROM_ROUNDED", "gate_position is 1"},
     [](R& r) {
       r.dresidual_in.reset();
       r.args.gate_position = FASTNORM_GATE_BEFORE_NORM;
       r.args.gate_source = FASTNORM_GATE_FROM_ROUNDED;
     }},
    {"dresidual_in behind a gate before the norm",
     FASTNORM_ERROR_UNSUPPORTED,
     {"gate_position is FASTNORM_GATE_BEFORE_NORM", "dresidual_in is given", "nearest"},
     [](R& r) { r.args.gate_position = FASTNORM_GATE_BEFORE_NORM; }},
    {"dresidual behind a gate before the norm",
     FASTNORM_ERROR_UNSUPPORTED,
     {"dresidual is given", "nearest"},
     [](R& r) {
       r.dresidual_in.reset();
       r.dresidual = backward_tensor(7, {4, 3, 64}, kF32);
       r.args.gate_position = FASTNORM_GATE_BEFORE_NORM;
     }},
    {"gate f16",
     FASTNORM_ERROR_DTYPE,
     {"gate.dtype is f16", "bf16, or f32"},
     [](R& r) { r.gate->dtype = kF16; }},
    {"dgate f16",
     FASTNORM_ERROR_DTYPE,
     {"dgate.dtype is f16", "bf16, or f32"},
     [](R& r) { r.dgate->dtype = kF16; }},
    {"gate of another shape",
     FASTNORM_ERROR_SHAPE,
     {"gate.shape is [4, 3, 32]"},
     [](R& r) {
       r.gate->shape = {4, 3, 32};
     }},
    {"bias of another shape",
     FASTNORM_ERROR_SHAPE,
     {"bias.shape is [32]"},
     [](R& r) { r.bias->shape = {32}; }},
    {"dgate is dx",
     FASTNORM_ERROR_LAYOUT,
     {"dgate [", "overlaps dx", "two tensors"},
     [](R& r) { r.dgate->address = r.dx->address; }},
    {"dgate is bias",
     FASTNORM_ERROR_LAYOUT,
     {"dgate [", "overlaps bias"},
     [](R& r) { r.bias->address = r.dgate->address; }},
    {"dgate over the second half of gate",
     FASTNORM_ERROR_LAYOUT,
     {"dgate [", "overlaps gate"},
     [](R& r) { r.dgate->address = r.gate->address + 64; }},
    {"rstd without groups",
     FASTNORM_ERROR_SHAPE,
     {"mean.shape is [4, 3]"},
     [](R& r) { r.args.group_size = 16; }},
};

// The branch as it is, without a norm.
void without_norm(R& r) {
  r.branch_weight.reset(), r.branch_bias.reset(), r.branch_mean.reset(), r.branch_rstd.reset();
  r.dbranch_weight.reset(), r.dbranch_bias.reset();
  r.args.branch_norm = 0, r.args.branch_kind = FASTNORM_NORM_RMS, r.args.branch_eps = 0;
}

const BadCall kBadBranches[] = {
    {"branch_norm 2",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_norm is 2", "0 or 1"},
     [](R& r) { r.args.branch_norm = 2; }},
    {"branch_rounded -1",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_rounded is -1", "0 or 1"},
     [](R& r) { r.args.branch_rounded = -1; }},
    {"branch_kind 2",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_kind is 2"},
     [](R& r) { set(r.args.branch_kind, 2); }},
    {"branch_rounding 3",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_rounding is 3", "0 to 2"},
     [](R& r) { set(r.args.branch_rounding, 3); }},
    {"branch_eps NaN",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_eps is nan"},
     [](R& r) { r.args.branch_eps = kNan; }},
    {"branch_weight_offset NaN",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_weight_offset is nan"},
     [](R& r) { r.args.branch_weight_offset = kNan; }},
    {"branch_weight_offset alone",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_weight_offset is 1", "branch_weight is NULL"},
     [](R& r) {
       r.branch_weight.reset(), r.dbranch_weight.reset(), r.args.branch_weight_offset = 1;
     }},
    {"residual_gate_act 4",
     FASTNORM_ERROR_ARGUMENT,
     {"residual_gate_act is 4"},
     [](R& r) { set(r.args.residual_gate_act, 4); }},
    {"residual_gate_act alone",
     FASTNORM_ERROR_ARGUMENT,
     {"residual_gate_act is 3", "residual_gate is NULL"},
     [](R& r) { r.residual_gate.reset(), r.dresidual_gate.reset(); }},
    {"alpha NaN", FASTNORM_ERROR_ARGUMENT, {"alpha is nan"}, [](R& r) { r.args.alpha = kNan; }},
    {"branch_eps without a norm",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_eps is", "branch_norm is 0"},
     [](R& r) { r.args.branch_norm = 0, r.args.branch_kind = FASTNORM_NORM_RMS; }},
    {"branch_weight without a norm",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_weight is given", "branch_norm is 0"},
     [](R& r) {
       r.args.branch_norm = 0, r.args.branch_kind = FASTNORM_NORM_RMS, r.args.branch_eps = 0;
     }},
    {"no branch for its norm",
     FASTNORM_ERROR_ARGUMENT,
     {"branch is NULL", "branch_norm is 1"},
     [](R& r) { r.branch.reset(); }},
    {"no branch for dresidual_gate",
     FASTNORM_ERROR_ARGUMENT,
     {"branch is NULL", "dresidual_gate is given"},
     [](R& r) {
       without_norm(r);
       r.branch.reset();
     }},
    {"dresidual_gate alone",
     FASTNORM_ERROR_ARGUMENT,
     {"dresidual_gate is given", "residual_gate is NULL"},
     [](R& r) {
       r.residual_gate.reset(), r.args.residual_gate_act = FASTNORM_ACTIVATION_IDENTITY;
     }},
    {"dbranch_weight alone",
     FASTNORM_ERROR_ARGUMENT,
     {"dbranch_weight is given", "branch_weight is NULL"},
     [](R& r) { r.branch_weight.reset(); }},
    {"branch_mean of RMS",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_mean is given", "branch_kind is FASTNORM_NORM_RMS"},
     [](R& r) { r.args.branch_kind = FASTNORM_NORM_RMS; }},
    {"branch_rstd alone",
     FASTNORM_ERROR_ARGUMENT,
     {"branch_rstd is given", "branch_mean is NULL"},
     [](R& r) { r.branch_mean.reset(); }},
    {"a gate beside a branch",
     FASTNORM_ERROR_UNSUPPORTED,
     {"gate is given and branch is given", "nearest: no gate"},
     [](R& r) {
       r.gate = backward_tensor(10, {4, 3, 64}, kBF16);
     }},
    {"groups beside a branch",
     FASTNORM_ERROR_UNSUPPORTED,
     {"group_size is 16 and branch is given", "nearest"},
     [](R& r) { r.args.group_size = 16; }},
    {"accumulate without dbranch_weight",
     FASTNORM_ERROR_ARGUMENT,
     {"flags is 0x20", "dbranch_weight is NULL", "DBRANCH_WEIGHT (32)"},
     [](R& r) { r.dbranch_weight.reset(), r.args.flags = 32; }},
    {"accumulate without dbranch_bias",
     FASTNORM_ERROR_ARGUMENT,
     {"flags is 0x40", "dbranch_bias is NULL", "DBRANCH_BIAS (64)"},
     [](R& r) { r.dbranch_bias.reset(), r.args.flags = 64; }},
    {"accumulate without dresidual_gate",
     FASTNORM_ERROR_ARGUMENT,
     {"flags is 0x80", "dresidual_gate is NULL", "DRESIDUAL_GATE (128)"},
     [](R& r) { r.dresidual_gate.reset(), r.args.flags = 128; }},
    {"dy is not the branch's",
     FASTNORM_ERROR_DTYPE,
     {"dy.dtype is bf16", "required: f16, or f32, as branch is f16"},
     [](R& r) { r.branch->dtype = kF16; }},
    {"dbranch f32",
     FASTNORM_ERROR_DTYPE,
     {"dbranch.dtype is f32", "bf16, as T is"},
     [](R& r) { r.dbranch->dtype = kF32; }},
    {"residual_gate f16",
     FASTNORM_ERROR_DTYPE,
     {"residual_gate.dtype is f16", "bf16, or f32"},
     [](R& r) { r.residual_gate->dtype = kF16; }},
    {"dresidual_gate f16",
     FASTNORM_ERROR_DTYPE,
     {"dresidual_gate.dtype is f16", "bf16, or f32, as residual_gate is bf16"},
     [](R& r) { r.dresidual_gate->dtype = kF16; }},
    {"dbranch_weight f16",
     FASTNORM_ERROR_DTYPE,
     {"dbranch_weight.dtype is f16", "as branch_weight is bf16"},
     [](R& r) { r.dbranch_weight->dtype = kF16; }},
    {"branch_rstd bf16",
     FASTNORM_ERROR_DTYPE,
     {"branch_rstd.dtype is bf16", "f32"},
     [](R& r) { r.branch_rstd->dtype = kBF16; }},
    {"sum_scale of two",
     FASTNORM_ERROR_SHAPE,
     {"sum_scale.shape is [2]"},
     [](R& r) { r.sum_scale->shape = {2}; }},
    {"branch of another shape",
     FASTNORM_ERROR_SHAPE,
     {"branch.shape is [4, 3, 32]"},
     [](R& r) { r.branch->shape.back() = 32; }},
    {"residual_gate of one column",
     FASTNORM_ERROR_SHAPE,
     {"residual_gate.shape is [1]"},
     [](R& r) { r.residual_gate->shape = {1}; }},
    {"dresidual_gate of another shape",
     FASTNORM_ERROR_SHAPE,
     {"dresidual_gate.shape is [1, 64]", "residual_gate's, [64]"},
     [](R& r) { r.dresidual_gate->shape.insert(r.dresidual_gate->shape.begin(), 1); }},
    {"one sum for two values of the gate",
     FASTNORM_ERROR_LAYOUT,
     {"dresidual_gate.strides", "dimension 1"},
     [](R& r) {
       r.residual_gate->shape = r.dresidual_gate->shape = {3, 64};
       r.dresidual_gate->strides = {0, 1};
     }},
    {"dbranch is x",
     FASTNORM_ERROR_LAYOUT,
     {"dbranch [", "overlaps x", "two tensors"},
     [](R& r) { r.dbranch->address = r.x->address; }},
    {"dx is branch",
     FASTNORM_ERROR_LAYOUT,
     {"dx [", "overlaps branch", "two tensors"},
     [](R& r) { r.dx->address = r.branch->address; }},
    {"dbranch over the second half of branch",
     FASTNORM_ERROR_LAYOUT,
     {"dbranch [", "overlaps branch", "the same view"},
     [](R& r) { r.dbranch->address = r.branch->address + 64; }},
    {"dresidual_gate is sum_scale",
     FASTNORM_ERROR_LAYOUT,
     {"dresidual_gate [", "overlaps sum_scale"},
     [](R& r) { r.sum_scale->address = r.dresidual_gate->address; }},
    {"dbranch_bias is branch_bias",
     FASTNORM_ERROR_LAYOUT,
     {"dbranch_bias [", "overlaps branch_bias"},
     [](R& r) { r.dbranch_bias->address = r.branch_bias->address; }},
};

// 4 batches of 3 heads.
R good_request() { return backward_request({4, 3, 64}, kBF16); }

// Each of `bad` spoils what `make` gives.
template <class Make>
void expect_refused(std::span<const BadCall> all, const Make& make) {
  for (const BadCall& bad : all) {
    R r = make();
    bad.spoil(r);
    NormBackwardDesc d;
    Error error;
    EXPECT_EQ(r.check(&d, error), bad.status) << bad.name << ": " << error.text;
    for (const char* text : bad.texts) {
      if (text == nullptr) continue;
      EXPECT_NE(std::strstr(error.text, text), nullptr)
          << bad.name << ": \"" << error.text << "\" lacks \"" << text << "\"";
    }
  }
}

TEST(NormBackwardCheck, EveryRequirement) { expect_refused(kBadCalls, good_request); }

TEST(NormBackwardCheck, EveryRequirementOfAGate) {
  expect_refused(kBadGates, [] { return gated_backward_request({4, 3, 64}, kBF16); });
}

TEST(NormBackwardCheck, EveryRequirementOfABranch) {
  expect_refused(kBadBranches, [] { return branch_backward_request({4, 3, 64}, kBF16); });
}

NormBackwardDesc described(const R& r) {
  NormBackwardDesc d;
  Error error;
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  return d;
}

TEST(NormBackwardCheck, LeastCall) {
  R r;
  r.args.struct_size = sizeof r.args;
  r.dy = backward_tensor(0, {5}, kF32);
  r.x = backward_tensor(1, {5}, kF32);
  r.dx = backward_tensor(2, {5}, kF32);
  const NormBackwardParts parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 1);
  EXPECT_EQ(parts.at[0].rows, 1);
  EXPECT_EQ(parts.at[0].groups, 1);
  EXPECT_FALSE(parts.at[0].has_sums());
}

TEST(NormBackwardCheck, GroupsAreRows) {
  R r = gated_backward_request({4, 3, 64}, kBF16);
  r.args.group_size = 16;
  r.mean = backward_tensor(3, {4, 3, 4}, kF32);
  r.rstd = backward_tensor(4, {4, 3, 4}, kF32);
  // weight, dweight and bias [64] have a row for each group, dbias [16] is shared.
  r.dbias = backward_tensor(9, {16}, kBF16);
  const NormBackwardDesc whole = described(r);
  EXPECT_EQ(whole.n, 16);
  EXPECT_EQ(whole.rows, 48);
  EXPECT_EQ(whole.inv_n, 1.0f / 16);
  const NormBackwardParts parts = norm_backward_parts(whole);
  ASSERT_EQ(parts.count, 2);
  EXPECT_EQ(parts.at[0].groups, 1);
  EXPECT_TRUE(parts.at[0].gate.present);
  EXPECT_FALSE(parts.at[0].gate.dgate);
  EXPECT_EQ(parts.at[1].groups, 4);
  EXPECT_EQ(parts.at[1].shared_rows, 12);
  const int group = parts.at[1].shared_rank;
  EXPECT_EQ(parts.at[1].weight.stride_bytes[group], 32);
  EXPECT_EQ(parts.at[1].gate.bias.stride_bytes[group], 32);
  EXPECT_EQ(parts.at[1].gate.gate.stride_bytes[group], 32);
  EXPECT_EQ(parts.at[1].rstd.stride_bytes[group], 4);
  EXPECT_EQ(parts.at[1].rstd.stride_bytes[0], 16);
}

TEST(NormBackwardCheck, GroupsOfRowsOfStrideZero) {
  R r = gated_backward_request({4, 64}, kBF16);
  r.args.group_size = 32;
  r.mean.reset(), r.rstd.reset();
  r.dy->strides = {0, 0};
  const NormBackwardDesc d = described(r);
  EXPECT_EQ(d.dy_element_bytes, 0);
  for (const int64_t stride : d.dy.stride_bytes) EXPECT_EQ(stride, 0);
}

TEST(NormBackwardCheck, BiasOfTheForwardIsReadForDgateAlone) {
  R r = gated_backward_request({4, 3, 64}, kBF16);
  EXPECT_TRUE(described(r).gate.bias);
  r.dgate.reset();
  EXPECT_FALSE(described(r).gate.bias);
  r = gated_backward_request({4, 3, 64}, kBF16);
  r.dresidual_in.reset();
  r.args.gate_position = FASTNORM_GATE_BEFORE_NORM;
  EXPECT_FALSE(described(r).gate.bias);
}

TEST(NormBackwardCheck, DgateInPlace) {
  for (const auto member : {&R::dy, &R::x, &R::gate, &R::dresidual_in}) {
    R r = gated_backward_request({4, 3, 64}, kBF16);
    r.dgate->address = (r.*member)->address;
    EXPECT_TRUE(described(r).in_place);
  }
}

TEST(NormBackwardCheck, DgateAlone) {
  R r = gated_backward_request({4, 3, 64}, kBF16);
  r.dx.reset(), r.dweight.reset(), r.dbias.reset();
  const NormBackwardParts parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 1);
  EXPECT_TRUE(parts.at[0].writes_rows());
  EXPECT_TRUE(parts.at[0].needs_statistics());
}

TEST(NormBackwardCheck, BranchAsDescribed) {
  R r = branch_backward_request({4, 3, 64}, kBF16);
  r.args.branch_rounding = FASTNORM_ROUND_EVERY_STEP;
  const NormBackwardDesc d = described(r);
  EXPECT_TRUE(d.branch.present && d.branch.normalise && d.branch.round_result);
  EXPECT_TRUE(d.branch.branch && d.branch.bias && d.branch.rstd && d.branch.mean);
  EXPECT_EQ(d.branch.alpha, 0.5f);
  EXPECT_EQ(d.branch.kind, FASTNORM_NORM_LAYER);
  EXPECT_EQ(d.outer_rank, 1);
  const NormBackwardParts parts = norm_backward_parts(d);
  ASSERT_EQ(parts.count, 1);
  EXPECT_EQ(count_sums(parts.at[0]), 5);
  EXPECT_EQ(parts.at[0].shared_rows, 12);
}

// What no output needs is not read, and without such an output the call is a plain one.
TEST(NormBackwardCheck, UnusedTensorsOfABranch) {
  R r = branch_backward_request({4, 3, 64}, kBF16);
  r.dresidual_gate.reset();
  EXPECT_FALSE(described(r).branch.bias);
  EXPECT_TRUE(described(r).branch.rstd);
  r.dbranch.reset(), r.dbranch_weight.reset();
  NormBackwardDesc d = described(r);
  EXPECT_FALSE(d.branch.branch || d.branch.rstd || d.branch.mean || d.branch.weight);
  EXPECT_TRUE(d.branch.residual_gate && d.branch.dbias);
  EXPECT_FALSE(d.branch.needs_norm());
  r.dbranch_bias.reset();
  d = described(r);
  EXPECT_FALSE(d.branch.residual_gate);
  EXPECT_TRUE(d.branch.present) << "sum_scale";
  r.sum_scale.reset();
  EXPECT_FALSE(described(r).branch.present);
}

TEST(NormBackwardCheck, TFollowsFromTheBranch) {
  R r = branch_backward_request({4, 3, 64}, kBF16);
  r.x->dtype = r.dx->dtype = r.dresidual_in->dtype = kF32;
  r.dresidual = backward_tensor(7, {4, 3, 64}, kF16);
  NormBackwardDesc d = described(r);
  EXPECT_EQ(d.dtype, Dtype::kBF16);
  EXPECT_EQ(d.dx.dtype, Dtype::kF32);
  without_norm(r);
  r.branch.reset(), r.dresidual_gate.reset();
  EXPECT_EQ(described(r).dtype, Dtype::kBF16) << "dbranch's";
}

// Each arrangement of sums has a part of its own. The last one writes rows, and only parts with
// sums of the branch have one.
TEST(NormBackwardCheck, PartsOfABranch) {
  R r = branch_backward_request({4, 3, 64}, kBF16);
  r.residual_gate->shape = r.dresidual_gate->shape = {4, 1, 64};
  r.dbranch_bias->shape = {3, 64};
  r.dbias->shape = {3, 64};
  NormBackwardParts parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 3);
  EXPECT_EQ(parts.at[0].groups, 3);
  EXPECT_TRUE(parts.at[0].dbias && parts.at[0].branch.dbias);
  EXPECT_EQ(count_sums(parts.at[0]), 2);
  EXPECT_FALSE(parts.at[0].writes_rows() || parts.at[0].in_place);
  EXPECT_TRUE(parts.at[0].dresidual_in) << "du needs it";
  EXPECT_EQ(parts.at[1].groups, 4);
  EXPECT_TRUE(parts.at[1].branch.dresidual_gate);
  EXPECT_EQ(count_sums(parts.at[1]), 1);
  EXPECT_EQ(parts.at[2].groups, 1);
  EXPECT_TRUE(parts.at[2].dweight && parts.at[2].branch.dweight && parts.at[2].dx);
  EXPECT_TRUE(parts.at[2].branch.dbranch);
  r.dbranch_bias.reset();
  parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 3);
  EXPECT_FALSE(parts.at[0].branch.present) << "dbias alone";
  EXPECT_FALSE(parts.at[0].dresidual_in || parts.at[0].weight);
}

TEST(NormBackwardCheck, DbranchInPlace) {
  R r = branch_backward_request({4, 3, 64}, kBF16);
  r.dbranch->address = r.branch->address;
  r.dx->address = r.dy->address;
  EXPECT_TRUE(described(r).in_place);
}

TEST(NormBackwardCheck, CompactDimensionsJoin) {
  const NormBackwardDesc d = described(good_request());
  EXPECT_EQ(d.outer_rank, 1);
  EXPECT_EQ(d.outer[0], 12);
  EXPECT_EQ(d.x.stride_bytes[0], 128);
  EXPECT_FALSE(d.in_place);
  EXPECT_EQ(d.dy_element_bytes, 2);
}

TEST(NormBackwardCheck, EightDimensionsJoin) {
  const NormBackwardDesc d = described(backward_request({2, 3, 1, 2, 2, 1, 5, 16}, kF16));
  EXPECT_EQ(d.rows, 120);
  EXPECT_EQ(d.outer_rank, 1);
}

TEST(NormBackwardCheck, TFollowsFromDxElseDyElseX) {
  R r = good_request();
  r.x->dtype = kF32;  // a stored residual_out
  EXPECT_EQ(described(r).dtype, Dtype::kBF16);
  r.dx.reset();
  EXPECT_EQ(described(r).dtype, Dtype::kBF16);
  r.dy->dtype = kF32;
  EXPECT_EQ(described(r).dtype, Dtype::kF32);
  r.x->dtype = kF16;
  EXPECT_EQ(described(r).dtype, Dtype::kF16);
}

TEST(NormBackwardCheck, InPlace) {
  for (const auto member : {&R::dy, &R::x, &R::dresidual_in}) {
    R r = good_request();
    r.dx->address = (r.*member)->address;
    EXPECT_TRUE(described(r).in_place);
  }
  R r = good_request();
  r.dresidual_in->dtype = kF32;
  r.dresidual = r.dresidual_in;
  EXPECT_TRUE(described(r).in_place);
}

TEST(NormBackwardCheck, InterleavedViews) {
  R r = good_request();  // dx in the gaps between rows of dy
  r.dy->strides = r.dx->strides = {384, 128, 1};
  r.dx->address = r.dy->address;
  r.dx->byte_offset = 128;
  EXPECT_FALSE(described(r).in_place);
}

TEST(NormBackwardCheck, ExpandedDy) {
  R r = good_request();
  r.dy->strides = {0, 0, 0};
  const NormBackwardDesc d = described(r);
  EXPECT_EQ(d.dy_element_bytes, 0);
  EXPECT_EQ(d.dy.stride_bytes[0], 0);
  r = backward_request({4, 1}, kBF16);
  r.dy->strides = {0, 0};
  EXPECT_EQ(described(r).dy_element_bytes, 2) << "a row of one element has any stride";
}

TEST(NormBackwardParts, RowsOfAHead) {
  R r = good_request();
  r.weight->shape = r.dweight->shape = r.dbias->shape = {3, 64};
  const NormBackwardParts parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 1);
  const NormBackwardDesc& d = parts.at[0];
  EXPECT_EQ(d.shared_rows, 4);
  EXPECT_EQ(d.groups, 3);
  EXPECT_EQ(d.shared_rank, 1);
  EXPECT_EQ(d.outer[0], 4);
  EXPECT_EQ(d.outer[1], 3);
  EXPECT_EQ(d.x.stride_bytes[0], 3 * 128);
  EXPECT_EQ(d.x.stride_bytes[1], 128);
  EXPECT_EQ(d.dweight.stride_bytes[0], 0);
  EXPECT_EQ(d.dweight.stride_bytes[1], 128);
}

TEST(NormBackwardParts, BatchesKeepTheirRowsInOrder) {
  R r = good_request();
  r.weight->shape = r.dweight->shape = {4, 1, 64};
  r.dbias.reset();
  const NormBackwardParts parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 1);
  EXPECT_EQ(parts.at[0].shared_rows, 3);
  EXPECT_EQ(parts.at[0].groups, 4);
  EXPECT_EQ(parts.at[0].x.stride_bytes[0], 128);
}

TEST(NormBackwardParts, BiasOfOtherGroupsComesFirstAndAlone) {
  R r = good_request();
  r.weight->shape = r.dweight->shape = {3, 64};
  r.dx->address = r.dy->address;
  const NormBackwardParts parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 2);
  const NormBackwardDesc &bias = parts.at[0], &main = parts.at[1];
  EXPECT_TRUE(bias.dbias && !bias.dweight && !bias.dx && !bias.in_place);
  EXPECT_EQ(bias.shared_rows, 12);
  EXPECT_EQ(bias.groups, 1);
  EXPECT_TRUE(main.dweight && main.dx && !main.dbias && main.in_place);
  EXPECT_EQ(main.groups, 3);
}

TEST(NormBackwardParts, NoRows) {
  R r = backward_request({0, 3, 64}, kBF16);
  r.weight->shape = r.dweight->shape = {3, 64};
  r.args.flags = FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS;
  const NormBackwardParts parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 1);
  EXPECT_TRUE(parts.at[0].dweight && !parts.at[0].dbias && !parts.at[0].dx);
  EXPECT_EQ(parts.at[0].shared_rows, 0);
  EXPECT_EQ(parts.at[0].groups, 3);
  r.args.flags |= FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT;
  EXPECT_EQ(norm_backward_parts(described(r)).count, 0);
}

TEST(NormBackwardParts, DxAloneHasNoSums) {
  R r = good_request();
  r.dweight.reset();
  r.dbias.reset();
  const NormBackwardParts parts = norm_backward_parts(described(r));
  ASSERT_EQ(parts.count, 1);
  EXPECT_FALSE(parts.at[0].has_sums());
  EXPECT_TRUE(parts.at[0].weight);
}

TEST(NormBackwardMany, PartsMustNotMeet) {
  const NormBackwardDesc a = described(good_request());
  R other = good_request();
  for (const auto member : {&R::dx, &R::dweight, &R::dbias})
    (other.*member)->byte_offset = uint64_t{1} << 40;
  Error error;
  EXPECT_EQ(check_norm_backward_many(std::vector{a, described(other)}, "args", error), FASTNORM_OK)
      << error.text;  // inputs may be the same
  other.dx->byte_offset = 0;
  EXPECT_EQ(check_norm_backward_many(std::vector{a, described(other)}, "args", error),
            FASTNORM_ERROR_LAYOUT);
  EXPECT_NE(std::strstr(error.text, "args[0].dx"), nullptr) << error.text;
  EXPECT_NE(std::strstr(error.text, "args[1].dx"), nullptr) << error.text;
}

}  // namespace
}  // namespace fastnorm::test
