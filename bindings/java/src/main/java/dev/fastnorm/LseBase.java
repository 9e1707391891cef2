package dev.fastnorm;

/** Base of the logarithm in {@link MlaDecode#lse}. */
public enum LseBase {
    /** The natural logarithm, as in PyTorch and FlashMLA. */
    NATURAL(fastnorm_lse_base.FASTNORM_LSE_NATURAL),
    /** The natural one times log2(e), as in FlashInfer. */
    BASE_2(fastnorm_lse_base.FASTNORM_LSE_BASE_2);

    final int id;

    LseBase(int id) {
        this.id = id;
    }
}
