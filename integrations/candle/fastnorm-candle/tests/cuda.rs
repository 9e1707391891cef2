//! Norms on a CUDA device, beside candle's own there and double precision.
//!
//! A program of its own, for the tests are known to be ignored only when it runs: where there is no
//! CUDA device. It prints a line a test, as those of the other files do.

mod common;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::process::ExitCode;

use candle_core::{DType, Device, Module, Result, Tensor, Var, D};
use common::{bits, errors, flat, unit, Reference, DTYPES};
use fastnorm_candle::{ops, LayerNorm, Norm, RmsNorm, Rounding};

type Test = (&'static str, fn(&Device) -> Result<()>);

const TESTS: [Test; 14] = [
    ("rms_norm_of_all_dtypes", rms_norm_of_all_dtypes),
    ("layer_norm_of_all_dtypes", layer_norm_of_all_dtypes),
    ("layer_norm_far_from_zero", layer_norm_far_from_zero),
    ("rounding_before_the_weight", rounding_before_the_weight),
    ("strided_inputs", strided_inputs),
    ("storages_that_begin_anywhere", storages_that_begin_anywhere),
    ("dtypes_of_weights", dtypes_of_weights),
    ("double_precision", double_precision),
    ("no_rows_and_not_a_number", no_rows_and_not_a_number),
    ("refused", refused),
    ("gradients_of_all_dtypes", gradients_of_all_dtypes),
    ("gradients_of_strided_tensors", gradients_of_strided_tensors),
    ("streams", streams),
    ("training", training),
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

/// Numbers of mean `centre` on the device.
fn numbers(
    device: &Device,
    seed: u64,
    shape: &[usize],
    centre: f64,
    dtype: DType,
) -> Result<Tensor> {
    common::numbers(seed, shape, centre, dtype)?.to_device(device)
}

/// One row, a few, and many; columns short, odd, of a model, and more than one block keeps.
const SHAPES: [&[usize]; 9] = [
    &[1],
    &[64],
    &[1, 4096],
    &[3, 5, 77],
    &[2, 3, 4, 128],
    &[256, 768],
    &[1, 2, 1, 2, 3, 33],
    &[2, 40000],
    &[5000, 32],
];

/// A sum in f32 has an error of its own beside the one rounding of y.
fn bound(dtype: DType, wanted: &[f64]) -> f64 {
    let most = wanted.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
    (unit(dtype) + 8.0 * unit(DType::F32)) * most.max(1.0)
}

fn check(
    what: &str,
    (ours, stock): (&dyn Module, &dyn Module),
    reference: &Reference,
    x: &Tensor,
) -> Result<()> {
    let wanted = reference.forward(x);
    let y = ours.forward(x)?;
    assert_eq!((y.dims(), y.dtype()), (x.dims(), x.dtype()), "{what}");
    assert!(y.device().is_cuda() && y.is_contiguous(), "{what}");
    let (most, error) = errors(&flat(&y)?, &wanted);
    assert!(
        most <= bound(x.dtype(), &wanted),
        "{what}: {most:e} from double precision"
    );
    assert_eq!(bits(&ours.forward(x)?)?, bits(&y)?, "{what}: again");
    let theirs = flat(&stock.forward(x)?)?;
    let (_, candle_error) = errors(&theirs, &wanted);
    // A single rounding is the least error there is, give or take what sums in f32 leave.
    let allowed = 1.02 * candle_error + 2.0 * unit(DType::F32);
    assert!(
        error <= allowed,
        "{what}: {error:e}; candle-nn has {candle_error:e}"
    );
    let (apart, _) = errors(&flat(&y)?, &theirs);
    let tolerance = match x.dtype() {
        DType::F32 => 1e-4,
        dtype => 8.0 * unit(dtype) * wanted.iter().fold(1.0, |a: f64, b| a.max(b.abs())),
    };
    assert!(apart <= tolerance, "{what}: {apart:e} from candle-nn");
    Ok(())
}

fn rms_norm_of_all_dtypes(device: &Device) -> Result<()> {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        let n = shape[shape.len() - 1];
        for dtype in DTYPES {
            let x = numbers(device, i as u64 + 1, shape, 0.3, dtype)?;
            let weight = numbers(device, 99, &[n], 1.0, dtype)?;
            check(
                &format!("{shape:?} {dtype:?}"),
                (
                    &RmsNorm::new(weight.clone(), 1e-6),
                    &candle_nn::RmsNorm::new(weight.clone(), 1e-6),
                ),
                &Reference::new(false, 1e-6, &weight, None),
                &x,
            )?;
        }
    }
    Ok(())
}

fn layer_norm_of_all_dtypes(device: &Device) -> Result<()> {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        let n = shape[shape.len() - 1];
        for dtype in DTYPES {
            let x = numbers(device, i as u64 + 1, shape, 0.5, dtype)?;
            let weight = numbers(device, 98, &[n], 1.0, dtype)?;
            let bias = numbers(device, 97, &[n], 0.0, dtype)?;
            check(
                &format!("{shape:?} {dtype:?}"),
                (
                    &LayerNorm::new(weight.clone(), bias.clone(), 1e-5),
                    &candle_nn::LayerNorm::new(weight.clone(), bias.clone(), 1e-5),
                ),
                &Reference::new(true, 1e-5, &weight, Some(&bias)),
                &x,
            )?;
            check(
                &format!("{shape:?} {dtype:?} without a bias"),
                (
                    &LayerNorm::new_no_bias(weight.clone(), 1e-5),
                    &candle_nn::LayerNorm::new_no_bias(weight.clone(), 1e-5),
                ),
                &Reference::new(true, 1e-5, &weight, None),
                &x,
            )?;
        }
    }
    Ok(())
}

