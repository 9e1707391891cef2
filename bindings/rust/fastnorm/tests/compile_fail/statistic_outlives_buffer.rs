// error: E0597
use fastnorm::{Context, Norm, Tensor, TensorMut};

fn main() {
    let context = Context::cpu().unwrap();
    let mut x = [1f32; 8];
    let mut norm = Norm::rms(1e-6).x_in_place(TensorMut::new(&mut x, &[2, 4]).unwrap());
    #[cfg(fixed)]
    let rstd = [1f32; 2];
    {
        #[cfg(not(fixed))]
        let rstd = [1f32; 2];
        norm = norm.rstd_in(Tensor::new(&rstd, &[2]).unwrap());
    }
    norm.run(&context).unwrap();
}
