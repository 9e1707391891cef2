package dev.fastnorm;

import java.util.Objects;

/**
 * A call that all ranks of a group make: {@link PeerAllreduceNorm} or {@link PeerShardedNorm}. On a
 * GPU {@link Peer#state} tells of ranks that did not come.
 */
public abstract sealed class PeerCall extends Call permits PeerAllreduceNorm, PeerShardedNorm {
    private final Peer peer;

    PeerCall(Peer peer) {
        this.peer = Objects.requireNonNull(peer, "peer");
    }

    /**
     * The peer that makes the call.
     *
     * @return the peer
     */
    public final Peer peer() {
        return peer;
    }

    /**
     * Runs the call on the peer's context, together with all other ranks. On a CUDA device it goes
     * to the legacy default stream.
     *
     * @throws FastnormException if the library refuses; on the CPU also {@link Status#ERROR_DEVICE}
     *     for a rank that did not arrive in time
     * @throws IllegalArgumentException if an output is read-only
     * @throws IllegalStateException if the peer or its context is closed
     */
    public final void run() {
        run(peer.context());
    }

    /** The native peer's address, for the words. It stays the same, also when it is closed. */
    static long addressOf(Peer peer) {
        long address = peer.acquire();
        peer.release();
        return address;
    }

    abstract void runPeer(long context, long[] words, long workspace, long bytes, long stream);

    abstract void queryPeer(long context, long[] words, fastnorm_info info);

    abstract void preparePeer(long context, long[] words);

    @Override
    final void run(long context, long[] words, long workspace, long workspaceBytes, long stream) {
        peer.acquire();
        try {
            runPeer(context, words, workspace, workspaceBytes, stream);
        } finally {
            peer.release();
        }
    }

    @Override
    final void query(long context, long[] words, fastnorm_info info) {
        peer.acquire();
        try {
            queryPeer(context, words, info);
        } finally {
            peer.release();
        }
    }

    @Override
    final void prepare(long context, long[] words) {
        peer.acquire();
        try {
            preparePeer(context, words);
        } finally {
            peer.release();
        }
    }
}
