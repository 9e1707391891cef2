package dev.fastnorm;

import java.util.Objects;

/**
 * A device: what kind and which one. A value, which says nothing about whether the device is there.
 *
 * @param type what kind
 * @param id which one, as CUDA counts; 0 for the CPU
 */
public record Device(DeviceType type, int id) {
    /**
     * Makes a device of a kind and a number.
     *
     * @param type what kind
     * @param id which one, as CUDA counts; 0 for the CPU
     * @throws NullPointerException if {@code type} is null
     */
    public Device {
        Objects.requireNonNull(type, "type");
    }

    /**
     * The CPU.
     *
     * @return the device
     */
    public static Device cpu() {
        return new Device(DeviceType.CPU, 0);
    }

    /**
     * A CUDA device.
     *
     * @param id which one, as {@code cudaSetDevice} counts
     * @return the device
     */
    public static Device cuda(int id) {
        return new Device(DeviceType.CUDA, id);
    }

    /**
     * Number of devices of a kind that a context can be opened for: 1 for the CPU; for CUDA 0 where
     * there is no driver or the library was built without CUDA.
     *
     * @param type {@link DeviceType#CPU} or {@link DeviceType#CUDA}
     * @return the number of devices
     * @throws FastnormException {@link Status#ERROR_ARGUMENT} for another kind
     */
    public static int count(DeviceType type) {
        NativeLibrary.load();
        return Raw.fnj_device_count(type.id);
    }

    /**
     * Describes the device without opening a context.
     *
     * @return the description
     * @throws FastnormException {@link Status#ERROR_DEVICE} if there is no such device
     */
    public DeviceInfo info() {
        NativeLibrary.load();
        return new DeviceInfo(this);
    }
}
