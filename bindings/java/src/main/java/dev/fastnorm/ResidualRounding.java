package dev.fastnorm;

/**
 * Which value of the sum x + residual is used. R is the dtype of residual_out, or of the residual
 * where there is no residual_out.
 */
public enum ResidualRounding {
    /** The single-precision sum. */
    EXACT(fastnorm_residual_rounding.FASTNORM_RESIDUAL_EXACT),
    /** Statistics of the single-precision sum; the normalised value from the sum rounded to R. */
    ROUND_BEFORE_APPLY(fastnorm_residual_rounding.FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY),
    /** Both from the sum rounded to R, as a separate addition would. */
    ROUND_BEFORE_STATISTICS(fastnorm_residual_rounding.FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS);

    final int id;

    ResidualRounding(int id) {
        this.id = id;
    }
}
