/** @file mla_decode.h
 *  Attention of new tokens over a paged cache of latents: multi-head latent attention (MLA) in its
 *  absorbed form, for decoding and speculative decoding.
 *
 *  There are B requests. Request b has s_q new tokens and a cache of L = kv_len[b] tokens; the new
 *  tokens' own latents are in it. N is the number of new tokens of all requests and H the number of
 *  query heads. All heads share one latent of 512 + 64 numbers a token, and the values are the
 *  first 512 of them. For new token i of 0 .. s_q - 1, head h and cached token j:
 *
 *      s[j]    = sm_scale * (dot(q_nope[i,h,:], ckv[j,:]) + dot(q_pe[i,h,:], kpe[j,:]))
 *      allowed = j < L                                     (causal = 0)
 *                j <= L - s_q + i                          (causal = 1: aligned at the end)
 *      lse     = log(sum over allowed j of exp(s[j]))
 *      o[i,h,:] = sum over allowed j of exp(s[j] - lse) * ckv[j,:]
 *
 *  **Empty rows.** Where no j is allowed (L = 0; causal with s_q > L and i < s_q - L), o is 0 and
 *  lse is minus infinity. Such a result merges correctly with those of other parts of a sequence.
 *
 *  **Arithmetic.** Scores, the maximum, exponentials and sums are single precision. The
 *  probabilities are rounded to the dtype of ckv before their product with the values (f32: not
 *  rounded); their sum uses the unrounded ones. Dot products of magnitude 2^96 and more, and NaN
 *  or Inf in allowed rows, give unspecified results in the rows of their request only.
 *
 *  **The cache** is a list of pages of `page` tokens each. Token j of request b is row j % page of
 *  the page with the number page_list(b)[j / page]. Two forms of lists are known:
 *
 *  | form        | page_table          | kv_indptr    | page_list(b)                         |
 *  |-------------|---------------------|--------------|--------------------------------------|
 *  | block table | [B, max_pages] i32  | NULL         | row b                                |
 *  | CSR         | [total] i32         | [B + 1] i32  | from kv_indptr[b], in pages          |
 *
 *  Entries behind a request's last page are never used and may be anything. So may be the rows
 *  behind its last token: they are not added up, NaN neither. A fused cache of [pages, page, 576]
 *  is given as two views of it: ckv, and kpe at byte_offset + 512 elements, both with the strides
 *  of 576-wide rows. A fused query of [N, H, 576] is given the same way.
 *
 *  **Same bits.** Two calls with equal arguments give equal bits. On the CPU a row's bits depend on
 *  the row's own request and the instruction set, not on the number of threads. On CUDA the other
 *  requests of the batch and the number of multiprocessors decide where a long request is cut, and
 *  so its last bits. With split_tokens > 0 each request is cut at multiples of split_tokens, and a
 *  row's bits depend on its own request and split_tokens only. CPU and GPU differ in rounding.
 *
 *  **Devices.** CUDA: compute capability 9.0 (Hopper). Any other capability gives
 *  FASTNORM_ERROR_UNSUPPORTED. CPU: all; right first, without a goal in speed.
 *
 *  **Not supported**, each FASTNORM_ERROR_UNSUPPORTED with the nearest supported case in the text:
 *  FP8 caches, widths other than 512 + 64, several KV heads (pass one call a KV head), f32 on CUDA,
 *  the profile on the CPU.
 */
#ifndef FASTNORM_MLA_DECODE_H_
#define FASTNORM_MLA_DECODE_H_

#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Base of the logarithm in `lse`. */
typedef enum fastnorm_lse_base {
  FASTNORM_LSE_NATURAL = 0, /**< log: PyTorch, FlashMLA. */
  FASTNORM_LSE_BASE_2 = 1,  /**< log2: FlashInfer. The value is the natural one times log2(e). */
  FASTNORM_LSE_BASE_MAX_ENUM = 0x7fffffff
} fastnorm_lse_base;

/** One attention call. T is bf16 or f16 (CPU: f32 too), the one dtype of q_nope, q_pe, ckv, kpe and
 *  o. All tensors are on the context's device.
 *
 *  Strides: the last dimension of every tensor is contiguous; all other strides are free. CUDA:
 *  those of q_nope, q_pe, ckv, kpe and o are positive multiples of 16 bytes below 2^40 where the
 *  extent is more than 1. Their addresses are multiples of 16 bytes. This is stricter than
 *  fastnorm_norm. CPU: addresses are multiples of the element's size, and inputs may have strides
 *  of 0.
 *
 *  Aliasing: o, lse and profile must not overlap each other or any input. Two interleaved views of
 *  one buffer that share no element are allowed.
 *
 *  Ranges: N * H, B and the number of pages are below 2^31; s_q * H is at most 2^24. */
