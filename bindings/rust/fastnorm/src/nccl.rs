//! Tensor parallel norms on a communicator of NCCL's. They are of libfastnorm_nccl, a library of
//! its own that is loaded when it is first used.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::time::Duration;

use crate::norm::{launch_by, Scratch};
use crate::{
    parallel, sys, Context, DType, Error, Info, Norm, Peer, PeerAllreduceNorm, Result, Status,
    Stream, Workspace,
};

// --- the library ---

const SONAME: &CStr = c"libfastnorm_nccl.so.1";

static LIBRARY: OnceLock<Library> = OnceLock::new();

struct Library(sys::fastnorm_nccl_library);

// Functions of the C library, which load another one.
extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
const RTLD_NOW: c_int = 2;

/// Loads libfastnorm_nccl from that file. Without it the first use of an [`Nccl`] loads
/// libfastnorm_nccl.so.1 from where the loader finds it. What is loaded stays so: a later call does
/// nothing. Programs that use no [`Nccl`] do not need the library.
///
/// # Errors
/// [`Status::UNSUPPORTED`] for a library that cannot be loaded, that lacks a function, or that uses
/// another copy of libfastnorm than this program.
pub fn load_nccl(path: &Path) -> Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| {
        let shown = path.display();
        let text = format!("path is {shown:?}; required: a path without a zero byte");
        Error::new(Status::ARGUMENT, text)
    })?;
    library_of(&path).map(|_| ())
}

fn library() -> Result<&'static Library> {
    library_of(SONAME)
}

fn library_of(path: &CStr) -> Result<&'static Library> {
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let loaded = Library::open(path)?;
    Ok(LIBRARY.get_or_init(|| loaded))
}

impl Library {
    fn open(path: &CStr) -> Result<Self> {
        let shown = path.to_string_lossy();
        let unsupported = |text| Err(Error::new(Status::UNSUPPORTED, text));
        // SAFETY: a path that ends with a zero.
        let library = unsafe { dlopen(path.as_ptr(), RTLD_NOW) };
        if library.is_null() {
            // SAFETY: this thread's dlopen has failed just now, so there is a text.
            let why = unsafe { CStr::from_ptr(dlerror()) }.to_string_lossy();
            return unsupported(format!(
                "{shown} cannot be loaded: {why}; required: the library that -Dnccl=true builds \
                 beside libfastnorm, where the loader finds it"
            ));
        }
        // SAFETY: what dlopen returned, and a name that ends with a zero.
        let find = |name: &CStr| unsafe { dlsym(library, name.as_ptr()) };
        // SAFETY: the names are those of libfastnorm_nccl, whose ABI the declarations have.
        let functions = unsafe { sys::fastnorm_nccl_library::find(|name| find(name)) };
        let functions = match functions {
            Ok(functions) => functions,
            Err(missing) => {
                let missing = missing.to_string_lossy();
                return unsupported(format!(
                    "{shown} has no {missing}; required: that of libfastnorm {} or later",
                    env!("CARGO_PKG_VERSION")
                ));
            }
        };
        // Contexts are of one copy of libfastnorm, whose texts lie in it.
        let version = find(c"fastnorm_version_string");
        let is_same = !version.is_null() && {
            // SAFETY: it is that function of some libfastnorm.
            unsafe {
                let version: unsafe extern "C" fn() -> *const c_char =
                    std::mem::transmute::<*mut c_void, _>(version);
                version() == sys::fastnorm_version_string()
            }
        };
        if !is_same {
            return unsupported(format!(
                "{shown} uses another copy of libfastnorm than this program; required: one \
                 libfastnorm.so.1 for both"
            ));
        }
        Ok(Self(functions))
    }

    /// What a function of the library has just returned on this thread.
    #[inline]
    fn check(&self, status: sys::fastnorm_status) -> Result<()> {
        if status == sys::FASTNORM_OK {
            Ok(())
        } else {
            Err(self.error(status))
        }
    }

    #[cold]
    fn error(&self, status: sys::fastnorm_status) -> Error {
        // SAFETY: the text ends with a zero and lives until this thread's next failing call.
        let text = unsafe { CStr::from_ptr((self.0.fastnorm_nccl_last_error)()) };
        Error::of_other(
            Status::from_code(status),
            text.to_string_lossy().into_owned(),
        )
    }
}

