// error: E0502
use fastnorm::{Context, Norm, Tensor, TensorMut};

fn main() {
    let context = Context::cpu().unwrap();
    let (x, mut sums) = ([1f32; 8], [0f32; 2]);
    let mut norm = Norm::rms(1e-6)
        .x(Tensor::new(&x, &[2, 4]).unwrap())
        .sumsq(TensorMut::new(&mut sums, &[2]).unwrap());
    #[cfg(not(fixed))]
    assert_eq!(sums, [4.0; 2]);
    norm.run(&context).unwrap();
    #[cfg(fixed)]
    assert_eq!(sums, [4.0; 2]);
}
