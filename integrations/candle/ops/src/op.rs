//! The operators: one description, with as many inputs as there are.

use std::ffi::c_void;
use std::ptr;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{
    bail, CpuStorage, CustomOp1, CustomOp2, CustomOp3, DType, Device, Error, Layout, Result, Shape,
    Tensor, D,
};
use fastnorm::{sys, Rounding};

use crate::cpu;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::view::{contiguous, readable, wrap, Dims, Input, Memory, Operand, Queue};

/// `RMSNorm` by candle-nn's `ops::rms_norm`: over the last dimension, times `alpha`.
///
/// # Errors
/// Where `alpha` is not `[n]` for inputs `[.., n]`, or on another device.
pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    Norm::rms(eps.into()).apply(xs, Some(alpha), None)
}

/// `LayerNorm` by candle-nn's `ops::layer_norm`: over the last dimension, times `alpha`, plus
/// `beta`.
///
/// # Errors
/// As [`rms_norm`].
pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    Norm::layer(eps.into()).apply(xs, Some(alpha), Some(beta))
}

/// A norm without its tensors.
///
/// It is an operator of candle with one, two or three inputs: x, weight and bias.
/// [`apply`](Self::apply) chooses by what is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    pub(crate) remove_mean: bool,
    pub(crate) eps: f64,
    pub(crate) rounding: Rounding,
}

impl Norm {
    /// By the root mean square.
    #[must_use]
    pub fn rms(eps: f64) -> Self {
        Self {
            remove_mean: false,
            eps,
            rounding: Rounding::Once,
        }
    }

    /// By mean and variance.
    #[must_use]
    pub fn layer(eps: f64) -> Self {
        Self {
            remove_mean: true,
            ..Self::rms(eps)
        }
    }

    /// Where a 16-bit output is rounded on its way. Default: [`Rounding::Once`], when it is stored.
    #[must_use]
    pub fn rounding(self, rounding: Rounding) -> Self {
        Self { rounding, ..self }
    }

    /// Normalises the rows of `x`, `[.., n]`. `weight` and `bias` are `[n]`; without a weight it is
    /// one, without a bias it is zero.
    ///
    /// # Errors
    /// Where shapes do not fit or tensors are on different devices, and for a bias without a
    /// weight.
    pub fn apply(
        self,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        let n = x.dim(D::Minus1)?;
        for (name, vector) in [("weight", weight), ("bias", bias)] {
            if let Some(vector) = vector.filter(|vector| vector.dims() != [n]) {
                bail!(
                    "{name} has shape {:?} and x has shape {:?}; required: [{n}]",
                    vector.shape(),
                    x.shape()
                )
            }
        }
        if !has_kernels(x, weight, bias) {
            if !x.dtype().is_float() {
                return Err(Error::UnsupportedDTypeForOp(x.dtype(), self.name()));
            }
            return self.composed(x, weight, bias);
        }
        let x = &*readable(x)?;
        match (weight, bias) {
            (None, None) if x.track_op() => x.apply_op1(self),
            (None, None) => x.apply_op1_no_bwd(&self),
            (Some(weight), None) => {
                let weight = &*contiguous(weight)?;
                if x.track_op() || weight.track_op() {
                    x.apply_op2(weight, self)
                } else {
                    x.apply_op2_no_bwd(weight, &self)
                }
            }
            (Some(weight), Some(bias)) => {
                let (weight, bias) = (&*contiguous(weight)?, &*contiguous(bias)?);
                if x.track_op() || weight.track_op() || bias.track_op() {
                    x.apply_op3(weight, bias, self)
                } else {
                    x.apply_op3_no_bwd(weight, bias, &self)
                }
            }
            (None, Some(_)) => bail!("there is a bias and no weight; required: a weight too"),
        }
    }

    /// Computes the norm by candle's operators, for what the library has no kernels for: f64, and
    /// devices other than the CPU and CUDA's.
    fn composed(
        self,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        let wide = match x.dtype() {
            DType::F16 | DType::BF16 => DType::F32,
            dtype => dtype,
        };
        let mut y = x.to_dtype(wide)?;
        if self.remove_mean {
            y = y.broadcast_sub(&y.mean_keepdim(D::Minus1)?)?;
        }
        let spread = (y.sqr()?.mean_keepdim(D::Minus1)? + self.eps)?.sqrt()?;
        y = y.broadcast_div(&spread)?.to_dtype(x.dtype())?;
        if let Some(weight) = weight {
            y = y.broadcast_mul(weight)?;
        }
        match bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }

