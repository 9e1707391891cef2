//! The modules, with the interface of candle-nn's.

use candle_core::{Module, Result, Tensor};
use fastnorm::Rounding;

use crate::op::Norm;

/// `LayerNorm` with the interface of `candle_nn::LayerNorm`, with gradients.
///
/// Without removal of the mean it is an `RMSNorm`.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Option<Tensor>,
    norm: Norm,
}

impl LayerNorm {
    /// With a bias.
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        Self::with_options(weight, Some(bias), true, eps)
    }

    /// Without a bias.
    pub fn new_no_bias(weight: Tensor, eps: f64) -> Self {
        Self::with_options(weight, None, true, eps)
    }

    /// Without a bias and without removal of the mean.
    pub fn rms_norm(weight: Tensor, eps: f64) -> Self {
        Self::with_options(weight, None, false, eps)
    }

    /// With all choices open.
    pub fn with_options(weight: Tensor, bias: Option<Tensor>, remove_mean: bool, eps: f64) -> Self {
        let norm = if remove_mean {
            Norm::layer(eps)
        } else {
            Norm::rms(eps)
        };
        Self { weight, bias, norm }
    }

    /// Where a 16-bit output is rounded on its way. Default: [`Rounding::Once`], when it is stored.
    /// [`Rounding::Normalized`] is what Llama and Qwen do as published.
    #[must_use]
    pub fn rounding(mut self, rounding: Rounding) -> Self {
        self.norm = self.norm.rounding(rounding);
        self
    }

    /// The weight.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, if there is one.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// What is added to the variance.
    pub fn eps(&self) -> f64 {
        self.norm.eps
    }

    /// Whether the mean is removed.
    pub fn remove_mean(&self) -> bool {
        self.norm.remove_mean
    }
}

impl Module for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.apply(x, Some(&self.weight), self.bias.as_ref())
    }
}

/// `RMSNorm` with the interface of `candle_nn::RmsNorm`, with gradients.
#[derive(Clone, Debug)]
pub struct RmsNorm(LayerNorm);

impl RmsNorm {
    /// With this weight.
    pub fn new(weight: Tensor, eps: f64) -> Self {
        Self(LayerNorm::rms_norm(weight, eps))
    }

    /// As [`LayerNorm::rounding`].
    #[must_use]
    pub fn rounding(self, rounding: Rounding) -> Self {
        Self(self.0.rounding(rounding))
    }

    /// This norm as a [`LayerNorm`] that does not remove the mean.
    pub fn into_inner(self) -> LayerNorm {
        self.0
    }

    /// The weight.
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// What is added to the mean square.
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// Calls `forward`, which has gradients here: candle-nn's has none.
    ///
    /// # Errors
    /// As `forward`.
    pub fn forward_diff(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}
