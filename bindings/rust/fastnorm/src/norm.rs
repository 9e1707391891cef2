//! `RMSNorm` and `LayerNorm`.

use std::alloc::{self, Layout};
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

mod stages;

use crate::slots::{flags, with_linked};
use crate::status::check;
use crate::tensor::View;
use crate::{
    parallel, sys, Context, Error, Info, Quant, Result, Status, Stream, Tensor, TensorMut,
    Workspace,
};

pub use stages::{Activation, GatePosition, GateSource, ModulationRounding, SumRounding};

/// Where y is rounded to x's dtype on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rounding {
    /// Only when y is stored: `FlashInfer`, quack, Transformer Engine, Gemma.
    #[default]
    Once,
    /// Also the normalised value, before the weight: Llama, Mistral and Qwen as published.
    Normalized,
    /// Every elementwise result: what a 16-bit eager chain does.
    EveryStep,
    /// Only when y is stored, of x * (rstd * weight): vLLM's fused query/key norm and rope.
    OnceRw,
}

impl Rounding {
    #[inline]
    pub(crate) fn raw(self) -> sys::fastnorm_rounding {
        match self {
            Rounding::Once => sys::FASTNORM_ROUND_ONCE,
            Rounding::Normalized => sys::FASTNORM_ROUND_NORMALIZED,
            Rounding::EveryStep => sys::FASTNORM_ROUND_EVERY_STEP,
            Rounding::OnceRw => sys::FASTNORM_ROUND_ONCE_RW,
        }
    }
}

/// Which value of the sum x + residual is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResidualRounding {
    /// The single-precision sum.
    #[default]
    Exact,
    /// The statistics of the sum; what is normalised is the sum rounded to the residual's dtype.
    BeforeApply,
    /// The sum rounded to the residual's dtype, as a separate addition would.
    BeforeStatistics,
}

impl ResidualRounding {
    #[inline]
    pub(crate) fn raw(self) -> sys::fastnorm_residual_rounding {
        match self {
            Self::Exact => sys::FASTNORM_RESIDUAL_EXACT,
            Self::BeforeApply => sys::FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY,
            Self::BeforeStatistics => sys::FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS,
        }
    }
}

// The tensors of fastnorm_norm_args, each with a slot. Those of stages are apart, as few calls have
// any.
macro_rules! slots {
    ($($slot:ident $field:ident),*; $($stage:ident $stage_field:ident),* $(,)?) => {
        #[derive(Clone, Copy)]
        enum Slot {
            $($slot,)*
            $($stage),*
        }

        const SLOTS: usize = [$(Slot::$slot,)* $(Slot::$stage),*].len();

        impl Norm<'_> {
            /// Points the arguments at the tensors and these at their shapes, until the norm is
            /// moved.
            #[inline]
            pub(crate) fn link(&mut self) -> *const sys::fastnorm_norm_args {
                $(if !self.args.$field.is_null() {
                    // SAFETY: `put` wrote the view when it set the field.
                    let view = unsafe { self.views[Slot::$slot as usize].assume_init_mut() };
                    self.args.$field = view.link();
                })*
                if self.stages {
                    self.link_stages();
                }
                &self.args
            }

            #[cold]
            fn link_stages(&mut self) {
                $(if !self.args.$stage_field.is_null() {
                    // SAFETY: as in `link`.
                    let view = unsafe { self.views[Slot::$stage as usize].assume_init_mut() };
                    self.args.$stage_field = view.link();
                })*
            }

            #[inline]
            fn put(&mut self, slot: Slot, view: View) {
                view.write_to(&mut self.views[slot as usize]);
                // Not null is what counts; `link` sets the address.
                let marker = ptr::NonNull::dangling().as_ptr();
                match slot {
                    $(Slot::$slot => self.args.$field = marker,)*
                    $(Slot::$stage => {
                        self.args.$stage_field = marker;
                        self.stages = true;
                    })*
                }
            }
        }

        impl fmt::Debug for Norm<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let kind = if self.args.kind == sys::FASTNORM_NORM_LAYER { "layer" } else { "rms" };
                let mut f = f.debug_struct("Norm");
                f.field("kind", &kind).field("eps", &self.args.eps);
                $(if !self.args.$field.is_null() {
                    // SAFETY: as in `link`.
                    let view = unsafe { self.views[Slot::$slot as usize].assume_init_ref() };
                    f.field(stringify!($field), view);
                })*
                $(if !self.args.$stage_field.is_null() {
                    // SAFETY: as in `link`.
                    let view = unsafe { self.views[Slot::$stage as usize].assume_init_ref() };
                    f.field(stringify!($stage_field), view);
                })*
                f.finish_non_exhaustive()
            }
        }
    };
}

