package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Stages around a norm: by hand, a query, and what is refused. */
class NormStagesTest {
    private static Context context;

    @BeforeAll
    static void open() {
        context = Context.cpu();
    }

    @AfterAll
    static void close() {
        context.close();
    }

    private static Tensor row(float... values) {
        return Tensor.copyOf(values, values.length);
    }

    /** Two rows of mean squares 6.25, with groups of their own below. */
    @Test
    void gateAndGroups() {
        Tensor x = Tensor.copyOf(new float[] {3, 4, 0, 0, 0, 0, -4, 3}, 1, 8);
        Tensor gate = Tensor.copyOf(new float[] {0, 200, -200, 1, 1, 1, 100, -300}, 1, 8);
        Tensor y = Tensor.allocate(DType.F32, 1, 8);
        Tensor rstd = Tensor.allocate(DType.F32, 1, 2);
        float r = 1 / 2.5f;
        Norm norm = Norm.rms(0).x(x).gate(gate).gateAct(Activation.SILU).groupSize(4).rstd(rstd)
                .y(y);
        norm.prepare(context);
        Info info = norm.query(context);
        assertEquals("f32 rms stages", info.kernel());
        assertEquals(2 * 32, info.bytesRead());
        norm.run(context);
        // silu is exact at 0 and at gates of large magnitude.
        assertArrayEquals(new float[] {0, 4 * r * 200, 0, 0, 0, 0, -4 * r * 100, 0},
                Data.floats(y), 0);
        assertArrayEquals(new float[] {r, r}, Data.floats(rstd));
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
        norm.sumScale(row(0.5f)).run(context);
        assertArrayEquals(new float[] {3.5f, 0}, Data.floats(sum));
        norm.alpha(0).sumScale(null).run(context);
        assertArrayEquals(new float[] {1, -10}, Data.floats(sum));
        norm.alpha(1).run(context);
        assertArrayEquals(new float[] {4, -5}, Data.floats(sum));
    }

    /** Rows of modulators by number, in either type; the row 1, -1 is its norm. */
    @Test
    void modulation() {
        Tensor x = Tensor.copyOf(new float[] {1, -1, 1, -1, 1, -1}, 3, 2);
        Tensor y = Tensor.allocate(DType.F32, 3, 2);
        IntBuffer narrow = memory(4 * 3).asIntBuffer().put(0, new int[] {1, 0, 1});
        Norm norm = Norm.rms(0).x(x).y(y)
                .modulationScale(Tensor.copyOf(new float[] {1, 1, 2, 2}, 2, 2))
                .modulationShift(Tensor.copyOf(new float[] {10, 20, 30, 40}, 2, 2))
                .modulationIndex(Tensor.of(narrow, 3));
        norm.run(context);
        float[] wanted = {33, 37, 12, 18, 33, 37};
        assertArrayEquals(wanted, Data.floats(y));
        LongBuffer wide = memory(8 * 3).asLongBuffer().put(0, new long[] {1, 0, -1});
        norm.modulationIndex(Tensor.of(wide, 3));
        FastnormException thrown = assertThrows(FastnormException.class, () -> norm.run(context));
        assertEquals("modulation_index of row 2 is -1; required: 0 to 1, the rows of the "
                + "modulators", thrown.getMessage());
        assertArrayEquals(wanted, Data.floats(y));
    }

    private static ByteBuffer memory(int bytes) {
        return ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
    }

    /** A GPU has kernels with stages, modulations among them. */
    @Test
    void onAGpu() {
        try (Context gpu = Context.builder(Device.cuda(0)).dryRun(90).open()) {
            Norm norm = Norm.rms(0).x(Tensor.at(gpu, 1L << 44, DType.BF16, 4, 64))
                    .y(Tensor.at(gpu, 1L << 45, DType.BF16, 4, 64)).activation(Activation.SILU);
            assertEquals("bf16 stages 32xstream", norm.query(gpu).kernel());
            norm.run(gpu);
        }
    }
}
