// Package fakenccl opens a library that pretends to be NCCL for the tests of package fastnorm: its
// ranks are threads, and memory is the host's.
package fakenccl

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

static void* library;

static int fake_open(const char* path) {
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return library != NULL;
}
static uintptr_t fake_find(const char* name) { return (uintptr_t)dlsym(library, name); }
static void fake_create(int ranks, void* comms) {
  void (*create)(int, int, void**);
  *(void**)&create = dlsym(library, "fake_nccl_create");
  create(ranks, 0, (void**)comms);
}
static void fake_destroy(void* comms, int ranks) {
  void (*destroy)(void* const*, int);
  *(void**)&destroy = dlsym(library, "fake_nccl_destroy");
  destroy((void* const*)comms, ranks);
}
static int fake_calls(uintptr_t comm, int operation) {
  int (*calls)(void*, int);
  *(void**)&calls = dlsym(library, "fake_nccl_calls");
  return calls((void*)comm, operation);
}
static void fake_fail(uintptr_t comm, int operation) {
  void (*fail)(void*, int);
  *(void**)&fail = dlsym(library, "fake_nccl_fail");
  fail((void*)comm, operation);
}
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// Operations of a rank that are counted, and can fail.
const (
	AllReduce = iota
	ReduceScatter
	AllGather
)

// Open loads the library.
func Open(path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if C.fake_open(name) == 0 {
		return fmt.Errorf("%s cannot be loaded", path)
	}
	return nil
}

// Find returns the address of a function; 0 if there is none.
func Find(name string) uintptr {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	return uintptr(C.fake_find(text))
}

// Create makes the communicators of one group.
func Create(ranks int) []uintptr {
	comms := make([]uintptr, ranks)
	C.fake_create(C.int(ranks), unsafe.Pointer(&comms[0]))
	return comms
}

// Destroy ends them.
func Destroy(comms []uintptr) { C.fake_destroy(unsafe.Pointer(&comms[0]), C.int(len(comms))) }

// Calls counts the calls of an operation by this rank.
func Calls(comm uintptr, operation int) int {
	return int(C.fake_calls(C.uintptr_t(comm), C.int(operation)))
}

// Fail makes the rank's next call of an operation fail.
func Fail(comm uintptr, operation int) { C.fake_fail(C.uintptr_t(comm), C.int(operation)) }
