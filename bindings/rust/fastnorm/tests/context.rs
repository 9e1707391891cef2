//! Contexts: options, callbacks, dry runs, what is known of devices.

use fastnorm::{
    build_info, device_count, kernels, numeric_version, sys, version, version_string, Context,
    ContextOptions, DType, Device, DeviceType, LogLevel, Norm, Result, Rounding, Status, Stream,
    Tensor, TensorMut, Work, Workspace, REQUIRED_VERSION,
};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// More than one range of work.
const ROWS: usize = 64;
const N: usize = 16384;

fn numbers() -> Vec<f32> {
    (0..ROWS * N).map(|i| (i % 1013) as f32 - 500.0).collect()
}

fn normalised(context: &Context) -> Result<Vec<f32>> {
    let mut x = numbers();
    Norm::rms(1e-6)
        .x_in_place(TensorMut::new(&mut x, &[ROWS, N])?)
        .run(context)?;
    Ok(x)
}

#[test]
fn versions() {
    assert!(version() >= REQUIRED_VERSION);
    assert!(build_info().contains(version_string()));
    assert_eq!(numeric_version(), 2);
    let parts: Vec<i32> = version_string()
        .split('.')
        .map(|p| p.parse().expect("a number"))
        .collect();
    assert_eq!(version(), parts[0] * 10000 + parts[1] * 100 + parts[2]);
}

#[test]
fn devices() -> Result<()> {
    assert_eq!(device_count(DeviceType::CPU)?, 1);
    assert!(device_count(DeviceType::CUDA)? >= 0);
    let cpu = Device::CPU.describe()?;
    assert!(
        !cpu.name.is_empty() && cpu.multiprocessors >= 1 && cpu.l2_bytes >= 65536,
        "{cpu:?}"
    );
    assert_eq!(
        (
            cpu.capability,
            cpu.memory_bytes,
            cpu.driver_version,
            cpu.runtime_version
        ),
        (0, 0, 0, 0)
    );
    assert!(kernels().any(|kernel| kernel.arch == cpu.kernel_arch));
    assert!(kernels().count() >= 24);
    assert_eq!(Context::cpu()?.device(), Device::CPU);
    Ok(())
}

#[test]
fn threads_do_not_change_results() -> Result<()> {
    let alone = normalised(&Context::cpu()?)?;
    let context = ContextOptions::new(Device::CPU).threads(3).create()?;
    assert_eq!(normalised(&context)?, alone);
    Ok(())
}

#[test]
fn logging() -> Result<()> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let context = ContextOptions::new(Device::CPU)
        .log(move |level, text| sink.lock().unwrap().push((level, text.to_owned())))
        .create()?;
    let lines_now = lines.lock().unwrap().clone();
    assert!(!lines_now.is_empty(), "which instruction set was chosen");
    for (level, text) in lines_now {
        assert!(
            (LogLevel::ERROR..=LogLevel::DEBUG).contains(&level)
                && !text.is_empty()
                && !text.contains('\n')
        );
    }
    drop(context);
    assert_eq!(
        Arc::strong_count(&lines),
        1,
        "the closure is gone with the context"
    );
    Ok(())
}

#[test]
fn a_panic_in_the_log_goes_on() {
    let held = Arc::new(());
    let inside = Arc::clone(&held);
    let options = ContextOptions::new(Device::CPU).log(move |_, _| {
        let _inside = &inside;
        panic!("from the log");
    });
    let payload =
        catch_unwind(AssertUnwindSafe(|| options.create().map(drop))).expect_err("it panics");
    assert_eq!(payload.downcast_ref(), Some(&"from the log"));
    assert_eq!(Arc::strong_count(&held), 1, "nothing is left behind");
    assert!(Context::cpu().is_ok(), "and the next is as ever");
}

#[test]
fn a_log_of_a_context_that_is_refused() {
    let held = Arc::new(());
    let inside = Arc::clone(&held);
    let options = ContextOptions::new(Device::CPU)
        .threads(5000)
        .log(move |_, _| drop(Arc::clone(&inside)));
    assert_eq!(
        options.create().expect_err("too many").status(),
        Status::ARGUMENT
    );
    assert_eq!(Arc::strong_count(&held), 1);
}

