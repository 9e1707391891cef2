/* A call allocates nothing, and where memory cannot be had the library says so. This program has its own malloc, in front of the C
 * library's, that counts and can fail. */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "api/api_test.h"

/* glibc's own, behind the public names. */
extern void* __libc_malloc(size_t bytes);
extern void* __libc_calloc(size_t count, size_t bytes);
extern void* __libc_realloc(void* memory, size_t bytes);
extern void* __libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void* memory);

/* Of the thread that tests; others pass. */
static __thread int watched;
static volatile long calls;
static volatile long left = -1; /* allocations that still succeed; -1 = all */

static int count_call(void) {
  if (!watched) return 1;
  ++calls;
  if (left < 0) return 1;
  if (left == 0) {
    errno = ENOMEM;
    return 0;
  }
  --left;
  return 1;
}

void* malloc(size_t bytes) { return count_call() ? __libc_malloc(bytes) : NULL; }
void* calloc(size_t count, size_t bytes) {
  return count_call() ? __libc_calloc(count, bytes) : NULL;
}
void* realloc(void* memory, size_t bytes) {
  return count_call() ? __libc_realloc(memory, bytes) : NULL;
}
void* memalign(size_t alignment, size_t bytes) {
  return count_call() ? __libc_memalign(alignment, bytes) : NULL;
}
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  *memory = memalign(alignment, bytes);
  return *memory != NULL ? 0 : ENOMEM;
}
void free(void* memory) {
  if (watched && memory != NULL) ++calls;
  __libc_free(memory);
}

static int passed, failed;

/* Counts outside of watched calls, for printf allocates. */
static void expect(int ok, const char* what) {
  ok ? ++passed : ++failed;
  if (!ok) printf("FAIL %s (%ld calls; last error: %s)\n", what, calls, fastnorm_last_error());
}

enum { kRows = 64, kN = 4096 };
static float x[kRows * kN], y[kRows * kN], y2[kRows * kN];

static const fastnorm_tensor* rows(tensor_of* t, void* data, int32_t device_type) {
  memset(t, 0, sizeof *t);
  t->shape[0] = kRows;
  t->shape[1] = kN;
  t->tensor.data = data;
  t->tensor.device_type = device_type;
  t->tensor.ndim = 2;
  t->tensor.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  t->tensor.shape = t->shape;
  return &t->tensor;
}

/* Calls on `context`: to prepare them may allocate, the calls must not. A pool's threads are started by its first call. */
static void hot_path(fastnorm_context* context, int32_t device_type, int pool, const char* what) {
  tensor_of tx, ty, ty2;
  fastnorm_norm_args args, second;
  const fastnorm_norm_args* list[2];
  fastnorm_info info;
  fastnorm_status status = FASTNORM_OK, bad;
  int i;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.x = rows(&tx, x, device_type);
  args.y = rows(&ty, y, device_type);
  second = args;
  second.y = rows(&ty2, y2, device_type);
  list[0] = &args;
  list[1] = &second;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  status = fastnorm_norm_prepare(context, &args);
  if (status == FASTNORM_OK) status = fastnorm_norm_many_prepare(context, list, 2);
  if (status == FASTNORM_OK && pool) status = fastnorm_norm(context, &args, NULL, 0, NULL);
  calls = 0;
  watched = 1;
  for (i = 0; i < 20 && status == FASTNORM_OK; ++i) {
    status = fastnorm_norm(context, &args, NULL, 0, NULL);
    if (status == FASTNORM_OK) status = fastnorm_norm_many(context, list, 2, NULL, 0, NULL);
    if (status == FASTNORM_OK) status = fastnorm_norm_query(context, &args, &info);
    if (status == FASTNORM_OK) status = fastnorm_norm_prepare(context, &args);
  }
  args.eps = -1;
  bad = fastnorm_norm(context, &args, NULL, 0, NULL);
  watched = 0;
  expect(status == FASTNORM_OK, what);
  expect(bad == FASTNORM_ERROR_ARGUMENT, what);
  expect(calls == 0, what);
}

static void hot_paths(void) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0}, cuda = {FASTNORM_DEVICE_CUDA, 0};
  fastnorm_context_options options;
  fastnorm_context* context = NULL;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  expect(fastnorm_context_create(cpu, NULL, &context) == FASTNORM_OK, "a context");
  hot_path(context, FASTNORM_DEVICE_CPU, 0, "one thread allocates nothing");
  fastnorm_context_destroy(context);
  options.num_threads = 3;
  expect(fastnorm_context_create(cpu, &options, &context) == FASTNORM_OK, "a context with threads");
  hot_path(context, FASTNORM_DEVICE_CPU, 1, "three threads allocate nothing");
  fastnorm_context_destroy(context);
  options.num_threads = 0;
  options.flags = FASTNORM_CONTEXT_DRY_RUN;
  options.dry_run_capability = 90;
  expect(fastnorm_context_create(cuda, &options, &context) == FASTNORM_OK, "a dry run");
  hot_path(context, FASTNORM_DEVICE_CUDA, 0, "planning for a GPU allocates nothing");
  fastnorm_context_destroy(context);
}

/* Fails the first allocation, then the second, .. until a context comes of it. */
static void out_of_memory(void) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
  fastnorm_context_options options;
  long n;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.num_threads = 3;
  for (n = 0; n < 1000; ++n) {
    fastnorm_context* context = NULL;
    fastnorm_status status;
    left = n;
    watched = 1;
    status = fastnorm_context_create(cpu, &options, &context);
    watched = 0;
    left = -1;
    if (status == FASTNORM_OK) {
      expect(context != NULL && n > 0, "creating a context allocates");
      fastnorm_context_destroy(context);
      return;
    }
    expect(status == FASTNORM_ERROR_OUT_OF_MEMORY && context == NULL,
           "a failed allocation is FASTNORM_ERROR_OUT_OF_MEMORY");
    expect(fastnorm_last_error()[0] != '\0', "and has a text");
  }
  expect(0, "no number of allocations is enough");
}

int main(void) {
  void* probe;
  watched = 1; /* the counting itself must work */
  probe = malloc(1);
  free(probe);
  watched = 0;
  expect(calls == 2, "malloc and free are counted");
  hot_paths();
  out_of_memory();
  printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed != 0;
}
