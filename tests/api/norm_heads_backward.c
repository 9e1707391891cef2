/* norm_heads_backward through the C ABI: results computed by hand, a layer's query, key and value
 * heads, queries, threads, dry runs and refusals. */
#include <math.h>
#include <stdlib.h>

#include "api/api_test.h"

enum { kTokens = 4, kQuery = 4, kKey = 2, kColumns = 64, kHeads = kQuery + 2 * kKey };
enum { kPositions = 9, kRoom = 1 << 16 };

/* The memory of a call and its tensors. The gradients of query, key and value heads go to one
 * buffer. */
typedef struct backward_call {
  float dy[kTokens * kHeads * kColumns], x[kTokens * kHeads * kColumns];
  float dqkv[kTokens * kHeads * kColumns], weight[kColumns], dweight[2][kColumns], dbias[kColumns];
  float cos[kPositions * kColumns / 2], sin[kPositions * kColumns / 2];
  int64_t positions[kTokens];
  tensor_of t[16];
  fastnorm_norm_heads_backward_part part[3];
  const fastnorm_norm_heads_backward_part* parts[3];
  fastnorm_norm_heads_args args;
} backward_call;

static backward_call call;
static void* room; /* of kRoom bytes, 256-byte aligned */

/* A buffer's heads from number `first` on. */
static const fastnorm_tensor* view(tensor_of* out, float* buffer, int first, int count) {
  const int64_t shape[3] = {kTokens, count, kColumns};
  make_tensor(out, buffer + first * kColumns, FASTNORM_DTYPE_F32, 3, shape);
  out->strides[0] = kHeads * kColumns, out->strides[1] = kColumns, out->strides[2] = 1;
  out->tensor.strides = out->strides;
  return &out->tensor;
}

static void reset(void) {
  const int64_t table[2] = {kPositions, kColumns / 2};
  int i, j;
  fill_random(call.dy, sizeof call.dy / 4, 4);
  fill_random(call.x, sizeof call.x / 4, 5);
  fill_random(call.weight, kColumns, 6);
  memset(call.dqkv, 0xff, sizeof call.dqkv);
  memset(call.dweight, 0xff, sizeof call.dweight);
  memset(call.dbias, 0xff, sizeof call.dbias);
  for (i = 0; i < kPositions; ++i) {
    for (j = 0; j < kColumns / 2; ++j) {
      call.cos[i * kColumns / 2 + j] = cosf((float)i / (float)(1 + j));
      call.sin[i * kColumns / 2 + j] = sinf((float)i / (float)(1 + j));
    }
  }
  for (i = 0; i < kTokens; ++i) call.positions[i] = 8 - i;
  memset(call.part, 0, sizeof call.part);
  memset(&call.args, 0, sizeof call.args);
  for (i = 0; i < 3; ++i) {
    const int first = i == 0 ? 0 : kQuery + (i - 1) * kKey, count = i == 0 ? kQuery : kKey;
    fastnorm_norm_heads_backward_part* p = &call.part[i];
    p->struct_size = sizeof *p;
    p->dy = view(&call.t[3 * i], call.dy, first, count);
    p->dx = view(&call.t[3 * i + 1], call.dqkv, first, count);
    if (i < 2) {
      p->flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ROPE;
      p->eps = 1e-6f;
      p->x = view(&call.t[3 * i + 2], call.x, first, count);
      p->weight = make_vector(&call.t[9], call.weight, FASTNORM_DTYPE_F32, kColumns);
      p->dweight = make_vector(&call.t[10 + i], call.dweight[i], FASTNORM_DTYPE_F32, kColumns);
    }
    call.parts[i] = p;
  }
  call.args.struct_size = sizeof call.args;
  call.args.rope_dim = kColumns;
  call.args.cos = make_tensor(&call.t[12], call.cos, FASTNORM_DTYPE_F32, 2, table);
  call.args.sin = make_tensor(&call.t[13], call.sin, FASTNORM_DTYPE_F32, 2, table);
  call.args.positions = make_vector(&call.t[14], call.positions, FASTNORM_DTYPE_I64, kTokens);
}

static fastnorm_status run(fastnorm_context* context) {
  return fastnorm_norm_heads_backward(context, &call.args, call.parts, 3, room, kRoom, NULL);
}

/* A quarter turn back: (0, 1) becomes (1, 0). The value's gradient is copied. The key's row is 1,
 * -1, .. and so is xhat. A gradient along it vanishes. */
