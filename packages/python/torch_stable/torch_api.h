// What stable.cpp uses of libtorch's stable ABI, as of PyTorch 2.10.
//
// That ABI is a set of C functions that libtorch_cpu.so exports. So a name and a type are all that
// a call needs, and nothing of PyTorch is needed to build. test_stable.py in examples/torch
// compares the types with those of PyTorch's own header.
#ifndef FASTNORM_TORCH_STABLE_TORCH_API_H_
#define FASTNORM_TORCH_STABLE_TORCH_API_H_

#include <cstddef>
#include <cstdint>

namespace fastnorm_torch {

struct TensorObject;
using TensorHandle = TensorObject*;
struct LibraryObject;
using LibraryHandle = LibraryObject*;
// An argument or a result: a number, or a handle that its receiver owns. An optional one is the
// address of such a word on the heap, or 0.
using StableWord = uint64_t;
using Kernel = void (*)(StableWord* stack, uint64_t arguments, uint64_t results);
using Range = void (*)(int64_t begin, int64_t end, void* task);
using Status = int32_t;  // 0: done

// The version of PyTorch whose words these are.
constexpr uint64_t kAbiVersion = uint64_t{2} << 56 | uint64_t{10} << 48;

// F(result, name, parameters)
#define FASTNORM_TORCH_FUNCTIONS(F)                                                      \
  F(int32_t, aoti_torch_device_type_cpu, ())                                             \
  F(Status, aoti_torch_get_dim, (TensorHandle, int64_t*))                                \
  F(Status, aoti_torch_get_sizes, (TensorHandle, int64_t**))                             \
  F(Status, aoti_torch_get_strides, (TensorHandle, int64_t**))                           \
  F(Status, aoti_torch_get_dtype, (TensorHandle, int32_t*))                              \
  F(Status, aoti_torch_get_device_type, (TensorHandle, int32_t*))                        \
  F(Status, aoti_torch_get_device_index, (TensorHandle, int32_t*))                       \
  F(Status, torch_get_const_data_ptr, (TensorHandle, const void**))                      \
  F(Status, torch_get_mutable_data_ptr, (TensorHandle, void**))                          \
  F(Status, aoti_torch_empty_strided,                                                    \
    (int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, TensorHandle*)) \
  F(Status, aoti_torch_new_uninitialized_tensor, (TensorHandle*))                        \
  F(Status, aoti_torch_delete_tensor_object, (TensorHandle))                             \
  F(Status, torch_parallel_for, (int64_t, int64_t, int64_t, Range, void*))               \
  F(Status, aoti_torch_library_init_impl,                                                \
    (const char*, const char*, const char*, uint32_t, LibraryHandle*))                   \
  F(Status, torch_library_impl, (LibraryHandle, const char*, Kernel, uint64_t))

struct Api {
#define F(result, name, parameters) result(*name) parameters;
  FASTNORM_TORCH_FUNCTIONS(F)
#undef F
};

}  // namespace fastnorm_torch

#endif  // FASTNORM_TORCH_STABLE_TORCH_API_H_
