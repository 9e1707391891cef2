"""Graphs of ONNX: norms become nodes of the domain of this library."""

from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

_MICROSOFT = "com.microsoft"
_DOMAINS = ("", "ai.onnx")
_HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_ROWS = (TensorProto.FLOAT, *_HALF)
# Codes whose zero point must be 0.
_CODES = (TensorProto.INT8, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2)

# Names of norms, and of what they become with a residual.
_NORMS = {
    "LayerNormalization": "SkipLayerNormalization",
    "RMSNormalization": "SkipSimplifiedLayerNormalization",
    "SimplifiedLayerNormalization": "SkipSimplifiedLayerNormalization",
}
_QUANTIZED = {
    "LayerNormalization": "LayerNormalizationQuantize",
    "RMSNormalization": "RMSNormalizationQuantize",
    "SimplifiedLayerNormalization": "RMSNormalizationQuantize",
    "SkipLayerNormalization": "SkipLayerNormalizationQuantize",
    "SkipSimplifiedLayerNormalization": "SkipRMSNormalizationQuantize",
}
_NORMALIZED = 1  # the attribute `rounding`: the normalised row is rounded before the weight

Shape = Tuple[Any, ...]
Types = Dict[str, Tuple[int, Optional[Shape]]]


def infer_shapes(model: Any) -> Any:
    """The model with the shapes that ONNX knows of; the model itself where it is too large."""
    try:
        return onnx.shape_inference.infer_shapes(model)
    except (ValueError, onnx.shape_inference.InferenceError):
        return model


def _subgraphs(node: NodeProto) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def all_nodes(graph: Any) -> Iterator[NodeProto]:
    """The nodes of a graph and of its subgraphs."""
    for node in graph.node:
        yield node
        for inner in _subgraphs(node):
            yield from all_nodes(inner)


def attribute(node: NodeProto, name: str, otherwise: Any) -> Any:
    for found in node.attribute:
        if found.name == name:
            return helper.get_attribute_value(found)
    return otherwise


def _given(names: Any, index: int) -> str:
    return names[index] if index < len(names) else ""


def _type_of(value: Any) -> Tuple[int, Optional[Shape]]:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    return tensor.elem_type, tuple(
        d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim
    )


def types_of(model: Any) -> Types:
    """The types of the values of the main graph, by name."""
    graph = model.graph
    return {v.name: _type_of(v) for v in (*graph.input, *graph.value_info, *graph.output)}


