"""RMSNorm and LayerNorm of libfastnorm as JAX functions, through XLA's foreign function interface.

libfastnorm_xla.so is the file that FASTNORM_XLA_LIBRARY names, else the one the loader finds; libfastnorm is
the one it was linked with, or the file that FASTNORM_LIBRARY names. The functions work on the CPU and on CUDA
devices, under jit and vmap. There is no backward yet: JAX refuses to differentiate them.

Words: rounding "once", "normalized", "every_step"; residual_rounding "exact", "before_apply",
"before_statistics"; scheme "per_row", "per_block", "mxfp8", "nvfp4", "mxfp4". norm.h says what they mean.
"""

import ctypes
import functools
import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np


def _load_ctypes():
    """fastnorm_ctypes.py of the folder above, without putting that folder on sys.path."""
    path = Path(__file__).resolve().parents[1] / "fastnorm_ctypes.py"
    spec = importlib.util.spec_from_file_location("fastnorm_ctypes", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_c = _load_ctypes()
FastnormError = _c.FastnormError  # a RuntimeError with the status' name and the library's text

_TARGET, _GRAPH_TARGET = "fastnorm_norm", "fastnorm_norm_graph"


def _register():
    if "FASTNORM_LIBRARY" in os.environ:  # what is loaded under this name serves the library below
        ctypes.CDLL(os.environ["FASTNORM_LIBRARY"])
    path = os.environ.get("FASTNORM_XLA_LIBRARY", "libfastnorm_xla.so")
    library = ctypes.CDLL(path)
    for target, platform, symbol in ((_TARGET, "cpu", "cpu"), (_GRAPH_TARGET, "cpu", "cpu"),
                                     (_TARGET, "CUDA", "cuda"), (_GRAPH_TARGET, "CUDA", "cuda_graph")):
        handler = getattr(library, f"fastnorm_xla_norm_{symbol}")
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handler), platform=platform)
    library.fastnorm_xla_calls.restype = ctypes.c_uint64
    return library, _c.Context(_c.Library(path), _c.CPU, num_threads=1)  # the functions of libfastnorm come with it


_library, _checker = _register()


def handler_calls():
    """How often XLA has called libfastnorm; it does not where it replays a CUDA graph."""
    return _library.fastnorm_xla_calls()


_KINDS = {"rms": 0, "layer": 1}
_ROUNDING = {"once": 0, "normalized": 1, "every_step": 2}
_RESIDUAL_ROUNDING = {"exact": 0, "before_apply": 1, "before_statistics": 2}
_SCHEMES = {None: 0, "per_row": 2, "per_block": 3, "mxfp8": 4, "nvfp4": 5, "mxfp4": 6}
_INPUTS = ("x", "residual", "weight", "bias")
_OUTPUTS = ("y", "residual_out", "quantized", "scale")

# Whether XLA may record the calls in CUDA graphs.
use_command_buffers = False


def _word(words, name, value):
    if value not in words:
        required = ", ".join(str(word) for word in words if word is not None)
        raise ValueError(f"{name} is {value!r}; required: one of {required}")
    return words[value]


def _mask(names, present):
    return np.int32(sum(1 << names.index(name) for name in present))


# --- checks, before anything is compiled or launched ---

_PLATFORMS = ("cpu", "gpu", "cuda")  # JAX calls CUDA devices "gpu"
_DTYPES = {"float32": _c.F32, "float16": _c.F16, "bfloat16": _c.BF16, "int8": _c.I8, "uint8": _c.U8,
           "int32": _c.Dtype(0, 32, 1), "int64": _c.Dtype(0, 64, 1), "float8_e4m3fn": _c.F8_E4M3FN, "float8_e5m2": _c.F8_E5M2,
           "float8_e8m0fnu": _c.F8_E8M0FNU}


def _dtype(name, dtype):
    if dtype.name not in _DTYPES:
        words = _DTYPES if name in _OUTPUTS else ("float32", "float16", "bfloat16")
        raise FastnormError(f"FASTNORM_ERROR_DTYPE: {name}.dtype is {dtype.name}; required: one of {', '.join(words)}")
    return _DTYPES[dtype.name]


