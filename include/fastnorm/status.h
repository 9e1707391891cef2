/** @file status.h
 *  How a call reports that it failed, and why.
 *
 *  Every function that can fail returns a fastnorm_status. If it is not FASTNORM_OK, nothing was
 *  launched and nothing was written, and fastnorm_last_error() tells which argument was wrong, the
 *  value it had and what is required. There are three exceptions, after which outputs may have been
 *  written: a fault of the device itself, a parallel loop of the caller that breaks its contract,
 *  and a part of a fastnorm_norm_many that the device refuses after it has accepted earlier parts.
 *  No function of this library throws, aborts or prints.
 */
#ifndef FASTNORM_STATUS_H_
#define FASTNORM_STATUS_H_

#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Every status with its name, its value, which never changes, and its meaning. Each kind of
 *  failure has ten values of its own, such as 10 to 19 for arguments. A newer library may return
 *  values that are not in this list, but status / 10 always tells the kind of failure.
 *
 *  The macro expands X(NAME, value, text) once for each status. */
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
 *  @return a static string such as "FASTNORM_ERROR_SHAPE"; "unknown status" for a value that this
 *  library does not have
 *  @since 0.1 */
FASTNORM_API const char* fastnorm_status_name(fastnorm_status status);

/** Text of the last failure of a call on the calling thread. It names the argument, its value and
 *  what is required; for an unsupported combination it names the nearest one that is supported. A
 *  call that succeeds does not clear the text.
 *  @return the text; "" before the first failure, never NULL. It belongs to the library and is
 *  valid until the next call that fails on the same thread
 *  @since 0.1 */
FASTNORM_API const char* fastnorm_last_error(void);

/** The error code of the CUDA runtime that caused the last FASTNORM_ERROR_DEVICE or
 *  FASTNORM_ERROR_OUT_OF_MEMORY on the calling thread.
 *  @return a cudaError_t; 0 if the last failure did not come from the CUDA runtime
 *  @since 0.1 */
FASTNORM_API int32_t fastnorm_last_device_error(void);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_STATUS_H_ */
