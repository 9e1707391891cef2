package dev.fastnorm;

/**
 * The kinds of failure. A newer library may know statuses that this list does not have; they keep
 * to the decades of these numbers, which {@link #of} counts on.
 */
public enum Status {
    /** Success. */
    OK(fastnorm_status.FASTNORM_OK),
    /** An argument is null, out of range or not a known value. */
    ERROR_ARGUMENT(fastnorm_status.FASTNORM_ERROR_ARGUMENT),
    /** Shapes are wrong or do not fit each other. */
    ERROR_SHAPE(fastnorm_status.FASTNORM_ERROR_SHAPE),
    /** A tensor's dtype is not one that its role allows. */
    ERROR_DTYPE(fastnorm_status.FASTNORM_ERROR_DTYPE),
    /** Strides, alignment or overlap of tensors are not allowed. */
    ERROR_LAYOUT(fastnorm_status.FASTNORM_ERROR_LAYOUT),
    /** Valid, but the library or the device has no kernel for it. */
    ERROR_UNSUPPORTED(fastnorm_status.FASTNORM_ERROR_UNSUPPORTED),
    /** No such device, no usable driver, or the device reported an error. */
    ERROR_DEVICE(fastnorm_status.FASTNORM_ERROR_DEVICE),
    /** Host or device memory could not be had. */
    ERROR_OUT_OF_MEMORY(fastnorm_status.FASTNORM_ERROR_OUT_OF_MEMORY),
    /** A defect of the library. */
    ERROR_INTERNAL(fastnorm_status.FASTNORM_ERROR_INTERNAL),
    /** A kind of failure that this binding does not know. */
    UNKNOWN(-1);

    private static final Status[] KNOWN = values();

    private final int code;

    Status(int code) {
        this.code = code;
    }

    /**
     * The library's number of this kind.
     *
     * @return a multiple of 10, or -1 for {@link #UNKNOWN}
     */
    public int code() {
        return code;
    }

    /**
     * The kind that a number of the library belongs to.
     *
     * @param code what the library returned
     * @return the kind with the same decade, or {@link #UNKNOWN}
     */
    public static Status of(int code) {
        if (code == OK.code) {
            return OK;
        }
        for (Status status : KNOWN) {
            if (status.code > 0 && code > 0 && code / 10 == status.code / 10) {
                return status;
            }
        }
        return UNKNOWN;
    }
}
