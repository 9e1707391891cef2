//! Attention of new tokens over a paged cache of latents.

use std::ffi::{c_void, CString};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use crate::fields::MlaDecodeViews;
use crate::norm::launch;
use crate::status::check;
use crate::{
    static_text, sys, Context, Info, LseBase, Result, Stream, Tensor, TensorMut, Workspace,
};

/// Attention of new tokens over a paged cache of latents: multi-head latent attention (MLA) in its
/// absorbed form.
///
/// There are B requests. Request b has s new tokens and a cache of L = `kv_len[b]` tokens, the new
/// ones among them. N is the number of new tokens of all requests, H the number of heads. For new
/// token i of its request, head h and cached token j:
///
/// ```text
/// score[j]  = sm_scale * (q_nope[i,h] . ckv[j] + q_pe[i,h] . kpe[j])
/// allowed   = j < L; causal: j <= L - s + i
/// lse[i,h]  = log of the sum of exp(score[j]) over allowed j
/// o[i,h]    = sum of exp(score[j] - lse[i,h]) * ckv[j] over allowed j
/// ```
///
/// Where no j is allowed, o is 0 and lse is minus infinity. Token j of request b is row `j % page`
/// of the page with the number `list[j / page]`. The list is row b of the page table or, with
/// [`kv_indptr`](Self::kv_indptr), begins there. What lies behind the end of a request may be
/// anything.
///
/// With a [`cache_format`](Self::cache_format) of FP8 the bytes of [`cache`](Self::cache) are the
/// rows, in place of `ckv` and `kpe`. With [`indices`](Self::indices), a new token attends to the
/// rows that it lists, in place of those of the page table.
/// [`attention_sink`](Self::attention_sink) multiplies `o[i,h]` by
/// `exp(lse) / (exp(lse) + exp(attention_sink[h]))`. A GPU has none of the three.
///
/// T is the dtype of `q_nope`: bf16 or f16, on the CPU f32 too. Last dimensions are contiguous. On
/// a GPU, which must be of compute capability 9.0, addresses and strides of the tensors of T are
/// multiples of 16 bytes.
///
/// Made once, it can [run](Self::run) many times.
///
/// ```
/// # use fastnorm::*;
/// let (query, rotary) = ([0.5f32; 512], [0.25f32; 64]); // one new token, one head
/// let (latents, keys) = (vec![1f32; 4 * 512], vec![1f32; 4 * 64]); // one page of four tokens
/// let mut o = [0f32; 512];
/// MlaDecode::new(0.125)
///     .q_nope(Tensor::new(&query, &[1, 1, 512])?)
///     .q_pe(Tensor::new(&rotary, &[1, 1, 64])?)
///     .ckv(Tensor::new(&latents, &[1, 4, 512])?)
///     .kpe(Tensor::new(&keys, &[1, 4, 64])?)
///     .kv_len(Tensor::new(&[3i32], &[1])?)
///     .page_table(Tensor::new(&[0i32], &[1, 1])?)
///     .o(TensorMut::new(&mut o, &[1, 1, 512])?)
///     .run(&Context::cpu()?)?;
/// assert!((o[0] - 1.0).abs() < 1e-6); // the mean of equal latents
/// # Ok::<(), Error>(())
/// ```
#[must_use = "nothing happens until it runs"]
pub struct MlaDecode<'a> {
    pub(crate) args: sys::fastnorm_mla_decode_args,
    pub(crate) views: MlaDecodeViews,
    pub(crate) borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it holds tensors, which are Send. The pointers of `args` are set anew in every call.
unsafe impl Send for MlaDecode<'_> {}
// SAFETY: a shared MlaDecode can be asked what it would do, which touches no tensor's memory; to
// run it takes an exclusive borrow.
unsafe impl Sync for MlaDecode<'_> {}

impl<'a> MlaDecode<'a> {
    /// Scores are multiplied with `sm_scale`, which is finite and not 0, on a GPU positive. There
    /// is no default, since models differ:
    /// DeepSeek without YaRN has 1 / sqrt(128 + 64).
    pub fn new(sm_scale: f64) -> Self {
        Self {
            args: sys::fastnorm_mla_decode_args {
                sm_scale,
                ..sys::fastnorm_mla_decode_args::new()
            },
            views: MlaDecodeViews::new(),
            borrow: PhantomData,
        }
    }

    /// `[B + 1]` of i32: where each request's new tokens begin, and the most that one has, or more.
    /// Default: each has N / B.
    pub fn qo_indptr(mut self, qo_indptr: Tensor<'a>, max_s_q: i32) -> Self {
        self.args.max_s_q = max_s_q;
        self.put_qo_indptr(qo_indptr.view)
    }

