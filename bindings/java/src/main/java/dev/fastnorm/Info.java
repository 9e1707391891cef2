package dev.fastnorm;

/** What a call would do: the answer of the query methods. */
public final class Info {
    private final long workspaceBytes;
    private final long bytesRead;
    private final long bytesWritten;
    private final String kernel;
    private final int launches;
    private final int threadsPerRow;
    private final int vectorsPerThread;
    private final int rowsPerBlock;
    private final int blocksPerRow;
    private final int vectorBytes;
    private final long blocks;
    private final long profileBytes;
    private final String kind;
    private final String choice;
    private final String variant;

    Info(fastnorm_info raw) {
        workspaceBytes = raw.getWorkspace_bytes();
        bytesRead = raw.getBytes_read();
        bytesWritten = raw.getBytes_written();
        kernel = raw.getKernel();
        launches = raw.getLaunches();
        threadsPerRow = raw.getThreads_per_row();
        vectorsPerThread = raw.getVectors_per_thread();
        rowsPerBlock = raw.getRows_per_block();
        blocksPerRow = raw.getBlocks_per_row();
        vectorBytes = raw.getVector_bytes();
        blocks = raw.getBlocks();
        profileBytes = raw.getProfile_bytes();
        kind = raw.getKind();
        choice = raw.getChoice();
        variant = raw.getVariant();
    }

    /**
     * Workspace that the call needs. It never falls as rows are added.
     *
     * @return the size in bytes; 0 for none
     */
    public long workspaceBytes() {
        return workspaceBytes;
    }

    /**
     * Bytes of the tensors that must be read, each once.
     *
     * @return the number of bytes
     */
    public long bytesRead() {
        return bytesRead;
    }

    /**
     * Bytes of the tensors that must be written, each once.
     *
     * @return the number of bytes
     */
    public long bytesWritten() {
        return bytesWritten;
    }

    /**
     * Name of the kernel, as {@link Fastnorm#kernels()} lists it.
     *
     * @return the name; {@code ""} if nothing is launched
     */
    public String kernel() {
        return kernel;
    }

    /**
     * Kernel launches. On the CPU 1 for each normalisation that has rows.
     *
     * @return the number
     */
    public int launches() {
        return launches;
    }

    /**
     * CUDA: threads that share a row, in all its thread blocks.
     *
     * @return the number; 1 on the CPU
     */
    public int threadsPerRow() {
        return threadsPerRow;
    }

    /**
     * CUDA: 16-byte vectors of a row that a thread holds.
     *
     * @return the number; 0 where the row is streamed, and on the CPU
     */
    public int vectorsPerThread() {
        return vectorsPerThread;
    }

    /**
     * CUDA: rows a thread block works on. CPU: rows that are worth another thread.
     *
     * @return the number
     */
    public int rowsPerBlock() {
        return rowsPerBlock;
    }

    /**
     * CUDA: thread blocks, one cluster, that share a row.
     *
     * @return the number; 1 on the CPU
     */
    public int blocksPerRow() {
        return blocksPerRow;
    }

    /**
     * Widest access that the addresses and strides of rows, weight and bias allow.
     *
     * @return the width in bytes
     */
    public int vectorBytes() {
        return vectorBytes;
    }

    /**
     * CUDA: thread blocks in the grid. CPU: threads at the most.
     *
     * @return the number
     */
    public long blocks() {
        return blocks;
    }

    /**
     * The profile that the call writes.
     *
     * @return the size in bytes; 0 for none
     */
    public long profileBytes() {
        return profileBytes;
    }

    /**
     * The kinds of call that share a list of choices.
     *
     * @return the list's KIND line; empty if no list decides
     */
    public String kind() {
        return kind;
    }

    /**
     * The line of that list that decides which kernel runs, or that a tuning file does.
     *
     * @return the line; empty if no list decides
     */
    public String choice() {
        return choice;
    }

    /**
     * The line that describes the kernel.
     *
     * @return the line; empty on a CPU
     */
    public String variant() {
        return variant;
    }

    @Override
    public String toString() {
        return "Info[kernel=" + kernel + ", launches=" + launches + ", bytesRead=" + bytesRead
                + ", bytesWritten=" + bytesWritten + ", workspaceBytes=" + workspaceBytes
                + ", blocks=" + blocks
                + ", threadsPerRow=" + threadsPerRow + ", vectorsPerThread=" + vectorsPerThread
                + ", rowsPerBlock="
                + rowsPerBlock + ", blocksPerRow=" + blocksPerRow + ", vectorBytes=" + vectorBytes
                + ", profileBytes="
                + profileBytes + ", kind=" + kind + ", choice=" + choice + ", variant=" + variant
                + "]";
    }
}
