//! Tests of outputs, beside candle-nn's and those in double precision.

use candle_core::{DType, Device, Module, Result, Tensor, D};
use fastnorm_candle::{LayerNorm, Norm, RmsNorm, Rounding};

use super::{bits, errors, flat, numbers, unit, Reference, DTYPES};

/// One row, a few, and more than candle-nn does on one thread; columns short, odd and long.
pub const SHAPES: [&[usize]; 7] = [
    &[1],
    &[64],
    &[1, 4096],
    &[3, 5, 77],
    &[2, 3, 4, 128],
    &[256, 768],
    &[1, 2, 1, 2, 3, 33],
];

/// A sum in f32 has an error of its own beside the one rounding of y.
pub fn bound(dtype: DType, wanted: &[f64]) -> f64 {
    let most = wanted.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
    (unit(dtype) + 8.0 * unit(DType::F32)) * most.max(1.0)
}

pub fn check(
    what: &str,
    (ours, stock): (&dyn Module, &dyn Module),
    reference: &Reference,
    x: &Tensor,
) -> Result<()> {
    let wanted = reference.forward(x);
    let y = ours.forward(x)?;
    assert_eq!((y.dims(), y.dtype()), (x.dims(), x.dtype()), "{what}");
    let here = y.device().same_device(x.device());
    assert!(here && y.is_contiguous(), "{what}");
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
    // candle-nn's own tests compare four digits.
    let (apart, _) = errors(&flat(&y)?, &theirs);
    let tolerance = match x.dtype() {
        DType::F32 => 1e-4,
        dtype => 8.0 * unit(dtype) * wanted.iter().fold(1.0, |a: f64, b| a.max(b.abs())),
    };
    assert!(apart <= tolerance, "{what}: {apart:e} from candle-nn");
    Ok(())
}

pub fn rms_norm_of_all_dtypes(device: &Device, shapes: &[&[usize]]) -> Result<()> {
    for (i, shape) in shapes.iter().enumerate() {
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

pub fn layer_norm_of_all_dtypes(device: &Device, shapes: &[&[usize]]) -> Result<()> {
    for (i, shape) in shapes.iter().enumerate() {
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

/// The errors of the library and of candle-nn with a mean far from zero.
pub fn errors_far_from_zero(device: &Device) -> Result<[f64; 2]> {
    let x = numbers(device, 5, &[16, 512], 1000.0, DType::F32)?;
    let weight = Tensor::ones(512, DType::F32, device)?;
    let bias = weight.zeros_like()?;
    let wanted = Reference::new(true, 1e-5, &weight, None).forward(&x);
    let ours = LayerNorm::new(weight.clone(), bias.clone(), 1e-5).forward(&x)?;
    let theirs = candle_nn::LayerNorm::new(weight, bias, 1e-5).forward(&x)?;
    let error = |y: &Tensor| -> Result<f64> { Ok(errors(&flat(y)?, &wanted).1) };
    Ok([error(&ours)?, error(&theirs)?])
}

/// `Normalized` is what candle-nn's slow form and models as published do: numbers are equal where
/// the normalised ones are.
pub fn rounding_before_the_weight(device: &Device) -> Result<()> {
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
pub fn strided_inputs(device: &Device) -> Result<()> {
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
                let y = norm.apply(&x.copy()?, Some(&weight), Some(&bias))?;
                assert_eq!(bits(&y)?, bits(&copied)?, "{plan}");
            }
        }
    }
    Ok(())
}

/// A contiguous tensor may begin at any element of its storage, so at any address.
pub fn storages_that_begin_anywhere(device: &Device) -> Result<()> {
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

/// candle-nn refuses a weight of another dtype; the library reads it as it is.
pub fn weights_of_another_dtype(device: &Device) -> Result<()> {
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
    Ok(())
}

pub fn without_weights(device: &Device) -> Result<()> {
    let x = numbers(device, 1, &[3, 50], 0.4, DType::F32)?;
    let ones = Tensor::ones(50, DType::F32, device)?;
    for norm in [Norm::rms(1e-6), Norm::layer(1e-5)] {
        let plain = norm.apply(&x, None, None)?;
        assert_eq!(bits(&plain)?, bits(&norm.apply(&x, Some(&ones), None)?)?);
    }
    let error = Norm::rms(1e-6).apply(&x, None, Some(&ones)).unwrap_err();
    assert!(
        error.to_string().contains("required: a weight too"),
        "{error}"
    );
    Ok(())
}

/// f64 goes candle's way, in double precision.
pub fn double_precision(device: &Device) -> Result<()> {
    let x = numbers(device, 1, &[3, 50], 0.0, DType::F64)?;
    let weight = numbers(device, 2, &[50], 1.0, DType::F64)?;
    let bias = numbers(device, 3, &[50], 0.0, DType::F64)?;
    for remove_mean in [false, true] {
        let norm = LayerNorm::with_options(weight.clone(), Some(bias.clone()), remove_mean, 1e-5);
        let wanted = Reference::new(remove_mean, 1e-5, &weight, Some(&bias)).forward(&x);
        let y = norm.forward(&x)?;
        let (most, _) = errors(&flat(&y)?, &wanted);
        assert_eq!(y.dtype(), DType::F64);
        assert!(most < 1e-14, "{most:e}");
    }
    Ok(())
}

pub fn not_a_number(device: &Device) -> Result<()> {
    let norm = RmsNorm::new(Tensor::ones(8, DType::F32, device)?, 1e-6);
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
