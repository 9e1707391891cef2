// Generated from the public headers by bindings/swig/generate.py; do not edit.

use core::ffi::{c_char, c_uint, c_void};
use core::marker::{PhantomData, PhantomPinned};
use core::mem::{offset_of, size_of};

/// Major version of these headers. The library that is loaded at run time says its own with
/// fastnorm_version().
pub const FASTNORM_VERSION_MAJOR: i32 = 0;

/// Minor version of these headers.
pub const FASTNORM_VERSION_MINOR: i32 = 2;

/// Patch version of these headers.
pub const FASTNORM_VERSION_PATCH: i32 = 0;

/// One comparable number: major \* 10000 + minor \* 100 + patch.
pub const FASTNORM_VERSION: i32 = 200;

extern "C" {
    /// Version of the loaded library. Never fails; callable from any thread at any time.
    ///
    /// Returns the number, as FASTNORM_VERSION counts it
    ///
    /// Since 0.1.
    pub fn fastnorm_version() -> i32;

    /// Version of the loaded library as text.
    ///
    /// Returns such as "0.1.0". Static; never NULL
    ///
    /// Since 0.1.
    pub fn fastnorm_version_string() -> *const c_char;

    /// What this build contains, one "key: value" line each: commit, compiler, CPU instruction
    /// sets, GPU architectures, CUDA's version. For people and logs; the format may grow.
    ///
    /// Returns the lines. Static; never NULL
    ///
    /// Since 0.1.
    pub fn fastnorm_build_info() -> *const c_char;

    /// Version of the arithmetic: two libraries with the same number give the same bits for the
    /// same call on the same backend. Any change to an order of summation, a constant or a rounding
    /// raises it.
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
    /// Returns such as "FASTNORM_ERROR_SHAPE"; "unknown status" for a value that this library does
    /// not have. Static
    ///
    /// Since 0.1.
    pub fn fastnorm_status_name(status: fastnorm_status) -> *const c_char;

    /// Text of the calling thread's last failure: argument, value, requirement; for an unsupported
    /// combination the nearest one that exists. A success does not clear it.
    ///
    /// Returns the text; "" before the first failure, never NULL. It belongs to the library and
    /// lives until the same thread's next failing call
    ///
    /// Since 0.1.
    pub fn fastnorm_last_error() -> *const c_char;

    /// The CUDA runtime's error code behind the calling thread's last FASTNORM_ERROR_DEVICE or
    /// FASTNORM_ERROR_OUT_OF_MEMORY.
    ///
    /// Returns a cudaError_t; 0 where the last failure did not come from the CUDA runtime
    ///
    /// Since 0.1.
    pub fn fastnorm_last_device_error() -> i32;
}

/// Where memory lives, numbered as DLPack's DLDeviceType.
pub type fastnorm_device_type = c_uint;
/// Ordinary host memory.
pub const FASTNORM_DEVICE_CPU: fastnorm_device_type = 1;
/// Memory of a CUDA device.
pub const FASTNORM_DEVICE_CUDA: fastnorm_device_type = 2;
/// Pinned host memory; counts as CPU.
pub const FASTNORM_DEVICE_CUDA_HOST: fastnorm_device_type = 3;
/// Managed memory; counts as CUDA.
pub const FASTNORM_DEVICE_CUDA_MANAGED: fastnorm_device_type = 13;
pub const FASTNORM_DEVICE_TYPE_MAX_ENUM: fastnorm_device_type = 0x7fffffff;

/// A device: what kind and which one (0 for the CPU).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_device {
    /// A fastnorm_device_type.
    pub device_type: i32,
    /// Ordinal, as cudaSetDevice counts; 0 for the CPU.
    pub device_id: i32,
}

impl fastnorm_device {
    /// Everything zero.
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

/// Element type, as DLPack's DLDataType: what kind of number, how many bits, how many to an
/// element.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_dtype {
    /// DLDataTypeCode: 0 int, 1 uint, 2 float, 4 bfloat, 10 float8_e4m3fn, 12 float8_e5m2, 14
    /// float8_e8m0fnu, 17 float4_e2m1fn.
    pub code: u8,
    /// Bits of one number.
    pub bits: u8,
    /// Numbers to an element: 1, or 2 for two fp4 codes in a byte.
    pub lanes: u16,
}

impl fastnorm_dtype {
    /// Everything zero.
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

/// The dtypes of this library, as code | bits \<\< 8 | lanes \<\< 16. fastnorm_dtype_of() makes the
/// struct.
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
/// Unsigned integer; bytes.
pub const FASTNORM_DTYPE_U8: fastnorm_dtype_id = 0x10801;
/// Signed integer.
pub const FASTNORM_DTYPE_I32: fastnorm_dtype_id = 0x12000;
/// Signed integer.
pub const FASTNORM_DTYPE_I64: fastnorm_dtype_id = 0x14000;
pub const FASTNORM_DTYPE_MAX_ENUM: fastnorm_dtype_id = 0x7fffffff;

/// A view of memory. The address of element (i, j, ..) is data + byte_offset and, in elements, i \*
/// strides\[0\] + j \* strides\[1\] + ..
///
/// - The last dimension must be contiguous: its stride is 1, or its extent at most 1.
/// - The stride of a dimension of extent 1 is never looked at, nor is any stride of a tensor
///   without elements: they may be any number.
/// - Leading strides are free: any sign, not multiples of anything, and 0 (broadcast) for inputs.
/// - The address must be a multiple of the element's size; no other alignment is required. Rows
///   whose addresses and lengths are multiples of 16 bytes (sm_100f: 32) are fastest.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_tensor {
    /// Address on the device; may be NULL only if the tensor has no elements.
    pub data: *mut c_void,
    /// A fastnorm_device_type.
    pub device_type: i32,
    /// Device ordinal; not looked at for memory of the CPU.
    pub device_id: i32,
    /// Number of dimensions, 1 to 8 where a function does not say otherwise.
    pub ndim: i32,
    /// Element type.
    pub dtype: fastnorm_dtype,
    /// \[ndim\] extents.
    pub shape: *const i64,
    /// \[ndim\] in elements; NULL = compact, row-major.
    pub strides: *const i64,
    /// Added to data, in bytes.
    pub byte_offset: u64,
}

impl fastnorm_tensor {
    /// Everything zero.
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

/// One device, ready for calls. Opaque.
#[repr(C)]
pub struct fastnorm_context {
    _data: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// Severity of a log message.
pub type fastnorm_log_level = c_uint;
/// A failure.
pub const FASTNORM_LOG_ERROR: fastnorm_log_level = 0;
/// A doubtful state.
pub const FASTNORM_LOG_WARNING: fastnorm_log_level = 1;
/// What was found. The library sends these only.
pub const FASTNORM_LOG_INFO: fastnorm_log_level = 2;
/// Details.
pub const FASTNORM_LOG_DEBUG: fastnorm_log_level = 3;
pub const FASTNORM_LOG_MAX_ENUM: fastnorm_log_level = 0x7fffffff;

/// Receives messages of a context, on the thread that makes a call; must return normally (no
/// exception, no longjmp).
///
/// - `user`: fastnorm_context_options.log_user
/// - `level`: a fastnorm_log_level
/// - `text`: one line without a newline; valid during the callback only
pub type fastnorm_log_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, level: i32, text: *const c_char)>;

/// A piece of work on the half-open range \[begin, end).
pub type fastnorm_range_fn = Option<unsafe extern "C" fn(task: *mut c_void, begin: i64, end: i64)>;

/// The caller's parallel loop: runs fn(task, begin, end) so that the ranges cover \[0, n) exactly
/// once, in any split, in any order, on any threads. It returns when all have returned. Ranges of
/// about `grain` or more pay. Results do not depend on the split. TBB, rayon, OpenMP, ForkJoin and
/// thread pools all fit. A loop that covers \[0, n) otherwise is found out when it has returned,
/// and the call is FASTNORM_ERROR_ARGUMENT: the rows of the ranges that it ran are written by then.
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
/// Calls do everything but start work: they check, plan and fill in parameters, then return. A CUDA
/// context of this kind needs no GPU and no driver, only dry_run_capability; nothing is read from
/// or written to the tensors' memory. For planning on another machine, for tests, and to measure
/// host cost.
pub const FASTNORM_CONTEXT_DRY_RUN: fastnorm_context_flags = 1;
pub const FASTNORM_CONTEXT_FLAGS_MAX_ENUM: fastnorm_context_flags = 0x7fffffff;

/// Options of a context. `{0}` plus struct_size is the default of everything.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_context_options {
    /// sizeof(fastnorm_context_options).
    pub struct_size: usize,
    /// NULL = silent.
    pub log: fastnorm_log_fn,
    /// Passed to log.
    pub log_user: *mut c_void,
    /// CPU: the caller's parallel loop; NULL = none.
    pub parallel_for: fastnorm_parallel_for_fn,
    /// Passed to parallel_for.
    pub parallel_user: *mut c_void,
    /// CPU: threads of an own pool, the caller included; 0 and 1 = the calling thread alone, at
    /// most 1024. Ignored where parallel_for is given. Started at first use, joined in
    /// fastnorm_context_destroy; a child forked after that runs on one thread.
    pub num_threads: i32,
    /// fastnorm_context_flags.
    pub flags: u32,
    /// Compute capability of a dry run as major \* 10 + minor, such as 90, planned for with 132
    /// multiprocessors; else 0.
    pub dry_run_capability: i32,
    /// Must be 0.
    pub reserved: i32,
    /// CUDA: path of a file that `fastnorm tune` wrote for this model of GPU and this version of
    /// the library: calls of the shapes in it run on the kernels that were fastest there, with the
    /// same results to the bit. Read once, by fastnorm_context_create. NULL = none; required for
    /// the CPU.
    pub tuning_file: *const c_char,
}

impl fastnorm_context_options {
    /// Everything zero, `struct_size` set: the defaults.
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
    /// build has kernels for them (fastnorm_device_info.kernel_arch says that). Where there is no
    /// CUDA driver, or this build has no CUDA backend, their number is 0 and the call succeeds.
    ///
    /// - `device_type`: FASTNORM_DEVICE_CPU or FASTNORM_DEVICE_CUDA
    /// - `count`: receives the number
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT for another type or a null count
    ///
    /// Since 0.1.
    pub fn fastnorm_device_count(device_type: i32, count: *mut i32) -> fastnorm_status;
}

/// What is known of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_device_info {
    /// In: sizeof(fastnorm_device_info).
    pub struct_size: usize,
    /// Model name, zero-terminated.
    pub name: [c_char; 128],
    /// CUDA: compute capability, major \* 10 + minor; CPU: 0.
    pub capability: i32,
    /// CUDA: multiprocessors; CPU: logical processors this process may run on.
    pub multiprocessors: i32,
    /// Bytes of level-2 cache (CPU: of one core).
    pub l2_bytes: u64,
    /// CUDA: bytes of device memory; CPU: 0.
    pub memory_bytes: u64,
    /// CUDA: the driver's CUDA version, major \* 1000 + minor \* 10; CPU: 0.
    pub driver_version: i32,
    /// CUDA: the CUDA runtime linked into this library; CPU: 0.
    pub runtime_version: i32,
    /// The kernels that run there, such as "sm_90" or "avx512"; "none" where this build has none.
    /// Static.
    pub kernel_arch: *const c_char,
}

impl fastnorm_device_info {
    /// Everything zero, `struct_size` set: the defaults.
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
    /// - `info`: struct_size in; receives the rest
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
    /// A CUDA context uses the device's primary CUDA context, which this call initialises where
    /// nothing has, as cudaSetDevice does, and no call ends: it lives until cudaDeviceReset, after
    /// which calls on the context are not allowed, or until the process ends. The calling thread's
    /// current device stays as it was.
    ///
    /// - `device`: {FASTNORM_DEVICE_CPU, 0} or {FASTNORM_DEVICE_CUDA, ordinal}
    /// - `options`: NULL = defaults
    /// - `context`: receives the context, or NULL on failure; the caller owns it and ends it with
    ///   fastnorm_context_destroy
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT for null or out-of-range arguments, and for a
    /// tuning file that cannot be read or has a wrong line (the text says which); also for one of
    /// another version or architecture; FASTNORM_ERROR_DEVICE if the device or a usable driver is
    /// missing (the text says which driver was found and which is needed);
    /// FASTNORM_ERROR_UNSUPPORTED if this build has no kernels for the device;
    /// FASTNORM_ERROR_OUT_OF_MEMORY
    ///
    /// Since 0.1.
    pub fn fastnorm_context_create(
        device: fastnorm_device,
        options: *const fastnorm_context_options,
        context: *mut *mut fastnorm_context,
    ) -> fastnorm_status;

    /// Destroy a context. NULL is fine. Must not race calls on the same context, nor be used again:
    /// see the top of this header.
    ///
    /// - `context`: the context; NULL = nothing is done
    ///
    /// Since 0.1.
    pub fn fastnorm_context_destroy(context: *mut fastnorm_context);
}

/// What a call would do, filled in by the `_query` functions. Strings are static.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_info {
    /// In: sizeof(fastnorm_info).
    pub struct_size: usize,
    /// Bytes of workspace the call needs; 0 = none. Never falls as rows are added.
    pub workspace_bytes: u64,
    /// Bytes of rows, weight and bias that must be read, once for each tensor; a dimension of
    /// stride 0 counts once, rows that overlap otherwise each by itself.
    pub bytes_read: u64,
    /// Bytes of rows, statistics, codes and their scales, each once.
    pub bytes_written: u64,
    /// Name of the kernel, as in fastnorm_kernel_describe. On CUDA some families stand before it. A
    /// dry run may name one that this build lacks; "" if nothing is launched.
    pub kernel: *const c_char,
    /// Kernel launches (CPU: 1, or 0 if there are no rows).
    pub launches: i32,
    /// CUDA: threads that share a row, in all its thread blocks; CPU: 1.
    pub threads_per_row: i32,
    /// CUDA: 16-byte vectors of a row that a thread holds; 0 = the row is streamed. CPU: 0.
    pub vectors_per_thread: i32,
    /// CUDA: rows a thread block works on at once; CPU: rows that are worth another thread.
    pub rows_per_block: i32,
    /// CUDA: thread blocks (one cluster) that share a row; CPU: 1.
    pub blocks_per_row: i32,
    /// Widest access that the addresses and strides of x, residual, y, residual_out, weight and
    /// bias allow, 1 to 16 (sm_100f: 32; CPU: 64).
    pub vector_bytes: i32,
    /// CUDA: thread blocks in the grid; where rows are more than they work on at once, each takes
    /// several. CPU: threads at the most.
    pub blocks: u64,
    /// Bytes of the profile that the call writes; 0 = none. Since 0.2.
    pub profile_bytes: u64,
    /// CUDA: the kinds of call that share a list of choices; "" if no list decides (on a CPU,
    /// without rows, in families without lists). Since 0.2.
    pub kind: *const c_char,
    /// CUDA: the line of that list for this length and number of rows, or that a tuning file
    /// decides. `fastnorm explain` prints these lines. Since 0.2.
    pub choice: *const c_char,
    /// CUDA: the line that describes the kernel. Since 0.2.
    pub variant: *const c_char,
}

impl fastnorm_info {
    /// Everything zero, `struct_size` set: the defaults.
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
    /// In: sizeof(fastnorm_kernel_info).
    pub struct_size: usize,
    /// "norm", "norm_backward", "peer", ..: a later version may have more.
    pub family: *const c_char,
    /// Such as "sm_90" or "avx512".
    pub arch: *const c_char,
    /// Unique within family and arch.
    pub name: *const c_char,
}

