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
public final class NormHeadsPart {
    private final Description description =
            new Description(Words.NORM_HEADS_PART_MASK, Words.NORM_HEADS_PART_MAX_WORDS);

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

    // --- the norm ---

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

    // --- rope ---

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
     * @param offset the first column that is turned; -1 for the last ones
     * @return this
     */
    public NormHeadsPart rope(int offset) {
        description.set(Words.NORM_HEADS_PART_ROPE_OFFSET, offset);
        return flag(fastnorm_norm_heads_part_flags.FASTNORM_NORM_HEADS_ROPE, true);
    }

    /**
     * Sets whether the columns of a pair are neighbours, as in GPT-J.
     *
     * @param interleaved whether; the default is false: they are R apart, as in NeoX and Llama
     * @return this
     */
    public NormHeadsPart ropeInterleaved(boolean interleaved) {
        final int bit = fastnorm_norm_heads_part_flags.FASTNORM_NORM_HEADS_ROPE_INTERLEAVED;
        return flag(bit, interleaved);
    }

    /**
     * Sets whether rope turns back.
     *
     * @param inverse whether; the default is false
     * @return this
     */
    public NormHeadsPart ropeInverse(boolean inverse) {
        return flag(fastnorm_norm_heads_part_flags.FASTNORM_NORM_HEADS_ROPE_INVERSE, inverse);
    }

    /**
     * Sets whether the norm is rounded to T before rope, as by two separate operations.
     *
     * @param rounded whether; the default is false
     * @return this
     */
    public NormHeadsPart ropeFromRounded(boolean rounded) {
        return flag(fastnorm_norm_heads_part_flags.FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED, rounded);
    }

    /**
     * Sets where rope rounds on its way.
     *
     * @param rounding the place; the default is {@link RopeRounding#ONCE}
     * @return this
     */
    public NormHeadsPart ropeRounding(RopeRounding rounding) {
        description.set(Words.NORM_HEADS_PART_ROPE_ROUNDING, rounding.id);
        return this;
    }

    // --- fields of the norm ---

    /**
     * Sets whether one statistic is taken for all heads of a token.
     *
     * @param across whether; the default is false: each row has its own
     * @return this
     */
    public NormHeadsPart acrossHeads(boolean across) {
        return flag(fastnorm_norm_heads_part_flags.FASTNORM_NORM_HEADS_ACROSS_HEADS, across);
    }

    /**
     * Sets what is added to the weight.
     *
     * @param offset 0, the default, or 1 for Gemma's form; 0 where there is no weight
     * @return this
     */
    public NormHeadsPart weightOffset(double offset) {
        description.set(Words.NORM_HEADS_PART_WEIGHT_OFFSET, (float) offset);
        return this;
    }

    /**
     * Sets where the norm rounds on its way.
     *
     * @param rounding the place; the default is {@link Rounding#ONCE}
     * @return this
     */
    public NormHeadsPart rounding(Rounding rounding) {
        description.set(Words.NORM_HEADS_PART_ROUNDING, rounding.id);
        return this;
    }

    /**
     * Sets the weight. The default is 1.
     *
     * @param weight {@code [d]} or {@code [heads, d]}; F32, F16 or BF16
     * @return this
     */
    public NormHeadsPart weight(Tensor weight) {
        description.input(Words.NORM_HEADS_PART_BIT_WEIGHT, weight);
        return this;
    }

    /**
     * Sets the bias. The default is 0.
     *
     * @param bias as the weight
     * @return this
     */
    public NormHeadsPart bias(Tensor bias) {
        description.input(Words.NORM_HEADS_PART_BIT_BIAS, bias);
        return this;
    }

    /**
     * Sets where the means go; layer norm only.
     *
     * @param mean F32 statistics
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormHeadsPart mean(Tensor mean) {
        description.output(Words.NORM_HEADS_PART_BIT_MEAN, "mean", mean);
        return this;
    }

    /**
     * Sets where the reciprocal standard deviations go.
     *
     * @param rstd F32 statistics
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormHeadsPart rstd(Tensor rstd) {
        description.output(Words.NORM_HEADS_PART_BIT_RSTD, "rstd", rstd);
        return this;
    }

    /**
     * Sets the means to use, with {@link #rstdIn}; layer norm only.
     *
     * @param meanIn F32 statistics
     * @return this
     */
    public NormHeadsPart meanIn(Tensor meanIn) {
        description.input(Words.NORM_HEADS_PART_BIT_MEAN_IN, meanIn);
        return this;
    }

