//! Quantised outputs: every field reaches the library, and the numbers are right.

mod common;

use common::whole_numbers;
use fastnorm::{
    Context, Element, F4x2E2M1, Norm, Quant, QuantSource, Result, ScaleLayout, Status, Tensor,
    TensorMut, F8E4M3, F8E5M2, F8E8M0,
};

const ROWS: usize = 4;
const N: usize = 128;

/// The result that is quantised, in full.
fn unquantised(context: &Context, x: &[f32]) -> Result<Vec<f32>> {
    let mut y = vec![0f32; x.len()];
    Norm::rms(1e-6)
        .x(Tensor::new(x, &[ROWS, N])?)
        .y(TensorMut::new(&mut y, &[ROWS, N])?)
        .run(context)?;
    Ok(y)
}

/// Runs the norm of x with `quant`, beside y.
fn run(context: &Context, x: &[f32], quant: Quant<'_>) -> Result<()> {
    let mut y = vec![0f32; x.len()];
    let mut norm = Norm::rms(1e-6)
        .x(Tensor::new(x, &[ROWS, N])?)
        .y(TensorMut::new(&mut y, &[ROWS, N])?)
        .quant(quant);
    assert_eq!(norm.query(context)?.launches, 1);
    norm.run(context)?;
    drop(norm);
    assert_eq!(y, unquantised(context, x)?, "y beside it is as without it");
    Ok(())
}

/// `number(i) * scale(i)` is y, as near as a number with that many bits after the first can be.
#[track_caller]
fn check_near(
    y: &[f32],
    number: impl Fn(usize) -> f32,
    scale: impl Fn(usize) -> f32,
    bits: i32,
    least: f32,
) {
    for (i, &wanted) in y.iter().enumerate() {
        let (found, step) = (number(i) * scale(i), least * scale(i));
        let bound = (wanted.abs() * f32::exp2((-bits - 1) as f32)).max(step) * 1.01;
        assert!(
            (found - wanted).abs() <= bound,
            "element {i}: {found}, required {wanted}"
        );
    }
}

/// One of the f8 formats, with one scale for all and with one for a row.
fn fp8<T: Element + Default>(to_f32: fn(T) -> f32, bits: i32, least: f32) -> Result<()> {
    let context = Context::cpu()?;
    let x: Vec<f32> = whole_numbers(ROWS * N, 21);
    let y = unquantised(&context, &x)?;
    let mut quantized = vec![T::default(); ROWS * N];

    let one = [0.01f32];
    let quant = Quant::per_tensor(
        TensorMut::new(&mut quantized, &[ROWS, N])?,
        Tensor::new(&one, &[1])?,
    );
    run(&context, &x, quant)?;
    check_near(&y, |i| to_f32(quantized[i]), |_| one[0], bits, least);

    let mut scale = [0f32; ROWS];
    let quant = Quant::per_row(
        TensorMut::new(&mut quantized, &[ROWS, N])?,
        TensorMut::new(&mut scale, &[ROWS])?,
    );
    run(&context, &x, quant)?;
    check_near(&y, |i| to_f32(quantized[i]), |i| scale[i / N], bits, least);

    let mut scale = [0f32; ROWS * 2];
    let quant = Quant::per_block(
        64,
        TensorMut::new(&mut quantized, &[ROWS, N])?,
        TensorMut::new(&mut scale, &[ROWS, 2])?,
    );
    run(&context, &x, quant.pow2(true))?;
    check_near(&y, |i| to_f32(quantized[i]), |i| scale[i / 64], bits, least);
    assert!(
        scale.iter().all(|s| s.log2().fract() == 0.0),
        "powers of two: {scale:?}"
    );
    Ok(())
}

#[test]
fn e4m3() -> Result<()> {
    fp8(F8E4M3::to_f32, 3, 0.001)
}

#[test]
fn e5m2() -> Result<()> {
    fp8(F8E5M2::to_f32, 2, 0.000_01)
}

#[test]
fn mxfp8() -> Result<()> {
    let context = Context::cpu()?;
    let x: Vec<f32> = whole_numbers(ROWS * N, 22);
    let (mut quantized, mut scale) = (
        [F8E4M3::default(); ROWS * N],
        [F8E8M0::default(); ROWS * N / 32],
    );
    let quant = Quant::mxfp8(
        TensorMut::new(&mut quantized, &[ROWS, N])?,
        TensorMut::new(&mut scale, &[ROWS, N / 32])?,
    );
    run(&context, &x, quant)?;
    let y = unquantised(&context, &x)?;
    check_near(
        &y,
        |i| quantized[i].to_f32(),
        |i| scale[i / 32].to_f32(),
        3,
        0.001,
    );
    Ok(())
}

