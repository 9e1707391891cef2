package fastnorm_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

// With testdata/faults.c before the library: statuses that a sound one does not give, and an old
// version.
func TestFaults(t *testing.T) {
	if os.Getenv("FAULTS") == "" {
		t.Skip("needs testdata/faults.c before the library; test.py does that")
	}
	c, err := fastnorm.Open(fastnorm.CPU)
	check(t, err)
	x := fastnorm.Of([]float32{1}, 1)
	for _, status := range []fastnorm.Status{10, 20, 30, 40, 50, 60, 61, 70, 80, 89} {
		t.Setenv("FAULTS_STATUS", fmt.Sprint(int32(status)))
		err := c.Norm(fastnorm.Norm{X: x, Y: x})
		var e *fastnorm.Error
		if !errors.As(err, &e) {
			t.Fatalf("status %d: %v", status, err)
		}
		equal(t, "error", *e,
			fastnorm.Error{Status: status, Message: "the text of a fault", DeviceError: 702})
		equal(t, "its kind", errors.Is(err, kinds[status/10*10]), true)
	}
	t.Setenv("FAULTS_STATUS", "0")
	check(t, c.Norm(fastnorm.Norm{X: x, Y: x}))
	t.Setenv("FAULTS_VERSION", "99")
	c, err = fastnorm.Open(fastnorm.CPU)
	wantError(t, err, fastnorm.ErrUnsupported, "libfastnorm 0.0.99 is loaded; required: 0.")
	equal(t, "a context", c == nil, true)
}
