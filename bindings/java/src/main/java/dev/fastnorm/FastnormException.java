package dev.fastnorm;

/**
 * The library refused a call or failed. {@link #getMessage()} is the library's own text: the
 * argument, the value it had and what is required. Nothing was launched and nothing was written, a
 * fault of the device itself excepted.
 */
public final class FastnormException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** The number that the library returned. */
    private final int code;

    /** The CUDA runtime's error code, or 0. */
    private final int deviceError;

    /** Called by the native code. */
    private FastnormException(int code, byte[] text, int deviceError) {
        this(code, Text.of(text), deviceError);
    }

    private FastnormException(int code, String text, int deviceError) {
        super(text);
        this.code = code;
        this.deviceError = deviceError;
    }

    /** This error as one of several calls has it: with the call's name ahead of its message. */
    FastnormException of(String call) {
        FastnormException named =
                new FastnormException(code, call + ": " + getMessage(), deviceError);
        named.setStackTrace(getStackTrace());
        return named;
    }

    /**
     * The kind of failure.
     *
     * @return the status; {@link Status#UNKNOWN} if the library is newer than this binding and has
     *     a kind of its own
     */
    public Status status() {
        return Status.of(code);
    }

    /**
     * The number that the library returned.
     *
     * @return the number; {@code code() / 10} is the kind of failure for good
     */
    public int code() {
        return code;
    }

    /**
     * The CUDA runtime's error code behind a {@link Status#ERROR_DEVICE} or
     * {@link Status#ERROR_OUT_OF_MEMORY}.
     *
     * @return a {@code cudaError_t}; 0 where the failure did not come from the CUDA runtime
     */
    public int deviceError() {
        return deviceError;
    }
}
