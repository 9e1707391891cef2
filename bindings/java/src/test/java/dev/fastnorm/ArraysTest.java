package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.lang.reflect.Method;
import java.nio.FloatBuffer;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** Tensors in arrays of the Java heap and in memory segments: results by hand, and refusals. */
class ArraysTest {
    private static Context cpu;

    // The rows have root mean squares of 1 and 2.
    private static final float[] ROWS = {1, -1, 1, -1, 2, 2, -2, 2};
    private static final float[] WEIGHT = {1, 2, 3, 4};
    private static final float[] NORMED = {1, -2, 3, -4, 1, 2, -3, 4};

    @BeforeAll
    static void open() {
        cpu = Context.cpu();
    }

    @AfterAll
    static void close() {
        cpu.close();
    }

    private static void refused(String text, Executable call) {
        IllegalArgumentException thrown = assertThrows(IllegalArgumentException.class, call);
        assertTrue(thrown.getMessage().contains(text), thrown.getMessage());
    }

    @Test
    void floats() {
        float[] x = ROWS.clone();
        float[] y = new float[8];
        Norm norm = Norm.rms(0).x(Tensor.of(x, 2, 4)).weight(Tensor.of(WEIGHT, 4))
                .y(Tensor.of(y, 2, 4));
        norm.run(cpu);
        assertArrayEquals(NORMED, y);
        assertArrayEquals(ROWS, x);
        x[0] = x[1] = x[2] = x[3] = 5;
        norm.run(cpu);
        assertArrayEquals(new float[] {1, 2, 3, 4, 1, 2, -3, 4}, y);
    }

    @Test
    void inPlace() {
        float[] x = ROWS.clone();
        Norm.rms(0).xInPlace(Tensor.of(x, 2, 4)).weight(Tensor.of(WEIGHT, 4)).run(cpu);
        assertArrayEquals(NORMED, x);
    }

    @Test
    void besideDirectMemory() {
        float[] x = ROWS.clone();
        Tensor y = Tensor.allocate(DType.F32, 2, 4);
        Norm.rms(0).x(Tensor.of(x, 2, 4)).weight(Tensor.copyOf(WEIGHT, 4)).y(y).run(cpu);
        float[] found = new float[8];
        y.floats().get(found);
        assertArrayEquals(NORMED, found);
    }

    @Test
    void partsOfOneArray() {
        // Weight, y and the rows, whose last extents are not next to each other.
        float[] all = new float[4 + 8 + 12];
        System.arraycopy(WEIGHT, 0, all, 0, 4);
        System.arraycopy(ROWS, 0, all, 12, 4);
        System.arraycopy(ROWS, 4, all, 18, 4);
        Tensor whole = Tensor.of(all, 24);
        Norm.rms(0).x(whole.view(12, new long[] {2, 4}, new long[] {6, 1}))
                .weight(whole.view(0, new long[] {4}, null))
                .y(whole.view(4, new long[] {2, 4}, null)).run(cpu);
        assertArrayEquals(NORMED, java.util.Arrays.copyOfRange(all, 4, 12));
        assertEquals(48, whole.view(12, new long[] {2, 4}, null).address());
        Norm overlapping = Norm.rms(0).x(whole.view(12, new long[] {2, 4}, new long[] {6, 1}))
                .y(whole.view(10, new long[] {2, 4}, null));
        FastnormException thrown =
                assertThrows(FastnormException.class, () -> overlapping.run(cpu));
        assertEquals(Status.ERROR_LAYOUT, thrown.status(), thrown.getMessage());
    }

    @Test
    void otherTypes() {
        short[] bits = {0x3f80, (short) 0xbf80}; // 1 and -1 in bf16
        byte[] bytes = {0, 0x3c, 0, (byte) 0xbc}; // the same in f16
        short[] y = new short[2];
        Norm.rms(0).x(Tensor.of(bits, DType.BF16, 1, 2)).y(Tensor.of(y, DType.BF16, 1, 2))
                .run(cpu);
        assertArrayEquals(bits, y);
        Norm.rms(0).xInPlace(Tensor.of(bytes, DType.F16, 1, 2)).run(cpu);
        assertArrayEquals(new byte[] {0, 0x3c, 0, (byte) 0xbc}, bytes);
        assertEquals(DType.I32, Tensor.of(new int[3], 3).dtype());
        assertEquals(DType.I64, Tensor.of(new long[3], 3).dtype());
    }

