package dev.fastnorm;

import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** What the kernels of a profiled {@link MlaDecode} recorded. */
public final class Profile {
    private static final int EVENT_BYTES = 40;
    private static final int ALIGNMENT = 8;

    private Profile() {}

    /** How an event stands in time. */
    public enum Kind {
        /** A span starts; its end has the same id and warpgroup. */
        BEGIN(fastnorm_profile_kind.FASTNORM_PROFILE_BEGIN),
        /** The span ends. */
        END(fastnorm_profile_kind.FASTNORM_PROFILE_END),
        /** A point in time. */
        INSTANT(fastnorm_profile_kind.FASTNORM_PROFILE_INSTANT);

        final int id;

        Kind(int id) {
            this.id = id;
        }
    }

    /**
     * One event.
     *
     * @param timeNs since the earliest event of the buffer, aligned over multiprocessors
     * @param cycle since the first event of this thread block, in clock cycles
     * @param block thread block
     * @param multiprocessor where it ran
     * @param group warpgroup of the thread block
     * @param id the library's number of what it is; {@link #name()} is its name
     * @param kind begin, end or point
     * @param value number of the tile or piece that it belongs to
     */
    public record Event(long timeNs, long cycle, int block, int multiprocessor, int group, int id,
            Kind kind, int value) {
        /**
         * What it is.
         *
         * @return such as {@code "softmax"}
         */
        public String name() {
            return Raw.fastnorm_profile_id_name(id);
        }
    }

    /**
     * The events of a profile, in the order of thread block, warpgroup and time.
     *
     * @param profile the bytes that a call wrote, copied to host memory, from position to limit
     * @return an unmodifiable list
     * @throws FastnormException if the bytes are no profile or are cut short
     */
    public static List<Event> decode(ByteBuffer profile) {
        NativeLibrary.load();
        ByteBuffer bytes = aligned(profile);
        try {
            long from = Raw.fnj_buffer_address(bytes);
            long count = Raw.fnj_profile_decode(from, profile.remaining(), 0, 0);
            ByteBuffer raw = ByteBuffer.allocateDirect(Math.toIntExact(count * EVENT_BYTES)
                    + ALIGNMENT)
                    .alignedSlice(ALIGNMENT).order(ByteOrder.nativeOrder());
            Raw.fnj_profile_decode(from, profile.remaining(), Raw.fnj_buffer_address(raw), count);
            List<Event> events = new ArrayList<>((int) count);
            for (int at = 0; at < count * EVENT_BYTES; at += EVENT_BYTES) {
                events.add(new Event(raw.getLong(at), raw.getLong(at + 8), raw.getInt(at + 16),
                        raw.getInt(at + 20),
                        raw.getInt(at + 24), raw.getInt(at + 28), kind(raw.getInt(at + 32)),
                        raw.getInt(at + 36)));
            }
            return Collections.unmodifiableList(events);
        } finally {
            Reference.reachabilityFence(bytes);
        }
    }

    /**
     * Writes a profile to a file in Chrome's Trace Event Format, which Perfetto opens.
     *
     * @param profile the bytes that a call wrote, copied to host memory, from position to limit
     * @param path the file, which is replaced
     * @throws FastnormException if the bytes are no profile, or the file cannot be written
     */
    public static void writeTrace(ByteBuffer profile, Path path) {
        NativeLibrary.load();
        ByteBuffer bytes = aligned(profile);
        try {
            Raw.fastnorm_profile_write_trace(Raw.fnj_buffer_address(bytes), profile.remaining(),
                    path.toString(),
                    fastnorm_trace_format.FASTNORM_TRACE_CHROME_JSON);
        } finally {
            Reference.reachabilityFence(bytes);
        }
    }

    private static Kind kind(int id) {
        for (Kind kind : Kind.values()) {
            if (kind.id == id) {
                return kind;
            }
        }
        throw new AssertionError("an event of kind " + id);
    }

    /** A copy where 64-bit words may be read. */
    private static ByteBuffer aligned(ByteBuffer profile) {
        ByteBuffer copy = ByteBuffer.allocateDirect(profile.remaining() + ALIGNMENT)
                .alignedSlice(ALIGNMENT);
        copy.put(profile.duplicate());
        return copy;
    }
}
