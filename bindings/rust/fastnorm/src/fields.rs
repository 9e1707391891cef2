// Generated from the public headers by bindings/swig/generate.py; do not edit.
//! Enums, and what descriptions have of the fields of their C structs.

#![allow(clippy::needless_pass_by_value)] // the borrow of a tensor moves in

use std::fmt;
use std::marker::PhantomData;

use crate::slots::{kind_name, set_flag, Views};
use crate::tensor::View;
use crate::{
    sys, MlaDecode, NcclOptions, Norm, NormBackward, NormHeads, NormHeadsBackward,
    NormHeadsBackwardPart, NormHeadsPart, PeerAllreduceNorm, PeerOptions, PeerShardedNorm, Quant,
    Tensor, TensorMut,
};

/// Where y is rounded to x's dtype T while it is computed. The rounding to T takes place even if y
/// is f32 and x has 16 bits. If T is f32, `Once` and `Normalized` are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rounding {
    /// Only when y is stored, as in FlashInfer, quack, Transformer Engine and Gemma.
    #[default]
    Once,
    /// Also t, before the weight multiplies it, as in Llama, Mistral and Qwen as published.
    Normalized,
    /// Every elementwise result: (a - mean), its square, the variance, variance + eps, the root, t,
    /// weight + weight_offset, the product and the sum. A 16-bit eager chain rounds like this.
    EveryStep,
    /// Only when y is stored, but with the product taken in another order: (b - mean) \* (rstd \*
    /// (weight + weight_offset)) + bias in place of ((b - mean) \* rstd) \* (weight +
    /// weight_offset) + bias. The fused kernels of query/key norm and rope in vLLM, TensorRT-LLM
    /// and SGLang compute the norm like this.
    OnceRw,
}

impl Rounding {
    /// Its number in the C ABI.
    #[inline]
    pub fn raw(self) -> sys::fastnorm_rounding {
        match self {
            Self::Once => sys::FASTNORM_ROUND_ONCE,
            Self::Normalized => sys::FASTNORM_ROUND_NORMALIZED,
            Self::EveryStep => sys::FASTNORM_ROUND_EVERY_STEP,
            Self::OnceRw => sys::FASTNORM_ROUND_ONCE_RW,
        }
    }
}

/// Which value of the sum x + residual is normalised. R is the dtype of residual_out, or that of
/// residual if there is no residual_out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResidualRounding {
    /// The single-precision sum, both for the statistics and for t.
    #[default]
    Exact,
    /// The statistics use the single-precision sum; t uses the sum rounded to R.
    BeforeApply,
    /// Both use the sum rounded to R, as if the addition were a separate operation.
    BeforeStatistics,
}

impl ResidualRounding {
    /// Its number in the C ABI.
    #[inline]
    pub fn raw(self) -> sys::fastnorm_residual_rounding {
        match self {
            Self::Exact => sys::FASTNORM_RESIDUAL_EXACT,
            Self::BeforeApply => sys::FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY,
            Self::BeforeStatistics => sys::FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS,
        }
    }
}

/// Which value is quantised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuantSource {
    /// The unrounded result.
    #[default]
    Exact,
    /// The result rounded to x's dtype, as a chain of unfused operations would quantise it.
    Rounded,
}

impl QuantSource {
    /// Its number in the C ABI.
    #[inline]
    pub fn raw(self) -> sys::fastnorm_quant_source {
        match self {
            Self::Exact => sys::FASTNORM_QUANT_FROM_F32,
            Self::Rounded => sys::FASTNORM_QUANT_FROM_ROUNDED,
        }
    }
}

/// How `per_tensor`, `per_row` and `per_block` compute a code from z and its scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuantDivision {
    /// code = z \* (1 / scale), which rounds twice.
    #[default]
    MultiplyReciprocal,
    /// code = z / scale, which rounds once, as the dynamic fp8 of vLLM does. If the scales are
    /// powers of two (scale_pow2), both ways give the same codes.
    Divide,
}

impl QuantDivision {
    /// Its number in the C ABI.
    #[inline]
    pub fn raw(self) -> sys::fastnorm_quant_division {
        match self {
            Self::MultiplyReciprocal => sys::FASTNORM_QUANT_MULTIPLY_RECIPROCAL,
            Self::Divide => sys::FASTNORM_QUANT_DIVIDE,
        }
    }
}

/// The order of the scales of blocks in memory. If the scale tensor has strides, they decide the
/// order in the first two layouts. Nothing outside the tensor's shape is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScaleLayout {
    /// The scales of one row are adjacent.
    #[default]
    RowMajor,
    /// The scales of one column of blocks are adjacent, if the tensor has no strides.
    ColumnMajor,
    /// One-byte scales in a tensor `[512 * ceil(rows / 128) * T]` with T = ceil(K / 4), where K is
    /// the number of scales of a row. Scale k of row m is at (m / 128 \* T + k / 4) \* 512 + m % 32
    /// \* 16 + m % 128 / 32 \* 4 + k % 4. All padding is written as 0.
    Swizzled128x4,
}

impl ScaleLayout {
    /// Its number in the C ABI.
    #[inline]
    pub fn raw(self) -> sys::fastnorm_scale_layout {
        match self {
            Self::RowMajor => sys::FASTNORM_SCALE_ROW_MAJOR,
            Self::ColumnMajor => sys::FASTNORM_SCALE_COLUMN_MAJOR,
            Self::Swizzled128x4 => sys::FASTNORM_SCALE_SWIZZLED_128X4,
        }
    }
}

/// A function that is applied to each element. docs/numerics.md gives its operations, which are the
/// same on every device and so give the same bits everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// v.
    #[default]
    Identity,
    /// v / (1 + exp(-v)); the result is -0 for v of -110 and below, including -Inf.
    Silu,
    /// 1 / (1 + exp(-v)).
    Sigmoid,
    /// tanh(v).
    Tanh,
}

impl Activation {
    /// Its number in the C ABI.
    #[inline]
    pub fn raw(self) -> sys::fastnorm_activation {
        match self {
            Self::Identity => sys::FASTNORM_ACTIVATION_IDENTITY,
            Self::Silu => sys::FASTNORM_ACTIVATION_SILU,
            Self::Sigmoid => sys::FASTNORM_ACTIVATION_SIGMOID,
            Self::Tanh => sys::FASTNORM_ACTIVATION_TANH,
        }
    }
}

/// Which row the gate multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GatePosition {
    /// The normalised row, as in Qwen3-Next and Kimi Linear.
    #[default]
    AfterNorm,
    /// x, before the residual is added and the statistics are taken, as in Mamba2.
    BeforeNorm,
}

impl GatePosition {
    /// Its number in the C ABI.
    #[inline]
    pub fn raw(self) -> sys::fastnorm_gate_position {
        match self {
            Self::AfterNorm => sys::FASTNORM_GATE_AFTER_NORM,
            Self::BeforeNorm => sys::FASTNORM_GATE_BEFORE_NORM,
        }
    }
}

/// Which value a gate after the norm multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateSource {
    /// The unrounded result, as in FLA, mamba and vLLM.
    #[default]
    Exact,
    /// The result rounded to x's dtype, as in Hugging Face.
    Rounded,
}

impl GateSource {
    /// Its number in the C ABI.
    #[inline]
    pub fn raw(self) -> sys::fastnorm_gate_source {
        match self {
            Self::Exact => sys::FASTNORM_GATE_FROM_F32,
            Self::Rounded => sys::FASTNORM_GATE_FROM_ROUNDED,
        }
    }
}

/// Where the sum of branch and residual is rounded to x's dtype T while it is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SumRounding {
    /// Nowhere: the product with alpha and the addition of the residual are one fused operation.
    #[default]
    Once,
    /// The product, the sum and the product with sum_scale.
    EveryStep,
}

impl SumRounding {
    /// Its number in the C ABI.
    #[inline]
    pub fn raw(self) -> sys::fastnorm_sum_rounding {
        match self {
            Self::Once => sys::FASTNORM_SUM_ONCE,
            Self::EveryStep => sys::FASTNORM_SUM_EVERY_STEP,
        }
    }
}

/// Where the modulation is rounded to x's dtype T while it is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModulationRounding {
    /// Nowhere: z \* (1 + scale) + shift is one operation.
    #[default]
    Once,
    /// z, the sums with tables, 1 + scale, the product and the sum, as a chain of operations in T
    /// rounds them.
    EveryStep,
}

impl ModulationRounding {
    /// Its number in the C ABI.
    #[inline]
    pub fn raw(self) -> sys::fastnorm_modulation_rounding {
        match self {
            Self::Once => sys::FASTNORM_MODULATION_ONCE,
            Self::EveryStep => sys::FASTNORM_MODULATION_EVERY_STEP,
        }
    }
}

/// The base of the logarithm in which lse is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LseBase {
    /// The natural logarithm, as in PyTorch and FlashMLA.
    #[default]
    Natural,
    /// The logarithm to base 2, as in FlashInfer. Its value is the natural one times log2(e).
    Base2,
}

impl LseBase {
    /// Its number in the C ABI.
    #[inline]
    pub fn raw(self) -> sys::fastnorm_lse_base {
        match self {
            Self::Natural => sys::FASTNORM_LSE_NATURAL,
            Self::Base2 => sys::FASTNORM_LSE_BASE_2,
        }
    }
}

/// How the rows of the cache are stored. The table at the top of this header has their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MlaCacheFormat {
    /// Rows of T: the tensors ckv and kpe.
    #[default]
    Rows,
    /// Rows of 656 bytes: 512 codes, 4 scales of f32, 64 numbers of bf16.
    Bytes656,
    /// Rows of 576 codes, with one scale for the whole tensor.
    Bytes576,
    /// Rows of 584 bytes: 448 codes, 64 numbers of bf16 and, behind the rows of the page, 7 scales
    /// of e8m0 and a byte that is not used. A head has 512 columns.
    Bytes584,
}

impl MlaCacheFormat {
    /// Its number in the C ABI.
    #[inline]
    pub fn raw(self) -> sys::fastnorm_mla_cache_format {
        match self {
            Self::Rows => sys::FASTNORM_MLA_CACHE_ROWS,
            Self::Bytes656 => sys::FASTNORM_MLA_CACHE_BYTES_656,
            Self::Bytes576 => sys::FASTNORM_MLA_CACHE_BYTES_576,
            Self::Bytes584 => sys::FASTNORM_MLA_CACHE_BYTES_584,
        }
    }
}

/// Where rope rounds to x's dtype T while it is computed. If T is f32, rounding changes nothing,
/// but `EveryStep` still adds separate products instead of fusing one of them with the addition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RopeRounding {
    /// Only when the result is stored, as in FlashInfer, vLLM and SGLang.
    #[default]
    Once,
    /// Also every product, as a 16-bit eager chain does.
    EveryStep,
}

impl RopeRounding {
    /// Its number in the C ABI.
    #[inline]
    pub fn raw(self) -> sys::fastnorm_rope_rounding {
        match self {
            Self::Once => sys::FASTNORM_ROPE_ONCE,
            Self::EveryStep => sys::FASTNORM_ROPE_EVERY_STEP,
        }
    }
}

/// How rows travel between the ranks. Results do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerAlgorithm {
    /// The library chooses by the numbers of rows, columns and ranks and by the dtype: one-shot up
    /// to one_shot_bytes, two-shot above.
    #[default]
    Auto,
    /// Each rank sends its rows to all ranks, and each rank adds up all rows.
    OneShot,
    /// Each rank adds up a share of the rows and sends these sums to all ranks.
    TwoShot,
}

impl PeerAlgorithm {
    /// Its number in the C ABI.
    #[inline]
    pub fn raw(self) -> sys::fastnorm_peer_algorithm {
        match self {
            Self::Auto => sys::FASTNORM_PEER_AUTO,
            Self::OneShot => sys::FASTNORM_PEER_ONE_SHOT,
            Self::TwoShot => sys::FASTNORM_PEER_TWO_SHOT,
        }
    }
}

/// Which value of the sum of the ranks' rows is normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerSumRounding {
    /// The sum rounded to x's dtype T before the residual is added, as an all-reduce in T gives it.
    #[default]
    Rounded,
    /// The single-precision sum.
    Exact,
}

impl PeerSumRounding {
    /// Its number in the C ABI.
    #[inline]
    pub fn raw(self) -> sys::fastnorm_peer_sum_rounding {
        match self {
            Self::Rounded => sys::FASTNORM_PEER_SUM_ROUNDED,
            Self::Exact => sys::FASTNORM_PEER_SUM_EXACT,
        }
    }
}

pub(crate) type QuantViews = Views<6>;

impl<'a> Quant<'a> {
    /// Which value is quantised. Default: the unrounded result.
    #[inline]
    pub fn source(mut self, source: QuantSource) -> Self {
        self.args.source = source.raw();
        self
    }

    /// `per_tensor`, `per_row` and `per_block`: how codes are made. Default: z times the reciprocal
    /// of the scale. Other schemes: 0.
    #[inline]
    pub fn division(mut self, division: QuantDivision) -> Self {
        self.args.division = division.raw();
        self
    }

    /// The order of the scales of blocks in memory. Default: row-major.
    #[inline]
    pub fn layout(mut self, layout: ScaleLayout) -> Self {
        self.args.scale_layout = layout.raw();
        self
    }

    /// `per_row` and `per_block` with f8 codes: On = scales are powers of two; else 0.
    #[inline]
    pub fn pow2(mut self, pow2: bool) -> Self {
        self.args.scale_pow2 = i32::from(pow2);
        self
    }

    /// `per_row` and `per_block`: the least magnitude that a scale is made from, between 2^-100 and
    /// 2^100; 0 = 1e-10.
    #[inline]
    pub fn amax_floor(mut self, amax_floor: f32) -> Self {
        self.args.amax_floor = amax_floor;
        self
    }

    /// \> 0: results are clamped to `[-clamp, clamp]` before quantising; 0 = no clamp.
    #[inline]
    pub fn clamp(mut self, clamp: f32) -> Self {
        self.args.clamp = clamp;
        self
    }

    /// The second scale of `nvfp4`, of either sign and with a magnitude between 2^-100 and 2^100.
    /// `[1]` f32; default: 1.
    #[inline]
    pub fn global_scale(mut self, global_scale: Tensor<'a>) -> Self {
        self.views.put(2, global_scale.view);
        self
    }

    /// A clamp whose value lies on the device and is read after the PDL wait. `[1]` f32. A value
    /// above 0 clamps as clamp does; any other value (0, negative or NaN) clamps nothing. Requires
    /// a scheme, and clamp must be 0. Default: clamp decides.
    #[inline]
    pub fn clamp_scale(mut self, clamp_scale: Tensor<'a>) -> Self {
        self.views.put(3, clamp_scale.view);
        self
    }

    /// The greatest magnitude of what is quantised or, if nothing is quantised, of y. `[1]` f32.
    /// Input and output: the call raises the value that is there, which the caller sets to 0
    /// beforehand. If any value is NaN, it becomes NaN. Requires quantized or y.
    #[inline]
    pub fn amax(mut self, amax: TensorMut<'a>) -> Self {
        self.views.put(4, amax.view);
        self
    }

    /// Number of columns of a block that is rotated before its scale is found: 16, 32, 64 or 128, a
    /// divisor of n. If the scheme has scales of blocks, their columns are a multiple of it. 0 =
    /// nothing is rotated.
    #[inline]
    pub fn rotation(mut self, rotation: i32) -> Self {
        self.args.rotation = rotation;
        self
    }

    /// On = y is the rotated result, of which quantized holds the codes; else 0. Requires rotation.
    /// Default: y is as without a rotation.
    #[inline]
    pub fn y_rotated(mut self, y_rotated: bool) -> Self {
        self.args.y_rotated = i32::from(y_rotated);
        self
    }

    /// What each column is multiplied by before the rotation, 1 or -1: `[n]`, or `[rotation]` for
    /// all blocks. f32. The CPU refuses other values before it writes anything. A GPU does not look
    /// at them and takes their signs alone. Requires rotation. Default: 1.
    #[inline]
    pub fn rotation_signs(mut self, rotation_signs: Tensor<'a>) -> Self {
        self.views.put(5, rotation_signs.view);
        self
    }

    #[inline]
    pub(crate) fn put_quantized(mut self, quantized: View) -> Self {
        self.views.put(0, quantized);
        self
    }

    #[inline]
    pub(crate) fn put_scale(mut self, scale: View) -> Self {
        self.views.put(1, scale);
        self
    }

