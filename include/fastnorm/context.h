/** @file context.h
 *  A context holds what the library needs to run calls on one device, such as the device's
 *  properties and the pool of threads.
 *
 *  Create one context per device when the program starts, share it between threads, and destroy it
 *  at the end. All functions may be called from any thread, and calls on one context may run at the
 *  same time. A context must not be destroyed while a call on it runs, but work that is already
 *  queued on a GPU finishes unharmed.
 *
 *  A context must not be used after it was destroyed, and destroying it twice counts as such a use.
 *  The library does not check for this, and the behaviour is undefined.
 *
 *  The shared library is linked with NODELETE: dlclose() may be called but never unloads it, and a
 *  later dlopen() finds it as it was. The reason is that the driver keeps the kernels registered,
 *  and threads keep their last error in the library's thread-local storage, until the process ends.
 *  dlclose() destroys no context, so destroy every context before you call it.
 */
#ifndef FASTNORM_CONTEXT_H_
#define FASTNORM_CONTEXT_H_

#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Everything that the library needs to run calls on one device. The type is opaque. */
typedef struct fastnorm_context fastnorm_context;

/** Severity of a log message. */
typedef enum fastnorm_log_level {
  FASTNORM_LOG_ERROR = 0,   /**< A failure. */
  FASTNORM_LOG_WARNING = 1, /**< Something that may be wrong. */
  FASTNORM_LOG_INFO = 2,    /**< What the library found. At present it sends only this level. */
  FASTNORM_LOG_DEBUG = 3,   /**< Details. */
  FASTNORM_LOG_MAX_ENUM = 0x7fffffff
} fastnorm_log_level;

/** Receives the messages of a context, on the thread that makes the call. The function must return
 *  normally, so neither by an exception nor by longjmp.
 *  @param user  fastnorm_context_options.log_user
 *  @param level a fastnorm_log_level
 *  @param text  one line without a newline; valid only during the callback */
typedef void (*fastnorm_log_fn)(void* user, int32_t level, const char* text);

/** A piece of work: does the items of the half-open range [begin, end). */
typedef void (*fastnorm_range_fn)(void* task, int64_t begin, int64_t end);

/** The caller's parallel loop. It calls fn(task, begin, end) for ranges that cover [0, n) exactly
 *  once, in any split, in any order and on any threads, and returns when all these calls have
 *  returned. Ranges of about `grain` items or more are worth a thread. Results do not depend on the
 *  split. TBB, rayon, OpenMP, ForkJoin and thread pools can all serve as such a loop. If the ranges
 *  do not cover [0, n) exactly once, the library notices when the loop has returned, and the call
 *  returns FASTNORM_ERROR_ARGUMENT; by then the rows of the ranges that did run are written. */
typedef void (*fastnorm_parallel_for_fn)(void* user, int64_t n, int64_t grain, fastnorm_range_fn fn,
                                         void* task);

