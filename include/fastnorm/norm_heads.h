/** @file norm_heads.h
 *  What stands between the QKV projection and attention, in one call: the norm of query and key
 *  heads, the rotary embedding (rope), and the write to a paged cache.
 *
 *  A call has up to 8 parts over the same tokens, such as query, key and value heads of a fused QKV
 *  buffer. A part is a tensor x of [tokens, heads, d] and what is done to each of its rows of d
 *  columns. In this order, every step but the first optional:
 *
 *      v = x
 *      v = norm(v)              FASTNORM_NORM_HEADS_NORM: as fastnorm_norm of the same row
 *      v = v rounded to T       FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED, T is the dtype of x
 *      o = rope(v)              FASTNORM_NORM_HEADS_ROPE; else o = v
 *      y = o rounded to its dtype
 *      quantized, scale         from o, by the rules of norm.h
 *      cache                    o rounded to T, or codes from o
 *
 *  **Norm.** The arithmetic is fastnorm_norm's, to the bit: kind, eps, weight, bias, weight_offset
 *  and rounding mean the same there. A statistic is of one row of d columns. With
 *  FASTNORM_NORM_HEADS_ACROSS_HEADS it is of all heads of a token, as if they were one row of
 *  heads * d columns. So a call with ROPE_FROM_ROUNDED gives the bits of two calls, norm and then
 *  rope.
 *
 *  **Rope.** R = rope_dim / 2. Column off is the first of the rope_dim columns that rope turns. For
 *  j of 0 .. R - 1 it turns the pair (v1, v2), which is columns
 *
 *      (off + j, off + R + j)           NeoX: the default
 *      (off + 2j, off + 2j + 1)         FASTNORM_NORM_HEADS_ROPE_INTERLEAVED: GPT-J
 *
 *  by c = cos[row, j] and s = sin[row, j], and by -s with FASTNORM_NORM_HEADS_ROPE_INVERSE:
 *
 *      o1 = fma(v1, c, -(v2 * s)),  o2 = fma(v2, c, v1 * s)       FASTNORM_ROPE_ONCE
 *      o1 = r(v1 * c) - r(v2 * s),  o2 = r(v2 * c) + r(v1 * s)    FASTNORM_ROPE_EVERY_STEP
 *
 *  r() rounds to T; all else is single precision. Other columns pass unchanged. The tables are the
 *  caller's: the library computes neither sines nor frequencies.
 *
 *  **Tables.** cos and sin are [P, R] or [heads, P, R], each with its own strides: one buffer of
 *  [P, rope_dim] with the cosines first is two views of it. They may be [P, 2 * R] instead. Then c
 *  is entry j for NeoX and entry 2j for INTERLEAVED, so that frequencies repeated either way fit.
 *
 *  **Positions.** The row of token t is positions[t], or t without positions. With positions of
 *  [axes, tokens] the axis depends on j (mrope). Its sections are mrope_0 to mrope_3, of sum R:
 *
 *      contiguous     the first mrope_0 pairs have axis 0, the next mrope_1 have axis 1, and so on
 *      interleaved    a = j % 3; axis a if a >= 1 and j < 3 * mrope_a, else axis 0
 *                     (FASTNORM_NORM_HEADS_MROPE_INTERLEAVED; 3 axes)
 *
 *  **Cache.** Token t goes to slot k = slots[t]: row k % page_size of page k / page_size. A slot of
 *  -1 is not written, nor are tokens behind the last slot. The strides of a cache are free: [pages,
 *  2, page_size, heads, d] is two caches, and a page may hold the scales behind the codes. Two
 *  tokens with one slot leave either one there, or a mixture of both.
 *
 *  **Quantised caches.** A cache of f8_e4m3fn, f8_e5m2 or i8 holds codes. Scales are dequantisation
 *  scales: one input for the tensor, or an output for each block of 64 or 128 columns, by norm.h's
 *  rules for FASTNORM_QUANT_PER_TENSOR and PER_BLOCK. quant_source, quant_division and amax_floor
 *  hold for `quantized` and for the cache; clamp, clamp_scale and amax are of `quantized` alone.
 *
 *  **Statistics of several devices.** Where heads are spread over devices and the statistic is of
 *  all, sumsq gives each device's part and rstd_in (LAYER: and mean_in) takes the statistic. RMS:
 *  add up the sums S; rstd = 1 / sqrt(S / N + eps) for N columns in all. LAYER: merge the means and
 *  sums of squares by Chan's formula; adding the sums up is wrong.
 *
 *  **Same bits.** A row's results depend on its own values, weight, bias, table entries and options
 *  only: not on other parts, the number of tokens, strides, in-place use, other outputs, the
 *  instruction set, threads or the run. With ACROSS_HEADS they depend on the token's other heads,
 *  too. CPU and GPU sum in different orders and may differ in the last place.
 *
 *  **NaN and Inf** stay in their row (ACROSS_HEADS: in their token). Rows of padding may hold them.
 *
 *  **Devices.** CPU and CUDA: all. On CUDA a part has at most 2^32 - 256 rows (tokens * heads).
 */
