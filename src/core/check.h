// Checks of the caller's arguments that all families share: structs, tensors, texts. Every requirement of the public headers that
// can be broken is one condition; the first one that fails sets the text.
#pragma once

#include <cstddef>
#include <cstring>

#include "core/dtype.h"
#include "core/error.h"
#include "fastnorm/context.h"

// Leaves the function with `status` and a text made of the condition's own values, unless the condition holds.
#define FASTNORM_REQUIRE(condition, status, ...)                                  \
  do {                                                                            \
    if (__builtin_expect(!(condition), 0)) return error.set(status, __VA_ARGS__); \
  } while (0)

// Leaves the function if `expression` is not FASTNORM_OK.
#define FASTNORM_TRY(expression)                                                      \
  do {                                                                                \
    if (const fastnorm_status try_status = (expression); try_status != FASTNORM_OK) { \
      return try_status;                                                              \
    }                                                                                 \
  } while (0)

// For what every call of the library passes through. Compilers leave functions alone that are called from several places.
#define FASTNORM_HOT [[gnu::always_inline]] inline

namespace fastnorm {

// Sizes of the public structs in version 0.1, through the last field that they had then: a caller of any version has as much.
inline constexpr size_t kFirstOptions =
    offsetof(fastnorm_context_options, reserved) + sizeof(fastnorm_context_options::reserved);
inline constexpr size_t kFirstInfo =
    offsetof(fastnorm_info, blocks) + sizeof(fastnorm_info::blocks);
inline constexpr size_t kFirstDeviceInfo =
    offsetof(fastnorm_device_info, kernel_arch) + sizeof(fastnorm_device_info::kernel_arch);
inline constexpr size_t kFirstKernelInfo =
    offsetof(fastnorm_kernel_info, name) + sizeof(fastnorm_kernel_info::name);

// Accepts a struct of the caller's version: `size` is its struct_size, `least` that of the first version, `own` ours. A longer
// struct is fine as long as what we do not know is zero.
fastnorm_status check_struct(const void* data, size_t size, size_t least, size_t own,
                             const char* name, Error& error);

// The caller's struct in our size: the struct itself if the sizes agree, else a copy in `local`, zero where it was shorter.
template <typename Struct>
fastnorm_status accept_struct(const Struct* theirs, size_t least, const char* name, Struct* local,
                              const Struct** ours, Error& error) {
  FASTNORM_REQUIRE(theirs != nullptr, FASTNORM_ERROR_ARGUMENT, "%s is NULL; required: a pointer",
                   name);
  const size_t size = theirs->struct_size;
  *ours = theirs;
  if (size == sizeof(Struct)) return FASTNORM_OK;
  FASTNORM_TRY(check_struct(theirs, size, least, sizeof(Struct), name, error));
  std::memset(local, 0, sizeof(Struct));
  std::memcpy(local, theirs, size < sizeof(Struct) ? size : sizeof(Struct));
  local->struct_size = sizeof(Struct);
  *ours = local;
  return FASTNORM_OK;
}

// Writes a struct of ours into the caller's, which may be of another version: what both have, and not struct_size.
template <typename Struct>
void give_struct(Struct ours, Struct* theirs) {
  ours.struct_size = theirs->struct_size;
  std::memcpy(static_cast<void*>(theirs), &ours,
              ours.struct_size < sizeof(Struct) ? ours.struct_size : sizeof(Struct));
}

// Where tensors must live.
struct CheckedDevice {
  int32_t device_type;
  int32_t device_id;
};

// A piece of an error text.
struct Text {
  char c[96];
};

Text shape_text(const int64_t* shape, int32_t rank);
Text dtype_text(fastnorm_dtype dtype);

// The address of a tensor's first element. By integers: where there are no elements, data may be NULL.
inline std::byte* address_of(const fastnorm_tensor& t) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(t.data) + t.byte_offset);
}

// An enum field as the number it holds: a C caller may have stored any.
template <class Enum>
int32_t number(const Enum& field) {
  int32_t value;
  static_assert(sizeof field == sizeof value);
  std::memcpy(&value, &field, sizeof value);
  return value;
}

// Whether two arrays of `count` are the same, or both are absent.
FASTNORM_HOT bool same_numbers(const int64_t* a, const int64_t* b, int32_t count) {
  if (a == b) return true;
  bool same = a != nullptr && b != nullptr;
  for (int32_t i = 0; same && i < count; ++i) same = a[i] == b[i];
  return same;
}

// Byte strides of dimension `dim`, from strides that are given. Unsigned: where the dimension has one index, or the tensor no elements,
// the stride may be any number and nobody uses the product.
inline int64_t stride_bytes_of(const fastnorm_tensor& t, int32_t dim, int64_t bytes) {
  return static_cast<int64_t>(static_cast<uint64_t>(t.strides[dim]) * static_cast<uint64_t>(bytes));
}

// What a tensor must be.
struct TensorRule {
  Dtype dtype;  // its own, which is known
  int32_t max_rank;
  bool last_contiguous;
};

// What holds for every tensor: device, rank, extents, an address that suits its dtype, strides.
fastnorm_status check_tensor(const char* name, const fastnorm_tensor& t, TensorRule rule,
                             CheckedDevice device, Error& error);

// True if `t` has an address on the device that suits elements of `bytes`: check_tensor() has no objection to that. False: it decides.
FASTNORM_HOT bool is_placed(const fastnorm_tensor& t, CheckedDevice device, int64_t bytes) {
  uintptr_t address = 0;
  return t.device_type == device.device_type && t.device_id == device.device_id &&
         !__builtin_add_overflow(reinterpret_cast<uintptr_t>(t.data), t.byte_offset, &address) &&
         t.data != nullptr && (address & static_cast<uintptr_t>(bytes - 1)) == 0;
}

// A single f32, at *address.
fastnorm_status check_scalar(const char* name, const fastnorm_tensor& t, CheckedDevice device,
                             const std::byte** address, Error& error);

}  // namespace fastnorm
