/** @file norm_backward.h
 *  Gradients of RMSNorm and LayerNorm, including the residual addition before them.
 *
 *  The names are those of norm.h. "The forward" is the fastnorm_norm whose gradients are computed.
 *  x is the row that the forward normalised: its x or, if it added a residual, its stored
 *  residual_out. dy is the gradient of y, and dresidual_in is the gradient that reaches
 *  residual_out from elsewhere. For each row, with g = weight + weight_offset (g is 1 without a
 *  weight):
 *
 *      xhat = (x - mean) * rstd                     (RMS: x * rstd)
 *      e    = dy * g
 *      c1   = sum(e * xhat) / n
 *      c2   = sum(e) / n                            (LAYER only)
 *      dh   = (e - c2 - xhat * c1) * rstd + dresidual_in
 *      dx   = dh, rounded to dx's dtype
 *      dresidual = dh, rounded to its own dtype
 *
 *  For each column, summed over all rows that share an element of the weight or the bias:
 *
 *      dweight = sum(dy * xhat)                     (+ the old dweight)
 *      dbias   = sum(dy)                            (+ the old dbias)
 *
 *  dh is the gradient of both the forward's x and its residual, so dx serves for both if their
 *  dtypes agree (with a branch, dx is the gradient of the residual alone: see "Branch" below).
 *  weight_offset enters only through g.
 *
 *  **Roundings.** xhat in dweight is rounded to T if the forward rounds it
 *  (FASTNORM_ROUND_NORMALIZED, FASTNORM_ROUND_EVERY_STEP), and g is rounded to T with
 *  FASTNORM_ROUND_EVERY_STEP. All other roundings of the forward count as the identity, as
 *  straight-through gradients do. FASTNORM_ROUND_ONCE_RW has the gradients of FASTNORM_ROUND_ONCE.
 *
 *  **Gate.** If the forward had a gate, let a = act(gate), and let act' be the derivative of act:
 *
 *      after the norm:   dy * a takes the place of dy in the formulas above;
 *                        z = xhat * g + bias;  dgate = dy * z * act'(gate)
 *      before the norm:  u = x * a takes the place of x in the formulas above;
 *                        dx = dh * a;  dgate = dh * x * act'(gate)
 *
 *  z is rounded to T with FASTNORM_GATE_FROM_ROUNDED and with FASTNORM_ROUND_EVERY_STEP, and the
 *  latter also rounds a and u to T. The derivative is not rounded. For an element p of the gate,
 *  let s = sigmoid(p) and c = sigmoid(-p), computed as docs/numerics.md says. The derivative at p
 *  is:
 *
 *      sigmoid  s * c
 *      silu     s * fma(p, c, 1)      with p clamped to [-110, 110]
 *      tanh     4 * s * c             with s and c at 2 * p in place of p
 *
 *  **Groups.** With group_size d the call computes the gradients of x viewed as [.., n / d, d], as
 *  the forward does, so a row of the formulas and of the row order is a group. A weight [.., n] is
 *  then [.., n / d, d].
 *
 *  **Branch.** The forward's x may have been a branch, from which its stages (norm.h) made a row u
 *  before they added a residual: the forward computed s = (u * k + residual) * sum_scale with k =
 *  act(residual_gate) * alpha. In such a call x is the stored residual_out, and branch is the
 *  forward's x. Then
 *
 *      r  = dh * sum_scale
 *      du = r * k
 *
 *  dx and dresidual are r, rounded, which is the gradient of the forward's residual, and dbranch is
 *  the gradient of the forward's x. The other gradients are as follows, where the sum is over all
 *  elements of x that share an element of residual_gate:
 *
 *      dresidual_gate = act'(residual_gate) * alpha * sum(r * u)    (+ the old dresidual_gate)
 *      dbranch        = du, rounded                                 (without branch_norm)
 *
 *  With branch_norm, let xhat1, g1 and rstd1 be the values of the branch's norm, and e1 = du * g1:
 *
 *      dbranch        = (e1 - c2 - xhat1 * c1) * rstd1, rounded     (c1 and c2 as above, of e1)
 *      dbranch_weight = sum(du * xhat1)                             (+ the old dbranch_weight)
 *      dbranch_bias   = sum(du)                                     (+ the old dbranch_bias)
 *
 *  The last three have the same bits as a separate fastnorm_norm_backward of the branch whose dy is
 *  du in f32 and whose options are those of the branch. With branch_norm, u is xhat1 * g1 +
 *  branch_bias, rounded to T with branch_rounded and if branch_rounding is
 *  FASTNORM_ROUND_EVERY_STEP; without branch_norm, u is the branch. Without sum_scale r is dh,
 *  without residual_gate k is alpha, and without FASTNORM_NORM_BACKWARD_ALPHA alpha is 1. The
 *  product act' * alpha is computed first and then multiplied by the sum. If the forward's
 *  residual_gate had a table, the caller adds it to the residual_gate that is passed here.
 *
 *  **Modulation** (adaLN) needs no fields of its own if the forward had no weight: pass its
 *  modulation_scale, with the table added, as the weight, and set weight_offset to 1. Then dweight
 *  is the gradient of the scale, and dbias is the gradient of the shift.
 *
 *  **Arithmetic.** Every operation is IEEE single precision, rounded to nearest even, with
 *  subnormals kept. Products are added to a sum by a fused multiply-add; e - xhat * c1 and the
 *  addition of dresidual_in are fused, too. NaN and Inf in a row reach the dx of that row and those
 *  columns of dweight and dbias that the formulas give.
 *
 *  **Statistics.** mean and rstd are outputs of the forward. If they are not given, they are
 *  computed again from x, with the bits of a forward without a residual on this x. A forward with
 *  FASTNORM_RESIDUAL_EXACT takes its statistics from the unrounded sum, so its stored statistics
 *  are more accurate than those that are computed again from residual_out.
 *
 *  **Row order of all sums over rows.** M rows share an element, and i = 0 .. M - 1 numbers them in
 *  row-major order. N is n rounded up to a power of two, and
 *
 *      Q  = clamp(8192 / N, 1, 64)                            lanes of a block
 *      nb = min(clamp(2^20 / N, 16, 128), ceil(M / Q))        blocks
 *
 *  Row i belongs to lane i % Q of block (i / Q) % nb. Each lane adds its rows in increasing order.
 *  Then the lanes of each block are folded into one sum, and after that the blocks are. To fold m
 *  values means to pad them with zeros to a power of two, and then to add the upper half to the
 *  lower half until one value is left.
 *
 *  **Same bits.** The dx and dbranch of a row depend only on the row's own values, the weights, n,
 *  the dtypes and the options. Sums over rows also depend on the sequence of rows. Nothing depends
 *  on strides, alignment, in-place use or which other outputs are asked for, nor on the kernel, the
 *  GPU model, the instruction set, the number of threads, the stream or the run. The CPU and the
 *  GPU add up a row in different orders, so dx may differ between them in the last place. With a
 *  branch, r may then differ, too, and so may all gradients that are computed from r. **dweight and
 *  dbias have the same bits on the CPU and the GPU** if the inputs, mean and rstd have the same
 *  bits on both. No kernel uses atomic additions.
 */
