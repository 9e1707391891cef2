//! Gradients against the formula in double precision.
#![allow(clippy::needless_range_loop)] // rows index several things

use fastnorm::{
    norm_backward_many, norm_backward_many_prepare, norm_backward_many_query, Activation, Context,
    GatePosition, Norm, NormBackward, Result, Status, Tensor, TensorMut,
};

const ROWS: usize = 7;
const N: usize = 96;
const EPS: f32 = 1e-3;

/// Numbers of [-2, 2).
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 22) as f32 - 2.0
    };
    (0..count).map(|_| next()).collect()
}

struct Inputs {
    x: Vec<f32>,
    dy: Vec<f32>,
    weight: Vec<f32>,
    dresidual: Vec<f32>,
}

/// The derivatives of sum(dy * y) + sum(dresidual * x): dx, dweight, dbias.
fn differentiate(inputs: &Inputs, layer: bool) -> [Vec<f64>; 3] {
    let (mut dx, mut dweight, mut dbias) = (vec![0.0; ROWS * N], vec![0.0; N], vec![0.0; N]);
    let n = N as f64;
    for row in 0..ROWS {
        let part = row * N..(row + 1) * N;
        let of =
            |v: &[f32]| -> Vec<f64> { v[part.clone()].iter().map(|v| f64::from(*v)).collect() };
        let (x, dy, dresidual) = (of(&inputs.x), of(&inputs.dy), of(&inputs.dresidual));
        let mean = if layer {
            x.iter().sum::<f64>() / n
        } else {
            0.0
        };
        let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        let rstd = (variance + f64::from(EPS)).sqrt().recip();
        let xhat: Vec<f64> = x.iter().map(|v| (v - mean) * rstd).collect();
        let e: Vec<f64> = dy
            .iter()
            .zip(&inputs.weight)
            .map(|(d, w)| d * f64::from(*w))
            .collect();
        let c1 = e.iter().zip(&xhat).map(|(e, h)| e * h).sum::<f64>() / n;
        let c2 = if layer {
            e.iter().sum::<f64>() / n
        } else {
            0.0
        };
        for i in 0..N {
            dweight[i] += dy[i] * xhat[i];
            dbias[i] += dy[i];
            dx[row * N + i] = (e[i] - c2 - xhat[i] * c1) * rstd + dresidual[i];
        }
    }
    [dx, dweight, dbias]
}

fn assert_close(what: &str, found: &[f32], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
        assert!(
            (f64::from(*f) - w).abs() < 2e-5,
            "{what}, element {i}: {f}, required: {w}"
        );
    }
}

fn inputs() -> Inputs {
    Inputs {
        x: numbers(ROWS * N, 1),
        dy: numbers(ROWS * N, 2),
        weight: numbers(N, 3),
        dresidual: numbers(ROWS * N, 4),
    }
}

#[test]
fn gradients() -> Result<()> {
    let context = Context::cpu()?;
    let inputs = inputs();
    let x = || Tensor::new(&inputs.x, &[ROWS, N]);
    let weight = || Tensor::new(&inputs.weight, &[N]);
    for layer in [false, true] {
        let (mut y, mut mean, mut rstd) =
            (vec![0f32; ROWS * N], vec![0f32; ROWS], vec![0f32; ROWS]);
        let mut norm = if layer {
            Norm::layer(EPS)
        } else {
            Norm::rms(EPS)
        }
        .x(x()?)
        .weight(weight()?)
        .y(TensorMut::new(&mut y, &[ROWS, N])?)
        .rstd(TensorMut::new(&mut rstd, &[ROWS])?);
        if layer {
            norm = norm.mean(TensorMut::new(&mut mean, &[ROWS])?);
        }
        norm.run(&context)?;
        let [dx, dweight, dbias] = differentiate(&inputs, layer);
        for saved in [true, false] {
            let (mut of_x, mut of_weight, mut of_bias) =
                (vec![0f32; ROWS * N], vec![0f32; N], vec![0.5f32; N]);
            let mut call = if layer {
                NormBackward::layer(EPS)
            } else {
                NormBackward::rms(EPS)
            }
            .x(x()?)
            .dy(Tensor::new(&inputs.dy, &[ROWS, N])?)
            .weight(weight()?)
            .dresidual_in(Tensor::new(&inputs.dresidual, &[ROWS, N])?)
            .dx(TensorMut::new(&mut of_x, &[ROWS, N])?)
            .dweight(TensorMut::new(&mut of_weight, &[N])?)
            .accumulate_dbias(TensorMut::new(&mut of_bias, &[N])?);
            if saved {
                call = call.rstd(Tensor::new(&rstd, &[ROWS])?);
                if layer {
                    call = call.mean(Tensor::new(&mean, &[ROWS])?);
                }
            }
            call.prepare(&context)?;
            assert!(call.query(&context)?.workspace_bytes > 0);
            call.run(&context)?;
            assert_close("dx", &of_x, &dx);
            assert_close("dweight", &of_weight, &dweight);
            let more: Vec<f64> = dbias.iter().map(|v| v + 0.5).collect();
            assert_close("dbias", &of_bias, &more);
        }
    }
    Ok(())
}

