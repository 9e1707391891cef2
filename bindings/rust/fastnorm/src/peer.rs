//! Tensor parallel norms: ranks that add up their rows, or merge their statistics, and normalise.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::time::Duration;

use crate::fields::PeerShardedNormViews;
use crate::norm::launch;
use crate::status::check;
use crate::{sys, Context, DType, Info, Norm, Result, Stream, Tensor, TensorMut, Workspace};

/// The most ranks of a group.
pub const MAX_RANKS: usize = sys::FASTNORM_PEER_MAX_RANKS as usize;

/// What one rank tells the others: bytes that the caller brings to all of them.
pub type PeerBlob = [u8; sys::FASTNORM_PEER_BLOB_BYTES as usize];

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
    pub(crate) args: sys::fastnorm_peer_options,
}

impl PeerOptions {
    /// End number `rank` of `ranks`, for rows of that dtype and of at most so many columns.
    pub fn new(rank: usize, ranks: usize, dtype: DType, max_columns: usize) -> Self {
        let mut args = sys::fastnorm_peer_options::new();
        args.rank = i32::try_from(rank).unwrap_or(i32::MAX);
        args.ranks = i32::try_from(ranks).unwrap_or(i32::MAX);
        args.dtype = dtype.id();
        args.max_columns = i64::try_from(max_columns).unwrap_or(i64::MAX);
        Self { args }
    }

    /// The longest wait for another rank, 1 microsecond to 1000 seconds. Default: 10 seconds.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.args.wait_ns = i64::try_from(longest.as_nanos()).unwrap_or(i64::MAX);
        self
    }

    /// Bytes of a rank's buffer, for [`PeerOptions::create_from_pointers`].
    ///
    /// # Errors
    /// As [`PeerOptions::create`].
    pub fn buffer_bytes(&self, context: &Context) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: all are there; the library reads the options during the call only.
        check(unsafe {
            sys::fastnorm_peer_buffer_bytes(context.as_ptr(), &self.args, &mut bytes)
        })?;
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
        check(unsafe { sys::fastnorm_peer_create(context.as_ptr(), &self.args, &mut raw) })?;
        Ok(Peer::own(raw, context, self.args.ranks))
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
                &self.args,
                buffers.as_ptr(),
                count,
                &mut raw,
            )
        })?;
        Ok(Peer::own(raw, context, self.args.ranks))
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
///             let norm = Norm::rms(0.0)
///                 .x(Tensor::new(&x, &[1, 4]).unwrap())
///                 .y(TensorMut::new(&mut y, &[1, 4]).unwrap());
///             PeerAllreduceNorm::new(peer, norm).run().unwrap();
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
    ($type:ident, $query:ident, $prepare:ident, $run:ident) => {
        // SAFETY: it holds tensors, which are Send, and a borrow of a peer, which is Sync. The
        // pointers of `args` are set anew in every call.
        unsafe impl Send for $type<'_> {}
        // SAFETY: a shared one can be asked what it would do, which touches no tensor's memory; to
        // run it takes an exclusive borrow.
        unsafe impl Sync for $type<'_> {}

        impl $type<'_> {
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
        }
    };
}

/// The sum of the ranks' rows in rank order, a residual, and one norm. All ranks get the same
/// bits.
///
/// It is made of a [`Norm`], whose x is this rank's part of the sum. A norm with a stage is
/// refused when it runs.
#[must_use = "nothing happens until it runs"]
pub struct PeerAllreduceNorm<'a> {
    pub(crate) args: sys::fastnorm_peer_allreduce_norm_args,
    norm: Norm<'a>,
    pub(crate) context: &'a Context,
}

calls! {
    PeerAllreduceNorm, fastnorm_peer_allreduce_norm_query, fastnorm_peer_allreduce_norm_prepare,
    fastnorm_peer_allreduce_norm
}

impl<'a> PeerAllreduceNorm<'a> {
    /// The norm of the sum of what the peer's group has for its x.
    pub fn new(peer: &'a Peer<'_>, norm: Norm<'a>) -> Self {
        let mut call = Self::of_nccl(peer.context, norm);
        call.args.peer = peer.as_ptr();
        call
    }

