package dev.fastnorm;

/**
 * How a code is made of a value and its scale. With scales that are powers of two both are the
 * same.
 */
public enum QuantDivision {
    /** Times the rounded reciprocal of the scale. */
    MULTIPLY_RECIPROCAL(fastnorm_quant_division.FASTNORM_QUANT_MULTIPLY_RECIPROCAL),
    /** Divided by the scale, as vLLM's dynamic fp8. */
    DIVIDE(fastnorm_quant_division.FASTNORM_QUANT_DIVIDE);

    final int id;

    QuantDivision(int id) {
        this.id = id;
    }
}