/// A gate that is a factor gives the bits of a call with the product of dy, or of x, and the gate.
#[test]
fn gates() -> Result<()> {
    let context = Context::cpu()?;
    let inputs = inputs();
    let gate: Vec<f32> = (0..ROWS * N).map(|i| (i % 7) as f32 - 2.5).collect();
    let product = |v: &[f32]| -> Vec<f32> { v.iter().zip(&gate).map(|(v, g)| v * g).collect() };
    let plain = |dy: &[f32], x: &[f32]| -> Result<Vec<f32>> {
        let mut dx = vec![0f32; ROWS * N];
        NormBackward::rms(EPS)
            .x(Tensor::new(x, &[ROWS, N])?)
            .dy(Tensor::new(dy, &[ROWS, N])?)
            .group_size(32)
            .dx(TensorMut::new(&mut dx, &[ROWS, N])?)
            .run(&context)?;
        Ok(dx)
    };
    let gated = |position, act| -> Result<[Vec<f32>; 2]> {
        let (mut dx, mut dgate) = (vec![0f32; ROWS * N], gate.clone());
        NormBackward::rms(EPS)
            .x(Tensor::new(&inputs.x, &[ROWS, N])?)
            .dy(Tensor::new(&inputs.dy, &[ROWS, N])?)
            .gate_in_place(TensorMut::new(&mut dgate, &[ROWS, N])?)
            .gate_position(position)
            .gate_act(act)
            .group_size(32)
            .dx(TensorMut::new(&mut dx, &[ROWS, N])?)
            .run(&context)?;
        Ok([dx, dgate])
    };
    let [dx, _] = gated(GatePosition::AfterNorm, Activation::Identity)?;
    assert_eq!(dx, plain(&product(&inputs.dy), &inputs.x)?);
    let [dx, dgate] = gated(GatePosition::BeforeNorm, Activation::Identity)?;
    let dh = plain(&inputs.dy, &product(&inputs.x))?;
    assert_eq!(dx, product(&dh));
    let of_gate: Vec<f32> = dh.iter().zip(&inputs.x).map(|(d, x)| d * x).collect();
    assert_eq!(dgate, of_gate);
    assert_ne!(dx, gated(GatePosition::BeforeNorm, Activation::Silu)?[0]);
    Ok(())
}

#[test]
fn in_place() -> Result<()> {
    let context = Context::cpu()?;
    let inputs = inputs();
    let (mut apart, mut both) = (vec![0f32; ROWS * N], inputs.dy.clone());
    NormBackward::rms(EPS)
        .x(Tensor::new(&inputs.x, &[ROWS, N])?)
        .dy(Tensor::new(&inputs.dy, &[ROWS, N])?)
        .dx(TensorMut::new(&mut apart, &[ROWS, N])?)
        .run(&context)?;
    NormBackward::rms(EPS)
        .x(Tensor::new(&inputs.x, &[ROWS, N])?)
        .dy_in_place(TensorMut::new(&mut both, &[ROWS, N])?)
        .run(&context)?;
    assert_eq!(apart, both);
    assert_ne!(apart, inputs.dy);
    Ok(())
}

