package dev.fastnorm;

/** What a gate after the norm multiplies. */
public enum GateSource {
    /** The unrounded result. FLA, mamba, vLLM. */
    F32(fastnorm_gate_source.FASTNORM_GATE_FROM_F32),
    /** The result rounded to x's dtype. Hugging Face. */
    ROUNDED(fastnorm_gate_source.FASTNORM_GATE_FROM_ROUNDED);

    final int id;

    GateSource(int id) {
        this.id = id;
    }
}