    @Test
    void lists() {
        float[] y = new float[8];
        float[] z = new float[8];
        Norm first = Norm.rms(0).x(Tensor.of(ROWS, 2, 4)).weight(Tensor.of(WEIGHT, 4))
                .y(Tensor.of(y, 2, 4));
        Norm second = Norm.rms(0).x(Tensor.of(ROWS, 2, 4)).y(Tensor.of(z, 2, 4));
        Norm.many(first, second).run(cpu);
        assertArrayEquals(NORMED, y);
        assertArrayEquals(new float[] {1, -1, 1, -1, 1, 1, -1, 1}, z);
    }

    @Test
    void heads() {
        // A head [3, 4] that is turned by a quarter, at position 1 of the tables.
        float[] x = {3, 4};
        float[] y = new float[2];
        NormHeadsPart part = NormHeadsPart.of(Tensor.of(x, 1, 1, 2)).rope()
                .y(Tensor.of(y, 1, 1, 2));
        NormHeads.of(part).rope(2, Tensor.of(new float[] {1, 0}, 2, 1),
                Tensor.of(new float[] {0, 1}, 2, 1)).positions(Tensor.of(new int[] {1}, 1))
                .run(cpu);
        assertArrayEquals(new float[] {-4, 3}, y);
    }

    @Test
    void gradientsWithAWorkspace() {
        // rstd = 1 / sqrt(12.5); dweight = dy * x * rstd.
        float[] dweight = new float[2];
        NormBackward.rms(0).x(Tensor.of(new float[] {3, 4}, 1, 2))
                .dy(Tensor.of(new float[] {1, 2}, 1, 2)).weight(Tensor.of(new float[] {1, 1}, 2))
                .dweight(Tensor.of(dweight, 2)).run(cpu);
        assertArrayEquals(new float[] {0.8485281f, 2.2627417f}, dweight, 1e-6f);
    }

    @Test
    void plans() {
        Norm norm = Norm.rms(0).x(Tensor.of(ROWS, 2, 4)).y(Tensor.of(new float[8], 2, 4));
        assertEquals(32, norm.query(cpu).bytesWritten());
        norm.prepare(cpu);
    }

    @Test
    void manyThreadsBesideTheCollector() throws Exception {
        Thread[] threads = new Thread[4];
        Throwable[] failed = new Throwable[threads.length];
        for (int t = 0; t < threads.length; t++) {
            int number = t;
            threads[t] = new Thread(() -> {
                try {
                    for (int i = 0; i < 3000; i++) {
                        float[] y = new float[8];
                        byte[] garbage = new byte[50_000];
                        Norm.rms(0).x(Tensor.of(ROWS, 2, 4)).weight(Tensor.of(WEIGHT, 4))
                                .y(Tensor.of(y, 2, 4)).run(cpu);
                        assertArrayEquals(NORMED, y);
                        assertEquals(0, garbage[i]);
                    }
                } catch (Throwable e) {
                    failed[number] = e;
                }
            });
            threads[t].start();
        }
        for (int i = 0; i < 20; i++) {
            System.gc();
        }
        for (int t = 0; t < threads.length; t++) {
            threads[t].join();
            assertNull(failed[t]);
        }
    }

    @Test
    void views() {
        float[] values = {1, 2, 3, 4};
        Tensor tensor = Tensor.of(values, 2, 2).view(2, new long[] {2}, null);
        assertNull(tensor.buffer());
        assertEquals("Tensor[F32 [2] at byte 8 of an array of CPU:0]", tensor.toString());
        FloatBuffer floats = tensor.floats();
        floats.put(1, 9);
        assertEquals(2, floats.remaining());
        assertArrayEquals(new float[] {1, 2, 3, 9}, values);
        short[] bits = {1, 2, 3};
        Tensor.of(bits, DType.BF16, 3).view(1, new long[] {2}, null).shorts().put(0, (short) 7);
        assertArrayEquals(new short[] {1, 7, 3}, bits);
    }

