//! Time and error beside candle-nn, in one run.
//!
//! Prints a line a case, its fields between tabs: what, dtype, rows, columns, microseconds of a
//! call of candle-nn and of this crate, relative error of candle-nn and of this crate. Both are
//! timed by turns. On a CPU the least time of each counts, on a GPU the median.
//!
//! - `--rounds N`: how many samples of each
//! - `--cuda`: all is on the first CUDA device. Calls are queued one after another, and a sample
//!   ends when the last one has run, so that a call has the time of the processor or of the GPU,
//!   whichever is longer.
//! - `--dtype f16,bf16`, `--rows 1,256`, `--what RmsNorm`: only these; a part of the name will do

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::time::Instant;

use candle_core::{DType, Device, Module, Result, Tensor, Var};
use common::{errors, flat, numbers, Reference, DTYPES};
use fastnorm_candle::{LayerNorm, RmsNorm};

const N: usize = 4096;
const EPS: f64 = 1e-5;

type Work<'a> = dyn Fn() -> Result<Tensor> + 'a;

/// What follows a word of the command line.
fn option(word: &str) -> Option<String> {
    std::env::args().skip_while(|found| found != word).nth(1)
}

/// What is asked for.
struct Asked {
    cuda: bool,
    rounds: usize,
    dtypes: Option<String>,
    rows: Option<String>,
    what: Option<String>,
}

impl Asked {
    fn new() -> Self {
        Self {
            cuda: std::env::args().any(|word| word == "--cuda"),
            rounds: option("--rounds")
                .and_then(|n| n.parse().ok())
                .unwrap_or(20)
                .max(1),
            dtypes: option("--dtype"),
            rows: option("--rows"),
            what: option("--what"),
        }
    }

    fn has(&self, what: &str, dtype: DType, rows: usize) -> bool {
        let among = |list: &Option<String>, word: &str| {
            let mut lists = list.iter();
            lists.all(|list| list.split(',').any(|one| one == word))
        };
        among(&self.dtypes, dtype.as_str())
            && among(&self.rows, &rows.to_string())
            && self.what.iter().all(|part| what.contains(part))
    }
}

/// Microseconds of one call of so many.
fn sample(work: &Work<'_>, calls: u32) -> Result<f64> {
    let begin = Instant::now();
    let mut last = None;
    for _ in 0..calls {
        last = Some(black_box(work()?));
    }
    if let Some(y) = last {
        y.device().synchronize()?;
    }
    Ok(begin.elapsed().as_secs_f64() * 1e6 / f64::from(calls))
}

fn least(samples: &[f64]) -> f64 {
    samples.iter().copied().fold(f64::INFINITY, f64::min)
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    }
}

fn beside(asked: &Asked, stock: &Work<'_>, ours: &Work<'_>) -> Result<(f64, f64)> {
    let both = [stock, ours];
    let mut calls = [1, 1];
    for (work, calls) in both.iter().zip(&mut calls) {
        sample(*work, 3)?;
        *calls = (2000.0 / sample(*work, 3)?).clamp(1.0, 5000.0) as u32;
    }
    let mut samples = [Vec::new(), Vec::new()];
    // On a machine with other work the least time of a few samples may be none of the norm's.
    let most = asked.rounds * if asked.cuda { 1 } else { 4 };
    for round in 0..most {
        if round >= asked.rounds && least(&samples[1]) <= least(&samples[0]) {
            break;
        }
        // Who is first changes, so that neither always follows the other.
        for i in [round % 2, 1 - round % 2] {
            samples[i].push(sample(both[i], calls[i])?);
        }
    }
    let figure = if asked.cuda { median } else { least };
    Ok((figure(&samples[0]), figure(&samples[1])))
}

fn print(what: &str, x: &Tensor, (stock, ours): (f64, f64), (stock_error, error): (f64, f64)) {
    let (dtype, rows) = (x.dtype().as_str(), x.elem_count() / N);
    println!("{what}\t{dtype}\t{rows}\t{N}\t{stock:.2}\t{ours:.2}\t{stock_error:.1e}\t{error:.1e}");
}

fn forward(
    asked: &Asked,
    what: &str,
    x: &Tensor,
    (stock, ours): (&dyn Module, &dyn Module),
    reference: &Reference,
) -> Result<()> {
    if !asked.has(what, x.dtype(), x.elem_count() / N) {
        return Ok(());
    }
    let times = beside(asked, &|| stock.forward(x), &|| ours.forward(x))?;
    // Of many rows the first ones tell the error.
    let first = |t: &Tensor| t.narrow(0, 0, t.dim(0)?.min(256));
    let wanted = reference.forward(&first(x)?);
    let error = |y: Tensor| -> Result<f64> { Ok(errors(&flat(&first(&y)?)?, &wanted).1) };
    let found = (error(stock.forward(x)?)?, error(ours.forward(x)?)?);
    print(what, x, times, found);
    Ok(())
}

