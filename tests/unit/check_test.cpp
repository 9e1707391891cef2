// Every requirement of the public headers, broken once. Checks the status, and that the text names
// the argument, its value and what is required.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/norm_check.h"
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

const BadCall kBadCalls[] = {
    // scalars
    {"kind",
     FASTNORM_ERROR_ARGUMENT,
     {"kind", "is 2", "required"},
     [](Request& r) { r.args.kind = static_cast<fastnorm_norm_kind>(2); }},
    {"negative kind",
     FASTNORM_ERROR_ARGUMENT,
     {"kind", "-1"},
     [](Request& r) {
       const int v = -1;
       std::memcpy(&r.args.kind, &v, sizeof v);
     }},
    {"eps negative",
     FASTNORM_ERROR_ARGUMENT,
     {"eps", "-1", ">= 0"},
     [](Request& r) { r.args.eps = -1; }},
    {"eps NaN", FASTNORM_ERROR_ARGUMENT, {"eps", "nan"}, [](Request& r) { r.args.eps = kNan; }},
    {"eps Inf",
     FASTNORM_ERROR_ARGUMENT,
     {"eps", "inf", "finite"},
     [](Request& r) { r.args.eps = kInf; }},
    {"offset Inf",
     FASTNORM_ERROR_ARGUMENT,
     {"weight_offset", "inf", "finite"},
     [](Request& r) { r.args.weight_offset = kInf; }},
    {"offset NaN",
     FASTNORM_ERROR_ARGUMENT,
     {"weight_offset", "nan"},
     [](Request& r) { r.args.weight_offset = kNan; }},
    {"offset without weight",
     FASTNORM_ERROR_ARGUMENT,
     {"weight_offset", "is 1", "weight is NULL"},
     [](Request& r) {
       r.args.weight_offset = 1;
       r.weight.reset();
     }},
    {"rounding",
     FASTNORM_ERROR_ARGUMENT,
     {"rounding", "is 4", "0 to 3"},
     [](Request& r) {
       const int v = 4;
       std::memcpy(&r.args.rounding, &v, sizeof v);
     }},
    {"residual_rounding",
     FASTNORM_ERROR_ARGUMENT,
     {"residual_rounding", "is 3", "0 to 2"},
     [](Request& r) {
       const int v = 3;
       std::memcpy(&r.args.residual_rounding, &v, sizeof v);
     }},
    {"x NULL", FASTNORM_ERROR_ARGUMENT, {"x is NULL"}, [](Request& r) { r.x.reset(); }},
    {"y NULL",
     FASTNORM_ERROR_ARGUMENT,
     {"y is NULL", "quantized is NULL", "at least one"},
     [](Request& r) { r.y.reset(); }},
    {"residual_out alone",
     FASTNORM_ERROR_ARGUMENT,
     {"residual_out", "residual is NULL"},
     [](Request& r) { r.residual.reset(); }},
    {"mean of RMS",
     FASTNORM_ERROR_ARGUMENT,
     {"mean", "FASTNORM_NORM_LAYER"},
     [](Request& r) { r.args.kind = FASTNORM_NORM_RMS; }},
    {"struct_size 0",
     FASTNORM_ERROR_ARGUMENT,
     {"args.struct_size", "is 0"},
     [](Request& r) { r.args.struct_size = 0; }},
    {"struct_size garbage",
     FASTNORM_ERROR_ARGUMENT,
     {"args.struct_size", "at most"},
     [](Request& r) { r.args.struct_size = SIZE_MAX; }},

    {"flags",
     FASTNORM_ERROR_UNSUPPORTED,
     {"flags", "0x13", "flags 0x3"},
     [](Request& r) { r.args.flags = 19; }},
    {"constant weights",
     FASTNORM_ERROR_ARGUMENT,
     {"flags", "0x6", "PDL_WAIT"},
     [](Request& r) { r.args.flags = 6; }},

    // dtypes
    {"x i8",
     FASTNORM_ERROR_DTYPE,
     {"x.dtype", "i8", "f32, f16 or bf16"},
     [](Request& r) { r.x->dtype = FASTNORM_DTYPE_I8; }},
    {"x of two lanes",
     FASTNORM_ERROR_DTYPE,
     {"x.dtype", "lanes 2"},
     [](Request& r) { r.x->dtype = static_cast<fastnorm_dtype_id>(0x00021004); }},
    {"x f64",
     FASTNORM_ERROR_DTYPE,
     {"x.dtype", "bits 64"},
     [](Request& r) { r.x->dtype = static_cast<fastnorm_dtype_id>(0x00014002); }},
    {"y f16",
     FASTNORM_ERROR_DTYPE,
     {"y.dtype", "f16", "bf16, or f32, as x is bf16"},
     [](Request& r) { r.y->dtype = FASTNORM_DTYPE_F16; }},
    {"y u8",
     FASTNORM_ERROR_DTYPE,
     {"y.dtype", "u8", "bf16, or f32"},
     [](Request& r) { r.y->dtype = FASTNORM_DTYPE_U8; }},
    {"y bf16 of f32",
     FASTNORM_ERROR_DTYPE,
     {"y.dtype", "bf16", "f32, as x is f32"},
     [](Request& r) { r.x->dtype = FASTNORM_DTYPE_F32; }},
    {"residual f8",
     FASTNORM_ERROR_DTYPE,
     {"residual.dtype", "f8_e4m3fn", "f32, f16 or bf16"},
     [](Request& r) { r.residual->dtype = FASTNORM_DTYPE_F8_E4M3FN; }},
    {"residual_out i64",
     FASTNORM_ERROR_DTYPE,
     {"residual_out.dtype", "i64", "f32, f16 or bf16"},
     [](Request& r) { r.residual_out->dtype = FASTNORM_DTYPE_I64; }},
    {"weight u8",
     FASTNORM_ERROR_DTYPE,
     {"weight.dtype", "u8", "f32, f16 or bf16"},
     [](Request& r) { r.weight->dtype = FASTNORM_DTYPE_U8; }},
    {"bias i32",
     FASTNORM_ERROR_DTYPE,
     {"bias.dtype", "i32", "f32, f16 or bf16"},
     [](Request& r) { r.bias->dtype = FASTNORM_DTYPE_I32; }},
    {"mean bf16",
     FASTNORM_ERROR_DTYPE,
     {"mean.dtype", "bf16", "f32"},
     [](Request& r) { r.mean->dtype = FASTNORM_DTYPE_BF16; }},
    {"rstd f16",
     FASTNORM_ERROR_DTYPE,
     {"rstd.dtype", "f16", "f32"},
     [](Request& r) { r.rstd->dtype = FASTNORM_DTYPE_F16; }},

    // shapes
    {"x rank 0",
     FASTNORM_ERROR_SHAPE,
     {"x.ndim", "is 0", "1 to 8"},
     [](Request& r) { r.x->ndim = 0; }},
    {"x rank 5 alone",
     FASTNORM_ERROR_SHAPE,
     {"residual.shape", "[2, 3, 16]", "x's, [1, 1, 2, 3, 16]"},
     [](Request& r) {
       r.x->shape = {1, 1, kRows, kHeads, kN};
     }},
    {"x rank 9",
     FASTNORM_ERROR_SHAPE,
     {"x.ndim", "is 9", "1 to 8"},
     [](Request& r) { r.x->shape = {1, 1, 1, 1, 1, 1, 1, 1, kN}; }},
    {"y rank 9",
     FASTNORM_ERROR_SHAPE,
     {"y.ndim", "is 9", "1 to 8"},
     [](Request& r) { r.y->shape = {1, 1, 1, 1, 1, 1, 1, 1, kN}; }},
    {"x rank negative", FASTNORM_ERROR_SHAPE, {"x.ndim", "-1"}, [](Request& r) { r.x->ndim = -1; }},
    {"x without shape",
     FASTNORM_ERROR_ARGUMENT,
     {"x.shape is NULL"},
     [](Request& r) { r.x->null_shape = true; }},
    {"n 0",
     FASTNORM_ERROR_SHAPE,
     {"x.shape", "n is 0", "1 to"},
     [](Request& r) { r.x->shape.back() = 0; }},
    {"n past 2^32",
     FASTNORM_ERROR_SHAPE,
     {"x.shape", "4294967297"},
     [](Request& r) {
       r.x->shape = {1, 1, (int64_t{1} << 32) + 1};
     }},
    {"negative extent",
     FASTNORM_ERROR_SHAPE,
     {"x.shape", "[-2, 3, 16]", "extents >= 0"},
     [](Request& r) { r.x->shape[0] = -2; }},
    {"too many elements",
     FASTNORM_ERROR_SHAPE,
     {"x.shape", "2^63"},
     [](Request& r) {
       r.x->shape = {int64_t{1} << 40, int64_t{1} << 40, kN};
     }},
    {"y of another shape",
     FASTNORM_ERROR_SHAPE,
     {"y.shape", "[2, 3, 17]", "[2, 3, 16]"},
     [](Request& r) { r.y->shape[2] = 17; }},
    {"y of another rank",
     FASTNORM_ERROR_SHAPE,
     {"y.shape", "[6, 16]"},
     [](Request& r) {
       r.y->shape = {6, kN};
     }},
    {"residual of another shape",
     FASTNORM_ERROR_SHAPE,
     {"residual.shape", "[2, 1, 16]"},
     [](Request& r) { r.residual->shape[1] = 1; }},
    {"residual_out of another shape",
     FASTNORM_ERROR_SHAPE,
     {"residual_out.shape", "[1, 3, 16]"},
     [](Request& r) { r.residual_out->shape[0] = 1; }},
    {"weight too short",
     FASTNORM_ERROR_SHAPE,
     {"weight.shape", "[15]", "[16]"},
     [](Request& r) { r.weight->shape = {15}; }},
    {"weight of other heads",
     FASTNORM_ERROR_SHAPE,
     {"weight.shape", "[2, 16]", "1 or x's"},
     [](Request& r) {
       r.weight->shape = {2, kN};
     }},
    {"weight of other batches",
     FASTNORM_ERROR_SHAPE,
     {"weight.shape", "[3, 1, 16]", "[2, 3, 16]"},
     [](Request& r) {
       r.weight->shape = {3, 1, kN};
     }},
    {"weight of more dimensions",
     FASTNORM_ERROR_SHAPE,
     {"weight.shape", "[1, 1, 1, 16]", "from the right"},
     [](Request& r) {
       r.weight->shape = {1, 1, 1, kN};
     }},
    {"bias left-aligned",
     FASTNORM_ERROR_SHAPE,
     {"bias.shape", "[2, 16]"},
     [](Request& r) {
       r.bias->shape = {kRows, kN};
     }},
    {"bias broadcast along n",
     FASTNORM_ERROR_SHAPE,
     {"bias.shape", "[1]"},
     [](Request& r) { r.bias->shape = {1}; }},
    {"bias too long",
     FASTNORM_ERROR_SHAPE,
     {"bias.shape", "[17]"},
     [](Request& r) { r.bias->shape = {17}; }},
    {"mean of x's shape",
     FASTNORM_ERROR_SHAPE,
     {"mean.shape", "[2, 3, 16]", "last 1"},
     [](Request& r) {
       r.mean->shape = {kRows, kHeads, kN};
     }},
    {"rstd transposed",
     FASTNORM_ERROR_SHAPE,
     {"rstd.shape", "[3, 2]"},
     [](Request& r) {
       r.rstd->shape = {kHeads, kRows};
     }},

    // layout
    {"x strided columns",
     FASTNORM_ERROR_LAYOUT,
     {"x.strides[2]", "is 2", "contiguous"},
     [](Request& r) {
       r.x->strides = {96, 32, 2};
     }},
    {"y strided columns",
     FASTNORM_ERROR_LAYOUT,
     {"y.strides[2]", "is 0"},
     [](Request& r) {
       r.y->strides = {48, 16, 0};
     }},
    {"weight strided",
     FASTNORM_ERROR_LAYOUT,
     {"weight.strides[0]", "is 3"},
     [](Request& r) { r.weight->strides = {3}; }},
    {"x at an odd address",
     FASTNORM_ERROR_LAYOUT,
     {"x", "address", "multiple of 2"},
     [](Request& r) { r.x->address += 1; }},
    {"y at an odd offset",
     FASTNORM_ERROR_LAYOUT,
     {"y", "address", "multiple of 2"},
     [](Request& r) { r.y->byte_offset = 3; }},
    {"rstd at a half word",
     FASTNORM_ERROR_LAYOUT,
     {"rstd", "multiple of 4"},
     [](Request& r) { r.rstd->address += 2; }},
    {"x without memory",
     FASTNORM_ERROR_ARGUMENT,
     {"x.data is NULL", "[2, 3, 16]"},
     [](Request& r) { r.x->address = 0; }},
    {"weight without memory",
     FASTNORM_ERROR_ARGUMENT,
     {"weight.data is NULL"},
     [](Request& r) { r.weight->address = 0; }},
    {"y broadcast",
     FASTNORM_ERROR_LAYOUT,
     {"y overlaps itself"},
     [](Request& r) {
       r.y->strides = {48, 0, 1};
     }},
    {"y rows overlap",
     FASTNORM_ERROR_LAYOUT,
     {"y overlaps itself"},
     [](Request& r) {
       r.y->strides = {48, 15, 1};
     }},
    {"residual_out rows overlap",
     FASTNORM_ERROR_LAYOUT,
     {"residual_out overlaps itself"},
     [](Request& r) {
       r.residual_out->strides = {40, 16, 1};
     }},
    {"mean broadcast",
     FASTNORM_ERROR_LAYOUT,
     {"mean overlaps itself"},
     [](Request& r) {
       r.mean->strides = {0, 1};
     }},
    {"stride past 2^63 bytes",
     FASTNORM_ERROR_LAYOUT,
     {"x.strides[0]", "4611686018427387904"},
     [](Request& r) {
       r.x->strides = {int64_t{1} << 62, 16, 1};
     }},
    {"past the address space",
     FASTNORM_ERROR_LAYOUT,
     {"residual", "address space"},
     [](Request& r) {
       r.residual->strides = {int64_t{1} << 61, int64_t{1} << 61, 1};
     }},
    {"below the address space",
     FASTNORM_ERROR_LAYOUT,
     {"x", "address space"},
     [](Request& r) {
       r.x->strides = {-(int64_t{1} << 60), 16, 1};
     }},
    {"above and below by 2^62 bytes",
     FASTNORM_ERROR_LAYOUT,
     {"x", "2^62 bytes"},
     [](Request& r) {
       r.x->address = uintptr_t{1} << 62;
       r.x->strides = {int64_t{1} << 60, -(int64_t{1} << 60), 1};
     }},
    {"address wraps",
     FASTNORM_ERROR_LAYOUT,
     {"x"},
     [](Request& r) {
       r.x->address = UINTPTR_MAX - 15;
       r.x->byte_offset = 16;
     }},

    // aliasing
    {"y over x, shifted",
     FASTNORM_ERROR_LAYOUT,
     {"y [", "overlaps x ["},
     [](Request& r) { r.y->address = r.x->address + 2; }},
    {"y over x, other strides",
     FASTNORM_ERROR_LAYOUT,
     {"y", "overlaps x"},
     [](Request& r) {
       r.y->address = r.x->address;
       r.y->strides = {64, 20, 1};
     }},
    {"y over residual, shifted",
     FASTNORM_ERROR_LAYOUT,
     {"y [", "overlaps residual ["},
     [](Request& r) { r.y->address = r.residual->address + 2; }},
    {"y over residual, other dtype",
     FASTNORM_ERROR_LAYOUT,
     {"y", "overlaps residual"},
     [](Request& r) {
       r.residual->dtype = FASTNORM_DTYPE_F32;
       r.y->address = r.residual->address;
     }},
    {"y over residual, other strides",
     FASTNORM_ERROR_LAYOUT,
     {"y", "overlaps residual", "same view"},
     [](Request& r) {
       r.y->address = r.residual->address;
       r.y->strides = {64, 20, 1};
     }},
    {"y over a broadcast residual",
     FASTNORM_ERROR_LAYOUT,
     {"y", "overlaps residual"},
     [](Request& r) {
       r.y->address = r.residual->address;
       r.residual->strides = {0, 16, 1};
     }},
    {"both over residual",
     FASTNORM_ERROR_LAYOUT,
     {"residual_out", "overlaps y"},
     [](Request& r) { r.y->address = r.residual_out->address = r.residual->address; }},
    {"both over x",
     FASTNORM_ERROR_LAYOUT,
     {"residual_out", "overlaps y"},
     [](Request& r) { r.y->address = r.residual_out->address = r.x->address; }},
    {"residual_out over x, shifted",
     FASTNORM_ERROR_LAYOUT,
     {"residual_out [", "overlaps x ["},
     [](Request& r) { r.residual_out->address = r.x->address - 2; }},
    {"y over weight",
     FASTNORM_ERROR_LAYOUT,
     {"y", "weight"},
     [](Request& r) { r.weight->address = r.y->address + 32; }},
    {"y over bias",
     FASTNORM_ERROR_LAYOUT,
     {"y", "bias"},
     [](Request& r) { r.bias->address = r.y->address; }},
    {"residual_out over x, other dtype",
     FASTNORM_ERROR_LAYOUT,
     {"residual_out", "overlaps x"},
     [](Request& r) {
       r.residual_out->dtype = FASTNORM_DTYPE_F32;
       r.residual_out->address = r.x->address;
     }},
    {"codes over residual",
     FASTNORM_ERROR_LAYOUT,
     {"quantized", "overlaps residual", "two tensors"},
     [](Request& r) {
       add_quant(&r, FASTNORM_QUANT_PER_ROW);
       r.quantized->address = r.residual->address;
     }},
    {"residual_out over y",
     FASTNORM_ERROR_LAYOUT,
     {"residual_out", "y"},
     [](Request& r) { r.residual_out->address = r.y->address; }},
    {"residual_out over residual, shifted",
     FASTNORM_ERROR_LAYOUT,
     {"residual_out", "residual"},
     [](Request& r) { r.residual_out->address = r.residual->address + 2; }},
    {"residual_out over residual, other dtype",
     FASTNORM_ERROR_LAYOUT,
     {"residual_out", "residual"},
     [](Request& r) {
       r.residual_out->address = r.residual->address;
       r.residual_out->dtype = FASTNORM_DTYPE_F32;
     }},
    {"mean over rstd",
     FASTNORM_ERROR_LAYOUT,
     {"rstd", "mean"},
     [](Request& r) { r.rstd->address = r.mean->address; }},
    {"mean over x",
     FASTNORM_ERROR_LAYOUT,
     {"mean", "x"},
     [](Request& r) { r.mean->address = r.x->address + 4; }},

    // device
    {"x on CUDA",
     FASTNORM_ERROR_DEVICE,
     {"x is on", "CUDA:0", "CPU:0"},
     [](Request& r) { r.x->device_type = FASTNORM_DEVICE_CUDA; }},
    {"weight managed",
     FASTNORM_ERROR_DEVICE,
     {"weight is on", "CUDA_MANAGED"},
     [](Request& r) { r.weight->device_type = FASTNORM_DEVICE_CUDA_MANAGED; }},
    {"y on an unknown device",
     FASTNORM_ERROR_DEVICE,
     {"y is on", "unknown", "99"},
     [](Request& r) { r.y->device_type = 99; }},
};

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

