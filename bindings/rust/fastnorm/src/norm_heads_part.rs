//! One tensor of heads and what is done to its rows.

use std::marker::PhantomData;

use crate::fields::NormHeadsPartViews;
use crate::tensor::View;
use crate::{sys, Quant, QuantDivision, QuantSource, Tensor, TensorMut};

/// One part of [`NormHeads`](crate::NormHeads): x of `[tokens, heads, d]` and what is done to each
/// of its rows of d columns. In this order, every step but the first optional:
///
/// ```text
/// v         = x
/// v         = norm(v)               rms or layer: as Norm of the same row
/// v         = v, rounded to T       rope_from_rounded
/// o         = rope(v)               rope; else o = v
/// y         = o, rounded to T
/// quantized = codes of o            quant
/// cache     = o, rounded to T, or codes of o
/// ```
///
/// T is x's dtype, f32, f16 or bf16, and alike for all parts. d is at most 8192. Statistics are f32
/// of `[tokens, heads]`, or of `[tokens]` with [`across_heads`](Self::across_heads). A part has an
/// output.
#[must_use = "nothing happens until it runs"]
pub struct NormHeadsPart<'a> {
    pub(crate) args: sys::fastnorm_norm_heads_part,
    pub(crate) views: NormHeadsPartViews,
    pub(crate) quant: Option<Quant<'a>>,
    pub(crate) cache_quant: Option<Quant<'a>>, // codes go to the cache
    pub(crate) borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it holds tensors, which are Send. The pointers of `args` are set anew in every call.
unsafe impl Send for NormHeadsPart<'_> {}
// SAFETY: nothing but a query can be done with a shared one, which touches no tensor's memory.
unsafe impl Sync for NormHeadsPart<'_> {}

impl<'a> NormHeadsPart<'a> {
    /// A part that reads x, of `[tokens, heads, d]`, and copies until it is told to do more.
    pub fn new(x: Tensor<'a>) -> Self {
        Self::of(x.view)
    }

    /// x and y in one: the results replace what is read.
    #[allow(clippy::needless_pass_by_value)] // the borrow moves in
    pub fn in_place(x: TensorMut<'a>) -> Self {
        Self::of(x.view).y(x)
    }

    fn of(x: View) -> Self {
        let part = Self {
            args: sys::fastnorm_norm_heads_part::new(),
            views: NormHeadsPartViews::new(),
            quant: None,
            cache_quant: None,
            borrow: PhantomData,
        };
        part.put_x(x)
    }

    fn norm(mut self, kind: sys::fastnorm_norm_kind, eps: f32) -> Self {
        self.args.kind = kind;
        self.args.eps = eps;
        self.flag(sys::FASTNORM_NORM_HEADS_NORM, true);
        self
    }

    /// Normalises by the root mean square. `eps` is finite and not negative.
    pub fn rms(self, eps: f32) -> Self {
        self.norm(sys::FASTNORM_NORM_RMS, eps)
    }

    /// Normalises by mean and (biased) variance. `eps` is finite and not negative.
    pub fn layer(self, eps: f32) -> Self {
        self.norm(sys::FASTNORM_NORM_LAYER, eps)
    }

    /// Turns columns from `offset` on; -1: the last ones.
    pub fn rope(mut self, offset: i32) -> Self {
        self.args.rope_offset = offset;
        self.flag(sys::FASTNORM_NORM_HEADS_ROPE, true);
        self
    }

    /// A cache of fp8 or i8 codes, with one scale of `[1]` f32, an input.
    #[allow(clippy::needless_pass_by_value)]
    pub fn cache_per_tensor(self, cache: TensorMut<'a>, scale: Tensor<'a>) -> Self {
        self.with_codes(|mut codes| {
            codes.args.scheme = sys::FASTNORM_QUANT_PER_TENSOR;
            codes.put_scale(scale.view)
        })
        .cache(cache)
    }

