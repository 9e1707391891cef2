"""RMSNorm and LayerNorm of libfastnorm as JAX functions, through XLA's foreign function interface.

libfastnorm_xla.so is the file that FASTNORM_XLA_LIBRARY names, else that of this package, else the
one that the loader finds. libfastnorm is the file that FASTNORM_LIBRARY names, else that of this
package. The functions work on the CPU and on CUDA devices, under jit, vmap and grad. JAX refuses to
differentiate rms_norm_quant, and the others twice.

Words: rounding "once", "normalized", "every_step", "once_rw"; residual_rounding "exact",
"before_apply", "before_statistics"; scheme "per_row", "per_block", "mxfp8", "nvfp4", "mxfp4".
norm.h says what they mean.
"""

import ctypes
import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from fastnorm import abi as _c

FastnormError = _c.FastnormError  # a RuntimeError with the status' name and the library's text

_TARGET, _BACKWARD_TARGET = "fastnorm_norm", "fastnorm_norm_backward"
_GRAPH = "_graph"  # ends the name of what XLA may record


def _plugin_path():
    """The file that FASTNORM_XLA_LIBRARY names, else that of this package, else what the loader
    finds."""
    beside = Path(_c.__file__).parent / "lib" / "libfastnorm_xla.so"
    return os.environ.get("FASTNORM_XLA_LIBRARY", str(beside) if beside.exists() else beside.name)


def register_handlers(library, target, cpu_graph=""):
    """The handlers of a target and of its variant for CUDA graphs. cpu_graph: what ends the symbol
    of a CPU's variant, where it has one."""
    symbol = target.replace("_", "_xla_", 1)
    for name, platform, end in (
        (target, "cpu", "_cpu"),
        (target, "CUDA", "_cuda"),
        (target + _GRAPH, "cpu", "_cpu" + cpu_graph),
        (target + _GRAPH, "CUDA", "_cuda" + _GRAPH),
    ):
        handler = jax.ffi.pycapsule(getattr(library, symbol + end))
        jax.ffi.register_ffi_target(name, handler, platform=platform)


def _register():
    if os.path.isabs(_c.library_path()) or "FASTNORM_LIBRARY" in os.environ:
        ctypes.CDLL(_c.library_path())  # what is loaded under this name serves the library below
    path = _plugin_path()
    library = ctypes.CDLL(path)
    register_handlers(library, _TARGET)
    register_handlers(library, _BACKWARD_TARGET)
    library.fastnorm_xla_calls.restype = ctypes.c_uint64
    return library, _c.Context(
        _c.Library(path), _c.CPU, num_threads=1
    )  # the functions of libfastnorm come with it


_library, _checker = _register()


@functools.lru_cache(maxsize=None)
def _gpus():
    """Contexts that plan for GPUs with kernels that hold rows, and for others; without a GPU."""
    library = _c.Library(_plugin_path())
    return tuple(_c.Context(library, _c.CUDA, dry_run_capability=c) for c in (80, 90))


def workspace(query):
    """The last result of a call that XLA may record: the memory that its kernels want on any GPU.
    query: what asks the library with a context."""
    bytes_wanted = max(query(context).workspace_bytes for context in _gpus())
    # XLA aligns less than the library wants.
    return jax.ShapeDtypeStruct((bytes_wanted + 256,), jnp.uint8)


def target_of(name):
    return name + _GRAPH if use_command_buffers else name


def handler_calls() -> int:
    """How often XLA has called libfastnorm; it does not where it replays a CUDA graph."""
    return _library.fastnorm_xla_calls()


_KINDS = {"rms": 0, "layer": 1}
_ROUNDING = {"once": 0, "normalized": 1, "every_step": 2, "once_rw": 3}
_RESIDUAL_ROUNDING = {"exact": 0, "before_apply": 1, "before_statistics": 2}
_SCHEMES = {None: 0, "per_row": 2, "per_block": 3, "mxfp8": 4, "nvfp4": 5, "mxfp4": 6}
_INPUTS = ("x", "residual", "weight", "bias")
_OUTPUTS = ("y", "residual_out", "quantized", "scale", "mean", "rstd")
_BACKWARD_INPUTS = ("x", "dy", "weight", "mean", "rstd", "dresidual_in")
_BACKWARD_OUTPUTS = ("dx", "dresidual", "dweight", "dbias")
_PARAMETERS = ("weight", "bias", "dweight", "dbias")

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
_DTYPES = {
    "float32": _c.F32,
    "float16": _c.F16,
    "bfloat16": _c.BF16,
    "int8": _c.I8,
    "uint8": _c.U8,
    "int32": _c.Dtype(0, 32, 1),
    "int64": _c.Dtype(0, 64, 1),
    "float8_e4m3fn": _c.F8_E4M3FN,
    "float8_e5m2": _c.F8_E5M2,
    "float8_e8m0fnu": _c.F8_E8M0FNU,
}


