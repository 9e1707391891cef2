//! `RMSNorm` and `LayerNorm`.

use std::alloc::{self, Layout};
use std::marker::PhantomData;

mod stages;

use crate::fields::NormViews;
use crate::slots::with_linked;
use crate::status::check;
use crate::{parallel, sys, Context, Error, Info, Quant, Result, Status, Stream, Workspace};

/// One normalisation of the rows of x. A row is the last dimension, n elements; T is x's dtype:
/// f32, f16 or bf16.
///
/// ```text
/// s            = x + residual                              (x where there is no residual)
/// residual_out = s, rounded to its dtype
/// mean         = sum(s) / n                                (layer only)
/// rstd         = 1 / sqrt(sum((s - mean)^2) / n + eps)     (rms: the mean is not subtracted)
/// y            = (s - mean) * rstd * (weight + weight_offset) + bias, rounded to T
/// ```
///
/// A gate, an activation, a norm of the branch before the residual, groups of columns, a gated
/// residual and a modulation are [stages](#stages).
///
/// Statistics are in single precision. Rows of equal values give equal bits, whatever their number,
/// position, strides, the kernel, or the number of threads. Zero rows are success.
///
/// Made once, it can [run](Norm::run) many times.
///
/// # Aliasing
/// What is written is borrowed exclusively, so it cannot also be read:
/// ```compile_fail,E0502
/// # use fastnorm::*;
/// # let context = Context::cpu().unwrap();
/// let mut buffer = [1f32; 8];
/// Norm::rms(1e-6)
///     .x(Tensor::new(&buffer, &[2, 4]).unwrap())
///     .y(TensorMut::new(&mut buffer, &[2, 4]).unwrap()) // also x
///     .run(&context);
/// ```
/// [`x_in_place`](Self::x_in_place), [`residual_in_place`](Self::residual_in_place) and
/// [`gate_in_place`](Self::gate_in_place) are for that.
#[must_use = "nothing happens until it runs"]
pub struct Norm<'a> {
    pub(crate) args: sys::fastnorm_norm_args,
    pub(crate) views: NormViews,
    pub(crate) quant: Option<Quant<'a>>,
    pub(crate) borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it holds tensors, which are Send. The pointers of `args` are set anew in every call.
unsafe impl Send for Norm<'_> {}
// SAFETY: a shared Norm can be asked what it would do, which touches no tensor's memory; to run it
// takes an exclusive borrow.
unsafe impl Sync for Norm<'_> {}