fn with_loop(parallel: impl Fn(Work<'_>) + Send + Sync + 'static) -> Result<Context> {
    ContextOptions::new(Device::CPU)
        .parallel_for(parallel)
        .create()
}

#[test]
fn loops_of_the_caller() -> Result<()> {
    fn halves(work: Work<'_>) {
        if work.len() <= work.grain() {
            return work.run();
        }
        let middle = work.len() / 2;
        let (left, right) = work.split_at(middle);
        std::thread::scope(|s| {
            s.spawn(|| halves(left));
            halves(right);
        });
    }
    let alone = normalised(&Context::cpu()?)?;
    assert_eq!(normalised(&with_loop(halves)?)?, alone, "recursive");
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let backwards = with_loop(move |work| {
        seen.fetch_add(1, Ordering::Relaxed);
        assert!(!work.is_empty() && work.range().start == 0 && work.range().len() == work.len());
        let (_, nothing) = (work.grain(), 0);
        let mut pieces: Vec<Work<'_>> = work.chunks(nothing).collect();
        pieces.reverse();
        pieces.into_iter().for_each(Work::run);
    })?;
    assert_eq!(
        normalised(&backwards)?,
        alone,
        "a unit at a time, from the end"
    );
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let threads = with_loop(|work| {
        let size = work.len().div_ceil(3);
        std::thread::scope(|s| {
            work.chunks(size)
                .for_each(|piece| drop(s.spawn(|| piece.run())))
        });
    })?;
    assert_eq!(normalised(&threads)?, alone, "three threads");
    Ok(())
}

#[test]
fn work_that_is_not_done_is_an_error() -> Result<()> {
    let context = with_loop(|work| {
        let half = work.len() / 2;
        let (first, rest) = work.split_at(half);
        first.run();
        drop(rest);
    })?;
    let error = normalised(&context).expect_err("half is missing");
    assert_eq!(error.status(), Status::ARGUMENT);
    assert!(
        error.message().starts_with("parallel_for returned with"),
        "{error}"
    );
    Ok(())
}

#[test]
fn a_panic_in_the_loop_goes_on() -> Result<()> {
    let fails = Arc::new(AtomicBool::new(true));
    let now = Arc::clone(&fails);
    let context = with_loop(move |work| {
        assert!(!now.load(Ordering::Relaxed), "from the loop");
        work.run();
    })?;
    let payload =
        catch_unwind(AssertUnwindSafe(|| normalised(&context).map(drop))).expect_err("it panics");
    assert_eq!(payload.downcast_ref(), Some(&"from the loop"));
    fails.store(false, Ordering::Relaxed);
    assert_eq!(
        normalised(&context)?,
        normalised(&Context::cpu()?)?,
        "the context is as before"
    );
    Ok(())
}

/// A call of the C ABI itself, in place.
fn called(context: &Context, x: &mut [f32]) -> Result<()> {
    let shape = [ROWS as i64, N as i64];
    let tensor = sys::fastnorm_tensor {
        data: x.as_mut_ptr().cast(),
        device_type: DeviceType::CPU.code(),
        ndim: 2,
        dtype: DType::F32.raw(),
        shape: shape.as_ptr(),
        ..sys::fastnorm_tensor::new()
    };
    let args = sys::fastnorm_norm_args {
        eps: 1e-6,
        rounding: Rounding::Once.raw(),
        x: &tensor,
        y: &tensor,
        ..sys::fastnorm_norm_args::new()
    };
    let none = std::ptr::null_mut();
    // SAFETY: the tensor covers x, and the call ends before x is read.
    context.check(unsafe { sys::fastnorm_norm(context.as_ptr(), &args, none, 0, none) })
}

#[test]
fn calls_of_the_c_abi() -> Result<()> {
    let mut x = numbers();
    called(&with_loop(|work| work.run())?, &mut x)?;
    assert_eq!(x, normalised(&Context::cpu()?)?);
    let error = called(&with_loop(|_| ())?, &mut x).expect_err("nothing is done");
    assert!(
        error
            .message()
            .starts_with("parallel_for returned with 0 of"),
        "{error}"
    );
    let panics = with_loop(|_| panic!("from the loop"))?;
    let payload = catch_unwind(AssertUnwindSafe(|| called(&panics, &mut x))).expect_err("it does");
    assert_eq!(payload.downcast_ref(), Some(&"from the loop"));
    Ok(())
}

#[test]
fn dry_runs() -> Result<()> {
    for capability in [80, 90, 100, 120] {
        let gpu = ContextOptions::new(Device::cuda(0))
            .dry_run(capability)
            .create()?;
        let at = |address: usize| address as *mut std::ffi::c_void;
        // SAFETY: a dry run touches no memory.
        let mut norm = unsafe {
            Norm::rms(1e-6)
                .x(Tensor::from_device(
                    gpu.device(),
                    at(0x1000_0000),
                    DType::BF16,
                    &[128, 4096],
                )?)
                .weight(Tensor::from_device(
                    gpu.device(),
                    at(0x2000_0000),
                    DType::BF16,
                    &[4096],
                )?)
                .y(TensorMut::from_device_strided(
                    gpu.device(),
                    at(0x3000_0000),
                    DType::BF16,
                    &[128, 4096],
                    &[8192, 1],
                )?)
        };
        let info = norm.query(&gpu)?;
        assert_eq!(
            (info.launches, info.bytes_read),
            (1, (128 * 4096 + 4096) * 2)
        );
        assert!(!info.kernel.is_empty() && info.blocks >= 1);
        norm.prepare(&gpu)?;
        norm.run(&gpu)?;
        // SAFETY: a dry run uses neither stream nor workspace.
        let (stream, workspace) = unsafe {
            (
                Stream::from_raw(at(64)),
                Workspace::from_raw(at(0x4000_0000), 256),
            )
        };
        norm.run_on(&gpu, stream)?;
        norm.run_with(&gpu, stream, workspace)?;
        let x = [1f32; 4];
        let error = Norm::rms(0.0)
            .x(Tensor::new(&x, &[1, 4])?)
            .run(&gpu)
            .expect_err("memory of the CPU");
        assert!(
            [Status::DEVICE, Status::ARGUMENT].contains(&error.status()),
            "{error}"
        );
    }
    let cpu = ContextOptions::new(Device::CPU).dry_run(0).create()?;
    assert_eq!(normalised(&cpu)?, numbers(), "nothing is written");
    Ok(())
}

fn kernel(gpu: &Context, rows: usize) -> Result<&'static str> {
    let (x, y) = (0x1000_0000 as *const _, 0x2000_0000 as *mut _);
    let shape = [rows, 4096];
    // SAFETY: a dry run touches no memory.
    let norm = unsafe {
        Norm::rms(0.0)
            .x(Tensor::from_device(gpu.device(), x, DType::BF16, &shape)?)
            .y(TensorMut::from_device(
                gpu.device(),
                y,
                DType::BF16,
                &shape,
            )?)
    };
    Ok(norm.query(gpu)?.kernel)
}

