package dev.fastnorm;

/** Where the native code delivers messages. */
final class LogDelivery {
    private static final LogLevel[] LEVELS = LogLevel.values();

    private LogDelivery() {}

    /** A level that is not known is of less weight than all that are. */
    static LogLevel levelOf(int id) {
        for (LogLevel level : LEVELS) {
            if (level.id == id) {
                return level;
            }
        }
        return LogLevel.DEBUG;
    }

    /** Called by the native code, which has no use for an exception. */
    static void deliver(LogSink sink, int level, byte[] text) {
        try {
            sink.log(levelOf(level), Text.of(text));
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