    /// `[N, H]` of f32: receives the logarithms of the sums, to the given base.
    #[allow(clippy::needless_pass_by_value)]
    pub fn lse(mut self, lse: TensorMut<'a>, base: LseBase) -> Self {
        self.args.lse_base = base.raw();
        self.put_lse(lse.view)
    }

    /// Bytes as many as [`Info::profile_bytes`], 16-byte aligned, on a GPU only: receives what each
    /// warpgroup did when, at most `events` events each, from 1 to 2^20. [`decode_profile`] and
    /// [`write_trace`] read a copy.
    #[allow(clippy::needless_pass_by_value)]
    pub fn profile(mut self, profile: TensorMut<'a>, events: i32) -> Self {
        self.args.profile_events = events;
        self.put_profile(profile.view)
    }

    /// Says what a run would do. No tensor's memory is touched.
    ///
    /// # Errors
    /// As [`MlaDecode::run`].
    pub fn query(&self, context: &Context) -> Result<Info> {
        let mut copy = self.copied();
        let mut info = sys::fastnorm_info::new();
        // SAFETY: `link` gives valid arguments; `info` is writable and knows its size.
        check(unsafe { sys::fastnorm_mla_decode_query(context.as_ptr(), copy.link(), &mut info) })?;
        Ok(Info::from_raw(&info))
    }

    /// Loads the kernels of a run. After it, runs that use the same kernels neither allocate nor
    /// synchronise, and can be captured in a CUDA graph. Optional.
    ///
    /// # Errors
    /// As [`MlaDecode::run`].
    pub fn prepare(&self, context: &Context) -> Result<()> {
        let mut copy = self.copied();
        // SAFETY: `link` gives valid arguments.
        check(unsafe { sys::fastnorm_mla_decode_prepare(context.as_ptr(), copy.link()) })
    }

    /// Attends. On the CPU the work is done on return.
    ///
    /// A GPU needs a workspace: [`run_with`](Self::run_with).
    ///
    /// # Errors
    /// - [`Status::ARGUMENT`](crate::Status::ARGUMENT): a required tensor is missing; a scalar out
    ///   of range; too small a workspace; a stream on the CPU; on the CPU also a length, index or
    ///   page number out of range
    /// - [`Status::SHAPE`](crate::Status::SHAPE): ranks or extents that do not fit
    /// - [`Status::DTYPE`](crate::Status::DTYPE): a dtype that the tensor's role does not allow
    /// - [`Status::LAYOUT`](crate::Status::LAYOUT): a last dimension that is not contiguous, a
    ///   misaligned address or stride, overlap
    /// - [`Status::UNSUPPORTED`](crate::Status::UNSUPPORTED): a GPU of another capability than 9.0,
    ///   FP8 caches, indices or sinks on a GPU, other widths, a profile on the CPU
    /// - [`Status::DEVICE`](crate::Status::DEVICE): a tensor on another device; an error of the
    ///   CUDA runtime
    ///
    /// # Panics
    /// Only if a callback of the context does.
    pub fn run(&mut self, context: &Context) -> Result<()> {
        self.run_with(context, Stream::DEFAULT, Workspace::NONE)
    }

    /// [Runs](Self::run) on a CUDA stream with a workspace. On a GPU the lengths, indices and page
    /// numbers must be valid; they are not checked there.
    ///
    /// # Errors
    /// As [`MlaDecode::run`].
    pub fn run_with(
        &mut self,
        context: &Context,
        stream: Stream,
        workspace: Workspace,
    ) -> Result<()> {
        let args = self.link();
        launch(
            context,
            workspace,
            || self.query(context),
            |workspace| {
                // SAFETY: `link` gives valid arguments. What they point to is borrowed, exclusively
                // where it is written, or promised by who made the tensor, the stream or the
                // workspace.
                unsafe {
                    sys::fastnorm_mla_decode(
                        context.as_ptr(),
                        args,
                        workspace.address,
                        workspace.bytes,
                        stream.0,
                    )
                }
            },
        )
    }
}

// --- the profile ---

/// What an event of a profile is. The library may return numbers that this crate does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProfileId(pub u32);

impl ProfileId {
    /// The library's name of it, such as "softmax"; "unknown" for a number that it does not have.
    pub fn name(self) -> &'static str {
        // SAFETY: the function has no preconditions.
        static_text(unsafe { sys::fastnorm_profile_id_name(self.0) })
    }
}

/// How an event of a profile stands in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProfileKind {
    /// A span starts; its end has the same id and warpgroup.
    Begin,
    /// The span ends.
    End,
    /// A point in time.
    Instant,
}

