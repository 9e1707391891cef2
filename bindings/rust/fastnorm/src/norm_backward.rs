//! Gradients of `RMSNorm` and `LayerNorm`.

use std::marker::PhantomData;

use crate::norm::launch;
use crate::slots::{flags, slots, with_linked};
use crate::status::check;
use crate::tensor::View;
use crate::{
    sys, Activation, Context, GatePosition, GateSource, Info, Result, Rounding, Stream, Tensor,
    TensorMut, Workspace,
};

slots! {
    NormBackward, fastnorm_norm_backward_args, 88,
    |args, f| {
        let layer = args.kind == sys::FASTNORM_NORM_LAYER;
        f.field("kind", &if layer { "layer" } else { "rms" }).field("eps", &args.eps)
    };
    Dy dy, X x, Weight weight, Mean mean, Rstd rstd, DresidualIn dresidual_in, Dx dx,
    Dresidual dresidual, Dweight dweight, Dbias dbias, Gate gate, Bias bias, Dgate dgate,
    Branch branch, BranchWeight branch_weight, BranchBias branch_bias, BranchMean branch_mean,
    BranchRstd branch_rstd, ResidualGate residual_gate, SumScale sum_scale, Dbranch dbranch,
    DbranchWeight dbranch_weight, DbranchBias dbranch_bias, DresidualGate dresidual_gate,
}

/// The gradients of one [`Norm`](crate::Norm). T is the dtype of its x. For each row of n elements,
/// with g = weight + `weight_offset` (1 without a weight):
///
/// ```text
/// xhat      = (x - mean) * rstd                 (rms: x * rstd)
/// e         = dy * g
/// c1        = sum(e * xhat) / n
/// c2        = sum(e) / n                        (layer only)
/// dx        = (e - c2 - xhat * c1) * rstd + dresidual_in
/// dresidual = the same, rounded to its own dtype
/// ```
///
/// and for each column, over all rows that share an element of weight or bias:
///
/// ```text
/// dweight = sum(dy * xhat)                      (+ the old dweight)
/// dbias   = sum(dy)                             (+ the old dbias)
/// ```
///
/// With a [gate](Self::gate) after the norm, dy * act(gate) takes the place of dy above. The
/// gradient of the gate is dgate = dy * (xhat * g + bias) * act'(gate).
///
/// With a gate before the norm, x * act(gate) takes the place of x. Call the result of the formula
/// dh. Then dx = dh * act(gate), and dgate = dh * x * act'(gate).
///
/// Where the forward added its x, the [branch](Self::branch), to a residual, x here is the stored
/// `residual_out`. With k = act(`residual_gate`) * alpha, u what the forward added, and r =
/// `sum_scale` times the dx above:
///
/// ```text
/// dx             = r, the gradient of the residual
/// du             = r * k
/// dbranch        = du, or the gradient of the branch's norm for du in place of dy
/// dbranch_weight = sum(du * the normalised branch)
/// dbranch_bias   = sum(du)
/// dresidual_gate = act'(residual_gate) * alpha * sum(r * u)
/// ```
///
/// dweight and dbias have the same bits for any number of threads. They have the same bits on CPU
/// and GPU if dy, x, mean and rstd have.
///
/// Made once, it can [run](Self::run) many times.
///
/// ```
/// # use fastnorm::*;
/// let (x, dy) = ([3f32, 4.0], [1f32, 0.0]);
/// let (mut dx, mut dweight) = ([0f32; 2], [0f32; 2]);
/// NormBackward::rms(0.0)
///     .x(Tensor::new(&x, &[1, 2])?)
///     .dy(Tensor::new(&dy, &[1, 2])?)
///     .weight(Tensor::new(&[1f32, 1.0], &[2])?)
///     .dx(TensorMut::new(&mut dx, &[1, 2])?)
///     .dweight(TensorMut::new(&mut dweight, &[2])?)
///     .run(&Context::cpu()?)?;
/// let rstd = 12.5f32.sqrt().recip();
/// assert!((dweight[0] - 3.0 * rstd).abs() < 1e-6 && dweight[1] == 0.0);
/// assert!((dx[0] - 0.64 * rstd).abs() < 1e-6 && (dx[1] + 0.48 * rstd).abs() < 1e-6);
/// # Ok::<(), Error>(())
/// ```
#[must_use = "nothing happens until it runs"]
pub struct NormBackward<'a> {
    args: sys::fastnorm_norm_backward_args,
    views: [Option<View>; SLOTS],
    borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it holds tensors, which are Send. The pointers of `args` are set anew in every call.
