# Generated from the public headers by bindings/swig/generate.py; do not edit.
"""The public headers for ctypes. Names are those of C without fastnorm_: NormArgs is
fastnorm_norm_args, Rounding.ONCE is FASTNORM_ROUND_ONCE. fastnorm.abi has what a program needs."""

import ctypes
from ctypes import (
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint16,
    c_uint32,
    c_uint64,
    c_uint8,
    c_void_p,
)


class Status:
    """fastnorm_status: Result of a call."""

    OK = 0
    ERROR_ARGUMENT = 10
    ERROR_SHAPE = 20
    ERROR_DTYPE = 30
    ERROR_LAYOUT = 40
    ERROR_UNSUPPORTED = 50
    ERROR_DEVICE = 60
    ERROR_OUT_OF_MEMORY = 70
    ERROR_INTERNAL = 80


class DeviceType:
    """fastnorm_device_type: Where memory lives."""

    CPU = 1
    CUDA = 2
    CUDA_HOST = 3
    CUDA_MANAGED = 13


class DtypeId:
    """fastnorm_dtype_id: The dtypes of this library, each as one number: code | bits << 8 |
    lanes << 16."""

    F32 = 73730
    F16 = 69634
    BF16 = 69636
    F8_E4M3FN = 67594
    F8_E5M2 = 67596
    F8_E8M0FNU = 67598
    F4_E2M1FN = 66577
    F4_E2M1FN_X2 = 132113
    I8 = 67584
    U8 = 67585
    I32 = 73728
    I64 = 81920


class LogLevel:
    """fastnorm_log_level: Severity of a log message."""

    ERROR = 0
    WARNING = 1
    INFO = 2
    DEBUG = 3


class ContextFlags:
    """fastnorm_context_flags: Bits of fastnorm_context_options.flags."""

    DRY_RUN = 1
    NO_PDL = 2


class NormKind:
    """fastnorm_norm_kind: Which statistic normalises a row."""

    RMS = 0
    LAYER = 1


class Rounding:
    """fastnorm_rounding: Where y is rounded to x's dtype T while it is computed."""

    ONCE = 0
    NORMALIZED = 1
    EVERY_STEP = 2
    ONCE_RW = 3


class ResidualRounding:
    """fastnorm_residual_rounding: Which value of the sum x + residual is normalised."""

    EXACT = 0
    ROUND_BEFORE_APPLY = 1
    ROUND_BEFORE_STATISTICS = 2


class QuantScheme:
    """fastnorm_quant_scheme: How fastnorm_quant.quantized is scaled."""

    NONE = 0
    PER_TENSOR = 1
    PER_ROW = 2
    PER_BLOCK = 3
    MXFP8 = 4
    NVFP4 = 5
    MXFP4 = 6


class QuantSource:
    """fastnorm_quant_source: Which value is quantised."""

    F32 = 0
    ROUNDED = 1


class QuantDivision:
    """fastnorm_quant_division: How PER_TENSOR, PER_ROW and PER_BLOCK compute a code from z and
    its scale."""

    MULTIPLY_RECIPROCAL = 0
    DIVIDE = 1


class ScaleLayout:
    """fastnorm_scale_layout: The order of the scales of blocks in memory."""

    ROW_MAJOR = 0
    COLUMN_MAJOR = 1
    SWIZZLED_128X4 = 2


class Activation:
    """fastnorm_activation: A function that is applied to each element."""

    IDENTITY = 0
    SILU = 1
    SIGMOID = 2
    TANH = 3


class GatePosition:
    """fastnorm_gate_position: Which row the gate multiplies."""

    AFTER_NORM = 0
    BEFORE_NORM = 1


class GateSource:
    """fastnorm_gate_source: Which value a gate after the norm multiplies."""

    F32 = 0
    ROUNDED = 1


class SumRounding:
    """fastnorm_sum_rounding: Where the sum of branch and residual is rounded to x's dtype T
    while it is computed."""

    ONCE = 0
    EVERY_STEP = 1


class ModulationRounding:
    """fastnorm_modulation_rounding: Where the modulation is rounded to x's dtype T while it is
    computed."""

    ONCE = 0
    EVERY_STEP = 1


