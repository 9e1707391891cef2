package fastnorm_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

// A layer's fused buffer: query, key and value heads of each token. Rope turns a window in the
// middle of a row. Pages are no power of two, token 2 has no slot, and the last token is behind the
// list of slots.
const (
	headsTokens, headsQuery, headsKey = 5, 3, 2
	headsAll, headsD                  = headsQuery + 2*headsKey, 80
	headsRope, headsOffset            = 32, 24
	headsPages, headsPage, headsTable = 3, 3, 11
	headsEps                          = 1e-3
)

type headsCase struct {
	qkv, query, key []float32 // the buffer and the weights
	cos, sin        []float32
	positions       []int64
	slots           []int32
	keys, values    []float32 // caches, full of NaN
}

func newHeadsCase() *headsCase {
	random := rand.New(rand.NewPCG(42, 1))
	numbers := func(count int) []float32 {
		values := make([]float32, count)
		for i := range values {
			values[i] = 4*random.Float32() - 2
		}
		return values
	}
	h := &headsCase{
		qkv: numbers(headsTokens * headsAll * headsD), query: numbers(headsD), key: numbers(headsD),
		positions: []int64{10, 0, 3, 7, 3}, slots: []int32{7, 0, -1, 4},
		keys: make([]float32, headsPages*headsPage*headsKey*headsD),
	}
	for row := range headsTable {
		for j := range headsRope / 2 {
			angle := float64(row) * math.Pow(10000, -2*float64(j)/headsRope)
			h.cos, h.sin = append(h.cos, float32(math.Cos(angle))), append(h.sin, float32(math.Sin(angle)))
		}
	}
	for i := range h.keys {
		h.keys[i] = float32(math.NaN())
	}
	h.values = append(h.values, h.keys...)
	return h
}

// row is a copy of a head of a token.
func (h *headsCase) row(token, head int) []float32 {
	at := (token*headsAll + head) * headsD
	return append([]float32(nil), h.qkv[at:at+headsD]...)
}

// heads is the tensor of count heads from number first on.
func (h *headsCase) heads(first, count int) fastnorm.Tensor {
	t := fastnorm.Of(h.qkv[first*headsD:], headsTokens, count, headsD)
	return t.WithStrides(headsAll*headsD, headsD, 1)
}

// table is a tensor of cosines or sines.
func table(data []float32) fastnorm.Tensor { return fastnorm.Of(data, headsTable, headsRope/2) }

// cache is a tensor of a cache.
func cache[T fastnorm.Element](data []T) fastnorm.Tensor {
	return fastnorm.Of(data, headsPages, headsPage, headsKey, headsD)
}

// call has the query in place, the key in place and cached, and the value cached as it is.
func (h *headsCase) call(flags fastnorm.NormHeadsFlags) fastnorm.NormHeads {
	q, k := h.heads(0, headsQuery), h.heads(headsQuery, headsKey)
	part := fastnorm.NormHeadsPart{Flags: fastnorm.NormHeadsNorm | fastnorm.NormHeadsRope | flags,
		Eps: headsEps, WeightOffset: 1, RopeOffset: headsOffset}
	query, key := part, part
	query.X, query.Y, query.Weight = q, q, fastnorm.Of(h.query, headsD)
	key.X, key.Y, key.Weight = k, k, fastnorm.Of(h.key, headsD)
	key.Cache = cache(h.keys)
	return fastnorm.NormHeads{
		RopeDim: headsRope, Cos: table(h.cos), Sin: table(h.sin),
		Positions: fastnorm.Of(h.positions, headsTokens), Slots: fastnorm.Of(h.slots, len(h.slots)),
		Parts: []fastnorm.NormHeadsPart{query, key,
			{X: h.heads(headsQuery+headsKey, headsKey), Cache: cache(h.values)}},
	}
}

