//! Attention over paged latents: what is refused, and profiles. Values by hand are in the
//! documentation of `MlaDecode`.
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]

mod common;

use common::{whole_numbers, Float};
use fastnorm::{
    decode_profile, write_trace, Context, LseBase, MlaCacheFormat, MlaDecode, ProfileEvent,
    ProfileKind, Result, Status, Tensor, TensorMut,
};

const LATENT: usize = 512;
const ROTARY: usize = 64;
const WIDE: usize = LATENT + ROTARY;
const PAGE: usize = 4;
const HEADS: usize = 2;
const SCALE: f64 = 0.0009765625;

/// Requests with these lengths and new tokens; their pages lie backwards.
struct Batch<T> {
    lengths: Vec<i32>,
    fresh: Vec<i32>,  // [B + 1], where new tokens begin
    starts: Vec<i32>, // [B + 1], where pages begin
    pages: Vec<i32>,
    query: Vec<T>, // [N, HEADS, WIDE]
    cache: Vec<T>, // [pages, PAGE, WIDE]
}

impl<T: Float> Batch<T> {
    fn new(requests: &[(i32, i32)]) -> Self {
        let (mut fresh, mut starts) = (vec![0], vec![0]);
        for &(length, new) in requests {
            fresh.push(fresh[fresh.len() - 1] + new);
            starts
                .push(starts[starts.len() - 1] + length.div_euclid(4) + i32::from(length % 4 != 0));
        }
        let pages = starts[starts.len() - 1];
        let tokens = fresh[fresh.len() - 1] as usize;
        let mut batch = Self {
            lengths: requests.iter().map(|r| r.0).collect(),
            fresh,
            starts,
            pages: (0..pages).rev().collect(),
            query: whole_numbers(tokens * HEADS * WIDE, 5),
            cache: vec![T::of(f64::NAN); pages as usize * PAGE * WIDE],
        };
        let values: Vec<T> = whole_numbers(batch.cache.len(), 6);
        for (b, &(length, _)) in requests.iter().enumerate() {
            for j in 0..length as usize {
                let at = batch.row(b, j);
                batch.cache[at..at + WIDE].copy_from_slice(&values[at..at + WIDE]);
            }
        }
        batch
    }

    /// Where cached token j of request b begins.
    fn row(&self, b: usize, j: usize) -> usize {
        let page = self.pages[self.starts[b] as usize + j / PAGE] as usize;
        (page * PAGE + j % PAGE) * WIDE
    }

    fn tokens(&self) -> usize {
        self.fresh[self.fresh.len() - 1] as usize
    }

    fn call<'a>(
        &'a self,
        o: &'a mut [T],
        lse: &'a mut [f32],
        base: LseBase,
    ) -> Result<MlaDecode<'a>> {
        let (tokens, pages, requests) = (self.tokens(), self.pages.len(), self.lengths.len());
        let view = |data: &'a [T], offset, rows, inner: usize, width| {
            Tensor::strided(
                data,
                offset,
                &[rows, inner, width],
                &[(inner * WIDE) as isize, WIDE as isize, 1],
            )
        };
        Ok(MlaDecode::new(SCALE)
            .causal(true)
            .q_nope(view(&self.query, 0, tokens, HEADS, LATENT)?)
            .q_pe(view(&self.query, LATENT, tokens, HEADS, ROTARY)?)
            .ckv(view(&self.cache, 0, pages, PAGE, LATENT)?)
            .kpe(view(&self.cache, LATENT, pages, PAGE, ROTARY)?)
            .kv_len(Tensor::new(&self.lengths, &[requests])?)
            .page_table(Tensor::new(&self.pages, &[pages])?)
            .kv_indptr(Tensor::new(&self.starts, &[requests + 1])?)
            .qo_indptr(Tensor::new(&self.fresh, &[requests + 1])?, 8)
            .o(TensorMut::new(o, &[tokens, HEADS, LATENT])?)
            .lse(TensorMut::new(lse, &[tokens, HEADS])?, base))
    }
}

/// One new token that selects rows of bytes, of 1 and -3 times 2. The others are NaN. Half of the
/// weight is the sink's.
#[test]
fn rows_of_bytes_that_are_selected() -> Result<()> {
    let context = Context::cpu()?;
    let codes = [0xc4u8, 0x7f, 0x7f, 0x38]; // -3, NaN, NaN, 1
    let cache: Vec<u8> = codes.iter().flat_map(|&code| [code; WIDE]).collect();
    let (query, rotary) = ([0f32; LATENT], [0f32; ROTARY]);
    let sink = [2f32.ln()];
    let run = |indices: &[i32], extra: Option<&[i32]>, o: &mut [f32], lse: &mut [f32]| {
        let mut call = MlaDecode::new(1.0)
            .q_nope(Tensor::new(&query, &[1, 1, LATENT])?)
            .q_pe(Tensor::new(&rotary, &[1, 1, ROTARY])?)
            .cache_format(MlaCacheFormat::Bytes576)
            .cache(Tensor::new(&cache, &[2, 2, WIDE])?)
            .cache_scale(Tensor::new(&[2f32], &[1])?)
            .indices(Tensor::new(indices, &[1, 1, 4])?)
            .topk_length(Tensor::new(&[3i32], &[1])?)
            .attention_sink(Tensor::new(&sink, &[1])?)
            .o(TensorMut::new(o, &[1, 1, LATENT])?)
            .lse(TensorMut::new(lse, &[1, 1])?, LseBase::Natural);
        if let Some(extra) = extra {
            call = call
                .extra_cache(Tensor::new(&cache, &[2, 2, WIDE])?)
                .extra_indices(Tensor::new(extra, &[1, 1, 2])?)
                .extra_topk_length(Tensor::new(&[1i32], &[1, 1])?);
        }
        call.run(&context)
    };
    let (mut o, mut lse) = ([0f32; LATENT], [0f32]);
    for (indices, extra) in [
        ([3, -1, 0, 99], None),
        ([-1, 3, -1, 99], Some(&[0, 99][..])),
    ] {
        o.fill(f32::NAN);
        run(&indices, extra, &mut o, &mut lse)?;
        assert!(o.iter().all(|v| (v + 1.0).abs() < 1e-6), "{o:?}");
        assert!((lse[0] - 2f32.ln()).abs() < 1e-6, "{lse:?}");
    }
    let error = run(&[4, 0, 0, 0], None, &mut o, &mut lse).unwrap_err();
    assert_eq!(error.status(), Status::ARGUMENT);
    assert!(
        error.to_string().contains("indices[0][0][0] is 4"),
        "{error}"
    );
    Ok(())
}

