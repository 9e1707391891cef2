package dev.fastnorm;

import java.util.List;
import java.util.Objects;

/**
 * An all-reduce and one norm, which all ranks run together. Rank r has a part of each row in the x
 * of its {@link Norm}. All ranks get the same bits:
 *
 * <pre>
 * s = x of rank 0 + x of rank 1 + ..    in rank order, in single precision
 * s = s rounded to x's dtype            unless the sum is {@link PeerSumRounding#EXACT}
 * </pre>
 *
 * <p>and then everything that the norm makes of the row s in place of x. Stages, groups and
 * statistics of several devices are refused. Changes of the norm count for later runs.
 */
public final class PeerAllreduceNorm extends PeerAllreduceNormFields {
    private final JoinedWords joined;

    private PeerAllreduceNorm(Peer peer, Norm norm) {
        super(Objects.requireNonNull(peer, "peer"), null);
        description.set(Words.PEER_ALLREDUCE_NORM_PEER, addressOf(peer));
        joined = joined(norm);
    }

    /** A call of a handle of NCCL, which has its own peer. */
    PeerAllreduceNorm(Nccl nccl, Norm norm) {
        super(null, nccl);
        joined = joined(norm);
    }

    private JoinedWords joined(Norm norm) {
        Objects.requireNonNull(norm, "norm");
        description.pointsBehind(Words.PEER_ALLREDUCE_NORM_BIT_NORM);
        return new JoinedWords(2, List.of(description::encoded, norm::encoded));
    }

    /**
     * Describes the call of a rank.
     *
     * @param peer this rank's end, connected
     * @param norm the norm of the sum; its x is this rank's part, of the peer's dtype; y may be x
     * @return the description
     */
    public static PeerAllreduceNorm of(Peer peer, Norm norm) {
        return new PeerAllreduceNorm(peer, norm);
    }

    // --- inside ---

    @Override
    Description.Encoded encoded() {
        return joined.encoded();
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
