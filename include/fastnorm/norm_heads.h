/** @file norm_heads.h
 *  The operations between the QKV projection and attention, in one call: the norm of query and key
 *  heads, the rotary embedding (rope), and the write to a paged cache.
 *
 *  A call has up to 8 parts over the same tokens, such as the query, key and value heads of a fused
 *  QKV buffer. A part is a tensor x of [tokens, heads, d], and the steps that each of its rows of d
 *  columns goes through. The steps are taken in this order, and all but the first are optional:
 *
 *      v = x
 *      v = norm(v)              FASTNORM_NORM_HEADS_NORM: as fastnorm_norm of the same row
 *      v = v rounded to T       FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED, T is the dtype of x
 *      o = rope(v)              FASTNORM_NORM_HEADS_ROPE; else o = v
 *      y = o rounded to its dtype
 *      quant                    codes and scales from o, by the rules of norm.h
 *      cache                    o rounded to T, or codes from o by cache_quant
 *      cache_tail               the last columns of o rounded to T, where cache has codes of the
 *                               columns before them
 *
 *  **Norm.** The arithmetic is that of fastnorm_norm, to the bit, and kind, eps, weight, bias,
 *  weight_offset and rounding mean the same as there. A call with ROPE_FROM_ROUNDED therefore gives
 *  the bits of two separate calls: the norm and then rope. A statistic is taken over one row of d
 *  columns. With FASTNORM_NORM_HEADS_ACROSS_HEADS it is taken over all heads of a token, as if they
 *  were one row of heads * d columns.
 *
 *  **Rope** rotates rope_dim columns of a row, which begin at column off. With R = rope_dim / 2 and
 *  for each j of 0 .. R - 1 it rotates the pair (v1, v2), which is the columns
 *
 *      (off + j, off + R + j)           NeoX: the default
 *      (off + 2j, off + 2j + 1)         FASTNORM_NORM_HEADS_ROPE_INTERLEAVED: GPT-J
 *
 *  by c = cos[row, j] and s = sin[row, j], or by c and -s with FASTNORM_NORM_HEADS_ROPE_INVERSE:
 *
 *      o1 = fma(v1, c, -(v2 * s)),  o2 = fma(v2, c, v1 * s)       FASTNORM_ROPE_ONCE
 *      o1 = r(v1 * c) - r(v2 * s),  o2 = r(v2 * c) + r(v1 * s)    FASTNORM_ROPE_EVERY_STEP
 *
 *  r() rounds to T, and everything else is in single precision. The other columns of the row pass
 *  unchanged. The caller provides the tables of cosines and sines; the library computes neither
 *  sines nor frequencies.
 *
 *  **Tables.** cos and sin are [P, R] or [heads, P, R], each with its own strides. One buffer of
 *  [P, rope_dim] that holds the cosines first can therefore be passed as two views. The tables may
 *  also be [P, 2 * R], in which each frequency stands twice. Then c is entry j for NeoX and entry
 *  2j for INTERLEAVED, so that both ways of repeating the frequencies fit.
 *
 *  **Positions.** Token t uses row positions[t] of the tables, or row t if there are no positions.
 *  If positions is [axes, tokens], the axis depends on j (mrope). The sections mrope_0 to mrope_3
 *  add up to R, and choose the axis as follows:
 *
 *      contiguous     the first mrope_0 pairs have axis 0, the next mrope_1 have axis 1, and so on
 *      interleaved    a = j % 3; axis a if a >= 1 and j < 3 * mrope_a, else axis 0
 *                     (FASTNORM_NORM_HEADS_MROPE_INTERLEAVED; 3 axes)
 *
 *  **Cache.** Token t is written to slot k = slots[t], which is row k % page_size of page k /
 *  page_size. The strides of a cache may be anything, so that [pages, 2, page_size, heads, d] can
 *  be passed as two caches, and a page may hold the scales after the codes. If two tokens have the
 *  same slot, the slot holds either of them afterwards, or a mixture.
 *
 *  **Padding.** If there are slots, a token is padding if its slot is -1, or if it has no slot
 *  because slots is shorter than the number of tokens. This holds for all parts, including those
 *  without a cache. The positions of padding are ignored, so they may have any value. No output of
 *  padding is written: neither y, codes, scales and statistics nor the cache. With y in place, y
 *  keeps x, and padding does not contribute to amax. A CUDA graph for a fixed number of tokens can
 *  thus run with fewer tokens. There is one exception: in swizzled scales, the zeros of padded
 *  columns and rows are always written.
 *
 *  **Quantised caches.** A cache of f8_e4m3fn, f8_e5m2 or i8 holds codes. Their scales are
 *  dequantisation scales: either one input for the whole tensor, or an output for each block of 64
 *  or 128 columns, by the rules of norm.h for FASTNORM_QUANT_PER_TENSOR and PER_BLOCK. cache_quant
 *  chooses between the two. Values on their way to a cache are not clamped, and the codes of a
 *  cache have no amax.
 *
 *  **Tail of a cache.** Of a head of d columns, cache_tail takes the last e columns as elements of
 *  T, and the cache has codes of the first d - e columns. The norm's statistic is that of all d
 *  columns. fastnorm_mla_decode reads such rows as FASTNORM_MLA_CACHE_BYTES_584: for T = bf16 and d
 *  = 512 a page of P tokens has bytes at
 *
 *      576 * row                    448 codes of f8_e4m3fn    cache, with blocks of 64 columns
 *      576 * row + 448              64 bf16, after rope       cache_tail
 *      576 * P + 8 * row            7 scales of f8_e8m0fnu    cache_quant.scale, by scale_pow2
 *      576 * P + 8 * row + 7        nothing: not written
 *
 *  **Head weights.** A sparse attention's indexer adds up the scores of its query heads, each
 *  multiplied by a weight. The scale of a query's codes and the factor of the scores can be
 *  multiplied into that weight, so that the product of codes needs neither:
 *
 *      head_weights_out = (head_weights * scale) * head_weights_factor
 *
 *  scale is the dequantisation scale of the codes of this token and head, so quant must have one
 *  scale for each row: PER_TENSOR, PER_ROW, or PER_BLOCK with d <= block_size. Both products are
 *  rounded to f32.
 *
 *  **Statistics of several devices.** If heads are spread over devices and the statistic covers all
 *  of them, a first call on each device gives that device's part of the statistic in sumsq, and a
 *  second call takes the combined statistic from rstd_in (for LAYER also mean_in). RMS: add up the
 *  sums S of all devices; rstd is 1 / sqrt(S / N + eps) for N columns in all. LAYER: merge the
 *  means and the sums of squares by Chan's formula, because merely adding up the sums is wrong.
 *
 *  **Same bits.** The results of a row depend only on its own values, the weight, the bias, the
 *  entries of the tables and the options; with ACROSS_HEADS they also depend on the token's other
 *  heads. They do not depend on other parts, the number of tokens, strides, in-place use, which
 *  other outputs are asked for, the instruction set, the number of threads or the run. The CPU and
 *  the GPU add up in different orders, so they may differ in the last place.
 *
 *  **NaN and Inf** affect only the row that contains them; with ACROSS_HEADS they affect the token
 *  that contains them.
 *
 *  **Devices.** The CPU and all GPUs of this build serve every call. On CUDA a part has at most
 *  2^32 - 256 rows (tokens * heads).
 */
