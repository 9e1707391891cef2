#include "devmem.h"

#include <dlfcn.h>

#include <new>

namespace {

// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  int id;
  int padding;
  union {
    int allowed;  // of programmatic stream serialization
    char all[64];
  };
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  LaunchAttribute* attributes;
  unsigned count;
};
constexpr int kProgrammaticStreamSerialization = 6;

}  // namespace

// The few driver functions that are needed, declared by hand: no CUDA header is required to build.
// Names with _v2 are the 64-bit entry points of the driver's ABI.
#define DEVMEM_DRIVER_MAP(X)                                                     \
  X(cuInit, (unsigned flags))                                                    \
  X(cuGetErrorName, (int error, const char** name))                              \
  X(cuGetErrorString, (int error, const char** text))                            \
  X(cuDeviceGetCount, (int* count))                                              \
  X(cuDeviceGet, (int* device, int ordinal))                                     \
  X(cuDevicePrimaryCtxRetain, (void** context, int device))                      \
  X(cuDevicePrimaryCtxRelease_v2, (int device))                                  \
  X(cuCtxPushCurrent_v2, (void* context))                                        \
  X(cuCtxPopCurrent_v2, (void** context))                                        \
  X(cuMemAlloc_v2, (uint64_t * address, size_t bytes))                           \
  X(cuMemFree_v2, (uint64_t address))                                            \
  X(cuMemcpyHtoD_v2, (uint64_t to, const void* from, size_t bytes))              \
  X(cuMemcpyDtoH_v2, (void* to, uint64_t from, size_t bytes))                    \
  X(cuMemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t bytes, void* s))   \
  X(cuMemsetD8Async, (uint64_t to, unsigned char byte, size_t bytes, void* s))   \
  X(cuCtxSynchronize, (void))                                                    \
  X(cuStreamCreate, (void** stream, unsigned flags))                             \
  X(cuStreamDestroy_v2, (void* stream))                                          \
  X(cuStreamSynchronize, (void* stream))                                         \
  X(cuStreamBeginCapture_v2, (void* stream, int mode))                           \
  X(cuStreamEndCapture, (void* stream, void** graph))                            \
  X(cuThreadExchangeStreamCaptureMode, (int* mode))                              \
  X(cuGraphInstantiateWithFlags, (void** exec, void* graph, unsigned long long)) \
  X(cuGraphDestroy, (void* graph))                                               \
  X(cuGraphLaunch, (void* exec, void* stream))                                   \
  X(cuGraphExecDestroy, (void* exec))                                            \
  X(cuModuleLoadData, (void** module, const void* image))                        \
  X(cuModuleUnload, (void* module))                                              \
  X(cuModuleGetFunction, (void** function, void* module, const char* name))      \
  X(cuLaunchKernelEx, (const LaunchConfig*, void* f, void** args, void** extra)) \
  X(cuStreamWaitEvent, (void* stream, void* event, unsigned flags))              \
  X(cuEventCreate, (void** event, unsigned flags))                               \
  X(cuEventDestroy_v2, (void* event))                                            \
  X(cuEventRecord, (void* event, void* stream))                                  \
  X(cuEventSynchronize, (void* event))                                           \
  X(cuEventElapsedTime, (float* milliseconds, void* start, void* stop))

