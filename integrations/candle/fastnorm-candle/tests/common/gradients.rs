//! Tests of gradients, beside those of candle's operators and those in double precision.

use candle_core::{DType, Device, Module, Result, Tensor, Var};
use fastnorm_candle::{Norm, RmsNorm};

use super::{errors, flat, numbers, unit, Reference, DTYPES};

/// candle-nn's norm of operators that have gradients.
pub fn composed(norm: Norm, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    match bias {
        Some(bias) => candle_nn::ops::layer_norm_slow(x, weight, bias, 1e-5),
        None if norm == Norm::rms(1e-5) => candle_nn::ops::rms_norm_slow(x, weight, 1e-5),
        None => candle_nn::LayerNorm::new_no_bias(weight.clone(), 1e-5).forward(x),
    }
}

pub type Three = [Option<Vec<f64>>; 3];

/// The gradients of sum(y * dy).
pub fn gradients(y: &Tensor, dy: &Tensor, of: [Option<&Var>; 3]) -> Result<Three> {
    let store = (y * dy)?.sum_all()?.backward()?;
    let mut found = [None, None, None];
    for (found, var) in found.iter_mut().zip(of) {
        if let Some(var) = var {
            let gradient = store.get(var).expect("a gradient");
            assert_eq!(
                (gradient.dims(), gradient.dtype()),
                (var.dims(), var.dtype())
            );
            assert!(gradient.device().same_device(var.device()));
            *found = Some(flat(gradient)?);
        }
    }
    Ok(found)
}

pub fn of_all_dtypes(device: &Device, shapes: &[&[usize]]) -> Result<()> {
    for shape in shapes {
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
    Ok(())
}

/// A weight of another dtype has a gradient of its own dtype.
pub fn of_weights_of_another_dtype(device: &Device) -> Result<()> {
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

/// Inputs, outputs and gradients with strides.
pub fn of_strided_tensors(device: &Device) -> Result<()> {
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

/// The modules learn: their parameters reach those of the norm that made the data.
pub fn training(device: &Device) -> Result<()> {
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
