//! How a call says that it failed, and why.

use crate::{static_text, sys};
use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;

/// What kind of failure it was. A newer library may return values that have no constant here; they
/// keep to the decades, so [`Status::kind`] always is one that has.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(sys::fastnorm_status);

impl Status {
    /// Success.
    pub const OK: Self = Self(sys::FASTNORM_OK);
    /// An argument is missing, out of range or not a known value.
    pub const ARGUMENT: Self = Self(sys::FASTNORM_ERROR_ARGUMENT);
    /// Shapes are wrong or do not fit each other.
    pub const SHAPE: Self = Self(sys::FASTNORM_ERROR_SHAPE);
    /// A tensor's dtype is not one that its role allows.
    pub const DTYPE: Self = Self(sys::FASTNORM_ERROR_DTYPE);
    /// Strides, alignment or overlap of tensors are not allowed.
    pub const LAYOUT: Self = Self(sys::FASTNORM_ERROR_LAYOUT);
    /// Valid, but this build or device has no kernel for it.
    pub const UNSUPPORTED: Self = Self(sys::FASTNORM_ERROR_UNSUPPORTED);
    /// No such device, no usable driver, or the device reported an error.
    pub const DEVICE: Self = Self(sys::FASTNORM_ERROR_DEVICE);
    /// Host or device memory could not be had.
    pub const OUT_OF_MEMORY: Self = Self(sys::FASTNORM_ERROR_OUT_OF_MEMORY);
    /// A defect of the library.
    pub const INTERNAL: Self = Self(sys::FASTNORM_ERROR_INTERNAL);

    /// The status with this number in the C ABI.
    pub const fn from_code(code: u32) -> Self {
        Self(code)
    }

    /// Its number in the C ABI.
    pub const fn code(self) -> u32 {
        self.0
    }

    /// The constant of its decade: what to compare with.
    pub const fn kind(self) -> Self {
        Self(self.0 / 10 * 10)
    }

    /// Its name in the C ABI, such as `FASTNORM_ERROR_SHAPE`; `unknown status` for a value that the
    /// library does not have.
    pub fn name(self) -> &'static str {
        // SAFETY: any value is allowed.
        static_text(unsafe { sys::fastnorm_status_name(self.0) })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

/// A call that failed. Nothing was launched and nothing written, a fault of the device excepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: Status,
    message: Cow<'static, str>,
    #[allow(clippy::struct_field_names)] // the C ABI's name
    device_error: i32,
}

/// What calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// What kind of failure it was.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Which argument was wrong, the value it had and what is required; for an unsupported
    /// combination the nearest one that exists.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The CUDA runtime's error code (`cudaError_t`) behind a [`Status::DEVICE`] or
    /// [`Status::OUT_OF_MEMORY`]; 0 where there is none.
    pub fn device_error(&self) -> i32 {
        self.device_error
    }

    /// An error that this crate found.
    pub(crate) fn new(status: Status, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            message: message.into(),
            device_error: 0,
        }
    }

    /// A failure of a library beside libfastnorm, whose text this is.
    #[cold]
    pub(crate) fn of_other(status: Status, message: String) -> Self {
        let mut error = Self::last(status);
        // Where it was libfastnorm that failed, the text is the same.
        if error.message != message {
            error.device_error = 0;
            error.message = Cow::Owned(message);
        }
        error
    }

    /// This error as one of several calls has it: with the call's index ahead of its message.
    pub(crate) fn of_call(mut self, index: usize) -> Self {
        self.message = Cow::Owned(format!("args[{index}]: {}", self.message));
        self
    }

    /// The calling thread's last failure in the library.
    #[cold]
    fn last(status: Status) -> Self {
        // SAFETY: the text ends with a zero and lives until this thread's next failing call.
        let message = unsafe { CStr::from_ptr(sys::fastnorm_last_error()) };
        let mut device_error = 0;
        if [Status::DEVICE, Status::OUT_OF_MEMORY].contains(&status.kind()) {
            // SAFETY: the function has no preconditions.
            device_error = unsafe { sys::fastnorm_last_device_error() };
        }
        let message = Cow::Owned(message.to_string_lossy().into_owned());
        Self {
            status,
            message,
            device_error,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// What a function of the library returned, as a result: for calls of [`sys`](crate::sys). To be
/// used on the thread that made the call, before it makes another, since the text is that of the
/// last failure.
///
/// # Errors
/// Any status but [`Status::OK`] is one.
#[inline]
pub fn check(status: sys::fastnorm_status) -> Result<()> {
    if status == sys::FASTNORM_OK {
        Ok(())
    } else {
        Err(Error::last(Status(status)))
    }
}
