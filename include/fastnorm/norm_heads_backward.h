/** @file norm_heads_backward.h
 *  Gradients of fastnorm_norm_heads: of the rotary embedding (rope) and of the norm of query and
 *  key heads, for all parts of a call.
 *
 *  Names are those of norm_heads.h and norm_backward.h. A call has up to 8 parts over the same
 *  tokens. A part takes dy, the gradient of the forward's y, [tokens, heads, d]. For each row of d
 *  columns:
 *
 *      dv = rope of dy, turned back        FASTNORM_NORM_HEADS_ROPE; else dv = dy
 *      dx = norm's gradient of dv          FASTNORM_NORM_HEADS_NORM; else dx = dv
 *
 *  and for each column, over all rows that share an element of weight or bias:
 *
 *      dweight = sum(dv * xhat)                     (+ the old dweight)
 *      dbias   = sum(dv)                            (+ the old dbias)
 *
 *  **Rope** turns a pair by (c, -s) where the forward turns it by (c, s):
 *
 *      dv1 = fma(dy1, c, dy2 * s),  dv2 = fma(dy2, c, -(dy1 * s))
 *
 *  With FASTNORM_NORM_HEADS_ROPE_INVERSE it is the other way round. dv stays in single precision:
 *  nothing is rounded between rope and norm. The forward's roundings there count as the identity,
 *  so FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED changes nothing and rope_rounding is no field here.
 *
 *  **Norm.** The formulas, the arithmetic and the row order are those of norm_backward.h, with dv
 *  for dy: a part with NORM and without ROPE gives the bits of fastnorm_norm_backward of the same
 *  rows. With FASTNORM_NORM_HEADS_ACROSS_HEADS the sums c1 and c2 are over all heads of a token, as
 *  if they were one row of n = heads * d columns.
 *
 *  **Row order.** Rows of dweight and dbias are rows of d columns. A weight or bias that the heads
 *  share has M = tokens * heads of them, in the order of (token, head). One with a row for each
 *  head has M = tokens. Q and nb follow from M and d as norm_backward.h says.
 *
 *  **Same bits.** A row's dx depends on its own values, columns, table entries and options only;
 *  with ACROSS_HEADS on the token's other heads, too. dweight and dbias depend on the sequence of
 *  rows besides. Neither depends on other parts, strides, in-place use, other outputs, the
 *  instruction set, threads or the run. There are no atomic additions.
 *
 *  **Devices.** CPU and CUDA: all. On CUDA all parts are one launch, with one before it for what
 *  a token's heads share, and one behind it for dweight and dbias. At most 2147483647 rows
 *  (token, head) a part there.
 */
#ifndef FASTNORM_NORM_HEADS_BACKWARD_H_
#define FASTNORM_NORM_HEADS_BACKWARD_H_

