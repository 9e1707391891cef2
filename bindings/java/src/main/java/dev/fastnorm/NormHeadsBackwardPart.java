package dev.fastnorm;

/**
 * One part of {@link NormHeadsBackward}: dy of {@code [tokens, heads, d]}, and what the forward did
 * to each of its rows of d columns. Every step is optional:
 *
 * <pre>
 * dv = rope of dy, rotated back         rope; else dv = dy
 * dx = the norm's gradient of dv        rms or layer; else dx = dv
 * </pre>
 *
 * <p>T is the dtype of x, or of dx without a norm, and alike for all parts. d is at most 8192. A
 * part has at least one output. dx may be dy or x, as the same view; no other output shares an
 * element with a tensor of the call. Statistics have the shape {@code [tokens, heads]}, or {@code
 * [tokens]} with {@link #acrossHeads}.
 *
 * <p>A setter that is given null takes the tensor away again.
 */
public final class NormHeadsBackwardPart extends NormHeadsBackwardPartFields {
    private NormHeadsBackwardPart(Tensor dy) {
        NativeLibrary.load();
        description.input(Words.NORM_HEADS_BACKWARD_PART_BIT_DY, dy);
    }

    /**
     * Begins a part, which copies until it is told to do more.
     *
     * @param dy {@code [tokens, heads, d]}, T or F32: the gradient of y
     * @return the part
     */
    public static NormHeadsBackwardPart of(Tensor dy) {
        return new NormHeadsBackwardPart(dy);
    }

    /**
     * The forward had an RMS norm.
     *
     * @param eps the forward's; used where {@link #rstd} is not set
     * @param x the forward's: dy's shape, T
     * @return this
     */
    public NormHeadsBackwardPart rms(double eps, Tensor x) {
        return norm(fastnorm_norm_kind.FASTNORM_NORM_RMS, eps, x);
    }

    /**
     * The forward had a layer norm.
     *
     * @param eps the forward's; used where {@link #rstd} is not set
     * @param x the forward's: dy's shape, T
     * @return this
     */
    public NormHeadsBackwardPart layer(double eps, Tensor x) {
        return norm(fastnorm_norm_kind.FASTNORM_NORM_LAYER, eps, x);
    }

    private NormHeadsBackwardPart norm(int kind, double eps, Tensor x) {
        description.set(Words.NORM_HEADS_BACKWARD_PART_KIND, kind);
        description.set(Words.NORM_HEADS_BACKWARD_PART_EPS, (float) eps);
        description.input(Words.NORM_HEADS_BACKWARD_PART_BIT_X, x);
        return flag(fastnorm_norm_heads_part_flags.FASTNORM_NORM_HEADS_NORM, true);
    }

    /**
     * The forward rotated the first columns of a row.
     *
     * @return this
     */
    public NormHeadsBackwardPart rope() {
        return rope(0);
    }

    /**
     * The forward rotated columns.
     *
     * @param offset the first of them; -1 for the last ones
     * @return this
     */
    public NormHeadsBackwardPart rope(int offset) {
        description.set(Words.NORM_HEADS_BACKWARD_PART_ROPE_OFFSET, offset);
        return flag(fastnorm_norm_heads_part_flags.FASTNORM_NORM_HEADS_ROPE, true);
    }

    private NormHeadsBackwardPart flag(int bit, boolean on) {
        description.set(Words.NORM_HEADS_BACKWARD_PART_FLAGS, bit, on);
        return this;
    }

    Description.Encoded encoded() {
        return description.encoded();
    }
}
