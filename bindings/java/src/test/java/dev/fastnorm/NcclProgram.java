package dev.fastnorm;

/** What the first uses of libfastnorm_nccl do in a process of its own. */
public final class NcclProgram {
    private NcclProgram() {}

    /**
     * Prints what each of two uses threw.
     *
     * @param arguments none
     */
    public static void main(String[] arguments) {
        System.out.println("libfastnorm " + Fastnorm.versionString());
        for (int i = 0; i < 2; i++) {
            try {
                Nccl.useFunctions(null);
                System.out.println("loaded");
            } catch (UnsatisfiedLinkError e) {
                System.out.println(e.getMessage());
            }
        }
    }
}
