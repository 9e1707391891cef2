package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Views of memory: every kind of buffer, and what this binding refuses by itself. */
class TensorTest {
    private static ByteBuffer direct(int bytes) {
        return ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder());
    }

    private static void refused(String text, Supplier<Object> call) {
        IllegalArgumentException thrown = assertThrows(IllegalArgumentException.class, call::get);
        assertTrue(thrown.getMessage().contains(text), thrown.getMessage());
    }

    @ParameterizedTest
    @EnumSource
    void allocate(DType dtype) {
        Tensor tensor = Tensor.allocate(dtype, 3, 5);
        assertSame(dtype, tensor.dtype());
        assertEquals(Device.cpu(), tensor.device());
        assertEquals((15 * dtype.bits() + 7) / 8, tensor.buffer().capacity());
        assertArrayEquals(new long[] {3, 5}, tensor.shape());
        assertArrayEquals(new long[] {5, 1}, tensor.strides());
        assertNotSame(tensor.shape(), tensor.shape());
        assertTrue(tensor.address() != 0);
        assertTrue(tensor.toString().contains(dtype + " [3, 5]"), tensor.toString());
    }

    @Test
    void everyKindOfBuffer() {
        assertEquals(DType.F32, Tensor.of(direct(16).asFloatBuffer(), 4).dtype());
        assertEquals(DType.I32, Tensor.of(direct(16).asIntBuffer(), 4).dtype());
        assertEquals(DType.I64, Tensor.of(direct(16).asLongBuffer(), 2).dtype());
        assertEquals(DType.BF16, Tensor.of(direct(16).asShortBuffer(), DType.BF16, 8).dtype());
        assertEquals(DType.F16, Tensor.of(direct(16), DType.F16, 8).dtype());
        assertEquals(DType.F8_E4M3FN, Tensor.of(ByteBuffer.allocateDirect(16), DType.F8_E4M3FN, 16)
                .dtype());
    }

    @Test
    void theAddressFollowsThePosition() {
        ByteBuffer bytes = direct(64);
        long base = Tensor.of(bytes, DType.F32, 16).address();
        assertEquals(base + 8, Tensor.of(bytes.position(8), DType.F32, 14).address());
        assertEquals(base + 8,
                Tensor.of(bytes.slice().order(ByteOrder.nativeOrder()), DType.F32, 14).address());
        assertEquals(base + 20, Tensor.of(bytes.asFloatBuffer().position(3), 11).address());
        assertEquals(base + 8 + 6, Tensor.of(bytes.asShortBuffer().position(3), DType.F16, 25)
                .address());
        assertEquals(base + 8 + 4, Tensor.of(bytes.asIntBuffer().position(1), 13).address());
        bytes.position(0);
        assertEquals(base + 24, Tensor.of(bytes.asLongBuffer().position(3), 5).address());
        FloatBuffer floats = bytes.asFloatBuffer().position(2);
        Tensor tensor = Tensor.of(floats, 14);
        floats.position(5).limit(6);
        assertEquals(14, tensor.floats().remaining());
        tensor.floats().put(0, 42);
        assertEquals(42, bytes.getFloat(8));
    }

    @Test
    void heapBuffers() {
        refused("on the Java heap; required: a direct one",
                () -> Tensor.of(FloatBuffer.allocate(4), 4));
        refused("on the Java heap; required: a direct one",
                () -> Tensor.of(FloatBuffer.wrap(new float[4]), 4));
        refused("on the Java heap; required: a direct one",
                () -> Tensor.of(ByteBuffer.allocate(4), DType.I8, 4));
        refused("on the Java heap; required: a direct one",
                () -> Tensor.of(ShortBuffer.allocate(4), DType.F16, 4));
        refused("on the Java heap; required: a direct one",
                () -> Tensor.of(IntBuffer.allocate(4), 4));
        refused("on the Java heap; required: a direct one",
                () -> Tensor.of(LongBuffer.allocate(4), 4));
    }

    @Test
    void byteOrder() {
        ByteBuffer foreign = ByteBuffer.allocateDirect(16)
                .order(ByteOrder.nativeOrder() == ByteOrder.BIG_ENDIAN ? ByteOrder.LITTLE_ENDIAN
                : ByteOrder.BIG_ENDIAN);
        refused("required: ByteOrder.nativeOrder()", () -> Tensor.of(foreign, DType.F32, 4));
        refused("required: ByteOrder.nativeOrder()", () -> Tensor.of(foreign.asFloatBuffer(), 4));
        refused("required: ByteOrder.nativeOrder()",
                () -> Tensor.of(foreign.asShortBuffer(), DType.F16, 4));
        assertEquals(DType.I8, Tensor.of(foreign, DType.I8, 16).dtype());
        assertEquals(DType.F4_E2M1FN, Tensor.of(foreign, DType.F4_E2M1FN, 32).dtype());
    }

    @Test
    void tooShort() {
        FloatBuffer four = direct(16).asFloatBuffer();
        refused("[5] has 20 bytes from its first element on; required: elements inside of the buffer's 16 bytes",
                () -> Tensor.of(four, 5));
        refused("[2, 4] has 32 bytes", () -> Tensor.of(four, 2, 4));
        refused("[2] has 8 bytes from its first element on; required: elements inside of the buffer's 4 bytes",
                () -> Tensor.of(four.duplicate().position(3), 2));
        refused("[4] has 16 bytes", () -> Tensor.of(four.duplicate().limit(3), 4));
        refused("2^63 bits or more apart", () -> Tensor.of(four, 1L << 40, 1L << 40));
        refused("2^63 bits or more apart", () -> Tensor.of(four, Long.MAX_VALUE));
        refused("[33] has 17 bytes", () -> Tensor.of(direct(16), DType.F4_E2M1FN, 33));
        assertEquals(0, Tensor.of(four, 0, Long.MAX_VALUE).shape()[0]);
    }

    @Test
    void stridesOutsideOfTheBuffer() {
        FloatBuffer floats = direct(40).asFloatBuffer();
        Tensor tensor = Tensor.of(floats, 2, 4);
        assertArrayEquals(new long[] {6, 1}, tensor.withStrides(6, 1).strides());
        refused("44 bytes from its first element on", () -> tensor.withStrides(7, 1));
        refused("4 bytes before its first element", () -> tensor.withStrides(-1, 1));
        refused("2^63 bits or more apart", () -> tensor.withStrides(Long.MIN_VALUE, 1));
        Tensor later = Tensor.of(floats.duplicate().position(4), 2, 3);
        assertArrayEquals(new long[] {-4, 1}, later.withStrides(-4, 1).strides());
        refused("20 bytes before its first element; required: elements inside of the buffer's 24 bytes from position"
                + " on, or of the 16 before it", () -> later.withStrides(-5, 1));
        refused("required: one stride for each extent", () -> tensor.withStrides(1));
        refused("required: one stride for each extent", () -> tensor.withStrides());
    }

    @Test
    void views() {
        Tensor tensor = Tensor.allocate(DType.F32, 4, 4);
        Tensor corner = tensor.view(10, new long[] {2, 2}, new long[] {4, 1});
        assertEquals(tensor.address() + 40, corner.address());
        assertEquals(6, corner.floats().remaining());
        assertSame(tensor.buffer(), corner.buffer());
        assertEquals(tensor.address(), corner.view(-10, new long[] {16}, null).address());
        refused("28 bytes from its first element on",
                () -> tensor.view(10, new long[] {2, 2}, new long[] {5, 1}));
        refused("offset is 17 elements; required: inside of the buffer, 0 to 16",
                () -> tensor.view(17, new long[] {0}, null));
        refused("offset is -11 elements; required: inside of the buffer, -10 to 6",
                () -> corner.view(-11, new long[] {1}, null));
        refused("offset is 4611686018427387904 elements",
                () -> tensor.view(1L << 62, new long[] {1}, null));
        refused("required: one stride for each extent",
                () -> tensor.view(0, new long[] {1}, new long[] {1, 1}));
        Tensor fours = Tensor.allocate(DType.F4_E2M1FN, 8);
        assertEquals(fours.address() + 1, fours.view(2, new long[] {6}, null).address());
        refused("offset is 1 elements of F4_E2M1FN; required: whole bytes",
                () -> fours.view(1, new long[] {1}, null));
        Tensor device = Tensor.at(Device.cuda(1), 4096, DType.BF16, 8, 64);
        Tensor heads = device.view(-64, new long[] {9, 32}, new long[] {64, 1});
        assertEquals(4096 - 128, heads.address());
        assertEquals(device.device(), heads.device());
    }

    /** Strides that the library refuses are its own to refuse, but never reach memory outside. */
    @Test
    void stridesForTheLibrary() {
        Tensor wild = Tensor.of(direct(16).asFloatBuffer(), 4).withStrides(1L << 40);
        Tensor y = Tensor.allocate(DType.F32, 4);
        try (Context context = Context.cpu()) {
            FastnormException thrown = assertThrows(FastnormException.class,
                    () -> Norm.rms(0).x(wild).y(y).run(context));
            assertEquals(Status.ERROR_LAYOUT, thrown.status());
            thrown = assertThrows(FastnormException.class,
                    () -> Norm.many(Norm.rms(0).x(wild).y(y)).run(context));
            assertEquals("args[0].x.strides[0] is 1099511627776; required: 1, a contiguous last dimension",
                    thrown.getMessage());
        }
    }

    @Test
    void wrongDtype() {
        refused("dtype is F32, of 32 bits; required for a ShortBuffer: one of 16 bits",
                () -> Tensor.of(direct(16).asShortBuffer(), DType.F32, 4));
        assertThrows(NullPointerException.class, () -> Tensor.of(direct(16), null, 4));
        assertThrows(NullPointerException.class, () -> Tensor.of((FloatBuffer) null, 4));
        assertThrows(NullPointerException.class, () -> Tensor.at((Device) null, 0, DType.F32, 4));
        assertThrows(NullPointerException.class, () -> Tensor.at(Device.cpu(), 0, null, 4));
    }

    @Test
    void readOnlyOutputs() {
        Tensor tensor = Tensor.of(direct(16).asFloatBuffer().asReadOnlyBuffer(), 1, 4);
        Consumer<Consumer<Tensor>> isRefused = setter ->
                refused("is written and its buffer is read-only", () -> {
            setter.accept(tensor);
            return null;
        });
        Norm norm = Norm.rms(0);
        isRefused.accept(norm::y);
        isRefused.accept(norm::residualOut);
        isRefused.accept(norm::mean);
        isRefused.accept(norm::rstd);
        isRefused.accept(norm::quantized);
        isRefused.accept(norm::amax);
        isRefused.accept(norm::sumsq);
        isRefused.accept(norm::branchRstd);
        isRefused.accept(norm::residualInPlace);
        isRefused.accept(norm::xInPlace);
        Tensor y = Tensor.allocate(DType.F32, 1, 4);
        try (Context context = Context.cpu()) {
            Norm.rms(1).x(tensor).residual(tensor).y(y).run(context);
            assertEquals(0, y.floats().get(3));
            Tensor one = Tensor.of(direct(4).asFloatBuffer().asReadOnlyBuffer(), 1);
            Tensor gate = Tensor.of(direct(16).asFloatBuffer().asReadOnlyBuffer(), 1, 4);
            Norm.layer(1).x(tensor).gate(gate).meanIn(one).rstdIn(one).branchRms(1)
                    .branchWeight(tensor).branchBias(tensor).sumScale(one).y(y).run(context);
            assertEquals(0, y.floats().get(3));
        }
    }

    @Test
    void allocateRefuses() {
        refused("required: extents >= 0 and fewer than 2^31 bytes",
                () -> Tensor.allocate(DType.F32, 1L << 29));
        refused("required: extents >= 0 and fewer than 2^31 bytes",
                () -> Tensor.allocate(DType.F32, -1));
        refused("required: extents >= 0 and fewer than 2^31 bytes",
                () -> Tensor.allocate(DType.F32, 1L << 62, 4));
        refused("required: as many values", () -> Tensor.copyOf(new float[3], 4));
        refused("required: as many values", () -> Tensor.copyOf(new float[5], 4));
    }

    @Test
    void viewsOfTheMemory() {
        Tensor floats = Tensor.copyOf(new float[] {1, 2}, 2);
        assertEquals(2, floats.floats().get(1));
        assertThrows(IllegalStateException.class, floats::shorts);
        Tensor halves = Tensor.of(direct(8).asShortBuffer().position(1), DType.F16, 3);
        halves.shorts().put(2, (short) 7);
        assertEquals(3, halves.shorts().remaining());
        assertEquals(7, ((ShortBuffer) halves.buffer()).get(3));
        assertThrows(IllegalStateException.class, halves::floats);
        assertThrows(IllegalStateException.class,
                () -> Tensor.at(Device.cuda(0), 4096, DType.F32, 1).floats());
    }

    @Test
    void bytes() {
        assertEquals(4, DType.F32.bytes(1));
        assertEquals(2, DType.F4_E2M1FN.bytes(3));
        assertEquals(3, DType.F4_E2M1FN_X2.bytes(3));
        assertEquals(0, DType.I64.bytes(0));
        assertThrows(ArithmeticException.class, () -> DType.F32.bytes(Long.MAX_VALUE));
    }
}
