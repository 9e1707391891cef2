//! The gradient of one tensor of heads.

use std::marker::PhantomData;

use crate::slots::{flags, slots};
use crate::tensor::View;
use crate::{sys, Rounding, Tensor, TensorMut};

slots! {
    NormHeadsBackwardPart, fastnorm_norm_heads_backward_part, 32,
    |args, f| f.field("flags", &args.flags).field("eps", &args.eps);
    Dy dy, X x, Weight weight, Mean mean, Rstd rstd, Dx dx, Dweight dweight, Dbias dbias,
}

/// One part of [`NormHeadsBackward`](crate::NormHeadsBackward): dy of `[tokens, heads, d]` and what
/// the forward did to each of its rows of d columns. Every step is optional:
///
/// ```text
/// dv = rope of dy, turned back         rope; else dv = dy
/// dx = the norm's gradient of dv       rms or layer; else dx = dv
/// ```
///
/// T is the dtype of x, or of dx without a norm: f32, f16 or bf16, and alike for all parts. d is at
/// most 8192. Statistics are f32 of `[tokens, heads]`, or of `[tokens]` with
/// [`across_heads`](Self::across_heads). A part has an output.
#[must_use = "nothing happens until it runs"]
pub struct NormHeadsBackwardPart<'a> {
    args: sys::fastnorm_norm_heads_backward_part,
    views: [Option<View>; SLOTS],
    borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it holds tensors, which are Send. The pointers of `args` are set anew in every call.
unsafe impl Send for NormHeadsBackwardPart<'_> {}
// SAFETY: nothing but a query can be done with a shared one, which touches no tensor's memory.
unsafe impl Sync for NormHeadsBackwardPart<'_> {}

impl<'a> NormHeadsBackwardPart<'a> {
    /// A part that reads dy, of `[tokens, heads, d]` and T or f32, and copies until it is told to
    /// do more.
    pub fn new(dy: Tensor<'a>) -> Self {
        Self::of(dy.view)
    }

    /// dy and dx in one: the gradient of x replaces that of y.
    #[allow(clippy::needless_pass_by_value)] // the borrow moves in
    pub fn in_place(dy: TensorMut<'a>) -> Self {
        Self::of(dy.view).put(Slot::Dx, dy.view)
    }

    fn of(dy: View) -> Self {
        let part = Self {
            args: sys::fastnorm_norm_heads_backward_part::new(),
            views: [None; SLOTS],
            borrow: PhantomData,
        };
        part.put(Slot::Dy, dy)
    }

    fn norm(mut self, kind: sys::fastnorm_norm_kind, eps: f32, x: Tensor<'a>) -> Self {
        self.args.kind = kind;
        self.args.eps = eps;
        self.flag(sys::FASTNORM_NORM_HEADS_NORM, true)
            .put(Slot::X, x.view)
    }

    /// Of a norm by the root mean square. `eps` and `x`, of dy's shape, are the forward's.
    pub fn rms(self, eps: f32, x: Tensor<'a>) -> Self {
        self.norm(sys::FASTNORM_NORM_RMS, eps, x)
    }

    /// Of a norm by mean and variance. `eps` and `x`, of dy's shape, are the forward's.
    pub fn layer(self, eps: f32, x: Tensor<'a>) -> Self {
        self.norm(sys::FASTNORM_NORM_LAYER, eps, x)
    }

    /// The forward turned columns from `offset` on; -1: the last ones.
    pub fn rope(mut self, offset: i32) -> Self {
        self.args.rope_offset = offset;
        self.flag(sys::FASTNORM_NORM_HEADS_ROPE, true)
    }

    flags! {
        /// With rope: the forward's. Default: no.
        rope_interleaved: sys::FASTNORM_NORM_HEADS_ROPE_INTERLEAVED,

        /// With rope: the forward's, which turned back. Default: no.
        rope_inverse: sys::FASTNORM_NORM_HEADS_ROPE_INVERSE,

        /// With a norm: the forward's. Default: one statistic for each row.
        across_heads: sys::FASTNORM_NORM_HEADS_ACROSS_HEADS,
    }

    /// The forward's. Default: 0.
    pub fn weight_offset(mut self, offset: f32) -> Self {
        self.args.weight_offset = offset;
        self
    }

    /// The forward's. Default: once.
    pub fn rounding(mut self, rounding: Rounding) -> Self {
        self.args.rounding = rounding.raw();
        self
    }

    /// The forward's weight. Default: 1.
    pub fn weight(self, weight: Tensor<'a>) -> Self {
        self.put(Slot::Weight, weight.view)
    }

