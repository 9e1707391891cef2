//! Results, to the bit, against the formula in double precision.
#![allow(clippy::needless_range_loop)] // rows index several things

mod common;

use common::{reference, values, whole_numbers, Float, Formula};
use fastnorm::{
    bf16, f16, norm_many, norm_many_prepare, norm_many_query, Context, Norm, Result, Rounding,
    Tensor, TensorMut,
};

const SIZES: [usize; 12] = [1, 2, 3, 4, 7, 8, 15, 16, 17, 64, 100, 1000];

/// RMSNorm of `rows` rows of T with weights of W and, if there is one, a residual of R.
fn rms<T: Float, W: Float, R: Float>(
    context: &Context,
    rows: usize,
    n: usize,
    add: bool,
) -> Result<()> {
    let x: Vec<T> = whole_numbers(rows * n, 1 + n as u64);
    let weight: Vec<W> = whole_numbers(n, 2);
    let residual: Vec<R> = whole_numbers(rows * n, 3);
    let bias: Vec<T> = whole_numbers(n, 4);
    for (weight_offset, rounding) in [
        (0.0, Rounding::Once),
        (1.0, Rounding::Once),
        (0.0, Rounding::Normalized),
        (1.0, Rounding::OnceRw),
    ] {
        let mut y = vec![T::default(); rows * n];
        let mut sum = vec![R::default(); rows * n];
        let mut rstd = vec![0f32; rows];
        let mut norm = Norm::rms(0.5)
            .x(Tensor::new(&x, &[rows, n])?)
            .weight(Tensor::new(&weight, &[n])?)
            .weight_offset(weight_offset)
            .bias(Tensor::new(&bias, &[n])?)
            .rounding(rounding)
            .y(TensorMut::new(&mut y, &[rows, n])?)
            .rstd(TensorMut::new(&mut rstd, &[rows])?);
        if add {
            norm = norm
                .residual(Tensor::new(&residual, &[rows, n])?)
                .residual_out(TensorMut::new(&mut sum, &[rows, n])?);
        }
        norm.run(context)?;
        let (weights, biases) = (values(&weight), values(&bias));
        let formula = Formula {
            eps: 0.5,
            weight: Some(&weights),
            weight_offset: f64::from(weight_offset),
            bias: Some(&biases),
            rounded_before_weight: rounding == Rounding::Normalized,
            weight_first: rounding == Rounding::OnceRw,
            ..Formula::default()
        };
        for row in 0..rows {
            let part = row * n..(row + 1) * n;
            let mut s = values(&x[part.clone()]);
            if add {
                s.iter_mut()
                    .zip(&residual[part.clone()])
                    .for_each(|(s, r)| *s += r.value());
                assert_eq!(
                    values(&sum[part.clone()]),
                    s,
                    "residual_out, n {n}, row {row}"
                );
            }
            let (expected, _, expected_rstd) = reference::<T>(&s, &formula);
            assert_eq!(
                y[part], expected,
                "n {n}, row {row}, {rounding:?}, offset {weight_offset}"
            );
            assert_eq!(
                f64::from(rstd[row]),
                expected_rstd,
                "rstd, n {n}, row {row}"
            );
        }
    }
    Ok(())
}

#[test]
fn rms_of_every_dtype_and_size() -> Result<()> {
    let context = Context::cpu()?;
    for n in SIZES {
        for rows in [1, 3] {
            for add in [false, true] {
                rms::<f32, f32, f32>(&context, rows, n, add)?;
                rms::<f16, f16, f16>(&context, rows, n, add)?;
                rms::<f16, f32, f32>(&context, rows, n, add)?;
                rms::<bf16, bf16, bf16>(&context, rows, n, add)?;
                rms::<bf16, f32, f32>(&context, rows, n, add)?;
            }
        }
    }
    Ok(())
}

fn layer<T: Float>(context: &Context, rows: usize, n: usize) -> Result<()> {
    let x: Vec<T> = whole_numbers(rows * n, 5);
    let (weight, bias): (Vec<T>, Vec<T>) = (whole_numbers(n, 6), whole_numbers(n, 7));
    let mut y = vec![T::default(); rows * n];
    let (mut mean, mut rstd) = (vec![0f32; rows], vec![0f32; rows]);
    Norm::layer(0.25)
        .x(Tensor::new(&x, &[rows, n])?)
        .weight(Tensor::new(&weight, &[n])?)
        .bias(Tensor::new(&bias, &[n])?)
        .y(TensorMut::new(&mut y, &[rows, n])?)
        .mean(TensorMut::new(&mut mean, &[rows, 1])?)
        .rstd(TensorMut::new(&mut rstd, &[rows, 1])?)
        .run(context)?;
    let (weights, biases) = (values(&weight), values(&bias));
    let formula = Formula {
        layer: true,
        eps: 0.25,
        weight: Some(&weights),
        bias: Some(&biases),
        ..Formula::default()
    };
    for row in 0..rows {
        let part = row * n..(row + 1) * n;
        let (expected, expected_mean, expected_rstd) =
            reference::<T>(&values(&x[part.clone()]), &formula);
        assert_eq!(y[part], expected, "n {n}, row {row}");
        assert_eq!(f64::from(mean[row]), expected_mean);
        assert_eq!(f64::from(rstd[row]), expected_rstd);
    }
    Ok(())
}