typedef struct fastnorm_mla_decode_args {
  size_t struct_size; /**< sizeof(fastnorm_mla_decode_args). */
  /** Factor of the scores: finite and not 0, on CUDA > 0, of a magnitude from 2^-100 to 2^60. There
      is no default: models differ. DeepSeek without YaRN has 1 / sqrt(128 + 64). */
  double sm_scale;
  int32_t causal;             /**< 0 or 1. */
  fastnorm_lse_base lse_base; /**< Default: natural. */
  /** With qo_indptr: the largest s_q of any request, at least 1; it may be larger than needed.
      Without qo_indptr: 0 or N / B. */
  int32_t max_s_q;
  /** 1: the workspace still holds the plan of an earlier call of the same context, such as the
   *  previous layer's. The plan is not made again. Shapes, causal, max_s_q, split_tokens, and
      the values of kv_len and qo_indptr must be equal. 0: the plan is made. CPU: without effect. */
  int32_t reuse_plan;
  /** 0: the library chooses where long requests are cut. Else a multiple of 64 up to 2^30: each
      request is cut at multiples of it. CPU: without effect. */
  int32_t split_tokens;
  /** With profile: events per warpgroup, 1 to 2^20. A query tells the room for them without a
      profile, too. Else 0. */
  int32_t profile_events;
  /** Sum of kv_len, or 0. Used for fastnorm_info.bytes_read only: a query does not read lengths. */
  int64_t total_kv_hint;

  const fastnorm_tensor* q_nope; /**< [N, H, 512] T, the query times W_UK. Required. */
  const fastnorm_tensor* q_pe;   /**< [N, H, 64] T, after RoPE. Required. */
  const fastnorm_tensor* ckv;    /**< [pages, page, 512] T, normalised latents. Required. */
  const fastnorm_tensor* kpe;    /**< [pages, page, 64] T, after RoPE. Required. */
  const fastnorm_tensor* kv_len; /**< [B] i32, cached tokens of each request. Required. */
  /** [B, max_pages] or, with kv_indptr, [total]; i32. Required. */
  const fastnorm_tensor* page_table;
  /** [B + 1] i32, start of each request's pages in page_table. NULL: page_table is a block table.
      */
  const fastnorm_tensor* kv_indptr;
  /** [B + 1] i32, start of each request's new tokens in q. It starts with 0, does not fall and ends
      with at most N. NULL: each request has N / B. */
  const fastnorm_tensor* qo_indptr;
  const fastnorm_tensor* o;   /**< [N, H, 512] T. Output. Required. */
  const fastnorm_tensor* lse; /**< [N, H] f32. Output. NULL = not stored. */
  /** [bytes] u8, at least fastnorm_info.profile_bytes, 16-byte aligned. Output: what each warpgroup
      did when; for fastnorm_profile_decode. Contents on entry do not matter. NULL = no profile.
      CUDA only. */
  const fastnorm_tensor* profile;
} fastnorm_mla_decode_args;

