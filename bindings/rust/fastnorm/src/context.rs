//! Contexts: a device, and what was read about it once.

use std::ffi::{c_void, CStr, CString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use crate::parallel::{self, Callbacks, Work};
use crate::slots::set_flag;
use crate::status::check;
use crate::version::check_library;
use crate::{sys, Device, DeviceType, Error, Result, Status};

/// One device, ready for calls.
///
/// Make one per device when the program starts and share it: by reference or in an `Arc`. It is
/// `Send` and `Sync`, as the library allows calls on one context from many threads at the same
/// time; that destroying it races no call is what borrowing ensures. Work that was queued on a GPU
/// goes on after the context is dropped.
pub struct Context {
    raw: NonNull<sys::fastnorm_context>,
    device: Device,
    /// From Box::into_raw; null if there is nothing to call back. The library has the address.
    callbacks: *mut Callbacks,
}

// SAFETY: the library ties a context to no thread, and the closures in `callbacks` are Send.
unsafe impl Send for Context {}
// SAFETY: calls on one context may run at the same time, and the closures in `callbacks` are Sync.
unsafe impl Sync for Context {}

impl Context {
    /// The CPU, on the calling thread alone. [`ContextOptions::threads`] is for more.
    ///
    /// # Errors
    /// [`Status::ARGUMENT`] if the environment names an instruction set that there is not;
    /// [`Status::UNSUPPORTED`] if the library is older than this crate.
    pub fn cpu() -> Result<Self> {
        Self::new(Device::CPU)
    }

    /// A CUDA device by its ordinal.
    ///
    /// # Errors
    /// [`Status::DEVICE`] if there is no such device or no usable driver: the text says which
    /// driver was found and which is needed. [`Status::UNSUPPORTED`] if the library has no kernels
    /// for it.
    pub fn cuda(id: i32) -> Result<Self> {
        Self::new(Device::cuda(id))
    }

    /// A device, with the default options.
    ///
    /// # Errors
    /// As [`ContextOptions::create`].
    pub fn new(device: Device) -> Result<Self> {
        ContextOptions::new(device).create()
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The context of the C ABI. It stays this one's: it must not be destroyed.
    pub fn as_ptr(&self) -> *mut sys::fastnorm_context {
        self.raw.as_ptr()
    }

    /// What a function of the library returned for a call with this context, as a result: for calls
    /// of [`sys`]. As [`check`](crate::check), and where a callback of the context has failed in
    /// the call, that is the error.
    ///
    /// # Errors
    /// Any status but [`Status::OK`] is one; so is a loop that left work undone.
    ///
    /// # Panics
    /// Goes on with the panic of a callback.
    #[inline]
    pub fn check(&self, status: sys::fastnorm_status) -> Result<()> {
        let result = check(status);
        if self.has_callbacks() {
            parallel::settle()?;
        }
        result
    }

    pub(crate) fn is_cpu(&self) -> bool {
        self.device.device_type == DeviceType::CPU
    }

    #[inline]
    pub(crate) fn has_callbacks(&self) -> bool {
        !self.callbacks.is_null()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was created by the library and is destroyed once; no call can be under way.
        // The closures go after it.
        unsafe { sys::fastnorm_context_destroy(self.raw.as_ptr()) };
        if self.has_callbacks() {
            parallel::forget_trouble();
            // SAFETY: from Box::into_raw, and nobody has the address any more.
            drop(unsafe { Box::from_raw(self.callbacks) });
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// Severity of a log message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogLevel(i32);

#[allow(clippy::cast_possible_wrap)] // 0 to 3
impl LogLevel {
    /// Something failed.
    pub const ERROR: Self = Self(sys::FASTNORM_LOG_ERROR as i32);
    /// Something is not as it should be.
    pub const WARNING: Self = Self(sys::FASTNORM_LOG_WARNING as i32);
    /// What was found and chosen.
    pub const INFO: Self = Self(sys::FASTNORM_LOG_INFO as i32);
    /// Details.
    pub const DEBUG: Self = Self(sys::FASTNORM_LOG_DEBUG as i32);
}

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ERROR => f.write_str("ERROR"),
            Self::WARNING => f.write_str("WARNING"),
            Self::INFO => f.write_str("INFO"),
            Self::DEBUG => f.write_str("DEBUG"),
            Self(level) => write!(f, "log level {level}"),
        }
    }
}

/// How a context is made.
///
/// ```
/// # use fastnorm::*;
/// let context = ContextOptions::new(Device::CPU).threads(4).create()?;
/// # Ok::<(), Error>(())
/// ```
#[must_use]
pub struct ContextOptions {
    device: Device,
    raw: sys::fastnorm_context_options,
    callbacks: Callbacks,
    tuning_file: Option<PathBuf>,
}

impl ContextOptions {
    /// The defaults: silent; on the CPU the calling thread alone.
    pub fn new(device: Device) -> Self {
        Self {
            device,
            raw: sys::fastnorm_context_options::new(),
            callbacks: Callbacks::default(),
            tuning_file: None,
        }
    }

    /// CPU: threads of an own pool, the caller included, at most 1024. Results do not depend on it.
    /// Without effect where there is a `parallel_for`.
    pub fn threads(mut self, threads: usize) -> Self {
        self.raw.num_threads = i32::try_from(threads).unwrap_or(i32::MAX);
        self
    }

    /// Receives messages, on the thread that makes a call: one line without a newline. A panic in
    /// it goes on in that call, after the library has done its work.
    ///
    /// ```
    /// # use fastnorm::*;
    /// let context = ContextOptions::new(Device::CPU)
    ///     .log(|level, text| eprintln!("{level:?}: {text}"))
    ///     .create()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn log(mut self, log: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        self.callbacks.log = Some(Box::new(move |level, text| log(LogLevel(level), text)));
        self
    }

    /// CPU: the caller's parallel loop, in place of the library's threads: it is given the work of
    /// a call, splits it, runs all pieces on any threads, and returns when they are done. A piece
    /// that was not run makes the call an error; a panic goes on in the call; either way outputs
    /// are incomplete.
    ///
    /// `rayon::scope` fits as `std::thread::scope` does here:
    /// ```
    /// # use fastnorm::*;
    /// let context = ContextOptions::new(Device::CPU)
    ///     .parallel_for(|work| {
    ///         let size = work.grain().max(work.len() / 8);
    ///         std::thread::scope(|s| {
    ///             for piece in work.chunks(size) {
    ///                 s.spawn(|| piece.run());
    ///             }
    ///         });
    ///     })
    ///     .create()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn parallel_for(mut self, parallel: impl Fn(Work<'_>) + Send + Sync + 'static) -> Self {
        self.callbacks.parallel = Some(Box::new(parallel));
        self
    }

    /// Calls check and plan, and start no work: no tensor's memory is touched. A CUDA context of
    /// this kind needs no GPU; `capability` is the compute capability to plan for, as major * 10 +
    /// minor. 0 on the CPU.
    pub fn dry_run(mut self, capability: i32) -> Self {
        self.raw.flags |= sys::FASTNORM_CONTEXT_DRY_RUN;
        self.raw.dry_run_capability = capability;
        self
    }

    /// CUDA: whether calls use programmatic dependent launch only where their own flags ask for it.
    /// Default: off, so that calls use it unless [`Norm::no_pdl`](crate::Norm::no_pdl) or the like
    /// is set.
    pub fn no_pdl(mut self, on: bool) -> Self {
        set_flag(&mut self.raw.flags, sys::FASTNORM_CONTEXT_NO_PDL, on);
        self
    }

    /// CUDA: a file that `fastnorm tune` wrote for this model of GPU and this version of the
    /// library. Calls of the shapes in it run on the kernels that were fastest there, with the same
    /// results to the bit. It is read once, by [`create`](Self::create).
    pub fn tuning_file(mut self, path: impl AsRef<Path>) -> Self {
        self.tuning_file = Some(path.as_ref().to_owned());
        self
    }

    /// Makes the context.
    ///
    /// # Errors
    /// [`Status::ARGUMENT`] for an option out of range, and for a bad tuning file: one that cannot
    /// be read, has a wrong line, or is of another version or architecture; [`Status::DEVICE`] if
    /// the device or a usable driver is missing; [`Status::UNSUPPORTED`] if the library has no
    /// kernels for the device or is older than this crate; [`Status::OUT_OF_MEMORY`].
    pub fn create(self) -> Result<Context> {
        check_library()?;
        let Self {
            device,
            mut raw,
            callbacks,
            tuning_file,
        } = self;
        let tuning_file = tuning_file.as_deref().map(c_path).transpose()?;
        raw.tuning_file = tuning_file.as_deref().map_or(ptr::null(), CStr::as_ptr);
        raw.log = callbacks.log.is_some().then_some(parallel::log as _);
        raw.parallel_for = callbacks
            .parallel
            .is_some()
            .then_some(parallel::parallel_for as _);
        let callbacks = if raw.log.is_some() || raw.parallel_for.is_some() {
            Box::into_raw(Box::new(callbacks))
        } else {
            ptr::null_mut()
        };
        raw.log_user = callbacks.cast();
        raw.parallel_user = callbacks.cast();
        let mut context = ptr::null_mut();
        // SAFETY: the options know their size, their callbacks live until the context is dropped,
        // and the path until the call returns.
        let created =
            check(unsafe { sys::fastnorm_context_create(device.raw(), &raw, &mut context) });
        let Some(raw) = NonNull::new(context) else {
            if !callbacks.is_null() {
                // SAFETY: from Box::into_raw, and no context has the address.
                drop(unsafe { Box::from_raw(callbacks) });
                parallel::settle()?;
            }
            created?;
            return Err(Error::new(Status::INTERNAL, "the library made no context"));
        };
        let context = Context {
            raw,
            device,
            callbacks,
        };
        if context.has_callbacks() {
            parallel::settle()?;
        }
        Ok(context)
    }
}

