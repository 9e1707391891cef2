// error: E0502
use fastnorm::{Context, Norm, Tensor, TensorMut};

fn main() {
    let context = Context::cpu().unwrap();
    let x = [1f32; 8];
    let mut gate = [1f32; 8];
    #[cfg(fixed)]
    let norm = Norm::rms(1e-6).gate_in_place(TensorMut::new(&mut gate, &[2, 4]).unwrap());
    #[cfg(not(fixed))]
    let norm = Norm::rms(1e-6)
        .gate(Tensor::new(&gate, &[2, 4]).unwrap())
        .y(TensorMut::new(&mut gate, &[2, 4]).unwrap());
    norm.x(Tensor::new(&x, &[2, 4]).unwrap())
        .run(&context)
        .unwrap();
}
