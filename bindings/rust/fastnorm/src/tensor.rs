//! Views of memory.

use crate::{sys, DType, Device, DeviceType, Element, Error, Result, Status};
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

/// The most dimensions that a tensor has.
pub const MAX_RANK: usize = 8;

/// Numbers, one a dimension; those past the rank are not written.
type Dims = [MaybeUninit<i64>; MAX_RANK];

const NO_DIMS: Dims = [MaybeUninit::uninit(); MAX_RANK];

/// A tensor of the C ABI with its shape and strides beside it, free to move: `link` sets the
/// pointers.
#[derive(Clone, Copy)]
#[repr(C)] // a pointer to the view is a pointer to `raw`
pub(crate) struct View {
    raw: sys::fastnorm_tensor, // ndim is 0 to MAX_RANK
    shape: Dims,               // [ndim]
    strides: Dims,             // [ndim] if `strided`
    strided: bool,
}

impl View {
    #[inline]
    fn new(device: Device, address: *mut c_void, dtype: DType, shape: &[usize]) -> Result<Self> {
        let mut view = Self::without_dims(sys::fastnorm_tensor {
            data: address,
            device_type: device.device_type.code(),
            device_id: device.id,
            dtype: dtype.raw(),
            ..sys::fastnorm_tensor::new()
        });
        view.set_rank(shape)?;
        for (to, &extent) in view.shape.iter_mut().zip(shape) {
            to.write(extent_of(extent)?);
        }
        Ok(view)
    }

    fn from_raw(
        raw: &sys::fastnorm_tensor,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> Result<Self> {
        let mut view = Self::without_dims(*raw);
        view.set_rank(shape)?;
        for (to, &extent) in view.shape.iter_mut().zip(shape) {
            to.write(extent);
        }
        if let Some(strides) = strides {
            for (to, &stride) in view.strides.iter_mut().zip(strides) {
                to.write(stride);
            }
            view.strided = true;
        }
        Ok(view)
    }

    #[inline]
    fn without_dims(raw: sys::fastnorm_tensor) -> Self {
        let raw = sys::fastnorm_tensor { ndim: 0, ..raw };
        Self {
            raw,
            shape: NO_DIMS,
            strides: NO_DIMS,
            strided: false,
        }
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)] // at most 8
    fn set_rank<T: fmt::Debug>(&mut self, shape: &[T]) -> Result<()> {
        if shape.len() > MAX_RANK {
            return Err(rank_error(shape));
        }
        self.raw.ndim = shape.len() as i32;
        Ok(())
    }

    #[inline]
    fn set_strides(&mut self, strides: &[isize]) -> Result<()> {
        if strides.len() != self.rank() {
            return Err(strides_error(strides, self.shape()));
        }
        for (to, &stride) in self.strides.iter_mut().zip(strides) {
            to.write(stride as i64);
        }
        self.strided = true;
        Ok(())
    }

    /// Points the tensor at its own shape and strides, until the view is moved.
    #[inline]
    pub(crate) fn link(&mut self) -> *const sys::fastnorm_tensor {
        self.raw.shape = self.shape.as_ptr().cast();
        self.raw.strides = if self.strided {
            self.strides.as_ptr().cast()
        } else {
            ptr::null()
        };
        &self.raw
    }

    #[inline]
    #[allow(clippy::cast_sign_loss)] // 0 to 8
    fn rank(&self) -> usize {
        self.raw.ndim as usize
    }

    fn shape(&self) -> &[i64] {
        // SAFETY: the first `rank` numbers are written.
        unsafe { written(&self.shape[..self.rank()]) }
    }

    fn strides(&self) -> Option<&[i64]> {
        // SAFETY: the first `rank` numbers are written where `strided` is set.
        self.strided
            .then(|| unsafe { written(&self.strides[..self.rank()]) })
    }

