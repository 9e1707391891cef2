package dev.fastnorm;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;

/**
 * A description of work that can be run on any context whose device its tensors are on.
 *
 * <p>On the CPU the work is done when a call returns. On a CUDA device it is queued on a stream and
 * the call returns; the tensors' memory must be left alone until the stream has run it.
 *
 * <p>All methods may be used by several threads at a time as long as none changes the description.
 */
public abstract sealed class Call
        permits CallList, MlaDecodeFields, NcclSequenceNorm, NormBackwardFields, NormFields,
        NormHeadsBackwardFields, NormHeadsFields, PeerCall {
    /**
     * Workspace that the last call on a CPU needed; a hint, so that the next one brings it along.
     */
    private volatile long hostWorkspaceBytes;

    /** What speaks against arrays where a call waits for other ranks. */
    static final String NO_ARRAYS = "a tensor lies in an array of the Java heap; required for a "
            + "call of several ranks: direct memory, as Tensor.allocate makes";

    Call() {}

    /** The description as a list of words. */
    abstract Description.Encoded encoded();

    abstract void run(long context, long[] words, long workspace, long workspaceBytes, long stream);

    /** The function's number for fnj_run_arrays, or -1 for a call that takes no arrays. */
    int arraysFunction() {
        return -1;
    }

    /** The number of descriptions or parts. */
    int count() {
        return 1;
    }

    private void start(long context, Description.Encoded call, long workspace, long workspaceBytes,
            long stream) {
        HeapArrays arrays = call.arrays();
        if (arrays == null) {
            run(context, call.words(), workspace, workspaceBytes, stream);
            return;
        }
        if (arraysFunction() < 0) {
            throw new IllegalArgumentException(NO_ARRAYS);
        }
        Raw.fnj_run_arrays(arraysFunction(), context, call.words(), count(), arrays.arrays(),
                arrays.places(), workspace, workspaceBytes, stream);
    }

    abstract void query(long context, long[] words, fastnorm_info info);

    abstract void prepare(long context, long[] words);

    /**
     * Runs the call, on a CUDA device on the legacy default stream. Zero rows are success: nothing
     * is launched, nothing written.
     *
     * @param context the device
     * @throws FastnormException if the library refuses; its message names the argument, the value
     *     it has and what is required
     * @throws IllegalArgumentException if an output is read-only
     * @throws IllegalStateException if the context is closed
     */
    public final void run(Context context) {
        run(context, 0);
    }

    /**
     * Runs the call on a stream. On a CPU context memory for a workspace, where one is needed, is
     * allocated and kept by the thread; on a CUDA context the caller brings it.
     *
     * @param context the device
     * @param stream CUDA: a {@code cudaStream_t} as a number, 0 for the legacy default stream; CPU:
     *     0
     * @throws FastnormException if the library refuses; its message names the argument, the value
     *     it has and what is required
     * @throws IllegalArgumentException if an output is read-only
     * @throws IllegalStateException if the context is closed
     */
    public final void run(Context context, long stream) {
        Description.Encoded call = checked(context);
        long handle = Context.acquire(context);
        try {
            if (hostWorkspaceBytes == 0 || !isCpu(context)) {
                start(handle, call, 0, 0, stream);
            } else {
                runWithHostWorkspace(handle, call, hostWorkspaceBytes, stream);
            }
        } catch (FastnormException refused) {
            if (!isCpu(context)) {
                throw refused;
            }
            long needed = queried(handle, call.words()).workspaceBytes();
            if (needed <= hostWorkspaceBytes) {
                throw refused;
            }
            hostWorkspaceBytes = needed;
            runWithHostWorkspace(handle, call, needed, stream);
        } finally {
            Context.release(context);
            Reference.reachabilityFence(this);
        }
    }

    /**
     * Runs the call with a workspace.
     *
     * @param context the device
     * @param stream CUDA: a {@code cudaStream_t} as a number, 0 for the legacy default stream; CPU:
     *     0
     * @param workspace address on the device, a multiple of 256, of memory that nothing else uses
     *     until the work has run; 0 where none is needed
     * @param workspaceBytes its size, at least {@link Info#workspaceBytes()}
     * @throws FastnormException if the library refuses; its message names the argument, the value
     *     it has and what is required
     * @throws IllegalArgumentException if an output is read-only
     * @throws IllegalStateException if the context is closed
     */
    public final void run(Context context, long stream, long workspace, long workspaceBytes) {
        Description.Encoded call = checked(context);
        long handle = Context.acquire(context);
        try {
            start(handle, call, workspace, workspaceBytes, stream);
        } finally {
            Context.release(context);
            Reference.reachabilityFence(this);
        }
    }

    /**
     * Says what the call would do. The memory of the tensors is not touched.
     *
     * @param context the device
     * @return workspace, kernel, launches, bytes
     * @throws FastnormException if the call would be refused
     * @throws IllegalStateException if the context is closed
     */
    public final Info query(Context context) {
        Description.Encoded call = encoded();
        long handle = Context.acquire(context);
        try {
            return queried(handle, call.words());
        } finally {
            Context.release(context);
            Reference.reachabilityFence(this);
        }
    }

    /**
     * Loads what the call needs. After it, calls that use the same kernel neither allocate nor
     * synchronise, and can be captured in a CUDA graph. Optional: the first call does the same.
     *
     * @param context the device
     * @throws FastnormException if the call would be refused
     * @throws IllegalStateException if the context is closed
     */
    public final void prepare(Context context) {
        Description.Encoded call = encoded();
        long handle = Context.acquire(context);
        try {
            prepare(handle, call.words());
        } finally {
            Context.release(context);
            Reference.reachabilityFence(this);
        }
    }

    /**
     * The description, which nothing speaks against. The library is asked first: its text is
     * better.
     */
    private Description.Encoded checked(Context context) {
        Description.Encoded call = encoded();
        if (call.problem() != null) {
            query(context);
            throw new IllegalArgumentException(call.problem());
        }
        return call;
    }

    private static boolean isCpu(Context context) {
        return context != null && context.device().type() == DeviceType.CPU;
    }

    private Info queried(long handle, long[] words) {
        fastnorm_info info = new fastnorm_info();
        try {
            query(handle, words, info);
            return new Info(info);
        } finally {
            info.delete();
        }
    }

    private void runWithHostWorkspace(long handle, Description.Encoded call, long bytes,
            long stream) {
        ByteBuffer workspace = HostWorkspace.of(bytes);
        try {
            start(handle, call, Raw.fnj_buffer_address(workspace), bytes, stream);
        } finally {
            Reference.reachabilityFence(workspace);
        }
    }
}