fn layer_norm_far_from_zero(device: &Device) -> Result<()> {
    let x = numbers(device, 5, &[16, 512], 1000.0, DType::F32)?;
    let weight = Tensor::ones(512, DType::F32, device)?;
    let wanted = Reference::new(true, 1e-5, &weight, None).forward(&x);
    let y = LayerNorm::new(weight.clone(), weight.zeros_like()?, 1e-5).forward(&x)?;
    let (_, error) = errors(&flat(&y)?, &wanted);
    assert!(error < 1e-4, "{error:e}");
    Ok(())
}

/// `Normalized` is what candle-nn's slow form does: numbers are equal where the normalised ones
/// are.
fn rounding_before_the_weight(device: &Device) -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        let x = numbers(device, 3, &[64, 256], 0.0, dtype)?;
        let weight = numbers(device, 4, &[256], 1.0, dtype)?;
        let norm = RmsNorm::new(weight.clone(), 1e-6);
        let once = flat(&norm.forward(&x)?)?;
        let ours = flat(&norm.rounding(Rounding::Normalized).forward(&x)?)?;
        let slow = flat(&candle_nn::ops::rms_norm_slow(&x, &weight, 1e-6)?)?;
        let apart = |a: &[f64]| a.iter().zip(&slow).filter(|(a, b)| a != b).count();
        let few = slow.len() / 200;
        assert!(apart(&ours) <= few, "{} numbers differ", apart(&ours));
        assert!(apart(&once) > 10 * few, "{} numbers differ", apart(&once));
    }
    Ok(())
}

/// What the library reads in place has the bits of a contiguous copy.
fn strided_inputs(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let buffer = numbers(device, 7, &[6, 5, 4, 96], 0.2, dtype)?;
        let views = [
            ("heads and tokens swapped", buffer.transpose(1, 2)?),
            ("a part of the columns", buffer.narrow(3, 16, 48)?),
            ("columns from an odd place", buffer.narrow(3, 7, 51)?),
            ("a part of the rows", buffer.narrow(1, 1, 3)?),
            ("first row left out", buffer.narrow(0, 1, 5)?),
            ("columns across", buffer.transpose(2, 3)?),
            (
                "one row for all",
                buffer.narrow(0, 2, 1)?.expand((6, 5, 4, 96))?,
            ),
            (
                "one number for all",
                buffer.narrow(3, 2, 1)?.expand((6, 5, 4, 96))?,
            ),
            (
                "rank 6 with its dimensions swapped",
                buffer
                    .reshape((2, 3, 5, 2, 2, 96))?
                    .permute((3, 1, 0, 4, 2, 5))?,
            ),
        ];
        for (what, x) in views {
            let n = x.dim(D::Minus1)?;
            let weight = numbers(device, 8, &[2 * n], 1.0, dtype)?.narrow(0, n / 2, n)?;
            let every_second = numbers(device, 9, &[n, 2], 0.0, dtype)?
                .narrow(1, 1, 1)?
                .squeeze(1)?;
            for norm in [Norm::rms(1e-6), Norm::layer(1e-5)] {
                let y = norm.apply(&x, Some(&weight), Some(&every_second))?;
                let (weight, bias) = (weight.contiguous()?, every_second.contiguous()?);
                let copied = norm.apply(&x.contiguous()?, Some(&weight), Some(&bias))?;
                let plan = format!("{what} {dtype:?} {norm:?}");
                assert_eq!(bits(&y)?, bits(&copied)?, "{plan}");
                assert!(y.is_contiguous(), "{plan}");
                // A copy that lies elsewhere was not read from the first tensor's beginning.
                let again = x.to_device(&Device::Cpu)?.to_device(device)?;
                let y = norm.apply(&again, Some(&weight), Some(&bias))?;
                assert_eq!(bits(&y)?, bits(&copied)?, "{plan}");
            }
        }
    }
    Ok(())
}

