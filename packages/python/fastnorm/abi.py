"""libfastnorm from Python by ctypes alone, on NumPy arrays, on what has DLPack, and on GPU memory.

The structs are those of include/fastnorm/*.h, written out by hand as far as every library of this
ABI has them: fields that came later, such as a context's tuning_file, are at their ends and left
out, which struct_size says. Library.__init__ compares their sizes with the least that the library
takes before anything is called.
"""

import ctypes
import os
import re
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t
from ctypes import c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, sizeof
from pathlib import Path

import numpy as np

CPU, CUDA = 1, 2
RMS, LAYER = 0, 1
NATURAL, BASE_2 = 0, 1
DRY_RUN = 1
OK = 0
ACCUMULATE_DWEIGHT, ACCUMULATE_DBIAS = 8, 16  # flags of NormBackwardArgs
# Flags of NormHeadsPart, and that of NormHeadsArgs.
NORM, ROPE, ROPE_INTERLEAVED, ROPE_INVERSE, ROPE_FROM_ROUNDED, ACROSS_HEADS = 1, 2, 4, 8, 16, 32
MROPE_INTERLEAVED = 8
PDL_WAIT, PDL_TRIGGER = 1, 2  # flags of norms: programmatic dependent launch
PEER_BLOB_BYTES = 128
PER_TENSOR, PER_BLOCK = 1, 3  # schemes of a cache of codes


class Device(ctypes.Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class Dtype(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


F32, F16, BF16 = Dtype(2, 32, 1), Dtype(2, 16, 1), Dtype(4, 16, 1)
F8_E4M3FN, F8_E5M2, F8_E8M0FNU = Dtype(10, 8, 1), Dtype(12, 8, 1), Dtype(14, 8, 1)
F4_E2M1FN_X2 = Dtype(17, 4, 2)
I8, U8, I32, I64 = Dtype(0, 8, 1), Dtype(1, 8, 1), Dtype(0, 32, 1), Dtype(0, 64, 1)


def dtype_id(dtype):
    """The number of fastnorm_dtype_id."""
    return dtype.code | dtype.bits << 8 | dtype.lanes << 16


DTYPES = {
    np.dtype(np.float32): F32,
    np.dtype(np.float16): F16,
    np.dtype(np.int8): I8,
    np.dtype(np.uint8): U8,
    np.dtype(np.int32): I32,
    np.dtype(np.int64): I64,
}
# Those that the package ml_dtypes adds to NumPy, by name.
ML_DTYPES = {
    "bfloat16": BF16,
    "float8_e4m3fn": F8_E4M3FN,
    "float8_e5m2": F8_E5M2,
    "float8_e8m0fnu": F8_E8M0FNU,
}


class Tensor(ctypes.Structure):
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
    ]


class DeviceInfo(ctypes.Structure):
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
    ]


class NormArgs(ctypes.Structure):
    FIRST_BYTES: int
    _fields_ = [
        ("struct_size", c_size_t),
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
        ("quant_scheme", c_int32),
        ("quant_block_size", c_int32),
        ("quant_source", c_int32),
        ("scale_layout", c_int32),
        ("scale_pow2", c_int32),
        ("amax_floor", c_float),
        ("clamp", c_float),
        ("quant_division", c_int32),
        ("global_scale", TensorPointer),
        ("quantized", TensorPointer),
        ("scale", TensorPointer),
        ("amax", TensorPointer),
        ("clamp_scale", TensorPointer),
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


NormArgs.FIRST_BYTES = (
    NormArgs.clamp_scale.offset
)  # of version 0.1, the least that the library takes


class NormBackwardArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
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
    _fields_ = [
        ("struct_size", c_size_t),
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
    ]


class NormHeadsPart(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint32),
        ("kind", c_int32),
        ("eps", c_float),
        ("weight_offset", c_float),
        ("rounding", c_int32),
        ("rope_rounding", c_int32),
        ("rope_offset", c_int32),
        ("reserved", c_int32),
        ("x", TensorPointer),
        ("weight", TensorPointer),
        ("bias", TensorPointer),
        ("y", TensorPointer),
        ("mean", TensorPointer),
        ("rstd", TensorPointer),
        ("mean_in", TensorPointer),
        ("rstd_in", TensorPointer),
        ("sumsq", TensorPointer),
        ("quant_scheme", c_int32),
        ("quant_block_size", c_int32),
        ("quant_source", c_int32),
        ("scale_layout", c_int32),
        ("scale_pow2", c_int32),
        ("amax_floor", c_float),
        ("clamp", c_float),
        ("cache_scheme", c_int32),
        ("cache_block_size", c_int32),
        ("cache_pow2", c_int32),
        ("global_scale", TensorPointer),
        ("quantized", TensorPointer),
        ("scale", TensorPointer),
        ("amax", TensorPointer),
        ("cache", TensorPointer),
        ("cache_scale", TensorPointer),
        ("quant_division", c_int32),
        ("reserved_2", c_int32),
        ("clamp_scale", TensorPointer),
    ]


