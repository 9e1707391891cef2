package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Ranks as threads: sums and statistics that all have alike, and ranks that do not come. */
class PeerTest {
    private static final int ROWS = 5;
    private static final int COLUMNS = 48;

    private static Context context;

    @BeforeAll
    static void open() {
        context = Context.cpu();
    }

    @AfterAll
    static void close() {
        context.close();
    }

    /** A rank's rows: whole numbers, so that sums are exact in any order. */
    private static float[] part(int rank) {
        float[] values = new float[ROWS * COLUMNS];
        for (int i = 0; i < values.length; i++) {
            values[i] = (i * 7 + rank * 13) % 9 - 4 + rank;
        }
        return values;
    }

    private static float[] sum(int ranks) {
        float[] sum = new float[ROWS * COLUMNS];
        for (int rank = 0; rank < ranks; rank++) {
            float[] part = part(rank);
            for (int i = 0; i < sum.length; i++) {
                sum[i] += part[i];
            }
        }
        return sum;
    }

    private static List<Peer> group(int ranks, UnaryOperator<Peer.Builder> change) {
        List<Peer> peers = new ArrayList<>();
        byte[][] blobs = new byte[ranks][];
        for (int rank = 0; rank < ranks; rank++) {
            peers.add(change.apply(Peer.builder(context, rank, ranks, DType.F32, COLUMNS))
                    .create());
            blobs[rank] = peers.get(rank).export();
            assertEquals(Peer.BLOB_BYTES, blobs[rank].length);
            assertEquals(new PeerState(PeerFailure.NONE, -1, 0, false), peers.get(rank).state());
        }
        peers.forEach(peer -> peer.connect(blobs));
        return peers;
    }

    private interface OfRank {
        void run(Peer peer) throws Exception;
    }

    /** Runs it on all ranks, each on a thread; what they threw, or null. */
    private static List<Throwable> onAll(List<Peer> peers, OfRank run)
            throws InterruptedException {
        ExecutorService threads = Executors.newFixedThreadPool(peers.size());
        List<Future<?>> futures = new ArrayList<>();
        for (Peer peer : peers) {
            futures.add(threads.submit(() -> {
                run.run(peer);
                return null;
            }));
        }
        List<Throwable> thrown = new ArrayList<>();
        for (Future<?> future : futures) {
            try {
                future.get();
                thrown.add(null);
            } catch (ExecutionException e) {
                thrown.add(e.getCause());
            }
        }
        threads.shutdown();
        assertTrue(threads.awaitTermination(30, TimeUnit.SECONDS));
        return thrown;
    }

    private static void assertNothing(List<Throwable> thrown) {
        for (Throwable of : thrown) {
            if (of != null) {
                throw new AssertionError(of);
            }
        }
    }

    private static Tensor rows(float[] values) {
        return Tensor.copyOf(values, ROWS, COLUMNS);
    }

    @Test
    void allreduceIsASumAndOneNorm() throws InterruptedException {
        Tensor weight = Tensor.copyOf(java.util.Arrays.copyOf(part(7), COLUMNS), COLUMNS);
        PeerAlgorithm[] algorithms = PeerAlgorithm.values();
        for (int i = 0; i < 3; i++) {
            int ranks = 2 + i;
            PeerAlgorithm algorithm = algorithms[i];
            PeerSumRounding rounding = i == 1 ? PeerSumRounding.EXACT : PeerSumRounding.ROUNDED;
            List<Peer> peers = group(ranks, builder -> builder.algorithm(algorithm).rings(2)
                    .waitAtMost(Duration.ofSeconds(20)));
            Tensor y = Tensor.allocate(DType.F32, ROWS, COLUMNS);
            Tensor h = rows(part(5));
            Tensor codes = Tensor.allocate(DType.F8_E4M3FN, ROWS, COLUMNS);
            Tensor scale = Tensor.allocate(DType.F32, ROWS, 1);
            Norm.rms(1e-3).weightOffset(1).x(rows(sum(ranks))).residualInPlace(h).weight(weight)
                    .y(y).quantScheme(QuantScheme.PER_ROW).quantized(codes).scale(scale)
                    .run(context);
            assertNothing(onAll(peers, peer -> {
                Tensor own = Tensor.allocate(DType.F32, ROWS, COLUMNS);
                Tensor sum = rows(part(5));
                Tensor rstd = Tensor.allocate(DType.F32, ROWS, 1);
                Tensor ownCodes = Tensor.allocate(DType.F8_E4M3FN, ROWS, COLUMNS);
                Tensor ownScale = Tensor.allocate(DType.F32, ROWS, 1);
                Norm norm = Norm.rms(1e-3).weightOffset(1).pdlWait(true).pdlTrigger(true)
                        .x(rows(part(peer.rank()))).residualInPlace(sum).weight(weight)
                        .y(own).rstd(rstd).quantScheme(QuantScheme.PER_ROW).quantized(ownCodes)
                        .scale(ownScale);
                PeerAllreduceNorm call = PeerAllreduceNorm.of(peer, norm).sumRounding(rounding);
                assertTrue(call.query(context).workspaceBytes() >= 4L * ROWS * COLUMNS);
                call.prepare(context);
                call.run();
                assertArrayEquals(Data.floats(y), Data.floats(own));
                assertArrayEquals(Data.floats(h), Data.floats(sum));
                assertArrayEquals(Data.floats(scale), Data.floats(ownScale));
                assertEquals(codes.buffer(), ownCodes.buffer());
                assertTrue(rstd.floats().get(0) > 0);
            }));
            assertEquals(new PeerState(PeerFailure.NONE, -1, 1, true), peers.get(0).state());
            assertEquals(ranks, peers.get(0).ranks());
            peers.forEach(Peer::close);
        }
    }

