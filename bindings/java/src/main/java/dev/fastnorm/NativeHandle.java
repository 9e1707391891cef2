package dev.fastnorm;

import java.util.concurrent.atomic.AtomicLong;

/**
 * An address of the library and the number of calls that use it. It is freed when it is closed and
 * the last call is done. It must not know the object that users hold, which a cleaner watches.
 */
abstract class NativeHandle implements Runnable {
    private static final long CLOSED = Long.MIN_VALUE;

    private final long address;
    private final String name;
    private final AtomicLong calls = new AtomicLong(); // CLOSED or 0, plus the number of calls

    /**
     * @param address what is handed out
     * @param name what it is, for the text of a call that comes too late
     */
    NativeHandle(long address, String name) {
        this.address = address;
        this.name = name;
    }

    final boolean isClosed() {
        return calls.get() < 0;
    }

    final long acquire() {
        long before;
        do {
            before = calls.get();
            if (before < 0) {
                throw new IllegalStateException(name + " is closed");
            }
        } while (!calls.compareAndSet(before, before + 1));
        return address;
    }

    final void release() {
        if (calls.decrementAndGet() == CLOSED) {
            end();
        }
    }

    /** Close: the cleaner runs it once. */
    @Override
    public final void run() {
        if (calls.getAndAdd(CLOSED) == 0) {
            end();
        }
    }

    /** Frees what it has: once, after the last call. */
    abstract void end();
}
