//! Norms on a CUDA device, beside candle's own there and double precision.
//!
//! A program of its own, for the tests are known to be ignored only when it runs: where there is no
//! CUDA device. It prints a line a test, as those of the other files do.

mod common;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::ExitCode;

use candle_core::{DType, Device, Module, Result, Tensor, Var};
use common::outputs::{self, SHAPES};
use common::{bits, gradients, numbers};
use fastnorm_candle::{ops, Norm, RmsNorm};

type Test = (&'static str, fn(&Device) -> Result<()>);

const TESTS: [Test; 16] = [
    ("rms_norm_of_all_dtypes", rms_norm_of_all_dtypes),
    ("layer_norm_of_all_dtypes", layer_norm_of_all_dtypes),
    ("layer_norm_far_from_zero", layer_norm_far_from_zero),
    (
        "rounding_before_the_weight",
        outputs::rounding_before_the_weight,
    ),
    ("strided_inputs", outputs::strided_inputs),
    (
        "storages_that_begin_anywhere",
        outputs::storages_that_begin_anywhere,
    ),
    (
        "weights_of_another_dtype",
        outputs::weights_of_another_dtype,
    ),
    ("without_weights", outputs::without_weights),
    ("double_precision", outputs::double_precision),
    ("no_rows_and_not_a_number", no_rows_and_not_a_number),
    ("refused", refused),
    ("gradients_of_all_dtypes", gradients_of_all_dtypes),
    (
        "gradients_of_weights_of_another_dtype",
        gradients::of_weights_of_another_dtype,
    ),
    (
        "gradients_of_strided_tensors",
        gradients::of_strided_tensors,
    ),
    ("training", gradients::training),
    ("streams", streams),
];

fn main() -> ExitCode {
    let device = match Device::new_cuda(0) {
        Ok(device) => device,
        Err(error) => {
            for (name, _) in TESTS {
                println!("test {name} ... ignored, there is no CUDA device");
            }
            println!("{error}");
            return ExitCode::SUCCESS;
        }
    };
    let mut failed = 0;
    for (name, test) in TESTS {
        let good = match catch_unwind(AssertUnwindSafe(|| test(&device))) {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                println!("{name}: {error}");
                false
            }
            Err(_) => false, // the panic has printed what was found
        };
        println!("test {name} ... {}", if good { "ok" } else { "FAILED" });
        failed += i32::from(!good);
    }
    ExitCode::from(u8::from(failed != 0))
}

/// Many columns and many rows, beside those of every device: more than one block keeps.
const MORE_SHAPES: [&[usize]; 2] = [&[2, 40000], &[5000, 32]];

fn rms_norm_of_all_dtypes(device: &Device) -> Result<()> {
    outputs::rms_norm_of_all_dtypes(device, &SHAPES)?;
    outputs::rms_norm_of_all_dtypes(device, &MORE_SHAPES)
}

fn layer_norm_of_all_dtypes(device: &Device) -> Result<()> {
    outputs::layer_norm_of_all_dtypes(device, &SHAPES)?;
    outputs::layer_norm_of_all_dtypes(device, &MORE_SHAPES)
}

fn layer_norm_far_from_zero(device: &Device) -> Result<()> {
    let [error, _] = outputs::errors_far_from_zero(device)?;
    assert!(error < 1e-4, "{error:e}");
    Ok(())
}

fn no_rows_and_not_a_number(device: &Device) -> Result<()> {
    let norm = RmsNorm::new(Tensor::ones(8, DType::F32, device)?, 1e-6);
    // Views, for candle may not be able to allocate tensors without elements there.
    let rows = Tensor::zeros((2, 3, 8), DType::F32, device)?;
    for x in [rows.narrow(0, 0, 0)?, rows.narrow(1, 3, 0)?] {
        let y = norm.forward(&x)?;
        assert_eq!(y.dims(), x.dims());
        assert!(y.device().is_cuda());
    }
    outputs::not_a_number(device)
}

fn refused(device: &Device) -> Result<()> {
    let x = numbers(device, 1, &[2, 8], 0.0, DType::F32)?;
    let weight = Tensor::ones(8, DType::F32, device)?;
    let error = ops::rms_norm(&x, &weight.narrow(0, 0, 4)?, 1e-6).unwrap_err();
    assert!(error.to_string().contains("required: [8]"), "{error}");
    let elsewhere = Tensor::ones(8, DType::F32, &Device::Cpu)?;
    assert!(ops::rms_norm(&x, &elsewhere, 1e-6).is_err());
    assert!(ops::rms_norm(&x.to_device(&Device::Cpu)?, &weight, 1e-6).is_err());
    let integers = x.to_dtype(DType::I64)?;
    assert!(Norm::rms(1e-6).apply(&integers, None, None).is_err());
    let error = ops::rms_norm(&x, &weight, -1.0).unwrap_err();
    assert!(error.to_string().contains("eps"), "{error}");
    // What was refused leaves the device as it was.
    assert!(ops::rms_norm(&x, &weight, 1e-6).is_ok());
    device.synchronize()
}

fn gradients_of_all_dtypes(device: &Device) -> Result<()> {
    let shapes: [&[usize]; 4] = [&[1, 64], &[5, 3, 77], &[130, 256], &[3000, 128]];
    gradients::of_all_dtypes(device, &shapes)
}

// --- the device's queue ---

/// Bits of the last of many norms in a row, whose tensors are freed while work is still queued,
/// and of the weight's gradient through some more.
fn many(device: &Device, wait: bool) -> Result<[Vec<u64>; 2]> {
    let weight = Var::from_tensor(&numbers(device, 2, &[2048], 1.0, DType::BF16)?)?;
    let norm = Norm::layer(1e-5);
    let mut x = numbers(device, 1, &[512, 2048], 0.3, DType::BF16)?;
    for step in 0..40 {
        let detached = weight.detach();
        let weight = if step < 36 { &detached } else { &*weight };
        x = norm.apply(&(x * 1.5)?, Some(weight), None)?;
        if wait {
            device.synchronize()?;
        }
    }
    let store = x.sqr()?.sum_all()?.backward()?;
    Ok([bits(&x)?, bits(store.get(&weight).unwrap())?])
}

/// Work is queued on candle's stream: the default one, one of the device's own, from any thread.
fn streams(device: &Device) -> Result<()> {
    let wanted = many(device, true)?;
    assert_eq!(many(device, false)?, wanted, "the default stream");
    let other = Device::new_cuda_with_stream(0)?;
    assert_eq!(many(&other, false)?, wanted, "a stream of its own");
    let one = Device::new_cuda_with_stream(0)?;
    std::thread::scope(|scope| {
        let devices = [device, &other, &one, &one];
        let callers: Vec<_> = devices
            .iter()
            .map(|device| scope.spawn(|| many(device, false)))
            .collect();
        for caller in callers {
            assert_eq!(caller.join().unwrap()?, wanted, "four threads");
        }
        Ok(())
    })
}
