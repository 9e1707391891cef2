/** @file norm.h
 *  RMSNorm and LayerNorm of rows, with the residual addition before them.
 *
 *  A row is the last dimension of x, n elements long. For each row, in this order:
 *
 *      s            = x + residual                                 (x where there is no residual)
 *      residual_out = s, rounded to its dtype
 *      mean         = sum(a) / n                                   (LAYER only; corrected, below)
 *      rstd         = 1 / sqrt(sum((a - mean)^2) / n + eps)        (RMS: mean is not subtracted)
 *      t            = (b - mean) * rstd                            (RMS: b * rstd)
 *      y            = t * (weight + weight_offset) + bias, rounded to y's dtype
 *
 *  a and b are s, or s rounded to the residual's dtype: fastnorm_residual_rounding says which. All
 *  arithmetic is IEEE single precision, each operation rounded to nearest even, subnormals kept,
 *  the square root and the reciprocal correctly rounded; the division by n is a product with the
 *  rounded 1/n. Two operations are fused, with one rounding: squares are added to their sum, and
 *  the product with weight + weight_offset is added to the bias (not with
 *  FASTNORM_ROUND_EVERY_STEP). With FASTNORM_ROUND_ONCE_RW the factor is multiplied first, and the
 *  fused operation is
 *
 *      y            = (b - mean) * k + bias, rounded to y's dtype  (RMS: b * k)
 *      k            = rstd * (weight + weight_offset)              (rounded to f32)
 *
 *  **Mean and variance of LAYER**, with a0 the row's first a:
 *
 *      m0       = a0 + sum(a - a0) / n
 *      d        = a - m0
 *      delta    = sum(d) / n
 *      mean     = m0 + delta
 *      variance = max(sum(d^2) / n - delta^2, 0)                   (one fused operation; NaN stays)
 *
 *  So the mean's error is its own rounding and that of a sum of small numbers, however large the
 *  row's values are. A row of equal values has exactly that value as its mean, rstd = 1 / sqrt(eps)
 *  and y = bias (eps 0: rstd = Inf, and y is NaN).
 *  FASTNORM_ROUND_EVERY_STEP has no correction: mean = sum(a) / n, variance = sum((a - mean)^2) /
 *  n.
 *
 *  **Same bits.** A row's results depend on the row's values, weight, bias, n, dtypes and options
 *  only: not on the number or position of rows, strides, alignment, in-place use or other outputs;
 *  not on the kernel chosen, the GPU model, the CPU's instruction set, the number of threads, the
 *  stream or the run. CPU and GPU sum in different orders and may differ in the last place.
 *
 *  **Range.** The statistic is a plain single-precision sum of squares; nothing is rescaled.
 *
 *  - A sum that overflows gives rstd = 0, so t is 0 and y is the bias (0 without one). Example: a
 *    row of 512 values of 1e18 gives y = 0. The limit is |x| of about 1.8e19 / sqrt(n).
 *  - LAYER: where a - a0, or a sum of it or of d, overflows, mean and y are NaN.
 *  - A sum that underflows to 0 with eps 0 gives rstd = Inf. Then t is Inf, or NaN where x is 0.
 *    Example: 512 values of 1e-23 give y = Inf. Any usual eps prevents this.
 *
 *  Scale such rows by a power of two beforehand. f16 rows reach neither limit, except with
 *  FASTNORM_ROUND_EVERY_STEP, which rounds the squares to f16: they overflow from |x| = 256.
 *
 *  **Stages**, each optional. They combine, except where a field's comment excludes it:
 *
 *      u = x * act(gate)                      (FASTNORM_GATE_BEFORE_NORM; else u = x)
 *      u = norm(u)                            (branch_norm: its own kind, eps, weight and bias)
 *      u = u rounded to x's dtype             (branch_rounded)
 *      k = act(residual_gate + table) * alpha (without residual_gate alpha)
 *      s = u * k + residual                   (one fused operation; without k u + residual)
 *      s = s * sum_scale                      (s is the row that is normalised)
 *      z = z * (1 + scale) + shift            (modulation_scale, modulation_shift; one fused
 *                                              operation; z is y unrounded)
 *      z = z * act(gate)                      (FASTNORM_GATE_AFTER_NORM)
 *      z = activation(z)
 *
 *  act and activation are identity, silu, sigmoid or tanh, without the hardware's approximations.
 *  Each of the products is one operation, as is z's rounding to x's dtype with
 *  FASTNORM_GATE_FROM_ROUNDED. With FASTNORM_ROUND_EVERY_STEP act(gate), both products and
 *  activation(z) are rounded to x's dtype. z is then stored and quantised.
 *
 *  **Modulation** (adaLN). residual_gate, modulation_scale and modulation_shift broadcast against
 *  x, their last dimension too. Each may have a table, a row that is added to it in f32. Without a
 *  shift z * (1 + scale) is one operation, without a scale z + shift is. With
 *  FASTNORM_MODULATION_EVERY_STEP, and with FASTNORM_ROUND_EVERY_STEP, these are rounded to x's
 *  dtype: z before it, both sums with tables, 1 + scale, the product, and the sum. With
 *  FASTNORM_SUM_EVERY_STEP the sum with residual_gate_table, its act and its product with alpha are
 *  rounded, too.
 *
 *  With modulation_index the modulators have rows of their own, [m, n] or [m, 1]. Row r of x takes
 *  their row modulation_index[r]. An index below 0 or from m on is an error on CPUs; GPUs take the
 *  nearest row.
 *
 *  The branch's norm has the arithmetic of the norm, and statistics of all n columns. With
 *  branch_rounded, and without alpha, residual_gate and sum_scale, the call has the bits of two:
 *  one from x to the branch, one from that and the residual. With FASTNORM_SUM_EVERY_STEP u * k,
 *  the sum and the product with sum_scale are each rounded to x's dtype. residual_rounding is about
 *  the s that is left.
 *
 *  With group_size d the columns are n / d groups that have statistics of their own: as x viewed
 *  [.., n / d, d]. mean, rstd, rstd_in, mean_in and sumsq then have x.shape[:-1] + [n / d], for
 *  d < n, contiguous in that dimension. Scales of quantised outputs know no groups: PER_ROW's is of
 *  n columns, and a block may lie in two groups.
 *
 *  **Statistics of several devices.** Where a row is spread over devices, sumsq gives each device's
 *  part and rstd_in (LAYER: and mean_in) takes the statistic. RMS: add up the sums S; rstd = 1 /
 *  sqrt(S / N + eps) for N columns in all. LAYER: merge the means and sums of squares by Chan's
 *  formula; adding the sums up is wrong.
 *
 *  **Quantised outputs** are made from z, the value that y is before its rounding, in this order:
 *
 *      z     = z rounded to x's dtype         (FASTNORM_QUANT_FROM_ROUNDED)
 *      z     = min(max(z, -clamp), clamp)     (clamp or clamp_scale > 0; NaN stays; y is never
 *                                              clamped)
 *      A     = max |z| over what shares a scale; NaN if any z is
 *      scale = by scheme, below: a dequantisation scale, z is about code * scale (* global_scale)
 *      code  = z * (1 / scale), rounded to nearest even, saturating, Inf too
 *              z / scale                  (FASTNORM_QUANT_DIVIDE)
 *
 *  QMAX is 448 for f8_e4m3fn, 57344 for f8_e5m2, 127 for i8, 6 for f4_e2m1fn. NaN gives code 0x7f
 *  (f8), 0 (i8), 0x7 (f4); i8 saturates to -128 and 127; -0 keeps its sign where the format has
 *  one.
 *
 *  | scheme     | columns of a scale | codes  | scale                                           |
 *  |------------|--------------------|--------|-------------------------------------------------|
 *  | PER_TENSOR | all                | f8, i8 | [1] f32, an input                               |
 *  | PER_ROW    | the row            | f8, i8 | x.shape[:-1] (or with a last 1) f32:            |
 *  |            |                    |        | max(A, amax_floor) / QMAX                       |
 *  | PER_BLOCK  | 64 or 128          | f8, i8 | x.shape[:-1] + [ceil(n / block)] f32: the same  |
 *  | MXFP8      | 32                 | f8     | .. + [ceil(n / 32)] e8m0: 2^E, the least E for  |
 *  |            |                    |        | which A <= QMAX * 2^E, from -127 to 127         |
 *  | NVFP4      | 16, n even         | f4     | .. + [ceil(n / 16)] e4m3: A / (6 * magnitude of |
 *  |            |                    |        | global_scale), rounded;                         |
 *  |            |                    |        | code = z / (scale * global_scale)               |
 *  | MXFP4      | 32, n even         | f4     | as MXFP8, with QMAX 6                           |
 *
 *  With scale_pow2, PER_ROW and PER_BLOCK scales of f8 are 2^E by MXFP8's rule for max(A,
 *  amax_floor). They are stored as f32 or, if the scale tensor is e8m0, as the byte E + 127. u8 is
 *  accepted for one-byte scales, and for pairs of f4 codes. A row of f4 is n / 2 bytes, element 2i
 *  in the low half of byte i: [.., n] of f4_e2m1fn, whose row strides are even, or [.., n/2] of
 *  f4_e2m1fn_x2 or u8.
 *
 *  NVFP4's scales are never negative: with a negative global_scale the codes have the other sign.
 *
 *  Where all of a scale's z are 0 the codes are; where one is NaN the scale is NaN (e8m0 0xff) and
 *  all codes are NaN's; an Inf makes an f32 scale Inf, finite codes 0 and the Inf's code NaN's; it
 *  saturates with scales of powers of two and of e4m3.
 *
 *  Sources of the formats: OCP 8-bit Floating Point Specification 1.0 (f8), OCP Microscaling
 *  Formats Specification 1.0 (e8m0, MXFP8, MXFP4; scales here round up, so that nothing saturates),
 *  NVIDIA's NVFP4 as in Transformer Engine.
 */
