package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Random;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Gradients against the formula in double precision. */
class NormBackwardTest {
    private static final int ROWS = 7;
    private static final int N = 96;
    private static final double EPS = 1e-3;

    private static Context context;

    private final Random random = new Random(41);
    private final double[] x = numbers(ROWS * N);
    private final double[] dy = numbers(ROWS * N);
    private final double[] weight = numbers(N);
    private final double[] residualGradient = numbers(ROWS * N);
    private final double[] dx = new double[ROWS * N];
    private final double[] dweight = new double[N];
    private final double[] dbias = new double[N];

    @BeforeAll
    static void open() {
        context = Context.cpu();
    }

    @AfterAll
    static void close() {
        context.close();
    }

    private double[] numbers(int count) {
        return random.doubles(count, -2, 2).map(v -> (float) v).toArray();
    }

    /** Fills in dx, dweight and dbias: derivatives of sum(dy * y) + sum(residualGradient * x). */
    private void differentiate(boolean layer) {
        for (int row = 0; row < ROWS; row++) {
            double mean = 0;
            double squares = 0;
            double c1 = 0;
            double c2 = 0;
            for (int i = 0; i < N; i++) {
                mean += layer ? x[row * N + i] / N : 0;
            }
            for (int i = 0; i < N; i++) {
                squares += Math.pow(x[row * N + i] - mean, 2) / N;
            }
            double rstd = 1 / Math.sqrt(squares + EPS);
            for (int i = 0; i < N; i++) {
                double xhat = (x[row * N + i] - mean) * rstd;
                c1 += dy[row * N + i] * weight[i] * xhat / N;
                c2 += layer ? dy[row * N + i] * weight[i] / N : 0;
                dweight[i] += dy[row * N + i] * xhat;
                dbias[i] += dy[row * N + i];
            }
            for (int i = 0; i < N; i++) {
                double xhat = (x[row * N + i] - mean) * rstd;
                dx[row * N + i] = (dy[row * N + i] * weight[i] - c2 - xhat * c1) * rstd
                        + residualGradient[row * N + i];
            }
        }
    }

    private static NormBackward begin(boolean layer) {
        return layer ? NormBackward.layer(EPS) : NormBackward.rms(EPS);
    }