    /** Rows of 1 and 7, whose mean square is 25, and of keys that are their negatives. */
    @Test
    void shardedRows() throws InterruptedException {
        List<Peer> peers = group(2, builder -> builder);
        assertNothing(onAll(peers, peer -> {
            float value = peer.rank() == 0 ? 1 : 7;
            Tensor y = Tensor.allocate(DType.F32, 1, 4);
            Tensor z = Tensor.allocate(DType.F32, 1, 2, 2);
            PeerShardedNorm call = PeerShardedNorm.rms(peer, 0).pdlWait(true).y(y).y2(z)
                    .x(Tensor.copyOf(new float[] {value, value, value, value}, 1, 4))
                    .x2(Tensor.copyOf(new float[] {-value, -value, -value, -value}, 1, 2, 2));
            assertTrue(call.query(context).workspaceBytes() > 0);
            call.prepare(context);
            call.run();
            for (int i = 0; i < 4; i++) {
                assertEquals(value / 5, y.floats().get(i), 1e-6);
                assertEquals(-value / 5, z.floats().get(i), 1e-6);
            }
        }));
        peers.forEach(Peer::close);
    }

    private static PeerAllreduceNorm call(Peer peer, int rows) {
        Tensor x = Tensor.allocate(DType.F32, rows, COLUMNS);
        return PeerAllreduceNorm.of(peer, Norm.rms(1).x(x).y(x));
    }

    /** A rank that does not come, or makes another call, is an error; a reset makes all well. */
    @Test
    void ranksThatFail() throws InterruptedException {
        List<Peer> peers = group(2, builder -> builder.waitAtMost(Duration.ofMillis(200)));
        Peer first = peers.get(0);
        FastnormException missing =
                assertThrows(FastnormException.class, () -> call(first, 1).run());
        assertEquals(Status.ERROR_DEVICE, missing.status());
        assertTrue(missing.getMessage().contains("rank 1"), missing.getMessage());
        assertEquals(new PeerState(PeerFailure.MISSING, 1, 0, true), first.state());
        assertThrows(FastnormException.class, () -> call(first, 1).run());
        peers.forEach(Peer::reset);
        List<Throwable> thrown = onAll(peers, peer -> call(peer, 1 + peer.rank()).run());
        assertTrue(thrown.stream().allMatch(FastnormException.class::isInstance), "" + thrown);
        assertTrue(peers.stream().anyMatch(
                peer -> peer.state().failure() == PeerFailure.DISAGREES));
        peers.forEach(Peer::reset);
        assertNothing(onAll(peers, peer -> call(peer, 2).run()));
        peers.forEach(Peer::close);
    }

    @Test
    void buffersOfTheCaller() throws InterruptedException {
        long bytes = Peer.builder(context, 0, 2, DType.F32, 4).rings(1).bufferBytes();
        long room = (bytes + 255) / 256 * 256;
        ByteBuffer memory = ByteBuffer.allocateDirect((int) (2 * room + 256)).alignedSlice(256);
        long address = Raw.fnj_buffer_address(memory);
        List<Peer> peers = new ArrayList<>();
        for (int rank = 0; rank < 2; rank++) {
            peers.add(Peer.builder(context, rank, 2, DType.F32, 4).rings(1)
                    .create(address, address + room));
        }
        assertThrows(FastnormException.class, () -> peers.get(0).export());
        assertNothing(onAll(peers, peer -> {
            float v = peer.rank() + 1;
            Tensor y = Tensor.allocate(DType.F32, 1, 4);
            Tensor x = Tensor.copyOf(new float[] {v, -v, v, -v}, 1, 4);
            PeerAllreduceNorm.of(peer, Norm.rms(0).x(x).y(y)).run();
            assertArrayEquals(new float[] {1, -1, 1, -1}, Data.floats(y));
        }));
        peers.forEach(Peer::close);
        Peer.Builder builder = Peer.builder(context, 0, 2, DType.F32, 4).rings(1);
        refused(Status.ERROR_ARGUMENT, "count is 0", () -> builder.create(new long[0]));
        refused(Status.ERROR_LAYOUT, "buffers[0]",
                () -> builder.create(address + 1, address + room));
        java.lang.ref.Reference.reachabilityFence(memory);
    }

