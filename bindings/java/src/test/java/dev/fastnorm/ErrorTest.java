package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Failures come as exceptions with the library's own text, and nothing is written. */
class ErrorTest {
    private static Context context;

    private final Tensor x = Tensor.copyOf(new float[] {0, 1, 2, 3}, 1, 4);
    private final Tensor y = Tensor.copyOf(new float[] {-1, -1, -1, -1}, 1, 4);

    @BeforeAll
    static void open() {
        context = Context.cpu();
    }

    @AfterAll
    static void close() {
        context.close();
    }

    private Norm valid() {
        return Norm.rms(0).x(x).y(y);
    }

    /** Run, prepare and query all refuse in the same words. */
    private void refuses(Norm norm, Status status, String text) {
        for (Executable call : new Executable[] {() -> norm.run(context),
                () -> norm.run(context, 0, 0, 0),
            () -> norm.prepare(context), () -> norm.query(context),
            () -> Norm.many(norm).query(context)}) {
            FastnormException thrown = assertThrows(FastnormException.class, call);
            assertEquals(status, thrown.status());
            assertEquals(status.code(), thrown.code());
            assertEquals(0, thrown.deviceError());
            assertEquals(text, thrown.getMessage().replace("args[0].", ""));
        }
        assertEquals(-1, y.floats().get(0));
        assertEquals(-1, y.floats().get(3));
    }

    @Test
    void argument() {
        refuses(Norm.rms(-1).x(x).y(y), Status.ERROR_ARGUMENT,
                "eps is -1; required: finite and >= 0");
        refuses(Norm.rms(1e300).x(x).y(y), Status.ERROR_ARGUMENT,
                "eps is inf; required: finite and >= 0");
    }

    @Test
    void missingTensors() {
        refuses(Norm.rms(0).x(null).y(y), Status.ERROR_ARGUMENT,
                "x is NULL; required: a tensor [..., n]");
        FastnormException thrown = assertThrows(FastnormException.class,
                () -> Norm.rms(0).x(x).run(context));
        assertEquals(Status.ERROR_ARGUMENT, thrown.status());
        assertTrue(thrown.getMessage().startsWith("y is NULL"), thrown.getMessage());
    }

    @Test
    void missingContext() {
        FastnormException thrown = assertThrows(FastnormException.class, () -> valid().run(null));
        assertEquals(Status.ERROR_ARGUMENT, thrown.status());
        assertEquals("context is NULL; required: a context", thrown.getMessage());
        assertThrows(FastnormException.class, () -> valid().query(null));
        assertThrows(FastnormException.class, () -> valid().prepare(null));
        assertThrows(FastnormException.class, () -> Norm.many().run(null));
    }

    @Test
    void shape() {
        refuses(valid().y(Tensor.allocate(DType.F32, 2, 2)), Status.ERROR_SHAPE,
                "y.shape is [2, 2]; required: x's, [1, 4]");
    }

    @ParameterizedTest
    @CsvSource({"0, x.ndim is 0; required: 1 to 8", "9, x.ndim is 9; required: 1 to 8",
        "40, x.ndim is 40; required: 1 to 8"})
    void rank(int rank, String text) {
        long[] shape = new long[rank];
        java.util.Arrays.fill(shape, 1);
        refuses(valid().x(Tensor.allocate(DType.F32, shape)), Status.ERROR_SHAPE, text);
    }

    @Test
    void negativeExtent() {
        refuses(valid().x(Tensor.of(x.floats(), -1, 4)), Status.ERROR_SHAPE,
                "x.shape is [-1, 4]; required: extents >= 0");
    }

    @Test
    void dtype() {
        refuses(valid().x(Tensor.allocate(DType.I8, 1, 4)), Status.ERROR_DTYPE,
                "x.dtype is i8; required: f32, f16 or bf16");
    }

