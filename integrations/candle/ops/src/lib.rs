//! `RMSNorm` and `LayerNorm` of libfastnorm as operators of candle.
//!
//! This crate depends on candle-core alone, so that candle-nn itself can be built on it. Programs
//! use the crate `fastnorm-candle`, which has these modules and candle-nn's functions that load
//! them.
//!
//! ```
//! use candle_core::{Device, Module, Tensor};
//! use fastnorm_candle_ops::RmsNorm;
//!
//! # fn main() -> candle_core::Result<()> {
//! let x = Tensor::new(&[[3f32, 4.0]], &Device::Cpu)?;
//! let norm = RmsNorm::new(Tensor::new(&[1f32, 2.0], &Device::Cpu)?, 0.0);
//! let y = norm.forward(&x)?.to_vec2::<f32>()?;
//! assert!((y[0][0] - 0.848_528).abs() < 1e-6 && (y[0][1] - 2.262_742).abs() < 1e-6);
//! # Ok(()) }
//! ```
//!
//! - **Inputs**: any rank, any strides. Where the last dimension is contiguous and the rank is at
//!   most 4, a strided input is read where it is; else candle makes a contiguous copy first.
//! - **Dtypes**: f32, f16 and bf16. Weight and bias may have another one of these than the input;
//!   the output has the input's. f64 is computed by candle's own operators.
//! - **Gradients**: of input, weight and bias, in one pass of the library.
//! - **Threads**: rayon's. A call runs in the pool that it is made from, else in the global one.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod modules;
mod op;
mod view;

pub use fastnorm::Rounding;
pub use modules::{LayerNorm, RmsNorm};
pub use op::{layer_norm, rms_norm, Norm};
