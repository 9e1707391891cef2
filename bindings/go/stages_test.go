package fastnorm_test

import (
	"math"
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

// Stages of a Norm: the gate, groups, statistics of several devices, the branch's norm and the sum.

// activated is the activation of each value, from the library itself: of a row whose norm is 1.
func activated(t *testing.T, act fastnorm.Activation, values []float32) []float32 {
	t.Helper()
	ones, y := make([]float32, len(values)), make([]float32, len(values))
	for i := range ones {
		ones[i] = 1
	}
	check(t, cpu(t).Norm(fastnorm.Norm{X: fastnorm.Of(ones, 1, len(ones)), GateAct: act,
		Gate: fastnorm.Of(values, 1, len(values)), Y: fastnorm.Of(y, 1, len(y))}))
	return y
}

func sines(count int, step float64) []float32 {
	values := make([]float32, count)
	for i := range values {
		values[i] = float32(3 * math.Sin(step*float64(i+1)))
	}
	return values
}

func TestActivations(t *testing.T) {
	gate := []float32{0, 1, -1, 0.25, -7, 30, -120, float32(math.Inf(-1))}
	for act, exact := range map[fastnorm.Activation]func(v float64) float64{
		fastnorm.ActivationIdentity: func(v float64) float64 { return v },
		fastnorm.ActivationSiLU:     func(v float64) float64 { return v / (1 + math.Exp(-v)) },
		fastnorm.ActivationSigmoid:  func(v float64) float64 { return 1 / (1 + math.Exp(-v)) },
		fastnorm.ActivationTanh:     math.Tanh,
	} {
		for i, found := range activated(t, act, gate[:7]) {
			wanted := exact(float64(gate[i]))
			if math.Abs(float64(found)-wanted) > 8*unit*math.Abs(wanted)+1e-40 {
				t.Errorf("activation %d of %v is %v, required: %v", act, gate[i], found, wanted)
			}
		}
	}
	silu := activated(t, fastnorm.ActivationSiLU, gate)
	equal(t, "silu(0)", silu[0], 0)
	equal(t, "bits of silu(-Inf), a -0", math.Float32bits(silu[7]), 1<<31)
	equal(t, "sigmoid(0)", activated(t, fastnorm.ActivationSigmoid, gate)[0], 0.5)
	// Activation takes the result, not the gate.
	y := make([]float32, 4)
	check(t, cpu(t).Norm(fastnorm.Norm{X: fastnorm.Of([]float32{1, -1, 1, -1}, 4),
		Activation: fastnorm.ActivationSiLU, Y: fastnorm.Of(y, 4)}))
	equals(t, "silu of a norm", y, silu[1], silu[2], silu[1], silu[2])
}

func TestGate(t *testing.T) {
	const rows, n = 3, 40
	c := cpu(t)
	x, gate := sines(rows*n, 1.7), sines(rows*n, 0.9)
	silu := activated(t, fastnorm.ActivationSiLU, gate)
	plain, gated, y := make([]float32, rows*n), make([]float32, rows*n), make([]float32, rows*n)
	norm := fastnorm.Norm{Eps: 1e-6, X: fastnorm.Of(x, rows, n), Weight: fastnorm.Of(sines(n, 0.3), n),
		Y: fastnorm.Of(plain, rows, n)}
	check(t, c.Norm(norm))
	norm.Gate, norm.GateAct = fastnorm.Of(gate, rows, n), fastnorm.ActivationSiLU
	norm.Y = fastnorm.Of(y, rows, n)
	check(t, c.Norm(norm))
	for i := range plain {
		plain[i] *= silu[i]
	}
	equals(t, "gated after the norm", y, plain...)

	norm.GatePosition = fastnorm.GateBeforeNorm
	check(t, c.Norm(norm))
	for i := range gated {
		gated[i] = x[i] * silu[i]
	}
	before := fastnorm.Norm{Eps: 1e-6, X: fastnorm.Of(gated, rows, n), Weight: norm.Weight,
		Y: fastnorm.Of(plain, rows, n)}
	check(t, c.Norm(before))
	equals(t, "gated before the norm", y, plain...)

	// In place of the gate, as a half of a wider buffer.
	buffer := make([]float32, rows*2*n)
	for r := range rows {
		copy(buffer[r*2*n+n:], gate[r*n:(r+1)*n])
	}
	half := fastnorm.Of(buffer[n:], rows, n).WithStrides(2*n, 1)
	norm.Gate, norm.Y = half, half
	check(t, c.Norm(norm))
	for i := range plain {
		equal(t, "in place of the gate", buffer[i/n*2*n+n+i%n], plain[i])
	}
}

func TestGateSource(t *testing.T) {
	const n = 64
	c := cpu(t)
	x, gate := random(formats[2], n, 1), sines(n, 0.7)
	z, y := make([]float32, n), make([]float32, n)
	norm := fastnorm.Norm{X: x.view(n), Weight: fastnorm.Of(sines(n, 1.1), n), Y: fastnorm.Of(z, n)}
	check(t, c.Norm(norm))
	norm.Y, norm.Gate = fastnorm.Of(y, n), fastnorm.Of(gate, n)
	different := 0
	for _, source := range []fastnorm.GateSource{fastnorm.GateFromF32, fastnorm.GateFromRounded} {
		norm.GateSource = source
		check(t, c.Norm(norm))
		for i := range y {
			v := z[i]
			if source == fastnorm.GateFromRounded {
				v = fastnorm.ToBFloat16(v).Float32()
			}
			equal(t, "gated", y[i], v*gate[i])
			if y[i] != z[i]*gate[i] {
				different++
			}
		}
	}
	if different < n/4 {
		t.Errorf("rounding changed %d of %d", different, n)
	}
}

// Groups are rows of a view that is split.
func TestGroups(t *testing.T) {
	const rows, groups, size = 3, 4, 24
	const n = groups * size
	c := cpu(t)
	for _, kind := range []fastnorm.NormKind{fastnorm.RMS, fastnorm.Layer} {
		x, weight := sines(rows*n, 1.3), sines(size, 0.4)
		y, split := make([]float32, rows*n), make([]float32, rows*n)
		rstd, rstdOfSplit := make([]float32, rows*groups), make([]float32, rows*groups)
		check(t, c.Norm(fastnorm.Norm{Kind: kind, Eps: 1e-5, GroupSize: size, X: fastnorm.Of(x, rows, n),
			Weight: fastnorm.Of(weight, size), Y: fastnorm.Of(y, rows, n),
			Rstd: fastnorm.Of(rstd, rows, groups)}))
		check(t, c.Norm(fastnorm.Norm{Kind: kind, Eps: 1e-5, X: fastnorm.Of(x, rows, groups, size),
			Weight: fastnorm.Of(weight, size), Y: fastnorm.Of(split, rows, groups, size),
			Rstd: fastnorm.Of(rstdOfSplit, rows, groups)}))
		equals(t, "y", y, split...)
		equals(t, "rstd", rstd, rstdOfSplit...)
		equal(t, "groups differ", rstd[0] != rstd[1], true)
	}
}

// Two halves of a row, each with its sums, then each with the statistic of both.
func TestSplitRMS(t *testing.T) {
	const rows, n = 2, 64
	c := cpu(t)
	x := make([]float32, rows*n)
	for i := range x {
		x[i] = float32(i%7) - 3 // sums are exact in any order
	}
	whole, y := make([]float32, rows*n), make([]float32, rows*n)
	half := func(values []float32, first int) fastnorm.Tensor {
		return fastnorm.Of(values[first:], rows, n/2).WithStrides(n, 1)
	}
	check(t, c.Norm(fastnorm.Norm{Eps: 0.5, X: fastnorm.Of(x, rows, n),
		Y: fastnorm.Of(whole, rows, n)}))
	sums, rstd := [2][]float32{make([]float32, rows), make([]float32, rows)}, make([]float32, rows)
	for device := range sums {
		check(t, c.Norm(fastnorm.Norm{X: half(x, device*n/2), Sumsq: fastnorm.Of(sums[device], rows)}))
	}
	for r := range rstd {
		exact := float32(0)
		for _, v := range x[r*n : (r+1)*n] {
			exact += v * v
		}
		equal(t, "the sum of squares", sums[0][r]+sums[1][r], exact)
		rstd[r] = 1 / float32(math.Sqrt(float64(exact/n+0.5)))
	}
	for device := range sums {
		check(t, c.Norm(fastnorm.Norm{X: half(x, device*n/2), Y: half(y, device*n/2),
			RstdIn: fastnorm.Of(rstd, rows)}))
	}
	equals(t, "y of both devices", y, whole...)
}

func TestSplitLayer(t *testing.T) {
	const n = 8
	c := cpu(t)
	x := []float32{1, 3, 1, 3, 5, 7, 5, 7} // halves of mean 2 and 6, each of squares 4
	whole, y := make([]float32, n), make([]float32, n)
	check(t, c.Norm(fastnorm.Norm{Kind: fastnorm.Layer, Eps: 4, X: fastnorm.Of(x, 1, n),
		Y: fastnorm.Of(whole, 1, n)}))
	var parts [2][]float32
	for device := range parts {
		parts[device] = make([]float32, 2)
		check(t, c.Norm(fastnorm.Norm{Kind: fastnorm.Layer, X: fastnorm.Of(x[device*4:], 1, 4),
			Sumsq: fastnorm.Of(parts[device], 1, 2)}))
	}
	equals(t, "mean and sum of the first", parts[0], 2, 4)
	equals(t, "mean and sum of the second", parts[1], 6, 4)
	delta := parts[1][0] - parts[0][0]
	mean := []float32{parts[0][0] + delta/2}
	sum := parts[0][1] + parts[1][1] + delta*delta*4*4/8
	rstd := []float32{1 / float32(math.Sqrt(float64(sum/n+4)))}
	equals(t, "mean", mean, 4)
	equals(t, "rstd", rstd, 1/float32(3)) // of 40 / 8 + 4
	for device := range parts {
		check(t, c.Norm(fastnorm.Norm{Kind: fastnorm.Layer, X: fastnorm.Of(x[device*4:], 1, 4),
			Y: fastnorm.Of(y[device*4:], 1, 4), MeanIn: fastnorm.Of(mean, 1), RstdIn: fastnorm.Of(rstd, 1)}))
	}
	equals(t, "y of both devices", y, whole...)
}

// One call has the bits of two: the branch's norm, then the sum and its norm.
func TestSandwich(t *testing.T) {
	const rows, n = 4, 96
	c := cpu(t)
	f := formats[2]
	for _, kind := range []fastnorm.NormKind{fastnorm.RMS, fastnorm.Layer} {
		x, residual, weights := random(f, rows*n, 2), random(f, rows*n, 1), random(f, 3*n, 0.5)
		weight := func(i int) fastnorm.Tensor { return fastnorm.Of(weights.b16[i*n:], n) }
		branch, y, sum := newArray(f, rows*n), newArray(f, rows*n), newArray(f, rows*n)
		yOfTwo, sumOfTwo := newArray(f, rows*n), newArray(f, rows*n)
		rstd, rstdOfTwo := make([]float32, rows), make([]float32, rows)
		check(t, c.Norm(fastnorm.Norm{Kind: kind, Eps: 1e-3, WeightOffset: 1, X: x.view(rows, n),
			Weight: weight(0), Bias: weight(1), Y: branch.view(rows, n),
			Rstd: fastnorm.Of(rstdOfTwo, rows)}))
		second := fastnorm.Norm{Eps: 1e-6, WeightOffset: 1, X: branch.view(rows, n), Weight: weight(2),
			ResidualRounding: fastnorm.ResidualRoundBeforeStatistics, Residual: residual.view(rows, n),
			ResidualOut: sumOfTwo.view(rows, n), Y: yOfTwo.view(rows, n)}
		check(t, c.Norm(second))
		one := second
		one.X, one.Y, one.ResidualOut = x.view(rows, n), y.view(rows, n), sum.view(rows, n)
		one.Branch = &fastnorm.Branch{Kind: kind, Eps: 1e-3, WeightOffset: 1, Rounded: true,
			Weight: weight(0), Bias: weight(1), Rstd: fastnorm.Of(rstd, rows)}
		check(t, one.Run(c))
		equals(t, "y", y.b16, yOfTwo.b16...)
		equals(t, "the sum", sum.b16, sumOfTwo.b16...)
		equals(t, "rstd of the branch", rstd, rstdOfTwo...)
		// Its rounding arrives: t is rounded before the weight.
		one.Branch.Rounding = fastnorm.RoundNormalized
		check(t, c.Norm(one))
		equal(t, "RoundNormalized changes y", sameBits(y.b16, yOfTwo.b16), false)
	}
}

func sameBits[T comparable](a, b []T) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestSum(t *testing.T) {
	c := cpu(t)
	x, residual := []float32{1, 2, -3, 4}, []float32{10, 20, 30, -40}
	sum, y := make([]float32, 4), make([]float32, 4)
	check(t, c.Norm(fastnorm.Norm{X: fastnorm.Of(x, 4), Residual: fastnorm.Of(residual, 4), Alpha: 0.5,
		SumScale: fastnorm.Of([]float32{2}, 1), ResidualOut: fastnorm.Of(sum, 4), Y: fastnorm.Of(y, 4)}))
	equals(t, "(x * alpha + residual) * sum_scale", sum, 21, 42, 57, -76)

	// 1.5 * (1 + 2^-7) lies between two values of bf16.
	b, zero := []fastnorm.BFloat16{0x3f81}, []float32{0}
	for rounding, wanted := range map[fastnorm.SumRounding]float32{
		fastnorm.SumOnce:      1.5 * (1 + 0x1p-7),
		fastnorm.SumEveryStep: fastnorm.ToBFloat16(1.5 * (1 + 0x1p-7)).Float32(),
	} {
		out := []float32{0}
		check(t, c.Norm(fastnorm.Norm{X: fastnorm.Of(b, 1), Residual: fastnorm.Of(zero, 1), Alpha: 1.5,
			SumRounding: rounding, ResidualOut: fastnorm.Of(out, 1), Y: fastnorm.Of(y, 1)}))
		equal(t, "the sum", out[0], wanted)
	}
}

// Codes are of the gated result.
func TestGatedCodes(t *testing.T) {
	codes, scale := make([]int8, 4), []float32{0}
	check(t, cpu(t).Norm(fastnorm.Norm{X: fastnorm.Of([]float32{1, 1, 1, 1}, 1, 4),
		Gate: fastnorm.Of([]float32{127, -64, 0, 1}, 1, 4), Quant: &fastnorm.Quant{
			Scheme: fastnorm.QuantPerRow, Out: fastnorm.Of(codes, 1, 4), Scale: fastnorm.Of(scale, 1)}}))
	equals(t, "codes", codes, 127, -64, 0, 1)
	equal(t, "scale", scale[0], 1)
}

// A list of norms with all tensors has room.
func TestStagesMany(t *testing.T) {
	const parts, n = 8, 16
	c := cpu(t)
	memory := make([]float32, parts*2*n)
	list := make([]fastnorm.Norm, parts)
	for i := range list {
		x, y := fastnorm.Of(memory[2*i*n:], 1, n), fastnorm.Of(memory[(2*i+1)*n:], 1, n)
		for k := range n {
			memory[2*i*n+k] = float32(i + 1)
		}
		list[i] = fastnorm.Norm{X: x, Y: y, Gate: fastnorm.Of(sines(n, 0.1), 1, n),
			Residual: x, Alpha: 3, SumScale: fastnorm.Of([]float32{0.5}, 1),
			Branch: &fastnorm.Branch{Weight: fastnorm.Of(make([]float32, n), n),
				Bias: fastnorm.Of(make([]float32, n), n), Rstd: fastnorm.Of([]float32{0}, 1)}}
	}
	check(t, c.NormManyPrepare(list))
	check(t, c.NormMany(list))
	for i := range list { // the branch is 0, the norm of equal values is 1
		equals(t, "y", memory[(2*i+1)*n:(2*i+2)*n], sines(n, 0.1)...)
	}
	list[5].Branch.Eps = -1
	wantError(t, c.NormMany(list), fastnorm.ErrArgument, "args[5].branch_eps is -1")
}

// Each field arrives: the library names it, and a slice that is too short is named too.
func TestStageErrors(t *testing.T) {
	c := cpu(t)
	x, y := []float32{1, 2, 3, 4, 5, 6, 7, 8}, make([]float32, 8)
	refused := func(kind error, text string, change func(*fastnorm.Norm)) {
		t.Helper()
		n := fastnorm.Norm{X: fastnorm.Of(x, 2, 4), Y: fastnorm.Of(y, 2, 4)}
		change(&n)
		wantError(t, c.Norm(n), kind, text)
		equals(t, "y", y, make([]float32, 8)...)
	}
	argument, shape := fastnorm.ErrArgument, fastnorm.ErrShape
	whole := fastnorm.Of(make([]float32, 8), 2, 4)
	wrong := fastnorm.Of(make([]float32, 6), 2, 3)
	branch := func(b fastnorm.Branch) func(*fastnorm.Norm) {
		return func(n *fastnorm.Norm) { n.Branch = &b }
	}
	refused(argument, "gate_act is 1 and gate is NULL; required: 0 without a gate",
		func(n *fastnorm.Norm) { n.GateAct = fastnorm.ActivationSiLU })
	refused(argument, "gate_act is 7; required: a fastnorm_activation, 0 to 3",
		func(n *fastnorm.Norm) { n.Gate, n.GateAct = whole, 7 })
	refused(argument, "gate_position is 7", func(n *fastnorm.Norm) { n.GatePosition = 7 })
	refused(argument, "gate_source is 7", func(n *fastnorm.Norm) { n.GateSource = 7 })
	refused(argument, "gate_source is FASTNORM_GATE_FROM_ROUNDED (1) and gate_position is 1",
		func(n *fastnorm.Norm) {
			n.Gate, n.GateSource, n.GatePosition = whole, fastnorm.GateFromRounded, fastnorm.GateBeforeNorm
		})
	refused(argument, "activation is -1", func(n *fastnorm.Norm) { n.Activation = -1 })
	refused(argument, "group_size is -3; required: 0, or a divisor of n",
		func(n *fastnorm.Norm) { n.GroupSize = -3 })
	refused(shape, "group_size is 3 and n is 4; required: a divisor of n",
		func(n *fastnorm.Norm) { n.GroupSize = 3 })
	refused(shape, "group_size is 1099511627776 and n is 4",
		func(n *fastnorm.Norm) { n.GroupSize = 1 << 40 })
	refused(shape, "gate.shape is [2, 3]", func(n *fastnorm.Norm) { n.Gate = wrong })
	refused(fastnorm.ErrLayout, "overlap", func(n *fastnorm.Norm) { n.Gate = n.X })
	refused(shape, "sumsq.shape is [2, 3]", func(n *fastnorm.Norm) { n.Sumsq = wrong })
	refused(argument, "mean_in is given and kind is FASTNORM_NORM_RMS",
		func(n *fastnorm.Norm) { n.MeanIn = wrong })
	refused(argument, "mean_in is NULL and rstd_in is given; required: both or neither",
		func(n *fastnorm.Norm) { n.Kind, n.RstdIn = fastnorm.Layer, wrong })
	refused(shape, "mean_in.shape is [2, 3]",
		func(n *fastnorm.Norm) { n.Kind, n.MeanIn, n.RstdIn = fastnorm.Layer, wrong, wrong })
	refused(shape, "rstd_in.shape is [2, 3]", func(n *fastnorm.Norm) { n.RstdIn = wrong })
	refused(argument, "rstd is given and rstd_in is given; required: one of them",
		func(n *fastnorm.Norm) { n.Rstd, n.RstdIn = wrong, wrong })
	refused(argument, "branch_kind is 5", branch(fastnorm.Branch{Kind: 5}))
	refused(argument, "branch_eps is -1; required: finite and >= 0", branch(fastnorm.Branch{Eps: -1}))
	refused(argument, "branch_weight_offset is 1 and branch_weight is NULL; required: 0 without a "+
		"weight", branch(fastnorm.Branch{WeightOffset: 1}))
	refused(argument, "branch_rounding is 3; required: a fastnorm_rounding, 0 to 2",
		branch(fastnorm.Branch{Rounding: fastnorm.RoundOnceRW}))
	refused(shape, "branch_weight.shape is [2, 3]", branch(fastnorm.Branch{Weight: wrong}))
	refused(shape, "branch_bias.shape is [2, 3]", branch(fastnorm.Branch{Bias: wrong}))
	refused(shape, "branch_rstd.shape is [2, 3]", branch(fastnorm.Branch{Rstd: wrong}))
	refused(argument, "alpha is nan; required: finite",
		func(n *fastnorm.Norm) { n.Alpha = float32(math.NaN()) })
	refused(argument, "sum_rounding is 2", func(n *fastnorm.Norm) { n.SumRounding = 2 })
	refused(shape, "sum_scale.ndim is 2; required: 1", func(n *fastnorm.Norm) { n.SumScale = wrong })
	short := make([]float32, 1) // for two rows
	statistic := fastnorm.Of(short, 2)
	refused(shape, "gate's slice has 4 bytes",
		func(n *fastnorm.Norm) { n.Gate = fastnorm.Of(short, 2, 4) })
	refused(shape, "sumsq's slice has 4 bytes", func(n *fastnorm.Norm) { n.Sumsq = statistic })
	refused(shape, "rstd_in's slice has 4 bytes", func(n *fastnorm.Norm) { n.RstdIn = statistic })
	refused(shape, "mean_in's slice has 4 bytes", func(n *fastnorm.Norm) {
		n.Kind, n.MeanIn, n.RstdIn = fastnorm.Layer, statistic, fastnorm.Of(make([]float32, 2), 2)
	})
	refused(shape, "branch_weight's slice has 4 bytes",
		branch(fastnorm.Branch{Weight: fastnorm.Of(short, 4)}))
	refused(shape, "branch_bias's slice has 4 bytes",
		branch(fastnorm.Branch{Bias: fastnorm.Of(short, 4)}))
	refused(shape, "branch_rstd's slice has 4 bytes", branch(fastnorm.Branch{Rstd: statistic}))
	refused(shape, "sum_scale's slice has 2 bytes", func(n *fastnorm.Norm) {
		n.SumScale = fastnorm.View([]uint16{0}, fastnorm.F32, 1)
	})
}

func TestStagesOnGPU(t *testing.T) {
	c := dryGPU(t)
	at := fastnorm.At(c.Device(), 0x10000, fastnorm.BF16, 4, 64)
	scale := fastnorm.At(c.Device(), 0x20000, fastnorm.BF16, 4, 64)
	for _, n := range []fastnorm.Norm{
		{X: at, Y: at, Activation: fastnorm.ActivationSiLU},
		{X: at, Y: at, Branch: &fastnorm.Branch{}},
		{X: at, Y: at, ModulationScale: scale},
	} {
		if err := c.Norm(n); err != nil {
			t.Error(err)
		}
	}
}
