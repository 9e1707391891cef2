package dev.fastnorm;

/**
 * Receives the messages of a context, on the thread that makes a call, possibly several at a time.
 */
@FunctionalInterface
public interface LogSink {
    /**
     * Takes one message. What it throws goes to the thread's uncaught-exception handler; the call
     * that the message belongs to goes on.
     *
     * @param level the severity
     * @param text one line without a newline
     */
    void log(LogLevel level, String text);
}
