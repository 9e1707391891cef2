package fastnorm

// Run computes the gradients of all parts. On the CPU they are there when Run returns, and
// positions are checked before anything is written. No tokens are success: DWeight and DBias become
// 0, or stay with their flags.
//
// There are up to 8 parts over the same tokens, such as the query, the key and the value heads.
// Each row of d columns of a part's DY goes through these steps:
//
//	dv = rope of DY, rotated back          (NormHeadsRope; else dv = DY)
//	DX = the gradient of the Norm, of dv   (NormHeadsNorm; else DX = dv)
//
// and for each column, over all rows that share an element of Weight or the forward's Bias:
//
//	DWeight = sum(dv * xhat)               (+ the old DWeight)
//	DBias   = sum(dv)                      (+ the old DBias)
//
// The norm's formulas are those of [NormBackward.Run]. dv is F32 and not rounded.
func (h *NormHeadsBackward) Run(c *Context, options ...CallOption) error {
	if h == nil {
		return &Error{Status: StatusArgument,
			Message: "the NormHeadsBackward is nil; required: a description"}
	}
	q := h.call()
	q.apply(options)
	err := q.run(c, callNormHeadsBackward)
	q.free()
	return err
}

// NormHeadsBackward is [NormHeadsBackward.Run].
func (c *Context) NormHeadsBackward(h NormHeadsBackward, options ...CallOption) error {
	return h.Run(c, options...)
}

// NormHeadsBackwardQuery says what a NormHeadsBackward would do: workspace, kernel, launches,
// bytes. Memory is not touched, but addresses count.
func (c *Context) NormHeadsBackwardQuery(h NormHeadsBackward) (Info, error) {
	q := h.call()
	defer q.free()
	return q.query(c, callNormHeadsBackward)
}

// NormHeadsBackwardPrepare is [Context.NormPrepare] for a NormHeadsBackward.
func (c *Context) NormHeadsBackwardPrepare(h NormHeadsBackward) error {
	q := h.call()
	defer q.free()
	return q.prepare(c, callNormHeadsBackward)
}
