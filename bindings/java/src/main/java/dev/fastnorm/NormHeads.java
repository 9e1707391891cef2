package dev.fastnorm;

import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.function.Supplier;

/**
 * What stands between the QKV projection and attention: the norm of query and key heads, the rotary
 * embedding (rope) and the write to a paged cache. A description that is built step by step and
 * then run, as often as wanted.
 *
 * <pre>{@code
 * NormHeads.of(
 *                 NormHeadsPart.of(q).rms(1e-6).weight(queryWeight).rope().y(q),
 *                 NormHeadsPart.of(k).rms(1e-6).weight(keyWeight).rope().cache(keys),
 *                 NormHeadsPart.of(v).cache(values))
 *         .rope(128, cos, sin).positions(positions).slots(slots).run(context);
 * }</pre>
 *
 * <p>With R = ropeDim / 2, rope rotates pair j of a row's columns by c = cos[row, j] and s =
 * sin[row, j]:
 *
 * <pre>
 * o1 = v1 * c - v2 * s
 * o2 = v2 * c + v1 * s
 * </pre>
 *
 * <p>The row is positions[t] for token t, or t itself without positions. Token t goes to slot
 * {@code k = slots[t]} of the caches: row {@code k % page} of page {@code k / page}. A token
 * whose slot is -1, or that is behind the last slot, is padding: its positions are not looked at,
 * and none of its outputs is written, in any part. On the CPU other positions and all slots are
 * checked before anything is written; on a GPU they must be valid.
 *
 * <p>A setter that is given null takes the tensor away again. A call sees the changes that are made
 * to its parts.
 */
public final class NormHeads extends NormHeadsFields {
    private final int count;
    private final JoinedWords joined;

    private NormHeads(NormHeadsPart... parts) {
        NativeLibrary.load();
        count = parts.length;
        for (int i = 0; i < count; i++) {
            Objects.requireNonNull(parts[i], "parts[" + i + "]");
        }
        List<Supplier<Description.Encoded>> sources = new ArrayList<>();
        sources.add(description::encoded);
        for (NormHeadsPart part : parts) {
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
    public static NormHeads of(NormHeadsPart... parts) {
        return new NormHeads(parts);
    }

    /**
     * Sets the tables of rope. The library computes neither sines nor frequencies.
     *
     * @param ropeDim columns that rope rotates, even; 0 where no part has rope
     * @param cos {@code [P, R]} or {@code [P, 2 * R]}, or one such for each head; F32 or T
     * @param sin as cos
     * @return this
     */
    public NormHeads rope(int ropeDim, Tensor cos, Tensor sin) {
        description.set(Words.NORM_HEADS_ROPE_DIM, ropeDim);
        description.input(Words.NORM_HEADS_BIT_COS, cos);
        description.input(Words.NORM_HEADS_BIT_SIN, sin);
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
    public NormHeads mrope(int... pairs) {
        if (pairs.length > 4) {
            throw new IllegalArgumentException(
                    "mrope has " + pairs.length + " axes; required: at most 4");
        }
        for (int axis = 0; axis < 4; axis++) {
            description.set(Words.NORM_HEADS_MROPE_0 + axis, axis < pairs.length ? pairs[axis] : 0);
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
        return 4;
    }

    @Override
    int count() {
        return count;
    }

    @Override
    void run(long context, long[] words, long workspace, long workspaceBytes, long stream) {
        Raw.fnb_norm_heads(context, words, count, workspace, workspaceBytes, stream);
    }

    @Override
    void query(long context, long[] words, fastnorm_info info) {
        Raw.fnb_norm_heads_query(context, words, count, info);
    }

    @Override
    void prepare(long context, long[] words) {
        Raw.fnb_norm_heads_prepare(context, words, count);
    }
}
