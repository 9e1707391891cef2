// Generated from the public headers by bindings/swig/generate.py; do not edit.

use crate::ffi::*;
use core::ffi::{c_char, c_int, c_uint, c_void, CStr};
use core::marker::{PhantomData, PhantomPinned};
use core::mem::{offset_of, size_of};

/// One rank on a communicator. Opaque.
#[repr(C)]
pub struct fastnorm_nccl {
    _data: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// What of NCCL is used. Results of functions are ncclResult_t, communicators ncclComm_t, streams
/// cudaStream_t, dtypes ncclDataType_t and operations ncclRedOp_t.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_nccl_functions {
    /// sizeof(fastnorm_nccl_functions).
    pub struct_size: usize,
    /// ncclGetVersion.
    pub get_version: Option<unsafe extern "C" fn(*mut c_int) -> c_int>,
    /// ncclCommCount.
    pub comm_count: Option<unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int>,
    /// ncclCommUserRank.
    pub comm_user_rank: Option<unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int>,
    /// ncclCommCuDevice.
    pub comm_cu_device: Option<unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int>,
    /// ncclAllReduce.
    pub all_reduce: Option<
        unsafe extern "C" fn(
            *const c_void,
            *mut c_void,
            usize,
            c_int,
            c_int,
            *mut c_void,
            *mut c_void,
        ) -> c_int,
    >,
    /// ncclReduceScatter.
    pub reduce_scatter: Option<
        unsafe extern "C" fn(
            *const c_void,
            *mut c_void,
            usize,
            c_int,
            c_int,
            *mut c_void,
            *mut c_void,
        ) -> c_int,
    >,
    /// ncclAllGather.
    pub all_gather: Option<
        unsafe extern "C" fn(
            *const c_void,
            *mut c_void,
            usize,
            c_int,
            *mut c_void,
            *mut c_void,
        ) -> c_int,
    >,
    /// ncclGroupStart.
    pub group_start: Option<unsafe extern "C" fn() -> c_int>,
    /// ncclGroupEnd.
    pub group_end: Option<unsafe extern "C" fn() -> c_int>,
    /// ncclGetErrorString.
    pub get_error_string: Option<unsafe extern "C" fn(c_int) -> *const c_char>,
}

impl fastnorm_nccl_functions {
    /// Everything zero, `struct_size` set: the defaults.
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            get_version: None,
            comm_count: None,
            comm_user_rank: None,
            comm_cu_device: None,
            all_reduce: None,
            reduce_scatter: None,
            all_gather: None,
            group_start: None,
            group_end: None,
            get_error_string: None,
        }
    }
}

impl Default for fastnorm_nccl_functions {
    fn default() -> Self {
        Self::new()
    }
}

/// Bits of fastnorm_nccl_options.flags.
pub type fastnorm_nccl_flags = c_uint;
/// Always the fallback.
pub const FASTNORM_NCCL_NO_PEERS: fastnorm_nccl_flags = 1;
/// Never: a call that would take it is an error.
pub const FASTNORM_NCCL_FIXED_ORDER: fastnorm_nccl_flags = 2;
pub const FASTNORM_NCCL_FLAGS_MAX_ENUM: fastnorm_nccl_flags = 0x7fffffff;

/// Options of a handle, the same on all ranks. `{0}` plus struct_size, dtype and max_columns is
/// valid. Fields that fastnorm_peer_options has too mean the same.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_nccl_options {
    /// sizeof(fastnorm_nccl_options).
    pub struct_size: usize,
    /// T of x: f32, f16 or bf16. Required.
    pub dtype: fastnorm_dtype_id,
    /// Of peers.
    pub algorithm: fastnorm_peer_algorithm,
    /// Longest row, 1 to 65536. Required.
    pub max_columns: i64,
    /// Of peers.
    pub one_shot_bytes: i64,
    /// Of peers.
    pub wait_ns: i64,
    /// Of peers.
    pub rings: i32,
    /// fastnorm_nccl_flags; 0.
    pub flags: u32,
    /// The most bytes of x that go by peers; more take the fallback. 0 = no limit.
    pub peer_bytes: i64,
}

impl fastnorm_nccl_options {
    /// Everything zero, `struct_size` set: the defaults.
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            dtype: 0,
            algorithm: 0,
            max_columns: 0,
            one_shot_bytes: 0,
            wait_ns: 0,
            rings: 0,
            flags: 0,
            peer_bytes: 0,
        }
    }
}

