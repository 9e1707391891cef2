//! Many threads on one context.

mod common;

use common::whole_numbers;
use fastnorm::{
    Context, ContextOptions, Device, Error, Norm, Quant, Result, Status, Stream, Tensor, TensorMut,
    Workspace,
};
use std::sync::{Arc, Barrier};
use std::thread;

const THREADS: usize = 8;

/// Stated here so that a change is a compile error.
#[test]
fn send_and_sync() {
    fn shared<T: Send + Sync>() {}
    shared::<Context>();
    shared::<Error>();
    shared::<Tensor<'_>>();
    shared::<TensorMut<'_>>();
    shared::<Norm<'_>>();
    shared::<Quant<'_>>();
    shared::<Stream>();
    shared::<Workspace>();
}

/// The text of a failure belongs to the thread that made the call.
#[test]
fn each_thread_has_its_own_text() {
    let context = Arc::new(Context::cpu().unwrap());
    let start = Arc::new(Barrier::new(THREADS));
    let threads: Vec<_> = (1..=THREADS)
        .map(|id| {
            let (context, start) = (Arc::clone(&context), Arc::clone(&start));
            thread::spawn(move || {
                let mut x = [1f32; 4];
                let mut norm =
                    Norm::rms(-(id as f32)).x_in_place(TensorMut::new(&mut x, &[1, 4]).unwrap());
                let expected = format!("eps is -{id}");
                start.wait();
                for _ in 0..2000 {
                    let error = norm.run(&context).expect_err("eps is negative");
                    assert_eq!(error.status(), Status::ARGUMENT);
                    let text = error.message();
                    assert!(
                        text.contains(&expected) && !text.contains(&format!("{expected}0")),
                        "{text}"
                    );
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// One context, with and without threads of its own, used by eight threads at once.
#[test]
fn results_are_the_same_from_every_thread() -> Result<()> {
    let (rows, n) = (16, 1024);
    let x: Vec<f32> = whole_numbers(rows * n, 31);
    let run = |context: &Context| -> Result<Vec<f32>> {
        let mut y = vec![0f32; rows * n];
        Norm::layer(1e-5)
            .x(Tensor::new(&x, &[rows, n])?)
            .y(TensorMut::new(&mut y, &[rows, n])?)
            .run(context)?;
        Ok(y)
    };
    let expected = run(&Context::cpu()?)?;
    for threads in [0, 3] {
        let context = ContextOptions::new(Device::CPU).threads(threads).create()?;
        thread::scope(|s| {
            for _ in 0..THREADS {
                s.spawn(|| {
                    for _ in 0..200 {
                        assert_eq!(run(&context).unwrap(), expected);
                    }
                });
            }
        });
    }
    Ok(())
}

/// Tensors of one buffer may be written by different threads, as slices may.
#[test]
fn parts_on_different_threads() -> Result<()> {
    let context = Context::cpu()?;
    let mut x = vec![2f32; 8 * 64];
    let (left, right) = TensorMut::new(&mut x, &[8, 64])?.split(0, 3)?;
    thread::scope(|s| {
        for part in [left, right] {
            s.spawn(|| Norm::rms(0.0).x_in_place(part).run(&context).unwrap());
        }
    });
    assert_eq!(x, vec![1.0; 8 * 64]);
    Ok(())
}
