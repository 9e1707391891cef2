/* MLA decode through the C ABI: results computed by hand, queries, threads, dry runs, refusals and
 * profiles. Also a captured graph with lengths that change. */
#include <math.h>
#include <stdlib.h>

#include "api/api_test.h"
#include "support/devmem.h"

enum { kLatent = 512, kRope = 64, kPages = 12, kPage = 16, kTokens = 6, kHeads = 5 };

/* The memory of a call and its tensors. */
typedef struct mla_call {
  float q_nope[kTokens * kHeads * kLatent], q_pe[kTokens * kHeads * kRope];
  float ckv[kPages * kPage * kLatent], kpe[kPages * kPage * kRope];
  float o[kTokens * kHeads * kLatent], lse[kTokens * kHeads];
  int32_t kv_len[3], page_table[3 * 4], kv_indptr[4], qo_indptr[4];
  tensor_of t[10];
  fastnorm_mla_decode_args args;
} mla_call;

static mla_call mla;

/* Three requests of two tokens, with a block table. */
static void reset(void) {
  const int64_t q[3] = {kTokens, kHeads, kLatent}, pe[3] = {kTokens, kHeads, kRope};
  const int64_t ckv[3] = {kPages, kPage, kLatent}, kpe[3] = {kPages, kPage, kRope};
  const int64_t rows[2] = {kTokens, kHeads}, table[2] = {3, 4};
  fastnorm_mla_decode_args* a = &mla.args;
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
  memset(a, 0, sizeof *a);
  a->struct_size = sizeof *a;
  a->sm_scale = 1 / 24.0;
  a->q_nope = make_tensor(&mla.t[0], mla.q_nope, FASTNORM_DTYPE_F32, 3, q);
  a->q_pe = make_tensor(&mla.t[1], mla.q_pe, FASTNORM_DTYPE_F32, 3, pe);
  a->ckv = make_tensor(&mla.t[2], mla.ckv, FASTNORM_DTYPE_F32, 3, ckv);
  a->kpe = make_tensor(&mla.t[3], mla.kpe, FASTNORM_DTYPE_F32, 3, kpe);
  a->o = make_tensor(&mla.t[4], mla.o, FASTNORM_DTYPE_F32, 3, q);
  a->lse = make_tensor(&mla.t[5], mla.lse, FASTNORM_DTYPE_F32, 2, rows);
  a->kv_len = make_vector(&mla.t[6], mla.kv_len, FASTNORM_DTYPE_I32, 3);
  a->page_table = make_tensor(&mla.t[7], mla.page_table, FASTNORM_DTYPE_I32, 2, table);
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
  CHECK_OK(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL));
  CHECK(memcmp(mla.o + 2 * kHeads * kLatent, row_of(1, 0), kLatent * sizeof(float)) == 0);
  CHECK(mla.lse[2 * kHeads] == 0);
  for (i = 0; i < 50; ++i) mean += (double)row_of(0, i)[7] / 50;
  CHECK(fabs((double)mla.o[7] - mean) < 1e-5);
  CHECK(fabsf(mla.lse[0] - logf(50)) < 1e-5f && fabsf(mla.lse[4 * kHeads] - logf(17)) < 1e-5f);
  mla.args.lse_base = FASTNORM_LSE_BASE_2;
  CHECK_OK(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL));
  CHECK(fabsf(mla.lse[0] - log2f(50)) < 1e-5f);
  /* Causal: the first of two tokens does not see the last cached one. It sees nothing of a request
   * with one cached token. */
  mla.args.lse_base = FASTNORM_LSE_NATURAL;
  mla.args.causal = 1;
  CHECK_OK(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL));
  CHECK(fabsf(mla.lse[0] - logf(49)) < 1e-5f && fabsf(mla.lse[kHeads] - logf(50)) < 1e-5f);
  CHECK(mla.lse[2 * kHeads] == -INFINITY && mla.lse[3 * kHeads] == 0);
  for (i = 0; i < kLatent && mla.o[2 * kHeads * kLatent + i] == 0; ++i) {
  }
  CHECK(i == kLatent);
}