impl fastnorm_kernel_info {
    /// Everything zero, `struct_size` set: the defaults.
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
    /// - `info`: struct_size in; receives the rest
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if index is out of range, info is null or its
    /// struct_size too small
    ///
    /// Since 0.1.
    pub fn fastnorm_kernel_describe(index: i32, info: *mut fastnorm_kernel_info)
        -> fastnorm_status;
}

/// Which statistic normalises a row.
pub type fastnorm_norm_kind = c_uint;
/// Root mean square; nothing is subtracted.
pub const FASTNORM_NORM_RMS: fastnorm_norm_kind = 0;
/// Mean and (biased) variance, in two passes over the row: never mean(x^2) - mean(x)^2.
pub const FASTNORM_NORM_LAYER: fastnorm_norm_kind = 1;
pub const FASTNORM_NORM_KIND_MAX_ENUM: fastnorm_norm_kind = 0x7fffffff;

/// Where y is rounded to x's dtype T on its way, also where y is f32 beside 16-bit x. With T = f32
/// ONCE and NORMALIZED are the same.
pub type fastnorm_rounding = c_uint;
/// Only when y is stored. FlashInfer, quack, Transformer Engine, Gemma.
pub const FASTNORM_ROUND_ONCE: fastnorm_rounding = 0;
/// Also t, before the weight. Llama, Mistral and Qwen as published.
pub const FASTNORM_ROUND_NORMALIZED: fastnorm_rounding = 1;
/// Every elementwise result: (a - mean), its square, the variance, variance + eps, the root, t,
/// weight + weight_offset, the product and the sum. What a 16-bit eager chain does.
pub const FASTNORM_ROUND_EVERY_STEP: fastnorm_rounding = 2;
/// Only when y is stored, of a product in the other order: (b - mean) \* (rstd \* (weight +
/// weight_offset)) + bias in place of ((b - mean) \* rstd) \* (weight + weight_offset) + bias. The
/// norm in vLLM's, TensorRT-LLM's and SGLang's fused kernels of query/key norm and rope.
pub const FASTNORM_ROUND_ONCE_RW: fastnorm_rounding = 3;
pub const FASTNORM_ROUNDING_MAX_ENUM: fastnorm_rounding = 0x7fffffff;

/// Which value of the sum x + residual is used, in terms of R, the dtype of residual_out (of
/// residual, where there is no residual_out).
pub type fastnorm_residual_rounding = c_uint;
/// The single-precision sum, for the statistics and for t.
pub const FASTNORM_RESIDUAL_EXACT: fastnorm_residual_rounding = 0;
/// Statistics of the sum; t from the sum rounded to R.
pub const FASTNORM_RESIDUAL_ROUND_BEFORE_APPLY: fastnorm_residual_rounding = 1;
/// Both from the sum rounded to R: as a separate addition would.
pub const FASTNORM_RESIDUAL_ROUND_BEFORE_STATISTICS: fastnorm_residual_rounding = 2;
pub const FASTNORM_RESIDUAL_ROUNDING_MAX_ENUM: fastnorm_residual_rounding = 0x7fffffff;

/// How `quantized` is scaled.
pub type fastnorm_quant_scheme = c_uint;
/// Nothing is quantised.
pub const FASTNORM_QUANT_NONE: fastnorm_quant_scheme = 0;
/// One scale, an input.
pub const FASTNORM_QUANT_PER_TENSOR: fastnorm_quant_scheme = 1;
/// A scale a row, from the row's largest magnitude.
pub const FASTNORM_QUANT_PER_ROW: fastnorm_quant_scheme = 2;
/// A scale for each block of 64 or 128 columns of a row.
pub const FASTNORM_QUANT_PER_BLOCK: fastnorm_quant_scheme = 3;
/// fp8 with a power-of-two scale for 32 columns.
pub const FASTNORM_QUANT_MXFP8: fastnorm_quant_scheme = 4;
/// fp4 with an e4m3 scale for 16 columns and a global scale.
pub const FASTNORM_QUANT_NVFP4: fastnorm_quant_scheme = 5;
/// fp4 with a power-of-two scale for 32 columns.
pub const FASTNORM_QUANT_MXFP4: fastnorm_quant_scheme = 6;
pub const FASTNORM_QUANT_SCHEME_MAX_ENUM: fastnorm_quant_scheme = 0x7fffffff;

/// What is quantised.
pub type fastnorm_quant_source = c_uint;
/// The unrounded result.
pub const FASTNORM_QUANT_FROM_F32: fastnorm_quant_source = 0;
/// The result rounded to x's dtype, as an unfused chain would.
pub const FASTNORM_QUANT_FROM_ROUNDED: fastnorm_quant_source = 1;
pub const FASTNORM_QUANT_SOURCE_MAX_ENUM: fastnorm_quant_source = 0x7fffffff;

/// How a code is made of z and its scale, with PER_TENSOR, PER_ROW and PER_BLOCK.
pub type fastnorm_quant_division = c_uint;
/// code = z \* (1 / scale): two roundings.
pub const FASTNORM_QUANT_MULTIPLY_RECIPROCAL: fastnorm_quant_division = 0;
/// code = z / scale, one rounding: vLLM's dynamic fp8. Scales that are powers of two (scale_pow2)
/// give the same codes either way.
pub const FASTNORM_QUANT_DIVIDE: fastnorm_quant_division = 1;
pub const FASTNORM_QUANT_DIVISION_MAX_ENUM: fastnorm_quant_division = 0x7fffffff;

/// Order of the scales of blocks in memory. Strides of the scale tensor, where given, decide in the
/// first two; nothing outside its shape is written.
pub type fastnorm_scale_layout = c_uint;
/// All scales of one row together.
pub const FASTNORM_SCALE_ROW_MAJOR: fastnorm_scale_layout = 0;
/// Without strides: all rows of one column of blocks together.
pub const FASTNORM_SCALE_COLUMN_MAJOR: fastnorm_scale_layout = 1;
/// One-byte scales, a tensor \[512 \* ceil(rows / 128) \* T\] with T = ceil(K / 4) for K scales a
/// row. Row m, scale k is at (m / 128 \* T + k / 4) \* 512 + m % 32 \* 16 + m % 128 / 32 \* 4 + k %
/// 4. All padding is written as 0.
pub const FASTNORM_SCALE_SWIZZLED_128X4: fastnorm_scale_layout = 2;
pub const FASTNORM_SCALE_LAYOUT_MAX_ENUM: fastnorm_scale_layout = 0x7fffffff;

/// A function of each element, computed as docs/numerics.md writes it: the same bits everywhere.
pub type fastnorm_activation = c_uint;
/// v.
pub const FASTNORM_ACTIVATION_IDENTITY: fastnorm_activation = 0;
/// v / (1 + exp(-v)); -0 from -110 down, for -Inf too.
pub const FASTNORM_ACTIVATION_SILU: fastnorm_activation = 1;
/// 1 / (1 + exp(-v)).
pub const FASTNORM_ACTIVATION_SIGMOID: fastnorm_activation = 2;
/// tanh(v).
pub const FASTNORM_ACTIVATION_TANH: fastnorm_activation = 3;
pub const FASTNORM_ACTIVATION_MAX_ENUM: fastnorm_activation = 0x7fffffff;

/// Where the gate multiplies.
pub type fastnorm_gate_position = c_uint;
/// The normalised row: Qwen3-Next, Kimi Linear.
pub const FASTNORM_GATE_AFTER_NORM: fastnorm_gate_position = 0;
/// x, before residual and statistics: Mamba2.
pub const FASTNORM_GATE_BEFORE_NORM: fastnorm_gate_position = 1;
pub const FASTNORM_GATE_POSITION_MAX_ENUM: fastnorm_gate_position = 0x7fffffff;

/// What a gate after the norm multiplies.
pub type fastnorm_gate_source = c_uint;
/// The unrounded result. FLA, mamba, vLLM.
pub const FASTNORM_GATE_FROM_F32: fastnorm_gate_source = 0;
/// The result rounded to x's dtype. Hugging Face.
pub const FASTNORM_GATE_FROM_ROUNDED: fastnorm_gate_source = 1;
pub const FASTNORM_GATE_SOURCE_MAX_ENUM: fastnorm_gate_source = 0x7fffffff;

/// Where the sum of branch and residual is rounded to x's dtype T on its way.
pub type fastnorm_sum_rounding = c_uint;
/// Nowhere: the product with alpha and the sum are one operation.
pub const FASTNORM_SUM_ONCE: fastnorm_sum_rounding = 0;
/// The product, the sum and the product with sum_scale.
pub const FASTNORM_SUM_EVERY_STEP: fastnorm_sum_rounding = 1;
pub const FASTNORM_SUM_ROUNDING_MAX_ENUM: fastnorm_sum_rounding = 0x7fffffff;

/// Where the modulation is rounded to x's dtype T on its way.
pub type fastnorm_modulation_rounding = c_uint;
/// Nowhere: z \* (1 + scale) + shift is one operation.
pub const FASTNORM_MODULATION_ONCE: fastnorm_modulation_rounding = 0;
/// z, the sums with tables, 1 + scale, the product, the sum: a chain in T.
pub const FASTNORM_MODULATION_EVERY_STEP: fastnorm_modulation_rounding = 1;
pub const FASTNORM_MODULATION_ROUNDING_MAX_ENUM: fastnorm_modulation_rounding = 0x7fffffff;

/// Bits of fastnorm_norm_args.flags. Those of PDL are programmatic dependent launch, by which a
/// kernel starts while the stream's previous one still runs. On the CPU and on GPUs before compute
/// capability 9.0 they have no effect. Results never depend on them.
pub type fastnorm_norm_flags = c_uint;
/// Start when the stream's previous kernel allows it; read and write nothing before that one has
/// ended.
pub const FASTNORM_NORM_PDL_WAIT: fastnorm_norm_flags = 1;
/// Let the stream's next kernel start once this one's rows are on their way. It must wait itself
/// before it uses any result.
pub const FASTNORM_NORM_PDL_TRIGGER: fastnorm_norm_flags = 2;
/// With PDL_WAIT: weight and bias are not written by any kernel that may still run, and may be read
/// before the wait.
pub const FASTNORM_NORM_PDL_CONSTANT_WEIGHTS: fastnorm_norm_flags = 4;
/// The factor is modulation_scale, not 1 + it.
pub const FASTNORM_NORM_MODULATION_PLAIN_SCALE: fastnorm_norm_flags = 8;
pub const FASTNORM_NORM_FLAGS_MAX_ENUM: fastnorm_norm_flags = 0x7fffffff;

/// One normalisation. `{0}` plus struct_size, x and y is a valid RMSNorm without weight and with
/// eps 0.
///
/// Shapes: x is \[..., n\], rank 1 to 8, n from 1 to 2^32. T is x's dtype: f32, f16 or bf16. All
/// tensors are on the context's device. Leading strides are free, 0 too for inputs; only the last
/// dimension must be contiguous. Any alignment that the dtype allows.
///
/// Ranks 5 to 8: neighbouring leading dimensions are joined where every tensor steps evenly across
/// both, as compact tensors do. Dimensions of extent 1 do not count. At most 3 may be left; more
/// are FASTNORM_ERROR_UNSUPPORTED.
///
/// Dtypes: weight, bias, residual and residual_out are each f32, f16 or bf16, whatever T is. y is T
/// or f32. Each tensor's address and strides are multiples of its own elements. On a GPU, calls
/// with one dtype, or with f32 weight and bias beside 16-bit x, run on kernels of their own; other
/// combinations run on general ones, which are slower.
///
/// weight and bias broadcast against x as in NumPy: their last extent is n, each leading extent is
/// 1 or x's, counted from the right, and missing ones are 1. Examples: \[n\], \[1, n\], \[heads,
/// n\], \[batch, 1, n\]. They may vary along any leading dimensions. On a GPU, general kernels
/// serve weights and biases that vary along more than one dimension (after joining). With
/// FASTNORM_SCALE_SWIZZLED_128X4 they serve all that vary along another dimension than the
/// innermost.
///
/// Aliasing: y and residual_out may each be x or residual, y also the gate, as the same view (same
/// address, dtype, shape and strides). So y = x, residual_out = residual is in place, and y =
/// residual, residual_out = x is allowed too; both may not be one tensor. Two tensors of which one
/// is written may also be interleaved views of one buffer that share no element. Example: the query
/// and the key heads of one fused QKV tensor. Any other overlap is FASTNORM_ERROR_LAYOUT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_norm_args {
    /// sizeof(fastnorm_norm_args).
    pub struct_size: usize,
    /// RMS or LAYER.
    pub kind: fastnorm_norm_kind,
    /// Finite, \>= 0.
    pub eps: f32,
    /// Added to the weight in f32: 0, or 1 for Gemma. Finite; 0 where weight is NULL.
    pub weight_offset: f32,
    /// Default: round once.
    pub rounding: fastnorm_rounding,
    /// Default: exact. Without effect where there is no residual.
    pub residual_rounding: fastnorm_residual_rounding,
    /// fastnorm_norm_flags; 0.
    pub flags: u32,
    /// \[..., n\] T. Required.
    pub x: *const fastnorm_tensor,
    /// x's shape; f32, f16 or bf16. NULL = nothing is added.
    pub residual: *const fastnorm_tensor,
    /// \[.., n\], broadcasts against x; f32, f16 or bf16. NULL = 1.
    pub weight: *const fastnorm_tensor,
    /// \[.., n\], broadcasts against x; f32, f16 or bf16. NULL = 0.
    pub bias: *const fastnorm_tensor,
    /// x's shape, T or f32. Output; may be x or residual. NULL = not stored; then `quantized` or
    /// `sumsq` is required.
    pub y: *const fastnorm_tensor,
    /// x's shape; f32, f16 or bf16. Output; may be residual or x. Needs residual. NULL = not
    /// stored.
    pub residual_out: *const fastnorm_tensor,
    /// x.shape\[:-1\], or that with a last 1; f32. Output, LAYER only. NULL = not stored.
    pub mean: *const fastnorm_tensor,
    /// As mean. Output. NULL = not stored.
    pub rstd: *const fastnorm_tensor,
    /// Default: nothing is quantised.
    pub quant_scheme: fastnorm_quant_scheme,
    /// PER_BLOCK: 64 or 128 columns; else 0.
    pub quant_block_size: i32,
    /// Default: from the unrounded result.
    pub quant_source: fastnorm_quant_source,
    /// Default: row-major.
    pub scale_layout: fastnorm_scale_layout,
    /// PER_ROW, PER_BLOCK with f8: 1 = scales are powers of two; else 0.
    pub scale_pow2: i32,
    /// PER_ROW, PER_BLOCK: least magnitude that a scale is made from, 2^-100 to 2^100; 0 = 1e-10.
    pub amax_floor: f32,
    /// \> 0: results are clamped to \[-clamp, clamp\] before quantising; 0 = off.
    pub clamp: f32,
    /// PER_TENSOR, PER_ROW, PER_BLOCK: default, times the reciprocal; else 0.
    pub quant_division: fastnorm_quant_division,
    /// \[1\] f32. NVFP4's second scale, of magnitude 2^-100 to 2^100 and either sign; NULL = 1.
    pub global_scale: *const fastnorm_tensor,
    /// Codes, x's shape (pairs of f4: half of n). Output.
    pub quantized: *const fastnorm_tensor,
    /// Scales: input for PER_TENSOR, else output.
    pub scale: *const fastnorm_tensor,
    /// \[1\] f32. In and out: raised to the greatest magnitude of what is quantised, or of y where
    /// nothing is; NaN wins. Needs one of them. The caller sets it to 0 first.
    pub amax: *const fastnorm_tensor,
    /// \[1\] f32. The clamp as a value on the device, read after the PDL wait: \> 0 clamps as
    /// `clamp` does, anything else (0, negative, NaN) is off. Needs a scheme and clamp 0. NULL =
    /// `clamp` decides.
    pub clamp_scale: *const fastnorm_tensor,
    /// x's shape; T or f32. Each element's gate: see "Stages" above. y may be the same view, x may
    /// not overlap it. NULL = nothing is gated; then its three fields are 0.
    pub gate: *const fastnorm_tensor,
    /// Of the gate. Default: identity.
    pub gate_act: fastnorm_activation,
    /// Default: after the norm.
    pub gate_position: fastnorm_gate_position,
    /// Default: unrounded. Rounded only after the norm.
    pub gate_source: fastnorm_gate_source,
    /// Of the result, after the gate. Default: identity.
    pub activation: fastnorm_activation,
    /// Columns that share a statistic, a divisor of n; 0 = n. weight and bias are then \[.., n\]
    /// or, the same for all groups, \[.., group_size\].
    pub group_size: i64,
    /// Sums of several devices, f32. RMS: mean's shape, sum of squares. LAYER: \[.., 2\], mean and
    /// sum of (a - mean)^2. y may be NULL. Not with rstd_in, nor with FASTNORM_ROUND_EVERY_STEP.
    pub sumsq: *const fastnorm_tensor,
    /// LAYER, with rstd_in: the mean to use. As mean. Input.
    pub mean_in: *const fastnorm_tensor,
    /// The rstd to use. As rstd. Not with mean, rstd, sumsq.
    pub rstd_in: *const fastnorm_tensor,
    /// 1: x, gated where that comes first, is normalised before the residual is added. 0: it is
    /// not, and the fields of the branch are 0.
    pub branch_norm: i32,
    /// RMS or LAYER.
    pub branch_kind: fastnorm_norm_kind,
    /// Finite, \>= 0.
    pub branch_eps: f32,
    /// Finite; 0 where branch_weight is NULL.
    pub branch_weight_offset: f32,
    /// Default: not rounded. ONCE_RW is an error.
    pub branch_rounding: fastnorm_rounding,
    /// 1: the branch is rounded to x's dtype before the sum.
    pub branch_rounded: i32,
    /// Factor of the branch. Finite; 0 = 1.
    pub alpha: f32,
    /// Default: the sum is not rounded on its way.
    pub sum_rounding: fastnorm_sum_rounding,
    /// As weight, \[.., n\]. NULL = 1.
    pub branch_weight: *const fastnorm_tensor,
    /// As bias, \[.., n\]. NULL = 0.
    pub branch_bias: *const fastnorm_tensor,
    /// x.shape\[:-1\], or that with a last 1; f32. Output.
    pub branch_rstd: *const fastnorm_tensor,
    /// \[1\] f32. Factor of the sum, a value on the device. Input; NULL = 1.
    pub sum_scale: *const fastnorm_tensor,
    /// Factor of the branch in the sum, T or f32. Broadcasts against x as in NumPy: each extent is
    /// 1 or x's, counted from the right, and missing ones are 1. Examples: \[1\], \[batch, 1, n\],
    /// \[batch, tokens, 1\]. With modulation_index \[m, n\] or \[m, 1\]. NULL = 1.
    pub residual_gate: *const fastnorm_tensor,
    /// \[n\], or with leading extents of 1; T or f32. Added to residual_gate. NULL = 0.
    pub residual_gate_table: *const fastnorm_tensor,
    /// Of that sum. Default: identity.
    pub residual_gate_act: fastnorm_activation,
    /// Default: the modulation is not rounded on its way. Needs modulation_scale or
    /// modulation_shift.
    pub modulation_rounding: fastnorm_modulation_rounding,
    /// As residual_gate: 1 + it is the factor of the normalised row. NULL = nothing is multiplied.
    pub modulation_scale: *const fastnorm_tensor,
    /// As residual_gate_table, of modulation_scale.
    pub scale_table: *const fastnorm_tensor,
    /// As residual_gate: added to the normalised row. NULL = nothing is added.
    pub modulation_shift: *const fastnorm_tensor,
    /// As residual_gate_table, of modulation_shift.
    pub shift_table: *const fastnorm_tensor,
    /// x.shape\[:-1\], or that with a last 1; i32 or i64. Which row of each modulator a row of x
    /// takes. NULL = they broadcast.
    pub modulation_index: *const fastnorm_tensor,
}

