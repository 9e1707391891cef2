package dev.fastnorm;

/**
 * Several normalisations in one call: see {@link Norm#many}. A list sees the changes that are made
 * to its parts.
 */
public final class NormList extends CallList {
    NormList(Norm... parts) {
        super(parts.clone());
    }

    @Override
    int arraysFunction() {
        return 1;
    }

    @Override
    void run(long context, long[] words, long workspace, long workspaceBytes, long stream) {
        Raw.fnb_norm_many(context, words, count(), workspace, workspaceBytes, stream);
    }

    @Override
    void query(long context, long[] words, fastnorm_info info) {
        Raw.fnb_norm_many_query(context, words, count(), info);
    }

    @Override
    void prepare(long context, long[] words) {
        Raw.fnb_norm_many_prepare(context, words, count());
    }
}
