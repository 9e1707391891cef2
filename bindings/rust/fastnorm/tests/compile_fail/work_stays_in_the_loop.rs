// error: E0521
use fastnorm::{ContextOptions, Device};

fn main() {
    ContextOptions::new(Device::CPU)
        .parallel_for(|work| {
            #[cfg(fixed)]
            std::thread::scope(|s| drop(s.spawn(|| work.run())));
            #[cfg(not(fixed))]
            drop(std::thread::spawn(|| work.run()));
        })
        .create()
        .unwrap();
}