impl fastnorm_norm_args {
    /// Everything zero, `struct_size` set: the defaults.
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
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
            quant_scheme: 0,
            quant_block_size: 0,
            quant_source: 0,
            scale_layout: 0,
            scale_pow2: 0,
            amax_floor: 0.0,
            clamp: 0.0,
            quant_division: 0,
            global_scale: core::ptr::null(),
            quantized: core::ptr::null(),
            scale: core::ptr::null(),
            amax: core::ptr::null(),
            clamp_scale: core::ptr::null(),
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
    /// Say what a call would do: workspace, kernel, launches, bytes. The memory of the tensors is
    /// not touched; the addresses count, since overlap and alignment follow from them.
    ///
    /// - `context`: the device
    /// - `args`: as for the call
    /// - `info`: struct_size in; receives the rest
    ///
    /// Returns as fastnorm_norm; FASTNORM_ERROR_ARGUMENT also if info is null or its struct_size
    /// too small
    ///
    /// Since 0.1.
    pub fn fastnorm_norm_query(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_args,
        info: *mut fastnorm_info,
    ) -> fastnorm_status;

    /// Load what a call needs (CUDA loads a kernel at its first use, which allocates and may
    /// synchronise). After it, calls that use the same kernel neither allocate nor synchronise, and
    /// can be captured in a CUDA graph. Optional: the first call does the same.
    ///
    /// - `context`: the device
    /// - `args`: as for the call
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
    /// CUDA: one kernel is queued on `stream` and the call returns. It may be captured in a CUDA
    /// graph, targets the context's device whatever device is current, and leaves the current
    /// device as it was. CPU: done when it returns. Once prepared: no allocation, no
    /// synchronisation, no lock. Zero rows are success: nothing is launched, nothing written.
    ///
    /// - `context`: the device
    /// - `args`: what to compute; read during the call only
    /// - `workspace`: fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned, contents
    ///   undefined, not to be used by anything else until the work has run; NULL where 0 bytes are
    ///   needed
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: CUDA: the cudaStream_t; NULL = the legacy default stream, and the runtime's
    ///   special handles pass. CPU: NULL
    ///
    /// Returns FASTNORM_OK FASTNORM_ERROR_ARGUMENT: null context, args or x, no output; a tensor
    /// whose shape is null, or its data though it has elements; a struct_size that is too small; an
    /// enum, eps, offset or other scalar out of range; too small a workspace; a stream on the CPU;
    /// a parallel_for that did not cover the rows exactly once, when some may have been written
    /// FASTNORM_ERROR_SHAPE: ranks or extents that do not fit; n \< 1 or n \> 2^32
    /// FASTNORM_ERROR_DTYPE: a dtype that the tensor's role does not allow FASTNORM_ERROR_LAYOUT:
    /// last dimension not contiguous, misaligned address, overlap FASTNORM_ERROR_UNSUPPORTED: a
    /// field of a later version, an unknown tail that is not zero, more rows than a grid holds;
    /// leading dimensions that do not fold FASTNORM_ERROR_DEVICE: a tensor on another device; a
    /// current CUDA context of the device that is not its primary one; the CUDA runtime's error,
    /// also a sticky one of earlier work FASTNORM_ERROR_OUT_OF_MEMORY: the CUDA runtime had no
    /// memory, as for loading the kernel FASTNORM_ERROR_INTERNAL: a defect of this library; an
    /// exception out of parallel_for
    ///
    /// Since 0.1.
    pub fn fastnorm_norm(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_args,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> fastnorm_status;

    /// As fastnorm_norm_query, for fastnorm_norm_many: the sum of its parts; `kernel` is that of
    /// the first part with rows.
    ///
    /// - `context`: the device
    /// - `args`: \[count\] pointers, as for the call
    /// - `count`: 0 to 8
    /// - `info`: struct_size in; receives the rest
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

    /// As fastnorm_norm_prepare, for fastnorm_norm_many.
    ///
    /// - `context`: the device
    /// - `args`: \[count\] pointers, as for the call
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

    /// Run several normalisations, with the results of one fastnorm_norm each, in order: such as
    /// the query heads and the key heads of one fused QKV tensor, which have different weights. All
    /// are checked, against each other too, before anything is launched. No call may read what
    /// another of the same fastnorm_norm_many writes. CUDA: two neighbours in the list that share a
    /// kernel of short rows, have the same flags and at most two leading dimensions are one launch;
    /// fastnorm_info.launches counts them.
    ///
    /// - `context`: the device
    /// - `args`: \[count\] pointers
    /// - `count`: 0 to 8
    /// - `workspace`: as fastnorm_norm
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: as fastnorm_norm
    ///
    /// Returns as fastnorm_norm; the text names the part, as args\[i\]. CUDA: where the runtime
    /// refuses a launch, those of the parts before it are queued
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

/// Bits of fastnorm_norm_backward_args.flags. Those of programmatic dependent launch mean what
/// those of fastnorm_norm_flags do, and have their numbers.
pub type fastnorm_norm_backward_flags = c_uint;
/// Start when the stream's previous kernel allows it; read and write nothing before that one has
/// ended.
pub const FASTNORM_NORM_BACKWARD_PDL_WAIT: fastnorm_norm_backward_flags = 1;
/// Let the stream's next kernel start early. It must wait itself before it uses any result.
pub const FASTNORM_NORM_BACKWARD_PDL_TRIGGER: fastnorm_norm_backward_flags = 2;
/// dweight = old dweight + sum: one addition in f32 after the sum, rounded once. Without the flag
/// the old dweight is not read.
pub const FASTNORM_NORM_BACKWARD_ACCUMULATE_DWEIGHT: fastnorm_norm_backward_flags = 8;
/// The same for dbias.
pub const FASTNORM_NORM_BACKWARD_ACCUMULATE_DBIAS: fastnorm_norm_backward_flags = 16;
/// The same for dbranch_weight.
pub const FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_WEIGHT: fastnorm_norm_backward_flags = 32;
/// The same for dbranch_bias.
pub const FASTNORM_NORM_BACKWARD_ACCUMULATE_DBRANCH_BIAS: fastnorm_norm_backward_flags = 64;
/// The same for dresidual_gate.
pub const FASTNORM_NORM_BACKWARD_ACCUMULATE_DRESIDUAL_GATE: fastnorm_norm_backward_flags = 128;
pub const FASTNORM_NORM_BACKWARD_FLAGS_MAX_ENUM: fastnorm_norm_backward_flags = 0x7fffffff;

/// One backward pass. `{0}` plus struct_size, dy, x and dx is a valid backward pass of an RMSNorm
/// without weight and with eps 0. The statistics are computed again.
///
/// Shapes: x is \[..., n\], rank 1 to 8, n from 1 to 2^32. All tensors are on the context's device.
/// Leading strides are free, 0 too for inputs. The last dimension is contiguous; that of dy may
/// have stride 0 instead, as the gradient of y.sum() has. Any alignment that the dtype allows.
/// Leading dimensions are joined as in fastnorm_norm; at most 3 may be left.
///
/// Dtypes: T is the dtype of the forward's x. It is dx's dtype. Without dx it is dy's, if that has
/// 16 bits, else x's. x here may have another dtype, as a stored residual_out may. Where branch or
/// dbranch is given, T is its dtype, and dx has any of the three.
///
/// weight, and with it dweight, broadcasts against x as in fastnorm_norm: \[n\], \[1, n\], \[heads,
/// n\], \[batch, 1, n\]. dbias likewise, with a shape of its own. So do branch_weight, dbranch_bias
/// and residual_gate. On a GPU each varies along one leading dimension at most (after joining),
/// also where its gradient is not wanted. Anything else there is FASTNORM_ERROR_UNSUPPORTED.
///
/// Outputs: at least one of dx, dweight, dbias, dgate, dbranch, dbranch_weight, dbranch_bias and
/// dresidual_gate. Those that are NULL cost nothing: dx alone serves frozen weights and needs no
/// workspace.
///
/// Aliasing: dx, dresidual and dgate may each be dy, x, gate or dresidual_in, as the same view
/// (same address, dtype, shape and strides); dbranch may be branch. Two tensors of which one is
/// written may also be interleaved views of one buffer that share no element. Any other overlap is
/// FASTNORM_ERROR_LAYOUT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_norm_backward_args {
    /// sizeof(fastnorm_norm_backward_args).
    pub struct_size: usize,
    /// The forward's.
    pub kind: fastnorm_norm_kind,
    /// The forward's. Finite, \>= 0. Used where rstd is NULL.
    pub eps: f32,
    /// The forward's. Finite; 0 where weight is NULL.
    pub weight_offset: f32,
    /// The forward's. ONCE_RW has the gradient of ONCE.
    pub rounding: fastnorm_rounding,
    /// fastnorm_norm_backward_flags.
    pub flags: u32,
    /// Must be 0.
    pub reserved: i32,
    /// x's shape, T or f32: gradient of y. Required.
    pub dy: *const fastnorm_tensor,
    /// \[..., n\] f32, f16 or bf16: the forward's x, or its stored residual_out. Required.
    pub x: *const fastnorm_tensor,
    /// \[.., n\] f32, f16 or bf16, broadcasts against x: the forward's. NULL = 1.
    pub weight: *const fastnorm_tensor,
    /// x.shape\[:-1\], or that with a last 1; f32: the forward's. LAYER only; NULL where rstd is.
    pub mean: *const fastnorm_tensor,
    /// As mean, for both kinds. NULL = computed again from x.
    pub rstd: *const fastnorm_tensor,
    /// x's shape; f32, f16 or bf16: gradient that reaches residual_out from elsewhere. NULL = none.
    pub dresidual_in: *const fastnorm_tensor,
    /// x's shape, T. Output; may be dy, x or dresidual_in. NULL = not stored.
    pub dx: *const fastnorm_tensor,
    /// x's shape; f32, f16 or bf16, and not dx's dtype: the same gradient for a residual of another
    /// dtype. Output; may be dy, x or dresidual_in. Needs dx.
    pub dresidual: *const fastnorm_tensor,
    /// weight's shape; f32 or weight's dtype. Output; also input with ACCUMULATE_DWEIGHT. NULL =
    /// not wanted.
    pub dweight: *const fastnorm_tensor,
    /// The shape of the forward's bias; f32, f16 or bf16. Output; also input with ACCUMULATE_DBIAS.
    /// NULL = not wanted.
    pub dbias: *const fastnorm_tensor,
    /// x's shape, T or f32: the forward's. NULL = it had none; then its three fields are 0. Before
    /// the norm it goes without dresidual_in and dresidual: x is then the forward's x.
    pub gate: *const fastnorm_tensor,
    /// As weight: the forward's. Read for dgate alone. NULL = 0.
    pub bias: *const fastnorm_tensor,
    /// x's shape, T or f32. Output; may be dy, x, gate or dresidual_in. Needs gate. NULL = not
    /// wanted.
    pub dgate: *const fastnorm_tensor,
    /// The forward's.
    pub gate_act: fastnorm_activation,
    /// The forward's.
    pub gate_position: fastnorm_gate_position,
    /// The forward's.
    pub gate_source: fastnorm_gate_source,
    /// Must be 0.
    pub stage_reserved: i32,
    /// The forward's: a divisor of n; 0 = n. Shapes of mean, rstd, weight and bias are the
    /// forward's. dbias is \[.., n\] or \[.., group_size\].
    pub group_size: i64,
    /// x's shape, T: the forward's x, where it added a residual. Needed for dresidual_gate, and
    /// with branch_norm. This and all fields below go without gate and group_size.
    pub branch: *const fastnorm_tensor,
    /// As weight: the forward's. NULL = 1.
    pub branch_weight: *const fastnorm_tensor,
    /// As weight: the forward's. Read for dresidual_gate alone. NULL = 0.
    pub branch_bias: *const fastnorm_tensor,
    /// As mean, of the branch. LAYER only; NULL where branch_rstd is.
    pub branch_mean: *const fastnorm_tensor,
    /// As rstd, of the branch. NULL = computed again from branch.
    pub branch_rstd: *const fastnorm_tensor,
    /// \[.., n\] T or f32, broadcasts against x as weight does: the forward's, its table added.
    /// NULL = 1.
    pub residual_gate: *const fastnorm_tensor,
    /// \[1\] f32: the forward's. NULL = 1.
    pub sum_scale: *const fastnorm_tensor,
    /// x's shape, T: gradient of the branch. Output; may be branch. NULL = not wanted.
    pub dbranch: *const fastnorm_tensor,
    /// branch_weight's shape; f32 or branch_weight's dtype. Output; also input with
    /// ACCUMULATE_DBRANCH_WEIGHT. NULL = not wanted.
    pub dbranch_weight: *const fastnorm_tensor,
    /// The shape of the forward's branch_bias; f32, f16 or bf16. Output; also input with
    /// ACCUMULATE_DBRANCH_BIAS. NULL = not wanted.
    pub dbranch_bias: *const fastnorm_tensor,
    /// residual_gate's shape; f32 or residual_gate's dtype. Output; also input with
    /// ACCUMULATE_DRESIDUAL_GATE. NULL = not wanted.
    pub dresidual_gate: *const fastnorm_tensor,
    /// The forward's.
    pub branch_kind: fastnorm_norm_kind,
    /// The forward's. Used where branch_rstd is NULL.
    pub branch_eps: f32,
    /// The forward's. Finite; 0 where branch_weight is NULL.
    pub branch_weight_offset: f32,
    /// The forward's. ONCE_RW is an error.
    pub branch_rounding: fastnorm_rounding,
    /// The forward's. 0: the other fields of the branch's norm are 0.
    pub branch_norm: i32,
    /// The forward's.
    pub branch_rounded: i32,
    /// The forward's.
    pub residual_gate_act: fastnorm_activation,
    /// The forward's. Finite; 0 = 1.
    pub alpha: f32,
}

impl fastnorm_norm_backward_args {
    /// Everything zero, `struct_size` set: the defaults.
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
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
    /// Say what a call would do: workspace, kernel, launches, bytes. The memory of the tensors is
    /// not touched; the addresses count, since overlap and alignment follow from them.
    ///
    /// The workspace holds partial sums of dweight and dbias: nb rows of n floats for each, and for
    /// each row of weights, on the CPU too. It is 0 where neither is wanted. The sums of the branch
    /// have theirs. On a GPU a few floats of each row are added, where statistics are computed
    /// again or the branch has sums.
    ///
    /// - `context`: the device
    /// - `args`: as for the call
    /// - `info`: struct_size in; receives the rest
    ///
    /// Returns as fastnorm_norm_backward; FASTNORM_ERROR_ARGUMENT also if info is null or its
    /// struct_size too small
    ///
    /// Since 0.2.
    pub fn fastnorm_norm_backward_query(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_backward_args,
        info: *mut fastnorm_info,
    ) -> fastnorm_status;

