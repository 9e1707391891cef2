//! Stages of a norm: values by hand, what equals other calls to the bit, and what is refused.
#![allow(clippy::float_cmp)]

mod common;

use common::{values, whole_numbers, Float};
use fastnorm::{
    bf16, norm_many, Activation, Context, ContextOptions, DType, Device, GatePosition, GateSource,
    ModulationRounding, Norm, Quant, ResidualRounding, Result, Rounding, Status, SumRounding,
    Tensor, TensorMut, F8E4M3,
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

fn silu(v: f64) -> f64 {
    v / (1.0 + (-v).exp())
}

#[track_caller]
fn near(found: &[f32], wanted: impl Iterator<Item = f64>) {
    for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let off = (f64::from(*found) - wanted).abs();
        assert!(off <= 2e-6 * (1.0 + wanted.abs()), "{i}: {found}, {wanted}");
    }
}

/// The sigmoid of 0 is 1/2 and the silu 0; both are exact for gates of large magnitude.
#[test]
fn gates_by_hand() -> Result<()> {
    let context = Context::cpu()?;
    let gate = [0f32, 200.0, -200.0, f32::NEG_INFINITY];
    let run = |x: [f32; 4], act: Activation| -> Result<[f32; 4]> {
        let mut y = [9f32; 4];
        Norm::rms(0.0)
            .x(Tensor::new(&x, &[1, 4])?)
            .gate(Tensor::new(&gate, &[1, 4])?)
            .gate_act(act)
            .y(TensorMut::new(&mut y, &[1, 4])?)
            .run(&context)?;
        Ok(y)
    };
    let rstd = 1.0 / 2.5f32;
    let y = run([3.0, 4.0, 0.0, 0.0], Activation::Sigmoid)?;
    assert_eq!(y, [3.0 * rstd * 0.5, 4.0 * rstd, 0.0, 0.0]);
    let y = run([3.0, 4.0, 0.0, 5.0], Activation::Silu)?;
    assert!(y[0] == 0.0 && y[1] > 0.0 && y[3] == 0.0 && y[3].is_sign_negative());
    let y = run([3.0, 4.0, 0.0, 0.0], Activation::Identity)?;
    assert_eq!(y[..2], [0.0, 4.0 * rstd * 200.0]);
    Ok(())
}

/// A gate of silu after the norm, weight and bias; a silu of the result in its place.
#[test]
fn gated_silu() -> Result<()> {
    let context = Context::cpu()?;
    let (x, gate): (Vec<f32>, Vec<f32>) = (numbers(ROWS * N, 1.0), numbers(ROWS * N, 2.0));
    let (weight, bias): (Vec<f32>, Vec<f32>) = (numbers(N, 3.0), numbers(N, 4.0));
    let norm = || -> Result<Norm<'_>> {
        Ok(Norm::layer(1e-5)
            .x(Tensor::new(&x, &SHAPE)?)
            .weight(Tensor::new(&weight, &[N])?)
            .bias(Tensor::new(&bias, &[N])?))
    };
    let [mut plain, mut gated, mut acted] = [(); 3].map(|()| vec![0f32; ROWS * N]);
    norm()?
        .y(TensorMut::new(&mut plain, &SHAPE)?)
        .run(&context)?;
    norm()?
        .gate(Tensor::new(&gate, &SHAPE)?)
        .gate_act(Activation::Silu)
        .y(TensorMut::new(&mut gated, &SHAPE)?)
        .run(&context)?;
    norm()?
        .activation(Activation::Silu)
        .y(TensorMut::new(&mut acted, &SHAPE)?)
        .run(&context)?;
    let plain = values(&plain);
    let gates = values(&gate);
    near(&gated, plain.iter().zip(&gates).map(|(z, g)| z * silu(*g)));
    near(&acted, plain.iter().map(|z| silu(*z)));
    // y may replace the gate or x.
    let mut over_gate = gate.clone();
    norm()?
        .gate_act(Activation::Silu)
        .gate_in_place(TensorMut::new(&mut over_gate, &SHAPE)?)
        .run(&context)?;
    assert_eq!(over_gate, gated);
    let mut over_x = x.clone();
    norm()?
        .x_in_place(TensorMut::new(&mut over_x, &SHAPE)?)
        .gate(Tensor::new(&gate, &SHAPE)?)
        .gate_act(Activation::Silu)
        .run(&context)?;
    assert_eq!(over_x, gated);
    Ok(())
}

