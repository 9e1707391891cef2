package dev.fastnorm;

/**
 * One normalisation: a description that is built step by step and then run, as often as wanted.
 *
 * <pre>{@code
 * try (var context = Context.cpu()) {
 *     Norm.rms(1e-6).x(x).weight(weight).residualInPlace(h).y(y).run(context);
 * }
 * }</pre>
 *
 * <p>x is {@code [.., n]}, rank 1 to 8, of {@link DType#F32}, {@link DType#F16} or {@link
 * DType#BF16}, which is called T below. All tensors are on the context's device. y and residual_out
 * may each be x or residual, as the same view, but not both the same. y may be the gate too. Any
 * other overlap with an output is refused. What the setters are given is checked when the call is
 * run, queried or prepared. The formula is that of {@linkplain dev.fastnorm the package}.
 *
 * <p>Stages are optional steps around the norm. They go with every other setting:
 *
 * <pre>
 * u = x * act(gate)              {@link #gate}, {@link GatePosition#BEFORE_NORM}; else u = x
 * u = norm(u)                    {@link #branchRms}, {@link #branchLayer}
 * u = u rounded to T             {@link #branchRounded}
 * k = act(gate + table) * alpha  {@link #residualGate}, {@link #alpha}
 * s = u * k + residual           one operation; without a factor u + residual
 * s = s * sum_scale              {@link #sumScale}; s is the row that is normalised
 * z = z * (1 + scale) + shift    {@link #modulationScale}, {@link #modulationShift}
 * z = z * act(gate)              {@link #gate}, {@link GatePosition#AFTER_NORM}; z is the result
 * z = activation(z)              {@link #activation}
 * </pre>
 *
 * <p>A setter that is given null takes the tensor away again.
 */
public final class Norm extends NormFields {
    private Norm(int kind, double eps) {
        NativeLibrary.load();
        description.set(Words.NORM_KIND, kind);
        description.set(Words.NORM_EPS, (float) eps);
    }

    /**
     * Begins an RMS norm: nothing is subtracted.
     *
     * @param eps added to the mean square, as a float; finite and at least 0
     * @return the description
     */
    public static Norm rms(double eps) {
        return new Norm(fastnorm_norm_kind.FASTNORM_NORM_RMS, eps);
    }

    /**
     * Begins a layer norm: the mean is subtracted.
     *
     * @param eps added to the variance, as a float; finite and at least 0
     * @return the description
     */
    public static Norm layer(double eps) {
        return new Norm(fastnorm_norm_kind.FASTNORM_NORM_LAYER, eps);
    }

    /**
     * Several normalisations in one call, with the results of one run of each, in order: such as
     * the query heads and the key heads of one fused QKV tensor. All are checked, against each
     * other too, before anything is launched. None may read what another one writes. On a GPU two
     * neighbours that share a kernel of short rows are one launch.
     *
     * @param parts up to 8; error texts name them as {@code args[i]}
     * @return the call
     */
    public static NormList many(Norm... parts) {
        return new NormList(parts);
    }

    /**
     * Sets the rows and writes the result over them.
     *
     * @param x {@code [.., n]}, T
     * @return this
     */
    public Norm xInPlace(Tensor x) {
        return x(x).y(x);
    }

    /**
     * Sets what is added to x and writes the sum over it.
     *
     * @param residual x's shape; F32, F16 or BF16
     * @return this
     */
    public Norm residualInPlace(Tensor residual) {
        return residual(residual).residualOut(residual);
    }

    // --- the branch's own norm, and its sum with the residual ---

    /**
     * Normalises x before the residual is added, by an RMS norm. A gate before the norm comes
     * first. The statistic is of all n columns, whatever {@link #groupSize} is.
     *
     * @param eps added to the mean square, as a float; finite and at least 0
     * @return this
     */
    public Norm branchRms(double eps) {
        return branch(1, fastnorm_norm_kind.FASTNORM_NORM_RMS, eps);
    }

    /**
     * Normalises x before the residual is added, as {@link #branchRms} does, by a layer norm.
     *
     * @param eps added to the variance, as a float; finite and at least 0
     * @return this
     */
    public Norm branchLayer(double eps) {
        return branch(1, fastnorm_norm_kind.FASTNORM_NORM_LAYER, eps);
    }

    /**
     * Takes the branch's norm away again. All settings of this norm must be their defaults then.
     *
     * @return this
     */
    public Norm branchNone() {
        return branch(0, 0, 0);
    }

    private Norm branch(int norm, int kind, double eps) {
        description.set(Words.NORM_BRANCH_NORM, norm);
        description.set(Words.NORM_BRANCH_KIND, kind);
        description.set(Words.NORM_BRANCH_EPS, (float) eps);
        return this;
    }

    /**
     * Sets the factor of the branch, which is x or what its norm made of it.
     *
     * @param alpha the factor, as a float; finite; the default is 1, which is none
     * @return this
     */
    public Norm alpha(double alpha) {
        boolean scales = alpha != 1;
        description.set(Words.NORM_FLAGS, fastnorm_norm_flags.FASTNORM_NORM_ALPHA, scales);
        description.set(Words.NORM_ALPHA, scales ? (float) alpha : 0);
        return this;
    }

    // --- inside ---

    @Override
    Description.Encoded encoded() {
        Description.Encoded current = description.kept();
        return current != null ? current : description.encode(problem());
    }

    private String problem() {
        return quant.readOnlyScale(Words.QUANT_BIT_SCALE, "quant.scale", Words.QUANT_SCHEME);
    }

    @Override
    int arraysFunction() {
        return 0;
    }

    @Override
    void run(long context, long[] words, long workspace, long workspaceBytes, long stream) {
        Raw.fnb_norm(context, words, workspace, workspaceBytes, stream);
    }

    @Override
    void query(long context, long[] words, fastnorm_info info) {
        Raw.fnb_norm_query(context, words, info);
    }

    @Override
    void prepare(long context, long[] words) {
        Raw.fnb_norm_prepare(context, words);
    }
}