    /// Load the kernels of a call. After it, calls that use the same kernels neither allocate nor
    /// synchronise, and can be captured in a CUDA graph. Optional: the first call does the same.
    ///
    /// - `context`: the device
    /// - `args`: as for the call
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
    /// CUDA: one or more kernels are queued on `stream` and the call returns. It may be captured in
    /// a CUDA graph, targets the context's device whatever device is current, and leaves the
    /// current device as it was. CPU: the work is done when the call returns. Once prepared, or
    /// after a first call: no allocation, no synchronisation, no lock.
    ///
    /// Zero rows are success: dweight and dbias become 0, or stay as they are with their ACCUMULATE
    /// flag.
    ///
    /// - `context`: the device
    /// - `args`: what to compute; read during the call only
    /// - `workspace`: fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned, contents
    ///   undefined, not to be used by anything else until the work has run; NULL where 0 bytes are
    ///   needed
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: CUDA: the cudaStream_t; NULL = the legacy default stream. CPU: NULL
    ///
    /// Returns FASTNORM_OK FASTNORM_ERROR_ARGUMENT: null context, args, dy or x, no output; a
    /// tensor whose shape is null, or its data though it has elements; a struct_size that is too
    /// small; an enum, eps or offset out of range; mean with RMS; one of mean and rstd alone with
    /// LAYER; dweight without weight; dresidual without dx; dgate or a field of the gate without
    /// gate; a field of the branch's norm without branch_norm; no branch where it is needed; an
    /// ACCUMULATE flag without its output; too small a workspace; a stream on the CPU; a
    /// parallel_for that did not cover the work exactly once, when some may have been written
    /// FASTNORM_ERROR_SHAPE: ranks or extents that do not fit; n \< 1 or n \> 2^32
    /// FASTNORM_ERROR_DTYPE: a dtype that the tensor's role does not allow; dresidual of dx's dtype
    /// FASTNORM_ERROR_LAYOUT: last dimension not contiguous, misaligned address, overlap
    /// FASTNORM_ERROR_UNSUPPORTED: a field or flag of a later version, an unknown tail that is not
    /// zero; leading dimensions that do not join; a field of the branch with gate or group_size; on
    /// a GPU, parameters that vary along more dimensions than its kernels allow
    /// FASTNORM_ERROR_DEVICE: a tensor on another device; the CUDA runtime's error
    /// FASTNORM_ERROR_OUT_OF_MEMORY: the CUDA runtime had no memory, as for loading the kernel
    /// FASTNORM_ERROR_INTERNAL: a defect of this library; an exception out of parallel_for
    ///
    /// Since 0.2.
    pub fn fastnorm_norm_backward(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_backward_args,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *mut c_void,
    ) -> fastnorm_status;

    /// As fastnorm_norm_backward_query, for fastnorm_norm_backward_many: the sum of its parts;
    /// `kernel` is that of the first part that launches something.
    ///
    /// - `context`: the device
    /// - `args`: \[count\] pointers, as for the call
    /// - `count`: 0 to 8
    /// - `info`: struct_size in; receives the rest
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

    /// As fastnorm_norm_backward_prepare, for fastnorm_norm_backward_many.
    ///
    /// - `context`: the device
    /// - `args`: \[count\] pointers, as for the call
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

    /// Run several backward passes, with the results of one fastnorm_norm_backward each, in order:
    /// such as those of the query heads and the key heads of one fused QKV gradient. All are
    /// checked, against each other too, before anything is launched. No part may touch what another
    /// one writes.
    ///
    /// - `context`: the device
    /// - `args`: \[count\] pointers
    /// - `count`: 0 to 8
    /// - `workspace`: as fastnorm_norm_backward
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: as fastnorm_norm_backward
    ///
    /// Returns as fastnorm_norm_backward; the text names the part, as args\[i\]. CUDA: where the
    /// runtime refuses a launch, those of the parts before it are queued
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

/// Base of the logarithm in `lse`.
pub type fastnorm_lse_base = c_uint;
/// log: PyTorch, FlashMLA.
pub const FASTNORM_LSE_NATURAL: fastnorm_lse_base = 0;
/// log2: FlashInfer. The value is the natural one times log2(e).
pub const FASTNORM_LSE_BASE_2: fastnorm_lse_base = 1;
pub const FASTNORM_LSE_BASE_MAX_ENUM: fastnorm_lse_base = 0x7fffffff;

/// One attention call. T is bf16 or f16 (CPU: f32 too), the one dtype of q_nope, q_pe, ckv, kpe and
/// o. All tensors are on the context's device.
///
/// Strides: the last dimension of every tensor is contiguous; all other strides are free. CUDA:
/// those of q_nope, q_pe, ckv, kpe and o are positive multiples of 16 bytes below 2^40 where the
/// extent is more than 1. Their addresses are multiples of 16 bytes. This is stricter than
/// fastnorm_norm. CPU: addresses are multiples of the element's size, and inputs may have strides
/// of 0.
///
/// Aliasing: o, lse and profile must not overlap each other or any input. Two interleaved views of
/// one buffer that share no element are allowed.
///
/// Ranges: N \* H, B and the number of pages are below 2^31; s_q \* H is at most 2^24.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_mla_decode_args {
    /// sizeof(fastnorm_mla_decode_args).
    pub struct_size: usize,
    /// Factor of the scores: finite and not 0, on CUDA \> 0, of a magnitude from 2^-100 to 2^60.
    /// There is no default: models differ. DeepSeek without YaRN has 1 / sqrt(128 + 64).
    pub sm_scale: f64,
    /// 0 or 1.
    pub causal: i32,
    /// Default: natural.
    pub lse_base: fastnorm_lse_base,
    /// With qo_indptr: the largest s_q of any request, at least 1; it may be larger than needed.
    /// Without qo_indptr: 0 or N / B.
    pub max_s_q: i32,
    /// 1: the workspace still holds the plan of an earlier call of the same context, such as the
    /// previous layer's. The plan is not made again. Shapes, causal, max_s_q, split_tokens, and the
    /// values of kv_len and qo_indptr must be equal. 0: the plan is made. CPU: without effect.
    pub reuse_plan: i32,
    /// 0: the library chooses where long requests are cut. Else a multiple of 64 up to 2^30: each
    /// request is cut at multiples of it. CPU: without effect.
    pub split_tokens: i32,
    /// With profile: events per warpgroup, 1 to 2^20. A query tells the room for them without a
    /// profile, too. Else 0.
    pub profile_events: i32,
    /// Sum of kv_len, or 0. Used for fastnorm_info.bytes_read only: a query does not read lengths.
    pub total_kv_hint: i64,
    /// \[N, H, 512\] T, the query times W_UK. Required.
    pub q_nope: *const fastnorm_tensor,
    /// \[N, H, 64\] T, after RoPE. Required.
    pub q_pe: *const fastnorm_tensor,
    /// \[pages, page, 512\] T, normalised latents. Required.
    pub ckv: *const fastnorm_tensor,
    /// \[pages, page, 64\] T, after RoPE. Required.
    pub kpe: *const fastnorm_tensor,
    /// \[B\] i32, cached tokens of each request. Required.
    pub kv_len: *const fastnorm_tensor,
    /// \[B, max_pages\] or, with kv_indptr, \[total\]; i32. Required.
    pub page_table: *const fastnorm_tensor,
    /// \[B + 1\] i32, start of each request's pages in page_table. NULL: page_table is a block
    /// table.
    pub kv_indptr: *const fastnorm_tensor,
    /// \[B + 1\] i32, start of each request's new tokens in q. It starts with 0, does not fall and
    /// ends with at most N. NULL: each request has N / B.
    pub qo_indptr: *const fastnorm_tensor,
    /// \[N, H, 512\] T. Output. Required.
    pub o: *const fastnorm_tensor,
    /// \[N, H\] f32. Output. NULL = not stored.
    pub lse: *const fastnorm_tensor,
    /// \[bytes\] u8, at least fastnorm_info.profile_bytes, 16-byte aligned. Output: what each
    /// warpgroup did when; for fastnorm_profile_decode. Contents on entry do not matter. NULL = no
    /// profile. CUDA only.
    pub profile: *const fastnorm_tensor,
}

impl fastnorm_mla_decode_args {
    /// Everything zero, `struct_size` set: the defaults.
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
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
        }
    }
}

impl Default for fastnorm_mla_decode_args {
    fn default() -> Self {
        Self::new()
    }
}

