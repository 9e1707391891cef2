package dev.fastnorm;

/**
 * One rank of this process, for {@link Nccl.Builder#createAll}.
 *
 * @param context the device
 * @param comm an {@code ncclComm_t} of that device, as a number
 * @param stream a {@code cudaStream_t} as a number, for the exchange; 0 for the default stream
 */
public record NcclRank(Context context, long comm, long stream) {}
