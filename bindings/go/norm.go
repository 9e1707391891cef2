package fastnorm

import "github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"

// Run runs the normalisation on a context. On the CPU it is done when Run returns; on a GPU one
// kernel is queued on the stream. No rows are success: nothing is written. A Norm may be run again
// and again, also by several goroutines if their outputs differ.
//
// A row is the last dimension of X, n elements long. For each row:
//
//	s            = X + Residual                                 (X where there is no Residual)
//	ResidualOut  = s, rounded to its dtype
//	Mean         = sum(s) / n                                   (Layer only)
//	Rstd         = 1 / sqrt(sum((s - Mean)^2) / n + Eps)        (RMS: Mean is not subtracted)
//	t            = (s - Mean) * Rstd                            (RMS: s * Rstd)
//	Y            = t * (Weight + WeightOffset) + Bias, rounded to the dtype of Y
//
// Stages are optional, and go with all else:
//
//	u = X * act(Gate)            (GateBeforeNorm; else u = X)
//	u = norm(u)                  (Branch: its own kind, Eps, Weight and Bias)
//	u = u rounded to T           (Branch.Rounded)
//	k = act(ResidualGate + ResidualGateTable) * Alpha
//	s = u * k + Residual         (one fused operation; without k u + Residual)
//	s = s * SumScale             (s is the row that is normalised)
//	z = z * (1 + ModulationScale + ScaleTable) + ModulationShift + ShiftTable
//	z = z * act(Gate)            (GateAfterNorm; z is Y before its rounding)
//	z = Activation(z)
//
// With GroupSize d the columns are n / d groups that have statistics of their own: as X viewed
// [..., n / d, d]. For d < n, Mean, Rstd, RstdIn, MeanIn and Sumsq have the shape of X without its
// last extent, and n / d behind that.
//
// Where a row is spread over devices, Sumsq gives each device's part. RstdIn (Layer: and MeanIn)
// takes the statistic of all. RMS: add up the sums S; rstd = 1 / sqrt(S / N + Eps) for N columns in
// all. Layer: merge means and sums by Chan's formula, of docs/gated_norm.md.
//
// All arithmetic is single precision; ResidualRounding and Rounding say where else a value is
// rounded. A row's bits depend on its values, Weight, Bias, n, dtypes and options only.
func (n *Norm) Run(c *Context, options ...CallOption) error {
	if n == nil {
		return &Error{Status: StatusArgument, Message: "the Norm is nil; required: a description"}
	}
	q := n.call()
	q.apply(options)
	err := q.run(c, callNorm)
	q.free()
	return err
}

// Norm is [Norm.Run].
func (c *Context) Norm(n Norm, options ...CallOption) error { return n.Run(c, options...) }

// NormQuery says what a Norm would do: workspace, kernel, launches, bytes. Memory is not touched,
// but addresses count.
func (c *Context) NormQuery(n Norm) (Info, error) {
	q := n.call()
	defer q.free()
	return q.query(c, callNorm)
}

// NormPrepare loads what a Norm needs. After it, calls that use the same kernel neither allocate
// nor synchronise on a GPU and can be captured in a CUDA graph. Optional: the first call does the
// same.
func (c *Context) NormPrepare(n Norm) error {
	q := n.call()
	defer q.free()
	return q.prepare(c, callNorm)
}

// NormMany runs up to 8 normalisations, with the results of one Norm each, in order: such as the
// query heads and the key heads of one fused QKV tensor. All are checked, against each other too,
// before anything runs. None may read what another one writes. On a GPU two neighbours that share a
// kernel of short rows are one launch.
func (c *Context) NormMany(list []Norm, options ...CallOption) error {
	q := encodeList(list, raw.NormMaxWords, (*Norm).encode)
	q.apply(options)
	err := q.run(c, callNormMany)
	q.free()
	return err
}

// NormManyQuery is [Context.NormQuery] for a list: the sum of its parts; Kernel is that of the
// first with rows.
func (c *Context) NormManyQuery(list []Norm) (Info, error) {
	q := encodeList(list, raw.NormMaxWords, (*Norm).encode)
	defer q.free()
	return q.query(c, callNormMany)
}

// NormManyPrepare is [Context.NormPrepare] for a list.
func (c *Context) NormManyPrepare(list []Norm) error {
	q := encodeList(list, raw.NormMaxWords, (*Norm).encode)
	defer q.free()
	return q.prepare(c, callNormMany)
}
