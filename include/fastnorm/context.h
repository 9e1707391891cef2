/** @file context.h
 *  A context: one device, and what was read about it once.
 *
 *  Create one context per device when the program starts, share it between threads, destroy it at
 *  the end. All functions may be called from any thread; calls on one context may run at the same
 *  time. Destroying a context must not race calls on it, but work that was already queued on a GPU
 *  goes on unharmed.
 *
 *  A context must not be used after it was destroyed: its memory is free, the library does not
 *  check for this, and the behaviour is undefined. Destroying it twice is such a use.
 *
 *  The shared library is linked with NODELETE: dlclose() may be called but never unloads it, and a
 *  later dlopen() finds it as it was. The reason: the driver keeps the kernels registered, and
 *  threads keep their last error in the library's thread-local storage, until the process ends.
 *  Destroy every context before; dlclose() does not.
 */
#ifndef FASTNORM_CONTEXT_H_
#define FASTNORM_CONTEXT_H_

#include "status.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/** One device, ready for calls. Opaque. */
typedef struct fastnorm_context fastnorm_context;

/** Severity of a log message. */
typedef enum fastnorm_log_level {
  FASTNORM_LOG_ERROR = 0,   /**< A failure. */
  FASTNORM_LOG_WARNING = 1, /**< A doubtful state. */
  FASTNORM_LOG_INFO = 2,    /**< What was found. The library sends these only. */
  FASTNORM_LOG_DEBUG = 3,   /**< Details. */
  FASTNORM_LOG_MAX_ENUM = 0x7fffffff
} fastnorm_log_level;

/** Receives messages of a context, on the thread that makes a call; must return normally (no
 *  exception, no longjmp).
 *  @param user  fastnorm_context_options.log_user
 *  @param level a fastnorm_log_level
 *  @param text  one line without a newline; valid during the callback only */
typedef void (*fastnorm_log_fn)(void* user, int32_t level, const char* text);

/** A piece of work on the half-open range [begin, end). */
typedef void (*fastnorm_range_fn)(void* task, int64_t begin, int64_t end);

/** The caller's parallel loop: runs fn(task, begin, end) so that the ranges cover [0, n) exactly
 *  once, in any split, in any order, on any threads. It returns when all have returned. Ranges of
 *  about `grain` or more pay. Results do not depend on the split. TBB, rayon, OpenMP, ForkJoin and
 *  thread pools all fit. A loop that covers [0, n) otherwise is found out when it has returned, and
 *  the call is FASTNORM_ERROR_ARGUMENT: the rows of the ranges that it ran are written by then. */
typedef void (*fastnorm_parallel_for_fn)(void* user, int64_t n, int64_t grain, fastnorm_range_fn fn,
                                         void* task);

