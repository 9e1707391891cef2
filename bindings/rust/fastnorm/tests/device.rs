//! Memory by address, streams and errors, on the CPU or, with FASTNORM_TEST_DEVICE=cuda, on a GPU:
//! the same cases and the same bits.

mod common;
#[path = "common/memory.rs"]
mod memory;

use common::{reference, values, whole_numbers, Formula};
use fastnorm::{
    bf16, norm_many_query, norm_many_with, Context, DType, Element, F4x2E2M1, Norm, Quant, Result,
    Status, Tensor, TensorMut, Workspace, F8E4M3, F8E8M0,
};
use memory::{context, elsewhere, on_gpu, Buffer, TestStream};
use std::fmt::Debug;
use std::thread;

const ROWS: usize = 37;
const N: usize = 520;

/// y and the residual that x, residual and weight give.
fn expected(x: &[bf16], residual: &[bf16], weight: &[bf16]) -> (Vec<bf16>, Vec<bf16>) {
    let weights = values(weight);
    let formula = Formula {
        eps: 0.5,
        weight: Some(&weights),
        ..Formula::default()
    };
    let sums: Vec<f64> = values(x)
        .iter()
        .zip(values(residual))
        .map(|(x, r)| x + r)
        .collect();
    let y = sums
        .chunks(weight.len())
        .flat_map(|row| reference::<bf16>(row, &formula).0);
    (
        y.collect(),
        sums.iter().map(|&s| bf16::from_f64(s)).collect(),
    )
}

#[test]
fn residual_in_place() -> Result<()> {
    let (context, stream) = (context()?, TestStream::new());
    let (x, r) = (whole_numbers(ROWS * N, 41), whole_numbers(ROWS * N, 42));
    let weight = whole_numbers(N, 43);
    let (mut tx, mut tr, mut tw) = (Buffer::new(&x), Buffer::new(&r), Buffer::new(&weight));
    let mut ty = Buffer::new(&vec![bf16::ZERO; ROWS * N]);
    let mut norm = Norm::rms(0.5)
        .x(tx.tensor(&context, &[ROWS, N])?)
        .residual_in_place(tr.tensor_mut(&context, &[ROWS, N])?)
        .weight(tw.tensor(&context, &[N])?)
        .y(ty.tensor_mut(&context, &[ROWS, N])?);
    norm.prepare(&context)?;
    assert_eq!(norm.query(&context)?.launches, 1);
    norm.run_on(&context, stream.get())?;
    drop(context); // what is queued goes on
    stream.wait();
    assert_eq!((ty.numbers(), tr.numbers()), expected(&x, &r, &weight));
    Ok(())
}

/// Every device gives the bits of the CPU where sums are exact.
#[test]
fn same_bits_as_the_cpu() -> Result<()> {
    let (context, cpu, stream) = (context()?, Context::cpu()?, TestStream::new());
    let x: Vec<bf16> = whole_numbers(ROWS * N, 47);
    let (r, weight) = (
        whole_numbers::<bf16>(ROWS * N, 48),
        whole_numbers::<bf16>(N, 49),
    );
    let (mut tx, mut tr, mut tw) = (Buffer::new(&x), Buffer::new(&r), Buffer::new(&weight));
    let mut ty = Buffer::new(&vec![bf16::ZERO; ROWS * N]);
    let mut trstd = Buffer::new(&[0f32; ROWS]);
    Norm::rms(0.5)
        .x(tx.tensor(&context, &[ROWS, N])?)
        .residual_in_place(tr.tensor_mut(&context, &[ROWS, N])?)
        .weight(tw.tensor(&context, &[N])?)
        .y(ty.tensor_mut(&context, &[ROWS, N])?)
        .rstd(trstd.tensor_mut(&context, &[ROWS])?)
        .run_on(&context, stream.get())?;
    stream.wait();
    let (mut residual, mut y, mut rstd) = (r, vec![bf16::ZERO; ROWS * N], [0f32; ROWS]);
    Norm::rms(0.5)
        .x(Tensor::new(&x, &[ROWS, N])?)
        .residual_in_place(TensorMut::new(&mut residual, &[ROWS, N])?)
        .weight(Tensor::new(&weight, &[N])?)
        .y(TensorMut::new(&mut y, &[ROWS, N])?)
        .rstd(TensorMut::new(&mut rstd, &[ROWS])?)
        .run(&cpu)?;
    assert_eq!(ty.numbers(), y);
    assert_eq!(tr.numbers(), residual);
    assert_eq!(trstd.numbers(), rstd);
    Ok(())
}

