package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/**
 * Memory by address, on the device that the environment variable FASTNORM_TEST_DEVICE names: cpu,
 * the default, or cuda, with a GPU.
 */
class DeviceTest {
    private static boolean gpu;
    private static Context context;

    @BeforeAll
    static void open() throws Exception {
        String name = System.getenv().getOrDefault("FASTNORM_TEST_DEVICE", "cpu");
        assertTrue(name.equals("cpu") || name.equals("cuda"), name);
        gpu = name.equals("cuda");
        Gpu.load();
        context = gpu ? Context.cuda(0) : Context.cpu();
    }

    @AfterAll
    static void close() {
        context.close();
    }

    /** Memory of the device and its copy on the host. */
    private static final class Memory implements AutoCloseable {
        final Tensor host;
        final Tensor tensor;

        Memory(DType dtype, double[] values, long... shape) {
            host = Data.tensor(dtype, values, shape);
            long bytes = host.buffer().capacity();
            tensor = Tensor.at(context, gpu ? Gpu.allocate(bytes) : host.address(), dtype, shape);
            if (gpu) {
                Gpu.copyIn(tensor.address(), (ByteBuffer) host.buffer(), bytes);
            }
        }

        Memory(DType dtype, long... shape) {
            this(dtype, new double[0], shape);
        }

        /** The values after a stream's work. */
        double[] read(long stream) {
            bytes(stream);
            long count = 1;
            for (long extent : tensor.shape()) {
                count *= extent;
            }
            return Data.values(host, 0, (int) count);
        }

        /** The memory after a stream's work. */
        byte[] bytes(long stream) {
            if (gpu) {
                Gpu.synchronize(stream);
                Gpu.copyOut((ByteBuffer) host.buffer(), tensor.address(), host.buffer().capacity());
            }
            return DeviceTest.bytes(host);
        }

        @Override
        public void close() {
            if (gpu) {
                Gpu.free(tensor.address());
            }
        }
    }

    private static byte[] bytes(Tensor tensor) {
        ByteBuffer memory = ((ByteBuffer) tensor.buffer()).duplicate().clear();
        byte[] bytes = new byte[memory.remaining()];
        memory.get(bytes);
        return bytes;
    }

    /** Codes and scales of rows, and the largest magnitude of all, which are the CPU's. */
    @Test
    void quantised() {
        int rows = 19;
        int n = 256;
        double[] values = Data.integers(new Random(8), rows * n, 8);
        double[] gain = Data.integers(new Random(9), n, 6);
        try (Memory x = new Memory(DType.BF16, values, rows, n);
                Memory weight = new Memory(DType.F32, gain, n);
                Memory codes = new Memory(DType.I8, rows, n);
                Memory scales = new Memory(DType.F32, rows);
                Memory amax = new Memory(DType.F32, 1)) {
            Norm.rms(0.5).x(x.tensor).weight(weight.tensor).quantScheme(QuantScheme.PER_ROW)
                    .quantized(codes.tensor)
                    .scale(scales.tensor).amax(amax.tensor).run(context);
            Tensor codesOfTheCpu = Tensor.allocate(DType.I8, rows, n);
            Tensor scalesOfTheCpu = Tensor.allocate(DType.F32, rows);
            Tensor amaxOfTheCpu = Tensor.allocate(DType.F32, 1);
            try (Context cpu = Context.cpu()) {
                Norm.rms(0.5).x(x.host).weight(weight.host).quantScheme(QuantScheme.PER_ROW)
                        .quantized(codesOfTheCpu).scale(scalesOfTheCpu).amax(amaxOfTheCpu)
                        .run(cpu);
            }
            byte[] found = codes.bytes(0);
            assertArrayEquals(bytes(codesOfTheCpu), found);
            assertArrayEquals(bytes(scalesOfTheCpu), scales.bytes(0));
            assertArrayEquals(bytes(amaxOfTheCpu), amax.bytes(0));
            assertFalse(java.util.Arrays.equals(new byte[found.length], found), "there are codes");
        }
    }