/** Bits of fastnorm_context_options.flags. */
typedef enum fastnorm_context_flags {
  /** Calls do everything but start work: they check, plan and fill in parameters, then return. A
   * CUDA context of this kind needs no GPU and no driver, only dry_run_capability; nothing is read
   * from or written to the tensors' memory. For planning on another machine, for tests, and to
   * measure host cost. */
  FASTNORM_CONTEXT_DRY_RUN = 1,
  FASTNORM_CONTEXT_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_context_flags;

/** Options of a context. `{0}` plus struct_size is the default of everything. */
typedef struct fastnorm_context_options {
  size_t struct_size;                    /**< sizeof(fastnorm_context_options). */
  fastnorm_log_fn log;                   /**< NULL = silent. */
  void* log_user;                        /**< Passed to log. */
  fastnorm_parallel_for_fn parallel_for; /**< CPU: the caller's parallel loop; NULL = none. */
  void* parallel_user;                   /**< Passed to parallel_for. */
  int32_t num_threads; /**< CPU: threads of an own pool, the caller included; 0 and 1 = the calling
                          thread alone, at most 1024. Ignored where parallel_for is given. Started
                          at first use, joined in fastnorm_context_destroy; a child forked after
                          that runs on one thread. */
  uint32_t flags;      /**< fastnorm_context_flags. */
  int32_t dry_run_capability; /**< Compute capability of a dry run as major * 10 + minor, such as
                                 90, planned for with 132 multiprocessors; else 0. */
  int32_t reserved;           /**< Must be 0. */
  const char* tuning_file;    /**< CUDA: path of a file that `fastnorm tune` wrote for this model of
                              GPU and this version of the library: calls of the shapes in it run on
                              the kernels that were fastest there, with the same results to the bit.
                              Read once, by fastnorm_context_create. NULL = none; required for the
                              CPU. */
} fastnorm_context_options;

/** Number of devices of a type. The CPU is one device. CUDA devices count whether or not this build
 *  has kernels for them (fastnorm_device_info.kernel_arch says that). Where there is no CUDA
 *  driver, or this build has no CUDA backend, their number is 0 and the call succeeds.
 *  @param device_type FASTNORM_DEVICE_CPU or FASTNORM_DEVICE_CUDA
 *  @param count       receives the number
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT for another type or a null count
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_device_count(int32_t device_type, int32_t* count);

/** What is known of a device. */
typedef struct fastnorm_device_info {
  size_t struct_size;      /**< In: sizeof(fastnorm_device_info). */
  char name[128];          /**< Model name, zero-terminated. */
  int32_t capability;      /**< CUDA: compute capability, major * 10 + minor; CPU: 0. */
  int32_t multiprocessors; /**< CUDA: multiprocessors; CPU: logical processors this process may run
                              on. */
  uint64_t l2_bytes;       /**< Bytes of level-2 cache (CPU: of one core). */
  uint64_t memory_bytes;   /**< CUDA: bytes of device memory; CPU: 0. */
  int32_t
      driver_version; /**< CUDA: the driver's CUDA version, major * 1000 + minor * 10; CPU: 0. */
  int32_t runtime_version; /**< CUDA: the CUDA runtime linked into this library; CPU: 0. */
  const char* kernel_arch; /**< The kernels that run there, such as "sm_90" or "avx512"; "none"
                              where this build has none. Static. */
} fastnorm_device_info;

/** Describe a device without creating a context.
 *  @param device the device
 *  @param info   struct_size in; receives the rest
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if info is null or its struct_size is too small;
 *  FASTNORM_ERROR_DEVICE if there is no such device
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_device_describe(fastnorm_device device,
                                                      fastnorm_device_info* info);

/** Create a context for one device.
 *
 *  A CUDA context uses the device's primary CUDA context, which this call initialises where nothing
 *  has, as cudaSetDevice does, and no call ends: it lives until cudaDeviceReset, after which calls
 *  on the context are not allowed, or until the process ends. The calling thread's current device
 *  stays as it was.
 *  @param device  {FASTNORM_DEVICE_CPU, 0} or {FASTNORM_DEVICE_CUDA, ordinal}
 *  @param options NULL = defaults
 *  @param context receives the context, or NULL on failure; the caller owns it and ends it with
 *  fastnorm_context_destroy
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT for null or out-of-range arguments, and for a
 *  tuning file that cannot be read or has a wrong line (the text says which); also for one of
 *  another version or architecture; FASTNORM_ERROR_DEVICE if the device or a usable driver is
 *  missing (the text says which driver was found and which is needed); FASTNORM_ERROR_UNSUPPORTED
 *  if this build has no kernels for the device; FASTNORM_ERROR_OUT_OF_MEMORY
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_context_create(fastnorm_device device,
                                                     const fastnorm_context_options* options,
                                                     fastnorm_context** context);

/** Destroy a context. NULL is fine. Must not race calls on the same context, nor be used again: see
 *  the top of this header.
 *  @param context the context; NULL = nothing is done
 *  @since 0.1 */
FASTNORM_API void fastnorm_context_destroy(fastnorm_context* context);

/** What a call would do, filled in by the `_query` functions. Strings are static. */
typedef struct fastnorm_info {
  size_t struct_size;       /**< In: sizeof(fastnorm_info). */
  uint64_t workspace_bytes; /**< Bytes of workspace the call needs; 0 = none. Never falls as rows
                               are added. */
  /** Bytes of rows, weight and bias that must be read, once for each tensor; a dimension of stride
      0 counts once, rows that overlap otherwise each by itself. */
  uint64_t bytes_read;
  uint64_t bytes_written; /**< Bytes of rows, statistics, codes and their scales, each once. */
  /** Name of the kernel, as in fastnorm_kernel_describe. On CUDA some families stand before it.
      A dry run may name one that this build lacks; "" if nothing is launched. */
  const char* kernel;
  int32_t launches;        /**< Kernel launches (CPU: 1, or 0 if there are no rows). */
  int32_t threads_per_row; /**< CUDA: threads that share a row, in all its thread blocks; CPU: 1. */
  int32_t vectors_per_thread; /**< CUDA: 16-byte vectors of a row that a thread holds; 0 = the row
                                 is streamed. CPU: 0. */
  int32_t rows_per_block; /**< CUDA: rows a thread block works on at once; CPU: rows that are worth
                             another thread. */
  int32_t blocks_per_row; /**< CUDA: thread blocks (one cluster) that share a row; CPU: 1. */
  int32_t vector_bytes;   /**< Widest access that the addresses and strides of x, residual, y,
                             residual_out, weight and bias allow, 1 to 16 (sm_100f: 32; CPU: 64). */
  uint64_t blocks;        /**< CUDA: thread blocks in the grid; where rows are more than they work
                             on at once, each takes several. CPU: threads at the most. */
  uint64_t profile_bytes; /**< Bytes of the profile that the call writes; 0 = none. Since 0.2. */
  const char* kind; /**< CUDA: the kinds of call that share a list of choices; "" if no list decides
                         (on a CPU, without rows, in families without lists). Since 0.2. */
  const char* choice; /**< CUDA: the line of that list for this length and number of rows, or that a
                         tuning file decides. `fastnorm explain` prints these lines. Since 0.2. */
  const char* variant; /**< CUDA: the line that describes the kernel. Since 0.2. */
} fastnorm_info;

/** One kernel of this build. Strings are static. */
typedef struct fastnorm_kernel_info {
  size_t struct_size; /**< In: sizeof(fastnorm_kernel_info). */
  const char* family; /**< "norm", "norm_backward", "peer", ..: a later version may have more. */
  const char* arch;   /**< Such as "sm_90" or "avx512". */
  const char* name;   /**< Unique within family and arch. */
} fastnorm_kernel_info;

/** Number of kernels in this build, for all devices.
 *  @return the number; 0 if host memory ran out
 *  @since 0.1 */
FASTNORM_API int32_t fastnorm_kernel_count(void);

/** Describe one kernel of this build.
 *  @param index its number, 0 to fastnorm_kernel_count() - 1
 *  @param info  struct_size in; receives the rest
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if index is out of range, info is null or its
 *  struct_size too small
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_kernel_describe(int32_t index, fastnorm_kernel_info* info);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_CONTEXT_H_ */
