package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/** What is seen of a whole process. */
class ProcessTest {
    /** The virtual machine's own check of what native code does with it finds nothing to say. */
    @Test
    void checkedJniIsSilent() throws Exception {
        String output = Child.java(CallsProgram.class, List.of("-Xcheck:jni", "-Xms64m"), "300")
                .ok();
        assertTrue(output.matches("\\d+ calls, \\d+ bytes before, \\d+ bytes after\n"), output);
    }

    /** A million calls, tensors, failures and contexts among them, and no memory kept. */
    @Test
    void aMillionCallsKeepNoMemory() throws Exception {
        String output = Child.java(CallsProgram.class,
                List.of("-Xms48m", "-Xmx48m", "-XX:+AlwaysPreTouch", "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1"), "45000").ok();
        System.out.print(output);
        Matcher numbers = Pattern.compile("(\\d+) calls, (\\d+) bytes before, (\\d+) bytes after\n")
                .matcher(output);
        assertTrue(numbers.matches(), output);
        assertTrue(Long.parseLong(numbers.group(1)) >= 1_000_000, output);
        long growth = Long.parseLong(numbers.group(3)) - Long.parseLong(numbers.group(2));
        assertTrue(growth < 1 << 20, "grown by " + growth + " bytes");
    }

    @Test
    void aLibraryThatDoesWhatTheRealOneDoesNot() throws Exception {
        Child.source("src/test/native/fake.c");
        Path folder = Child.folder("fake");
        Path library = folder.resolve(NativeLibrary.SONAME);
        try {
            LoaderTest.fake(library, NativeLibrary.SONAME, RawConstants.FASTNORM_VERSION);
            String output = Child.java(FakeProgram.class,
                    List.of("-D" + NativeLibrary.PROPERTY + "=" + library, "-Xcheck:jni", "-Dstdout.encoding=UTF-8",
                            "-Dfile.encoding=UTF-8"))
                    .ok();
            assertEquals("""
                    fake 🐢
                    10 ERROR_ARGUMENT 719 as the ε says
                    55 ERROR_UNSUPPORTED 719 as the ε says
                    70 ERROR_OUT_OF_MEMORY 719 as the ε says
                    80 ERROR_INTERNAL 719 as the ε says
                    91 UNKNOWN 719 as the ε says
                    -3 UNKNOWN 719 as the ε says
                    workspace of 512
                    given none: workspace_bytes is too small
                    filled: -18
                    GPU: workspace_bytes is too small
                    [WARNING from another thread, INFO destroyed]
                    [DEBUG in a call, DEBUG still in it, INFO destroyed]
                    context is closed
                    """, output);
        } finally {
            for (String name : List.of(NativeLibrary.SONAME, "exports.map", "")) {
                Files.deleteIfExists(folder.resolve(name));
            }
        }
    }
}