unsafe impl Send for NormBackward<'_> {}
// SAFETY: a shared NormBackward can be asked what it would do, which touches no tensor's memory. To
// run it takes an exclusive borrow.
unsafe impl Sync for NormBackward<'_> {}

impl<'a> NormBackward<'a> {
    fn new(kind: sys::fastnorm_norm_kind, eps: f32) -> Self {
        Self {
            args: sys::fastnorm_norm_backward_args {
                kind,
                eps,
                ..sys::fastnorm_norm_backward_args::new()
            },
            views: [None; SLOTS],
            borrow: PhantomData,
        }
    }

    /// Of a norm by the root mean square. `eps` is the forward's.
    pub fn rms(eps: f32) -> Self {
        Self::new(sys::FASTNORM_NORM_RMS, eps)
    }

    /// Of a norm by mean and variance. `eps` is the forward's.
    pub fn layer(eps: f32) -> Self {
        Self::new(sys::FASTNORM_NORM_LAYER, eps)
    }

    /// x's shape, T or f32: the gradient of y. Its last dimension may have stride 0. Required.
    pub fn dy(self, dy: Tensor<'a>) -> Self {
        self.put(Slot::Dy, dy.view)
    }

    /// `[.., n]` of f32, f16 or bf16: the forward's x, or its `residual_out`. Required.
    pub fn x(self, x: Tensor<'a>) -> Self {
        self.put(Slot::X, x.view)
    }

    /// The forward's weight. Default: 1.
    pub fn weight(self, weight: Tensor<'a>) -> Self {
        self.put(Slot::Weight, weight.view)
    }

    /// The forward's means; layer only. f32. Not set where [`rstd`](Self::rstd) is not.
    pub fn mean(self, mean: Tensor<'a>) -> Self {
        self.put(Slot::Mean, mean.view)
    }

    /// The forward's rstd, f32. Default: the statistics are computed again from x.
    pub fn rstd(self, rstd: Tensor<'a>) -> Self {
        self.put(Slot::Rstd, rstd.view)
    }

    /// x's shape; f32, f16 or bf16: the gradient that reaches `residual_out` from elsewhere.
    /// Default: none.
    pub fn dresidual_in(self, dresidual_in: Tensor<'a>) -> Self {
        self.put(Slot::DresidualIn, dresidual_in.view)
    }

    /// dy and dx in one: the gradient of x replaces that of y.
    #[allow(clippy::needless_pass_by_value)] // the borrow moves in
    pub fn dy_in_place(self, dy: TensorMut<'a>) -> Self {
        self.put(Slot::Dy, dy.view).put(Slot::Dx, dy.view)
    }

    /// x's shape, T: receives the gradient of x and of the residual.
    #[allow(clippy::needless_pass_by_value)]
    pub fn dx(self, dx: TensorMut<'a>) -> Self {
        self.put(Slot::Dx, dx.view)
    }

    /// x's shape: receives the same gradient for a residual of another dtype. Needs
    /// [`dx`](Self::dx).
    #[allow(clippy::needless_pass_by_value)]
    pub fn dresidual(self, dresidual: TensorMut<'a>) -> Self {
        self.put(Slot::Dresidual, dresidual.view)
    }

    /// The weight's shape; f32 or its dtype: receives the weight's gradient.
    #[allow(clippy::needless_pass_by_value)]
    pub fn dweight(self, dweight: TensorMut<'a>) -> Self {
        self.put(Slot::Dweight, dweight.view)
    }

    /// As [`dweight`](Self::dweight), but the gradient is added to what is there: after the sum, in
    /// f32.
    #[allow(clippy::needless_pass_by_value)]
    pub fn accumulate_dweight(self, dweight: TensorMut<'a>) -> Self {
        self.flag(sys::FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT, true)
            .put(Slot::Dweight, dweight.view)
    }

