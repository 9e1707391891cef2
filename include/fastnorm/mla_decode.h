/** @file mla_decode.h
 *  Attention of new tokens over a paged cache of latents: multi-head latent attention (MLA) in its
 *  absorbed form, for decoding and speculative decoding.
 *
 *  A call serves B requests. Request b has s_q new tokens and a cache of L = kv_len[b] tokens,
 *  which already contains the latents of the new tokens. N is the number of new tokens of all
 *  requests, and H is the number of query heads. Each cached token has one latent of 512 + 64
 *  numbers that all heads share, and the first 512 of these numbers are also the values. For the
 *  new token i of 0 .. s_q - 1, head h and cached token j:
 *
 *      s[j]    = sm_scale * (dot(q_nope[i,h,:], ckv[j,:]) + dot(q_pe[i,h,:], kpe[j,:]))
 *      allowed = j < L                                     (causal = 0)
 *                j <= L - s_q + i                          (causal = 1: aligned at the end)
 *      lse     = log(sum over allowed j of exp(s[j]))
 *      o[i,h,:] = sum over allowed j of exp(s[j] - lse) * ckv[j,:]
 *
 *  **Empty rows.** If no j is allowed, because L = 0 or because the call is causal with s_q > L and
 *  i < s_q - L, then o is 0 and lse is minus infinity. Such a result merges correctly with the
 *  results of other parts of a sequence.
 *
 *  **Arithmetic.** Scores, their maximum, exponentials and sums are in single precision. Before
 *  their product with the values, the probabilities are rounded to the dtype of ckv (if that is
 *  f32, they are not rounded), but their sum uses the unrounded ones. Dot products with a magnitude
 *  of 2^96 or more, and NaN or Inf in rows that a request may attend to, give unspecified results,
 *  but only in the rows of that request.
 *
 *  **The cache** is a list of pages of `page` tokens each. Token j of request b is row j % page of
 *  the page whose number is page_list(b)[j / page]. Such lists can be passed in two forms:
 *
 *  | form        | page_table          | kv_indptr    | page_list(b)                         |
 *  |-------------|---------------------|--------------|--------------------------------------|
 *  | block table | [B, max_pages] i32  | NULL         | row b                                |
 *  | CSR         | [total] i32         | [B + 1] i32  | from page_table[kv_indptr[b]] on     |
 *
 *  kv_indptr counts pages, not tokens. Entries after the last page of a request are never used and
 *  may have any value. The rows of a page after the last token may also hold anything, even NaN,
 *  because they are never added up. A fused cache of [pages, page, 576] is passed as two views of
 *  it: ckv, and kpe at byte_offset + 512 elements, both with the strides of rows of 576. A fused
 *  query of [N, H, 576] is passed in the same way.
 *
 *  **FP8 caches.** With a cache_format other than 0 the tensor `cache` of bytes takes the place of
 *  ckv and kpe. A row of it is what a token has, and `code` is an f8_e4m3fn number:
 *
 *  | cache_format | bytes of a row | columns that the row stands for                             |
 *  |--------------|----------------|-------------------------------------------------------------|
 *  | BYTES_656    | 0 .. 511       | 512 codes: ckv, column c = code[c] * scale[c / 128]         |
 *  |              | 512 .. 527     | scale: 4 f32                                                |
 *  |              | 528 .. 655     | 64 bf16: kpe                                                |
 *  | BYTES_576    | 0 .. 575       | 576 codes: ckv, then kpe, column c = code[c] * cache_scale  |
 *  | BYTES_584    | 0 .. 447       | 448 codes: column c = code[c] * 2^(scale[c / 64] - 127)     |
 *  |              | 448 .. 575     | 64 bf16: columns 448 .. 511, after RoPE                     |
 *  |              | behind rows    | scale: 7 bytes, and one that is not used                    |
 *
 *  A page of BYTES_584 has the 576 bytes of all its tokens first and then the 8 bytes of scales of
 *  all its tokens, so that its rows are not at multiples of 584 bytes. In this format a head has
 *  512 columns in place of 576: q_nope has its first 448 and q_pe its last 64, and all 512 columns
 *  of a row, the rotated ones included, are both key and value:
 *
 *      s[j]     = sm_scale * (dot(q_nope[i,h,:], row[j,0:448]) + dot(q_pe[i,h,:], row[j,448:512]))
 *      o[i,h,:] = sum over allowed j of exp(s[j] - lse) * row[j,0:512]
 *
 *  Before they are used, the numbers of a row are rounded to T: the product of code and scale is
 *  rounded to single precision and then to T, and a bf16 number is rounded to T where that is f16.
 *  If the scale is a power of two and the product is a normal number of T, nothing is lost.
 *  fastnorm_norm_heads writes rows of BYTES_656 and, with cache_tail, of BYTES_584. A code of NaN,
 *  or a scale of NaN or Inf, makes numbers of its row NaN or Inf.
 *
 *  **Sparse.** With `indices`, new token i of request b attends to the rows that it lists and to no
 *  others: index k of 0 .. min(topk, topk_length) - 1 is page * page_size + offset, the number of
 *  a row of the cache, or -1, which is skipped. A row that is listed twice counts twice. Rows that
 *  are not listed are never read. There are no kv_len, page_table, kv_indptr and qo_indptr, and
 *  causal is 0. B is the first extent of indices, and each request has N / B new tokens. A second
 *  cache of the same format, `extra_cache` or `extra_ckv` and `extra_kpe`, with `extra_indices` of
 *  its own is attended to in the same sum: allowed j are the rows listed in either.
 *
 *  **A sink** takes a share of the sum of exponentials and adds no value. With `attention_sink`,
 *  o[i,h,:] is multiplied by exp(lse) / (exp(lse) + exp(attention_sink[h])), in which lse is the
 *  natural one. What is stored in lse does not contain the sink. A sink of minus infinity changes
 *  nothing, and one of plus infinity makes o 0.
 *
 *  **Same bits.** Two calls with equal arguments give equal bits. On the CPU the bits of a row
 *  depend on the row's own request and on the instruction set, but not on the number of threads. On
 *  CUDA the library chooses where to cut a long request into pieces, and this depends on the other
 *  requests of the batch and on the number of multiprocessors; the cuts affect the last bits of the
 *  result. With split_tokens > 0 each request is cut at multiples of split_tokens instead, so that
 *  the bits of a row depend only on its own request and split_tokens. The CPU and the GPU round
 *  differently.
 *
 *  **Devices.** CUDA: compute capability 9.0 (Hopper); any other capability returns
 *  FASTNORM_ERROR_UNSUPPORTED. CPU: every CPU; its code aims at correct results and not at speed.
 *
 *  **Not supported** are other widths, several KV heads (make one call for each KV head), f32 on
 *  CUDA, the profile on the CPU, and the profile of a call with an FP8 cache or indices. Each of
 *  these returns FASTNORM_ERROR_UNSUPPORTED, and the error text names the nearest supported case.
 */
