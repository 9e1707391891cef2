//! The stages of a norm: a gate, a norm of the branch, groups and split statistics.

use super::{Norm, Rounding, Slot};
use crate::{sys, Tensor, TensorMut};

/// A function of each element, with the same bits everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// The element itself.
    #[default]
    Identity,
    /// v / (1 + exp(-v)); -0 from -110 down, for -Inf too.
    Silu,
    /// 1 / (1 + exp(-v)).
    Sigmoid,
    /// tanh(v).
    Tanh,
}

impl Activation {
    pub(crate) fn raw(self) -> sys::fastnorm_activation {
        match self {
            Self::Identity => sys::FASTNORM_ACTIVATION_IDENTITY,
            Self::Silu => sys::FASTNORM_ACTIVATION_SILU,
            Self::Sigmoid => sys::FASTNORM_ACTIVATION_SIGMOID,
            Self::Tanh => sys::FASTNORM_ACTIVATION_TANH,
        }
    }
}

/// Where the gate multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GatePosition {
    /// The normalised row: Qwen3-Next, Kimi Linear.
    #[default]
    AfterNorm,
    /// x, before residual and statistics: Mamba2.
    BeforeNorm,
}

impl GatePosition {
    pub(crate) fn raw(self) -> sys::fastnorm_gate_position {
        match self {
            Self::AfterNorm => sys::FASTNORM_GATE_AFTER_NORM,
            Self::BeforeNorm => sys::FASTNORM_GATE_BEFORE_NORM,
        }
    }
}

/// What a gate after the norm multiplies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateSource {
    /// The unrounded result: FLA, mamba, vLLM.
    #[default]
    Exact,
    /// The result rounded to x's dtype: Hugging Face.
    Rounded,
}

impl GateSource {
    pub(crate) fn raw(self) -> sys::fastnorm_gate_source {
        match self {
            Self::Exact => sys::FASTNORM_GATE_FROM_F32,
            Self::Rounded => sys::FASTNORM_GATE_FROM_ROUNDED,
        }
    }
}

/// Where the sum of branch and residual is rounded to x's dtype on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SumRounding {
    /// Nowhere: the product with alpha and the sum are one operation.
    #[default]
    Once,
    /// The product, the sum and the product with the sum's scale.
    EveryStep,
}

impl SumRounding {
    pub(crate) fn raw(self) -> sys::fastnorm_sum_rounding {
        match self {
            Self::Once => sys::FASTNORM_SUM_ONCE,
            Self::EveryStep => sys::FASTNORM_SUM_EVERY_STEP,
        }
    }
}

/// Where the modulation is rounded to x's dtype on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModulationRounding {
    /// Nowhere: the product and the sum are one operation.
    #[default]
    Once,
    /// The normalised row, the sums with tables, 1 + scale, the product and the sum.
    EveryStep,
}

impl ModulationRounding {
    pub(crate) fn raw(self) -> sys::fastnorm_modulation_rounding {
        match self {
            Self::Once => sys::FASTNORM_MODULATION_ONCE,
            Self::EveryStep => sys::FASTNORM_MODULATION_EVERY_STEP,
        }
    }
}

/// # Stages
///
/// Each is optional, and goes with all else. u is x where nothing comes before:
///
/// ```text
/// u = x * act(gate)                  gate_position BeforeNorm
/// u = norm(u)                        branch_rms, branch_layer
/// u = u, rounded to T                branch_rounded
/// k = act(residual_gate + table)     residual_gate, residual_gate_table, residual_gate_act
/// s = u * k * alpha + residual       alpha
/// s = s * sum_scale                  sum_scale
/// z = s normalised                   group_size: each group by itself
/// z = z * (1 + scale) + shift        modulation_scale, modulation_shift, their tables
/// z = z * act(gate)                  gate_position AfterNorm
/// z = activation(z)                  activation
/// y = z, rounded to T
/// ```
///
/// A GPU has no stages in this version:
/// [`Status::UNSUPPORTED`](crate::Status::UNSUPPORTED).
impl<'a> Norm<'a> {
    /// x's shape; T or f32: the gate of each element. It may not overlap x. Default: nothing is
    /// gated.
    ///
    /// ```
    /// # use fastnorm::*;
    /// let (x, gate) = ([3f32, 4., 0., 0.], [0f32, 200., 1., 1.]);
    /// let mut y = [0f32; 4];
    /// Norm::rms(0.0)
    ///     .x(Tensor::new(&x, &[1, 4])?)
    ///     .gate(Tensor::new(&gate, &[1, 4])?)
    ///     .gate_act(Activation::Sigmoid)
    ///     .y(TensorMut::new(&mut y, &[1, 4])?)
    ///     .run(&Context::cpu()?)?;
    /// assert_eq!(y, [0.6, 1.6, 0., 0.]); // a sigmoid of 1/2, and one of 1
    /// # Ok::<(), Error>(())
    /// ```
    #[inline]
    pub fn gate(mut self, gate: Tensor<'a>) -> Self {
        self.put(Slot::Gate, gate.view);
        self
    }

