package dev.fastnorm;

/**
 * An all-reduce and one norm: a description that is built step by step and then run by all ranks.
 * Rank r has a part of each row in x. All ranks get the same bits:
 *
 * <pre>
 * s = x of rank 0 + x of rank 1 + ..    in rank order, in single precision
 * s = s rounded to x's dtype            unless the sum is {@link PeerSumRounding#EXACT}
 * </pre>
 *
 * <p>and then everything that a {@link Norm} makes of the row s in place of x. Methods that {@link
 * Norm} has too mean the same. A setter that is given null takes the tensor away again.
 */
public final class PeerAllreduceNorm extends PeerCall {
    private final Description description =
            new Description(Words.PEER_ALLREDUCE_NORM_MASK, Words.PEER_ALLREDUCE_NORM_MAX_WORDS);

    private PeerAllreduceNorm(Peer peer, int kind, double eps) {
        super(peer);
        description.set(Words.PEER_ALLREDUCE_NORM_PEER, addressOf(peer));
        set(kind, eps);
    }

    /** Of a handle of NCCL, which has its own peer. */
    PeerAllreduceNorm(Nccl nccl, int kind, double eps) {
        super(nccl);
        set(kind, eps);
    }

    private void set(int kind, double eps) {
        description.set(Words.PEER_ALLREDUCE_NORM_KIND, kind);
        description.set(Words.PEER_ALLREDUCE_NORM_EPS, (float) eps);
    }

    /**
     * Begins an RMS norm.
     *
     * @param peer this rank's end, connected
     * @param eps added to the mean square
     * @return the description
     */
    public static PeerAllreduceNorm rms(Peer peer, double eps) {
        return new PeerAllreduceNorm(peer, fastnorm_norm_kind.FASTNORM_NORM_RMS, eps);
    }

    /**
     * Begins a layer norm.
     *
     * @param peer this rank's end, connected
     * @param eps added to the variance
     * @return the description
     */
    public static PeerAllreduceNorm layer(Peer peer, double eps) {
        return new PeerAllreduceNorm(peer, fastnorm_norm_kind.FASTNORM_NORM_LAYER, eps);
    }

    /**
     * Sets what is added to the weight.
     *
     * @param offset 0, the default, or 1 for Gemma
     * @return this
     */
    public PeerAllreduceNorm weightOffset(double offset) {
        description.set(Words.PEER_ALLREDUCE_NORM_WEIGHT_OFFSET, (float) offset);
        return this;
    }

    /**
     * Sets where else a result is rounded.
     *
     * @param rounding the place; the default is {@link Rounding#ONCE}
     * @return this
     */
    public PeerAllreduceNorm rounding(Rounding rounding) {
        description.set(Words.PEER_ALLREDUCE_NORM_ROUNDING, rounding.id);
        return this;
    }

    /**
     * Sets which value of the sum with the residual is used.
     *
     * @param rounding the value; the default is {@link ResidualRounding#EXACT}
     * @return this
     */
    public PeerAllreduceNorm residualRounding(ResidualRounding rounding) {
        description.set(Words.PEER_ALLREDUCE_NORM_RESIDUAL_ROUNDING, rounding.id);
        return this;
    }

    /**
     * Sets which sum of the ranks goes on.
     *
     * @param rounding the sum; the default is {@link PeerSumRounding#ROUNDED}
     * @return this
     */
    public PeerAllreduceNorm sumRounding(PeerSumRounding rounding) {
        description.set(Words.PEER_ALLREDUCE_NORM_SUM_ROUNDING, rounding.id);
        return this;
    }

    /**
     * Programmatic dependent launch: as {@link Norm#pdlWait}.
     *
     * @param wait whether to; the default is false
     * @return this
     */
    public PeerAllreduceNorm pdlWait(boolean wait) {
        return flag(fastnorm_norm_flags.FASTNORM_NORM_PDL_WAIT, wait);
    }

    /**
     * Programmatic dependent launch: as {@link Norm#pdlTrigger}.
     *
     * @param trigger whether to; the default is false
     * @return this
     */
    public PeerAllreduceNorm pdlTrigger(boolean trigger) {
        return flag(fastnorm_norm_flags.FASTNORM_NORM_PDL_TRIGGER, trigger);
    }

    /**
     * Programmatic dependent launch: as {@link Norm#pdlConstantWeights}.
     *
     * @param constant whether to; the default is false
     * @return this
     */
    public PeerAllreduceNorm pdlConstantWeights(boolean constant) {
        return flag(fastnorm_norm_flags.FASTNORM_NORM_PDL_CONSTANT_WEIGHTS, constant);
    }

