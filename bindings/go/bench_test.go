package fastnorm_test

import (
	"math"
	"testing"
	"time"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
	"github.com/libfastnorm/libfastnorm/bindings/go/internal/direct"
)

// The cost of a call over that of the same call from C: RMSNorm with the residual in place, four tensors, five
// given. On the device side a dry run, which ends before the launch. Short stretches from C and Go alternate
// and the fastest of each counts, for the rest is the machine's.
func overC(b *testing.B, loop *direct.Loop, err error, call func() error) {
	if err != nil {
		b.Fatal(err)
	}
	defer loop.Close()
	const calls = 500
	fromC, fromGo := math.Inf(1), math.Inf(1)
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		if err := loop.Run(calls); err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		for range calls {
			if err := call(); err != nil {
				b.Fatal(err)
			}
		}
		end := time.Now()
		fromC = min(fromC, float64(middle.Sub(start).Nanoseconds())/calls)
		fromGo = min(fromGo, float64(end.Sub(middle).Nanoseconds())/calls)
	}
	b.ReportMetric(fromC, "C-ns/call")
	b.ReportMetric(fromGo, "Go-ns/call")
	b.ReportMetric(fromGo-fromC, "over-C-ns")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkDevice(b *testing.B) {
	const rows, n = 16, 4096
	const atX, atWeight, atResidual, atY = 0x100000000000, 0x200000000000, 0x300000000000, 0x400000000000
	c, err := fastnorm.OpenWith(fastnorm.CUDA(0), fastnorm.Options{DryRun: true, DryRunCapability: 90})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	gpu := c.Device()
	kept := fastnorm.Norm{
		Kind: fastnorm.RMS, Eps: 1e-6,
		X:        fastnorm.At(gpu, atX, fastnorm.BF16, rows, n),
		Weight:   fastnorm.At(gpu, atWeight, fastnorm.BF16, n),
		Residual: fastnorm.At(gpu, atResidual, fastnorm.BF16, rows, n), ResidualOut: fastnorm.At(gpu, atResidual, fastnorm.BF16, rows, n),
		Y: fastnorm.At(gpu, atY, fastnorm.BF16, rows, n),
	}
	for _, form := range []struct {
		name string
		call func() error
	}{
		{"kept", func() error { return kept.Run(c) }},
		{"built", func() error {
			residual := fastnorm.At(gpu, atResidual, fastnorm.BF16, rows, n)
			norm := fastnorm.Norm{
				Kind: fastnorm.RMS, Eps: 1e-6,
				X:        fastnorm.At(gpu, atX, fastnorm.BF16, rows, n),
				Weight:   fastnorm.At(gpu, atWeight, fastnorm.BF16, n),
				Residual: residual, ResidualOut: residual,
				Y: fastnorm.At(gpu, atY, fastnorm.BF16, rows, n),
			}
			return norm.Run(c, fastnorm.Stream(0))
		}},
		{"literal", func() error {
			residual := fastnorm.At(gpu, atResidual, fastnorm.BF16, rows, n)
			return c.Norm(fastnorm.Norm{
				Kind: fastnorm.RMS, Eps: 1e-6,
				X:        fastnorm.At(gpu, atX, fastnorm.BF16, rows, n),
				Weight:   fastnorm.At(gpu, atWeight, fastnorm.BF16, n),
				Residual: residual, ResidualOut: residual,
				Y: fastnorm.At(gpu, atY, fastnorm.BF16, rows, n),
			}, fastnorm.Stream(0))
		}},
	} {
		b.Run(form.name, func(b *testing.B) {
			loop, err := direct.DryGPU(rows, n, atX, atWeight, atResidual, atY)
			overC(b, loop, err, form.call)
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
		Residual: fastnorm.Of(residual, rows, n), ResidualOut: fastnorm.Of(residual, rows, n), Y: fastnorm.Of(y, rows, n)}
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
			overC(b, loop, err, form.call)
		})
	}
}
