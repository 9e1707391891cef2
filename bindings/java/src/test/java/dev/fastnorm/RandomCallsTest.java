package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.EnumSet;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;

/**
 * Calls at random, most of them wrong: each is run or refused, and none writes outside of its
 * buffers.
 */
class RandomCallsTest {
    private static final int CALLS = 200_000;
    private static final int GUARD = 256;
    private static final int SIZE = 1024;

    private final Random random = new Random(2026);

    /**
     * Memory of a tensor with guards on both sides, which are outside of the buffer that the tensor
     * sees.
     */
    private final ByteBuffer memory = ByteBuffer.allocateDirect(GUARD + SIZE + GUARD)
            .order(ByteOrder.nativeOrder());
    private final ByteBuffer visible = memory.slice(GUARD, SIZE).order(ByteOrder.nativeOrder());

    private int accepted;
    private int refusedByTheBinding;
    private final Set<Status> refusedByTheLibrary = EnumSet.noneOf(Status.class);

    @Test
    void everyCallIsRunOrRefused() {
        try (Context context = Context.cpu();
                Context gpu = Context.builder(Device.cuda(0)).dryRun(90).open()) {
            for (int i = 0; i < CALLS; i++) {
                fill();
                call(random.nextInt(20) == 0 ? gpu : context);
                checkGuards(i);
            }
        }
        assertTrue(accepted > CALLS / 100, "accepted " + accepted);
        assertTrue(refusedByTheBinding > CALLS / 100,
                "refused by the binding " + refusedByTheBinding);
        refusedByTheLibrary.remove(Status.ERROR_UNSUPPORTED); // what that is depends on the library
        assertEquals(EnumSet.of(Status.ERROR_ARGUMENT, Status.ERROR_SHAPE, Status.ERROR_DTYPE,
        Status.ERROR_LAYOUT,
                Status.ERROR_DEVICE), refusedByTheLibrary);
    }

    private void call(Context context) {
        try {
            Norm norm = description();
            if (random.nextInt(10) == 0) {
                Norm.many(norm, description()).run(context);
            } else {
                norm.run(context);
            }
            accepted++;
        } catch (FastnormException e) {
            refusedByTheLibrary.add(e.status());
            assertTrue(!e.getMessage().isEmpty());
        } catch (IllegalArgumentException e) {
            refusedByTheBinding++;
        }
    }

    private Norm description() {
        boolean layer = random.nextBoolean();
        DType dtype = random.nextInt(30) == 0 ? anyOf(DType.values())
                : anyOf(DType.F32, DType.BF16, DType.F16);
        Norm norm = layer ? Norm.layer(eps()) : Norm.rms(eps());
        norm.rounding(anyOf(Rounding.values())).residualRounding(anyOf(ResidualRounding.values()));
        int rank = 1 + random.nextInt(random.nextInt(20) == 0 ? 9 : 3);
        long[] shape = new long[rank];
        for (int i = 0; i < rank; i++) {
            shape[i] = random.nextInt(60) == 0 ? random.nextInt(40) - 2 : 1 + random.nextInt(4);
        }
        Tensor x = tensor(dtype, shape);
        norm.x(x).y(seldom() ? x : tensor(dtype, shape));
        if (seldom()) {
            norm.residual(tensor(dtype, shape)).residualOut(tensor(DType.F32, shape));
        }
        if (seldom()) {
            norm.weight(tensor(dtype, shape[rank - 1])).weightOffset(random.nextInt(2));
        }
        if (seldom()) {
            norm.rstd(tensor(DType.F32, java.util.Arrays.copyOf(shape, rank - 1)));
        }
        if (random.nextInt(50) == 0) {
            norm.quantScheme(anyOf(QuantScheme.values())).quantized(tensor(DType.I8, shape))
                    .scale(tensor(DType.F32, 1))
                    .quantBlockSize(random.nextInt(3) * 64);
        }
        return norm;
    }

    private double eps() {
        return random.nextInt(50) == 0 ? -1 : 1e-5;
    }

    private boolean seldom() {
        return random.nextInt(4) == 0;
    }

    @SafeVarargs
    private <T> T anyOf(T... values) {
        return values[random.nextInt(values.length)];
    }

    private Tensor tensor(DType dtype, long... shape) {
        int unit = Math.max(dtype.bits() / 8, 1);
        int begin = random.nextInt(SIZE / unit) * unit + (random.nextInt(50) == 0 ? 1 : 0);
        ByteBuffer buffer = visible.duplicate().order(ByteOrder.nativeOrder()).position(begin);
        if (random.nextInt(20) == 0) {
            buffer.limit(begin + random.nextInt(SIZE - begin + 1));
        }
        if (random.nextBoolean()) {
            return Tensor.of(buffer, dtype, shape);
        }
        long[] strides = new long[shape.length];
        long compact = 1;
        for (int i = shape.length - 1; i >= 0; i--) {
            strides[i] = random.nextInt(6) == 0 ? random.nextInt(60) - 20 : compact;
            compact *= shape[i];
        }
        if (strides.length > 0 && random.nextInt(20) != 0) {
            strides[strides.length - 1] = 1;
        }
        return Tensor.of(buffer, dtype, 0).view(0, shape, strides);
    }

    private void fill() {
        for (int i = 0; i < memory.capacity(); i += 8) {
            memory.putLong(i, 0x5a5a5a5a5a5a5a5aL);
        }
    }

    private void checkGuards(int call) {
        for (int i = 0; i < GUARD; i += 8) {
            if (memory.getLong(i) != 0x5a5a5a5a5a5a5a5aL
                    || memory.getLong(GUARD + SIZE + i) != 0x5a5a5a5a5a5a5a5aL) {
                throw new AssertionError("call " + call + " wrote outside of its buffer");
            }
        }
    }
}
