"""How the arrays of a call may be cut over devices, so that each device computes a part alone.

A rule gives each dimension of each tensor a label, or None where it stays whole. Dimensions with
the same label are cut along the same axes of a mesh. Labels of rows are x's dimensions; those of
heads are "tokens" and "heads0" .., one for each part; those of MLA decode "requests" and "heads".
"""

from typing import NamedTuple

from fastnorm import abi as _c

# Tensors that broadcast against x from the right.
_PARAMETERS = (
    "weight",
    "bias",
    "branch_weight",
    "branch_bias",
    "residual_gate",
    "modulation_scale",
    "modulation_shift",
)
_SUMS = ("dweight", "dbias", "dbranch_weight", "dbranch_bias", "dresidual_gate")
# What a device's part alone does not decide, or what lies otherwise.
_WHOLE = ("amax", "modulation_index")


class Several(NamedTuple):
    """The label of a dimension that has several places for each one of the label `of`."""

    of: str
    places: str
    number: int


def outer(label):
    """What a label is cut along."""
    return label.of if isinstance(label, Several) else label


class Cut(NamedTuple):
    """Labels of the dimensions of each tensor, and for each output those over which it is a sum."""

    inputs: tuple
    outputs: tuple
    sums: tuple


# --- rows ---


def _of_rows(name, shape, x, batch):
    """The labels of one tensor; x: its shape. None where it is cut otherwise."""
    if name in (*_PARAMETERS, *_SUMS):
        skip = len(x) - (len(shape) - batch)  # of x's dimensions, those that it lacks and the batch
        own = shape[batch:]
        found = [
            skip + i if skip + i < len(x) - 1 and own[i] == x[skip + i] != 1 else None
            for i in range(len(own))
        ]
        return (*range(batch), *found)
    rows = x[:-1]
    if shape[: len(rows)] != rows or len(shape) > len(x):
        return None
    return (*range(len(rows)), *[None] * (len(shape) - len(rows)))


def rows(call, shapes):
    """How a norm is cut whose inputs have these shapes; None where it is not. The last dimension of
    x is whole."""
    x = shapes[call.inputs.index("x")]
    batch = len(x) - call.rank
    if batch < 0 or any(name in _WHOLE for name in (*call.inputs, *call.outputs)):
        return None
    inputs = [
        _of_rows(name, shape, x, batch) or (None,) * len(shape)
        for name, shape in zip(call.inputs, shapes)
    ]
    outputs = [
        _of_rows(name, (*x[:batch], *shape), x, batch)
        for name, (shape, _) in zip(call.outputs, call.forms)
    ]
    if None in outputs:
        return None
    sums = [
        tuple(d for d in range(len(x) - 1) if d not in labels) if name in _SUMS else ()
        for name, labels in zip(call.outputs, outputs)
    ]
    return Cut(tuple(inputs), tuple(outputs), tuple(sums))


# --- heads ---

_OF_TOKENS = ("x", "dy", "y", "dx", "quantized", "scale", "head_weights", "head_weights_out")
_STATISTICS = ("mean", "rstd", "sumsq", "mean_in", "rstd_in")
_CACHES = ("cache", "cache_scale", "cache_tail")