    fn name(self) -> &'static str {
        if self.remove_mean {
            "fastnorm layer-norm"
        } else {
            "fastnorm rms-norm"
        }
    }

    /// Calls the library.
    ///
    /// # Safety
    /// The inputs cover their layouts and y covers the shape of x without gaps, all until the call
    /// has run; what a stream orders counts. Weight and bias are contiguous.
    #[inline]
    pub(crate) unsafe fn run(
        self,
        queue: Queue<'_>,
        dims: &Dims,
        x: Input<'_>,
        [weight, bias]: [Option<Input<'_>>; 2],
        y: Memory,
    ) -> Result<()> {
        let device = queue.context.device();
        let columns = dims.of_columns();
        let mut x = Operand::new(device, x, dims);
        let mut weight = weight.map(|weight| Operand::vector(device, weight, &columns));
        let mut bias = bias.map(|bias| Operand::vector(device, bias, &columns));
        let mut y = Operand::compact(device, y, dims);
        let args = sys::fastnorm_norm_args {
            kind: self.kind(),
            eps: self.eps as f32,
            rounding: self.rounding.raw(),
            x: x.link(),
            weight: Operand::link_some(&mut weight),
            bias: Operand::link_some(&mut bias),
            y: y.link(),
            ..sys::fastnorm_norm_args::new()
        };
        let (context, none) = (queue.context.as_ptr(), ptr::null_mut());
        // SAFETY: the arguments and what they point to are there until the call returns; what the
        // tensors cover, the caller promises. The norm needs no workspace.
        let status = unsafe { sys::fastnorm_norm(context, &args, none, 0, queue.stream) };
        queue.context.check(status).map_err(wrap)
    }

    /// Calls the library for the gradients of x, weight and bias, of those that have memory.
    /// `scratch` makes so many bytes at a multiple of 256, which are there until the call has run.
    ///
    /// # Safety
    /// As for [`run`](Self::run); dx covers the shape of x, the others have a row's columns.
    pub(crate) unsafe fn run_backward(
        self,
        queue: Queue<'_>,
        dims: &Dims,
        [x, dy]: [Input<'_>; 2],
        weight: Option<Input<'_>>,
        [dx, dweight, dbias]: [Option<Memory>; 3],
        scratch: impl FnOnce(usize) -> Result<*mut c_void>,
    ) -> Result<()> {
        let device = queue.context.device();
        let columns = dims.of_columns();
        let (mut x, mut dy) = (
            Operand::new(device, x, dims),
            Operand::new(device, dy, dims),
        );
        let mut weight = weight.map(|weight| Operand::vector(device, weight, &columns));
        let mut dx = dx.map(|dx| Operand::compact(device, dx, dims));
        let mut dweight = dweight.map(|dweight| Operand::compact(device, dweight, &columns));
        let mut dbias = dbias.map(|dbias| Operand::compact(device, dbias, &columns));
        let args = sys::fastnorm_norm_backward_args {
            kind: self.kind(),
            eps: self.eps as f32,
            rounding: self.rounding.raw(),
            x: x.link(),
            dy: dy.link(),
            weight: Operand::link_some(&mut weight),
            dx: Operand::link_some(&mut dx),
            dweight: Operand::link_some(&mut dweight),
            dbias: Operand::link_some(&mut dbias),
            ..sys::fastnorm_norm_backward_args::new()
        };
        let context = queue.context.as_ptr();
        let mut info = sys::fastnorm_info::new();
        // SAFETY: the arguments and what they point to are there until the calls return; what the
        // tensors cover, the caller promises.
        let status = unsafe { sys::fastnorm_norm_backward_query(context, &args, &mut info) };
        queue.context.check(status).map_err(wrap)?;
        let bytes = usize::try_from(info.workspace_bytes).map_err(Error::wrap)?;
        let workspace = if bytes == 0 {
            ptr::null_mut()
        } else {
            scratch(bytes)?
        };
        // SAFETY: as above.
        let status =
            unsafe { sys::fastnorm_norm_backward(context, &args, workspace, bytes, queue.stream) };
        queue.context.check(status).map_err(wrap)
    }

    fn kind(self) -> sys::fastnorm_norm_kind {
        if self.remove_mean {
            sys::FASTNORM_NORM_LAYER
        } else {
            sys::FASTNORM_NORM_RMS
        }
    }

    /// The gradients of x, weight and bias, of those that candle tracks.
    fn gradients(
        self,
        x: &Tensor,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        dy: &Tensor,
    ) -> Result<Gradients> {
        let (x, dy) = (&*readable(x)?, &*readable(dy)?);
        let wanted = Wanted {
            dx: x.track_op(),
            dweight: weight.filter(|weight| weight.track_op()),
            dbias: bias.filter(|bias| bias.track_op()),
        };
        match x.device() {
            Device::Cpu => cpu::backward(self, x, weight, dy, wanted),
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => cuda::backward(self, x, weight, dy, wanted),
            _ => bail!("{} has no gradient on this device", self.name()),
        }
    }
}

/// Which gradients a backward pass stores. The tensors tell their dtypes.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub dx: bool,
    pub dweight: Option<&'a Tensor>,
    pub dbias: Option<&'a Tensor>,
}

