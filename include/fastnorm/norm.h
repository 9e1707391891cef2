/** @file norm.h
 *  RMSNorm and LayerNorm of rows, together with the residual addition before them.
 *
 *  A row is the last dimension of x and has n elements. For each row the call computes, in this
 *  order:
 *
 *      s            = x + residual                                 (x where there is no residual)
 *      residual_out = s, rounded to its dtype
 *      mean         = sum(a) / n                                   (LAYER only; with a correction,
 *                                                                   which is described below)
 *      rstd         = 1 / sqrt(sum((a - mean)^2) / n + eps)        (RMS: mean is not subtracted)
 *      t            = (b - mean) * rstd                            (RMS: b * rstd)
 *      y            = t * (weight + weight_offset) + bias, rounded to y's dtype
 *
 *  Here a is the row that the statistics are taken of, and b is the row that is normalised. Each of
 *  them is either s itself or s rounded to the residual's dtype, as fastnorm_residual_rounding
 *  says.
 *
 *  **Arithmetic.** Every operation is IEEE single precision, rounded to nearest even, with
 *  subnormals kept. The square root and the reciprocal are correctly rounded, and the division by n
 *  is a product with the rounded 1/n. Two operations are fused, which means that they round once: a
 *  square is added to the sum of squares, and the product with weight + weight_offset is added to
 *  the bias (except with FASTNORM_ROUND_EVERY_STEP). With FASTNORM_ROUND_ONCE_RW the weight is
 *  multiplied by rstd first, and the fused operation is
 *
 *      y            = (b - mean) * k + bias, rounded to y's dtype  (RMS: b * k)
 *      k            = rstd * (weight + weight_offset)              (rounded to f32)
 *
 *  **Mean and variance of LAYER** are computed as follows, where a0 is the first element of a:
 *
 *      m0       = a0 + sum(a - a0) / n
 *      d        = a - m0
 *      delta    = sum(d) / n
 *      mean     = m0 + delta
 *      variance = max(sum(d^2) / n - delta^2, 0)                   (one fused operation; NaN stays)
 *
 *  Because of the correction by delta, the error of the mean is only its own rounding and that of a
 *  sum of small numbers, however large the values of the row are. A row of equal values has exactly
 *  that value as its mean, so rstd is 1 / sqrt(eps) and y is the bias (with eps 0, rstd is Inf and
 *  y is NaN). FASTNORM_ROUND_EVERY_STEP makes no correction: its mean is sum(a) / n and its
 *  variance is sum((a - mean)^2) / n.
 *
 *  **Same bits.** The results of a row depend only on the row's values, the weight, the bias, n,
 *  the dtypes and the options. They do not depend on the number of rows or the row's position among
 *  them, nor on strides, alignment, in-place use or which other outputs are asked for. Neither do
 *  they depend on the kernel that runs, the GPU model, the CPU's instruction set, the number of
 *  threads, the stream or the run. The CPU and the GPU add up in different orders, so they may
 *  differ in the last place.
 *
 *  **Range.** The statistic is a plain sum of squares in single precision, and the row is not
 *  rescaled before it.
 *
 *  - If the sum overflows, rstd is 0, so t is 0 and y is the bias (0 without a bias). For example,
 *  a row of 512 values of 1e18 gives y = 0. This happens when |x| exceeds about 1.8e19 / sqrt(n).
 *  - LAYER: if a - a0 overflows, or the sum of the a - a0, or the sum of the d, then mean and y are
 *  NaN.
 *  - If the sum underflows to 0 and eps is 0, rstd is Inf. Then t is Inf, or NaN where x is 0. For
 *  example, 512 values of 1e-23 give y = Inf. Any of the usual values of eps prevents this.
 *
 *  Scale such rows by a power of two before the call. Rows of f16 reach neither limit unless
 *  FASTNORM_ROUND_EVERY_STEP is used: it rounds the squares to f16, which overflow from |x| = 256
 *  on.
 *
 *  **Stages** are optional steps around the norm. They can be combined, except where the comment of
 *  a field says otherwise:
 *
 *      u = x * act(gate)                      (FASTNORM_GATE_BEFORE_NORM; else u = x)
 *      u = norm(u)                            (branch_norm: its own kind, eps, weight and bias)
 *      u = u rounded to x's dtype             (branch_rounded)
 *      k = act(residual_gate + table) * alpha (without residual_gate, k is alpha; without
 *                                              FASTNORM_NORM_ALPHA, alpha is 1)
 *      s = u * k + residual                   (one fused operation; with neither residual_gate nor
 *                                              alpha, s is u + residual)
 *      s = s * sum_scale                      (s is the row that is normalised)
 *      z = z * (1 + scale) + shift            (modulation_scale, modulation_shift; one fused
 *                                              operation; z is y before its rounding)
 *      z = z * act(gate)                      (FASTNORM_GATE_AFTER_NORM)
 *      z = activation(z)
 *
 *  The last z is what is stored as y and what is quantised. The functions act and activation are
 *  identity, silu, sigmoid or tanh, computed without the hardware's approximate instructions.
 *  Except where an operation is marked as fused, each product above is rounded on its own. With
 *  FASTNORM_GATE_FROM_ROUNDED, z is rounded to x's dtype before the gate multiplies it. With
 *  FASTNORM_ROUND_EVERY_STEP, act(gate), both products with it and activation(z) are rounded to x's
 *  dtype.
 *
 *  **Branch.** The branch is what the stages make of x before the residual is added: the final u
 *  above. Its norm has the same arithmetic as the main norm, and its statistics are taken over all
 *  n columns. With branch_rounded, and without alpha, residual_gate and sum_scale, the call gives
 *  the bits of two separate calls: one that computes the branch from x, and one that adds the
 *  residual to it and normalises. With FASTNORM_SUM_EVERY_STEP the product u * k, the sum and the
 *  product with sum_scale are each rounded to x's dtype; residual_rounding then applies to the s
 *  that results.
 *
 *  **Modulation** (adaLN). residual_gate, modulation_scale and modulation_shift are called the
 *  modulators. They broadcast against x, and their last extent may also be 1. Each of them may have
 *  a table, which is a row that is added to it in f32. With a scale but no shift, z * (1 + scale)
 *  is one operation; with a shift but no scale, z + shift is. FASTNORM_MODULATION_EVERY_STEP and
 *  FASTNORM_ROUND_EVERY_STEP round these values to x's dtype: z before the modulation, the sums of
 *  scale and shift with their tables, 1 + scale, the product and the sum. FASTNORM_SUM_EVERY_STEP
 *  also rounds the sum of residual_gate and its table, act of that sum, and its product with alpha.
 *
 *  With modulation_index the modulators have rows of their own, [m, n] or [m, 1], and row r of x
 *  takes their row modulation_index[r]. An index below 0, or of m and above, is an error on the
 *  CPU; a GPU takes the nearest row instead.
 *
 *  **Groups.** With group_size d the columns of a row form n / d groups, and each group has its own
 *  statistics, as if x were viewed as [.., n / d, d]. If d < n, then mean, rstd, rstd_in, mean_in
 *  and sumsq have the shape x.shape[:-1] + [n / d], contiguous in its last dimension. The scales of
 *  quantised outputs take no notice of groups: a PER_ROW scale covers all n columns, and a block
 *  may lie in two groups.
 *
 *  **Statistics of several devices.** If the columns of a row are spread over several devices, a
 *  first call on each device gives that device's part of the statistic in sumsq. The caller
 *  combines these parts, and a second call takes the combined statistic from rstd_in (for LAYER
 *  also from mean_in). RMS: add up the sums S of all devices; rstd is 1 / sqrt(S / N + eps) for N
 *  columns in all. LAYER: merge the means and the sums of squares by Chan's formula, because merely
 *  adding up the sums is wrong.
 *
 *  **Quantised outputs** (fastnorm_quant) are made from z, which is the value of y before it is
 *  rounded, in this order:
 *
 *      z     = z rounded to x's dtype         (FASTNORM_QUANT_FROM_ROUNDED)
 *      z     = H * (signs * z)                (rotation; H is a Hadamard matrix, see below)
 *      z     = z rounded to x's dtype         (rotation and FASTNORM_QUANT_FROM_ROUNDED)
 *      z     = min(max(z, -clamp), clamp)     (clamp or clamp_scale > 0; NaN stays; y is never
 *                                              clamped)
 *      A     = max |z| over what shares a scale; NaN if any z is
 *      scale = what the scheme says, below; it dequantises: z is about code * scale (NVFP4:
 *              code * scale * global_scale)
 *      code  = z * (1 / scale), rounded to nearest even; values out of range saturate, and so does
 *              Inf, but see below for an Inf that sets an f32 scale
 *              z / scale                  (FASTNORM_QUANT_DIVIDE)
 *
 *  QMAX is 448 for f8_e4m3fn, 57344 for f8_e5m2, 127 for i8 and 6 for f4_e2m1fn. A NaN gives the
 *  code 0x7f for f8, 0 for i8 and 0x7 for f4. i8 saturates to -128 and 127. -0 keeps its sign in
 *  formats that have one.
 *
 *  | scheme     | columns of a scale | codes  | scale                                           |
 *  |------------|--------------------|--------|-------------------------------------------------|
 *  | PER_TENSOR | all                | f8, i8 | [1] f32, an input                               |
 *  | PER_ROW    | the row            | f8, i8 | f32, of x.shape[:-1], or of that with a last    |
 *  |            |                    |        | extent of 1: max(A, amax_floor) / QMAX          |
 *  | PER_BLOCK  | 64 or 128          | f8, i8 | x.shape[:-1] + [ceil(n / block)] f32: the same  |
 *  | MXFP8      | 32                 | f8     | .. + [ceil(n / 32)] e8m0: 2^E, the least E for  |
 *  |            |                    |        | which A <= QMAX * 2^E, from -127 to 127         |
 *  | NVFP4      | 16, n even         | f4     | .. + [ceil(n / 16)] e4m3: A / (6 * magnitude of |
 *  |            |                    |        | global_scale), rounded;                         |
 *  |            |                    |        | code = z / (scale * global_scale)               |
 *  | MXFP4      | 32, n even         | f4     | as MXFP8, with QMAX 6                           |
 *
 *  With scale_pow2, the scales of f8 codes of PER_ROW and PER_BLOCK are 2^E by the rule of MXFP8,
 *  applied to max(A, amax_floor). They are stored as f32 or, if the scale tensor is e8m0, as the
 *  byte E + 127. A tensor of one-byte scales may also have the dtype u8. A row of f4 codes takes n
 *  / 2 bytes, with element 2i in the low half of byte i. The tensor of f4 codes is either [.., n]
 *  of f4_e2m1fn, with even row strides, or [.., n/2] of f4_e2m1fn_x2 or u8.
 *
 *  The scales of NVFP4 are never negative; if global_scale is negative, the codes have the opposite
 *  sign.
 *
 *  If all z that share a scale are 0, their codes are 0. If one of them is NaN, the scale is NaN
 *  (0xff for e8m0) and all their codes are those of NaN. If one is Inf, an f32 scale is Inf, the
 *  codes of finite values are 0 and the code of the Inf is that of NaN. With scales of e4m3, and
 *  with scales that are powers of two, the Inf saturates instead.
 *
 *  **Rotation.** With rotation = B each block of B columns is first multiplied by rotation_signs,
 *  if they are given, and then by the Hadamard matrix of B rows in Sylvester's order, divided by
 *  the root of B. Element (i, j) of that matrix is -1 if an odd number of bits are set in both i
 *  and j, else 1. The product takes log2(B) steps, for h = 1, 2, 4 .. B / 2. Each takes all pairs
 *  of columns i and i + h of the block for which i / h, rounded down, is even:
 *
 *      (z[i], z[i + h]) = (z[i] + z[i + h], z[i] - z[i + h])
 *
 *  and at last each z is multiplied by 1 / sqrt(B), rounded to f32. All of these operations are
 *  single precision, so all kernels, instruction sets and devices give the same bits for the same
 *  z. A is taken of the rotated values, and so is amax. With y_rotated, y is the rotated z, rounded
 *  to y's dtype. A NaN makes its whole block NaN, and an Inf makes each value of its block Inf or
 *  NaN.
 *
 *  The formats are those of the OCP 8-bit Floating Point Specification 1.0 (f8), of the OCP
 *  Microscaling Formats Specification 1.0 (e8m0, MXFP8, MXFP4, except that scales round up here, so
 *  that no code saturates), and NVIDIA's NVFP4 as in Transformer Engine.
 */