/** Say what a call would do: workspace, kernel, launches, bytes. No memory of a tensor is touched.
 *
 *  CUDA: `launches` counts the plan, the attention and the merge of the pieces. The workspace holds
 *  the plan, a few bytes a request, and the unmerged pieces. Where split_tokens is 0 the room for
 *  pieces depends on max_s_q * H and on the number of multiprocessors only. With split_tokens it is
 *  bounded from the page table's extents: max_pages, or the length of page_table with kv_indptr.
 *  CPU: 0.
 *  @param context the device
 *  @param args    as for the call
 *  @param info    struct_size in; receives the rest
 *  @return as fastnorm_mla_decode; FASTNORM_ERROR_ARGUMENT also if info is null or its struct_size
 *  too small
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_mla_decode_query(fastnorm_context* context,
                                                       const fastnorm_mla_decode_args* args,
                                                       fastnorm_info* info);

/** Load the kernels of a call. After it, calls that use the same kernels neither allocate nor
 *  synchronise, and can be captured in a CUDA graph. Optional: the first call does the same.
 *  @param context the device
 *  @param args    as for the call
 *  @return as fastnorm_mla_decode
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_mla_decode_prepare(fastnorm_context* context,
                                                         const fastnorm_mla_decode_args* args);

/** Attend; the formula is at the top of this header.
 *
 *  CUDA: up to three kernels are queued on `stream` and the call returns. It does not synchronise,
 *  does not copy lengths to the host and leaves the current device as it was. It may be captured in
 *  a CUDA graph: kv_len, page_table, kv_indptr, qo_indptr and all other data may change between
 *  replays; addresses, shapes and scalars may not. The values in kv_len, kv_indptr, qo_indptr and
 *  the needed entries of page_table must be valid: kv_len[b] from 0 to page * (pages in b's list),
 *  page numbers below `pages`, at most max_s_q new tokens a request. The device does not check
 *  them: a wrong value may read outside of the cache.
 *
 *  CPU: the work is done when the call returns; requests, tokens and heads are spread over the
 *  context's threads. These values are checked before anything is written.
 *
 *  B = 0 or N = 0 is success and does nothing. Requests with s_q = 0 or kv_len = 0 may be among
 *  others. Rows of q that belong to no request (behind qo_indptr[B]) are not written.
 *
 *  @param context         the device
 *  @param args            what to compute; read during the call only
 *  @param workspace       fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned; not
 *  used by anything else until the work has run, and until the last call with reuse_plan has; NULL
 *  where 0 bytes are needed. Contents do not matter without reuse_plan
 *  @param workspace_bytes size of workspace
 *  @param stream          CUDA: the cudaStream_t; NULL = the legacy default stream. CPU: NULL
 *  @return FASTNORM_OK
 *          FASTNORM_ERROR_ARGUMENT: null context, args or required tensor; a tensor whose shape is
 *          null, or its data though it has elements; a struct_size that is too small; a scalar out
 *          of range; sm_scale 0; qo_indptr without max_s_q; too small a workspace; a stream on the
 *          CPU; profile_events without a profile; CPU: a length, index or page number out of
 *          range; a parallel_for that did not cover the rows exactly once, when some may have been
 *          written
 *          FASTNORM_ERROR_SHAPE: ranks or extents that do not fit; N not a multiple of B without
 *          qo_indptr; a profile that is too short
 *          FASTNORM_ERROR_DTYPE: a dtype that the tensor's role does not allow
 *          FASTNORM_ERROR_LAYOUT: last dimension not contiguous, misaligned address or stride,
 *          overlap
 *          FASTNORM_ERROR_UNSUPPORTED: see the top of this header; a field of a later version, an
 *          unknown tail that is not zero
 *          FASTNORM_ERROR_DEVICE: a tensor on another device; the CUDA runtime's error
 *          FASTNORM_ERROR_OUT_OF_MEMORY: the CUDA runtime had no memory, as for loading the kernel
 *          FASTNORM_ERROR_INTERNAL: a defect of this library; an exception out of parallel_for
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_mla_decode(fastnorm_context* context,
                                                 const fastnorm_mla_decode_args* args,
                                                 void* workspace, size_t workspace_bytes,
                                                 void* stream);

/** What a profile records. A wait spans the time that a warpgroup stands at a barrier. */
typedef enum fastnorm_profile_id {
  FASTNORM_PROFILE_WORK = 0,     /**< One piece of a request, from its plan entry to its output. */
  FASTNORM_PROFILE_LOAD_Q = 1,   /**< Issue of the loads of the query tile. */
  FASTNORM_PROFILE_LOAD_KV = 2,  /**< Issue of the loads of a half tile of the cache. */
  FASTNORM_PROFILE_QK = 3,       /**< Scores: from issue to the return of the wait. */
  FASTNORM_PROFILE_SOFTMAX = 4,  /**< Maximum, exponentials, sums. */
  FASTNORM_PROFILE_RESCALE = 5,  /**< Outputs times the change of the maximum. */
  FASTNORM_PROFILE_WRITE_P = 6,  /**< Probabilities to shared memory. */
  FASTNORM_PROFILE_PV = 7,       /**< Values: from issue to the return of the wait. */
  FASTNORM_PROFILE_WRITE_O = 8,  /**< Outputs or partial outputs to global memory. */
  FASTNORM_PROFILE_MERGE = 9,    /**< Merge of the pieces of a request. */
  FASTNORM_PROFILE_WAIT_Q = 10,  /**< For the query tile. */
  FASTNORM_PROFILE_WAIT_KV = 11, /**< For a part of a tile of the cache. */
  FASTNORM_PROFILE_WAIT_FREE = 12,    /**< The producer, for a free part of a buffer. */
  FASTNORM_PROFILE_WAIT_SCALE_0 = 13, /**< For the maximum of the even tile. */
  FASTNORM_PROFILE_WAIT_SCALE_1 = 14, /**< For the maximum of the odd tile. */
  FASTNORM_PROFILE_WAIT_P_0 = 15,     /**< For the probabilities of the even tile. */
  FASTNORM_PROFILE_WAIT_P_1 = 16,     /**< For the probabilities of the odd tile. */
  FASTNORM_PROFILE_WAIT_PLAN = 17,    /**< For the previous kernel of the stream. */
  FASTNORM_PROFILE_ID_MAX_ENUM = 0x7fffffff
} fastnorm_profile_id;

