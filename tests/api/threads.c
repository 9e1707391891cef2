/* Threads: many callers on one context, the library's pool, and the caller's loop in every form
 * that its contract allows. */
#include <pthread.h>
#include <stdlib.h>

#include "api/api_test.h"

enum { kRows = 300, kN = 1024, kCount = kRows * kN, kCallers = 8, kRounds = 10 };

static void normalise(fastnorm_context* context, float* x, float* y, void* user) {
  tensor_of tx, ty;
  fastnorm_norm_args args = empty_args();
  args.kind = FASTNORM_NORM_LAYER;
  args.eps = 1e-5f;
  args.parallel_user = user;
  args.x = make_rows(&tx, x, FASTNORM_DTYPE_F32, kRows, kN);
  args.y = make_rows(&ty, y, FASTNORM_DTYPE_F32, kRows, kN);
  CHECK_OK(fastnorm_norm(context, &args, NULL, 0, NULL));
}

static float *input, *expected;

static void same_bits_for(fastnorm_context* context, void* user) {
  float* y = (float*)malloc(kCount * sizeof(float));
  normalise(context, input, y, user);
  CHECK(memcmp(y, expected, kCount * sizeof(float)) == 0);
  free(y);
}

static void same_bits(fastnorm_context* context) { same_bits_for(context, NULL); }

static void* caller(void* context) {
  int i;
  for (i = 0; i < kRounds; ++i) same_bits((fastnorm_context*)context);
  return NULL;
}

static void many_callers(fastnorm_context* context) {
  pthread_t threads[kCallers];
  int i;
  for (i = 0; i < kCallers; ++i) CHECK(pthread_create(&threads[i], NULL, caller, context) == 0);
  for (i = 0; i < kCallers; ++i) pthread_join(threads[i], NULL);
}

static void own_threads(int32_t count) {
  fastnorm_context_options options = empty_options();
  fastnorm_context* context;
  options.num_threads = count;
  context = cpu_context(&options);
  same_bits(context);
  many_callers(context);
  fastnorm_context_destroy(context);
}

/* --- loops of the caller --- */

static void whole(void* user, int64_t n, int64_t grain, fastnorm_range_fn fn, void* task) {
  (void)grain;
  ++*(int*)user;
  fn(task, 0, n);
}

static void backwards(void* user, int64_t n, int64_t grain, fastnorm_range_fn fn, void* task) {
  int64_t i;
  (void)grain;
  ++*(int*)user;
  for (i = n; i-- > 0;) fn(task, i, i + 1);
}

static void by_grain(void* user, int64_t n, int64_t grain, fastnorm_range_fn fn, void* task) {
  int64_t i;
  ++*(int*)user;
  for (i = 0; i < n; i += grain) fn(task, i, i + grain < n ? i + grain : n);
}

typedef struct part {
  fastnorm_range_fn fn;
  void* task;
  int64_t begin, end;
} part;

static void* run_part(void* p) {
  const part* own = (const part*)p;
  own->fn(own->task, own->begin, own->end);
  return NULL;
}

static void on_threads(void* user, int64_t n, int64_t grain, fastnorm_range_fn fn, void* task) {
  pthread_t threads[3];
  part parts[3];
  int i;
  (void)grain;
  ++*(int*)user;
  for (i = 0; i < 3; ++i) {
    parts[i].fn = fn;
    parts[i].task = task;
    parts[i].begin = n * i / 3;
    parts[i].end = n * (i + 1) / 3;
    pthread_create(&threads[i], NULL, run_part, &parts[i]);
  }
  for (i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
}

static void callers_loop(fastnorm_parallel_for_fn loop) {
  int calls = 0, own = 0;
  fastnorm_context_options options = empty_options();
  fastnorm_context* context;
  options.parallel_for = loop;
  options.parallel_user = &calls;
  context = cpu_context(&options);
  same_bits(context);
  CHECK(calls == 1);
  same_bits_for(context, &own); /* a call's user is in place of the context's */
  CHECK(calls == 1 && own == 1);
  fastnorm_context_destroy(context);
}

void test_threads(void) {
  fastnorm_context* serial = cpu_context(NULL);
  input = (float*)malloc(kCount * sizeof(float));
  expected = (float*)malloc(kCount * sizeof(float));
  if (!CHECK(input != NULL && expected != NULL)) return;
  fill_random(input, kCount, 13);
  normalise(serial, input, expected, NULL);
  many_callers(serial);
  own_threads(2);
  own_threads(5);
  callers_loop(whole);
  callers_loop(backwards);
  callers_loop(by_grain);
  callers_loop(on_threads);
  free(input);
  free(expected);
  fastnorm_context_destroy(serial);
}
