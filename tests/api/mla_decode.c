/* MLA decode through the C ABI: results computed by hand, queries, dry runs, refusals of values and
 * profiles. Also a captured graph with lengths that change. */
#include <math.h>
#include <stdlib.h>

#include "api/api_test.h"
#include "api/call.h"
#include "support/devmem.h"

#define MLA_DECODE(...) ((fastnorm_mla_decode_args*)call_of("mla_decode " __VA_ARGS__))

const family_lines mla_decode_lines = {
    .call =
        "mla_decode sm_scale=0.04 q_nope,o=f32[6,5,512] q_pe=f32[6,5,64] ckv=f32[12,16,512] "
        "kpe=f32[12,16,64] lse=f32[6,5] kv_len=i32[3] fill.kv_len=50 page_table=i32[3,4] "
        "fill.page_table=2",
    .empty =
        "mla_decode sm_scale=0.04 q_nope,o=f32[0,5,512] q_pe=f32[0,5,64] ckv=f32[12,16,512] "
        "kpe=f32[12,16,64] lse=f32[0,5] kv_len=i32[3] page_table=i32[3,4]",
    .units = "groups of heads",
    .wrong =
        "mla_decode sm_scale=0 q_nope,o=f32[6,5,512] q_pe=f32[6,5,64] ckv=f32[12,16,512] "
        "kpe=f32[12,16,64] kv_len=i32[3] page_table=i32[3,4]",
    .gpu =
        "mla_decode sm_scale=1 max_s_q=2 q_nope,o=bf16[3,6,512] q_pe=bf16[3,6,64] "
        "ckv=bf16[4,16,512] kpe=bf16[4,16,64] kv_len=i32[2] page_table=i32[4] kv_indptr=i32[3] "
        "qo_indptr=i32[3]",
    .others = {"mla_decode sm_scale=1 max_s_q=2 q_nope,o=f32[3,6,512] q_pe=f32[3,6,64] "
               "ckv=f32[4,16,512] kpe=f32[4,16,64] kv_len=i32[2] fill.kv_len=40,9 "
               "page_table=i32[4] fill.page_table=3,0,2,1 kv_indptr=i32[3] fill.kv_indptr=0,3,4 "
               "qo_indptr=i32[3] fill.qo_indptr=0,2,3"},
};

enum { kLatent = 512, kRope = 64, kPages = 12, kPage = 16, kTokens = 6, kHeads = 5 };

/* A call and its memory. */
typedef struct mla_call {
  float q_nope[kTokens * kHeads * kLatent], q_pe[kTokens * kHeads * kRope];
  float ckv[kPages * kPage * kLatent], kpe[kPages * kPage * kRope];
  float o[kTokens * kHeads * kLatent], lse[kTokens * kHeads];
  int32_t kv_len[3], page_table[3 * 4], kv_indptr[4], qo_indptr[4];
  fastnorm_mla_decode_args* args;
} mla_call;

static mla_call mla;

/* Three requests of two tokens, with a block table. */
static void reset(void) {
  int i;
  fill_random(mla.q_nope, sizeof mla.q_nope / 4, 1);
  fill_random(mla.q_pe, sizeof mla.q_pe / 4, 2);
  fill_random(mla.ckv, sizeof mla.ckv / 4, 3);
  fill_random(mla.kpe, sizeof mla.kpe / 4, 4);
  memset(mla.o, 0xff, sizeof mla.o);
  memset(mla.lse, 0xff, sizeof mla.lse);
  mla.kv_len[0] = 50, mla.kv_len[1] = 1, mla.kv_len[2] = 17;
  for (i = 0; i < 12; ++i) mla.page_table[i] = 11 - i;
  mla.page_table[5] = mla.page_table[6] = mla.page_table[7] = 2147480000;
  mla.args = MLA_DECODE(
      "sm_scale=0.041666666666666664 q_nope,o=f32[6,5,512] q_pe=f32[6,5,64] ckv=f32[12,16,512] "
      "kpe=f32[12,16,64] lse=f32[6,5] kv_len=i32[3] page_table=i32[3,4]",
      mla.q_nope, mla.o, mla.q_pe, mla.ckv, mla.kpe, mla.lse, mla.kv_len, mla.page_table);
}

static const float* row_of(int b, int token) {
  const int32_t page = mla.page_table[b * 4 + token / kPage];
  return mla.ckv + (page * kPage + token % kPage) * kLatent;
}

static int unwritten(void) {
  size_t i;
  for (i = 0; i < sizeof mla.o; ++i) {
    if (((const unsigned char*)mla.o)[i] != 0xff) return 0;
  }
  return 1;
}

/* One cached token gives its values. Queries of zeros give the mean. */
static void by_hand(fastnorm_context* context) {
  double mean = 0;
  int i;
  reset();
  memset(mla.q_nope, 0, sizeof mla.q_nope);
  memset(mla.q_pe, 0, sizeof mla.q_pe);
  CHECK_OK(fastnorm_mla_decode(context, mla.args, NULL, 0, NULL));
  CHECK(memcmp(mla.o + 2 * kHeads * kLatent, row_of(1, 0), kLatent * sizeof(float)) == 0);
  CHECK(mla.lse[2 * kHeads] == 0);
  for (i = 0; i < 50; ++i) mean += (double)row_of(0, i)[7] / 50;
  CHECK(fabs((double)mla.o[7] - mean) < 1e-5);
  CHECK(fabsf(mla.lse[0] - logf(50)) < 1e-5f && fabsf(mla.lse[4 * kHeads] - logf(17)) < 1e-5f);
  mla.args->lse_base = FASTNORM_LSE_BASE_2;
  CHECK_OK(fastnorm_mla_decode(context, mla.args, NULL, 0, NULL));
  CHECK(fabsf(mla.lse[0] - log2f(50)) < 1e-5f);
  /* Causal: the first of two tokens does not see the last cached one. It sees nothing of a request
   * with one cached token. */
  mla.args->lse_base = FASTNORM_LSE_NATURAL;
  mla.args->causal = 1;
  CHECK_OK(fastnorm_mla_decode(context, mla.args, NULL, 0, NULL));
  CHECK(fabsf(mla.lse[0] - logf(49)) < 1e-5f && fabsf(mla.lse[kHeads] - logf(50)) < 1e-5f);
  CHECK(mla.lse[2 * kHeads] == -INFINITY && mla.lse[3 * kHeads] == 0);
  for (i = 0; i < kLatent && mla.o[2 * kHeads * kLatent + i] == 0; ++i) {
  }
  CHECK(i == kLatent);
}

