package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Norm, rope and the paged cache against the formula in double precision, for query, key and value
 * heads of one buffer. Rope turns a window in the middle of a row. Pages are no power of two, token
 * 2 has no slot, and the last token is behind the list of slots.
 */
class NormHeadsTest {
    private static final int TOKENS = 5;
    private static final int QUERY = 3;
    private static final int KEY = 2;
    private static final int HEADS = QUERY + 2 * KEY;
    private static final int D = 80;
    private static final int ROPE = 32;
    private static final int OFFSET = 24;
    private static final int TABLE = 11;
    private static final double EPS = 1e-3;
    private static final long[] PAGES = {3, 3, KEY, D};
    private static final int CACHE = 9 * KEY * D;

    private static Context context;

    private final Random random = new Random(42);
    private final float[] qkv = numbers(TOKENS * HEADS * D);
    private final float[] queryWeight = numbers(D);
    private final float[] keyWeight = numbers(D);
    private final float[] cos = new float[TABLE * ROPE / 2];
    private final float[] sin = new float[TABLE * ROPE / 2];
    private final int[] positions = {10, 0, 3, 7, 3};
    private final long[] slots = {7, 0, -1, 4};
    private final Tensor buffer;

    NormHeadsTest() {
        for (int i = 0; i < cos.length; i++) {
            double angle = i / (ROPE / 2) * Math.pow(10000, -2.0 * (i % (ROPE / 2)) / ROPE);
            cos[i] = (float) Math.cos(angle);
            sin[i] = (float) Math.sin(angle);
        }
        buffer = Tensor.copyOf(qkv, TOKENS, HEADS, D);
    }

    @BeforeAll
    static void open() {
        context = Context.cpu();
    }

    @AfterAll
    static void close() {
        context.close();
    }

    private float[] numbers(int count) {
        float[] numbers = new float[count];
        for (int i = 0; i < count; i++) {
            numbers[i] = 4 * random.nextFloat() - 2;
        }
        return numbers;
    }

    private static Tensor filled(float value, long... shape) {
        float[] values = new float[(int) Arrays.stream(shape).reduce(1, (a, b) -> a * b)];
        Arrays.fill(values, value);
        return Tensor.copyOf(values, shape);
    }

    private static ByteBuffer memory(int bytes) {
        return ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
    }

    private Tensor heads(int first, int count) {
        long[] shape = {TOKENS, count, D};
        return buffer.view((long) first * D, shape, new long[] {HEADS * D, D, 1});
    }

    private NormHeadsPart query() {
        return NormHeadsPart.of(heads(0, QUERY)).rms(EPS).weightOffset(1).rope(OFFSET)
                .weight(Tensor.copyOf(queryWeight, D));
    }

    private NormHeadsPart key() {
        return NormHeadsPart.of(heads(QUERY, KEY)).rms(EPS).weightOffset(1).rope(OFFSET)
                .weight(Tensor.copyOf(keyWeight, D));
    }

    private NormHeads call(NormHeadsPart... parts) {
        IntBuffer ofPositions = memory(4 * TOKENS).asIntBuffer().put(0, positions);
        LongBuffer ofSlots = memory(8 * slots.length).asLongBuffer().put(0, slots);
        Tensor ofCos = Tensor.copyOf(cos, TABLE, ROPE / 2);
        Tensor ofSin = Tensor.copyOf(sin, TABLE, ROPE / 2);
        return NormHeads.of(parts).rope(ROPE, ofCos, ofSin)
                .positions(Tensor.of(ofPositions, TOKENS)).slots(Tensor.of(ofSlots, slots.length));
    }

    /** RMS norm and rope of a row. */
    private double[] exact(int token, int head, boolean interleaved, boolean inverse) {
        int at = (token * HEADS + head) * D;
        double squares = 0;
        for (int i = 0; i < D; i++) {
            squares += (double) qkv[at + i] * qkv[at + i];
        }
        double rstd = 1 / Math.sqrt(squares / D + EPS);
        double[] o = new double[D];
        for (int i = 0; i < D; i++) {
            o[i] = qkv[at + i] * rstd * ((head < QUERY ? queryWeight : keyWeight)[i] + 1.0);
        }
        for (int j = 0; j < ROPE / 2; j++) {
            int first = OFFSET + (interleaved ? 2 * j : j);
            int second = interleaved ? first + 1 : first + ROPE / 2;
            int entry = positions[token] * ROPE / 2 + j;
            double c = cos[entry];
            double s = inverse ? -sin[entry] : sin[entry];
            double v1 = o[first];
            o[first] = v1 * c - o[second] * s;
            o[second] = o[second] * c + v1 * s;
        }
        return o;
    }