NormHeadsPart.FIRST_BYTES = NormHeadsPart.quant_division.offset  # the least that the library takes


class NormHeadsBackwardPart(ctypes.Structure):
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


class NormHeadsArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
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


class PeerOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("ranks", c_int32),
        ("dtype", c_uint32),
        ("algorithm", c_int32),
        ("max_columns", c_int64),
        ("one_shot_bytes", c_int64),
        ("wait_ns", c_int64),
        ("rings", c_int32),
        ("reserved", c_int32),
    ]


class PeerAllreduceNormArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("peer", c_void_p),
        ("kind", c_int32),
        ("eps", c_float),
        ("weight_offset", c_float),
        ("rounding", c_int32),
        ("residual_rounding", c_int32),
        ("sum_rounding", c_int32),
        ("flags", c_uint32),
        ("reserved", c_int32),
        ("x", TensorPointer),
        ("residual", TensorPointer),
        ("weight", TensorPointer),
        ("bias", TensorPointer),
        ("y", TensorPointer),
        ("residual_out", TensorPointer),
        ("mean", TensorPointer),
        ("rstd", TensorPointer),
        ("quant_scheme", c_int32),
        ("quant_block_size", c_int32),
        ("quant_source", c_int32),
        ("scale_layout", c_int32),
        ("scale_pow2", c_int32),
        ("amax_floor", c_float),
        ("clamp", c_float),
        ("quant_division", c_int32),
        ("global_scale", TensorPointer),
        ("quantized", TensorPointer),
        ("scale", TensorPointer),
        ("amax", TensorPointer),
        ("clamp_scale", TensorPointer),
    ]


class PeerShardedNormArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
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


def tensor_names(struct):
    return tuple(name for name, kind in struct._fields_ if kind is TensorPointer)


def scalar_names(struct):
    return tuple(
        name
        for name, kind in struct._fields_
        if kind is not TensorPointer and name not in ("struct_size", "reserved", "reserved_2")
    )


TENSORS, SCALARS = tensor_names(NormArgs), scalar_names(NormArgs)


def tensor(address, device_type, device_id, dtype, shape, strides):
    """A tensor struct; strides in elements. It keeps the arrays it points to."""
    extents = c_int64 * len(shape)
    return Tensor(
        address, device_type, device_id, len(shape), dtype, extents(*shape), extents(*strides), 0
    )


def library_path():
    """The file that FASTNORM_LIBRARY names, else that of this package, else what the loader
    finds."""
    beside = Path(__file__).parent / "lib" / "libfastnorm.so.0"
    return os.environ.get("FASTNORM_LIBRARY", str(beside) if beside.exists() else beside.name)


class FastnormError(RuntimeError):
    """A call failed; str() has the status' name and the library's text."""


def _family(name, *arguments):
    """Functions of a family: query, prepare, and the call itself."""
    call = [*arguments, c_void_p, c_size_t, c_void_p]
    return {
        f"{name}_query": (c_int32, [*arguments, POINTER(Info)]),
        f"{name}_prepare": (c_int32, [*arguments]),
        name: (c_int32, call),
    }


def _heads(part):
    return [c_void_p, POINTER(NormHeadsArgs), POINTER(POINTER(part)), c_int32]


