package dev.fastnorm;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;

/** What only a library of its own kind can bring about; prints what it sees. */
final class FakeProgram {
    private FakeProgram() {}

    public static void main(String[] args) {
        System.out.println(Fastnorm.versionString());
        failures();
        workspace();
        logFromAnotherThread();
        closeInsideOfACall();
    }

    /** A thread that the virtual machine does not know logs. */
    private static void logFromAnotherThread() {
        List<String> seen = new ArrayList<>();
        try (Context context = Context.builder(Device.cpu())
                .log((level, text) -> seen.add(level + " " + text)).open()) {
            Norm.rms(2).run(context);
        }
        System.out.println(seen);
    }

    private static void failures() {
        try (Context context = Context.cpu()) {
            for (int code : new int[] {10, 55, 70, 80, 91, -3}) {
                try {
                    Norm.rms(code).run(context);
                } catch (FastnormException e) {
                    System.out.println(e.code() + " " + e.status() + " " + e.deviceError() + " "
                            + e.getMessage());
                }
            }
        }
    }

    /**
     * On the CPU the binding brings the workspace, once it was asked for; on a GPU the caller does.
     */
    private static void workspace() {
        Norm norm = Norm.rms(512);
        try (Context context = Context.cpu()) {
            for (int i = 0; i < 3; i++) {
                norm.run(context);
            }
            System.out.println("workspace of " + norm.query(context).workspaceBytes());
            try {
                norm.run(context, 0, 0, 0);
            } catch (FastnormException e) {
                System.out.println("given none: " + e.getMessage());
            }
            Tensor memory = Tensor.allocate(DType.I8, 1024);
            long aligned = memory.address() + 255 & -256;
            norm.run(context, 0, aligned, 512);
            System.out.println("filled: " + ((java.nio.ByteBuffer) memory.buffer())
                    .get((int) (aligned - memory.address()) + 511));
        }
        try (Context gpu = Context.cuda(0)) {
            norm.run(gpu);
        } catch (FastnormException e) {
            System.out.println("GPU: " + e.getMessage());
        }
    }

    /**
     * The library logs inside of the call; the sink closes the context; the call goes on with it.
     */
    private static void closeInsideOfACall() {
        List<String> seen = new ArrayList<>();
        AtomicReference<Context> self = new AtomicReference<>();
        self.set(Context.builder(Device.cpu()).log((level, text) -> {
            seen.add(level + " " + text);
            self.get().close();
        }).open());
        Norm.rms(1).run(self.get());
        System.out.println(seen);
        try {
            Norm.rms(1).run(self.get());
        } catch (IllegalStateException e) {
            System.out.println(e.getMessage());
        }
    }
}
