// Every requirement of fastnorm/norm_heads.h, broken once. Checks the status, and that the text
// names the argument, its value and what is required.
#include "core/norm_heads_check.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/norm_heads_plan.h"
#include "unit/norm_heads_request.h"

namespace fastnorm::test {
namespace {

using Part = HeadsPartRequest;

struct BadCall {
  const char* name;
  fastnorm_status status;
  const char* texts[3];  // those that are not null are in the message
  void (*spoil)(HeadsRequest&);
};

template <class Enum>
void set(Enum& field, int32_t value) {
  std::memcpy(&field, &value, sizeof value);
}

RequestTensor tensor(std::vector<int64_t> shape, fastnorm_dtype_id dtype, int number) {
  RequestTensor t;
  t.shape = std::move(shape);
  t.dtype = dtype;
  t.address = uintptr_t{0x100000} + (static_cast<uintptr_t>(number) << 40);
  return t;
}

RequestTensor rows(int number) { return tensor({7, 8}, FASTNORM_DTYPE_F32, number); }

// The key's cache as codes with scales of blocks.
void make_codes(HeadsRequest& r) {
  Part& p = r.parts[1];
  p.args.cache_scheme = FASTNORM_QUANT_PER_BLOCK;
  p.args.cache_block_size = 64;
  p.cache->dtype = FASTNORM_DTYPE_F8_E4M3FN;
  p.cache_scale = tensor({5, 16, 2, 2}, FASTNORM_DTYPE_F32, 40);
}

// The query also quantised as MXFP4.
void make_quantized(HeadsRequest& r) {
  Part& p = r.parts[0];
  p.args.quant_scheme = FASTNORM_QUANT_MXFP4;
  p.quantized = tensor({7, 8, 64}, FASTNORM_DTYPE_F4_E2M1FN_X2, 42);
  p.scale = tensor({7, 8, 4}, FASTNORM_DTYPE_F8_E8M0FNU, 43);
}

// The query as LayerNorm.
void make_layer(HeadsRequest& r) { r.parts[0].args.kind = FASTNORM_NORM_LAYER; }

void make_mrope(HeadsRequest& r) {
  r.positions->shape = {3, 7};
  r.args.mrope_0 = 24, r.args.mrope_1 = r.args.mrope_2 = 20;
}

const BadCall kBadCalls[] = {
    // structs and counts
    {"struct_size one short",
     FASTNORM_ERROR_ARGUMENT,
     {"args.struct_size is 63", "64"},
     [](HeadsRequest& r) { r.args.struct_size -= 1; }},
    {"part's struct_size one short",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[1].struct_size is 199", "200"},
     [](HeadsRequest& r) { r.parts[1].args.struct_size = 199; }},
    {"count 9",
     FASTNORM_ERROR_ARGUMENT,
     {"count is 9", "0 to 8"},
     [](HeadsRequest& r) { r.count = 9; }},
    {"part NULL",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0] is NULL"},
     [](HeadsRequest& r) { r.null_part = true; }},
    // flags
    {"unknown flag",
     FASTNORM_ERROR_UNSUPPORTED,
     {"parts[0].flags is 0x43", "nearest: flags 0x3"},
     [](HeadsRequest& r) { r.parts[0].args.flags |= 64; }},
    {"unknown shared flag",
     FASTNORM_ERROR_UNSUPPORTED,
     {"args.flags is 0x1", "nearest: flags 0x0"},
     [](HeadsRequest& r) { r.args.flags = 1; }},
    {"inverse without rope",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].flags is 0x8", "FASTNORM_NORM_HEADS_ROPE (2)"},
     [](HeadsRequest& r) { r.parts[2].args.flags = 8; }},
    {"across without norm",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].flags is 0x20", "FASTNORM_NORM_HEADS_NORM (1)"},
     [](HeadsRequest& r) { r.parts[2].args.flags = 32; }},
    {"reserved",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].reserved is 7"},
     [](HeadsRequest& r) { r.parts[0].args.reserved = 7; }},
    {"second reserved",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].reserved_2 is 7"},
     [](HeadsRequest& r) { r.parts[0].args.reserved_2 = 7; }},
    {"no output",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].y, quantized, cache", "an output"},
     [](HeadsRequest& r) { r.parts[0].y.reset(); }},
    // fields that only a norm uses
    {"eps without norm",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].eps is 1", "without FASTNORM_NORM_HEADS_NORM"},
     [](HeadsRequest& r) { r.parts[2].args.eps = 1; }},
    {"kind without norm",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].kind is 1"},
     [](HeadsRequest& r) { r.parts[2].args.kind = FASTNORM_NORM_LAYER; }},
    {"rounding without norm",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].rounding is 2"},
     [](HeadsRequest& r) { r.parts[2].args.rounding = FASTNORM_ROUND_EVERY_STEP; }},
    {"weight without norm",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].weight is given"},
     [](HeadsRequest& r) { r.parts[2].weight = r.parts[0].weight; }},
    {"rstd without norm",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].rstd is given"},
     [](HeadsRequest& r) { r.parts[2].rstd = rows(40); }},
    {"kind 2",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].kind is 2"},
     [](HeadsRequest& r) { set(r.parts[0].args.kind, 2); }},
    {"eps negative",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].eps is -1"},
     [](HeadsRequest& r) { r.parts[0].args.eps = -1; }},
    {"offset without weight",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].weight_offset is 1", "weight is NULL"},
     [](HeadsRequest& r) {
       r.parts[0].args.weight_offset = 1;
       r.parts[0].weight.reset();
     }},
    {"rounding 9",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].rounding is 9"},
     [](HeadsRequest& r) { set(r.parts[0].args.rounding, 9); }},
    // statistics
    {"mean of RMS",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].mean is given", "FASTNORM_NORM_LAYER"},
     [](HeadsRequest& r) { r.parts[0].mean = rows(40); }},
    {"mean_in of RMS",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].mean_in is given"},
     [](HeadsRequest& r) { r.parts[0].mean_in = rows(40); }},
    {"rstd_in of LAYER alone",
     FASTNORM_ERROR_ARGUMENT,
     {"mean_in is NULL and rstd_in is given", "both"},
     [](HeadsRequest& r) {
       make_layer(r);
       r.parts[0].rstd_in = rows(40);
     }},
    {"rstd and rstd_in",
     FASTNORM_ERROR_ARGUMENT,
     {"rstd is given and rstd_in is given"},
     [](HeadsRequest& r) {
       r.parts[0].rstd_in = rows(40);
       r.parts[0].rstd = rows(41);
     }},
    {"y f16 beside bf16",
     FASTNORM_ERROR_DTYPE,
     {"parts[0].y.dtype is f16", "bf16"},
     [](HeadsRequest& r) { r.parts[0].y->dtype = FASTNORM_DTYPE_F16; }},
    {"y f32 over x",
     FASTNORM_ERROR_LAYOUT,
     {"parts[0].y [", "overlaps x"},
     [](HeadsRequest& r) { r.parts[0].y->dtype = FASTNORM_DTYPE_F32; }},
    {"sumsq and rstd_in",
     FASTNORM_ERROR_ARGUMENT,
     {"sumsq is given and rstd_in"},
     [](HeadsRequest& r) {
       r.parts[0].rstd_in = rows(40);
       r.parts[0].sumsq = rows(41);
     }},
    {"rstd bf16",
     FASTNORM_ERROR_DTYPE,
     {"parts[0].rstd.dtype is bf16", "f32"},
     [](HeadsRequest& r) {
       r.parts[0].rstd = rows(40);
       r.parts[0].rstd->dtype = FASTNORM_DTYPE_BF16;
     }},
    {"rstd of other heads",
     FASTNORM_ERROR_SHAPE,
     {"parts[0].rstd.shape is [7, 2]", "[7, 8]"},
     [](HeadsRequest& r) {
       r.parts[0].rstd = rows(40);
       r.parts[0].rstd->shape = {7, 2};
     }},
    {"rstd by head across heads",
     FASTNORM_ERROR_SHAPE,
     {"rstd.shape is [7, 8]", "[7]", "ACROSS_HEADS"},
     [](HeadsRequest& r) {
       r.parts[0].rstd = rows(40);
       r.parts[0].args.flags |= 32;
     }},
    {"sumsq of LAYER without pairs",
     FASTNORM_ERROR_SHAPE,
     {"sumsq.shape is [7, 8]", "[7, 8, 2]"},
     [](HeadsRequest& r) {
       make_layer(r);
       r.parts[0].sumsq = rows(40);
     }},
    // the shapes of x and the weight
    {"x NULL",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[1].x is NULL", "[tokens, heads, d]"},
     [](HeadsRequest& r) { r.parts[1].x.reset(); }},
    {"x of rank 2",
     FASTNORM_ERROR_SHAPE,
     {"parts[1].x.ndim is 2", "3"},
     [](HeadsRequest& r) { r.parts[1].x->ndim = 2; }},
    {"x i32",
     FASTNORM_ERROR_DTYPE,
     {"parts[0].x.dtype is i32"},
     [](HeadsRequest& r) { r.parts[0].x->dtype = FASTNORM_DTYPE_I32; }},
    {"x of other dtype",
     FASTNORM_ERROR_DTYPE,
     {"parts[2].x.dtype is f16", "bf16, as parts[0].x"},
     [](HeadsRequest& r) { r.parts[2].x->dtype = r.parts[2].cache->dtype = FASTNORM_DTYPE_F16; }},
    {"x of other tokens",
     FASTNORM_ERROR_SHAPE,
     {"parts[2].x.shape is [6, 2, 128]", "7 tokens"},
     [](HeadsRequest& r) { r.parts[2].x->shape[0] = 6; }},
    {"no heads",
     FASTNORM_ERROR_SHAPE,
     {"parts[2].x.shape is [7, 0, 128]", "1 head"},
     [](HeadsRequest& r) { r.parts[2].x->shape[1] = r.parts[2].cache->shape[2] = 0; }},
    {"no columns",
     FASTNORM_ERROR_SHAPE,
     {"parts[2]."},
     [](HeadsRequest& r) { r.parts[2].x->shape[2] = r.parts[2].cache->shape[3] = 0; }},
    {"too many columns",
     FASTNORM_ERROR_UNSUPPORTED,
     {"parts[2].x.shape is [7, 2, 8193]", "at most 8192"},
     [](HeadsRequest& r) {
       r.parts[2].x->strides = {};
       r.parts[2].x->shape[2] = r.parts[2].cache->shape[3] = 8193;
     }},
    {"weight of rank 3",
     FASTNORM_ERROR_SHAPE,
     {"parts[0].weight.ndim is 3", "[heads, d]"},
     [](HeadsRequest& r) {
       r.parts[0].weight->shape = {1, 1, 128};
     }},
    {"weight of other columns",
     FASTNORM_ERROR_SHAPE,
     {"parts[0].weight.shape is [64]"},
     [](HeadsRequest& r) { r.parts[0].weight->shape = {64}; }},
    {"y of other heads",
     FASTNORM_ERROR_SHAPE,
     {"parts[0].y.shape is [7, 2, 128]"},
     [](HeadsRequest& r) { r.parts[0].y->shape[1] = 2; }},
    {"x on CUDA",
     FASTNORM_ERROR_DEVICE,
     {"parts[0].x is on device CUDA:0"},
     [](HeadsRequest& r) { r.parts[0].x->device_type = FASTNORM_DEVICE_CUDA; }},
    // quantised y, by the norm's checks
    {"scheme without codes",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].quantized is NULL"},
     [](HeadsRequest& r) { r.parts[0].args.quant_scheme = FASTNORM_QUANT_PER_ROW; }},
    {"source without codes",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[1].quant_source is 1"},
     [](HeadsRequest& r) { r.parts[1].args.quant_source = FASTNORM_QUANT_FROM_ROUNDED; }},
    {"source 2 of a cache",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[1].quant_source is 2"},
     [](HeadsRequest& r) {
       make_codes(r);
       set(r.parts[1].args.quant_source, 2);
     }},
    {"clamp of a cache",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[1].clamp is 1"},
     [](HeadsRequest& r) {
       make_codes(r);
       r.parts[1].args.clamp = 1;
     }},
    {"division 2 of a cache",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[1].quant_division is 2"},
     [](HeadsRequest& r) {
       make_codes(r);
       set(r.parts[1].args.quant_division, 2);
     }},
    {"division without codes",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[1].quant_division is 1"},
     [](HeadsRequest& r) { r.parts[1].args.quant_division = FASTNORM_QUANT_DIVIDE; }},
    {"clamp_scale without codes",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].clamp_scale is given"},
     [](HeadsRequest& r) { r.parts[0].clamp_scale = tensor({1}, FASTNORM_DTYPE_F32, 40); }},
    {"clamp_scale of a cache",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[1].clamp_scale is given"},
     [](HeadsRequest& r) {
       make_codes(r);
       r.parts[1].clamp_scale = tensor({1}, FASTNORM_DTYPE_F32, 41);
     }},
    {"clamp_scale f16",
     FASTNORM_ERROR_DTYPE,
     {"parts[0].clamp_scale.dtype is f16"},
     [](HeadsRequest& r) {
       make_quantized(r);
       r.parts[0].clamp_scale = tensor({1}, FASTNORM_DTYPE_F16, 44);
     }},
    {"clamp_scale overlaps a cache",
     FASTNORM_ERROR_LAYOUT,
     {"parts[1].cache [", "overlaps parts[0].clamp_scale"},
     [](HeadsRequest& r) {
       make_quantized(r);
       r.parts[0].clamp_scale = tensor({1}, FASTNORM_DTYPE_F32, 44);
       r.parts[0].clamp_scale->address = r.parts[1].cache->address;
     }},
    {"f4 of odd columns",
     FASTNORM_ERROR_SHAPE,
     {"parts[0].", "n is 127"},
     [](HeadsRequest& r) {
       make_quantized(r);
       r.parts.resize(1);
       r.slots.reset();
       r.parts[0].y.reset();
       r.parts[0].x->shape[2] = 127;
       r.parts[0].weight->shape[0] = 127;
       r.args.rope_dim = 64;
       r.cos->shape[1] = r.sin->shape[1] = 32;
     }},
    {"amax_floor without codes",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[1].amax_floor is 1"},
     [](HeadsRequest& r) { r.parts[1].args.amax_floor = 1; }},
    {"amax_floor of a cache",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[1].amax_floor is -1", "2^-100"},
     [](HeadsRequest& r) {
       make_codes(r);
       r.parts[1].args.amax_floor = -1;
     }},
    // rope
    {"rope_rounding 2",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].rope_rounding is 2", "FASTNORM_ROPE_EVERY_STEP (1)"},
     [](HeadsRequest& r) { set(r.parts[0].args.rope_rounding, 2); }},
    {"rope_offset without rope",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[2].", "rope_offset is 8"},
     [](HeadsRequest& r) { r.parts[2].args.rope_offset = 8; }},
    {"rope_offset -2",
     FASTNORM_ERROR_ARGUMENT,
     {"parts[0].rope_offset is -2"},
     [](HeadsRequest& r) { r.parts[0].args.rope_offset = -2; }},
    {"rope past the row",
     FASTNORM_ERROR_SHAPE,
     {"parts[1].rope_offset is 1", "rope_dim is 128", "128"},
     [](HeadsRequest& r) { r.parts[1].args.rope_offset = 1; }},
    {"rope_dim odd",
     FASTNORM_ERROR_SHAPE,
     {"rope_dim is 127", "even"},
     [](HeadsRequest& r) { r.args.rope_dim = 127; }},
    {"rope_dim negative",
     FASTNORM_ERROR_SHAPE,
     {"rope_dim is -2"},
     [](HeadsRequest& r) { r.args.rope_dim = -2; }},
    {"rope_dim longer than rows",
     FASTNORM_ERROR_SHAPE,
     {"parts[0].rope_offset", "rope_dim is 256"},
     [](HeadsRequest& r) {
       r.args.rope_dim = 256;
       r.cos->shape[1] = r.sin->shape[1] = 128;
     }},
    {"rope_dim without rope",
     FASTNORM_ERROR_ARGUMENT,
     {"rope_dim is 128", "no part has ROPE"},
     [](HeadsRequest& r) { r.parts[0].args.flags = r.parts[1].args.flags = 1; }},
    {"cos NULL",
     FASTNORM_ERROR_ARGUMENT,
     {"cos is NULL", "ROPE"},
     [](HeadsRequest& r) { r.cos.reset(); }},
    {"sin NULL", FASTNORM_ERROR_ARGUMENT, {"sin is NULL"}, [](HeadsRequest& r) { r.sin.reset(); }},
    {"positions without rope",
     FASTNORM_ERROR_ARGUMENT,
     {"positions is given", "no part has ROPE"},
     [](HeadsRequest& r) {
       r.parts[0].args.flags = r.parts[1].args.flags = 1;
       r.args.rope_dim = 0;
       r.cos.reset();
       r.sin.reset();
     }},
    {"cos of another width",
     FASTNORM_ERROR_SHAPE,
     {"cos.shape is [4096, 63]", "[P, 64] or [P, 128]"},
     [](HeadsRequest& r) { r.cos->shape[1] = 63; }},
    {"cos of rank 1",
     FASTNORM_ERROR_SHAPE,
     {"cos.shape is [64]"},
     [](HeadsRequest& r) { r.cos->shape = {64}; }},
    {"sin of another shape",
     FASTNORM_ERROR_SHAPE,
     {"sin.shape is [4095, 64]", "as cos"},
     [](HeadsRequest& r) { r.sin->shape[0] = 4095; }},
    {"cos f16",
     FASTNORM_ERROR_DTYPE,
     {"cos.dtype is f16", "f32 or bf16"},
     [](HeadsRequest& r) { r.cos->dtype = FASTNORM_DTYPE_F16; }},
    {"sin of another dtype",
     FASTNORM_ERROR_DTYPE,
     {"sin.dtype is bf16", "f32, as cos"},
     [](HeadsRequest& r) { r.sin->dtype = FASTNORM_DTYPE_BF16; }},
    {"tables of other heads",
     FASTNORM_ERROR_SHAPE,
     {"cos.shape is [8, 4096, 64]", "parts[1].x has 2 heads"},
     [](HeadsRequest& r) {
       r.cos->shape = r.sin->shape = {8, 4096, 64};
     }},
    {"too few rows without positions",
     FASTNORM_ERROR_SHAPE,
     {"cos has 6 rows for 7 tokens"},
     [](HeadsRequest& r) {
       r.positions.reset();
       r.cos->shape[0] = r.sin->shape[0] = 6;
     }},
    {"positions f32",
     FASTNORM_ERROR_DTYPE,
     {"positions.dtype is f32", "i32 or i64"},
     [](HeadsRequest& r) { r.positions->dtype = FASTNORM_DTYPE_F32; }},
    {"positions of other tokens",
     FASTNORM_ERROR_SHAPE,
     {"positions.shape is [6]", "[7]"},
     [](HeadsRequest& r) { r.positions->shape = {6}; }},
    {"five axes",
     FASTNORM_ERROR_SHAPE,
     {"positions.shape is [5, 7]", "1 to 4 axes"},
     [](HeadsRequest& r) {
       r.positions->shape = {5, 7};
     }},
    {"sections with one row",
     FASTNORM_ERROR_SHAPE,
     {"mrope_0 is 64", "1 row"},
     [](HeadsRequest& r) { r.args.mrope_0 = 64; }},
    {"sections of another sum",
     FASTNORM_ERROR_SHAPE,
     {"24, 20, 19 and 0", "sum of 64"},
     [](HeadsRequest& r) {
       make_mrope(r);
       r.args.mrope_2 = 19;
     }},
    {"a section too many",
     FASTNORM_ERROR_SHAPE,
     {"mrope_3 is 4", "3 rows"},
     [](HeadsRequest& r) {
       make_mrope(r);
       r.args.mrope_0 = 20;
       r.args.mrope_3 = 4;
     }},
    {"a negative section",
     FASTNORM_ERROR_SHAPE,
     {"mrope_1 is -20"},
     [](HeadsRequest& r) {
       make_mrope(r);
       r.args.mrope_0 = 64;
       r.args.mrope_1 = -20;
     }},
    {"interleaved sections with one row",
     FASTNORM_ERROR_SHAPE,
     {"MROPE_INTERLEAVED", "1 row; required: 3"},
     [](HeadsRequest& r) { r.args.flags = FASTNORM_NORM_HEADS_MROPE_INTERLEAVED; }},
    // cache
    {"slots NULL",
     FASTNORM_ERROR_ARGUMENT,
     {"slots is NULL", "a cache"},
     [](HeadsRequest& r) { r.slots.reset(); }},
    {"slots without a cache",
     FASTNORM_ERROR_ARGUMENT,
     {"slots is given", "no part has a cache"},
     [](HeadsRequest& r) {
       r.parts[1].cache.reset();
       r.parts.pop_back();
     }},
    {"slots u8",
     FASTNORM_ERROR_DTYPE,
     {"slots.dtype is u8"},
     [](HeadsRequest& r) { r.slots->dtype = FASTNORM_DTYPE_U8; }},
    {"more slots than tokens",
     FASTNORM_ERROR_SHAPE,
     {"slots.shape is [8]", "at most the 7 tokens"},
     [](HeadsRequest& r) { r.slots->shape = {8}; }},
    {"cache of rank 3",
     FASTNORM_ERROR_SHAPE,
     {"parts[1].cache.shape is [5, 16, 256]"},
     [](HeadsRequest& r) {
       r.parts[1].cache->shape = {5, 16, 256};
     }},
    {"cache of other heads",
     FASTNORM_ERROR_SHAPE,
     {"cache.shape is [5, 16, 4, 128]", "[pages, page_size, 2, 128]"},
     [](HeadsRequest& r) { r.parts[1].cache->shape[2] = 4; }},
    {"pages of 0 tokens",
     FASTNORM_ERROR_SHAPE,
     {"cache.shape is [5, 0, 2, 128]", "at least 1 token"},
     [](HeadsRequest& r) { r.parts[1].cache->shape[1] = 0; }},
    {"cache of another dtype",
     FASTNORM_ERROR_DTYPE,
     {"parts[1].cache.dtype is f16", "bf16, as x is"},
     [](HeadsRequest& r) { r.parts[1].cache->dtype = FASTNORM_DTYPE_F16; }},
    {"codes without a scheme",
     FASTNORM_ERROR_DTYPE,
     {"cache.dtype is f8_e4m3fn", "or a scheme"},
     [](HeadsRequest& r) { r.parts[1].cache->dtype = FASTNORM_DTYPE_F8_E4M3FN; }},
    {"codes of i8 with pow2",
     FASTNORM_ERROR_DTYPE,
     {"cache.dtype is i8", "f8_e4m3fn or f8_e5m2"},
     [](HeadsRequest& r) {
       make_codes(r);
       r.parts[1].args.cache_pow2 = 1;
       r.parts[1].cache->dtype = FASTNORM_DTYPE_I8;
     }},
    {"cache_scheme PER_ROW",
     FASTNORM_ERROR_ARGUMENT,
     {"cache_scheme is 2"},
     [](HeadsRequest& r) { set(r.parts[1].args.cache_scheme, 2); }},
    {"cache_scheme without a cache",
     FASTNORM_ERROR_ARGUMENT,
     {"cache is NULL and cache_scheme is 1"},
     [](HeadsRequest& r) { set(r.parts[0].args.cache_scheme, 1); }},
    {"cache_block_size 32",
     FASTNORM_ERROR_ARGUMENT,
     {"cache_block_size is 32", "64 or 128"},
     [](HeadsRequest& r) {
       make_codes(r);
       r.parts[1].args.cache_block_size = 32;
     }},
    {"cache_block_size without blocks",
     FASTNORM_ERROR_ARGUMENT,
     {"cache_block_size is 64 and cache_scheme is 0"},
     [](HeadsRequest& r) { r.parts[1].args.cache_block_size = 64; }},
    {"cache_pow2 2",
     FASTNORM_ERROR_ARGUMENT,
     {"cache_pow2 is 2"},
     [](HeadsRequest& r) {
       make_codes(r);
       r.parts[1].args.cache_pow2 = 2;
     }},
    {"cache_scale NULL",
     FASTNORM_ERROR_ARGUMENT,
     {"cache_scale is NULL", "a tensor"},
     [](HeadsRequest& r) {
       make_codes(r);
       r.parts[1].cache_scale.reset();
     }},
    {"cache_scale without a scheme",
     FASTNORM_ERROR_ARGUMENT,
     {"cache_scale is given and cache_scheme is 0", "NULL"},
     [](HeadsRequest& r) { r.parts[1].cache_scale = rows(40); }},
    {"cache_scale bytes without pow2",
     FASTNORM_ERROR_DTYPE,
     {"cache_scale.dtype is f8_e8m0fnu", "f32"},
     [](HeadsRequest& r) {
       make_codes(r);
       r.parts[1].cache_scale->dtype = FASTNORM_DTYPE_F8_E8M0FNU;
     }},
    {"cache_scale of other blocks",
     FASTNORM_ERROR_SHAPE,
     {"cache_scale.shape is [5, 16, 2, 1]", "[5, 16, 2, 2]"},
     [](HeadsRequest& r) {
       make_codes(r);
       r.parts[1].cache_scale->shape[3] = 1;
     }},
    // layouts and aliasing
    {"cache last stride",
     FASTNORM_ERROR_LAYOUT,
     {"parts[1].cache.strides[3] is 2", "contiguous"},
     [](HeadsRequest& r) {
       r.parts[1].cache->strides = {8192, 512, 256, 2};
     }},
    {"cache overlaps itself",
     FASTNORM_ERROR_LAYOUT,
     {"parts[1].cache overlaps itself"},
     [](HeadsRequest& r) {
       r.parts[1].cache->strides = {128, 256, 128, 1};
     }},
    {"caches overlap",
     FASTNORM_ERROR_LAYOUT,
     {"parts[1].cache [", "overlaps parts[2].cache"},
     [](HeadsRequest& r) { r.parts[2].cache->address = r.parts[1].cache->address; }},
    {"cache overlaps x",
     FASTNORM_ERROR_LAYOUT,
     {"parts[0].y [", "overlaps parts[1].cache"},
     [](HeadsRequest& r) { r.parts[1].cache->address = r.parts[0].x->address; }},
    {"y overlaps another part's x",
     FASTNORM_ERROR_LAYOUT,
     {"parts[0].y [", "overlaps parts[1].x"},
     [](HeadsRequest& r) {
       r.parts[0].y->byte_offset = 256;
       r.parts[0].x->byte_offset = 0;
       r.parts[0].x->address += uintptr_t{1} << 45;
     }},
    {"y shifted in x",
     FASTNORM_ERROR_LAYOUT,
     {"parts[0].y [", "overlaps x"},
     [](HeadsRequest& r) { r.parts[0].y->byte_offset += 128; }},
    {"rstd overlaps cos",
     FASTNORM_ERROR_LAYOUT,
     {"parts[0].rstd [", "overlaps cos"},
     [](HeadsRequest& r) {
       r.parts[0].rstd = rows(40);
       r.parts[0].rstd->address = r.cos->address;
     }},
    {"rstd broadcast",
     FASTNORM_ERROR_LAYOUT,
     {"parts[0].rstd overlaps itself"},
     [](HeadsRequest& r) {
       r.parts[0].rstd = rows(40);
       r.parts[0].rstd->strides = {0, 1};
     }},
    {"cache past the address space",
     FASTNORM_ERROR_LAYOUT,
     {"parts[1].cache's strides reach"},
     [](HeadsRequest& r) {
       r.parts[1].cache->strides = {INT64_MAX / 8, 256, 128, 1};
     }},
};