class _Graph:
    """A graph with who makes and who uses its values. `known` has types of values by name, beside
    those that the graph tells. `gpu`: its nodes may run on a GPU."""

    def __init__(self, graph: Any, domain: str, known: Types, gpu: bool) -> None:
        self.graph, self.domain, self.gpu = graph, domain, gpu
        self.nodes: List[NodeProto] = list(graph.node)
        self.types: Types = dict(known)
        self.initializers = {t.name: t for t in graph.initializer}
        for value in (*graph.input, *graph.value_info, *graph.output):
            found = _type_of(value)
            if found[1] is not None or value.name not in self.types:
                self.types[value.name] = found
        for tensor in graph.initializer:
            self.types[tensor.name] = (tensor.data_type, tuple(tensor.dims))
        self.outputs = {value.name for value in graph.output}
        self.index()

    def index(self) -> None:
        self.makers: Dict[str, NodeProto] = {}
        self.users: Dict[str, List[NodeProto]] = {}
        for node in self.nodes:
            for name in node.output:
                if name:
                    self.makers[name] = node
            inner = {n for g in _subgraphs(node) for m in all_nodes(g) for n in m.input}
            inner |= {o.name for g in _subgraphs(node) for o in g.output}
            for name in (*node.input, *inner):
                if name:
                    self.users.setdefault(name, []).append(node)

    def replace(self, old: List[NodeProto], new: NodeProto) -> None:
        """The new node in the place of the last of the old ones."""
        gone = {id(node) for node in old}
        place = max(i for i, node in enumerate(self.nodes) if id(node) in gone)
        self.nodes[place] = new
        gone.discard(id(new))
        self.nodes = [n for n in self.nodes if id(n) not in gone or n is new]
        self.index()

    def make(self, op: str, inputs: List[str], outputs: List[str], like: NodeProto,
             **attributes: Any) -> NodeProto:
        for names in (inputs, outputs):
            while names and not names[-1]:
                names.pop()
        return helper.make_node(
            op, inputs, outputs, like.name or f"{op}_{outputs[0]}", domain=self.domain, **attributes
        )

    def type_of(self, name: str) -> int:
        return self.types.get(name, (0, None))[0]

    def shape_of(self, name: str) -> Optional[Shape]:
        return self.types.get(name, (0, None))[1]

    def constant(self, name: str) -> Optional[Any]:
        """The value of an initializer or a Constant."""
        if name in self.initializers:
            return numpy_helper.to_array(self.initializers[name])
        node = self.makers.get(name)
        if node is not None and node.op_type == "Constant" and node.domain in _DOMAINS:
            value = attribute(node, "value", None)
            return None if value is None else numpy_helper.to_array(value)
        return None

    def number(self, name: str) -> Optional[float]:
        value = self.constant(name)
        if value is None or value.size != 1:
            return None
        return float(np.asarray(value).reshape(-1)[0])

    def maker(self, name: str, *ops: str) -> Optional[NodeProto]:
        """The node of ONNX that makes a value, if it is one of these operators."""
        node = self.makers.get(name)
        if node is None or node.domain not in _DOMAINS or node.op_type not in ops:
            return None
        return node

    def ours(self, name: str, ops: Any) -> Optional[NodeProto]:
        node = self.makers.get(name)
        found = node is not None and node.domain == self.domain and node.op_type in ops
        return node if found and node.output[0] == name else None

    def only_user(self, name: str) -> bool:
        return name not in self.outputs and len(self.users.get(name, ())) == 1

    def depends(self, node: NodeProto, on: NodeProto) -> bool:
        seen: Set[int] = set()
        waiting = [node]
        while waiting:
            for name in waiting.pop().input:
                maker = self.makers.get(name)
                if maker is on:
                    return True
                if maker is not None and id(maker) not in seen:
                    seen.add(id(maker))
                    waiting.append(maker)
        return False

    def sorted(self) -> List[NodeProto]:
        """The nodes, each behind those that make its inputs; otherwise in their order."""
        ready: List[NodeProto] = []
        done: Set[int] = set()
        for first in self.nodes:
            waiting = [first]
            while waiting:
                node = waiting[-1]
                if id(node) in done:
                    waiting.pop()
                    continue
                inner = [n for g in _subgraphs(node) for m in all_nodes(g) for n in m.input]
                inner += [o.name for g in _subgraphs(node) for o in g.output]
                before = [self.makers[n] for n in (*node.input, *inner) if n in self.makers]
                missing = [n for n in before if id(n) not in done and n is not node]
                if missing:
                    waiting.extend(missing)
                else:
                    done.add(id(node))
                    ready.append(waiting.pop())
        return ready

    def write(self) -> None:
        nodes = self.sorted()
        used = set(self.outputs) | {value.name for value in self.graph.input}
        for node in all_nodes(self.graph):
            used |= {value for g in _subgraphs(node) for value in (o.name for o in g.output)}
        for node in nodes:
            used |= set(node.input)
            for inner in _subgraphs(node):
                used |= {name for deep in all_nodes(inner) for name in deep.input}
        nodes = [n for n in nodes if n.op_type != "Constant" or n.output[0] in used]
        kept = [tensor for tensor in self.graph.initializer if tensor.name in used]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        if len(kept) != len(self.graph.initializer):
            del self.graph.initializer[:]
            self.graph.initializer.extend(kept)


# --- norms by their name ---


def _supported(g: _Graph, node: NodeProto) -> bool:
    """Whether rows and parameters have types that the library has."""
    if attribute(node, "stash_type", 1) != 1:
        return False
    found = [g.type_of(name) for name in node.input if name]
    return all(kind == 0 or kind in _ROWS for kind in found)