def _array(name, value):
    """A value as an array; an error that names the argument if there is none, or none any more."""
    if value is None:
        raise FastnormError(f"FASTNORM_ERROR_ARGUMENT: {name} is None; required: an array")
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and value.is_deleted():
        raise FastnormError(f"FASTNORM_ERROR_ARGUMENT: {name} was deleted, as donated arguments are; "
                            "required: an array that has its memory")
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} is {type(value).__name__}; required: an array. {error}") from None


def _check_devices(inputs):
    """Refuses arrays on platforms without a handler, and arrays bound to different devices. Inside
    jit JAX checks that itself."""
    bound = None
    for name, a in inputs.items():
        if isinstance(a, jax.core.Tracer):
            continue
        devices = a.devices()
        for device in devices:
            if device.platform not in _PLATFORMS:
                raise FastnormError(f"FASTNORM_ERROR_DEVICE: {name} is on {device}, of platform {device.platform}; "
                                    "required: a CPU or CUDA device")
        if not a.committed:
            continue
        if bound is None:
            bound = name, devices
        elif devices != bound[1]:
            shown = [", ".join(sorted(map(str, d))) for d in (devices, bound[1])]
            raise FastnormError(f"FASTNORM_ERROR_DEVICE: {name} is on {shown[0]}; "
                                f"required: {shown[1]}, as {bound[0]} is")


def _number(name, value, kind):
    """A Python number: it is part of the program."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} is a traced value; required: a number, such as a static argument of jit")
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} is {value!r}; required: a number") from None


@functools.lru_cache(maxsize=4096)
def _check(kind, lead, tensors, options):
    """Asks the library what it would say. tensors: (name, shape, dtype) of each; lead: how many
    leading dimensions become one."""
    fields = dict(options)
    for i, (name, shape, dtype) in enumerate(tensors):
        if name not in ("weight", "bias") and len(shape) >= lead > 1:
            shape = (int(np.prod(shape[:lead], dtype=np.int64)), *shape[lead:])
        strides, stride = [], 1
        for extent in reversed(shape):
            strides.insert(0, stride)
            stride *= extent
        # Stand-in addresses, 2^44 bytes apart: the library does not touch the memory.
        fields[name] = SimpleNamespace(address=(i + 1) << 44, shape=shape, strides=strides, itemsize=1,
                                       dtype=_dtype(name, dtype))
    _checker.call(_KINDS[kind], **fields).query()


# What torch.nn.functional.rms_norm takes for None: that of the arithmetic, also for x of 16 bits.
_DEFAULT_EPS = float(np.finfo(np.float32).eps)


def _norm(kind, eps, inputs, outputs, aliases=None, weight_offset=0.0, rounding="once",
          residual_rounding="exact", scheme=None, block_size=0):
    """One fastnorm_norm. inputs: arrays by name, or None; outputs: shapes with dtypes by name."""
    inputs = {name: inputs[name] for name in _INPUTS if inputs.get(name) is not None}
    _check_devices(inputs)
    outputs = {name: outputs[name] for name in _OUTPUTS if name in outputs}
    rank = inputs["x"].ndim
    inner = max([1, *(inputs[name].ndim for name in ("weight", "bias") if name in inputs)])
    # Leading dimensions that no parameter has become one, except where the library is to say that they differ.
    lead = 0 if "residual" in inputs and inputs["residual"].shape != inputs["x"].shape else rank - inner
    options = {"eps": _DEFAULT_EPS if eps is None else _number("eps", eps, float),
               "weight_offset": _number("weight_offset", weight_offset, float),
               "rounding": _word(_ROUNDING, "rounding", rounding),
               "residual_rounding": _word(_RESIDUAL_ROUNDING, "residual_rounding", residual_rounding),
               "quant_scheme": _word(_SCHEMES, "scheme", scheme), "quant_block_size": block_size}
    _check(kind, max(0, lead), tuple((name, a.shape, a.dtype) for name, a in (*inputs.items(), *outputs.items())),
           tuple(options.items()))
    call = jax.ffi.ffi_call(_GRAPH_TARGET if use_command_buffers else _TARGET, list(outputs.values()),
                            vmap_method="broadcast_all", input_output_aliases=aliases)
    attributes = {name: (np.float32 if name in ("eps", "weight_offset") else np.int32)(value)
                  for name, value in options.items()}
    return call(*inputs.values(), kind=np.int32(_KINDS[kind]), **attributes,
                inputs=_mask(_INPUTS, inputs), outputs=_mask(_OUTPUTS, outputs), rank=np.int32(rank),
                lead=np.int32(max(0, lead)))


def _arrays(**values):
    """The arguments of a function as arrays; those that may be None stay so."""
    return {name: None if value is None and name in ("weight", "bias") else _array(name, value)
            for name, value in values.items()}


def _like(a, dtype=None):
    return jax.ShapeDtypeStruct(a.shape, a.dtype if dtype is None else dtype)


# --- the functions to call ---


def rms_norm(x, weight=None, eps=1e-6, *, weight_offset=0.0, rounding="once", y_dtype=None):
    """y = x * rsqrt(mean(x^2) + eps) * (weight + weight_offset), row by row. y_dtype: x's (None), or float32."""
    inputs = _arrays(x=x, weight=weight)
    return _norm("rms", eps, inputs, {"y": _like(inputs["x"], y_dtype)}, weight_offset=weight_offset,
                 rounding=rounding)[0]


