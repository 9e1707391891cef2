package dev.fastnorm;

import java.lang.ref.Cleaner;
import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;

/**
 * One rank on a communicator of NCCL's. Where the ranks reach each other's memory its calls are
 * those of a {@link Peer}, else they go by NCCL. All ranks make the same calls in the same order.
 *
 * <pre>{@code
 * Nccl rank = Nccl.builder(DType.BF16, columns).create(context, comm, stream);
 * rank.rms(1e-6).x(x).residualInPlace(h).weight(weight).y(y)
 *         .run(context, stream, workspace, workspaceBytes);
 * }</pre>
 *
 * <p>The calls are of libfastnorm_nccl, a library beside libfastnorm that is no part of the jar. It
 * is loaded when this class is first used: from the system property {@code fastnorm.nccl.library},
 * a file or a folder, from java.library.path, or from where libfastnorm is. Without it all methods
 * that need it throw an {@link UnsatisfiedLinkError}.
 *
 * <p>The communicator is borrowed: it must outlive the handle, which does not destroy it. The
 * handle may be closed while another thread is in a call, and keeps its context, as a {@link Peer}.
 */
public final class Nccl implements AutoCloseable {
    private final Context context;
    private final Handle handle;
    private final Cleaner.Cleanable cleanable;

    private Nccl(Context context, Handle handle) {
        this.context = context;
        this.handle = handle;
        cleanable = Context.CLEANER.register(this, handle);
    }

    /**
     * Finds NCCL: the copy that the process has loaded, or {@code libnccl.so.2}.
     *
     * @return {@code ncclGetVersion}'s number, such as 22809
     * @throws FastnormException {@link Status#ERROR_UNSUPPORTED} where there is no NCCL
     * @throws UnsatisfiedLinkError if libfastnorm_nccl cannot be loaded
     */
    public static int version() {
        NcclLibrary.load();
        ByteBuffer version = ByteBuffer.allocateDirect(4).order(ByteOrder.nativeOrder());
        Raw.fnb_nccl_version(Raw.fnj_buffer_address(version));
        return version.getInt(0);
    }

    /**
     * Gives the functions of NCCL, before any handle is made: in a process that has NCCL linked in
     * statically. CPU contexts need it, with functions over host memory.
     *
     * @param functions the functions; null to look for NCCL again
     * @throws FastnormException {@link Status#ERROR_ARGUMENT} for an address of 0
     * @throws UnsatisfiedLinkError if libfastnorm_nccl cannot be loaded
     */
    public static void useFunctions(NcclFunctions functions) {
        NcclLibrary.load();
        if (functions == null) {
            Raw.fnb_nccl_set_functions(0, 0);
            return;
        }
        long[] addresses = functions.addresses();
        ByteBuffer list = listOf(addresses);
        Raw.fnb_nccl_set_functions(Raw.fnj_buffer_address(list), addresses.length);
        Reference.reachabilityFence(list);
    }

    /**
     * Begins the description of handles. All options are the same on all ranks.
     *
     * @param dtype of x: F32, F16 or BF16
     * @param maxColumns longest row, 1 to 65536
     * @return the builder
     */
    public static Builder builder(DType dtype, long maxColumns) {
        return new Builder(dtype, maxColumns);
    }

    /** Options of handles. */
    public static final class Builder {
        private final DType dtype;
        private final long maxColumns;
        private PeerAlgorithm algorithm = PeerAlgorithm.AUTO;
        private long oneShotBytes;
        private long waitNanos;
        private int rings;
        private int flags;
        private long peerBytes;

        private Builder(DType dtype, long maxColumns) {
            this.dtype = Objects.requireNonNull(dtype, "dtype");
            this.maxColumns = maxColumns;
        }

        /**
         * The way of peers, as {@link Peer.Builder#algorithm} has it.
         *
         * @param algorithm the way; the default is {@link PeerAlgorithm#AUTO}
         * @return this
         */
        public Builder algorithm(PeerAlgorithm algorithm) {
            this.algorithm = Objects.requireNonNull(algorithm, "algorithm");
            return this;
        }