    /// Points the arguments at the tensors and these at their shapes, until the
    /// description is moved.
    pub(crate) fn link(&mut self) -> *const sys::fastnorm_quant {
        self.views.link(0, &mut self.args.quantized);
        self.views.link(1, &mut self.args.scale);
        self.views.link(2, &mut self.args.global_scale);
        self.views.link(3, &mut self.args.clamp_scale);
        self.views.link(4, &mut self.args.amax);
        self.views.link(5, &mut self.args.rotation_signs);
        &self.args
    }

    /// A copy that links where only a shared borrow is at hand. It is never run.
    pub(crate) fn copied(&self) -> Quant<'_> {
        Quant {
            args: self.args,
            views: self.views,
            borrow: PhantomData,
        }
    }
}

impl fmt::Debug for Quant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Quant");
        shown.field("scheme", &self.args.scheme);
        self.views.show(0, "quantized", &mut shown);
        self.views.show(1, "scale", &mut shown);
        self.views.show(2, "global_scale", &mut shown);
        self.views.show(3, "clamp_scale", &mut shown);
        self.views.show(4, "amax", &mut shown);
        self.views.show(5, "rotation_signs", &mut shown);
        shown.finish_non_exhaustive()
    }
}

pub(crate) type NormViews = Views<23>;

impl<'a> Norm<'a> {
    /// Added to the weight in f32, such as 1 for Gemma. Finite; 0 if weight is absent.
    #[inline]
    pub fn weight_offset(mut self, weight_offset: f32) -> Self {
        self.args.weight_offset = weight_offset;
        self
    }

    /// Where y is rounded while it is computed. Default: only when it is stored.
    #[inline]
    pub fn rounding(mut self, rounding: Rounding) -> Self {
        self.args.rounding = rounding.raw();
        self
    }

    /// Which value of the sum x + residual is normalised. Default: the exact sum. It has no effect
    /// without a residual.
    #[inline]
    pub fn residual_rounding(mut self, residual_rounding: ResidualRounding) -> Self {
        self.args.residual_rounding = residual_rounding.raw();
        self
    }

    /// `[..., n]` T. Required.
    #[inline]
    pub fn x(mut self, x: Tensor<'a>) -> Self {
        self.views.put(0, x.view);
        self
    }

    /// Added to x before the norm. x's shape; f32, f16 or bf16. Default: nothing is added.
    #[inline]
    pub fn residual(mut self, residual: Tensor<'a>) -> Self {
        self.views.put(1, residual.view);
        self
    }

    /// `[.., n]`, broadcasts against x; f32, f16 or bf16. Default: 1.
    #[inline]
    pub fn weight(mut self, weight: Tensor<'a>) -> Self {
        self.views.put(2, weight.view);
        self
    }

    /// `[.., n]`, broadcasts against x; f32, f16 or bf16. Default: 0.
    #[inline]
    pub fn bias(mut self, bias: Tensor<'a>) -> Self {
        self.views.put(3, bias.view);
        self
    }

    /// The normalised rows. x's shape, T or f32. Output; may be x or residual. Default: not stored;
    /// then quant.quantized or sumsq is required.
    #[inline]
    pub fn y(mut self, y: TensorMut<'a>) -> Self {
        self.views.put(4, y.view);
        self
    }

    /// The sum x + residual. x's shape; f32, f16 or bf16. Output; may be residual or x. Requires
    /// residual. Default: not stored.
    #[inline]
    pub fn residual_out(mut self, residual_out: TensorMut<'a>) -> Self {
        self.views.put(5, residual_out.view);
        self
    }

    /// The mean of each row. `x.shape[:-1]`, or that with a last extent of 1; f32. Output, layer
    /// only. Default: not stored.
    #[inline]
    pub fn mean(mut self, mean: TensorMut<'a>) -> Self {
        self.views.put(6, mean.view);
        self
    }

    /// The reciprocal of each row's root mean square (rms) or standard deviation (layer), with eps;
    /// the shape and dtype are those of mean. Output. Default: not stored.
    #[inline]
    pub fn rstd(mut self, rstd: TensorMut<'a>) -> Self {
        self.views.put(7, rstd.view);
        self
    }

    /// How and where codes are stored, and the amax of y. Default: nothing is quantised.
    #[inline]
    pub fn quant(mut self, quant: Quant<'a>) -> Self {
        self.quant = Some(quant);
        self
    }

    /// The gate of each element: see [stages](#stages). x's shape; T or f32. y may be the same
    /// view, but x must not overlap it. Default: nothing is gated; then
    /// [`gate_act`](Self::gate_act), [`gate_position`](Self::gate_position) and
    /// [`gate_source`](Self::gate_source) must be 0.
    #[inline]
    pub fn gate(mut self, gate: Tensor<'a>) -> Self {
        self.views.put(8, gate.view);
        self
    }

    /// The function that is applied to the gate. Default: identity.
    #[inline]
    pub fn gate_act(mut self, gate_act: Activation) -> Self {
        self.args.gate_act = gate_act.raw();
        self
    }

    /// Which row the gate multiplies. Default: the normalised row.
    #[inline]
    pub fn gate_position(mut self, gate_position: GatePosition) -> Self {
        self.args.gate_position = gate_position.raw();
        self
    }

    /// Which value a gate after the norm multiplies. Default: the unrounded result. With a gate
    /// before the norm it must be the default.
    #[inline]
    pub fn gate_source(mut self, gate_source: GateSource) -> Self {
        self.args.gate_source = gate_source.raw();
        self
    }

    /// The function that is applied to the result, after the gate. Default: identity.
    #[inline]
    pub fn activation(mut self, activation: Activation) -> Self {
        self.args.activation = activation.raw();
        self
    }

    /// Number of columns that share a statistic, a divisor of n; 0 = n. With groups, weight and
    /// bias are `[.., n]` or, if all groups share them, `[.., group_size]`.
    #[inline]
    pub fn group_size(mut self, group_size: usize) -> Self {
        self.args.group_size = i64::try_from(group_size).unwrap_or(i64::MAX);
        self
    }

    /// This device's part of a statistic of several devices, f32. Rms: the sum of squares, of
    /// mean's shape. Layer: the mean and the sum of (a - mean)^2, in a last extent of 2. Output; y
    /// may be absent. Not with [`rstd_in`](Self::rstd_in), nor with `Rounding::EveryStep`.
    #[inline]
    pub fn sumsq(mut self, sumsq: TensorMut<'a>) -> Self {
        self.views.put(9, sumsq.view);
        self
    }

    /// Layer: the mean to use in place of the row's own, together with [`rstd_in`](Self::rstd_in);
    /// the shape and dtype are those of mean. Input.
    #[inline]
    pub fn mean_in(mut self, mean_in: Tensor<'a>) -> Self {
        self.views.put(10, mean_in.view);
        self
    }

    /// The rstd to use in place of the row's own; the shape and dtype are those of rstd. Input. Not
    /// with mean, rstd or sumsq.
    #[inline]
    pub fn rstd_in(mut self, rstd_in: Tensor<'a>) -> Self {
        self.views.put(11, rstd_in.view);
        self
    }

    /// Added to [`branch_weight`](Self::branch_weight) in f32. Finite; 0 if
    /// [`branch_weight`](Self::branch_weight) is absent.
    #[inline]
    pub fn branch_weight_offset(mut self, branch_weight_offset: f32) -> Self {
        self.args.branch_weight_offset = branch_weight_offset;
        self
    }

    /// Where the branch's norm rounds to x's dtype. Default: nowhere. `Rounding::OnceRw` is an
    /// error.
    #[inline]
    pub fn branch_rounding(mut self, branch_rounding: Rounding) -> Self {
        self.args.branch_rounding = branch_rounding.raw();
        self
    }

    /// On: the branch is rounded to x's dtype before the sum.
    #[inline]
    pub fn branch_rounded(mut self, branch_rounded: bool) -> Self {
        self.args.branch_rounded = i32::from(branch_rounded);
        self
    }

    /// Factor of the branch, finite. Default: none.
    #[inline]
    pub fn alpha(mut self, alpha: f32) -> Self {
        self.args.alpha = alpha;
        self.flag(sys::FASTNORM_NORM_ALPHA, true);
        self
    }

    /// Where the sum is rounded while it is computed. Default: nowhere.
    #[inline]
    pub fn sum_rounding(mut self, sum_rounding: SumRounding) -> Self {
        self.args.sum_rounding = sum_rounding.raw();
        self
    }

    /// The weight of the branch's norm, `[.., n]`, with the rules of weight. Default: 1.
    #[inline]
    pub fn branch_weight(mut self, branch_weight: Tensor<'a>) -> Self {
        self.views.put(12, branch_weight.view);
        self
    }

    /// The bias of the branch's norm, `[.., n]`, with the rules of bias. Default: 0.
    #[inline]
    pub fn branch_bias(mut self, branch_bias: Tensor<'a>) -> Self {
        self.views.put(13, branch_bias.view);
        self
    }

    /// The rstd of the branch's norm. `x.shape[:-1]`, or that with a last extent of 1; f32. Output.
    /// Default: not stored.
    #[inline]
    pub fn branch_rstd(mut self, branch_rstd: TensorMut<'a>) -> Self {
        self.views.put(14, branch_rstd.view);
        self
    }

    /// A factor of the sum, whose value lies on the device. `[1]` f32. Input; default: 1.
    #[inline]
    pub fn sum_scale(mut self, sum_scale: Tensor<'a>) -> Self {
        self.views.put(15, sum_scale.view);
        self
    }

    /// Factor of the branch in the sum, T or f32. It broadcasts against x as in NumPy: counted from
    /// the right, each extent is 1 or that of x, and missing extents are 1. Examples are `[1]`,
    /// `[batch, 1, n]` and `[batch, tokens, 1]`. With [`modulation_index`](Self::modulation_index)
    /// it is `[m, n]` or `[m, 1]`. Default: 1.
    #[inline]
    pub fn residual_gate(mut self, residual_gate: Tensor<'a>) -> Self {
        self.views.put(16, residual_gate.view);
        self
    }

    /// A row that is added to [`residual_gate`](Self::residual_gate): `[n]`, or with leading
    /// extents of 1; T or f32. Default: 0.
    #[inline]
    pub fn residual_gate_table(mut self, residual_gate_table: Tensor<'a>) -> Self {
        self.views.put(17, residual_gate_table.view);
        self
    }

    /// The function that is applied to the sum of [`residual_gate`](Self::residual_gate) and its
    /// table. Default: identity.
    #[inline]
    pub fn residual_gate_act(mut self, residual_gate_act: Activation) -> Self {
        self.args.residual_gate_act = residual_gate_act.raw();
        self
    }

    /// Where the modulation is rounded while it is computed. Default: nowhere. Requires
    /// [`modulation_scale`](Self::modulation_scale) or
    /// [`modulation_shift`](Self::modulation_shift).
    #[inline]
    pub fn modulation_rounding(mut self, modulation_rounding: ModulationRounding) -> Self {
        self.args.modulation_rounding = modulation_rounding.raw();
        self
    }

    /// The normalised row is multiplied by 1 + modulation_scale. Shape and dtype follow the rules
    /// of [`residual_gate`](Self::residual_gate). Default: nothing is multiplied.
    #[inline]
    pub fn modulation_scale(mut self, modulation_scale: Tensor<'a>) -> Self {
        self.views.put(18, modulation_scale.view);
        self
    }

    /// A row that is added to [`modulation_scale`](Self::modulation_scale), with the rules of
    /// [`residual_gate_table`](Self::residual_gate_table). Default: 0.
    #[inline]
    pub fn scale_table(mut self, scale_table: Tensor<'a>) -> Self {
        self.views.put(19, scale_table.view);
        self
    }

    /// Added to the normalised row after the multiplication. Shape and dtype follow the rules of
    /// [`residual_gate`](Self::residual_gate). Default: nothing is added.
    #[inline]
    pub fn modulation_shift(mut self, modulation_shift: Tensor<'a>) -> Self {
        self.views.put(20, modulation_shift.view);
        self
    }

    /// A row that is added to [`modulation_shift`](Self::modulation_shift), with the rules of
    /// [`residual_gate_table`](Self::residual_gate_table). Default: 0.
    #[inline]
    pub fn shift_table(mut self, shift_table: Tensor<'a>) -> Self {
        self.views.put(21, shift_table.view);
        self
    }

    /// The row of the modulators that each row of x takes. `x.shape[:-1]`, or that with a last
    /// extent of 1; i32 or i64. Default: the modulators broadcast.
    #[inline]
    pub fn modulation_index(mut self, modulation_index: Tensor<'a>) -> Self {
        self.views.put(22, modulation_index.view);
        self
    }

    /// x and y in one: the result replaces what is read.
    #[inline]
    pub fn x_in_place(mut self, x: TensorMut<'a>) -> Self {
        self.views.put(0, x.view);
        self.views.put(4, x.view);
        self
    }

    /// residual and [`residual_out`](Self::residual_out) in one: the result replaces what is read.
    #[inline]
    pub fn residual_in_place(mut self, residual: TensorMut<'a>) -> Self {
        self.views.put(1, residual.view);
        self.views.put(5, residual.view);
        self
    }

    /// gate and y in one: the result replaces what is read.
    #[inline]
    pub fn gate_in_place(mut self, gate: TensorMut<'a>) -> Self {
        self.views.put(8, gate.view);
        self.views.put(4, gate.view);
        self
    }

    /// Start when the previous kernel of the stream allows it, but read and write nothing before
    /// that kernel has ended. Default: off.
    #[inline]
    pub fn pdl_wait(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_PDL_WAIT, on);
        self
    }

    /// Let the next kernel of the stream start early: if this one waits, after its wait, so at the
    /// earliest when everything before this call has ended. The next kernel must wait itself before
    /// it uses anything that any earlier kernel of the stream wrote. Default: off.
    #[inline]
    pub fn pdl_trigger(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_PDL_TRIGGER, on);
        self
    }

    /// With `pdl_wait`: weight and bias may be read before the wait. The caller promises that no
    /// kernel that may still run writes them. Default: off.
    #[inline]
    pub fn pdl_constant_weights(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_PDL_CONSTANT_WEIGHTS, on);
        self
    }

    /// The factor of the modulation is [`modulation_scale`](Self::modulation_scale) itself, in
    /// place of 1 + [`modulation_scale`](Self::modulation_scale). Default: off.
    #[inline]
    pub fn modulation_plain_scale(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_MODULATION_PLAIN_SCALE, on);
        self
    }

    /// Programmatic dependent launch is not used unless other bits ask for it: alone, the call
    /// starts when all earlier kernels have ended and lets no kernel start early. With `pdl_wait`,
    /// with `pdl_trigger` or with both the call does only what these say. Default: off.
    #[inline]
    pub fn no_pdl(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_NO_PDL, on);
        self
    }

    #[inline]
    pub(crate) fn flag(&mut self, flag: u32, on: bool) {
        set_flag(&mut self.args.flags, flag, on);
    }

    /// Points the arguments at the tensors and these at their shapes, until the
    /// description is moved.
    #[inline]
    pub(crate) fn link(&mut self) -> *const sys::fastnorm_norm_args {
        self.views.link(0, &mut self.args.x);
        self.views.link(1, &mut self.args.residual);
        self.views.link(2, &mut self.args.weight);
        self.views.link(3, &mut self.args.bias);
        self.views.link(4, &mut self.args.y);
        self.views.link(5, &mut self.args.residual_out);
        self.views.link(6, &mut self.args.mean);
        self.views.link(7, &mut self.args.rstd);
        if self.views.has_from(8) {
            self.link_rest();
        }
        if let Some(quant) = &mut self.quant {
            self.args.quant = quant.link();
        }
        &self.args
    }

    #[cold]
    fn link_rest(&mut self) {
        self.views.link(8, &mut self.args.gate);
        self.views.link(9, &mut self.args.sumsq);
        self.views.link(10, &mut self.args.mean_in);
        self.views.link(11, &mut self.args.rstd_in);
        self.views.link(12, &mut self.args.branch_weight);
        self.views.link(13, &mut self.args.branch_bias);
        self.views.link(14, &mut self.args.branch_rstd);
        self.views.link(15, &mut self.args.sum_scale);
        self.views.link(16, &mut self.args.residual_gate);
        self.views.link(17, &mut self.args.residual_gate_table);
        self.views.link(18, &mut self.args.modulation_scale);
        self.views.link(19, &mut self.args.scale_table);
        self.views.link(20, &mut self.args.modulation_shift);
        self.views.link(21, &mut self.args.shift_table);
        self.views.link(22, &mut self.args.modulation_index);
    }

    /// A copy that links where only a shared borrow is at hand. It is never run.
    pub(crate) fn copied(&self) -> Norm<'_> {
        Norm {
            args: self.args,
            views: self.views,
            quant: self.quant.as_ref().map(Quant::copied),
            borrow: PhantomData,
        }
    }
}

