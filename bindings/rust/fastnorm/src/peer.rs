//! Tensor parallel norms: ranks that add up their rows, or merge their statistics, and normalise.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::time::Duration;

use crate::norm::launch;
use crate::slots::{flags, slots};
use crate::status::check;
use crate::tensor::View;
use crate::{
    sys, Context, DType, Info, Quant, ResidualRounding, Result, Rounding, Stream, Tensor,
    TensorMut, Workspace,
};

/// The most ranks of a group.
pub const MAX_RANKS: usize = sys::FASTNORM_PEER_MAX_RANKS as usize;

/// What one rank tells the others: bytes that the caller brings to all of them.
pub type PeerBlob = [u8; sys::FASTNORM_PEER_BLOB_BYTES as usize];

/// How rows travel. Results do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerAlgorithm {
    /// By rows, columns, dtype and ranks.
    #[default]
    Auto,
    /// Each rank sends its rows to all, and all ranks add.
    OneShot,
    /// Each rank adds a share of the rows and sends the sums to all.
    TwoShot,
}

impl PeerAlgorithm {
    pub(crate) fn raw(self) -> sys::fastnorm_peer_algorithm {
        match self {
            Self::Auto => sys::FASTNORM_PEER_AUTO,
            Self::OneShot => sys::FASTNORM_PEER_ONE_SHOT,
            Self::TwoShot => sys::FASTNORM_PEER_TWO_SHOT,
        }
    }
}

/// Which sum of the ranks' rows goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerSumRounding {
    /// Rounded to the dtype of x, as an all-reduce of it would be.
    #[default]
    Rounded,
    /// The single-precision sum.
    Exact,
}

/// What stopped a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerError {
    /// This rank did not arrive in time.
    Missing(i32),
    /// This rank made another call.
    Disagrees(i32),
}

/// What became of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerState {
    /// What stopped it; None = nothing.
    pub error: Option<PeerError>,
    /// Calls that ended well since it was made or reset.
    pub calls: u64,
    /// Whether the other ranks' buffers are known.
    pub connected: bool,
}

/// How a peer is made. All but the rank and the wait must be the same on all ranks.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct PeerOptions {
    raw: sys::fastnorm_peer_options,
}

impl PeerOptions {
    /// End number `rank` of `ranks`, for rows of that dtype and of at most so many columns.
    pub fn new(rank: usize, ranks: usize, dtype: DType, max_columns: usize) -> Self {
        let mut raw = sys::fastnorm_peer_options::new();
        raw.rank = i32::try_from(rank).unwrap_or(i32::MAX);
        raw.ranks = i32::try_from(ranks).unwrap_or(i32::MAX);
        raw.dtype = dtype.id();
        raw.max_columns = i64::try_from(max_columns).unwrap_or(i64::MAX);
        Self { raw }
    }

    /// How rows travel. Default: by size.
    pub fn algorithm(mut self, algorithm: PeerAlgorithm) -> Self {
        self.raw.algorithm = algorithm.raw();
        self
    }

    /// The most bytes of rows that go one-shot. Default, and for 0: measured ones.
    pub fn one_shot_bytes(mut self, bytes: u64) -> Self {
        self.raw.one_shot_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self
    }