static void by_hand(fastnorm_context* context) {
  const int key = kQuery * kColumns;
  int i, row;
  reset();
  for (i = 0; i < kPositions * kColumns / 2; ++i) call.cos[i] = 0, call.sin[i] = 1;
  for (i = 0; i < kColumns; ++i) call.dy[i] = i < kColumns / 2 ? 0.0f : 1.0f;
  call.part[0].flags = FASTNORM_NORM_HEADS_ROPE;
  call.part[0].eps = 0;
  call.part[0].x = call.part[0].weight = call.part[0].dweight = NULL;
  call.part[1].flags = FASTNORM_NORM_HEADS_NORM;
  call.part[1].eps = 0;
  for (i = 0; i < kColumns; ++i) call.weight[i] = 1;
  for (row = 0; row < kTokens * kHeads; ++row) {
    for (i = 0; i < kColumns; ++i) {
      call.x[row * kColumns + i] = i % 2 ? -1.0f : 1.0f;
      if (row % kHeads >= kQuery && row % kHeads < kQuery + kKey)
        call.dy[row * kColumns + i] = i % 2 ? -3.0f : 3.0f;
    }
  }
  CHECK_OK(run(context));
  for (i = 0; i < kColumns && call.dqkv[i] == (i < kColumns / 2 ? 1.0f : 0.0f); ++i) {
  }
  CHECK(i == kColumns);
  for (i = 0; i < kColumns && call.dqkv[key + i] == 0; ++i) {
  }
  CHECK(i == kColumns);
  for (i = 0; i < kColumns && call.dweight[1][i] == 3 * kTokens * kKey; ++i) {
  }
  CHECK(i == kColumns);
  CHECK(memcmp(call.dqkv + (kQuery + kKey) * kColumns, call.dy + (kQuery + kKey) * kColumns,
               kKey * kColumns * sizeof(float)) == 0);
}

/* Equal to the gradients of three calls of one part each. */
static void parts_are_calls(fastnorm_context* context) {
  static backward_call together;
  fastnorm_norm_heads_args none;
  int i;
  memset(&none, 0, sizeof none);
  none.struct_size = sizeof none;
  reset();
  CHECK_OK(run(context));
  memcpy(&together, &call, sizeof call);
  reset();
  for (i = 0; i < 3; ++i) {
    CHECK_OK(fastnorm_norm_heads_backward(context, i < 2 ? &call.args : &none, call.parts + i, 1,
                                          room, kRoom, NULL));
  }
  CHECK(memcmp(together.dqkv, call.dqkv, sizeof call.dqkv) == 0);
  CHECK(memcmp(together.dweight, call.dweight, sizeof call.dweight) == 0);
}

static void query(fastnorm_context* context) {
  static float before[kTokens * kHeads * kColumns];
  fastnorm_info info = empty_info();
  fastnorm_kernel_info kernel;
  int32_t i, listed = 0;
  reset();
  memcpy(before, call.dqkv, sizeof before);
  CHECK_OK(fastnorm_norm_heads_backward_query(context, &call.args, call.parts, 3, &info));
  CHECK(info.workspace_bytes >= 2 * kColumns * sizeof(float) && info.workspace_bytes <= kRoom);
  CHECK(info.launches == 3 && info.blocks >= 1);
  CHECK(strcmp(info.kernel, "rms_f32") == 0);
  CHECK(info.bytes_written == sizeof call.dqkv + sizeof call.dweight);
  CHECK(info.bytes_read == sizeof call.dy + kTokens * (kQuery + kKey) * kColumns * 4 +
                               2 * sizeof call.weight + 2 * kTokens * (kColumns * 4 + 8));
  CHECK_OK(fastnorm_norm_heads_backward_prepare(context, &call.args, call.parts, 3));
  CHECK(memcmp(before, call.dqkv, sizeof before) == 0);
  memset(&kernel, 0, sizeof kernel);
  kernel.struct_size = sizeof kernel;
  for (i = 0; i < fastnorm_kernel_count(); ++i) {
    CHECK_OK(fastnorm_kernel_describe(i, &kernel));
    if (strcmp(kernel.family, "norm_heads_backward") == 0 && strcmp(kernel.name, "rms_f32") == 0)
      ++listed;
  }
  CHECK(listed >= 1);
}

