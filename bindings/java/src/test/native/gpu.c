/* Memory and streams of CUDA device 0 for DeviceTest, from the driver, in the device's primary
 * context. The driver is opened at the first call, so that this loads where there is none. */
#include <dlfcn.h>
#include <jni.h>
#include <stdint.h>
#include <stdio.h>

static struct {
  int (*set_current)(void* context);
  int (*allocate)(uint64_t* address, size_t bytes);
  int (*free)(uint64_t address);
  int (*copy_in)(uint64_t to, const void* from, size_t bytes);
  int (*copy_out)(void* to, uint64_t from, size_t bytes);
  int (*create_stream)(void** stream, unsigned flags);
  int (*destroy_stream)(void* stream);
  int (*synchronize)(void* stream);
  void* context;
} driver;

static int fail(JNIEnv* env, const char* what, int code) {
  char text[128];
  jclass error = (*env)->FindClass(env, "java/lang/IllegalStateException");
  snprintf(text, sizeof text, "%s: the CUDA driver's error %d", what, code);
  if (error != NULL) (*env)->ThrowNew(env, error, text);
  return 0;
}

/* Opens the driver once; all tests begin on one thread. */
static int open_driver(JNIEnv* env) {
  struct {
    const char* name;
    void* function;
  } const wanted[] = {
      {"cuCtxSetCurrent", &driver.set_current},
      {"cuMemAlloc_v2", &driver.allocate},
      {"cuMemFree_v2", &driver.free},
      {"cuMemcpyHtoD_v2", &driver.copy_in},
      {"cuMemcpyDtoH_v2", &driver.copy_out},
      {"cuStreamCreate", &driver.create_stream},
      {"cuStreamDestroy_v2", &driver.destroy_stream},
      {"cuStreamSynchronize", &driver.synchronize},
  };
  int (*init)(unsigned);
  int (*retain)(void**, int);
  size_t i;
  int code;
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) return fail(env, "no libcuda.so.1", 0);
  for (i = 0; i < sizeof wanted / sizeof *wanted; ++i) {
    void* found = dlsym(library, wanted[i].name);
    if (found == NULL) return fail(env, wanted[i].name, 0);
    *(void**)wanted[i].function = found;
  }
  *(void**)&init = dlsym(library, "cuInit");
  *(void**)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
  if (init == NULL || retain == NULL) return fail(env, "cuInit", 0);
  if ((code = init(0)) != 0) return fail(env, "cuInit", code);
  if ((code = retain(&driver.context, 0)) != 0) return fail(env, "cuDevicePrimaryCtxRetain", code);
  return 1;
}

/* Makes the context the calling thread's. */
static int enter(JNIEnv* env) {
  int code;
  if (driver.context == NULL && !open_driver(env)) return 0;
  code = driver.set_current(driver.context);
  return code == 0 ? 1 : fail(env, "cuCtxSetCurrent", code);
}

#define GPU(type, name) JNIEXPORT type JNICALL Java_dev_fastnorm_Gpu_##name

GPU(jlong, allocate)(JNIEnv* env, jclass type, jlong bytes) {
  uint64_t address = 0;
  int code;
  (void)type;
  if (!enter(env)) return 0;
  code = driver.allocate(&address, (size_t)bytes);
  if (code != 0) fail(env, "cuMemAlloc", code);
  return (jlong)address;
}

GPU(void, free)(JNIEnv* env, jclass type, jlong address) {
  int code;
  (void)type;
  if (!enter(env)) return;
  code = driver.free((uint64_t)address);
  if (code != 0) fail(env, "cuMemFree", code);
}

/* A copy from pageable memory may still be on its way when it returns; streams do not wait for
 * it. */
GPU(void, copyIn)(JNIEnv* env, jclass type, jlong address, jobject buffer, jlong bytes) {
  int code;
  (void)type;
  if (!enter(env)) return;
  code =
      driver.copy_in((uint64_t)address, (*env)->GetDirectBufferAddress(env, buffer), (size_t)bytes);
  if (code == 0) code = driver.synchronize(NULL);
  if (code != 0) fail(env, "cuMemcpyHtoD", code);
}

GPU(void, copyOut)(JNIEnv* env, jclass type, jobject buffer, jlong address, jlong bytes) {
  int code;
  (void)type;
  if (!enter(env)) return;
  code = driver.copy_out((*env)->GetDirectBufferAddress(env, buffer), (uint64_t)address,
                         (size_t)bytes);
  if (code != 0) fail(env, "cuMemcpyDtoH", code);
}

/* A stream that does not wait for the legacy default stream. */
GPU(jlong, createStream)(JNIEnv* env, jclass type) {
  void* stream = NULL;
  int code;
  (void)type;
  if (!enter(env)) return 0;
  code = driver.create_stream(&stream, 1);
  if (code != 0) fail(env, "cuStreamCreate", code);
  return (jlong)(uintptr_t)stream;
}

GPU(void, destroyStream)(JNIEnv* env, jclass type, jlong stream) {
  int code;
  (void)type;
  if (!enter(env)) return;
  code = driver.destroy_stream((void*)(uintptr_t)stream);
  if (code != 0) fail(env, "cuStreamDestroy", code);
}

GPU(void, synchronize)(JNIEnv* env, jclass type, jlong stream) {
  int code;
  (void)type;
  if (!enter(env)) return;
  code = driver.synchronize((void*)(uintptr_t)stream);
  if (code != 0) fail(env, "cuStreamSynchronize", code);
}
