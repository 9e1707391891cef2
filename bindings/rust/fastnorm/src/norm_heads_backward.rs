//! Gradients of norm and rope of query, key and value heads.

use std::marker::PhantomData;

use crate::fields::NormHeadsBackwardViews;
use crate::norm::launch;
use crate::slots::{with_linked, PARTS};
use crate::status::check;
use crate::{sys, Context, Info, NormHeadsBackwardPart, Result, Stream, Tensor, Workspace};

/// The gradients of [`NormHeads`](crate::NormHeads): rope is rotated back and the norm's gradient
/// taken of that, for up to 8 [parts](NormHeadsBackwardPart) over the same tokens. Gradients of
/// query, key and value heads may go to views of one packed buffer.
///
/// For each column, over all rows that share an element of weight or bias:
///
/// ```text
/// dweight = sum(dv * xhat)                     (+ the old dweight)
/// dbias   = sum(dv)                            (+ the old dbias)
/// ```
///
/// The norm's formulas are those of [`NormBackward`](crate::NormBackward), with dv for dy.
///
/// Made once, it can [run](Self::run) many times.
///
/// ```
/// # use fastnorm::*;
/// // One token with a query head and a value head of 4 columns. The table is a quarter turn.
/// let dy = [0f32, 0., 1., 1., 1., 2., 3., 4.];
/// let mut dqkv = [0f32; 8];
/// let (dquery, dvalue) = TensorMut::new(&mut dqkv, &[1, 2, 4])?.split(1, 1)?;
/// NormHeadsBackward::new()
///     .rope(4, Tensor::new(&[0f32, 0.], &[1, 2])?, Tensor::new(&[1f32, 1.], &[1, 2])?)
///     .part(NormHeadsBackwardPart::new(Tensor::new(&dy[..4], &[1, 1, 4])?).rope(0).dx(dquery))
///     .part(NormHeadsBackwardPart::new(Tensor::new(&dy[4..], &[1, 1, 4])?).dx(dvalue))
///     .run(&Context::cpu()?)?;
/// assert_eq!(dqkv, [1., 1., 0., 0., 1., 2., 3., 4.]);
/// # Ok::<(), Error>(())
/// ```
#[must_use = "nothing happens until it runs"]
pub struct NormHeadsBackward<'a> {
    pub(crate) args: sys::fastnorm_norm_heads_args,
    pub(crate) views: NormHeadsBackwardViews,
    pub(crate) parts: Vec<NormHeadsBackwardPart<'a>>,
    pub(crate) borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it holds tensors, which are Send. The pointers of `args` are set anew in every call.
unsafe impl Send for NormHeadsBackward<'_> {}
// SAFETY: a shared NormHeadsBackward can be asked what it would do, which touches no tensor's
// memory; to run it takes an exclusive borrow.
unsafe impl Sync for NormHeadsBackward<'_> {}

