//! `RmsNorm` and `LayerNorm` of libfastnorm with the interface of candle-nn.
//!
//! Names, arguments and names of weights are candle-nn's, so a model needs another `use` line and
//! nothing else:
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{Module, VarBuilder, VarMap};
//! use fastnorm_candle::{rms_norm, RmsNorm}; // in place of candle_nn's
//!
//! # fn main() -> candle_core::Result<()> {
//! let vars = VarMap::new();
//! let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
//! let norm: RmsNorm = rms_norm(4, 1e-6, vb.pp("input_layernorm"))?;
//! let y = norm.forward(&Tensor::new(&[[2f32, -2.0, 2.0, 2.0]], &Device::Cpu)?)?;
//! let y = y.to_vec2::<f32>()?;
//! assert!(y[0].iter().all(|y| (y.abs() - 1.0).abs() < 1e-6));
//! # Ok(()) }
//! ```
//!
//! `forward` has gradients. Those of candle-nn's modules have none for contiguous inputs.

mod load;
/// What `load` needs of candle-nn.
mod nn {
    pub(crate) use candle_nn::{Init, VarBuilder};
}

pub use candle_nn::{LayerNormConfig, Module};
pub use fastnorm_candle_ops::{LayerNorm, Norm, RmsNorm, Rounding};
pub use load::{layer_norm, layer_norm_no_bias, rms_norm};

/// The operators, with the interface of those in `candle_nn::ops`.
pub mod ops {
    pub use fastnorm_candle_ops::{layer_norm, rms_norm};
}
