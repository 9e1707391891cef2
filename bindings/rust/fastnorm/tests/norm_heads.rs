//! Heads: what a call would do, and what is refused. Values by hand are in the documentation of
//! `NormHeads`.

use fastnorm::{
    Context, Error, NormHeads, NormHeadsPart, Quant, QuantDivision, Result, Status, Tensor,
    TensorMut, F8E4M3,
};

const TOKENS: usize = 5;
const HEADS: usize = 7;
const D: usize = 80;
const ROPE: usize = 32;
const ROWS: usize = 11; // of the tables

/// Rope, a cache of codes and one of T; the positions of the last call are out of range.
#[test]
fn tables_and_caches() -> Result<()> {
    let context = Context::cpu()?;
    let (x, table) = (vec![1f32; TOKENS * HEADS * D], [1f32; ROWS * ROPE / 2]);
    let (shape, pages) = ([TOKENS, HEADS, D], [2, 3, HEADS, D]);
    let table = || Tensor::new(&table, &[ROWS, ROPE / 2]);
    let (mut cache, mut codes) = (vec![0f32; 6 * HEADS * D], vec![0i8; 6 * HEADS * D]);
    let (slots, scale) = ([5i32, -1, 0, 1], [0.25f32]);
    let mut call = NormHeads::new()
        .rope(ROPE, table()?, table()?)
        .slots(Tensor::new(&slots, &[4])?)
        .part(
            NormHeadsPart::new(Tensor::new(&x, &shape)?)
                .rope(-1)
                .cache(TensorMut::new(&mut cache, &pages)?),
        )
        .part(
            NormHeadsPart::new(Tensor::new(&x, &shape)?).cache_per_tensor(
                TensorMut::new(&mut codes, &pages)?,
                Tensor::new(&scale, &[1])?,
            ),
        );
    call.prepare(&context)?;
    assert_eq!(call.query(&context)?.launches, 1);
    call.run(&context)?;
    let far = [0i64, 1, 2, 3, ROWS as i64];
    let far = Tensor::new(&far, &[TOKENS])?;
    let mut y = vec![0f32; x.len()];
    let mut turned = NormHeads::new()
        .rope(ROPE, table()?, table()?)
        .positions(far)
        .part(
            NormHeadsPart::new(Tensor::new(&x, &shape)?)
                .rope(0)
                .y(TensorMut::new(&mut y, &shape)?),
        );
    refused(
        turned.run(&context),
        Status::ARGUMENT,
        "the position of token 4, axis 0, is 11; required: 0 to 10",
    );
    drop((call, turned));
    // 1 * cos - 1 * sin is 0, 1 * cos + 1 * sin is 2. Tokens 0, 2 and 3 go to slots 5, 0 and 1.
    let row = |slot: usize| slot * HEADS * D..(slot + 1) * HEADS * D;
    for (slot, is_written) in [true, true, false, false, false, true]
        .into_iter()
        .enumerate()
    {
        let (values, codes) = (&cache[row(slot)], &codes[row(slot)]);
        let (plain, turned) = (D - ROPE, D - ROPE / 2);
        let wanted = if is_written { [1., 0., 2.] } else { [0.; 3] };
        assert_eq!([values[0], values[plain], values[turned]], wanted);
        assert_eq!(codes[0], if is_written { 4 } else { 0 });
    }
    assert_eq!(y, vec![0f32; x.len()], "nothing is written");
    Ok(())
}

/// The scales of two query heads are 1 and 2. Their weights are multiplied by these and the factor.
#[test]
fn head_weights() -> Result<()> {
    let context = Context::cpu()?;
    let (x, weights) = ([127f32, -64., 0., 1., 0., 0., -254., 2.], [3f32, -5.]);
    let (mut codes, mut scales, mut scaled) = ([0i8; 8], [0f32; 2], [0f32; 2]);
    let (shape, heads) = ([1, 2, 4], [1, 2]);
    NormHeads::new()
        .part(
            NormHeadsPart::new(Tensor::new(&x, &shape)?)
                .quant(Quant::per_row(
                    TensorMut::new(&mut codes, &shape)?,
                    TensorMut::new(&mut scales, &heads)?,
                ))
                .head_weights(Tensor::new(&weights, &heads)?)
                .head_weights_out(TensorMut::new(&mut scaled, &heads)?)
                .head_weights_factor(0.5),
        )
        .run(&context)?;
    assert_eq!(codes, [127, -64, 0, 1, 0, 0, -127, 1]);
    assert_eq!((scales, scaled), ([1., 2.], [1.5, -5.]));
    Ok(())
}

