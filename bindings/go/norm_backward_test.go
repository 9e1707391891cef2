package fastnorm_test

import (
	"math"
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

func near(t *testing.T, what string, found []float32, wanted ...float64) {
	t.Helper()
	equal(t, "length of "+what, len(found), len(wanted))
	for i := range wanted {
		if !(math.Abs(float64(found[i])-wanted[i]) < 1e-6) {
			t.Errorf("%s[%d] is %v, required: %v", what, i, found[i], wanted[i])
		}
	}
}

// gradient is that of a row 3, 4 whose mean square is 12.5: with an eps of 12.5 rstd is 0.2, and
// xhat is 0.6, 0.8.
func gradient(dx, dweight, dbias []float32) fastnorm.NormBackward {
	return fastnorm.NormBackward{Eps: 12.5, DY: fastnorm.Of([]float32{1, 0}, 1, 2),
		X: fastnorm.Of([]float32{3, 4}, 1, 2), Weight: fastnorm.Of([]float32{1, 1}, 2),
		DX: fastnorm.Of(dx, 1, 2), DWeight: fastnorm.Of(dweight, 2), DBias: fastnorm.Of(dbias, 2)}
}

func TestNormBackward(t *testing.T) {
	c := cpu(t)
	dx, dweight, dbias := make([]float32, 2), make([]float32, 2), make([]float32, 2)
	b := gradient(dx, dweight, dbias)
	check(t, c.NormBackwardPrepare(b))
	info, err := c.NormBackwardQuery(b)
	check(t, err)
	equal(t, "there is a workspace", info.WorkspaceBytes > 0, true)
	equals(t, "dx after a query", dx, 0, 0)
	check(t, c.NormBackward(b))
	near(t, "dx", dx, (1-0.6*0.3)*0.2, -0.8*0.3*0.2)
	near(t, "dweight", dweight, 0.6, 0)
	near(t, "dbias", dbias, 1, 0)
	b.Flags = fastnorm.NormBackwardAccumulateDWeight
	check(t, b.Run(c))
	near(t, "dweight, added", dweight, 1.2, 0)
	near(t, "dbias, not added", dbias, 1, 0)
}

func TestNormBackwardMany(t *testing.T) {
	c := cpu(t)
	memory := make([]float32, 12)
	list := []fastnorm.NormBackward{gradient(memory[:2], memory[2:4], memory[4:6]),
		gradient(memory[6:8], memory[8:10], memory[10:])}
	list[1].Kind = fastnorm.Layer
	check(t, c.NormBackwardManyPrepare(list))
	info, err := c.NormBackwardManyQuery(list)
	check(t, err)
	equal(t, "there is a workspace", info.WorkspaceBytes > 0, true)
	check(t, c.NormBackwardMany(list))
	near(t, "dx", memory[:2], 0.164, -0.048)
	rstd := 1 / math.Sqrt(0.25+12.5) // xhat is -0.5 * rstd, 0.5 * rstd
	c1 := -0.25 * rstd
	near(t, "dx of a layer norm", memory[6:8], (0.5+0.5*rstd*c1)*rstd, (-0.5-0.5*rstd*c1)*rstd)
	wantError(t, c.NormBackwardMany(make([]fastnorm.NormBackward, 9)), fastnorm.ErrArgument,
		"count is 9")
}

func TestNormBackwardRefused(t *testing.T) {
	c := cpu(t)
	x := fastnorm.Of([]float32{1, 2}, 1, 2)
	wantError(t, c.NormBackward(fastnorm.NormBackward{X: x, DX: x}), fastnorm.ErrArgument, "dy")
	var none *fastnorm.NormBackward
	wantError(t, none.Run(c), fastnorm.ErrArgument, "the NormBackward is nil")
}
