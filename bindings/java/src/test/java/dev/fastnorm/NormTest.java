package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.FloatBuffer;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Results by hand of the outputs, where tensors lie, queries. */
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
    void noRows() {
        Tensor y = Tensor.allocate(DType.F32, 0, 4);
        Norm norm = Norm.rms(0).x(Tensor.allocate(DType.F32, 0, 4)).y(y);
        norm.run(context);
        assertEquals(0, norm.query(context).launches());
        assertEquals("", norm.query(context).kernel());
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

    // --- changes ---

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
}
