//! Gradients of heads: what a call would do, and what is refused. Values by hand are in the
//! documentation of `NormHeadsBackward`.

use fastnorm::{
    Context, Error, NormHeadsBackward, NormHeadsBackwardPart, Result, Status, Tensor, TensorMut,
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

    fn part(&self) -> Result<NormHeadsBackwardPart<'_>> {
        Ok(NormHeadsBackwardPart::new(Tensor::new(&self.dy, &SHAPE)?)
            .layer(EPS, Tensor::new(&self.x, &SHAPE)?)
            .rope(3)
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
fn queries_and_refusals() -> Result<()> {
    let context = Context::cpu()?;
    let case = Case::new();
    let mut dweight = vec![0f32; D];
    let call = case
        .call()?
        .part(case.part()?.dweight(TensorMut::new(&mut dweight, &[D])?));
    let info = call.query(&context)?;
    assert!(info.workspace_bytes > 0);
    call.prepare(&context)?;
    let refused = |result: Result<()>, status: Status, text: &str| {
        let error: Error = result.unwrap_err();
        assert_eq!(error.status(), status);
        assert!(error.to_string().contains(text), "{error}");
    };
    refused(
        case.call()?.part(case.part()?).run(&context),
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
