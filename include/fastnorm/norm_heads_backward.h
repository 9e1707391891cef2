/** @file norm_heads_backward.h
 *  Gradients of fastnorm_norm_heads: of the rotary embedding (rope) and of the norm of query and
 *  key heads, for all parts of a call.
 *
 *  The names are those of norm_heads.h and norm_backward.h. "The forward" is the
 *  fastnorm_norm_heads whose gradients are computed. A call has up to 8 parts over the same tokens.
 *  A part takes dy, the gradient of the forward's y, of shape [tokens, heads, d]. For each row of d
 *  columns:
 *
 *      dv = rope of dy, rotated back       FASTNORM_NORM_HEADS_ROPE; else dv = dy
 *      dx = norm's gradient of dv          FASTNORM_NORM_HEADS_NORM; else dx = dv
 *
 *  For each column, summed over all rows that share an element of the weight or the bias:
 *
 *      dweight = sum(dv * xhat)                     (+ the old dweight)
 *      dbias   = sum(dv)                            (+ the old dbias)
 *
 *  **Rope** rotates a pair by (c, -s) if the forward rotated it by (c, s):
 *
 *      dv1 = fma(dy1, c, dy2 * s),  dv2 = fma(dy2, c, -(dy1 * s))
 *
 *  With FASTNORM_NORM_HEADS_ROPE_INVERSE it is the other way round. dv stays in single precision,
 *  so nothing is rounded between rope and the norm. The roundings that the forward makes there
 *  count as the identity, so FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED changes nothing here, and there
 *  is no field rope_rounding.
 *
 *  **Norm.** The formulas, the arithmetic and the row order are those of norm_backward.h, with dv
 *  in place of dy. A part with NORM and without ROPE gives the bits of fastnorm_norm_backward of
 *  the same rows. With FASTNORM_NORM_HEADS_ACROSS_HEADS the sums c1 and c2 are taken over all heads
 *  of a token, as if these were one row of n = heads * d columns.
 *
 *  **Row order.** The rows that dweight and dbias are summed over are rows of d columns, and M is
 *  the number of rows that share an element. If all heads share a weight or a bias, M is tokens *
 *  heads, and the rows are in the order of (token, head). If each head has its own row of it, M is
 *  tokens. The number of lanes Q and the number of blocks nb follow from M and d by the formulas of
 *  norm_backward.h.
 *
 *  **Same bits.** The dx of a row depends only on its own values, its weights, the entries of the
 *  tables and the options; with ACROSS_HEADS it also depends on the token's other heads. dweight
 *  and dbias also depend on the sequence of rows. Nothing depends on other parts, strides, in-place
 *  use, which other outputs are asked for, the instruction set, the number of threads or the run.
 *  No kernel uses atomic additions.
 *
 *  **Devices.** The CPU serves every call, and so do the GPUs of all architectures that this build
 *  has kernels for. On CUDA all parts take one launch. If the heads of a token share a statistic,
 *  another launch precedes it, unless the call runs on a kernel that keeps all heads of a token in
 *  registers. If there is dweight or dbias, another launch may follow. On CUDA a part has at most
 *  2147483647 rows (token, head).
 */
#ifndef FASTNORM_NORM_HEADS_BACKWARD_H_
#define FASTNORM_NORM_HEADS_BACKWARD_H_

#include "norm_heads.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Bits of fastnorm_norm_heads_backward_part.flags, in addition to
 *  fastnorm_norm_heads_part_flags. */
