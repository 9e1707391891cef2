/* Host time of a call from C: those of CallBenchmark. */
#include <fastnorm/fastnorm.h>
#include <stdio.h>
#include <time.h>

enum { kCalls = 500, kRepeats = 10000 };

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Least nanoseconds a call over some repeats; -1 if one fails. */
static double cost(fastnorm_context* context, const fastnorm_norm_args* args, void* stream) {
  double least = 1e9;
  int repeat, i;
  for (repeat = 0; repeat < kRepeats; ++repeat) {
    const double start = seconds();
    double taken;
    for (i = 0; i < kCalls; ++i) {
      if (fastnorm_norm(context, args, NULL, 0, stream) != FASTNORM_OK) return -1;
    }
    taken = (seconds() - start) * 1e9 / kCalls;
    if (taken < least) least = taken;
  }
  return least;
}

static fastnorm_tensor tensor(void* data, int32_t device_type, fastnorm_dtype_id dtype,
                              int32_t ndim, const int64_t* shape) {
  const fastnorm_tensor made = {data,  device_type, 0, ndim, fastnorm_dtype_of(dtype),
                                shape, NULL,        0};
  return made;
}

static double measure(int32_t device_type, fastnorm_dtype_id dtype, char* const* data,
                      const fastnorm_context_options* options, void* stream) {
  const fastnorm_device device = {device_type, 0};
  const int64_t shape[2] = {1, 4};
  const fastnorm_tensor x = tensor(data[0], device_type, dtype, 2, shape);
  const fastnorm_tensor y = tensor(data[1], device_type, dtype, 2, shape);
  const fastnorm_tensor weight = tensor(data[2], device_type, dtype, 1, shape + 1);
  const fastnorm_tensor residual = tensor(data[3], device_type, dtype, 2, shape);
  fastnorm_norm_args args = {0};
  fastnorm_context* context = NULL;
  double found;
  args.struct_size = sizeof args;
  args.eps = 1e-6f;
  args.x = &x;
  args.y = &y;
  args.weight = &weight;
  args.residual = args.residual_out = &residual;
  if (fastnorm_context_create(device, options, &context) != FASTNORM_OK) return -1;
  found = cost(context, &args, stream);
  fastnorm_context_destroy(context);
  return found;
}

int main(void) {
  static float memory[4][4] = {{1, 2, 3, 4}, {0}, {1, 2, 3, 4}, {0}};
  char* const host[4] = {(char*)memory[0], (char*)memory[1], (char*)memory[2], (char*)memory[3]};
  char* const device[4] = {(char*)0x100000000000u, (char*)0x200000000000u, (char*)0x300000000000u,
                           (char*)0x400000000000u};
  fastnorm_context_options dry_run = {0};
  dry_run.struct_size = sizeof dry_run;
  dry_run.flags = FASTNORM_CONTEXT_DRY_RUN;
  dry_run.dry_run_capability = 90;
  printf("device %.1f\n",
         measure(FASTNORM_DEVICE_CUDA, FASTNORM_DTYPE_BF16, device, &dry_run, (void*)0x1234));
  printf("cpu %.1f\n", measure(FASTNORM_DEVICE_CPU, FASTNORM_DTYPE_F32, host, NULL, NULL));
  return 0;
}
