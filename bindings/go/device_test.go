package fastnorm_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
	"github.com/libfastnorm/libfastnorm/bindings/go/internal/gpu"
)

// The environment variable FASTNORM_TEST_DEVICE names the device of these tests: cpu, the default,
// or cuda, with a GPU. Rows of small whole numbers have sums that are exact in any order, so that
// every device gives the same bits.

func onGPU(t testing.TB) bool {
	t.Helper()
	name := os.Getenv("FASTNORM_TEST_DEVICE")
	if name != "" && name != "cpu" && name != "cuda" {
		t.Fatalf("FASTNORM_TEST_DEVICE is %s, required: cpu or cuda", name)
	}
	return name == "cuda"
}

// place is where a case runs.
type place struct {
	testing.TB
	context *fastnorm.Context
	gpu     bool
	stream  uintptr
}

// underTest is the device under test, with a stream of its own.
func underTest(t testing.TB) *place {
	t.Helper()
	if !onGPU(t) {
		return onCPU(t)
	}
	p := &place{t, open(t, fastnorm.CUDA(0), fastnorm.Options{}), true, 0}
	p.newStream()
	return p
}

func onCPU(t testing.TB) *place { return &place{t, cpu(t), false, 0} }

func (p *place) newStream() {
	p.Helper()
	if !p.gpu {
		return
	}
	stream, err := gpu.CreateStream()
	check(p, err)
	p.stream = stream
	p.Cleanup(func() { check(p, gpu.DestroyStream(stream)) })
}

func (p *place) options() []fastnorm.CallOption {
	if !p.gpu {
		return nil
	}
	return []fastnorm.CallOption{fastnorm.Stream(p.stream)}
}

// memory is a slice and its copy on the device; on the CPU the slice itself.
type memory[T fastnorm.Element] struct {
	place   *place
	host    []T
	address uintptr
}

func put[T fastnorm.Element](p *place, values []T) *memory[T] {
	p.Helper()
	m := &memory[T]{place: p, host: append([]T(nil), values...)}
	if p.gpu {
		address, err := gpu.Allocate(len(values) * max(1, fastnorm.Of(values).DType().Bits()/8))
		check(p, err)
		p.Cleanup(func() { check(p, gpu.Free(address)) })
		m.address = address
		check(p, gpu.CopyIn(address, values))
	}
	return m
}

// at is a view of that shape from that element on.
func (m *memory[T]) at(first int, shape ...int) fastnorm.Tensor {
	if !m.place.gpu {
		return fastnorm.Of(m.host[first:], shape...)
	}
	dtype := fastnorm.Of(m.host).DType()
	return fastnorm.At(fastnorm.CUDA(0), m.address+uintptr(first*dtype.Bits()/8), dtype, shape...)
}

func (m *memory[T]) view(shape ...int) fastnorm.Tensor { return m.at(0, shape...) }

// read returns the values after the work of the place's stream.
func (m *memory[T]) read() []T {
	m.place.Helper()
	if m.place.gpu {
		check(m.place, gpu.Synchronize(m.place.stream))
		check(m.place, gpu.CopyOut(m.host, m.address))
	}
	return m.host
}

// row is an element type of rows.
type row interface {
	float32 | fastnorm.Float16 | fastnorm.BFloat16
	fastnorm.Element
}

func fromFloat[T row](v float32) T {
	var t T
	switch p := any(&t).(type) {
	case *float32:
		*p = v
	case *fastnorm.Float16:
		*p = fastnorm.ToFloat16(v)
	case *fastnorm.BFloat16:
		*p = fastnorm.ToBFloat16(v)
	}
	return t
}

func toFloat[T row](v T) float32 {
	switch v := any(v).(type) {
	case fastnorm.Float16:
		return v.Float32()
	case fastnorm.BFloat16:
		return v.Float32()
	}
	return any(v).(float32)
}

// whole returns whole numbers of [-most, most].
func whole[T row](seed uint64, count, most int) []T {
	source := rand.New(rand.NewPCG(seed, 0))
	values := make([]T, count)
	for i := range values {
		values[i] = fromFloat[T](float32(source.IntN(2*most+1) - most))
	}
	return values
}

// rmsOf is the result of a row of whole numbers before its rounding, with every operation in single
// precision.
func rmsOf(s, weight []float32, eps float32) []float32 {
	var squares float64 // exact
	for _, v := range s {
		squares += float64(v) * float64(v)
	}
	inverse := float32(1 / float64(len(s)))
	variance := float32(float64(float32(squares)) * float64(inverse))
	root := float32(math.Sqrt(float64(variance + eps)))
	rstd := float32(1 / float64(root))
	y := make([]float32, len(s))
	for i, v := range s {
		y[i] = float32(v*rstd) * weight[i]
	}
	return y
}

