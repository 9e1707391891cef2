package dev.fastnorm;

import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.function.Supplier;

/**
 * The gradients of {@link NormHeads}: rope is rotated back, and the norm's gradient taken of that.
 * A description that is built step by step and then run, as often as wanted.
 *
 * <pre>{@code
 * NormHeadsBackward.of(
 *                 NormHeadsBackwardPart.of(dq).rms(1e-6, q).weight(queryWeight).rope().dx(dqkv1),
 *                 NormHeadsBackwardPart.of(dk).rms(1e-6, k).weight(keyWeight).rope().dx(dqkv2),
 *                 NormHeadsBackwardPart.of(dv).dx(dqkv3))
 *         .rope(128, cos, sin).positions(positions).run(context);
 * }</pre>
 *
 * <p>For each column, over all rows that share an element of weight or bias:
 *
 * <pre>
 * dweight = sum(dv * xhat)                      (+ the old dweight)
 * dbias   = sum(dv)                             (+ the old dbias)
 * </pre>
 *
 * <p>The norm's formulas are those of {@link NormBackward}, with dv for dy. On the CPU positions
 * are checked before anything is written.
 *
 * <p>A setter that is given null takes the tensor away again. A call sees the changes that are made
 * to its parts.
 */
public final class NormHeadsBackward extends NormHeadsBackwardFields {
    private final int count;
    private final JoinedWords joined;

    private NormHeadsBackward(NormHeadsBackwardPart... parts) {
        NativeLibrary.load();
        count = parts.length;
        for (int i = 0; i < count; i++) {
            Objects.requireNonNull(parts[i], "parts[" + i + "]");
        }
        List<Supplier<Description.Encoded>> sources = new ArrayList<>();
        sources.add(description::encoded);
        for (NormHeadsBackwardPart part : parts) {
            sources.add(part::encoded);
        }
        joined = new JoinedWords(1, sources);
    }

    /**
     * Begins a call.
     *
     * @param parts up to 8 over the same tokens; error texts name them as {@code parts[i]}
     * @return the call
     */
    public static NormHeadsBackward of(NormHeadsBackwardPart... parts) {
        return new NormHeadsBackward(parts);
    }

    /**
     * Sets the forward's tables of rope.
     *
     * @param ropeDim columns that rope rotated; 0 where no part has rope
     * @param cos {@code [P, R]} or {@code [P, 2 * R]}, or one such for each head; F32 or T
     * @param sin as cos
     * @return this
     */
    public NormHeadsBackward rope(int ropeDim, Tensor cos, Tensor sin) {
        description.set(Words.NORM_HEADS_BACKWARD_ROPE_DIM, ropeDim);
        description.input(Words.NORM_HEADS_BACKWARD_BIT_COS, cos);
        description.input(Words.NORM_HEADS_BACKWARD_BIT_SIN, sin);
        return this;
    }

    /**
     * Sets how many pairs take their row from each axis of the positions: the first ones from axis
     * 0, the next ones from axis 1, and so on.
     *
     * @param pairs up to 4 numbers, of sum R; none, the default, for positions of one axis
     * @return this
     * @throws IllegalArgumentException if there are more than 4
     */
    public NormHeadsBackward mrope(int... pairs) {
        if (pairs.length > 4) {
            throw new IllegalArgumentException(
                    "mrope has " + pairs.length + " axes; required: at most 4");
        }
        for (int axis = 0; axis < 4; axis++) {
            description.set(Words.NORM_HEADS_BACKWARD_MROPE_0 + axis,
                    axis < pairs.length ? pairs[axis] : 0);
        }
        return this;
    }

    // --- inside ---

    @Override
    Description.Encoded encoded() {
        return joined.encoded();
    }

    @Override
    int arraysFunction() {
        return 5;
    }

    @Override
    int count() {
        return count;
    }

    @Override
    void run(long context, long[] words, long workspace, long workspaceBytes, long stream) {
        Raw.fnb_norm_heads_backward(context, words, count, workspace, workspaceBytes, stream);
    }

    @Override
    void query(long context, long[] words, fastnorm_info info) {
        Raw.fnb_norm_heads_backward_query(context, words, count, info);
    }

    @Override
    void prepare(long context, long[] words) {
        Raw.fnb_norm_heads_backward_prepare(context, words, count);
    }
}