#[test]
fn tuning_files() -> Result<()> {
    const TUNED: &str = "bf16 plain rms once store vector 256x4";
    let path = std::env::temp_dir().join(format!("fastnorm-{}.tuning", std::process::id()));
    let text = format!(
        "fastnorm tuning 2\nlibrary {}\narch sm_90\n\
         KIND(b16, plain, rms, own_dtype, y, aligned, lean | full, rows)\n\
         ROWS(4096, 4096, 4, 7, 256, 4, 1, full)\n",
        version_string()
    );
    std::fs::write(&path, text).expect("a file");
    let dry = || ContextOptions::new(Device::cuda(0)).dry_run(90);
    let tuned = dry().tuning_file(&path).create();
    std::fs::remove_file(&path).expect("it is read once");
    let (tuned, untuned) = (tuned?, dry().create()?);
    assert_eq!(kernel(&tuned, 4)?, TUNED);
    assert_eq!(kernel(&tuned, 8)?, kernel(&untuned, 8)?);
    assert_ne!(kernel(&untuned, 4)?, TUNED);
    assert_ne!(kernel(&untuned, 8)?, TUNED);
    Ok(())
}

#[test]
fn debug_forms() -> Result<()> {
    assert_eq!(
        format!("{:?}", Context::cpu()?),
        "Context { device: Device { device_type: CPU, id: 0 }, .. }"
    );
    assert_eq!(
        format!("{:?}", [LogLevel::ERROR, LogLevel::DEBUG]),
        "[ERROR, DEBUG]"
    );
    let options = ContextOptions::new(Device::cuda(1))
        .log(|_, _| ())
        .dry_run(90)
        .tuning_file("gpu.tuning");
    assert!(
        format!("{options:?}").contains(
            "log: true, parallel_for: false, dry_run: true, no_pdl: false, \
             tuning_file: Some(\"gpu.tuning\")"
        ),
        "{options:?}"
    );
    assert_eq!(
        format!(
            "{:?}",
            DeviceType::from_code(sys::FASTNORM_DEVICE_CUDA_MANAGED as i32)
        ),
        "CUDA_MANAGED"
    );
    Ok(())
}