/** How an event stands in time. */
typedef enum fastnorm_profile_kind {
  FASTNORM_PROFILE_BEGIN = 0,   /**< A span starts; an end of the same id and warpgroup follows. */
  FASTNORM_PROFILE_END = 1,     /**< The span ends. */
  FASTNORM_PROFILE_INSTANT = 2, /**< A point in time. */
  FASTNORM_PROFILE_KIND_MAX_ENUM = 0x7fffffff
} fastnorm_profile_kind;

/** One event of a profile. */
typedef struct fastnorm_profile_event {
  uint64_t time_ns; /**< Since the earliest event of the buffer, aligned over multiprocessors. */
  uint64_t cycle;   /**< Clock cycles since the start of this warpgroup. */
  int32_t block;    /**< Thread block. */
  int32_t multiprocessor;     /**< Where it ran. */
  int32_t group;              /**< Warpgroup of the thread block; 0 and 1 compute, 2 loads. */
  fastnorm_profile_id id;     /**< What. */
  fastnorm_profile_kind kind; /**< Begin, end or instant. */
  int32_t value; /**< Number of the tile or piece that the event belongs to, 0 to 2^22 - 1. */
} fastnorm_profile_event;

/** Files that fastnorm_profile_write_trace writes. */
typedef enum fastnorm_trace_format {
  FASTNORM_TRACE_CHROME_JSON =
      0, /**< Trace Event Format, which Perfetto and chrome://tracing open. */
  FASTNORM_TRACE_FORMAT_MAX_ENUM = 0x7fffffff
} fastnorm_trace_format;

/** Name of an event.
 *  @param id which
 *  @return such as "softmax"; "unknown" for an id that this library does not have. Static
 *  @since 0.2 */
FASTNORM_API const char* fastnorm_profile_id_name(fastnorm_profile_id id);

/** Turn a profile buffer, copied to host memory, into a flat array. Events are in order of thread
 *  block, then warpgroup, then time. A warpgroup that ran out of profile_events has dropped its
 *  last ones; what it recorded is still in order.
 *  @param buffer   the bytes of args.profile, on the host, 8-byte aligned
 *  @param bytes    their number
 *  @param events   receives the first `capacity` events; NULL if capacity is 0
 *  @param capacity room in events
 *  @param count    receives the number of events in the buffer, which may be more than capacity
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT for null pointers, a buffer that is no profile, is
 *  cut short or inconsistent, or comes from another version
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_profile_decode(const void* buffer, size_t bytes,
                                                     fastnorm_profile_event* events,
                                                     size_t capacity, size_t* count);

/** Write a profile buffer, copied to host memory, as a trace. A thread block is a process of the
 *  trace, its warpgroups are threads. `otherData` holds figures of the whole profile: the number of
 *  dropped events, the share of time with a tensor-core product in flight, and the share of each
 *  wait.
 *  @param buffer the bytes of args.profile, on the host, 8-byte aligned
 *  @param bytes  their number
 *  @param path   the file, which is replaced
 *  @param format what is written
 *  @return as fastnorm_profile_decode; FASTNORM_ERROR_ARGUMENT also for a null path, an unknown
 *  format, and a file that cannot be written (the text has the system's reason)
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_profile_write_trace(const void* buffer, size_t bytes,
                                                          const char* path,
                                                          fastnorm_trace_format format);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_MLA_DECODE_H_ */
