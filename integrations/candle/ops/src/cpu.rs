//! The CPU: on rayon's threads.

use std::ffi::c_void;
use std::sync::OnceLock;

use candle_core::op::BackpropOp;
use candle_core::{bail, CpuStorage, Layout, Result, Shape, Storage, Tensor};
use fastnorm::{Context, ContextOptions, DType, Device, TensorMut, Work};
use half::{bf16, f16};

use crate::op::{nothing, Gradients, Norm, Wanted};
use crate::view::{dtype_of, vector, wrap, Dims};

/// The context of all calls. Its loop asks rayon for the pool anew in each call.
fn context() -> Result<&'static Context> {
    static CONTEXT: OnceLock<fastnorm::Result<Context>> = OnceLock::new();
    CONTEXT
        .get_or_init(|| {
            ContextOptions::new(Device::CPU)
                .parallel_for(spread)
                .create()
        })
        .as_ref()
        .map_err(|error| wrap(error.clone()))
}

/// Runs the work on the threads of the pool that the call is made from, or of the global one.
fn spread(work: Work<'_>) {
    let piece = work.len().div_ceil(rayon::current_num_threads());
    halve(piece.max(work.grain()), work);
}

/// Runs the work in pieces of at most `piece` units.
fn halve(piece: usize, work: Work<'_>) {
    if work.len() <= piece {
        return work.run();
    }
    let pieces = work.len().div_ceil(piece);
    let (first, rest) = work.split_at(pieces / 2 * piece);
    rayon::join(|| halve(piece, first), || halve(piece, rest));
}

/// Where a storage begins, and its dtype.
fn begin(storage: &CpuStorage) -> Result<(*const c_void, DType)> {
    Ok(match storage {
        CpuStorage::F32(data) => (data.as_ptr().cast(), DType::F32),
        CpuStorage::F16(data) => (data.as_ptr().cast(), DType::F16),
        CpuStorage::BF16(data) => (data.as_ptr().cast(), DType::BF16),
        _ => bail!("a storage is of a dtype that the library does not have"),
    })
}

/// Memory for an output, which a call writes.
enum Output {
    F32(Vec<f32>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

impl Output {
    fn new(dtype: DType, count: usize) -> Result<Self> {
        Ok(match dtype {
            DType::F32 => Self::F32(Vec::with_capacity(count)),
            DType::F16 => Self::F16(Vec::with_capacity(count)),
            DType::BF16 => Self::BF16(Vec::with_capacity(count)),
            _ => bail!("{dtype:?} is no dtype of an output"),
        })
    }

    fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F16(_) => DType::F16,
            Self::BF16(_) => DType::BF16,
        }
    }

    /// # Safety
    /// The capacity covers the shape, and the output is neither moved nor read until the call with
    /// the tensor has returned.
    unsafe fn tensor<'a>(&mut self, shape: &[usize]) -> Result<TensorMut<'a>> {
        let address = match self {
            Self::F32(data) => data.as_mut_ptr().cast(),
            Self::F16(data) => data.as_mut_ptr().cast(),
            Self::BF16(data) => data.as_mut_ptr().cast(),
        };
        // SAFETY: the caller promises it.
        unsafe { TensorMut::from_device(Device::CPU, address, self.dtype(), shape) }.map_err(wrap)
    }

    /// # Safety
    /// A call has written the first `count` elements.
    unsafe fn written(self, count: usize) -> CpuStorage {
        // SAFETY: the caller promises it, and `new` reserved them.
        unsafe {
            match self {
                Self::F32(mut data) => {
                    data.set_len(count);
                    CpuStorage::F32(data)
                }
                Self::F16(mut data) => {
                    data.set_len(count);
                    CpuStorage::F16(data)
                }
                Self::BF16(mut data) => {
                    data.set_len(count);
                    CpuStorage::BF16(data)
                }
            }
        }
    }
}