void expect_refused(const BadCall& bad, Request r) {
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

TEST(CheckNorm, EachRequirement) {
  for (const BadCall& bad : kBadCalls) expect_refused(bad, full_request());
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

const GoodCall kGoodCalls[] = {
    {"in place",
     [](Request& r) {
       r.y->address = r.x->address;
       r.residual_out->address = r.residual->address;
     }},
    {"y over residual", [](Request& r) { r.y->address = r.residual->address; }},
    {"residual_out over x", [](Request& r) { r.residual_out->address = r.x->address; }},
    {"y over residual, residual_out over x",
     [](Request& r) {
       r.y->address = r.residual->address;
       r.residual_out->address = r.x->address;
     }},
    {"the same, strided",
     [](Request& r) {
       r.y->address = r.residual->address;
       r.residual_out->address = r.x->address;
       r.y->strides = r.residual->strides = {-100, 33, 1};
       r.residual_out->strides = r.x->strides = {96, 32, 1};
     }},
    {"y over residual, which is x",
     [](Request& r) { r.y->address = r.residual->address = r.x->address; }},
    {"y over x, which is residual; residual_out apart",
     [](Request& r) {
       r.residual->address = r.x->address;
       r.y->address = r.x->address;
       r.residual_out->address = address_of(9);
     }},
    {"in place, strides written out",
     [](Request& r) {
       r.y->address = r.x->address;
       r.y->strides = {48, 16, 1};
     }},
    {"statistics with a last 1",
     [](Request& r) {
       r.mean->shape = {kRows, kHeads, 1};
       r.rstd->shape = {kRows, kHeads, 1};
     }},
    {"broadcast inputs",
     [](Request& r) {
       r.x->strides = {0, 16, 1};
       r.residual->strides = {0, 0, 1};
     }},
    {"negative strides",
     [](Request& r) {
       r.x->strides = {-48, -16, 1};
       r.y->strides = {-48, 16, 1};
     }},
    {"odd addresses and strides",
     [](Request& r) {
       r.x->address += 2;
       r.x->strides = {57, 19, 1};
     }},
    {"a weight of batches",
     [](Request& r) {
       r.weight->shape = {kRows, 1, kN};
     }},
    {"a weight of every row",
     [](Request& r) {
       r.weight->shape = {kRows, kHeads, kN};
     }},
    {"a weight of heads, a bias of batches",
     [](Request& r) {
       r.weight->shape = {1, kHeads, kN};
       r.bias->shape = {kRows, 1, kN};
     }},
    {"leading 1",
     [](Request& r) {
       r.weight->shape = {1, kN};
       r.bias->shape = {1, 1, kN};
       r.bias->strides = {-5, 3, 1};
     }},
    {"weights of heads",
     [](Request& r) {
       r.weight->shape = r.bias->shape = {kHeads, kN};
     }},
    {"broadcast heads",
     [](Request& r) {
       r.weight->shape = {kHeads, kN};
       r.weight->strides = {0, 1};
     }},
    {"f32 parameters", [](Request& r) { r.weight->dtype = r.bias->dtype = FASTNORM_DTYPE_F32; }},
    {"f32 residuals",
     [](Request& r) { r.residual->dtype = r.residual_out->dtype = FASTNORM_DTYPE_F32; }},
    {"f16 parameters beside bf16",
     [](Request& r) { r.weight->dtype = r.bias->dtype = FASTNORM_DTYPE_F16; }},
    {"f16 residuals beside bf16",
     [](Request& r) { r.residual->dtype = r.residual_out->dtype = FASTNORM_DTYPE_F16; }},
    {"y f32", [](Request& r) { r.y->dtype = FASTNORM_DTYPE_F32; }},
    {"16 bits beside f32",
     [](Request& r) {
       r.x->dtype = r.y->dtype = FASTNORM_DTYPE_F32;
       r.weight->dtype = r.residual->dtype = FASTNORM_DTYPE_F16;
     }},
    {"y between x's rows",
     [](Request& r) {
       r.x->strides = {192, 64, 1};
       r.y->strides = {192, 64, 1};
       r.y->address = r.x->address + 32;
     }},
    {"last stride of one column",
     [](Request& r) {
       for (auto* t : {&r.x, &r.y, &r.residual, &r.residual_out}) {
         (*t)->shape = {kRows, kHeads, 1};
         (*t)->strides = {30, 9, 5};
       }
       r.weight->shape = r.bias->shape = {1};
     }},
    {"rank 1",
     [](Request& r) {
       for (auto* t : {&r.x, &r.y, &r.residual, &r.residual_out}) (*t)->shape = {kN};
       r.mean->shape = r.rstd->shape = {1};
     }},
    {"rank 4",
     [](Request& r) {
       for (auto* t : {&r.x, &r.y, &r.residual, &r.residual_out})
         (*t)->shape = {1, kRows, kHeads, kN};
       r.mean->shape = r.rstd->shape = {1, kRows, kHeads};
     }},
    {"weight shared with bias", [](Request& r) { r.bias->address = r.weight->address; }},
    {"x shared with residual",
     [](Request& r) {
       r.residual->address = r.x->address;
       r.residual_out->address = address_of(9);
     }},
    {"no rows, no memory",
     [](Request& r) {
       for (auto* t : {&r.x, &r.y, &r.residual, &r.residual_out}) {
         (*t)->shape = {0, kHeads, kN};
         (*t)->address = 0;
       }
       r.mean->shape = r.rstd->shape = {0, kHeads};
       r.mean->address = r.rstd->address = 0;
     }},
    {"no rows behind huge extents",
     [](Request& r) {
       for (auto* t : {&r.x, &r.y, &r.residual, &r.residual_out}) {
         (*t)->shape = {0, int64_t{1} << 40, kN};
         (*t)->address = 0;
       }
       r.mean->shape = r.rstd->shape = {0, int64_t{1} << 40};
       r.mean->address = r.rstd->address = 0;
     }},
    {"no rows after huge extents",
     [](Request& r) {
       for (auto* t : {&r.x, &r.y, &r.residual, &r.residual_out}) {
         (*t)->shape = {int64_t{1} << 62, 4, 0, kN};
         (*t)->address = 0;
       }
       r.mean->shape = r.rstd->shape = {int64_t{1} << 62, 4, 0};
       r.mean->address = r.rstd->address = 0;
     }},
    {"queries and keys of other batches",
     [](Request& r) {
       for (auto* t : {&r.residual, &r.residual_out, &r.mean, &r.rstd}) t->reset();
       for (auto* t : {&r.x, &r.y}) {
         (*t)->shape = {3, 8, 8, kN};
         (*t)->strides = {8 * 24 * kN, 24 * kN, kN, 1};
       }
       r.y->address = r.x->address + 2 * (8 * 24 + 8) * kN;
     }},
};

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
  r.args.rounding = FASTNORM_ROUND_ONCE_RW;
  r.weight.reset();
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.rounding, FASTNORM_ROUND_ONCE) << "the factor is rstd";
  r = full_request();
  r.args.rounding = FASTNORM_ROUND_ONCE_RW;
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK);
  EXPECT_EQ(desc.rounding, FASTNORM_ROUND_ONCE_RW);
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

// --- strides without a meaning ---

constexpr int64_t kAnyStride = std::numeric_limits<int64_t>::min();

std::vector<RequestTensor*> tensors_of(Request& r) {
  std::vector<RequestTensor*> all;
  for (auto* t : {&r.x, &r.residual, &r.weight, &r.bias, &r.y, &r.residual_out, &r.mean, &r.rstd,
                  &r.global_scale, &r.quantized, &r.scale, &r.amax, &r.clamp_scale}) {
    if (*t) all.push_back(&**t);
  }
  return all;
}

// Sets explicit strides: `any` for a dimension with one index, compact ones otherwise.
void write_strides(RequestTensor* t, int64_t any) {
  if (t->strides.empty()) {
    t->strides.resize(t->shape.size());
    int64_t step = 1;
    for (size_t d = t->shape.size(); d-- > 0;) {
      t->strides[d] = step;
      step *= t->shape[d];
    }
  }
  for (size_t d = 0; d < t->shape.size(); ++d) {
    if (t->shape[d] == 1) t->strides[d] = any;
  }
}

