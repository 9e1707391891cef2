package dev.fastnorm;

import java.nio.ByteBuffer;

/** Workspace memory of the calling thread, for calls on CPU contexts. */
final class HostWorkspace {
    private static final int ALIGNMENT = 256;
    private static final ThreadLocal<ByteBuffer> OWN = new ThreadLocal<>();

    private HostWorkspace() {}

    /** At least so many bytes, aligned as the library requires, undefined. */
    static ByteBuffer of(long bytes) {
        ByteBuffer own = OWN.get();
        if (own == null || own.capacity() < bytes) {
            own = ByteBuffer.allocateDirect(Math.toIntExact(bytes + ALIGNMENT))
                    .alignedSlice(ALIGNMENT);
            OWN.set(own);
        }
        return own;
    }
}
