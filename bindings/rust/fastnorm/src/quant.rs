//! Quantised outputs.

use crate::tensor::View;
use crate::{sys, Tensor, TensorMut};
use std::fmt;
use std::marker::PhantomData;

/// What is quantised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuantSource {
    /// The unrounded result.
    #[default]
    Exact,
    /// The result rounded to x's dtype, as an unfused chain would.
    Rounded,
}

/// How a code is made of a value and its scale. With scales that are powers of two both are the
/// same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuantDivision {
    /// Times the rounded reciprocal of the scale.
    #[default]
    MultiplyReciprocal,
    /// Divided by the scale, as vLLM's dynamic fp8.
    Divide,
}

/// Order of the scales in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScaleLayout {
    /// Rows of scales.
    #[default]
    RowMajor,
    /// Columns of scales.
    ColumnMajor,
    /// Tiles of 128 rows x 4 scales, padding zeroed; one-dimensional bytes.
    Swizzled128x4,
}

/// A quantised output of a [`Norm`](crate::Norm), with its scales.
///
/// `quantized` has x's shape and the quantised dtype. It and the scales are written, except that
/// the one scale of [`Quant::per_tensor`] is an input.
///
/// ```
/// # use fastnorm::*;
/// # let context = Context::cpu()?;
/// let x = [0.5f32; 64];
/// let (mut quantized, mut scale) = ([F8E4M3::default(); 64], [0f32; 4]);
/// Norm::rms(1e-6)
///     .x(Tensor::new(&x, &[4, 16])?)
///     .quant(Quant::per_row(
///         TensorMut::new(&mut quantized, &[4, 16])?,
///         TensorMut::new(&mut scale, &[4])?,
///     ))
///     .run(&context)?;
/// assert_eq!(quantized[0].to_f32(), 448.0);
/// assert!((quantized[0].to_f32() * scale[0] - 1.0).abs() < 1e-5); // 0.5 over an rms of 0.5
/// # Ok::<(), Error>(())
/// ```
#[must_use]
pub struct Quant<'a> {
    pub(crate) scheme: sys::fastnorm_quant_scheme,
    pub(crate) block_size: i32,
    pub(crate) source: QuantSource,
    pub(crate) layout: ScaleLayout,
    pub(crate) pow2: bool,
    pub(crate) amax_floor: f32,
    pub(crate) clamp: f32,
    pub(crate) division: QuantDivision,
    pub(crate) quantized: View,
    pub(crate) scale: View,
    pub(crate) global_scale: Option<View>,
    pub(crate) amax: Option<View>,
    pub(crate) clamp_scale: Option<View>,
    borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it holds borrows of plain numbers, as TensorMut does.
unsafe impl Send for Quant<'_> {}
// SAFETY: as above; nothing can be done with a shared one.
unsafe impl Sync for Quant<'_> {}

impl<'a> Quant<'a> {
    fn new(scheme: sys::fastnorm_quant_scheme, quantized: &TensorMut<'a>, scale: View) -> Self {
        Self {
            scheme,
            block_size: 0,
            source: QuantSource::default(),
            layout: ScaleLayout::default(),
            pow2: false,
            amax_floor: 0.0,
            clamp: 0.0,
            division: QuantDivision::default(),
            quantized: quantized.view,
            scale,
            global_scale: None,
            amax: None,
            clamp_scale: None,
            borrow: PhantomData,
        }
    }

    /// One scale, `[1]` f32, an input.
    #[allow(clippy::needless_pass_by_value)] // the borrow moves in
    pub fn per_tensor(quantized: TensorMut<'a>, scale: Tensor<'a>) -> Self {
        Self::new(sys::FASTNORM_QUANT_PER_TENSOR, &quantized, scale.view)
    }

    /// A scale a row, from the row's largest magnitude: f32 of x's shape without its last
    /// dimension.
    #[allow(clippy::needless_pass_by_value)]
    pub fn per_row(quantized: TensorMut<'a>, scale: TensorMut<'a>) -> Self {
        Self::new(sys::FASTNORM_QUANT_PER_ROW, &quantized, scale.view)
    }

    /// A scale for each block of `block_size` columns of a row, 64 or 128.
    #[allow(clippy::needless_pass_by_value)]
    pub fn per_block(block_size: usize, quantized: TensorMut<'a>, scale: TensorMut<'a>) -> Self {
        let block_size = i32::try_from(block_size).unwrap_or(i32::MAX);
        Self {
            block_size,
            ..Self::new(sys::FASTNORM_QUANT_PER_BLOCK, &quantized, scale.view)
        }
    }

