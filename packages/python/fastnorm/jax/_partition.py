"""Calls of libfastnorm on arrays that are cut over devices: each device computes its own part.

A call whose rows, heads or requests are independent is a primitive of its own. XLA's partitioner
asks it how arrays may be cut, which the rules of _cuts.py say. A parameter that has a dimension of
rows is cut along it as the rows are, and the gradient of one that lacks it is added up over the
devices.
"""

import functools
from typing import Any, NamedTuple, Optional, Tuple

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from fastnorm.jax import _cuts

try:  # since JAX 0.7, whose partitioner is Shardy
    from jax.experimental.custom_partitioning import (
        ArrayMapping,
        CompoundFactor,
        SdyShardingRule,
    )
except ImportError:
    SdyShardingRule = None

try:  # primitives whose lowering asks for the devices, as a partitioned call does
    from jax._src.dispatch import prim_requires_devices_during_lowering as _ask_for_devices
except ImportError:
    _ask_for_devices = None  # then nothing is cut

class Call(NamedTuple):
    """All of a call but its arrays. It can be hashed."""

    run: Any  # run(call, values, forms): the outputs of arrays that are not batched
    what: Any  # for run
    inputs: Tuple[str, ...]  # names of fields
    outputs: Tuple[str, ...]
    forms: tuple  # (shape, dtype) of each output, not batched
    rank: int  # of x without a batch
    batched: bool  # whether a batch is one call, whose tensors all have its dimensions first
    cut: Any  # the rule: how the call is cut whose inputs have these shapes; None where it is not

    def batch(self, shapes):
        """How many dimensions of a batch the tensors have, whose inputs have these shapes."""
        return len(shapes[self.inputs.index("x")]) - self.rank if self.batched else 0


def can_cut(call, values):
    """Whether a call on these arrays can be cut."""
    return _ask_for_devices is not None and call.cut(call, [v.shape for v in values]) is not None


# --- what each device computes ---


def _batched(call, values, forms):
    """The outputs of arrays with a batch in front."""
    function = functools.partial(call.run, call, forms=forms)
    for _ in range(call.batch([v.shape for v in values])):
        function = jax.vmap(function)
    return function(tuple(values))


def _axes(entry):
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


class _Placed(NamedTuple):
    inputs: list  # PartitionSpecs
    outputs: list
    sums: list  # of each output: the axes of the mesh that it is added up over


def _place(cut, shapes, specs, sizes):
    """Where each tensor lies, for the inputs' specs as they come. sizes: of the mesh's axes."""
    axes = {}  # of labels
    together = [tuple(map(_cuts.outer, of)) for of in (*cut.inputs, *cut.outputs)]
    for labels, shape, spec in sorted(
        zip(cut.inputs, shapes, specs), key=lambda each: len(each[0]), reverse=True
    ):
        for label, extent, entry in zip(labels, shape, spec):
            if isinstance(label, _cuts.Several):
                label, extent = label.of, extent // label.number
            wanted = _axes(entry)
            if label is None or not wanted or label in axes:
                continue
            count = 1
            for axis in wanted:
                count *= sizes[axis]
            # An axis cuts one dimension of a tensor.
            beside = {other for of in together if label in of for other in of}
            taken = {axis for other in beside for axis in axes.get(other, ())}
            if extent % count == 0 and not taken & set(wanted):
                axes[label] = wanted

    def spec_of(labels):
        return PartitionSpec(*(axes.get(_cuts.outer(label)) for label in labels))

    sums = [tuple(axis for label in of for axis in axes.get(label, ())) for of in cut.sums]
    return _Placed([spec_of(of) for of in cut.inputs], [spec_of(of) for of in cut.outputs], sums)


def _of_device(call, placed, sizes, batch):
    """The function of a device's parts. Sums over devices are in float32."""
    forms = []
    for (shape, dtype), spec, sums in zip(call.forms, placed.outputs, placed.sums):
        entries = (tuple(spec) + (None,) * (batch + len(shape)))[batch:]
        part = [
            extent // max(1, _product(sizes[axis] for axis in _axes(entry)))
            for extent, entry in zip(shape, entries)
        ]
        forms.append((tuple(part), jnp.dtype(jnp.float32) if sums else dtype))

    def compute(*parts):
        found = list(_batched(call, parts, tuple(forms)))
        for axes in dict.fromkeys(filter(None, placed.sums)):  # one collective for each
            those = [i for i, sums in enumerate(placed.sums) if sums == axes]
            added = jax.lax.psum(tuple(found[i] for i in those), axes)
            for i, y in zip(those, added):
                found[i] = y
        return tuple(y.astype(dtype) for y, (_, dtype) in zip(found, call.forms))

    return compute


def _product(numbers):
    found = 1
    for number in numbers:
        found *= number
    return found


# --- the partitioner's questions ---


def _spec(sharding, ndim):
    spec = getattr(sharding, "spec", ())
    return (tuple(spec) + (None,) * ndim)[:ndim]


def _rule(cut):
    """How Shardy moves cuts from one tensor to another."""
    whole, sizes = [], {}

    def factor(label):
        if label is None:
            whole.append(f"whole{len(whole)}")
            return whole[-1]
        if isinstance(label, _cuts.Several):
            sizes[label.places] = label.number
            return CompoundFactor(f"rows{label.of}", label.places)
        return f"rows{label}"

    def mapping(labels):
        return ArrayMapping(*map(factor, labels))

    inputs, outputs = tuple(map(mapping, cut.inputs)), tuple(map(mapping, cut.outputs))
    return SdyShardingRule(inputs, outputs, **sizes)


