//! Every kind of failure, with the library's own text; and what this crate refuses itself.

use fastnorm::{
    check, device_count, norm_many, sys, Context, ContextOptions, DType, Device, DeviceType, Error,
    Norm, Result, Status, Stream, Tensor, TensorMut,
};
use std::ptr;

#[track_caller]
fn fails<T: std::fmt::Debug>(result: Result<T>, status: Status, text: &str) {
    let error = result.expect_err("it must fail");
    assert_eq!(error.status(), status, "{error}");
    assert!(
        error.message().contains(text),
        "{:?} lacks {text:?}",
        error.message()
    );
    assert_eq!(error.to_string(), error.message());
    assert_eq!(error.device_error(), 0);
}

#[test]
fn texts_are_the_library_s() -> Result<()> {
    let context = Context::cpu()?;
    let x = [1f32; 4];
    let mut y = [-1f32; 4];
    let tensor = Tensor::new(&x, &[1, 4])?;

    let mut check_call = |norm: Norm<'_>, status, text: &str| -> Result<()> {
        let mut norm = norm.y(TensorMut::new(&mut y, &[1, 4])?);
        fails(norm.run(&context), status, text);
        fails(norm.query(&context), status, text);
        fails(norm.prepare(&context), status, text);
        drop(norm);
        assert_eq!(y, [-1.0; 4], "nothing is written");
        Ok(())
    };
    check_call(Norm::rms(-1.0).x(tensor), Status::ARGUMENT, "eps is -1")?;
    check_call(Norm::rms(f32::NAN).x(tensor), Status::ARGUMENT, "eps is")?;
    check_call(Norm::rms(0.0), Status::ARGUMENT, "x is NULL")?;
    check_call(
        Norm::rms(0.0).x(tensor).weight_offset(1.0),
        Status::ARGUMENT,
        "weight_offset",
    )?;
    check_call(
        Norm::rms(0.0).x(Tensor::new(&x, &[2, 2])?),
        Status::SHAPE,
        "shape",
    )?;
    check_call(
        Norm::rms(0.0).x(Tensor::new(&x, &[1, 1, 1, 1, 4])?),
        Status::SHAPE,
        "y.shape is [1, 4]; required: x's, [1, 1, 1, 1, 4]",
    )?;
    check_call(
        Norm::rms(0.0).x(Tensor::new::<f32>(&[], &[1, 0])?),
        Status::SHAPE,
        "x.shape is [1, 0]",
    )?;
    check_call(
        Norm::rms(0.0).x(Tensor::new(&[1i8; 4], &[1, 4])?),
        Status::DTYPE,
        "x.dtype is i8",
    )?;
    let wide = [1f32; 8];
    let every_other = Tensor::strided(&wide, 0, &[1, 4], &[8, 2])?;
    check_call(
        Norm::rms(0.0).x(every_other),
        Status::LAYOUT,
        "x.strides[1] is 2",
    )?;
    let backwards = Tensor::strided(&wide, 7, &[1, 4], &[8, -1])?;
    check_call(
        Norm::rms(0.0).x(backwards),
        Status::LAYOUT,
        "x.strides[1] is -1",
    )?;
    check_call(
        Norm::rms(0.0).x(tensor).pdl_constant_weights(true),
        Status::ARGUMENT,
        "flags is 0x4; required: FASTNORM_NORM_PDL_WAIT (1) with FASTNORM_NORM_PDL_CONSTANT_WEIGHTS (4)",
    )?;
    check_call(
        Norm::rms(0.0)
            .x(tensor)
            .pdl_trigger(true)
            .pdl_constant_weights(true),
        Status::ARGUMENT,
        "flags is 0x6",
    )?;
    // SAFETY: a call on the CPU refuses it.
    let elsewhere =
        unsafe { Tensor::from_device(Device::cuda(0), x.as_ptr().cast(), DType::F32, &[1, 4])? };
    check_call(
        Norm::rms(0.0).x(elsewhere),
        Status::DEVICE,
        "x is on device CUDA:0",
    )?;
    // SAFETY: a call on the CPU refuses it.
    let stream = unsafe { Stream::from_raw(ptr::NonNull::dangling().as_ptr()) };
    let mut z = [1f32; 4];
    let mut norm = Norm::rms(0.0).x_in_place(TensorMut::new(&mut z, &[1, 4])?);
    fails(norm.run_on(&context, stream), Status::ARGUMENT, "stream");
    fails(
        Norm::rms(0.0).x(tensor).run(&context),
        Status::ARGUMENT,
        "y is NULL",
    );
    Ok(())
}

