package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Attention over paged latents by hand; what is refused; profiles. */
class MlaDecodeTest {
    private static Context context;

    @BeforeAll
    static void open() {
        context = Context.cpu();
    }

    @AfterAll
    static void close() {
        context.close();
    }

    /** Rows of columns that are all the same. */
    private static Tensor rows(int width, float[] values, long... shape) {
        float[] rows = new float[values.length * width];
        for (int i = 0; i < rows.length; i++) {
            rows[i] = values[i / width];
        }
        long[] whole = Arrays.copyOf(shape, shape.length + 1);
        whole[shape.length] = width;
        return Tensor.copyOf(rows, whole);
    }

    private static Tensor ints(int... values) {
        ByteBuffer memory = ByteBuffer.allocateDirect(4 * values.length)
                .order(ByteOrder.nativeOrder());
        memory.asIntBuffer().put(values);
        return Tensor.of(memory.asIntBuffer(), values.length);
    }

    /**
     * Two requests of one new token each. The first has three cached tokens, in pages 2 and 0, the
     * second none. A query of zeros mixes all tokens alike.
     */
    private static MlaDecode call(Tensor o, Tensor lse) {
        float nan = Float.NaN;
        return MlaDecode.of(1)
                .qNope(rows(512, new float[2], 2, 1)).qPe(rows(64, new float[2], 2, 1))
                .ckv(rows(512, new float[] {6, nan, nan, nan, 1, 2}, 3, 2))
                .kpe(rows(64, new float[] {0, nan, nan, nan, 0, 0}, 3, 2))
                .kvLen(ints(3, 0)).pageTable(ints(2, 0)).kvIndptr(ints(0, 2, 2)).o(o).lse(lse);
    }

    @Test
    void meanOfThreeTokens() {
        Tensor o = Tensor.allocate(DType.F32, 2, 1, 512);
        Tensor lse = Tensor.allocate(DType.F32, 2, 1);
        MlaDecode call = call(o, lse).qoIndptr(ints(0, 1, 2), 1).causal(true);
        call.prepare(context);
        assertEquals(0, call.query(context).profileBytes());
        call.run(context);
        for (int i = 0; i < 512; i++) {
            assertEquals(3, o.floats().get(i), 1e-6);
            assertEquals(0, o.floats().get(512 + i));
        }
        assertEquals(Math.log(3), lse.floats().get(0), 1e-6);
        assertEquals(Float.NEGATIVE_INFINITY, lse.floats().get(1));
        call.lseBase(LseBase.BASE_2).run(context);
        assertEquals(Math.log(3) / Math.log(2), lse.floats().get(0), 1e-6);
    }

    /** A call with a tensor of bytes: rows of -3 and 1, times 2, and two of NaN. */
    private static MlaDecode bytes(Tensor o, Tensor lse, int... indices) {
        byte[] rows = new byte[4 * 576];
        byte[] codes = {(byte) 0xc4, 0x7f, 0x7f, 0x38};
        for (int i = 0; i < rows.length; i++) {
            rows[i] = codes[i / 576];
        }
        return MlaDecode.of(1)
                .qNope(rows(512, new float[1], 1, 1)).qPe(rows(64, new float[1], 1, 1))
                .cacheFormat(MlaCacheFormat.BYTES_576)
                .cache(Tensor.of(rows, DType.U8, 2, 2, 576))
                .cacheScale(Tensor.of(new float[] {2}, 1))
                .indices(Tensor.of(indices, 1, 1, indices.length))
                .topkLength(Tensor.of(new int[] {3}, 1))
                .attentionSink(Tensor.of(new float[] {(float) Math.log(2)}, 1)).o(o).lse(lse);
    }