    /// The shape of the forward's bias; f32, f16 or bf16: receives the bias's gradient.
    #[allow(clippy::needless_pass_by_value)]
    pub fn dbias(self, dbias: TensorMut<'a>) -> Self {
        self.put(Slot::Dbias, dbias.view)
    }

    /// As [`dbias`](Self::dbias), but the gradient is added to what is there: after the sum, in
    /// f32.
    #[allow(clippy::needless_pass_by_value)]
    pub fn accumulate_dbias(self, dbias: TensorMut<'a>) -> Self {
        self.flag(sys::FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS, true)
            .put(Slot::Dbias, dbias.view)
    }

    /// The forward's gate: x's shape, T or f32. Before the norm: no `dresidual_in`, no dresidual.
    pub fn gate(self, gate: Tensor<'a>) -> Self {
        self.put(Slot::Gate, gate.view)
    }

    /// gate and dgate in one: the gradient of the gate replaces the gate.
    #[allow(clippy::needless_pass_by_value)]
    pub fn gate_in_place(self, gate: TensorMut<'a>) -> Self {
        self.put(Slot::Gate, gate.view).put(Slot::Dgate, gate.view)
    }

    /// The forward's bias, which dgate alone needs. Default: 0.
    pub fn bias(self, bias: Tensor<'a>) -> Self {
        self.put(Slot::Bias, bias.view)
    }

    /// x's shape, T or f32: receives the gradient of the gate. Needs [`gate`](Self::gate).
    #[allow(clippy::needless_pass_by_value)]
    pub fn dgate(self, dgate: TensorMut<'a>) -> Self {
        self.put(Slot::Dgate, dgate.view)
    }

    /// The forward's function of the gate. Needs a gate. Default: the gate itself.
    pub fn gate_act(mut self, act: Activation) -> Self {
        self.args.gate_act = act.raw();
        self
    }

    /// Where the forward's gate multiplies. Needs a gate. Default: after the norm.
    pub fn gate_position(mut self, position: GatePosition) -> Self {
        self.args.gate_position = position.raw();
        self
    }

    /// What the forward's gate multiplies after the norm. Needs a gate. Default: the unrounded
    /// result.
    pub fn gate_source(mut self, source: GateSource) -> Self {
        self.args.gate_source = source.raw();
        self
    }

    /// The forward's columns that share a statistic. Default: all of a row.
    pub fn group_size(mut self, columns: i64) -> Self {
        self.args.group_size = columns;
        self
    }

    /// The forward's x, of T, where it added a residual. A branch goes without a gate and groups.
    pub fn branch(self, branch: Tensor<'a>) -> Self {
        self.put(Slot::Branch, branch.view)
    }

    /// branch and dbranch in one: the gradient of the branch replaces the branch.
    #[allow(clippy::needless_pass_by_value)]
    pub fn branch_in_place(self, branch: TensorMut<'a>) -> Self {
        self.put(Slot::Branch, branch.view)
            .put(Slot::Dbranch, branch.view)
    }

    /// The forward normalised the branch by its root mean square. Default: it did not.
    pub fn branch_rms(self, eps: f32) -> Self {
        self.branch_norm(sys::FASTNORM_NORM_RMS, eps)
    }

    /// The forward normalised the branch by its mean and variance. Default: it did not.
    pub fn branch_layer(self, eps: f32) -> Self {
        self.branch_norm(sys::FASTNORM_NORM_LAYER, eps)
    }

    fn branch_norm(mut self, kind: sys::fastnorm_norm_kind, eps: f32) -> Self {
        self.args.branch_norm = 1;
        self.args.branch_kind = kind;
        self.args.branch_eps = eps;
        self
    }

    /// The forward's weight of the branch's norm. Default: 1.
    pub fn branch_weight(self, weight: Tensor<'a>) -> Self {
        self.put(Slot::BranchWeight, weight.view)
    }

