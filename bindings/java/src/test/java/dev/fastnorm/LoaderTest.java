package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Where libfastnorm is looked for, in which order, and which ones are refused. */
class LoaderTest {
    private static final String NONE = "-Djava.library.path=/nowhere";
    private static final String SONAME = NativeLibrary.SONAME;

    private static Path folder;
    private static Path temporary;
    private static Path real;
    private static Path natives;

    @BeforeAll
    static void build() throws Exception {
        Child.source("src/test/native/fake.c");
        folder = Child.folder("loader");
        temporary = Files.createDirectory(folder.resolve("tmp"));
        natives = Path.of("META-INF/native/linux-"
                + System.getProperty("os.arch").replace("amd64", "x86_64"));
        real = Path.of(Files.readString(Child.CLASSES.resolve(natives).resolve("libdir")).strip());
        fake("newer", SONAME, 990000);
        fake("older", SONAME, RawConstants.FASTNORM_VERSION - 1);
        fake("other", "libfastnorm.so.77", 990000);
        fake("nameless", null, 990000);
        Files.writeString(Files.createDirectory(folder.resolve("text")).resolve(SONAME),
                "not a library\n");
        byte[] whole = Files.readAllBytes(real.resolve(SONAME));
        Files.write(Files.createDirectory(folder.resolve("cut")).resolve(SONAME),
                java.util.Arrays.copyOf(whole, 100));
    }

    @AfterAll
    static void remove() throws IOException {
        if (folder == null) {
            return;
        }
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
    }

    /** A library that computes nothing. */
    static void fake(Path out, String soname, int version) throws Exception {
        Path source = Child.source("src/test/native/fake.c");
        Path map = Files.writeString(out.resolveSibling("exports.map"),
                "FASTNORM_1 { global: fastnorm_*; local: *; };\n");
        List<String> command = new ArrayList<>(List.of("sh", "-c",
                "exec ${CC:-cc} \"$@\" $(pkg-config --cflags fastnorm)",
                "cc", "-pthread", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror",
                "-DFAKE_VERSION=" + version,
                "-Wl,--version-script=" + map, source.toString(), "-o", out.toString()));
        if (soname != null) {
            command.add("-Wl,-soname," + soname);
        }
        Child.run(Map.of(), command).ok();
    }

    private static void fake(String name, String soname, int version) throws Exception {
        fake(Files.createDirectory(folder.resolve(name)).resolve(SONAME), soname, version);
    }

    private static String load(Path classes, Map<String, String> environment,
            String... options) throws Exception {
        List<String> all = new ArrayList<>(List.of("-Xshare:auto",
                "-Djava.io.tmpdir=" + temporary));
        all.addAll(List.of(options));
        String[] lines = Child.java(classes, environment, LoaderProgram.class, all).ok()
                .split("\n");
        assertEquals(3, lines.length, String.join("\n", lines));
        assertEquals(lines[0], lines[1]); // the same answer each time
        assertEquals("left behind: []", lines[2]);
        return lines[0];
    }

    private static String load(String... options) throws Exception {
        return load(Child.CLASSES, Map.of(), options);
    }

    private static String property(Path path) {
        return "-D" + NativeLibrary.PROPERTY + "=" + path;
    }

    private static String realVersion() {
        return String.valueOf(Fastnorm.version());
    }

    // --- the order ---

    @Test
    void propertyNamesAFolder() throws Exception {
        assertEquals("990000 from " + folder.resolve("newer").resolve(SONAME),
                load(property(folder.resolve("newer")), NONE));
    }

    @Test
    void propertyNamesAFile() throws Exception {
        Path named = Files.copy(folder.resolve("newer").resolve(SONAME),
                folder.resolve("by_another_name"));
        assertEquals("990000 from " + named, load(property(named)));
    }

    @Test
    void propertyComesBeforeEverything() throws Exception {
        String text = load(Child.CLASSES, Map.of("LD_LIBRARY_PATH", real.toString()),
                property(folder.resolve("newer")),
                "-Djava.library.path=" + real);
        assertEquals("990000 from " + folder.resolve("newer").resolve(SONAME), text);
    }

    @Test
    void libraryPathComesBeforeTheBuild() throws Exception {
        assertEquals("990000 from " + folder.resolve("newer").resolve(SONAME),
                load("-Djava.library.path=/nowhere::" + folder.resolve("newer") + ":" + real));
    }