    /// Copies the view to a slot. Number by number: where the compiler knows the rank, as in a call
    /// that is built in place, only those are left that there are; the whole arrays would take
    /// twice the time.
    #[inline]
    pub(crate) fn write_to(&self, slot: &mut MaybeUninit<Self>) {
        let slot = slot.as_mut_ptr();
        // SAFETY: fields of the slot are written, none is read.
        unsafe {
            (*slot).raw = self.raw;
            (*slot).strided = self.strided;
            for i in 0..MAX_RANK {
                if i < self.rank() {
                    (*slot).shape[i] = self.shape[i];
                    if self.strided {
                        (*slot).strides[i] = self.strides[i];
                    }
                }
            }
        }
    }

    fn dtype(&self) -> DType {
        DType::from_raw(self.raw.dtype)
    }

    fn device(&self) -> Device {
        Device {
            device_type: DeviceType::from_code(self.raw.device_type),
            id: self.raw.device_id,
        }
    }

    fn has_elements(&self) -> bool {
        self.shape().iter().all(|&extent| extent > 0)
    }

    /// Gives a compact view the strides that it has.
    fn spell_out_strides(&mut self) {
        if !self.strided {
            let mut stride = 1_i64;
            for i in (0..self.rank()).rev() {
                self.strides[i].write(stride);
                stride = stride.saturating_mul(self.shape()[i].max(1));
            }
            self.strided = true;
        }
    }

    /// The part of dimension `dim` in `range`.
    fn narrow(mut self, dim: usize, range: Range<usize>) -> Result<Self> {
        let outside = || {
            let shape = self.shape();
            Error::new(
                Status::SHAPE,
                format!("there is no {range:?} of dimension {dim} in shape {shape:?}"),
            )
        };
        let extent = *self.shape().get(dim).ok_or_else(outside)?;
        let (begin, end) = (extent_of(range.start)?, extent_of(range.end)?);
        if begin > end || end > extent {
            return Err(outside());
        }
        let bits = self.dtype().element_bits();
        if bits % 8 != 0 {
            let what = format!(
                "{:?} elements are no whole bytes: they cannot be taken apart",
                self.dtype()
            );
            return Err(Error::new(Status::LAYOUT, what));
        }
        self.spell_out_strides();
        if self.has_elements() && begin < end {
            let stride = self.strides().map_or(1, |strides| strides[dim]);
            #[allow(clippy::cast_possible_wrap)] // bits are 24 bits long
            let bytes = begin.wrapping_mul(stride).wrapping_mul((bits / 8) as i64);
            #[allow(clippy::cast_possible_truncation)] // isize is i64
            let offset = bytes as isize;
            self.raw.data = self.raw.data.wrapping_byte_offset(offset);
        }
        self.shape[dim].write(end - begin);
        Ok(self)
    }

    /// Whether different indices are different elements, as far as sorted strides show.
    fn is_injective(&self) -> bool {
        let Some(strides) = self.strides().filter(|_| self.has_elements()) else {
            return true;
        };
        let mut dims: Vec<(u64, u64)> = strides
            .iter()
            .zip(self.shape())
            .filter(|(_, &extent)| extent > 1)
            .map(|(stride, extent)| (stride.unsigned_abs(), extent.unsigned_abs()))
            .collect();
        dims.sort_unstable();
        let mut reach = 0_u64;
        dims.into_iter().all(|(stride, extent)| {
            let beyond = stride > reach;
            reach = reach.saturating_add(stride.saturating_mul(extent - 1));
            beyond
        })
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.dtype(), self.shape())?;
        if let Some(strides) = self.strides() {
            write!(f, " strides {strides:?}")?;
        }
        write!(f, " on {:?}", self.device())
    }
}

/// # Safety
/// All numbers are written.
unsafe fn written(dims: &[MaybeUninit<i64>]) -> &[i64] {
    // SAFETY: the caller says so, and the types have one layout.
    unsafe { &*(ptr::from_ref(dims) as *const [i64]) }
}

#[cold]
fn strides_error(strides: &[isize], shape: &[i64]) -> Error {
    Error::new(
        Status::SHAPE,
        format!("there are {} strides for shape {shape:?}", strides.len()),
    )
}

#[cold]
fn rank_error(shape: &[impl fmt::Debug]) -> Error {
    Error::new(
        Status::SHAPE,
        format!(
            "shape {shape:?} has {} dimensions; a tensor has at most {MAX_RANK}",
            shape.len()
        ),
    )
}