extern "C" {
    /// Say what a call would do: workspace, kernel, launches, bytes. No memory of a tensor is
    /// touched.
    ///
    /// CUDA: `launches` counts the plan, the attention and the merge of the pieces. The workspace
    /// holds the plan, a few bytes a request, and the unmerged pieces. Where split_tokens is 0 the
    /// room for pieces depends on max_s_q \* H and on the number of multiprocessors only. With
    /// split_tokens it is bounded from the page table's extents: max_pages, or the length of
    /// page_table with kv_indptr. CPU: 0.
    ///
    /// - `context`: the device
    /// - `args`: as for the call
    /// - `info`: struct_size in; receives the rest
    ///
    /// Returns as fastnorm_mla_decode; FASTNORM_ERROR_ARGUMENT also if info is null or its
    /// struct_size too small
    ///
    /// Since 0.2.
    pub fn fastnorm_mla_decode_query(
        context: *mut fastnorm_context,
        args: *const fastnorm_mla_decode_args,
        info: *mut fastnorm_info,
    ) -> fastnorm_status;

    /// Load the kernels of a call. After it, calls that use the same kernels neither allocate nor
    /// synchronise, and can be captured in a CUDA graph. Optional: the first call does the same.
    ///
    /// - `context`: the device
    /// - `args`: as for the call
    ///
    /// Returns as fastnorm_mla_decode
    ///
    /// Since 0.2.
    pub fn fastnorm_mla_decode_prepare(
        context: *mut fastnorm_context,
        args: *const fastnorm_mla_decode_args,
    ) -> fastnorm_status;

    /// Attend; the formula is at the top of this header.
    ///
    /// CUDA: up to three kernels are queued on `stream` and the call returns. It does not
    /// synchronise, does not copy lengths to the host and leaves the current device as it was. It
    /// may be captured in a CUDA graph: kv_len, page_table, kv_indptr, qo_indptr and all other data
    /// may change between replays; addresses, shapes and scalars may not. The values in kv_len,
    /// kv_indptr, qo_indptr and the needed entries of page_table must be valid: kv_len\[b\] from 0
    /// to page \* (pages in b's list), page numbers below `pages`, at most max_s_q new tokens a
    /// request. The device does not check them: a wrong value may read outside of the cache.
    ///
    /// CPU: the work is done when the call returns; requests, tokens and heads are spread over the
    /// context's threads. These values are checked before anything is written.
    ///
    /// B = 0 or N = 0 is success and does nothing. Requests with s_q = 0 or kv_len = 0 may be among
    /// others. Rows of q that belong to no request (behind qo_indptr\[B\]) are not written.
    ///
    /// - `context`: the device
    /// - `args`: what to compute; read during the call only
    /// - `workspace`: fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned; not used
    ///   by anything else until the work has run, and until the last call with reuse_plan has; NULL
    ///   where 0 bytes are needed. Contents do not matter without reuse_plan
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: CUDA: the cudaStream_t; NULL = the legacy default stream. CPU: NULL
    ///
    /// Returns FASTNORM_OK FASTNORM_ERROR_ARGUMENT: null context, args or required tensor; a tensor
    /// whose shape is null, or its data though it has elements; a struct_size that is too small; a
    /// scalar out of range; sm_scale 0; qo_indptr without max_s_q; too small a workspace; a stream
    /// on the CPU; profile_events without a profile; CPU: a length, index or page number out of
    /// range; a parallel_for that did not cover the rows exactly once, when some may have been
    /// written FASTNORM_ERROR_SHAPE: ranks or extents that do not fit; N not a multiple of B
    /// without qo_indptr; a profile that is too short FASTNORM_ERROR_DTYPE: a dtype that the
    /// tensor's role does not allow FASTNORM_ERROR_LAYOUT: last dimension not contiguous,
    /// misaligned address or stride, overlap FASTNORM_ERROR_UNSUPPORTED: see the top of this
    /// header; a field of a later version, an unknown tail that is not zero FASTNORM_ERROR_DEVICE:
    /// a tensor on another device; the CUDA runtime's error FASTNORM_ERROR_OUT_OF_MEMORY: the CUDA
    /// runtime had no memory, as for loading the kernel FASTNORM_ERROR_INTERNAL: a defect of this
    /// library; an exception out of parallel_for
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

/// What a profile records. A wait spans the time that a warpgroup stands at a barrier.
pub type fastnorm_profile_id = c_uint;
/// One piece of a request, from its plan entry to its output.
pub const FASTNORM_PROFILE_WORK: fastnorm_profile_id = 0;
/// Issue of the loads of the query tile.
pub const FASTNORM_PROFILE_LOAD_Q: fastnorm_profile_id = 1;
/// Issue of the loads of a half tile of the cache.
pub const FASTNORM_PROFILE_LOAD_KV: fastnorm_profile_id = 2;
/// Scores: from issue to the return of the wait.
pub const FASTNORM_PROFILE_QK: fastnorm_profile_id = 3;
/// Maximum, exponentials, sums.
pub const FASTNORM_PROFILE_SOFTMAX: fastnorm_profile_id = 4;
/// Outputs times the change of the maximum.
pub const FASTNORM_PROFILE_RESCALE: fastnorm_profile_id = 5;
/// Probabilities to shared memory.
pub const FASTNORM_PROFILE_WRITE_P: fastnorm_profile_id = 6;
/// Values: from issue to the return of the wait.
pub const FASTNORM_PROFILE_PV: fastnorm_profile_id = 7;
/// Outputs or partial outputs to global memory.
pub const FASTNORM_PROFILE_WRITE_O: fastnorm_profile_id = 8;
/// Merge of the pieces of a request.
pub const FASTNORM_PROFILE_MERGE: fastnorm_profile_id = 9;
/// For the query tile.
pub const FASTNORM_PROFILE_WAIT_Q: fastnorm_profile_id = 10;
/// For a part of a tile of the cache.
pub const FASTNORM_PROFILE_WAIT_KV: fastnorm_profile_id = 11;
/// The producer, for a free part of a buffer.
pub const FASTNORM_PROFILE_WAIT_FREE: fastnorm_profile_id = 12;
/// For the maximum of the even tile.
pub const FASTNORM_PROFILE_WAIT_SCALE_0: fastnorm_profile_id = 13;
/// For the maximum of the odd tile.
pub const FASTNORM_PROFILE_WAIT_SCALE_1: fastnorm_profile_id = 14;
/// For the probabilities of the even tile.
pub const FASTNORM_PROFILE_WAIT_P_0: fastnorm_profile_id = 15;
/// For the probabilities of the odd tile.
pub const FASTNORM_PROFILE_WAIT_P_1: fastnorm_profile_id = 16;
/// For the previous kernel of the stream.
pub const FASTNORM_PROFILE_WAIT_PLAN: fastnorm_profile_id = 17;
pub const FASTNORM_PROFILE_ID_MAX_ENUM: fastnorm_profile_id = 0x7fffffff;

/// How an event stands in time.
pub type fastnorm_profile_kind = c_uint;
/// A span starts; an end of the same id and warpgroup follows.
pub const FASTNORM_PROFILE_BEGIN: fastnorm_profile_kind = 0;
/// The span ends.
pub const FASTNORM_PROFILE_END: fastnorm_profile_kind = 1;
/// A point in time.
pub const FASTNORM_PROFILE_INSTANT: fastnorm_profile_kind = 2;
pub const FASTNORM_PROFILE_KIND_MAX_ENUM: fastnorm_profile_kind = 0x7fffffff;

/// One event of a profile.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_profile_event {
    /// Since the earliest event of the buffer, aligned over multiprocessors.
    pub time_ns: u64,
    /// Clock cycles since the start of this warpgroup.
    pub cycle: u64,
    /// Thread block.
    pub block: i32,
    /// Where it ran.
    pub multiprocessor: i32,
    /// Warpgroup of the thread block; 0 and 1 compute, 2 loads.
    pub group: i32,
    /// What.
    pub id: fastnorm_profile_id,
    /// Begin, end or instant.
    pub kind: fastnorm_profile_kind,
    /// Number of the tile or piece that the event belongs to, 0 to 2^22 - 1.
    pub value: i32,
}

impl fastnorm_profile_event {
    /// Everything zero.
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

/// Files that fastnorm_profile_write_trace writes.
pub type fastnorm_trace_format = c_uint;
/// Trace Event Format, which Perfetto and chrome://tracing open.
pub const FASTNORM_TRACE_CHROME_JSON: fastnorm_trace_format = 0;
pub const FASTNORM_TRACE_FORMAT_MAX_ENUM: fastnorm_trace_format = 0x7fffffff;

extern "C" {
    /// Name of an event.
    ///
    /// - `id`: which
    ///
    /// Returns such as "softmax"; "unknown" for an id that this library does not have. Static
    ///
    /// Since 0.2.
    pub fn fastnorm_profile_id_name(id: fastnorm_profile_id) -> *const c_char;

    /// Turn a profile buffer, copied to host memory, into a flat array. Events are in order of
    /// thread block, then warpgroup, then time. A warpgroup that ran out of profile_events has
    /// dropped its last ones; what it recorded is still in order.
    ///
    /// - `buffer`: the bytes of args.profile, on the host, 8-byte aligned
    /// - `bytes`: their number
    /// - `events`: receives the first `capacity` events; NULL if capacity is 0
    /// - `capacity`: room in events
    /// - `count`: receives the number of events in the buffer, which may be more than capacity
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT for null pointers, a buffer that is no profile,
    /// is cut short or inconsistent, or comes from another version
    ///
    /// Since 0.2.
    pub fn fastnorm_profile_decode(
        buffer: *const c_void,
        bytes: usize,
        events: *mut fastnorm_profile_event,
        capacity: usize,
        count: *mut usize,
    ) -> fastnorm_status;

    /// Write a profile buffer, copied to host memory, as a trace. A thread block is a process of
    /// the trace, its warpgroups are threads. `otherData` holds figures of the whole profile: the
    /// number of dropped events, the share of time with a tensor-core product in flight, and the
    /// share of each wait.
    ///
    /// - `buffer`: the bytes of args.profile, on the host, 8-byte aligned
    /// - `bytes`: their number
    /// - `path`: the file, which is replaced
    /// - `format`: what is written
    ///
    /// Returns as fastnorm_profile_decode; FASTNORM_ERROR_ARGUMENT also for a null path, an unknown
    /// format, and a file that cannot be written (the text has the system's reason)
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
/// Normalise.
pub const FASTNORM_NORM_HEADS_NORM: fastnorm_norm_heads_part_flags = 1;
/// Turn rope_dim columns.
pub const FASTNORM_NORM_HEADS_ROPE: fastnorm_norm_heads_part_flags = 2;
/// With ROPE: pairs are neighbours (GPT-J). Default: they are R columns apart (NeoX, Llama).
pub const FASTNORM_NORM_HEADS_ROPE_INTERLEAVED: fastnorm_norm_heads_part_flags = 4;
/// With ROPE: turn back.
pub const FASTNORM_NORM_HEADS_ROPE_INVERSE: fastnorm_norm_heads_part_flags = 8;
/// With ROPE: of v rounded to x's dtype.
pub const FASTNORM_NORM_HEADS_ROPE_FROM_ROUNDED: fastnorm_norm_heads_part_flags = 16;
/// With NORM: one statistic for all heads of a token.
pub const FASTNORM_NORM_HEADS_ACROSS_HEADS: fastnorm_norm_heads_part_flags = 32;
pub const FASTNORM_NORM_HEADS_PART_FLAGS_MAX_ENUM: fastnorm_norm_heads_part_flags = 0x7fffffff;

/// Bits of fastnorm_norm_heads_args.flags.
pub type fastnorm_norm_heads_flags = c_uint;
/// Axes alternate from pair to pair (Qwen3-VL).
pub const FASTNORM_NORM_HEADS_MROPE_INTERLEAVED: fastnorm_norm_heads_flags = 8;
pub const FASTNORM_NORM_HEADS_FLAGS_MAX_ENUM: fastnorm_norm_heads_flags = 0x7fffffff;

/// Where rope rounds to x's dtype T on its way. With T = f32 rounding changes nothing, but
/// EVERY_STEP still adds the products instead of fusing them.
pub type fastnorm_rope_rounding = c_uint;
/// Only when the result is stored. FlashInfer, vLLM, SGLang.
pub const FASTNORM_ROPE_ONCE: fastnorm_rope_rounding = 0;
/// Every product, too: what a 16-bit eager chain does.
pub const FASTNORM_ROPE_EVERY_STEP: fastnorm_rope_rounding = 1;
pub const FASTNORM_ROPE_ROUNDING_MAX_ENUM: fastnorm_rope_rounding = 0x7fffffff;

/// One part. `{0}` plus struct_size, x and one output is valid: it copies.
///
/// Shapes: x is \[tokens, heads, d\], with d from 1 to 8192, heads at least 1, and the tokens of
/// every part alike. T is x's dtype, f32, f16 or bf16, and alike for all parts. Last dimensions are
/// contiguous; all other strides are free, and inputs may have strides of 0. Any alignment that the
/// dtype allows. All tensors are on the context's device.
///
/// Outputs are y, quantized, cache, sumsq, mean and rstd; a part has at least one.
///
/// Aliasing: y may be the part's x, as the same view. No other output may share an element with any
/// tensor of the call; interleaved views of one buffer that share no element are allowed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_norm_heads_part {
    /// sizeof(fastnorm_norm_heads_part).
    pub struct_size: usize,
    /// fastnorm_norm_heads_part_flags.
    pub flags: u32,
    /// NORM: RMS or LAYER; else 0.
    pub kind: fastnorm_norm_kind,
    /// NORM: finite, \>= 0; else 0.
    pub eps: f32,
    /// Added to the weight in f32; 0 where weight is NULL.
    pub weight_offset: f32,
    /// NORM: as in fastnorm_norm_args; else 0.
    pub rounding: fastnorm_rounding,
    /// ROPE: default once; else 0.
    pub rope_rounding: fastnorm_rope_rounding,
    /// ROPE: first column that is turned, or -1: the last rope_dim columns are. Else 0.
    pub rope_offset: i32,
    /// Must be 0.
    pub reserved: i32,
    /// \[tokens, heads, d\] T. Required.
    pub x: *const fastnorm_tensor,
    /// NORM: \[d\] or \[heads, d\], \[1, d\] too; dtypes as in fastnorm_norm_args. NULL = 1.
    pub weight: *const fastnorm_tensor,
    /// As weight. NULL = 0.
    pub bias: *const fastnorm_tensor,
    /// \[tokens, heads, d\], T or f32. Output; may be x. NULL = not stored.
    pub y: *const fastnorm_tensor,
    /// LAYER: the mean, f32 \[tokens, heads\]; ACROSS_HEADS: \[tokens\]. Output. NULL = not stored.
    pub mean: *const fastnorm_tensor,
    /// NORM: as mean. Output. NULL = not stored.
    pub rstd: *const fastnorm_tensor,
    /// LAYER, with rstd_in: the mean to use, of mean's shape. Input.
    pub mean_in: *const fastnorm_tensor,
    /// NORM: the rstd to use, of rstd's shape; eps is not looked at. Input. NULL = computed.
    pub rstd_in: *const fastnorm_tensor,
    /// NORM without rstd_in. RMS: the sum of squares, of rstd's shape. LAYER: that with a last 2,
    /// the mean and the sum of (x - mean)^2. f32. Output. NULL = not stored.
    pub sumsq: *const fastnorm_tensor,
    /// Of `quantized`. PER_ROW is a scale a token and head.
    pub quant_scheme: fastnorm_quant_scheme,
    /// As in fastnorm_norm_args.
    pub quant_block_size: i32,
    /// Of `quantized` and of a cache of codes.
    pub quant_source: fastnorm_quant_source,
    /// As in fastnorm_norm_args; rows are tokens \* heads.
    pub scale_layout: fastnorm_scale_layout,
    /// As in fastnorm_norm_args.
    pub scale_pow2: i32,
    /// As in fastnorm_norm_args, and for a cache with scales of blocks.
    pub amax_floor: f32,
    /// As in fastnorm_norm_args. The cache is not clamped.
    pub clamp: f32,
    /// NONE: the cache is of T. Else PER_TENSOR or PER_BLOCK.
    pub cache_scheme: fastnorm_quant_scheme,
    /// cache_scheme PER_BLOCK: 64 or 128 columns; else 0.
    pub cache_block_size: i32,
    /// cache_scheme PER_BLOCK with f8: 1 = scales are powers of two; else 0.
    pub cache_pow2: i32,
    /// As in fastnorm_norm_args.
    pub global_scale: *const fastnorm_tensor,
    /// As in fastnorm_norm_args. Output.
    pub quantized: *const fastnorm_tensor,
    /// As in fastnorm_norm_args.
    pub scale: *const fastnorm_tensor,
    /// As in fastnorm_norm_args.
    pub amax: *const fastnorm_tensor,
    /// \[pages, page_size, heads, d\] T, or codes of f8_e4m3fn, f8_e5m2 or i8. Output. NULL = none.
    pub cache: *const fastnorm_tensor,
    /// PER_TENSOR: \[1\] f32, an input. PER_BLOCK: \[pages, page_size, heads, ceil(d / block)\]
    /// f32, with any strides; with cache_pow2 f32, f8_e8m0fnu or u8. Output.
    pub cache_scale: *const fastnorm_tensor,
    /// Of `quantized` and of a cache of codes, with PER_TENSOR, PER_ROW and PER_BLOCK: default,
    /// times the reciprocal; else 0. Scales that are powers of two give the same codes either way.
    pub quant_division: fastnorm_quant_division,
    /// Must be 0.
    pub reserved_2: i32,
    /// As in fastnorm_norm_args. The cache is not clamped.
    pub clamp_scale: *const fastnorm_tensor,
}

impl fastnorm_norm_heads_part {
    /// Everything zero, `struct_size` set: the defaults.
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
            reserved: 0,
            x: core::ptr::null(),
            weight: core::ptr::null(),
            bias: core::ptr::null(),
            y: core::ptr::null(),
            mean: core::ptr::null(),
            rstd: core::ptr::null(),
            mean_in: core::ptr::null(),
            rstd_in: core::ptr::null(),
            sumsq: core::ptr::null(),
            quant_scheme: 0,
            quant_block_size: 0,
            quant_source: 0,
            scale_layout: 0,
            scale_pow2: 0,
            amax_floor: 0.0,
            clamp: 0.0,
            cache_scheme: 0,
            cache_block_size: 0,
            cache_pow2: 0,
            global_scale: core::ptr::null(),
            quantized: core::ptr::null(),
            scale: core::ptr::null(),
            amax: core::ptr::null(),
            cache: core::ptr::null(),
            cache_scale: core::ptr::null(),
            quant_division: 0,
            reserved_2: 0,
            clamp_scale: core::ptr::null(),
        }
    }
}

impl Default for fastnorm_norm_heads_part {
    fn default() -> Self {
        Self::new()
    }
}