        /**
         * The most bytes of peers' one-shot calls, as {@link Peer.Builder#oneShotBytes} has them.
         *
         * @param bytes the number; 0, the default, for measured ones
         * @return this
         */
        public Builder oneShotBytes(long bytes) {
            oneShotBytes = bytes;
            return this;
        }

        /**
         * The longest wait of peers, as {@link Peer.Builder#waitAtMost} has it.
         *
         * @param longest 1 microsecond to 1000 seconds; the default is 10 seconds
         * @return this
         */
        public Builder waitAtMost(Duration longest) {
            waitNanos = longest.toNanos();
            return this;
        }

        /**
         * The rings of peers, as {@link Peer.Builder#rings} has them.
         *
         * @param rings 1 to 256; 0, the default, for 8, on a GPU 128
         * @return this
         */
        public Builder rings(int rings) {
            this.rings = rings;
            return this;
        }

        /**
         * Sets the most bytes of x that go by peers. More go by NCCL.
         *
         * @param bytes the number; 0, the default, for no limit
         * @return this
         */
        public Builder peerBytes(long bytes) {
            peerBytes = bytes;
            return this;
        }

        /**
         * Calls always go by NCCL.
         *
         * @return this
         */
        public Builder noPeers() {
            flags |= fastnorm_nccl_flags.FASTNORM_NCCL_NO_PEERS;
            return this;
        }

        /**
         * A call that would go by NCCL, whose sums have no fixed order, is refused.
         *
         * @return this
         */
        public Builder fixedOrder() {
            flags |= fastnorm_nccl_flags.FASTNORM_NCCL_FIXED_ORDER;
            return this;
        }

        /**
         * Makes this rank's handle. Every rank of the communicator does so at the same time, on a
         * thread of its own, and waits for the others.
         *
         * @param context the device
         * @param comm an {@code ncclComm_t} of that device, as a number
         * @param stream CUDA: a {@code cudaStream_t} as a number, for the exchange; CPU: 0
         * @return the handle
         * @throws FastnormException {@link Status#ERROR_ARGUMENT} for an option out of range or
         *     another one than that of other ranks; {@link Status#ERROR_UNSUPPORTED} where there is
         *     no NCCL; {@link Status#ERROR_DEVICE} if NCCL or CUDA failed
         * @throws IllegalStateException if the context is closed
         * @throws UnsatisfiedLinkError if libfastnorm_nccl cannot be loaded
         */
        public Nccl create(Context context, long comm, long stream) {
            return createAll(new NcclRank(context, comm, stream)).get(0);
        }

        /**
         * Makes the handles of several ranks of this process. One thread does what as many threads
         * with {@link #create} would.
         *
         * @param ranks the ranks of this process
         * @return their handles, in this order
         * @throws FastnormException as {@link #create}; the text names the rank
         * @throws IllegalStateException if a context is closed
         * @throws UnsatisfiedLinkError if libfastnorm_nccl cannot be loaded
         */
        public List<Nccl> createAll(NcclRank... ranks) {
            NcclLibrary.load();
            int count = ranks.length;
            long[] contexts = new long[count];
            long[] devices = new long[count];
            long[] comms = new long[count];
            long[] streams = new long[count];
            List<Context> held = new ArrayList<>();
            boolean made = false;
            try {
                for (int i = 0; i < count; i++) {
                    Context context = ranks[i].context();
                    contexts[i] = Context.acquire(context);
                    held.add(context);
                    Device device = context == null ? Device.cpu() : context.device();
                    devices[i] = device.type().id | (long) device.id() << 32;
                    comms[i] = ranks[i].comm();
                    streams[i] = ranks[i].stream();
                }
                long[] addresses = create(contexts, devices, comms, streams);
                List<Nccl> handles = new ArrayList<>();
                for (int i = 0; i < count; i++) {
                    handles.add(new Nccl(held.get(i),
                            new Handle(addresses[i], held.get(i), contexts[i])));
                }
                made = true;
                return handles;
            } finally {
                if (!made) {
                    held.forEach(Context::release);
                }
            }
        }

