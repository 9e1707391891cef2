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
public final class NormBackward extends Call {
    private final Description description =
            new Description(Words.NORM_BACKWARD_MASK, Words.NORM_BACKWARD_MAX_WORDS);

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

    /**
     * Sets what the forward adds to the weight.
     *
     * @param offset the forward's; the default is 0
     * @return this
     */
    public NormBackward weightOffset(double offset) {
        description.set(Words.NORM_BACKWARD_WEIGHT_OFFSET, (float) offset);
        return this;
    }

    /**
     * Sets where the forward rounds on its way.
     *
     * @param rounding the forward's; the default is {@link Rounding#ONCE}
     * @return this
     */
    public NormBackward rounding(Rounding rounding) {
        description.set(Words.NORM_BACKWARD_ROUNDING, rounding.id);
        return this;
    }

    /**
     * Programmatic dependent launch: as {@link Norm#pdlWait}.
     *
     * @param wait whether to; the default is false
     * @return this
     */
    public NormBackward pdlWait(boolean wait) {
        return flag(fastnorm_norm_backward_flags.FASTNORM_NORM_BACKWARD_PDL_WAIT, wait);
    }

    /**
     * Programmatic dependent launch: as {@link Norm#pdlTrigger}.
     *
     * @param trigger whether to; the default is false
     * @return this
     */
    public NormBackward pdlTrigger(boolean trigger) {
        return flag(fastnorm_norm_backward_flags.FASTNORM_NORM_BACKWARD_PDL_TRIGGER, trigger);
    }

    /**
     * Adds to what is in dweight, after the sum over the rows and in F32.
     *
     * @param accumulate whether to; the default is false
     * @return this
     */
    public NormBackward accumulateDweight(boolean accumulate) {
        return flag(fastnorm_norm_backward_flags.FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT,
                accumulate);
    }

    /**
     * Adds to what is in dbias, after the sum over the rows and in F32.
     *
     * @param accumulate whether to; the default is false
     * @return this
     */
    public NormBackward accumulateDbias(boolean accumulate) {
        return flag(fastnorm_norm_backward_flags.FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS,
                accumulate);
    }

    private NormBackward flag(int bit, boolean on) {
        description.set(Words.NORM_BACKWARD_FLAGS, bit, on);
        return this;
    }

    // --- tensors ---

    /**
     * Sets the gradient of y.
     *
     * @param dy x's shape, T or F32; required. Its last dimension may have stride 0
     * @return this
     */
    public NormBackward dy(Tensor dy) {
        description.input(Words.NORM_BACKWARD_BIT_DY, dy);
        return this;
    }

    /**
     * Sets what the forward normalised: its x, or its residual_out.
     *
     * @param x {@code [.., n]}, F32, F16 or BF16; required
     * @return this
     */
    public NormBackward x(Tensor x) {
        description.input(Words.NORM_BACKWARD_BIT_X, x);
        return this;
    }

    /**
     * Sets the forward's weight. The default is 1.
     *
     * @param weight as in {@link Norm#weight}
     * @return this
     */
    public NormBackward weight(Tensor weight) {
        description.input(Words.NORM_BACKWARD_BIT_WEIGHT, weight);
        return this;
    }

    /**
     * Sets the forward's means; layer norm only. Not set where {@link #rstd} is not.
     *
     * @param mean x's shape without the last extent, or with 1 there; F32
     * @return this
     */
    public NormBackward mean(Tensor mean) {
        description.input(Words.NORM_BACKWARD_BIT_MEAN, mean);
        return this;
    }

    /**
     * Sets the forward's rstd. By default the statistics are computed again from x.
     *
     * @param rstd x's shape without the last extent, or with 1 there; F32
     * @return this
     */
    public NormBackward rstd(Tensor rstd) {
        description.input(Words.NORM_BACKWARD_BIT_RSTD, rstd);
        return this;
    }

    /**
     * Sets the gradient that reaches the forward's residual_out from elsewhere. The default is
     * none.
     *
     * @param dresidualIn x's shape; F32, F16 or BF16
     * @return this
     */
    public NormBackward dresidualIn(Tensor dresidualIn) {
        description.input(Words.NORM_BACKWARD_BIT_DRESIDUAL_IN, dresidualIn);
        return this;
    }