#ifndef FASTNORM_NORM_H_
#define FASTNORM_NORM_H_

#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Which statistic normalises a row. */
typedef enum fastnorm_norm_kind {
  FASTNORM_NORM_RMS = 0, /**< The root mean square; no mean is subtracted. */
  /** The mean and the (biased) variance, computed in two passes over the row and never as mean(x^2)
   *  - mean(x)^2. */
  FASTNORM_NORM_LAYER = 1,
  FASTNORM_NORM_KIND_MAX_ENUM = 0x7fffffff
} fastnorm_norm_kind;

/** Where y is rounded to x's dtype T while it is computed. The rounding to T takes place even if y
 *  is f32 and x has 16 bits. If T is f32, ONCE and NORMALIZED are the same. */
typedef enum fastnorm_rounding {
  /** Only when y is stored, as in FlashInfer, quack, Transformer Engine and Gemma. */
  FASTNORM_ROUND_ONCE = 0,
  /** Also t, before the weight multiplies it, as in Llama, Mistral and Qwen as published. */
  FASTNORM_ROUND_NORMALIZED = 1,
  /** Every elementwise result: (a - mean), its square, the variance, variance + eps, the root, t,
   *  weight + weight_offset, the product and the sum. A 16-bit eager chain rounds like this. */
  FASTNORM_ROUND_EVERY_STEP = 2,
  /** Only when y is stored, but with the product taken in another order: (b - mean) * (rstd *
   *  (weight + weight_offset)) + bias in place of ((b - mean) * rstd) * (weight + weight_offset) +
   *  bias. The fused kernels of query/key norm and rope in vLLM, TensorRT-LLM and SGLang compute
   *  the norm like this. */
  FASTNORM_ROUND_ONCE_RW = 3,
  FASTNORM_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_rounding;

/** Which value of the sum x + residual is normalised. R is the dtype of residual_out, or that of
 *  residual if there is no residual_out. */
typedef enum fastnorm_residual_rounding {
  /** The single-precision sum, both for the statistics and for t. */
  FASTNORM_RESIDUAL_EXACT = 0,
  /** The statistics use the single-precision sum; t uses the sum rounded to R. */
  FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY = 1,
  /** Both use the sum rounded to R, as if the addition were a separate operation. */
  FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS = 2,
  FASTNORM_RESIDUAL_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_residual_rounding;

/** How fastnorm_quant.quantized is scaled. */
typedef enum fastnorm_quant_scheme {
  FASTNORM_QUANT_NONE = 0,       /**< No codes are made. */
  FASTNORM_QUANT_PER_TENSOR = 1, /**< One scale, which is an input. */
  FASTNORM_QUANT_PER_ROW = 2,    /**< One scale per row, from the row's largest magnitude. */
  FASTNORM_QUANT_PER_BLOCK = 3,  /**< One scale for each block of 64 or 128 columns of a row. */
  FASTNORM_QUANT_MXFP8 = 4,      /**< fp8 with one power-of-two scale for 32 columns. */
  /** fp4 with one e4m3 scale for 16 columns and a global scale for the tensor. */
  FASTNORM_QUANT_NVFP4 = 5,
  FASTNORM_QUANT_MXFP4 = 6, /**< fp4 with one power-of-two scale for 32 columns. */
  FASTNORM_QUANT_SCHEME_MAX_ENUM = 0x7fffffff
} fastnorm_quant_scheme;

/** Which value is quantised. */
typedef enum fastnorm_quant_source {
  FASTNORM_QUANT_FROM_F32 = 0, /**< The unrounded result. */
  /** The result rounded to x's dtype, as a chain of unfused operations would quantise it. */
  FASTNORM_QUANT_FROM_ROUNDED = 1,
  FASTNORM_QUANT_SOURCE_MAX_ENUM = 0x7fffffff
} fastnorm_quant_source;

/** How PER_TENSOR, PER_ROW and PER_BLOCK compute a code from z and its scale. */
typedef enum fastnorm_quant_division {
  FASTNORM_QUANT_MULTIPLY_RECIPROCAL = 0, /**< code = z * (1 / scale), which rounds twice. */
  /** code = z / scale, which rounds once, as the dynamic fp8 of vLLM does. If the scales are powers
   *  of two (scale_pow2), both ways give the same codes. */
  FASTNORM_QUANT_DIVIDE = 1,
  FASTNORM_QUANT_DIVISION_MAX_ENUM = 0x7fffffff
} fastnorm_quant_division;

/** The order of the scales of blocks in memory. If the scale tensor has strides, they decide the
 *  order in the first two layouts. Nothing outside the tensor's shape is written. */
typedef enum fastnorm_scale_layout {
  FASTNORM_SCALE_ROW_MAJOR = 0, /**< The scales of one row are adjacent. */
  /** The scales of one column of blocks are adjacent, if the tensor has no strides. */
  FASTNORM_SCALE_COLUMN_MAJOR = 1,
  /** One-byte scales in a tensor [512 * ceil(rows / 128) * T] with T = ceil(K / 4), where K is the
   *  number of scales of a row. Scale k of row m is at
   *  (m / 128 * T + k / 4) * 512 + m % 32 * 16 + m % 128 / 32 * 4 + k % 4.
   *  All padding is written as 0. */
  FASTNORM_SCALE_SWIZZLED_128X4 = 2,
  FASTNORM_SCALE_LAYOUT_MAX_ENUM = 0x7fffffff
} fastnorm_scale_layout;

/** A function that is applied to each element. docs/numerics.md gives its operations, which are the
 *  same on every device and so give the same bits everywhere. */
typedef enum fastnorm_activation {
  FASTNORM_ACTIVATION_IDENTITY = 0, /**< v. */
  /** v / (1 + exp(-v)); the result is -0 for v of -110 and below, including -Inf. */
  FASTNORM_ACTIVATION_SILU = 1,
  FASTNORM_ACTIVATION_SIGMOID = 2, /**< 1 / (1 + exp(-v)). */
  FASTNORM_ACTIVATION_TANH = 3,    /**< tanh(v). */
  FASTNORM_ACTIVATION_MAX_ENUM = 0x7fffffff
} fastnorm_activation;

/** Which row the gate multiplies. */
typedef enum fastnorm_gate_position {
  /** The normalised row, as in Qwen3-Next and Kimi Linear. */
  FASTNORM_GATE_AFTER_NORM = 0,
  /** x, before the residual is added and the statistics are taken, as in Mamba2. */
  FASTNORM_GATE_BEFORE_NORM = 1,
  FASTNORM_GATE_POSITION_MAX_ENUM = 0x7fffffff
} fastnorm_gate_position;

/** Which value a gate after the norm multiplies. */
typedef enum fastnorm_gate_source {
  FASTNORM_GATE_FROM_F32 = 0, /**< The unrounded result, as in FLA, mamba and vLLM. */
  /** The result rounded to x's dtype, as in Hugging Face. */
  FASTNORM_GATE_FROM_ROUNDED = 1,
  FASTNORM_GATE_SOURCE_MAX_ENUM = 0x7fffffff
} fastnorm_gate_source;

/** Where the sum of branch and residual is rounded to x's dtype T while it is computed. */
typedef enum fastnorm_sum_rounding {
  /** Nowhere: the product with alpha and the addition of the residual are one fused operation. */
  FASTNORM_SUM_ONCE = 0,
  FASTNORM_SUM_EVERY_STEP = 1, /**< The product, the sum and the product with sum_scale. */
  FASTNORM_SUM_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_sum_rounding;

/** Where the modulation is rounded to x's dtype T while it is computed. */
typedef enum fastnorm_modulation_rounding {
  FASTNORM_MODULATION_ONCE = 0, /**< Nowhere: z * (1 + scale) + shift is one operation. */
  /** z, the sums with tables, 1 + scale, the product and the sum, as a chain of operations in T
   *  rounds them. */
  FASTNORM_MODULATION_EVERY_STEP = 1,
  FASTNORM_MODULATION_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_modulation_rounding;

/** Bits of fastnorm_norm_args.flags. Four of them are about programmatic dependent launch, by which
 *  a kernel starts while the previous kernel of the stream still runs. They have no effect on the
 *  CPU and on GPUs before compute capability 9.0, and results never depend on them.
 *
 *  By default a call does what PDL_WAIT and PDL_TRIGGER say. NO_PDL turns this off for a call, and
 *  a flag of the context turns it off for all of its calls. The calls of peers do what PDL_WAIT
 *  says by default, but only those of their kernels that wait for no other rank trigger.
 *
 *  One thing follows for the caller's own kernels: a following kernel that is itself launched with
 *  the attribute cudaLaunchAttributeProgrammaticStreamSerialization must wait, by
 *  cudaGridDependencySynchronize(), before it uses anything that any earlier kernel of the stream
 *  wrote, not only what this call wrote. A kernel without the attribute starts when all earlier
 *  kernels have ended, and need not do anything. */
typedef enum fastnorm_norm_flags {
  /** Start when the previous kernel of the stream allows it, but read and write nothing before that
   *  kernel has ended. */
  FASTNORM_NORM_PDL_WAIT = 1,
  /** Let the next kernel of the stream start early: if this one waits, after its wait, so at the
   *  earliest when everything before this call has ended. The next kernel must wait itself before
   *  it uses anything that any earlier kernel of the stream wrote. */
  FASTNORM_NORM_PDL_TRIGGER = 2,
  /** With PDL_WAIT: weight and bias may be read before the wait. The caller promises that no kernel
   *  that may still run writes them. */
  FASTNORM_NORM_PDL_CONSTANT_WEIGHTS = 4,
  /** The factor of the modulation is modulation_scale itself, in place of 1 + modulation_scale. */
  FASTNORM_NORM_MODULATION_PLAIN_SCALE = 8,
  /** The branch is multiplied by alpha, even if alpha is 0. Without the flag it has no such factor.
   *  */
  FASTNORM_NORM_ALPHA = 16,
  /** Programmatic dependent launch is not used unless other bits ask for it: alone, the call starts
   *  when all earlier kernels have ended and lets no kernel start early. With PDL_WAIT, with
   *  PDL_TRIGGER or with both the call does only what these say. */
  FASTNORM_NORM_NO_PDL = 512,
  FASTNORM_NORM_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_norm_flags;

/** How results are quantised, and where codes and scales are stored. A zeroed struct with
 *  struct_size, scheme, quantized and scale set is valid for PER_TENSOR, PER_ROW, MXFP8, NVFP4 and
 *  MXFP4; PER_BLOCK needs block_size, too. The formulas are at the top of this header. With
 *  FASTNORM_QUANT_NONE only amax may be given. x is the input of the call that this struct belongs
 *  to, and T is its dtype. */
typedef struct fastnorm_quant {
  size_t struct_size; /**< sizeof(fastnorm_quant). */
  /** How codes are scaled. Default: nothing is quantised. */
  fastnorm_quant_scheme scheme;
  int32_t block_size; /**< PER_BLOCK: 64 or 128 columns; else 0. */
  /** Which value is quantised. Default: the unrounded result. */
  fastnorm_quant_source source;
  /** PER_TENSOR, PER_ROW and PER_BLOCK: how codes are made. Default: z times the reciprocal of the
   *  scale. Other schemes: 0. */
  fastnorm_quant_division division;
  /** The order of the scales of blocks in memory. Default: row-major. */
  fastnorm_scale_layout scale_layout;
  /** PER_ROW and PER_BLOCK with f8 codes: 1 = scales are powers of two; else 0. */
  int32_t scale_pow2;
  /** PER_ROW and PER_BLOCK: the least magnitude that a scale is made from, between 2^-100 and
   *  2^100; 0 = 1e-10. */
  float amax_floor;
  float clamp; /**< > 0: results are clamped to [-clamp, clamp] before quantising; 0 = no clamp. */

  /** The codes, of x's shape; for pairs of f4 codes the last extent is half of n. Output. */
  const fastnorm_tensor* quantized;
  const fastnorm_tensor* scale; /**< The scales. Input for PER_TENSOR, otherwise output. */
  /** The second scale of NVFP4, of either sign and with a magnitude between 2^-100 and 2^100. [1]
   *  f32; NULL = 1. */
  const fastnorm_tensor* global_scale;
  /** A clamp whose value lies on the device and is read after the PDL wait. [1] f32. A value above
   *  0 clamps as `clamp` does; any other value (0, negative or NaN) clamps nothing. Requires a
   *  scheme, and `clamp` must be 0. NULL = `clamp` decides. */
  const fastnorm_tensor* clamp_scale;
  /** The greatest magnitude of what is quantised or, if nothing is quantised, of y. [1] f32. Input
   *  and output: the call raises the value that is there, which the caller sets to 0 beforehand. If
   *  any value is NaN, it becomes NaN. Requires quantized or y. */
  const fastnorm_tensor* amax;

  /** Number of columns of a block that is rotated before its scale is found: 16, 32, 64 or 128, a
   *  divisor of n. If the scheme has scales of blocks, their columns are a multiple of it. 0 =
   *  nothing is rotated. */
  int32_t rotation;
  /** 1 = y is the rotated result, of which quantized holds the codes; else 0. Requires rotation.
   *  Default: y is as without a rotation. */
  int32_t y_rotated;
  /** What each column is multiplied by before the rotation, 1 or -1: [n], or [rotation] for all
   *  blocks. f32. The CPU refuses other values before it writes anything. A GPU does not look at
   *  them and takes their signs alone. Requires rotation. NULL = 1. */
  const fastnorm_tensor* rotation_signs;
} fastnorm_quant;

/** One normalisation. A zeroed struct with struct_size, x and y set is a valid RMSNorm without a
 *  weight and with eps 0.
 *
 *  Shapes: x is [..., n] with a rank from 1 to 8 and n from 1 to 2^32. T is x's dtype, which is
 *  f32, f16 or bf16. All tensors are on the context's device. The last dimension must be
 *  contiguous. The leading dimensions may have any strides; a stride of 0 is allowed for inputs
 *  only. Any alignment that the dtype allows is accepted.
 *
 *  Ranks 5 to 8: two neighbouring leading dimensions are joined if every tensor steps evenly across
 *  both of them, as compact tensors do. Dimensions of extent 1 do not count. At most 3 leading
 *  dimensions may remain; if there are more, the call returns FASTNORM_ERROR_UNSUPPORTED.
 *
 *  Dtypes: weight, bias, residual and residual_out may each be f32, f16 or bf16, whatever T is. y
 *  is T or f32. The address and the strides of a tensor are multiples of the size of its elements.
 *  A GPU has fast kernels for calls in which all tensors have one dtype, and for f32 weight and
 *  bias with a 16-bit x. Other combinations run on general kernels, which are slower.
 *
 *  weight and bias broadcast against x as in NumPy: counted from the right, their last extent is n,
 *  each leading extent is 1 or that of x, and missing extents are 1. Examples are [n], [1, n],
 *  [heads, n] and [batch, 1, n]. They may vary along any leading dimensions. On a GPU, calls run on
 *  general kernels in two cases: if weight or bias varies along more than one dimension after
 *  joining, or if it varies along any leading dimension except the innermost and
 *  FASTNORM_SCALE_SWIZZLED_128X4 is used.
 *
 *  Aliasing: y and residual_out may each be the same view as x or residual, and y may also be the
 *  same view as the gate; a view is the same if address, dtype, shape and strides are. So y = x
 *  with residual_out = residual works in place, and y = residual with residual_out = x is allowed,
 *  too, but y and residual_out may not be one tensor. Two tensors of which one is written may also
 *  be interleaved views of one buffer that share no element, such as the query heads and the key
 *  heads of a fused QKV tensor. Any other overlap returns FASTNORM_ERROR_LAYOUT. */
typedef struct fastnorm_norm_args {
  size_t struct_size; /**< sizeof(fastnorm_norm_args). */
  /** Passed to the context's parallel_for in place of the context's parallel_user; NULL = that of
   *  the context. It has no effect if the context has no parallel_for. */
  void* parallel_user;
  fastnorm_norm_kind kind; /**< RMS or LAYER. */
  float eps;               /**< Added to the mean square or the variance. Finite, >= 0. */
  /** Added to the weight in f32, such as 1 for Gemma. Finite; 0 if weight is NULL. */
  float weight_offset;
  /** Where y is rounded while it is computed. Default: only when it is stored. */
  fastnorm_rounding rounding;
  /** Which value of the sum x + residual is normalised. Default: the exact sum. It has no effect
   *  without a residual. */
  fastnorm_residual_rounding residual_rounding;
  uint32_t flags; /**< Bits of fastnorm_norm_flags, or 0. */

  const fastnorm_tensor* x; /**< [..., n] T. Required. */
  /** Added to x before the norm. x's shape; f32, f16 or bf16. NULL = nothing is added. */
  const fastnorm_tensor* residual;
  const fastnorm_tensor* weight; /**< [.., n], broadcasts against x; f32, f16 or bf16. NULL = 1. */
  const fastnorm_tensor* bias;   /**< [.., n], broadcasts against x; f32, f16 or bf16. NULL = 0. */
  /** The normalised rows. x's shape, T or f32. Output; may be x or residual. NULL = not stored;
   *  then quant.quantized or `sumsq` is required. */
  const fastnorm_tensor* y;
  /** The sum x + residual. x's shape; f32, f16 or bf16. Output; may be residual or x. Requires
   *  residual. NULL = not stored. */
  const fastnorm_tensor* residual_out;
  /** The mean of each row. x.shape[:-1], or that with a last extent of 1; f32. Output, LAYER only.
   *  NULL = not stored. */
  const fastnorm_tensor* mean;
  /** The reciprocal of each row's root mean square (RMS) or standard deviation (LAYER), with eps;
   *  the shape and dtype are those of mean. Output. NULL = not stored. */
  const fastnorm_tensor* rstd;

  /** How and where codes are stored, and the amax of y. NULL = nothing is quantised. */
  const fastnorm_quant* quant;

  /** The gate of each element: see "Stages" above. x's shape; T or f32. y may be the same view, but
   *  x must not overlap it. NULL = nothing is gated; then gate_act, gate_position and gate_source
   *  must be 0. */
  const fastnorm_tensor* gate;
  fastnorm_activation gate_act; /**< The function that is applied to the gate. Default: identity. */
  /** Which row the gate multiplies. Default: the normalised row. */
  fastnorm_gate_position gate_position;
  /** Which value a gate after the norm multiplies. Default: the unrounded result. With a gate
   *  before the norm it must be the default. */
  fastnorm_gate_source gate_source;
  /** The function that is applied to the result, after the gate. Default: identity. */
  fastnorm_activation activation;
  /** Number of columns that share a statistic, a divisor of n; 0 = n. With groups, weight and bias
   *  are [.., n] or, if all groups share them, [.., group_size]. */
  int64_t group_size;
  /** This device's part of a statistic of several devices, f32. RMS: the sum of squares, of mean's
   *  shape. LAYER: the mean and the sum of (a - mean)^2, in a last extent of 2. Output; y may be
   *  NULL. Not with rstd_in, nor with FASTNORM_ROUND_EVERY_STEP. */
  const fastnorm_tensor* sumsq;
  /** LAYER: the mean to use in place of the row's own, together with rstd_in; the shape and dtype
   *  are those of mean. Input. */
  const fastnorm_tensor* mean_in;
  /** The rstd to use in place of the row's own; the shape and dtype are those of rstd. Input. Not
   *  with mean, rstd or sumsq. */
  const fastnorm_tensor* rstd_in;

  /** 1: x, multiplied by the gate if that comes first, is normalised before the residual is added.
   *  0: it is not, and the other fields of the branch's norm are 0. */
  int32_t branch_norm;
  fastnorm_norm_kind branch_kind; /**< The kind of the branch's norm: RMS or LAYER. */
  float branch_eps;               /**< The eps of the branch's norm. Finite, >= 0. */
  /** Added to branch_weight in f32. Finite; 0 if branch_weight is NULL. */
  float branch_weight_offset;
  /** Where the branch's norm rounds to x's dtype. Default: nowhere. FASTNORM_ROUND_ONCE_RW is an
   *  error. */
  fastnorm_rounding branch_rounding;
  int32_t branch_rounded; /**< 1: the branch is rounded to x's dtype before the sum. */
  float alpha;            /**< With FASTNORM_NORM_ALPHA: factor of the branch, finite; else 0. */
  /** Where the sum is rounded while it is computed. Default: nowhere. */
  fastnorm_sum_rounding sum_rounding;
  /** The weight of the branch's norm, [.., n], with the rules of weight. NULL = 1. */
  const fastnorm_tensor* branch_weight;
  /** The bias of the branch's norm, [.., n], with the rules of bias. NULL = 0. */
  const fastnorm_tensor* branch_bias;
  /** The rstd of the branch's norm. x.shape[:-1], or that with a last extent of 1; f32. Output.
   *  NULL = not stored. */
  const fastnorm_tensor* branch_rstd;
  /** A factor of the sum, whose value lies on the device. [1] f32. Input; NULL = 1. */
  const fastnorm_tensor* sum_scale;

  /** Factor of the branch in the sum, T or f32. It broadcasts against x as in NumPy: counted from
   *  the right, each extent is 1 or that of x, and missing extents are 1. Examples are [1], [batch,
   *  1, n] and [batch, tokens, 1]. With modulation_index it is [m, n] or [m, 1]. NULL = 1. */
  const fastnorm_tensor* residual_gate;
  /** A row that is added to residual_gate: [n], or with leading extents of 1; T or f32. NULL = 0.
   *  */
  const fastnorm_tensor* residual_gate_table;
  /** The function that is applied to the sum of residual_gate and its table. Default: identity. */
  fastnorm_activation residual_gate_act;
  /** Where the modulation is rounded while it is computed. Default: nowhere. Requires
   *  modulation_scale or modulation_shift. */
  fastnorm_modulation_rounding modulation_rounding;
  /** The normalised row is multiplied by 1 + modulation_scale. Shape and dtype follow the rules of
   *  residual_gate. NULL = nothing is multiplied. */
  const fastnorm_tensor* modulation_scale;
  /** A row that is added to modulation_scale, with the rules of residual_gate_table. NULL = 0. */
  const fastnorm_tensor* scale_table;
  /** Added to the normalised row after the multiplication. Shape and dtype follow the rules of
   *  residual_gate. NULL = nothing is added. */
  const fastnorm_tensor* modulation_shift;
  /** A row that is added to modulation_shift, with the rules of residual_gate_table. NULL = 0. */
  const fastnorm_tensor* shift_table;
  /** The row of the modulators that each row of x takes. x.shape[:-1], or that with a last extent
   *  of 1; i32 or i64. NULL = the modulators broadcast. */
  const fastnorm_tensor* modulation_index;
} fastnorm_norm_args;

/** Say what a call would do: its workspace, kernel, launches and bytes. The query does not touch
 *  the memory of the tensors, but their addresses count, since overlap and alignment follow from
 *  them.
 *  @param context the device
 *  @param args    the arguments of the call
 *  @param info    struct_size as input; receives the rest
 *  @return as fastnorm_norm; FASTNORM_ERROR_ARGUMENT also if info is null or its struct_size is too
 *  small
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_norm_query(fastnorm_context* context,
                                                 const fastnorm_norm_args* args,
                                                 fastnorm_info* info);

/** Load what a call needs: CUDA loads a kernel when it is first used, which allocates memory and
 *  may synchronise. Afterwards, calls that use the same kernel neither allocate nor synchronise,
 *  and can be captured in a CUDA graph. Preparing is optional, because the first call that uses a
 *  kernel loads it, too.
 *  @param context the device
 *  @param args    the arguments of the call
 *  @return as fastnorm_norm
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_norm_prepare(fastnorm_context* context,
                                                   const fastnorm_norm_args* args);

/** Normalise the rows of x; the formula is at the top of this header.
 *
 *  CUDA: the call queues one kernel on `stream` and returns. It can be captured in a CUDA graph. It
 *  uses the context's device, whichever device is current, and leaves the current device as it was.
 *  CPU: the work is done when the call returns. Once its kernel is loaded, a call allocates
 *  nothing, does not synchronise and takes no lock. Zero rows are a success: nothing is launched
 *  and nothing is written.
 *
 *  @param context         the device
 *  @param args            what to compute; read only during the call
 *  @param workspace       fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned.
 *  Their contents may be anything, and nothing else may use them until the work has run. NULL if 0
 *  bytes are needed
 *  @param workspace_bytes size of workspace
 *  @param stream          CUDA: the cudaStream_t; NULL = the legacy default stream; the runtime's
 *  special handles are accepted, too. CPU: NULL
 *  @return FASTNORM_OK
 *          FASTNORM_ERROR_ARGUMENT: context, args or x is null, or there is no output; a tensor has
 *          no shape, or it has elements but no data; a struct_size is too small; an enum, eps, an
 *          offset or another scalar is out of range; the workspace is too small; there is a stream
 *          on the CPU; parallel_for did not cover the rows exactly once, in which case some of them
 *          may have been written
 *          FASTNORM_ERROR_SHAPE: ranks or extents do not fit; n < 1 or n > 2^32
 *          FASTNORM_ERROR_DTYPE: a tensor has a dtype that its role does not allow
 *          FASTNORM_ERROR_LAYOUT: a last dimension is not contiguous, an address is misaligned, or
 *          tensors overlap
 *          FASTNORM_ERROR_UNSUPPORTED: a field of a later version is set, or bytes after the known
 *          fields are not zero; there are more rows than a grid holds; leading dimensions cannot be
 *          joined
 *          FASTNORM_ERROR_DEVICE: a tensor is on another device; the device's current CUDA context
 *          is not its primary one; the CUDA runtime reported an error, which may be a sticky one of
 *          earlier work
 *          FASTNORM_ERROR_OUT_OF_MEMORY: the CUDA runtime had no memory, for example to load the
 *          kernel
 *          FASTNORM_ERROR_INTERNAL: a defect of this library, or an exception out of parallel_for
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_norm(fastnorm_context* context,
                                           const fastnorm_norm_args* args, void* workspace,
                                           size_t workspace_bytes, void* stream);

/** The query for fastnorm_norm_many. Its figures are the sums over all parts, and `kernel` is that
 *  of the first part that has rows.
 *  @param context the device
 *  @param args    [count] pointers, the arguments of the call
 *  @param count   0 to 8
 *  @param info    struct_size as input; receives the rest
 *  @return as fastnorm_norm_query
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_norm_many_query(fastnorm_context* context,
                                                      const fastnorm_norm_args* const* args,
                                                      int32_t count, fastnorm_info* info);

/** Load what a fastnorm_norm_many needs, as fastnorm_norm_prepare does for fastnorm_norm.
 *  @param context the device
 *  @param args    [count] pointers, the arguments of the call
 *  @param count   0 to 8
 *  @return as fastnorm_norm_prepare
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_norm_many_prepare(fastnorm_context* context,
                                                        const fastnorm_norm_args* const* args,
                                                        int32_t count);

/** Run several normalisations in order, with the results that one fastnorm_norm for each would
 *  give. This serves, for example, the query heads and the key heads of a fused QKV tensor, which
 *  have different weights. All parts are checked before anything is launched, also against each
 *  other: no part may read what another part writes. CUDA: two parts that follow each other take
 *  one launch if they share a kernel for short rows, have the same flags and have at most two
 *  leading dimensions. fastnorm_info.launches tells how many launches there are.
 *  @param context         the device
 *  @param args            [count] pointers
 *  @param count           0 to 8
 *  @param workspace       as fastnorm_norm
 *  @param workspace_bytes size of workspace
 *  @param stream          as fastnorm_norm
 *  @return as fastnorm_norm; the error text names the part as args[i]. CUDA: if the runtime refuses
 *  a launch, the launches of earlier parts have already been queued
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_norm_many(fastnorm_context* context,
                                                const fastnorm_norm_args* const* args,
                                                int32_t count, void* workspace,
                                                size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_NORM_H_ */
