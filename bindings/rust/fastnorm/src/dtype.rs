//! Element types: their names, and the Rust types that have them.

use crate::sys;
use half::{bf16, f16};
use std::fmt;

/// An element type, numbered as in DLPack.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DType(sys::fastnorm_dtype_id);

impl DType {
    /// IEEE single precision.
    pub const F32: Self = Self(sys::FASTNORM_DTYPE_F32);
    /// IEEE half precision.
    pub const F16: Self = Self(sys::FASTNORM_DTYPE_F16);
    /// The upper half of a single.
    pub const BF16: Self = Self(sys::FASTNORM_DTYPE_BF16);
    /// fp8 with 4 exponent and 3 mantissa bits, no infinities.
    pub const F8_E4M3: Self = Self(sys::FASTNORM_DTYPE_F8_E4M3FN);
    /// fp8 with 5 exponent and 2 mantissa bits.
    pub const F8_E5M2: Self = Self(sys::FASTNORM_DTYPE_F8_E5M2);
    /// A power of two in 8 bits: a scale.
    pub const F8_E8M0: Self = Self(sys::FASTNORM_DTYPE_F8_E8M0FNU);
    /// fp4, one number an element, two to a byte.
    pub const F4_E2M1: Self = Self(sys::FASTNORM_DTYPE_F4_E2M1FN);
    /// fp4, two numbers an element of one byte, the first in the low nibble.
    pub const F4_E2M1_X2: Self = Self(sys::FASTNORM_DTYPE_F4_E2M1FN_X2);
    /// Signed 8-bit integer.
    pub const I8: Self = Self(sys::FASTNORM_DTYPE_I8);
    /// Unsigned 8-bit integer.
    pub const U8: Self = Self(sys::FASTNORM_DTYPE_U8);
    /// Signed 32-bit integer.
    pub const I32: Self = Self(sys::FASTNORM_DTYPE_I32);
    /// Signed 64-bit integer.
    pub const I64: Self = Self(sys::FASTNORM_DTYPE_I64);

    /// From DLPack's three numbers: `DLDataTypeCode`, bits of a number, numbers to an element.
    pub const fn from_parts(code: u8, bits: u8, lanes: u16) -> Self {
        Self(code as u32 | (bits as u32) << 8 | (lanes as u32) << 16)
    }

    /// `DLDataTypeCode`.
    pub const fn code(self) -> u8 {
        self.raw().code
    }

    /// Bits of one number.
    pub const fn bits(self) -> u8 {
        self.raw().bits
    }

    /// Numbers to an element.
    pub const fn lanes(self) -> u16 {
        self.raw().lanes
    }

    /// Bits of an element.
    pub(crate) const fn element_bits(self) -> usize {
        self.bits() as usize * self.lanes() as usize
    }

    pub(crate) const fn id(self) -> sys::fastnorm_dtype_id {
        self.0
    }

    /// What a tensor of the C ABI has.
    #[inline]
    pub const fn raw(self) -> sys::fastnorm_dtype {
        sys::fastnorm_dtype_of(self.0)
    }

    pub(crate) const fn from_raw(raw: sys::fastnorm_dtype) -> Self {
        Self::from_parts(raw.code, raw.bits, raw.lanes)
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F8_E4M3 => "f8_e4m3fn",
            Self::F8_E5M2 => "f8_e5m2",
            Self::F8_E8M0 => "f8_e8m0fnu",
            Self::F4_E2M1 => "f4_e2m1fn",
            Self::F4_E2M1_X2 => "f4_e2m1fn_x2",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I32 => "i32",
            Self::I64 => "i64",
            _ => {
                let (code, bits, lanes) = (self.code(), self.bits(), self.lanes());
                return write!(f, "dtype(code {code}, {bits} bits, {lanes} lanes)");
            }
        };
        f.write_str(name)
    }
}

/// A Rust type that can be an element of a tensor in host memory.
///
/// # Safety
/// Every bit pattern is a value of the type, it has no padding, and its size is that of an element
/// of `DTYPE`.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// The element type that it is in memory.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),* $(,)?) => {$(
        const _: () = assert!(DType::$dtype.element_bits() == 8 * size_of::<$type>());
        // SAFETY: a number of that format, or bits that are one; the assertion compares the sizes.
        unsafe impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements! {
    f32 => F32, f16 => F16, bf16 => BF16, i8 => I8, u8 => U8, i32 => I32, i64 => I64,
    F8E4M3 => F8_E4M3, F8E5M2 => F8_E5M2, F8E8M0 => F8_E8M0, F4x2E2M1 => F4_E2M1_X2,
}

