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
import java.util.Random;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Attention over paged latents against the formula in double precision; profiles. */
class MlaDecodeTest {
    private static final int LATENT = 512;
    private static final int ROTARY = 64;
    private static final int WIDE = LATENT + ROTARY;
    private static final int PAGE = 4;
    private static final int HEADS = 2;
    private static final double SCALE = 0.0009765625;

    private static Context context;

    @BeforeAll
    static void open() {
        context = Context.cpu();
    }

    @AfterAll
    static void close() {
        context.close();
    }

    /**
     * Requests of some lengths and new tokens; their pages lie backwards, and the rest of the cache
     * is NaN.
     */
    private static final class Batch {
        final int[] lengths;
        final int[] fresh; // [B + 1], where new tokens begin
        final int[] starts; // [B + 1], where pages begin
        final int[] pages;
        final double[] query; // [N, HEADS, WIDE]
        final double[] cache; // [pages, PAGE, WIDE]
        final DType dtype;
        final Tensor o;
        final Tensor lse;

        Batch(DType dtype, int[] lengths, int[] newTokens) {
            this.dtype = dtype;
            this.lengths = lengths;
            fresh = new int[lengths.length + 1];
            starts = new int[lengths.length + 1];
            for (int b = 0; b < lengths.length; b++) {
                fresh[b + 1] = fresh[b] + newTokens[b];
                starts[b + 1] = starts[b] + (lengths[b] + PAGE - 1) / PAGE;
            }
            pages = new int[starts[lengths.length]];
            for (int p = 0; p < pages.length; p++) {
                pages[p] = pages.length - 1 - p;
            }
            Random random = new Random(5);
            query = Data.integers(random, tokens() * HEADS * WIDE, 8);
            double[] values = Data.integers(random, pages.length * PAGE * WIDE, 8);
            cache = new double[values.length];
            Arrays.fill(cache, Double.NaN);
            for (int b = 0; b < lengths.length; b++) {
                for (int j = 0; j < lengths[b]; j++) {
                    System.arraycopy(values, row(b, j), cache, row(b, j), WIDE);
                }
            }
            o = Tensor.allocate(dtype, tokens(), HEADS, LATENT);
            lse = Tensor.allocate(DType.F32, tokens(), HEADS);
            for (int i = 0; i < tokens() * HEADS * LATENT; i++) {
                Data.put(o, i, Double.NaN);
            }
        }

        int tokens() {
            return fresh[lengths.length];
        }

        /** Where cached token j of request b begins. */
        int row(int b, int j) {
            return (pages[starts[b] + j / PAGE] * PAGE + j % PAGE) * WIDE;
        }

        MlaDecode call() {
            Tensor queries = Data.tensor(dtype, query, tokens(), HEADS, WIDE);
            Tensor latents = Data.tensor(dtype, cache, pages.length, PAGE, WIDE);
            return MlaDecode.of(SCALE).causal(true)
                    .qNope(part(queries, 0, LATENT)).qPe(part(queries, LATENT, ROTARY))
                    .ckv(part(latents, 0, LATENT)).kpe(part(latents, LATENT, ROTARY))
                    .kvLen(ints(lengths)).pageTable(ints(pages)).kvIndptr(ints(starts))
                    .qoIndptr(ints(fresh), 8)
                    .o(o).lse(lse);
        }

        /** Columns of a fused tensor. */
        private static Tensor part(Tensor fused, long from, long width) {
            long[] shape = fused.shape();
            return fused.view(from, new long[] {shape[0], shape[1], width},
                    new long[] {shape[1] * WIDE, WIDE, 1});
        }

        void compare(double bound, double factor) {
            int empty = 0;
            for (int b = 0; b < lengths.length; b++) {
                for (int token = fresh[b]; token < fresh[b + 1]; token++) {
                    int last = Math.max(0, lengths[b] - (fresh[b + 1] - token) + 1);
                    for (int h = 0; h < HEADS; h++) {
                        empty += last == 0 ? 1 : 0;
                        compare(b, token * HEADS + h, last, bound, factor);
                    }
                }
            }
            assertEquals(HEADS, empty);
        }

