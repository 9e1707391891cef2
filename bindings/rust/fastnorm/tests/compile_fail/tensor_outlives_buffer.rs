// error: E0597
use fastnorm::Tensor;

fn main() {
    #[cfg(fixed)]
    let buffer = vec![0f32; 8];
    let tensor = {
        #[cfg(not(fixed))]
        let buffer = vec![0f32; 8];
        Tensor::new(&buffer, &[2, 4]).unwrap()
    };
    println!("{tensor:?}");
}
