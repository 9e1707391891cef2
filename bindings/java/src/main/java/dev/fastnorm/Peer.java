package dev.fastnorm;

import java.lang.ref.Cleaner;
import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.time.Duration;
import java.util.Objects;

/**
 * One rank's end of a group that normalises together. CPU ranks are threads, each with a peer; GPUs
 * may be processes, too. All ranks make the same calls in the same order: {@link PeerAllreduceNorm}
 * and {@link PeerShardedNorm}.
 *
 * <pre>{@code
 * Peer peer = Peer.builder(context, rank, ranks, DType.BF16, columns).create();
 * byte[][] blobs = exchange(peer.export()); // of all ranks, in rank order, by any means
 * peer.connect(blobs);
 * Norm norm = Norm.rms(1e-6).x(x).residualInPlace(h).weight(weight).y(y);
 * PeerAllreduceNorm.of(peer, norm).run();
 * }</pre>
 *
 * <p>A peer runs one call at a time; a second one is refused. On the CPU a call waits for the other
 * ranks. It may be closed while another thread is in a call: it goes when that is done, and later
 * calls throw an {@link IllegalStateException}, "peer is closed". It keeps its context: a context
 * that is closed goes after its last peer. One that is never closed goes when the collector finds
 * it.
 */
public final class Peer implements AutoCloseable {
    /** The most ranks of a group. */
    public static final int MAX_RANKS = fastnorm_peer_limits.FASTNORM_PEER_MAX_RANKS;

    /** Size of what {@link #export} returns. */
    public static final int BLOB_BYTES = fastnorm_peer_limits.FASTNORM_PEER_BLOB_BYTES;

    private final Context context;
    private final int rank;
    private final int ranks;
    private final NativeHandle handle;
    private final Cleaner.Cleanable cleanable;

    private Peer(Context context, int rank, int ranks, NativeHandle handle) {
        this.context = context;
        this.rank = rank;
        this.ranks = ranks;
        this.handle = handle;
        cleanable = Context.CLEANER.register(this, handle);
    }

    /** The peer of a handle of NCCL, which has been acquired for it. */
    static Peer borrowed(long address, Context context, NativeHandle owner) {
        return new Peer(context, -1, -1, new NativeHandle(address, "peer") {
            @Override
            void end() {
                owner.release();
            }
        });
    }

    /**
     * Begins the description of one rank's end. All but the rank and the wait must be the same on
     * all ranks.
     *
     * @param context the device
     * @param rank this end's number, from 0
     * @param ranks ends of the group, 2 to 8
     * @param dtype of x of a {@link PeerAllreduceNorm}: F32, F16 or BF16
     * @param maxColumns longest row of a {@link PeerAllreduceNorm}, 1 to 65536
     * @return the builder
     */
    public static Builder builder(
            Context context, int rank, int ranks, DType dtype, long maxColumns) {
        return new Builder(context, rank, ranks, dtype, maxColumns);
    }

    /** Options of a peer. */
    public static final class Builder {
        private final Context context;
        private final int rank;
        private final int ranks;
        private final DType dtype;
        private final long maxColumns;
        private PeerAlgorithm algorithm = PeerAlgorithm.AUTO;
        private long oneShotBytes;
        private long waitNanos;
        private int rings;

        private Builder(Context context, int rank, int ranks, DType dtype, long maxColumns) {
            this.context = Objects.requireNonNull(context, "context");
            this.rank = rank;
            this.ranks = ranks;
            this.dtype = Objects.requireNonNull(dtype, "dtype");
            this.maxColumns = maxColumns;
        }

        /**
         * Sets how rows travel.
         *
         * @param algorithm the way; the default is {@link PeerAlgorithm#AUTO}
         * @return this
         */
        public Builder algorithm(PeerAlgorithm algorithm) {
            this.algorithm = Objects.requireNonNull(algorithm, "algorithm");
            return this;
        }

        /**
         * Sets the most bytes of rows that go one-shot.
         *
         * @param bytes the number; 0, the default, for measured ones
         * @return this
         */
        public Builder oneShotBytes(long bytes) {
            oneShotBytes = bytes;
            return this;
        }

        /**
         * Sets the longest wait for another rank.
         *
         * @param longest 1 microsecond to 1000 seconds; the default is 10 seconds
         * @return this
         */
        public Builder waitAtMost(Duration longest) {
            waitNanos = longest.toNanos();
            return this;
        }

        /**
         * Sets how many rows may be on their way at once.
         *
         * @param rings 1 to 256; 0, the default, for 8, on a GPU 128
         * @return this
         */
        public Builder rings(int rings) {
            this.rings = rings;
            return this;
        }

        /**
         * Bytes of a rank's buffer, for {@link #create(long...)}.
         *
         * @return the number
         * @throws FastnormException as {@link #create()}
         */
        public long bufferBytes() {
            long address = Context.acquire(context);
            try {
                return Raw.fnj_peer_buffer_bytes(address, rank, ranks, dtype.id, algorithm.id,
                        maxColumns, oneShotBytes, waitNanos, rings);
            } finally {
                Context.release(context);
            }
        }

        /**
         * Makes the peer with a buffer of its own. It calls once it is {@linkplain Peer#connect
         * connected}.
         *
         * @return the peer
         * @throws FastnormException {@link Status#ERROR_ARGUMENT} or {@link Status#ERROR_DTYPE} for
         *     an option out of range
         */
        public Peer create() {
            return create(null, 0);
        }

