package fastnorm_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

// wantError demands an *Error of a kind (nil: any) whose message contains a text.
func wantError(t testing.TB, err error, kind error, text string) {
	t.Helper()
	var e *fastnorm.Error
	switch {
	case err == nil:
		t.Errorf("no error, required: %q", text)
	case !errors.As(err, &e):
		t.Errorf("%T is no *fastnorm.Error: %v", err, err)
	case kind != nil && !errors.Is(err, kind):
		t.Errorf("%v is not: %v", err, kind)
	case !strings.Contains(e.Message, text):
		t.Errorf("the error is %q, required: %q", e.Message, text)
	}
}

var kinds = map[fastnorm.Status]error{
	fastnorm.StatusArgument:    fastnorm.ErrArgument,
	fastnorm.StatusShape:       fastnorm.ErrShape,
	fastnorm.StatusDType:       fastnorm.ErrDType,
	fastnorm.StatusLayout:      fastnorm.ErrLayout,
	fastnorm.StatusUnsupported: fastnorm.ErrUnsupported,
	fastnorm.StatusDevice:      fastnorm.ErrDevice,
	fastnorm.StatusOutOfMemory: fastnorm.ErrOutOfMemory,
	fastnorm.StatusInternal:    fastnorm.ErrInternal,
}

// Out of memory and an internal error cannot be had from a sound library; TestFaults has those.
func TestErrors(t *testing.T) {
	c := cpu(t)
	for _, one := range []struct {
		status  fastnorm.Status
		message string
		change  func(*fastnorm.Norm)
	}{
		{fastnorm.StatusArgument, "eps is -1; required: finite and >= 0",
			func(n *fastnorm.Norm) { n.Eps = -1 }},
		{fastnorm.StatusShape, "x.shape is [1, 0], so n is 0; required: 1 to 2^32",
			func(n *fastnorm.Norm) { n.X = fastnorm.Of([]float32{1}, 1, 0) }},
		{fastnorm.StatusDType, "x.dtype is i8; required: f32, f16 or bf16",
			func(n *fastnorm.Norm) { n.X = fastnorm.Of([]int8{1, 2, 3, 4}, 1, 4) }},
		{fastnorm.StatusLayout, "x.strides[1] is 2; required: 1, a contiguous last dimension",
			func(n *fastnorm.Norm) { n.X = n.X.WithStrides(4, 2) }},
		{fastnorm.StatusArgument,
			"flags is 0x4; required: FASTNORM_NORM_PDL_WAIT (1) with FASTNORM_NORM_PDL_CONSTANT_WEIGHTS (4)",
			func(n *fastnorm.Norm) { n.Flags = fastnorm.NormPDLConstantWeights }},
		{fastnorm.StatusUnsupported,
			"flags is 0x21; this version has the flags 0x21f; nearest: flags 0x1",
			func(n *fastnorm.Norm) { n.Flags = fastnorm.NormPDLWait | 32 }},
		{fastnorm.StatusDevice,
			"x is on device CUDA:0 (device_type 2); required: the context's device, CPU:0",
			func(n *fastnorm.Norm) { n.X = fastnorm.At(fastnorm.CUDA(0), 64, fastnorm.F32, 1, 4) }},
	} {
		x, y := []float32{0, 1, 2, 3}, []float32{-1, -1, -1, -1}
		n := fastnorm.Norm{X: fastnorm.Of(x, 1, 4), Y: fastnorm.Of(y, 1, 4)}
		one.change(&n)
		_, queryError := c.NormQuery(n)
		for what, err := range map[string]error{"run": c.Norm(n), "prepare": c.NormPrepare(n),
			"query": queryError} {
			var e *fastnorm.Error
			if !errors.As(err, &e) {
				t.Errorf("%s: %v is no *fastnorm.Error", what, err)
				continue
			}
			equal(t, what+": status", e.Status, one.status)
			equal(t, what+": message", e.Message, one.message)
			equal(t, what+": device error", e.DeviceError, 0)
			equal(t, what+": text", err.Error(), one.status.String()+": "+one.message)
		}
		equals(t, "y", y, -1, -1, -1, -1)
		err := fmt.Errorf("wrapped: %w", c.NormMany([]fastnorm.Norm{n}))
		for status, kind := range kinds {
			equal(t, fmt.Sprintf("%v is %v", err, kind), errors.Is(err, kind), status == one.status)
		}
		wantError(t, err, kinds[one.status], "args[0]."+one.message)
	}
}

