//! Modules from a `VarBuilder`, as candle-nn makes them. The replacement of candle-nn is built from
//! this file too.

use candle_core::Result;
use fastnorm_candle_ops::{LayerNorm, RmsNorm};

use crate::nn::{Init, VarBuilder};
use crate::LayerNormConfig;

/// A [`LayerNorm`] of `size` columns with the tensors `weight` and, where `config` has `affine`,
/// `bias` of `vb`. Older checkpoints name them `gamma` and `beta`.
///
/// # Errors
/// Where `vb` has no tensor of that name and size.
pub fn layer_norm<C: Into<LayerNormConfig>>(
    size: usize,
    config: C,
    vb: VarBuilder<'_>,
) -> Result<LayerNorm> {
    let config = config.into();
    let get = |name: &'static str, older: &'static str, init| {
        let has_older_only = !vb.contains_tensor(name) && vb.contains_tensor(older);
        let name = if has_older_only { older } else { name };
        vb.get_with_hints(size, name, Init::Const(init))
    };
    let weight = get("weight", "gamma", 1.0)?;
    let bias = config
        .affine
        .then(|| get("bias", "beta", 0.0))
        .transpose()?;
    let (remove_mean, eps) = (config.remove_mean, config.eps);
    Ok(LayerNorm::with_options(weight, bias, remove_mean, eps))
}

/// A [`LayerNorm`] with the tensor `weight` of `vb`, without a bias.
///
/// # Errors
/// As [`layer_norm`].
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder<'_>) -> Result<LayerNorm> {
    let config = LayerNormConfig {
        eps,
        remove_mean: true,
        affine: false,
    };
    layer_norm(size, config, vb)
}

/// An [`RmsNorm`] with the tensor `weight` of `vb`.
///
/// # Errors
/// As [`layer_norm`].
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder<'_>) -> Result<RmsNorm> {
    let weight = layer_norm_no_bias(size, eps, vb)?.weight().clone();
    Ok(RmsNorm::new(weight, eps))
}