TEST(CheckNorm, StridesOfOneIndexSayNothing) {
  constexpr int64_t kAny[] = {
      kAnyStride, kAnyStride + 1, -1, 0, 3, int64_t{1} << 62, std::numeric_limits<int64_t>::max()};
  const std::vector<int64_t> shapes[] = {{kRows, 1, kN},
                                         {1, kHeads, kN},
                                         {1, kN},
                                         {kRows, kHeads, 1},
                                         {1},
                                         {1, 1, 1},
                                         {1, kRows, 1, kN},
                                         {kRows, 1, 1, kN},
                                         {1, 1, kRows, 1, kN},
                                         {1, kRows, 1, kHeads, 1, 1, 1, kN}};
  for (const auto& shape : shapes) {
    for (int scheme = FASTNORM_QUANT_NONE; scheme <= FASTNORM_QUANT_NVFP4; ++scheme) {
      if (scheme == FASTNORM_QUANT_NVFP4 && shape.back() == 1) continue;
      Request plain = simple_request(shape, FASTNORM_DTYPE_BF16, true, FASTNORM_NORM_LAYER);
      std::vector<int64_t> rows = shape;
      rows.back() = 1;
      plain.mean = RequestTensor{rows, {}, FASTNORM_DTYPE_F32, address_of(6)};
      plain.rstd = RequestTensor{rows, {}, FASTNORM_DTYPE_F32, address_of(7)};
      std::vector<int64_t> column(shape.size(), 1);
      column.back() = shape.back();
      plain.bias->shape = column;
      if (scheme != FASTNORM_QUANT_NONE)
        add_quant(&plain, static_cast<fastnorm_quant_scheme>(scheme));
      NormDesc desc, same;
      Error error;
      ASSERT_EQ(plain.check(&desc, error), FASTNORM_OK) << error.text;
      for (const int64_t any : kAny) {
        Request r = plain;
        for (RequestTensor* t : tensors_of(r)) write_strides(t, any);
        ASSERT_EQ(r.check(&same, error), FASTNORM_OK) << error.text;
        EXPECT_EQ(same.outer_rank, desc.outer_rank);
        for (int d = 0; d < kMaxOuter; ++d) {
          EXPECT_EQ(same.outer[d], desc.outer[d]);
          EXPECT_EQ(same.x.stride_bytes[d], desc.x.stride_bytes[d]);
          EXPECT_EQ(same.residual_out.stride_bytes[d], desc.residual_out.stride_bytes[d]);
          EXPECT_EQ(same.mean.stride_bytes[d], desc.mean.stride_bytes[d]);
          EXPECT_EQ(same.quant.codes.stride_bytes[d], desc.quant.codes.stride_bytes[d]);
          EXPECT_EQ(same.quant.scale.stride_bytes[d], desc.quant.scale.stride_bytes[d]);
          EXPECT_EQ(same.bias.stride_bytes(d), 0);
        }
        EXPECT_EQ(same.quant.scale_step_bytes, desc.quant.scale_step_bytes);
      }
    }
  }
}

TEST(CheckNorm, StridesOfNoElementsSayNothing) {
  const std::vector<int64_t> shapes[] = {
      {0, kN}, {kRows, 0, kN}, {0, kHeads, kN}, {kRows, 0, kHeads, kN}, {2, 0, 2, 2, 2, 2, 2, kN}};
  for (const auto& shape : shapes) {
    for (int scheme = FASTNORM_QUANT_NONE; scheme <= FASTNORM_QUANT_NVFP4; ++scheme) {
      Request r = simple_request(shape, FASTNORM_DTYPE_BF16, true, FASTNORM_NORM_LAYER);
      std::vector<int64_t> rows = shape;
      rows.pop_back();
      r.mean = RequestTensor{rows, {}, FASTNORM_DTYPE_F32, address_of(6)};
      if (scheme != FASTNORM_QUANT_NONE) add_quant(&r, static_cast<fastnorm_quant_scheme>(scheme));
      for (RequestTensor* t : tensors_of(r)) {
        bool empty = false;
        for (const int64_t extent : t->shape) empty |= extent == 0;
        if (empty) t->strides.assign(t->shape.size(), kAnyStride + 1);
      }
      NormDesc desc;
      Error error;
      ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
      EXPECT_EQ(desc.rows, 0);
    }
  }
}

// --- weight and bias that broadcast, and x with more dimensions than a description has ---

struct WeightCase {
  std::vector<int64_t> shape;
  std::vector<int64_t> outer, strides;  // innermost first, of the weight in bytes
};

std::vector<int64_t> outer_of(const NormDesc& d) { return {d.outer, d.outer + d.outer_rank}; }
std::vector<int64_t> weight_strides_of(const NormDesc& d) {
  std::vector<int64_t> strides;
  for (int i = 0; i < d.outer_rank; ++i) strides.push_back(d.weight.stride_bytes(i));
  return strides;
}

TEST(CheckNorm, WeightAndBiasBroadcast) {
  const WeightCase cases[] = {
      {{16}, {24}, {0}},
      {{1, 16}, {24}, {0}},
      {{1, 1, 1, 16}, {24}, {0}},
      {{4, 16}, {4, 6}, {32, 0}},
      {{1, 4, 16}, {4, 6}, {32, 0}},
      {{3, 1, 16}, {4, 3, 2}, {0, 32, 0}},
      {{3, 4, 16}, {12, 2}, {32, 0}},
      {{2, 1, 1, 16}, {12, 2}, {0, 32}},
      {{2, 1, 4, 16}, {4, 3, 2}, {32, 0, 128}},
      {{2, 3, 1, 16}, {4, 6}, {0, 32}},
      {{2, 3, 4, 16}, {24}, {32}},
  };
  for (const WeightCase& c : cases) {
    Request r = simple_request({2, 3, 4, 16}, FASTNORM_DTYPE_BF16);
    r.weight->shape = c.shape;
    NormDesc desc;
    Error error;
    ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
    EXPECT_EQ(outer_of(desc), c.outer);
    EXPECT_EQ(weight_strides_of(desc), c.strides);
    // The same with additional dimensions of one index.
    for (auto* t : {&r.x, &r.y}) (*t)->shape = {2, 1, 3, 1, 1, 4, 1, 16};
    r.weight->shape.insert(r.weight->shape.end() - 1, 1);
    if (c.shape.size() > 2) r.weight->shape.insert(r.weight->shape.end() - 3, 2, 1);
    if (c.shape.size() > 3) r.weight->shape.insert(r.weight->shape.begin() + 1, 1);
    ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
    EXPECT_EQ(outer_of(desc), c.outer);
    EXPECT_EQ(weight_strides_of(desc), c.strides);
  }
}

TEST(CheckNorm, NoAddressWithoutRows) {
  Request r = simple_request({0, 0, 1, 1, 5, 16}, FASTNORM_DTYPE_BF16);
  r.weight->shape = {1, 0, 1, 1, 1, 16};
  r.weight->strides = {INT64_MAX, INT64_MIN, 3, -3, 3, 1};
  r.weight->address = 0;
  NormDesc desc;
  Error error;
  EXPECT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(desc.rows, 0);
  r.weight->shape = {16};  // has elements
  r.weight->strides = {};
  EXPECT_EQ(r.check(&desc, error), FASTNORM_ERROR_ARGUMENT);
  EXPECT_NE(std::string(error.text).find("weight.data is NULL"), std::string::npos) << error.text;
}

Request on_gpu(Request r) {
  r.device = {FASTNORM_DEVICE_CUDA, 0};
  for (RequestTensor* t : tensors_of(r)) t->device_type = FASTNORM_DEVICE_CUDA;
  return r;
}

