"""RMSNorm and LayerNorm of libfastnorm as JAX functions, through XLA's foreign function interface.

libfastnorm_xla.so is the file that FASTNORM_XLA_LIBRARY names, else the one the loader finds; libfastnorm is
the one it was linked with, or the file that FASTNORM_LIBRARY names. The functions work on the CPU and on CUDA
devices, under jit and vmap. There is no backward yet: JAX refuses to differentiate them.

Words: rounding "once", "normalized", "every_step"; residual_rounding "exact", "before_apply",
"before_statistics"; scheme "per_row", "per_block", "mxfp8", "nvfp4". norm.h says what they mean.
"""

import ctypes
import os

import jax
import jax.numpy as jnp
import numpy as np

_TARGET, _GRAPH_TARGET = "fastnorm_norm", "fastnorm_norm_graph"


def _register():
    if "FASTNORM_LIBRARY" in os.environ:  # what is loaded under this name serves the library below
        ctypes.CDLL(os.environ["FASTNORM_LIBRARY"])
    library = ctypes.CDLL(os.environ.get("FASTNORM_XLA_LIBRARY", "libfastnorm_xla.so"))
    for target, platform, symbol in ((_TARGET, "cpu", "cpu"), (_GRAPH_TARGET, "cpu", "cpu"),
                                     (_TARGET, "CUDA", "cuda"), (_GRAPH_TARGET, "CUDA", "cuda_graph")):
        handler = getattr(library, f"fastnorm_xla_norm_{symbol}")
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handler), platform=platform)
    library.fastnorm_xla_calls.restype = ctypes.c_uint64
    return library


_library = _register()


def handler_calls():
    """How often XLA has called libfastnorm; it does not where it replays a CUDA graph."""
    return _library.fastnorm_xla_calls()


_KINDS = {"rms": 0, "layer": 1}
_ROUNDING = {"once": 0, "normalized": 1, "every_step": 2}
_RESIDUAL_ROUNDING = {"exact": 0, "before_apply": 1, "before_statistics": 2}
_SCHEMES = {None: 0, "per_row": 2, "per_block": 3, "mxfp8": 4, "nvfp4": 5}
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


def _norm(kind, eps, inputs, outputs, aliases=None, weight_offset=0.0, rounding="once",
          residual_rounding="exact", scheme=None, block_size=0):
    """One fastnorm_norm. inputs: arrays by name, or None; outputs: shapes with dtypes by name."""
    inputs = {name: jnp.asarray(inputs[name]) for name in _INPUTS if inputs.get(name) is not None}
    outputs = {name: outputs[name] for name in _OUTPUTS if name in outputs}
    rank = inputs["x"].ndim
    heads = any(inputs[name].ndim > 1 for name in ("weight", "bias") if name in inputs)
    # Leading dimensions become one, except where the library is to say that they differ.
    lead = 0 if "residual" in inputs and inputs["residual"].shape != inputs["x"].shape else rank - (2 if heads else 1)
    call = jax.ffi.ffi_call(_GRAPH_TARGET if use_command_buffers else _TARGET, list(outputs.values()),
                            vmap_method="broadcast_all", input_output_aliases=aliases)
    return call(*inputs.values(), kind=np.int32(_KINDS[kind]), eps=np.float32(eps),
                weight_offset=np.float32(weight_offset), rounding=np.int32(_word(_ROUNDING, "rounding", rounding)),
                residual_rounding=np.int32(_word(_RESIDUAL_ROUNDING, "residual_rounding", residual_rounding)),
                quant_scheme=np.int32(_word(_SCHEMES, "scheme", scheme)), quant_block_size=np.int32(block_size),
                inputs=_mask(_INPUTS, inputs), outputs=_mask(_OUTPUTS, outputs), rank=np.int32(rank),
                lead=np.int32(max(0, lead)))


def _like(a):
    return jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a))


def rms_norm(x, weight=None, eps=1e-6, *, weight_offset=0.0, rounding="once"):
    """y = x * rsqrt(mean(x^2) + eps) * (weight + weight_offset), row by row."""
    return _norm("rms", eps, {"x": x, "weight": weight}, {"y": _like(x)}, weight_offset=weight_offset,
                 rounding=rounding)[0]


def layer_norm(x, weight=None, bias=None, eps=1e-5, *, rounding="once"):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, row by row."""
    return _norm("layer", eps, {"x": x, "weight": weight, "bias": bias}, {"y": _like(x)}, rounding=rounding)[0]


def add_rms_norm(x, residual, weight=None, eps=1e-6, *, weight_offset=0.0, rounding="once",
                 residual_rounding="exact"):
    """(rms_norm of the sum, sum) with sum = x + residual."""
    return tuple(_norm("rms", eps, {"x": x, "residual": residual, "weight": weight},
                       {"y": _like(x), "residual_out": _like(residual)}, weight_offset=weight_offset,
                       rounding=rounding, residual_rounding=residual_rounding))


def fused_add_rms_norm(x, residual, weight=None, eps=1e-6, *, weight_offset=0.0, rounding="once",
                       residual_rounding="exact"):
    """As add_rms_norm, with the sum in residual's memory. XLA copies residual before, unless nothing else needs
    it: an intermediate result, or an argument that donate_argnums gives away. (jit gives a donated argument's
    memory to the first result of its shape and dtype: return the sum before the norm.)"""
    return tuple(_norm("rms", eps, {"x": x, "residual": residual, "weight": weight},
                       {"y": _like(x), "residual_out": _like(residual)}, aliases={1: 1}, weight_offset=weight_offset,
                       rounding=rounding, residual_rounding=residual_rounding))


def rms_norm_quant(x, weight=None, eps=1e-6, *, scheme, block_size=0, dtype=jnp.float8_e4m3fn,
                   weight_offset=0.0, rounding="once"):
    """(codes, scales) of rms_norm. Scales are x.shape[:-1] + (1,) (per_row) or + (scales of a row,); nvfp4 codes
    are uint8, two to a byte."""
    _word(_SCHEMES, "scheme", scheme)
    if scheme == "per_block" and block_size < 1:
        raise ValueError(f"block_size is {block_size}; required: 64 or 128")
    *lead, n = jnp.shape(x)
    columns = {"per_row": n, "per_block": block_size, "mxfp8": 32, "nvfp4": 16}[scheme]
    scale_dtype = {"mxfp8": jnp.float8_e8m0fnu, "nvfp4": jnp.float8_e4m3fn}.get(scheme, jnp.float32)
    codes = ((*lead, n // 2), jnp.uint8) if scheme == "nvfp4" else ((*lead, n), dtype)
    return tuple(_norm("rms", eps, {"x": x, "weight": weight},
                       {"quantized": jax.ShapeDtypeStruct(*codes),
                        "scale": jax.ShapeDtypeStruct((*lead, -(-n // max(columns, 1))), scale_dtype)},
                       weight_offset=weight_offset, rounding=rounding, scheme=scheme, block_size=block_size))