/** Bits of fastnorm_context_options.flags. */
typedef enum fastnorm_context_flags {
  /** Calls check, plan and fill in parameters, and then return without starting any work. The
   *  memory of the tensors is neither read nor written. A CUDA context of this kind needs no GPU
   *  and no driver, only dry_run_capability. It serves to plan for another machine, to test, and to
   *  measure what a call costs on the host. */
  FASTNORM_CONTEXT_DRY_RUN = 1,
  /** CUDA: calls use programmatic dependent launch only where their own flags ask for it, as if
   *  each call had its NO_PDL flag. */
  FASTNORM_CONTEXT_NO_PDL = 2,
  FASTNORM_CONTEXT_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_context_flags;

/** Options of a context. A zeroed struct with struct_size set has the defaults of all options. */
typedef struct fastnorm_context_options {
  size_t struct_size;                    /**< sizeof(fastnorm_context_options). */
  fastnorm_log_fn log;                   /**< Receives messages. NULL = no messages. */
  void* log_user;                        /**< Passed to log. */
  fastnorm_parallel_for_fn parallel_for; /**< CPU: the caller's parallel loop; NULL = none. */
  /** Passed to parallel_for, unless a call has a parallel_user of its own. */
  void* parallel_user;
  /** CPU: number of threads that share the work of a call, including the calling thread, at most
   *  1024; 0 = 1, the calling thread alone. The context's pool starts these threads when it is
   *  first used, and fastnorm_context_destroy joins them. A child process that is forked after the
   *  pool has started runs on one thread. Ignored if parallel_for is given. */
  int32_t num_threads;
  uint32_t flags; /**< fastnorm_context_flags. */
  /** With FASTNORM_CONTEXT_DRY_RUN: the compute capability to plan for, as major * 10 + minor, such
   *  as 90. Such plans are for 132 multiprocessors. Without that flag it must be 0. */
  int32_t dry_run_capability;
  int32_t reserved; /**< Must be 0. */
  /** CUDA: path of a file that `fastnorm tune` wrote for this model of GPU and this version of the
   *  library. Calls of the shapes in that file run on the kernels that were fastest there, and give
   *  the same bits. fastnorm_context_create reads the file once. NULL = none, which is required for
   *  the CPU. */
  const char* tuning_file;
} fastnorm_context_options;

/** Number of devices of a type. The CPU is one device. CUDA devices count whether or not this build
 *  has kernels for them, which fastnorm_device_info.kernel_arch tells. If there is no CUDA driver,
 *  or this build has no CUDA backend, the call succeeds and the number is 0.
 *  @param device_type FASTNORM_DEVICE_CPU or FASTNORM_DEVICE_CUDA
 *  @param count       receives the number
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT for another type or a null count
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_device_count(int32_t device_type, int32_t* count);

/** Properties of a device. */
typedef struct fastnorm_device_info {
  size_t struct_size; /**< Input: sizeof(fastnorm_device_info). */
  char name[128];     /**< Model name, zero-terminated. */
  int32_t capability; /**< CUDA: compute capability, major * 10 + minor; CPU: 0. */
  /** CUDA: number of multiprocessors; CPU: number of logical processors that this process may run
   *  on. */
  int32_t multiprocessors;
  uint64_t l2_bytes;     /**< Bytes of the level-2 cache; CPU: of one core's level-2 cache. */
  uint64_t memory_bytes; /**< CUDA: bytes of device memory; CPU: 0. */
  /** CUDA: the driver's CUDA version, major * 1000 + minor * 10; CPU: 0. */
  int32_t driver_version;
  /** CUDA: version of the CUDA runtime that is linked into this library; CPU: 0. */
  int32_t runtime_version;
  /** Architecture of the kernels that run on the device, such as "sm_90" or "avx512"; "none" if
   *  this build has no kernels for it. Static. */
  const char* kernel_arch;
} fastnorm_device_info;

/** Describe a device without creating a context.
 *  @param device the device
 *  @param info   struct_size as input; receives the rest
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if info is null or its struct_size is too small;
 *  FASTNORM_ERROR_DEVICE if there is no such device
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_device_describe(fastnorm_device device,
                                                      fastnorm_device_info* info);

/** Create a context for one device.
 *
 *  On a GPU the context uses the device's primary CUDA context. If nothing has initialised that
 *  yet, this call does, as cudaSetDevice would. No call of this library ends it: it lives until the
 *  process ends or cudaDeviceReset is called, after which the fastnorm_context must not be used for
 *  calls. The calling thread's current device stays as it was.
 *  @param device  {FASTNORM_DEVICE_CPU, 0} or {FASTNORM_DEVICE_CUDA, ordinal}
 *  @param options NULL = defaults
 *  @param context receives the context, or NULL on failure; the caller owns it and ends it with
 *  fastnorm_context_destroy
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if an argument is null or out of range, or if the
 *  tuning file cannot be read, has a wrong line (the text says which) or is of another version or
 *  architecture; FASTNORM_ERROR_DEVICE if the device or a usable driver is missing (the text says
 *  which driver was found and which is needed); FASTNORM_ERROR_UNSUPPORTED if this build has no
 *  kernels for the device; FASTNORM_ERROR_OUT_OF_MEMORY if host or device memory ran out
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_context_create(fastnorm_device device,
                                                     const fastnorm_context_options* options,
                                                     fastnorm_context** context);

/** Destroy a context. No call on the context may run at the same time or follow, as the top of this
 *  header explains.
 *  @param context the context; if it is NULL, nothing is done
 *  @since 0.1 */
FASTNORM_API void fastnorm_context_destroy(fastnorm_context* context);

/** What a call would do, filled in by the `_query` functions. Strings are static. */
typedef struct fastnorm_info {
  size_t struct_size; /**< Input: sizeof(fastnorm_info). */
  /** Bytes of workspace that the call needs; 0 = none. The number never decreases when rows are
   *  added. */
  uint64_t workspace_bytes;
  /** Bytes of rows, weight and bias that the call must read, once for each tensor. A dimension of
   *  stride 0 counts once; rows that overlap in another way count one by one. */
  uint64_t bytes_read;
  /** Bytes of rows, statistics, codes and scales that the call writes, each counted once. */
  uint64_t bytes_written;
  /** Name of the kernel, as fastnorm_kernel_describe gives it; on CUDA some families put their own
   *  name before it. A dry run may name a kernel that this build does not contain. "" if nothing is
   *  launched. */
  const char* kernel;
  int32_t launches; /**< Number of kernel launches. CPU: 1, or 0 if there are no rows. */
  /** CUDA: number of threads that share a row, over all its thread blocks; CPU: 1. */
  int32_t threads_per_row;
  /** CUDA: number of 16-byte vectors of a row that a thread holds; 0 = the kernel reads the row
   *  again in each pass. CPU: 0. */
  int32_t vectors_per_thread;
  /** CUDA: number of rows that a thread block works on at once; CPU: number of rows for which
   *  another thread is worth its cost. */
  int32_t rows_per_block;
  int32_t blocks_per_row; /**< CUDA: thread blocks (one cluster) that share a row; CPU: 1. */
  /** Widest access in bytes that the addresses and strides of x, residual, y, residual_out, weight
   *  and bias allow: 1 to 16, on sm_100f up to 32, on the CPU up to 64. */
  int32_t vector_bytes;
  /** CUDA: number of thread blocks in the grid; if they cannot hold all rows at once, each block
   *  takes several groups of rows, one after another. CPU: the largest number of threads that may
   *  take part. */
  uint64_t blocks;
  /** Bytes of the buffer for fastnorm_mla_decode_args.profile; 0 = none. Since 0.2. */
  uint64_t profile_bytes;
  /** CUDA: the KIND line of the list of choices that chose the kernel, which says what kinds of
   *  call the list serves; "" if no list chose, as on the CPU, without rows, and in families that
   *  have no lists. Since 0.2. */
  const char* kind;
  /** CUDA: the line of that list for this row length and number of rows, or a remark that a tuning
   *  file decided. `fastnorm explain` prints these lines. Since 0.2. */
  const char* choice;
  const char* variant; /**< CUDA: the kernel's line in variants*.inc. Since 0.2. */
} fastnorm_info;

/** One kernel of this build. Strings are static. */
typedef struct fastnorm_kernel_info {
  size_t struct_size; /**< Input: sizeof(fastnorm_kernel_info). */
  const char* family; /**< Such as "norm", "norm_backward" or "peer". */
  const char* arch;   /**< Architecture, such as "sm_90" or "avx512". */
  const char* name;   /**< A name that is unique within family and arch. */
} fastnorm_kernel_info;

/** Number of kernels in this build, for all devices.
 *  @return the number; 0 if host memory ran out
 *  @since 0.1 */
FASTNORM_API int32_t fastnorm_kernel_count(void);

/** Describe one kernel of this build.
 *  @param index its number, 0 to fastnorm_kernel_count() - 1
 *  @param info  struct_size as input; receives the rest
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if index is out of range, or if info is null or its
 *  struct_size is too small
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_kernel_describe(int32_t index, fastnorm_kernel_info* info);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_CONTEXT_H_ */
