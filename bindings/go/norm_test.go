package fastnorm_test

import (
	"fmt"
	"math"
	"math/rand/v2"
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

// --- results that can be worked out by hand, to the bit ---

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

func TestLayer(t *testing.T) {
	x, y := []float32{1, 3, 1, 3}, make([]float32, 4)
	mean, rstd := make([]float32, 1), make([]float32, 1)
	check(t, cpu(t).Norm(fastnorm.Norm{
		Kind: fastnorm.Layer, Eps: 3, // beside a variance of 1
		X: fastnorm.Of(x, 4), Weight: fastnorm.Of([]float32{2, 2, 4, 8}, 4),
		Bias: fastnorm.Of([]float32{1, 1, 1, 1}, 4),
		Y:    fastnorm.Of(y, 4), Mean: fastnorm.Of(mean, 1), Rstd: fastnorm.Of(rstd, 1),
	}))
	equals(t, "mean", mean, 2)
	equals(t, "rstd", rstd, 0.5)
	equals(t, "y", y, 0, 2, -1, 5)
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

// --- against double precision ---

// format is a dtype that rows can have.
type format struct {
	dtype fastnorm.DType
	round func(float64) float64 // to nearest even
}

var formats = []format{
	{fastnorm.F32, func(v float64) float64 { return float64(float32(v)) }},
	{fastnorm.F16,
		func(v float64) float64 { return float64(fastnorm.ToFloat16(float32(v)).Float32()) }},
	{fastnorm.BF16,
		func(v float64) float64 { return float64(fastnorm.ToBFloat16(float32(v)).Float32()) }},
}

// array is a tensor's memory and its values.
type array struct {
	format
	f32 []float32
	f16 []fastnorm.Float16
	b16 []fastnorm.BFloat16
}

func newArray(f format, count int) *array {
	switch f.dtype {
	case fastnorm.F32:
		return &array{format: f, f32: make([]float32, count)}
	case fastnorm.F16:
		return &array{format: f, f16: make([]fastnorm.Float16, count)}
	}
	return &array{format: f, b16: make([]fastnorm.BFloat16, count)}
}

func random(f format, count int, scale float64) *array {
	a := newArray(f, count)
	for i := range count {
		a.set(i, scale*rand.NormFloat64())
	}
	return a
}

func (a *array) set(i int, v float64) {
	switch a.dtype {
	case fastnorm.F32:
		a.f32[i] = float32(v)
	case fastnorm.F16:
		a.f16[i] = fastnorm.ToFloat16(float32(v))
	default:
		a.b16[i] = fastnorm.ToBFloat16(float32(v))
	}
}

func (a *array) at(i int) float64 {
	switch a.dtype {
	case fastnorm.F32:
		return float64(a.f32[i])
	case fastnorm.F16:
		return float64(a.f16[i].Float32())
	}
	return float64(a.b16[i].Float32())
}

func (a *array) view(shape ...int) fastnorm.Tensor {
	switch a.dtype {
	case fastnorm.F32:
		return fastnorm.Of(a.f32, shape...)
	case fastnorm.F16:
		return fastnorm.Of(a.f16, shape...)
	}
	return fastnorm.Of(a.b16, shape...)
}

// unit is the unit roundoff of single precision.
const unit = 1.0 / (1 << 24)

// bounds are how far single precision, in the CPU's order of summation, may be from the exact
// statistics. A sum of n squares is the longest chain of roundings: n / 64 additions in each of 64
// accumulators, their fold and that of the chunks, and one for each product. Half of it stays in
// the root.
func bounds(kind fastnorm.NormKind, n int, absMean, variance, eps, rstd float64) (mean,
	relative float64) {
	chain := math.Min(256, math.Ceil(float64(n)/64)) + 6 + math.Ceil(float64(n)/16384)
	if kind == fastnorm.RMS {
		return 0, (chain/2 + 4) * unit
	}
	mean = (chain + 2) * unit * absMean
	return mean, (chain/2+5)*unit + mean*mean*rstd*rstd/2
}

func TestReference(t *testing.T) {
	c := cpu(t)
	threads := open(t, fastnorm.CPU, fastnorm.Options{Threads: 2})
	for _, f := range formats {
		for _, kind := range []fastnorm.NormKind{fastnorm.RMS, fastnorm.Layer} {
			for _, n := range []int{1, 7, 64, 1000, 4096} {
				for _, parameters := range []format{f, formats[0]} { // of weight and bias
					compare(t, c, threads, f, parameters, kind, n)
				}
			}
		}
	}
}

// compare runs one normalisation with everything and bounds each of its outputs.
func compare(t *testing.T, c, threads *fastnorm.Context, f, parameters format,
	kind fastnorm.NormKind, n int) {
	const rows, heads = 6, 2
	const eps, offset = 1e-3, 1
	name := fmt.Sprintf("%v of %v, parameters %v, kind %d", n, f.dtype, parameters.dtype, kind)
	x, residual := random(f, rows*n, 1.5), random(f, rows*n, 1)
	weight, bias := random(parameters, heads*n, 0.5), random(parameters, heads*n, 1)
	y, sum := newArray(f, rows*n), newArray(f, rows*n)
	mean, rstd := make([]float32, rows), make([]float32, rows)
	norm := fastnorm.Norm{
		Kind: kind, Eps: eps, WeightOffset: offset,
		ResidualRounding: fastnorm.ResidualRoundBeforeStatistics,
		X:                x.view(rows/heads, heads, n), Residual: residual.view(rows/heads, heads, n),
		Weight: weight.view(heads, n), Bias: bias.view(heads, n),
		Y: y.view(rows/heads, heads, n), ResidualOut: sum.view(rows/heads, heads, n),
		Rstd: fastnorm.Of(rstd, rows/heads, heads),
	}
	if kind == fastnorm.Layer {
		norm.Mean = fastnorm.Of(mean, rows/heads, heads, 1)
	}
	check(t, c.Norm(norm))
	for r := range rows {
		row := make([]float64, n)
		total, absolute := 0.0, 0.0
		for i := range row {
			row[i] = f.round(x.at(r*n+i) + residual.at(r*n+i))
			equal(t, name+": a sum", sum.at(r*n+i), row[i])
			total += row[i]
			absolute += math.Abs(row[i])
		}
		m := 0.0
		if kind == fastnorm.Layer {
			m = total / float64(n)
		}
		squares := 0.0
		for _, v := range row {
			squares += (v - m) * (v - m)
		}
		variance := squares / float64(n)
		inverse := 1 / math.Sqrt(variance+float64(float32(eps)))
		offMean, relative := bounds(kind, n, absolute/float64(n), variance, eps, inverse)
		if math.Abs(float64(mean[r])-m) > offMean {
			t.Errorf("%s: mean is %v, required: %v within %g", name, mean[r], m, offMean)
		}
		if math.Abs(float64(rstd[r])-inverse) > relative*inverse {
			t.Errorf("%s: rstd is %v, required: %v within a part of %g", name, rstd[r], inverse, relative)
		}
		for i, v := range row {
			scale, shift := weight.at(r%heads*n+i)+offset, bias.at(r%heads*n+i)
			scale = float64(float32(scale))
			normal := (v - m) * inverse
			exact := normal*scale + shift
			off := math.Abs(scale)*(inverse*offMean+(relative+2*unit)*math.Abs(normal)) +
				2*unit*(math.Abs(normal*scale)+math.Abs(shift))
			found := y.at(r*n + i)
			if found < f.round(exact-off) || found > f.round(exact+off) {
				t.Fatalf("%s: y[%d, %d] is %v, required: %v within %g, rounded", name, r, i, found, exact, off)
			}
		}
	}
	again := newArray(f, rows*n)
	norm.Y = again.view(rows/heads, heads, n)
	check(t, norm.Run(threads))
	for i := range rows * n {
		equal(t, name+": with threads", again.at(i), y.at(i))
	}
}

// --- every field arrives ---

// Each field is set to something that the library names in its refusal, or that a query shows.
func TestFields(t *testing.T) {
	c := cpu(t)
	x := make([]float32, 8)
	base := func() fastnorm.Norm {
		return fastnorm.Norm{X: fastnorm.Of(x, 2, 4), Y: fastnorm.Of(x, 2, 4)}
	}
	check(t, c.Norm(base()))
	refused := func(text string, change func(*fastnorm.Norm)) {
		t.Helper()
		n := base()
		change(&n)
		wantError(t, c.Norm(n), nil, text)
	}
	wrong := fastnorm.Of(x, 2, 2) // nothing fits its shape
	refused("kind is 5", func(n *fastnorm.Norm) { n.Kind = 5 })
	refused("kind is -1", func(n *fastnorm.Norm) { n.Kind = -1 })
	refused("eps is nan", func(n *fastnorm.Norm) { n.Eps = float32(math.NaN()) })
	refused("eps is -0.125", func(n *fastnorm.Norm) { n.Eps = -0.125 })
	refused("weight_offset is 2.5", func(n *fastnorm.Norm) { n.WeightOffset = 2.5 })
	refused("rounding is 7", func(n *fastnorm.Norm) { n.Rounding = 7 })
	refused("residual_rounding is 8", func(n *fastnorm.Norm) { n.ResidualRounding = 8 })
	refused("flags is 0x6",
		func(n *fastnorm.Norm) { n.Flags = fastnorm.NormPDLTrigger | fastnorm.NormPDLConstantWeights })
	refused("flags is 0x80000001", func(n *fastnorm.Norm) { n.Flags = fastnorm.NormPDLWait | 1<<31 })
	refused("residual.shape is [2, 2]", func(n *fastnorm.Norm) { n.Residual = wrong })
	refused("weight.shape is [2, 2]", func(n *fastnorm.Norm) { n.Weight = wrong })
	refused("bias.shape is [2, 2]", func(n *fastnorm.Norm) { n.Bias = wrong })
	refused("y.shape is [2, 2]", func(n *fastnorm.Norm) { n.Y = wrong })
	refused("residual_out.shape is [2, 2]",
		func(n *fastnorm.Norm) { n.Residual = n.X; n.ResidualOut = wrong })
	refused("mean.shape is [2, 2]", func(n *fastnorm.Norm) { n.Kind = fastnorm.Layer; n.Mean = wrong })
	refused("rstd.shape is [2, 2]", func(n *fastnorm.Norm) { n.Rstd = wrong })
	refused("x is on device CUDA:3",
		func(n *fastnorm.Norm) { n.X = fastnorm.At(fastnorm.CUDA(3), 64, fastnorm.F32, 2, 4) })
	refused("x is NULL", func(n *fastnorm.Norm) { n.X = fastnorm.Tensor{} })
	refused("y is NULL", func(n *fastnorm.Norm) { n.Y = fastnorm.Tensor{} })
	refused("x.data is NULL", func(n *fastnorm.Norm) { n.X = fastnorm.Of([]float32(nil), 2, 4) })
	refused("x.ndim is 0", func(n *fastnorm.Norm) { n.X = fastnorm.Of(x) })
	refused("y.shape is [2, 4]; required: x's, [1, 1, 1, 2, 4]",
		func(n *fastnorm.Norm) { n.X = fastnorm.Of(x, 1, 1, 1, 2, 4) })
	refused("y.shape is [2, 4]; required: x's, [1, 1, 1, 1, 1, 1, 2, 4]", func(n *fastnorm.Norm) {
		n.X = fastnorm.Of(x, 1, 1, 1, 1, 1, 1, 2, 4).WithStrides(0, 0, 0, 0, 0, 0, 4, 1)
	})
	refused("x.ndim is 9; required: 1 to 8",
		func(n *fastnorm.Norm) { n.X = fastnorm.Of(x, 1, 1, 1, 1, 1, 1, 1, 2, 4) })
	refused("x.ndim is 11",
		func(n *fastnorm.Norm) {
			n.X = fastnorm.Of(x,
				make([]int, 11)...).WithStrides(make([]int, 11)...)
		})
	refused("x.strides[1] is -1", func(n *fastnorm.Norm) { n.X = n.X.WithStrides(4, -1) })
	refused("x.strides[1] is 2", func(n *fastnorm.Norm) { n.X = n.X.WithStrides(4, 2) })
	refused("x.shape is [-1, 4]", func(n *fastnorm.Norm) { n.X = fastnorm.Of(x, -1, 4) })
	refused("x.data is", func(n *fastnorm.Norm) { n.X = n.X.WithOffset(math.MaxUint64) })
	refused("x.dtype is {code 9, bits 9, lanes 9}",
		func(n *fastnorm.Norm) { n.X = fastnorm.View(x, 0x90909, 1) })
	refused("x.dtype is i64", func(n *fastnorm.Norm) { n.X = fastnorm.Of([]int64{1}, 1, 1) })
}
