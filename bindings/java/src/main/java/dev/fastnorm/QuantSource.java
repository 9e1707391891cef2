package dev.fastnorm;

/** What is quantised. */
public enum QuantSource {
    /** The unrounded result. */
    F32(fastnorm_quant_source.FASTNORM_QUANT_FROM_F32),
    /** The result rounded to x's dtype, as an unfused chain would. */
    ROUNDED(fastnorm_quant_source.FASTNORM_QUANT_FROM_ROUNDED);

    final int id;

    QuantSource(int id) {
        this.id = id;
    }
}
