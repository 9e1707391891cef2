package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;
import java.util.Arrays;
import java.util.Random;
import java.util.function.Consumer;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Stages around a norm: by hand, against several calls, and what is refused. */
class NormStagesTest {
    private static final int ROWS = 3;
    private static final int N = 96;

    private static Context context;

    private final Random random = new Random(2026);

    @BeforeAll
    static void open() {
        context = Context.cpu();
    }

    @AfterAll
    static void close() {
        context.close();
    }

    /** Values of [-2, 2) that bf16 holds exactly. */
    private double[] values(int count) {
        return random.ints(count, -64, 64).asDoubleStream().map(v -> v / 32).toArray();
    }

    private Tensor tensor(DType dtype, long... shape) {
        int count = (int) Arrays.stream(shape).reduce(1, (a, b) -> a * b);
        return Data.tensor(dtype, values(count), shape);
    }

    private static short[] bits(Tensor tensor) {
        ShortBuffer buffer = tensor.shorts();
        short[] bits = new short[buffer.remaining()];
        buffer.get(bits);
        return bits;
    }

    // --- gate and activation ---

    /** silu and sigmoid are exact at 0 and at gates of large magnitude; else they are near. */
    @Test
    void gateByHand() {
        // The mean square is 6.25.
        Tensor x = Tensor.copyOf(new float[] {3, 4, 3, 4, 0, 0, 0, 0}, 1, 8);
        float inf = Float.NEGATIVE_INFINITY;
        Tensor gate = Tensor.copyOf(new float[] {0, 200, -200, inf, 0, 0, 0, 0}, 1, 8);
        Tensor y = Tensor.allocate(DType.F32, 1, 8);
        float rstd = 1 / 2.5f;
        Norm norm = Norm.rms(0).x(x).gate(gate).y(y);
        norm.gateAct(Activation.SIGMOID).run(context);
        assertEquals(3 * rstd * 0.5f, y.floats().get(0));
        assertEquals(4 * rstd, y.floats().get(1));
        assertEquals(0, y.floats().get(3));
        norm.gateAct(Activation.SILU).run(context);
        assertEquals(0, y.floats().get(0));
        assertEquals(4 * rstd * 200, y.floats().get(1));
        assertEquals(-0f, y.floats().get(3)); // silu(-Inf) is -0, not NaN
        gate.floats().put(0, 1).put(1, -1);
        norm.run(context);
        assertEquals(1.2 / (1 + Math.exp(-1)), y.floats().get(0), 1e-6);
        assertEquals(-1.6 / (1 + Math.exp(1)), y.floats().get(1), 1e-6);
        norm.gate(null).gateAct(Activation.IDENTITY).activation(Activation.SIGMOID).run(context);
        assertEquals(1 / (1 + Math.exp(-1.2)), y.floats().get(0), 1e-6);
        assertEquals(0.5f, y.floats().get(7));
    }

    /** A gate before the norm is that of a row which was gated ahead. */
    @Test
    void gateBeforeTheNorm() {
        double[] x = values(ROWS * N);
        double[] gate = values(ROWS * N);
        double[] product = new double[ROWS * N];
        Arrays.setAll(product, i -> x[i] * gate[i]);
        Tensor wanted = Tensor.allocate(DType.F32, ROWS, N);
        Tensor y = Tensor.allocate(DType.F32, ROWS, N);
        Norm.layer(1e-5).x(Data.tensor(DType.F32, product, ROWS, N)).y(wanted).run(context);
        Norm.layer(1e-5).x(Data.tensor(DType.F32, x, ROWS, N))
                .gate(Data.tensor(DType.F32, gate, ROWS, N)).gatePosition(GatePosition.BEFORE_NORM)
                .y(y).run(context);
        assertArrayEquals(Data.floats(wanted), Data.floats(y));
    }

