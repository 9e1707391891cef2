package dev.fastnorm;

import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;

/** Memory and streams of CUDA device 0: gpu.c. Failures are IllegalStateExceptions. */
final class Gpu {
    private Gpu() {}

    /** Loads the library that the property fastnorm.test.gpu names, or compiles one. */
    static void load() throws Exception {
        String given = System.getProperty("fastnorm.test.gpu");
        if (given != null) {
            System.load(Path.of(given).toAbsolutePath().toString());
            return;
        }
        Path out = Files.createTempFile(Child.BUILD, "gpu", ".so");
        String include = System.getProperty("java.home") + "/include";
        Child.run(Map.of(),
                List.of("sh", "-c", "exec ${CC:-cc} \"$@\"", "cc", "-std=gnu99", "-shared", "-fPIC",
                "-Wall",
                "-Wextra", "-Werror", "-I" + include, "-I" + include + "/linux",
                System.getProperty("fastnorm.test.basedir") + "/src/test/native/gpu.c", "-o",
                out.toString(), "-ldl")).ok();
        System.load(out.toString());
        Files.delete(out);
    }

    static native long allocate(long bytes);

    static native void free(long address);

    static native void copyIn(long address, ByteBuffer from, long bytes);

    static native void copyOut(ByteBuffer to, long address, long bytes);

    static native long createStream();

    static native void destroyStream(long stream);

    static native void synchronize(long stream);
}
