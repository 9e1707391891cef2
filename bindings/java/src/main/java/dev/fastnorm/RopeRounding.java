package dev.fastnorm;

/** Where rope rounds to x's dtype on its way. */
public enum RopeRounding {
    /** Only when the result is stored. FlashInfer, vLLM, SGLang. */
    ONCE(fastnorm_rope_rounding.FASTNORM_ROPE_ONCE),
    /** Every product, too, as a chain of 16-bit operations does. */
    EVERY_STEP(fastnorm_rope_rounding.FASTNORM_ROPE_EVERY_STEP);

    final int id;

    RopeRounding(int id) {
        this.id = id;
    }
}