class NormFlags:
    """fastnorm_norm_flags: Bits of fastnorm_norm_args.flags."""

    PDL_WAIT = 1
    PDL_TRIGGER = 2
    PDL_CONSTANT_WEIGHTS = 4
    MODULATION_PLAIN_SCALE = 8
    ALPHA = 16
    NO_PDL = 512


class NormBackwardFlags:
    """fastnorm_norm_backward_flags: Bits of fastnorm_norm_backward_args.flags."""

    PDL_WAIT = 1
    PDL_TRIGGER = 2
    ACCUMULATE_DWEIGHT = 8
    ACCUMULATE_DBIAS = 16
    ACCUMULATE_DBRANCH_WEIGHT = 32
    ACCUMULATE_DBRANCH_BIAS = 64
    ACCUMULATE_DRESIDUAL_GATE = 128
    ALPHA = 256
    NO_PDL = 512


class LseBase:
    """fastnorm_lse_base: The base of the logarithm in which lse is given."""

    NATURAL = 0
    BASE_2 = 1


class MlaCacheFormat:
    """fastnorm_mla_cache_format: How the rows of the cache are stored."""

    ROWS = 0
    BYTES_656 = 1
    BYTES_576 = 2
    BYTES_584 = 3


class MlaDecodeFlags:
    """fastnorm_mla_decode_flags: Bits of fastnorm_mla_decode_args.flags."""

    NO_PDL = 512


class ProfileId:
    """fastnorm_profile_id: What an event of a profile records."""

    WORK = 0
    LOAD_Q = 1
    LOAD_KV = 2
    QK = 3
    SOFTMAX = 4
    RESCALE = 5
    WRITE_P = 6
    PV = 7
    WRITE_O = 8
    MERGE = 9
    WAIT_Q = 10
    WAIT_KV = 11
    WAIT_FREE = 12
    WAIT_SCALE_0 = 13
    WAIT_SCALE_1 = 14
    WAIT_P_0 = 15
    WAIT_P_1 = 16
    WAIT_PLAN = 17


class ProfileKind:
    """fastnorm_profile_kind: Whether an event begins a span, ends one, or is a point in time."""

    BEGIN = 0
    END = 1
    INSTANT = 2


class TraceFormat:
    """fastnorm_trace_format: Format of the files that fastnorm_profile_write_trace writes."""

    CHROME_JSON = 0


class NormHeadsPartFlags:
    """fastnorm_norm_heads_part_flags: Bits of fastnorm_norm_heads_part.flags."""

    NORM = 1
    ROPE = 2
    ROPE_INTERLEAVED = 4
    ROPE_INVERSE = 8
    ROPE_FROM_ROUNDED = 16
    ACROSS_HEADS = 32


class NormHeadsFlags:
    """fastnorm_norm_heads_flags: Bits of fastnorm_norm_heads_args.flags."""

    MROPE_INTERLEAVED = 8
    NO_PDL = 512


class RopeRounding:
    """fastnorm_rope_rounding: Where rope rounds to x's dtype T while it is computed."""

    ONCE = 0
    EVERY_STEP = 1


class NormHeadsBackwardFlags:
    """fastnorm_norm_heads_backward_flags: Bits of fastnorm_norm_heads_backward_part.flags, in
    addition to fastnorm_norm_heads_part_flags."""

    ACCUMULATE_DWEIGHT = 64
    ACCUMULATE_DBIAS = 128


class PeerAlgorithm:
    """fastnorm_peer_algorithm: How rows travel between the ranks."""

    AUTO = 0
    ONE_SHOT = 1
    TWO_SHOT = 2


class PeerSumRounding:
    """fastnorm_peer_sum_rounding: Which value of the sum of the ranks' rows is normalised."""

    ROUNDED = 0
    EXACT = 1


class PeerError:
    """fastnorm_peer_error: What stopped a peer."""

    NONE = 0
    MISSING = 1
    DISAGREES = 2


class PeerLimits:
    """fastnorm_peer_limits: Limits of a group."""

    MAX_RANKS = 8
    BLOB_BYTES = 128


class Device(ctypes.Structure):
    """fastnorm_device: A device: its type, and which device of that type."""

    _fields_ = [
        ("device_type", c_int32),
        ("device_id", c_int32),
    ]


