/* norm_heads_backward through the C ABI: results computed by hand, a layer's query, key and value
 * heads, queries and dry runs. */
#include <math.h>
#include <stdlib.h>

#include "api/api_test.h"
#include "api/call.h"

#define NORM_HEADS_BACKWARD(...) \
  ((fastnorm_norm_heads_args*)call_of("norm_heads_backward " __VA_ARGS__))

const family_lines norm_heads_backward_lines = {
    .call =
        "norm_heads_backward parts[0].flags=0x21 parts[0].eps=1e-6 parts[0].weight=f32[64] "
        "parts[0].dy,parts[0].x,parts[0].dx=f32[1200,2,64] parts[0].dweight=f32[64]",
    .empty = "norm_heads_backward parts[0].dy,parts[0].dx=f32[0,2,64]",
    .units = "tokens",
    .wrong =
        "norm_heads_backward parts[0].flags=0x1 parts[0].eps=-1 "
        "parts[0].dy,parts[0].x,parts[0].dx=f32[2,2,64]",
};

enum { kTokens = 4, kQuery = 4, kKey = 2, kColumns = 64, kHeads = kQuery + 2 * kKey };
enum { kPositions = 9, kRoom = 1 << 16 };

/* A call and its memory. The gradients of query, key and value heads go to one
 * buffer. */
typedef struct backward_call {
  float dy[kTokens * kHeads * kColumns], x[kTokens * kHeads * kColumns];
  float dqkv[kTokens * kHeads * kColumns], weight[kColumns], dweight[2][kColumns], dbias[kColumns];
  float cos[kPositions * kColumns / 2], sin[kPositions * kColumns / 2];
  int64_t positions[kTokens];
  fastnorm_norm_heads_args* args;
} backward_call;

static backward_call call;
static void* room; /* of kRoom bytes, 256-byte aligned */

static void reset(void) {
  const int key = kQuery * kColumns, value = (kQuery + kKey) * kColumns;
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
  call.args = NORM_HEADS_BACKWARD(
      "rope_dim=64 cos,sin=f32[9,32] positions=i64[4] "
      "parts[0].flags,parts[1].flags=0x3 parts[0].eps,parts[1].eps=1e-06 "
      "parts[0].weight,parts[1].weight,parts[0].dweight,parts[1].dweight=f32[64] "
      "parts[0].dy,parts[0].x,parts[0].dx=f32[4,4,64] "
      "parts[1].dy,parts[1].x,parts[1].dx,parts[2].dy,parts[2].dx=f32[4,2,64] "
      "parts[0].dy,parts[0].x,parts[0].dx,parts[1].dy,parts[1].x,parts[1].dx.strides=[512,64,1] "
      "parts[2].dy,parts[2].dx.strides=[512,64,1]",
      call.cos, call.sin, call.positions, call.weight, call.weight, call.dweight[0],
      call.dweight[1], call.dy, call.x, call.dqkv, call.dy + key, call.x + key, call.dqkv + key,
      call.dy + value, call.dqkv + value);
}

static fastnorm_status run(fastnorm_context* context) {
  return fastnorm_norm_heads_backward(context, call.args, parts_of(call.args), 3, room, kRoom,
                                      NULL);
}

/* A quarter turn back: (0, 1) becomes (1, 0). The value's gradient is copied. The key's row is 1,
 * -1, .. and so is xhat. A gradient along it vanishes. */
static void by_hand(fastnorm_context* context) {
  const int key = kQuery * kColumns;
  int i, row;
  reset();
  for (i = 0; i < kPositions * kColumns / 2; ++i) call.cos[i] = 0, call.sin[i] = 1;
  for (i = 0; i < kColumns; ++i) call.dy[i] = i < kColumns / 2 ? 0.0f : 1.0f;
  change(call.args,
         "parts[0].flags=0x2 parts[1].flags=0x1 parts[0].eps,parts[1].eps=0 "
         "parts[0].x,parts[0].weight,parts[0].dweight=null");
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
  const fastnorm_norm_heads_args* const none = NORM_HEADS_BACKWARD("");
  const fastnorm_norm_heads_backward_part* const* parts;
  int i;
  reset();
  CHECK_OK(run(context));
  memcpy(&together, &call, sizeof call);
  reset();
  parts = parts_of(call.args);
  for (i = 0; i < 3; ++i) {
    CHECK_OK(fastnorm_norm_heads_backward(context, i < 2 ? call.args : none, parts + i, 1, room,
                                          kRoom, NULL));
  }
  CHECK(memcmp(together.dqkv, call.dqkv, sizeof call.dqkv) == 0);
  CHECK(memcmp(together.dweight, call.dweight, sizeof call.dweight) == 0);
}

