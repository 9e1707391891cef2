// error: E0382
use fastnorm::{ContextOptions, Device};

fn main() {
    ContextOptions::new(Device::CPU)
        .parallel_for(|work| {
            work.run();
            #[cfg(not(fixed))]
            work.run();
        })
        .create()
        .unwrap();
}
