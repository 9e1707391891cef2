//! Devices, and the kernels that a build has for them.

use crate::status::check;
use crate::version::check_library;
use crate::{static_text, sys, Result};
use std::ffi::c_char;
use std::fmt;

/// Where memory lives, numbered as in DLPack.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceType(i32);

#[allow(clippy::cast_possible_wrap)] // 1 to 13
impl DeviceType {
    /// Ordinary host memory.
    pub const CPU: Self = Self(sys::FASTNORM_DEVICE_CPU as i32);
    /// Memory of a CUDA device.
    pub const CUDA: Self = Self(sys::FASTNORM_DEVICE_CUDA as i32);
    /// Pinned host memory; counts as CPU.
    pub const CUDA_HOST: Self = Self(sys::FASTNORM_DEVICE_CUDA_HOST as i32);
    /// Managed memory; counts as CUDA.
    pub const CUDA_MANAGED: Self = Self(sys::FASTNORM_DEVICE_CUDA_MANAGED as i32);

    /// The type with this number in DLPack.
    pub const fn from_code(code: i32) -> Self {
        Self(code)
    }

    /// Its number in DLPack.
    pub const fn code(self) -> i32 {
        self.0
    }
}

impl fmt::Debug for DeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::CPU => f.write_str("CPU"),
            Self::CUDA => f.write_str("CUDA"),
            Self::CUDA_HOST => f.write_str("CUDA_HOST"),
            Self::CUDA_MANAGED => f.write_str("CUDA_MANAGED"),
            Self(code) => write!(f, "device type {code}"),
        }
    }
}

/// A device: what kind, and which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// What kind.
    pub device_type: DeviceType,
    /// Ordinal, as the CUDA runtime counts; 0 for the CPU.
    pub id: i32,
}

impl Device {
    /// The CPU.
    pub const CPU: Self = Self {
        device_type: DeviceType::CPU,
        id: 0,
    };

    /// A CUDA device by its ordinal.
    pub const fn cuda(id: i32) -> Self {
        Self {
            device_type: DeviceType::CUDA,
            id,
        }
    }

    /// What is known of the device.
    ///
    /// # Errors
    /// [`Status::DEVICE`](crate::Status::DEVICE) if there is no such device.
    pub fn describe(self) -> Result<DeviceInfo> {
        check_library()?;
        let mut raw = sys::fastnorm_device_info::new();
        // SAFETY: `raw` is writable and knows its size.
        check(unsafe { sys::fastnorm_device_describe(self.raw(), &mut raw) })?;
        Ok(DeviceInfo::from_raw(&raw))
    }

    pub(crate) const fn raw(self) -> sys::fastnorm_device {
        sys::fastnorm_device {
            device_type: self.device_type.0,
            device_id: self.id,
        }
    }
}

/// What is known of a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Model name.
    pub name: String,
    /// CUDA: compute capability, major * 10 + minor; CPU: 0.
    pub capability: i32,
    /// CUDA: multiprocessors; CPU: logical processors that this process may run on.
    pub multiprocessors: i32,
    /// Bytes of level-2 cache (CPU: of one core).
    pub l2_bytes: u64,
    /// CUDA: bytes of device memory; CPU: 0.
    pub memory_bytes: u64,
    /// CUDA: the driver's CUDA version, major * 1000 + minor * 10; CPU: 0.
    pub driver_version: i32,
    /// CUDA: version of the CUDA runtime inside the library; CPU: 0.
    pub runtime_version: i32,
    /// The kernels that run there, such as "sm_90" or "avx512".
    pub kernel_arch: &'static str,
}

impl DeviceInfo {
    fn from_raw(raw: &sys::fastnorm_device_info) -> Self {
        let bytes: Vec<u8> = raw
            .name
            .iter()
            .take_while(|&&c| c != 0)
            .map(|&c: &c_char| c.to_ne_bytes()[0])
            .collect();
        Self {
            name: String::from_utf8_lossy(&bytes).into_owned(),
            capability: raw.capability,
            multiprocessors: raw.multiprocessors,
            l2_bytes: raw.l2_bytes,
            memory_bytes: raw.memory_bytes,
            driver_version: raw.driver_version,
            runtime_version: raw.runtime_version,
            kernel_arch: static_text(raw.kernel_arch),
        }
    }
}

/// Number of devices of a type that a context can be made for. Without a CUDA driver the number of
/// CUDA devices is 0, which is no error.
///
/// # Errors
/// [`Status::ARGUMENT`](crate::Status::ARGUMENT) for a type other than CPU and CUDA.
pub fn device_count(device_type: DeviceType) -> Result<i32> {
    check_library()?;
    let mut count = 0;
    // SAFETY: `count` is writable.
    check(unsafe { sys::fastnorm_device_count(device_type.0, &mut count) })?;
    Ok(count)
}

/// One kernel of the loaded library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelInfo {
    /// "norm".
    pub family: &'static str,
    /// "sm_90", "avx512", ..
    pub arch: &'static str,
    /// Unique within family and arch.
    pub name: &'static str,
}

/// Every kernel of the loaded library, for all devices.
pub fn kernels() -> impl Iterator<Item = KernelInfo> {
    // SAFETY: the function has no preconditions.
    let count = unsafe { sys::fastnorm_kernel_count() };
    (0..count).map_while(|index| {
        let mut raw = sys::fastnorm_kernel_info::new();
        // SAFETY: `raw` is writable and knows its size.
        check(unsafe { sys::fastnorm_kernel_describe(index, &mut raw) }).ok()?;
        Some(KernelInfo {
            family: static_text(raw.family),
            arch: static_text(raw.arch),
            name: static_text(raw.name),
        })
    })
}