impl Default for NormHeadsBackward<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> NormHeadsBackward<'a> {
    /// A call without parts, which does nothing.
    pub fn new() -> Self {
        Self {
            args: sys::fastnorm_norm_heads_args::new(),
            views: NormHeadsBackwardViews::new(),
            parts: Vec::with_capacity(PARTS),
            borrow: PhantomData,
        }
    }

    /// One part more, of at most 8.
    pub fn part(mut self, part: NormHeadsBackwardPart<'a>) -> Self {
        self.parts.push(part);
        self
    }

    /// The forward's tables of rope, which rotated `dim` columns.
    pub fn rope(mut self, dim: usize, cos: Tensor<'a>, sin: Tensor<'a>) -> Self {
        self.args.rope_dim = i32::try_from(dim).unwrap_or(i32::MAX);
        self.put_cos(cos.view).put_sin(sin.view)
    }

    /// As [`NormHeads::mrope`](crate::NormHeads::mrope).
    pub fn mrope(mut self, pairs: [usize; 4], interleaved: bool) -> Self {
        let pairs = pairs.map(|n| i32::try_from(n).unwrap_or(i32::MAX));
        [
            self.args.mrope_0,
            self.args.mrope_1,
            self.args.mrope_2,
            self.args.mrope_3,
        ] = pairs;
        self.flag(sys::FASTNORM_NORM_HEADS_MROPE_INTERLEAVED, interleaved);
        self
    }

    /// Says what a run would do. No tensor's memory is touched.
    ///
    /// # Errors
    /// As [`NormHeadsBackward::run`].
    pub fn query(&self, context: &Context) -> Result<Info> {
        let mut info = sys::fastnorm_info::new();
        self.with_copy(|args, parts, count| {
            // SAFETY: all is linked; `info` is writable and knows its size.
            unsafe {
                sys::fastnorm_norm_heads_backward_query(
                    context.as_ptr(),
                    args,
                    parts,
                    count,
                    &mut info,
                )
            }
        })?;
        Ok(Info::from_raw(&info))
    }

    /// Loads the kernels of a run. After it, runs that use the same kernels neither allocate nor
    /// synchronise, and can be captured in a CUDA graph. Optional.
    ///
    /// # Errors
    /// As [`NormHeadsBackward::run`].
    pub fn prepare(&self, context: &Context) -> Result<()> {
        self.with_copy(|args, parts, count| {
            // SAFETY: all is linked.
            unsafe {
                sys::fastnorm_norm_heads_backward_prepare(context.as_ptr(), args, parts, count)
            }
        })
    }

    /// Computes the gradients. On the CPU they are there on return, and positions are checked
    /// before anything is written.
    ///
    /// # Errors
    /// The text names the part, as `parts[i]`.
    /// - [`Status::ARGUMENT`](crate::Status::ARGUMENT): a part without an output; rope without
    ///   tables; a field that nothing has a use for; a scalar out of range; more than 8 parts; on
    ///   the CPU also a position out of range, and a stream
    /// - [`Status::SHAPE`](crate::Status::SHAPE): ranks or extents that do not fit
    /// - [`Status::DTYPE`](crate::Status::DTYPE): a dtype that the tensor's role does not allow
    /// - [`Status::LAYOUT`](crate::Status::LAYOUT): a last dimension that is not contiguous, a
    ///   misaligned address, overlap
    /// - [`Status::UNSUPPORTED`](crate::Status::UNSUPPORTED): rows of more than 8192 columns; what
    ///   the GPU has no kernels for
    /// - [`Status::DEVICE`](crate::Status::DEVICE): a tensor on another device; an error of CUDA
    ///
    /// # Panics
    /// Only if a callback of the context does.
    pub fn run(&mut self, context: &Context) -> Result<()> {
        self.run_with(context, Stream::DEFAULT, Workspace::NONE)
    }

    /// [Runs](Self::run) on a CUDA stream with a workspace.
    ///
    /// # Errors
    /// As [`NormHeadsBackward::run`].
    pub fn run_with(
        &mut self,
        context: &Context,
        stream: Stream,
        workspace: Workspace,
    ) -> Result<()> {
        let args = self.link();
        with_linked(
            &mut self.parts,
            NormHeadsBackwardPart::link,
            |parts, count| {
                let query = || {
                    let mut info = sys::fastnorm_info::new();
                    // SAFETY: the parts are linked until `with_linked` returns.
                    check(unsafe {
                        sys::fastnorm_norm_heads_backward_query(
                            context.as_ptr(),
                            args,
                            parts,
                            count,
                            &mut info,
                        )
                    })?;
                    Ok(Info::from_raw(&info))
                };
                launch(context, workspace, query, |workspace| {
                    // SAFETY: all is linked. What it points to is borrowed, exclusively where it is
                    // written, or promised by who made the tensor, the stream or the workspace.
                    unsafe {
                        sys::fastnorm_norm_heads_backward(
                            context.as_ptr(),
                            args,
                            parts,
                            count,
                            workspace.address,
                            workspace.bytes,
                            stream.0,
                        )
                    }
                })
            },
        )
    }

    pub(crate) fn copied_parts(&self) -> Vec<NormHeadsBackwardPart<'_>> {
        self.parts
            .iter()
            .map(NormHeadsBackwardPart::copied)
            .collect()
    }

    /// Hands a copy of the arguments, linked, to `call`, which does not run it.
    fn with_copy(
        &self,
        call: impl FnOnce(
            *const sys::fastnorm_norm_heads_args,
            *const *const sys::fastnorm_norm_heads_backward_part,
            i32,
        ) -> sys::fastnorm_status,
    ) -> Result<()> {
        let mut copy = self.copied();
        let args = copy.link();
        check(with_linked(
            &mut copy.parts,
            NormHeadsBackwardPart::link,
            |parts, count| call(args, parts, count),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Setters of one field are tested in fields.rs.
    #[test]
    fn setters_of_several_fields() {
        let inputs = [0f32; 2];
        let input = |n: usize| Tensor::new(&inputs[..n], &[n]).unwrap();
        let mut call = NormHeadsBackward::new()
            .rope(6, input(1), input(2))
            .mrope([7, 8, 9, 10], true);
        // SAFETY: linked just now.
        let args = unsafe { *call.link() };
        assert_eq!(args.struct_size, size_of_val(&args));
        assert_eq!(args.flags, sys::FASTNORM_NORM_HEADS_MROPE_INTERLEAVED);
        assert_eq!(args.rope_dim, 6);
        let mrope = [args.mrope_0, args.mrope_1, args.mrope_2, args.mrope_3];
        assert_eq!(mrope, [7, 8, 9, 10]);
        // SAFETY: linked, to tensors of rank 1.
        let lengths = [args.cos, args.sin].map(|t| unsafe { *(*t).shape });
        assert_eq!(lengths, [1, 2]);
        assert_eq!(call.mrope([1; 4], false).args.flags, 0);
    }
}
