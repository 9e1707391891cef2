package fastnorm

import (
	"runtime"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

// String returns the library's name of the status, such as "FASTNORM_ERROR_SHAPE".
func (s Status) String() string { return raw.Fastnorm_status_name(int32(s)) }

// Error is a call that the library or this package refused.
type Error struct {
	Status      Status
	Message     string // argument, value and requirement
	DeviceError int32  // the CUDA runtime's code (cudaError_t) where that was the cause; else 0
}

// Error returns the name of the status and the message.
func (e *Error) Error() string { return e.Status.String() + ": " + e.Message }

// Is makes errors.Is(err, ErrShape), and so on, tell the kind of the status.
func (e *Error) Is(target error) bool {
	k, ok := target.(kind)
	return ok && Status(k) == e.Status/10
}

// kind is the decade of a status.
type kind Status

func (k kind) Error() string { return "fastnorm: " + kindTexts[k] }

var kindTexts = map[kind]string{
	1: "an argument is missing, out of range or not a known value",
	2: "shapes are wrong or do not fit each other",
	3: "a tensor's dtype is not one that its role allows",
	4: "strides, alignment or overlap of tensors are not allowed",
	5: "valid, but this build or device has no kernel for it",
	6: "no such device, no usable driver, or the device reported an error",
	7: "host or device memory could not be had",
	8: "a defect of the library",
}

// The kinds of failure, for [errors.Is].
var (
	ErrArgument    error = kind(StatusArgument / 10)
	ErrShape       error = kind(StatusShape / 10)
	ErrDType       error = kind(StatusDType / 10)
	ErrLayout      error = kind(StatusLayout / 10)
	ErrUnsupported error = kind(StatusUnsupported / 10)
	ErrDevice      error = kind(StatusDevice / 10)
	ErrOutOfMemory error = kind(StatusOutOfMemory / 10)
	ErrInternal    error = kind(StatusInternal / 10)
)

// ErrClosed is returned by calls on a context after [Context.Close]. It is an ErrArgument, too.
var ErrClosed error = &Error{Status: StatusArgument, Message: "context is closed"}

// ErrPeerClosed is returned by calls on a peer after [Peer.Close]. It is an ErrArgument, too.
var ErrPeerClosed error = &Error{Status: StatusArgument, Message: "peer is closed"}

// ErrNCCLClosed is returned by calls on a handle after [NCCL.Close]. It is an ErrArgument, too.
var ErrNCCLClosed error = &Error{Status: StatusArgument, Message: "NCCL handle is closed"}

// lastError makes the error of a status that a call on this thread has just returned. The goroutine
// must have been locked to its thread since before that call.
func lastError(status int32) error {
	if status == malformed {
		return &Error{Status: StatusInternal,
			Message: "the words of the call are malformed: a defect of the Go bindings"}
	}
	return &Error{
		Status:      Status(status),
		Message:     raw.Fastnorm_last_error(),
		DeviceError: raw.Fastnorm_last_device_error(),
	}
}

// malformed is FNB_MALFORMED of words.h.
const malformed = -1

// checked runs a function of the raw layer and fetches the text of its failure: that is the
// thread's, and goroutines move between threads.
func checked(f func() int32) error { return checkedBy(lastError, f) }

// checkedBy is checked with another source of the text.
func checkedBy(failure func(status int32) error, f func() int32) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if status := f(); status != raw.FASTNORM_OK {
		return failure(status)
	}
	return nil
}