    @ParameterizedTest
    @CsvSource({"false,false", "true,false", "false,true", "true,true"})
    void layer(boolean interleaved, boolean inverse) {
        Tensor keys = filled(Float.NaN, PAGES);
        Tensor values = filled(Float.NaN, PAGES);
        NormHeads call = call(
                query().ropeInterleaved(interleaved).ropeInverse(inverse).y(heads(0, QUERY)),
                key().ropeInterleaved(interleaved).ropeInverse(inverse).y(heads(QUERY, KEY))
                        .cache(keys),
                NormHeadsPart.of(heads(QUERY + KEY, KEY)).cache(values));
        call.prepare(context);
        assertEquals(1, call.query(context).launches());
        assertArrayEquals(qkv, Data.floats(buffer));
        call.run(context);
        float[] found = Data.floats(buffer);
        Set<Integer> cached = new HashSet<>();
        for (int token = 0; token < TOKENS; token++) {
            for (int head = 0; head < QUERY + KEY; head++) {
                double[] wanted = exact(token, head, interleaved, inverse);
                for (int i = 0; i < D; i++) {
                    assertEquals(wanted[i], found[(token * HEADS + head) * D + i], 2e-5,
                            "column " + i + " of head " + head + " of token " + token);
                }
            }
            int slot = token < slots.length ? (int) slots[token] : -1;
            if (slot >= 0) {
                cached.add(slot);
                int from = (token * HEADS + QUERY) * D;
                assertArrayEquals(Arrays.copyOfRange(found, from, from + KEY * D), row(keys, slot));
                from += KEY * D;
                assertArrayEquals(Arrays.copyOfRange(qkv, from, from + KEY * D), row(values, slot));
            }
        }
        assertEquals(Set.of(0, 4, 7), cached);
        float[] untouched = new float[KEY * D];
        Arrays.fill(untouched, Float.NaN);
        for (int slot = 0; slot < 9; slot++) {
            if (!cached.contains(slot)) {
                assertArrayEquals(untouched, row(keys, slot));
                assertArrayEquals(untouched, row(values, slot));
            }
        }
    }

    private static float[] row(Tensor cache, int slot) {
        return Arrays.copyOfRange(Data.floats(cache), slot * KEY * D, (slot + 1) * KEY * D);
    }

    /** The value of a code of e4m3. */
    private static double e4m3(byte code) {
        int exponent = code >> 3 & 15;
        int fraction = code & 7;
        double magnitude = exponent == 0 ? Math.scalb(fraction / 8.0, -6)
                : Math.scalb(1 + fraction / 8.0, exponent - 7);
        return code < 0 ? -magnitude : magnitude;
    }

    private static void assertCodes(double[] wanted, int from, int count, ByteBuffer codes, int at,
            float scale) {
        double largest = 0;
        for (int i = from; i < from + count; i++) {
            largest = Math.max(largest, Math.abs(wanted[i]));
        }
        assertEquals(largest / 448, scale, 1e-7);
        for (int i = 0; i < count; i++) {
            double value = wanted[from + i];
            double halfStep = Math.abs(value) / 16 + scale / 1024 + 1e-5;
            assertEquals(value, e4m3(codes.get(at + i)) * scale, halfStep, "column " + (from + i));
        }
    }

    @Test
    void quantised() {
        ByteBuffer codes = memory(TOKENS * QUERY * D);
        Tensor scales = Tensor.allocate(DType.F32, TOKENS, QUERY);
        ByteBuffer keys = memory(CACHE);
        Tensor keyScales = Tensor.allocate(DType.F32, 3, 3, KEY, 2); // of 64 and of 16 columns
        ByteBuffer values = memory(CACHE);
        call(query().quantScheme(QuantScheme.PER_ROW).scale(scales)
                        .quantized(Tensor.of(codes, DType.F8_E4M3FN, TOKENS, QUERY, D)),
                key().cacheScheme(QuantScheme.PER_BLOCK).cacheBlockSize(64).cacheScale(keyScales)
                        .cache(Tensor.of(keys, DType.F8_E4M3FN, PAGES)),
                NormHeadsPart.of(heads(QUERY + KEY, KEY)).cacheScheme(QuantScheme.PER_TENSOR)
                        .cacheScale(Tensor.copyOf(new float[] {1f / 32}, 1))
                        .cache(Tensor.of(values, DType.I8, PAGES))).run(context);
        assertArrayEquals(qkv, Data.floats(buffer));
        for (int token = 0; token < TOKENS; token++) {
            for (int head = 0; head < QUERY; head++) {
                int row = token * QUERY + head;
                assertCodes(exact(token, head, false, false), 0, D, codes, row * D,
                        scales.floats().get(row));
            }
            int slot = token < slots.length ? (int) slots[token] : -1;
            for (int head = 0; slot >= 0 && head < KEY; head++) {
                int row = slot * KEY + head;
                double[] wanted = exact(token, QUERY + head, false, false);
                FloatBuffer found = keyScales.floats();
                assertCodes(wanted, 0, 64, keys, row * D, found.get(2 * row));
                assertCodes(wanted, 64, 16, keys, row * D + 64, found.get(2 * row + 1));
                int value = (token * HEADS + QUERY + KEY + head) * D;
                for (int i = 0; i < D; i++) {
                    assertEquals((byte) Math.rint(32.0 * qkv[value + i]), values.get(row * D + i));
                }
            }
        }
    }