impl fmt::Debug for Norm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Norm");
        shown.field("kind", &kind_name(self.args.kind));
        shown.field("eps", &self.args.eps);
        self.views.show(0, "x", &mut shown);
        self.views.show(1, "residual", &mut shown);
        self.views.show(2, "weight", &mut shown);
        self.views.show(3, "bias", &mut shown);
        self.views.show(4, "y", &mut shown);
        self.views.show(5, "residual_out", &mut shown);
        self.views.show(6, "mean", &mut shown);
        self.views.show(7, "rstd", &mut shown);
        self.views.show(8, "gate", &mut shown);
        self.views.show(9, "sumsq", &mut shown);
        self.views.show(10, "mean_in", &mut shown);
        self.views.show(11, "rstd_in", &mut shown);
        self.views.show(12, "branch_weight", &mut shown);
        self.views.show(13, "branch_bias", &mut shown);
        self.views.show(14, "branch_rstd", &mut shown);
        self.views.show(15, "sum_scale", &mut shown);
        self.views.show(16, "residual_gate", &mut shown);
        self.views.show(17, "residual_gate_table", &mut shown);
        self.views.show(18, "modulation_scale", &mut shown);
        self.views.show(19, "scale_table", &mut shown);
        self.views.show(20, "modulation_shift", &mut shown);
        self.views.show(21, "shift_table", &mut shown);
        self.views.show(22, "modulation_index", &mut shown);
        if let Some(quant) = &self.quant {
            shown.field("quant", quant);
        }
        shown.finish_non_exhaustive()
    }
}

pub(crate) type NormBackwardViews = Views<24>;

impl<'a> NormBackward<'a> {
    /// The weight_offset of the forward. Finite; 0 if weight is absent.
    #[inline]
    pub fn weight_offset(mut self, weight_offset: f32) -> Self {
        self.args.weight_offset = weight_offset;
        self
    }

    /// The rounding of the forward. `Rounding::OnceRw` has the gradients of `Rounding::Once`.
    #[inline]
    pub fn rounding(mut self, rounding: Rounding) -> Self {
        self.args.rounding = rounding.raw();
        self
    }

    /// The gradient of y. x's shape, T or f32. Required.
    #[inline]
    pub fn dy(mut self, dy: Tensor<'a>) -> Self {
        self.views.put(0, dy.view);
        self
    }

    /// The x of the forward or, if it added a residual, its stored residual_out. `[..., n]` f32,
    /// f16 or bf16. Required.
    #[inline]
    pub fn x(mut self, x: Tensor<'a>) -> Self {
        self.views.put(1, x.view);
        self
    }

    /// The weight of the forward. `[.., n]` f32, f16 or bf16, broadcasts against x. Default: 1.
    #[inline]
    pub fn weight(mut self, weight: Tensor<'a>) -> Self {
        self.views.put(2, weight.view);
        self
    }

    /// The mean of each row, as the forward returned it. `x.shape[:-1]`, or that with a last extent
    /// of 1; f32. Layer only. Absent if rstd is absent.
    #[inline]
    pub fn mean(mut self, mean: Tensor<'a>) -> Self {
        self.views.put(3, mean.view);
        self
    }

    /// The rstd of each row, as the forward returned it, for both kinds; the shape and dtype are
    /// those of mean. Default: computed again from x.
    #[inline]
    pub fn rstd(mut self, rstd: Tensor<'a>) -> Self {
        self.views.put(4, rstd.view);
        self
    }

    /// The gradient that reaches residual_out from elsewhere. x's shape; f32, f16 or bf16. Default:
    /// there is none.
    #[inline]
    pub fn dresidual_in(mut self, dresidual_in: Tensor<'a>) -> Self {
        self.views.put(5, dresidual_in.view);
        self
    }

    /// The gradient of the forward's x or, with a branch, of the forward's residual (dbranch is
    /// then that of the forward's x). x's shape, T; with a branch f32, f16 or bf16. Output; may be
    /// dy, x or [`dresidual_in`](Self::dresidual_in). Default: not stored.
    #[inline]
    pub fn dx(mut self, dx: TensorMut<'a>) -> Self {
        self.views.put(6, dx.view);
        self
    }

    /// The gradient of the forward's residual, for a residual whose dtype is not that of x. x's
    /// shape; f32, f16 or bf16, and not the dtype of dx. Output; may be dy, x or
    /// [`dresidual_in`](Self::dresidual_in). Requires dx. Default: not stored.
    #[inline]
    pub fn dresidual(mut self, dresidual: TensorMut<'a>) -> Self {
        self.views.put(7, dresidual.view);
        self
    }

    /// The gradient of weight. weight's shape; f32 or weight's dtype. Output; also an input with
    /// `accumulate_dweight`. Default: not computed.
    #[inline]
    pub fn dweight(mut self, dweight: TensorMut<'a>) -> Self {
        self.views.put(8, dweight.view);
        self
    }

    /// The gradient of the forward's bias. The shape of that bias; f32, f16 or bf16. Output; also
    /// an input with `accumulate_dbias`. Default: not computed.
    #[inline]
    pub fn dbias(mut self, dbias: TensorMut<'a>) -> Self {
        self.views.put(9, dbias.view);
        self
    }

    /// The gate of the forward. x's shape, T or f32. Default: the forward had none; then
    /// [`gate_act`](Self::gate_act), [`gate_position`](Self::gate_position) and
    /// [`gate_source`](Self::gate_source) must be 0. With a gate before the norm, x is the
    /// forward's x, and [`dresidual_in`](Self::dresidual_in) and dresidual are absent.
    #[inline]
    pub fn gate(mut self, gate: Tensor<'a>) -> Self {
        self.views.put(10, gate.view);
        self
    }

    /// The bias of the forward, with the rules of weight. It is read only to compute dgate.
    /// Default: 0.
    #[inline]
    pub fn bias(mut self, bias: Tensor<'a>) -> Self {
        self.views.put(11, bias.view);
        self
    }

    /// The gradient of gate. x's shape, T or f32. Output; may be dy, x, gate or
    /// [`dresidual_in`](Self::dresidual_in). Requires gate. Default: not computed.
    #[inline]
    pub fn dgate(mut self, dgate: TensorMut<'a>) -> Self {
        self.views.put(12, dgate.view);
        self
    }

    /// The gate_act of the forward.
    #[inline]
    pub fn gate_act(mut self, gate_act: Activation) -> Self {
        self.args.gate_act = gate_act.raw();
        self
    }

    /// The gate_position of the forward.
    #[inline]
    pub fn gate_position(mut self, gate_position: GatePosition) -> Self {
        self.args.gate_position = gate_position.raw();
        self
    }

    /// The gate_source of the forward.
    #[inline]
    pub fn gate_source(mut self, gate_source: GateSource) -> Self {
        self.args.gate_source = gate_source.raw();
        self
    }

    /// The group_size of the forward, a divisor of n; 0 = n. mean, rstd, weight and bias have the
    /// shapes that they have in the forward. dbias is `[.., n]` or `[.., group_size]`.
    #[inline]
    pub fn group_size(mut self, group_size: i64) -> Self {
        self.args.group_size = group_size;
        self
    }

    /// The x of a forward that added a residual, which is called the branch; the field x is then
    /// the stored residual_out. x's shape, T. Required for [`dresidual_gate`](Self::dresidual_gate)
    /// and with branch_norm. This field and all fields below exclude gate and
    /// [`group_size`](Self::group_size).
    #[inline]
    pub fn branch(mut self, branch: Tensor<'a>) -> Self {
        self.views.put(13, branch.view);
        self
    }

    /// The branch_weight of the forward, with the rules of weight. Default: 1.
    #[inline]
    pub fn branch_weight(mut self, branch_weight: Tensor<'a>) -> Self {
        self.views.put(14, branch_weight.view);
        self
    }

    /// The branch_bias of the forward, with the rules of weight. It is read only to compute
    /// [`dresidual_gate`](Self::dresidual_gate). Default: 0.
    #[inline]
    pub fn branch_bias(mut self, branch_bias: Tensor<'a>) -> Self {
        self.views.put(15, branch_bias.view);
        self
    }

    /// The mean of each row of the branch; the shape and dtype are those of mean. Layer only.
    /// Absent if [`branch_rstd`](Self::branch_rstd) is absent.
    #[inline]
    pub fn branch_mean(mut self, branch_mean: Tensor<'a>) -> Self {
        self.views.put(16, branch_mean.view);
        self
    }

    /// The rstd of each row of the branch; the shape and dtype are those of rstd. Default: computed
    /// again from branch.
    #[inline]
    pub fn branch_rstd(mut self, branch_rstd: Tensor<'a>) -> Self {
        self.views.put(17, branch_rstd.view);
        self
    }

    /// The residual_gate of the forward, with its table added. `[.., n]` T or f32, broadcasts
    /// against x as weight does. Default: 1.
    #[inline]
    pub fn residual_gate(mut self, residual_gate: Tensor<'a>) -> Self {
        self.views.put(18, residual_gate.view);
        self
    }

    /// The sum_scale of the forward. `[1]` f32. Default: 1.
    #[inline]
    pub fn sum_scale(mut self, sum_scale: Tensor<'a>) -> Self {
        self.views.put(19, sum_scale.view);
        self
    }

    /// The gradient of the branch. x's shape, T. Output; may be branch. Default: not computed.
    #[inline]
    pub fn dbranch(mut self, dbranch: TensorMut<'a>) -> Self {
        self.views.put(20, dbranch.view);
        self
    }

    /// The gradient of [`branch_weight`](Self::branch_weight).
    /// [`branch_weight`](Self::branch_weight)'s shape; f32 or
    /// [`branch_weight`](Self::branch_weight)'s dtype. Output; also an input with
    /// `accumulate_dbranch_weight`. Default: not computed.
    #[inline]
    pub fn dbranch_weight(mut self, dbranch_weight: TensorMut<'a>) -> Self {
        self.views.put(21, dbranch_weight.view);
        self
    }

    /// The gradient of the forward's [`branch_bias`](Self::branch_bias). The shape of that
    /// [`branch_bias`](Self::branch_bias); f32, f16 or bf16. Output; also an input with
    /// `accumulate_dbranch_bias`. Default: not computed.
    #[inline]
    pub fn dbranch_bias(mut self, dbranch_bias: TensorMut<'a>) -> Self {
        self.views.put(22, dbranch_bias.view);
        self
    }

    /// The gradient of [`residual_gate`](Self::residual_gate).
    /// [`residual_gate`](Self::residual_gate)'s shape; f32 or
    /// [`residual_gate`](Self::residual_gate)'s dtype. Output; also an input with
    /// `accumulate_dresidual_gate`. Default: not computed.
    #[inline]
    pub fn dresidual_gate(mut self, dresidual_gate: TensorMut<'a>) -> Self {
        self.views.put(23, dresidual_gate.view);
        self
    }

    /// The branch_weight_offset of the forward. Finite; 0 if [`branch_weight`](Self::branch_weight)
    /// is absent.
    #[inline]
    pub fn branch_weight_offset(mut self, branch_weight_offset: f32) -> Self {
        self.args.branch_weight_offset = branch_weight_offset;
        self
    }

    /// The branch_rounding of the forward. `Rounding::OnceRw` is an error.
    #[inline]
    pub fn branch_rounding(mut self, branch_rounding: Rounding) -> Self {
        self.args.branch_rounding = branch_rounding.raw();
        self
    }

    /// The branch_rounded of the forward.
    #[inline]
    pub fn branch_rounded(mut self, branch_rounded: bool) -> Self {
        self.args.branch_rounded = i32::from(branch_rounded);
        self
    }

    /// The residual_gate_act of the forward.
    #[inline]
    pub fn residual_gate_act(mut self, residual_gate_act: Activation) -> Self {
        self.args.residual_gate_act = residual_gate_act.raw();
        self
    }

    /// The alpha of the forward, finite. Default: none.
    #[inline]
    pub fn alpha(mut self, alpha: f32) -> Self {
        self.args.alpha = alpha;
        self.flag(sys::FASTNORM_NORM_BACKWARD_ALPHA, true);
        self
    }

    /// dy and dx in one: the result replaces what is read.
    #[inline]
    pub fn dy_in_place(mut self, dy: TensorMut<'a>) -> Self {
        self.views.put(0, dy.view);
        self.views.put(6, dy.view);
        self
    }

    /// gate and dgate in one: the result replaces what is read.
    #[inline]
    pub fn gate_in_place(mut self, gate: TensorMut<'a>) -> Self {
        self.views.put(10, gate.view);
        self.views.put(12, gate.view);
        self
    }

    /// branch and dbranch in one: the result replaces what is read.
    #[inline]
    pub fn branch_in_place(mut self, branch: TensorMut<'a>) -> Self {
        self.views.put(13, branch.view);
        self.views.put(20, branch.view);
        self
    }

    /// Start when the previous kernel of the stream allows it, but read and write nothing before
    /// that kernel has ended. Default: off.
    #[inline]
    pub fn pdl_wait(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_BACKWARD_PDL_WAIT, on);
        self
    }

    /// Let the next kernel of the stream start early. The next kernel must wait itself before it
    /// uses anything that any earlier kernel of the stream wrote. Default: off.
    #[inline]
    pub fn pdl_trigger(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_BACKWARD_PDL_TRIGGER, on);
        self
    }

    /// As dweight. The result is added to what is there: once, in f32, after the sum.
    #[inline]
    pub fn accumulate_dweight(mut self, dweight: TensorMut<'a>) -> Self {
        self.flag(sys::FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT, true);
        self.views.put(8, dweight.view);
        self
    }

    /// As dbias. The result is added to what is there: once, in f32, after the sum.
    #[inline]
    pub fn accumulate_dbias(mut self, dbias: TensorMut<'a>) -> Self {
        self.flag(sys::FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS, true);
        self.views.put(9, dbias.view);
        self
    }

    /// As [`dbranch_weight`](Self::dbranch_weight). The result is added to what is there: once, in
    /// f32, after the sum.
    #[inline]
    pub fn accumulate_dbranch_weight(mut self, dbranch_weight: TensorMut<'a>) -> Self {
        self.flag(sys::FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT, true);
        self.views.put(21, dbranch_weight.view);
        self
    }

    /// As [`dbranch_bias`](Self::dbranch_bias). The result is added to what is there: once, in f32,
    /// after the sum.
    #[inline]
    pub fn accumulate_dbranch_bias(mut self, dbranch_bias: TensorMut<'a>) -> Self {
        self.flag(sys::FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS, true);
        self.views.put(22, dbranch_bias.view);
        self
    }

    /// As [`dresidual_gate`](Self::dresidual_gate). The result is added to what is there: once, in
    /// f32, after the sum.
    #[inline]
    pub fn accumulate_dresidual_gate(mut self, dresidual_gate: TensorMut<'a>) -> Self {
        self.flag(sys::FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE, true);
        self.views.put(23, dresidual_gate.view);
        self
    }

    /// Programmatic dependent launch is not used unless other bits ask for it. The kernels of one
    /// call follow each other by it in any case. Default: off.
    #[inline]
    pub fn no_pdl(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_BACKWARD_NO_PDL, on);
        self
    }

    #[inline]
    pub(crate) fn flag(&mut self, flag: u32, on: bool) {
        set_flag(&mut self.args.flags, flag, on);
    }

    /// Points the arguments at the tensors and these at their shapes, until the
    /// description is moved.
    #[inline]
    pub(crate) fn link(&mut self) -> *const sys::fastnorm_norm_backward_args {
        self.views.link(0, &mut self.args.dy);
        self.views.link(1, &mut self.args.x);
        self.views.link(2, &mut self.args.weight);
        self.views.link(3, &mut self.args.mean);
        self.views.link(4, &mut self.args.rstd);
        self.views.link(5, &mut self.args.dresidual_in);
        self.views.link(6, &mut self.args.dx);
        self.views.link(7, &mut self.args.dresidual);
        self.views.link(8, &mut self.args.dweight);
        self.views.link(9, &mut self.args.dbias);
        if self.views.has_from(10) {
            self.link_rest();
        }
        &self.args
    }

    #[cold]
    fn link_rest(&mut self) {
        self.views.link(10, &mut self.args.gate);
        self.views.link(11, &mut self.args.bias);
        self.views.link(12, &mut self.args.dgate);
        self.views.link(13, &mut self.args.branch);
        self.views.link(14, &mut self.args.branch_weight);
        self.views.link(15, &mut self.args.branch_bias);
        self.views.link(16, &mut self.args.branch_mean);
        self.views.link(17, &mut self.args.branch_rstd);
        self.views.link(18, &mut self.args.residual_gate);
        self.views.link(19, &mut self.args.sum_scale);
        self.views.link(20, &mut self.args.dbranch);
        self.views.link(21, &mut self.args.dbranch_weight);
        self.views.link(22, &mut self.args.dbranch_bias);
        self.views.link(23, &mut self.args.dresidual_gate);
    }

    /// A copy that links where only a shared borrow is at hand. It is never run.
    pub(crate) fn copied(&self) -> NormBackward<'_> {
        NormBackward {
            args: self.args,
            views: self.views,
            borrow: PhantomData,
        }
    }
}

