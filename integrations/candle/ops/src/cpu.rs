//! The CPU: on rayon's threads.

use std::ffi::c_void;
use std::mem::size_of;
use std::ops::Deref;
use std::ptr;
use std::sync::OnceLock;

use candle_core::op::BackpropOp;
use candle_core::{bail, CpuStorage, Layout, Result, Shape, Storage, Tensor};
use fastnorm::{Context, ContextOptions, DType, Device, Work};
use half::{bf16, f16};

use crate::op::{nothing, Gradients, Norm, Wanted};
use crate::view::{dtype_of, wrap, Dims, Input, Memory, Queue};

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

fn input<'a>(storage: &CpuStorage, layout: &'a Layout) -> Result<Input<'a>> {
    let (base, dtype) = match storage {
        CpuStorage::F32(data) => (data.as_ptr().cast(), DType::F32),
        CpuStorage::F16(data) => (data.as_ptr().cast(), DType::F16),
        CpuStorage::BF16(data) => (data.as_ptr().cast(), DType::BF16),
        _ => bail!("a storage is of a dtype that the library does not have"),
    };
    Ok(Input {
        base,
        dtype,
        layout,
    })
}

/// The input of a tensor, whose guard keeps the storage.
fn input_of<'a>(of: &(impl Deref<Target = Storage>, &'a Layout)) -> Result<Input<'a>> {
    match &*of.0 {
        Storage::Cpu(storage) => input(storage, of.1),
        _ => bail!("a tensor of the backward pass is not on the CPU, where x is"),
    }
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

    fn memory(&mut self) -> Memory {
        let (address, dtype) = match self {
            Self::F32(data) => (data.as_mut_ptr().cast(), DType::F32),
            Self::F16(data) => (data.as_mut_ptr().cast(), DType::F16),
            Self::BF16(data) => (data.as_mut_ptr().cast(), DType::BF16),
        };
        Memory { address, dtype }
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

/// Scratch memory at the alignment that calls ask for.
#[derive(Default)]
struct Scratch(Vec<Line>);

#[repr(align(256))]
struct Line(#[allow(dead_code)] [u8; 256]);

impl Scratch {
    fn make(&mut self, bytes: usize) -> *mut c_void {
        self.0.reserve(bytes.div_ceil(size_of::<Line>()));
        self.0.as_mut_ptr().cast()
    }
}

fn queue() -> Result<Queue<'static>> {
    Ok(Queue {
        context: context()?,
        stream: ptr::null_mut(),
    })
}

pub(crate) fn forward(
    norm: Norm,
    x: (&CpuStorage, &Layout),
    weight: Option<(&CpuStorage, &Layout)>,
    bias: Option<(&CpuStorage, &Layout)>,
) -> Result<(CpuStorage, Shape)> {
    let shape = x.1.shape().clone();
    let count = shape.elem_count();
    let dims = Dims::of(&[x.1])?;
    let x = input(x.0, x.1)?;
    let mut y = Output::new(x.dtype, count)?;
    if let Some(dims) = dims {
        let vector = |of: Option<(_, _)>| of.map(|of| input(of.0, of.1)).transpose();
        let vectors = [vector(weight)?, vector(bias)?];
        // SAFETY: candle's storages cover their layouts and outlive the call, which ends before
        // `y` is moved; `Norm::apply` made weight and bias contiguous.
        unsafe { norm.run(queue()?, &dims, x, vectors, y.memory())? };
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
    let (x_read, dy_read) = (x.storage_and_layout(), dy.storage_and_layout());
    let Some(dims) = Dims::of(&[x_read.1, dy_read.1])? else {
        return nothing(x, wanted);
    };
    let weight = weight.map(Tensor::storage_and_layout);
    let output = |of: &Tensor| Output::new(dtype_of(of)?, of.elem_count());
    let mut dx = wanted.dx.then(|| output(x)).transpose()?;
    let mut dweight = wanted.dweight.map(output).transpose()?;
    let mut dbias = wanted.dbias.map(output).transpose()?;
    let mut scratch = Scratch::default();
    // SAFETY: the guards keep candle's storages, which cover their layouts, and the call ends
    // before an output is moved; `Norm::apply` made the weight contiguous.
    unsafe {
        norm.run_backward(
            queue()?,
            &dims,
            [input_of(&x_read)?, input_of(&dy_read)?],
            weight.as_ref().map(input_of).transpose()?,
            [&mut dx, &mut dweight, &mut dbias].map(|to| to.as_mut().map(Output::memory)),
            |bytes| Ok(scratch.make(bytes)),
        )?;
    }
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
