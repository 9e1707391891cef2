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
public final class Norm extends Call {
    private final Description description = new Description(Words.NORM_MASK, Words.NORM_MAX_WORDS);

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
     * Sets what is added to the weight.
     *
     * @param offset 0, the default, or 1 for Gemma's form; finite, and 0 where there is no weight
     * @return this
     */
    public Norm weightOffset(double offset) {
        description.set(Words.NORM_WEIGHT_OFFSET, (float) offset);
        return this;
    }

    /**
     * Sets where the result is rounded on its way.
     *
     * @param rounding the place; the default is {@link Rounding#ONCE}
     * @return this
     */
    public Norm rounding(Rounding rounding) {
        description.set(Words.NORM_ROUNDING, rounding.id);
        return this;
    }

    /**
     * Sets which value of the sum x + residual is used.
     *
     * @param rounding the value; the default is {@link ResidualRounding#EXACT}
     * @return this
     */
    public Norm residualRounding(ResidualRounding rounding) {
        description.set(Words.NORM_RESIDUAL_ROUNDING, rounding.id);
        return this;
    }

    /**
     * Programmatic dependent launch: start when the stream's previous kernel allows it, and read
     * and write nothing before that one has ended. On the CPU and on GPUs before compute capability
     * 9.0 this and the two methods below have no effect; results never depend on them.
     *
     * @param wait whether to; the default is false
     * @return this
     */
    public Norm pdlWait(boolean wait) {
        description.set(Words.NORM_FLAGS, fastnorm_norm_flags.FASTNORM_NORM_PDL_WAIT, wait);
        return this;
    }

    /**
     * Programmatic dependent launch: let the stream's next kernel start once this one's rows are on
     * their way. It must wait itself before it uses any result.
     *
     * @param trigger whether to; the default is false
     * @return this
     */
    public Norm pdlTrigger(boolean trigger) {
        description.set(Words.NORM_FLAGS, fastnorm_norm_flags.FASTNORM_NORM_PDL_TRIGGER, trigger);
        return this;
    }

    /**
     * With {@link #pdlWait}, which it needs: weight and bias are not written by any kernel that may
     * still run, and may be read before the wait.
     *
     * @param constant whether they are; the default is false
     * @return this
     */
    public Norm pdlConstantWeights(boolean constant) {
        final int bit = fastnorm_norm_flags.FASTNORM_NORM_PDL_CONSTANT_WEIGHTS;
        description.set(Words.NORM_FLAGS, bit, constant);
        return this;
    }

    // --- tensors ---

