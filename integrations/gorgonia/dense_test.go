package gorgonia

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
	"gorgonia.org/tensor"
)

func open(t testing.TB) *fastnorm.Context {
	t.Helper()
	ctx, err := fastnorm.Open(fastnorm.CPU)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ctx.Close() })
	return ctx
}

func numbers(seed uint64, mean float64, shape ...int) *tensor.Dense {
	random := rand.New(rand.NewPCG(seed, 1))
	data := make([]float32, tensor.Shape(shape).TotalSize())
	for i := range data {
		data[i] = float32(mean + random.NormFloat64())
	}
	return tensor.New(tensor.WithShape(shape...), tensor.WithBacking(data))
}

// at is an element by its index, found by gorgonia.
func at(t testing.TB, d *tensor.Dense, index ...int) float64 {
	t.Helper()
	value, err := d.At(index...)
	if err != nil {
		t.Fatal(err)
	}
	return float64(value.(float32))
}

// rows calls f with the leading index of each row.
func rows(shape tensor.Shape, f func(index []int)) {
	index := make([]int, len(shape))
	count := shape[:len(shape)-1].TotalSize()
	for range count {
		f(index)
		for i := len(shape) - 2; i >= 0; i-- {
			if index[i]++; index[i] < shape[i] {
				break
			}
			index[i] = 0
		}
	}
}

// check compares y with the norm of x in double precision.
func check(t testing.TB, x, weight, bias, y *tensor.Dense, removeMean bool, eps float64) {
	t.Helper()
	if !y.Shape().Eq(x.Shape()) {
		t.Fatalf("shape %v; required: %v", y.Shape(), x.Shape())
	}
	shape := x.Shape()
	n := shape[len(shape)-1]
	rows(shape, func(index []int) {
		element := func(d *tensor.Dense, i int) float64 {
			return at(t, d, append(index[:len(index)-1:len(index)-1], i)...)
		}
		mean, square := 0.0, 0.0
		for i := range n {
			mean += element(x, i) / float64(n)
		}
		if !removeMean {
			mean = 0
		}
		for i := range n {
			square += math.Pow(element(x, i)-mean, 2) / float64(n)
		}
		for i := range n {
			wanted := (element(x, i) - mean) / math.Sqrt(square+eps)
			if weight != nil {
				wanted *= at(t, weight, i)
			}
			if bias != nil {
				wanted += at(t, bias, i)
			}
			if found := element(y, i); math.Abs(found-wanted) > 2e-6*(1+math.Abs(wanted)) {
				t.Fatalf("row %v, column %d: %v; required: %v", index, i, found, wanted)
			}
		}
	})
}

func TestRMSNorm(t *testing.T) {
	ctx := open(t)
	for _, shape := range [][]int{{7}, {1, 64}, {5, 33}, {2, 3, 128}, {2, 1, 3, 2, 16}} {
		x, weight := numbers(1, 0.2, shape...), numbers(2, 1, shape[len(shape)-1])
		y, err := RMSNorm(ctx, x, weight, 1e-6)
		if err != nil {
			t.Fatal(shape, err)
		}
		check(t, x, weight, nil, y, false, 1e-6)
		if y, err = RMSNorm(ctx, x, nil, 1e-6); err != nil {
			t.Fatal(shape, err)
		}
		check(t, x, nil, nil, y, false, 1e-6)
	}
}

func TestLayerNorm(t *testing.T) {
	ctx := open(t)
	x, weight, bias := numbers(1, 3, 9, 100), numbers(2, 1, 100), numbers(3, 0, 100)
	y, err := LayerNorm(ctx, x, weight, bias, 1e-5)
	if err != nil {
		t.Fatal(err)
	}
	check(t, x, weight, bias, y, true, 1e-5)
}

func slice(t testing.TB, d *tensor.Dense, slices ...tensor.Slice) *tensor.Dense {
	t.Helper()
	view, err := d.Slice(slices...)
	if err != nil {
		t.Fatal(err)
	}
	return view.(*tensor.Dense)
}

// Views are read where they lie; one whose columns are not neighbours is copied.
func TestViews(t *testing.T) {
	ctx := open(t)
	buffer := numbers(1, 0.5, 6, 8, 40)
	weight := numbers(2, 1, 200)
	transposed := buffer.Clone().(*tensor.Dense)
	if err := transposed.T(1, 0, 2); err != nil {
		t.Fatal(err)
	}
	across := buffer.Clone().(*tensor.Dense)
	if err := across.T(0, 2, 1); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]*tensor.Dense{
		"some columns":        slice(t, buffer, nil, nil, tensor.S(10, 30)),
		"some rows":           slice(t, buffer, tensor.S(1, 5), tensor.S(2, 7)),
		"one matrix":          slice(t, buffer, tensor.S(3)),
		"one row":             slice(t, buffer, tensor.S(3), tensor.S(2)),
		"rows swapped":        transposed,
		"columns and rows":    across,
		"every second column": slice(t, buffer, nil, nil, tensor.S(0, 40, 2)),
	} {
		t.Run(name, func(t *testing.T) {
			n := x.Shape()[x.Dims()-1]
			w := slice(t, weight, tensor.S(50, 50+n))
			y, err := RMSNorm(ctx, x, w, 1e-6)
			if err != nil {
				t.Fatal(err)
			}
			check(t, x, w, nil, y, false, 1e-6)
		})
	}
}