    /**
     * Sets the reciprocal standard deviations to use. By default they are computed.
     *
     * @param rstdIn F32 statistics
     * @return this
     */
    public NormHeadsPart rstdIn(Tensor rstdIn) {
        description.input(Words.NORM_HEADS_PART_BIT_RSTD_IN, rstdIn);
        return this;
    }

    /**
     * Sets where the sums of squares go. Layer norm: with a last extent of 2, the mean and the sum
     * of squares of x - mean.
     *
     * @param sumsq F32 statistics
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormHeadsPart sumsq(Tensor sumsq) {
        description.output(Words.NORM_HEADS_PART_BIT_SUMSQ, "sumsq", sumsq);
        return this;
    }

    // --- results ---

    /**
     * Sets where the result goes.
     *
     * @param y x's shape, T or F32; may be x
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormHeadsPart y(Tensor y) {
        description.output(Words.NORM_HEADS_PART_BIT_Y, "y", y);
        return this;
    }

    /**
     * Sets how the quantised result is scaled.
     *
     * @param scheme the scheme; the default is {@link QuantScheme#NONE}.
     *     {@link QuantScheme#PER_ROW} has a scale for each token and head
     * @return this
     */
    public NormHeadsPart quantScheme(QuantScheme scheme) {
        description.set(Words.NORM_HEADS_PART_QUANT_SCHEME, scheme.id);
        return this;
    }

    /**
     * Sets the columns that share a scale of {@link QuantScheme#PER_BLOCK}.
     *
     * @param columns 64 or 128; 0, the default, for other schemes
     * @return this
     */
    public NormHeadsPart quantBlockSize(int columns) {
        description.set(Words.NORM_HEADS_PART_QUANT_BLOCK_SIZE, columns);
        return this;
    }

    /**
     * Sets what is quantised, for the quantised result and for a cache of codes.
     *
     * @param source the value; the default is {@link QuantSource#F32}
     * @return this
     */
    public NormHeadsPart quantSource(QuantSource source) {
        description.set(Words.NORM_HEADS_PART_QUANT_SOURCE, source.id);
        return this;
    }

    /**
     * Sets how codes are made, with a scale for the tensor, a row or a block: of the quantised
     * result and of a cache.
     *
     * @param division the value; the default is {@link QuantDivision#MULTIPLY_RECIPROCAL}
     * @return this
     */
    public NormHeadsPart quantDivision(QuantDivision division) {
        description.set(Words.NORM_HEADS_PART_QUANT_DIVISION, division.id);
        return this;
    }

    /**
     * Sets the order of the scales in memory; their rows are tokens * heads.
     *
     * @param layout the order; the default is {@link ScaleLayout#ROW_MAJOR}
     * @return this
     */
    public NormHeadsPart scaleLayout(ScaleLayout layout) {
        description.set(Words.NORM_HEADS_PART_SCALE_LAYOUT, layout.id);
        return this;
    }

    /**
     * Sets whether dynamic 8-bit float scales are rounded up to a power of two.
     *
     * @param pow2 whether they are; the default is false
     * @return this
     */
    public NormHeadsPart scalePow2(boolean pow2) {
        description.set(Words.NORM_HEADS_PART_SCALE_POW2, pow2 ? 1 : 0);
        return this;
    }

    /**
     * Sets the least magnitude that a dynamic scale is made from, that of a cache too.
     *
     * @param floor the magnitude, as a float; 0, the default, stands for 1e-10
     * @return this
     */
    public NormHeadsPart amaxFloor(double floor) {
        description.set(Words.NORM_HEADS_PART_AMAX_FLOOR, (float) floor);
        return this;
    }

    /**
     * Sets the bounds that results are clamped to before they are quantised. A cache is not
     * clamped.
     *
     * @param clamp the bounds are -clamp and clamp, as floats; 0, the default, for none
     * @return this
     */
    public NormHeadsPart clamp(double clamp) {
        description.set(Words.NORM_HEADS_PART_CLAMP, (float) clamp);
        return this;
    }