    /** Of the rounded result, the gate makes what a product with y gives. */
    @Test
    void gateSource() {
        Tensor x = tensor(DType.BF16, ROWS, N);
        Tensor gate = tensor(DType.BF16, ROWS, N);
        Tensor plain = Tensor.allocate(DType.BF16, ROWS, N);
        Tensor y = Tensor.allocate(DType.BF16, ROWS, N);
        Norm.rms(1e-5).x(x).y(plain).run(context);
        Norm norm = Norm.rms(1e-5).x(x).gate(gate).y(y).gateSource(GateSource.ROUNDED);
        norm.run(context);
        for (int i = 0; i < ROWS * N; i++) {
            double product = Data.get(plain, i) * Data.get(gate, i);
            assertEquals(Reference.round(DType.BF16, product), Data.get(y, i), "element " + i);
        }
        short[] rounded = bits(y);
        norm.gateSource(GateSource.F32).run(context);
        assertFalse(Arrays.equals(rounded, bits(y)));
    }

    /** y may be the gate, as x. */
    @Test
    void overTheGate() {
        Tensor x = tensor(DType.F32, ROWS, N);
        Tensor gate = tensor(DType.F32, ROWS, N);
        Tensor y = Tensor.allocate(DType.F32, ROWS, N);
        Norm norm = Norm.rms(1e-5).x(x).gate(gate).gateAct(Activation.SILU);
        norm.y(y).run(context);
        norm.y(gate).run(context);
        assertArrayEquals(Data.floats(y), Data.floats(gate));
    }

    // --- groups, statistics of several devices ---

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void groupsAreRows(boolean layer) {
        int d = 32;
        int groups = N / d;
        Tensor x = tensor(DType.F32, ROWS, N);
        Tensor weight = tensor(DType.F32, d);
        Tensor wanted = Tensor.allocate(DType.F32, ROWS, groups, d);
        Tensor wantedRstd = Tensor.allocate(DType.F32, ROWS, groups);
        Tensor y = Tensor.allocate(DType.F32, ROWS, N);
        Tensor rstd = Tensor.allocate(DType.F32, ROWS, groups);
        Tensor view = x.view(0, new long[] {ROWS, groups, d}, null);
        start(layer, 1e-5).x(view).weight(weight).y(wanted).rstd(wantedRstd).run(context);
        Norm norm = start(layer, 1e-5).x(x).weight(weight).groupSize(d).y(y).rstd(rstd);
        norm.run(context);
        assertArrayEquals(Data.floats(wanted), Data.floats(y));
        assertArrayEquals(Data.floats(wantedRstd), Data.floats(rstd));
        norm.groupSize(0).weight(null).rstd(null).run(context);
        assertFalse(Arrays.equals(Data.floats(wanted), Data.floats(y)));
    }

    private static Norm start(boolean layer, double eps) {
        return layer ? Norm.layer(eps) : Norm.rms(eps);
    }

    /** Two halves give their sums of squares, and take the statistic of both. */
    @Test
    void splitRms() {
        Tensor x = tensor(DType.F32, ROWS, N);
        Tensor y = Tensor.allocate(DType.F32, ROWS, N);
        Tensor whole = Tensor.allocate(DType.F32, ROWS, N);
        Tensor[] sums = {Tensor.allocate(DType.F32, ROWS), Tensor.allocate(DType.F32, ROWS)};
        for (int half = 0; half < 2; half++) {
            Norm.rms(0).x(half(x, half)).sumsq(sums[half]).run(context); // without y
        }
        Tensor rstd = Tensor.allocate(DType.F32, ROWS);
        for (int row = 0; row < ROWS; row++) {
            double squares = 0;
            for (double v : Data.values(x, row * N, N)) {
                squares += v * v; // exact: 1024 times a square is an integer
            }
            float sum = sums[0].floats().get(row) + sums[1].floats().get(row);
            assertEquals(squares, sum);
            rstd.floats().put(row, (float) (1 / Math.sqrt(sum / N + 1e-5)));
        }
        for (int half = 0; half < 2; half++) {
            Norm.rms(0).x(half(x, half)).rstdIn(rstd).y(half(y, half)).run(context);
        }
        Norm.rms(1e-5).x(x).y(whole).run(context);
        for (int i = 0; i < ROWS * N; i++) {
            float wanted = x.floats().get(i) * rstd.floats().get(i / N);
            assertEquals(wanted, y.floats().get(i));
            assertEquals(whole.floats().get(i), wanted, 1e-6);
        }
    }

