/* Loads the library as a host of plug-ins does: dlopen, from many threads, repeatedly. Without a
 * driver, CUDA is reported as absent and the CPU works. Nothing is printed.
 *
 *   load_test LIBRARY */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fastnorm/fastnorm.h"

enum {
  kThreads = 8,
  kRounds = 50,
  kColumns = 64,
  kPoolRounds = 10,
  kPoolRows = 300,
  kPoolColumns = 1024
};

static const char* library_path;
static FILE* report; /* the real stdout; fd 1 and 2 are a file while the library runs */
static int passed, failed, skipped;

static int check(const char* name, int ok, const char* text) {
  ok ? ++passed : ++failed;
  if (!ok) fprintf(report, "FAIL %s: %s\n", name, text ? text : "");
  return ok;
}

static void* sym(void* library, const char* name) {
  void* address = dlsym(library, name);
  check(name, address != NULL, "not found");
  return address;
}

/* The functions that this program uses, with the types of the headers. POSIX turns an object
 * pointer of dlsym into a function pointer by assigning through void**. */
struct api {
  int32_t (*version)(void);
  fastnorm_status (*device_count)(int32_t, int32_t*);
  fastnorm_status (*context_create)(fastnorm_device, const fastnorm_context_options*,
                                    fastnorm_context**);
  void (*context_destroy)(fastnorm_context*);
  fastnorm_status (*norm)(fastnorm_context*, const fastnorm_norm_args*, void*, size_t, void*);
  const char* (*last_error)(void);
};

static void load_api(void* library, struct api* api) {
  *(void**)&api->version = sym(library, "fastnorm_version");
  *(void**)&api->device_count = sym(library, "fastnorm_device_count");
  *(void**)&api->context_create = sym(library, "fastnorm_context_create");
  *(void**)&api->context_destroy = sym(library, "fastnorm_context_destroy");
  *(void**)&api->norm = sym(library, "fastnorm_norm");
  *(void**)&api->last_error = sym(library, "fastnorm_last_error");
}

/* One norm of a row of ones on the CPU. Returns 1 if every result is 1. */
static int cpu_norm_works(const struct api* api) {
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
  const int64_t shape[1] = {kColumns};
  float x[kColumns], y[kColumns];
  fastnorm_tensor in, out;
  fastnorm_norm_args args;
  fastnorm_context* context = NULL;
  int i, ok;
  for (i = 0; i < kColumns; ++i) {
    x[i] = 1.0f;
    y[i] = 0.0f;
  }
  memset(&in, 0, sizeof in);
  in.data = x;
  in.device_type = FASTNORM_DEVICE_CPU;
  in.ndim = 1;
  in.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  in.shape = shape;
  out = in;
  out.data = y;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.x = &in;
  args.y = &out;
  if (api->context_create(cpu, NULL, &context) != FASTNORM_OK) return 0;
  ok = api->norm(context, &args, NULL, 0, NULL) == FASTNORM_OK;
  api->context_destroy(context);
  for (i = 0; i < kColumns; ++i) ok = ok && y[i] == 1.0f;
  return ok;
}

static int has_driver(void) {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver != NULL) dlclose(driver);
  return driver != NULL;
}

static void test_without_driver(const struct api* api) {
  const fastnorm_device gpu = {FASTNORM_DEVICE_CUDA, 0};
  fastnorm_context* context = (fastnorm_context*)&gpu; /* must become NULL */
  int32_t count = -1;
  fastnorm_status status;
  if (has_driver()) {
    fprintf(report, "SKIP CUDA without a driver: this machine has one\n");
    ++skipped;
    return;
  }
  check("device count succeeds", api->device_count(FASTNORM_DEVICE_CUDA, &count) == FASTNORM_OK,
        api->last_error());
  check("no CUDA device", count == 0, "count is not 0");
  status = api->context_create(gpu, NULL, &context);
  check("a CUDA context is a device error", status == FASTNORM_ERROR_DEVICE, api->last_error());
  check("no context", context == NULL, "not NULL after a failure");
  check("the error has a text", strlen(api->last_error()) > 20, api->last_error());
  fprintf(report, "without a driver: %s\n", api->last_error());
}

