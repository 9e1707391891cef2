//! One tensor of heads and what is done to its rows.

use std::marker::PhantomData;

use crate::slots::{flags, slots};
use crate::tensor::View;
use crate::{sys, Quant, QuantDivision, QuantSource, Rounding};
use crate::{Tensor, TensorMut};

/// Where rope rounds to x's dtype on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RopeRounding {
    /// Only when the result is stored: `FlashInfer`, vLLM, `SGLang`.
    #[default]
    Once,
    /// Every product, too: what a 16-bit eager chain does.
    EveryStep,
}

slots! {
    NormHeadsPart, fastnorm_norm_heads_part, 88,
    |args, f| f.field("flags", &args.flags).field("eps", &args.eps);
    X x, Weight weight, Bias bias, Y y, Mean mean, Rstd rstd, MeanIn mean_in, RstdIn rstd_in,
    Sumsq sumsq, GlobalScale global_scale, Quantized quantized, Scale scale, Amax amax, Cache cache,
    CacheScale cache_scale, ClampScale clamp_scale,
}

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
    args: sys::fastnorm_norm_heads_part,
    views: [Option<View>; SLOTS],
    borrow: PhantomData<&'a mut [u8]>,
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
        Self::of(x.view).put(Slot::Y, x.view)
    }

    fn of(x: View) -> Self {
        let part = Self {
            args: sys::fastnorm_norm_heads_part::new(),
            views: [None; SLOTS],
            borrow: PhantomData,
        };
        part.put(Slot::X, x)
    }

    fn norm(mut self, kind: sys::fastnorm_norm_kind, eps: f32) -> Self {
        self.args.kind = kind;
        self.args.eps = eps;
        self.flag(sys::FASTNORM_NORM_HEADS_NORM, true)
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
        self.flag(sys::FASTNORM_NORM_HEADS_ROPE, true)
    }

    flags! {
        /// With rope: pairs are neighbours, as in GPT-J. Default: half a window apart, as in NeoX
        /// and Llama.
        rope_interleaved: sys::FASTNORM_NORM_HEADS_ROPE_INTERLEAVED,

        /// With rope: turn back. Default: no.
        rope_inverse: sys::FASTNORM_NORM_HEADS_ROPE_INVERSE,

        /// With rope: of the norm rounded to T, as by two separate operations. Default: no.
        rope_from_rounded: sys::FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED,

        /// With a norm: one statistic for all heads of a token. Default: one for each row.
        across_heads: sys::FASTNORM_NORM_HEADS_ACROSS_HEADS,
    }

    /// Where rope rounds on its way. Default: once, when the result is stored.
    pub fn rope_rounding(mut self, rounding: RopeRounding) -> Self {
        self.args.rope_rounding = match rounding {
            RopeRounding::Once => sys::FASTNORM_ROPE_ONCE,
            RopeRounding::EveryStep => sys::FASTNORM_ROPE_EVERY_STEP,
        };
        self
    }

    /// Added to the weight in f32: 1 for Gemma. 0 without a weight. Default: 0.
    pub fn weight_offset(mut self, offset: f32) -> Self {
        self.args.weight_offset = offset;
        self
    }

    /// Where the norm rounds on its way. Default: once.
    pub fn rounding(mut self, rounding: Rounding) -> Self {
        self.args.rounding = rounding.raw();
        self
    }

    /// `[d]` or `[heads, d]`; f32, f16 or bf16. Default: 1.
    pub fn weight(self, weight: Tensor<'a>) -> Self {
        self.put(Slot::Weight, weight.view)
    }

    /// As the weight. Default: 0.
    pub fn bias(self, bias: Tensor<'a>) -> Self {
        self.put(Slot::Bias, bias.view)
    }

    /// x's shape, T or f32: the result.
    #[allow(clippy::needless_pass_by_value)]
    pub fn y(self, y: TensorMut<'a>) -> Self {
        self.put(Slot::Y, y.view)
    }

    /// Receives the means; layer only.
    #[allow(clippy::needless_pass_by_value)]
    pub fn mean(self, mean: TensorMut<'a>) -> Self {
        self.put(Slot::Mean, mean.view)
    }

    /// Receives the rstd.
    #[allow(clippy::needless_pass_by_value)]
    pub fn rstd(self, rstd: TensorMut<'a>) -> Self {
        self.put(Slot::Rstd, rstd.view)
    }

    /// The means to use, with [`rstd_in`](Self::rstd_in); layer only.
    pub fn mean_in(self, mean: Tensor<'a>) -> Self {
        self.put(Slot::MeanIn, mean.view)
    }

    /// The rstd to use. Default: it is computed.
    pub fn rstd_in(self, rstd: Tensor<'a>) -> Self {
        self.put(Slot::RstdIn, rstd.view)
    }

    /// Receives the sums of squares. Layer: with a last extent of 2, the mean and the sum of
    /// squares of x - mean.
    #[allow(clippy::needless_pass_by_value)]
    pub fn sumsq(self, sumsq: TensorMut<'a>) -> Self {
        self.put(Slot::Sumsq, sumsq.view)
    }

    /// A quantised output, beside y or alone. Rows are tokens * heads. Its source, its
    /// [`division`](Quant::division) and its `amax_floor` are those of a cache of codes, too.
    #[allow(clippy::needless_pass_by_value)]
    pub fn quant(mut self, quant: Quant<'a>) -> Self {
        // Named one by one: a field that Quant gains does not compile until it is here.
        let Quant {
            scheme,
            block_size,
            source,
            layout,
            pow2,
            amax_floor,
            clamp,
            division,
            quantized,
            scale,
            global_scale,
            amax,
            clamp_scale,
            ..
        } = quant;
        self.args.quant_scheme = scheme;
        self.args.quant_block_size = block_size;
        self.args.scale_layout = layout.raw();
        self.args.scale_pow2 = i32::from(pow2);
        self.args.clamp = clamp;
        self = self
            .quant_source(source)
            .quant_division(division)
            .amax_floor(amax_floor)
            .put(Slot::Quantized, quantized)
            .put(Slot::Scale, scale);
        self.views[Slot::GlobalScale as usize] = global_scale;
        self.views[Slot::Amax as usize] = amax;
        self.views[Slot::ClampScale as usize] = clamp_scale;
        self
    }

    /// What is quantised, for a cache of codes. Default: the unrounded result.
    pub fn quant_source(mut self, source: QuantSource) -> Self {
        self.args.quant_source = source.raw();
        self
    }

    /// How codes are made of values and scales, for a cache of codes. Default: times the
    /// reciprocal.
    pub fn quant_division(mut self, division: QuantDivision) -> Self {
        self.args.quant_division = division.raw();
        self
    }

    /// The least magnitude that a dynamic scale of the cache is made from. Default, and for 0:
    /// 1e-10.
    pub fn amax_floor(mut self, floor: f32) -> Self {
        self.args.amax_floor = floor;
        self
    }

    /// `[pages, page, heads, d]` of T with any strides: the cache.
    #[allow(clippy::needless_pass_by_value)]
    pub fn cache(self, cache: TensorMut<'a>) -> Self {
        self.put(Slot::Cache, cache.view)
    }

    /// A cache of fp8 or i8 codes, with one scale of `[1]` f32, an input.
    #[allow(clippy::needless_pass_by_value)]
    pub fn cache_per_tensor(mut self, cache: TensorMut<'a>, scale: Tensor<'a>) -> Self {
        self.args.cache_scheme = sys::FASTNORM_QUANT_PER_TENSOR;
        self.put(Slot::Cache, cache.view)
            .put(Slot::CacheScale, scale.view)
    }

    /// A cache of fp8 or i8 codes, with a scale for each block of `block_size` columns, 64 or 128.
    /// `scale` receives them: `[pages, page, heads, blocks]` f32, with `pow2` also `F8E8M0` or u8.
    /// `pow2` rounds them up to a power of two.
    #[allow(clippy::needless_pass_by_value)]
    pub fn cache_per_block(
        mut self,
        block_size: usize,
        cache: TensorMut<'a>,
        scale: TensorMut<'a>,
        pow2: bool,
    ) -> Self {
        self.args.cache_scheme = sys::FASTNORM_QUANT_PER_BLOCK;
        self.args.cache_block_size = i32::try_from(block_size).unwrap_or(i32::MAX);
        self.args.cache_pow2 = i32::from(pow2);
        self.put(Slot::Cache, cache.view)
            .put(Slot::CacheScale, scale.view)
    }

    /// [`link`](Self::link), for the call that the part belongs to.
    pub(crate) fn linked(&mut self) -> *const sys::fastnorm_norm_heads_part {
        self.link()
    }

    /// The same bits, to be linked where only a shared borrow is at hand. Never run.
    pub(crate) fn copied(&self) -> NormHeadsPart<'_> {
        NormHeadsPart {
            args: self.args,
            views: self.views,
            borrow: PhantomData,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScaleLayout;

    /// Every setter reaches its field, and no other.
    #[test]
    #[allow(clippy::float_cmp, clippy::too_many_lines)] // the list of fields is long
    fn every_field() {
        let inputs = [0f32; 8];
        let mut outputs: Vec<Vec<f32>> = (9..=17).map(|n| vec![0.0; n]).collect();
        let mut outputs = outputs.iter_mut();
        // Told apart by their lengths: inputs 1 to 7, outputs 9 to 17.
        let input = |n: usize| Tensor::new(&inputs[..n], &[n]).unwrap();
        let mut output = || {
            let buffer = outputs.next().unwrap();
            let n = buffer.len();
            TensorMut::new(buffer, &[n]).unwrap()
        };
        let (y, mean, rstd, sumsq) = (output(), output(), output(), output());
        let quant = Quant::per_block(64, output(), output())
            .global_scale(input(6))
            .clamp_scale(input(7))
            .amax(output())
            .division(QuantDivision::Divide)
            .source(QuantSource::Rounded)
            .layout(ScaleLayout::ColumnMajor)
            .pow2(true)
            .amax_floor(0.25)
            .clamp(3.0);
        let mut part = NormHeadsPart::new(input(1))
            .layer(0.5)
            .weight_offset(1.0)
            .rounding(Rounding::EveryStep)
            .rope(-1)
            .rope_interleaved(true)
            .rope_inverse(true)
            .rope_from_rounded(true)
            .rope_rounding(RopeRounding::EveryStep)
            .across_heads(true)
            .rope_inverse(false)
            .weight(input(2))
            .bias(input(3))
            .y(y)
            .mean(mean)
            .rstd(rstd)
            .mean_in(input(4))
            .rstd_in(input(5))
            .sumsq(sumsq)
            .quant(quant)
            .cache_per_block(128, output(), output(), true);
        // SAFETY: linked just now.
        let args = unsafe { *part.link() };
        // Named one by one: a field that the library gains does not compile until it is here.
        let sys::fastnorm_norm_heads_part {
            struct_size,
            flags,
            kind,
            eps,
            weight_offset,
            rounding,
            rope_rounding,
            rope_offset,
            reserved,
            x,
            weight,
            bias,
            y,
            mean,
            rstd,
            mean_in,
            rstd_in,
            sumsq,
            quant_scheme,
            quant_block_size,
            quant_source,
            scale_layout,
            scale_pow2,
            amax_floor,
            clamp,
            cache_scheme,
            cache_block_size,
            cache_pow2,
            global_scale,
            quantized,
            scale,
            amax,
            cache,
            cache_scale,
            quant_division,
            reserved_2,
            clamp_scale,
        } = args;
        assert_eq!(struct_size, size_of_val(&args));
        assert_eq!(
            flags,
            1 | 2 | 4 | 16 | 32,
            "rope_inverse was taken back, of 63"
        );
        assert_eq!((kind, eps), (sys::FASTNORM_NORM_LAYER, 0.5));
        assert_eq!((weight_offset, rope_offset, reserved), (1.0, -1, 0));
        assert_eq!(rounding, sys::FASTNORM_ROUND_EVERY_STEP);
        assert_eq!(rope_rounding, sys::FASTNORM_ROPE_EVERY_STEP);
        assert_eq!(
            (quant_scheme, quant_block_size, quant_source),
            (
                sys::FASTNORM_QUANT_PER_BLOCK,
                64,
                sys::FASTNORM_QUANT_FROM_ROUNDED
            )
        );
        assert_eq!(scale_layout, sys::FASTNORM_SCALE_COLUMN_MAJOR);
        assert_eq!((scale_pow2, amax_floor, clamp), (1, 0.25, 3.0));
        assert_eq!(cache_scheme, sys::FASTNORM_QUANT_PER_BLOCK);
        assert_eq!((cache_block_size, cache_pow2), (128, 1));
        assert_eq!(
            (quant_division, reserved_2),
            (sys::FASTNORM_QUANT_DIVIDE, 0)
        );
        let tensors = [
            x,
            weight,
            bias,
            mean_in,
            rstd_in,
            global_scale,
            clamp_scale,
            y,
            mean,
            rstd,
            sumsq,
            quantized,
            scale,
            amax,
            cache,
            cache_scale,
        ];
        // SAFETY: linked, to tensors of rank 1.
        let lengths = tensors.map(|t| unsafe { *(*t).shape });
        assert_eq!(
            lengths,
            [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17]
        );
        assert!(format!("{part:?}").contains("cache_scale"));
    }
}