    /// The longest wait for another rank, 1 microsecond to 1000 seconds. Default: 10 seconds.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.raw.wait_ns = i64::try_from(longest.as_nanos()).unwrap_or(i64::MAX);
        self
    }

    /// Rows that may be on their way at once, 1 to 256. Default, and for 0: 8; on a GPU 128.
    pub fn rings(mut self, rings: usize) -> Self {
        self.raw.rings = i32::try_from(rings).unwrap_or(i32::MAX);
        self
    }

    /// Bytes of a rank's buffer, for [`PeerOptions::create_from_pointers`].
    ///
    /// # Errors
    /// As [`PeerOptions::create`].
    pub fn buffer_bytes(&self, context: &Context) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: all are there; the library reads the options during the call only.
        check(unsafe { sys::fastnorm_peer_buffer_bytes(context.as_ptr(), &self.raw, &mut bytes) })?;
        Ok(bytes)
    }

    /// Makes one rank's end with a buffer of its own.
    ///
    /// # Errors
    /// [`Status::ARGUMENT`](crate::Status::ARGUMENT) and [`Status::DTYPE`](crate::Status::DTYPE)
    /// for options that are out of range.
    pub fn create(self, context: &Context) -> Result<Peer<'_>> {
        let mut raw = ptr::null_mut();
        // SAFETY: as above.
        check(unsafe { sys::fastnorm_peer_create(context.as_ptr(), &self.raw, &mut raw) })?;
        Ok(Peer::own(raw, context, self.raw.ranks))
    }

    /// Makes one rank's end over buffers that all ranks reach, in rank order. No rank may call
    /// before this has returned on all.
    ///
    /// # Errors
    /// As [`PeerOptions::create`]; [`Status::LAYOUT`](crate::Status::LAYOUT) for buffers that are
    /// misaligned or overlap.
    ///
    /// # Safety
    /// Each address has [`buffer_bytes`](Self::buffer_bytes) bytes of the device that are there,
    /// and used for nothing else, until every rank's peer is dropped.
    pub unsafe fn create_from_pointers<'c>(
        self,
        context: &'c Context,
        buffers: &[*mut c_void],
    ) -> Result<Peer<'c>> {
        let mut raw = ptr::null_mut();
        let count = i32::try_from(buffers.len()).unwrap_or(i32::MAX);
        // SAFETY: the addresses are what the caller promises; the rest as above.
        check(unsafe {
            sys::fastnorm_peer_create_from_pointers(
                context.as_ptr(),
                &self.raw,
                buffers.as_ptr(),
                count,
                &mut raw,
            )
        })?;
        Ok(Peer::own(raw, context, self.raw.ranks))
    }
}

/// One rank's end of a group. CPU ranks are threads, each with a peer; GPUs may be processes, too.
///
/// All ranks make the same calls in the same order. A peer runs one call at a time.
///
/// ```
/// # use fastnorm::*;
/// let context = Context::cpu()?;
/// let peers: Vec<_> = (0..2)
///     .map(|rank| PeerOptions::new(rank, 2, DType::F32, 4).create(&context))
///     .collect::<Result<_>>()?;
/// let blobs = peers.iter().map(Peer::export).collect::<Result<Vec<_>>>()?;
/// std::thread::scope(|scope| {
///     for (rank, peer) in peers.iter().enumerate() {
///         let blobs = &blobs;
///         scope.spawn(move || {
///             peer.import(blobs).unwrap();
///             let x = [1f32, -1., 1., -1.].map(|v| v * (rank + 1) as f32);
///             let mut y = [0f32; 4];
///             PeerAllreduceNorm::rms(peer, 0.0)
///                 .x(Tensor::new(&x, &[1, 4]).unwrap())
///                 .y(TensorMut::new(&mut y, &[1, 4]).unwrap())
///                 .run()
///                 .unwrap();
///             assert_eq!(y, [1., -1., 1., -1.]); // the sum is 3, -3, 3, -3
///         });
///     }
/// });
/// # Ok::<(), Error>(())
/// ```
pub struct Peer<'c> {
    raw: NonNull<sys::fastnorm_peer>,
    context: &'c Context,
    ranks: usize,
    is_owned: bool,
}

// SAFETY: the library ties a peer to no thread.
unsafe impl Send for Peer<'_> {}
// SAFETY: its functions may be called from any thread; a second call at a time is refused.
unsafe impl Sync for Peer<'_> {}

impl<'c> Peer<'c> {
    fn own(raw: *mut sys::fastnorm_peer, context: &'c Context, ranks: i32) -> Self {
        Self {
            raw: NonNull::new(raw).expect("a peer that was created"),
            context,
            ranks: usize::try_from(ranks).unwrap_or(0),
            is_owned: true,
        }
    }

    /// The peer of a handle of NCCL, which outlives it.
    pub(crate) fn borrowed(raw: NonNull<sys::fastnorm_peer>, context: &'c Context) -> Self {
        Self {
            raw,
            context,
            ranks: 0,
            is_owned: false,
        }
    }