FUNCTIONS = {
    "fastnorm_version_string": (c_char_p, []),
    "fastnorm_status_name": (c_char_p, [c_int32]),
    "fastnorm_last_error": (c_char_p, []),
    "fastnorm_device_count": (c_int32, [c_int32, POINTER(c_int32)]),
    "fastnorm_device_describe": (c_int32, [Device, POINTER(DeviceInfo)]),
    "fastnorm_context_create": (c_int32, [Device, POINTER(ContextOptions), POINTER(c_void_p)]),
    "fastnorm_context_destroy": (None, [c_void_p]),
    **_family("fastnorm_norm", c_void_p, POINTER(NormArgs)),
    **_family("fastnorm_norm_backward", c_void_p, POINTER(NormBackwardArgs)),
    **_family("fastnorm_mla_decode", c_void_p, POINTER(MlaDecodeArgs)),
    **_family("fastnorm_norm_heads", *_heads(NormHeadsPart)),
    **_family("fastnorm_norm_heads_backward", *_heads(NormHeadsBackwardPart)),
    "fastnorm_peer_buffer_bytes": (
        c_int32,
        [c_void_p, POINTER(PeerOptions), POINTER(c_uint64)],
    ),
    "fastnorm_peer_create": (c_int32, [c_void_p, POINTER(PeerOptions), POINTER(c_void_p)]),
    "fastnorm_peer_export": (c_int32, [c_void_p, c_char_p, c_size_t]),
    "fastnorm_peer_import": (c_int32, [c_void_p, c_char_p, c_size_t]),
    "fastnorm_peer_destroy": (None, [c_void_p]),
    **_family("fastnorm_peer_allreduce_norm", c_void_p, POINTER(PeerAllreduceNormArgs)),
    **_family("fastnorm_peer_sharded_norm", c_void_p, POINTER(PeerShardedNormArgs)),
}


QUERY_OF = {
    NormBackwardArgs: "fastnorm_norm_backward_query",
    MlaDecodeArgs: "fastnorm_mla_decode_query",
    NormHeadsArgs: "fastnorm_norm_heads_query",
    NormHeadsPart: "fastnorm_norm_heads_query",
    NormHeadsBackwardPart: "fastnorm_norm_heads_backward_query",
    PeerOptions: "fastnorm_peer_buffer_bytes",
    PeerAllreduceNormArgs: "fastnorm_peer_allreduce_norm_query",
    PeerShardedNormArgs: "fastnorm_peer_sharded_norm_query",
}