static void query(fastnorm_context* context) {
  fastnorm_info info = empty_info();
  reset();
  CHECK_OK(fastnorm_norm_heads_backward_query(context, call.args, parts_of(call.args), 3, &info));
  CHECK(info.workspace_bytes >= 2 * kColumns * sizeof(float) && info.workspace_bytes <= kRoom);
  CHECK(info.launches == 3 && strcmp(info.kernel, "rms_f32") == 0);
  CHECK(info.bytes_written == sizeof call.dqkv + sizeof call.dweight);
  CHECK(info.bytes_read == sizeof call.dy + kTokens * (kQuery + kKey) * kColumns * 4 +
                               2 * sizeof call.weight + 2 * kTokens * (kColumns * 4 + 8));
}

/* Without parts there is nothing to do. Without tokens the sums are 0, or the old values. */
static void nothing(fastnorm_context* context) {
  const fastnorm_norm_heads_args* const none = NORM_HEADS_BACKWARD("");
  int i;
  CHECK_OK(fastnorm_norm_heads_backward(context, none, NULL, 0, NULL, 0, NULL));
  reset();
  change(
      call.args,
      "positions.shape=[0] parts[1].flags=0x43 parts[0].dy,parts[0].x,parts[0].dx.shape=[0,4,64] "
      "parts[1].dy,parts[1].x,parts[1].dx,parts[2].dy,parts[2].dx.shape=[0,2,64]");
  CHECK_OK(run(context));
  CHECK(isnan(call.dqkv[0]) && isnan(call.dweight[1][0]));
  for (i = 0; i < kColumns && call.dweight[0][i] == 0; ++i) {
  }
  CHECK(i == kColumns);
}

/* The value's part runs first, but is not begun. */
static void refused_part(fastnorm_context* context) {
  const fastnorm_norm_heads_backward_part* turned[3];
  const fastnorm_norm_heads_backward_part* const* parts;
  int i;
  reset();
  call.positions[3] = kPositions;
  parts = parts_of(call.args);
  for (i = 0; i < 3; ++i) turned[i] = parts[2 - i];
  CHECK_STATUS(fastnorm_norm_heads_backward(context, call.args, turned, 3, room, kRoom, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("the position of token 3, axis 0, is 9");
  CHECK(isnan(call.dqkv[(kQuery + kKey) * kColumns]));
}

static void dry_runs(void) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0}, cuda = {FASTNORM_DEVICE_CUDA, 0};
  fastnorm_context_options options = empty_options();
  fastnorm_context* context = NULL;
  fastnorm_info info = empty_info();
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  reset();
  call.positions[0] = -1; /* not read */
  if (CHECK_OK(fastnorm_context_create(cpu, &options, &context))) {
    CHECK_OK(run(context));
    fastnorm_context_destroy(context);
  }
  options.dry_run_capability = 90;
  if (!CHECK_OK(fastnorm_context_create(cuda, &options, &context))) return;
  change(call.args, "device=cuda:0");
  CHECK_OK(fastnorm_norm_heads_backward_query(context, call.args, parts_of(call.args), 3, &info));
  CHECK(info.launches >= 2 && strncmp(info.kernel, "norm_heads_backward f32 ", 24) == 0);
  change(call.args, "parts[0].flags,parts[1].flags=0x1 rope_dim=0 cos,sin,positions=null");
  CHECK_OK(fastnorm_norm_heads_backward_query(context, call.args, parts_of(call.args), 2, &info));
  CHECK(info.launches >= 2 && strncmp(info.kernel, "norm_backward f32 ", 18) == 0);
  CHECK_OK(fastnorm_norm_heads_backward_prepare(context, call.args, parts_of(call.args), 2));
  fastnorm_context_destroy(context);
}

void test_norm_heads_backward(void) {
  fastnorm_context* context = cpu_context(NULL);
  room = aligned_alloc(256, kRoom);
  by_hand(context);
  parts_are_calls(context);
  query(context);
  nothing(context);
  refused_part(context);
  dry_runs();
  free(room);
  fastnorm_context_destroy(context);
}