def _dtype(name, dtype):
    if dtype.name not in _DTYPES:
        words = _DTYPES if name in ("quantized", "scale") else ("float32", "float16", "bfloat16")
        raise FastnormError(
            f"FASTNORM_ERROR_DTYPE: {name}.dtype is {dtype.name}; required: one of {', '.join(words)}"
        )
    return _DTYPES[dtype.name]


def _array(name, value):
    """A value as an array; an error that names the argument if there is none, or none any more."""
    if value is None:
        raise FastnormError(f"FASTNORM_ERROR_ARGUMENT: {name} is None; required: an array")
    if (
        isinstance(value, jax.Array)
        and not isinstance(value, jax.core.Tracer)
        and value.is_deleted()
    ):
        raise FastnormError(
            f"FASTNORM_ERROR_ARGUMENT: {name} was deleted, as donated arguments are; "
            "required: an array that has its memory"
        )
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
                raise FastnormError(
                    f"FASTNORM_ERROR_DEVICE: {name} is on {device}, of platform {device.platform}; "
                    "required: a CPU or CUDA device"
                )
        if not a.committed:
            continue
        if bound is None:
            bound = name, devices
        elif devices != bound[1]:
            shown = [", ".join(sorted(map(str, d))) for d in (devices, bound[1])]
            raise FastnormError(
                f"FASTNORM_ERROR_DEVICE: {name} is on {shown[0]}; "
                f"required: {shown[1]}, as {bound[0]} is"
            )