/// A gate before the norm is that of a row which was gated ahead.
#[test]
fn gate_before_the_norm() -> Result<()> {
    let context = Context::cpu()?;
    let (x, gate): (Vec<f32>, Vec<f32>) = (numbers(ROWS * N, 1.0), numbers(ROWS * N, 2.0));
    let ahead: Vec<f32> = x.iter().zip(&gate).map(|(x, g)| x * g).collect();
    let (mut y, mut wanted) = (vec![0f32; ROWS * N], vec![0f32; ROWS * N]);
    Norm::rms(1e-5)
        .x(Tensor::new(&ahead, &SHAPE)?)
        .y(TensorMut::new(&mut wanted, &SHAPE)?)
        .run(&context)?;
    Norm::rms(1e-5)
        .x(Tensor::new(&x, &SHAPE)?)
        .gate(Tensor::new(&gate, &SHAPE)?)
        .gate_position(GatePosition::BeforeNorm)
        .y(TensorMut::new(&mut y, &SHAPE)?)
        .run(&context)?;
    assert_eq!(y, wanted);
    Ok(())
}

/// What Hugging Face rounds before the gate.
#[test]
fn gate_of_the_rounded_result() -> Result<()> {
    let context = Context::cpu()?;
    let (x, gate): (Vec<bf16>, Vec<bf16>) = (numbers(ROWS * N, 1.0), numbers(ROWS * N, 2.0));
    let mut plain = vec![bf16::default(); ROWS * N];
    Norm::rms(1e-5)
        .x(Tensor::new(&x, &SHAPE)?)
        .y(TensorMut::new(&mut plain, &SHAPE)?)
        .run(&context)?;
    let run = |source: GateSource| -> Result<Vec<bf16>> {
        let mut y = vec![bf16::default(); ROWS * N];
        Norm::rms(1e-5)
            .x(Tensor::new(&x, &SHAPE)?)
            .gate(Tensor::new(&gate, &SHAPE)?)
            .gate_source(source)
            .y(TensorMut::new(&mut y, &SHAPE)?)
            .run(&context)?;
        Ok(y)
    };
    // The product of two bf16 is exact in single precision.
    let wanted: Vec<bf16> = plain
        .iter()
        .zip(&gate)
        .map(|(z, g)| bf16::from_f32(z.to_f32() * g.to_f32()))
        .collect();
    assert_eq!(run(GateSource::Rounded)?, wanted);
    assert_ne!(run(GateSource::Exact)?, wanted);
    Ok(())
}