#ifndef FASTNORM_NORM_BACKWARD_H_
#define FASTNORM_NORM_BACKWARD_H_

#include "context.h"
#include "norm.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Bits of fastnorm_norm_backward_args.flags. PDL_WAIT, PDL_TRIGGER and NO_PDL have the meanings,
 *  the numbers and the defaults of those in fastnorm_norm_flags. */
typedef enum fastnorm_norm_backward_flags {
  /** Start when the previous kernel of the stream allows it, but read and write nothing before that
   *  kernel has ended. */
  FASTNORM_NORM_BACKWARD_PDL_WAIT = 1,
  /** Let the next kernel of the stream start early. The next kernel must wait itself before it uses
   *  anything that any earlier kernel of the stream wrote. */
  FASTNORM_NORM_BACKWARD_PDL_TRIGGER = 2,
  /** Add the sum to the old dweight: one addition in f32 after the sum, rounded once. Without the
   *  flag the old dweight is not read. */
  FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT = 8,
  FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS = 16,           /**< The same for dbias. */
  FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT = 32,  /**< The same for dbranch_weight. */
  FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS = 64,    /**< The same for dbranch_bias. */
  FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE = 128, /**< The same for dresidual_gate. */
  /** The forward multiplied the branch by alpha, by its flag FASTNORM_NORM_ALPHA. */
  FASTNORM_NORM_BACKWARD_ALPHA = 256,
  /** Programmatic dependent launch is not used unless other bits ask for it. The kernels of one
   *  call follow each other by it in any case. */
  FASTNORM_NORM_BACKWARD_NO_PDL = 512,
  FASTNORM_NORM_BACKWARD_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_norm_backward_flags;

/** One backward pass. A zeroed struct with struct_size, dy, x and dx set is a valid backward pass
 *  of an RMSNorm without a weight and with eps 0, whose statistics are computed again.
 *
 *  Shapes: x is [..., n] with a rank from 1 to 8 and n from 1 to 2^32. All tensors are on the
 *  context's device. The strides of leading dimensions may be anything, for inputs also 0. The last
 *  dimension must be contiguous, except that the last stride of dy may be 0, as in the gradient of
 *  y.sum(). Any alignment that the dtype allows is accepted. Leading dimensions are joined as in
 *  fastnorm_norm, and at most 3 may remain.
 *
 *  Dtypes: T is the dtype of the forward's x. The call takes it from branch or dbranch, if one of
 *  them is given, and dx may then be f32, f16 or bf16. Otherwise T is the dtype of dx, if there is
 *  a dx. Otherwise it is the dtype of dy if that has 16 bits, and else the dtype of x. x itself may
 *  have another dtype than T, as a stored residual_out may.
 *
 *  weight, and dweight with it, broadcasts against x as in fastnorm_norm: [n], [1, n], [heads, n]
 *  or [batch, 1, n]. dbias broadcasts in the same way but may have another shape, and so may
 *  branch_weight, dbranch_bias and residual_gate.
 *
 *  Outputs: the call must have at least one of dx, dweight, dbias, dgate, dbranch, dbranch_weight,
 *  dbranch_bias and dresidual_gate. Outputs that are NULL cost nothing. For example, a layer with
 *  frozen weights asks for dx only, which needs no workspace.
 *
 *  Aliasing: dx, dresidual and dgate may each be the same view as dy, x, gate or dresidual_in, and
 *  dbranch may be the same view as branch; a view is the same if address, dtype, shape and strides
 *  are. Two tensors of which one is written may also be interleaved views of one buffer that share
 *  no element. Any other overlap returns FASTNORM_ERROR_LAYOUT. */
typedef struct fastnorm_norm_backward_args {
  size_t struct_size; /**< sizeof(fastnorm_norm_backward_args). */
  /** Passed to the context's parallel_for in place of the context's parallel_user; NULL = that of
   *  the context. It has no effect if the context has no parallel_for. */
  void* parallel_user;
  fastnorm_norm_kind kind; /**< The kind of the forward. */
  float eps;               /**< The eps of the forward. Finite, >= 0. Used only if rstd is NULL. */
  float weight_offset;     /**< The weight_offset of the forward. Finite; 0 if weight is NULL. */
  /** The rounding of the forward. FASTNORM_ROUND_ONCE_RW has the gradients of
   *  FASTNORM_ROUND_ONCE. */
  fastnorm_rounding rounding;
  uint32_t flags;   /**< fastnorm_norm_backward_flags. */
  int32_t reserved; /**< Must be 0. */

  const fastnorm_tensor* dy; /**< The gradient of y. x's shape, T or f32. Required. */
  /** The x of the forward or, if it added a residual, its stored residual_out. [..., n] f32, f16 or
   *  bf16. Required. */
  const fastnorm_tensor* x;
  /** The weight of the forward. [.., n] f32, f16 or bf16, broadcasts against x. NULL = 1. */
  const fastnorm_tensor* weight;
  /** The mean of each row, as the forward returned it. x.shape[:-1], or that with a last extent of
   *  1; f32. LAYER only. NULL if rstd is NULL. */
  const fastnorm_tensor* mean;
  /** The rstd of each row, as the forward returned it, for both kinds; the shape and dtype are
   *  those of mean. NULL = computed again from x. */
  const fastnorm_tensor* rstd;
  /** The gradient that reaches residual_out from elsewhere. x's shape; f32, f16 or bf16. NULL =
   *  there is none. */
  const fastnorm_tensor* dresidual_in;

  /** The gradient of the forward's x or, with a branch, of the forward's residual (dbranch is then
   *  that of the forward's x). x's shape, T; with a branch f32, f16 or bf16. Output; may be dy, x
   *  or dresidual_in. NULL = not stored. */
  const fastnorm_tensor* dx;
  /** The gradient of the forward's residual, for a residual whose dtype is not that of x. x's
   *  shape; f32, f16 or bf16, and not the dtype of dx. Output; may be dy, x or dresidual_in.
   *  Requires dx. NULL = not stored. */
  const fastnorm_tensor* dresidual;
  /** The gradient of weight. weight's shape; f32 or weight's dtype. Output; also an input with
   *  ACCUMULATE_DWEIGHT. NULL = not computed. */
  const fastnorm_tensor* dweight;
  /** The gradient of the forward's bias. The shape of that bias; f32, f16 or bf16. Output; also an
   *  input with ACCUMULATE_DBIAS. NULL = not computed. */
  const fastnorm_tensor* dbias;

  /** The gate of the forward. x's shape, T or f32. NULL = the forward had none; then gate_act,
   *  gate_position and gate_source must be 0. With a gate before the norm, x is the forward's x,
   *  and dresidual_in and dresidual are NULL. */
  const fastnorm_tensor* gate;
  /** The bias of the forward, with the rules of weight. It is read only to compute dgate. NULL =
   *  0. */
  const fastnorm_tensor* bias;
  /** The gradient of gate. x's shape, T or f32. Output; may be dy, x, gate or dresidual_in.
   *  Requires gate. NULL = not computed. */
  const fastnorm_tensor* dgate;
  fastnorm_activation gate_act;         /**< The gate_act of the forward. */
  fastnorm_gate_position gate_position; /**< The gate_position of the forward. */
  fastnorm_gate_source gate_source;     /**< The gate_source of the forward. */
  int32_t stage_reserved;               /**< Must be 0. */
  /** The group_size of the forward, a divisor of n; 0 = n. mean, rstd, weight and bias have the
   *  shapes that they have in the forward. dbias is [.., n] or [.., group_size]. */
  int64_t group_size;

  /** The x of a forward that added a residual, which is called the branch; the field x is then the
   *  stored residual_out. x's shape, T. Required for dresidual_gate and with branch_norm. This
   *  field and all fields below exclude gate and group_size. */
  const fastnorm_tensor* branch;
  /** The branch_weight of the forward, with the rules of weight. NULL = 1. */
  const fastnorm_tensor* branch_weight;
  /** The branch_bias of the forward, with the rules of weight. It is read only to compute
   *  dresidual_gate. NULL = 0. */
  const fastnorm_tensor* branch_bias;
  /** The mean of each row of the branch; the shape and dtype are those of mean. LAYER only. NULL if
   *  branch_rstd is NULL. */
  const fastnorm_tensor* branch_mean;
  /** The rstd of each row of the branch; the shape and dtype are those of rstd. NULL = computed
   *  again from branch. */
  const fastnorm_tensor* branch_rstd;
  /** The residual_gate of the forward, with its table added. [.., n] T or f32, broadcasts against x
   *  as weight does. NULL = 1. */
  const fastnorm_tensor* residual_gate;
  const fastnorm_tensor* sum_scale; /**< The sum_scale of the forward. [1] f32. NULL = 1. */
  /** The gradient of the branch. x's shape, T. Output; may be branch. NULL = not computed. */
  const fastnorm_tensor* dbranch;
  /** The gradient of branch_weight. branch_weight's shape; f32 or branch_weight's dtype. Output;
   *  also an input with ACCUMULATE_DBRANCH_WEIGHT. NULL = not computed. */
  const fastnorm_tensor* dbranch_weight;
  /** The gradient of the forward's branch_bias. The shape of that branch_bias; f32, f16 or bf16.
   *  Output; also an input with ACCUMULATE_DBRANCH_BIAS. NULL = not computed. */
  const fastnorm_tensor* dbranch_bias;
  /** The gradient of residual_gate. residual_gate's shape; f32 or residual_gate's dtype. Output;
   *  also an input with ACCUMULATE_DRESIDUAL_GATE. NULL = not computed. */
  const fastnorm_tensor* dresidual_gate;
  fastnorm_norm_kind branch_kind; /**< The branch_kind of the forward. */
  float branch_eps; /**< The branch_eps of the forward. Used only if branch_rstd is NULL. */
  /** The branch_weight_offset of the forward. Finite; 0 if branch_weight is NULL. */
  float branch_weight_offset;
  /** The branch_rounding of the forward. FASTNORM_ROUND_ONCE_RW is an error. */
  fastnorm_rounding branch_rounding;
  /** The branch_norm of the forward. 0: the other fields of the branch's norm are 0. */
  int32_t branch_norm;
  int32_t branch_rounded;                /**< The branch_rounded of the forward. */
  fastnorm_activation residual_gate_act; /**< The residual_gate_act of the forward. */
  /** With FASTNORM_NORM_BACKWARD_ALPHA: the alpha of the forward, finite; else 0. */
  float alpha;
} fastnorm_norm_backward_args;

/** Say what a call would do: its workspace, kernel, launches and bytes. The query does not touch
 *  the memory of the tensors, but their addresses count, since overlap and alignment follow from
 *  them.
 *
 *  The workspace holds partial sums of dweight and dbias, on the CPU as on a GPU. Each of the two
 *  takes nb rows of n floats for each row of its weight or bias, or nothing if it is not asked for.
 *  The sums dbranch_weight, dbranch_bias and dresidual_gate take additional room. On a GPU the
 *  workspace also holds a few floats for each row in two cases: if the branch has sums, or if a
 *  call with sums or with a branch computes statistics again.
 *  @param context the device
 *  @param args    the arguments of the call
 *  @param info    struct_size as input; receives the rest
 *  @return as fastnorm_norm_backward; FASTNORM_ERROR_ARGUMENT also if info is null or its
 *  struct_size is too small
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_backward_query(fastnorm_context* context,
                                                          const fastnorm_norm_backward_args* args,
                                                          fastnorm_info* info);

/** Load the kernels of a call. Afterwards, calls that use the same kernels neither allocate nor
 *  synchronise, and can be captured in a CUDA graph. Preparing is optional, because the first call
 *  that uses a kernel loads it, too.
 *  @param context the device
 *  @param args    the arguments of the call
 *  @return as fastnorm_norm_backward
 *  @since 0.2 */
FASTNORM_API fastnorm_status
fastnorm_norm_backward_prepare(fastnorm_context* context, const fastnorm_norm_backward_args* args);

/** Compute the gradients; the formulas are at the top of this header.
 *
 *  CUDA: the call queues one or more kernels on `stream` and returns. It can be captured in a CUDA
 *  graph. It uses the context's device, whichever device is current, and leaves the current device
 *  as it was. CPU: the work is done when the call returns. Once its kernels are loaded, a call
 *  allocates nothing, does not synchronise and takes no lock.
 *
 *  Zero rows are a success: dweight and dbias become 0 or, with their ACCUMULATE flags, stay as
 *  they are.
 *
 *  @param context         the device
 *  @param args            what to compute; read only during the call
 *  @param workspace       fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned.
 *  Their contents may be anything, and nothing else may use them until the work has run. NULL if 0
 *  bytes are needed
 *  @param workspace_bytes size of workspace
 *  @param stream          CUDA: the cudaStream_t; NULL = the legacy default stream. CPU: NULL
 *  @return FASTNORM_OK
 *          FASTNORM_ERROR_ARGUMENT: context, args, dy or x is null, or there is no output; a tensor
 *          has no shape, or it has elements but no data; a struct_size is too small; an enum, eps
 *          or an offset is out of range; there is a mean with RMS, or only one of mean and rstd
 *          with LAYER; there is dweight without weight, dresidual without dx, dgate or a field of
 *          the gate without gate, a field of the branch's norm without branch_norm, or an
 *          ACCUMULATE flag without its output; branch is missing where it is required; the
 *          workspace is too small; there is a stream on the CPU; parallel_for did not cover the
 *          work exactly once, in which case some outputs may have been written
 *          FASTNORM_ERROR_SHAPE: ranks or extents do not fit; n < 1 or n > 2^32
 *          FASTNORM_ERROR_DTYPE: a tensor has a dtype that its role does not allow; dresidual has
 *          the dtype of dx
 *          FASTNORM_ERROR_LAYOUT: a last dimension is not contiguous, an address is misaligned, or
 *          tensors overlap
 *          FASTNORM_ERROR_UNSUPPORTED: a field or flag of a later version is set, or bytes after
 *          the known fields are not zero; leading dimensions cannot be joined; a field of the
 *          branch is set together with gate or group_size; on a GPU, there are more than 2^31 - 1
 *          rows
 *          FASTNORM_ERROR_DEVICE: a tensor is on another device; the CUDA runtime reported an error
 *          FASTNORM_ERROR_OUT_OF_MEMORY: the CUDA runtime had no memory, for example to load the
 *          kernel
 *          FASTNORM_ERROR_INTERNAL: a defect of this library, or an exception out of parallel_for
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_backward(fastnorm_context* context,
                                                    const fastnorm_norm_backward_args* args,
                                                    void* workspace, size_t workspace_bytes,
                                                    void* stream);

/** The query for fastnorm_norm_backward_many. Its figures are the sums over all parts, and `kernel`
 *  is that of the first part that launches something.
 *  @param context the device
 *  @param args    [count] pointers, the arguments of the call
 *  @param count   0 to 8
 *  @param info    struct_size as input; receives the rest
 *  @return as fastnorm_norm_backward_query
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_backward_many_query(
    fastnorm_context* context, const fastnorm_norm_backward_args* const* args, int32_t count,
    fastnorm_info* info);

/** Load what a fastnorm_norm_backward_many needs, as fastnorm_norm_backward_prepare does for
 *  fastnorm_norm_backward.
 *  @param context the device
 *  @param args    [count] pointers, the arguments of the call
 *  @param count   0 to 8
 *  @return as fastnorm_norm_backward_prepare
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_backward_many_prepare(
    fastnorm_context* context, const fastnorm_norm_backward_args* const* args, int32_t count);

/** Run several backward passes in order, with the results that one fastnorm_norm_backward for each
 *  would give. This serves, for example, the query heads and the key heads of a fused QKV gradient.
 *  All parts are checked before anything is launched, also against each other: no part may read or
 *  write what another part writes.
 *  @param context         the device
 *  @param args            [count] pointers
 *  @param count           0 to 8
 *  @param workspace       as fastnorm_norm_backward
 *  @param workspace_bytes size of workspace
 *  @param stream          as fastnorm_norm_backward
 *  @return as fastnorm_norm_backward; the error text names the part as args[i]. CUDA: if the
 *  runtime refuses a launch, the launches of earlier parts have already been queued
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_backward_many(
    fastnorm_context* context, const fastnorm_norm_backward_args* const* args, int32_t count,
    void* workspace, size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_NORM_BACKWARD_H_ */
