//! A million calls, and memory does not grow. A program of its own: memory is the process's.

mod common;

use common::resident_bytes;
use fastnorm::{norm_many, Context, ContextOptions, Device, Norm, Result, Tensor, TensorMut};

const CALLS: usize = 1_000_000;
/// What the allocator and the test's threads may take meanwhile; a leak of one byte a call is more.
const SLACK: usize = 512 * 1024;

fn call(context: &Context, x: &[f32], y: &mut [f32], eps: f32) -> Result<()> {
    Norm::rms(eps)
        .x(Tensor::new(x, &[1, 4])?)
        .y(TensorMut::new(y, &[1, 4])?)
        .run(context)
}

#[test]
fn a_million_calls() -> Result<()> {
    let context = Context::cpu()?;
    let (x, mut y, mut z) = ([1f32; 4], [0f32; 4], [1f32; 4]);
    let mut round = |calls: usize| -> Result<()> {
        for i in 0..calls {
            call(&context, &x, &mut y, 0.0)?;
            if i % 16 == 0 {
                let error = call(&context, &x, &mut y, -1.0).expect_err("eps is negative");
                assert!(error.message().contains("eps is -1"));
                let part = Norm::rms(0.0).x_in_place(TensorMut::new(&mut z, &[1, 4])?);
                norm_many(&context, &mut [part])?;
            }
            if i % 1024 == 0 {
                let context = ContextOptions::new(Device::CPU).log(|_, _| ()).create()?;
                call(&context, &x, &mut y, 0.0)?;
                assert!(Context::new(Device {
                    id: 1,
                    ..Device::CPU
                })
                .is_err());
            }
        }
        Ok(())
    };
    round(CALLS / 50)?;
    let before = resident_bytes();
    round(CALLS)?;
    let growth = resident_bytes().saturating_sub(before);
    println!("{CALLS} calls: {growth} bytes more");
    assert!(growth <= SLACK, "{growth} bytes more after {CALLS} calls");
    assert_eq!((y, z), ([1.0; 4], [1.0; 4]));
    Ok(())
}
