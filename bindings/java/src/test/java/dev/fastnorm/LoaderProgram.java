package dev.fastnorm;

import java.io.File;
import java.net.URL;
import java.net.URLClassLoader;
import java.util.ArrayList;
import java.util.List;

/** Prints which library it gets, or why not, twice. */
final class LoaderProgram {
    private LoaderProgram() {}

    public static void main(String[] args) throws Exception {
        if (args.length > 0 && args[0].equals("two-loaders")) {
            twoLoaders();
            return;
        }
        for (int i = 0; i < 2; i++) {
            try {
                System.out.println(Fastnorm.version() + " from " + NativeLibrary.origin());
            } catch (UnsatisfiedLinkError e) {
                System.out.println("refused: " + e.getMessage());
            }
        }
        String left = new File(System.getProperty("java.io.tmpdir")).list() == null
                ? "no folder"
                : String.join(" ", new File(System.getProperty("java.io.tmpdir"))
                .list((d, n) -> n.startsWith("fastnorm")));
        System.out.println("left behind: [" + left + "]");
    }

    /** As in an application server: the binding in two class loaders at a time. */
    private static void twoLoaders() throws Exception {
        List<URL> urls = new ArrayList<>();
        for (String entry : System.getProperty("java.class.path").split(File.pathSeparator)) {
            urls.add(new File(entry).toURI().toURL());
        }
        for (int i = 0; i < 2; i++) {
            try (URLClassLoader loader = new URLClassLoader(urls.toArray(new URL[0]),
                    ClassLoader.getPlatformClassLoader())) {
                Class<?> type = loader.loadClass("dev.fastnorm.Fastnorm");
                System.out.println("loader " + i + ": " + type.getMethod("versionString").invoke(null) + " "
                        + (type != Fastnorm.class));
            }
        }
    }
}
