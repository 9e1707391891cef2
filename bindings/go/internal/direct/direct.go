// Package direct is for the tests of package fastnorm. It makes calls of libfastnorm in a C loop,
// which benchmarks are compared with. It gives the structs that C makes of a list of words.
package direct

/*
#cgo pkg-config: fastnorm
#cgo CFLAGS: -I${SRCDIR}/../raw
#include <fastnorm/fastnorm.h>
#include <stdlib.h>
#include <string.h>
#include "words.h"

// The struct of a name such as norm, until the thread's next call; NULL for malformed words.
static const void* decode(const char* name, const uint64_t* words, size_t count) {
  fnb_reader reader = {words, count};
#define DESCRIPTION(family)                                                          \
  static __thread fnb_##family##_call family;                                        \
  if (strcmp(name, #family) == 0)                                                    \
    return fnb_read_##family(&reader, &family) && reader.left == 0 ? &family.args : NULL;
#include "descriptions.h"
#undef DESCRIPTION
  return NULL;
}

static fastnorm_status open_context(int32_t device_type, int dry_run, fastnorm_context** context) {
  fastnorm_device device = {device_type, 0};
  fastnorm_context_options options = {0};
  options.struct_size = sizeof options;
  if (dry_run) {
    options.flags = FASTNORM_CONTEXT_DRY_RUN;
    options.dry_run_capability = 90;
  }
  return fastnorm_context_create(device, &options, context);
}

static fastnorm_tensor view(uint64_t address, int32_t device_type, fastnorm_dtype_id dtype,
                            int32_t ndim, const int64_t* shape) {
  fastnorm_tensor t = {(void*)(uintptr_t)address, device_type, 0, ndim,
                       fastnorm_dtype_of(dtype),   shape,       NULL, 0};
  return t;
}

// RMSNorm with residual, in place: x, weight, residual, y. Everything is built for each call.
static fastnorm_status run(fastnorm_context* context, int64_t calls, int32_t device_type,
                           int32_t dtype, int64_t rows, int64_t n, uint64_t x, uint64_t weight,
                           uint64_t residual, uint64_t y, uint64_t stream) {
  int64_t i;
  for (i = 0; i < calls; ++i) {
    const int64_t shape[2] = {rows, n}, columns[1] = {n};
    fastnorm_norm_args args = {0};
    fastnorm_status status;
    const fastnorm_tensor tx = view(x, device_type, dtype, 2, shape);
    const fastnorm_tensor tw = view(weight, device_type, dtype, 1, columns);
    const fastnorm_tensor tr = view(residual, device_type, dtype, 2, shape);
    const fastnorm_tensor ty = view(y, device_type, dtype, 2, shape);
    args.struct_size = sizeof args;
    args.eps = 1e-6f;
    args.x = &tx, args.weight = &tw, args.residual = args.residual_out = &tr, args.y = &ty;
    status = fastnorm_norm(context, &args, NULL, 0, (void*)(uintptr_t)stream);
    if (status != FASTNORM_OK) return status;
  }
  return FASTNORM_OK;
}
*/
import "C"

import (
	"errors"
	"runtime"
	"unsafe"
)

// Decode gives the struct that C makes of the words at an address; nil for malformed ones. It is
// valid until the next Decode of this thread.
func Decode(name string, words uintptr, count int) unsafe.Pointer {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	at := *(**C.uint64_t)(unsafe.Pointer(&words))
	return C.decode(cname, at, C.size_t(count))
}

// Loop is a context of its own and the addresses of x, residual, y [rows, n] and weight [n].
type Loop struct {
	context       *C.fastnorm_context
	device, dtype C.int32_t
	rows, n       C.int64_t
	addresses     [4]C.uint64_t
	stream        C.uint64_t
	pinner        runtime.Pinner
}

// CPU is a loop on f32 slices, which should not be used elsewhere.
func CPU(rows, n int, slices func() (x, weight, residual, y []float32)) (*Loop, error) {
	x, weight, residual, y := slices()
	l := &Loop{device: C.FASTNORM_DEVICE_CPU, dtype: C.FASTNORM_DTYPE_F32, rows: C.int64_t(rows),
		n: C.int64_t(n)}
	for i, s := range [][]float32{x, weight, residual, y} {
		l.pinner.Pin(&s[0])
		l.addresses[i] = C.uint64_t(uintptr(unsafe.Pointer(&s[0])))
	}
	return l, l.open(false)
}

// GPU is a loop on bf16 at addresses of a GPU, on a stream. That of a dry run need not be there.
func GPU(dryRun bool, rows, n int, x, weight, residual, y, stream uintptr) (*Loop, error) {
	l := &Loop{stream: C.uint64_t(stream), device: C.FASTNORM_DEVICE_CUDA,
		dtype: C.FASTNORM_DTYPE_BF16, rows: C.int64_t(rows), n: C.int64_t(n)}
	l.addresses = [4]C.uint64_t{C.uint64_t(x), C.uint64_t(weight), C.uint64_t(residual), C.uint64_t(y)}
	return l, l.open(dryRun)
}

func (l *Loop) open(dryRun bool) error {
	var dry C.int
	if dryRun {
		dry = 1
	}
	if C.open_context(l.device, dry, &l.context) != C.FASTNORM_OK {
		return errors.New("no context")
	}
	return nil
}

// Run makes that many calls.
func (l *Loop) Run(calls int) error {
	a := &l.addresses
	if C.run(l.context, C.int64_t(calls), l.device, l.dtype, l.rows, l.n, a[0], a[1], a[2], a[3],
		l.stream) != C.FASTNORM_OK {
		return errors.New("a call failed")
	}
	return nil
}

// Close ends the context.
func (l *Loop) Close() {
	C.fastnorm_context_destroy(l.context)
	l.pinner.Unpin()
}
