package dev.fastnorm;

/**
 * The specification of one row, in double. Operations on floats are done in double and rounded to
 * float, which gives the float operation's own result for + - * / and the square root; product and
 * bias are one fused operation unless every step is rounded. Where the sums
 * are exact in float, so that their order does not matter, the result is exact to the bit.
 */
final class Reference {
    private final DType dtype;
    private final boolean layer;
    private final double eps;
    private final double weightOffset;
    private final Rounding rounding;

    double mean;
    double rstd;

    Reference(DType dtype, boolean layer, double eps, double weightOffset, Rounding rounding) {
        this.dtype = dtype;
        this.layer = layer;
        this.eps = (float) eps;
        this.weightOffset = (float) weightOffset;
        this.rounding = rounding;
    }

    /**
     * y of one row; the rounded sums with the residual are in `row` already. Null is no weight, no
     * bias.
     */
    double[] run(double[] row, double[] weight, double[] bias) {
        int n = row.length;
        mean = 0;
        if (layer) {
            for (double a : row) {
                mean += a;
            }
            mean = step((float) (mean * (float) (1.0 / n)));
        }
        double squares = 0;
        for (double a : row) {
            double centred = step(a - mean);
            squares += step(centred * centred);
        }
        double variance = step((float) (squares * (float) (1.0 / n)));
        rstd = step(1.0 / (float) Math.sqrt(step(variance + eps)));
        double[] y = new double[n];
        for (int i = 0; i < n; i++) {
            double t = step(step(row[i] - mean) * rstd);
            t = rounding == Rounding.NORMALIZED ? round(dtype, t) : t;
            double g = weight == null ? 1 : step(weight[i] + weightOffset);
            double b = bias == null ? -0.0 : bias[i]; // adding -0 changes nothing
            if (rounding == Rounding.ONCE_RW) {
                t = (float) (row[i] - mean);
                g = (float) (rstd * g);
            }
            y[i] = round(dtype, rounding == Rounding.EVERY_STEP
                    ? step(step(t * g) + b)
                    : Math.fma((float) t, (float) g, (float) b));
        }
        return y;
    }

    /** The result of one operation. */
    private double step(double value) {
        return rounding == Rounding.EVERY_STEP ? round(dtype, (float) value) : (float) value;
    }

    /** To the nearest value of a dtype, ties to even. Finite, not subnormal. */
    static double round(DType dtype, double value) {
        if (dtype == DType.F32 || value == 0) {
            return (float) value;
        }
        int bits = dtype == DType.BF16 ? 8 : 11;
        double unit = Math.scalb(1.0, Math.getExponent(value) - bits + 1);
        return Math.rint(value / unit) * unit;
    }

    /** The bits of a value that the dtype holds exactly: F16 or BF16. */
    static short bits16(DType dtype, double value) {
        int bits = Float.floatToRawIntBits((float) value);
        if (dtype == DType.BF16) {
            return (short) (bits >>> 16);
        }
        int sign = bits >>> 16 & 0x8000;
        return (short) (value == 0 ? sign
                : sign | ((bits >>> 23 & 0xff) - 112) << 10 | bits >>> 13 & 0x3ff);
    }

    static double value16(DType dtype, short bits) {
        if (dtype == DType.BF16) {
            return Float.intBitsToFloat(bits << 16);
        }
        int magnitude = bits & 0x7fff;
        float value = magnitude == 0 ? 0 : Float.intBitsToFloat((magnitude << 13) + (112 << 23));
        return bits < 0 ? -value : value;
    }
}