/// Groups are rows of a view, but for scales of quantised outputs.
#[test]
fn groups() -> Result<()> {
    const GROUPS: usize = N / GROUP;
    let context = Context::cpu()?;
    let (x, weight): (Vec<f32>, Vec<f32>) = (numbers(ROWS * N, 1.0), numbers(N, 2.0));
    let (mut y, mut wanted) = (vec![0f32; ROWS * N], vec![0f32; ROWS * N]);
    let [mut rstd, mut mean, mut wanted_rstd, mut wanted_mean] = [[0f32; ROWS * GROUPS]; 4];
    let (mut codes, mut scale) = ([F8E4M3::default(); ROWS * N], [0f32; ROWS]);
    Norm::layer(1e-5)
        .x(Tensor::new(&x, &[ROWS * GROUPS, GROUP])?)
        .weight(Tensor::new(&weight[..GROUP], &[GROUP])?)
        .y(TensorMut::new(&mut wanted, &[ROWS * GROUPS, GROUP])?)
        .rstd(TensorMut::new(&mut wanted_rstd, &[ROWS * GROUPS])?)
        .mean(TensorMut::new(&mut wanted_mean, &[ROWS * GROUPS])?)
        .run(&context)?;
    Norm::layer(1e-5)
        .x(Tensor::new(&x, &SHAPE)?)
        .group_size(GROUP)
        .weight(Tensor::new(&weight[..GROUP], &[GROUP])?)
        .y(TensorMut::new(&mut y, &SHAPE)?)
        .rstd(TensorMut::new(&mut rstd, &[ROWS, GROUPS])?)
        .mean(TensorMut::new(&mut mean, &[ROWS, GROUPS])?)
        .quant(Quant::per_row(
            TensorMut::new(&mut codes, &SHAPE)?,
            TensorMut::new(&mut scale, &[ROWS])?,
        ))
        .run(&context)?;
    assert_eq!((&y, rstd, mean), (&wanted, wanted_rstd, wanted_mean));
    for (row, scale) in y.chunks(N).zip(scale) {
        let most = row.iter().fold(0f32, |most, v| most.max(v.abs()));
        assert_eq!(scale, most / 448.0);
    }
    // A weight of all columns is another one in the second group.
    Norm::layer(1e-5)
        .x(Tensor::new(&x, &SHAPE)?)
        .group_size(GROUP)
        .weight(Tensor::new(&weight, &[N])?)
        .y(TensorMut::new(&mut y, &SHAPE)?)
        .run(&context)?;
    assert_eq!(y[..GROUP], wanted[..GROUP]);
    assert_ne!(y[GROUP..2 * GROUP], wanted[GROUP..2 * GROUP]);
    Ok(())
}

/// Two halves of each row give their sums. The statistic of all goes into a second call.
fn split(layer: bool) -> Result<()> {
    const HALF: usize = N / 2;
    let context = Context::cpu()?;
    let norm = || {
        if layer {
            Norm::layer(1e-5)
        } else {
            Norm::rms(1e-5)
        }
    };
    let x: Vec<f32> = numbers(ROWS * N, 1.0);
    let whole = Tensor::new(&x, &SHAPE)?;
    let half = |i: usize| i * HALF..(i + 1) * HALF;
    let values = if layer { 2 } else { 1 };
    let mut sums = [[0f32; 2 * ROWS]; 2];
    for (i, sums) in sums.iter_mut().enumerate() {
        let shape: &[usize] = if layer { &[ROWS, 2] } else { &[ROWS] };
        norm()
            .x(whole.narrow(1, half(i))?)
            .sumsq(TensorMut::new(&mut sums[..values * ROWS], shape)?)
            .run(&context)?;
    }
    let [mut mean, mut rstd] = [[0f32; ROWS]; 2];
    for row in 0..ROWS {
        let at = |i: usize, value: usize| f64::from(sums[i][row * values + value]);
        let sum = if layer {
            let delta = at(1, 0) - at(0, 0);
            mean[row] = (at(0, 0) + delta / 2.0) as f32;
            at(0, 1) + at(1, 1) + delta * delta * HALF as f64 / 2.0
        } else {
            at(0, 0) + at(1, 0)
        };
        rstd[row] = (1.0 / (sum / N as f64 + 1e-5).sqrt()) as f32;
    }
    let (mut y, mut wanted) = (vec![0f32; ROWS * N], vec![0f32; ROWS * N]);
    for i in 0..2 {
        let mut norm = norm()
            .x(whole.narrow(1, half(i))?)
            .rstd_in(Tensor::new(&rstd, &[ROWS])?)
            .y(TensorMut::new(&mut y, &SHAPE)?.narrow(1, half(i))?);
        if layer {
            norm = norm.mean_in(Tensor::new(&mean, &[ROWS])?);
        }
        norm.run(&context)?;
    }
    for (i, y) in y.iter().enumerate() {
        assert_eq!(*y, (x[i] - mean[i / N]) * rstd[i / N], "element {i}");
    }
    norm()
        .x(whole)
        .y(TensorMut::new(&mut wanted, &SHAPE)?)
        .run(&context)?;
    near(&y, wanted.iter().map(|v| f64::from(*v)));
    Ok(())
}