#[test]
fn many() -> Result<()> {
    let context = Context::cpu()?;
    let inputs = inputs();
    let mut found = vec![vec![0f32; ROWS * N]; 4];
    let mut parts = Vec::new();
    for (i, dx) in found.iter_mut().enumerate() {
        let part = if i % 2 == 0 {
            NormBackward::rms(EPS)
        } else {
            NormBackward::layer(EPS)
        };
        parts.push(
            part.x(Tensor::new(&inputs.x, &[ROWS, N])?)
                .dy(Tensor::new(&inputs.dy, &[ROWS, N])?)
                .dx(TensorMut::new(dx, &[ROWS, N])?),
        );
    }
    let (alone, together) = parts.split_at_mut(2);
    for part in alone {
        part.run(&context)?;
    }
    norm_backward_many_prepare(&context, together)?;
    assert_eq!(
        norm_backward_many_query(&context, together)?.workspace_bytes,
        0
    );
    norm_backward_many(&context, together)?;
    drop(parts);
    assert_eq!(found[0], found[2]);
    assert_eq!(found[1], found[3]);
    assert_ne!(found[0], found[1]);
    Ok(())
}

#[test]
fn refused() -> Result<()> {
    let context = Context::cpu()?;
    let inputs = inputs();
    let mut dx = vec![0f32; ROWS * N];
    let error = NormBackward::rms(EPS)
        .x(Tensor::new(&inputs.x, &[ROWS, N])?)
        .dx(TensorMut::new(&mut dx, &[ROWS, N])?)
        .run(&context)
        .unwrap_err();
    assert_eq!(error.status(), Status::ARGUMENT);
    assert!(error.to_string().contains("dy"), "{error}");
    Ok(())
}

/// The norm of a branch has the bits of a call of its own, whose dy is dx times alpha.
#[test]
fn branch() -> Result<()> {
    let context = Context::cpu()?;
    let inputs = inputs();
    let branch = numbers(ROWS * N, 5);
    let rows = |values: &'static [f32]| Tensor::new(values, &[ROWS, N]);
    let leak = |values: Vec<f32>| -> &'static [f32] { Vec::leak(values) };
    let (x, dy, branch) = (leak(inputs.x), leak(inputs.dy), leak(branch));
    let weight = leak(inputs.weight);
    let (mut dx, mut dbranch) = (vec![0f32; ROWS * N], vec![0f32; ROWS * N]);
    let mut dweight = vec![0f32; N];
    NormBackward::rms(EPS)
        .x(rows(x)?)
        .dy(rows(dy)?)
        .dx(TensorMut::new(&mut dx, &[ROWS, N])?)
        .branch(rows(branch)?)
        .branch_layer(EPS)
        .branch_weight(Tensor::new(weight, &[N])?)
        .alpha(0.5)
        .dbranch(TensorMut::new(&mut dbranch, &[ROWS, N])?)
        .dbranch_weight(TensorMut::new(&mut dweight, &[N])?)
        .run(&context)?;
    let halves: Vec<f32> = dx.iter().map(|r| r * 0.5).collect();
    let (mut alone, mut weight_alone) = (vec![0f32; ROWS * N], vec![0f32; N]);
    NormBackward::layer(EPS)
        .x(rows(branch)?)
        .dy(Tensor::new(&halves, &[ROWS, N])?)
        .weight(Tensor::new(weight, &[N])?)
        .dx(TensorMut::new(&mut alone, &[ROWS, N])?)
        .dweight(TensorMut::new(&mut weight_alone, &[N])?)
        .run(&context)?;
    assert_eq!(dbranch, alone);
    assert_eq!(dweight, weight_alone);
    let error = NormBackward::rms(EPS)
        .x(rows(x)?)
        .dy(rows(dy)?)
        .dx(TensorMut::new(&mut dx, &[ROWS, N])?)
        .branch_rms(EPS)
        .run(&context)
        .unwrap_err();
    assert!(error.to_string().contains("branch is NULL"), "{error}");
    Ok(())
}
