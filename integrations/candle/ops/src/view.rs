//! Candle's layouts as the library's tensors.

use std::ffi::c_void;

use candle_core::{bail, DType, Layout, Result, Tensor};

/// The rank up to which strides are passed on as they are. The library joins dimensions of higher
/// ranks, which it cannot do for all strides.
const STRIDED_RANK: usize = 4;

/// The tensor where the library can read it, else a contiguous copy.
pub(crate) fn readable(x: &Tensor) -> Result<Tensor> {
    let one_step = matches!(x.stride(), [leading @ .., 1] if leading.len() < STRIDED_RANK);
    if one_step || x.is_contiguous() {
        Ok(x.clone())
    } else {
        x.contiguous()
    }
}

/// The dtype of a tensor, without a look at its storage, which may be locked.
pub(crate) fn dtype_of(tensor: &Tensor) -> Result<fastnorm::DType> {
    Ok(match tensor.dtype() {
        DType::F32 => fastnorm::DType::F32,
        DType::F16 => fastnorm::DType::F16,
        DType::BF16 => fastnorm::DType::BF16,
        dtype => bail!("a tensor is of {dtype:?}, which the library does not have"),
    })
}

pub(crate) fn wrap(error: fastnorm::Error) -> candle_core::Error {
    candle_core::Error::wrap(error)
}

/// Shape and strides that some tensors of one shape have for the library: rows and columns where
/// all are contiguous, else their own.
pub(crate) struct Dims {
    shape: [usize; STRIDED_RANK],
    rank: usize,
}

impl Dims {
    /// None where there are no elements. The layouts are those of [`readable`] tensors.
    pub(crate) fn of(layouts: &[&Layout]) -> Result<Option<Self>> {
        let dims = layouts[0].dims();
        if dims.contains(&0) {
            return Ok(None);
        }
        let mut shape = [1; STRIDED_RANK];
        if layouts.iter().all(|layout| layout.is_contiguous()) {
            let n = dims.last().copied().unwrap_or(1);
            (shape[0], shape[1]) = (dims.iter().product::<usize>() / n, n);
            return Ok(Some(Self { shape, rank: 2 }));
        }
        let rank = dims.len();
        if rank > STRIDED_RANK {
            bail!("a strided tensor has rank {rank}; required: at most {STRIDED_RANK}")
        }
        shape[..rank].copy_from_slice(dims);
        Ok(Some(Self { shape, rank }))
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape[..self.rank]
    }

    /// The tensor of a layout, in a storage that begins at `base`.
    ///
    /// # Safety
    /// The storage has the dtype and covers the layout, until every call with the tensor has run.
    pub(crate) unsafe fn tensor<'a>(
        &self,
        device: fastnorm::Device,
        base: *const c_void,
        dtype: fastnorm::DType,
        layout: &Layout,
    ) -> Result<fastnorm::Tensor<'a>> {
        let address = first(base, dtype, layout);
        let tensor = if layout.is_contiguous() {
            // SAFETY: the caller promises it.
            unsafe { fastnorm::Tensor::from_device(device, address, dtype, self.shape()) }
        } else {
            let mut strides = [0; STRIDED_RANK];
            for (to, &from) in strides.iter_mut().zip(layout.stride()) {
                *to = isize::try_from(from).map_err(candle_core::Error::wrap)?;
            }
            let strides = &strides[..self.rank];
            // SAFETY: the caller promises it.
            unsafe {
                fastnorm::Tensor::from_device_strided(device, address, dtype, self.shape(), strides)
            }
        };
        tensor.map_err(wrap)
    }
}

/// The tensor of a weight or bias.
///
/// # Safety
/// As for [`Dims::tensor`]; the layout is contiguous.
pub(crate) unsafe fn vector<'a>(
    device: fastnorm::Device,
    base: *const c_void,
    dtype: fastnorm::DType,
    layout: &Layout,
) -> Result<fastnorm::Tensor<'a>> {
    let address = first(base, dtype, layout);
    // SAFETY: the caller promises it.
    unsafe { fastnorm::Tensor::from_device(device, address, dtype, layout.dims()) }.map_err(wrap)
}

/// The address of a layout's first element.
fn first(base: *const c_void, dtype: fastnorm::DType, layout: &Layout) -> *const c_void {
    let size = usize::from(dtype.bits()) / 8;
    base.wrapping_byte_add(layout.start_offset() * size)
}