    /// That of a handle of NCCL, which has its own peer.
    pub(crate) fn of_nccl(context: &'a Context, norm: Norm<'a>) -> Self {
        Self {
            args: sys::fastnorm_peer_allreduce_norm_args::new(),
            norm,
            context,
        }
    }

    /// Points the arguments at the norm's, until the description is moved.
    pub(crate) fn link(&mut self) -> *const sys::fastnorm_peer_allreduce_norm_args {
        self.args.norm = self.norm.link();
        &self.args
    }

    pub(crate) fn copied(&self) -> PeerAllreduceNorm<'_> {
        PeerAllreduceNorm {
            args: self.args,
            norm: self.norm.copied(),
            context: self.context,
        }
    }
}

impl fmt::Debug for PeerAllreduceNorm<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerAllreduceNorm")
            .field("norm", &self.norm)
            .finish_non_exhaustive()
    }
}

/// The norm of rows whose columns are spread over the ranks: each rank has some of x's columns,
/// and gets y of these. Two parts, such as query and key heads, share one exchange.
#[must_use = "nothing happens until it runs"]
pub struct PeerShardedNorm<'a> {
    pub(crate) args: sys::fastnorm_peer_sharded_norm_args,
    pub(crate) views: PeerShardedNormViews,
    pub(crate) context: &'a Context,
    pub(crate) borrow: PhantomData<&'a mut [u8]>,
}

calls! {
    PeerShardedNorm, fastnorm_peer_sharded_norm_query, fastnorm_peer_sharded_norm_prepare,
    fastnorm_peer_sharded_norm
}

impl<'a> PeerShardedNorm<'a> {
    fn new(peer: &'a Peer<'_>, kind: sys::fastnorm_norm_kind, eps: f32) -> Self {
        let mut args = sys::fastnorm_peer_sharded_norm_args::new();
        args.peer = peer.as_ptr();
        args.kind = kind;
        args.eps = eps;
        Self {
            args,
            views: PeerShardedNormViews::new(),
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

    /// The second part: of x's tokens and dtype, with its results.
    #[allow(clippy::needless_pass_by_value)]
    pub fn second(self, x: Tensor<'a>, y: TensorMut<'a>) -> Self {
        self.put_x2(x.view).put_y2(y.view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Setters of one field are tested in fields.rs.
    #[test]
    #[cfg(not(miri))] // which calls no foreign functions
    #[allow(clippy::float_cmp)]
    fn setters_of_several_fields() -> Result<()> {
        let context = Context::cpu()?;
        let peer = PeerOptions::new(0, 2, DType::F32, 8).create(&context)?;
        let mut call = PeerAllreduceNorm::new(&peer, Norm::layer(0.5).pdl_trigger(true));
        // SAFETY: linked just now.
        let (args, norm) = unsafe { (*call.link(), *call.args.norm) };
        assert_eq!(
            (args.struct_size, args.peer),
            (size_of_val(&args), peer.as_ptr())
        );
        assert_eq!((norm.kind, norm.flags), (sys::FASTNORM_NORM_LAYER, 2));
        let (x, mut y) = ([0f32; 1], [0f32; 2]);
        let mut call = PeerShardedNorm::layer(&peer, 0.5)
            .second(Tensor::new(&x, &[1])?, TensorMut::new(&mut y, &[2])?);
        // SAFETY: linked just now.
        let args = unsafe { *call.link() };
        assert_eq!(
            (args.struct_size, args.peer),
            (size_of_val(&args), peer.as_ptr())
        );
        assert_eq!((args.kind, args.eps), (sys::FASTNORM_NORM_LAYER, 0.5));
        // SAFETY: linked, to tensors of rank 1.
        let lengths = [args.x2, args.y2].map(|t| unsafe { *(*t).shape });
        assert_eq!(lengths, [1, 2]);
        assert_eq!(
            PeerShardedNorm::rms(&peer, 0.25).args.kind,
            sys::FASTNORM_NORM_RMS
        );
        Ok(())
    }

    #[test]
    fn options() {
        let args = PeerOptions::new(1, 2, DType::BF16, 8)
            .wait(Duration::from_micros(3))
            .args;
        assert_eq!((args.rank, args.ranks, args.max_columns), (1, 2, 8));
        assert_eq!((args.dtype, args.wait_ns), (DType::BF16.id(), 3000));
    }
}