#[test]
fn sums_of_squares_of_two_devices() -> Result<()> {
    split(false)
}

#[test]
fn means_and_squares_of_two_devices() -> Result<()> {
    split(true)
}

/// Norm, addition, norm: the bits of two calls, and others with a factor.
fn sandwich(layer: bool) -> Result<()> {
    let context = Context::cpu()?;
    let (x, residual): (Vec<bf16>, Vec<bf16>) = (numbers(ROWS * N, 1.0), numbers(ROWS * N, 2.0));
    let (w1, w2): (Vec<bf16>, Vec<bf16>) = (numbers(N, 3.0), numbers(N, 4.0));
    let bias: Vec<f32> = numbers(N, 5.0);
    let zero = || vec![bf16::default(); ROWS * N];
    let (mut branch, mut sum, mut y, mut rstd) = (zero(), zero(), zero(), [0f32; ROWS]);
    let first = if layer { Norm::layer } else { Norm::rms };
    first(1e-3)
        .x(Tensor::new(&x, &SHAPE)?)
        .weight(Tensor::new(&w1, &[N])?)
        .weight_offset(1.0)
        .bias(Tensor::new(&bias, &[N])?)
        .rounding(Rounding::Normalized)
        .y(TensorMut::new(&mut branch, &SHAPE)?)
        .rstd(TensorMut::new(&mut rstd, &[ROWS])?)
        .run(&context)?;
    Norm::rms(1e-6)
        .x(Tensor::new(&branch, &SHAPE)?)
        .residual(Tensor::new(&residual, &SHAPE)?)
        .residual_rounding(ResidualRounding::BeforeStatistics)
        .weight(Tensor::new(&w2, &[N])?)
        .y(TensorMut::new(&mut y, &SHAPE)?)
        .residual_out(TensorMut::new(&mut sum, &SHAPE)?)
        .run(&context)?;
    type More = for<'a> fn(Norm<'a>, Tensor<'a>) -> Norm<'a>;
    let one_call = |more: More| -> Result<(Vec<bf16>, Vec<bf16>, [f32; ROWS])> {
        let (half, mut sum, mut y, mut rstd) = ([0.5f32], zero(), zero(), [0f32; ROWS]);
        let norm = Norm::rms(1e-6)
            .x(Tensor::new(&x, &SHAPE)?)
            .residual(Tensor::new(&residual, &SHAPE)?)
            .residual_rounding(ResidualRounding::BeforeStatistics)
            .weight(Tensor::new(&w2, &[N])?)
            .branch_weight(Tensor::new(&w1, &[N])?)
            .branch_weight_offset(1.0)
            .branch_bias(Tensor::new(&bias, &[N])?)
            .branch_rounding(Rounding::Normalized)
            .branch_rounded(true)
            .branch_rstd(TensorMut::new(&mut rstd, &[ROWS, 1])?)
            .y(TensorMut::new(&mut y, &SHAPE)?)
            .residual_out(TensorMut::new(&mut sum, &SHAPE)?);
        let norm = if layer {
            norm.branch_layer(1e-3)
        } else {
            norm.branch_rms(1e-3)
        };
        more(norm, Tensor::new(&half, &[1])?).run(&context)?;
        Ok((sum, y, rstd))
    };
    assert_eq!(one_call(|norm, _| norm)?, (sum.clone(), y.clone(), rstd));
    assert_eq!(one_call(|norm, _| norm.alpha(1.0))?, (sum.clone(), y, rstd));
    assert_ne!(one_call(|norm, _| norm.alpha(0.25))?.0, sum);
    assert_ne!(one_call(|norm, half| norm.sum_scale(half))?.0, sum);
    Ok(())
}

#[test]
fn sandwich_is_two_calls() -> Result<()> {
    sandwich(false)?;
    sandwich(true)
}