namespace {

constexpr int kNoDriver = 3;            // CUDA_ERROR_NOT_INITIALIZED
constexpr int kInvalidValue = 1;        // CUDA_ERROR_INVALID_VALUE
constexpr int kOutOfMemory = 2;         // CUDA_ERROR_OUT_OF_MEMORY
constexpr unsigned kNonBlocking = 1;    // CU_STREAM_NON_BLOCKING
constexpr int kCaptureThreadLocal = 1;  // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
constexpr int kCaptureRelaxed = 2;      // CU_STREAM_CAPTURE_MODE_RELAXED

struct Driver {
#define DEVMEM_MEMBER(name, parameters) int(*name) parameters = nullptr;
  DEVMEM_DRIVER_MAP(DEVMEM_MEMBER)
#undef DEVMEM_MEMBER
  int device_count = 0;
  std::string missing;  // why there is no driver; "" = there is one
};

thread_local std::string last_error;

int fail(int error, std::string text) {
  last_error = std::move(text);
  return error;
}

std::string describe(const Driver& driver, const char* what, int error) {
  const char *name = nullptr, *text = nullptr;
  if (driver.cuGetErrorName != nullptr) driver.cuGetErrorName(error, &name);
  if (driver.cuGetErrorString != nullptr) driver.cuGetErrorString(error, &text);
  return std::string(what) + ": " + (name != nullptr ? name : "CUDA error") + " (" +
         std::to_string(error) + ")" + (text != nullptr ? std::string(", ") + text : "");
}

Driver load_driver() {
  Driver driver;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    driver.missing = "no CUDA driver: libcuda.so.1 cannot be opened";
    return driver;
  }
#define DEVMEM_LOAD(name, parameters)                                       \
  driver.name = reinterpret_cast<int(*) parameters>(dlsym(library, #name)); \
  if (driver.name == nullptr) driver.missing = "the CUDA driver is too old: it has no " #name;
  DEVMEM_DRIVER_MAP(DEVMEM_LOAD)
#undef DEVMEM_LOAD
  if (!driver.missing.empty()) return driver;
  int error = driver.cuInit(0);
  if (error == 0) error = driver.cuDeviceGetCount(&driver.device_count);
  if (error != 0) {
    driver.missing = describe(driver, "the CUDA driver cannot be used: cuInit", error);
    driver.device_count = 0;
  }
  return driver;
}

const Driver& driver() {
  static const Driver loaded = load_driver();
  return loaded;
}

uint64_t number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace

struct devmem {
  int device;
  void* context;
};

namespace {

// Runs fn(driver) with the device's context current. fn returns a driver error.
template <typename Fn>
int in_context(devmem* device, const char* what, Fn fn) {
  if (device == nullptr) return fail(kInvalidValue, std::string(what) + ": the device is NULL");
  const Driver& d = driver();
  int error = d.cuCtxPushCurrent_v2(device->context);
  if (error != 0) return fail(error, describe(d, what, error));
  error = fn(d);
  void* popped = nullptr;
  d.cuCtxPopCurrent_v2(&popped);
  return error == 0 ? 0 : fail(error, describe(d, what, error));
}

}  // namespace

const char* devmem_error(void) { return last_error.c_str(); }

int32_t devmem_device_count(void) {
  if (!driver().missing.empty()) fail(kNoDriver, driver().missing);
  return driver().device_count;
}

int32_t devmem_open(int32_t ordinal, devmem** device) {
  *device = nullptr;
  const Driver& d = driver();
  if (!d.missing.empty()) return fail(kNoDriver, d.missing);
  int id = 0;
  int error = d.cuDeviceGet(&id, ordinal);
  if (error != 0) return fail(error, describe(d, "devmem_open", error));
  void* context = nullptr;
  error = d.cuDevicePrimaryCtxRetain(&context, id);
  if (error != 0) return fail(error, describe(d, "devmem_open", error));
  *device = new (std::nothrow) devmem{id, context};
  return *device != nullptr ? 0 : fail(kOutOfMemory, "devmem_open: out of host memory");
}

void devmem_close(devmem* device) {
  if (device == nullptr) return;
  driver().cuDevicePrimaryCtxRelease_v2(device->device);
  delete device;
}

int32_t devmem_alloc(devmem* device, size_t bytes, void** address) {
  uint64_t found = 0;
  const int error = in_context(device, "devmem_alloc", [&](const Driver& d) {
    return d.cuMemAlloc_v2(&found, bytes == 0 ? 1 : bytes);
  });
  *address = reinterpret_cast<void*>(static_cast<uintptr_t>(found));
  return error;
}

int32_t devmem_free(devmem* device, void* address) {
  if (address == nullptr) return 0;
  return in_context(device, "devmem_free",
                    [&](const Driver& d) { return d.cuMemFree_v2(number(address)); });
}

int32_t devmem_upload(devmem* device, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return 0;
  return in_context(device, "devmem_upload", [&](const Driver& d) {
    const int error = d.cuMemcpyHtoD_v2(number(to), from, bytes);
    // From pageable memory the call may return before the last bytes have arrived.
    return error != 0 ? error : d.cuCtxSynchronize();
  });
}

int32_t devmem_download(devmem* device, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return 0;
  return in_context(device, "devmem_download", [&](const Driver& d) {
    const int error = d.cuCtxSynchronize();
    return error != 0 ? error : d.cuMemcpyDtoH_v2(to, number(from), bytes);
  });
}

int32_t devmem_copy(devmem* device, void* to, const void* from, size_t bytes, void* stream) {
  if (bytes == 0) return 0;
  return in_context(device, "devmem_copy", [&](const Driver& d) {
    return d.cuMemcpyDtoDAsync_v2(number(to), number(from), bytes, stream);
  });
}

int32_t devmem_fill(devmem* device, void* to, uint8_t byte, size_t bytes, void* stream) {
  if (bytes == 0) return 0;
  return in_context(device, "devmem_fill", [&](const Driver& d) {
    return d.cuMemsetD8Async(number(to), byte, bytes, stream);
  });
}

int32_t devmem_stream_create(devmem* device, void** stream) {
  return in_context(device, "devmem_stream_create",
                    [&](const Driver& d) { return d.cuStreamCreate(stream, kNonBlocking); });
}

int32_t devmem_stream_destroy(devmem* device, void* stream) {
  return in_context(device, "devmem_stream_destroy",
                    [&](const Driver& d) { return d.cuStreamDestroy_v2(stream); });
}

int32_t devmem_stream_synchronize(devmem* device, void* stream) {
  return in_context(device, "devmem_stream_synchronize",
                    [&](const Driver& d) { return d.cuStreamSynchronize(stream); });
}

int32_t devmem_capture_begin(devmem* device, void* stream) {
  return in_context(device, "devmem_capture_begin", [&](const Driver& d) {
    return d.cuStreamBeginCapture_v2(stream, kCaptureThreadLocal);
  });
}

int32_t devmem_capture_end(devmem* device, void* stream, void** graph) {
  return in_context(device, "devmem_capture_end", [&](const Driver& d) {
    void* captured = nullptr;
    int error = d.cuStreamEndCapture(stream, &captured);
    if (error != 0) return error;
    // Else the driver refuses it while this thread captures a stream of another device.
    int mode = kCaptureRelaxed;
    error = d.cuThreadExchangeStreamCaptureMode(&mode);
    if (error == 0) {
      error = d.cuGraphInstantiateWithFlags(graph, captured, 0);
      d.cuThreadExchangeStreamCaptureMode(&mode);
    }
    d.cuGraphDestroy(captured);
    return error;
  });
}

int32_t devmem_graph_launch(devmem* device, void* graph, void* stream) {
  return in_context(device, "devmem_graph_launch",
                    [&](const Driver& d) { return d.cuGraphLaunch(graph, stream); });
}

int32_t devmem_graph_destroy(devmem* device, void* graph) {
  return in_context(device, "devmem_graph_destroy",
                    [&](const Driver& d) { return d.cuGraphExecDestroy(graph); });
}

int32_t devmem_module_load(devmem* device, const char* ptx, void** module) {
  return in_context(device, "devmem_module_load",
                    [&](const Driver& d) { return d.cuModuleLoadData(module, ptx); });
}

int32_t devmem_module_unload(devmem* device, void* module) {
  return in_context(device, "devmem_module_unload",
                    [&](const Driver& d) { return d.cuModuleUnload(module); });
}

int32_t devmem_kernel(devmem* device, void* module, const char* name, void** kernel) {
  return in_context(device, "devmem_kernel",
                    [&](const Driver& d) { return d.cuModuleGetFunction(kernel, module, name); });
}

int32_t devmem_launch(devmem* device, void* kernel, uint32_t blocks, uint32_t threads,
                      void** arguments, int32_t early, void* stream) {
  return in_context(device, "devmem_launch", [&](const Driver& d) {
    LaunchAttribute attribute = {};
    attribute.id = kProgrammaticStreamSerialization;
    attribute.allowed = 1;
    const LaunchConfig config = {{blocks, 1, 1}, {threads, 1, 1}, 0,
                                 stream,         &attribute,      early != 0 ? 1u : 0u};
    return d.cuLaunchKernelEx(&config, kernel, arguments, nullptr);
  });
}

int32_t devmem_stream_follow(devmem* device, void* stream, void* other) {
  return in_context(device, "devmem_stream_follow", [&](const Driver& d) {
    void* event = nullptr;
    int error = d.cuEventCreate(&event, 0);
    if (error != 0) return error;
    error = d.cuEventRecord(event, other);
    if (error == 0) error = d.cuStreamWaitEvent(stream, event, 0);
    d.cuEventDestroy_v2(event);  // when it has occurred
    return error;
  });
}

int32_t devmem_event_create(devmem* device, void** event) {
  return in_context(device, "devmem_event_create",
                    [&](const Driver& d) { return d.cuEventCreate(event, 0); });
}

int32_t devmem_event_destroy(devmem* device, void* event) {
  return in_context(device, "devmem_event_destroy",
                    [&](const Driver& d) { return d.cuEventDestroy_v2(event); });
}

int32_t devmem_event_record(devmem* device, void* event, void* stream) {
  return in_context(device, "devmem_event_record",
                    [&](const Driver& d) { return d.cuEventRecord(event, stream); });
}

int32_t devmem_event_elapsed_ms(devmem* device, void* start, void* stop, float* milliseconds) {
  return in_context(device, "devmem_event_elapsed_ms", [&](const Driver& d) {
    const int error = d.cuEventSynchronize(stop);
    return error != 0 ? error : d.cuEventElapsedTime(milliseconds, start, stop);
  });
}
