package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.junit.jupiter.api.Test;

/** One context, many threads. */
class ThreadsTest {
    private static final int THREADS = 8;

    private static void together(
            java.util.function.IntFunction<Callable<Void>> task) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(THREADS);
        try {
            List<Future<Void>> running = new ArrayList<>();
            for (int i = 0; i < THREADS; i++) {
                running.add(pool.submit(task.apply(i)));
            }
            for (Future<Void> future : running) {
                future.get();
            }
        } finally {
            pool.shutdownNow();
        }
    }

    /** Each thread expects the text of its own failure, while the others fail with theirs. */
    @Test
    void everyThreadItsOwnText() throws Exception {
        try (Context context = Context.cpu()) {
            Tensor x = Tensor.allocate(DType.F32, 1, 4);
            together(i -> () -> {
                double eps = -1 - i;
                Norm norm = Norm.rms(eps).xInPlace(x);
                String text = "eps is " + (int) eps + "; required: finite and >= 0";
                for (int call = 0; call < 5000; call++) {
                    FastnormException thrown = assertThrows(FastnormException.class,
                            () -> norm.run(context));
                    assertEquals(text, thrown.getMessage());
                }
                return null;
            });
        }
    }

    /** One description, run by all: its list of words is made while they race. */
    @Test
    void oneNormForAll() throws Exception {
        try (Context context = Context.cpu()) {
            for (int round = 0; round < 200; round++) {
                Tensor x = Data.rows(new float[] {2, 2, 4, -4}, 2);
                Norm norm = Norm.rms(0).x(x).y(Tensor.allocate(DType.F32, 2, 2))
                        .weight(Tensor.copyOf(new float[] {1, 1}, 2));
                together(i -> () -> {
                    assertEquals(1, norm.query(context).launches());
                    return null;
                });
            }
        }
    }

    @Test
    void results() throws Exception {
        try (Context context = Context.builder(Device.cpu()).threads(2).open()) {
            together(i -> () -> {
                for (int call = 0; call < 500; call++) {
                    float value = 1 + i + call;
                    Tensor x = Data.rows(new float[] {value, -value, value, value}, 2);
                    Tensor y = Tensor.allocate(DType.F32, 2, 2);
                    Norm.rms(0).x(x).y(y).run(context);
                    assertArrayEquals(new float[] {1, -1, 1, 1}, Data.floats(y), 1e-6f);
                }
                return null;
            });
        }
    }
}
