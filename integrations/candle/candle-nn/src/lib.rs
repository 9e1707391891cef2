//! candle-nn with the norms of libfastnorm.
//!
//! By `[patch]` it takes the place of candle-nn, so that models of candle-transformers run on the
//! library as they are. Everything is candle-nn's but `RmsNorm`, `LayerNorm`, the functions that
//! make them, and `ops::rms_norm` and `ops::layer_norm`.

#[path = "../../fastnorm-candle/src/load.rs"]
mod load;
/// What `load` needs of candle-nn.
mod nn {
    pub(crate) use stock::{Init, VarBuilder};
}

pub use layer_norm::{layer_norm, layer_norm_no_bias, rms_norm};
pub use layer_norm::{LayerNorm, LayerNormConfig, RmsNorm};
pub use stock::*;

/// The norms of libfastnorm, under candle-nn's names.
pub mod layer_norm {
    pub use crate::load::{layer_norm, layer_norm_no_bias, rms_norm};
    pub use fastnorm_candle_ops::{LayerNorm, RmsNorm};
    pub use stock::layer_norm::LayerNormConfig;
}

/// candle-nn's operators, with the norms of libfastnorm.
pub mod ops {
    pub use fastnorm_candle_ops::{layer_norm, rms_norm};
    pub use stock::ops::*;
}