static void* load_and_unload(void* unused) {
  long bad = 0;
  int round;
  (void)unused;
  for (round = 0; round < kRounds; ++round) {
    void* library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
    int32_t (*version)(void);
    if (library == NULL) {
      ++bad;
      continue;
    }
    *(void**)&version = dlsym(library, "fastnorm_version");
    if (version == NULL || version() != FASTNORM_VERSION) ++bad;
    if (dlclose(library) != 0) ++bad;
  }
  return (void*)bad;
}

static void test_many_loads(void) {
  pthread_t threads[kThreads];
  long bad = 0;
  int i;
  for (i = 0; i < kThreads; ++i) {
    if (pthread_create(&threads[i], NULL, load_and_unload, NULL) != 0) abort();
  }
  for (i = 0; i < kThreads; ++i) {
    void* result;
    pthread_join(threads[i], &result);
    bad += (long)result;
  }
  check("8 threads x 50 dlopen and dlclose", bad == 0, "a load failed");
}

/* A pool's threads end with its context, so the code that they ran may be unloaded. */
static void test_loads_with_threads(void) {
  static float x[kPoolRows * kPoolColumns], y[kPoolRows * kPoolColumns];
  const fastnorm_device cpu = {FASTNORM_DEVICE_CPU, 0};
  const int64_t shape[2] = {kPoolRows, kPoolColumns};
  fastnorm_tensor tx, ty;
  fastnorm_norm_args args;
  fastnorm_context_options options;
  int round, bad = 0;
  memset(&tx, 0, sizeof tx);
  tx.device_type = FASTNORM_DEVICE_CPU;
  tx.ndim = 2;
  tx.dtype = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
  tx.shape = shape;
  ty = tx;
  tx.data = x;
  ty.data = y;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.x = &tx;
  args.y = &ty;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.num_threads = 4;
  for (round = 0; round < kPoolRounds; ++round) {
    void* library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
    fastnorm_context* context = NULL;
    struct api api;
    if (!check("loaded again", library != NULL, dlerror())) return;
    load_api(library, &api);
    bad += api.context_create(cpu, &options, &context) != FASTNORM_OK;
    bad += api.norm(context, &args, NULL, 0, NULL) != FASTNORM_OK;
    api.context_destroy(context);
    bad += dlclose(library) != 0;
  }
  check("10 times dlopen, work on a pool, dlclose", bad == 0, "a round failed");
}

int main(int argc, char** argv) {
  char captured[] = "/tmp/fastnorm_load_test_XXXXXX";
  struct api api;
  struct stat printed;
  void* library;
  int file;
  if (argc != 2) return 2;
  library_path = argv[1];
  report = fdopen(dup(1), "w");
  file = mkstemp(captured);
  if (report == NULL || file < 0) return 2;
  unlink(captured);
  dup2(file, 1);
  dup2(file, 2);

  test_many_loads();
  library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
  if (check("dlopen", library != NULL, library == NULL ? dlerror() : NULL)) {
    memset(&api, 0, sizeof api);
    load_api(library, &api);
    if (failed == 0) {
      check("version", api.version() == FASTNORM_VERSION, "library and header differ");
      test_without_driver(&api);
      check("CPU norm", cpu_norm_works(&api), api.last_error());
      dlclose(library);
      check("CPU norm after dlclose", cpu_norm_works(&api), api.last_error());
      test_loads_with_threads();
    }
  }

  fflush(stdout);
  check("nothing was printed", fstat(file, &printed) == 0 && printed.st_size == 0,
        "text on 1 or 2");
  fprintf(report, "%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  fclose(report);
  return failed != 0;
}
