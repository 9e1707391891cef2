package dev.fastnorm;

/**
 * One part of {@link NormHeads}: a tensor x of {@code [tokens, heads, d]} and what is done to each
 * of its rows of d columns. In this order, every step but the first optional:
 *
 * <pre>
 * v         = x
 * v         = norm(v)                    rms or layer: as Norm of the same row
 * v         = v, rounded to T            ropeFromRounded
 * o         = rope(v)                    rope; else o = v
 * y         = o, rounded to T
 * quantized = codes of o, with scale
 * cache     = o, rounded to T, or codes of o
 * </pre>
 *
 * <p>T is the dtype of x and alike for all parts. d is at most 8192. Last dimensions are
 * contiguous, other strides are free. A part has at least one output. y may be x, as the same view;
 * no other output shares an element with a tensor of the call. Statistics have the shape {@code
 * [tokens, heads]}, or {@code [tokens]} with {@link #acrossHeads}.
 *
 * <p>A setter that is given null takes the tensor away again.
 */
public final class NormHeadsPart extends NormHeadsPartFields {
    private NormHeadsPart(Tensor x) {
        NativeLibrary.load();
        description.input(Words.NORM_HEADS_PART_BIT_X, x);
    }

    /**
     * Begins a part, which copies until it is told to do more.
     *
     * @param x {@code [tokens, heads, d]}; F32, F16 or BF16
     * @return the part
     */
    public static NormHeadsPart of(Tensor x) {
        return new NormHeadsPart(x);
    }

    /**
     * Adds an RMS norm: nothing is subtracted.
     *
     * @param eps added to the mean square, as a float; finite and at least 0
     * @return this
     */
    public NormHeadsPart rms(double eps) {
        return norm(fastnorm_norm_kind.FASTNORM_NORM_RMS, eps);
    }

    /**
     * Adds a layer norm: the mean is subtracted.
     *
     * @param eps added to the variance, as a float; finite and at least 0
     * @return this
     */
    public NormHeadsPart layer(double eps) {
        return norm(fastnorm_norm_kind.FASTNORM_NORM_LAYER, eps);
    }

    private NormHeadsPart norm(int kind, double eps) {
        description.set(Words.NORM_HEADS_PART_KIND, kind);
        description.set(Words.NORM_HEADS_PART_EPS, (float) eps);
        return flag(fastnorm_norm_heads_part_flags.FASTNORM_NORM_HEADS_NORM, true);
    }

    /**
     * Adds rope of the first columns of a row.
     *
     * @return this
     */
    public NormHeadsPart rope() {
        return rope(0);
    }

    /**
     * Adds rope.
     *
     * @param offset the first column that is rotated; -1 for the last ones
     * @return this
     */
    public NormHeadsPart rope(int offset) {
        description.set(Words.NORM_HEADS_PART_ROPE_OFFSET, offset);
        return flag(fastnorm_norm_heads_part_flags.FASTNORM_NORM_HEADS_ROPE, true);
    }

    // --- inside ---

    private NormHeadsPart flag(int bit, boolean on) {
        description.set(Words.NORM_HEADS_PART_FLAGS, bit, on);
        return this;
    }

    Description.Encoded encoded() {
        Description.Encoded current = description.kept();
        return current != null ? current : description.encode(problem());
    }

    private String problem() {
        String ofScale = quant.readOnlyScale(Words.QUANT_BIT_SCALE, "quant.scale",
                Words.QUANT_SCHEME);
        String ofCache = cacheQuant.readOnlyScale(Words.QUANT_BIT_SCALE, "cache_quant.scale",
                Words.QUANT_SCHEME);
        return ofScale != null ? ofScale : ofCache;
    }
}
