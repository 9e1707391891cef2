package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Results: by hand, and against the reference. */
class NormTest {
    private static Context context;

    @BeforeAll
    static void open() {
        context = Context.cpu();
    }

    @AfterAll
    static void close() {
        context.close();
    }

    // --- by hand ---

    @Test
    void rootMeanSquare() {
        // mean squares 6.25 and 42.25
        Tensor x = Data.rows(new float[] {3, 4, 0, 0, 0, 0, 5, 12}, 2);
        Tensor y = Tensor.allocate(DType.F32, 2, 4);
        Tensor rstd = Tensor.allocate(DType.F32, 2);
        Norm norm = Norm.rms(0).x(x).weight(Tensor.copyOf(new float[] {1, 2, 3, 4}, 4)).y(y)
                .rstd(rstd);
        norm.run(context);
        float first = 1 / 2.5f;
        float second = 1 / 6.5f;
        assertArrayEquals(new float[] {first, second}, Data.floats(rstd));
        assertArrayEquals(new float[] {3 * first, 4 * first * 2, 0, 0, 0, 0, 5 * second * 3,
                12 * second * 4},
                Data.floats(y));
        norm.weightOffset(1).run(context);
        assertEquals(4 * first * 3, y.floats().get(1));
        assertEquals(12 * second * 5, y.floats().get(7));
    }

    @Test
    void layerNorm() {
        Tensor y = Tensor.allocate(DType.F32, 4);
        Tensor mean = Tensor.allocate(DType.F32, 1);
        Tensor rstd = Tensor.allocate(DType.F32, 1);
        Norm.layer(3).x(Tensor.copyOf(new float[] {1, 3, 1, 3}, 4))
                .weight(Tensor.copyOf(new float[] {2, 2, 4, 8}, 4))
                .bias(Tensor.copyOf(new float[] {1, 1, 1, 1}, 4)).y(y).mean(mean).rstd(rstd)
                .run(context);
        assertEquals(2, mean.floats().get(0));
        assertEquals(0.5f, rstd.floats().get(0)); // variance 1, and eps 3
        assertArrayEquals(new float[] {0, 2, -1, 5}, Data.floats(y));
    }

    @Test
    void residual() {
        Tensor x = Data.rows(new float[] {1, 2}, 1);
        Tensor h = Data.rows(new float[] {2, 2}, 1);
        Tensor sum = Tensor.allocate(DType.F32, 1, 2);
        Tensor y = Tensor.allocate(DType.F32, 1, 2);
        Norm.rms(0).x(x).residual(h).residualOut(sum).y(y).run(context);
        assertArrayEquals(new float[] {3, 4}, Data.floats(sum));
        assertArrayEquals(new float[] {2, 2}, Data.floats(h));
        assertEquals(3 / Math.sqrt(12.5), y.floats().get(0), 1e-6);
        Norm.rms(0).x(x).residualInPlace(h).y(y).run(context);
        assertArrayEquals(new float[] {3, 4}, Data.floats(h));
    }

    @Test
    void inPlace() {
        Tensor x = Data.rows(new float[] {2, 2, 2, 2, -8, 8, -8, 8}, 2);
        Norm.rms(0).xInPlace(x).run(context);
        assertArrayEquals(new float[] {1, 1, 1, 1, -1, 1, -1, 1}, Data.floats(x));
    }

    @Test
    void rowsOfOneHeadEach() {
        Tensor x = Tensor.copyOf(new float[] {2, 2, 4, 4}, 1, 2, 2);
        Tensor y = Tensor.allocate(DType.F32, 1, 2, 2);
        Norm.rms(0).x(x).weight(Tensor.copyOf(new float[] {1, 2, 3, 4}, 2, 2)).y(y).run(context);
        assertArrayEquals(new float[] {1, 2, 3, 4}, Data.floats(y));
    }