/// What the parts of a call share.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_norm_heads_args {
    /// sizeof(fastnorm_norm_heads_args).
    pub struct_size: usize,
    /// fastnorm_norm_heads_flags.
    pub flags: u32,
    /// Columns that ROPE turns, even; 0 where no part has ROPE.
    pub rope_dim: i32,
    /// Pairs of axis 0; all four are 0 with one row of positions.
    pub mrope_0: i32,
    /// Pairs of axis 1.
    pub mrope_1: i32,
    /// Pairs of axis 2.
    pub mrope_2: i32,
    /// Pairs of axis 3.
    pub mrope_3: i32,
    /// \[P, R\], \[P, 2 \* R\], or one such for each head; f32 or T.
    pub cos: *const fastnorm_tensor,
    /// As cos: the same shape and dtype.
    pub sin: *const fastnorm_tensor,
    /// \[tokens\] or \[axes, tokens\], with 1 to 4 axes; i32 or i64. NULL = the token's number.
    pub positions: *const fastnorm_tensor,
    /// \[at most tokens\] i32 or i64. Required where a part has a cache, else NULL.
    pub slots: *const fastnorm_tensor,
}

impl fastnorm_norm_heads_args {
    /// Everything zero, `struct_size` set: the defaults.
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
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
    /// Say what a call would do: workspace, kernel, launches, bytes. No memory of a tensor is
    /// touched.
    ///
    /// - `context`: the device
    /// - `args`: as for the call
    /// - `parts`: \[count\] pointers, as for the call
    /// - `count`: 0 to 8
    /// - `info`: struct_size in; receives the rest
    ///
    /// Returns as fastnorm_norm_heads; FASTNORM_ERROR_ARGUMENT also if info is null or its
    /// struct_size too small
    ///
    /// Since 0.2.
    pub fn fastnorm_norm_heads_query(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_heads_args,
        parts: *const *const fastnorm_norm_heads_part,
        count: i32,
        info: *mut fastnorm_info,
    ) -> fastnorm_status;

    /// Load the kernels of a call, so that it neither allocates nor synchronises. Optional: the
    /// first call does the same.
    ///
    /// - `context`: the device
    /// - `args`: as for the call
    /// - `parts`: \[count\] pointers, as for the call
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

    /// Normalise, turn and store the heads of all parts; the formula is at the top of this header.
    ///
    /// CPU: the work is done when the call returns; tokens are spread over the context's threads.
    /// Positions and slots are checked before anything is written: positions from 0 to P - 1, slots
    /// from -1 to pages \* page_size - 1. On other devices wrong ones are undefined, and may write
    /// outside of the cache. No allocation and no synchronisation. No parts or no tokens is success
    /// and does nothing.
    ///
    /// - `context`: the device
    /// - `args`: what all parts share; read during the call only
    /// - `parts`: \[count\] pointers, read during the call only
    /// - `count`: number of parts, 0 to 8
    /// - `workspace`: fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned; NULL
    ///   where 0 bytes are needed
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: CUDA: the cudaStream_t; NULL = the legacy default stream. CPU: NULL
    ///
    /// Returns FASTNORM_OK FASTNORM_ERROR_ARGUMENT: null context, args, part, x or required tensor;
    /// a part without an output; ROPE without tables, a cache without slots; a field that the flags
    /// have no use for; a scalar out of range; a struct_size that is too small; a tensor whose
    /// shape is null, or its data though it has elements; a workspace that is too small; a stream
    /// on the CPU; CPU: a position or slot out of range; a parallel_for that did not cover the
    /// tokens exactly once, when some may have been written FASTNORM_ERROR_SHAPE: ranks or extents
    /// that do not fit; rope_dim odd or past the row; mrope sections whose sum is not R
    /// FASTNORM_ERROR_DTYPE: a dtype that the tensor's role does not allow FASTNORM_ERROR_LAYOUT:
    /// last dimension not contiguous, misaligned address, overlap FASTNORM_ERROR_UNSUPPORTED: d
    /// above 8192; CUDA: too many rows; a field of a later version, an unknown flag, an unknown
    /// tail that is not zero FASTNORM_ERROR_DEVICE: a tensor on another device
    /// FASTNORM_ERROR_INTERNAL: a defect of this library; an exception out of parallel_for
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

/// Bits of fastnorm_norm_heads_backward_part.flags, beside fastnorm_norm_heads_part_flags.
pub type fastnorm_norm_heads_backward_flags = c_uint;
/// dweight = old dweight + sum: one addition in f32 after the sum, rounded once. Without the flag
/// the old dweight is not read.
pub const FASTNORM_NORM_HEADS_ACCUMULATE_DWEIGHT: fastnorm_norm_heads_backward_flags = 64;
/// The same for dbias.
pub const FASTNORM_NORM_HEADS_ACCUMULATE_DBIAS: fastnorm_norm_heads_backward_flags = 128;
pub const FASTNORM_NORM_HEADS_BACKWARD_FLAGS_MAX_ENUM: fastnorm_norm_heads_backward_flags =
    0x7fffffff;

/// One part. `{0}` plus struct_size, dy and dx is valid: it copies, as a value head's gradient
/// needs it.
///
/// Shapes: dy is \[tokens, heads, d\], with d from 1 to 8192, heads at least 1, and the tokens of
/// every part alike. T is the dtype of x, or of dx where there is no x: f32, f16 or bf16, and alike
/// for all parts. Last dimensions are contiguous; that of dy may have stride 0 instead. All other
/// strides are free, and inputs may have strides of 0: dx is often a view of a packed gradient of
/// QKV. Any alignment that the dtype allows. All tensors are on the context's device.
///
/// Outputs are dx, dweight and dbias; a part has at least one. dx alone serves frozen weights,
/// dweight alone a frozen layer below.
///
/// Aliasing: dx may be the part's dy or x, as the same view. No other output may share an element
/// with any tensor of the call; interleaved views of one buffer that share no element are allowed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_norm_heads_backward_part {
    /// sizeof(fastnorm_norm_heads_backward_part).
    pub struct_size: usize,
    /// The forward's fastnorm_norm_heads_part_flags, and fastnorm_norm_heads_backward_flags.
    pub flags: u32,
    /// NORM: the forward's; else 0.
    pub kind: fastnorm_norm_kind,
    /// NORM: the forward's. Used where rstd is NULL; else 0.
    pub eps: f32,
    /// The forward's. 0 where weight is NULL.
    pub weight_offset: f32,
    /// NORM: the forward's; else 0.
    pub rounding: fastnorm_rounding,
    /// ROPE: the forward's; else 0.
    pub rope_offset: i32,
    /// \[tokens, heads, d\] T or f32: the gradient of y. Required.
    pub dy: *const fastnorm_tensor,
    /// NORM: \[tokens, heads, d\] T, the forward's x. Required with NORM, else NULL.
    pub x: *const fastnorm_tensor,
    /// NORM: \[d\] or \[heads, d\], \[1, d\] too; f32, f16 or bf16: the forward's. NULL = 1.
    pub weight: *const fastnorm_tensor,
    /// LAYER: the forward's, f32 \[tokens, heads\]; ACROSS_HEADS: \[tokens\]. NULL where rstd is.
    pub mean: *const fastnorm_tensor,
    /// NORM: as mean, for both kinds. NULL = computed again from x, with the forward's bits.
    pub rstd: *const fastnorm_tensor,
    /// \[tokens, heads, d\] T. Output; may be dy or x. NULL = not stored.
    pub dx: *const fastnorm_tensor,
    /// NORM with a weight: its shape; f32 or its dtype. Output; also input with ACCUMULATE_DWEIGHT.
    /// NULL = not wanted.
    pub dweight: *const fastnorm_tensor,
    /// NORM: the shape of the forward's bias, \[d\] or \[heads, d\]; f32, f16 or bf16. Output; also
    /// input with ACCUMULATE_DBIAS. NULL = not wanted.
    pub dbias: *const fastnorm_tensor,
}

impl fastnorm_norm_heads_backward_part {
    /// Everything zero, `struct_size` set: the defaults.
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
    /// Say what a call would do: workspace, kernel, launches, bytes. No memory of a tensor is
    /// touched.
    ///
    /// The workspace holds partial sums of dweight and dbias, as that of fastnorm_norm_backward
    /// does, and with ACROSS_HEADS four floats for each token. It is 0 where neither is needed.
    /// CUDA: where fastnorm_norm_backward's kernels run, statistics that are computed again are
    /// there, too.
    ///
    /// - `context`: the device
    /// - `args`: as for the call
    /// - `parts`: \[count\] pointers, as for the call
    /// - `count`: 0 to 8
    /// - `info`: struct_size in; receives the rest
    ///
    /// Returns as fastnorm_norm_heads_backward; FASTNORM_ERROR_ARGUMENT also if info is null or its
    /// struct_size too small
    ///
    /// Since 0.2.
    pub fn fastnorm_norm_heads_backward_query(
        context: *mut fastnorm_context,
        args: *const fastnorm_norm_heads_args,
        parts: *const *const fastnorm_norm_heads_backward_part,
        count: i32,
        info: *mut fastnorm_info,
    ) -> fastnorm_status;

    /// Load the kernels of a call, so that it neither allocates nor synchronises. Optional: the
    /// first call does the same.
    ///
    /// - `context`: the device
    /// - `args`: as for the call
    /// - `parts`: \[count\] pointers, as for the call
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
    /// CPU: the work is done when the call returns; rows are spread over the context's threads.
    /// Positions are checked before anything is written: from 0 to P - 1. On other devices wrong
    /// ones are undefined. No allocation and no synchronisation. No parts is success and does
    /// nothing. No tokens is success: dweight and dbias become 0, or stay as they are with their
    /// ACCUMULATE flag.
    ///
    /// - `context`: the device
    /// - `args`: the forward's: what all parts share; slots is not looked at. Read during the call
    ///   only
    /// - `parts`: \[count\] pointers, read during the call only
    /// - `count`: number of parts, 0 to 8
    /// - `workspace`: fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned, contents
    ///   undefined, not to be used by anything else until the work has run; NULL where 0 bytes are
    ///   needed
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: CUDA: the cudaStream_t; NULL = the legacy default stream. CPU: NULL
    ///
    /// Returns FASTNORM_OK FASTNORM_ERROR_ARGUMENT: null context, args, part, dy or required
    /// tensor; a part without an output; ROPE without tables; a field that the flags have no use
    /// for; a scalar out of range; a struct_size that is too small; a tensor whose shape is null,
    /// or its data though it has elements; mean with RMS; one of mean and rstd alone with LAYER;
    /// dweight without weight; an ACCUMULATE flag without its output; too small a workspace; a
    /// stream on the CPU; CPU: a position out of range; a parallel_for that did not cover the work
    /// exactly once, when some may have been written FASTNORM_ERROR_SHAPE: ranks or extents that do
    /// not fit; rope_dim odd or past the row; mrope sections whose sum is not R
    /// FASTNORM_ERROR_DTYPE: a dtype that the tensor's role does not allow FASTNORM_ERROR_LAYOUT:
    /// last dimension not contiguous, misaligned address, overlap FASTNORM_ERROR_UNSUPPORTED: d
    /// above 8192; a field of a later version, an unknown flag, an unknown tail that is not zero;
    /// CUDA: what the device has no kernels for FASTNORM_ERROR_DEVICE: a tensor on another device;
    /// the CUDA runtime's error FASTNORM_ERROR_OUT_OF_MEMORY: the CUDA runtime had no memory, as
    /// for loading the kernel FASTNORM_ERROR_INTERNAL: a defect of this library; an exception out
    /// of parallel_for
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

/// One rank's end of a group. Opaque.
#[repr(C)]
pub struct fastnorm_peer {
    _data: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// How rows travel. Results do not depend on it.
pub type fastnorm_peer_algorithm = c_uint;
/// By rows, columns, dtype and ranks: one-shot up to one_shot_bytes, two-shot above.
pub const FASTNORM_PEER_AUTO: fastnorm_peer_algorithm = 0;
/// Each rank sends its rows to all, and all ranks add.
pub const FASTNORM_PEER_ONE_SHOT: fastnorm_peer_algorithm = 1;
/// Each rank adds a share of the rows and sends the sums to all.
pub const FASTNORM_PEER_TWO_SHOT: fastnorm_peer_algorithm = 2;
pub const FASTNORM_PEER_ALGORITHM_MAX_ENUM: fastnorm_peer_algorithm = 0x7fffffff;

/// Which sum of the ranks' rows goes on.
pub type fastnorm_peer_sum_rounding = c_uint;
/// Rounded to x's dtype, before the residual is added: as an all-reduce of T would.
pub const FASTNORM_PEER_SUM_ROUNDED: fastnorm_peer_sum_rounding = 0;
/// The single-precision sum.
pub const FASTNORM_PEER_SUM_EXACT: fastnorm_peer_sum_rounding = 1;
pub const FASTNORM_PEER_SUM_ROUNDING_MAX_ENUM: fastnorm_peer_sum_rounding = 0x7fffffff;

/// What stopped a peer.
pub type fastnorm_peer_error = c_uint;
/// Nothing.
pub const FASTNORM_PEER_ERROR_NONE: fastnorm_peer_error = 0;
/// A rank did not arrive within wait_ns.
pub const FASTNORM_PEER_ERROR_MISSING: fastnorm_peer_error = 1;
/// A rank made another call.
pub const FASTNORM_PEER_ERROR_DISAGREES: fastnorm_peer_error = 2;
pub const FASTNORM_PEER_ERROR_MAX_ENUM: fastnorm_peer_error = 0x7fffffff;

/// Sizes of this header.
pub type fastnorm_peer_limits = c_uint;
/// Ends of a group.
pub const FASTNORM_PEER_MAX_RANKS: fastnorm_peer_limits = 8;
/// Bytes of one rank's blob.
pub const FASTNORM_PEER_BLOB_BYTES: fastnorm_peer_limits = 128;
pub const FASTNORM_PEER_LIMITS_MAX_ENUM: fastnorm_peer_limits = 0x7fffffff;

/// Options of a peer. `{0}` plus struct_size, rank, ranks, dtype and max_columns is valid. All but
/// rank and wait_ns must be the same on all ranks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_peer_options {
    /// sizeof(fastnorm_peer_options).
    pub struct_size: usize,
    /// This end's number, 0 to ranks - 1. Required.
    pub rank: i32,
    /// Ends of the group, 2 to 8; odd numbers too. Required.
    pub ranks: i32,
    /// T of peer_allreduce_norm's x: f32, f16 or bf16. Required.
    pub dtype: fastnorm_dtype_id,
    /// Default: by size.
    pub algorithm: fastnorm_peer_algorithm,
    /// Longest row of peer_allreduce_norm, 1 to 65536. Required.
    pub max_columns: i64,
    /// AUTO: the most bytes (rows \* columns \* bytes of T) of a one-shot; 0 = measured defaults.
    /// At 2 ranks 0 is one-shot always.
    pub one_shot_bytes: i64,
    /// The longest wait for another rank: 1000 to 10^12 ns; 0 = 10 s.
    pub wait_ns: i64,
    /// Rows that may be on their way at once, 1 to 256; 0 = 8, CUDA: 128. On CUDA at most so many
    /// thread blocks run.
    pub rings: i32,
    /// Must be 0.
    pub reserved: i32,
}

impl fastnorm_peer_options {
    /// Everything zero, `struct_size` set: the defaults.
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

/// What became of a peer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_peer_state {
    /// In: sizeof(fastnorm_peer_state).
    pub struct_size: usize,
    /// What stopped it; NONE = nothing.
    pub error: fastnorm_peer_error,
    /// The rank that was missing or disagrees; -1 where there is none.
    pub rank: i32,
    /// Calls that ended well since create or reset. CUDA: of one that was stopped, the first rows
    /// may have ended well, and then it counts; 32 bits.
    pub calls: u64,
    /// 1 once the other ranks' buffers are known; else 0.
    pub connected: i32,
    /// 0.
    pub reserved: i32,
}

impl fastnorm_peer_state {
    /// Everything zero, `struct_size` set: the defaults.
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
    /// Bytes of a rank's buffer, for fastnorm_peer_create_from_pointers.
    ///
    /// - `context`: the device
    /// - `options`: read during the call only
    /// - `bytes`: receives the number
    ///
    /// Returns as fastnorm_peer_create
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_buffer_bytes(
        context: *mut fastnorm_context,
        options: *const fastnorm_peer_options,
        bytes: *mut u64,
    ) -> fastnorm_status;

