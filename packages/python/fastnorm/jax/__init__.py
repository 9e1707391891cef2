"""RMSNorm and LayerNorm of libfastnorm as JAX functions, through XLA's foreign function interface.

libfastnorm_xla.so is the file that FASTNORM_XLA_LIBRARY names, else that of this package, else the
one that the loader finds. libfastnorm is the file that FASTNORM_LIBRARY names, else that of this
package. The functions work on the CPU and on CUDA devices, under jit, vmap and grad. JAX refuses to
differentiate rms_norm_quant, and the others twice.

Words: rounding "once", "normalized", "every_step", "once_rw"; residual_rounding "exact",
"before_apply", "before_statistics"; division "reciprocal", "divide"; quant_source "unrounded",
"rounded"; schemes are the keys of fastnorm.stages.SCHEMES. norm.h says what they mean.

Inside jax.shard_map a function works on the device's part, and axes are those of JAX's own
functions. Its results vary over all axes over which an argument varies. The gradient of an argument
that does not vary is the sum over devices.
"""

import ctypes
import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Optional, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from fastnorm import abi as _c
from fastnorm import stages as _stages
from fastnorm.jax import _cuts, _partition
from fastnorm.stages import Quant

__all__ = [
    "FastnormError",
    "add_rms_norm",
    "fused_add_rms_norm",
    "handler_calls",
    "layer_norm",
    "rms_norm",
    "rms_norm_quant",
    "use_command_buffers",
]

FastnormError = _c.FastnormError
"""A RuntimeError with the status' name and the library's text: fastnorm.abi.FastnormError."""

_GRAPH = "_graph"  # ends the name of what XLA may record
# A family's target of XLA has its name in C. The numbers are those of the handler.
_FAMILIES = {
    "fastnorm_norm": 0,
    "fastnorm_norm_backward": 1,
    "fastnorm_norm_heads": 2,
    "fastnorm_norm_heads_backward": 3,
    "fastnorm_mla_decode": 4,
}


def _plugin_path():
    """The file that FASTNORM_XLA_LIBRARY names, else that of this package, else what the loader
    finds."""
    beside = Path(_c.__file__).parent / "lib" / "libfastnorm_xla.so"
    return os.environ.get("FASTNORM_XLA_LIBRARY", str(beside) if beside.exists() else beside.name)


def _load_plugin(path):
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        named = os.environ.get("FASTNORM_XLA_LIBRARY")
        if named is not None:
            raise ImportError(
                f"FASTNORM_XLA_LIBRARY is {named!r}; required: a libfastnorm_xla.so that loads. "
                f"{error}"
            ) from None
        raise ImportError(
            f"fastnorm.jax calls libfastnorm through libfastnorm_xla.so, which does not load: "
            f"{error}. Released wheels for Linux on x86-64 and AArch64 have it. Elsewhere build it "
            "where JAX is installed: `pip install --no-build-isolation .` in a source tree of "
            "libfastnorm, with meson-python, or set FASTNORM_XLA_LIBRARY to the file that "
            "`meson setup -Djax=enabled` builds."
        ) from None


def _register():
    if os.path.isabs(_c.library_path()) or "FASTNORM_LIBRARY" in os.environ:
        ctypes.CDLL(_c.library_path())  # what is loaded under this name serves the library below
    path = _plugin_path()
    library = _load_plugin(path)
    for target in _FAMILIES:
        for name, platform, symbol in (
            (target, "cpu", "fastnorm_xla_cpu"),
            (target, "CUDA", "fastnorm_xla_cuda"),
            (target + _GRAPH, "cpu", "fastnorm_xla_cpu"),
            (target + _GRAPH, "CUDA", "fastnorm_xla_cuda_graph"),
        ):
            handler = jax.ffi.pycapsule(getattr(library, symbol))
            jax.ffi.register_ffi_target(name, handler, platform=platform)
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