// Most kernels of a GPU support rows of weight and bias along the innermost dimension only. Rows
// are then taken in another order. A weight that varies along several dimensions keeps the order.
TEST(CheckNorm, WeightAndBiasOfAGpu) {
  NormDesc desc;
  Error error;
  Request r = on_gpu(simple_request({2, 3, 4, 16}, FASTNORM_DTYPE_BF16, true));
  r.residual->strides = {1000, 200, 40, 1};
  r.weight->shape = {2, 1, 1, 16};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(outer_of(desc), (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(weight_strides_of(desc), (std::vector<int64_t>{32, 0, 0}));
  EXPECT_EQ(desc.x.stride_bytes[0], 12 * 32);
  EXPECT_EQ(desc.x.stride_bytes[1], 4 * 32);
  EXPECT_EQ(desc.x.stride_bytes[2], 32);
  EXPECT_EQ(desc.residual.stride_bytes[0], 2000);
  EXPECT_EQ(desc.residual.stride_bytes[2], 80);
  r.residual->strides.clear();
  r.weight->shape = {3, 1, 16};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(outer_of(desc), (std::vector<int64_t>{3, 4, 2}));
  EXPECT_EQ(weight_strides_of(desc), (std::vector<int64_t>{32, 0, 0}));

  EXPECT_FALSE(desc.weights_outside);

  r.weight->shape = {2, 1, 4, 16};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(outer_of(desc), (std::vector<int64_t>{4, 3, 2}));
  EXPECT_EQ(weight_strides_of(desc), (std::vector<int64_t>{32, 0, 128}));
  EXPECT_TRUE(desc.weights_outside);
  r.weight->shape = {2, 3, 4, 16};
  r.weight->strides = {1000, 200, -40, 1};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(weight_strides_of(desc), (std::vector<int64_t>{-80, 400, 2000}));
  EXPECT_TRUE(desc.weights_outside);
}

TEST(CheckNorm, SwizzledScalesKeepTheOrderOfRows) {
  NormDesc desc;
  Error error;
  Request r = simple_request({2, 3, 64}, FASTNORM_DTYPE_BF16);
  add_quant(&r, FASTNORM_QUANT_MXFP8);
  r.args.scale_layout = FASTNORM_SCALE_SWIZZLED_128X4;
  r.scale->shape = {512};
  r.weight->shape = {2, 1, 64};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(outer_of(desc), (std::vector<int64_t>{3, 2}));
  r = on_gpu(r);
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(outer_of(desc), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(weight_strides_of(desc), (std::vector<int64_t>{0, 128}));
  EXPECT_TRUE(desc.weights_outside);
  r.weight->shape = {3, 64};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_FALSE(desc.weights_outside);
}

TEST(CheckNorm, AWeightOverAnOutputIsFound) {
  Request r = simple_request({2, 3, 4, 16}, FASTNORM_DTYPE_BF16);
  r.weight->shape = {2, 1, 1, 16};
  r.weight->strides = {1000, 1, 1, 1};
  r.y->address = r.weight->address + 2000;  // its second row
  NormDesc desc;
  Error error;
  EXPECT_EQ(r.check(&desc, error), FASTNORM_ERROR_LAYOUT);
  EXPECT_NE(std::string(error.text).find("overlaps weight"), std::string::npos) << error.text;
  r.y->address = r.weight->address + 64;  // between its rows
  r.y->strides = {1000, 64, 16, 1};
  EXPECT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
}

TEST(CheckNorm, RanksToEightFold) {
  NormDesc desc;
  Error error;
  const std::vector<int64_t> shape = {2, 1, 3, 2, 1, 2, 2, 16};
  Request r = simple_request(shape, FASTNORM_DTYPE_BF16, true, FASTNORM_NORM_LAYER);
  r.mean = RequestTensor{{2, 1, 3, 2, 1, 2, 2}, {}, FASTNORM_DTYPE_F32, address_of(6)};
  r.rstd = RequestTensor{{2, 1, 3, 2, 1, 2, 2, 1}, {}, FASTNORM_DTYPE_F32, address_of(7)};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(outer_of(desc), std::vector<int64_t>{48});
  EXPECT_EQ(desc.rows, 48);
  EXPECT_EQ(desc.rstd.stride_bytes[0], 4);
  // A padded tensor keeps two dimensions from joining.
  r.x->strides = {2000, 7, 500, 160, -9, 80, 40, 1};
  ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(outer_of(desc), (std::vector<int64_t>{8, 3, 2}));
  EXPECT_EQ(desc.x.stride_bytes[0], 80);
  EXPECT_EQ(desc.x.stride_bytes[1], 1000);
  EXPECT_EQ(desc.x.stride_bytes[2], 4000);
  EXPECT_EQ(desc.y.stride_bytes[1], 8 * 32);
  r.x->strides = {2000, 7, 500, 160, -9, 80, 30, 1};
  EXPECT_EQ(r.check(&desc, error), FASTNORM_ERROR_UNSUPPORTED);
  const std::string text = error.text;
  for (const char* part :
       {"x.shape is [2, 1, 3, 2, 1, 2, 2, 16]", "4 leading", "[2, 3, 4, 2]", "nearest"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  for (auto* t : {&r.x, &r.y, &r.residual, &r.residual_out}) (*t)->shape[1] = 0;
  r.mean->shape[1] = r.rstd->shape[1] = 0;
  EXPECT_EQ(r.check(&desc, error), FASTNORM_OK) << "no rows: nothing to fold. " << error.text;
  EXPECT_EQ(desc.rows, 0);
}

// Every requirement also holds for x with more dimensions.
TEST(CheckNorm, RankFiveIsCheckedAlike) {
  const auto widen = [](Request& r) {
    for (RequestTensor* t : tensors_of(r)) {
      const auto is = [&](std::vector<int64_t> shape) { return t->shape == shape; };
      if (!is({kRows, kHeads, kN}) && !is({kRows, kHeads}) && !is({kRows, kHeads, 1})) continue;
      t->shape.insert(t->shape.begin(), {1, 1});
      if (!t->strides.empty()) t->strides.insert(t->strides.begin(), {kAnyStride, 5});
    }
  };
  for (const BadCall& bad : kBadCalls) {
    Request r = full_request();
    bad.spoil(r);
    // Calls whose only fault is a rank that is right for x of rank 5.
    const std::string name = bad.name;
    if (name == "x rank 5 alone" || name == "weight of more dimensions" || !r.x) continue;
    widen(r);
    NormDesc desc;
    Error error;
    EXPECT_NE(r.check(&desc, error), FASTNORM_OK) << bad.name;
    EXPECT_FALSE(std::string(error.text).empty());
  }
  for (const GoodCall& good : kGoodCalls) {
    Request r = full_request();
    good.change(r);
    NormDesc three, five;
    Error error;
    ASSERT_EQ(r.check(&three, error), FASTNORM_OK) << error.text;
    if (r.x->shape != std::vector<int64_t>{kRows, kHeads, kN}) continue;
    widen(r);
    ASSERT_EQ(r.check(&five, error), FASTNORM_OK) << good.name << ": " << error.text;
    EXPECT_EQ(outer_of(five), outer_of(three)) << good.name;
    EXPECT_EQ(weight_strides_of(five), weight_strides_of(three)) << good.name;
    for (int d = 0; d < five.outer_rank; ++d) {
      EXPECT_EQ(five.x.stride_bytes[d], three.x.stride_bytes[d]) << good.name;
      EXPECT_EQ(five.residual_out.stride_bytes[d], three.residual_out.stride_bytes[d]);
      EXPECT_EQ(five.mean.stride_bytes[d], three.mean.stride_bytes[d]);
    }
  }
}

// --- quantised outputs ---

constexpr fastnorm_quant_scheme kNone = FASTNORM_QUANT_NONE, kTensor = FASTNORM_QUANT_PER_TENSOR,
                                kRow = FASTNORM_QUANT_PER_ROW, kBlock = FASTNORM_QUANT_PER_BLOCK,
                                kMx = FASTNORM_QUANT_MXFP8, kFp4 = FASTNORM_QUANT_NVFP4,
                                kMxFp4 = FASTNORM_QUANT_MXFP4;
constexpr int64_t kQuantN =
    272;  // 5 blocks of 64, 9 of 32, 17 of 16; the last of 64 and of 32 short

// A LAYER call with every tensor of the scheme.
Request quant_request(fastnorm_quant_scheme scheme) {
  Request r =
      simple_request({kRows, kHeads, kQuantN}, FASTNORM_DTYPE_BF16, true, FASTNORM_NORM_LAYER);
  RequestTensor statistic;
  statistic.shape = {kRows, kHeads};
  statistic.address = address_of(6);
  r.mean = statistic;
  statistic.address = address_of(7);
  r.rstd = statistic;
  if (scheme != kNone) add_quant(&r, scheme);
  return r;
}

template <typename Enum>
void set_number(Enum* field, int value) {
  static_assert(sizeof *field == sizeof value);
  std::memcpy(field, &value, sizeof value);
}

// Swizzled scales for rows of kQuantN: 5 scales of 64 columns, 9 of 32, 17 of 16.
void swizzle(Request& r) {
  const bool fp4 = r.args.quant_scheme == kFp4;
  const bool mx = r.args.quant_scheme == kMx || r.args.quant_scheme == kMxFp4;
  r.args.scale_layout = FASTNORM_SCALE_SWIZZLED_128X4;
  r.scale->shape = {512 * (fp4 ? 5 : mx ? 3 : 2)};
  if (r.args.quant_scheme == kBlock) {
    r.args.scale_pow2 = 1;
    r.scale->dtype = FASTNORM_DTYPE_F8_E8M0FNU;
  }
}

void give_clamp_scale(Request& r) {
  r.clamp_scale = RequestTensor{{1}, {}, FASTNORM_DTYPE_F32, address_of(14)};
  r.clamp_scale->device_type = r.x->device_type;
}

// Changes the shape of all tensors that have rows.
void set_shape(Request& r, std::vector<int64_t> shape) {
  r.mean.reset();
  r.rstd.reset();
  r.weight->shape = r.bias->shape = {shape.back()};
  for (auto* t : {&r.x, &r.y, &r.residual, &r.residual_out}) (*t)->shape = shape;
  if (r.args.quant_scheme != kNone) add_quant(&r, r.args.quant_scheme);
}

struct BadQuantCall {
  fastnorm_quant_scheme scheme;
  BadCall bad;
};

const BadQuantCall
    kBadQuantCalls
        [] =
            {
                // numbers
                {kRow,
                 {"scheme 7",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_scheme", "is 7", "0 to 6"},
                  [](Request& r) { set_number(&r.args.quant_scheme, 7); }}},
                {kRow,
                 {"scheme -1",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_scheme", "is -1", "0 to 6"},
                  [](Request& r) { set_number(&r.args.quant_scheme, -1); }}},
                {kRow,
                 {"source 2",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_source", "is 2", "FASTNORM_QUANT_FROM_ROUNDED (1)"},
                  [](Request& r) { set_number(&r.args.quant_source, 2); }}},
                {kNone,
                 {"source -1",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_source", "is -1", "FASTNORM_QUANT_FROM_F32 (0)"},
                  [](Request& r) { set_number(&r.args.quant_source, -1); }}},
                {kBlock,
                 {"layout 3",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale_layout", "is 3", "0 to 2"},
                  [](Request& r) { set_number(&r.args.scale_layout, 3); }}},
                {kBlock,
                 {"layout -1",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale_layout", "is -1", "0 to 2"},
                  [](Request& r) { set_number(&r.args.scale_layout, -1); }}},
                {kRow,
                 {"pow2 2",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale_pow2", "is 2", "0 or 1"},
                  [](Request& r) { r.args.scale_pow2 = 2; }}},
                {kRow,
                 {"pow2 -1",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale_pow2", "is -1", "0 or 1"},
                  [](Request& r) { r.args.scale_pow2 = -1; }}},
                {kBlock,
                 {"no block",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_block_size", "is 0", "64 or 128"},
                  [](Request& r) { r.args.quant_block_size = 0; }}},
                {kBlock,
                 {"block 32",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_block_size", "is 32", "64 or 128"},
                  [](Request& r) { r.args.quant_block_size = 32; }}},
                {kBlock,
                 {"block 256",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_block_size", "is 256", "64 or 128"},
                  [](Request& r) { r.args.quant_block_size = 256; }}},
                {kBlock,
                 {"block -64",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_block_size", "is -64", "64 or 128"},
                  [](Request& r) { r.args.quant_block_size = -64; }}},
                {kRow,
                 {"floor negative",
                  FASTNORM_ERROR_ARGUMENT,
                  {"amax_floor", "is -1", "2^-100 to 2^100"},
                  [](Request& r) { r.args.amax_floor = -1; }}},
                {kRow,
                 {"floor too small",
                  FASTNORM_ERROR_ARGUMENT,
                  {"amax_floor", "3.94", "2^-100 to 2^100"},
                  [](Request& r) { r.args.amax_floor = 0x1p-101f; }}},
                {kBlock,
                 {"floor too large",
                  FASTNORM_ERROR_ARGUMENT,
                  {"amax_floor", "1.26765e+30", "2^-100 to 2^100"},
                  [](Request& r) { r.args.amax_floor = std::nextafter(0x1p100f, kInf); }}},
                {kRow,
                 {"floor NaN",
                  FASTNORM_ERROR_ARGUMENT,
                  {"amax_floor", "nan", "2^-100 to 2^100"},
                  [](Request& r) { r.args.amax_floor = kNan; }}},
                {kRow,
                 {"floor Inf",
                  FASTNORM_ERROR_ARGUMENT,
                  {"amax_floor", "inf", "2^-100 to 2^100"},
                  [](Request& r) { r.args.amax_floor = kInf; }}},
                {kTensor,
                 {"clamp negative",
                  FASTNORM_ERROR_ARGUMENT,
                  {"clamp", "is -2", ">= 0"},
                  [](Request& r) { r.args.clamp = -2; }}},
                {kTensor,
                 {"clamp Inf",
                  FASTNORM_ERROR_ARGUMENT,
                  {"clamp", "inf", "finite"},
                  [](Request& r) { r.args.clamp = kInf; }}},
                {kFp4,
                 {"clamp NaN",
                  FASTNORM_ERROR_ARGUMENT,
                  {"clamp", "nan", "finite"},
                  [](Request& r) { r.args.clamp = kNan; }}},

                // numbers that the scheme does not use
                {kNone,
                 {"block of none",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_block_size", "is 64", "quant_scheme is FASTNORM_QUANT_NONE (0)"},
                  [](Request& r) { r.args.quant_block_size = 64; }}},
                {kNone,
                 {"source of none",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_source", "is 1", "quant_scheme is FASTNORM_QUANT_NONE (0)"},
                  [](Request& r) { r.args.quant_source = FASTNORM_QUANT_FROM_ROUNDED; }}},
                {kNone,
                 {"layout of none",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale_layout", "is 2", "quant_scheme is FASTNORM_QUANT_NONE (0)"},
                  [](Request& r) { r.args.scale_layout = FASTNORM_SCALE_SWIZZLED_128X4; }}},
                {kRow,
                 {"division 2",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_division", "is 2", "FASTNORM_QUANT_DIVIDE (1)"},
                  [](Request& r) {
                    r.args.quant_division = static_cast<fastnorm_quant_division>(2);
                  }}},
                {kRow,
                 {"division -1",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_division", "is -1"},
                  [](Request& r) {
                    const int v = -1;
                    std::memcpy(&r.args.quant_division, &v, sizeof v);
                  }}},
                {kNone,
                 {"division of none",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_division", "is 1", "quant_scheme is FASTNORM_QUANT_NONE (0)"},
                  [](Request& r) { r.args.quant_division = FASTNORM_QUANT_DIVIDE; }}},
                {kMx,
                 {"division of MXFP8",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_division", "is 1", "FASTNORM_QUANT_MXFP8 (4)"},
                  [](Request& r) { r.args.quant_division = FASTNORM_QUANT_DIVIDE; }}},
                {kFp4,
                 {"division of NVFP4",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_division", "is 1", "FASTNORM_QUANT_NVFP4 (5)"},
                  [](Request& r) { r.args.quant_division = FASTNORM_QUANT_DIVIDE; }}},
                {kNone,
                 {"pow2 of none",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale_pow2", "is 1", "quant_scheme is FASTNORM_QUANT_NONE (0)"},
                  [](Request& r) { r.args.scale_pow2 = 1; }}},
                {kNone,
                 {"floor of none",
                  FASTNORM_ERROR_ARGUMENT,
                  {"amax_floor", "0.5", "quant_scheme is FASTNORM_QUANT_NONE (0)"},
                  [](Request& r) { r.args.amax_floor = 0.5f; }}},
                {kNone,
                 {"clamp_scale of none",
                  FASTNORM_ERROR_ARGUMENT,
                  {"clamp_scale is given", "quant_scheme is FASTNORM_QUANT_NONE (0)",
                   "clamp_scale NULL"},
                  [](Request& r) { give_clamp_scale(r); }}},
                {kRow,
                 {"clamp and clamp_scale",
                  FASTNORM_ERROR_ARGUMENT,
                  {"clamp is 2 and clamp_scale is given", "clamp 0, or clamp_scale NULL"},
                  [](Request& r) {
                    give_clamp_scale(r);
                    r.args.clamp = 2;
                  }}},
                {kRow,
                 {"clamp_scale bf16",
                  FASTNORM_ERROR_DTYPE,
                  {"clamp_scale.dtype", "bf16", "f32"},
                  [](Request& r) {
                    give_clamp_scale(r);
                    r.clamp_scale->dtype = FASTNORM_DTYPE_BF16;
                  }}},
                {kMx,
                 {"clamp_scale of 2",
                  FASTNORM_ERROR_SHAPE,
                  {"clamp_scale.shape", "[2]", "[1]"},
                  [](Request& r) {
                    give_clamp_scale(r);
                    r.clamp_scale->shape = {2};
                  }}},
                {kFp4,
                 {"clamp_scale of rank 2",
                  FASTNORM_ERROR_SHAPE,
                  {"clamp_scale.ndim", "2", "1"},
                  [](Request& r) {
                    give_clamp_scale(r);
                    r.clamp_scale->shape = {1, 1};
                  }}},
                {kTensor,
                 {"clamp_scale elsewhere",
                  FASTNORM_ERROR_DEVICE,
                  {"clamp_scale", "CUDA:0"},
                  [](Request& r) {
                    give_clamp_scale(r);
                    r.clamp_scale->device_type = FASTNORM_DEVICE_CUDA;
                  }}},
                {kTensor,
                 {"clamp_scale misaligned",
                  FASTNORM_ERROR_LAYOUT,
                  {"clamp_scale's address", "multiple of 4"},
                  [](Request& r) {
                    give_clamp_scale(r);
                    r.clamp_scale->address += 2;
                  }}},
                {kBlock,
                 {"clamp_scale over y",
                  FASTNORM_ERROR_LAYOUT,
                  {"overlaps clamp_scale"},
                  [](Request& r) {
                    give_clamp_scale(r);
                    r.clamp_scale->address = r.y->address;
                  }}},
                {kRow,
                 {"clamp_scale over the scales",
                  FASTNORM_ERROR_LAYOUT,
                  {"overlaps clamp_scale"},
                  [](Request& r) {
                    give_clamp_scale(r);
                    r.clamp_scale->address = r.scale->address;
                  }}},
                {kNone,
                 {"floor NaN of none",
                  FASTNORM_ERROR_ARGUMENT,
                  {"amax_floor", "nan", "quant_scheme is FASTNORM_QUANT_NONE (0)"},
                  [](Request& r) { r.args.amax_floor = kNan; }}},
                {kNone,
                 {"clamp of none",
                  FASTNORM_ERROR_ARGUMENT,
                  {"clamp", "is 3", "quant_scheme is FASTNORM_QUANT_NONE (0)"},
                  [](Request& r) { r.args.clamp = 3; }}},
                {kTensor,
                 {"block of a tensor",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_block_size", "is 64", "quant_scheme is FASTNORM_QUANT_PER_TENSOR (1)"},
                  [](Request& r) { r.args.quant_block_size = 64; }}},
                {kRow,
                 {"block of a row",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_block_size", "is 128", "FASTNORM_QUANT_PER_BLOCK"},
                  [](Request& r) { r.args.quant_block_size = 128; }}},
                {kMxFp4,
                 {"division of MXFP4",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_division", "is 1", "FASTNORM_QUANT_MXFP4 (6)"},
                  [](Request& r) { r.args.quant_division = FASTNORM_QUANT_DIVIDE; }}},
                {kMxFp4,
                 {"pow2 of MXFP4",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale_pow2", "is 1", "FASTNORM_QUANT_MXFP4 (6)"},
                  [](Request& r) { r.args.scale_pow2 = 1; }}},
                {kMxFp4,
                 {"floor of MXFP4",
                  FASTNORM_ERROR_ARGUMENT,
                  {"amax_floor", "is 1", "FASTNORM_QUANT_MXFP4 (6)"},
                  [](Request& r) { r.args.amax_floor = 1; }}},
                {kMxFp4,
                 {"block of MXFP4",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_block_size", "is 32", "FASTNORM_QUANT_MXFP4 (6)"},
                  [](Request& r) { r.args.quant_block_size = 32; }}},
                {kMxFp4,
                 {"global_scale of MXFP4",
                  FASTNORM_ERROR_ARGUMENT,
                  {"global_scale is given", "FASTNORM_QUANT_MXFP4 (6)"},
                  [](Request& r) { r.global_scale = r.amax; }}},
                {kMxFp4,
                 {"MXFP4 to e4m3",
                  FASTNORM_ERROR_DTYPE,
                  {"quantized.dtype", "f8_e4m3fn", "f4_e2m1fn, f4_e2m1fn_x2 or u8"},
                  [](Request& r) { r.quantized->dtype = FASTNORM_DTYPE_F8_E4M3FN; }}},
                {kMxFp4,
                 {"MXFP4 scale e4m3",
                  FASTNORM_ERROR_DTYPE,
                  {"scale.dtype", "f8_e4m3fn", "f8_e8m0fnu or u8"},
                  [](Request& r) { r.scale->dtype = FASTNORM_DTYPE_F8_E4M3FN; }}},
                {kMxFp4,
                 {"MXFP4 scale f32",
                  FASTNORM_ERROR_DTYPE,
                  {"scale.dtype", "f32", "f8_e8m0fnu or u8"},
                  [](Request& r) { r.scale->dtype = FASTNORM_DTYPE_F32; }}},
                {kMxFp4,
                 {"MXFP4, odd n",
                  FASTNORM_ERROR_SHAPE,
                  {"n is 33", "even", "MXFP4"},
                  [](Request& r) {
                    set_shape(r, {kRows, kHeads, 33});
                  }}},
                {kMxFp4,
                 {"MXFP4, pairs of n",
                  FASTNORM_ERROR_SHAPE,
                  {"quantized.shape", "half of n"},
                  [](Request& r) { r.quantized->dtype = FASTNORM_DTYPE_F4_E2M1FN_X2; }}},
                {kMxFp4,
                 {"MXFP4 scales of 16",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.shape", "[2, 3, 17]", "9 scales a row"},
                  [](Request& r) { r.scale->shape[2] = 17; }}},
                {kMxFp4,
                 {"odd stride of MXFP4",
                  FASTNORM_ERROR_LAYOUT,
                  {"quantized.strides[1]", "is 275", "even"},
                  [](Request& r) {
                    r.quantized->strides = {1000, 275, 1};
                  }}},
                {kMx,
                 {"block of MXFP8",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_block_size", "is 32", "quant_scheme is FASTNORM_QUANT_MXFP8 (4)"},
                  [](Request& r) { r.args.quant_block_size = 32; }}},
                {kFp4,
                 {"block of NVFP4",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quant_block_size", "is 16", "quant_scheme is FASTNORM_QUANT_NVFP4 (5)"},
                  [](Request& r) { r.args.quant_block_size = 16; }}},
                {kTensor,
                 {"layout of a tensor",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale_layout", "is 1", "scales of blocks"},
                  [](Request& r) { r.args.scale_layout = FASTNORM_SCALE_COLUMN_MAJOR; }}},
                {kRow,
                 {"layout of a row",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale_layout", "is 2", "scales of blocks"},
                  [](Request& r) { r.args.scale_layout = FASTNORM_SCALE_SWIZZLED_128X4; }}},
                {kTensor,
                 {"pow2 of a tensor",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale_pow2", "is 1", "quant_scheme is FASTNORM_QUANT_PER_TENSOR (1)"},
                  [](Request& r) { r.args.scale_pow2 = 1; }}},
                {kMx,
                 {"pow2 of MXFP8",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale_pow2", "is 1", "PER_ROW or PER_BLOCK"},
                  [](Request& r) { r.args.scale_pow2 = 1; }}},
                {kFp4,
                 {"pow2 of NVFP4",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale_pow2", "is 1", "PER_ROW or PER_BLOCK"},
                  [](Request& r) { r.args.scale_pow2 = 1; }}},
                {kTensor,
                 {"floor of a tensor",
                  FASTNORM_ERROR_ARGUMENT,
                  {"amax_floor", "is 1", "PER_ROW or PER_BLOCK"},
                  [](Request& r) { r.args.amax_floor = 1; }}},
                {kMx,
                 {"floor of MXFP8",
                  FASTNORM_ERROR_ARGUMENT,
                  {"amax_floor", "is 1", "quant_scheme is FASTNORM_QUANT_MXFP8 (4)"},
                  [](Request& r) { r.args.amax_floor = 1; }}},
                {kFp4,
                 {"floor of NVFP4",
                  FASTNORM_ERROR_ARGUMENT,
                  {"amax_floor", "is 1", "quant_scheme is FASTNORM_QUANT_NVFP4 (5)"},
                  [](Request& r) { r.args.amax_floor = 1; }}},

                // tensors that are missing, or that nothing uses
                {kNone,
                 {"quantized of none",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quantized is given", "FASTNORM_QUANT_NONE"},
                  [](Request& r) { r.args.quantized = &kAnyTensor; }}},
                {kNone,
                 {"quantized alone",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quantized is given", "FASTNORM_QUANT_NONE"},
                  [](Request& r) {
                    r.y.reset();
                    r.args.quantized = &kAnyTensor;
                  }}},
                {kNone,
                 {"scale of none",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale is given", "FASTNORM_QUANT_NONE"},
                  [](Request& r) { r.args.scale = &kAnyTensor; }}},
                {kNone,
                 {"global_scale of none",
                  FASTNORM_ERROR_ARGUMENT,
                  {"global_scale is given", "quant_scheme is FASTNORM_QUANT_NONE (0)",
                   "FASTNORM_QUANT_NVFP4"},
                  [](Request& r) { r.args.global_scale = &kAnyTensor; }}},
                {kNone,
                 {"amax alone",
                  FASTNORM_ERROR_ARGUMENT,
                  {"y is NULL", "quantized is NULL"},
                  [](Request& r) {
                    add_quant(&r, kTensor);
                    r.args.quant_scheme = kNone;
                    r.quantized.reset();
                    r.scale.reset();
                    r.y.reset();
                  }}},
                {kTensor,
                 {"tensor without quantized",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quantized is NULL", "quant_scheme is FASTNORM_QUANT_PER_TENSOR (1)"},
                  [](Request& r) { r.quantized.reset(); }}},
                {kTensor,
                 {"tensor without scale",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale is NULL", "quant_scheme is FASTNORM_QUANT_PER_TENSOR (1)"},
                  [](Request& r) { r.scale.reset(); }}},
                {kTensor,
                 {"global_scale of a tensor",
                  FASTNORM_ERROR_ARGUMENT,
                  {"global_scale is given", "quant_scheme is FASTNORM_QUANT_PER_TENSOR (1)"},
                  [](Request& r) { r.global_scale = r.scale; }}},
                {kRow,
                 {"row without quantized",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quantized is NULL", "quant_scheme is FASTNORM_QUANT_PER_ROW (2)"},
                  [](Request& r) { r.quantized.reset(); }}},
                {kRow,
                 {"row without outputs",
                  FASTNORM_ERROR_ARGUMENT,
                  {"y is NULL", "quantized is NULL"},
                  [](Request& r) {
                    r.quantized.reset();
                    r.y.reset();
                  }}},
                {kRow,
                 {"row without scale",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale is NULL", "quant_scheme is FASTNORM_QUANT_PER_ROW (2)"},
                  [](Request& r) { r.scale.reset(); }}},
                {kBlock,
                 {"block without scale",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale is NULL", "quant_scheme is FASTNORM_QUANT_PER_BLOCK (3)"},
                  [](Request& r) { r.scale.reset(); }}},
                {kMx,
                 {"MXFP8 without quantized",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quantized is NULL", "quant_scheme is FASTNORM_QUANT_MXFP8 (4)"},
                  [](Request& r) { r.quantized.reset(); }}},
                {kMx,
                 {"global_scale of MXFP8",
                  FASTNORM_ERROR_ARGUMENT,
                  {"global_scale is given", "quant_scheme is FASTNORM_QUANT_MXFP8 (4)"},
                  [](Request& r) { r.global_scale = r.amax; }}},
                {kFp4,
                 {"NVFP4 without quantized",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quantized is NULL", "quant_scheme is FASTNORM_QUANT_NVFP4 (5)"},
                  [](Request& r) { r.quantized.reset(); }}},
                {kFp4,
                 {"NVFP4 without scale",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale is NULL", "quant_scheme is FASTNORM_QUANT_NVFP4 (5)"},
                  [](Request& r) { r.scale.reset(); }}},

                // dtypes
                {kTensor,
                 {"tensor to bf16",
                  FASTNORM_ERROR_DTYPE,
                  {"quantized.dtype", "bf16", "f8_e4m3fn, f8_e5m2 or i8"},
                  [](Request& r) { r.quantized->dtype = FASTNORM_DTYPE_BF16; }}},
                {kRow,
                 {"row to u8",
                  FASTNORM_ERROR_DTYPE,
                  {"quantized.dtype", "u8", "f8_e4m3fn, f8_e5m2 or i8"},
                  [](Request& r) { r.quantized->dtype = FASTNORM_DTYPE_U8; }}},
                {kRow,
                 {"row to e8m0",
                  FASTNORM_ERROR_DTYPE,
                  {"quantized.dtype", "f8_e8m0fnu", "f8_e4m3fn"},
                  [](Request& r) { r.quantized->dtype = FASTNORM_DTYPE_F8_E8M0FNU; }}},
                {kBlock,
                 {"block to f4",
                  FASTNORM_ERROR_DTYPE,
                  {"quantized.dtype", "f4_e2m1fn", "i8"},
                  [](Request& r) { r.quantized->dtype = FASTNORM_DTYPE_F4_E2M1FN; }}},
                {kRow,
                 {"unknown codes",
                  FASTNORM_ERROR_DTYPE,
                  {"quantized.dtype", "bits 3", "f8_e4m3fn"},
                  [](Request& r) { set_number(&r.quantized->dtype, 0x00010311); }}},
                {kRow,
                 {"row pow2 to i8",
                  FASTNORM_ERROR_DTYPE,
                  {"quantized.dtype", "i8", "f8_e4m3fn or f8_e5m2"},
                  [](Request& r) {
                    r.quantized->dtype = FASTNORM_DTYPE_I8;
                    r.args.scale_pow2 = 1;
                  }}},
                {kMx,
                 {"MXFP8 to i8",
                  FASTNORM_ERROR_DTYPE,
                  {"quantized.dtype", "i8", "f8_e4m3fn or f8_e5m2"},
                  [](Request& r) { r.quantized->dtype = FASTNORM_DTYPE_I8; }}},
                {kFp4,
                 {"NVFP4 to e4m3",
                  FASTNORM_ERROR_DTYPE,
                  {"quantized.dtype", "f8_e4m3fn", "f4_e2m1fn, f4_e2m1fn_x2 or u8"},
                  [](Request& r) { r.quantized->dtype = FASTNORM_DTYPE_F8_E4M3FN; }}},
                {kFp4,
                 {"NVFP4 to i8",
                  FASTNORM_ERROR_DTYPE,
                  {"quantized.dtype", "i8", "f4_e2m1fn_x2"},
                  [](Request& r) { r.quantized->dtype = FASTNORM_DTYPE_I8; }}},
                {kTensor,
                 {"tensor scale bf16",
                  FASTNORM_ERROR_DTYPE,
                  {"scale.dtype", "bf16", "f32"},
                  [](Request& r) { r.scale->dtype = FASTNORM_DTYPE_BF16; }}},
                {kTensor,
                 {"tensor scale e8m0",
                  FASTNORM_ERROR_DTYPE,
                  {"scale.dtype", "f8_e8m0fnu", "f32"},
                  [](Request& r) { r.scale->dtype = FASTNORM_DTYPE_F8_E8M0FNU; }}},
                {kRow,
                 {"row scale f16",
                  FASTNORM_ERROR_DTYPE,
                  {"scale.dtype", "f16", "f32"},
                  [](Request& r) { r.scale->dtype = FASTNORM_DTYPE_F16; }}},
                {kRow,
                 {"row scale e8m0 without pow2",
                  FASTNORM_ERROR_DTYPE,
                  {"scale.dtype", "f8_e8m0fnu", "f32"},
                  [](Request& r) { r.scale->dtype = FASTNORM_DTYPE_F8_E8M0FNU; }}},
                {kBlock,
                 {"block scale u8 without pow2",
                  FASTNORM_ERROR_DTYPE,
                  {"scale.dtype", "u8", "f32"},
                  [](Request& r) { r.scale->dtype = FASTNORM_DTYPE_U8; }}},
                {kBlock,
                 {"block scale e4m3",
                  FASTNORM_ERROR_DTYPE,
                  {"scale.dtype", "f8_e4m3fn", "f32, f8_e8m0fnu or u8"},
                  [](Request& r) {
                    r.args.scale_pow2 = 1;
                    r.scale->dtype = FASTNORM_DTYPE_F8_E4M3FN;
                  }}},
                {kBlock,
                 {"swizzled f32",
                  FASTNORM_ERROR_DTYPE,
                  {"scale.dtype", "f32", "scale_pow2 1"},
                  [](Request& r) {
                    swizzle(r);
                    r.scale->dtype = FASTNORM_DTYPE_F32;
                  }}},
                {kBlock,
                 {"swizzled without pow2",
                  FASTNORM_ERROR_DTYPE,
                  {"scale.dtype", "u8", "scale_pow2 1"},
                  [](Request& r) {
                    swizzle(r);
                    r.scale->dtype = FASTNORM_DTYPE_U8;
                    r.args.scale_pow2 = 0;
                  }}},
                {kMx,
                 {"MXFP8 scale f32",
                  FASTNORM_ERROR_DTYPE,
                  {"scale.dtype", "f32", "f8_e8m0fnu or u8"},
                  [](Request& r) { r.scale->dtype = FASTNORM_DTYPE_F32; }}},
                {kMx,
                 {"MXFP8 scale e4m3",
                  FASTNORM_ERROR_DTYPE,
                  {"scale.dtype", "f8_e4m3fn", "f8_e8m0fnu or u8"},
                  [](Request& r) { r.scale->dtype = FASTNORM_DTYPE_F8_E4M3FN; }}},
                {kFp4,
                 {"NVFP4 scale e8m0",
                  FASTNORM_ERROR_DTYPE,
                  {"scale.dtype", "f8_e8m0fnu", "f8_e4m3fn or u8"},
                  [](Request& r) { r.scale->dtype = FASTNORM_DTYPE_F8_E8M0FNU; }}},
                {kFp4,
                 {"NVFP4 scale f32",
                  FASTNORM_ERROR_DTYPE,
                  {"scale.dtype", "f32", "f8_e4m3fn or u8"},
                  [](Request& r) { r.scale->dtype = FASTNORM_DTYPE_F32; }}},
                {kFp4,
                 {"global_scale bf16",
                  FASTNORM_ERROR_DTYPE,
                  {"global_scale.dtype", "bf16", "f32"},
                  [](Request& r) { r.global_scale->dtype = FASTNORM_DTYPE_BF16; }}},
                {kRow,
                 {"amax f16",
                  FASTNORM_ERROR_DTYPE,
                  {"amax.dtype", "f16", "f32"},
                  [](Request& r) { r.amax->dtype = FASTNORM_DTYPE_F16; }}},

                // shapes
                {kTensor,
                 {"codes too long",
                  FASTNORM_ERROR_SHAPE,
                  {"quantized.shape", "[2, 3, 273]", "[2, 3, 272]"},
                  [](Request& r) { r.quantized->shape[2] = 273; }}},
                {kTensor,
                 {"codes of other rows",
                  FASTNORM_ERROR_SHAPE,
                  {"quantized.shape", "[3, 3, 272]", "[2, 3, 272]"},
                  [](Request& r) { r.quantized->shape[0] = 3; }}},
                {kRow,
                 {"codes of another rank",
                  FASTNORM_ERROR_SHAPE,
                  {"quantized.shape", "[6, 272]", "[2, 3, 272]"},
                  [](Request& r) {
                    r.quantized->shape = {6, kQuantN};
                  }}},
                {kRow,
                 {"codes of rank 5",
                  FASTNORM_ERROR_SHAPE,
                  {"quantized.shape", "[1, 1, 2, 3, 272]", "[2, 3, 272]"},
                  [](Request& r) {
                    r.quantized->shape = {1, 1, 2, 3, kQuantN};
                  }}},
                {kFp4,
                 {"f4 of half n",
                  FASTNORM_ERROR_SHAPE,
                  {"quantized.shape", "[2, 3, 136]", "[2, 3, 272]"},
                  [](Request& r) { r.quantized->shape[2] = kQuantN / 2; }}},
                {kFp4,
                 {"pairs of n",
                  FASTNORM_ERROR_SHAPE,
                  {"quantized.shape", "[2, 3, 272]", "half of n"},
                  [](Request& r) { r.quantized->dtype = FASTNORM_DTYPE_F4_E2M1FN_X2; }}},
                {kFp4,
                 {"u8 of n",
                  FASTNORM_ERROR_SHAPE,
                  {"quantized.shape", "[2, 3, 272]", "half of n"},
                  [](Request& r) { r.quantized->dtype = FASTNORM_DTYPE_U8; }}},
                {kFp4,
                 {"odd n",
                  FASTNORM_ERROR_SHAPE,
                  {"n is 33", "even", "NVFP4"},
                  [](Request& r) { set_shape(r, {kRows, kHeads, 33}); }}},
                {kFp4,
                 {"n 1",
                  FASTNORM_ERROR_SHAPE,
                  {"n is 1", "even"},
                  [](Request& r) { set_shape(r, {kRows, kHeads, 1}); }}},
                {kTensor,
                 {"two scales of a tensor",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.shape", "[2]", "[1]"},
                  [](Request& r) { r.scale->shape = {2}; }}},
                {kTensor,
                 {"no scale of a tensor",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.shape", "[0]", "[1]"},
                  [](Request& r) { r.scale->shape = {0}; }}},
                {kTensor,
                 {"tensor scale of rank 2",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.ndim", "is 2"},
                  [](Request& r) {
                    r.scale->shape = {1, 1};
                  }}},
                {kTensor,
                 {"tensor scale of rank 0",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.ndim", "is 0"},
                  [](Request& r) { r.scale->ndim = 0; }}},
                {kRow,
                 {"row scales transposed",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.shape", "[3, 2]", "x.shape[:-1]"},
                  [](Request& r) {
                    r.scale->shape = {kHeads, kRows};
                  }}},
                {kRow,
                 {"row scales flattened",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.shape", "[6]", "[2, 3, 272]"},
                  [](Request& r) { r.scale->shape = {kRows * kHeads}; }}},
                {kRow,
                 {"row scales of n",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.shape", "[2, 3, 2]", "and 1"},
                  [](Request& r) {
                    r.scale->shape = {kRows, kHeads, 2};
                  }}},
                {kBlock,
                 {"block scales without last",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.shape", "[2, 3]", "5 scales a row"},
                  [](Request& r) {
                    r.scale->shape = {kRows, kHeads};
                  }}},
                {kBlock,
                 {"scales of full blocks only",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.shape", "[2, 3, 4]", "5 scales a row"},
                  [](Request& r) { r.scale->shape[2] = 4; }}},
                {kBlock,
                 {"scales of the other block size",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.shape", "[2, 3, 5]", "3 scales a row"},
                  [](Request& r) { r.args.quant_block_size = 128; }}},
                {kMx,
                 {"MXFP8 scales of full blocks only",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.shape", "[2, 3, 8]", "9 scales a row"},
                  [](Request& r) { r.scale->shape[2] = 8; }}},
                {kMx,
                 {"MXFP8 scales of other rows",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.shape", "[2, 1, 9]"},
                  [](Request& r) { r.scale->shape[1] = 1; }}},
                {kFp4,
                 {"NVFP4 scales of 32",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.shape", "[2, 3, 9]", "17 scales a row"},
                  [](Request& r) { r.scale->shape[2] = 9; }}},
                {kBlock,
                 {"swizzled of plain shape",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.ndim", "is 3", "required: 1"},
                  [](Request& r) {
                    swizzle(r);
                    r.scale->shape = {kRows, kHeads, 5};
                  }}},
                {kMx,
                 {"swizzled without padding",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.shape", "[54]", "6 rows of 9 scales"},
                  [](Request& r) {
                    swizzle(r);
                    r.scale->shape = {54};
                  }}},
                {kFp4,
                 {"swizzled, a tile less",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.shape", "[2048]", "6 rows of 17 scales"},
                  [](Request& r) {
                    swizzle(r);
                    r.scale->shape = {2048};
                  }}},
                {kFp4,
                 {"swizzled, a tile more",
                  FASTNORM_ERROR_SHAPE,
                  {"scale.shape", "[3072]", "512 *"},
                  [](Request& r) {
                    swizzle(r);
                    r.scale->shape = {3072};
                  }}},
                {kFp4,
                 {"two global scales",
                  FASTNORM_ERROR_SHAPE,
                  {"global_scale.shape", "[2]", "[1]"},
                  [](Request& r) { r.global_scale->shape = {2}; }}},
                {kFp4,
                 {"global_scale of rank 2",
                  FASTNORM_ERROR_SHAPE,
                  {"global_scale.ndim", "is 2"},
                  [](Request& r) {
                    r.global_scale->shape = {1, 1};
                  }}},
                {kRow,
                 {"amax of rows",
                  FASTNORM_ERROR_SHAPE,
                  {"amax.shape", "[6]", "[1]"},
                  [](Request& r) { r.amax->shape = {6}; }}},
                {kRow,
                 {"amax of rank 2",
                  FASTNORM_ERROR_SHAPE,
                  {"amax.ndim", "is 2"},
                  [](Request& r) { r.amax->shape = {1, 1}; }}},
                {kRow,
                 {"negative extent of codes",
                  FASTNORM_ERROR_SHAPE,
                  {"quantized.shape", "extents >= 0"},
                  [](Request& r) { r.quantized->shape[0] = -2; }}},

                // layout
                {kRow,
                 {"codes with gaps",
                  FASTNORM_ERROR_LAYOUT,
                  {"quantized.strides[2]", "is 2", "contiguous"},
                  [](Request& r) {
                    r.quantized->strides = {2000, 600, 2};
                  }}},
                {kRow,
                 {"code rows broadcast",
                  FASTNORM_ERROR_LAYOUT,
                  {"quantized overlaps itself"},
                  [](Request& r) {
                    r.quantized->strides = {kQuantN, 0, 1};
                  }}},
                {kRow,
                 {"code rows overlap",
                  FASTNORM_ERROR_LAYOUT,
                  {"quantized overlaps itself"},
                  [](Request& r) {
                    r.quantized->strides = {3 * kQuantN, kQuantN - 1, 1};
                  }}},
                {kFp4,
                 {"f4 rows overlap",
                  FASTNORM_ERROR_LAYOUT,
                  {"quantized overlaps itself", "136 bytes"},
                  [](Request& r) {
                    r.quantized->strides = {3 * kQuantN, kQuantN - 2, 1};
                  }}},
                {kFp4,
                 {"odd stride of f4",
                  FASTNORM_ERROR_LAYOUT,
                  {"quantized.strides[1]", "is 275", "even"},
                  [](Request& r) {
                    r.quantized->strides = {1000, 275, 1};
                  }}},
                {kFp4,
                 {"odd outer stride of f4",
                  FASTNORM_ERROR_LAYOUT,
                  {"quantized.strides[0]", "is -1001", "even"},
                  [](Request& r) {
                    r.quantized->strides = {-1001, 272, 1};
                  }}},
                {kFp4,
                 {"pairs overlap",
                  FASTNORM_ERROR_LAYOUT,
                  {"quantized overlaps itself"},
                  [](Request& r) {
                    r.quantized->dtype = FASTNORM_DTYPE_F4_E2M1FN_X2;
                    r.quantized->shape[2] = 136;
                    r.quantized->strides = {408, 135, 1};
                  }}},
                {kRow,
                 {"row scales broadcast",
                  FASTNORM_ERROR_LAYOUT,
                  {"scale overlaps itself"},
                  [](Request& r) {
                    r.scale->strides = {0, 1};
                  }}},
                {kRow,
                 {"row scales overlap",
                  FASTNORM_ERROR_LAYOUT,
                  {"scale overlaps itself"},
                  [](Request& r) {
                    r.scale->strides = {2, 1};
                  }}},
                {kBlock,
                 {"one scale for all blocks",
                  FASTNORM_ERROR_LAYOUT,
                  {"scale overlaps itself", "5 scales"},
                  [](Request& r) {
                    r.scale->strides = {15, 5, 0};
                  }}},
                {kBlock,
                 {"scales of two rows overlap",
                  FASTNORM_ERROR_LAYOUT,
                  {"scale overlaps itself"},
                  [](Request& r) {
                    r.scale->strides = {15, 4, 1};
                  }}},
                {kMx,
                 {"columns of scales overlap",
                  FASTNORM_ERROR_LAYOUT,
                  {"scale overlaps itself"},
                  [](Request& r) {
                    r.args.scale_layout = FASTNORM_SCALE_COLUMN_MAJOR;
                    r.scale->strides = {3, 1, 5};
                  }}},
                {kMx,
                 {"scales past the address space",
                  FASTNORM_ERROR_LAYOUT,
                  {"scale"},
                  [](Request& r) {
                    r.scale->strides = {int64_t{1} << 62, 9, int64_t{1} << 61};
                  }}},
                {kBlock,
                 {"stride of scales past 2^63 bytes",
                  FASTNORM_ERROR_LAYOUT,
                  {"scale.strides[2]", "2^63 bytes"},
                  [](Request& r) {
                    r.scale->strides = {15, 5, int64_t{1} << 62};
                  }}},
                {kMx,
                 {"swizzled with gaps",
                  FASTNORM_ERROR_LAYOUT,
                  {"scale.strides[0]", "is 2"},
                  [](Request& r) {
                    swizzle(r);
                    r.scale->strides = {2};
                  }}},
                {kRow,
                 {"scale at a half word",
                  FASTNORM_ERROR_LAYOUT,
                  {"scale's address", "multiple of 4"},
                  [](Request& r) { r.scale->address += 2; }}},
                {kTensor,
                 {"tensor scale at an odd address",
                  FASTNORM_ERROR_LAYOUT,
                  {"scale's address", "multiple of 4"},
                  [](Request& r) { r.scale->address += 1; }}},
                {kFp4,
                 {"global_scale at a half word",
                  FASTNORM_ERROR_LAYOUT,
                  {"global_scale's address", "multiple of 4"},
                  [](Request& r) { r.global_scale->byte_offset = 2; }}},
                {kFp4,
                 {"amax at a half word",
                  FASTNORM_ERROR_LAYOUT,
                  {"amax's address", "multiple of 4"},
                  [](Request& r) { r.amax->address += 2; }}},
                {kRow,
                 {"codes without memory",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quantized.data is NULL"},
                  [](Request& r) { r.quantized->address = 0; }}},
                {kRow,
                 {"scales without memory",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale.data is NULL"},
                  [](Request& r) { r.scale->address = 0; }}},
                {kTensor,
                 {"tensor scale without memory",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale.data is NULL"},
                  [](Request& r) { r.scale->address = 0; }}},
                {kMx,
                 {"swizzled without memory",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale.data is NULL"},
                  [](Request& r) {
                    swizzle(r);
                    r.scale->address = 0;
                  }}},
                {kFp4,
                 {"global_scale without memory",
                  FASTNORM_ERROR_ARGUMENT,
                  {"global_scale.data is NULL"},
                  [](Request& r) { r.global_scale->address = 0; }}},
                {kFp4,
                 {"amax without memory",
                  FASTNORM_ERROR_ARGUMENT,
                  {"amax.data is NULL"},
                  [](Request& r) { r.amax->address = 0; }}},
                {kFp4,
                 {"codes without shape",
                  FASTNORM_ERROR_ARGUMENT,
                  {"quantized.shape is NULL"},
                  [](Request& r) { r.quantized->null_shape = true; }}},
                {kFp4,
                 {"scales without shape",
                  FASTNORM_ERROR_ARGUMENT,
                  {"scale.shape is NULL"},
                  [](Request& r) { r.scale->null_shape = true; }}},
                {kFp4,
                 {"amax without shape",
                  FASTNORM_ERROR_ARGUMENT,
                  {"amax.shape is NULL"},
                  [](Request& r) { r.amax->null_shape = true; }}},
                {kRow,
                 {"codes past the address space",
                  FASTNORM_ERROR_LAYOUT,
                  {"quantized"},
                  [](Request& r) { r.quantized->address = UINTPTR_MAX - 300; }}},

                // devices
                {kRow,
                 {"codes on CUDA",
                  FASTNORM_ERROR_DEVICE,
                  {"quantized is on", "CUDA:0", "CPU:0"},
                  [](Request& r) { r.quantized->device_type = FASTNORM_DEVICE_CUDA; }}},
                {kRow,
                 {"scales on CUDA",
                  FASTNORM_ERROR_DEVICE,
                  {"scale is on", "CUDA:0"},
                  [](Request& r) { r.scale->device_type = FASTNORM_DEVICE_CUDA; }}},
                {kTensor,
                 {"tensor scale on CUDA",
                  FASTNORM_ERROR_DEVICE,
                  {"scale is on", "CUDA:0"},
                  [](Request& r) { r.scale->device_type = FASTNORM_DEVICE_CUDA; }}},
                {kMx,
                 {"swizzled scales on CUDA",
                  FASTNORM_ERROR_DEVICE,
                  {"scale is on", "CUDA:0"},
                  [](Request& r) {
                    swizzle(r);
                    r.scale->device_type = FASTNORM_DEVICE_CUDA;
                  }}},
                {kFp4,
                 {"global_scale on CUDA",
                  FASTNORM_ERROR_DEVICE,
                  {"global_scale is on", "CUDA:0"},
                  [](Request& r) { r.global_scale->device_type = FASTNORM_DEVICE_CUDA; }}},
                {kFp4,
                 {"managed amax",
                  FASTNORM_ERROR_DEVICE,
                  {"amax is on", "CUDA_MANAGED"},
                  [](Request& r) { r.amax->device_type = FASTNORM_DEVICE_CUDA_MANAGED; }}},
};

TEST(CheckQuant, EachRequirement) {
  for (const BadQuantCall& call : kBadQuantCalls) {
    expect_refused(call.bad, quant_request(call.scheme));
  }
}

// What a scheme writes may not share memory, except y with x and residual_out with residual.
TEST(CheckQuant, NoOverlap) {
  using Field = std::optional<RequestTensor> Request::*;
  struct Named {
    const char* name;
    Field field;
  };
  const Named all[] = {{"x", &Request::x},
                       {"residual", &Request::residual},
                       {"weight", &Request::weight},
                       {"bias", &Request::bias},
                       {"y", &Request::y},
                       {"residual_out", &Request::residual_out},
                       {"mean", &Request::mean},
                       {"rstd", &Request::rstd},
                       {"quantized", &Request::quantized},
                       {"scale", &Request::scale},
                       {"global_scale", &Request::global_scale},
                       {"amax", &Request::amax},
                       {"clamp_scale", &Request::clamp_scale}};
  int refused = 0;
  for (const fastnorm_quant_scheme scheme : {kTensor, kRow, kBlock, kMx, kFp4, kMxFp4}) {
    for (const bool swizzled : {false, true}) {
      Request good = quant_request(scheme);
      give_clamp_scale(good);
      if (swizzled && scheme < kBlock) continue;
      if (swizzled) swizzle(good);
      const std::vector<Named> outputs = {
          {"quantized", &Request::quantized},
          {"amax", &Request::amax},
          {scheme == kTensor ? "quantized" : "scale",
           scheme == kTensor ? &Request::quantized : &Request::scale}};
      for (const Named& output : outputs) {
        for (const Named& other : all) {
          if (output.field == other.field || !(good.*other.field)) continue;
          for (const uint64_t offset :
               {0, 4}) {  // the first and, but for single values, a later byte
            Request r = good;
            // The larger one moves down, so that it covers the other's first byte.
            const bool single = other.field == &Request::amax ||
                                other.field == &Request::global_scale ||
                                other.field == &Request::clamp_scale ||
                                (other.field == &Request::scale && scheme == kTensor);
            if (single && output.field == &Request::amax && offset != 0) continue;
            RequestTensor& moved = single ? *(r.*other.field) : *(r.*output.field);
            moved.address = (single ? *(r.*output.field) : *(r.*other.field)).address + offset;
            NormDesc desc;
            Error error;
            EXPECT_EQ(r.check(&desc, error), FASTNORM_ERROR_LAYOUT)
                << "scheme " << scheme << ": " << output.name << ", " << other.name << ", "
                << offset << ": " << error.text;
            const std::string text = error.text;
            EXPECT_NE(text.find(output.name), std::string::npos) << text;
            EXPECT_NE(text.find(other.name), std::string::npos) << text;
            EXPECT_NE(text.find("overlaps"), std::string::npos) << text;
            ++refused;
          }
        }
      }
    }
  }
  EXPECT_GT(refused, 300);
}

// The last byte that a call writes counts. The byte after it is free.
TEST(CheckQuant, EndsOfOutputs) {
  struct Case {
    fastnorm_quant_scheme scheme;
    bool swizzled;
    bool codes;
    uint64_t bytes;
  };
  constexpr uint64_t kAll = kRows * kHeads;
  for (const Case c :
       {Case{kTensor, false, true, kAll * kQuantN}, Case{kFp4, false, true, kAll * kQuantN / 2},
        Case{kRow, false, false, kAll * 4}, Case{kBlock, false, false, kAll * 5 * 4},
        Case{kBlock, true, false, 1024}, Case{kMx, false, false, kAll * 9},
        Case{kMx, true, false, 1536}, Case{kFp4, false, false, kAll * 17},
        Case{kFp4, true, false, 2560}, Case{kMxFp4, false, true, kAll * kQuantN / 2},
        Case{kMxFp4, false, false, kAll * 9}, Case{kMxFp4, true, false, 1536}}) {
    Request r = quant_request(c.scheme);
    if (c.swizzled) swizzle(r);
    const uintptr_t end = (c.codes ? r.quantized : r.scale)->address + c.bytes;
    NormDesc desc;
    Error error;
    r.amax->address = (end + 3) & ~uintptr_t{3};
    EXPECT_EQ(r.check(&desc, error), FASTNORM_OK) << c.scheme << ": " << error.text;
    r.amax->address = (end - 1) & ~uintptr_t{3};
    EXPECT_EQ(r.check(&desc, error), FASTNORM_ERROR_LAYOUT) << c.scheme;
  }
}

TEST(CheckQuant, OnEveryDevice) {
  for (const fastnorm_quant_scheme scheme : {kNone, kTensor, kRow, kBlock, kMx, kFp4, kMxFp4}) {
    Request r = simple_request({kRows, kQuantN}, FASTNORM_DTYPE_BF16);
    r.device = {FASTNORM_DEVICE_CUDA, 0};
    for (auto* t : {&r.x, &r.y, &r.weight}) (*t)->device_type = FASTNORM_DEVICE_CUDA;
    add_quant(&r, scheme);
    if (scheme == kNone) {
      r.quantized.reset();
      r.scale.reset();
    }
    NormDesc desc;
    Error error;
    EXPECT_EQ(r.check(&desc, error), FASTNORM_OK) << scheme << ": " << error.text;
    EXPECT_EQ(desc.quant.scheme, scheme);
    r.amax->device_type = FASTNORM_DEVICE_CPU;
    EXPECT_EQ(r.check(&desc, error), FASTNORM_ERROR_DEVICE) << scheme;
    EXPECT_NE(std::string(error.text).find("amax"), std::string::npos) << error.text;
  }
}

struct GoodQuantCall {
  fastnorm_quant_scheme scheme;
  GoodCall good;
};

const GoodQuantCall kGoodQuantCalls[] = {
    {kNone,
     {"amax of y",
      [](Request& r) {
        add_quant(&r, kTensor);
        r.args.quant_scheme = kNone;
        r.quantized.reset();
        r.scale.reset();
      }}},
    {kTensor, {"e4m3", [](Request&) {}}},
    {kTensor, {"e5m2", [](Request& r) { r.quantized->dtype = FASTNORM_DTYPE_F8_E5M2; }}},
    {kTensor, {"i8", [](Request& r) { r.quantized->dtype = FASTNORM_DTYPE_I8; }}},
    {kTensor,
     {"clamped and rounded",
      [](Request& r) {
        r.args.clamp = 3;
        r.args.quant_source = FASTNORM_QUANT_FROM_ROUNDED;
      }}},
    {kTensor, {"least clamp", [](Request& r) { r.args.clamp = 0x1p-149f; }}},
    {kTensor,
     {"any stride of a single value",
      [](Request& r) {
        r.scale->strides = {0};
        r.amax->strides = {-7};
      }}},
    {kRow, {"without y", [](Request& r) { r.y.reset(); }}},
    {kRow, {"without amax", [](Request& r) { r.amax.reset(); }}},
    {kRow,
     {"y in place",
      [](Request& r) {
        r.y->address = r.x->address;
        r.residual_out->address = r.residual->address;
      }}},
    {kRow, {"clamp_scale", [](Request& r) { give_clamp_scale(r); }}},
    {kTensor,
     {"clamp_scale beside the scale",
      [](Request& r) {
        give_clamp_scale(r);
        r.clamp_scale->address = r.scale->address;
      }}},
    {kRow, {"i8", [](Request& r) { r.quantized->dtype = FASTNORM_DTYPE_I8; }}},
    {kRow, {"least floor", [](Request& r) { r.args.amax_floor = 0x1p-100f; }}},
    {kRow, {"greatest floor", [](Request& r) { r.args.amax_floor = 0x1p100f; }}},
    {kRow,
     {"scale with a last 1",
      [](Request& r) {
        r.scale->shape = {kRows, kHeads, 1};
      }}},
    {kRow,
     {"scale with a last 1 of any stride",
      [](Request& r) {
        r.scale->shape = {kRows, kHeads, 1};
        r.scale->strides = {3, 1, 0};
      }}},
    {kRow, {"divided", [](Request& r) { r.args.quant_division = FASTNORM_QUANT_DIVIDE; }}},
    {kTensor, {"divided", [](Request& r) { r.args.quant_division = FASTNORM_QUANT_DIVIDE; }}},
    {kBlock, {"divided", [](Request& r) { r.args.quant_division = FASTNORM_QUANT_DIVIDE; }}},
    {kRow,
     {"pow2 divided",
      [](Request& r) {
        r.args.scale_pow2 = 1;
        r.args.quant_division = FASTNORM_QUANT_DIVIDE;
      }}},
    {kRow, {"pow2 as f32", [](Request& r) { r.args.scale_pow2 = 1; }}},
    {kRow,
     {"pow2 as e8m0",
      [](Request& r) {
        r.args.scale_pow2 = 1;
        r.scale->dtype = FASTNORM_DTYPE_F8_E8M0FNU;
        r.scale->address += 1;
      }}},
    {kRow,
     {"pow2 as u8",
      [](Request& r) {
        r.args.scale_pow2 = 1;
        r.scale->dtype = FASTNORM_DTYPE_U8;
        r.quantized->dtype = FASTNORM_DTYPE_F8_E5M2;
      }}},
    {kRow,
     {"pinned memory",
      [](Request& r) {
        r.quantized->device_type = r.scale->device_type = r.amax->device_type =
            FASTNORM_DEVICE_CUDA_HOST;
      }}},
    {kRow, {"rank 1", [](Request& r) { set_shape(r, {kQuantN}); }}},
    {kRow,
     {"codes at an odd address, rows apart",
      [](Request& r) {
        r.quantized->address += 1;
        r.quantized->strides = {3000, 281, 1};
      }}},
    {kRow,
     {"codes between the rows of y",
      [](Request& r) {
        r.y->strides = {6000, 2000, 1};
        r.quantized->address = r.y->address + 1000;
        r.quantized->strides = {12000, 4000, 1};
      }}},
    {kRow,
     {"scale beside its row",
      [](Request& r) {
        r.quantized->strides = {1200, 400, 1};
        r.scale->address = r.quantized->address + 280;
        r.scale->strides = {300, 100};
      }}},
    {kBlock, {"64 columns", [](Request&) {}}},
    {kBlock,
     {"128 columns",
      [](Request& r) {
        r.args.quant_block_size = 128;
        r.scale->shape[2] = 3;
      }}},
    {kBlock,
     {"a row shorter than a block",
      [](Request& r) {
        set_shape(r, {kRows, kHeads, 7});
      }}},
    {kBlock, {"i8", [](Request& r) { r.quantized->dtype = FASTNORM_DTYPE_I8; }}},
    {kBlock,
     {"column-major", [](Request& r) { r.args.scale_layout = FASTNORM_SCALE_COLUMN_MAJOR; }}},
    {kBlock,
     {"row-major with strides of columns",
      [](Request& r) {
        r.scale->strides = {3, 1, 6};
      }}},
    {kBlock, {"swizzled", swizzle}},
    {kBlock,
     {"swizzled u8",
      [](Request& r) {
        swizzle(r);
        r.scale->dtype = FASTNORM_DTYPE_U8;
      }}},
    {kMx, {"e4m3", [](Request&) {}}},
    {kMx,
     {"e5m2, u8",
      [](Request& r) {
        r.quantized->dtype = FASTNORM_DTYPE_F8_E5M2;
        r.scale->dtype = FASTNORM_DTYPE_U8;
      }}},
    {kMx, {"column-major", [](Request& r) { r.args.scale_layout = FASTNORM_SCALE_COLUMN_MAJOR; }}},
    {kMx, {"swizzled", swizzle}},
    {kMx,
     {"rank 1, swizzled",
      [](Request& r) {
        set_shape(r, {kQuantN});
        swizzle(r);
      }}},
    {kFp4, {"f4", [](Request&) {}}},
    {kFp4, {"without global_scale", [](Request& r) { r.global_scale.reset(); }}},
    {kFp4,
     {"pairs",
      [](Request& r) {
        r.quantized->dtype = FASTNORM_DTYPE_F4_E2M1FN_X2;
        r.quantized->shape[2] = kQuantN / 2;
      }}},
    {kFp4,
     {"u8",
      [](Request& r) {
        r.quantized->dtype = r.scale->dtype = FASTNORM_DTYPE_U8;
        r.quantized->shape[2] = kQuantN / 2;
      }}},
    {kFp4,
     {"pairs, odd strides",
      [](Request& r) {
        r.quantized->dtype = FASTNORM_DTYPE_F4_E2M1FN_X2;
        r.quantized->shape[2] = kQuantN / 2;
        r.quantized->strides = {-1001, 139, 1};
      }}},
    {kFp4,
     {"f4, even strides",
      [](Request& r) {
        r.quantized->strides = {-1000, 278, 1};
      }}},
    {kFp4,
     {"f4, odd strides of single rows",
      [](Request& r) {
        set_shape(r, {1, 1, kQuantN});
        r.quantized->strides = {5, -3, 1};
      }}},
    {kFp4,
     {"n 2",
      [](Request& r) {
        set_shape(r, {kRows, 2});
      }}},
    {kFp4, {"swizzled", swizzle}},
    {kFp4,
     {"scales shared by two inputs",
      [](Request& r) { r.global_scale->address = r.weight->address; }}},
    {kMxFp4, {"f4", [](Request&) {}}},
    {kMxFp4,
     {"pairs, u8 scales",
      [](Request& r) {
        r.quantized->dtype = FASTNORM_DTYPE_F4_E2M1FN_X2;
        r.scale->dtype = FASTNORM_DTYPE_U8;
        r.quantized->shape[2] = kQuantN / 2;
      }}},
    {kMxFp4,
     {"column-major", [](Request& r) { r.args.scale_layout = FASTNORM_SCALE_COLUMN_MAJOR; }}},
    {kMxFp4, {"swizzled", swizzle}},
    {kMxFp4,
     {"n 2",
      [](Request& r) {
        set_shape(r, {kRows, 2});
      }}},
    {kRow,
     {"no rows, no memory",
      [](Request& r) {
        set_shape(r, {0, kHeads, kQuantN});
        for (auto* t : {&r.x, &r.y, &r.residual, &r.residual_out, &r.quantized, &r.scale})
          (*t)->address = 0;
      }}},
    {kMx,
     {"no rows, swizzled",
      [](Request& r) {
        set_shape(r, {0, kQuantN});
        swizzle(r);
        r.scale->shape = {0};
        r.scale->address = 0;
      }}},
    {kRow,
     {"no rows behind huge extents",
      [](Request& r) {
        set_shape(r, {0, int64_t{1} << 40, int64_t{1} << 40, kQuantN});
      }}},
    {kBlock,
     {"no rows behind huge extents, column-major",
      [](Request& r) {
        set_shape(r, {0, int64_t{1} << 40, int64_t{1} << 40, kQuantN});
        r.args.scale_layout = FASTNORM_SCALE_COLUMN_MAJOR;
      }}},
    {kFp4,
     {"no rows, odd strides of f4",
      [](Request& r) {
        set_shape(r, {0, kQuantN});
        r.quantized->strides = {3, 1};
      }}},
};

TEST(CheckQuant, WhatIsAllowed) {
  for (const GoodQuantCall& call : kGoodQuantCalls) {
    Request r = quant_request(call.scheme);
    call.good.change(r);
    NormDesc desc;
    Error error;
    EXPECT_EQ(r.check(&desc, error), FASTNORM_OK) << call.good.name << ": " << error.text;
  }
}

// So many rows that the size of swizzled scales would overflow: refused without an overflow.
TEST(CheckQuant, SwizzledSizeOfVeryManyRows) {
  Request r = simple_request({INT64_MAX, 1}, FASTNORM_DTYPE_F32);
  r.x->strides = {0, 1};
  r.y.reset();
  add_quant(&r, kMx);
  r.quantized->address = 4096;
  r.args.scale_layout = FASTNORM_SCALE_SWIZZLED_128X4;
  r.scale->shape = {INT64_MIN / -2};
  NormDesc desc;
  Error error;
  EXPECT_EQ(r.check(&desc, error), FASTNORM_ERROR_SHAPE) << error.text;
  EXPECT_NE(std::string(error.text).find("scale.shape"), std::string::npos) << error.text;
}

NormDesc checked(const Request& r) {
  NormDesc desc;
  Error error;
  EXPECT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
  return desc;
}

std::vector<int64_t> strides_of(const RowTensor& t, const NormDesc& d) {
  return {t.stride_bytes, t.stride_bytes + d.outer_rank};
}

using Strides = std::vector<int64_t>;

TEST(CheckQuant, DescriptionOfNone) {
  Request r = quant_request(kNone);
  EXPECT_FALSE(checked(r).quant.any());
  add_quant(&r, kTensor);
  r.args.quant_scheme = kNone;
  r.quantized.reset();
  r.scale.reset();
  const NormDesc d = checked(r);
  EXPECT_TRUE(d.quant.any());
  EXPECT_EQ(d.quant.scheme, kNone);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(d.quant.amax), address_of(12));
  EXPECT_FALSE(d.quant.codes);
  EXPECT_FALSE(d.quant.scale);
}

TEST(CheckQuant, DescriptionPerTensor) {
  Request r = quant_request(kTensor);
  r.args.clamp = 2.5f;
  r.amax->byte_offset = 8;
  r.scale->byte_offset = 16;
  r.quantized->byte_offset = 5;
  const NormDesc d = checked(r);
  const QuantDesc& q = d.quant;
  EXPECT_EQ(q.scheme, kTensor);
  EXPECT_EQ(q.dtype, Dtype::kF8E4M3);
  EXPECT_EQ(q.block, 0);
  EXPECT_EQ(q.clamp, 2.5f);
  EXPECT_EQ(q.amax_floor, 0.0f) << "a given scale has no floor";
  EXPECT_FALSE(q.from_rounded || q.pow2 || q.swizzled || q.divides);
  EXPECT_FALSE(q.scale) << "the scale is an input";
  EXPECT_EQ(reinterpret_cast<uintptr_t>(q.tensor_scale), address_of(11) + 16);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(q.amax), address_of(12) + 8);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(q.codes.data), address_of(10) + 5);
  EXPECT_EQ(q.global_scale, nullptr);
  EXPECT_EQ(d.outer_rank, 1);
  EXPECT_EQ(strides_of(q.codes, d), Strides{kQuantN});
}

TEST(CheckQuant, DescriptionPerRow) {
  Request r = quant_request(kRow);
  NormDesc d = checked(r);
  EXPECT_EQ(d.quant.scheme, kRow);
  EXPECT_EQ(d.quant.block, 0);
  EXPECT_EQ(d.quant.scales(d.n), 1);
  EXPECT_EQ(d.quant.amax_floor, 1e-10f) << "0 is the default";
  EXPECT_EQ(d.quant.tensor_scale, nullptr);
  EXPECT_EQ(d.quant.scale.dtype, Dtype::kF32);
  EXPECT_EQ(d.outer_rank, 1);
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{4});
  EXPECT_EQ(strides_of(d.quant.codes, d), Strides{kQuantN});
  r.scale->shape = {kRows, kHeads, 1};
  d = checked(r);
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{4}) << "a last 1 changes nothing";
  r.scale->strides = {24, 8, 3};
  d = checked(r);
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{32}) << "rows of all heads step evenly";
  r.scale->strides = {25, 8, 3};
  d = checked(r);
  EXPECT_EQ(d.outer_rank, 2) << "scales that step unevenly keep rows apart";
  EXPECT_EQ(strides_of(d.quant.scale, d), (Strides{32, 100}));
  EXPECT_EQ(strides_of(d.quant.codes, d), (Strides{kQuantN, 3 * kQuantN}));
  EXPECT_EQ(strides_of(d.x, d), (Strides{2 * kQuantN, 6 * kQuantN}));
  r = quant_request(kRow);
  r.args.quant_division = FASTNORM_QUANT_DIVIDE;
  EXPECT_TRUE(checked(r).quant.divides);
  r.args.scale_pow2 = 1;
  EXPECT_FALSE(checked(r).quant.divides) << "by a power of two both are the same";
  r.args.amax_floor = 0.25f;
  r.scale->dtype = FASTNORM_DTYPE_U8;
  r.quantized->dtype = FASTNORM_DTYPE_F8_E5M2;
  d = checked(r);
  EXPECT_TRUE(d.quant.pow2);
  EXPECT_EQ(d.quant.amax_floor, 0.25f);
  EXPECT_EQ(d.quant.dtype, Dtype::kF8E5M2);
  EXPECT_NE(d.quant.scale.dtype, Dtype::kF32);
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{1});
}

