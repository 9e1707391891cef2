// error: E0505
use fastnorm::{Context, Norm, TensorMut};

fn main() {
    let context = Context::cpu().unwrap();
    let mut x = vec![1f32; 8];
    let mut norm = Norm::rms(1e-6).x_in_place(TensorMut::new(&mut x, &[2, 4]).unwrap());
    #[cfg(not(fixed))]
    drop(x);
    norm.run(&context).unwrap();
}