#ifndef FASTNORM_MLA_DECODE_H_
#define FASTNORM_MLA_DECODE_H_

#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The base of the logarithm in which lse is given. */
typedef enum fastnorm_lse_base {
  FASTNORM_LSE_NATURAL = 0, /**< The natural logarithm, as in PyTorch and FlashMLA. */
  /** The logarithm to base 2, as in FlashInfer. Its value is the natural one times log2(e). */
  FASTNORM_LSE_BASE_2 = 1,
  FASTNORM_LSE_BASE_MAX_ENUM = 0x7fffffff
} fastnorm_lse_base;

/** How the rows of the cache are stored. The table at the top of this header has their bytes. */
typedef enum fastnorm_mla_cache_format {
  FASTNORM_MLA_CACHE_ROWS = 0, /**< Rows of T: the tensors ckv and kpe. */
  /** Rows of 656 bytes: 512 codes, 4 scales of f32, 64 numbers of bf16. */
  FASTNORM_MLA_CACHE_BYTES_656 = 1,
  /** Rows of 576 codes, with one scale for the whole tensor. */
  FASTNORM_MLA_CACHE_BYTES_576 = 2,
  /** Rows of 584 bytes: 448 codes, 64 numbers of bf16 and, behind the rows of the page, 7 scales of
   *  e8m0 and a byte that is not used. A head has 512 columns. */
  FASTNORM_MLA_CACHE_BYTES_584 = 3,
  FASTNORM_MLA_CACHE_FORMAT_MAX_ENUM = 0x7fffffff
} fastnorm_mla_cache_format;