/// Finds NCCL: the copy that the process has loaded, or `libnccl.so.2`. Returns ncclGetVersion's
/// number, such as 22809.
///
/// # Errors
/// [`Status::UNSUPPORTED`] where there is no NCCL, or no libfastnorm_nccl.
pub fn nccl_version() -> Result<i32> {
    let (library, mut version) = (library()?, 0);
    // SAFETY: the number is writable.
    library.check(unsafe { (library.0.fastnorm_nccl_version)(&mut version) })?;
    Ok(version)
}

/// Gives the functions of NCCL, before any [`Nccl`] is made: in a program that links NCCL
/// statically. CPU contexts need it, with functions over host memory. None = NCCL is looked for
/// again.
///
/// # Errors
/// [`Status::ARGUMENT`] for a function that is not there; [`Status::UNSUPPORTED`] where there is no
/// libfastnorm_nccl.
///
/// # Safety
/// The functions do what those of NCCL do, as long as the program runs.
pub unsafe fn set_nccl_functions(functions: Option<&sys::fastnorm_nccl_functions>) -> Result<()> {
    let library = library()?;
    let address = functions.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: null, or what the caller promises; it is copied.
    library.check(unsafe { (library.0.fastnorm_nccl_set_functions)(address) })
}

// --- handles ---

/// How an [`Nccl`] is made, the same on all ranks. Setters that
/// [`PeerOptions`](crate::PeerOptions) has too mean the same.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct NcclOptions {
    pub(crate) args: sys::fastnorm_nccl_options,
}

impl NcclOptions {
    /// For x of that dtype and of at most so many columns.
    pub fn new(dtype: DType, max_columns: usize) -> Self {
        let mut args = sys::fastnorm_nccl_options::new();
        args.dtype = dtype.id();
        args.max_columns = i64::try_from(max_columns).unwrap_or(i64::MAX);
        Self { args }
    }

    /// The longest wait of a peer for another rank. The default is 10 seconds.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.args.wait_ns = i64::try_from(longest.as_nanos()).unwrap_or(i64::MAX);
        self
    }

    /// Makes this rank's handle. Every rank of the communicator does so at the same time, on a
    /// thread of its own, and waits for the others. The stream is for the exchange.
    ///
    /// # Errors
    /// - [`Status::ARGUMENT`] and [`Status::DTYPE`]: options that are out of range or differ from
    ///   those of other ranks; a communicator of another device
    /// - [`Status::UNSUPPORTED`]: no NCCL, or no libfastnorm_nccl; a context of a CPU without
    ///   [`set_nccl_functions`]; a fixed order where ranks cannot be peers
    /// - [`Status::DEVICE`]: NCCL or CUDA failed; the text has their words
    ///
    /// # Safety
    /// `comm` is null, which is refused, or an ncclComm_t that is there until the handle is
    /// dropped.
    pub unsafe fn create(
        self,
        context: &Context,
        comm: *mut c_void,
        stream: Stream,
    ) -> Result<Nccl<'_>> {
        let (library, mut raw) = (library()?, ptr::null_mut());
        // SAFETY: all are there; the library reads the options during the call only.
        library.check(unsafe {
            (library.0.fastnorm_nccl_create)(
                context.as_ptr(),
                context.device().raw(),
                comm,
                &self.args,
                stream.0,
                &mut raw,
            )
        })?;
        Ok(Nccl::own(raw, context, library))
    }

    /// Makes the handles of several ranks of this process. One thread does what as many threads
    /// with [`create`](Self::create) would.
    ///
    /// # Errors
    /// As [`create`](Self::create); the text names the rank.
    ///
    /// # Safety
    /// As [`create`](Self::create), for each communicator.
    pub unsafe fn create_all<'c>(self, ranks: &[NcclRank<'c>]) -> Result<Vec<Nccl<'c>>> {
        let library = library()?;
        let contexts: Vec<_> = ranks.iter().map(|rank| rank.context.as_ptr()).collect();
        let devices: Vec<_> = ranks
            .iter()
            .map(|rank| rank.context.device().raw())
            .collect();
        let comms: Vec<_> = ranks.iter().map(|rank| rank.comm).collect();
        let streams: Vec<_> = ranks.iter().map(|rank| rank.stream.0).collect();
        let mut handles = vec![ptr::null_mut(); ranks.len()];
        // SAFETY: all lists have an entry for each rank; communicators are as the caller promises.
        library.check(unsafe {
            (library.0.fastnorm_nccl_create_all)(
                contexts.as_ptr(),
                devices.as_ptr(),
                comms.as_ptr(),
                &self.args,
                streams.as_ptr(),
                count(ranks.len()),
                handles.as_mut_ptr(),
            )
        })?;
        let made = handles.into_iter().zip(ranks);
        Ok(made
            .map(|(raw, rank)| Nccl::own(raw, rank.context, library))
            .collect())
    }
}

