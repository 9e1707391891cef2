// error: E0596
use fastnorm::{Context, Norm, TensorMut};

// Two threads that share a Norm could both write y.
fn run(context: &Context, #[cfg(fixed)] norm: &mut Norm<'_>, #[cfg(not(fixed))] norm: &Norm<'_>) {
    norm.run(context).unwrap();
}

fn main() {
    let mut x = vec![1f32; 8];
    let tensor = TensorMut::new(&mut x, &[2, 4]).unwrap();
    run(
        &Context::cpu().unwrap(),
        &mut Norm::rms(1e-6).x_in_place(tensor),
    );
}