#include "norm_heads.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Bits of fastnorm_norm_heads_backward_part.flags, beside fastnorm_norm_heads_part_flags. */
typedef enum fastnorm_norm_heads_backward_flags {
  /** dweight = old dweight + sum: one addition in f32 after the sum, rounded once. Without the flag
      the old dweight is not read. */
  FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT = 64,
  FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS = 128, /**< The same for dbias. */
  FASTNORM_NORM_HEADS_BACKWARD_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_norm_heads_backward_flags;

/** One part. `{0}` plus struct_size, dy and dx is valid: it copies, as a value head's gradient
 *  needs it.
 *
 *  Shapes: dy is [tokens, heads, d], with d from 1 to 8192, heads at least 1, and the tokens of
 *  every part alike. T is the dtype of x, or of dx where there is no x: f32, f16 or bf16, and alike
 *  for all parts. Last dimensions are contiguous; that of dy may have stride 0 instead. All other
 *  strides are free, and inputs may have strides of 0: dx is often a view of a packed gradient of
 *  QKV. Any alignment that the dtype allows. All tensors are on the context's device.
 *
 *  Outputs are dx, dweight and dbias; a part has at least one. dx alone serves frozen weights,
 *  dweight alone a frozen layer below.
 *
 *  Aliasing: dx may be the part's dy or x, as the same view. No other output may share an element
 *  with any tensor of the call; interleaved views of one buffer that share no element are
 *  allowed. */
typedef struct fastnorm_norm_heads_backward_part {
  size_t struct_size; /**< sizeof(fastnorm_norm_heads_backward_part). */
  /** The forward's fastnorm_norm_heads_part_flags, and fastnorm_norm_heads_backward_flags. */
  uint32_t flags;
  fastnorm_norm_kind kind;    /**< NORM: the forward's; else 0. */
  float eps;                  /**< NORM: the forward's. Used where rstd is NULL; else 0. */
  float weight_offset;        /**< The forward's. 0 where weight is NULL. */
  fastnorm_rounding rounding; /**< NORM: the forward's; else 0. */
  int32_t rope_offset;        /**< ROPE: the forward's; else 0. */

  const fastnorm_tensor* dy; /**< [tokens, heads, d] T or f32: the gradient of y. Required. */
  /** NORM: [tokens, heads, d] T, the forward's x. Required with NORM, else NULL. */
  const fastnorm_tensor* x;
  /** NORM: [d] or [heads, d], [1, d] too; f32, f16 or bf16: the forward's. NULL = 1. */
  const fastnorm_tensor* weight;
  /** LAYER: the forward's, f32 [tokens, heads]; ACROSS_HEADS: [tokens]. NULL where rstd is. */
  const fastnorm_tensor* mean;
  /** NORM: as mean, for both kinds. NULL = computed again from x, with the forward's bits. */
  const fastnorm_tensor* rstd;

  const fastnorm_tensor*
      dx; /**< [tokens, heads, d] T. Output; may be dy or x. NULL = not stored. */
  /** NORM with a weight: its shape; f32 or its dtype. Output; also input with ACCUMULATE_DWEIGHT.
      NULL = not wanted. */
  const fastnorm_tensor* dweight;
  /** NORM: the shape of the forward's bias, [d] or [heads, d]; f32, f16 or bf16. Output; also input
      with ACCUMULATE_DBIAS. NULL = not wanted. */
  const fastnorm_tensor* dbias;
} fastnorm_norm_heads_backward_part;

/** Say what a call would do: workspace, kernel, launches, bytes. No memory of a tensor is touched.
 *
 *  The workspace holds partial sums of dweight and dbias, as that of fastnorm_norm_backward does,
 *  and with ACROSS_HEADS four floats for each token. It is 0 where neither is needed. CUDA: where
 *  fastnorm_norm_backward's kernels run, statistics that are computed again are there, too.
 *  @param context the device
 *  @param args    as for the call
 *  @param parts   [count] pointers, as for the call
 *  @param count   0 to 8
 *  @param info    struct_size in; receives the rest
 *  @return as fastnorm_norm_heads_backward; FASTNORM_ERROR_ARGUMENT also if info is null or its
 *  struct_size too small
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_heads_backward_query(
    fastnorm_context* context, const fastnorm_norm_heads_args* args,
    const fastnorm_norm_heads_backward_part* const* parts, int32_t count, fastnorm_info* info);

/** Load the kernels of a call, so that it neither allocates nor synchronises. Optional: the first
 *  call does the same.
 *  @param context the device
 *  @param args    as for the call
 *  @param parts   [count] pointers, as for the call
 *  @param count   0 to 8
 *  @return as fastnorm_norm_heads_backward
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_heads_backward_prepare(
    fastnorm_context* context, const fastnorm_norm_heads_args* args,
    const fastnorm_norm_heads_backward_part* const* parts, int32_t count);

/** Compute the gradients of all parts; the formulas are at the top of this header.
 *
 *  CPU: the work is done when the call returns; rows are spread over the context's threads.
 *  Positions are checked before anything is written: from 0 to P - 1. On other devices wrong ones
 *  are undefined. No allocation and no synchronisation. No parts is success and does nothing. No
 *  tokens is success: dweight and dbias become 0, or stay as they are with their ACCUMULATE flag.
 *
 *  @param context         the device
 *  @param args            the forward's: what all parts share; slots is not looked at. Read during
 *  the call only
 *  @param parts           [count] pointers, read during the call only
 *  @param count           number of parts, 0 to 8
 *  @param workspace       fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned,
 *  contents undefined, not to be used by anything else until the work has run; NULL where 0 bytes
 *  are needed
 *  @param workspace_bytes size of workspace
 *  @param stream          CUDA: the cudaStream_t; NULL = the legacy default stream. CPU: NULL
 *  @return FASTNORM_OK
 *          FASTNORM_ERROR_ARGUMENT: null context, args, part, dy or required tensor; a part without
 *          an output; ROPE without tables; a field that the flags have no use for; a scalar out of
 *          range; a struct_size that is too small; a tensor whose shape is null, or its data though
 *          it has elements; mean with RMS; one of mean and rstd alone with LAYER; dweight without
 *          weight; an ACCUMULATE flag without its output; too small a workspace; a stream on the
 *          CPU; CPU: a position out of range; a parallel_for that did not cover the work exactly
 *          once, when some may have been written
 *          FASTNORM_ERROR_SHAPE: ranks or extents that do not fit; rope_dim odd or past the row;
 *          mrope sections whose sum is not R
 *          FASTNORM_ERROR_DTYPE: a dtype that the tensor's role does not allow
 *          FASTNORM_ERROR_LAYOUT: last dimension not contiguous, misaligned address, overlap
 *          FASTNORM_ERROR_UNSUPPORTED: d above 8192; a field of a later version, an unknown flag,
 *          an unknown tail that is not zero; CUDA: what the device has no kernels for
 *          FASTNORM_ERROR_DEVICE: a tensor on another device; the CUDA runtime's error
 *          FASTNORM_ERROR_OUT_OF_MEMORY: the CUDA runtime had no memory, as for loading the kernel
 *          FASTNORM_ERROR_INTERNAL: a defect of this library; an exception out of parallel_for
 *  @since 0.2 */
FASTNORM_API fastnorm_status
fastnorm_norm_heads_backward(fastnorm_context* context, const fastnorm_norm_heads_args* args,
                             const fastnorm_norm_heads_backward_part* const* parts, int32_t count,
                             void* workspace, size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_NORM_HEADS_BACKWARD_H_ */