#[test]
fn layer_of_every_dtype() -> Result<()> {
    let context = Context::cpu()?;
    for n in [1, 2, 4, 8, 16] {
        // Means of these are exact.
        layer::<f32>(&context, 5, n)?;
        layer::<f16>(&context, 5, n)?;
        layer::<bf16>(&context, 5, n)?;
    }
    Ok(())
}

#[test]
fn in_place_is_the_same() -> Result<()> {
    let context = Context::cpu()?;
    let (rows, n) = (6, 40);
    let x: Vec<bf16> = whole_numbers(rows * n, 8);
    let r: Vec<bf16> = whole_numbers(rows * n, 9);
    let (mut y, mut sum) = (x.clone(), r.clone());
    Norm::rms(1e-6)
        .x(Tensor::new(&x, &[rows, n])?)
        .residual(Tensor::new(&r, &[rows, n])?)
        .y(TensorMut::new(&mut y, &[rows, n])?)
        .residual_out(TensorMut::new(&mut sum, &[rows, n])?)
        .run(&context)?;
    let (mut x, mut r) = (x, r);
    Norm::rms(1e-6)
        .x_in_place(TensorMut::new(&mut x, &[rows, n])?)
        .residual_in_place(TensorMut::new(&mut r, &[rows, n])?)
        .run(&context)?;
    assert_eq!((x, r), (y, sum));
    Ok(())
}

#[test]
fn a_norm_runs_again_and_moves() -> Result<()> {
    let context = Context::cpu()?;
    let mut x = [2f32, 2.0, 2.0, 2.0];
    let norm = Norm::rms(0.0).x_in_place(TensorMut::new(&mut x, &[1, 4])?);
    let mut moved = Box::new(norm);
    moved.run(&context)?;
    moved.run(&context)?;
    let mut back = *moved;
    back.run(&context)?;
    assert_eq!(x, [1.0; 4]);
    Ok(())
}

/// Columns of a wider buffer; what lies between stays.
#[test]
fn strides() -> Result<()> {
    let context = Context::cpu()?;
    let mut buffer = vec![7f32; 30];
    let columns = TensorMut::strided(&mut buffer, 3, &[3, 4], &[10, 1])?;
    assert_eq!(columns.strides(), Some(&[10, 1][..]));
    Norm::rms(0.0).x_in_place(columns).run(&context)?;
    for (i, v) in buffer.iter().enumerate() {
        let inside = (3..7).contains(&(i % 10));
        assert_eq!(*v, if inside { 1.0 } else { 7.0 }, "element {i}");
    }
    // The same by narrowing, the rows backwards, and every row a copy of one.
    let narrow = TensorMut::new(&mut buffer, &[3, 10])?
        .narrow(1, 3..7)?
        .narrow(0, 1..3)?;
    assert_eq!(
        (narrow.shape(), narrow.strides()),
        (&[2, 4][..], Some(&[10, 1][..]))
    );
    let x = [1f32, 3.0, 0.0, 0.0, 0.0, 2.0];
    let mut y = [0f32; 6];
    Norm::rms(0.0)
        .x(Tensor::strided(&x, 4, &[3, 2], &[-2, 1])?)
        .y(TensorMut::new(&mut y, &[3, 2])?)
        .run(&context)?;
    let root = 1.0 / 2f32.sqrt();
    assert_eq!(y[..2], [0.0, 2.0 * root]);
    assert!(y[2].is_nan(), "0 / 0");
    assert_eq!(y[4..], [1.0 / 5f32.sqrt(), 3.0 * (1.0 / 5f32.sqrt())]);
    Norm::rms(0.0)
        .x(Tensor::strided(&x, 0, &[3, 2], &[0, 1])?)
        .y(TensorMut::new(&mut y, &[3, 2])?)
        .run(&context)?;
    assert_eq!(y[..2], y[4..]);
    Ok(())
}

