package fastnorm

import (
	"math"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

// NormHeadsFlags are bits of a [NormHeadsPart].
type NormHeadsFlags uint32

// The flags. Those of rope need NormHeadsRope, and NormHeadsAcrossHeads needs NormHeadsNorm.
const (
	// NormHeadsNorm normalises.
	NormHeadsNorm NormHeadsFlags = raw.FASTNORM_NORM_HEADS_NORM
	// NormHeadsRope turns RopeDim columns.
	NormHeadsRope NormHeadsFlags = raw.FASTNORM_NORM_HEADS_ROPE
	// NormHeadsRopeInterleaved: pairs are neighbours (GPT-J). Default: they are half a window apart
	// (NeoX, Llama).
	NormHeadsRopeInterleaved NormHeadsFlags = raw.FASTNORM_NORM_HEADS_ROPE_INTERLEAVED
	// NormHeadsRopeInverse turns back.
	NormHeadsRopeInverse NormHeadsFlags = raw.FASTNORM_NORM_HEADS_ROPE_INVERSE
	// NormHeadsRopeFromRounded turns the norm rounded to the dtype of X.
	NormHeadsRopeFromRounded NormHeadsFlags = raw.FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED
	// NormHeadsAcrossHeads takes one statistic for all heads of a token.
	NormHeadsAcrossHeads NormHeadsFlags = raw.FASTNORM_NORM_HEADS_ACROSS_HEADS
)

// RopeRounding says where rope rounds to the dtype of X on its way.
type RopeRounding int32

// The roundings of rope.
const (
	RopeOnce      RopeRounding = raw.FASTNORM_ROPE_ONCE       // only when the result is stored: vLLM
	RopeEveryStep RopeRounding = raw.FASTNORM_ROPE_EVERY_STEP // every product, too: as 16-bit eager
)

// NormHeads describes what stands between the QKV projection and attention: the norm of query and
// key heads, the rotary embedding (rope) and the write to a paged cache. It has up to 8 parts over
// the same tokens, such as the query, the key and the value heads of one fused QKV tensor. Each row
// of d columns of a part's X goes through these steps, each of which but the first is optional:
//
//	v         = X
//	v         = the Norm of v                  (NormHeadsNorm)
//	v         = v, rounded to T                (NormHeadsRopeFromRounded)
//	o         = rope(v)                        (NormHeadsRope; else o = v)
//	Y         = o, rounded to T
//	Quantized = codes of o, with Scale
//	Cache     = o, rounded to T, or codes of o
//
// With R = RopeDim / 2, rope turns pair j of columns by c = Cos[row, j] and s = Sin[row, j]:
//
//	o1 = v1 * c - v2 * s
//	o2 = v2 * c + v1 * s
//
// The pair is columns j and R + j, or 2j and 2j + 1 with NormHeadsRopeInterleaved, counted from
// RopeOffset. Other columns pass unchanged. The row is Positions[t] for token t, or t itself
// without Positions.
//
// Token t goes to slot k = Slots[t] of the caches: row k % page of page k / page. A slot of -1 is
// not written, nor are tokens behind the last slot.
//
// T is the dtype of X, F32, F16 or BF16, and alike for all parts. Last dimensions are contiguous,
// other strides are free. The zero value of every field is its default.
type NormHeads struct {
	Parts []NormHeadsPart // at most 8

	RopeDim          int    // columns that rope turns, even; 0 where no part has rope
	Mrope            [4]int // pairs of each axis of Positions, of sum R; 0 with one axis
	MropeInterleaved bool   // axes alternate from pair to pair (Qwen3-VL); needs 3 axes

	Cos       Tensor // [P, R] or [P, 2 * R], or one such for each head; F32 or T. Required with rope
	Sin       Tensor // as Cos
	Positions Tensor // [tokens] or [axes, tokens], I32 or I64. Not given: the token's number
	Slots     Tensor // [at most tokens] I32 or I64. Required where a part has a Cache
}

// NormHeadsPart is one part of a [NormHeads]. It has at least one output. Y may be X, as the same
// view; no other output shares an element with a tensor of the call. Statistics have the shape
// [tokens, heads], or [tokens] with NormHeadsAcrossHeads.
type NormHeadsPart struct {
	Flags        NormHeadsFlags // default: a copy
	Kind         NormKind       // RMS or Layer
	Eps          float32        // finite, >= 0
	WeightOffset float32        // added to Weight: 0, or 1 for Gemma; 0 without Weight
	Rounding     Rounding       // of the norm; default: once
	RopeRounding RopeRounding   // default: once
	RopeOffset   int            // first column that rope turns; -1: the last RopeDim columns

	X      Tensor // [tokens, heads, d], d up to 8192; T. Required
	Weight Tensor // [d] or [heads, d]; F32, F16 or BF16. Not given: 1
	Bias   Tensor // as Weight. Not given: 0
	MeanIn Tensor // F32 statistics to use, with RstdIn; Layer only
	RstdIn Tensor // F32 statistics to use. Not given: computed

	Y    Tensor // output, shape of X; T or F32. May be X
	Mean Tensor // output, F32 statistics; Layer only
	Rstd Tensor // output, F32 statistics
	// Sumsq is an output of F32 statistics: the sum of squares. Layer: with a last extent of 2, the
	// mean and the sum of (X - mean)^2.
	Sumsq Tensor

	QuantSource QuantSource // of Quantized and of a Cache of codes
	// QuantDivision is of Quantized and of a Cache of codes, with QuantPerTensor, QuantPerRow and
	// QuantPerBlock; default: times the reciprocal.
	QuantDivision QuantDivision
	AmaxFloor     float32 // least magnitude that a dynamic scale is made from; 0 = 1e-10

	QuantScheme    QuantScheme
	QuantBlockSize int         // QuantPerBlock: 64 or 128 columns; else 0
	ScaleLayout    ScaleLayout // rows are tokens * heads
	ScalePow2      bool        // round dynamic fp8 scales up to a power of two
	Clamp          float32     // > 0: Quantized is of results clamped to [-Clamp, Clamp]
	ClampScale     Tensor      // as [Quant].ClampScale; the Cache is not clamped
	GlobalScale    Tensor      // [1] F32. The second scale of QuantNVFP4; not given: 1
	Quantized      Tensor      // output, codes; as [Quant].Out
	Scale          Tensor      // as [Quant].Scale
	Amax           Tensor      // output, as [Quant].Amax

	CacheScheme    QuantScheme // QuantNone: the Cache is of T; else QuantPerTensor or QuantPerBlock
	CacheBlockSize int         // QuantPerBlock: 64 or 128 columns; else 0
	CachePow2      bool        // QuantPerBlock of fp8: scales are powers of two
	Cache          Tensor      // output, [pages, page, heads, d] T, F8E4M3FN, F8E5M2 or I8
	CacheScale     Tensor      // [1], an input; QuantPerBlock: output, [pages, page, heads, blocks]
}

var normHeadsTensors = []string{
	raw.NormHeadsBitCos:       "cos",
	raw.NormHeadsBitSin:       "sin",
	raw.NormHeadsBitPositions: "positions",
	raw.NormHeadsBitSlots:     "slots",
}

var normHeadsPartTensors = []string{
	raw.NormHeadsPartBitX:           "x",
	raw.NormHeadsPartBitWeight:      "weight",
	raw.NormHeadsPartBitBias:        "bias",
	raw.NormHeadsPartBitY:           "y",
	raw.NormHeadsPartBitMean:        "mean",
	raw.NormHeadsPartBitRstd:        "rstd",
	raw.NormHeadsPartBitMeanIn:      "mean_in",
	raw.NormHeadsPartBitRstdIn:      "rstd_in",
	raw.NormHeadsPartBitSumsq:       "sumsq",
	raw.NormHeadsPartBitGlobalScale: "global_scale",
	raw.NormHeadsPartBitQuantized:   "quantized",
	raw.NormHeadsPartBitScale:       "scale",
	raw.NormHeadsPartBitAmax:        "amax",
	raw.NormHeadsPartBitCache:       "cache",
	raw.NormHeadsPartBitCacheScale:  "cache_scale",
	raw.NormHeadsPartBitClampScale:  "clamp_scale",
}

// call encodes the call: what the parts share, then the parts. Of a list that is too long the
// library refuses the number.
func (h *NormHeads) call() *call {
	parts := h.Parts
	if len(parts) > raw.MaxParts {
		parts = nil
	}
	q := newCall(len(parts), raw.NormHeadsPartMaxWords)
	q.reserve(raw.NormHeadsMaxWords + len(parts)*raw.NormHeadsPartMaxWords)
	q.count = clip(len(h.Parts))
	w := q.begin(raw.NormHeadsMask)
	if h.MropeInterleaved {
		w[raw.NormHeadsFlags] = raw.FASTNORM_NORM_HEADS_MROPE_INTERLEAVED
	}
	w[raw.NormHeadsRopeDim] = uint64(clip(h.RopeDim))
	for axis, pairs := range h.Mrope {
		w[raw.NormHeadsMrope0+axis] = uint64(clip(pairs))
	}
	q.tensor(shared, raw.NormHeadsBitCos, &h.Cos)
	q.tensor(shared, raw.NormHeadsBitSin, &h.Sin)
	q.tensor(shared, raw.NormHeadsBitPositions, &h.Positions)
	q.tensor(shared, raw.NormHeadsBitSlots, &h.Slots)
	for i := range parts {
		parts[i].encode(q, i)
	}
	return q
}

func (p *NormHeadsPart) encode(q *call, part int) {
	w := q.begin(raw.NormHeadsPartMask)
	w[raw.NormHeadsPartFlags] = uint64(p.Flags)
	w[raw.NormHeadsPartKind] = uint64(p.Kind)
	w[raw.NormHeadsPartEps] = uint64(math.Float32bits(p.Eps))
	w[raw.NormHeadsPartWeightOffset] = uint64(math.Float32bits(p.WeightOffset))
	w[raw.NormHeadsPartRounding] = uint64(p.Rounding)
	w[raw.NormHeadsPartRopeRounding] = uint64(p.RopeRounding)
	w[raw.NormHeadsPartRopeOffset] = uint64(clip(p.RopeOffset))
	w[raw.NormHeadsPartQuantScheme] = uint64(p.QuantScheme)
	w[raw.NormHeadsPartQuantBlockSize] = uint64(clip(p.QuantBlockSize))
	w[raw.NormHeadsPartQuantSource] = uint64(p.QuantSource)
	w[raw.NormHeadsPartScaleLayout] = uint64(p.ScaleLayout)
	w[raw.NormHeadsPartScalePow2] = bit(p.ScalePow2)
	w[raw.NormHeadsPartAmaxFloor] = uint64(math.Float32bits(p.AmaxFloor))
	w[raw.NormHeadsPartClamp] = uint64(math.Float32bits(p.Clamp))
	w[raw.NormHeadsPartCacheScheme] = uint64(p.CacheScheme)
	w[raw.NormHeadsPartCacheBlockSize] = uint64(clip(p.CacheBlockSize))
	w[raw.NormHeadsPartCachePow2] = bit(p.CachePow2)
	w[raw.NormHeadsPartQuantDivision] = uint64(p.QuantDivision)
	q.tensor(part, raw.NormHeadsPartBitX, &p.X)
	q.tensor(part, raw.NormHeadsPartBitWeight, &p.Weight)
	q.tensor(part, raw.NormHeadsPartBitBias, &p.Bias)
	q.tensor(part, raw.NormHeadsPartBitY, &p.Y)
	q.tensor(part, raw.NormHeadsPartBitMean, &p.Mean)
	q.tensor(part, raw.NormHeadsPartBitRstd, &p.Rstd)
	q.tensor(part, raw.NormHeadsPartBitMeanIn, &p.MeanIn)
	q.tensor(part, raw.NormHeadsPartBitRstdIn, &p.RstdIn)
	q.tensor(part, raw.NormHeadsPartBitSumsq, &p.Sumsq)
	q.tensor(part, raw.NormHeadsPartBitGlobalScale, &p.GlobalScale)
	q.tensor(part, raw.NormHeadsPartBitQuantized, &p.Quantized)
	q.tensor(part, raw.NormHeadsPartBitScale, &p.Scale)
	q.tensor(part, raw.NormHeadsPartBitAmax, &p.Amax)
	q.tensor(part, raw.NormHeadsPartBitCache, &p.Cache)
	q.tensor(part, raw.NormHeadsPartBitCacheScale, &p.CacheScale)
	q.tensor(part, raw.NormHeadsPartBitClampScale, &p.ClampScale)
}

var normHeads = &family{
	tensors: normHeadsPartTensors,
	list:    "parts",
	shared:  normHeadsTensors,
	run: func(context uintptr, q *call) int32 {
		return raw.Fnb_norm_heads(context, q.list(), uintptr(q.used), q.count, q.workspace,
			q.workspaceBytes, q.stream)
	},
	prepare: func(context uintptr, q *call) int32 {
		return raw.Fnb_norm_heads_prepare(context, q.list(), uintptr(q.used), q.count)
	},
	query: func(context uintptr, q *call, info raw.Fastnorm_info) int32 {
		return raw.Fnb_norm_heads_query(context, q.list(), uintptr(q.used), q.count, info)
	},
}

// Run normalises, turns and stores the heads of all parts. On the CPU the work is done when Run
// returns, and positions and slots are checked before anything is written; on a GPU they must be
// valid. No parts or no tokens are success: nothing is written. A NormHeads may be run again and
// again, also by several goroutines if their outputs differ.
func (h *NormHeads) Run(c *Context, options ...CallOption) error {
	if h == nil {
		return &Error{Status: StatusArgument, Message: "the NormHeads is nil; required: a description"}
	}
	q := h.call()
	q.apply(options)
	err := q.run(c, normHeads)
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
	return q.query(c, normHeads)
}

// NormHeadsPrepare is [Context.NormPrepare] for a NormHeads.
func (c *Context) NormHeadsPrepare(h NormHeads) error {
	q := h.call()
	defer q.free()
	return q.prepare(c, normHeads)
}