impl fmt::Debug for NormBackward<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("NormBackward");
        shown.field("kind", &kind_name(self.args.kind));
        shown.field("eps", &self.args.eps);
        self.views.show(0, "dy", &mut shown);
        self.views.show(1, "x", &mut shown);
        self.views.show(2, "weight", &mut shown);
        self.views.show(3, "mean", &mut shown);
        self.views.show(4, "rstd", &mut shown);
        self.views.show(5, "dresidual_in", &mut shown);
        self.views.show(6, "dx", &mut shown);
        self.views.show(7, "dresidual", &mut shown);
        self.views.show(8, "dweight", &mut shown);
        self.views.show(9, "dbias", &mut shown);
        self.views.show(10, "gate", &mut shown);
        self.views.show(11, "bias", &mut shown);
        self.views.show(12, "dgate", &mut shown);
        self.views.show(13, "branch", &mut shown);
        self.views.show(14, "branch_weight", &mut shown);
        self.views.show(15, "branch_bias", &mut shown);
        self.views.show(16, "branch_mean", &mut shown);
        self.views.show(17, "branch_rstd", &mut shown);
        self.views.show(18, "residual_gate", &mut shown);
        self.views.show(19, "sum_scale", &mut shown);
        self.views.show(20, "dbranch", &mut shown);
        self.views.show(21, "dbranch_weight", &mut shown);
        self.views.show(22, "dbranch_bias", &mut shown);
        self.views.show(23, "dresidual_gate", &mut shown);
        shown.finish_non_exhaustive()
    }
}

pub(crate) type MlaDecodeViews = Views<21>;

impl<'a> MlaDecode<'a> {
    /// On: a new token does not attend to later ones. Off: it attends to all cached tokens.
    #[inline]
    pub fn causal(mut self, causal: bool) -> Self {
        self.args.causal = i32::from(causal);
        self
    }

    /// On: the workspace still holds the plan of an earlier call on the same context, such as that
    /// of the previous layer, and the call uses it. Shapes, causal, max_s_q,
    /// [`split_tokens`](Self::split_tokens) and the values of [`kv_len`](Self::kv_len) and
    /// qo_indptr must equal those of the earlier call; with indices the values of
    /// [`topk_length`](Self::topk_length) and [`extra_topk_length`](Self::extra_topk_length), but
    /// not those of the indices. Off: the call makes its own plan. It has no effect on the CPU.
    #[inline]
    pub fn reuse_plan(mut self, reuse_plan: bool) -> Self {
        self.args.reuse_plan = i32::from(reuse_plan);
        self
    }

    /// A multiple of 64 up to 2^30: each request is cut at multiples of it; 0 = the library chooses
    /// where long requests are cut. It has no effect on the CPU.
    #[inline]
    pub fn split_tokens(mut self, split_tokens: i32) -> Self {
        self.args.split_tokens = split_tokens;
        self
    }

    /// Sum of [`kv_len`](Self::kv_len); 0 = not known. With indices: the number of rows that all
    /// new tokens select; 0 = as many as there are indices. It is used only for
    /// [`Info::bytes_read`](crate::Info::bytes_read), because a query reads neither lengths nor
    /// indices.
    #[inline]
    pub fn total_kv_hint(mut self, total_kv_hint: i64) -> Self {
        self.args.total_kv_hint = total_kv_hint;
        self
    }

    /// `[N, H, 512]` T, the query times W_UK. `Bytes584`: `[N, H, 448]`, the first columns of the
    /// query. Required.
    #[inline]
    pub fn q_nope(mut self, q_nope: Tensor<'a>) -> Self {
        self.views.put(0, q_nope.view);
        self
    }

    /// `[N, H, 64]` T, the query after RoPE. Required.
    #[inline]
    pub fn q_pe(mut self, q_pe: Tensor<'a>) -> Self {
        self.views.put(1, q_pe.view);
        self
    }

    /// `[pages, page, 512]` T, the normalised latents. Required, except with an FP8
    /// [`cache_format`](Self::cache_format).
    #[inline]
    pub fn ckv(mut self, ckv: Tensor<'a>) -> Self {
        self.views.put(2, ckv.view);
        self
    }

    /// `[pages, page, 64]` T, the keys after RoPE. Required, except with an FP8
    /// [`cache_format`](Self::cache_format).
    #[inline]
    pub fn kpe(mut self, kpe: Tensor<'a>) -> Self {
        self.views.put(3, kpe.view);
        self
    }

    /// `[B]` i32, the number of cached tokens of each request. Required, except with indices.
    #[inline]
    pub fn kv_len(mut self, kv_len: Tensor<'a>) -> Self {
        self.views.put(4, kv_len.view);
        self
    }

    /// The numbers of the pages of each request: `[B, max_pages]` or, with
    /// [`kv_indptr`](Self::kv_indptr), `[total]`; i32. Required, except with indices.
    #[inline]
    pub fn page_table(mut self, page_table: Tensor<'a>) -> Self {
        self.views.put(5, page_table.view);
        self
    }

    /// `[B + 1]` i32, where each request's pages begin in [`page_table`](Self::page_table).
    /// Default: [`page_table`](Self::page_table) is a block table.
    #[inline]
    pub fn kv_indptr(mut self, kv_indptr: Tensor<'a>) -> Self {
        self.views.put(6, kv_indptr.view);
        self
    }

    /// `[N, H, 512]` T, the result. Output. Required.
    #[inline]
    pub fn o(mut self, o: TensorMut<'a>) -> Self {
        self.views.put(8, o.view);
        self
    }

    /// How the rows of the cache are stored. Default: rows of T.
    #[inline]
    pub fn cache_format(mut self, cache_format: MlaCacheFormat) -> Self {
        self.args.cache_format = cache_format.raw();
        self
    }

    /// `[pages, page, row]` u8, where row is 656, 576 or 584: the cache of an FP8
    /// [`cache_format`](Self::cache_format), which requires it. Absent with rows of T.
    #[inline]
    pub fn cache(mut self, cache: Tensor<'a>) -> Self {
        self.views.put(11, cache.view);
        self
    }

    /// `[1]` f32, the scale of all codes of cache and [`extra_cache`](Self::extra_cache). Default:
    /// 1. `Bytes576` only.
    #[inline]
    pub fn cache_scale(mut self, cache_scale: Tensor<'a>) -> Self {
        self.views.put(12, cache_scale.view);
        self
    }

    /// `[B, s_q, topk]` i32, the rows of the cache that each new token attends to, or -1. Default:
    /// all of the request.
    #[inline]
    pub fn indices(mut self, indices: Tensor<'a>) -> Self {
        self.views.put(13, indices.view);
        self
    }

    /// `[B]` or `[B, s_q]` i32, from 0 to topk: how many of a new token's indices count. Default:
    /// all.
    #[inline]
    pub fn topk_length(mut self, topk_length: Tensor<'a>) -> Self {
        self.views.put(14, topk_length.view);
        self
    }

    /// `[H]` f32, the sink of each head. Default: none.
    #[inline]
    pub fn attention_sink(mut self, attention_sink: Tensor<'a>) -> Self {
        self.views.put(15, attention_sink.view);
        self
    }

    /// `[extra pages, extra page, 512]` T, a second ckv, with pages of a size of their own.
    /// Default: none.
    #[inline]
    pub fn extra_ckv(mut self, extra_ckv: Tensor<'a>) -> Self {
        self.views.put(16, extra_ckv.view);
        self
    }

    /// `[extra pages, extra page, 64]` T, the keys of [`extra_ckv`](Self::extra_ckv). Default:
    /// none.
    #[inline]
    pub fn extra_kpe(mut self, extra_kpe: Tensor<'a>) -> Self {
        self.views.put(17, extra_kpe.view);
        self
    }

    /// `[extra pages, extra page, row]` u8, a second cache. Default: none.
    #[inline]
    pub fn extra_cache(mut self, extra_cache: Tensor<'a>) -> Self {
        self.views.put(18, extra_cache.view);
        self
    }

    /// `[B, s_q, extra topk]` i32, rows of the second cache, or -1. Required with a second cache.
    #[inline]
    pub fn extra_indices(mut self, extra_indices: Tensor<'a>) -> Self {
        self.views.put(19, extra_indices.view);
        self
    }

    /// `[B]` or `[B, s_q]` i32, from 0 to extra topk: how many of the extra indices count. Default:
    /// all.
    #[inline]
    pub fn extra_topk_length(mut self, extra_topk_length: Tensor<'a>) -> Self {
        self.views.put(20, extra_topk_length.view);
        self
    }

    /// Programmatic dependent launch is not used around the call: it starts when all earlier
    /// kernels have ended and lets no kernel start early. The kernels of one call follow each other
    /// by it in any case. Default: off.
    #[inline]
    pub fn no_pdl(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_MLA_DECODE_NO_PDL, on);
        self
    }

    #[inline]
    pub(crate) fn put_qo_indptr(mut self, qo_indptr: View) -> Self {
        self.views.put(7, qo_indptr);
        self
    }

    #[inline]
    pub(crate) fn put_lse(mut self, lse: View) -> Self {
        self.views.put(9, lse);
        self
    }

    #[inline]
    pub(crate) fn put_profile(mut self, profile: View) -> Self {
        self.views.put(10, profile);
        self
    }

    #[inline]
    pub(crate) fn flag(&mut self, flag: u32, on: bool) {
        set_flag(&mut self.args.flags, flag, on);
    }

    /// Points the arguments at the tensors and these at their shapes, until the
    /// description is moved.
    pub(crate) fn link(&mut self) -> *const sys::fastnorm_mla_decode_args {
        self.views.link(0, &mut self.args.q_nope);
        self.views.link(1, &mut self.args.q_pe);
        self.views.link(2, &mut self.args.ckv);
        self.views.link(3, &mut self.args.kpe);
        self.views.link(4, &mut self.args.kv_len);
        self.views.link(5, &mut self.args.page_table);
        self.views.link(6, &mut self.args.kv_indptr);
        self.views.link(7, &mut self.args.qo_indptr);
        self.views.link(8, &mut self.args.o);
        self.views.link(9, &mut self.args.lse);
        self.views.link(10, &mut self.args.profile);
        self.views.link(11, &mut self.args.cache);
        self.views.link(12, &mut self.args.cache_scale);
        self.views.link(13, &mut self.args.indices);
        self.views.link(14, &mut self.args.topk_length);
        self.views.link(15, &mut self.args.attention_sink);
        self.views.link(16, &mut self.args.extra_ckv);
        self.views.link(17, &mut self.args.extra_kpe);
        self.views.link(18, &mut self.args.extra_cache);
        self.views.link(19, &mut self.args.extra_indices);
        self.views.link(20, &mut self.args.extra_topk_length);
        &self.args
    }

    /// A copy that links where only a shared borrow is at hand. It is never run.
    pub(crate) fn copied(&self) -> MlaDecode<'_> {
        MlaDecode {
            args: self.args,
            views: self.views,
            borrow: PhantomData,
        }
    }
}

impl fmt::Debug for MlaDecode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("MlaDecode");
        shown.field("sm_scale", &self.args.sm_scale);
        shown.field("causal", &self.args.causal);
        self.views.show(0, "q_nope", &mut shown);
        self.views.show(1, "q_pe", &mut shown);
        self.views.show(2, "ckv", &mut shown);
        self.views.show(3, "kpe", &mut shown);
        self.views.show(4, "kv_len", &mut shown);
        self.views.show(5, "page_table", &mut shown);
        self.views.show(6, "kv_indptr", &mut shown);
        self.views.show(7, "qo_indptr", &mut shown);
        self.views.show(8, "o", &mut shown);
        self.views.show(9, "lse", &mut shown);
        self.views.show(10, "profile", &mut shown);
        self.views.show(11, "cache", &mut shown);
        self.views.show(12, "cache_scale", &mut shown);
        self.views.show(13, "indices", &mut shown);
        self.views.show(14, "topk_length", &mut shown);
        self.views.show(15, "attention_sink", &mut shown);
        self.views.show(16, "extra_ckv", &mut shown);
        self.views.show(17, "extra_kpe", &mut shown);
        self.views.show(18, "extra_cache", &mut shown);
        self.views.show(19, "extra_indices", &mut shown);
        self.views.show(20, "extra_topk_length", &mut shown);
        shown.finish_non_exhaustive()
    }
}

pub(crate) type NormHeadsViews = Views<4>;

impl<'a> NormHeads<'a> {
    /// Which row of the tables each token uses: `[tokens]`, or `[axes, tokens]` with 1 to 4 axes;
    /// i32 or i64. The positions of padding are ignored. Default: token t uses row t.
    #[inline]
    pub fn positions(mut self, positions: Tensor<'a>) -> Self {
        self.views.put(2, positions.view);
        self
    }

    /// Which slot of the caches each token is written to: `[at most tokens]` i32 or i64; -1 = the
    /// token is padding. Required if a part has a cache, otherwise absent.
    #[inline]
    pub fn slots(mut self, slots: Tensor<'a>) -> Self {
        self.views.put(3, slots.view);
        self
    }

    /// Programmatic dependent launch is not used: the call starts when all earlier kernels have
    /// ended and lets no kernel start early. Default: off.
    #[inline]
    pub fn no_pdl(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_HEADS_NO_PDL, on);
        self
    }

    #[inline]
    pub(crate) fn put_cos(mut self, cos: View) -> Self {
        self.views.put(0, cos);
        self
    }

    #[inline]
    pub(crate) fn put_sin(mut self, sin: View) -> Self {
        self.views.put(1, sin);
        self
    }

    #[inline]
    pub(crate) fn flag(&mut self, flag: u32, on: bool) {
        set_flag(&mut self.args.flags, flag, on);
    }

    /// Points the arguments at the tensors and these at their shapes, until the
    /// description is moved.
    pub(crate) fn link(&mut self) -> *const sys::fastnorm_norm_heads_args {
        self.views.link(0, &mut self.args.cos);
        self.views.link(1, &mut self.args.sin);
        self.views.link(2, &mut self.args.positions);
        self.views.link(3, &mut self.args.slots);
        &self.args
    }

    /// A copy that links where only a shared borrow is at hand. It is never run.
    pub(crate) fn copied(&self) -> NormHeads<'_> {
        NormHeads {
            args: self.args,
            views: self.views,
            parts: self.copied_parts(),
            borrow: PhantomData,
        }
    }
}

impl fmt::Debug for NormHeads<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("NormHeads");
        shown.field("rope_dim", &self.args.rope_dim);
        self.views.show(0, "cos", &mut shown);
        self.views.show(1, "sin", &mut shown);
        self.views.show(2, "positions", &mut shown);
        self.views.show(3, "slots", &mut shown);
        shown.finish_non_exhaustive()
    }
}

pub(crate) type NormHeadsPartViews = Views<13>;

impl<'a> NormHeadsPart<'a> {
    /// Added to the weight in f32; 0 if weight is absent.
    #[inline]
    pub fn weight_offset(mut self, weight_offset: f32) -> Self {
        self.args.weight_offset = weight_offset;
        self
    }

    /// Norm: as in [`Norm`](crate::Norm); else 0.
    #[inline]
    pub fn rounding(mut self, rounding: Rounding) -> Self {
        self.args.rounding = rounding.raw();
        self
    }

    /// Rope: where rope rounds, by default once; else 0.
    #[inline]
    pub fn rope_rounding(mut self, rope_rounding: RopeRounding) -> Self {
        self.args.rope_rounding = rope_rounding.raw();
        self
    }

    /// What each of [`head_weights`](Self::head_weights) is multiplied by, besides the scale;
    /// finite. 0 = 1, and 0 if [`head_weights`](Self::head_weights) is absent.
    #[inline]
    pub fn head_weights_factor(mut self, head_weights_factor: f32) -> Self {
        self.args.head_weights_factor = head_weights_factor;
        self
    }

