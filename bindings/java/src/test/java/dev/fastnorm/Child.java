package dev.fastnorm;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** A virtual machine of its own, for what cannot be tried in that of the tests. */
final class Child {
    static final Path BUILD = Path.of(System.getProperty("fastnorm.test.build", "target"));
    static final Path CLASSES = BUILD.resolve("classes");
    static final Path TESTS = BUILD.resolve("test-classes");

    /** What a program did. */
    record Result(int code, String output) {
        /** The output, if it ended well. */
        String ok() {
            if (code != 0) {
                throw new AssertionError("exit code " + code + "\n" + output);
            }
            return output;
        }
    }

    private Child() {}

    /**
     * A file of this project, where the tests run beside their sources and a compiler; else they
     * are skipped.
     */
    static Path source(String name) {
        String folder = System.getProperty("fastnorm.test.basedir");
        assumeTrue(folder != null, "the sources and their compiler are not here");
        return Path.of(folder, name);
    }

    /** A file of the raw layer, where the tests run beside it; else they are skipped. */
    static Path generated(String name) {
        String folder = System.getProperty("fastnorm.test.generated");
        assumeTrue(folder != null, "the sources of the raw layer are not here");
        return Path.of(folder, name);
    }

    /** Runs a program of the tests over the classes of this build. */
    static Result java(Class<?> main, List<String> options, String... arguments) throws Exception {
        return java(CLASSES, Map.of(), main, options, arguments);
    }

    static Result java(Path classes, Map<String, String> environment, Class<?> main,
            List<String> options,
            String... arguments) throws Exception {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(options);
        command.addAll(List.of("-cp", classes + ":" + TESTS, main.getName()));
        command.addAll(List.of(arguments));
        return run(environment, command);
    }

    static Result run(Map<String, String> environment, List<String> command) throws Exception {
        Path output = Files.createTempFile(BUILD, "child", ".txt");
        try {
            ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true)
                    .redirectOutput(output.toFile());
            builder.environment().putAll(environment);
            Process process = builder.start();
            process.getOutputStream().close();
            if (!process.waitFor(300, TimeUnit.SECONDS)) {
                process.destroyForcibly().waitFor();
                throw new AssertionError("no end after 300 s: " + command + "\n"
                        + Files.readString(output));
            }
            return new Result(process.exitValue(), Files.readString(output));
        } finally {
            Files.deleteIfExists(output);
        }
    }

    /** A new folder in the build folder. */
    static Path folder(String name) throws IOException {
        return Files.createTempDirectory(BUILD, name);
    }
}
