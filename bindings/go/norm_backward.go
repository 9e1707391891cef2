package fastnorm

import "github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"

// Run computes the gradients on a context. On the CPU they are there when Run returns. On a GPU Run
// queues kernels on the stream, and a call with DWeight or DBias needs a [Workspace]. A call with
// no rows succeeds. It sets DWeight and DBias to 0, or keeps them if their flags are set.
//
// For each row of n elements, with g = Weight + WeightOffset (1 without Weight):
//
//	xhat      = (X - Mean) * Rstd                    (RMS: X * Rstd)
//	e         = DY * g
//	c1        = sum(e * xhat) / n
//	c2        = sum(e) / n                           (Layer only)
//	DX        = (e - c2 - xhat * c1) * Rstd + DResidualIn
//	DResidual = the same, rounded to its own dtype
//
// and for each column, over all rows that share an element of Weight or Bias:
//
//	DWeight = sum(DY * xhat)                         (+ the old DWeight)
//	DBias   = sum(DY)                                (+ the old DBias)
//
// DX is the gradient of X and of Residual of the Norm alike. All arithmetic is single precision.
// DWeight and DBias have the same bits for any number of threads. They have the same bits on CPU
// and GPU if DY, X, Mean and Rstd have.
//
// With a Gate after the norm, v = DY * act(Gate) takes the place of DY above. Its gradient is
// DGate = DY * z * act'(Gate), where z = xhat * g + Bias.
//
// With a Gate before the norm, X * act(Gate) takes the place of X. Call the result of the formula
// dh. Then DX = dh * act(Gate), and DGate = dh * X * act'(Gate).
//
// With GroupSize d, the call is that of X viewed as [.., n / d, d].
//
// Where the Norm added its X, the branch, to a residual, X here is the stored ResidualOut. With
// k = act(ResidualGate) * Alpha, u what the Norm added, and r = SumScale times the DX above:
//
//	DX            = r, the gradient of the residual
//	du            = r * k
//	DBranch       = du, or the gradient of the branch's norm for du in place of DY
//	DBranchWeight = sum(du * the normalised branch)
//	DBranchBias   = sum(du)
//	DResidualGate = act'(ResidualGate) * Alpha * sum(r * u)
func (b *NormBackward) Run(c *Context, options ...CallOption) error {
	if b == nil {
		return &Error{Status: StatusArgument, Message: "the NormBackward is nil; required: a description"}
	}
	q := b.call()
	q.apply(options)
	err := q.run(c, callNormBackward)
	q.free()
	return err
}

// NormBackward is [NormBackward.Run].
func (c *Context) NormBackward(b NormBackward, options ...CallOption) error {
	return b.Run(c, options...)
}

// NormBackwardQuery says what a NormBackward would do: workspace, kernel, launches, bytes. It reads
// the tensors' addresses, not their memory.
func (c *Context) NormBackwardQuery(b NormBackward) (Info, error) {
	q := b.call()
	defer q.free()
	return q.query(c, callNormBackward)
}

// NormBackwardPrepare is [Context.NormPrepare] for a NormBackward.
func (c *Context) NormBackwardPrepare(b NormBackward) error {
	q := b.call()
	defer q.free()
	return q.prepare(c, callNormBackward)
}

// NormBackwardMany computes up to 8 NormBackwards, such as those of the query heads and the key
// heads of one fused QKV gradient. The results are those of one call each, in order. All parts are
// checked, against each other too, before anything runs. No part may touch what another one writes.
func (c *Context) NormBackwardMany(list []NormBackward, options ...CallOption) error {
	q := encodeList(list, raw.NormBackwardMaxWords, (*NormBackward).encode)
	q.apply(options)
	err := q.run(c, callNormBackwardMany)
	q.free()
	return err
}

// NormBackwardManyQuery is [Context.NormBackwardQuery] for a list: the sum of its parts.
func (c *Context) NormBackwardManyQuery(list []NormBackward) (Info, error) {
	q := encodeList(list, raw.NormBackwardMaxWords, (*NormBackward).encode)
	defer q.free()
	return q.query(c, callNormBackwardMany)
}

// NormBackwardManyPrepare is [Context.NormBackwardPrepare] for a list.
func (c *Context) NormBackwardManyPrepare(list []NormBackward) error {
	q := encodeList(list, raw.NormBackwardMaxWords, (*NormBackward).encode)
	defer q.free()
	return q.prepare(c, callNormBackwardMany)
}
