//! Outputs beside candle-nn's and those in double precision.

mod common;

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::LayerNormConfig;
use common::{numbers, outputs};
use fastnorm_candle::{ops, RmsNorm};

const CPU: Device = Device::Cpu;

#[test]
fn rms_norm_of_all_dtypes() -> Result<()> {
    outputs::rms_norm_of_all_dtypes(&CPU, &outputs::SHAPES)
}

#[test]
fn layer_norm_of_all_dtypes() -> Result<()> {
    outputs::layer_norm_of_all_dtypes(&CPU, &outputs::SHAPES)
}

/// candle-nn subtracts two large numbers there, the library does not.
#[test]
fn layer_norm_far_from_zero() -> Result<()> {
    let [error, candle_error] = outputs::errors_far_from_zero(&CPU)?;
    assert!(error < 1e-4, "{error:e}");
    assert!(error < candle_error / 10.0, "{error:e}, {candle_error:e}");
    Ok(())
}

#[test]
fn rounding_before_the_weight() -> Result<()> {
    outputs::rounding_before_the_weight(&CPU)
}

#[test]
fn strided_inputs() -> Result<()> {
    outputs::strided_inputs(&CPU)
}

#[test]
fn storages_that_begin_anywhere() -> Result<()> {
    outputs::storages_that_begin_anywhere(&CPU)
}

#[test]
fn weights_of_another_dtype() -> Result<()> {
    outputs::weights_of_another_dtype(&CPU)
}

#[test]
fn without_weights() -> Result<()> {
    outputs::without_weights(&CPU)
}

#[test]
fn double_precision() -> Result<()> {
    outputs::double_precision(&CPU)
}

#[test]
fn no_rows_and_not_a_number() -> Result<()> {
    let norm = RmsNorm::new(Tensor::ones(8, DType::F32, &CPU)?, 1e-6);
    for shape in [&[0, 8][..], &[2, 0, 8]] {
        let y = norm.forward(&Tensor::zeros(shape, DType::F32, &CPU)?)?;
        assert_eq!(y.dims(), shape);
    }
    let none = RmsNorm::new(Tensor::zeros(0, DType::F32, &CPU)?, 1e-6);
    let y = none.forward(&Tensor::zeros((3, 0), DType::F32, &CPU)?)?;
    assert_eq!(y.dims(), [3, 0]);
    outputs::not_a_number(&CPU)
}

#[test]
fn shapes_that_do_not_fit() -> Result<()> {
    let x = numbers(&CPU, 1, &[3, 50], 0.0, DType::F32)?;
    for shape in [&[49][..], &[1], &[1, 50], &[3, 50]] {
        let weight = Tensor::ones(shape, DType::F32, &CPU)?;
        let error = ops::rms_norm(&x, &weight, 1e-6).unwrap_err();
        assert!(error.to_string().contains("required: [50]"), "{error}");
        let ones = Tensor::ones(50, DType::F32, &CPU)?;
        let error = ops::layer_norm(&x, &ones, &weight, 1e-6).unwrap_err();
        assert!(error.to_string().contains("bias has shape"), "{error}");
    }
    let integers = Tensor::ones((3, 50), DType::U32, &CPU)?;
    let ones = Tensor::ones(50, DType::U32, &CPU)?;
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
    let tensor = |value: f32| Tensor::full(value, 4, &CPU);
    let builder = |names: &[(&str, f32)]| -> Result<_> {
        let tensors = names
            .iter()
            .map(|(name, value)| Ok((name.to_string(), tensor(*value)?)))
            .collect::<Result<_>>()?;
        Ok(candle_nn::VarBuilder::from_tensors(
            tensors,
            DType::F32,
            &CPU,
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
    let vb = candle_nn::VarBuilder::from_varmap(&vars, DType::F32, &CPU);
    let norm = fastnorm_candle::layer_norm(4, 1e-5, vb.pp("new"))?;
    assert_eq!(
        (first(norm.weight())?, first(norm.bias().unwrap())?),
        (1.0, 0.0)
    );
    assert!(vars.data().lock().unwrap().contains_key("new.weight"));
    Ok(())
}
