package dev.fastnorm;

/** Where the sum of branch and residual is rounded to x's dtype on its way. */
public enum SumRounding {
    /** Nowhere: the product with alpha and the sum are one operation. */
    ONCE(fastnorm_sum_rounding.FASTNORM_SUM_ONCE),
    /** The product with alpha, the sum, and the product with the scale of the sum. */
    EVERY_STEP(fastnorm_sum_rounding.FASTNORM_SUM_EVERY_STEP);

    final int id;

    SumRounding(int id) {
        this.id = id;
    }
}