def _workspace_bytes(asked):
    """The memory that the kernels of a call want on any GPU that takes it."""
    wanted = 0
    for context in _gpus():
        try:
            wanted = max(wanted, _check(asked, context))
        except FastnormError:  # such a GPU says so when the call runs
            pass
    return wanted


def target_of(name):
    return name + _GRAPH if use_command_buffers else name


def handler_calls() -> int:
    """How often XLA has called libfastnorm in this process.

    Returns:
        The number. A replay of a CUDA graph does not count.
    """
    return _library.fastnorm_xla_calls()


_KINDS = {"rms": 0, "layer": 1}
_ROUNDING = {"once": 0, "normalized": 1, "every_step": 2, "once_rw": 3}
_RESIDUAL_ROUNDING = {"exact": 0, "before_apply": 1, "before_statistics": 2}
# The schemes of rms_norm_quant, which computes the scales.
_SCHEMES = {None: 0, **{w: n for w, n in _stages.SCHEMES.items() if w != "per_tensor"}}
_INPUTS = ("x", "residual", "weight", "bias")
_OUTPUTS = ("y", "residual_out", "quantized", "scale", "mean", "rstd")
_BACKWARD_INPUTS = ("x", "dy", "weight", "mean", "rstd", "dresidual_in")
_BACKWARD_OUTPUTS = ("dx", "dresidual", "dweight", "dbias")
_PARAMETERS = ("weight", "bias", "dweight", "dbias")

use_command_buffers = False
"""Whether XLA may record the calls in CUDA graphs."""


def _word(words, name, value):
    if value not in words:
        required = ", ".join(str(word) for word in words if word is not None)
        raise ValueError(f"{name} is {value!r}; required: one of {required}")
    return words[value]


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
            f"FASTNORM_ERROR_DTYPE: {name}.dtype is {dtype.name}; "
            f"required: one of {', '.join(words)}"
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


# --- axes of jax.shard_map ---


def _manual_type(value):
    """Axes over which a value varies, over which it is a part of a sum (unreduced), and over which
    its gradient may be one (reduced). Empty outside of jax.shard_map, and with check_vma=False."""
    of = jax.typeof(value) if hasattr(jax, "typeof") else None
    kind = getattr(of, "manual_axis_type", None)  # since JAX 0.10
    if kind is None:
        kind = SimpleNamespace(varying=getattr(of, "vma", None))  # since JAX 0.6
    names = ("varying", "unreduced", "reduced")
    return SimpleNamespace(**{n: frozenset(getattr(kind, n, None) or ()) for n in names})


def _whole(value):
    """A value that is cut along explicit axes of a mesh, whole on each of their devices."""
    sharding = getattr(jax.typeof(value), "sharding", None) if hasattr(jax, "typeof") else None
    kinds = getattr(getattr(sharding, "mesh", None), "axis_types", None) or ()
    if not any(getattr(kind, "name", "") == "Explicit" for kind in kinds):
        return value
    if all(axes is None for axes in sharding.spec):
        return value
    everywhere = jax.sharding.PartitionSpec(*(None for _ in value.shape))
    return jax.sharding.reshard(value, jax.sharding.NamedSharding(sharding.mesh, everywhere))


def together(values, cut=False):
    """The values by name, each varying over all axes over which one does, as JAX's functions take
    theirs. The gradient of what did not vary is then the sum over devices. cut: whether values stay
    cut along explicit axes of a mesh."""
    if cut and _partition.explicit_mesh(values.values()) is not None:
        values = _partition.aligned(values)
    else:
        values = {name: _whole(value) for name, value in values.items()}
    types = {name: _manual_type(value) for name, value in values.items()}
    axes = frozenset().union(*(kind.varying for kind in types.values()))
    for name, kind in types.items():
        if kind.unreduced:
            raise FastnormError(
                f"FASTNORM_ERROR_ARGUMENT: {name} is unreduced over {sorted(kind.unreduced)}; "
                "required: the sum, as of jax.lax.psum"
            )
    return {name: _varying(value, axes - types[name].varying) for name, value in values.items()}