TEST(CheckQuant, DescriptionPerBlock) {
  Request r = quant_request(kBlock);
  NormDesc d = checked(r);
  EXPECT_EQ(d.quant.block, 64);
  EXPECT_EQ(d.quant.scales(d.n), 5);
  EXPECT_EQ(d.quant.amax_floor, 1e-10f);
  EXPECT_EQ(d.outer_rank, 1);
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{20});
  EXPECT_EQ(d.quant.scale_step_bytes, 4);
  r.args.scale_layout = FASTNORM_SCALE_COLUMN_MAJOR;
  d = checked(r);
  EXPECT_EQ(d.outer_rank, 1) << "columns of all rows step evenly";
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{4});
  EXPECT_EQ(d.quant.scale_step_bytes, 4 * kRows * kHeads);
  r.scale->strides = {30, 10, 2};
  d = checked(r);
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{40}) << "strides win over the layout's name";
  EXPECT_EQ(d.quant.scale_step_bytes, 8);
  r.scale->strides = {-4, 1, 8};
  d = checked(r);
  EXPECT_EQ(d.outer_rank, 2);
  EXPECT_EQ(strides_of(d.quant.scale, d), (Strides{4, -16}));
  EXPECT_EQ(d.quant.scale_step_bytes, 32);
  r = quant_request(kBlock);
  r.args.quant_block_size = 128;
  r.scale->shape = {kRows, kHeads, 3};
  EXPECT_EQ(checked(r).quant.block, 128);
  EXPECT_EQ(checked(r).quant.scales(kQuantN), 3);
}