/* The same requests as lists, after a request without new tokens. */
static void lists(fastnorm_context* context) {
  const int64_t total[1] = {9};
  static float o[kTokens * kHeads * kLatent];
  int32_t flat[9] = {11, 10, 9, 8, 7, 3, 2, 5, 5};
  reset();
  CHECK_OK(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL));
  memcpy(o, mla.o, sizeof o);
  memset(mla.o, 0xff, sizeof mla.o);
  mla.kv_indptr[0] = 0, mla.kv_indptr[1] = 4, mla.kv_indptr[2] = 5, mla.kv_indptr[3] = 7;
  mla.qo_indptr[0] = 0, mla.qo_indptr[1] = 2, mla.qo_indptr[2] = 2, mla.qo_indptr[3] = 4;
  mla.args.page_table = make_tensor(&mla.t[7], flat, FASTNORM_DTYPE_I32, 1, total);
  mla.args.kv_indptr = make_vector(&mla.t[8], mla.kv_indptr, FASTNORM_DTYPE_I32, 4);
  mla.args.qo_indptr = make_vector(&mla.t[9], mla.qo_indptr, FASTNORM_DTYPE_I32, 4);
  mla.args.max_s_q = 2;
  CHECK_OK(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL));
  CHECK(memcmp(mla.o, o, 2 * kHeads * kLatent * sizeof(float)) == 0);
  CHECK(isfinite(mla.o[2 * kHeads * kLatent]));
  CHECK(isnan(mla.o[4 * kHeads * kLatent])); /* a row of no request */
  mla.args.max_s_q = 0;
  CHECK_STATUS(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("max_s_q is 0");
}

static void query(fastnorm_context* context) {
  fastnorm_info info = empty_info();
  fastnorm_kernel_info kernel;
  int32_t i, listed = 0;
  reset();
  mla.args.total_kv_hint = 68;
  CHECK_OK(fastnorm_mla_decode_query(context, &mla.args, &info));
  CHECK(info.workspace_bytes == 0 && info.profile_bytes == 0 && info.launches == 1);
  CHECK(strcmp(info.kernel, "f32") == 0 && info.blocks >= 1);
  CHECK(info.bytes_written == sizeof mla.o + sizeof mla.lse);
  CHECK(info.bytes_read == (kTokens * kHeads + 68) * 576 * 4 + 4 * (3 + 5));
  CHECK(unwritten());
  memset(&kernel, 0, sizeof kernel);
  kernel.struct_size = sizeof kernel;
  for (i = 0; i < fastnorm_kernel_count(); ++i) {
    fastnorm_kernel_describe(i, &kernel);
    listed += strcmp(kernel.family, "mla_decode") == 0 && strcmp(kernel.name, "f32") == 0;
  }
  CHECK(listed >= 1);
  CHECK_OK(fastnorm_mla_decode_prepare(context, &mla.args));
  CHECK(unwritten());
  CHECK_STATUS(fastnorm_mla_decode_query(context, &mla.args, NULL), FASTNORM_ERROR_ARGUMENT);
  info.struct_size = 8;
  CHECK_STATUS(fastnorm_mla_decode_query(context, &mla.args, &info), FASTNORM_ERROR_ARGUMENT);
}

static void nothing(fastnorm_context* context) {
  fastnorm_info info = empty_info();
  reset();
  mla.t[0].shape[0] = mla.t[1].shape[0] = mla.t[4].shape[0] = mla.t[5].shape[0] = 0;
  CHECK_OK(fastnorm_mla_decode_query(context, &mla.args, &info));
  CHECK(info.launches == 0 && info.kernel[0] == '\0' && info.bytes_written == 0);
  CHECK_OK(fastnorm_mla_decode_prepare(context, &mla.args));
  CHECK_OK(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL));
  CHECK(unwritten());
  mla.t[6].shape[0] = mla.t[7].shape[0] = 0;
  CHECK_OK(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL));
  CHECK(unwritten());
}