def _varying(value, axes):
    """A value that varies over more axes."""
    reduced = _manual_type(value).reduced & axes
    for some in (reduced, axes - reduced):
        if some:
            names = tuple(sorted(some, key=str))
            if hasattr(jax.lax, "pcast"):
                value = jax.lax.pcast(value, names, to="varying")
            else:  # before JAX 0.8
                value = jax.lax.pvary(value, names)
    return value


def _varies_like(form, value):
    """A result's shape and dtype with the axes over which a value varies."""
    axes = _manual_type(value).varying
    if not axes:
        return jax.ShapeDtypeStruct(form.shape, form.dtype)
    of = jax.typeof(value)
    kind = getattr(of, "manual_axis_type", None)
    more = {"vma": axes} if kind is None else {"manual_axis_type": type(kind)(varying=axes)}
    # The axes are those of a mesh, which JAX takes from a sharding.
    whole = jax.sharding.NamedSharding(of.sharding.mesh, jax.sharding.PartitionSpec())
    return jax.ShapeDtypeStruct(form.shape, form.dtype, sharding=whole, **more)


@functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def _jitted(function, call, _, inputs):
    return function(call, inputs)


def differentiable(function, call, inputs):
    """function(call, inputs), a custom_vjp with symbolic zeros. Where no gradient is wanted, an
    eager jax.shard_map takes one only if it is jitted."""
    try:
        return function(call, inputs)
    except NotImplementedError as error:
        if "symbolic_zeros support with shard_map" not in str(error):
            raise
    return _jitted(function, call, use_command_buffers, inputs)


# --- calls of the library ---


class Tensor(NamedTuple):
    """One tensor of a call."""

    field: str  # of the args struct, or of part number `part`
    value: Any  # an array, or the shape and dtype of a result
    part: Optional[int] = None
    heads: Optional[Tuple[int, int]] = None  # (first, number): some of the second dimension
    result: Optional[int] = None  # of an input: the result in whose memory it is
    seen: bool = True  # False, of such an input: the call has the result in its place


class _Asked(NamedTuple):
    """A call as the library sees it, without memory. It can be hashed."""

    family: str
    options: tuple  # fields of the args struct
    parts: tuple  # fields of each part
    tensors: tuple  # part, field, shape, dtype and heads of each


def _rows_joined(name, shape, lead):
    """The shape of a tensor whose leading dimensions, which no parameter has, become one."""
    if name in _PARAMETERS or not len(shape) >= lead > 1:
        return shape
    return (int(np.prod(shape[:lead], dtype=np.int64)), *shape[lead:])


@functools.lru_cache(maxsize=4096)
def _described(asked, context=_checker):
    """The call with stand-ins for memory, which nothing touches."""
    fields, parts = dict(asked.options), [dict(part) for part in asked.parts]
    for i, (part, name, shape, dtype, heads) in enumerate(asked.tensors):
        strides, stride = [], 1
        for extent in reversed(shape):
            strides.insert(0, stride)
            stride *= extent
        address = (i + 1) << 44  # 2^44 bytes apart
        if heads is not None:
            address += heads[0] * strides[1] * dtype.itemsize
            shape = (shape[0], heads[1], *shape[2:])
        (fields if part is None else parts[part])[name] = SimpleNamespace(
            address=address, shape=shape, strides=strides, itemsize=1, dtype=_dtype(name, dtype)
        )
    if asked.family in ("fastnorm_norm", "fastnorm_norm_backward"):
        make = context.call if asked.family == "fastnorm_norm" else context.norm_backward
        return make(fields.pop("kind"), **fields)
    make = getattr(context, asked.family.removeprefix("fastnorm_"))
    return make(**fields) if asked.family == "fastnorm_mla_decode" else make(parts, **fields)


