//! Faults that tests/preload/stub.cpp brings about, and a library that is too old. test.py builds
//! the stub and runs this with LD_PRELOAD.

use fastnorm::{
    check, device_count, norm_many, sys, Context, ContextOptions, DType, Device, DeviceType, Norm,
    Result, Status, Stream, TensorMut, Workspace, REQUIRED_VERSION,
};
use std::ffi::{c_char, c_void, CStr};
use std::ptr;

extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// A function of the stub.
fn stub(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with a zero; null is the default order of search.
    let found = unsafe { dlsym(ptr::null_mut(), name.as_ptr()) };
    assert!(!found.is_null(), "test.py preloads the stub");
    found
}

#[test]
fn out_of_memory() -> Result<()> {
    let fail_next_malloc = stub(c"fastnorm_stub_fail_next_malloc");
    // SAFETY: that is its type.
    let fail_next_malloc: extern "C" fn() = unsafe { std::mem::transmute(fail_next_malloc) };
    drop(Context::cpu()?);
    fail_next_malloc();
    let error = Context::cpu().expect_err("no memory");
    assert_eq!(error.status(), Status::OUT_OF_MEMORY);
    assert!(!error.message().is_empty());
    assert_eq!(error.device_error(), 0);
    println!("{}: {error}", error.status());
    Context::cpu().map(drop)
}

/// An exception of C++ out of a callback stops at the library's edge.
#[test]
fn internal() -> Result<()> {
    let throwing_loop = stub(c"fastnorm_stub_throwing_loop");
    let options = sys::fastnorm_context_options {
        // SAFETY: that is its type.
        parallel_for: unsafe {
            std::mem::transmute::<*mut c_void, sys::fastnorm_parallel_for_fn>(throwing_loop)
        },
        ..sys::fastnorm_context_options::new()
    };
    let cpu = sys::fastnorm_device {
        device_type: DeviceType::CPU.code(),
        device_id: 0,
    };
    let (mut context, mut x) = (ptr::null_mut(), vec![1f32; 3 * 65536]);
    let shape = [3i64, 65536];
    let tensor = sys::fastnorm_tensor {
        data: x.as_mut_ptr().cast(),
        device_type: cpu.device_type,
        ndim: 2,
        dtype: sys::fastnorm_dtype_of(sys::FASTNORM_DTYPE_F32),
        shape: shape.as_ptr(),
        ..sys::fastnorm_tensor::new()
    };
    let args = sys::fastnorm_norm_args {
        x: &tensor,
        y: &tensor,
        ..sys::fastnorm_norm_args::new()
    };
    // SAFETY: everything lives until the context is destroyed.
    let status = unsafe {
        check(sys::fastnorm_context_create(cpu, &options, &mut context))?;
        sys::fastnorm_norm(context, &args, ptr::null_mut(), 0, ptr::null_mut())
    };
    let error = check(status).expect_err("the loop throws");
    assert_eq!(error.status(), Status::INTERNAL);
    assert!(!error.message().is_empty());
    println!("{}: {error}", error.status());
    // SAFETY: no call is under way.
    unsafe { sys::fastnorm_context_destroy(context) };
    Ok(())
}

/// A library whose calls need a workspace: on the CPU they get one, elsewhere the size is told.
#[test]
fn workspaces() -> Result<()> {
    let need_workspace = stub(c"fastnorm_stub_need_workspace");
    // SAFETY: that is its type.
    let need_workspace: extern "C" fn(usize) = unsafe { std::mem::transmute(need_workspace) };
    let cpu = Context::cpu()?;
    let gpu = ContextOptions::new(Device::cuda(0)).dry_run(90).create()?;
    let (mut x, mut y) = ([2f32; 8], [3f32; 8]);
    let mut norm = Norm::rms(0.0).x_in_place(TensorMut::new(&mut x, &[2, 4])?);
    need_workspace(1000);
    assert_eq!(norm.query(&cpu)?.workspace_bytes, 1000);
    norm.run(&cpu)?;
    norm_many(
        &cpu,
        &mut [Norm::rms(0.0).x_in_place(TensorMut::new(&mut y, &[2, 4])?)],
    )?;

    let address = 0x1000_0000_usize as *mut c_void;
    // SAFETY: a dry run touches no memory.
    let device = unsafe { TensorMut::from_device(gpu.device(), address, DType::F32, &[2, 4])? };
    let mut far = Norm::rms(0.0).x_in_place(device);
    let error = far.run(&gpu).expect_err("none was given");
    assert_eq!(error.status(), Status::ARGUMENT);
    assert_eq!(far.query(&gpu)?.workspace_bytes, 1000);
    // SAFETY: a dry run touches no memory.
    let workspace = unsafe { Workspace::from_raw(address, 1000) };
    far.run_with(&gpu, Stream::DEFAULT, workspace)?;
    // What is wrong with a call is told, workspace or not.
    let error = Norm::rms(-1.0).run(&cpu).expect_err("no x");
    assert_eq!(error.status(), Status::ARGUMENT);
    need_workspace(0);
    assert_eq!((x, y), ([1.0; 8], [1.0; 8]));
    Ok(())
}

/// FASTNORM_STUB_VERSION is the version of the library, if it is set.
#[test]
fn versions_that_fit() {
    stub(c"fastnorm_stub_need_workspace");
    if let Ok(text) = std::env::var("FASTNORM_STUB_VERSION") {
        assert_eq!(fastnorm::version().to_string(), text);
    }
    let results = [
        Context::cpu().map(drop),
        device_count(DeviceType::CPU).map(drop),
        Device::CPU.describe().map(drop),
    ];
    for result in results {
        if fastnorm::version() >= REQUIRED_VERSION {
            assert_eq!(result, Ok(()), "a newer library is fine");
            continue;
        }
        let error = result.expect_err("the library is too old");
        assert_eq!(error.status(), Status::UNSUPPORTED);
        assert!(
            error
                .message()
                .starts_with("the loaded libfastnorm is version 0.0.9"),
            "{error}"
        );
        println!("{error}");
    }
}
