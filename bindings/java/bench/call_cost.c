/* Host time of a call from C: those of CallBenchmark. On a GPU, too, the launch included, where
 * FASTNORM_TEST_DEVICE is cuda: its memory and stream are the driver's, opened at run time. */
#include <dlfcn.h>
#include <fastnorm/fastnorm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* kCalls fit into a stream's queue. */
enum { kCalls = 500, kRepeats = 10000, kRepeatsOnGpu = 1000 };

static int (*synchronize)(void* stream); /* NULL where there is no GPU */

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Least nanoseconds a call over some repeats; -1 if one fails. */
static double cost(fastnorm_context* context, const fastnorm_norm_args* args, void* stream) {
  const int repeats = synchronize == NULL ? kRepeats : kRepeatsOnGpu;
  double least = 1e9;
  int repeat, i;
  for (repeat = 0; repeat < repeats; ++repeat) {
    const double start = seconds();
    double taken;
    for (i = 0; i < kCalls; ++i) {
      if (fastnorm_norm(context, args, NULL, 0, stream) != FASTNORM_OK) return -1;
    }
    taken = (seconds() - start) * 1e9 / kCalls;
    if (taken < least) least = taken;
    if (synchronize != NULL && synchronize(stream) != 0) return -1;
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

/* The cost on CUDA device 0; -1 if there is none. */
static double measure_gpu(void) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  int (*init)(unsigned);
  int (*retain)(void**, int);
  int (*set_current)(void*);
  int (*allocate)(uint64_t*, size_t);
  int (*create_stream)(void**, unsigned);
  void* context = NULL;
  void* stream = NULL;
  uint64_t memory = 0;
  char* data[4];
  int i;
  if (driver == NULL) return -1;
  *(void**)&init = dlsym(driver, "cuInit");
  *(void**)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
  *(void**)&set_current = dlsym(driver, "cuCtxSetCurrent");
  *(void**)&allocate = dlsym(driver, "cuMemAlloc_v2");
  *(void**)&create_stream = dlsym(driver, "cuStreamCreate");
  *(void**)&synchronize = dlsym(driver, "cuStreamSynchronize");
  if (!init || !retain || !set_current || !allocate || !create_stream || !synchronize) return -1;
  if (init(0) != 0 || retain(&context, 0) != 0 || set_current(context) != 0 ||
      allocate(&memory, 4 * 256) != 0 || create_stream(&stream, 1) != 0) {
    return -1;
  }
  for (i = 0; i < 4; ++i) data[i] = (char*)(uintptr_t)(memory + 256 * (uint64_t)i);
  return measure(FASTNORM_DEVICE_CUDA, FASTNORM_DTYPE_BF16, data, NULL, stream);
}

int main(void) {
  const char* const device_under_test = getenv("FASTNORM_TEST_DEVICE");
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
  if (device_under_test != NULL && strcmp(device_under_test, "cuda") == 0) {
    printf("gpu %.1f\n", measure_gpu());
  }
  return 0;
}
