/** @file norm_backward.h
 *  Gradients of RMSNorm and LayerNorm, with the residual addition before them.
 *
 *  Names are those of norm.h. x is what the forward normalised: its x, or its stored residual_out
 *  where it added a residual. dy is the gradient of y; dresidual_in is the gradient that reaches
 *  residual_out from elsewhere. For each row, with g = weight + weight_offset (1 without a weight):
 *
 *      xhat = (x - mean) * rstd                     (RMS: x * rstd)
 *      e    = dy * g
 *      c1   = sum(e * xhat) / n
 *      c2   = sum(e) / n                            (LAYER only)
 *      dh   = (e - c2 - xhat * c1) * rstd + dresidual_in
 *      dx   = dh, rounded to dx's dtype
 *      dresidual = dh, rounded to its own dtype
 *
 *  and for each column, over all rows that share an element of weight or bias:
 *
 *      dweight = sum(dy * xhat)                     (+ the old dweight)
 *      dbias   = sum(dy)                            (+ the old dbias)
 *
 *  **Gate.** Where the forward had a gate, with a = act(gate) and act' the derivative:
 *
 *      after the norm:   v = dy * a takes the place of dy in the formulas above;
 *                        z = xhat * g + bias;  dgate = dy * z * act'(gate)
 *      before the norm:  u = x * a takes the place of x in the formulas above;
 *                        dx = dh * a;  dgate = dh * x * act'(gate)
 *
 *  z is rounded to T with FASTNORM_GATE_FROM_ROUNDED and FASTNORM_ROUND_EVERY_STEP. The latter also
 *  rounds a and u to T. The derivative is not rounded. With s = sigmoid(v) and c = sigmoid(-v), as
 *  docs/numerics.md writes them, it is:
 *
 *      sigmoid  s * c
 *      silu     s * fma(v, c, 1)      v is kept between -110 and 110
 *      tanh     4 * s * c             at 2 * v
 *
 *  **Groups.** With group_size d the call is that of x viewed [.., n / d, d], as the forward's is:
 *  a row of the formulas and of the row order is a group. A weight [.., n] is then [.., n / d, d].
 *
 *  **Branch.** Where the forward added its x, the branch, to a residual by stages of norm.h: x
 *  here is the stored residual_out, and u is what the forward added. k is act(residual_gate) *
 *  alpha, and
 *
 *      r  = dh * sum_scale
 *      du = r * k
 *
 *  dx and dresidual are r, rounded: the gradient of the forward's residual. And
 *
 *      dresidual_gate = act'(residual_gate) * alpha * sum(r * u)    (+ the old dresidual_gate)
 *      dbranch        = du, rounded                                 (branch_norm 0)
 *
 *  With branch_norm, xhat1, g1, rstd1 are those of the branch, and e1 = du * g1:
 *
 *      dbranch        = (e1 - c2 - xhat1 * c1) * rstd1, rounded     (c1 and c2 as above, of e1)
 *      dbranch_weight = sum(du * xhat1)                             (+ the old dbranch_weight)
 *      dbranch_bias   = sum(du)                                     (+ the old dbranch_bias)
 *
 *  These three have the bits of a fastnorm_norm_backward of the branch alone, whose dy is du in f32
 *  and whose options are the branch's. u is xhat1 * g1 + branch_bias. It is rounded to T with
 *  branch_rounded and with FASTNORM_ROUND_EVERY_STEP as branch_rounding. Without branch_norm it is
 *  the branch. Without sum_scale r is dh, without residual_gate k is alpha. act' * alpha is one
 *  product, which multiplies the sum. A table of the gate is added to it by the caller.
 *
 *  **Modulation** (adaLN) needs no field where the forward had no weight. weight is its
 *  modulation_scale, with a table added, and weight_offset is 1. Then dweight is dscale, and dbias
 *  is dshift.
 *
 *  dh is the gradient of the forward's x and of its residual alike: dx serves for both where their
 *  dtypes agree. weight_offset enters through g alone. xhat in dweight is rounded to T where the
 *  forward rounds it (FASTNORM_ROUND_NORMALIZED, FASTNORM_ROUND_EVERY_STEP), and g is rounded to T
 *  with FASTNORM_ROUND_EVERY_STEP. All other roundings count as the identity. ONCE_RW is as ONCE.
 *
 *  **Arithmetic** is IEEE single precision, each operation rounded to nearest even, subnormals
 *  kept. Products enter a sum by a fused multiply-add, and so do e - xhat * c1 and the addition of
 *  dresidual_in. NaN and Inf in a row reach that row's dx and, of dweight and dbias, the columns
 *  that the formula gives.
 *
 *  **Statistics.** mean and rstd are the forward's outputs. Without them they are computed again,
 *  with the bits of a forward without a residual on this x. A forward with FASTNORM_RESIDUAL_EXACT
 *  has them from the unrounded sum: there the saved ones are better.
 *
 *  **Row order of all sums over rows.** M rows share an element; i = 0 .. M - 1 numbers them in
 *  row-major order. N is n rounded up to a power of two, and
 *
 *      Q  = 4096 / N, from 1 to 64                  lanes of a block
 *      nb = min(2^20 / N from 16 to 128, ceil(M / Q))   blocks
 *
 *  Row i belongs to lane i % Q of block (i / Q) % nb. A lane adds its rows in increasing order.
 *  Then the lanes of a block are folded, and then the blocks: a fold of m values pads them with
 *  zeros to a power of two. It adds the upper half to the lower until one is left.
 *
 *  **Same bits.** A row's dx and dbranch depend on the row's own values, weights, n, dtypes and
 *  options only. Sums over rows depend on the sequence of rows besides. Neither depends on strides,
 *  alignment, in-place use or other outputs; nor on the kernel, the GPU model, the instruction set,
 *  the number of threads, the stream or the run. CPU and GPU sum along a row in different orders:
 *  dx may differ in the last place, and with it what follows from r. **dweight and dbias have the
 *  same bits on CPU and GPU** where inputs, mean and rstd have. There are no atomic additions.
 */
