package fastnorm_test

import (
	"math"
	"math/rand/v2"
	"testing"

	fastnorm "github.com/libfastnorm/libfastnorm/bindings/go"
)

func TestDTypes(t *testing.T) {
	for dtype, wanted := range map[fastnorm.DType]struct {
		name string
		bits int
		of   fastnorm.Tensor
	}{
		fastnorm.F32:        {"f32", 32, fastnorm.Of([]float32{1}, 1)},
		fastnorm.F16:        {"f16", 16, fastnorm.Of([]fastnorm.Float16{1}, 1)},
		fastnorm.BF16:       {"bf16", 16, fastnorm.Of([]fastnorm.BFloat16{1}, 1)},
		fastnorm.F8E4M3FN:   {"f8_e4m3fn", 8, fastnorm.Of([]fastnorm.Float8E4M3FN{1}, 1)},
		fastnorm.F8E5M2:     {"f8_e5m2", 8, fastnorm.Of([]fastnorm.Float8E5M2{1}, 1)},
		fastnorm.F8E8M0FNU:  {"f8_e8m0fnu", 8, fastnorm.Of([]fastnorm.Float8E8M0FNU{1}, 1)},
		fastnorm.F4E2M1FN:   {"f4_e2m1fn", 4, fastnorm.View([]byte{1}, fastnorm.F4E2M1FN, 2)},
		fastnorm.F4E2M1FNx2: {"f4_e2m1fn_x2", 8, fastnorm.Of([]fastnorm.Float4E2M1FNx2{1}, 1)},
		fastnorm.I8:         {"i8", 8, fastnorm.Of([]int8{1}, 1)},
		fastnorm.U8:         {"u8", 8, fastnorm.Of([]uint8{1}, 1)},
		fastnorm.I32:        {"i32", 32, fastnorm.Of([]int32{1}, 1)},
		fastnorm.I64:        {"i64", 64, fastnorm.Of([]int64{1}, 1)},
	} {
		equal(t, "name", dtype.String(), wanted.name)
		equal(t, wanted.name+": bits", dtype.Bits(), wanted.bits)
		equal(t, wanted.name+": of its slice", wanted.of.DType(), dtype)
		if dtype > fastnorm.F16 && dtype != fastnorm.BF16 && dtype != fastnorm.F32 ||
			dtype == fastnorm.I8 || dtype == fastnorm.U8 {
			// The library knows it by the same name.
			err := cpu(t).Norm(fastnorm.Norm{X: wanted.of, Y: wanted.of})
			wantError(t, err, fastnorm.ErrDType, "x.dtype is "+wanted.name+";")
		}
	}
	equal(t, "an unknown dtype", fastnorm.DType(0x90807).String(), "{code 7, bits 8, lanes 9}")
}

func TestTensor(t *testing.T) {
	none := fastnorm.Tensor{}
	equal(t, "given", none.Given(), false)
	v := fastnorm.View([]uint16{1, 2, 3, 4, 5, 6}, fastnorm.BF16, 2, 3)
	equal(t, "given", v.Given(), true)
	equal(t, "dtype", v.DType(), fastnorm.BF16)
	equal(t, "device", v.Device(), fastnorm.CPU)
	equals(t, "shape", v.Shape(), 2, 3)
	equal(t, "compact", v.Strides() == nil, true)
	s := v.WithStrides(-3, 1).WithOffset(6)
	equals(t, "strides", s.Strides(), -3, 1)
	equal(t, "offset", s.Offset(), 6)
	equals(t, "shape", s.Shape(), 2, 3)
	equal(t, "the first is unchanged", v.Strides() == nil && v.Offset() == 0, true)
	equal(t, "wrong strides", v.WithStrides(1).Strides() == nil, true)
	wide := fastnorm.At(fastnorm.CUDA(2), 64, fastnorm.F32, 1, 2, 3, 4, 5, 6)
	equals(t, "a wide shape", wide.Shape(), 1, 2, 3, 4, 5, 6)
	equals(t, "wide strides", wide.WithStrides(6, 5, 4, 3, 2, 1).Strides(), 6, 5, 4, 3, 2, 1)
	equals(t, "its shape", wide.WithStrides(6, 5, 4, 3, 2, 1).WithOffset(8).Shape(), 1, 2, 3, 4, 5, 6)
	equal(t, "its device", wide.Device(), fastnorm.CUDA(2))
}

func same(a, b float32) bool { return a == b || a != a && b != b }