    /// fp8 with a power-of-two scale for 32 columns.
    #[allow(clippy::needless_pass_by_value)]
    pub fn mxfp8(quantized: TensorMut<'a>, scale: TensorMut<'a>) -> Self {
        Self::new(sys::FASTNORM_QUANT_MXFP8, &quantized, scale.view)
    }

    /// fp4 with an e4m3 scale for 16 columns, and a [global scale](Self::global_scale).
    #[allow(clippy::needless_pass_by_value)]
    pub fn nvfp4(quantized: TensorMut<'a>, scale: TensorMut<'a>) -> Self {
        Self::new(sys::FASTNORM_QUANT_NVFP4, &quantized, scale.view)
    }

    /// fp4 with a power-of-two scale for 32 columns.
    #[allow(clippy::needless_pass_by_value)]
    pub fn mxfp4(quantized: TensorMut<'a>, scale: TensorMut<'a>) -> Self {
        Self::new(sys::FASTNORM_QUANT_MXFP4, &quantized, scale.view)
    }

    /// NVFP4's second scale, `[1]` f32. Default: 1.
    pub fn global_scale(mut self, scale: Tensor<'a>) -> Self {
        self.global_scale = Some(scale.view);
        self
    }

    /// The clamp as a `[1]` f32 on the device, read when the norm runs. A value that is not > 0 is
    /// off. It goes with [`clamp`](Self::clamp) 0 alone. Default: none.
    pub fn clamp_scale(mut self, clamp: Tensor<'a>) -> Self {
        self.clamp_scale = Some(clamp.view);
        self
    }

    /// The largest magnitude seen is maximised into this `[1]` f32.
    #[allow(clippy::needless_pass_by_value)]
    pub fn amax(mut self, amax: TensorMut<'a>) -> Self {
        self.amax = Some(amax.view);
        self
    }

    /// What is quantised. Default: the unrounded result.
    pub fn source(mut self, source: QuantSource) -> Self {
        self.source = source;
        self
    }

    /// Order of the scales in memory. Default: row-major.
    pub fn layout(mut self, layout: ScaleLayout) -> Self {
        self.layout = layout;
        self
    }

    /// Whether dynamic fp8 scales are rounded up to a power of two. Default: no.
    pub fn pow2(mut self, pow2: bool) -> Self {
        self.pow2 = pow2;
        self
    }

    /// The least magnitude that a dynamic scale is made from. Default, and for 0: 1e-10.
    pub fn amax_floor(mut self, floor: f32) -> Self {
        self.amax_floor = floor;
        self
    }

    /// Results are clamped to [-clamp, clamp] before quantising. Default, and for 0: they are not.
    pub fn clamp(mut self, clamp: f32) -> Self {
        self.clamp = clamp;
        self
    }

    /// How codes are made, with a scale for the tensor, a row or a block. Default: times the
    /// reciprocal.
    pub fn division(mut self, division: QuantDivision) -> Self {
        self.division = division;
        self
    }
}

impl QuantSource {
    pub(crate) fn raw(self) -> sys::fastnorm_quant_source {
        match self {
            Self::Exact => sys::FASTNORM_QUANT_FROM_F32,
            Self::Rounded => sys::FASTNORM_QUANT_FROM_ROUNDED,
        }
    }
}

impl QuantDivision {
    pub(crate) fn raw(self) -> sys::fastnorm_quant_division {
        match self {
            Self::MultiplyReciprocal => sys::FASTNORM_QUANT_MULTIPLY_RECIPROCAL,
            Self::Divide => sys::FASTNORM_QUANT_DIVIDE,
        }
    }
}

impl ScaleLayout {
    pub(crate) fn raw(self) -> sys::fastnorm_scale_layout {
        match self {
            Self::RowMajor => sys::FASTNORM_SCALE_ROW_MAJOR,
            Self::ColumnMajor => sys::FASTNORM_SCALE_COLUMN_MAJOR,
            Self::Swizzled128x4 => sys::FASTNORM_SCALE_SWIZZLED_128X4,
        }
    }
}

impl fmt::Debug for Quant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quant")
            .field("scheme", &self.scheme)
            .field("quantized", &self.quantized)
            .field("scale", &self.scale)
            .finish_non_exhaustive()
    }
}