static void nothing(fastnorm_context* context) {
  fastnorm_norm_heads_args none;
  fastnorm_info info = empty_info();
  int i;
  memset(&none, 0, sizeof none);
  none.struct_size = sizeof none;
  CHECK_OK(fastnorm_norm_heads_backward(context, &none, NULL, 0, NULL, 0, NULL));
  CHECK_OK(fastnorm_norm_heads_backward_query(context, &none, NULL, 0, &info));
  CHECK(info.launches == 0 && info.workspace_bytes == 0 && info.kernel[0] == '\0');
  /* Without tokens the sums are 0, or the old values. */
  reset();
  for (i = 0; i < 9; ++i) call.t[i].shape[0] = 0;
  call.t[14].shape[0] = 0;
  call.part[1].flags |= FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT;
  CHECK_OK(run(context));
  CHECK(isnan(call.dqkv[0]) && isnan(call.dweight[1][0]));
  for (i = 0; i < kColumns && call.dweight[0][i] == 0; ++i) {
  }
  CHECK(i == kColumns);
}

/* All three functions refuse the call, and nothing is written. */
static void refused(fastnorm_context* context, fastnorm_status status, const char* text) {
  fastnorm_info info = empty_info();
  size_t i;
  CHECK_STATUS(fastnorm_norm_heads_backward_query(context, &call.args, call.parts, 3, &info),
               status);
  CHECK_TEXT(text);
  CHECK_STATUS(fastnorm_norm_heads_backward_prepare(context, &call.args, call.parts, 3), status);
  CHECK_STATUS(run(context), status);
  CHECK_TEXT(text);
  for (i = 0; i < sizeof call.dqkv / 4 && isnan(call.dqkv[i]); ++i) {
  }
  CHECK(i == sizeof call.dqkv / 4);
}