/// A contiguous tensor may begin at any element of its storage, so at any address.
fn storages_that_begin_anywhere(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for (rows, n) in [(4, 64), (3, 77), (2, 4096)] {
            let buffer = numbers(device, 3, &[rows * n + 16], 0.2, dtype)?;
            let vectors = numbers(device, 4, &[2 * n + 32], 1.0, dtype)?;
            for offset in [0, 1, 2, 3, 5, 8] {
                let x = buffer.narrow(0, offset, rows * n)?.reshape((rows, n))?;
                let weight = vectors.narrow(0, offset, n)?;
                let bias = vectors.narrow(0, n + 16 - offset, n)?;
                let y = Norm::layer(1e-5).apply(&x, Some(&weight), Some(&bias))?;
                let wanted = Reference::new(true, 1e-5, &weight, Some(&bias)).forward(&x);
                let (most, _) = errors(&flat(&y)?, &wanted);
                assert!(
                    most <= bound(dtype, &wanted),
                    "{dtype:?} [{rows}, {n}] from {offset}: {most:e}"
                );
            }
        }
    }
    Ok(())
}

fn dtypes_of_weights(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for other in DTYPES {
            let x = numbers(device, 1, &[4, 100], 0.0, dtype)?;
            let weight = numbers(device, 2, &[100], 1.0, other)?;
            let bias = numbers(device, 3, &[100], 0.0, other)?;
            let y = LayerNorm::new(weight.clone(), bias.clone(), 1e-5).forward(&x)?;
            let wanted = Reference::new(true, 1e-5, &weight, Some(&bias)).forward(&x);
            let (most, _) = errors(&flat(&y)?, &wanted);
            assert_eq!(y.dtype(), dtype);
            assert!(
                most <= bound(dtype, &wanted),
                "{dtype:?} {other:?}: {most:e}"
            );
        }
    }
    let x = numbers(device, 1, &[3, 50], 0.4, DType::F32)?;
    let ones = Tensor::ones(50, DType::F32, device)?;
    for norm in [Norm::rms(1e-6), Norm::layer(1e-5)] {
        let plain = norm.apply(&x, None, None)?;
        assert_eq!(bits(&plain)?, bits(&norm.apply(&x, Some(&ones), None)?)?);
    }
    Ok(())
}

/// f64 goes candle's way, in double precision.
fn double_precision(device: &Device) -> Result<()> {
    let x = numbers(device, 1, &[3, 50], 0.0, DType::F64)?;
    let weight = numbers(device, 2, &[50], 1.0, DType::F64)?;
    let bias = numbers(device, 3, &[50], 0.0, DType::F64)?;
    for remove_mean in [false, true] {
        let norm = LayerNorm::with_options(weight.clone(), Some(bias.clone()), remove_mean, 1e-5);
        let wanted = Reference::new(remove_mean, 1e-5, &weight, Some(&bias)).forward(&x);
        let (most, _) = errors(&flat(&norm.forward(&x)?)?, &wanted);
        assert!(most < 1e-14, "{most:e}");
    }
    Ok(())
}