class Library:
    def __init__(self, path, older=False):
        """older: the library may be of an earlier version, whose structs are shorter."""
        self.path = path
        self.c = ctypes.CDLL(str(path))
        self.missing = set()  # functions of families that this library does not have
        for name, (returns, arguments) in FUNCTIONS.items():
            try:
                function = getattr(self.c, name)
            except AttributeError:
                self.missing.add(name)
            else:
                function.restype, function.argtypes = returns, arguments
        self._check_sizes(older)

    def version(self):
        return self.c.fastnorm_version_string().decode()

    def check(self, status):
        if status != OK:
            name = self.c.fastnorm_status_name(status).decode()
            raise FastnormError(f"{name}: {self.c.fastnorm_last_error().decode()}")

    def device_count(self, device_type):
        count = c_int32()
        self.check(self.c.fastnorm_device_count(device_type, byref(count)))
        return count.value

    def describe(self, device_type, device_id=0):
        info = DeviceInfo(struct_size=sizeof(DeviceInfo))
        self.check(self.c.fastnorm_device_describe(Device(device_type, device_id), byref(info)))
        return info

    def _required_size(self, status):
        """What the library's text says that a struct_size must at least be."""
        text = self.c.fastnorm_last_error().decode()
        found = re.search(r"struct_size is \d+; required: at least (\d+)", text)
        if status == OK or not found:
            raise FastnormError(f"no struct_size was asked for, but: {text or 'success'}")
        return int(found.group(1))

    def _check_sizes(self, older):
        """Each struct, claimed to be one byte long, is refused with the size that its first version
        has. An older library may ask for less: it takes longer structs whose rest is zero."""
        device, context = Device(CPU, 0), c_void_p()
        calls = {
            DeviceInfo: lambda s: self.c.fastnorm_device_describe(device, byref(s)),
            ContextOptions: lambda s: self.c.fastnorm_context_create(
                device, byref(s), byref(c_void_p())
            ),
            NormArgs: lambda s: self.c.fastnorm_norm_query(context, byref(s), None),
            NormBackwardArgs: lambda s: self.c.fastnorm_norm_backward_query(
                context, byref(s), None
            ),
            MlaDecodeArgs: lambda s: self.c.fastnorm_mla_decode_query(context, byref(s), None),
            NormHeadsArgs: lambda s: self.c.fastnorm_norm_heads_query(
                context, byref(s), None, 0, None
            ),
            NormHeadsPart: lambda s: self.c.fastnorm_norm_heads_query(
                context,
                byref(NormHeadsArgs(struct_size=sizeof(NormHeadsArgs))),
                byref(ctypes.pointer(s)),
                1,
                byref(Info(struct_size=sizeof(Info))),
            ),
            NormHeadsBackwardPart: lambda s: self.c.fastnorm_norm_heads_backward_query(
                context,
                byref(NormHeadsArgs(struct_size=sizeof(NormHeadsArgs))),
                byref(ctypes.pointer(s)),
                1,
                byref(Info(struct_size=sizeof(Info))),
            ),
            PeerOptions: lambda s: self.c.fastnorm_peer_buffer_bytes(
                context, byref(s), byref(c_uint64())
            ),
            PeerAllreduceNormArgs: lambda s: self.c.fastnorm_peer_allreduce_norm_query(
                context, byref(s), byref(Info(struct_size=sizeof(Info)))
            ),
            PeerShardedNormArgs: lambda s: self.c.fastnorm_peer_sharded_norm_query(
                context, byref(s), byref(Info(struct_size=sizeof(Info)))
            ),
        }
        self.check(self.c.fastnorm_context_create(device, None, byref(context)))
        try:
            for struct, call in calls.items():
                if QUERY_OF.get(struct, "fastnorm_norm") in self.missing:
                    continue
                required, here = (
                    self._required_size(call(struct(struct_size=1))),
                    getattr(struct, "FIRST_BYTES", sizeof(struct)),
                )
                if required > here or (required < here and not older):
                    raise FastnormError(
                        f"{struct.__name__} has at least {here} bytes here and "
                        f"{required} in {self.path}"
                    )
        finally:
            self.c.fastnorm_context_destroy(context)


class Context:
    """One device of the library."""

    def __init__(self, library, device_type=CPU, device_id=0, num_threads=0, dry_run_capability=0):
        self.library, self.device_type, self.device_id = library, device_type, device_id
        options = ContextOptions(
            struct_size=sizeof(ContextOptions),
            num_threads=num_threads,
            flags=DRY_RUN if dry_run_capability else 0,
            dry_run_capability=dry_run_capability,
        )
        self.handle = c_void_p()
        library.check(
            library.c.fastnorm_context_create(
                Device(device_type, device_id), byref(options), byref(self.handle)
            )
        )

    def close(self):
        self.library.c.fastnorm_context_destroy(self.handle)
        self.handle = c_void_p()

    def call(self, kind=RMS, stream=None, **fields):
        """A norm that can be run again and again; fields as named in fastnorm_norm_args. A tensor
        is a NumPy array, a DeviceArray, or what has __dlpack__. Also what has address, shape,
        dtype (a Dtype, too), strides in bytes and itemsize, in the memory of the context's
        device."""
        return NormCall(self, kind, stream, fields)

    def norm_backward(self, kind=RMS, stream=None, **fields):
        """As call(), with the fields of fastnorm_norm_backward_args."""
        return NormBackwardCall(self, kind, stream, fields)

    def norm_heads(self, parts, stream=None, **fields):
        """As call(), with the fields of fastnorm_norm_heads_args; parts are dicts of the fields of
        fastnorm_norm_heads_part."""
        return NormHeadsCall(self, parts, stream, fields)

    def norm_heads_backward(self, parts, stream=None, **fields):
        """As norm_heads(), with parts of the fields of fastnorm_norm_heads_backward_part."""
        return NormHeadsBackwardCall(self, parts, stream, fields)

    def mla_decode(self, stream=None, **fields):
        """As call(), with the fields of fastnorm_mla_decode_args."""
        return MlaDecodeCall(self, stream, fields)

    def peer_allreduce_norm(self, peer, stream=None, **fields):
        """As call(), with a Peer and the fields of fastnorm_peer_allreduce_norm_args."""
        return PeerCall(self, "fastnorm_peer_allreduce_norm", peer, stream, fields)

    def peer_sharded_norm(self, peer, stream=None, **fields):
        """As call(), with a Peer and the fields of fastnorm_peer_sharded_norm_args."""
        return PeerCall(self, "fastnorm_peer_sharded_norm", peer, stream, fields)