/// One rank of this process, for [`NcclOptions::create_all`].
#[derive(Clone, Copy, Debug)]
pub struct NcclRank<'c> {
    /// The device.
    pub context: &'c Context,
    /// An ncclComm_t of that device.
    pub comm: *mut c_void,
    /// For the exchange.
    pub stream: Stream,
}

fn count(ranks: usize) -> i32 {
    i32::try_from(ranks).unwrap_or(i32::MAX)
}

/// One rank on a communicator of NCCL's. Where the ranks reach each other's memory its calls are
/// those of a [`Peer`], else they go by NCCL. All ranks make the same calls in the same order.
///
/// The communicator is borrowed: it must outlive the handle, which does not destroy it.
///
/// ```no_run
/// # use fastnorm::*;
/// # type Comm = *mut std::ffi::c_void;
/// # fn rank(
/// #     comm: Comm, stream: Stream, workspace: Workspace, x: Tensor, y: TensorMut,
/// # ) -> Result<()> {
/// let context = Context::cuda(0)?;
/// // SAFETY: the communicator is of that GPU, and outlives the handle.
/// let rank = unsafe { NcclOptions::new(DType::BF16, 8192).create(&context, comm, stream) }?;
/// let norm = Norm::rms(1e-6).x(x).y(y);
/// rank.allreduce_norm_with(&mut rank.allreduce(norm), stream, workspace)
/// # }
/// ```
pub struct Nccl<'c> {
    raw: NonNull<sys::fastnorm_nccl>,
    context: &'c Context,
    library: &'static Library,
}

// SAFETY: the library ties a handle to no thread.
unsafe impl Send for Nccl<'_> {}
// SAFETY: its functions may be called from any thread; a second call of a peer at a time is
// refused, and NCCL takes calls of one communicator from several threads one after the other.
unsafe impl Sync for Nccl<'_> {}

impl<'c> Nccl<'c> {
    fn own(raw: *mut sys::fastnorm_nccl, context: &'c Context, library: &'static Library) -> Self {
        Self {
            raw: NonNull::new(raw).expect("a handle that was created"),
            context,
            library,
        }
    }