    /// Norm: the weight, `[d]`, `[1, d]` or `[heads, d]`; dtypes as in [`Norm`](crate::Norm).
    /// Default: 1.
    #[inline]
    pub fn weight(mut self, weight: Tensor<'a>) -> Self {
        self.views.put(1, weight.view);
        self
    }

    /// Norm: the bias, `[d]`, `[1, d]` or `[heads, d]`; dtypes as in [`Norm`](crate::Norm).
    /// Default: 0.
    #[inline]
    pub fn bias(mut self, bias: Tensor<'a>) -> Self {
        self.views.put(2, bias.view);
        self
    }

    /// The result. `[tokens, heads, d]`, T or f32. Output; may be x. Default: not stored.
    #[inline]
    pub fn y(mut self, y: TensorMut<'a>) -> Self {
        self.views.put(3, y.view);
        self
    }

    /// Layer: the mean of each row, f32 `[tokens, heads]`; with `across_heads` `[tokens]`. Output.
    /// Default: not stored.
    #[inline]
    pub fn mean(mut self, mean: TensorMut<'a>) -> Self {
        self.views.put(4, mean.view);
        self
    }

    /// Norm: the rstd of each row; the shape and dtype are those of mean. Output. Default: not
    /// stored.
    #[inline]
    pub fn rstd(mut self, rstd: TensorMut<'a>) -> Self {
        self.views.put(5, rstd.view);
        self
    }

    /// Layer, together with [`rstd_in`](Self::rstd_in): the mean to use in place of the row's own;
    /// the shape is that of mean. Input.
    #[inline]
    pub fn mean_in(mut self, mean_in: Tensor<'a>) -> Self {
        self.views.put(6, mean_in.view);
        self
    }

    /// Norm: the rstd to use in place of the row's own; the shape is that of rstd, and eps is
    /// ignored. Input. Default: computed.
    #[inline]
    pub fn rstd_in(mut self, rstd_in: Tensor<'a>) -> Self {
        self.views.put(7, rstd_in.view);
        self
    }

    /// Norm without [`rstd_in`](Self::rstd_in): this device's part of a statistic of several
    /// devices, f32. Rms: the sum of squares, of rstd's shape. Layer: the mean and the sum of (x -
    /// mean)^2, in a last extent of 2. Output. Default: not stored.
    #[inline]
    pub fn sumsq(mut self, sumsq: TensorMut<'a>) -> Self {
        self.views.put(8, sumsq.view);
        self
    }

    /// How and where codes of the result are stored; they may be asked for together with y. With
    /// `per_row` there is a scale for each token and head, so the scale tensor has tokens \* heads
    /// rows. Default: no codes.
    #[inline]
    pub fn quant(mut self, quant: Quant<'a>) -> Self {
        self.quant = Some(quant);
        self
    }

    /// The cache that the result is written to. `[pages, page_size, heads, d]` of T, or of codes of
    /// f8_e4m3fn, f8_e5m2 or i8. If [`cache_tail`](Self::cache_tail) has the last e columns, it is
    /// `[pages, page_size, heads, d - e]` of codes. Output. Default: no cache.
    #[inline]
    pub fn cache(mut self, cache: TensorMut<'a>) -> Self {
        self.views.put(9, cache.view);
        self
    }

    /// A weight of each token and head: `[tokens, heads]`, f32, f16 or bf16, of any strides. Input.
    /// Requires [`head_weights_out`](Self::head_weights_out). Default: none.
    #[inline]
    pub fn head_weights(mut self, head_weights: Tensor<'a>) -> Self {
        self.views.put(10, head_weights.view);
        self
    }

    /// The weights times the scales of quant and
    /// [`head_weights_factor`](Self::head_weights_factor): `[tokens, heads]` f32, of any strides.
    /// Output. Requires [`head_weights`](Self::head_weights), and codes with one scale for each
    /// row. Default: none.
    #[inline]
    pub fn head_weights_out(mut self, head_weights_out: TensorMut<'a>) -> Self {
        self.views.put(11, head_weights_out.view);
        self
    }

    /// The last columns of the result as elements: `[pages, page_size, heads, e]` T, with e from 1
    /// to d - 1 and the other extents of cache. Requires a cache of codes. Output. Default: cache
    /// has all columns.
    #[inline]
    pub fn cache_tail(mut self, cache_tail: TensorMut<'a>) -> Self {
        self.views.put(12, cache_tail.view);
        self
    }

    /// With rope: the two columns of a pair are neighbours (GPT-J). Default: they are R columns
    /// apart (NeoX, Llama).
    #[inline]
    pub fn rope_interleaved(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_HEADS_ROPE_INTERLEAVED, on);
        self
    }

    /// With rope: rotate backwards. Default: off.
    #[inline]
    pub fn rope_inverse(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_HEADS_ROPE_INVERSE, on);
        self
    }

    /// With rope: rotate v rounded to x's dtype. Default: off.
    #[inline]
    pub fn rope_from_rounded(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED, on);
        self
    }

    /// With norm: one statistic for all heads of a token. Default: off.
    #[inline]
    pub fn across_heads(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_HEADS_ACROSS_HEADS, on);
        self
    }

    #[inline]
    pub(crate) fn put_x(mut self, x: View) -> Self {
        self.views.put(0, x);
        self
    }

    #[inline]
    pub(crate) fn flag(&mut self, flag: u32, on: bool) {
        set_flag(&mut self.args.flags, flag, on);
    }

    /// Points the arguments at the tensors and these at their shapes, until the
    /// description is moved.
    pub(crate) fn link(&mut self) -> *const sys::fastnorm_norm_heads_part {
        self.views.link(0, &mut self.args.x);
        self.views.link(1, &mut self.args.weight);
        self.views.link(2, &mut self.args.bias);
        self.views.link(3, &mut self.args.y);
        self.views.link(4, &mut self.args.mean);
        self.views.link(5, &mut self.args.rstd);
        self.views.link(6, &mut self.args.mean_in);
        self.views.link(7, &mut self.args.rstd_in);
        self.views.link(8, &mut self.args.sumsq);
        self.views.link(9, &mut self.args.cache);
        self.views.link(10, &mut self.args.head_weights);
        self.views.link(11, &mut self.args.head_weights_out);
        self.views.link(12, &mut self.args.cache_tail);
        if let Some(quant) = &mut self.quant {
            self.args.quant = quant.link();
        }
        if let Some(cache_quant) = &mut self.cache_quant {
            self.args.cache_quant = cache_quant.link();
        }
        &self.args
    }

    /// A copy that links where only a shared borrow is at hand. It is never run.
    pub(crate) fn copied(&self) -> NormHeadsPart<'_> {
        NormHeadsPart {
            args: self.args,
            views: self.views,
            quant: self.quant.as_ref().map(Quant::copied),
            cache_quant: self.cache_quant.as_ref().map(Quant::copied),
            borrow: PhantomData,
        }
    }
}

impl fmt::Debug for NormHeadsPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("NormHeadsPart");
        shown.field("flags", &self.args.flags);
        shown.field("eps", &self.args.eps);
        self.views.show(0, "x", &mut shown);
        self.views.show(1, "weight", &mut shown);
        self.views.show(2, "bias", &mut shown);
        self.views.show(3, "y", &mut shown);
        self.views.show(4, "mean", &mut shown);
        self.views.show(5, "rstd", &mut shown);
        self.views.show(6, "mean_in", &mut shown);
        self.views.show(7, "rstd_in", &mut shown);
        self.views.show(8, "sumsq", &mut shown);
        self.views.show(9, "cache", &mut shown);
        self.views.show(10, "head_weights", &mut shown);
        self.views.show(11, "head_weights_out", &mut shown);
        self.views.show(12, "cache_tail", &mut shown);
        if let Some(quant) = &self.quant {
            shown.field("quant", quant);
        }
        if let Some(cache_quant) = &self.cache_quant {
            shown.field("cache_quant", cache_quant);
        }
        shown.finish_non_exhaustive()
    }
}

pub(crate) type NormHeadsBackwardViews = Views<3>;

impl<'a> NormHeadsBackward<'a> {
    /// Which row of the tables each token uses: `[tokens]`, or `[axes, tokens]` with 1 to 4 axes;
    /// i32 or i64. The positions of padding are ignored. Default: token t uses row t.
    #[inline]
    pub fn positions(mut self, positions: Tensor<'a>) -> Self {
        self.views.put(2, positions.view);
        self
    }

    /// Programmatic dependent launch is not used: the call starts when all earlier kernels have
    /// ended and lets no kernel start early. Default: off.
    #[inline]
    pub fn no_pdl(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_HEADS_NO_PDL, on);
        self
    }

    #[inline]
    pub(crate) fn put_cos(mut self, cos: View) -> Self {
        self.views.put(0, cos);
        self
    }

    #[inline]
    pub(crate) fn put_sin(mut self, sin: View) -> Self {
        self.views.put(1, sin);
        self
    }

    #[inline]
    pub(crate) fn flag(&mut self, flag: u32, on: bool) {
        set_flag(&mut self.args.flags, flag, on);
    }

    /// Points the arguments at the tensors and these at their shapes, until the
    /// description is moved.
    pub(crate) fn link(&mut self) -> *const sys::fastnorm_norm_heads_args {
        self.views.link(0, &mut self.args.cos);
        self.views.link(1, &mut self.args.sin);
        self.views.link(2, &mut self.args.positions);
        &self.args
    }

    /// A copy that links where only a shared borrow is at hand. It is never run.
    pub(crate) fn copied(&self) -> NormHeadsBackward<'_> {
        NormHeadsBackward {
            args: self.args,
            views: self.views,
            parts: self.copied_parts(),
            borrow: PhantomData,
        }
    }
}

impl fmt::Debug for NormHeadsBackward<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("NormHeadsBackward");
        shown.field("rope_dim", &self.args.rope_dim);
        self.views.show(0, "cos", &mut shown);
        self.views.show(1, "sin", &mut shown);
        self.views.show(2, "positions", &mut shown);
        shown.finish_non_exhaustive()
    }
}

pub(crate) type NormHeadsBackwardPartViews = Views<8>;

impl<'a> NormHeadsBackwardPart<'a> {
    /// The weight_offset of the forward; 0 if weight is absent.
    #[inline]
    pub fn weight_offset(mut self, weight_offset: f32) -> Self {
        self.args.weight_offset = weight_offset;
        self
    }

    /// Norm: the rounding of the forward; else 0.
    #[inline]
    pub fn rounding(mut self, rounding: Rounding) -> Self {
        self.args.rounding = rounding.raw();
        self
    }

    /// Norm: the weight of the forward, `[d]`, `[1, d]` or `[heads, d]`; f32, f16 or bf16. Default:
    /// 1.
    #[inline]
    pub fn weight(mut self, weight: Tensor<'a>) -> Self {
        self.views.put(2, weight.view);
        self
    }

    /// Layer: the mean of each row, as the forward returned it, f32 `[tokens, heads]`; with
    /// `across_heads` `[tokens]`. Absent if rstd is absent.
    #[inline]
    pub fn mean(mut self, mean: Tensor<'a>) -> Self {
        self.views.put(3, mean.view);
        self
    }

    /// Norm: the rstd of each row, as the forward returned it, for both kinds; the shape and dtype
    /// are those of mean. Default: computed again from x, with the bits of the forward.
    #[inline]
    pub fn rstd(mut self, rstd: Tensor<'a>) -> Self {
        self.views.put(4, rstd.view);
        self
    }

    /// The gradient of x. `[tokens, heads, d]` T. Output; may be dy or x. Default: not stored.
    #[inline]
    pub fn dx(mut self, dx: TensorMut<'a>) -> Self {
        self.views.put(5, dx.view);
        self
    }

    /// Norm with a weight: the gradient of weight. weight's shape; f32 or weight's dtype. Output;
    /// also an input with `accumulate_dweight`. Default: not computed.
    #[inline]
    pub fn dweight(mut self, dweight: TensorMut<'a>) -> Self {
        self.views.put(6, dweight.view);
        self
    }

    /// Norm: the gradient of the forward's bias. The shape of that bias, `[d]` or `[heads, d]`;
    /// f32, f16 or bf16. Output; also an input with `accumulate_dbias`. Default: not computed.
    #[inline]
    pub fn dbias(mut self, dbias: TensorMut<'a>) -> Self {
        self.views.put(7, dbias.view);
        self
    }

    /// With rope: the two columns of a pair are neighbours (GPT-J). Default: they are R columns
    /// apart (NeoX, Llama).
    #[inline]
    pub fn rope_interleaved(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_HEADS_ROPE_INTERLEAVED, on);
        self
    }

    /// With rope: rotate backwards. Default: off.
    #[inline]
    pub fn rope_inverse(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_HEADS_ROPE_INVERSE, on);
        self
    }

    /// With norm: one statistic for all heads of a token. Default: off.
    #[inline]
    pub fn across_heads(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_HEADS_ACROSS_HEADS, on);
        self
    }

    /// As dweight. The result is added to what is there: once, in f32, after the sum.
    #[inline]
    pub fn accumulate_dweight(mut self, dweight: TensorMut<'a>) -> Self {
        self.flag(sys::FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT, true);
        self.views.put(6, dweight.view);
        self
    }

    /// As dbias. The result is added to what is there: once, in f32, after the sum.
    #[inline]
    pub fn accumulate_dbias(mut self, dbias: TensorMut<'a>) -> Self {
        self.flag(sys::FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS, true);
        self.views.put(7, dbias.view);
        self
    }

    #[inline]
    pub(crate) fn put_dy(mut self, dy: View) -> Self {
        self.views.put(0, dy);
        self
    }

    #[inline]
    pub(crate) fn put_x(mut self, x: View) -> Self {
        self.views.put(1, x);
        self
    }

    #[inline]
    pub(crate) fn flag(&mut self, flag: u32, on: bool) {
        set_flag(&mut self.args.flags, flag, on);
    }

    /// Points the arguments at the tensors and these at their shapes, until the
    /// description is moved.
    pub(crate) fn link(&mut self) -> *const sys::fastnorm_norm_heads_backward_part {
        self.views.link(0, &mut self.args.dy);
        self.views.link(1, &mut self.args.x);
        self.views.link(2, &mut self.args.weight);
        self.views.link(3, &mut self.args.mean);
        self.views.link(4, &mut self.args.rstd);
        self.views.link(5, &mut self.args.dx);
        self.views.link(6, &mut self.args.dweight);
        self.views.link(7, &mut self.args.dbias);
        &self.args
    }

    /// A copy that links where only a shared borrow is at hand. It is never run.
    pub(crate) fn copied(&self) -> NormHeadsBackwardPart<'_> {
        NormHeadsBackwardPart {
            args: self.args,
            views: self.views,
            borrow: PhantomData,
        }
    }
}

impl fmt::Debug for NormHeadsBackwardPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("NormHeadsBackwardPart");
        shown.field("flags", &self.args.flags);
        shown.field("eps", &self.args.eps);
        self.views.show(0, "dy", &mut shown);
        self.views.show(1, "x", &mut shown);
        self.views.show(2, "weight", &mut shown);
        self.views.show(3, "mean", &mut shown);
        self.views.show(4, "rstd", &mut shown);
        self.views.show(5, "dx", &mut shown);
        self.views.show(6, "dweight", &mut shown);
        self.views.show(7, "dbias", &mut shown);
        shown.finish_non_exhaustive()
    }
}

pub(crate) type PeerShardedNormViews = Views<8>;

impl<'a> PeerShardedNorm<'a> {
    /// Added to the weights in f32, as in [`Norm`](crate::Norm); 0 if a part has no weight.
    #[inline]
    pub fn weight_offset(mut self, weight_offset: f32) -> Self {
        self.args.weight_offset = weight_offset;
        self
    }

    /// `Rounding::Once` or `Rounding::Normalized`.
    #[inline]
    pub fn rounding(mut self, rounding: Rounding) -> Self {
        self.args.rounding = rounding.raw();
        self
    }

    /// This rank's columns of the first part: `[tokens, n]`, or `[tokens, heads, d]` with n = heads
    /// \* d; d is at most 8192; f32, f16 or bf16. n is the same on all ranks. Required.
    #[inline]
    pub fn x(mut self, x: Tensor<'a>) -> Self {
        self.views.put(0, x.view);
        self
    }

    /// The weight of the first part: `[n]`, or `[d]` or `[heads, d]`; f32, f16 or bf16. Default: 1.
    #[inline]
    pub fn weight(mut self, weight: Tensor<'a>) -> Self {
        self.views.put(1, weight.view);
        self
    }

    /// The bias of the first part, with the shapes and dtypes of weight. Default: 0.
    #[inline]
    pub fn bias(mut self, bias: Tensor<'a>) -> Self {
        self.views.put(2, bias.view);
        self
    }