// exact is RMSNorm and rope of a row in double precision.
func (h *headsCase) exact(x, weight []float32, token int, flags fastnorm.NormHeadsFlags) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	rstd := 1 / math.Sqrt(sum/headsD+headsEps)
	o := make([]float64, headsD)
	for i, v := range x {
		o[i] = float64(v) * rstd * (float64(weight[i]) + 1)
	}
	for j := range headsRope / 2 {
		first, second := headsOffset+j, headsOffset+headsRope/2+j
		if flags&fastnorm.NormHeadsRopeInterleaved != 0 {
			first, second = headsOffset+2*j, headsOffset+2*j+1
		}
		entry := int(h.positions[token])*headsRope/2 + j
		c, s := float64(h.cos[entry]), float64(h.sin[entry])
		if flags&fastnorm.NormHeadsRopeInverse != 0 {
			s = -s
		}
		o[first], o[second] = o[first]*c-o[second]*s, o[second]*c+o[first]*s
	}
	return o
}

// slot is where a token is cached, or -1.
func (h *headsCase) slot(token int) int {
	if token < len(h.slots) {
		return int(h.slots[token])
	}
	return -1
}

// exactRows are the rows of count heads from number first on.
func (h *headsCase) exactRows(first, count int, weight []float32,
	flags fastnorm.NormHeadsFlags) [][]float64 {
	var rows [][]float64
	for token := range headsTokens {
		for head := range count {
			rows = append(rows, h.exact(h.row(token, first+head), weight, token, flags))
		}
	}
	return rows
}

func TestNormHeads(t *testing.T) {
	c := cpu(t)
	const interleaved, inverse = fastnorm.NormHeadsRopeInterleaved, fastnorm.NormHeadsRopeInverse
	for _, flags := range []fastnorm.NormHeadsFlags{0, interleaved, inverse, interleaved | inverse} {
		h := newHeadsCase()
		before := append([]float32(nil), h.qkv...)
		query := h.exactRows(0, headsQuery, h.query, flags)
		key := h.exactRows(headsQuery, headsKey, h.key, flags)
		call := h.call(flags)
		check(t, c.NormHeadsPrepare(call))
		info, err := c.NormHeadsQuery(call)
		check(t, err)
		equal(t, "launches", info.Launches, 1)
		equals(t, "the buffer after a query", h.qkv, before...)
		check(t, c.NormHeads(call))
		cached := map[int]bool{}
		for token := range headsTokens {
			for head := range headsQuery {
				what := fmt.Sprintf("flags %d: query %d of token %d", flags, head, token)
				near(t, what, h.row(token, head), query[token*headsQuery+head])
			}
			for head := range headsKey {
				what := fmt.Sprintf("flags %d: key %d of token %d", flags, head, token)
				found := h.row(token, headsQuery+head)
				near(t, what, found, key[token*headsKey+head])
				first := headsQuery + headsKey + head
				value := h.row(token, first)
				equals(t, what+", value", value, before[(token*headsAll+first)*headsD:][:headsD]...)
				if slot := h.slot(token); slot >= 0 {
					cached[slot] = true
					at := (slot*headsKey + head) * headsD
					equals(t, what+", cached", h.keys[at:at+headsD], found...)
					equals(t, what+", cached value", h.values[at:at+headsD], value...)
				}
			}
		}
		equal(t, "cached tokens", len(cached), 3)
		for i := range h.keys {
			untouched := h.keys[i] != h.keys[i] && h.values[i] != h.values[i]
			if untouched == cached[i/(headsKey*headsD)] {
				t.Fatalf("flags %d: element %d of a cache: untouched is %v", flags, i, untouched)
			}
		}
	}
}