def layer_norm(x, weight=None, bias=None, eps=1e-5, *, rounding="once", y_dtype=None):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, row by row. y_dtype: x's (None), or float32."""
    inputs = _arrays(x=x, weight=weight, bias=bias)
    return _norm("layer", eps, inputs, {"y": _like(inputs["x"], y_dtype)}, rounding=rounding)[0]


def _add(aliases, x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype):
    inputs = _arrays(x=x, residual=residual, weight=weight)
    return tuple(_norm("rms", eps, inputs,
                       {"y": _like(inputs["x"], y_dtype), "residual_out": _like(inputs["residual"])},
                       aliases, weight_offset, rounding, residual_rounding))


def add_rms_norm(x, residual, weight=None, eps=1e-6, *, weight_offset=0.0, rounding="once",
                 residual_rounding="exact", y_dtype=None):
    """(rms_norm of the sum, sum) with sum = x + residual; the sum has residual's dtype."""
    return _add(None, x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype)


def fused_add_rms_norm(x, residual, weight=None, eps=1e-6, *, weight_offset=0.0, rounding="once",
                       residual_rounding="exact", y_dtype=None):
    """As add_rms_norm, with the sum in residual's memory. XLA copies residual before, unless nothing else needs
    it: an intermediate result, or an argument that donate_argnums gives away. (jit gives a donated argument's
    memory to the first result of its shape and dtype: return the sum before the norm.)"""
    return _add({1: 1}, x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype)


def rms_norm_quant(x, weight=None, eps=1e-6, *, scheme, block_size=0, dtype=jnp.float8_e4m3fn,
                   weight_offset=0.0, rounding="once"):
    """(codes, scales) of rms_norm. Scales are x.shape[:-1] + (1,) (per_row) or + (scales of a row,). Codes of
    nvfp4 and mxfp4 are uint8, two to a byte."""
    if scheme is None:
        raise ValueError("scheme is None; required: one of " + ", ".join(filter(None, _SCHEMES)))
    _word(_SCHEMES, "scheme", scheme)
    if block_size not in ((64, 128) if scheme == "per_block" else (0,)):
        required = "64 or 128" if scheme == "per_block" else f"0, since the scheme is {scheme}"
        raise FastnormError(f"FASTNORM_ERROR_ARGUMENT: block_size is {block_size}; required: {required}")
    inputs = _arrays(x=x, weight=weight)
    if inputs["x"].ndim < 1:
        raise FastnormError("FASTNORM_ERROR_SHAPE: x has 0 dimensions; required: at least 1")
    *lead, n = inputs["x"].shape
    columns = {"per_row": n, "per_block": block_size, "mxfp8": 32, "nvfp4": 16, "mxfp4": 32}[scheme]
    scale_dtype = {"mxfp8": jnp.float8_e8m0fnu, "nvfp4": jnp.float8_e4m3fn,
                   "mxfp4": jnp.float8_e8m0fnu}.get(scheme, jnp.float32)
    codes = ((*lead, n // 2), jnp.uint8) if scheme in ("nvfp4", "mxfp4") else ((*lead, n), dtype)
    return tuple(_norm("rms", eps, inputs,
                       {"quantized": jax.ShapeDtypeStruct(*codes),
                        "scale": jax.ShapeDtypeStruct((*lead, -(-n // max(columns, 1))), scale_dtype)},
                       weight_offset=weight_offset, rounding=rounding, scheme=scheme, block_size=block_size))