class Dtype(ctypes.Structure):
    """fastnorm_dtype: Element type, as DLDataType of DLPack describes it: the kind of number,
    its bits, and how many numbers form an element."""

    _fields_ = [
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
    ]


class Tensor(ctypes.Structure):
    """fastnorm_tensor: A view of memory."""

    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("dtype", Dtype),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


TensorPointer = POINTER(Tensor)


class ContextOptions(ctypes.Structure):
    """fastnorm_context_options: Options of a context."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("log", c_void_p),
        ("log_user", c_void_p),
        ("parallel_for", c_void_p),
        ("parallel_user", c_void_p),
        ("num_threads", c_int32),
        ("flags", c_uint32),
        ("dry_run_capability", c_int32),
        ("reserved", c_int32),
        ("tuning_file", c_char_p),
    ]


class DeviceInfo(ctypes.Structure):
    """fastnorm_device_info: Properties of a device."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char * 128),
        ("capability", c_int32),
        ("multiprocessors", c_int32),
        ("l2_bytes", c_uint64),
        ("memory_bytes", c_uint64),
        ("driver_version", c_int32),
        ("runtime_version", c_int32),
        ("kernel_arch", c_char_p),
    ]


class Info(ctypes.Structure):
    """fastnorm_info: What a call would do, filled in by the `_query` functions."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("workspace_bytes", c_uint64),
        ("bytes_read", c_uint64),
        ("bytes_written", c_uint64),
        ("kernel", c_char_p),
        ("launches", c_int32),
        ("threads_per_row", c_int32),
        ("vectors_per_thread", c_int32),
        ("rows_per_block", c_int32),
        ("blocks_per_row", c_int32),
        ("vector_bytes", c_int32),
        ("blocks", c_uint64),
        ("profile_bytes", c_uint64),
        ("kind", c_char_p),
        ("choice", c_char_p),
        ("variant", c_char_p),
    ]


class KernelInfo(ctypes.Structure):
    """fastnorm_kernel_info: One kernel of this build."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("family", c_char_p),
        ("arch", c_char_p),
        ("name", c_char_p),
    ]


class Quant(ctypes.Structure):
    """fastnorm_quant: How results are quantised, and where codes and scales are stored."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("scheme", c_int32),
        ("block_size", c_int32),
        ("source", c_int32),
        ("division", c_int32),
        ("scale_layout", c_int32),
        ("scale_pow2", c_int32),
        ("amax_floor", c_float),
        ("clamp", c_float),
        ("quantized", TensorPointer),
        ("scale", TensorPointer),
        ("global_scale", TensorPointer),
        ("clamp_scale", TensorPointer),
        ("amax", TensorPointer),
        ("rotation", c_int32),
        ("y_rotated", c_int32),
        ("rotation_signs", TensorPointer),
    ]


class NormArgs(ctypes.Structure):
    """fastnorm_norm_args: One normalisation."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("parallel_user", c_void_p),
        ("kind", c_int32),
        ("eps", c_float),
        ("weight_offset", c_float),
        ("rounding", c_int32),
        ("residual_rounding", c_int32),
        ("flags", c_uint32),
        ("x", TensorPointer),
        ("residual", TensorPointer),
        ("weight", TensorPointer),
        ("bias", TensorPointer),
        ("y", TensorPointer),
        ("residual_out", TensorPointer),
        ("mean", TensorPointer),
        ("rstd", TensorPointer),
        ("quant", POINTER(Quant)),
        ("gate", TensorPointer),
        ("gate_act", c_int32),
        ("gate_position", c_int32),
        ("gate_source", c_int32),
        ("activation", c_int32),
        ("group_size", c_int64),
        ("sumsq", TensorPointer),
        ("mean_in", TensorPointer),
        ("rstd_in", TensorPointer),
        ("branch_norm", c_int32),
        ("branch_kind", c_int32),
        ("branch_eps", c_float),
        ("branch_weight_offset", c_float),
        ("branch_rounding", c_int32),
        ("branch_rounded", c_int32),
        ("alpha", c_float),
        ("sum_rounding", c_int32),
        ("branch_weight", TensorPointer),
        ("branch_bias", TensorPointer),
        ("branch_rstd", TensorPointer),
        ("sum_scale", TensorPointer),
        ("residual_gate", TensorPointer),
        ("residual_gate_table", TensorPointer),
        ("residual_gate_act", c_int32),
        ("modulation_rounding", c_int32),
        ("modulation_scale", TensorPointer),
        ("scale_table", TensorPointer),
        ("modulation_shift", TensorPointer),
        ("shift_table", TensorPointer),
        ("modulation_index", TensorPointer),
    ]