@functools.lru_cache(maxsize=4096)
def _check(asked, context=_checker):
    """Asks the library what it would say: the bytes of workspace, or an error."""
    return _described(asked, context).query().workspace_bytes


def _structs(asked):
    """The structs of a call as bytes, one behind the other, with null for pointers. Where each
    tensor's pointer is, in the order of asked.tensors. links: where a pointer to a struct is, and
    where that struct."""
    call = _described(asked)
    structs = [call.args, *getattr(call, "parts", ())]
    found, offsets, links, waiting = bytearray(), {}, [], {}
    for struct in structs:  # grows
        start = len(found)
        if id(struct) in waiting:
            links += [waiting[id(struct)], start]
        found += bytes(struct)
        for name, kind in struct._fields_:
            pointer = getattr(struct, name)
            if not isinstance(pointer, ctypes._Pointer) or not pointer:
                continue
            at = start + getattr(type(struct), name).offset
            found[at : at + 8] = bytes(8)
            if kind is _c.TensorPointer:  # the address of a stand-in has its number
                offsets[(pointer.contents.data >> 44) - 1] = at
            else:
                structs.append(pointer.contents)
                waiting[id(structs[-1])] = at
    return np.frombuffer(bytes(found), np.int32), [offsets[i] for i in sorted(offsets)], links


class _What(NamedTuple):
    """A call but its arrays and their shapes. It can be hashed."""

    family: str
    options: tuple
    parts: tuple
    inputs: tuple  # Tensors without values
    outputs: tuple
    rank: Optional[int]
    lead: int
    target: str


def run(family, options, inputs, outputs, parts=(), rank=None, lead=0):
    """One call of a family, as a part of the program. options and parts: fields of the structs.
    inputs and outputs: Tensors. The outputs' arrays in their order.

    rank: of x. With it vmap is one call, whose rows are the first `lead` dimensions; without it
    vmap is a call for each part of the batch."""
    what = _What(
        family,
        tuple(options.items()),
        tuple(tuple(part.items()) for part in parts),
        tuple(t._replace(value=None) for t in inputs),
        tuple(t._replace(value=None) for t in outputs),
        rank,
        lead,
        target_of(family),
    )
    values = {i: t.value for i, t in enumerate(inputs)}
    call = _partition.Call(
        _ffi,
        what,
        tuple(t.field for t in inputs),
        tuple(t.field for t in outputs),
        tuple((tuple(t.value.shape), t.value.dtype) for t in outputs),
        next((t.value.ndim for t in inputs if t.field == "x"), 0),
        rank is not None,
        _CUTS[family],
    )
    _check(_asked(call, values.values(), call.forms))
    if not _is_manual() and _partition.can_cut(call, values.values()):
        mesh = _partition.explicit_mesh(values.values())
        if mesh is not None:
            return list(_partition.run_explicit(call, list(values.values()), mesh))
        return list(_partition.bind(call, values.values()))
    return list(_ffi(call, together(values).values(), call.forms))


_CUTS = {  # how XLA may cut the arrays of a family
    "fastnorm_norm": _cuts.rows,
    "fastnorm_norm_backward": _cuts.rows,
    "fastnorm_norm_heads": _cuts.heads,
    "fastnorm_norm_heads_backward": _cuts.heads,
    "fastnorm_mla_decode": _cuts.requests,
}


def _is_manual():
    """Whether this is inside of jax.shard_map, where each device has its part already."""
    mesh = getattr(jax.sharding, "get_abstract_mesh", lambda: None)()
    return bool(getattr(mesh, "manual_axes", ()))


