package fastnorm

import (
	"fmt"
	"math"

	"github.com/libfastnorm/libfastnorm/bindings/go/internal/raw"
)

// String returns "CPU", "CUDA", and so on.
func (t DeviceType) String() string {
	switch t {
	case DeviceCPU:
		return "CPU"
	case DeviceCUDA:
		return "CUDA"
	case DeviceCUDAHost:
		return "CUDAHost"
	case DeviceCUDAManaged:
		return "CUDAManaged"
	}
	return fmt.Sprintf("DeviceType(%d)", int32(t))
}

// Device is a device type and an ordinal. Devices compare with ==.
type Device uint64

// CPU is the device of ordinary memory.
const CPU = Device(DeviceCPU)

// CUDA is the GPU of that ordinal, as cudaSetDevice counts.
func CUDA(id int) Device { return DeviceOf(DeviceCUDA, id) }

// DeviceOf makes a device of its parts.
func DeviceOf(t DeviceType, id int) Device {
	return Device(uint32(t)) | Device(uint32(clip(id)))<<32
}

// Type returns the kind of the device.
func (d Device) Type() DeviceType { return DeviceType(uint32(d)) }

// ID returns the ordinal; 0 for the CPU.
func (d Device) ID() int { return int(int32(d >> 32)) }

// String returns the type and the ordinal, such as "CUDA:0".
func (d Device) String() string { return fmt.Sprintf("%v:%d", d.Type(), d.ID()) }

// clip converts to the nearest int32, which the library refuses where the number itself is too
// large.
func clip(n int) int32 { return int32(max(math.MinInt32, min(math.MaxInt32, n))) }

// DeviceCount returns the number of devices of a type that a context can be opened for. Without a
// CUDA driver, or a CUDA backend in the library, there are 0 CUDA devices.
func DeviceCount(t DeviceType) (int, error) {
	var count int32
	err := checked(func() int32 { return raw.Fastnorm_device_count(int32(t), &count) })
	return int(count), err
}

// Describe describes a device without opening a context for it.
func Describe(device Device) (DeviceInfo, error) {
	info := raw.NewFastnorm_device_info()
	defer raw.DeleteFastnorm_device_info(info)
	err := checked(func() int32 {
		return raw.Fnb_device_describe(int32(device.Type()), int32(device.ID()), info)
	})
	if err != nil {
		return DeviceInfo{}, err
	}
	return deviceInfoOf(info), nil
}