/// Codes and scales of rows, and the largest magnitude of all, which are the CPU's.
#[test]
fn quantised() -> Result<()> {
    let (context, cpu, stream) = (context()?, Context::cpu()?, TestStream::new());
    let (x, weight) = (
        whole_numbers::<bf16>(ROWS * N, 50),
        whole_numbers::<bf16>(N, 51),
    );
    let (mut tx, mut tw) = (Buffer::new(&x), Buffer::new(&weight));
    let (mut codes, mut scales) = (Buffer::new(&[0i8; ROWS * N]), Buffer::new(&[0f32; ROWS]));
    let mut amax = Buffer::new(&[0f32]);
    let quant = Quant::per_row(
        codes.tensor_mut(&context, &[ROWS, N])?,
        scales.tensor_mut(&context, &[ROWS])?,
    );
    Norm::rms(0.5)
        .x(tx.tensor(&context, &[ROWS, N])?)
        .weight(tw.tensor(&context, &[N])?)
        .quant(quant.amax(amax.tensor_mut(&context, &[1])?))
        .run_on(&context, stream.get())?;
    stream.wait();
    let (mut cpu_codes, mut cpu_scales) = (vec![0i8; ROWS * N], [0f32; ROWS]);
    Norm::rms(0.5)
        .x(Tensor::new(&x, &[ROWS, N])?)
        .weight(Tensor::new(&weight, &[N])?)
        .quant(Quant::per_row(
            TensorMut::new(&mut cpu_codes, &[ROWS, N])?,
            TensorMut::new(&mut cpu_scales, &[ROWS])?,
        ))
        .run(&cpu)?;
    let (codes, scales) = (codes.numbers(), scales.numbers());
    assert_eq!(codes, cpu_codes);
    assert_eq!(scales, cpu_scales);
    let weights = values(&weight);
    let formula = Formula {
        eps: 0.5,
        weight: Some(&weights),
        ..Formula::default()
    };
    let mut most = 0f32;
    for (i, row) in x.chunks(N).enumerate() {
        let z = reference::<f32>(&values(row), &formula).0;
        let top = z.iter().fold(0f32, |top, v| top.max(v.abs()));
        most = most.max(top);
        let scale = top / 127.0;
        assert_eq!(scales[i], scale, "scale of row {i}");
        let inverse = 1.0 / scale;
        let wanted: Vec<i8> = z
            .iter()
            .map(|v| (v * inverse).round_ties_even() as i8)
            .collect();
        assert_eq!(codes[i * N..(i + 1) * N], wanted, "codes of row {i}");
    }
    assert_eq!(amax.numbers(), [most]);
    Ok(())
}

/// The scheme whose scales are of `block` columns.
fn scheme<'a>(block: usize, codes: TensorMut<'a>, scales: TensorMut<'a>) -> Quant<'a> {
    match block {
        16 => Quant::nvfp4(codes, scales),
        _ => Quant::mxfp8(codes, scales),
    }
}

/// Codes with the scales of their blocks of `block`, `packed` codes to an element, which are the
/// CPU's.
fn microscaled<C, S>(packed: usize, block: usize) -> Result<()>
where
    C: Element + Default + PartialEq + Debug,
    S: Element + Default + PartialEq + Debug,
{
    const N: usize = 256;
    let (context, cpu, stream) = (context()?, Context::cpu()?, TestStream::new());
    let x = whole_numbers::<bf16>(ROWS * N, 52);
    let (code_shape, scale_shape) = ([ROWS, N / packed], [ROWS, N / block]);
    let none = vec![C::default(); ROWS * N / packed];
    let mut cpu_codes = none.clone();
    let mut cpu_scales = vec![S::default(); ROWS * N / block];
    let mut tx = Buffer::new(&x);
    let (mut codes, mut scales) = (Buffer::new(&cpu_codes), Buffer::new(&cpu_scales));
    Norm::rms(0.5)
        .x(tx.tensor(&context, &[ROWS, N])?)
        .quant(scheme(
            block,
            codes.tensor_mut(&context, &code_shape)?,
            scales.tensor_mut(&context, &scale_shape)?,
        ))
        .run_on(&context, stream.get())?;
    stream.wait();
    Norm::rms(0.5)
        .x(Tensor::new(&x, &[ROWS, N])?)
        .quant(scheme(
            block,
            TensorMut::new(&mut cpu_codes, &code_shape)?,
            TensorMut::new(&mut cpu_scales, &scale_shape)?,
        ))
        .run(&cpu)?;
    assert_eq!(codes.numbers(), cpu_codes);
    assert_eq!(scales.numbers(), cpu_scales);
    assert_ne!(cpu_codes, none);
    Ok(())
}

