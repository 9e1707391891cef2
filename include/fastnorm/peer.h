/** @file peer.h
 *  Norms for tensor parallelism: ranks that reach each other's memory reduce and normalise in one
 *  call.
 *
 *  **peer_allreduce_norm.** Rank r of N has one summand x_r of each row, and all ranks get the same
 *  results:
 *
 *      s = x_0 + x_1 + .. + x_(N-1)     in rank order, single precision, from left to right
 *      s = s rounded to x's dtype T     FASTNORM_PEER_SUM_ROUNDED
 *
 *  After that, s goes through everything that fastnorm_norm does with a row, as norm.h describes. A
 *  NaN in s is the quiet NaN of T, whatever the payloads of the summands are. The call therefore
 *  equals a sum in rank order followed by one fastnorm_norm, to the bit, and all ranks have the
 *  same bits. These bits do not depend on how the rows travel between the ranks
 *  (fastnorm_peer_algorithm).
 *
 *  **peer_sharded_norm.** The columns of a row are spread over the ranks, and rank r has n of its N
 *  * n columns. For RMS the statistic is
 *
 *      q_r  = sum(x_r^2)                              of this rank's columns
 *      rstd = 1 / sqrt((q_0 + .. + q_(N-1)) / (N * n) + eps)
 *
 *  For LAYER each rank has the mean_r and the sum of squares M_r about it. They are merged,
 *  starting with those of rank 0, for r = 1 .. N - 1 in this order:
 *
 *      d    = mean_r - mean
 *      mean = mean + d * (1 / (r + 1))
 *      M    = (M + M_r) + (d * d) * (n * r / (r + 1))
 *      rstd = 1 / sqrt(M / (N * n) + eps)
 *
 *  Then y is the norm of x_r with this mean and rstd, computed as fastnorm_norm_heads does with
 *  mean_in and rstd_in. The sums of one rank are those that fastnorm_norm_heads returns in sumsq.
 *  Each operation in the formulas is one single-precision operation, except that a quotient of
 *  integers is rounded once, and a division by N * n is a product with the rounded reciprocal.
 *  Several ranks may hold copies of the same heads, such as key heads. If every head is on the same
 *  number of ranks, all heads count equally, and the mean square is not changed by the copies.
 *
 *  **Peers.** A peer is one rank's end of the group. Each rank calls these functions once:
 *
 *      fastnorm_peer_create      its options; all but rank and wait_ns are the same on all ranks
 *      fastnorm_peer_export      a blob, which the caller brings to all ranks by any means
 *      fastnorm_peer_import      the blobs of all ranks
 *
 *  After fastnorm_peer_import a rank may make calls at once. If the caller already has buffers that
 *  all ranks can reach, it passes them to fastnorm_peer_create_from_pointers instead, and needs no
 *  blobs.
 *
 *  All ranks make the same calls in the same order, with the same rows, columns, dtype and options.
 *  One peer runs one call at a time, so calls on several streams need a peer for each stream.
 *
 *  **Failures.** No call waits for another rank longer than wait_ns. If a rank is missing or makes
 *  a different call, the peer is stopped: its state keeps the error, and every later call on this
 *  peer fails at once until fastnorm_peer_reset, while the process goes on. On a CPU the failing
 *  call writes no output. On CUDA the call has already returned when the error occurs;
 *  fastnorm_peer_status reports it, the outputs hold nothing useful, and the kernels of later calls
 *  end at once. A rank that is late, but no more than wait_ns, changes nothing but the time.
 *
 *  **CPU.** The ranks are threads of one process, each with a peer and usually a context of its
 *  own. With fastnorm_peer_create_from_pointers over shared memory the ranks may also be processes.
 *
 *  **CUDA.** The ranks are GPUs of one host that reach each other's memory: one process per GPU
 *  (CUDA IPC), one process with several GPUs, or several ranks on one GPU. Calls are asynchronous,
 *  can be captured in CUDA graphs and use programmatic dependent launch: by default a call waits
 *  for the stream's previous kernel inside its own kernel. A kernel that waits for other ranks lets
 *  the next kernel start early only with FASTNORM_NORM_PDL_TRIGGER. Ranks that share a GPU have to
 *  be on it at the same time: their calls use fewer rings, so that all of them have room, and
 *  ignore PDL_TRIGGER, because the next kernel might take the room that another rank needs. An
 *  all-reduce and norm of aligned rows of up to 16 KB, with weights of x's dtype, takes one kernel;
 *  other rows take an exchange into the workspace and then the norm's own kernel. A sharded norm
 *  takes one kernel for up to 256 tokens of aligned heads if each part has at most 16 KB per token,
 *  and otherwise three kernels. A kernel of a call waits on its GPU until the other ranks make the
 *  same call. Before a call, therefore, queue nothing on one rank that itself waits for a later
 *  call of another rank: the two ranks would wait for each other until wait_ns has passed. NVLink
 *  multicast is never used.
 */