    @Test
    void environmentIsInTheLibraryPath() throws Exception {
        assertEquals("990000 from " + folder.resolve("newer").resolve(SONAME),
                load(Child.CLASSES, Map.of("LD_LIBRARY_PATH", folder.resolve("newer").toString())));
    }

    @Test
    void whereItWasAtTheBuild() throws Exception {
        assertEquals(realVersion() + " from " + real.resolve(SONAME), load(NONE));
    }

    @Test
    void insideOfTheJar() throws Exception {
        assertEquals("990000 from inside of the jar", load(jar("with", true), Map.of(), NONE));
    }

    @Test
    void systemLoaderAtLast() throws Exception {
        assertEquals("990000 from known to the system",
                load(jar("without", false),
                Map.of("LD_LIBRARY_PATH", folder.resolve("newer").toString()), NONE));
    }

    @Test
    void nowhere() throws Exception {
        String text = load(jar("nowhere", false), Map.of("LD_LIBRARY_PATH", ""), NONE);
        assertTrue(text.startsWith("refused: cannot load libfastnorm (known to the system): "),
                text);
        assertTrue(text.contains(SONAME)
                && text.contains("the system property fastnorm.library (a file or a folder)"),
                text);
    }

    /**
     * The classes of this build as a jar, without the folder that the build names, with or without
     * a library.
     */
    private static Path jar(String name, boolean bundled) throws IOException {
        Path jar = folder.resolve(name + ".jar");
        try (OutputStream out = Files.newOutputStream(jar);
                ZipOutputStream zip = new ZipOutputStream(out);
                Stream<Path> files = Files.walk(Child.CLASSES)) {
            for (Path file : files.filter(f -> Files.isRegularFile(f) && !f.endsWith("libdir"))
                    .toList()) {
                zip.putNextEntry(new ZipEntry(Child.CLASSES.relativize(file).toString()));
                Files.copy(file, zip);
            }
            if (bundled) {
                zip.putNextEntry(new ZipEntry(natives.resolve(SONAME).toString()));
                Files.copy(folder.resolve("newer").resolve(SONAME), zip);
            }
        }
        return jar;
    }

    @Test
    void twoClassLoaders() throws Exception {
        String output = Child.java(Child.CLASSES, Map.of(), LoaderProgram.class, List.of(NONE),
                "two-loaders").ok();
        String version = Fastnorm.versionString();
        assertEquals("loader 0: " + version + " true\nloader 1: " + version + " true\n", output);
    }

    // --- refusals ---

    @Test
    void propertyNamesNothing() throws Exception {
        assertEquals(
                "refused: the system property fastnorm.library is /nowhere; required: the file "
                + SONAME
                + " or a folder that holds it", load(property(Path.of("/nowhere"))));
        assertEquals("refused: the system property fastnorm.library is " + temporary
                + "; required: the file " + SONAME
                + " or a folder that holds it", load(property(temporary)));
    }

    @Test
    void anotherSoname() throws Exception {
        assertEquals("refused: " + folder.resolve("other").resolve(SONAME)
                + " is libfastnorm.so.77; required: " + SONAME,
                load(property(folder.resolve("other"))));
        assertEquals("refused: " + folder.resolve("nameless").resolve(SONAME)
                + " is a library without a soname; required: " + SONAME,
                load(property(folder.resolve("nameless"))));
    }

    private static String text(int version) {
        return version / 10000 + "." + version / 100 % 100 + "." + version % 100;
    }

    @Test
    void anOlderVersion() throws Exception {
        int wanted = RawConstants.FASTNORM_VERSION;
        assertEquals("refused: libfastnorm (" + folder.resolve("older").resolve(SONAME)
                + ") has version " + text(wanted - 1) + "; required: " + text(wanted) + " or newer",
                load(property(folder.resolve("older"))));
    }

    @Test
    void noLibraryAtAll() throws Exception {
        assertEquals("refused: cannot read " + folder.resolve("text").resolve(SONAME)
                + ": not a 64-bit little-endian ELF file", load(property(folder.resolve("text"))));
        assertEquals("refused: cannot read " + folder.resolve("cut").resolve(SONAME) + ": not a complete ELF file",
                load(property(folder.resolve("cut"))));
    }

    @Test
    void noTemporaryFolder() throws Exception {
        String output = Child.java(Child.CLASSES, Map.of(), LoaderProgram.class,
                List.of("-Djava.io.tmpdir=/nowhere")).ok();
        assertTrue(
                output.startsWith("refused: cannot make a folder in /nowhere (java.io.tmpdir): "),
                output);
    }
}