    /** A layer norm's parts have mean and centred sum. */
    @Test
    void splitLayer() {
        Tensor x = Tensor.copyOf(new float[] {1, 3, 1, 3, 10, 10, 14, 14}, 2, 4);
        Tensor sumsq = Tensor.allocate(DType.F32, 2, 2);
        Norm.layer(0).x(x).sumsq(sumsq).run(context);
        assertArrayEquals(new float[] {2, 4, 12, 16}, Data.floats(sumsq));
        Tensor y = Tensor.allocate(DType.F32, 2, 4);
        Norm.layer(0).x(x).meanIn(Tensor.copyOf(new float[] {1, 12}, 2))
                .rstdIn(Tensor.copyOf(new float[] {2, 0.25f}, 2)).y(y).run(context);
        assertArrayEquals(new float[] {0, 4, 0, 4, -0.5f, -0.5f, 0.5f, 0.5f}, Data.floats(y));
    }

    private static Tensor half(Tensor rows, int half) {
        return rows.view(half * (N / 2), new long[] {ROWS, N / 2}, new long[] {N, 1});
    }

    // --- the branch's norm ---

    /** Norm, addition, norm is two calls, to the bit. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void sandwich(boolean layer) {
        Tensor x = tensor(DType.BF16, ROWS, N);
        Tensor residual = tensor(DType.BF16, ROWS, N);
        Tensor first = tensor(DType.BF16, N);
        Tensor second = tensor(DType.BF16, N);
        Tensor bias = tensor(DType.BF16, N);
        Tensor branch = Tensor.allocate(DType.BF16, ROWS, N);
        Tensor[] y = {Tensor.allocate(DType.BF16, ROWS, N), Tensor.allocate(DType.BF16, ROWS, N)};
        Tensor[] sum = {Tensor.allocate(DType.BF16, ROWS, N), Tensor.allocate(DType.BF16, ROWS, N)};
        Tensor[] rstd = {Tensor.allocate(DType.F32, ROWS), Tensor.allocate(DType.F32, ROWS)};
        start(layer, 1e-3).x(x).weight(first).weightOffset(1).bias(bias)
                .rounding(Rounding.NORMALIZED).y(branch).rstd(rstd[0]).run(context);
        Norm.rms(1e-6).x(branch).residual(residual).weight(second)
                .residualRounding(ResidualRounding.ROUND_BEFORE_STATISTICS)
                .residualOut(sum[0]).y(y[0]).run(context);
        Norm norm = Norm.rms(1e-6).x(x).residual(residual).weight(second)
                .residualRounding(ResidualRounding.ROUND_BEFORE_STATISTICS)
                .branchRounded(true).branchRounding(Rounding.NORMALIZED).branchWeight(first)
                .branchWeightOffset(1).branchBias(bias).branchRstd(rstd[1])
                .residualOut(sum[1]).y(y[1]);
        (layer ? norm.branchLayer(1e-3) : norm.branchRms(1e-3)).run(context);
        assertArrayEquals(bits(sum[0]), bits(sum[1]));
        assertArrayEquals(bits(y[0]), bits(y[1]));
        assertArrayEquals(Data.floats(rstd[0]), Data.floats(rstd[1]));
        norm.alpha(1).run(context);
        assertArrayEquals(bits(sum[0]), bits(sum[1]));
        norm.alpha(0.25).run(context);
        assertFalse(Arrays.equals(bits(sum[0]), bits(sum[1])));
    }

    /** The branch's norm may be taken away again. */
    @Test
    void branchNone() {
        Tensor x = Data.rows(new float[] {4, 4}, 1);
        Tensor h = Data.rows(new float[] {1, 2}, 1);
        Tensor sum = Tensor.allocate(DType.F32, 1, 2);
        Norm norm = Norm.rms(0).x(x).residual(h).residualOut(sum)
                .y(Tensor.allocate(DType.F32, 1, 2));
        norm.branchRms(0).run(context);
        assertArrayEquals(new float[] {2, 3}, Data.floats(sum));
        norm.branchLayer(1).run(context);
        assertArrayEquals(new float[] {1, 2}, Data.floats(sum));
        norm.branchNone().run(context);
        assertArrayEquals(new float[] {5, 6}, Data.floats(sum));
    }

