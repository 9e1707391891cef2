package fastnorm

import (
	"math"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

// Flags of a [NormHeadsBackwardPart], beside those of the forward.
const (
	// NormHeadsAccumulateDWeight adds to what DWeight holds: after the sum, in F32.
	NormHeadsAccumulateDWeight NormHeadsFlags = raw.FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT
	// NormHeadsAccumulateDBias is the same for DBias.
	NormHeadsAccumulateDBias NormHeadsFlags = raw.FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS
)

// NormHeadsBackward describes the gradients of a [NormHeads]. It has up to 8 parts over the same
// tokens, such as the query, the key and the value heads. Each row of d columns of a part's DY goes
// through these steps:
//
//	dv = rope of DY, turned back           (NormHeadsRope; else dv = DY)
//	DX = the gradient of the Norm, of dv   (NormHeadsNorm; else DX = dv)
//
// and for each column, over all rows that share an element of Weight or the forward's Bias:
//
//	DWeight = sum(dv * xhat)               (+ the old DWeight)
//	DBias   = sum(dv)                      (+ the old DBias)
//
// The norm's formulas are those of [NormBackward]. dv is F32 and not rounded. The fields of rope
// are the forward's. The zero value of every field is its default.
type NormHeadsBackward struct {
	Parts []NormHeadsBackwardPart // at most 8

	RopeDim          int    // as in NormHeads
	Mrope            [4]int // as in NormHeads
	MropeInterleaved bool   // as in NormHeads

	Cos       Tensor // as in NormHeads
	Sin       Tensor // as in NormHeads
	Positions Tensor // as in NormHeads
}

// NormHeadsBackwardPart is one part of a [NormHeadsBackward]. T is the dtype of X, or of DX without
// NormHeadsNorm, and alike for all parts. It has at least one output. DX may be DY or X, as the
// same view; no other output shares an element with a tensor of the call.
type NormHeadsBackwardPart struct {
	Flags        NormHeadsFlags // the forward's, and those that accumulate; default: a copy
	Kind         NormKind       // the forward's
	Eps          float32        // the forward's; used where Rstd is not given
	WeightOffset float32        // the forward's
	Rounding     Rounding       // the forward's
	RopeOffset   int            // the forward's

	DY     Tensor // [tokens, heads, d], d up to 8192; T or F32: the gradient of Y. Required
	X      Tensor // shape of DY; T: the forward's. Required with NormHeadsNorm, else not given
	Weight Tensor // the forward's. Not given: 1
	Mean   Tensor // the forward's, F32; Layer only. Not given where Rstd is not
	Rstd   Tensor // the forward's, F32. Not given: computed again from X

	DX      Tensor // output, shape of DY; T. May be DY or X
	DWeight Tensor // output, shape of Weight; F32 or its dtype
	DBias   Tensor // output, [d] or [heads, d] as the forward's Bias; F32, F16 or BF16
}

var normHeadsBackwardTensors = []string{
	raw.NormHeadsBackwardBitCos:       "cos",
	raw.NormHeadsBackwardBitSin:       "sin",
	raw.NormHeadsBackwardBitPositions: "positions",
	raw.NormHeadsBackwardBitSlots:     "slots",
}

var normHeadsBackwardPartTensors = []string{
	raw.NormHeadsBackwardPartBitDy:      "dy",
	raw.NormHeadsBackwardPartBitX:       "x",
	raw.NormHeadsBackwardPartBitWeight:  "weight",
	raw.NormHeadsBackwardPartBitMean:    "mean",
	raw.NormHeadsBackwardPartBitRstd:    "rstd",
	raw.NormHeadsBackwardPartBitDx:      "dx",
	raw.NormHeadsBackwardPartBitDweight: "dweight",
	raw.NormHeadsBackwardPartBitDbias:   "dbias",
}

// call encodes the call: what the parts share, then the parts. Of a list that is too long the
// library refuses the number.
func (h *NormHeadsBackward) call() *call {
	parts := h.Parts
	if len(parts) > raw.MaxParts {
		parts = nil
	}
	q := newCall(len(parts), raw.NormHeadsBackwardPartMaxWords)
	q.reserve(raw.NormHeadsBackwardMaxWords + len(parts)*raw.NormHeadsBackwardPartMaxWords)
	q.count = clip(len(h.Parts))
	w := q.begin(raw.NormHeadsBackwardMask)
	if h.MropeInterleaved {
		w[raw.NormHeadsBackwardFlags] = raw.FASTNORM_NORM_HEADS_MROPE_INTERLEAVED
	}
	w[raw.NormHeadsBackwardRopeDim] = uint64(clip(h.RopeDim))
	for axis, pairs := range h.Mrope {
		w[raw.NormHeadsBackwardMrope0+axis] = uint64(clip(pairs))
	}
	q.tensor(shared, raw.NormHeadsBackwardBitCos, &h.Cos)
	q.tensor(shared, raw.NormHeadsBackwardBitSin, &h.Sin)
	q.tensor(shared, raw.NormHeadsBackwardBitPositions, &h.Positions)
	for i := range parts {
		parts[i].encode(q, i)
	}
	return q
}

func (p *NormHeadsBackwardPart) encode(q *call, part int) {
	w := q.begin(raw.NormHeadsBackwardPartMask)
	w[raw.NormHeadsBackwardPartFlags] = uint64(p.Flags)
	w[raw.NormHeadsBackwardPartKind] = uint64(p.Kind)
	w[raw.NormHeadsBackwardPartEps] = uint64(math.Float32bits(p.Eps))
	w[raw.NormHeadsBackwardPartWeightOffset] = uint64(math.Float32bits(p.WeightOffset))
	w[raw.NormHeadsBackwardPartRounding] = uint64(p.Rounding)
	w[raw.NormHeadsBackwardPartRopeOffset] = uint64(clip(p.RopeOffset))
	q.tensor(part, raw.NormHeadsBackwardPartBitDy, &p.DY)
	q.tensor(part, raw.NormHeadsBackwardPartBitX, &p.X)
	q.tensor(part, raw.NormHeadsBackwardPartBitWeight, &p.Weight)
	q.tensor(part, raw.NormHeadsBackwardPartBitMean, &p.Mean)
	q.tensor(part, raw.NormHeadsBackwardPartBitRstd, &p.Rstd)
	q.tensor(part, raw.NormHeadsBackwardPartBitDx, &p.DX)
	q.tensor(part, raw.NormHeadsBackwardPartBitDweight, &p.DWeight)
	q.tensor(part, raw.NormHeadsBackwardPartBitDbias, &p.DBias)
}

var normHeadsBackward = &family{
	tensors: normHeadsBackwardPartTensors,
	list:    "parts",
	shared:  normHeadsBackwardTensors,
	run: func(context uintptr, q *call) int32 {
		return raw.Fnb_norm_heads_backward(context, q.list(), uintptr(q.used), q.count, q.workspace,
			q.workspaceBytes, q.stream)
	},
	prepare: func(context uintptr, q *call) int32 {
		return raw.Fnb_norm_heads_backward_prepare(context, q.list(), uintptr(q.used), q.count)
	},
	query: func(context uintptr, q *call, info raw.Fastnorm_info) int32 {
		return raw.Fnb_norm_heads_backward_query(context, q.list(), uintptr(q.used), q.count, info)
	},
}

// Run computes the gradients of all parts. On the CPU they are there when Run returns, and
// positions are checked before anything is written. No tokens are success: DWeight and DBias become
// 0, or stay with their flags.
func (h *NormHeadsBackward) Run(c *Context, options ...CallOption) error {
	if h == nil {
		return &Error{Status: StatusArgument,
			Message: "the NormHeadsBackward is nil; required: a description"}
	}
	q := h.call()
	q.apply(options)
	err := q.run(c, normHeadsBackward)
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
	return q.query(c, normHeadsBackward)
}

// NormHeadsBackwardPrepare is [Context.NormPrepare] for a NormHeadsBackward.
func (c *Context) NormHeadsBackwardPrepare(h NormHeadsBackward) error {
	q := h.call()
	defer q.free()
	return q.prepare(c, normHeadsBackward)
}
