package dev.fastnorm;

/** A function of each element, with the same bits on every device. */
public enum Activation {
    /** v. */
    IDENTITY(fastnorm_activation.FASTNORM_ACTIVATION_IDENTITY),
    /** v / (1 + exp(-v)); -0 from -110 down. */
    SILU(fastnorm_activation.FASTNORM_ACTIVATION_SILU),
    /** 1 / (1 + exp(-v)). */
    SIGMOID(fastnorm_activation.FASTNORM_ACTIVATION_SIGMOID),
    /** tanh(v). */
    TANH(fastnorm_activation.FASTNORM_ACTIVATION_TANH);

    final int id;

    Activation(int id) {
        this.id = id;
    }
}