    /** Codes of fp8 and fp4 with the scales of their blocks, which are the CPU's. */
    @Test
    void microscaled() {
        int rows = 19;
        int n = 256;
        for (QuantScheme scheme : new QuantScheme[] {QuantScheme.MXFP8, QuantScheme.NVFP4}) {
            boolean mxfp8 = scheme == QuantScheme.MXFP8;
            DType codeType = mxfp8 ? DType.F8_E4M3FN : DType.F4_E2M1FN_X2;
            DType scaleType = mxfp8 ? DType.F8_E8M0FNU : DType.F8_E4M3FN;
            long[] shape = {rows, mxfp8 ? n : n / 2};
            long[] scaleShape = {rows, mxfp8 ? n / 32 : n / 16};
            try (Context cpu = Context.cpu();
                    Memory x = new Memory(DType.BF16, Data.integers(new Random(14), rows * n, 8),
                            rows, n);
                    Memory codes = new Memory(codeType, shape);
                    Memory scales = new Memory(scaleType, scaleShape)) {
                Norm.rms(0.5).x(x.tensor).quantScheme(scheme).quantized(codes.tensor)
                        .scale(scales.tensor).run(context);
                Tensor codesOfTheCpu = Tensor.allocate(codeType, shape);
                Tensor scalesOfTheCpu = Tensor.allocate(scaleType, scaleShape);
                Norm.rms(0.5).x(x.host).quantScheme(scheme).quantized(codesOfTheCpu)
                        .scale(scalesOfTheCpu).run(cpu);
                byte[] found = codes.bytes(0);
                assertArrayEquals(bytes(codesOfTheCpu), found, scheme + ": codes");
                assertArrayEquals(bytes(scalesOfTheCpu), scales.bytes(0), scheme + ": scales");
                assertFalse(java.util.Arrays.equals(new byte[found.length], found),
                        scheme + ": there are codes");
            }
        }
    }

    /**
     * A chain in which each call reads what the one before it wrote: flags change when a kernel
     * starts, not its results.
     */
    @Test
    void dependentLaunches() {
        int rows = 64;
        int n = 512;
        double[] values = Data.integers(new Random(15), rows * n, 8);
        byte[] wanted = null;
        for (int flags : new int[] {0, 1, 3, 7}) {
            long stream = gpu ? Gpu.createStream() : 0;
            try (Memory x = new Memory(DType.BF16, values, rows, n);
                    Memory y = new Memory(DType.BF16, rows, n);
                    Memory weight = new Memory(DType.BF16, Data.integers(new Random(16), n, 6),
                            n)) {
                byte[] before = bytes(x.host);
                Norm there = Norm.rms(0.5).x(x.tensor).y(y.tensor).weight(weight.tensor);
                Norm back = Norm.rms(0.5).x(y.tensor).y(x.tensor).weight(weight.tensor);
                for (Norm norm : new Norm[] {there, back}) {
                    norm.pdlWait((flags & 1) != 0).pdlTrigger((flags & 2) != 0)
                            .pdlConstantWeights((flags & 4) != 0);
                }
                for (int step = 0; step < 20; step++) {
                    there.run(context, stream);
                    back.run(context, stream);
                }
                byte[] found = x.bytes(stream);
                wanted = flags == 0 ? found : wanted;
                assertArrayEquals(wanted, found, "rows with flags " + flags);
                assertFalse(java.util.Arrays.equals(before, found), "rows have changed");
            } finally {
                if (gpu) {
                    Gpu.destroyStream(stream);
                }
            }
        }
    }

