package dev.fastnorm;

/** What is known of a device. */
public final class DeviceInfo {
    private final String name;
    private final int capability;
    private final int multiprocessors;
    private final long l2Bytes;
    private final long memoryBytes;
    private final int driverVersion;
    private final int runtimeVersion;
    private final String kernelArch;

    DeviceInfo(Device device) {
        fastnorm_device_info raw = new fastnorm_device_info();
        try {
            Raw.fnj_device_describe(device.type().id, device.id(), raw);
            name = raw.getName();
            capability = raw.getCapability();
            multiprocessors = raw.getMultiprocessors();
            l2Bytes = raw.getL2_bytes();
            memoryBytes = raw.getMemory_bytes();
            driverVersion = raw.getDriver_version();
            runtimeVersion = raw.getRuntime_version();
            kernelArch = raw.getKernel_arch();
        } finally {
            raw.delete();
        }
    }

    /**
     * Model name.
     *
     * @return the name
     */
    public String name() {
        return name;
    }

    /**
     * CUDA compute capability.
     *
     * @return major * 10 + minor, such as 90; 0 for the CPU
     */
    public int capability() {
        return capability;
    }

    /**
     * Multiprocessors of a CUDA device, or logical processors that this process may run on.
     *
     * @return the number
     */
    public int multiprocessors() {
        return multiprocessors;
    }

    /**
     * Size of the level-2 cache; for the CPU, of one core.
     *
     * @return the size in bytes
     */
    public long l2Bytes() {
        return l2Bytes;
    }

    /**
     * Memory of a CUDA device.
     *
     * @return the size in bytes; 0 for the CPU
     */
    public long memoryBytes() {
        return memoryBytes;
    }

    /**
     * The CUDA version of the driver.
     *
     * @return major * 1000 + minor * 10; 0 for the CPU
     */
    public int driverVersion() {
        return driverVersion;
    }

    /**
     * The CUDA runtime that is linked into the library.
     *
     * @return major * 1000 + minor * 10; 0 for the CPU
     */
    public int runtimeVersion() {
        return runtimeVersion;
    }

    /**
     * The kernels that run there.
     *
     * @return such as {@code "sm_90"} or {@code "avx512"}
     */
    public String kernelArch() {
        return kernelArch;
    }

    @Override
    public String toString() {
        return name + " (" + kernelArch + ")";
    }
}