def _broadcasts_within(g: _Graph, node: NodeProto) -> bool:
    """Whether a weight or bias broadcasts along a normalised dimension, which no GPU kernel does."""
    x, axis = g.shape_of(node.input[0]), attribute(node, "axis", -1)
    if x is not None and axis >= 0:
        axis -= len(x)
    for name in node.input[1:]:
        shape = g.shape_of(name) if name else None
        if shape is None or axis >= 0:
            continue
        for place in range(axis, 0):
            one = len(shape) < -place or shape[place] == 1
            if one and (x is None or len(x) < -place or x[place] != 1):
                return True
    return False


def _cannot_wait(g: _Graph, node: NodeProto) -> bool:
    """ONNX Runtime has fusions in single precision; it may change the zero point of codes."""
    return g.type_of(node.input[0]) in _HALF or any(
        user.op_type == "QuantizeLinear" and g.type_of(_given(user.input, 2)) in _CODES
        for user in g.users.get(node.output[0], ())
    )


def _named(g: _Graph, wait: bool) -> Set[str]:
    """Norms by their name. Returns their first outputs."""
    named = set()
    for node in list(g.nodes):
        op = node.op_type
        if wait and op == "LayerNormalization" and not _cannot_wait(g, node):
            continue
        skip = node.domain == _MICROSOFT and op in _NORMS.values()
        if not skip and not (op in _NORMS and node.domain in (*_DOMAINS, _MICROSOFT)):
            continue
        if not _supported(g, node) or (g.gpu and not skip and _broadcasts_within(g, node)):
            continue
        attributes = {"epsilon": attribute(node, "epsilon", 1e-12 if skip else 1e-5)}
        if not skip:
            attributes["axis"] = attribute(node, "axis", -1)
        new = g.make(op, list(node.input), list(node.output), node, **attributes)
        g.replace([node], new)
        named.add(node.output[0])
    return named


def _give_back(g: _Graph, named: Set[str]) -> None:
    """Norms of 16 bits without a residual."""
    for node in g.nodes:
        if node.domain != g.domain or node.op_type not in _NORMS or node.output[0] not in named:
            continue
        if g.type_of(node.input[0]) == TensorProto.FLOAT16:
            node.domain = ""


# --- RMSNorm as a chain ---


def _mean_of_squares(g: _Graph, name: str) -> Optional[Tuple[str, float, List[NodeProto]]]:
    """x, eps and the nodes of mean(x^2) + eps."""
    add = g.maker(name, "Add")
    if add is None:
        return None
    for mean_name, eps_name in ((0, 1), (1, 0)):
        mean, eps = g.maker(add.input[mean_name], "ReduceMean"), g.number(add.input[eps_name])
        if mean is None or eps is None or attribute(mean, "keepdims", 1) != 1:
            continue
        axes = attribute(mean, "axes", None)
        if axes is None and len(mean.input) > 1:
            value = g.constant(mean.input[1])
            axes = None if value is None else value.tolist()
        rank = len(g.shape_of(mean.input[0]) or ())
        if axes is None or list(axes) not in ([-1], [rank - 1] if rank else [-1]):
            continue
        square = g.maker(mean.input[0], "Pow", "Mul")
        if square is None:
            continue
        twice = square.op_type == "Mul" and square.input[0] == square.input[1]
        power = square.op_type == "Pow" and g.number(square.input[1]) == 2.0
        if (twice or power) and all(g.only_user(n.output[0]) for n in (square, mean, add)):
            return square.input[0], eps, [square, mean, add]
    return None


def _normalised(g: _Graph, name: str) -> Optional[Tuple[str, float, List[NodeProto]]]:
    """x, eps and the nodes of x * rsqrt(mean(x^2) + eps), written in one of three ways."""
    node = g.maker(name, "Div", "Mul")
    if node is None:
        return None
    for x, factor in ((0, 1), (1, 0)):
        if node.op_type == "Div" and x == 1:
            continue
        nodes, inner = [node], node.input[factor]
        root = g.maker(inner, "Sqrt") if node.op_type == "Div" else None
        if node.op_type == "Mul":
            turned = g.maker(inner, "Reciprocal")
            power = g.maker(inner, "Pow")
            if turned is not None:
                root = g.maker(turned.input[0], "Sqrt")
                nodes.append(turned)
            elif power is not None and g.number(power.input[1]) == -0.5:
                root = power
            else:
                one = g.maker(inner, "Div")
                if one is not None and g.number(one.input[0]) == 1.0:
                    root = g.maker(one.input[1], "Sqrt")
                    nodes.append(one)
        if root is None:
            continue
        nodes.append(root)
        if not all(g.only_user(n.output[0]) for n in nodes[1:]):
            continue
        found = _mean_of_squares(g, root.input[0])
        if found is not None and found[0] == node.input[x]:
            return found[0], found[1], nodes + found[2]
    return None


