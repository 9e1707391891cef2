//! What the tests share: numbers, and the formula of the norm in double precision.
#![allow(dead_code, missing_docs)]

use fastnorm::{bf16, f16, Element};

/// A floating-point element.
pub trait Float: Element + PartialEq + std::fmt::Debug + Default {
    fn of(value: f64) -> Self;
    fn value(self) -> f64;
}

impl Float for f32 {
    fn of(value: f64) -> Self {
        value as f32
    }
    fn value(self) -> f64 {
        f64::from(self)
    }
}

impl Float for f16 {
    fn of(value: f64) -> Self {
        f16::from_f64(value)
    }
    fn value(self) -> f64 {
        self.to_f64()
    }
}

impl Float for bf16 {
    fn of(value: f64) -> Self {
        bf16::from_f64(value)
    }
    fn value(self) -> f64 {
        self.to_f64()
    }
}

/// Small whole numbers: their sums and squares are exact in single precision, so the order in which
/// a kernel adds does not count.
pub fn whole_numbers<T: Float>(count: usize, seed: u64) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        T::of((state % 17) as f64 - 8.0)
    };
    (0..count).map(|_| next()).collect()
}

/// Rounded to single precision.
fn single(value: f64) -> f64 {
    f64::from(value as f32)
}

/// What one row is normalised with.
#[derive(Clone, Copy)]
pub struct Formula<'a> {
    pub layer: bool,
    pub eps: f64,
    pub weight: Option<&'a [f64]>,
    pub weight_offset: f64,
    pub bias: Option<&'a [f64]>,
    pub rounded_before_weight: bool,
    pub weight_first: bool,
}

impl Default for Formula<'_> {
    fn default() -> Self {
        Self {
            layer: false,
            eps: 0.0,
            weight: None,
            weight_offset: 0.0,
            bias: None,
            rounded_before_weight: false,
            weight_first: false,
        }
    }
}

/// y, mean, rstd of a row, in double precision with the roundings that the headers name, and no
/// others.
pub fn reference<T: Float>(row: &[f64], formula: &Formula<'_>) -> (Vec<T>, f64, f64) {
    let one_nth = single(1.0 / row.len() as f64);
    let mean = if formula.layer {
        single(row.iter().sum::<f64>() * one_nth)
    } else {
        0.0
    };
    let squares: f64 = row.iter().map(|v| single(v - mean).powi(2)).sum();
    let variance = single(squares * one_nth);
    let rstd = single(1.0 / single(single(variance + formula.eps).sqrt()));
    let y = row.iter().enumerate().map(|(i, v)| {
        let factor = if formula.weight_first { 1.0 } else { rstd };
        let mut t = single(single(v - mean) * factor);
        if formula.rounded_before_weight {
            t = T::of(t).value();
        }
        let mut weight = formula
            .weight
            .map_or(1.0, |w| single(w[i] + formula.weight_offset));
        if formula.weight_first {
            weight = single(rstd * weight);
        }
        // The bias enters with the product, in one rounding.
        t = match formula.bias {
            Some(bias) => f64::from((t as f32).mul_add(weight as f32, bias[i] as f32)),
            None => single(t * weight),
        };
        T::of(t)
    });
    (y.collect(), mean, rstd)
}

pub fn values<T: Float>(numbers: &[T]) -> Vec<f64> {
    numbers.iter().map(|v| v.value()).collect()
}

/// Bytes of memory that the process has, measured.
pub fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = statm
        .split(' ')
        .nth(1)
        .and_then(|p| p.parse().ok())
        .expect("a number");
    pages * 4096
}
