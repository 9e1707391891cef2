/* Every status code, produced once, with its text. */
#include <pthread.h>

#include "api/api_test.h"

/* One row of 4 floats, valid until something is changed. */
typedef struct call {
  float x[4], y[4];
  tensor_of tx, ty;
  fastnorm_norm_args args;
} call;

static void make_call(call* c) {
  int i;
  for (i = 0; i < 4; ++i) c->x[i] = (float)i, c->y[i] = -1;
  c->args = empty_args();
  c->args.x = make_rows(&c->tx, c->x, FASTNORM_DTYPE_F32, 1, 4);
  c->args.y = make_rows(&c->ty, c->y, FASTNORM_DTYPE_F32, 1, 4);
}

/* Runs the call, which must fail with `wanted` and write nothing. */
static void fails(fastnorm_context* context, const call* c, fastnorm_status wanted,
                  const char* text) {
  fastnorm_info info = empty_info();
  info.launches = 42;
  CHECK_STATUS(fastnorm_norm(context, &c->args, NULL, 0, NULL), wanted);
  CHECK_TEXT(text);
  CHECK_STATUS(fastnorm_norm_prepare(context, &c->args), wanted);
  CHECK_STATUS(fastnorm_norm_query(context, &c->args, &info), wanted);
  CHECK(info.launches == 42);
  CHECK(c->y[0] == -1 && c->y[3] == -1);
}

static void every_code(fastnorm_context* context) {
  fastnorm_context_options options = empty_options();
  fastnorm_context* throwing = NULL;
  static float large[3 * 65536]; /* enough for more than one range */
  tensor_of rows;
  call c;

  make_call(&c);
  CHECK_OK(fastnorm_norm(context, &c.args, NULL, 0, NULL));

  make_call(&c);
  c.args.eps = -1;
  fails(context, &c, FASTNORM_ERROR_ARGUMENT, "eps is -1");

  make_call(&c);
  c.tx.shape[1] = 0;
  fails(context, &c, FASTNORM_ERROR_SHAPE, "x.shape is [1, 0]");

  make_call(&c);
  c.tx.tensor.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_I8);
  fails(context, &c, FASTNORM_ERROR_DTYPE, "x.dtype is i8");

  make_call(&c);
  c.tx.strides[1] = 2;
  fails(context, &c, FASTNORM_ERROR_LAYOUT, "x.strides[1] is 2");

  make_call(&c);
  c.args.flags = 33;
  fails(context, &c, FASTNORM_ERROR_UNSUPPORTED, "flags is 0x21");
  c.args.flags = FASTNORM_NORM_PDL_CONSTANT_WEIGHTS;
  fails(context, &c, FASTNORM_ERROR_ARGUMENT, "flags is 0x4");

  make_call(&c);
  c.tx.tensor.device_type = FASTNORM_DEVICE_CUDA;
  fails(context, &c, FASTNORM_ERROR_DEVICE, "x is on device CUDA:0");
  CHECK(fastnorm_last_device_error() == 0); /* not the CUDA runtime's */

  /* An exception from a callback breaks its contract. It must not cross the ABI. alloc_test tests
   * FASTNORM_ERROR_OUT_OF_MEMORY. */
  options.parallel_for = throwing_loop;
  throwing = cpu_context(&options);
  make_call(&c);
  c.args.eps = 1;
  c.args.x = c.args.y = make_rows(&rows, large, FASTNORM_DTYPE_F32, 3, 65536);
  CHECK_STATUS(fastnorm_norm(throwing, &c.args, NULL, 0, NULL), FASTNORM_ERROR_INTERNAL);
  CHECK(fastnorm_last_error()[0] != '\0');
  fastnorm_context_destroy(throwing);
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
  c.args.eps = -2;
  CHECK_STATUS(fastnorm_norm((fastnorm_context*)context, &c.args, NULL, 0, NULL),
               FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("eps is -2");
  return NULL;
}

static void texts_of_threads(fastnorm_context* context) {
  pthread_t thread;
  const char* text;
  call c;
  make_call(&c);
  c.args.eps = -3;
  CHECK_STATUS(fastnorm_norm(context, &c.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  text = fastnorm_last_error();
  if (!CHECK(pthread_create(&thread, NULL, other_thread, context) == 0)) return;
  pthread_join(thread, NULL);
  CHECK(strstr(text, "eps is -3") != NULL);
  make_call(&c);
  CHECK_OK(fastnorm_norm(context, &c.args, NULL, 0, NULL));
  CHECK(strstr(fastnorm_last_error(), "eps is -3") != NULL); /* a success clears nothing */
}

static void null_arguments(fastnorm_context* context) {
  fastnorm_info info = empty_info();
  call c;
  make_call(&c);
  CHECK_STATUS(fastnorm_norm(NULL, &c.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("context is NULL");
  CHECK_STATUS(fastnorm_norm(context, NULL, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("args is NULL");
  CHECK_STATUS(fastnorm_norm_prepare(NULL, &c.args), FASTNORM_ERROR_ARGUMENT);
  CHECK_STATUS(fastnorm_norm_query(NULL, &c.args, &info), FASTNORM_ERROR_ARGUMENT);
  CHECK_STATUS(fastnorm_norm_query(context, &c.args, NULL), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("info is NULL");
  CHECK_STATUS(fastnorm_norm(context, &c.args, NULL, 0, &c), FASTNORM_ERROR_ARGUMENT);
  CHECK_TEXT("stream");
  CHECK(c.y[0] == -1);
}

void test_status(void) {
  fastnorm_context* context;
  CHECK(fastnorm_last_error() != NULL && fastnorm_last_error()[0] == '\0');
  context = cpu_context(NULL);
  names();
  every_code(context);
  texts_of_threads(context);
  null_arguments(context);
  fastnorm_context_destroy(context);
}
