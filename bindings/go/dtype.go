package fastnorm

import (
	"fmt"
	"math"
)

// String returns the library's name of the dtype, such as "bf16".
func (d DType) String() string {
	if name, ok := dtypeNames[d]; ok {
		return name
	}
	return fmt.Sprintf("{code %d, bits %d, lanes %d}", uint8(d), uint8(d>>8), uint16(d>>16))
}

// Bits returns the bits of one element.
func (d DType) Bits() int { return int(uint8(d>>8)) * int(uint16(d>>16)) }

// Elements of slices that Go has no type for, by their bits.
type (
	Float16        uint16 // IEEE half precision
	BFloat16       uint16 // the upper half of a float32
	Float8E4M3FN   uint8
	Float8E5M2     uint8
	Float8E8M0FNU  uint8 // 2^(bits - 127); 0xff is NaN
	Float4E2M1FNx2 uint8 // the first in the low nibble
)

// Element is a type whose slices [Of] takes.
type Element interface {
	float32 | Float16 | BFloat16 | Float8E4M3FN | Float8E5M2 | Float8E8M0FNU | Float4E2M1FNx2 |
		int8 | uint8 | int32 | int64
}

func dtypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case float32:
		return F32
	case Float16:
		return F16
	case BFloat16:
		return BF16
	case Float8E4M3FN:
		return F8E4M3FN
	case Float8E5M2:
		return F8E5M2
	case Float8E8M0FNU:
		return F8E8M0FNU
	case Float4E2M1FNx2:
		return F4E2M1FNx2
	case int8:
		return I8
	case uint8:
		return U8
	case int32:
		return I32
	default:
		return I64
	}
}

// ToBFloat16 rounds to nearest even.
func ToBFloat16(f float32) BFloat16 {
	bits := math.Float32bits(f)
	if f != f {
		return BFloat16(bits>>16 | 0x40) // stays a NaN
	}
	return BFloat16((bits + 0x7fff + bits>>16&1) >> 16)
}

// Float32 returns the value.
func (b BFloat16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// ToFloat16 rounds to nearest even; magnitudes from 65520 on give an infinity.
func ToFloat16(f float32) Float16 {
	bits := math.Float32bits(f)
	sign := Float16(bits >> 16 & 0x8000)
	magnitude := bits & 0x7fffffff
	switch {
	case magnitude > 0x7f800000:
		return sign | 0x7e00
	case magnitude >= 0x47800000: // 65536 and above
		return sign | 0x7c00
	case magnitude < 0x38800000: // below 2^-14: a multiple of 2^-24
		// Adding 0.5 leaves the multiple in the low bits, rounded by the addition itself.
		sum := math.Float32frombits(magnitude) + 0.5
		return sign | Float16(math.Float32bits(sum)-0x3f000000)
	}
	// A carry out of the fraction raises the exponent, up to infinity.
	return sign | Float16((magnitude-0x38000000+0xfff+magnitude>>13&1)>>13)
}

// Float32 returns the value.
func (h Float16) Float32() float32 { return smallFloat(uint32(h), 5, 10, true) }

// Float32 returns the value.
func (f Float8E5M2) Float32() float32 { return smallFloat(uint32(f), 5, 2, true) }

// Float32 returns the value; 0x7f and 0xff are NaN, there is no infinity.
func (f Float8E4M3FN) Float32() float32 {
	if f&0x7f == 0x7f {
		return float32(math.NaN())
	}
	return smallFloat(uint32(f), 4, 3, false)
}

// Float32 returns the value.
func (f Float8E8M0FNU) Float32() float32 {
	if f == 0xff {
		return float32(math.NaN())
	}
	return float32(math.Ldexp(1, int(f)-127))
}

// Float32 returns both values.
func (p Float4E2M1FNx2) Float32() (first, second float32) {
	return smallFloat(uint32(p&15), 2, 1, false), smallFloat(uint32(p>>4), 2, 1, false)
}

// smallFloat decodes sign, exponent and fraction; special: the top exponent means infinity and NaN.
func smallFloat(bits uint32, exponentBits, fractionBits int, special bool) float32 {
	bias := 1<<(exponentBits-1) - 1
	exponent := int(bits >> fractionBits & (1<<exponentBits - 1))
	fraction := int(bits & (1<<fractionBits - 1))
	value := math.Ldexp(float64(fraction+1<<fractionBits), exponent-bias-fractionBits)
	if exponent == 0 {
		value = math.Ldexp(float64(fraction), 1-bias-fractionBits)
	} else if special && exponent == 1<<exponentBits-1 {
		value = math.Inf(1)
		if fraction != 0 {
			value = math.NaN()
		}
	}
	if bits>>(exponentBits+fractionBits)&1 != 0 {
		value = -value
	}
	return float32(value)
}