    /// gate and y in one: the results replace the gate.
    #[inline]
    #[allow(clippy::needless_pass_by_value)] // the borrow moves in
    pub fn gate_in_place(mut self, gate: TensorMut<'a>) -> Self {
        self.put(Slot::Gate, gate.view);
        self.put(Slot::Y, gate.view);
        self
    }

    /// The function of the gate. Needs a gate. Default: the gate itself.
    #[inline]
    pub fn gate_act(mut self, act: Activation) -> Self {
        self.args.gate_act = act.raw();
        self
    }

    /// Where the gate multiplies. Needs a gate. Default: after the norm.
    #[inline]
    pub fn gate_position(mut self, position: GatePosition) -> Self {
        self.args.gate_position = position.raw();
        self
    }

    /// What a gate after the norm multiplies. Needs a gate. Default: the unrounded result.
    #[inline]
    pub fn gate_source(mut self, source: GateSource) -> Self {
        self.args.gate_source = source.raw();
        self
    }

    /// The function of the result, after the gate. Default: none.
    #[inline]
    pub fn activation(mut self, activation: Activation) -> Self {
        self.args.activation = activation.raw();
        self
    }

    /// Columns that share a statistic, a divisor of n. Weight and bias are `[.., n]`, or
    /// `[.., columns]` for all groups alike. Statistics have x's shape with n / columns for its
    /// last extent. Default, and for 0: n.
    #[inline]
    pub fn group_size(mut self, columns: usize) -> Self {
        self.args.group_size = i64::try_from(columns).unwrap_or(i64::MAX);
        self
    }

    /// Receives the rows' sums of squares, for a statistic over several devices; y may be absent.
    /// Shape as of the mean. Layer: with one extent more, of 2, for the mean and the sum of
    /// (s - mean)^2.
    ///
    /// ```
    /// # use fastnorm::*;
    /// let context = Context::cpu()?;
    /// let halves = [[3f32, 4.], [0., 0.]]; // of one row, on two devices
    /// let (mut sums, mut y) = ([[0f32]; 2], [[0f32; 2]; 2]);
    /// for (x, sum) in halves.iter().zip(&mut sums) {
    ///     Norm::rms(0.0)
    ///         .x(Tensor::new(x, &[1, 2])?)
    ///         .sumsq(TensorMut::new(sum, &[1])?)
    ///         .run(&context)?;
    /// }
    /// let rstd = [1. / ((sums[0][0] + sums[1][0]) / 4.).sqrt()];
    /// for (x, y) in halves.iter().zip(&mut y) {
    ///     Norm::rms(0.0)
    ///         .x(Tensor::new(x, &[1, 2])?)
    ///         .rstd_in(Tensor::new(&rstd, &[1])?)
    ///         .y(TensorMut::new(y, &[1, 2])?)
    ///         .run(&context)?;
    /// }
    /// assert_eq!(y, [[3. * rstd[0], 4. * rstd[0]], [0., 0.]]);
    /// # Ok::<(), Error>(())
    /// ```
    #[inline]
    #[allow(clippy::needless_pass_by_value)]
    pub fn sumsq(mut self, sumsq: TensorMut<'a>) -> Self {
        self.put(Slot::Sumsq, sumsq.view);
        self
    }

    /// The means to use, with [`rstd_in`](Self::rstd_in); layer only. Shape as of the mean.
    #[inline]
    pub fn mean_in(mut self, mean: Tensor<'a>) -> Self {
        self.put(Slot::MeanIn, mean.view);
        self
    }

    /// The rstd to use. Shape as of the mean. Default: it is computed.
    #[inline]
    pub fn rstd_in(mut self, rstd: Tensor<'a>) -> Self {
        self.put(Slot::RstdIn, rstd.view);
        self
    }

    fn branch(mut self, kind: sys::fastnorm_norm_kind, eps: f32) -> Self {
        self.args.branch_norm = 1;
        self.args.branch_kind = kind;
        self.args.branch_eps = eps;
        self
    }