slots! {
    X x, Residual residual, Weight weight, Bias bias, Y y, ResidualOut residual_out, Mean mean,
    Rstd rstd, GlobalScale global_scale, Quantized quantized, Scale scale, Amax amax,
    ClampScale clamp_scale;
    Gate gate, Sumsq sumsq, MeanIn mean_in, RstdIn rstd_in,
    BranchWeight branch_weight, BranchBias branch_bias, BranchRstd branch_rstd, SumScale sum_scale,
    ResidualGate residual_gate, ResidualGateTable residual_gate_table,
    ModulationScale modulation_scale, ScaleTable scale_table, ModulationShift modulation_shift,
    ShiftTable shift_table, ModulationIndex modulation_index,
}

// Fails when the library gains a tensor, until it has a slot: what is left are scalars.
const _: () = assert!(size_of::<sys::fastnorm_norm_args>() == 128 + SLOTS * size_of::<*const ()>());

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
    args: sys::fastnorm_norm_args,
    views: [MaybeUninit<View>; SLOTS],
    stages: bool, // whether a stage has a tensor
    borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it holds tensors, which are Send. The pointers of `args` are set anew in every call.
unsafe impl Send for Norm<'_> {}
// SAFETY: a shared Norm can be asked what it would do, which touches no tensor's memory; to run it
// takes an exclusive borrow.
unsafe impl Sync for Norm<'_> {}