    /** (3 * 2 + 1) / 2. */
    @Test
    void scaledSum() {
        Tensor x = Data.rows(new float[] {3, 5}, 1);
        Tensor h = Data.rows(new float[] {1, -10}, 1);
        Tensor sum = Tensor.allocate(DType.F32, 1, 2);
        Tensor y = Tensor.allocate(DType.F32, 1, 2);
        Norm norm = Norm.rms(1).x(x).residual(h).residualOut(sum).y(y).alpha(2);
        norm.run(context);
        assertArrayEquals(new float[] {7, 0}, Data.floats(sum));
        norm.sumScale(Tensor.copyOf(new float[] {0.5f}, 1)).run(context);
        assertArrayEquals(new float[] {3.5f, 0}, Data.floats(sum));
        norm.alpha(0).sumScale(null).run(context);
        assertArrayEquals(new float[] {4, -5}, Data.floats(sum));
    }

    /** 129 * 3 + 2 is 389. In steps of bf16, whose unit is 2 here, 387 is 388, and the sum 390. */
    @Test
    void sumRounding() {
        Tensor x = Data.tensor(DType.BF16, new double[] {129, 0}, 1, 2);
        Tensor h = Data.tensor(DType.BF16, new double[] {2, 0}, 1, 2);
        Tensor sum = Tensor.allocate(DType.F32, 1, 2);
        Norm norm = Norm.rms(1).x(x).residual(h).residualOut(sum).alpha(3)
                .y(Tensor.allocate(DType.BF16, 1, 2));
        norm.run(context);
        assertEquals(389, sum.floats().get(0));
        norm.sumRounding(SumRounding.EVERY_STEP).run(context);
        assertEquals(390, sum.floats().get(0));
    }

    // --- a factor of the branch, and the modulation ---

    /** A norm of the row 3, 4, 0, 0, whose results are 1.2, 1.6, 0, 0. */
    private static Norm gatedRow(Tensor sum, Tensor y) {
        return Norm.rms(0).x(Data.rows(new float[] {6, 8, 1, 1}, 1))
                .residual(Data.rows(new float[] {0, 0, -0.5f, -0.5f}, 1)).residualOut(sum).y(y)
                .residualGate(Tensor.copyOf(new float[] {0.5f}, 1));
    }

    private static Tensor row(float... values) {
        return Tensor.copyOf(values, values.length);
    }

    @Test
    void modulation() {
        Tensor sum = Tensor.allocate(DType.F32, 1, 4);
        Tensor y = Tensor.allocate(DType.F32, 1, 4);
        Norm norm = gatedRow(sum, y);
        norm.run(context);
        assertArrayEquals(new float[] {3, 4, 0, 0}, Data.floats(sum));
        assertArrayEquals(new float[] {1.2f, 1.6f, 0, 0}, Data.floats(y));
        norm.modulationScale(row(1, 0, 0, 0)).modulationShift(row(0, 0, 7, 0)).run(context);
        assertArrayEquals(new float[] {2.4f, 1.6f, 7, 0}, Data.floats(y));
        norm.modulationPlainScale(true).run(context);
        assertArrayEquals(new float[] {1.2f, 0, 7, 0}, Data.floats(y));
        norm.modulationPlainScale(false).scaleTable(row(-2, 0, 0, 0)).shiftTable(row(0, 0, 1, -1))
                .run(context);
        assertArrayEquals(new float[] {0, 1.6f, 8, -1}, Data.floats(y));
    }

    /** A gate of large magnitude has a tanh of 1 or -1. */
    @Test
    void gatedResidual() {
        Tensor sum = Tensor.allocate(DType.F32, 1, 4);
        Norm norm = gatedRow(sum, Tensor.allocate(DType.F32, 1, 4)).residualGate(row(50))
                .residualGateAct(Activation.TANH);
        norm.run(context);
        assertArrayEquals(new float[] {6, 8, 0.5f, 0.5f}, Data.floats(sum));
        norm.residualGateTable(row(0, -100, -50, 0)).run(context);
        assertArrayEquals(new float[] {6, -8, -0.5f, 0.5f}, Data.floats(sum));
    }

    private static ByteBuffer memory(int bytes) {
        return ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
    }