TEST(NormHeadsCheck, EveryRequirementHasAnError) {
  for (const BadCall& bad : kBadCalls) {
    SCOPED_TRACE(bad.name);
    HeadsRequest r = heads_request();
    NormHeadsDesc desc;
    Error error;
    ASSERT_EQ(r.check(&desc, error), FASTNORM_OK) << error.text;
    bad.spoil(r);
    EXPECT_EQ(r.check(&desc, error), bad.status) << error.text;
    for (const char* text : bad.texts) {
      if (text == nullptr) continue;
      EXPECT_NE(std::strstr(error.text, text), nullptr) << error.text << " / " << text;
    }
  }
}

TEST(NormHeadsCheck, AnUnknownTailMustBeZero) {
  struct Longer {
    fastnorm_norm_heads_args args;
    uint64_t more;
  };
  Longer longer = {};
  longer.args.struct_size = sizeof longer;
  NormHeadsDesc desc;
  Error error;
  const CheckedDevice cpu = {FASTNORM_DEVICE_CPU, 0};
  EXPECT_EQ(check_norm_heads(&longer.args, nullptr, 0, cpu, &desc, error), FASTNORM_OK);
  EXPECT_TRUE(desc.empty());
  longer.more = 1;
  EXPECT_EQ(check_norm_heads(&longer.args, nullptr, 0, cpu, &desc, error),
            FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_EQ(check_norm_heads(nullptr, nullptr, 0, cpu, &desc, error), FASTNORM_ERROR_ARGUMENT);
  longer.more = 0;
  EXPECT_EQ(check_norm_heads(&longer.args, nullptr, 1, cpu, &desc, error), FASTNORM_ERROR_ARGUMENT);
}

TEST(NormHeadsCheck, ADescription) {
  HeadsRequest r = heads_request();
  make_mrope(r);
  make_codes(r);
  r.args.rope_dim = 64;
  r.cos->shape = r.sin->shape = {2, 4096, 64};  // repeated, a table for each head
  r.parts[0].args.flags = FASTNORM_NORM_HEADS_NORM;
  r.parts[1].args.rope_offset = -1;
  r.args.mrope_0 = 12, r.args.mrope_1 = r.args.mrope_2 = 10;
  NormHeadsDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(d.tokens, 7);
  EXPECT_EQ(d.count, 3);
  EXPECT_EQ(d.dtype, Dtype::kBF16);
  EXPECT_TRUE(d.table_repeats && !d.mrope_interleaved);
  EXPECT_EQ(d.axes, 3);
  EXPECT_EQ(d.section_end[0], 12);
  EXPECT_EQ(d.section_end[1], 22);
  EXPECT_EQ(d.section_end[2], 32);
  EXPECT_EQ(d.cos.head_stride, 4096 * 64 * 4);
  EXPECT_EQ(d.cos.row_stride, 64 * 4);
  EXPECT_EQ(d.positions.axis_stride, 7 * 8);
  const NormHeadsPart& key = d.parts[1];
  EXPECT_EQ(key.rope_offset, 64);
  EXPECT_EQ(key.token_stride, 12 * 256);
  EXPECT_EQ(key.head_stride, 256);
  EXPECT_EQ(key.cache.page_size, 16);
  EXPECT_EQ(key.cache.rows.stride_bytes[1], 256);
  EXPECT_EQ(key.cache.quant.scale.stride_bytes[2], 16 * 2 * 2 * 4);
  EXPECT_FALSE(d.parts[2].normalise || d.parts[2].rope);
}

TEST(NormHeadsCheck, QuantisedHeads) {
  HeadsRequest r = heads_request();
  make_quantized(r);
  r.parts[0].clamp_scale = tensor({1}, FASTNORM_DTYPE_F32, 44);
  NormHeadsDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  const QuantDesc& q = d.parts[0].norm.quant;
  EXPECT_EQ(q.scheme, FASTNORM_QUANT_MXFP4);
  EXPECT_EQ(q.block, 32);
  EXPECT_TRUE(q.clamp_scale != nullptr && q.pow2 && !q.divides);
  // If a part has both kinds of codes, the division applies to those that support it.
  make_codes(r);
  r.parts[0].clamp_scale.reset();
  r.parts[0].args.cache_scheme = FASTNORM_QUANT_PER_TENSOR;
  r.parts[0].cache = tensor({5, 16, 8, 128}, FASTNORM_DTYPE_F8_E4M3FN, 45);
  r.parts[0].cache_scale = tensor({1}, FASTNORM_DTYPE_F32, 46);
  r.parts[0].args.quant_division = r.parts[1].args.quant_division = FASTNORM_QUANT_DIVIDE;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_TRUE(d.parts[0].cache.quant.divides && d.parts[1].cache.quant.divides);
  EXPECT_FALSE(d.parts[0].norm.quant.divides || d.parts[1].norm.quant.divides);
  r.parts[1].args.cache_pow2 = 1;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_FALSE(d.parts[1].cache.quant.divides) << "the same codes either way";
}

TEST(NormHeadsCheck, YOfF32) {
  HeadsRequest r = heads_request();
  r.parts[0].y = tensor({7, 8, 128}, FASTNORM_DTYPE_F32, 40);
  NormHeadsDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(d.parts[0].norm.y.dtype, Dtype::kF32);
  NormHeadsPlan plan;
  DeviceFacts facts;
  ASSERT_EQ(plan_norm_heads(d, facts, {}, &plan, error), FASTNORM_OK) << error.text;
  // y of the query, y of the key, and two caches.
  EXPECT_EQ(plan.bytes_written, uint64_t{7 * 128 * (8 * 4 + 2 * 2 + 2 * 2 * 2)});
}

TEST(NormHeadsCheck, LayoutsOfCaches) {
  HeadsRequest r = heads_request();
  NormHeadsDesc d;
  Error error;
  // [pages, 2, page_size, heads, d]: keys and values alternate.
  r.parts[2].cache->address = r.parts[1].cache->address;
  r.parts[2].cache->byte_offset = 16 * 2 * 128 * 2;
  r.parts[1].cache->strides = r.parts[2].cache->strides = {2 * 16 * 256, 256, 128, 1};
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  // Tokens of 656 bytes: 512 codes, 4 scales, 64 elements of bf16.
  r = heads_request();
  r.parts.resize(2);
  Part &latent = r.parts[0], &rope = r.parts[1];
  latent = Part{};
  latent.args.struct_size = sizeof latent.args;
  latent.args.flags = FASTNORM_NORM_HEADS_NORM;
  latent.args.cache_scheme = FASTNORM_QUANT_PER_BLOCK;
  latent.args.cache_block_size = 128;
  latent.x = tensor({7, 1, 512}, FASTNORM_DTYPE_BF16, 40);
  latent.x->strides = {576, 512, 1};
  latent.cache = tensor({5, 16, 1, 512}, FASTNORM_DTYPE_F8_E4M3FN, 41);
  latent.cache->strides = {16 * 656, 656, 512, 1};
  latent.cache_scale = tensor({5, 16, 1, 4}, FASTNORM_DTYPE_F32, 41);
  latent.cache_scale->strides = {16 * 164, 164, 4, 1};
  latent.cache_scale->byte_offset = 512;
  rope = Part{};
  rope.args.struct_size = sizeof rope.args;
  rope.args.flags = FASTNORM_NORM_HEADS_ROPE | FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
  rope.x = tensor({7, 1, 64}, FASTNORM_DTYPE_BF16, 40);
  rope.x->strides = {576, 64, 1};
  rope.x->byte_offset = 1024;
  rope.cache = tensor({5, 16, 1, 64}, FASTNORM_DTYPE_BF16, 41);
  rope.cache->strides = {16 * 328, 328, 64, 1};
  rope.cache->byte_offset = 528;
  r.args.rope_dim = 64;
  r.cos->shape = r.sin->shape = {4096, 32};
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  rope.cache->byte_offset = 526;  // in the last scale
  EXPECT_EQ(r.check(&d, error), FASTNORM_ERROR_LAYOUT) << error.text;
}

TEST(NormHeadsCheck, NothingToDo) {
  HeadsRequest r = heads_request();
  for (Part& p : r.parts) {
    p.x->shape[0] = 0;
    if (p.y) p.y->shape[0] = 0;
  }
  r.positions->shape = r.slots->shape = {0};
  NormHeadsDesc d;
  Error error;
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_TRUE(d.empty());
  NormHeadsPlan plan;
  DeviceFacts facts;
  EXPECT_EQ(plan_norm_heads(d, facts, {}, &plan, error), FASTNORM_OK);
  EXPECT_EQ(plan.launches, 0);
  EXPECT_STREQ(plan.kernel, "");
  r.parts[0].args.eps = -1;  // wrong, though there is nothing to do
  EXPECT_EQ(r.check(&d, error), FASTNORM_ERROR_ARGUMENT);
}

TEST(NormHeadsCheck, BytesOfAPlan) {
  HeadsRequest r = heads_request();
  r.slots->shape = {5};
  NormHeadsDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  NormHeadsPlan plan;
  DeviceFacts facts;
  ASSERT_EQ(plan_norm_heads(d, facts, {}, &plan, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(plan.launches, 1);
  EXPECT_STREQ(plan.kernel, "bf16");
  const uint64_t heads = 128 * 2;
  EXPECT_EQ(plan.bytes_read, 7 * 12 * heads + 2 * heads + 2 * 7 * 64 * 4 + 7 * 8 + 5 * 8);
  EXPECT_EQ(plan.bytes_written, 7 * 10 * heads + 5 * 4 * heads);
  facts.device_type = FASTNORM_DEVICE_CUDA;
  EXPECT_EQ(plan_norm_heads(d, facts, {}, &plan, error), FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_NE(std::strstr(error.text, "no kernels of norm_heads"), nullptr) << error.text;
}

TEST(NormHeadsCheck, ValuesOnTheHost) {
  std::vector<int64_t> position = {0, 4095, 17, 1, 2, 3, 4}, slot = {0, 79, -1, 5, 6, 7, 8};
  HeadsRequest r = heads_request();
  r.positions->address = reinterpret_cast<uintptr_t>(position.data());
  r.slots->address = reinterpret_cast<uintptr_t>(slot.data());
  NormHeadsDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(check_norm_heads_values(d, error), FASTNORM_OK) << error.text;
  const struct {
    int64_t* at;
    int64_t value;
    const char* text;
  } bad[] = {{&position[2], 4096, "the position of token 2, axis 0, is 4096; required: 0 to 4095"},
             {&position[6], -1, "the position of token 6, axis 0, is -1"},
             {&slot[1], 80, "slots[1] is 80; required: -1, or 0 to the 5 pages of 16"},
             {&slot[6], -2, "slots[6] is -2"}};
  for (const auto& b : bad) {
    const int64_t before = *b.at;
    *b.at = b.value;
    EXPECT_EQ(check_norm_heads_values(d, error), FASTNORM_ERROR_ARGUMENT);
    EXPECT_NE(std::strstr(error.text, b.text), nullptr) << error.text;
    *b.at = before;
  }
}

}  // namespace
}  // namespace fastnorm::test
