//! What a call would do.

use crate::{static_text, sys};

/// What a call would do, as [`Norm::query`](crate::Norm::query) and
/// [`MlaDecode::query`](crate::MlaDecode::query) find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Bytes of workspace that the call needs. Never falls as rows are added.
    pub workspace_bytes: u64,
    /// Bytes of the tensors that must be read, each once.
    pub bytes_read: u64,
    /// Bytes of the tensors that must be written, each once.
    pub bytes_written: u64,
    /// Name of the kernel, as [`kernels`](crate::kernels) lists it; "" if nothing is launched.
    pub kernel: &'static str,
    /// Kernel launches (CPU: 1, or 0 if there are no rows).
    pub launches: i32,
    /// CUDA: threads that share a row, in all its thread blocks; CPU: 1.
    pub threads_per_row: i32,
    /// CUDA: 16-byte vectors of a row that a thread holds, 0 if the row is streamed; CPU: 0.
    pub vectors_per_thread: i32,
    /// CUDA: rows that a thread block works on; CPU: rows that are worth another thread.
    pub rows_per_block: i32,
    /// CUDA: thread blocks (one cluster) that share a row; CPU: 1.
    pub blocks_per_row: i32,
    /// Widest access in bytes that every tensor's address and strides allow.
    pub vector_bytes: i32,
    /// CUDA: thread blocks in the grid; CPU: threads at the most.
    pub blocks: u64,
    /// Bytes of the profile that the call writes; 0 = none.
    pub profile_bytes: u64,
    /// CUDA: kinds of call that share a list of choices; "" if none decides.
    pub kind: &'static str,
    /// CUDA: the line of that list that decides, or that a tuning file does.
    pub choice: &'static str,
    /// CUDA: the line that describes the kernel.
    pub variant: &'static str,
}

impl Info {
    pub(crate) fn from_raw(raw: &sys::fastnorm_info) -> Self {
        // Named one by one: a field that the library gains does not compile until it is here.
        let sys::fastnorm_info {
            struct_size: _,
            workspace_bytes,
            bytes_read,
            bytes_written,
            kernel,
            launches,
            threads_per_row,
            vectors_per_thread,
            rows_per_block,
            blocks_per_row,
            vector_bytes,
            blocks,
            profile_bytes,
            kind,
            choice,
            variant,
        } = *raw;
        Self {
            workspace_bytes,
            bytes_read,
            bytes_written,
            kernel: static_text(kernel),
            launches,
            threads_per_row,
            vectors_per_thread,
            rows_per_block,
            blocks_per_row,
            vector_bytes,
            blocks,
            profile_bytes,
            kind: static_text(kind),
            choice: static_text(choice),
            variant: static_text(variant),
        }
    }
}
