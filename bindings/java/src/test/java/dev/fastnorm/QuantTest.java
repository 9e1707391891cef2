package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.ByteBuffer;
import java.util.Arrays;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/**
 * Quantised outputs. The rows are chosen so that the normalised values are small integers and their
 * codes are known.
 */
class QuantTest {
    private static Context context;

    @BeforeAll
    static void open() {
        context = Context.cpu();
    }

    @AfterAll
    static void close() {
        context.close();
    }

    /** One row of n elements, all 2 or -2, so that y is the weight, with the sign of x. */
    private static Norm row(Tensor y, double... weight) {
        float[] x = new float[weight.length];
        for (int i = 0; i < x.length; i++) {
            x[i] = i % 2 == 0 ? 2 : -2;
        }
        return Norm.rms(0).x(Data.rows(x, 1)).weight(Data.tensor(DType.F32, weight, weight.length))
                .y(y);
    }

    private static byte[] bytes(Tensor tensor) {
        ByteBuffer memory = ((ByteBuffer) tensor.buffer()).duplicate();
        byte[] bytes = new byte[memory.clear().remaining()];
        memory.get(bytes);
        return bytes;
    }

    private static byte[] of(int... values) {
        byte[] bytes = new byte[values.length];
        for (int i = 0; i < values.length; i++) {
            bytes[i] = (byte) values[i];
        }
        return bytes;
    }

    @Test
    void perTensorTakesAReadOnlyScale() {
        ByteBuffer memory = ByteBuffer.allocateDirect(4).order(java.nio.ByteOrder.nativeOrder())
                .putFloat(0, 0.5f);
        Tensor scale = Tensor.of(memory.asReadOnlyBuffer().order(java.nio.ByteOrder.nativeOrder()),
                DType.F32, 1);
        Tensor y = Tensor.allocate(DType.F32, 1, 4);
        Tensor q = Tensor.allocate(DType.I8, 1, 4);
        Norm norm = row(y, 1, 2, 3, 4).quantized(q).scale(scale);
        norm.quantScheme(QuantScheme.PER_TENSOR).run(context);
        assertArrayEquals(of(2, -4, 6, -8), bytes(q));
        assertArrayEquals(new float[] {1, -2, 3, -4}, Data.floats(y));
        // All others write it.
        IllegalArgumentException thrown = assertThrows(IllegalArgumentException.class,
                () -> norm.quantScheme(QuantScheme.PER_ROW).run(context));
        assertEquals("quant.scale is written and its buffer is read-only; required: a writable one",
                thrown.getMessage());
        assertEquals(0.5f, memory.getFloat(0));
    }

    @Test
    void perRow() {
        Tensor y = Tensor.allocate(DType.F32, 1, 4);
        Tensor q = Tensor.allocate(DType.I8, 1, 4);
        Tensor scale = Tensor.allocate(DType.F32, 1);
        Tensor amax = Tensor.allocate(DType.F32, 1);
        row(y, 1, 4, 3, 4).quantScheme(QuantScheme.PER_ROW).quantized(q).scale(scale).amax(amax)
                .run(context);
        assertEquals(4f / 127f, scale.floats().get(0));
        assertArrayEquals(of(32, -127, 95, -127), bytes(q));
        assertEquals(4, amax.floats().get(0));
    }

    @Test
    void nvfp4() {
        double[] weight = new double[16];
        for (int i = 0; i < 16; i++) {
            weight[i] = i % 2 == 0 ? 1 : -1;
        }
        for (DType dtype : new DType[] {DType.F4_E2M1FN, DType.F4_E2M1FN_X2}) {
            Tensor y = Tensor.allocate(DType.F32, 1, 16);
            Tensor q = Tensor.allocate(dtype, 1, dtype == DType.F4_E2M1FN ? 16 : 8);
            Tensor scale = Tensor.allocate(DType.F8_E4M3FN, 1, 1);
            row(y, weight).quantScheme(QuantScheme.NVFP4).quantized(q).scale(scale)
                    .globalScale(Tensor.copyOf(new float[] {1}, 1)).run(context);
            assertArrayEquals(of(0x23), bytes(scale)); // 0.171875, nearest to 1/6
            byte[] sixes = new byte[8];
            Arrays.fill(sixes, (byte) 0x77);
            assertArrayEquals(sixes, bytes(q));
        }
    }

    /** A column of 4 is 1 in each of its block's 16 columns, and its sign decides theirs. */
    @Test
    void rotation() {
        double[] weight = new double[16];
        weight[0] = 4;
        float[] signs = new float[16];
        Arrays.fill(signs, 1);
        for (int sign = -1; sign <= 1; sign += 2) {
            signs[0] = sign;
            Tensor y = Tensor.allocate(DType.F32, 1, 16);
            Tensor q = Tensor.allocate(DType.I8, 1, 16);
            Tensor scale = Tensor.allocate(DType.F32, 1);
            row(y, weight).quantScheme(QuantScheme.PER_ROW).quantized(q).scale(scale).rotation(16)
                    .rotationSigns(Tensor.copyOf(signs, 16)).yRotated(sign > 0).run(context);
            assertEquals(1f / 127f, scale.floats().get(0));
            byte[] codes = new byte[16];
            Arrays.fill(codes, (byte) (127 * sign));
            assertArrayEquals(codes, bytes(q));
            assertEquals(sign > 0 ? 1 : 4, y.floats().get(0));
        }
    }
}