    /// The context that it was made for.
    pub fn context(&self) -> &'c Context {
        self.context
    }

    /// The peer of the C ABI. It stays this one's: it must not be destroyed.
    pub fn as_ptr(&self) -> *mut sys::fastnorm_peer {
        self.raw.as_ptr()
    }

    /// What other ranks need to reach this one.
    ///
    /// # Errors
    /// [`Status::ARGUMENT`](crate::Status::ARGUMENT) for a peer over buffers of the caller's.
    pub fn export(&self) -> Result<PeerBlob> {
        let mut blob: PeerBlob = [0; sys::FASTNORM_PEER_BLOB_BYTES as usize];
        // SAFETY: the blob has so many bytes.
        check(unsafe {
            sys::fastnorm_peer_export(self.as_ptr(), blob.as_mut_ptr().cast(), blob.len())
        })?;
        Ok(blob)
    }

    /// Connects this rank with all others, once: with the blobs of all ranks, in rank order.
    ///
    /// # Errors
    /// [`Status::ARGUMENT`](crate::Status::ARGUMENT) for blobs that are none, of another rank, or
    /// of options that differ: the text has both values.
    /// [`Status::UNSUPPORTED`](crate::Status::UNSUPPORTED) for ranks that cannot be reached.
    pub fn import(&self, blobs: &[PeerBlob]) -> Result<()> {
        // SAFETY: blobs lie side by side.
        check(unsafe {
            sys::fastnorm_peer_import(self.as_ptr(), blobs.as_ptr().cast(), size_of_val(blobs))
        })
    }

    /// Whether it was stopped, and by which rank. At any time, from any thread.
    ///
    /// # Errors
    /// [`Status::DEVICE`](crate::Status::DEVICE): an error of CUDA.
    pub fn state(&self) -> Result<PeerState> {
        let mut raw = sys::fastnorm_peer_state::new();
        // SAFETY: it is writable and knows its size.
        check(unsafe { sys::fastnorm_peer_status(self.as_ptr(), &mut raw) })?;
        Ok(PeerState {
            error: if raw.error == sys::FASTNORM_PEER_ERROR_NONE {
                None
            } else if raw.error == sys::FASTNORM_PEER_ERROR_DISAGREES {
                Some(PeerError::Disagrees(raw.rank))
            } else {
                debug_assert_eq!(raw.error, sys::FASTNORM_PEER_ERROR_MISSING);
                Some(PeerError::Missing(raw.rank))
            },
            calls: raw.calls,
            connected: raw.connected != 0,
        })
    }

    /// Makes a stopped group usable again: on every rank, between two barriers of the caller's.
    ///
    /// # Errors
    /// [`Status::ARGUMENT`](crate::Status::ARGUMENT) while it runs a call.
    pub fn reset(&self) -> Result<()> {
        // SAFETY: the peer is there.
        check(unsafe { sys::fastnorm_peer_reset(self.as_ptr()) })
    }

    /// Ranks of its group; 0 for the peer of an [`Nccl`](crate::Nccl).
    pub fn ranks(&self) -> usize {
        self.ranks
    }
}

impl Drop for Peer<'_> {
    fn drop(&mut self) {
        if self.is_owned {
            // SAFETY: it was created by the library and is destroyed once; no call is under way.
            unsafe { sys::fastnorm_peer_destroy(self.as_ptr()) };
        }
    }
}

impl fmt::Debug for Peer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}