func TestStatus(t *testing.T) {
	for status, kind := range kinds {
		if !strings.HasPrefix(status.String(), "FASTNORM_ERROR_") {
			t.Errorf("%d is called %v", int32(status), status)
		}
		if !strings.HasPrefix(kind.Error(), "fastnorm: ") || len(kind.Error()) < 20 {
			t.Errorf("%v says %q", status, kind.Error())
		}
		newer := &fastnorm.Error{Status: status + 3} // of a library that knows more
		equal(t, "the kind of an unknown status", errors.Is(newer, kind), true)
		equal(t, "its name", newer.Status.String(), "unknown status")
	}
	equal(t, "success", fastnorm.StatusOK.String(), "FASTNORM_OK")
}

// What only the binding can see.
func TestSlices(t *testing.T) {
	c := cpu(t)
	x := make([]float32, 8)
	whole, other := fastnorm.Of(x, 2, 4), fastnorm.Of(make([]float32, 8), 2, 4)
	pass := func(v fastnorm.Tensor) {
		t.Helper()
		check(t, c.Norm(fastnorm.Norm{X: v, Y: whole}))
	}
	refuse := func(v fastnorm.Tensor, kind error, message string) {
		t.Helper()
		n := fastnorm.Norm{X: v, Y: whole}
		wantError(t, c.Norm(n), kind, "x"+message)
		wantError(t, c.NormPrepare(n), kind, "x"+message)
		wantError(t, c.NormMany([]fastnorm.Norm{{X: other, Y: other}, n}), kind, "args[1].x"+message)
		_, err := c.NormQuery(n)
		wantError(t, err, kind, "x"+message)
	}
	pass(fastnorm.Of(append(x, 1, 2, 3), 2, 4)) // longer is fine
	refuse(fastnorm.Of(x[:7], 2, 4), fastnorm.ErrShape,
		"'s slice has 28 bytes; required: bytes 0 to 32 for shape [2 4] of f32")
	refuse(fastnorm.Of(x, 2, 4).WithStrides(5, 1), fastnorm.ErrShape,
		"'s slice has 32 bytes; required: bytes 0 to 36 for shape [2 4] and strides [5 1] of f32")
	refuse(fastnorm.Of(x, 2, 4).WithStrides(-4, 1), fastnorm.ErrShape,
		"'s slice has 32 bytes; required: bytes -16 to 16 for shape [2 4] and strides [-4 1] of f32")
	refuse(fastnorm.Of(x, 2, 4).WithOffset(4), fastnorm.ErrShape,
		"'s slice has 32 bytes; required: bytes 4 to 36 for shape [2 4] at byte 4 of f32")
	refuse(fastnorm.Of(x, 2, 4).WithStrides(4), fastnorm.ErrLayout,
		" has 1 strides; required: 2, one for each extent of [2 4]")
	refuse(fastnorm.Of(x, 2, 4).WithStrides(), fastnorm.ErrLayout,
		" has 0 strides; required: 2, one for each extent of [2 4]")
	refuse(fastnorm.Of(x, 2, 4).WithStrides(4, 1, 1).WithOffset(4), fastnorm.ErrLayout,
		" has 3 strides; required: 2")
	refuse(fastnorm.Of(x, 2, 4).WithStrides(1<<62, 1), nil, "")
	long := fastnorm.Norm{X: fastnorm.Of(x, 1<<20, 1<<20), Y: fastnorm.Of(x, 1<<20, 1<<20)}
	wantError(t, c.Norm(long), fastnorm.ErrShape,
		"x's slice has 32 bytes; required: bytes 0 to 4398046511104 for")
	// The first fault is named, and one that the library finds comes first.
	n := fastnorm.Norm{X: fastnorm.Of(x[:1], 2, 4), Y: fastnorm.Of(x[:2], 2, 4)}
	wantError(t, c.Norm(n), fastnorm.ErrShape, "x's slice has 4 bytes")
	n.Eps = -1
	wantError(t, c.Norm(n), fastnorm.ErrArgument, "eps is -1")
}

