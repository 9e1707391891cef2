//! Calls of norms: dtypes, memory in place and with strides, queries, and several at once.

mod common;

use common::{values, whole_numbers, Float};
use fastnorm::{
    bf16, f16, norm_many, norm_many_prepare, norm_many_query, Context, Norm, Result, Tensor,
    TensorMut,
};

/// The row 3, 4, 0, 0 has an rms of 2.5, the row 2, 0 a mean and a deviation of 1.
fn by_hand<T: Float>() -> Result<()> {
    let context = Context::cpu()?;
    let numbers = |values: &[f64]| -> Vec<T> { values.iter().map(|v| T::of(*v)).collect() };
    let (x, weight) = (
        numbers(&[3.0, 4.0, 0.0, 0.0]),
        numbers(&[2.5, 5.0, 1.0, 1.0]),
    );
    let (mut y, mut rstd) = (numbers(&[9.0; 4]), [0f32]);
    Norm::rms(0.0)
        .x(Tensor::new(&x, &[1, 4])?)
        .weight(Tensor::new(&weight, &[4])?)
        .y(TensorMut::new(&mut y, &[1, 4])?)
        .rstd(TensorMut::new(&mut rstd, &[1])?)
        .run(&context)?;
    assert_eq!((values(&y), rstd), (vec![3.0, 8.0, 0.0, 0.0], [0.4]));
    let (x, bias, mut mean) = (numbers(&[2.0, 0.0]), numbers(&[0.5, 0.0]), [0f32]);
    Norm::layer(0.0)
        .x(Tensor::new(&x, &[1, 2])?)
        .bias(Tensor::new(&bias, &[2])?)
        .y(TensorMut::new(&mut y[..2], &[1, 2])?)
        .mean(TensorMut::new(&mut mean, &[1])?)
        .run(&context)?;
    assert_eq!((values(&y[..2]), mean), (vec![1.5, -1.0], [1.0]));
    Ok(())
}

#[test]
fn values_of_every_dtype() -> Result<()> {
    by_hand::<f32>()?;
    by_hand::<f16>()?;
    by_hand::<bf16>()
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
    // Views of the buffer by narrowing, with the rows backwards, and with every row a copy of one.
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