    /** Both kinds, all outputs: rows of whole numbers give the bits that the CPU gives. */
    @Test
    void sameBitsAsTheCpu() {
        int rows = 23;
        // a power of two: the mean of whole numbers is exact, and the sum of its squares
        int n = 512;
        for (DType dtype : new DType[] {DType.F32, DType.F16, DType.BF16}) {
            double[] values = Data.integers(new Random(11), rows * n, 8);
            double[] added = Data.integers(new Random(5), rows * n, 8);
            for (int i = 1; i < values.length; i += 2) {
                values[i] = 2 - values[i - 1];
                added[i] = -added[i - 1];
            }
            Tensor sumOfTheCpu = Data.tensor(dtype, added, rows, n);
            try (Context cpu = Context.cpu();
                    Memory x = new Memory(dtype, values, rows, n);
                    Memory h = new Memory(dtype, added, rows, n);
                    Memory weight = new Memory(dtype, Data.integers(new Random(12), n, 6), n);
                    Memory bias = new Memory(dtype, Data.integers(new Random(13), n, 6), n);
                    Memory y = new Memory(dtype, rows, n);
                    Memory mean = new Memory(DType.F32, rows);
                    Memory rstd = new Memory(DType.F32, rows)) {
                Norm norm = Norm.layer(0.5).x(x.tensor).residualInPlace(h.tensor)
                        .weight(weight.tensor).bias(bias.tensor).y(y.tensor).mean(mean.tensor)
                        .rstd(rstd.tensor);
                norm.prepare(context);
                norm.run(context);
                Tensor yOfTheCpu = Tensor.allocate(dtype, rows, n);
                Tensor meanOfTheCpu = Tensor.allocate(DType.F32, rows);
                Tensor rstdOfTheCpu = Tensor.allocate(DType.F32, rows);
                Norm.layer(0.5).x(x.host).residualInPlace(sumOfTheCpu).weight(weight.host)
                        .bias(bias.host).y(yOfTheCpu).mean(meanOfTheCpu)
                        .rstd(rstdOfTheCpu).run(cpu);
                assertArrayEquals(bytes(yOfTheCpu), y.bytes(0), dtype + ": y");
                assertArrayEquals(bytes(sumOfTheCpu), h.bytes(0), dtype + ": residual_out");
                assertArrayEquals(bytes(meanOfTheCpu), mean.bytes(0), dtype + ": mean");
                assertArrayEquals(bytes(rstdOfTheCpu), rstd.bytes(0), dtype + ": rstd");
                assertEquals(1, mean.host.floats().get(rows - 1));
            }
        }
    }

    /** Query and key heads of a fused QKV tensor, in one call. */
    @Test
    void stridedHeads() {
        int tokens = 9;
        int heads = 6;
        int size = 64;
        double[] values = Data.integers(new Random(6), tokens * heads * size, 4);
        Tensor ofTheCpu = Data.tensor(DType.BF16, values, tokens, heads, size);
        try (Context cpu = Context.cpu();
                Memory qkv = new Memory(DType.BF16, values, tokens, heads, size);
                Memory own = new Memory(DType.BF16, Data.integers(new Random(8), size, 3), size);
                Memory ones = new Memory(DType.BF16, Data.integers(new Random(7), size, 3), size)) {
            NormList both = heads(qkv.tensor, own.tensor, ones.tensor);
            assertEquals(gpu ? 1 : 2, both.query(context).launches());
            both.run(context);
            heads(ofTheCpu, own.host, ones.host).run(cpu);
            double[] found = qkv.read(0);
            assertArrayEquals(bytes(ofTheCpu), bytes(qkv.host));
            for (int i = 0; i < values.length; i++) {
                boolean isValue = i / size % heads > 3;
                assertTrue(!isValue || values[i] == found[i], "element " + i);
            }
        }
    }

    /** In place, the first three heads and the one behind them. */
    private static NormList heads(Tensor qkv, Tensor ofQuery, Tensor ofKey) {
        long[] shape = qkv.shape();
        long[] strides = {shape[1] * shape[2], shape[2], 1};
        Tensor query = qkv.view(0, new long[] {shape[0], 3, shape[2]}, strides);
        Tensor key = qkv.view(3 * shape[2], new long[] {shape[0], 1, shape[2]}, strides);
        return Norm.many(Norm.rms(1).xInPlace(query).weight(ofQuery),
                Norm.rms(1).xInPlace(key).weight(ofKey));
    }

