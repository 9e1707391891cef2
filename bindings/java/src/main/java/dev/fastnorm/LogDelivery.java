package dev.fastnorm;

/** Where the native code delivers messages. */
final class LogDelivery {
    private LogDelivery() {}

    /** Called by the native code, which has no use for an exception. */
    static void deliver(LogSink sink, int level, byte[] text) {
        try {
            sink.log(LogLevel.of(level), Text.of(text));
        } catch (Throwable thrown) {
            Thread thread = Thread.currentThread();
            try {
                thread.getUncaughtExceptionHandler().uncaughtException(thread, thrown);
            } catch (Throwable ignored) {
                // The handler's own failure; the virtual machine ignores it too.
            }
        }
    }
}