    /// Normalises x by its root mean square before the residual is added, over all n columns.
    /// `eps` is finite and not negative. Default: the branch has no norm.
    ///
    /// ```
    /// # use fastnorm::*;
    /// // As in Gemma: a norm of the branch, the sum, and the next block's norm.
    /// let (x, mut stream) = ([3f32, 4., 0., 0.], [-0.2f32, -1.6, 1., 1.]);
    /// let mut y = [0f32; 4];
    /// Norm::rms(0.0)
    ///     .x(Tensor::new(&x, &[1, 4])?)
    ///     .branch_rms(0.0) // 1.2, 1.6, 0, 0
    ///     .residual_in_place(TensorMut::new(&mut stream, &[1, 4])?)
    ///     .y(TensorMut::new(&mut y, &[1, 4])?)
    ///     .run(&Context::cpu()?)?;
    /// assert!((stream[0] - 1.).abs() < 1e-6 && stream[1].abs() < 1e-6);
    /// assert!((y[3] - 2. / 3f32.sqrt()).abs() < 1e-6);
    /// # Ok::<(), Error>(())
    /// ```
    #[inline]
    pub fn branch_rms(self, eps: f32) -> Self {
        self.branch(sys::FASTNORM_NORM_RMS, eps)
    }

    /// As [`branch_rms`](Self::branch_rms), by mean and (biased) variance.
    #[inline]
    pub fn branch_layer(self, eps: f32) -> Self {
        self.branch(sys::FASTNORM_NORM_LAYER, eps)
    }

    /// The weight of the branch's norm, of the weight's shapes and dtypes. Default: 1.
    #[inline]
    pub fn branch_weight(mut self, weight: Tensor<'a>) -> Self {
        self.put(Slot::BranchWeight, weight.view);
        self
    }

    /// The bias of the branch's norm. Default: 0.
    #[inline]
    pub fn branch_bias(mut self, bias: Tensor<'a>) -> Self {
        self.put(Slot::BranchBias, bias.view);
        self
    }

    /// Added to the branch's weight in f32: 1 for Gemma 2 and 3. 0 without a weight. Default: 0.
    #[inline]
    pub fn branch_weight_offset(mut self, offset: f32) -> Self {
        self.args.branch_weight_offset = offset;
        self
    }

    /// Where the branch is rounded on its way, with a norm: any but `OnceRw`. Default: nowhere.
    #[inline]
    pub fn branch_rounding(mut self, rounding: Rounding) -> Self {
        self.args.branch_rounding = rounding.raw();
        self
    }

    /// Whether the normalised branch is rounded to T before the sum, as by two calls. Default: no.
    #[inline]
    pub fn branch_rounded(mut self, on: bool) -> Self {
        self.args.branch_rounded = i32::from(on);
        self
    }

    /// Receives the rstd of the branch. f32 of x's shape without its last extent, or with 1 for it.
    #[inline]
    #[allow(clippy::needless_pass_by_value)]
    pub fn branch_rstd(mut self, rstd: TensorMut<'a>) -> Self {
        self.put(Slot::BranchRstd, rstd.view);
        self
    }

    /// The factor of the branch, in one operation with the sum. Finite. Default, and for 0: 1.
    #[inline]
    pub fn alpha(mut self, alpha: f32) -> Self {
        self.args.alpha = alpha;
        self
    }

    /// The factor of the sum, a `[1]` f32 on the device. Default: 1.
    #[inline]
    pub fn sum_scale(mut self, scale: Tensor<'a>) -> Self {
        self.put(Slot::SumScale, scale.view);
        self
    }

    /// Where the sum is rounded on its way. Default: nowhere.
    #[inline]
    pub fn sum_rounding(mut self, rounding: SumRounding) -> Self {
        self.args.sum_rounding = rounding.raw();
        self
    }

    /// The factor of the branch in the sum; T or f32. It broadcasts against x, the last dimension
    /// too: `[1]`, `[batch, 1, n]`, `[batch, tokens, 1]`. With
    /// [`modulation_index`](Self::modulation_index) it is `[m, n]` or `[m, 1]`. Default: 1.
    #[inline]
    pub fn residual_gate(mut self, gate: Tensor<'a>) -> Self {
        self.put(Slot::ResidualGate, gate.view);
        self
    }

    /// Added to the residual's gate: `[n]`, or with leading extents of 1; T or f32. Default: 0.
    #[inline]
    pub fn residual_gate_table(mut self, table: Tensor<'a>) -> Self {
        self.put(Slot::ResidualGateTable, table.view);
        self
    }

    /// The function of the residual's gate with its table. Default: the gate itself.
    #[inline]
    pub fn residual_gate_act(mut self, act: Activation) -> Self {
        self.args.residual_gate_act = act.raw();
        self
    }

