//! Stages of a norm: what a call would do, several calls at once, and what is refused. Values by
//! hand are in the documentation of the stages.

mod common;

use common::Float;
use fastnorm::{
    norm_many, Activation, Context, ContextOptions, DType, Device, Norm, Result, Rounding, Status,
    Tensor, TensorMut,
};

const ROWS: usize = 3;
const N: usize = 96;
const GROUP: usize = 32;
const SHAPE: [usize; 2] = [ROWS, N];

/// Numbers of many bits.
fn numbers<T: Float>(count: usize, seed: f64) -> Vec<T> {
    (0..count)
        .map(|i| T::of((i as f64 * 1.7 + seed).sin() * 2.5))
        .collect()
}

#[test]
fn what_a_call_with_stages_would_do() -> Result<()> {
    let context = Context::cpu()?;
    let (x, gate): (Vec<f32>, Vec<f32>) = (numbers(ROWS * N, 1.0), numbers(ROWS * N, 2.0));
    let mut y = vec![0f32; ROWS * N];
    let norm = Norm::rms(1e-6)
        .x(Tensor::new(&x, &SHAPE)?)
        .gate(Tensor::new(&gate, &SHAPE)?)
        .y(TensorMut::new(&mut y, &SHAPE)?);
    norm.prepare(&context)?;
    let info = norm.query(&context)?;
    assert_eq!((info.kernel, info.launches), ("f32 rms stages", 1));
    let bytes = (ROWS * N * 4) as u64;
    assert_eq!((info.bytes_read, info.bytes_written), (2 * bytes, bytes));
    assert!(format!("{norm:?}").contains("gate: f32 [3, 96]"));
    Ok(())
}

/// Stages of two calls at once; and an address that both write is refused.
#[test]
fn parts_with_stages() -> Result<()> {
    let context = Context::cpu()?;
    let (x, gate): (Vec<f32>, Vec<f32>) = (numbers(2 * N, 1.0), numbers(2 * N, 2.0));
    let (mut together, mut apart) = (vec![0f32; 2 * N], vec![0f32; 2 * N]);
    let norm = |row: usize| -> Result<Norm<'_>> {
        let part = row * N..(row + 1) * N;
        Ok(Norm::rms(1e-5)
            .x(Tensor::new(&x[part.clone()], &[1, N])?)
            .gate(Tensor::new(&gate[part], &[1, N])?)
            .gate_act(Activation::Silu)
            .group_size(GROUP))
    };
    let (first, second) = together.split_at_mut(N);
    let mut parts = [
        norm(0)?.y(TensorMut::new(first, &[1, N])?),
        norm(1)?.y(TensorMut::new(second, &[1, N])?),
    ];
    norm_many(&context, &mut parts)?;
    for (row, y) in apart.chunks_mut(N).enumerate() {
        norm(row)?.y(TensorMut::new(y, &[1, N])?).run(&context)?;
    }
    assert_eq!(together, apart);
    Ok(())
}

type Change = for<'a> fn(Norm<'a>, Tensor<'a>) -> Norm<'a>;

/// What is changed in a call of [1, 4] with y, given x; and what the library says of it.
const REFUSED: &[(Change, Status, &str)] = &[
    (
        |norm, _| norm.group_size(usize::MAX),
        Status::SHAPE,
        "group_size is 9223372036854775807 and n is 4",
    ),
    (|norm, x| norm.gate(x), Status::LAYOUT, ") overlaps x [0x"),
    (
        |norm, _| norm.gate_act(Activation::Silu),
        Status::ARGUMENT,
        "gate_act is FASTNORM_ACTIVATION_SILU (1) and gate is NULL; required: 0 without gate",
    ),
    (
        |norm, _| norm.branch_rms(0.0).branch_rounding(Rounding::OnceRw),
        Status::ARGUMENT,
        "branch_rounding is 3; required: a fastnorm_rounding, 0 to 2",
    ),
];

#[test]
fn refusals_have_texts() -> Result<()> {
    let context = Context::cpu()?;
    let (x, mut y) = ([1f32; 4], [-1f32; 4]);
    let x = Tensor::new(&x, &[1, 4])?;
    for (change, status, text) in REFUSED {
        let norm = Norm::rms(0.0).x(x).y(TensorMut::new(&mut y, &[1, 4])?);
        let mut norm = change(norm, x);
        for result in [norm.run(&context), norm.prepare(&context)] {
            let error = result.expect_err(text);
            assert_eq!(error.status(), *status, "{error}");
            assert!(error.message().contains(text), "{error} lacks {text}");
        }
        drop(norm);
        assert_eq!(y, [-1.0; 4], "nothing is written");
    }
    Ok(())
}

#[test]
fn stages_on_a_gpu() -> Result<()> {
    let device = Device::cuda(0);
    let gpu = ContextOptions::new(device).dry_run(90).create()?;
    let address = |i: usize| (i * 0x1000_0000_0000) as *mut _;
    // SAFETY: a dry run touches no memory.
    let mut norm = unsafe {
        Norm::rms(0.0)
            .x(Tensor::from_device(
                device,
                address(1),
                DType::BF16,
                &[4, 64],
            )?)
            .gate(Tensor::from_device(
                device,
                address(2),
                DType::BF16,
                &[4, 64],
            )?)
            .y(TensorMut::from_device(
                device,
                address(3),
                DType::BF16,
                &[4, 64],
            )?)
    };
    assert_eq!(norm.query(&gpu)?.kernel, "bf16 gated 8x1");
    norm.run(&gpu)?;
    // SAFETY: as above.
    let scale = unsafe { Tensor::from_device(device, address(4), DType::BF16, &[4, 64])? };
    let mut norm = norm.modulation_scale(scale);
    assert_eq!(norm.query(&gpu)?.kernel, "bf16 stages 32xstream");
    norm.run(&gpu)?;
    Ok(())
}