/// 3 * 2 + 1, then by 1/2; and a branch without a norm, rounded after each step.
#[test]
fn scaled_sums() -> Result<()> {
    let context = Context::cpu()?;
    let (x, residual, half) = ([3f32, 5.0], [1f32, -10.0], [0.5f32]);
    let (mut sum, mut y) = ([0f32; 2], [1f32; 2]);
    Norm::rms(1.0)
        .x(Tensor::new(&x, &[1, 2])?)
        .residual(Tensor::new(&residual, &[1, 2])?)
        .alpha(2.0)
        .residual_out(TensorMut::new(&mut sum, &[1, 2])?)
        .y(TensorMut::new(&mut y, &[1, 2])?)
        .run(&context)?;
    assert_eq!((sum, y[1]), ([7.0, 0.0], 0.0));
    Norm::rms(1.0)
        .x(Tensor::new(&x, &[1, 2])?)
        .residual(Tensor::new(&residual, &[1, 2])?)
        .alpha(2.0)
        .sum_scale(Tensor::new(&half, &[1])?)
        .residual_out(TensorMut::new(&mut sum, &[1, 2])?)
        .y(TensorMut::new(&mut y, &[1, 2])?)
        .run(&context)?;
    assert_eq!(sum, [3.5, 0.0]);

    let (x, residual): (Vec<bf16>, Vec<bf16>) = (numbers(ROWS * N, 1.0), numbers(ROWS * N, 2.0));
    let (alpha, scale) = (0.22f32, [0.7f32]);
    let run = |rounding: SumRounding| -> Result<Vec<bf16>> {
        let mut sum = vec![bf16::default(); ROWS * N];
        let mut y = sum.clone();
        Norm::rms(1e-6)
            .x(Tensor::new(&x, &SHAPE)?)
            .residual(Tensor::new(&residual, &SHAPE)?)
            .alpha(alpha)
            .sum_scale(Tensor::new(&scale, &[1])?)
            .sum_rounding(rounding)
            .residual_out(TensorMut::new(&mut sum, &SHAPE)?)
            .y(TensorMut::new(&mut y, &SHAPE)?)
            .run(&context)?;
        Ok(sum)
    };
    let every = x.iter().zip(&residual).map(|(x, r)| {
        let u = bf16::from_f32(x.to_f32() * alpha);
        let s = bf16::from_f32(u.to_f32() + r.to_f32());
        bf16::from_f32(s.to_f32() * scale[0])
    });
    assert_eq!(run(SumRounding::EveryStep)?, every.collect::<Vec<_>>());
    let once = x
        .iter()
        .zip(&residual)
        .map(|(x, r)| bf16::from_f32(x.to_f32().mul_add(alpha, r.to_f32()) * scale[0]));
    assert_eq!(run(SumRounding::Once)?, once.collect::<Vec<_>>());
    Ok(())
}

/// What is made of the row 3, 4, 0, 0, whose norm is 1.2, 1.6, 0, 0, and of its sum.
fn modulated(
    change: impl for<'a> FnOnce(Norm<'a>) -> Result<Norm<'a>>,
) -> Result<([f32; 4], [f32; 4])> {
    let (x, residual, gate) = ([6f32, 8., 1., 1.], [0f32, 0., -0.5, -0.5], [0.5f32]);
    let (mut sum, mut y) = ([0f32; 4], [0f32; 4]);
    let norm = Norm::rms(0.0)
        .x(Tensor::new(&x, &[1, 4])?)
        .residual(Tensor::new(&residual, &[1, 4])?)
        .residual_gate(Tensor::new(&gate, &[1])?)
        .residual_out(TensorMut::new(&mut sum, &[1, 4])?)
        .y(TensorMut::new(&mut y, &[1, 4])?);
    change(norm)?.run(&Context::cpu()?)?;
    Ok((sum, y))
}