/// Codes of three columns, and the fourth as it is. The first token goes to the second slot.
#[test]
fn cache_tail() -> Result<()> {
    let context = Context::cpu()?;
    let x = [1f32, -2., 0.5, 7.125, 3., 0., 0., -9.];
    let (mut codes, mut tail, scale, slots) = ([0i8; 6], [0f32; 2], [0.5f32], [1i32, 0]);
    NormHeads::new()
        .slots(Tensor::new(&slots, &[2])?)
        .part(
            NormHeadsPart::new(Tensor::new(&x, &[2, 1, 4])?)
                .cache_per_tensor(
                    TensorMut::new(&mut codes, &[1, 2, 1, 3])?,
                    Tensor::new(&scale, &[1])?,
                )
                .cache_tail(TensorMut::new(&mut tail, &[1, 2, 1, 1])?),
        )
        .run(&context)?;
    assert_eq!(codes, [6, 0, 0, 2, -4, 1]);
    assert_eq!(tail, [-9., 7.125]);
    Ok(())
}

fn refused(result: Result<()>, status: Status, text: &str) {
    let error: Error = result.expect_err(text);
    assert_eq!(error.status(), status, "{error}");
    assert!(error.message().contains(text), "{error}; required: {text}");
}

#[test]
fn what_is_refused() -> Result<()> {
    let context = Context::cpu()?;
    let x = vec![1f32; TOKENS * HEADS * D];
    let x = || Tensor::new(&x, &[TOKENS, HEADS, D]);
    let mut y = vec![0f32; TOKENS * HEADS * D];
    let shape = [TOKENS, HEADS, D];
    refused(
        NormHeads::new()
            .part(NormHeadsPart::new(x()?))
            .run(&context),
        Status::ARGUMENT,
        "parts[0].y, quant.quantized, cache, sumsq, mean and rstd are NULL; required: an output",
    );
    refused(
        NormHeads::new()
            .part(
                NormHeadsPart::new(x()?)
                    .rms(-1.0)
                    .y(TensorMut::new(&mut y, &shape)?),
            )
            .run(&context),
        Status::ARGUMENT,
        "parts[0].eps is -1",
    );
    refused(
        NormHeads::new()
            .part(
                NormHeadsPart::new(x()?)
                    .rope(0)
                    .y(TensorMut::new(&mut y, &shape)?),
            )
            .run(&context),
        Status::ARGUMENT,
        "cos is NULL and a part has ROPE",
    );
    let mut codes = vec![F8E4M3::default(); y.len()];
    let mut scales = vec![0f32; TOKENS * HEADS];
    let quant = Quant::per_row(
        TensorMut::new(&mut codes, &shape)?,
        TensorMut::new(&mut scales, &shape[..2])?,
    );
    let limit = [2f32];
    let quant = quant.clamp(1.0).clamp_scale(Tensor::new(&limit, &[1])?);
    let call = NormHeads::new()
        .part(NormHeadsPart::new(x()?).quant(quant.division(QuantDivision::Divide)));
    refused(
        call.prepare(&context),
        Status::ARGUMENT,
        "parts[0].quant.clamp_scale is given and quant.clamp is 1",
    );
    let mut call = NormHeads::new();
    for _ in 0..9 {
        call = call.part(NormHeadsPart::new(x()?));
    }
    refused(
        call.run(&context),
        Status::ARGUMENT,
        "count is 9; required: 0 to 8",
    );
    NormHeads::new().run(&context)?;
    Ok(())
}
