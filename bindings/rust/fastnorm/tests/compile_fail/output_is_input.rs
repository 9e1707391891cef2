// error: E0502
use fastnorm::{Context, Norm, Tensor, TensorMut};

fn main() {
    let context = Context::cpu().unwrap();
    let mut x = [1f32; 8];
    #[cfg(fixed)]
    let mut y = [1f32; 8];
    #[cfg(not(fixed))]
    let y = &mut x;
    Norm::rms(1e-6)
        .x(Tensor::new(&x, &[2, 4]).unwrap())
        .y(TensorMut::new(&mut y[..], &[2, 4]).unwrap())
        .run(&context)
        .unwrap();
}