impl Default for fastnorm_nccl_options {
    fn default() -> Self {
        Self::new()
    }
}

/// Sequence parallel: this rank normalises tokens / ranks of all tokens. `{0}` plus struct_size and
/// norm is valid.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_nccl_sequence_norm_args {
    /// sizeof(fastnorm_nccl_sequence_norm_args).
    pub struct_size: usize,
    /// The norm, all tensors compact. x is \[tokens, n\], this rank's part of all tokens' sums;
    /// tokens is a multiple of the ranks. residual, residual_out, mean and rstd are of this rank's
    /// tokens alone, \[tokens / ranks, ..\]. y, quantized and a scale of rows or blocks are of all
    /// tokens. What this rank has not made is gathered, or with gather = 0 not touched. No amax, no
    /// swizzled scales. Required.
    pub norm: *const fastnorm_norm_args,
    /// 1 = y, quantized and scale are gathered; 0 = this rank's tokens alone.
    pub gather: i32,
    /// Must be 0.
    pub reserved: i32,
}

impl fastnorm_nccl_sequence_norm_args {
    /// Everything zero, `struct_size` set: the defaults.
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            norm: core::ptr::null(),
            gather: 0,
            reserved: 0,
        }
    }
}

impl Default for fastnorm_nccl_sequence_norm_args {
    fn default() -> Self {
        Self::new()
    }
}