class Exported:
    """The memory of what has __dlpack__, for as long as this object lives. The struct that the
    capsule holds begins with a DLTensor, which fastnorm_tensor is."""

    _pointer = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )

    def __init__(self, name, array, device_type, stream=None):
        if not hasattr(array, "__dlpack__"):
            raise TypeError(
                f"{name} is {type(array).__name__}; required: a NumPy array or one with __dlpack__"
            )
        found = int(array.__dlpack_device__()[0])
        if found != device_type:
            raise FastnormError(
                f"FASTNORM_ERROR_DEVICE: {name} is on a device of DLPack's type {found}; "
                f"required: {device_type}, the context's"
            )
        # The exporter makes its work visible to this stream; DLPack calls the default stream 1.
        self.capsule = (
            array.__dlpack__() if device_type == CPU else array.__dlpack__(stream=int(stream or 1))
        )
        self.array = array
        self.tensor = Tensor.from_address(self._pointer(self.capsule, b"dltensor"))


def _dtype_of(name, dtype):
    """The Dtype of a NumPy dtype in the machine's order of bytes."""
    word = dtype if isinstance(dtype, Dtype) else DTYPES.get(dtype)
    if word is None and getattr(dtype, "isnative", True):
        word = ML_DTYPES.get(getattr(dtype, "name", None))
    if word is None:
        required = ", ".join([*(known.name for known in DTYPES), *ML_DTYPES])
        raise FastnormError(
            f"FASTNORM_ERROR_DTYPE: {name}.dtype is {dtype}; required: one of {required}"
        )
    return word