def _chains(g: _Graph) -> None:
    for node in list(g.nodes):
        if node.op_type != "Mul" or node.domain not in _DOMAINS or node.output[0] not in g.makers:
            continue
        for at, weight_at in ((0, 1), (1, 0)):
            weight, inner = node.input[weight_at], node.input[at]
            shape = g.shape_of(weight)
            if g.constant(weight) is None or shape is None or len(shape) != 1:
                continue
            nodes, rounding = [node], 0
            cast = g.maker(inner, "Cast")
            if cast is not None and g.only_user(inner):
                nodes.append(cast)
                inner = cast.input[0]
            if not g.only_user(inner):
                continue
            found = _normalised(g, inner)
            if found is None:
                continue
            x, eps, chain = found
            before = g.maker(x, "Cast")
            if before is not None and attribute(before, "to", 0) == TensorProto.FLOAT:
                wide = g.type_of(before.input[0])
                users = [u for u in g.users.get(x, ()) if id(u) not in {id(n) for n in chain}]
                if cast is not None and attribute(cast, "to", 0) == wide and wide in _HALF:
                    if not users and x not in g.outputs:
                        chain = [*chain, before]
                    x, rounding = before.input[0], _NORMALIZED
            kind, result = g.type_of(x), g.type_of(node.output[0])
            if cast is not None and rounding == 0:
                continue
            if kind not in _ROWS or (result and result != kind) or g.type_of(weight) != kind:
                continue
            columns = (g.shape_of(x) or (None,))[-1]
            if columns != shape[0]:
                continue
            new = g.make(
                "RMSNormalization", [x, weight], [node.output[0]], node, epsilon=eps, axis=-1,
                **({"rounding": rounding} if rounding else {}),
            )
            g.replace([*nodes, *chain], new)
            break


# --- the addition before, the codes behind ---


def _attributes(node: NodeProto) -> Dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _last_axis(g: _Graph, node: NodeProto) -> bool:
    axis = attribute(node, "axis", -1)
    shape = g.shape_of(node.input[0])
    return axis == -1 or (shape is not None and axis == len(shape) - 1)


def _row_parameters(g: _Graph, node: NodeProto) -> bool:
    """Whether weight and bias are one row."""
    shapes = [g.shape_of(name) for name in node.input[1:] if name]
    return all(shape is not None and len(shape) == 1 for shape in shapes)


def _additions(g: _Graph) -> None:
    for norm in list(g.nodes):
        if norm.domain != g.domain or norm.op_type not in _NORMS:
            continue
        add = g.maker(norm.input[0], "Add")
        if add is None or not _last_axis(g, norm) or not _row_parameters(g, norm):
            continue
        whole = g.shape_of(add.output[0])
        shapes = [g.shape_of(name) for name in add.input]
        if not whole or None in whole or None in shapes or g.type_of(add.output[0]) not in _ROWS:
            continue
        fits = [i for i in (0, 1) if shapes[i] == whole]
        other = shapes[1 - fits[0]] if fits else ()
        if not fits or not other or other[-1] != whole[-1]:
            continue
        x, residual = add.input[fits[0]], add.input[1 - fits[0]]
        attributes = _attributes(norm)
        attributes.pop("axis", None)
        layer = norm.op_type == "LayerNormalization"
        inputs = [x, residual, norm.input[1]] + ([_given(norm.input, 2)] if layer else [])
        more = len(g.users.get(add.output[0], ())) > 1 or add.output[0] in g.outputs
        statistics = [_given(norm.output, 1), _given(norm.output, 2)]
        if not layer:
            statistics = ["", _given(norm.output, 1)]
        outputs = [norm.output[0], *statistics, add.output[0] if more else ""]
        new = g.make(_NORMS[norm.op_type], inputs, outputs, norm, **attributes)
        g.replace([add, norm], new)


