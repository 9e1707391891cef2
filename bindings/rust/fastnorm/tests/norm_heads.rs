//! Norm, rope and the paged cache against the formula in double precision.
#![allow(clippy::needless_range_loop)] // heads and tokens index several things

use fastnorm::{
    Context, Error, NormHeads, NormHeadsPart, Quant, QuantDivision, Result, Status, Tensor,
    TensorMut, F8E4M3,
};

// A fused buffer of query, key and value heads. Rope turns a window in the middle of a row. Pages
// are no power of two, token 2 has no slot, and the last token is behind the list of slots.
const TOKENS: usize = 5;
const QUERY: usize = 3;
const KEY: usize = 2;
const HEADS: usize = QUERY + 2 * KEY;
const D: usize = 80;
const ROPE: usize = 32;
const OFFSET: usize = 24;
const PAGES: [usize; 4] = [3, 3, KEY, D];
const ROWS: usize = 11; // of the tables
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

struct Layer {
    qkv: Vec<f32>,
    query_weight: Vec<f32>,
    key_weight: Vec<f32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
    positions: [i64; TOKENS],
    slots: [i32; TOKENS - 1],
}

impl Layer {
    fn new() -> Self {
        let angle = |i: usize| {
            let (row, j) = (i / (ROPE / 2), i % (ROPE / 2));
            row as f64 * 10000f64.powf(-2.0 * j as f64 / ROPE as f64)
        };
        Self {
            qkv: numbers(TOKENS * HEADS * D, 1),
            query_weight: numbers(D, 2),
            key_weight: numbers(D, 3),
            cos: (0..ROWS * ROPE / 2)
                .map(|i| angle(i).cos() as f32)
                .collect(),
            sin: (0..ROWS * ROPE / 2)
                .map(|i| angle(i).sin() as f32)
                .collect(),
            positions: [10, 0, 3, 7, 3],
            slots: [7, 0, -1, 4],
        }
    }

    fn row(&self, token: usize, head: usize) -> &[f32] {
        &self.qkv[(token * HEADS + head) * D..][..D]
    }

    /// RMSNorm and rope of a row in double precision.
    fn exact(&self, token: usize, head: usize, interleaved: bool, inverse: bool) -> Vec<f64> {
        let x: Vec<f64> = self
            .row(token, head)
            .iter()
            .map(|v| f64::from(*v))
            .collect();
        let weight = if head < QUERY {
            &self.query_weight
        } else {
            &self.key_weight
        };
        let mean = x.iter().map(|v| v * v).sum::<f64>() / D as f64;
        let rstd = (mean + f64::from(EPS)).sqrt().recip();
        let mut o: Vec<f64> = x
            .iter()
            .zip(weight)
            .map(|(x, w)| x * rstd * (f64::from(*w) + 1.0))
            .collect();
        for j in 0..ROPE / 2 {
            let (first, second) = if interleaved {
                (OFFSET + 2 * j, OFFSET + 2 * j + 1)
            } else {
                (OFFSET + j, OFFSET + ROPE / 2 + j)
            };
            let entry = self.positions[token] as usize * ROPE / 2 + j;
            let c = f64::from(self.cos[entry]);
            let s = f64::from(self.sin[entry]) * if inverse { -1.0 } else { 1.0 };
            let (v1, v2) = (o[first], o[second]);
            o[first] = v1 * c - v2 * s;
            o[second] = v2 * c + v1 * s;
        }
        o
    }

    /// The call without its parts.
    fn call(&self) -> Result<NormHeads<'_>> {
        let table = [ROWS, ROPE / 2];
        Ok(NormHeads::new()
            .rope(
                ROPE,
                Tensor::new(&self.cos, &table)?,
                Tensor::new(&self.sin, &table)?,
            )
            .positions(Tensor::new(&self.positions, &[TOKENS])?)
            .slots(Tensor::new(&self.slots, &[self.slots.len()])?))
    }
}

