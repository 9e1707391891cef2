//! Memory of the device under test, by address. FASTNORM_TEST_DEVICE names it: `cpu`, the default,
//! or `cuda`, whose memory the CUDA driver gives.
#![allow(dead_code, missing_docs, clippy::missing_transmute_annotations)]

use fastnorm::{Context, Device, Element, Result, Stream, Tensor, TensorMut};
use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr;
use std::sync::OnceLock;

extern "C" {
    fn dlopen(path: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

type Address = u64;

/// The functions of the CUDA driver that the tests need, in the primary context of device 0.
struct Driver {
    set_current: unsafe extern "C" fn(*mut c_void) -> c_int,
    allocate: unsafe extern "C" fn(*mut Address, usize) -> c_int,
    free: unsafe extern "C" fn(Address) -> c_int,
    copy_in: unsafe extern "C" fn(Address, *const c_void, usize) -> c_int,
    copy_out: unsafe extern "C" fn(*mut c_void, Address, usize) -> c_int,
    create_stream: unsafe extern "C" fn(*mut *mut c_void, u32) -> c_int,
    destroy_stream: unsafe extern "C" fn(*mut c_void) -> c_int,
    synchronize: unsafe extern "C" fn(*mut c_void) -> c_int,
    context: usize,
}

fn must(code: c_int) {
    assert_eq!(code, 0, "the CUDA driver's error");
}

impl Driver {
    /// The driver, with its context current on the calling thread.
    fn get() -> &'static Self {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        let driver = DRIVER.get_or_init(Self::load);
        // SAFETY: the context is never released.
        must(unsafe { (driver.set_current)(driver.context as *mut c_void) });
        driver
    }

    fn load() -> Self {
        // SAFETY: names end with a zero; RTLD_NOW is 2.
        let library = unsafe { dlopen(c"libcuda.so.1".as_ptr(), 2) };
        assert!(!library.is_null(), "no CUDA driver");
        let find = |name: &CStr| {
            // SAFETY: as above.
            let found = unsafe { dlsym(library, name.as_ptr()) };
            assert!(!found.is_null(), "the driver lacks {name:?}");
            found
        };
        // SAFETY: the functions have these types in cuda.h.
        unsafe {
            let init: unsafe extern "C" fn(u32) -> c_int = std::mem::transmute(find(c"cuInit"));
            let retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int =
                std::mem::transmute(find(c"cuDevicePrimaryCtxRetain"));
            must(init(0));
            let mut context = ptr::null_mut();
            must(retain(&mut context, 0));
            Self {
                set_current: std::mem::transmute(find(c"cuCtxSetCurrent")),
                allocate: std::mem::transmute(find(c"cuMemAlloc_v2")),
                free: std::mem::transmute(find(c"cuMemFree_v2")),
                copy_in: std::mem::transmute(find(c"cuMemcpyHtoD_v2")),
                copy_out: std::mem::transmute(find(c"cuMemcpyDtoH_v2")),
                create_stream: std::mem::transmute(find(c"cuStreamCreate")),
                destroy_stream: std::mem::transmute(find(c"cuStreamDestroy_v2")),
                synchronize: std::mem::transmute(find(c"cuStreamSynchronize")),
                context: context as usize,
            }
        }
    }
}

/// Whether the tests run on a GPU.
pub fn on_gpu() -> bool {
    match std::env::var("FASTNORM_TEST_DEVICE").as_deref() {
        Ok("cuda") => true,
        Ok("cpu") | Err(_) => false,
        Ok(other) => panic!("FASTNORM_TEST_DEVICE is {other}; required: cpu or cuda"),
    }
}

/// A context of the device under test.
pub fn context() -> Result<Context> {
    if on_gpu() {
        Context::cuda(0)
    } else {
        Context::cpu()
    }
}

/// Numbers in the memory of the device.
pub struct Buffer<T> {
    host: Vec<T>,
    device: Option<Address>,
}

impl<T: Element> Buffer<T> {
    pub fn new(numbers: &[T]) -> Self {
        let host = numbers.to_vec();
        let device = on_gpu().then(|| {
            let (driver, mut address) = (Driver::get(), 0);
            // SAFETY: as many bytes are there as are copied.
            unsafe {
                must((driver.allocate)(&mut address, size_of_val(numbers)));
                must((driver.copy_in)(
                    address,
                    numbers.as_ptr().cast(),
                    size_of_val(numbers),
                ));
                // The copy may still be on its way, and a stream of its own would not wait for it.
                must((driver.synchronize)(ptr::null_mut()));
            }
            address
        });
        Self { host, device }
    }

    pub fn address(&mut self) -> *mut c_void {
        self.device.map_or_else(
            || self.host.as_mut_ptr().cast(),
            |address| address as *mut c_void,
        )
    }

    /// The buffer must outlive the work.
    pub fn tensor(&mut self, context: &Context, shape: &[usize]) -> Result<Tensor<'static>> {
        assert_eq!(shape.iter().product::<usize>(), self.host.len());
        // SAFETY: of that size; the tests wait before they drop it.
        unsafe { Tensor::from_device(context.device(), self.address(), T::DTYPE, shape) }
    }

    /// The buffer must outlive the work.
    pub fn tensor_mut(&mut self, context: &Context, shape: &[usize]) -> Result<TensorMut<'static>> {
        assert_eq!(shape.iter().product::<usize>(), self.host.len());
        // SAFETY: of that size; the tests wait before they drop it.
        unsafe { TensorMut::from_device(context.device(), self.address(), T::DTYPE, shape) }
    }

    /// What is in it, after the work of all streams that the test has waited for.
    pub fn numbers(&mut self) -> Vec<T> {
        if let Some(address) = self.device {
            let driver = Driver::get();
            // SAFETY: the buffer on the host is as long.
            must(unsafe {
                (driver.copy_out)(
                    self.host.as_mut_ptr().cast(),
                    address,
                    size_of_val(&self.host[..]),
                )
            });
        }
        self.host.clone()
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if let Some(address) = self.device {
            // SAFETY: from `allocate`.
            must(unsafe { (Driver::get().free)(address) });
        }
    }
}

/// A stream of its own on a GPU, the only one on the CPU.
pub struct TestStream(*mut c_void);

impl TestStream {
    pub fn new() -> Self {
        let mut stream = ptr::null_mut();
        if on_gpu() {
            // SAFETY: 1 is CU_STREAM_NON_BLOCKING.
            must(unsafe { (Driver::get().create_stream)(&mut stream, 1) });
        }
        Self(stream)
    }

    /// That of a CPU, and the default of a GPU.
    pub fn none() -> Self {
        Self(ptr::null_mut())
    }

    pub fn get(&self) -> Stream {
        // SAFETY: the tests drop it after their calls.
        unsafe { Stream::from_raw(self.0) }
    }

    pub fn raw(&self) -> *mut c_void {
        self.0
    }

    /// Until all its work has run.
    pub fn wait(&self) {
        if on_gpu() {
            // SAFETY: the stream is there.
            must(unsafe { (Driver::get().synchronize)(self.0) });
        }
    }
}

impl Drop for TestStream {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: from `create_stream`.
            must(unsafe { (Driver::get().destroy_stream)(self.0) });
        }
    }
}

/// Whether anything is at the address; of no use but to be told that it is not of this device.
pub fn elsewhere() -> Device {
    if on_gpu() {
        Device::CPU
    } else {
        Device::cuda(0)
    }
}