/// Forward and backward of a sum of squares.
fn gradients(
    asked: &Asked,
    what: &str,
    (x, weight): (&Var, &Var),
    (stock, ours): (&dyn Module, &dyn Module),
    reference: &Reference,
) -> Result<()> {
    if !asked.has(what, x.dtype(), x.elem_count() / N) {
        return Ok(());
    }
    let dy = numbers(x.device(), 3, x.dims(), 0.0, x.dtype())?;
    let run = |module: &dyn Module| -> Result<[Tensor; 2]> {
        let mut store = (module.forward(x)? * &dy)?.sum_all()?.backward()?;
        Ok([x, weight].map(|var| store.remove(var).expect("a gradient")))
    };
    let first = |module: &dyn Module| -> Result<Tensor> { Ok(run(module)?[0].clone()) };
    let times = beside(asked, &|| first(stock), &|| first(ours))?;
    let wanted = reference.backward(x, &dy).dx;
    let error = |dx: Tensor| -> Result<f64> { Ok(errors(&flat(&dx)?, &wanted).1) };
    let found = (error(first(stock)?)?, error(first(ours)?)?);
    print(what, x, times, found);
    Ok(())
}

/// candle-nn's form that has gradients.
struct Slow(candle_nn::RmsNorm);

impl Module for Slow {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward_diff(x)
    }
}

struct SlowLayer {
    weight: Tensor,
    bias: Tensor,
}

impl Module for SlowLayer {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        candle_nn::ops::layer_norm_slow(x, &self.weight, &self.bias, EPS as f32)
    }
}

fn main() -> Result<()> {
    let asked = &Asked::new();
    let cuda = asked.cuda;
    let device = &if cuda {
        Device::new_cuda(0)?
    } else {
        Device::Cpu
    };
    // A GPU's memory is what many rows are bound by; of fewer it is the launch.
    let all_rows = if cuda {
        &[1, 256, 16384][..]
    } else {
        &[1, 256]
    };
    let numbers =
        |seed, shape: &[usize], centre, dtype| numbers(device, seed, shape, centre, dtype);
    for dtype in DTYPES {
        let weight = numbers(1, &[N], 1.0, dtype)?;
        let bias = numbers(2, &[N], 0.0, dtype)?;
        let rms = Reference::new(false, EPS, &weight, None);
        let layer = Reference::new(true, EPS, &weight, Some(&bias));
        let plain = Reference::new(true, EPS, &weight, None);
        let (w, b) = (|| weight.clone(), || bias.clone());
        for &rows in all_rows {
            let x = numbers(3, &[rows.min(256), N], 0.2, dtype)?;
            let x = &x.repeat((rows.div_ceil(256), 1))?;
            let both = (&candle_nn::RmsNorm::new(w(), EPS), &RmsNorm::new(w(), EPS));
            forward(asked, "RmsNorm", x, (both.0, both.1), &rms)?;
            let both = (
                &candle_nn::LayerNorm::new(w(), b(), EPS),
                &LayerNorm::new(w(), b(), EPS),
            );
            forward(asked, "LayerNorm", x, (both.0, both.1), &layer)?;
            let both = (
                &candle_nn::LayerNorm::new_no_bias(w(), EPS),
                &LayerNorm::new_no_bias(w(), EPS),
            );
            forward(asked, "LayerNorm, no bias", x, (both.0, both.1), &plain)?;
        }
        let x = &numbers(3, &[16, 16, N], 0.2, dtype)?.transpose(0, 1)?;
        let both = (&candle_nn::RmsNorm::new(w(), EPS), &RmsNorm::new(w(), EPS));
        forward(asked, "RmsNorm, strided", x, (both.0, both.1), &rms)?;
    }
    let with_gradients = if cuda {
        &DTYPES[..]
    } else {
        &[DType::F32, DType::BF16]
    };
    for &dtype in with_gradients {
        for rows in [1, 256] {
            let x = Var::from_tensor(&numbers(3, &[rows, N], 0.2, dtype)?)?;
            let weight = Var::from_tensor(&numbers(1, &[N], 1.0, dtype)?)?;
            let bias = Var::from_tensor(&numbers(2, &[N], 0.0, dtype)?)?;
            let (w, b) = (|| weight.as_tensor().clone(), || bias.as_tensor().clone());
            gradients(
                asked,
                "RmsNorm with gradients",
                (&x, &weight),
                (
                    &Slow(candle_nn::RmsNorm::new(w(), EPS)),
                    &RmsNorm::new(w(), EPS),
                ),
                &Reference::new(false, EPS, &weight, None),
            )?;
            let slow = SlowLayer {
                weight: w(),
                bias: b(),
            };
            gradients(
                asked,
                "LayerNorm with gradients",
                (&x, &weight),
                (&slow, &LayerNorm::new(w(), b(), EPS)),
                &Reference::new(true, EPS, &weight, Some(&bias)),
            )?;
        }
    }
    Ok(())
}
