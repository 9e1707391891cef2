package dev.fastnorm;

/**
 * Attention of new tokens over a paged cache of latents: multi-head latent attention (MLA) in its
 * absorbed form. A description that is built step by step and then run, as often as wanted.
 *
 * <p>There are B requests. Request b has s new tokens and a cache of L = kv_len[b] tokens, the new
 * ones among them. N is the number of new tokens of all requests, H the number of heads. For new
 * token i of its request, head h and cached token j:
 *
 * <pre>
 * score[j]  = sm_scale * (q_nope[i,h] . ckv[j] + q_pe[i,h] . kpe[j])
 * allowed   = j &lt; L; causal: j &lt;= L - s + i
 * lse[i,h]  = log of the sum of exp(score[j]) over allowed j
 * o[i,h]    = sum of exp(score[j] - lse[i,h]) * ckv[j] over allowed j
 * </pre>
 *
 * <p>Where no j is allowed, o is 0 and lse is minus infinity. Token j of request b is row {@code j
 * % page} of the page with the number {@code list[j / page]}. The list is row b of the page table
 * or, with {@link #kvIndptr}, begins there. What lies behind the end of a request may be anything.
 *
 * <p>With a {@link #cacheFormat} of FP8 the bytes of {@link #cache} are the rows, in place of ckv
 * and kpe. With {@link #indices}, a new token attends to the rows that it lists, in place of those
 * of the page table. {@link #attentionSink} multiplies o[i,h] by exp(lse) / (exp(lse) +
 * exp(attention_sink[h])). A GPU has none of the three.
 *
 * <p>T is the dtype of q_nope: {@link DType#BF16} or {@link DType#F16}, on the CPU {@link
 * DType#F32} too. Last dimensions are contiguous. A GPU must be of compute capability 9.0. On it,
 * addresses and strides of the tensors of T are multiples of 16 bytes; lengths and page numbers
 * must be valid.
 *
 * <p>A setter that is given null takes the tensor away again.
 */
public final class MlaDecode extends MlaDecodeFields {
    private MlaDecode(double smScale) {
        NativeLibrary.load();
        description.set(Words.MLA_DECODE_SM_SCALE, Double.doubleToRawLongBits(smScale));
    }

    /**
     * Begins a description.
     *
     * @param smScale factor of the scores, finite and not 0, on a GPU positive; DeepSeek without
     *     YaRN has 1 / sqrt(128 + 64)
     * @return the description
     */
    public static MlaDecode of(double smScale) {
        return new MlaDecode(smScale);
    }

    /**
     * Sets where each request's new tokens begin. The default is that each has N / B.
     *
     * @param qoIndptr {@code [B + 1]}, I32
     * @param maxNew the most new tokens of a request, or more; at least 1
     * @return this
     */
    public MlaDecode qoIndptr(Tensor qoIndptr, int maxNew) {
        description.set(Words.MLA_DECODE_MAX_S_Q, maxNew);
        description.input(Words.MLA_DECODE_BIT_QO_INDPTR, qoIndptr);
        return this;
    }

    /**
     * Sets where the kernels record what each warpgroup did when; {@link Profile} reads a copy of
     * it. On a GPU only.
     *
     * @param profile {@link Info#profileBytes()} bytes, U8, at a multiple of 16
     * @param events the most events that a warpgroup may record, 1 to 2^20
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public MlaDecode profile(Tensor profile, int events) {
        description.set(Words.MLA_DECODE_PROFILE_EVENTS, events);
        description.output(Words.MLA_DECODE_BIT_PROFILE, "profile", profile);
        return this;
    }

    // --- inside ---

    @Override
    Description.Encoded encoded() {
        return description.encoded();
    }

    @Override
    int arraysFunction() {
        return 6;
    }

    @Override
    void run(long context, long[] words, long workspace, long workspaceBytes, long stream) {
        Raw.fnb_mla_decode(context, words, workspace, workspaceBytes, stream);
    }

    @Override
    void query(long context, long[] words, fastnorm_info info) {
        Raw.fnb_mla_decode_query(context, words, info);
    }

    @Override
    void prepare(long context, long[] words) {
        Raw.fnb_mla_decode_prepare(context, words);
    }
}
