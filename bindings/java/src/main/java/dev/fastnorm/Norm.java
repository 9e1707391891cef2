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
 * <p>x is {@code [.., n]}, rank 1 to 8, of {@link DType#F32}, {@link DType#F16} or
 * {@link DType#BF16}, which is called T below. All tensors are on the context's device. y and residual_out
 * may each be x or residual, as the same view, but not both the same; any other overlap with an output is
 * refused. What the setters are given is checked when the call is run, queried or prepared. The formula is that of
 * {@linkplain dev.fastnorm the package}.
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
     * Several normalisations in one call, with the results of one run of each, in order: such as the
     * query heads and the key heads of one fused QKV tensor. All are checked, against each other too,
     * before anything is launched. None may read what another one writes. On a GPU two neighbours that share
     * a kernel of short rows are one launch.
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
     * Programmatic dependent launch: start when the stream's previous kernel allows it, and read and write
     * nothing before that one has ended. On the CPU and on GPUs before compute capability 9.0 this and the
     * two methods below have no effect; results never depend on them.
     *
     * @param wait whether to; the default is false
     * @return this
     */
    public Norm pdlWait(boolean wait) {
        description.set(Words.NORM_FLAGS, fastnorm_norm_flags.FASTNORM_NORM_PDL_WAIT, wait);
        return this;
    }

    /**
     * Programmatic dependent launch: let the stream's next kernel start once this one's rows are on their
     * way. It must wait itself before it uses any result.
     *
     * @param trigger whether to; the default is false
     * @return this
     */
    public Norm pdlTrigger(boolean trigger) {
        description.set(Words.NORM_FLAGS, fastnorm_norm_flags.FASTNORM_NORM_PDL_TRIGGER, trigger);
        return this;
    }

    /**
     * With {@link #pdlWait}, which it needs: weight and bias are not written by any kernel that may still
     * run, and may be read before the wait.
     *
     * @param constant whether they are; the default is false
     * @return this
     */
    public Norm pdlConstantWeights(boolean constant) {
        description.set(Words.NORM_FLAGS, fastnorm_norm_flags.FASTNORM_NORM_PDL_CONSTANT_WEIGHTS, constant);
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
     * @param y x's shape, T; may be x
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
     * @param mean x's shape without the last extent, or with 1 there; F32
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
     * @param rstd x's shape without the last extent, or with 1 there; F32
     * @return this
     * @throws IllegalArgumentException if its buffer is read-only
     */
    public Norm rstd(Tensor rstd) {
        description.output(Words.NORM_BIT_RSTD, "rstd", rstd);
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
     * Sets the clamp as a value on the device, read when the norm runs. It goes with a clamp of 0 alone.
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