macro_rules! small_floats {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            /// The value with these bits.
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            /// Its bits.
            pub const fn to_bits(self) -> u8 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.to_f32())
            }
        }
    )*};
}

small_floats! {
    /// An fp8 number with 4 exponent and 3 mantissa bits: up to 448, NaN, no infinities. Equal
    /// means equal bits.
    F8E4M3
    /// An fp8 number with 5 exponent and 2 mantissa bits: up to 57344, infinities, NaN. Equal means
    /// equal bits.
    F8E5M2
    /// A power of two, 2^(bits - 127), or NaN (255).
    F8E8M0
    /// Two fp4 numbers of 2 exponent bits and 1 mantissa bit, up to 6, the first in the low nibble.
    F4x2E2M1
}

impl F8E4M3 {
    /// This number in single precision.
    pub fn to_f32(self) -> f32 {
        let (exponent, mantissa) = (u32::from(self.0 >> 3 & 15), u32::from(self.0 & 7));
        let magnitude = match (exponent, mantissa) {
            (15, 7) => f32::NAN,
            (0, _) => f32::from(self.0 & 7) * f32::from_bits((127 - 9) << 23), // multiples of 2^-9
            _ => f32::from_bits((exponent + 127 - 7) << 23 | mantissa << 20),
        };
        if self.0 & 0x80 == 0 {
            magnitude
        } else {
            -magnitude
        }
    }
}

impl F8E5M2 {
    /// This number in single precision.
    pub fn to_f32(self) -> f32 {
        f16::from_bits(u16::from(self.0) << 8).to_f32()
    }
}

impl F8E8M0 {
    /// This number in single precision.
    pub fn to_f32(self) -> f32 {
        match self.0 {
            0 => f32::from_bits(1 << 22), // 2^-127 is subnormal
            255 => f32::NAN,
            bits => f32::from_bits(u32::from(bits) << 23),
        }
    }
}

impl F4x2E2M1 {
    /// These two numbers in single precision.
    pub fn to_f32(self) -> [f32; 2] {
        const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        [self.0 & 15, self.0 >> 4].map(|code| {
            let magnitude = MAGNITUDES[usize::from(code & 7)];
            if code & 8 == 0 {
                magnitude
            } else {
                -magnitude
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::float_cmp, clippy::cast_precision_loss)]
    fn small_floats_by_their_definition() {
        let e4m3 = |bits| F8E4M3::from_bits(bits).to_f32();
        assert_eq!(
            [e4m3(0x00), e4m3(0x01), e4m3(0x08)],
            [0.0, 0.001_953_125, 0.015_625]
        );
        assert_eq!(
            [e4m3(0x38), e4m3(0x39), e4m3(0x7e), e4m3(0xfe)],
            [1.0, 1.125, 448.0, -448.0]
        );
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        for bits in 0..0x7eu8 {
            let step = 1.0 / 512.0 * (1u32 << (bits >> 3).saturating_sub(1)) as f32;
            assert_eq!(e4m3(bits + 1) - e4m3(bits), step, "after {bits:#x}");
        }
        let e5m2 = |bits| F8E5M2::from_bits(bits).to_f32();
        assert_eq!(
            [e5m2(0x3c), e5m2(0x7b), e5m2(0xfc)],
            [1.0, 57344.0, f32::NEG_INFINITY]
        );
        let e8m0 = |bits| F8E8M0::from_bits(bits).to_f32();
        assert_eq!(
            [e8m0(0), e8m0(1), e8m0(127), e8m0(254)],
            [
                f32::MIN_POSITIVE / 2.0,
                f32::MIN_POSITIVE,
                1.0,
                (1u128 << 127) as f32
            ]
        );
        assert!(e8m0(255).is_nan());
        assert_eq!(F4x2E2M1::from_bits(0xf1).to_f32(), [0.5, -6.0]);
    }

    #[test]
    fn parts_and_names() {
        assert_eq!(DType::from_parts(4, 16, 1), DType::BF16);
        assert_eq!(DType::from_raw(DType::F8_E5M2.raw()), DType::F8_E5M2);
        assert_eq!(format!("{:?}", DType::F4_E2M1_X2), "f4_e2m1fn_x2");
        assert_eq!(
            format!("{:?}", DType::from_parts(2, 64, 1)),
            "dtype(code 2, 64 bits, 1 lanes)"
        );
    }
}