#[derive(Default)]
pub(crate) struct Gradients {
    pub dx: Option<Tensor>,
    pub dweight: Option<Tensor>,
    pub dbias: Option<Tensor>,
}

/// The gradients of no rows: those of weight and bias are sums of nothing.
pub(crate) fn nothing(x: &Tensor, wanted: Wanted<'_>) -> Result<Gradients> {
    Ok(Gradients {
        dx: wanted.dx.then(|| x.zeros_like()).transpose()?,
        dweight: wanted.dweight.map(Tensor::zeros_like).transpose()?,
        dbias: wanted.dbias.map(Tensor::zeros_like).transpose()?,
    })
}

fn has_kernels(x: &Tensor, weight: Option<&Tensor>, bias: Option<&Tensor>) -> bool {
    let device = match x.device() {
        Device::Cpu => true,
        Device::Cuda(_) => cfg!(feature = "cuda"),
        Device::Metal(_) => false,
    };
    device
        && [Some(x), weight, bias]
            .into_iter()
            .flatten()
            .all(|tensor| matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16))
}

type Cpu<'a> = (&'a CpuStorage, &'a Layout);
#[cfg(feature = "cuda")]
type Cuda<'a> = (&'a CudaStorage, &'a Layout);

impl CustomOp1 for Norm {
    fn name(&self) -> &'static str {
        (*self).name()
    }

    fn cpu_fwd(&self, s: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        cpu::forward(*self, (s, l), None::<Cpu<'_>>, None)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, s: &CudaStorage, l: &Layout) -> Result<(CudaStorage, Shape)> {
        cuda::forward(*self, (s, l), None::<Cuda<'_>>, None)
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        Ok(self.gradients(x, None, None, dy)?.dx)
    }
}

impl CustomOp2 for Norm {
    fn name(&self) -> &'static str {
        (*self).name()
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::forward(*self, (s1, l1), Some((s2, l2)), None)
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        s1: &CudaStorage,
        l1: &Layout,
        s2: &CudaStorage,
        l2: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        cuda::forward(*self, (s1, l1), Some((s2, l2)), None)
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let found = self.gradients(x, Some(weight), None, dy)?;
        Ok((found.dx, found.dweight))
    }
}

impl CustomOp3 for Norm {
    fn name(&self) -> &'static str {
        (*self).name()
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        cpu::forward(*self, (s1, l1), Some((s2, l2)), Some((s3, l3)))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        s1: &CudaStorage,
        l1: &Layout,
        s2: &CudaStorage,
        l2: &Layout,
        s3: &CudaStorage,
        l3: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        cuda::forward(*self, (s1, l1), Some((s2, l2)), Some((s3, l3)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let found = self.gradients(x, Some(weight), Some(bias), dy)?;
        Ok((found.dx, found.dweight, found.dbias))
    }
}
