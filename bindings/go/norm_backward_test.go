package fastnorm_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

const gradientRows, gradientN, gradientEps = 7, 96, 1e-3

// gradientInputs are tensors of a backward pass, with the gradients that the formula gives in
// double precision: the derivatives of sum(dy * y) + sum(dresidual * x).
type gradientInputs struct {
	x, dy, weight, dresidual []float32
	dx, dweight, dbias       []float64
}

func newGradientInputs(layer bool) *gradientInputs {
	random := rand.New(rand.NewPCG(41, 1))
	numbers := func(count int) []float32 {
		values := make([]float32, count)
		for i := range values {
			values[i] = 4*random.Float32() - 2
		}
		return values
	}
	rows, n := gradientRows, gradientN
	g := &gradientInputs{
		x: numbers(rows * n), dy: numbers(rows * n), weight: numbers(n), dresidual: numbers(rows * n),
		dx: make([]float64, rows*n), dweight: make([]float64, n), dbias: make([]float64, n),
	}
	for row := range rows {
		x, dy := g.x[row*n:(row+1)*n], g.dy[row*n:(row+1)*n]
		mean, variance, c1, c2 := 0.0, 0.0, 0.0, 0.0
		if layer {
			for _, v := range x {
				mean += float64(v) / float64(n)
			}
		}
		for _, v := range x {
			variance += (float64(v) - mean) * (float64(v) - mean) / float64(n)
		}
		rstd := 1 / math.Sqrt(variance+gradientEps)
		xhat := func(i int) float64 { return (float64(x[i]) - mean) * rstd }
		for i := range n {
			e := float64(dy[i]) * float64(g.weight[i])
			c1 += e * xhat(i) / float64(n)
			if layer {
				c2 += e / float64(n)
			}
			g.dweight[i] += float64(dy[i]) * xhat(i)
			g.dbias[i] += float64(dy[i])
		}
		for i := range n {
			e := float64(dy[i]) * float64(g.weight[i])
			g.dx[row*n+i] = (e-c2-xhat(i)*c1)*rstd + float64(g.dresidual[row*n+i])
		}
	}
	return g
}

func near(t *testing.T, what string, found []float32, wanted []float64) {
	t.Helper()
	for i := range wanted {
		if !(math.Abs(float64(found[i])-wanted[i]) < 2e-5) {
			t.Errorf("%s[%d] is %v, required: %v", what, i, found[i], wanted[i])
			return
		}
	}
}

func TestNormBackward(t *testing.T) {
	c := cpu(t)
	rows, n := gradientRows, gradientN
	for _, kind := range []fastnorm.NormKind{fastnorm.RMS, fastnorm.Layer} {
		g := newGradientInputs(kind == fastnorm.Layer)
		mean, rstd := make([]float32, rows), make([]float32, rows)
		forward := fastnorm.Norm{Kind: kind, Eps: gradientEps, X: fastnorm.Of(g.x, rows, n),
			Weight: fastnorm.Of(g.weight, n), Y: fastnorm.Of(make([]float32, rows*n), rows, n),
			Rstd: fastnorm.Of(rstd, rows)}
		if kind == fastnorm.Layer {
			forward.Mean = fastnorm.Of(mean, rows)
		}
		check(t, c.Norm(forward))
		for _, saved := range []bool{true, false} {
			name := fmt.Sprintf("kind %v, saved %v: ", kind, saved)
			dx, dweight, dbias := make([]float32, rows*n), make([]float32, n), make([]float32, n)
			b := fastnorm.NormBackward{Kind: kind, Eps: gradientEps, DY: fastnorm.Of(g.dy, rows, n),
				X: fastnorm.Of(g.x, rows, n), Weight: fastnorm.Of(g.weight, n),
				DResidualIn: fastnorm.Of(g.dresidual, rows, n), DX: fastnorm.Of(dx, rows, n),
				DWeight: fastnorm.Of(dweight, n), DBias: fastnorm.Of(dbias, n)}
			if saved {
				b.Rstd, b.Mean = forward.Rstd, forward.Mean
			}
			check(t, c.NormBackwardPrepare(b))
			info, err := c.NormBackwardQuery(b)
			check(t, err)
			if info.WorkspaceBytes == 0 {
				t.Error(name + "no workspace")
			}
			check(t, c.NormBackward(b))
			near(t, name+"dx", dx, g.dx)
			near(t, name+"dweight", dweight, g.dweight)
			near(t, name+"dbias", dbias, g.dbias)
			once := append([]float32(nil), dweight...)
			b.Flags = fastnorm.NormBackwardAccumulateDWeight
			check(t, b.Run(c))
			for i := range once {
				once[i] += once[i]
			}
			equals(t, name+"dweight, added", dweight, once...)
			near(t, name+"dbias, not added", dbias, g.dbias)
		}
	}
}