#[test]
fn mxfp8() -> Result<()> {
    microscaled::<F8E4M3, F8E8M0>(1, 32)
}

#[test]
fn nvfp4() -> Result<()> {
    microscaled::<F4x2E2M1, F8E4M3>(2, 16)
}

/// A chain in which each call reads what the one before it wrote: flags change when a kernel
/// starts, not its results.
#[test]
fn dependent_launches() -> Result<()> {
    const N: usize = 512;
    let (context, stream) = (context()?, TestStream::new());
    let x: Vec<bf16> = whole_numbers(ROWS * N, 53);
    let mut weight = Buffer::new(&whole_numbers::<bf16>(N, 54));
    let mut run = |flags: u32| -> Result<Vec<bf16>> {
        let (mut there, mut back) = (Buffer::new(&x), Buffer::new(&vec![bf16::ZERO; ROWS * N]));
        let mut step = |from: &mut Buffer<bf16>, to: &mut Buffer<bf16>| -> Result<()> {
            Norm::rms(0.5)
                .x(from.tensor(&context, &[ROWS, N])?)
                .weight(weight.tensor(&context, &[N])?)
                .y(to.tensor_mut(&context, &[ROWS, N])?)
                .pdl_wait(flags & 1 != 0)
                .pdl_trigger(flags & 2 != 0)
                .pdl_constant_weights(flags & 4 != 0)
                .run_on(&context, stream.get())
        };
        for _ in 0..20 {
            step(&mut there, &mut back)?;
            step(&mut back, &mut there)?;
        }
        stream.wait();
        Ok(there.numbers())
    };
    let plain = run(0)?;
    assert_ne!(plain, x, "rows have changed");
    for flags in [1, 3, 7] {
        assert_eq!(run(flags)?, plain, "flags {flags}");
    }
    Ok(())
}

#[test]
fn heads_of_one_buffer() -> Result<()> {
    let (tokens, heads, queries, size) = (9, 7, 5, 128);
    let (context, stream) = (context()?, TestStream::new());
    let buffer: Vec<bf16> = whole_numbers(tokens * heads * size, 44);
    let weight = [
        whole_numbers::<bf16>(size, 45),
        whole_numbers::<bf16>(size, 46),
    ];
    let mut weights = weight.each_ref().map(|w| Buffer::new(w));
    let mut all = Buffer::new(&buffer);
    let (query, key) = all
        .tensor_mut(&context, &[tokens, heads, size])?
        .split(1, queries)?;
    let [wq, wk] = &mut weights;
    let mut parts = [
        Norm::rms(0.5)
            .x_in_place(query)
            .weight(wq.tensor(&context, &[size])?),
        Norm::rms(0.5)
            .x_in_place(key)
            .weight(wk.tensor(&context, &[size])?),
    ];
    let launches = norm_many_query(&context, &parts)?.launches;
    assert_eq!(launches, if on_gpu() { 1 } else { 2 });
    norm_many_with(&context, &mut parts, stream.get(), Workspace::NONE)?;
    stream.wait();
    let found = all.numbers();
    for (i, row) in buffer.chunks(size).enumerate() {
        let weights = values(&weight[usize::from(i % heads >= queries)]);
        let formula = Formula {
            eps: 0.5,
            weight: Some(&weights),
            ..Formula::default()
        };
        let (wanted, ..) = reference::<bf16>(&values(row), &formula);
        assert_eq!(
            found[i * size..(i + 1) * size],
            wanted,
            "head {} of token {}",
            i % heads,
            i / heads
        );
    }
    Ok(())
}

