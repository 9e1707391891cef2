package dev.fastnorm;

/** Where a gate multiplies. */
public enum GatePosition {
    /** The normalised row. Qwen3-Next, Kimi Linear. */
    AFTER_NORM(fastnorm_gate_position.FASTNORM_GATE_AFTER_NORM),
    /** x, before the residual and the statistics. Mamba2. */
    BEFORE_NORM(fastnorm_gate_position.FASTNORM_GATE_BEFORE_NORM);

    final int id;

    GatePosition(int id) {
        this.id = id;
    }
}
