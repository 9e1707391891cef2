package fastnorm_test

import (
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

// headsGradient is one of two parts over a token: a head of a norm, whose row is 3, 4 with an rstd
// of 0.2, and one that rope rotated by a right angle.
func headsGradient(dx, dweight []float32) fastnorm.NormHeadsBackward {
	norm := fastnorm.NormHeadsBackwardPart{Flags: fastnorm.NormHeadsNorm, Eps: 12.5,
		DY: fastnorm.Of([]float32{1, 0}, 1, 1, 2), X: fastnorm.Of([]float32{3, 4}, 1, 1, 2),
		Weight: fastnorm.Of([]float32{1, 1}, 2), DX: fastnorm.Of(dx, 1, 1, 2),
		DWeight: fastnorm.Of(dweight, 2)}
	return fastnorm.NormHeadsBackward{RopeDim: 2, Cos: fastnorm.Of([]float32{0}, 1, 1),
		Sin: fastnorm.Of([]float32{1}, 1, 1), Parts: []fastnorm.NormHeadsBackwardPart{norm,
			{Flags: fastnorm.NormHeadsRope, DY: fastnorm.Of([]float32{5, 7}, 1, 1, 2),
				DX: fastnorm.Of(dx[2:], 1, 1, 2)}}}
}

func TestNormHeadsBackward(t *testing.T) {
	c := cpu(t)
	dx, dweight := make([]float32, 4), make([]float32, 2)
	call := headsGradient(dx, dweight)
	info, err := c.NormHeadsBackwardQuery(call)
	check(t, err)
	equal(t, "there is a workspace", info.WorkspaceBytes > 0, true)
	check(t, c.NormHeadsBackwardPrepare(call))
	equals(t, "dx after a query", dx, 0, 0, 0, 0)
	check(t, c.NormHeadsBackward(call))
	near(t, "dx", dx, (1-0.6*0.3)*0.2, -0.8*0.3*0.2, 7, -5)
	near(t, "dweight", dweight, 0.6, 0)
	call.Parts[0].Flags |= fastnorm.NormHeadsAccumulateDWeight
	check(t, call.Run(c))
	near(t, "dweight, added", dweight, 1.2, 0)
}

func TestNormHeadsBackwardRefused(t *testing.T) {
	c := cpu(t)
	for text, change := range map[string]func(h *fastnorm.NormHeadsBackward){
		"parts[1].x is given": func(h *fastnorm.NormHeadsBackward) { h.Parts[1].X = h.Parts[0].X },
		"mrope_0 is 2":        func(h *fastnorm.NormHeadsBackward) { h.Mrope[0] = 2 },
		"ACCUMULATE_DBIAS (128)": func(h *fastnorm.NormHeadsBackward) {
			h.Parts[0].Flags |= fastnorm.NormHeadsAccumulateDBias
		},
		"count is 9": func(h *fastnorm.NormHeadsBackward) {
			h.Parts = make([]fastnorm.NormHeadsBackwardPart, 9)
		},
	} {
		dx := make([]float32, 4)
		call := headsGradient(dx, make([]float32, 2))
		change(&call)
		wantError(t, c.NormHeadsBackward(call), nil, text)
		equals(t, "dx", dx, 0, 0, 0, 0)
	}
	var none *fastnorm.NormHeadsBackward
	wantError(t, none.Run(c), fastnorm.ErrArgument, "the NormHeadsBackward is nil")
}