#[inline]
fn extent_of(extent: usize) -> Result<i64> {
    i64::try_from(extent).map_err(|_| Error::new(Status::SHAPE, format!("an extent is {extent}")))
}

/// Checks that a compact tensor of this shape is as long as its buffer.
#[inline]
fn check_length(len: usize, shape: &[usize], dtype: DType, lanes_of_buffer: &str) -> Result<()> {
    let elements = shape
        .iter()
        .try_fold(1_usize, |count, &extent| count.checked_mul(extent));
    let needed = if lanes_of_buffer == "bytes" {
        elements
            .and_then(|count| count.checked_mul(dtype.element_bits()))
            .map(|bits| bits.div_ceil(8))
    } else {
        elements
    };
    if needed == Some(len) {
        return Ok(());
    }
    let needed = needed.map_or_else(
        || "more than there can be".to_owned(),
        |count| count.to_string(),
    );
    Err(Error::new(
        Status::SHAPE,
        format!(
            "the buffer has {len} {lanes_of_buffer}, shape {shape:?} of {dtype:?} needs {needed}"
        ),
    ))
}

/// Checks that each row of elements that are less than a byte begins with a byte.
fn check_rows(shape: &[usize], dtype: DType) -> Result<()> {
    let bits = dtype.element_bits();
    match shape {
        [_, .., n] if bits % 8 != 0 && n % 8 * bits % 8 != 0 => Err(Error::new(
            Status::LAYOUT,
            format!("rows of {n} {dtype:?} elements are no whole bytes"),
        )),
        _ => Ok(()),
    }
}

/// Checks that every index of a strided tensor lies within its buffer.
#[inline]
fn check_reach(len: usize, offset: usize, shape: &[usize], strides: &[isize]) -> Result<()> {
    if shape.contains(&0) {
        return Ok(());
    }
    let reach = || {
        let (mut lowest, mut highest) =
            (isize::try_from(offset).ok()?, isize::try_from(offset).ok()?);
        for (&extent, &stride) in shape.iter().zip(strides) {
            let way = isize::try_from(extent - 1).ok()?.checked_mul(stride)?;
            let end = if way < 0 { &mut lowest } else { &mut highest };
            *end = end.checked_add(way)?;
        }
        (lowest >= 0 && usize::try_from(highest).ok()? < len).then_some(())
    };
    reach().ok_or_else(|| {
        Error::new(
            Status::LAYOUT,
            format!(
                "shape {shape:?} with strides {strides:?} from element {offset} leaves the buffer \
                 of {len} elements"
            ),
        )
    })
}

/// A view of memory that is read.
///
/// It borrows the buffer and copies the shape, so it is as free as a slice: `Copy`, and it may go
/// to other threads.
///
/// A tensor cannot outlive its buffer:
/// ```compile_fail,E0597
/// # use fastnorm::*;
/// let x = {
///     let buffer = vec![0f32; 8];
///     Tensor::new(&buffer, &[2, 4]).unwrap()
/// };
/// println!("{x:?}");
/// ```
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    pub(crate) view: View,
    borrow: PhantomData<&'a [u8]>,
}

// SAFETY: it is a shared borrow of plain numbers, which are Send and Sync; for device memory, what
// from_device asks for holds on every thread.
unsafe impl Send for Tensor<'_> {}
// SAFETY: as above.
unsafe impl Sync for Tensor<'_> {}

/// A view of memory that is written.
///
/// It borrows the buffer exclusively. A call takes it by value, so what is written cannot be read
/// in the same call by accident; the forms that work in place are methods of their own, such as
/// [`Norm::x_in_place`](crate::Norm::x_in_place).
pub struct TensorMut<'a> {
    pub(crate) view: View,
    borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it is an exclusive borrow of plain numbers, which are Send and Sync; for device memory,
// what from_device asks for holds on every thread.
unsafe impl Send for TensorMut<'_> {}
// SAFETY: as above; a shared TensorMut only tells its shape.
unsafe impl Sync for TensorMut<'_> {}

