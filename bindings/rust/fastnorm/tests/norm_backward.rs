//! Gradients: in place, several at once, workspaces and what is refused. Values by hand are in the
//! documentation of `NormBackward`.

use fastnorm::{
    norm_backward_many, norm_backward_many_prepare, norm_backward_many_query, Context,
    NormBackward, Result, Status, Tensor, TensorMut,
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
}

fn inputs() -> Inputs {
    Inputs {
        x: numbers(ROWS * N, 1),
        dy: numbers(ROWS * N, 2),
    }
}

/// A sum over rows takes a workspace, which a call on the CPU makes for itself; the old sum stays.
#[test]
fn sums_over_rows() -> Result<()> {
    let context = Context::cpu()?;
    let inputs = inputs();
    let mut dbias = vec![0.5f32; N];
    let mut call = NormBackward::layer(EPS)
        .x(Tensor::new(&inputs.x, &[ROWS, N])?)
        .dy(Tensor::new(&inputs.dy, &[ROWS, N])?)
        .accumulate_dbias(TensorMut::new(&mut dbias, &[N])?);
    call.prepare(&context)?;
    assert!(call.query(&context)?.workspace_bytes > 0);
    call.run(&context)?;
    for (i, found) in dbias.iter().enumerate() {
        let sum: f32 = inputs.dy.chunks(N).map(|row| row[i]).sum();
        assert!((found - sum - 0.5).abs() < 1e-4, "column {i}");
    }
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
