package dev.fastnorm;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;

/** A library that pretends to be NCCL: its ranks are threads, and memory is the host's. */
final class FakeNccl {
    static final int ALL_REDUCE = 0;
    static final int REDUCE_SCATTER = 1;

    private static boolean loaded;

    private FakeNccl() {}

    /** Compiles the native part and opens the library. */
    static synchronized void load(String path) throws Exception {
        if (loaded) {
            return;
        }
        Path out = Files.createTempFile(Child.BUILD, "fake_nccl", ".so");
        String include = System.getProperty("java.home") + "/include";
        compile(Child.source("src/test/native/fake_nccl.c"), out,
                "-I" + include, "-I" + include + "/linux");
        System.load(out.toString());
        Files.delete(out);
        if (!open(path)) {
            throw new IllegalStateException(path + " cannot be loaded");
        }
        loaded = true;
    }

    static void compile(Path source, Path out, String... flags) throws Exception {
        List<String> command = new java.util.ArrayList<>(List.of("sh", "-c",
                "exec ${CC:-cc} \"$@\"", "cc", "-std=gnu99", "-shared", "-fPIC", "-Wall", "-Wextra",
                "-Werror"));
        command.addAll(List.of(flags));
        command.addAll(List.of(source.toString(), "-o", out.toString(), "-ldl"));
        Child.run(Map.of(), command).ok();
    }

    /** The functions of the library. */
    static NcclFunctions functions() {
        return new NcclFunctions(find("ncclGetVersion"), find("ncclCommCount"),
                find("ncclCommUserRank"), find("ncclCommCuDevice"), find("ncclAllReduce"),
                find("ncclReduceScatter"), find("ncclAllGather"), find("ncclGroupStart"),
                find("ncclGroupEnd"), find("ncclGetErrorString"));
    }

    private static native boolean open(String path);

    static native long find(String name);

    static native long[] create(int ranks);

    static native void destroy(long comm);

    static native int calls(long comm, int operation);

    static native void fail(long comm, int operation);
}