// What both calls have: how they are asked, prepared and run.
macro_rules! calls {
    ($type:ident, $arguments:ident, $query:ident, $prepare:ident, $run:ident) => {
        // SAFETY: it holds tensors, which are Send, and a borrow of a peer, which is Sync. The
        // pointers of `args` are set anew in every call.
        unsafe impl Send for $type<'_> {}
        // SAFETY: a shared one can be asked what it would do, which touches no tensor's memory; to
        // run it takes an exclusive borrow.
        unsafe impl Sync for $type<'_> {}

        #[cfg(test)]
        mod tests {
            use super::$type;

            #[test]
            fn launch_flags() -> crate::Result<()> {
                let context = crate::Context::cpu()?;
                let peer = crate::PeerOptions::new(0, 2, crate::DType::F32, 8).create(&context)?;
                let call = $type::rms(&peer, 0.0).pdl_wait(true).pdl_trigger(true);
                let call = call.pdl_constant_weights(true);
                assert_eq!(call.args.flags, 1 | 2 | 4);
                assert_eq!(call.pdl_wait(false).args.flags, 2 | 4);
                Ok(())
            }
        }

        impl<'a> $type<'a> {
            fn new(peer: &'a Peer<'_>, kind: sys::fastnorm_norm_kind, eps: f32) -> Self {
                let mut args = sys::$arguments::new();
                args.peer = peer.as_ptr();
                args.kind = kind;
                args.eps = eps;
                Self {
                    args,
                    views: [None; SLOTS],
                    context: peer.context,
                    borrow: PhantomData,
                }
            }

            /// Root mean square; nothing is subtracted.
            pub fn rms(peer: &'a Peer<'_>, eps: f32) -> Self {
                Self::new(peer, sys::FASTNORM_NORM_RMS, eps)
            }

            /// Mean and (biased) variance.
            pub fn layer(peer: &'a Peer<'_>, eps: f32) -> Self {
                Self::new(peer, sys::FASTNORM_NORM_LAYER, eps)
            }

            /// Added to the weight: 0, or 1 for Gemma. Default: 0.
            pub fn weight_offset(mut self, offset: f32) -> Self {
                self.args.weight_offset = offset;
                self
            }

            /// Where else a result is rounded. Default: nowhere.
            pub fn rounding(mut self, rounding: Rounding) -> Self {
                self.args.rounding = rounding.raw();
                self
            }

            /// The rows. Required.
            pub fn x(self, x: Tensor<'a>) -> Self {
                self.put(Slot::X, x.view)
            }

            /// One for all rows of [`x`](Self::x). Default: 1.
            pub fn weight(self, weight: Tensor<'a>) -> Self {
                self.put(Slot::Weight, weight.view)
            }

            /// As [`weight`](Self::weight). Default: 0.
            pub fn bias(self, bias: Tensor<'a>) -> Self {
                self.put(Slot::Bias, bias.view)
            }

            /// The results.
            #[allow(clippy::needless_pass_by_value)] // the borrow moves in
            pub fn y(self, y: TensorMut<'a>) -> Self {
                self.put(Slot::Y, y.view)
            }

            flags! {
                /// Programmatic dependent launch, as [`Norm::pdl_wait`](crate::Norm::pdl_wait).
                pdl_wait: sys::FASTNORM_NORM_PDL_WAIT,

                /// As [`Norm::pdl_trigger`](crate::Norm::pdl_trigger).
                pdl_trigger: sys::FASTNORM_NORM_PDL_TRIGGER,

                /// As [`Norm::pdl_constant_weights`](crate::Norm::pdl_constant_weights).
                pdl_constant_weights: sys::FASTNORM_NORM_PDL_CONSTANT_WEIGHTS,
            }

            /// Says what a run would do. No tensor's memory is touched, no rank is waited for.
            ///
            /// # Errors
            /// As [`run`](Self::run).
            pub fn query(&self) -> Result<Info> {
                let mut info = sys::fastnorm_info::new();
                let mut copy = self.copied();
                let args = copy.link();
                // SAFETY: all is linked; `info` is writable and knows its size.
                check(unsafe { sys::$query(self.context.as_ptr(), args, &mut info) })?;
                Ok(Info::from_raw(&info))
            }

            /// Loads the kernels of a run. On GPUs: on all ranks before the first run.
            ///
            /// # Errors
            /// As [`run`](Self::run).
            pub fn prepare(&self) -> Result<()> {
                let mut copy = self.copied();
                let args = copy.link();
                // SAFETY: all is linked.
                check(unsafe { sys::$prepare(self.context.as_ptr(), args) })
            }

            /// Runs it on the peer's context, together with all other ranks. On the CPU results are
            /// there on return.
            ///
            /// # Errors
            /// - [`Status::ARGUMENT`](crate::Status::ARGUMENT): a peer that is not connected or
            ///   runs a call; a rank that makes another call; what the library refuses of the
            ///   tensors
            /// - [`Status::SHAPE`](crate::Status::SHAPE), [`Status::DTYPE`](crate::Status::DTYPE),
            ///   [`Status::LAYOUT`](crate::Status::LAYOUT): tensors that do not fit
            /// - [`Status::DEVICE`](crate::Status::DEVICE): a rank that did not arrive in time, or
            ///   a peer that was stopped before
            ///
            /// # Panics
            /// Only if a callback of the context does.
            pub fn run(&mut self) -> Result<()> {
                self.run_with(Stream::DEFAULT, Workspace::NONE)
            }

            /// [Runs](Self::run) on a CUDA stream with a workspace.
            ///
            /// # Errors
            /// As [`run`](Self::run).
            pub fn run_with(&mut self, stream: Stream, workspace: Workspace) -> Result<()> {
                let context = self.context;
                let args = self.link();
                let query = || {
                    let mut info = sys::fastnorm_info::new();
                    // SAFETY: `args` is linked.
                    check(unsafe { sys::$query(context.as_ptr(), args, &mut info) })?;
                    Ok(Info::from_raw(&info))
                };
                // On the CPU a call with too small a workspace is refused before anything is sent.
                launch(context, workspace, query, |workspace| {
                    // SAFETY: `args` is linked. What it points to is borrowed, exclusively where it
                    // is written, or promised by who made the tensor, the stream or the workspace.
                    unsafe {
                        sys::$run(
                            context.as_ptr(),
                            args,
                            workspace.address,
                            workspace.bytes,
                            stream.0,
                        )
                    }
                })
            }

            pub(crate) fn copied(&self) -> $type<'_> {
                $type {
                    args: self.args,
                    views: self.views,
                    context: self.context,
                    borrow: PhantomData,
                }
            }
        }
    };
}