impl<'a> Norm<'a> {
    #[inline]
    fn new(kind: sys::fastnorm_norm_kind, eps: f32) -> Self {
        Self {
            args: sys::fastnorm_norm_args {
                kind,
                eps,
                ..sys::fastnorm_norm_args::new()
            },
            views: [const { MaybeUninit::uninit() }; SLOTS],
            stages: false,
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

    /// `[.., n]` of T, rank 1 to 8. Required.
    #[inline]
    pub fn x(mut self, x: Tensor<'a>) -> Self {
        self.put(Slot::X, x.view);
        self
    }

    /// x and y in one: the results replace what is read.
    #[inline]
    #[allow(clippy::needless_pass_by_value)] // the borrow moves in
    pub fn x_in_place(mut self, x: TensorMut<'a>) -> Self {
        self.put(Slot::X, x.view);
        self.put(Slot::Y, x.view);
        self
    }

    /// x's shape; f32, f16 or bf16: added to x before all else. Default: nothing is added.
    #[inline]
    pub fn residual(mut self, residual: Tensor<'a>) -> Self {
        self.put(Slot::Residual, residual.view);
        self
    }

    /// residual and `residual_out` in one: the sum replaces the residual.
    #[inline]
    #[allow(clippy::needless_pass_by_value)]
    pub fn residual_in_place(mut self, residual: TensorMut<'a>) -> Self {
        self.put(Slot::Residual, residual.view);
        self.put(Slot::ResidualOut, residual.view);
        self
    }

    /// `[.., n]`, which broadcasts against x: `[n]`, `[heads, n]`, `[batch, 1, n]`; f32, f16 or
    /// bf16. Default: 1.
    #[inline]
    pub fn weight(mut self, weight: Tensor<'a>) -> Self {
        self.put(Slot::Weight, weight.view);
        self
    }

    /// As the weight. Default: 0.
    #[inline]
    pub fn bias(mut self, bias: Tensor<'a>) -> Self {
        self.put(Slot::Bias, bias.view);
        self
    }

    /// x's shape, T or f32: the result.
    #[inline]
    #[allow(clippy::needless_pass_by_value)]
    pub fn y(mut self, y: TensorMut<'a>) -> Self {
        self.put(Slot::Y, y.view);
        self
    }

    /// x's shape; f32, f16 or bf16: receives x + residual. Needs a residual.
    #[inline]
    #[allow(clippy::needless_pass_by_value)]
    pub fn residual_out(mut self, residual_out: TensorMut<'a>) -> Self {
        self.put(Slot::ResidualOut, residual_out.view);
        self
    }

    /// Receives the rows' means; layer only. f32 of x's shape without its last extent, or with 1
    /// for it. With groups the last extent is their number.
    #[inline]
    #[allow(clippy::needless_pass_by_value)]
    pub fn mean(mut self, mean: TensorMut<'a>) -> Self {
        self.put(Slot::Mean, mean.view);
        self
    }

    /// Receives the rows' rstd. Shape as of the mean.
    #[inline]
    #[allow(clippy::needless_pass_by_value)]
    pub fn rstd(mut self, rstd: TensorMut<'a>) -> Self {
        self.put(Slot::Rstd, rstd.view);
        self
    }

    /// A quantised output, beside y or alone.
    #[allow(clippy::needless_pass_by_value)]
    pub fn quant(mut self, quant: Quant<'a>) -> Self {
        // Named one by one: a field that Quant gains does not compile until it is here.
        let Quant {
            scheme,
            block_size,
            source,
            layout,
            pow2,
            amax_floor,
            clamp,
            division,
            quantized,
            scale,
            global_scale,
            amax,
            clamp_scale,
            ..
        } = quant;
        self.args.quant_scheme = scheme;
        self.args.quant_block_size = block_size;
        self.args.quant_source = source.raw();
        self.args.scale_layout = layout.raw();
        self.args.scale_pow2 = i32::from(pow2);
        self.args.amax_floor = amax_floor;
        self.args.clamp = clamp;
        self.args.quant_division = division.raw();
        self.put(Slot::Quantized, quantized);
        self.put(Slot::Scale, scale);
        let optional = [
            (Slot::GlobalScale, global_scale),
            (Slot::Amax, amax),
            (Slot::ClampScale, clamp_scale),
        ];
        for (slot, view) in optional {
            if let Some(view) = view {
                self.put(slot, view);
            }
        }
        self
    }

    /// Added to the weight in f32: 1 for Gemma. Finite; 0 without a weight. Default: 0.
    #[inline]
    pub fn weight_offset(mut self, offset: f32) -> Self {
        self.args.weight_offset = offset;
        self
    }

    /// Where y is rounded on its way. Default: once, when it is stored.
    #[inline]
    pub fn rounding(mut self, rounding: Rounding) -> Self {
        self.args.rounding = rounding.raw();
        self
    }

    /// Which value of x + residual is used. Default: the exact one.
    #[inline]
    pub fn residual_rounding(mut self, rounding: ResidualRounding) -> Self {
        self.args.residual_rounding = rounding.raw();
        self
    }

    flags! {
        /// Programmatic dependent launch: start when the stream's previous kernel allows it, and
        /// read and write nothing before that one has ended. On the CPU and on GPUs before compute
        /// capability 9.0 this and the two methods below have no effect; results never depend on
        /// them. Default: off.
        pdl_wait: sys::FASTNORM_NORM_PDL_WAIT,

        /// Programmatic dependent launch: let the stream's next kernel start once this one's rows
        /// are on their way. It must wait itself before it uses any result. Default: off.
        pdl_trigger: sys::FASTNORM_NORM_PDL_TRIGGER,

        /// With [`pdl_wait`](Self::pdl_wait), which it needs: weight and bias are not written by
        /// any kernel that may still run, and may be read before the wait. Default: off.
        pdl_constant_weights: sys::FASTNORM_NORM_PDL_CONSTANT_WEIGHTS,
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

    /// The same bits, to be linked where only a shared borrow is at hand. Never run.
    pub(crate) fn copied(&self) -> Norm<'_> {
        Norm {
            args: self.args,
            views: self.views,
            stages: self.stages,
            borrow: PhantomData,
        }
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
    use crate::{QuantDivision, QuantSource, ScaleLayout};

    /// The fields of `every_field` that are no tensors.
    #[allow(clippy::float_cmp)]
    fn check_numbers(args: &sys::fastnorm_norm_args) {
        assert_eq!(args.struct_size, size_of_val(args));
        assert_eq!(
            (args.kind, args.eps, args.weight_offset),
            (sys::FASTNORM_NORM_LAYER, 0.5, 1.0)
        );
        assert_eq!(args.rounding, sys::FASTNORM_ROUND_EVERY_STEP);
        assert_eq!(
            args.residual_rounding,
            sys::FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS
        );
        assert_eq!(args.flags, 2 | 4, "pdl_wait was taken back");
        assert_eq!(
            (args.quant_scheme, args.quant_block_size),
            (sys::FASTNORM_QUANT_PER_BLOCK, 64)
        );
        assert_eq!(args.quant_source, sys::FASTNORM_QUANT_FROM_ROUNDED);
        assert_eq!(args.scale_layout, sys::FASTNORM_SCALE_COLUMN_MAJOR);
        assert_eq!(
            (args.scale_pow2, args.amax_floor, args.clamp),
            (1, 0.25, 3.0)
        );
        assert_eq!(args.quant_division, sys::FASTNORM_QUANT_DIVIDE);
    }

    /// Those of its stages.
    #[allow(clippy::float_cmp)]
    fn check_stages(args: &sys::fastnorm_norm_args) {
        assert_eq!(args.gate_act, sys::FASTNORM_ACTIVATION_SILU);
        assert_eq!(args.gate_position, sys::FASTNORM_GATE_BEFORE_NORM);
        assert_eq!(args.gate_source, sys::FASTNORM_GATE_FROM_ROUNDED);
        assert_eq!(args.activation, sys::FASTNORM_ACTIVATION_SIGMOID);
        assert_eq!(args.group_size, 32);
        assert_eq!((args.branch_norm, args.branch_rounded), (1, 1));
        assert_eq!(args.branch_kind, sys::FASTNORM_NORM_LAYER);
        assert_eq!(
            (args.branch_eps, args.branch_weight_offset, args.alpha),
            (0.125, 2.0, 4.0)
        );
        assert_eq!(args.branch_rounding, sys::FASTNORM_ROUND_NORMALIZED);
        assert_eq!(args.sum_rounding, sys::FASTNORM_SUM_EVERY_STEP);
        assert_eq!(args.residual_gate_act, sys::FASTNORM_ACTIVATION_TANH);
        assert_eq!(
            args.modulation_rounding,
            sys::FASTNORM_MODULATION_EVERY_STEP
        );
    }

    /// Every setter reaches its field, and no other.
    #[test]
    #[allow(clippy::too_many_lines)] // the list of fields is long
    fn every_field() {
        let inputs = [0f32; 19];
        let mut outputs: Vec<Vec<f32>> = (21..=29).map(|n| vec![0.0; n]).collect();
        let mut outputs = outputs.iter_mut();
        // Told apart by their lengths: inputs 1 to 19, outputs 21 to 29.
        let input = |n: usize| Tensor::new(&inputs[..n], &[n]).unwrap();
        let mut output = || {
            let buffer = outputs.next().unwrap();
            let n = buffer.len();
            TensorMut::new(buffer, &[n]).unwrap()
        };
        let (y, residual_out, mean, rstd) = (output(), output(), output(), output());
        let quant = Quant::per_block(64, output(), output())
            .global_scale(input(5))
            .clamp_scale(input(6))
            .amax(output())
            .source(QuantSource::Rounded)
            .layout(ScaleLayout::ColumnMajor)
            .pow2(true)
            .amax_floor(0.25)
            .clamp(3.0)
            .division(QuantDivision::Divide);
        let mut norm = Norm::layer(0.5)
            .x(input(1))
            .residual(input(2))
            .weight(input(3))
            .bias(input(4))
            .y(y)
            .residual_out(residual_out)
            .mean(mean)
            .rstd(rstd)
            .quant(quant)
            .weight_offset(1.0)
            .rounding(Rounding::EveryStep)
            .residual_rounding(ResidualRounding::BeforeStatistics)
            .pdl_wait(true)
            .pdl_trigger(true)
            .pdl_constant_weights(true)
            .pdl_wait(false)
            .gate(input(7))
            .gate_act(Activation::Silu)
            .gate_position(GatePosition::BeforeNorm)
            .gate_source(GateSource::Rounded)
            .activation(Activation::Sigmoid)
            .group_size(32)
            .sumsq(output())
            .mean_in(input(8))
            .rstd_in(input(9))
            .branch_layer(0.125)
            .branch_weight(input(10))
            .branch_bias(input(11))
            .branch_weight_offset(2.0)
            .branch_rounding(Rounding::Normalized)
            .branch_rounded(true)
            .branch_rstd(output())
            .alpha(4.0)
            .sum_scale(input(12))
            .sum_rounding(SumRounding::EveryStep)
            .residual_gate(input(13))
            .residual_gate_table(input(14))
            .residual_gate_act(Activation::Tanh)
            .modulation_rounding(ModulationRounding::EveryStep)
            .modulation_scale(input(15))
            .scale_table(input(16))
            .modulation_shift(input(17))
            .shift_table(input(18))
            .modulation_index(input(19));
        // SAFETY: linked just now.
        let args = unsafe { *norm.link() };
        // Named one by one: a field that the library gains does not compile until it is here.
        let sys::fastnorm_norm_args {
            struct_size: _,
            kind: _,
            eps: _,
            weight_offset: _,
            rounding: _,
            residual_rounding: _,
            flags: _,
            x,
            residual,
            weight,
            bias,
            y,
            residual_out,
            mean,
            rstd,
            quant_scheme: _,
            quant_block_size: _,
            quant_source: _,
            scale_layout: _,
            scale_pow2: _,
            amax_floor: _,
            clamp: _,
            quant_division: _,
            global_scale,
            quantized,
            scale,
            amax,
            clamp_scale,
            gate,
            gate_act: _,
            gate_position: _,
            gate_source: _,
            activation: _,
            group_size: _,
            sumsq,
            mean_in,
            rstd_in,
            branch_norm: _,
            branch_kind: _,
            branch_eps: _,
            branch_weight_offset: _,
            branch_rounding: _,
            branch_rounded: _,
            alpha: _,
            sum_rounding: _,
            branch_weight,
            branch_bias,
            branch_rstd,
            sum_scale,
            residual_gate,
            residual_gate_table,
            residual_gate_act: _,
            modulation_rounding: _,
            modulation_scale,
            scale_table,
            modulation_shift,
            shift_table,
            modulation_index,
        } = args;
        check_numbers(&args);
        check_stages(&args);
        let tensors = [
            x,
            residual,
            weight,
            bias,
            global_scale,
            clamp_scale,
            gate,
            mean_in,
            rstd_in,
            branch_weight,
            branch_bias,
            sum_scale,
            residual_gate,
            residual_gate_table,
            modulation_scale,
            scale_table,
            modulation_shift,
            shift_table,
            modulation_index,
            y,
            residual_out,
            mean,
            rstd,
            quantized,
            scale,
            amax,
            sumsq,
            branch_rstd,
        ];
        assert_eq!(tensors.len(), SLOTS);
        // SAFETY: linked, to tensors of rank 1.
        let lengths = tensors.map(|t| unsafe { *(*t).shape });
        let expected: Vec<i64> = (1..=19).collect();
        assert_eq!(lengths[..19], expected);
        assert_eq!(lengths[19..], [21, 22, 23, 24, 25, 26, 27, 28, 29]);
        assert!(format!("{norm:?}").contains("sum_scale"));
    }

    #[test]
    fn schemes_and_roundings_have_their_numbers() {
        let mut buffers = [[0f32; 1]; 12];
        let mut tensors = buffers.iter_mut().map(|b| TensorMut::new(b, &[1]).unwrap());
        let mut next = || tensors.next().unwrap();
        let one = [1f32];
        let quants = [
            Quant::per_tensor(next(), Tensor::new(&one, &[1]).unwrap()),
            Quant::per_row(next(), next()),
            Quant::per_block(128, next(), next()),
            Quant::mxfp8(next(), next()),
            Quant::nvfp4(next(), next()),
            Quant::mxfp4(next(), next()),
        ];
        assert_eq!(quants.map(|q| q.scheme), [1, 2, 3, 4, 5, 6]);
        let roundings = [
            Rounding::Once,
            Rounding::Normalized,
            Rounding::EveryStep,
            Rounding::OnceRw,
        ];
        assert_eq!(
            roundings.map(|r| Norm::rms(0.0).rounding(r).args.rounding),
            [0, 1, 2, 3]
        );
        let roundings = [
            ResidualRounding::Exact,
            ResidualRounding::BeforeApply,
            ResidualRounding::BeforeStatistics,
        ];
        let set = roundings.map(|r| Norm::rms(0.0).residual_rounding(r).args.residual_rounding);
        assert_eq!(set, [0, 1, 2]);
        assert_eq!(
            [QuantSource::Exact, QuantSource::Rounded].map(QuantSource::raw),
            [0, 1]
        );
        assert_eq!(
            [QuantDivision::MultiplyReciprocal, QuantDivision::Divide].map(QuantDivision::raw),
            [0, 1]
        );
        let layouts = [
            ScaleLayout::RowMajor,
            ScaleLayout::ColumnMajor,
            ScaleLayout::Swizzled128x4,
        ];
        assert_eq!(layouts.map(ScaleLayout::raw), [0, 1, 2]);
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