/// One event of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProfileEvent {
    /// Since the earliest event of the buffer, aligned over multiprocessors.
    pub time_ns: u64,
    /// Since the first event of this thread block, in clock cycles.
    pub cycle: u64,
    /// Thread block.
    pub block: i32,
    /// Where it ran.
    pub multiprocessor: i32,
    /// Warpgroup of the thread block.
    pub group: i32,
    /// What.
    pub id: ProfileId,
    /// Begin, end or point.
    pub kind: ProfileKind,
    /// Number of the tile or piece that it belongs to.
    pub value: i32,
}

/// The events of a profile that [`MlaDecode::profile`] received, copied to host memory, in the
/// order of thread block, warpgroup and time.
///
/// # Errors
/// [`Status::ARGUMENT`](crate::Status::ARGUMENT) for bytes that are no profile or are cut short.
pub fn decode_profile(profile: &[u8]) -> Result<Vec<ProfileEvent>> {
    let words = aligned(profile);
    let decode = |events: *mut sys::fastnorm_profile_event, capacity: usize| {
        let mut count = 0;
        // SAFETY: `words` holds at least as many bytes as `profile`, `events` has room for
        // `capacity`.
        check(unsafe {
            sys::fastnorm_profile_decode(
                words.as_ptr().cast::<c_void>(),
                profile.len(),
                events,
                capacity,
                &mut count,
            )
        })?;
        Ok(count)
    };
    let count = decode(ptr::null_mut(), 0)?;
    let mut raw = vec![sys::fastnorm_profile_event::new(); count];
    decode(raw.as_mut_ptr(), count)?;
    Ok(raw
        .into_iter()
        .map(|event| ProfileEvent {
            time_ns: event.time_ns,
            cycle: event.cycle,
            block: event.block,
            multiprocessor: event.multiprocessor,
            group: event.group,
            id: ProfileId(event.id),
            kind: match event.kind {
                sys::FASTNORM_PROFILE_BEGIN => ProfileKind::Begin,
                sys::FASTNORM_PROFILE_END => ProfileKind::End,
                _ => ProfileKind::Instant,
            },
            value: event.value,
        })
        .collect())
}

/// Writes a profile that [`MlaDecode::profile`] received, copied to host memory, to a file in
/// Chrome's Trace Event Format, which Perfetto opens.
///
/// # Errors
/// [`Status::ARGUMENT`](crate::Status::ARGUMENT) for bytes that are no profile, and for a file that
/// cannot be written.
///
/// # Panics
/// If the path has a zero byte in it.
pub fn write_trace(profile: &[u8], path: impl AsRef<Path>) -> Result<()> {
    let words = aligned(profile);
    let path = CString::new(path.as_ref().as_os_str().as_bytes()).expect("a path has no zero byte");
    // SAFETY: `words` holds at least as many bytes as `profile`; the path ends with a zero.
    check(unsafe {
        sys::fastnorm_profile_write_trace(
            words.as_ptr().cast::<c_void>(),
            profile.len(),
            path.as_ptr(),
            sys::FASTNORM_TRACE_CHROME_JSON,
        )
    })
}

/// The bytes where 64-bit words may be read.
fn aligned(bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks(8)
        .map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Setters of one field are tested in fields.rs.
    #[test]
    #[allow(clippy::float_cmp)]
    fn setters_of_several_fields() {
        let (indices, mut lse, mut profile) = ([0i32; 1], [0f32; 2], [0f32; 3]);
        let mut call = MlaDecode::new(0.5)
            .qo_indptr(Tensor::new(&indices, &[1]).unwrap(), 21)
            .lse(TensorMut::new(&mut lse, &[2]).unwrap(), LseBase::Base2)
            .profile(TensorMut::new(&mut profile, &[3]).unwrap(), 22);
        // SAFETY: linked just now.
        let args = unsafe { *call.link() };
        assert_eq!(args.struct_size, size_of_val(&args));
        assert_eq!((args.sm_scale, args.max_s_q), (0.5, 21));
        assert_eq!(args.lse_base, sys::FASTNORM_LSE_BASE_2);
        assert_eq!(args.profile_events, 22);
        // SAFETY: linked, to tensors of rank 1.
        let lengths = [args.qo_indptr, args.lse, args.profile].map(|t| unsafe { *(*t).shape });
        assert_eq!(lengths, [1, 2, 3]);
    }

    #[test]
    fn bytes_are_aligned() {
        assert_eq!(aligned(&[]), Vec::<u64>::new());
        assert_eq!(
            aligned(&[1, 0, 0, 0, 0, 0, 0, 0, 2]),
            [1u64.to_le(), 2u64.to_le()]
        );
    }
}
