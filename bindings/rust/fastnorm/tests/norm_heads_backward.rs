//! Gradients of heads against differences of the forward, and what is refused.

use fastnorm::{
    Context, Error, NormHeads, NormHeadsBackward, NormHeadsBackwardPart, NormHeadsPart, Result,
    Status, Tensor, TensorMut,
};

const TOKENS: usize = 3;
const HEADS: usize = 2;
const D: usize = 16;
const SHAPE: [usize; 3] = [TOKENS, HEADS, D];
const TABLE: [usize; 2] = [TOKENS, 4];
const EPS: f32 = 1e-3;

fn numbers(count: usize, seed: f32) -> Vec<f32> {
    (0..count)
        .map(|i| (i as f32 * 1.7 + seed).sin() * 1.5)
        .collect()
}

struct Case {
    x: Vec<f32>,
    dy: Vec<f32>,
    weight: Vec<f32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Case {
    fn new() -> Self {
        let angle = |i: usize| (i / 4) as f32 * (0.5 + (i % 4) as f32);
        Self {
            x: numbers(TOKENS * HEADS * D, 1.0),
            dy: numbers(TOKENS * HEADS * D, 2.0),
            weight: numbers(D, 3.0),
            cos: (0..TOKENS * 4).map(|i| angle(i).cos()).collect(),
            sin: (0..TOKENS * 4).map(|i| angle(i).sin()).collect(),
        }
    }

    /// The sum of dy times what the forward makes.
    fn loss(&self, context: &Context, across: bool) -> Result<f64> {
        let mut y = vec![0f32; self.x.len()];
        NormHeads::new()
            .rope(
                8,
                Tensor::new(&self.cos, &TABLE)?,
                Tensor::new(&self.sin, &TABLE)?,
            )
            .part(
                NormHeadsPart::new(Tensor::new(&self.x, &SHAPE)?)
                    .layer(EPS)
                    .rope(3)
                    .across_heads(across)
                    .weight(Tensor::new(&self.weight, &[D])?)
                    .y(TensorMut::new(&mut y, &SHAPE)?),
            )
            .run(context)?;
        Ok(y.iter()
            .zip(&self.dy)
            .map(|(y, dy)| f64::from(*y) * f64::from(*dy))
            .sum())
    }

    fn part<'a>(&'a self, across: bool) -> Result<NormHeadsBackwardPart<'a>> {
        Ok(NormHeadsBackwardPart::new(Tensor::new(&self.dy, &SHAPE)?)
            .layer(EPS, Tensor::new(&self.x, &SHAPE)?)
            .rope(3)
            .across_heads(across)
            .weight(Tensor::new(&self.weight, &[D])?))
    }

    fn call(&self) -> Result<NormHeadsBackward<'_>> {
        Ok(NormHeadsBackward::new().rope(
            8,
            Tensor::new(&self.cos, &TABLE)?,
            Tensor::new(&self.sin, &TABLE)?,
        ))
    }
}

#[test]
fn gradients_are_slopes() -> Result<()> {
    const STEP: f32 = 1.0 / 64.0;
    let context = Context::cpu()?;
    for across in [false, true] {
        let mut case = Case::new();
        let (mut dx, mut dweight) = (vec![0f32; case.x.len()], vec![0f32; D]);
        case.call()?
            .part(
                case.part(across)?
                    .dx(TensorMut::new(&mut dx, &SHAPE)?)
                    .dweight(TensorMut::new(&mut dweight, &[D])?),
            )
            .run(&context)?;
        let mut near =
            |found: f32, pick: fn(&mut Case, usize) -> &mut f32, i: usize| -> Result<()> {
                let before = *pick(&mut case, i);
                *pick(&mut case, i) = before + STEP;
                let above = case.loss(&context, across)?;
                *pick(&mut case, i) = before - STEP;
                let below = case.loss(&context, across)?;
                *pick(&mut case, i) = before;
                let slope = (above - below) / f64::from(2.0 * STEP);
                let off = (f64::from(found) - slope).abs();
                assert!(off < 0.01 * (1.0 + slope.abs()), "{i}: {found}, {slope}");
                Ok(())
            };
        for i in (0..dx.len()).step_by(5) {
            near(dx[i], |c, i| &mut c.x[i], i)?;
        }
        for (i, &found) in dweight.iter().enumerate() {
            near(found, |c, i| &mut c.weight[i], i)?;
        }
    }
    Ok(())
}

#[test]
fn queries_and_refusals() -> Result<()> {
    let context = Context::cpu()?;
    let case = Case::new();
    let mut dweight = vec![0f32; D];
    let call = case.call()?.part(
        case.part(false)?
            .dweight(TensorMut::new(&mut dweight, &[D])?),
    );
    let info = call.query(&context)?;
    assert!(info.workspace_bytes > 0);
    call.prepare(&context)?;
    let refused = |result: Result<()>, status: Status, text: &str| {
        let error: Error = result.unwrap_err();
        assert_eq!(error.status(), status);
        assert!(error.to_string().contains(text), "{error}");
    };
    refused(
        case.call()?.part(case.part(false)?).run(&context),
        Status::ARGUMENT,
        "parts[0].dx is NULL, dweight is NULL and dbias is NULL",
    );
    refused(
        case.call()?.run(&context),
        Status::ARGUMENT,
        "rope_dim is 8 and no part has ROPE",
    );
    Ok(())
}