def _partitioned(call, shapes):
    """The call as a function of arrays that XLA may cut."""
    cut = call.cut(call, shapes)

    @custom_partitioning
    def function(*values):
        return tuple(_batched(call, values, call.forms))

    def placed(mesh, arguments):
        specs = [_spec(a.sharding, len(a.shape)) for a in arguments]
        return _place(cut, shapes, specs, dict(mesh.shape))

    def infer(mesh, arguments, results):
        return tuple(NamedSharding(mesh, spec) for spec in placed(mesh, arguments).outputs)

    def partition(mesh, arguments, results):
        found = placed(mesh, arguments)
        return (
            mesh,
            _of_device(call, found, dict(mesh.shape), call.batch(shapes)),
            tuple(NamedSharding(mesh, spec) for spec in found.outputs),
            tuple(NamedSharding(mesh, spec) for spec in found.inputs),
        )

    more = {} if SdyShardingRule is None else {"sharding_rule": _rule(cut)}
    function.def_partition(partition, infer_sharding_from_operands=infer, **more)
    return function


# --- arrays whose types say how they are cut ---


def _sharding(value):
    of = value if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) else None
    return getattr(
        jax.typeof(value) if of is None and hasattr(jax, "typeof") else of, "sharding", None
    )


def explicit_mesh(values):
    """The mesh of arrays that are cut along its axes, if all of its axes are explicit; else
    None."""
    if not hasattr(jax, "shard_map"):  # before JAX 0.7, XLA gathers them
        return None
    for value in values:
        mesh = getattr(_sharding(value), "mesh", None)
        kinds = getattr(mesh, "axis_types", None) or ()
        spec = getattr(_sharding(value), "spec", ())
        if kinds and all(getattr(kind, "name", "") == "Explicit" for kind in kinds) and any(spec):
            return mesh
    return None


def aligned(named):
    """Arrays by name, of which those with such types are cut as each device's rows need it.
    Gradients then have the types of their arrays."""
    mesh = explicit_mesh(named.values())
    if mesh is None:
        return named
    call = Call(None, None, tuple(named), (), (), named["x"].ndim, False, _cuts.rows)
    placed = _placed_in(call, list(named.values()), mesh)
    if placed is None:
        return named
    return {
        name: jax.sharding.reshard(value, NamedSharding(mesh, spec))
        for (name, value), spec in zip(named.items(), placed.inputs)
    }


def _placed_in(call, values, mesh):
    shapes = [v.shape for v in values]
    cut = call.cut(call, shapes)
    specs = [_spec(_sharding(v), v.ndim) for v in values]
    return None if cut is None else _place(cut, shapes, specs, dict(mesh.shape))


def run_explicit(call, values, mesh):
    """The outputs of a call on such arrays, in jax.shard_map."""
    placed = _placed_in(call, values, mesh)
    values = [
        jax.sharding.reshard(v, NamedSharding(mesh, spec)) for v, spec in zip(values, placed.inputs)
    ]
    return jax.shard_map(
        _of_device(call, placed, dict(mesh.shape), 0),
        mesh=mesh,
        in_specs=tuple(placed.inputs),
        out_specs=tuple(placed.outputs),
        check_vma=False,
    )(*values)


# --- the primitive ---

_primitive = Primitive("fastnorm")
_primitive.multiple_results = True
if _ask_for_devices is not None:
    _ask_for_devices.add(_primitive)


def bind(call: Call, values):
    """The outputs of a call that can be cut."""
    return _primitive.bind(*values, call=call)


@functools.lru_cache(maxsize=4096)
def _jitted(call):
    return jax.jit(lambda *values: tuple(_primitive.bind(*values, call=call)))


@_primitive.def_impl
def _impl(*values, call):
    return list(_jitted(call)(*values))


@_primitive.def_abstract_eval
def _abstract(*values, call):
    shapes = [v.shape for v in values]
    batch = shapes[0][: call.batch(shapes)]
    return [jax.core.ShapedArray((*batch, *shape), dtype) for shape, dtype in call.forms]


def _lowered(*values, call):
    return _partitioned(call, [v.shape for v in values])(*values)


mlir.register_lowering(_primitive, mlir.lower_fun(_lowered, multiple_results=True))


def _whole(values):
    """The arrays on every device, where their types say that they are cut. jax.vmap hides the cut
    of a batch from run_explicit()."""
    mesh = explicit_mesh(values)
    if mesh is None:
        return values
    everywhere = NamedSharding(mesh, PartitionSpec())
    return [jax.sharding.reshard(v, everywhere) for v in values]


def _batch(values, dimensions, *, call):
    values = _whole(values)
    if not call.batched:
        function = functools.partial(call.run, call, forms=call.forms)
        found = jax.vmap(lambda *of_one: tuple(function(of_one)), in_axes=dimensions)(*values)
        return list(found), [0] * len(found)
    size = next(v.shape[d] for v, d in zip(values, dimensions) if d is not None)
    values = [
        jnp.broadcast_to(v, (size, *v.shape)) if d is None else jnp.moveaxis(v, d, 0)
        for v, d in zip(values, dimensions)
    ]
    found = _primitive.bind(*values, call=call)
    return found, [0] * len(found)


batching.primitive_batchers[_primitive] = _batch


def _refuse(values, tangents, *, call):
    raise ValueError(
        "A call of libfastnorm cannot be differentiated: fastnorm.jax has its gradient"
    )


ad.primitive_jvps[_primitive] = _refuse
