// error: E0382
use fastnorm::{Context, Norm, TensorMut};

fn main() {
    let context = Context::cpu().unwrap();
    #[cfg(not(fixed))]
    drop(context);
    let mut x = vec![1f32; 8];
    Norm::rms(1e-6)
        .x_in_place(TensorMut::new(&mut x, &[2, 4]).unwrap())
        .run(&context)
        .unwrap();
}
