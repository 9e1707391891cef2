package dev.fastnorm;

/**
 * One part of {@link NormHeadsBackward}: dy of {@code [tokens, heads, d]}, and what the forward did
 * to each of its rows of d columns. Every step is optional:
 *
 * <pre>
 * dv = rope of dy, turned back          rope; else dv = dy
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
public final class NormHeadsBackwardPart {
    private final Description description = new Description(
            Words.NORM_HEADS_BACKWARD_PART_MASK, Words.NORM_HEADS_BACKWARD_PART_MAX_WORDS);

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
     * The forward turned the first columns of a row.
     *
     * @return this
     */
    public NormHeadsBackwardPart rope() {
        return rope(0);
    }

    /**
     * The forward turned columns.
     *
     * @param offset the first of them; -1 for the last ones
     * @return this
     */
    public NormHeadsBackwardPart rope(int offset) {
        description.set(Words.NORM_HEADS_BACKWARD_PART_ROPE_OFFSET, offset);
        return flag(fastnorm_norm_heads_part_flags.FASTNORM_NORM_HEADS_ROPE, true);
    }

    /**
     * Sets whether the forward's pairs are neighbours, as in GPT-J.
     *
     * @param on whether; the default is false
     * @return this
     */
    public NormHeadsBackwardPart ropeInterleaved(boolean on) {
        final int bit = fastnorm_norm_heads_part_flags.FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
        return flag(bit, on);
    }

    /**
     * Sets whether the forward turned back.
     *
     * @param on whether; the default is false
     * @return this
     */
    public NormHeadsBackwardPart ropeInverse(boolean on) {
        final int bit = fastnorm_norm_heads_part_flags.FASTNORM_NORM_HEADS_ROPE_INVERSE;
        return flag(bit, on);
    }

    /**
     * Sets whether the forward took one statistic for all heads of a token.
     *
     * @param on whether; the default is false
     * @return this
     */
    public NormHeadsBackwardPart acrossHeads(boolean on) {
        final int bit = fastnorm_norm_heads_part_flags.FASTNORM_NORM_HEADS_ACROSS_HEADS;
        return flag(bit, on);
    }

    /**
     * Adds to what is in dweight, after the sum over the rows and in F32.
     *
     * @param on whether to; the default is false
     * @return this
     */
    public NormHeadsBackwardPart accumulateDweight(boolean on) {
        final int bit = fastnorm_norm_heads_backward_flags.FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT;
        return flag(bit, on);
    }

    /**
     * Adds to what is in dbias, after the sum over the rows and in F32.
     *
     * @param on whether to; the default is false
     * @return this
     */
    public NormHeadsBackwardPart accumulateDbias(boolean on) {
        final int bit = fastnorm_norm_heads_backward_flags.FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS;
        return flag(bit, on);
    }

    /**
     * Sets what the forward adds to the weight.
     *
     * @param offset the forward's; the default is 0
     * @return this
     */
    public NormHeadsBackwardPart weightOffset(double offset) {
        description.set(Words.NORM_HEADS_BACKWARD_PART_WEIGHT_OFFSET, (float) offset);
        return this;
    }

    /**
     * Sets where the forward's norm rounds on its way.
     *
     * @param rounding the forward's; the default is {@link Rounding#ONCE}
     * @return this
     */
    public NormHeadsBackwardPart rounding(Rounding rounding) {
        description.set(Words.NORM_HEADS_BACKWARD_PART_ROUNDING, rounding.id);
        return this;
    }

    /**
     * Sets the forward's weight. The default is 1.
     *
     * @param weight as in {@link NormHeadsPart#weight}
     * @return this
     */
    public NormHeadsBackwardPart weight(Tensor weight) {
        description.input(Words.NORM_HEADS_BACKWARD_PART_BIT_WEIGHT, weight);
        return this;
    }

    /**
     * Sets the forward's means; layer norm only. Not set where {@link #rstd} is not.
     *
     * @param mean statistics, F32
     * @return this
     */
    public NormHeadsBackwardPart mean(Tensor mean) {
        description.input(Words.NORM_HEADS_BACKWARD_PART_BIT_MEAN, mean);
        return this;
    }

    /**
     * Sets the forward's rstd. By default the statistics are computed again from x.
     *
     * @param rstd statistics, F32
     * @return this
     */
    public NormHeadsBackwardPart rstd(Tensor rstd) {
        description.input(Words.NORM_HEADS_BACKWARD_PART_BIT_RSTD, rstd);
        return this;
    }

    /**
     * Sets where the gradient of x goes.
     *
     * @param dx dy's shape, T; may be dy or x
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormHeadsBackwardPart dx(Tensor dx) {
        description.output(Words.NORM_HEADS_BACKWARD_PART_BIT_DX, "dx", dx);
        return this;
    }

    /**
     * Sets where the weight's gradient goes.
     *
     * @param dweight the weight's shape; F32 or its dtype
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormHeadsBackwardPart dweight(Tensor dweight) {
        description.output(Words.NORM_HEADS_BACKWARD_PART_BIT_DWEIGHT, "dweight", dweight);
        return this;
    }

    /**
     * Sets where the bias's gradient goes.
     *
     * @param dbias {@code [d]} or {@code [heads, d]}, as the forward's bias; F32, F16 or BF16
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormHeadsBackwardPart dbias(Tensor dbias) {
        description.output(Words.NORM_HEADS_BACKWARD_PART_BIT_DBIAS, "dbias", dbias);
        return this;
    }

    private NormHeadsBackwardPart flag(int bit, boolean on) {
        description.set(Words.NORM_HEADS_BACKWARD_PART_FLAGS, bit, on);
        return this;
    }

    Description.Encoded encoded() {
        Description.Encoded current = description.encoded();
        return current != null ? current : description.encode(null);
    }
}
