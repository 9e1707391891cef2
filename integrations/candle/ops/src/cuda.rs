//! CUDA devices: on the stream of candle's device.

use std::ffi::c_void;
use std::sync::OnceLock;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop,
};
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::op::BackpropOp;
use candle_core::{bail, CudaDevice, CudaStorage, Layout, Result, Shape, Storage, Tensor};
use fastnorm::{Context, DType};
use half::{bf16, f16};

use crate::op::{nothing, Gradients, Norm, Wanted};
use crate::view::{dtype_of, wrap, Dims, Input, Memory, Queue};

/// More CUDA devices than a system has.
const MOST_DEVICES: usize = 128;

/// The context of a device, made at its first call and kept. Later calls take no lock.
fn context(stream: &CudaStream) -> Result<&'static Context> {
    static CONTEXTS: [OnceLock<Context>; MOST_DEVICES] = [const { OnceLock::new() }; MOST_DEVICES];
    let ordinal = stream.context().ordinal();
    let Some(context) = CONTEXTS.get(ordinal) else {
        bail!("the CUDA device is {ordinal}; required: less than {MOST_DEVICES}")
    };
    if let Some(context) = context.get() {
        return Ok(context);
    }
    // Where several threads make one, the first one is kept.
    let made = Context::cuda(ordinal as i32).map_err(wrap)?;
    Ok(context.get_or_init(|| made))
}

/// Where calls of a device go. Candle's device keeps its stream, and a caller keeps the device
/// during the call.
fn queue(stream: &CudaStream) -> Result<Queue<'static>> {
    Ok(Queue {
        context: context(stream)?,
        stream: stream.cu_stream().cast(),
    })
}

/// An input, and a guard that orders work of other streams. It is dropped when the call is queued.
#[inline]
fn input<'a>(
    storage: &'a CudaStorage,
    layout: &'a Layout,
    stream: &'a CudaStream,
) -> Result<(Input<'a>, SyncOnDrop<'a>)> {
    let ((address, guard), dtype) = match &storage.slice {
        CudaStorageSlice::F32(data) => (data.device_ptr(stream), DType::F32),
        CudaStorageSlice::F16(data) => (data.device_ptr(stream), DType::F16),
        CudaStorageSlice::BF16(data) => (data.device_ptr(stream), DType::BF16),
        _ => bail!("a storage is of a dtype that the library does not have"),
    };
    let base = address as *const c_void;
    Ok((
        Input {
            base,
            dtype,
            layout,
        },
        guard,
    ))
}

/// Memory for an output, which a call writes.
enum Output {
    F32(CudaSlice<f32>),
    F16(CudaSlice<f16>),
    BF16(CudaSlice<bf16>),
}

impl Output {
    fn new(device: &CudaDevice, dtype: DType, count: usize) -> Result<Self> {
        // CUDA may refuse an allocation of nothing.
        let count = count.max(1);
        // SAFETY: the call that it is made for writes all of it.
        unsafe {
            Ok(match dtype {
                DType::F32 => Self::F32(device.alloc(count)?),
                DType::F16 => Self::F16(device.alloc(count)?),
                DType::BF16 => Self::BF16(device.alloc(count)?),
                _ => bail!("{dtype:?} is no dtype of an output"),
            })
        }
    }

    /// Its memory, and a guard as that of [`input`].
    fn memory<'g>(&'g mut self, stream: &'g CudaStream) -> (Memory, SyncOnDrop<'g>) {
        let ((address, guard), dtype) = match self {
            Self::F32(data) => (data.device_ptr_mut(stream), DType::F32),
            Self::F16(data) => (data.device_ptr_mut(stream), DType::F16),
            Self::BF16(data) => (data.device_ptr_mut(stream), DType::BF16),
        };
        let address = address as *mut c_void;
        (Memory { address, dtype }, guard)
    }

    fn storage(self, device: &CudaDevice) -> CudaStorage {
        let slice = match self {
            Self::F32(data) => CudaStorageSlice::F32(data),
            Self::F16(data) => CudaStorageSlice::F16(data),
            Self::BF16(data) => CudaStorageSlice::BF16(data),
        };
        CudaStorage {
            slice,
            device: device.clone(),
        }
    }
}

