/* Structs that grow: longer ones of newer callers, and shorter ones of older callers. */
#include "api/api_test.h"

typedef struct longer_args {
  fastnorm_norm_args args;
  unsigned char tail[40];
} longer_args;

typedef struct longer_options {
  fastnorm_context_options options;
  unsigned char tail[16];
} longer_options;

typedef struct longer_info {
  fastnorm_info info;
  unsigned char tail[16];
} longer_info;

static void arguments(fastnorm_context* context) {
  float x[4] = {3, 4, 0, 0}, y[4] = {0, 0, 0, 0};
  tensor_of tx, ty;
  longer_args longer;
  memset(&longer, 0, sizeof longer);
  longer.args = empty_args();
  longer.args.x = make_rows(&tx, x, FASTNORM_DTYPE_F32, 1, 4);
  longer.args.y = make_rows(&ty, y, FASTNORM_DTYPE_F32, 1, 4);
  longer.args.struct_size = sizeof longer;
  CHECK_OK(fastnorm_norm(context, &longer.args, NULL, 0, NULL));
  CHECK(y[0] == 3 * 0.4f);
  y[0] = -1;
  longer.tail[sizeof longer.tail - 1] = 1;
  CHECK_STATUS(fastnorm_norm(context, &longer.args, NULL, 0, NULL), FASTNORM_ERROR_UNSUPPORTED);
  CHECK_TEXT("args.struct_size");
  CHECK(y[0] == -1);
  longer.args.struct_size = sizeof longer.args;
  CHECK_OK(fastnorm_norm(context, &longer.args, NULL, 0, NULL));
  longer.args.struct_size = sizeof longer.args - 8;
  CHECK_STATUS(fastnorm_norm(context, &longer.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
  longer.args.struct_size = 0;
  CHECK_STATUS(fastnorm_norm(context, &longer.args, NULL, 0, NULL), FASTNORM_ERROR_ARGUMENT);
}

static void options(void) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
  fastnorm_context* context = NULL;
  longer_options longer;
  memset(&longer, 0, sizeof longer);
  longer.options.struct_size = sizeof longer;
  CHECK_OK(fastnorm_context_create(cpu, &longer.options, &context));
  fastnorm_context_destroy(context);
  longer.tail[0] = 1;
  CHECK_STATUS(fastnorm_context_create(cpu, &longer.options, &context), FASTNORM_ERROR_UNSUPPORTED);
  CHECK_TEXT("options.struct_size");
  CHECK(context == NULL);
}

static void information(fastnorm_context* context) {
  float x[4] = {1, 2, 3, 4};
  tensor_of tx;
  fastnorm_norm_args args = empty_args();
  longer_info longer;
  args.x = args.y = make_rows(&tx, x, FASTNORM_DTYPE_F32, 1, 4);
  memset(&longer, 0xa5, sizeof longer);
  longer.info.struct_size = sizeof longer;
  CHECK_OK(fastnorm_norm_query(context, &args, &longer.info));
  CHECK(longer.info.struct_size == sizeof longer);
  CHECK(longer.info.launches == 1);
  CHECK(longer.tail[0] == 0xa5 && longer.tail[15] == 0xa5); /* not ours to write */
  longer.info.struct_size = sizeof longer.info;
  CHECK_OK(fastnorm_norm_query(context, &args, &longer.info));
  longer.info.struct_size = sizeof longer.info - 1;
  CHECK_STATUS(fastnorm_norm_query(context, &args, &longer.info), FASTNORM_ERROR_ARGUMENT);
}

void test_structs(void) {
  fastnorm_context* context = cpu_context(NULL);
  arguments(context);
  options();
  information(context);
  fastnorm_context_destroy(context);
}
