//! Ranks as threads: sums, roundings and statistics that all ranks have alike, and ranks that are
//! missing or of another mind.

use std::thread;
use std::time::Duration;

use fastnorm::{
    bf16, Activation, Context, DType, Norm, Peer, PeerAlgorithm, PeerAllreduceNorm, PeerBlob,
    PeerError, PeerOptions, PeerShardedNorm, PeerSumRounding, ResidualRounding, Result, Status,
    Tensor, TensorMut,
};

mod common;
use common::whole_numbers;

const ROWS: usize = 5;
const COLUMNS: usize = 48;
const SHAPE: [usize; 2] = [ROWS, COLUMNS];

fn peers<'c>(
    context: &'c Context,
    ranks: usize,
    change: impl Fn(PeerOptions) -> PeerOptions,
) -> Vec<Peer<'c>> {
    let peers: Vec<_> = (0..ranks)
        .map(|rank| change(PeerOptions::new(rank, ranks, DType::F32, COLUMNS)).create(context))
        .collect::<Result<_>>()
        .unwrap();
    let blobs: Vec<PeerBlob> = peers.iter().map(|peer| peer.export().unwrap()).collect();
    for peer in &peers {
        assert!(!peer.state().unwrap().connected);
        peer.import(&blobs).unwrap();
    }
    peers
}

/// The results of a function on all ranks, each on a thread.
fn on_all<R: Send>(peers: &[Peer<'_>], run: impl Fn(usize, &Peer<'_>) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let run = &run;
        let handles: Vec<_> = peers
            .iter()
            .enumerate()
            .map(|(rank, peer)| scope.spawn(move || run(rank, peer)))
            .collect();
        handles.into_iter().map(|h| h.join().unwrap()).collect()
    })
}

/// Whole numbers: sums are exact in any order.
fn part(rank: usize) -> Vec<f32> {
    whole_numbers(ROWS * COLUMNS, rank as u64 + 1)
}

fn sum(ranks: usize) -> Vec<f32> {
    let mut total = vec![0f32; ROWS * COLUMNS];
    for rank in 0..ranks {
        for (t, v) in total.iter_mut().zip(part(rank)) {
            *t += v;
        }
    }
    total
}

#[test]
fn allreduce_is_a_sum_and_one_norm() -> Result<()> {
    let context = Context::cpu()?;
    let weight: Vec<f32> = whole_numbers(COLUMNS, 70);
    for (ranks, algorithm) in [
        (2, PeerAlgorithm::Auto),
        (3, PeerAlgorithm::OneShot),
        (5, PeerAlgorithm::TwoShot),
    ] {
        let peers = peers(&context, ranks, |o| {
            o.algorithm(algorithm)
                .rings(2)
                .wait(Duration::from_secs(20))
        });
        let total = sum(ranks);
        let residual = part(90);
        let (mut y, mut h, mut rstd) = (total.clone(), total.clone(), [0f32; ROWS]);
        Norm::rms(1e-3)
            .x(Tensor::new(&total, &SHAPE)?)
            .residual(Tensor::new(&residual, &SHAPE)?)
            .residual_out(TensorMut::new(&mut h, &SHAPE)?)
            .weight(Tensor::new(&weight, &[COLUMNS])?)
            .weight_offset(1.0)
            .rstd(TensorMut::new(&mut rstd, &[ROWS])?)
            .y(TensorMut::new(&mut y, &SHAPE)?)
            .run(&context)?;
        let found = on_all(&peers, |rank, peer| {
            let x = part(rank);
            let mut y = vec![0f32; x.len()];
            let (mut h, mut rstd) = (residual.clone(), [0f32; ROWS]);
            let norm = Norm::rms(1e-3)
                .x(Tensor::new(&x, &SHAPE).unwrap())
                .residual_in_place(TensorMut::new(&mut h, &SHAPE).unwrap())
                .weight(Tensor::new(&weight, &[COLUMNS]).unwrap())
                .weight_offset(1.0)
                .rstd(TensorMut::new(&mut rstd, &[ROWS]).unwrap())
                .residual_rounding(ResidualRounding::Exact)
                .pdl_wait(true)
                .pdl_trigger(true)
                .pdl_constant_weights(true)
                .y(TensorMut::new(&mut y, &SHAPE).unwrap());
            let mut call =
                PeerAllreduceNorm::new(peer, norm).sum_rounding(PeerSumRounding::Rounded);
            assert!(call.query().unwrap().workspace_bytes >= (ROWS * COLUMNS * 4) as u64);
            assert!(format!("{call:?}").contains("residual_out"));
            call.prepare().unwrap();
            call.run().unwrap();
            (y, h, rstd)
        });
        for of_rank in found {
            assert_eq!(of_rank, (y.clone(), h.clone(), rstd));
        }
        let state = peers[0].state()?;
        assert_eq!((state.calls, state.connected, state.error), (1, true, None));
        assert_eq!(peers[0].ranks(), ranks);
    }
    Ok(())
}