func floats[T row](values []T) []float32 {
	f := make([]float32, len(values))
	for i, v := range values {
		f[i] = toFloat(v)
	}
	return f
}

func TestDeviceResidual(t *testing.T) {
	t.Run("f32", deviceResidual[float32])
	t.Run("f16", deviceResidual[fastnorm.Float16])
	t.Run("bf16", deviceResidual[fastnorm.BFloat16])
}

func deviceResidual[T row](t *testing.T) {
	const rows, n = 37, 520
	x, added, weight := whole[T](1, rows*n, 8), whole[T](2, rows*n, 8), whole[T](3, n, 6)
	run := func(p *place) (y, residual []T) {
		h, out := put(p, added), put(p, make([]T, rows*n))
		norm := fastnorm.Norm{Kind: fastnorm.RMS, Eps: 0.5, X: put(p, x).view(rows, n),
			Weight:   put(p, weight).view(n),
			Residual: h.view(rows, n), ResidualOut: h.view(rows, n), Y: out.view(rows, n)}
		check(p, p.context.NormPrepare(norm))
		info, err := p.context.NormQuery(norm)
		check(p, err)
		equal(p, "launches", info.Launches, 1)
		check(p, p.context.Norm(norm, p.options()...))
		return out.read(), h.read()
	}
	y, residual := run(underTest(t))
	onTheCPU, residualOnTheCPU := run(onCPU(t))
	equals(t, "y, that of the CPU", y, onTheCPU...)
	equals(t, "residual, that of the CPU", residual, residualOnTheCPU...)
	for r := range rows {
		s := make([]float32, n)
		for i := range s {
			s[i] = toFloat(x[r*n+i]) + toFloat(added[r*n+i])
			equal(t, "a sum", toFloat(residual[r*n+i]), s[i])
		}
		for i, v := range rmsOf(s, floats(weight), 0.5) {
			equal(t, fmt.Sprintf("y[%d, %d]", r, i), y[r*n+i], fromFloat[T](v))
		}
	}
}

// Query and key heads of one fused tensor, in place, in one call.
func TestDeviceStridedHeads(t *testing.T) {
	const tokens, heads, queries, size = 9, 7, 5, 128
	before := whole[fastnorm.BFloat16](6, tokens*heads*size, 8)
	weights := [2][]fastnorm.BFloat16{whole[fastnorm.BFloat16](7, size, 6),
		whole[fastnorm.BFloat16](8, size, 6)}
	run := func(p *place) []fastnorm.BFloat16 {
		all := put(p, before)
		q := all.view(tokens, queries, size).WithStrides(heads*size, size, 1)
		k := all.at(queries*size, tokens, 1, size).WithStrides(heads*size, size, 1)
		list := []fastnorm.Norm{
			{Eps: 0.5, X: q, Y: q, Weight: put(p, weights[0]).view(size)},
			{Eps: 0.5, X: k, Y: k, Weight: put(p, weights[1]).view(size)},
		}
		info, err := p.context.NormManyQuery(list)
		check(p, err)
		equal(p, "one launch on a GPU", info.Launches == 1, p.gpu)
		check(p, p.context.NormMany(list, p.options()...))
		return all.read()
	}
	found := run(underTest(t))
	equals(t, "heads, those of the CPU", found, run(onCPU(t))...)
	for i := range tokens * heads {
		old := before[i*size : (i+1)*size]
		wanted := old
		if head := i % heads; head <= queries {
			wanted = nil
			for _, v := range rmsOf(floats(old), floats(weights[head/queries]), 0.5) {
				wanted = append(wanted, fastnorm.ToBFloat16(v))
			}
		}
		equals(t, fmt.Sprintf("head %d of token %d", i%heads, i/heads), found[i*size:(i+1)*size],
			wanted...)
	}
}