/* The requests given as lists, after a request without new tokens. */
static void lists(fastnorm_context* context) {
  static float o[kTokens * kHeads * kLatent];
  int32_t flat[9] = {11, 10, 9, 8, 7, 3, 2, 5, 5};
  reset();
  CHECK_OK(fastnorm_mla_decode(context, mla.args, NULL, 0, NULL));
  memcpy(o, mla.o, sizeof o);
  memset(mla.o, 0xff, sizeof mla.o);
  mla.kv_indptr[0] = 0, mla.kv_indptr[1] = 4, mla.kv_indptr[2] = 5, mla.kv_indptr[3] = 7;
  mla.qo_indptr[0] = 0, mla.qo_indptr[1] = 2, mla.qo_indptr[2] = 2, mla.qo_indptr[3] = 4;
  change(mla.args, "page_table=i32[9] kv_indptr,qo_indptr=i32[4] max_s_q=2", flat, mla.kv_indptr,
         mla.qo_indptr);
  CHECK_OK(fastnorm_mla_decode(context, mla.args, NULL, 0, NULL));
  CHECK(memcmp(mla.o, o, 2 * kHeads * kLatent * sizeof(float)) == 0);
  CHECK(isfinite(mla.o[2 * kHeads * kLatent]));
  CHECK(isnan(mla.o[4 * kHeads * kLatent])); /* a row of no request */
  mla.args->max_s_q = 0;
  CHECK_STATUS(fastnorm_mla_decode(context, mla.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("max_s_q is 0");
}

static void query(fastnorm_context* context) {
  fastnorm_info info = empty_info();
  reset();
  change(mla.args, "total_kv_hint=68");
  CHECK_OK(fastnorm_mla_decode_query(context, mla.args, &info));
  CHECK(info.workspace_bytes == 0 && info.profile_bytes == 0 && info.launches == 1);
  CHECK(strcmp(info.kernel, "f32") == 0);
  CHECK(info.bytes_written == sizeof mla.o + sizeof mla.lse);
  CHECK(info.bytes_read == (kTokens * kHeads + 68) * 576 * 4 + 4 * (3 + 5));
}

/* Without requests, too. */
static void nothing(fastnorm_context* context) {
  reset();
  change(mla.args,
         "q_nope,o.shape=[0,5,512] q_pe.shape=[0,5,64] lse.shape=[0,5] kv_len.shape=[0] "
         "page_table.shape=[0,4]");
  CHECK_OK(fastnorm_mla_decode(context, mla.args, NULL, 0, NULL));
  CHECK(unwritten());
}

/* Values in memory are checked when the call runs, before anything is written. */
static void refusals(fastnorm_context* context) {
  fastnorm_info info = empty_info();
  reset();
  mla.kv_len[2] = 65;
  CHECK_OK(fastnorm_mla_decode_query(context, mla.args, &info));
  CHECK_STATUS(fastnorm_mla_decode(context, mla.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("kv_len[2] is 65");
  CHECK(unwritten());
  mla.kv_len[2] = 17;
  mla.page_table[9] = kPages;
  CHECK_STATUS(fastnorm_mla_decode(context, mla.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("page 1 of request 2 is 12");
  CHECK(unwritten());
  reset();
  change(mla.args, "profile_events=10");
  CHECK_STATUS(fastnorm_mla_decode(context, mla.args, NULL, 0, NULL), FASTNORM_ERROR_UNSUPPORTED);
  CHECK_TEXT("on the CPU");
}

/* Planning for a GPU without one reads no tensor. */
static void dry_runs(void) {
  static const int32_t kOthers[] = {80, 89, 100, 120};
  fastnorm_device cuda = {FASTNORM_DEVICE_CUDA, 0};
  fastnorm_context_options options = empty_options();
  fastnorm_context* context = NULL;
  fastnorm_info info = empty_info();
  fastnorm_mla_decode_args* const args = dry_call_of(
      "mla_decode device=cuda:0 sm_scale=0.04 q_nope,o=bf16[6,5,512] q_pe=bf16[6,5,64] "
      "ckv=bf16[12,16,512] kpe=bf16[12,16,64] lse=f32[6,5] kv_len=i32[3] page_table=i32[3,4]");
  const fastnorm_mla_decode_args* empty;
  size_t i;
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  options.dry_run_capability = 90;
  if (!CHECK_OK(fastnorm_context_create(cuda, &options, &context))) return;
  CHECK_OK(fastnorm_mla_decode_query(context, args, &info));
  CHECK(info.launches == 3 && info.blocks == 132 && strcmp(info.kernel, "bf16_swapped") == 0);
  CHECK(info.workspace_bytes > (uint64_t)2 * 132 * 64 * 512 * 4);
  CHECK(info.workspace_bytes < (uint64_t)2 * 132 * 64 * 513 * 4 + 20000);
  CHECK_OK(fastnorm_mla_decode_prepare(context, args));
  CHECK_STATUS(fastnorm_mla_decode(context, args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("workspace_bytes is 0; required: at least");
  CHECK_STATUS(fastnorm_mla_decode(context, args, (void*)(uintptr_t)0x1000080,
                                   (size_t)info.workspace_bytes, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("256-byte aligned");
  CHECK_OK(fastnorm_mla_decode(context, args, (void*)(uintptr_t)0x1000000,
                               (size_t)info.workspace_bytes, NULL));
  args->profile_events = 256; /* asked without a buffer, run with one */
  CHECK_OK(fastnorm_mla_decode_query(context, args, &info));
  CHECK(info.profile_bytes == 64 + 132 * 3 * (64 + 256 * 8));
  CHECK_STATUS(fastnorm_mla_decode(context, args, (void*)(uintptr_t)0x1000000,
                                   (size_t)info.workspace_bytes, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("profile is NULL");
  /* A call without tokens has nothing to profile. */
  empty = dry_call_of(
      "mla_decode device=cuda:0 sm_scale=0.04 profile_events=256 q_nope,o=bf16[0,5,512] "
      "q_pe=bf16[0,5,64] ckv=bf16[12,16,512] kpe=bf16[12,16,64] lse=f32[0,5] kv_len=i32[0] "
      "page_table=i32[0,4]");
  CHECK_OK(fastnorm_mla_decode_query(context, empty, &info));
  CHECK(info.launches == 0 && info.profile_bytes == 0);
  CHECK_OK(fastnorm_mla_decode(context, empty, NULL, 0, NULL));
  fastnorm_context_destroy(context);
  args->profile_events = 0;
  for (i = 0; i < sizeof kOthers / sizeof *kOthers; ++i) {
    options.dry_run_capability = kOthers[i];
    if (!CHECK_OK(fastnorm_context_create(cuda, &options, &context))) continue;
    CHECK_STATUS(fastnorm_mla_decode_query(context, args, &info), FASTNORM_ERROR_UNSUPPORTED);
    CHECK_TEXT("nearest: sm_90");
    fastnorm_context_destroy(context);
  }
}

/* A profile of one warpgroup, in the words that a kernel writes. */
static void profiles(void) {
  uint64_t buffer[8 + 8 + 2];
  fastnorm_profile_event events[2];
  size_t count = 0;
  char path[] = "/tmp/fastnorm_trace_XXXXXX", text[2048];
  FILE* file;
  const int made = mkstemp(path);
  memset(buffer, 0, sizeof buffer);
  memset(events, 0, sizeof events);
  memcpy(buffer, "NORMPROF", 8);
  buffer[1] = 1 | (uint64_t)1 << 32; /* version, thread blocks */
  buffer[2] = 1 | (uint64_t)2 << 32; /* warpgroups, events */
  buffer[8] = 5;                     /* multiprocessor */
  buffer[9] = 2;                     /* events written */
  buffer[10] = 1000, buffer[11] = 500;
  buffer[12] = 1200, buffer[13] = 600;
  buffer[16] = 20 | (uint64_t)(FASTNORM_PROFILE_QK | 9 << 10) << 32;
  buffer[17] = 60 | (uint64_t)(FASTNORM_PROFILE_QK | FASTNORM_PROFILE_END << 8 | 9 << 10) << 32;
  CHECK_OK(fastnorm_profile_decode(buffer, sizeof buffer, NULL, 0, &count));
  CHECK(count == 2);
  CHECK_OK(fastnorm_profile_decode(buffer, sizeof buffer, events, 1, &count));
  CHECK(count == 2 && events[0].cycle == 20 && events[1].cycle == 0);
  CHECK_OK(fastnorm_profile_decode(buffer, sizeof buffer, events, 2, &count));
  CHECK(events[0].id == FASTNORM_PROFILE_QK && events[0].kind == FASTNORM_PROFILE_BEGIN);
  CHECK(events[1].kind == FASTNORM_PROFILE_END && events[1].value == 9);
  CHECK(events[1].time_ns == 30 && events[1].multiprocessor == 5 && events[1].group == 0);
  CHECK(strcmp(fastnorm_profile_id_name(events[0].id), "qk") == 0);
  CHECK_STATUS(fastnorm_profile_decode(buffer, sizeof buffer - 8, NULL, 0, &count),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("bytes is 136; required: at least 144");
  CHECK_STATUS(fastnorm_profile_decode(buffer, sizeof buffer, NULL, 1, &count),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_STATUS(fastnorm_profile_decode(buffer, sizeof buffer, events, 2, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_STATUS(fastnorm_profile_decode(NULL, 0, NULL, 0, &count), FASTNORM_ERROR_ARGUMENT);
  CHECK(made >= 0);
  CHECK_OK(fastnorm_profile_write_trace(buffer, sizeof buffer, path, FASTNORM_TRACE_CHROME_JSON));
  memset(text, 0, sizeof text);
  file = fopen(path, "r");
  if (CHECK(file != NULL)) {
    CHECK(fread(text, 1, sizeof text - 1, file) > 0);
    CHECK(strstr(text, "\"traceEvents\":[") != NULL && strstr(text, "\"name\":\"qk\"") != NULL);
    CHECK(strstr(text, "\"tensor share\":0.2000") != NULL);
    fclose(file);
  }
  remove(path);
  CHECK_STATUS(fastnorm_profile_write_trace(buffer, sizeof buffer, "/nowhere/trace.json",
                                            FASTNORM_TRACE_CHROME_JSON),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("path is \"/nowhere/trace.json\"");
  CHECK_STATUS(
      fastnorm_profile_write_trace(buffer, sizeof buffer, NULL, FASTNORM_TRACE_CHROME_JSON),
      FASTNORM_ERROR_ARGUMENT);
  CHECK_STATUS(fastnorm_profile_write_trace(buffer, sizeof buffer, path, (fastnorm_trace_format)7),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("format is 7");
}

/* bf16 numbers in [-1, 1) with few digits. */
static void fill_bf16(uint16_t* values, size_t count, uint32_t seed) {
  size_t i;
  for (i = 0; i < count; ++i) {
    float f;
    uint32_t bits;
    seed = seed * 1664525u + 1013904223u;
    f = (float)(int32_t)(seed >> 25) / 64.0f - 1.0f;
    memcpy(&bits, &f, 4);
    values[i] = (uint16_t)(bits >> 16);
  }
}

static float from_bf16(uint16_t value) {
  const uint32_t bits = (uint32_t)value << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}

/* --- rows of bytes, and rows that are selected --- */

enum { kSmallPages = 3, kSmallPage = 2, kMostRow = 656 };

/* One request of one new token and two heads over pages of two tokens. */
typedef struct bytes_call {
  float q_nope[2 * kLatent], q_pe[2 * kRope], o[2 * kLatent], lse[2], sink[2], scale;
  uint8_t cache[kSmallPages * kSmallPage * kMostRow], extra[kSmallPage * kMostRow];
  int32_t kv_len[1], page_table[3], indices[6], topk_length[1], extra_indices[2];
} bytes_call;

static bytes_call small;

/* Codes of e4m3. */
enum { kOne = 0x38, kMinusThree = 0xc4, kHalf = 0x30, kNanCode = 0x7f };

static void reset_bytes(void) {
  memset(&small, 0, sizeof small);
  memset(small.cache, 0xff, sizeof small.cache);
  memset(small.extra, 0xff, sizeof small.extra);
  memset(small.o, 0xff, sizeof small.o);
}

/* Row `row` of the pages at `pages` with rows of `bytes` bytes: `code` in each column with a code,
 * times `scale`, a power of two, and `rope` in the others. */
static void put_bytes(uint8_t* pages, int bytes, int row, int code, float scale, float rope) {
  const int codes = bytes == 656 ? 512 : bytes == 584 ? 448 : 576;
  uint8_t* const page = pages + row / kSmallPage * kSmallPage * bytes;
  uint8_t* const at = page + row % kSmallPage * (bytes == 584 ? 576 : bytes);
  uint32_t bits;
  int i;
  memset(at, code, (size_t)codes);
  for (i = 0; i < 4 && bytes == 656; ++i) memcpy(at + 512 + 4 * i, &scale, 4);
  for (i = 0; i < 7 && bytes == 584; ++i)
    page[kSmallPage * 576 + row % kSmallPage * 8 + i] = (uint8_t)(127 + ilogbf(scale));
  memcpy(&bits, &rope, 4);
  for (i = 0; i < kRope && codes != 576; ++i) {
    at[(bytes == 584 ? 448 : 528) + 2 * i] = (uint8_t)(bits >> 16);
    at[(bytes == 584 ? 448 : 528) + 2 * i + 1] = (uint8_t)(bits >> 24);
  }
}

/* Tokens of 2 and -6 with queries of zeros: the mean, in each format. */
static void bytes_by_hand(fastnorm_context* context) {
  static const int kBytes[] = {656, 576, 584};
  int f, i;
  for (f = 0; f < 3; ++f) {
    const int bytes = kBytes[f], nope = bytes == 584 ? 448 : 512;
    fastnorm_mla_decode_args* args;
    fastnorm_info info = empty_info();
    reset_bytes();
    small.kv_len[0] = 3;
    small.page_table[0] = 2, small.page_table[1] = 0, small.page_table[2] = 2147480000;
    small.scale = 2;
    put_bytes(small.cache, bytes, 2 * kSmallPage, kOne, 2, 4);
    put_bytes(small.cache, bytes, 2 * kSmallPage + 1, kOne, 2, 4);
    put_bytes(small.cache, bytes, 0, kMinusThree, 2, 10);
    args = call_of(
        words("mla_decode sm_scale=0.5 q_nope=f32[1,2,%d] q_pe=f32[1,2,64] o=f32[1,2,512] "
              "lse=f32[1,2] cache_format=bytes_%d cache=u8[3,2,%d] kv_len=i32[1] "
              "page_table=i32[1,3] total_kv_hint=3",
              nope, bytes, bytes),
        small.q_nope, small.q_pe, small.o, small.lse, small.cache, small.kv_len, small.page_table);
    if (bytes == 576) change(args, "cache_scale=f32[1]", &small.scale);
    CHECK_OK(fastnorm_mla_decode_query(context, args, &info));
    CHECK(info.bytes_read ==
          (uint64_t)(2 * (nope + 64) * 4 + 3 * bytes + 4 * (1 + 2) + (bytes == 576 ? 4 : 0)));
    CHECK_OK(fastnorm_mla_decode(context, args, NULL, 0, NULL));
    CHECK(fabsf(small.o[0] + 2.0f / 3) < 1e-6f && fabsf(small.o[447] + 2.0f / 3) < 1e-6f);
    CHECK(fabsf(small.o[511] - (bytes == 584 ? 6.0f : -2.0f / 3)) < 1e-6f);
    CHECK(memcmp(small.o, small.o + kLatent, sizeof small.o / 2) == 0);
    CHECK(fabsf(small.lse[0] - logf(3)) < 1e-6f);
    /* A score from the rotary part alone: 0.5 * 64 * (1/32) * 4 = 4, and 10 for the third. */
    if (bytes == 576) continue;
    for (i = 0; i < kRope; ++i) small.q_pe[i] = 1.0f / 32;
    CHECK_OK(fastnorm_mla_decode(context, args, NULL, 0, NULL));
    CHECK(fabsf(small.lse[0] - (10 + logf(1 + 2 * expf(-6)))) < 1e-5f);
    CHECK(fabsf(small.lse[1] - logf(3)) < 1e-6f);
  }
}

/* Rows that no index names are NaN. */
static void selected_by_hand(fastnorm_context* context) {
  static const int kBytes[] = {656, 576, 584};
  int f;
  for (f = 0; f < 3; ++f) {
    const int bytes = kBytes[f];
    fastnorm_mla_decode_args* args;
    reset_bytes();
    put_bytes(small.cache, bytes, 5, kOne, 1, 1);
    put_bytes(small.cache, bytes, 2, kMinusThree, 1, -3);
    put_bytes(small.extra, bytes, 1, kHalf, 1, 0.5f);
    small.indices[0] = -1, small.indices[1] = 5, small.indices[2] = -1, small.indices[3] = 2;
    small.indices[4] = 5, small.indices[5] = 1000; /* behind the length */
    small.topk_length[0] = 5;
    small.extra_indices[0] = 1, small.extra_indices[1] = -1;
    args =
        call_of(words("mla_decode sm_scale=0.5 q_nope=f32[1,2,%d] q_pe=f32[1,2,64] o=f32[1,2,512] "
                      "lse=f32[1,2] cache_format=bytes_%d cache=u8[3,2,%d] "
                      "indices=i32[1,1,6] topk_length=i32[1]",
                      bytes == 584 ? 448 : 512, bytes, bytes),
                small.q_nope, small.q_pe, small.o, small.lse, small.cache, small.indices,
                small.topk_length);
    CHECK_OK(fastnorm_mla_decode(context, args, NULL, 0, NULL));
    CHECK(fabsf(small.o[0] + 1.0f / 3) < 1e-6f && fabsf(small.o[511] + 1.0f / 3) < 1e-6f);
    CHECK(fabsf(small.lse[1] - logf(3)) < 1e-6f);
    change(args, words("extra_cache=u8[1,2,%d] extra_indices=i32[1,1,2]", bytes), small.extra,
           small.extra_indices);
    CHECK_OK(fastnorm_mla_decode(context, args, NULL, 0, NULL));
    CHECK(fabsf(small.o[0] + 0.125f) < 1e-6f && fabsf(small.lse[0] - logf(4)) < 1e-6f);
    /* Sinks of log(4) and of infinity leave a half and nothing. */
    small.sink[0] = logf(4), small.sink[1] = INFINITY;
    change(args, "attention_sink=f32[2]", small.sink);
    CHECK_OK(fastnorm_mla_decode(context, args, NULL, 0, NULL));
    CHECK(fabsf(small.o[0] + 0.0625f) < 1e-6f && small.o[kLatent] == 0);
    CHECK(fabsf(small.lse[0] - logf(4)) < 1e-6f && fabsf(small.lse[1] - logf(4)) < 1e-6f);
    small.sink[0] = 0, small.sink[1] = -INFINITY; /* 4/5 are left, and all */
    CHECK_OK(fastnorm_mla_decode(context, args, NULL, 0, NULL));
    CHECK(fabsf(small.o[0] + 0.1f) < 1e-6f && fabsf(small.o[kLatent] + 0.125f) < 1e-6f);
    /* None at all. */
    small.topk_length[0] = 1;
    small.extra_indices[0] = -1;
    CHECK_OK(fastnorm_mla_decode(context, args, NULL, 0, NULL));
    CHECK(small.o[0] == 0 && small.o[1023] == 0 && small.lse[0] == -INFINITY);
    /* What is wrong is found before anything is written. */
    memset(small.o, 0xff, sizeof small.o);
    small.topk_length[0] = 6;
    CHECK_STATUS(fastnorm_mla_decode(context, args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
    CHECK_TEXT("indices[0][0][5] is 1000; required: -1, or 0 to 5");
    small.topk_length[0] = 7;
    CHECK_STATUS(fastnorm_mla_decode(context, args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
    CHECK_TEXT("topk_length of new token 0 of request 0 is 7; required: 0 to topk, 6");
    small.topk_length[0] = 5;
    small.extra_indices[1] = 2;
    CHECK_STATUS(fastnorm_mla_decode(context, args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
    CHECK_TEXT("extra_indices[0][0][1] is 2; required: -1, or 0 to 1");
    CHECK(isnan(small.o[0]) && isnan(small.o[1023]));
  }
}

/* --- rows that norm_heads writes --- */

enum { kWritten = 7, kRowBytes = 656 };

static float from_e4m3(int code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const float value =
      exponent == 0 ? ldexpf((float)fraction, -9) : ldexpf((float)(8 + fraction), exponent - 10);
  return (code & 128) != 0 ? -value : value;
}

/* Powers of two as scales: the decoded numbers are bf16, and the call has the bits of one that
 * reads them as bf16. */
static void written_by_heads(fastnorm_context* context) {
  static uint16_t x[kWritten * 576], rows[16 * 576], q[3 * 4 * 576], o[2][3 * 4 * kLatent];
  static uint8_t cache[16 * kRowBytes];
  static float cosine[64 * 32], sine[64 * 32], lse[2][3 * 4];
  int64_t positions[kWritten], slots[kWritten];
  int32_t kv_len[3] = {3, 1, 3}, table[3 * 2] = {1, 9, 3, 9, 2, 0};
  const fastnorm_norm_heads_args* heads;
  int i, k, different = 0;
  fill_bf16(x, sizeof x / 2, 5);
  fill_bf16(q, sizeof q / 2, 6);
  memset(cache, 0xff, sizeof cache);
  memset(rows, 0xff, sizeof rows);
  for (i = 0; i < 64 * 32; ++i) cosine[i] = cosf((float)i), sine[i] = sinf((float)i);
  for (i = 0; i < kWritten; ++i) positions[i] = 3 * i, slots[i] = 15 - i;
  slots[0] = 4, slots[1] = 5, slots[2] = 6, slots[3] = 12, slots[4] = 8, slots[5] = 9;
  slots[6] = 10;
  heads = call_of(
      "norm_heads rope_dim=64 cos,sin=f32[64,32] positions,slots=i64[7] parts[0].flags=0x1 "
      "parts[0].eps=1e-6 parts[0].x=bf16[7,1,512] parts[0].x.strides=[576,512,1] "
      "parts[0].cache=f8_e4m3fn[4,4,1,512] parts[0].cache.strides=[2624,656,512,1] "
      "parts[0].cache_quant.scheme=per_block parts[0].cache_quant.block_size=128 "
      "parts[0].cache_quant.scale_pow2=1 parts[0].cache_quant.scale=f32[4,4,1,4] "
      "parts[0].cache_quant.scale.strides=[656,164,4,1] parts[1].flags=0x6 "
      "parts[1].x=bf16[7,1,64] parts[1].x.strides=[576,64,1] parts[1].cache=bf16[4,4,1,64] "
      "parts[1].cache.strides=[1312,328,64,1]",
      cosine, sine, positions, slots, x, cache, cache + 512, x + kLatent, cache + 528);
  CHECK_OK(fastnorm_norm_heads(context, heads, parts_of(heads), 2, NULL, 0, NULL));
  for (k = 0; k < kWritten; ++k) {
    const uint8_t* const row = cache + slots[k] * kRowBytes;
    for (i = 0; i < 512; ++i) {
      float scale, value;
      uint32_t bits;
      memcpy(&scale, row + 512 + i / 128 * 4, 4);
      value = from_e4m3(row[i]) * scale;
      memcpy(&bits, &value, 4);
      CHECK((bits & 0xffff) == 0 && (row[i] & 127) != kNanCode);
      rows[slots[k] * 576 + i] = (uint16_t)(bits >> 16);
      different += row[i] != row[0];
    }
    memcpy(rows + slots[k] * 576 + 512, row + 528, 128);
  }
  CHECK(different > 1000);
  CHECK_OK(fastnorm_mla_decode(
      context,
      MLA_DECODE("sm_scale=0.1 q_nope=bf16[3,4,512] q_nope.strides=[2304,576,1] q_pe=bf16[3,4,64] "
                 "q_pe.strides=[2304,576,1] o=bf16[3,4,512] lse=f32[3,4] cache_format=bytes_656 "
                 "cache=u8[4,4,656] kv_len=i32[3] page_table=i32[3,2]",
                 q, q + 512, o[0], lse[0], cache, kv_len, table),
      NULL, 0, NULL));
  CHECK_OK(fastnorm_mla_decode(
      context,
      MLA_DECODE("sm_scale=0.1 q_nope=bf16[3,4,512] q_nope.strides=[2304,576,1] q_pe=bf16[3,4,64] "
                 "q_pe.strides=[2304,576,1] o=bf16[3,4,512] lse=f32[3,4] ckv=bf16[4,4,512] "
                 "ckv.strides=[2304,576,1] kpe=bf16[4,4,64] kpe.strides=[2304,576,1] "
                 "kv_len=i32[3] page_table=i32[3,2]",
                 q, q + 512, o[1], lse[1], rows, rows + 512, kv_len, table),
      NULL, 0, NULL));
  CHECK(memcmp(o[0], o[1], sizeof o[0]) == 0 && memcmp(lse[0], lse[1], sizeof lse[0]) == 0);
  for (i = 0; i < 3 * 4; ++i) CHECK(isfinite(lse[0][i]) && isfinite(from_bf16(o[0][i * kLatent])));
}

/* Heads of 512 columns in rows of 584 bytes: 448 codes, 64 bf16, and scales behind the rows of a
 * page. A page has a row of other bytes behind it, as engines pad theirs. */
enum { kColumns = 512, kCoded = 448, kPageRows = 4, kPageBytes = kPageRows * 584 + 576 };

static struct {
  uint16_t x[kWritten * kColumns], weight[kColumns], q[3 * 4 * kColumns], o[3 * 4 * kColumns];
  uint8_t cache[4 * kPageBytes];
  float cosine[64 * 32], sine[64 * 32], lse[3 * 4];
  int64_t positions[kWritten], slots[kWritten];
  double row[16][kColumns]; /* what the cache holds, by slot */
} heads;

/* Norm and rope in double precision. */
static void exact_head(int token, double* v) {
  const float *c = heads.cosine + heads.positions[token] * 32,
              *s = heads.sine + heads.positions[token] * 32;
  double sum = 0;
  int i;
  for (i = 0; i < kColumns; ++i) {
    v[i] = (double)from_bf16(heads.x[token * kColumns + i]);
    sum += v[i] * v[i];
  }
  for (i = 0; i < kColumns; ++i)
    v[i] *= (double)from_bf16(heads.weight[i]) / sqrt(sum / kColumns + 1e-6);
  for (i = 0; i < 32; ++i) {
    double* const pair = v + kCoded + 2 * i;
    const double a = pair[0], b = pair[1];
    pair[0] = a * (double)c[i] - b * (double)s[i];
    pair[1] = b * (double)c[i] + a * (double)s[i];
  }
}

/* The numbers of each token's row of the cache. They are the exact ones but for one rounding. */
static void decode_rows(void) {
  int k, i;
  for (k = 0; k < kWritten; ++k) {
    const int64_t slot = heads.slots[k], at = slot % kPageRows;
    const uint8_t* const page = heads.cache + slot / kPageRows * kPageBytes;
    const uint8_t *const row = page + at * 576, *const scale = page + kPageRows * 576 + at * 8;
    double exact[kColumns];
    exact_head(k, exact);
    for (i = 0; i < kColumns; ++i) {
      double *const value = &heads.row[slot][i], unit;
      if (i < kCoded) {
        const double step = ldexp(1, scale[i / 64] - 127);
        *value = (double)from_e4m3(row[i]) * step;
        unit = fmax(ldexp(fabs(exact[i]), -4), ldexp(step, -10));
      } else {
        *value = (double)from_bf16((uint16_t)(row[2 * i - kCoded] | row[2 * i - kCoded + 1] << 8));
        unit = ldexp(fabs(exact[i]), -8);
      }
      if (!CHECK(fabs(*value - exact[i]) <= 1.001 * unit + 1e-6)) return;
    }
    CHECK(scale[7] == 0xff); /* the byte that is not used */
  }
  for (k = 0; k < 4; ++k)
    for (i = kPageRows * 584; i < kPageBytes; ++i) CHECK(heads.cache[k * kPageBytes + i] == 0xff);
}

/* Attention of one query to some slots, in double precision. */
static void expect_attention(int query, const int* slots, int count, double sm_scale) {
  double s[kWritten], o[kColumns] = {0}, sum = 0, largest = 0;
  int j, i;
  for (j = 0; j < count; ++j) {
    double dot = 0;
    for (i = 0; i < kColumns; ++i)
      dot += (double)from_bf16(heads.q[query * kColumns + i]) * heads.row[slots[j]][i];
    s[j] = exp(sm_scale * dot);
    sum += s[j];
  }
  for (j = 0; j < count; ++j)
    for (i = 0; i < kColumns; ++i) {
      o[i] += s[j] / sum * heads.row[slots[j]][i];
      largest = fmax(largest, fabs(heads.row[slots[j]][i]));
    }
  CHECK(fabs((double)heads.lse[query] - log(sum)) < 1e-5);
  for (i = 0; i < kColumns; ++i) {
    /* Probabilities and results are rounded to bf16. */
    const double found = (double)from_bf16(heads.o[query * kColumns + i]);
    if (!CHECK(fabs(found - o[i]) <= ldexp(largest + fabs(o[i]), -8) + 1e-6)) return;
  }
}

static void written_with_tails(fastnorm_context* context) {
  static const int kSlots[kWritten] = {4, 5, 6, 12, 8, 9, 10};
  static const int kRequest[3][3] = {{4, 5, 6}, {12}, {8, 9, 10}}, kCount[3] = {3, 1, 3};
  int32_t kv_len[3] = {3, 1, 3}, table[3 * 2] = {1, 9, 3, 9, 2, 0};
  const fastnorm_norm_heads_args* args;
  int i, h;
  fill_bf16(heads.x, sizeof heads.x / 2, 8);
  fill_bf16(heads.weight, sizeof heads.weight / 2, 9);
  fill_bf16(heads.q, sizeof heads.q / 2, 10);
  memset(heads.cache, 0xff, sizeof heads.cache);
  for (i = 0; i < 64 * 32; ++i) heads.cosine[i] = cosf((float)i), heads.sine[i] = sinf((float)i);
  for (i = 0; i < kWritten; ++i) heads.positions[i] = 5 * i, heads.slots[i] = kSlots[i];
  args = call_of(
      "norm_heads rope_dim=64 cos,sin=f32[64,32] positions,slots=i64[7] parts[0].flags=0x7 "
      "parts[0].eps=1e-6 parts[0].rope_offset=-1 parts[0].x=bf16[7,1,512] "
      "parts[0].weight=bf16[512] parts[0].cache=f8_e4m3fn[4,4,1,448] "
      "parts[0].cache.strides=[2912,576,448,1] parts[0].cache_tail=bf16[4,4,1,64] "
      "parts[0].cache_tail.strides=[1456,288,64,1] parts[0].cache_quant.scheme=per_block "
      "parts[0].cache_quant.block_size=64 parts[0].cache_quant.scale_pow2=1 "
      "parts[0].cache_quant.scale=f8_e8m0fnu[4,4,1,7] "
      "parts[0].cache_quant.scale.strides=[2912,8,7,1]",
      heads.cosine, heads.sine, heads.positions, heads.slots, heads.x, heads.weight, heads.cache,
      heads.cache + kCoded, heads.cache + kPageRows * 576);
  CHECK_OK(fastnorm_norm_heads(context, args, parts_of(args), 1, NULL, 0, NULL));
  decode_rows();
  CHECK_OK(fastnorm_mla_decode(
      context,
      MLA_DECODE("sm_scale=0.1 q_nope=bf16[3,4,448] q_nope.strides=[2048,512,1] q_pe=bf16[3,4,64] "
                 "q_pe.strides=[2048,512,1] o=bf16[3,4,512] lse=f32[3,4] cache_format=bytes_584 "
                 "cache=u8[4,4,584] cache.strides=[2912,584,1] kv_len=i32[3] page_table=i32[3,2]",
                 heads.q, heads.q + kCoded, heads.o, heads.lse, heads.cache, kv_len, table),
      NULL, 0, NULL));
  for (i = 0; i < 3; ++i)
    for (h = 0; h < 4; ++h) expect_attention(4 * i + h, kRequest[i], kCount[i], 0.1);
}

/* --- on a GPU --- */

enum { kGpuBatch = 3, kGpuHeads = 16, kGpuPages = 40, kGpuTable = 13 };
enum { kQ, kPe, kCkv, kKpe, kO, kLse, kLen, kTable, kGpuTensors };

typedef struct gpu_call {
  size_t bytes[kGpuTensors];
  void* host[kGpuTensors];
  void* device[kGpuTensors];
  fastnorm_mla_decode_args *cpu_args, *gpu_args;
} gpu_call;

static int done(int32_t error) {
  if (error != 0) printf("devmem: %s\n", devmem_error());
  return CHECK(error == 0);
}

static const char kGpuCall[] =
    "mla_decode sm_scale=0.041666666666666664 q_nope=bf16[3,16,512] q_pe=bf16[3,16,64] "
    "ckv=bf16[40,64,512] kpe=bf16[40,64,64] o=bf16[3,16,512] lse=f32[3,16] kv_len=i32[3] "
    "page_table=i32[3,13]";

/* The call with the tensors' memory on one device. */
static fastnorm_mla_decode_args* args_with(void* const* at) {
  return (fastnorm_mla_decode_args*)call_of(kGpuCall, at[kQ], at[kPe], at[kCkv], at[kKpe], at[kO],
                                            at[kLse], at[kLen], at[kTable]);
}

static int set_up(devmem* gpu, gpu_call* c) {
  static const size_t kElements[kGpuTensors] = {kGpuBatch * kGpuHeads * kLatent,
                                                kGpuBatch * kGpuHeads * kRope,
                                                kGpuPages * 64 * kLatent,
                                                kGpuPages * 64 * kRope,
                                                kGpuBatch * kGpuHeads * kLatent,
                                                kGpuBatch * kGpuHeads,
                                                kGpuBatch,
                                                kGpuBatch * kGpuTable};
  int i, k;
  memset(c, 0, sizeof *c);
  for (i = 0; i < kGpuTensors; ++i) {
    c->bytes[i] = kElements[i] * (i < 5 ? 2 : 4);
    c->host[i] = malloc(c->bytes[i]);
    if (!CHECK(c->host[i] != NULL) || !done(devmem_alloc(gpu, c->bytes[i], &c->device[i])))
      return 0;
    if (i < 4) fill_bf16((uint16_t*)c->host[i], c->bytes[i] / 2, 7u + (uint32_t)i);
  }
  for (k = 0; k < kGpuBatch * kGpuTable; ++k) ((int32_t*)c->host[kTable])[k] = (k * 7) % kGpuPages;
  c->cpu_args = args_with(c->host);
  c->gpu_args = args_with(c->device);
  change(c->gpu_args, "device=cuda:0");
  for (i = 0; i < kGpuTensors; ++i)
    if (i != kO && i != kLse && !done(devmem_upload(gpu, c->device[i], c->host[i], c->bytes[i])))
      return 0;
  return 1;
}

static void set_lengths(devmem* gpu, gpu_call* c, int32_t a, int32_t b, int32_t d) {
  int32_t* length = (int32_t*)c->host[kLen];
  length[0] = a, length[1] = b, length[2] = d;
  done(devmem_upload(gpu, c->device[kLen], length, c->bytes[kLen]));
  done(devmem_fill(gpu, c->device[kO], 0xff, c->bytes[kO], NULL));
}

/* The GPU's result is close to the CPU's. */
static void expect_like_cpu(devmem* gpu, gpu_call* c, fastnorm_context* cpu) {
  uint16_t* found = (uint16_t*)malloc(c->bytes[kO]);
  float* lse = (float*)malloc(c->bytes[kLse]);
  float worst = 0, worst_lse = 0;
  size_t i;
  CHECK_OK(fastnorm_mla_decode(cpu, c->cpu_args, NULL, 0, NULL));
  if (!CHECK(found != NULL && lse != NULL) ||
      !done(devmem_download(gpu, found, c->device[kO], c->bytes[kO])) ||
      !done(devmem_download(gpu, lse, c->device[kLse], c->bytes[kLse])))
    return;
  for (i = 0; i < c->bytes[kO] / 2; ++i) {
    const float e = fabsf(from_bf16(found[i]) - from_bf16(((uint16_t*)c->host[kO])[i]));
    worst = e <= worst ? worst : e; /* NaN counts */
  }
  for (i = 0; i < c->bytes[kLse] / 4; ++i) {
    const float expected = ((float*)c->host[kLse])[i];
    const float e = lse[i] == expected ? 0 : fabsf(lse[i] - expected);
    worst_lse = e <= worst_lse ? worst_lse : e;
  }
  CHECK(worst <= 1 / 128.0f);
  CHECK(worst_lse <= 1e-4f);
  free(found);
  free(lse);
}

/* A graph is captured once. Lengths change between its replays. */
static void graph(devmem* gpu, gpu_call* c, fastnorm_context* context, fastnorm_context* cpu,
                  void* workspace, size_t bytes) {
  void *stream = NULL, *captured = NULL;
  if (!done(devmem_stream_create(gpu, &stream))) return;
  CHECK_OK(fastnorm_mla_decode_prepare(context, c->gpu_args));
  if (!done(devmem_capture_begin(gpu, stream))) return;
  CHECK_OK(fastnorm_mla_decode(context, c->gpu_args, workspace, bytes, stream));
  if (!done(devmem_capture_end(gpu, stream, &captured))) return;
  static const int32_t kLengths[5][3] = {
      {832, 1, 65}, {0, 832, 300}, {64, 64, 64}, {0, 0, 0}, {777, 831, 128}};
  for (size_t i = 0; i < sizeof kLengths / sizeof *kLengths; ++i) {
    set_lengths(gpu, c, kLengths[i][0], kLengths[i][1], kLengths[i][2]);
    done(devmem_graph_launch(gpu, captured, stream));
    done(devmem_stream_synchronize(gpu, stream));
    expect_like_cpu(gpu, c, cpu);
  }
  done(devmem_graph_destroy(gpu, captured));
  done(devmem_stream_destroy(gpu, stream));
}

/* Spans of a real profile alternate between begin and end, in order of time. */
static void profile(devmem* gpu, gpu_call* c, fastnorm_context* context, void* workspace,
                    size_t workspace_bytes) {
  fastnorm_info info = empty_info();
  fastnorm_profile_event* events;
  char line[64];
  void *device = NULL, *host;
  size_t count = 0, i;
  int wrong = 0;
  change(c->gpu_args, "profile_events=512");
  CHECK_OK(fastnorm_mla_decode_query(context, c->gpu_args, &info));
  host = malloc((size_t)info.profile_bytes);
  if (!CHECK(host != NULL) || !done(devmem_alloc(gpu, (size_t)info.profile_bytes, &device))) return;
  snprintf(line, sizeof line, "profile=u8[%d]", (int)info.profile_bytes);
  change(c->gpu_args, line, device);
  set_lengths(gpu, c, 832, 500, 100);
  CHECK_OK(fastnorm_mla_decode(context, c->gpu_args, workspace, workspace_bytes, NULL));
  done(devmem_download(gpu, host, device, (size_t)info.profile_bytes));
  CHECK_OK(fastnorm_profile_decode(host, (size_t)info.profile_bytes, NULL, 0, &count));
  CHECK(count > 100);
  events = (fastnorm_profile_event*)malloc((count + 1) * sizeof *events);
  if (CHECK(events != NULL)) {
    CHECK_OK(fastnorm_profile_decode(host, (size_t)info.profile_bytes, events, count, &count));
    for (i = 1; i < count; ++i) {
      const fastnorm_profile_event *a = &events[i - 1], *b = &events[i];
      if (a->block == b->block && a->group == b->group) wrong += b->cycle < a->cycle;
      wrong += strcmp(fastnorm_profile_id_name(b->id), "unknown") == 0;
    }
    CHECK(wrong == 0);
  }
  change(c->gpu_args, "profile=null profile_events=0");
  free(events);
  free(host);
  done(devmem_free(gpu, device));
}

static void on_a_gpu(void) {
  const fastnorm_device device = {FASTNORM_DEVICE_CUDA, 0};
  fastnorm_context_options options = empty_options();
  fastnorm_device_info found;
  fastnorm_context *context = NULL, *cpu;
  fastnorm_info info = empty_info();
  gpu_call call;
  devmem* gpu = NULL;
  void* workspace = NULL;
  int32_t devices = 0;
  int i;
  memset(&found, 0, sizeof found);
  found.struct_size = sizeof found;
  fastnorm_device_count(FASTNORM_DEVICE_CUDA, &devices);
  if (devices == 0 || fastnorm_device_describe(device, &found) != FASTNORM_OK ||
      found.capability != 90 || strcmp(found.kernel_arch, "sm_90") != 0) {
    skip("mla_decode on a GPU", devices == 0 ? "no GPU" : "no GPU of compute capability 9.0");
    return;
  }
  options.num_threads = 2;
  cpu = cpu_context(&options);
  if (!CHECK_OK(fastnorm_context_create(device, NULL, &context)) || !done(devmem_open(0, &gpu)) ||
      !set_up(gpu, &call))
    return;
  CHECK_OK(fastnorm_mla_decode_query(context, call.gpu_args, &info));
  if (!done(devmem_alloc(gpu, (size_t)info.workspace_bytes, &workspace))) return;
  set_lengths(gpu, &call, 832, 17, 400);
  CHECK_OK(
      fastnorm_mla_decode(context, call.gpu_args, workspace, (size_t)info.workspace_bytes, NULL));
  expect_like_cpu(gpu, &call, cpu);
  call.gpu_args->reuse_plan = 1;
  done(devmem_fill(gpu, call.device[kO], 0xff, call.bytes[kO], NULL));
  CHECK_OK(
      fastnorm_mla_decode(context, call.gpu_args, workspace, (size_t)info.workspace_bytes, NULL));
  expect_like_cpu(gpu, &call, cpu);
  call.gpu_args->reuse_plan = 0;
  graph(gpu, &call, context, cpu, workspace, (size_t)info.workspace_bytes);
  profile(gpu, &call, context, workspace, (size_t)info.workspace_bytes);
  for (i = 0; i < kGpuTensors; ++i) {
    free(call.host[i]);
    done(devmem_free(gpu, call.device[i]));
  }
  done(devmem_free(gpu, workspace));
  devmem_close(gpu);
  fastnorm_context_destroy(context);
  fastnorm_context_destroy(cpu);
}

void test_mla_decode(void) {
  fastnorm_context* context = cpu_context(NULL);
  by_hand(context);
  lists(context);
  query(context);
  nothing(context);
  refusals(context);
  bytes_by_hand(context);
  selected_by_hand(context);
  written_by_heads(context);
  written_with_tails(context);
  dry_runs();
  profiles();
  fastnorm_context_destroy(context);
  on_a_gpu();
}
