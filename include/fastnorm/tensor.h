/** @file tensor.h
 *  A view of memory: address, device, dtype, shape and strides.
 *
 *  fastnorm_tensor has the layout of DLPack 1.x's DLTensor to the byte, and the numbers of its
 *  enums are DLPack's. So a framework's tensor can be passed as it is: cast the DLTensor pointer.
 *  The library only reads the struct and its arrays during a call; it never keeps, frees or changes
 *  them.
 */
#ifndef FASTNORM_TENSOR_H_
#define FASTNORM_TENSOR_H_

#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Where memory lives, numbered as DLPack's DLDeviceType. */
typedef enum fastnorm_device_type {
  FASTNORM_DEVICE_CPU = 1,           /**< Ordinary host memory. */
  FASTNORM_DEVICE_CUDA = 2,          /**< Memory of a CUDA device. */
  FASTNORM_DEVICE_CUDA_HOST = 3,     /**< Pinned host memory; counts as CPU. */
  FASTNORM_DEVICE_CUDA_MANAGED = 13, /**< Managed memory; counts as CUDA. */
  FASTNORM_DEVICE_TYPE_MAX_ENUM = 0x7fffffff
} fastnorm_device_type;

/** A device: what kind and which one (0 for the CPU). */
typedef struct fastnorm_device {
  int32_t device_type; /**< A fastnorm_device_type. */
  int32_t device_id;   /**< Ordinal, as cudaSetDevice counts; 0 for the CPU. */
} fastnorm_device;

/** Element type, as DLPack's DLDataType: what kind of number, how many bits, how many to an
 *  element. */
typedef struct fastnorm_dtype {
  uint8_t code;   /**< DLDataTypeCode: 0 int, 1 uint, 2 float, 4 bfloat, 10 float8_e4m3fn, 12
                     float8_e5m2, 14 float8_e8m0fnu,   17 float4_e2m1fn. */
  uint8_t bits;   /**< Bits of one number. */
  uint16_t lanes; /**< Numbers to an element: 1, or 2 for two fp4 codes in a byte. */
} fastnorm_dtype;

/** The dtypes of this library, as code | bits << 8 | lanes << 16. fastnorm_dtype_of() makes the
 *  struct. */
typedef enum fastnorm_dtype_id {
  FASTNORM_DTYPE_F32 = 0x00012002,        /**< IEEE binary32. */
  FASTNORM_DTYPE_F16 = 0x00011002,        /**< IEEE binary16. */
  FASTNORM_DTYPE_BF16 = 0x00011004,       /**< bfloat16. */
  FASTNORM_DTYPE_F8_E4M3FN = 0x0001080a,  /**< fp8, largest value 448, no infinity. */
  FASTNORM_DTYPE_F8_E5M2 = 0x0001080c,    /**< fp8, largest value 57344. */
  FASTNORM_DTYPE_F8_E8M0FNU = 0x0001080e, /**< A power-of-two scale. */
  FASTNORM_DTYPE_F4_E2M1FN = 0x00010411,  /**< fp4, largest value 6. */
  FASTNORM_DTYPE_F4_E2M1FN_X2 =
      0x00020411,                  /**< Two fp4 codes in a byte, the first in the low nibble. */
  FASTNORM_DTYPE_I8 = 0x00010800,  /**< Signed integer. */
  FASTNORM_DTYPE_U8 = 0x00010801,  /**< Unsigned integer; bytes. */
  FASTNORM_DTYPE_I32 = 0x00012000, /**< Signed integer. */
  FASTNORM_DTYPE_I64 = 0x00014000, /**< Signed integer. */
  FASTNORM_DTYPE_MAX_ENUM = 0x7fffffff
} fastnorm_dtype_id;

/** The dtype struct of an id.
 *  @param id one of the dtypes of this library
 *  @return code, bits and lanes of it */
static inline fastnorm_dtype fastnorm_dtype_of(fastnorm_dtype_id id) {
  fastnorm_dtype dtype;
  dtype.code = (uint8_t)((uint32_t)id & 0xffu);
  dtype.bits = (uint8_t)(((uint32_t)id >> 8) & 0xffu);
  dtype.lanes = (uint16_t)((uint32_t)id >> 16);
  return dtype;
}

/** A view of memory. The address of element (i, j, ..) is data + byte_offset and, in elements,
 *  i * strides[0] + j * strides[1] + ..
 *
 *  - The last dimension must be contiguous: its stride is 1, or its extent at most 1.
 *  - The stride of a dimension of extent 1 is never looked at, nor is any stride of a tensor
 *    without elements: they may be any number.
 *  - Leading strides are free: any sign, not multiples of anything, and 0 (broadcast) for inputs.
 *  - The address must be a multiple of the element's size; no other alignment is required. Rows
 *  whose addresses and lengths are multiples of 16 bytes (sm_100f: 32) are fastest. */
typedef struct fastnorm_tensor {
  void* data; /**< Address on the device; may be NULL only if the tensor has no elements. */
  int32_t device_type; /**< A fastnorm_device_type. */
  int32_t device_id;   /**< Device ordinal; not looked at for memory of the CPU. */
  int32_t ndim;        /**< Number of dimensions, 1 to 8 where a function does not say otherwise. */
  fastnorm_dtype dtype;   /**< Element type. */
  const int64_t* shape;   /**< [ndim] extents. */
  const int64_t* strides; /**< [ndim] in elements; NULL = compact, row-major. */
  uint64_t byte_offset;   /**< Added to data, in bytes. */
} fastnorm_tensor;

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_TENSOR_H_ */