static void refusals(fastnorm_context* context) {
  reset();
  CHECK_STATUS(run(NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("context is NULL");
  CHECK_STATUS(fastnorm_norm_heads_backward(context, NULL, call.parts, 3, room, kRoom, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("args is NULL");
  CHECK_STATUS(fastnorm_norm_heads_backward(context, &call.args, call.parts, 3, room, kRoom, &call),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("stream is");
  CHECK_STATUS(fastnorm_norm_heads_backward(context, &call.args, call.parts, 3, room, 8, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("workspace_bytes is 8");
  CHECK_STATUS(fastnorm_norm_heads_backward(context, &call.args, call.parts, 3, (char*)room + 64,
                                            kRoom - 64, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("256-byte aligned");
  CHECK_STATUS(fastnorm_norm_heads_backward_query(context, &call.args, call.parts, 3, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("info is NULL");
  call.part[1].eps = -1;
  refused(context, FASTNORM_ERROR_ARGUMENT, "parts[1].eps is -1");
  reset();
  call.args.rope_dim = 62;
  refused(context, FASTNORM_ERROR_SHAPE, "cos.shape is [9, 32]");
  reset();
  call.part[0].dweight = NULL;
  call.part[0].flags |= FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT;
  refused(context, FASTNORM_ERROR_ARGUMENT, "parts[0].flags is 0x43 and dweight is NULL");
  reset();
  call.part[2].dx = call.part[1].dx;
  refused(context, FASTNORM_ERROR_LAYOUT, "parts[1].dx [");
  reset(); /* the value's part runs first, but is not begun */
  call.positions[3] = kPositions;
  call.parts[0] = &call.part[2], call.parts[2] = &call.part[0];
  CHECK_STATUS(run(context), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("the position of token 3, axis 0, is 9");
  CHECK(isnan(call.dqkv[(kQuery + kKey) * kColumns]));
}

static void skips_the_last(void* user, int64_t n, int64_t grain, fastnorm_range_fn fn, void* task) {
  (void)user, (void)grain;
  fn(task, 0, n - 1);
}

/* Enough rows for several threads, with a statistic of all heads. */
static void threads(fastnorm_context* serial) {
  enum { kMany = 1200, kRow = 128 };
  static float dy[kMany * kRow], x[kMany * kRow], dx[2][kMany * kRow], w[64], dw[2][64];
  const int64_t shape[3] = {kMany, 2, kRow / 2};
  fastnorm_context_options options = empty_options();
  fastnorm_norm_heads_args args;
  fastnorm_norm_heads_backward_part part;
  const fastnorm_norm_heads_backward_part* parts[1] = {&part};
  fastnorm_info info = empty_info();
  fastnorm_context* context;
  tensor_of t[5];
  void* workspace;
  int i;
  memset(&args, 0, sizeof args);
  memset(&part, 0, sizeof part);
  args.struct_size = sizeof args;
  part.struct_size = sizeof part;
  part.flags = FASTNORM_NORM_HEADS_NORM | FASTNORM_NORM_HEADS_ACROSS_HEADS;
  part.eps = 1e-6f;
  fill_random(dy, kMany * kRow, 8);
  fill_random(x, kMany * kRow, 9);
  fill_random(w, 64, 10);
  part.dy = make_tensor(&t[0], dy, FASTNORM_DTYPE_F32, 3, shape);
  part.x = make_tensor(&t[1], x, FASTNORM_DTYPE_F32, 3, shape);
  part.dx = make_tensor(&t[2], dx[0], FASTNORM_DTYPE_F32, 3, shape);
  part.weight = make_vector(&t[3], w, FASTNORM_DTYPE_F32, 64);
  part.dweight = make_vector(&t[4], dw[0], FASTNORM_DTYPE_F32, 64);
  CHECK_OK(fastnorm_norm_heads_backward_query(serial, &args, parts, 1, &info));
  workspace = aligned_alloc(256, (info.workspace_bytes + 255) / 256 * 256);
  CHECK_OK(
      fastnorm_norm_heads_backward(serial, &args, parts, 1, workspace, info.workspace_bytes, NULL));
  t[2].tensor.data = dx[1], t[4].tensor.data = dw[1];
  for (i = 2; i <= 4; ++i) {
    options.num_threads = i;
    context = cpu_context(&options);
    memset(dx[1], 0xff, sizeof dx[1]);
    memset(dw[1], 0xff, sizeof dw[1]);
    memset(workspace, 0xff, info.workspace_bytes);
    CHECK_OK(fastnorm_norm_heads_backward(context, &args, parts, 1, workspace, info.workspace_bytes,
                                          NULL));
    CHECK(memcmp(dx[0], dx[1], sizeof dx[0]) == 0 && memcmp(dw[0], dw[1], sizeof dw[0]) == 0);
    fastnorm_context_destroy(context);
  }
  options.num_threads = 0;
  options.parallel_for = skips_the_last;
  context = cpu_context(&options);
  CHECK_STATUS(
      fastnorm_norm_heads_backward(context, &args, parts, 1, workspace, info.workspace_bytes, NULL),
      FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("tokens; required: [0, n) exactly once");
  fastnorm_context_destroy(context);
  free(workspace);
}

static void dry_runs(void) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0}, cuda = {FASTNORM_DEVICE_CUDA, 0};
  fastnorm_context_options options = empty_options();
  fastnorm_context* context = NULL;
  fastnorm_info info = empty_info();
  int i;
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  if (CHECK_OK(fastnorm_context_create(cpu, &options, &context))) {
    reset();
    call.positions[0] = -1; /* not read */
    CHECK_OK(run(context));
    CHECK(isnan(call.dqkv[0]));
    fastnorm_context_destroy(context);
  }
  options.dry_run_capability = 90;
  if (!CHECK_OK(fastnorm_context_create(cuda, &options, &context))) return;
  reset();
  for (i = 0; i < 15; ++i) call.t[i].tensor.device_type = FASTNORM_DEVICE_CUDA;
  CHECK_OK(fastnorm_norm_heads_backward_query(context, &call.args, call.parts, 3, &info));
  CHECK(info.launches >= 2 && strncmp(info.kernel, "norm_heads_backward f32 ", 24) == 0);
  CHECK_OK(fastnorm_norm_heads_backward_prepare(context, &call.args, call.parts, 3));
  for (i = 0; i < 2; ++i) call.part[i].flags = FASTNORM_NORM_HEADS_NORM;
  call.args.rope_dim = 0;
  call.args.cos = call.args.sin = call.args.positions = NULL;
  CHECK_OK(fastnorm_norm_heads_backward_query(context, &call.args, call.parts, 2, &info));
  CHECK(info.launches >= 2 && strncmp(info.kernel, "norm_backward f32 ", 18) == 0);
  CHECK_OK(fastnorm_norm_heads_backward_prepare(context, &call.args, call.parts, 2));
  fastnorm_context_destroy(context);
}

void test_norm_heads_backward(void) {
  fastnorm_context* context = cpu_context(NULL);
  room = aligned_alloc(256, kRoom);
  by_hand(context);
  parts_are_calls(context);
  query(context);
  nothing(context);
  refusals(context);
  threads(context);
  dry_runs();
  free(room);
  fastnorm_context_destroy(context);
}