// Codes of a query with a scale for each head, and of a cache with a scale for each block and for
// all.
func TestNormHeadsQuantised(t *testing.T) {
	c := cpu(t)
	h := newHeadsCase()
	query := h.exactRows(0, headsQuery, h.query, 0)
	key := h.exactRows(headsQuery, headsKey, h.key, 0)
	call := h.call(0)
	codes := make([]fastnorm.Float8E4M3FN, headsTokens*headsQuery*headsD)
	scales := make([]float32, headsTokens*headsQuery)
	p := &call.Parts[0]
	p.Y, p.QuantScheme = fastnorm.Tensor{}, fastnorm.QuantPerRow
	p.Quantized = fastnorm.Of(codes, headsTokens, headsQuery, headsD)
	p.Scale = fastnorm.Of(scales, headsTokens, headsQuery)
	const blocks = 2 // of 64 and 16 columns
	keyCodes := make([]fastnorm.Float8E4M3FN, len(h.keys))
	keyScales := make([]float32, headsPages*headsPage*headsKey*blocks)
	p = &call.Parts[1]
	p.Y, p.CacheScheme, p.CacheBlockSize = fastnorm.Tensor{}, fastnorm.QuantPerBlock, 64
	p.Cache = cache(keyCodes)
	p.CacheScale = fastnorm.Of(keyScales, headsPages, headsPage, headsKey, blocks)
	valueCodes := make([]int8, len(h.values))
	p = &call.Parts[2]
	p.CacheScheme, p.CacheScale = fastnorm.QuantPerTensor, fastnorm.Of([]float32{1.0 / 32}, 1)
	p.Cache = cache(valueCodes)
	check(t, call.Run(c))

	// A code of e4m3 is within half a step of its value: 1/16 of it, or 2^-10 of the scale near 0.
	compare := func(what string, scale float32, code func(i int) float32, wanted []float64) {
		t.Helper()
		largest := 0.0
		for _, v := range wanted {
			largest = max(largest, math.Abs(v))
		}
		if !(math.Abs(float64(scale)-largest/448) <= 1e-5*largest) {
			t.Errorf("%s: the scale is %v, required: %v", what, scale, largest/448)
		}
		for i, v := range wanted {
			found := float64(code(i)) * float64(scale)
			if !(math.Abs(found-v) <= math.Abs(v)/16+float64(scale)/1024+1e-5) {
				t.Fatalf("%s: element %d is %v, required: %v", what, i, found, v)
			}
		}
	}
	for row, wanted := range query {
		compare(fmt.Sprintf("row %d", row), scales[row],
			func(i int) float32 { return codes[row*headsD+i].Float32() }, wanted)
	}
	for token := range headsTokens {
		slot := h.slot(token)
		if slot < 0 {
			continue
		}
		for head := range headsKey {
			row, what := slot*headsKey+head, fmt.Sprintf("token %d, head %d", token, head)
			for block := range blocks {
				wanted := key[token*headsKey+head][64*block:]
				wanted = wanted[:min(64, len(wanted))]
				compare(what, keyScales[row*blocks+block],
					func(i int) float32 { return keyCodes[row*headsD+64*block+i].Float32() }, wanted)
			}
			for i, v := range h.row(token, headsQuery+headsKey+head) {
				equal(t, what+", value", float64(valueCodes[row*headsD+i]), math.RoundToEven(32*float64(v)))
			}
		}
	}
	equal(t, "a row of no token", keyScales[headsKey*blocks], 0)
}

// Two devices with a half of the heads each: the sums of squares of a first call make the statistic
// of a second.
func TestNormHeadsSumsq(t *testing.T) {
	c := cpu(t)
	h := newHeadsCase()
	const columns = headsQuery * headsD
	whole, halves := make([]float32, headsTokens*columns), make([]float32, headsTokens*columns)
	rstd, sums := make([]float32, headsTokens), make([]float32, headsTokens)
	part := fastnorm.NormHeadsPart{Flags: fastnorm.NormHeadsNorm | fastnorm.NormHeadsAcrossHeads,
		Eps: headsEps, X: h.heads(0, headsQuery),
		Y: fastnorm.Of(whole, headsTokens, headsQuery, headsD), Rstd: fastnorm.Of(rstd, headsTokens)}
	none := fastnorm.Tensor{}
	check(t, c.NormHeads(fastnorm.NormHeads{Parts: []fastnorm.NormHeadsPart{part}}))
	part.Y, part.Rstd, part.Sumsq = none, none, fastnorm.Of(sums, headsTokens)
	check(t, c.NormHeads(fastnorm.NormHeads{Parts: []fastnorm.NormHeadsPart{part}}))
	for token, sum := range sums {
		exact := 0.0
		for head := range headsQuery {
			for _, v := range h.row(token, head) {
				exact += float64(v) * float64(v)
			}
		}
		near(t, "sumsq / n", []float32{sum / columns}, []float64{exact / columns})
		near(t, "rstd", rstd[token:], []float64{1 / math.Sqrt(exact/columns+headsEps)})
	}
	part.Sumsq, part.RstdIn = none, fastnorm.Of(rstd, headsTokens)
	part.Y = fastnorm.Of(halves, headsTokens, headsQuery, headsD)
	check(t, c.NormHeads(fastnorm.NormHeads{Parts: []fastnorm.NormHeadsPart{part}}))
	equals(t, "y of a given rstd", halves, whole...)
}