    /** Each thread on a stream of its own, with its own failures in between. */
    @Test
    void threadsAndStreams() throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(2);
        try {
            List<Future<?>> running = new ArrayList<>();
            for (int i = 0; i < 2; i++) {
                int eps = -1 - i;
                running.add(pool.submit(() -> onAStream(eps)));
            }
            for (Future<?> future : running) {
                future.get();
            }
        } finally {
            pool.shutdownNow();
        }
    }

    private static void onAStream(int eps) {
        long stream = gpu ? Gpu.createStream() : 0;
        try (Memory x = new Memory(DType.F32, new double[] {2, 2, -4, 4}, 2, 2);
                Memory y = new Memory(DType.F32, 2, 2)) {
            for (int call = 0; call < 1000; call++) {
                Norm.rms(0).x(x.tensor).y(y.tensor).run(context, stream);
                FastnormException thrown = assertThrows(FastnormException.class,
                        () -> Norm.rms(eps).x(x.tensor).y(y.tensor).run(context, stream));
                assertEquals("eps is " + eps + "; required: finite and >= 0", thrown.getMessage());
            }
            assertArrayEquals(new double[] {1, 1, -1, 1}, y.read(stream));
        } finally {
            if (gpu) {
                Gpu.destroyStream(stream);
            }
        }
    }

    @Test
    void refusals() {
        try (Memory x = new Memory(DType.F32, 1, 4)) {
            Tensor elsewhere = Tensor.at(gpu ? Device.cpu() : Device.cuda(0), 4096, DType.F32, 1,
                    4);
            refused(Status.ERROR_DEVICE, Norm.rms(0).x(elsewhere).y(x.tensor));
            refused(Status.ERROR_LAYOUT, Norm.rms(0).x(x.tensor.withStrides(4, -1)).y(x.tensor));
            refused(Status.ERROR_SHAPE, Norm.rms(0).x(x.tensor)
                    .y(x.tensor.view(0, new long[] {1, 2}, null)));
            refused(Status.ERROR_ARGUMENT, Norm.rms(0).y(x.tensor));
            refused(Status.ERROR_DTYPE, Norm.rms(0)
                    .xInPlace(Tensor.at(context, x.tensor.address(), DType.I8, 1, 4)));
            refused(Status.ERROR_ARGUMENT, Norm.rms(0).xInPlace(x.tensor).pdlConstantWeights(true));
            if (gpu) { // the CPU would follow the addresses
                long[] shape = {1L << 33, 4};
                refused(Status.ERROR_UNSUPPORTED,
                        Norm.rms(0).x(Tensor.at(context, 1L << 44, DType.F32, shape))
                        .y(Tensor.at(context, 1L << 45, DType.F32, shape)));
            }
        }
    }

    private static void refused(Status status, Norm norm) {
        assertEquals(status, assertThrows(FastnormException.class, () -> norm.run(context))
                .status());
    }

    @Test
    void whatADeviceIs() {
        DeviceInfo info = context.device().info();
        assertEquals(gpu, info.capability() >= 80);
        assertEquals(gpu, info.memoryBytes() > 0);
        assertFalse(info.name().isEmpty());
    }

    /** Where there is no driver the library says so. */
    @Test
    void withoutADriver() {
        assumeTrue(Device.count(DeviceType.CUDA) == 0, "a CUDA device is there");
        FastnormException thrown = assertThrows(FastnormException.class, () -> Context.cuda(0));
        assertEquals(Status.ERROR_DEVICE, thrown.status());
        assertTrue(thrown.getMessage().contains("required"), thrown.getMessage());
        ByteBuffer buffer = ByteBuffer.allocateDirect(8).order(ByteOrder.nativeOrder());
        assertThrows(IllegalStateException.class, () -> Gpu.copyIn(4096, buffer, 8));
    }
}
