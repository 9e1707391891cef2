/** @file nccl.h
 *  libfastnorm_nccl: tensor parallel norms on an NCCL communicator of the caller's. A library of
 *  its own, which links libfastnorm and finds NCCL at run time. Not included by fastnorm.h.
 *
 *  **nccl_allreduce_norm.** The sum of the ranks' rows, the residual, one norm. Two ways:
 *
 *      peers     fastnorm_peer_allreduce_norm: ranks of one host that reach each other's memory
 *      fallback  ncclAllReduce into the workspace, then fastnorm_norm
 *
 *  All ranks take the same way: by what fastnorm_nccl_create found, and the bytes of x. Sums of
 *  peers are in rank order. NCCL's order is its own, and may change with its version and settings.
 *
 *  **nccl_sequence_norm.** Sequence parallel: reduce-scatter over tokens, residual and norm of this
 *  rank's tokens, all-gather of the results, which may be codes.
 *
 *  **NCCL.** The copy that the process has loaded already counts; else libnccl.so.2 is loaded. A
 *  process that has NCCL linked in statically gives its functions by fastnorm_nccl_set_functions.
 *  The communicator is borrowed: it must outlive the handle, and is not destroyed.
 */
#ifndef FASTNORM_NCCL_H_
#define FASTNORM_NCCL_H_

#include <fastnorm/context.h>
#include <fastnorm/norm.h>
#include <fastnorm/peer.h>