#[test]
fn refusals_name_the_field_and_write_nothing() -> Result<()> {
    let context = Context::cpu()?;
    let batch = Batch::<f32>::new(&[(6, 1), (3, 2)]);
    type Change = for<'a> fn(MlaDecode<'a>) -> MlaDecode<'a>;
    let cases: [(&str, Status, Change); 6] = [
        ("kv_len", Status::ARGUMENT, |c| {
            c.kv_len(Tensor::new(&[7, 40], &[2]).unwrap())
        }),
        ("split_tokens", Status::ARGUMENT, |c| c.split_tokens(65)),
        ("total_kv_hint", Status::ARGUMENT, |c| c.total_kv_hint(-1)),
        ("max_s_q", Status::ARGUMENT, |c| {
            c.qo_indptr(Tensor::new(&[0, 1, 3], &[3]).unwrap(), 0)
        }),
        ("q_pe", Status::UNSUPPORTED, |c| {
            c.q_pe(Tensor::new(&[0f32; 3 * 2 * 32], &[3, 2, 32]).unwrap())
        }),
        ("kpe", Status::DTYPE, |c| {
            c.kpe(Tensor::new(&[0i32; 3 * 4 * 64], &[3, 4, 64]).unwrap())
        }),
    ];
    for (name, status, change) in cases {
        let mut o = vec![f32::NAN; 3 * HEADS * LATENT];
        let mut lse = vec![0f32; 3 * HEADS];
        let mut call = change(batch.call(&mut o, &mut lse, LseBase::Natural)?);
        let error = call.run(&context).unwrap_err();
        assert_eq!(error.status(), status, "{error}");
        assert!(error.to_string().contains(name), "{error}");
        drop(call);
        assert!(o.iter().all(|v| v.is_nan()));
    }
    let error = MlaDecode::new(1.0).run(&context).unwrap_err();
    assert!(error.to_string().contains("q_nope"), "{error}");
    Ok(())
}

/// What one thread block with one warpgroup leaves: a span of scores within one of work.
fn profile() -> Vec<u8> {
    let event =
        |cycle: u64, id: u64, kind: u64, value: u64| cycle | (id | kind << 8 | value << 10) << 32;
    let pair = |low: u64, high: u64| low | high << 32;
    let mut words = vec![u64::from_le_bytes(*b"NORMPROF"), pair(1, 1), pair(1, 4)];
    words.extend([0; 5]);
    words.extend([
        pair(17, 1),
        pair(4, 0),
        1 << 32,
        5000,
        (1 << 32) + 2000,
        6000,
        0,
        0,
    ]);
    words.extend([
        event(0, 0, 0, 7),
        event(500, 3, 0, 7),
        event(1500, 3, 1, 7),
        event(2000, 0, 1, 7),
    ]);
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn profiles() {
    let bytes = profile();
    let events = decode_profile(&bytes).unwrap();
    let seen = |e: &ProfileEvent| (e.time_ns, e.cycle, e.id.name(), e.kind, e.value);
    assert_eq!(
        events.iter().map(seen).collect::<Vec<_>>(),
        [
            (0, 0, "work", ProfileKind::Begin, 7),
            (250, 500, "qk", ProfileKind::Begin, 7),
            (750, 1500, "qk", ProfileKind::End, 7),
            (1000, 2000, "work", ProfileKind::End, 7),
        ]
    );
    assert!(events
        .iter()
        .all(|e| (e.block, e.multiprocessor, e.group) == (0, 17, 0)));

    let path = std::env::temp_dir().join(format!("fastnorm-trace-{}.json", std::process::id()));
    write_trace(&bytes, &path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(text.contains("\"traceEvents\""), "{text}");

    let error = write_trace(&bytes, "/no/such/folder/trace.json").unwrap_err();
    assert_eq!(error.status(), Status::ARGUMENT, "{error}");
    for bad in [
        &bytes[..0],
        &bytes[..7],
        &bytes[..bytes.len() - 1],
        &bytes[8..],
    ] {
        assert_eq!(decode_profile(bad).unwrap_err().status(), Status::ARGUMENT);
        assert_eq!(
            write_trace(bad, &path).unwrap_err().status(),
            Status::ARGUMENT
        );
    }
    assert!(!path.exists());
}
