package dev.fastnorm;

/** Where the result is rounded to x's dtype on its way. */
public enum Rounding {
    /** Only when y is stored. FlashInfer, quack, Transformer Engine, Gemma. */
    ONCE(fastnorm_rounding.FASTNORM_ROUND_ONCE),
    /** Also the normalised value, before the weight. Llama, Mistral and Qwen as published. */
    NORMALIZED(fastnorm_rounding.FASTNORM_ROUND_NORMALIZED),
    /** Every elementwise result, as a chain of 16-bit operations does. */
    EVERY_STEP(fastnorm_rounding.FASTNORM_ROUND_EVERY_STEP),
    /** Only when y is stored, of x * (rstd * weight): vLLM's fused query/key norm and rope. */
    ONCE_RW(fastnorm_rounding.FASTNORM_ROUND_ONCE_RW);

    final int id;

    Rounding(int id) {
        this.id = id;
    }
}