class NormBackwardArgs(ctypes.Structure):
    """fastnorm_norm_backward_args: One backward pass."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("parallel_user", c_void_p),
        ("kind", c_int32),
        ("eps", c_float),
        ("weight_offset", c_float),
        ("rounding", c_int32),
        ("flags", c_uint32),
        ("reserved", c_int32),
        ("dy", TensorPointer),
        ("x", TensorPointer),
        ("weight", TensorPointer),
        ("mean", TensorPointer),
        ("rstd", TensorPointer),
        ("dresidual_in", TensorPointer),
        ("dx", TensorPointer),
        ("dresidual", TensorPointer),
        ("dweight", TensorPointer),
        ("dbias", TensorPointer),
        ("gate", TensorPointer),
        ("bias", TensorPointer),
        ("dgate", TensorPointer),
        ("gate_act", c_int32),
        ("gate_position", c_int32),
        ("gate_source", c_int32),
        ("stage_reserved", c_int32),
        ("group_size", c_int64),
        ("branch", TensorPointer),
        ("branch_weight", TensorPointer),
        ("branch_bias", TensorPointer),
        ("branch_mean", TensorPointer),
        ("branch_rstd", TensorPointer),
        ("residual_gate", TensorPointer),
        ("sum_scale", TensorPointer),
        ("dbranch", TensorPointer),
        ("dbranch_weight", TensorPointer),
        ("dbranch_bias", TensorPointer),
        ("dresidual_gate", TensorPointer),
        ("branch_kind", c_int32),
        ("branch_eps", c_float),
        ("branch_weight_offset", c_float),
        ("branch_rounding", c_int32),
        ("branch_norm", c_int32),
        ("branch_rounded", c_int32),
        ("residual_gate_act", c_int32),
        ("alpha", c_float),
    ]


class MlaDecodeArgs(ctypes.Structure):
    """fastnorm_mla_decode_args: One attention call."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("parallel_user", c_void_p),
        ("sm_scale", c_double),
        ("causal", c_int32),
        ("lse_base", c_int32),
        ("max_s_q", c_int32),
        ("reuse_plan", c_int32),
        ("split_tokens", c_int32),
        ("profile_events", c_int32),
        ("total_kv_hint", c_int64),
        ("q_nope", TensorPointer),
        ("q_pe", TensorPointer),
        ("ckv", TensorPointer),
        ("kpe", TensorPointer),
        ("kv_len", TensorPointer),
        ("page_table", TensorPointer),
        ("kv_indptr", TensorPointer),
        ("qo_indptr", TensorPointer),
        ("o", TensorPointer),
        ("lse", TensorPointer),
        ("profile", TensorPointer),
        ("flags", c_uint32),
        ("cache_format", c_int32),
        ("cache", TensorPointer),
        ("cache_scale", TensorPointer),
        ("indices", TensorPointer),
        ("topk_length", TensorPointer),
        ("attention_sink", TensorPointer),
        ("extra_ckv", TensorPointer),
        ("extra_kpe", TensorPointer),
        ("extra_cache", TensorPointer),
        ("extra_indices", TensorPointer),
        ("extra_topk_length", TensorPointer),
    ]


class ProfileEvent(ctypes.Structure):
    """fastnorm_profile_event: One event of a profile."""

    _fields_ = [
        ("time_ns", c_uint64),
        ("cycle", c_uint64),
        ("block", c_int32),
        ("multiprocessor", c_int32),
        ("group", c_int32),
        ("id", c_int32),
        ("kind", c_int32),
        ("value", c_int32),
    ]