def _quantized(g: _Graph) -> None:
    for node in list(g.nodes):
        if node.op_type != "QuantizeLinear" or node.domain not in _DOMAINS:
            continue
        norm = g.ours(node.input[0], _QUANTIZED)
        if norm is None or len(node.input) < 3 or attribute(node, "block_size", 0) != 0:
            continue
        scale, zero = g.constant(node.input[1]), g.constant(node.input[2])
        if scale is None or zero is None or scale.size != 1 or zero.size != 1:
            continue
        if g.type_of(node.input[2]) not in _CODES or float(zero.reshape(-1)[0]) != 0.0:
            continue
        if attribute(node, "saturate", 1) != 1 or not float(scale.reshape(-1)[0]) > 0.0:
            continue
        skip = norm.op_type.startswith("Skip")
        if any(norm.output[1:3]):  # statistics
            continue
        scale_name = node.input[1]
        if g.type_of(scale_name) != TensorProto.FLOAT:
            scale_name = f"{node.output[0]}_scale_f32"
            made = numpy_helper.from_array(np.asarray(scale, np.float32), scale_name)
            g.graph.initializer.append(made)
            g.initializers[scale_name] = made
        first = 3 if skip else 2
        inputs = [*norm.input[:first], node.input[2], scale_name, *norm.input[first:]]
        y, total = norm.output[0], _given(norm.output, 3)
        outputs = [node.output[0], "", "" if g.only_user(y) else y, total]
        new = g.make(_QUANTIZED[norm.op_type], inputs, outputs, norm, **_attributes(norm))
        g.replace([norm, node], new)


# --- query and key heads ---