func TestAddRMSNorm(t *testing.T) {
	ctx := open(t)
	x, residual, weight := numbers(1, 0, 4, 64), numbers(2, 0, 4, 64), numbers(3, 1, 64)
	sum, err := x.Add(residual)
	if err != nil {
		t.Fatal(err)
	}
	y, err := AddRMSNorm(ctx, x, residual, weight, 1e-6)
	if err != nil {
		t.Fatal(err)
	}
	if !residual.Eq(sum) {
		t.Error("the residual is not the sum")
	}
	check(t, residual, weight, nil, y, false, 1e-6)
}

// The library's norm of a Dense by the binding itself, with gradients.
func TestGradients(t *testing.T) {
	ctx := open(t)
	x, weight, dy := numbers(1, 0, 5, 48), numbers(2, 1, 48), numbers(3, 0, 5, 48)
	dx := tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(5, 48))
	of := func(d *tensor.Dense) fastnorm.Tensor {
		view, err := Of(d)
		if err != nil {
			t.Fatal(err)
		}
		return view
	}
	err := ctx.NormBackward(fastnorm.NormBackward{Kind: fastnorm.RMS, Eps: 1e-6, X: of(x),
		DY: of(dy), Weight: of(weight), DX: of(dx)})
	if err != nil {
		t.Fatal(err)
	}
	// Along any direction the change of sum(y * dy) is that of dx.
	direction := numbers(4, 0, 5, 48)
	value := func(step float32) float64 {
		moved, _ := direction.MulScalar(step, true)
		moved, _ = moved.Add(x)
		y, err := RMSNorm(ctx, moved, weight, 1e-6)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		rows(y.Shape(), func(index []int) {
			for i := range 48 {
				sum += at(t, y, index[0], i) * at(t, dy, index[0], i)
			}
		})
		return sum
	}
	found, wanted := 0.0, (value(1e-2)-value(-1e-2))/2e-2
	for row := range 5 {
		for i := range 48 {
			found += at(t, dx, row, i) * at(t, direction, row, i)
		}
	}
	if math.Abs(found-wanted) > 1e-2*math.Abs(wanted) {
		t.Errorf("%v; required: %v", found, wanted)
	}
}

func TestRefusals(t *testing.T) {
	ctx := open(t)
	x, weight := numbers(1, 0, 4, 8), numbers(2, 1, 8)
	doubles := tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(4, 8))
	masked := numbers(1, 0, 4, 8)
	masked.MaskedLess(float32(0))
	for want, f := range map[string]func() error{
		"x: the Dense is of float64; required: float32": func() error {
			_, err := RMSNorm(ctx, doubles, weight, 0)
			return err
		},
		"weight: the Dense is of float64; required: float32": func() error {
			_, err := RMSNorm(ctx, x, doubles, 0)
			return err
		},
		"x: the Dense is masked; required: one without a mask": func() error {
			_, err := RMSNorm(ctx, masked, weight, 0)
			return err
		},
		"residual: the Dense is nil": func() error {
			_, err := AddRMSNorm(ctx, x, nil, weight, 0)
			return err
		},
	} {
		if err := f(); err == nil || err.Error() != want {
			t.Errorf("%v; required: %s", err, want)
		}
	}
	if _, err := RMSNorm(ctx, x, numbers(2, 1, 7), 0); !errors.Is(err, fastnorm.ErrShape) {
		t.Errorf("%v; required: an error of shape", err)
	}
	// Columns that are not neighbours, in a Dense that is no view: the library says it.
	columns := tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(4, 8), tensor.AsFortran(nil))
	_, err := RMSNorm(ctx, columns, weight, 0)
	if !errors.Is(err, fastnorm.ErrLayout) || !strings.Contains(err.Error(), "x.strides[1]") {
		t.Errorf("%v; required: an error of layout", err)
	}
	if _, err := Of(tensor.New(tensor.FromScalar(float32(1)))); err == nil {
		t.Error("a scalar is taken")
	}
}

func TestGoroutines(t *testing.T) {
	ctx := open(t)
	x, weight := numbers(1, 0, 32, 256), numbers(2, 1, 256)
	wanted, err := RMSNorm(ctx, x, weight, 1e-6)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 8 {
		group.Add(1)
		go func() {
			defer group.Done()
			for range 50 {
				y, err := RMSNorm(ctx, x, weight, 1e-6)
				if err != nil || !y.Eq(wanted) {
					t.Error("another result", err)
					return
				}
			}
		}()
	}
	group.Wait()
}