    /// Create one rank's end, with a buffer of its own. It calls once it has the others' blobs.
    ///
    /// - `context`: the device; must outlive the peer
    /// - `options`: read during the call only
    /// - `peer`: receives the peer, or NULL on failure; the caller owns it and ends it with
    ///   fastnorm_peer_destroy
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT for null or out-of-range arguments and options;
    /// FASTNORM_ERROR_DTYPE for another dtype; FASTNORM_ERROR_UNSUPPORTED for a device without
    /// peers, and for options of a later version; FASTNORM_ERROR_OUT_OF_MEMORY
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_create(
        context: *mut fastnorm_context,
        options: *const fastnorm_peer_options,
        peer: *mut *mut fastnorm_peer,
    ) -> fastnorm_status;

    /// Create one rank's end over buffers that the caller has. The call prepares this rank's
    /// buffer; no rank may call before this has returned on all. Nothing compares the ranks'
    /// options: calls find out. The buffers must outlive every rank's peer.
    ///
    /// - `context`: the device; must outlive the peer
    /// - `options`: read during the call only
    /// - `buffers`: \[count\] addresses in rank order, as this rank reaches them: each of
    ///   fastnorm_peer_buffer_bytes bytes, 256-byte aligned, apart from each other
    /// - `count`: options.ranks
    /// - `peer`: as fastnorm_peer_create
    ///
    /// Returns as fastnorm_peer_create; FASTNORM_ERROR_LAYOUT for buffers that are misaligned or
    /// overlap
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_create_from_pointers(
        context: *mut fastnorm_context,
        options: *const fastnorm_peer_options,
        buffers: *const *mut c_void,
        count: i32,
        peer: *mut *mut fastnorm_peer,
    ) -> fastnorm_status;

    /// Write what other ranks need to reach this one.
    ///
    /// - `peer`: of fastnorm_peer_create
    /// - `blob`: receives FASTNORM_PEER_BLOB_BYTES bytes
    /// - `bytes`: size of blob
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT for null arguments, too small a blob, and a
    /// peer of fastnorm_peer_create_from_pointers
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_export(
        peer: *mut fastnorm_peer,
        blob: *mut c_void,
        bytes: usize,
    ) -> fastnorm_status;

    /// Connect a rank with all others, once. It does not wait for them. The other ranks' buffers
    /// stay until this peer is destroyed, also where their peers are destroyed before.
    ///
    /// - `peer`: of fastnorm_peer_create
    /// - `blobs`: the blobs of all ranks, this one's too, in rank order, without gaps
    /// - `bytes`: size of blobs: ranks \* FASTNORM_PEER_BLOB_BYTES
    ///
    /// Returns FASTNORM_OK FASTNORM_ERROR_ARGUMENT: null arguments; a wrong size; bytes that are no
    /// blob; a blob of another rank; options that differ: the text names the option and both
    /// values; a buffer that is gone; a second call FASTNORM_ERROR_UNSUPPORTED: a blob of another
    /// version of the library or of another device type; CPU: of another process; CUDA: of a GPU
    /// whose memory this one cannot reach, or of another process where CUDA IPC does not work
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_import(
        peer: *mut fastnorm_peer,
        blobs: *const c_void,
        bytes: usize,
    ) -> fastnorm_status;

    /// Say whether a peer was stopped, and by which rank. May be called at any time, from any
    /// thread, also while a call waits for other ranks.
    ///
    /// - `peer`: of fastnorm_peer_create
    /// - `state`: struct_size in; receives the rest
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if peer or state is null, or its struct_size
    /// too small
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_status(
        peer: *const fastnorm_peer,
        state: *mut fastnorm_peer_state,
    ) -> fastnorm_status;

    /// Make a stopped group usable again. Every rank must call it, after no rank runs a call any
    /// more and before any rank runs the next one: the caller makes sure, by a barrier before and
    /// one after. CUDA: no stream has calls of this peer left.
    ///
    /// - `peer`: of fastnorm_peer_create
    ///
    /// Returns FASTNORM_OK; FASTNORM_ERROR_ARGUMENT if peer is null; CPU: or runs a call
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_reset(peer: *mut fastnorm_peer) -> fastnorm_status;

    /// Destroy a peer. NULL is fine. Must not race calls on the same peer, nor be used again. On
    /// CUDA no stream may have its calls left. Other ranks that call on find this one missing.
    ///
    /// - `peer`: of fastnorm_peer_create, or NULL
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_destroy(peer: *mut fastnorm_peer);
}

/// An all-reduce and one normalisation. `{0}` plus struct_size, peer, x and y is valid. Fields that
/// norm.h has too mean the same, with the sum of the ranks' x in place of x. Rank 1 to 8. Outputs
/// may be x or residual as there. Residual, weight, bias and scales are each rank's own, and are
/// the same on all ranks where results shall be.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_peer_allreduce_norm_args {
    /// sizeof(fastnorm_peer_allreduce_norm_args).
    pub struct_size: usize,
    /// This rank's end, connected, of the same context. Required.
    pub peer: *mut fastnorm_peer,
    /// RMS or LAYER.
    pub kind: fastnorm_norm_kind,
    /// Finite, \>= 0.
    pub eps: f32,
    /// As in fastnorm_norm_args.
    pub weight_offset: f32,
    /// Default: round once.
    pub rounding: fastnorm_rounding,
    /// Default: exact.
    pub residual_rounding: fastnorm_residual_rounding,
    /// Default: rounded to T.
    pub sum_rounding: fastnorm_peer_sum_rounding,
    /// fastnorm_norm_flags; 0.
    pub flags: u32,
    /// Must be 0.
    pub reserved: i32,
    /// \[..., n\] T, the peer's dtype. Required.
    pub x: *const fastnorm_tensor,
    /// As in fastnorm_norm_args. NULL = nothing is added.
    pub residual: *const fastnorm_tensor,
    /// As in fastnorm_norm_args. NULL = 1.
    pub weight: *const fastnorm_tensor,
    /// As in fastnorm_norm_args. NULL = 0.
    pub bias: *const fastnorm_tensor,
    /// As in fastnorm_norm_args. Output.
    pub y: *const fastnorm_tensor,
    /// As in fastnorm_norm_args. Output.
    pub residual_out: *const fastnorm_tensor,
    /// As in fastnorm_norm_args. Output.
    pub mean: *const fastnorm_tensor,
    /// As in fastnorm_norm_args. Output.
    pub rstd: *const fastnorm_tensor,
    /// As in fastnorm_norm_args, and the fields below.
    pub quant_scheme: fastnorm_quant_scheme,
    /// Columns of a block.
    pub quant_block_size: i32,
    /// What is quantised.
    pub quant_source: fastnorm_quant_source,
    /// Order of the scales.
    pub scale_layout: fastnorm_scale_layout,
    /// 1 = scales are powers of two.
    pub scale_pow2: i32,
    /// Least magnitude that a scale is made from.
    pub amax_floor: f32,
    /// \> 0: the clamp.
    pub clamp: f32,
    /// How a code is made.
    pub quant_division: fastnorm_quant_division,
    /// NVFP4's second scale.
    pub global_scale: *const fastnorm_tensor,
    /// Codes. Output.
    pub quantized: *const fastnorm_tensor,
    /// Scales: input for PER_TENSOR, else output.
    pub scale: *const fastnorm_tensor,
    /// Greatest magnitude. In and out.
    pub amax: *const fastnorm_tensor,
    /// The clamp as a value on the device.
    pub clamp_scale: *const fastnorm_tensor,
}

impl fastnorm_peer_allreduce_norm_args {
    /// Everything zero, `struct_size` set: the defaults.
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            peer: core::ptr::null_mut(),
            kind: 0,
            eps: 0.0,
            weight_offset: 0.0,
            rounding: 0,
            residual_rounding: 0,
            sum_rounding: 0,
            flags: 0,
            reserved: 0,
            x: core::ptr::null(),
            residual: core::ptr::null(),
            weight: core::ptr::null(),
            bias: core::ptr::null(),
            y: core::ptr::null(),
            residual_out: core::ptr::null(),
            mean: core::ptr::null(),
            rstd: core::ptr::null(),
            quant_scheme: 0,
            quant_block_size: 0,
            quant_source: 0,
            scale_layout: 0,
            scale_pow2: 0,
            amax_floor: 0.0,
            clamp: 0.0,
            quant_division: 0,
            global_scale: core::ptr::null(),
            quantized: core::ptr::null(),
            scale: core::ptr::null(),
            amax: core::ptr::null(),
            clamp_scale: core::ptr::null(),
        }
    }
}

impl Default for fastnorm_peer_allreduce_norm_args {
    fn default() -> Self {
        Self::new()
    }
}

extern "C" {
    /// Say what a call would do: workspace, kernel, launches, bytes. The peer need not be
    /// connected. bytes_read and bytes_written are those of the norm; what travels between ranks
    /// does not count.
    ///
    /// - `context`: the device
    /// - `args`: as for the call
    /// - `info`: struct_size in; receives the rest
    ///
    /// Returns as fastnorm_peer_allreduce_norm; FASTNORM_ERROR_ARGUMENT also if info is null or its
    /// struct_size too small
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_allreduce_norm_query(
        context: *mut fastnorm_context,
        args: *const fastnorm_peer_allreduce_norm_args,
        info: *mut fastnorm_info,
    ) -> fastnorm_status;

    /// Load what a call needs. Optional: the first call does the same. CUDA: do it on all ranks
    /// before the first call, as a kernel may not be loaded while another one waits. Does not wait
    /// for other ranks.
    ///
    /// - `context`: the device
    /// - `args`: as for the call
    ///
    /// Returns as fastnorm_peer_allreduce_norm
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_allreduce_norm_prepare(
        context: *mut fastnorm_context,
        args: *const fastnorm_peer_allreduce_norm_args,
    ) -> fastnorm_status;

    /// Add up the ranks' x, add the residual, normalise; the formula is at the top of this header.
    /// Every rank calls it. CPU: the work is done when the call returns; it waits for the other
    /// ranks' x. CUDA: kernels are enqueued on the stream, and calls of one peer are ordered by it.
    /// Zero rows are success: nothing is sent, nothing written.
    ///
    /// - `context`: the device
    /// - `args`: read during the call only
    /// - `workspace`: fastnorm_info.workspace_bytes bytes on the device, 256-byte aligned, apart
    ///   from all tensors
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: CUDA: the stream; CPU: NULL
    ///
    /// Returns as fastnorm_norm, and FASTNORM_ERROR_ARGUMENT: a null peer, one of another context,
    /// one that is not connected; CPU: one that runs a call; a rank that makes another call (the
    /// text has both) FASTNORM_ERROR_SHAPE: n above max_columns, or 2^31 rows and more
    /// FASTNORM_ERROR_DTYPE: x of another dtype than the peer's FASTNORM_ERROR_DEVICE: a peer that
    /// was stopped before; CPU: a rank that did not arrive in time
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
/// heads; one exchange serves both. `{0}` plus struct_size, peer, x and y is valid.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fastnorm_peer_sharded_norm_args {
    /// sizeof(fastnorm_peer_sharded_norm_args).
    pub struct_size: usize,
    /// This rank's end, connected, of the same context. Required.
    pub peer: *mut fastnorm_peer,
    /// RMS or LAYER.
    pub kind: fastnorm_norm_kind,
    /// Finite, \>= 0.
    pub eps: f32,
    /// As in fastnorm_norm_args; 0 where a part has no weight.
    pub weight_offset: f32,
    /// ONCE or NORMALIZED.
    pub rounding: fastnorm_rounding,
    /// fastnorm_norm_flags; 0.
    pub flags: u32,
    /// Must be 0.
    pub reserved: i32,
    /// \[tokens, n\] or \[tokens, heads, d\] with n = heads \* d; d at most 8192; f32, f16 or bf16.
    /// The same n on all ranks. Required.
    pub x: *const fastnorm_tensor,
    /// \[n\], or \[d\] or \[heads, d\]; f32, f16 or bf16. NULL = 1.
    pub weight: *const fastnorm_tensor,
    /// As weight. NULL = 0.
    pub bias: *const fastnorm_tensor,
    /// x's shape and dtype. Output; may be x. Required.
    pub y: *const fastnorm_tensor,
    /// The second part: x's tokens and dtype. NULL = one part.
    pub x2: *const fastnorm_tensor,
    /// As weight, of x2.
    pub weight2: *const fastnorm_tensor,
    /// As bias, of x2.
    pub bias2: *const fastnorm_tensor,
    /// As y, of x2. Required with x2.
    pub y2: *const fastnorm_tensor,
}