    /// The forward's bias of the branch's norm. `dresidual_gate` alone needs it. Default: 0.
    pub fn branch_bias(self, bias: Tensor<'a>) -> Self {
        self.put(Slot::BranchBias, bias.view)
    }

    /// The means of the branch, f32; layer only. They go with [`branch_rstd`](Self::branch_rstd).
    pub fn branch_mean(self, mean: Tensor<'a>) -> Self {
        self.put(Slot::BranchMean, mean.view)
    }

    /// The rstd of the branch, f32. Default: its statistics are computed again.
    pub fn branch_rstd(self, rstd: Tensor<'a>) -> Self {
        self.put(Slot::BranchRstd, rstd.view)
    }

    /// The forward's. Default: 0.
    pub fn branch_weight_offset(mut self, offset: f32) -> Self {
        self.args.branch_weight_offset = offset;
        self
    }

    /// The forward's. Default: once.
    pub fn branch_rounding(mut self, rounding: Rounding) -> Self {
        self.args.branch_rounding = rounding.raw();
        self
    }

    /// Whether the forward rounded the branch before it added it. Default: it did not.
    pub fn branch_rounded(mut self, rounded: bool) -> Self {
        self.args.branch_rounded = i32::from(rounded);
        self
    }

    /// The forward's factor of the branch, `[.., n]` of T or f32, its table added. Default: 1.
    pub fn residual_gate(self, gate: Tensor<'a>) -> Self {
        self.put(Slot::ResidualGate, gate.view)
    }

    /// The forward's function of the residual gate. Needs one. Default: the gate itself.
    pub fn residual_gate_act(mut self, act: Activation) -> Self {
        self.args.residual_gate_act = act.raw();
        self
    }

    /// The forward's. Default: 1.
    pub fn alpha(mut self, alpha: f32) -> Self {
        self.args.alpha = alpha;
        self
    }

    /// The forward's factor of the sum, one f32. Default: 1.
    pub fn sum_scale(self, scale: Tensor<'a>) -> Self {
        self.put(Slot::SumScale, scale.view)
    }

    /// x's shape, T: receives the gradient of the branch.
    #[allow(clippy::needless_pass_by_value)]
    pub fn dbranch(self, dbranch: TensorMut<'a>) -> Self {
        self.put(Slot::Dbranch, dbranch.view)
    }

    /// The shape of the branch's weight; f32 or its dtype: receives that weight's gradient.
    #[allow(clippy::needless_pass_by_value)]
    pub fn dbranch_weight(self, dweight: TensorMut<'a>) -> Self {
        self.put(Slot::DbranchWeight, dweight.view)
    }

    /// As [`dbranch_weight`](Self::dbranch_weight), but the gradient is added to what is there.
    #[allow(clippy::needless_pass_by_value)]
    pub fn accumulate_dbranch_weight(self, dweight: TensorMut<'a>) -> Self {
        self.flag(sys::FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT, true)
            .dbranch_weight(dweight)
    }

    /// The shape of the branch's bias; f32, f16 or bf16: receives that bias's gradient.
    #[allow(clippy::needless_pass_by_value)]
    pub fn dbranch_bias(self, dbias: TensorMut<'a>) -> Self {
        self.put(Slot::DbranchBias, dbias.view)
    }

    /// As [`dbranch_bias`](Self::dbranch_bias), but the gradient is added to what is there.
    #[allow(clippy::needless_pass_by_value)]
    pub fn accumulate_dbranch_bias(self, dbias: TensorMut<'a>) -> Self {
        self.flag(sys::FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS, true)
            .dbranch_bias(dbias)
    }

    /// The residual gate's shape; f32 or its dtype: receives the residual gate's gradient.
    #[allow(clippy::needless_pass_by_value)]
    pub fn dresidual_gate(self, dgate: TensorMut<'a>) -> Self {
        self.put(Slot::DresidualGate, dgate.view)
    }

    /// As [`dresidual_gate`](Self::dresidual_gate), but the gradient is added to what is there.
    #[allow(clippy::needless_pass_by_value)]
    pub fn accumulate_dresidual_gate(self, dgate: TensorMut<'a>) -> Self {
        self.flag(sys::FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE, true)
            .dresidual_gate(dgate)
    }