def _number(name, value, kind):
    """A Python number: it is part of the program."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{name} is a traced value; required: a number, such as a static argument of jit"
        )
    try:
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} is {value!r}; required: a number") from None


@functools.lru_cache(maxsize=4096)
def _check(kind, lead, tensors, options, context=_checker):
    """Asks the library what it would say. tensors: (name, shape, dtype) of each; lead: how many
    leading dimensions become one."""
    fields = dict(options)
    for i, (name, shape, dtype) in enumerate(tensors):
        if name not in _PARAMETERS and len(shape) >= lead > 1:
            shape = (int(np.prod(shape[:lead], dtype=np.int64)), *shape[lead:])
        strides, stride = [], 1
        for extent in reversed(shape):
            strides.insert(0, stride)
            stride *= extent
        # Stand-in addresses, 2^44 bytes apart: the library does not touch the memory.
        fields[name] = SimpleNamespace(
            address=(i + 1) << 44,
            shape=shape,
            strides=strides,
            itemsize=1,
            dtype=_dtype(name, dtype),
        )
    call = context.norm_backward if "dy" in fields else context.call
    return call(_KINDS[kind], **fields).query()


# What torch.nn.functional.rms_norm takes for None: that of the arithmetic, also for x of 16 bits.
_DEFAULT_EPS = float(np.finfo(np.float32).eps)


def _norm(
    kind,
    eps,
    inputs,
    outputs,
    aliases=None,
    weight_offset=0.0,
    rounding="once",
    residual_rounding="exact",
    scheme=None,
    block_size=0,
):
    """One fastnorm_norm. inputs: arrays by name, or None; outputs: shapes with dtypes by name."""
    inputs = {name: inputs[name] for name in _INPUTS if inputs.get(name) is not None}
    _check_devices(inputs)
    outputs = {name: outputs[name] for name in _OUTPUTS if name in outputs}
    rank, lead = _rank_and_lead(inputs)
    options = {
        "eps": _eps(eps),
        "weight_offset": _number("weight_offset", weight_offset, float),
        "rounding": _word(_ROUNDING, "rounding", rounding),
        "residual_rounding": _word(_RESIDUAL_ROUNDING, "residual_rounding", residual_rounding),
        "quant_scheme": _word(_SCHEMES, "scheme", scheme),
        "quant_block_size": block_size,
    }
    _check(kind, lead, _tensors(inputs, outputs), tuple(options.items()))
    call = jax.ffi.ffi_call(
        target_of(_TARGET),
        list(outputs.values()),
        vmap_method="broadcast_all",
        input_output_aliases=aliases,
    )
    return call(
        *inputs.values(),
        kind=np.int32(_KINDS[kind]),
        **_attributes(options),
        inputs=_mask(_INPUTS, inputs),
        outputs=_mask(_OUTPUTS, outputs),
        rank=np.int32(rank),
        lead=np.int32(lead),
    )


def _rank_and_lead(inputs, *others):
    """x's dimensions, and how many of the first, which no parameter has, become one, except where
    the library is to say that they differ. others: numbers of dimensions of parameters that are not
    inputs."""
    rank = inputs["x"].ndim
    inner = max([1, *others, *(inputs[name].ndim for name in ("weight", "bias") if name in inputs)])
    differ = "residual" in inputs and inputs["residual"].shape != inputs["x"].shape
    return rank, 0 if differ else max(0, rank - inner)


def _eps(eps):
    return _DEFAULT_EPS if eps is None else _number("eps", eps, float)


def _tensors(inputs, outputs):
    return tuple((name, a.shape, a.dtype) for name, a in (*inputs.items(), *outputs.items()))


def _attributes(options):
    return {
        name: (np.float32 if name in ("eps", "weight_offset") else np.int32)(value)
        for name, value in options.items()
    }


def _norm_backward(kind, eps, weight_offset, rounding, inputs, outputs, bias_ndim=1):
    """One fastnorm_norm_backward; inputs and outputs as for _norm. The outputs by name."""
    inputs = {name: inputs[name] for name in _BACKWARD_INPUTS if name in inputs}
    outputs = {name: outputs[name] for name in _BACKWARD_OUTPUTS if name in outputs}
    rank, lead = _rank_and_lead(inputs, bias_ndim)
    options = {"eps": eps, "weight_offset": weight_offset, "rounding": _ROUNDING[rounding]}
    asked = kind, lead, _tensors(inputs, outputs), tuple(options.items())
    _check(*asked)
    results = list(outputs.values())
    if use_command_buffers:
        results.append(workspace(lambda context: _check(*asked, context)))
    call = jax.ffi.ffi_call(target_of(_BACKWARD_TARGET), results, vmap_method="broadcast_all")
    found = call(
        *inputs.values(),
        kind=np.int32(_KINDS[kind]),
        **_attributes(options),
        inputs=_mask(_BACKWARD_INPUTS, inputs),
        outputs=_mask(_BACKWARD_OUTPUTS, outputs),
        rank=np.int32(rank),
        lead=np.int32(lead),
    )
    return dict(zip(outputs, found))


def _arrays(**values):
    """The arguments of a function as arrays; those that may be None stay so."""
    return {
        name: None if value is None and name in ("weight", "bias") else _array(name, value)
        for name, value in values.items()
    }


def quant_outputs(schemes, shape, scheme, block_size, dtype):
    """Shapes and dtypes of codes and scales of rows. A static scale is no output. schemes: the
    words that are taken."""
    if scheme is None:
        raise ValueError("scheme is None; required: one of " + ", ".join(filter(None, schemes)))
    _word(schemes, "scheme", scheme)
    if block_size not in ((64, 128) if scheme == "per_block" else (0,)):
        required = "64 or 128" if scheme == "per_block" else f"0, since the scheme is {scheme}"
        raise FastnormError(
            f"FASTNORM_ERROR_ARGUMENT: block_size is {block_size}; required: {required}"
        )
    *lead, n = shape
    codes = ((*lead, n // 2), jnp.uint8) if scheme in ("nvfp4", "mxfp4") else ((*lead, n), dtype)
    outputs = {"quantized": jax.ShapeDtypeStruct(*codes)}
    columns = {"per_row": n, "per_block": block_size, "mxfp8": 32, "nvfp4": 16, "mxfp4": 32}
    if scheme in columns:
        scale_dtype = {
            "mxfp8": jnp.float8_e8m0fnu,
            "nvfp4": jnp.float8_e4m3fn,
            "mxfp4": jnp.float8_e8m0fnu,
        }.get(scheme, jnp.float32)
        scales = (*lead, -(-n // max(columns[scheme], 1)))
        outputs["scale"] = jax.ShapeDtypeStruct(scales, scale_dtype)
    return outputs


def _like(a, dtype=None):
    return jax.ShapeDtypeStruct(a.shape, a.dtype if dtype is None else dtype)


# --- gradients ---


def _outputs_of(inputs, y_dtype, statistics=False):
    """The outputs of a norm of these inputs; statistics: with what the backward wants of each
    row."""
    x = inputs["x"]
    outputs = {"y": _like(x, y_dtype)}
    if "residual" in inputs:
        outputs["residual_out"] = _like(inputs["residual"])
    if statistics:
        rows = jax.ShapeDtypeStruct((*x.shape[:-1], 1), jnp.float32)
        outputs.update({"mean": rows, "rstd": rows} if statistics == "layer" else {"rstd": rows})
    return outputs


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(call, inputs):
    """A norm as a function of its arrays by name. call: kind, y_dtype, in_place, eps,
    weight_offset, rounding, residual_rounding."""
    kind, y_dtype, in_place, eps, *options = call
    return tuple(
        _norm(
            kind, eps, inputs, _outputs_of(inputs, y_dtype), {1: 1} if in_place else None, *options
        )
    )


def _forward(call, inputs):
    """The norm with its statistics, and what the backward needs. What is wanted is said by the keys
    of a dictionary, which are part of the program."""
    kind, y_dtype, in_place, eps, *options = call
    wanted = {name: () for name, primal in inputs.items() if primal.perturbed}
    inputs = {name: primal.value for name, primal in inputs.items()}
    outputs = _outputs_of(inputs, y_dtype, kind)
    found = dict(
        zip(
            (n for n in _OUTPUTS if n in outputs),
            _norm(kind, eps, inputs, outputs, {1: 1} if in_place else None, *options),
        )
    )
    saved = {
        "x": found.get("residual_out", inputs["x"]),
        **{n: found[n] for n in ("mean", "rstd") if n in found},
    }
    saved.update({n: inputs[n] for n in ("weight", "bias") if n in inputs})
    # Of x and the residual the dtypes alone.
    dtypes = {n: jnp.zeros((0,), inputs[n].dtype) for n in ("x", "residual") if n in inputs}
    return tuple(found[n] for n in ("y", "residual_out") if n in found), (wanted, saved, dtypes)


def _backward(call, kept, gradients):
    kind, _, _, eps, weight_offset, rounding, _ = call
    wanted, saved, dtypes = kept
    dy, dtotal = gradients[0], gradients[1] if len(gradients) > 1 else None
    zero = jax.custom_derivatives.SymbolicZero
    dy = jnp.zeros(dy.shape, dy.dtype) if isinstance(dy, zero) else dy
    inputs = {"dy": dy, **{n: a for n, a in saved.items() if n != "bias"}}
    if dtotal is not None and not isinstance(dtotal, zero):
        inputs["dresidual_in"] = dtotal
    outputs, x, bias = {}, saved["x"], saved.get("bias")
    if "x" in wanted or "residual" in wanted:
        outputs["dx"] = jax.ShapeDtypeStruct(x.shape, dtypes["x"].dtype)
    # One gradient serves x and the residual where their dtypes agree.
    if "residual" in wanted and dtypes["residual"].dtype != dtypes["x"].dtype:
        outputs["dresidual"] = jax.ShapeDtypeStruct(x.shape, dtypes["residual"].dtype)
    if "weight" in wanted:
        outputs["dweight"] = _like(saved["weight"])
    if "bias" in wanted:
        outputs["dbias"] = _like(bias)
    found = {}
    if outputs:
        found = _norm_backward(
            kind,
            _eps(eps),
            float(weight_offset),
            rounding,
            inputs,
            outputs,
            1 if bias is None else bias.ndim,
        )
    by_name = {
        "x": found.get("dx"),
        "residual": found.get("dresidual", found.get("dx")),
        "weight": found.get("dweight"),
        "bias": found.get("dbias"),
    }
    return (
        {
            name: by_name[name] if name in wanted else None
            for name in (*dtypes, *(n for n in ("weight", "bias") if n in saved))
        },
    )


_differentiable.defvjp(_forward, _backward, symbolic_zeros=True)


def _call_differentiable(
    kind,
    inputs,
    eps,
    weight_offset=0.0,
    rounding="once",
    residual_rounding="exact",
    in_place=False,
    y_dtype=None,
):
    """Checks what is no array, so that errors are the same with and without a gradient."""
    inputs = {name: a for name, a in inputs.items() if a is not None}
    _check_devices(inputs)
    y_dtype = None if y_dtype is None else jnp.dtype(y_dtype)
    call = (
        kind,
        y_dtype,
        in_place,
        _eps(eps),
        _number("weight_offset", weight_offset, float),
        rounding,
        residual_rounding,
    )
    _word(_ROUNDING, "rounding", rounding)
    _word(_RESIDUAL_ROUNDING, "residual_rounding", residual_rounding)
    return _differentiable(call, inputs)


# --- the functions to call ---


def rms_norm(
    x: Any,
    weight: Any = None,
    eps: Optional[float] = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
    y_dtype: Any = None,
) -> jax.Array:
    """y = x * rsqrt(mean(x^2) + eps) * (weight + weight_offset), row by row. y_dtype: x's (None),
    or float32."""
    return _call_differentiable(
        "rms", _arrays(x=x, weight=weight), eps, weight_offset, rounding, y_dtype=y_dtype
    )[0]


def layer_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    eps: Optional[float] = 1e-5,
    *,
    rounding: str = "once",
    y_dtype: Any = None,
) -> jax.Array:
    """y = (x - mean) / sqrt(var + eps) * weight + bias, row by row. y_dtype: x's (None), or
    float32."""
    return _call_differentiable(
        "layer", _arrays(x=x, weight=weight, bias=bias), eps, 0.0, rounding, y_dtype=y_dtype
    )[0]


def _add(in_place, x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype):
    return _call_differentiable(
        "rms",
        _arrays(x=x, residual=residual, weight=weight),
        eps,
        weight_offset,
        rounding,
        residual_rounding,
        in_place,
        y_dtype,
    )


def add_rms_norm(
    x: Any,
    residual: Any,
    weight: Any = None,
    eps: Optional[float] = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
    residual_rounding: str = "exact",
    y_dtype: Any = None,
) -> Tuple[jax.Array, jax.Array]:
    """(rms_norm of the sum, sum) with sum = x + residual; the sum has residual's dtype."""
    return _add(
        False, x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype
    )


