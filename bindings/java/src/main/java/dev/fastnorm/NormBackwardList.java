package dev.fastnorm;

/**
 * The gradients of several normalisations in one call: see {@link NormBackward#many}. A list sees
 * the changes that are made to its parts.
 */
public final class NormBackwardList extends CallList {
    NormBackwardList(NormBackward... parts) {
        super(parts.clone());
    }

    @Override
    int arraysFunction() {
        return 3;
    }

    @Override
    void run(long context, long[] words, long workspace, long workspaceBytes, long stream) {
        Raw.fnb_norm_backward_many(context, words, count(), workspace, workspaceBytes, stream);
    }

    @Override
    void query(long context, long[] words, fastnorm_info info) {
        Raw.fnb_norm_backward_many_query(context, words, count(), info);
    }

    @Override
    void prepare(long context, long[] words) {
        Raw.fnb_norm_backward_many_prepare(context, words, count());
    }
}
