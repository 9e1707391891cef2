// Every requirement of the public headers, broken once: status, and a text that names the argument, its value and what is required.
#include "core/check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "unit/norm_request.h"

namespace fastnorm::test {
namespace {

constexpr int64_t kHeads = 3, kRows = 2, kN = 16;

// A LAYER call with every tensor.
Request full_request() {
  Request r = simple_request({kRows, kHeads, kN}, FASTNORM_DTYPE_BF16, true, FASTNORM_NORM_LAYER);
  RequestTensor statistic;
  statistic.shape = {kRows, kHeads};
  statistic.address = address_of(6);
  r.mean = statistic;
  statistic.address = address_of(7);
  r.rstd = statistic;
  return r;
}

struct BadCall {
  const char* name;
  fastnorm_status status;
  const char* texts[3];  // those that are not null are in the message
  void (*spoil)(Request&);
};

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();
const fastnorm_tensor kAnyTensor = {};

// clang-format off
const BadCall kBadCalls[] = {
    // scalars
    {"kind", FASTNORM_ERROR_ARGUMENT, {"kind", "is 2", "required"}, [](Request& r) { r.args.kind = static_cast<fastnorm_norm_kind>(2); }},
    {"negative kind", FASTNORM_ERROR_ARGUMENT, {"kind", "-1"}, [](Request& r) { const int v = -1; std::memcpy(&r.args.kind, &v, sizeof v); }},
    {"eps negative", FASTNORM_ERROR_ARGUMENT, {"eps", "-1", ">= 0"}, [](Request& r) { r.args.eps = -1; }},
    {"eps NaN", FASTNORM_ERROR_ARGUMENT, {"eps", "nan"}, [](Request& r) { r.args.eps = kNan; }},
    {"eps Inf", FASTNORM_ERROR_ARGUMENT, {"eps", "inf", "finite"}, [](Request& r) { r.args.eps = kInf; }},
    {"offset Inf", FASTNORM_ERROR_ARGUMENT, {"weight_offset", "inf", "finite"}, [](Request& r) { r.args.weight_offset = kInf; }},
    {"offset NaN", FASTNORM_ERROR_ARGUMENT, {"weight_offset", "nan"}, [](Request& r) { r.args.weight_offset = kNan; }},
    {"offset without weight", FASTNORM_ERROR_ARGUMENT, {"weight_offset", "is 1", "weight is NULL"}, [](Request& r) { r.args.weight_offset = 1; r.weight.reset(); }},
    {"rounding", FASTNORM_ERROR_ARGUMENT, {"rounding", "is 3", "0 to 2"}, [](Request& r) { const int v = 3; std::memcpy(&r.args.rounding, &v, sizeof v); }},
    {"residual_rounding", FASTNORM_ERROR_ARGUMENT, {"residual_rounding", "is 3", "0 to 2"}, [](Request& r) { const int v = 3; std::memcpy(&r.args.residual_rounding, &v, sizeof v); }},
    {"reserved", FASTNORM_ERROR_ARGUMENT, {"reserved", "is 5", "required: 0"}, [](Request& r) { r.args.reserved = 5; }},
    {"x NULL", FASTNORM_ERROR_ARGUMENT, {"x is NULL"}, [](Request& r) { r.x.reset(); }},
    {"y NULL", FASTNORM_ERROR_ARGUMENT, {"y is NULL"}, [](Request& r) { r.y.reset(); }},
    {"residual_out alone", FASTNORM_ERROR_ARGUMENT, {"residual_out", "residual is NULL"}, [](Request& r) { r.residual.reset(); }},
    {"mean of RMS", FASTNORM_ERROR_ARGUMENT, {"mean", "FASTNORM_NORM_LAYER"}, [](Request& r) { r.args.kind = FASTNORM_NORM_RMS; }},
    {"struct_size 0", FASTNORM_ERROR_ARGUMENT, {"args.struct_size", "is 0"}, [](Request& r) { r.args.struct_size = 0; }},
    {"struct_size garbage", FASTNORM_ERROR_ARGUMENT, {"args.struct_size", "at most"}, [](Request& r) { r.args.struct_size = SIZE_MAX; }},

    // fields of later versions
    {"flags", FASTNORM_ERROR_UNSUPPORTED, {"flags", "0x1", "nearest"}, [](Request& r) { r.args.flags = FASTNORM_NORM_PDL_WAIT; }},
    {"quant_scheme", FASTNORM_ERROR_UNSUPPORTED, {"quant_scheme", "is 2", "nearest"}, [](Request& r) { r.args.quant_scheme = FASTNORM_QUANT_PER_ROW; }},
    {"quantized", FASTNORM_ERROR_UNSUPPORTED, {"quantized", "nearest"}, [](Request& r) { r.args.quantized = &kAnyTensor; }},
    {"scale", FASTNORM_ERROR_UNSUPPORTED, {"scale", "nearest"}, [](Request& r) { r.args.scale = &kAnyTensor; }},
    {"global_scale", FASTNORM_ERROR_UNSUPPORTED, {"global_scale", "nearest"}, [](Request& r) { r.args.global_scale = &kAnyTensor; }},
    {"amax", FASTNORM_ERROR_UNSUPPORTED, {"amax", "nearest"}, [](Request& r) { r.args.amax = &kAnyTensor; }},
    {"quant_block_size", FASTNORM_ERROR_UNSUPPORTED, {"quant_block_size", "64"}, [](Request& r) { r.args.quant_block_size = 64; }},
    {"quant_source", FASTNORM_ERROR_UNSUPPORTED, {"quant_source", "is 1"}, [](Request& r) { r.args.quant_source = FASTNORM_QUANT_FROM_ROUNDED; }},
    {"scale_layout", FASTNORM_ERROR_UNSUPPORTED, {"scale_layout", "is 2"}, [](Request& r) { r.args.scale_layout = FASTNORM_SCALE_SWIZZLED_128X4; }},
    {"scale_pow2", FASTNORM_ERROR_UNSUPPORTED, {"scale_pow2", "is 1"}, [](Request& r) { r.args.scale_pow2 = 1; }},
    {"amax_floor", FASTNORM_ERROR_UNSUPPORTED, {"amax_floor", "0.5"}, [](Request& r) { r.args.amax_floor = 0.5f; }},
    {"clamp", FASTNORM_ERROR_UNSUPPORTED, {"clamp", "is 3"}, [](Request& r) { r.args.clamp = 3; }},

    // dtypes
    {"x i8", FASTNORM_ERROR_DTYPE, {"x.dtype", "i8", "f32, f16 or bf16"}, [](Request& r) { r.x->dtype = FASTNORM_DTYPE_I8; }},
    {"x of two lanes", FASTNORM_ERROR_DTYPE, {"x.dtype", "lanes 2"}, [](Request& r) { r.x->dtype = static_cast<fastnorm_dtype_id>(0x00021004); }},
    {"x f64", FASTNORM_ERROR_DTYPE, {"x.dtype", "bits 64"}, [](Request& r) { r.x->dtype = static_cast<fastnorm_dtype_id>(0x00014002); }},
    {"y f32", FASTNORM_ERROR_DTYPE, {"y.dtype", "f32", "bf16"}, [](Request& r) { r.y->dtype = FASTNORM_DTYPE_F32; }},
    {"residual f16", FASTNORM_ERROR_DTYPE, {"residual.dtype", "f16", "bf16, or f32"}, [](Request& r) { r.residual->dtype = FASTNORM_DTYPE_F16; }},
    {"residual_out f16", FASTNORM_ERROR_DTYPE, {"residual_out.dtype", "f16", "bf16, or f32"}, [](Request& r) { r.residual_out->dtype = FASTNORM_DTYPE_F16; }},
    {"weight f16", FASTNORM_ERROR_DTYPE, {"weight.dtype", "f16", "bf16, or f32"}, [](Request& r) { r.weight->dtype = FASTNORM_DTYPE_F16; }},
    {"bias i32", FASTNORM_ERROR_DTYPE, {"bias.dtype", "i32"}, [](Request& r) { r.bias->dtype = FASTNORM_DTYPE_I32; }},
    {"mean bf16", FASTNORM_ERROR_DTYPE, {"mean.dtype", "bf16", "f32"}, [](Request& r) { r.mean->dtype = FASTNORM_DTYPE_BF16; }},
    {"rstd f16", FASTNORM_ERROR_DTYPE, {"rstd.dtype", "f16", "f32"}, [](Request& r) { r.rstd->dtype = FASTNORM_DTYPE_F16; }},

    // shapes
    {"x rank 0", FASTNORM_ERROR_SHAPE, {"x.ndim", "is 0", "1 to 4"}, [](Request& r) { r.x->ndim = 0; }},
    {"x rank 5", FASTNORM_ERROR_SHAPE, {"x.ndim", "is 5", "1 to 4"}, [](Request& r) { r.x->shape = {1, 1, 1, 1, kN}; }},
    {"x rank negative", FASTNORM_ERROR_SHAPE, {"x.ndim", "-1"}, [](Request& r) { r.x->ndim = -1; }},
    {"x without shape", FASTNORM_ERROR_ARGUMENT, {"x.shape is NULL"}, [](Request& r) { r.x->null_shape = true; }},
    {"n 0", FASTNORM_ERROR_SHAPE, {"x.shape", "n is 0", "1 to"}, [](Request& r) { r.x->shape.back() = 0; }},
    {"n past 2^32", FASTNORM_ERROR_SHAPE, {"x.shape", "4294967297"}, [](Request& r) { r.x->shape = {1, 1, (int64_t{1} << 32) + 1}; }},
    {"negative extent", FASTNORM_ERROR_SHAPE, {"x.shape", "[-2, 3, 16]", "extents >= 0"}, [](Request& r) { r.x->shape[0] = -2; }},
    {"too many elements", FASTNORM_ERROR_SHAPE, {"x.shape", "2^63"}, [](Request& r) { r.x->shape = {int64_t{1} << 40, int64_t{1} << 40, kN}; }},
    {"y of another shape", FASTNORM_ERROR_SHAPE, {"y.shape", "[2, 3, 17]", "[2, 3, 16]"}, [](Request& r) { r.y->shape[2] = 17; }},
    {"y of another rank", FASTNORM_ERROR_SHAPE, {"y.shape", "[6, 16]"}, [](Request& r) { r.y->shape = {6, kN}; }},
    {"residual of another shape", FASTNORM_ERROR_SHAPE, {"residual.shape", "[2, 1, 16]"}, [](Request& r) { r.residual->shape[1] = 1; }},
    {"residual_out of another shape", FASTNORM_ERROR_SHAPE, {"residual_out.shape", "[1, 3, 16]"}, [](Request& r) { r.residual_out->shape[0] = 1; }},
    {"weight too short", FASTNORM_ERROR_SHAPE, {"weight.shape", "[15]", "[16]"}, [](Request& r) { r.weight->shape = {15}; }},
    {"weight of other heads", FASTNORM_ERROR_SHAPE, {"weight.shape", "[2, 16]", "x.shape[-2]"}, [](Request& r) { r.weight->shape = {2, kN}; }},
    {"weight rank 3", FASTNORM_ERROR_SHAPE, {"weight.ndim", "is 3"}, [](Request& r) { r.weight->shape = {1, kHeads, kN}; }},
    {"bias too long", FASTNORM_ERROR_SHAPE, {"bias.shape", "[17]"}, [](Request& r) { r.bias->shape = {17}; }},
    {"mean of x's shape", FASTNORM_ERROR_SHAPE, {"mean.shape", "[2, 3, 16]", "last 1"}, [](Request& r) { r.mean->shape = {kRows, kHeads, kN}; }},
    {"rstd transposed", FASTNORM_ERROR_SHAPE, {"rstd.shape", "[3, 2]"}, [](Request& r) { r.rstd->shape = {kHeads, kRows}; }},

    // layout
    {"x strided columns", FASTNORM_ERROR_LAYOUT, {"x.strides[2]", "is 2", "contiguous"}, [](Request& r) { r.x->strides = {96, 32, 2}; }},
    {"y strided columns", FASTNORM_ERROR_LAYOUT, {"y.strides[2]", "is 0"}, [](Request& r) { r.y->strides = {48, 16, 0}; }},
    {"weight strided", FASTNORM_ERROR_LAYOUT, {"weight.strides[0]", "is 3"}, [](Request& r) { r.weight->strides = {3}; }},
    {"x at an odd address", FASTNORM_ERROR_LAYOUT, {"x", "address", "multiple of 2"}, [](Request& r) { r.x->address += 1; }},
    {"y at an odd offset", FASTNORM_ERROR_LAYOUT, {"y", "address", "multiple of 2"}, [](Request& r) { r.y->byte_offset = 3; }},
    {"rstd at a half word", FASTNORM_ERROR_LAYOUT, {"rstd", "multiple of 4"}, [](Request& r) { r.rstd->address += 2; }},
    {"x without memory", FASTNORM_ERROR_ARGUMENT, {"x.data is NULL", "[2, 3, 16]"}, [](Request& r) { r.x->address = 0; }},
    {"weight without memory", FASTNORM_ERROR_ARGUMENT, {"weight.data is NULL"}, [](Request& r) { r.weight->address = 0; }},
    {"y broadcast", FASTNORM_ERROR_LAYOUT, {"y overlaps itself"}, [](Request& r) { r.y->strides = {48, 0, 1}; }},
    {"y rows overlap", FASTNORM_ERROR_LAYOUT, {"y overlaps itself"}, [](Request& r) { r.y->strides = {48, 15, 1}; }},
    {"residual_out rows overlap", FASTNORM_ERROR_LAYOUT, {"residual_out overlaps itself"}, [](Request& r) { r.residual_out->strides = {40, 16, 1}; }},
    {"mean broadcast", FASTNORM_ERROR_LAYOUT, {"mean overlaps itself"}, [](Request& r) { r.mean->strides = {0, 1}; }},
    {"stride past 2^63 bytes", FASTNORM_ERROR_LAYOUT, {"x.strides[0]", "4611686018427387904"}, [](Request& r) { r.x->strides = {int64_t{1} << 62, 16, 1}; }},
    {"past the address space", FASTNORM_ERROR_LAYOUT, {"residual", "address space"}, [](Request& r) { r.residual->strides = {int64_t{1} << 61, int64_t{1} << 61, 1}; }},
    {"below the address space", FASTNORM_ERROR_LAYOUT, {"x", "address space"}, [](Request& r) { r.x->strides = {-(int64_t{1} << 60), 16, 1}; }},
    {"address wraps", FASTNORM_ERROR_LAYOUT, {"x"}, [](Request& r) { r.x->address = UINTPTR_MAX - 15; r.x->byte_offset = 16; }},

    // aliasing
    {"y over x, shifted", FASTNORM_ERROR_LAYOUT, {"y [", "overlaps x ["}, [](Request& r) { r.y->address = r.x->address + 2; }},
    {"y over x, other strides", FASTNORM_ERROR_LAYOUT, {"y", "overlaps x"}, [](Request& r) { r.y->address = r.x->address; r.y->strides = {64, 20, 1}; }},
    {"y over residual", FASTNORM_ERROR_LAYOUT, {"y", "residual"}, [](Request& r) { r.y->address = r.residual->address; }},
    {"y over weight", FASTNORM_ERROR_LAYOUT, {"y", "weight"}, [](Request& r) { r.weight->address = r.y->address + 32; }},
    {"y over bias", FASTNORM_ERROR_LAYOUT, {"y", "bias"}, [](Request& r) { r.bias->address = r.y->address; }},
    {"residual_out over x", FASTNORM_ERROR_LAYOUT, {"residual_out", "x"}, [](Request& r) { r.residual_out->address = r.x->address; }},
    {"residual_out over y", FASTNORM_ERROR_LAYOUT, {"residual_out", "y"}, [](Request& r) { r.residual_out->address = r.y->address; }},
    {"residual_out over residual, shifted", FASTNORM_ERROR_LAYOUT, {"residual_out", "residual"}, [](Request& r) { r.residual_out->address = r.residual->address + 2; }},
    {"residual_out over residual, other dtype", FASTNORM_ERROR_LAYOUT, {"residual_out", "residual"}, [](Request& r) { r.residual_out->address = r.residual->address; r.residual_out->dtype = FASTNORM_DTYPE_F32; }},
    {"mean over rstd", FASTNORM_ERROR_LAYOUT, {"rstd", "mean"}, [](Request& r) { r.rstd->address = r.mean->address; }},
    {"mean over x", FASTNORM_ERROR_LAYOUT, {"mean", "x"}, [](Request& r) { r.mean->address = r.x->address + 4; }},

    // device
    {"x on CUDA", FASTNORM_ERROR_DEVICE, {"x is on", "CUDA:0", "CPU:0"}, [](Request& r) { r.x->device_type = FASTNORM_DEVICE_CUDA; }},
    {"weight managed", FASTNORM_ERROR_DEVICE, {"weight is on", "CUDA_MANAGED"}, [](Request& r) { r.weight->device_type = FASTNORM_DEVICE_CUDA_MANAGED; }},
    {"y on an unknown device", FASTNORM_ERROR_DEVICE, {"y is on", "unknown", "99"}, [](Request& r) { r.y->device_type = 99; }},
};
// clang-format on

TEST(CheckNorm, AFullCallIsFine) {
  NormDesc desc;
  Error error;
  ASSERT_EQ(full_request().check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(desc.rows, kRows * kHeads);
  EXPECT_EQ(desc.n, kN);
  EXPECT_EQ(desc.dtype, Dtype::kBF16);
  EXPECT_EQ(desc.kind, FASTNORM_NORM_LAYER);
  EXPECT_EQ(desc.inv_n, 1.0f / 16);
}

TEST(CheckNorm, EachRequirement) {
  for (const BadCall& bad : kBadCalls) {
    Request r = full_request();
    bad.spoil(r);
    NormDesc desc;
    Error error;
    EXPECT_EQ(fastnorm_status_name(r.check(&desc, error)),
              std::string(fastnorm_status_name(bad.status)))
        << bad.name << ": " << error.text;
    EXPECT_EQ(error.status, bad.status) << bad.name;
    EXPECT_EQ(error.device_error, 0) << bad.name;
    const std::string text = error.text;
    for (const char* part : bad.texts) {
      if (part == nullptr) continue;
      EXPECT_NE(text.find(part), std::string::npos)
          << bad.name << ": no \"" << part << "\" in: " << text;
    }
    EXPECT_TRUE(text.find("required") != std::string::npos ||
                text.find("nearest") != std::string::npos)
        << bad.name << ": " << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << bad.name;
  }
}

TEST(CheckNorm, TensorsOfAnotherDevice) {
  Request r = simple_request({2, 16}, FASTNORM_DTYPE_F32);
  r.device = {FASTNORM_DEVICE_CUDA, 1};
  for (auto* t : {&r.x, &r.y, &r.weight}) {
    (*t)->device_type = FASTNORM_DEVICE_CUDA;
    (*t)->device_id = 1;
  }
  NormDesc desc;
  Error error;
  EXPECT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  r.y->device_type = FASTNORM_DEVICE_CUDA_MANAGED;
  EXPECT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  r.y->device_id = 0;
  EXPECT_EQ(r.check(&desc, error), FASTNORM_ERROR_DEVICE);
  r.y->device_id = 1;
  r.y->device_type = FASTNORM_DEVICE_CUDA_HOST;  // host memory, to the GPU
  EXPECT_EQ(r.check(&desc, error), FASTNORM_ERROR_DEVICE);
  EXPECT_NE(std::string(error.text).find("CUDA:1"), std::string::npos) << error.text;
}

TEST(CheckNorm, PinnedMemoryCountsAsCpu) {
  Request r = full_request();
  r.x->device_type = FASTNORM_DEVICE_CUDA_HOST;
  r.x->device_id = 3;
  NormDesc desc;
  Error error;
  EXPECT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
}

struct GoodCall {
  const char* name;
  void (*change)(Request&);
};

// clang-format off
const GoodCall kGoodCalls[] = {
    {"in place", [](Request& r) { r.y->address = r.x->address; r.residual_out->address = r.residual->address; }},
    {"in place, strides written out", [](Request& r) { r.y->address = r.x->address; r.y->strides = {48, 16, 1}; }},
    {"statistics with a last 1", [](Request& r) { r.mean->shape = {kRows, kHeads, 1}; r.rstd->shape = {kRows, kHeads, 1}; }},
    {"broadcast inputs", [](Request& r) { r.x->strides = {0, 16, 1}; r.residual->strides = {0, 0, 1}; }},
    {"negative strides", [](Request& r) { r.x->strides = {-48, -16, 1}; r.y->strides = {-48, 16, 1}; }},
    {"odd addresses and strides", [](Request& r) { r.x->address += 2; r.x->strides = {57, 19, 1}; }},
    {"weights of heads", [](Request& r) { r.weight->shape = r.bias->shape = {kHeads, kN}; }},
    {"broadcast heads", [](Request& r) { r.weight->shape = {kHeads, kN}; r.weight->strides = {0, 1}; }},
    {"f32 parameters", [](Request& r) { r.weight->dtype = r.bias->dtype = FASTNORM_DTYPE_F32; }},
    {"f32 residuals", [](Request& r) { r.residual->dtype = r.residual_out->dtype = FASTNORM_DTYPE_F32; }},
    {"y between x's rows", [](Request& r) { r.x->strides = {192, 64, 1}; r.y->strides = {192, 64, 1}; r.y->address = r.x->address + 32; }},
    {"last stride of one column", [](Request& r) {
       for (auto* t : {&r.x, &r.y, &r.residual, &r.residual_out}) { (*t)->shape = {kRows, kHeads, 1}; (*t)->strides = {30, 9, 5}; }
       r.weight->shape = r.bias->shape = {1}; }},
    {"rank 1", [](Request& r) {
       for (auto* t : {&r.x, &r.y, &r.residual, &r.residual_out}) (*t)->shape = {kN};
       r.mean->shape = r.rstd->shape = {1}; }},
    {"rank 4", [](Request& r) {
       for (auto* t : {&r.x, &r.y, &r.residual, &r.residual_out}) (*t)->shape = {1, kRows, kHeads, kN};
       r.mean->shape = r.rstd->shape = {1, kRows, kHeads}; }},
    {"weight shared with bias", [](Request& r) { r.bias->address = r.weight->address; }},
    {"x shared with residual", [](Request& r) { r.residual->address = r.x->address; r.residual_out->address = address_of(9); }},
    {"no rows, no memory", [](Request& r) {
       for (auto* t : {&r.x, &r.y, &r.residual, &r.residual_out}) { (*t)->shape = {0, kHeads, kN}; (*t)->address = 0; }
       r.mean->shape = r.rstd->shape = {0, kHeads}; r.mean->address = r.rstd->address = 0; }},
    {"no rows behind huge extents", [](Request& r) {
       for (auto* t : {&r.x, &r.y, &r.residual, &r.residual_out}) { (*t)->shape = {0, int64_t{1} << 40, kN}; (*t)->address = 0; }
       r.mean->shape = r.rstd->shape = {0, int64_t{1} << 40}; r.mean->address = r.rstd->address = 0; }},
};
// clang-format on

TEST(CheckNorm, WhatIsAllowed) {
  for (const GoodCall& good : kGoodCalls) {
    Request r = full_request();
    good.change(r);
    NormDesc desc;
    Error error;
    EXPECT_EQ(r.check(&desc, error), FASTNORM_OK) << good.name << ": " << error.text;
  }
}

TEST(CheckNorm, CanonicalSettings) {
  NormDesc desc;
  Error error;
  Request r = full_request();
  r.args.residual_rounding = FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY;
  r.residual->dtype = FASTNORM_DTYPE_F32;
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.sum_dtype, Dtype::kBF16) << "R is residual_out's dtype where there is one";
  EXPECT_EQ(desc.residual_rounding, FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY);
  r.residual_out.reset();
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.sum_dtype, Dtype::kF32);
  EXPECT_EQ(desc.residual_rounding, FASTNORM_RESIDUAL_EXACT) << "rounding to f32 is none";
  r.residual.reset();
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.residual_rounding, FASTNORM_RESIDUAL_EXACT) << "nothing is added";