    /// 1 + it is the factor of the normalised row; shapes and dtypes as of the
    /// [`residual_gate`](Self::residual_gate). Default: nothing is multiplied.
    ///
    /// ```
    /// # use fastnorm::*;
    /// // A gated residual, then a norm with scale and shift, as in a diffusion transformer.
    /// let (x, mut stream) = ([6f32, 8., 1., 1.], [0f32, 0., -0.5, -0.5]);
    /// let (gate, scale, shift) = ([0.5f32], [1f32, 0., 0., 0.], [0f32, 0., 7., 0.]);
    /// let mut y = [0f32; 4];
    /// Norm::rms(0.0)
    ///     .x(Tensor::new(&x, &[1, 4])?)
    ///     .residual_in_place(TensorMut::new(&mut stream, &[1, 4])?) // 3, 4, 0, 0
    ///     .residual_gate(Tensor::new(&gate, &[1])?)
    ///     .modulation_scale(Tensor::new(&scale, &[4])?)
    ///     .modulation_shift(Tensor::new(&shift, &[4])?)
    ///     .y(TensorMut::new(&mut y, &[1, 4])?)
    ///     .run(&Context::cpu()?)?;
    /// assert_eq!(stream, [3., 4., 0., 0.]);
    /// assert_eq!(y, [2.4, 1.6, 7., 0.]);
    /// # Ok::<(), Error>(())
    /// ```
    #[inline]
    pub fn modulation_scale(mut self, scale: Tensor<'a>) -> Self {
        self.put(Slot::ModulationScale, scale.view);
        self
    }

    /// Added to the modulation's scale, as
    /// [`residual_gate_table`](Self::residual_gate_table). Default: 0.
    #[inline]
    pub fn scale_table(mut self, table: Tensor<'a>) -> Self {
        self.put(Slot::ScaleTable, table.view);
        self
    }

    /// Whether the factor of the normalised row is the scale itself, not 1 + it. Default: no.
    #[inline]
    pub fn modulation_plain_scale(self, on: bool) -> Self {
        self.flag(sys::FASTNORM_NORM_MODULATION_PLAIN_SCALE, on)
    }

    /// Added to the normalised row; shapes and dtypes as of the
    /// [`residual_gate`](Self::residual_gate). Default: nothing is added.
    #[inline]
    pub fn modulation_shift(mut self, shift: Tensor<'a>) -> Self {
        self.put(Slot::ModulationShift, shift.view);
        self
    }

    /// Added to the modulation's shift, as
    /// [`residual_gate_table`](Self::residual_gate_table). Default: 0.
    #[inline]
    pub fn shift_table(mut self, table: Tensor<'a>) -> Self {
        self.put(Slot::ShiftTable, table.view);
        self
    }

    /// Which row of each modulator a row of x takes: x's shape without its last extent, or with 1
    /// for it; i32 or i64. Default: the modulators broadcast.
    #[inline]
    pub fn modulation_index(mut self, index: Tensor<'a>) -> Self {
        self.put(Slot::ModulationIndex, index.view);
        self
    }

    /// Where the modulation is rounded on its way. Default: nowhere.
    #[inline]
    pub fn modulation_rounding(mut self, rounding: ModulationRounding) -> Self {
        self.args.modulation_rounding = rounding.raw();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_have_their_numbers() {
        let acts = [
            Activation::Identity,
            Activation::Silu,
            Activation::Sigmoid,
            Activation::Tanh,
        ];
        assert_eq!(acts.map(Activation::raw), [0, 1, 2, 3]);
        assert_eq!(Activation::default().raw(), 0);
        let positions = [GatePosition::AfterNorm, GatePosition::BeforeNorm];
        assert_eq!(positions.map(GatePosition::raw), [0, 1]);
        assert_eq!(GatePosition::default().raw(), 0);
        let sources = [GateSource::Exact, GateSource::Rounded];
        assert_eq!(sources.map(GateSource::raw), [0, 1]);
        assert_eq!(GateSource::default().raw(), 0);
        let sums = [SumRounding::Once, SumRounding::EveryStep];
        assert_eq!(sums.map(SumRounding::raw), [0, 1]);
        assert_eq!(SumRounding::default().raw(), 0);
        let modulations = [ModulationRounding::Once, ModulationRounding::EveryStep];
        assert_eq!(modulations.map(ModulationRounding::raw), [0, 1]);
        assert_eq!(ModulationRounding::default().raw(), 0);
        let plain = |on| Norm::rms(0.0).modulation_plain_scale(on);
        assert_eq!((plain(true).args.flags, plain(false).args.flags), (8, 0));
        let rms = Norm::layer(0.0).branch_rms(0.0).args;
        assert_eq!((rms.branch_norm, rms.branch_kind), (1, 0));
        assert_eq!(
            Norm::rms(0.0).group_size(usize::MAX).args.group_size,
            i64::MAX
        );
    }
}