    /**
     * Sets the clamp as a value on the device. It goes with a clamp of 0 alone. A cache is not
     * clamped.
     *
     * @param clampScale {@code [1]}, F32; a value that is not above 0 is off
     * @return this
     */
    public NormHeadsPart clampScale(Tensor clampScale) {
        description.input(Words.NORM_HEADS_PART_BIT_CLAMP_SCALE, clampScale);
        return this;
    }

    /**
     * Sets the second scale of {@link QuantScheme#NVFP4}. The default is 1.
     *
     * @param globalScale {@code [1]}, F32
     * @return this
     */
    public NormHeadsPart globalScale(Tensor globalScale) {
        description.input(Words.NORM_HEADS_PART_BIT_GLOBAL_SCALE, globalScale);
        return this;
    }

    /**
     * Sets where the quantised result goes.
     *
     * @param quantized x's shape, the quantised dtype
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormHeadsPart quantized(Tensor quantized) {
        description.output(Words.NORM_HEADS_PART_BIT_QUANTIZED, "quantized", quantized);
        return this;
    }

    /**
     * Sets the scales: an input for {@link QuantScheme#PER_TENSOR}, else an output.
     *
     * @param scale the scales
     * @return this
     */
    public NormHeadsPart scale(Tensor scale) {
        description.input(Words.NORM_HEADS_PART_BIT_SCALE, scale);
        return this;
    }

    /**
     * Sets where the largest magnitude seen is kept: the larger of it and what is there is stored.
     *
     * @param amax {@code [1]}, F32
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormHeadsPart amax(Tensor amax) {
        description.output(Words.NORM_HEADS_PART_BIT_AMAX, "amax", amax);
        return this;
    }

    // --- the cache ---

    /**
     * Sets the pages that tokens are written to.
     *
     * @param cache {@code [pages, page, heads, d]} of any strides; T, F8_E4M3FN, F8_E5M2 or I8
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormHeadsPart cache(Tensor cache) {
        description.output(Words.NORM_HEADS_PART_BIT_CACHE, "cache", cache);
        return this;
    }

    /**
     * Sets how codes of the cache are scaled.
     *
     * @param scheme {@link QuantScheme#NONE}, the default, for a cache of T; else
     *     {@link QuantScheme#PER_TENSOR} or {@link QuantScheme#PER_BLOCK}
     * @return this
     */
    public NormHeadsPart cacheScheme(QuantScheme scheme) {
        description.set(Words.NORM_HEADS_PART_CACHE_SCHEME, scheme.id);
        return this;
    }

    /**
     * Sets the columns that share a scale of the cache's {@link QuantScheme#PER_BLOCK}.
     *
     * @param columns 64 or 128; 0, the default, for other schemes
     * @return this
     */
    public NormHeadsPart cacheBlockSize(int columns) {
        description.set(Words.NORM_HEADS_PART_CACHE_BLOCK_SIZE, columns);
        return this;
    }

    /**
     * Sets whether scales of blocks of the cache are rounded up to a power of two.
     *
     * @param pow2 whether they are; the default is false
     * @return this
     */
    public NormHeadsPart cachePow2(boolean pow2) {
        description.set(Words.NORM_HEADS_PART_CACHE_POW2, pow2 ? 1 : 0);
        return this;
    }

    /**
     * Sets the scales of the cache: an input of {@code [1]} for {@link QuantScheme#PER_TENSOR},
     * else an output.
     *
     * @param cacheScale F32; with {@link #cachePow2} also F8_E8M0FNU or U8
     * @return this
     */
    public NormHeadsPart cacheScale(Tensor cacheScale) {
        description.input(Words.NORM_HEADS_PART_BIT_CACHE_SCALE, cacheScale);
        return this;
    }

    // --- inside ---

    private NormHeadsPart flag(int bit, boolean on) {
        description.set(Words.NORM_HEADS_PART_FLAGS, bit, on);
        return this;
    }

    Description.Encoded encoded() {
        Description.Encoded current = description.encoded();
        return current != null ? current : description.encode(problem());
    }

    private String problem() {
        String ofScale = description.readOnlyScale(Words.NORM_HEADS_PART_BIT_SCALE, "scale",
                Words.NORM_HEADS_PART_QUANT_SCHEME);
        String ofCache = description.readOnlyScale(Words.NORM_HEADS_PART_BIT_CACHE_SCALE,
                "cache_scale", Words.NORM_HEADS_PART_CACHE_SCHEME);
        return ofScale != null ? ofScale : ofCache;
    }
}