    /** The statistic of all heads of a token, and the same from outside. */
    @Test
    void acrossHeads() {
        Tensor y = Tensor.allocate(DType.F32, TOKENS, QUERY, D);
        Tensor rstd = Tensor.allocate(DType.F32, TOKENS);
        Tensor sums = Tensor.allocate(DType.F32, TOKENS);
        NormHeadsPart part = NormHeadsPart.of(heads(0, QUERY)).rms(EPS).acrossHeads(true);
        NormHeads call = NormHeads.of(part);
        part.y(y).rstd(rstd);
        call.run(context);
        part.y(null).rstd(null).sumsq(sums);
        call.run(context);
        for (int token = 0; token < TOKENS; token++) {
            double exact = 0;
            for (int i = 0; i < QUERY * D; i++) {
                exact += Math.pow(qkv[token * HEADS * D + i], 2);
            }
            assertEquals(exact, sums.floats().get(token), 1e-4);
            double root = 1 / Math.sqrt(exact / (QUERY * D) + EPS);
            assertEquals(root, rstd.floats().get(token), 1e-6);
            assertEquals(qkv[token * HEADS * D] * root, y.floats().get(token * QUERY * D), 1e-5);
        }
        Tensor again = Tensor.allocate(DType.F32, TOKENS, QUERY, D);
        part.sumsq(null).rstdIn(rstd).y(again);
        call.run(context);
        assertArrayEquals(Data.floats(y), Data.floats(again));
    }

    /** A call sees what its parts have become. */
    @Test
    void partsMayChange() {
        Tensor y = Tensor.allocate(DType.F32, TOKENS, QUERY, D);
        NormHeadsPart part = NormHeadsPart.of(heads(0, QUERY)).y(y);
        NormHeads call = NormHeads.of(part);
        call.run(context);
        assertEquals(qkv[1], y.floats().get(1));
        part.rms(EPS).weight(Tensor.copyOf(queryWeight, D)).weightOffset(1);
        call.run(context);
        double wanted = exact(0, 0, false, false)[1]; // left of rope's window
        assertEquals(wanted, y.floats().get(1), 2e-5);
    }

    private void refused(Status status, String text, NormHeads call) {
        FastnormException error = assertThrows(FastnormException.class, () -> call.run(context));
        assertEquals(status, error.status(), error.getMessage());
        assertTrue(error.getMessage().contains(text), error.getMessage());
        assertArrayEquals(qkv, Data.floats(buffer));
    }

    @Test
    void whatTheLibraryRefuses() {
        Tensor q = heads(0, QUERY);
        refused(Status.ERROR_ARGUMENT,
                "parts[0].y, quantized, cache, sumsq, mean and rstd are NULL; required: an output",
                NormHeads.of(NormHeadsPart.of(q)));
        refused(Status.ERROR_ARGUMENT, "parts[1].eps is -1; required: finite and >= 0",
                NormHeads.of(NormHeadsPart.of(heads(QUERY, KEY)).y(heads(QUERY, KEY)),
                        NormHeadsPart.of(q).rms(-1).y(q)));
        refused(Status.ERROR_ARGUMENT, "slots is given and no part has a cache",
                call(query().y(q)));
        refused(Status.ERROR_SHAPE, "parts[0].rope_offset is 49 and rope_dim is 32",
                call(query().rope(49).y(q)).slots(null));
        refused(Status.ERROR_SHAPE, "mrope_1 is 7 and positions has 1 row",
                call(query().y(q)).slots(null).mrope(9, 7).mrope(0, 7));
        positions[4] = TABLE;
        refused(Status.ERROR_ARGUMENT, "the position of token 4, axis 0, is 11; required: 0 to 10",
                call(query().y(q)).slots(null));
        positions[4] = 0;
        slots[1] = 9;
        refused(Status.ERROR_ARGUMENT,
                "slots[1] is 9; required: -1, or 0 to the 3 pages of 3 tokens",
                call(key().cache(filled(0, PAGES))));
        NormHeads.of().run(context);
        NormHeadsPart[] nine = new NormHeadsPart[9];
        Arrays.fill(nine, NormHeadsPart.of(q).y(q));
        refused(Status.ERROR_ARGUMENT, "count is 9; required: 0 to 8", NormHeads.of(nine));
    }

    @Test
    void whatTheBindingRefuses() {
        assertThrows(NullPointerException.class, () -> NormHeads.of((NormHeadsPart) null));
        assertThrows(IllegalArgumentException.class, () -> NormHeads.of().mrope(1, 2, 3, 4, 5));
        ByteBuffer fixed = memory(CACHE * 4).asReadOnlyBuffer().order(ByteOrder.nativeOrder());
        Tensor constant = Tensor.of(fixed, DType.F32, PAGES);
        assertThrows(IllegalArgumentException.class, () -> key().cache(constant));
        Tensor scales = Tensor.of(fixed, DType.F32, 3, 3, KEY, 2);
        NormHeads call = call(key().cache(Tensor.allocate(DType.I8, PAGES)).cacheScale(scales)
                .cacheScheme(QuantScheme.PER_BLOCK).cacheBlockSize(64));
        IllegalArgumentException error =
                assertThrows(IllegalArgumentException.class, () -> call.run(context));
        assertEquals("parts[0]: " + Description.readOnly("cache_scale"), error.getMessage());
    }
}
