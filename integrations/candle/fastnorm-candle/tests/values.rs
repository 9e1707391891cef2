//! Outputs beside candle-nn's and those in double precision.

mod common;

use candle_core::{DType, Device, Module, Result, Tensor, D};
use candle_nn::LayerNormConfig;
use common::{bits, errors, flat, numbers, unit, Reference, DTYPES};
use fastnorm_candle::{ops, LayerNorm, Norm, RmsNorm, Rounding};

/// One row, a few, and more than candle-nn does on one thread; columns short, odd and long.
const SHAPES: [&[usize]; 7] = [
    &[1],
    &[64],
    &[1, 4096],
    &[3, 5, 77],
    &[2, 3, 4, 128],
    &[256, 768],
    &[1, 2, 1, 2, 3, 33],
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
    let (most, error) = errors(&flat(&y)?, &wanted);
    assert!(
        most <= bound(x.dtype(), &wanted),
        "{what}: {most:e} from double precision"
    );
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

#[test]
fn rms_norm_of_all_dtypes() -> Result<()> {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        let n = shape[shape.len() - 1];
        for dtype in DTYPES {
            let x = numbers(i as u64 + 1, shape, 0.3, dtype)?;
            let weight = numbers(99, &[n], 1.0, dtype)?;
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

#[test]
fn layer_norm_of_all_dtypes() -> Result<()> {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        let n = shape[shape.len() - 1];
        for dtype in DTYPES {
            let x = numbers(i as u64 + 1, shape, 0.5, dtype)?;
            let weight = numbers(98, &[n], 1.0, dtype)?;
            let bias = numbers(97, &[n], 0.0, dtype)?;
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

/// A mean far from zero: candle-nn subtracts two large numbers there, the library does not.
#[test]
fn layer_norm_far_from_zero() -> Result<()> {
    let x = numbers(5, &[16, 512], 1000.0, DType::F32)?;
    let weight = Tensor::ones(512, DType::F32, &Device::Cpu)?;
    let bias = weight.zeros_like()?;
    let wanted = Reference::new(true, 1e-5, &weight, None).forward(&x);
    let ours = LayerNorm::new(weight.clone(), bias.clone(), 1e-5).forward(&x)?;
    let theirs = candle_nn::LayerNorm::new(weight, bias, 1e-5).forward(&x)?;
    let (_, error) = errors(&flat(&ours)?, &wanted);
    let (_, candle_error) = errors(&flat(&theirs)?, &wanted);
    assert!(error < 1e-4, "{error:e}");
    assert!(error < candle_error / 10.0, "{error:e}, {candle_error:e}");
    Ok(())
}

/// `Normalized` is what candle-nn's slow form and models as published do: bits are equal where
/// the normalised numbers are.
#[test]
fn rounding_before_the_weight() -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        let x = numbers(3, &[64, 256], 0.0, dtype)?;
        let weight = numbers(4, &[256], 1.0, dtype)?;
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
#[test]
fn strided_inputs() -> Result<()> {
    let buffer = numbers(7, &[6, 5, 4, 96], 0.2, DType::F32)?;
    for dtype in DTYPES {
        let buffer = buffer.to_dtype(dtype)?;
        let views = [
            ("heads and tokens swapped", buffer.transpose(1, 2)?),
            ("a part of the columns", buffer.narrow(3, 16, 48)?),
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
            let weight = numbers(8, &[2 * n], 1.0, dtype)?.narrow(0, n / 2, n)?;
            let every_second = numbers(9, &[n, 2], 0.0, dtype)?
                .narrow(1, 1, 1)?
                .squeeze(1)?;
            for norm in [Norm::rms(1e-6), Norm::layer(1e-5)] {
                let y = norm.apply(&x, Some(&weight), Some(&every_second))?;
                let copied = norm.apply(
                    &x.contiguous()?,
                    Some(&weight.contiguous()?),
                    Some(&every_second.contiguous()?),
                )?;
                assert_eq!(bits(&y)?, bits(&copied)?, "{what} {dtype:?}");
                assert!(y.is_contiguous());
            }
        }
    }
    Ok(())
}

/// candle-nn refuses a weight of another dtype; the library reads it as it is.
#[test]
fn weights_of_another_dtype() -> Result<()> {
    for dtype in DTYPES {
        for other in DTYPES {
            let x = numbers(1, &[4, 100], 0.0, dtype)?;
            let (weight, bias) = (
                numbers(2, &[100], 1.0, other)?,
                numbers(3, &[100], 0.0, other)?,
            );
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

/// f64 goes candle's way, in double precision.
#[test]
fn double_precision() -> Result<()> {
    let x = numbers(1, &[3, 50], 0.0, DType::F64)?;
    let (weight, bias) = (
        numbers(2, &[50], 1.0, DType::F64)?,
        numbers(3, &[50], 0.0, DType::F64)?,
    );
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

#[test]
fn without_weights() -> Result<()> {
    let x = numbers(1, &[3, 50], 0.4, DType::F32)?;
    let ones = Tensor::ones(50, DType::F32, &Device::Cpu)?;
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

#[test]
fn no_rows_and_not_a_number() -> Result<()> {
    let weight = Tensor::ones(8, DType::F32, &Device::Cpu)?;
    let norm = RmsNorm::new(weight, 1e-6);
    for shape in [&[0, 8][..], &[2, 0, 8]] {
        let y = norm.forward(&Tensor::zeros(shape, DType::F32, &Device::Cpu)?)?;
        assert_eq!(y.dims(), shape);
    }
    let none = RmsNorm::new(Tensor::zeros(0, DType::F32, &Device::Cpu)?, 1e-6);
    let y = none.forward(&Tensor::zeros((3, 0), DType::F32, &Device::Cpu)?)?;
    assert_eq!(y.dims(), [3, 0]);

    let mut rows = vec![1f32; 24];
    rows[9] = f32::NAN;
    let y = flat(&norm.forward(&Tensor::from_vec(rows, (3, 8), &Device::Cpu)?)?)?;
    assert!(y[..8]
        .iter()
        .chain(&y[16..])
        .all(|y| (y - 1.0).abs() < 1e-5));
    assert!(y[8..16].iter().all(|y| y.is_nan()));
    Ok(())
}

#[test]
fn shapes_that_do_not_fit() -> Result<()> {
    let x = numbers(1, &[3, 50], 0.0, DType::F32)?;
    for shape in [&[49][..], &[1], &[1, 50], &[3, 50]] {
        let weight = Tensor::ones(shape, DType::F32, &Device::Cpu)?;
        let error = ops::rms_norm(&x, &weight, 1e-6).unwrap_err();
        assert!(error.to_string().contains("required: [50]"), "{error}");
        let ones = Tensor::ones(50, DType::F32, &Device::Cpu)?;
        let error = ops::layer_norm(&x, &ones, &weight, 1e-6).unwrap_err();
        assert!(error.to_string().contains("bias has shape"), "{error}");
    }
    let integers = Tensor::ones((3, 50), DType::U32, &Device::Cpu)?;
    let ones = Tensor::ones(50, DType::U32, &Device::Cpu)?;
    let error = ops::rms_norm(&integers, &ones, 1e-6).unwrap_err();
    assert!(
        error.to_string().contains("unsupported dtype U32"),
        "{error}"
    );
    Ok(())
}

/// Tensors by the names that checkpoints have, old ones too.
#[test]
fn modules_from_a_var_builder() -> Result<()> {
    let tensor = |value: f32| Tensor::full(value, 4, &Device::Cpu);
    let builder = |names: &[(&str, f32)]| -> Result<_> {
        let tensors = names
            .iter()
            .map(|(name, value)| Ok((name.to_string(), tensor(*value)?)))
            .collect::<Result<_>>()?;
        Ok(candle_nn::VarBuilder::from_tensors(
            tensors,
            DType::F32,
            &Device::Cpu,
        ))
    };
    let first = |tensor: &Tensor| -> Result<f32> { Ok(tensor.to_vec1::<f32>()?[0]) };
    let all = [
        ("a.weight", 2.0),
        ("a.bias", 3.0),
        ("b.gamma", 4.0),
        ("b.beta", 5.0),
    ];
    let vb = builder(&all)?;
    for (path, weight, bias) in [("a", 2.0, 3.0), ("b", 4.0, 5.0)] {
        let norm = fastnorm_candle::layer_norm(4, 1e-5, vb.pp(path))?;
        let stock = candle_nn::layer_norm(4, 1e-5, vb.pp(path))?;
        assert_eq!(first(norm.weight())?, weight);
        assert_eq!(first(norm.bias().unwrap())?, bias);
        assert_eq!(first(stock.weight())?, weight);
        assert_eq!((norm.eps(), norm.remove_mean()), (1e-5, true));
        let norm = fastnorm_candle::layer_norm_no_bias(4, 1e-5, vb.pp(path))?;
        assert!(norm.bias().is_none() && norm.remove_mean());
        let norm = fastnorm_candle::rms_norm(4, 1e-6, vb.pp(path))?;
        assert_eq!((first(norm.weight())?, norm.eps()), (weight, 1e-6));
        assert!(!norm.into_inner().remove_mean());
    }
    let config = LayerNormConfig {
        remove_mean: false,
        ..LayerNormConfig::default()
    };
    let norm = fastnorm_candle::layer_norm(4, config, vb.pp("a"))?;
    assert!(!norm.remove_mean() && norm.bias().is_some());
    assert!(fastnorm_candle::rms_norm(5, 1e-6, vb.pp("a")).is_err());
    assert!(fastnorm_candle::layer_norm(4, 1e-6, vb.pp("c")).is_err());

    // Variables that are not there yet begin as candle-nn's do.
    let vars = candle_nn::VarMap::new();
    let vb = candle_nn::VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let norm = fastnorm_candle::layer_norm(4, 1e-5, vb.pp("new"))?;
    assert_eq!(
        (first(norm.weight())?, first(norm.bias().unwrap())?),
        (1.0, 0.0)
    );
    assert!(vars.data().lock().unwrap().contains_key("new.weight"));
    Ok(())
}
