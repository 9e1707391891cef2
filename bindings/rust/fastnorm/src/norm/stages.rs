//! The stages of a norm: a gate, a norm of the branch, groups, split statistics, a modulation.

use super::Norm;
use crate::sys;

/// # Stages
///
/// Each is optional, and goes with all else. u is x where nothing comes before:
///
/// ```text
/// u = x * act(gate)                  gate_position BeforeNorm
/// u = norm(u)                        branch_rms, branch_layer
/// u = u, rounded to T                branch_rounded
/// k = act(residual_gate + table)     residual_gate, residual_gate_table, residual_gate_act
/// s = u * k * alpha + residual       alpha
/// s = s * sum_scale                  sum_scale
/// z = s normalised                   group_size: each group by itself
/// z = z * (1 + scale) + shift        modulation_scale, modulation_shift, their tables
/// z = z * act(gate)                  gate_position AfterNorm
/// z = activation(z)                  activation
/// y = z, rounded to T
/// ```
///
/// A GPU has no stages in this version:
/// [`Status::UNSUPPORTED`](crate::Status::UNSUPPORTED).
///
/// A gate:
/// ```
/// # use fastnorm::*;
/// let (x, gate) = ([3f32, 4., 0., 0.], [0f32, 200., 1., 1.]);
/// let mut y = [0f32; 4];
/// Norm::rms(0.0)
///     .x(Tensor::new(&x, &[1, 4])?)
///     .gate(Tensor::new(&gate, &[1, 4])?)
///     .gate_act(Activation::Sigmoid)
///     .y(TensorMut::new(&mut y, &[1, 4])?)
///     .run(&Context::cpu()?)?;
/// assert_eq!(y, [0.6, 1.6, 0., 0.]); // a sigmoid of 1/2, and one of 1
/// # Ok::<(), Error>(())
/// ```
/// A statistic over several devices:
/// ```
/// # use fastnorm::*;
/// let context = Context::cpu()?;
/// let halves = [[3f32, 4.], [0., 0.]]; // of one row, on two devices
/// let (mut sums, mut y) = ([[0f32]; 2], [[0f32; 2]; 2]);
/// for (x, sum) in halves.iter().zip(&mut sums) {
///     Norm::rms(0.0)
///         .x(Tensor::new(x, &[1, 2])?)
///         .sumsq(TensorMut::new(sum, &[1])?)
///         .run(&context)?;
/// }
/// let rstd = [1. / ((sums[0][0] + sums[1][0]) / 4.).sqrt()];
/// for (x, y) in halves.iter().zip(&mut y) {
///     Norm::rms(0.0)
///         .x(Tensor::new(x, &[1, 2])?)
///         .rstd_in(Tensor::new(&rstd, &[1])?)
///         .y(TensorMut::new(y, &[1, 2])?)
///         .run(&context)?;
/// }
/// assert_eq!(y, [[3. * rstd[0], 4. * rstd[0]], [0., 0.]]);
/// # Ok::<(), Error>(())
/// ```
/// A gated residual, then a norm with scale and shift, as in a diffusion transformer:
/// ```
/// # use fastnorm::*;
/// let (x, mut stream) = ([6f32, 8., 1., 1.], [0f32, 0., -0.5, -0.5]);
/// let (gate, scale, shift) = ([0.5f32], [1f32, 0., 0., 0.], [0f32, 0., 7., 0.]);
/// let mut y = [0f32; 4];
/// Norm::rms(0.0)
///     .x(Tensor::new(&x, &[1, 4])?)
///     .residual_in_place(TensorMut::new(&mut stream, &[1, 4])?) // 3, 4, 0, 0
///     .residual_gate(Tensor::new(&gate, &[1])?)
///     .modulation_scale(Tensor::new(&scale, &[4])?)
///     .modulation_shift(Tensor::new(&shift, &[4])?)
///     .y(TensorMut::new(&mut y, &[1, 4])?)
///     .run(&Context::cpu()?)?;
/// assert_eq!(stream, [3., 4., 0., 0.]);
/// assert_eq!(y, [2.4, 1.6, 7., 0.]);
/// # Ok::<(), Error>(())
/// ```
impl Norm<'_> {
    fn branch(mut self, kind: sys::fastnorm_norm_kind, eps: f32) -> Self {
        self.args.branch_norm = 1;
        self.args.branch_kind = kind;
        self.args.branch_eps = eps;
        self
    }

    /// Normalises x by its root mean square before the residual is added, over all n columns.
    /// `eps` is finite and not negative. Default: the branch has no norm.
    ///
    /// ```
    /// # use fastnorm::*;
    /// // As in Gemma: a norm of the branch, the sum, and the next block's norm.
    /// let (x, mut stream) = ([3f32, 4., 0., 0.], [-0.2f32, -1.6, 1., 1.]);
    /// let mut y = [0f32; 4];
    /// Norm::rms(0.0)
    ///     .x(Tensor::new(&x, &[1, 4])?)
    ///     .branch_rms(0.0) // 1.2, 1.6, 0, 0
    ///     .residual_in_place(TensorMut::new(&mut stream, &[1, 4])?)
    ///     .y(TensorMut::new(&mut y, &[1, 4])?)
    ///     .run(&Context::cpu()?)?;
    /// assert!((stream[0] - 1.).abs() < 1e-6 && stream[1].abs() < 1e-6);
    /// assert!((y[3] - 2. / 3f32.sqrt()).abs() < 1e-6);
    /// # Ok::<(), Error>(())
    /// ```
    #[inline]
    pub fn branch_rms(self, eps: f32) -> Self {
        self.branch(sys::FASTNORM_NORM_RMS, eps)
    }

    /// As [`branch_rms`](Self::branch_rms), by mean and (biased) variance.
    #[inline]
    pub fn branch_layer(self, eps: f32) -> Self {
        self.branch(sys::FASTNORM_NORM_LAYER, eps)
    }
}
