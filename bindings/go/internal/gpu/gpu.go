// Package gpu gives memory and streams of CUDA device 0 to the tests and benchmarks of package
// fastnorm, in the device's primary context. The driver is opened at the first use, so that
// programs with this run where there is none.
package gpu

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

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

// NULL, or what the driver lacks; *code is its error, where it gave one.
static const char* open_driver(int* code) {
  struct {
    const char* name;
    void* function;
  } const wanted[] = {
      {"cuCtxSetCurrent", &driver.set_current},      {"cuMemAlloc_v2", &driver.allocate},
      {"cuMemFree_v2", &driver.free},                {"cuMemcpyHtoD_v2", &driver.copy_in},
      {"cuMemcpyDtoH_v2", &driver.copy_out},         {"cuStreamCreate", &driver.create_stream},
      {"cuStreamDestroy_v2", &driver.destroy_stream}, {"cuStreamSynchronize", &driver.synchronize},
  };
  int (*init)(unsigned);
  int (*retain)(void**, int);
  size_t i;
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) return "libcuda.so.1";
  for (i = 0; i < sizeof wanted / sizeof *wanted; ++i) {
    void* found = dlsym(library, wanted[i].name);
    if (found == NULL) return wanted[i].name;
    *(void**)wanted[i].function = found;
  }
  *(void**)&init = dlsym(library, "cuInit");
  *(void**)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
  if (init == NULL || (*code = init(0)) != 0) return "cuInit";
  if (retain == NULL || (*code = retain(&driver.context, 0)) != 0) {
    return "cuDevicePrimaryCtxRetain";
  }
  return NULL;
}

// Each makes the context that of its thread.
static int gpu_allocate(uint64_t bytes, uint64_t* address) {
  const int code = driver.set_current(driver.context);
  return code != 0 ? code : driver.allocate(address, bytes);
}
static int gpu_free(uint64_t address) {
  const int code = driver.set_current(driver.context);
  return code != 0 ? code : driver.free(address);
}
// A copy from pageable memory may still be on its way when it returns; streams do not wait for it.
static int gpu_copy_in(uint64_t to, const void* from, uint64_t bytes) {
  int code = driver.set_current(driver.context);
  if (code == 0) code = driver.copy_in(to, from, bytes);
  return code != 0 ? code : driver.synchronize(NULL);
}
static int gpu_copy_out(void* to, uint64_t from, uint64_t bytes) {
  const int code = driver.set_current(driver.context);
  return code != 0 ? code : driver.copy_out(to, from, bytes);
}
// A stream that does not wait for the legacy default stream.
static int gpu_create_stream(uint64_t* stream) {
  void* created = NULL;
  int code = driver.set_current(driver.context);
  if (code == 0) code = driver.create_stream(&created, 1);
  *stream = (uint64_t)(uintptr_t)created;
  return code;
}
static int gpu_destroy_stream(uint64_t stream) {
  const int code = driver.set_current(driver.context);
  return code != 0 ? code : driver.destroy_stream((void*)(uintptr_t)stream);
}
static int gpu_synchronize(uint64_t stream) {
  const int code = driver.set_current(driver.context);
  return code != 0 ? code : driver.synchronize((void*)(uintptr_t)stream);
}
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

// Open opens the driver once.
var Open = sync.OnceValue(func() error {
	var code C.int
	if lacking := C.open_driver(&code); lacking != nil {
		return fmt.Errorf("no CUDA driver: %s failed with error %d", C.GoString(lacking), int(code))
	}
	return nil
})

func failure(what string, code C.int) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s: the CUDA driver's error %d", what, int(code))
}

// Allocate returns memory of that many bytes, at least 1.
func Allocate(bytes int) (uintptr, error) {
	if err := Open(); err != nil {
		return 0, err
	}
	var address C.uint64_t
	code := C.gpu_allocate(C.uint64_t(bytes), &address)
	return uintptr(address), failure("cuMemAlloc", code)
}

// Free frees what Allocate gave.
func Free(address uintptr) error { return failure("cuMemFree", C.gpu_free(C.uint64_t(address))) }

// CopyIn copies to the device and waits.
func CopyIn[T any](address uintptr, from []T) error {
	bytes := uintptr(len(from)) * unsafe.Sizeof(*new(T))
	return failure("cuMemcpyHtoD",
		C.gpu_copy_in(C.uint64_t(address), unsafe.Pointer(unsafe.SliceData(from)), C.uint64_t(bytes)))
}

// CopyOut copies from the device and waits.
func CopyOut[T any](to []T, address uintptr) error {
	bytes := uintptr(len(to)) * unsafe.Sizeof(*new(T))
	return failure("cuMemcpyDtoH",
		C.gpu_copy_out(unsafe.Pointer(unsafe.SliceData(to)), C.uint64_t(address), C.uint64_t(bytes)))
}

// CreateStream returns a stream of its own.
func CreateStream() (uintptr, error) {
	if err := Open(); err != nil {
		return 0, err
	}
	var stream C.uint64_t
	code := C.gpu_create_stream(&stream)
	return uintptr(stream), failure("cuStreamCreate", code)
}

// DestroyStream ends a stream.
func DestroyStream(stream uintptr) error {
	return failure("cuStreamDestroy", C.gpu_destroy_stream(C.uint64_t(stream)))
}

// Synchronize waits until a stream has run.
func Synchronize(stream uintptr) error {
	return failure("cuStreamSynchronize", C.gpu_synchronize(C.uint64_t(stream)))
}