    /**
     * Sets this rank's part of the rows. Required.
     *
     * @param x rows of the peer's dtype
     * @return this
     */
    public PeerAllreduceNorm x(Tensor x) {
        description.input(Words.PEER_ALLREDUCE_NORM_BIT_X, x);
        return this;
    }

    /**
     * Sets what is added to the sum. By default nothing is.
     *
     * @param residual as {@link Norm#residual}
     * @return this
     */
    public PeerAllreduceNorm residual(Tensor residual) {
        description.input(Words.PEER_ALLREDUCE_NORM_BIT_RESIDUAL, residual);
        return this;
    }

    /**
     * Sets the weight. The default is 1.
     *
     * @param weight as {@link Norm#weight}
     * @return this
     */
    public PeerAllreduceNorm weight(Tensor weight) {
        description.input(Words.PEER_ALLREDUCE_NORM_BIT_WEIGHT, weight);
        return this;
    }

    /**
     * Sets the bias. The default is 0.
     *
     * @param bias as {@link Norm#bias}
     * @return this
     */
    public PeerAllreduceNorm bias(Tensor bias) {
        description.input(Words.PEER_ALLREDUCE_NORM_BIT_BIAS, bias);
        return this;
    }

    /**
     * Sets where the result goes.
     *
     * @param y as {@link Norm#y}; may be x
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public PeerAllreduceNorm y(Tensor y) {
        description.output(Words.PEER_ALLREDUCE_NORM_BIT_Y, "y", y);
        return this;
    }

    /**
     * Sets where the sum with the residual goes.
     *
     * @param residualOut as {@link Norm#residualOut}; may be the residual
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public PeerAllreduceNorm residualOut(Tensor residualOut) {
        description.output(Words.PEER_ALLREDUCE_NORM_BIT_RESIDUAL_OUT, "residual_out", residualOut);
        return this;
    }

    /**
     * Sets where each row's mean goes. Layer norms only.
     *
     * @param mean as {@link Norm#mean}
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public PeerAllreduceNorm mean(Tensor mean) {
        description.output(Words.PEER_ALLREDUCE_NORM_BIT_MEAN, "mean", mean);
        return this;
    }

    /**
     * Sets where each row's reciprocal root goes.
     *
     * @param rstd as {@link Norm#rstd}
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public PeerAllreduceNorm rstd(Tensor rstd) {
        description.output(Words.PEER_ALLREDUCE_NORM_BIT_RSTD, "rstd", rstd);
        return this;
    }

    /**
     * Adds the residual, and replaces it by the sum.
     *
     * @param residual as {@link Norm#residualInPlace}
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public PeerAllreduceNorm residualInPlace(Tensor residual) {
        return residual(residual).residualOut(residual);
    }

    /**
     * Sets how {@link #quantized} is scaled.
     *
     * @param scheme the scheme; the default is {@link QuantScheme#NONE}
     * @return this
     */
    public PeerAllreduceNorm quantScheme(QuantScheme scheme) {
        description.set(Words.PEER_ALLREDUCE_NORM_QUANT_SCHEME, scheme.id);
        return this;
    }

    /**
     * Sets the columns that share a scale, for {@link QuantScheme#PER_BLOCK}.
     *
     * @param columns 64 or 128; 0, the default, for all other schemes
     * @return this
     */
    public PeerAllreduceNorm quantBlockSize(int columns) {
        description.set(Words.PEER_ALLREDUCE_NORM_QUANT_BLOCK_SIZE, columns);
        return this;
    }

    /**
     * Sets what is quantised.
     *
     * @param source the value; the default is {@link QuantSource#F32}
     * @return this
     */
    public PeerAllreduceNorm quantSource(QuantSource source) {
        description.set(Words.PEER_ALLREDUCE_NORM_QUANT_SOURCE, source.id);
        return this;
    }

    /**
     * Sets how codes are made.
     *
     * @param division the value; the default is {@link QuantDivision#MULTIPLY_RECIPROCAL}
     * @return this
     */
    public PeerAllreduceNorm quantDivision(QuantDivision division) {
        description.set(Words.PEER_ALLREDUCE_NORM_QUANT_DIVISION, division.id);
        return this;
    }

