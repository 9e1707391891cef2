package dev.fastnorm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/** The example of the README, compiled and run as it stands. */
class ReadmeTest {
    @Test
    void exampleCompilesRunsAndPrintsWhatItSays() throws Exception {
        String readme = Files.readString(Child.source("README.md"));
        Path folder = Child.folder("readme");
        Path source = folder.resolve("Example.java");
        try {
            Files.writeString(source, block(readme, "java"));
            Child.Result result = Child.run(Map.of(),
                    List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                    "-cp", Child.CLASSES.toString(), source.toString()));
            assertEquals(block(readme, "text"), result.ok());
        } finally {
            Files.deleteIfExists(source);
            Files.delete(folder);
        }
    }

    private static String block(String text, String language) {
        Matcher matcher = Pattern.compile("^```" + language + "\n(.*?)^```",
                Pattern.MULTILINE | Pattern.DOTALL).matcher(text);
        assertTrue(matcher.find(), "no block of " + language);
        return matcher.group(1);
    }
}
