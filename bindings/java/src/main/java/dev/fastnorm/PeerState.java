package dev.fastnorm;

/**
 * What became of a {@link Peer}.
 *
 * @param failure what stopped it
 * @param rank the rank that was missing or disagrees; -1 where there is none
 * @param calls calls that ended well since it was made or reset
 * @param connected whether the other ranks' buffers are known
 */
public record PeerState(PeerFailure failure, int rank, long calls, boolean connected) {}
