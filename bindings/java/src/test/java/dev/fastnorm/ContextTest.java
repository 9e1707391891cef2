package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.ref.WeakReference;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Contexts: options, closing, logging; devices, kernels and versions. */
class ContextTest {
    private static Norm ones() {
        Tensor x = Data.rows(new float[] {2, 2, 2, 2}, 1);
        return Norm.rms(0).x(x).y(Tensor.allocate(DType.F32, 1, 4));
    }

    private static void isClosed(org.junit.jupiter.api.function.Executable call) {
        assertEquals("context is closed", assertThrows(IllegalStateException.class, call)
                .getMessage());
    }

    @Test
    void closedContext() {
        Context context = Context.cpu();
        assertFalse(context.isClosed());
        assertEquals("Context[CPU:0]", context.toString());
        ones().run(context);
        context.close();
        context.close();
        assertTrue(context.isClosed());
        assertEquals("Context[CPU:0, closed]", context.toString());
        isClosed(() -> ones().run(context));
        isClosed(() -> ones().run(context, 0, 0, 0));
        isClosed(() -> ones().query(context));
        isClosed(() -> ones().prepare(context));
        isClosed(() -> Norm.many(ones()).run(context));
        assertEquals(Device.cpu(), context.device());
    }

    /** Closes while eight threads are in calls: each call succeeds or finds the context closed. */
    @Test
    void closeDuringCalls() throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(8);
        try {
            for (int round = 0; round < 40; round++) {
                Context context = Context.builder(Device.cpu()).threads(1 + round % 3).open();
                CountDownLatch running = new CountDownLatch(8);
                List<Future<Integer>> results = new ArrayList<>();
                for (int i = 0; i < 8; i++) {
                    results.add(pool.submit(() -> {
                        Tensor x = Tensor.allocate(DType.F32, 64, 256);
                        Norm norm = Norm.rms(1).xInPlace(x);
                        running.countDown();
                        int calls = 0;
                        try {
                            while (true) {
                                norm.run(context);
                                calls++;
                            }
                        } catch (IllegalStateException e) {
                            assertEquals("context is closed", e.getMessage());
                        }
                        return calls;
                    }));
                }
                running.await();
                context.close();
                for (Future<Integer> result : results) {
                    assertTrue(result.get() >= 0);
                }
            }
        } finally {
            pool.shutdownNow();
        }
    }

    /** A close from inside of a call takes effect after it. */
    @Test
    void closeInsideOfACall() {
        AtomicReference<Context> self = new AtomicReference<>();
        List<String> messages = Collections.synchronizedList(new ArrayList<>());
        Context context = Context.builder(Device.cpu()).threads(2).log((level, text) -> {
            messages.add(text);
            if (self.get() != null) {
                self.get().close();
            }
        }).open();
        self.set(context);
        assertFalse(messages.isEmpty());
        Tensor x = Tensor.allocate(DType.F32, 4096, 64);
        Norm.rms(1).xInPlace(x).run(context);
        context.close();
        isClosed(() -> Norm.rms(1).xInPlace(x).run(context));
    }

    /** A context that nobody closes goes with the collector. */
    @Test
    void forgottenContexts() throws Exception {
        AtomicInteger alive = new AtomicInteger();
        WeakReference<LogSink> sink = forget(alive);
        assertEquals(1, alive.get());
        long deadline = System.nanoTime() + 20_000_000_000L;
        while (sink.get() != null && System.nanoTime() < deadline) {
            System.gc();
            Thread.sleep(10);
        }
        // The native context held the sink; it has let go of it.
        assertNull(sink.get());
    }

    private static WeakReference<LogSink> forget(AtomicInteger alive) {
        LogSink sink = (level, text) -> alive.set(1);
        ones().run(Context.builder(Device.cpu()).log(sink).open());
        return new WeakReference<>(sink);
    }

    @Test
    void options() {
        refused("options.num_threads is -1; required: 0 to 1024",
                Context.builder(Device.cpu()).threads(-1));
        refused("options.num_threads is 1025; required: 0 to 1024",
                Context.builder(Device.cpu()).threads(1025));
        refused("options.dry_run_capability is 90; required: 0 but for a dry run of a CUDA device",
                Context.builder(Device.cpu()).dryRun(90));
        refused("device.device_type is 3; required: FASTNORM_DEVICE_CPU (1) or FASTNORM_DEVICE_CUDA (2)",
                Context.builder(new Device(DeviceType.CUDA_HOST, 0)));
        FastnormException thrown = assertThrows(FastnormException.class,
                Context.builder(new Device(DeviceType.CPU, 1))::open);
        assertEquals(Status.ERROR_DEVICE, thrown.status());
        thrown = assertThrows(FastnormException.class,
                Context.builder(Device.cuda(0)).dryRun(70)::open);
        assertEquals(Status.ERROR_UNSUPPORTED, thrown.status());
        assertTrue(thrown.getMessage().contains("dry_run_capability is 70"), thrown.getMessage());
        assertThrows(NullPointerException.class, () -> Context.builder(null));
        assertThrows(NullPointerException.class, () -> new Device(null, 0));
    }

    private static void refused(String text, Context.Builder builder) {
        FastnormException thrown = assertThrows(FastnormException.class,
                builder.log((l, t) -> {})::open);
        assertEquals(Status.ERROR_ARGUMENT, thrown.status());
        assertEquals(text, thrown.getMessage());
    }

    private static Context.Builder dryGpu() {
        return Context.builder(Device.cuda(0)).dryRun(90);
    }

    private static String kernel(Context gpu, int rows) {
        Tensor x = Tensor.at(gpu, 0x100000000000L, DType.BF16, rows, 4096);
        return Norm.rms(0).x(x).y(Tensor.at(gpu, 0x200000000000L, DType.BF16, rows, 4096))
                .query(gpu).kernel();
    }

    @Test
    void tuningFile(@TempDir Path folder) throws Exception {
        String tuned = "bf16 plain rms once store vector 256x4";
        Path file = Files.writeString(folder.resolve("gpu.tuning"), "fastnorm tuning 2\nlibrary "
                + Fastnorm.versionString() + "\narch sm_90\n"
                + "KIND(b16, plain, rms, own_dtype, y, aligned, lean | full, rows)\n"
                + "ROWS(4096, 4096, 4, 7, 256, 4, 1, full)\n");
        try (Context context = dryGpu().tuningFile(file).open();
                Context untuned = dryGpu().tuningFile(file).tuningFile(null).open()) {
            Files.delete(file); // it is read once
            assertEquals(tuned, kernel(context, 4));
            assertEquals(kernel(untuned, 8), kernel(context, 8));
            assertNotEquals(tuned, kernel(untuned, 4));
            assertNotEquals(tuned, kernel(untuned, 8));
        }
    }

    @Test
    void refusedTuningFiles() {
        Path nowhere = Path.of("/nowhere/at/all");
        refused("options.tuning_file is \"/nowhere/at/all\" and the device a CPU; required: NULL",
                Context.builder(Device.cpu()).tuningFile(nowhere));
        FastnormException thrown = assertThrows(FastnormException.class,
                dryGpu().tuningFile(nowhere)::open);
        assertEquals(Status.ERROR_ARGUMENT, thrown.status());
        String text = "options.tuning_file is \"/nowhere/at/all\", which cannot be read (";
        assertTrue(thrown.getMessage().startsWith(text), thrown.getMessage());
        // C would take a path to end at a zero; Path has none.
        assertThrows(InvalidPathException.class, () -> Path.of("/dev/null\0"));
        Path elsewhere = Path.of(URI.create("jrt:/java.base"));
        assertEquals("tuningFile is jrt:/java.base; required: a path of the default file system",
                assertThrows(IllegalArgumentException.class, () -> dryGpu().tuningFile(elsewhere))
                .getMessage());
    }

    @Test
    void log() {
        List<String> messages = new ArrayList<>();
        Context.builder(Device.cpu()).log((level, text) -> messages.add(level + " " + text)).open()
                .close();
        assertFalse(messages.isEmpty());
        assertTrue(messages.get(0).startsWith("INFO "), messages.get(0));
        assertTrue(messages.stream().noneMatch(m -> m.contains("\n")));
        assertTrue(messages.get(0).contains(Device.cpu().info().kernelArch()), messages.get(0));
    }

    @Test
    void whatALogSinkThrowsGoesToTheHandler() {
        AtomicReference<Throwable> caught = new AtomicReference<>();
        Thread thread = Thread.currentThread();
        Thread.UncaughtExceptionHandler before = thread.getUncaughtExceptionHandler();
        RuntimeException own = new RuntimeException("from the sink");
        try {
            thread.setUncaughtExceptionHandler((t, e) -> {
                caught.set(e);
                throw new Error("the handler's own");
            });
            Context context = assertDoesNotThrow(() -> Context.builder(Device.cpu())
                    .log((level, text) -> {
                throw own;
            }).open());
            ones().run(context);
            context.close();
        } finally {
            thread.setUncaughtExceptionHandler(before);
        }
        assertSame(own, caught.get());
    }

    @Test
    void logLevels() {
        assertEquals(LogLevel.ERROR, LogDelivery.levelOf(0));
        assertEquals(LogLevel.WARNING, LogDelivery.levelOf(1));
        assertEquals(LogLevel.DEBUG, LogDelivery.levelOf(3));
        assertEquals(LogLevel.DEBUG, LogDelivery.levelOf(99));
    }

    @Test
    void devices() {
        assertEquals(1, Device.count(DeviceType.CPU));
        assertTrue(Device.count(DeviceType.CUDA) >= 0);
        FastnormException thrown = assertThrows(FastnormException.class,
                () -> Device.count(DeviceType.CUDA_HOST));
        assertEquals(Status.ERROR_ARGUMENT, thrown.status());
        assertTrue(thrown.getMessage().startsWith("device_type is 3"), thrown.getMessage());
        DeviceInfo info = Device.cpu().info();
        assertFalse(info.name().isEmpty());
        assertFalse(info.kernelArch().isEmpty());
        assertTrue(info.multiprocessors() >= 1 && info.l2Bytes() >= 64 * 1024);
        assertEquals(0, info.capability() + info.memoryBytes() + info.driverVersion()
                + info.runtimeVersion());
        assertEquals(info.name() + " (" + info.kernelArch() + ")", info.toString());
        assertEquals(Status.ERROR_DEVICE,
                assertThrows(FastnormException.class, () -> Device.cuda(9999).info()).status());
    }

    @Test
    void versions() throws Exception {
        assertTrue(Fastnorm.version() >= RawConstants.FASTNORM_VERSION);
        int version = Fastnorm.version();
        assertEquals(version / 10000 + "." + version / 100 % 100 + "." + version % 100,
                Fastnorm.versionString());
        assertTrue(Fastnorm.numericVersion() >= 1);
        assertTrue(Fastnorm.buildInfo().contains(Fastnorm.versionString()), Fastnorm.buildInfo());
        String wanted = System.getProperty("fastnorm.test.library");
        Path origin = Path.of(NativeLibrary.origin());
        assertTrue(wanted == null
                || Files.isSameFile(origin, Path.of(wanted, NativeLibrary.SONAME)),
                origin.toString());
    }

    @Test
    void kernels() {
        List<KernelInfo> kernels = Fastnorm.kernels();
        assertTrue(kernels.size() >= 24);
        assertEquals(kernels.size(), new HashSet<>(kernels).size());
        assertTrue(kernels.stream().anyMatch(k -> k.family().equals("norm")
                && k.arch().equals("scalar")));
        assertThrows(UnsupportedOperationException.class, () -> kernels.remove(0));
    }
}