    /// The context that it was made for.
    pub fn context(&self) -> &'c Context {
        self.context
    }

    /// The handle of the C ABI. It stays this one's: it must not be destroyed.
    pub fn as_ptr(&self) -> *mut sys::fastnorm_nccl {
        self.raw.as_ptr()
    }

    /// The handle's own peer, for [`Peer::state`], [`Peer::reset`] and calls of a peer; None where
    /// the ranks are no peers.
    ///
    /// # Errors
    /// None is known.
    pub fn peer(&self) -> Result<Option<Peer<'_>>> {
        let mut peer = ptr::null_mut();
        // SAFETY: the handle is there, and the address is writable.
        let status = unsafe { (self.library.0.fastnorm_nccl_peer)(self.as_ptr(), &mut peer) };
        self.library.check(status)?;
        Ok(NonNull::new(peer).map(|peer| Peer::borrowed(peer, self.context)))
    }

    /// The norm of the ranks' sum, for [`allreduce_norm`](Self::allreduce_norm).
    pub fn allreduce<'a>(&'a self, norm: Norm<'a>) -> PeerAllreduceNorm<'a> {
        PeerAllreduceNorm::of_nccl(self.context, norm)
    }

    /// Says what a call would do. Launches of NCCL do not count. No tensor's memory is touched, no
    /// rank is waited for.
    ///
    /// # Errors
    /// As [`allreduce_norm`](Self::allreduce_norm).
    pub fn allreduce_norm_query(&self, norm: &PeerAllreduceNorm<'_>) -> Result<Info> {
        let mut info = sys::fastnorm_info::new();
        let query = self.library.0.fastnorm_nccl_allreduce_norm_query;
        let mut copy = norm.copied();
        // SAFETY: all is linked; `info` is writable and knows its size.
        let status = unsafe { query(self.as_ptr(), copy.link(), &mut info) };
        self.library.check(status)?;
        Ok(Info::from_raw(&info))
    }

    /// Loads the kernels of a call. On GPUs: before a call is captured in a graph.
    ///
    /// # Errors
    /// As [`allreduce_norm`](Self::allreduce_norm).
    pub fn allreduce_norm_prepare(&self, norm: &PeerAllreduceNorm<'_>) -> Result<()> {
        let prepare = self.library.0.fastnorm_nccl_allreduce_norm_prepare;
        let mut copy = norm.copied();
        // SAFETY: all is linked.
        self.library
            .check(unsafe { prepare(self.as_ptr(), copy.link()) })
    }

    /// Adds up the ranks' x, adds the residual, normalises: a norm of
    /// [`allreduce`](Self::allreduce). Every rank calls it, with the same rows. By NCCL x is
    /// compact, and sums are rounded. On the CPU results are there on return.
    ///
    /// # Errors
    /// - As [`PeerAllreduceNorm::run`]
    /// - [`Status::ARGUMENT`]: a norm of a [`Peer`]
    /// - [`Status::LAYOUT`]: by NCCL, x that is not compact
    /// - [`Status::UNSUPPORTED`]: by NCCL, an exact sum or a fixed order
    /// - [`Status::DEVICE`]: NCCL failed
    ///
    /// # Panics
    /// Only if a callback of the context does.
    pub fn allreduce_norm(&self, norm: &mut PeerAllreduceNorm<'_>) -> Result<()> {
        self.allreduce_norm_with(norm, Stream::DEFAULT, Workspace::NONE)
    }

    /// As [`allreduce_norm`](Self::allreduce_norm), on a CUDA stream with a workspace.
    ///
    /// # Errors
    /// As [`allreduce_norm`](Self::allreduce_norm).
    pub fn allreduce_norm_with(
        &self,
        norm: &mut PeerAllreduceNorm<'_>,
        stream: Stream,
        workspace: Workspace,
    ) -> Result<()> {
        let args = norm.link();
        launch_by(
            |status| self.library.check(status),
            self.context,
            workspace,
            || self.allreduce_norm_query(norm),
            |workspace| {
                let run = self.library.0.fastnorm_nccl_allreduce_norm;
                let (address, bytes) = (workspace.address, workspace.bytes);
                // SAFETY: `args` is linked. What it points to is borrowed, exclusively where it is
                // written, or promised by who made the tensor, the stream or the workspace.
                unsafe { run(self.as_ptr(), args, address, bytes, stream.0) }
            },
        )
    }

    /// As [`allreduce_norm_query`](Self::allreduce_norm_query).
    ///
    /// # Errors
    /// As [`sequence_norm`](Self::sequence_norm).
    pub fn sequence_norm_query(&self, norm: &NcclSequenceNorm<'_>) -> Result<Info> {
        let mut info = sys::fastnorm_info::new();
        let query = self.library.0.fastnorm_nccl_sequence_norm_query;
        let mut copy = norm.norm.copied();
        let args = norm.args_of(copy.link());
        // SAFETY: all is linked; `info` is writable and knows its size.
        let status = unsafe { query(self.as_ptr(), &args, &mut info) };
        self.library.check(status)?;
        Ok(Info::from_raw(&info))
    }

    /// As [`allreduce_norm_prepare`](Self::allreduce_norm_prepare).
    ///
    /// # Errors
    /// As [`sequence_norm`](Self::sequence_norm).
    pub fn sequence_norm_prepare(&self, norm: &NcclSequenceNorm<'_>) -> Result<()> {
        let prepare = self.library.0.fastnorm_nccl_sequence_norm_prepare;
        let mut copy = norm.norm.copied();
        let args = norm.args_of(copy.link());
        // SAFETY: all is linked.
        self.library.check(unsafe { prepare(self.as_ptr(), &args) })
    }

    /// Sequence parallel: reduce-scatter of x, residual and norm of this rank's tokens, all-gather
    /// of the results. Every rank calls it.
    ///
    /// # Errors
    /// - As [`Norm::run`]
    /// - [`Status::SHAPE`]: tokens that are no multiple of the ranks; tensors of other rows
    /// - [`Status::LAYOUT`]: tensors that are not compact
    /// - [`Status::UNSUPPORTED`]: amax, swizzled scales; a fixed order
    /// - [`Status::DEVICE`]: NCCL failed
    ///
    /// # Panics
    /// Only if a callback of the context does.
    pub fn sequence_norm(&self, norm: &mut NcclSequenceNorm<'_>) -> Result<()> {
        self.sequence_norm_with(norm, Stream::DEFAULT, Workspace::NONE)
    }

    /// As [`sequence_norm`](Self::sequence_norm), on a CUDA stream with a workspace.
    ///
    /// # Errors
    /// As [`sequence_norm`](Self::sequence_norm).
    pub fn sequence_norm_with(
        &self,
        norm: &mut NcclSequenceNorm<'_>,
        stream: Stream,
        workspace: Workspace,
    ) -> Result<()> {
        let linked = norm.norm.link();
        let args = norm.args_of(linked);
        launch_by(
            |status| self.library.check(status),
            self.context,
            workspace,
            || self.sequence_norm_query(norm),
            |workspace| {
                let run = self.library.0.fastnorm_nccl_sequence_norm;
                let (address, bytes) = (workspace.address, workspace.bytes);
                // SAFETY: as in `allreduce_norm_with`.
                unsafe { run(self.as_ptr(), &args, address, bytes, stream.0) }
            },
        )
    }
}