// Every 16-bit value survives; every value between two neighbours goes to the nearer, ties to the
// even one.
func TestConversions(t *testing.T) {
	wrong := 0
	fail := func(format string, arguments ...any) {
		if wrong++; wrong < 10 {
			t.Errorf(format, arguments...)
		}
	}
	type conversion struct {
		name   string
		decode func(uint16) float32
		encode func(float32) uint16
	}
	for _, c := range []conversion{
		{"f16", func(b uint16) float32 { return fastnorm.Float16(b).Float32() },
			func(f float32) uint16 { return uint16(fastnorm.ToFloat16(f)) }},
		{"bf16", func(b uint16) float32 { return fastnorm.BFloat16(b).Float32() },
			func(f float32) uint16 { return uint16(fastnorm.ToBFloat16(f)) }},
	} {
		for i := range 1 << 16 {
			b := uint16(i)
			value := c.decode(b)
			if value != value {
				if back := c.decode(c.encode(value)); back == back {
					fail("%s: %#x is a NaN and comes back as %v", c.name, b, back)
				}
				continue
			}
			if back := c.encode(value); back != b {
				fail("%s: %#x is %v and comes back as %#x", c.name, b, value, back)
			}
			next := float64(c.decode(b + 1))
			if b&0x7fff == 0x7fff || next != next || math.IsInf(float64(value), 0) {
				continue
			}
			if math.IsInf(next, 0) { // rounds as if the exponent went on
				next = 2*float64(value) - float64(c.decode(b-1))
			}
			half := float32((float64(value) + next) / 2)
			even := b + b&1
			for _, one := range []struct {
				f      float32
				wanted uint16
			}{
				{half, even},
				{math.Nextafter32(half, value), b},
				{math.Nextafter32(half, float32(math.Inf(1))*sign(value)), b + 1},
			} {
				if found := c.encode(one.f); found != one.wanted {
					fail("%s: %v becomes %#x, required: %#x", c.name, one.f, found, one.wanted)
				}
			}
		}
	}
	for range 100000 { // f16 by its definition
		f := math.Float32frombits(rand.Uint32())
		if f != f {
			continue
		}
		found := fastnorm.ToFloat16(f).Float32()
		step := math.Ldexp(1, max(math.Ilogb(math.Abs(float64(f))), -14)-10)
		wanted := float32(math.RoundToEven(float64(f)/step) * step)
		if math.Abs(float64(wanted)) > 65504 {
			wanted = float32(math.Inf(1)) * sign(f)
		}
		if found != wanted {
			fail("f16: %v becomes %v, required: %v", f, found, wanted)
		}
	}
}

func sign(f float32) float32 { return float32(math.Copysign(1, float64(f))) }

func TestSmallFloats(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, one := range []struct {
		name          string
		found, wanted float32
	}{
		{"e4m3fn", fastnorm.Float8E4M3FN(0x7e).Float32(), 448},
		{"e4m3fn", fastnorm.Float8E4M3FN(0xfe).Float32(), -448},
		{"e4m3fn", fastnorm.Float8E4M3FN(0x38).Float32(), 1},
		{"e4m3fn", fastnorm.Float8E4M3FN(0x01).Float32(), 1.0 / 512},
		{"e4m3fn", fastnorm.Float8E4M3FN(0x08).Float32(), 1.0 / 64},
		{"e4m3fn", fastnorm.Float8E4M3FN(0x7f).Float32(), nan},
		{"e4m3fn", fastnorm.Float8E4M3FN(0xff).Float32(), nan},
		{"e5m2", fastnorm.Float8E5M2(0x7b).Float32(), 57344},
		{"e5m2", fastnorm.Float8E5M2(0x7c).Float32(), inf},
		{"e5m2", fastnorm.Float8E5M2(0xfc).Float32(), -inf},
		{"e5m2", fastnorm.Float8E5M2(0x7d).Float32(), nan},
		{"e5m2", fastnorm.Float8E5M2(0x3e).Float32(), 1.5},
		{"e5m2", fastnorm.Float8E5M2(0x01).Float32(), 1.0 / 65536},
		{"e8m0", fastnorm.Float8E8M0FNU(127).Float32(), 1},
		{"e8m0", fastnorm.Float8E8M0FNU(0).Float32(), float32(math.Ldexp(1, -127))},
		{"e8m0", fastnorm.Float8E8M0FNU(254).Float32(), float32(math.Ldexp(1, 127))},
		{"e8m0", fastnorm.Float8E8M0FNU(255).Float32(), nan},
	} {
		if !same(one.found, one.wanted) {
			t.Errorf("%s: %v, required: %v", one.name, one.found, one.wanted)
		}
	}
	values := []float32{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	for i := range 256 {
		first, second := fastnorm.Float4E2M1FNx2(i).Float32()
		wanted := func(code int) float32 {
			if code >= 8 {
				return -values[code-8]
			}
			return values[code]
		}
		if first != wanted(i&15) || second != wanted(i>>4) {
			t.Errorf("e2m1: %#x is %v, %v", i, first, second)
		}
	}
}
