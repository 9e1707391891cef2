package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Ranks on communicators of a library that pretends to be NCCL. */
class NcclTest {
    private static final int ROWS = 6;
    private static final int COLUMNS = 32;

    private final List<AutoCloseable> open = new ArrayList<>();
    private Context context;

    @BeforeEach
    void begin() throws Exception {
        String fake = System.getProperty("fastnorm.test.nccl");
        assumeTrue(fake != null, "fastnorm.test.nccl names no library that pretends to be NCCL");
        FakeNccl.load(fake);
        Nccl.useFunctions(FakeNccl.functions());
        context = Context.cpu();
        open.add(context);
    }

    @AfterEach
    void end() throws Exception {
        for (int i = open.size() - 1; i >= 0; i--) {
            open.get(i).close();
        }
    }

    /** A rank's rows: whole numbers, so that sums are exact in any order. */
    private static float[] part(int rank) {
        float[] values = new float[ROWS * COLUMNS];
        for (int i = 0; i < values.length; i++) {
            values[i] = (i * 7 + rank * 13) % 9 - 4 + rank;
        }
        return values;
    }

    private static Tensor sum(int ranks) {
        float[] sum = new float[ROWS * COLUMNS];
        for (int rank = 0; rank < ranks; rank++) {
            float[] part = part(rank);
            for (int i = 0; i < sum.length; i++) {
                sum[i] += part[i];
            }
        }
        return rows(sum);
    }

    private static Tensor rows(float[] values) {
        return Tensor.copyOf(values, values.length / COLUMNS, COLUMNS);
    }

    private static Tensor rows(int rows) {
        return Tensor.allocate(DType.F32, rows, COLUMNS);
    }

    private long[] comms(int ranks) {
        long[] comms = FakeNccl.create(ranks);
        for (long comm : comms) {
            open.add(() -> FakeNccl.destroy(comm));
        }
        return comms;
    }

    private interface OfRank {
        void run(int rank) throws Exception;
    }