def fused_add_rms_norm(
    x: Any,
    residual: Any,
    weight: Any = None,
    eps: Optional[float] = 1e-6,
    *,
    weight_offset: float = 0.0,
    rounding: str = "once",
    residual_rounding: str = "exact",
    y_dtype: Any = None,
) -> Tuple[jax.Array, jax.Array]:
    """As add_rms_norm, with the sum in residual's memory. XLA copies residual before, unless
    nothing else needs it: an intermediate result, or an argument that donate_argnums gives away.
    (jit gives a donated argument's memory to the first result of its shape and dtype: return the
    sum before the norm.)"""
    return _add(True, x, residual, weight, eps, weight_offset, rounding, residual_rounding, y_dtype)


def rms_norm_quant(
    x: Any,
    weight: Any = None,
    eps: Optional[float] = 1e-6,
    *,
    scheme: str,
    block_size: int = 0,
    dtype: Any = jnp.float8_e4m3fn,
    weight_offset: float = 0.0,
    rounding: str = "once",
) -> Tuple[jax.Array, jax.Array]:
    """(codes, scales) of rms_norm. Scales are x.shape[:-1] + (1,) (per_row) or + (scales of a
    row,). Codes of nvfp4 and mxfp4 are uint8, two to a byte."""
    inputs = _arrays(x=x, weight=weight)
    if inputs["x"].ndim < 1:
        raise FastnormError("FASTNORM_ERROR_SHAPE: x has 0 dimensions; required: at least 1")
    outputs = quant_outputs(_SCHEMES, inputs["x"].shape, scheme, block_size, dtype)
    return tuple(
        _norm(
            "rms",
            eps,
            inputs,
            outputs,
            weight_offset=weight_offset,
            rounding=rounding,
            scheme=scheme,
            block_size=block_size,
        )
    )