class _Heads:
    """The labels of a call of norm_heads or of its backward."""

    def __init__(self, call, shapes):
        what = call.what
        self.flags = [dict(part)["flags"] for part in what.parts]
        self.tensors = [*zip(what.inputs, shapes), *zip(what.outputs, (s for s, _ in call.forms))]
        self.of_call = {t.field: shape for t, shape in self.tensors if t.part is None}
        rows = [(t, shape) for t, shape in self.tensors if t.field in ("x", "dy")]
        self.tokens = rows[0][1][0]
        self.counts = {t.part: shape[1] for t, shape in rows}
        some = {t.part for t, _ in rows if t.heads is not None}
        by_head = len(self.of_call.get("cos", ())) > 2
        self.labels = {
            part: f"heads{part}"
            for part in self.counts
            if part not in some and not by_head and not self.flags[part] & _c.ACROSS_HEADS
        }
        self.has_tokens = self._tokens_are_apart()

    def _counts_rows(self):
        """Whether rope takes the rows of the tables in their order, for want of positions."""
        return "cos" in self.of_call and "positions" not in self.of_call

    def _tokens_are_apart(self):
        # Devices with other tokens would write to the same pages.
        if any(t.field in _CACHES and len(shape) > 1 for t, shape in self.tensors):
            return False
        if self.of_call.get("slots", (self.tokens,)) != (self.tokens,):
            return False
        return not self._counts_rows() or self.of_call["cos"][-2:-1] == (self.tokens,)

    def of(self, t, shape):
        """The labels of a tensor."""
        tokens, heads = "tokens" if self.has_tokens else None, self.labels.get(t.part)
        whole = (None,) * len(shape)
        if t.part is None:
            if t.field in ("cos", "sin"):
                counted = self._counts_rows() and len(shape) == 2
                return (tokens, None) if counted else whole
            return (*whole[:-1], tokens)  # positions and slots
        if t.field in ("weight", "bias", "dweight", "dbias"):
            by_head = len(shape) > 1 and shape[0] == self.counts[t.part] != 1
            return (heads, *whole[1:]) if by_head else whole
        if t.field in _CACHES and len(shape) > 2:
            return (None, None, heads, *whole[3:])
        if t.field in (*_OF_TOKENS, *_STATISTICS) and shape[0] == self.tokens and len(shape) > 1:
            across = t.field in _STATISTICS and self.flags[t.part] & _c.ACROSS_HEADS
            return (tokens, None if across else heads, *whole[2:])
        return (tokens,) if t.field in _STATISTICS else whole

    def sums(self, t, labels):
        if t.field not in _SUMS:
            return ()
        of_part = ("tokens" if self.has_tokens else None, self.labels.get(t.part))
        return tuple(label for label in of_part if label is not None and label not in labels)


def heads(call, shapes):
    """How a call of norm_heads or its backward is cut; None where it is not.

    Tokens are cut but with a cache, and heads where each has a statistic of its own and a part has
    all heads of its x. With a cache, each device writes its own heads.
    """
    if any(t.field in _WHOLE for t in (*call.what.inputs, *call.what.outputs)):
        return None
    known = _Heads(call, shapes)
    labels = [known.of(t, shape) for t, shape in known.tensors]
    count = len(shapes)
    outputs = labels[count:]
    if not known.has_tokens and not known.labels:
        return None
    # Swizzled scales have one dimension for all rows.
    if any(t.field == "scale" and len(shape) == 1 for t, shape in known.tensors[count:]):
        return None
    sums = [known.sums(t, of) for t, of in zip(call.what.outputs, outputs)]
    return Cut(tuple(labels[:count]), tuple(outputs), tuple(sums))


# --- MLA decode ---

_OF_QUERY = ("q_nope", "q_pe", "o", "lse")
_OF_REQUESTS = (
    "kv_len",
    "page_table",
    "indices",
    "topk_length",
    "extra_indices",
    "extra_topk_length",
)


def requests(call, shapes):
    """How a call of mla_decode is cut: heads always, and requests where each has as many new tokens
    as the others and its own row of the tables. Caches are whole."""
    of = dict(zip(call.inputs, shapes))
    tokens, (count, *_) = of["q_nope"][0], of.get("kv_len") or of.get("indices") or (0,)
    first = None
    if count > 0 and not {"qo_indptr", "kv_indptr"} & set(of):
        each = tokens // count
        first = "requests" if each == 1 else Several("requests", "new", each)
    has_requests = first is not None

    def labels(name, shape):
        whole = (None,) * len(shape)
        if name in _OF_QUERY:
            return (first, "heads", *whole[2:])
        if name == "attention_sink":
            return ("heads",)
        by_request = has_requests and name in _OF_REQUESTS
        return ("requests", *whole[1:]) if by_request else whole

    outputs = [labels(name, shape) for name, (shape, _) in zip(call.outputs, call.forms)]
    inputs = [labels(name, shape) for name, shape in zip(call.inputs, shapes)]
    return Cut(tuple(inputs), tuple(outputs), ((),) * len(outputs))