    /** Runs it for all ranks, each on a thread. */
    private static void onAll(int ranks, OfRank run) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(ranks);
        List<Future<?>> futures = new ArrayList<>();
        for (int i = 0; i < ranks; i++) {
            int rank = i;
            futures.add(threads.submit(() -> {
                run.run(rank);
                return null;
            }));
        }
        threads.shutdown();
        for (Future<?> future : futures) {
            try {
                future.get(60, TimeUnit.SECONDS);
            } catch (ExecutionException e) {
                throw new AssertionError(e.getCause());
            }
        }
    }

    private static Nccl.Builder builder() {
        return Nccl.builder(DType.F32, COLUMNS);
    }

    private List<Nccl> group(long[] comms, Nccl.Builder builder, boolean together)
            throws Exception {
        Nccl[] made = new Nccl[comms.length];
        if (together) {
            NcclRank[] ranks = new NcclRank[comms.length];
            for (int i = 0; i < ranks.length; i++) {
                ranks[i] = new NcclRank(context, comms[i], 0);
            }
            builder.createAll(ranks).toArray(made);
        } else {
            onAll(comms.length, rank -> made[rank] = builder.create(context, comms[rank], 0));
        }
        for (Nccl nccl : made) {
            assertEquals(context, nccl.context());
            open.add(nccl);
        }
        return List.of(made);
    }

    /** Calls by peers, by NCCL, and from one thread give equal bits. */
    @ParameterizedTest
    @CsvSource({"peers,2,0", "limited,3,1", "nccl,3,1", "together,2,1"})
    void allreduceIsASumAndOneNorm(String way, int ranks, int allReduces) throws Exception {
        Tensor weight = Tensor.copyOf(Arrays.copyOf(part(7), COLUMNS), COLUMNS);
        Nccl.Builder builder = builder();
        boolean together = way.equals("together");
        switch (way) {
            case "peers" -> builder.fixedOrder().rings(2).algorithm(PeerAlgorithm.TWO_SHOT)
                    .oneShotBytes(64).waitAtMost(Duration.ofSeconds(20));
            case "limited" -> builder.peerBytes(64);
            default -> builder.noPeers();
        }
        long[] comms = comms(ranks);
        List<Nccl> handles = group(comms, builder, together);
        Tensor y = rows(ROWS);
        Tensor h = rows(part(5));
        Tensor codes = Tensor.allocate(DType.F8_E4M3FN, ROWS, COLUMNS);
        Tensor scale = Tensor.allocate(DType.F32, ROWS, 1);
        Norm.rms(1e-3).weightOffset(1).x(sum(ranks)).residualInPlace(h).weight(weight).y(y)
                .quantScheme(QuantScheme.PER_ROW).quantized(codes).scale(scale).run(context);
        PeerAllreduceNorm[] calls = new PeerAllreduceNorm[ranks];
        List<Tensor[]> outputs = new ArrayList<>();
        for (int rank = 0; rank < ranks; rank++) {
            Tensor[] own = {rows(ROWS), rows(part(5)),
                Tensor.allocate(DType.F8_E4M3FN, ROWS, COLUMNS),
                Tensor.allocate(DType.F32, ROWS, 1)};
            outputs.add(own);
            calls[rank] = handles.get(rank).allreduce(Norm.rms(1e-3).weightOffset(1)
                    .x(rows(part(rank))).residualInPlace(own[1]).weight(weight).y(own[0])
                    .quantScheme(QuantScheme.PER_ROW).quantized(own[2]).scale(own[3]));
            assertNull(calls[rank].peer());
            assertEquals(handles.get(rank), calls[rank].nccl());
            assertTrue(calls[rank].query(context).workspaceBytes() >= 4L * ROWS * COLUMNS);
            calls[rank].prepare(context);
        }
        if (together) {
            Nccl.allreduceNormAll(calls);
        } else {
            onAll(ranks, rank -> calls[rank].run());
        }
        for (int rank = 0; rank < ranks; rank++) {
            Tensor[] own = outputs.get(rank);
            assertArrayEquals(Data.floats(y), Data.floats(own[0]));
            assertArrayEquals(Data.floats(h), Data.floats(own[1]));
            assertEquals(codes.buffer(), own[2].buffer());
            assertArrayEquals(Data.floats(scale), Data.floats(own[3]));
            assertEquals(allReduces, FakeNccl.calls(comms[rank], FakeNccl.ALL_REDUCE));
        }
    }

    @ParameterizedTest
    @CsvSource({"true,false", "false,false", "true,true", "false,true"})
    void sequenceParallel(boolean gather, boolean together) throws Exception {
        int ranks = 2;
        int tokens = ROWS / ranks;
        Tensor y = rows(ROWS);
        Tensor h = rows(ROWS);
        Norm.layer(1e-3).x(sum(ranks)).residual(rows(part(9))).residualOut(h).y(y).run(context);
        long[] comms = comms(ranks);
        List<Nccl> handles = group(comms, builder(), together);
        NcclSequenceNorm[] calls = new NcclSequenceNorm[ranks];
        Tensor[] own = new Tensor[ranks];
        Tensor[] sums = new Tensor[ranks];
        int size = tokens * COLUMNS;
        for (int rank = 0; rank < ranks; rank++) {
            own[rank] = rows(ROWS);
            sums[rank] = rows(tokens);
            float[] residual = Arrays.copyOfRange(part(9), rank * size, (rank + 1) * size);
            calls[rank] = handles.get(rank).sequenceNorm(Norm.layer(1e-3).x(rows(part(rank)))
                    .residual(rows(residual)).residualOut(sums[rank]).y(own[rank])).gather(gather);
            assertEquals(handles.get(rank), calls[rank].nccl());
            assertTrue(calls[rank].query(context).workspaceBytes() >= 4L * size);
            calls[rank].prepare(context);
        }
        if (together) {
            Nccl.sequenceNormAll(calls);
        } else {
            onAll(ranks, rank -> calls[rank].run());
        }
        for (int rank = 0; rank < ranks; rank++) {
            float[] wanted = Data.floats(y);
            for (int i = 0; i < wanted.length; i++) {
                wanted[i] = gather || i / size == rank ? wanted[i] : 0;
            }
            assertArrayEquals(wanted, Data.floats(own[rank]));
            assertArrayEquals(Arrays.copyOfRange(Data.floats(h), rank * size, (rank + 1) * size),
                    Data.floats(sums[rank]));
            assertEquals(1, FakeNccl.calls(comms[rank], FakeNccl.REDUCE_SCATTER));
        }
    }

    /** Streams and workspaces of the caller's. */
    @Test
    void workspacesOfTheCaller() throws Exception {
        List<Nccl> handles = group(comms(2), builder().noPeers(), true);
        ByteBuffer memory = ByteBuffer.allocateDirect(4096).alignedSlice(256);
        long address = Raw.fnj_buffer_address(memory);
        long[] spaces = {address, address + 1024};
        Tensor[] y = {rows(ROWS), rows(ROWS)};
        PeerAllreduceNorm[] calls = {
            handles.get(0).allreduce(Norm.layer(0).x(rows(part(0))).y(y[0])),
            handles.get(1).allreduce(Norm.layer(0).x(rows(part(1))).y(y[1]))};
        Nccl.allreduceNormAll(new long[2], spaces, 1024, calls);
        assertArrayEquals(Data.floats(y[0]), Data.floats(y[1]));
        refused(Status.ERROR_ARGUMENT, "args[0]: workspace_bytes is 256; required: at least 768",
                () -> Nccl.allreduceNormAll(new long[2], spaces, 256, calls));
        NcclSequenceNorm[] parts = {
            handles.get(0).sequenceNorm(Norm.rms(0).x(rows(part(0))).y(y[0])).gather(true),
            handles.get(1).sequenceNorm(Norm.rms(0).x(rows(part(1))).y(y[1])).gather(true)};
        Nccl.sequenceNormAll(new long[2], spaces, 1024, parts);
        assertArrayEquals(Data.floats(y[0]), Data.floats(y[1]));
        assertEquals("streams has 1 entries; required: 2, one for each call",
                assertThrows(IllegalArgumentException.class,
                () -> Nccl.allreduceNormAll(new long[1], spaces, 1024, calls)).getMessage());
        java.lang.ref.Reference.reachabilityFence(memory);
    }

    @Test
    void peerOfAHandle() throws Exception {
        List<Nccl> handles = group(comms(2), builder(), false);
        onAll(2, rank -> {
            Tensor x = rows(part(rank));
            PeerAllreduceNorm.of(handles.get(rank).peer(), Norm.rms(0).x(x).y(x)).run();
        });
        Peer peer = handles.get(0).peer();
        assertEquals(new PeerState(PeerFailure.NONE, -1, 1, true), peer.state());
        assertEquals(-1, peer.rank());
        assertEquals("Peer[of an Nccl]", peer.toString());
        handles.get(0).close();
        peer.reset(); // it keeps the handle
        peer.close();
        peer.close();
        assertThrows(IllegalStateException.class, peer::reset);
        assertThrows(IllegalStateException.class, () -> handles.get(0).peer());
        assertNull(group(comms(1), builder(), false).get(0).peer());
    }

    private static void refused(Status status, String text, Runnable run) {
        FastnormException thrown = assertThrows(FastnormException.class, run::run);
        assertEquals(status, thrown.status());
        assertTrue(thrown.getMessage().contains(text), thrown.getMessage());
        assertEquals(0, thrown.deviceError());
    }

    private void optionRefused(Status status, String text, Nccl.Builder builder) {
        refused(status, text, () -> builder.createAll(new NcclRank(context, comms(1)[0], 0)));
    }

    @Test
    void optionsOutOfRange() throws Exception {
        assertEquals(22809, Nccl.version());
        optionRefused(Status.ERROR_ARGUMENT, "options.max_columns is 0; required: 1 to 65536",
                Nccl.builder(DType.F32, 0));
        optionRefused(Status.ERROR_DTYPE, "options.dtype is 0x", Nccl.builder(DType.I32, 8));
        optionRefused(Status.ERROR_ARGUMENT, "options.peer_bytes is -1; required: >= 0",
                builder().peerBytes(-1));
        optionRefused(Status.ERROR_UNSUPPORTED, "FASTNORM_NCCL_FIXED_ORDER",
                builder().noPeers().fixedOrder());
        long[] comms = comms(2);
        refused(Status.ERROR_ARGUMENT, "options.rings is 257", () -> builder().rings(257)
                .createAll(new NcclRank(context, comms[0], 0), new NcclRank(context, comms[1], 0)));
        refused(Status.ERROR_ARGUMENT, "rank[1]: comm is NULL; required: an ncclComm_t",
                () -> builder().createAll(new NcclRank(context, comms[0], 0),
                new NcclRank(context, 0, 0)));
        refused(Status.ERROR_ARGUMENT, "context is NULL",
                () -> builder().create(null, comms[0], 0));
        refused(Status.ERROR_ARGUMENT, "count is 0; required: >= 1", () -> builder().createAll());
        assertThrows(NullPointerException.class, () -> Nccl.builder(null, 4));
        NcclFunctions f = FakeNccl.functions();
        refused(Status.ERROR_ARGUMENT, "functions.all_gather is NULL",
                () -> Nccl.useFunctions(new NcclFunctions(f.getVersion(), f.commCount(),
                f.commUserRank(), f.commCuDevice(), f.allReduce(), f.reduceScatter(), 0,
                f.groupStart(), f.groupEnd(), f.getErrorString())));
        Nccl.useFunctions(null); // NCCL itself does not serve the memory of a CPU
        refused(Status.ERROR_UNSUPPORTED, "NCCL is for CUDA (2)",
                () -> builder().create(context, comms[0], 0));
    }

    @Test
    void callsRefused() throws Exception {
        long[] comms = comms(2);
        List<Nccl> handles = group(comms, builder().noPeers(), true);
        Nccl first = handles.get(0);
        Tensor x = rows(part(0));
        Tensor y = rows(ROWS);
        refused(Status.ERROR_UNSUPPORTED, "sum_rounding is 1",
                () -> first.allreduce(Norm.rms(0).x(x).y(y)).sumRounding(PeerSumRounding.EXACT)
                        .run());
        refused(Status.ERROR_ARGUMENT, "norm.eps is -1",
                () -> first.allreduce(Norm.rms(-1).x(x).y(y)).run());
        refused(Status.ERROR_ARGUMENT, "norm.x is NULL",
                () -> first.allreduce(Norm.layer(0).y(y)).run());
        refused(Status.ERROR_ARGUMENT, "workspace_bytes is 1; required: at least",
                () -> first.allreduce(Norm.rms(0).x(x).y(y)).run(context, 0, 256, 1));
        refused(Status.ERROR_SHAPE, "a multiple of the 2 ranks",
                () -> first.sequenceNorm(Norm.rms(0).x(rows(5)).y(rows(5))).run());
        PeerAllreduceNorm good = first.allreduce(Norm.rms(0).x(x).y(y));
        refused(Status.ERROR_ARGUMENT, "args[1]: norm.eps is -1", () -> Nccl.allreduceNormAll(
                good, handles.get(1).allreduce(Norm.rms(-1).x(x).y(rows(ROWS)))));
        refused(Status.ERROR_ARGUMENT, "count is 0", () -> Nccl.allreduceNormAll());
        refused(Status.ERROR_SHAPE, "args[0]: x has", () -> Nccl.sequenceNormAll(
                first.sequenceNorm(Norm.rms(0).x(rows(5)).y(rows(5))),
                handles.get(1).sequenceNorm(Norm.rms(0).x(rows(5)).y(rows(5)))));
        try (Context other = Context.cpu();
                Peer peer = Peer.builder(context, 0, 2, DType.F32, 4).create()) {
            assertThrows(IllegalArgumentException.class, () -> good.run(other));
            assertThrows(IllegalArgumentException.class,
                    () -> Nccl.allreduceNormAll(good, PeerAllreduceNorm.of(peer, Norm.rms(0))));
        }
        Tensor readOnly = Tensor.of(ByteBuffer.allocateDirect(4 * ROWS).asReadOnlyBuffer()
                .order(ByteOrder.nativeOrder()), DType.F32, ROWS, 1);
        assertTrue(assertThrows(IllegalArgumentException.class, () -> Nccl.allreduceNormAll(good,
                handles.get(1).allreduce(Norm.rms(0).x(x).quantScheme(QuantScheme.PER_ROW)
                .quantized(Tensor.allocate(DType.F8_E4M3FN, ROWS, COLUMNS)).scale(readOnly))))
                .getMessage().startsWith("args[1]: quant.scale is written"));
        assertEquals(0, FakeNccl.calls(comms[0], FakeNccl.ALL_REDUCE));
        FakeNccl.fail(comms[0], FakeNccl.ALL_REDUCE); // it never meets the other rank
        refused(Status.ERROR_DEVICE, "ncclAllReduce: invalid argument (4)", good::run);
    }

    /** A handle keeps its context until it is closed itself. */
    @Test
    void handlesAndContextsClose() throws Exception {
        Context own = Context.cpu();
        Nccl nccl = builder().create(own, comms(1)[0], 0);
        Tensor x = rows(part(0));
        PeerAllreduceNorm call = nccl.allreduce(Norm.rms(0).x(x).y(x));
        NcclSequenceNorm sequence = nccl.sequenceNorm(Norm.rms(0).x(x).y(x));
        call.run();
        assertEquals("Nccl[" + own + "]", nccl.toString());
        own.close();
        assertThrows(IllegalStateException.class, () -> builder().create(own, 1, 0));
        assertEquals("context is closed",
                assertThrows(IllegalStateException.class, call::run).getMessage());
        Nccl.allreduceNormAll(new long[1], new long[1], 0, builder()
                .create(context, comms(1)[0], 0).allreduce(Norm.rms(0).x(x).y(x)));
        nccl.close();
        nccl.close();
        assertTrue(nccl.isClosed());
        assertEquals("Nccl[" + own + ", closed]", nccl.toString());
        assertThrows(IllegalStateException.class, () -> nccl.allreduce(Norm.rms(0)));
        assertThrows(IllegalStateException.class, () -> nccl.sequenceNorm(Norm.rms(0)));
        assertThrows(IllegalStateException.class, () -> Nccl.sequenceNormAll(sequence));
        Nccl again = builder().create(context, comms(1)[0], 0);
        PeerAllreduceNorm late = again.allreduce(Norm.rms(0).x(x).y(x));
        again.close();
        assertEquals("NCCL handle is closed",
                assertThrows(IllegalStateException.class, late::run).getMessage());
    }

    // --- the library ---

    private static String[] load(String... options) throws Exception {
        String[] lines = Child.java(NcclProgram.class, List.of(options)).ok().split("\n");
        assertEquals(3, lines.length, String.join("\n", lines));
        assertEquals(lines[1], lines[2]); // the same answer each time
        return lines;
    }

    private static String property(Path path) {
        return "-D" + NcclLibrary.PROPERTY + "=" + path;
    }

    @Test
    void libraryIsLookedFor() throws Exception {
        String nowhere = "-Djava.library.path=/nowhere";
        Path real = Path.of(System.getProperty(NcclLibrary.PROPERTY));
        assertEquals("loaded", load(nowhere, property(real))[1]);
        assertEquals("loaded", load(nowhere, property(real.resolve(NcclLibrary.SONAME)))[1]);
        assertEquals("loaded", load("-Djava.library.path=/nowhere::" + real)[1]);
        String text = load(property(Path.of("/nowhere")))[1];
        assertEquals("the system property fastnorm.nccl.library is /nowhere; required: the file "
                + NcclLibrary.SONAME + " or a folder that holds it", text);
    }

    @ParameterizedTest
    @ValueSource(strings = {"missing", "text", "other", "part"})
    void librariesThatDoNotFit(String kind) throws Exception {
        Path folder = Child.folder("nccl");
        Path file = folder.resolve(NcclLibrary.SONAME);
        try {
            Path stub = Child.source("../../tests/nccl/library_stub.c");
            String[] options = {"-Djava.library.path=/nowhere", property(folder)};
            String wanted;
            switch (kind) {
                case "missing" -> {
                    options = new String[] {"-Djava.library.path=/nowhere"};
                    wanted = NcclLibrary.SONAME + " cannot be loaded: ";
                }
                case "text" -> {
                    Files.writeString(file, "not a library\n");
                    wanted = file + " cannot be loaded: ";
                }
                case "other" -> {
                    FakeNccl.compile(stub, file);
                    wanted = file + " uses another copy of libfastnorm than this program";
                }
                default -> {
                    FakeNccl.compile(stub, file, "-DWITHOUT_LAST_ERROR");
                    wanted = file + " has no fastnorm_nccl_last_error; required: that of";
                }
            }
            String[] lines = load(options);
            assertEquals("libfastnorm " + Fastnorm.versionString(), lines[0]);
            assertTrue(lines[1].startsWith(wanted), lines[1]);
            assertTrue(lines[1].endsWith("it is looked for in the system property "
                    + "fastnorm.nccl.library (a file or a folder), in java.library.path, and "
                    + "beside libfastnorm"), lines[1]);
            assertEquals(kind.equals("missing") || kind.equals("text"),
                    lines[1].contains("-Dnccl=true"));
        } finally {
            Files.deleteIfExists(file);
            Files.delete(folder);
        }
    }
}
