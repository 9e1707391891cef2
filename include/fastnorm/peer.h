/** @file peer.h
 *  Tensor parallel norms: ranks that reach each other's memory reduce and normalise in one call.
 *
 *  **peer_allreduce_norm.** Rank r of N has a part x_r of each row. All ranks get the same results:
 *
 *      s = x_0 + x_1 + .. + x_(N-1)     in rank order, single precision, from left to right
 *      s = s rounded to x's dtype T     FASTNORM_PEER_SUM_ROUNDED
 *
 *  and then everything that fastnorm_norm makes of a row s: norm.h tells it. A NaN in s is the
 *  quiet NaN of T, whatever the payloads of the parts are. So the call equals a sum in rank order
 *  and one fastnorm_norm to the bit, and all ranks have the same bits. The algorithm does not
 *  change them.
 *
 *  **peer_sharded_norm.** A row is spread over the ranks: rank r has n of its N * n columns. RMS:
 *
 *      q_r  = sum(x_r^2)                              of this rank's columns
 *      rstd = 1 / sqrt((q_0 + .. + q_(N-1)) / (N * n) + eps)
 *
 *  LAYER merges means and sums of squares about them, for r = 1 .. N - 1 in this order:
 *
 *      d    = mean_r - mean
 *      mean = mean + d * (1 / (r + 1))
 *      M    = (M + M_r) + (d * d) * (n * r / (r + 1))
 *      rstd = 1 / sqrt(M / (N * n) + eps)
 *
 *  Then y = norm of x_r with this mean and rstd, as fastnorm_norm_heads with mean_in and rstd_in.
 *  The sums of one rank are those of fastnorm_norm_heads' sumsq. Each operation is one
 *  single-precision operation; quotients of integers are rounded once; a division by N * n is a
 *  product with the rounded quotient. Heads that several ranks repeat equally count equally, and
 *  leave the mean square as it is.
 *
 *  **Peers.** A peer is one rank's end. Each rank:
 *
 *      fastnorm_peer_create      its options; all but rank and wait_ns are the same on all ranks
 *      fastnorm_peer_export      a blob, which the caller brings to all ranks by any means
 *      fastnorm_peer_import      the blobs of all ranks
 *
 *  After fastnorm_peer_import a rank may call at once. With fastnorm_peer_create_from_pointers the
 *  caller brings buffers that all ranks can reach already, and there are no blobs.
 *
 *  All ranks make the same calls in the same order, with the same rows, columns, dtype and options.
 *  One peer runs one call at a time. Calls of several streams need a peer for each stream.
 *
 *  **Failures.** No call waits longer than wait_ns for another rank. A rank that is missing, or
 *  that makes another call, is an error: the peer's state keeps it, and every later call on this
 *  peer fails at once, until fastnorm_peer_reset. The process goes on. On a CPU no output is
 *  written. On CUDA the call has returned before: fastnorm_peer_status tells, outputs hold nothing
 *  of use, and kernels of later calls end at once.
 *
 *  **CPU.** Contexts of one process: ranks are threads, each with a peer and usually a context of
 *  its own. With fastnorm_peer_create_from_pointers over shared memory ranks may be processes.
 *
 *  **CUDA.** GPUs of one host that reach each other's memory: a process for each GPU (CUDA IPC),
 *  one process with several GPUs, or several ranks on one GPU. Calls are asynchronous, may be
 *  captured into graphs and take programmatic dependent launch (args.flags). Aligned rows of up to
 *  16 KB with weights of x's dtype are one kernel; others are an exchange into the workspace and
 *  the norm's own kernel. A sharded norm is one kernel for up to 256 tokens of aligned heads, where
 *  each part has at most 16 KB of a token; others are three kernels. A kernel waits for the other
 *  ranks, so launch nothing on one rank that waits for a later call of another. NVLink multicast
 *  is never used.
 */
#ifndef FASTNORM_PEER_H_
#define FASTNORM_PEER_H_

#include "norm.h"

