//! Calls from several threads, and the threads that they take.

mod common;

use candle_core::{DType, Device, Module, Result};
use common::{bits, numbers};
use fastnorm_candle::RmsNorm;

fn threads_of_process() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// One program for all: it counts the threads of the process.
#[test]
fn only_rayon_has_threads() -> Result<()> {
    let x = numbers(&Device::Cpu, 1, &[512, 1024], 0.0, DType::BF16)?;
    let norm = RmsNorm::new(numbers(&Device::Cpu, 2, &[1024], 1.0, DType::BF16)?, 1e-6);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build()
        .unwrap();
    let before = threads_of_process();
    let wanted = pool.install(|| bits(&norm.forward(&x)?))?;
    assert_eq!(
        threads_of_process(),
        before,
        "threads beside those of the pool"
    );

    // From outside a pool the global one works, which this call starts.
    assert_eq!(bits(&norm.forward(&x)?)?, wanted);
    let with_global = threads_of_process();
    assert!(with_global <= before + rayon::current_num_threads());

    let work = || -> Result<()> {
        for _ in 0..20 {
            assert_eq!(bits(&norm.forward(&x)?)?, wanted);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        callers
            .into_iter()
            .try_for_each(|caller| caller.join().unwrap())
    })?;
    // Calls from tasks of a pool, more of them than it has threads.
    pool.scope(|scope| (0..4).for_each(|_| scope.spawn(|_| work().unwrap())));
    rayon::scope(|scope| (0..4).for_each(|_| scope.spawn(|_| work().unwrap())));
    assert_eq!(threads_of_process(), with_global);
    Ok(())
}
