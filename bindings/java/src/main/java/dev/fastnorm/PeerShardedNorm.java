package dev.fastnorm;

import java.util.Objects;

/**
 * The norm of rows whose columns are spread over the ranks: a description that is built step by
 * step and then run by all ranks. Each rank has some of the columns, as many as every other one,
 * and gets y of these, by the statistic of the whole row. Two parts, such as query and key heads,
 * share one exchange.
 *
 * <p>A setter that is given null takes the tensor away again.
 */
public final class PeerShardedNorm extends PeerShardedNormFields {
    private PeerShardedNorm(Peer peer, int kind, double eps) {
        super(Objects.requireNonNull(peer, "peer"), null);
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

    // --- inside ---

    @Override
    Description.Encoded encoded() {
        return description.encoded();
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
