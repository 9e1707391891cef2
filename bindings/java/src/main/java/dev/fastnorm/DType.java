package dev.fastnorm;

/** The element types of the library. */
public enum DType {
    /** IEEE single precision. */
    F32(fastnorm_dtype_id.FASTNORM_DTYPE_F32),
    /** IEEE half precision. */
    F16(fastnorm_dtype_id.FASTNORM_DTYPE_F16),
    /** bfloat16: the upper half of an {@link #F32}. */
    BF16(fastnorm_dtype_id.FASTNORM_DTYPE_BF16),
    /** 8-bit float with 4 exponent bits, without infinities. */
    F8_E4M3FN(fastnorm_dtype_id.FASTNORM_DTYPE_F8_E4M3FN),
    /** 8-bit float with 5 exponent bits. */
    F8_E5M2(fastnorm_dtype_id.FASTNORM_DTYPE_F8_E5M2),
    /** A power of two in 8 bits: a scale. */
    F8_E8M0FNU(fastnorm_dtype_id.FASTNORM_DTYPE_F8_E8M0FNU),
    /** 4-bit float. Two elements share a byte, the first in the low nibble. */
    F4_E2M1FN(fastnorm_dtype_id.FASTNORM_DTYPE_F4_E2M1FN),
    /** A byte with two 4-bit floats, the first in the low nibble, as one element. */
    F4_E2M1FN_X2(fastnorm_dtype_id.FASTNORM_DTYPE_F4_E2M1FN_X2),
    /** Signed 8-bit integer. */
    I8(fastnorm_dtype_id.FASTNORM_DTYPE_I8),
    /** Unsigned 8-bit integer. */
    U8(fastnorm_dtype_id.FASTNORM_DTYPE_U8),
    /** Signed 32-bit integer. */
    I32(fastnorm_dtype_id.FASTNORM_DTYPE_I32),
    /** Signed 64-bit integer. */
    I64(fastnorm_dtype_id.FASTNORM_DTYPE_I64);

    final int id;

    DType(int id) {
        this.id = id;
    }

    /**
     * Bits of one element, all its lanes included: 4 for {@link #F4_E2M1FN}, else a multiple of 8.
     *
     * @return the number of bits
     */
    public int bits() {
        return (id >> 8 & 0xff) * (id >>> 16);
    }

    /**
     * Bytes that compact elements take, rounded up to whole ones.
     *
     * @param elements number of elements, not negative
     * @return the number of bytes
     * @throws ArithmeticException if it does not fit a {@code long}
     */
    public long bytes(long elements) {
        long bits = Math.multiplyExact(elements, bits());
        return bits / 8 + (bits % 8 == 0 ? 0 : 1);
    }
}