    /// The normalised first part, of x's shape and dtype. Output; may be x. Required.
    #[inline]
    pub fn y(mut self, y: TensorMut<'a>) -> Self {
        self.views.put(3, y.view);
        self
    }

    /// The weight of x2, with the rules of weight. Default: 1.
    #[inline]
    pub fn second_weight(mut self, second_weight: Tensor<'a>) -> Self {
        self.views.put(5, second_weight.view);
        self
    }

    /// The bias of x2, with the rules of bias. Default: 0.
    #[inline]
    pub fn second_bias(mut self, second_bias: Tensor<'a>) -> Self {
        self.views.put(6, second_bias.view);
        self
    }

    /// Start when the previous kernel of the stream allows it, but read and write nothing before
    /// that kernel has ended. Default: off.
    #[inline]
    pub fn pdl_wait(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_PDL_WAIT, on);
        self
    }

    /// Let the next kernel of the stream start early: if this one waits, after its wait, so at the
    /// earliest when everything before this call has ended. The next kernel must wait itself before
    /// it uses anything that any earlier kernel of the stream wrote. Default: off.
    #[inline]
    pub fn pdl_trigger(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_PDL_TRIGGER, on);
        self
    }

    /// With `pdl_wait`: weight and bias may be read before the wait. The caller promises that no
    /// kernel that may still run writes them. Default: off.
    #[inline]
    pub fn pdl_constant_weights(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_PDL_CONSTANT_WEIGHTS, on);
        self
    }

    /// Programmatic dependent launch is not used unless other bits ask for it: alone, the call
    /// starts when all earlier kernels have ended and lets no kernel start early. With `pdl_wait`,
    /// with `pdl_trigger` or with both the call does only what these say. Default: off.
    #[inline]
    pub fn no_pdl(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_NO_PDL, on);
        self
    }

    #[inline]
    pub(crate) fn put_x2(mut self, x2: View) -> Self {
        self.views.put(4, x2);
        self
    }

    #[inline]
    pub(crate) fn put_y2(mut self, y2: View) -> Self {
        self.views.put(7, y2);
        self
    }

    #[inline]
    pub(crate) fn flag(&mut self, flag: u32, on: bool) {
        set_flag(&mut self.args.flags, flag, on);
    }

    /// Points the arguments at the tensors and these at their shapes, until the
    /// description is moved.
    pub(crate) fn link(&mut self) -> *const sys::fastnorm_peer_sharded_norm_args {
        self.views.link(0, &mut self.args.x);
        self.views.link(1, &mut self.args.weight);
        self.views.link(2, &mut self.args.bias);
        self.views.link(3, &mut self.args.y);
        self.views.link(4, &mut self.args.x2);
        self.views.link(5, &mut self.args.weight2);
        self.views.link(6, &mut self.args.bias2);
        self.views.link(7, &mut self.args.y2);
        &self.args
    }

    /// A copy that links where only a shared borrow is at hand. It is never run.
    pub(crate) fn copied(&self) -> PeerShardedNorm<'_> {
        PeerShardedNorm {
            args: self.args,
            views: self.views,
            context: self.context,
            borrow: PhantomData,
        }
    }
}

impl fmt::Debug for PeerShardedNorm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("PeerShardedNorm");
        shown.field("kind", &kind_name(self.args.kind));
        shown.field("eps", &self.args.eps);
        self.views.show(0, "x", &mut shown);
        self.views.show(1, "weight", &mut shown);
        self.views.show(2, "bias", &mut shown);
        self.views.show(3, "y", &mut shown);
        self.views.show(4, "x2", &mut shown);
        self.views.show(5, "weight2", &mut shown);
        self.views.show(6, "bias2", &mut shown);
        self.views.show(7, "y2", &mut shown);
        shown.finish_non_exhaustive()
    }
}

impl PeerAllreduceNorm<'_> {
    /// Which value of the sum is normalised. Default: the sum rounded to T.
    #[inline]
    pub fn sum_rounding(mut self, sum_rounding: PeerSumRounding) -> Self {
        self.args.sum_rounding = sum_rounding.raw();
        self
    }
}

impl PeerOptions {
    /// How rows travel. Default: the library chooses by size.
    #[inline]
    pub fn algorithm(mut self, algorithm: PeerAlgorithm) -> Self {
        self.args.algorithm = algorithm.raw();
        self
    }

    /// With `PeerAlgorithm::Auto`: up to how many bytes (rows \* columns \* bytes of T) a call is
    /// one-shot; 0 = a measured default for the number of ranks. For 2 ranks that default makes
    /// every call one-shot.
    #[inline]
    pub fn one_shot_bytes(mut self, one_shot_bytes: u64) -> Self {
        self.args.one_shot_bytes = i64::try_from(one_shot_bytes).unwrap_or(i64::MAX);
        self
    }

    /// Number of rings in the buffer of a rank, 1 to 256; 0 = 8 on a CPU; on CUDA 256 for two ranks
    /// and 128 for more. A ring is a part of the buffer through which one row after another
    /// travels, so this is the number of rows that may travel at once. On CUDA each thread block or
    /// cluster of them has a ring, so it limits their number, too.
    #[inline]
    pub fn rings(mut self, rings: usize) -> Self {
        self.args.rings = i32::try_from(rings).unwrap_or(i32::MAX);
        self
    }
}

impl NcclOptions {
    /// As in fastnorm_peer_options.
    #[inline]
    pub fn algorithm(mut self, algorithm: PeerAlgorithm) -> Self {
        self.args.algorithm = algorithm.raw();
        self
    }

    /// As in fastnorm_peer_options.
    #[inline]
    pub fn one_shot_bytes(mut self, one_shot_bytes: u64) -> Self {
        self.args.one_shot_bytes = i64::try_from(one_shot_bytes).unwrap_or(i64::MAX);
        self
    }

    /// As in fastnorm_peer_options.
    #[inline]
    pub fn rings(mut self, rings: usize) -> Self {
        self.args.rings = i32::try_from(rings).unwrap_or(i32::MAX);
        self
    }

    /// The most bytes of x for which the call goes by peers; larger calls take the fallback. 0 = no
    /// limit.
    #[inline]
    pub fn peer_bytes(mut self, peer_bytes: u64) -> Self {
        self.args.peer_bytes = i64::try_from(peer_bytes).unwrap_or(i64::MAX);
        self
    }