        private void compare(int b, int r, int last, double bound, double factor) {
            double[] weights = new double[last];
            double sum = 0;
            for (int j = 0; j < last; j++) {
                double dot = 0;
                for (int i = 0; i < WIDE; i++) {
                    dot += query[r * WIDE + i] * cache[row(b, j) + i];
                }
                weights[j] = Math.exp(SCALE * dot);
                sum += weights[j];
            }
            for (int i = 0; i < LATENT; i++) {
                double mixed = 0;
                for (int j = 0; j < last; j++) {
                    mixed += weights[j] / sum * cache[row(b, j) + i];
                }
                assertEquals(mixed, Data.get(o, r * LATENT + i), bound,
                        "o of row " + r + " at " + i);
            }
            assertEquals(factor * Math.log(sum), Data.get(lse, r), 1e-5, "lse of row " + r);
        }
    }

    private static Tensor ints(int... values) {
        ByteBuffer memory = ByteBuffer.allocateDirect(4 * values.length)
                .order(ByteOrder.nativeOrder());
        memory.asIntBuffer().put(values);
        return Tensor.of(memory.asIntBuffer(), values.length);
    }

    /** The third has more new tokens than cached ones: its first row is empty. */
    private static Batch batch(DType dtype) {
        return new Batch(dtype, new int[] {9, 4, 2, 17, 0}, new int[] {1, 0, 3, 2, 0});
    }

    @Test
    void againstTheFormula() {
        for (DType dtype : new DType[] {DType.F32, DType.BF16, DType.F16}) {
            double bound = dtype == DType.F32 ? 1e-5 : dtype == DType.BF16 ? 0.06 : 0.008;
            Batch batch = batch(dtype);
            MlaDecode call = batch.call();
            call.prepare(context);
            assertEquals(0, call.query(context).profileBytes());
            call.run(context);
            batch.compare(bound, 1);
            call.lseBase(LseBase.BASE_2).run(context);
            batch.compare(bound, 1 / Math.log(2));
        }
    }

    /** One row of a block table for each request, and as many new tokens for each. */
    @Test
    void blockTable() {
        Batch batch = new Batch(DType.F32, new int[] {5, 1}, new int[] {2, 2});
        Tensor table = ints(2, 1, 0, 2147480000).view(0, new long[] {2, 2}, new long[] {2, 1});
        batch.call().kvIndptr(null).qoIndptr(null, 0).pageTable(table).run(context);
        batch.compare(1e-5, 1);
    }

    @Test
    void refusalsNameTheFieldAndWriteNothing() {
        refuse(Status.ERROR_ARGUMENT, "kv_len", call -> call.kvLen(ints(7, 40)));
        refuse(Status.ERROR_ARGUMENT, "split_tokens", call -> call.splitTokens(65));
        refuse(Status.ERROR_ARGUMENT, "total_kv_hint", call -> call.totalKvHint(-1));
        refuse(Status.ERROR_ARGUMENT, "max_s_q", call -> call.qoIndptr(ints(0, 1, 3), 0));
        refuse(Status.ERROR_ARGUMENT, "q_nope", call -> call.qNope(null));
        refuse(Status.ERROR_UNSUPPORTED, "q_pe",
                call -> call.qPe(Tensor.allocate(DType.F32, 3, 2, 32)));
        refuse(Status.ERROR_DTYPE, "kpe", call -> call.kpe(Tensor.allocate(DType.I32, 3, 4, 64)));
        refuse(Status.ERROR_UNSUPPORTED, "profile",
                call -> call.profile(Tensor.allocate(DType.U8, 4096), 16));
    }

    private static void refuse(Status status, String name, UnaryOperator<MlaDecode> change) {
        Batch batch = new Batch(DType.F32, new int[] {6, 3}, new int[] {1, 2});
        MlaDecode call = change.apply(batch.call());
        FastnormException refused = assertThrows(FastnormException.class, () -> call.run(context),
                name);
        assertEquals(status, refused.status(), refused.getMessage());
        assertTrue(refused.getMessage().contains(name), refused.getMessage());
        assertTrue(Double.isNaN(Data.get(batch.o, 0)));
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