def _rotary(g: _Graph) -> None:
    for node in list(g.nodes):
        ms = node.domain == _MICROSOFT
        if node.op_type != "RotaryEmbedding" or not (ms or node.domain in _DOMAINS):
            continue
        if attribute(node, "is_packed_batching", 0) or attribute(node, "scale", 1.0) != 1.0:
            continue
        if ms:
            positions, cos, sin = node.input[1:4]
        else:
            cos, sin, positions = node.input[1], node.input[2], _given(node.input, 3)
        shape = g.shape_of(node.input[0])
        if shape is None or len(shape) not in (3, 4) or g.shape_of(cos) is None:
            continue
        if g.gpu and positions and len(g.shape_of(positions) or ()) != 2:
            continue  # one position for all, which only the CPU reads
        nodes, inner, tokens_first = [node], node.input[0], 0
        heads: Dict[str, Any] = {}
        if len(shape) == 4:
            turned = g.maker(inner, "Transpose")
            if turned is not None and g.only_user(inner):
                if list(attribute(turned, "perm", ())) != [0, 2, 1, 3]:
                    continue
                nodes, inner, tokens_first = [*nodes, turned], turned.input[0], 1
        norm = None
        if len(shape) == 3:
            found = _between_reshapes(g, inner, shape)
            if found is not None:
                norm, inner, more, d = found
                nodes, heads = [*nodes, *more], {"num_heads": shape[2] // d}
        else:
            norm = g.ours(inner, ("RMSNormalization", "SimplifiedLayerNormalization"))
            if norm is not None:
                inner = norm.input[0]
                # Transposed between norm and rotary, or before the norm.
                norm_shape = g.shape_of(norm.input[0]) or (None,)
                if g.shape_of(norm.input[1]) != (norm_shape[-1],):
                    continue
        if norm is None or any(norm.output[1:]) or not g.only_user(norm.output[0]):
            continue
        if not _last_axis(g, norm):
            continue
        nodes.append(norm)
        attributes = {
            "epsilon": attribute(norm, "epsilon", 1e-5),
            "interleaved": attribute(node, "interleaved", 0),
            "rotary_embedding_dim": attribute(node, "rotary_embedding_dim", 0),
            **heads,
        }
        if tokens_first:
            attributes["input_tokens_first"] = 1
        new = g.make(
            "RMSNormalizationRotaryEmbedding", [inner, norm.input[1], cos, sin, positions],
            [node.output[0]], node, **attributes,
        )
        g.replace(nodes, new)


def _between_reshapes(
    g: _Graph, name: str, shape: Shape
) -> Optional[Tuple[NodeProto, str, List[NodeProto], int]]:
    """A norm of heads between two Reshapes, whose result has the shape that came in."""
    after = g.maker(name, "Reshape")
    if after is None or not g.only_user(name):
        return None
    norm = g.ours(after.input[0], ("RMSNormalization", "SimplifiedLayerNormalization"))
    before = g.maker(norm.input[0], "Reshape") if norm is not None else None
    if norm is None or before is None or not g.only_user(norm.input[0]):
        return None
    weight = g.shape_of(norm.input[1])
    if g.shape_of(before.input[0]) != shape or None in shape or weight is None or len(weight) != 1:
        return None
    d = weight[0]
    if not isinstance(d, int) or not isinstance(shape[2], int) or shape[2] % d != 0:
        return None
    # The rows of the first Reshape are heads.
    wanted = g.constant(before.input[1])
    if wanted is None or int(wanted.reshape(-1)[-1]) != d:
        return None
    return norm, before.input[0], [after, before], d


def _pairs(g: _Graph) -> None:
    """Query and key that share tables and positions become one node."""
    name = "RMSNormalizationRotaryEmbedding"
    waiting: Dict[Tuple[Any, ...], NodeProto] = {}
    for node in [n for n in g.nodes if n.domain == g.domain and n.op_type == name]:
        shared = tuple(sorted((k, v) for k, v in _attributes(node).items() if k != "num_heads"))
        key = (*node.input[2:4], _given(node.input, 4), shared, attribute(node, "num_heads", 0) > 0)
        first = waiting.pop(key, None)
        if first is None or g.depends(node, first) or g.depends(first, node):
            waiting[key] = node
            continue
        shapes = [g.shape_of(n.input[0]) for n in (first, node)]
        tokens = [s and (s[0], s[1 if len(s) == 3 or ("input_tokens_first", 1) in shared else 2])
                  for s in shapes]
        if tokens[0] is None or None in tokens[0] or tokens[0] != tokens[1]:
            waiting[key] = node
            continue
        attributes = dict(shared)
        if key[-1]:
            attributes["num_heads"] = attribute(first, "num_heads", 0)
            attributes["kv_num_heads"] = attribute(node, "num_heads", 0)
        inputs = [*first.input[:4], _given(first.input, 4), node.input[0], node.input[1]]
        new = g.make(name, inputs, [first.output[0], node.output[0]], first, **attributes)
        g.replace([first, node], new)


def _rewrite_graph(
    graph: Any, domain: str, wait: bool, everything: bool, known: Types, gpu: bool
) -> None:
    for node in graph.node:
        for inner in _subgraphs(node):
            _rewrite_graph(inner, domain, wait, everything, {}, gpu)
    g = _Graph(graph, domain, known, gpu)
    _chains(g)
    named = _named(g, wait)
    _additions(g)
    if everything:
        for step in (_quantized, _rotary, _pairs):
            step(g)
    else:
        _give_back(g, named)
    g.write()


def rewrite(
    model: Any,
    domain: str,
    *,
    wait: bool = False,
    everything: bool = True,
    known: Optional[Types] = None,
    gpu: bool = False,
) -> None:
    """Changes the model's graphs. With `wait` LayerNormalization of single precision stays, for
    fusions of ONNX Runtime that begin with it. With `gpu` what only the CPU has stays."""
    _rewrite_graph(model.graph, domain, wait, everything, known or {}, gpu)
    used = any(node.domain == domain for node in all_nodes(model.graph))
    imports = [entry for entry in model.opset_import if entry.domain != domain]
    del model.opset_import[:]
    model.opset_import.extend(imports)
    if used:
        model.opset_import.append(helper.make_opsetid(domain, 1))