#ifndef FASTNORM_NORM_H_
#define FASTNORM_NORM_H_

#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Which statistic normalises a row. */
typedef enum fastnorm_norm_kind {
  FASTNORM_NORM_RMS = 0,   /**< Root mean square; nothing is subtracted. */
  FASTNORM_NORM_LAYER = 1, /**< Mean and (biased) variance, in two passes over the row: never
                              mean(x^2) - mean(x)^2. */
  FASTNORM_NORM_KIND_MAX_ENUM = 0x7fffffff
} fastnorm_norm_kind;

/** Where y is rounded to x's dtype T on its way, also where y is f32 beside 16-bit x. With T = f32
 *  ONCE and NORMALIZED are the same. */
typedef enum fastnorm_rounding {
  FASTNORM_ROUND_ONCE =
      0, /**< Only when y is stored. FlashInfer, quack, Transformer Engine, Gemma. */
  FASTNORM_ROUND_NORMALIZED =
      1, /**< Also t, before the weight. Llama, Mistral and Qwen as published. */
  FASTNORM_ROUND_EVERY_STEP = 2, /**< Every elementwise result: (a - mean), its square, the
                                    variance, variance + eps, the root, t, weight + weight_offset,
                                    the product and the sum. What a 16-bit eager chain does. */
  /** Only when y is stored, of a product in the other order: (b - mean) * (rstd * (weight +
      weight_offset)) + bias in place of ((b - mean) * rstd) * (weight + weight_offset) + bias. The
      norm in vLLM's, TensorRT-LLM's and SGLang's fused kernels of query/key norm and rope. */
  FASTNORM_ROUND_ONCE_RW = 3,
  FASTNORM_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_rounding;

/** Which value of the sum x + residual is used, in terms of R, the dtype of residual_out (of
 *  residual, where there is no residual_out). */
typedef enum fastnorm_residual_rounding {
  FASTNORM_RESIDUAL_EXACT = 0, /**< The single-precision sum, for the statistics and for t. */
  FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY =
      1, /**< Statistics of the sum; t from the sum rounded to R. */
  FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS =
      2, /**< Both from the sum rounded to R: as a separate addition would. */
  FASTNORM_RESIDUAL_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_residual_rounding;

/** How `quantized` is scaled. */
typedef enum fastnorm_quant_scheme {
  FASTNORM_QUANT_NONE = 0,       /**< Nothing is quantised. */
  FASTNORM_QUANT_PER_TENSOR = 1, /**< One scale, an input. */
  FASTNORM_QUANT_PER_ROW = 2,    /**< A scale a row, from the row's largest magnitude. */
  FASTNORM_QUANT_PER_BLOCK = 3,  /**< A scale for each block of 64 or 128 columns of a row. */
  FASTNORM_QUANT_MXFP8 = 4,      /**< fp8 with a power-of-two scale for 32 columns. */
  FASTNORM_QUANT_NVFP4 = 5,      /**< fp4 with an e4m3 scale for 16 columns and a global scale. */
  FASTNORM_QUANT_MXFP4 = 6,      /**< fp4 with a power-of-two scale for 32 columns. */
  FASTNORM_QUANT_SCHEME_MAX_ENUM = 0x7fffffff
} fastnorm_quant_scheme;

/** What is quantised. */
typedef enum fastnorm_quant_source {
  FASTNORM_QUANT_FROM_F32 = 0, /**< The unrounded result. */
  FASTNORM_QUANT_FROM_ROUNDED =
      1, /**< The result rounded to x's dtype, as an unfused chain would. */
  FASTNORM_QUANT_SOURCE_MAX_ENUM = 0x7fffffff
} fastnorm_quant_source;

/** How a code is made of z and its scale, with PER_TENSOR, PER_ROW and PER_BLOCK. */
typedef enum fastnorm_quant_division {
  FASTNORM_QUANT_MULTIPLY_RECIPROCAL = 0, /**< code = z * (1 / scale): two roundings. */
  FASTNORM_QUANT_DIVIDE = 1, /**< code = z / scale, one rounding: vLLM's dynamic fp8. Scales that
                                are powers of two (scale_pow2) give the same codes either way. */
  FASTNORM_QUANT_DIVISION_MAX_ENUM = 0x7fffffff
} fastnorm_quant_division;

/** Order of the scales of blocks in memory. Strides of the scale tensor, where given, decide in the
 *  first two; nothing outside its shape is written. */
typedef enum fastnorm_scale_layout {
  FASTNORM_SCALE_ROW_MAJOR = 0, /**< All scales of one row together. */
  FASTNORM_SCALE_COLUMN_MAJOR =
      1, /**< Without strides: all rows of one column of blocks together. */
  FASTNORM_SCALE_SWIZZLED_128X4 =
      2, /**< One-byte scales, a tensor [512 * ceil(rows / 128) * T] with T = ceil(K / 4) for K
            scales a row. Row m, scale k is at
            (m / 128 * T + k / 4) * 512 + m % 32 * 16 + m % 128 / 32 * 4 + k % 4.
            All padding is written as 0. */
  FASTNORM_SCALE_LAYOUT_MAX_ENUM = 0x7fffffff
} fastnorm_scale_layout;

/** A function of each element, computed as docs/numerics.md writes it: the same bits everywhere. */
typedef enum fastnorm_activation {
  FASTNORM_ACTIVATION_IDENTITY = 0, /**< v. */
  FASTNORM_ACTIVATION_SILU = 1,     /**< v / (1 + exp(-v)); -0 from -110 down, for -Inf too. */
  FASTNORM_ACTIVATION_SIGMOID = 2,  /**< 1 / (1 + exp(-v)). */
  FASTNORM_ACTIVATION_TANH = 3,     /**< tanh(v). */
  FASTNORM_ACTIVATION_MAX_ENUM = 0x7fffffff
} fastnorm_activation;

/** Where the gate multiplies. */
typedef enum fastnorm_gate_position {
  FASTNORM_GATE_AFTER_NORM = 0,  /**< The normalised row: Qwen3-Next, Kimi Linear. */
  FASTNORM_GATE_BEFORE_NORM = 1, /**< x, before residual and statistics: Mamba2. */
  FASTNORM_GATE_POSITION_MAX_ENUM = 0x7fffffff
} fastnorm_gate_position;

/** What a gate after the norm multiplies. */
typedef enum fastnorm_gate_source {
  FASTNORM_GATE_FROM_F32 = 0,     /**< The unrounded result. FLA, mamba, vLLM. */
  FASTNORM_GATE_FROM_ROUNDED = 1, /**< The result rounded to x's dtype. Hugging Face. */
  FASTNORM_GATE_SOURCE_MAX_ENUM = 0x7fffffff
} fastnorm_gate_source;

/** Where the sum of branch and residual is rounded to x's dtype T on its way. */
typedef enum fastnorm_sum_rounding {
  FASTNORM_SUM_ONCE = 0, /**< Nowhere: the product with alpha and the sum are one operation. */
  FASTNORM_SUM_EVERY_STEP = 1, /**< The product, the sum and the product with sum_scale. */
  FASTNORM_SUM_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_sum_rounding;

/** Where the modulation is rounded to x's dtype T on its way. */
typedef enum fastnorm_modulation_rounding {
  FASTNORM_MODULATION_ONCE = 0, /**< Nowhere: z * (1 + scale) + shift is one operation. */
  FASTNORM_MODULATION_EVERY_STEP =
      1, /**< z, the sums with tables, 1 + scale, the product, the sum: a chain in T. */
  FASTNORM_MODULATION_ROUNDING_MAX_ENUM = 0x7fffffff
} fastnorm_modulation_rounding;

/** Bits of fastnorm_norm_args.flags. Those of PDL are programmatic dependent launch, by which a
 *  kernel starts while the stream's previous one still runs. On the CPU and on GPUs before compute
 *  capability 9.0 they have no effect. Results never depend on them. */
typedef enum fastnorm_norm_flags {
  FASTNORM_NORM_PDL_WAIT = 1, /**< Start when the stream's previous kernel allows it; read and write
                                 nothing before that one has ended. */
  FASTNORM_NORM_PDL_TRIGGER = 2, /**< Let the stream's next kernel start once this one's rows are on
                                    their way. It must wait itself before it uses any result. */
  FASTNORM_NORM_PDL_CONSTANT_WEIGHTS =
      4, /**< With PDL_WAIT: weight and bias are not written by any kernel that may still run, and
            may be read before the wait. */
  FASTNORM_NORM_MODULATION_PLAIN_SCALE = 8, /**< The factor is modulation_scale, not 1 + it. */
  FASTNORM_NORM_FLAGS_MAX_ENUM = 0x7fffffff
} fastnorm_norm_flags;

/** One normalisation. `{0}` plus struct_size, x and y is a valid RMSNorm without weight and with
 *  eps 0.
 *
 *  Shapes: x is [..., n], rank 1 to 8, n from 1 to 2^32. T is x's dtype: f32, f16 or bf16. All
 *  tensors are on the context's device. Leading strides are free, 0 too for inputs; only the last
 *  dimension must be contiguous. Any alignment that the dtype allows.
 *
 *  Ranks 5 to 8: neighbouring leading dimensions are joined where every tensor steps evenly across
 *  both, as compact tensors do. Dimensions of extent 1 do not count. At most 3 may be left; more
 *  are FASTNORM_ERROR_UNSUPPORTED.
 *
 *  Dtypes: weight, bias, residual and residual_out are each f32, f16 or bf16, whatever T is. y is T
 *  or f32. Each tensor's address and strides are multiples of its own elements. On a GPU, calls
 *  with one dtype, or with f32 weight and bias beside 16-bit x, run on kernels of their own; other
 *  combinations run on general ones, which are slower.
 *
 *  weight and bias broadcast against x as in NumPy: their last extent is n, each leading extent is
 *  1 or x's, counted from the right, and missing ones are 1. Examples: [n], [1, n], [heads, n],
 *  [batch, 1, n]. They may vary along any leading dimensions. On a GPU, general kernels serve
 *  weights and biases that vary along more than one dimension (after joining). With
 *  FASTNORM_SCALE_SWIZZLED_128X4 they serve all that vary along another dimension than the
 *  innermost.
 *
 *  Aliasing: y and residual_out may each be x or residual, y also the gate, as the same view (same
 *  address, dtype, shape and strides). So y = x, residual_out = residual is in place, and y =
 *  residual, residual_out = x is allowed too; both may not be one tensor. Two tensors of which one
 *  is written may also be interleaved views of one buffer that share no element. Example: the query
 *  and the key heads of one fused QKV tensor. Any other overlap is FASTNORM_ERROR_LAYOUT. */
typedef struct fastnorm_norm_args {
  size_t struct_size;      /**< sizeof(fastnorm_norm_args). */
  fastnorm_norm_kind kind; /**< RMS or LAYER. */
  float eps;               /**< Finite, >= 0. */
  float weight_offset; /**< Added to the weight in f32: 0, or 1 for Gemma. Finite; 0 where weight is
                          NULL. */
  fastnorm_rounding rounding; /**< Default: round once. */
  fastnorm_residual_rounding
      residual_rounding; /**< Default: exact. Without effect where there is no residual. */
  uint32_t flags;        /**< fastnorm_norm_flags; 0. */

  const fastnorm_tensor* x;        /**< [..., n] T. Required. */
  const fastnorm_tensor* residual; /**< x's shape; f32, f16 or bf16. NULL = nothing is added. */
  const fastnorm_tensor* weight; /**< [.., n], broadcasts against x; f32, f16 or bf16. NULL = 1. */
  const fastnorm_tensor* bias;   /**< [.., n], broadcasts against x; f32, f16 or bf16. NULL = 0. */
  const fastnorm_tensor*
      y; /**< x's shape, T or f32. Output; may be x or residual. NULL = not stored; then `quantized`
            or `sumsq` is required. */
  const fastnorm_tensor*
      residual_out; /**< x's shape; f32, f16 or bf16. Output; may be residual or x. Needs residual.
                       NULL = not stored. */
  const fastnorm_tensor*
      mean; /**< x.shape[:-1], or that with a last 1; f32. Output, LAYER only. NULL = not stored. */
  const fastnorm_tensor* rstd; /**< As mean. Output. NULL = not stored. */

  fastnorm_quant_scheme quant_scheme; /**< Default: nothing is quantised. */
  int32_t quant_block_size;           /**< PER_BLOCK: 64 or 128 columns; else 0. */
  fastnorm_quant_source quant_source; /**< Default: from the unrounded result. */
  fastnorm_scale_layout scale_layout; /**< Default: row-major. */
  int32_t scale_pow2; /**< PER_ROW, PER_BLOCK with f8: 1 = scales are powers of two; else 0. */
  float amax_floor;   /**< PER_ROW, PER_BLOCK: least magnitude that a scale is made from, 2^-100 to
                         2^100; 0 = 1e-10. */
  float clamp; /**< > 0: results are clamped to [-clamp, clamp] before quantising; 0 = off. */
  fastnorm_quant_division quant_division; /**< PER_TENSOR, PER_ROW, PER_BLOCK: default, times the
                                             reciprocal; else 0. */
  const fastnorm_tensor* global_scale;    /**< [1] f32. NVFP4's second scale, of magnitude 2^-100 to
                                           2^100 and either sign; NULL = 1. */
  const fastnorm_tensor* quantized;       /**< Codes, x's shape (pairs of f4: half of n). Output. */
  const fastnorm_tensor* scale;           /**< Scales: input for PER_TENSOR, else output. */
  const fastnorm_tensor*
      amax; /**< [1] f32. In and out: raised to the greatest magnitude of what is quantised, or of y
               where nothing is; NaN wins. Needs one of them. The caller sets it to 0 first. */

  const fastnorm_tensor*
      clamp_scale; /**< [1] f32. The clamp as a value on the device, read after the PDL wait: > 0
                      clamps as `clamp` does, anything else (0, negative, NaN) is off. Needs a
                      scheme and clamp 0. NULL = `clamp` decides. */

  /** x's shape; T or f32. Each element's gate: see "Stages" above. y may be the same view, x may
   *  not overlap it. NULL = nothing is gated; then its three fields are 0. */
  const fastnorm_tensor* gate;
  fastnorm_activation gate_act;         /**< Of the gate. Default: identity. */
  fastnorm_gate_position gate_position; /**< Default: after the norm. */
  fastnorm_gate_source gate_source;     /**< Default: unrounded. Rounded only after the norm. */
  fastnorm_activation activation;       /**< Of the result, after the gate. Default: identity. */
  int64_t
      group_size; /**< Columns that share a statistic, a divisor of n; 0 = n. weight and bias are
                         then [.., n] or, the same for all groups, [.., group_size]. */
  /** Sums of several devices, f32. RMS: mean's shape, sum of squares. LAYER: [.., 2], mean and sum
   *  of (a - mean)^2. y may be NULL. Not with rstd_in, nor with FASTNORM_ROUND_EVERY_STEP. */
  const fastnorm_tensor* sumsq;
  const fastnorm_tensor* mean_in; /**< LAYER, with rstd_in: the mean to use. As mean. Input. */
  const fastnorm_tensor* rstd_in; /**< The rstd to use. As rstd. Not with mean, rstd, sumsq. */

  int32_t branch_norm; /**< 1: x, gated where that comes first, is normalised before the residual is
                          added. 0: it is not, and the fields of the branch are 0. */
  fastnorm_norm_kind branch_kind;     /**< RMS or LAYER. */
  float branch_eps;                   /**< Finite, >= 0. */
  float branch_weight_offset;         /**< Finite; 0 where branch_weight is NULL. */
  fastnorm_rounding branch_rounding;  /**< Default: not rounded. ONCE_RW is an error. */
  int32_t branch_rounded;             /**< 1: the branch is rounded to x's dtype before the sum. */
  float alpha;                        /**< Factor of the branch. Finite; 0 = 1. */
  fastnorm_sum_rounding sum_rounding; /**< Default: the sum is not rounded on its way. */
  const fastnorm_tensor* branch_weight; /**< As weight, [.., n]. NULL = 1. */
  const fastnorm_tensor* branch_bias;   /**< As bias, [.., n]. NULL = 0. */
  const fastnorm_tensor* branch_rstd;   /**< x.shape[:-1], or that with a last 1; f32. Output. */
  const fastnorm_tensor* sum_scale; /**< [1] f32. Factor of the sum, a value on the device. Input;
                                           NULL = 1. */

  /** Factor of the branch in the sum, T or f32. Broadcasts against x as in NumPy: each extent is 1
   *  or x's, counted from the right, and missing ones are 1. Examples: [1], [batch, 1, n],
   *  [batch, tokens, 1]. With modulation_index [m, n] or [m, 1]. NULL = 1. */
  const fastnorm_tensor* residual_gate;
  /** [n], or with leading extents of 1; T or f32. Added to residual_gate. NULL = 0. */
  const fastnorm_tensor* residual_gate_table;
  fastnorm_activation residual_gate_act; /**< Of that sum. Default: identity. */
  fastnorm_modulation_rounding
      modulation_rounding; /**< Default: the modulation is not rounded on its way. Needs
                              modulation_scale or modulation_shift. */
  /** As residual_gate: 1 + it is the factor of the normalised row. NULL = nothing is multiplied. */
  const fastnorm_tensor* modulation_scale;
  const fastnorm_tensor* scale_table; /**< As residual_gate_table, of modulation_scale. */
  /** As residual_gate: added to the normalised row. NULL = nothing is added. */
  const fastnorm_tensor* modulation_shift;
  const fastnorm_tensor* shift_table; /**< As residual_gate_table, of modulation_shift. */
  /** x.shape[:-1], or that with a last 1; i32 or i64. Which row of each modulator a row of x takes.
   *  NULL = they broadcast. */
  const fastnorm_tensor* modulation_index;
} fastnorm_norm_args;

/** Say what a call would do: workspace, kernel, launches, bytes. The memory of the tensors is not
 *  touched; the addresses count, since overlap and alignment follow from them.
 *  @param context the device
 *  @param args    as for the call
 *  @param info    struct_size in; receives the rest
 *  @return as fastnorm_norm; FASTNORM_ERROR_ARGUMENT also if info is null or its struct_size too
 *  small
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_norm_query(fastnorm_context* context,
                                                 const fastnorm_norm_args* args,
                                                 fastnorm_info* info);

/** Load what a call needs (CUDA loads a kernel at its first use, which allocates and may
 *  synchronise). After it, calls that use the same kernel neither allocate nor synchronise, and can
 *  be captured in a CUDA graph. Optional: the first call does the same.
 *  @param context the device
 *  @param args    as for the call
 *  @return as fastnorm_norm
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_norm_prepare(fastnorm_context* context,
                                                   const fastnorm_norm_args* args);

/** Normalise the rows of x; the formula is at the top of this header.
 *
 *  CUDA: one kernel is queued on `stream` and the call returns. It may be captured in a CUDA graph,
 *  targets the context's device whatever device is current, and leaves the current device as it
 *  was. CPU: done when it returns. Once prepared: no allocation, no synchronisation, no lock.
 *  Zero rows are success: nothing is launched, nothing written.
 *
 *  @param context         the device
 *  @param args            what to compute; read during the call only
 *  @param workspace       fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned,
 *  contents undefined, not to be used by anything else until the work has run; NULL where 0 bytes
 *  are needed
 *  @param workspace_bytes size of workspace
 *  @param stream          CUDA: the cudaStream_t; NULL = the legacy default stream, and the
 *  runtime's special handles pass. CPU: NULL
 *  @return FASTNORM_OK
 *          FASTNORM_ERROR_ARGUMENT: null context, args or x, no output; a tensor whose shape is
 *          null, or its data though it has elements; a struct_size that is too small; an enum, eps,
 *          offset or other scalar out of range; too small a workspace; a stream on the CPU; a
 *          parallel_for that did not cover the rows exactly once, when some may have been written
 *          FASTNORM_ERROR_SHAPE: ranks or extents that do not fit; n < 1 or n > 2^32
 *          FASTNORM_ERROR_DTYPE: a dtype that the tensor's role does not allow
 *          FASTNORM_ERROR_LAYOUT: last dimension not contiguous, misaligned address, overlap
 *          FASTNORM_ERROR_UNSUPPORTED: a field of a later version, an unknown tail that is not
 *          zero, more rows than a grid holds; leading dimensions that do not fold
 *          FASTNORM_ERROR_DEVICE: a tensor on another device; a current CUDA context of the device
 *          that is not its primary one; the CUDA runtime's error, also a sticky one of earlier work
 *          FASTNORM_ERROR_OUT_OF_MEMORY: the CUDA runtime had no memory, as for loading the kernel
 *          FASTNORM_ERROR_INTERNAL: a defect of this library; an exception out of parallel_for
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_norm(fastnorm_context* context,
                                           const fastnorm_norm_args* args, void* workspace,
                                           size_t workspace_bytes, void* stream);

/** As fastnorm_norm_query, for fastnorm_norm_many: the sum of its parts; `kernel` is that of the
 *  first part with rows.
 *  @param context the device
 *  @param args    [count] pointers, as for the call
 *  @param count   0 to 8
 *  @param info    struct_size in; receives the rest
 *  @return as fastnorm_norm_query
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_norm_many_query(fastnorm_context* context,
                                                      const fastnorm_norm_args* const* args,
                                                      int32_t count, fastnorm_info* info);

/** As fastnorm_norm_prepare, for fastnorm_norm_many.
 *  @param context the device
 *  @param args    [count] pointers, as for the call
 *  @param count   0 to 8
 *  @return as fastnorm_norm_prepare
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_norm_many_prepare(fastnorm_context* context,
                                                        const fastnorm_norm_args* const* args,
                                                        int32_t count);

/** Run several normalisations, with the results of one fastnorm_norm each, in order: such as the
 *  query heads and the key heads of one fused QKV tensor, which have different weights. All are
 *  checked, against each other too, before anything is launched. No call may read what another of
 *  the same fastnorm_norm_many writes. CUDA: two neighbours in the list that share a kernel of
 *  short rows, have the same flags and at most two leading dimensions are one launch;
 *  fastnorm_info.launches counts them.
 *  @param context         the device
 *  @param args            [count] pointers
 *  @param count           0 to 8
 *  @param workspace       as fastnorm_norm
 *  @param workspace_bytes size of workspace
 *  @param stream          as fastnorm_norm
 *  @return as fastnorm_norm; the text names the part, as args[i]. CUDA: where the runtime refuses a
 *  launch, those of the parts before it are queued
 *  @since 0.1 */
FASTNORM_API fastnorm_status fastnorm_norm_many(fastnorm_context* context,
                                                const fastnorm_norm_args* const* args,
                                                int32_t count, void* workspace,
                                                size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* FASTNORM_NORM_H_ */
