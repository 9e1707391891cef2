// Generated from the public headers by bindings/swig/generate.py; do not edit.

use core::ffi::{c_char, c_uint, c_void};
use core::marker::{PhantomData, PhantomPinned};
use core::mem::{offset_of, size_of};

/// Major version of these headers. The library that is loaded at run time may have another version,
/// which fastnorm_version() returns.
pub const FASTNORM_VERSION_MAJOR: i32 = 0;

/// Minor version of these headers.
pub const FASTNORM_VERSION_MINOR: i32 = 2;

/// Patch version of these headers.
pub const FASTNORM_VERSION_PATCH: i32 = 0;

/// Version of these headers as one number that can be compared: major \* 10000 + minor \* 100 +
/// patch.
pub const FASTNORM_VERSION: i32 = 200;

extern "C" {
    /// Version of the loaded library. The function never fails, and may be called from any thread
    /// at any time.
    ///
    /// Returns the version in the form of FASTNORM_VERSION
    ///
    /// Since 0.1.
    pub fn fastnorm_version() -> i32;

    /// Version of the loaded library as text.
    ///
    /// Returns a static string such as "0.1.0"; never NULL
    ///
    /// Since 0.1.
    pub fn fastnorm_version_string() -> *const c_char;

    /// What this build contains, as lines of the form "key: value": the commit, the compiler, the
    /// CPU instruction sets, the GPU architectures and the version of CUDA. The text is meant for
    /// people and logs, and later versions may add lines.
    ///
    /// Returns a static string; never NULL
    ///
    /// Since 0.1.
    pub fn fastnorm_build_info() -> *const c_char;

    /// Version of the arithmetic. Two libraries with the same number give the same bits for the
    /// same call on the same backend. Any change to an order of summation, a constant or a rounding
    /// raises the number.
    ///
    /// Returns the number
    ///
    /// Since 0.1.
    pub fn fastnorm_numeric_version() -> i32;
}

/// Result of a call.
pub type fastnorm_status = c_uint;
pub const FASTNORM_OK: fastnorm_status = 0;
pub const FASTNORM_ERROR_ARGUMENT: fastnorm_status = 10;
pub const FASTNORM_ERROR_SHAPE: fastnorm_status = 20;
pub const FASTNORM_ERROR_DTYPE: fastnorm_status = 30;
pub const FASTNORM_ERROR_LAYOUT: fastnorm_status = 40;
pub const FASTNORM_ERROR_UNSUPPORTED: fastnorm_status = 50;
pub const FASTNORM_ERROR_DEVICE: fastnorm_status = 60;
pub const FASTNORM_ERROR_OUT_OF_MEMORY: fastnorm_status = 70;
pub const FASTNORM_ERROR_INTERNAL: fastnorm_status = 80;
/// Fixes the size of the type; never returned.
pub const FASTNORM_STATUS_MAX_ENUM: fastnorm_status = 0x7fffffff;

extern "C" {
    /// Name of a status.
    ///
    /// - `status`: the value
    ///
    /// Returns a static string such as "FASTNORM_ERROR_SHAPE"; "unknown status" for a value that
    /// this library does not have
    ///
    /// Since 0.1.
    pub fn fastnorm_status_name(status: fastnorm_status) -> *const c_char;

    /// Text of the last failure of a call on the calling thread. It names the argument, its value
    /// and what is required; for an unsupported combination it names the nearest one that is
    /// supported. A call that succeeds does not clear the text.
    ///
    /// Returns the text; "" before the first failure, never NULL. It belongs to the library and is
    /// valid until the next call that fails on the same thread
    ///
    /// Since 0.1.
    pub fn fastnorm_last_error() -> *const c_char;

    /// The error code of the CUDA runtime that caused the last FASTNORM_ERROR_DEVICE or
    /// FASTNORM_ERROR_OUT_OF_MEMORY on the calling thread.
    ///
    /// Returns a cudaError_t; 0 if the last failure did not come from the CUDA runtime
    ///
    /// Since 0.1.
    pub fn fastnorm_last_device_error() -> i32;
}

/// Where memory lives. The numbers are those of DLDeviceType of DLPack.
pub type fastnorm_device_type = c_uint;
/// Ordinary host memory.
pub const FASTNORM_DEVICE_CPU: fastnorm_device_type = 1;
/// Memory of a CUDA device.
pub const FASTNORM_DEVICE_CUDA: fastnorm_device_type = 2;
/// Pinned host memory; treated as memory of the CPU.
pub const FASTNORM_DEVICE_CUDA_HOST: fastnorm_device_type = 3;
/// Managed memory; treated as memory of a CUDA device.
pub const FASTNORM_DEVICE_CUDA_MANAGED: fastnorm_device_type = 13;
pub const FASTNORM_DEVICE_TYPE_MAX_ENUM: fastnorm_device_type = 0x7fffffff;

/// A device: its type, and which device of that type.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_device {
    /// A fastnorm_device_type.
    pub device_type: i32,
    /// Ordinal, as cudaSetDevice counts devices; 0 for the CPU.
    pub device_id: i32,
}

impl fastnorm_device {
    /// Everything zero.
    #[inline]
    pub const fn new() -> Self {
        Self {
            device_type: 0,
            device_id: 0,
        }
    }
}

impl Default for fastnorm_device {
    fn default() -> Self {
        Self::new()
    }
}

/// Element type, as DLDataType of DLPack describes it: the kind of number, its bits, and how many
/// numbers form an element.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_dtype {
    /// Kind of number, as DLDataTypeCode: 0 int, 1 uint, 2 float, 4 bfloat, 10 float8_e4m3fn, 12
    /// float8_e5m2, 14 float8_e8m0fnu, 17 float4_e2m1fn.
    pub code: u8,
    /// Number of bits of one number.
    pub bits: u8,
    /// Numbers per element: 1, or 2 for two fp4 codes in a byte.
    pub lanes: u16,
}

impl fastnorm_dtype {
    /// Everything zero.
    #[inline]
    pub const fn new() -> Self {
        Self {
            code: 0,
            bits: 0,
            lanes: 0,
        }
    }
}

impl Default for fastnorm_dtype {
    fn default() -> Self {
        Self::new()
    }
}

/// The dtypes of this library, each as one number: code | bits \<\< 8 | lanes \<\< 16.
/// fastnorm_dtype_of() converts it to the struct.
pub type fastnorm_dtype_id = c_uint;
/// IEEE binary32.
pub const FASTNORM_DTYPE_F32: fastnorm_dtype_id = 0x12002;
/// IEEE binary16.
pub const FASTNORM_DTYPE_F16: fastnorm_dtype_id = 0x11002;
/// bfloat16.
pub const FASTNORM_DTYPE_BF16: fastnorm_dtype_id = 0x11004;
/// fp8, largest value 448, no infinity.
pub const FASTNORM_DTYPE_F8_E4M3FN: fastnorm_dtype_id = 0x1080a;
/// fp8, largest value 57344.
pub const FASTNORM_DTYPE_F8_E5M2: fastnorm_dtype_id = 0x1080c;
/// A power-of-two scale.
pub const FASTNORM_DTYPE_F8_E8M0FNU: fastnorm_dtype_id = 0x1080e;
/// fp4, largest value 6.
pub const FASTNORM_DTYPE_F4_E2M1FN: fastnorm_dtype_id = 0x10411;
/// Two fp4 codes in a byte, the first in the low nibble.
pub const FASTNORM_DTYPE_F4_E2M1FN_X2: fastnorm_dtype_id = 0x20411;
/// Signed integer.
pub const FASTNORM_DTYPE_I8: fastnorm_dtype_id = 0x10800;
/// Unsigned integer, or a plain byte.
pub const FASTNORM_DTYPE_U8: fastnorm_dtype_id = 0x10801;
/// Signed integer.
pub const FASTNORM_DTYPE_I32: fastnorm_dtype_id = 0x12000;
/// Signed integer.
pub const FASTNORM_DTYPE_I64: fastnorm_dtype_id = 0x14000;
pub const FASTNORM_DTYPE_MAX_ENUM: fastnorm_dtype_id = 0x7fffffff;

/// A view of memory. Element (i, j, ..) lies i \* strides\[0\] + j \* strides\[1\] + .. elements
/// behind the address data + byte_offset.
///
/// - The last dimension must be contiguous, which means that its stride is 1 or its extent is at
///   most 1.
/// - The stride of a dimension of extent 1 is never used, and neither are the strides of a tensor
///   without elements, so they may be any number.
/// - The strides of leading dimensions may have any sign and need not be multiples of anything; for
///   inputs they may be 0, which broadcasts.
/// - The address must be a multiple of the size of an element; no other alignment is required. Rows
///   whose addresses and lengths are multiples of 16 bytes (sm_100f: 32) are fastest.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_tensor {
    /// Address on the device. May be NULL only if the tensor has no elements.
    pub data: *mut c_void,
    /// A fastnorm_device_type.
    pub device_type: i32,
    /// Ordinal of the device; ignored for memory of the CPU.
    pub device_id: i32,
    /// Number of dimensions: 1 to 8, unless a function says otherwise.
    pub ndim: i32,
    /// Element type.
    pub dtype: fastnorm_dtype,
    /// \[ndim\] extents, in elements.
    pub shape: *const i64,
    /// \[ndim\] strides, in elements; NULL = compact and row-major.
    pub strides: *const i64,
    /// Added to data; in bytes.
    pub byte_offset: u64,
}

impl fastnorm_tensor {
    /// Everything zero.
    #[inline]
    pub const fn new() -> Self {
        Self {
            data: core::ptr::null_mut(),
            device_type: 0,
            device_id: 0,
            ndim: 0,
            dtype: fastnorm_dtype::new(),
            shape: core::ptr::null(),
            strides: core::ptr::null(),
            byte_offset: 0,
        }
    }
}

impl Default for fastnorm_tensor {
    fn default() -> Self {
        Self::new()
    }
}

/// Everything that the library needs to run calls on one device. The type is opaque.
#[repr(C)]
pub struct fastnorm_context {
    _data: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// Severity of a log message.
pub type fastnorm_log_level = c_uint;
/// A failure.
pub const FASTNORM_LOG_ERROR: fastnorm_log_level = 0;
/// Something that may be wrong.
pub const FASTNORM_LOG_WARNING: fastnorm_log_level = 1;
/// What the library found. At present it sends only this level.
pub const FASTNORM_LOG_INFO: fastnorm_log_level = 2;
/// Details.
pub const FASTNORM_LOG_DEBUG: fastnorm_log_level = 3;
pub const FASTNORM_LOG_MAX_ENUM: fastnorm_log_level = 0x7fffffff;

/// Receives the messages of a context, on the thread that makes the call. The function must return
/// normally, so neither by an exception nor by longjmp.
///
/// - `user`: fastnorm_context_options.log_user
/// - `level`: a fastnorm_log_level
/// - `text`: one line without a newline; valid only during the callback
pub type fastnorm_log_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, level: i32, text: *const c_char)>;

/// A piece of work: does the items of the half-open range \[begin, end).
pub type fastnorm_range_fn = Option<unsafe extern "C" fn(task: *mut c_void, begin: i64, end: i64)>;

/// The caller's parallel loop. It calls fn(task, begin, end) for ranges that cover \[0, n) exactly
/// once, in any split, in any order and on any threads, and returns when all these calls have
/// returned. Ranges of about `grain` items or more are worth a thread. Results do not depend on the
/// split. TBB, rayon, OpenMP, ForkJoin and thread pools can all serve as such a loop. If the ranges
/// do not cover \[0, n) exactly once, the library notices when the loop has returned, and the call
/// returns FASTNORM_ERROR_ARGUMENT; by then the rows of the ranges that did run are written.
pub type fastnorm_parallel_for_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        n: i64,
        grain: i64,
        r#fn: fastnorm_range_fn,
        task: *mut c_void,
    ),
>;

/// Bits of fastnorm_context_options.flags.
pub type fastnorm_context_flags = c_uint;
/// Calls check, plan and fill in parameters, and then return without starting any work. The memory
/// of the tensors is neither read nor written. A CUDA context of this kind needs no GPU and no
/// driver, only dry_run_capability. It serves to plan for another machine, to test, and to measure
/// what a call costs on the host.
pub const FASTNORM_CONTEXT_DRY_RUN: fastnorm_context_flags = 1;
/// CUDA: calls use programmatic dependent launch only where their own flags ask for it, as if each
/// call had its NO_PDL flag.
pub const FASTNORM_CONTEXT_NO_PDL: fastnorm_context_flags = 2;
pub const FASTNORM_CONTEXT_FLAGS_MAX_ENUM: fastnorm_context_flags = 0x7fffffff;

/// Options of a context. A zeroed struct with struct_size set has the defaults of all options.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_context_options {
    /// sizeof(fastnorm_context_options).
    pub struct_size: usize,
    /// Receives messages. NULL = no messages.
    pub log: fastnorm_log_fn,
    /// Passed to log.
    pub log_user: *mut c_void,
    /// CPU: the caller's parallel loop; NULL = none.
    pub parallel_for: fastnorm_parallel_for_fn,
    /// Passed to parallel_for, unless a call has a parallel_user of its own.
    pub parallel_user: *mut c_void,
    /// CPU: number of threads that share the work of a call, including the calling thread, at most
    /// 1024; 0 = 1, the calling thread alone. The context's pool starts these threads when it is
    /// first used, and fastnorm_context_destroy joins them. A child process that is forked after
    /// the pool has started runs on one thread. Ignored if parallel_for is given.
    pub num_threads: i32,
    /// fastnorm_context_flags.
    pub flags: u32,
    /// With FASTNORM_CONTEXT_DRY_RUN: the compute capability to plan for, as major \* 10 + minor,
    /// such as 90. Such plans are for 132 multiprocessors. Without that flag it must be 0.
    pub dry_run_capability: i32,
    /// Must be 0.
    pub reserved: i32,
    /// CUDA: path of a file that `fastnorm tune` wrote for this model of GPU and this version of
    /// the library. Calls of the shapes in that file run on the kernels that were fastest there,
    /// and give the same bits. fastnorm_context_create reads the file once. NULL = none, which is
    /// required for the CPU.
    pub tuning_file: *const c_char,
}

impl fastnorm_context_options {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            log: None,
            log_user: core::ptr::null_mut(),
            parallel_for: None,
            parallel_user: core::ptr::null_mut(),
            num_threads: 0,
            flags: 0,
            dry_run_capability: 0,
            reserved: 0,
            tuning_file: core::ptr::null(),
        }
    }
}

impl Default for fastnorm_context_options {
    fn default() -> Self {
        Self::new()
    }
}

extern "C" {
    /// Number of devices of a type. The CPU is one device. CUDA devices count whether or not this
    /// build has kernels for them, which fastnorm_device_info.kernel_arch tells. If there is no
    /// CUDA driver, or this build has no CUDA backend, the call succeeds and the number is 0.
    ///
    /// - `device_type`: FASTNORM_DEVICE_CPU or FASTNORM_DEVICE_CUDA
    /// - `count`: receives the number
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT for another type or a null count
    ///
    /// Since 0.1.
    pub fn fastnorm_device_count(device_type: i32, count: *mut i32) -> fastnorm_status;
}

/// Properties of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_device_info {
    /// Input: sizeof(fastnorm_device_info).
    pub struct_size: usize,
    /// Model name, zero-terminated.
    pub name: [c_char; 128],
    /// CUDA: compute capability, major \* 10 + minor; CPU: 0.
    pub capability: i32,
    /// CUDA: number of multiprocessors; CPU: number of logical processors that this process may run
    /// on.
    pub multiprocessors: i32,
    /// Bytes of the level-2 cache; CPU: of one core's level-2 cache.
    pub l2_bytes: u64,
    /// CUDA: bytes of device memory; CPU: 0.
    pub memory_bytes: u64,
    /// CUDA: the driver's CUDA version, major \* 1000 + minor \* 10; CPU: 0.
    pub driver_version: i32,
    /// CUDA: version of the CUDA runtime that is linked into this library; CPU: 0.
    pub runtime_version: i32,
    /// Architecture of the kernels that run on the device, such as "sm_90" or "avx512"; "none" if
    /// this build has no kernels for it. Static.
    pub kernel_arch: *const c_char,
}

impl fastnorm_device_info {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            name: [0; 128],
            capability: 0,
            multiprocessors: 0,
            l2_bytes: 0,
            memory_bytes: 0,
            driver_version: 0,
            runtime_version: 0,
            kernel_arch: core::ptr::null(),
        }
    }
}

impl Default for fastnorm_device_info {
    fn default() -> Self {
        Self::new()
    }
}

extern "C" {
    /// Describe a device without creating a context.
    ///
    /// - `device`: the device
    /// - `info`: struct_size as input; receives the rest
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if info is null or its struct_size is too
    /// small; FASTNORM_ERROR_DEVICE if there is no such device
    ///
    /// Since 0.1.
    pub fn fastnorm_device_describe(
        device: fastnorm_device,
        info: *mut fastnorm_device_info,
    ) -> fastnorm_status;

    /// Create a context for one device.
    ///
    /// On a GPU the context uses the device's primary CUDA context. If nothing has initialised that
    /// yet, this call does, as cudaSetDevice would. No call of this library ends it: it lives until
    /// the process ends or cudaDeviceReset is called, after which the fastnorm_context must not be
    /// used for calls. The calling thread's current device stays as it was.
    ///
    /// - `device`: {FASTNORM_DEVICE_CPU, 0} or {FASTNORM_DEVICE_CUDA, ordinal}
    /// - `options`: NULL = defaults
    /// - `context`: receives the context, or NULL on failure; the caller owns it and ends it with
    ///   fastnorm_context_destroy
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if an argument is null or out of range, or if
    /// the tuning file cannot be read, has a wrong line (the text says which) or is of another
    /// version or architecture; FASTNORM_ERROR_DEVICE if the device or a usable driver is missing
    /// (the text says which driver was found and which is needed); FASTNORM_ERROR_UNSUPPORTED if
    /// this build has no kernels for the device; FASTNORM_ERROR_OUT_OF_MEMORY if host or device
    /// memory ran out
    ///
    /// Since 0.1.
    pub fn fastnorm_context_create(
        device: fastnorm_device,
        options: *const fastnorm_context_options,
        context: *mut *mut fastnorm_context,
    ) -> fastnorm_status;

    /// Destroy a context. No call on the context may run at the same time or follow, as the top of
    /// this header explains.
    ///
    /// - `context`: the context; if it is NULL, nothing is done
    ///
    /// Since 0.1.
    pub fn fastnorm_context_destroy(context: *mut fastnorm_context);
}

/// What a call would do, filled in by the `_query` functions. Strings are static.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_info {
    /// Input: sizeof(fastnorm_info).
    pub struct_size: usize,
    /// Bytes of workspace that the call needs; 0 = none. The number never decreases when rows are
    /// added.
    pub workspace_bytes: u64,
    /// Bytes of rows, weight and bias that the call must read, once for each tensor. A dimension of
    /// stride 0 counts once; rows that overlap in another way count one by one.
    pub bytes_read: u64,
    /// Bytes of rows, statistics, codes and scales that the call writes, each counted once.
    pub bytes_written: u64,
    /// Name of the kernel, as fastnorm_kernel_describe gives it; on CUDA some families put their
    /// own name before it. A dry run may name a kernel that this build does not contain. "" if
    /// nothing is launched.
    pub kernel: *const c_char,
    /// Number of kernel launches. CPU: 1, or 0 if there are no rows.
    pub launches: i32,
    /// CUDA: number of threads that share a row, over all its thread blocks; CPU: 1.
    pub threads_per_row: i32,
    /// CUDA: number of 16-byte vectors of a row that a thread holds; 0 = the kernel reads the row
    /// again in each pass. CPU: 0.
    pub vectors_per_thread: i32,
    /// CUDA: number of rows that a thread block works on at once; CPU: number of rows for which
    /// another thread is worth its cost.
    pub rows_per_block: i32,
    /// CUDA: thread blocks (one cluster) that share a row; CPU: 1.
    pub blocks_per_row: i32,
    /// Widest access in bytes that the addresses and strides of x, residual, y, residual_out,
    /// weight and bias allow: 1 to 16, on sm_100f up to 32, on the CPU up to 64.
    pub vector_bytes: i32,
    /// CUDA: number of thread blocks in the grid; if they cannot hold all rows at once, each block
    /// takes several groups of rows, one after another. CPU: the largest number of threads that may
    /// take part.
    pub blocks: u64,
    /// Bytes of the buffer for fastnorm_mla_decode_args.profile; 0 = none. Since 0.2.
    pub profile_bytes: u64,
    /// CUDA: the KIND line of the list of choices that chose the kernel, which says what kinds of
    /// call the list serves; "" if no list chose, as on the CPU, without rows, and in families that
    /// have no lists. Since 0.2.
    pub kind: *const c_char,
    /// CUDA: the line of that list for this row length and number of rows, or a remark that a
    /// tuning file decided. `fastnorm explain` prints these lines. Since 0.2.
    pub choice: *const c_char,
    /// CUDA: the kernel's line in variants\*.inc. Since 0.2.
    pub variant: *const c_char,
}

