#![doc = include_str!("../README.md")]
//!
//! # Where things are
//!
//! - [`Context`]: one device, made once and shared between threads; [`ContextOptions`] for threads,
//!   a log, a parallel loop of your own, dry runs, a tuning file.
//! - [`Tensor`], [`TensorMut`]: views of your memory. [`Element`] says which Rust types they may
//!   have, [`DType`] names all of them.
//! - [`Norm`]: what to compute; [`Quant`] for quantised outputs; [`norm_many`] for several at once.
//!   Its [stages](Norm#stages) are gates, groups and norms of a branch.
//! - [`NormBackward`]: its gradients, for training; [`norm_backward_many`] for several at once.
//! - [`NormHeads`]: norm, rope and the paged cache of query, key and value heads, in
//!   [parts](NormHeadsPart);
//! - [`NormHeadsBackward`]: their gradients, in [parts](NormHeadsBackwardPart).
//! - [`Peer`]: one of several ranks; [`PeerAllreduceNorm`] and [`PeerShardedNorm`] are their norms.
//! - [`Nccl`]: one of several ranks on a communicator of NCCL's. Its library is loaded at its first
//!   use.
//! - [`MlaDecode`]: attention over a paged cache of latents; [`decode_profile`] and [`write_trace`]
//!   read what its kernels recorded.
//! - [`Error`] and [`Status`]: what was wrong, in the library's words.
//! - [`fastnorm_sys`](sys): the C ABI itself.

#![warn(clippy::pedantic)]
#![allow(
    clippy::doc_markdown,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    clippy::module_name_repetitions
)]

mod context;
mod device;
mod dtype;
mod fields;
mod info;
mod mla_decode;
mod nccl;
mod norm;
mod norm_backward;
mod norm_heads;
mod norm_heads_backward;
mod norm_heads_backward_part;
mod norm_heads_part;
mod parallel;
mod peer;
mod quant;
mod slots;
mod status;
mod tensor;
mod version;

pub use context::{Context, ContextOptions, LogLevel, Stream, Workspace};
pub use device::{device_count, kernels, Device, DeviceInfo, DeviceType, KernelInfo};
pub use dtype::{DType, Element, F4x2E2M1, F8E4M3, F8E5M2, F8E8M0};
pub use fields::{
    Activation, GatePosition, GateSource, LseBase, MlaCacheFormat, ModulationRounding,
    PeerAlgorithm, PeerSumRounding, QuantDivision, QuantSource, ResidualRounding, RopeRounding,
    Rounding, ScaleLayout, SumRounding,
};
pub use info::Info;
pub use mla_decode::{
    decode_profile, write_trace, MlaDecode, ProfileEvent, ProfileId, ProfileKind,
};
pub use nccl::{
    load_nccl, nccl_allreduce_norm_all, nccl_sequence_norm_all, nccl_version, set_nccl_functions,
    Nccl, NcclCall, NcclOptions, NcclRank, NcclSequenceNorm,
};
pub use norm::{norm_many, norm_many_prepare, norm_many_query, norm_many_with, Norm};
pub use norm_backward::{
    norm_backward_many, norm_backward_many_prepare, norm_backward_many_query,
    norm_backward_many_with, NormBackward,
};
pub use norm_heads::NormHeads;
pub use norm_heads_backward::NormHeadsBackward;
pub use norm_heads_backward_part::NormHeadsBackwardPart;
pub use norm_heads_part::NormHeadsPart;
pub use parallel::{Chunks, Work};
pub use peer::{
    Peer, PeerAllreduceNorm, PeerBlob, PeerError, PeerOptions, PeerShardedNorm, PeerState,
    MAX_RANKS,
};
pub use quant::Quant;
pub use status::{check, Error, Result, Status};
pub use tensor::{Tensor, TensorMut, MAX_RANK};
pub use version::{build_info, numeric_version, version, version_string, REQUIRED_VERSION};

/// The 16-bit types of the crate `half`, as [`Element`]s.
pub use half::{bf16, f16};

/// The C ABI, for what this crate does not have.
pub use fastnorm_sys as sys;

use std::ffi::{c_char, CStr};

/// A text of the library's that lives as long as the program.
fn static_text(text: *const c_char) -> &'static str {
    if text.is_null() {
        return "";
    }
    // SAFETY: the library's static strings end with a zero; it is never unloaded.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}
