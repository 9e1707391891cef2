package dev.fastnorm;

/** Which sum of the ranks' rows goes on. */
public enum PeerSumRounding {
    /** Rounded to x's dtype: as an all-reduce of it would be. */
    ROUNDED(fastnorm_peer_sum_rounding.FASTNORM_PEER_SUM_ROUNDED),
    /** The single-precision sum. */
    EXACT(fastnorm_peer_sum_rounding.FASTNORM_PEER_SUM_EXACT);

    final int id;

    PeerSumRounding(int id) {
        this.id = id;
    }
}