impl fastnorm_info {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            workspace_bytes: 0,
            bytes_read: 0,
            bytes_written: 0,
            kernel: core::ptr::null(),
            launches: 0,
            threads_per_row: 0,
            vectors_per_thread: 0,
            rows_per_block: 0,
            blocks_per_row: 0,
            vector_bytes: 0,
            blocks: 0,
            profile_bytes: 0,
            kind: core::ptr::null(),
            choice: core::ptr::null(),
            variant: core::ptr::null(),
        }
    }
}

impl Default for fastnorm_info {
    fn default() -> Self {
        Self::new()
    }
}

/// One kernel of this build. Strings are static.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_kernel_info {
    /// Input: sizeof(fastnorm_kernel_info).
    pub struct_size: usize,
    /// Such as "norm", "norm_backward" or "peer".
    pub family: *const c_char,
    /// Architecture, such as "sm_90" or "avx512".
    pub arch: *const c_char,
    /// A name that is unique within family and arch.
    pub name: *const c_char,
}

impl fastnorm_kernel_info {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            family: core::ptr::null(),
            arch: core::ptr::null(),
            name: core::ptr::null(),
        }
    }
}

impl Default for fastnorm_kernel_info {
    fn default() -> Self {
        Self::new()
    }
}

extern "C" {
    /// Number of kernels in this build, for all devices.
    ///
    /// Returns the number; 0 if host memory ran out
    ///
    /// Since 0.1.
    pub fn fastnorm_kernel_count() -> i32;

    /// Describe one kernel of this build.
    ///
    /// - `index`: its number, 0 to fastnorm_kernel_count() - 1
    /// - `info`: struct_size as input; receives the rest
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if index is out of range, or if info is null or
    /// its struct_size is too small
    ///
    /// Since 0.1.
    pub fn fastnorm_kernel_describe(index: i32, info: *mut fastnorm_kernel_info)
        -> fastnorm_status;
}

/// Which statistic normalises a row.
pub type fastnorm_norm_kind = c_uint;
/// The root mean square; no mean is subtracted.
pub const FASTNORM_NORM_RMS: fastnorm_norm_kind = 0;
/// The mean and the (biased) variance, computed in two passes over the row and never as mean(x^2) -
/// mean(x)^2.
pub const FASTNORM_NORM_LAYER: fastnorm_norm_kind = 1;
pub const FASTNORM_NORM_KIND_MAX_ENUM: fastnorm_norm_kind = 0x7fffffff;

/// Where y is rounded to x's dtype T while it is computed. The rounding to T takes place even if y
/// is f32 and x has 16 bits. If T is f32, ONCE and NORMALIZED are the same.
pub type fastnorm_rounding = c_uint;
/// Only when y is stored, as in FlashInfer, quack, Transformer Engine and Gemma.
pub const FASTNORM_ROUND_ONCE: fastnorm_rounding = 0;
/// Also t, before the weight multiplies it, as in Llama, Mistral and Qwen as published.
pub const FASTNORM_ROUND_NORMALIZED: fastnorm_rounding = 1;
/// Every elementwise result: (a - mean), its square, the variance, variance + eps, the root, t,
/// weight + weight_offset, the product and the sum. A 16-bit eager chain rounds like this.
pub const FASTNORM_ROUND_EVERY_STEP: fastnorm_rounding = 2;
/// Only when y is stored, but with the product taken in another order: (b - mean) \* (rstd \*
/// (weight + weight_offset)) + bias in place of ((b - mean) \* rstd) \* (weight + weight_offset) +
/// bias. The fused kernels of query/key norm and rope in vLLM, TensorRT-LLM and SGLang compute the
/// norm like this.
pub const FASTNORM_ROUND_ONCE_RW: fastnorm_rounding = 3;
pub const FASTNORM_ROUNDING_MAX_ENUM: fastnorm_rounding = 0x7fffffff;

/// Which value of the sum x + residual is normalised. R is the dtype of residual_out, or that of
/// residual if there is no residual_out.
pub type fastnorm_residual_rounding = c_uint;
/// The single-precision sum, both for the statistics and for t.
pub const FASTNORM_RESIDUAL_EXACT: fastnorm_residual_rounding = 0;
/// The statistics use the single-precision sum; t uses the sum rounded to R.
pub const FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY: fastnorm_residual_rounding = 1;
/// Both use the sum rounded to R, as if the addition were a separate operation.
pub const FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS: fastnorm_residual_rounding = 2;
pub const FASTNORM_RESIDUAL_ROUNDING_MAX_ENUM: fastnorm_residual_rounding = 0x7fffffff;

/// How fastnorm_quant.quantized is scaled.
pub type fastnorm_quant_scheme = c_uint;
/// No codes are made.
pub const FASTNORM_QUANT_NONE: fastnorm_quant_scheme = 0;
/// One scale, which is an input.
pub const FASTNORM_QUANT_PER_TENSOR: fastnorm_quant_scheme = 1;
/// One scale per row, from the row's largest magnitude.
pub const FASTNORM_QUANT_PER_ROW: fastnorm_quant_scheme = 2;
/// One scale for each block of 64 or 128 columns of a row.
pub const FASTNORM_QUANT_PER_BLOCK: fastnorm_quant_scheme = 3;
/// fp8 with one power-of-two scale for 32 columns.
pub const FASTNORM_QUANT_MXFP8: fastnorm_quant_scheme = 4;
/// fp4 with one e4m3 scale for 16 columns and a global scale for the tensor.
pub const FASTNORM_QUANT_NVFP4: fastnorm_quant_scheme = 5;
/// fp4 with one power-of-two scale for 32 columns.
pub const FASTNORM_QUANT_MXFP4: fastnorm_quant_scheme = 6;
pub const FASTNORM_QUANT_SCHEME_MAX_ENUM: fastnorm_quant_scheme = 0x7fffffff;

/// Which value is quantised.
pub type fastnorm_quant_source = c_uint;
/// The unrounded result.
pub const FASTNORM_QUANT_FROM_F32: fastnorm_quant_source = 0;
/// The result rounded to x's dtype, as a chain of unfused operations would quantise it.
pub const FASTNORM_QUANT_FROM_ROUNDED: fastnorm_quant_source = 1;
pub const FASTNORM_QUANT_SOURCE_MAX_ENUM: fastnorm_quant_source = 0x7fffffff;

/// How PER_TENSOR, PER_ROW and PER_BLOCK compute a code from z and its scale.
pub type fastnorm_quant_division = c_uint;
/// code = z \* (1 / scale), which rounds twice.
pub const FASTNORM_QUANT_MULTIPLY_RECIPROCAL: fastnorm_quant_division = 0;
/// code = z / scale, which rounds once, as the dynamic fp8 of vLLM does. If the scales are powers
/// of two (scale_pow2), both ways give the same codes.
pub const FASTNORM_QUANT_DIVIDE: fastnorm_quant_division = 1;
pub const FASTNORM_QUANT_DIVISION_MAX_ENUM: fastnorm_quant_division = 0x7fffffff;

/// The order of the scales of blocks in memory. If the scale tensor has strides, they decide the
/// order in the first two layouts. Nothing outside the tensor's shape is written.
pub type fastnorm_scale_layout = c_uint;
/// The scales of one row are adjacent.
pub const FASTNORM_SCALE_ROW_MAJOR: fastnorm_scale_layout = 0;
/// The scales of one column of blocks are adjacent, if the tensor has no strides.
pub const FASTNORM_SCALE_COLUMN_MAJOR: fastnorm_scale_layout = 1;
/// One-byte scales in a tensor \[512 \* ceil(rows / 128) \* T\] with T = ceil(K / 4), where K is
/// the number of scales of a row. Scale k of row m is at (m / 128 \* T + k / 4) \* 512 + m % 32 \*
/// 16 + m % 128 / 32 \* 4 + k % 4. All padding is written as 0.
pub const FASTNORM_SCALE_SWIZZLED_128X4: fastnorm_scale_layout = 2;
pub const FASTNORM_SCALE_LAYOUT_MAX_ENUM: fastnorm_scale_layout = 0x7fffffff;

/// A function that is applied to each element. docs/numerics.md gives its operations, which are the
/// same on every device and so give the same bits everywhere.
pub type fastnorm_activation = c_uint;
/// v.
pub const FASTNORM_ACTIVATION_IDENTITY: fastnorm_activation = 0;
/// v / (1 + exp(-v)); the result is -0 for v of -110 and below, including -Inf.
pub const FASTNORM_ACTIVATION_SILU: fastnorm_activation = 1;
/// 1 / (1 + exp(-v)).
pub const FASTNORM_ACTIVATION_SIGMOID: fastnorm_activation = 2;
/// tanh(v).
pub const FASTNORM_ACTIVATION_TANH: fastnorm_activation = 3;
pub const FASTNORM_ACTIVATION_MAX_ENUM: fastnorm_activation = 0x7fffffff;

/// Which row the gate multiplies.
pub type fastnorm_gate_position = c_uint;
/// The normalised row, as in Qwen3-Next and Kimi Linear.
pub const FASTNORM_GATE_AFTER_NORM: fastnorm_gate_position = 0;
/// x, before the residual is added and the statistics are taken, as in Mamba2.
pub const FASTNORM_GATE_BEFORE_NORM: fastnorm_gate_position = 1;
pub const FASTNORM_GATE_POSITION_MAX_ENUM: fastnorm_gate_position = 0x7fffffff;

/// Which value a gate after the norm multiplies.
pub type fastnorm_gate_source = c_uint;
/// The unrounded result, as in FLA, mamba and vLLM.
pub const FASTNORM_GATE_FROM_F32: fastnorm_gate_source = 0;
/// The result rounded to x's dtype, as in Hugging Face.
pub const FASTNORM_GATE_FROM_ROUNDED: fastnorm_gate_source = 1;
pub const FASTNORM_GATE_SOURCE_MAX_ENUM: fastnorm_gate_source = 0x7fffffff;

/// Where the sum of branch and residual is rounded to x's dtype T while it is computed.
pub type fastnorm_sum_rounding = c_uint;
/// Nowhere: the product with alpha and the addition of the residual are one fused operation.
pub const FASTNORM_SUM_ONCE: fastnorm_sum_rounding = 0;
/// The product, the sum and the product with sum_scale.
pub const FASTNORM_SUM_EVERY_STEP: fastnorm_sum_rounding = 1;
pub const FASTNORM_SUM_ROUNDING_MAX_ENUM: fastnorm_sum_rounding = 0x7fffffff;

/// Where the modulation is rounded to x's dtype T while it is computed.
pub type fastnorm_modulation_rounding = c_uint;
/// Nowhere: z \* (1 + scale) + shift is one operation.
pub const FASTNORM_MODULATION_ONCE: fastnorm_modulation_rounding = 0;
/// z, the sums with tables, 1 + scale, the product and the sum, as a chain of operations in T
/// rounds them.
pub const FASTNORM_MODULATION_EVERY_STEP: fastnorm_modulation_rounding = 1;
pub const FASTNORM_MODULATION_ROUNDING_MAX_ENUM: fastnorm_modulation_rounding = 0x7fffffff;

/// Bits of fastnorm_norm_args.flags. Four of them are about programmatic dependent launch, by which
/// a kernel starts while the previous kernel of the stream still runs. They have no effect on the
/// CPU and on GPUs before compute capability 9.0, and results never depend on them.
///
/// By default a call does what PDL_WAIT and PDL_TRIGGER say. NO_PDL turns this off for a call, and
/// a flag of the context turns it off for all of its calls. The calls of peers do what PDL_WAIT
/// says by default, but only those of their kernels that wait for no other rank trigger.
///
/// One thing follows for the caller's own kernels: a following kernel that is itself launched with
/// the attribute cudaLaunchAttributeProgrammaticStreamSerialization must wait, by
/// cudaGridDependencySynchronize(), before it uses anything that any earlier kernel of the stream
/// wrote, not only what this call wrote. A kernel without the attribute starts when all earlier
/// kernels have ended, and need not do anything.
pub type fastnorm_norm_flags = c_uint;
/// Start when the previous kernel of the stream allows it, but read and write nothing before that
/// kernel has ended.
pub const FASTNORM_NORM_PDL_WAIT: fastnorm_norm_flags = 1;
/// Let the next kernel of the stream start early: if this one waits, after its wait, so at the
/// earliest when everything before this call has ended. The next kernel must wait itself before it
/// uses anything that any earlier kernel of the stream wrote.
pub const FASTNORM_NORM_PDL_TRIGGER: fastnorm_norm_flags = 2;
/// With PDL_WAIT: weight and bias may be read before the wait. The caller promises that no kernel
/// that may still run writes them.
pub const FASTNORM_NORM_PDL_CONSTANT_WEIGHTS: fastnorm_norm_flags = 4;
/// The factor of the modulation is modulation_scale itself, in place of 1 + modulation_scale.
pub const FASTNORM_NORM_MODULATION_PLAIN_SCALE: fastnorm_norm_flags = 8;
/// The branch is multiplied by alpha, even if alpha is 0. Without the flag it has no such factor.
pub const FASTNORM_NORM_ALPHA: fastnorm_norm_flags = 16;
/// Programmatic dependent launch is not used unless other bits ask for it: alone, the call starts
/// when all earlier kernels have ended and lets no kernel start early. With PDL_WAIT, with
/// PDL_TRIGGER or with both the call does only what these say.
pub const FASTNORM_NORM_NO_PDL: fastnorm_norm_flags = 512;
pub const FASTNORM_NORM_FLAGS_MAX_ENUM: fastnorm_norm_flags = 0x7fffffff;

/// How results are quantised, and where codes and scales are stored. A zeroed struct with
/// struct_size, scheme, quantized and scale set is valid for PER_TENSOR, PER_ROW, MXFP8, NVFP4 and
/// MXFP4; PER_BLOCK needs block_size, too. The formulas are at the top of this header. With
/// FASTNORM_QUANT_NONE only amax may be given. x is the input of the call that this struct belongs
/// to, and T is its dtype.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_quant {
    /// sizeof(fastnorm_quant).
    pub struct_size: usize,
    /// How codes are scaled. Default: nothing is quantised.
    pub scheme: fastnorm_quant_scheme,
    /// PER_BLOCK: 64 or 128 columns; else 0.
    pub block_size: i32,
    /// Which value is quantised. Default: the unrounded result.
    pub source: fastnorm_quant_source,
    /// PER_TENSOR, PER_ROW and PER_BLOCK: how codes are made. Default: z times the reciprocal of
    /// the scale. Other schemes: 0.
    pub division: fastnorm_quant_division,
    /// The order of the scales of blocks in memory. Default: row-major.
    pub scale_layout: fastnorm_scale_layout,
    /// PER_ROW and PER_BLOCK with f8 codes: 1 = scales are powers of two; else 0.
    pub scale_pow2: i32,
    /// PER_ROW and PER_BLOCK: the least magnitude that a scale is made from, between 2^-100 and
    /// 2^100; 0 = 1e-10.
    pub amax_floor: f32,
    /// \> 0: results are clamped to \[-clamp, clamp\] before quantising; 0 = no clamp.
    pub clamp: f32,
    /// The codes, of x's shape; for pairs of f4 codes the last extent is half of n. Output.
    pub quantized: *const fastnorm_tensor,
    /// The scales. Input for PER_TENSOR, otherwise output.
    pub scale: *const fastnorm_tensor,
    /// The second scale of NVFP4, of either sign and with a magnitude between 2^-100 and 2^100.
    /// \[1\] f32; NULL = 1.
    pub global_scale: *const fastnorm_tensor,
    /// A clamp whose value lies on the device and is read after the PDL wait. \[1\] f32. A value
    /// above 0 clamps as `clamp` does; any other value (0, negative or NaN) clamps nothing.
    /// Requires a scheme, and `clamp` must be 0. NULL = `clamp` decides.
    pub clamp_scale: *const fastnorm_tensor,
    /// The greatest magnitude of what is quantised or, if nothing is quantised, of y. \[1\] f32.
    /// Input and output: the call raises the value that is there, which the caller sets to 0
    /// beforehand. If any value is NaN, it becomes NaN. Requires quantized or y.
    pub amax: *const fastnorm_tensor,
    /// Number of columns of a block that is rotated before its scale is found: 16, 32, 64 or 128, a
    /// divisor of n. If the scheme has scales of blocks, their columns are a multiple of it. 0 =
    /// nothing is rotated.
    pub rotation: i32,
    /// 1 = y is the rotated result, of which quantized holds the codes; else 0. Requires rotation.
    /// Default: y is as without a rotation.
    pub y_rotated: i32,
    /// What each column is multiplied by before the rotation, 1 or -1: \[n\], or \[rotation\] for
    /// all blocks. f32. The CPU refuses other values before it writes anything. A GPU does not look
    /// at them and takes their signs alone. Requires rotation. NULL = 1.
    pub rotation_signs: *const fastnorm_tensor,
}

impl fastnorm_quant {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            scheme: 0,
            block_size: 0,
            source: 0,
            division: 0,
            scale_layout: 0,
            scale_pow2: 0,
            amax_floor: 0.0,
            clamp: 0.0,
            quantized: core::ptr::null(),
            scale: core::ptr::null(),
            global_scale: core::ptr::null(),
            clamp_scale: core::ptr::null(),
            amax: core::ptr::null(),
            rotation: 0,
            y_rotated: 0,
            rotation_signs: core::ptr::null(),
        }
    }
}

impl Default for fastnorm_quant {
    fn default() -> Self {
        Self::new()
    }
}

