//! CUDA devices: on the stream of candle's device.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop,
};
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::op::BackpropOp;
use candle_core::{bail, CudaDevice, CudaStorage, Layout, Result, Shape, Storage, Tensor};
use fastnorm::{Context, DType, Device, Stream, TensorMut, Workspace};
use half::{bf16, f16};

use crate::op::{nothing, Gradients, Norm, Wanted};
use crate::view::{dtype_of, vector, wrap, Dims};

/// The context of a device, made at its first call and kept.
fn context(stream: &CudaStream) -> Result<Arc<Context>> {
    static CONTEXTS: OnceLock<Mutex<HashMap<usize, Arc<Context>>>> = OnceLock::new();
    let contexts = CONTEXTS.get_or_init(Mutex::default);
    let mut contexts = contexts.lock().unwrap_or_else(PoisonError::into_inner);
    let ordinal = stream.context().ordinal();
    if let Some(context) = contexts.get(&ordinal) {
        return Ok(context.clone());
    }
    let id = i32::try_from(ordinal).map_err(candle_core::Error::wrap)?;
    let context = Arc::new(Context::cuda(id).map_err(wrap)?);
    contexts.insert(ordinal, context.clone());
    Ok(context)
}

fn raw(stream: &CudaStream) -> Stream {
    // SAFETY: candle's device keeps its stream, and a caller keeps the device during the call.
    unsafe { Stream::from_raw(stream.cu_stream().cast()) }
}

/// Where a storage begins, and its dtype. What the guard is for: it orders work of other streams.
fn begin<'a>(
    storage: &'a CudaStorage,
    stream: &'a CudaStream,
) -> Result<(*const c_void, DType, SyncOnDrop<'a>)> {
    let ((address, guard), dtype) = match &storage.slice {
        CudaStorageSlice::F32(data) => (data.device_ptr(stream), DType::F32),
        CudaStorageSlice::F16(data) => (data.device_ptr(stream), DType::F16),
        CudaStorageSlice::BF16(data) => (data.device_ptr(stream), DType::BF16),
        _ => bail!("a storage is of a dtype that the library does not have"),
    };
    Ok((address as *const c_void, dtype, guard))
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

    /// # Safety
    /// The memory covers the shape, and is there until the call with the tensor has run.
    unsafe fn tensor<'a, 'g>(
        &'g mut self,
        of: Device,
        stream: &'g CudaStream,
        shape: &[usize],
    ) -> Result<(TensorMut<'a>, SyncOnDrop<'g>)> {
        let ((address, guard), dtype) = match self {
            Self::F32(data) => (data.device_ptr_mut(stream), DType::F32),
            Self::F16(data) => (data.device_ptr_mut(stream), DType::F16),
            Self::BF16(data) => (data.device_ptr_mut(stream), DType::BF16),
        };
        // SAFETY: the caller promises it.
        let tensor = unsafe { TensorMut::from_device(of, address as *mut c_void, dtype, shape) };
        Ok((tensor.map_err(wrap)?, guard))
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
    let (base, dtype, _x_guard) = begin(x.0, stream)?;
    let shape = x.1.shape().clone();
    let mut y = Output::new(device, dtype, shape.elem_count())?;
    if let Some(dims) = Dims::of(&[x.1])? {
        let context = context(stream)?;
        let of = context.device();
        // SAFETY: candle's storages cover their layouts, and memory that is freed on the stream
        // is there until the stream has run the call.
        let (y, _y_guard) = unsafe { y.tensor(of, stream, dims.shape())? };
        // SAFETY: as above.
        let x = unsafe { dims.tensor(of, base, dtype, x.1)? };
        let mut call = norm.forward().x(x).y(y);
        let mut guards = Vec::new();
        if let Some((storage, layout)) = weight {
            let (base, dtype, guard) = begin(storage, stream)?;
            guards.push(guard);
            // SAFETY: as above; `Norm::apply` made the weight contiguous.
            call = call.weight(unsafe { vector(of, base, dtype, layout)? });
        }
        if let Some((storage, layout)) = bias {
            let (base, dtype, guard) = begin(storage, stream)?;
            guards.push(guard);
            // SAFETY: as above.
            call = call.bias(unsafe { vector(of, base, dtype, layout)? });
        }
        call.run_on(&context, raw(stream)).map_err(wrap)?;
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
    let (x_storage, x_layout) = x.storage_and_layout();
    let (dy_storage, dy_layout) = dy.storage_and_layout();
    let Some(dims) = Dims::of(&[x_layout, dy_layout])? else {
        return nothing(x, wanted);
    };
    let x_storage = cuda_storage(&x_storage)?;
    let device = x_storage.device();
    let stream = &*device.cuda_stream();
    let context = context(stream)?;
    let of = context.device();
    let (x_base, x_dtype, _x_guard) = begin(x_storage, stream)?;
    let (dy_base, dy_dtype, _dy_guard) = begin(cuda_storage(&dy_storage)?, stream)?;
    let output = |of: &Tensor| Output::new(device, dtype_of(of)?, of.elem_count());
    let mut dx = wanted.dx.then(|| output(x)).transpose()?;
    let mut dweight = wanted.dweight.map(output).transpose()?;
    let mut dbias = wanted.dbias.map(output).transpose()?;
    let weight = weight.map(Tensor::storage_and_layout);
    // SAFETY: candle's storages cover their layouts, and memory that is freed on the stream is
    // there until the stream has run the call.
    let mut call = unsafe {
        norm.backward()
            .x(dims.tensor(of, x_base, x_dtype, x_layout)?)
            .dy(dims.tensor(of, dy_base, dy_dtype, dy_layout)?)
    };
    let mut guards = Vec::new();
    if let Some((storage, layout)) = &weight {
        let (base, dtype, guard) = begin(cuda_storage(storage)?, stream)?;
        guards.push(guard);
        // SAFETY: as above; `Norm::apply` made the weight contiguous.
        call = call.weight(unsafe { vector(of, base, dtype, layout)? });
    }
    if let Some(dx) = &mut dx {
        // SAFETY: as above.
        let (tensor, guard) = unsafe { dx.tensor(of, stream, dims.shape())? };
        guards.push(guard);
        call = call.dx(tensor);
    }
    if let (Some(dweight), Some(weight)) = (&mut dweight, wanted.dweight) {
        // SAFETY: as above.
        let (tensor, guard) = unsafe { dweight.tensor(of, stream, weight.dims())? };
        guards.push(guard);
        call = call.dweight(tensor);
    }
    if let (Some(dbias), Some(bias)) = (&mut dbias, wanted.dbias) {
        // SAFETY: as above.
        let (tensor, guard) = unsafe { dbias.tensor(of, stream, bias.dims())? };
        guards.push(guard);
        call = call.dbias(tensor);
    }
    let bytes = call.query(&context).map_err(wrap)?.workspace_bytes;
    let bytes = usize::try_from(bytes).map_err(candle_core::Error::wrap)?;
    // SAFETY: the library writes what it reads of it.
    let mut scratch: CudaSlice<u8> = unsafe { device.alloc(bytes.max(1))? };
    {
        let (address, _guard) = scratch.device_ptr_mut(stream);
        // SAFETY: the memory is the call's alone; it is freed on the stream, after the call.
        let workspace = unsafe { Workspace::from_raw(address as *mut c_void, bytes) };
        call.run_with(&context, raw(stream), workspace)
            .map_err(wrap)?;
    }
    drop(guards);
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