    @Test
    void noRows() {
        Tensor y = Tensor.allocate(DType.F32, 0, 4);
        Norm norm = Norm.rms(0).x(Tensor.allocate(DType.F32, 0, 4)).y(y);
        norm.run(context);
        assertEquals(0, norm.query(context).launches());
        assertEquals("", norm.query(context).kernel());
    }

    // --- exact to the bit: small integers, whose sums are exact in any order ---

    static List<Object[]> exactCases() {
        List<Object[]> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.F32, DType.F16, DType.BF16)) {
            for (Rounding rounding : Rounding.values()) {
                for (boolean layer : new boolean[] {false, true}) {
                    for (int n : new int[] {1, 2, 4, 8, 16}) {
                        cases.add(new Object[] {dtype, rounding, layer, n});
                    }
                }
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("exactCases")
    void exact(DType dtype, Rounding rounding, boolean layer, int n) {
        int rows = 5;
        Random random = new Random(n);
        double[] x = Data.integers(random, rows * n, 8);
        double[] added = Data.integers(random, rows * n, 8);
        double[] weight = Data.integers(random, n, 6);
        double[] bias = Data.integers(random, n, 6);
        Tensor y = Tensor.allocate(dtype, rows, n);
        Tensor h = Data.tensor(dtype, added, rows, n);
        Tensor mean = Tensor.allocate(DType.F32, rows);
        Tensor rstd = Tensor.allocate(DType.F32, rows);
        Norm norm = layer ? Norm.layer(0.5).mean(mean) : Norm.rms(0.5);
        norm.rounding(rounding).weightOffset(1).x(Data.tensor(dtype, x, rows, n)).residualInPlace(h)
                .weight(Data.tensor(dtype, weight, n)).bias(Data.tensor(DType.F32, bias, n)).y(y)
                .rstd(rstd)
                .run(context);
        Reference reference = new Reference(dtype, layer, 0.5, 1, rounding);
        for (int row = 0; row < rows; row++) {
            double[] sum = new double[n];
            for (int i = 0; i < n; i++) {
                sum[i] = x[row * n + i] + added[row * n + i];
            }
            assertArrayEquals(sum, Data.values(h, row * n, n), "residual_out");
            assertArrayEquals(reference.run(sum, weight, bias), Data.values(y, row * n, n),
                    "row " + row);
            assertEquals(reference.rstd, rstd.floats().get(row));
            assertEquals(layer ? reference.mean : 0, mean.floats().get(row));
        }
    }

    // --- any values: within the error of a sum of n floats, and of the final rounding ---

    @ParameterizedTest
    @CsvSource({"F32, 1", "F32, 3", "F32, 64", "F32, 1000", "F32, 4097", "F16, 257", "F16, 1024",
            "BF16, 33", "BF16, 4096"})
    void random(DType dtype, int n) {
        Random random = new Random(n);
        int rows = 3;
        double[] x = random.doubles(rows * n, -2, 2)
                .map(v -> Math.abs(v) < 0x1p-9 ? 0 : Reference.round(dtype, v)).toArray();
        double[] weight = random.doubles(n, 0.5, 1.5).map(v -> Reference.round(dtype, v)).toArray();
        for (boolean layer : new boolean[] {false, true}) {
            Tensor y = Tensor.allocate(dtype, rows, n);
            (layer ? Norm.layer(1e-5) : Norm.rms(1e-5)).x(Data.tensor(dtype, x, rows, n))
                    .weight(Data.tensor(dtype, weight, n)).y(y).run(context);
            Reference reference = new Reference(dtype, layer, 1e-5, 0, Rounding.ONCE);
            double unit = dtype == DType.F32 ? 0x1p-23 : dtype == DType.F16 ? 0x1p-10 : 0x1p-7;
            double bound = unit + 0x1p-24 * (2 * Math.log(n) / Math.log(2) + 16);
            for (int row = 0; row < rows; row++) {
                double[] wanted = reference.run(Arrays.copyOfRange(x, row * n, row * n + n), weight,
                        null);
                for (int i = 0; i < n; i++) {
                    double found = Data.get(y, row * n + i);
                    // Near 0 a layer norm's difference has the error of the mean, whose terms are
                    // up to 2.
                    double slack = bound * Math.max(Math.abs(wanted[i]),
                            layer ? 2 * reference.rstd : 0);
                    assertEquals(wanted[i], found, slack, "row " + row + ", column " + i);
                }
            }
        }
    }

    @Test
    void residualRoundingReachesTheLibrary() {
        // 256 + 1 is 257 in f32 and 256 in bf16.
        double[] x = {256, 256};
        double[] added = {1, -1};
        Tensor y = Tensor.allocate(DType.BF16, 1, 2);
        Tensor rstd = Tensor.allocate(DType.F32, 1);
        Norm norm = Norm.rms(0).x(Data.tensor(DType.BF16, x, 1, 2))
                .residual(Data.tensor(DType.BF16, added, 1, 2)).y(y)
                .rstd(rstd);
        for (ResidualRounding rounding : ResidualRounding.values()) {
            norm.residualRounding(rounding).run(context);
            double square = rounding == ResidualRounding.ROUND_BEFORE_STATISTICS
                    ? (256.0 * 256 + 255.0 * 255) / 2
                    : (257.0 * 257 + 255.0 * 255) / 2;
            assertEquals((float) (1.0 / (float) Math.sqrt((float) square)), rstd.floats().get(0));
        }
    }

    // --- where tensors lie ---

    @Test
    void stridesAndPosition() {
        FloatBuffer buffer = Tensor.allocate(DType.F32, 30).floats();
        for (int i = 0; i < 30; i++) {
            buffer.put(i, 7);
        }
        // Columns 3 to 6 of three rows of 10.
        Tensor columns = Tensor.of(buffer.position(3), 3, 4).withStrides(10, 1);
        Norm.rms(0).xInPlace(columns).run(context);
        for (int i = 0; i < 30; i++) {
            assertEquals(i % 10 >= 3 && i % 10 < 7 ? 1f : 7f, buffer.get(i), "element " + i);
        }
    }

    @Test
    void rowsBackwardsAndRepeated() {
        Tensor x = Data.rows(new float[] {1, 1, 2, -2, 3, 3}, 3);
        Tensor y = Tensor.allocate(DType.F32, 3, 2);
        Tensor sum = Tensor.allocate(DType.F32, 3, 2);
        Tensor backwards = x.view(4, new long[] {3, 2}, new long[] {-2, 1});
        Tensor repeated = Tensor.copyOf(new float[] {10, 20}, 2)
                .view(0, new long[] {3, 2}, new long[] {0, 1});
        Norm.rms(0).x(backwards).y(y).run(context);
        assertArrayEquals(new float[] {1, 1, 1, -1, 1, 1}, Data.floats(y));
        Norm.rms(0).x(backwards).residual(repeated).residualOut(sum).y(y).run(context);
        assertArrayEquals(new float[] {13, 23, 12, 18, 11, 21}, Data.floats(sum));
    }

    @Test
    void memoryByAddress() {
        Tensor memory = Tensor.copyOf(new float[] {5, 5, 5, 5}, 4);
        Tensor view = Tensor.at(context, memory.address(), DType.F32, 1, 4);
        Norm.rms(0).xInPlace(view).run(context);
        assertArrayEquals(new float[] {1, 1, 1, 1}, Data.floats(memory));
    }

    // --- the same bits however it is run ---

    @ParameterizedTest
    @ValueSource(ints = {2, 3, 4})
    void threadsChangeNothing(int threads) {
        int rows = 4000;
        int n = 96;
        Random random = new Random(threads);
        Tensor x = Data.rows(toFloats(random.doubles(rows * n, -3, 3).toArray()), rows);
        Tensor alone = Tensor.allocate(DType.F32, rows, n);
        Tensor shared = Tensor.allocate(DType.F32, rows, n);
        Norm.rms(1e-6).x(x).y(alone).run(context);
        try (Context pool = Context.builder(Device.cpu()).threads(threads).open()) {
            Norm.rms(1e-6).x(x).y(shared).run(pool);
        }
        assertArrayEquals(Data.floats(alone), Data.floats(shared));
        assertNotEquals(0, shared.floats().get(rows * n - 1));
    }

    @Test
    void aNormIsRunAgainAndChanged() {
        Tensor x = Data.rows(new float[] {2, 2}, 1);
        Tensor y = Tensor.allocate(DType.F32, 1, 2);
        Norm norm = Norm.rms(0).x(x).y(y);
        norm.run(context);
        assertEquals(1, y.floats().get(0));
        x.floats().put(0, 6).put(1, -6);
        norm.run(context);
        assertArrayEquals(new float[] {1, -1}, Data.floats(y));
        norm.weight(Tensor.copyOf(new float[] {3, 4}, 2)).run(context);
        assertArrayEquals(new float[] {3, -4}, Data.floats(y));
        norm.weight(null).run(context);
        assertArrayEquals(new float[] {1, -1}, Data.floats(y));
    }

    // --- query, prepare, dry runs ---

    @ParameterizedTest
    @EnumSource(names = {"F32", "F16", "BF16"})
    void query(DType dtype) {
        Tensor x = Tensor.allocate(dtype, 8, 256);
        Norm norm = Norm.rms(1e-6).x(x).y(x);
        Info info = norm.query(context);
        assertEquals(dtype.bytes(8 * 256), info.bytesRead());
        assertEquals(dtype.bytes(8 * 256), info.bytesWritten());
        assertEquals(0, info.workspaceBytes());
        assertEquals(1, info.launches());
        assertEquals(1, info.threadsPerRow());
        assertEquals(1, info.blocksPerRow());
        assertEquals(0, info.vectorsPerThread());
        assertTrue(info.rowsPerBlock() >= 1 && info.vectorBytes() >= 2 && info.blocks() >= 1);
        assertTrue(Fastnorm.kernels().stream().anyMatch(k -> k.name().equals(info.kernel())),
                info.kernel());
        assertTrue(info.toString().contains(info.kernel()));
        norm.prepare(context);
    }

    @Test
    void dryRunOnTheCpu() {
        Tensor x = Data.rows(new float[] {5, 5}, 1);
        try (Context dry = Context.builder(Device.cpu()).dryRun().open()) {
            Norm.rms(0).xInPlace(x).run(dry);
        }
        assertArrayEquals(new float[] {5, 5}, Data.floats(x));
    }

    @ParameterizedTest
    @ValueSource(ints = {80, 90, 100, 120})
    void dryRunForAGpu(int capability) {
        try (Context gpu = Context.builder(Device.cuda(0)).dryRun(capability).open()) {
            Tensor x = Tensor.at(gpu, 0x100000000000L, DType.BF16, 128, 4096);
            Tensor weight = Tensor.at(gpu, 0x300000000000L, DType.BF16, 4096);
            Norm norm = Norm.rms(1e-6).xInPlace(x).weight(weight);
            norm.prepare(gpu);
            norm.run(gpu);
            norm.run(gpu, 0x1234);
            norm.run(gpu, 0, 0, 0);
            Info info = norm.query(gpu);
            assertEquals((128 * 4096 + 4096) * 2, info.bytesRead());
            assertEquals(128 * 4096 * 2, info.bytesWritten());
            assertEquals(16, info.vectorBytes());
            assertEquals(1, info.launches());
        }
    }

    private static float[] toFloats(double[] values) {
        float[] floats = new float[values.length];
        for (int i = 0; i < values.length; i++) {
            floats[i] = (float) values[i];
        }
        return floats;
    }
}