/// One normalisation. A zeroed struct with struct_size, x and y set is a valid RMSNorm without a
/// weight and with eps 0.
///
/// Shapes: x is \[..., n\] with a rank from 1 to 8 and n from 1 to 2^32. T is x's dtype, which is
/// f32, f16 or bf16. All tensors are on the context's device. The last dimension must be
/// contiguous. The leading dimensions may have any strides; a stride of 0 is allowed for inputs
/// only. Any alignment that the dtype allows is accepted.
///
/// Ranks 5 to 8: two neighbouring leading dimensions are joined if every tensor steps evenly across
/// both of them, as compact tensors do. Dimensions of extent 1 do not count. At most 3 leading
/// dimensions may remain; if there are more, the call returns FASTNORM_ERROR_UNSUPPORTED.
///
/// Dtypes: weight, bias, residual and residual_out may each be f32, f16 or bf16, whatever T is. y
/// is T or f32. The address and the strides of a tensor are multiples of the size of its elements.
/// A GPU has fast kernels for calls in which all tensors have one dtype, and for f32 weight and
/// bias with a 16-bit x. Other combinations run on general kernels, which are slower.
///
/// weight and bias broadcast against x as in NumPy: counted from the right, their last extent is n,
/// each leading extent is 1 or that of x, and missing extents are 1. Examples are \[n\], \[1, n\],
/// \[heads, n\] and \[batch, 1, n\]. They may vary along any leading dimensions. On a GPU, calls
/// run on general kernels in two cases: if weight or bias varies along more than one dimension
/// after joining, or if it varies along any leading dimension except the innermost and
/// FASTNORM_SCALE_SWIZZLED_128X4 is used.
///
/// Aliasing: y and residual_out may each be the same view as x or residual, and y may also be the
/// same view as the gate; a view is the same if address, dtype, shape and strides are. So y = x
/// with residual_out = residual works in place, and y = residual with residual_out = x is allowed,
/// too, but y and residual_out may not be one tensor. Two tensors of which one is written may also
/// be interleaved views of one buffer that share no element, such as the query heads and the key
/// heads of a fused QKV tensor. Any other overlap returns FASTNORM_ERROR_LAYOUT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_norm_args {
    /// sizeof(fastnorm_norm_args).
    pub struct_size: usize,
    /// Passed to the context's parallel_for in place of the context's parallel_user; NULL = that of
    /// the context. It has no effect if the context has no parallel_for.
    pub parallel_user: *mut c_void,
    /// RMS or LAYER.
    pub kind: fastnorm_norm_kind,
    /// Added to the mean square or the variance. Finite, \>= 0.
    pub eps: f32,
    /// Added to the weight in f32, such as 1 for Gemma. Finite; 0 if weight is NULL.
    pub weight_offset: f32,
    /// Where y is rounded while it is computed. Default: only when it is stored.
    pub rounding: fastnorm_rounding,
    /// Which value of the sum x + residual is normalised. Default: the exact sum. It has no effect
    /// without a residual.
    pub residual_rounding: fastnorm_residual_rounding,
    /// Bits of fastnorm_norm_flags, or 0.
    pub flags: u32,
    /// \[..., n\] T. Required.
    pub x: *const fastnorm_tensor,
    /// Added to x before the norm. x's shape; f32, f16 or bf16. NULL = nothing is added.
    pub residual: *const fastnorm_tensor,
    /// \[.., n\], broadcasts against x; f32, f16 or bf16. NULL = 1.
    pub weight: *const fastnorm_tensor,
    /// \[.., n\], broadcasts against x; f32, f16 or bf16. NULL = 0.
    pub bias: *const fastnorm_tensor,
    /// The normalised rows. x's shape, T or f32. Output; may be x or residual. NULL = not stored;
    /// then quant.quantized or `sumsq` is required.
    pub y: *const fastnorm_tensor,
    /// The sum x + residual. x's shape; f32, f16 or bf16. Output; may be residual or x. Requires
    /// residual. NULL = not stored.
    pub residual_out: *const fastnorm_tensor,
    /// The mean of each row. x.shape\[:-1\], or that with a last extent of 1; f32. Output, LAYER
    /// only. NULL = not stored.
    pub mean: *const fastnorm_tensor,
    /// The reciprocal of each row's root mean square (RMS) or standard deviation (LAYER), with eps;
    /// the shape and dtype are those of mean. Output. NULL = not stored.
    pub rstd: *const fastnorm_tensor,
    /// How and where codes are stored, and the amax of y. NULL = nothing is quantised.
    pub quant: *const fastnorm_quant,
    /// The gate of each element: see "Stages" above. x's shape; T or f32. y may be the same view,
    /// but x must not overlap it. NULL = nothing is gated; then gate_act, gate_position and
    /// gate_source must be 0.
    pub gate: *const fastnorm_tensor,
    /// The function that is applied to the gate. Default: identity.
    pub gate_act: fastnorm_activation,
    /// Which row the gate multiplies. Default: the normalised row.
    pub gate_position: fastnorm_gate_position,
    /// Which value a gate after the norm multiplies. Default: the unrounded result. With a gate
    /// before the norm it must be the default.
    pub gate_source: fastnorm_gate_source,
    /// The function that is applied to the result, after the gate. Default: identity.
    pub activation: fastnorm_activation,
    /// Number of columns that share a statistic, a divisor of n; 0 = n. With groups, weight and
    /// bias are \[.., n\] or, if all groups share them, \[.., group_size\].
    pub group_size: i64,
    /// This device's part of a statistic of several devices, f32. RMS: the sum of squares, of
    /// mean's shape. LAYER: the mean and the sum of (a - mean)^2, in a last extent of 2. Output; y
    /// may be NULL. Not with rstd_in, nor with FASTNORM_ROUND_EVERY_STEP.
    pub sumsq: *const fastnorm_tensor,
    /// LAYER: the mean to use in place of the row's own, together with rstd_in; the shape and dtype
    /// are those of mean. Input.
    pub mean_in: *const fastnorm_tensor,
    /// The rstd to use in place of the row's own; the shape and dtype are those of rstd. Input. Not
    /// with mean, rstd or sumsq.
    pub rstd_in: *const fastnorm_tensor,
    /// 1: x, multiplied by the gate if that comes first, is normalised before the residual is
    /// added. 0: it is not, and the other fields of the branch's norm are 0.
    pub branch_norm: i32,
    /// The kind of the branch's norm: RMS or LAYER.
    pub branch_kind: fastnorm_norm_kind,
    /// The eps of the branch's norm. Finite, \>= 0.
    pub branch_eps: f32,
    /// Added to branch_weight in f32. Finite; 0 if branch_weight is NULL.
    pub branch_weight_offset: f32,
    /// Where the branch's norm rounds to x's dtype. Default: nowhere. FASTNORM_ROUND_ONCE_RW is an
    /// error.
    pub branch_rounding: fastnorm_rounding,
    /// 1: the branch is rounded to x's dtype before the sum.
    pub branch_rounded: i32,
    /// With FASTNORM_NORM_ALPHA: factor of the branch, finite; else 0.
    pub alpha: f32,
    /// Where the sum is rounded while it is computed. Default: nowhere.
    pub sum_rounding: fastnorm_sum_rounding,
    /// The weight of the branch's norm, \[.., n\], with the rules of weight. NULL = 1.
    pub branch_weight: *const fastnorm_tensor,
    /// The bias of the branch's norm, \[.., n\], with the rules of bias. NULL = 0.
    pub branch_bias: *const fastnorm_tensor,
    /// The rstd of the branch's norm. x.shape\[:-1\], or that with a last extent of 1; f32. Output.
    /// NULL = not stored.
    pub branch_rstd: *const fastnorm_tensor,
    /// A factor of the sum, whose value lies on the device. \[1\] f32. Input; NULL = 1.
    pub sum_scale: *const fastnorm_tensor,
    /// Factor of the branch in the sum, T or f32. It broadcasts against x as in NumPy: counted from
    /// the right, each extent is 1 or that of x, and missing extents are 1. Examples are \[1\],
    /// \[batch, 1, n\] and \[batch, tokens, 1\]. With modulation_index it is \[m, n\] or \[m, 1\].
    /// NULL = 1.
    pub residual_gate: *const fastnorm_tensor,
    /// A row that is added to residual_gate: \[n\], or with leading extents of 1; T or f32. NULL =
    /// 0.
    pub residual_gate_table: *const fastnorm_tensor,
    /// The function that is applied to the sum of residual_gate and its table. Default: identity.
    pub residual_gate_act: fastnorm_activation,
    /// Where the modulation is rounded while it is computed. Default: nowhere. Requires
    /// modulation_scale or modulation_shift.
    pub modulation_rounding: fastnorm_modulation_rounding,
    /// The normalised row is multiplied by 1 + modulation_scale. Shape and dtype follow the rules
    /// of residual_gate. NULL = nothing is multiplied.
    pub modulation_scale: *const fastnorm_tensor,
    /// A row that is added to modulation_scale, with the rules of residual_gate_table. NULL = 0.
    pub scale_table: *const fastnorm_tensor,
    /// Added to the normalised row after the multiplication. Shape and dtype follow the rules of
    /// residual_gate. NULL = nothing is added.
    pub modulation_shift: *const fastnorm_tensor,
    /// A row that is added to modulation_shift, with the rules of residual_gate_table. NULL = 0.
    pub shift_table: *const fastnorm_tensor,
    /// The row of the modulators that each row of x takes. x.shape\[:-1\], or that with a last
    /// extent of 1; i32 or i64. NULL = the modulators broadcast.
    pub modulation_index: *const fastnorm_tensor,
}

impl fastnorm_norm_args {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            parallel_user: core::ptr::null_mut(),
            kind: 0,
            eps: 0.0,
            weight_offset: 0.0,
            rounding: 0,
            residual_rounding: 0,
            flags: 0,
            x: core::ptr::null(),
            residual: core::ptr::null(),
            weight: core::ptr::null(),
            bias: core::ptr::null(),
            y: core::ptr::null(),
            residual_out: core::ptr::null(),
            mean: core::ptr::null(),
            rstd: core::ptr::null(),
            quant: core::ptr::null(),
            gate: core::ptr::null(),
            gate_act: 0,
            gate_position: 0,
            gate_source: 0,
            activation: 0,
            group_size: 0,
            sumsq: core::ptr::null(),
            mean_in: core::ptr::null(),
            rstd_in: core::ptr::null(),
            branch_norm: 0,
            branch_kind: 0,
            branch_eps: 0.0,
            branch_weight_offset: 0.0,
            branch_rounding: 0,
            branch_rounded: 0,
            alpha: 0.0,
            sum_rounding: 0,
            branch_weight: core::ptr::null(),
            branch_bias: core::ptr::null(),
            branch_rstd: core::ptr::null(),
            sum_scale: core::ptr::null(),
            residual_gate: core::ptr::null(),
            residual_gate_table: core::ptr::null(),
            residual_gate_act: 0,
            modulation_rounding: 0,
            modulation_scale: core::ptr::null(),
            scale_table: core::ptr::null(),
            modulation_shift: core::ptr::null(),
            shift_table: core::ptr::null(),
            modulation_index: core::ptr::null(),
        }
    }
}

impl Default for fastnorm_norm_args {
    fn default() -> Self {
        Self::new()
    }
}

extern "C" {
    /// Say what a call would do: its workspace, kernel, launches and bytes. The query does not
    /// touch the memory of the tensors, but their addresses count, since overlap and alignment
    /// follow from them.
    ///
    /// - `context`: the device
    /// - `args`: the arguments of the call
    /// - `info`: struct_size as input; receives the rest
    ///
    /// Returns as fastnorm_norm; FASTNORM_ERROR_ARGUMENT also if info is null or its struct_size is
    /// too small
    ///
    /// Since 0.1.
    pub fn fastnorm_norm_query(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_args,
        info: *mut fastnorm_info,
    ) -> fastnorm_status;

    /// Load what a call needs: CUDA loads a kernel when it is first used, which allocates memory
    /// and may synchronise. Afterwards, calls that use the same kernel neither allocate nor
    /// synchronise, and can be captured in a CUDA graph. Preparing is optional, because the first
    /// call that uses a kernel loads it, too.
    ///
    /// - `context`: the device
    /// - `args`: the arguments of the call
    ///
    /// Returns as fastnorm_norm
    ///
    /// Since 0.1.
    pub fn fastnorm_norm_prepare(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_args,
    ) -> fastnorm_status;

    /// Normalise the rows of x; the formula is at the top of this header.
    ///
    /// CUDA: the call queues one kernel on `stream` and returns. It can be captured in a CUDA
    /// graph. It uses the context's device, whichever device is current, and leaves the current
    /// device as it was. CPU: the work is done when the call returns. Once its kernel is loaded, a
    /// call allocates nothing, does not synchronise and takes no lock. Zero rows are a success:
    /// nothing is launched and nothing is written.
    ///
    /// - `context`: the device
    /// - `args`: what to compute; read only during the call
    /// - `workspace`: fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned. Their
    ///   contents may be anything, and nothing else may use them until the work has run. NULL if 0
    ///   bytes are needed
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: CUDA: the cudaStream_t; NULL = the legacy default stream; the runtime's special
    ///   handles are accepted, too. CPU: NULL
    ///
    /// Returns FASTNORM_OK FASTNORM_ERROR_ARGUMENT: context, args or x is null, or there is no
    /// output; a tensor has no shape, or it has elements but no data; a struct_size is too small;
    /// an enum, eps, an offset or another scalar is out of range; the workspace is too small; there
    /// is a stream on the CPU; parallel_for did not cover the rows exactly once, in which case some
    /// of them may have been written FASTNORM_ERROR_SHAPE: ranks or extents do not fit; n \< 1 or n
    /// \> 2^32 FASTNORM_ERROR_DTYPE: a tensor has a dtype that its role does not allow
    /// FASTNORM_ERROR_LAYOUT: a last dimension is not contiguous, an address is misaligned, or
    /// tensors overlap FASTNORM_ERROR_UNSUPPORTED: a field of a later version is set, or bytes
    /// after the known fields are not zero; there are more rows than a grid holds; leading
    /// dimensions cannot be joined FASTNORM_ERROR_DEVICE: a tensor is on another device; the
    /// device's current CUDA context is not its primary one; the CUDA runtime reported an error,
    /// which may be a sticky one of earlier work FASTNORM_ERROR_OUT_OF_MEMORY: the CUDA runtime had
    /// no memory, for example to load the kernel FASTNORM_ERROR_INTERNAL: a defect of this library,
    /// or an exception out of parallel_for
    ///
    /// Since 0.1.
    pub fn fastnorm_norm(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_args,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> fastnorm_status;

    /// The query for fastnorm_norm_many. Its figures are the sums over all parts, and `kernel` is
    /// that of the first part that has rows.
    ///
    /// - `context`: the device
    /// - `args`: \[count\] pointers, the arguments of the call
    /// - `count`: 0 to 8
    /// - `info`: struct_size as input; receives the rest
    ///
    /// Returns as fastnorm_norm_query
    ///
    /// Since 0.1.
    pub fn fastnorm_norm_many_query(
        context: *mut fastnorm_context,
        args: *const *const fastnorm_norm_args,
        count: i32,
        info: *mut fastnorm_info,
    ) -> fastnorm_status;

    /// Load what a fastnorm_norm_many needs, as fastnorm_norm_prepare does for fastnorm_norm.
    ///
    /// - `context`: the device
    /// - `args`: \[count\] pointers, the arguments of the call
    /// - `count`: 0 to 8
    ///
    /// Returns as fastnorm_norm_prepare
    ///
    /// Since 0.1.
    pub fn fastnorm_norm_many_prepare(
        context: *mut fastnorm_context,
        args: *const *const fastnorm_norm_args,
        count: i32,
    ) -> fastnorm_status;

    /// Run several normalisations in order, with the results that one fastnorm_norm for each would
    /// give. This serves, for example, the query heads and the key heads of a fused QKV tensor,
    /// which have different weights. All parts are checked before anything is launched, also
    /// against each other: no part may read what another part writes. CUDA: two parts that follow
    /// each other take one launch if they share a kernel for short rows, have the same flags and
    /// have at most two leading dimensions. fastnorm_info.launches tells how many launches there
    /// are.
    ///
    /// - `context`: the device
    /// - `args`: \[count\] pointers
    /// - `count`: 0 to 8
    /// - `workspace`: as fastnorm_norm
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: as fastnorm_norm
    ///
    /// Returns as fastnorm_norm; the error text names the part as args\[i\]. CUDA: if the runtime
    /// refuses a launch, the launches of earlier parts have already been queued
    ///
    /// Since 0.1.
    pub fn fastnorm_norm_many(
        context: *mut fastnorm_context,
        args: *const *const fastnorm_norm_args,
        count: i32,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> fastnorm_status;
}

/// Bits of fastnorm_norm_backward_args.flags. PDL_WAIT, PDL_TRIGGER and NO_PDL have the meanings,
/// the numbers and the defaults of those in fastnorm_norm_flags.
pub type fastnorm_norm_backward_flags = c_uint;
/// Start when the previous kernel of the stream allows it, but read and write nothing before that
/// kernel has ended.
pub const FASTNORM_NORM_BACKWARD_PDL_WAIT: fastnorm_norm_backward_flags = 1;
/// Let the next kernel of the stream start early. The next kernel must wait itself before it uses
/// anything that any earlier kernel of the stream wrote.
pub const FASTNORM_NORM_BACKWARD_PDL_TRIGGER: fastnorm_norm_backward_flags = 2;
/// Add the sum to the old dweight: one addition in f32 after the sum, rounded once. Without the
/// flag the old dweight is not read.
pub const FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT: fastnorm_norm_backward_flags = 8;
/// The same for dbias.
pub const FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS: fastnorm_norm_backward_flags = 16;
/// The same for dbranch_weight.
pub const FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT: fastnorm_norm_backward_flags = 32;
/// The same for dbranch_bias.
pub const FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS: fastnorm_norm_backward_flags = 64;
/// The same for dresidual_gate.
pub const FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE: fastnorm_norm_backward_flags = 128;
/// The forward multiplied the branch by alpha, by its flag FASTNORM_NORM_ALPHA.
pub const FASTNORM_NORM_BACKWARD_ALPHA: fastnorm_norm_backward_flags = 256;
/// Programmatic dependent launch is not used unless other bits ask for it. The kernels of one call
/// follow each other by it in any case.
pub const FASTNORM_NORM_BACKWARD_NO_PDL: fastnorm_norm_backward_flags = 512;
pub const FASTNORM_NORM_BACKWARD_FLAGS_MAX_ENUM: fastnorm_norm_backward_flags = 0x7fffffff;

/// One backward pass. A zeroed struct with struct_size, dy, x and dx set is a valid backward pass
/// of an RMSNorm without a weight and with eps 0, whose statistics are computed again.
///
/// Shapes: x is \[..., n\] with a rank from 1 to 8 and n from 1 to 2^32. All tensors are on the
/// context's device. The strides of leading dimensions may be anything, for inputs also 0. The last
/// dimension must be contiguous, except that the last stride of dy may be 0, as in the gradient of
/// y.sum(). Any alignment that the dtype allows is accepted. Leading dimensions are joined as in
/// fastnorm_norm, and at most 3 may remain.
///
/// Dtypes: T is the dtype of the forward's x. The call takes it from branch or dbranch, if one of
/// them is given, and dx may then be f32, f16 or bf16. Otherwise T is the dtype of dx, if there is
/// a dx. Otherwise it is the dtype of dy if that has 16 bits, and else the dtype of x. x itself may
/// have another dtype than T, as a stored residual_out may.
///
/// weight, and dweight with it, broadcasts against x as in fastnorm_norm: \[n\], \[1, n\], \[heads,
/// n\] or \[batch, 1, n\]. dbias broadcasts in the same way but may have another shape, and so may
/// branch_weight, dbranch_bias and residual_gate.
///
/// Outputs: the call must have at least one of dx, dweight, dbias, dgate, dbranch, dbranch_weight,
/// dbranch_bias and dresidual_gate. Outputs that are NULL cost nothing. For example, a layer with
/// frozen weights asks for dx only, which needs no workspace.
///
/// Aliasing: dx, dresidual and dgate may each be the same view as dy, x, gate or dresidual_in, and
/// dbranch may be the same view as branch; a view is the same if address, dtype, shape and strides
/// are. Two tensors of which one is written may also be interleaved views of one buffer that share
/// no element. Any other overlap returns FASTNORM_ERROR_LAYOUT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_norm_backward_args {
    /// sizeof(fastnorm_norm_backward_args).
    pub struct_size: usize,
    /// Passed to the context's parallel_for in place of the context's parallel_user; NULL = that of
    /// the context. It has no effect if the context has no parallel_for.
    pub parallel_user: *mut c_void,
    /// The kind of the forward.
    pub kind: fastnorm_norm_kind,
    /// The eps of the forward. Finite, \>= 0. Used only if rstd is NULL.
    pub eps: f32,
    /// The weight_offset of the forward. Finite; 0 if weight is NULL.
    pub weight_offset: f32,
    /// The rounding of the forward. FASTNORM_ROUND_ONCE_RW has the gradients of
    /// FASTNORM_ROUND_ONCE.
    pub rounding: fastnorm_rounding,
    /// fastnorm_norm_backward_flags.
    pub flags: u32,
    /// Must be 0.
    pub reserved: i32,
    /// The gradient of y. x's shape, T or f32. Required.
    pub dy: *const fastnorm_tensor,
    /// The x of the forward or, if it added a residual, its stored residual_out. \[..., n\] f32,
    /// f16 or bf16. Required.
    pub x: *const fastnorm_tensor,
    /// The weight of the forward. \[.., n\] f32, f16 or bf16, broadcasts against x. NULL = 1.
    pub weight: *const fastnorm_tensor,
    /// The mean of each row, as the forward returned it. x.shape\[:-1\], or that with a last extent
    /// of 1; f32. LAYER only. NULL if rstd is NULL.
    pub mean: *const fastnorm_tensor,
    /// The rstd of each row, as the forward returned it, for both kinds; the shape and dtype are
    /// those of mean. NULL = computed again from x.
    pub rstd: *const fastnorm_tensor,
    /// The gradient that reaches residual_out from elsewhere. x's shape; f32, f16 or bf16. NULL =
    /// there is none.
    pub dresidual_in: *const fastnorm_tensor,
    /// The gradient of the forward's x or, with a branch, of the forward's residual (dbranch is
    /// then that of the forward's x). x's shape, T; with a branch f32, f16 or bf16. Output; may be
    /// dy, x or dresidual_in. NULL = not stored.
    pub dx: *const fastnorm_tensor,
    /// The gradient of the forward's residual, for a residual whose dtype is not that of x. x's
    /// shape; f32, f16 or bf16, and not the dtype of dx. Output; may be dy, x or dresidual_in.
    /// Requires dx. NULL = not stored.
    pub dresidual: *const fastnorm_tensor,
    /// The gradient of weight. weight's shape; f32 or weight's dtype. Output; also an input with
    /// ACCUMULATE_DWEIGHT. NULL = not computed.
    pub dweight: *const fastnorm_tensor,
    /// The gradient of the forward's bias. The shape of that bias; f32, f16 or bf16. Output; also
    /// an input with ACCUMULATE_DBIAS. NULL = not computed.
    pub dbias: *const fastnorm_tensor,
    /// The gate of the forward. x's shape, T or f32. NULL = the forward had none; then gate_act,
    /// gate_position and gate_source must be 0. With a gate before the norm, x is the forward's x,
    /// and dresidual_in and dresidual are NULL.
    pub gate: *const fastnorm_tensor,
    /// The bias of the forward, with the rules of weight. It is read only to compute dgate. NULL =
    /// 0.
    pub bias: *const fastnorm_tensor,
    /// The gradient of gate. x's shape, T or f32. Output; may be dy, x, gate or dresidual_in.
    /// Requires gate. NULL = not computed.
    pub dgate: *const fastnorm_tensor,
    /// The gate_act of the forward.
    pub gate_act: fastnorm_activation,
    /// The gate_position of the forward.
    pub gate_position: fastnorm_gate_position,
    /// The gate_source of the forward.
    pub gate_source: fastnorm_gate_source,
    /// Must be 0.
    pub stage_reserved: i32,
    /// The group_size of the forward, a divisor of n; 0 = n. mean, rstd, weight and bias have the
    /// shapes that they have in the forward. dbias is \[.., n\] or \[.., group_size\].
    pub group_size: i64,
    /// The x of a forward that added a residual, which is called the branch; the field x is then
    /// the stored residual_out. x's shape, T. Required for dresidual_gate and with branch_norm.
    /// This field and all fields below exclude gate and group_size.
    pub branch: *const fastnorm_tensor,
    /// The branch_weight of the forward, with the rules of weight. NULL = 1.
    pub branch_weight: *const fastnorm_tensor,
    /// The branch_bias of the forward, with the rules of weight. It is read only to compute
    /// dresidual_gate. NULL = 0.
    pub branch_bias: *const fastnorm_tensor,
    /// The mean of each row of the branch; the shape and dtype are those of mean. LAYER only. NULL
    /// if branch_rstd is NULL.
    pub branch_mean: *const fastnorm_tensor,
    /// The rstd of each row of the branch; the shape and dtype are those of rstd. NULL = computed
    /// again from branch.
    pub branch_rstd: *const fastnorm_tensor,
    /// The residual_gate of the forward, with its table added. \[.., n\] T or f32, broadcasts
    /// against x as weight does. NULL = 1.
    pub residual_gate: *const fastnorm_tensor,
    /// The sum_scale of the forward. \[1\] f32. NULL = 1.
    pub sum_scale: *const fastnorm_tensor,
    /// The gradient of the branch. x's shape, T. Output; may be branch. NULL = not computed.
    pub dbranch: *const fastnorm_tensor,
    /// The gradient of branch_weight. branch_weight's shape; f32 or branch_weight's dtype. Output;
    /// also an input with ACCUMULATE_DBRANCH_WEIGHT. NULL = not computed.
    pub dbranch_weight: *const fastnorm_tensor,
    /// The gradient of the forward's branch_bias. The shape of that branch_bias; f32, f16 or bf16.
    /// Output; also an input with ACCUMULATE_DBRANCH_BIAS. NULL = not computed.
    pub dbranch_bias: *const fastnorm_tensor,
    /// The gradient of residual_gate. residual_gate's shape; f32 or residual_gate's dtype. Output;
    /// also an input with ACCUMULATE_DRESIDUAL_GATE. NULL = not computed.
    pub dresidual_gate: *const fastnorm_tensor,
    /// The branch_kind of the forward.
    pub branch_kind: fastnorm_norm_kind,
    /// The branch_eps of the forward. Used only if branch_rstd is NULL.
    pub branch_eps: f32,
    /// The branch_weight_offset of the forward. Finite; 0 if branch_weight is NULL.
    pub branch_weight_offset: f32,
    /// The branch_rounding of the forward. FASTNORM_ROUND_ONCE_RW is an error.
    pub branch_rounding: fastnorm_rounding,
    /// The branch_norm of the forward. 0: the other fields of the branch's norm are 0.
    pub branch_norm: i32,
    /// The branch_rounded of the forward.
    pub branch_rounded: i32,
    /// The residual_gate_act of the forward.
    pub residual_gate_act: fastnorm_activation,
    /// With FASTNORM_NORM_BACKWARD_ALPHA: the alpha of the forward, finite; else 0.
    pub alpha: f32,
}

impl fastnorm_norm_backward_args {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            parallel_user: core::ptr::null_mut(),
            kind: 0,
            eps: 0.0,
            weight_offset: 0.0,
            rounding: 0,
            flags: 0,
            reserved: 0,
            dy: core::ptr::null(),
            x: core::ptr::null(),
            weight: core::ptr::null(),
            mean: core::ptr::null(),
            rstd: core::ptr::null(),
            dresidual_in: core::ptr::null(),
            dx: core::ptr::null(),
            dresidual: core::ptr::null(),
            dweight: core::ptr::null(),
            dbias: core::ptr::null(),
            gate: core::ptr::null(),
            bias: core::ptr::null(),
            dgate: core::ptr::null(),
            gate_act: 0,
            gate_position: 0,
            gate_source: 0,
            stage_reserved: 0,
            group_size: 0,
            branch: core::ptr::null(),
            branch_weight: core::ptr::null(),
            branch_bias: core::ptr::null(),
            branch_mean: core::ptr::null(),
            branch_rstd: core::ptr::null(),
            residual_gate: core::ptr::null(),
            sum_scale: core::ptr::null(),
            dbranch: core::ptr::null(),
            dbranch_weight: core::ptr::null(),
            dbranch_bias: core::ptr::null(),
            dresidual_gate: core::ptr::null(),
            branch_kind: 0,
            branch_eps: 0.0,
            branch_weight_offset: 0.0,
            branch_rounding: 0,
            branch_norm: 0,
            branch_rounded: 0,
            residual_gate_act: 0,
            alpha: 0.0,
        }
    }
}