fn no_rows_and_not_a_number(device: &Device) -> Result<()> {
    let weight = Var::from_tensor(&Tensor::ones(8, DType::F32, device)?)?;
    let norm = RmsNorm::new(weight.as_tensor().clone(), 1e-6);
    // Views, for candle may not be able to allocate tensors without elements there.
    let rows = Tensor::zeros((2, 3, 8), DType::F32, device)?;
    for x in [rows.narrow(0, 0, 0)?, rows.narrow(1, 3, 0)?] {
        let y = norm.forward(&x)?;
        assert_eq!(y.dims(), x.dims());
        assert!(y.device().is_cuda());
    }
    let mut rows = vec![1f32; 24];
    rows[9] = f32::NAN;
    let y = flat(&norm.forward(&Tensor::from_vec(rows, (3, 8), device)?)?)?;
    assert!(y[..8]
        .iter()
        .chain(&y[16..])
        .all(|y| (y - 1.0).abs() < 1e-5));
    assert!(y[8..16].iter().all(|y| y.is_nan()));
    Ok(())
}

fn refused(device: &Device) -> Result<()> {
    let x = numbers(device, 1, &[2, 8], 0.0, DType::F32)?;
    let weight = Tensor::ones(8, DType::F32, device)?;
    let error = ops::rms_norm(&x, &weight.narrow(0, 0, 4)?, 1e-6).unwrap_err();
    assert!(error.to_string().contains("required: [8]"), "{error}");
    let error = Norm::rms(1e-6).apply(&x, None, Some(&weight)).unwrap_err();
    assert!(
        error.to_string().contains("required: a weight too"),
        "{error}"
    );
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

// --- gradients ---

/// candle-nn's norm of operators that have gradients.
fn composed(norm: Norm, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    match bias {
        Some(bias) => candle_nn::ops::layer_norm_slow(x, weight, bias, 1e-5),
        None if norm == Norm::rms(1e-5) => candle_nn::ops::rms_norm_slow(x, weight, 1e-5),
        None => candle_nn::LayerNorm::new_no_bias(weight.clone(), 1e-5).forward(x),
    }
}

type Three = [Option<Vec<f64>>; 3];

/// The gradients of sum(y * dy).
fn gradients(y: &Tensor, dy: &Tensor, of: [Option<&Var>; 3]) -> Result<Three> {
    let store = (y * dy)?.sum_all()?.backward()?;
    let mut found = [None, None, None];
    for (found, var) in found.iter_mut().zip(of) {
        if let Some(var) = var {
            let gradient = store.get(var).expect("a gradient");
            assert_eq!(
                (gradient.dims(), gradient.dtype()),
                (var.dims(), var.dtype())
            );
            assert!(gradient.device().is_cuda());
            *found = Some(flat(gradient)?);
        }
    }
    Ok(found)
}

fn gradients_of_all_dtypes(device: &Device) -> Result<()> {
    for shape in [&[1, 64][..], &[5, 3, 77], &[130, 256], &[3000, 128]] {
        let n = shape[shape.len() - 1];
        for dtype in DTYPES {
            for (norm, remove_mean, with_bias) in [
                (Norm::rms(1e-5), false, false),
                (Norm::layer(1e-5), true, false),
                (Norm::layer(1e-5), true, true),
            ] {
                let what = format!("{shape:?} {dtype:?} {norm:?} {with_bias}");
                let x = Var::from_tensor(&numbers(device, 1, shape, 0.3, dtype)?)?;
                let weight = Var::from_tensor(&numbers(device, 2, &[n], 1.0, dtype)?)?;
                let bias = Var::from_tensor(&numbers(device, 3, &[n], 0.0, dtype)?)?;
                let bias = with_bias.then_some(&bias);
                let dy = numbers(device, 4, shape, 0.1, dtype)?;
                let vars = [Some(&x), Some(&weight), bias];
                let y = norm.apply(&x, Some(&weight), bias.map(Var::as_tensor))?;
                let ours = gradients(&y, &dy, vars)?;
                assert_eq!(ours, gradients(&y, &dy, vars)?, "{what}: again");
                let y = composed(norm, &x, &weight, bias.map(Var::as_tensor))?;
                let theirs = gradients(&y, &dy, vars)?;
                let reference =
                    Reference::new(remove_mean, 1e-5, &weight, bias.map(Var::as_tensor));
                let wanted = reference.backward(&x, &dy);
                let wanted = [wanted.dx, wanted.dweight, wanted.dbias];
                for (name, ((ours, theirs), wanted)) in ["dx", "dweight", "dbias"]
                    .into_iter()
                    .zip(ours.into_iter().zip(theirs).zip(wanted))
                {
                    let (Some(ours), Some(theirs)) = (ours, theirs) else {
                        assert!(name == "dbias" && !with_bias);
                        continue;
                    };
                    let (_, error) = errors(&ours, &wanted);
                    let (_, candle_error) = errors(&theirs, &wanted);
                    let bound = unit(dtype) + 16.0 * unit(DType::F32);
                    assert!(error <= bound, "{what} {name}: {error:e}");
                    let allowed = 1.05 * candle_error + 8.0 * unit(DType::F32);
                    assert!(
                        error <= allowed,
                        "{what} {name}: {error:e}, {candle_error:e}"
                    );
                }
            }
        }
    }
    // A weight of another dtype has a gradient of its own dtype.
    let x = Var::from_tensor(&numbers(device, 1, &[9, 64], 0.0, DType::BF16)?)?;
    let weight = Var::from_tensor(&numbers(device, 2, &[64], 1.0, DType::F32)?)?;
    let bias = Var::from_tensor(&numbers(device, 3, &[64], 1.0, DType::F16)?)?;
    let dy = numbers(device, 4, &[9, 64], 0.0, DType::BF16)?;
    let y = Norm::layer(1e-5).apply(&x, Some(&weight), Some(&bias))?;
    let found = gradients(&y, &dy, [Some(&x), Some(&weight), Some(&bias)])?;
    let wanted = Reference::new(true, 1e-5, &weight, Some(&bias)).backward(&x, &dy);
    for (found, wanted, dtype) in [
        (&found[0], wanted.dx, DType::BF16),
        (&found[1], wanted.dweight, DType::F32),
        (&found[2], wanted.dbias, DType::F16),
    ] {
        let (_, error) = errors(found.as_ref().unwrap(), &wanted);
        let bound = unit(dtype) + 16.0 * unit(DType::F32);
        assert!(error <= bound, "{dtype:?}: {error:e}");
    }
    Ok(())
}

fn gradients_of_strided_tensors(device: &Device) -> Result<()> {
    let var = Var::from_tensor(&numbers(device, 1, &[4, 6, 3, 32], 0.2, DType::F32)?)?;
    let weight = Var::from_tensor(&numbers(device, 2, &[32], 1.0, DType::F32)?)?;
    let dy = numbers(device, 3, &[4, 3, 6, 32], 0.0, DType::F32)?;
    let of = [Some(&var), Some(&weight), None];
    let run = |copy: bool| -> Result<Three> {
        let x = var.transpose(1, 2)?;
        let x = if copy { x.contiguous()? } else { x };
        gradients(&Norm::rms(1e-6).apply(&x, Some(&weight), None)?, &dy, of)
    };
    assert_eq!(run(false)?, run(true)?);
    // The gradient that reaches the norm is a view, with strides of its own.
    let y = Norm::rms(1e-6).apply(&var, Some(&weight), None)?;
    let strided = gradients(&y.transpose(1, 2)?, &dy, of)?;
    assert_eq!(strided, gradients(&y, &dy.transpose(1, 2)?, of)?);
    // A sum sends one number to all.
    let y = Norm::layer(1e-5).apply(&var, Some(&weight), None)?;
    let store = y.sum_all()?.backward()?;
    let wanted = Reference::new(true, 1e-5, &weight, None).backward(&var, &y.ones_like()?);
    let (_, error) = errors(&flat(store.get(&weight).unwrap())?, &wanted.dweight);
    assert!(error < 1e-5, "{error:e}");
    Ok(())
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

fn training(device: &Device) -> Result<()> {
    let x = numbers(device, 1, &[32, 16], 0.5, DType::F32)?;
    let wanted = RmsNorm::new(numbers(device, 2, &[16], 1.0, DType::F32)?, 1e-6).forward(&x)?;
    let weight = Var::from_tensor(&Tensor::ones(16, DType::F32, device)?)?;
    let norm = RmsNorm::new(weight.as_tensor().clone(), 1e-6);
    let mut losses = Vec::new();
    for _ in 0..200 {
        let loss = (norm.forward(&x)? - &wanted)?.sqr()?.mean_all()?;
        let store = loss.backward()?;
        weight.set(&(weight.as_tensor() - (store.get(&weight).unwrap() * 2.0)?)?)?;
        losses.push(loss.to_scalar::<f32>()?);
    }
    assert!(
        losses[199] < 1e-6 * losses[0],
        "{} to {}",
        losses[0],
        losses[199]
    );
    Ok(())
}