    /// Always take the fallback. Default: off.
    #[inline]
    pub fn no_peers(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NCCL_NO_PEERS, on);
        self
    }

    /// Never take the fallback: a call that would take it is an error. Default: off.
    #[inline]
    pub fn fixed_order(mut self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NCCL_FIXED_ORDER, on);
        self
    }

    #[inline]
    pub(crate) fn flag(&mut self, flag: u32, on: bool) {
        set_flag(&mut self.args.flags, flag, on);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_precision_loss)]

    use super::*;
    use crate::{DType, Norm};

    /// Fields, each with its value; of a tensor the extent of its one dimension.
    type Values = Vec<(&'static str, f64)>;

    /// Checks that these fields have another value, and no others.
    fn changes(bare: &Values, set: &Values, wanted: &[(&str, f64)]) {
        let both = bare.iter().zip(set);
        let found: Values = both.filter(|(a, b)| a != b).map(|(_, b)| *b).collect();
        assert_eq!(found, wanted);
    }

    fn is_set<T>(pointer: *const T) -> f64 {
        f64::from(u8::from(!pointer.is_null()))
    }

    fn extent(tensor: *const sys::fastnorm_tensor) -> f64 {
        // SAFETY: null, or linked, to a tensor of rank 1.
        unsafe { tensor.as_ref().map_or(0.0, |tensor| *tensor.shape as f64) }
    }

    fn input(extent: usize) -> Tensor<'static> {
        const ROW: [f32; 32] = [0.0; 32];
        Tensor::new(&ROW[..extent], &[extent]).unwrap()
    }

    fn output(row: &mut [f32]) -> TensorMut<'_> {
        let extent = row.len();
        TensorMut::new(row, &[extent]).unwrap()
    }

    #[test]
    fn enums_have_their_numbers() {
        assert_eq!(Rounding::Once.raw(), 0);
        assert_eq!(Rounding::Normalized.raw(), 1);
        assert_eq!(Rounding::EveryStep.raw(), 2);
        assert_eq!(Rounding::OnceRw.raw(), 3);
        assert_eq!(Rounding::default().raw(), 0);
        assert_eq!(ResidualRounding::Exact.raw(), 0);
        assert_eq!(ResidualRounding::BeforeApply.raw(), 1);
        assert_eq!(ResidualRounding::BeforeStatistics.raw(), 2);
        assert_eq!(ResidualRounding::default().raw(), 0);
        assert_eq!(QuantSource::Exact.raw(), 0);
        assert_eq!(QuantSource::Rounded.raw(), 1);
        assert_eq!(QuantSource::default().raw(), 0);
        assert_eq!(QuantDivision::MultiplyReciprocal.raw(), 0);
        assert_eq!(QuantDivision::Divide.raw(), 1);
        assert_eq!(QuantDivision::default().raw(), 0);
        assert_eq!(ScaleLayout::RowMajor.raw(), 0);
        assert_eq!(ScaleLayout::ColumnMajor.raw(), 1);
        assert_eq!(ScaleLayout::Swizzled128x4.raw(), 2);
        assert_eq!(ScaleLayout::default().raw(), 0);
        assert_eq!(Activation::Identity.raw(), 0);
        assert_eq!(Activation::Silu.raw(), 1);
        assert_eq!(Activation::Sigmoid.raw(), 2);
        assert_eq!(Activation::Tanh.raw(), 3);
        assert_eq!(Activation::default().raw(), 0);
        assert_eq!(GatePosition::AfterNorm.raw(), 0);
        assert_eq!(GatePosition::BeforeNorm.raw(), 1);
        assert_eq!(GatePosition::default().raw(), 0);
        assert_eq!(GateSource::Exact.raw(), 0);
        assert_eq!(GateSource::Rounded.raw(), 1);
        assert_eq!(GateSource::default().raw(), 0);
        assert_eq!(SumRounding::Once.raw(), 0);
        assert_eq!(SumRounding::EveryStep.raw(), 1);
        assert_eq!(SumRounding::default().raw(), 0);
        assert_eq!(ModulationRounding::Once.raw(), 0);
        assert_eq!(ModulationRounding::EveryStep.raw(), 1);
        assert_eq!(ModulationRounding::default().raw(), 0);
        assert_eq!(LseBase::Natural.raw(), 0);
        assert_eq!(LseBase::Base2.raw(), 1);
        assert_eq!(LseBase::default().raw(), 0);
        assert_eq!(MlaCacheFormat::Rows.raw(), 0);
        assert_eq!(MlaCacheFormat::Bytes656.raw(), 1);
        assert_eq!(MlaCacheFormat::Bytes576.raw(), 2);
        assert_eq!(MlaCacheFormat::Bytes584.raw(), 3);
        assert_eq!(MlaCacheFormat::default().raw(), 0);
        assert_eq!(RopeRounding::Once.raw(), 0);
        assert_eq!(RopeRounding::EveryStep.raw(), 1);
        assert_eq!(RopeRounding::default().raw(), 0);
        assert_eq!(PeerAlgorithm::Auto.raw(), 0);
        assert_eq!(PeerAlgorithm::OneShot.raw(), 1);
        assert_eq!(PeerAlgorithm::TwoShot.raw(), 2);
        assert_eq!(PeerAlgorithm::default().raw(), 0);
        assert_eq!(PeerSumRounding::Rounded.raw(), 0);
        assert_eq!(PeerSumRounding::Exact.raw(), 1);
        assert_eq!(PeerSumRounding::default().raw(), 0);
    }

    #[test]
    #[allow(clippy::too_many_lines)]
    fn setters_of_quant() {
        fn values(mut of: Quant<'_>) -> Values {
            // SAFETY: linked just now.
            let args = unsafe { &*of.link() };
            vec![
                ("scheme", f64::from(args.scheme)),
                ("block_size", f64::from(args.block_size)),
                ("source", f64::from(args.source)),
                ("division", f64::from(args.division)),
                ("scale_layout", f64::from(args.scale_layout)),
                ("scale_pow2", f64::from(args.scale_pow2)),
                ("amax_floor", f64::from(args.amax_floor)),
                ("clamp", f64::from(args.clamp)),
                ("quantized", extent(args.quantized)),
                ("scale", extent(args.scale)),
                ("global_scale", extent(args.global_scale)),
                ("clamp_scale", extent(args.clamp_scale)),
                ("amax", extent(args.amax)),
                ("rotation", f64::from(args.rotation)),
                ("y_rotated", f64::from(args.y_rotated)),
                ("rotation_signs", extent(args.rotation_signs)),
            ]
        }
        let bare = values(Quant::none());
        let call = Quant::none();
        let set = values(call.source(QuantSource::Rounded));
        changes(&bare, &set, &[("source", 1.0)]);
        let call = Quant::none();
        let set = values(call.division(QuantDivision::Divide));
        changes(&bare, &set, &[("division", 1.0)]);
        let call = Quant::none();
        let set = values(call.layout(ScaleLayout::Swizzled128x4));
        changes(&bare, &set, &[("scale_layout", 2.0)]);
        let call = Quant::none();
        let set = values(call.pow2(true));
        changes(&bare, &set, &[("scale_pow2", 1.0)]);
        let call = Quant::none();
        let set = values(call.amax_floor(3.0));
        changes(&bare, &set, &[("amax_floor", 3.0)]);
        let call = Quant::none();
        let set = values(call.clamp(3.0));
        changes(&bare, &set, &[("clamp", 3.0)]);
        let call = Quant::none();
        let set = values(call.global_scale(input(3)));
        changes(&bare, &set, &[("global_scale", 3.0)]);
        let call = Quant::none();
        let set = values(call.clamp_scale(input(4)));
        changes(&bare, &set, &[("clamp_scale", 4.0)]);
        let call = Quant::none();
        let set = values(call.amax(output(&mut [0.0; 5])));
        changes(&bare, &set, &[("amax", 5.0)]);
        let call = Quant::none();
        let set = values(call.rotation(64));
        changes(&bare, &set, &[("rotation", 64.0)]);
        let call = Quant::none();
        let set = values(call.y_rotated(true));
        changes(&bare, &set, &[("y_rotated", 1.0)]);
        let call = Quant::none();
        let set = values(call.rotation_signs(input(6)));
        changes(&bare, &set, &[("rotation_signs", 6.0)]);
    }

    #[test]
    #[allow(clippy::too_many_lines)]
    fn setters_of_norm() {
        fn values(mut of: Norm<'_>) -> Values {
            // SAFETY: linked just now.
            let args = unsafe { &*of.link() };
            vec![
                ("kind", f64::from(args.kind)),
                ("eps", f64::from(args.eps)),
                ("weight_offset", f64::from(args.weight_offset)),
                ("rounding", f64::from(args.rounding)),
                ("residual_rounding", f64::from(args.residual_rounding)),
                ("flags", f64::from(args.flags)),
                ("x", extent(args.x)),
                ("residual", extent(args.residual)),
                ("weight", extent(args.weight)),
                ("bias", extent(args.bias)),
                ("y", extent(args.y)),
                ("residual_out", extent(args.residual_out)),
                ("mean", extent(args.mean)),
                ("rstd", extent(args.rstd)),
                ("quant", is_set(args.quant)),
                ("gate", extent(args.gate)),
                ("gate_act", f64::from(args.gate_act)),
                ("gate_position", f64::from(args.gate_position)),
                ("gate_source", f64::from(args.gate_source)),
                ("activation", f64::from(args.activation)),
                ("group_size", args.group_size as f64),
                ("sumsq", extent(args.sumsq)),
                ("mean_in", extent(args.mean_in)),
                ("rstd_in", extent(args.rstd_in)),
                ("branch_norm", f64::from(args.branch_norm)),
                ("branch_kind", f64::from(args.branch_kind)),
                ("branch_eps", f64::from(args.branch_eps)),
                ("branch_weight_offset", f64::from(args.branch_weight_offset)),
                ("branch_rounding", f64::from(args.branch_rounding)),
                ("branch_rounded", f64::from(args.branch_rounded)),
                ("alpha", f64::from(args.alpha)),
                ("sum_rounding", f64::from(args.sum_rounding)),
                ("branch_weight", extent(args.branch_weight)),
                ("branch_bias", extent(args.branch_bias)),
                ("branch_rstd", extent(args.branch_rstd)),
                ("sum_scale", extent(args.sum_scale)),
                ("residual_gate", extent(args.residual_gate)),
                ("residual_gate_table", extent(args.residual_gate_table)),
                ("residual_gate_act", f64::from(args.residual_gate_act)),
                ("modulation_rounding", f64::from(args.modulation_rounding)),
                ("modulation_scale", extent(args.modulation_scale)),
                ("scale_table", extent(args.scale_table)),
                ("modulation_shift", extent(args.modulation_shift)),
                ("shift_table", extent(args.shift_table)),
                ("modulation_index", extent(args.modulation_index)),
            ]
        }
        let bare = values(Norm::rms(0.0));
        let call = Norm::rms(0.0);
        let set = values(call.weight_offset(3.0));
        changes(&bare, &set, &[("weight_offset", 3.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.rounding(Rounding::OnceRw));
        changes(&bare, &set, &[("rounding", 3.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.residual_rounding(ResidualRounding::BeforeStatistics));
        changes(&bare, &set, &[("residual_rounding", 2.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.x(input(1)));
        changes(&bare, &set, &[("x", 1.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.residual(input(2)));
        changes(&bare, &set, &[("residual", 2.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.weight(input(3)));
        changes(&bare, &set, &[("weight", 3.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.bias(input(4)));
        changes(&bare, &set, &[("bias", 4.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.y(output(&mut [0.0; 5])));
        changes(&bare, &set, &[("y", 5.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.residual_out(output(&mut [0.0; 6])));
        changes(&bare, &set, &[("residual_out", 6.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.mean(output(&mut [0.0; 7])));
        changes(&bare, &set, &[("mean", 7.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.rstd(output(&mut [0.0; 8])));
        changes(&bare, &set, &[("rstd", 8.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.quant(Quant::none()));
        changes(&bare, &set, &[("quant", 1.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.gate(input(9)));
        changes(&bare, &set, &[("gate", 9.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.gate_act(Activation::Tanh));
        changes(&bare, &set, &[("gate_act", 3.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.gate_position(GatePosition::BeforeNorm));
        changes(&bare, &set, &[("gate_position", 1.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.gate_source(GateSource::Rounded));
        changes(&bare, &set, &[("gate_source", 1.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.activation(Activation::Tanh));
        changes(&bare, &set, &[("activation", 3.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.group_size(64));
        changes(&bare, &set, &[("group_size", 64.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.sumsq(output(&mut [0.0; 10])));
        changes(&bare, &set, &[("sumsq", 10.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.mean_in(input(11)));
        changes(&bare, &set, &[("mean_in", 11.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.rstd_in(input(12)));
        changes(&bare, &set, &[("rstd_in", 12.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.branch_weight_offset(3.0));
        changes(&bare, &set, &[("branch_weight_offset", 3.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.branch_rounding(Rounding::OnceRw));
        changes(&bare, &set, &[("branch_rounding", 3.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.branch_rounded(true));
        changes(&bare, &set, &[("branch_rounded", 1.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.alpha(3.0));
        changes(&bare, &set, &[("flags", 16.0), ("alpha", 3.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.sum_rounding(SumRounding::EveryStep));
        changes(&bare, &set, &[("sum_rounding", 1.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.branch_weight(input(13)));
        changes(&bare, &set, &[("branch_weight", 13.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.branch_bias(input(14)));
        changes(&bare, &set, &[("branch_bias", 14.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.branch_rstd(output(&mut [0.0; 15])));
        changes(&bare, &set, &[("branch_rstd", 15.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.sum_scale(input(16)));
        changes(&bare, &set, &[("sum_scale", 16.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.residual_gate(input(17)));
        changes(&bare, &set, &[("residual_gate", 17.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.residual_gate_table(input(18)));
        changes(&bare, &set, &[("residual_gate_table", 18.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.residual_gate_act(Activation::Tanh));
        changes(&bare, &set, &[("residual_gate_act", 3.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.modulation_rounding(ModulationRounding::EveryStep));
        changes(&bare, &set, &[("modulation_rounding", 1.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.modulation_scale(input(19)));
        changes(&bare, &set, &[("modulation_scale", 19.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.scale_table(input(20)));
        changes(&bare, &set, &[("scale_table", 20.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.modulation_shift(input(21)));
        changes(&bare, &set, &[("modulation_shift", 21.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.shift_table(input(22)));
        changes(&bare, &set, &[("shift_table", 22.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.modulation_index(input(23)));
        changes(&bare, &set, &[("modulation_index", 23.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.x_in_place(output(&mut [0.0; 1])));
        changes(&bare, &set, &[("x", 1.0), ("y", 1.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.residual_in_place(output(&mut [0.0; 2])));
        changes(&bare, &set, &[("residual", 2.0), ("residual_out", 2.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.gate_in_place(output(&mut [0.0; 9])));
        changes(&bare, &set, &[("y", 9.0), ("gate", 9.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.pdl_wait(true));
        changes(&bare, &set, &[("flags", 1.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.pdl_trigger(true));
        changes(&bare, &set, &[("flags", 2.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.pdl_constant_weights(true));
        changes(&bare, &set, &[("flags", 4.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.modulation_plain_scale(true));
        changes(&bare, &set, &[("flags", 8.0)]);
        let call = Norm::rms(0.0);
        let set = values(call.no_pdl(true));
        changes(&bare, &set, &[("flags", 512.0)]);
    }

    #[test]
    #[allow(clippy::too_many_lines)]
    fn setters_of_norm_backward() {
        fn values(mut of: NormBackward<'_>) -> Values {
            // SAFETY: linked just now.
            let args = unsafe { &*of.link() };
            vec![
                ("kind", f64::from(args.kind)),
                ("eps", f64::from(args.eps)),
                ("weight_offset", f64::from(args.weight_offset)),
                ("rounding", f64::from(args.rounding)),
                ("flags", f64::from(args.flags)),
                ("reserved", f64::from(args.reserved)),
                ("dy", extent(args.dy)),
                ("x", extent(args.x)),
                ("weight", extent(args.weight)),
                ("mean", extent(args.mean)),
                ("rstd", extent(args.rstd)),
                ("dresidual_in", extent(args.dresidual_in)),
                ("dx", extent(args.dx)),
                ("dresidual", extent(args.dresidual)),
                ("dweight", extent(args.dweight)),
                ("dbias", extent(args.dbias)),
                ("gate", extent(args.gate)),
                ("bias", extent(args.bias)),
                ("dgate", extent(args.dgate)),
                ("gate_act", f64::from(args.gate_act)),
                ("gate_position", f64::from(args.gate_position)),
                ("gate_source", f64::from(args.gate_source)),
                ("stage_reserved", f64::from(args.stage_reserved)),
                ("group_size", args.group_size as f64),
                ("branch", extent(args.branch)),
                ("branch_weight", extent(args.branch_weight)),
                ("branch_bias", extent(args.branch_bias)),
                ("branch_mean", extent(args.branch_mean)),
                ("branch_rstd", extent(args.branch_rstd)),
                ("residual_gate", extent(args.residual_gate)),
                ("sum_scale", extent(args.sum_scale)),
                ("dbranch", extent(args.dbranch)),
                ("dbranch_weight", extent(args.dbranch_weight)),
                ("dbranch_bias", extent(args.dbranch_bias)),
                ("dresidual_gate", extent(args.dresidual_gate)),
                ("branch_kind", f64::from(args.branch_kind)),
                ("branch_eps", f64::from(args.branch_eps)),
                ("branch_weight_offset", f64::from(args.branch_weight_offset)),
                ("branch_rounding", f64::from(args.branch_rounding)),
                ("branch_norm", f64::from(args.branch_norm)),
                ("branch_rounded", f64::from(args.branch_rounded)),
                ("residual_gate_act", f64::from(args.residual_gate_act)),
                ("alpha", f64::from(args.alpha)),
            ]
        }
        let bare = values(NormBackward::rms(0.0));
        let call = NormBackward::rms(0.0);
        let set = values(call.weight_offset(3.0));
        changes(&bare, &set, &[("weight_offset", 3.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.rounding(Rounding::OnceRw));
        changes(&bare, &set, &[("rounding", 3.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.dy(input(1)));
        changes(&bare, &set, &[("dy", 1.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.x(input(2)));
        changes(&bare, &set, &[("x", 2.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.weight(input(3)));
        changes(&bare, &set, &[("weight", 3.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.mean(input(4)));
        changes(&bare, &set, &[("mean", 4.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.rstd(input(5)));
        changes(&bare, &set, &[("rstd", 5.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.dresidual_in(input(6)));
        changes(&bare, &set, &[("dresidual_in", 6.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.dx(output(&mut [0.0; 7])));
        changes(&bare, &set, &[("dx", 7.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.dresidual(output(&mut [0.0; 8])));
        changes(&bare, &set, &[("dresidual", 8.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.dweight(output(&mut [0.0; 9])));
        changes(&bare, &set, &[("dweight", 9.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.dbias(output(&mut [0.0; 10])));
        changes(&bare, &set, &[("dbias", 10.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.gate(input(11)));
        changes(&bare, &set, &[("gate", 11.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.bias(input(12)));
        changes(&bare, &set, &[("bias", 12.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.dgate(output(&mut [0.0; 13])));
        changes(&bare, &set, &[("dgate", 13.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.gate_act(Activation::Tanh));
        changes(&bare, &set, &[("gate_act", 3.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.gate_position(GatePosition::BeforeNorm));
        changes(&bare, &set, &[("gate_position", 1.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.gate_source(GateSource::Rounded));
        changes(&bare, &set, &[("gate_source", 1.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.group_size(64));
        changes(&bare, &set, &[("group_size", 64.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.branch(input(14)));
        changes(&bare, &set, &[("branch", 14.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.branch_weight(input(15)));
        changes(&bare, &set, &[("branch_weight", 15.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.branch_bias(input(16)));
        changes(&bare, &set, &[("branch_bias", 16.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.branch_mean(input(17)));
        changes(&bare, &set, &[("branch_mean", 17.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.branch_rstd(input(18)));
        changes(&bare, &set, &[("branch_rstd", 18.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.residual_gate(input(19)));
        changes(&bare, &set, &[("residual_gate", 19.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.sum_scale(input(20)));
        changes(&bare, &set, &[("sum_scale", 20.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.dbranch(output(&mut [0.0; 21])));
        changes(&bare, &set, &[("dbranch", 21.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.dbranch_weight(output(&mut [0.0; 22])));
        changes(&bare, &set, &[("dbranch_weight", 22.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.dbranch_bias(output(&mut [0.0; 23])));
        changes(&bare, &set, &[("dbranch_bias", 23.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.dresidual_gate(output(&mut [0.0; 24])));
        changes(&bare, &set, &[("dresidual_gate", 24.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.branch_weight_offset(3.0));
        changes(&bare, &set, &[("branch_weight_offset", 3.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.branch_rounding(Rounding::OnceRw));
        changes(&bare, &set, &[("branch_rounding", 3.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.branch_rounded(true));
        changes(&bare, &set, &[("branch_rounded", 1.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.residual_gate_act(Activation::Tanh));
        changes(&bare, &set, &[("residual_gate_act", 3.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.alpha(3.0));
        changes(&bare, &set, &[("flags", 256.0), ("alpha", 3.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.dy_in_place(output(&mut [0.0; 1])));
        changes(&bare, &set, &[("dy", 1.0), ("dx", 1.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.gate_in_place(output(&mut [0.0; 11])));
        changes(&bare, &set, &[("gate", 11.0), ("dgate", 11.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.branch_in_place(output(&mut [0.0; 14])));
        changes(&bare, &set, &[("branch", 14.0), ("dbranch", 14.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.pdl_wait(true));
        changes(&bare, &set, &[("flags", 1.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.pdl_trigger(true));
        changes(&bare, &set, &[("flags", 2.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.accumulate_dweight(output(&mut [0.0; 9])));
        changes(&bare, &set, &[("flags", 8.0), ("dweight", 9.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.accumulate_dbias(output(&mut [0.0; 10])));
        changes(&bare, &set, &[("flags", 16.0), ("dbias", 10.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.accumulate_dbranch_weight(output(&mut [0.0; 22])));
        changes(&bare, &set, &[("flags", 32.0), ("dbranch_weight", 22.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.accumulate_dbranch_bias(output(&mut [0.0; 23])));
        changes(&bare, &set, &[("flags", 64.0), ("dbranch_bias", 23.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.accumulate_dresidual_gate(output(&mut [0.0; 24])));
        changes(&bare, &set, &[("flags", 128.0), ("dresidual_gate", 24.0)]);
        let call = NormBackward::rms(0.0);
        let set = values(call.no_pdl(true));
        changes(&bare, &set, &[("flags", 512.0)]);
    }

    #[test]
    #[allow(clippy::too_many_lines)]
    fn setters_of_mla_decode() {
        fn values(mut of: MlaDecode<'_>) -> Values {
            // SAFETY: linked just now.
            let args = unsafe { &*of.link() };
            vec![
                ("sm_scale", args.sm_scale),
                ("causal", f64::from(args.causal)),
                ("lse_base", f64::from(args.lse_base)),
                ("max_s_q", f64::from(args.max_s_q)),
                ("reuse_plan", f64::from(args.reuse_plan)),
                ("split_tokens", f64::from(args.split_tokens)),
                ("profile_events", f64::from(args.profile_events)),
                ("total_kv_hint", args.total_kv_hint as f64),
                ("q_nope", extent(args.q_nope)),
                ("q_pe", extent(args.q_pe)),
                ("ckv", extent(args.ckv)),
                ("kpe", extent(args.kpe)),
                ("kv_len", extent(args.kv_len)),
                ("page_table", extent(args.page_table)),
                ("kv_indptr", extent(args.kv_indptr)),
                ("qo_indptr", extent(args.qo_indptr)),
                ("o", extent(args.o)),
                ("lse", extent(args.lse)),
                ("profile", extent(args.profile)),
                ("flags", f64::from(args.flags)),
                ("cache_format", f64::from(args.cache_format)),
                ("cache", extent(args.cache)),
                ("cache_scale", extent(args.cache_scale)),
                ("indices", extent(args.indices)),
                ("topk_length", extent(args.topk_length)),
                ("attention_sink", extent(args.attention_sink)),
                ("extra_ckv", extent(args.extra_ckv)),
                ("extra_kpe", extent(args.extra_kpe)),
                ("extra_cache", extent(args.extra_cache)),
                ("extra_indices", extent(args.extra_indices)),
                ("extra_topk_length", extent(args.extra_topk_length)),
            ]
        }
        let bare = values(MlaDecode::new(1.0));
        let call = MlaDecode::new(1.0);
        let set = values(call.causal(true));
        changes(&bare, &set, &[("causal", 1.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.reuse_plan(true));
        changes(&bare, &set, &[("reuse_plan", 1.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.split_tokens(64));
        changes(&bare, &set, &[("split_tokens", 64.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.total_kv_hint(64));
        changes(&bare, &set, &[("total_kv_hint", 64.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.q_nope(input(1)));
        changes(&bare, &set, &[("q_nope", 1.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.q_pe(input(2)));
        changes(&bare, &set, &[("q_pe", 2.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.ckv(input(3)));
        changes(&bare, &set, &[("ckv", 3.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.kpe(input(4)));
        changes(&bare, &set, &[("kpe", 4.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.kv_len(input(5)));
        changes(&bare, &set, &[("kv_len", 5.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.page_table(input(6)));
        changes(&bare, &set, &[("page_table", 6.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.kv_indptr(input(7)));
        changes(&bare, &set, &[("kv_indptr", 7.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.o(output(&mut [0.0; 9])));
        changes(&bare, &set, &[("o", 9.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.cache_format(MlaCacheFormat::Bytes584));
        changes(&bare, &set, &[("cache_format", 3.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.cache(input(12)));
        changes(&bare, &set, &[("cache", 12.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.cache_scale(input(13)));
        changes(&bare, &set, &[("cache_scale", 13.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.indices(input(14)));
        changes(&bare, &set, &[("indices", 14.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.topk_length(input(15)));
        changes(&bare, &set, &[("topk_length", 15.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.attention_sink(input(16)));
        changes(&bare, &set, &[("attention_sink", 16.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.extra_ckv(input(17)));
        changes(&bare, &set, &[("extra_ckv", 17.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.extra_kpe(input(18)));
        changes(&bare, &set, &[("extra_kpe", 18.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.extra_cache(input(19)));
        changes(&bare, &set, &[("extra_cache", 19.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.extra_indices(input(20)));
        changes(&bare, &set, &[("extra_indices", 20.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.extra_topk_length(input(21)));
        changes(&bare, &set, &[("extra_topk_length", 21.0)]);
        let call = MlaDecode::new(1.0);
        let set = values(call.no_pdl(true));
        changes(&bare, &set, &[("flags", 512.0)]);
    }

    #[test]
    #[allow(clippy::too_many_lines)]
    fn setters_of_norm_heads() {
        fn values(mut of: NormHeads<'_>) -> Values {
            // SAFETY: linked just now.
            let args = unsafe { &*of.link() };
            vec![
                ("flags", f64::from(args.flags)),
                ("rope_dim", f64::from(args.rope_dim)),
                ("mrope_0", f64::from(args.mrope_0)),
                ("mrope_1", f64::from(args.mrope_1)),
                ("mrope_2", f64::from(args.mrope_2)),
                ("mrope_3", f64::from(args.mrope_3)),
                ("cos", extent(args.cos)),
                ("sin", extent(args.sin)),
                ("positions", extent(args.positions)),
                ("slots", extent(args.slots)),
            ]
        }
        let bare = values(NormHeads::new());
        let call = NormHeads::new();
        let set = values(call.positions(input(3)));
        changes(&bare, &set, &[("positions", 3.0)]);
        let call = NormHeads::new();
        let set = values(call.slots(input(4)));
        changes(&bare, &set, &[("slots", 4.0)]);
        let call = NormHeads::new();
        let set = values(call.no_pdl(true));
        changes(&bare, &set, &[("flags", 512.0)]);
    }

    #[test]
    #[allow(clippy::too_many_lines)]
    fn setters_of_norm_heads_part() {
        fn values(mut of: NormHeadsPart<'_>) -> Values {
            // SAFETY: linked just now.
            let args = unsafe { &*of.link() };
            vec![
                ("flags", f64::from(args.flags)),
                ("kind", f64::from(args.kind)),
                ("eps", f64::from(args.eps)),
                ("weight_offset", f64::from(args.weight_offset)),
                ("rounding", f64::from(args.rounding)),
                ("rope_rounding", f64::from(args.rope_rounding)),
                ("rope_offset", f64::from(args.rope_offset)),
                ("head_weights_factor", f64::from(args.head_weights_factor)),
                ("x", extent(args.x)),
                ("weight", extent(args.weight)),
                ("bias", extent(args.bias)),
                ("y", extent(args.y)),
                ("mean", extent(args.mean)),
                ("rstd", extent(args.rstd)),
                ("mean_in", extent(args.mean_in)),
                ("rstd_in", extent(args.rstd_in)),
                ("sumsq", extent(args.sumsq)),
                ("quant", is_set(args.quant)),
                ("cache", extent(args.cache)),
                ("cache_quant", is_set(args.cache_quant)),
                ("head_weights", extent(args.head_weights)),
                ("head_weights_out", extent(args.head_weights_out)),
                ("cache_tail", extent(args.cache_tail)),
            ]
        }
        let bare = values(NormHeadsPart::new(input(1)));
        let call = NormHeadsPart::new(input(1));
        let set = values(call.weight_offset(3.0));
        changes(&bare, &set, &[("weight_offset", 3.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.rounding(Rounding::OnceRw));
        changes(&bare, &set, &[("rounding", 3.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.rope_rounding(RopeRounding::EveryStep));
        changes(&bare, &set, &[("rope_rounding", 1.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.head_weights_factor(3.0));
        changes(&bare, &set, &[("head_weights_factor", 3.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.weight(input(2)));
        changes(&bare, &set, &[("weight", 2.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.bias(input(3)));
        changes(&bare, &set, &[("bias", 3.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.y(output(&mut [0.0; 4])));
        changes(&bare, &set, &[("y", 4.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.mean(output(&mut [0.0; 5])));
        changes(&bare, &set, &[("mean", 5.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.rstd(output(&mut [0.0; 6])));
        changes(&bare, &set, &[("rstd", 6.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.mean_in(input(7)));
        changes(&bare, &set, &[("mean_in", 7.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.rstd_in(input(8)));
        changes(&bare, &set, &[("rstd_in", 8.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.sumsq(output(&mut [0.0; 9])));
        changes(&bare, &set, &[("sumsq", 9.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.quant(Quant::none()));
        changes(&bare, &set, &[("quant", 1.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.cache(output(&mut [0.0; 10])));
        changes(&bare, &set, &[("cache", 10.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.head_weights(input(11)));
        changes(&bare, &set, &[("head_weights", 11.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.head_weights_out(output(&mut [0.0; 12])));
        changes(&bare, &set, &[("head_weights_out", 12.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.cache_tail(output(&mut [0.0; 13])));
        changes(&bare, &set, &[("cache_tail", 13.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.rope_interleaved(true));
        changes(&bare, &set, &[("flags", 4.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.rope_inverse(true));
        changes(&bare, &set, &[("flags", 8.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.rope_from_rounded(true));
        changes(&bare, &set, &[("flags", 16.0)]);
        let call = NormHeadsPart::new(input(1));
        let set = values(call.across_heads(true));
        changes(&bare, &set, &[("flags", 32.0)]);
    }

    #[test]
    #[allow(clippy::too_many_lines)]
    fn setters_of_norm_heads_backward() {
        fn values(mut of: NormHeadsBackward<'_>) -> Values {
            // SAFETY: linked just now.
            let args = unsafe { &*of.link() };
            vec![
                ("flags", f64::from(args.flags)),
                ("rope_dim", f64::from(args.rope_dim)),
                ("mrope_0", f64::from(args.mrope_0)),
                ("mrope_1", f64::from(args.mrope_1)),
                ("mrope_2", f64::from(args.mrope_2)),
                ("mrope_3", f64::from(args.mrope_3)),
                ("cos", extent(args.cos)),
                ("sin", extent(args.sin)),
                ("positions", extent(args.positions)),
                ("slots", extent(args.slots)),
            ]
        }
        let bare = values(NormHeadsBackward::new());
        let call = NormHeadsBackward::new();
        let set = values(call.positions(input(3)));
        changes(&bare, &set, &[("positions", 3.0)]);
        let call = NormHeadsBackward::new();
        let set = values(call.no_pdl(true));
        changes(&bare, &set, &[("flags", 512.0)]);
    }

    #[test]
    #[allow(clippy::too_many_lines)]
    fn setters_of_norm_heads_backward_part() {
        fn values(mut of: NormHeadsBackwardPart<'_>) -> Values {
            // SAFETY: linked just now.
            let args = unsafe { &*of.link() };
            vec![
                ("flags", f64::from(args.flags)),
                ("kind", f64::from(args.kind)),
                ("eps", f64::from(args.eps)),
                ("weight_offset", f64::from(args.weight_offset)),
                ("rounding", f64::from(args.rounding)),
                ("rope_offset", f64::from(args.rope_offset)),
                ("dy", extent(args.dy)),
                ("x", extent(args.x)),
                ("weight", extent(args.weight)),
                ("mean", extent(args.mean)),
                ("rstd", extent(args.rstd)),
                ("dx", extent(args.dx)),
                ("dweight", extent(args.dweight)),
                ("dbias", extent(args.dbias)),
            ]
        }
        let bare = values(NormHeadsBackwardPart::new(input(1)));
        let call = NormHeadsBackwardPart::new(input(1));
        let set = values(call.weight_offset(3.0));
        changes(&bare, &set, &[("weight_offset", 3.0)]);
        let call = NormHeadsBackwardPart::new(input(1));
        let set = values(call.rounding(Rounding::OnceRw));
        changes(&bare, &set, &[("rounding", 3.0)]);
        let call = NormHeadsBackwardPart::new(input(1));
        let set = values(call.weight(input(3)));
        changes(&bare, &set, &[("weight", 3.0)]);
        let call = NormHeadsBackwardPart::new(input(1));
        let set = values(call.mean(input(4)));
        changes(&bare, &set, &[("mean", 4.0)]);
        let call = NormHeadsBackwardPart::new(input(1));
        let set = values(call.rstd(input(5)));
        changes(&bare, &set, &[("rstd", 5.0)]);
        let call = NormHeadsBackwardPart::new(input(1));
        let set = values(call.dx(output(&mut [0.0; 6])));
        changes(&bare, &set, &[("dx", 6.0)]);
        let call = NormHeadsBackwardPart::new(input(1));
        let set = values(call.dweight(output(&mut [0.0; 7])));
        changes(&bare, &set, &[("dweight", 7.0)]);
        let call = NormHeadsBackwardPart::new(input(1));
        let set = values(call.dbias(output(&mut [0.0; 8])));
        changes(&bare, &set, &[("dbias", 8.0)]);
        let call = NormHeadsBackwardPart::new(input(1));
        let set = values(call.rope_interleaved(true));
        changes(&bare, &set, &[("flags", 4.0)]);
        let call = NormHeadsBackwardPart::new(input(1));
        let set = values(call.rope_inverse(true));
        changes(&bare, &set, &[("flags", 8.0)]);
        let call = NormHeadsBackwardPart::new(input(1));
        let set = values(call.across_heads(true));
        changes(&bare, &set, &[("flags", 32.0)]);
        let call = NormHeadsBackwardPart::new(input(1));
        let set = values(call.accumulate_dweight(output(&mut [0.0; 7])));
        changes(&bare, &set, &[("flags", 64.0), ("dweight", 7.0)]);
        let call = NormHeadsBackwardPart::new(input(1));
        let set = values(call.accumulate_dbias(output(&mut [0.0; 8])));
        changes(&bare, &set, &[("flags", 128.0), ("dbias", 8.0)]);
    }

    #[test]
    #[cfg(not(miri))] // which calls no foreign functions
    #[allow(clippy::too_many_lines)]
    fn setters_of_peer_sharded_norm() {
        fn values(mut of: PeerShardedNorm<'_>) -> Values {
            // SAFETY: linked just now.
            let args = unsafe { &*of.link() };
            vec![
                ("kind", f64::from(args.kind)),
                ("eps", f64::from(args.eps)),
                ("weight_offset", f64::from(args.weight_offset)),
                ("rounding", f64::from(args.rounding)),
                ("flags", f64::from(args.flags)),
                ("reserved", f64::from(args.reserved)),
                ("x", extent(args.x)),
                ("weight", extent(args.weight)),
                ("bias", extent(args.bias)),
                ("y", extent(args.y)),
                ("x2", extent(args.x2)),
                ("weight2", extent(args.weight2)),
                ("bias2", extent(args.bias2)),
                ("y2", extent(args.y2)),
            ]
        }
        let context = crate::Context::cpu().unwrap();
        let options = PeerOptions::new(0, 2, DType::F32, 8);
        let peer = options.create(&context).unwrap();
        let bare = values(PeerShardedNorm::rms(&peer, 0.0));
        let call = PeerShardedNorm::rms(&peer, 0.0);
        let set = values(call.weight_offset(3.0));
        changes(&bare, &set, &[("weight_offset", 3.0)]);
        let call = PeerShardedNorm::rms(&peer, 0.0);
        let set = values(call.rounding(Rounding::OnceRw));
        changes(&bare, &set, &[("rounding", 3.0)]);
        let call = PeerShardedNorm::rms(&peer, 0.0);
        let set = values(call.x(input(1)));
        changes(&bare, &set, &[("x", 1.0)]);
        let call = PeerShardedNorm::rms(&peer, 0.0);
        let set = values(call.weight(input(2)));
        changes(&bare, &set, &[("weight", 2.0)]);
        let call = PeerShardedNorm::rms(&peer, 0.0);
        let set = values(call.bias(input(3)));
        changes(&bare, &set, &[("bias", 3.0)]);
        let call = PeerShardedNorm::rms(&peer, 0.0);
        let set = values(call.y(output(&mut [0.0; 4])));
        changes(&bare, &set, &[("y", 4.0)]);
        let call = PeerShardedNorm::rms(&peer, 0.0);
        let set = values(call.second_weight(input(6)));
        changes(&bare, &set, &[("weight2", 6.0)]);
        let call = PeerShardedNorm::rms(&peer, 0.0);
        let set = values(call.second_bias(input(7)));
        changes(&bare, &set, &[("bias2", 7.0)]);
        let call = PeerShardedNorm::rms(&peer, 0.0);
        let set = values(call.pdl_wait(true));
        changes(&bare, &set, &[("flags", 1.0)]);
        let call = PeerShardedNorm::rms(&peer, 0.0);
        let set = values(call.pdl_trigger(true));
        changes(&bare, &set, &[("flags", 2.0)]);
        let call = PeerShardedNorm::rms(&peer, 0.0);
        let set = values(call.pdl_constant_weights(true));
        changes(&bare, &set, &[("flags", 4.0)]);
        let call = PeerShardedNorm::rms(&peer, 0.0);
        let set = values(call.no_pdl(true));
        changes(&bare, &set, &[("flags", 512.0)]);
    }

    #[test]
    #[cfg(not(miri))] // which calls no foreign functions
    #[allow(clippy::too_many_lines)]
    fn setters_of_peer_allreduce_norm() {
        fn values(mut of: PeerAllreduceNorm<'_>) -> Values {
            // SAFETY: linked just now.
            let args = unsafe { &*of.link() };
            vec![
                ("norm", is_set(args.norm)),
                ("sum_rounding", f64::from(args.sum_rounding)),
                ("reserved", f64::from(args.reserved)),
            ]
        }
        let context = crate::Context::cpu().unwrap();
        let options = PeerOptions::new(0, 2, DType::F32, 8);
        let peer = options.create(&context).unwrap();
        let bare = values(PeerAllreduceNorm::new(&peer, Norm::rms(0.0)));
        let call = PeerAllreduceNorm::new(&peer, Norm::rms(0.0));
        let set = values(call.sum_rounding(PeerSumRounding::Exact));
        changes(&bare, &set, &[("sum_rounding", 1.0)]);
    }

    #[test]
    #[allow(clippy::too_many_lines)]
    fn setters_of_peer_options() {
        fn values(of: PeerOptions) -> Values {
            let args = &of.args;
            vec![
                ("rank", f64::from(args.rank)),
                ("ranks", f64::from(args.ranks)),
                ("dtype", f64::from(args.dtype)),
                ("algorithm", f64::from(args.algorithm)),
                ("max_columns", args.max_columns as f64),
                ("one_shot_bytes", args.one_shot_bytes as f64),
                ("wait_ns", args.wait_ns as f64),
                ("rings", f64::from(args.rings)),
                ("reserved", f64::from(args.reserved)),
            ]
        }
        let bare = values(PeerOptions::new(0, 2, DType::F32, 8));
        let call = PeerOptions::new(0, 2, DType::F32, 8);
        let set = values(call.algorithm(PeerAlgorithm::TwoShot));
        changes(&bare, &set, &[("algorithm", 2.0)]);
        let call = PeerOptions::new(0, 2, DType::F32, 8);
        let set = values(call.one_shot_bytes(64));
        changes(&bare, &set, &[("one_shot_bytes", 64.0)]);
        let call = PeerOptions::new(0, 2, DType::F32, 8);
        let set = values(call.rings(64));
        changes(&bare, &set, &[("rings", 64.0)]);
    }

    #[test]
    #[allow(clippy::too_many_lines)]
    fn setters_of_nccl_options() {
        fn values(of: NcclOptions) -> Values {
            let args = &of.args;
            vec![
                ("dtype", f64::from(args.dtype)),
                ("algorithm", f64::from(args.algorithm)),
                ("max_columns", args.max_columns as f64),
                ("one_shot_bytes", args.one_shot_bytes as f64),
                ("wait_ns", args.wait_ns as f64),
                ("rings", f64::from(args.rings)),
                ("flags", f64::from(args.flags)),
                ("peer_bytes", args.peer_bytes as f64),
            ]
        }
        let bare = values(NcclOptions::new(DType::F32, 8));
        let call = NcclOptions::new(DType::F32, 8);
        let set = values(call.algorithm(PeerAlgorithm::TwoShot));
        changes(&bare, &set, &[("algorithm", 2.0)]);
        let call = NcclOptions::new(DType::F32, 8);
        let set = values(call.one_shot_bytes(64));
        changes(&bare, &set, &[("one_shot_bytes", 64.0)]);
        let call = NcclOptions::new(DType::F32, 8);
        let set = values(call.rings(64));
        changes(&bare, &set, &[("rings", 64.0)]);
        let call = NcclOptions::new(DType::F32, 8);
        let set = values(call.peer_bytes(64));
        changes(&bare, &set, &[("peer_bytes", 64.0)]);
        let call = NcclOptions::new(DType::F32, 8);
        let set = values(call.no_peers(true));
        changes(&bare, &set, &[("flags", 1.0)]);
        let call = NcclOptions::new(DType::F32, 8);
        let set = values(call.fixed_order(true));
        changes(&bare, &set, &[("flags", 2.0)]);
    }
}
