package dev.fastnorm;

/** Where memory lives. */
public enum DeviceType {
    /** Ordinary host memory. */
    CPU(fastnorm_device_type.FASTNORM_DEVICE_CPU),
    /** Memory of a CUDA device. */
    CUDA(fastnorm_device_type.FASTNORM_DEVICE_CUDA),
    /** Pinned host memory; counts as the CPU's. */
    CUDA_HOST(fastnorm_device_type.FASTNORM_DEVICE_CUDA_HOST),
    /** Managed memory; counts as a CUDA device's. */
    CUDA_MANAGED(fastnorm_device_type.FASTNORM_DEVICE_CUDA_MANAGED);

    final int id;

    DeviceType(int id) {
        this.id = id;
    }
}