    private static void assertClose(double[] wanted, Tensor found) {
        for (int i = 0; i < wanted.length; i++) {
            assertEquals(wanted[i], Data.get(found, i), 2e-5, "element " + i);
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void gradients(boolean layer) {
        Tensor rows = Data.tensor(DType.F32, x, ROWS, N);
        Tensor weights = Data.tensor(DType.F32, weight, N);
        Tensor mean = Tensor.allocate(DType.F32, ROWS);
        Tensor rstd = Tensor.allocate(DType.F32, ROWS);
        (layer ? Norm.layer(EPS).mean(mean) : Norm.rms(EPS)).x(rows).weight(weights).rstd(rstd)
                .y(Tensor.allocate(DType.F32, ROWS, N)).run(context);
        differentiate(layer);
        for (boolean saved : new boolean[] {true, false}) {
            Tensor ofX = Tensor.allocate(DType.F32, ROWS, N);
            Tensor ofWeight = Tensor.allocate(DType.F32, N);
            Tensor ofBias = Tensor.allocate(DType.F32, N);
            NormBackward call = begin(layer).x(rows).weight(weights)
                    .dy(Data.tensor(DType.F32, dy, ROWS, N))
                    .dresidualIn(Data.tensor(DType.F32, residualGradient, ROWS, N))
                    .rstd(saved ? rstd : null).mean(saved && layer ? mean : null)
                    .dx(ofX).dweight(ofWeight).dbias(ofBias);
            call.run(context);
            assertClose(dx, ofX);
            assertClose(dweight, ofWeight);
            assertClose(dbias, ofBias);
            assertTrue(call.query(context).workspaceBytes() > 0);
            call.dx(null).dweight(null).accumulateDbias(true).run(context);
            double[] twice = dbias.clone();
            for (int i = 0; i < N; i++) {
                twice[i] *= 2;
            }
            assertClose(twice, ofBias);
        }
    }

    /** A gate that is a factor gives the bits of a call with the product of dy and the gate. */
    @Test
    void gates() {
        double[] gate = random.ints(ROWS * N, -3, 4).mapToDouble(v -> v + 0.5).toArray();
        double[] product = new double[ROWS * N];
        for (int i = 0; i < product.length; i++) {
            product[i] = (float) dy[i] * (float) gate[i];
        }
        Tensor gated = Tensor.allocate(DType.F32, ROWS, N);
        Tensor plain = Tensor.allocate(DType.F32, ROWS, N);
        Tensor ofGate = Tensor.allocate(DType.F32, ROWS, N);
        NormBackward call = NormBackward.rms(EPS).x(Data.tensor(DType.F32, x, ROWS, N))
                .dy(Data.tensor(DType.F32, dy, ROWS, N))
                .gate(Data.tensor(DType.F32, gate, ROWS, N)).groupSize(32);
        call.dx(gated).dgate(ofGate).run(context);
        NormBackward.rms(EPS).x(Data.tensor(DType.F32, x, ROWS, N)).groupSize(32)
                .dy(Data.tensor(DType.F32, product, ROWS, N)).dx(plain).run(context);
        double difference = 0;
        for (int i = 0; i < ROWS * N; i++) {
            assertEquals(Data.get(plain, i), Data.get(gated, i), "element " + i);
        }
        call.gateAct(Activation.SILU).gatePosition(GatePosition.BEFORE_NORM).dx(plain).run(context);
        for (int i = 0; i < ROWS * N; i++) {
            difference += Math.abs(Data.get(plain, i) - Data.get(gated, i));
        }
        assertTrue(difference > 1);
        call.gateSource(GateSource.ROUNDED);
        assertThrows(FastnormException.class, () -> call.run(context));
    }

    /** The norm of a branch has the bits of a call of its own, whose dy is dx times alpha. */
    @Test
    void branches() {
        double[] branch = random.ints(ROWS * N, -9, 10).mapToDouble(v -> v + 0.25).toArray();
        Tensor dx = Tensor.allocate(DType.F32, ROWS, N);
        Tensor dbranch = Tensor.allocate(DType.F32, ROWS, N);
        Tensor alone = Tensor.allocate(DType.F32, ROWS, N);
        NormBackward call = NormBackward.rms(EPS).x(Data.tensor(DType.F32, x, ROWS, N))
                .dy(Data.tensor(DType.F32, dy, ROWS, N)).dx(dx)
                .branch(Data.tensor(DType.F32, branch, ROWS, N)).branchLayer(EPS).alpha(0.5)
                .dbranch(dbranch);
        call.run(context);
        double[] halves = new double[ROWS * N];
        for (int i = 0; i < halves.length; i++) {
            halves[i] = 0.5 * Data.get(dx, i);
        }
        NormBackward.layer(EPS).x(Data.tensor(DType.F32, branch, ROWS, N))
                .dy(Data.tensor(DType.F32, halves, ROWS, N)).dx(alone).run(context);
        for (int i = 0; i < ROWS * N; i++) {
            assertEquals(Data.get(alone, i), Data.get(dbranch, i), "element " + i);
        }
        assertThrows(FastnormException.class, () -> call.branch(null).run(context));
    }

    @Test
    void listsHaveTheResultsOfTheirParts() {
        Tensor rows = Data.tensor(DType.F32, x, ROWS, N);
        Tensor gradient = Data.tensor(DType.F32, dy, ROWS, N);
        Tensor[] found = new Tensor[4];
        for (int i = 0; i < 4; i++) {
            found[i] = Tensor.allocate(DType.F32, ROWS, N);
        }
        NormBackward[] parts = new NormBackward[4];
        for (int i = 0; i < 4; i++) {
            parts[i] = begin(i % 2 == 1).x(rows).dy(gradient).dx(found[i]);
        }
        parts[0].run(context);
        parts[1].run(context);
        NormBackward.many(parts[2], parts[3]).run(context);
        assertArrayEquals(Data.floats(found[0]), Data.floats(found[2]));
        assertArrayEquals(Data.floats(found[1]), Data.floats(found[3]));
    }

    @Test
    void whatTheLibraryRefuses() {
        Tensor rows = Data.tensor(DType.F32, x, ROWS, N);
        NormBackward call = NormBackward.rms(EPS).x(rows).dx(Tensor.allocate(DType.F32, ROWS, N));
        FastnormException refused = assertThrows(FastnormException.class, () -> call.run(context));
        assertEquals(Status.ERROR_ARGUMENT, refused.status());
        assertTrue(refused.getMessage().contains("dy"), refused.getMessage());
    }
}
