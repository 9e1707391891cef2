package fastnorm_test

import (
	"math"
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

// Each field of a Quant arrives: the library names it.
func TestQuantFields(t *testing.T) {
	c := cpu(t)
	x := make([]float32, 128)
	base := func() fastnorm.Norm {
		return fastnorm.Norm{X: fastnorm.Of(x, 1, 128), Y: fastnorm.Of(x, 1, 128),
			Quant: &fastnorm.Quant{}}
	}
	check(t, c.Norm(base()))
	one := fastnorm.Of([]float32{1, 2, 3}, 3) // of no use
	for name, change := range map[string]func(*fastnorm.Quant){
		"quant_scheme is 99":    func(q *fastnorm.Quant) { q.Scheme = 99 },
		"quant_block_size is 3": func(q *fastnorm.Quant) { q.BlockSize = 3 },
		"quant_source is 9":     func(q *fastnorm.Quant) { q.Source = 9 },
		"quant_division is 9":   func(q *fastnorm.Quant) { q.Division = 9 },
		"scale_layout is 8":     func(q *fastnorm.Quant) { q.ScaleLayout = 8 },
		"scale_pow2 is 1":       func(q *fastnorm.Quant) { q.ScalePow2 = true },
		"amax_floor is -1":      func(q *fastnorm.Quant) { q.AmaxFloor = -1 },
		"clamp is -2":           func(q *fastnorm.Quant) { q.Clamp = -2 },
		"global_scale":          func(q *fastnorm.Quant) { q.GlobalScale = one },
		"quantized":             func(q *fastnorm.Quant) { q.Out = one },
		"scale":                 func(q *fastnorm.Quant) { q.Scale = one },
		"amax":                  func(q *fastnorm.Quant) { q.Amax = one },
		"clamp_scale":           func(q *fastnorm.Quant) { q.ClampScale = one },
	} {
		n := base()
		change(n.Quant)
		wantError(t, c.Norm(n), nil, name)
	}
	short := base()
	short.Quant = &fastnorm.Quant{Scheme: fastnorm.QuantPerRow,
		Out:   fastnorm.Of(make([]int8, 127), 1, 128),
		Scale: fastnorm.Of([]float32{0}, 1)}
	wantError(t, c.Norm(short), fastnorm.ErrShape, "quantized's slice has 127 bytes")
}

// quantised is one scheme and how its codes are read.
type quantised struct {
	name   string
	quant  fastnorm.Quant
	out    func() (fastnorm.Tensor, func(i int) float64) // memory and its values, without scales
	scales int                                           // for a row; 0 = one for all, given
	block  int
	scale  func(count int) (fastnorm.Tensor, func(i int) float64)
	most   float64 // the largest code
	exact  bool    // the scale is the largest magnitude over the largest code, and no power of two
	ulp    float64 // largest relative distance of neighbouring codes
	least  float64 // least distance of neighbouring codes
}

const quantRows, quantColumns = 3, 256

func f32Scales(count int) (fastnorm.Tensor, func(int) float64) {
	s := make([]float32, count)
	return fastnorm.Of(s, quantRows, count/quantRows), func(i int) float64 { return float64(s[i]) }
}

func e8Scales(count int) (fastnorm.Tensor, func(int) float64) {
	s := make([]fastnorm.Float8E8M0FNU, count)
	return fastnorm.Of(s, quantRows, count/quantRows),
		func(i int) float64 { return float64(s[i].Float32()) }
}

func e4m3Scales(count int) (fastnorm.Tensor, func(int) float64) {
	s := make([]fastnorm.Float8E4M3FN, count)
	return fastnorm.Of(s, quantRows, count/quantRows),
		func(i int) float64 { return float64(s[i].Float32()) }
}

func i8Codes() (fastnorm.Tensor, func(int) float64) {
	s := make([]int8, quantRows*quantColumns)
	return fastnorm.Of(s, quantRows, quantColumns), func(i int) float64 { return float64(s[i]) }
}

func e4m3Codes() (fastnorm.Tensor, func(int) float64) {
	s := make([]fastnorm.Float8E4M3FN, quantRows*quantColumns)
	return fastnorm.Of(s, quantRows, quantColumns),
		func(i int) float64 { return float64(s[i].Float32()) }
}

func e5m2Codes() (fastnorm.Tensor, func(int) float64) {
	s := make([]fastnorm.Float8E5M2, quantRows*quantColumns)
	return fastnorm.Of(s, quantRows, quantColumns),
		func(i int) float64 { return float64(s[i].Float32()) }
}

func e2m1Codes() (fastnorm.Tensor, func(int) float64) {
	s := make([]fastnorm.Float4E2M1FNx2, quantRows*quantColumns/2)
	return fastnorm.Of(s, quantRows, quantColumns/2), func(i int) float64 {
		first, second := s[i/2].Float32()
		if i%2 == 0 {
			return float64(first)
		}
		return float64(second)
	}
}

var schemes = []quantised{
	{"i8 per row", fastnorm.Quant{Scheme: fastnorm.QuantPerRow}, i8Codes, 1, quantColumns, f32Scales,
		127, true, 0, 1},
	{"e4m3 per row", fastnorm.Quant{Scheme: fastnorm.QuantPerRow}, e4m3Codes, 1, quantColumns,
		f32Scales, 448, true, 1.0 / 8, 1.0 / 512},
	{"e5m2 per row", fastnorm.Quant{Scheme: fastnorm.QuantPerRow}, e5m2Codes, 1, quantColumns,
		f32Scales, 57344, true, 1.0 / 4, 1.0 / 65536},
	{"e4m3 per row, powers of two", fastnorm.Quant{Scheme: fastnorm.QuantPerRow, ScalePow2: true},
		e4m3Codes, 1, quantColumns, f32Scales, 448, false, 1.0 / 8, 1.0 / 512},
	{"e4m3 per block", fastnorm.Quant{Scheme: fastnorm.QuantPerBlock, BlockSize: 64}, e4m3Codes,
		quantColumns / 64, 64, f32Scales, 448, true, 1.0 / 8, 1.0 / 512},
	{"mxfp8", fastnorm.Quant{Scheme: fastnorm.QuantMXFP8}, e4m3Codes, quantColumns / 32, 32, e8Scales,
		448, false, 1.0 / 8, 1.0 / 512},
	{"nvfp4", fastnorm.Quant{Scheme: fastnorm.QuantNVFP4}, e2m1Codes, quantColumns / 16, 16,
		e4m3Scales, 6, false, 1.0 / 2, 1.0 / 2},
	{"i8 per tensor", fastnorm.Quant{Scheme: fastnorm.QuantPerTensor}, i8Codes, 0,
		quantRows * quantColumns, nil, 127, false, 0, 1},
}

// Codes times scales are the unquantised output but for the rounding of the codes, and of nvfp4's
// scales.
func TestQuantised(t *testing.T) {
	c := cpu(t)
	x := random(formats[0], quantRows*quantColumns, 2)
	for _, s := range schemes {
		t.Run(s.name, func(t *testing.T) {
			y, amax := make([]float32, quantRows*quantColumns), []float32{0}
			quant := s.quant
			out, code := s.out()
			quant.Out = out
			quant.Amax = fastnorm.Of(amax, 1)
			scale := func(int) float64 { return 0.0625 }
			if s.scales > 0 {
				quant.Scale, scale = s.scale(quantRows * s.scales)
			} else {
				quant.Scale = fastnorm.Of([]float32{0.0625}, 1)
			}
			n := fastnorm.Norm{Eps: 1e-5, X: x.view(quantRows, quantColumns),
				Y: fastnorm.Of(y, quantRows, quantColumns), Quant: &quant}
			check(t, c.Norm(n))
			largest := 0.0
			for first := 0; first < len(y); first += s.block {
				top := 0.0
				for i := first; i < first+s.block; i++ {
					top = max(top, math.Abs(float64(y[i])))
				}
				largest = max(largest, top)
				k := scale(first / s.block)
				if s.exact && math.Abs(k-top/s.most) > 1e-6*k {
					t.Errorf("a scale is %v, required: %v", k, top/s.most)
				}
				if fraction, _ := math.Frexp(k); (quant.ScalePow2 || quant.Scheme == fastnorm.QuantMXFP8) &&
					fraction != 0.5 {
					t.Errorf("a scale is %v, no power of two", k)
				}
				for i := first; i < first+s.block; i++ {
					value, wanted := code(i)*k, float64(y[i])
					off := max(s.ulp*math.Abs(wanted), s.least*k) / 2
					if quant.Scheme == fastnorm.QuantNVFP4 {
						off += math.Abs(wanted) / 16 // saturation under a scale that was rounded down
					}
					wanted = math.Copysign(min(math.Abs(wanted), s.most*k), wanted)
					if math.Abs(value-wanted) > off*(1+1e-5) {
						t.Fatalf("element %d is %v, required: %v within %v", i, value, wanted, off)
					}
				}
			}
			equal(t, "the largest magnitude", float64(amax[0]), largest)
			// Without y, and as a part of a list, the codes are the same.
			again, codeAgain := s.out()
			quant.Out, quant.Amax, n.Y = again, fastnorm.Tensor{}, fastnorm.Tensor{}
			check(t, c.NormMany([]fastnorm.Norm{n}))
			for i := range y {
				equal(t, "a code without y", codeAgain(i), code(i))
			}
		})
	}
}
