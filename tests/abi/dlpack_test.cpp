// fastnorm_tensor is DLPack's DLTensor, byte for byte, with the same numbers. Compared with the
// real header at compile time. At run time a DLTensor is passed by a cast.
#include <dlpack/dlpack.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "fastnorm/fastnorm.h"

static_assert(DLPACK_MAJOR_VERSION == 1, "the tensor struct follows DLPack 1.x");

#define SAME_FIELD(ours, our_field, theirs, their_field)                                 \
  static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field), #our_field); \
  static_assert(sizeof(ours::our_field) == sizeof(theirs::their_field), #our_field);     \
  ++fields

#define SAME_VALUE(ours, theirs)                                                          \
  static_assert(static_cast<long>(ours) == static_cast<long>(theirs), #ours " " #theirs); \
  ++values

// The id of a dtype packs DLDataType's three fields.
#define SAME_DTYPE(ours, their_code, their_bits, their_lanes) \
  SAME_VALUE(ours, (their_code) | (their_bits) << 8 | (their_lanes) << 16)

static_assert(sizeof(fastnorm_tensor) == sizeof(DLTensor), "");
static_assert(alignof(fastnorm_tensor) == alignof(DLTensor), "");
static_assert(sizeof(fastnorm_dtype) == sizeof(DLDataType), "");
static_assert(sizeof(fastnorm_device) == sizeof(DLDevice), "");
static_assert(std::is_same<decltype(fastnorm_tensor::shape), const int64_t*>::value, "");
static_assert(std::is_same<decltype(DLTensor::shape), int64_t*>::value, "");

namespace {

int fields = 0, values = 0, failed = 0;

void compare_layout() {
  SAME_FIELD(fastnorm_tensor, data, DLTensor, data);
  SAME_FIELD(fastnorm_tensor, ndim, DLTensor, ndim);
  SAME_FIELD(fastnorm_tensor, dtype, DLTensor, dtype);
  SAME_FIELD(fastnorm_tensor, shape, DLTensor, shape);
  SAME_FIELD(fastnorm_tensor, strides, DLTensor, strides);
  SAME_FIELD(fastnorm_tensor, byte_offset, DLTensor, byte_offset);
  SAME_FIELD(fastnorm_device, device_type, DLDevice, device_type);
  SAME_FIELD(fastnorm_device, device_id, DLDevice, device_id);
  SAME_FIELD(fastnorm_dtype, code, DLDataType, code);
  SAME_FIELD(fastnorm_dtype, bits, DLDataType, bits);
  SAME_FIELD(fastnorm_dtype, lanes, DLDataType, lanes);
  // DLTensor nests its device.
  static_assert(offsetof(fastnorm_tensor, device_type) == offsetof(DLTensor, device), "");
  static_assert(offsetof(fastnorm_tensor, device_id) == offsetof(DLTensor, device) + 4, "");
  fields += 2;
}

void compare_values() {
  SAME_VALUE(FASTNORM_DEVICE_CPU, kDLCPU);
  SAME_VALUE(FASTNORM_DEVICE_CUDA, kDLCUDA);
  SAME_VALUE(FASTNORM_DEVICE_CUDA_HOST, kDLCUDAHost);
  SAME_VALUE(FASTNORM_DEVICE_CUDA_MANAGED, kDLCUDAManaged);
  SAME_DTYPE(FASTNORM_DTYPE_F32, kDLFloat, 32, 1);
  SAME_DTYPE(FASTNORM_DTYPE_F16, kDLFloat, 16, 1);
  SAME_DTYPE(FASTNORM_DTYPE_BF16, kDLBfloat, 16, 1);
  SAME_DTYPE(FASTNORM_DTYPE_F8_E4M3FN, kDLFloat8_e4m3fn, 8, 1);
  SAME_DTYPE(FASTNORM_DTYPE_F8_E5M2, kDLFloat8_e5m2, 8, 1);
  SAME_DTYPE(FASTNORM_DTYPE_F8_E8M0FNU, kDLFloat8_e8m0fnu, 8, 1);
  SAME_DTYPE(FASTNORM_DTYPE_F4_E2M1FN, kDLFloat4_e2m1fn, 4, 1);
  SAME_DTYPE(FASTNORM_DTYPE_F4_E2M1FN_X2, kDLFloat4_e2m1fn, 4, 2);
  SAME_DTYPE(FASTNORM_DTYPE_I8, kDLInt, 8, 1);
  SAME_DTYPE(FASTNORM_DTYPE_U8, kDLUInt, 8, 1);
  SAME_DTYPE(FASTNORM_DTYPE_I32, kDLInt, 32, 1);
  SAME_DTYPE(FASTNORM_DTYPE_I64, kDLInt, 64, 1);
}

void check(const char* name, bool ok) {
  if (ok) return;
  ++failed;
  std::printf("FAIL %s: %s\n", name, fastnorm_last_error());
}

// Computes y = x / sqrt(mean(x^2)) of {3, 4, 0, 0, ..} with DLTensors.
void call_with_dltensor() {
  float x[8] = {3, 4}, y[8] = {};
  int64_t shape[] = {1, 8};
  DLTensor in{}, out{};
  in.data = x;
  in.device = {kDLCPU, 0};
  in.ndim = 2;
  in.dtype = {kDLFloat, 32, 1};
  in.shape = shape;
  out = in;
  out.data = y;
  fastnorm_context* context = nullptr;
  const fastnorm_device cpu = {kDLCPU, 0};
  check("context", fastnorm_context_create(cpu, nullptr, &context) == FASTNORM_OK);
  fastnorm_norm_args args = {};
  args.struct_size = sizeof args;
  args.x = reinterpret_cast<const fastnorm_tensor*>(&in);
  args.y = reinterpret_cast<const fastnorm_tensor*>(&out);
  check("norm of DLTensors", fastnorm_norm(context, &args, nullptr, 0, nullptr) == FASTNORM_OK);
  check("its values", y[0] > 1.69f && y[0] < 1.70f && y[1] > 2.26f && y[1] < 2.27f && y[2] == 0);
  fastnorm_context_destroy(context);
}

}  // namespace

int main() {
  compare_layout();
  compare_values();
  call_with_dltensor();
  std::printf("%d passed, %d failed, 0 skipped\n", fields + values + 3 - failed, failed);
  return failed != 0;
}
