// What the handlers of all families share: errors, contexts, dtypes, and memory for a call.
#pragma once

#include <dlfcn.h>
#include <fastnorm/fastnorm.h>
#include <xla/ffi/api/ffi.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace fastnorm_xla {

namespace ffi = xla::ffi;

inline constexpr size_t kMaxRank = 8;

// How often XLA has called a handler.
inline std::atomic<uint64_t> calls = 0;

inline ffi::Error error_of(fastnorm_status status) {
  if (status == FASTNORM_OK) return ffi::Error::Success();
  const int decade = static_cast<int>(status) / 10;
  const auto code = decade <= 4   ? ffi::ErrorCode::kInvalidArgument
                    : decade == 5 ? ffi::ErrorCode::kUnimplemented
                    : decade == 7 ? ffi::ErrorCode::kResourceExhausted
                                  : ffi::ErrorCode::kInternal;
  return {code, std::string(fastnorm_status_name(status)) + ": " + fastnorm_last_error()};
}

// --- contexts: one a device, made at its first use, kept until the process ends ---

struct Contexts {
  std::mutex mutex;
  std::vector<fastnorm_context*> of_device;
};

inline fastnorm_status find_context(fastnorm_device device, fastnorm_context** context) {
  static auto* const cpu = new Contexts;
  static auto* const cuda = new Contexts;
  const bool is_cpu = device.device_type == FASTNORM_DEVICE_CPU;
  Contexts& all = is_cpu ? *cpu : *cuda;
  const std::lock_guard lock(all.mutex);
  const auto index = static_cast<size_t>(device.device_id);
  if (index >= all.of_device.size()) all.of_device.resize(index + 1);
  fastnorm_context*& found = all.of_device[index];
  fastnorm_status status = FASTNORM_OK;
  if (found == nullptr) {
    fastnorm_context_options options = {};
    options.struct_size = sizeof options;
    const unsigned processors = std::clamp(std::thread::hardware_concurrency(), 1u, 1024u);
    options.num_threads = is_cpu ? static_cast<int32_t>(processors) : 0;
    status = fastnorm_context_create(device, &options, &found);
  }
  *context = found;
  return status;
}

// --- buffers as tensors ---

// DLPack's words for an element. What no norm takes has one too, so that the library can say so.
inline fastnorm_dtype dtype_of(ffi::DataType type) {
  const auto width = static_cast<uint8_t>(8 * ffi::ByteWidth(type));
  switch (type) {
    case ffi::DataType::F16:
    case ffi::DataType::F32:
    case ffi::DataType::F64:
      return {2, width, 1};
    case ffi::DataType::BF16:
      return fastnorm_dtype_of(FASTNORM_DTYPE_BF16);
    case ffi::DataType::F8E4M3FN:
      return fastnorm_dtype_of(FASTNORM_DTYPE_F8_E4M3FN);
    case ffi::DataType::F8E5M2:
      return fastnorm_dtype_of(FASTNORM_DTYPE_F8_E5M2);
    case ffi::DataType::F8E8M0FNU:
      return fastnorm_dtype_of(FASTNORM_DTYPE_F8_E8M0FNU);
    case ffi::DataType::S8:
    case ffi::DataType::S16:
    case ffi::DataType::S32:
    case ffi::DataType::S64:
      return {0, width, 1};
    case ffi::DataType::U8:
    case ffi::DataType::U16:
    case ffi::DataType::U32:
    case ffi::DataType::U64:
      return {1, width, 1};
    case ffi::DataType::PRED:
      return {6, width, 1};
    default:
      return {3, width, 1};  // DLPack's opaque handle
  }
}

// --- memory and bindings of the two platforms ---

// Device memory for the duration of the call, 256-byte aligned; null if there is none.
using Allocate = void* (*)(void* from, size_t bytes);

inline void* allocate_host(void* from, size_t bytes) {
  auto& memory = *static_cast<std::vector<std::byte>*>(from);
  memory.resize(bytes + 255);
  void* address = memory.data();
  size_t space = memory.size();
  return std::align(256, bytes, address, space);
}

// XLA refuses to align scratch memory to more than 16 bytes.
inline void* allocate_scratch(void* from, size_t bytes) {
  size_t space = bytes + 240;
  void* address = static_cast<ffi::ScratchAllocator*>(from)->Allocate(space, 16).value_or(nullptr);
  return address == nullptr ? nullptr : std::align(256, bytes, address, space);
}

// Copies bytes of a device, in the order of its stream. False where that is not possible. JAX has
// loaded the driver.
inline bool copy_bytes(fastnorm_device device, void* stream, void* to, const void* from,
                       size_t bytes) {
  if (device.device_type == FASTNORM_DEVICE_CPU) {
    std::memcpy(to, from, bytes);
    return true;
  }
  using Copy = int(uint64_t to, uint64_t from, size_t bytes, void* stream);
  static const auto copy = [] {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver == nullptr ? nullptr
                             : reinterpret_cast<Copy*>(dlsym(driver, "cuMemcpyDtoDAsync_v2"));
  }();
  return copy != nullptr &&
         copy(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), bytes, stream) == 0;
}

inline auto cuda_binding() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<void*>>()
      .Ctx<ffi::DeviceOrdinal>()
      .Ctx<ffi::ScratchAllocator>();
}

// --- calls that XLA may record in CUDA graphs ---

// Memory of a recorded call: its last result. XLA gives scratch memory to others when the handler
// returns, and the graph runs later.
struct GivenMemory {
  void* address = nullptr;
  size_t bytes = 0;
};

inline GivenMemory last_result(ffi::RemainingRets results) {
  if (results.size() == 0) return {};
  auto buffer = results.get<ffi::AnyBuffer>(results.size() - 1);
  if (!buffer.has_value()) return {};
  return {(*buffer)->untyped_data(), (*buffer)->size_bytes()};
}

inline void* take_given(void* from, size_t bytes) {
  GivenMemory given = *static_cast<GivenMemory*>(from);
  return std::align(256, bytes, given.address, given.bytes);
}

inline auto graph_binding() {
  return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().Ctx<ffi::DeviceOrdinal>();
}

}  // namespace fastnorm_xla
