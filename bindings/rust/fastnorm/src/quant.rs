//! Quantised outputs.

use crate::fields::QuantViews;
use crate::tensor::View;
use crate::{sys, Tensor, TensorMut};
use std::marker::PhantomData;

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
    pub(crate) args: sys::fastnorm_quant,
    pub(crate) views: QuantViews,
    pub(crate) borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it holds borrows of plain numbers, as TensorMut does. The pointers of `args` are set anew
// in every call.
unsafe impl Send for Quant<'_> {}
// SAFETY: as above; nothing can be done with a shared one.
unsafe impl Sync for Quant<'_> {}

impl<'a> Quant<'a> {
    fn new(scheme: sys::fastnorm_quant_scheme, quantized: &TensorMut<'a>, scale: View) -> Self {
        let mut quant = Self::none();
        quant.args.scheme = scheme;
        quant.put_quantized(quantized.view).put_scale(scale)
    }

    /// One that makes no codes, until it is told how a cache has them.
    pub(crate) fn none() -> Self {
        Self {
            args: sys::fastnorm_quant::new(),
            views: QuantViews::new(),
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
        let mut quant = Self::new(sys::FASTNORM_QUANT_PER_BLOCK, &quantized, scale.view);
        quant.args.block_size = i32::try_from(block_size).unwrap_or(i32::MAX);
        quant
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Setters of one field are tested in fields.rs.
    #[test]
    fn schemes() {
        let mut buffers = [([0u8; 1], [0f32; 2]); 5];
        let one = [0f32; 2];
        let [row, block, mxfp8, nvfp4, mxfp4] = buffers.each_mut().map(|(codes, scale)| {
            let codes = TensorMut::new(codes, &[1]).unwrap();
            (codes, TensorMut::new(scale, &[2]).unwrap())
        });
        let mut codes = [0u8; 1];
        let codes = TensorMut::new(&mut codes, &[1]).unwrap();
        let mut quants = [
            Quant::per_tensor(codes, Tensor::new(&one, &[2]).unwrap()),
            Quant::per_row(row.0, row.1),
            Quant::per_block(128, block.0, block.1),
            Quant::mxfp8(mxfp8.0, mxfp8.1),
            Quant::nvfp4(nvfp4.0, nvfp4.1),
            Quant::mxfp4(mxfp4.0, mxfp4.1),
        ];
        for (quant, scheme) in quants.iter_mut().zip(1..) {
            // SAFETY: linked just now, to tensors of rank 1.
            let (args, codes, scale) = unsafe {
                let args = *quant.link();
                (args, *(*args.quantized).shape, *(*args.scale).shape)
            };
            assert_eq!(args.struct_size, size_of_val(&args));
            assert_eq!((args.scheme, codes, scale), (scheme, 1, 2));
            assert_eq!(args.block_size, if scheme == 3 { 128 } else { 0 });
        }
    }
}
