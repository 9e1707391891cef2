//! A libfastnorm_nccl that is missing, and libraries of its name that do not fit. A program of its
//! own, which test.py runs where the loader finds none.

use std::env;
use std::path::Path;
use std::ptr;

use fastnorm::{
    load_nccl, nccl_version, set_nccl_functions, Context, DType, NcclOptions, Result, Status,
    Stream,
};

fn refused<T>(result: Result<T>, status: Status, text: &str) {
    let error = result.err().unwrap_or_else(|| panic!("no error: {text}"));
    assert_eq!(error.status(), status, "{error}");
    assert!(error.message().contains(text), "{error}, not: {text}");
}

#[test]
fn missing_library() -> Result<()> {
    let context = Context::cpu()?;
    let stubs = env::var("NCCL_STUBS").expect("a folder of libraries that do not fit");
    let stub = |name: &str| Path::new(&stubs).join(name);
    for _ in 0..2 {
        let text = "libfastnorm_nccl.so.1 cannot be loaded: ";
        refused(nccl_version(), Status::UNSUPPORTED, text);
        // SAFETY: a communicator that is null is refused.
        let result = unsafe {
            NcclOptions::new(DType::F32, 8).create(&context, ptr::null_mut(), Stream::DEFAULT)
        };
        refused(result, Status::UNSUPPORTED, "-Dnccl=true");
        // SAFETY: it names none.
        let result = unsafe { set_nccl_functions(None) };
        refused(result, Status::UNSUPPORTED, text);
    }
    for (name, text) in [
        ("nothing.so", "nothing.so cannot be loaded: "),
        (
            "part.so",
            "part.so has no fastnorm_nccl_last_error; required: that of libfastnorm 0.",
        ),
        (
            "other.so",
            "other.so uses another copy of libfastnorm than this program",
        ),
    ] {
        refused(load_nccl(&stub(name)), Status::UNSUPPORTED, text);
    }
    let library = env::var("FASTNORM_TEST_NCCL_LIBRARY").expect("the library");
    load_nccl(Path::new(&library))?;
    load_nccl(&stub("nothing.so"))?; // it is loaded
                                     // SAFETY: it names none.
    unsafe { set_nccl_functions(None) }
}