    /**
     * Sets where the gradient of x, and of the residual, goes.
     *
     * @param dx x's shape, T; may be dy, x or dresidual_in
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormBackward dx(Tensor dx) {
        description.output(Words.NORM_BACKWARD_BIT_DX, "dx", dx);
        return this;
    }

    /**
     * Sets where the same gradient goes for a residual of another dtype. Needs {@link #dx}.
     *
     * @param dresidual x's shape; F32, F16 or BF16, and not dx's dtype
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormBackward dresidual(Tensor dresidual) {
        description.output(Words.NORM_BACKWARD_BIT_DRESIDUAL, "dresidual", dresidual);
        return this;
    }

    /**
     * Sets where the weight's gradient goes.
     *
     * @param dweight the weight's shape; F32 or its dtype
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormBackward dweight(Tensor dweight) {
        description.output(Words.NORM_BACKWARD_BIT_DWEIGHT, "dweight", dweight);
        return this;
    }

    /**
     * Sets where the bias's gradient goes.
     *
     * @param dbias the shape of the forward's bias; F32, F16 or BF16
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormBackward dbias(Tensor dbias) {
        description.output(Words.NORM_BACKWARD_BIT_DBIAS, "dbias", dbias);
        return this;
    }

    // --- gate and groups ---

    /**
     * Sets the forward's gate. By default it had none.
     *
     * @param gate x's shape; T or F32. Before the norm: no dresidual_in, no dresidual
     * @return this
     */
    public NormBackward gate(Tensor gate) {
        description.input(Words.NORM_BACKWARD_BIT_GATE, gate);
        return this;
    }

    /**
     * Sets the forward's bias, which {@link #dgate} alone needs. The default is 0.
     *
     * @param bias as in {@link Norm#bias}
     * @return this
     */
    public NormBackward bias(Tensor bias) {
        description.input(Words.NORM_BACKWARD_BIT_BIAS, bias);
        return this;
    }

    /**
     * Sets where the gate's gradient goes. Needs {@link #gate}.
     *
     * @param dgate x's shape; T or F32; may be dy, x, gate or dresidual_in
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormBackward dgate(Tensor dgate) {
        description.output(Words.NORM_BACKWARD_BIT_DGATE, "dgate", dgate);
        return this;
    }

    /**
     * Sets the forward's function of the gate.
     *
     * @param activation the function; the default is {@link Activation#IDENTITY}. Any other needs a
     *     gate
     * @return this
     */
    public NormBackward gateAct(Activation activation) {
        description.set(Words.NORM_BACKWARD_GATE_ACT, activation.id);
        return this;
    }

    /**
     * Sets where the forward's gate multiplies.
     *
     * @param position the place; the default is {@link GatePosition#AFTER_NORM}. Any other needs a
     *     gate
     * @return this
     */
    public NormBackward gatePosition(GatePosition position) {
        description.set(Words.NORM_BACKWARD_GATE_POSITION, position.id);
        return this;
    }

    /**
     * Sets what the forward's gate multiplies after the norm.
     *
     * @param source the value; the default is {@link GateSource#F32}. Any other needs a gate
     * @return this
     */
    public NormBackward gateSource(GateSource source) {
        description.set(Words.NORM_BACKWARD_GATE_SOURCE, source.id);
        return this;
    }

    /**
     * Sets the forward's columns that share a statistic: as {@link Norm#groupSize}.
     *
     * @param columns a divisor of n; the default 0 is n
     * @return this
     */
    public NormBackward groupSize(long columns) {
        description.set(Words.NORM_BACKWARD_GROUP_SIZE, columns);
        return this;
    }

    // --- branch ---