/* All three functions refuse the call, and nothing is written. */
static void refused(fastnorm_context* context, fastnorm_status status, const char* text) {
  fastnorm_info info = empty_info();
  CHECK_STATUS(fastnorm_mla_decode_query(context, &mla.args, &info), status);
  CHECK_TEXT(text);
  CHECK_STATUS(fastnorm_mla_decode_prepare(context, &mla.args), status);
  CHECK_STATUS(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL), status);
  CHECK_TEXT(text);
  CHECK(unwritten());
}

static void refusals(fastnorm_context* context) {
  fastnorm_info info = empty_info();
  reset();
  CHECK_STATUS(fastnorm_mla_decode(NULL, &mla.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("context is NULL");
  CHECK_STATUS(fastnorm_mla_decode(context, NULL, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_STATUS(fastnorm_mla_decode(context, &mla.args, NULL, 0, &mla), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("stream is");
  mla.args.sm_scale = 0;
  refused(context, FASTNORM_ERROR_ARGUMENT, "sm_scale is 0");
  reset();
  mla.t[4].tensor.data = mla.q_nope;
  CHECK_STATUS(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL), FASTNORM_ERROR_LAYOUT);
  reset();
  mla.args.profile_events = 10;
  refused(context, FASTNORM_ERROR_UNSUPPORTED, "on the CPU");
  /* Values in memory are checked when the call runs, before anything is written. */
  reset();
  mla.kv_len[2] = 65;
  CHECK_OK(fastnorm_mla_decode_query(context, &mla.args, &info));
  CHECK_STATUS(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("kv_len[2] is 65");
  CHECK(unwritten());
  mla.kv_len[2] = 17;
  mla.page_table[9] = kPages;
  CHECK_STATUS(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("page 1 of request 2 is 12");
  CHECK(unwritten());
}

static void skips_the_last(void* user, int64_t n, int64_t grain, fastnorm_range_fn fn, void* task) {
  (void)user, (void)grain;
  fn(task, 0, n - 1);
}

static void one_by_one(void* user, int64_t n, int64_t grain, fastnorm_range_fn fn, void* task) {
  int64_t i;
  (void)grain;
  ++*(int*)user;
  for (i = n; i-- > 0;) fn(task, i, i + 1);
}

static void threads(fastnorm_context* serial) {
  static float o[kTokens * kHeads * kLatent];
  fastnorm_context_options options = empty_options();
  fastnorm_context* context;
  int calls = 0, own = 0, i;
  reset();
  CHECK_OK(fastnorm_mla_decode(serial, &mla.args, NULL, 0, NULL));
  memcpy(o, mla.o, sizeof o);
  for (i = 2; i <= 5; ++i) {
    options.num_threads = i;
    context = cpu_context(&options);
    reset();
    CHECK_OK(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL));
    CHECK(memcmp(mla.o, o, sizeof o) == 0);
    fastnorm_context_destroy(context);
  }
  options.num_threads = 0;
  options.parallel_for = one_by_one;
  options.parallel_user = &calls;
  context = cpu_context(&options);
  reset();
  CHECK_OK(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL));
  CHECK(calls == 1 && memcmp(mla.o, o, sizeof o) == 0);
  mla.args.parallel_user = &own;
  CHECK_OK(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL));
  CHECK(calls == 1 && own == 1);
  mla.args.parallel_user = NULL;
  fastnorm_context_destroy(context);
  options.parallel_for = skips_the_last;
  context = cpu_context(&options);
  CHECK_STATUS(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("groups of heads; required: [0, n) exactly once");
  fastnorm_context_destroy(context);
  options.parallel_for = throwing_loop;
  context = cpu_context(&options);
  CHECK_STATUS(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL), FASTNORM_ERROR_INTERNAL);
  fastnorm_context_destroy(context);
}

/* Planning for a GPU without one reads no tensor. */
static void dry_runs(void) {
  static const int32_t kOthers[] = {80, 89, 100, 120};
  fastnorm_device cuda = {FASTNORM_DEVICE_CUDA, 0};
  fastnorm_context_options options = empty_options();
  fastnorm_context* context = NULL;
  fastnorm_info info = empty_info();
  size_t i;
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  options.dry_run_capability = 90;
  if (!CHECK_OK(fastnorm_context_create(cuda, &options, &context))) return;
  reset();
  for (i = 0; i < 8; ++i) {
    mla.t[i].tensor.device_type = FASTNORM_DEVICE_CUDA;
    mla.t[i].tensor.data = (void*)(uintptr_t)(0x100000000000u + 0x10000000000u * (unsigned)i);
    if (i < 5) mla.t[i].tensor.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_BF16);
  }
  CHECK_OK(fastnorm_mla_decode_query(context, &mla.args, &info));
  CHECK(info.launches == 3 && info.blocks == 132 && strcmp(info.kernel, "bf16") == 0);
  CHECK(info.workspace_bytes > (uint64_t)2 * 132 * 64 * 512 * 4);
  CHECK(info.workspace_bytes < (uint64_t)2 * 132 * 64 * 513 * 4 + 20000);
  CHECK_OK(fastnorm_mla_decode_prepare(context, &mla.args));
  CHECK_STATUS(fastnorm_mla_decode(context, &mla.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("workspace_bytes is 0; required: at least");
  CHECK_STATUS(fastnorm_mla_decode(context, &mla.args, (void*)(uintptr_t)0x1000080,
                                   (size_t)info.workspace_bytes, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("256-byte aligned");
  CHECK_OK(fastnorm_mla_decode(context, &mla.args, (void*)(uintptr_t)0x1000000,
                               (size_t)info.workspace_bytes, NULL));
  mla.args.profile_events = 256; /* asked without a buffer, run with one */
  CHECK_OK(fastnorm_mla_decode_query(context, &mla.args, &info));
  CHECK(info.profile_bytes == 64 + 132 * 3 * (64 + 256 * 8));
  CHECK_STATUS(fastnorm_mla_decode(context, &mla.args, (void*)(uintptr_t)0x1000000,
                                   (size_t)info.workspace_bytes, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("profile is NULL");
  fastnorm_context_destroy(context);
  mla.args.profile_events = 0;
  for (i = 0; i < sizeof kOthers / sizeof *kOthers; ++i) {
    options.dry_run_capability = kOthers[i];
    if (!CHECK_OK(fastnorm_context_create(cuda, &options, &context))) continue;
    CHECK_STATUS(fastnorm_mla_decode_query(context, &mla.args, &info), FASTNORM_ERROR_UNSUPPORTED);
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

/* --- on a GPU --- */

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

enum { kGpuBatch = 3, kGpuHeads = 16, kGpuPages = 40, kGpuTable = 13 };
enum { kQ, kPe, kCkv, kKpe, kO, kLse, kLen, kTable, kGpuTensors };

typedef struct gpu_call {
  size_t bytes[kGpuTensors];
  void* host[kGpuTensors];
  void* device[kGpuTensors];
  tensor_of on_host[kGpuTensors], on_gpu[kGpuTensors];
  fastnorm_mla_decode_args cpu_args, gpu_args;
} gpu_call;

static int done(int32_t error) {
  if (error != 0) printf("devmem: %s\n", devmem_error());
  return CHECK(error == 0);
}

static int set_up(devmem* gpu, gpu_call* c) {
  const int64_t shapes[kGpuTensors][3] = {{kGpuBatch, kGpuHeads, kLatent},
                                          {kGpuBatch, kGpuHeads, kRope},
                                          {kGpuPages, 64, kLatent},
                                          {kGpuPages, 64, kRope},
                                          {kGpuBatch, kGpuHeads, kLatent},
                                          {kGpuBatch, kGpuHeads, 1},
                                          {kGpuBatch, 1, 1},
                                          {kGpuBatch, kGpuTable, 1}};
  const int32_t ranks[kGpuTensors] = {3, 3, 3, 3, 3, 2, 1, 2};
  int i, k;
  memset(c, 0, sizeof *c);
  for (i = 0; i < kGpuTensors; ++i) {
    const fastnorm_dtype_id dtype = i < 5       ? FASTNORM_DTYPE_BF16
                                    : i == kLse ? FASTNORM_DTYPE_F32
                                                : FASTNORM_DTYPE_I32;
    c->bytes[i] = (size_t)(shapes[i][0] * shapes[i][1] * shapes[i][2]) * (i < 5 ? 2 : 4);
    c->host[i] = malloc(c->bytes[i]);
    if (!CHECK(c->host[i] != NULL) || !done(devmem_alloc(gpu, c->bytes[i], &c->device[i])))
      return 0;
    if (i < 4) fill_bf16((uint16_t*)c->host[i], c->bytes[i] / 2, 7u + (uint32_t)i);
    make_tensor(&c->on_host[i], c->host[i], dtype, ranks[i], shapes[i]);
    make_tensor(&c->on_gpu[i], c->device[i], dtype, ranks[i], shapes[i]);
    c->on_gpu[i].tensor.device_type = FASTNORM_DEVICE_CUDA;
  }
  for (k = 0; k < kGpuBatch * kGpuTable; ++k) ((int32_t*)c->host[kTable])[k] = (k * 7) % kGpuPages;
  for (i = 0; i < 2; ++i) {
    tensor_of* t = i == 0 ? c->on_host : c->on_gpu;
    fastnorm_mla_decode_args* a = i == 0 ? &c->cpu_args : &c->gpu_args;
    a->struct_size = sizeof *a;
    a->sm_scale = 1 / 24.0;
    a->q_nope = &t[kQ].tensor, a->q_pe = &t[kPe].tensor;
    a->ckv = &t[kCkv].tensor, a->kpe = &t[kKpe].tensor;
    a->o = &t[kO].tensor, a->lse = &t[kLse].tensor;
    a->kv_len = &t[kLen].tensor, a->page_table = &t[kTable].tensor;
  }
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
  CHECK_OK(fastnorm_mla_decode(cpu, &c->cpu_args, NULL, 0, NULL));
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
  CHECK_OK(fastnorm_mla_decode_prepare(context, &c->gpu_args));
  if (!done(devmem_capture_begin(gpu, stream))) return;
  CHECK_OK(fastnorm_mla_decode(context, &c->gpu_args, workspace, bytes, stream));
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
  tensor_of t;
  void *device = NULL, *host;
  size_t count = 0, i;
  int wrong = 0;
  c->gpu_args.profile_events = 512;
  CHECK_OK(fastnorm_mla_decode_query(context, &c->gpu_args, &info));
  host = malloc((size_t)info.profile_bytes);
  if (!CHECK(host != NULL) || !done(devmem_alloc(gpu, (size_t)info.profile_bytes, &device))) return;
  c->gpu_args.profile = make_vector(&t, device, FASTNORM_DTYPE_U8, (int64_t)info.profile_bytes);
  t.tensor.device_type = FASTNORM_DEVICE_CUDA;
  set_lengths(gpu, c, 832, 500, 100);
  CHECK_OK(fastnorm_mla_decode(context, &c->gpu_args, workspace, workspace_bytes, NULL));
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
  c->gpu_args.profile = NULL;
  c->gpu_args.profile_events = 0;
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
  CHECK_OK(fastnorm_mla_decode_query(context, &call.gpu_args, &info));
  if (!done(devmem_alloc(gpu, (size_t)info.workspace_bytes, &workspace))) return;
  set_lengths(gpu, &call, 832, 17, 400);
  CHECK_OK(
      fastnorm_mla_decode(context, &call.gpu_args, workspace, (size_t)info.workspace_bytes, NULL));
  expect_like_cpu(gpu, &call, cpu);
  call.gpu_args.reuse_plan = 1;
  done(devmem_fill(gpu, call.device[kO], 0xff, call.bytes[kO], NULL));
  CHECK_OK(
      fastnorm_mla_decode(context, &call.gpu_args, workspace, (size_t)info.workspace_bytes, NULL));
  expect_like_cpu(gpu, &call, cpu);
  call.gpu_args.reuse_plan = 0;
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
  threads(context);
  dry_runs();
  profiles();
  fastnorm_context_destroy(context);
  on_a_gpu();
}