    /// A cache of fp8 or i8 codes, with a scale for each block of `block_size` columns, 64 or 128.
    /// `scale` receives them: `[pages, page, heads, blocks]` f32, with `pow2` also `F8E8M0` or u8.
    /// `pow2` rounds them up to a power of two.
    #[allow(clippy::needless_pass_by_value)]
    pub fn cache_per_block(
        self,
        block_size: usize,
        cache: TensorMut<'a>,
        scale: TensorMut<'a>,
        pow2: bool,
    ) -> Self {
        self.with_codes(|mut codes| {
            codes.args.scheme = sys::FASTNORM_QUANT_PER_BLOCK;
            codes.args.block_size = i32::try_from(block_size).unwrap_or(i32::MAX);
            codes.pow2(pow2).put_scale(scale.view)
        })
        .cache(cache)
    }

    /// What is quantised, for a cache of codes; the same as of [`quant`](Self::quant), where the
    /// part has both. Default: the unrounded result.
    pub fn cache_source(self, source: QuantSource) -> Self {
        self.with_codes(|codes| codes.source(source))
    }

    /// How codes are made of values and scales, for a cache of codes; the same as of
    /// [`quant`](Self::quant), where that has a scheme with a division. Default: times the
    /// reciprocal.
    pub fn cache_division(self, division: QuantDivision) -> Self {
        self.with_codes(|codes| codes.division(division))
    }

    /// The least magnitude that a scale of [`cache_per_block`](Self::cache_per_block) is made from.
    /// Default, and for 0: 1e-10.
    pub fn cache_amax_floor(self, floor: f32) -> Self {
        self.with_codes(|codes| codes.amax_floor(floor))
    }

    fn with_codes(mut self, change: impl FnOnce(Quant<'a>) -> Quant<'a>) -> Self {
        let codes = self.cache_quant.take().unwrap_or_else(Quant::none);
        self.cache_quant = Some(change(codes));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(tensor: *const sys::fastnorm_tensor) -> i64 {
        // SAFETY: linked, to a tensor of rank 1.
        unsafe { *(*tensor).shape }
    }

    /// Setters of one field are tested in fields.rs.
    #[test]
    #[allow(clippy::float_cmp)]
    fn setters_of_several_fields() {
        let mut buffers = [[0f32; 1], [0f32; 1]];
        let [x, cache] = &mut buffers;
        let mut scales = [0f32; 2];
        let mut part = NormHeadsPart::in_place(TensorMut::new(x, &[1]).unwrap())
            .layer(0.5)
            .rope(-1)
            .cache_per_block(
                128,
                TensorMut::new(cache, &[1]).unwrap(),
                TensorMut::new(&mut scales, &[2]).unwrap(),
                true,
            )
            .cache_source(QuantSource::Rounded)
            .cache_division(QuantDivision::Divide)
            .cache_amax_floor(0.5);
        // SAFETY: linked just now.
        let args = unsafe { *part.link() };
        assert_eq!(args.struct_size, size_of_val(&args));
        assert_eq!((args.kind, args.eps), (sys::FASTNORM_NORM_LAYER, 0.5));
        assert_eq!((args.flags, args.rope_offset), (1 | 2, -1));
        assert_eq!(
            (extent(args.x), extent(args.y), extent(args.cache)),
            (1, 1, 1)
        );
        assert!(args.quant.is_null());
        // SAFETY: linked just now.
        let codes = unsafe { *args.cache_quant };
        assert_eq!(codes.struct_size, size_of_val(&codes));
        assert_eq!(codes.scheme, sys::FASTNORM_QUANT_PER_BLOCK);
        assert_eq!((codes.block_size, codes.scale_pow2), (128, 1));
        assert_eq!((codes.source, codes.division), (1, 1));
        assert_eq!((codes.amax_floor, extent(codes.scale)), (0.5, 2));
        assert!(codes.quantized.is_null());
        let (mut cache, scale) = ([0f32; 1], [0f32; 3]);
        let mut part = NormHeadsPart::new(Tensor::new(&[0f32], &[1]).unwrap())
            .rms(0.25)
            .cache_per_tensor(
                TensorMut::new(&mut cache, &[1]).unwrap(),
                Tensor::new(&scale, &[3]).unwrap(),
            );
        // SAFETY: linked just now.
        let (args, codes) = unsafe { (*part.link(), *part.args.cache_quant) };
        assert_eq!((args.kind, args.eps, args.flags), (0, 0.25, 1));
        assert_eq!(codes.scheme, sys::FASTNORM_QUANT_PER_TENSOR);
        assert_eq!(extent(codes.scale), 3);
    }
}