  r = simple_request({2, 16}, FASTNORM_DTYPE_F32);
  r.args.rounding = FASTNORM_ROUND_NORMALIZED;
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.rounding, FASTNORM_ROUND_ONCE) << "for f32 they are the same";
  r.args.rounding = FASTNORM_ROUND_EVERY_STEP;
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.rounding, FASTNORM_ROUND_EVERY_STEP);
}

TEST(CheckNorm, RowsAreFolded) {
  NormDesc desc;
  Error error;
  Request r = full_request();
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.outer_rank, 1) << "compact dimensions are one";
  EXPECT_EQ(desc.outer[0], kRows * kHeads);
  EXPECT_EQ(desc.x.stride_bytes[0], kN * 2);
  EXPECT_EQ(desc.rstd.stride_bytes[0], 4);
  r.weight->shape = {kHeads, kN};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.outer_rank, 2) << "heads stay apart";
  EXPECT_EQ(desc.outer[0], kHeads);
  EXPECT_EQ(desc.weight.head_stride_bytes, kN * 2);
  EXPECT_EQ(desc.bias.head_stride_bytes, 0);
}

// --- struct_size ---

struct LongArgs {
  fastnorm_norm_args args;
  unsigned char tail[24];
};

TEST(CheckStruct, GrowsWithZeros) {
  const Request r = simple_request({2, 16}, FASTNORM_DTYPE_F32);
  const fastnorm_tensor x = r.x->abi(), y = r.y->abi();
  LongArgs longer = {};
  longer.args = r.args;
  longer.args.x = &x;
  longer.args.y = &y;
  longer.args.struct_size = sizeof longer;
  NormDesc desc;
  Error error;
  EXPECT_EQ(check_norm(&longer.args, r.device, &desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(desc.rows, 2);
  longer.tail[23] = 1;
  EXPECT_EQ(check_norm(&longer.args, r.device, &desc, error), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::string(error.text).find(std::to_string(sizeof longer - 1)), std::string::npos)
      << "names the byte: " << error.text;
  longer.args.struct_size = sizeof longer - 1;  // the byte is no longer part of it
  EXPECT_EQ(check_norm(&longer.args, r.device, &desc, error), FASTNORM_OK) << error.text;
  longer.args.struct_size = sizeof(fastnorm_norm_args) - 1;
  EXPECT_EQ(check_norm(&longer.args, r.device, &desc, error), FASTNORM_ERROR_ARGUMENT);
}

TEST(CheckStruct, NullArgs) {
  NormDesc desc;
  Error error;
  EXPECT_EQ(check_norm(nullptr, {FASTNORM_DEVICE_CPU, 0}, &desc, error), FASTNORM_ERROR_ARGUMENT);
  EXPECT_NE(std::string(error.text).find("args is NULL"), std::string::npos) << error.text;
}

// --- several parts ---

fastnorm_status check_pair(const Request& a, const Request& b, Error& error) {
  NormDesc descs[2];
  EXPECT_EQ(a.check(&descs[0], error), FASTNORM_OK) << error.text;
  EXPECT_EQ(b.check(&descs[1], error), FASTNORM_OK) << error.text;
  return check_norm_many(descs, error);
}

// Query and key heads of one fused buffer, both in place.
Request heads_of_qkv(int64_t first_head, int64_t heads) {
  constexpr int64_t kTokens = 5, kAllHeads = 12, kHeadSize = 16;
  Request r = simple_request({kTokens, heads, kHeadSize}, FASTNORM_DTYPE_BF16);
  r.x->strides = r.y->strides = {kAllHeads * kHeadSize, kHeadSize, 1};
  r.x->address = r.y->address = address_of(0) + static_cast<uintptr_t>(first_head * kHeadSize * 2);
  return r;
}

TEST(CheckNormMany, InterleavedPartsOfOneBuffer) {
  Error error;
  EXPECT_EQ(check_pair(heads_of_qkv(0, 8), heads_of_qkv(8, 2), error), FASTNORM_OK) << error.text;
  EXPECT_EQ(check_pair(heads_of_qkv(0, 8), heads_of_qkv(7, 2), error), FASTNORM_ERROR_LAYOUT);
  const std::string text = error.text;
  EXPECT_NE(text.find("args[0]."), std::string::npos) << text;
  EXPECT_NE(text.find("args[1]."), std::string::npos) << text;
}

TEST(CheckNormMany, NoPartReadsWhatAnotherWrites) {
  Error error;
  Request a = simple_request({4, 16}, FASTNORM_DTYPE_F32), b = a;
  b.y->address = address_of(8);
  EXPECT_EQ(check_pair(a, b, error), FASTNORM_OK) << "sharing inputs: " << error.text;
  b.x->address = a.y->address;
  EXPECT_EQ(check_pair(a, b, error), FASTNORM_ERROR_LAYOUT);
  b = a;
  b.y->address = address_of(8);
  b.weight->address = a.y->address + 64;
  EXPECT_EQ(check_pair(a, b, error), FASTNORM_ERROR_LAYOUT);
}

}  // namespace
}  // namespace fastnorm::test
