package dev.fastnorm;

/** How rows travel between ranks. Results do not depend on it. */
public enum PeerAlgorithm {
    /** By rows, columns, dtype and ranks. */
    AUTO(fastnorm_peer_algorithm.FASTNORM_PEER_AUTO),
    /** Each rank sends its rows to all, and all ranks add. */
    ONE_SHOT(fastnorm_peer_algorithm.FASTNORM_PEER_ONE_SHOT),
    /** Each rank adds a share of the rows and sends the sums to all. */
    TWO_SHOT(fastnorm_peer_algorithm.FASTNORM_PEER_TWO_SHOT);

    final int id;

    PeerAlgorithm(int id) {
        this.id = id;
    }
}