def _asked(call, values, forms):
    what = call.what
    shapes = [(v.shape, v.dtype) for v in values] + list(forms)
    return _Asked(
        what.family,
        what.options,
        what.parts,
        tuple(
            (
                t.part,
                t.field,
                tuple(_rows_joined(t.field, shape, what.lead)),
                np.dtype(dtype) if dtype.name in _DTYPES else dtype,
                t.heads,
            )
            for t, (shape, dtype) in zip((*what.inputs, *what.outputs), shapes)
            if t.seen
        ),
    )


def _ffi(call, values, forms):
    """The call of the library for arrays as they are. forms: shape and dtype of each output."""
    what, values = call.what, list(values)
    asked = _asked(call, values, forms)
    structs, offsets, links = _structs(asked)
    offsets, operands = iter(offsets), []
    for t in (*what.inputs, *what.outputs):
        role = int(t.field in _PARAMETERS)
        offset, result = (next(offsets), -1) if t.seen else (-1, t.result)
        operands += [offset, role, *(t.heads or (0, -1)), result]
    results = [_varies_like(jax.ShapeDtypeStruct(*form), values[0]) for form in forms]
    given = _workspace_bytes(asked) if what.target.endswith(_GRAPH) else 0
    if given:  # XLA aligns less than the library wants.
        results.append(_varies_like(jax.ShapeDtypeStruct((given + 256,), jnp.uint8), values[0]))
    aliases = {i: t.result for i, t in enumerate(what.inputs) if t.result is not None}
    found = jax.ffi.ffi_call(
        what.target,
        results,
        vmap_method="sequential" if what.rank is None else "broadcast_all",
        input_output_aliases=aliases,
    )(
        *values,
        family=np.int32(_FAMILIES[what.family]),
        structs=structs,
        parts=np.int32(len(what.parts)),
        links=np.array([-1, -1, *links], np.int64),  # XLA takes no empty array
        operands=np.array(operands, np.int64),
        rank=np.int32(-1 if what.rank is None else what.rank),
        lead=np.int32(what.lead),
        given=np.int32(given > 0),
    )
    return list(found)[: len(forms)]


# What torch.nn.functional.rms_norm takes for None: that of the arithmetic, also for x of 16 bits.
_DEFAULT_EPS = float(np.finfo(np.float32).eps)


def _norm(
    kind,
    eps,
    inputs,
    outputs,
    in_place=False,
    weight_offset=0.0,
    rounding="once",
    residual_rounding="exact",
    more=(),
):
    """One fastnorm_norm. inputs: arrays by name, or None; outputs: shapes with dtypes by name. Its
    outputs' arrays by name. in_place: the sum takes residual's memory. more: further fields."""
    inputs = {name: inputs[name] for name in _INPUTS if inputs.get(name) is not None}
    outputs = {name: outputs[name] for name in _OUTPUTS if name in outputs}
    rank, lead = _rank_and_lead(inputs)
    options = {
        "kind": _KINDS[kind],
        "eps": _eps(eps),
        "weight_offset": _number("weight_offset", weight_offset, float),
        "rounding": _word(_ROUNDING, "rounding", rounding),
        "residual_rounding": _word(_RESIDUAL_ROUNDING, "residual_rounding", residual_rounding),
        **dict(more),
    }
    memory = {"residual": list(outputs).index("residual_out")} if in_place else {}
    found = run(
        "fastnorm_norm",
        options,
        [Tensor(name, value, result=memory.get(name)) for name, value in inputs.items()],
        [Tensor(name, form) for name, form in outputs.items()],
        rank=rank,
        lead=lead,
    )
    return dict(zip(outputs, found))


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


def _norm_backward(kind, eps, weight_offset, rounding, inputs, outputs, bias_ndim=1):
    """One fastnorm_norm_backward; inputs and outputs as for _norm. The outputs by name."""
    inputs = {name: inputs[name] for name in _BACKWARD_INPUTS if name in inputs}
    outputs = {name: outputs[name] for name in _BACKWARD_OUTPUTS if name in outputs}
    rank, lead = _rank_and_lead(inputs, bias_ndim)
    options = {
        "kind": _KINDS[kind],
        "eps": eps,
        "weight_offset": weight_offset,
        "rounding": _ROUNDING[rounding],
    }
    found = run(
        "fastnorm_norm_backward",
        options,
        [Tensor(name, value) for name, value in inputs.items()],
        [Tensor(name, form) for name, form in outputs.items()],
        rank=rank,
        lead=lead,
    )
    return dict(zip(outputs, found))


