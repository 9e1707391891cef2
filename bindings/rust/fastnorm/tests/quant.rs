//! Quantised outputs: every scheme and every field reaches the library.

mod common;

use common::whole_numbers;
use fastnorm::{
    Context, Element, F4x2E2M1, Norm, Quant, QuantSource, Result, ScaleLayout, Status, Tensor,
    TensorMut, F8E4M3, F8E5M2, F8E8M0,
};

const ROWS: usize = 4;
const N: usize = 128;

/// Runs the norm of rows of ones, which are their own norm, with `quant` beside y.
fn run(context: &Context, quant: Quant<'_>) -> Result<()> {
    let x = [1f32; ROWS * N];
    let mut y = [0f32; ROWS * N];
    let mut norm = Norm::rms(0.0)
        .x(Tensor::new(&x, &[ROWS, N])?)
        .y(TensorMut::new(&mut y, &[ROWS, N])?)
        .quant(quant);
    assert_eq!(norm.query(context)?.launches, 1);
    norm.run(context)?;
    drop(norm);
    assert_eq!(y, x);
    Ok(())
}

/// One of the f8 formats, whose largest value is `most`, with one scale for all, with one for a
/// row, and with powers of two.
fn fp8<T: Element + Default>(to_f32: fn(T) -> f32, most: f32) -> Result<()> {
    let context = Context::cpu()?;
    let mut codes = vec![T::default(); ROWS * N];
    let half = [0.5f32];
    run(
        &context,
        Quant::per_tensor(
            TensorMut::new(&mut codes, &[ROWS, N])?,
            Tensor::new(&half, &[1])?,
        ),
    )?;
    assert!(codes.iter().all(|c| to_f32(*c) == 2.0));

    let mut scale = [0f32; ROWS];
    run(
        &context,
        Quant::per_row(
            TensorMut::new(&mut codes, &[ROWS, N])?,
            TensorMut::new(&mut scale, &[ROWS])?,
        ),
    )?;
    assert!(codes.iter().all(|c| to_f32(*c) == most));
    assert_eq!(scale, [1.0 / most; ROWS]);

    let mut scale = [0f32; ROWS * 2];
    let quant = Quant::per_block(
        64,
        TensorMut::new(&mut codes, &[ROWS, N])?,
        TensorMut::new(&mut scale, &[ROWS, 2])?,
    );
    run(&context, quant.pow2(true))?;
    assert!(scale
        .iter()
        .all(|s| *s == scale[0] && s.log2().fract() == 0.0));
    assert!(codes.iter().all(|c| to_f32(*c) * scale[0] == 1.0));
    Ok(())
}

#[test]
fn f8() -> Result<()> {
    fp8(F8E4M3::to_f32, 448.0)?;
    fp8(F8E5M2::to_f32, 57344.0)
}

#[test]
fn scales_of_one_byte() -> Result<()> {
    let context = Context::cpu()?;
    let (mut codes, mut scale) = (
        [F8E4M3::default(); ROWS * N],
        [F8E8M0::default(); ROWS * N / 32],
    );
    run(
        &context,
        Quant::mxfp8(
            TensorMut::new(&mut codes, &[ROWS, N])?,
            TensorMut::new(&mut scale, &[ROWS, N / 32])?,
        ),
    )?;
    assert!(codes.iter().all(|c| c.to_f32() == 256.0));
    assert!(scale.iter().all(|s| s.to_f32() == 1.0 / 256.0));

    let mut codes = [F4x2E2M1::default(); ROWS * N / 2];
    run(
        &context,
        Quant::mxfp4(
            TensorMut::new(&mut codes, &[ROWS, N / 2])?,
            TensorMut::new(&mut scale, &[ROWS, N / 32])?,
        ),
    )?;
    assert!(codes.iter().all(|c| c.to_f32() == [4.0; 2]));
    assert!(scale.iter().all(|s| s.to_f32() == 0.25));

    let (mut scale, global) = ([F8E4M3::default(); ROWS * N / 16], [2f32]);
    let quant = Quant::nvfp4(
        TensorMut::new(&mut codes, &[ROWS, N / 2])?,
        TensorMut::new(&mut scale, &[ROWS, N / 16])?,
    );
    run(&context, quant.global_scale(Tensor::new(&global, &[1])?))?;
    assert!(codes.iter().all(|c| c.to_f32() == [6.0; 2]));
    // 1 / 6 / 2 in three bits.
    assert!(scale.iter().all(|s| s.to_f32() == 0.0859375));
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

/// A column of 4 is 1 in each of its block's 16 columns.
#[test]
fn rotation() -> Result<()> {
    let context = Context::cpu()?;
    let (x, mut weight) = ([1f32; N], [0f32; N]);
    weight[0] = 4.0;
    let (mut codes, mut scale) = ([F8E4M3::default(); N], [0f32]);
    let quant = Quant::per_row(
        TensorMut::new(&mut codes, &[1, N])?,
        TensorMut::new(&mut scale, &[1])?,
    );
    Norm::rms(0.0)
        .x(Tensor::new(&x, &[1, N])?)
        .weight(Tensor::new(&weight, &[N])?)
        .quant(quant.rotation(16))
        .run(&context)?;
    assert_eq!(scale, [1.0 / 448.0]);
    for (i, code) in codes.iter().enumerate() {
        assert_eq!(code.to_f32(), if i < 16 { 448.0 } else { 0.0 });
    }
    Ok(())
}