    /// The forward's. Default: 0.
    pub fn weight_offset(mut self, offset: f32) -> Self {
        self.args.weight_offset = offset;
        self
    }

    /// The forward's. Default: once.
    pub fn rounding(mut self, rounding: Rounding) -> Self {
        self.args.rounding = rounding.raw();
        self
    }

    flags! {
        /// As [`Norm::pdl_wait`](crate::Norm::pdl_wait). Default: off.
        pdl_wait: sys::FASTNORM_NORM_BACKWARD_PDL_WAIT,

        /// As [`Norm::pdl_trigger`](crate::Norm::pdl_trigger). Default: off.
        pdl_trigger: sys::FASTNORM_NORM_BACKWARD_PDL_TRIGGER,
    }

    /// Says what a run would do. No tensor's memory is touched.
    ///
    /// # Errors
    /// As [`NormBackward::run`].
    pub fn query(&self, context: &Context) -> Result<Info> {
        let mut copy = self.copied();
        let mut info = sys::fastnorm_info::new();
        // SAFETY: `link` gives valid arguments; `info` is writable and knows its size.
        check(unsafe {
            sys::fastnorm_norm_backward_query(context.as_ptr(), copy.link(), &mut info)
        })?;
        Ok(Info::from_raw(&info))
    }

    /// Loads the kernels of a run. After it, runs that use the same kernels neither allocate nor
    /// synchronise, and can be captured in a CUDA graph. Optional.
    ///
    /// # Errors
    /// As [`NormBackward::run`].
    pub fn prepare(&self, context: &Context) -> Result<()> {
        let mut copy = self.copied();
        // SAFETY: `link` gives valid arguments.
        check(unsafe { sys::fastnorm_norm_backward_prepare(context.as_ptr(), copy.link()) })
    }

    /// Computes the gradients. On the CPU they are there on return.
    ///
    /// On a GPU dweight and dbias need a workspace: [`run_with`](Self::run_with).
    ///
    /// # Errors
    /// - [`Status::ARGUMENT`](crate::Status::ARGUMENT): dy, x or every output is missing; an option
    ///   out of range; mean with rms; one of mean and rstd alone with layer; dweight without a
    ///   weight; dresidual without dx; dgate or an option of a gate without one; no branch
    ///   where one is needed; too small a workspace; a stream on the CPU
    /// - [`Status::SHAPE`](crate::Status::SHAPE): ranks or extents that do not fit
    /// - [`Status::DTYPE`](crate::Status::DTYPE): a dtype that the tensor's role does not allow
    /// - [`Status::LAYOUT`](crate::Status::LAYOUT): a last dimension that is not contiguous, a
    ///   misaligned address, overlap
    /// - [`Status::UNSUPPORTED`](crate::Status::UNSUPPORTED): leading dimensions that do not join;
    ///   on a GPU, parameters that vary along more of them than its kernels allow
    /// - [`Status::DEVICE`](crate::Status::DEVICE): a tensor on another device; an error of the
    ///   CUDA runtime
    ///
    /// # Panics
    /// Only if a callback of the context does.
    pub fn run(&mut self, context: &Context) -> Result<()> {
        self.run_with(context, Stream::DEFAULT, Workspace::NONE)
    }

    /// [Runs](Self::run) on a CUDA stream with a workspace.
    ///
    /// # Errors
    /// As [`NormBackward::run`].
    pub fn run_with(
        &mut self,
        context: &Context,
        stream: Stream,
        workspace: Workspace,
    ) -> Result<()> {
        let args = self.link();
        launch(
            context,
            workspace,
            || self.query(context),
            |workspace| {
                // SAFETY: `link` gives valid arguments. What they point to is borrowed, exclusively
                // where it is written, or promised by who made the tensor, the stream or the
                // workspace.
                unsafe {
                    sys::fastnorm_norm_backward(
                        context.as_ptr(),
                        args,
                        workspace.address,
                        workspace.bytes,
                        stream.0,
                    )
                }
            },
        )
    }

