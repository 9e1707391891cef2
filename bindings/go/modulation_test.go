package fastnorm_test

import (
	"math"
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

// The gated residual and the modulation of a Norm: adaLN.

// gatedRow is a norm of the row 3, 4, 0, 0, whose results are 1.2, 1.6, 0, 0.
func gatedRow(sum, y []float32) fastnorm.Norm {
	return fastnorm.Norm{X: fastnorm.Of([]float32{6, 8, 1, 1}, 1, 4),
		Residual:    fastnorm.Of([]float32{0, 0, -0.5, -0.5}, 1, 4),
		ResidualOut: fastnorm.Of(sum, 1, 4), Y: fastnorm.Of(y, 1, 4),
		ResidualGate: fastnorm.Of([]float32{0.5}, 1)}
}

func TestModulation(t *testing.T) {
	c := cpu(t)
	sum, y := make([]float32, 4), make([]float32, 4)
	norm := gatedRow(sum, y)
	check(t, c.Norm(norm))
	equals(t, "the gated sum", sum, 3, 4, 0, 0)
	equals(t, "y", y, 1.2, 1.6, 0, 0)
	norm.ModulationScale = fastnorm.Of([]float32{1, 0, 0, 0}, 4)
	norm.ModulationShift = fastnorm.Of([]float32{0, 0, 7, 0}, 1, 4)
	check(t, c.Norm(norm))
	equals(t, "modulated", y, 2.4, 1.6, 7, 0)
	norm.Flags = fastnorm.NormPlainScale
	check(t, c.Norm(norm))
	equals(t, "by the plain scale", y, 1.2, 0, 7, 0)
	norm.Flags = 0
	norm.ScaleTable = fastnorm.Of([]float32{-2, 0, 0, 0}, 4)
	norm.ShiftTable = fastnorm.Of([]float32{0, 0, 1, -1}, 4)
	check(t, c.Norm(norm))
	equals(t, "with tables", y, 0, 1.6, 8, -1)

	// A gate of large magnitude: its tanh is 1 or -1. The table turns the sign.
	norm = gatedRow(sum, y)
	norm.ResidualGate, norm.ResidualGateAct = fastnorm.Of([]float32{50}, 1), fastnorm.ActivationTanh
	check(t, c.Norm(norm))
	equals(t, "tanh", sum, 6, 8, 0.5, 0.5)
	norm.ResidualGateTable = fastnorm.Of([]float32{0, -100, -50, 0}, 4)
	check(t, c.Norm(norm))
	equals(t, "tanh with a table", sum, 6, -8, -0.5, 0.5)
}

// Rows of modulators by number are those that broadcast.
func TestModulationIndex(t *testing.T) {
	const batch, tokens, n = 2, 3, 24
	c := cpu(t)
	x, modulators := sines(batch*tokens*n, 1.3), sines(batch*n, 0.7)
	y, wanted := make([]float32, len(x)), make([]float32, len(x))
	norm := fastnorm.Norm{Kind: fastnorm.Layer, Eps: 1e-6, X: fastnorm.Of(x, batch, tokens, n),
		Y: fastnorm.Of(wanted, batch, tokens, n), ModulationShift: fastnorm.Of(modulators, batch, 1, n)}
	check(t, c.Norm(norm))
	norm.Y = fastnorm.Of(y, batch, tokens, n)
	norm.ModulationShift = fastnorm.Of(modulators, batch, n)
	for _, index := range []fastnorm.Tensor{
		fastnorm.Of([]int32{0, 0, 0, 1, 1, 1}, batch, tokens),
		fastnorm.Of([]int64{0, 0, 0, 1, 1, 1}, batch, tokens, 1),
	} {
		clear(y)
		norm.ModulationIndex = index
		check(t, c.Norm(norm))
		equals(t, "y", y, wanted...)
	}
	norm.ModulationIndex = fastnorm.Of([]int32{0, 0, 0, 1, 2, 1}, batch, tokens)
	wantError(t, c.Norm(norm), fastnorm.ErrArgument,
		"modulation_index of row 4 is 2; required: 0 to 1, the rows of the modulators")
	equals(t, "y after a refusal", y, wanted...)
}

// X of five dimensions, of which a modulator has two.
func TestModulationDimensions(t *testing.T) {
	c := cpu(t)
	x, shift, y := sines(2*3*2*8, 0.9), []float32{100, 200}, make([]float32, 2*3*2*8)
	norm := fastnorm.Norm{X: fastnorm.Of(x, 2, 1, 3, 2, 8), Y: fastnorm.Of(y, 2, 1, 3, 2, 8),
		ModulationShift: fastnorm.Of(shift, 2, 1, 1, 1, 1)}
	check(t, c.Norm(norm))
	for i, v := range y {
		if math.Abs(float64(v-shift[i/48])) > 3 {
			t.Fatalf("y[%d] is %v, required: near %v", i, v, shift[i/48])
		}
	}
}

// 1 + 2^-8 lies between two values of bf16.
func TestModulationRounding(t *testing.T) {
	c := cpu(t)
	y := []float32{0}
	for rounding, wanted := range map[fastnorm.ModulationRounding]float32{
		fastnorm.ModulationOnce: 1 + 0x1p-8, fastnorm.ModulationEveryStep: 1,
	} {
		x := fastnorm.Of([]fastnorm.BFloat16{0x3f80}, 1)
		check(t, c.Norm(fastnorm.Norm{X: x, Y: fastnorm.Of(y, 1),
			ModulationScale: fastnorm.Of([]float32{0x1p-8}, 1), ModulationRounding: rounding}))
		equal(t, "y", y[0], wanted)
	}
}

func TestModulationErrors(t *testing.T) {
	c := cpu(t)
	sum, y := make([]float32, 4), make([]float32, 4)
	refused := func(kind error, text string, change func(*fastnorm.Norm)) {
		t.Helper()
		n := gatedRow(sum, y)
		change(&n)
		wantError(t, c.Norm(n), kind, text)
		equals(t, "y", y, 0, 0, 0, 0)
	}
	argument, shape := fastnorm.ErrArgument, fastnorm.ErrShape
	wrong, row := fastnorm.Of(make([]float32, 3), 3), fastnorm.Of(make([]float32, 4), 4)
	refused(argument, "residual_gate_act is 4; required: a fastnorm_activation, 0 to 3",
		func(n *fastnorm.Norm) { n.ResidualGateAct = 4 })
	refused(argument, "modulation_rounding is 2", func(n *fastnorm.Norm) { n.ModulationRounding = 2 })
	refused(argument, "flags is 0x8 and modulation_scale is NULL",
		func(n *fastnorm.Norm) { n.Flags = fastnorm.NormPlainScale })
	refused(argument, "scale_table is given and modulation_scale is NULL; required: both, or no table",
		func(n *fastnorm.Norm) { n.ScaleTable = row })
	refused(argument, "shift_table is given", func(n *fastnorm.Norm) { n.ShiftTable = row })
	refused(shape, "residual_gate.shape is [3]", func(n *fastnorm.Norm) { n.ResidualGate = wrong })
	refused(shape, "residual_gate_table.shape is [3]",
		func(n *fastnorm.Norm) { n.ResidualGateTable = wrong })
	refused(shape, "modulation_scale.shape is [3]",
		func(n *fastnorm.Norm) { n.ModulationScale = wrong })
	refused(shape, "modulation_shift.shape is [3]",
		func(n *fastnorm.Norm) { n.ModulationShift = wrong })
	refused(shape, "scale_table.shape is [3]",
		func(n *fastnorm.Norm) { n.ModulationScale, n.ScaleTable = row, wrong })
	refused(shape, "shift_table.shape is [3]",
		func(n *fastnorm.Norm) { n.ModulationShift, n.ShiftTable = row, wrong })
	refused(fastnorm.ErrDType, "modulation_index.dtype is f32; required: i32 or i64",
		func(n *fastnorm.Norm) { n.ModulationIndex = fastnorm.Of([]float32{0}, 1) })
	refused(shape, "residual_gate.shape is [1]; required: [m, 4] or [m, 1]",
		func(n *fastnorm.Norm) { n.ModulationIndex = fastnorm.Of([]int32{0}, 1) })
	refused(shape, "modulation_shift's slice has 4 bytes",
		func(n *fastnorm.Norm) { n.ModulationShift = fastnorm.Of(make([]float32, 1), 4) })
}
