//! Candle's layouts as the library's tensors.

use std::borrow::Cow;
use std::ffi::c_void;
use std::ptr;

use candle_core::{bail, DType, Layout, Result, Tensor};
use fastnorm::{sys, Context};

/// The rank up to which strides are passed on as they are. The library joins dimensions of higher
/// ranks, which it cannot do for all strides.
const STRIDED_RANK: usize = 4;

/// The tensor where the library can read it, else a contiguous copy.
pub(crate) fn readable(x: &Tensor) -> Result<Cow<'_, Tensor>> {
    if matches!(x.stride(), [leading @ .., 1] if leading.len() < STRIDED_RANK) {
        Ok(Cow::Borrowed(x))
    } else {
        contiguous(x)
    }
}

/// The tensor where it is contiguous, else a copy that is.
pub(crate) fn contiguous(x: &Tensor) -> Result<Cow<'_, Tensor>> {
    if x.is_contiguous() {
        Ok(Cow::Borrowed(x))
    } else {
        x.contiguous().map(Cow::Owned)
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
    shape: [i64; STRIDED_RANK],
    rank: usize,
    strided: bool, // one of them at least
}

impl Dims {
    /// None where there are no elements. The layouts are those of [`readable`] tensors.
    #[inline]
    pub(crate) fn of(layouts: &[&Layout]) -> Result<Option<Self>> {
        let dims = layouts[0].dims();
        if dims.contains(&0) {
            return Ok(None);
        }
        let mut shape = [1; STRIDED_RANK];
        if layouts.iter().all(|layout| layout.is_contiguous()) {
            let n = dims.last().copied().unwrap_or(1);
            (shape[0], shape[1]) = ((dims.iter().product::<usize>() / n) as i64, n as i64);
            return Ok(Some(Self {
                shape,
                rank: 2,
                strided: false,
            }));
        }
        let rank = dims.len();
        if rank > STRIDED_RANK {
            bail!("a strided tensor has rank {rank}; required: at most {STRIDED_RANK}")
        }
        for (to, &from) in shape.iter_mut().zip(dims) {
            *to = from as i64;
        }
        Ok(Some(Self {
            shape,
            rank,
            strided: true,
        }))
    }

    /// Those of a weight or bias.
    #[inline]
    pub(crate) fn of_columns(&self) -> Self {
        let mut shape = [1; STRIDED_RANK];
        shape[0] = self.shape[self.rank - 1];
        Self {
            shape,
            rank: 1,
            strided: false,
        }
    }
}

/// Where calls go: a device, and a stream of it, which is null on the CPU.
#[derive(Clone, Copy)]
pub(crate) struct Queue<'a> {
    pub context: &'a Context,
    pub stream: *mut c_void,
}

/// An input of a call: where its storage begins, and its layout there.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub base: *const c_void,
    pub dtype: fastnorm::DType,
    pub layout: &'a Layout,
}

/// Memory of an output.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub address: *mut c_void,
    pub dtype: fastnorm::DType,
}

/// A tensor of the C ABI with its shape and strides beside it.
///
/// The builders of the crate `fastnorm` have room for every tensor that a description may have, so
/// that one of them is copied at each step where what is set is known at run time only. An
/// [`Operand`] stays where it is.
pub(crate) struct Operand {
    tensor: sys::fastnorm_tensor,
    shape: [i64; STRIDED_RANK],
    strides: [i64; STRIDED_RANK],
    strided: bool,
}

impl Operand {
    /// An input whose dimensions are these.
    #[inline]
    pub(crate) fn new(device: fastnorm::Device, input: Input<'_>, dims: &Dims) -> Self {
        let mut operand = Self::vector(device, input, dims);
        if dims.strided && !input.layout.is_contiguous() {
            for (to, &from) in operand.strides.iter_mut().zip(input.layout.stride()) {
                *to = from as i64;
            }
            operand.strided = true;
        }
        operand
    }

    /// A contiguous input.
    #[inline]
    pub(crate) fn vector(device: fastnorm::Device, input: Input<'_>, dims: &Dims) -> Self {
        let offset = input.layout.start_offset() * usize::from(input.dtype.bits()) / 8;
        let memory = Memory {
            address: input.base.wrapping_byte_add(offset).cast_mut(), // only read
            dtype: input.dtype,
        };
        Self::compact(device, memory, dims)
    }

    /// A tensor without gaps.
    #[inline]
    pub(crate) fn compact(device: fastnorm::Device, memory: Memory, dims: &Dims) -> Self {
        Self {
            tensor: sys::fastnorm_tensor {
                data: memory.address,
                device_type: device.device_type.code(),
                device_id: device.id,
                ndim: dims.rank as i32,
                dtype: memory.dtype.raw(),
                ..sys::fastnorm_tensor::new()
            },
            shape: dims.shape,
            strides: [0; STRIDED_RANK],
            strided: false,
        }
    }

    /// The tensor for a call, until the operand moves.
    #[inline]
    pub(crate) fn link(&mut self) -> *const sys::fastnorm_tensor {
        self.tensor.shape = self.shape.as_ptr();
        if self.strided {
            self.tensor.strides = self.strides.as_ptr();
        }
        &self.tensor
    }

    /// As [`link`](Self::link); null where there is none.
    #[inline]
    pub(crate) fn link_some(operand: &mut Option<Self>) -> *const sys::fastnorm_tensor {
        operand.as_mut().map_or(ptr::null(), Self::link)
    }
}