/// Query, key and value heads of a buffer.
fn split(buffer: &mut [f32]) -> Result<[TensorMut<'_>; 3]> {
    let (query, rest) = TensorMut::new(buffer, &[TOKENS, HEADS, D])?.split(1, QUERY)?;
    let (key, value) = rest.split(1, KEY)?;
    Ok([query, key, value])
}

fn both(part: NormHeadsPart<'_>) -> NormHeadsPart<'_> {
    part.rms(EPS).weight_offset(1.0).rope(OFFSET as i32)
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

#[test]
fn layers() -> Result<()> {
    let context = Context::cpu()?;
    let layer = Layer::new();
    for (interleaved, inverse) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut qkv = layer.qkv.clone();
        let mut keys = vec![f32::NAN; PAGES.iter().product()];
        let mut values = keys.clone();
        let [query, key, value] = split(&mut qkv)?;
        let mut call = layer
            .call()?
            .part(
                both(NormHeadsPart::in_place(query))
                    .rope_interleaved(interleaved)
                    .rope_inverse(inverse)
                    .weight(Tensor::new(&layer.query_weight, &[D])?),
            )
            .part(
                both(NormHeadsPart::in_place(key))
                    .rope_interleaved(interleaved)
                    .rope_inverse(inverse)
                    .weight(Tensor::new(&layer.key_weight, &[D])?)
                    .cache(TensorMut::new(&mut keys, &PAGES)?),
            )
            .part(
                NormHeadsPart::new(value.as_tensor()).cache(TensorMut::new(&mut values, &PAGES)?),
            );
        call.prepare(&context)?;
        assert_eq!(call.query(&context)?.launches, 1);
        call.run(&context)?;
        drop(call);

        let mut cached = [false; 9];
        for token in 0..TOKENS {
            for head in 0..QUERY + KEY {
                let what = format!("{interleaved} {inverse}: head {head} of token {token}");
                let found = &qkv[(token * HEADS + head) * D..][..D];
                assert_close(
                    &what,
                    found,
                    &layer.exact(token, head, interleaved, inverse),
                );
            }
            let slot = layer.slots.get(token).map_or(-1, |slot| *slot);
            let Ok(slot) = usize::try_from(slot) else {
                continue;
            };
            cached[slot] = true;
            let rows = slot * KEY * D..(slot + 1) * KEY * D;
            let heads = &qkv[(token * HEADS + QUERY) * D..][..2 * KEY * D];
            assert_eq!(keys[rows.clone()], heads[..KEY * D]);
            assert_eq!(values[rows], heads[KEY * D..]);
            assert_eq!(&heads[KEY * D..KEY * D + D], layer.row(token, QUERY + KEY));
        }
        assert_eq!(cached.iter().filter(|c| **c).count(), 3);
        for (i, key) in keys.iter().enumerate() {
            let written = cached[i / (KEY * D)];
            assert!(
                key.is_nan() != written && values[i].is_nan() != written,
                "element {i}"
            );
        }
    }
    Ok(())
}

/// Codes of e4m3 are within half a step of their values, or of the least step.
fn assert_codes(what: &str, codes: &[F8E4M3], scale: f32, wanted: &[f64]) {
    let largest = wanted.iter().fold(0f64, |m, v| m.max(v.abs()));
    let scale = f64::from(scale);
    assert!(
        (scale - largest / 448.0).abs() <= 1e-5 * largest,
        "{what}: scale {scale}"
    );
    for (code, w) in codes.iter().zip(wanted) {
        let off = (f64::from(code.to_f32()) * scale - w).abs();
        assert!(
            off <= w.abs() / 16.0 + scale / 1024.0 + 1e-5,
            "{what}: off by {off} from {w}"
        );
    }
}

#[test]
fn quantised() -> Result<()> {
    let context = Context::cpu()?;
    let layer = Layer::new();
    let mut codes = vec![F8E4M3::default(); TOKENS * QUERY * D];
    let mut scales = vec![0f32; TOKENS * QUERY];
    let mut keys = vec![F8E4M3::default(); PAGES.iter().product()];
    let mut key_scales = vec![0f32; 9 * KEY * 2]; // blocks of 64 and 16 columns
    let mut values = vec![0i8; keys.len()];
    let mut buffer = layer.qkv.clone();
    let [query, key, value] = split(&mut buffer)?;
    let rows = [TOKENS, QUERY];
    layer
        .call()?
        .part(
            both(NormHeadsPart::new(query.as_tensor()))
                .weight(Tensor::new(&layer.query_weight, &[D])?)
                .quant(Quant::per_row(
                    TensorMut::new(&mut codes, &[TOKENS, QUERY, D])?,
                    TensorMut::new(&mut scales, &rows)?,
                )),
        )
        .part(
            both(NormHeadsPart::new(key.as_tensor()))
                .weight(Tensor::new(&layer.key_weight, &[D])?)
                .cache_per_block(
                    64,
                    TensorMut::new(&mut keys, &PAGES)?,
                    TensorMut::new(&mut key_scales, &[3, 3, KEY, 2])?,
                    false,
                ),
        )
        .part(NormHeadsPart::new(value.as_tensor()).cache_per_tensor(
            TensorMut::new(&mut values, &PAGES)?,
            Tensor::new(&[1f32 / 32.0], &[1])?,
        ))
        .run(&context)?;
    for token in 0..TOKENS {
        for head in 0..QUERY {
            let row = token * QUERY + head;
            let wanted = layer.exact(token, head, false, false);
            assert_codes("query", &codes[row * D..][..D], scales[row], &wanted);
        }
        let slot = layer.slots.get(token).map_or(-1, |slot| *slot);
        let Ok(slot) = usize::try_from(slot) else {
            continue;
        };
        for head in 0..KEY {
            let row = slot * KEY + head;
            let wanted = layer.exact(token, QUERY + head, false, false);
            for (block, columns) in [0..64, 64..D].into_iter().enumerate() {
                let found = &keys[row * D..][columns.clone()];
                assert_codes("key", found, key_scales[2 * row + block], &wanted[columns]);
            }
            for (code, v) in values[row * D..][..D]
                .iter()
                .zip(layer.row(token, QUERY + KEY + head))
            {
                assert_eq!(f32::from(*code), (32.0 * v).round_ties_even());
            }
        }
    }
    assert_eq!(key_scales[2 * KEY], 0.0, "a slot that no token has");
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
    let mut layer = Layer::new();
    let x = layer.qkv.clone();
    let x = || Tensor::new(&x, &[TOKENS, HEADS, D]);
    let mut y = vec![0f32; TOKENS * HEADS * D];
    let shape = [TOKENS, HEADS, D];
    refused(
        NormHeads::new()
            .part(NormHeadsPart::new(x()?))
            .run(&context),
        Status::ARGUMENT,
        "parts[0].y, quantized, cache, sumsq, mean and rstd are NULL; required: an output",
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
        "parts[0].clamp is 1 and clamp_scale is given",
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

    layer.positions[4] = ROWS as i64;
    let mut turned = layer.call()?.part(
        both(NormHeadsPart::new(x()?))
            .weight_offset(0.0)
            .y(TensorMut::new(&mut y, &shape)?),
    );
    refused(
        turned.run(&context),
        Status::ARGUMENT,
        "slots is given and no part has a cache",
    );
    drop(turned);
    let table = [ROWS, ROPE / 2];
    let mut turned = NormHeads::new()
        .rope(
            ROPE,
            Tensor::new(&layer.cos, &table)?,
            Tensor::new(&layer.sin, &table)?,
        )
        .positions(Tensor::new(&layer.positions, &[TOKENS])?)
        .part(
            both(NormHeadsPart::new(x()?))
                .weight_offset(0.0)
                .y(TensorMut::new(&mut y, &shape)?),
        );
    refused(
        turned.run(&context),
        Status::ARGUMENT,
        "the position of token 4, axis 0, is 11; required: 0 to 10",
    );
    drop(turned);
    assert!(y.iter().all(|v| *v == 0.0));
    Ok(())
}
