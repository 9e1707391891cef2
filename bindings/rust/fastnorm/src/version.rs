//! Versions: of the library that is loaded, and of the one that is needed.

use crate::{static_text, sys, Error, Result, Status};

/// The oldest library that this crate works with: the one whose headers it was generated from. As
/// [`version`] counts.
pub const REQUIRED_VERSION: i32 = sys::FASTNORM_VERSION;

/// Version of the loaded library: major * 10000 + minor * 100 + patch.
pub fn version() -> i32 {
    // SAFETY: the function has no preconditions.
    unsafe { sys::fastnorm_version() }
}

/// Version of the loaded library as text, such as "0.1.0".
pub fn version_string() -> &'static str {
    // SAFETY: the function has no preconditions.
    static_text(unsafe { sys::fastnorm_version_string() })
}

/// What the loaded library contains, a "key: value" line each: compiler, CPU instruction sets, GPU
/// architectures. For people and logs.
pub fn build_info() -> &'static str {
    // SAFETY: the function has no preconditions.
    static_text(unsafe { sys::fastnorm_build_info() })
}

/// Version of the arithmetic: two libraries with the same number give the same bits for the same
/// call on the same backend.
pub fn numeric_version() -> i32 {
    // SAFETY: the function has no preconditions.
    unsafe { sys::fastnorm_numeric_version() }
}

/// Refuses a library that is older than this crate. One of another ABI has another soname, which
/// the loader does not find.
pub(crate) fn check_library() -> Result<()> {
    let found = version();
    if found >= REQUIRED_VERSION {
        return Ok(());
    }
    let text = |v: i32| format!("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
    Err(Error::new(
        Status::UNSUPPORTED,
        format!(
            "the loaded libfastnorm is version {}; this crate needs {} or later",
            text(found),
            text(REQUIRED_VERSION)
        ),
    ))
}