impl Default for fastnorm_norm_backward_args {
    fn default() -> Self {
        Self::new()
    }
}

extern "C" {
    /// Say what a call would do: its workspace, kernel, launches and bytes. The query does not
    /// touch the memory of the tensors, but their addresses count, since overlap and alignment
    /// follow from them.
    ///
    /// The workspace holds partial sums of dweight and dbias, on the CPU as on a GPU. Each of the
    /// two takes nb rows of n floats for each row of its weight or bias, or nothing if it is not
    /// asked for. The sums dbranch_weight, dbranch_bias and dresidual_gate take additional room. On
    /// a GPU the workspace also holds a few floats for each row in two cases: if the branch has
    /// sums, or if a call with sums or with a branch computes statistics again.
    ///
    /// - `context`: the device
    /// - `args`: the arguments of the call
    /// - `info`: struct_size as input; receives the rest
    ///
    /// Returns as fastnorm_norm_backward; FASTNORM_ERROR_ARGUMENT also if info is null or its
    /// struct_size is too small
    ///
    /// Since 0.2.
    pub fn fastnorm_norm_backward_query(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_backward_args,
        info: *mut fastnorm_info,
    ) -> fastnorm_status;

    /// Load the kernels of a call. Afterwards, calls that use the same kernels neither allocate nor
    /// synchronise, and can be captured in a CUDA graph. Preparing is optional, because the first
    /// call that uses a kernel loads it, too.
    ///
    /// - `context`: the device
    /// - `args`: the arguments of the call
    ///
    /// Returns as fastnorm_norm_backward
    ///
    /// Since 0.2.
    pub fn fastnorm_norm_backward_prepare(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_backward_args,
    ) -> fastnorm_status;

    /// Compute the gradients; the formulas are at the top of this header.
    ///
    /// CUDA: the call queues one or more kernels on `stream` and returns. It can be captured in a
    /// CUDA graph. It uses the context's device, whichever device is current, and leaves the
    /// current device as it was. CPU: the work is done when the call returns. Once its kernels are
    /// loaded, a call allocates nothing, does not synchronise and takes no lock.
    ///
    /// Zero rows are a success: dweight and dbias become 0 or, with their ACCUMULATE flags, stay as
    /// they are.
    ///
    /// - `context`: the device
    /// - `args`: what to compute; read only during the call
    /// - `workspace`: fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned. Their
    ///   contents may be anything, and nothing else may use them until the work has run. NULL if 0
    ///   bytes are needed
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: CUDA: the cudaStream_t; NULL = the legacy default stream. CPU: NULL
    ///
    /// Returns FASTNORM_OK FASTNORM_ERROR_ARGUMENT: context, args, dy or x is null, or there is no
    /// output; a tensor has no shape, or it has elements but no data; a struct_size is too small;
    /// an enum, eps or an offset is out of range; there is a mean with RMS, or only one of mean and
    /// rstd with LAYER; there is dweight without weight, dresidual without dx, dgate or a field of
    /// the gate without gate, a field of the branch's norm without branch_norm, or an ACCUMULATE
    /// flag without its output; branch is missing where it is required; the workspace is too small;
    /// there is a stream on the CPU; parallel_for did not cover the work exactly once, in which
    /// case some outputs may have been written FASTNORM_ERROR_SHAPE: ranks or extents do not fit; n
    /// \< 1 or n \> 2^32 FASTNORM_ERROR_DTYPE: a tensor has a dtype that its role does not allow;
    /// dresidual has the dtype of dx FASTNORM_ERROR_LAYOUT: a last dimension is not contiguous, an
    /// address is misaligned, or tensors overlap FASTNORM_ERROR_UNSUPPORTED: a field or flag of a
    /// later version is set, or bytes after the known fields are not zero; leading dimensions
    /// cannot be joined; a field of the branch is set together with gate or group_size; on a GPU,
    /// there are more than 2^31 - 1 rows FASTNORM_ERROR_DEVICE: a tensor is on another device; the
    /// CUDA runtime reported an error FASTNORM_ERROR_OUT_OF_MEMORY: the CUDA runtime had no memory,
    /// for example to load the kernel FASTNORM_ERROR_INTERNAL: a defect of this library, or an
    /// exception out of parallel_for
    ///
    /// Since 0.2.
    pub fn fastnorm_norm_backward(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_backward_args,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> fastnorm_status;

    /// The query for fastnorm_norm_backward_many. Its figures are the sums over all parts, and
    /// `kernel` is that of the first part that launches something.
    ///
    /// - `context`: the device
    /// - `args`: \[count\] pointers, the arguments of the call
    /// - `count`: 0 to 8
    /// - `info`: struct_size as input; receives the rest
    ///
    /// Returns as fastnorm_norm_backward_query
    ///
    /// Since 0.2.
    pub fn fastnorm_norm_backward_many_query(
        context: *mut fastnorm_context,
        args: *const *const fastnorm_norm_backward_args,
        count: i32,
        info: *mut fastnorm_info,
    ) -> fastnorm_status;

    /// Load what a fastnorm_norm_backward_many needs, as fastnorm_norm_backward_prepare does for
    /// fastnorm_norm_backward.
    ///
    /// - `context`: the device
    /// - `args`: \[count\] pointers, the arguments of the call
    /// - `count`: 0 to 8
    ///
    /// Returns as fastnorm_norm_backward_prepare
    ///
    /// Since 0.2.
    pub fn fastnorm_norm_backward_many_prepare(
        context: *mut fastnorm_context,
        args: *const *const fastnorm_norm_backward_args,
        count: i32,
    ) -> fastnorm_status;

    /// Run several backward passes in order, with the results that one fastnorm_norm_backward for
    /// each would give. This serves, for example, the query heads and the key heads of a fused QKV
    /// gradient. All parts are checked before anything is launched, also against each other: no
    /// part may read or write what another part writes.
    ///
    /// - `context`: the device
    /// - `args`: \[count\] pointers
    /// - `count`: 0 to 8
    /// - `workspace`: as fastnorm_norm_backward
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: as fastnorm_norm_backward
    ///
    /// Returns as fastnorm_norm_backward; the error text names the part as args\[i\]. CUDA: if the
    /// runtime refuses a launch, the launches of earlier parts have already been queued
    ///
    /// Since 0.2.
    pub fn fastnorm_norm_backward_many(
        context: *mut fastnorm_context,
        args: *const *const fastnorm_norm_backward_args,
        count: i32,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> fastnorm_status;
}

/// The base of the logarithm in which lse is given.
pub type fastnorm_lse_base = c_uint;
/// The natural logarithm, as in PyTorch and FlashMLA.
pub const FASTNORM_LSE_NATURAL: fastnorm_lse_base = 0;
/// The logarithm to base 2, as in FlashInfer. Its value is the natural one times log2(e).
pub const FASTNORM_LSE_BASE_2: fastnorm_lse_base = 1;
pub const FASTNORM_LSE_BASE_MAX_ENUM: fastnorm_lse_base = 0x7fffffff;

/// How the rows of the cache are stored. The table at the top of this header has their bytes.
pub type fastnorm_mla_cache_format = c_uint;
/// Rows of T: the tensors ckv and kpe.
pub const FASTNORM_MLA_CACHE_ROWS: fastnorm_mla_cache_format = 0;
/// Rows of 656 bytes: 512 codes, 4 scales of f32, 64 numbers of bf16.
pub const FASTNORM_MLA_CACHE_BYTES_656: fastnorm_mla_cache_format = 1;
/// Rows of 576 codes, with one scale for the whole tensor.
pub const FASTNORM_MLA_CACHE_BYTES_576: fastnorm_mla_cache_format = 2;
/// Rows of 584 bytes: 448 codes, 64 numbers of bf16 and, behind the rows of the page, 7 scales of
/// e8m0 and a byte that is not used. A head has 512 columns.
pub const FASTNORM_MLA_CACHE_BYTES_584: fastnorm_mla_cache_format = 3;
pub const FASTNORM_MLA_CACHE_FORMAT_MAX_ENUM: fastnorm_mla_cache_format = 0x7fffffff;

/// Bits of fastnorm_mla_decode_args.flags.
pub type fastnorm_mla_decode_flags = c_uint;
/// Programmatic dependent launch is not used around the call: it starts when all earlier kernels
/// have ended and lets no kernel start early. The kernels of one call follow each other by it in
/// any case.
pub const FASTNORM_MLA_DECODE_NO_PDL: fastnorm_mla_decode_flags = 512;
pub const FASTNORM_MLA_DECODE_FLAGS_MAX_ENUM: fastnorm_mla_decode_flags = 0x7fffffff;

/// One attention call. T is bf16 or f16 (on the CPU also f32), and q_nope, q_pe, ckv, kpe and o all
/// have this dtype. All tensors are on the context's device.
///
/// Strides: the last dimension of every tensor must be contiguous; other strides may be anything,
/// with these limits. CUDA: the addresses of q_nope, q_pe, ckv, kpe and o are multiples of 16
/// bytes, and their strides in dimensions of an extent above 1 are positive multiples of 16 bytes
/// below 2^40. This is stricter than fastnorm_norm. The same holds for the bytes of FP8 caches.
/// CPU: addresses are multiples of the size of an element, strides of inputs may be 0, and the
/// bytes of FP8 caches may have any address and any strides. On both, the bytes of a page of
/// BYTES_584 must be contiguous, so that on CUDA only the stride of its pages counts.
///
/// Aliasing: o, lse and profile must not overlap each other or any input. Two interleaved views of
/// one buffer that share no element are allowed.
///
/// Ranges: N \* H, B and the number of pages are below 2^31, and s_q \* H is at most 2^24.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_mla_decode_args {
    /// sizeof(fastnorm_mla_decode_args).
    pub struct_size: usize,
    /// Passed to the context's parallel_for in place of the context's parallel_user; NULL = that of
    /// the context. It has no effect if the context has no parallel_for.
    pub parallel_user: *mut c_void,
    /// Factor of the scores: finite and not 0, on CUDA \> 0, with a magnitude between 2^-100 and
    /// 2^60. It has no default, because models differ. DeepSeek without YaRN has 1 / sqrt(128 +
    /// 64).
    pub sm_scale: f64,
    /// 1: a new token does not attend to later ones. 0: it attends to all cached tokens.
    pub causal: i32,
    /// Base of lse. Default: natural.
    pub lse_base: fastnorm_lse_base,
    /// With qo_indptr: an upper limit of the s_q of all requests, at least 1. Without qo_indptr it
    /// must be N / B or 0; 0 = N / B.
    pub max_s_q: i32,
    /// 1: the workspace still holds the plan of an earlier call on the same context, such as that
    /// of the previous layer, and the call uses it. Shapes, causal, max_s_q, split_tokens and the
    /// values of kv_len and qo_indptr must equal those of the earlier call; with indices the values
    /// of topk_length and extra_topk_length, but not those of the indices. 0: the call makes its
    /// own plan. It has no effect on the CPU.
    pub reuse_plan: i32,
    /// A multiple of 64 up to 2^30: each request is cut at multiples of it; 0 = the library chooses
    /// where long requests are cut. It has no effect on the CPU.
    pub split_tokens: i32,
    /// With profile: number of events per warpgroup, 1 to 2^20; else 0. A query reports the size of
    /// the profile for this number, even if profile is NULL.
    pub profile_events: i32,
    /// Sum of kv_len; 0 = not known. With indices: the number of rows that all new tokens select; 0
    /// = as many as there are indices. It is used only for fastnorm_info.bytes_read, because a
    /// query reads neither lengths nor indices.
    pub total_kv_hint: i64,
    /// \[N, H, 512\] T, the query times W_UK. BYTES_584: \[N, H, 448\], the first columns of the
    /// query. Required.
    pub q_nope: *const fastnorm_tensor,
    /// \[N, H, 64\] T, the query after RoPE. Required.
    pub q_pe: *const fastnorm_tensor,
    /// \[pages, page, 512\] T, the normalised latents. Required, except with an FP8 cache_format.
    pub ckv: *const fastnorm_tensor,
    /// \[pages, page, 64\] T, the keys after RoPE. Required, except with an FP8 cache_format.
    pub kpe: *const fastnorm_tensor,
    /// \[B\] i32, the number of cached tokens of each request. Required, except with indices.
    pub kv_len: *const fastnorm_tensor,
    /// The numbers of the pages of each request: \[B, max_pages\] or, with kv_indptr, \[total\];
    /// i32. Required, except with indices.
    pub page_table: *const fastnorm_tensor,
    /// \[B + 1\] i32, where each request's pages begin in page_table. NULL: page_table is a block
    /// table.
    pub kv_indptr: *const fastnorm_tensor,
    /// \[B + 1\] i32, where each request's new tokens begin in the query. It starts with 0, does
    /// not decrease and ends with at most N. NULL: each request has N / B new tokens.
    pub qo_indptr: *const fastnorm_tensor,
    /// \[N, H, 512\] T, the result. Output. Required.
    pub o: *const fastnorm_tensor,
    /// \[N, H\] f32, the logarithm of the sum of exponentials. Output. NULL = not stored.
    pub lse: *const fastnorm_tensor,
    /// \[bytes\] u8, at least fastnorm_info.profile_bytes, 16-byte aligned: records what each
    /// warpgroup did and when, for fastnorm_profile_decode. Output; its old contents do not matter.
    /// NULL = no profile. CUDA only.
    pub profile: *const fastnorm_tensor,
    /// fastnorm_mla_decode_flags.
    pub flags: u32,
    /// How the rows of the cache are stored. Default: rows of T.
    pub cache_format: fastnorm_mla_cache_format,
    /// \[pages, page, row\] u8, where row is 656, 576 or 584: the cache of an FP8 cache_format,
    /// which requires it. NULL with rows of T.
    pub cache: *const fastnorm_tensor,
    /// \[1\] f32, the scale of all codes of cache and extra_cache. NULL = 1. BYTES_576 only.
    pub cache_scale: *const fastnorm_tensor,
    /// \[B, s_q, topk\] i32, the rows of the cache that each new token attends to, or -1. NULL =
    /// all of the request.
    pub indices: *const fastnorm_tensor,
    /// \[B\] or \[B, s_q\] i32, from 0 to topk: how many of a new token's indices count. NULL =
    /// all.
    pub topk_length: *const fastnorm_tensor,
    /// \[H\] f32, the sink of each head. NULL = none.
    pub attention_sink: *const fastnorm_tensor,
    /// \[extra pages, extra page, 512\] T, a second ckv, with pages of a size of their own. NULL =
    /// none.
    pub extra_ckv: *const fastnorm_tensor,
    /// \[extra pages, extra page, 64\] T, the keys of extra_ckv. NULL = none.
    pub extra_kpe: *const fastnorm_tensor,
    /// \[extra pages, extra page, row\] u8, a second cache. NULL = none.
    pub extra_cache: *const fastnorm_tensor,
    /// \[B, s_q, extra topk\] i32, rows of the second cache, or -1. Required with a second cache.
    pub extra_indices: *const fastnorm_tensor,
    /// \[B\] or \[B, s_q\] i32, from 0 to extra topk: how many of the extra indices count. NULL =
    /// all.
    pub extra_topk_length: *const fastnorm_tensor,
}

impl fastnorm_mla_decode_args {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            parallel_user: core::ptr::null_mut(),
            sm_scale: 0.0,
            causal: 0,
            lse_base: 0,
            max_s_q: 0,
            reuse_plan: 0,
            split_tokens: 0,
            profile_events: 0,
            total_kv_hint: 0,
            q_nope: core::ptr::null(),
            q_pe: core::ptr::null(),
            ckv: core::ptr::null(),
            kpe: core::ptr::null(),
            kv_len: core::ptr::null(),
            page_table: core::ptr::null(),
            kv_indptr: core::ptr::null(),
            qo_indptr: core::ptr::null(),
            o: core::ptr::null(),
            lse: core::ptr::null(),
            profile: core::ptr::null(),
            flags: 0,
            cache_format: 0,
            cache: core::ptr::null(),
            cache_scale: core::ptr::null(),
            indices: core::ptr::null(),
            topk_length: core::ptr::null(),
            attention_sink: core::ptr::null(),
            extra_ckv: core::ptr::null(),
            extra_kpe: core::ptr::null(),
            extra_cache: core::ptr::null(),
            extra_indices: core::ptr::null(),
            extra_topk_length: core::ptr::null(),
        }
    }
}

