package dev.fastnorm;

/**
 * A call that all ranks of a group make: {@link PeerAllreduceNorm} or {@link PeerShardedNorm}.
 * Ranks are those of a {@link Peer}, or of an {@link Nccl}. On a GPU {@link Peer#state} tells of
 * ranks that did not come.
 */
public abstract sealed class PeerCall extends Call
        permits PeerAllreduceNormFields, PeerShardedNormFields {
    private final Peer peer;
    private final Nccl nccl;

    /** A call of a peer, or of NCCL; the other one is null. */
    PeerCall(Peer peer, Nccl nccl) {
        this.peer = peer;
        this.nccl = nccl;
    }

    /**
     * The peer that makes the call.
     *
     * @return the peer; null for a call of an {@link Nccl}
     */
    public final Peer peer() {
        return peer;
    }

    /**
     * The rank of a communicator that makes the call.
     *
     * @return the handle; null for a call of a {@link Peer}
     */
    public final Nccl nccl() {
        return nccl;
    }

    /**
     * Runs the call on the context of its peer or handle, together with all other ranks. On a CUDA
     * device it goes to the legacy default stream.
     *
     * @throws FastnormException if the library refuses; on the CPU also {@link Status#ERROR_DEVICE}
     *     for a rank that did not arrive in time
     * @throws IllegalArgumentException if an output is read-only
     * @throws IllegalStateException if the peer or the handle or its context is closed
     */
    public final void run() {
        run(nccl == null ? peer.context() : nccl.context());
    }

    /** The native peer's address, for the words. It stays the same, also when it is closed. */
    static long addressOf(Peer peer) {
        long address = peer.acquire();
        peer.release();
        return address;
    }

    /** What the functions below take: the native context, or the handle of NCCL. */
    private long enter(long context) {
        if (nccl != null) {
            return nccl.acquire(context);
        }
        peer.acquire();
        return context;
    }

    private void leave() {
        if (nccl != null) {
            nccl.release();
        } else {
            peer.release();
        }
    }

    abstract void runPeer(long target, long[] words, long workspace, long bytes, long stream);

    abstract void queryPeer(long target, long[] words, fastnorm_info info);

    abstract void preparePeer(long target, long[] words);

    @Override
    final void run(long context, long[] words, long workspace, long workspaceBytes, long stream) {
        long target = enter(context);
        try {
            runPeer(target, words, workspace, workspaceBytes, stream);
        } finally {
            leave();
        }
    }

    @Override
    final void query(long context, long[] words, fastnorm_info info) {
        long target = enter(context);
        try {
            queryPeer(target, words, info);
        } finally {
            leave();
        }
    }

    @Override
    final void prepare(long context, long[] words) {
        long target = enter(context);
        try {
            preparePeer(target, words);
        } finally {
            leave();
        }
    }
}