    /** Rows of modulators by number are those that broadcast. */
    @Test
    void modulationIndex() {
        Tensor x = tensor(DType.F32, 2, 3, N);
        Tensor modulators = tensor(DType.F32, 2, N);
        Tensor[] y = {Tensor.allocate(DType.F32, 2, 3, N), Tensor.allocate(DType.F32, 2, 3, N)};
        long[] shape = {2, 1, N};
        Norm.layer(1e-6).x(x).modulationShift(modulators.view(0, shape, new long[] {N, N, 1}))
                .y(y[0]).run(context);
        IntBuffer narrow = memory(4 * 6).asIntBuffer().put(0, new int[] {0, 0, 0, 1, 1, 1});
        Tensor index = Tensor.of(narrow, 2, 3);
        Norm norm = Norm.layer(1e-6).x(x).modulationShift(modulators).modulationIndex(index)
                .y(y[1]);
        norm.run(context);
        assertArrayEquals(Data.floats(y[0]), Data.floats(y[1]));
        LongBuffer wide = memory(8 * 6).asLongBuffer().put(0, new long[] {0, 0, 0, 1, -1, 1});
        norm.modulationIndex(Tensor.of(wide, 2, 3));
        FastnormException thrown = assertThrows(FastnormException.class, () -> norm.run(context));
        assertEquals("modulation_index of row 4 is -1; required: 0 to 1, the rows of the "
                + "modulators", thrown.getMessage());
        assertArrayEquals(Data.floats(y[0]), Data.floats(y[1]));
    }

    /** 1 + 2^-8 lies between two values of bf16. */
    @Test
    void modulationRounding() {
        Tensor y = Tensor.allocate(DType.F32, 1, 1);
        Norm norm = Norm.rms(0).x(Data.tensor(DType.BF16, new double[] {1}, 1, 1)).y(y)
                .modulationScale(row(0x1p-8f));
        norm.run(context);
        assertEquals(1 + 0x1p-8f, y.floats().get(0));
        norm.modulationRounding(ModulationRounding.EVERY_STEP).run(context);
        assertEquals(1, y.floats().get(0));
    }

    @Test
    void refusedModulation() {
        refuses("residual_gate_act is 3 and residual_gate is NULL; required: 0 without a residual "
                + "gate", norm -> norm.residualGateAct(Activation.TANH));
        refuses("scale_table is given and modulation_scale is NULL; required: both, or no table",
                norm -> norm.scaleTable(row(1, 2, 3, 4)));
        refuses("flags is 0x8 and modulation_scale is NULL; required: no "
                + "FASTNORM_NORM_MODULATION_PLAIN_SCALE (8) without a modulation_scale",
                norm -> norm.modulationPlainScale(true));
        refuses(Status.ERROR_SHAPE, "modulation_shift.shape is [3]; required: extents that are 1 "
                + "or x's, counted from the right, for x of shape [1, 4]",
                norm -> norm.modulationShift(row(1, 2, 3)));
    }

    // --- query, refusals ---

    @Test
    void query() {
        Tensor x = Tensor.allocate(DType.F32, ROWS, N);
        Norm norm = Norm.rms(0).x(x).gate(Tensor.allocate(DType.F32, ROWS, N))
                .y(Tensor.allocate(DType.F32, ROWS, N));
        norm.prepare(context);
        Info info = norm.query(context);
        assertEquals("f32 rms stages", info.kernel());
        assertEquals(0, info.workspaceBytes());
        assertEquals(2 * ROWS * N * 4, info.bytesRead());
        assertEquals(ROWS * N * 4, info.bytesWritten());
    }

    private static void refuses(Status status, String text, Consumer<Norm> change) {
        Tensor y = Tensor.copyOf(new float[] {-1, -1, -1, -1}, 1, 4);
        Norm norm = Norm.rms(0).x(Tensor.copyOf(new float[] {0, 1, 2, 3}, 1, 4)).y(y);
        change.accept(norm);
        FastnormException thrown = assertThrows(FastnormException.class, () -> norm.run(context));
        assertEquals(text, thrown.getMessage());
        assertEquals(status, thrown.status());
        assertArrayEquals(new float[] {-1, -1, -1, -1}, Data.floats(y));
    }

    private static void refuses(String text, Consumer<Norm> change) {
        refuses(Status.ERROR_ARGUMENT, text, change);
    }