def _strides_of(name, array):
    """Strides in elements. Those of extents of 0 and 1, and of empty arrays, reach no memory."""
    shape, strides, size = array.shape, array.strides, array.itemsize
    if 0 not in shape and any(n > 1 and s % size != 0 for n, s in zip(shape, strides)):
        raise FastnormError(
            f"FASTNORM_ERROR_LAYOUT: {name} has strides of {tuple(strides)} bytes; "
            f"required: multiples of {size}"
        )
    return [s // size for s in strides]


class Call:
    """One filled struct of arguments; run() and query() may be called again and again."""

    def __init__(self, context, args, functions, stream, fields):
        self._context, self._stream = context, stream
        self._run, self._query = functions
        self._kept = []  # what the structs point to
        self.args = self._filled(args, fields)
        self._arguments = (byref(self.args),)  # of the functions, behind the context

    def _filled(self, struct, fields):
        """The struct with these fields."""
        tensors, scalars = tensor_names(type(struct)), scalar_names(type(struct))
        unknown = set(fields) - set(tensors) - set(scalars)
        if unknown:
            raise TypeError(f"no such fields: {sorted(unknown)}")
        for name, value in fields.items():
            if name in scalars:
                setattr(struct, name, value)
            elif value is not None:
                setattr(struct, name, ctypes.pointer(self._tensor(name, value)))
        return struct

    def _tensor(self, name, array):
        on_host = isinstance(array, np.ndarray)
        device = self._context.device_type, self._context.device_id
        if not on_host and not hasattr(array, "address"):
            array = Exported(name, array, device[0], self._stream)
            self._kept.append(array)
            return array.tensor
        # A NumPy array is in host memory, whatever the context's device is.
        address, device = (array.ctypes.data, (CPU, 0)) if on_host else (array.address, device)
        dtype, strides = _dtype_of(name, array.dtype), _strides_of(name, array)
        self._kept.append(array)
        return tensor(address, *device, dtype, array.shape, strides)

    def run(self, workspace=None, workspace_bytes=0):
        """The workspace is an address, aligned to 256 bytes, of as many bytes as query() says.
        Norms need none."""
        c = self._context
        c.library.check(
            self._run(c.handle, *self._arguments, workspace, workspace_bytes, self._stream)
        )

    def query(self):
        info = Info(struct_size=sizeof(Info))
        c = self._context
        c.library.check(self._query(c.handle, *self._arguments, byref(info)))
        return info

    def run_on_cpu(self):
        """run() of a call on the CPU, with a workspace made for it."""
        size = self.query().workspace_bytes
        memory = np.empty(size + 255, np.uint8)
        self.run((memory.ctypes.data + 255) & ~255 if size else None, size)


class NormCall(Call):
    def __init__(self, context, kind, stream, fields):
        c = context.library.c
        super().__init__(
            context,
            NormArgs(struct_size=sizeof(NormArgs), kind=kind),
            (c.fastnorm_norm, c.fastnorm_norm_query),
            stream,
            fields,
        )


class NormBackwardCall(Call):
    def __init__(self, context, kind, stream, fields):
        c = context.library.c
        super().__init__(
            context,
            NormBackwardArgs(struct_size=sizeof(NormBackwardArgs), kind=kind),
            (c.fastnorm_norm_backward, c.fastnorm_norm_backward_query),
            stream,
            fields,
        )


class NormHeadsCall(Call):
    part, functions = NormHeadsPart, ("fastnorm_norm_heads", "fastnorm_norm_heads_query")

    def __init__(self, context, parts, stream, fields):
        functions = [getattr(context.library.c, name) for name in self.functions]
        super().__init__(
            context, NormHeadsArgs(struct_size=sizeof(NormHeadsArgs)), functions, stream, fields
        )
        size = sizeof(self.part)
        self.parts = [self._filled(self.part(struct_size=size), part) for part in parts]
        list_of = POINTER(self.part) * len(parts)
        self._arguments += (list_of(*map(ctypes.pointer, self.parts)), len(parts))


class NormHeadsBackwardCall(NormHeadsCall):
    part = NormHeadsBackwardPart
    functions = ("fastnorm_norm_heads_backward", "fastnorm_norm_heads_backward_query")


class MlaDecodeCall(Call):
    def __init__(self, context, stream, fields):
        c = context.library.c
        super().__init__(
            context,
            MlaDecodeArgs(struct_size=sizeof(MlaDecodeArgs)),
            (c.fastnorm_mla_decode, c.fastnorm_mla_decode_query),
            stream,
            fields,
        )


class PeerCall(Call):
    STRUCTS = {
        "fastnorm_peer_allreduce_norm": PeerAllreduceNormArgs,
        "fastnorm_peer_sharded_norm": PeerShardedNormArgs,
    }

    def __init__(self, context, name, peer, stream, fields):
        c, struct = context.library.c, self.STRUCTS[name]
        super().__init__(
            context,
            struct(struct_size=sizeof(struct), peer=peer.handle),
            (getattr(c, name), getattr(c, f"{name}_query")),
            stream,
            fields,
        )
        self._kept.append(peer)


class Peer:
    """One rank's end of a group. The caller brings the blobs of all ranks to each, by any means."""

    def __init__(self, context, **options):
        """options: those of fastnorm_peer_options. dtype is a Dtype."""
        options["dtype"] = dtype_id(options["dtype"])
        struct = PeerOptions(struct_size=sizeof(PeerOptions), **options)
        self._context, self.handle = context, c_void_p()
        c = context.library.c
        self._check(c.fastnorm_peer_create(context.handle, byref(struct), byref(self.handle)))

    def _check(self, status):
        self._context.library.check(status)

    def blob(self):
        """What the other ranks need to reach this one, as bytes."""
        made = ctypes.create_string_buffer(PEER_BLOB_BYTES)
        c = self._context.library.c
        self._check(c.fastnorm_peer_export(self.handle, made, PEER_BLOB_BYTES))
        return made.raw

    def connect(self, blobs):
        """blobs: those of all ranks, in rank order."""
        every = b"".join(blobs)
        c = self._context.library.c
        self._check(c.fastnorm_peer_import(self.handle, every, len(every)))

    def close(self):
        self._context.library.c.fastnorm_peer_destroy(self.handle)
        self.handle = c_void_p()


class Devmem:
    """GPU memory by tests/support/devmem.h, whose C functions return 0 or an error."""

    def __init__(self, path, device_id=0):
        self.c = c = ctypes.CDLL(str(path))
        pointer_out = POINTER(c_void_p)
        c.devmem_error.restype = c_char_p
        c.devmem_open.argtypes = [c_int32, pointer_out]
        c.devmem_close.argtypes = [c_void_p]
        c.devmem_close.restype = None
        c.devmem_alloc.argtypes = [c_void_p, c_size_t, pointer_out]
        c.devmem_free.argtypes = [c_void_p, c_void_p]
        c.devmem_upload.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t]
        c.devmem_download.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t]
        c.devmem_copy.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]
        c.devmem_stream_create.argtypes = [c_void_p, pointer_out]
        c.devmem_stream_synchronize.argtypes = [c_void_p, c_void_p]
        c.devmem_event_create.argtypes = [c_void_p, pointer_out]
        c.devmem_event_record.argtypes = [c_void_p, c_void_p, c_void_p]
        c.devmem_event_elapsed_ms.argtypes = [c_void_p, c_void_p, c_void_p, POINTER(c_float)]
        self.handle = c_void_p()
        self.check(c.devmem_open(device_id, byref(self.handle)))
        self.stream = self._made(c.devmem_stream_create)
        self._events = [self._made(c.devmem_event_create) for _ in range(2)]

    def check(self, error):
        if error != 0:
            raise FastnormError(self.c.devmem_error().decode())

    def _made(self, create):
        handle = c_void_p()
        self.check(create(self.handle, byref(handle)))
        return handle

    def copy(self, to, source):
        """Queues a copy inside the device."""
        self.check(
            self.c.devmem_copy(self.handle, to.address, source.address, source.nbytes, self.stream)
        )

    def synchronize(self):
        self.check(self.c.devmem_stream_synchronize(self.handle, self.stream))

    def elapsed_us(self, work):
        """Microseconds on the GPU of what work() queues."""
        start, stop = self._events
        self.check(self.c.devmem_event_record(self.handle, start, self.stream))
        work()
        self.check(self.c.devmem_event_record(self.handle, stop, self.stream))
        milliseconds = c_float()
        self.check(self.c.devmem_event_elapsed_ms(self.handle, start, stop, byref(milliseconds)))
        return milliseconds.value * 1e3