impl Default for fastnorm_mla_decode_args {
    fn default() -> Self {
        Self::new()
    }
}

extern "C" {
    /// Say what a call would do: its workspace, kernel, launches and bytes. The query does not
    /// touch the memory of the tensors.
    ///
    /// CUDA: `launches` counts the plan, the attention and the merge of the pieces. The workspace
    /// holds the plan, which takes a few bytes per request, and the pieces before they are merged.
    /// If split_tokens is 0, the room for pieces depends only on max_s_q \* H and on the number of
    /// multiprocessors. With split_tokens it follows from the extents of the page table: max_pages
    /// or, with kv_indptr, the length of page_table. CPU: the workspace is 0 bytes.
    ///
    /// - `context`: the device
    /// - `args`: the arguments of the call
    /// - `info`: struct_size as input; receives the rest
    ///
    /// Returns as fastnorm_mla_decode; FASTNORM_ERROR_ARGUMENT also if info is null or its
    /// struct_size is too small
    ///
    /// Since 0.2.
    pub fn fastnorm_mla_decode_query(
        context: *mut fastnorm_context,
        args: *const fastnorm_mla_decode_args,
        info: *mut fastnorm_info,
    ) -> fastnorm_status;

    /// Load the kernels of a call. Afterwards, calls that use the same kernels neither allocate nor
    /// synchronise, and can be captured in a CUDA graph. Preparing is optional, because the first
    /// call that uses a kernel loads it, too.
    ///
    /// - `context`: the device
    /// - `args`: the arguments of the call
    ///
    /// Returns as fastnorm_mla_decode
    ///
    /// Since 0.2.
    pub fn fastnorm_mla_decode_prepare(
        context: *mut fastnorm_context,
        args: *const fastnorm_mla_decode_args,
    ) -> fastnorm_status;

    /// Compute the attention; the formula is at the top of this header.
    ///
    /// CUDA: the call queues up to three kernels on `stream` and returns. It does not synchronise,
    /// copies no lengths to the host and leaves the current device as it was. It can be captured in
    /// a CUDA graph: kv_len, page_table, kv_indptr, qo_indptr and all other data may change between
    /// replays, but addresses, shapes and scalars may not. The values in kv_len, kv_indptr,
    /// qo_indptr and the used entries of page_table must be valid: kv_len\[b\] is from 0 to page \*
    /// (pages in the list of b), page numbers are below `pages`, and a request has at most max_s_q
    /// new tokens. A GPU does not check them, and a wrong value may read outside of the cache.
    ///
    /// CPU: the work is done when the call returns, and requests, tokens and heads are spread over
    /// the context's threads. The CPU checks these values before it writes anything, and also that
    /// topk_length is from 0 to topk and each index that counts is -1 or a row of the cache. Where
    /// a device does not check indices, those that are out of range are undefined behaviour.
    ///
    /// B = 0 or N = 0 is a success that does nothing. Some of the requests may have s_q = 0 or
    /// kv_len = 0. Rows of the query that belong to no request, because they lie after
    /// qo_indptr\[B\], are not written in the outputs.
    ///
    /// - `context`: the device
    /// - `args`: what to compute; read only during the call
    /// - `workspace`: fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned. Nothing
    ///   else may use them until the work of the call has run. If later calls use the plan of this
    ///   call (reuse_plan), nothing else may use them until the work of the last such call has run.
    ///   Without reuse_plan their contents may be anything. NULL if 0 bytes are needed
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: CUDA: the cudaStream_t; NULL = the legacy default stream. CPU: NULL
    ///
    /// Returns FASTNORM_OK FASTNORM_ERROR_ARGUMENT: context, args or a required tensor is null; a
    /// tensor has no shape, or it has elements but no data; a struct_size is too small; a scalar is
    /// out of range; sm_scale is 0; there is qo_indptr without max_s_q; the workspace is too small;
    /// there is a stream on the CPU; there is profile_events without a profile; tensors of the
    /// cache do not suit cache_format; there are indices beside kv_len, page_table, kv_indptr,
    /// qo_indptr or causal; CPU: a length, index or page number is out of range; parallel_for did
    /// not cover the rows exactly once, in which case some of them may have been written
    /// FASTNORM_ERROR_SHAPE: ranks or extents do not fit; without qo_indptr, N is not a multiple of
    /// B; the profile is too short FASTNORM_ERROR_DTYPE: a tensor has a dtype that its role does
    /// not allow FASTNORM_ERROR_LAYOUT: a last dimension is not contiguous, an address or a stride
    /// is misaligned, or tensors overlap FASTNORM_ERROR_UNSUPPORTED: one of the cases at the top of
    /// this header; a field of a later version is set, or bytes after the known fields are not zero
    /// FASTNORM_ERROR_DEVICE: a tensor is on another device; the CUDA runtime reported an error
    /// FASTNORM_ERROR_OUT_OF_MEMORY: the CUDA runtime had no memory, for example to load the kernel
    /// FASTNORM_ERROR_INTERNAL: a defect of this library, or an exception out of parallel_for
    ///
    /// Since 0.2.
    pub fn fastnorm_mla_decode(
        context: *mut fastnorm_context,
        args: *const fastnorm_mla_decode_args,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> fastnorm_status;
}

/// What an event of a profile records. An event whose name begins with WAIT spans the time that a
/// warpgroup waits at a barrier.
pub type fastnorm_profile_id = c_uint;
/// One piece of a request, from its plan entry to its output.
pub const FASTNORM_PROFILE_WORK: fastnorm_profile_id = 0;
/// Issue of the loads of the query tile.
pub const FASTNORM_PROFILE_LOAD_Q: fastnorm_profile_id = 1;
/// Issue of the loads of half a tile of the cache.
pub const FASTNORM_PROFILE_LOAD_KV: fastnorm_profile_id = 2;
/// Product of queries and keys, which gives the scores: from its issue to the end of the wait for
/// it.
pub const FASTNORM_PROFILE_QK: fastnorm_profile_id = 3;
/// Maximum, exponentials and sums of the scores.
pub const FASTNORM_PROFILE_SOFTMAX: fastnorm_profile_id = 4;
/// Multiplication of the outputs by the factor that a new maximum requires.
pub const FASTNORM_PROFILE_RESCALE: fastnorm_profile_id = 5;
/// Store of the probabilities to shared memory.
pub const FASTNORM_PROFILE_WRITE_P: fastnorm_profile_id = 6;
/// Product of probabilities and values: from its issue to the end of the wait for it.
pub const FASTNORM_PROFILE_PV: fastnorm_profile_id = 7;
/// Store of outputs or partial outputs to global memory.
pub const FASTNORM_PROFILE_WRITE_O: fastnorm_profile_id = 8;
/// Merge of the pieces of a request.
pub const FASTNORM_PROFILE_MERGE: fastnorm_profile_id = 9;
/// Wait for the query tile.
pub const FASTNORM_PROFILE_WAIT_Q: fastnorm_profile_id = 10;
/// Wait for a part of a tile of the cache.
pub const FASTNORM_PROFILE_WAIT_KV: fastnorm_profile_id = 11;
/// Wait of the producer for a free part of a buffer.
pub const FASTNORM_PROFILE_WAIT_FREE: fastnorm_profile_id = 12;
/// Wait for the maximum of the even tile.
pub const FASTNORM_PROFILE_WAIT_SCALE_0: fastnorm_profile_id = 13;
/// Wait for the maximum of the odd tile.
pub const FASTNORM_PROFILE_WAIT_SCALE_1: fastnorm_profile_id = 14;
/// Wait for the probabilities of the even tile.
pub const FASTNORM_PROFILE_WAIT_P_0: fastnorm_profile_id = 15;
/// Wait for the probabilities of the odd tile.
pub const FASTNORM_PROFILE_WAIT_P_1: fastnorm_profile_id = 16;
/// Wait for the previous kernel of the stream.
pub const FASTNORM_PROFILE_WAIT_PLAN: fastnorm_profile_id = 17;
pub const FASTNORM_PROFILE_ID_MAX_ENUM: fastnorm_profile_id = 0x7fffffff;

/// Whether an event begins a span, ends one, or is a point in time.
pub type fastnorm_profile_kind = c_uint;
/// A span begins; an event that ends it follows with the same id and warpgroup.
pub const FASTNORM_PROFILE_BEGIN: fastnorm_profile_kind = 0;
/// A span ends.
pub const FASTNORM_PROFILE_END: fastnorm_profile_kind = 1;
/// A point in time.
pub const FASTNORM_PROFILE_INSTANT: fastnorm_profile_kind = 2;
pub const FASTNORM_PROFILE_KIND_MAX_ENUM: fastnorm_profile_kind = 0x7fffffff;

/// One event of a profile.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_profile_event {
    /// Nanoseconds since the earliest event of the buffer; the clocks of the multiprocessors are
    /// aligned.
    pub time_ns: u64,
    /// Clock cycles since the start of this warpgroup.
    pub cycle: u64,
    /// Number of the thread block.
    pub block: i32,
    /// Number of the multiprocessor on which the thread block ran.
    pub multiprocessor: i32,
    /// Warpgroup of the thread block: 0 and 1 compute, 2 loads.
    pub group: i32,
    /// What the event records.
    pub id: fastnorm_profile_id,
    /// Whether the event is a begin, an end or an instant.
    pub kind: fastnorm_profile_kind,
    /// Number of the tile or piece that the event belongs to, 0 to 2^22 - 1.
    pub value: i32,
}

impl fastnorm_profile_event {
    /// Everything zero.
    #[inline]
    pub const fn new() -> Self {
        Self {
            time_ns: 0,
            cycle: 0,
            block: 0,
            multiprocessor: 0,
            group: 0,
            id: 0,
            kind: 0,
            value: 0,
        }
    }
}

impl Default for fastnorm_profile_event {
    fn default() -> Self {
        Self::new()
    }
}

/// Format of the files that fastnorm_profile_write_trace writes.
pub type fastnorm_trace_format = c_uint;
/// Trace Event Format, which Perfetto and chrome://tracing open.
pub const FASTNORM_TRACE_CHROME_JSON: fastnorm_trace_format = 0;
pub const FASTNORM_TRACE_FORMAT_MAX_ENUM: fastnorm_trace_format = 0x7fffffff;

extern "C" {
    /// Name of what an event records.
    ///
    /// - `id`: the id of the event
    ///
    /// Returns a static string such as "softmax"; "unknown" for an id that this library does not
    /// have
    ///
    /// Since 0.2.
    pub fn fastnorm_profile_id_name(id: fastnorm_profile_id) -> *const c_char;

    /// Turn a profile buffer, copied to host memory, into a flat array of events. They are sorted
    /// by thread block, then by warpgroup, then by time. If a warpgroup had more events than
    /// profile_events, its last ones are missing, but the recorded ones are in order.
    ///
    /// - `buffer`: the bytes of args.profile, on the host, 8-byte aligned
    /// - `bytes`: the number of these bytes
    /// - `events`: receives the first `capacity` events; NULL if capacity is 0
    /// - `capacity`: number of events that fit into events
    /// - `count`: receives the number of events in the buffer, which may be more than capacity
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if a pointer is null, or if the buffer is not a
    /// profile, is cut short, is inconsistent, or comes from another version
    ///
    /// Since 0.2.
    pub fn fastnorm_profile_decode(
        buffer: *const c_void,
        bytes: usize,
        events: *mut fastnorm_profile_event,
        capacity: usize,
        count: *mut usize,
    ) -> fastnorm_status;

    /// Write a profile buffer, copied to host memory, as a trace. A thread block appears as a
    /// process of the trace, and its warpgroups as threads. `otherData` holds figures of the whole
    /// profile: the number of dropped events, the share of time with a tensor-core product in
    /// flight, and the share of each wait.
    ///
    /// - `buffer`: the bytes of args.profile, on the host, 8-byte aligned
    /// - `bytes`: the number of these bytes
    /// - `path`: path of the file, which is replaced if it exists
    /// - `format`: the format of the file
    ///
    /// Returns as fastnorm_profile_decode; FASTNORM_ERROR_ARGUMENT also if the path is null, the
    /// format is unknown, or the file cannot be written (the text has the system's reason)
    ///
    /// Since 0.2.
    pub fn fastnorm_profile_write_trace(
        buffer: *const c_void,
        bytes: usize,
        path: *const c_char,
        format: fastnorm_trace_format,
    ) -> fastnorm_status;
}

/// Bits of fastnorm_norm_heads_part.flags.
pub type fastnorm_norm_heads_part_flags = c_uint;
/// Normalise each row.
pub const FASTNORM_NORM_HEADS_NORM: fastnorm_norm_heads_part_flags = 1;
/// Rotate rope_dim columns of each row.
pub const FASTNORM_NORM_HEADS_ROPE: fastnorm_norm_heads_part_flags = 2;
/// With ROPE: the two columns of a pair are neighbours (GPT-J). Default: they are R columns apart
/// (NeoX, Llama).
pub const FASTNORM_NORM_HEADS_ROPE_INTERLEAVED: fastnorm_norm_heads_part_flags = 4;
/// With ROPE: rotate backwards.
pub const FASTNORM_NORM_HEADS_ROPE_INVERSE: fastnorm_norm_heads_part_flags = 8;
/// With ROPE: rotate v rounded to x's dtype.
pub const FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED: fastnorm_norm_heads_part_flags = 16;
/// With NORM: one statistic for all heads of a token.
pub const FASTNORM_NORM_HEADS_ACROSS_HEADS: fastnorm_norm_heads_part_flags = 32;
pub const FASTNORM_NORM_HEADS_PART_FLAGS_MAX_ENUM: fastnorm_norm_heads_part_flags = 0x7fffffff;

/// Bits of fastnorm_norm_heads_args.flags.
pub type fastnorm_norm_heads_flags = c_uint;
/// Axes alternate from pair to pair (Qwen3-VL).
pub const FASTNORM_NORM_HEADS_MROPE_INTERLEAVED: fastnorm_norm_heads_flags = 8;
/// Programmatic dependent launch is not used: the call starts when all earlier kernels have ended
/// and lets no kernel start early.
pub const FASTNORM_NORM_HEADS_NO_PDL: fastnorm_norm_heads_flags = 512;
pub const FASTNORM_NORM_HEADS_FLAGS_MAX_ENUM: fastnorm_norm_heads_flags = 0x7fffffff;

/// Where rope rounds to x's dtype T while it is computed. If T is f32, rounding changes nothing,
/// but EVERY_STEP still adds separate products instead of fusing one of them with the addition.
pub type fastnorm_rope_rounding = c_uint;
/// Only when the result is stored, as in FlashInfer, vLLM and SGLang.
pub const FASTNORM_ROPE_ONCE: fastnorm_rope_rounding = 0;
/// Also every product, as a 16-bit eager chain does.
pub const FASTNORM_ROPE_EVERY_STEP: fastnorm_rope_rounding = 1;
pub const FASTNORM_ROPE_ROUNDING_MAX_ENUM: fastnorm_rope_rounding = 0x7fffffff;

/// One part. A zeroed struct with struct_size, x and one output set is valid: such a part copies x.
///
/// Shapes: x is \[tokens, heads, d\] with d from 1 to 8192 and at least one head, and all parts
/// have the same number of tokens. T is x's dtype, which is f32, f16 or bf16 and is the same for
/// all parts. Last dimensions must be contiguous; all other strides may be anything, for inputs
/// also 0. Any alignment that the dtype allows is accepted. All tensors are on the context's
/// device.
///
/// Outputs are y, quant.quantized, cache, sumsq, mean and rstd; a part must have at least one of
/// them. head_weights_out is an output, too, but requires codes.
///
/// Aliasing: y may be the same view as the part's x. No other output may share an element with any
/// tensor of the call, but outputs may be interleaved views of one buffer that share no element.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_norm_heads_part {
    /// sizeof(fastnorm_norm_heads_part).
    pub struct_size: usize,
    /// fastnorm_norm_heads_part_flags.
    pub flags: u32,
    /// NORM: RMS or LAYER; else 0.
    pub kind: fastnorm_norm_kind,
    /// NORM: added to the mean square or the variance; finite, \>= 0; else 0.
    pub eps: f32,
    /// Added to the weight in f32; 0 if weight is NULL.
    pub weight_offset: f32,
    /// NORM: as in fastnorm_norm_args; else 0.
    pub rounding: fastnorm_rounding,
    /// ROPE: where rope rounds, by default once; else 0.
    pub rope_rounding: fastnorm_rope_rounding,
    /// ROPE: the first column that is rotated, or -1 to rotate the last rope_dim columns; else 0.
    pub rope_offset: i32,
    /// What each of head_weights is multiplied by, besides the scale; finite. 0 = 1, and 0 if
    /// head_weights is NULL.
    pub head_weights_factor: f32,
    /// \[tokens, heads, d\] T. Required.
    pub x: *const fastnorm_tensor,
    /// NORM: the weight, \[d\], \[1, d\] or \[heads, d\]; dtypes as in fastnorm_norm_args. NULL =
    /// 1.
    pub weight: *const fastnorm_tensor,
    /// NORM: the bias, \[d\], \[1, d\] or \[heads, d\]; dtypes as in fastnorm_norm_args. NULL = 0.
    pub bias: *const fastnorm_tensor,
    /// The result. \[tokens, heads, d\], T or f32. Output; may be x. NULL = not stored.
    pub y: *const fastnorm_tensor,
    /// LAYER: the mean of each row, f32 \[tokens, heads\]; with ACROSS_HEADS \[tokens\]. Output.
    /// NULL = not stored.
    pub mean: *const fastnorm_tensor,
    /// NORM: the rstd of each row; the shape and dtype are those of mean. Output. NULL = not
    /// stored.
    pub rstd: *const fastnorm_tensor,
    /// LAYER, together with rstd_in: the mean to use in place of the row's own; the shape is that
    /// of mean. Input.
    pub mean_in: *const fastnorm_tensor,
    /// NORM: the rstd to use in place of the row's own; the shape is that of rstd, and eps is
    /// ignored. Input. NULL = computed.
    pub rstd_in: *const fastnorm_tensor,
    /// NORM without rstd_in: this device's part of a statistic of several devices, f32. RMS: the
    /// sum of squares, of rstd's shape. LAYER: the mean and the sum of (x - mean)^2, in a last
    /// extent of 2. Output. NULL = not stored.
    pub sumsq: *const fastnorm_tensor,
    /// How and where codes of the result are stored; they may be asked for together with y. With
    /// PER_ROW there is a scale for each token and head, so the scale tensor has tokens \* heads
    /// rows. NULL = no codes.
    pub quant: *const fastnorm_quant,
    /// The cache that the result is written to. \[pages, page_size, heads, d\] of T, or of codes of
    /// f8_e4m3fn, f8_e5m2 or i8. If cache_tail has the last e columns, it is \[pages, page_size,
    /// heads, d - e\] of codes. Output. NULL = no cache.
    pub cache: *const fastnorm_tensor,
    /// How the codes of the cache are made; requires cache. The scheme is PER_TENSOR with scale
    /// \[1\] f32, an input, or PER_BLOCK with scale \[pages, page_size, heads, blocks of cache's
    /// columns\], an output of any strides, which is f32 or, with scale_pow2, also f8_e8m0fnu or
    /// u8. The codes go to cache, so quantized, global_scale, clamp_scale and amax are NULL, and
    /// clamp, scale_layout and y_rotated are 0. If quant is given, too, and both structs make codes
    /// that depend on source and division, then source and division of cache_quant must equal those
    /// of quant. NULL = the cache has the dtype T.
    pub cache_quant: *const fastnorm_quant,
    /// A weight of each token and head: \[tokens, heads\], f32, f16 or bf16, of any strides. Input.
    /// Requires head_weights_out. NULL = none.
    pub head_weights: *const fastnorm_tensor,
    /// The weights times the scales of quant and head_weights_factor: \[tokens, heads\] f32, of any
    /// strides. Output. Requires head_weights, and codes with one scale for each row. NULL = none.
    pub head_weights_out: *const fastnorm_tensor,
    /// The last columns of the result as elements: \[pages, page_size, heads, e\] T, with e from 1
    /// to d - 1 and the other extents of cache. Requires a cache of codes. Output. NULL = cache has
    /// all columns.
    pub cache_tail: *const fastnorm_tensor,
}

