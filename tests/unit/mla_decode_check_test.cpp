// Every requirement of fastnorm/mla_decode.h, broken once. Checks the status, and that the text
// names the argument, its value and what is required.
#include "core/mla_decode_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "unit/mla_decode_request.h"

namespace fastnorm::test {
namespace {

struct BadCall {
  const char* name;
  fastnorm_status status;
  const char* texts[3];  // those that are not null are in the message
  void (*spoil)(MlaRequest&);
  bool cuda = false;
};

const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInf = std::numeric_limits<double>::infinity();

// 3 requests of 2 tokens, 4 heads, 10 pages of 64 tokens.
MlaRequest good_request() { return mla_request(3, 2, 4, 10, 64, 5); }

void set_base(MlaRequest& r, int32_t value) { std::memcpy(&r.args.lse_base, &value, sizeof value); }

void give_profile(MlaRequest& r) {
  RequestTensor t = *r.lse;
  t.shape = {1 << 20};
  t.dtype = FASTNORM_DTYPE_U8;
  t.address = uintptr_t{0x100000} + (uintptr_t{13} << 44);
  r.profile = t;
  r.args.profile_events = 16;
}

const BadCall kBadCalls[] = {
    // scalars
    {"struct_size 0",
     FASTNORM_ERROR_ARGUMENT,
     {"args.struct_size", "is 0"},
     [](MlaRequest& r) { r.args.struct_size = 0; }},
    {"struct_size one short",
     FASTNORM_ERROR_ARGUMENT,
     {"args.struct_size", "135", "136"},
     [](MlaRequest& r) { r.args.struct_size -= 1; }},
    {"struct_size garbage",
     FASTNORM_ERROR_ARGUMENT,
     {"args.struct_size", "at most"},
     [](MlaRequest& r) { r.args.struct_size = SIZE_MAX; }},
    {"sm_scale 0",
     FASTNORM_ERROR_ARGUMENT,
     {"sm_scale is 0", "not 0"},
     [](MlaRequest& r) { r.args.sm_scale = 0; }},
    {"sm_scale NaN",
     FASTNORM_ERROR_ARGUMENT,
     {"sm_scale", "nan"},
     [](MlaRequest& r) { r.args.sm_scale = kNan; }},
    {"sm_scale Inf",
     FASTNORM_ERROR_ARGUMENT,
     {"sm_scale", "inf", "finite"},
     [](MlaRequest& r) { r.args.sm_scale = kInf; }},
    {"sm_scale tiny",
     FASTNORM_ERROR_ARGUMENT,
     {"sm_scale", "1e-300", "2^-100"},
     [](MlaRequest& r) { r.args.sm_scale = 1e-300; }},
    {"sm_scale huge",
     FASTNORM_ERROR_ARGUMENT,
     {"sm_scale", "1e+300", "2^60"},
     [](MlaRequest& r) { r.args.sm_scale = 1e300; }},
    {"sm_scale negative on CUDA",
     FASTNORM_ERROR_UNSUPPORTED,
     {"sm_scale is -1", "nearest: > 0"},
     [](MlaRequest& r) { r.args.sm_scale = -1; },
     true},
    {"causal 2",
     FASTNORM_ERROR_ARGUMENT,
     {"causal is 2", "0 or 1"},
     [](MlaRequest& r) { r.args.causal = 2; }},
    {"causal -1",
     FASTNORM_ERROR_ARGUMENT,
     {"causal is -1"},
     [](MlaRequest& r) { r.args.causal = -1; }},
    {"lse_base 2",
     FASTNORM_ERROR_ARGUMENT,
     {"lse_base is 2", "FASTNORM_LSE_BASE_2 (1)"},
     [](MlaRequest& r) { set_base(r, 2); }},
    {"lse_base without lse",
     FASTNORM_ERROR_ARGUMENT,
     {"lse_base is -1"},
     [](MlaRequest& r) {
       set_base(r, -1);
       r.lse.reset();
     }},
    {"reuse_plan 2",
     FASTNORM_ERROR_ARGUMENT,
     {"reuse_plan is 2"},
     [](MlaRequest& r) { r.args.reuse_plan = 2; }},
    {"split_tokens 65",
     FASTNORM_ERROR_ARGUMENT,
     {"split_tokens is 65", "multiple of 64"},
     [](MlaRequest& r) { r.args.split_tokens = 65; }},
    {"split_tokens -64",
     FASTNORM_ERROR_ARGUMENT,
     {"split_tokens is -64"},
     [](MlaRequest& r) { r.args.split_tokens = -64; }},
    {"split_tokens 2^30 + 64",
     FASTNORM_ERROR_ARGUMENT,
     {"split_tokens is 1073741888", "2^30"},
     [](MlaRequest& r) { r.args.split_tokens = (1 << 30) + 64; }},
    {"max_s_q -1",
     FASTNORM_ERROR_ARGUMENT,
     {"max_s_q is -1"},
     [](MlaRequest& r) { r.args.max_s_q = -1; }},
    {"max_s_q not N / B",
     FASTNORM_ERROR_ARGUMENT,
     {"max_s_q is 3", "0 or 2"},
     [](MlaRequest& r) { r.args.max_s_q = 3; }},
    {"max_s_q missing",
     FASTNORM_ERROR_ARGUMENT,
     {"max_s_q is 0", "qo_indptr is given", "at least 1"},
     [](MlaRequest& r) { make_lists(&r, 9, 0); }},
    {"total_kv_hint negative",
     FASTNORM_ERROR_ARGUMENT,
     {"total_kv_hint is -1"},
     [](MlaRequest& r) { r.args.total_kv_hint = -1; }},
    {"total_kv_hint huge",
     FASTNORM_ERROR_ARGUMENT,
     {"total_kv_hint", "2^48"},
     [](MlaRequest& r) { r.args.total_kv_hint = INT64_MAX; }},
    {"profile_events negative",
     FASTNORM_ERROR_ARGUMENT,
     {"profile_events is -1"},
     [](MlaRequest& r) { r.args.profile_events = -1; }},
    {"profile_events 2^20 + 1",
     FASTNORM_ERROR_ARGUMENT,
     {"profile_events is 1048577", "2^20"},
     [](MlaRequest& r) { r.args.profile_events = (1 << 20) + 1; }},
    {"profile without events",
     FASTNORM_ERROR_ARGUMENT,
     {"profile is given", "profile_events is 0"},
     [](MlaRequest& r) {
       give_profile(r);
       r.args.profile_events = 0;
     }},
    // presence
    {"q_nope NULL",
     FASTNORM_ERROR_ARGUMENT,
     {"q_nope is NULL", "[N, H, 512]"},
     [](MlaRequest& r) { r.q_nope.reset(); }},
    {"q_pe NULL",
     FASTNORM_ERROR_ARGUMENT,
     {"q_pe is NULL", "[N, H, 64]"},
     [](MlaRequest& r) { r.q_pe.reset(); }},
    {"ckv NULL", FASTNORM_ERROR_ARGUMENT, {"ckv is NULL"}, [](MlaRequest& r) { r.ckv.reset(); }},
    {"kpe NULL", FASTNORM_ERROR_ARGUMENT, {"kpe is NULL"}, [](MlaRequest& r) { r.kpe.reset(); }},
    {"kv_len NULL",
     FASTNORM_ERROR_ARGUMENT,
     {"kv_len is NULL", "[B]"},
     [](MlaRequest& r) { r.kv_len.reset(); }},
    {"page_table NULL",
     FASTNORM_ERROR_ARGUMENT,
     {"page_table is NULL"},
     [](MlaRequest& r) { r.page_table.reset(); }},
    {"o NULL", FASTNORM_ERROR_ARGUMENT, {"o is NULL"}, [](MlaRequest& r) { r.o.reset(); }},
    {"null shape",
     FASTNORM_ERROR_ARGUMENT,
     {"q_nope.shape is NULL"},
     [](MlaRequest& r) { r.q_nope->null_shape = true; }},
    {"null data",
     FASTNORM_ERROR_ARGUMENT,
     {"ckv.data is NULL", "[10, 64, 512]"},
     [](MlaRequest& r) { r.ckv->address = 0; }},
    {"null page_table data",
     FASTNORM_ERROR_ARGUMENT,
     {"page_table.data is NULL"},
     [](MlaRequest& r) { r.page_table->address = 0; }},
    // dtypes
    {"q_nope i32",
     FASTNORM_ERROR_DTYPE,
     {"q_nope.dtype is i32", "bf16, f16"},
     [](MlaRequest& r) { r.q_nope->dtype = FASTNORM_DTYPE_I32; }},
    {"q_nope f8",
     FASTNORM_ERROR_DTYPE,
     {"q_nope.dtype is f8_e4m3fn"},
     [](MlaRequest& r) { r.q_nope->dtype = FASTNORM_DTYPE_F8_E4M3FN; }},
    {"q_pe f16",
     FASTNORM_ERROR_DTYPE,
     {"q_pe.dtype is f16", "bf16, as q_nope"},
     [](MlaRequest& r) { r.q_pe->dtype = FASTNORM_DTYPE_F16; }},
    {"ckv f16",
     FASTNORM_ERROR_DTYPE,
     {"ckv.dtype is f16"},
     [](MlaRequest& r) { r.ckv->dtype = FASTNORM_DTYPE_F16; }},
    {"ckv f8",
     FASTNORM_ERROR_UNSUPPORTED,
     {"ckv.dtype is f8_e4m3fn", "FP8", "nearest: bf16"},
     [](MlaRequest& r) { r.ckv->dtype = FASTNORM_DTYPE_F8_E4M3FN; }},
    {"kpe f8",
     FASTNORM_ERROR_UNSUPPORTED,
     {"kpe.dtype is f8_e5m2", "nearest: bf16"},
     [](MlaRequest& r) { r.kpe->dtype = FASTNORM_DTYPE_F8_E5M2; }},
    {"o f32",
     FASTNORM_ERROR_DTYPE,
     {"o.dtype is f32"},
     [](MlaRequest& r) { r.o->dtype = FASTNORM_DTYPE_F32; }},
    {"lse bf16",
     FASTNORM_ERROR_DTYPE,
     {"lse.dtype is bf16", "f32"},
     [](MlaRequest& r) { r.lse->dtype = FASTNORM_DTYPE_BF16; }},
    {"kv_len i64",
     FASTNORM_ERROR_DTYPE,
     {"kv_len.dtype is i64", "i32"},
     [](MlaRequest& r) { r.kv_len->dtype = FASTNORM_DTYPE_I64; }},
    {"page_table i64",
     FASTNORM_ERROR_DTYPE,
     {"page_table.dtype is i64"},
     [](MlaRequest& r) { r.page_table->dtype = FASTNORM_DTYPE_I64; }},
    {"kv_indptr i64",
     FASTNORM_ERROR_DTYPE,
     {"kv_indptr.dtype is i64"},
     [](MlaRequest& r) {
       make_lists(&r, 9, 2);
       r.kv_indptr->dtype = FASTNORM_DTYPE_I64;
     }},
    {"qo_indptr f32",
     FASTNORM_ERROR_DTYPE,
     {"qo_indptr.dtype is f32"},
     [](MlaRequest& r) {
       make_lists(&r, 9, 2);
       r.qo_indptr->dtype = FASTNORM_DTYPE_F32;
     }},
    {"profile i8",
     FASTNORM_ERROR_DTYPE,
     {"profile.dtype is i8", "u8"},
     [](MlaRequest& r) {
       give_profile(r);
       r.profile->dtype = FASTNORM_DTYPE_I8;
     }},
    // shapes
    {"q_nope rank 2",
     FASTNORM_ERROR_SHAPE,
     {"q_nope.ndim is 2", "3"},
     [](MlaRequest& r) {
       r.q_nope->shape = {6, 512};
     }},
    {"q_nope rank 4",
     FASTNORM_ERROR_SHAPE,
     {"q_nope.ndim is 4"},
     [](MlaRequest& r) {
       r.q_nope->shape = {3, 2, 4, 512};
     }},
    {"q_nope 576 wide",
     FASTNORM_ERROR_UNSUPPORTED,
     {"q_nope.shape is [6, 4, 576]", "512", "512 + 64"},
     [](MlaRequest& r) { r.q_nope->shape[2] = 576; }},
    {"q_pe 0 wide",
     FASTNORM_ERROR_UNSUPPORTED,
     {"q_pe.shape is [6, 4, 0]", "64"},
     [](MlaRequest& r) { r.q_pe->shape[2] = 0; }},
    {"ckv 256 wide",
     FASTNORM_ERROR_UNSUPPORTED,
     {"ckv.shape is [10, 64, 256]"},
     [](MlaRequest& r) { r.ckv->shape[2] = 256; }},
    {"no heads",
     FASTNORM_ERROR_SHAPE,
     {"q_nope.shape is [6, 0, 512]", "at least 1 head"},
     [](MlaRequest& r) { r.q_nope->shape[1] = 0; }},
    {"negative tokens",
     FASTNORM_ERROR_SHAPE,
     {"q_nope.shape is [-6, 4, 512]"},
     [](MlaRequest& r) { r.q_nope->shape[0] = -6; }},
    {"too many rows",
     FASTNORM_ERROR_UNSUPPORTED,
     {"q_nope.shape", "2^31 rows"},
     [](MlaRequest& r) { r.q_nope->shape[0] = 1 << 30; }},
    {"too many rows of a request",
     FASTNORM_ERROR_UNSUPPORTED,
     {"5592406 tokens", "2^24 rows"},
     [](MlaRequest& r) { r.q_nope->shape[0] = r.q_pe->shape[0] = 3 * 5592406; }},
    {"q_pe other tokens",
     FASTNORM_ERROR_SHAPE,
     {"q_pe.shape is [5, 4, 64]", "[6, 4, ..]"},
     [](MlaRequest& r) { r.q_pe->shape[0] = 5; }},
    {"q_pe other heads",
     FASTNORM_ERROR_SHAPE,
     {"q_pe.shape is [6, 3, 64]"},
     [](MlaRequest& r) { r.q_pe->shape[1] = 3; }},
    {"kpe other pages",
     FASTNORM_ERROR_SHAPE,
     {"kpe.shape is [9, 64, 64]", "[10, 64, 64]"},
     [](MlaRequest& r) { r.kpe->shape[0] = 9; }},
    {"kpe other page size",
     FASTNORM_ERROR_SHAPE,
     {"kpe.shape is [10, 32, 64]"},
     [](MlaRequest& r) { r.kpe->shape[1] = 32; }},
    {"empty pages",
     FASTNORM_ERROR_SHAPE,
     {"ckv.shape is [10, 0, 512]", "at least 1 token"},
     [](MlaRequest& r) { r.ckv->shape[1] = r.kpe->shape[1] = 0; }},
    {"kv_len rank 2",
     FASTNORM_ERROR_SHAPE,
     {"kv_len.ndim is 2"},
     [](MlaRequest& r) {
       r.kv_len->shape = {3, 1};
     }},
    {"tokens no multiple of requests",
     FASTNORM_ERROR_SHAPE,
     {"6 tokens for 4 requests", "qo_indptr is NULL"},
     [](MlaRequest& r) {
       r.kv_len->shape = {4};
       r.page_table->shape[0] = 4;
     }},
    {"tokens without requests",
     FASTNORM_ERROR_SHAPE,
     {"6 tokens for 0 requests"},
     [](MlaRequest& r) {
       r.kv_len->shape = {0};
       r.page_table->shape[0] = 0;
     }},
    {"page_table other requests",
     FASTNORM_ERROR_SHAPE,
     {"page_table.shape is [2, 5]", "[3, max_pages]"},
     [](MlaRequest& r) { r.page_table->shape[0] = 2; }},
    {"page_table rank 1 without kv_indptr",
     FASTNORM_ERROR_SHAPE,
     {"page_table.shape is [15]", "kv_indptr is NULL"},
     [](MlaRequest& r) { r.page_table->shape = {15}; }},
    {"page_table rank 2 with kv_indptr",
     FASTNORM_ERROR_SHAPE,
     {"page_table.ndim is 2", "kv_indptr is given"},
     [](MlaRequest& r) {
       make_lists(&r, 9, 2);
       r.page_table->shape = {3, 3};
     }},
    {"kv_indptr one short",
     FASTNORM_ERROR_SHAPE,
     {"kv_indptr.shape is [3]", "[4]"},
     [](MlaRequest& r) {
       make_lists(&r, 9, 2);
       r.kv_indptr->shape = {3};
     }},
    {"qo_indptr one long",
     FASTNORM_ERROR_SHAPE,
     {"qo_indptr.shape is [5]", "[4]"},
     [](MlaRequest& r) {
       make_lists(&r, 9, 2);
       r.qo_indptr->shape = {5};
     }},
    {"o other tokens",
     FASTNORM_ERROR_SHAPE,
     {"o.shape is [7, 4, 512]"},
     [](MlaRequest& r) { r.o->shape[0] = 7; }},
    {"lse by head",
     FASTNORM_ERROR_SHAPE,
     {"lse.shape is [4, 6]", "[6, 4]"},
     [](MlaRequest& r) {
       r.lse->shape = {4, 6};
     }},
    {"lse rank 3",
     FASTNORM_ERROR_SHAPE,
     {"lse.ndim is 3"},
     [](MlaRequest& r) {
       r.lse->shape = {6, 4, 1};
     }},
    // layouts
    {"q_nope last stride",
     FASTNORM_ERROR_LAYOUT,
     {"q_nope.strides[2] is 2", "contiguous"},
     [](MlaRequest& r) {
       r.q_nope->strides = {4096, 1024, 2};
     }},
    {"page_table last stride",
     FASTNORM_ERROR_LAYOUT,
     {"page_table.strides[1] is 2"},
     [](MlaRequest& r) {
       r.page_table->strides = {16, 2};
     }},
    {"kv_len stride",
     FASTNORM_ERROR_LAYOUT,
     {"kv_len.strides[0] is 2"},
     [](MlaRequest& r) { r.kv_len->strides = {2}; }},
    {"odd address",
     FASTNORM_ERROR_LAYOUT,
     {"ckv's address", "multiple of 2"},
     [](MlaRequest& r) { r.ckv->byte_offset = 1; }},
    {"kv_len address",
     FASTNORM_ERROR_LAYOUT,
     {"kv_len's address", "multiple of 4"},
     [](MlaRequest& r) { r.kv_len->byte_offset = 2; }},
    {"stride overflow",
     FASTNORM_ERROR_LAYOUT,
     {"o.strides[0]", "2^63 bytes"},
     [](MlaRequest& r) {
       r.o->strides = {INT64_MAX / 2 + 1, 512, 1};
     }},
    {"past the address space",
     FASTNORM_ERROR_LAYOUT,
     {"ckv's strides reach"},
     [](MlaRequest& r) {
       r.ckv->strides = {INT64_MAX / 8, 512, 1};
     }},
    {"byte_offset overflow",
     FASTNORM_ERROR_LAYOUT,
     {"kpe.data", "byte_offset"},
     [](MlaRequest& r) { r.kpe->byte_offset = UINT64_MAX; }},
    {"CUDA address",
     FASTNORM_ERROR_LAYOUT,
     {"ckv's address", "multiple of 16"},
     [](MlaRequest& r) { r.ckv->byte_offset = 8; },
     true},
    {"CUDA token stride",
     FASTNORM_ERROR_LAYOUT,
     {"q_nope.strides[0] is 2052", "8 elements (16 bytes)"},
     [](MlaRequest& r) {
       r.q_nope->strides = {2052, 512, 1};
     },
     true},
    {"CUDA head stride",
     FASTNORM_ERROR_LAYOUT,
     {"q_pe.strides[1] is 68"},
     [](MlaRequest& r) {
       r.q_pe->strides = {272, 68, 1};
     },
     true},
    {"CUDA page stride 0",
     FASTNORM_ERROR_LAYOUT,
     {"kpe.strides[0] is 0", "positive"},
     [](MlaRequest& r) {
       r.kpe->strides = {0, 64, 1};
     },
     true},
    {"CUDA row stride negative",
     FASTNORM_ERROR_LAYOUT,
     {"ckv.strides[1] is -512"},
     [](MlaRequest& r) {
       r.ckv->strides = {32768, -512, 1};
     },
     true},
    {"CUDA stride 2^40 bytes",
     FASTNORM_ERROR_LAYOUT,
     {"ckv.strides[0]", "2^40"},
     [](MlaRequest& r) {
       r.ckv->strides = {int64_t{1} << 39, 512, 1};
     },
     true},
    {"profile address",
     FASTNORM_ERROR_LAYOUT,
     {"profile's address", "16"},
     [](MlaRequest& r) {
       give_profile(r);
       r.profile->byte_offset = 8;
     }},
    // aliasing
    {"o overlaps q_nope",
     FASTNORM_ERROR_LAYOUT,
     {"o [0x", "overlaps q_nope"},
     [](MlaRequest& r) { r.o->address = r.q_nope->address; }},
    {"o overlaps the cache",
     FASTNORM_ERROR_LAYOUT,
     {"o [0x", "overlaps ckv"},
     [](MlaRequest& r) { r.o->address = r.ckv->address + 64; }},
    {"lse overlaps o",
     FASTNORM_ERROR_LAYOUT,
     {"lse [0x", "overlaps o"},
     [](MlaRequest& r) { r.lse->address = r.o->address + 1024; }},
    {"lse overlaps kv_len",
     FASTNORM_ERROR_LAYOUT,
     {"lse [0x", "overlaps kv_len"},
     [](MlaRequest& r) { r.lse->address = r.kv_len->address; }},
    {"o overlaps page_table",
     FASTNORM_ERROR_LAYOUT,
     {"o [0x", "overlaps page_table"},
     [](MlaRequest& r) { r.o->address = r.page_table->address; }},
    {"profile overlaps lse",
     FASTNORM_ERROR_LAYOUT,
     {"profile [0x", "overlaps lse"},
     [](MlaRequest& r) {
       give_profile(r);
       r.profile->address = r.lse->address;
     }},
    {"o overlaps itself",
     FASTNORM_ERROR_LAYOUT,
     {"o overlaps itself", "1024 bytes"},
     [](MlaRequest& r) {
       r.o->strides = {512, 512, 1};
     }},
    {"o broadcast",
     FASTNORM_ERROR_LAYOUT,
     {"o overlaps itself"},
     [](MlaRequest& r) {
       r.o->strides = {0, 512, 1};
     }},
    {"lse broadcast",
     FASTNORM_ERROR_LAYOUT,
     {"lse overlaps itself"},
     [](MlaRequest& r) {
       r.lse->strides = {1, 0};
     }},
    // devices
    {"q_nope on CUDA",
     FASTNORM_ERROR_DEVICE,
     {"q_nope is on device CUDA:0", "CPU"},
     [](MlaRequest& r) { r.q_nope->device_type = FASTNORM_DEVICE_CUDA; }},
    {"kv_len on the CPU",
     FASTNORM_ERROR_DEVICE,
     {"kv_len is on device CPU"},
     [](MlaRequest& r) { r.kv_len->device_type = FASTNORM_DEVICE_CPU; },
     true},
    {"o on another GPU",
     FASTNORM_ERROR_DEVICE,
     {"o is on device CUDA:1", "CUDA:0"},
     [](MlaRequest& r) { r.o->device_id = 1; },
     true},
};

TEST(MlaDecodeCheck, EveryRequirementHasAnError) {
  for (const BadCall& bad : kBadCalls) {
    SCOPED_TRACE(bad.name);
    MlaRequest r = good_request();
    if (bad.cuda) r.set_device(FASTNORM_DEVICE_CUDA, 0);
    MlaDecodeDesc desc;
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

TEST(MlaDecodeCheck, AnUnknownTailMustBeZero) {
  struct Longer {
    fastnorm_mla_decode_args args;
    uint64_t more;
  };
  MlaDecodeDesc desc;
  Error error;
  Longer longer = {};
  longer.args.struct_size = sizeof longer;
  longer.args.sm_scale = 1;
  const auto* args = reinterpret_cast<const fastnorm_mla_decode_args*>(&longer);
  EXPECT_EQ(check_mla_decode(args, {FASTNORM_DEVICE_CPU, 0}, &desc, error),
            FASTNORM_ERROR_ARGUMENT);
  EXPECT_NE(std::strstr(error.text, "q_nope is NULL"), nullptr) << error.text;
  longer.more = 1;
  EXPECT_EQ(check_mla_decode(args, {FASTNORM_DEVICE_CPU, 0}, &desc, error),
            FASTNORM_ERROR_UNSUPPORTED);
  EXPECT_EQ(check_mla_decode(nullptr, {FASTNORM_DEVICE_CPU, 0}, &desc, error),
            FASTNORM_ERROR_ARGUMENT);
}

TEST(MlaDecodeCheck, ADescriptionOfABlockTable) {
  MlaRequest r = good_request();
  r.args.causal = 1;
  r.args.lse_base = FASTNORM_LSE_BASE_2;
  r.args.split_tokens = 128;
  MlaDecodeDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(d.tokens, 6);
  EXPECT_EQ(d.heads, 4);
  EXPECT_EQ(d.batch, 3);
  EXPECT_EQ(d.max_s_q, 2);
  EXPECT_EQ(d.rows(), 8);
  EXPECT_EQ(d.pages, 10);
  EXPECT_EQ(d.page_size, 64);
  EXPECT_EQ(d.dtype, Dtype::kBF16);
  EXPECT_TRUE(d.causal && d.lse_base_2 && !d.reuse_plan && !d.empty());
  EXPECT_EQ(d.split_tokens, 128);
  EXPECT_EQ(d.q_nope.outer, 4 * 512 * 2);
  EXPECT_EQ(d.q_nope.inner, 512 * 2);
  EXPECT_EQ(d.ckv.outer, 64 * 512 * 2);
  EXPECT_EQ(d.kpe.inner, 64 * 2);
  EXPECT_EQ(d.lse.outer, 4 * 4);
  EXPECT_EQ(d.lse.inner, 4);
  EXPECT_EQ(d.table_stride, 5);
  EXPECT_EQ(d.table_columns, 5);
  EXPECT_EQ(d.kv_indptr, nullptr);
  EXPECT_EQ(d.qo_indptr, nullptr);
}

TEST(MlaDecodeCheck, ADescriptionOfLists) {
  MlaRequest r = good_request();
  make_lists(&r, 9, 100);
  r.lse.reset();
  MlaDecodeDesc d;
  Error error;
  ASSERT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(d.max_s_q, 6) << "at most all tokens";
  EXPECT_EQ(d.table_columns, 9);
  EXPECT_EQ(d.table_stride, 0);
  EXPECT_NE(d.kv_indptr, nullptr);
  EXPECT_NE(d.qo_indptr, nullptr);
  EXPECT_EQ(d.lse.data, nullptr);
  r.q_nope->shape[0] = r.q_pe->shape[0] = r.o->shape[0] = 7;  // no multiple of 3
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
}

TEST(MlaDecodeCheck, FusedTensorsAndInterleavedOutputs) {
  for (const int32_t device : {FASTNORM_DEVICE_CPU, FASTNORM_DEVICE_CUDA}) {
    MlaRequest r = good_request();
    r.set_device(device, 0);
    r.kpe->address = r.ckv->address;
    r.kpe->byte_offset = 1024;
    r.ckv->strides = r.kpe->strides = {64 * 576, 576, 1};
    r.q_pe->address = r.q_nope->address;
    r.q_pe->byte_offset = 1024;
    r.q_nope->strides = r.q_pe->strides = {4 * 576, 576, 1};
    // o uses columns of the queries' buffer.
    r.o->address = r.q_nope->address + 576 * 2;
    r.o->strides = r.q_nope->strides = r.q_pe->strides = {4 * 1088, 1088, 1};
    MlaDecodeDesc d;
    Error error;
    EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(d.kpe.data) - reinterpret_cast<uintptr_t>(d.ckv.data),
              1024u);
  }
}

TEST(MlaDecodeCheck, WhatACpuTakesAndCudaDoesNot) {
  MlaRequest r = good_request();
  for (auto* t : {&r.q_nope, &r.q_pe, &r.ckv, &r.kpe, &r.o}) (*t)->dtype = FASTNORM_DTYPE_F32;
  r.args.sm_scale = -1;
  r.ckv->strides = {0, 513, 1};
  r.kpe->byte_offset = 4;
  r.q_nope->strides = {-2048, -512, 1};
  MlaDecodeDesc d;
  Error error;
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
}

TEST(MlaDecodeCheck, NothingToDo) {
  MlaDecodeDesc d;
  Error error;
  MlaRequest r = mla_request(0, 2, 4, 10, 64, 5);
  for (auto* t : {&r.q_nope, &r.q_pe, &r.kv_len, &r.page_table, &r.o, &r.lse}) (*t)->address = 0;
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_TRUE(d.empty());
  r = mla_request(3, 0, 4, 10, 64, 5);
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_TRUE(d.empty());
  r = mla_request(3, 2, 4, 0, 64, 0);  // no cache: all requests are empty
  r.ckv->address = r.kpe->address = r.page_table->address = 0;
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_FALSE(d.empty());
  r.page_table->shape = {3, 0};  // no pages: the stride may be any number
  r.page_table->strides = {INT64_MAX / 2, 1};
  EXPECT_EQ(r.check(&d, error), FASTNORM_OK) << error.text;
  EXPECT_EQ(d.table_stride, 0);
  r = mla_request(0, 2, 4, 10, 64, 5);  // wrong, though there is nothing to do
  r.args.sm_scale = 0;
  EXPECT_EQ(r.check(&d, error), FASTNORM_ERROR_ARGUMENT);
}

// Lengths and lists on the host.
struct Values {
  std::vector<int32_t> kv_len = {130, 0, 64};
  std::vector<int32_t> table = {0, 9, 2, -7, -7, -7, 5, -7, -7};  // 3 pages a request
  std::vector<int32_t> kv_indptr = {0, 3, 3, 4};
  std::vector<int32_t> lists = {0, 9, 2, 5};
  std::vector<int32_t> qo_indptr = {0, 2, 2, 5};

  fastnorm_status check(bool csr, bool ragged, Error& error) const {
    MlaDecodeDesc d;
    d.tokens = 6;
    d.heads = 1;
    d.batch = 3;
    d.max_s_q = ragged ? 3 : 2;
    d.pages = 10;
    d.page_size = 64;
    d.kv_len = kv_len.data();
    d.page_table = csr ? lists.data() : table.data();
    d.table_stride = csr ? 0 : 3;
    d.table_columns = csr ? 4 : 3;
    if (csr) d.kv_indptr = kv_indptr.data();
    if (ragged) d.qo_indptr = qo_indptr.data();
    return check_mla_decode_values(d, error);
  }
};

TEST(MlaDecodeCheck, ValuesOnTheHost) {
  const struct {
    const char* text;  // nullptr = fine
    bool csr, ragged;
    void (*spoil)(Values&);
  } cases[] = {
      {nullptr, false, false, [](Values&) {}},
      {nullptr, true, true, [](Values&) {}},
      {"kv_len[1] is -1", false, false, [](Values& v) { v.kv_len[1] = -1; }},
      {"kv_len[2] is 193; required: 0 to the tokens of its 3 pages of 64", false, false,
       [](Values& v) { v.kv_len[2] = 193; }},
      {nullptr, false, false, [](Values& v) { v.kv_len[0] = 192; }},
      {"kv_len[2] is 65; required: 0 to the tokens of its 1 pages", true, false,
       [](Values& v) { v.kv_len[2] = 65; }},
      {"kv_len[1] is 1; required: 0 to the tokens of its 0 pages", true, false,
       [](Values& v) { v.kv_len[1] = 1; }},
      {"page 2 of request 0 is 10; required: 0 to 9", false, false,
       [](Values& v) { v.table[2] = 10; }},
      {"page 0 of request 2 is -1", true, false, [](Values& v) { v.lists[3] = -1; }},
      {"kv_indptr[1] is 3 and kv_indptr[2] is 2", true, false,
       [](Values& v) { v.kv_indptr[2] = 2; }},
      {"kv_indptr[3] is 5", true, false, [](Values& v) { v.kv_indptr[3] = 5; }},
      {"kv_indptr[0] is -1", true, false, [](Values& v) { v.kv_indptr[0] = -1; }},
      {"qo_indptr[0] is 1; required: 0", true, true, [](Values& v) { v.qo_indptr[0] = 1; }},
      {"qo_indptr[2] is 1; required: qo_indptr[1], 2, to q_nope's 6", true, true,
       [](Values& v) { v.qo_indptr[2] = 1; }},
      {"qo_indptr[3] is 7", true, true, [](Values& v) { v.qo_indptr[3] = 7; }},
      {"at most max_s_q, 3", true, true, [](Values& v) { v.qo_indptr[3] = 6; }},
  };
  for (const auto& c : cases) {
    Values v;
    c.spoil(v);
    Error error;
    const fastnorm_status status = v.check(c.csr, c.ragged, error);
    if (c.text == nullptr) {
      EXPECT_EQ(status, FASTNORM_OK) << error.text;
    } else {
      EXPECT_EQ(status, FASTNORM_ERROR_ARGUMENT) << c.text;
      EXPECT_NE(std::strstr(error.text, c.text), nullptr) << error.text << " / " << c.text;
    }
  }
}

}  // namespace
}  // namespace fastnorm::test
