package fastnorm

import (
	"fmt"
	"math"
	"runtime"
	"runtime/cgo"
	"strings"
	"sync/atomic"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

// Context is one device, ready for calls. It may be used by any number of goroutines at a time.
// Close it when it is no longer needed; one that is forgotten is closed by the garbage collector.
type Context struct {
	h       *handle
	cleanup runtime.Cleanup
}

// Options of a context. The zero Options are the default of everything.
type Options struct {
	// Threads of a pool of the context's own, the caller included: 0 and 1 = the calling thread alone,
	// at most 1024. CPU only. Without it, several goroutines may still work on parts of the rows.
	Threads int

	// Log receives the context's messages, one line each, on the goroutine that makes a call. It must
	// not call runtime.Goexit. A panic in it is raised again when the call into the library has
	// returned.
	Log func(level LogLevel, text string)

	// DryRun makes calls check and plan, but start no work and touch no memory. A CUDA context of this
	// kind needs no GPU, only DryRunCapability: the compute capability as major * 10 + minor, such as
	// 90.
	DryRun           bool
	DryRunCapability int

	// NoPDL makes calls use programmatic dependent launch only where their own flags ask for it. CUDA
	// only. Without it calls use it unless their flags turn it off.
	NoPDL bool

	// TuningFile is the path of a file that `fastnorm tune` wrote for this model of GPU and this
	// version of the library: calls of the shapes in it run on the kernels that were fastest there,
	// with the same results to the bit. It is read once, by [OpenWith]. CUDA only; "" = none.
	TuningFile string
}

// Open opens a context for [CPU] or a [CUDA] device.
func Open(device Device) (*Context, error) { return OpenWith(device, Options{}) }

// OpenWith is [Open] with options.
func OpenWith(device Device, options Options) (*Context, error) {
	if err := checkVersion(raw.Fastnorm_version()); err != nil {
		return nil, err
	}
	if strings.Contains(options.TuningFile, "\x00") { // where C would take it to end
		return nil, &Error{
			Status: StatusArgument,
			Message: fmt.Sprintf("options.tuning_file is %q; required: a path without a zero byte",
				options.TuningFile),
		}
	}
	h := &handle{device: device}
	var log uintptr
	if options.Log != nil {
		h.log = &logger{to: options.Log}
		h.logHandle = cgo.NewHandle(h.log.message)
		log = uintptr(h.logHandle)
	}
	var flags uint32
	if options.DryRun {
		flags |= raw.FASTNORM_CONTEXT_DRY_RUN
	}
	if options.NoPDL {
		flags |= raw.FASTNORM_CONTEXT_NO_PDL
	}
	var context uintptr // by itself: C may not get a pointer into memory that has pointers
	err := checked(func() int32 {
		return raw.Fnb_context_create(int32(device.Type()), int32(device.ID()), clip(options.Threads),
			flags,
			clip(options.DryRunCapability), options.TuningFile, log, &context)
	})
	h.raw = context
	if err != nil {
		h.destroy()
		h.log.raise()
		return nil, err
	}
	c := &Context{h: h}
	c.cleanup = runtime.AddCleanup(c, func(h *handle) { h.close() }, h)
	h.log.raise()
	return c, nil
}

// Close ends the context: later calls return [ErrClosed]. Calls that are running finish first,
// without Close waiting for them; work that is queued on a GPU goes on unharmed. Closing twice is
// fine. It returns nil.
func (c *Context) Close() error {
	if c != nil && c.h != nil {
		c.cleanup.Stop()
		c.h.close()
	}
	return nil
}

// Device returns what the context was opened for.
func (c *Context) Device() Device { return c.handle().device }

// noHandle stands for a Context that was not opened: the library has the error for it.
var noHandle = &handle{device: CPU}

func (c *Context) handle() *handle {
	if c == nil || c.h == nil {
		return noHandle
	}
	return c.h
}

// acquire keeps the context alive until release; nil if it is closed.
func (c *Context) acquire() *handle {
	h := c.handle()
	if !h.lifetime.acquire() {
		h.release()
		return nil
	}
	return h
}

func (c *Context) enter() (uintptr, error) {
	h := c.acquire()
	if h == nil {
		return 0, ErrClosed
	}
	return h.raw, nil
}

func (c *Context) leave() { c.handle().release() }

// handle is the library's context. It does not point to the Context, so that that can be collected.
type handle struct {
	raw       uintptr
	device    Device
	log       *logger
	logHandle cgo.Handle
	lifetime  // peers of the context count as calls
}

func (h *handle) release() { h.lifetime.release(h.end) }
func (h *handle) close()   { h.lifetime.close(h.end) }
func (h *handle) destroy() { h.lifetime.destroy(h.end) }

func (h *handle) end() {
	raw.Fastnorm_context_destroy(h.raw)
	if h.logHandle != 0 {
		h.logHandle.Delete()
	}
}

// lifetime counts the calls of what is destroyed when it is closed and the last call has ended.
type lifetime struct {
	state     atomic.Int64 // calls that are running; closed is added when it is closed
	destroyed atomic.Bool
}

const closed = math.MinInt64

// acquire is false if it is closed. The caller releases it in any case.
func (l *lifetime) acquire() bool { return l.state.Add(1) >= 0 }

func (l *lifetime) release(end func()) {
	if l.state.Add(-1) == closed {
		l.destroy(end)
	}
}

func (l *lifetime) close(end func()) {
	for {
		calls := l.state.Load()
		if calls < 0 {
			return
		}
		if l.state.CompareAndSwap(calls, calls+closed) {
			if calls == 0 {
				l.destroy(end)
			}
			return
		}
	}
}

// destroy runs when the last call has ended. A late acquire, which fails, can make that happen
// twice.
func (l *lifetime) destroy(end func()) {
	if l.destroyed.CompareAndSwap(false, true) {
		end()
	}
}

// logger hands messages to the user's function. Nothing may unwind through the library: a panic
// waits here.
type logger struct {
	to       func(LogLevel, string)
	panicked atomic.Pointer[any]
}

func (l *logger) message(level int32, text string) {
	defer func() {
		if p := recover(); p != nil {
			l.panicked.Store(&p)
		}
	}()
	l.to(LogLevel(level), text)
}

// raise goes on with a panic of the function.
func (l *logger) raise() {
	if l == nil {
		return
	}
	if p := l.panicked.Swap(nil); p != nil {
		panic(*p)
	}
}
