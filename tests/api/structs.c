/* Structs that grow, other than those of calls: longer ones of newer callers, and shorter ones. */
#include "api/api_test.h"
#include "api/call.h"

typedef struct longer_options {
  fastnorm_context_options options;
  unsigned char tail[16];
} longer_options;

typedef struct longer_info {
  fastnorm_info info;
  unsigned char tail[16];
} longer_info;

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
  const fastnorm_norm_args* const args = NORM("x,y=f32[1,4]", x, x);
  longer_info longer;
  memset(&longer, 0xa5, sizeof longer);
  longer.info.struct_size = sizeof longer;
  CHECK_OK(fastnorm_norm_query(context, args, &longer.info));
  CHECK(longer.info.struct_size == sizeof longer);
  CHECK(longer.info.launches == 1);
  CHECK(longer.tail[0] == 0xa5 && longer.tail[15] == 0xa5); /* not ours to write */
  longer.info.struct_size = sizeof longer.info;
  CHECK_OK(fastnorm_norm_query(context, args, &longer.info));
  longer.info.struct_size = sizeof longer.info - 1;
  CHECK_STATUS(fastnorm_norm_query(context, args, &longer.info), FASTNORM_ERROR_ARGUMENT);
}

void test_structs(void) {
  fastnorm_context* context = cpu_context(NULL);
  options();
  information(context);
  fastnorm_context_destroy(context);
}
