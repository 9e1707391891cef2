package dev.fastnorm;

import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Calls of every kind, in a loop. With -Xcheck:jni it shows that the native code keeps the rules;
 * with many rounds that it keeps no memory: the resident size before and after is printed.
 */
final class CallsProgram {
    private CallsProgram() {}

    public static void main(String[] args) throws Exception {
        int rounds = Integer.parseInt(args[0]);
        round(Math.max(rounds / 4, 1)); // what is compiled, cached and grown once
        System.gc();
        long before = residentBytes();
        long calls = round(rounds);
        System.gc();
        long after = residentBytes();
        System.out.println(calls + " calls, " + before + " bytes before, " + after
                + " bytes after");
    }

    /** 21 calls in each round, and in every fourth some of the other kinds. */
    private static long round(int rounds) {
        long calls = 0;
        Tensor x = Data.rows(new float[] {2, 2, 2, 2}, 1);
        Tensor y = Tensor.allocate(DType.F32, 1, 4);
        Norm kept = Norm.rms(0).x(x).y(y);
        try (Context context = Context.cpu();
                Context gpu = Context.builder(Device.cuda(0)).dryRun(90).open()) {
            Norm device = Norm.rms(1e-6).xInPlace(Tensor.at(gpu, 0x100000, DType.BF16, 8, 64));
            for (int i = 0; i < rounds; i++) {
                for (int k = 0; k < 10; k++) {
                    kept.run(context);
                    device.run(gpu);
                }
                Norm.rms(0).x(Tensor.of(x.floats(), 1, 4)).y(Tensor.of(y.floats(), 1, 4))
                        .run(context);
                calls += 21;
                if (i % 4 == 0) {
                    calls += seldom(context, kept, x, i);
                }
            }
        }
        return calls;
    }

    private static int seldom(Context context, Norm kept, Tensor x, int i) {
        kept.prepare(context);
        NormList both = Norm.many(kept, other());
        int launches = kept.query(context).launches() + both.query(context).launches();
        both.prepare(context);
        both.run(context);
        try {
            Norm.rms(-1).x(x).y(x).run(context);
            throw new AssertionError("not refused");
        } catch (FastnormException e) {
            launches += e.getMessage().length();
        }
        try (Context logging = Context.builder(Device.cpu()).threads(i % 200 == 0 ? 2 : 1)
                .log((level, text) -> {}).open()) {
            kept.run(logging);
        }
        try {
            Context.builder(Device.cpu()).threads(-1).log((level, text) -> {}).open();
            throw new AssertionError("not refused");
        } catch (FastnormException e) {
            launches += e.code();
        }
        if (launches == 0 || Device.cpu().info().multiprocessors() == 0
                || Fastnorm.versionString().isEmpty()
                || i % 1000 == 0 && Fastnorm.kernels().isEmpty()
                || Device.count(DeviceType.CPU) != 1) {
            throw new AssertionError();
        }
        return 10;
    }

    private static Norm other() {
        return Norm.layer(1).xInPlace(Tensor.allocate(DType.F32, 2, 8));
    }

    private static long residentBytes() throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmRSS:")) {
                return Long.parseLong(line.replaceAll("[^0-9]", "")) * 1024;
            }
        }
        throw new AssertionError("no VmRSS");
    }
}
