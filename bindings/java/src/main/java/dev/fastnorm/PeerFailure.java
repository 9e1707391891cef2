package dev.fastnorm;

/** What stopped a peer. */
public enum PeerFailure {
    /** Nothing. */
    NONE(fastnorm_peer_error.FASTNORM_PEER_ERROR_NONE),
    /** A rank did not arrive in time. */
    MISSING(fastnorm_peer_error.FASTNORM_PEER_ERROR_MISSING),
    /** A rank made another call. */
    DISAGREES(fastnorm_peer_error.FASTNORM_PEER_ERROR_DISAGREES);

    final int id;

    PeerFailure(int id) {
        this.id = id;
    }

    static PeerFailure of(int id) {
        for (PeerFailure failure : values()) {
            if (failure.id == id) {
                return failure;
            }
        }
        throw new AssertionError("the library gave peer error " + id);
    }
}
