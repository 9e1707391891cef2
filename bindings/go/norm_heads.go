package fastnorm

// Run normalises, rotates and stores the heads of all parts. On the CPU the work is done when Run
// returns, and positions and slots are checked before anything is written; on a GPU they must be
// valid. No parts or no tokens are success: nothing is written. A NormHeads may be run again and
// again, also by several goroutines if their outputs differ.
//
// The steps stand between the QKV projection and attention: the norm of query and key heads, the
// rotary embedding (rope) and the write to a paged cache. There are up to 8 parts over the same
// tokens, such as the query, the key and the value heads of one fused QKV tensor. Each row of d
// columns of a part's X goes through these steps, each of which but the first is optional:
//
//	v         = X
//	v         = the Norm of v                  (NormHeadsNorm)
//	v         = v, rounded to T                (NormHeadsRopeFromRounded)
//	o         = rope(v)                        (NormHeadsRope; else o = v)
//	Y         = o, rounded to T
//	Quant.Out = codes of o, with Quant.Scale
//	Cache     = o, rounded to T, or codes of o by CacheQuant
//
// With R = RopeDim / 2, rope rotates pair j of columns by c = Cos[row, j] and s = Sin[row, j]:
//
//	o1 = v1 * c - v2 * s
//	o2 = v2 * c + v1 * s
//
// The pair is columns j and R + j, or 2j and 2j + 1 with NormHeadsRopeInterleaved, counted from
// RopeOffset. Other columns pass unchanged. The row is Positions[t] for token t, or t itself
// without Positions.
//
// Token t goes to slot k = Slots[t] of the caches: row k % page of page k / page. A token whose
// slot is -1, or that is behind the last slot, is padding: its positions are not looked at, and
// none of its outputs is written, in any part.
func (h *NormHeads) Run(c *Context, options ...CallOption) error {
	if h == nil {
		return &Error{Status: StatusArgument, Message: "the NormHeads is nil; required: a description"}
	}
	q := h.call()
	q.apply(options)
	err := q.run(c, callNormHeads)
	q.free()
	return err
}

// NormHeads is [NormHeads.Run].
func (c *Context) NormHeads(h NormHeads, options ...CallOption) error {
	return h.Run(c, options...)
}

// NormHeadsQuery says what a NormHeads would do: workspace, kernel, launches, bytes. Memory is not
// touched, but addresses count.
func (c *Context) NormHeadsQuery(h NormHeads) (Info, error) {
	q := h.call()
	defer q.free()
	return q.query(c, callNormHeads)
}

// NormHeadsPrepare is [Context.NormPrepare] for a NormHeads.
func (c *Context) NormHeadsPrepare(h NormHeads) error {
	q := h.call()
	defer q.free()
	return q.prepare(c, callNormHeads)
}
