/** @file nccl.h
 *  libfastnorm_nccl computes tensor parallel norms on an NCCL communicator of the caller. It is a
 *  separate library, which links libfastnorm and finds NCCL at run time. fastnorm.h does not
 *  include this header.
 *
 *  **nccl_allreduce_norm** adds up the ranks' rows, adds the residual and normalises the result.
 *  There are two ways to do this:
 *
 *      peers     fastnorm_peer_allreduce_norm: ranks of one host that reach each other's memory
 *      fallback  ncclAllReduce into the workspace, then fastnorm_norm
 *
 *  All ranks take the same way, which depends on what fastnorm_nccl_create found out and on the
 *  bytes of x. Peers add up in rank order. NCCL has an order of its own, which may change with its
 *  version and settings.
 *
 *  **nccl_sequence_norm** is sequence parallel: it reduce-scatters over tokens, adds the residual
 *  to this rank's tokens and normalises them, and all-gathers the results, which may be codes.
 *
 *  **NCCL.** If the process has already loaded a copy of NCCL, that copy is used; otherwise
 *  libnccl.so.2 is loaded. A process that has linked NCCL statically passes its functions to
 *  fastnorm_nccl_set_functions. The communicator is borrowed, so it must outlive the handle, and
 *  the library does not destroy it.
 */
#ifndef FASTNORM_NCCL_H_
#define FASTNORM_NCCL_H_

#include <fastnorm/context.h>
#include <fastnorm/norm.h>
#include <fastnorm/peer.h>

