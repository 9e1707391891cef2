package dev.fastnorm;

/**
 * The gradients of one {@link Norm}: a description that is built step by step and can run many
 * times. For each row of n elements, with g = weight + weight_offset (1 without a weight):
 *
 * <pre>
 * xhat      = (x - mean) * rstd                 (RMS norm: x * rstd)
 * e         = dy * g
 * c1        = sum(e * xhat) / n
 * c2        = sum(e) / n                        (layer norm only)
 * dx        = (e - c2 - xhat * c1) * rstd + dresidual_in
 * dresidual = the same, rounded to its own dtype
 * </pre>
 *
 * <p>and for each column, over all rows that share an element of weight or bias:
 *
 * <pre>
 * dweight = sum(dy * xhat)                      (+ the old dweight)
 * dbias   = sum(dy)                             (+ the old dbias)
 * </pre>
 *
 * <p>With a {@link #gate} after the norm, dy * act(gate) takes the place of dy above. The gradient
 * of the gate is dgate = dy * (xhat * g + bias) * act'(gate).
 *
 * <p>With a gate before the norm, x * act(gate) takes the place of x. Call the result of the
 * formula dh. Then dx = dh * act(gate), and dgate = dh * x * act'(gate).
 *
 * <p>Where the forward added its x, the {@link #branch}, to a residual, x here is the stored
 * residual_out. With k = act(residual_gate) * alpha, u what the forward added, and r = sum_scale
 * times the dx above:
 *
 * <pre>
 * dx             = r, the gradient of the residual
 * du             = r * k
 * dbranch        = du, or the gradient of the branch's norm for du in place of dy
 * dbranch_weight = sum(du * the normalised branch)
 * dbranch_bias   = sum(du)
 * dresidual_gate = act'(residual_gate) * alpha * sum(r * u)
 * </pre>
 *
 * <p>T is the dtype of the forward's x. All tensors are on the context's device. At least one of
 * dx, dweight, dbias and dgate is set. dx, dresidual and dgate may each be dy, x, gate or
 * dresidual_in, as the same view. dbranch may be branch. Any other overlap with an output is
 * refused. dweight and dbias have the same bits for any number of threads. They have the same bits
 * on CPU and GPU if dy, x, mean and rstd have.
 *
 * <p>A setter that is given null takes the tensor away again.
 */
public final class NormBackward extends NormBackwardFields {
    private NormBackward(int kind, double eps) {
        NativeLibrary.load();
        description.set(Words.NORM_BACKWARD_KIND, kind);
        description.set(Words.NORM_BACKWARD_EPS, (float) eps);
    }

    /**
     * Begins the gradients of an RMS norm.
     *
     * @param eps the forward's; used where {@link #rstd} is not set
     * @return the description
     */
    public static NormBackward rms(double eps) {
        return new NormBackward(fastnorm_norm_kind.FASTNORM_NORM_RMS, eps);
    }

    /**
     * Begins the gradients of a layer norm.
     *
     * @param eps the forward's; used where {@link #rstd} is not set
     * @return the description
     */
    public static NormBackward layer(double eps) {
        return new NormBackward(fastnorm_norm_kind.FASTNORM_NORM_LAYER, eps);
    }

    /**
     * The gradients of several normalisations in one call. The results are those of one run of
     * each, in order. All parts are checked, against each other too, before anything is launched.
     * No part may touch what another one writes.
     *
     * @param parts up to 8; error texts name them as {@code args[i]}
     * @return the call
     */
    public static NormBackwardList many(NormBackward... parts) {
        return new NormBackwardList(parts);
    }

    // --- branch ---

    /**
     * The forward normalised the branch by its root mean square.
     *
     * @param eps the forward's; used where {@link #branchRstd} is not set
     * @return this
     */
    public NormBackward branchRms(double eps) {
        return branchNorm(fastnorm_norm_kind.FASTNORM_NORM_RMS, eps);
    }

    /**
     * The forward normalised the branch by its mean and variance.
     *
     * @param eps the forward's; used where {@link #branchRstd} is not set
     * @return this
     */
    public NormBackward branchLayer(double eps) {
        return branchNorm(fastnorm_norm_kind.FASTNORM_NORM_LAYER, eps);
    }

    private NormBackward branchNorm(int kind, double eps) {
        description.set(Words.NORM_BACKWARD_BRANCH_NORM, 1);
        description.set(Words.NORM_BACKWARD_BRANCH_KIND, kind);
        description.set(Words.NORM_BACKWARD_BRANCH_EPS, (float) eps);
        return this;
    }

    /**
     * Sets the forward's factor of the branch, a number.
     *
     * @param alpha the forward's; the default is 1
     * @return this
     */
    public NormBackward alpha(double alpha) {
        boolean scales = alpha != 1;
        description.set(Words.NORM_BACKWARD_FLAGS,
                fastnorm_norm_backward_flags.FASTNORM_NORM_BACKWARD_ALPHA, scales);
        description.set(Words.NORM_BACKWARD_ALPHA, scales ? (float) alpha : 0);
        return this;
    }

    // --- inside ---

    @Override
    Description.Encoded encoded() {
        return description.encoded();
    }

    @Override
    int arraysFunction() {
        return 2;
    }

    @Override
    void run(long context, long[] words, long workspace, long workspaceBytes, long stream) {
        Raw.fnb_norm_backward(context, words, workspace, workspaceBytes, stream);
    }

    @Override
    void query(long context, long[] words, fastnorm_info info) {
        Raw.fnb_norm_backward_query(context, words, info);
    }

    @Override
    void prepare(long context, long[] words) {
        Raw.fnb_norm_backward_prepare(context, words);
    }
}
