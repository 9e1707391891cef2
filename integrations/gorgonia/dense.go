// Package gorgonia normalises the rows of gorgonia's tensors with libfastnorm, where they lie.
//
// gorgonia has no norm of its own: its users write one of a square, a sum, a root and two products,
// each a pass over memory. [RMSNorm] and [LayerNorm] are one pass. [Of] makes any *tensor.Dense an
// argument of the other calls of the binding, such as a norm with a residual or gradients.
package gorgonia

import (
	"fmt"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
	"gorgonia.org/tensor"
)

// Of views a Dense as a tensor of the library: the same memory, shape and strides. The Dense must
// not be returned to gorgonia's pool ([tensor.ReturnTensor]) while the tensor is used.
//
// It is an error if the Dense is not of float32, is masked, is a scalar or lies in memory that Go
// does not see. What the library does not take, such as a last dimension that is not contiguous, is
// an error of the call.
func Of(d *tensor.Dense) (fastnorm.Tensor, error) {
	var none fastnorm.Tensor
	switch {
	case d == nil:
		return none, fmt.Errorf("the Dense is nil")
	case d.Dtype() != tensor.Float32:
		return none, fmt.Errorf("the Dense is of %v; required: float32", d.Dtype())
	case d.Dims() == 0:
		return none, fmt.Errorf("the Dense is a scalar; required: at least one dimension")
	case d.IsMasked():
		return none, fmt.Errorf("the Dense is masked; required: one without a mask")
	case !d.IsNativelyAccessible():
		return none, fmt.Errorf("the Dense lies in memory that Go does not see; required: Go's memory")
	}
	t := fastnorm.Of(floats(d), d.Shape()...)
	if strides := d.Strides(); len(strides) == d.Dims() {
		t = t.WithStrides(strides...)
	}
	return t, nil
}

// floats is the memory of a Dense, which for one number is no slice.
func floats(d *tensor.Dense) []float32 {
	if data, ok := d.Data().([]float32); ok {
		return data
	}
	return d.Float32s()
}

// RMSNorm normalises the rows of x by their root mean square and multiplies them by the weight,
// which is nil for 1. The result is new and row-major.
func RMSNorm(ctx *fastnorm.Context, x, weight *tensor.Dense, eps float32) (*tensor.Dense, error) {
	return run(ctx, fastnorm.Norm{Kind: fastnorm.RMS, Eps: eps}, x, weight, nil)
}

// LayerNorm normalises the rows of x by their mean and variance. It multiplies them by the weight
// and adds the bias, which are nil for 1 and 0. The result is new and row-major.
func LayerNorm(ctx *fastnorm.Context, x, weight, bias *tensor.Dense,
	eps float32) (*tensor.Dense, error) {
	return run(ctx, fastnorm.Norm{Kind: fastnorm.Layer, Eps: eps}, x, weight, bias)
}

// AddRMSNorm adds x to the residual, in place, and normalises the sum as [RMSNorm] does, in one
// pass.
func AddRMSNorm(ctx *fastnorm.Context, x, residual, weight *tensor.Dense,
	eps float32) (*tensor.Dense, error) {
	h, err := Of(residual)
	if err != nil {
		return nil, fmt.Errorf("residual: %w", err)
	}
	norm := fastnorm.Norm{Kind: fastnorm.RMS, Eps: eps, Residual: h, ResidualOut: h}
	return run(ctx, norm, x, weight, nil)
}

// run adds x, weight, bias and a new output to the norm and runs it.
func run(ctx *fastnorm.Context, norm fastnorm.Norm, x, weight, bias *tensor.Dense) (*tensor.Dense,
	error) {
	var err error
	if norm.X, err = Of(readable(x)); err != nil {
		return nil, fmt.Errorf("x: %w", err)
	}
	for _, vector := range []struct {
		name string
		from *tensor.Dense
		to   *fastnorm.Tensor
	}{{"weight", weight, &norm.Weight}, {"bias", bias, &norm.Bias}} {
		if vector.from == nil {
			continue
		}
		if *vector.to, err = Of(readable(vector.from)); err != nil {
			return nil, fmt.Errorf("%s: %w", vector.name, err)
		}
	}
	y := tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(x.Shape().Clone()...))
	if norm.Y, err = Of(y); err != nil {
		return nil, fmt.Errorf("y: %w", err)
	}
	if err = ctx.Norm(norm); err != nil {
		return nil, err
	}
	return y, nil
}

// readable is d, or a row-major copy of a view whose last dimension is not contiguous.
func readable(d *tensor.Dense) *tensor.Dense {
	if d == nil || !d.IsMaterializable() {
		return d
	}
	strides := d.Strides()
	if last := len(strides) - 1; last < 0 || strides[last] == 1 {
		return d
	}
	if copied, ok := d.Materialize().(*tensor.Dense); ok {
		return copied
	}
	return d
}