// A gate that is a factor gives the bits of a call with the product of DY, or of X, and the gate.
func TestNormBackwardGate(t *testing.T) {
	c := cpu(t)
	rows, n := gradientRows, gradientN
	g := newGradientInputs(false)
	gate, product := make([]float32, rows*n), make([]float32, rows*n)
	for i := range gate {
		gate[i] = float32(i%7) - 2.5
		product[i] = g.dy[i] * gate[i]
	}
	of := func(values []float32) fastnorm.Tensor { return fastnorm.Of(values, rows, n) }
	dx, dgate, wanted := make([]float32, rows*n), make([]float32, rows*n), make([]float32, rows*n)
	gated := fastnorm.NormBackward{Eps: gradientEps, DY: of(g.dy), X: of(g.x), DX: of(dx),
		Gate: of(gate), DGate: of(dgate), GroupSize: 32}
	plain := fastnorm.NormBackward{Eps: gradientEps, DY: of(product), X: of(g.x), DX: of(wanted),
		GroupSize: 32}
	check(t, c.NormBackward(gated))
	check(t, c.NormBackward(plain))
	equals(t, "dx of a gate after the norm", dx, wanted...)
	for i := range gate {
		product[i] = g.x[i] * gate[i]
	}
	gated.GatePosition = fastnorm.GateBeforeNorm
	plain.DY, plain.X = of(g.dy), of(product)
	check(t, c.NormBackward(gated))
	check(t, c.NormBackward(plain))
	ofGate := make([]float32, rows*n)
	for i, dh := range wanted {
		wanted[i], ofGate[i] = dh*gate[i], dh*g.x[i]
	}
	equals(t, "dx of a gate before the norm", dx, wanted...)
	equals(t, "dgate of a gate before the norm", dgate, ofGate...)
	gated.GateAct = fastnorm.ActivationSiLU
	check(t, c.NormBackward(gated))
	gated.Gate = fastnorm.Tensor{}
	refuses(t, c.NormBackward(gated), "gate is NULL")
}

// refuses fails the test unless err is ErrArgument with a text.
func refuses(t *testing.T, err error, text string) {
	t.Helper()
	if !errors.Is(err, fastnorm.ErrArgument) || !strings.Contains(err.Error(), text) {
		t.Error(err)
	}
}

// The norm of a branch has the bits of a call of its own, whose DY is DX times Alpha.
func TestNormBackwardBranch(t *testing.T) {
	c := cpu(t)
	rows, n := gradientRows, gradientN
	g := newGradientInputs(false)
	of := func(values []float32) fastnorm.Tensor { return fastnorm.Of(values, rows, n) }
	branch, dx := make([]float32, rows*n), make([]float32, rows*n)
	dbranch, wanted := make([]float32, rows*n), make([]float32, rows*n)
	for i := range branch {
		branch[i] = float32(i%11)*0.75 - 3
	}
	dweight, weight := make([]float32, n), make([]float32, n)
	for i := range weight {
		weight[i] = 1 + float32(i%3)
	}
	call := fastnorm.NormBackward{Eps: gradientEps, DY: of(g.dy), X: of(g.x), DX: of(dx),
		Branch: of(branch), BranchNorm: true, BranchKind: fastnorm.Layer, BranchEps: gradientEps,
		BranchWeight: fastnorm.Of(weight, n), Alpha: 0.5, DBranch: of(dbranch),
		DBranchWeight: fastnorm.Of(dweight, n)}
	check(t, c.NormBackward(call))
	for i := range dx {
		dx[i] *= 0.5
	}
	weightAlone := make([]float32, n)
	alone := fastnorm.NormBackward{Kind: fastnorm.Layer, Eps: gradientEps, DY: of(dx), X: of(branch),
		Weight: fastnorm.Of(weight, n), DX: of(wanted), DWeight: fastnorm.Of(weightAlone, n)}
	check(t, c.NormBackward(alone))
	equals(t, "dbranch", dbranch, wanted...)
	equals(t, "dbranch_weight", dweight, weightAlone...)
	call.Branch = fastnorm.Tensor{}
	err := c.NormBackward(call)
	if !errors.Is(err, fastnorm.ErrArgument) || !strings.Contains(err.Error(), "branch is NULL") {
		t.Error(err)
	}
}

func TestNormBackwardMany(t *testing.T) {
	c := cpu(t)
	rows, n := gradientRows, gradientN
	g := newGradientInputs(false)
	var list []fastnorm.NormBackward
	var found [4][]float32
	for i := range found {
		found[i] = make([]float32, rows*n)
		kind := []fastnorm.NormKind{fastnorm.RMS, fastnorm.Layer}[i%2]
		list = append(list, fastnorm.NormBackward{Kind: kind, Eps: gradientEps,
			DY: fastnorm.Of(g.dy, rows, n), X: fastnorm.Of(g.x, rows, n),
			DX: fastnorm.Of(found[i], rows, n)})
	}
	check(t, list[0].Run(c))
	check(t, list[1].Run(c))
	check(t, c.NormBackwardManyPrepare(list[2:]))
	_, err := c.NormBackwardManyQuery(list[2:])
	check(t, err)
	check(t, c.NormBackwardMany(list[2:]))
	equals(t, "rms", found[2], found[0]...)
	equals(t, "layer", found[3], found[1]...)
	refuses(t, c.NormBackwardMany(make([]fastnorm.NormBackward, 9)), "9")
}

func TestNormBackwardRefused(t *testing.T) {
	c := cpu(t)
	x := fastnorm.Of([]float32{1, 2}, 1, 2)
	dx := fastnorm.Of([]float32{0, 0}, 1, 2)
	refuses(t, c.NormBackward(fastnorm.NormBackward{X: x, DX: dx}), "dy")
	refuses(t, c.NormBackward(fastnorm.NormBackward{DY: x, X: x}), "dx")
	var none *fastnorm.NormBackward
	refuses(t, none.Run(c), "NormBackward is nil")
}