class NormHeadsPart(ctypes.Structure):
    """fastnorm_norm_heads_part: One part."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint32),
        ("kind", c_int32),
        ("eps", c_float),
        ("weight_offset", c_float),
        ("rounding", c_int32),
        ("rope_rounding", c_int32),
        ("rope_offset", c_int32),
        ("head_weights_factor", c_float),
        ("x", TensorPointer),
        ("weight", TensorPointer),
        ("bias", TensorPointer),
        ("y", TensorPointer),
        ("mean", TensorPointer),
        ("rstd", TensorPointer),
        ("mean_in", TensorPointer),
        ("rstd_in", TensorPointer),
        ("sumsq", TensorPointer),
        ("quant", POINTER(Quant)),
        ("cache", TensorPointer),
        ("cache_quant", POINTER(Quant)),
        ("head_weights", TensorPointer),
        ("head_weights_out", TensorPointer),
        ("cache_tail", TensorPointer),
    ]


class NormHeadsArgs(ctypes.Structure):
    """fastnorm_norm_heads_args: What all parts of a call share."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("parallel_user", c_void_p),
        ("flags", c_uint32),
        ("rope_dim", c_int32),
        ("mrope_0", c_int32),
        ("mrope_1", c_int32),
        ("mrope_2", c_int32),
        ("mrope_3", c_int32),
        ("cos", TensorPointer),
        ("sin", TensorPointer),
        ("positions", TensorPointer),
        ("slots", TensorPointer),
    ]


class NormHeadsBackwardPart(ctypes.Structure):
    """fastnorm_norm_heads_backward_part: One part."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint32),
        ("kind", c_int32),
        ("eps", c_float),
        ("weight_offset", c_float),
        ("rounding", c_int32),
        ("rope_offset", c_int32),
        ("dy", TensorPointer),
        ("x", TensorPointer),
        ("weight", TensorPointer),
        ("mean", TensorPointer),
        ("rstd", TensorPointer),
        ("dx", TensorPointer),
        ("dweight", TensorPointer),
        ("dbias", TensorPointer),
    ]


class PeerOptions(ctypes.Structure):
    """fastnorm_peer_options: Options of a peer."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("ranks", c_int32),
        ("dtype", c_int32),
        ("algorithm", c_int32),
        ("max_columns", c_int64),
        ("one_shot_bytes", c_int64),
        ("wait_ns", c_int64),
        ("rings", c_int32),
        ("reserved", c_int32),
    ]


class PeerState(ctypes.Structure):
    """fastnorm_peer_state: The state of a peer."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("error", c_int32),
        ("rank", c_int32),
        ("calls", c_uint64),
        ("connected", c_int32),
        ("reserved", c_int32),
    ]


class PeerAllreduceNormArgs(ctypes.Structure):
    """fastnorm_peer_allreduce_norm_args: An all-reduce and one normalisation."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("parallel_user", c_void_p),
        ("peer", c_void_p),
        ("norm", POINTER(NormArgs)),
        ("sum_rounding", c_int32),
        ("reserved", c_int32),
    ]