// Random views of slices: whatever is accepted reads and writes inside of its slices, the rest is
// an error. All other memory is NaN, which would show in results.
func TestRandomViews(t *testing.T) {
	const slices, size, guard = 4, 24, 8 // memory: guard, slice, guard, slice, .., guard
	random := rand.New(rand.NewPCG(1, 2))
	memory := make([]float32, slices*(size+guard)+guard)
	slice := func(i int) []float32 {
		start := guard + i*(size+guard)
		return memory[start : start+random.IntN(size+1) : start+size]
	}
	near := func(low, high int) int {
		if random.IntN(200) == 0 {
			return int(random.Uint64() >> random.IntN(64))
		}
		return low + random.IntN(high-low+1)
	}
	view := func(data []float32, rank int, shape []int) fastnorm.Tensor {
		v := fastnorm.Of(data, shape...)
		if random.IntN(2) == 0 {
			strides := make([]int, rank)
			for i := range strides {
				strides[i] = near(-7, 7)
			}
			if rank > 0 && random.IntN(4) != 0 {
				strides[rank-1] = 1
			}
			if random.IntN(30) == 0 {
				strides = append(strides, 1)
			}
			v = v.WithStrides(strides...)
		}
		if random.IntN(3) == 0 {
			v = v.WithOffset(4 * uint64(near(0, 12)))
		}
		return v
	}
	c := cpu(t)
	accepted, rounds := 0, 100000
	if testing.Short() {
		rounds = 20000
	}
	for range rounds {
		for i := range memory {
			memory[i] = float32(math.NaN())
		}
		x, residual, y, sum := slice(0), slice(1), slice(2), slice(3)
		for _, s := range [][]float32{x, residual, y, sum} {
			for i := range s {
				s[i] = float32(i + 1)
			}
		}
		rank := random.IntN(5)
		if random.IntN(20) == 0 {
			rank = random.IntN(11)
		}
		shape := make([]int, rank)
		for i := range shape {
			shape[i] = near(0, 4)
		}
		before := make([]float32, len(memory))
		copy(before, memory)
		n := fastnorm.Norm{Eps: 1, X: view(x, rank, shape), Y: view(y, rank, shape)}
		if random.IntN(3) == 0 {
			n.Residual, n.ResidualOut = view(residual, rank, shape), view(sum, rank, shape)
		}
		if err := c.Norm(n); err != nil {
			var e *fastnorm.Error
			if !errors.As(err, &e) || len(e.Message) < 10 || e.Status == fastnorm.StatusInternal {
				t.Fatalf("%v of %v", err, n)
			}
			y, sum = nil, nil
		} else {
			accepted++
		}
		start, end := guard+2*(size+guard), guard+3*(size+guard)
		for i := range memory {
			inside := i >= start && i < start+len(y) || i >= end && i < end+len(sum) && n.ResidualOut.Given()
			if inside && memory[i] != memory[i] || !inside &&
				math.Float32bits(memory[i]) != math.Float32bits(before[i]) {
				t.Fatalf("element %d is %v, was %v; %d of x, %d of the residual, %+v", i, memory[i], before[i],
					len(x), len(residual), n)
			}
		}
	}
	t.Logf("%d of %d accepted", accepted, rounds)
	if accepted < rounds/20 {
		t.Errorf("%d of %d accepted: too few", accepted, rounds)
	}
}

