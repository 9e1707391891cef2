package dev.fastnorm;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** What is known of the loaded library. */
public final class Fastnorm {
    private Fastnorm() {}

    /**
     * Version of the loaded library as one comparable number.
     *
     * @return major * 10000 + minor * 100 + patch
     */
    public static int version() {
        NativeLibrary.load();
        return Raw.fastnorm_version();
    }

    /**
     * Version of the loaded library as text.
     *
     * @return such as {@code "0.1.0"}
     */
    public static String versionString() {
        NativeLibrary.load();
        return Raw.fastnorm_version_string();
    }

    /**
     * What the library was built with: one "key: value" line each, for people and logs.
     *
     * @return the lines
     */
    public static String buildInfo() {
        NativeLibrary.load();
        return Raw.fastnorm_build_info();
    }

    /**
     * Version of the arithmetic: two libraries with the same number give the same bits for the same
     * call on the same backend.
     *
     * @return the version
     */
    public static int numericVersion() {
        NativeLibrary.load();
        return Raw.fastnorm_numeric_version();
    }

    /**
     * All kernels of the loaded library, for all devices.
     *
     * @return an unmodifiable list
     */
    public static List<KernelInfo> kernels() {
        NativeLibrary.load();
        int count = Raw.fastnorm_kernel_count();
        List<KernelInfo> kernels = new ArrayList<>(count);
        fastnorm_kernel_info raw = new fastnorm_kernel_info();
        try {
            for (int i = 0; i < count; i++) {
                Raw.fastnorm_kernel_describe(i, raw);
                kernels.add(new KernelInfo(raw.getFamily(), raw.getArch(), raw.getName()));
            }
        } finally {
            raw.delete();
        }
        return Collections.unmodifiableList(kernels);
    }
}