impl Drop for Nccl<'_> {
    fn drop(&mut self) {
        // SAFETY: it was created by the library and is destroyed once; no call can be under way.
        unsafe { (self.library.0.fastnorm_nccl_destroy)(self.as_ptr()) };
    }
}

impl fmt::Debug for Nccl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nccl")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

/// Sequence parallel: each rank normalises its tokens of all tokens.
///
/// All tensors of the norm are compact. x is `[tokens, n]`, this rank's part of all tokens' sums;
/// tokens is a multiple of the ranks. The residual and statistics are of this rank's tokens alone.
/// y, codes and their scales are of all tokens. There is no amax, and no swizzled scale.
#[derive(Debug)]
#[must_use = "nothing happens until it runs"]
pub struct NcclSequenceNorm<'a> {
    norm: Norm<'a>,
    gather: bool,
}

impl<'a> NcclSequenceNorm<'a> {
    /// With the results of this rank's tokens alone.
    pub fn new(norm: Norm<'a>) -> Self {
        Self {
            norm,
            gather: false,
        }
    }

    /// Whether y, codes and scales of all ranks are gathered. Default: off.
    pub fn gather(mut self, on: bool) -> Self {
        self.gather = on;
        self
    }

    fn args_of(
        &self,
        norm: *const sys::fastnorm_norm_args,
    ) -> sys::fastnorm_nccl_sequence_norm_args {
        sys::fastnorm_nccl_sequence_norm_args {
            norm,
            gather: i32::from(self.gather),
            ..sys::fastnorm_nccl_sequence_norm_args::new()
        }
    }
}

// --- several ranks of one thread ---

/// The call of one of several ranks of this process.
#[derive(Debug)]
pub struct NcclCall<'h, N> {
    /// The rank.
    pub handle: &'h Nccl<'h>,
    /// What it computes.
    pub norm: N,
    /// Where.
    pub stream: Stream,
    /// Scratch memory; the smallest counts for all.
    pub workspace: Workspace,
}

impl<'h, N> NcclCall<'h, N> {
    /// On the default stream, without a workspace.
    pub fn new(handle: &'h Nccl<'h>, norm: N) -> Self {
        Self {
            handle,
            norm,
            stream: Stream::DEFAULT,
            workspace: Workspace::NONE,
        }
    }
}