fn address_of<T>(data: &[T]) -> *mut T {
    data.as_ptr().cast_mut() // only read
}

fn address_of_mut<T>(data: &mut [T]) -> *mut T {
    data.as_mut_ptr()
}

// What both have. $buffer, $bytes, $pointer: the borrows and the address that they are made from;
// $to_mut makes the address one that the C ABI's struct holds.
macro_rules! constructors {
    ($buffer:ty, $bytes:ty, $address_of:ident, $pointer:ty, $to_mut:expr) => {
        /// The whole of `data`, row-major: as many elements as `shape` has.
        ///
        /// # Errors
        /// [`Status::SHAPE`] if the lengths differ or there are more than [`MAX_RANK`] dimensions.
        #[inline]
        pub fn new<T: Element>(data: $buffer, shape: &[usize]) -> Result<Self> {
            check_length(data.len(), shape, T::DTYPE, "elements")?;
            Ok(Self::of(View::new(
                Device::CPU,
                $address_of(data).cast(),
                T::DTYPE,
                shape,
            )?))
        }

        /// Elements of `data` by strides, which are in elements, from element `offset` on. The last
        /// stride must be 1 in a call, unless its extent is at most 1.
        ///
        /// # Errors
        /// [`Status::LAYOUT`] if an index leaves `data`; [`Status::SHAPE`] if `shape` and `strides`
        /// do not fit each other.
        #[inline]
        pub fn strided<T: Element>(
            data: $buffer,
            offset: usize,
            shape: &[usize],
            strides: &[isize],
        ) -> Result<Self> {
            let len = data.len();
            // Past the end for a tensor without elements; never followed then.
            let address = $address_of(data).wrapping_add(offset).cast();
            let mut view = View::new(Device::CPU, address, T::DTYPE, shape)?;
            view.set_strides(strides)?;
            check_reach(len, offset, shape, strides)?;
            Ok(Self::of(view))
        }

        /// The whole of `data`, row-major, as elements of any type.
        ///
        /// # Errors
        /// [`Status::SHAPE`] if `data` is not as long as `shape` needs; [`Status::LAYOUT`] if
        /// elements are less than a byte and rows would end inside one. Alignment is checked by the
        /// call.
        #[inline]
        pub fn from_bytes(data: $bytes, dtype: DType, shape: &[usize]) -> Result<Self> {
            check_length(data.len(), shape, dtype, "bytes")?;
            check_rows(shape, dtype)?;
            Ok(Self::of(View::new(
                Device::CPU,
                $address_of(data).cast(),
                dtype,
                shape,
            )?))
        }

        /// Memory by its address, row-major: of a device, or host memory that no slice covers.
        /// [`Context::device`](crate::Context::device) names the device of a context.
        ///
        /// # Safety
        /// The memory that `shape` covers is there until every call with this tensor, or with a
        /// copy of it, has run on the device. Until then nothing else writes what a call reads, and
        /// nothing else touches what a call writes. Work that the stream orders is no conflict.
        ///
        /// # Errors
        /// [`Status::SHAPE`] if there are more than [`MAX_RANK`] dimensions.
        #[inline]
        pub unsafe fn from_device(
            device: Device,
            address: $pointer,
            dtype: DType,
            shape: &[usize],
        ) -> Result<Self> {
            Ok(Self::of(View::new(device, $to_mut(address), dtype, shape)?))
        }

        /// As `from_device`, with strides in elements; `address` is that of index 0 in every
        /// dimension.
        ///
        /// # Safety
        /// As for `from_device`, for the memory that shape and strides cover.
        ///
        /// # Errors
        /// [`Status::SHAPE`] if `shape` and `strides` do not fit each other.
        #[inline]
        pub unsafe fn from_device_strided(
            device: Device,
            address: $pointer,
            dtype: DType,
            shape: &[usize],
            strides: &[isize],
        ) -> Result<Self> {
            let mut view = View::new(device, $to_mut(address), dtype, shape)?;
            view.set_strides(strides)?;
            Ok(Self::of(view))
        }

        /// A tensor of the C ABI, which a `DLTensor` of `DLPack` is too: cast the pointer. Shape
        /// and strides are copied.
        ///
        /// # Safety
        /// As for `from_device`; `shape`, and `strides` unless it is null, point to `ndim` numbers.
        ///
        /// # Errors
        /// [`Status::SHAPE`] if there are more than [`MAX_RANK`] dimensions.
        pub unsafe fn from_raw(raw: &crate::sys::fastnorm_tensor) -> Result<Self> {
            let rank = usize::try_from(raw.ndim)
                .map_err(|_| Error::new(Status::SHAPE, format!("ndim is {}", raw.ndim)))?;
            let array = |pointer: *const i64| {
                if rank == 0 || pointer.is_null() {
                    return None;
                }
                // SAFETY: the caller says so.
                Some(unsafe { std::slice::from_raw_parts(pointer, rank) })
            };
            let shape = match array(raw.shape) {
                Some(shape) => shape,
                None if rank == 0 => &[],
                None => return Err(Error::new(Status::ARGUMENT, "shape is NULL")),
            };
            Ok(Self::of(View::from_raw(raw, shape, array(raw.strides))?))
        }

        #[inline]
        fn of(view: View) -> Self {
            Self {
                view,
                borrow: PhantomData,
            }
        }

        /// Extents, outermost first.
        pub fn shape(&self) -> &[i64] {
            self.view.shape()
        }

        /// Strides in elements; `None` if the tensor is row-major without gaps.
        pub fn strides(&self) -> Option<&[i64]> {
            self.view.strides()
        }

        /// Element type.
        pub fn dtype(&self) -> DType {
            self.view.dtype()
        }

        /// Where the memory is.
        pub fn device(&self) -> Device {
            self.view.device()
        }

        /// The part with index `range` in dimension `dim`, such as some of the heads.
        ///
        /// # Errors
        /// [`Status::SHAPE`] if there is no such part; [`Status::LAYOUT`] if elements are less than
        /// a byte.
        pub fn narrow(self, dim: usize, range: Range<usize>) -> Result<Self> {
            Ok(Self::of(self.view.narrow(dim, range)?))
        }
    };
}

