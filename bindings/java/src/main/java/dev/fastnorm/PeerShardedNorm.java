package dev.fastnorm;

/**
 * The norm of rows whose columns are spread over the ranks: a description that is built step by
 * step and then run by all ranks. Each rank has some of the columns, as many as every other one,
 * and gets y of these, by the statistic of the whole row. Two parts, such as query and key heads,
 * share one exchange.
 *
 * <p>A setter that is given null takes the tensor away again.
 */
public final class PeerShardedNorm extends PeerCall {
    private final Description description =
            new Description(Words.PEER_SHARDED_NORM_MASK, Words.PEER_SHARDED_NORM_MAX_WORDS);

    private PeerShardedNorm(Peer peer, int kind, double eps) {
        super(peer);
        description.set(Words.PEER_SHARDED_NORM_PEER, addressOf(peer));
        description.set(Words.PEER_SHARDED_NORM_KIND, kind);
        description.set(Words.PEER_SHARDED_NORM_EPS, (float) eps);
    }

    /**
     * Begins an RMS norm.
     *
     * @param peer this rank's end, connected
     * @param eps added to the mean square
     * @return the description
     */
    public static PeerShardedNorm rms(Peer peer, double eps) {
        return new PeerShardedNorm(peer, fastnorm_norm_kind.FASTNORM_NORM_RMS, eps);
    }

    /**
     * Begins a layer norm.
     *
     * @param peer this rank's end, connected
     * @param eps added to the variance
     * @return the description
     */
    public static PeerShardedNorm layer(Peer peer, double eps) {
        return new PeerShardedNorm(peer, fastnorm_norm_kind.FASTNORM_NORM_LAYER, eps);
    }

    /**
     * Sets what is added to the weight.
     *
     * @param offset 0, the default, where a part has no weight; 1 for Gemma
     * @return this
     */
    public PeerShardedNorm weightOffset(double offset) {
        description.set(Words.PEER_SHARDED_NORM_WEIGHT_OFFSET, (float) offset);
        return this;
    }

    /**
     * Sets where else a result is rounded.
     *
     * @param rounding {@link Rounding#ONCE}, the default, or {@link Rounding#NORMALIZED}
     * @return this
     */
    public PeerShardedNorm rounding(Rounding rounding) {
        description.set(Words.PEER_SHARDED_NORM_ROUNDING, rounding.id);
        return this;
    }

    /**
     * Programmatic dependent launch: as {@link Norm#pdlWait}.
     *
     * @param wait whether to; the default is false
     * @return this
     */
    public PeerShardedNorm pdlWait(boolean wait) {
        return flag(fastnorm_norm_flags.FASTNORM_NORM_PDL_WAIT, wait);
    }

    /**
     * Programmatic dependent launch: as {@link Norm#pdlTrigger}.
     *
     * @param trigger whether to; the default is false
     * @return this
     */
    public PeerShardedNorm pdlTrigger(boolean trigger) {
        return flag(fastnorm_norm_flags.FASTNORM_NORM_PDL_TRIGGER, trigger);
    }

    /**
     * Programmatic dependent launch: as {@link Norm#pdlConstantWeights}.
     *
     * @param constant whether to; the default is false
     * @return this
     */
    public PeerShardedNorm pdlConstantWeights(boolean constant) {
        return flag(fastnorm_norm_flags.FASTNORM_NORM_PDL_CONSTANT_WEIGHTS, constant);
    }

    /**
     * Sets this rank's columns. Required.
     *
     * @param x {@code [tokens, n]} or {@code [tokens, heads, d]}; F32, F16 or BF16
     * @return this
     */
    public PeerShardedNorm x(Tensor x) {
        description.input(Words.PEER_SHARDED_NORM_BIT_X, x);
        return this;
    }

    /**
     * Sets the weight. The default is 1.
     *
     * @param weight {@code [n]}, or {@code [d]} or {@code [heads, d]}
     * @return this
     */
    public PeerShardedNorm weight(Tensor weight) {
        description.input(Words.PEER_SHARDED_NORM_BIT_WEIGHT, weight);
        return this;
    }

    /**
     * Sets the bias. The default is 0.
     *
     * @param bias as the weight
     * @return this
     */
    public PeerShardedNorm bias(Tensor bias) {
        description.input(Words.PEER_SHARDED_NORM_BIT_BIAS, bias);
        return this;
    }

    /**
     * Sets where the result goes. Required.
     *
     * @param y x's shape and dtype; may be x
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public PeerShardedNorm y(Tensor y) {
        description.output(Words.PEER_SHARDED_NORM_BIT_Y, "y", y);
        return this;
    }

    /**
     * Sets the second part.
     *
     * @param x2 of x's tokens and dtype
     * @return this
     */
    public PeerShardedNorm x2(Tensor x2) {
        description.input(Words.PEER_SHARDED_NORM_BIT_X2, x2);
        return this;
    }

    /**
     * Sets the weight of the second part.
     *
     * @param weight2 as {@link #weight}, of x2
     * @return this
     */
    public PeerShardedNorm weight2(Tensor weight2) {
        description.input(Words.PEER_SHARDED_NORM_BIT_WEIGHT2, weight2);
        return this;
    }

    /**
     * Sets the bias of the second part.
     *
     * @param bias2 as {@link #bias}, of x2
     * @return this
     */
    public PeerShardedNorm bias2(Tensor bias2) {
        description.input(Words.PEER_SHARDED_NORM_BIT_BIAS2, bias2);
        return this;
    }

    /**
     * Sets where the second part's result goes. Required with x2.
     *
     * @param y2 as {@link #y}, of x2
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public PeerShardedNorm y2(Tensor y2) {
        description.output(Words.PEER_SHARDED_NORM_BIT_Y2, "y2", y2);
        return this;
    }

    private PeerShardedNorm flag(int bit, boolean on) {
        description.set(Words.PEER_SHARDED_NORM_FLAGS, bit, on);
        return this;
    }

    // --- inside ---

    @Override
    Description.Encoded encoded() {
        Description.Encoded current = description.encoded();
        return current != null ? current : description.encode(null);
    }

    @Override
    void runPeer(long target, long[] words, long workspace, long bytes, long stream) {
        Raw.fnb_peer_sharded_norm(target, words, workspace, bytes, stream);
    }

    @Override
    void queryPeer(long target, long[] words, fastnorm_info info) {
        Raw.fnb_peer_sharded_norm_query(target, words, info);
    }

    @Override
    void preparePeer(long target, long[] words) {
        Raw.fnb_peer_sharded_norm_prepare(target, words);
    }
}