#[test]
fn more_rows_than_a_grid_holds() -> Result<()> {
    let device = Device::cuda(0);
    let gpu = ContextOptions::new(device).dry_run(90).create()?;
    let (x, y) = (0x1000_0000_0000_usize, 0x2000_0000_0000_usize);
    let shape = [1 << 33, 4];
    // SAFETY: a dry run touches no memory.
    let mut norm = unsafe {
        Norm::rms(0.0)
            .x(Tensor::from_device(
                device,
                x as *const _,
                DType::F32,
                &shape,
            )?)
            .y(TensorMut::from_device(
                device,
                y as *mut _,
                DType::F32,
                &shape,
            )?)
    };
    fails(
        norm.run(&gpu),
        Status::UNSUPPORTED,
        "x has 8589934592 rows; a call takes ",
    );
    Ok(())
}

/// Every set of flags that the library takes gives the bits that none gives.
#[test]
fn flags_change_no_result() -> Result<()> {
    let context = Context::cpu()?;
    let x = [1f32, 2.0, 3.0, 4.0];
    let run = |flags: u32| -> Result<[f32; 4]> {
        let mut y = [-1f32; 4];
        Norm::rms(0.0)
            .x(Tensor::new(&x, &[1, 4])?)
            .y(TensorMut::new(&mut y, &[1, 4])?)
            .pdl_wait(flags & 1 != 0)
            .pdl_trigger(flags & 2 != 0)
            .pdl_constant_weights(flags & 4 != 0)
            .run(&context)?;
        Ok(y)
    };
    let plain = run(0)?;
    for flags in [1, 2, 3, 5, 7] {
        assert_eq!(run(flags)?, plain, "flags {flags}");
    }
    Ok(())
}

#[test]
fn misaligned_bytes() -> Result<()> {
    let context = Context::cpu()?;
    let numbers = [0f32; 5];
    // SAFETY: floats are bytes.
    let bytes = unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast::<u8>(), 20) };
    let mut y = [0f32; 4];
    let mut norm = Norm::rms(1.0)
        .x(Tensor::from_bytes(&bytes[1..17], DType::F32, &[1, 4])?)
        .y(TensorMut::new(&mut y, &[1, 4])?);
    fails(norm.run(&context), Status::LAYOUT, "x");
    Ok(())
}

#[test]
fn an_output_that_overlaps_itself() -> Result<()> {
    let context = Context::cpu()?;
    let (x, mut y) = ([1f32; 8], [0f32; 4]);
    let folded = TensorMut::strided(&mut y, 0, &[2, 4], &[0, 1])?;
    let mut norm = Norm::rms(0.0).x(Tensor::new(&x, &[2, 4])?).y(folded);
    fails(norm.run(&context), Status::LAYOUT, "y");
    Ok(())
}

#[test]
fn parts_of_many() -> Result<()> {
    let context = Context::cpu()?;
    let (mut a, mut b) = ([1f32; 4], [1f32; 4]);
    let mut parts = [
        Norm::rms(0.0).x_in_place(TensorMut::new(&mut a, &[1, 4])?),
        Norm::rms(-1.0).x_in_place(TensorMut::new(&mut b, &[1, 4])?),
    ];
    fails(
        norm_many(&context, &mut parts),
        Status::ARGUMENT,
        "args[1].eps is -1",
    );
    let mut buffers = [[1f32; 4]; 9];
    let tensors = buffers.iter_mut().map(|b| TensorMut::new(b, &[1, 4]));
    let mut nine: Vec<_> = tensors
        .map(|t| t.map(|t| Norm::rms(0.0).x_in_place(t)))
        .collect::<Result<_>>()?;
    fails(
        norm_many(&context, &mut nine),
        Status::ARGUMENT,
        "count is 9",
    );
    Ok(())
}