        private long[] create(long[] contexts, long[] devices, long[] comms, long[] streams) {
            ByteBuffer[] lists =
                    {listOf(contexts), listOf(devices), listOf(comms), listOf(streams)};
            ByteBuffer handles = listOf(new long[contexts.length]);
            Raw.fnb_nccl_create_all(Raw.fnj_buffer_address(lists[0]),
                    Raw.fnj_buffer_address(lists[1]), Raw.fnj_buffer_address(lists[2]), dtype.id,
                    algorithm.id, maxColumns, oneShotBytes, waitNanos, rings, flags, peerBytes,
                    Raw.fnj_buffer_address(lists[3]), contexts.length,
                    Raw.fnj_buffer_address(handles));
            Reference.reachabilityFence(lists);
            long[] made = new long[contexts.length];
            handles.asLongBuffer().get(made);
            return made;
        }
    }

    /**
     * The context that the handle was made for.
     *
     * @return the context
     */
    public Context context() {
        return context;
    }

    /**
     * The handle's own peer, for {@link Peer#state}, {@link Peer#reset} and calls of a peer. The
     * native handle goes after each such peer was closed, too.
     *
     * @return the peer, whose {@link Peer#rank} and {@link Peer#ranks} are -1; null where the ranks
     *     are no peers
     * @throws IllegalStateException if the handle is closed
     */
    public Peer peer() {
        long address = handle.acquire();
        boolean kept = false;
        try {
            ByteBuffer found = listOf(new long[1]);
            Raw.fnb_nccl_peer(address, Raw.fnj_buffer_address(found));
            long peer = found.getLong(0);
            kept = peer != 0;
            return kept ? Peer.borrowed(peer, context, handle) : null;
        } finally {
            if (!kept) {
                release();
            }
        }
    }

    /**
     * Describes an all-reduce and a norm of this rank. By NCCL, x is compact and the sum is
     * rounded.
     *
     * @param norm as that of {@link PeerAllreduceNorm#of}
     * @return the description
     * @throws IllegalStateException if the handle is closed
     */
    public PeerAllreduceNorm allreduce(Norm norm) {
        return new PeerAllreduceNorm(open(), norm);
    }

    /**
     * Begins sequence parallel of this rank.
     *
     * @param norm the norm, all tensors compact: x is {@code [tokens, n]}, this rank's part of all
     *     tokens' sums, and tokens a multiple of the ranks; the residual and statistics are of this
     *     rank's tokens alone; y, codes and scales are of all tokens. No amax, no swizzled scales
     * @return the description
     * @throws IllegalStateException if the handle is closed
     */
    public NcclSequenceNorm sequenceNorm(Norm norm) {
        return new NcclSequenceNorm(open(), norm);
    }

    /**
     * Makes the calls of several ranks of this process from one thread, on the default streams: all
     * are checked, then NCCL starts their sums together, then their norms follow. On CPUs memory
     * for workspaces is allocated.
     *
     * @param calls of {@link #allreduce}, one of each rank
     * @throws FastnormException if the library refuses; the text names the rank
     * @throws IllegalArgumentException if an output is read-only, or a call is of a {@link Peer}
     * @throws IllegalStateException if a handle is closed
     */
    public static void allreduceNormAll(PeerAllreduceNorm... calls) {
        allreduceNormAll(new long[calls.length], new long[calls.length], 0, calls);
    }

    /**
     * Makes the calls of several ranks of this process from one thread.
     *
     * @param streams a {@code cudaStream_t} of each rank
     * @param workspaces memory of each rank, as {@link Call#run(Context, long, long, long)}
     * @param workspaceBytes size of each; 0 on CPUs, where it is allocated
     * @param calls of {@link #allreduce}, one of each rank
     * @throws FastnormException if the library refuses; the text names the rank
     * @throws IllegalArgumentException if an output is read-only, a call is of a {@link Peer}, or a
     *     list has another length
     * @throws IllegalStateException if a handle is closed
     */
    public static void allreduceNormAll(long[] streams, long[] workspaces, long workspaceBytes,
            PeerAllreduceNorm... calls) {
        Nccl[] ranks = new Nccl[calls.length];
        for (int i = 0; i < ranks.length; i++) {
            ranks[i] = calls[i].nccl();
            if (ranks[i] == null) {
                throw new IllegalArgumentException("calls[" + i
                        + "] is of a Peer; required: a call of Nccl.rms or Nccl.layer");
            }
        }
        new NcclCalls(calls, ranks, streams, workspaces).run(workspaceBytes,
                (lists, words, bytes) -> Raw.fnb_nccl_allreduce_norm_all(lists[0], words, lists[2],
                bytes, lists[1], ranks.length));
    }

