package fastnorm_test

import (
	"math"
	"testing"
	"time"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
	"github.com/libfastnorm/libfastnorm/bindings/go/internal/direct"
	"github.com/libfastnorm/libfastnorm/bindings/go/internal/gpu"
)

// The cost of a call over that of the same call from C: RMSNorm with the residual in place, four
// tensors, five given. Short stretches from C and Go alternate and the fastest of each counts, for
// the rest is the machine's. A stretch fits into a stream's queue; settle, which is not timed,
// empties it.
func overC(b *testing.B, loop *direct.Loop, err error, settle, call func() error) {
	if err != nil {
		b.Fatal(err)
	}
	defer loop.Close()
	const calls = 500
	fromC, fromGo := math.Inf(1), math.Inf(1)
	stretch := func(fastest float64, run func() error) float64 {
		start := time.Now()
		if err := run(); err != nil {
			b.Fatal(err)
		}
		taken := float64(time.Since(start).Nanoseconds()) / calls
		if err := settle(); err != nil {
			b.Fatal(err)
		}
		return min(fastest, taken)
	}
	b.ReportAllocs()
	for b.Loop() {
		fromC = stretch(fromC, func() error { return loop.Run(calls) })
		fromGo = stretch(fromGo, func() error {
			for range calls {
				if err := call(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	b.ReportMetric(fromC, "C-ns/call")
	b.ReportMetric(fromGo, "Go-ns/call")
	b.ReportMetric(fromGo-fromC, "over-C-ns")
	b.ReportMetric(0, "ns/op")
}

func nothing() error { return nil }

// A dry run, which ends before the launch.
func BenchmarkDevice(b *testing.B) {
	c, err := fastnorm.OpenWith(fastnorm.CUDA(0), fastnorm.Options{DryRun: true, DryRunCapability: 90})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	benchmarkGPU(b, c, [4]uintptr{0x100000000000, 0x200000000000, 0x300000000000, 0x400000000000},
		true, 0, nothing)
}

// A GPU, the launch included, where FASTNORM_TEST_DEVICE is cuda.
func BenchmarkGPU(b *testing.B) {
	if !onGPU(b) {
		b.Skip("FASTNORM_TEST_DEVICE is not cuda")
	}
	p := underTest(b)
	var addresses [4]uintptr
	for i := range addresses {
		addresses[i] = put(p, make([]fastnorm.BFloat16, benchmarkRows*benchmarkN)).address
	}
	benchmarkGPU(b, p.context, addresses, false, p.stream,
		func() error { return gpu.Synchronize(p.stream) })
}

const benchmarkRows, benchmarkN = 16, 4096

// benchmarkGPU makes calls at the addresses of x, weight, residual and y.
func benchmarkGPU(b *testing.B, c *fastnorm.Context, addresses [4]uintptr, dryRun bool,
	stream uintptr, settle func() error) {
	const rows, n = benchmarkRows, benchmarkN
	atX, atWeight, atResidual, atY := addresses[0], addresses[1], addresses[2], addresses[3]
	device := c.Device()
	kept := fastnorm.Norm{
		Kind: fastnorm.RMS, Eps: 1e-6,
		X:           fastnorm.At(device, atX, fastnorm.BF16, rows, n),
		Weight:      fastnorm.At(device, atWeight, fastnorm.BF16, n),
		Residual:    fastnorm.At(device, atResidual, fastnorm.BF16, rows, n),
		ResidualOut: fastnorm.At(device, atResidual, fastnorm.BF16, rows, n),
		Y:           fastnorm.At(device, atY, fastnorm.BF16, rows, n),
	}
	for _, form := range []struct {
		name string
		call func() error
	}{
		{"kept", func() error { return kept.Run(c, fastnorm.Stream(stream)) }},
		{"built", func() error {
			residual := fastnorm.At(device, atResidual, fastnorm.BF16, rows, n)
			norm := fastnorm.Norm{
				Kind: fastnorm.RMS, Eps: 1e-6,
				X:        fastnorm.At(device, atX, fastnorm.BF16, rows, n),
				Weight:   fastnorm.At(device, atWeight, fastnorm.BF16, n),
				Residual: residual, ResidualOut: residual,
				Y: fastnorm.At(device, atY, fastnorm.BF16, rows, n),
			}
			return norm.Run(c, fastnorm.Stream(stream))
		}},
		{"literal", func() error {
			residual := fastnorm.At(device, atResidual, fastnorm.BF16, rows, n)
			return c.Norm(fastnorm.Norm{
				Kind: fastnorm.RMS, Eps: 1e-6,
				X:        fastnorm.At(device, atX, fastnorm.BF16, rows, n),
				Weight:   fastnorm.At(device, atWeight, fastnorm.BF16, n),
				Residual: residual, ResidualOut: residual,
				Y: fastnorm.At(device, atY, fastnorm.BF16, rows, n),
			}, fastnorm.Stream(stream))
		}},
	} {
		b.Run(form.name, func(b *testing.B) {
			loop, err := direct.GPU(dryRun, rows, n, atX, atWeight, atResidual, atY, stream)
			overC(b, loop, err, settle, form.call)
		})
	}
}

func BenchmarkCPU(b *testing.B) {
	const rows, n = 1, 4
	slices := func() (x, weight, residual, y []float32) {
		x, weight = []float32{0, 1, 2, 3}, []float32{1, 1, 1, 1}
		return x, weight, make([]float32, n), make([]float32, n)
	}
	x, weight, residual, y := slices()
	c, err := fastnorm.Open(fastnorm.CPU)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	kept := fastnorm.Norm{Eps: 1e-6, X: fastnorm.Of(x, rows, n), Weight: fastnorm.Of(weight, n),
		Residual: fastnorm.Of(residual, rows, n), ResidualOut: fastnorm.Of(residual, rows, n),
		Y: fastnorm.Of(y, rows, n)}
	for _, form := range []struct {
		name string
		call func() error
	}{
		{"kept", func() error { return kept.Run(c) }},
		{"built", func() error {
			r := fastnorm.Of(residual, rows, n)
			norm := fastnorm.Norm{Eps: 1e-6, X: fastnorm.Of(x, rows, n), Weight: fastnorm.Of(weight, n),
				Residual: r, ResidualOut: r, Y: fastnorm.Of(y, rows, n)}
			return norm.Run(c)
		}},
	} {
		b.Run(form.name, func(b *testing.B) {
			clear(residual)
			loop, err := direct.CPU(rows, n, slices) // of its own: memory that is pinned twice costs more
			overC(b, loop, err, nothing, form.call)
		})
	}
}
