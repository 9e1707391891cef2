// Generated from the public headers by bindings/swig/generate.py; do not edit.

use crate::ffi::*;
use core::ffi::{c_char, c_int, c_uint, c_void, CStr};
use core::marker::{PhantomData, PhantomPinned};
use core::mem::{offset_of, size_of};

/// One rank on a communicator. The type is opaque.
#[repr(C)]
pub struct fastnorm_nccl {
    _data: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// The functions of NCCL that are used. Their results are ncclResult_t, communicators are
/// ncclComm_t, streams are cudaStream_t, dtypes are ncclDataType_t, and operations are ncclRedOp_t.
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
    #[inline]
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
/// Always take the fallback.
pub const FASTNORM_NCCL_NO_PEERS: fastnorm_nccl_flags = 1;
/// Never take the fallback: a call that would take it is an error.
pub const FASTNORM_NCCL_FIXED_ORDER: fastnorm_nccl_flags = 2;
pub const FASTNORM_NCCL_FLAGS_MAX_ENUM: fastnorm_nccl_flags = 0x7fffffff;

/// Options of a handle, which are the same on all ranks. A zeroed struct with struct_size, dtype
/// and max_columns set is valid. Fields that fastnorm_peer_options also has mean the same there.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_nccl_options {
    /// sizeof(fastnorm_nccl_options).
    pub struct_size: usize,
    /// T, the dtype of x: f32, f16 or bf16. Required.
    pub dtype: fastnorm_dtype_id,
    /// As in fastnorm_peer_options.
    pub algorithm: fastnorm_peer_algorithm,
    /// Length of the longest row, 1 to 65536. Required.
    pub max_columns: i64,
    /// As in fastnorm_peer_options.
    pub one_shot_bytes: i64,
    /// As in fastnorm_peer_options.
    pub wait_ns: i64,
    /// As in fastnorm_peer_options.
    pub rings: i32,
    /// fastnorm_nccl_flags; 0.
    pub flags: u32,
    /// The most bytes of x for which the call goes by peers; larger calls take the fallback. 0 = no
    /// limit.
    pub peer_bytes: i64,
}

impl fastnorm_nccl_options {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
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

/// A sequence parallel norm, in which this rank normalises tokens / ranks of all tokens. A zeroed
/// struct with struct_size and norm set is valid.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_nccl_sequence_norm_args {
    /// sizeof(fastnorm_nccl_sequence_norm_args).
    pub struct_size: usize,
    /// Passed to the context's parallel_for, as in fastnorm_norm_args; NULL = norm.parallel_user.
    pub parallel_user: *mut c_void,
    /// The norm, whose tensors must all be compact. x is \[tokens, n\] and holds this rank's
    /// summand for all tokens; the number of tokens is a multiple of the number of ranks. residual,
    /// residual_out, mean and rstd hold only this rank's tokens, \[tokens / ranks, ..\]. y,
    /// quant.quantized and a quant.scale of rows or blocks hold all tokens. With gather, the
    /// results of the other ranks are gathered into them; otherwise these parts are not written.
    /// amax, swizzled scales and a quant.rotation are not supported. Required.
    pub norm: *const fastnorm_norm_args,
    /// 1: y, codes and scales are gathered. 0: only those of this rank are written.
    pub gather: i32,
    /// Must be 0.
    pub reserved: i32,
}

