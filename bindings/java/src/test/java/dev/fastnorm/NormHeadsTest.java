package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Norm, rope and a paged cache by hand, for heads of one buffer, and what is refused. */
class NormHeadsTest {
    private static final long[] PAGES = {2, 1, 1, 2};

    // Two tokens of a query, a key and a value head. The second token has no slot: it is padding.
    private static final float[] QKV = {7, -7, 3, 4, 5, -6, 1, 1, 2, 2, 3, 3};

    private static Context context;

    private final Tensor buffer = Tensor.copyOf(QKV, 2, 3, 2);

    @BeforeAll
    static void open() {
        context = Context.cpu();
    }

    @AfterAll
    static void close() {
        context.close();
    }

    private static ByteBuffer memory(int bytes) {
        return ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
    }

    private Tensor head(int number) {
        return buffer.view(2L * number, new long[] {2, 1, 2}, new long[] {6, 2, 1});
    }

    private NormHeadsPart query() {
        return NormHeadsPart.of(head(0)).rms(0).weight(Tensor.copyOf(new float[] {2, 3}, 2));
    }

    /** Row 1 of the tables is a quarter of a turn. */
    private NormHeads call(NormHeadsPart... parts) {
        return NormHeads.of(parts).rope(2, Tensor.copyOf(new float[] {1, 0}, 2, 1),
                Tensor.copyOf(new float[] {0, 1}, 2, 1))
                .positions(Tensor.of(memory(8).asIntBuffer().put(0, new int[] {1, 0}), 2))
                .slots(Tensor.of(memory(16).asLongBuffer().put(0, new long[] {1, -1}), 2));
    }

    @Test
    void layer() {
        Tensor keys = Tensor.copyOf(new float[] {9, 9, 9, 9}, PAGES);
        ByteBuffer values = memory(4);
        NormHeads call = call(query().rope().y(head(0)),
                NormHeadsPart.of(head(1)).rope().cache(keys),
                NormHeadsPart.of(head(2)).cacheScheme(QuantScheme.PER_TENSOR)
                        .cacheScale(Tensor.copyOf(new float[] {0.5f}, 1))
                        .cache(Tensor.of(values, DType.I8, PAGES)));
        call.prepare(context);
        assertEquals(1, call.query(context).launches());
        assertArrayEquals(QKV, Data.floats(buffer));
        call.run(context);
        float[] wanted = QKV.clone();
        wanted[0] = 3; // of 2, -3
        wanted[1] = 2;
        assertArrayEquals(wanted, Data.floats(buffer));
        assertArrayEquals(new float[] {9, 9, -4, 3}, Data.floats(keys));
        assertEquals(0 | 10 << 16 | (-12 & 0xff) << 24, values.getInt(0));
    }

    /** A call sees what its parts have become. */
    @Test
    void partsMayChange() {
        Tensor y = Tensor.allocate(DType.F32, 2, 1, 2);
        NormHeadsPart part = NormHeadsPart.of(head(0)).y(y);
        NormHeads call = NormHeads.of(part);
        call.run(context);
        assertArrayEquals(new float[] {7, -7, 1, 1}, Data.floats(y));
        part.rms(0);
        call.run(context);
        assertArrayEquals(new float[] {1, -1, 1, 1}, Data.floats(y));
    }

    /** The scales of the two heads are 1 and 2, by which their weights are multiplied. */
    @Test
    void headWeights() {
        Tensor scale = Tensor.allocate(DType.F32, 1, 2);
        Tensor scaled = Tensor.allocate(DType.F32, 1, 2);
        NormHeads.of(NormHeadsPart
                .of(Tensor.copyOf(new float[] {127, -64, 0, 1, 0, 0, -254, 2}, 1, 2, 4))
                .quantScheme(QuantScheme.PER_ROW).quantized(Tensor.allocate(DType.I8, 1, 2, 4))
                .scale(scale).headWeights(Tensor.copyOf(new float[] {3, -5}, 1, 2))
                .headWeightsOut(scaled).headWeightsFactor(0.5f)).run(context);
        assertArrayEquals(new float[] {1, 2}, Data.floats(scale));
        assertArrayEquals(new float[] {1.5f, -5}, Data.floats(scaled));
    }

    /** Codes of three columns, and the fourth as it is. The first token goes to the second slot. */
    @Test
    void cacheTail() {
        ByteBuffer codes = memory(6);
        Tensor tail = Tensor.allocate(DType.F32, 1, 2, 1, 1);
        NormHeads.of(NormHeadsPart
                .of(Tensor.copyOf(new float[] {1, -2, 0.5f, 7.125f, 3, 0, 0, -9}, 2, 1, 4))
                .cache(Tensor.of(codes, DType.I8, 1, 2, 1, 3)).cacheTail(tail)
                .cacheScheme(QuantScheme.PER_TENSOR)
                .cacheScale(Tensor.copyOf(new float[] {0.5f}, 1)))
                .slots(Tensor.of(memory(8).asIntBuffer().put(0, new int[] {1, 0}), 2)).run(context);
        byte[] found = new byte[6];
        codes.get(0, found);
        assertArrayEquals(new byte[] {6, 0, 0, 2, -4, 1}, found);
        assertArrayEquals(new float[] {-9, 7.125f}, Data.floats(tail));
    }

    private void refused(Status status, String text, NormHeads call) {
        FastnormException error = assertThrows(FastnormException.class, () -> call.run(context));
        assertEquals(status, error.status(), error.getMessage());
        assertTrue(error.getMessage().contains(text), error.getMessage());
        assertArrayEquals(QKV, Data.floats(buffer));
    }

    @Test
    void whatTheLibraryRefuses() {
        NormHeadsPart copied = NormHeadsPart.of(head(1)).y(head(1));
        refused(Status.ERROR_ARGUMENT,
                "parts[0].y, quant.quantized, cache, sumsq, mean and rstd are NULL; "
                        + "required: an output",
                NormHeads.of(NormHeadsPart.of(head(0))));
        refused(Status.ERROR_ARGUMENT, "parts[1].eps is -1; required: finite and >= 0",
                NormHeads.of(copied, NormHeadsPart.of(head(0)).rms(-1).y(head(0))));
        refused(Status.ERROR_SHAPE, "mrope_1 is 7 and positions has 1 row",
                call(query().rope().y(head(0))).slots(null).mrope(9, 7).mrope(0, 7));
        NormHeads.of().run(context);
        NormHeadsPart[] nine = new NormHeadsPart[9];
        Arrays.fill(nine, copied);
        refused(Status.ERROR_ARGUMENT, "count is 9; required: 0 to 8", NormHeads.of(nine));
    }

    @Test
    void whatTheBindingRefuses() {
        assertThrows(NullPointerException.class, () -> NormHeads.of((NormHeadsPart) null));
        assertThrows(IllegalArgumentException.class, () -> NormHeads.of().mrope(1, 2, 3, 4, 5));
        ByteBuffer fixed = memory(16).asReadOnlyBuffer().order(ByteOrder.nativeOrder());
        Tensor scales = Tensor.of(fixed, DType.F32, 2, 1, 1, 1);
        NormHeads call = call(NormHeadsPart.of(head(1)).rope()
                .cache(Tensor.allocate(DType.I8, PAGES)).cacheScale(scales)
                .cacheScheme(QuantScheme.PER_BLOCK).cacheBlockSize(64));
        IllegalArgumentException error =
                assertThrows(IllegalArgumentException.class, () -> call.run(context));
        assertEquals("parts[0]: " + Description.readOnly("cache_quant.scale"), error.getMessage());
    }
}
