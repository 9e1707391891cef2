package fastnorm_test

import (
	"fmt"
	"math"
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

func open(t testing.TB, device fastnorm.Device, options fastnorm.Options) *fastnorm.Context {
	t.Helper()
	c, err := fastnorm.OpenWith(device, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func cpu(t testing.TB) *fastnorm.Context { return open(t, fastnorm.CPU, fastnorm.Options{}) }

// dryGPU is a context for a GPU that need not be there.
func dryGPU(t testing.TB) *fastnorm.Context {
	return open(t, fastnorm.CUDA(0), fastnorm.Options{DryRun: true, DryRunCapability: 90})
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t testing.TB, what string, found, wanted T) {
	t.Helper()
	if found != wanted {
		t.Errorf("%s is %v, required: %v", what, found, wanted)
	}
}

func equals[T comparable](t testing.TB, what string, found []T, wanted ...T) {
	t.Helper()
	equal(t, "length of "+what, len(found), len(wanted))
	for i := range min(len(found), len(wanted)) {
		equal(t, fmt.Sprintf("%s[%d]", what, i), found[i], wanted[i])
	}
}

func TestRMS(t *testing.T) {
	x := []float32{3, 4, 0, 0, 0, 0, 5, 12} // mean squares 6.25 and 42.25
	weight := []float32{1, 2, 3, 4}
	y, rstd := make([]float32, 8), make([]float32, 2)
	n := fastnorm.Norm{Kind: fastnorm.RMS, X: fastnorm.Of(x, 2, 4), Weight: fastnorm.Of(weight, 4),
		Y: fastnorm.Of(y, 2, 4), Rstd: fastnorm.Of(rstd, 2)}
	c := cpu(t)
	check(t, c.Norm(n))
	equals(t, "rstd", rstd, float32(1)/2.5, float32(1)/6.5)
	equals(t, "y", y, 3*rstd[0], 8*rstd[0], 0, 0, 0, 0, 5*rstd[1]*3, 12*rstd[1]*4)
	n.WeightOffset = 1
	check(t, n.Run(c))
	equals(t, "y with an offset", y, 6*rstd[0], 12*rstd[0], 0, 0, 0, 0, 5*rstd[1]*4, 12*rstd[1]*5)
}

func TestInPlace(t *testing.T) {
	x, residual := []float32{1, 2}, []float32{2, 2}
	r := fastnorm.Of(residual, 1, 2)
	xy := fastnorm.Of(x, 1, 2)
	// with mean square 12.5
	check(t, cpu(t).Norm(fastnorm.Norm{X: xy, Residual: r, ResidualOut: r, Y: xy, Eps: 12.5}))
	equals(t, "residual", residual, 3, 4)
	equals(t, "y", x, 3*float32(0.2), 4*float32(0.2))
}

// Columns of a wider buffer: strides, and a start by slicing, by offset, or from the end with
// negative strides.
func TestStrides(t *testing.T) {
	c := cpu(t)
	fill := func() []float32 {
		buffer := make([]float32, 3*10)
		for i := range buffer {
			buffer[i] = 7
		}
		return buffer
	}
	for name, view := range map[string]func([]float32) fastnorm.Tensor{
		"slice": func(b []float32) fastnorm.Tensor {
			return fastnorm.Of(b[3:], 3, 4).WithStrides(10,
				1)
		},
		"offset": func(b []float32) fastnorm.Tensor {
			return fastnorm.Of(b, 3, 4).WithStrides(10,
				1).WithOffset(3 * 4)
		},
		"before": func(b []float32) fastnorm.Tensor {
			return fastnorm.Of(b, 3,
				4).WithOffset(3*4).WithStrides(10, 1)
		},
		"negative": func(b []float32) fastnorm.Tensor {
			return fastnorm.Of(b, 3, 4).WithStrides(-10,
				1).WithOffset(23 * 4)
		},
	} {
		buffer := fill()
		v := view(buffer)
		check(t, c.Norm(fastnorm.Norm{X: v, Y: v}))
		for i, found := range buffer {
			wanted := float32(7)
			if i%10 >= 3 && i%10 < 7 {
				wanted = 1
			}
			equal(t, fmt.Sprintf("%s: element %d", name, i), found, wanted)
		}
	}
}

func TestNoRows(t *testing.T) {
	y := []float32{-1, -1, -1, -1}
	n := fastnorm.Norm{X: fastnorm.Of([]float32(nil), 2, 0, 4), Y: fastnorm.Of(y, 2, 0, 4)}
	c := cpu(t)
	check(t, c.Norm(n))
	check(t, c.NormPrepare(n))
	info, err := c.NormQuery(n)
	check(t, err)
	equal(t, "info", info, fastnorm.Info{})
	equals(t, "y", y, -1, -1, -1, -1)
}

func TestMany(t *testing.T) {
	const tokens, heads, queries, keys, size = 5, 12, 8, 2, 64
	together := make([]float32, tokens*heads*size)
	for i := range together {
		together[i] = float32(i%97) - 48
	}
	apart := append([]float32(nil), together...)
	weights := [2][]float32{make([]float32, size), make([]float32, size)}
	for i := range size {
		weights[0][i], weights[1][i] = float32(i), 1/float32(i+1)
	}
	parts := func(buffer []float32) []fastnorm.Norm {
		q := fastnorm.Of(buffer, tokens, queries, size).WithStrides(heads*size, size, 1)
		k := fastnorm.Of(buffer[queries*size:], tokens, keys, size).WithStrides(heads*size, size, 1)
		return []fastnorm.Norm{
			{Eps: 1e-6, X: q, Y: q, Weight: fastnorm.Of(weights[0], size)},
			{Eps: 1e-6, X: k, Y: k, Weight: fastnorm.Of(weights[1], size)},
		}
	}
	c := cpu(t)
	before := append([]float32(nil), together...)
	for _, n := range parts(apart) {
		check(t, c.Norm(n))
	}
	list := parts(together)
	check(t, c.NormManyPrepare(list))
	info, err := c.NormManyQuery(list)
	check(t, err)
	equal(t, "bytes written", info.BytesWritten, tokens*(queries+keys)*size*4)
	check(t, c.NormMany(list))
	equals(t, "all at once", together, apart...)
	changed := 0
	for i := range together {
		if together[i] != before[i] {
			changed++
			equal(t, "a value head", i/size%heads < queries+keys, true)
		}
	}
	if changed < len(together)/2 {
		t.Errorf("%d of %d elements changed", changed, len(together))
	}
	check(t, c.NormMany(nil))
	check(t, c.NormManyPrepare(nil))
	_, err = c.NormManyQuery([]fastnorm.Norm{})
	check(t, err)
}

// A list of norms with nearly all tensors has room in the call's words.
func TestManyWords(t *testing.T) {
	const parts, n = 8, 16
	c := cpu(t)
	memory, ramp := make([]float32, parts*2*n), make([]float32, n)
	for i := range ramp {
		ramp[i] = float32(i)
	}
	list := make([]fastnorm.Norm, parts)
	for i := range list {
		x, y := fastnorm.Of(memory[2*i*n:], 1, n), fastnorm.Of(memory[(2*i+1)*n:], 1, n)
		for k := range n {
			memory[2*i*n+k] = float32(i + 1)
		}
		list[i] = fastnorm.Norm{X: x, Y: y, Gate: fastnorm.Of(ramp, 1, n),
			Residual: x, Alpha: factor(3), SumScale: fastnorm.Of([]float32{0.5}, 1),
			Branch: &fastnorm.Branch{Weight: fastnorm.Of(make([]float32, n), n),
				Bias: fastnorm.Of(make([]float32, n), n), Rstd: fastnorm.Of([]float32{0}, 1)}}
	}
	check(t, c.NormManyPrepare(list))
	check(t, c.NormMany(list))
	for i := range list { // the branch is 0, the norm of equal values is 1
		equals(t, "y", memory[(2*i+1)*n:(2*i+2)*n], ramp...)
	}
	list[5].Branch.Eps = -1
	wantError(t, c.NormMany(list), fastnorm.ErrArgument, "args[5].branch_eps is -1")
	wantError(t, c.NormMany(make([]fastnorm.Norm, 9)), fastnorm.ErrArgument, "count is 9")
}

func factor(value float32) *float32 { return &value }

// One row of the stages: the sum is 6 * 0.5 + 0, 8 * 0.5 + 0, 1 * 0.5 - 0.5, .. = 3, 4, 0, 0.
func TestStages(t *testing.T) {
	sum, y, codes, scale := make([]float32, 4), make([]float32, 4), make([]int8, 4), []float32{0}
	norm := fastnorm.Norm{X: fastnorm.Of([]float32{6, 8, 1, 1}, 1, 4),
		Residual:    fastnorm.Of([]float32{0, 0, -0.5, -0.5}, 1, 4),
		ResidualOut: fastnorm.Of(sum, 1, 4), Y: fastnorm.Of(y, 1, 4),
		ResidualGate:    fastnorm.Of([]float32{0.5}, 1),
		ModulationScale: fastnorm.Of([]float32{1, 0, 0, 0}, 4),
		ModulationShift: fastnorm.Of([]float32{0, 0, 7, 0}, 1, 4)}
	c := cpu(t)
	check(t, c.Norm(norm))
	equals(t, "the gated sum", sum, 3, 4, 0, 0)
	equals(t, "modulated", y, 2.4, 1.6, 7, 0)
	// A factor of 0 is not none.
	norm.ResidualGate, norm.Alpha = fastnorm.Tensor{}, factor(0)
	check(t, c.Norm(norm))
	equals(t, "x * 0 + residual", sum, 0, 0, -0.5, -0.5)
	check(t, c.Norm(fastnorm.Norm{X: fastnorm.Of([]float32{1, 1, 1, 1}, 1, 4),
		Gate: fastnorm.Of([]float32{127, -64, 0, 1}, 1, 4), Quant: &fastnorm.Quant{
			Scheme: fastnorm.QuantPerRow, Out: fastnorm.Of(codes, 1, 4), Scale: fastnorm.Of(scale, 1)}}))
	equals(t, "codes", codes, 127, -64, 0, 1)
	equals(t, "scale", scale, 1)
}

// A column of 4 is 1 in each of its block's 16 columns, and a sign before it changes theirs.
func TestRotation(t *testing.T) {
	c := cpu(t)
	weight, signs := make([]float32, 16), make([]float32, 16)
	x, y := make([]float32, 16), make([]float32, 16)
	for i := range x {
		x[i], signs[i] = 1, 1
	}
	weight[0], signs[0] = 4, -1
	codes, scale := make([]int8, 16), make([]float32, 1)
	check(t, c.Norm(fastnorm.Norm{X: fastnorm.Of(x, 1, 16), Weight: fastnorm.Of(weight, 16),
		Y: fastnorm.Of(y, 1, 16), Quant: &fastnorm.Quant{
			Scheme: fastnorm.QuantPerRow, Out: fastnorm.Of(codes, 1, 16),
			Scale: fastnorm.Of(scale, 1), Rotation: 16, YRotated: true,
			RotationSigns: fastnorm.Of(signs, 16)}}))
	for i := range codes {
		equal(t, "a code", codes[i], -127)
		equal(t, "a rotated value", y[i], -1)
	}
	equal(t, "scale", scale[0], float32(1)/127)
}

// Tensors of any kind arrive: the library names what it refuses.
func TestTensorsArrive(t *testing.T) {
	c := cpu(t)
	x := make([]float32, 8)
	for text, tensor := range map[string]fastnorm.Tensor{
		"x is on device CUDA:3": fastnorm.At(fastnorm.CUDA(3), 64, fastnorm.F32, 2, 4),
		"x is NULL":             {},
		"x.data is NULL":        fastnorm.Of([]float32(nil), 2, 4),
		"x.ndim is 0":           fastnorm.Of(x),
		"y.shape is [2, 4]; required: x's, [1, 1, 1, 2, 4]": fastnorm.Of(x, 1, 1, 1, 2, 4),
		"y.shape is [2, 4]; required: x's, [1, 1, 1, 1, 1, 1, 2, 4]": fastnorm.Of(x, 1, 1, 1, 1, 1, 1,
			2, 4).WithStrides(0, 0, 0, 0, 0, 0, 4, 1),
		"x.ndim is 9; required: 1 to 8": fastnorm.Of(x, 1, 1, 1, 1, 1, 1, 1, 2, 4),
		"x.ndim is 11": fastnorm.Of(x,
			make([]int, 11)...).WithStrides(make([]int, 11)...),
		"x.strides[1] is -1":                   fastnorm.Of(x, 2, 4).WithStrides(4, -1),
		"x.strides[1] is 2":                    fastnorm.Of(x, 2, 4).WithStrides(4, 2),
		"x.shape is [-1, 4]":                   fastnorm.Of(x, -1, 4),
		"x.data is":                            fastnorm.Of(x, 2, 4).WithOffset(math.MaxUint64),
		"x.dtype is {code 9, bits 9, lanes 9}": fastnorm.View(x, 0x90909, 1),
		"x.dtype is i64":                       fastnorm.Of([]int64{1}, 1, 1),
	} {
		wantError(t, c.Norm(fastnorm.Norm{X: tensor, Y: fastnorm.Of(x, 2, 4)}), nil, text)
	}
}
