package dev.fastnorm;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;

/** The calls of several ranks as one: lists of their handles, streams and workspaces. */
final class NcclCalls {
    private final Call[] calls;
    private final Nccl[] ranks;
    private final long[] streams;
    private final long[] workspaces;

    /** A function of the library. */
    interface Function {
        /**
         * @param lists addresses of the lists of handles, streams and workspaces
         * @param words the descriptions
         * @param bytes size of a workspace
         */
        void call(long[] lists, long[] words, long bytes);
    }

    NcclCalls(Call[] calls, Nccl[] ranks, long[] streams, long[] workspaces) {
        this.calls = calls;
        this.ranks = ranks;
        this.streams = checked("streams", streams);
        this.workspaces = checked("workspaces", workspaces);
        NcclLibrary.load();
    }

    private long[] checked(String name, long[] list) {
        if (list.length != ranks.length) {
            throw new IllegalArgumentException(
                    name + " has " + list.length + " entries; required: " + ranks.length
                            + ", one for each call");
        }
        return list.clone();
    }

    /** Makes the calls, while no handle can be destroyed. */
    void run(long workspaceBytes, Function function) {
        long[] handles = new long[ranks.length];
        int held = 0;
        try {
            for (; held < ranks.length; held++) {
                handles[held] = ranks[held].acquire();
            }
            long[] words = words();
            ByteBuffer host = null;
            long bytes = workspaceBytes;
            if (bytes == 0 && allOnCpus()) {
                bytes = needed();
                host = hostWorkspaces(bytes);
            }
            ByteBuffer[] lists =
                    {Nccl.listOf(handles), Nccl.listOf(streams), Nccl.listOf(workspaces)};
            function.call(new long[] {Raw.fnj_buffer_address(lists[0]),
                Raw.fnj_buffer_address(lists[1]), Raw.fnj_buffer_address(lists[2])}, words, bytes);
            Reference.reachabilityFence(lists);
            Reference.reachabilityFence(host);
        } finally {
            while (held-- > 0) {
                ranks[held].release();
            }
            Reference.reachabilityFence(calls);
        }
    }

    private long[] words() {
        Description.Encoded[] parts = new Description.Encoded[calls.length];
        int length = 0;
        for (int i = 0; i < parts.length; i++) {
            parts[i] = calls[i].encoded();
            length += parts[i].words().length;
            if (parts[i].problem() != null) {
                throw new IllegalArgumentException("args[" + i + "]: " + parts[i].problem());
            }
            if (parts[i].arrays() != null) {
                throw new IllegalArgumentException("args[" + i + "]: " + Call.NO_ARRAYS);
            }
        }
        long[] words = new long[length];
        int end = 0;
        for (Description.Encoded part : parts) {
            System.arraycopy(part.words(), 0, words, end, part.words().length);
            end += part.words().length;
        }
        return words;
    }

    private boolean allOnCpus() {
        for (Nccl rank : ranks) {
            if (rank.context().device().type() != DeviceType.CPU) {
                return false;
            }
        }
        return ranks.length > 0;
    }

    /** Bytes of workspace of the rank that needs most. An error names the rank. */
    private long needed() {
        long most = 0;
        for (int i = 0; i < calls.length; i++) {
            try {
                most = Math.max(most, calls[i].query(ranks[i].context()).workspaceBytes());
            } catch (FastnormException e) {
                throw calls.length == 1 ? e : e.of("args[" + i + "]");
            }
        }
        return most;
    }

    /** Memory for all ranks, whose parts it sets. */
    private ByteBuffer hostWorkspaces(long bytes) {
        long step = (bytes + 255) / 256 * 256;
        ByteBuffer memory = ByteBuffer.allocateDirect(Math.toIntExact(step * calls.length + 256))
                .alignedSlice(256);
        for (int i = 0; i < workspaces.length; i++) {
            workspaces[i] = Raw.fnj_buffer_address(memory) + i * step;
        }
        return memory;
    }
}