impl fastnorm_norm_heads_part {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            flags: 0,
            kind: 0,
            eps: 0.0,
            weight_offset: 0.0,
            rounding: 0,
            rope_rounding: 0,
            rope_offset: 0,
            head_weights_factor: 0.0,
            x: core::ptr::null(),
            weight: core::ptr::null(),
            bias: core::ptr::null(),
            y: core::ptr::null(),
            mean: core::ptr::null(),
            rstd: core::ptr::null(),
            mean_in: core::ptr::null(),
            rstd_in: core::ptr::null(),
            sumsq: core::ptr::null(),
            quant: core::ptr::null(),
            cache: core::ptr::null(),
            cache_quant: core::ptr::null(),
            head_weights: core::ptr::null(),
            head_weights_out: core::ptr::null(),
            cache_tail: core::ptr::null(),
        }
    }
}

impl Default for fastnorm_norm_heads_part {
    fn default() -> Self {
        Self::new()
    }
}

/// What all parts of a call share.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_norm_heads_args {
    /// sizeof(fastnorm_norm_heads_args).
    pub struct_size: usize,
    /// Passed to the context's parallel_for, as in fastnorm_norm_args.
    pub parallel_user: *mut c_void,
    /// fastnorm_norm_heads_flags.
    pub flags: u32,
    /// Number of columns that ROPE rotates, an even number; 0 if no part has ROPE.
    pub rope_dim: i32,
    /// Number of pairs that use axis 0 of positions. All four numbers are 0 if positions has one
    /// row.
    pub mrope_0: i32,
    /// Number of pairs that use axis 1 of positions.
    pub mrope_1: i32,
    /// Number of pairs that use axis 2 of positions.
    pub mrope_2: i32,
    /// Number of pairs that use axis 3 of positions.
    pub mrope_3: i32,
    /// The table of cosines: \[P, R\], \[P, 2 \* R\], or one of these for each head; f32 or T.
    pub cos: *const fastnorm_tensor,
    /// The table of sines, of the shape and dtype of cos.
    pub sin: *const fastnorm_tensor,
    /// Which row of the tables each token uses: \[tokens\], or \[axes, tokens\] with 1 to 4 axes;
    /// i32 or i64. The positions of padding are ignored. NULL = token t uses row t.
    pub positions: *const fastnorm_tensor,
    /// Which slot of the caches each token is written to: \[at most tokens\] i32 or i64; -1 = the
    /// token is padding. Required if a part has a cache, otherwise NULL.
    pub slots: *const fastnorm_tensor,
}

impl fastnorm_norm_heads_args {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            parallel_user: core::ptr::null_mut(),
            flags: 0,
            rope_dim: 0,
            mrope_0: 0,
            mrope_1: 0,
            mrope_2: 0,
            mrope_3: 0,
            cos: core::ptr::null(),
            sin: core::ptr::null(),
            positions: core::ptr::null(),
            slots: core::ptr::null(),
        }
    }
}

impl Default for fastnorm_norm_heads_args {
    fn default() -> Self {
        Self::new()
    }
}

extern "C" {
    /// Say what a call would do: its workspace, kernel, launches and bytes. The query does not
    /// touch the memory of the tensors.
    ///
    /// - `context`: the device
    /// - `args`: the arguments of the call
    /// - `parts`: \[count\] pointers, the parts of the call
    /// - `count`: 0 to 8
    /// - `info`: struct_size as input; receives the rest
    ///
    /// Returns as fastnorm_norm_heads; FASTNORM_ERROR_ARGUMENT also if info is null or its
    /// struct_size is too small
    ///
    /// Since 0.2.
    pub fn fastnorm_norm_heads_query(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_heads_args,
        parts: *const *const fastnorm_norm_heads_part,
        count: i32,
        info: *mut fastnorm_info,
    ) -> fastnorm_status;

    /// Load the kernels of a call, so that the call neither allocates nor synchronises. Preparing
    /// is optional, because the first call that uses a kernel loads it, too.
    ///
    /// - `context`: the device
    /// - `args`: the arguments of the call
    /// - `parts`: \[count\] pointers, the parts of the call
    /// - `count`: 0 to 8
    ///
    /// Returns as fastnorm_norm_heads
    ///
    /// Since 0.2.
    pub fn fastnorm_norm_heads_prepare(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_heads_args,
        parts: *const *const fastnorm_norm_heads_part,
        count: i32,
    ) -> fastnorm_status;

    /// Normalise, rotate and store the heads of all parts; the formula is at the top of this
    /// header.
    ///
    /// CPU: the work is done when the call returns, and tokens are spread over the context's
    /// threads. Slots must be from -1 to pages \* page_size - 1, and positions from 0 to P - 1
    /// unless the token is padding. The CPU checks both before it writes anything. On a GPU they
    /// are not checked, and a wrong one is undefined behaviour that may write outside of the cache.
    /// The call allocates nothing and does not synchronise. A call without parts or without tokens
    /// is a success that does nothing.
    ///
    /// - `context`: the device
    /// - `args`: what all parts share; read only during the call
    /// - `parts`: \[count\] pointers, read only during the call
    /// - `count`: number of parts, 0 to 8
    /// - `workspace`: fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned; NULL if
    ///   0 bytes are needed
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: CUDA: the cudaStream_t; NULL = the legacy default stream. CPU: NULL
    ///
    /// Returns FASTNORM_OK FASTNORM_ERROR_ARGUMENT: context, args, a part, its x or a required
    /// tensor is null; a part has no output; there is ROPE without tables, or a cache without
    /// slots; a field is set that the flags do not use; a scalar is out of range; a struct_size is
    /// too small; a tensor has no shape, or it has elements but no data; the workspace is too
    /// small; there is a stream on the CPU; CPU: a position or slot is out of range; parallel_for
    /// did not cover the tokens exactly once, in which case some of them may have been written
    /// FASTNORM_ERROR_SHAPE: ranks or extents do not fit; rope_dim is odd or extends past the row;
    /// the mrope sections do not add up to R FASTNORM_ERROR_DTYPE: a tensor has a dtype that its
    /// role does not allow FASTNORM_ERROR_LAYOUT: a last dimension is not contiguous, an address is
    /// misaligned, or tensors overlap FASTNORM_ERROR_UNSUPPORTED: d is above 8192; CUDA: there are
    /// too many rows; a field or a flag of a later version is set, or bytes after the known fields
    /// are not zero FASTNORM_ERROR_DEVICE: a tensor is on another device FASTNORM_ERROR_INTERNAL: a
    /// defect of this library, or an exception out of parallel_for
    ///
    /// Since 0.2.
    pub fn fastnorm_norm_heads(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_heads_args,
        parts: *const *const fastnorm_norm_heads_part,
        count: i32,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> fastnorm_status;
}

/// Bits of fastnorm_norm_heads_backward_part.flags, in addition to fastnorm_norm_heads_part_flags.
pub type fastnorm_norm_heads_backward_flags = c_uint;
/// Add the sum to the old dweight: one addition in f32 after the sum, rounded once. Without the
/// flag the old dweight is not read.
pub const FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT: fastnorm_norm_heads_backward_flags = 64;
/// The same for dbias.
pub const FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS: fastnorm_norm_heads_backward_flags = 128;
pub const FASTNORM_NORM_HEADS_BACKWARD_FLAGS_MAX_ENUM: fastnorm_norm_heads_backward_flags =
    0x7fffffff;

/// One part. A zeroed struct with struct_size, dy and dx set is valid: such a part copies dy to dx,
/// as the gradient of a value head needs it.
///
/// Shapes: dy is \[tokens, heads, d\] with d from 1 to 8192 and at least one head, and all parts
/// have the same number of tokens. T is the dtype of x, or that of dx if there is no x. It is f32,
/// f16 or bf16 and is the same for all parts. Last dimensions must be contiguous, except that the
/// last stride of dy may be 0. All other strides may be anything, because dx is often a view of a
/// packed gradient of QKV; a stride of 0 is allowed for inputs only. Any alignment that the dtype
/// allows is accepted. All tensors are on the context's device.
///
/// Outputs are dx, dweight and dbias; a part must have at least one of them. A layer with frozen
/// weights asks for dx only, and a layer above frozen layers asks for dweight only.
///
/// Aliasing: dx may be the same view as the part's dy or x. No other output may share an element
/// with any tensor of the call, but outputs may be interleaved views of one buffer that share no
/// element.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_norm_heads_backward_part {
    /// sizeof(fastnorm_norm_heads_backward_part).
    pub struct_size: usize,
    /// The fastnorm_norm_heads_part_flags of the forward, and fastnorm_norm_heads_backward_flags.
    pub flags: u32,
    /// NORM: the kind of the forward; else 0.
    pub kind: fastnorm_norm_kind,
    /// NORM: the eps of the forward, used only if rstd is NULL; else 0.
    pub eps: f32,
    /// The weight_offset of the forward; 0 if weight is NULL.
    pub weight_offset: f32,
    /// NORM: the rounding of the forward; else 0.
    pub rounding: fastnorm_rounding,
    /// ROPE: the rope_offset of the forward; else 0.
    pub rope_offset: i32,
    /// The gradient of y. \[tokens, heads, d\] T or f32. Required.
    pub dy: *const fastnorm_tensor,
    /// NORM: the x of the forward, \[tokens, heads, d\] T. Required with NORM, otherwise NULL.
    pub x: *const fastnorm_tensor,
    /// NORM: the weight of the forward, \[d\], \[1, d\] or \[heads, d\]; f32, f16 or bf16. NULL =
    /// 1.
    pub weight: *const fastnorm_tensor,
    /// LAYER: the mean of each row, as the forward returned it, f32 \[tokens, heads\]; with
    /// ACROSS_HEADS \[tokens\]. NULL if rstd is NULL.
    pub mean: *const fastnorm_tensor,
    /// NORM: the rstd of each row, as the forward returned it, for both kinds; the shape and dtype
    /// are those of mean. NULL = computed again from x, with the bits of the forward.
    pub rstd: *const fastnorm_tensor,
    /// The gradient of x. \[tokens, heads, d\] T. Output; may be dy or x. NULL = not stored.
    pub dx: *const fastnorm_tensor,
    /// NORM with a weight: the gradient of weight. weight's shape; f32 or weight's dtype. Output;
    /// also an input with ACCUMULATE_DWEIGHT. NULL = not computed.
    pub dweight: *const fastnorm_tensor,
    /// NORM: the gradient of the forward's bias. The shape of that bias, \[d\] or \[heads, d\];
    /// f32, f16 or bf16. Output; also an input with ACCUMULATE_DBIAS. NULL = not computed.
    pub dbias: *const fastnorm_tensor,
}

impl fastnorm_norm_heads_backward_part {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            flags: 0,
            kind: 0,
            eps: 0.0,
            weight_offset: 0.0,
            rounding: 0,
            rope_offset: 0,
            dy: core::ptr::null(),
            x: core::ptr::null(),
            weight: core::ptr::null(),
            mean: core::ptr::null(),
            rstd: core::ptr::null(),
            dx: core::ptr::null(),
            dweight: core::ptr::null(),
            dbias: core::ptr::null(),
        }
    }
}

impl Default for fastnorm_norm_heads_backward_part {
    fn default() -> Self {
        Self::new()
    }
}

extern "C" {
    /// Say what a call would do: its workspace, kernel, launches and bytes. The query does not
    /// touch the memory of the tensors.
    ///
    /// The workspace holds partial sums of dweight and dbias, as that of fastnorm_norm_backward
    /// does, and with ACROSS_HEADS four floats for each token. If neither is needed, it is 0 bytes.
    /// CUDA: if the kernels of fastnorm_norm_backward run, the workspace also holds statistics that
    /// are computed again.
    ///
    /// - `context`: the device
    /// - `args`: the arguments of the call
    /// - `parts`: \[count\] pointers, the parts of the call
    /// - `count`: 0 to 8
    /// - `info`: struct_size as input; receives the rest
    ///
    /// Returns as fastnorm_norm_heads_backward; FASTNORM_ERROR_ARGUMENT also if info is null or its
    /// struct_size is too small
    ///
    /// Since 0.2.
    pub fn fastnorm_norm_heads_backward_query(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_heads_args,
        parts: *const *const fastnorm_norm_heads_backward_part,
        count: i32,
        info: *mut fastnorm_info,
    ) -> fastnorm_status;

    /// Load the kernels of a call, so that the call neither allocates nor synchronises. Preparing
    /// is optional, because the first call that uses a kernel loads it, too.
    ///
    /// - `context`: the device
    /// - `args`: the arguments of the call
    /// - `parts`: \[count\] pointers, the parts of the call
    /// - `count`: 0 to 8
    ///
    /// Returns as fastnorm_norm_heads_backward
    ///
    /// Since 0.2.
    pub fn fastnorm_norm_heads_backward_prepare(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_heads_args,
        parts: *const *const fastnorm_norm_heads_backward_part,
        count: i32,
    ) -> fastnorm_status;

    /// Compute the gradients of all parts; the formulas are at the top of this header.
    ///
    /// CPU: the work is done when the call returns, and rows are spread over the context's threads.
    /// Positions must be from 0 to P - 1. The CPU checks this before it writes anything; on a GPU
    /// it is not checked, and a wrong position is undefined behaviour. The call allocates nothing
    /// and does not synchronise. A call without parts is a success that does nothing. A call
    /// without tokens is a success, too: dweight and dbias become 0 or, with their ACCUMULATE
    /// flags, stay as they are.
    ///
    /// - `context`: the device
    /// - `args`: the arguments of the forward, which all parts share; slots is ignored. Read only
    ///   during the call
    /// - `parts`: \[count\] pointers, read only during the call
    /// - `count`: number of parts, 0 to 8
    /// - `workspace`: fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned. Their
    ///   contents may be anything, and nothing else may use them until the work has run. NULL if 0
    ///   bytes are needed
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: CUDA: the cudaStream_t; NULL = the legacy default stream. CPU: NULL
    ///
    /// Returns FASTNORM_OK FASTNORM_ERROR_ARGUMENT: context, args, a part, its dy or a required
    /// tensor is null; a part has no output; there is ROPE without tables; a field is set that the
    /// flags do not use; a scalar is out of range; a struct_size is too small; a tensor has no
    /// shape, or it has elements but no data; there is a mean with RMS, or only one of mean and
    /// rstd with LAYER; there is dweight without weight, or an ACCUMULATE flag without its output;
    /// the workspace is too small; there is a stream on the CPU; CPU: a position is out of range;
    /// parallel_for did not cover the work exactly once, in which case some outputs may have been
    /// written FASTNORM_ERROR_SHAPE: ranks or extents do not fit; rope_dim is odd or extends past
    /// the row; the mrope sections do not add up to R FASTNORM_ERROR_DTYPE: a tensor has a dtype
    /// that its role does not allow FASTNORM_ERROR_LAYOUT: a last dimension is not contiguous, an
    /// address is misaligned, or tensors overlap FASTNORM_ERROR_UNSUPPORTED: d is above 8192; a
    /// field or a flag of a later version is set, or bytes after the known fields are not zero;
    /// CUDA: the device has no kernels for the call FASTNORM_ERROR_DEVICE: a tensor is on another
    /// device; the CUDA runtime reported an error FASTNORM_ERROR_OUT_OF_MEMORY: the CUDA runtime
    /// had no memory, for example to load the kernel FASTNORM_ERROR_INTERNAL: a defect of this
    /// library, or an exception out of parallel_for
    ///
    /// Since 0.2.
    pub fn fastnorm_norm_heads_backward(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_heads_args,
        parts: *const *const fastnorm_norm_heads_backward_part,
        count: i32,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> fastnorm_status;
}

/// One rank's end of a group. The type is opaque.
#[repr(C)]
pub struct fastnorm_peer {
    _data: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// How rows travel between the ranks. Results do not depend on it.
pub type fastnorm_peer_algorithm = c_uint;
/// The library chooses by the numbers of rows, columns and ranks and by the dtype: one-shot up to
/// one_shot_bytes, two-shot above.
pub const FASTNORM_PEER_AUTO: fastnorm_peer_algorithm = 0;
/// Each rank sends its rows to all ranks, and each rank adds up all rows.
pub const FASTNORM_PEER_ONE_SHOT: fastnorm_peer_algorithm = 1;
/// Each rank adds up a share of the rows and sends these sums to all ranks.
pub const FASTNORM_PEER_TWO_SHOT: fastnorm_peer_algorithm = 2;
pub const FASTNORM_PEER_ALGORITHM_MAX_ENUM: fastnorm_peer_algorithm = 0x7fffffff;

/// Which value of the sum of the ranks' rows is normalised.
pub type fastnorm_peer_sum_rounding = c_uint;
/// The sum rounded to x's dtype T before the residual is added, as an all-reduce in T gives it.
pub const FASTNORM_PEER_SUM_ROUNDED: fastnorm_peer_sum_rounding = 0;
/// The single-precision sum.
pub const FASTNORM_PEER_SUM_EXACT: fastnorm_peer_sum_rounding = 1;
pub const FASTNORM_PEER_SUM_ROUNDING_MAX_ENUM: fastnorm_peer_sum_rounding = 0x7fffffff;

/// What stopped a peer.
pub type fastnorm_peer_error = c_uint;
/// Nothing stopped it.
pub const FASTNORM_PEER_ERROR_NONE: fastnorm_peer_error = 0;
/// A rank did not arrive within wait_ns.
pub const FASTNORM_PEER_ERROR_MISSING: fastnorm_peer_error = 1;
/// A rank made a different call.
pub const FASTNORM_PEER_ERROR_DISAGREES: fastnorm_peer_error = 2;
pub const FASTNORM_PEER_ERROR_MAX_ENUM: fastnorm_peer_error = 0x7fffffff;

/// Limits of a group.
pub type fastnorm_peer_limits = c_uint;
/// Largest number of ranks in a group.
pub const FASTNORM_PEER_MAX_RANKS: fastnorm_peer_limits = 8;
/// Size of one rank's blob in bytes.
pub const FASTNORM_PEER_BLOB_BYTES: fastnorm_peer_limits = 128;
pub const FASTNORM_PEER_LIMITS_MAX_ENUM: fastnorm_peer_limits = 0x7fffffff;

/// Options of a peer. A zeroed struct with struct_size, rank, ranks, dtype and max_columns set is
/// valid. All options but rank and wait_ns must be the same on all ranks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_peer_options {
    /// sizeof(fastnorm_peer_options).
    pub struct_size: usize,
    /// Number of this rank, 0 to ranks - 1. Required.
    pub rank: i32,
    /// Number of ranks in the group, 2 to 8; it may be odd. Required.
    pub ranks: i32,
    /// T, the dtype of x in a peer_allreduce_norm: f32, f16 or bf16. Required.
    pub dtype: fastnorm_dtype_id,
    /// How rows travel. Default: the library chooses by size.
    pub algorithm: fastnorm_peer_algorithm,
    /// Length of the longest row of a peer_allreduce_norm, 1 to 65536. Required.
    pub max_columns: i64,
    /// With FASTNORM_PEER_AUTO: up to how many bytes (rows \* columns \* bytes of T) a call is
    /// one-shot; 0 = a measured default for the number of ranks. For 2 ranks that default makes
    /// every call one-shot.
    pub one_shot_bytes: i64,
    /// The longest wait for another rank in nanoseconds: 1000 to 10^12; 0 = 10 s.
    pub wait_ns: i64,
    /// Number of rings in the buffer of a rank, 1 to 256; 0 = 8 on a CPU; on CUDA 256 for two ranks
    /// and 128 for more. A ring is a part of the buffer through which one row after another
    /// travels, so this is the number of rows that may travel at once. On CUDA each thread block or
    /// cluster of them has a ring, so it limits their number, too.
    pub rings: i32,
    /// Must be 0.
    pub reserved: i32,
}

impl fastnorm_peer_options {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            rank: 0,
            ranks: 0,
            dtype: 0,
            algorithm: 0,
            max_columns: 0,
            one_shot_bytes: 0,
            wait_ns: 0,
            rings: 0,
            reserved: 0,
        }
    }
}