    /// The forward's means; layer only. Not set where [`rstd`](Self::rstd) is not.
    pub fn mean(self, mean: Tensor<'a>) -> Self {
        self.put(Slot::Mean, mean.view)
    }

    /// The forward's rstd. Default: the statistics are computed again from x.
    pub fn rstd(self, rstd: Tensor<'a>) -> Self {
        self.put(Slot::Rstd, rstd.view)
    }

    /// dy's shape, T: receives the gradient of x.
    #[allow(clippy::needless_pass_by_value)]
    pub fn dx(self, dx: TensorMut<'a>) -> Self {
        self.put(Slot::Dx, dx.view)
    }

    /// The weight's shape; f32 or its dtype: receives the weight's gradient.
    #[allow(clippy::needless_pass_by_value)]
    pub fn dweight(self, dweight: TensorMut<'a>) -> Self {
        self.put(Slot::Dweight, dweight.view)
    }

    /// As [`dweight`](Self::dweight), but the gradient is added to what is there: after the sum, in
    /// f32.
    #[allow(clippy::needless_pass_by_value)]
    pub fn accumulate_dweight(self, dweight: TensorMut<'a>) -> Self {
        self.flag(sys::FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT, true)
            .put(Slot::Dweight, dweight.view)
    }

    /// The shape of the forward's bias; f32, f16 or bf16: receives the bias's gradient.
    #[allow(clippy::needless_pass_by_value)]
    pub fn dbias(self, dbias: TensorMut<'a>) -> Self {
        self.put(Slot::Dbias, dbias.view)
    }

    /// As [`dbias`](Self::dbias), but the gradient is added to what is there: after the sum, in
    /// f32.
    #[allow(clippy::needless_pass_by_value)]
    pub fn accumulate_dbias(self, dbias: TensorMut<'a>) -> Self {
        self.flag(sys::FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS, true)
            .put(Slot::Dbias, dbias.view)
    }

    /// [`link`](Self::link), for the call that the part belongs to.
    pub(crate) fn linked(&mut self) -> *const sys::fastnorm_norm_heads_backward_part {
        self.link()
    }

    /// The same bits, to be linked where only a shared borrow is at hand. Never run.
    pub(crate) fn copied(&self) -> NormHeadsBackwardPart<'_> {
        NormHeadsBackwardPart {
            args: self.args,
            views: self.views,
            borrow: PhantomData,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every setter reaches its field, and no other.
    #[test]
    #[allow(clippy::float_cmp)]
    fn every_field() {
        let inputs = [0f32; 8];
        let mut outputs: Vec<Vec<f32>> = (9..=11).map(|n| vec![0.0; n]).collect();
        let mut outputs = outputs.iter_mut();
        // Told apart by their lengths: inputs 1 to 5, outputs 9 to 11.
        let input = |n: usize| Tensor::new(&inputs[..n], &[n]).unwrap();
        let mut output = || {
            let buffer = outputs.next().unwrap();
            let n = buffer.len();
            TensorMut::new(buffer, &[n]).unwrap()
        };
        let mut part = NormHeadsBackwardPart::new(input(1))
            .layer(0.5, input(2))
            .weight(input(3))
            .mean(input(4))
            .rstd(input(5))
            .weight_offset(1.0)
            .rounding(Rounding::EveryStep)
            .rope(-1)
            .rope_interleaved(true)
            .rope_inverse(true)
            .across_heads(true)
            .rope_inverse(false)
            .dx(output())
            .accumulate_dweight(output())
            .accumulate_dbias(output());
        // SAFETY: linked just now.
        let args = unsafe { *part.link() };
        // Named one by one: a field that the library gains does not compile until it is here.
        let sys::fastnorm_norm_heads_backward_part {
            struct_size,
            flags,
            kind,
            eps,
            weight_offset,
            rounding,
            rope_offset,
            dy,
            x,
            weight,
            mean,
            rstd,
            dx,
            dweight,
            dbias,
        } = args;
        assert_eq!(struct_size, size_of_val(&args));
        assert_eq!(
            flags,
            1 | 2 | 4 | 32 | 64 | 128,
            "rope_inverse was taken back"
        );
        assert_eq!((kind, eps), (sys::FASTNORM_NORM_LAYER, 0.5));
        assert_eq!((weight_offset, rope_offset), (1.0, -1));
        assert_eq!(rounding, sys::FASTNORM_ROUND_EVERY_STEP);
        let tensors = [dy, x, weight, mean, rstd, dx, dweight, dbias];
        // SAFETY: linked, to tensors of rank 1.
        let lengths = tensors.map(|t| unsafe { *(*t).shape });
        assert_eq!(lengths, [1, 2, 3, 4, 5, 9, 10, 11]);
        assert!(format!("{part:?}").contains("dbias"));
    }
}
