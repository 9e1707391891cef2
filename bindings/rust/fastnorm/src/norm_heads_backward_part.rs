//! The gradient of one tensor of heads.

use std::marker::PhantomData;

use crate::fields::NormHeadsBackwardPartViews;
use crate::tensor::View;
use crate::{sys, Tensor, TensorMut};

/// One part of [`NormHeadsBackward`](crate::NormHeadsBackward): dy of `[tokens, heads, d]` and what
/// the forward did to each of its rows of d columns. Every step is optional:
///
/// ```text
/// dv = rope of dy, rotated back        rope; else dv = dy
/// dx = the norm's gradient of dv       rms or layer; else dx = dv
/// ```
///
/// T is the dtype of x, or of dx without a norm: f32, f16 or bf16, and alike for all parts. d is at
/// most 8192. Statistics are f32 of `[tokens, heads]`, or of `[tokens]` with
/// [`across_heads`](Self::across_heads). A part has an output.
#[must_use = "nothing happens until it runs"]
pub struct NormHeadsBackwardPart<'a> {
    pub(crate) args: sys::fastnorm_norm_heads_backward_part,
    pub(crate) views: NormHeadsBackwardPartViews,
    pub(crate) borrow: PhantomData<&'a mut [u8]>,
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
        Self::of(dy.view).dx(dy)
    }

    fn of(dy: View) -> Self {
        let part = Self {
            args: sys::fastnorm_norm_heads_backward_part::new(),
            views: NormHeadsBackwardPartViews::new(),
            borrow: PhantomData,
        };
        part.put_dy(dy)
    }

    fn norm(mut self, kind: sys::fastnorm_norm_kind, eps: f32, x: Tensor<'a>) -> Self {
        self.args.kind = kind;
        self.args.eps = eps;
        self.flag(sys::FASTNORM_NORM_HEADS_NORM, true);
        self.put_x(x.view)
    }

    /// The gradient of a norm by the root mean square. `eps` and `x`, of dy's shape, are those of
    /// the forward.
    pub fn rms(self, eps: f32, x: Tensor<'a>) -> Self {
        self.norm(sys::FASTNORM_NORM_RMS, eps, x)
    }

    /// The gradient of a norm by mean and variance. `eps` and `x`, of dy's shape, are those of the
    /// forward.
    pub fn layer(self, eps: f32, x: Tensor<'a>) -> Self {
        self.norm(sys::FASTNORM_NORM_LAYER, eps, x)
    }

    /// The forward rotated columns from `offset` on; -1: the last ones.
    pub fn rope(mut self, offset: i32) -> Self {
        self.args.rope_offset = offset;
        self.flag(sys::FASTNORM_NORM_HEADS_ROPE, true);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Setters of one field are tested in fields.rs.
    #[test]
    #[allow(clippy::float_cmp)]
    fn setters_of_several_fields() {
        let (mut dy, x) = ([0f32; 1], [0f32; 2]);
        let x = || Tensor::new(&x, &[2]).unwrap();
        let mut part = NormHeadsBackwardPart::in_place(TensorMut::new(&mut dy, &[1]).unwrap())
            .layer(0.5, x())
            .rope(-1);
        // SAFETY: linked just now.
        let args = unsafe { *part.link() };
        assert_eq!(args.struct_size, size_of_val(&args));
        assert_eq!((args.kind, args.eps), (sys::FASTNORM_NORM_LAYER, 0.5));
        assert_eq!((args.flags, args.rope_offset), (1 | 2, -1));
        // SAFETY: linked, to tensors of rank 1.
        let lengths = [args.dy, args.dx, args.x].map(|t| unsafe { *(*t).shape });
        assert_eq!(lengths, [1, 1, 2]);
        let args = NormHeadsBackwardPart::new(x()).rms(0.25, x()).args;
        assert_eq!((args.kind, args.eps, args.flags), (0, 0.25, 1));
    }
}
