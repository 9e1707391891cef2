package fastnorm_test

import (
	"errors"
	"fmt"
	"log"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

// RMSNorm of two rows.
func Example() {
	x := []float32{1, 2, 3, 4, -2, 0, 2, 0}
	weight := []float32{1, 1, 2, 2}
	y := make([]float32, len(x))

	ctx, err := fastnorm.Open(fastnorm.CPU)
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	err = ctx.Norm(fastnorm.Norm{
		Kind: fastnorm.RMS, Eps: 1e-6,
		X: fastnorm.Of(x, 2, 4), Weight: fastnorm.Of(weight, 4), Y: fastnorm.Of(y, 2, 4),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.4f\n%.4f\n", y[:4], y[4:])
	// Output:
	// [0.3651 0.7303 2.1909 2.9212]
	// [-1.4142 0.0000 2.8284 0.0000]
}

// The residual stream of a transformer: it is added to first, in place.
func ExampleContext_Norm_residual() {
	x, residual := []float32{1, 2}, []float32{2, 2}
	y := make([]float32, 2)
	ctx, err := fastnorm.Open(fastnorm.CPU)
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	h := fastnorm.Of(residual, 1, 2)
	err = ctx.Norm(fastnorm.Norm{X: fastnorm.Of(x, 1, 2), Residual: h, ResidualOut: h,
		Y: fastnorm.Of(y, 1, 2)})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v %.4f\n", residual, y)
	// Output: [3 4] [0.8485 1.1314]
}

// A gated norm: of the row, times silu of the gate.
func ExampleContext_Norm_gate() {
	x, gate := []float32{1, -1, 1, -1}, []float32{0, 1, 2, 3}
	y := make([]float32, 4)
	ctx, err := fastnorm.Open(fastnorm.CPU)
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	err = ctx.Norm(fastnorm.Norm{
		X: fastnorm.Of(x, 1, 4), Y: fastnorm.Of(y, 1, 4),
		Gate: fastnorm.Of(gate, 1, 4), GateAct: fastnorm.ActivationSiLU,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.4f\n", y)
	// Output: [0.0000 -0.7311 1.7616 -2.8577]
}

// The query and the key heads of a fused QKV tensor [tokens, heads, size], in place; values stay as
// they are.
func ExampleContext_NormMany() {
	const tokens, heads, size = 2, 3, 2 // a query, a key and a value head
	qkv := []float32{3, 4, 6, 8, 1, 2, 4, 3, 8, 6, 1, 2}
	head := func(first, count int) fastnorm.Tensor {
		return fastnorm.Of(qkv[first*size:], tokens, count, size).WithStrides(heads*size, size, 1)
	}
	q, k := head(0, 1), head(1, 1)
	ctx, err := fastnorm.Open(fastnorm.CPU)
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	err = ctx.NormMany([]fastnorm.Norm{
		{X: q, Y: q, Weight: fastnorm.Of([]float32{1, 1}, size)},
		{X: k, Y: k, Weight: fastnorm.Of([]float32{10, 10}, size)},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.2f\n%.2f\n", qkv[:6], qkv[6:])
	// Output:
	// [0.85 1.13 8.49 11.31 1.00 2.00]
	// [1.13 0.85 11.31 8.49 1.00 2.00]
}

// What a call would do on a GPU that need not be there. On one that is, Norm takes the same
// tensors, of device memory, and a stream.
func ExampleContext_NormQuery() {
	gpu, err := fastnorm.OpenWith(fastnorm.CUDA(0),
		fastnorm.Options{DryRun: true, DryRunCapability: 90})
	if err != nil {
		log.Fatal(err)
	}
	defer gpu.Close()
	at := func(address uintptr, shape ...int) fastnorm.Tensor {
		return fastnorm.At(gpu.Device(), address, fastnorm.BF16, shape...)
	}
	norm := fastnorm.Norm{
		Eps: 1e-6,
		X:   at(0x7f0000000000, 4096, 8192), Weight: at(0x7f1000000000, 8192),
		Y: at(0x7f2000000000, 4096, 8192),
	}
	info, err := gpu.NormQuery(norm)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Launches, "launch reads", info.BytesRead, "bytes and writes", info.BytesWritten)
	// Output: 1 launch reads 67125248 bytes and writes 67108864
}

// Errors carry the library's text and compare with a kind.
func ExampleError() {
	ctx, err := fastnorm.Open(fastnorm.CPU)
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	x := fastnorm.Of([]float32{1, 2, 3, 4}, 2, 2)
	err = ctx.Norm(fastnorm.Norm{X: x, Y: x, Weight: fastnorm.Of([]float32{1, 1, 1}, 3)})
	fmt.Println(err)
	fmt.Println(errors.Is(err, fastnorm.ErrShape))
	var e *fastnorm.Error
	if errors.As(err, &e) {
		fmt.Println(e.Status == fastnorm.StatusShape)
	}
	// Output:
	// FASTNORM_ERROR_SHAPE: weight.shape is [3]; required: [2], or with leading extents that are 1 or x's, counted from the right, for x of shape [2, 2]
	// true
	// true
}