        /**
         * Makes the peer over buffers that all ranks reach, connected at once. No rank may call
         * before this has returned on all. The buffers must outlive every rank's peer.
         *
         * @param buffers addresses in rank order, as this rank reaches them: each of {@link
         *     #bufferBytes} bytes and 256-byte aligned
         * @return the peer
         * @throws FastnormException as {@link #create()}; {@link Status#ERROR_LAYOUT} for buffers
         *     that are misaligned or overlap
         */
        public Peer create(long... buffers) {
            ByteBuffer list = ByteBuffer.allocateDirect(8 * Math.max(1, buffers.length))
                    .order(ByteOrder.nativeOrder());
            list.asLongBuffer().put(buffers);
            return create(list, buffers.length);
        }

        private Peer create(ByteBuffer buffers, int count) {
            long address = Context.acquire(context);
            boolean made = false;
            try {
                long peer = Raw.fnj_peer_create(address, rank, ranks, dtype.id, algorithm.id,
                        maxColumns, oneShotBytes, waitNanos, rings,
                        buffers == null ? 0 : Raw.fnj_buffer_address(buffers), count);
                made = true;
                return new Peer(context, rank, ranks, new Handle(peer, context));
            } finally {
                Reference.reachabilityFence(buffers);
                if (!made) {
                    Context.release(context);
                }
            }
        }
    }

    /**
     * The context that the peer was made for.
     *
     * @return the context
     */
    public Context context() {
        return context;
    }

    /**
     * This end's number.
     *
     * @return the rank; -1 for the peer of an {@link Nccl}
     */
    public int rank() {
        return rank;
    }

    /**
     * Ends of its group.
     *
     * @return the number; -1 for the peer of an {@link Nccl}
     */
    public int ranks() {
        return ranks;
    }

    /**
     * What other ranks need to reach this one.
     *
     * @return {@link #BLOB_BYTES} bytes
     * @throws FastnormException {@link Status#ERROR_ARGUMENT} for a peer over buffers of the
     *     caller's
     * @throws IllegalStateException if the peer is closed
     */
    public byte[] export() {
        ByteBuffer blob = ByteBuffer.allocateDirect(BLOB_BYTES);
        long peer = acquire();
        try {
            Raw.fastnorm_peer_export(peer, Raw.fnj_buffer_address(blob), BLOB_BYTES);
        } finally {
            release();
        }
        byte[] bytes = new byte[BLOB_BYTES];
        blob.get(bytes);
        return bytes;
    }

    /**
     * Connects this rank with all others, once. It does not wait for them.
     *
     * @param blobs of all ranks, this one's too, in rank order
     * @throws FastnormException {@link Status#ERROR_ARGUMENT} for blobs that are none, of another
     *     rank, or of options that differ: the text has both values; {@link
     *     Status#ERROR_UNSUPPORTED} for ranks that cannot be reached
     * @throws IllegalStateException if the peer is closed
     */
    public void connect(byte[]... blobs) {
        int size = 0;
        for (byte[] blob : blobs) {
            size += blob.length;
        }
        ByteBuffer all = ByteBuffer.allocateDirect(Math.max(1, size));
        for (byte[] blob : blobs) {
            all.put(blob);
        }
        long peer = acquire();
        try {
            Raw.fastnorm_peer_import(peer, Raw.fnj_buffer_address(all), size);
        } finally {
            Reference.reachabilityFence(all);
            release();
        }
    }

    /**
     * Whether the peer was stopped, and by which rank. At any time, from any thread, also while a
     * call waits for other ranks.
     *
     * @return the state
     * @throws IllegalStateException if the peer is closed
     */
    public PeerState state() {
        long peer = acquire();
        try {
            int state = Raw.fnj_peer_state(peer);
            return new PeerState(failure(state & 0xff), (state >> 9) - 1,
                    Raw.fnj_peer_calls(peer), (state >> 8 & 1) != 0);
        } finally {
            release();
        }
    }

    private static PeerFailure failure(int id) {
        for (PeerFailure failure : PeerFailure.values()) {
            if (failure.id == id) {
                return failure;
            }
        }
        throw new AssertionError("the library gave peer error " + id);
    }

    /**
     * Makes a stopped group usable again. Every rank calls it, after no rank runs a call any more
     * and before any rank runs the next one: the caller makes sure, by a barrier before and one
     * after.
     *
     * @throws FastnormException {@link Status#ERROR_ARGUMENT} while the peer runs a call
     * @throws IllegalStateException if the peer is closed
     */
    public void reset() {
        long peer = acquire();
        try {
            Raw.fastnorm_peer_reset(peer);
        } finally {
            release();
        }
    }

    /**
     * Whether {@link #close} was called.
     *
     * @return true if calls are refused
     */
    public boolean isClosed() {
        return handle.isClosed();
    }

    /**
     * Closes the peer. Other ranks that call on find this one missing. On a GPU no stream may have
     * calls of it left. Closing again does nothing.
     */
    @Override
    public void close() {
        cleanable.clean();
    }

    @Override
    public String toString() {
        String which = rank < 0 ? "of an Nccl" : rank + " of " + ranks;
        return "Peer[" + which + (isClosed() ? ", closed" : "") + "]";
    }

    /** Begins a call: until {@link #release} the native peer exists. */
    long acquire() {
        return handle.acquire();
    }

    void release() {
        handle.release();
        Reference.reachabilityFence(this);
    }

    /** The native peer, which keeps its context. */
    private static final class Handle extends NativeHandle {
        private final long peer;
        private final Context context;

        Handle(long peer, Context context) {
            super(peer, "peer");
            this.peer = peer;
            this.context = context;
        }

        @Override
        void end() {
            Raw.fastnorm_peer_destroy(peer);
            Context.release(context);
        }
    }
}
