//! Raw declarations of libfastnorm's C ABI. The crate `fastnorm` is the one to use; this one holds
//! what it is built on.
//!
//! Everything in this crate is generated from the C headers, comments included, but
//! [`fastnorm_dtype_of`], which the headers define inline. Assertions at compile time compare size
//! and offsets of every struct with those of a C compiler.
//!
//! This crate does not link libfastnorm_nccl. [`fastnorm_nccl_library`] has the addresses of its
//! functions, once who uses it has loaded it.
//!
//! build.rs finds the library with pkg-config. With the feature `static` it links the archive.

#![no_std]

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("libfastnorm supports 64-bit Linux only");

mod ffi;
mod nccl;

pub use ffi::*;
pub use nccl::*;

/// The dtype struct of an id.
#[inline]
pub const fn fastnorm_dtype_of(id: fastnorm_dtype_id) -> fastnorm_dtype {
    fastnorm_dtype {
        code: id as u8,
        bits: (id >> 8) as u8,
        lanes: (id >> 16) as u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtype_structs() {
        let f32 = fastnorm_dtype_of(FASTNORM_DTYPE_F32);
        assert_eq!((f32.code, f32.bits, f32.lanes), (2, 32, 1));
        let bf16 = fastnorm_dtype_of(FASTNORM_DTYPE_BF16);
        assert_eq!((bf16.code, bf16.bits, bf16.lanes), (4, 16, 1));
        let pair = fastnorm_dtype_of(FASTNORM_DTYPE_F4_E2M1FN_X2);
        assert_eq!((pair.code, pair.bits, pair.lanes), (17, 4, 2));
    }

    #[test]
    fn structs_know_their_size() {
        assert_eq!(
            fastnorm_norm_args::new().struct_size,
            size_of::<fastnorm_norm_args>()
        );
        assert_eq!(
            fastnorm_info::default().struct_size,
            size_of::<fastnorm_info>()
        );
        assert_eq!(fastnorm_tensor::new().ndim, 0);
    }

    #[test]
    fn functions_are_found_by_name() {
        // SAFETY: no function is called.
        let missing = unsafe {
            fastnorm_nccl_library::find(|name| {
                if name == c"fastnorm_nccl_peer" {
                    core::ptr::null()
                } else {
                    core::ptr::NonNull::dangling().as_ptr()
                }
            })
        };
        assert_eq!(missing.map(|_| ()), Err(c"fastnorm_nccl_peer"));
    }

    #[test]
    fn the_crate_has_the_version_of_the_headers() {
        let text = env!("CARGO_PKG_VERSION").split('.');
        let parts = [
            FASTNORM_VERSION_MAJOR,
            FASTNORM_VERSION_MINOR,
            FASTNORM_VERSION_PATCH,
        ];
        assert!(text.map(|part| part.parse()).eq(parts.map(Ok)));
    }

    #[test]
    #[cfg(not(miri))] // which calls no foreign functions
    fn the_library_answers() {
        // SAFETY: the function has no preconditions.
        assert!(unsafe { fastnorm_version() } >= FASTNORM_VERSION);
    }
}