impl fmt::Debug for ContextOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextOptions")
            .field("device", &self.device)
            .field("threads", &self.raw.num_threads)
            .field("log", &self.callbacks.log.is_some())
            .field("parallel_for", &self.callbacks.parallel.is_some())
            .field(
                "dry_run",
                &(self.raw.flags & sys::FASTNORM_CONTEXT_DRY_RUN != 0),
            )
            .field(
                "no_pdl",
                &(self.raw.flags & sys::FASTNORM_CONTEXT_NO_PDL != 0),
            )
            .field("tuning_file", &self.tuning_file)
            .finish_non_exhaustive()
    }
}

/// The path as C has it, with a zero at its end only.
fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| {
        Error::new(
            Status::ARGUMENT,
            format!(
                "options.tuning_file is {:?}; required: a path without a zero byte",
                path.to_string_lossy()
            ),
        )
    })
}

/// A CUDA stream: a `cudaStream_t`, or a `CUstream`, which is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(pub(crate) *mut c_void);

// SAFETY: a CUDA stream may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// The legacy default stream; on the CPU the only one.
    pub const DEFAULT: Self = Self(ptr::null_mut());

    /// A stream of the caller's, or one of the CUDA runtime's special handles.
    ///
    /// # Safety
    /// The stream is there whenever a call is given this value or a copy of it.
    pub const unsafe fn from_raw(stream: *mut c_void) -> Self {
        Self(stream)
    }
}

/// Scratch memory on the device for one call at a time.
#[derive(Clone, Copy, Debug)]
pub struct Workspace {
    pub(crate) address: *mut c_void,
    pub(crate) bytes: usize,
}

// SAFETY: it is only handed on; what from_raw asks for holds on every thread.
unsafe impl Send for Workspace {}
// SAFETY: as above.
unsafe impl Sync for Workspace {}

impl Workspace {
    /// None. Where a call needs some, the CPU allocates it; on a GPU the call fails and the error
    /// says how much is needed.
    pub const NONE: Self = Self {
        address: ptr::null_mut(),
        bytes: 0,
    };

    /// Memory of the device: [`Info::workspace_bytes`](crate::Info::workspace_bytes) bytes or more,
    /// at a multiple of 256.
    ///
    /// # Safety
    /// From each call that is given this value until its work has run, the memory is there and
    /// nothing else uses it.
    pub const unsafe fn from_raw(address: *mut c_void, bytes: usize) -> Self {
        Self { address, bytes }
    }
}
