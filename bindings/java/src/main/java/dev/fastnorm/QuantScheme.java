package dev.fastnorm;

/** How the quantised output is scaled. */
public enum QuantScheme {
    /** There is none. */
    NONE(fastnorm_quant_scheme.FASTNORM_QUANT_NONE),
    /** One scale, an input. */
    PER_TENSOR(fastnorm_quant_scheme.FASTNORM_QUANT_PER_TENSOR),
    /** A scale for each row, from the row's largest magnitude. */
    PER_ROW(fastnorm_quant_scheme.FASTNORM_QUANT_PER_ROW),
    /** A scale for each block of 64 or 128 columns of a row. */
    PER_BLOCK(fastnorm_quant_scheme.FASTNORM_QUANT_PER_BLOCK),
    /** 8-bit floats with a power-of-two scale for 32 columns. */
    MXFP8(fastnorm_quant_scheme.FASTNORM_QUANT_MXFP8),
    /** 4-bit floats with an e4m3 scale for 16 columns and a global scale. */
    NVFP4(fastnorm_quant_scheme.FASTNORM_QUANT_NVFP4),
    /** 4-bit floats with a power-of-two scale for 32 columns. */
    MXFP4(fastnorm_quant_scheme.FASTNORM_QUANT_MXFP4);

    final int id;

    QuantScheme(int id) {
        this.id = id;
    }
}