impl Default for fastnorm_peer_options {
    fn default() -> Self {
        Self::new()
    }
}

/// The state of a peer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_peer_state {
    /// Input: sizeof(fastnorm_peer_state).
    pub struct_size: usize,
    /// What stopped the peer; NONE = nothing.
    pub error: fastnorm_peer_error,
    /// The rank that was missing or that made a different call; -1 if there is none.
    pub rank: i32,
    /// Number of calls that succeeded since the peer was created or reset. CUDA: the number has 32
    /// bits, and a call that was stopped counts if its first rows succeeded.
    pub calls: u64,
    /// 1 once the other ranks' buffers are known; else 0.
    pub connected: i32,
    /// 0.
    pub reserved: i32,
}

impl fastnorm_peer_state {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            error: 0,
            rank: 0,
            calls: 0,
            connected: 0,
            reserved: 0,
        }
    }
}

impl Default for fastnorm_peer_state {
    fn default() -> Self {
        Self::new()
    }
}

extern "C" {
    /// Size in bytes of a rank's buffer, for fastnorm_peer_create_from_pointers.
    ///
    /// - `context`: the device
    /// - `options`: read only during the call
    /// - `bytes`: receives the size
    ///
    /// Returns as fastnorm_peer_create
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_buffer_bytes(
        context: *mut fastnorm_context,
        options: *const fastnorm_peer_options,
        bytes: *mut u64,
    ) -> fastnorm_status;

    /// Create one rank's peer, with a buffer of its own. The rank can make calls as soon as
    /// fastnorm_peer_import has the blobs of the other ranks.
    ///
    /// - `context`: the device; must outlive the peer
    /// - `options`: read only during the call
    /// - `peer`: receives the peer, or NULL on failure; the caller owns it and ends it with
    ///   fastnorm_peer_destroy
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if an argument is null or an option is out of
    /// range; FASTNORM_ERROR_DTYPE if options-\>dtype is not f32, f16 or bf16;
    /// FASTNORM_ERROR_UNSUPPORTED if the device has no peers, or if options of a later version are
    /// set; FASTNORM_ERROR_OUT_OF_MEMORY if host or device memory ran out
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_create(
        context: *mut fastnorm_context,
        options: *const fastnorm_peer_options,
        peer: *mut *mut fastnorm_peer,
    ) -> fastnorm_status;

    /// Create one rank's peer over buffers that the caller provides. This function prepares the
    /// buffer of this rank, so no rank may make a call before it has returned on all ranks. The
    /// options of the ranks are not compared here; if they differ, the calls fail. The buffers must
    /// outlive the peers of all ranks.
    ///
    /// - `context`: the device; must outlive the peer
    /// - `options`: read only during the call
    /// - `buffers`: \[count\] addresses in rank order, as this rank reaches them. Each buffer has
    ///   fastnorm_peer_buffer_bytes bytes, is 256-byte aligned and does not overlap the others
    /// - `count`: options.ranks
    /// - `peer`: as fastnorm_peer_create
    ///
    /// Returns as fastnorm_peer_create; FASTNORM_ERROR_LAYOUT if buffers are misaligned or overlap
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_create_from_pointers(
        context: *mut fastnorm_context,
        options: *const fastnorm_peer_options,
        buffers: *const *mut c_void,
        count: i32,
        peer: *mut *mut fastnorm_peer,
    ) -> fastnorm_status;

    /// Write the blob that other ranks need to reach this one.
    ///
    /// - `peer`: a peer that fastnorm_peer_create created
    /// - `blob`: receives FASTNORM_PEER_BLOB_BYTES bytes
    /// - `bytes`: size of blob
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if an argument is null, the blob is too small,
    /// or the peer comes from fastnorm_peer_create_from_pointers
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_export(
        peer: *mut fastnorm_peer,
        blob: *mut c_void,
        bytes: usize,
    ) -> fastnorm_status;

    /// Connect a rank with all others, which is done once. The function does not wait for the other
    /// ranks. Their buffers stay valid until this peer is destroyed, even if their own peers are
    /// destroyed earlier.
    ///
    /// - `peer`: a peer that fastnorm_peer_create created
    /// - `blobs`: the blobs of all ranks, including this one, in rank order and without gaps
    /// - `bytes`: size of blobs: ranks \* FASTNORM_PEER_BLOB_BYTES
    ///
    /// Returns FASTNORM_OK FASTNORM_ERROR_ARGUMENT: an argument is null; the size is wrong; the
    /// bytes are not a blob; a blob belongs to another rank; the options differ (the text names the
    /// option and both values); a buffer no longer exists; the peer is already connected
    /// FASTNORM_ERROR_UNSUPPORTED: a blob comes from another version of the library or another
    /// device type; CPU: from another process; CUDA: from a GPU whose memory this one cannot reach,
    /// or from another process if CUDA IPC does not work
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_import(
        peer: *mut fastnorm_peer,
        blobs: *const c_void,
        bytes: usize,
    ) -> fastnorm_status;

    /// Say whether a peer was stopped, and by which rank. The function may be called at any time
    /// and from any thread, even while a call waits for other ranks.
    ///
    /// - `peer`: the peer
    /// - `state`: struct_size as input; receives the rest
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if peer or state is null, or if state's
    /// struct_size is too small
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_status(
        peer: *const fastnorm_peer,
        state: *mut fastnorm_peer_state,
    ) -> fastnorm_status;

    /// Make a stopped group usable again. Every rank must call this function after the last call of
    /// any rank has ended and before any rank makes the next one. The caller ensures this by a
    /// barrier before and another one after it. CUDA: no stream may still have calls of this peer.
    ///
    /// - `peer`: the peer
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if peer is null, or on the CPU if it runs a
    /// call
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_reset(peer: *mut fastnorm_peer) -> fastnorm_status;

    /// Destroy a peer. No call on the peer may run at the same time or follow, and on CUDA no
    /// stream may still have calls of this peer. If other ranks continue to make calls, they find
    /// this one missing.
    ///
    /// - `peer`: the peer; if it is NULL, nothing is done
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_destroy(peer: *mut fastnorm_peer);
}

/// An all-reduce and one normalisation. A zeroed struct with struct_size, peer and norm set is
/// valid.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_peer_allreduce_norm_args {
    /// sizeof(fastnorm_peer_allreduce_norm_args).
    pub struct_size: usize,
    /// Passed to the context's parallel_for, as in fastnorm_norm_args; NULL = norm.parallel_user.
    pub parallel_user: *mut c_void,
    /// This rank's peer, which is connected and belongs to the same context. Required.
    pub peer: *mut fastnorm_peer,
    /// The norm to apply, with this rank's summand as its x: \[..., n\] of the peer's dtype, of
    /// rank 1 to 8. The sum of the ranks' x takes the place of x. As in fastnorm_norm, outputs may
    /// be x or residual. Residual, weight, bias and scales belong to each rank, and must be the
    /// same on all ranks if the results are to be the same. Stages, groups, statistics of several
    /// devices and a quant.rotation return FASTNORM_ERROR_UNSUPPORTED. Required.
    pub norm: *const fastnorm_norm_args,
    /// Which value of the sum is normalised. Default: the sum rounded to T.
    pub sum_rounding: fastnorm_peer_sum_rounding,
    /// Must be 0.
    pub reserved: i32,
}

impl fastnorm_peer_allreduce_norm_args {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            parallel_user: core::ptr::null_mut(),
            peer: core::ptr::null_mut(),
            norm: core::ptr::null(),
            sum_rounding: 0,
            reserved: 0,
        }
    }
}

impl Default for fastnorm_peer_allreduce_norm_args {
    fn default() -> Self {
        Self::new()
    }
}

extern "C" {
    /// Say what a call would do: its workspace, kernel, launches and bytes. The peer need not be
    /// connected. bytes_read and bytes_written are those of the norm; bytes that travel between
    /// ranks do not count.
    ///
    /// - `context`: the device
    /// - `args`: the arguments of the call
    /// - `info`: struct_size as input; receives the rest
    ///
    /// Returns as fastnorm_peer_allreduce_norm; FASTNORM_ERROR_ARGUMENT also if info is null or its
    /// struct_size is too small
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_allreduce_norm_query(
        context: *mut fastnorm_context,
        args: *const fastnorm_peer_allreduce_norm_args,
        info: *mut fastnorm_info,
    ) -> fastnorm_status;

    /// Load the kernels of a call. On the CPU this is optional. On CUDA, prepare on all ranks
    /// before the first call, because a kernel cannot be loaded while another one waits for a rank.
    /// The function does not wait for other ranks.
    ///
    /// - `context`: the device
    /// - `args`: the arguments of the call
    ///
    /// Returns as fastnorm_peer_allreduce_norm
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_allreduce_norm_prepare(
        context: *mut fastnorm_context,
        args: *const fastnorm_peer_allreduce_norm_args,
    ) -> fastnorm_status;

    /// Add up the ranks' x, add the residual and normalise; the formula is at the top of this
    /// header. Every rank makes this call. CPU: the call waits for the other ranks' x, and the work
    /// is done when it returns. CUDA: the call queues kernels on the stream and returns; calls of
    /// one peer run in the order of that stream. Zero rows are a success: nothing is sent and
    /// nothing is written.
    ///
    /// - `context`: the device
    /// - `args`: what to compute; read only during the call
    /// - `workspace`: fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned, which
    ///   overlap no tensor
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: CUDA: the cudaStream_t. CPU: NULL
    ///
    /// Returns as fastnorm_norm, and FASTNORM_ERROR_ARGUMENT: peer is null, belongs to another
    /// context or is not connected; norm is null; CPU: the peer already runs a call, or a rank
    /// makes a different call (the text describes both calls) FASTNORM_ERROR_UNSUPPORTED: a field
    /// of norm is set that an all-reduce does not support FASTNORM_ERROR_SHAPE: n is above
    /// max_columns, or there are 2^31 rows or more FASTNORM_ERROR_DTYPE: x has another dtype than
    /// the peer FASTNORM_ERROR_DEVICE: the peer was stopped earlier; CPU: a rank did not arrive in
    /// time
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_allreduce_norm(
        context: *mut fastnorm_context,
        args: *const fastnorm_peer_allreduce_norm_args,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> fastnorm_status;
}

/// Normalisation of one or two parts whose columns are spread over the ranks, such as query and key
/// heads. One exchange between the ranks serves both parts. A zeroed struct with struct_size, peer,
/// x and y set is valid.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_peer_sharded_norm_args {
    /// sizeof(fastnorm_peer_sharded_norm_args).
    pub struct_size: usize,
    /// Passed to the context's parallel_for, as in fastnorm_norm_args.
    pub parallel_user: *mut c_void,
    /// This rank's peer, which is connected and belongs to the same context. Required.
    pub peer: *mut fastnorm_peer,
    /// RMS or LAYER.
    pub kind: fastnorm_norm_kind,
    /// Added to the mean square or the variance. Finite, \>= 0.
    pub eps: f32,
    /// Added to the weights in f32, as in fastnorm_norm_args; 0 if a part has no weight.
    pub weight_offset: f32,
    /// FASTNORM_ROUND_ONCE or FASTNORM_ROUND_NORMALIZED.
    pub rounding: fastnorm_rounding,
    /// The bits of fastnorm_norm_flags that are about programmatic dependent launch, or 0.
    pub flags: u32,
    /// Must be 0.
    pub reserved: i32,
    /// This rank's columns of the first part: \[tokens, n\], or \[tokens, heads, d\] with n = heads
    /// \* d; d is at most 8192; f32, f16 or bf16. n is the same on all ranks. Required.
    pub x: *const fastnorm_tensor,
    /// The weight of the first part: \[n\], or \[d\] or \[heads, d\]; f32, f16 or bf16. NULL = 1.
    pub weight: *const fastnorm_tensor,
    /// The bias of the first part, with the shapes and dtypes of weight. NULL = 0.
    pub bias: *const fastnorm_tensor,
    /// The normalised first part, of x's shape and dtype. Output; may be x. Required.
    pub y: *const fastnorm_tensor,
    /// The second part, with the tokens and the dtype of x. NULL = there is one part.
    pub x2: *const fastnorm_tensor,
    /// The weight of x2, with the rules of weight. NULL = 1.
    pub weight2: *const fastnorm_tensor,
    /// The bias of x2, with the rules of bias. NULL = 0.
    pub bias2: *const fastnorm_tensor,
    /// The normalised x2, of x2's shape and dtype. Output; may be x2. Required with x2.
    pub y2: *const fastnorm_tensor,
}

impl fastnorm_peer_sharded_norm_args {
    /// Everything zero, `struct_size` set: the defaults.
    #[inline]
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            parallel_user: core::ptr::null_mut(),
            peer: core::ptr::null_mut(),
            kind: 0,
            eps: 0.0,
            weight_offset: 0.0,
            rounding: 0,
            flags: 0,
            reserved: 0,
            x: core::ptr::null(),
            weight: core::ptr::null(),
            bias: core::ptr::null(),
            y: core::ptr::null(),
            x2: core::ptr::null(),
            weight2: core::ptr::null(),
            bias2: core::ptr::null(),
            y2: core::ptr::null(),
        }
    }
}

impl Default for fastnorm_peer_sharded_norm_args {
    fn default() -> Self {
        Self::new()
    }
}

