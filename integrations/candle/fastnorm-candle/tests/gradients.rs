//! Gradients beside those of candle's operators and those in double precision.

mod common;

use candle_core::{DType, Device, Result, Tensor, Var};
use common::gradients::{self, gradients};
use common::{bits, flat, numbers};
use fastnorm_candle::Norm;

const CPU: Device = Device::Cpu;

#[test]
fn beside_candle_and_double_precision() -> Result<()> {
    gradients::of_all_dtypes(&CPU, &[&[1, 64], &[5, 3, 77], &[130, 256]])
}

#[test]
fn strided() -> Result<()> {
    gradients::of_strided_tensors(&CPU)
}

#[test]
fn of_weights_of_another_dtype() -> Result<()> {
    gradients::of_weights_of_another_dtype(&CPU)
}

#[test]
fn training() -> Result<()> {
    gradients::training(&CPU)
}

/// Only what is a variable gets a gradient.
#[test]
fn of_some_of_the_inputs() -> Result<()> {
    let x = numbers(&CPU, 1, &[6, 40], 0.0, DType::F32)?;
    let (weight, bias) = (
        numbers(&CPU, 2, &[40], 1.0, DType::F32)?,
        numbers(&CPU, 3, &[40], 0.0, DType::F32)?,
    );
    let all = [&x, &weight, &bias].map(|tensor| Var::from_tensor(tensor).unwrap());
    let norm = Norm::layer(1e-5);
    let wanted = norm.apply(&all[0], Some(&all[1]), Some(&all[2]))?;
    let wanted = gradients(&wanted, &x, [Some(&all[0]), Some(&all[1]), Some(&all[2])])?;
    for mask in 1..7 {
        let is_var = |i: usize| mask >> i & 1 == 1;
        let input = |i: usize| {
            if is_var(i) {
                all[i].as_tensor().clone()
            } else {
                all[i].detach()
            }
        };
        let inputs = [0, 1, 2].map(input);
        let y = norm.apply(&inputs[0], Some(&inputs[1]), Some(&inputs[2]))?;
        let store = (&y * &x)?.sum_all()?.backward()?;
        for i in 0..3 {
            let found = store.get(&all[i]).map(|found| flat(found).unwrap());
            let wanted = wanted[i].clone().filter(|_| is_var(i));
            assert_eq!(found, wanted, "mask {mask}, input {i}");
        }
    }
    let y = norm.apply(&x, Some(&weight), Some(&bias))?;
    assert!(!y.track_op());
    Ok(())
}

#[test]
fn of_no_rows() -> Result<()> {
    let x = Var::from_tensor(&Tensor::zeros((0, 8), DType::F32, &CPU)?)?;
    let weight = Var::from_tensor(&Tensor::ones(8, DType::F32, &CPU)?)?;
    let y = Norm::rms(1e-6).apply(&x, Some(&weight), None)?;
    let store = y.sum_all()?.backward()?;
    assert_eq!(flat(store.get(&weight).unwrap())?, [0.0; 8]);
    assert_eq!(store.get(&x).unwrap().dims(), [0, 8]);
    Ok(())
}

/// Gradients have the same bits on any number of threads.
#[test]
fn on_any_number_of_threads() -> Result<()> {
    let run = |threads: usize| -> Result<Vec<Vec<u64>>> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| {
            let x = Var::from_tensor(&numbers(&CPU, 1, &[700, 512], 0.3, DType::BF16)?)?;
            let weight = Var::from_tensor(&numbers(&CPU, 2, &[512], 1.0, DType::F32)?)?;
            let y = Norm::layer(1e-5).apply(&x, Some(&weight), None)?;
            let store = y.sqr()?.sum_all()?.backward()?;
            [Some(&y), store.get(&x), store.get(&weight)]
                .into_iter()
                .map(|tensor| bits(tensor.unwrap()))
                .collect()
        })
    };
    let one = run(1)?;
    for threads in [2, 3, 8] {
        assert_eq!(run(threads)?, one, "{threads} threads");
    }
    Ok(())
}