impl<'a> Tensor<'a> {
    constructors!(
        &'a [T],
        &'a [u8],
        address_of,
        *const c_void,
        <*const c_void>::cast_mut
    );
}

impl<'a> TensorMut<'a> {
    constructors!(
        &'a mut [T],
        &'a mut [u8],
        address_of_mut,
        *mut c_void,
        std::convert::identity
    );

    /// This tensor for a shorter time, so that it can be used again after a call that takes it.
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        TensorMut {
            view: self.view,
            borrow: PhantomData,
        }
    }

    /// This tensor's memory, to be read.
    pub fn as_tensor(&self) -> Tensor<'_> {
        Tensor {
            view: self.view,
            borrow: PhantomData,
        }
    }

    /// Two parts, before and from index `at` of dimension `dim` on: such as the query and the key
    /// heads of one buffer, which [`norm_many`](crate::norm_many) can then write in one call.
    ///
    /// # Errors
    /// [`Status::SHAPE`] if there is no such index; [`Status::LAYOUT`] if the parts could share
    /// elements, because of the strides or because elements are less than a byte.
    pub fn split(self, dim: usize, at: usize) -> Result<(Self, Self)> {
        if !self.view.is_injective() {
            let what = format!("the parts of {:?} could share elements", self.view);
            return Err(Error::new(Status::LAYOUT, what));
        }
        let extent = self
            .view
            .shape()
            .get(dim)
            .map_or(0, |&extent| usize::try_from(extent).unwrap_or(0));
        let before = self.view.narrow(dim, 0..at)?;
        let after = self.view.narrow(dim, at..extent)?;
        Ok((Self::of(before), Self::of(after)))
    }
}

impl<'a> From<TensorMut<'a>> for Tensor<'a> {
    fn from(tensor: TensorMut<'a>) -> Self {
        Self {
            view: tensor.view,
            borrow: PhantomData,
        }
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view.fmt(f)
    }
}

impl fmt::Debug for TensorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view.fmt(f)
    }
}
