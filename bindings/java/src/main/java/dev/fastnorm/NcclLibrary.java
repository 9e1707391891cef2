package dev.fastnorm;

import java.io.File;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Finds and loads libfastnorm_nccl, when it is first used. It is no part of the jar. */
final class NcclLibrary {
    static final String SONAME = "libfastnorm_nccl.so." + NativeLibrary.ABI;

    static final String PROPERTY = "fastnorm.nccl.library";

    private static volatile boolean loaded;

    private NcclLibrary() {}

    /**
     * Loads the library unless it is.
     *
     * @throws UnsatisfiedLinkError if it cannot be; the next call tries again
     */
    static void load() {
        NativeLibrary.load();
        if (loaded) {
            return;
        }
        try {
            Raw.fnb_nccl_load(find());
        } catch (FastnormException e) {
            throw new UnsatisfiedLinkError(e.getMessage()
                    + "; it is looked for in the system property " + PROPERTY
                    + " (a file or a folder), in java.library.path, and beside libfastnorm");
        }
        loaded = true;
    }

    /** A file, or the name for the system's loader. */
    private static String find() {
        String given = System.getProperty(PROPERTY);
        if (given != null) {
            Path path = Path.of(given).toAbsolutePath();
            Path file = Files.isDirectory(path) ? path.resolve(SONAME) : path;
            if (!Files.isRegularFile(file)) {
                throw new UnsatisfiedLinkError("the system property " + PROPERTY + " is " + given
                        + "; required: the file " + SONAME + " or a folder that holds it");
            }
            return file.toString();
        }
        List<String> folders =
                new ArrayList<>(List.of(System.getProperty("java.library.path", "")
                .split(File.pathSeparator)));
        folders.add(folderOfTheLibrary());
        for (String folder : folders) {
            Path file = fileIn(folder);
            if (file != null) {
                return file.toString();
            }
        }
        return SONAME;
    }

    private static String folderOfTheLibrary() {
        Path folder = Path.of(NativeLibrary.origin()).getParent(); // null inside of the jar
        return folder == null ? "" : folder.toString();
    }

    private static Path fileIn(String folder) {
        try {
            Path file = Path.of(folder).toAbsolutePath().resolve(SONAME);
            return !folder.isEmpty() && Files.isRegularFile(file) ? file : null;
        } catch (InvalidPathException e) {
            return null;
        }
    }
}
