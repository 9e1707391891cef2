//! What a call costs over the C ABI's: RMSNorm with weight and residual, five tensors of rank 2.
//!
//! A dry run of a GPU checks and plans; the CPU has one row of 4 numbers. With
//! FASTNORM_TEST_DEVICE=cuda it is measured on a GPU, the launch included.
//!
//! `cargo bench`; the variants are interleaved, and the least of many short rounds is shown.

#[path = "../tests/common/memory.rs"]
mod memory;

use fastnorm::{bf16, sys, Context, ContextOptions, DType, Device, Error, Norm, Tensor, TensorMut};
use memory::{on_gpu, Buffer, TestStream};
use std::ffi::c_void;
use std::hint::black_box;
use std::ptr;
use std::time::Instant;

const ROUNDS: usize = 1001;
/// Few enough for a stream's queue.
const CALLS: u32 = 500;

/// Addresses of x, residual, weight, y.
type Addresses = [*mut c_void; 4];

const ROWS: usize = 1;

/// The structs of one call, as a C program has them.
struct Raw {
    shape: [i64; 2],
    tensors: [sys::fastnorm_tensor; 4],
    args: sys::fastnorm_norm_args,
}

impl Raw {
    fn new() -> Self {
        Self {
            shape: [0; 2],
            tensors: [sys::fastnorm_tensor::new(); 4],
            args: sys::fastnorm_norm_args::new(),
        }
    }

    #[inline(always)]
    fn fill(
        &mut self,
        device: Device,
        addresses: &Addresses,
        dtype: sys::fastnorm_dtype,
        n: usize,
    ) {
        self.shape = [ROWS as i64, n as i64];
        for (i, (tensor, &data)) in self.tensors.iter_mut().zip(addresses).enumerate() {
            let is_weight = i == 2;
            *tensor = sys::fastnorm_tensor {
                data,
                device_type: device.device_type.code(),
                device_id: device.id,
                ndim: if is_weight { 1 } else { 2 },
                dtype,
                shape: if is_weight {
                    &self.shape[1]
                } else {
                    &self.shape[0]
                },
                strides: ptr::null(),
                byte_offset: 0,
            };
        }
        self.args = sys::fastnorm_norm_args {
            eps: 1e-6,
            x: &self.tensors[0],
            residual: &self.tensors[1],
            residual_out: &self.tensors[1],
            weight: &self.tensors[2],
            y: &self.tensors[3],
            ..sys::fastnorm_norm_args::new()
        };
    }

    #[inline(always)]
    fn call(&self, context: &Context, stream: *mut c_void) {
        // SAFETY: `fill` has set addresses of memory, or the context is a dry run.
        let status =
            unsafe { sys::fastnorm_norm(context.as_ptr(), &self.args, ptr::null_mut(), 0, stream) };
        assert_eq!(status, sys::FASTNORM_OK);
    }
}

/// This call in the safe layer.
#[inline(always)]
fn norm<'a>(
    device: Device,
    addresses: &Addresses,
    dtype: DType,
    n: usize,
) -> Result<Norm<'a>, Error> {
    let [x, residual, weight, y] = *addresses;
    // SAFETY: memory of `main`, or a dry run.
    unsafe {
        Ok(Norm::rms(1e-6)
            .x(Tensor::from_device(device, x, dtype, &[ROWS, n])?)
            .residual_in_place(TensorMut::from_device(device, residual, dtype, &[ROWS, n])?)
            .weight(Tensor::from_device(device, weight, dtype, &[n])?)
            .y(TensorMut::from_device(device, y, dtype, &[ROWS, n])?))
    }
}

/// Nanoseconds a call.
fn time(mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..CALLS {
        call();
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}

/// The least of the rounds: what else the machine does only adds.
fn least(times: Vec<f64>) -> f64 {
    times.into_iter().fold(f64::INFINITY, f64::min)
}

fn compare(
    what: &str,
    context: &Context,
    addresses: Addresses,
    dtype: DType,
    n: usize,
    stream: &TestStream,
) -> Result<(), Error> {
    let device = context.device();
    let on = stream.get();
    let raw_stream = stream.raw();
    let mut raw_dtype = sys::fastnorm_dtype::new();
    (raw_dtype.code, raw_dtype.bits, raw_dtype.lanes) = (dtype.code(), dtype.bits(), dtype.lanes());
    let mut kept_raw = Box::new(Raw::new());
    kept_raw.fill(device, &addresses, raw_dtype, n);
    let mut kept = norm(device, &addresses, dtype, n)?;
    let mut times: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        times[0].push(time(|| black_box(&kept_raw).call(context, raw_stream)));
        stream.wait();
        times[1].push(time(|| {
            let mut raw = Raw::new();
            raw.fill(device, black_box(&addresses), raw_dtype, n);
            black_box(&raw).call(context, raw_stream);
        }));
        stream.wait();
        times[2].push(time(|| black_box(&mut kept).run_on(context, on).unwrap()));
        stream.wait();
        times[3].push(time(|| {
            norm(device, black_box(&addresses), dtype, n)
                .unwrap()
                .run_on(context, on)
                .unwrap();
        }));
        stream.wait();
    }
    let [c, c_built, safe, safe_built] = times.map(least);
    println!("{what}, ns a call");
    println!("  C ABI, structs kept         {c:7.1}");
    println!("  C ABI, structs filled       {c_built:7.1}");
    println!(
        "  fastnorm, Norm kept         {safe:7.1}   over C {:5.1}",
        safe - c
    );
    println!(
        "  fastnorm, all built         {safe_built:7.1}   over C {:5.1}",
        safe_built - c_built
    );
    Ok(())
}

fn main() -> Result<(), Error> {
    println!("libfastnorm {}", fastnorm::version_string());
    let gpu = ContextOptions::new(Device::cuda(0)).dry_run(90).create()?;
    let addresses =
        [0x1000_0000, 0x2000_0000, 0x3000_0000, 0x4000_0000_usize].map(|a| a as *mut c_void);
    compare(
        "dry run, H200, bf16 [1, 4096]",
        &gpu,
        addresses,
        DType::BF16,
        4096,
        &TestStream::none(),
    )?;

    let cpu = Context::cpu()?;
    let mut memory = [[1f32; 4]; 4];
    let addresses = memory.each_mut().map(|row| row.as_mut_ptr().cast());
    compare(
        "CPU, f32 [1, 4]",
        &cpu,
        addresses,
        DType::F32,
        4,
        &TestStream::none(),
    )?;

    if on_gpu() {
        let gpu = Context::cuda(0)?;
        let mut buffers: [Buffer<bf16>; 4] =
            std::array::from_fn(|_| Buffer::new(&[bf16::ONE; 4096]));
        let addresses = buffers.each_mut().map(Buffer::address);
        let stream = TestStream::new();
        compare(
            "GPU, bf16 [1, 4096], with the launch",
            &gpu,
            addresses,
            DType::BF16,
            4096,
            &stream,
        )?;
        drop(buffers);
    }
    Ok(())
}
