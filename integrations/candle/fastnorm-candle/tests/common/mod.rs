//! What the tests of all devices and the benchmark share: numbers, norms and gradients in double
//! precision, and the tests that are the same on every device.
#![allow(dead_code)] // each program uses a part

pub mod gradients;
pub mod outputs;

use candle_core::{DType, Device, Result, Tensor};

pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Numbers of mean `centre`, the same for the same seed.
pub fn numbers(
    device: &Device,
    seed: u64,
    shape: &[usize],
    centre: f64,
    dtype: DType,
) -> Result<Tensor> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let count = shape.iter().product();
    let numbers: Vec<f64> = (0..count)
        .map(|_| {
            // A sum of four is near enough to a normal distribution.
            let sum: f64 = (0..4)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
                })
                .sum();
            centre + sum * 3_f64.sqrt()
        })
        .collect();
    let numbers = Tensor::from_vec(numbers, shape, &Device::Cpu)?;
    numbers.to_dtype(dtype)?.to_device(device)
}

/// All elements in row-major order.
pub fn flat(x: &Tensor) -> Result<Vec<f64>> {
    x.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// The bits of all elements, by which NaN equals NaN.
pub fn bits(x: &Tensor) -> Result<Vec<u64>> {
    Ok(flat(x)?.into_iter().map(f64::to_bits).collect())
}

/// A norm in double precision: y of each row, and what its gradients are made of.
pub struct Reference {
    pub remove_mean: bool,
    pub eps: f64,
    pub n: usize,
    pub weight: Vec<f64>,
    pub bias: Vec<f64>,
}

pub struct Gradients {
    pub dx: Vec<f64>,
    pub dweight: Vec<f64>,
    pub dbias: Vec<f64>,
}

impl Reference {
    pub fn new(remove_mean: bool, eps: f64, weight: &Tensor, bias: Option<&Tensor>) -> Self {
        let weight = flat(weight).unwrap();
        let n = weight.len();
        Self {
            remove_mean,
            eps,
            n,
            weight,
            bias: bias.map_or(vec![0.0; n], |bias| flat(bias).unwrap()),
        }
    }

    /// The normalised row, and by what it was divided.
    fn normalized(&self, row: &[f64]) -> (Vec<f64>, f64) {
        let n = self.n as f64;
        let mean = if self.remove_mean {
            row.iter().sum::<f64>() / n
        } else {
            0.0
        };
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let deviation = (variance + self.eps).sqrt();
        let normalized = row.iter().map(|x| (x - mean) / deviation).collect();
        (normalized, deviation)
    }

    pub fn forward(&self, x: &Tensor) -> Vec<f64> {
        let mut y = Vec::new();
        for row in flat(x).unwrap().chunks(self.n) {
            let (normalized, _) = self.normalized(row);
            y.extend((0..self.n).map(|i| normalized[i] * self.weight[i] + self.bias[i]));
        }
        y
    }

    pub fn backward(&self, x: &Tensor, dy: &Tensor) -> Gradients {
        let (x, dy) = (flat(x).unwrap(), flat(dy).unwrap());
        let mut found = Gradients {
            dx: Vec::new(),
            dweight: vec![0.0; self.n],
            dbias: vec![0.0; self.n],
        };
        for (row, dy) in x.chunks(self.n).zip(dy.chunks(self.n)) {
            let (normalized, deviation) = self.normalized(row);
            let mean = |numbers: &dyn Fn(usize) -> f64| {
                (0..self.n).map(numbers).sum::<f64>() / self.n as f64
            };
            let e = |i: usize| dy[i] * self.weight[i];
            let along = mean(&|i| e(i) * normalized[i]);
            let level = if self.remove_mean { mean(&e) } else { 0.0 };
            for i in 0..self.n {
                let d = e(i) - level - normalized[i] * along;
                found.dx.push(d / deviation);
                found.dweight[i] += dy[i] * normalized[i];
                found.dbias[i] += dy[i];
            }
        }
        found
    }
}

/// Half a unit in the last place of 1, the most that one rounding moves a number near 1.
pub fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 2_f64.powi(-24),
        DType::F16 => 2_f64.powi(-11),
        DType::BF16 => 2_f64.powi(-8),
        _ => 2_f64.powi(-53),
    }
}

/// The greatest difference, and the root of the mean square, relative to that of `wanted`.
pub fn errors(found: &[f64], wanted: &[f64]) -> (f64, f64) {
    assert_eq!(found.len(), wanted.len());
    let size = wanted.iter().map(|w| w * w).sum::<f64>().sqrt();
    let size = if size == 0.0 { 1.0 } else { size };
    let differences = found.iter().zip(wanted).map(|(f, w)| (f - w).abs());
    let most = differences.clone().fold(
        0.0,
        |a: f64, b| {
            if b.is_nan() {
                f64::INFINITY
            } else {
                a.max(b)
            }
        },
    );
    let square = differences.map(|d| d * d).sum::<f64>();
    (most, square.sqrt() / size)
}