#ifdef __cplusplus
extern "C" {
#endif

/** One rank on a communicator. The type is opaque. */
typedef struct fastnorm_nccl fastnorm_nccl;

/** The functions of NCCL that are used. Their results are ncclResult_t, communicators are
 *  ncclComm_t, streams are cudaStream_t, dtypes are ncclDataType_t, and operations are
 *  ncclRedOp_t. */
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
  FASTNORM_NCCL_NO_PEERS = 1, /**< Always take the fallback. */
  FASTNORM_NCCL_FIXED_ORDER =
      2, /**< Never take the fallback: a call that would take it is an error. */
  FASTNORM_NCCL_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_nccl_flags;

/** Options of a handle, which are the same on all ranks. A zeroed struct with struct_size, dtype
 *  and max_columns set is valid. Fields that fastnorm_peer_options also has mean the same there. */
typedef struct fastnorm_nccl_options {
  size_t struct_size;                /**< sizeof(fastnorm_nccl_options). */
  fastnorm_dtype_id dtype;           /**< T, the dtype of x: f32, f16 or bf16. Required. */
  fastnorm_peer_algorithm algorithm; /**< As in fastnorm_peer_options. */
  int64_t max_columns;               /**< Length of the longest row, 1 to 65536. Required. */
  int64_t one_shot_bytes;            /**< As in fastnorm_peer_options. */
  int64_t wait_ns;                   /**< As in fastnorm_peer_options. */
  int32_t rings;                     /**< As in fastnorm_peer_options. */
  uint32_t flags;                    /**< fastnorm_nccl_flags; 0. */
  /** The most bytes of x for which the call goes by peers; larger calls take the fallback. 0 = no
   *  limit. */
  int64_t peer_bytes;
} fastnorm_nccl_options;

/** Set the functions of NCCL, before any other call of this library. CPU contexts need this,
 *  because the caller provides communicators and functions that work on host memory.
 *  @param functions the functions, which are copied; NULL = look for NCCL again
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if a function is null or struct_size is too small
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_set_functions(const fastnorm_nccl_functions* functions);

/** Find NCCL and return its version.
 *  @param version receives the number of ncclGetVersion, such as 22809
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if version is null; FASTNORM_ERROR_UNSUPPORTED if
 *  there is no NCCL, or if it lacks a function that is needed (the text says what was looked for)
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_version(int32_t* version);

/** Create this rank's handle. The function is collective: every rank of the communicator calls it,
 *  and it waits for the other ranks. If all ranks can be peers, they become peers; otherwise none
 *  does. A rank that cannot be a peer still takes part in the exchange. A rank that fails before
 *  the exchange does not take part in it, and the other ranks wait in NCCL until ncclCommAbort;
 *  such failures are null arguments, a communicator of another device, a missing NCCL and a lack of
 *  device memory.
 *  @param context the device; must outlive the handle
 *  @param device  the device of the context
 *  @param comm    an ncclComm_t of that device
 *  @param options read only during the call
 *  @param stream  the stream of the exchange, which is synchronised
 *  @param handle  receives the handle, or NULL on failure; the caller ends it with
 *  fastnorm_nccl_destroy
 *  @return FASTNORM_OK
 *          FASTNORM_ERROR_ARGUMENT: an argument or an option is null or out of range; the
 *          communicator belongs to another device
 *          FASTNORM_ERROR_UNSUPPORTED: there is no NCCL; a CPU context has no functions from
 *          fastnorm_nccl_set_functions; there is FIXED_ORDER but ranks cannot be peers
 *          FASTNORM_ERROR_DEVICE: NCCL or CUDA failed; the text has their message
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_create(fastnorm_context* context, fastnorm_device device,
                                                  void* comm, const fastnorm_nccl_options* options,
                                                  void* stream, fastnorm_nccl** handle);

/** Create the handles of several ranks of this process. All ranks of the communicator take part,
 *  here or in other processes. One thread does what several threads would do with
 *  fastnorm_nccl_create.
 *  @param contexts [count] contexts, one for each rank; must outlive the handles
 *  @param devices  [count] devices of the contexts
 *  @param comms    [count] ncclComm_t of those devices
 *  @param options  the options of all these ranks, as for fastnorm_nccl_create
 *  @param streams  [count] streams, or NULL for the default streams
 *  @param count    1 or more
 *  @param handles  [count], receives the handles, or NULL on failure
 *  @return as fastnorm_nccl_create; the error text names the rank
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_create_all(fastnorm_context* const* contexts,
                                                      const fastnorm_device* devices,
                                                      void* const* comms,
                                                      const fastnorm_nccl_options* options,
                                                      void* const* streams, int32_t count,
                                                      fastnorm_nccl** handles);

/** Destroy a handle. The communicator is not destroyed.
 *  @param handle the handle; if it is NULL, nothing is done
 *  @since 0.2 */
FASTNORM_API void fastnorm_nccl_destroy(fastnorm_nccl* handle);

/** Return the peer of a handle, for fastnorm_peer_status, fastnorm_peer_reset and calls of peer.h.
 *  @param handle the handle
 *  @param peer   receives the peer, which the handle owns; NULL if the ranks are not peers
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if an argument is null
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_peer(fastnorm_nccl* handle, fastnorm_peer** peer);

/** Say what a call would do. `kernel` is that of the norm, and `launches` does not count the
 *  launches of NCCL.
 *  @param handle the handle
 *  @param args   the arguments of the call
 *  @param info   struct_size as input; receives the rest
 *  @return as fastnorm_nccl_allreduce_norm
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_allreduce_norm_query(
    fastnorm_nccl* handle, const fastnorm_peer_allreduce_norm_args* args, fastnorm_info* info);

/** Load the kernels of the library that a call needs. On a GPU, call this before a call is captured
 *  in a CUDA graph.
 *  @param handle the handle
 *  @param args   the arguments of the call
 *  @return as fastnorm_nccl_allreduce_norm
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_allreduce_norm_prepare(
    fastnorm_nccl* handle, const fastnorm_peer_allreduce_norm_args* args);

/** Add up the ranks' x, add the residual and normalise. Every rank makes this call, with the same
 *  rows.
 *  @param handle          the handle
 *  @param args            what to compute, as for fastnorm_peer_allreduce_norm, except that peer
 *  must be NULL. With the fallback, x must be compact, and the sum is rounded
 *  @param workspace       fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned
 *  @param workspace_bytes size of workspace
 *  @param stream          CUDA: the cudaStream_t. CPU: NULL
 *  @return as fastnorm_peer_allreduce_norm, and
 *          FASTNORM_ERROR_ARGUMENT: handle is null, or peer is not NULL
 *          FASTNORM_ERROR_LAYOUT: with the fallback, x is not compact
 *          FASTNORM_ERROR_UNSUPPORTED: with the fallback, there is FASTNORM_PEER_SUM_EXACT,
 *          FIXED_ORDER or a quant.rotation
 *          FASTNORM_ERROR_DEVICE: NCCL failed
 *  @since 0.2 */
FASTNORM_API fastnorm_status
fastnorm_nccl_allreduce_norm(fastnorm_nccl* handle, const fastnorm_peer_allreduce_norm_args* args,
                             void* workspace, size_t workspace_bytes, void* stream);

/** Make the calls of several ranks of this process from one thread. First all calls are checked,
 *  then NCCL starts their sums in one group, and then their norms follow. With
 *  fastnorm_nccl_allreduce_norm one thread could serve only one rank, because the call of the first
 *  rank would wait for the calls after it.
 *  @param handles         [count] handles
 *  @param args            [count] pointers, each as for fastnorm_nccl_allreduce_norm
 *  @param workspaces      [count] workspaces, or NULL if no bytes are needed
 *  @param workspace_bytes size of each workspace
 *  @param streams         [count] streams, or NULL for the default streams
 *  @param count           1 or more
 *  @return as fastnorm_nccl_allreduce_norm; the error text names the rank as args[i]. And
 *          FASTNORM_ERROR_SHAPE: the ranks' x have different sizes
 *          FASTNORM_ERROR_UNSUPPORTED: several ranks are peers on a CPU
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_allreduce_norm_all(
    fastnorm_nccl* const* handles, const fastnorm_peer_allreduce_norm_args* const* args,
    void* const* workspaces, size_t workspace_bytes, void* const* streams, int32_t count);

/** A sequence parallel norm, in which this rank normalises tokens / ranks of all tokens. A zeroed
 *  struct with struct_size and norm set is valid. */
typedef struct fastnorm_nccl_sequence_norm_args {
  size_t struct_size; /**< sizeof(fastnorm_nccl_sequence_norm_args). */
  /** Passed to the context's parallel_for, as in fastnorm_norm_args; NULL = norm.parallel_user. */
  void* parallel_user;
  /** The norm, whose tensors must all be compact. x is [tokens, n] and holds this rank's summand
   *  for all tokens; the number of tokens is a multiple of the number of ranks. residual,
   *  residual_out, mean and rstd hold only this rank's tokens, [tokens / ranks, ..]. y,
   *  quant.quantized and a quant.scale of rows or blocks hold all tokens. With gather, the results
   *  of the other ranks are gathered into them; otherwise these parts are not written. amax,
   *  swizzled scales and a quant.rotation are not supported. Required. */
  const fastnorm_norm_args* norm;
  int32_t
      gather; /**< 1: y, codes and scales are gathered. 0: only those of this rank are written. */
  int32_t reserved; /**< Must be 0. */
} fastnorm_nccl_sequence_norm_args;

/** Say what a call would do, as fastnorm_nccl_allreduce_norm_query does.
 *  @param handle the handle
 *  @param args   the arguments of the call
 *  @param info   struct_size as input; receives the rest
 *  @return as fastnorm_nccl_sequence_norm
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_sequence_norm_query(
    fastnorm_nccl* handle, const fastnorm_nccl_sequence_norm_args* args, fastnorm_info* info);

/** Load the kernels of a call, as fastnorm_nccl_allreduce_norm_prepare does.
 *  @param handle the handle
 *  @param args   the arguments of the call
 *  @return as fastnorm_nccl_sequence_norm
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_sequence_norm_prepare(
    fastnorm_nccl* handle, const fastnorm_nccl_sequence_norm_args* args);

/** Reduce-scatter x, add the residual and normalise, and all-gather the results. Every rank makes
 *  this call.
 *  @param handle          the handle
 *  @param args            what to compute; read only during the call
 *  @param workspace       fastnorm_info.workspace_bytes bytes, as for fastnorm_nccl_allreduce_norm
 *  @param workspace_bytes size of workspace
 *  @param stream          CUDA: the cudaStream_t. CPU: NULL
 *  @return as fastnorm_norm, and
 *          FASTNORM_ERROR_ARGUMENT: an argument is null
 *          FASTNORM_ERROR_SHAPE: the number of tokens is not a multiple of the number of ranks, or
 *          tensors have other rows
 *          FASTNORM_ERROR_LAYOUT: a tensor is not compact
 *          FASTNORM_ERROR_UNSUPPORTED: there is amax, swizzled scales, FIXED_ORDER or a
 *          quant.rotation
 *          FASTNORM_ERROR_DEVICE: NCCL failed
 *  @since 0.2 */
FASTNORM_API fastnorm_status
fastnorm_nccl_sequence_norm(fastnorm_nccl* handle, const fastnorm_nccl_sequence_norm_args* args,
                            void* workspace, size_t workspace_bytes, void* stream);

/** Make the calls of several ranks of this process from one thread, as
 *  fastnorm_nccl_allreduce_norm_all does.
 *  @param handles         [count] handles
 *  @param args            [count] pointers, each as for fastnorm_nccl_sequence_norm, and all with
 *  the same gather
 *  @param workspaces      [count] workspaces, or NULL if no bytes are needed
 *  @param workspace_bytes size of each workspace
 *  @param streams         [count] streams, or NULL for the default streams
 *  @param count           1 or more
 *  @return as fastnorm_nccl_sequence_norm; the error text names the rank as args[i]
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_nccl_sequence_norm_all(
    fastnorm_nccl* const* handles, const fastnorm_nccl_sequence_norm_args* const* args,
    void* const* workspaces, size_t workspace_bytes, void* const* streams, int32_t count);

/** Text of the last failure of a call of this library on the calling thread, which says what failed
 *  and what is required.
 *  @return a string that the next failed call on the same thread overwrites; "" if no call has
 *  failed
 *  @since 0.2 */
FASTNORM_API const char* fastnorm_nccl_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_NCCL_H_ */
