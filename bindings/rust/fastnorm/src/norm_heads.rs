//! Norm, rope and the write to a paged cache of query, key and value heads.

use std::marker::PhantomData;

use crate::fields::NormHeadsViews;
use crate::norm::launch;
use crate::slots::{with_linked, PARTS};
use crate::status::check;
use crate::{sys, Context, Info, NormHeadsPart, Result, Stream, Tensor, Workspace};

/// What stands between the QKV projection and attention: the norm of query and key heads, the
/// rotary embedding (rope) and the write to a paged cache. A call has up to 8
/// [parts](NormHeadsPart) over the same tokens.
///
/// With R = `rope_dim` / 2, rope rotates pair j of a row's columns by `c = cos[row, j]` and
/// `s = sin[row, j]`:
///
/// ```text
/// o1 = v1 * c - v2 * s
/// o2 = v2 * c + v1 * s
/// ```
///
/// The row is `positions[t]` for token t, or t itself without positions. Token t goes to slot
/// `k = slots[t]` of the caches: row `k % page` of page `k / page`. A token whose slot is -1,
/// or that is behind the last slot, is padding: its positions are not looked at, and none of its
/// outputs is written, in any part.
///
/// Made once, it can [run](Self::run) many times.
///
/// ```
/// # use fastnorm::*;
/// // One token: two query heads, a key and a value head of 4 columns. The table is a quarter turn.
/// let mut qkv = [2f32, 2., 0., 0., 0., 0., 4., 4., 3., -3., 3., -3., 1., 2., 3., 4.];
/// let (mut keys, mut values) = ([0f32; 2 * 4], [0f32; 2 * 4]); // a page of two tokens
/// let (query, rest) = TensorMut::new(&mut qkv, &[1, 4, 4])?.split(1, 2)?;
/// let (key, value) = rest.split(1, 1)?;
/// NormHeads::new()
///     .rope(4, Tensor::new(&[0f32, 0.], &[1, 2])?, Tensor::new(&[1f32, 1.], &[1, 2])?)
///     .slots(Tensor::new(&[1i32], &[1])?)
///     .part(NormHeadsPart::in_place(query).rms(0.0).rope(0))
///     .part(
///         NormHeadsPart::new(key.as_tensor())
///             .rms(0.0)
///             .rope(0)
///             .cache(TensorMut::new(&mut keys, &[1, 2, 1, 4])?),
///     )
///     .part(
///         NormHeadsPart::new(value.as_tensor())
///             .cache(TensorMut::new(&mut values, &[1, 2, 1, 4])?),
///     )
///     .run(&Context::cpu()?)?;
/// assert!((qkv[2] - 2f32.sqrt()).abs() < 1e-6 && qkv[0].abs() < 1e-6);
/// assert_eq!(keys, [0., 0., 0., 0., -1., 1., 1., -1.]);
/// assert_eq!(values[4..], [1., 2., 3., 4.]);
/// # Ok::<(), Error>(())
/// ```
#[must_use = "nothing happens until it runs"]
pub struct NormHeads<'a> {
    pub(crate) args: sys::fastnorm_norm_heads_args,
    pub(crate) views: NormHeadsViews,
    pub(crate) parts: Vec<NormHeadsPart<'a>>,
    pub(crate) borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it holds tensors, which are Send. The pointers of `args` are set anew in every call.
unsafe impl Send for NormHeads<'_> {}
// SAFETY: a shared NormHeads can be asked what it would do, which touches no tensor's memory; to
// run it takes an exclusive borrow.
unsafe impl Sync for NormHeads<'_> {}