#ifndef FASTNORM_NORM_HEADS_H_
#define FASTNORM_NORM_HEADS_H_

#include "norm.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Bits of fastnorm_norm_heads_part.flags. */
typedef enum fastnorm_norm_heads_part_flags {
  FASTNORM_NORM_HEADS_NORM = 1, /**< Normalise each row. */
  FASTNORM_NORM_HEADS_ROPE = 2, /**< Rotate rope_dim columns of each row. */
  /** With ROPE: the two columns of a pair are neighbours (GPT-J). Default: they are R columns apart
   *  (NeoX, Llama). */
  FASTNORM_NORM_HEADS_ROPE_INTERLEAVED = 4,
  FASTNORM_NORM_HEADS_ROPE_INVERSE = 8,       /**< With ROPE: rotate backwards. */
  FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED = 16, /**< With ROPE: rotate v rounded to x's dtype. */
  FASTNORM_NORM_HEADS_ACROSS_HEADS = 32, /**< With NORM: one statistic for all heads of a token. */
  FASTNORM_NORM_HEADS_PART_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_norm_heads_part_flags;

/** Bits of fastnorm_norm_heads_args.flags. */
typedef enum fastnorm_norm_heads_flags {
  FASTNORM_NORM_HEADS_MROPE_INTERLEAVED = 8, /**< Axes alternate from pair to pair (Qwen3-VL). */
  /** Programmatic dependent launch is not used: the call starts when all earlier kernels have ended
   *  and lets no kernel start early. */
  FASTNORM_NORM_HEADS_NO_PDL = 512,
  FASTNORM_NORM_HEADS_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_norm_heads_flags;

/** Where rope rounds to x's dtype T while it is computed. If T is f32, rounding changes nothing,
 *  but EVERY_STEP still adds separate products instead of fusing one of them with the addition. */
typedef enum fastnorm_rope_rounding {
  FASTNORM_ROPE_ONCE = 0, /**< Only when the result is stored, as in FlashInfer, vLLM and SGLang. */
  FASTNORM_ROPE_EVERY_STEP = 1, /**< Also every product, as a 16-bit eager chain does. */
  FASTNORM_ROPE_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_rope_rounding;

/** One part. A zeroed struct with struct_size, x and one output set is valid: such a part copies x.
 *
 *  Shapes: x is [tokens, heads, d] with d from 1 to 8192 and at least one head, and all parts have
 *  the same number of tokens. T is x's dtype, which is f32, f16 or bf16 and is the same for all
 *  parts. Last dimensions must be contiguous; all other strides may be anything, for inputs also 0.
 *  Any alignment that the dtype allows is accepted. All tensors are on the context's device.
 *
 *  Outputs are y, quant.quantized, cache, sumsq, mean and rstd; a part must have at least one of
 *  them. head_weights_out is an output, too, but requires codes.
 *
 *  Aliasing: y may be the same view as the part's x. No other output may share an element with any
 *  tensor of the call, but outputs may be interleaved views of one buffer that share no element. */
typedef struct fastnorm_norm_heads_part {
  size_t struct_size;      /**< sizeof(fastnorm_norm_heads_part). */
  uint32_t flags;          /**< fastnorm_norm_heads_part_flags. */
  fastnorm_norm_kind kind; /**< NORM: RMS or LAYER; else 0. */
  float eps;           /**< NORM: added to the mean square or the variance; finite, >= 0; else 0. */
  float weight_offset; /**< Added to the weight in f32; 0 if weight is NULL. */
  fastnorm_rounding rounding;           /**< NORM: as in fastnorm_norm_args; else 0. */
  fastnorm_rope_rounding rope_rounding; /**< ROPE: where rope rounds, by default once; else 0. */
  /** ROPE: the first column that is rotated, or -1 to rotate the last rope_dim columns; else 0. */
  int32_t rope_offset;
  /** What each of head_weights is multiplied by, besides the scale; finite. 0 = 1, and 0 if
   *  head_weights is NULL. */
  float head_weights_factor;

  const fastnorm_tensor* x; /**< [tokens, heads, d] T. Required. */
  /** NORM: the weight, [d], [1, d] or [heads, d]; dtypes as in fastnorm_norm_args. NULL = 1. */
  const fastnorm_tensor* weight;
  /** NORM: the bias, [d], [1, d] or [heads, d]; dtypes as in fastnorm_norm_args. NULL = 0. */
  const fastnorm_tensor* bias;
  /** The result. [tokens, heads, d], T or f32. Output; may be x. NULL = not stored. */
  const fastnorm_tensor* y;
  /** LAYER: the mean of each row, f32 [tokens, heads]; with ACROSS_HEADS [tokens]. Output. NULL =
   *  not stored. */
  const fastnorm_tensor* mean;
  /** NORM: the rstd of each row; the shape and dtype are those of mean. Output. NULL = not
   *  stored. */
  const fastnorm_tensor* rstd;
  /** LAYER, together with rstd_in: the mean to use in place of the row's own; the shape is that of
   *  mean. Input. */
  const fastnorm_tensor* mean_in;
  /** NORM: the rstd to use in place of the row's own; the shape is that of rstd, and eps is
   *  ignored. Input. NULL = computed. */
  const fastnorm_tensor* rstd_in;
  /** NORM without rstd_in: this device's part of a statistic of several devices, f32. RMS: the sum
   *  of squares, of rstd's shape. LAYER: the mean and the sum of (x - mean)^2, in a last extent of
   *  2. Output. NULL = not stored. */
  const fastnorm_tensor* sumsq;

  /** How and where codes of the result are stored; they may be asked for together with y. With
   *  PER_ROW there is a scale for each token and head, so the scale tensor has tokens * heads rows.
   *  NULL = no codes. */
  const fastnorm_quant* quant;
  /** The cache that the result is written to. [pages, page_size, heads, d] of T, or of codes of
   *  f8_e4m3fn, f8_e5m2 or i8. If cache_tail has the last e columns, it is [pages, page_size,
   *  heads, d - e] of codes. Output. NULL = no cache. */
  const fastnorm_tensor* cache;
  /** How the codes of the cache are made; requires cache. The scheme is PER_TENSOR with scale [1]
   *  f32, an input, or PER_BLOCK with scale [pages, page_size, heads, blocks of cache's columns],
   *  an output of any strides, which is f32 or, with scale_pow2, also f8_e8m0fnu or u8. The codes
   *  go to cache, so quantized, global_scale, clamp_scale and amax are NULL, and clamp,
   *  scale_layout and y_rotated are 0. If quant is given, too, and both structs make codes that
   *  depend on source and division, then source and division of cache_quant must equal those of
   *  quant. NULL = the cache has the dtype T. */
  const fastnorm_quant* cache_quant;

  /** A weight of each token and head: [tokens, heads], f32, f16 or bf16, of any strides. Input.
   *  Requires head_weights_out. NULL = none. */
  const fastnorm_tensor* head_weights;
  /** The weights times the scales of quant and head_weights_factor: [tokens, heads] f32, of any
   *  strides. Output. Requires head_weights, and codes with one scale for each row. NULL = none. */
  const fastnorm_tensor* head_weights_out;

  /** The last columns of the result as elements: [pages, page_size, heads, e] T, with e from 1 to
   *  d - 1 and the other extents of cache. Requires a cache of codes. Output. NULL = cache has all
   *  columns. */
  const fastnorm_tensor* cache_tail;
} fastnorm_norm_heads_part;

/** What all parts of a call share. */
typedef struct fastnorm_norm_heads_args {
  size_t struct_size; /**< sizeof(fastnorm_norm_heads_args). */
  /** Passed to the context's parallel_for, as in fastnorm_norm_args. */
  void* parallel_user;
  uint32_t flags; /**< fastnorm_norm_heads_flags. */
  /** Number of columns that ROPE rotates, an even number; 0 if no part has ROPE. */
  int32_t rope_dim;
  /** Number of pairs that use axis 0 of positions. All four numbers are 0 if positions has one
   *  row. */
  int32_t mrope_0;
  int32_t mrope_1; /**< Number of pairs that use axis 1 of positions. */
  int32_t mrope_2; /**< Number of pairs that use axis 2 of positions. */
  int32_t mrope_3; /**< Number of pairs that use axis 3 of positions. */

  /** The table of cosines: [P, R], [P, 2 * R], or one of these for each head; f32 or T. */
  const fastnorm_tensor* cos;
  const fastnorm_tensor* sin; /**< The table of sines, of the shape and dtype of cos. */
  /** Which row of the tables each token uses: [tokens], or [axes, tokens] with 1 to 4 axes; i32 or
   *  i64. The positions of padding are ignored. NULL = token t uses row t. */
  const fastnorm_tensor* positions;
  /** Which slot of the caches each token is written to: [at most tokens] i32 or i64; -1 = the token
   *  is padding. Required if a part has a cache, otherwise NULL. */
  const fastnorm_tensor* slots;
} fastnorm_norm_heads_args;

/** Say what a call would do: its workspace, kernel, launches and bytes. The query does not touch
 *  the memory of the tensors.
 *  @param context the device
 *  @param args    the arguments of the call
 *  @param parts   [count] pointers, the parts of the call
 *  @param count   0 to 8
 *  @param info    struct_size as input; receives the rest
 *  @return as fastnorm_norm_heads; FASTNORM_ERROR_ARGUMENT also if info is null or its struct_size
 *  is too small
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_heads_query(fastnorm_context* context,
                                                       const fastnorm_norm_heads_args* args,
                                                       const fastnorm_norm_heads_part* const* parts,
                                                       int32_t count, fastnorm_info* info);

/** Load the kernels of a call, so that the call neither allocates nor synchronises. Preparing is
 *  optional, because the first call that uses a kernel loads it, too.
 *  @param context the device
 *  @param args    the arguments of the call
 *  @param parts   [count] pointers, the parts of the call
 *  @param count   0 to 8
 *  @return as fastnorm_norm_heads
 *  @since 0.2 */
FASTNORM_API fastnorm_status
fastnorm_norm_heads_prepare(fastnorm_context* context, const fastnorm_norm_heads_args* args,
                            const fastnorm_norm_heads_part* const* parts, int32_t count);

/** Normalise, rotate and store the heads of all parts; the formula is at the top of this header.
 *
 *  CPU: the work is done when the call returns, and tokens are spread over the context's threads.
 *  Slots must be from -1 to pages * page_size - 1, and positions from 0 to P - 1 unless the token
 *  is padding. The CPU checks both before it writes anything. On a GPU they are not checked, and a
 *  wrong one is undefined behaviour that may write outside of the cache. The call allocates nothing
 *  and does not synchronise. A call without parts or without tokens is a success that does nothing.
 *
 *  @param context         the device
 *  @param args            what all parts share; read only during the call
 *  @param parts           [count] pointers, read only during the call
 *  @param count           number of parts, 0 to 8
 *  @param workspace       fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned; NULL
 *  if 0 bytes are needed
 *  @param workspace_bytes size of workspace
 *  @param stream          CUDA: the cudaStream_t; NULL = the legacy default stream. CPU: NULL
 *  @return FASTNORM_OK
 *          FASTNORM_ERROR_ARGUMENT: context, args, a part, its x or a required tensor is null; a
 *          part has no output; there is ROPE without tables, or a cache without slots; a field is
 *          set that the flags do not use; a scalar is out of range; a struct_size is too small; a
 *          tensor has no shape, or it has elements but no data; the workspace is too small; there
 *          is a stream on the CPU; CPU: a position or slot is out of range; parallel_for did not
 *          cover the tokens exactly once, in which case some of them may have been written
 *          FASTNORM_ERROR_SHAPE: ranks or extents do not fit; rope_dim is odd or extends past the
 *          row; the mrope sections do not add up to R
 *          FASTNORM_ERROR_DTYPE: a tensor has a dtype that its role does not allow
 *          FASTNORM_ERROR_LAYOUT: a last dimension is not contiguous, an address is misaligned, or
 *          tensors overlap
 *          FASTNORM_ERROR_UNSUPPORTED: d is above 8192; CUDA: there are too many rows; a field or a
 *          flag of a later version is set, or bytes after the known fields are not zero
 *          FASTNORM_ERROR_DEVICE: a tensor is on another device
 *          FASTNORM_ERROR_INTERNAL: a defect of this library, or an exception out of parallel_for
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