    /**
     * Makes the calls of several ranks of this process from one thread, on the default streams, as
     * {@link #allreduceNormAll(PeerAllreduceNorm...)}.
     *
     * @param calls one of each rank, with one gather
     * @throws FastnormException if the library refuses; the text names the rank
     * @throws IllegalArgumentException if an output is read-only
     * @throws IllegalStateException if a handle is closed
     */
    public static void sequenceNormAll(NcclSequenceNorm... calls) {
        sequenceNormAll(new long[calls.length], new long[calls.length], 0, calls);
    }

    /**
     * Makes the calls of several ranks of this process from one thread, as {@link
     * #allreduceNormAll(long[], long[], long, PeerAllreduceNorm...)}.
     *
     * @param streams a {@code cudaStream_t} of each rank
     * @param workspaces memory of each rank, as {@link Call#run(Context, long, long, long)}
     * @param workspaceBytes size of each; 0 on CPUs, where it is allocated
     * @param calls one of each rank, with one gather
     * @throws FastnormException if the library refuses; the text names the rank
     * @throws IllegalArgumentException if an output is read-only, or a list has another length
     * @throws IllegalStateException if a handle is closed
     */
    public static void sequenceNormAll(long[] streams, long[] workspaces, long workspaceBytes,
            NcclSequenceNorm... calls) {
        Nccl[] ranks = new Nccl[calls.length];
        ByteBuffer gathers = ByteBuffer.allocateDirect(4 * Math.max(1, calls.length))
                .order(ByteOrder.nativeOrder());
        for (int i = 0; i < ranks.length; i++) {
            ranks[i] = calls[i].nccl();
            gathers.putInt(4 * i, calls[i].gathers());
        }
        new NcclCalls(calls, ranks, streams, workspaces).run(workspaceBytes,
                (lists, words, bytes) -> Raw.fnb_nccl_sequence_norm_all(lists[0],
                Raw.fnj_buffer_address(gathers), words, lists[2], bytes, lists[1], ranks.length));
        Reference.reachabilityFence(gathers);
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
     * Closes the handle. The communicator stays. On a GPU no stream may have calls of it left.
     * Closing again does nothing.
     */
    @Override
    public void close() {
        cleanable.clean();
    }

    @Override
    public String toString() {
        return "Nccl[" + context + (isClosed() ? ", closed" : "") + "]";
    }

    /** A list of numbers where native code finds it; at least one. */
    static ByteBuffer listOf(long[] numbers) {
        ByteBuffer list = ByteBuffer.allocateDirect(8 * Math.max(1, numbers.length))
                .order(ByteOrder.nativeOrder());
        list.asLongBuffer().put(numbers);
        return list;
    }

    /** This handle, which is not closed. */
    private Nccl open() {
        handle.acquire();
        release();
        return this;
    }

    /** Begins a call: until {@link #release} the native handle exists. */
    long acquire() {
        return handle.acquire();
    }

    /**
     * Begins a call on a context, which must be the handle's.
     *
     * @param address of the native context
     */
    long acquire(long address) {
        if (address != handle.contextAddress) {
            throw new IllegalArgumentException("context is not the one of " + this
                    + "; required: the context that the handle was made for");
        }
        return handle.acquire();
    }

    void release() {
        handle.release();
        Reference.reachabilityFence(this);
    }

    /** The native handle, which keeps its context. */
    private static final class Handle extends NativeHandle {
        private final long nccl;
        private final Context context;
        final long contextAddress;

        Handle(long nccl, Context context, long contextAddress) {
            super(nccl, "NCCL handle");
            this.nccl = nccl;
            this.context = context;
            this.contextAddress = contextAddress;
        }

        @Override
        void end() {
            Raw.fnb_nccl_destroy(nccl);
            Context.release(context);
        }
    }
}