TEST(CheckQuant, DescriptionMxfp8) {
  Request r = quant_request(kMx);
  NormDesc d = checked(r);
  EXPECT_EQ(d.quant.block, 32);
  EXPECT_EQ(d.quant.scales(d.n), 9);
  EXPECT_TRUE(d.quant.pow2);
  EXPECT_EQ(d.quant.amax_floor, 0.0f) << "MXFP8 has no floor";
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{9});
  EXPECT_EQ(d.quant.scale_step_bytes, 1);
  r.args.scale_layout = FASTNORM_SCALE_COLUMN_MAJOR;
  EXPECT_EQ(checked(r).quant.scale_step_bytes, kRows * kHeads);
  r = quant_request(kMx);
  swizzle(r);
  d = checked(r);
  EXPECT_TRUE(d.quant.swizzled);
  EXPECT_EQ(d.outer_rank, 1) << "swizzled scales count rows, so they fold";
  EXPECT_EQ(d.rows, kRows * kHeads);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(d.quant.scale.data), address_of(11));
}

TEST(CheckQuant, DescriptionNvfp4) {
  Request r = quant_request(kFp4);
  NormDesc d = checked(r);
  EXPECT_EQ(d.quant.block, 16);
  EXPECT_EQ(d.quant.scales(d.n), 17);
  EXPECT_FALSE(d.quant.pow2);
  EXPECT_EQ(d.quant.dtype, Dtype::kF4E2M1);
  EXPECT_EQ(strides_of(d.quant.codes, d), Strides{kQuantN / 2}) << "in bytes, of two codes each";
  EXPECT_EQ(strides_of(d.quant.scale, d), Strides{17});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(d.quant.global_scale), address_of(13));
  r.quantized->strides = {-2000, 300, 1};
  d = checked(r);
  EXPECT_EQ(strides_of(d.quant.codes, d), (Strides{150, -1000}));
  for (const fastnorm_dtype_id dtype : {FASTNORM_DTYPE_F4_E2M1FN_X2, FASTNORM_DTYPE_U8}) {
    r = quant_request(kFp4);
    r.quantized->dtype = dtype;
    r.quantized->shape[2] = kQuantN / 2;
    d = checked(r);
    EXPECT_EQ(d.quant.dtype, Dtype::kF4E2M1) << "the codes are the same";
    EXPECT_EQ(strides_of(d.quant.codes, d), Strides{kQuantN / 2});
    r.quantized->strides = {1001, 151, 1};
    d = checked(r);
    EXPECT_EQ(strides_of(d.quant.codes, d), (Strides{151, 1001}));
  }
  r = quant_request(kFp4);
  r.global_scale.reset();
  EXPECT_EQ(checked(r).quant.global_scale, nullptr);
}

