package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Gradients by hand, lists of them, and a refusal. */
class NormBackwardTest {
    // The root mean square is 1, so that the row is xhat, too.
    private static final float[] X = {1, -1, 1, -1};
    private static final float[] DY = {1, 2, 3, 4};

    private static Context context;

    @BeforeAll
    static void open() {
        context = Context.cpu();
    }

    @AfterAll
    static void close() {
        context.close();
    }

    private static Tensor row(float... values) {
        return Tensor.copyOf(values, 1, values.length);
    }

    private static NormBackward call() {
        return NormBackward.rms(0).x(row(X)).dy(row(DY));
    }

    /** c1 is (1 - 2 + 3 - 4) / 4 = -0.5. */
    @Test
    void gradients() {
        Tensor dx = Tensor.allocate(DType.F32, 1, 4);
        Tensor dweight = Tensor.allocate(DType.F32, 4);
        Tensor dbias = Tensor.allocate(DType.F32, 4);
        NormBackward call = call().weight(Tensor.copyOf(new float[] {1, 1, 1, 1}, 4))
                .dresidualIn(row(10, 20, 30, 40)).rstd(Tensor.copyOf(new float[] {1}, 1))
                .dx(dx).dweight(dweight).dbias(dbias);
        assertTrue(call.query(context).workspaceBytes() > 0);
        call.prepare(context);
        call.run(context);
        assertArrayEquals(new float[] {11.5f, 21.5f, 33.5f, 43.5f}, Data.floats(dx));
        assertArrayEquals(new float[] {1, -2, 3, -4}, Data.floats(dweight));
        assertArrayEquals(DY, Data.floats(dbias));
        call.dx(null).dweight(null).rstd(null).accumulateDbias(true).run(context);
        assertArrayEquals(new float[] {2, 4, 6, 8}, Data.floats(dbias));
    }

    /** The branch is the row twice: its gradient is that of the sum, times alpha. */
    @Test
    void branch() {
        Tensor dx = Tensor.allocate(DType.F32, 1, 4);
        Tensor dbranch = Tensor.allocate(DType.F32, 1, 4);
        call().branch(row(2, -2, 2, -2)).alpha(0.5).dx(dx).dbranch(dbranch).run(context);
        assertArrayEquals(new float[] {1.5f, 1.5f, 3.5f, 3.5f}, Data.floats(dx));
        assertArrayEquals(new float[] {0.75f, 0.75f, 1.75f, 1.75f}, Data.floats(dbranch));
    }

    @Test
    void listsHaveTheResultsOfTheirParts() {
        Tensor[] found = {Tensor.allocate(DType.F32, 1, 4), Tensor.allocate(DType.F32, 1, 4)};
        NormBackward plain = call().dx(found[0]);
        NormBackward gated = call().gate(row(2, 2, 2, 2)).dx(found[1]);
        NormBackwardList both = NormBackward.many(plain, gated);
        both.prepare(context);
        assertEquals(2 * 16, both.query(context).bytesWritten());
        both.run(context);
        assertArrayEquals(new float[] {1.5f, 1.5f, 3.5f, 3.5f}, Data.floats(found[0]));
        assertArrayEquals(new float[] {3, 3, 7, 7}, Data.floats(found[1]));
    }

    @Test
    void whatTheLibraryRefuses() {
        NormBackward call = NormBackward.rms(0).x(row(X)).dx(Tensor.allocate(DType.F32, 1, 4));
        FastnormException refused = assertThrows(FastnormException.class, () -> call.run(context));
        assertEquals(Status.ERROR_ARGUMENT, refused.status());
        assertTrue(refused.getMessage().contains("dy"), refused.getMessage());
    }
}
