// error: E0499
use fastnorm::{norm_many, Context, Norm, TensorMut};

fn main() {
    let context = Context::cpu().unwrap();
    let mut x = [1f32; 8];
    #[cfg(fixed)]
    let mut y = [1f32; 8];
    let first = TensorMut::new(&mut x, &[2, 4]).unwrap();
    #[cfg(fixed)]
    let second = TensorMut::new(&mut y, &[2, 4]).unwrap();
    #[cfg(not(fixed))]
    let second = TensorMut::new(&mut x, &[2, 4]).unwrap();
    norm_many(
        &context,
        &mut [
            Norm::rms(0.0).x_in_place(first),
            Norm::rms(0.0).x_in_place(second),
        ],
    )
    .unwrap();
}