    /** Half of the weight is the sink's. */
    @Test
    void rowsOfBytesThatAreSelected() {
        Tensor o = Tensor.allocate(DType.F32, 1, 1, 512);
        Tensor lse = Tensor.allocate(DType.F32, 1, 1);
        bytes(o, lse, 3, -1, 0, 99).run(context);
        assertEquals(-1, o.floats().get(0), 1e-6);
        assertEquals(-1, o.floats().get(511), 1e-6);
        assertEquals(Math.log(2), lse.floats().get(0), 1e-6);

        o.floats().put(0, 7);
        byte[] row = new byte[576];
        Arrays.fill(row, (byte) 0xc4);
        bytes(o, lse, -1, 3, -1, 99).extraCache(Tensor.of(row, DType.U8, 1, 1, 576))
                .extraIndices(Tensor.of(new int[] {0, 99}, 1, 1, 2))
                .extraTopkLength(Tensor.of(new int[] {1}, 1, 1)).run(context);
        assertEquals(-1, o.floats().get(0), 1e-6);

        FastnormException refused = assertThrows(FastnormException.class,
                () -> bytes(o, lse, 4, 0, 0, 0).run(context));
        assertEquals(Status.ERROR_ARGUMENT, refused.status());
        assertTrue(refused.getMessage().contains("indices[0][0][0] is 4; required: -1, or 0 to 3"),
                refused.getMessage());
    }

    @Test
    void refusalsNameTheFieldAndWriteNothing() {
        refuse(Status.ERROR_ARGUMENT, "kv_len", call -> call.kvLen(ints(7, 40)));
        refuse(Status.ERROR_ARGUMENT, "q_nope", call -> call.qNope(null));
        refuse(Status.ERROR_DTYPE, "kpe", call -> call.kpe(Tensor.allocate(DType.I32, 3, 2, 64)));
        refuse(Status.ERROR_UNSUPPORTED, "profile",
                call -> call.profile(Tensor.allocate(DType.U8, 4096), 16));
    }

    private static void refuse(Status status, String name, UnaryOperator<MlaDecode> change) {
        Tensor o = rows(512, new float[] {-1, -1}, 2, 1);
        MlaDecode call = change.apply(call(o, null));
        FastnormException refused = assertThrows(FastnormException.class, () -> call.run(context),
                name);
        assertEquals(status, refused.status(), refused.getMessage());
        assertTrue(refused.getMessage().contains(name), refused.getMessage());
        assertEquals(-1, o.floats().get(0));
    }

    /** What one thread block with one warpgroup leaves: a span of scores within one of work. */
    private static ByteBuffer profile() {
        ByteBuffer b = ByteBuffer.allocate(64 + 64 + 4 * 8).order(ByteOrder.nativeOrder());
        b.putLong(0x464f52504d524f4eL).putInt(1).putInt(1).putInt(1).putInt(4).position(64);
        b.putInt(17).putInt(1).putInt(4).putInt(0).putLong(1L << 32).putLong(5000)
                .putLong((1L << 32) + 2000).putLong(6000).position(128);
        long[][] events = {{0, 0, 0, 7}, {500, 3, 0, 7}, {1500, 3, 1, 7}, {2000, 0, 1, 7}};
        for (long[] e : events) {
            b.putLong(e[0] | (e[1] | e[2] << 8 | e[3] << 10) << 32);
        }
        return b.flip();
    }

    @Test
    void profiles(@TempDir Path folder) throws Exception {
        List<Profile.Event> events = Profile.decode(profile());
        assertEquals(List.of(
                new Profile.Event(0, 0, 0, 17, 0, 0, Profile.Kind.BEGIN, 7),
                new Profile.Event(250, 500, 0, 17, 0, 3, Profile.Kind.BEGIN, 7),
                new Profile.Event(750, 1500, 0, 17, 0, 3, Profile.Kind.END, 7),
                new Profile.Event(1000, 2000, 0, 17, 0, 0, Profile.Kind.END, 7)), events);
        assertEquals("work", events.get(0).name());
        assertEquals("qk", events.get(1).name());

        Path path = folder.resolve("trace.json");
        Profile.writeTrace(profile(), path);
        assertTrue(Files.readString(path).contains("\"traceEvents\""));
        Path nowhere = folder.resolve("none").resolve("trace.json");
        assertEquals(Status.ERROR_ARGUMENT,
                assertThrows(FastnormException.class, () -> Profile.writeTrace(profile(), nowhere))
                .status());
        Path other = folder.resolve("other.json");
        for (int length : new int[] {0, 7, 159}) {
            ByteBuffer bad = profile().limit(length);
            assertThrows(FastnormException.class, () -> Profile.decode(bad));
            assertThrows(FastnormException.class, () -> Profile.writeTrace(bad, other));
        }
        assertFalse(Files.exists(other));
    }
}
