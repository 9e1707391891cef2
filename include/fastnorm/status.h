/** @file status.h
 *  How a call says that it failed, and why.
 *
 *  Every function that can fail returns a fastnorm_status. Where it is not FASTNORM_OK, nothing was
 *  launched and nothing was written. fastnorm_last_error() tells which argument was wrong, the
 *  value it had and what is required. Three faults may leave something written: one of the device
 *  itself, a caller's parallel loop that breaks its contract, and a part of a fastnorm_norm_many
 *  that the device refuses after others. No function of this library throws, aborts or prints.
 */
#ifndef FASTNORM_STATUS_H_
#define FASTNORM_STATUS_H_

#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Every status: name, pinned value, meaning. A newer library may return values that this list does
 *  not have; they keep to the decades, so status / 10 is the kind of failure for good.
 *
 *  Expands X(NAME, value, text) once a status. */
#define FASTNORM_STATUS_MAP(X)                                                             \
  X(OK, 0, "success")                                                                      \
  X(ERROR_ARGUMENT, 10, "an argument is null, out of range or not a known enum value")     \
  X(ERROR_SHAPE, 20, "shapes are wrong or do not fit each other")                          \
  X(ERROR_DTYPE, 30, "a tensor's dtype is not one that its role allows")                   \
  X(ERROR_LAYOUT, 40, "strides, alignment or overlap of tensors are not allowed")          \
  X(ERROR_UNSUPPORTED, 50, "valid, but this build or device has no kernel for it")         \
  X(ERROR_DEVICE, 60, "no such device, no usable driver, or the device reported an error") \
  X(ERROR_OUT_OF_MEMORY, 70, "host or device memory could not be had")                     \
  X(ERROR_INTERNAL, 80, "a defect of this library: please report it with fastnorm_last_error()")

/** Result of a call. */
typedef enum fastnorm_status {
#define FASTNORM_STATUS_ENUMERATOR(name, value, text) FASTNORM_##name = value,
  FASTNORM_STATUS_MAP(FASTNORM_STATUS_ENUMERATOR)
#undef FASTNORM_STATUS_ENUMERATOR
      FASTNORM_STATUS_MAX_ENUM = 0x7fffffff /**< Fixes the size of the type; never returned. */
} fastnorm_status;

/** Name of a status.
 *  @param status the value
 *  @return such as "FASTNORM_ERROR_SHAPE"; "unknown status" for a value that this library does not
 *  have. Static
 *  @since 0.1 */
FASTNORM_API const char* fastnorm_status_name(fastnorm_status status);

/** Text of the calling thread's last failure: argument, value, requirement; for an unsupported
 *  combination the nearest one that exists. A success does not clear it.
 *  @return the text; "" before the first failure, never NULL. It belongs to the library and lives
 *  until the same thread's next failing call
 *  @since 0.1 */
FASTNORM_API const char* fastnorm_last_error(void);

/** The CUDA runtime's error code behind the calling thread's last FASTNORM_ERROR_DEVICE or
 *  FASTNORM_ERROR_OUT_OF_MEMORY.
 *  @return a cudaError_t; 0 where the last failure did not come from the CUDA runtime
 *  @since 0.1 */
FASTNORM_API int32_t fastnorm_last_device_error(void);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_STATUS_H_ */