static SCALE: [f32; 4] = [1.0, 0.0, 0.0, 0.0];
static SHIFT: [f32; 4] = [0.0, 0.0, 7.0, 0.0];
static SCALES: [f32; 4] = [-2.0, 0.0, 0.0, 0.0];
static SHIFTS: [f32; 4] = [0.0, 0.0, 1.0, -1.0];
static LARGE: [f32; 1] = [50.0];
static TURNS: [f32; 4] = [0.0, -100.0, -50.0, 0.0];

#[test]
fn a_gated_residual_and_a_modulation() -> Result<()> {
    let (sum, y) = modulated(|norm| Ok(norm.alpha(1.0)))?; // as without
    assert_eq!((sum, y), ([3., 4., 0., 0.], [1.2, 1.6, 0., 0.]));
    let (_, y) = modulated(|norm| {
        Ok(norm
            .modulation_scale(Tensor::new(&SCALE, &[4])?)
            .modulation_shift(Tensor::new(&SHIFT, &[1, 4])?))
    })?;
    assert_eq!(y, [2.4, 1.6, 7., 0.]);
    let (_, y) = modulated(|norm| {
        Ok(norm
            .modulation_scale(Tensor::new(&SCALE, &[4])?)
            .modulation_plain_scale(true))
    })?;
    assert_eq!(y, [1.2, 0., 0., 0.]);
    let (_, y) = modulated(|norm| {
        Ok(norm
            .modulation_scale(Tensor::new(&SCALE, &[4])?)
            .scale_table(Tensor::new(&SCALES, &[4])?)
            .modulation_shift(Tensor::new(&SHIFT, &[4])?)
            .shift_table(Tensor::new(&SHIFTS, &[1, 4])?))
    })?;
    assert_eq!(y, [0., 1.6, 8., -1.]);
    let (sum, _) = modulated(|norm| {
        Ok(norm
            .residual_gate(Tensor::new(&LARGE, &[1])?)
            .residual_gate_table(Tensor::new(&TURNS, &[4])?)
            .residual_gate_act(Activation::Tanh))
    })?;
    assert_eq!(sum, [6., -8., -0.5, 0.5]);
    let error = modulated(|norm| Ok(norm.scale_table(Tensor::new(&SCALES, &[4])?)));
    let error = error.expect_err("a table alone");
    assert_eq!(error.status(), Status::ARGUMENT);
    assert!(error
        .message()
        .contains("scale_table is given and modulation_scale is NULL; required: both"));
    Ok(())
}

/// Rows of modulators by number are those that broadcast.
#[test]
fn modulators_by_an_index() -> Result<()> {
    let context = Context::cpu()?;
    let x: Vec<f32> = numbers(2 * 3 * N, 1.0);
    let shifts: Vec<f32> = numbers(2 * N, 2.0);
    let shape = [2, 3, N];
    let (mut y, mut wanted) = (vec![0f32; x.len()], vec![0f32; x.len()]);
    Norm::layer(1e-6)
        .x(Tensor::new(&x, &shape)?)
        .modulation_shift(Tensor::new(&shifts, &[2, 1, N])?)
        .y(TensorMut::new(&mut wanted, &shape)?)
        .run(&context)?;
    let mut run = |index: Tensor<'_>| -> Result<()> {
        Norm::layer(1e-6)
            .x(Tensor::new(&x, &shape)?)
            .modulation_shift(Tensor::new(&shifts, &[2, N])?)
            .modulation_index(index)
            .y(TensorMut::new(&mut y, &shape)?)
            .run(&context)
    };
    run(Tensor::new(&[0i32, 0, 0, 1, 1, 1], &[2, 3])?)?;
    let error = run(Tensor::new(&[0i64, 0, 0, 1, -1, 1], &[2, 3, 1])?).expect_err("row -1");
    assert_eq!(error.status(), Status::ARGUMENT);
    assert!(error
        .message()
        .contains("modulation_index of row 4 is -1; required: 0 to 1"));
    assert_eq!(y, wanted);
    Ok(())
}