    /**
     * Sets the forward's x, where it added a residual. A branch goes without a gate and groups.
     *
     * @param branch x's shape, T
     * @return this
     */
    public NormBackward branch(Tensor branch) {
        description.input(Words.NORM_BACKWARD_BIT_BRANCH, branch);
        return this;
    }

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
     * Sets the forward's weight of the branch's norm. The default is 1.
     *
     * @param branchWeight as in {@link Norm#branchWeight}
     * @return this
     */
    public NormBackward branchWeight(Tensor branchWeight) {
        description.input(Words.NORM_BACKWARD_BIT_BRANCH_WEIGHT, branchWeight);
        return this;
    }

    /**
     * Sets the forward's bias of the branch's norm. {@link #dresidualGate} alone needs it. The
     * default is 0.
     *
     * @param branchBias as in {@link Norm#branchBias}
     * @return this
     */
    public NormBackward branchBias(Tensor branchBias) {
        description.input(Words.NORM_BACKWARD_BIT_BRANCH_BIAS, branchBias);
        return this;
    }

    /**
     * Sets the means of the branch; layer norm only. Not set where {@link #branchRstd} is not.
     *
     * @param branchMean as {@link #mean}
     * @return this
     */
    public NormBackward branchMean(Tensor branchMean) {
        description.input(Words.NORM_BACKWARD_BIT_BRANCH_MEAN, branchMean);
        return this;
    }

    /**
     * Sets the rstd of the branch. By default its statistics are computed again.
     *
     * @param branchRstd as {@link #rstd}
     * @return this
     */
    public NormBackward branchRstd(Tensor branchRstd) {
        description.input(Words.NORM_BACKWARD_BIT_BRANCH_RSTD, branchRstd);
        return this;
    }

    /**
     * Sets what the forward adds to the weight of the branch's norm.
     *
     * @param offset the forward's; the default is 0
     * @return this
     */
    public NormBackward branchWeightOffset(double offset) {
        description.set(Words.NORM_BACKWARD_BRANCH_WEIGHT_OFFSET, (float) offset);
        return this;
    }

    /**
     * Sets where the branch's norm rounds on its way.
     *
     * @param rounding the forward's; the default is {@link Rounding#ONCE}
     * @return this
     */
    public NormBackward branchRounding(Rounding rounding) {
        description.set(Words.NORM_BACKWARD_BRANCH_ROUNDING, rounding.id);
        return this;
    }

    /**
     * Sets whether the forward rounds the branch before it adds it.
     *
     * @param rounded the forward's; the default is false
     * @return this
     */
    public NormBackward branchRounded(boolean rounded) {
        description.set(Words.NORM_BACKWARD_BRANCH_ROUNDED, rounded ? 1 : 0);
        return this;
    }

    /**
     * Sets the forward's factor of the branch, its table added. The default is 1.
     *
     * @param residualGate {@code [.., n]}, T or F32
     * @return this
     */
    public NormBackward residualGate(Tensor residualGate) {
        description.input(Words.NORM_BACKWARD_BIT_RESIDUAL_GATE, residualGate);
        return this;
    }

    /**
     * Sets the forward's function of the residual gate.
     *
     * @param activation the default is {@link Activation#IDENTITY}; no other goes without a gate
     * @return this
     */
    public NormBackward residualGateAct(Activation activation) {
        description.set(Words.NORM_BACKWARD_RESIDUAL_GATE_ACT, activation.id);
        return this;
    }

    /**
     * Sets the forward's factor of the branch, a number.
     *
     * @param alpha the forward's; the default is 1
     * @return this
     */
    public NormBackward alpha(double alpha) {
        description.set(Words.NORM_BACKWARD_ALPHA, (float) alpha);
        return this;
    }

    /**
     * Sets the forward's factor of the sum. The default is 1.
     *
     * @param sumScale {@code [1]}, F32
     * @return this
     */
    public NormBackward sumScale(Tensor sumScale) {
        description.input(Words.NORM_BACKWARD_BIT_SUM_SCALE, sumScale);
        return this;
    }

    /**
     * Sets where the branch's gradient goes.
     *
     * @param dbranch x's shape, T; may be branch
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormBackward dbranch(Tensor dbranch) {
        description.output(Words.NORM_BACKWARD_BIT_DBRANCH, "dbranch", dbranch);
        return this;
    }

    /**
     * Sets where the gradient of the branch's weight goes.
     *
     * @param dbranchWeight the weight's shape; F32 or its dtype
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormBackward dbranchWeight(Tensor dbranchWeight) {
        description.output(Words.NORM_BACKWARD_BIT_DBRANCH_WEIGHT, "dbranch_weight", dbranchWeight);
        return this;
    }

    /**
     * Sets where the gradient of the branch's bias goes.
     *
     * @param dbranchBias the bias's shape; F32, F16 or BF16
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormBackward dbranchBias(Tensor dbranchBias) {
        description.output(Words.NORM_BACKWARD_BIT_DBRANCH_BIAS, "dbranch_bias", dbranchBias);
        return this;
    }

    /**
     * Sets where the residual gate's gradient goes.
     *
     * @param dresidualGate the gate's shape; F32 or its dtype
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public NormBackward dresidualGate(Tensor dresidualGate) {
        description.output(Words.NORM_BACKWARD_BIT_DRESIDUAL_GATE, "dresidual_gate", dresidualGate);
        return this;
    }

    /**
     * Adds to what is in dbranch_weight, after the sum over the rows and in F32.
     *
     * @param accumulate whether to; the default is false
     * @return this
     */
    public NormBackward accumulateDbranchWeight(boolean accumulate) {
        return flag(
                fastnorm_norm_backward_flags.FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT,
                accumulate);
    }

    /**
     * Adds to what is in dbranch_bias, after the sum over the rows and in F32.
     *
     * @param accumulate whether to; the default is false
     * @return this
     */
    public NormBackward accumulateDbranchBias(boolean accumulate) {
        return flag(
                fastnorm_norm_backward_flags.FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS,
                accumulate);
    }

    /**
     * Adds to what is in dresidual_gate, after the sum over the rows and in F32.
     *
     * @param accumulate whether to; the default is false
     * @return this
     */
    public NormBackward accumulateDresidualGate(boolean accumulate) {
        return flag(
                fastnorm_norm_backward_flags.FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE,
                accumulate);
    }

    // --- inside ---

    @Override
    Description.Encoded encoded() {
        Description.Encoded current = description.encoded();
        return current != null ? current : description.encode(null);
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