    @Test
    void strides() {
        refuses(valid().x(x.withStrides(4, -1)), Status.ERROR_LAYOUT,
                "x.strides[1] is -1; required: 1, a contiguous last dimension");
        refuses(valid().x(x.withStrides(0, Long.MAX_VALUE)), Status.ERROR_LAYOUT,
                "x.strides[1] is 9223372036854775807; required: 1, a contiguous last dimension");
    }

    @Test
    void overlap() {
        Tensor memory = Tensor.allocate(DType.F32, 8);
        Tensor shifted = Tensor.of(memory.floats().position(2), 1, 4);
        FastnormException thrown = assertThrows(FastnormException.class,
                () -> Norm.rms(0).x(Tensor.of(memory.floats(), 1, 4)).y(shifted).run(context));
        assertEquals(Status.ERROR_LAYOUT, thrown.status());
        assertTrue(thrown.getMessage()
                .matches("y \\[0x.*\\) overlaps x \\[0x.*\\); required: the same view .*"),
                thrown.getMessage());
    }

    @Test
    void unsupported() {
        Device device = Device.cuda(0);
        long[] shape = {1L << 33, 4};
        try (Context gpu = Context.builder(device).dryRun(90).open()) {
            Norm norm = Norm.rms(0).x(Tensor.at(device, 1L << 44, DType.F32, shape))
                    .y(Tensor.at(device, 1L << 45, DType.F32, shape));
            FastnormException thrown = assertThrows(FastnormException.class, () -> norm.run(gpu));
            assertEquals(Status.ERROR_UNSUPPORTED, thrown.status());
            assertTrue(thrown.getMessage().startsWith("x has 8589934592 rows; a call takes "),
                    thrown.getMessage());
        }
    }

    @Test
    void flags() {
        refuses(valid().pdlTrigger(true).pdlConstantWeights(true), Status.ERROR_ARGUMENT,
                "flags is 0x6; required: FASTNORM_NORM_PDL_WAIT (1) with "
                        + "FASTNORM_NORM_PDL_CONSTANT_WEIGHTS (4)");
    }

    @Test
    void device() {
        refuses(valid().x(Tensor.at(Device.cuda(0), x.address(), DType.F32, 1, 4)),
                Status.ERROR_DEVICE,
                "x is on device CUDA:0 (device_type 2); required: the context's device, CPU:0");
        try (Context gpu = Context.builder(Device.cuda(0)).dryRun(90).open()) {
            FastnormException thrown = assertThrows(FastnormException.class,
                    () -> valid().run(gpu));
            assertEquals("x is on device CPU:0 (device_type 1); required: the context's device, CUDA:0",
                    thrown.getMessage());
        }
        FastnormException thrown = assertThrows(FastnormException.class, () -> Context.cuda(9999));
        assertEquals(Status.ERROR_DEVICE, thrown.status());
        assertTrue(thrown.getMessage().contains("required"), thrown.getMessage());
    }

    @Test
    void streamOnTheCpu() {
        FastnormException thrown = assertThrows(FastnormException.class,
                () -> valid().run(context, 64));
        assertEquals(Status.ERROR_ARGUMENT, thrown.status());
        assertEquals("stream is 0x40 and the context is a CPU's; required: NULL",
                thrown.getMessage());
        assertThrows(FastnormException.class, () -> valid().run(context, 64, 0, 0));
    }

    @ParameterizedTest
    @CsvSource({"0, OK", "10, ERROR_ARGUMENT", "13, ERROR_ARGUMENT", "20, ERROR_SHAPE",
            "30, ERROR_DTYPE",
        "40, ERROR_LAYOUT", "59, ERROR_UNSUPPORTED", "60, ERROR_DEVICE", "70, ERROR_OUT_OF_MEMORY",
        "80, ERROR_INTERNAL", "7, UNKNOWN", "90, UNKNOWN", "-10, UNKNOWN", "-1, UNKNOWN", "2147483647, UNKNOWN"})
    void decades(int code, Status status) {
        assertEquals(status, Status.of(code));
    }
}
