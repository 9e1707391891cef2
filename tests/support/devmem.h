/** @file devmem.h
 *  GPU memory, streams and timing for programs and tests that do not link CUDA.
 *
 *  The driver (libcuda.so.1) is opened at run time, so a program that uses this runs on machines
 *  without one and can say so. Everything happens in a device's primary CUDA context, which the
 *  CUDA runtime uses too: addresses and streams can be handed to libfastnorm. Each call makes that
 *  context current and restores what was current before.
 *
 *  C functions, so that Python's ctypes can call them; a C++ wrapper follows. Each function that
 *  can fail returns 0 or a non-zero CUDA driver error, with text in devmem_error().
 */
#ifndef FASTNORM_TESTS_SUPPORT_DEVMEM_H_
#define FASTNORM_TESTS_SUPPORT_DEVMEM_H_

#include <stddef.h>
#include <stdint.h>

#define DEVMEM_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/** One GPU with its primary context retained. Opaque. */
typedef struct devmem devmem;

/** Text of the calling thread's last failure; "" before the first. */
DEVMEM_API const char* devmem_error(void);

/** Number of GPUs; 0 where there is no driver (devmem_error() says why). */
DEVMEM_API int32_t devmem_device_count(void);

/** Opens GPU `ordinal`; *device is NULL on failure. */
DEVMEM_API int32_t devmem_open(int32_t ordinal, devmem** device);
/** Releases the primary context. NULL is fine. */
DEVMEM_API void devmem_close(devmem* device);

/** Allocates `bytes` (at least 1) of device memory, 256-byte aligned. */
DEVMEM_API int32_t devmem_alloc(devmem* device, size_t bytes, void** address);
/** Frees what devmem_alloc gave; NULL is fine. Waits for the work that uses it. */
DEVMEM_API int32_t devmem_free(devmem* device, void* address);

/** Copies host -> device; done on return. */
DEVMEM_API int32_t devmem_upload(devmem* device, void* to, const void* from, size_t bytes);
/** Copies device -> host, after the work of all streams; done on return. */
DEVMEM_API int32_t devmem_download(devmem* device, void* to, const void* from, size_t bytes);
/** Queues a copy inside the device on `stream`. */
DEVMEM_API int32_t devmem_copy(devmem* device, void* to, const void* from, size_t bytes,
                               void* stream);
/** Queues filling with a byte on `stream`. */
DEVMEM_API int32_t devmem_fill(devmem* device, void* to, uint8_t byte, size_t bytes, void* stream);

/** A stream that does not wait for the legacy default stream. */
DEVMEM_API int32_t devmem_stream_create(devmem* device, void** stream);
DEVMEM_API int32_t devmem_stream_destroy(devmem* device, void* stream);
/** Waits until the stream has run; a fault of its kernels is reported here. */
DEVMEM_API int32_t devmem_stream_synchronize(devmem* device, void* stream);

/** Collects what is queued on `stream` from here on in a graph instead of running it .. */
DEVMEM_API int32_t devmem_capture_begin(devmem* device, void* stream);
/** .. until here. *graph can be launched any number of times. */
DEVMEM_API int32_t devmem_capture_end(devmem* device, void* stream, void** graph);
DEVMEM_API int32_t devmem_graph_launch(devmem* device, void* graph, void* stream);
DEVMEM_API int32_t devmem_graph_destroy(devmem* device, void* graph);

/** Loads kernels from PTX, whose text ends with a zero byte. */
DEVMEM_API int32_t devmem_module_load(devmem* device, const char* ptx, void** module);
DEVMEM_API int32_t devmem_module_unload(devmem* device, void* module);
DEVMEM_API int32_t devmem_kernel(devmem* device, void* module, const char* name, void** kernel);
/** Queues a kernel on `stream`. `arguments`: the addresses of its parameters. early: 1 = it may
 *  start before the stream's previous kernel has ended (programmatic stream serialization). */
DEVMEM_API int32_t devmem_launch(devmem* device, void* kernel, uint32_t blocks, uint32_t threads,
                                 void** arguments, int32_t early, void* stream);
/** What is queued on `stream` from here on follows what is queued on `other` by now. */
DEVMEM_API int32_t devmem_stream_follow(devmem* device, void* stream, void* other);

/** Events for timing. */
DEVMEM_API int32_t devmem_event_create(devmem* device, void** event);
DEVMEM_API int32_t devmem_event_destroy(devmem* device, void* event);
DEVMEM_API int32_t devmem_event_record(devmem* device, void* event, void* stream);
/** Milliseconds between two recorded events; waits for the second. */
DEVMEM_API int32_t devmem_event_elapsed_ms(devmem* device, void* start, void* stop,
                                           float* milliseconds);

#ifdef __cplusplus
}

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace fastnorm::support {

/** A failed devmem call. */
struct DevmemError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void devmem_check(int32_t error) {
  if (error != 0) throw DevmemError(devmem_error());
}

struct DevmemCloser {
  void operator()(devmem* device) const { devmem_close(device); }
};
using DevmemPtr = std::shared_ptr<devmem>;

/** Opens GPU `ordinal`; throws DevmemError. */
inline DevmemPtr open_devmem(int32_t ordinal) {
  devmem* device = nullptr;
  devmem_check(devmem_open(ordinal, &device));
  return DevmemPtr(device, DevmemCloser());
}

/** Device memory that frees itself. */
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DevmemPtr device, size_t bytes) : device_(std::move(device)) {
    devmem_check(devmem_alloc(device_.get(), bytes, &address_));
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : device_(std::move(other.device_)), address_(std::exchange(other.address_, nullptr)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(address_, other.address_);
    return *this;
  }
  ~DeviceBuffer() {
    if (address_ != nullptr) devmem_free(device_.get(), address_);
  }

  void* get() const { return address_; }

 private:
  DevmemPtr device_;
  void* address_ = nullptr;
};

/** A stream that destroys itself. */
class DeviceStream {
 public:
  explicit DeviceStream(DevmemPtr device) : device_(std::move(device)) {
    devmem_check(devmem_stream_create(device_.get(), &stream_));
  }
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  ~DeviceStream() { devmem_stream_destroy(device_.get(), stream_); }

  void* get() const { return stream_; }
  void synchronize() const { devmem_check(devmem_stream_synchronize(device_.get(), stream_)); }

 private:
  DevmemPtr device_;
  void* stream_ = nullptr;
};

}  // namespace fastnorm::support
#endif

#endif /* FASTNORM_TESTS_SUPPORT_DEVMEM_H_ */