#[test]
fn sharded_rows() -> Result<()> {
    let context = Context::cpu()?;
    let ranks = 3;
    let peers = peers(&context, ranks, |o| o);
    let whole: Vec<f32> = (0..ranks).flat_map(part).collect();
    let found = on_all(&peers, |rank, peer| {
        let (x, keys) = (part(rank), part(rank + 20));
        let (mut y, mut z) = (x.clone(), x.clone());
        PeerShardedNorm::rms(peer, 0.5)
            .pdl_wait(true)
            .pdl_trigger(true)
            .pdl_constant_weights(true)
            .x(Tensor::new(&x, &SHAPE).unwrap())
            .y(TensorMut::new(&mut y, &SHAPE).unwrap())
            .second(
                Tensor::new(&keys, &SHAPE).unwrap(),
                TensorMut::new(&mut z, &SHAPE).unwrap(),
            )
            .run()
            .unwrap();
        (y, z)
    });
    let row_squares = |parts: &dyn Fn(usize) -> Vec<f32>, row: usize| -> f64 {
        (0..ranks)
            .flat_map(|r| parts(r)[row * COLUMNS..][..COLUMNS].to_vec())
            .map(|v| f64::from(v) * f64::from(v))
            .sum()
    };
    assert_eq!(whole.len(), ranks * ROWS * COLUMNS);
    for (rank, (y, z)) in found.iter().enumerate() {
        for row in 0..ROWS {
            for (results, parts) in [
                (y, &part as &dyn Fn(usize) -> Vec<f32>),
                (z, &|r| part(r + 20)),
            ] {
                let mean = row_squares(parts, row) / (ranks * COLUMNS) as f64;
                let rstd = 1.0 / (mean + 0.5).sqrt();
                let (values, columns) = (parts(rank), row * COLUMNS..(row + 1) * COLUMNS);
                for (found, value) in results[columns.clone()].iter().zip(&values[columns]) {
                    assert!((f64::from(*found) - f64::from(*value) * rstd).abs() < 1e-5);
                }
            }
        }
    }
    Ok(())
}

/// An all-reduce refuses the fields of a norm that it cannot do, by name.
#[test]
fn a_stage_is_refused() -> Result<()> {
    let context = Context::cpu()?;
    let peers = peers(&context, 2, |o| o);
    let x = part(0);
    let mut y = vec![0f32; x.len()];
    let norm = Norm::rms(0.0)
        .x(Tensor::new(&x, &SHAPE)?)
        .y(TensorMut::new(&mut y, &SHAPE)?)
        .activation(Activation::Silu);
    let error = PeerAllreduceNorm::new(&peers[0], norm).run().unwrap_err();
    assert_eq!(error.status(), Status::UNSUPPORTED, "{error}");
    let text = "norm.activation is given, which an all-reduce does not have";
    assert!(error.message().starts_with(text), "{error}");
    Ok(())
}

#[test]
fn missing_ranks_and_other_calls() {
    let context = Context::cpu().unwrap();
    let peers = peers(&context, 2, |o| o.wait(Duration::from_millis(20)));
    let x = part(0);
    let run = |peer: &Peer<'_>, rows: usize| {
        let mut y = vec![0f32; rows * COLUMNS];
        let norm = Norm::rms(0.0)
            .x(Tensor::new(&x[..rows * COLUMNS], &[rows, COLUMNS]).unwrap())
            .y(TensorMut::new(&mut y, &[rows, COLUMNS]).unwrap());
        PeerAllreduceNorm::new(peer, norm).run()
    };
    let error = run(&peers[0], 1).unwrap_err();
    assert_eq!(error.status(), Status::DEVICE, "{error}");
    assert_eq!(peers[0].state().unwrap().error, Some(PeerError::Missing(1)));
    assert_eq!(run(&peers[0], 1).unwrap_err().status(), Status::DEVICE);
    for peer in &peers {
        peer.reset().unwrap();
    }
    let results = on_all(&peers, |rank, peer| run(peer, rank + 1));
    assert!(results.iter().all(std::result::Result::is_err));
    assert!(matches!(
        peers[0].state().unwrap().error,
        Some(PeerError::Disagrees(1) | PeerError::Missing(1))
    ));
    for peer in &peers {
        peer.reset().unwrap();
    }
    for result in on_all(&peers, |_, peer| run(peer, 2)) {
        result.unwrap();
    }
}

#[test]
fn buffers_of_the_callers() -> Result<()> {
    let context = Context::cpu()?;
    let options = |rank| PeerOptions::new(rank, 2, DType::BF16, 8);
    let bytes = usize::try_from(options(0).buffer_bytes(&context)?).unwrap();
    let mut memory = vec![0u8; 2 * bytes + 1024];
    let begin = memory.as_mut_ptr();
    let first = begin.wrapping_add(begin.align_offset(256));
    let buffers = [first, first.wrapping_add(bytes.div_ceil(256) * 256)].map(<*mut u8>::cast);
    let peers: Vec<_> = (0..2)
        // SAFETY: both lie in `memory`, which outlives the peers.
        .map(|rank| unsafe { options(rank).create_from_pointers(&context, &buffers) })
        .collect::<Result<_>>()?;
    assert_eq!(peers[0].export().unwrap_err().status(), Status::ARGUMENT);
    let found = on_all(&peers, |rank, peer| {
        let x = [bf16::from_f32(rank as f32 + 1.0); 8];
        let mut y = [bf16::ZERO; 8];
        let norm = Norm::rms(0.0)
            .x(Tensor::new(&x, &[1, 8]).unwrap())
            .y(TensorMut::new(&mut y, &[1, 8]).unwrap());
        PeerAllreduceNorm::new(peer, norm).run().unwrap();
        y
    });
    assert_eq!(found, [[bf16::ONE; 8]; 2]);
    drop(peers);
    drop(memory);
    let wrong = PeerOptions::new(2, 2, DType::F32, 8).create(&context);
    assert_eq!(wrong.unwrap_err().status(), Status::ARGUMENT);
    Ok(())
}
