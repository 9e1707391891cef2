package fastnorm_test

import (
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

// heads is a call for 3 tokens of a query head and a key head of 4 columns, in one buffer. Rope
// rotates the first token by a right angle, the others not at all. The last token is padding. The
// mean square of each row is 6.25, and rstd 0.4.
func heads(qkv, cache []float32) fastnorm.NormHeads {
	const tokens, d = 3, 4
	of := func(head int) fastnorm.Tensor {
		return fastnorm.Of(qkv[head*d:], tokens, 1, d).WithStrides(2*d, d, 1)
	}
	query := fastnorm.NormHeadsPart{Flags: fastnorm.NormHeadsNorm | fastnorm.NormHeadsRope,
		X: of(0), Y: of(0)}
	key := query
	key.X, key.Y, key.Weight = of(1), fastnorm.Tensor{}, fastnorm.Of([]float32{5, 5, 5, 5}, d)
	key.Cache = fastnorm.Of(cache, 1, 2, 1, d)
	return fastnorm.NormHeads{
		RopeDim: d, Cos: fastnorm.Of([]float32{1, 1, 0, 0}, 2, d/2),
		Sin:       fastnorm.Of([]float32{0, 0, 1, 1}, 2, d/2),
		Positions: fastnorm.Of([]int64{1, 0, 9}, tokens), Slots: fastnorm.Of([]int32{1, 0}, 2),
		Parts: []fastnorm.NormHeadsPart{query, key},
	}
}

func headsBuffer() []float32 {
	return []float32{3, 4, 0, 0, 0, 0, 4, 3, 4, 3, 0, 0, 0, 5, 0, 0, 3, 4, 0, 0, 0, 0, 4, 3}
}

func TestNormHeads(t *testing.T) {
	c := cpu(t)
	qkv, cache := headsBuffer(), make([]float32, 8)
	call := heads(qkv, cache)
	check(t, c.NormHeadsPrepare(call))
	info, err := c.NormHeadsQuery(call)
	check(t, err)
	equal(t, "launches", info.Launches, 1)
	equals(t, "the buffer after a query", qkv, headsBuffer()...)
	check(t, c.NormHeads(call))
	near(t, "the query, rotated", qkv[:4], 0, 0, 1.2, 1.6)
	near(t, "the query, not rotated", qkv[8:12], 1.6, 1.2, 0, 0)
	equals(t, "keys and padding", append(qkv[4:8:8], qkv[12:]...), append(headsBuffer()[4:8:8],
		headsBuffer()[12:]...)...)
	near(t, "cached keys", cache, 0, 10, 0, 0, -8, -6, 0, 0)
}

// The scales of two query heads are 1 and 2. Their weights are multiplied by these and the factor.
func TestHeadWeights(t *testing.T) {
	c := cpu(t)
	codes, scale, weights := make([]int8, 8), make([]float32, 2), make([]float32, 2)
	part := fastnorm.NormHeadsPart{
		X: fastnorm.Of([]float32{127, -64, 0, 1, 0, 0, -254, 2}, 1, 2, 4),
		Quant: &fastnorm.Quant{Scheme: fastnorm.QuantPerRow, Out: fastnorm.Of(codes, 1, 2, 4),
			Scale: fastnorm.Of(scale, 1, 2)},
		HeadWeights:    fastnorm.Of([]float32{3, -5}, 1, 2),
		HeadWeightsOut: fastnorm.Of(weights, 1, 2), HeadWeightsFactor: 0.5,
	}
	call := fastnorm.NormHeads{Parts: []fastnorm.NormHeadsPart{part}}
	check(t, c.NormHeads(call))
	equals(t, "codes", codes, 127, -64, 0, 1, 0, 0, -127, 1)
	equals(t, "scales", scale, 1, 2)
	equals(t, "weights", weights, 1.5, -5)
	call.Parts[0].HeadWeightsOut = fastnorm.Tensor{}
	wantError(t, c.NormHeads(call), nil, "head_weights is given and head_weights_out is NULL")
}

// Codes of three columns, and the fourth as it is. The first token goes to the second slot.
func TestCacheTail(t *testing.T) {
	c := cpu(t)
	codes, tail := make([]int8, 6), make([]float32, 2)
	part := fastnorm.NormHeadsPart{
		X:     fastnorm.Of([]float32{1, -2, 0.5, 7.125, 3, 0, 0, -9}, 2, 1, 4),
		Cache: fastnorm.Of(codes, 1, 2, 1, 3), CacheTail: fastnorm.Of(tail, 1, 2, 1, 1),
		CacheQuant: &fastnorm.Quant{Scheme: fastnorm.QuantPerTensor,
			Scale: fastnorm.Of([]float32{0.5}, 1)},
	}
	call := fastnorm.NormHeads{Parts: []fastnorm.NormHeadsPart{part},
		Slots: fastnorm.Of([]int32{1, 0}, 2)}
	check(t, c.NormHeads(call))
	equals(t, "codes", codes, 6, 0, 0, 2, -4, 1)
	equals(t, "tail", tail, -9, 7.125)
	call.Parts[0].CacheQuant = nil
	wantError(t, c.NormHeads(call), nil, "cache_tail is given and cache_quant.scheme is")
}

func TestNormHeadsRefused(t *testing.T) {
	c := cpu(t)
	for text, change := range map[string]func(h *fastnorm.NormHeads){
		"mrope_3 is 4":       func(h *fastnorm.NormHeads) { h.Mrope[3] = 4 },
		"sin is NULL":        func(h *fastnorm.NormHeads) { h.Sin = fastnorm.Tensor{} },
		"count is 9":         func(h *fastnorm.NormHeads) { h.Parts = make([]fastnorm.NormHeadsPart, 9) },
		"parts[1].eps is -1": func(h *fastnorm.NormHeads) { h.Parts[1].Eps = -1 },
		"cos's slice has 4":  func(h *fastnorm.NormHeads) { h.Cos = fastnorm.Of([]float32{1}, 2, 2) },
		"slots[1] is 2":      func(h *fastnorm.NormHeads) { h.Slots = fastnorm.Of([]int64{0, 2}, 2) },
		"the position of token 0, axis 0, is 2": func(h *fastnorm.NormHeads) {
			h.Positions = fastnorm.Of([]int32{2, 0, 0}, 3)
		},
		"parts[1].cache's slice has 12 bytes": func(h *fastnorm.NormHeads) {
			h.Parts[1].Cache = fastnorm.Of([]float32{1, 2, 3}, 1, 2, 1, 4)
		},
	} {
		qkv := headsBuffer()
		call := heads(qkv, make([]float32, 8))
		change(&call)
		wantError(t, c.NormHeads(call), nil, text)
		equals(t, "the buffer", qkv, headsBuffer()...)
	}
	var none *fastnorm.NormHeads
	wantError(t, none.Run(c), fastnorm.ErrArgument, "the NormHeads is nil")
	check(t, c.NormHeads(fastnorm.NormHeads{}))
	wantError(t, dryGPU(t).NormHeads(heads(headsBuffer(), make([]float32, 8))), fastnorm.ErrDevice,
		"parts[0].x")
}