#[test]
fn nvfp4() -> Result<()> {
    let context = Context::cpu()?;
    let x: Vec<f32> = whole_numbers(ROWS * N, 23);
    let mut quantized = [F4x2E2M1::default(); ROWS * N / 2];
    let (mut scale, one) = ([F8E4M3::default(); ROWS * N / 16], [1f32]);
    let quant = Quant::nvfp4(
        TensorMut::new(&mut quantized, &[ROWS, N / 2])?,
        TensorMut::new(&mut scale, &[ROWS, N / 16])?,
    );
    run(&context, &x, quant.global_scale(Tensor::new(&one, &[1])?))?;
    let y = unquantised(&context, &x)?;
    // The scale is rounded to 3 bits itself, so results may be clipped a little.
    check_near(
        &y,
        |i| quantized[i / 2].to_f32()[i % 2],
        |i| scale[i / 16].to_f32(),
        1,
        0.6,
    );
    Ok(())
}

/// Fields beside the scheme: the library names the one that is wrong.
#[test]
fn every_field_is_passed_on() -> Result<()> {
    let context = Context::cpu()?;
    let x: Vec<f32> = whole_numbers(ROWS * N, 24);
    let x = Tensor::new(&x, &[ROWS, N])?;
    type Spoil = fn(Quant<'_>) -> Quant<'_>;
    let wrong: [(&str, Spoil); 4] = [
        ("amax_floor", |q| q.amax_floor(-1.0)),
        ("clamp", |q| q.clamp(f32::NAN)),
        ("scale_layout", |q| q.layout(ScaleLayout::Swizzled128x4)),
        ("source", |q| q.source(QuantSource::Rounded)),
    ];
    for (field, spoil) in wrong {
        let mut quantized = [F8E4M3::default(); ROWS * N];
        let (mut scale, mut amax) = ([0f32; ROWS], [0f32; 1]);
        let quant = Quant::per_row(
            TensorMut::new(&mut quantized, &[ROWS, N])?,
            TensorMut::new(&mut scale, &[ROWS])?,
        );
        let quant = spoil(quant).amax(TensorMut::new(&mut amax, &[1])?);
        let mut norm = Norm::rms(1e-6).x(x).quant(quant);
        let shown = format!("{norm:?}");
        assert!(
            shown.contains("amax: f32 [1]") && shown.contains("quantized: f8_e4m3fn [4, 128]"),
            "{shown}"
        );
        if field == "source" {
            norm.run(&context)?; // it is wrong only with other fields
            continue;
        }
        let error = norm.run(&context).expect_err(field);
        assert_eq!(error.status(), Status::ARGUMENT, "{error}");
        assert!(
            error.message().starts_with(&format!("quant.{field} is ")),
            "{error}"
        );
    }
    Ok(())
}

/// Codes of blocks of columns that a Hadamard matrix multiplied.
#[test]
fn rotation() -> Result<()> {
    let context = Context::cpu()?;
    let x: Vec<f32> = whole_numbers(ROWS * N, 23);
    let y = unquantised(&context, &x)?;
    for block in [16, 32, 64, 128] {
        let mut rotated = y.clone();
        for column in rotated.chunks_exact_mut(block) {
            let before = column.to_vec();
            for (i, sum) in column.iter_mut().enumerate() {
                let sign = |j: usize| {
                    if (i & j).count_ones() % 2 == 0 {
                        1.0
                    } else {
                        -1.0
                    }
                };
                let terms = before.iter().enumerate().map(|(j, v)| sign(j) * v);
                *sum = terms.sum::<f32>() / (block as f32).sqrt();
            }
        }
        let mut quantized = vec![F8E4M3::default(); ROWS * N];
        let mut scale = [0f32; ROWS];
        let quant = Quant::per_row(
            TensorMut::new(&mut quantized, &[ROWS, N])?,
            TensorMut::new(&mut scale, &[ROWS])?,
        );
        run(&context, &x, quant.rotation(block as i32))?;
        check_near(
            &rotated,
            |i| quantized[i].to_f32(),
            |i| scale[i / N],
            3,
            0.002,
        );
    }
    Ok(())
}