    @Test
    void refusals() {
        refused("has 36 bytes from its first element on; required: elements inside of the array's"
                + " 32 bytes from the first element on", () -> Tensor.of(new float[8], 9));
        refused("offset is 9 elements; required: inside of the array, 0 to 8",
                () -> Tensor.of(new float[8], 8).view(9, new long[] {1}, null));
        refused("dtype is F32, of 32 bits; required for a short[]: one of 16 bits",
                () -> Tensor.of(new short[2], DType.F32, 1));
        refused("segment is java.lang.String; required: a java.lang.foreign.MemorySegment",
                () -> Tensor.ofSegment("memory", DType.F32, 1));
        refused("segment is null; required: a java.lang.foreign.MemorySegment",
                () -> Tensor.ofSegment(null, DType.F32, 1));
        FastnormException thrown = assertThrows(FastnormException.class,
                () -> Norm.rms(0).x(Tensor.of(ROWS, 2, 4)).weight(Tensor.of(WEIGHT, 3))
                        .y(Tensor.of(new float[8], 2, 4)).run(cpu));
        assertTrue(thrown.getMessage().contains("weight.shape is [3]"), thrown.getMessage());
        try (Context gpu = Context.builder(Device.cuda(0)).dryRun(90).open()) {
            thrown = assertThrows(FastnormException.class,
                    () -> Norm.rms(0).xInPlace(Tensor.of(new float[4], 1, 4)).run(gpu));
            assertEquals(Status.ERROR_DEVICE, thrown.status(), thrown.getMessage());
        }
    }

    // --- segments, by their methods' names: the tests are compiled for Java 17 ---

    private static Object call(Class<?> type, Object of, String name, Object... arguments)
            throws Exception {
        for (Method method : type.getMethods()) {
            if (method.getName().equals(name)
                    && method.getParameterCount() == arguments.length
                    && (arguments.length == 0
                    || method.getParameterTypes()[0].isInstance(arguments[0])
                    || arguments[0] instanceof Long
                    && method.getParameterTypes()[0] == long.class)) {
                return method.invoke(of, arguments);
            }
        }
        throw new AssertionError(type + " has no " + name);
    }

    @Test
    void segments() throws Exception {
        assumeTrue(Runtime.version().feature() >= 22, "memory segments are of Java 22 and later");
        Class<?> arenas = Class.forName("java.lang.foreign.Arena");
        Class<?> segments = Class.forName("java.lang.foreign.MemorySegment");
        Object arena = call(arenas, null, "ofConfined");
        Object memory = call(arenas, arena, "allocate", 48L, 16L);
        FloatBuffer floats = ((java.nio.ByteBuffer) call(segments, memory, "asByteBuffer"))
                .order(java.nio.ByteOrder.nativeOrder()).asFloatBuffer();
        floats.put(0, ROWS).put(8, WEIGHT);
        Tensor whole = Tensor.ofSegment(memory, DType.F32, 12);
        assertEquals((long) call(segments, memory, "address"), whole.address());
        float[] y = new float[8];
        Object inArray = call(segments, null, "ofArray", new Object[] {y});
        Norm.rms(0).x(whole.view(0, new long[] {2, 4}, null))
                .weight(whole.view(8, new long[] {4}, null))
                .y(Tensor.ofSegment(inArray, DType.F32, 2, 4)).run(cpu);
        assertArrayEquals(NORMED, y);
        float[] more = new float[10];
        Object sliced = call(segments, call(segments, null, "ofArray", new Object[] {more}),
                "asSlice", 8L);
        Norm.rms(0).x(whole.view(0, new long[] {2, 4}, null))
                .y(Tensor.ofSegment(sliced, DType.F32, 2, 4)).run(cpu);
        assertArrayEquals(new float[] {0, 0, 1, -1, 1, -1, 1, 1, -1, 1}, more);
        refused("required: elements inside of the segment's 48 bytes",
                () -> Tensor.ofSegment(memory, DType.F32, 13));
        Object frozen = call(segments, memory, "asReadOnly");
        refused("y is written and its buffer is read-only",
                () -> Norm.rms(0).y(Tensor.ofSegment(frozen, DType.F32, 12)));
        Object frozenArray = call(segments, inArray, "asReadOnly");
        refused("the segment is a read-only view of an array",
                () -> Tensor.ofSegment(frozenArray, DType.F32, 8));
        call(arenas, arena, "close");
        refused("the segment's arena is closed", () -> Tensor.ofSegment(memory, DType.F32, 12));
    }
}
