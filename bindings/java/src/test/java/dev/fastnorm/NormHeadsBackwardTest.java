package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Arrays;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Gradients of heads against differences of the forward, and what is refused. */
class NormHeadsBackwardTest {
    private static final int TOKENS = 3;
    private static final int HEADS = 2;
    private static final int D = 16;
    private static final int COUNT = TOKENS * HEADS * D;
    private static final double EPS = 1e-3;

    private static Context context;

    private final float[] dy = numbers(COUNT, 1);
    private final float[] x = numbers(COUNT, 2);
    private final float[] weight = numbers(D, 3);
    private final float[] cos = new float[TOKENS * 4];
    private final float[] sin = new float[TOKENS * 4];

    NormHeadsBackwardTest() {
        for (int i = 0; i < cos.length; i++) {
            double angle = i / 4 * (0.5 + i % 4);
            cos[i] = (float) Math.cos(angle);
            sin[i] = (float) Math.sin(angle);
        }
    }

    @BeforeAll
    static void open() {
        context = Context.cpu();
    }

    @AfterAll
    static void close() {
        context.close();
    }

    private static float[] numbers(int count, double seed) {
        float[] numbers = new float[count];
        for (int i = 0; i < count; i++) {
            numbers[i] = (float) (1.5 * Math.sin(1.7 * i + seed));
        }
        return numbers;
    }

    private static Tensor rows(float[] values) {
        return Tensor.copyOf(values, TOKENS, HEADS, D);
    }

    private static float[] floats(Tensor tensor, int count) {
        float[] values = new float[count];
        tensor.floats().get(values);
        return values;
    }

    /** The sum of dy times what the forward makes. */
    private double loss() {
        Tensor y = rows(new float[COUNT]);
        NormHeads.of(NormHeadsPart.of(rows(x)).layer(EPS).weight(Tensor.copyOf(weight, D)).rope(3)
                .y(y))
                .rope(8, Tensor.copyOf(cos, TOKENS, 4), Tensor.copyOf(sin, TOKENS, 4)).run(context);
        float[] values = floats(y, COUNT);
        double sum = 0;
        for (int i = 0; i < COUNT; i++) {
            sum += (double) values[i] * dy[i];
        }
        return sum;
    }

    private NormHeadsBackwardPart part() {
        return NormHeadsBackwardPart.of(rows(dy)).layer(EPS, rows(x))
                .weight(Tensor.copyOf(weight, D)).rope(3);
    }

    private NormHeadsBackward call(NormHeadsBackwardPart... parts) {
        return NormHeadsBackward.of(parts).rope(8, Tensor.copyOf(cos, TOKENS, 4),
                Tensor.copyOf(sin, TOKENS, 4));
    }

    private void near(float found, float[] values, int i) {
        final float step = 1f / 64;
        final float before = values[i];
        values[i] = before + step;
        double above = loss();
        values[i] = before - step;
        double below = loss();
        values[i] = before;
        double slope = (above - below) / (2 * step);
        assertEquals(slope, found, 0.01 * (1 + Math.abs(slope)), "element " + i);
    }

    @Test
    void gradientsAreSlopes() {
        Tensor dx = rows(new float[COUNT]);
        Tensor dweight = Tensor.copyOf(new float[D], D);
        call(part().dx(dx).dweight(dweight)).run(context);
        float[] found = floats(dx, COUNT);
        for (int i = 0; i < COUNT; i += 5) {
            near(found[i], x, i);
        }
        float[] once = floats(dweight, D);
        for (int i = 0; i < D; i++) {
            near(once[i], weight, i);
        }
        call(part().dweight(dweight).accumulateDweight(true)).run(context);
        float[] twice = floats(dweight, D);
        for (int i = 0; i < D; i++) {
            assertEquals(2 * once[i], twice[i]);
        }
    }

    @Test
    void aPartWithoutMoreCopies() {
        Tensor dx = rows(new float[COUNT]);
        NormHeadsBackward.of(NormHeadsBackwardPart.of(rows(dy)).dx(dx)).run(context);
        assertArrayEquals(dy, floats(dx, COUNT));
    }

    @Test
    void queries() {
        NormHeadsBackward call = call(part().dweight(Tensor.copyOf(new float[D], D)));
        Info info = call.query(context);
        assertTrue(info.workspaceBytes() > 0);
        assertEquals("layer_f32", info.kernel());
        call.prepare(context);
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