/// Lists for the calls of several ranks.
struct Together {
    library: &'static Library,
    handles: Vec<*mut sys::fastnorm_nccl>,
    workspaces: Vec<*mut c_void>,
    workspace_bytes: usize,
    streams: Vec<*mut c_void>,
    /// Workspaces of calls on CPUs that were given none.
    scratch: Vec<Scratch>,
}

impl Together {
    fn new<N>(
        calls: &[NcclCall<'_, N>],
        query: impl Fn(&NcclCall<'_, N>) -> Result<Info>,
    ) -> Result<Self> {
        let bytes = calls.iter().map(|call| call.workspace.bytes).min();
        let mut all = Self {
            library: library()?,
            handles: calls.iter().map(|call| call.handle.as_ptr()).collect(),
            workspaces: calls.iter().map(|call| call.workspace.address).collect(),
            workspace_bytes: bytes.unwrap_or(0),
            streams: calls.iter().map(|call| call.stream.0).collect(),
            scratch: Vec::new(),
        };
        if all.workspace_bytes == 0 && calls.iter().all(|call| call.handle.context.is_cpu()) {
            let mut most = 0;
            for (i, call) in calls.iter().enumerate() {
                let name = |error: Error| match calls.len() {
                    1 => error,
                    _ => error.of_call(i),
                };
                most = most.max(query(call).map_err(name)?.workspace_bytes);
            }
            for workspace in &mut all.workspaces {
                let scratch = Scratch::new(most)?;
                *workspace = scratch.workspace().address;
                all.workspace_bytes = scratch.workspace().bytes;
                all.scratch.push(scratch);
            }
        }
        Ok(all)
    }

    /// After the call.
    fn finish(&self, status: sys::fastnorm_status) -> Result<()> {
        let result = self.library.check(status);
        parallel::settle()?;
        result
    }
}

/// Makes the calls of several ranks from one thread: all are checked, then NCCL starts their sums
/// together, then their norms follow. CPUs that are given no workspace take one of their own.
///
/// # Errors
/// As [`Nccl::allreduce_norm`]; the text names the rank, as `args[i]`. [`Status::SHAPE`] for x of
/// different sizes, [`Status::UNSUPPORTED`] for several ranks that are peers on a CPU.
///
/// # Panics
/// Only if a callback of a context does.
pub fn nccl_allreduce_norm_all(calls: &mut [NcclCall<'_, PeerAllreduceNorm<'_>>]) -> Result<()> {
    let all = Together::new(calls, |call| call.handle.allreduce_norm_query(&call.norm))?;
    let args: Vec<_> = calls.iter_mut().map(|call| call.norm.link()).collect();
    // SAFETY: all lists have an entry for each rank. All is linked, as in `allreduce_norm_with`.
    all.finish(unsafe {
        (all.library.0.fastnorm_nccl_allreduce_norm_all)(
            all.handles.as_ptr(),
            args.as_ptr(),
            all.workspaces.as_ptr(),
            all.workspace_bytes,
            all.streams.as_ptr(),
            count(calls.len()),
        )
    })
}

/// As [`nccl_allreduce_norm_all`], for sequence parallel. All have one gather.
///
/// # Errors
/// As [`Nccl::sequence_norm`]; the text names the rank, as `args[i]`.
///
/// # Panics
/// Only if a callback of a context does.
pub fn nccl_sequence_norm_all(calls: &mut [NcclCall<'_, NcclSequenceNorm<'_>>]) -> Result<()> {
    let all = Together::new(calls, |call| call.handle.sequence_norm_query(&call.norm))?;
    let args: Vec<_> = calls
        .iter_mut()
        .map(|call| {
            let linked = call.norm.norm.link();
            call.norm.args_of(linked)
        })
        .collect();
    let list: Vec<_> = args.iter().map(ptr::from_ref).collect();
    // SAFETY: as above.
    all.finish(unsafe {
        (all.library.0.fastnorm_nccl_sequence_norm_all)(
            all.handles.as_ptr(),
            list.as_ptr(),
            all.workspaces.as_ptr(),
            all.workspace_bytes,
            all.streams.as_ptr(),
            count(calls.len()),
        )
    })
}
