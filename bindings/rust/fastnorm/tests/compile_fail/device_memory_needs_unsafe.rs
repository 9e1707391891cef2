// error: E0133
use fastnorm::{DType, Device, Tensor};

fn main() {
    let address = std::ptr::NonNull::<f32>::dangling().as_ptr().cast();
    #[cfg(fixed)]
    let tensor = unsafe { Tensor::from_device(Device::cuda(0), address, DType::F32, &[0]) };
    #[cfg(not(fixed))]
    let tensor = Tensor::from_device(Device::cuda(0), address, DType::F32, &[0]);
    drop(tensor);
}