#[test]
fn contexts_and_devices() {
    fails(
        Context::new(Device {
            device_type: DeviceType::CPU,
            id: 1,
        }),
        Status::DEVICE,
        "device.device_id is 1",
    );
    let unknown = DeviceType::from_code(9);
    fails(
        Context::new(Device {
            device_type: unknown,
            id: 0,
        }),
        Status::ARGUMENT,
        "device.device_type is 9",
    );
    fails(device_count(unknown), Status::ARGUMENT, "device_type is 9");
    fails(
        Device {
            device_type: DeviceType::CPU,
            id: 3,
        }
        .describe(),
        Status::DEVICE,
        "3",
    );
    let cpu = || ContextOptions::new(Device::CPU);
    fails(
        cpu().threads(1025).create(),
        Status::ARGUMENT,
        "options.num_threads is 1025",
    );
    fails(
        cpu().threads(usize::MAX).create(),
        Status::ARGUMENT,
        "options.num_threads is 2147483647",
    );
    fails(
        cpu().dry_run(90).create(),
        Status::ARGUMENT,
        "options.dry_run_capability is 90",
    );
    let old = ContextOptions::new(Device::cuda(0)).dry_run(70);
    fails(
        old.create(),
        Status::UNSUPPORTED,
        "dry_run_capability is 70",
    );
    let gpu = || ContextOptions::new(Device::cuda(0)).dry_run(90);
    fails(
        gpu().tuning_file("/nowhere/at/all").create(),
        Status::ARGUMENT,
        "options.tuning_file is \"/nowhere/at/all\", which cannot be read (",
    );
    fails(
        gpu().tuning_file("/dev/null\0").create(),
        Status::ARGUMENT,
        "options.tuning_file is \"/dev/null\\0\"; required: a path without a zero byte",
    );
    fails(
        cpu().tuning_file("/nowhere/at/all").create(),
        Status::ARGUMENT,
        "options.tuning_file is \"/nowhere/at/all\" and the device a CPU; required: NULL",
    );
    let far = Context::cuda(9999).expect_err("there are fewer");
    assert_eq!(far.status().kind(), Status::DEVICE);
    assert!(far.message().contains("required"), "{far}");
}

/// What the compiler cannot refuse and the library must not see.
#[test]
fn buffers_that_do_not_fit() {
    let mut numbers = [1f32; 12];
    let text = "the buffer has 12 elements, shape [2, 7] of f32 needs 14";
    fails(Tensor::new(&numbers, &[2, 7]), Status::SHAPE, text);
    fails(Tensor::new(&numbers, &[2, 5]), Status::SHAPE, "needs 10");
    fails(
        Tensor::new(&numbers, &[]),
        Status::SHAPE,
        "shape [] of f32 needs 1",
    );
    fails(
        TensorMut::new(&mut numbers, &[usize::MAX, 2]),
        Status::SHAPE,
        "more than there can be",
    );
    fails(
        Tensor::new(&numbers, &[1, 1, 1, 1, 1, 1, 1, 1, 12]),
        Status::SHAPE,
        "has 9 dimensions",
    );
    fails(
        Tensor::new::<f32>(&[], &[0, usize::MAX]),
        Status::SHAPE,
        "an extent is 18446744073709551615",
    );
    fails(
        Tensor::from_bytes(&[0; 7], DType::F16, &[4]),
        Status::SHAPE,
        "the buffer has 7 bytes",
    );
    assert!(
        Tensor::from_bytes(&[0; 4], DType::F4_E2M1, &[7]).is_ok(),
        "two numbers to a byte"
    );
    fails(
        Tensor::from_bytes(&[0; 5], DType::F4_E2M1, &[3, 3]),
        Status::LAYOUT,
        "rows of 3 f4_e2m1fn elements are no whole bytes",
    );
    let leaves = "leaves the buffer of 12 elements";
    fails(
        Tensor::strided(&numbers, 0, &[3, 4], &[5, 1]),
        Status::LAYOUT,
        leaves,
    );
    fails(
        Tensor::strided(&numbers, 1, &[3, 4], &[4, 1]),
        Status::LAYOUT,
        leaves,
    );
    fails(
        Tensor::strided(&numbers, 3, &[2, 4], &[-4, 1]),
        Status::LAYOUT,
        leaves,
    );
    fails(
        Tensor::strided(&numbers, 0, &[3, 4], &[isize::MAX, 1]),
        Status::LAYOUT,
        leaves,
    );
    fails(
        Tensor::strided(&numbers, usize::MAX, &[1], &[1]),
        Status::LAYOUT,
        leaves,
    );
    fails(
        Tensor::strided(&numbers, 0, &[3, 4], &[4]),
        Status::SHAPE,
        "there are 1 strides for shape [3, 4]",
    );
    assert!(
        Tensor::strided(&numbers, 99, &[0, 4], &[4, 1]).is_ok(),
        "no element is touched"
    );
    let tensor = || Tensor::new(&numbers, &[3, 4]);
    fails(
        tensor().and_then(|t| t.narrow(2, 0..1)),
        Status::SHAPE,
        "there is no 0..1 of dimension 2",
    );
    fails(
        tensor().and_then(|t| t.narrow(1, 2..5)),
        Status::SHAPE,
        "there is no 2..5 of dimension 1",
    );
    let turned = std::ops::Range { start: 2, end: 1 };
    fails(
        tensor().and_then(|t| t.narrow(1, turned)),
        Status::SHAPE,
        "there is no 2..1",
    );
    let packed = Tensor::from_bytes(&[0; 4], DType::F4_E2M1, &[2, 4]);
    fails(
        packed.and_then(|t| t.narrow(1, 0..2)),
        Status::LAYOUT,
        "no whole bytes",
    );
    let folded = TensorMut::strided(&mut numbers, 0, &[3, 4], &[2, 1]);
    fails(
        folded.and_then(|t| t.split(0, 1)),
        Status::LAYOUT,
        "could share elements",
    );
    let whole = TensorMut::new(&mut numbers, &[3, 4]);
    fails(
        whole.and_then(|t| t.split(0, 4)),
        Status::SHAPE,
        "there is no",
    );
}

