//! Gradients of `RMSNorm` and `LayerNorm`.

use std::marker::PhantomData;

use crate::fields::NormBackwardViews;
use crate::norm::launch;
use crate::slots::with_linked;
use crate::status::check;
use crate::{sys, Context, Info, Result, Stream, Workspace};

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
    pub(crate) args: sys::fastnorm_norm_backward_args,
    pub(crate) views: NormBackwardViews,
    pub(crate) borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it holds tensors, which are Send. The pointers of `args` are set anew in every call.
unsafe impl Send for NormBackward<'_> {}
// SAFETY: a shared NormBackward can be asked what it would do, which touches no tensor's memory. To
// run it takes an exclusive borrow.
unsafe impl Sync for NormBackward<'_> {}

impl NormBackward<'_> {
    fn new(kind: sys::fastnorm_norm_kind, eps: f32) -> Self {
        Self {
            args: sys::fastnorm_norm_backward_args {
                kind,
                eps,
                ..sys::fastnorm_norm_backward_args::new()
            },
            views: NormBackwardViews::new(),
            borrow: PhantomData,
        }
    }

    /// The gradient of a norm by the root mean square. `eps` is the forward's.
    pub fn rms(eps: f32) -> Self {
        Self::new(sys::FASTNORM_NORM_RMS, eps)
    }

    /// The gradient of a norm by mean and variance. `eps` is the forward's.
    pub fn layer(eps: f32) -> Self {
        Self::new(sys::FASTNORM_NORM_LAYER, eps)
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

    /// Setters of one field are tested in fields.rs.
    #[test]
    #[allow(clippy::float_cmp)]
    fn kinds_of_norm_and_branch() {
        let args = NormBackward::layer(0.5).branch_rms(0.25).args;
        assert_eq!(args.struct_size, size_of_val(&args));
        assert_eq!((args.kind, args.eps), (sys::FASTNORM_NORM_LAYER, 0.5));
        assert_eq!((args.branch_norm, args.branch_eps), (1, 0.25));
        assert_eq!(args.branch_kind, sys::FASTNORM_NORM_RMS);
        let args = NormBackward::rms(0.5).branch_layer(0.25).args;
        assert_eq!((args.kind, args.eps), (sys::FASTNORM_NORM_RMS, 0.5));
        assert_eq!((args.branch_norm, args.branch_eps), (1, 0.25));
        assert_eq!(args.branch_kind, sys::FASTNORM_NORM_LAYER);
    }
}