class DeviceArray:
    """A compact array in GPU memory; freed with this object."""

    def __init__(self, devmem, host=None, shape=None, dtype=np.float32):
        self._devmem = devmem
        self.shape = tuple(host.shape if host is not None else shape)
        self.dtype = np.dtype(host.dtype if host is not None else dtype)
        self.ndim, self.itemsize = len(self.shape), self.dtype.itemsize
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.itemsize
        strides = [self.itemsize]
        for extent in self.shape[:0:-1]:
            strides.insert(0, strides[0] * extent)
        self.strides = tuple(strides)
        found = c_void_p()
        devmem.check(devmem.c.devmem_alloc(devmem.handle, self.nbytes, byref(found)))
        self.address = found.value
        if host is not None:
            self.upload(host)

    def upload(self, host):
        host = np.ascontiguousarray(host, self.dtype)
        d = self._devmem
        d.check(d.c.devmem_upload(d.handle, self.address, host.ctypes.data, self.nbytes))

    def download(self, out=None):
        host = np.empty(self.shape, self.dtype) if out is None else out
        d = self._devmem
        d.check(d.c.devmem_download(d.handle, host.ctypes.data, self.address, self.nbytes))
        return host

    def __del__(self):
        if getattr(self, "address", None):
            self._devmem.c.devmem_free(self._devmem.handle, self.address)