/// The functions of libfastnorm_nccl, a library that is found at run time.
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_nccl_library {
    /// Give the functions of NCCL. Before any other call. CPU contexts need it: their communicators
    /// and functions are the caller's, over host memory.
    ///
    /// - `functions`: copied; NULL = look for NCCL again
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT for a null function or too small a struct_size
    ///
    /// Since 0.2.
    pub fastnorm_nccl_set_functions:
        unsafe extern "C" fn(functions: *const fastnorm_nccl_functions) -> fastnorm_status,
    /// Find NCCL.
    ///
    /// - `version`: receives ncclGetVersion's number, such as 22809
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if version is null; FASTNORM_ERROR_UNSUPPORTED
    /// where there is no NCCL, or one without a function that is needed: the text says what was
    /// looked for
    ///
    /// Since 0.2.
    pub fastnorm_nccl_version: unsafe extern "C" fn(version: *mut i32) -> fastnorm_status,
    /// Create this rank's handle. Collective: every rank of the communicator calls it. Where all
    /// ranks can be peers they become so, else none does. Waits for the other ranks. A rank that
    /// cannot be a peer takes part in the exchange. A rank that fails before it does not, and the
    /// others wait in NCCL until ncclCommAbort. Such failures are null arguments, a communicator of
    /// another device, no NCCL and no device memory.
    ///
    /// - `context`: the device; must outlive the handle
    /// - `device`: the context's
    /// - `comm`: an ncclComm_t of that device
    /// - `options`: read during the call only
    /// - `stream`: for the exchange; synchronised
    /// - `handle`: receives the handle, or NULL on failure; ended with fastnorm_nccl_destroy
    ///
    /// Returns FASTNORM_OK FASTNORM_ERROR_ARGUMENT: null or out-of-range arguments and options; a
    /// communicator of another device FASTNORM_ERROR_UNSUPPORTED: no NCCL; a CPU context without
    /// fastnorm_nccl_set_functions; FIXED_ORDER where ranks cannot be peers FASTNORM_ERROR_DEVICE:
    /// NCCL or CUDA failed; the text has their words
    ///
    /// Since 0.2.
    pub fastnorm_nccl_create: unsafe extern "C" fn(
        context: *mut fastnorm_context,
        device: fastnorm_device,
        comm: *mut c_void,
        options: *const fastnorm_nccl_options,
        stream: *mut c_void,
        handle: *mut *mut fastnorm_nccl,
    ) -> fastnorm_status,
    /// Create the handles of several ranks of this process. All ranks of the communicator join,
    /// here or in other processes. One thread does what as many threads with fastnorm_nccl_create
    /// would.
    ///
    /// - `contexts`: \[count\], one of each rank; must outlive the handles
    /// - `devices`: \[count\], the contexts'
    /// - `comms`: \[count\] ncclComm_t of those devices
    /// - `options`: as fastnorm_nccl_create, of all these ranks
    /// - `streams`: \[count\], or NULL: the default streams
    /// - `count`: 1 or more
    /// - `handles`: \[count\], receives the handles, or NULL on failure
    ///
    /// Returns as fastnorm_nccl_create; the text names the rank
    ///
    /// Since 0.2.
    pub fastnorm_nccl_create_all: unsafe extern "C" fn(
        contexts: *const *mut fastnorm_context,
        devices: *const fastnorm_device,
        comms: *const *mut c_void,
        options: *const fastnorm_nccl_options,
        streams: *const *mut c_void,
        count: i32,
        handles: *mut *mut fastnorm_nccl,
    ) -> fastnorm_status,
    /// Destroy a handle. NULL is fine. The communicator stays.
    ///
    /// - `handle`: of fastnorm_nccl_create, or NULL
    ///
    /// Since 0.2.
    pub fastnorm_nccl_destroy: unsafe extern "C" fn(handle: *mut fastnorm_nccl),
    /// The peer of a handle, for fastnorm_peer_status and fastnorm_peer_reset, and for calls of
    /// peer.h.
    ///
    /// - `handle`: of fastnorm_nccl_create
    /// - `peer`: receives the peer, which the handle owns; NULL where ranks are no peers
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT for null arguments
    ///
    /// Since 0.2.
    pub fastnorm_nccl_peer: unsafe extern "C" fn(
        handle: *mut fastnorm_nccl,
        peer: *mut *mut fastnorm_peer,
    ) -> fastnorm_status,
    /// Say what a call would do. kernel is that of the norm; launches do not count NCCL's.
    ///
    /// - `handle`: of fastnorm_nccl_create
    /// - `args`: as for the call
    /// - `info`: struct_size in; receives the rest
    ///
    /// Returns as fastnorm_nccl_allreduce_norm
    ///
    /// Since 0.2.
    pub fastnorm_nccl_allreduce_norm_query: unsafe extern "C" fn(
        handle: *mut fastnorm_nccl,
        args: *const fastnorm_peer_allreduce_norm_args,
        info: *mut fastnorm_info,
    ) -> fastnorm_status,
    /// Load what a call needs of the library's kernels. On GPUs: before a call is captured in a
    /// graph.
    ///
    /// - `handle`: of fastnorm_nccl_create
    /// - `args`: as for the call
    ///
    /// Returns as fastnorm_nccl_allreduce_norm
    ///
    /// Since 0.2.
    pub fastnorm_nccl_allreduce_norm_prepare: unsafe extern "C" fn(
        handle: *mut fastnorm_nccl,
        args: *const fastnorm_peer_allreduce_norm_args,
    ) -> fastnorm_status,
    /// Add up the ranks' x, add the residual, normalise. Every rank calls it, with the same rows.
    ///
    /// - `handle`: of fastnorm_nccl_create
    /// - `args`: as fastnorm_peer_allreduce_norm's; peer must be NULL. Fallback: x is compact, and
    ///   sums are rounded
    /// - `workspace`: fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: the stream; CPU: NULL
    ///
    /// Returns as fastnorm_peer_allreduce_norm, and FASTNORM_ERROR_ARGUMENT: a null handle; a peer
    /// FASTNORM_ERROR_LAYOUT: fallback: x that is not compact FASTNORM_ERROR_UNSUPPORTED: fallback:
    /// FASTNORM_PEER_SUM_EXACT, or FIXED_ORDER FASTNORM_ERROR_DEVICE: NCCL failed
    ///
    /// Since 0.2.
    pub fastnorm_nccl_allreduce_norm: unsafe extern "C" fn(
        handle: *mut fastnorm_nccl,
        args: *const fastnorm_peer_allreduce_norm_args,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> fastnorm_status,
    /// The calls of several ranks of this process, from one thread: all are checked, then NCCL
    /// starts their sums in one group, then their norms follow. With fastnorm_nccl_allreduce_norm a
    /// thread could call one rank only, as the call of the first would wait for those after it.
    ///
    /// - `handles`: \[count\]
    /// - `args`: \[count\], as fastnorm_nccl_allreduce_norm
    /// - `workspaces`: \[count\], or NULL where no bytes are needed
    /// - `workspace_bytes`: size of each
    /// - `streams`: \[count\], or NULL: the default streams
    /// - `count`: 1 or more
    ///
    /// Returns as fastnorm_nccl_allreduce_norm; the text names the rank, as args\[i\]. And
    /// FASTNORM_ERROR_SHAPE: x of different sizes FASTNORM_ERROR_UNSUPPORTED: several ranks that
    /// are peers on a CPU
    ///
    /// Since 0.2.
    pub fastnorm_nccl_allreduce_norm_all: unsafe extern "C" fn(
        handles: *const *mut fastnorm_nccl,
        args: *const *const fastnorm_peer_allreduce_norm_args,
        workspaces: *const *mut c_void,
        workspace_bytes: usize,
        streams: *const *mut c_void,
        count: i32,
    ) -> fastnorm_status,
    /// Say what a call would do, as fastnorm_nccl_allreduce_norm_query.
    ///
    /// - `handle`: of fastnorm_nccl_create
    /// - `args`: as for the call
    /// - `info`: struct_size in; receives the rest
    ///
    /// Returns as fastnorm_nccl_sequence_norm
    ///
    /// Since 0.2.
    pub fastnorm_nccl_sequence_norm_query: unsafe extern "C" fn(
        handle: *mut fastnorm_nccl,
        args: *const fastnorm_nccl_sequence_norm_args,
        info: *mut fastnorm_info,
    ) -> fastnorm_status,
    /// Load what a call needs, as fastnorm_nccl_allreduce_norm_prepare.
    ///
    /// - `handle`: of fastnorm_nccl_create
    /// - `args`: as for the call
    ///
    /// Returns as fastnorm_nccl_sequence_norm
    ///
    /// Since 0.2.
    pub fastnorm_nccl_sequence_norm_prepare: unsafe extern "C" fn(
        handle: *mut fastnorm_nccl,
        args: *const fastnorm_nccl_sequence_norm_args,
    ) -> fastnorm_status,
    /// Reduce-scatter of x, residual and norm, all-gather of the results. Every rank calls it.
    ///
    /// - `handle`: of fastnorm_nccl_create
    /// - `args`: read during the call only
    /// - `workspace`: fastnorm_info.workspace_bytes bytes, as fastnorm_nccl_allreduce_norm
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: the stream; CPU: NULL
    ///
    /// Returns as fastnorm_norm, and FASTNORM_ERROR_ARGUMENT: null arguments FASTNORM_ERROR_SHAPE:
    /// tokens that are no multiple of the ranks; tensors of other rows FASTNORM_ERROR_LAYOUT:
    /// tensors that are not compact FASTNORM_ERROR_UNSUPPORTED: amax, swizzled scales; FIXED_ORDER
    /// FASTNORM_ERROR_DEVICE: NCCL failed
    ///
    /// Since 0.2.
    pub fastnorm_nccl_sequence_norm: unsafe extern "C" fn(
        handle: *mut fastnorm_nccl,
        args: *const fastnorm_nccl_sequence_norm_args,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> fastnorm_status,
    /// The calls of several ranks of this process, as fastnorm_nccl_allreduce_norm_all.
    ///
    /// - `handles`: \[count\]
    /// - `args`: \[count\], as fastnorm_nccl_sequence_norm; one gather
    /// - `workspaces`: \[count\], or NULL where no bytes are needed
    /// - `workspace_bytes`: size of each
    /// - `streams`: \[count\], or NULL: the default streams
    /// - `count`: 1 or more
    ///
    /// Returns as fastnorm_nccl_sequence_norm; the text names the rank, as args\[i\]
    ///
    /// Since 0.2.
    pub fastnorm_nccl_sequence_norm_all: unsafe extern "C" fn(
        handles: *const *mut fastnorm_nccl,
        args: *const *const fastnorm_nccl_sequence_norm_args,
        workspaces: *const *mut c_void,
        workspace_bytes: usize,
        streams: *const *mut c_void,
        count: i32,
    ) -> fastnorm_status,
    /// Text of this thread's last failed call of this library: what, and what is required.
    ///
    /// Returns a string that the thread's next failed call overwrites; "" if none has failed
    ///
    /// Since 0.2.
    pub fastnorm_nccl_last_error: unsafe extern "C" fn() -> *const c_char,
}

/// The function at an address.
///
/// # Safety
/// It is that of a function of the type `F`, which is a pointer to a function.
unsafe fn function<F: Copy>(address: *const c_void) -> F {
    assert!(size_of::<F>() == size_of::<*const c_void>());
    // SAFETY: both are addresses, and the caller knows the type.
    unsafe { core::mem::transmute_copy(&address) }
}

impl fastnorm_nccl_library {
    /// Asks `find` for the address of each function by its name.
    ///
    /// # Errors
    /// The name of a function whose address is null.
    ///
    /// # Safety
    /// What `find` returns is null, or the function of that name in libfastnorm_nccl.
    pub unsafe fn find(
        mut find: impl FnMut(&'static CStr) -> *const c_void,
    ) -> Result<Self, &'static CStr> {
        let mut found = |name| match find(name) {
            address if address.is_null() => Err(name),
            address => Ok(address),
        };
        // SAFETY: as the caller promises, each has the type of its field.
        unsafe {
            Ok(Self {
                fastnorm_nccl_set_functions: function(found(c"fastnorm_nccl_set_functions")?),
                fastnorm_nccl_version: function(found(c"fastnorm_nccl_version")?),
                fastnorm_nccl_create: function(found(c"fastnorm_nccl_create")?),
                fastnorm_nccl_create_all: function(found(c"fastnorm_nccl_create_all")?),
                fastnorm_nccl_destroy: function(found(c"fastnorm_nccl_destroy")?),
                fastnorm_nccl_peer: function(found(c"fastnorm_nccl_peer")?),
                fastnorm_nccl_allreduce_norm_query: function(found(
                    c"fastnorm_nccl_allreduce_norm_query",
                )?),
                fastnorm_nccl_allreduce_norm_prepare: function(found(
                    c"fastnorm_nccl_allreduce_norm_prepare",
                )?),
                fastnorm_nccl_allreduce_norm: function(found(c"fastnorm_nccl_allreduce_norm")?),
                fastnorm_nccl_allreduce_norm_all: function(found(
                    c"fastnorm_nccl_allreduce_norm_all",
                )?),
                fastnorm_nccl_sequence_norm_query: function(found(
                    c"fastnorm_nccl_sequence_norm_query",
                )?),
                fastnorm_nccl_sequence_norm_prepare: function(found(
                    c"fastnorm_nccl_sequence_norm_prepare",
                )?),
                fastnorm_nccl_sequence_norm: function(found(c"fastnorm_nccl_sequence_norm")?),
                fastnorm_nccl_sequence_norm_all: function(found(
                    c"fastnorm_nccl_sequence_norm_all",
                )?),
                fastnorm_nccl_last_error: function(found(c"fastnorm_nccl_last_error")?),
            })
        }
    }
}

// The layout that a C compiler gives these types.
const _: () = {
    assert!(size_of::<fastnorm_nccl_functions>() == 88);
    assert!(offset_of!(fastnorm_nccl_functions, struct_size) == 0);
    assert!(offset_of!(fastnorm_nccl_functions, get_version) == 8);
    assert!(offset_of!(fastnorm_nccl_functions, comm_count) == 16);
    assert!(offset_of!(fastnorm_nccl_functions, comm_user_rank) == 24);
    assert!(offset_of!(fastnorm_nccl_functions, comm_cu_device) == 32);
    assert!(offset_of!(fastnorm_nccl_functions, all_reduce) == 40);
    assert!(offset_of!(fastnorm_nccl_functions, reduce_scatter) == 48);
    assert!(offset_of!(fastnorm_nccl_functions, all_gather) == 56);
    assert!(offset_of!(fastnorm_nccl_functions, group_start) == 64);
    assert!(offset_of!(fastnorm_nccl_functions, group_end) == 72);
    assert!(offset_of!(fastnorm_nccl_functions, get_error_string) == 80);
    assert!(size_of::<fastnorm_nccl_options>() == 56);
    assert!(offset_of!(fastnorm_nccl_options, struct_size) == 0);
    assert!(offset_of!(fastnorm_nccl_options, dtype) == 8);
    assert!(offset_of!(fastnorm_nccl_options, algorithm) == 12);
    assert!(offset_of!(fastnorm_nccl_options, max_columns) == 16);
    assert!(offset_of!(fastnorm_nccl_options, one_shot_bytes) == 24);
    assert!(offset_of!(fastnorm_nccl_options, wait_ns) == 32);
    assert!(offset_of!(fastnorm_nccl_options, rings) == 40);
    assert!(offset_of!(fastnorm_nccl_options, flags) == 44);
    assert!(offset_of!(fastnorm_nccl_options, peer_bytes) == 48);
    assert!(size_of::<fastnorm_nccl_sequence_norm_args>() == 24);
    assert!(offset_of!(fastnorm_nccl_sequence_norm_args, struct_size) == 0);
    assert!(offset_of!(fastnorm_nccl_sequence_norm_args, norm) == 8);
    assert!(offset_of!(fastnorm_nccl_sequence_norm_args, gather) == 16);
    assert!(offset_of!(fastnorm_nccl_sequence_norm_args, reserved) == 20);
    assert!(size_of::<fastnorm_nccl_flags>() == 4);
};