pub(crate) fn forward(
    norm: Norm,
    x: (&CpuStorage, &Layout),
    weight: Option<(&CpuStorage, &Layout)>,
    bias: Option<(&CpuStorage, &Layout)>,
) -> Result<(CpuStorage, Shape)> {
    let (base, dtype) = begin(x.0)?;
    let shape = x.1.shape().clone();
    let count = shape.elem_count();
    let mut y = Output::new(dtype, count)?;
    if let Some(dims) = Dims::of(&[x.1])? {
        // SAFETY: candle's storages cover their layouts and outlive the call, which ends before
        // `y` is moved.
        let mut call = unsafe {
            norm.forward()
                .x(dims.tensor(Device::CPU, base, dtype, x.1)?)
                .y(y.tensor(dims.shape())?)
        };
        if let Some((storage, layout)) = weight {
            let (base, dtype) = begin(storage)?;
            // SAFETY: as above; `Norm::apply` made the weight contiguous.
            call = call.weight(unsafe { vector(Device::CPU, base, dtype, layout)? });
        }
        if let Some((storage, layout)) = bias {
            let (base, dtype) = begin(storage)?;
            // SAFETY: as above.
            call = call.bias(unsafe { vector(Device::CPU, base, dtype, layout)? });
        }
        call.run(context()?).map_err(wrap)?;
    }
    // SAFETY: the call has written all elements, if there are any.
    Ok((unsafe { y.written(count) }, shape))
}

pub(crate) fn backward(
    norm: Norm,
    x: &Tensor,
    weight: Option<&Tensor>,
    dy: &Tensor,
    wanted: Wanted<'_>,
) -> Result<Gradients> {
    let (x_guard, x_layout) = x.storage_and_layout();
    let (dy_guard, dy_layout) = dy.storage_and_layout();
    let Some(dims) = Dims::of(&[x_layout, dy_layout])? else {
        return nothing(x, wanted);
    };
    let (x_base, x_dtype) = begin(cpu_storage(&x_guard)?)?;
    let (dy_base, dy_dtype) = begin(cpu_storage(&dy_guard)?)?;
    let output = |of: &Tensor| Output::new(dtype_of(of)?, of.elem_count());
    let mut dx = wanted.dx.then(|| output(x)).transpose()?;
    let mut dweight = wanted.dweight.map(output).transpose()?;
    let mut dbias = wanted.dbias.map(output).transpose()?;
    let weight_guard = weight.map(Tensor::storage_and_layout);
    // SAFETY: the guards keep candle's storages, which cover their layouts, and the call ends
    // before an output is moved.
    let mut call = unsafe {
        norm.backward()
            .x(dims.tensor(Device::CPU, x_base, x_dtype, x_layout)?)
            .dy(dims.tensor(Device::CPU, dy_base, dy_dtype, dy_layout)?)
    };
    if let Some((guard, layout)) = &weight_guard {
        let (base, dtype) = begin(cpu_storage(guard)?)?;
        // SAFETY: as above; `Norm::apply` made the weight contiguous.
        call = call.weight(unsafe { vector(Device::CPU, base, dtype, layout)? });
    }
    if let Some(dx) = &mut dx {
        // SAFETY: as above.
        call = call.dx(unsafe { dx.tensor(dims.shape())? });
    }
    if let (Some(dweight), Some(weight)) = (&mut dweight, wanted.dweight) {
        // SAFETY: as above.
        call = call.dweight(unsafe { dweight.tensor(weight.dims())? });
    }
    if let (Some(dbias), Some(bias)) = (&mut dbias, wanted.dbias) {
        // SAFETY: as above.
        call = call.dbias(unsafe { dbias.tensor(bias.dims())? });
    }
    call.run(context()?).map_err(wrap)?;
    let tensor = |output: Output, of: &Tensor| {
        // SAFETY: the call has written all elements.
        let storage = Storage::Cpu(unsafe { output.written(of.elem_count()) });
        Tensor::from_storage(storage, of.shape(), BackpropOp::none(), false)
    };
    Ok(Gradients {
        dx: dx.map(|dx| tensor(dx, x)),
        dweight: dweight.zip(wanted.dweight).map(|(d, of)| tensor(d, of)),
        dbias: dbias.zip(wanted.dbias).map(|(d, of)| tensor(d, of)),
    })
}

fn cpu_storage(storage: &Storage) -> Result<&CpuStorage> {
    match storage {
        Storage::Cpu(storage) => Ok(storage),
        _ => bail!("a tensor of the backward pass is not on the CPU, where x is"),
    }
}