class PeerShardedNormArgs(ctypes.Structure):
    """fastnorm_peer_sharded_norm_args: Normalisation of one or two parts whose columns are
    spread over the ranks, such as query and key heads."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("parallel_user", c_void_p),
        ("peer", c_void_p),
        ("kind", c_int32),
        ("eps", c_float),
        ("weight_offset", c_float),
        ("rounding", c_int32),
        ("flags", c_uint32),
        ("reserved", c_int32),
        ("x", TensorPointer),
        ("weight", TensorPointer),
        ("bias", TensorPointer),
        ("y", TensorPointer),
        ("x2", TensorPointer),
        ("weight2", TensorPointer),
        ("bias2", TensorPointer),
        ("y2", TensorPointer),
    ]


F32 = Dtype(2, 32, 1)
F16 = Dtype(2, 16, 1)
BF16 = Dtype(4, 16, 1)
F8_E4M3FN = Dtype(10, 8, 1)
F8_E5M2 = Dtype(12, 8, 1)
F8_E8M0FNU = Dtype(14, 8, 1)
F4_E2M1FN = Dtype(17, 4, 1)
F4_E2M1FN_X2 = Dtype(17, 4, 2)
I8 = Dtype(0, 8, 1)
U8 = Dtype(1, 8, 1)
I32 = Dtype(0, 32, 1)
I64 = Dtype(0, 64, 1)

# For each family the struct of its calls, and that of a part.
FAMILIES = {
    "norm": (NormArgs, None),
    "norm_backward": (NormBackwardArgs, None),
    "mla_decode": (MlaDecodeArgs, None),
    "norm_heads": (NormHeadsArgs, NormHeadsPart),
    "norm_heads_backward": (NormHeadsArgs, NormHeadsBackwardPart),
    "peer_allreduce_norm": (PeerAllreduceNormArgs, None),
    "peer_sharded_norm": (PeerShardedNormArgs, None),
}

# What a call writes of each struct.
OUTPUTS = {
    Quant: {"quantized", "amax"},
    NormArgs: {"y", "residual_out", "mean", "rstd", "sumsq", "branch_rstd"},
    NormBackwardArgs: {
        "dx",
        "dresidual",
        "dweight",
        "dbias",
        "dgate",
        "dbranch",
        "dbranch_weight",
        "dbranch_bias",
        "dresidual_gate",
    },
    MlaDecodeArgs: {"o", "lse", "profile"},
    NormHeadsPart: {"y", "mean", "rstd", "sumsq", "cache", "head_weights_out", "cache_tail"},
    NormHeadsBackwardPart: {"dx", "dweight", "dbias"},
    PeerShardedNormArgs: {"y", "y2"},
}

# What each function returns and takes.
FUNCTIONS = {
    "fastnorm_version": (c_int32, []),
    "fastnorm_version_string": (c_char_p, []),
    "fastnorm_build_info": (c_char_p, []),
    "fastnorm_numeric_version": (c_int32, []),
    "fastnorm_status_name": (c_char_p, [c_int32]),
    "fastnorm_last_error": (c_char_p, []),
    "fastnorm_last_device_error": (c_int32, []),
    "fastnorm_device_count": (c_int32, [c_int32, POINTER(c_int32)]),
    "fastnorm_device_describe": (c_int32, [Device, POINTER(DeviceInfo)]),
    "fastnorm_context_create": (c_int32, [Device, POINTER(ContextOptions), POINTER(c_void_p)]),
    "fastnorm_context_destroy": (None, [c_void_p]),
    "fastnorm_kernel_count": (c_int32, []),
    "fastnorm_kernel_describe": (c_int32, [c_int32, POINTER(KernelInfo)]),
    "fastnorm_norm_query": (c_int32, [c_void_p, POINTER(NormArgs), POINTER(Info)]),
    "fastnorm_norm_prepare": (c_int32, [c_void_p, POINTER(NormArgs)]),
    "fastnorm_norm": (c_int32, [c_void_p, POINTER(NormArgs), c_void_p, c_size_t, c_void_p]),
    "fastnorm_norm_many_query": (
        c_int32,
        [c_void_p, POINTER(POINTER(NormArgs)), c_int32, POINTER(Info)],
    ),
    "fastnorm_norm_many_prepare": (c_int32, [c_void_p, POINTER(POINTER(NormArgs)), c_int32]),
    "fastnorm_norm_many": (
        c_int32,
        [c_void_p, POINTER(POINTER(NormArgs)), c_int32, c_void_p, c_size_t, c_void_p],
    ),
    "fastnorm_norm_backward_query": (c_int32, [c_void_p, POINTER(NormBackwardArgs), POINTER(Info)]),
    "fastnorm_norm_backward_prepare": (c_int32, [c_void_p, POINTER(NormBackwardArgs)]),
    "fastnorm_norm_backward": (
        c_int32,
        [c_void_p, POINTER(NormBackwardArgs), c_void_p, c_size_t, c_void_p],
    ),
    "fastnorm_norm_backward_many_query": (
        c_int32,
        [c_void_p, POINTER(POINTER(NormBackwardArgs)), c_int32, POINTER(Info)],
    ),
    "fastnorm_norm_backward_many_prepare": (
        c_int32,
        [c_void_p, POINTER(POINTER(NormBackwardArgs)), c_int32],
    ),
    "fastnorm_norm_backward_many": (
        c_int32,
        [c_void_p, POINTER(POINTER(NormBackwardArgs)), c_int32, c_void_p, c_size_t, c_void_p],
    ),
    "fastnorm_mla_decode_query": (c_int32, [c_void_p, POINTER(MlaDecodeArgs), POINTER(Info)]),
    "fastnorm_mla_decode_prepare": (c_int32, [c_void_p, POINTER(MlaDecodeArgs)]),
    "fastnorm_mla_decode": (
        c_int32,
        [c_void_p, POINTER(MlaDecodeArgs), c_void_p, c_size_t, c_void_p],
    ),
    "fastnorm_profile_id_name": (c_char_p, [c_int32]),
    "fastnorm_profile_decode": (
        c_int32,
        [c_void_p, c_size_t, POINTER(ProfileEvent), c_size_t, POINTER(c_size_t)],
    ),
    "fastnorm_profile_write_trace": (c_int32, [c_void_p, c_size_t, c_char_p, c_int32]),
    "fastnorm_norm_heads_query": (
        c_int32,
        [c_void_p, POINTER(NormHeadsArgs), POINTER(POINTER(NormHeadsPart)), c_int32, POINTER(Info)],
    ),
    "fastnorm_norm_heads_prepare": (
        c_int32,
        [c_void_p, POINTER(NormHeadsArgs), POINTER(POINTER(NormHeadsPart)), c_int32],
    ),
    "fastnorm_norm_heads": (
        c_int32,
        [
            c_void_p,
            POINTER(NormHeadsArgs),
            POINTER(POINTER(NormHeadsPart)),
            c_int32,
            c_void_p,
            c_size_t,
            c_void_p,
        ],
    ),
    "fastnorm_norm_heads_backward_query": (
        c_int32,
        [
            c_void_p,
            POINTER(NormHeadsArgs),
            POINTER(POINTER(NormHeadsBackwardPart)),
            c_int32,
            POINTER(Info),
        ],
    ),
    "fastnorm_norm_heads_backward_prepare": (
        c_int32,
        [c_void_p, POINTER(NormHeadsArgs), POINTER(POINTER(NormHeadsBackwardPart)), c_int32],
    ),
    "fastnorm_norm_heads_backward": (
        c_int32,
        [
            c_void_p,
            POINTER(NormHeadsArgs),
            POINTER(POINTER(NormHeadsBackwardPart)),
            c_int32,
            c_void_p,
            c_size_t,
            c_void_p,
        ],
    ),
    "fastnorm_peer_buffer_bytes": (c_int32, [c_void_p, POINTER(PeerOptions), POINTER(c_uint64)]),
    "fastnorm_peer_create": (c_int32, [c_void_p, POINTER(PeerOptions), POINTER(c_void_p)]),
    "fastnorm_peer_create_from_pointers": (
        c_int32,
        [c_void_p, POINTER(PeerOptions), POINTER(c_void_p), c_int32, POINTER(c_void_p)],
    ),
    "fastnorm_peer_export": (c_int32, [c_void_p, c_void_p, c_size_t]),
    "fastnorm_peer_import": (c_int32, [c_void_p, c_void_p, c_size_t]),
    "fastnorm_peer_status": (c_int32, [c_void_p, POINTER(PeerState)]),
    "fastnorm_peer_reset": (c_int32, [c_void_p]),
    "fastnorm_peer_destroy": (None, [c_void_p]),
    "fastnorm_peer_allreduce_norm_query": (
        c_int32,
        [c_void_p, POINTER(PeerAllreduceNormArgs), POINTER(Info)],
    ),
    "fastnorm_peer_allreduce_norm_prepare": (c_int32, [c_void_p, POINTER(PeerAllreduceNormArgs)]),
    "fastnorm_peer_allreduce_norm": (
        c_int32,
        [c_void_p, POINTER(PeerAllreduceNormArgs), c_void_p, c_size_t, c_void_p],
    ),
    "fastnorm_peer_sharded_norm_query": (
        c_int32,
        [c_void_p, POINTER(PeerShardedNormArgs), POINTER(Info)],
    ),
    "fastnorm_peer_sharded_norm_prepare": (c_int32, [c_void_p, POINTER(PeerShardedNormArgs)]),
    "fastnorm_peer_sharded_norm": (
        c_int32,
        [c_void_p, POINTER(PeerShardedNormArgs), c_void_p, c_size_t, c_void_p],
    ),
}