impl fastnorm_nccl_sequence_norm_args {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            parallel_user: core::ptr::null_mut(),
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
    /// Set the functions of NCCL, before any other call of this library. CPU contexts need this,
    /// because the caller provides communicators and functions that work on host memory.
    ///
    /// - `functions`: the functions, which are copied; NULL = look for NCCL again
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if a function is null or struct_size is too
    /// small
    ///
    /// Since 0.2.
    pub fastnorm_nccl_set_functions:
        unsafe extern "C" fn(functions: *const fastnorm_nccl_functions) -> fastnorm_status,
    /// Find NCCL and return its version.
    ///
    /// - `version`: receives the number of ncclGetVersion, such as 22809
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if version is null; FASTNORM_ERROR_UNSUPPORTED
    /// if there is no NCCL, or if it lacks a function that is needed (the text says what was looked
    /// for)
    ///
    /// Since 0.2.
    pub fastnorm_nccl_version: unsafe extern "C" fn(version: *mut i32) -> fastnorm_status,
    /// Create this rank's handle. The function is collective: every rank of the communicator calls
    /// it, and it waits for the other ranks. If all ranks can be peers, they become peers;
    /// otherwise none does. A rank that cannot be a peer still takes part in the exchange. A rank
    /// that fails before the exchange does not take part in it, and the other ranks wait in NCCL
    /// until ncclCommAbort; such failures are null arguments, a communicator of another device, a
    /// missing NCCL and a lack of device memory.
    ///
    /// - `context`: the device; must outlive the handle
    /// - `device`: the device of the context
    /// - `comm`: an ncclComm_t of that device
    /// - `options`: read only during the call
    /// - `stream`: the stream of the exchange, which is synchronised
    /// - `handle`: receives the handle, or NULL on failure; the caller ends it with
    ///   fastnorm_nccl_destroy
    ///
    /// Returns FASTNORM_OK FASTNORM_ERROR_ARGUMENT: an argument or an option is null or out of
    /// range; the communicator belongs to another device FASTNORM_ERROR_UNSUPPORTED: there is no
    /// NCCL; a CPU context has no functions from fastnorm_nccl_set_functions; there is FIXED_ORDER
    /// but ranks cannot be peers FASTNORM_ERROR_DEVICE: NCCL or CUDA failed; the text has their
    /// message
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
    /// Create the handles of several ranks of this process. All ranks of the communicator take
    /// part, here or in other processes. One thread does what several threads would do with
    /// fastnorm_nccl_create.
    ///
    /// - `contexts`: \[count\] contexts, one for each rank; must outlive the handles
    /// - `devices`: \[count\] devices of the contexts
    /// - `comms`: \[count\] ncclComm_t of those devices
    /// - `options`: the options of all these ranks, as for fastnorm_nccl_create
    /// - `streams`: \[count\] streams, or NULL for the default streams
    /// - `count`: 1 or more
    /// - `handles`: \[count\], receives the handles, or NULL on failure
    ///
    /// Returns as fastnorm_nccl_create; the error text names the rank
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
    /// Destroy a handle. The communicator is not destroyed.
    ///
    /// - `handle`: the handle; if it is NULL, nothing is done
    ///
    /// Since 0.2.
    pub fastnorm_nccl_destroy: unsafe extern "C" fn(handle: *mut fastnorm_nccl),
    /// Return the peer of a handle, for fastnorm_peer_status, fastnorm_peer_reset and calls of
    /// peer.h.
    ///
    /// - `handle`: the handle
    /// - `peer`: receives the peer, which the handle owns; NULL if the ranks are not peers
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if an argument is null
    ///
    /// Since 0.2.
    pub fastnorm_nccl_peer: unsafe extern "C" fn(
        handle: *mut fastnorm_nccl,
        peer: *mut *mut fastnorm_peer,
    ) -> fastnorm_status,
    /// Say what a call would do. `kernel` is that of the norm, and `launches` does not count the
    /// launches of NCCL.
    ///
    /// - `handle`: the handle
    /// - `args`: the arguments of the call
    /// - `info`: struct_size as input; receives the rest
    ///
    /// Returns as fastnorm_nccl_allreduce_norm
    ///
    /// Since 0.2.
    pub fastnorm_nccl_allreduce_norm_query: unsafe extern "C" fn(
        handle: *mut fastnorm_nccl,
        args: *const fastnorm_peer_allreduce_norm_args,
        info: *mut fastnorm_info,
    ) -> fastnorm_status,
    /// Load the kernels of the library that a call needs. On a GPU, call this before a call is
    /// captured in a CUDA graph.
    ///
    /// - `handle`: the handle
    /// - `args`: the arguments of the call
    ///
    /// Returns as fastnorm_nccl_allreduce_norm
    ///
    /// Since 0.2.
    pub fastnorm_nccl_allreduce_norm_prepare: unsafe extern "C" fn(
        handle: *mut fastnorm_nccl,
        args: *const fastnorm_peer_allreduce_norm_args,
    ) -> fastnorm_status,
    /// Add up the ranks' x, add the residual and normalise. Every rank makes this call, with the
    /// same rows.
    ///
    /// - `handle`: the handle
    /// - `args`: what to compute, as for fastnorm_peer_allreduce_norm, except that peer must be
    ///   NULL. With the fallback, x must be compact, and the sum is rounded
    /// - `workspace`: fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: CUDA: the cudaStream_t. CPU: NULL
    ///
    /// Returns as fastnorm_peer_allreduce_norm, and FASTNORM_ERROR_ARGUMENT: handle is null, or
    /// peer is not NULL FASTNORM_ERROR_LAYOUT: with the fallback, x is not compact
    /// FASTNORM_ERROR_UNSUPPORTED: with the fallback, there is FASTNORM_PEER_SUM_EXACT, FIXED_ORDER
    /// or a quant.rotation FASTNORM_ERROR_DEVICE: NCCL failed
    ///
    /// Since 0.2.
    pub fastnorm_nccl_allreduce_norm: unsafe extern "C" fn(
        handle: *mut fastnorm_nccl,
        args: *const fastnorm_peer_allreduce_norm_args,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> fastnorm_status,
    /// Make the calls of several ranks of this process from one thread. First all calls are
    /// checked, then NCCL starts their sums in one group, and then their norms follow. With
    /// fastnorm_nccl_allreduce_norm one thread could serve only one rank, because the call of the
    /// first rank would wait for the calls after it.
    ///
    /// - `handles`: \[count\] handles
    /// - `args`: \[count\] pointers, each as for fastnorm_nccl_allreduce_norm
    /// - `workspaces`: \[count\] workspaces, or NULL if no bytes are needed
    /// - `workspace_bytes`: size of each workspace
    /// - `streams`: \[count\] streams, or NULL for the default streams
    /// - `count`: 1 or more
    ///
    /// Returns as fastnorm_nccl_allreduce_norm; the error text names the rank as args\[i\]. And
    /// FASTNORM_ERROR_SHAPE: the ranks' x have different sizes FASTNORM_ERROR_UNSUPPORTED: several
    /// ranks are peers on a CPU
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
    /// Say what a call would do, as fastnorm_nccl_allreduce_norm_query does.
    ///
    /// - `handle`: the handle
    /// - `args`: the arguments of the call
    /// - `info`: struct_size as input; receives the rest
    ///
    /// Returns as fastnorm_nccl_sequence_norm
    ///
    /// Since 0.2.
    pub fastnorm_nccl_sequence_norm_query: unsafe extern "C" fn(
        handle: *mut fastnorm_nccl,
        args: *const fastnorm_nccl_sequence_norm_args,
        info: *mut fastnorm_info,
    ) -> fastnorm_status,
    /// Load the kernels of a call, as fastnorm_nccl_allreduce_norm_prepare does.
    ///
    /// - `handle`: the handle
    /// - `args`: the arguments of the call
    ///
    /// Returns as fastnorm_nccl_sequence_norm
    ///
    /// Since 0.2.
    pub fastnorm_nccl_sequence_norm_prepare: unsafe extern "C" fn(
        handle: *mut fastnorm_nccl,
        args: *const fastnorm_nccl_sequence_norm_args,
    ) -> fastnorm_status,
    /// Reduce-scatter x, add the residual and normalise, and all-gather the results. Every rank
    /// makes this call.
    ///
    /// - `handle`: the handle
    /// - `args`: what to compute; read only during the call
    /// - `workspace`: fastnorm_info.workspace_bytes bytes, as for fastnorm_nccl_allreduce_norm
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: CUDA: the cudaStream_t. CPU: NULL
    ///
    /// Returns as fastnorm_norm, and FASTNORM_ERROR_ARGUMENT: an argument is null
    /// FASTNORM_ERROR_SHAPE: the number of tokens is not a multiple of the number of ranks, or
    /// tensors have other rows FASTNORM_ERROR_LAYOUT: a tensor is not compact
    /// FASTNORM_ERROR_UNSUPPORTED: there is amax, swizzled scales, FIXED_ORDER or a quant.rotation
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
    /// Make the calls of several ranks of this process from one thread, as
    /// fastnorm_nccl_allreduce_norm_all does.
    ///
    /// - `handles`: \[count\] handles
    /// - `args`: \[count\] pointers, each as for fastnorm_nccl_sequence_norm, and all with the same
    ///   gather
    /// - `workspaces`: \[count\] workspaces, or NULL if no bytes are needed
    /// - `workspace_bytes`: size of each workspace
    /// - `streams`: \[count\] streams, or NULL for the default streams
    /// - `count`: 1 or more
    ///
    /// Returns as fastnorm_nccl_sequence_norm; the error text names the rank as args\[i\]
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
    /// Text of the last failure of a call of this library on the calling thread, which says what
    /// failed and what is required.
    ///
    /// Returns a string that the next failed call on the same thread overwrites; "" if no call has
    /// failed
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
    assert!(size_of::<fastnorm_nccl_sequence_norm_args>() == 32);
    assert!(offset_of!(fastnorm_nccl_sequence_norm_args, struct_size) == 0);
    assert!(offset_of!(fastnorm_nccl_sequence_norm_args, parallel_user) == 8);
    assert!(offset_of!(fastnorm_nccl_sequence_norm_args, norm) == 16);
    assert!(offset_of!(fastnorm_nccl_sequence_norm_args, gather) == 24);
    assert!(offset_of!(fastnorm_nccl_sequence_norm_args, reserved) == 28);
    assert!(size_of::<fastnorm_nccl_flags>() == 4);
};
