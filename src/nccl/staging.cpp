#include "nccl/staging.h"

#include <dlfcn.h>

#include <cstring>

namespace fastnorm::nccl {
namespace {

// What is used of the driver. A CUdeviceptr is an address.
struct Driver {
  int (*retain)(void** context, int device);
  int (*release)(int device);
  int (*push)(void* context);
  int (*pop)(void** context);
  int (*alloc)(std::byte** memory, size_t bytes);
  int (*free)(std::byte* memory);
  int (*to_device)(std::byte* to, const void* from, size_t bytes, void* stream);
  int (*to_host)(void* to, const std::byte* from, size_t bytes, void* stream);
  int (*synchronize)(void* stream);
};

constexpr const char* kLibrary = "libcuda.so.1";

fastnorm_status find_driver(const Driver** found) {
  static Driver driver = {};
  static const char* const missing = []() -> const char* {
    void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return "the library";
    const char* none = nullptr;
    const auto find = [&](const char* name, auto* function) {
      void* const address = dlsym(library, name);
      if (address == nullptr) none = name;
      std::memcpy(function, &address, sizeof address);
    };
    find("cuDevicePrimaryCtxRetain", &driver.retain);
    find("cuDevicePrimaryCtxRelease_v2", &driver.release);
    find("cuCtxPushCurrent_v2", &driver.push);
    find("cuCtxPopCurrent_v2", &driver.pop);
    find("cuMemAlloc_v2", &driver.alloc);
    find("cuMemFree_v2", &driver.free);
    find("cuMemcpyHtoDAsync_v2", &driver.to_device);
    find("cuMemcpyDtoHAsync_v2", &driver.to_host);
    find("cuStreamSynchronize", &driver.synchronize);
    return none;
  }();
  NCCL_REQUIRE(missing == nullptr, FASTNORM_ERROR_DEVICE,
               "%s: %s was not found; required: a CUDA driver", kLibrary, missing);
  *found = &driver;
  return FASTNORM_OK;
}

fastnorm_status check_driver(const char* name, int result) {
  NCCL_REQUIRE(result == 0, FASTNORM_ERROR_DEVICE, "%s failed with CUresult %d", name, result);
  return FASTNORM_OK;
}

// Makes a context current for a scope.
class Current {
 public:
  Current(const Driver& driver, void* context) : driver_(driver) {
    status_ = check_driver("cuCtxPushCurrent", driver.push(context));
  }
  ~Current() {
    void* context = nullptr;
    if (status_ == FASTNORM_OK) driver_.pop(&context);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  fastnorm_status status() const { return status_; }

 private:
  const Driver& driver_;
  fastnorm_status status_;
};

}  // namespace

Staging::~Staging() {
  if (!is_cuda()) return;
  const Driver* driver = nullptr;
  if (find_driver(&driver) != FASTNORM_OK) return;
  if (const Current current(*driver, context_); current.status() == FASTNORM_OK) {
    // Copies into memory of the caller's may be on their way still.
    driver->synchronize(stream_);
    if (data_ != nullptr) driver->free(data_);
  }
  driver->release(device_);
}

fastnorm_status Staging::create(fastnorm_device device, size_t bytes, void* stream) {
  stream_ = stream;
  device_ = device.device_id;
  if (device.device_type != FASTNORM_DEVICE_CUDA) {
    host_.resize(bytes);
    data_ = host_.data();
    return FASTNORM_OK;
  }
  const Driver* driver = nullptr;
  NCCL_TRY(find_driver(&driver));
  NCCL_TRY(check_driver("cuDevicePrimaryCtxRetain", driver->retain(&context_, device_)));
  const Current current(*driver, context_);
  NCCL_TRY(current.status());
  return check_driver("cuMemAlloc", driver->alloc(&data_, bytes));
}

fastnorm_status Staging::put(size_t at, const void* from, size_t bytes) {
  if (!is_cuda()) {
    std::memcpy(data_ + at, from, bytes);
    return FASTNORM_OK;
  }
  const Driver* driver = nullptr;
  NCCL_TRY(find_driver(&driver));
  const Current current(*driver, context_);
  NCCL_TRY(current.status());
  return check_driver("cuMemcpyHtoDAsync", driver->to_device(data_ + at, from, bytes, stream_));
}

fastnorm_status Staging::get(size_t at, void* to, size_t bytes) {
  if (!is_cuda()) {
    std::memcpy(to, data_ + at, bytes);
    return FASTNORM_OK;
  }
  const Driver* driver = nullptr;
  NCCL_TRY(find_driver(&driver));
  const Current current(*driver, context_);
  NCCL_TRY(current.status());
  NCCL_TRY(check_driver("cuMemcpyDtoHAsync", driver->to_host(to, data_ + at, bytes, stream_)));
  return check_driver("cuStreamSynchronize", driver->synchronize(stream_));
}

}  // namespace fastnorm::nccl