    /**
     * Sets the order of the scales in memory.
     *
     * @param layout the order; the default is {@link ScaleLayout#ROW_MAJOR}
     * @return this
     */
    public PeerAllreduceNorm scaleLayout(ScaleLayout layout) {
        description.set(Words.PEER_ALLREDUCE_NORM_SCALE_LAYOUT, layout.id);
        return this;
    }

    /**
     * Sets whether dynamic 8-bit float scales are rounded up to a power of two.
     *
     * @param pow2 whether they are; the default is false
     * @return this
     */
    public PeerAllreduceNorm scalePow2(boolean pow2) {
        description.set(Words.PEER_ALLREDUCE_NORM_SCALE_POW2, pow2 ? 1 : 0);
        return this;
    }

    /**
     * Sets the least magnitude that a dynamic scale is made from.
     *
     * @param floor the magnitude, as a float; 0, the default, stands for 1e-10
     * @return this
     */
    public PeerAllreduceNorm amaxFloor(double floor) {
        description.set(Words.PEER_ALLREDUCE_NORM_AMAX_FLOOR, (float) floor);
        return this;
    }

    /**
     * Sets the bounds that results are clamped to before they are quantised.
     *
     * @param clamp the bounds are -clamp and clamp, as floats; 0, the default, for none
     * @return this
     */
    public PeerAllreduceNorm clamp(double clamp) {
        description.set(Words.PEER_ALLREDUCE_NORM_CLAMP, (float) clamp);
        return this;
    }

    /**
     * Sets the second scale of {@link QuantScheme#NVFP4}. The default is 1.
     *
     * @param globalScale {@code [1]}, F32
     * @return this
     */
    public PeerAllreduceNorm globalScale(Tensor globalScale) {
        description.input(Words.PEER_ALLREDUCE_NORM_BIT_GLOBAL_SCALE, globalScale);
        return this;
    }

    /**
     * Sets where the codes go.
     *
     * @param quantized x's shape, the quantised dtype
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public PeerAllreduceNorm quantized(Tensor quantized) {
        description.output(Words.PEER_ALLREDUCE_NORM_BIT_QUANTIZED, "quantized", quantized);
        return this;
    }

    /**
     * Sets the scales: an input for {@link QuantScheme#PER_TENSOR}, else an output.
     *
     * @param scale the scales
     * @return this
     */
    public PeerAllreduceNorm scale(Tensor scale) {
        description.input(Words.PEER_ALLREDUCE_NORM_BIT_SCALE, scale);
        return this;
    }

    /**
     * Sets where the largest magnitude seen is kept.
     *
     * @param amax {@code [1]}, F32; in and out
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public PeerAllreduceNorm amax(Tensor amax) {
        description.output(Words.PEER_ALLREDUCE_NORM_BIT_AMAX, "amax", amax);
        return this;
    }

    /**
     * Sets the clamp as a value on the device.
     *
     * @param clampScale {@code [1]}, F32
     * @return this
     */
    public PeerAllreduceNorm clampScale(Tensor clampScale) {
        description.input(Words.PEER_ALLREDUCE_NORM_BIT_CLAMP_SCALE, clampScale);
        return this;
    }

    private PeerAllreduceNorm flag(int bit, boolean on) {
        description.set(Words.PEER_ALLREDUCE_NORM_FLAGS, bit, on);
        return this;
    }

    // --- inside ---

    @Override
    Description.Encoded encoded() {
        Description.Encoded current = description.encoded();
        return current != null ? current : description.encode(problem());
    }

    private String problem() {
        return description.readOnlyScale(Words.PEER_ALLREDUCE_NORM_BIT_SCALE, "scale",
                Words.PEER_ALLREDUCE_NORM_QUANT_SCHEME);
    }

    @Override
    void runPeer(long target, long[] words, long workspace, long bytes, long stream) {
        if (nccl() != null) {
            Raw.fnb_nccl_allreduce_norm(target, words, workspace, bytes, stream);
        } else {
            Raw.fnb_peer_allreduce_norm(target, words, workspace, bytes, stream);
        }
    }

    @Override
    void queryPeer(long target, long[] words, fastnorm_info info) {
        if (nccl() != null) {
            Raw.fnb_nccl_allreduce_norm_query(target, words, info);
        } else {
            Raw.fnb_peer_allreduce_norm_query(target, words, info);
        }
    }

    @Override
    void preparePeer(long target, long[] words) {
        if (nccl() != null) {
            Raw.fnb_nccl_allreduce_norm_prepare(target, words);
        } else {
            Raw.fnb_peer_allreduce_norm_prepare(target, words);
        }
    }
}