    @Test
    void refusedScalars() {
        String gate = " and gate is NULL; required: 0 without a gate";
        refuses("gate_act is 1" + gate, norm -> norm.gateAct(Activation.SILU));
        refuses("gate_position is 1" + gate, norm -> norm.gatePosition(GatePosition.BEFORE_NORM));
        refuses("gate_source is 1" + gate, norm -> norm.gateSource(GateSource.ROUNDED));
        refuses("group_size is -1; required: 0, or a divisor of n", norm -> norm.groupSize(-1));
        refuses(Status.ERROR_SHAPE, "group_size is 3 and n is 4; required: a divisor of n",
                norm -> norm.groupSize(3));
        String branch = " and branch_norm is 0; required: 0 without a branch norm";
        refuses("branch_rounding is 1" + branch,
                norm -> norm.branchRounding(Rounding.NORMALIZED));
        refuses("branch_rounded is 1" + branch, norm -> norm.branchRounded(true));
        refuses("branch_eps is -1; required: finite and >= 0", norm -> norm.branchRms(-1));
        refuses("branch_rounding is 3; required: a fastnorm_rounding, 0 to 2",
                norm -> norm.branchLayer(0).branchRounding(Rounding.ONCE_RW));
        refuses("branch_weight_offset is 1 and branch_weight is NULL; required: 0 without a weight",
                norm -> norm.branchRms(0).branchWeightOffset(1));
        refuses("alpha is nan; required: finite", norm -> norm.alpha(Double.NaN));
    }

    @Test
    void refusedTensors() {
        Tensor one = Tensor.allocate(DType.F32, 1);
        String branch = " is given and branch_norm is 0; required: NULL without a branch norm";
        refuses("branch_weight" + branch, norm -> norm.branchWeight(one));
        refuses("branch_bias" + branch, norm -> norm.branchBias(one));
        refuses("branch_rstd" + branch, norm -> norm.branchRstd(one));
        refuses("mean_in is given and kind is FASTNORM_NORM_RMS; required: FASTNORM_NORM_LAYER, "
                + "or no mean_in", norm -> norm.meanIn(one).rstdIn(one));
        refuses("rstd is given and rstd_in is given; required: one of them, as nothing is computed "
                + "with rstd_in", norm -> norm.rstd(one).rstdIn(one));
        refuses(Status.ERROR_DTYPE, "gate.dtype is bf16; required: f32, as x is f32",
                norm -> norm.gate(Tensor.allocate(DType.BF16, 1, 4)));
        refuses(Status.ERROR_SHAPE, "gate.shape is [4]; required: x's, [1, 4]",
                norm -> norm.gate(Tensor.allocate(DType.F32, 4)));
        refuses(Status.ERROR_DTYPE, "sumsq.dtype is bf16; required: f32",
                norm -> norm.sumsq(Tensor.allocate(DType.BF16, 1)));
    }

    @Test
    void refusedOverlap() {
        Tensor x = Tensor.allocate(DType.F32, 1, 4);
        Tensor y = Tensor.allocate(DType.F32, 1, 4);
        FastnormException thrown = assertThrows(FastnormException.class,
                () -> Norm.rms(0).x(x).gate(x).y(y).run(context));
        assertEquals(Status.ERROR_LAYOUT, thrown.status());
        assertTrue(thrown.getMessage().matches("gate \\[0x.*\\) overlaps x \\[0x.*"),
                thrown.getMessage());
        Tensor part = y.view(1, new long[] {1}, null);
        thrown = assertThrows(FastnormException.class,
                () -> Norm.rms(0).x(x).y(y).branchRms(0).branchRstd(part).run(context));
        assertEquals(Status.ERROR_LAYOUT, thrown.status());
        thrown = assertThrows(FastnormException.class,
                () -> Norm.rms(0).x(x).y(y).sumsq(part).run(context));
        assertEquals(Status.ERROR_LAYOUT, thrown.status());
    }

    /** A GPU has kernels with stages, modulations among them. */
    @Test
    void onAGpu() {
        try (Context gpu = Context.builder(Device.cuda(0)).dryRun(90).open()) {
            Norm norm = Norm.rms(0).x(Tensor.at(gpu, 1L << 44, DType.BF16, 4, 64))
                    .y(Tensor.at(gpu, 1L << 45, DType.BF16, 4, 64)).activation(Activation.SILU);
            assertEquals("bf16 stages 32xstream", norm.query(gpu).kernel());
            norm.run(gpu);
            norm.modulationScale(Tensor.at(gpu, 1L << 46, DType.BF16, 4, 64));
            assertEquals("bf16 stages 32xstream", norm.query(gpu).kernel());
            norm.run(gpu);
        }
    }
}