func TestClosed(t *testing.T) {
	c, err := fastnorm.Open(fastnorm.CPU)
	check(t, err)
	x := fastnorm.Of([]float32{1, 2}, 1, 2)
	n := fastnorm.Norm{X: x, Y: x}
	check(t, c.Norm(n))
	check(t, c.Close())
	check(t, c.Close())
	for _, err := range []error{c.Norm(n), n.Run(c), c.NormPrepare(n), c.NormMany(nil),
		c.NormManyPrepare([]fastnorm.Norm{n})} {
		if err != fastnorm.ErrClosed {
			t.Errorf("%v, required: %v", err, fastnorm.ErrClosed)
		}
		wantError(t, err, fastnorm.ErrArgument, "context is closed")
	}
	if _, err := c.NormQuery(n); !errors.Is(err, fastnorm.ErrClosed) {
		t.Error(err)
	}
	var nothing *fastnorm.Norm
	wantError(t, nothing.Run(c), fastnorm.ErrArgument, "the Norm is nil")
	var none *fastnorm.Context
	check(t, none.Close())
	for _, c := range []*fastnorm.Context{none, {}} {
		wantError(t, c.Norm(n), fastnorm.ErrArgument, "context is NULL; required: a context")
		wantError(t, c.NormMany(nil), fastnorm.ErrArgument, "context is NULL; required: a context")
		check(t, c.Close())
	}
}

func TestOpenErrors(t *testing.T) {
	for _, one := range []struct {
		device  fastnorm.Device
		options fastnorm.Options
		kind    error
		text    string
	}{
		{fastnorm.DeviceOf(9, 0), fastnorm.Options{}, fastnorm.ErrArgument, "device.device_type is 9"},
		{fastnorm.DeviceOf(fastnorm.DeviceCPU, 1), fastnorm.Options{}, nil, "device_id is 1"},
		{fastnorm.CPU, fastnorm.Options{Threads: -1}, fastnorm.ErrArgument,
			"options.num_threads is -1; required: 0 to 1024"},
		{fastnorm.CPU, fastnorm.Options{Threads: 1 << 40}, fastnorm.ErrArgument,
			"options.num_threads is 2147483647"},
		{fastnorm.CPU, fastnorm.Options{DryRun: true, DryRunCapability: 90}, fastnorm.ErrArgument,
			"options.dry_run_capability is 90"},
		{fastnorm.CUDA(0), fastnorm.Options{DryRun: true, DryRunCapability: 70}, fastnorm.ErrUnsupported,
			"dry_run_capability is 70"},
		{fastnorm.CUDA(1 << 20), fastnorm.Options{}, fastnorm.ErrDevice, ""},
		{fastnorm.CUDA(0),
			fastnorm.Options{DryRun: true, DryRunCapability: 90, TuningFile: "/nowhere/at/all"},
			fastnorm.ErrArgument, `options.tuning_file is "/nowhere/at/all", which cannot be read (`},
		{fastnorm.CUDA(0),
			fastnorm.Options{DryRun: true, DryRunCapability: 90, TuningFile: "/dev/null\x00"},
			fastnorm.ErrArgument,
			`options.tuning_file is "/dev/null\x00"; required: a path without a zero byte`},
		{fastnorm.CPU, fastnorm.Options{TuningFile: "/nowhere/at/all"}, fastnorm.ErrArgument,
			`options.tuning_file is "/nowhere/at/all" and the device a CPU; required: NULL`},
	} {
		c, err := fastnorm.OpenWith(one.device, one.options)
		wantError(t, err, one.kind, one.text)
		if c != nil {
			t.Errorf("%v %v: a context beside an error", one.device, one.options)
		}
	}
}

// The text of a failure belongs to a thread and goroutines move between threads: each must see its
// own.
func TestGoroutinesErrors(t *testing.T) {
	c := cpu(t)
	rounds := 20000
	if testing.Short() {
		rounds = 2000
	}
	var group sync.WaitGroup
	for g := range 8 {
		group.Add(1)
		go func() {
			defer group.Done()
			x := []float32{1, 2, 3, 4}
			for i := range rounds {
				eps := float32(-1 - g - 8*(i%1000))
				n := fastnorm.Norm{Eps: eps, X: fastnorm.Of(x, 1, 4), Y: fastnorm.Of(x, 1, 4)}
				wanted := fmt.Sprintf("eps is %g;", eps)
				if err := c.Norm(n); err == nil || !strings.Contains(err.Error(), wanted) {
					t.Errorf("%v, required: %s", err, wanted)
					return
				}
				if i%16 == 0 {
					runtime.Gosched()
				}
			}
		}()
	}
	group.Wait()
}
