package dev.fastnorm;

import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * Finds and loads libfastnorm, and the JNI library that calls it.
 *
 * <p>The JNI library is a part of the jar. It is unpacked into a private temporary folder, together
 * with a link to the libfastnorm that was found. Its run path makes the loader take that link,
 * whatever LD_LIBRARY_PATH says. Then the folder is removed. So each class loader has a JNI library
 * of its own, as the virtual machine demands, and all share one libfastnorm.
 */
final class NativeLibrary {
    /** The C ABI that this binding was generated for; sonames end with it. */
    static final int ABI = 1;

    static final String SONAME = "libfastnorm.so." + ABI;

    static final String PROPERTY = "fastnorm.library";

    private static final String JNI_NAME = "libfastnorm_jni.so";

    private static volatile boolean loaded;
    private static String failure;
    private static String origin;

    private NativeLibrary() {}

    /**
     * Loads the libraries unless they are.
     *
     * @throws UnsatisfiedLinkError with the same text at each call if they cannot be
     */
    static void load() {
        if (!loaded) {
            loadOnce();
        }
    }

    /** Where the library was found. */
    static String origin() {
        load();
        return origin;
    }

    private static synchronized void loadOnce() {
        if (loaded) {
            return;
        }
        if (failure == null) {
            try {
                origin = find();
                checkVersion();
                loaded = true;
                return;
            } catch (UnsatisfiedLinkError | IOException e) {
                failure = e.getMessage();
            }
        }
        throw new UnsatisfiedLinkError(failure);
    }

    /** An older library may lack functions; calling one ends the process. */
    private static void checkVersion() {
        int version = Raw.fastnorm_version();
        if (version < RawConstants.FASTNORM_VERSION) {
            throw new UnsatisfiedLinkError("libfastnorm (" + origin + ") has version "
                    + number(version)
                    + "; required: " + number(RawConstants.FASTNORM_VERSION) + " or newer");
        }
    }

    private static String number(int version) {
        return version / 10000 + "." + version / 100 % 100 + "." + version % 100;
    }

    /** Loads from the first place that has the library; where from. */
    private static String find() throws IOException {
        String given = System.getProperty(PROPERTY);
        if (given != null) {
            Path path = Path.of(given).toAbsolutePath();
            Path file = Files.isDirectory(path) ? path.resolve(SONAME) : path;
            if (!Files.isRegularFile(file)) {
                throw new UnsatisfiedLinkError("the system property " + PROPERTY + " is " + given
                        + "; required: the file " + SONAME + " or a folder that holds it");
            }
            return load(file);
        }
        List<String> folders =
                new ArrayList<>(List.of(System.getProperty("java.library.path", "")
                .split(File.pathSeparator)));
        String built = builtWith();
        if (built != null) {
            folders.add(built);
        }
        for (String folder : folders) {
            Path file = fileIn(folder);
            if (file != null) {
                return load(file);
            }
        }
        try (InputStream bundled = resource(SONAME)) {
            return load(bundled);
        }
    }

    private static Path fileIn(String folder) {
        try {
            Path file = Path.of(folder).toAbsolutePath().resolve(SONAME);
            return !folder.isEmpty() && Files.isRegularFile(file) ? file : null;
        } catch (InvalidPathException e) {
            return null;
        }
    }

    /** The folder of the library that pkg-config named when the JNI library was compiled. */
    private static String builtWith() throws IOException {
        try (InputStream in = resource("libdir")) {
            return in == null ? null : new String(in.readAllBytes(), StandardCharsets.UTF_8)
                    .strip();
        }
    }

    private static String platform() {
        String arch = System.getProperty("os.arch");
        return "linux-" + (arch.equals("amd64") ? "x86_64" : arch);
    }

    private static InputStream resource(String name) {
        return NativeLibrary.class.getResourceAsStream("/META-INF/native/" + platform() + "/"
                + name);
    }

    // --- loading ---

    private static String load(Path file) throws IOException {
        checkSoname(file);
        try (Unpacked folder = new Unpacked()) {
            Files.createSymbolicLink(folder.file(SONAME), file.toRealPath());
            folder.load(file.toString());
        }
        return file.toString();
    }

    /**
     * The library inside of the jar, or, where it is null, the one that the system's loader knows.
     */
    private static String load(InputStream bundled) throws IOException {
        try (Unpacked folder = new Unpacked()) {
            if (bundled != null) {
                Files.copy(bundled, folder.file(SONAME));
                checkSoname(folder.file(SONAME));
            }
            folder.load(bundled != null ? "inside of the jar" : "known to the system");
        }
        return bundled != null ? "inside of the jar" : "known to the system";
    }

    private static void checkSoname(Path file) throws IOException {
        String soname;
        try {
            soname = Elf.soname(file);
        } catch (IOException e) {
            throw new IOException("cannot read " + file + ": " + e.getMessage(), e);
        }
        if (!SONAME.equals(soname)) {
            throw new UnsatisfiedLinkError(file + " is "
                    + (soname == null ? "a library without a soname" : soname)
                    + "; required: " + SONAME);
        }
    }

    /** A private temporary folder with the JNI library. */
    private static final class Unpacked implements AutoCloseable {
        private final Path folder;

        Unpacked() throws IOException {
            try {
                folder = Files.createTempDirectory("fastnorm");
            } catch (IOException e) {
                throw new IOException("cannot make a folder in "
                        + System.getProperty("java.io.tmpdir")
                        + " (java.io.tmpdir): " + e, e);
            }
        }

        Path file(String name) {
            return folder.resolve(name);
        }

        void load(String from) throws IOException {
            try (InputStream in = resource(JNI_NAME)) {
                if (in == null) {
                    String version = number(RawConstants.FASTNORM_VERSION);
                    throw new UnsatisfiedLinkError("no jar of the class path has the JNI library"
                            + " for " + platform() + "; required: the artifact dev.fastnorm:"
                            + "fastnorm:" + version + " with the classifier " + platform()
                            + ", the file fastnorm-" + version + "-" + platform()
                            + ".jar. Releases have linux-x86_64 and linux-aarch64; elsewhere build"
                            + " the binding on such a machine");
                }
                Files.copy(in, file(JNI_NAME));
            }
            try {
                System.load(file(JNI_NAME).toString());
            } catch (UnsatisfiedLinkError e) {
                throw new UnsatisfiedLinkError("cannot load libfastnorm (" + from + "): "
                        + e.getMessage()
                        + "; it is looked for in the system property " + PROPERTY
                        + " (a file or a folder), in java.library.path, where it was when this jar"
                        + " was built, and inside of the jar");
            }
        }

        /** What is loaded stays mapped. */
        @Override
        public void close() throws IOException {
            Files.deleteIfExists(file(JNI_NAME));
            Files.deleteIfExists(file(SONAME));
            Files.deleteIfExists(folder);
        }
    }
}