#ifdef __cplusplus
extern "C" {
#endif

/** One rank's end of a group. Opaque. */
typedef struct fastnorm_peer fastnorm_peer;

/** How rows travel. Results do not depend on it. */
typedef enum fastnorm_peer_algorithm {
  /** By rows, columns, dtype and ranks: one-shot up to one_shot_bytes, two-shot above. */
  FASTNORM_PEER_AUTO = 0,
  FASTNORM_PEER_ONE_SHOT = 1, /**< Each rank sends its rows to all, and all ranks add. */
  FASTNORM_PEER_TWO_SHOT = 2, /**< Each rank adds a share of the rows and sends the sums to all. */
  FASTNORM_PEER_ALGORITHM_MAX_ENUM = 0x7fffffff
} fastnorm_peer_algorithm;

/** Which sum of the ranks' rows goes on. */
typedef enum fastnorm_peer_sum_rounding {
  /** Rounded to x's dtype, before the residual is added: as an all-reduce of T would. */
  FASTNORM_PEER_SUM_ROUNDED = 0,
  FASTNORM_PEER_SUM_EXACT = 1, /**< The single-precision sum. */
  FASTNORM_PEER_SUM_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_peer_sum_rounding;

/** What stopped a peer. */
typedef enum fastnorm_peer_error {
  FASTNORM_PEER_ERROR_NONE = 0,      /**< Nothing. */
  FASTNORM_PEER_ERROR_MISSING = 1,   /**< A rank did not arrive within wait_ns. */
  FASTNORM_PEER_ERROR_DISAGREES = 2, /**< A rank made another call. */
  FASTNORM_PEER_ERROR_MAX_ENUM = 0x7fffffff
} fastnorm_peer_error;

/** Sizes of this header. */
typedef enum fastnorm_peer_limits {
  FASTNORM_PEER_MAX_RANKS = 8,    /**< Ends of a group. */
  FASTNORM_PEER_BLOB_BYTES = 128, /**< Bytes of one rank's blob. */
  FASTNORM_PEER_LIMITS_MAX_ENUM = 0x7fffffff
} fastnorm_peer_limits;

/** Options of a peer. `{0}` plus struct_size, rank, ranks, dtype and max_columns is valid. All but
 *  rank and wait_ns must be the same on all ranks. */
typedef struct fastnorm_peer_options {
  size_t struct_size;      /**< sizeof(fastnorm_peer_options). */
  int32_t rank;            /**< This end's number, 0 to ranks - 1. Required. */
  int32_t ranks;           /**< Ends of the group, 2 to 8; odd numbers too. Required. */
  fastnorm_dtype_id dtype; /**< T of peer_allreduce_norm's x: f32, f16 or bf16. Required. */
  fastnorm_peer_algorithm algorithm; /**< Default: by size. */
  int64_t max_columns; /**< Longest row of peer_allreduce_norm, 1 to 65536. Required. */
  /** AUTO: the most bytes (rows * columns * bytes of T) of a one-shot; 0 = measured defaults. At 2
      ranks 0 is one-shot always. */
  int64_t one_shot_bytes;
  int64_t wait_ns; /**< The longest wait for another rank: 1000 to 10^12 ns; 0 = 10 s. */
  int32_t rings; /**< Rows that may be on their way at once, 1 to 256; 0 = 8, CUDA: 128. On CUDA at
                    most so many thread blocks run. */
  int32_t reserved; /**< Must be 0. */
} fastnorm_peer_options;

/** What became of a peer. */
typedef struct fastnorm_peer_state {
  size_t struct_size;        /**< In: sizeof(fastnorm_peer_state). */
  fastnorm_peer_error error; /**< What stopped it; NONE = nothing. */
  int32_t rank;              /**< The rank that was missing or disagrees; -1 where there is none. */
  uint64_t calls; /**< Calls that ended well since create or reset. CUDA: of one that was stopped,
                     the first rows may have ended well, and then it counts; 32 bits. */
  int32_t connected; /**< 1 once the other ranks' buffers are known; else 0. */
  int32_t reserved;  /**< 0. */
} fastnorm_peer_state;

/** Bytes of a rank's buffer, for fastnorm_peer_create_from_pointers.
 *  @param context the device
 *  @param options read during the call only
 *  @param bytes   receives the number
 *  @return as fastnorm_peer_create
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_buffer_bytes(fastnorm_context* context,
                                                        const fastnorm_peer_options* options,
                                                        uint64_t* bytes);

/** Create one rank's end, with a buffer of its own. It calls once it has the others' blobs.
 *  @param context the device; must outlive the peer
 *  @param options read during the call only
 *  @param peer    receives the peer, or NULL on failure; the caller owns it and ends it with
 *  fastnorm_peer_destroy
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT for null or out-of-range arguments and options;
 *  FASTNORM_ERROR_DTYPE for another dtype; FASTNORM_ERROR_UNSUPPORTED for a device without peers,
 *  and for options of a later version; FASTNORM_ERROR_OUT_OF_MEMORY
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_create(fastnorm_context* context,
                                                  const fastnorm_peer_options* options,
                                                  fastnorm_peer** peer);

/** Create one rank's end over buffers that the caller has. The call prepares this rank's buffer; no
 *  rank may call before this has returned on all. Nothing compares the ranks' options: calls find
 *  out. The buffers must outlive every rank's peer.
 *  @param context the device; must outlive the peer
 *  @param options read during the call only
 *  @param buffers [count] addresses in rank order, as this rank reaches them: each of
 *  fastnorm_peer_buffer_bytes bytes, 256-byte aligned, apart from each other
 *  @param count   options.ranks
 *  @param peer    as fastnorm_peer_create
 *  @return as fastnorm_peer_create; FASTNORM_ERROR_LAYOUT for buffers that are misaligned or
 *  overlap
 *  @since 0.2 */
FASTNORM_API fastnorm_status
fastnorm_peer_create_from_pointers(fastnorm_context* context, const fastnorm_peer_options* options,
                                   void* const* buffers, int32_t count, fastnorm_peer** peer);

/** Write what other ranks need to reach this one.
 *  @param peer  of fastnorm_peer_create
 *  @param blob  receives FASTNORM_PEER_BLOB_BYTES bytes
 *  @param bytes size of blob
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT for null arguments, too small a blob, and a peer of
 *  fastnorm_peer_create_from_pointers
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_export(fastnorm_peer* peer, void* blob, size_t bytes);

/** Connect a rank with all others, once. It does not wait for them. The other ranks' buffers stay
 *  until this peer is destroyed, also where their peers are destroyed before.
 *  @param peer  of fastnorm_peer_create
 *  @param blobs the blobs of all ranks, this one's too, in rank order, without gaps
 *  @param bytes size of blobs: ranks * FASTNORM_PEER_BLOB_BYTES
 *  @return FASTNORM_OK
 *          FASTNORM_ERROR_ARGUMENT: null arguments; a wrong size; bytes that are no blob; a blob of
 *          another rank; options that differ: the text names the option and both values; a buffer
 *          that is gone; a second call
 *          FASTNORM_ERROR_UNSUPPORTED: a blob of another version of the library or of another
 *          device type; CPU: of another process; CUDA: of a GPU whose memory this one cannot reach,
 *          or of another process where CUDA IPC does not work
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_import(fastnorm_peer* peer, const void* blobs,
                                                  size_t bytes);

/** Say whether a peer was stopped, and by which rank. May be called at any time, from any thread,
 *  also while a call waits for other ranks.
 *  @param peer  of fastnorm_peer_create
 *  @param state struct_size in; receives the rest
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if peer or state is null, or its struct_size too
 *  small
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_status(const fastnorm_peer* peer,
                                                  fastnorm_peer_state* state);

/** Make a stopped group usable again. Every rank must call it, after no rank runs a call any more
 *  and before any rank runs the next one: the caller makes sure, by a barrier before and one after.
 *  CUDA: no stream has calls of this peer left.
 *  @param peer of fastnorm_peer_create
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if peer is null; CPU: or runs a call
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_reset(fastnorm_peer* peer);

/** Destroy a peer. NULL is fine. Must not race calls on the same peer, nor be used again. On CUDA
 *  no stream may have its calls left. Other ranks that call on find this one missing.
 *  @param peer of fastnorm_peer_create, or NULL
 *  @since 0.2 */
FASTNORM_API void fastnorm_peer_destroy(fastnorm_peer* peer);

/** An all-reduce and one normalisation. `{0}` plus struct_size, peer, x and y is valid. Fields that
 *  norm.h has too mean the same, with the sum of the ranks' x in place of x. Rank 1 to 8. Outputs
 *  may be x or residual as there. Residual, weight, bias and scales are each rank's own, and are
 *  the same on all ranks where results shall be. */
typedef struct fastnorm_peer_allreduce_norm_args {
  size_t struct_size;         /**< sizeof(fastnorm_peer_allreduce_norm_args). */
  fastnorm_peer* peer;        /**< This rank's end, connected, of the same context. Required. */
  fastnorm_norm_kind kind;    /**< RMS or LAYER. */
  float eps;                  /**< Finite, >= 0. */
  float weight_offset;        /**< As in fastnorm_norm_args. */
  fastnorm_rounding rounding; /**< Default: round once. */
  fastnorm_residual_rounding residual_rounding; /**< Default: exact. */
  fastnorm_peer_sum_rounding sum_rounding;      /**< Default: rounded to T. */
  uint32_t flags;                               /**< fastnorm_norm_flags; 0. */
  int32_t reserved;                             /**< Must be 0. */
  const fastnorm_tensor* x;                     /**< [..., n] T, the peer's dtype. Required. */
  const fastnorm_tensor* residual;        /**< As in fastnorm_norm_args. NULL = nothing is added. */
  const fastnorm_tensor* weight;          /**< As in fastnorm_norm_args. NULL = 1. */
  const fastnorm_tensor* bias;            /**< As in fastnorm_norm_args. NULL = 0. */
  const fastnorm_tensor* y;               /**< As in fastnorm_norm_args. Output. */
  const fastnorm_tensor* residual_out;    /**< As in fastnorm_norm_args. Output. */
  const fastnorm_tensor* mean;            /**< As in fastnorm_norm_args. Output. */
  const fastnorm_tensor* rstd;            /**< As in fastnorm_norm_args. Output. */
  fastnorm_quant_scheme quant_scheme;     /**< As in fastnorm_norm_args, and the fields below. */
  int32_t quant_block_size;               /**< Columns of a block. */
  fastnorm_quant_source quant_source;     /**< What is quantised. */
  fastnorm_scale_layout scale_layout;     /**< Order of the scales. */
  int32_t scale_pow2;                     /**< 1 = scales are powers of two. */
  float amax_floor;                       /**< Least magnitude that a scale is made from. */
  float clamp;                            /**< > 0: the clamp. */
  fastnorm_quant_division quant_division; /**< How a code is made. */
  const fastnorm_tensor* global_scale;    /**< NVFP4's second scale. */
  const fastnorm_tensor* quantized;       /**< Codes. Output. */
  const fastnorm_tensor* scale;           /**< Scales: input for PER_TENSOR, else output. */
  const fastnorm_tensor* amax;            /**< Greatest magnitude. In and out. */
  const fastnorm_tensor* clamp_scale;     /**< The clamp as a value on the device. */
} fastnorm_peer_allreduce_norm_args;

/** Say what a call would do: workspace, kernel, launches, bytes. The peer need not be connected.
 *  bytes_read and bytes_written are those of the norm; what travels between ranks does not count.
 *  @param context the device
 *  @param args    as for the call
 *  @param info    struct_size in; receives the rest
 *  @return as fastnorm_peer_allreduce_norm; FASTNORM_ERROR_ARGUMENT also if info is null or its
 *  struct_size too small
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_allreduce_norm_query(
    fastnorm_context* context, const fastnorm_peer_allreduce_norm_args* args, fastnorm_info* info);

/** Load what a call needs. Optional: the first call does the same. CUDA: do it on all ranks before
 *  the first call, as a kernel may not be loaded while another one waits. Does not wait for other
 *  ranks.
 *  @param context the device
 *  @param args    as for the call
 *  @return as fastnorm_peer_allreduce_norm
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_allreduce_norm_prepare(
    fastnorm_context* context, const fastnorm_peer_allreduce_norm_args* args);

/** Add up the ranks' x, add the residual, normalise; the formula is at the top of this header.
 *  Every rank calls it. CPU: the work is done when the call returns; it waits for the other ranks'
 *  x. CUDA: kernels are enqueued on the stream, and calls of one peer are ordered by it. Zero rows
 *  are success: nothing is sent, nothing written.
 *  @param context         the device
 *  @param args            read during the call only
 *  @param workspace       fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned,
 *  apart from all tensors
 *  @param workspace_bytes size of workspace
 *  @param stream          CUDA: the stream; CPU: NULL
 *  @return as fastnorm_norm, and
 *          FASTNORM_ERROR_ARGUMENT: a null peer, one of another context, one that is not connected;
 *          CPU: one that runs a call; a rank that makes another call (the text has both)
 *          FASTNORM_ERROR_SHAPE: n above max_columns, or 2^31 rows and more
 *          FASTNORM_ERROR_DTYPE: x of another dtype than the peer's
 *          FASTNORM_ERROR_DEVICE: a peer that was stopped before; CPU: a rank that did not arrive
 *          in time
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_allreduce_norm(
    fastnorm_context* context, const fastnorm_peer_allreduce_norm_args* args, void* workspace,
    size_t workspace_bytes, void* stream);

/** Normalisation of one or two parts whose columns are spread over the ranks, such as query and key
 *  heads; one exchange serves both. `{0}` plus struct_size, peer, x and y is valid. */
typedef struct fastnorm_peer_sharded_norm_args {
  size_t struct_size;         /**< sizeof(fastnorm_peer_sharded_norm_args). */
  fastnorm_peer* peer;        /**< This rank's end, connected, of the same context. Required. */
  fastnorm_norm_kind kind;    /**< RMS or LAYER. */
  float eps;                  /**< Finite, >= 0. */
  float weight_offset;        /**< As in fastnorm_norm_args; 0 where a part has no weight. */
  fastnorm_rounding rounding; /**< ONCE or NORMALIZED. */
  uint32_t flags;             /**< fastnorm_norm_flags; 0. */
  int32_t reserved;           /**< Must be 0. */
  /** [tokens, n] or [tokens, heads, d] with n = heads * d; d at most 8192; f32, f16 or bf16. The
      same n on all ranks. Required. */
  const fastnorm_tensor* x;
  const fastnorm_tensor* weight;  /**< [n], or [d] or [heads, d]; f32, f16 or bf16. NULL = 1. */
  const fastnorm_tensor* bias;    /**< As weight. NULL = 0. */
  const fastnorm_tensor* y;       /**< x's shape and dtype. Output; may be x. Required. */
  const fastnorm_tensor* x2;      /**< The second part: x's tokens and dtype. NULL = one part. */
  const fastnorm_tensor* weight2; /**< As weight, of x2. */
  const fastnorm_tensor* bias2;   /**< As bias, of x2. */
  const fastnorm_tensor* y2;      /**< As y, of x2. Required with x2. */
} fastnorm_peer_sharded_norm_args;

/** Say what a call would do, as fastnorm_peer_allreduce_norm_query.
 *  @param context the device
 *  @param args    as for the call
 *  @param info    struct_size in; receives the rest
 *  @return as fastnorm_peer_sharded_norm; FASTNORM_ERROR_ARGUMENT also if info is null or its
 *  struct_size too small
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_sharded_norm_query(
    fastnorm_context* context, const fastnorm_peer_sharded_norm_args* args, fastnorm_info* info);

/** Load what a call needs. Optional. Does not wait for other ranks.
 *  @param context the device
 *  @param args    as for the call
 *  @return as fastnorm_peer_sharded_norm
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_sharded_norm_prepare(
    fastnorm_context* context, const fastnorm_peer_sharded_norm_args* args);

/** Normalise rows whose columns are spread over the ranks; the formula is at the top of this
 *  header. Every rank calls it.
 *  @param context         the device
 *  @param args            read during the call only
 *  @param workspace       fastnorm_info.workspace_bytes bytes, as fastnorm_peer_allreduce_norm
 *  @param workspace_bytes size of workspace
 *  @param stream          CUDA: the stream; CPU: NULL
 *  @return as fastnorm_peer_allreduce_norm; texts on overlap name the parts parts[0] and parts[1]
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_peer_sharded_norm(fastnorm_context* context,
                                                        const fastnorm_peer_sharded_norm_args* args,
                                                        void* workspace, size_t workspace_bytes,
                                                        void* stream);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_PEER_H_ */
