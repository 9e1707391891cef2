package dev.fastnorm;

import java.util.Objects;

/**
 * Sequence parallel, made by {@link Nccl#sequenceNorm}: each rank normalises its tokens of all
 * tokens. It sees the changes that are made to its norm.
 */
public final class NcclSequenceNorm extends Call {
    private final Nccl nccl;
    private final Norm norm;
    private boolean gather;

    NcclSequenceNorm(Nccl nccl, Norm norm) {
        this.nccl = nccl;
        this.norm = Objects.requireNonNull(norm, "norm");
    }

    /**
     * Sets whether y, codes and scales of all ranks are gathered.
     *
     * @param gather true for all ranks' tokens; false, the default, for this rank's alone
     * @return this
     */
    public NcclSequenceNorm gather(boolean gather) {
        this.gather = gather;
        return this;
    }

    /**
     * The handle that makes the call.
     *
     * @return the handle
     */
    public Nccl nccl() {
        return nccl;
    }

    /**
     * Runs the call on the handle's context, together with all other ranks. On a CUDA device it
     * goes to the legacy default stream.
     *
     * @throws FastnormException if the library refuses, or NCCL failed
     * @throws IllegalArgumentException if an output is read-only
     * @throws IllegalStateException if the handle or its context is closed
     */
    public void run() {
        run(nccl.context());
    }

    // --- inside ---

    int gathers() {
        return gather ? 1 : 0;
    }

    @Override
    Description.Encoded encoded() {
        return norm.encoded();
    }

    @Override
    void run(long context, long[] words, long workspace, long workspaceBytes, long stream) {
        long handle = nccl.acquire(context);
        try {
            Raw.fnb_nccl_sequence_norm(handle, gathers(), words, workspace, workspaceBytes, stream);
        } finally {
            nccl.release();
        }
    }

    @Override
    void query(long context, long[] words, fastnorm_info info) {
        long handle = nccl.acquire(context);
        try {
            Raw.fnb_nccl_sequence_norm_query(handle, gathers(), words, info);
        } finally {
            nccl.release();
        }
    }

    @Override
    void prepare(long context, long[] words) {
        long handle = nccl.acquire(context);
        try {
            Raw.fnb_nccl_sequence_norm_prepare(handle, gathers(), words);
        } finally {
            nccl.release();
        }
    }
}