extern "C" {
    /// Say what a call would do, as fastnorm_peer_allreduce_norm_query does.
    ///
    /// - `context`: the device
    /// - `args`: the arguments of the call
    /// - `info`: struct_size as input; receives the rest
    ///
    /// Returns as fastnorm_peer_sharded_norm; FASTNORM_ERROR_ARGUMENT also if info is null or its
    /// struct_size is too small
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_sharded_norm_query(
        context: *mut fastnorm_context,
        args: *const fastnorm_peer_sharded_norm_args,
        info: *mut fastnorm_info,
    ) -> fastnorm_status;

    /// Load the kernels of a call, as fastnorm_peer_allreduce_norm_prepare does. The function does
    /// not wait for other ranks.
    ///
    /// - `context`: the device
    /// - `args`: the arguments of the call
    ///
    /// Returns as fastnorm_peer_sharded_norm
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_sharded_norm_prepare(
        context: *mut fastnorm_context,
        args: *const fastnorm_peer_sharded_norm_args,
    ) -> fastnorm_status;

    /// Normalise rows whose columns are spread over the ranks; the formula is at the top of this
    /// header. Every rank makes this call.
    ///
    /// - `context`: the device
    /// - `args`: what to compute; read only during the call
    /// - `workspace`: fastnorm_info.workspace_bytes bytes, as for fastnorm_peer_allreduce_norm
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: CUDA: the cudaStream_t. CPU: NULL
    ///
    /// Returns as fastnorm_peer_allreduce_norm; error texts about overlap call the two parts
    /// parts\[0\] and parts\[1\]
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_sharded_norm(
        context: *mut fastnorm_context,
        args: *const fastnorm_peer_sharded_norm_args,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> fastnorm_status;
}

// The layout that a C compiler gives these types.
const _: () = {
    assert!(size_of::<fastnorm_device>() == 8);
    assert!(offset_of!(fastnorm_device, device_type) == 0);
    assert!(offset_of!(fastnorm_device, device_id) == 4);
    assert!(size_of::<fastnorm_dtype>() == 4);
    assert!(offset_of!(fastnorm_dtype, code) == 0);
    assert!(offset_of!(fastnorm_dtype, bits) == 1);
    assert!(offset_of!(fastnorm_dtype, lanes) == 2);
    assert!(size_of::<fastnorm_tensor>() == 48);
    assert!(offset_of!(fastnorm_tensor, data) == 0);
    assert!(offset_of!(fastnorm_tensor, device_type) == 8);
    assert!(offset_of!(fastnorm_tensor, device_id) == 12);
    assert!(offset_of!(fastnorm_tensor, ndim) == 16);
    assert!(offset_of!(fastnorm_tensor, dtype) == 20);
    assert!(offset_of!(fastnorm_tensor, shape) == 24);
    assert!(offset_of!(fastnorm_tensor, strides) == 32);
    assert!(offset_of!(fastnorm_tensor, byte_offset) == 40);
    assert!(size_of::<fastnorm_context_options>() == 64);
    assert!(offset_of!(fastnorm_context_options, struct_size) == 0);
    assert!(offset_of!(fastnorm_context_options, log) == 8);
    assert!(offset_of!(fastnorm_context_options, log_user) == 16);
    assert!(offset_of!(fastnorm_context_options, parallel_for) == 24);
    assert!(offset_of!(fastnorm_context_options, parallel_user) == 32);
    assert!(offset_of!(fastnorm_context_options, num_threads) == 40);
    assert!(offset_of!(fastnorm_context_options, flags) == 44);
    assert!(offset_of!(fastnorm_context_options, dry_run_capability) == 48);
    assert!(offset_of!(fastnorm_context_options, reserved) == 52);
    assert!(offset_of!(fastnorm_context_options, tuning_file) == 56);
    assert!(size_of::<fastnorm_device_info>() == 176);
    assert!(offset_of!(fastnorm_device_info, struct_size) == 0);
    assert!(offset_of!(fastnorm_device_info, name) == 8);
    assert!(offset_of!(fastnorm_device_info, capability) == 136);
    assert!(offset_of!(fastnorm_device_info, multiprocessors) == 140);
    assert!(offset_of!(fastnorm_device_info, l2_bytes) == 144);
    assert!(offset_of!(fastnorm_device_info, memory_bytes) == 152);
    assert!(offset_of!(fastnorm_device_info, driver_version) == 160);
    assert!(offset_of!(fastnorm_device_info, runtime_version) == 164);
    assert!(offset_of!(fastnorm_device_info, kernel_arch) == 168);
    assert!(size_of::<fastnorm_info>() == 104);
    assert!(offset_of!(fastnorm_info, struct_size) == 0);
    assert!(offset_of!(fastnorm_info, workspace_bytes) == 8);
    assert!(offset_of!(fastnorm_info, bytes_read) == 16);
    assert!(offset_of!(fastnorm_info, bytes_written) == 24);
    assert!(offset_of!(fastnorm_info, kernel) == 32);
    assert!(offset_of!(fastnorm_info, launches) == 40);
    assert!(offset_of!(fastnorm_info, threads_per_row) == 44);
    assert!(offset_of!(fastnorm_info, vectors_per_thread) == 48);
    assert!(offset_of!(fastnorm_info, rows_per_block) == 52);
    assert!(offset_of!(fastnorm_info, blocks_per_row) == 56);
    assert!(offset_of!(fastnorm_info, vector_bytes) == 60);
    assert!(offset_of!(fastnorm_info, blocks) == 64);
    assert!(offset_of!(fastnorm_info, profile_bytes) == 72);
    assert!(offset_of!(fastnorm_info, kind) == 80);
    assert!(offset_of!(fastnorm_info, choice) == 88);
    assert!(offset_of!(fastnorm_info, variant) == 96);
    assert!(size_of::<fastnorm_kernel_info>() == 32);
    assert!(offset_of!(fastnorm_kernel_info, struct_size) == 0);
    assert!(offset_of!(fastnorm_kernel_info, family) == 8);
    assert!(offset_of!(fastnorm_kernel_info, arch) == 16);
    assert!(offset_of!(fastnorm_kernel_info, name) == 24);
    assert!(size_of::<fastnorm_quant>() == 96);
    assert!(offset_of!(fastnorm_quant, struct_size) == 0);
    assert!(offset_of!(fastnorm_quant, scheme) == 8);
    assert!(offset_of!(fastnorm_quant, block_size) == 12);
    assert!(offset_of!(fastnorm_quant, source) == 16);
    assert!(offset_of!(fastnorm_quant, division) == 20);
    assert!(offset_of!(fastnorm_quant, scale_layout) == 24);
    assert!(offset_of!(fastnorm_quant, scale_pow2) == 28);
    assert!(offset_of!(fastnorm_quant, amax_floor) == 32);
    assert!(offset_of!(fastnorm_quant, clamp) == 36);
    assert!(offset_of!(fastnorm_quant, quantized) == 40);
    assert!(offset_of!(fastnorm_quant, scale) == 48);
    assert!(offset_of!(fastnorm_quant, global_scale) == 56);
    assert!(offset_of!(fastnorm_quant, clamp_scale) == 64);
    assert!(offset_of!(fastnorm_quant, amax) == 72);
    assert!(offset_of!(fastnorm_quant, rotation) == 80);
    assert!(offset_of!(fastnorm_quant, y_rotated) == 84);
    assert!(offset_of!(fastnorm_quant, rotation_signs) == 88);
    assert!(size_of::<fastnorm_norm_args>() == 296);
    assert!(offset_of!(fastnorm_norm_args, struct_size) == 0);
    assert!(offset_of!(fastnorm_norm_args, parallel_user) == 8);
    assert!(offset_of!(fastnorm_norm_args, kind) == 16);
    assert!(offset_of!(fastnorm_norm_args, eps) == 20);
    assert!(offset_of!(fastnorm_norm_args, weight_offset) == 24);
    assert!(offset_of!(fastnorm_norm_args, rounding) == 28);
    assert!(offset_of!(fastnorm_norm_args, residual_rounding) == 32);
    assert!(offset_of!(fastnorm_norm_args, flags) == 36);
    assert!(offset_of!(fastnorm_norm_args, x) == 40);
    assert!(offset_of!(fastnorm_norm_args, residual) == 48);
    assert!(offset_of!(fastnorm_norm_args, weight) == 56);
    assert!(offset_of!(fastnorm_norm_args, bias) == 64);
    assert!(offset_of!(fastnorm_norm_args, y) == 72);
    assert!(offset_of!(fastnorm_norm_args, residual_out) == 80);
    assert!(offset_of!(fastnorm_norm_args, mean) == 88);
    assert!(offset_of!(fastnorm_norm_args, rstd) == 96);
    assert!(offset_of!(fastnorm_norm_args, quant) == 104);
    assert!(offset_of!(fastnorm_norm_args, gate) == 112);
    assert!(offset_of!(fastnorm_norm_args, gate_act) == 120);
    assert!(offset_of!(fastnorm_norm_args, gate_position) == 124);
    assert!(offset_of!(fastnorm_norm_args, gate_source) == 128);
    assert!(offset_of!(fastnorm_norm_args, activation) == 132);
    assert!(offset_of!(fastnorm_norm_args, group_size) == 136);
    assert!(offset_of!(fastnorm_norm_args, sumsq) == 144);
    assert!(offset_of!(fastnorm_norm_args, mean_in) == 152);
    assert!(offset_of!(fastnorm_norm_args, rstd_in) == 160);
    assert!(offset_of!(fastnorm_norm_args, branch_norm) == 168);
    assert!(offset_of!(fastnorm_norm_args, branch_kind) == 172);
    assert!(offset_of!(fastnorm_norm_args, branch_eps) == 176);
    assert!(offset_of!(fastnorm_norm_args, branch_weight_offset) == 180);
    assert!(offset_of!(fastnorm_norm_args, branch_rounding) == 184);
    assert!(offset_of!(fastnorm_norm_args, branch_rounded) == 188);
    assert!(offset_of!(fastnorm_norm_args, alpha) == 192);
    assert!(offset_of!(fastnorm_norm_args, sum_rounding) == 196);
    assert!(offset_of!(fastnorm_norm_args, branch_weight) == 200);
    assert!(offset_of!(fastnorm_norm_args, branch_bias) == 208);
    assert!(offset_of!(fastnorm_norm_args, branch_rstd) == 216);
    assert!(offset_of!(fastnorm_norm_args, sum_scale) == 224);
    assert!(offset_of!(fastnorm_norm_args, residual_gate) == 232);
    assert!(offset_of!(fastnorm_norm_args, residual_gate_table) == 240);
    assert!(offset_of!(fastnorm_norm_args, residual_gate_act) == 248);
    assert!(offset_of!(fastnorm_norm_args, modulation_rounding) == 252);
    assert!(offset_of!(fastnorm_norm_args, modulation_scale) == 256);
    assert!(offset_of!(fastnorm_norm_args, scale_table) == 264);
    assert!(offset_of!(fastnorm_norm_args, modulation_shift) == 272);
    assert!(offset_of!(fastnorm_norm_args, shift_table) == 280);
    assert!(offset_of!(fastnorm_norm_args, modulation_index) == 288);
    assert!(size_of::<fastnorm_norm_backward_args>() == 288);
    assert!(offset_of!(fastnorm_norm_backward_args, struct_size) == 0);
    assert!(offset_of!(fastnorm_norm_backward_args, parallel_user) == 8);
    assert!(offset_of!(fastnorm_norm_backward_args, kind) == 16);
    assert!(offset_of!(fastnorm_norm_backward_args, eps) == 20);
    assert!(offset_of!(fastnorm_norm_backward_args, weight_offset) == 24);
    assert!(offset_of!(fastnorm_norm_backward_args, rounding) == 28);
    assert!(offset_of!(fastnorm_norm_backward_args, flags) == 32);
    assert!(offset_of!(fastnorm_norm_backward_args, reserved) == 36);
    assert!(offset_of!(fastnorm_norm_backward_args, dy) == 40);
    assert!(offset_of!(fastnorm_norm_backward_args, x) == 48);
    assert!(offset_of!(fastnorm_norm_backward_args, weight) == 56);
    assert!(offset_of!(fastnorm_norm_backward_args, mean) == 64);
    assert!(offset_of!(fastnorm_norm_backward_args, rstd) == 72);
    assert!(offset_of!(fastnorm_norm_backward_args, dresidual_in) == 80);
    assert!(offset_of!(fastnorm_norm_backward_args, dx) == 88);
    assert!(offset_of!(fastnorm_norm_backward_args, dresidual) == 96);
    assert!(offset_of!(fastnorm_norm_backward_args, dweight) == 104);
    assert!(offset_of!(fastnorm_norm_backward_args, dbias) == 112);
    assert!(offset_of!(fastnorm_norm_backward_args, gate) == 120);
    assert!(offset_of!(fastnorm_norm_backward_args, bias) == 128);
    assert!(offset_of!(fastnorm_norm_backward_args, dgate) == 136);
    assert!(offset_of!(fastnorm_norm_backward_args, gate_act) == 144);
    assert!(offset_of!(fastnorm_norm_backward_args, gate_position) == 148);
    assert!(offset_of!(fastnorm_norm_backward_args, gate_source) == 152);
    assert!(offset_of!(fastnorm_norm_backward_args, stage_reserved) == 156);
    assert!(offset_of!(fastnorm_norm_backward_args, group_size) == 160);
    assert!(offset_of!(fastnorm_norm_backward_args, branch) == 168);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_weight) == 176);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_bias) == 184);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_mean) == 192);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_rstd) == 200);
    assert!(offset_of!(fastnorm_norm_backward_args, residual_gate) == 208);
    assert!(offset_of!(fastnorm_norm_backward_args, sum_scale) == 216);
    assert!(offset_of!(fastnorm_norm_backward_args, dbranch) == 224);
    assert!(offset_of!(fastnorm_norm_backward_args, dbranch_weight) == 232);
    assert!(offset_of!(fastnorm_norm_backward_args, dbranch_bias) == 240);
    assert!(offset_of!(fastnorm_norm_backward_args, dresidual_gate) == 248);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_kind) == 256);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_eps) == 260);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_weight_offset) == 264);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_rounding) == 268);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_norm) == 272);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_rounded) == 276);
    assert!(offset_of!(fastnorm_norm_backward_args, residual_gate_act) == 280);
    assert!(offset_of!(fastnorm_norm_backward_args, alpha) == 284);
    assert!(size_of::<fastnorm_mla_decode_args>() == 232);
    assert!(offset_of!(fastnorm_mla_decode_args, struct_size) == 0);
    assert!(offset_of!(fastnorm_mla_decode_args, parallel_user) == 8);
    assert!(offset_of!(fastnorm_mla_decode_args, sm_scale) == 16);
    assert!(offset_of!(fastnorm_mla_decode_args, causal) == 24);
    assert!(offset_of!(fastnorm_mla_decode_args, lse_base) == 28);
    assert!(offset_of!(fastnorm_mla_decode_args, max_s_q) == 32);
    assert!(offset_of!(fastnorm_mla_decode_args, reuse_plan) == 36);
    assert!(offset_of!(fastnorm_mla_decode_args, split_tokens) == 40);
    assert!(offset_of!(fastnorm_mla_decode_args, profile_events) == 44);
    assert!(offset_of!(fastnorm_mla_decode_args, total_kv_hint) == 48);
    assert!(offset_of!(fastnorm_mla_decode_args, q_nope) == 56);
    assert!(offset_of!(fastnorm_mla_decode_args, q_pe) == 64);
    assert!(offset_of!(fastnorm_mla_decode_args, ckv) == 72);
    assert!(offset_of!(fastnorm_mla_decode_args, kpe) == 80);
    assert!(offset_of!(fastnorm_mla_decode_args, kv_len) == 88);
    assert!(offset_of!(fastnorm_mla_decode_args, page_table) == 96);
    assert!(offset_of!(fastnorm_mla_decode_args, kv_indptr) == 104);
    assert!(offset_of!(fastnorm_mla_decode_args, qo_indptr) == 112);
    assert!(offset_of!(fastnorm_mla_decode_args, o) == 120);
    assert!(offset_of!(fastnorm_mla_decode_args, lse) == 128);
    assert!(offset_of!(fastnorm_mla_decode_args, profile) == 136);
    assert!(offset_of!(fastnorm_mla_decode_args, flags) == 144);
    assert!(offset_of!(fastnorm_mla_decode_args, cache_format) == 148);
    assert!(offset_of!(fastnorm_mla_decode_args, cache) == 152);
    assert!(offset_of!(fastnorm_mla_decode_args, cache_scale) == 160);
    assert!(offset_of!(fastnorm_mla_decode_args, indices) == 168);
    assert!(offset_of!(fastnorm_mla_decode_args, topk_length) == 176);
    assert!(offset_of!(fastnorm_mla_decode_args, attention_sink) == 184);
    assert!(offset_of!(fastnorm_mla_decode_args, extra_ckv) == 192);
    assert!(offset_of!(fastnorm_mla_decode_args, extra_kpe) == 200);
    assert!(offset_of!(fastnorm_mla_decode_args, extra_cache) == 208);
    assert!(offset_of!(fastnorm_mla_decode_args, extra_indices) == 216);
    assert!(offset_of!(fastnorm_mla_decode_args, extra_topk_length) == 224);
    assert!(size_of::<fastnorm_profile_event>() == 40);
    assert!(offset_of!(fastnorm_profile_event, time_ns) == 0);
    assert!(offset_of!(fastnorm_profile_event, cycle) == 8);
    assert!(offset_of!(fastnorm_profile_event, block) == 16);
    assert!(offset_of!(fastnorm_profile_event, multiprocessor) == 20);
    assert!(offset_of!(fastnorm_profile_event, group) == 24);
    assert!(offset_of!(fastnorm_profile_event, id) == 28);
    assert!(offset_of!(fastnorm_profile_event, kind) == 32);
    assert!(offset_of!(fastnorm_profile_event, value) == 36);
    assert!(size_of::<fastnorm_norm_heads_part>() == 160);
    assert!(offset_of!(fastnorm_norm_heads_part, struct_size) == 0);
    assert!(offset_of!(fastnorm_norm_heads_part, flags) == 8);
    assert!(offset_of!(fastnorm_norm_heads_part, kind) == 12);
    assert!(offset_of!(fastnorm_norm_heads_part, eps) == 16);
    assert!(offset_of!(fastnorm_norm_heads_part, weight_offset) == 20);
    assert!(offset_of!(fastnorm_norm_heads_part, rounding) == 24);
    assert!(offset_of!(fastnorm_norm_heads_part, rope_rounding) == 28);
    assert!(offset_of!(fastnorm_norm_heads_part, rope_offset) == 32);
    assert!(offset_of!(fastnorm_norm_heads_part, head_weights_factor) == 36);
    assert!(offset_of!(fastnorm_norm_heads_part, x) == 40);
    assert!(offset_of!(fastnorm_norm_heads_part, weight) == 48);
    assert!(offset_of!(fastnorm_norm_heads_part, bias) == 56);
    assert!(offset_of!(fastnorm_norm_heads_part, y) == 64);
    assert!(offset_of!(fastnorm_norm_heads_part, mean) == 72);
    assert!(offset_of!(fastnorm_norm_heads_part, rstd) == 80);
    assert!(offset_of!(fastnorm_norm_heads_part, mean_in) == 88);
    assert!(offset_of!(fastnorm_norm_heads_part, rstd_in) == 96);
    assert!(offset_of!(fastnorm_norm_heads_part, sumsq) == 104);
    assert!(offset_of!(fastnorm_norm_heads_part, quant) == 112);
    assert!(offset_of!(fastnorm_norm_heads_part, cache) == 120);
    assert!(offset_of!(fastnorm_norm_heads_part, cache_quant) == 128);
    assert!(offset_of!(fastnorm_norm_heads_part, head_weights) == 136);
    assert!(offset_of!(fastnorm_norm_heads_part, head_weights_out) == 144);
    assert!(offset_of!(fastnorm_norm_heads_part, cache_tail) == 152);
    assert!(size_of::<fastnorm_norm_heads_args>() == 72);
    assert!(offset_of!(fastnorm_norm_heads_args, struct_size) == 0);
    assert!(offset_of!(fastnorm_norm_heads_args, parallel_user) == 8);
    assert!(offset_of!(fastnorm_norm_heads_args, flags) == 16);
    assert!(offset_of!(fastnorm_norm_heads_args, rope_dim) == 20);
    assert!(offset_of!(fastnorm_norm_heads_args, mrope_0) == 24);
    assert!(offset_of!(fastnorm_norm_heads_args, mrope_1) == 28);
    assert!(offset_of!(fastnorm_norm_heads_args, mrope_2) == 32);
    assert!(offset_of!(fastnorm_norm_heads_args, mrope_3) == 36);
    assert!(offset_of!(fastnorm_norm_heads_args, cos) == 40);
    assert!(offset_of!(fastnorm_norm_heads_args, sin) == 48);
    assert!(offset_of!(fastnorm_norm_heads_args, positions) == 56);
    assert!(offset_of!(fastnorm_norm_heads_args, slots) == 64);
    assert!(size_of::<fastnorm_norm_heads_backward_part>() == 96);
    assert!(offset_of!(fastnorm_norm_heads_backward_part, struct_size) == 0);
    assert!(offset_of!(fastnorm_norm_heads_backward_part, flags) == 8);
    assert!(offset_of!(fastnorm_norm_heads_backward_part, kind) == 12);
    assert!(offset_of!(fastnorm_norm_heads_backward_part, eps) == 16);
    assert!(offset_of!(fastnorm_norm_heads_backward_part, weight_offset) == 20);
    assert!(offset_of!(fastnorm_norm_heads_backward_part, rounding) == 24);
    assert!(offset_of!(fastnorm_norm_heads_backward_part, rope_offset) == 28);
    assert!(offset_of!(fastnorm_norm_heads_backward_part, dy) == 32);
    assert!(offset_of!(fastnorm_norm_heads_backward_part, x) == 40);
    assert!(offset_of!(fastnorm_norm_heads_backward_part, weight) == 48);
    assert!(offset_of!(fastnorm_norm_heads_backward_part, mean) == 56);
    assert!(offset_of!(fastnorm_norm_heads_backward_part, rstd) == 64);
    assert!(offset_of!(fastnorm_norm_heads_backward_part, dx) == 72);
    assert!(offset_of!(fastnorm_norm_heads_backward_part, dweight) == 80);
    assert!(offset_of!(fastnorm_norm_heads_backward_part, dbias) == 88);
    assert!(size_of::<fastnorm_peer_options>() == 56);
    assert!(offset_of!(fastnorm_peer_options, struct_size) == 0);
    assert!(offset_of!(fastnorm_peer_options, rank) == 8);
    assert!(offset_of!(fastnorm_peer_options, ranks) == 12);
    assert!(offset_of!(fastnorm_peer_options, dtype) == 16);
    assert!(offset_of!(fastnorm_peer_options, algorithm) == 20);
    assert!(offset_of!(fastnorm_peer_options, max_columns) == 24);
    assert!(offset_of!(fastnorm_peer_options, one_shot_bytes) == 32);
    assert!(offset_of!(fastnorm_peer_options, wait_ns) == 40);
    assert!(offset_of!(fastnorm_peer_options, rings) == 48);
    assert!(offset_of!(fastnorm_peer_options, reserved) == 52);
    assert!(size_of::<fastnorm_peer_state>() == 32);
    assert!(offset_of!(fastnorm_peer_state, struct_size) == 0);
    assert!(offset_of!(fastnorm_peer_state, error) == 8);
    assert!(offset_of!(fastnorm_peer_state, rank) == 12);
    assert!(offset_of!(fastnorm_peer_state, calls) == 16);
    assert!(offset_of!(fastnorm_peer_state, connected) == 24);
    assert!(offset_of!(fastnorm_peer_state, reserved) == 28);
    assert!(size_of::<fastnorm_peer_allreduce_norm_args>() == 40);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, struct_size) == 0);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, parallel_user) == 8);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, peer) == 16);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, norm) == 24);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, sum_rounding) == 32);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, reserved) == 36);
    assert!(size_of::<fastnorm_peer_sharded_norm_args>() == 112);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, struct_size) == 0);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, parallel_user) == 8);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, peer) == 16);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, kind) == 24);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, eps) == 28);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, weight_offset) == 32);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, rounding) == 36);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, flags) == 40);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, reserved) == 44);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, x) == 48);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, weight) == 56);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, bias) == 64);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, y) == 72);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, x2) == 80);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, weight2) == 88);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, bias2) == 96);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, y2) == 104);
    assert!(size_of::<fastnorm_status>() == 4);
    assert!(size_of::<fastnorm_device_type>() == 4);
    assert!(size_of::<fastnorm_dtype_id>() == 4);
    assert!(size_of::<fastnorm_log_level>() == 4);
    assert!(size_of::<fastnorm_context_flags>() == 4);
    assert!(size_of::<fastnorm_norm_kind>() == 4);
    assert!(size_of::<fastnorm_rounding>() == 4);
    assert!(size_of::<fastnorm_residual_rounding>() == 4);
    assert!(size_of::<fastnorm_quant_scheme>() == 4);
    assert!(size_of::<fastnorm_quant_source>() == 4);
    assert!(size_of::<fastnorm_quant_division>() == 4);
    assert!(size_of::<fastnorm_scale_layout>() == 4);
    assert!(size_of::<fastnorm_activation>() == 4);
    assert!(size_of::<fastnorm_gate_position>() == 4);
    assert!(size_of::<fastnorm_gate_source>() == 4);
    assert!(size_of::<fastnorm_sum_rounding>() == 4);
    assert!(size_of::<fastnorm_modulation_rounding>() == 4);
    assert!(size_of::<fastnorm_norm_flags>() == 4);
    assert!(size_of::<fastnorm_norm_backward_flags>() == 4);
    assert!(size_of::<fastnorm_lse_base>() == 4);
    assert!(size_of::<fastnorm_mla_cache_format>() == 4);
    assert!(size_of::<fastnorm_mla_decode_flags>() == 4);
    assert!(size_of::<fastnorm_profile_id>() == 4);
    assert!(size_of::<fastnorm_profile_kind>() == 4);
    assert!(size_of::<fastnorm_trace_format>() == 4);
    assert!(size_of::<fastnorm_norm_heads_part_flags>() == 4);
    assert!(size_of::<fastnorm_norm_heads_flags>() == 4);
    assert!(size_of::<fastnorm_rope_rounding>() == 4);
    assert!(size_of::<fastnorm_norm_heads_backward_flags>() == 4);
    assert!(size_of::<fastnorm_peer_algorithm>() == 4);
    assert!(size_of::<fastnorm_peer_sum_rounding>() == 4);
    assert!(size_of::<fastnorm_peer_error>() == 4);
    assert!(size_of::<fastnorm_peer_limits>() == 4);
};