typedef enum fastnorm_norm_heads_backward_flags {
  /** Add the sum to the old dweight: one addition in f32 after the sum, rounded once. Without the
   *  flag the old dweight is not read. */
  FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT = 64,
  FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS = 128, /**< The same for dbias. */
  FASTNORM_NORM_HEADS_BACKWARD_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_norm_heads_backward_flags;

/** One part. A zeroed struct with struct_size, dy and dx set is valid: such a part copies dy to dx,
 *  as the gradient of a value head needs it.
 *
 *  Shapes: dy is [tokens, heads, d] with d from 1 to 8192 and at least one head, and all parts have
 *  the same number of tokens. T is the dtype of x, or that of dx if there is no x. It is f32, f16
 *  or bf16 and is the same for all parts. Last dimensions must be contiguous, except that the last
 *  stride of dy may be 0. All other strides may be anything, because dx is often a view of a packed
 *  gradient of QKV; a stride of 0 is allowed for inputs only. Any alignment that the dtype allows
 *  is accepted. All tensors are on the context's device.
 *
 *  Outputs are dx, dweight and dbias; a part must have at least one of them. A layer with frozen
 *  weights asks for dx only, and a layer above frozen layers asks for dweight only.
 *
 *  Aliasing: dx may be the same view as the part's dy or x. No other output may share an element
 *  with any tensor of the call, but outputs may be interleaved views of one buffer that share no
 *  element. */
typedef struct fastnorm_norm_heads_backward_part {
  size_t struct_size; /**< sizeof(fastnorm_norm_heads_backward_part). */
  /** The fastnorm_norm_heads_part_flags of the forward, and fastnorm_norm_heads_backward_flags. */
  uint32_t flags;
  fastnorm_norm_kind kind; /**< NORM: the kind of the forward; else 0. */
  float eps;               /**< NORM: the eps of the forward, used only if rstd is NULL; else 0. */
  float weight_offset;     /**< The weight_offset of the forward; 0 if weight is NULL. */
  fastnorm_rounding rounding; /**< NORM: the rounding of the forward; else 0. */
  int32_t rope_offset;        /**< ROPE: the rope_offset of the forward; else 0. */

  /** The gradient of y. [tokens, heads, d] T or f32. Required. */
  const fastnorm_tensor* dy;
  /** NORM: the x of the forward, [tokens, heads, d] T. Required with NORM, otherwise NULL. */
  const fastnorm_tensor* x;
  /** NORM: the weight of the forward, [d], [1, d] or [heads, d]; f32, f16 or bf16. NULL = 1. */
  const fastnorm_tensor* weight;
  /** LAYER: the mean of each row, as the forward returned it, f32 [tokens, heads]; with
   *  ACROSS_HEADS [tokens]. NULL if rstd is NULL. */
  const fastnorm_tensor* mean;
  /** NORM: the rstd of each row, as the forward returned it, for both kinds; the shape and dtype
   *  are those of mean. NULL = computed again from x, with the bits of the forward. */
  const fastnorm_tensor* rstd;

  /** The gradient of x. [tokens, heads, d] T. Output; may be dy or x. NULL = not stored. */
  const fastnorm_tensor* dx;
  /** NORM with a weight: the gradient of weight. weight's shape; f32 or weight's dtype. Output;
   *  also an input with ACCUMULATE_DWEIGHT. NULL = not computed. */
  const fastnorm_tensor* dweight;
  /** NORM: the gradient of the forward's bias. The shape of that bias, [d] or [heads, d]; f32, f16
   *  or bf16. Output; also an input with ACCUMULATE_DBIAS. NULL = not computed. */
  const fastnorm_tensor* dbias;
} fastnorm_norm_heads_backward_part;

/** Say what a call would do: its workspace, kernel, launches and bytes. The query does not touch
 *  the memory of the tensors.
 *
 *  The workspace holds partial sums of dweight and dbias, as that of fastnorm_norm_backward does,
 *  and with ACROSS_HEADS four floats for each token. If neither is needed, it is 0 bytes. CUDA: if
 *  the kernels of fastnorm_norm_backward run, the workspace also holds statistics that are computed
 *  again.
 *  @param context the device
 *  @param args    the arguments of the call
 *  @param parts   [count] pointers, the parts of the call
 *  @param count   0 to 8
 *  @param info    struct_size as input; receives the rest
 *  @return as fastnorm_norm_heads_backward; FASTNORM_ERROR_ARGUMENT also if info is null or its
 *  struct_size is too small
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_heads_backward_query(
    fastnorm_context* context, const fastnorm_norm_heads_args* args,
    const fastnorm_norm_heads_backward_part* const* parts, int32_t count, fastnorm_info* info);

/** Load the kernels of a call, so that the call neither allocates nor synchronises. Preparing is
 *  optional, because the first call that uses a kernel loads it, too.
 *  @param context the device
 *  @param args    the arguments of the call
 *  @param parts   [count] pointers, the parts of the call
 *  @param count   0 to 8
 *  @return as fastnorm_norm_heads_backward
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_heads_backward_prepare(
    fastnorm_context* context, const fastnorm_norm_heads_args* args,
    const fastnorm_norm_heads_backward_part* const* parts, int32_t count);

/** Compute the gradients of all parts; the formulas are at the top of this header.
 *
 *  CPU: the work is done when the call returns, and rows are spread over the context's threads.
 *  Positions must be from 0 to P - 1. The CPU checks this before it writes anything; on a GPU it is
 *  not checked, and a wrong position is undefined behaviour. The call allocates nothing and does
 *  not synchronise. A call without parts is a success that does nothing. A call without tokens is a
 *  success, too: dweight and dbias become 0 or, with their ACCUMULATE flags, stay as they are.
 *
 *  @param context         the device
 *  @param args            the arguments of the forward, which all parts share; slots is ignored.
 *  Read only during the call
 *  @param parts           [count] pointers, read only during the call
 *  @param count           number of parts, 0 to 8
 *  @param workspace       fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned.
 *  Their contents may be anything, and nothing else may use them until the work has run. NULL if 0
 *  bytes are needed
 *  @param workspace_bytes size of workspace
 *  @param stream          CUDA: the cudaStream_t; NULL = the legacy default stream. CPU: NULL
 *  @return FASTNORM_OK
 *          FASTNORM_ERROR_ARGUMENT: context, args, a part, its dy or a required tensor is null; a
 *          part has no output; there is ROPE without tables; a field is set that the flags do not
 *          use; a scalar is out of range; a struct_size is too small; a tensor has no shape, or it
 *          has elements but no data; there is a mean with RMS, or only one of mean and rstd with
 *          LAYER; there is dweight without weight, or an ACCUMULATE flag without its output; the
 *          workspace is too small; there is a stream on the CPU; CPU: a position is out of range;
 *          parallel_for did not cover the work exactly once, in which case some outputs may have
 *          been written
 *          FASTNORM_ERROR_SHAPE: ranks or extents do not fit; rope_dim is odd or extends past the
 *          row; the mrope sections do not add up to R
 *          FASTNORM_ERROR_DTYPE: a tensor has a dtype that its role does not allow
 *          FASTNORM_ERROR_LAYOUT: a last dimension is not contiguous, an address is misaligned, or
 *          tensors overlap
 *          FASTNORM_ERROR_UNSUPPORTED: d is above 8192; a field or a flag of a later version is
 *          set, or bytes after the known fields are not zero; CUDA: the device has no kernels for
 *          the call
 *          FASTNORM_ERROR_DEVICE: a tensor is on another device; the CUDA runtime reported an error
 *          FASTNORM_ERROR_OUT_OF_MEMORY: the CUDA runtime had no memory, for example to load the
 *          kernel
 *          FASTNORM_ERROR_INTERNAL: a defect of this library, or an exception out of parallel_for
 *  @since 0.2 */
FASTNORM_API fastnorm_status
fastnorm_norm_heads_backward(fastnorm_context* context, const fastnorm_norm_heads_args* args,
                             const fastnorm_norm_heads_backward_part* const* parts, int32_t count,
                             void* workspace, size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_NORM_HEADS_BACKWARD_H_ */
