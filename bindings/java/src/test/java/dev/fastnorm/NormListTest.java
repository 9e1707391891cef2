package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.FloatBuffer;
import java.util.Random;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Several normalisations in one call: query and key heads of a fused QKV tensor. */
class NormListTest {
    private static final int TOKENS = 5;
    private static final int HEADS = 12;
    private static final int QUERY_HEADS = 8;
    private static final int KEY_HEADS = 2;
    private static final int SIZE = 64;

    private static Context context;

    private final Random random = new Random(7);
    private final Tensor qkv = filled(TOKENS, HEADS, SIZE);
    private final Tensor queryWeight = filled(SIZE);
    private final Tensor keyWeight = filled(SIZE);

    @BeforeAll
    static void open() {
        context = Context.cpu();
    }

    @AfterAll
    static void close() {
        context.close();
    }

    private Tensor filled(long... shape) {
        Tensor tensor = Tensor.allocate(DType.F32, shape);
        FloatBuffer floats = tensor.floats();
        while (floats.hasRemaining()) {
            floats.put(random.nextFloat() - 0.5f);
        }
        return tensor;
    }

    /** Heads [first, first + count) of every token, in place. */
    private static Norm heads(Tensor buffer, int first, int count, Tensor weight) {
        long[] shape = {TOKENS, count, SIZE};
        long[] strides = {HEADS * SIZE, SIZE, 1};
        return Norm.rms(1e-6).xInPlace(buffer.view(first * SIZE, shape, strides)).weight(weight);
    }

    @Test
    void fusedHeads() {
        Tensor apart = Tensor.copyOf(Data.floats(qkv), TOKENS, HEADS, SIZE);
        float[] before = Data.floats(qkv);
        heads(apart, 0, QUERY_HEADS, queryWeight).run(context);
        heads(apart, QUERY_HEADS, KEY_HEADS, keyWeight).run(context);
        NormList both = Norm.many(heads(qkv, 0, QUERY_HEADS, queryWeight),
                heads(qkv, QUERY_HEADS, KEY_HEADS, keyWeight));
        Info info = both.query(context);
        assertTrue(info.launches() >= 1 && !info.kernel().isEmpty());
        assertEquals(TOKENS * (QUERY_HEADS + KEY_HEADS) * SIZE * 4, info.bytesWritten());
        both.prepare(context);
        both.run(context);
        assertArrayEquals(Data.floats(apart), Data.floats(qkv));
        for (int i = 0; i < before.length; i++) {
            boolean isValue = i / SIZE % HEADS >= QUERY_HEADS + KEY_HEADS;
            assertEquals(isValue, before[i] == qkv.floats().get(i), "element " + i);
        }
    }

    @Test
    void aListSeesChangesOfItsParts() {
        Tensor x = Data.rows(new float[] {2, 2}, 1);
        Tensor y = Tensor.allocate(DType.F32, 1, 2);
        Norm part = Norm.rms(0).x(x).y(y);
        NormList list = Norm.many(part);
        list.run(context);
        assertArrayEquals(new float[] {1, 1}, Data.floats(y));
        part.weight(Tensor.copyOf(new float[] {3, 4}, 2));
        list.run(context);
        assertArrayEquals(new float[] {3, 4}, Data.floats(y));
    }

    @Test
    void refusedParts() {
        float[] before = Data.floats(qkv);
        Norm query = heads(qkv, 0, QUERY_HEADS, queryWeight);
        Norm sharing = heads(qkv, QUERY_HEADS - 1, KEY_HEADS, keyWeight);
        refuses(Norm.many(query, sharing), Status.ERROR_LAYOUT, "args[1].");
        Norm key = heads(qkv, QUERY_HEADS, KEY_HEADS, keyWeight);
        refuses(Norm.many(query, Norm.rms(-1).x(qkv).y(qkv)), Status.ERROR_ARGUMENT,
                "args[1].eps is -1; required: finite and >= 0");
        Norm[] nine = new Norm[9];
        java.util.Arrays.fill(nine, key);
        refuses(Norm.many(nine), Status.ERROR_ARGUMENT, "count is 9; required: 0 to 8");
        assertThrows(NullPointerException.class, () -> Norm.many(query, null));
        assertArrayEquals(before, Data.floats(qkv));
    }

    private static void refuses(NormList list, Status status, String text) {
        FastnormException thrown = assertThrows(FastnormException.class, () -> list.run(context));
        assertEquals(status, thrown.status());
        assertTrue(thrown.getMessage().contains(text), thrown.getMessage());
        assertEquals(thrown.getMessage(),
                assertThrows(FastnormException.class, () -> list.query(context)).getMessage());
        assertEquals(thrown.getMessage(),
                assertThrows(FastnormException.class, () -> list.prepare(context)).getMessage());
    }

    @Test
    void eightPartsAndNone() {
        Norm[] parts = new Norm[8];
        Tensor[] rows = new Tensor[8];
        for (int i = 0; i < parts.length; i++) {
            rows[i] = Data.rows(new float[] {i + 1, i + 1}, 1);
            parts[i] = Norm.rms(0).xInPlace(rows[i]).weight(Tensor.copyOf(new float[] {i, -i}, 2))
                    .residual(Tensor.allocate(DType.F32, 1, 2)).bias(Tensor.allocate(DType.F32, 2))
                    .rstd(Tensor.allocate(DType.F32, 1));
        }
        Norm.many(parts).run(context);
        for (int i = 0; i < parts.length; i++) {
            assertArrayEquals(new float[] {i, -i}, Data.floats(rows[i]), 1e-5f);
        }
        NormList none = Norm.many();
        none.run(context);
        none.prepare(context);
        assertEquals(0, none.query(context).launches());
    }
}