#[test]
fn tensors_of_the_c_abi() -> Result<()> {
    let numbers = [3f32, 4.0, 0.0, 0.0];
    let shape = [1i64, 4];
    let mut raw = sys::fastnorm_tensor {
        data: numbers.as_ptr().cast_mut().cast(),
        device_type: DeviceType::CPU.code(),
        ndim: 2,
        dtype: sys::fastnorm_dtype_of(sys::FASTNORM_DTYPE_F32),
        shape: shape.as_ptr(),
        ..sys::fastnorm_tensor::new()
    };
    // SAFETY: it describes `numbers`.
    let tensor = unsafe { Tensor::from_raw(&raw)? };
    assert_eq!(
        (tensor.shape(), tensor.strides(), tensor.dtype()),
        (&shape[..], None, DType::F32)
    );
    let mut y = [0f32; 4];
    Norm::rms(0.0)
        .x(tensor)
        .y(TensorMut::new(&mut y, &[1, 4])?)
        .run(&Context::cpu()?)?;
    assert_eq!(y, [1.2, 1.6, 0.0, 0.0]);
    let nine = [1i64; 9];
    raw.ndim = 9;
    raw.shape = nine.as_ptr();
    // SAFETY: nine numbers are there.
    fails(
        unsafe { Tensor::from_raw(&raw) },
        Status::SHAPE,
        "has 9 dimensions",
    );
    raw.ndim = -1;
    // SAFETY: nothing is read.
    fails(
        unsafe { Tensor::from_raw(&raw) },
        Status::SHAPE,
        "ndim is -1",
    );
    raw.ndim = 2;
    raw.shape = ptr::null();
    // SAFETY: nothing is read.
    fails(
        unsafe { Tensor::from_raw(&raw) },
        Status::ARGUMENT,
        "shape is NULL",
    );
    Ok(())
}

#[test]
fn statuses() {
    let pinned = [
        (Status::OK, 0, "FASTNORM_OK"),
        (Status::ARGUMENT, 10, "FASTNORM_ERROR_ARGUMENT"),
        (Status::SHAPE, 20, "FASTNORM_ERROR_SHAPE"),
        (Status::DTYPE, 30, "FASTNORM_ERROR_DTYPE"),
        (Status::LAYOUT, 40, "FASTNORM_ERROR_LAYOUT"),
        (Status::UNSUPPORTED, 50, "FASTNORM_ERROR_UNSUPPORTED"),
        (Status::DEVICE, 60, "FASTNORM_ERROR_DEVICE"),
        (Status::OUT_OF_MEMORY, 70, "FASTNORM_ERROR_OUT_OF_MEMORY"),
        (Status::INTERNAL, 80, "FASTNORM_ERROR_INTERNAL"),
    ];
    for (status, code, name) in pinned {
        assert_eq!((status.code(), status.name()), (code, name));
        assert_eq!(
            Status::from_code(code + 7).kind(),
            status,
            "a newer one of the decade"
        );
    }
    assert_eq!(Status::from_code(1000).to_string(), "unknown status");
    assert_eq!(format!("{:?}", Status::SHAPE), "FASTNORM_ERROR_SHAPE (20)");
}

#[test]
fn errors_are_ordinary() {
    fn is_error<T: std::error::Error + Clone + Send + Sync + 'static>() {}
    is_error::<Error>();
    // SAFETY: the null context is refused.
    let status = unsafe { sys::fastnorm_norm_prepare(ptr::null_mut(), ptr::null()) };
    fails(check(status), Status::ARGUMENT, "context is NULL");
    assert_eq!(check(sys::FASTNORM_OK), Ok(()));
}
