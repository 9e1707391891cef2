/* Every status code, produced once, with its text. */
#include <pthread.h>

#include "api/api_test.h"
#include "api/call.h"

/* One row of 4 floats, valid until something is changed. */
typedef struct call {
  float x[4], y[4];
  fastnorm_norm_args* args;
} call;

static void make_call(call* c) {
  int i;
  for (i = 0; i < 4; ++i) c->x[i] = (float)i, c->y[i] = -1;
  c->args = NORM("x,y=f32[1,4]", c->x, c->y);
}

/* Runs the call, which must fail with `wanted` and write nothing. */
static void fails(fastnorm_context* context, const call* c, fastnorm_status wanted,
                  const char* text) {
  fastnorm_info info = empty_info();
  info.launches = 42;
  CHECK_STATUS(fastnorm_norm(context, c->args, NULL, 0, NULL), wanted);
  CHECK_TEXT(text);
  CHECK_STATUS(fastnorm_norm_prepare(context, c->args), wanted);
  CHECK_STATUS(fastnorm_norm_query(context, c->args, &info), wanted);
  CHECK(info.launches == 42);
  CHECK(c->y[0] == -1 && c->y[3] == -1);
}

/* alloc_test tests FASTNORM_ERROR_OUT_OF_MEMORY, and families.cpp exceptions of a callback. */
static void every_code(fastnorm_context* context) {
  static const struct {
    const char* change;
    fastnorm_status status;
    const char* text;
  } kCases[] = {
      {"eps=-1", FASTNORM_ERROR_ARGUMENT, "eps is -1"},
      {"x.shape=[1,0]", FASTNORM_ERROR_SHAPE, "x.shape is [1, 0]"},
      {"x.dtype=i8", FASTNORM_ERROR_DTYPE, "x.dtype is i8"},
      {"x.strides=[4,2]", FASTNORM_ERROR_LAYOUT, "x.strides[1] is 2"},
      {"flags=0x21", FASTNORM_ERROR_UNSUPPORTED, "flags is 0x21"},
      {"flags=0x4", FASTNORM_ERROR_ARGUMENT, "flags is 0x4"},
      {"x.device=cuda:0", FASTNORM_ERROR_DEVICE, "x is on device CUDA:0"},
  };
  size_t i;
  call c;
  make_call(&c);
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  for (i = 0; i < sizeof kCases / sizeof *kCases; ++i) {
    make_call(&c);
    change(c.args, kCases[i].change);
    fails(context, &c, kCases[i].status, kCases[i].text);
  }
  CHECK(fastnorm_last_device_error() == 0); /* not the CUDA runtime's */
}

static void names(void) {
#define CHECK_NAME(name, value, text)                                           \
  CHECK(strcmp(fastnorm_status_name(FASTNORM_##name), "FASTNORM_" #name) == 0); \
  CHECK((int)FASTNORM_##name == (value));                                       \
  CHECK((value) == 0 || (value) % 10 == 0);
  FASTNORM_STATUS_MAP(CHECK_NAME)
#undef CHECK_NAME
  CHECK(strcmp(fastnorm_status_name((fastnorm_status)7), "unknown status") == 0);
  CHECK(strcmp(fastnorm_status_name((fastnorm_status)1000), "unknown status") == 0);
}

/* --- each thread has its own text --- */

static void* other_thread(void* context) {
  call c;
  CHECK(fastnorm_last_error()[0] == '\0'); /* no failure here yet */
  CHECK(fastnorm_last_device_error() == 0);
  make_call(&c);
  c.args->eps = -2;
  CHECK_STATUS(fastnorm_norm((fastnorm_context*)context, c.args, NULL, 0, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("eps is -2");
  return NULL;
}

static void texts_of_threads(fastnorm_context* context) {
  pthread_t thread;
  const char* text;
  call c;
  make_call(&c);
  c.args->eps = -3;
  CHECK_STATUS(fastnorm_norm(context, c.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  text = fastnorm_last_error();
  if (!CHECK(pthread_create(&thread, NULL, other_thread, context) == 0)) return;
  pthread_join(thread, NULL);
  CHECK(strstr(text, "eps is -3") != NULL);
  make_call(&c);
  CHECK_OK(fastnorm_norm(context, c.args, NULL, 0, NULL));
  CHECK(strstr(fastnorm_last_error(), "eps is -3") != NULL); /* a success clears nothing */
}

void test_status(void) {
  fastnorm_context* context;
  CHECK(fastnorm_last_error() != NULL && fastnorm_last_error()[0] == '\0');
  context = cpu_context(NULL);
  names();
  every_code(context);
  texts_of_threads(context);
  fastnorm_context_destroy(context);
}