    /// The same bits, to be linked where only a shared borrow is at hand. Never run.
    fn copied(&self) -> NormBackward<'_> {
        NormBackward {
            args: self.args,
            views: self.views,
            borrow: PhantomData,
        }
    }
}

/// Computes the gradients of up to 8 norms as one call, such as those of the query heads and the
/// key heads of one buffer. The results are those of one [`NormBackward::run`] each, in order. All
/// parts are checked, against each other too, before anything runs. No part may touch what another
/// writes.
///
/// # Errors
/// As [`NormBackward::run`]; the text names the part, as `args[i]`.
pub fn norm_backward_many(context: &Context, parts: &mut [NormBackward<'_>]) -> Result<()> {
    norm_backward_many_with(context, parts, Stream::DEFAULT, Workspace::NONE)
}

/// As [`norm_backward_many`], on a CUDA stream with a workspace.
///
/// # Errors
/// As [`norm_backward_many`].
pub fn norm_backward_many_with(
    context: &Context,
    parts: &mut [NormBackward<'_>],
    stream: Stream,
    workspace: Workspace,
) -> Result<()> {
    with_linked(parts, NormBackward::link, |parts, count| {
        let query = || {
            let mut info = sys::fastnorm_info::new();
            // SAFETY: the parts are linked until `with_linked` returns.
            check(unsafe {
                sys::fastnorm_norm_backward_many_query(context.as_ptr(), parts, count, &mut info)
            })?;
            Ok(Info::from_raw(&info))
        };
        launch(context, workspace, query, |workspace| {
            // SAFETY: as in `NormBackward::run_with`.
            unsafe {
                sys::fastnorm_norm_backward_many(
                    context.as_ptr(),
                    parts,
                    count,
                    workspace.address,
                    workspace.bytes,
                    stream.0,
                )
            }
        })
    })
}

/// As [`NormBackward::query`], for [`norm_backward_many`]: the sum of its parts.
///
/// # Errors
/// As [`norm_backward_many`].
pub fn norm_backward_many_query(context: &Context, parts: &[NormBackward<'_>]) -> Result<Info> {
    let mut copies: Vec<NormBackward<'_>> = parts.iter().map(NormBackward::copied).collect();
    let mut info = sys::fastnorm_info::new();
    with_linked(&mut copies, NormBackward::link, |parts, count| {
        // SAFETY: the parts are linked; `info` is writable and knows its size.
        check(unsafe {
            sys::fastnorm_norm_backward_many_query(context.as_ptr(), parts, count, &mut info)
        })
    })?;
    Ok(Info::from_raw(&info))
}

/// As [`NormBackward::prepare`], for [`norm_backward_many`].
///
/// # Errors
/// As [`norm_backward_many`].
pub fn norm_backward_many_prepare(context: &Context, parts: &[NormBackward<'_>]) -> Result<()> {
    let mut copies: Vec<NormBackward<'_>> = parts.iter().map(NormBackward::copied).collect();
    with_linked(&mut copies, NormBackward::link, |parts, count| {
        // SAFETY: the parts are linked.
        check(unsafe { sys::fastnorm_norm_backward_many_prepare(context.as_ptr(), parts, count) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every setter reaches its field, and no other.
    #[test]
    #[allow(clippy::float_cmp, clippy::too_many_lines)] // the list of fields is long
    fn every_field() {
        let inputs = [0f32; 15];
        let mut outputs: Vec<Vec<f32>> = (1..=9).map(|n| vec![0.0; n + 15]).collect();
        let mut outputs = outputs.iter_mut();
        // Told apart by their lengths: inputs 1 to 15, outputs 16 to 24.
        let input = |n: usize| Tensor::new(&inputs[..n], &[n]).unwrap();
        let mut output = || {
            let buffer = outputs.next().unwrap();
            let n = buffer.len();
            TensorMut::new(buffer, &[n]).unwrap()
        };
        let mut call = NormBackward::layer(0.5)
            .dy(input(1))
            .x(input(2))
            .weight(input(3))
            .mean(input(4))
            .rstd(input(5))
            .dresidual_in(input(6))
            .dx(output())
            .dresidual(output())
            .accumulate_dweight(output())
            .accumulate_dbias(output())
            .gate(input(7))
            .bias(input(8))
            .dgate(output())
            .gate_act(Activation::Silu)
            .gate_position(GatePosition::BeforeNorm)
            .gate_source(GateSource::Rounded)
            .group_size(32)
            .branch(input(9))
            .branch_layer(0.25)
            .branch_weight(input(10))
            .branch_bias(input(11))
            .branch_mean(input(12))
            .branch_rstd(input(13))
            .residual_gate(input(14))
            .sum_scale(input(15))
            .dbranch(output())
            .accumulate_dbranch_weight(output())
            .accumulate_dbranch_bias(output())
            .accumulate_dresidual_gate(output())
            .branch_weight_offset(2.0)
            .branch_rounding(Rounding::Normalized)
            .branch_rounded(true)
            .residual_gate_act(Activation::Tanh)
            .alpha(3.0)
            .weight_offset(1.0)
            .rounding(Rounding::EveryStep)
            .pdl_wait(true)
            .pdl_trigger(true)
            .pdl_wait(false);
        // SAFETY: linked just now.
        let args = unsafe { *call.link() };
        // Named one by one: a field that the library gains does not compile until it is here.
        let sys::fastnorm_norm_backward_args {
            struct_size,
            kind,
            eps,
            weight_offset,
            rounding,
            flags,
            reserved,
            dy,
            x,
            weight,
            mean,
            rstd,
            dresidual_in,
            dx,
            dresidual,
            dweight,
            dbias,
            gate,
            bias,
            dgate,
            gate_act,
            gate_position,
            gate_source,
            stage_reserved,
            group_size,
            branch,
            branch_weight,
            branch_bias,
            branch_mean,
            branch_rstd,
            residual_gate,
            sum_scale,
            dbranch,
            dbranch_weight,
            dbranch_bias,
            dresidual_gate,
            branch_kind,
            branch_eps,
            branch_weight_offset,
            branch_rounding,
            branch_norm,
            branch_rounded,
            residual_gate_act,
            alpha,
        } = args;
        assert_eq!(
            (branch_kind, branch_norm, branch_rounded),
            (sys::FASTNORM_NORM_LAYER, 1, 1)
        );
        assert_eq!((branch_eps, branch_weight_offset, alpha), (0.25, 2.0, 3.0));
        assert_eq!(branch_rounding, sys::FASTNORM_ROUND_NORMALIZED);
        assert_eq!(residual_gate_act, sys::FASTNORM_ACTIVATION_TANH);
        assert_eq!(struct_size, size_of_val(&args));
        assert_eq!(
            (kind, eps, weight_offset, reserved),
            (sys::FASTNORM_NORM_LAYER, 0.5, 1.0, 0)
        );
        assert_eq!(rounding, sys::FASTNORM_ROUND_EVERY_STEP);
        assert_eq!(gate_act, sys::FASTNORM_ACTIVATION_SILU);
        assert_eq!(gate_position, sys::FASTNORM_GATE_BEFORE_NORM);
        assert_eq!(gate_source, sys::FASTNORM_GATE_FROM_ROUNDED);
        assert_eq!((group_size, stage_reserved), (32, 0));
        assert_eq!(flags, 2 | 8 | 16 | 32 | 64 | 128, "pdl_wait was taken back");
        let tensors = [
            dy,
            x,
            weight,
            mean,
            rstd,
            dresidual_in,
            dx,
            dresidual,
            dweight,
            dbias,
            gate,
            bias,
            dgate,
            branch,
            branch_weight,
            branch_bias,
            branch_mean,
            branch_rstd,
            residual_gate,
            sum_scale,
            dbranch,
            dbranch_weight,
            dbranch_bias,
            dresidual_gate,
        ];
        // SAFETY: linked, to tensors of rank 1.
        let lengths = tensors.map(|t| unsafe { *(*t).shape });
        let wanted = [
            1, 2, 3, 4, 5, 6, 16, 17, 18, 19, 7, 8, 20, 9, 10, 11, 12, 13, 14, 15, 21, 22, 23, 24,
        ];
        assert_eq!(lengths, wanted);
    }
}