TEST(CheckQuant, RanksOneToEight) {
  const std::vector<int64_t> shapes[] = {{kQuantN},
                                         {6, kQuantN},
                                         {kRows, kHeads, kQuantN},
                                         {1, kRows, kHeads, kQuantN},
                                         {kRows, 1, kHeads, 1, kQuantN},
                                         {1, kRows, 1, 1, kHeads, 1, 1, kQuantN}};
  for (const fastnorm_quant_scheme scheme : {kTensor, kRow, kBlock, kMx, kFp4, kMxFp4}) {
    for (const auto& shape : shapes) {
      Request r = quant_request(scheme);
      set_shape(r, shape);
      const NormDesc d = checked(r);
      EXPECT_EQ(d.rows, shape.size() == 1 ? 1 : 6);
      EXPECT_EQ(d.outer_rank, 1);
      const bool one = shape.size() == 1;  // a single row needs no stride
      const bool pairs = scheme == kFp4 || scheme == kMxFp4;
      EXPECT_EQ(strides_of(d.quant.codes, d), Strides{one ? 0 : pairs ? kQuantN / 2 : kQuantN});
      if (scheme == kTensor) continue;
      const int64_t bytes = scheme == kRow ? 4 : scheme == kBlock ? 20 : scheme == kFp4 ? 17 : 9;
      EXPECT_EQ(strides_of(d.quant.scale, d), Strides{one ? 0 : bytes}) << "scheme " << scheme;
    }
  }
}

