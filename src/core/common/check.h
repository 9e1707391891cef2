// Checks of the caller's arguments that all families share: structs, tensors, texts. Each
// requirement of the public headers is one condition. The first that fails sets the error text.
#pragma once

#include <cstddef>
#include <cstring>

#include "core/common/dtype.h"
#include "core/common/error.h"
#include "fastnorm/context.h"

// Leaves the function with `status` unless the condition holds. The text shows the condition's own
// values.
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

// For code on the path of every call. Compilers do not inline a function with several callers by
// themselves.
#define FASTNORM_HOT [[gnu::always_inline]] inline

namespace fastnorm {

// Sizes of the public structs in version 0.2, the first one, through their last field. Callers of
// every version have at least these. Each family has those of its own.
inline constexpr size_t kFirstOptions =
    offsetof(fastnorm_context_options, tuning_file) + sizeof(fastnorm_context_options::tuning_file);
inline constexpr size_t kFirstInfo =
    offsetof(fastnorm_info, variant) + sizeof(fastnorm_info::variant);
inline constexpr size_t kFirstDeviceInfo =
    offsetof(fastnorm_device_info, kernel_arch) + sizeof(fastnorm_device_info::kernel_arch);
inline constexpr size_t kFirstKernelInfo =
    offsetof(fastnorm_kernel_info, name) + sizeof(fastnorm_kernel_info::name);

// Accepts a struct of the caller's version. `size` is its struct_size, `least` the size in the
// first version, `own` our size. A longer struct is accepted if the bytes past our fields are zero.
fastnorm_status check_struct(const void* data, size_t size, size_t least, size_t own,
                             const char* name, Error& error);

// The caller's struct in our size: the struct itself if the sizes agree. Otherwise a copy in
// `local`, with zeros for the fields that it lacks.
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

// Writes our struct into the caller's, which may be of another version. It writes the fields that
// both have, except struct_size.
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
template <size_t size>
struct TextOf {
  char c[size];
};
using Text = TextOf<96>;

Text shape_text(const int64_t* shape, int32_t rank);
Text dtype_text(fastnorm_dtype dtype);

// Fails: a tensor's dtype is none of those that `required` names.
fastnorm_status refuse_dtype(const char* name, const fastnorm_tensor& t, const char* required,
                             Error& error);

FASTNORM_HOT fastnorm_status check_f32(const char* name, const fastnorm_tensor& t, Error& error) {
  return dtype_from(t.dtype) == Dtype::kF32 ? FASTNORM_OK : refuse_dtype(name, t, "f32", error);
}
inline bool is_row_dtype(Dtype dtype) { return static_cast<int>(dtype) < kRowDtypes; }
FASTNORM_HOT fastnorm_status check_row_dtype(const char* name, const fastnorm_tensor& t,
                                             Error& error) {
  return is_row_dtype(dtype_from(t.dtype)) ? FASTNORM_OK
                                           : refuse_dtype(name, t, "f32, f16 or bf16", error);
}
FASTNORM_HOT fastnorm_status check_index_dtype(const char* name, const fastnorm_tensor& t,
                                               Error& error) {
  const Dtype dtype = dtype_from(t.dtype);
  return dtype == Dtype::kI32 || dtype == Dtype::kI64 ? FASTNORM_OK
                                                      : refuse_dtype(name, t, "i32 or i64", error);
}
// The dtype of `of`, such as "x", or f32.
fastnorm_status check_own_dtype(const char* name, const fastnorm_tensor& t, const char* of,
                                Dtype own, Error& error);

// The address of a tensor's first element. Integers: data may be NULL if there are no elements.
inline std::byte* address_of(const fastnorm_tensor& t) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(t.data) + t.byte_offset);
}

// An enum field as a number: a C caller may have stored any value.
template <class Enum>
int32_t number(const Enum& field) {
  int32_t value;
  static_assert(sizeof field == sizeof value);
  std::memcpy(&value, &field, sizeof value);
  return value;
}

// Copies an enum field that is not checked yet: an assignment would load it as its enum.
template <class Enum>
void copy_number(Enum& to, const Enum& from) {
  std::memcpy(&to, &from, sizeof to);
}

// Whether two arrays of `count` are the same, or both are absent.
FASTNORM_HOT bool same_numbers(const int64_t* a, const int64_t* b, int32_t count) {
  if (a == b) return true;
  bool same = a != nullptr && b != nullptr;
  for (int32_t i = 0; same && i < count; ++i) same = a[i] == b[i];
  return same;
}

// Byte stride of dimension `dim` of a tensor that has strides. Unsigned, because a stride that is
// never used may be any number, and the product may overflow.
inline int64_t stride_bytes_of(const fastnorm_tensor& t, int32_t dim, int64_t bytes) {
  return static_cast<int64_t>(static_cast<uint64_t>(t.strides[dim]) * static_cast<uint64_t>(bytes));
}

// What a tensor must be.
struct TensorRule {
  Dtype dtype;  // its own; not kUnknown
  int32_t max_rank;
  bool last_contiguous;
};

// What holds for every tensor: device, rank, extents, an address that suits its dtype, strides.
fastnorm_status check_tensor(const char* name, const fastnorm_tensor& t, TensorRule rule,
                             CheckedDevice device, Error& error);

// A tensor of rule.dtype and no other, for which check_tensor() holds.
fastnorm_status check_typed(const char* name, const fastnorm_tensor& t, TensorRule rule,
                            CheckedDevice device, Error& error);

// True if `t` is on the device at an address that is aligned to `bytes`, so that check_tensor()
// accepts it. If false, check_tensor() decides.
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