#[test]
fn weights_of_heads_and_bytes() -> Result<()> {
    let context = Context::cpu()?;
    let x = [3f32, 4.0, 0.0, 0.0, 4.0, 3.0, 0.0, 0.0];
    let weight = [1f32, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0];
    let (mut y, bytes): ([f32; 8], Vec<u8>) =
        ([0.0; 8], x.iter().flat_map(|v| v.to_ne_bytes()).collect());
    // Bytes need the alignment of what they are; these are copied to where it is right.
    let aligned: Vec<f32> = bytes
        .chunks(4)
        .map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    // SAFETY: floats are bytes.
    let raw = unsafe { std::slice::from_raw_parts(aligned.as_ptr().cast::<u8>(), bytes.len()) };
    Norm::rms(0.0)
        .x(Tensor::from_bytes(raw, fastnorm::DType::F32, &[1, 2, 4])?)
        .weight(Tensor::new(&weight, &[2, 4])?)
        .y(TensorMut::new(&mut y, &[1, 2, 4])?)
        .run(&context)?;
    assert_eq!(y, [1.2, 1.6, 0.0, 0.0, 3.2, 2.4, 0.0, 0.0]);
    Ok(())
}

#[test]
fn no_rows() -> Result<()> {
    let context = Context::cpu()?;
    let empty: [f32; 0] = [];
    let mut y: [f32; 0] = [];
    let mut norm = Norm::rms(1e-6)
        .x(Tensor::new(&empty, &[2, 0, 4])?)
        .y(TensorMut::new(&mut y, &[2, 0, 4])?);
    norm.run(&context)?;
    let info = norm.query(&context)?;
    assert_eq!((info.launches, info.kernel, info.bytes_read), (0, "", 0));
    Ok(())
}

#[test]
fn what_a_call_would_do() -> Result<()> {
    let context = Context::cpu()?;
    let (mut x, n) = (vec![1f32; 2048], 256);
    let norm = Norm::rms(1e-6).x_in_place(TensorMut::new(&mut x, &[8, n])?);
    norm.prepare(&context)?;
    let info = norm.query(&context)?;
    assert_eq!((info.launches, info.workspace_bytes), (1, 0));
    assert_eq!((info.bytes_read, info.bytes_written), (8192, 8192));
    let mut kernels = fastnorm::kernels();
    assert!(kernels.any(|kernel| kernel.name == info.kernel && kernel.family == "norm"));
    assert_eq!(
        format!("{norm:?}"),
        "Norm { kind: \"rms\", eps: 1e-6, \
         x: f32 [8, 256] on Device { device_type: CPU, id: 0 }, \
         y: f32 [8, 256] on Device { device_type: CPU, id: 0 }, .. }"
    );
    Ok(())
}

/// Query and key heads of one buffer, in one call and one by one; the value heads stay.
#[test]
fn heads_of_one_buffer() -> Result<()> {
    let (tokens, heads, query_heads, key_heads, size) = (5, 12, 8, 2, 64);
    let context = Context::cpu()?;
    let buffer: Vec<f32> = whole_numbers(tokens * heads * size, 10);
    let weights: Vec<f32> = whole_numbers(2 * size, 11);
    let (query_weight, key_weight) = weights.split_at(size);
    let (mut together, mut apart) = (buffer.clone(), buffer.clone());

    let all = TensorMut::new(&mut together, &[tokens, heads, size])?;
    let (query, rest) = all.split(1, query_heads)?;
    let (key, value) = rest.split(1, key_heads)?;
    assert_eq!(value.shape(), [5, 2, 64]);
    let mut parts = [
        Norm::rms(1e-6)
            .x_in_place(query)
            .weight(Tensor::new(query_weight, &[size])?),
        Norm::rms(1e-6)
            .x_in_place(key)
            .weight(Tensor::new(key_weight, &[size])?),
    ];
    let info = norm_many_query(&context, &parts)?;
    assert_eq!(
        info.bytes_written,
        (tokens * (query_heads + key_heads) * size * 4) as u64
    );
    norm_many_prepare(&context, &parts)?;
    norm_many(&context, &mut parts)?;

    for (from, count, weight) in [
        (0, query_heads, query_weight),
        (query_heads, key_heads, key_weight),
    ] {
        let part =
            TensorMut::new(&mut apart, &[tokens, heads, size])?.narrow(1, from..from + count)?;
        Norm::rms(1e-6)
            .x_in_place(part)
            .weight(Tensor::new(weight, &[size])?)
            .run(&context)?;
    }
    assert_eq!(together, apart);
    assert_ne!(together, buffer);
    for (i, (now, then)) in together.iter().zip(&buffer).enumerate() {
        assert!(
            i / size % heads < query_heads + key_heads || now == then,
            "element {i}"
        );
    }
    norm_many(&context, &mut [])?;
    Ok(())
}