fn show_kind(kind: sys::fastnorm_norm_kind) -> &'static str {
    if kind == sys::FASTNORM_NORM_LAYER {
        "layer"
    } else {
        "rms"
    }
}

mod allreduce {
    use super::{
        check, flags, launch, show_kind, slots, sys, Context, Info, Peer, PeerSumRounding,
        PhantomData, Quant, ResidualRounding, Result, Rounding, Stream, Tensor, TensorMut, View,
        Workspace,
    };

    slots! {
        PeerAllreduceNorm, fastnorm_peer_allreduce_norm_args, 80,
        |args, f| f.field("kind", &show_kind(args.kind)).field("eps", &args.eps);
        X x, Residual residual, Weight weight, Bias bias, Y y, ResidualOut residual_out, Mean mean,
        Rstd rstd, GlobalScale global_scale, Quantized quantized, Scale scale, Amax amax,
        ClampScale clamp_scale,
    }

    /// The sum of the ranks' rows in rank order, a residual, and one norm. All ranks get the same
    /// bits. Fields that [`Norm`](crate::Norm) has too mean the same, of the sum in place of x.
    #[must_use = "nothing happens until it runs"]
    pub struct PeerAllreduceNorm<'a> {
        args: sys::fastnorm_peer_allreduce_norm_args,
        views: [Option<View>; SLOTS],
        context: &'a Context,
        borrow: PhantomData<&'a mut [u8]>,
    }

    calls! {
        PeerAllreduceNorm, fastnorm_peer_allreduce_norm_args, fastnorm_peer_allreduce_norm_query,
        fastnorm_peer_allreduce_norm_prepare, fastnorm_peer_allreduce_norm
    }

    impl<'a> PeerAllreduceNorm<'a> {
        /// That of a handle of NCCL, which has its own peer.
        pub(crate) fn of_nccl(
            context: &'a Context,
            kind: sys::fastnorm_norm_kind,
            eps: f32,
        ) -> Self {
            Self {
                args: sys::fastnorm_peer_allreduce_norm_args {
                    kind,
                    eps,
                    ..sys::fastnorm_peer_allreduce_norm_args::new()
                },
                views: [None; SLOTS],
                context,
                borrow: PhantomData,
            }
        }

        /// Added to the sum. Default: nothing is.
        pub fn residual(self, residual: Tensor<'a>) -> Self {
            self.put(Slot::Residual, residual.view)
        }

        /// The residual, which the sum with it replaces.
        #[allow(clippy::needless_pass_by_value)]
        pub fn residual_in_place(self, residual: TensorMut<'a>) -> Self {
            self.put(Slot::Residual, residual.view)
                .put(Slot::ResidualOut, residual.view)
        }

        /// The sum with the residual.
        #[allow(clippy::needless_pass_by_value)]
        pub fn residual_out(self, residual_out: TensorMut<'a>) -> Self {
            self.put(Slot::ResidualOut, residual_out.view)
        }

        /// Each row's mean; LAYER only.
        #[allow(clippy::needless_pass_by_value)]
        pub fn mean(self, mean: TensorMut<'a>) -> Self {
            self.put(Slot::Mean, mean.view)
        }

        /// Each row's reciprocal root.
        #[allow(clippy::needless_pass_by_value)]
        pub fn rstd(self, rstd: TensorMut<'a>) -> Self {
            self.put(Slot::Rstd, rstd.view)
        }

        /// Which sum goes on. Default: rounded to the dtype of x.
        pub fn sum_rounding(mut self, rounding: PeerSumRounding) -> Self {
            self.args.sum_rounding = match rounding {
                PeerSumRounding::Rounded => sys::FASTNORM_PEER_SUM_ROUNDED,
                PeerSumRounding::Exact => sys::FASTNORM_PEER_SUM_EXACT,
            };
            self
        }

        /// Which value of the sum with the residual is used. Default: the exact one.
        pub fn residual_rounding(mut self, rounding: ResidualRounding) -> Self {
            self.args.residual_rounding = rounding.raw();
            self
        }

        /// A quantised output.
        #[allow(clippy::needless_pass_by_value)]
        pub fn quant(mut self, quant: Quant<'a>) -> Self {
            self.args.quant_scheme = quant.scheme;
            self.args.quant_block_size = quant.block_size;
            self.args.quant_source = quant.source.raw();
            self.args.scale_layout = quant.layout.raw();
            self.args.scale_pow2 = i32::from(quant.pow2);
            self.args.amax_floor = quant.amax_floor;
            self.args.clamp = quant.clamp;
            self.args.quant_division = quant.division.raw();
            let mut all = self
                .put(Slot::Quantized, quant.quantized)
                .put(Slot::Scale, quant.scale);
            for (slot, view) in [
                (Slot::GlobalScale, quant.global_scale),
                (Slot::Amax, quant.amax),
                (Slot::ClampScale, quant.clamp_scale),
            ] {
                if let Some(view) = view {
                    all = all.put(slot, view);
                }
            }
            all
        }
    }
}