#ifndef FASTNORM_NORM_BACKWARD_H_
#define FASTNORM_NORM_BACKWARD_H_

#include "context.h"
#include "norm.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Bits of fastnorm_norm_backward_args.flags. Those of programmatic dependent launch mean what
 *  those of fastnorm_norm_flags do, and have their numbers. */
typedef enum fastnorm_norm_backward_flags {
  FASTNORM_NORM_BACKWARD_PDL_WAIT = 1, /**< Start when the stream's previous kernel allows it; read
                                          and write nothing before that one has ended. */
  FASTNORM_NORM_BACKWARD_PDL_TRIGGER =
      2, /**< Let the stream's next kernel start early. It must wait
                                             itself before it uses any result. */
  FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT =
      8, /**< dweight = old dweight + sum: one addition in f32 after the sum, rounded once. Without
            the flag the old dweight is not read. */
  FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS = 16,           /**< The same for dbias. */
  FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT = 32,  /**< The same for dbranch_weight. */
  FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS = 64,    /**< The same for dbranch_bias. */
  FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE = 128, /**< The same for dresidual_gate. */
  FASTNORM_NORM_BACKWARD_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_norm_backward_flags;

/** One backward pass. `{0}` plus struct_size, dy, x and dx is a valid backward pass of an RMSNorm
 *  without weight and with eps 0. The statistics are computed again.
 *
 *  Shapes: x is [..., n], rank 1 to 8, n from 1 to 2^32. All tensors are on the context's device.
 *  Leading strides are free, 0 too for inputs. The last dimension is contiguous; that of dy may
 *  have stride 0 instead, as the gradient of y.sum() has. Any alignment that the dtype allows.
 *  Leading dimensions are joined as in fastnorm_norm; at most 3 may be left.
 *
 *  Dtypes: T is the dtype of the forward's x. It is dx's dtype. Without dx it is dy's, if that has
 *  16 bits, else x's. x here may have another dtype, as a stored residual_out may. Where branch or
 *  dbranch is given, T is its dtype, and dx has any of the three.
 *
 *  weight, and with it dweight, broadcasts against x as in fastnorm_norm: [n], [1, n], [heads, n],
 *  [batch, 1, n]. dbias likewise, with a shape of its own. So do branch_weight, dbranch_bias and
 *  residual_gate. On a GPU each varies along one leading dimension at most (after joining), also
 *  where its gradient is not wanted. Anything else there is FASTNORM_ERROR_UNSUPPORTED.
 *
 *  Outputs: at least one of dx, dweight, dbias, dgate, dbranch, dbranch_weight, dbranch_bias and
 *  dresidual_gate. Those that are NULL cost nothing: dx alone serves frozen weights and needs no
 *  workspace.
 *
 *  Aliasing: dx, dresidual and dgate may each be dy, x, gate or dresidual_in, as the same view
 *  (same address, dtype, shape and strides); dbranch may be branch. Two tensors of which one is
 *  written may also be interleaved views of one buffer that share no element. Any other overlap is
 *  FASTNORM_ERROR_LAYOUT. */
typedef struct fastnorm_norm_backward_args {
  size_t struct_size;         /**< sizeof(fastnorm_norm_backward_args). */
  fastnorm_norm_kind kind;    /**< The forward's. */
  float eps;                  /**< The forward's. Finite, >= 0. Used where rstd is NULL. */
  float weight_offset;        /**< The forward's. Finite; 0 where weight is NULL. */
  fastnorm_rounding rounding; /**< The forward's. ONCE_RW has the gradient of ONCE. */
  uint32_t flags;             /**< fastnorm_norm_backward_flags. */
  int32_t reserved;           /**< Must be 0. */

  const fastnorm_tensor* dy; /**< x's shape, T or f32: gradient of y. Required. */
  const fastnorm_tensor* x;  /**< [..., n] f32, f16 or bf16: the forward's x, or its stored
                                residual_out. Required. */
  const fastnorm_tensor*
      weight; /**< [.., n] f32, f16 or bf16, broadcasts against x: the forward's. NULL = 1. */
  const fastnorm_tensor* mean; /**< x.shape[:-1], or that with a last 1; f32: the forward's. LAYER
                                  only; NULL where rstd is. */
  const fastnorm_tensor* rstd; /**< As mean, for both kinds. NULL = computed again from x. */
  const fastnorm_tensor* dresidual_in; /**< x's shape; f32, f16 or bf16: gradient that reaches
                                          residual_out from elsewhere. NULL = none. */

  const fastnorm_tensor* dx; /**< x's shape, T. Output; may be dy, x or dresidual_in. NULL = not
                                stored. */
  const fastnorm_tensor*
      dresidual; /**< x's shape; f32, f16 or bf16, and not dx's dtype: the same gradient for a
                    residual of another dtype. Output; may be dy, x or dresidual_in. Needs dx. */
  const fastnorm_tensor*
      dweight;                  /**< weight's shape; f32 or weight's dtype. Output; also input with
                                     ACCUMULATE_DWEIGHT. NULL = not wanted. */
  const fastnorm_tensor* dbias; /**< The shape of the forward's bias; f32, f16 or bf16. Output; also
                                     input with ACCUMULATE_DBIAS. NULL = not wanted. */

  const fastnorm_tensor* gate; /**< x's shape, T or f32: the forward's. NULL = it had none; then its
                                  three fields are 0. Before the norm it goes without dresidual_in
                                  and dresidual: x is then the forward's x. */
  const fastnorm_tensor* bias; /**< As weight: the forward's. Read for dgate alone. NULL = 0. */
  const fastnorm_tensor*
      dgate; /**< x's shape, T or f32. Output; may be dy, x, gate or dresidual_in.
                                   Needs gate. NULL = not wanted. */
  fastnorm_activation gate_act;         /**< The forward's. */
  fastnorm_gate_position gate_position; /**< The forward's. */
  fastnorm_gate_source gate_source;     /**< The forward's. */
  int32_t stage_reserved;               /**< Must be 0. */
  int64_t group_size; /**< The forward's: a divisor of n; 0 = n. Shapes of mean, rstd, weight and
                         bias are the forward's. dbias is [.., n] or [.., group_size]. */

  /** x's shape, T: the forward's x, where it added a residual. Needed for dresidual_gate, and with
   *  branch_norm. This and all fields below go without gate and group_size. */
  const fastnorm_tensor* branch;
  const fastnorm_tensor* branch_weight; /**< As weight: the forward's. NULL = 1. */
  const fastnorm_tensor*
      branch_bias; /**< As weight: the forward's. Read for dresidual_gate alone. NULL = 0. */
  const fastnorm_tensor* branch_mean; /**< As mean, of the branch. LAYER only; NULL where
                                         branch_rstd is. */
  const fastnorm_tensor*
      branch_rstd; /**< As rstd, of the branch. NULL = computed again from branch. */
  const fastnorm_tensor*
      residual_gate; /**< [.., n] T or f32, broadcasts against x as weight does: the forward's, its
                        table added. NULL = 1. */
  const fastnorm_tensor* sum_scale; /**< [1] f32: the forward's. NULL = 1. */
  const fastnorm_tensor*
      dbranch; /**< x's shape, T: gradient of the branch. Output; may be branch. NULL = not
                  wanted. */
  const fastnorm_tensor*
      dbranch_weight; /**< branch_weight's shape; f32 or branch_weight's dtype. Output; also input
                         with ACCUMULATE_DBRANCH_WEIGHT. NULL = not wanted. */
  const fastnorm_tensor*
      dbranch_bias; /**< The shape of the forward's branch_bias; f32, f16 or bf16. Output; also
                       input with ACCUMULATE_DBRANCH_BIAS. NULL = not wanted. */
  const fastnorm_tensor*
      dresidual_gate; /**< residual_gate's shape; f32 or residual_gate's dtype. Output; also input
                         with ACCUMULATE_DRESIDUAL_GATE. NULL = not wanted. */
  fastnorm_norm_kind branch_kind;    /**< The forward's. */
  float branch_eps;                  /**< The forward's. Used where branch_rstd is NULL. */
  float branch_weight_offset;        /**< The forward's. Finite; 0 where branch_weight is NULL. */
  fastnorm_rounding branch_rounding; /**< The forward's. ONCE_RW is an error. */
  int32_t branch_norm;               /**< The forward's. 0: the other fields of the branch's norm
                                         are 0. */
  int32_t branch_rounded;            /**< The forward's. */
  fastnorm_activation residual_gate_act; /**< The forward's. */
  float alpha;                           /**< The forward's. Finite; 0 = 1. */
} fastnorm_norm_backward_args;

/** Say what a call would do: workspace, kernel, launches, bytes. The memory of the tensors is not
 *  touched; the addresses count, since overlap and alignment follow from them.
 *
 *  The workspace holds partial sums of dweight and dbias: nb rows of n floats for each, and for
 *  each row of weights, on the CPU too. It is 0 where neither is wanted. The sums of the branch
 *  have theirs. On a GPU a few floats of each row are added, where statistics are computed again or
 *  the branch has sums.
 *  @param context the device
 *  @param args    as for the call
 *  @param info    struct_size in; receives the rest
 *  @return as fastnorm_norm_backward; FASTNORM_ERROR_ARGUMENT also if info is null or its
 *  struct_size too small
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_backward_query(fastnorm_context* context,
                                                          const fastnorm_norm_backward_args* args,
                                                          fastnorm_info* info);

/** Load the kernels of a call. After it, calls that use the same kernels neither allocate nor
 *  synchronise, and can be captured in a CUDA graph. Optional: the first call does the same.
 *  @param context the device
 *  @param args    as for the call
 *  @return as fastnorm_norm_backward
 *  @since 0.2 */
FASTNORM_API fastnorm_status
fastnorm_norm_backward_prepare(fastnorm_context* context, const fastnorm_norm_backward_args* args);

/** Compute the gradients; the formulas are at the top of this header.
 *
 *  CUDA: one or more kernels are queued on `stream` and the call returns. It may be captured in a
 *  CUDA graph, targets the context's device whatever device is current, and leaves the current
 *  device as it was. CPU: the work is done when the call returns. Once prepared, or after a first
 *  call: no allocation, no synchronisation, no lock.
 *
 *  Zero rows are success: dweight and dbias become 0, or stay as they are with their ACCUMULATE
 *  flag.
 *
 *  @param context         the device
 *  @param args            what to compute; read during the call only
 *  @param workspace       fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned,
 *  contents undefined, not to be used by anything else until the work has run; NULL where 0 bytes
 *  are needed
 *  @param workspace_bytes size of workspace
 *  @param stream          CUDA: the cudaStream_t; NULL = the legacy default stream. CPU: NULL
 *  @return FASTNORM_OK
 *          FASTNORM_ERROR_ARGUMENT: null context, args, dy or x, no output; a tensor whose shape is
 *          null, or its data though it has elements; a struct_size that is too small; an enum, eps
 *          or offset out of range; mean with RMS; one of mean and rstd alone with LAYER; dweight
 *          without weight; dresidual without dx; dgate or a field of the gate without gate; a field
 *          of the branch's norm without branch_norm; no branch where it is needed; an ACCUMULATE
 *          flag without its output; too small a workspace; a stream on the CPU; a parallel_for that
 *          did not cover the work exactly once, when some may have been written
 *          FASTNORM_ERROR_SHAPE: ranks or extents that do not fit; n < 1 or n > 2^32
 *          FASTNORM_ERROR_DTYPE: a dtype that the tensor's role does not allow; dresidual of dx's
 *          dtype
 *          FASTNORM_ERROR_LAYOUT: last dimension not contiguous, misaligned address, overlap
 *          FASTNORM_ERROR_UNSUPPORTED: a field or flag of a later version, an unknown tail that is
 *          not zero; leading dimensions that do not join; a field of the branch with gate or
 *          group_size; on a GPU, parameters that vary along more dimensions than its kernels allow
 *          FASTNORM_ERROR_DEVICE: a tensor on another device; the CUDA runtime's error
 *          FASTNORM_ERROR_OUT_OF_MEMORY: the CUDA runtime had no memory, as for loading the kernel
 *          FASTNORM_ERROR_INTERNAL: a defect of this library; an exception out of parallel_for
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_backward(fastnorm_context* context,
                                                    const fastnorm_norm_backward_args* args,
                                                    void* workspace, size_t workspace_bytes,
                                                    void* stream);

/** As fastnorm_norm_backward_query, for fastnorm_norm_backward_many: the sum of its parts; `kernel`
 *  is that of the first part that launches something.
 *  @param context the device
 *  @param args    [count] pointers, as for the call
 *  @param count   0 to 8
 *  @param info    struct_size in; receives the rest
 *  @return as fastnorm_norm_backward_query
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_backward_many_query(
    fastnorm_context* context, const fastnorm_norm_backward_args* const* args, int32_t count,
    fastnorm_info* info);

/** As fastnorm_norm_backward_prepare, for fastnorm_norm_backward_many.
 *  @param context the device
 *  @param args    [count] pointers, as for the call
 *  @param count   0 to 8
 *  @return as fastnorm_norm_backward_prepare
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_backward_many_prepare(
    fastnorm_context* context, const fastnorm_norm_backward_args* const* args, int32_t count);

/** Run several backward passes, with the results of one fastnorm_norm_backward each, in order: such
 *  as those of the query heads and the key heads of one fused QKV gradient. All are checked,
 *  against each other too, before anything is launched. No part may touch what another one writes.
 *  @param context         the device
 *  @param args            [count] pointers
 *  @param count           0 to 8
 *  @param workspace       as fastnorm_norm_backward
 *  @param workspace_bytes size of workspace
 *  @param stream          as fastnorm_norm_backward
 *  @return as fastnorm_norm_backward; the text names the part, as args[i]. CUDA: where the runtime
 *  refuses a launch, those of the parts before it are queued
 *  @since 0.2 */
FASTNORM_API fastnorm_status fastnorm_norm_backward_many(
    fastnorm_context* context, const fastnorm_norm_backward_args* const* args, int32_t count,
    void* workspace, size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_NORM_BACKWARD_H_ */