    private static void refused(Status status, String text, Runnable run) {
        FastnormException thrown = assertThrows(FastnormException.class, run::run);
        assertEquals(status, thrown.status());
        assertTrue(thrown.getMessage().contains(text), thrown.getMessage());
    }

    @Test
    void optionsOutOfRange() {
        refused(Status.ERROR_ARGUMENT, "options.ranks is 9",
                () -> Peer.builder(context, 0, Peer.MAX_RANKS + 1, DType.F32, 4).create());
        refused(Status.ERROR_ARGUMENT, "options.rank is 2",
                () -> Peer.builder(context, 2, 2, DType.F32, 4).create());
        refused(Status.ERROR_DTYPE, "options.dtype",
                () -> Peer.builder(context, 0, 2, DType.I32, 4).create());
        refused(Status.ERROR_ARGUMENT, "options.max_columns",
                () -> Peer.builder(context, 0, 2, DType.F32, 0).create());
        refused(Status.ERROR_ARGUMENT, "options.one_shot_bytes",
                () -> Peer.builder(context, 0, 2, DType.F32, 4).oneShotBytes(-1).create());
        refused(Status.ERROR_ARGUMENT, "options.wait_ns is 1;", () -> Peer
                .builder(context, 0, 2, DType.F32, 4).waitAtMost(Duration.ofNanos(1)).create());
        refused(Status.ERROR_ARGUMENT, "options.rings is 257",
                () -> Peer.builder(context, 0, 2, DType.F32, 4).rings(257).bufferBytes());
        assertThrows(NullPointerException.class,
                () -> Peer.builder(null, 0, 2, DType.F32, 4));
        assertThrows(NullPointerException.class, () -> PeerAllreduceNorm.of(null, Norm.rms(0)));
        try (Peer peer = Peer.builder(context, 0, 2, DType.F32, COLUMNS).create()) {
            refused(Status.ERROR_ARGUMENT, "bytes is 0", () -> peer.connect());
            refused(Status.ERROR_ARGUMENT, "blobs[0]",
                    () -> peer.connect(new byte[2][Peer.BLOB_BYTES]));
            refused(Status.ERROR_ARGUMENT, "not connected", () -> call(peer, 1).run());
            assertThrows(NullPointerException.class, () -> PeerAllreduceNorm.of(peer, null));
            Tensor x = Tensor.allocate(DType.F32, 1, COLUMNS);
            Norm norm = Norm.rms(0).x(x).y(x).groupSize(COLUMNS);
            PeerAllreduceNorm call = PeerAllreduceNorm.of(peer, norm);
            refused(Status.ERROR_UNSUPPORTED, "norm.group_size is given", call::run);
            norm.groupSize(0).clamp(-1); // the call sees changes of its norm
            refused(Status.ERROR_ARGUMENT, "norm.quant.clamp is -1", call::run);
            try (Context other = Context.cpu()) {
                refused(Status.ERROR_ARGUMENT, "peer is of the context",
                        () -> call(peer, 1).run(other));
            }
        }
    }

    /** A peer keeps its context until it is closed itself. */
    @Test
    void peersAndContextsClose() {
        Context own = Context.cpu();
        Peer peer = Peer.builder(own, 0, 2, DType.F32, 4).create();
        assertEquals(own, peer.context());
        assertEquals("Peer[0 of 2]", peer.toString());
        own.close();
        assertThrows(IllegalStateException.class,
                () -> Peer.builder(own, 1, 2, DType.F32, 4).create());
        assertFalse(peer.state().connected());
        PeerAllreduceNorm call = call(peer, 1);
        assertEquals(peer, call.peer());
        assertEquals("context is closed",
                assertThrows(IllegalStateException.class, call::run).getMessage());
        peer.close();
        peer.close();
        assertTrue(peer.isClosed());
        assertEquals("Peer[0 of 2, closed]", peer.toString());
        assertEquals("peer is closed",
                assertThrows(IllegalStateException.class, peer::reset).getMessage());
        assertThrows(IllegalStateException.class, () -> call.run(context));
        assertThrows(IllegalStateException.class, () -> PeerShardedNorm.layer(peer, 0));
    }
}