/// 1 + 2^-8 lies between two values of bf16.
#[test]
fn modulations_of_rounded_steps() -> Result<()> {
    let context = Context::cpu()?;
    let (x, scale) = ([bf16::from_f32(1.0)], [1f32 / 256.0]);
    let run = |rounding: ModulationRounding| -> Result<f32> {
        let mut y = [0f32];
        Norm::rms(0.0)
            .x(Tensor::new(&x, &[1])?)
            .modulation_scale(Tensor::new(&scale, &[1])?)
            .modulation_rounding(rounding)
            .y(TensorMut::new(&mut y, &[1])?)
            .run(&context)?;
        Ok(y[0])
    };
    assert_eq!(run(ModulationRounding::Once)?, 1.0 + 1.0 / 256.0);
    assert_eq!(run(ModulationRounding::EveryStep)?, 1.0);
    Ok(())
}

#[test]
fn what_a_call_with_stages_would_do() -> Result<()> {
    let context = Context::cpu()?;
    let (x, gate): (Vec<f32>, Vec<f32>) = (whole_numbers(ROWS * N, 1), whole_numbers(ROWS * N, 2));
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

type Change = for<'a> fn(Norm<'a>, Tensor<'a>, Tensor<'a>) -> Norm<'a>;

/// What is changed in a call of [1, 4] with y, given x and a `[1]`; and what is said of it.
const REFUSED: &[(Change, Status, &str)] = &[
    (
        |norm, _, _| norm.group_size(3),
        Status::SHAPE,
        "group_size is 3 and n is 4; required: a divisor of n",
    ),
    (
        |norm, _, _| norm.group_size(usize::MAX),
        Status::SHAPE,
        "group_size is 9223372036854775807 and n is 4",
    ),
    (
        |norm, x, _| norm.gate(x),
        Status::LAYOUT,
        ") overlaps x [0x",
    ),
    (
        |norm, _, one| norm.gate(one),
        Status::SHAPE,
        "gate.shape is [1]",
    ),
    (
        |norm, _, _| norm.gate_act(Activation::Silu),
        Status::ARGUMENT,
        "gate_act is 1 and gate is NULL; required: 0 without a gate",
    ),
    (
        |norm, _, _| norm.gate_position(GatePosition::BeforeNorm),
        Status::ARGUMENT,
        "gate_position is 1 and gate is NULL",
    ),
    (
        |norm, _, _| norm.gate_source(GateSource::Rounded),
        Status::ARGUMENT,
        "gate_source is 1 and gate is NULL",
    ),
    (
        |norm, x, _| {
            norm.gate(x)
                .gate_position(GatePosition::BeforeNorm)
                .gate_source(GateSource::Rounded)
        },
        Status::ARGUMENT,
        "gate_source is FASTNORM_GATE_FROM_ROUNDED (1) and gate_position is 1",
    ),
    (
        |norm, _, one| norm.mean_in(one),
        Status::ARGUMENT,
        "mean_in is given and kind is FASTNORM_NORM_RMS",
    ),
    (
        |norm, x, _| norm.rstd_in(x),
        Status::SHAPE,
        "rstd_in.shape is [1, 4]; required: x.shape[:-1]",
    ),
    (
        |norm, _, _| norm.branch_weight_offset(1.0),
        Status::ARGUMENT,
        "branch_weight_offset is 1 and branch_weight is NULL",
    ),
    (
        |norm, _, _| norm.branch_rounded(true),
        Status::ARGUMENT,
        "branch_rounded is 1 and branch_norm is 0; required: 0 without a branch norm",
    ),
    (
        |norm, x, _| norm.branch_bias(x),
        Status::ARGUMENT,
        "branch_bias is given and branch_norm is 0; required: NULL without a branch norm",
    ),
    (
        |norm, _, _| norm.branch_rms(-1.0),
        Status::ARGUMENT,
        "branch_eps is -1; required: finite and >= 0",
    ),
    (
        |norm, _, _| norm.branch_rms(0.0).branch_rounding(Rounding::OnceRw),
        Status::ARGUMENT,
        "branch_rounding is 3; required: a fastnorm_rounding, 0 to 2",
    ),
    (
        |norm, _, _| norm.alpha(f32::NAN),
        Status::ARGUMENT,
        "alpha is nan; required: finite",
    ),
    (
        |norm, x, _| norm.sum_scale(x),
        Status::SHAPE,
        "sum_scale.ndim is 2; required: 1",
    ),
];

