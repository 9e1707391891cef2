package dev.fastnorm;

import java.nio.FloatBuffer;
import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Level;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.infra.Blackhole;

/**
 * Host time of a call: an RMS norm with weight, the residual in place and y, of one row of 4
 * elements. The device is a dry run, which does everything but the launch; call_cost.c makes the
 * same calls. The GPU is one, where the environment variable FASTNORM_TEST_DEVICE is cuda.
 *
 * <p>A sample is CALLS calls, short enough that some samples see nothing else of the machine.
 */
@State(Scope.Benchmark)
@BenchmarkMode(Mode.SampleTime)
@OutputTimeUnit(TimeUnit.NANOSECONDS)
public class CallBenchmark {
    private static final int CALLS = 500;

    private Context gpu;
    private Context cpu;
    private Norm onGpu;
    private Norm changed;
    private Norm onCpu;
    private Context realGpu;
    private Norm onRealGpu;
    private long memory;
    private long stream;
    private FloatBuffer x;
    private FloatBuffer residual;
    private FloatBuffer weight;
    private FloatBuffer y;
    private final float[] row = new float[4096];
    private final float[] gain = new float[4096];
    private final float[] out = new float[4096];
    private Norm onArrays;

    /**
     * Opens the contexts and makes the descriptions.
     *
     * @throws Exception if there is no GPU that should be there
     */
    @Setup
    public void open() throws Exception {
        gpu = Context.builder(Device.cuda(0)).dryRun(90).open();
        cpu = Context.cpu();
        x = Tensor.copyOf(new float[] {1, 2, 3, 4}, 4).floats();
        residual = Tensor.allocate(DType.F32, 4).floats();
        weight = Tensor.copyOf(new float[] {1, 2, 3, 4}, 4).floats();
        y = Tensor.allocate(DType.F32, 4).floats();
        onGpu = described();
        changed = described();
        onCpu = buffers();
        for (int i = 0; i < row.length; i++) {
            row[i] = i % 7 - 3;
            gain[i] = 1 + i % 3;
        }
        onArrays = arrays();
        if ("cuda".equals(System.getenv("FASTNORM_TEST_DEVICE"))) {
            Gpu.load();
            realGpu = Context.cuda(0);
            memory = Gpu.allocate(4 * 256);
            stream = Gpu.createStream();
            onRealGpu = onMemory();
        }
    }

    /** Empties the stream's queue, which has room for the calls of a sample. */
    @TearDown(Level.Invocation)
    public void settle() {
        if (realGpu != null) {
            Gpu.synchronize(stream);
        }
    }

    /** Closes the contexts. */
    @TearDown
    public void close() {
        gpu.close();
        cpu.close();
        if (realGpu != null) {
            Gpu.destroyStream(stream);
            Gpu.free(memory);
            realGpu.close();
        }
    }

    private Norm onMemory() {
        return Norm.rms(1e-6).x(Tensor.at(realGpu, memory, DType.BF16, 1, 4))
                .weight(Tensor.at(realGpu, memory + 256, DType.BF16, 4))
                .residualInPlace(Tensor.at(realGpu, memory + 512, DType.BF16, 1, 4))
                .y(Tensor.at(realGpu, memory + 768, DType.BF16, 1, 4));
    }

    private Norm described() {
        return Norm.rms(1e-6).x(Tensor.at(gpu, 0x100000000000L, DType.BF16, 1, 4))
                .weight(Tensor.at(gpu, 0x300000000000L, DType.BF16, 4))
                .residualInPlace(Tensor.at(gpu, 0x400000000000L, DType.BF16, 1, 4))
                .y(Tensor.at(gpu, 0x200000000000L, DType.BF16, 1, 4));
    }

    private Norm buffers() {
        return Norm.rms(1e-6).x(Tensor.of(x, 1, 4)).weight(Tensor.of(weight, 4))
                .residualInPlace(Tensor.of(residual, 1, 4)).y(Tensor.of(y, 1, 4));
    }

    /**
     * A native call that does nothing.
     *
     * @param blackhole takes the result
     */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void emptyNativeCall(Blackhole blackhole) {
        for (int i = 0; i < CALLS; i++) {
            blackhole.consume(Raw.fastnorm_version());
        }
    }

    /** Device: the description is kept. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void deviceKept() {
        for (int i = 0; i < CALLS; i++) {
            onGpu.run(gpu, 0x1234);
        }
    }

    /** Device: the description is kept, and x is somewhere else each time. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void deviceChanged() {
        for (int i = 0; i < CALLS; i++) {
            changed.x(Tensor.at(gpu, 0x100000000000L + 4096 * i, DType.BF16, 1, 4))
                    .run(gpu, 0x1234);
        }
    }

    /** Device: tensors and description are made for each call. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void deviceBuilt() {
        for (int i = 0; i < CALLS; i++) {
            described().run(gpu, 0x1234);
        }
    }

    /** GPU, the launch included: the description is kept. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void gpuKept() {
        for (int i = 0; i < CALLS; i++) {
            onRealGpu.run(realGpu, stream);
        }
    }

    /** GPU, the launch included: tensors and description are made for each call. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void gpuBuilt() {
        for (int i = 0; i < CALLS; i++) {
            onMemory().run(realGpu, stream);
        }
    }

    private Norm arrays() {
        return Norm.rms(1e-6).x(Tensor.of(row, 1, 4096)).weight(Tensor.of(gain, 4096))
                .y(Tensor.of(out, 1, 4096));
    }

    /**
     * 4096 floats of arrays, by a loop without the library.
     *
     * @param blackhole takes the result
     */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void floatsLoop(Blackhole blackhole) {
        for (int call = 0; call < CALLS; call++) {
            float sum = 0;
            for (int i = 0; i < row.length; i++) {
                sum += row[i] * row[i];
            }
            float rstd = (float) (1 / Math.sqrt(sum / row.length + 1e-6));
            for (int i = 0; i < row.length; i++) {
                out[i] = row[i] * rstd * gain[i];
            }
            blackhole.consume(out);
        }
    }

    /** 4096 floats of arrays, copied to direct memory and back. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void floatsCopied() {
        for (int call = 0; call < CALLS; call++) {
            Tensor result = Tensor.allocate(DType.F32, 1, 4096);
            Norm.rms(1e-6).x(Tensor.copyOf(row, 1, 4096)).weight(Tensor.copyOf(gain, 4096))
                    .y(result).run(cpu);
            result.floats().get(out);
        }
    }

    /** 4096 floats of arrays, where they lie: the description is kept. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void floatsKept() {
        for (int call = 0; call < CALLS; call++) {
            onArrays.run(cpu);
        }
    }

    /** 4096 floats of arrays, where they lie: tensors and description are made for each call. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void floatsBuilt() {
        for (int call = 0; call < CALLS; call++) {
            arrays().run(cpu);
        }
    }

    /** CPU: the description is kept. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void cpuKept() {
        for (int i = 0; i < CALLS; i++) {
            onCpu.run(cpu);
        }
    }

    /** CPU: tensors and description are made for each call. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void cpuBuilt() {
        for (int i = 0; i < CALLS; i++) {
            buffers().run(cpu);
        }
    }
}
