/** @file tensor.h
 *  A tensor is a view of memory: its address, device, dtype, shape and strides.
 *
 *  fastnorm_tensor has the same layout as DLTensor of DLPack 1.x, byte by byte, and its enums have
 *  the same numbers. A framework's tensor can therefore be passed without a copy of the struct:
 *  cast the pointer to the DLTensor. The library reads the struct and its arrays only during a
 *  call, and never keeps, frees or changes them.
 */
#ifndef FASTNORM_TENSOR_H_
#define FASTNORM_TENSOR_H_

#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Where memory lives. The numbers are those of DLDeviceType of DLPack. */
typedef enum fastnorm_device_type {
  FASTNORM_DEVICE_CPU = 1,           /**< Ordinary host memory. */
  FASTNORM_DEVICE_CUDA = 2,          /**< Memory of a CUDA device. */
  FASTNORM_DEVICE_CUDA_HOST = 3,     /**< Pinned host memory; treated as memory of the CPU. */
  FASTNORM_DEVICE_CUDA_MANAGED = 13, /**< Managed memory; treated as memory of a CUDA device. */
  FASTNORM_DEVICE_TYPE_MAX_ENUM = 0x7fffffff
} fastnorm_device_type;

/** A device: its type, and which device of that type. */
typedef struct fastnorm_device {
  int32_t device_type; /**< A fastnorm_device_type. */
  int32_t device_id;   /**< Ordinal, as cudaSetDevice counts devices; 0 for the CPU. */
} fastnorm_device;

/** Element type, as DLDataType of DLPack describes it: the kind of number, its bits, and how many
 *  numbers form an element. */
typedef struct fastnorm_dtype {
  /** Kind of number, as DLDataTypeCode: 0 int, 1 uint, 2 float, 4 bfloat, 10 float8_e4m3fn, 12
   *  float8_e5m2, 14 float8_e8m0fnu, 17 float4_e2m1fn. */
  uint8_t code;
  uint8_t bits;   /**< Number of bits of one number. */
  uint16_t lanes; /**< Numbers per element: 1, or 2 for two fp4 codes in a byte. */
} fastnorm_dtype;

/** The dtypes of this library, each as one number: code | bits << 8 | lanes << 16.
 *  fastnorm_dtype_of() converts it to the struct. */
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
  FASTNORM_DTYPE_U8 = 0x00010801,  /**< Unsigned integer, or a plain byte. */
  FASTNORM_DTYPE_I32 = 0x00012000, /**< Signed integer. */
  FASTNORM_DTYPE_I64 = 0x00014000, /**< Signed integer. */
  FASTNORM_DTYPE_MAX_ENUM = 0x7fffffff
} fastnorm_dtype_id;

/** Convert the number of a dtype to its struct.
 *  @param id one of the dtypes of this library
 *  @return its code, bits and lanes */
static inline fastnorm_dtype fastnorm_dtype_of(fastnorm_dtype_id id) {
  fastnorm_dtype dtype;
  dtype.code = (uint8_t)((uint32_t)id & 0xffu);
  dtype.bits = (uint8_t)(((uint32_t)id >> 8) & 0xffu);
  dtype.lanes = (uint16_t)((uint32_t)id >> 16);
  return dtype;
}

/** A view of memory. Element (i, j, ..) lies i * strides[0] + j * strides[1] + .. elements behind
 *  the address data + byte_offset.
 *
 *  - The last dimension must be contiguous, which means that its stride is 1 or its extent is at
 *  most 1.
 *  - The stride of a dimension of extent 1 is never used, and neither are the strides of a tensor
 *  without elements, so they may be any number.
 *  - The strides of leading dimensions may have any sign and need not be multiples of anything; for
 *  inputs they may be 0, which broadcasts.
 *  - The address must be a multiple of the size of an element; no other alignment is required. Rows
 *  whose addresses and lengths are multiples of 16 bytes (sm_100f: 32) are fastest. */
typedef struct fastnorm_tensor {
  void* data; /**< Address on the device. May be NULL only if the tensor has no elements. */
  int32_t device_type;    /**< A fastnorm_device_type. */
  int32_t device_id;      /**< Ordinal of the device; ignored for memory of the CPU. */
  int32_t ndim;           /**< Number of dimensions: 1 to 8, unless a function says otherwise. */
  fastnorm_dtype dtype;   /**< Element type. */
  const int64_t* shape;   /**< [ndim] extents, in elements. */
  const int64_t* strides; /**< [ndim] strides, in elements; NULL = compact and row-major. */
  uint64_t byte_offset;   /**< Added to data; in bytes. */
} fastnorm_tensor;

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_TENSOR_H_ */