#ifdef __cplusplus
extern "C" {
#endif

/** One rank on a communicator. Opaque. */
typedef struct fastnorm_nccl fastnorm_nccl;

/** What of NCCL is used. Results of functions are ncclResult_t, communicators ncclComm_t, streams
 *  cudaStream_t, dtypes ncclDataType_t and operations ncclRedOp_t. */
typedef struct fastnorm_nccl_functions {
  size_t struct_size;                             /**< sizeof(fastnorm_nccl_functions). */
  int (*get_version)(int* version);               /**< ncclGetVersion. */
  int (*comm_count)(void* comm, int* count);      /**< ncclCommCount. */
  int (*comm_user_rank)(void* comm, int* rank);   /**< ncclCommUserRank. */
  int (*comm_cu_device)(void* comm, int* device); /**< ncclCommCuDevice. */
  int (*all_reduce)(const void* from, void* to, size_t count, int dtype, int op, void* comm,
                    void* stream); /**< ncclAllReduce. */
  int (*reduce_scatter)(const void* from, void* to, size_t count, int dtype, int op, void* comm,
                        void* stream); /**< ncclReduceScatter. */
  int (*all_gather)(const void* from, void* to, size_t count, int dtype, void* comm,
                    void* stream);             /**< ncclAllGather. */
  int (*group_start)(void);                    /**< ncclGroupStart. */
  int (*group_end)(void);                      /**< ncclGroupEnd. */
  const char* (*get_error_string)(int result); /**< ncclGetErrorString. */
} fastnorm_nccl_functions;

/** Bits of fastnorm_nccl_options.flags. */
typedef enum fastnorm_nccl_flags {
  FASTNORM_NCCL_NO_PEERS = 1,    /**< Always the fallback. */
  FASTNORM_NCCL_FIXED_ORDER = 2, /**< Never: a call that would take it is an error. */
  FASTNORM_NCCL_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_nccl_flags;

/** Options of a handle, the same on all ranks. `{0}` plus struct_size, dtype and max_columns is
 *  valid. Fields that fastnorm_peer_options has too mean the same. */
typedef struct fastnorm_nccl_options {
  size_t struct_size;                /**< sizeof(fastnorm_nccl_options). */
  fastnorm_dtype_id dtype;           /**< T of x: f32, f16 or bf16. Required. */
  fastnorm_peer_algorithm algorithm; /**< Of peers. */
  int64_t max_columns;               /**< Longest row, 1 to 65536. Required. */
  int64_t one_shot_bytes;            /**< Of peers. */
  int64_t wait_ns;                   /**< Of peers. */
  int32_t rings;                     /**< Of peers. */
  uint32_t flags;                    /**< fastnorm_nccl_flags; 0. */
  /** The most bytes of x that go by peers; more take the fallback. 0 = no limit. */
  int64_t peer_bytes;
} fastnorm_nccl_options;

/** Give the functions of NCCL. Before any other call. CPU contexts need it: their communicators and
 *  functions are the caller's, over host memory.
 *  @param functions copied; NULL = look for NCCL again
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT for a null function or too small a struct_size
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_set_functions(const fastnorm_nccl_functions* functions);

/** Find NCCL.
 *  @param version receives ncclGetVersion's number, such as 22809
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if version is null; FASTNORM_ERROR_UNSUPPORTED
 *  where there is no NCCL, or one without a function that is needed: the text says what was looked
 *  for
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_version(int32_t* version);

/** Create this rank's handle. Collective: every rank of the communicator calls it. Where all ranks
 *  can be peers they become so, else none does. Waits for the other ranks. A rank that cannot be a
 *  peer takes part in the exchange. A rank that fails before it does not, and the others wait in
 *  NCCL until ncclCommAbort. Such failures are null arguments, a communicator of another device, no
 *  NCCL and no device memory.
 *  @param context the device; must outlive the handle
 *  @param device  the context's
 *  @param comm    an ncclComm_t of that device
 *  @param options read during the call only
 *  @param stream  for the exchange; synchronised
 *  @param handle  receives the handle, or NULL on failure; ended with fastnorm_nccl_destroy
 *  @return FASTNORM_OK
 *          FASTNORM_ERROR_ARGUMENT: null or out-of-range arguments and options; a communicator of
 *          another device
 *          FASTNORM_ERROR_UNSUPPORTED: no NCCL; a CPU context without fastnorm_nccl_set_functions;
 *          FIXED_ORDER where ranks cannot be peers
 *          FASTNORM_ERROR_DEVICE: NCCL or CUDA failed; the text has their words
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_create(fastnorm_context* context, fastnorm_device device,
                                                  void* comm, const fastnorm_nccl_options* options,
                                                  void* stream, fastnorm_nccl** handle);

/** Create the handles of several ranks of this process. All ranks of the communicator join, here or
 *  in other processes. One thread does what as many threads with fastnorm_nccl_create would.
 *  @param contexts [count], one of each rank; must outlive the handles
 *  @param devices  [count], the contexts'
 *  @param comms    [count] ncclComm_t of those devices
 *  @param options  as fastnorm_nccl_create, of all these ranks
 *  @param streams  [count], or NULL: the default streams
 *  @param count    1 or more
 *  @param handles  [count], receives the handles, or NULL on failure
 *  @return as fastnorm_nccl_create; the text names the rank
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_create_all(fastnorm_context* const* contexts,
                                                      const fastnorm_device* devices,
                                                      void* const* comms,
                                                      const fastnorm_nccl_options* options,
                                                      void* const* streams, int32_t count,
                                                      fastnorm_nccl** handles);

/** Destroy a handle. NULL is fine. The communicator stays.
 *  @param handle of fastnorm_nccl_create, or NULL
 *  @since 0.2 */
FASTNORM_API void fastnorm_nccl_destroy(fastnorm_nccl* handle);

/** The peer of a handle, for fastnorm_peer_status and fastnorm_peer_reset, and for calls of peer.h.
 *  @param handle of fastnorm_nccl_create
 *  @param peer   receives the peer, which the handle owns; NULL where ranks are no peers
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT for null arguments
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_peer(fastnorm_nccl* handle, fastnorm_peer** peer);

/** Say what a call would do. kernel is that of the norm; launches do not count NCCL's.
 *  @param handle of fastnorm_nccl_create
 *  @param args   as for the call
 *  @param info   struct_size in; receives the rest
 *  @return as fastnorm_nccl_allreduce_norm
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_allreduce_norm_query(
    fastnorm_nccl* handle, const fastnorm_peer_allreduce_norm_args* args, fastnorm_info* info);

/** Load what a call needs of the library's kernels. On GPUs: before a call is captured in a graph.
 *  @param handle of fastnorm_nccl_create
 *  @param args   as for the call
 *  @return as fastnorm_nccl_allreduce_norm
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_allreduce_norm_prepare(
    fastnorm_nccl* handle, const fastnorm_peer_allreduce_norm_args* args);

/** Add up the ranks' x, add the residual, normalise. Every rank calls it, with the same rows.
 *  @param handle          of fastnorm_nccl_create
 *  @param args            as fastnorm_peer_allreduce_norm's; peer must be NULL. Fallback: x is
 *  compact, and sums are rounded
 *  @param workspace       fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned
 *  @param workspace_bytes size of workspace
 *  @param stream          the stream; CPU: NULL
 *  @return as fastnorm_peer_allreduce_norm, and
 *          FASTNORM_ERROR_ARGUMENT: a null handle; a peer
 *          FASTNORM_ERROR_LAYOUT: fallback: x that is not compact
 *          FASTNORM_ERROR_UNSUPPORTED: fallback: FASTNORM_PEER_SUM_EXACT, or FIXED_ORDER
 *          FASTNORM_ERROR_DEVICE: NCCL failed
 *  @since 0.2 */
FASTNORM_API fastnorm_status
fastnorm_nccl_allreduce_norm(fastnorm_nccl* handle, const fastnorm_peer_allreduce_norm_args* args,
                             void* workspace, size_t workspace_bytes, void* stream);

/** The calls of several ranks of this process, from one thread: all are checked, then NCCL starts
 *  their sums in one group, then their norms follow. With fastnorm_nccl_allreduce_norm a thread
 *  could call one rank only, as the call of the first would wait for those after it.
 *  @param handles         [count]
 *  @param args            [count], as fastnorm_nccl_allreduce_norm
 *  @param workspaces      [count], or NULL where no bytes are needed
 *  @param workspace_bytes size of each
 *  @param streams         [count], or NULL: the default streams
 *  @param count           1 or more
 *  @return as fastnorm_nccl_allreduce_norm; the text names the rank, as args[i]. And
 *          FASTNORM_ERROR_SHAPE: x of different sizes
 *          FASTNORM_ERROR_UNSUPPORTED: several ranks that are peers on a CPU
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_allreduce_norm_all(
    fastnorm_nccl* const* handles, const fastnorm_peer_allreduce_norm_args* const* args,
    void* const* workspaces, size_t workspace_bytes, void* const* streams, int32_t count);

/** Sequence parallel: this rank normalises tokens / ranks of all tokens. `{0}` plus struct_size and
 *  norm is valid. */
typedef struct fastnorm_nccl_sequence_norm_args {
  size_t struct_size; /**< sizeof(fastnorm_nccl_sequence_norm_args). */
  /** The norm, all tensors compact. x is [tokens, n], this rank's part of all tokens' sums; tokens
      is a multiple of the ranks. residual, residual_out, mean and rstd are of this rank's tokens
      alone, [tokens / ranks, ..]. y, quantized and a scale of rows or blocks are of all tokens.
      What this rank has not made is gathered, or with gather = 0 not touched. No amax, no swizzled
      scales. Required. */
  const fastnorm_norm_args* norm;
  int32_t gather;   /**< 1 = y, quantized and scale are gathered; 0 = this rank's tokens alone. */
  int32_t reserved; /**< Must be 0. */
} fastnorm_nccl_sequence_norm_args;

/** Say what a call would do, as fastnorm_nccl_allreduce_norm_query.
 *  @param handle of fastnorm_nccl_create
 *  @param args   as for the call
 *  @param info   struct_size in; receives the rest
 *  @return as fastnorm_nccl_sequence_norm
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_sequence_norm_query(
    fastnorm_nccl* handle, const fastnorm_nccl_sequence_norm_args* args, fastnorm_info* info);

/** Load what a call needs, as fastnorm_nccl_allreduce_norm_prepare.
 *  @param handle of fastnorm_nccl_create
 *  @param args   as for the call
 *  @return as fastnorm_nccl_sequence_norm
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_sequence_norm_prepare(
    fastnorm_nccl* handle, const fastnorm_nccl_sequence_norm_args* args);

/** Reduce-scatter of x, residual and norm, all-gather of the results. Every rank calls it.
 *  @param handle          of fastnorm_nccl_create
 *  @param args            read during the call only
 *  @param workspace       fastnorm_info.workspace_bytes bytes, as fastnorm_nccl_allreduce_norm
 *  @param workspace_bytes size of workspace
 *  @param stream          the stream; CPU: NULL
 *  @return as fastnorm_norm, and
 *          FASTNORM_ERROR_ARGUMENT: null arguments
 *          FASTNORM_ERROR_SHAPE: tokens that are no multiple of the ranks; tensors of other rows
 *          FASTNORM_ERROR_LAYOUT: tensors that are not compact
 *          FASTNORM_ERROR_UNSUPPORTED: amax, swizzled scales; FIXED_ORDER
 *          FASTNORM_ERROR_DEVICE: NCCL failed
 *  @since 0.2 */
FASTNORM_API fastnorm_status
fastnorm_nccl_sequence_norm(fastnorm_nccl* handle, const fastnorm_nccl_sequence_norm_args* args,
                            void* workspace, size_t workspace_bytes, void* stream);

/** The calls of several ranks of this process, as fastnorm_nccl_allreduce_norm_all.
 *  @param handles         [count]
 *  @param args            [count], as fastnorm_nccl_sequence_norm; one gather
 *  @param workspaces      [count], or NULL where no bytes are needed
 *  @param workspace_bytes size of each
 *  @param streams         [count], or NULL: the default streams
 *  @param count           1 or more
 *  @return as fastnorm_nccl_sequence_norm; the text names the rank, as args[i]
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_sequence_norm_all(
    fastnorm_nccl* const* handles, const fastnorm_nccl_sequence_norm_args* const* args,
    void* const* workspaces, size_t workspace_bytes, void* const* streams, int32_t count);

/** Text of this thread's last failed call of this library: what, and what is required.
 *  @return a string that the thread's next failed call overwrites; "" if none has failed
 *  @since 0.2 */
FASTNORM_API const char* fastnorm_nccl_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_NCCL_H_ */