TEST(CheckQuant, EveryStepQuantisesWhatYHolds) {
  Request r = quant_request(kRow);
  EXPECT_FALSE(checked(r).quant.from_rounded);
  r.args.rounding = FASTNORM_ROUND_NORMALIZED;
  EXPECT_FALSE(checked(r).quant.from_rounded);
  r.args.rounding = FASTNORM_ROUND_EVERY_STEP;
  EXPECT_TRUE(checked(r).quant.from_rounded);
  r.args.rounding = FASTNORM_ROUND_ONCE;
  r.args.quant_source = FASTNORM_QUANT_FROM_ROUNDED;
  EXPECT_TRUE(checked(r).quant.from_rounded);
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
  longer.args.struct_size = kFirstNormArgs;
  EXPECT_EQ(check_norm(&longer.args, r.device, &desc, error), FASTNORM_OK) << error.text;
  longer.args.struct_size = kFirstNormArgs - 1;
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

TEST(CheckNormMany, QuantisedOutputsAreApart) {
  const auto part = [](int number) {
    Request r = simple_request({2, 64}, FASTNORM_DTYPE_BF16);
    add_quant(&r, kFp4);
    for (auto* t : {&r.y, &r.quantized, &r.scale, &r.amax}) {
      (*t)->address += static_cast<uintptr_t>(number) * 4096;
    }
    return r;
  };
  Error error;
  EXPECT_EQ(check_pair(part(0), part(1), error), FASTNORM_OK)
      << "sharing the global scale: " << error.text;
  for (auto tensor : {&Request::quantized, &Request::scale, &Request::amax}) {
    Request b = part(1);
    (b.*tensor)->address -= 4096;
    EXPECT_EQ(check_pair(part(0), b, error), FASTNORM_ERROR_LAYOUT);
  }
  Request b = part(1);
  b.global_scale->address = part(0).amax->address;
  EXPECT_EQ(check_pair(part(0), b, error), FASTNORM_ERROR_LAYOUT) << "read here, written there";
}

}  // namespace
}  // namespace fastnorm::test