def _arrays(**values):
    """The arguments of a function as arrays; those that may be None stay so."""
    return {
        name: None if value is None and name in ("weight", "bias") else _array(name, value)
        for name, value in values.items()
    }


_LAYOUTS = {name: n for name, n in _stages.LAYOUTS.items() if name != "column_major"}  # XLA's


def quantising(schemes, shape, quant, where=""):
    """What a Quant adds to a call of rows of a shape: scalars, inputs and outputs by their names in
    the C structs. schemes: the words that are taken. where: what errors put before a name."""
    scheme, block = quant.scheme, quant.block_size
    if scheme is None:
        raise ValueError("scheme is None; required: one of " + ", ".join(filter(None, schemes)))
    words = {"scheme": schemes, "layout": _LAYOUTS}
    options = {
        s.field: _setting(quant, s, words.get(s.name, s.words), where)
        for s in _stages.SETTINGS
        if s.kind is not None
    }
    if block not in ((64, 128) if scheme == "per_block" else (0,)):
        required = "64 or 128" if scheme == "per_block" else f"0, since the scheme is {scheme}"
        raise FastnormError(
            f"FASTNORM_ERROR_ARGUMENT: {where}block_size is {block}; required: {required}"
        )
    inputs = {
        s.field: _array(where + s.name, getattr(quant, s.name))
        for s in _stages.SETTINGS
        if s.kind is None and getattr(quant, s.name) is not None
    }
    *lead, n = shape
    codes = jnp.float8_e4m3fn if quant.dtype is None else quant.dtype
    fixed = _stages.BLOCKS.get(scheme)
    form = ((*lead, n // 2), jnp.uint8) if fixed and fixed.pairs else ((*lead, n), codes)
    outputs = {"quantized": jax.ShapeDtypeStruct(*form)}
    if scheme != "per_tensor":
        if "scale" in inputs:
            raise FastnormError(
                f"FASTNORM_ERROR_ARGUMENT: {where}scale is given; required: None, since {scheme} "
                "makes the scales"
            )
        columns = fixed.columns if fixed else block if scheme == "per_block" else n
        scales, dtype = -(-n // max(columns, 1)), jnp.dtype(fixed.scale if fixed else "float32")
        of_scales = (*lead, scales)
        if quant.layout == "swizzled_128x4":
            rows = int(np.prod(lead, dtype=np.int64))
            of_scales = (512 * -(-rows // 128) * -(-scales // 4),)
            dtype = jnp.float8_e8m0fnu if quant.pow2 else dtype
        outputs["scale"] = jax.ShapeDtypeStruct(of_scales, dtype)
    if "amax" in inputs:
        outputs["amax"] = _like(inputs["amax"])
    return options, inputs, outputs


def _setting(quant, setting, words, where=""):
    value, name = getattr(quant, setting.name), setting.of_part
    if words is not None:
        return _word(words, name, value)
    if setting.kind is bool:
        return int(value)
    return _number(where + name if name == "block_size" else name, value, setting.kind)


def quant_settings(quant):
    """The scalars of a Quant that are those of a cache of codes, too."""
    return {
        s.field: _setting(quant, s, s.words)
        for s in _stages.SETTINGS
        if s.name in ("division", "source", "amax_floor")
    }


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
        _norm(kind, eps, inputs, _outputs_of(inputs, y_dtype), in_place, *options).values()
    )


def _forward(call, inputs):
    """The norm with its statistics, and what the backward needs. What is wanted is said by the keys
    of a dictionary, which are part of the program."""
    kind, y_dtype, in_place, eps, *options = call
    wanted = {name: () for name, primal in inputs.items() if primal.perturbed}
    inputs = {name: primal.value for name, primal in inputs.items()}
    outputs = _outputs_of(inputs, y_dtype, kind)
    found = _norm(kind, eps, inputs, outputs, in_place, *options)
    saved = {
        "x": found.get("residual_out", inputs["x"]),
        **{n: found[n] for n in ("mean", "rstd") if n in found},
    }
    saved.update({n: inputs[n] for n in ("weight", "bias") if n in inputs})
    # x and the residual are kept as keys with their dtypes alone.
    dtypes = {(n, inputs[n].dtype.name): () for n in ("x", "residual") if n in inputs}
    return tuple(found[n] for n in ("y", "residual_out") if n in found), (wanted, saved, dtypes)


def _backward(call, kept, gradients):
    kind, _, _, eps, weight_offset, rounding, _ = call
    wanted, saved, dtypes = kept
    dtypes = {name: jnp.dtype(dtype) for name, dtype in dtypes}
    dy, dtotal = gradients[0], gradients[1] if len(gradients) > 1 else None
    zero = jax.custom_derivatives.SymbolicZero
    dy = jnp.zeros(dy.shape, dy.dtype) if isinstance(dy, zero) else dy
    inputs = {"dy": dy, **{n: a for n, a in saved.items() if n != "bias"}}
    if dtotal is not None and not isinstance(dtotal, zero):
        inputs["dresidual_in"] = dtotal
    outputs, x, bias = {}, saved["x"], saved.get("bias")
    if "x" in wanted or "residual" in wanted:
        outputs["dx"] = jax.ShapeDtypeStruct(x.shape, dtypes["x"])
    # One gradient serves x and the residual where their dtypes agree.
    if "residual" in wanted and dtypes["residual"] != dtypes["x"]:
        outputs["dresidual"] = jax.ShapeDtypeStruct(x.shape, dtypes["residual"])
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
    inputs = together(inputs, cut=True)
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
    return differentiable(_differentiable, call, inputs)


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
    """RMSNorm of each row: y = x * rsqrt(mean(x^2) + eps) * (weight + weight_offset).

    It works under jit, vmap and grad, on a CPU and on GPUs. A second derivative is an error.

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16. A row is the last dimension.
        weight: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for ones.
        eps: Added to the mean of squares, or to the variance, before the root. None is the epsilon
            of float32.
        weight_offset: Added to the weight in float32: 0, or 1 for Gemma.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation, "once_rw" once
            with rstd * weight multiplied first.
        y_dtype: The dtype of y: None for that of x, or float32.

    Returns:
        y, of x's shape.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
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
    """LayerNorm of each row: y = (x - mean) / sqrt(var + eps) * weight + bias.

    It works under jit, vmap and grad, on a CPU and on GPUs. A second derivative is an error.

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16. A row is the last dimension.
        weight: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for ones.
        bias: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for zeros.
        eps: Added to the mean of squares, or to the variance, before the root. None is the epsilon
            of float32.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation, "once_rw" once
            with rstd * weight multiplied first.
        y_dtype: The dtype of y: None for that of x, or float32.

    Returns:
        y, of x's shape.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
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
    """RMSNorm of the sum x + residual, and the sum.

    It works under jit, vmap and grad, on a CPU and on GPUs. A second derivative is an error.

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16. A row is the last dimension.
        residual: What is added to x before the norm, of x's shape, in float32, float16 or bfloat16.
        weight: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for ones.
        eps: Added to the mean of squares, or to the variance, before the root. None is the epsilon
            of float32.
        weight_offset: Added to the weight in float32: 0, or 1 for Gemma.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation, "once_rw" once
            with rstd * weight multiplied first.
        residual_rounding: Which value of the sum is normalised: "exact" the float32 sum,
            "before_apply" the rounded one after statistics of the exact one, "before_statistics"
            the rounded one for both.
        y_dtype: The dtype of y: None for that of x, or float32.

    Returns:
        (y, sum), where the sum has residual's dtype.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
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
    """As add_rms_norm, with the sum in residual's memory.

    XLA copies residual before, unless nothing else needs it: an intermediate result, or an argument
    that donate_argnums gives away. jit gives a donated argument's memory to the first result of its
    shape and dtype, so return the sum before the norm.

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16. A row is the last dimension.
        residual: What is added to x before the norm, of x's shape, in float32, float16 or bfloat16.
        weight: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for ones.
        eps: Added to the mean of squares, or to the variance, before the root. None is the epsilon
            of float32.
        weight_offset: Added to the weight in float32: 0, or 1 for Gemma.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation, "once_rw" once
            with rstd * weight multiplied first.
        residual_rounding: Which value of the sum is normalised: "exact" the float32 sum,
            "before_apply" the rounded one after statistics of the exact one, "before_statistics"
            the rounded one for both.
        y_dtype: The dtype of y: None for that of x, or float32.

    Returns:
        (y, sum), where the sum has residual's dtype.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
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
    division: str = "reciprocal",
    quant_source: str = "unrounded",
) -> Tuple[jax.Array, jax.Array]:
    """RMSNorm of each row as codes with their scales, in one kernel.

    norm_stages.gated_norm(x, None, weight, quant=Quant(..)) has more settings of codes. JAX refuses
    to differentiate it.

    Args:
        x: The rows, [.., n], in float32, float16 or bfloat16. A row is the last dimension.
        weight: [.., n], broadcast against x, in float32, float16 or bfloat16. None stands for ones.
        eps: Added to the mean of squares, or to the variance, before the root. None is the epsilon
            of float32.
        scheme: How codes are scaled, such as "per_row": one of fastnorm.stages.SCHEMES but
            "per_tensor". docs/quantisation.md describes them.
        block_size: Elements that share a scale with "per_block": 64 or 128. Otherwise 0.
        dtype: The dtype of codes: float8_e4m3fn, float8_e5m2 or int8 for "per_row" and "per_block",
            float8 for "mxfp8".
        weight_offset: Added to the weight in float32: 0, or 1 for Gemma.
        rounding: Where the row is rounded to x's dtype on its way: "once" when y is stored,
            "normalized" also before the weight, "every_step" after each operation, "once_rw" once
            with rstd * weight multiplied first.
        division: "reciprocal" makes codes of y * (1 / scale), "divide" of y / scale, as vLLM does.
        quant_source: "unrounded" quantises the float32 result, "rounded" the result in x's dtype,
            as an unfused chain does.

    Returns:
        (codes, scales). Scales are x.shape[:-1] + (1,) for "per_row", otherwise x.shape[:-1] +
            (scales of a row,). Codes of 4 bits are uint8, two to a byte.

    Raises:
        FastnormError: The library refuses a shape, a dtype, a layout or a device; the text has the
            status and names the argument.
        ValueError: A word, such as that of rounding, is unknown.
    """
    inputs = _arrays(x=x, weight=weight)
    if inputs["x"].ndim < 1:
        raise FastnormError("FASTNORM_ERROR_SHAPE: x has 0 dimensions; required: at least 1")
    quant = Quant(scheme, block_size, dtype, division=division, source=quant_source)
    more, _, outputs = quantising(_SCHEMES, inputs["x"].shape, quant)
    present = {name: a for name, a in inputs.items() if a is not None}
    _check_devices(present)
    found = _norm(
        "rms",
        eps,
        together(present, cut=True),
        outputs,
        weight_offset=weight_offset,
        rounding=rounding,
        more=tuple(more.items()),
    )
    return tuple(found.values())
