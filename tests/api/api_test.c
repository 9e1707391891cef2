/* Counts, and tensors on one line. */
#include "api/api_test.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int passed, failed, skipped;

int finish(void) {
  printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  return failed != 0;
}

int check(int ok, const char* expression, const char* file, int line) {
  pthread_mutex_lock(&lock);
  ok ? ++passed : ++failed;
  if (!ok) {
    printf("FAIL %s:%d: %s (last error: %s)\n", file, line, expression, fastnorm_last_error());
  }
  pthread_mutex_unlock(&lock);
  return ok;
}

int check_status(fastnorm_status found, fastnorm_status wanted, const char* expression,
                 const char* file, int line) {
  char text[512];
  snprintf(text, sizeof text, "%s is %s, required %s", expression, fastnorm_status_name(found),
           fastnorm_status_name(wanted));
  return check(found == wanted, text, file, line);
}

void skip(const char* what, const char* why) {
  pthread_mutex_lock(&lock);
  ++skipped;
  printf("SKIP %s: %s\n", what, why);
  pthread_mutex_unlock(&lock);
}

const fastnorm_tensor* make_tensor(tensor_of* out, void* data, fastnorm_dtype_id dtype,
                                   int32_t ndim, const int64_t* shape) {
  int64_t stride = 1;
  int32_t i;
  memset(out, 0, sizeof *out);
  for (i = ndim - 1; i >= 0; --i) {
    out->shape[i] = shape[i];
    out->strides[i] = stride;
    stride *= shape[i];
  }
  out->tensor.data = data;
  out->tensor.device_type = FASTNORM_DEVICE_CPU;
  out->tensor.ndim = ndim;
  out->tensor.dtype = fastnorm_dtype_of(dtype);
  out->tensor.shape = out->shape;
  out->tensor.strides = out->strides;
  return &out->tensor;
}

const fastnorm_tensor* make_rows(tensor_of* out, void* data, fastnorm_dtype_id dtype, int64_t rows,
                                 int64_t n) {
  int64_t shape[2];
  shape[0] = rows;
  shape[1] = n;
  return make_tensor(out, data, dtype, 2, shape);
}

const fastnorm_tensor* make_vector(tensor_of* out, void* data, fastnorm_dtype_id dtype, int64_t n) {
  return make_tensor(out, data, dtype, 1, &n);
}

fastnorm_norm_args empty_args(void) {
  fastnorm_norm_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  return args;
}

fastnorm_info empty_info(void) {
  fastnorm_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  return info;
}

fastnorm_context_options empty_options(void) {
  fastnorm_context_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  return options;
}

fastnorm_context* cpu_context(const fastnorm_context_options* options) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
  fastnorm_context* context = NULL;
  if (fastnorm_context_create(cpu, options, &context) != FASTNORM_OK) {
    CHECK(!"there is a CPU context");
    exit(finish());
  }
  return context;
}

void fill_random(float* values, size_t count, uint32_t seed) {
  size_t i;
  for (i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(int32_t)seed / 1073741824.0f;
  }
}