pub(crate) fn forward(
    norm: Norm,
    x: (&CudaStorage, &Layout),
    weight: Option<(&CudaStorage, &Layout)>,
    bias: Option<(&CudaStorage, &Layout)>,
) -> Result<(CudaStorage, Shape)> {
    let device = x.0.device();
    let stream = &*device.cuda_stream();
    let shape = x.1.shape().clone();
    let dims = Dims::of(&[x.1])?;
    let (x, _x_guard) = input(x.0, x.1, stream)?;
    let mut y = Output::new(device, x.dtype, shape.elem_count())?;
    if let Some(dims) = dims {
        let vector = |of: Option<(_, _)>| of.map(|of| input(of.0, of.1, stream)).transpose();
        let (weight, bias) = (vector(weight)?, vector(bias)?);
        let vectors = [&weight, &bias].map(|of| of.as_ref().map(|(input, _guard)| *input));
        let (memory, _y_guard) = y.memory(stream);
        // SAFETY: candle's storages cover their layouts, and memory that is freed on the stream
        // is there until the stream has run the call; `Norm::apply` made weight and bias
        // contiguous.
        unsafe { norm.run(queue(stream)?, &dims, x, vectors, memory)? };
    }
    Ok((y.storage(device), shape))
}

pub(crate) fn backward(
    norm: Norm,
    x: &Tensor,
    weight: Option<&Tensor>,
    dy: &Tensor,
    wanted: Wanted<'_>,
) -> Result<Gradients> {
    let (x_read, dy_read) = (x.storage_and_layout(), dy.storage_and_layout());
    let Some(dims) = Dims::of(&[x_read.1, dy_read.1])? else {
        return nothing(x, wanted);
    };
    let x_storage = cuda_storage(&x_read.0)?;
    let device = x_storage.device();
    let stream = &*device.cuda_stream();
    let (x_input, _x_guard) = input(x_storage, x_read.1, stream)?;
    let (dy_input, _dy_guard) = input(cuda_storage(&dy_read.0)?, dy_read.1, stream)?;
    let weight = weight.map(Tensor::storage_and_layout);
    let weight = weight
        .as_ref()
        .map(|(storage, layout)| input(cuda_storage(storage)?, layout, stream))
        .transpose()?;
    let output = |of: &Tensor| Output::new(device, dtype_of(of)?, of.elem_count());
    let mut dx = wanted.dx.then(|| output(x)).transpose()?;
    let mut dweight = wanted.dweight.map(output).transpose()?;
    let mut dbias = wanted.dbias.map(output).transpose()?;
    let mut scratch: Option<CudaSlice<u8>> = None;
    {
        let outputs = [&mut dx, &mut dweight, &mut dbias];
        let written = outputs.map(|to| to.as_mut().map(|to| to.memory(stream)));
        // SAFETY: candle's storages cover their layouts, and memory that is freed on the stream
        // is there until the stream has run the call; `Norm::apply` made the weight contiguous.
        unsafe {
            norm.run_backward(
                queue(stream)?,
                &dims,
                [x_input, dy_input],
                weight.as_ref().map(|(input, _guard)| *input),
                [0, 1, 2].map(|i| written[i].as_ref().map(|(memory, _guard)| *memory)),
                |bytes| {
                    let made = scratch.insert(device.alloc(bytes)?);
                    // Made, used and freed on this stream, so that nothing has to wait.
                    Ok(made.device_ptr_mut(stream).0 as *mut c_void)
                },
            )?;
        }
    }
    let tensor = |output: Output, of: &Tensor| {
        let storage = Storage::Cuda(output.storage(device));
        Tensor::from_storage(storage, of.shape(), BackpropOp::none(), false)
    };
    Ok(Gradients {
        dx: dx.map(|dx| tensor(dx, x)),
        dweight: dweight.zip(wanted.dweight).map(|(d, of)| tensor(d, of)),
        dbias: dbias.zip(wanted.dbias).map(|(d, of)| tensor(d, of)),
    })
}

fn cuda_storage(storage: &Storage) -> Result<&CudaStorage> {
    match storage {
        Storage::Cuda(storage) => Ok(storage),
        _ => bail!("a tensor of the backward pass is not on the CUDA device, where x is"),
    }
}