impl Default for NormHeads<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> NormHeads<'a> {
    /// A call without parts, which does nothing.
    pub fn new() -> Self {
        Self {
            args: sys::fastnorm_norm_heads_args::new(),
            views: NormHeadsViews::new(),
            parts: Vec::with_capacity(PARTS),
            borrow: PhantomData,
        }
    }

    /// One part more, of at most 8.
    pub fn part(mut self, part: NormHeadsPart<'a>) -> Self {
        self.parts.push(part);
        self
    }

    /// The tables of rope, which rotates `dim` columns, an even number. Each is `[P, R]` or
    /// `[P, 2 * R]`, or one such for each head; f32 or T. The library computes neither sines nor
    /// frequencies.
    pub fn rope(mut self, dim: usize, cos: Tensor<'a>, sin: Tensor<'a>) -> Self {
        self.args.rope_dim = i32::try_from(dim).unwrap_or(i32::MAX);
        self.put_cos(cos.view).put_sin(sin.view)
    }

    /// Pairs that take their row from each axis of the positions, of sum R: the first ones from
    /// axis 0, the next ones from axis 1, and so on. `interleaved`: axes alternate from pair to
    /// pair, as in Qwen3-VL.
    pub fn mrope(mut self, pairs: [usize; 4], interleaved: bool) -> Self {
        let pairs = pairs.map(|n| i32::try_from(n).unwrap_or(i32::MAX));
        [
            self.args.mrope_0,
            self.args.mrope_1,
            self.args.mrope_2,
            self.args.mrope_3,
        ] = pairs;
        self.flag(sys::FASTNORM_NORM_HEADS_MROPE_INTERLEAVED, interleaved);
        self
    }

    /// Says what a run would do. No tensor's memory is touched.
    ///
    /// # Errors
    /// As [`NormHeads::run`].
    pub fn query(&self, context: &Context) -> Result<Info> {
        let mut info = sys::fastnorm_info::new();
        self.with_copy(|args, parts, count| {
            // SAFETY: all is linked; `info` is writable and knows its size.
            unsafe {
                sys::fastnorm_norm_heads_query(context.as_ptr(), args, parts, count, &mut info)
            }
        })?;
        Ok(Info::from_raw(&info))
    }

    /// Loads the kernels of a run. After it, runs that use the same kernels neither allocate nor
    /// synchronise, and can be captured in a CUDA graph. Optional.
    ///
    /// # Errors
    /// As [`NormHeads::run`].
    pub fn prepare(&self, context: &Context) -> Result<()> {
        self.with_copy(|args, parts, count| {
            // SAFETY: all is linked.
            unsafe { sys::fastnorm_norm_heads_prepare(context.as_ptr(), args, parts, count) }
        })
    }

    /// Normalises, rotates and stores. On the CPU the work is done on return, and positions and
    /// slots are checked before anything is written.
    ///
    /// # Errors
    /// The text names the part, as `parts[i]`.
    /// - [`Status::ARGUMENT`](crate::Status::ARGUMENT): a part without an output; rope without
    ///   tables; a cache without slots; a field that nothing has a use for; a scalar out of range;
    ///   more than 8 parts; on the CPU also a position or slot out of range, and a stream
    /// - [`Status::SHAPE`](crate::Status::SHAPE): ranks or extents that do not fit
    /// - [`Status::DTYPE`](crate::Status::DTYPE): a dtype that the tensor's role does not allow
    /// - [`Status::LAYOUT`](crate::Status::LAYOUT): a last dimension that is not contiguous, a
    ///   misaligned address, overlap
    /// - [`Status::UNSUPPORTED`](crate::Status::UNSUPPORTED): rows of more than 8192 columns; an
    ///   option of [`Quant`](crate::Quant) that heads do not have
    /// - [`Status::DEVICE`](crate::Status::DEVICE): a tensor on another device; an error of CUDA
    ///
    /// # Panics
    /// Only if a callback of the context does.
    pub fn run(&mut self, context: &Context) -> Result<()> {
        self.run_with(context, Stream::DEFAULT, Workspace::NONE)
    }

    /// [Runs](Self::run) on a CUDA stream with a workspace. On a GPU positions and slots must be
    /// valid; they are not checked there.
    ///
    /// # Errors
    /// As [`NormHeads::run`].
    pub fn run_with(
        &mut self,
        context: &Context,
        stream: Stream,
        workspace: Workspace,
    ) -> Result<()> {
        let args = self.link();
        with_linked(&mut self.parts, NormHeadsPart::link, |parts, count| {
            let query = || {
                let mut info = sys::fastnorm_info::new();
                // SAFETY: the parts are linked until `with_linked` returns.
                check(unsafe {
                    sys::fastnorm_norm_heads_query(context.as_ptr(), args, parts, count, &mut info)
                })?;
                Ok(Info::from_raw(&info))
            };
            launch(context, workspace, query, |workspace| {
                // SAFETY: all is linked. What it points to is borrowed, exclusively where it is
                // written, or promised by who made the tensor, the stream or the workspace.
                unsafe {
                    sys::fastnorm_norm_heads(
                        context.as_ptr(),
                        args,
                        parts,
                        count,
                        workspace.address,
                        workspace.bytes,
                        stream.0,
                    )
                }
            })
        })
    }

    pub(crate) fn copied_parts(&self) -> Vec<NormHeadsPart<'_>> {
        self.parts.iter().map(NormHeadsPart::copied).collect()
    }

    /// Hands a copy of the arguments, linked, to `call`, which does not run it.
    fn with_copy(
        &self,
        call: impl FnOnce(
            *const sys::fastnorm_norm_heads_args,
            *const *const sys::fastnorm_norm_heads_part,
            i32,
        ) -> sys::fastnorm_status,
    ) -> Result<()> {
        let mut copy = self.copied();
        let args = copy.link();
        check(with_linked(
            &mut copy.parts,
            NormHeadsPart::link,
            |parts, count| call(args, parts, count),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Setters of one field are tested in fields.rs.
    #[test]
    fn setters_of_several_fields() {
        let inputs = [0f32; 2];
        let input = |n: usize| Tensor::new(&inputs[..n], &[n]).unwrap();
        let mut call = NormHeads::new()
            .rope(6, input(1), input(2))
            .mrope([7, 8, 9, 10], true);
        // SAFETY: linked just now.
        let args = unsafe { *call.link() };
        assert_eq!(args.struct_size, size_of_val(&args));
        assert_eq!(args.flags, sys::FASTNORM_NORM_HEADS_MROPE_INTERLEAVED);
        assert_eq!(args.rope_dim, 6);
        let mrope = [args.mrope_0, args.mrope_1, args.mrope_2, args.mrope_3];
        assert_eq!(mrope, [7, 8, 9, 10]);
        // SAFETY: linked, to tensors of rank 1.
        let lengths = [args.cos, args.sin].map(|t| unsafe { *(*t).shape });
        assert_eq!(lengths, [1, 2]);
        assert_eq!(call.mrope([1; 4], false).args.flags, 0);
    }
}