#[test]
fn two_threads_on_two_streams() -> Result<()> {
    let context = context()?;
    let run = |seed: u64| -> Result<()> {
        let stream = TestStream::new();
        let (x, r) = (
            whole_numbers(ROWS * N, seed),
            whole_numbers(ROWS * N, seed + 1),
        );
        let weight = whole_numbers(N, seed + 2);
        let (wanted, _) = expected(&x, &r, &weight);
        let (mut tx, mut tr, mut tw) = (Buffer::new(&x), Buffer::new(&r), Buffer::new(&weight));
        for _ in 0..50 {
            let mut ty = Buffer::new(&vec![bf16::ZERO; ROWS * N]);
            Norm::rms(0.5)
                .x(tx.tensor(&context, &[ROWS, N])?)
                .residual(tr.tensor(&context, &[ROWS, N])?)
                .weight(tw.tensor(&context, &[N])?)
                .y(ty.tensor_mut(&context, &[ROWS, N])?)
                .run_on(&context, stream.get())?;
            stream.wait();
            assert_eq!(ty.numbers(), wanted);
        }
        Ok(())
    };
    thread::scope(|s| {
        let other = s.spawn(|| run(51));
        run(61)?;
        other.join().expect("no panic")
    })
}

#[test]
fn refusals() -> Result<()> {
    let context = context()?;
    let mut numbers = Buffer::new(&[1f32; 64]);
    let (x, mut y) = (
        numbers.tensor(&context, &[4, 16])?,
        Buffer::new(&[-1f32; 64]),
    );
    let mut fails = |norm: Norm<'static>, status, text: &str| -> Result<()> {
        let error = norm
            .y(y.tensor_mut(&context, &[4, 16])?)
            .run(&context)
            .expect_err(text);
        assert_eq!(error.status(), status, "{error}");
        assert!(error.message().contains(text), "{error}");
        assert_eq!(y.numbers(), [-1.0; 64]);
        Ok(())
    };
    fails(Norm::rms(-1.0).x(x), Status::ARGUMENT, "eps is -1")?;
    fails(
        Norm::rms(0.0).x(numbers.tensor(&context, &[8, 8])?),
        Status::SHAPE,
        "shape",
    )?;
    // SAFETY: never followed: the calls are refused.
    unsafe {
        let address = 0x1000_0000_usize as *const std::ffi::c_void;
        let here = context.device();
        let integers = Tensor::from_device(here, address, DType::I32, &[4, 16])?;
        fails(Norm::rms(0.0).x(integers), Status::DTYPE, "x.dtype is i32")?;
        let spread = Tensor::from_device_strided(here, address, DType::F32, &[4, 16], &[32, 2])?;
        fails(
            Norm::rms(0.0).x(spread),
            Status::LAYOUT,
            "x.strides[1] is 2",
        )?;
        let odd = Tensor::from_device(here, address.byte_add(1), DType::F32, &[4, 16])?;
        fails(Norm::rms(0.0).x(odd), Status::LAYOUT, "x")?;
        let far = Tensor::from_device(elsewhere(), address, DType::F32, &[4, 16])?;
        fails(Norm::rms(0.0).x(far), Status::DEVICE, "x is on device")?;
        fails(
            Norm::rms(0.0).x(x).pdl_constant_weights(true),
            Status::ARGUMENT,
            "flags is 0x4",
        )?;
        if on_gpu() {
            // The CPU would follow the addresses.
            let (x, y) = (0x1000_0000_0000_usize, 0x2000_0000_0000_usize);
            let shape = [1 << 33, 4];
            let error = Norm::rms(0.0)
                .x(Tensor::from_device(
                    here,
                    x as *const _,
                    DType::F32,
                    &shape,
                )?)
                .y(TensorMut::from_device(
                    here,
                    y as *mut _,
                    DType::F32,
                    &shape,
                )?)
                .run(&context)
                .expect_err("more rows than a grid holds");
            assert_eq!(error.status(), Status::UNSUPPORTED, "{error}");
        }
        let row = TensorMut::from_device_strided(
            here,
            address.cast_mut(),
            DType::F32,
            &[4, 16],
            &[0, 1],
        )?;
        let error = Norm::rms(0.0)
            .x(x)
            .y(row)
            .run(&context)
            .expect_err("rows on top of each other");
        assert_eq!(error.status(), Status::LAYOUT);
    }
    Ok(())
}