// Sections of mrope take their rows from different axes.
func TestNormHeadsMrope(t *testing.T) {
	c := cpu(t)
	axis := func(interleaved bool, j int) int {
		switch {
		case interleaved && j < 3*5:
			return j % 3
		case interleaved || j < 6:
			return 0
		case j < 11:
			return 1
		}
		return 2
	}
	for _, interleaved := range []bool{false, true} {
		h := newHeadsCase()
		positions := make([]int32, 3*headsTokens)
		for i := range positions {
			positions[i] = int32(i * 7 % headsTable)
		}
		before := append([]float32(nil), h.qkv...)
		x := h.heads(0, headsQuery)
		check(t, c.NormHeads(fastnorm.NormHeads{
			RopeDim: headsRope, Mrope: [4]int{6, 5, 5}, MropeInterleaved: interleaved,
			Cos: table(h.cos), Sin: table(h.sin),
			Positions: fastnorm.Of(positions, 3, headsTokens),
			Parts:     []fastnorm.NormHeadsPart{{Flags: fastnorm.NormHeadsRope, RopeOffset: -1, X: x, Y: x}},
		}))
		for token := range headsTokens {
			row, was := h.row(token, 1), before[(token*headsAll+1)*headsD:]
			for j := range headsRope / 2 {
				entry := int(positions[axis(interleaved, j)*headsTokens+token])*headsRope/2 + j
				first, second := headsD-headsRope+j, headsD-headsRope/2+j
				cos, sin := float64(h.cos[entry]), float64(h.sin[entry])
				v1, v2 := float64(was[first]), float64(was[second])
				near(t, fmt.Sprintf("interleaved %v: pair %d of token %d", interleaved, j, token),
					[]float32{row[first], row[second]}, []float64{v1*cos - v2*sin, v2*cos + v1*sin})
			}
		}
	}
}