    /**
     * Sets the rows.
     *
     * @param x {@code [.., n]}, T; required
     * @return this
     */
    public Norm x(Tensor x) {
        description.input(Words.NORM_BIT_X, x);
        return this;
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
     * Sets what is added to x.
     *
     * @param residual x's shape; F32, F16 or BF16
     * @return this
     */
    public Norm residual(Tensor residual) {
        description.input(Words.NORM_BIT_RESIDUAL, residual);
        return this;
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

    /**
     * Sets the weight. The default is 1.
     *
     * @param weight {@code [.., n]}, which broadcasts against x: {@code [n]}, {@code [heads, n]},
     *     {@code [batch, 1, n]}; F32, F16 or BF16
     * @return this
     */
    public Norm weight(Tensor weight) {
        description.input(Words.NORM_BIT_WEIGHT, weight);
        return this;
    }

    /**
     * Sets the bias. The default is 0.
     *
     * @param bias as the weight
     * @return this
     */
    public Norm bias(Tensor bias) {
        description.input(Words.NORM_BIT_BIAS, bias);
        return this;
    }

    /**
     * Sets where the result goes.
     *
     * @param y x's shape, T or F32; may be x, the residual or the gate
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public Norm y(Tensor y) {
        description.output(Words.NORM_BIT_Y, "y", y);
        return this;
    }

    /**
     * Sets where x + residual goes.
     *
     * @param residualOut x's shape; F32, F16 or BF16; may be the residual, which it needs
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public Norm residualOut(Tensor residualOut) {
        description.output(Words.NORM_BIT_RESIDUAL_OUT, "residual_out", residualOut);
        return this;
    }

    /**
     * Sets where the rows' means go; layer norm only.
     *
     * @param mean x's shape without the last extent, or with 1 there; F32; {@link #groupSize} says
     *     what it is with groups
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public Norm mean(Tensor mean) {
        description.output(Words.NORM_BIT_MEAN, "mean", mean);
        return this;
    }

    /**
     * Sets where the rows' factors 1 / sqrt(.. + eps) go.
     *
     * @param rstd as a mean
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public Norm rstd(Tensor rstd) {
        description.output(Words.NORM_BIT_RSTD, "rstd", rstd);
        return this;
    }

    // --- stages: gate, activation, groups, statistics of several devices ---

    /**
     * Sets the gate, whose activation multiplies each element. By default nothing is gated.
     *
     * @param gate x's shape; T or F32; y may be the same view, and x may not overlap it
     * @return this
     */
    public Norm gate(Tensor gate) {
        description.input(Words.NORM_BIT_GATE, gate);
        return this;
    }

    /**
     * Sets the function of the gate.
     *
     * @param activation the function; the default is {@link Activation#IDENTITY}, and no other goes
     *     without a gate
     * @return this
     */
    public Norm gateAct(Activation activation) {
        description.set(Words.NORM_GATE_ACT, activation.id);
        return this;
    }

    /**
     * Sets where the gate multiplies.
     *
     * @param position the place; the default is {@link GatePosition#AFTER_NORM}, and no other goes
     *     without a gate
     * @return this
     */
    public Norm gatePosition(GatePosition position) {
        description.set(Words.NORM_GATE_POSITION, position.id);
        return this;
    }

    /**
     * Sets what a gate after the norm multiplies.
     *
     * @param source the value; the default is {@link GateSource#F32}, and no other goes without a
     *     gate after the norm
     * @return this
     */
    public Norm gateSource(GateSource source) {
        description.set(Words.NORM_GATE_SOURCE, source.id);
        return this;
    }

    /**
     * Sets the function of the result, which comes after the gate.
     *
     * @param activation the function; the default is {@link Activation#IDENTITY}
     * @return this
     */
    public Norm activation(Activation activation) {
        description.set(Words.NORM_ACTIVATION, activation.id);
        return this;
    }

    /**
     * Sets the columns that share a statistic. The n columns are then n / d groups. Weight and bias
     * are {@code [.., n]} or, the same for all groups, {@code [.., d]}. Statistics are x's shape
     * without the last extent, and n / d behind it.
     *
     * @param columns d, a divisor of n; 0, the default, for all columns
     * @return this
     */
    public Norm groupSize(long columns) {
        description.set(Words.NORM_GROUP_SIZE, columns);
        return this;
    }

    /**
     * Sets where the sums of squares go, for rows that are spread over devices. With it y may be
     * left out. The sums of an RMS norm are added up over the devices. Those of a layer norm are
     * merged with the means, as docs/gated_norm.md says.
     *
     * @param sumsq the shape of a mean; layer norm: with a last extent of 2, the mean and the sum
     *     of squares of x - mean; F32
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public Norm sumsq(Tensor sumsq) {
        description.output(Words.NORM_BIT_SUMSQ, "sumsq", sumsq);
        return this;
    }

    /**
     * Sets the means to use, with {@link #rstdIn}; layer norm only.
     *
     * @param meanIn the shape of a mean; F32
     * @return this
     */
    public Norm meanIn(Tensor meanIn) {
        description.input(Words.NORM_BIT_MEAN_IN, meanIn);
        return this;
    }

    /**
     * Sets the factors 1 / sqrt(.. + eps) to use. Nothing is summed then. By default they are
     * computed.
     *
     * @param rstdIn the shape of an rstd; F32
     * @return this
     */
    public Norm rstdIn(Tensor rstdIn) {
        description.input(Words.NORM_BIT_RSTD_IN, rstdIn);
        return this;
    }

    // --- stages: the branch's own norm, and its sum with the residual ---

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
     * Takes the branch's norm away again. The settings below that are of this norm must be their
     * defaults then.
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
     * Sets what is added to the weight of the branch's norm.
     *
     * @param offset 0, the default, or 1 for Gemma's form; finite, and 0 where there is no weight
     * @return this
     */
    public Norm branchWeightOffset(double offset) {
        description.set(Words.NORM_BRANCH_WEIGHT_OFFSET, (float) offset);
        return this;
    }

    /**
     * Sets where the branch is rounded on the way through its norm.
     *
     * @param rounding the place; the default is {@link Rounding#ONCE}, and
     *     {@link Rounding#ONCE_RW} is refused
     * @return this
     */
    public Norm branchRounding(Rounding rounding) {
        description.set(Words.NORM_BRANCH_ROUNDING, rounding.id);
        return this;
    }

    /**
     * Sets whether the normalised branch is rounded to T before the sum. Without alpha and a scale
     * of the sum, the call then has the bits of two.
     *
     * @param rounded whether it is; the default is false
     * @return this
     */
    public Norm branchRounded(boolean rounded) {
        description.set(Words.NORM_BRANCH_ROUNDED, rounded ? 1 : 0);
        return this;
    }

    /**
     * Sets the weight of the branch's norm. The default is 1.
     *
     * @param weight {@code [.., n]}, as the weight
     * @return this
     */
    public Norm branchWeight(Tensor weight) {
        description.input(Words.NORM_BIT_BRANCH_WEIGHT, weight);
        return this;
    }

    /**
     * Sets the bias of the branch's norm. The default is 0.
     *
     * @param bias {@code [.., n]}, as the weight
     * @return this
     */
    public Norm branchBias(Tensor bias) {
        description.input(Words.NORM_BIT_BRANCH_BIAS, bias);
        return this;
    }

    /**
     * Sets where the factors 1 / sqrt(.. + eps) of the branch's norm go.
     *
     * @param rstd x's shape without the last extent, or with 1 there; F32
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public Norm branchRstd(Tensor rstd) {
        description.output(Words.NORM_BIT_BRANCH_RSTD, "branch_rstd", rstd);
        return this;
    }

    /**
     * Sets the factor of the branch, which is x or what its norm made of it.
     *
     * @param alpha the factor, as a float; finite; 0, the default, stands for 1
     * @return this
     */
    public Norm alpha(double alpha) {
        description.set(Words.NORM_ALPHA, (float) alpha);
        return this;
    }

    /**
     * Sets the factor of the sum of branch and residual, a value on the device. The default is 1.
     *
     * @param scale {@code [1]}, F32
     * @return this
     */
    public Norm sumScale(Tensor scale) {
        description.input(Words.NORM_BIT_SUM_SCALE, scale);
        return this;
    }

    /**
     * Sets where the sum is rounded on its way.
     *
     * @param rounding the place; the default is {@link SumRounding#ONCE}
     * @return this
     */
    public Norm sumRounding(SumRounding rounding) {
        description.set(Words.NORM_SUM_ROUNDING, rounding.id);
        return this;
    }

    // --- stages: a factor of the branch, and the modulation (adaLN) ---

    /**
     * Sets the factor of the branch in the sum. It broadcasts against x, the last dimension too:
     * {@code [1]}, {@code [batch, 1, n]}, {@code [batch, tokens, 1]}. With {@link #modulationIndex}
     * it is {@code [m, n]} or {@code [m, 1]}. The default is 1.
     *
     * @param gate the factor; T or F32
     * @return this
     */
    public Norm residualGate(Tensor gate) {
        description.input(Words.NORM_BIT_RESIDUAL_GATE, gate);
        return this;
    }

    /**
     * Sets a row that is added to the residual's gate. The default is 0.
     *
     * @param table {@code [n]}, or with leading extents of 1; T or F32
     * @return this
     */
    public Norm residualGateTable(Tensor table) {
        description.input(Words.NORM_BIT_RESIDUAL_GATE_TABLE, table);
        return this;
    }

    /**
     * Sets the function of the residual's gate with its table.
     *
     * @param act the function; the default is {@link Activation#IDENTITY}
     * @return this
     */
    public Norm residualGateAct(Activation act) {
        description.set(Words.NORM_RESIDUAL_GATE_ACT, act.id);
        return this;
    }

    /**
     * Sets the scale of the normalised row, whose factor is 1 + it. By default nothing is
     * multiplied.
     *
     * @param scale the scale, as {@link #residualGate}
     * @return this
     */
    public Norm modulationScale(Tensor scale) {
        description.input(Words.NORM_BIT_MODULATION_SCALE, scale);
        return this;
    }

    /**
     * Sets a row that is added to the modulation's scale. The default is 0.
     *
     * @param table the row, as {@link #residualGateTable}
     * @return this
     */
    public Norm scaleTable(Tensor table) {
        description.input(Words.NORM_BIT_SCALE_TABLE, table);
        return this;
    }

    /**
     * Sets whether the factor of the normalised row is the scale itself, not 1 + it.
     *
     * @param plain whether it is; the default is false
     * @return this
     */
    public Norm modulationPlainScale(boolean plain) {
        final int bit = fastnorm_norm_flags.FASTNORM_NORM_MODULATION_PLAIN_SCALE;
        description.set(Words.NORM_FLAGS, bit, plain);
        return this;
    }

    /**
     * Sets what is added to the normalised row. By default nothing is.
     *
     * @param shift the summand, as {@link #residualGate}
     * @return this
     */
    public Norm modulationShift(Tensor shift) {
        description.input(Words.NORM_BIT_MODULATION_SHIFT, shift);
        return this;
    }

    /**
     * Sets a row that is added to the modulation's shift. The default is 0.
     *
     * @param table the row, as {@link #residualGateTable}
     * @return this
     */
    public Norm shiftTable(Tensor table) {
        description.input(Words.NORM_BIT_SHIFT_TABLE, table);
        return this;
    }

    /**
     * Sets which row of each modulator a row of x takes. By default the modulators broadcast.
     *
     * @param index x's shape without the last extent, or with 1 there; I32 or I64
     * @return this
     */
    public Norm modulationIndex(Tensor index) {
        description.input(Words.NORM_BIT_MODULATION_INDEX, index);
        return this;
    }

    /**
     * Sets where the modulation is rounded on its way.
     *
     * @param rounding the place; the default is {@link ModulationRounding#ONCE}
     * @return this
     */
    public Norm modulationRounding(ModulationRounding rounding) {
        description.set(Words.NORM_MODULATION_ROUNDING, rounding.id);
        return this;
    }

    // --- the quantised output ---

    /**
     * Sets how {@link #quantized} is scaled.
     *
     * @param scheme the scheme; the default is {@link QuantScheme#NONE}
     * @return this
     */
    public Norm quantScheme(QuantScheme scheme) {
        description.set(Words.NORM_QUANT_SCHEME, scheme.id);
        return this;
    }

    /**
     * Sets the columns that share a scale, for {@link QuantScheme#PER_BLOCK}.
     *
     * @param columns 64 or 128; 0, the default, for all other schemes
     * @return this
     */
    public Norm quantBlockSize(int columns) {
        description.set(Words.NORM_QUANT_BLOCK_SIZE, columns);
        return this;
    }

    /**
     * Sets what is quantised.
     *
     * @param source the value; the default is {@link QuantSource#F32}
     * @return this
     */
    public Norm quantSource(QuantSource source) {
        description.set(Words.NORM_QUANT_SOURCE, source.id);
        return this;
    }

    /**
     * Sets how codes are made, with a scale for the tensor, a row or a block.
     *
     * @param division the value; the default is {@link QuantDivision#MULTIPLY_RECIPROCAL}
     * @return this
     */
    public Norm quantDivision(QuantDivision division) {
        description.set(Words.NORM_QUANT_DIVISION, division.id);
        return this;
    }

    /**
     * Sets the order of the scales in memory.
     *
     * @param layout the order; the default is {@link ScaleLayout#ROW_MAJOR}
     * @return this
     */
    public Norm scaleLayout(ScaleLayout layout) {
        description.set(Words.NORM_SCALE_LAYOUT, layout.id);
        return this;
    }

    /**
     * Sets whether dynamic 8-bit float scales are rounded up to a power of two.
     *
     * @param pow2 whether they are; the default is false
     * @return this
     */
    public Norm scalePow2(boolean pow2) {
        description.set(Words.NORM_SCALE_POW2, pow2 ? 1 : 0);
        return this;
    }

    /**
     * Sets the least magnitude that a dynamic scale is made from.
     *
     * @param floor the magnitude, as a float; 0, the default, stands for 1e-10
     * @return this
     */
    public Norm amaxFloor(double floor) {
        description.set(Words.NORM_AMAX_FLOOR, (float) floor);
        return this;
    }

    /**
     * Sets the bounds that results are clamped to before they are quantised.
     *
     * @param clamp the bounds are -clamp and clamp, as floats; 0, the default, for none
     * @return this
     */
    public Norm clamp(double clamp) {
        description.set(Words.NORM_CLAMP, (float) clamp);
        return this;
    }

    /**
     * Sets the second scale of {@link QuantScheme#NVFP4}. The default is 1.
     *
     * @param globalScale {@code [1]}, F32
     * @return this
     */
    public Norm globalScale(Tensor globalScale) {
        description.input(Words.NORM_BIT_GLOBAL_SCALE, globalScale);
        return this;
    }

    /**
     * Sets where the quantised result goes.
     *
     * @param quantized x's shape, the quantised dtype
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public Norm quantized(Tensor quantized) {
        description.output(Words.NORM_BIT_QUANTIZED, "quantized", quantized);
        return this;
    }

    /**
     * Sets the scales: an input for {@link QuantScheme#PER_TENSOR}, else an output.
     *
     * @param scale the scales
     * @return this
     */
    public Norm scale(Tensor scale) {
        description.input(Words.NORM_BIT_SCALE, scale);
        return this;
    }

    /**
     * Sets where the largest magnitude seen is kept: the larger of it and what is there is stored.
     *
     * @param amax {@code [1]}, F32
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public Norm amax(Tensor amax) {
        description.output(Words.NORM_BIT_AMAX, "amax", amax);
        return this;
    }

    /**
     * Sets the clamp as a value on the device, read when the norm runs. It goes with a clamp of 0
     * alone.
     *
     * @param clampScale {@code [1]}, F32; a value that is not above 0 is off
     * @return this
     */
    public Norm clampScale(Tensor clampScale) {
        description.input(Words.NORM_BIT_CLAMP_SCALE, clampScale);
        return this;
    }

    // --- inside ---

    @Override
    Description.Encoded encoded() {
        Description.Encoded current = description.encoded();
        return current != null ? current : description.encode(problem());
    }

    private String problem() {
        return description.readOnlyScale(Words.NORM_BIT_SCALE, "scale", Words.NORM_QUANT_SCHEME);
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
