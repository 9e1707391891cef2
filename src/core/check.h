// Checks of the caller's arguments, and their canonical form. Every requirement of the public headers that can be broken is one
// condition here; the first one that fails sets the text.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "core/error.h"
#include "core/norm_desc.h"
#include "core/row_map.h"
#include "fastnorm/context.h"
#include "fastnorm/norm.h"

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
inline constexpr size_t kFirstNormArgs =
    offsetof(fastnorm_norm_args, amax) + sizeof(fastnorm_norm_args::amax);
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

// The bytes of a call's tensors, for the question whether some are shared that may not be, where yes or no is enough: no names, inputs
// before outputs, and of a tensor that is changed in place the output alone. Not initialised: collect() sets what counts.
class Touched {
 public:
  static constexpr size_t kMost = 13;  // tensors of a call

  // False if some bytes do not fit in the address space. Points into `desc`.
  bool collect(const NormDesc& desc);

  // True if no output's address range meets that of another tensor.
  bool apart() const;

  // True if neither of two calls, of which this is the one that `mine` describes, touches what the other one writes.
  bool apart(const NormDesc& mine, const Touched& t, const NormDesc& theirs) const;

 private:
  size_t count_, inputs_;
  RowBytes bytes_[kMost];
  AddressRange range_[kMost];
};

// Checks one normalisation and describes it. Zero rows leave desc->rows at 0 and the rest unspecified.
fastnorm_status check_norm(const fastnorm_norm_args* args, CheckedDevice device, NormDesc* desc,
                           Error& error);

// The same, and if the call has rows, `touched` for check_norm_many().
fastnorm_status check_norm(const fastnorm_norm_args* args, CheckedDevice device, NormDesc* desc,
                           Touched* touched, Error& error);

// Checks that no part of a fastnorm_norm_many touches what another one writes.
fastnorm_status check_norm_many(std::span<const NormDesc> descs, Error& error);

// The same with what check_norm() found of each.
fastnorm_status check_norm_many(std::span<const NormDesc> descs, std::span<const Touched> touched,
                                Error& error);

}  // namespace fastnorm
