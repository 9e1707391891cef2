package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Gradients of heads by hand, and what is refused. */
class NormHeadsBackwardTest {
    private static Context context;

    @BeforeAll
    static void open() {
        context = Context.cpu();
    }

    @AfterAll
    static void close() {
        context.close();
    }

    private static Tensor head(float... values) {
        return Tensor.copyOf(values, 1, 1, values.length);
    }

    /** A row whose root mean square is 1, and whose last two columns a quarter turns. */
    private static NormHeadsBackwardPart part() {
        return NormHeadsBackwardPart.of(head(1, 2, -4, 3)).rms(0, head(1, -1, 1, -1))
                .weight(Tensor.copyOf(new float[] {1, 1, 1, 1}, 4)).rope(-1);
    }

    private static NormHeadsBackward call(NormHeadsBackwardPart... parts) {
        return NormHeadsBackward.of(parts).rope(2, Tensor.copyOf(new float[] {0}, 1, 1),
                Tensor.copyOf(new float[] {1}, 1, 1));
    }

    /** Turned back, dy is 1, 2, 3, 4. */
    @Test
    void gradients() {
        Tensor dx = head(0, 0, 0, 0);
        Tensor dweight = Tensor.copyOf(new float[4], 4);
        Tensor copy = head(0, 0, 0, 0);
        NormHeadsBackward call = call(part().dx(dx).dweight(dweight),
                NormHeadsBackwardPart.of(head(1, 2, 3, 4)).dx(copy));
        Info info = call.query(context);
        assertTrue(info.workspaceBytes() > 0);
        assertEquals("rms_f32", info.kernel());
        call.prepare(context);
        call.run(context);
        assertArrayEquals(new float[] {1.5f, 1.5f, 3.5f, 3.5f}, Data.floats(dx));
        assertArrayEquals(new float[] {1, -2, 3, -4}, Data.floats(dweight));
        assertArrayEquals(new float[] {1, 2, 3, 4}, Data.floats(copy));
        call(part().dweight(dweight).accumulateDweight(true)).run(context);
        assertArrayEquals(new float[] {2, -4, 6, -8}, Data.floats(dweight));
    }

    @Test
    void refusals() {
        FastnormException none = assertThrows(FastnormException.class,
                () -> call(part()).run(context));
        assertEquals(Status.ERROR_ARGUMENT, none.status());
        assertTrue(none.getMessage().contains("parts[0].dx is NULL"), none.getMessage());
        NormHeadsBackwardPart[] nine = new NormHeadsBackwardPart[9];
        Arrays.fill(nine, part());
        FastnormException many = assertThrows(FastnormException.class,
                () -> call(nine).run(context));
        assertTrue(many.getMessage().contains("count is 9"), many.getMessage());
        assertThrows(IllegalArgumentException.class, () -> call().mrope(1, 2, 3, 4, 5));
        assertThrows(NullPointerException.class, () -> call((NormHeadsBackwardPart) null));
    }
}