impl Norm<'_> {
    #[inline]
    fn new(kind: sys::fastnorm_norm_kind, eps: f32) -> Self {
        Self {
            args: sys::fastnorm_norm_args {
                kind,
                eps,
                ..sys::fastnorm_norm_args::new()
            },
            views: NormViews::new(),
            quant: None,
            borrow: PhantomData,
        }
    }

    /// By the root mean square. `eps` is finite and not negative.
    #[inline]
    pub fn rms(eps: f32) -> Self {
        Self::new(sys::FASTNORM_NORM_RMS, eps)
    }

    /// By mean and (biased) variance. `eps` is finite and not negative.
    #[inline]
    pub fn layer(eps: f32) -> Self {
        Self::new(sys::FASTNORM_NORM_LAYER, eps)
    }

    /// Says what a run would do. No tensor's memory is touched.
    ///
    /// # Errors
    /// As [`Norm::run`].
    pub fn query(&self, context: &Context) -> Result<Info> {
        let mut norm = self.copied();
        let mut info = sys::fastnorm_info::new();
        // SAFETY: `link` gives valid arguments; `info` is writable and knows its size.
        check(unsafe { sys::fastnorm_norm_query(context.as_ptr(), norm.link(), &mut info) })?;
        Ok(Info::from_raw(&info))
    }

    /// Loads what a run needs; CUDA loads a kernel at its first use, which allocates and may
    /// synchronise. After it, runs that use the same kernel neither allocate nor synchronise, and
    /// can be captured in a CUDA graph. Optional.
    ///
    /// # Errors
    /// As [`Norm::run`].
    pub fn prepare(&self, context: &Context) -> Result<()> {
        let mut norm = self.copied();
        // SAFETY: `link` gives valid arguments.
        check(unsafe { sys::fastnorm_norm_prepare(context.as_ptr(), norm.link()) })
    }

    /// Normalises. On the CPU the work is done on return; on a GPU it is queued on the default
    /// stream.
    ///
    /// # Errors
    /// - [`Status::ARGUMENT`]: x or y is missing; eps, an offset or an option out of range; an
    ///   option of a gate or a branch that is not there; too small a workspace; a stream on the CPU
    /// - [`Status::SHAPE`]: ranks or extents that do not fit, n = 0; groups that do not divide n
    /// - [`Status::DTYPE`]: a dtype that the tensor's role does not allow
    /// - [`Status::LAYOUT`]: a last dimension that is not contiguous, a misaligned address, overlap
    /// - [`Status::UNSUPPORTED`]: more rows than a grid holds; a stage on a GPU, or with x of rank
    ///   5 or more
    /// - [`Status::DEVICE`]: a tensor on another device; an error of the CUDA runtime, also a
    ///   sticky one of earlier work
    ///
    /// # Panics
    /// Only if a callback of the context does.
    #[inline]
    pub fn run(&mut self, context: &Context) -> Result<()> {
        self.run_with(context, Stream::DEFAULT, Workspace::NONE)
    }

    /// [Runs](Self::run) on a CUDA stream.
    ///
    /// # Errors
    /// As [`Norm::run`].
    #[inline]
    pub fn run_on(&mut self, context: &Context, stream: Stream) -> Result<()> {
        self.run_with(context, stream, Workspace::NONE)
    }

    /// [Runs](Self::run) on a CUDA stream with a workspace.
    ///
    /// # Errors
    /// As [`Norm::run`].
    #[inline]
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
                    sys::fastnorm_norm(
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

/// Makes a call, on the CPU with a workspace of its own if the call turns out to need one.
#[inline]
pub(crate) fn launch(
    context: &Context,
    workspace: Workspace,
    query: impl FnOnce() -> Result<Info>,
    call: impl Fn(Workspace) -> sys::fastnorm_status,
) -> Result<()> {
    launch_by(check, context, workspace, query, call)
}

/// As [`launch`]; `check` has the text of what the call returned.
#[inline]
pub(crate) fn launch_by(
    check: impl Fn(sys::fastnorm_status) -> Result<()>,
    context: &Context,
    workspace: Workspace,
    query: impl FnOnce() -> Result<Info>,
    call: impl Fn(Workspace) -> sys::fastnorm_status,
) -> Result<()> {
    let status = call(workspace);
    if status == sys::FASTNORM_OK && !context.has_callbacks() {
        return Ok(());
    }
    after(check, context, status, workspace, query, call)
}

/// What is left of a call that failed, or had callbacks.
#[cold]
fn after(
    check: impl Fn(sys::fastnorm_status) -> Result<()>,
    context: &Context,
    status: sys::fastnorm_status,
    workspace: Workspace,
    query: impl FnOnce() -> Result<Info>,
    call: impl Fn(Workspace) -> sys::fastnorm_status,
) -> Result<()> {
    let mut result = check(status);
    if context.has_callbacks() {
        parallel::settle()?;
    }
    let missing = |error: &Error| error.status() == Status::ARGUMENT && workspace.bytes == 0;
    if context.is_cpu() && result.as_ref().is_err_and(missing) {
        // A refused call has done nothing, so it can be made again.
        let bytes = query()?.workspace_bytes; // its error is of what else is wrong
        if bytes > 0 {
            let scratch = Scratch::new(bytes)?;
            result = check(call(scratch.workspace()));
            if context.has_callbacks() {
                parallel::settle()?;
            }
        }
    }
    result
}

/// Host memory for a call on the CPU.
pub(crate) struct Scratch {
    address: *mut u8,
    layout: Layout,
}

impl Scratch {
    pub(crate) fn new(bytes: u64) -> Result<Self> {
        let none = || {
            Error::new(
                Status::OUT_OF_MEMORY,
                format!("no workspace of {bytes} bytes could be had"),
            )
        };
        let size = usize::try_from(bytes).map_err(|_| none())?.max(1);
        let layout = Layout::from_size_align(size, 256).map_err(|_| none())?;
        // SAFETY: the size is not 0.
        let address = unsafe { alloc::alloc(layout) };
        if address.is_null() {
            return Err(none());
        }
        Ok(Self { address, layout })
    }

    pub(crate) fn workspace(&self) -> Workspace {
        Workspace {
            address: self.address.cast(),
            bytes: self.layout.size(),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: from `new`, with the same layout.
        unsafe { alloc::dealloc(self.address, self.layout) };
    }
}

/// Runs up to 8 normalisations as one call, with the results of one [`Norm::run`] each, in order:
/// such as the query heads and the key heads of one buffer. All are checked, against each other
/// too, before anything runs. None may read what another writes. On a GPU two neighbours that share
/// a kernel of short rows are one launch.
///
/// ```
/// # use fastnorm::*;
/// # let context = Context::cpu()?;
/// # let (tokens, heads, query_heads, size) = (2, 6, 4, 8);
/// # let mut buffer = vec![1f32; tokens * heads * size];
/// # let (query_weight, key_weight) = (vec![1f32; size], vec![2f32; size]);
/// let heads = TensorMut::new(&mut buffer, &[tokens, heads, size])?;
/// let (query, key) = heads.split(1, query_heads)?;
/// norm_many(&context, &mut [
///     Norm::rms(1e-6).x_in_place(query).weight(Tensor::new(&query_weight, &[size])?),
///     Norm::rms(1e-6).x_in_place(key).weight(Tensor::new(&key_weight, &[size])?),
/// ])?;
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// As [`Norm::run`]; the text names the part, as `args[i]`.
pub fn norm_many(context: &Context, norms: &mut [Norm<'_>]) -> Result<()> {
    norm_many_with(context, norms, Stream::DEFAULT, Workspace::NONE)
}

/// As [`norm_many`], on a CUDA stream with a workspace.
///
/// # Errors
/// As [`norm_many`].
pub fn norm_many_with(
    context: &Context,
    norms: &mut [Norm<'_>],
    stream: Stream,
    workspace: Workspace,
) -> Result<()> {
    with_linked(norms, Norm::link, |parts, count| {
        let query = || {
            let mut info = sys::fastnorm_info::new();
            // SAFETY: the parts are linked until `with_linked` returns.
            check(unsafe {
                sys::fastnorm_norm_many_query(context.as_ptr(), parts, count, &mut info)
            })?;
            Ok(Info::from_raw(&info))
        };
        launch(context, workspace, query, |workspace| {
            // SAFETY: as in `Norm::run_with`.
            unsafe {
                sys::fastnorm_norm_many(
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

/// As [`Norm::query`], for [`norm_many`]: the sum of its parts.
///
/// # Errors
/// As [`norm_many`].
pub fn norm_many_query(context: &Context, norms: &[Norm<'_>]) -> Result<Info> {
    let mut copies: Vec<Norm<'_>> = norms.iter().map(Norm::copied).collect();
    let mut info = sys::fastnorm_info::new();
    with_linked(&mut copies, Norm::link, |parts, count| {
        // SAFETY: the parts are linked; `info` is writable and knows its size.
        check(unsafe { sys::fastnorm_norm_many_query(context.as_ptr(), parts, count, &mut info) })
    })?;
    Ok(Info::from_raw(&info))
}

/// As [`Norm::prepare`], for [`norm_many`].
///
/// # Errors
/// As [`norm_many`].
pub fn norm_many_prepare(context: &Context, norms: &[Norm<'_>]) -> Result<()> {
    let mut copies: Vec<Norm<'_>> = norms.iter().map(Norm::copied).collect();
    with_linked(&mut copies, Norm::link, |parts, count| {
        // SAFETY: the parts are linked.
        check(unsafe { sys::fastnorm_norm_many_prepare(context.as_ptr(), parts, count) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::PARTS;
    use crate::{Tensor, TensorMut};

    /// Setters of one field are tested in fields.rs.
    #[test]
    #[allow(clippy::float_cmp)]
    fn kinds_of_norm_and_branch() {
        let args = Norm::layer(0.5).branch_rms(0.25).args;
        assert_eq!(args.struct_size, size_of_val(&args));
        assert_eq!((args.kind, args.eps), (sys::FASTNORM_NORM_LAYER, 0.5));
        assert_eq!((args.branch_norm, args.branch_eps), (1, 0.25));
        assert_eq!(args.branch_kind, sys::FASTNORM_NORM_RMS);
        let args = Norm::rms(0.5).branch_layer(0.25).args;
        assert_eq!((args.kind, args.eps), (sys::FASTNORM_NORM_RMS, 0.5));
        assert_eq!((args.branch_norm, args.branch_eps), (1, 0.25));
        assert_eq!(args.branch_kind, sys::FASTNORM_NORM_LAYER);
    }

    #[test]
    fn flags_are_taken_back_and_sizes_saturate() {
        let norm = Norm::rms(0.0).pdl_wait(true).pdl_trigger(true).alpha(2.0);
        assert_eq!(norm.pdl_wait(false).args.flags, 2 | 16);
        let most = Norm::rms(0.0).group_size(usize::MAX);
        assert_eq!(most.args.group_size, i64::MAX);
    }

    #[test]
    fn debug_shows_what_is_set() {
        let shown = format!("{:?}", Norm::layer(0.5));
        assert_eq!(shown, r#"Norm { kind: "layer", eps: 0.5, .. }"#);
        let gate = Tensor::new(&[0f32; 4], &[4]).unwrap();
        let shown = format!("{:?}", Norm::rms(0.5).gate(gate).quant(Quant::none()));
        assert!(shown.contains("rms") && shown.contains("gate: ") && shown.contains("quant: "));
    }

    /// What the library would read through the addresses that it gets: each part's own tensors and
    /// shapes, few parts and many.
    #[test]
    #[allow(clippy::float_cmp, clippy::cast_precision_loss)]
    fn parts_as_the_library_reads_them() {
        for count in [0, 1, PARTS, PARTS + 3] {
            let inputs: Vec<Vec<f32>> = (1..=count).map(|n| vec![0.0; 4 * n]).collect();
            let mut outputs = inputs.clone();
            let mut norms: Vec<Norm<'_>> = inputs
                .iter()
                .zip(&mut outputs)
                .map(|(x, y)| {
                    let shape = [4, x.len() / 4];
                    Norm::rms(1e-6)
                        .x(Tensor::new(x, &shape).unwrap())
                        .y(TensorMut::new(y, &shape).unwrap())
                })
                .collect();
            // Twice: linking once more is no other thing.
            for _ in 0..2 {
                with_linked(&mut norms, Norm::link, |parts, length| {
                    assert_eq!(usize::try_from(length).unwrap(), count);
                    for (i, input) in inputs.iter().enumerate() {
                        // SAFETY: `length` parts were linked for this call; the tensors they name
                        // are alive.
                        let (x, y, extent) = unsafe {
                            let args = &**parts.add(i);
                            ((*args.x).data, (*args.y).data, *(*args.x).shape.add(1))
                        };
                        assert_eq!(x.cast_const().cast::<f32>(), input.as_ptr());
                        assert_eq!(extent, i64::try_from(i + 1).unwrap());
                        // SAFETY: the output of this part, borrowed by it alone.
                        unsafe { y.cast::<f32>().write((i + 1) as f32) };
                    }
                });
            }
            drop(norms);
            assert!(outputs
                .iter()
                .enumerate()
                .all(|(i, y)| y[0] == (i + 1) as f32));
        }
    }
}
