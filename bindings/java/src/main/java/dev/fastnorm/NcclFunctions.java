package dev.fastnorm;

/**
 * Addresses of the functions of an NCCL, for {@link Nccl#useFunctions}. All are required.
 *
 * @param getVersion {@code ncclGetVersion}
 * @param commCount {@code ncclCommCount}
 * @param commUserRank {@code ncclCommUserRank}
 * @param commCuDevice {@code ncclCommCuDevice}
 * @param allReduce {@code ncclAllReduce}
 * @param reduceScatter {@code ncclReduceScatter}
 * @param allGather {@code ncclAllGather}
 * @param groupStart {@code ncclGroupStart}
 * @param groupEnd {@code ncclGroupEnd}
 * @param getErrorString {@code ncclGetErrorString}
 */
public record NcclFunctions(long getVersion, long commCount, long commUserRank, long commCuDevice,
        long allReduce, long reduceScatter, long allGather, long groupStart, long groupEnd,
        long getErrorString) {
    /** In the order of the C struct. */
    long[] addresses() {
        return new long[] {getVersion, commCount, commUserRank, commCuDevice, allReduce,
            reduceScatter, allGather, groupStart, groupEnd, getErrorString};
    }
}