#ifndef FASTNORM_PEER_H_
#define FASTNORM_PEER_H_

#include "norm.h"

#ifdef __cplusplus
extern "C" {
#endif

/** One rank's end of a group. The type is opaque. */
typedef struct fastnorm_peer fastnorm_peer;

/** How rows travel between the ranks. Results do not depend on it. */
typedef enum fastnorm_peer_algorithm {
  /** The library chooses by the numbers of rows, columns and ranks and by the dtype: one-shot up to
   *  one_shot_bytes, two-shot above. */
  FASTNORM_PEER_AUTO = 0,
  /** Each rank sends its rows to all ranks, and each rank adds up all rows. */
  FASTNORM_PEER_ONE_SHOT = 1,
  /** Each rank adds up a share of the rows and sends these sums to all ranks. */
  FASTNORM_PEER_TWO_SHOT = 2,
  FASTNORM_PEER_ALGORITHM_MAX_ENUM = 0x7fffffff
} fastnorm_peer_algorithm;

/** Which value of the sum of the ranks' rows is normalised. */
typedef enum fastnorm_peer_sum_rounding {
  /** The sum rounded to x's dtype T before the residual is added, as an all-reduce in T gives
   *  it. */
  FASTNORM_PEER_SUM_ROUNDED = 0,
  FASTNORM_PEER_SUM_EXACT = 1, /**< The single-precision sum. */
  FASTNORM_PEER_SUM_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_peer_sum_rounding;

/** What stopped a peer. */
typedef enum fastnorm_peer_error {
  FASTNORM_PEER_ERROR_NONE = 0,      /**< Nothing stopped it. */
  FASTNORM_PEER_ERROR_MISSING = 1,   /**< A rank did not arrive within wait_ns. */
  FASTNORM_PEER_ERROR_DISAGREES = 2, /**< A rank made a different call. */
  FASTNORM_PEER_ERROR_MAX_ENUM = 0x7fffffff
} fastnorm_peer_error;

/** Limits of a group. */
typedef enum fastnorm_peer_limits {
  FASTNORM_PEER_MAX_RANKS = 8,    /**< Largest number of ranks in a group. */
  FASTNORM_PEER_BLOB_BYTES = 128, /**< Size of one rank's blob in bytes. */
  FASTNORM_PEER_LIMITS_MAX_ENUM = 0x7fffffff
} fastnorm_peer_limits;

/** Options of a peer. A zeroed struct with struct_size, rank, ranks, dtype and max_columns set is
 *  valid. All options but rank and wait_ns must be the same on all ranks. */
typedef struct fastnorm_peer_options {
  size_t struct_size; /**< sizeof(fastnorm_peer_options). */
  int32_t rank;       /**< Number of this rank, 0 to ranks - 1. Required. */
  int32_t ranks;      /**< Number of ranks in the group, 2 to 8; it may be odd. Required. */
  /** T, the dtype of x in a peer_allreduce_norm: f32, f16 or bf16. Required. */
  fastnorm_dtype_id dtype;
  /** How rows travel. Default: the library chooses by size. */
  fastnorm_peer_algorithm algorithm;
  /** Length of the longest row of a peer_allreduce_norm, 1 to 65536. Required. */
  int64_t max_columns;
  /** With FASTNORM_PEER_AUTO: up to how many bytes (rows * columns * bytes of T) a call is
   *  one-shot; 0 = a measured default for the number of ranks. For 2 ranks that default makes every
   *  call one-shot. */
  int64_t one_shot_bytes;
  /** The longest wait for another rank in nanoseconds: 1000 to 10^12; 0 = 10 s. */
  int64_t wait_ns;
  /** Number of rings in the buffer of a rank, 1 to 256; 0 = 8 on a CPU; on CUDA 256 for two ranks
   *  and 128 for more. A ring is a part of the buffer through which one row after another travels,
   *  so this is the number of rows that may travel at once. On CUDA each thread block or cluster of
   *  them has a ring, so it limits their number, too. */
  int32_t rings;
  int32_t reserved; /**< Must be 0. */
} fastnorm_peer_options;

/** The state of a peer. */
typedef struct fastnorm_peer_state {
  size_t struct_size;        /**< Input: sizeof(fastnorm_peer_state). */
  fastnorm_peer_error error; /**< What stopped the peer; NONE = nothing. */
  /** The rank that was missing or that made a different call; -1 if there is none. */
  int32_t rank;
  /** Number of calls that succeeded since the peer was created or reset. CUDA: the number has 32
   *  bits, and a call that was stopped counts if its first rows succeeded. */
  uint64_t calls;
  int32_t connected; /**< 1 once the other ranks' buffers are known; else 0. */
  int32_t reserved;  /**< 0. */
} fastnorm_peer_state;

/** Size in bytes of a rank's buffer, for fastnorm_peer_create_from_pointers.
 *  @param context the device
 *  @param options read only during the call
 *  @param bytes   receives the size
 *  @return as fastnorm_peer_create
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_buffer_bytes(fastnorm_context* context,
                                                        const fastnorm_peer_options* options,
                                                        uint64_t* bytes);

/** Create one rank's peer, with a buffer of its own. The rank can make calls as soon as
 *  fastnorm_peer_import has the blobs of the other ranks.
 *  @param context the device; must outlive the peer
 *  @param options read only during the call
 *  @param peer    receives the peer, or NULL on failure; the caller owns it and ends it with
 *  fastnorm_peer_destroy
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if an argument is null or an option is out of
 *  range; FASTNORM_ERROR_DTYPE if options->dtype is not f32, f16 or bf16;
 *  FASTNORM_ERROR_UNSUPPORTED if the device has no peers, or if options of a later version are set;
 *  FASTNORM_ERROR_OUT_OF_MEMORY if host or device memory ran out
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_create(fastnorm_context* context,
                                                  const fastnorm_peer_options* options,
                                                  fastnorm_peer** peer);

/** Create one rank's peer over buffers that the caller provides. This function prepares the buffer
 *  of this rank, so no rank may make a call before it has returned on all ranks. The options of the
 *  ranks are not compared here; if they differ, the calls fail. The buffers must outlive the peers
 *  of all ranks.
 *  @param context the device; must outlive the peer
 *  @param options read only during the call
 *  @param buffers [count] addresses in rank order, as this rank reaches them. Each buffer has
 *  fastnorm_peer_buffer_bytes bytes, is 256-byte aligned and does not overlap the others
 *  @param count   options.ranks
 *  @param peer    as fastnorm_peer_create
 *  @return as fastnorm_peer_create; FASTNORM_ERROR_LAYOUT if buffers are misaligned or overlap
 *  @since 0.2 */
FASTNORM_API fastnorm_status
fastnorm_peer_create_from_pointers(fastnorm_context* context, const fastnorm_peer_options* options,
                                   void* const* buffers, int32_t count, fastnorm_peer** peer);

/** Write the blob that other ranks need to reach this one.
 *  @param peer  a peer that fastnorm_peer_create created
 *  @param blob  receives FASTNORM_PEER_BLOB_BYTES bytes
 *  @param bytes size of blob
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if an argument is null, the blob is too small, or
 *  the peer comes from fastnorm_peer_create_from_pointers
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_export(fastnorm_peer* peer, void* blob, size_t bytes);

/** Connect a rank with all others, which is done once. The function does not wait for the other
 *  ranks. Their buffers stay valid until this peer is destroyed, even if their own peers are
 *  destroyed earlier.
 *  @param peer  a peer that fastnorm_peer_create created
 *  @param blobs the blobs of all ranks, including this one, in rank order and without gaps
 *  @param bytes size of blobs: ranks * FASTNORM_PEER_BLOB_BYTES
 *  @return FASTNORM_OK
 *          FASTNORM_ERROR_ARGUMENT: an argument is null; the size is wrong; the bytes are not a
 *          blob; a blob belongs to another rank; the options differ (the text names the option and
 *          both values); a buffer no longer exists; the peer is already connected
 *          FASTNORM_ERROR_UNSUPPORTED: a blob comes from another version of the library or another
 *          device type; CPU: from another process; CUDA: from a GPU whose memory this one cannot
 *          reach, or from another process if CUDA IPC does not work
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_import(fastnorm_peer* peer, const void* blobs,
                                                  size_t bytes);

/** Say whether a peer was stopped, and by which rank. The function may be called at any time and
 *  from any thread, even while a call waits for other ranks.
 *  @param peer  the peer
 *  @param state struct_size as input; receives the rest
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if peer or state is null, or if state's struct_size
 *  is too small
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_status(const fastnorm_peer* peer,
                                                  fastnorm_peer_state* state);

/** Make a stopped group usable again. Every rank must call this function after the last call of any
 *  rank has ended and before any rank makes the next one. The caller ensures this by a barrier
 *  before and another one after it. CUDA: no stream may still have calls of this peer.
 *  @param peer the peer
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if peer is null, or on the CPU if it runs a call
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_reset(fastnorm_peer* peer);

/** Destroy a peer. No call on the peer may run at the same time or follow, and on CUDA no stream
 *  may still have calls of this peer. If other ranks continue to make calls, they find this one
 *  missing.
 *  @param peer the peer; if it is NULL, nothing is done
 *  @since 0.2 */
FASTNORM_API void fastnorm_peer_destroy(fastnorm_peer* peer);

/** An all-reduce and one normalisation. A zeroed struct with struct_size, peer and norm set is
 *  valid. */
typedef struct fastnorm_peer_allreduce_norm_args {
  size_t struct_size; /**< sizeof(fastnorm_peer_allreduce_norm_args). */
  /** Passed to the context's parallel_for, as in fastnorm_norm_args; NULL = norm.parallel_user. */
  void* parallel_user;
  /** This rank's peer, which is connected and belongs to the same context. Required. */
  fastnorm_peer* peer;
  /** The norm to apply, with this rank's summand as its x: [..., n] of the peer's dtype, of rank 1
   *  to 8. The sum of the ranks' x takes the place of x. As in fastnorm_norm, outputs may be x or
   *  residual. Residual, weight, bias and scales belong to each rank, and must be the same on all
   *  ranks if the results are to be the same. Stages, groups, statistics of several devices and a
   *  quant.rotation return FASTNORM_ERROR_UNSUPPORTED. Required. */
  const fastnorm_norm_args* norm;
  /** Which value of the sum is normalised. Default: the sum rounded to T. */
  fastnorm_peer_sum_rounding sum_rounding;
  int32_t reserved; /**< Must be 0. */
} fastnorm_peer_allreduce_norm_args;

/** Say what a call would do: its workspace, kernel, launches and bytes. The peer need not be
 *  connected. bytes_read and bytes_written are those of the norm; bytes that travel between ranks
 *  do not count.
 *  @param context the device
 *  @param args    the arguments of the call
 *  @param info    struct_size as input; receives the rest
 *  @return as fastnorm_peer_allreduce_norm; FASTNORM_ERROR_ARGUMENT also if info is null or its
 *  struct_size is too small
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_allreduce_norm_query(
    fastnorm_context* context, const fastnorm_peer_allreduce_norm_args* args, fastnorm_info* info);

/** Load the kernels of a call. On the CPU this is optional. On CUDA, prepare on all ranks before
 *  the first call, because a kernel cannot be loaded while another one waits for a rank. The
 *  function does not wait for other ranks.
 *  @param context the device
 *  @param args    the arguments of the call
 *  @return as fastnorm_peer_allreduce_norm
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_allreduce_norm_prepare(
    fastnorm_context* context, const fastnorm_peer_allreduce_norm_args* args);

/** Add up the ranks' x, add the residual and normalise; the formula is at the top of this header.
 *  Every rank makes this call. CPU: the call waits for the other ranks' x, and the work is done
 *  when it returns. CUDA: the call queues kernels on the stream and returns; calls of one peer run
 *  in the order of that stream. Zero rows are a success: nothing is sent and nothing is written.
 *  @param context         the device
 *  @param args            what to compute; read only during the call
 *  @param workspace       fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned,
 *  which overlap no tensor
 *  @param workspace_bytes size of workspace
 *  @param stream          CUDA: the cudaStream_t. CPU: NULL
 *  @return as fastnorm_norm, and
 *          FASTNORM_ERROR_ARGUMENT: peer is null, belongs to another context or is not connected;
 *          norm is null; CPU: the peer already runs a call, or a rank makes a different call (the
 *          text describes both calls)
 *          FASTNORM_ERROR_UNSUPPORTED: a field of norm is set that an all-reduce does not support
 *          FASTNORM_ERROR_SHAPE: n is above max_columns, or there are 2^31 rows or more
 *          FASTNORM_ERROR_DTYPE: x has another dtype than the peer
 *          FASTNORM_ERROR_DEVICE: the peer was stopped earlier; CPU: a rank did not arrive in time
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_allreduce_norm(
    fastnorm_context* context, const fastnorm_peer_allreduce_norm_args* args, void* workspace,
    size_t workspace_bytes, void* stream);

/** Normalisation of one or two parts whose columns are spread over the ranks, such as query and key
 *  heads. One exchange between the ranks serves both parts. A zeroed struct with struct_size, peer,
 *  x and y set is valid. */
typedef struct fastnorm_peer_sharded_norm_args {
  size_t struct_size; /**< sizeof(fastnorm_peer_sharded_norm_args). */
  /** Passed to the context's parallel_for, as in fastnorm_norm_args. */
  void* parallel_user;
  /** This rank's peer, which is connected and belongs to the same context. Required. */
  fastnorm_peer* peer;
  fastnorm_norm_kind kind; /**< RMS or LAYER. */
  float eps;               /**< Added to the mean square or the variance. Finite, >= 0. */
  /** Added to the weights in f32, as in fastnorm_norm_args; 0 if a part has no weight. */
  float weight_offset;
  fastnorm_rounding rounding; /**< FASTNORM_ROUND_ONCE or FASTNORM_ROUND_NORMALIZED. */
  /** The bits of fastnorm_norm_flags that are about programmatic dependent launch, or 0. */
  uint32_t flags;
  int32_t reserved; /**< Must be 0. */
  /** This rank's columns of the first part: [tokens, n], or [tokens, heads, d] with n = heads * d;
   *  d is at most 8192; f32, f16 or bf16. n is the same on all ranks. Required. */
  const fastnorm_tensor* x;
  /** The weight of the first part: [n], or [d] or [heads, d]; f32, f16 or bf16. NULL = 1. */
  const fastnorm_tensor* weight;
  /** The bias of the first part, with the shapes and dtypes of weight. NULL = 0. */
  const fastnorm_tensor* bias;
  /** The normalised first part, of x's shape and dtype. Output; may be x. Required. */
  const fastnorm_tensor* y;
  /** The second part, with the tokens and the dtype of x. NULL = there is one part. */
  const fastnorm_tensor* x2;
  const fastnorm_tensor* weight2; /**< The weight of x2, with the rules of weight. NULL = 1. */
  const fastnorm_tensor* bias2;   /**< The bias of x2, with the rules of bias. NULL = 0. */
  /** The normalised x2, of x2's shape and dtype. Output; may be x2. Required with x2. */
  const fastnorm_tensor* y2;
} fastnorm_peer_sharded_norm_args;

/** Say what a call would do, as fastnorm_peer_allreduce_norm_query does.
 *  @param context the device
 *  @param args    the arguments of the call
 *  @param info    struct_size as input; receives the rest
 *  @return as fastnorm_peer_sharded_norm; FASTNORM_ERROR_ARGUMENT also if info is null or its
 *  struct_size is too small
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_sharded_norm_query(
    fastnorm_context* context, const fastnorm_peer_sharded_norm_args* args, fastnorm_info* info);

/** Load the kernels of a call, as fastnorm_peer_allreduce_norm_prepare does. The function does not
 *  wait for other ranks.
 *  @param context the device
 *  @param args    the arguments of the call
 *  @return as fastnorm_peer_sharded_norm
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_sharded_norm_prepare(
    fastnorm_context* context, const fastnorm_peer_sharded_norm_args* args);

/** Normalise rows whose columns are spread over the ranks; the formula is at the top of this
 *  header. Every rank makes this call.
 *  @param context         the device
 *  @param args            what to compute; read only during the call
 *  @param workspace       fastnorm_info.workspace_bytes bytes, as for fastnorm_peer_allreduce_norm
 *  @param workspace_bytes size of workspace
 *  @param stream          CUDA: the cudaStream_t. CPU: NULL
 *  @return as fastnorm_peer_allreduce_norm; error texts about overlap call the two parts parts[0]
 *  and parts[1]
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_sharded_norm(fastnorm_context* context,
                                                        const fastnorm_peer_sharded_norm_args* args,
                                                        void* workspace, size_t workspace_bytes,
                                                        void* stream);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_PEER_H_ */