#ifndef FASTNORM_NORM_HEADS_H_
#define FASTNORM_NORM_HEADS_H_

#include "norm.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Bits of fastnorm_norm_heads_part.flags. */
typedef enum fastnorm_norm_heads_part_flags {
  FASTNORM_NORM_HEADS_NORM = 1, /**< Normalise. */
  FASTNORM_NORM_HEADS_ROPE = 2, /**< Turn rope_dim columns. */
  /** With ROPE: pairs are neighbours (GPT-J). Default: they are R columns apart (NeoX, Llama). */
  FASTNORM_NORM_HEADS_ROPE_INTERLEAVED = 4,
  FASTNORM_NORM_HEADS_ROPE_INVERSE = 8,       /**< With ROPE: turn back. */
  FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED = 16, /**< With ROPE: of v rounded to x's dtype. */
  FASTNORM_NORM_HEADS_ACROSS_HEADS = 32, /**< With NORM: one statistic for all heads of a token. */
  FASTNORM_NORM_HEADS_PART_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_norm_heads_part_flags;

/** Bits of fastnorm_norm_heads_args.flags. */
typedef enum fastnorm_norm_heads_flags {
  FASTNORM_NORM_HEADS_MROPE_INTERLEAVED = 8, /**< Axes alternate from pair to pair (Qwen3-VL). */
  FASTNORM_NORM_HEADS_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_norm_heads_flags;

/** Where rope rounds to x's dtype T on its way. With T = f32 rounding changes nothing, but
 *  EVERY_STEP still adds the products instead of fusing them. */
typedef enum fastnorm_rope_rounding {
  FASTNORM_ROPE_ONCE = 0,       /**< Only when the result is stored. FlashInfer, vLLM, SGLang. */
  FASTNORM_ROPE_EVERY_STEP = 1, /**< Every product, too: what a 16-bit eager chain does. */
  FASTNORM_ROPE_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_rope_rounding;

/** One part. `{0}` plus struct_size, x and one output is valid: it copies.
 *
 *  Shapes: x is [tokens, heads, d], with d from 1 to 8192, heads at least 1, and the tokens of
 *  every part alike. T is x's dtype, f32, f16 or bf16, and alike for all parts. Last dimensions are
 *  contiguous; all other strides are free, and inputs may have strides of 0. Any alignment that the
 *  dtype allows. All tensors are on the context's device.
 *
 *  Outputs are y, quantized, cache, sumsq, mean and rstd; a part has at least one.
 *
 *  Aliasing: y may be the part's x, as the same view. No other output may share an element with any
 *  tensor of the call; interleaved views of one buffer that share no element are allowed. */
typedef struct fastnorm_norm_heads_part {
  size_t struct_size;                   /**< sizeof(fastnorm_norm_heads_part). */
  uint32_t flags;                       /**< fastnorm_norm_heads_part_flags. */
  fastnorm_norm_kind kind;              /**< NORM: RMS or LAYER; else 0. */
  float eps;                            /**< NORM: finite, >= 0; else 0. */
  float weight_offset;                  /**< Added to the weight in f32; 0 where weight is NULL. */
  fastnorm_rounding rounding;           /**< NORM: as in fastnorm_norm_args; else 0. */
  fastnorm_rope_rounding rope_rounding; /**< ROPE: default once; else 0. */
  /** ROPE: first column that is turned, or -1: the last rope_dim columns are. Else 0. */
  int32_t rope_offset;
  int32_t reserved; /**< Must be 0. */

  const fastnorm_tensor* x;      /**< [tokens, heads, d] T. Required. */
  const fastnorm_tensor* weight; /**< NORM: [d] or [heads, d], [1, d] too; dtypes as in
                                    fastnorm_norm_args. NULL = 1. */
  const fastnorm_tensor* bias;   /**< As weight. NULL = 0. */
  const fastnorm_tensor*
      y; /**< [tokens, heads, d], T or f32. Output; may be x. NULL = not stored. */
  /** LAYER: the mean, f32 [tokens, heads]; ACROSS_HEADS: [tokens]. Output. NULL = not stored. */
  const fastnorm_tensor* mean;
  const fastnorm_tensor* rstd; /**< NORM: as mean. Output. NULL = not stored. */
  /** LAYER, with rstd_in: the mean to use, of mean's shape. Input. */
  const fastnorm_tensor* mean_in;
  /** NORM: the rstd to use, of rstd's shape; eps is not looked at. Input. NULL = computed. */
  const fastnorm_tensor* rstd_in;
  /** NORM without rstd_in. RMS: the sum of squares, of rstd's shape. LAYER: that with a last 2, the
      mean and the sum of (x - mean)^2. f32. Output. NULL = not stored. */
  const fastnorm_tensor* sumsq;

  fastnorm_quant_scheme quant_scheme; /**< Of `quantized`. PER_ROW is a scale a token and head. */
  int32_t quant_block_size;           /**< As in fastnorm_norm_args. */
  fastnorm_quant_source quant_source; /**< Of `quantized` and of a cache of codes. */
  fastnorm_scale_layout scale_layout; /**< As in fastnorm_norm_args; rows are tokens * heads. */
  int32_t scale_pow2;                 /**< As in fastnorm_norm_args. */
  float amax_floor; /**< As in fastnorm_norm_args, and for a cache with scales of blocks. */
  float clamp;      /**< As in fastnorm_norm_args. The cache is not clamped. */
  fastnorm_quant_scheme cache_scheme; /**< NONE: the cache is of T. Else PER_TENSOR or PER_BLOCK. */
  int32_t cache_block_size;           /**< cache_scheme PER_BLOCK: 64 or 128 columns; else 0. */
  int32_t cache_pow2; /**< cache_scheme PER_BLOCK with f8: 1 = scales are powers of two; else 0. */
  const fastnorm_tensor* global_scale; /**< As in fastnorm_norm_args. */
  const fastnorm_tensor* quantized;    /**< As in fastnorm_norm_args. Output. */
  const fastnorm_tensor* scale;        /**< As in fastnorm_norm_args. */
  const fastnorm_tensor* amax;         /**< As in fastnorm_norm_args. */
  /** [pages, page_size, heads, d] T, or codes of f8_e4m3fn, f8_e5m2 or i8. Output. NULL = none. */
  const fastnorm_tensor* cache;
  /** PER_TENSOR: [1] f32, an input. PER_BLOCK: [pages, page_size, heads, ceil(d / block)] f32, with
      any strides; with cache_pow2 f32, f8_e8m0fnu or u8. Output. */
  const fastnorm_tensor* cache_scale;

  /** Of `quantized` and of a cache of codes, with PER_TENSOR, PER_ROW and PER_BLOCK: default, times
      the reciprocal; else 0. Scales that are powers of two give the same codes either way. */
  fastnorm_quant_division quant_division;
  int32_t reserved_2;                 /**< Must be 0. */
  const fastnorm_tensor* clamp_scale; /**< As in fastnorm_norm_args. The cache is not clamped. */
} fastnorm_norm_heads_part;

/** What the parts of a call share. */
typedef struct fastnorm_norm_heads_args {
  size_t struct_size; /**< sizeof(fastnorm_norm_heads_args). */
  uint32_t flags;     /**< fastnorm_norm_heads_flags. */
  int32_t rope_dim;   /**< Columns that ROPE turns, even; 0 where no part has ROPE. */
  int32_t mrope_0;    /**< Pairs of axis 0; all four are 0 with one row of positions. */
  int32_t mrope_1;    /**< Pairs of axis 1. */
  int32_t mrope_2;    /**< Pairs of axis 2. */
  int32_t mrope_3;    /**< Pairs of axis 3. */

  const fastnorm_tensor* cos; /**< [P, R], [P, 2 * R], or one such for each head; f32 or T. */
  const fastnorm_tensor* sin; /**< As cos: the same shape and dtype. */
  /** [tokens] or [axes, tokens], with 1 to 4 axes; i32 or i64. NULL = the token's number. */
  const fastnorm_tensor* positions;
  /** [at most tokens] i32 or i64. Required where a part has a cache, else NULL. */
  const fastnorm_tensor* slots;
} fastnorm_norm_heads_args;

/** Say what a call would do: workspace, kernel, launches, bytes. No memory of a tensor is touched.
 *  @param context the device
 *  @param args    as for the call
 *  @param parts   [count] pointers, as for the call
 *  @param count   0 to 8
 *  @param info    struct_size in; receives the rest
 *  @return as fastnorm_norm_heads; FASTNORM_ERROR_ARGUMENT also if info is null or its struct_size
 *  too small
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_heads_query(fastnorm_context* context,
                                                       const fastnorm_norm_heads_args* args,
                                                       const fastnorm_norm_heads_part* const* parts,
                                                       int32_t count, fastnorm_info* info);

/** Load the kernels of a call, so that it neither allocates nor synchronises. Optional: the first
 *  call does the same.
 *  @param context the device
 *  @param args    as for the call
 *  @param parts   [count] pointers, as for the call
 *  @param count   0 to 8
 *  @return as fastnorm_norm_heads
 *  @since 0.2 */
FASTNORM_API fastnorm_status
fastnorm_norm_heads_prepare(fastnorm_context* context, const fastnorm_norm_heads_args* args,
                            const fastnorm_norm_heads_part* const* parts, int32_t count);

/** Normalise, turn and store the heads of all parts; the formula is at the top of this header.
 *
 *  CPU: the work is done when the call returns; tokens are spread over the context's threads.
 *  Positions and slots are checked before anything is written: positions from 0 to P - 1, slots
 *  from
 *  -1 to pages * page_size - 1. On other devices wrong ones are undefined, and may write outside of
 *  the cache. No allocation and no synchronisation. No parts or no tokens is success and does
 *  nothing.
 *
 *  @param context         the device
 *  @param args            what all parts share; read during the call only
 *  @param parts           [count] pointers, read during the call only
 *  @param count           number of parts, 0 to 8
 *  @param workspace       fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned; NULL
 *  where 0 bytes are needed
 *  @param workspace_bytes size of workspace
 *  @param stream          CUDA: the cudaStream_t; NULL = the legacy default stream. CPU: NULL
 *  @return FASTNORM_OK
 *          FASTNORM_ERROR_ARGUMENT: null context, args, part, x or required tensor; a part without
 *          an output; ROPE without tables, a cache without slots; a field that the flags have no
 *          use for; a scalar out of range; a struct_size that is too small; a tensor whose shape is
 *          null, or its data though it has elements; a workspace that is too small; a stream on the
 *          CPU; CPU: a position or slot out of range; a parallel_for that did not cover the tokens
 *          exactly once, when some may have been written
 *          FASTNORM_ERROR_SHAPE: ranks or extents that do not fit; rope_dim odd or past the row;
 *          mrope sections whose sum is not R
 *          FASTNORM_ERROR_DTYPE: a dtype that the tensor's role does not allow
 *          FASTNORM_ERROR_LAYOUT: last dimension not contiguous, misaligned address, overlap
 *          FASTNORM_ERROR_UNSUPPORTED: d above 8192; CUDA: too many rows; a field of a later
 *          version, an unknown flag, an unknown tail that is not zero
 *          FASTNORM_ERROR_DEVICE: a tensor on another device
 *          FASTNORM_ERROR_INTERNAL: a defect of this library; an exception out of parallel_for
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_heads(fastnorm_context* context,
                                                 const fastnorm_norm_heads_args* args,
                                                 const fastnorm_norm_heads_part* const* parts,
                                                 int32_t count, void* workspace,
                                                 size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_NORM_HEADS_H_ */