// Two goroutines on one context, each on a stream of its own, with its own failures in between.
func TestDeviceTwoStreams(t *testing.T) {
	shared := underTest(t)
	var group sync.WaitGroup
	for g := range 2 {
		p := &place{t, shared.context, shared.gpu, 0}
		p.newStream()
		const rows, n = 37, 520
		x, added, weight := whole[fastnorm.BFloat16](uint64(20+g), rows*n, 8),
			whole[fastnorm.BFloat16](uint64(30+g), rows*n, 8), whole[fastnorm.BFloat16](40, n, 6)
		in, h, w, y := put(p, x), put(p, added), put(p, weight), put(p, make([]fastnorm.BFloat16, rows*n))
		zeros := make([]fastnorm.BFloat16, rows*n)
		var wanted []fastnorm.BFloat16
		for r := range rows {
			s := make([]float32, n)
			for i := range s {
				s[i] = x[r*n+i].Float32() + added[r*n+i].Float32()
			}
			for _, v := range rmsOf(s, floats(weight), 0.5) {
				wanted = append(wanted, fastnorm.ToBFloat16(v))
			}
		}
		group.Add(1)
		go func() {
			defer group.Done()
			norm := fastnorm.Norm{Eps: 0.5, X: in.view(rows, n), Residual: h.view(rows, n),
				Weight: w.view(n), Y: y.view(rows, n)}
			bad := norm
			bad.Eps = float32(-1 - g)
			text := fmt.Sprintf("eps is %d; required: finite and >= 0", -1-g)
			for range 50 {
				if p.gpu {
					if err := gpu.CopyIn(y.address, zeros); err != nil {
						t.Error(err)
						return
					}
				}
				var refused *fastnorm.Error
				if err := bad.Run(p.context, p.options()...); !errors.As(err, &refused) ||
					refused.Message != text {
					t.Errorf("%v, required: %s", err, text)
				}
				if err := norm.Run(p.context, p.options()...); err != nil {
					t.Error(err)
					return
				}
				if p.gpu {
					if err := errors.Join(gpu.Synchronize(p.stream), gpu.CopyOut(y.host, y.address)); err != nil {
						t.Error(err)
						return
					}
				}
				for i, v := range y.host {
					if v != wanted[i] {
						t.Errorf("goroutine %d: y[%d] is %v, required: %v", g, i, v, wanted[i])
						return
					}
				}
			}
		}()
	}
	group.Wait()
}

// Every kind of failure that a call can be made to have, by address and on a stream; nothing is
// written.
func TestDeviceRefusals(t *testing.T) {
	p := underTest(t)
	numbers, sentinel := put(p, []float32{1, 2, 3, 4}), put(p, []float32{-1, -1, -1, -1})
	x, y := numbers.view(1, 4), sentinel.view(1, 4)
	here, elsewhere := fastnorm.CPU, fastnorm.CUDA(0)
	if p.gpu {
		here, elsewhere = elsewhere, here
	}
	for name, c := range map[string]struct {
		kind error
		norm fastnorm.Norm
	}{
		"x is NULL": {fastnorm.ErrArgument, fastnorm.Norm{Y: y}},
		"eps is -1": {fastnorm.ErrArgument, fastnorm.Norm{X: x, Y: y, Eps: -1}},
		"shape":     {fastnorm.ErrShape, fastnorm.Norm{X: numbers.view(2, 2), Y: y}},
		"x.dtype is i32": {fastnorm.ErrDType,
			fastnorm.Norm{X: fastnorm.At(here, 4096, fastnorm.I32, 1, 4), Y: y}},
		"x.strides[1]": {fastnorm.ErrLayout,
			fastnorm.Norm{X: fastnorm.At(here, 4096, fastnorm.F32, 1, 4).WithStrides(4, -1), Y: y}},
		"x's address": {fastnorm.ErrLayout,
			fastnorm.Norm{X: fastnorm.At(here, 4097, fastnorm.F32, 1, 4), Y: y}},
		"flags is 0x4": {fastnorm.ErrArgument,
			fastnorm.Norm{X: x, Y: y, Flags: fastnorm.NormPDLConstantWeights}},
		"flags is 0x20": {fastnorm.ErrUnsupported, fastnorm.Norm{X: x, Y: y, Flags: 32}},
		"x is on device ": {fastnorm.ErrDevice,
			fastnorm.Norm{X: fastnorm.At(elsewhere, 4096, fastnorm.F32, 1, 4), Y: y}},
	} {
		wantError(t, c.norm.Run(p.context, p.options()...), c.kind, name)
	}
	equals(t, "y", sentinel.read(), -1, -1, -1, -1)
}

func TestDeviceDescription(t *testing.T) {
	p := underTest(t)
	info, err := fastnorm.Describe(p.context.Device())
	check(t, err)
	equal(t, "a GPU has a capability", info.Capability >= 80, p.gpu)
	equal(t, "a GPU has memory", info.MemoryBytes > 0, p.gpu)
	equal(t, "a GPU has a driver", info.DriverVersion >= 13000, p.gpu)
	equal(t, "there is a name", info.Name != "", true)
}

// Without a driver the tests' memory says so.
func TestNoDriver(t *testing.T) {
	count, err := fastnorm.DeviceCount(fastnorm.DeviceCUDA)
	check(t, err)
	if count > 0 {
		t.Skip("a CUDA device is there")
	}
	if _, err := gpu.Allocate(4); err == nil {
		t.Error("memory of a GPU that is not there")
	}
	_, err = fastnorm.Open(fastnorm.CUDA(0))
	wantError(t, err, fastnorm.ErrDevice, "required")
}