mod sharded {
    use super::{
        check, flags, launch, show_kind, slots, sys, Context, Info, Peer, PhantomData, Result,
        Rounding, Stream, Tensor, TensorMut, View, Workspace,
    };

    slots! {
        PeerShardedNorm, fastnorm_peer_sharded_norm_args, 40,
        |args, f| f.field("kind", &show_kind(args.kind)).field("eps", &args.eps);
        X x, Weight weight, Bias bias, Y y, X2 x2, Weight2 weight2, Bias2 bias2, Y2 y2,
    }

    /// The norm of rows whose columns are spread over the ranks: each rank has some of x's columns,
    /// and gets y of these. Two parts, such as query and key heads, share one exchange.
    #[must_use = "nothing happens until it runs"]
    pub struct PeerShardedNorm<'a> {
        args: sys::fastnorm_peer_sharded_norm_args,
        views: [Option<View>; SLOTS],
        context: &'a Context,
        borrow: PhantomData<&'a mut [u8]>,
    }

    calls! {
        PeerShardedNorm, fastnorm_peer_sharded_norm_args, fastnorm_peer_sharded_norm_query,
        fastnorm_peer_sharded_norm_prepare, fastnorm_peer_sharded_norm
    }

    impl<'a> PeerShardedNorm<'a> {
        /// The second part: of x's tokens and dtype, with its results.
        #[allow(clippy::needless_pass_by_value)]
        pub fn second(self, x: Tensor<'a>, y: TensorMut<'a>) -> Self {
            self.put(Slot::X2, x.view).put(Slot::Y2, y.view)
        }

        /// As [`weight`](Self::weight), of the second part.
        pub fn second_weight(self, weight: Tensor<'a>) -> Self {
            self.put(Slot::Weight2, weight.view)
        }

        /// As [`bias`](Self::bias), of the second part.
        pub fn second_bias(self, bias: Tensor<'a>) -> Self {
            self.put(Slot::Bias2, bias.view)
        }
    }
}

pub use allreduce::PeerAllreduceNorm;
pub use sharded::PeerShardedNorm;