// Each field arrives: the library names it, and writes nothing.
func TestNormHeadsFields(t *testing.T) {
	type heads = fastnorm.NormHeads
	type part = fastnorm.NormHeadsPart
	c := cpu(t)
	odd := fastnorm.Of([]float32{1, 2, 3}, 3) // of no use
	for text, change := range map[string]func(*heads, *part){
		"rope_dim is 33":    func(h *heads, _ *part) { h.RopeDim = 33 },
		"rope_dim is 82":    func(h *heads, _ *part) { h.RopeDim = 82 },
		"mrope_0 is 1":      func(h *heads, _ *part) { h.Mrope[0] = 1 },
		"mrope_1 is 2":      func(h *heads, _ *part) { h.Mrope[1] = 2 },
		"mrope_2 is 3":      func(h *heads, _ *part) { h.Mrope[2] = 3 },
		"mrope_3 is 4":      func(h *heads, _ *part) { h.Mrope[3] = 4 },
		"MROPE_INTERLEAVED": func(h *heads, _ *part) { h.MropeInterleaved = true },
		"cos.shape is [3]":  func(h *heads, _ *part) { h.Cos = odd },
		"sin is NULL":       func(h *heads, _ *part) { h.Sin = fastnorm.Tensor{} },
		"the position of token 0, axis 0, is 11; required: 0 to 10": func(h *heads, _ *part) {
			h.Positions = fastnorm.Of([]int32{11, 0, 0, 0, 0}, 5)
		},
		"slots[1] is 9": func(h *heads, _ *part) {
			h.Slots = fastnorm.Of([]int64{0, 9}, 2)
		},
		"slots is NULL": func(h *heads, _ *part) { h.Slots = fastnorm.Tensor{} },
		"count is 9": func(h *heads, _ *part) {
			h.Parts = make([]fastnorm.NormHeadsPart, 9)
		},
		"parts[1].flags is 0x403":        func(_ *heads, p *part) { p.Flags |= 0x400 },
		"parts[1].kind is 9":             func(_ *heads, p *part) { p.Kind = 9 },
		"parts[1].eps is -1":             func(_ *heads, p *part) { p.Eps = -1 },
		"parts[1].weight_offset is":      func(_ *heads, p *part) { p.Weight = fastnorm.Tensor{} },
		"parts[1].rounding is 9":         func(_ *heads, p *part) { p.Rounding = 9 },
		"parts[1].rope_rounding is 9":    func(_ *heads, p *part) { p.RopeRounding = 9 },
		"parts[1].rope_offset is 49":     func(_ *heads, p *part) { p.RopeOffset = 49 },
		"parts[1].x":                     func(_ *heads, p *part) { p.X = odd },
		"parts[1].weight.shape":          func(_ *heads, p *part) { p.Weight = odd },
		"parts[1].bias":                  func(_ *heads, p *part) { p.Bias = odd },
		"parts[1].y":                     func(_ *heads, p *part) { p.Y = odd },
		"parts[1].mean":                  func(_ *heads, p *part) { p.Mean = odd },
		"parts[1].rstd":                  func(_ *heads, p *part) { p.Rstd = odd },
		"parts[1].mean_in":               func(_ *heads, p *part) { p.MeanIn = odd },
		"parts[1].rstd_in":               func(_ *heads, p *part) { p.RstdIn = odd },
		"parts[1].sumsq":                 func(_ *heads, p *part) { p.Sumsq = odd },
		"parts[1].quant_scheme is 99":    func(_ *heads, p *part) { p.QuantScheme = 99 },
		"parts[1].quant_block_size is 3": func(_ *heads, p *part) { p.QuantBlockSize = 3 },
		"parts[1].quant_source is 9":     func(_ *heads, p *part) { p.QuantSource = 9 },
		"parts[1].scale_layout is 8":     func(_ *heads, p *part) { p.ScaleLayout = 8 },
		"parts[1].scale_pow2 is 1":       func(_ *heads, p *part) { p.ScalePow2 = true },
		"parts[1].amax_floor is -1":      func(_ *heads, p *part) { p.AmaxFloor = -1 },
		"parts[1].clamp is -2":           func(_ *heads, p *part) { p.Clamp = -2 },
		"parts[1].global_scale":          func(_ *heads, p *part) { p.GlobalScale = odd },
		"parts[1].quantized":             func(_ *heads, p *part) { p.Quantized = odd },
		"parts[1].scale is":              func(_ *heads, p *part) { p.Scale = odd },
		"parts[1].amax":                  func(_ *heads, p *part) { p.Amax = odd },
		"parts[1].cache_scheme is 2":     func(_ *heads, p *part) { p.CacheScheme = 2 },
		"parts[1].cache_block_size is 5": func(_ *heads, p *part) { p.CacheBlockSize = 5 },
		"parts[1].cache_pow2 is 1":       func(_ *heads, p *part) { p.CachePow2 = true },
		"parts[1].cache.":                func(_ *heads, p *part) { p.Cache = odd },
		"parts[1].cache_scale":           func(_ *heads, p *part) { p.CacheScale = odd },
		"parts[1].clamp_scale":           func(_ *heads, p *part) { p.ClampScale = odd },
		"parts[1].quant_division is 9":   func(_ *heads, p *part) { p.QuantDivision = 9 },
		"parts[1].cache's slice has 36 bytes": func(_ *heads, p *part) {
			p.Cache = cache(make([]float32, 9))
		},
		"cos's slice has 4 bytes": func(h *heads, _ *part) {
			h.Cos = table([]float32{1})
		},
	} {
		h := newHeadsCase()
		before := append([]float32(nil), h.qkv...)
		call := h.call(0)
		change(&call, &call.Parts[1])
		t.Run(text, func(t *testing.T) {
			wantError(t, c.NormHeads(call), nil, text)
			equals(t, "the buffer", h.qkv, before...)
		})
	}
	var none *fastnorm.NormHeads
	wantError(t, none.Run(c), fastnorm.ErrArgument, "the NormHeads is nil")
	check(t, c.NormHeads(fastnorm.NormHeads{}))
	h := newHeadsCase()
	wantError(t, dryGPU(t).NormHeads(h.call(0)), fastnorm.ErrDevice, "parts[0].x")
}