impl fastnorm_peer_sharded_norm_args {
    /// Everything zero, `struct_size` set: the defaults.
    pub const fn new() -> Self {
        Self {
            struct_size: size_of::<Self>(),
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
    /// Say what a call would do, as fastnorm_peer_allreduce_norm_query.
    ///
    /// - `context`: the device
    /// - `args`: as for the call
    /// - `info`: struct_size in; receives the rest
    ///
    /// Returns as fastnorm_peer_sharded_norm; FASTNORM_ERROR_ARGUMENT also if info is null or its
    /// struct_size too small
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_sharded_norm_query(
        context: *mut fastnorm_context,
        args: *const fastnorm_peer_sharded_norm_args,
        info: *mut fastnorm_info,
    ) -> fastnorm_status;

    /// Load what a call needs. Optional. Does not wait for other ranks.
    ///
    /// - `context`: the device
    /// - `args`: as for the call
    ///
    /// Returns as fastnorm_peer_sharded_norm
    ///
    /// Since 0.2.
    pub fn fastnorm_peer_sharded_norm_prepare(
        context: *mut fastnorm_context,
        args: *const fastnorm_peer_sharded_norm_args,
    ) -> fastnorm_status;

    /// Normalise rows whose columns are spread over the ranks; the formula is at the top of this
    /// header. Every rank calls it.
    ///
    /// - `context`: the device
    /// - `args`: read during the call only
    /// - `workspace`: fastnorm_info.workspace_bytes bytes, as fastnorm_peer_allreduce_norm
    /// - `workspace_bytes`: size of workspace
    /// - `stream`: CUDA: the stream; CPU: NULL
    ///
    /// Returns as fastnorm_peer_allreduce_norm; texts on overlap name the parts parts\[0\] and
    /// parts\[1\]
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
    assert!(size_of::<fastnorm_norm_args>() == 352);
    assert!(offset_of!(fastnorm_norm_args, struct_size) == 0);
    assert!(offset_of!(fastnorm_norm_args, kind) == 8);
    assert!(offset_of!(fastnorm_norm_args, eps) == 12);
    assert!(offset_of!(fastnorm_norm_args, weight_offset) == 16);
    assert!(offset_of!(fastnorm_norm_args, rounding) == 20);
    assert!(offset_of!(fastnorm_norm_args, residual_rounding) == 24);
    assert!(offset_of!(fastnorm_norm_args, flags) == 28);
    assert!(offset_of!(fastnorm_norm_args, x) == 32);
    assert!(offset_of!(fastnorm_norm_args, residual) == 40);
    assert!(offset_of!(fastnorm_norm_args, weight) == 48);
    assert!(offset_of!(fastnorm_norm_args, bias) == 56);
    assert!(offset_of!(fastnorm_norm_args, y) == 64);
    assert!(offset_of!(fastnorm_norm_args, residual_out) == 72);
    assert!(offset_of!(fastnorm_norm_args, mean) == 80);
    assert!(offset_of!(fastnorm_norm_args, rstd) == 88);
    assert!(offset_of!(fastnorm_norm_args, quant_scheme) == 96);
    assert!(offset_of!(fastnorm_norm_args, quant_block_size) == 100);
    assert!(offset_of!(fastnorm_norm_args, quant_source) == 104);
    assert!(offset_of!(fastnorm_norm_args, scale_layout) == 108);
    assert!(offset_of!(fastnorm_norm_args, scale_pow2) == 112);
    assert!(offset_of!(fastnorm_norm_args, amax_floor) == 116);
    assert!(offset_of!(fastnorm_norm_args, clamp) == 120);
    assert!(offset_of!(fastnorm_norm_args, quant_division) == 124);
    assert!(offset_of!(fastnorm_norm_args, global_scale) == 128);
    assert!(offset_of!(fastnorm_norm_args, quantized) == 136);
    assert!(offset_of!(fastnorm_norm_args, scale) == 144);
    assert!(offset_of!(fastnorm_norm_args, amax) == 152);
    assert!(offset_of!(fastnorm_norm_args, clamp_scale) == 160);
    assert!(offset_of!(fastnorm_norm_args, gate) == 168);
    assert!(offset_of!(fastnorm_norm_args, gate_act) == 176);
    assert!(offset_of!(fastnorm_norm_args, gate_position) == 180);
    assert!(offset_of!(fastnorm_norm_args, gate_source) == 184);
    assert!(offset_of!(fastnorm_norm_args, activation) == 188);
    assert!(offset_of!(fastnorm_norm_args, group_size) == 192);
    assert!(offset_of!(fastnorm_norm_args, sumsq) == 200);
    assert!(offset_of!(fastnorm_norm_args, mean_in) == 208);
    assert!(offset_of!(fastnorm_norm_args, rstd_in) == 216);
    assert!(offset_of!(fastnorm_norm_args, branch_norm) == 224);
    assert!(offset_of!(fastnorm_norm_args, branch_kind) == 228);
    assert!(offset_of!(fastnorm_norm_args, branch_eps) == 232);
    assert!(offset_of!(fastnorm_norm_args, branch_weight_offset) == 236);
    assert!(offset_of!(fastnorm_norm_args, branch_rounding) == 240);
    assert!(offset_of!(fastnorm_norm_args, branch_rounded) == 244);
    assert!(offset_of!(fastnorm_norm_args, alpha) == 248);
    assert!(offset_of!(fastnorm_norm_args, sum_rounding) == 252);
    assert!(offset_of!(fastnorm_norm_args, branch_weight) == 256);
    assert!(offset_of!(fastnorm_norm_args, branch_bias) == 264);
    assert!(offset_of!(fastnorm_norm_args, branch_rstd) == 272);
    assert!(offset_of!(fastnorm_norm_args, sum_scale) == 280);
    assert!(offset_of!(fastnorm_norm_args, residual_gate) == 288);
    assert!(offset_of!(fastnorm_norm_args, residual_gate_table) == 296);
    assert!(offset_of!(fastnorm_norm_args, residual_gate_act) == 304);
    assert!(offset_of!(fastnorm_norm_args, modulation_rounding) == 308);
    assert!(offset_of!(fastnorm_norm_args, modulation_scale) == 312);
    assert!(offset_of!(fastnorm_norm_args, scale_table) == 320);
    assert!(offset_of!(fastnorm_norm_args, modulation_shift) == 328);
    assert!(offset_of!(fastnorm_norm_args, shift_table) == 336);
    assert!(offset_of!(fastnorm_norm_args, modulation_index) == 344);
    assert!(size_of::<fastnorm_norm_backward_args>() == 280);
    assert!(offset_of!(fastnorm_norm_backward_args, struct_size) == 0);
    assert!(offset_of!(fastnorm_norm_backward_args, kind) == 8);
    assert!(offset_of!(fastnorm_norm_backward_args, eps) == 12);
    assert!(offset_of!(fastnorm_norm_backward_args, weight_offset) == 16);
    assert!(offset_of!(fastnorm_norm_backward_args, rounding) == 20);
    assert!(offset_of!(fastnorm_norm_backward_args, flags) == 24);
    assert!(offset_of!(fastnorm_norm_backward_args, reserved) == 28);
    assert!(offset_of!(fastnorm_norm_backward_args, dy) == 32);
    assert!(offset_of!(fastnorm_norm_backward_args, x) == 40);
    assert!(offset_of!(fastnorm_norm_backward_args, weight) == 48);
    assert!(offset_of!(fastnorm_norm_backward_args, mean) == 56);
    assert!(offset_of!(fastnorm_norm_backward_args, rstd) == 64);
    assert!(offset_of!(fastnorm_norm_backward_args, dresidual_in) == 72);
    assert!(offset_of!(fastnorm_norm_backward_args, dx) == 80);
    assert!(offset_of!(fastnorm_norm_backward_args, dresidual) == 88);
    assert!(offset_of!(fastnorm_norm_backward_args, dweight) == 96);
    assert!(offset_of!(fastnorm_norm_backward_args, dbias) == 104);
    assert!(offset_of!(fastnorm_norm_backward_args, gate) == 112);
    assert!(offset_of!(fastnorm_norm_backward_args, bias) == 120);
    assert!(offset_of!(fastnorm_norm_backward_args, dgate) == 128);
    assert!(offset_of!(fastnorm_norm_backward_args, gate_act) == 136);
    assert!(offset_of!(fastnorm_norm_backward_args, gate_position) == 140);
    assert!(offset_of!(fastnorm_norm_backward_args, gate_source) == 144);
    assert!(offset_of!(fastnorm_norm_backward_args, stage_reserved) == 148);
    assert!(offset_of!(fastnorm_norm_backward_args, group_size) == 152);
    assert!(offset_of!(fastnorm_norm_backward_args, branch) == 160);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_weight) == 168);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_bias) == 176);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_mean) == 184);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_rstd) == 192);
    assert!(offset_of!(fastnorm_norm_backward_args, residual_gate) == 200);
    assert!(offset_of!(fastnorm_norm_backward_args, sum_scale) == 208);
    assert!(offset_of!(fastnorm_norm_backward_args, dbranch) == 216);
    assert!(offset_of!(fastnorm_norm_backward_args, dbranch_weight) == 224);
    assert!(offset_of!(fastnorm_norm_backward_args, dbranch_bias) == 232);
    assert!(offset_of!(fastnorm_norm_backward_args, dresidual_gate) == 240);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_kind) == 248);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_eps) == 252);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_weight_offset) == 256);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_rounding) == 260);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_norm) == 264);
    assert!(offset_of!(fastnorm_norm_backward_args, branch_rounded) == 268);
    assert!(offset_of!(fastnorm_norm_backward_args, residual_gate_act) == 272);
    assert!(offset_of!(fastnorm_norm_backward_args, alpha) == 276);
    assert!(size_of::<fastnorm_mla_decode_args>() == 136);
    assert!(offset_of!(fastnorm_mla_decode_args, struct_size) == 0);
    assert!(offset_of!(fastnorm_mla_decode_args, sm_scale) == 8);
    assert!(offset_of!(fastnorm_mla_decode_args, causal) == 16);
    assert!(offset_of!(fastnorm_mla_decode_args, lse_base) == 20);
    assert!(offset_of!(fastnorm_mla_decode_args, max_s_q) == 24);
    assert!(offset_of!(fastnorm_mla_decode_args, reuse_plan) == 28);
    assert!(offset_of!(fastnorm_mla_decode_args, split_tokens) == 32);
    assert!(offset_of!(fastnorm_mla_decode_args, profile_events) == 36);
    assert!(offset_of!(fastnorm_mla_decode_args, total_kv_hint) == 40);
    assert!(offset_of!(fastnorm_mla_decode_args, q_nope) == 48);
    assert!(offset_of!(fastnorm_mla_decode_args, q_pe) == 56);
    assert!(offset_of!(fastnorm_mla_decode_args, ckv) == 64);
    assert!(offset_of!(fastnorm_mla_decode_args, kpe) == 72);
    assert!(offset_of!(fastnorm_mla_decode_args, kv_len) == 80);
    assert!(offset_of!(fastnorm_mla_decode_args, page_table) == 88);
    assert!(offset_of!(fastnorm_mla_decode_args, kv_indptr) == 96);
    assert!(offset_of!(fastnorm_mla_decode_args, qo_indptr) == 104);
    assert!(offset_of!(fastnorm_mla_decode_args, o) == 112);
    assert!(offset_of!(fastnorm_mla_decode_args, lse) == 120);
    assert!(offset_of!(fastnorm_mla_decode_args, profile) == 128);
    assert!(size_of::<fastnorm_profile_event>() == 40);
    assert!(offset_of!(fastnorm_profile_event, time_ns) == 0);
    assert!(offset_of!(fastnorm_profile_event, cycle) == 8);
    assert!(offset_of!(fastnorm_profile_event, block) == 16);
    assert!(offset_of!(fastnorm_profile_event, multiprocessor) == 20);
    assert!(offset_of!(fastnorm_profile_event, group) == 24);
    assert!(offset_of!(fastnorm_profile_event, id) == 28);
    assert!(offset_of!(fastnorm_profile_event, kind) == 32);
    assert!(offset_of!(fastnorm_profile_event, value) == 36);
    assert!(size_of::<fastnorm_norm_heads_part>() == 216);
    assert!(offset_of!(fastnorm_norm_heads_part, struct_size) == 0);
    assert!(offset_of!(fastnorm_norm_heads_part, flags) == 8);
    assert!(offset_of!(fastnorm_norm_heads_part, kind) == 12);
    assert!(offset_of!(fastnorm_norm_heads_part, eps) == 16);
    assert!(offset_of!(fastnorm_norm_heads_part, weight_offset) == 20);
    assert!(offset_of!(fastnorm_norm_heads_part, rounding) == 24);
    assert!(offset_of!(fastnorm_norm_heads_part, rope_rounding) == 28);
    assert!(offset_of!(fastnorm_norm_heads_part, rope_offset) == 32);
    assert!(offset_of!(fastnorm_norm_heads_part, reserved) == 36);
    assert!(offset_of!(fastnorm_norm_heads_part, x) == 40);
    assert!(offset_of!(fastnorm_norm_heads_part, weight) == 48);
    assert!(offset_of!(fastnorm_norm_heads_part, bias) == 56);
    assert!(offset_of!(fastnorm_norm_heads_part, y) == 64);
    assert!(offset_of!(fastnorm_norm_heads_part, mean) == 72);
    assert!(offset_of!(fastnorm_norm_heads_part, rstd) == 80);
    assert!(offset_of!(fastnorm_norm_heads_part, mean_in) == 88);
    assert!(offset_of!(fastnorm_norm_heads_part, rstd_in) == 96);
    assert!(offset_of!(fastnorm_norm_heads_part, sumsq) == 104);
    assert!(offset_of!(fastnorm_norm_heads_part, quant_scheme) == 112);
    assert!(offset_of!(fastnorm_norm_heads_part, quant_block_size) == 116);
    assert!(offset_of!(fastnorm_norm_heads_part, quant_source) == 120);
    assert!(offset_of!(fastnorm_norm_heads_part, scale_layout) == 124);
    assert!(offset_of!(fastnorm_norm_heads_part, scale_pow2) == 128);
    assert!(offset_of!(fastnorm_norm_heads_part, amax_floor) == 132);
    assert!(offset_of!(fastnorm_norm_heads_part, clamp) == 136);
    assert!(offset_of!(fastnorm_norm_heads_part, cache_scheme) == 140);
    assert!(offset_of!(fastnorm_norm_heads_part, cache_block_size) == 144);
    assert!(offset_of!(fastnorm_norm_heads_part, cache_pow2) == 148);
    assert!(offset_of!(fastnorm_norm_heads_part, global_scale) == 152);
    assert!(offset_of!(fastnorm_norm_heads_part, quantized) == 160);
    assert!(offset_of!(fastnorm_norm_heads_part, scale) == 168);
    assert!(offset_of!(fastnorm_norm_heads_part, amax) == 176);
    assert!(offset_of!(fastnorm_norm_heads_part, cache) == 184);
    assert!(offset_of!(fastnorm_norm_heads_part, cache_scale) == 192);
    assert!(offset_of!(fastnorm_norm_heads_part, quant_division) == 200);
    assert!(offset_of!(fastnorm_norm_heads_part, reserved_2) == 204);
    assert!(offset_of!(fastnorm_norm_heads_part, clamp_scale) == 208);
    assert!(size_of::<fastnorm_norm_heads_args>() == 64);
    assert!(offset_of!(fastnorm_norm_heads_args, struct_size) == 0);
    assert!(offset_of!(fastnorm_norm_heads_args, flags) == 8);
    assert!(offset_of!(fastnorm_norm_heads_args, rope_dim) == 12);
    assert!(offset_of!(fastnorm_norm_heads_args, mrope_0) == 16);
    assert!(offset_of!(fastnorm_norm_heads_args, mrope_1) == 20);
    assert!(offset_of!(fastnorm_norm_heads_args, mrope_2) == 24);
    assert!(offset_of!(fastnorm_norm_heads_args, mrope_3) == 28);
    assert!(offset_of!(fastnorm_norm_heads_args, cos) == 32);
    assert!(offset_of!(fastnorm_norm_heads_args, sin) == 40);
    assert!(offset_of!(fastnorm_norm_heads_args, positions) == 48);
    assert!(offset_of!(fastnorm_norm_heads_args, slots) == 56);
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
    assert!(size_of::<fastnorm_peer_allreduce_norm_args>() == 184);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, struct_size) == 0);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, peer) == 8);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, kind) == 16);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, eps) == 20);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, weight_offset) == 24);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, rounding) == 28);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, residual_rounding) == 32);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, sum_rounding) == 36);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, flags) == 40);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, reserved) == 44);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, x) == 48);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, residual) == 56);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, weight) == 64);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, bias) == 72);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, y) == 80);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, residual_out) == 88);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, mean) == 96);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, rstd) == 104);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, quant_scheme) == 112);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, quant_block_size) == 116);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, quant_source) == 120);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, scale_layout) == 124);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, scale_pow2) == 128);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, amax_floor) == 132);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, clamp) == 136);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, quant_division) == 140);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, global_scale) == 144);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, quantized) == 152);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, scale) == 160);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, amax) == 168);
    assert!(offset_of!(fastnorm_peer_allreduce_norm_args, clamp_scale) == 176);
    assert!(size_of::<fastnorm_peer_sharded_norm_args>() == 104);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, struct_size) == 0);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, peer) == 8);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, kind) == 16);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, eps) == 20);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, weight_offset) == 24);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, rounding) == 28);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, flags) == 32);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, reserved) == 36);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, x) == 40);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, weight) == 48);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, bias) == 56);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, y) == 64);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, x2) == 72);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, weight2) == 80);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, bias2) == 88);
    assert!(offset_of!(fastnorm_peer_sharded_norm_args, y2) == 96);
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