/** Bits of fastnorm_mla_decode_args.flags. */
typedef enum fastnorm_mla_decode_flags {
  /** Programmatic dependent launch is not used around the call: it starts when all earlier kernels
   *  have ended and lets no kernel start early. The kernels of one call follow each other by it in
   *  any case. */
  FASTNORM_MLA_DECODE_NO_PDL = 512,
  FASTNORM_MLA_DECODE_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_mla_decode_flags;

/** One attention call. T is bf16 or f16 (on the CPU also f32), and q_nope, q_pe, ckv, kpe and o all
 *  have this dtype. All tensors are on the context's device.
 *
 *  Strides: the last dimension of every tensor must be contiguous; other strides may be anything,
 *  with these limits. CUDA: the addresses of q_nope, q_pe, ckv, kpe and o are multiples of 16
 *  bytes, and their strides in dimensions of an extent above 1 are positive multiples of 16 bytes
 *  below 2^40. This is stricter than fastnorm_norm. The same holds for the bytes of FP8 caches.
 *  CPU: addresses are multiples of the size of an element, strides of inputs may be 0, and the
 *  bytes of FP8 caches may have any address and any strides. On both, the bytes of a page of
 *  BYTES_584 must be contiguous, so that on CUDA only the stride of its pages counts.
 *
 *  Aliasing: o, lse and profile must not overlap each other or any input. Two interleaved views of
 *  one buffer that share no element are allowed.
 *
 *  Ranges: N * H, B and the number of pages are below 2^31, and s_q * H is at most 2^24. */
typedef struct fastnorm_mla_decode_args {
  size_t struct_size; /**< sizeof(fastnorm_mla_decode_args). */
  /** Passed to the context's parallel_for in place of the context's parallel_user; NULL = that of
   *  the context. It has no effect if the context has no parallel_for. */
  void* parallel_user;
  /** Factor of the scores: finite and not 0, on CUDA > 0, with a magnitude between 2^-100 and 2^60.
   *  It has no default, because models differ. DeepSeek without YaRN has 1 / sqrt(128 + 64). */
  double sm_scale;
  /** 1: a new token does not attend to later ones. 0: it attends to all cached tokens. */
  int32_t causal;
  fastnorm_lse_base lse_base; /**< Base of lse. Default: natural. */
  /** With qo_indptr: an upper limit of the s_q of all requests, at least 1. Without qo_indptr it
   *  must be N / B or 0; 0 = N / B. */
  int32_t max_s_q;
  /** 1: the workspace still holds the plan of an earlier call on the same context, such as that of
   *  the previous layer, and the call uses it. Shapes, causal, max_s_q, split_tokens and the values
   *  of kv_len and qo_indptr must equal those of the earlier call; with indices the values of
   *  topk_length and extra_topk_length, but not those of the indices. 0: the call makes its own
   *  plan. It has no effect on the CPU. */
  int32_t reuse_plan;
  /** A multiple of 64 up to 2^30: each request is cut at multiples of it; 0 = the library chooses
   *  where long requests are cut. It has no effect on the CPU. */
  int32_t split_tokens;
  /** With profile: number of events per warpgroup, 1 to 2^20; else 0. A query reports the size of
   *  the profile for this number, even if profile is NULL. */
  int32_t profile_events;
  /** Sum of kv_len; 0 = not known. With indices: the number of rows that all new tokens select; 0 =
   *  as many as there are indices. It is used only for fastnorm_info.bytes_read, because a query
   *  reads neither lengths nor indices. */
  int64_t total_kv_hint;

  /** [N, H, 512] T, the query times W_UK. BYTES_584: [N, H, 448], the first columns of the query.
   *  Required. */
  const fastnorm_tensor* q_nope;
  const fastnorm_tensor* q_pe; /**< [N, H, 64] T, the query after RoPE. Required. */
  /** [pages, page, 512] T, the normalised latents. Required, except with an FP8 cache_format. */
  const fastnorm_tensor* ckv;
  /** [pages, page, 64] T, the keys after RoPE. Required, except with an FP8 cache_format. */
  const fastnorm_tensor* kpe;
  /** [B] i32, the number of cached tokens of each request. Required, except with indices. */
  const fastnorm_tensor* kv_len;
  /** The numbers of the pages of each request: [B, max_pages] or, with kv_indptr, [total]; i32.
   *  Required, except with indices. */
  const fastnorm_tensor* page_table;
  /** [B + 1] i32, where each request's pages begin in page_table. NULL: page_table is a block
   *  table. */
  const fastnorm_tensor* kv_indptr;
  /** [B + 1] i32, where each request's new tokens begin in the query. It starts with 0, does not
   *  decrease and ends with at most N. NULL: each request has N / B new tokens. */
  const fastnorm_tensor* qo_indptr;
  const fastnorm_tensor* o; /**< [N, H, 512] T, the result. Output. Required. */
  /** [N, H] f32, the logarithm of the sum of exponentials. Output. NULL = not stored. */
  const fastnorm_tensor* lse;
  /** [bytes] u8, at least fastnorm_info.profile_bytes, 16-byte aligned: records what each warpgroup
   *  did and when, for fastnorm_profile_decode. Output; its old contents do not matter. NULL = no
   *  profile. CUDA only. */
  const fastnorm_tensor* profile;
  uint32_t flags; /**< fastnorm_mla_decode_flags. */
  /** How the rows of the cache are stored. Default: rows of T. */
  fastnorm_mla_cache_format cache_format;
  /** [pages, page, row] u8, where row is 656, 576 or 584: the cache of an FP8 cache_format, which
   *  requires it. NULL with rows of T. */
  const fastnorm_tensor* cache;
  /** [1] f32, the scale of all codes of cache and extra_cache. NULL = 1. BYTES_576 only. */
  const fastnorm_tensor* cache_scale;
  /** [B, s_q, topk] i32, the rows of the cache that each new token attends to, or -1. NULL = all of
   *  the request. */
  const fastnorm_tensor* indices;
  /** [B] or [B, s_q] i32, from 0 to topk: how many of a new token's indices count. NULL = all. */
  const fastnorm_tensor* topk_length;
  /** [H] f32, the sink of each head. NULL = none. */
  const fastnorm_tensor* attention_sink;
  /** [extra pages, extra page, 512] T, a second ckv, with pages of a size of their own. NULL =
   *  none. */
  const fastnorm_tensor* extra_ckv;
  /** [extra pages, extra page, 64] T, the keys of extra_ckv. NULL = none. */
  const fastnorm_tensor* extra_kpe;
  /** [extra pages, extra page, row] u8, a second cache. NULL = none. */
  const fastnorm_tensor* extra_cache;
  /** [B, s_q, extra topk] i32, rows of the second cache, or -1. Required with a second cache. */
  const fastnorm_tensor* extra_indices;
  /** [B] or [B, s_q] i32, from 0 to extra topk: how many of the extra indices count. NULL = all. */
  const fastnorm_tensor* extra_topk_length;
} fastnorm_mla_decode_args;

/** Say what a call would do: its workspace, kernel, launches and bytes. The query does not touch
 *  the memory of the tensors.
 *
 *  CUDA: `launches` counts the plan, the attention and the merge of the pieces. The workspace holds
 *  the plan, which takes a few bytes per request, and the pieces before they are merged. If
 *  split_tokens is 0, the room for pieces depends only on max_s_q * H and on the number of
 *  multiprocessors. With split_tokens it follows from the extents of the page table: max_pages or,
 *  with kv_indptr, the length of page_table. CPU: the workspace is 0 bytes.
 *  @param context the device
 *  @param args    the arguments of the call
 *  @param info    struct_size as input; receives the rest
 *  @return as fastnorm_mla_decode; FASTNORM_ERROR_ARGUMENT also if info is null or its struct_size
 *  is too small
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_mla_decode_query(fastnorm_context* context,
                                                       const fastnorm_mla_decode_args* args,
                                                       fastnorm_info* info);

/** Load the kernels of a call. Afterwards, calls that use the same kernels neither allocate nor
 *  synchronise, and can be captured in a CUDA graph. Preparing is optional, because the first call
 *  that uses a kernel loads it, too.
 *  @param context the device
 *  @param args    the arguments of the call
 *  @return as fastnorm_mla_decode
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_mla_decode_prepare(fastnorm_context* context,
                                                         const fastnorm_mla_decode_args* args);

/** Compute the attention; the formula is at the top of this header.
 *
 *  CUDA: the call queues up to three kernels on `stream` and returns. It does not synchronise,
 *  copies no lengths to the host and leaves the current device as it was. It can be captured in a
 *  CUDA graph: kv_len, page_table, kv_indptr, qo_indptr and all other data may change between
 *  replays, but addresses, shapes and scalars may not. The values in kv_len, kv_indptr, qo_indptr
 *  and the used entries of page_table must be valid: kv_len[b] is from 0 to page * (pages in the
 *  list of b), page numbers are below `pages`, and a request has at most max_s_q new tokens. A GPU
 *  does not check them, and a wrong value may read outside of the cache.
 *
 *  CPU: the work is done when the call returns, and requests, tokens and heads are spread over the
 *  context's threads. The CPU checks these values before it writes anything, and also that
 *  topk_length is from 0 to topk and each index that counts is -1 or a row of the cache. Where a
 *  device does not check indices, those that are out of range are undefined behaviour.
 *
 *  B = 0 or N = 0 is a success that does nothing. Some of the requests may have s_q = 0 or kv_len =
 *  0. Rows of the query that belong to no request, because they lie after qo_indptr[B], are not
 *  written in the outputs.
 *
 *  @param context         the device
 *  @param args            what to compute; read only during the call
 *  @param workspace       fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned.
 *  Nothing else may use them until the work of the call has run. If later calls use the plan of
 *  this call (reuse_plan), nothing else may use them until the work of the last such call has run.
 *  Without reuse_plan their contents may be anything. NULL if 0 bytes are needed
 *  @param workspace_bytes size of workspace
 *  @param stream          CUDA: the cudaStream_t; NULL = the legacy default stream. CPU: NULL
 *  @return FASTNORM_OK
 *          FASTNORM_ERROR_ARGUMENT: context, args or a required tensor is null; a tensor has no
 *          shape, or it has elements but no data; a struct_size is too small; a scalar is out of
 *          range; sm_scale is 0; there is qo_indptr without max_s_q; the workspace is too small;
 *          there is a stream on the CPU; there is profile_events without a profile; tensors of the
 *          cache do not suit cache_format; there are indices beside kv_len, page_table, kv_indptr,
 *          qo_indptr or causal; CPU: a length, index or page number is out of range; parallel_for
 *          did not cover the rows exactly once, in which case some of them may have been written
 *          FASTNORM_ERROR_SHAPE: ranks or extents do not fit; without qo_indptr, N is not a
 *          multiple of B; the profile is too short
 *          FASTNORM_ERROR_DTYPE: a tensor has a dtype that its role does not allow
 *          FASTNORM_ERROR_LAYOUT: a last dimension is not contiguous, an address or a stride is
 *          misaligned, or tensors overlap
 *          FASTNORM_ERROR_UNSUPPORTED: one of the cases at the top of this header; a field of a
 *          later version is set, or bytes after the known fields are not zero
 *          FASTNORM_ERROR_DEVICE: a tensor is on another device; the CUDA runtime reported an error
 *          FASTNORM_ERROR_OUT_OF_MEMORY: the CUDA runtime had no memory, for example to load the
 *          kernel
 *          FASTNORM_ERROR_INTERNAL: a defect of this library, or an exception out of parallel_for
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_mla_decode(fastnorm_context* context,
                                                 const fastnorm_mla_decode_args* args,
                                                 void* workspace, size_t workspace_bytes,
                                                 void* stream);

/** What an event of a profile records. An event whose name begins with WAIT spans the time that a
 *  warpgroup waits at a barrier. */
typedef enum fastnorm_profile_id {
  FASTNORM_PROFILE_WORK = 0,    /**< One piece of a request, from its plan entry to its output. */
  FASTNORM_PROFILE_LOAD_Q = 1,  /**< Issue of the loads of the query tile. */
  FASTNORM_PROFILE_LOAD_KV = 2, /**< Issue of the loads of half a tile of the cache. */
  /** Product of queries and keys, which gives the scores: from its issue to the end of the wait for
   *  it. */
  FASTNORM_PROFILE_QK = 3,
  FASTNORM_PROFILE_SOFTMAX = 4, /**< Maximum, exponentials and sums of the scores. */
  /** Multiplication of the outputs by the factor that a new maximum requires. */
  FASTNORM_PROFILE_RESCALE = 5,
  FASTNORM_PROFILE_WRITE_P = 6, /**< Store of the probabilities to shared memory. */
  /** Product of probabilities and values: from its issue to the end of the wait for it. */
  FASTNORM_PROFILE_PV = 7,
  FASTNORM_PROFILE_WRITE_O = 8,  /**< Store of outputs or partial outputs to global memory. */
  FASTNORM_PROFILE_MERGE = 9,    /**< Merge of the pieces of a request. */
  FASTNORM_PROFILE_WAIT_Q = 10,  /**< Wait for the query tile. */
  FASTNORM_PROFILE_WAIT_KV = 11, /**< Wait for a part of a tile of the cache. */
  /** Wait of the producer for a free part of a buffer. */
  FASTNORM_PROFILE_WAIT_FREE = 12,
  FASTNORM_PROFILE_WAIT_SCALE_0 = 13, /**< Wait for the maximum of the even tile. */
  FASTNORM_PROFILE_WAIT_SCALE_1 = 14, /**< Wait for the maximum of the odd tile. */
  FASTNORM_PROFILE_WAIT_P_0 = 15,     /**< Wait for the probabilities of the even tile. */
  FASTNORM_PROFILE_WAIT_P_1 = 16,     /**< Wait for the probabilities of the odd tile. */
  FASTNORM_PROFILE_WAIT_PLAN = 17,    /**< Wait for the previous kernel of the stream. */
  FASTNORM_PROFILE_ID_MAX_ENUM = 0x7fffffff
} fastnorm_profile_id;

/** Whether an event begins a span, ends one, or is a point in time. */
typedef enum fastnorm_profile_kind {
  /** A span begins; an event that ends it follows with the same id and warpgroup. */
  FASTNORM_PROFILE_BEGIN = 0,
  FASTNORM_PROFILE_END = 1,     /**< A span ends. */
  FASTNORM_PROFILE_INSTANT = 2, /**< A point in time. */
  FASTNORM_PROFILE_KIND_MAX_ENUM = 0x7fffffff
} fastnorm_profile_kind;

/** One event of a profile. */
typedef struct fastnorm_profile_event {
  /** Nanoseconds since the earliest event of the buffer; the clocks of the multiprocessors are
   *  aligned. */
  uint64_t time_ns;
  uint64_t cycle;             /**< Clock cycles since the start of this warpgroup. */
  int32_t block;              /**< Number of the thread block. */
  int32_t multiprocessor;     /**< Number of the multiprocessor on which the thread block ran. */
  int32_t group;              /**< Warpgroup of the thread block: 0 and 1 compute, 2 loads. */
  fastnorm_profile_id id;     /**< What the event records. */
  fastnorm_profile_kind kind; /**< Whether the event is a begin, an end or an instant. */
  int32_t value; /**< Number of the tile or piece that the event belongs to, 0 to 2^22 - 1. */
} fastnorm_profile_event;

/** Format of the files that fastnorm_profile_write_trace writes. */
typedef enum fastnorm_trace_format {
  /** Trace Event Format, which Perfetto and chrome://tracing open. */
  FASTNORM_TRACE_CHROME_JSON = 0,
  FASTNORM_TRACE_FORMAT_MAX_ENUM = 0x7fffffff
} fastnorm_trace_format;

/** Name of what an event records.
 *  @param id the id of the event
 *  @return a static string such as "softmax"; "unknown" for an id that this library does not have
 *  @since 0.2 */
FASTNORM_API const char* fastnorm_profile_id_name(fastnorm_profile_id id);

/** Turn a profile buffer, copied to host memory, into a flat array of events. They are sorted by
 *  thread block, then by warpgroup, then by time. If a warpgroup had more events than
 *  profile_events, its last ones are missing, but the recorded ones are in order.
 *  @param buffer   the bytes of args.profile, on the host, 8-byte aligned
 *  @param bytes    the number of these bytes
 *  @param events   receives the first `capacity` events; NULL if capacity is 0
 *  @param capacity number of events that fit into events
 *  @param count    receives the number of events in the buffer, which may be more than capacity
 *  @return FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if a pointer is null, or if the buffer is not a
 *  profile, is cut short, is inconsistent, or comes from another version
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_profile_decode(const void* buffer, size_t bytes,
                                                     fastnorm_profile_event* events,
                                                     size_t capacity, size_t* count);

/** Write a profile buffer, copied to host memory, as a trace. A thread block appears as a process
 *  of the trace, and its warpgroups as threads. `otherData` holds figures of the whole profile: the
 *  number of dropped events, the share of time with a tensor-core product in flight, and the share
 *  of each wait.
 *  @param buffer the bytes of args.profile, on the host, 8-byte aligned
 *  @param bytes  the number of these bytes
 *  @param path   path of the file, which is replaced if it exists
 *  @param format the format of the file
 *  @return as fastnorm_profile_decode; FASTNORM_ERROR_ARGUMENT also if the path is null, the format
 *  is unknown, or the file cannot be written (the text has the system's reason)
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_profile_write_trace(const void* buffer, size_t bytes,
                                                          const char* path,
                                                          fastnorm_trace_format format);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_MLA_DECODE_H_ */
