package dev.fastnorm;

import java.lang.ref.Cleaner;
import java.nio.file.FileSystems;
import java.nio.file.Path;
import java.util.Objects;

/**
 * One device, ready for calls. Open one for each device when the program starts, share it between
 * threads, close it at the end: opening is slow, and calls on one context may run at the same time.
 *
 * <p>A context may be closed while other threads are in calls on it: it goes when the last of them
 * is done, and calls that begin later throw an {@link IllegalStateException}, "context is closed".
 * One that is never closed goes when the collector finds it.
 */
public final class Context implements AutoCloseable {
    static final Cleaner CLEANER = Cleaner.create();

    private final Device device;
    private final Handle handle;
    private final Cleaner.Cleanable cleanable;

    private Context(Device device, Handle handle) {
        this.device = device;
        this.handle = handle;
        cleanable = CLEANER.register(this, handle);
    }

    /**
     * Opens a context for the CPU, with which a call runs on the calling thread alone.
     *
     * @return the context
     * @throws FastnormException if the library refuses
     * @throws UnsatisfiedLinkError if the library cannot be loaded
     */
    public static Context cpu() {
        return builder(Device.cpu()).open();
    }

    /**
     * Opens a context for a CUDA device.
     *
     * @param id which one, as {@code cudaSetDevice} counts
     * @return the context
     * @throws FastnormException {@link Status#ERROR_DEVICE} if the device or a usable driver is
     *     missing, {@link Status#ERROR_UNSUPPORTED} if the library has no kernels for the device
     * @throws UnsatisfiedLinkError if the library cannot be loaded
     */
    public static Context cuda(int id) {
        return builder(Device.cuda(id)).open();
    }

    /**
     * Begins the description of a context with options.
     *
     * @param device {@link Device#cpu()} or {@link Device#cuda(int)}
     * @return the builder
     */
    public static Builder builder(Device device) {
        return new Builder(device);
    }

    /** Options of a context. */
    public static final class Builder {
        private final Device device;
        private int threads;
        private LogSink log;
        private int flags;
        private int dryRunCapability;
        private String tuningFile;

        private Builder(Device device) {
            this.device = Objects.requireNonNull(device, "device");
        }

        /**
         * CPU: threads that share the work of a call, the calling one included. They start at first
         * use and end with the context.
         *
         * @param threads 0 to 1024; 0 and 1 are the calling thread alone, which is the default
         * @return this
         */
        public Builder threads(int threads) {
            this.threads = threads;
            return this;
        }

        /**
         * Where messages go. The default is nowhere. A receiver that refers to the context keeps it
         * from the collector: such a context has to be closed.
         *
         * @param log the receiver, or null for none
         * @return this
         */
        public Builder log(LogSink log) {
            this.log = log;
            return this;
        }

        /**
         * CPU: calls do everything but the work: they check and plan, and neither read nor write
         * the tensors' memory.
         *
         * @return this
         */
        public Builder dryRun() {
            return dryRun(0);
        }

        /**
         * CUDA: calls do everything but the work, for a GPU of the given capability; no GPU and no
         * driver are needed. For plans made on another machine, for tests, and to measure the cost
         * of a call.
         *
         * @param capability compute capability, major * 10 + minor, such as 90
         * @return this
         */
        public Builder dryRun(int capability) {
            flags |= fastnorm_context_flags.FASTNORM_CONTEXT_DRY_RUN;
            dryRunCapability = capability;
            return this;
        }

        /**
         * CUDA: calls use programmatic dependent launch only where their own flags ask for it. The
         * default is that calls use it unless {@link Norm#noPdl} or the like is set.
         *
         * @return this
         */
        public Builder noPdl() {
            flags |= fastnorm_context_flags.FASTNORM_CONTEXT_NO_PDL;
            return this;
        }

        /**
         * CUDA: a file that {@code fastnorm tune} wrote for this model of GPU and this version of
         * the library. Calls of the shapes in it run on the kernels that were fastest there, with
         * the same results to the bit. It is read once, by {@link #open}.
         *
         * @param file a path of the default file system, or null for none, which is the default
         * @return this
         * @throws IllegalArgumentException if the path is of another file system
         */
        public Builder tuningFile(Path file) {
            if (file != null && file.getFileSystem() != FileSystems.getDefault()) {
                throw new IllegalArgumentException(
                        "tuningFile is " + file.toUri() + "; required: a path of the default file system");
            }
            tuningFile = file == null ? null : file.toString();
            return this;
        }

        /**
         * Opens the context.
         *
         * @return the context
         * @throws FastnormException {@link Status#ERROR_ARGUMENT} for an option out of range, and
         *     for a bad tuning file: one that cannot be read, has a wrong line, or is of another
         *     version or architecture; {@link Status#ERROR_DEVICE} if the device or a usable driver
         *     is missing; {@link Status#ERROR_UNSUPPORTED} if the library has no kernels for the
         *     device
         * @throws UnsatisfiedLinkError if the library cannot be loaded
         */
        public Context open() {
            NativeLibrary.load();
            long sink = log == null ? 0 : Raw.fnj_sink_create(log);
            long address = 0;
            try {
                address = Raw.fnj_context_create(device.type().id, device.id(), threads, flags,
                        dryRunCapability,
                        tuningFile, sink);
                return new Context(device, new Handle(address, sink));
            } catch (Throwable e) {
                Handle.free(address, sink);
                throw e;
            }
        }
    }

    /**
     * The device that the context was opened for.
     *
     * @return the device
     */
    public Device device() {
        return device;
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
     * Closes the context: calls that run go on, later ones are refused. Closing again does nothing.
     * Work that was queued on a GPU goes on unharmed.
     */
    @Override
    public void close() {
        cleanable.clean();
    }

    @Override
    public String toString() {
        return "Context[" + device.type() + ":" + device.id() + (isClosed() ? ", closed" : "") + "]";
    }

    /**
     * Begins a call: until {@link #release} the native context exists.
     *
     * @param context may be null, which the library refuses
     * @return the address of the native context
     */
    static long acquire(Context context) {
        return context == null ? 0 : context.handle.acquire();
    }

    /** Ends a call that {@link #acquire} began. */
    static void release(Context context) {
        if (context != null) {
            context.handle.release();
        }
    }

    /** The native context and its log sink. */
    private static final class Handle extends NativeHandle {
        private final long context;
        private final long sink;

        Handle(long context, long sink) {
            super(context, "context");
            this.context = context;
            this.sink = sink;
        }

        @Override
        void end() {
            free(context, sink);
        }

        static void free(long context, long sink) {
            if (context != 0) {
                Raw.fastnorm_context_destroy(context);
            }
            if (sink != 0) {
                Raw.fnj_sink_destroy(sink);
            }
        }
    }
}