#[test]
fn refusals_have_texts() -> Result<()> {
    let context = Context::cpu()?;
    let (x, one, mut y) = ([1f32; 4], [1f32], [-1f32; 4]);
    let (x, one) = (Tensor::new(&x, &[1, 4])?, Tensor::new(&one, &[1])?);
    for (change, status, text) in REFUSED {
        let norm = Norm::rms(0.0).x(x).y(TensorMut::new(&mut y, &[1, 4])?);
        let mut norm = change(norm, x, one);
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
fn outputs_that_do_not_go_together() -> Result<()> {
    let context = Context::cpu()?;
    let (x, one, mut y, mut sums) = ([1f32; 4], [1f32], [-1f32; 4], [-1f32; 2]);
    let (x, one) = (Tensor::new(&x, &[1, 4])?, Tensor::new(&one, &[1])?);
    let refused = |mut norm: Norm<'_>, status: Status, text: &str| {
        let error = norm.run(&context).expect_err(text);
        assert_eq!(error.status(), status, "{error}");
        assert!(error.message().contains(text), "{error} lacks {text}");
    };
    refused(
        Norm::rms(0.0)
            .x(x)
            .rstd_in(one)
            .sumsq(TensorMut::new(&mut sums[..1], &[1])?),
        Status::ARGUMENT,
        "sumsq is given and rstd_in is given",
    );
    refused(
        Norm::rms(0.0)
            .x(x)
            .rounding(Rounding::EveryStep)
            .sumsq(TensorMut::new(&mut sums[..1], &[1])?),
        Status::ARGUMENT,
        "sumsq is given and rounding is FASTNORM_ROUND_EVERY_STEP (2)",
    );
    refused(
        Norm::layer(0.0)
            .x(x)
            .rstd_in(one)
            .y(TensorMut::new(&mut y, &[1, 4])?),
        Status::ARGUMENT,
        "mean_in is NULL and rstd_in is given; required: both or neither",
    );
    refused(
        Norm::layer(0.0)
            .x(x)
            .sumsq(TensorMut::new(&mut sums, &[2])?),
        Status::SHAPE,
        "sumsq.shape is [2]; required: x.shape[:-1] + [2]",
    );
    refused(
        Norm::rms(0.0)
            .x(x)
            .branch_rstd(TensorMut::new(&mut sums[..1], &[1])?)
            .y(TensorMut::new(&mut y, &[1, 4])?),
        Status::ARGUMENT,
        "branch_rstd is given and branch_norm is 0",
    );
    refused(
        Norm::rms(0.0).x(x),
        Status::ARGUMENT,
        "y is NULL and quantized is NULL; required: at least one, of x's shape, or sumsq",
    );
    assert_eq!((y, sums), ([-1.0; 4], [-1.0; 2]), "nothing is written");
    Ok(())
}

#[test]
fn stages_of_five_dimensions() -> Result<()> {
    let (x, mut y, mut wanted) = ([1f32, 2., 3., 4.], [-1f32; 4], [-1f32; 4]);
    let context = Context::cpu()?;
    Norm::rms(0.0)
        .x(Tensor::new(&x, &[2, 2])?)
        .activation(Activation::Silu)
        .y(TensorMut::new(&mut wanted, &[2, 2])?)
        .run(&context)?;
    Norm::rms(0.0)
        .x(Tensor::new(&x, &[1, 2, 1, 1, 2])?)
        .activation(Activation::Silu)
        .y(TensorMut::new(&mut y, &[1, 2, 1, 1, 2])?)
        .run(&context)?;
    assert_eq!(y, wanted);
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
