package fastnorm_test

import (
	"math"
	"strings"
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

// headsGradient has the gradients of a headsCase's query, key and value.
type headsGradient struct {
	*headsCase
	dy, dqkv     []float32
	dquery, dkey []float32
}

func newHeadsGradient() *headsGradient {
	g := &headsGradient{headsCase: newHeadsCase()}
	g.dy = make([]float32, len(g.qkv))
	for i := range g.dy {
		g.dy[i] = float32(math.Sin(float64(3*i + 1)))
	}
	g.dqkv = make([]float32, len(g.qkv))
	g.dquery, g.dkey = make([]float32, headsD), make([]float32, headsD)
	return g
}

// of is the tensor of count heads of a buffer from number first on.
func headsOf(buffer []float32, first, count int) fastnorm.Tensor {
	t := fastnorm.Of(buffer[first*headsD:], headsTokens, count, headsD)
	return t.WithStrides(headsAll*headsD, headsD, 1)
}

func (g *headsGradient) call(flags fastnorm.NormHeadsFlags) fastnorm.NormHeadsBackward {
	part := func(first, count int) fastnorm.NormHeadsBackwardPart {
		return fastnorm.NormHeadsBackwardPart{
			Flags: fastnorm.NormHeadsNorm | fastnorm.NormHeadsRope | flags,
			Eps:   headsEps, WeightOffset: 1, RopeOffset: headsOffset, DY: headsOf(g.dy, first, count),
			X: headsOf(g.qkv, first, count), DX: headsOf(g.dqkv, first, count)}
	}
	query, key := part(0, headsQuery), part(headsQuery, headsKey)
	query.Weight, query.DWeight = fastnorm.Of(g.query, headsD), fastnorm.Of(g.dquery, headsD)
	key.Weight, key.DWeight = fastnorm.Of(g.key, headsD), fastnorm.Of(g.dkey, headsD)
	return fastnorm.NormHeadsBackward{
		RopeDim: headsRope, Cos: table(g.cos), Sin: table(g.sin),
		Positions: fastnorm.Of(g.positions, headsTokens),
		Parts: []fastnorm.NormHeadsBackwardPart{query, key,
			{DY: headsOf(g.dy, headsQuery+headsKey, headsKey),
				DX: headsOf(g.dqkv, headsQuery+headsKey, headsKey)}},
	}
}

// loss is the sum of DY times what the forward makes, in double precision.
func (g *headsGradient) loss(flags fastnorm.NormHeadsFlags) float64 {
	sum := 0.0
	for token := range headsTokens {
		for head := range headsQuery + headsKey {
			weight := g.query
			if head >= headsQuery {
				weight = g.key
			}
			at := (token*headsAll + head) * headsD
			for i, o := range g.exact(g.row(token, head), weight, token, flags) {
				sum += float64(g.dy[at+i]) * o
			}
		}
	}
	return sum
}

// slope is the loss by one number, by differences of double precision.
func (g *headsGradient) slope(number *float32, flags fastnorm.NormHeadsFlags) float64 {
	const step = 0x1p-8
	before := *number
	*number = before + step
	above := g.loss(flags)
	*number = before - step
	below := g.loss(flags)
	*number = before
	return (above - below) / (2 * step)
}

func TestNormHeadsBackward(t *testing.T) {
	c := cpu(t)
	for _, flags := range []fastnorm.NormHeadsFlags{0, fastnorm.NormHeadsRopeInterleaved} {
		g := newHeadsGradient()
		if err := c.NormHeadsBackward(g.call(flags)); err != nil {
			t.Fatal(err)
		}
		near := func(what string, i int, found float32, slope float64) {
			if math.Abs(float64(found)-slope) > 2e-3*(1+math.Abs(slope)) {
				t.Errorf("%s %d is %g, differences give %g", what, i, found, slope)
			}
		}
		for token := range headsTokens {
			for i := 0; i < (headsQuery+headsKey)*headsD; i += 17 {
				at := token*headsAll*headsD + i
				near("dx", at, g.dqkv[at], g.slope(&g.qkv[at], flags))
			}
		}
		for i := 0; i < headsD; i += 7 {
			near("dweight of the query", i, g.dquery[i], g.slope(&g.query[i], flags))
			near("dweight of the key", i, g.dkey[i], g.slope(&g.key[i], flags))
		}
		value := (headsQuery + headsKey) * headsD
		for i := range headsKey * headsD {
			if g.dqkv[value+i] != g.dy[value+i] {
				t.Fatalf("the value's gradient is not copied at %d", i)
			}
		}
		once := append([]float32(nil), g.dkey...)
		if err := c.NormHeadsBackward(g.call(flags | fastnorm.NormHeadsAccumulateDWeight)); err != nil {
			t.Fatal(err)
		}
		for i, v := range once {
			if g.dkey[i] != 2*v {
				t.Fatalf("dweight %d is %g after two calls that add, not %g", i, g.dkey[i], 2*v)
			}
		}
	}
}

func TestNormHeadsBackwardQuery(t *testing.T) {
	c := cpu(t)
	g := newHeadsGradient()
	info, err := c.NormHeadsBackwardQuery(g.call(0))
	if err != nil || info.Launches != 3 || info.WorkspaceBytes == 0 || info.Kernel != "rms_f32" {
		t.Errorf("%+v, %v", info, err)
	}
	if err := c.NormHeadsBackwardPrepare(g.call(0)); err != nil {
		t.Error(err)
	}
	if g.dqkv[0] != 0 {
		t.Error("a query wrote")
	}
}

func TestNormHeadsBackwardRefuses(t *testing.T) {
	c := cpu(t)
	refused := func(text string, spoil func(*fastnorm.NormHeadsBackward)) {
		t.Helper()
		g := newHeadsGradient()
		call := g.call(0)
		spoil(&call)
		err := c.NormHeadsBackward(call)
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v; required: %q", err, text)
		}
		if g.dqkv[0] != 0 {
			t.Errorf("%q wrote", text)
		}
	}
	refused("parts[1].eps is -1", func(h *fastnorm.NormHeadsBackward) { h.Parts[1].Eps = -1 })
	refused("parts[2].x is given",
		func(h *fastnorm.NormHeadsBackward) { h.Parts[2].X = h.Parts[2].DY })
	refused("rope_dim is 30", func(h *fastnorm.NormHeadsBackward) { h.RopeDim = 30 })
	refused("count is 9", func(h *fastnorm.NormHeadsBackward) {
		h.Parts = make([]fastnorm.NormHeadsBackwardPart, 9)
	})
	refused("ACCUMULATE_DBIAS (128)", func(h *fastnorm.NormHeadsBackward) {
		h.Parts[0].Flags |= fastnorm.NormHeadsAccumulateDBias
	})
	var none *fastnorm.NormHeadsBackward
	if err := none.Run(c); err == nil || !strings.Contains(err.Error(), "is nil") {
		t.Errorf("a nil description: %v", err)
	}
}
