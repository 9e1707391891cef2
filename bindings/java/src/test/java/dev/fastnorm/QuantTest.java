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

    private static byte[] repeated(int value, int count) {
        byte[] bytes = new byte[count];
        Arrays.fill(bytes, (byte) value);
        return bytes;
    }

    private static double[] ones(int count) {
        double[] ones = new double[count];
        Arrays.fill(ones, 1);
        return ones;
    }

    @Test
    void perTensor() {
        Tensor scale = Tensor.copyOf(new float[] {0.5f}, 1);
        for (DType dtype : new DType[] {DType.I8, DType.F8_E4M3FN, DType.F8_E5M2}) {
            Tensor y = Tensor.allocate(DType.F32, 1, 4);
            Tensor q = Tensor.allocate(dtype, 1, 4);
            row(y, 1, 2, 3, 4).quantScheme(QuantScheme.PER_TENSOR).quantized(q).scale(scale)
                    .run(context);
            byte[] wanted = switch (dtype) { // of 2, -4, 6, -8
                case I8 -> of(2, -4, 6, -8);
                case F8_E4M3FN -> of(0x40, 0xc8, 0x4c, 0xd0);
                default -> of(0x40, 0xc4, 0x46, 0xc8);
            };
            assertArrayEquals(wanted, bytes(q), dtype.toString());
            assertArrayEquals(new float[] {1, -2, 3, -4}, Data.floats(y));
        }
    }

    @Test
    void perTensorTakesAReadOnlyScale() {
        ByteBuffer memory = ByteBuffer.allocateDirect(4).order(java.nio.ByteOrder.nativeOrder())
                .putFloat(0, 0.5f);
        Tensor scale = Tensor.of(memory.asReadOnlyBuffer().order(java.nio.ByteOrder.nativeOrder()),
                DType.F32, 1);
        Tensor y = Tensor.allocate(DType.F32, 1, 4);
        Norm norm = row(y, 1, 2, 3, 4).quantized(Tensor.allocate(DType.I8, 1, 4)).scale(scale);
        norm.quantScheme(QuantScheme.PER_TENSOR).run(context);
        // All others write it.
        IllegalArgumentException thrown = assertThrows(IllegalArgumentException.class,
                () -> norm.quantScheme(QuantScheme.PER_ROW).run(context));
        assertEquals("scale is written and its buffer is read-only; required: a writable one",
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
    void perRowClampedToAPowerOfTwo() {
        Tensor y = Tensor.allocate(DType.F32, 1, 4);
        Tensor q = Tensor.allocate(DType.F8_E4M3FN, 1, 4);
        Tensor scale = Tensor.allocate(DType.F32, 1);
        row(y, 1, 4, 8, 4).quantScheme(QuantScheme.PER_ROW).quantized(q).scale(scale)
                .scalePow2(true).clamp(2)
                .quantSource(QuantSource.ROUNDED).run(context);
        // 2 <= 448 * 2^-7: codes of 128, -256, 256, -256.
        assertEquals(0x1p-7f, scale.floats().get(0));
        assertArrayEquals(of(0x70, 0xf8, 0x78, 0xf8), bytes(q));
        assertArrayEquals(new float[] {1, -4, 8, -4}, Data.floats(y));
    }

    @Test
    void amaxFloorBoundsTheScale() {
        Tensor y = Tensor.allocate(DType.F32, 1, 4);
        Tensor q = Tensor.allocate(DType.I8, 1, 4);
        Tensor scale = Tensor.allocate(DType.F32, 1);
        row(y, 1, 1, 1, 1).quantScheme(QuantScheme.PER_ROW).quantized(q).scale(scale).amaxFloor(254)
                .run(context);
        assertEquals(2, scale.floats().get(0));
    }

    @Test
    void perBlock() {
        Tensor y = Tensor.allocate(DType.F32, 1, 128);
        Tensor q = Tensor.allocate(DType.I8, 1, 128);
        Tensor scale = Tensor.allocate(DType.F32, 1, 2);
        double[] weight = ones(128);
        Arrays.fill(weight, 64, 128, 2);
        row(y, weight).quantScheme(QuantScheme.PER_BLOCK).quantBlockSize(64).quantized(q)
                .scale(scale).run(context);
        assertArrayEquals(new float[] {1 / 127f, 2 / 127f}, Data.floats(scale));
        for (int i = 0; i < 128; i++) {
            assertEquals(i % 2 == 0 ? 127 : -127, bytes(q)[i]);
        }
    }

    @Test
    void mxfp8() {
        Tensor y = Tensor.allocate(DType.F32, 1, 64);
        Tensor q = Tensor.allocate(DType.F8_E4M3FN, 1, 64);
        Tensor scale = Tensor.allocate(DType.F8_E8M0FNU, 1, 2);
        double[] weight = ones(64);
        for (int i = 1; i < 64; i += 2) {
            weight[i] = -1;
        }
        row(y, weight).quantScheme(QuantScheme.MXFP8).quantized(q).scale(scale).run(context);
        assertArrayEquals(of(119, 119), bytes(scale)); // 1 <= 448 * 2^-8
        assertArrayEquals(repeated(0x78, 64), bytes(q)); // 256
    }

    @Test
    void nvfp4() {
        double[] weight = ones(16);
        for (int i = 1; i < 16; i += 2) {
            weight[i] = -1;
        }
        for (DType dtype : new DType[] {DType.F4_E2M1FN, DType.F4_E2M1FN_X2}) {
            Tensor y = Tensor.allocate(DType.F32, 1, 16);
            Tensor q = Tensor.allocate(dtype, 1, dtype == DType.F4_E2M1FN ? 16 : 8);
            Tensor scale = Tensor.allocate(DType.F8_E4M3FN, 1, 1);
            row(y, weight).quantScheme(QuantScheme.NVFP4).quantized(q).scale(scale)
                    .globalScale(Tensor.copyOf(new float[] {1}, 1)).run(context);
            assertArrayEquals(of(0x23), bytes(scale)); // 0.171875, nearest to 1/6
            assertArrayEquals(repeated(0x77, 8), bytes(q)); // 6 twice
        }
    }

    @Test
    void scaleLayouts() {
        Tensor y = Tensor.allocate(DType.F32, 1, 64);
        Tensor q = Tensor.allocate(DType.F8_E4M3FN, 1, 64);
        Tensor scale = Tensor.allocate(DType.F8_E8M0FNU, 512);
        row(y, ones(64)).quantScheme(QuantScheme.MXFP8).scaleLayout(ScaleLayout.SWIZZLED_128X4)
                .quantized(q)
                .scale(scale).run(context);
        byte[] wanted = new byte[512];
        wanted[0] = 119;
        wanted[1] = 119;
        assertArrayEquals(wanted, bytes(scale));
        Tensor columns = Tensor.allocate(DType.F32, 1, 1);
        Tensor q8 = Tensor.allocate(DType.I8, 1, 64);
        row(y, ones(64)).quantScheme(QuantScheme.PER_BLOCK).quantBlockSize(64).quantized(q8)
                .scale(columns)
                .scaleLayout(ScaleLayout.COLUMN_MAJOR).run(context);
        assertEquals(1 / 127f, columns.floats().get(0));
    }
}
